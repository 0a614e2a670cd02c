"""layers: parameters and a call. The mathematics, and every derivative, is in `attention.functional`.

Arrays are rows of features, as in the papers: X is (..., T, d_model), a projection XW with W of shape (in, out).
Padding masks are boolean, with True for what is real; attention masks are boolean, with True for what may be attended
to, or numbers to add to the scores. Parameters are drawn from ``minigrad.random.default``, or a given generator, so
that one seed gives the same model on every backend.

Each layer names its paper, or is PyTorch's of that name (https://docs.pytorch.org/docs/stable/nn.html). What does not
fit is an error of one line: ValueError for sizes, widths and masks, TypeError for dtypes.
"""

from .attention import CrossAttention, MultiHeadAttention, SelfAttention, attention_weights
from .blocks import DecoderBlock, EncoderBlock
from .convolution import Conv1d
from .embedding import Embedding, LearnedPositions, RotaryPositions, SinusoidalPositions
from .linear import Dropout, FeedForward, GatedFeedForward, Linear
from .lora import LoRA, add_lora, merge_lora
from .module import Module, ShapesOnly
from .normalization import LayerNorm, RMSNorm

__all__ = [
    "Module",
    "ShapesOnly",
    "Linear",
    "FeedForward",
    "GatedFeedForward",
    "Conv1d",
    "Dropout",
    "LayerNorm",
    "RMSNorm",
    "Embedding",
    "SinusoidalPositions",
    "LearnedPositions",
    "RotaryPositions",
    "SelfAttention",
    "CrossAttention",
    "MultiHeadAttention",
    "EncoderBlock",
    "DecoderBlock",
    "attention_weights",
    "LoRA",
    "add_lora",
    "merge_lora",
]
