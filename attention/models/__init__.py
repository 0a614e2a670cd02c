"""models: whole Transformers, one file for each architecture, read from top to bottom."""

from .bart import BART
from .gpt import GPT
from .llama import LLaMA
from .mistral import Mistral
from .t5 import T5
from .transformer import Transformer
from .whisper import Whisper

__all__ = ["BART", "GPT", "LLaMA", "Mistral", "T5", "Transformer", "Whisper"]
