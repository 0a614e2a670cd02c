"""Attention: a single head as it is published, for one sequence or two, and the multi-head layer of Transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import dtype_name
from minigrad.random import Generator

from .. import functional as F
from ..functional.attention import causal_mask
from ..functional.dropout import check_probability
from .embedding import RotaryPositions
from .linear import Linear
from .module import Module, expect_positive, expect_width, without_padding

Cache = dict[Module, tuple[Tensor, Tensor]]
"""The keys and values that each attention layer has computed so far, for writing one token at a time."""


def tokens_seen(cache: Cache | None, layer: Module) -> int:
    """The number of tokens whose keys and values ``layer`` has put into ``cache``."""
    known = None if cache is None else cache.get(layer)
    return 0 if known is None else known[0].shape[-2]


def newest(mask: Any, x: Tensor, cache: Cache | None) -> Any:
    """The part of ``mask`` that is of x: with a cache, a mask is of all tokens so far."""
    if mask is None or cache is None:
        return mask
    mask = mg.asarray(mask)
    return mask[..., max(mask.shape[-1] - x.shape[-2], 0) :]


def positions_of(mask: Any, x: Tensor) -> Tensor | None:
    """Where each vector of x, (..., T, d), stands among the real tokens that ``mask`` knows; None without a mask."""
    if mask is None:
        return None
    count = mg.cumulative_sum(mg.astype(mg.asarray(mask), "int64"), axis=-1)
    positions: Tensor = mg.clip(count - 1, 0)[..., -x.shape[-2] :]
    return positions


class SelfAttention(Module):
    """One head of self-attention: each position of X reads from every position of X.

        Q = XW_q,    K = XW_k,    V = XW_v,    Y = softmax(QKᵀ/√d_head) V

    A. Vaswani et al., "Attention is all you need" (2017), arXiv:1706.03762, equation 1. X is (..., T, d_model), each W
    (d_model, d_head), hence 3·d_model·d_head parameters, and Y is (..., T, d_head).

    That W_q and W_k are two matrices is what makes attention directed: with one, the scores QKᵀ would be symmetric, and
    word i could not look at word j without being looked at in the same measure.

    Examples
    --------
    >>> head = SelfAttention(d_model=6, d_head=2)
    >>> head(mg.ones((5, 6))).shape, head.parameter_count()
    ((5, 2), 36)
    """

    def __init__(self, d_model: int, d_head: int, dtype: Any = "float32", generator: Generator | None = None) -> None:
        self.query = Linear(d_model, d_head, bias=False, dtype=dtype, generator=generator)
        self.key = Linear(d_model, d_head, bias=False, dtype=dtype, generator=generator)
        self.value = Linear(d_model, d_head, bias=False, dtype=dtype, generator=generator)

    def __call__(self, x: Tensor, is_causal: bool = False) -> Tensor:
        """Y of shape (..., T, d_head). With ``is_causal`` a position reads from itself and earlier ones only."""
        query = self.query(x)
        key = self.key(x)
        value = self.value(x)
        y: Tensor = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return y


class CrossAttention(Module):
    """One head of cross-attention: each position of the target X reads from every position of the source S.

        Q = XW_q,    K = SW_k,    V = SW_v,    Y = softmax(QKᵀ/√d_head) V

    A. Vaswani et al. (2017), arXiv:1706.03762, section 3.2.3. X is (..., T, d_model), S is (..., T_s, d_source), and Y
    is (..., T, d_head).

    Examples
    --------
    >>> head = CrossAttention(d_model=6, d_head=2, d_source=3)
    >>> head(mg.ones((5, 6)), mg.ones((7, 3))).shape
    (5, 2)
    """

    def __init__(
        self,
        d_model: int,
        d_head: int,
        d_source: int | None = None,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        d_source = d_model if d_source is None else d_source
        self.query = Linear(d_model, d_head, bias=False, dtype=dtype, generator=generator)
        self.key = Linear(d_source, d_head, bias=False, dtype=dtype, generator=generator)
        self.value = Linear(d_source, d_head, bias=False, dtype=dtype, generator=generator)

    def __call__(self, x: Tensor, source: Tensor) -> Tensor:
        """Y of shape (..., T, d_head)."""
        query = self.query(x)
        key = self.key(source)
        value = self.value(source)
        y: Tensor = F.scaled_dot_product_attention(query, key, value)
        return y


class MultiHeadAttention(Module):
    """Several heads side by side, each of width d_head = d_model / num_heads, and a projection of their outputs.

        head_h = softmax(Q_h K_hᵀ/√d_head) V_h,    Y = [head_1 … head_H] W_o

    A. Vaswani et al. (2017), arXiv:1706.03762, section 3.2.2; Q_h, K_h and V_h are columns of XW_q, SW_k and SW_v, so
    that a single product serves all heads. Without biases that is 4·d_model² parameters.

    Parameters
    ----------
    d_model, num_heads
        The width of x and of the output, and the number of heads, which divides it.
    d_source
        The width of the source, where it differs.
    num_kv_heads
        Fewer heads for keys and values than for queries, each serving a group of these: J. Ainslie et al., "GQA"
        (2023), arXiv:2305.13245.
    bias, key_bias
        Whether the four projections have one, and whether that of the keys has, where it differs. A bias b of the keys
        adds q·b to all scores of a query q, and softmax does not see it.
    dropout
        The probability, in training, with which an attention weight is dropped.
    rotary
        Positions for queries and keys, of width d_head, for self-attention.
    d_head
        The width of a head, where it is not d_model / num_heads.
    scale
        What QKᵀ is multiplied by, where it is not 1/√d_head.
    window
        In causal self-attention, how many tokens a token sees, itself included: I. Beltagy, M. E. Peters and A. Cohan,
        "Longformer" (2020), arXiv:2004.05150, section 3.1.
    qk_norm
        Makes a normalisation of width d_head: one for the queries, one for the keys, both before positions turn them.
        M. Dehghani et al., "Scaling vision Transformers to 22 billion parameters" (2023), arXiv:2302.05442, section 2.

    Examples
    --------
    >>> attend = MultiHeadAttention(8, 2, bias=False)
    >>> y, weights = attend(mg.ones((3, 5, 8)), is_causal=True, return_weights=True)
    >>> y.shape, weights.shape, attend.parameter_count()
    ((3, 5, 8), (3, 2, 5, 5), 256)
    """

    _record: list[Any] | None = None  # where `attention_weights` wants them

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_source: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: RotaryPositions | None = None,
        dtype: Any = "float32",
        generator: Generator | None = None,
        *,
        key_bias: bool | None = None,
        d_head: int | None = None,
        scale: float | None = None,
        window: int | None = None,
        qk_norm: Callable[..., Module] | None = None,
    ) -> None:
        d_source = d_model if d_source is None else d_source
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or (d_head is None and d_model % num_heads):
            raise ValueError(f"MultiHeadAttention: num_heads={num_heads} does not divide d_model={d_model}")
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"MultiHeadAttention: num_kv_heads={num_kv_heads} does not divide num_heads={num_heads}")
        check_probability("MultiHeadAttention", "dropout", dropout)
        d_head = d_model // num_heads if d_head is None else d_head
        expect_positive("MultiHeadAttention", d_head=d_head, window=1 if window is None else window)
        key_bias = bias if key_bias is None else key_bias
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.dropout = dropout
        self.generator = generator
        self.rotary = rotary
        self.scale = scale
        self.window = window
        self.query = Linear(d_model, num_heads * d_head, bias=bias, dtype=dtype, generator=generator)
        self.key = Linear(d_source, num_kv_heads * d_head, bias=key_bias, dtype=dtype, generator=generator)
        self.value = Linear(d_source, num_kv_heads * d_head, bias=bias, dtype=dtype, generator=generator)
        self.output = Linear(num_heads * d_head, d_model, bias=bias, dtype=dtype, generator=generator)
        self.query_norm: Any = qk_norm and qk_norm(d_head, dtype=dtype)
        self.key_norm: Any = qk_norm and qk_norm(d_head, dtype=dtype)

    def __call__(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Any = None,
        source_mask: Any = None,
        attn_mask: Any = None,
        is_causal: bool = False,
        cache: Cache | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Self-attention in x, or cross-attention from x to ``source``.

        Parameters
        ----------
        x
            (..., T, d_model): where the queries come from; in self-attention the keys and values too.
        source
            (..., T_s, d_source): where keys and values come from in cross-attention.
        mask, source_mask
            (..., T) and (..., T_s), boolean, True = real: what is padding in x and in the source. Whatever stands
            there, NaN included, reaches neither the output nor a gradient. Output rows at padding are zero. With a
            ``cache``, ``mask`` is of all tokens so far.
        attn_mask
            Which query may attend to which key: boolean, True = may, or a number to add to the score. Of a shape that
            broadcasts to (..., num_heads, T, T_s).
        is_causal
            Self-attention from each position to itself and earlier ones only.
        cache
            Remembers keys and values from call to call. In self-attention x is then what is new since the last call.
            In cross-attention the source is looked at in the first call only.
        return_weights
            Return (output, weights), with the weights of shape (..., num_heads, T, T_s).

        Raises
        ------
        ValueError
            For widths and masks that do not fit.
        """
        if source is None and source_mask is not None:
            raise ValueError("MultiHeadAttention: source_mask without a source; self-attention takes mask")
        if source is not None and is_causal:
            raise ValueError("MultiHeadAttention: is_causal is for self-attention, here is a source")
        if self.window is not None and not is_causal:
            raise ValueError(f"MultiHeadAttention: expected is_causal=True, as window={self.window} looks back")
        expect_width("MultiHeadAttention", x, self.query.weight.shape[0], axes=2)
        mask, source_mask, attn_mask = (None if m is None else mg.asarray(m) for m in (mask, source_mask, attn_mask))

        seen = tokens_seen(cache, self) if source is None else 0
        real = newest(mask, x, cache)
        x = without_padding(x, real, "MultiHeadAttention")
        query = _split(self.query(x), self.num_heads)
        query = query if self.query_norm is None else self.query_norm(query)
        known = None if cache is None else cache.get(self)
        if source is None and known is not None and known[0].shape[:-3] != query.shape[:-3]:
            raise ValueError(
                f"MultiHeadAttention: the cache is of a batch of shape {known[0].shape[:-3]}, x of {query.shape[:-3]}"
            )
        if source is not None and known is not None:
            key, value = known
        else:
            memory = x if source is None else without_padding(source, source_mask, "MultiHeadAttention")
            expect_width("MultiHeadAttention", memory, self.key.weight.shape[0], "source", axes=2)
            key, value = _split(self.key(memory), self.num_kv_heads), _split(self.value(memory), self.num_kv_heads)
            key = key if self.key_norm is None else self.key_norm(key)
            if self.rotary is not None and source is None:
                query, key = self.rotary(query, seen), self.rotary(key, seen)
            if known is not None:
                key, value = mg.concat([known[0], key], axis=-2), mg.concat([known[1], value], axis=-2)
            elif cache is not None:  # they are read again for each token, so each head's in one piece
                key, value = (mg.reshape(mg.reshape(x, (x.size,)), x.shape) for x in (key, value))
        if cache is not None:
            cache[self] = key, value
        key_mask, pairs = mask if source is None else source_mask, (*query.shape[:-1], key.shape[-2])
        if key_mask is not None and key_mask.shape[-1] != key.shape[-2]:
            raise ValueError(
                f"MultiHeadAttention: expected a mask of the {key.shape[-2]} tokens that there are with those in the "
                f"cache, got {key_mask.shape}"
            )
        if attn_mask is not None:
            _expect_attn_mask(attn_mask, pairs)
        if is_causal and seen:
            is_causal = False  # of scaled_dot_product_attention, which begins at the first key
            if x.shape[-2] > 1 or (self.window is not None and self.window < key.shape[-2]):  # else it sees all
                rows, keys = slice(seen, key.shape[-2]), slice(0, key.shape[-2])
                attn_mask = _and(mg.asarray(causal_mask(mg, query, rows, keys, self.window)), attn_mask)

        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask if key_mask is None else _and(key_mask[..., None, None, :], attn_mask),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            window=self.window if is_causal else None,
            scale=self.scale,
            enable_gqa=self.num_kv_heads != self.num_heads,
            return_weights=return_weights or self._record is not None,
            generator=self.generator,
        )
        y, weights = attended if return_weights or self._record is not None else (attended, None)
        if self._record is not None:
            self._record.append(weights)
        y = without_padding(self.output(_join(y)), real, "MultiHeadAttention")
        return (y, weights) if return_weights else y


@contextmanager
def attention_weights(model: Module) -> Iterator[dict[str, list[Tensor]]]:
    """Inside a ``with`` block, the weights of every `MultiHeadAttention` in ``model``, by its name.

    A list for each layer, with the weights of each of its calls, (..., num_heads, T, T_s).

    Examples
    --------
    >>> from attention.layers import EncoderBlock
    >>> block = EncoderBlock(8, num_heads=2)
    >>> with attention_weights(block) as weights:
    ...     _ = block(mg.ones((5, 8)))
    >>> [(name, [w.shape for w in calls]) for name, calls in weights.items()]
    [('attention', [(2, 5, 5)])]
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, MultiHeadAttention)}
    weights: dict[str, list[Tensor]] = {name: [] for name in layers}
    try:
        for name, layer in layers.items():
            layer._record = weights[name]
        yield weights
    finally:
        for layer in layers.values():
            layer._record = None


def _split(x: Tensor, heads: int) -> Tensor:
    """(..., T, heads · d_head) as (..., heads, T, d_head)."""
    *batch, length, width = x.shape
    if length == 1:  # nothing changes its place, and when a model writes, this is all there is
        return mg.reshape(x, (*batch, heads, 1, width // heads))
    return _exchanged(mg.reshape(x, (*batch, length, heads, width // heads)))


def _join(x: Tensor) -> Tensor:
    """(..., heads, T, d_head) as (..., T, heads · d_head)."""
    *batch, heads, length, d_head = x.shape
    joined: Tensor = mg.reshape(x if length == 1 else _exchanged(x), (*batch, length, heads * d_head))
    return joined


def _exchanged(x: Tensor) -> Tensor:
    """The axes -3 and -2 in each other's place."""
    *batch, i, j, k = range(x.ndim)
    exchanged: Tensor = mg.permute_dims(x, (*batch, j, i, k))
    return exchanged


def _expect_attn_mask(attn_mask: Tensor, shape: tuple[int, ...]) -> None:
    """Raise the one-line error of a mask for pairs of queries and keys that does not fit them."""
    padded = (1,) * (len(shape) - attn_mask.ndim) + attn_mask.shape
    fits = len(padded) == len(shape) and all(m in (1, n) for m, n in zip(padded, shape, strict=True))
    if not fits or not mg.isdtype(attn_mask.dtype, ("bool", "real floating")):
        raise (TypeError if fits else ValueError)(
            f"MultiHeadAttention: expected attn_mask of booleans or floating-point numbers that broadcasts to {shape}, "
            f"got {dtype_name(attn_mask.dtype)} {attn_mask.shape}"
        )


def _and(allowed: Tensor, attn_mask: Any) -> Any:
    """What both allow, as a mask."""
    if attn_mask is None:
        return allowed
    if dtype_name(attn_mask.dtype) == "bool":
        return mg.logical_and(allowed, attn_mask)
    return mg.where(allowed, attn_mask, -mg.inf)
