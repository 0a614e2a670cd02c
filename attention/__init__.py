"""attention: self- and cross-attention and the Transformers made of them, each derivative derived by hand.

    attention.functional    operations: forward, backward and derivation side by side
    attention.layers        parameters and a call
    attention.models        whole Transformers, one file for each architecture

The operation that gives it its name is that of A. Vaswani et al., "Attention is all you need" (2017), arXiv:1706.03762.
All of it runs on whichever array library `minigrad` uses. The usual layers are here as well, and the two models that
`attention.train` trains. What reads data, trains, stores checkpoints or draws (`attention.data`, `attention.train`,
`attention.checkpoint`, `attention.plot`) is imported by its own name, as it needs the packages of the ``train`` extra.

>>> import minigrad as mg
>>> from attention import SelfAttention
>>> SelfAttention(d_model=6, d_head=2)(mg.ones((5, 6))).shape
(5, 2)
"""

from . import functional, layers, models
from .layers import (
    Conv1d,
    CrossAttention,
    DecoderBlock,
    Dropout,
    Embedding,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    LearnedPositions,
    Linear,
    Module,
    MultiHeadAttention,
    RMSNorm,
    RotaryPositions,
    SelfAttention,
    ShapesOnly,
    SinusoidalPositions,
    attention_weights,
)
from .models import GPT, Transformer

__all__ = [
    "functional",
    "layers",
    "models",
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
    "Transformer",
    "GPT",
]
