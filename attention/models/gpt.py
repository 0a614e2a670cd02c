"""The decoder-only Transformer, which continues a text.

A. Radford, J. Wu, R. Child, D. Luan, D. Amodei and I. Sutskever, "Language models are unsupervised multitask learners",
OpenAI (2019), known as GPT-2: blocks with the normalisation in front, GELU in its tanh form, learned positions, and one
matrix for reading and writing tokens.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import Dropout, Embedding, EncoderBlock, LayerNorm, LearnedPositions
from ..layers.attention import Cache, tokens_seen
from ..layers.module import expect_positive
from .published import CausalModel


class GPT(CausalModel):
    """Predicts each token from those before it.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    d_model, num_heads, num_layers, context_length, dropout
        The smallest GPT-2 (124 million parameters with its vocabulary of 50257) unless given. A feed-forward network
        is 4·d_model wide.

    Examples
    --------
    >>> model = GPT(11, d_model=8, num_heads=2, num_layers=1, context_length=6)
    >>> ids = mg.asarray([[3, 4, 5]])
    >>> model(ids).shape
    (1, 3, 11)
    >>> model.generate(ids, max_new_tokens=5).shape
    (1, 8)
    >>> from attention.layers import ShapesOnly
    >>> GPT(50257, generator=ShapesOnly()).parameter_count()
    124439808
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        context_length: int = 1024,
        dropout: float = 0.1,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("GPT", num_layers=num_layers)
        self.context_length = context_length
        self.tokens = Embedding(vocab_size, d_model, std=0.02, dtype=dtype, generator=generator)
        self.positions = LearnedPositions(context_length, d_model, std=0.02, dtype=dtype, generator=generator)
        self.dropout = Dropout(dropout, generator)
        gelu = partial(F.gelu, approximate="tanh")
        self.blocks = [
            EncoderBlock(
                d_model, num_heads, dropout=dropout, norm="pre", activation=gelu, dtype=dtype, generator=generator
            )
            for _ in range(num_layers)
        ]
        self.norm = LayerNorm(d_model, dtype=dtype)
        self._initialise(num_layers, dtype, generator or mg.random.default)

    def _initialise(self, num_layers: int, dtype: Any, generator: Generator) -> None:
        """GPT-2's start: N(0, 0.02²) and zero biases. What is added to the residual stream, by two projections in each
        block, starts smaller by √(2·num_layers), so that the sum over the blocks does not grow with their number."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.data = mg.zeros_like(parameter).data
            elif name.startswith("blocks") and parameter.ndim == 2:
                residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                std = 0.02 / math.sqrt(2 * num_layers) if residual else 0.02
                parameter.data = generator.normal(parameter.shape, std=std, dtype=dtype).data

    def __call__(
        self, ids: Tensor, mask: Any = None, cache: Cache | None = None, logits_to_keep: int | None = None
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: (B, T, vocab_size) for integers of shape (B, T).

        T is at most ``context_length``. ``mask`` of shape (B, T), True = real, says what is padding. With a ``cache``,
        empty at first, ``ids`` is what has come since the last call, and ``mask`` is of all tokens so far.
        ``logits_to_keep`` counts the last positions whose logits are wanted.
        """
        x = self.dropout(self.positions(self.tokens(ids), tokens_seen(cache, self.blocks[0].attention)))
        for block in self.blocks:
            x = block(x, mask, is_causal=True, cache=cache)
        x = self.norm(x if logits_to_keep is None else x[..., -logits_to_keep:, :])
        return F.linear(x, self.tokens.weight.T)
