"""models: whole Transformers, one file for each architecture, read from top to bottom."""

from .gpt import GPT
from .transformer import Transformer

__all__ = ["GPT", "Transformer"]
