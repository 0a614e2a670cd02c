"""RETRO: a decoder-only Transformer that reads passages of other texts, retrieved for each chunk of its own.

S. Borgeaud et al., "Improving language models by retrieving from trillions of tokens" (2021), arXiv:2112.04426, section
2.4, figure 2 and algorithm 1. Positions are learned vectors here, relative ones there (appendix B.1).

    wiring    Q, K and V of self-attention from the text; in some blocks Q also from the text, K and V from the
              neighbours of a chunk that is complete. In their encoder Q from a neighbour, K and V from its chunk
    chunks    of m tokens; neighbours of a chunk are read by its last token and the m - 1 after it, so that all of the
              text on which the retrieval depends is already there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import Embedding, EncoderBlock, LearnedPositions, MultiHeadAttention, RMSNorm
from ..layers.attention import Cache, newest, positions_of, tokens_seen
from ..layers.blocks import Residual
from ..layers.module import expect_positive, without_padding
from .published import CausalModel, last_positions

Passages = tuple[int, Tensor, Tensor]
"""The number of a chunk, what has been encoded for it and those after it, (B, l, S, d_encoder), and what is real."""


class RetroBlock(EncoderBlock):
    """Self-attention, cross-attention where there is a source, and the feed-forward network, to be called one by one.

    Examples
    --------
    >>> block = RetroBlock(8, num_heads=2, d_source=6)
    >>> x = mg.ones((3, 5, 8), dtype="float32")
    >>> block.feed(block.look(block.attend(x), mg.ones((3, 7, 6), dtype="float32"))).shape
    (3, 5, 8)
    """

    def __init__(self, d_model: int, num_heads: int, d_source: int | None = None, **options: Any) -> None:
        options = {"norm": "pre", "activation": F.gelu, "bias": False, "normalization": RMSNorm, **options}
        super().__init__(d_model, num_heads, **options)
        common = {name: options[name] for name in ("dtype", "generator") if name in options}
        heads = {name: options[name] for name in ("dropout", "d_head") if name in options}
        self.cross_attention = self.cross_attention_residual = None
        if d_source is not None:
            self.cross_attention = MultiHeadAttention(d_model, num_heads, d_source, bias=False, **heads, **common)
            self.cross_attention_residual = Residual(
                d_model, "pre", options.get("dropout", 0.0), normalization=RMSNorm, **common
            )

    def attend(self, x: Tensor, mask: Any = None, is_causal: bool = False, cache: Cache | None = None) -> Tensor:
        """The paper's ATTN."""
        y = self.attention(self.attention_residual.enter(x), mask=mask, is_causal=is_causal, cache=cache)
        return self.attention_residual.leave(x, y)

    def look(self, x: Tensor, source: Tensor, source_mask: Any = None) -> Tensor:
        """The paper's CA. Where all of a source is masked, x stays as it is."""
        assert self.cross_attention is not None
        assert self.cross_attention_residual is not None
        y = self.cross_attention(self.cross_attention_residual.enter(x), source, source_mask=source_mask)
        return self.cross_attention_residual.leave(x, y)

    def feed(self, x: Tensor) -> Tensor:
        """The paper's FFW."""
        return self.feed_forward_residual.leave(x, self.feed_forward(self.feed_forward_residual.enter(x)))


class RETRO(CausalModel):
    """Predicts each token from those before it, and from what has been retrieved for the chunks before it.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    chunk
        The number of tokens, m, for which neighbours are retrieved at a time.
    d_model, num_heads, d_head, d_ff, num_layers, context_length
        The smallest of the paper unless given (table 1).
    reading
        The blocks that read neighbours: from 0 on, the paper's P.
    d_encoder, encoder_layers, neighbour_length
        The width and number of the encoder's blocks, and the most tokens of a neighbour.
    retrieve
        A function of chunks, integers of shape (B, l, m), that gives their neighbours, (B, l, k, r): k for each, of r
        tokens. A tuple of these and their mask may be given. It serves where the call is given no neighbours.

    Examples
    --------
    >>> model = RETRO(11, chunk=2, d_model=8, num_heads=2, d_head=4, num_layers=2, d_ff=16, reading=[1], d_encoder=6)
    >>> ids, neighbours = mg.asarray([[3, 4, 5, 6, 7]]), mg.ones((1, 2, 3, 4), dtype="int64")  # 3 for each of 2 chunks
    >>> model(ids, neighbours=neighbours).shape
    (1, 5, 11)
    >>> model.retrieve = lambda chunks: mg.stack([chunks, chunks + 1], axis=2)
    >>> model.generate(ids, max_new_tokens=5).shape
    (1, 10)
    >>> from attention.layers import ShapesOnly
    >>> RETRO(128000, generator=ShapesOnly()).parameter_count()
    391002752
    """

    def __init__(
        self,
        vocab_size: int,
        chunk: int = 64,
        d_model: int = 896,
        num_heads: int = 16,
        d_head: int = 64,
        d_ff: int = 3584,
        num_layers: int = 12,
        context_length: int = 2048,
        reading: Sequence[int] = (5, 8, 11),
        d_encoder: int = 896,
        encoder_layers: int = 2,
        neighbour_length: int = 128,
        retrieve: Callable[[Tensor], Any] | None = None,
        dropout: float = 0.0,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("RETRO", chunk=chunk, num_layers=num_layers, encoder_layers=encoder_layers)
        if not reading or not all(0 <= i < num_layers for i in reading):
            raise ValueError(f"RETRO: expected reading between 0 and {num_layers - 1}, got {list(reading)}")
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        block: dict[str, Any] = {"d_head": d_head, "d_ff": d_ff, "dropout": dropout, **common}
        self.context_length, self.chunk, self.retrieve = context_length, chunk, retrieve
        self.tokens = Embedding(vocab_size, d_model, std=0.02, **common)
        self.positions = LearnedPositions(context_length, d_model, **common)
        self.blocks = [
            RetroBlock(d_model, num_heads, d_encoder if i in reading else None, **block) for i in range(num_layers)
        ]
        self.norm = RMSNorm(d_model, dtype=dtype)
        block |= {"d_ff": 4 * d_encoder}
        self.encoder_tokens = Embedding(vocab_size, d_encoder, std=0.02, **common)
        self.encoder_positions = LearnedPositions(neighbour_length, d_encoder, **common)
        self.encoder = [RetroBlock(d_encoder, num_heads, d_model, **block) for _ in range(encoder_layers)]
        self.encoder_norm = RMSNorm(d_encoder, dtype=dtype)

    def __call__(
        self,
        ids: Tensor,
        mask: Any = None,
        cache: Cache | None = None,
        logits_to_keep: int | None = None,
        neighbours: Tensor | None = None,
        neighbours_mask: Any = None,
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: see `CausalModel`.

        ``neighbours`` are integers of shape (B, l, k, r) for the l chunks that ``ids`` complete, counted from the first
        token, padding included (so pad in front by whole chunks); ``neighbours_mask``, of the same shape and boolean,
        is True for real tokens. Chunks for which neither the call nor ``retrieve`` gives any are passed over. Raises
        ValueError for neighbours of more or fewer chunks.
        """
        m, (B, T) = self.chunk, ids.shape
        seen = tokens_seen(cache, self.blocks[0].attention)
        before, now = seen // m, (seen + T) // m  # chunks that are complete
        open_ids, open_x = cache.get(self, (ids[:, :0], None)) if cache else (ids[:, :0], None)
        open_ids = mg.concat([open_ids, ids], axis=1)  # from the first token of chunk `before` on
        if neighbours is None and self.retrieve is not None and now > before:
            found = self.retrieve(mg.reshape(open_ids[:, : (now - before) * m], (B, now - before, m)))
            neighbours, neighbours_mask = found if isinstance(found, tuple) else (found, None)
        if neighbours is not None and (neighbours.ndim != 4 or neighbours.shape[:2] != (B, now - before)):
            expected = f"({B}, {now - before}, k, r)"
            raise ValueError(f"RETRO: expected neighbours of shape {expected}, got {neighbours.shape}")

        x = self.tokens(ids)
        x = self.positions(x, seen, positions_of(mask, x))
        x = without_padding(x, newest(mask, x, cache), "RETRO")
        passages: list[Passages] | None = None
        for block in self.blocks:
            x = block.attend(x, mask, is_causal=True, cache=cache)
            if block.cross_attention is not None:
                if passages is None:  # the first that reads says what the chunks are to the encoder
                    open_x = x if open_x is None else mg.concat([open_x, x], axis=1)
                    passages = self._passages(open_x, neighbours, neighbours_mask, before, now, cache)
                    if cache is not None:
                        cache[self] = open_ids[:, (now - before) * m :], open_x[:, (now - before) * m :, :]
                for first, encoded, real in passages:
                    x = self._read(block, x, seen, first, encoded, real)
            x = block.feed(x)
        x = self.norm(last_positions(x, logits_to_keep))
        return F.linear(x, self.tokens.weight.T)

    def encode(self, neighbours: Tensor, chunks: Tensor, mask: Any = None) -> Tensor:
        """What is read of neighbours (B, l, k, r), given the vectors (B, l, m, d_model) of their chunks.

        Of shape (B, l, k · r, d_encoder). Each token of a neighbour sees all of that neighbour, and of its chunk.
        """
        x = self.encoder_positions(self.encoder_tokens(neighbours))
        x = without_padding(x, mask, "RETRO")
        for block in self.encoder:
            x = block.feed(block.look(block.attend(x, mask), mg.expand_dims(chunks, axis=2)))
        return _merged(self.encoder_norm(x), 2)

    def _passages(
        self, x: Tensor, neighbours: Tensor | None, mask: Any, before: int, now: int, cache: Cache | None
    ) -> list[Passages]:
        """What can be read from here on: of the last chunk of earlier calls, and of those that are complete by now."""
        known = None if cache is None else cache.pop(self.encoder_norm, None)
        passages = [] if known is None else [(before - 1, *known)]
        if now > before and neighbours is not None:
            chunks = mg.reshape(x[:, : (now - before) * self.chunk, :], (x.shape[0], -1, self.chunk, x.shape[-1]))
            real = mg.ones_like(neighbours, dtype="bool") if mask is None else mg.asarray(mask)
            passages.append((before, self.encode(neighbours, chunks, real), _merged(real, 2)))
        if cache is not None and passages and (now == before or neighbours is not None):
            cache[self.encoder_norm] = passages[-1][1][:, -1:, ...], passages[-1][2][:, -1:, ...]
        return passages

    def _read(self, block: RetroBlock, x: Tensor, seen: int, first: int, encoded: Tensor, real: Tensor) -> Tensor:
        """The paper's CCA: each token of x, the first of which is token ``seen``, reads of one chunk of ``encoded``.

        Chunk u, of those from ``first`` on, is read by tokens u·m + m - 1 to u·m + 2m - 2.
        """
        m, (B, T, d), count = self.chunk, x.shape, encoded.shape[1]
        start = (first + 1) * m - 1 - seen  # in x
        begin, end = max(start, 0), min(start + count * m, T)
        if begin >= end:
            return x
        front, back = (
            mg.zeros((B, n, d), dtype=x.dtype, device=x.device) for n in (begin - start, start + count * m - end)
        )
        rows = mg.reshape(mg.concat([front, x[:, begin:end, :], back], axis=1), (B, count, m, d))
        rows = _merged(block.look(rows, encoded, real), 1)
        read: Tensor = mg.concat([x[:, :begin, :], rows[:, begin - start : end - start, :], x[:, end:, :]], axis=1)
        return read


def _merged(x: Tensor, axis: int) -> Tensor:
    """x with ``axis`` and the next one as one."""
    merged: Tensor = mg.reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))
    return merged
