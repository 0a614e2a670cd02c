"""models: whole Transformers, one file for each architecture, read from top to bottom."""

from .bart import BART
from .bert import BERT
from .flamingo import Flamingo
from .gpt import GPT, GPT1
from .llama import LLaMA
from .llava import LLaVA
from .load import load
from .mistral import Mistral
from .retro import RETRO
from .t5 import T5
from .transformer import Transformer
from .vit import ViT
from .whisper import Whisper

__all__ = [
    "BART",
    "BERT",
    "Flamingo",
    "GPT",
    "GPT1",
    "LLaMA",
    "LLaVA",
    "load",
    "Mistral",
    "RETRO",
    "T5",
    "Transformer",
    "ViT",
    "Whisper",
]
