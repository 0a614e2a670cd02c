"""models: whole Transformers, one file for each architecture, read from top to bottom."""

from .bart import BART
from .bert import BERT
from .gpt import GPT, GPT1
from .llama import LLaMA
from .mistral import Mistral
from .transformer import Transformer
from .whisper import Whisper

__all__ = ["BART", "BERT", "GPT", "GPT1", "LLaMA", "Mistral", "Transformer", "Whisper"]
