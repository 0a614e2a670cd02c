"""models: whole Transformers, one file for each architecture, read from top to bottom.

Each file begins with its papers. Settings, and the names and shapes of published weights, are those of
https://github.com/huggingface/transformers

Tokens are integers of shape (B, T), masks booleans of the same shape, True = real, or None where all is real; what a
model computes has the dtype of its parameters. What does not fit, a setting or a shape, is a ValueError of one line.
"""

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
