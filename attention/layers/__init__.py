"""layers: parameters and a call. The mathematics, and every derivative, is in `attention.functional`.

Arrays are rows of features, as in the papers: X is (..., T, d), a projection XW with W of shape (in, out). Masks are
boolean, with True for what is real or may be attended to. Parameters are drawn from ``minigrad.random.default``, or a
given generator, so that one seed gives the same model on every backend.
"""

from .attention import CrossAttention, MultiHeadAttention, SelfAttention
from .blocks import DecoderBlock, EncoderBlock
from .embedding import Embedding, LearnedPositions, RotaryPositions, SinusoidalPositions
from .linear import Dropout, FeedForward, LayerNorm, Linear, RMSNorm
from .module import Module, ShapesOnly

__all__ = [
    "Module",
    "ShapesOnly",
    "Linear",
    "FeedForward",
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
]
