"""The encoder-decoder Transformer, which reads one sequence and writes another.

A. Vaswani, N. Shazeer, N. Parmar, J. Uszkoreit, L. Jones, A. N. Gomez, Ł. Kaiser and I. Polosukhin, "Attention is all
you need" (2017), arXiv:1706.03762. With ``norm="post"`` it is the paper's model, but for its sharing of embeddings
between source and target and its lack of biases in the attention; with ``norm="pre"`` it trains without a warm-up of
the learning rate.
"""

from __future__ import annotations

import math
from typing import Any

from minigrad import Tensor
from minigrad.random import Generator

from ..layers import DecoderBlock, Dropout, Embedding, EncoderBlock, LayerNorm, Linear, SinusoidalPositions
from ..layers.attention import Cache, tokens_seen
from ..layers.module import expect_positive, without_padding
from .published import EncoderDecoderModel


class Transformer(EncoderDecoderModel):
    """An encoder over source tokens, and a decoder that predicts each target token from those before and the source.

    Parameters
    ----------
    source_vocab, target_vocab
        The numbers of different tokens.
    d_model, num_heads, num_layers, d_ff, dropout
        The paper's base model unless given; d_ff is 4·d_model.
    max_length
        The longest source or target.
    norm
        ``"pre"`` or ``"post"``, see `attention.layers.blocks`.

    Examples
    --------
    >>> import minigrad as mg
    >>> model = Transformer(11, 13, d_model=8, num_heads=2, num_layers=1, max_length=7)
    >>> source, target = mg.asarray([[3, 4, 5, 6]]), mg.asarray([[1, 7, 8]])
    >>> logits, weights = model(source, target, return_weights=True)
    >>> logits.shape, [w.shape for w in weights]
    ((1, 3, 13), [(1, 2, 3, 4)])
    >>> model.generate(source, max_length=5, bos=1, eos=2).shape[0]
    1
    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        d_ff: int | None = None,
        dropout: float = 0.1,
        max_length: int = 1024,
        norm: str = "pre",
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("Transformer", d_model=d_model, num_layers=num_layers)
        std = 1 / math.sqrt(d_model)  # so that, scaled by √d_model, an embedding is as large as a position
        self.max_length = max_length
        self.scale = math.sqrt(d_model)
        self.source_embedding = Embedding(source_vocab, d_model, std=std, dtype=dtype, generator=generator)
        self.target_embedding = Embedding(target_vocab, d_model, std=std, dtype=dtype, generator=generator)
        self.positions = SinusoidalPositions(max_length, d_model, dtype=dtype)
        self.dropout = Dropout(dropout, generator)
        block: dict[str, Any] = {"d_ff": d_ff, "dropout": dropout, "norm": norm, "dtype": dtype, "generator": generator}
        self.encoder = [EncoderBlock(d_model, num_heads, **block) for _ in range(num_layers)]
        self.decoder = [DecoderBlock(d_model, num_heads, **block) for _ in range(num_layers)]
        # A pre-norm stack ends with the plain sum of all its blocks, which nothing has normalised yet.
        self.encoder_norm = LayerNorm(d_model, dtype=dtype) if norm == "pre" else None
        self.decoder_norm = LayerNorm(d_model, dtype=dtype) if norm == "pre" else None
        self.output = Linear(d_model, target_vocab, dtype=dtype, generator=generator)

    def __call__(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Logits of the token that follows each target token: (B, T, target_vocab).

        ``source`` and ``target`` are integers of shapes (B, T_s) and (B, T), where T and T_s are at most
        ``max_length``; the masks, of the same shapes and boolean, are True for real tokens. With ``return_weights``
        also a list of the cross-attention weights of each layer, (B, num_heads, T, T_s).
        """
        memory = self.encode(source, source_mask)
        return self.decode(target, memory, source_mask, target_mask, return_weights=return_weights)

    def encode(self, source: Tensor, source_mask: Any = None) -> Tensor:
        """What the decoder reads: (B, T_s, d_model) for source tokens of shape (B, T_s)."""
        x = self._embed(self.source_embedding, source, source_mask)
        for block in self.encoder:
            x = block(x, source_mask)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        cache: Cache | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Logits for target tokens of shape (B, T), given what `encode` made of the source; see `__call__`.

        With a ``cache``, empty at first, ``target`` is what has been written since the last call.
        """
        seen = tokens_seen(cache, self.decoder[0].attention)
        x = self._embed(self.target_embedding, target, target_mask, seen)
        weights = []
        for block in self.decoder:
            x = block(x, memory, target_mask, source_mask, cache, return_weights)
            if return_weights:
                x, cross = x
                weights.append(cross)
        logits = self.output(x if self.decoder_norm is None else self.decoder_norm(x))
        return (logits, weights) if return_weights else logits

    def _embed(self, embedding: Embedding, tokens: Tensor, mask: Any, offset: int = 0) -> Tensor:
        x = self.positions(embedding(tokens) * self.scale, offset)
        return without_padding(self.dropout(x), mask, "Transformer")
