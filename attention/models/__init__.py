"""models: whole Transformers, one file for each architecture, read from top to bottom."""

from .flamingo import Flamingo
from .gpt import GPT
from .llama import LLaMA
from .llava import LLaVA
from .mistral import Mistral
from .retro import RETRO
from .transformer import Transformer
from .vit import ViT

__all__ = ["Flamingo", "GPT", "LLaMA", "LLaVA", "Mistral", "RETRO", "Transformer", "ViT"]
