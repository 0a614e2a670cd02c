"""The decoder-only Transformer, which continues a text.

A. Radford, J. Wu, R. Child, D. Luan, D. Amodei and I. Sutskever, "Language models are unsupervised multitask learners",
OpenAI (2019), known as GPT-2: blocks with the normalisation in front, GELU in its tanh form, learned positions, and one
matrix for reading and writing tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import dtype_name
from minigrad.random import Generator

from .. import functional as F
from ..layers import Dropout, Embedding, EncoderBlock, LayerNorm, LearnedPositions, Module
from ..layers.attention import Cache, tokens_seen
from ..layers.module import expect_positive


class GPT(Module):
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

    def __call__(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits of the token that follows each of ``ids``: (B, T, vocab_size) for integers of shape (B, T).

        T is at most ``context_length``. With a ``cache``, empty at first, ``ids`` is what has come since the last call.
        """
        x = self.dropout(self.positions(self.tokens(ids), tokens_seen(cache, self.blocks[0].attention)))
        for block in self.blocks:
            x = block(x, is_causal=True, cache=cache)
        return F.linear(self.norm(x), self.tokens.weight.T)

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """``ids`` of shape (B, T) and ``max_new_tokens`` more: int64 of shape (B, T + max_new_tokens).

        Options as of `stream`.
        """
        if max_new_tokens < 0:
            raise ValueError(f"GPT: expected max_new_tokens ≥ 0, got {max_new_tokens}")
        new = islice(self.stream(ids, temperature, top_k, generator), max_new_tokens)
        longer: Tensor = mg.concat([mg.astype(ids, "int64"), *new], axis=1)
        return longer

    def stream(
        self,
        ids: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """The tokens after ``ids`` of shape (B, T), one by one and without end, each of shape (B, 1), in int64.

        Each is drawn from softmax(logits / temperature), or is the likeliest one with ``temperature=0``; with ``top_k``
        from the k likeliest alone. Beyond ``context_length`` the model sees the last tokens only. Dropout is off.
        """
        if ids.ndim != 2 or ids.shape[1] < 1 or not mg.isdtype(ids.dtype, "integral"):
            given = f"{dtype_name(ids.dtype)} {ids.shape}"
            raise ValueError(f"GPT: expected integer ids of shape (B, T) with T ≥ 1, got {given}")
        if not 0 <= temperature < math.inf or not (top_k is None or (isinstance(top_k, Integral) and top_k >= 1)):
            raise ValueError(f"GPT: expected temperature ≥ 0 and an integer top_k ≥ 1, got {temperature} and {top_k}")

        def write(seen: Tensor) -> Iterator[Tensor]:
            cache: Cache = {}
            new = seen
            while True:
                if seen.shape[1] > self.context_length:  # each token now stands at another position: begin anew
                    seen = seen[:, -self.context_length :]
                    cache, new = {}, seen
                with self.evaluating():
                    logits = self(new, cache)[:, -1, :]
                    token = _choose(logits, temperature, top_k, generator or mg.random.default)
                    new = mg.expand_dims(token, axis=1)
                    seen = mg.concat([seen, new], axis=1)
                yield new

        return write(mg.astype(ids, "int64"))  # a prompt's own dtype need not hold all of the vocabulary


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: Generator) -> Any:
    """One token for each row of logits, of shape (B, V). Nothing is copied to the host."""
    if temperature == 0:
        return mg.argmax(logits, axis=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        lowest = mg.sort(logits, axis=-1)[:, -top_k, None]
        logits = mg.where(logits < lowest, -mg.inf, logits)
    # The largest of logits plus Gumbel noise is distributed as softmax(logits): C. J. Maddison, D. Tarlow and
    # T. Minka, "A* sampling" (2014), arXiv:1411.0030. In float64, as a float32 can round up to 1, of which the noise is
    # infinite.
    noise = -mg.log(-mg.log(generator.uniform(logits.shape, 1e-9, 1.0, device=logits.device)))
    # All multiplied by the temperature: by a tiny one, logits / temperature would overflow.
    return mg.argmax(logits + temperature * noise, axis=-1)
