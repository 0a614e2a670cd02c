"""scaled_dot_product_attention: each query's mean of the values, weighted by how well the keys match.

The derivation, in the symbols of the code (A. Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762;
T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135, appendix B). For one head, with queries Q (L, E), keys K (S, E)
and values V (S, Ev):

    S = scale · Q Kᵀ + bias          scores, −inf where a query must not attend
    P = exp(S − lse)                 their softmax, with lse the logarithm of each row's Σ exp(S)
    O = P V

Backward, given dO, the gradient of O:

    dV = Pᵀ dO
    dP = dO Vᵀ
    dS = P ∘ (dP − D)                the softmax's derivative, with D = rowsum(P ∘ dP) (see softmax.py)
    dQ = scale · dS K
    dK = scale · dSᵀ Q
    dbias = dS

D needs neither P nor dP:  D = Σⱼ Pⱼ (dO · Vⱼ) = dO · Σⱼ Pⱼ Vⱼ = rowsum(dO ∘ O). So the L × S matrices need not be
kept: the backward pass computes P again from Q, K and one number for each row, lse.

With dropout, O = P̃ V where P̃ = P ∘ M and M is 0 or 1/(1 − p). Then dV = P̃ᵀ dO and dP = (dO Vᵀ) ∘ M, and D is
rowsum(dO ∘ O) all the same.

Every line above holds for a block of the rows of K and V as well: given lse and D, the blocks' gradients add up. So
`_forward` and `_backward` are the whole problem as one block.
"""

# ruff: noqa: E741  — O is the papers' name for the output

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import minigrad as mg
from minigrad import Tensor, keep, primitive
from minigrad.autodiff import Kept
from minigrad.backend import Array, describe, device_of, dtype_name
from minigrad.random import Generator

from ._numerics import library, narrow, one_for_zero, shift, widen
from .dropout import check_probability, chosen, inverse_of_kept
from .softmax import softmax


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_weights: bool = False,
    generator: Generator | None = None,
) -> Any:
    """softmax(scale · Q Kᵀ + mask) V: PyTorch's function, with a backward pass derived above in this file.

    Parameters
    ----------
    query, key, value
        Of shapes (…, L, E), (…, S, E) and (…, S, Ev), with the heads as the last of the leading axes: (…, H, L, E).
        Leading axes broadcast.
    attn_mask
        Broadcasts to (…, L, S). Booleans: True where the query may attend to the key. Numbers: added to the scores,
        −inf to mask; their gradient is summed over the axes that were broadcast.
    dropout_p
        The probability with which a weight is set to 0, whatever mode anything is in. The rest are divided by 1 − p.
    is_causal
        Query i may attend to keys 0 … i alone, counted from the first also where L ≠ S, in addition to ``attn_mask``.
    scale
        1/√E by default.
    enable_gqa
        Let key and value have fewer heads than query: H/H_kv consecutive query heads share each.
    return_weights
        Return ``(output, weights)``, the weights (…, L, S) before dropout. Both can be differentiated, at the price
        of keeping matrices of L × S.
    generator
        Where dropout takes its numbers from (`minigrad.random.default`).

    Returns
    -------
    Tensor
        Of shape (…, L, Ev), in the dtype of the arguments. float16 and bfloat16 are computed in float32.

    Raises
    ------
    ValueError, TypeError
        Widths, lengths, heads or dtypes that do not fit; a mask that does not broadcast or is of another dtype kind.

    Notes
    -----
    A query that may attend to nothing gets zeros, and passes on no gradient (PyTorch's composed path: NaN).

    What stands in ``key`` and ``value`` where no query may attend (padding), or in ``query`` where it may attend to
    nothing, reaches neither the output nor a gradient, NaN and inf included; its own gradient is 0. With
    ``is_causal``, NaN or inf in a future position stays out of a query's output and of the query's gradient, too
    (where it is seen, inf counts as NaN). It does reach the gradients of key and value, by way of the queries that
    see it, even where these have no part in the loss.
    """
    name = "scaled_dot_product_attention"
    query, key, value = mg.asarray(query), mg.asarray(key), mg.asarray(value)
    mask = None if attn_mask is None else mg.asarray(attn_mask)
    groups = _check(name, query, key, value, mask, enable_gqa)
    check_probability(name, "dropout_p", dropout_p)
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0

    L, S = query.shape[-2], key.shape[-2]
    if groups > 1:  # (…, H, L, E) as (…, H_kv, H/H_kv, L, E), along which key and value broadcast
        query, mask = _grouped(query, groups), mask if mask is None else _grouped(mask, groups)
        key, value = mg.expand_dims(key, axis=-3), mg.expand_dims(value, axis=-3)
    if mask is not None and mask.ndim < 2:
        mask = mg.reshape(mask, (1,) * (2 - mask.ndim) + mask.shape)
    kept = None
    if dropout_p > 0:
        leading = mg.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        kept = chosen(query, (*leading, L, S), dropout_p, generator)

    if not return_weights:
        out = _attention(query, key, value, mask, kept, is_causal=is_causal, scale=scale, dropout_p=dropout_p)
        return _ungrouped(out, groups)
    Q, K, V = _without_unseen(mg, query, key, value, mask, is_causal)
    weights = softmax(_scores(mg, Q, K, mask, is_causal, scale))
    out = narrow(mg, _values(mg, _dropped(mg, weights, kept, dropout_p), V, is_causal), query)
    return _ungrouped(out, groups), _ungrouped(narrow(mg, weights, query), groups)


# ------------------------------------------------------------------------------------------------ the primitive


@primitive
def _attention(
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    kept: Array | None,
    /,
    *,
    is_causal: bool,
    scale: float,
    dropout_p: float,
) -> Kept:
    """O = P V with P = softmax(scale · Q Kᵀ + mask), and lse kept; see the top of this file."""
    Q, K, V = _without_unseen(xp, query, key, value, mask, is_causal)
    O, lse = _forward(xp, Q, K, V, mask, kept, is_causal, scale, dropout_p)
    return keep(narrow(xp, O, query), lse=lse)


def _attention_vjp(
    g: Array,
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    kept: Array | None,
    out: Array,
    lse: Array,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    needs: Sequence[str],
) -> tuple[Array | None, ...]:
    Q, K, V = _without_unseen(xp, query, key, value, mask, is_causal)
    dO = widen(xp, g)
    D = xp.sum(dO * widen(xp, out), axis=-1, keepdims=True)
    return _backward(xp, dO, D, lse, Q, K, V, mask, kept, is_causal, scale, dropout_p, needs)


_attention.vjp_all(_attention_vjp)
_attention.example((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3), None, None, is_causal=False, scale=0.5, dropout_p=0.0)
_attention.example((2, 1, 3, 4), (3, 3, 4), (3, 3, 2), (2, 1, 1, 3), None, is_causal=True, scale=0.5, dropout_p=0.0)
_attention.example(
    (2, 3, 4),
    (2, 3, 4),
    (2, 3, 2),
    lambda: mg.asarray([[True, False, True], [True, True, False], [False, False, False]]),
    lambda: mg.asarray([[True, True, False], [True, False, True], [True, True, True]]),
    is_causal=False,
    scale=0.5,
    dropout_p=0.25,
)


# ------------------------------------------------------------------------------------------------ one block


def _forward(
    xp: Any,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    kept: Array | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
) -> tuple[Array, Array]:
    """O and lse (…, L, 1). Where a query may attend to nothing, exp(S) and so P are 0, and lse is 0."""
    P = _scores(xp, Q, K, mask, is_causal, scale)
    m = shift(xp, P, -1)
    P -= m
    P = xp.exp(P)
    total = one_for_zero(xp, xp.sum(P, axis=-1, keepdims=True))
    O = _values(xp, _dropped(xp, P, kept, dropout_p), V, is_causal)
    O /= total  # of L × Ev numbers, rather than P of L × S
    return O, m + xp.log(total)


def _backward(
    xp: Any,
    dO: Array,
    D: Array,
    lse: Array,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    kept: Array | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    needs: Sequence[str],
) -> tuple[Array | None, ...]:
    """The gradients dQ, dK, dV and that of the mask, where they are needed, and None for ``kept``."""
    if is_causal:
        K, V = _finite(xp, K), _finite(xp, V)
    P = _scores(xp, Q, K, mask, is_causal, scale)
    P -= lse
    P = xp.exp(P)
    dQ = dK = dV = dS = None
    if "value" in needs:
        dV = xp.matmul(xp.matrix_transpose(_dropped(xp, P, kept, dropout_p)), dO)
    if "query" in needs or "key" in needs or "mask" in needs:
        dP = _dropped(xp, xp.matmul(dO, xp.matrix_transpose(V)), kept, dropout_p)
        dP -= D
        dP *= P
        dS = dP
    if "query" in needs:
        dQ = scale * xp.matmul(dS, K)
    if "key" in needs:
        dK = xp.matmul(xp.matrix_transpose(dS), scale * Q)
    return dQ, dK, dV, dS, None


def _scores(xp: Any, Q: Array, K: Array, mask: Array | None, is_causal: bool, scale: float) -> Array:
    """S = scale · Q Kᵀ + mask, −inf where a query must not attend."""
    if is_causal:
        K = xp.where(xp.isfinite(K), K, math.nan)  # for the queries that see it; inf − inf would warn for all of them
    S = xp.matmul(scale * Q, xp.matrix_transpose(K))
    if mask is not None and not _is_bool(mask):
        S += xp.astype(mask, S.dtype, copy=False)
    allowed = _allowed(xp, mask if mask is not None and _is_bool(mask) else None, Q, K, is_causal)
    return S if allowed is None else xp.where(allowed, S, -math.inf)


def _values(xp: Any, P: Array, V: Array, is_causal: bool) -> Array:
    """P V. As 0 · NaN is NaN, causal attention adds NaN apart: to the positions from a number that is not finite on."""
    if not is_causal:
        return xp.matmul(P, V)
    L, S = P.shape[-2:]
    O = xp.matmul(P, _finite(xp, V))
    if S:
        seen = xp.cumulative_sum(xp.where(xp.isfinite(V), xp.zeros_like(V), math.nan), axis=-2)  # by query i: of 0 … i
        O += xp.take(seen, xp.minimum(_positions(xp, V, L), S - 1), axis=-2)
    return O


def _dropped(xp: Any, P: Array, kept: Array | None, dropout_p: float) -> Array:
    """P̃ = P ∘ M."""
    return P if kept is None else xp.where(kept, P, 0.0) * inverse_of_kept(dropout_p)


def _finite(xp: Any, x: Array) -> Array:
    return xp.where(xp.isfinite(x), x, 0.0)


# ------------------------------------------------------------------------------------------------ who may attend


def _is_bool(mask: Array) -> bool:
    return dtype_name(mask.dtype) == "bool"


def _positions(xp: Any, like: Array, n: int) -> Array:
    return library(xp, like).arange(n, device=device_of(like))


def _allowed(xp: Any, mask: Array | None, Q: Array, K: Array, is_causal: bool) -> Array | None:
    """Whether each query may attend to each key, as booleans that broadcast to (…, L, S). None: all may."""
    if is_causal:
        L, S = Q.shape[-2], K.shape[-2]
        causal = xp.expand_dims(_positions(xp, Q, L), axis=-1) >= _positions(xp, K, S)
        return causal if mask is None else xp.logical_and(mask, causal)
    return mask


def _without_unseen(
    xp: Any, query: Array, key: Array, value: Array, mask: Array | None, is_causal: bool
) -> tuple[Array, Array, Array]:
    """Q, K and V to compute with: 0 for a query that may attend to nothing and a key to which no query may attend.

    Their weights are 0, but 0 · NaN is NaN.
    """
    Q, K, V = widen(xp, query), widen(xp, key), widen(xp, value)
    if mask is None:
        return Q, K, V
    allowed = _allowed(xp, mask if _is_bool(mask) else mask != -math.inf, Q, K, is_causal)
    Q = xp.where(xp.any(allowed, axis=-1, keepdims=True), Q, 0.0)
    seen = xp.matrix_transpose(xp.any(allowed, axis=-2, keepdims=True))
    return Q, xp.where(seen, K, 0.0), xp.where(seen, V, 0.0)


# ------------------------------------------------------------------------------------------------ shapes


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(…, H, L, E) as (…, H/groups, groups, L, E); a single head, that of a mask, broadcasts to both."""
    if x.ndim < 3:
        return x
    if x.shape[-3] == 1:
        return mg.expand_dims(x, axis=-3)
    return mg.reshape(x, (*x.shape[:-3], x.shape[-3] // groups, groups, *x.shape[-2:]))


def _ungrouped(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else mg.reshape(x, (*x.shape[:-4], x.shape[-4] * groups, *x.shape[-2:]))


def _check(name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool) -> int:
    """How many query heads share each head of key and value; an error if the arguments do not fit together."""
    given = f"query: {describe(query.data)}, key: {describe(key.data)}, value: {describe(value.data)}"

    def error(expected: str, kind: type[Exception] = ValueError) -> Exception:
        return kind(f"{name}: expected {expected} (given {given})")

    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise error("query (…, L, E), key (…, S, E) and value (…, S, Ev), of two axes or more")
    if not mg.isdtype(query.dtype, "real floating") or not query.dtype == key.dtype == value.dtype:
        raise error("query, key and value of one real floating-point dtype", TypeError)
    if query.shape[-1] != key.shape[-1]:
        raise error("query and key of the same width")
    if key.shape[-2] != value.shape[-2]:
        raise error("key and value of the same length")
    groups = 1
    leading = [query.shape[:-2], key.shape[:-2], value.shape[:-2]]
    if enable_gqa:
        if min(query.ndim, key.ndim, value.ndim) < 3 or key.shape[-3] != value.shape[-3]:
            raise error("query, key and value of shape (…, heads, length, width), key and value with the same heads")
        if key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]:
            raise error("a number of query heads that is a multiple of the heads of key and value")
        groups = query.shape[-3] // key.shape[-3]
        leading = [leading[0], *((*heads[:-1], heads[-1] * groups) for heads in leading[1:])]
    try:
        mg.broadcast_shapes(*leading)
        shape = (*mg.broadcast_shapes(*leading[:2]), query.shape[-2], key.shape[-2])
    except ValueError:
        raise error("leading axes that broadcast; enable_gqa=True lets key and value have fewer heads") from None
    if mask is not None:
        given += f", attn_mask: {describe(mask.data)}"
        if not mg.isdtype(mask.dtype, ("bool", "real floating")):
            raise error("a mask of booleans or of floating-point numbers", TypeError)
        padded = (1,) * (len(shape) - mask.ndim) + mask.shape
        if mask.ndim > len(shape) or any(m not in (1, n) for m, n in zip(padded, shape, strict=True)):
            raise error(f"a mask that broadcasts to {shape}")
    return groups
