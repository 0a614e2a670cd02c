"""Blocks: attention and a feed-forward network, each inside a residual connection with a normalisation.

Where the normalisation stands makes two kinds of block:

    post    y = norm(x + f(x))    deep stacks need a slow warm-up of the learning rate
    pre     y = x + f(norm(x))    gradients reach every layer undiminished; a last norm after the stack is due

A. Vaswani et al., "Attention is all you need" (2017), arXiv:1706.03762, and R. Xiong et al., "On layer normalization in
the Transformer architecture" (2020), arXiv:2002.04745.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from .attention import Cache, MultiHeadAttention, newest
from .linear import Dropout, FeedForward, GatedFeedForward
from .module import Module, without_padding
from .normalization import LayerNorm


class Residual(Module):
    """A residual connection: ``y = leave(x, f(enter(x)))`` is x + f(norm(x)) or norm(x + f(x)), with dropout on f.

    Examples
    --------
    >>> residual = Residual(4, norm="pre", dropout=0.0)
    >>> x = mg.ones((3, 4))
    >>> residual.leave(x, F.relu(residual.enter(x))).shape
    (3, 4)
    """

    def __init__(
        self,
        d_model: int,
        norm: str,
        dropout: float,
        dtype: Any = "float32",
        generator: Generator | None = None,
        normalization: Callable[..., Module] = LayerNorm,
    ) -> None:
        if norm not in ("pre", "post"):
            raise ValueError(f"norm: expected 'pre' or 'post', got {norm!r}")
        self.pre = norm == "pre"
        self.norm: Any = normalization(d_model, dtype=dtype)
        self.dropout = Dropout(dropout, generator)

    def enter(self, x: Tensor) -> Tensor:
        """What f is given: norm(x), or x itself."""
        entered: Tensor = self.norm(x) if self.pre else x
        return entered

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """What goes on: x plus y = f(enter(x)), normalised or not."""
        y = x + self.dropout(y)
        left: Tensor = y if self.pre else self.norm(y)
        return left


class EncoderBlock(Module):
    """Self-attention, then the feed-forward network. With ``is_causal`` it is the block of decoder-only models.

    x is (..., T, d_model), and so is the result. ``mask`` of shape (..., T), True = real, says what is padding: nothing
    of it reaches another position or a gradient. For ``cache`` and ``attn_mask`` see `MultiHeadAttention`, which takes
    all further options: ``num_kv_heads``, ``rotary``, ``scale`` and so on. With ``bias=False`` no projection has one,
    ``gated`` takes a `GatedFeedForward`, and ``normalization`` makes a normalisation of width and dtype. Dropout is on
    the attention weights and on both outputs before they are added.

    Examples
    --------
    >>> EncoderBlock(8, num_heads=2)(mg.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        dropout: float = 0.0,
        norm: str = "pre",
        activation: Callable[[Tensor], Tensor] = F.relu,
        dtype: Any = "float32",
        generator: Generator | None = None,
        *,
        bias: bool = True,
        gated: bool = False,
        normalization: Callable[..., Module] = LayerNorm,
        **attention: Any,
    ) -> None:
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        heads: dict[str, Any] = {"bias": bias, "dropout": dropout, **attention, **common}
        residual: dict[str, Any] = {"norm": norm, "dropout": dropout, "normalization": normalization, **common}
        self.attention = MultiHeadAttention(d_model, num_heads, **heads)
        self.attention_residual = Residual(d_model, **residual)
        self.feed_forward = _feed_forward(d_model, d_ff, gated, bias=bias, activation=activation, **common)
        self.feed_forward_residual = Residual(d_model, **residual)

    def __call__(
        self,
        x: Tensor,
        mask: Any = None,
        is_causal: bool = False,
        cache: Cache | None = None,
        attn_mask: Any = None,
    ) -> Tensor:
        """The block's output, of the shape of x. Raises ValueError for widths and masks that do not fit."""
        x = without_padding(x, newest(mask, x, cache), "EncoderBlock")
        y = self.attention(
            self.attention_residual.enter(x), mask=mask, attn_mask=attn_mask, is_causal=is_causal, cache=cache
        )
        x = self.attention_residual.leave(x, y)
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, y)


def _feed_forward(d_model: int, d_ff: int | None, gated: bool, **options: Any) -> Callable[[Tensor], Tensor]:
    return GatedFeedForward(d_model, d_ff or 4 * d_model, **options) if gated else FeedForward(d_model, d_ff, **options)


class DecoderBlock(Module):
    """Causal self-attention in the target, cross-attention to the source, then the feed-forward network.

    x is (..., T, d_model), the source (..., T_s, d_model), and the result (..., T, d_model); with ``return_weights`` it
    comes with the weights of the cross-attention, (..., num_heads, T, T_s). Masks (``attn_mask`` is the
    self-attention's), cache, dropout and options are those of `EncoderBlock`.

    Examples
    --------
    >>> DecoderBlock(8, num_heads=2)(mg.ones((3, 5, 8)), mg.ones((3, 7, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        dropout: float = 0.0,
        norm: str = "pre",
        activation: Callable[[Tensor], Tensor] = F.relu,
        dtype: Any = "float32",
        generator: Generator | None = None,
        *,
        bias: bool = True,
        gated: bool = False,
        normalization: Callable[..., Module] = LayerNorm,
        **attention: Any,
    ) -> None:
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        heads: dict[str, Any] = {"bias": bias, "dropout": dropout, **attention, **common}
        residual: dict[str, Any] = {"norm": norm, "dropout": dropout, "normalization": normalization, **common}
        self.attention = MultiHeadAttention(d_model, num_heads, **heads)
        self.attention_residual = Residual(d_model, **residual)
        self.cross_attention = MultiHeadAttention(d_model, num_heads, **heads)
        self.cross_attention_residual = Residual(d_model, **residual)
        self.feed_forward = _feed_forward(d_model, d_ff, gated, bias=bias, activation=activation, **common)
        self.feed_forward_residual = Residual(d_model, **residual)

    def __call__(
        self,
        x: Tensor,
        source: Tensor,
        mask: Any = None,
        source_mask: Any = None,
        cache: Cache | None = None,
        return_weights: bool = False,
        attn_mask: Any = None,
    ) -> Any:
        """The block's output, or (output, weights). Raises ValueError for widths and masks that do not fit."""
        x = without_padding(x, newest(mask, x, cache), "DecoderBlock")
        y = self.attention(
            self.attention_residual.enter(x), mask=mask, attn_mask=attn_mask, is_causal=True, cache=cache
        )
        x = self.attention_residual.leave(x, y)
        y = self.cross_attention(
            self.cross_attention_residual.enter(x),
            source,
            mask=mask,
            source_mask=source_mask,
            cache=cache,
            return_weights=return_weights,
        )
        y, weights = y if return_weights else (y, None)
        x = self.cross_attention_residual.leave(x, y)
        y = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, y)
        return (x, weights) if return_weights else x
