"""scaled_dot_product_attention: each query's mean of the values, weighted by how well the keys match.

The derivation, in the symbols of the code (A. Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762;
T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135, appendix B). For one head, with queries Q (L, E), keys K (S, E)
and values V (S, Ev):

    S = scale · Q Kᵀ + bias          scores, −inf where a query must not attend
    P = exp(S − m) / l               their softmax, with m each row's maximum and l its Σ exp(S − m)
    O = P V

Backward, given dO, the gradient of O:

    dV = Pᵀ dO
    dP = dO Vᵀ
    dS = P ∘ (dP − D)                the softmax's derivative, with D = rowsum(P ∘ dP) (see softmax.py)
    dQ = scale · dS K
    dK = scale · dSᵀ Q
    dbias = dS

D needs neither P nor dP:  D = Σⱼ Pⱼ (dO · Vⱼ) = dO · Σⱼ Pⱼ Vⱼ = rowsum(dO ∘ O). So the L × S matrices need not be
kept: the backward pass computes exp(S − m) again from Q, K and two numbers for each row, m and l. (One, m + ln l, would
be enough, but its rounding error grows with m, and so would the error of P.) What is divided by l is not the L × S
numbers of P, but the L × Ev of O and of dO: dV = exp(S − m)ᵀ (dO / l), dS = exp(S − m) ∘ ((dO / l) Vᵀ − D / l).

With dropout, O = P̃ V where P̃ = P ∘ M and M is 0 or 1/(1 − p). Then dV = P̃ᵀ dO and dP = (dO Vᵀ) ∘ M, and D is
rowsum(dO ∘ O) all the same.

Every sum above over keys can be taken block by block, and so can those over queries in dK and dV. So nothing of L × S
numbers is ever in memory: the work is cut into tiles, a block of queries against a block of keys, of several heads
where these are small, whose scores stay in the processor's cache. Going forward, let m, l and O = Σ exp(S − m) V be
those of the keys up to here; where the next block raises the maximum to m′, l and O are multiplied by exp(m − m′)
(M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867).

`_forward` and `_backward` say this with any library's arrays; `_attention_loops.py` says the same to a compiler.
"""

# ruff: noqa: E741  — O is the papers' name for the output

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import minigrad as mg
from minigrad import Tensor, keep, primitive
from minigrad.backend import (
    Array,
    describe,
    device_of,
    dtype_name,
    in_parallel,
    kept_rows,
    on_this_thread,
)
from minigrad.random import Generator

from ._numerics import (
    attention_loops_for,
    cast,
    exp_minus,
    finite,
    library,
    maximum,
    one_for_zero,
    row_sums,
    times_difference,
    wide,
    widen,
)
from ._tiles import add, along, cut, padded, tiles, total
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
    window: int | None = None,
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
    window
        With ``is_causal``, how many keys a query sees: i − window + 1 … i. (I. Beltagy, M. E. Peters, A. Cohan,
        "Longformer", 2020, arXiv:2004.05150.)
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

    Examples
    --------
    >>> query, key, value = mg.ones((2, 3, 4)), mg.ones((2, 5, 4)), mg.ones((2, 5, 6))
    >>> scaled_dot_product_attention(query, key, value).shape
    (2, 3, 6)
    >>> value = mg.asarray([[1.0], [3.0], [8.0]])  # of what it may see, a query of zeros takes the mean
    >>> scaled_dot_product_attention(mg.zeros((3, 1)), mg.ones((3, 1)), value, is_causal=True).tolist()
    [[1.0], [2.0], [4.0]]

    Notes
    -----
    A query that may attend to nothing gets zeros, and passes on no gradient (as PyTorch since 2.5).

    What stands in ``key`` and ``value`` where ``attn_mask`` lets no query attend (padding), or in ``query`` where it
    may attend to nothing, reaches neither the output nor a gradient, NaN and inf included; its own gradient is 0. NaN
    or inf to which some queries attend can reach the others too, as 0 · NaN is NaN.
    """
    name = "scaled_dot_product_attention"
    query, key, value = mg.asarray(query), mg.asarray(key), mg.asarray(value)
    mask = None if attn_mask is None else mg.asarray(attn_mask)
    groups = _check(name, query, key, value, mask, enable_gqa)
    check_probability(name, "dropout_p", dropout_p)
    if window is not None and not (is_causal and isinstance(window, Integral) and window >= 1):
        raise ValueError(f"{name}: expected window to be a positive integer, with is_causal=True; got {window!r}")
    if scale is not None and not isinstance(scale, Real):
        raise TypeError(f"{name}: expected scale to be a real number, got {type(scale).__name__}")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0

    L, S = query.shape[-2], key.shape[-2]
    heads = query.shape[-3] if groups > 1 else 1
    folded = groups > 1 and mask is None and not is_causal
    if folded:  # query heads that share keys are as good as more queries: (…, H, L, E) as (…, H_kv, H/H_kv · L, E)
        query = mg.reshape(query, (*query.shape[:-3], key.shape[-3], groups * L, query.shape[-1]))
    elif groups > 1:  # (…, H, L, E) as (…, H_kv, H/H_kv, L, E), along which key and value broadcast
        query, mask = _grouped(query, groups), mask if mask is None else _grouped(mask, groups)
        key, value = mg.expand_dims(key, axis=-3), mg.expand_dims(value, axis=-3)

    def ungrouped(x: Tensor) -> Tensor:
        if groups == 1:
            return x
        apart: Tensor = mg.reshape(x, (*x.shape[: -3 if folded else -4], heads, L, x.shape[-1]))
        return apart

    if mask is not None and mask.ndim < 2:
        mask = mg.reshape(mask, (1,) * (2 - mask.ndim) + mask.shape)
    kept = None
    if dropout_p > 0:
        leading = mg.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        kept = chosen(query, (*leading, query.shape[-2], S), dropout_p, generator)

    if not return_weights:
        out = _scaled_dot_product_attention(
            query, key, value, mask, kept, is_causal=is_causal, window=window, scale=scale, dropout_p=dropout_p
        )
        return ungrouped(out)
    Q, K, V = scale * widen(mg, query), widen(mg, key), widen(mg, value)
    Q, K, V, scores = _scores(mg, Q, K, V, mask, slice(0, query.shape[-2]), slice(0, S), is_causal, window)
    weights = softmax(scores)
    out = cast(mg, mg.matmul(_dropped(mg, weights, kept, dropout_p), V), query)
    return ungrouped(out), ungrouped(cast(mg, weights, query))


# ------------------------------------------------------------------------------------------------ the primitive


@primitive
def _scaled_dot_product_attention(
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None,
    kept: Array | None,
    /,
    *,
    is_causal: bool,
    window: int | None,
    scale: float,
    dropout_p: float,
) -> Any:
    """O = P V with P = softmax(scale · Q Kᵀ + mask), and m and l kept; see the top of this file."""
    options = (is_causal, window, scale, dropout_p)
    loops = attention_loops_for(xp, query, key, value) if kept is None else None
    if loops and query.shape[-2] < loops.FEW:
        O, m, l = loops.forward_of_few(query, key, value, attn_mask, is_causal, window, scale)
        return keep(O, m=m, l=l)
    tiling = tiles(xp, query, key, value, is_causal, loops is not None)
    if tiling is None:
        rows, keys = slice(0, query.shape[-2]), [slice(0, key.shape[-2])]
        with on_this_thread(xp, query.shape[-2] * key.shape[-2]):
            O, m, l = _forward(xp, query, key, value, attn_mask, kept, rows, keys, *options)
        return keep(cast(xp, O, query), m=m, l=l)

    ndim = len(tiling.heads) + 2
    query, key, value, mask, kept = (padded(xp, x, ndim) for x in (query, key, value, attn_mask, kept))
    device = device_of(query)
    O = xp.empty((*tiling.heads, tiling.L, value.shape[-1]), dtype=query.dtype, device=device)
    m, l = (xp.empty((*tiling.heads, tiling.L, 1), dtype=wide(xp, query.dtype), device=device) for _ in "ml")
    if loops:
        loops.forward(tiling, query, key, value, mask, is_causal, window, scale, O, m, l)
        return keep(O, m=m, l=l)

    def work(lane: int) -> None:
        for heads, rows in tiling.lanes[lane]:
            at, keys = (*heads, rows), tiling.keys(rows, is_causal, window)
            Q, K, V, M, kept_here = cut(query, at), cut(key, heads), cut(value, heads), cut(mask, at), cut(kept, at)
            here = (*at, ...)
            O_rows, m[here], l[here] = _forward(xp, Q, K, V, M, kept_here, rows, keys, *options)
            O[here] = cast(xp, O_rows, query)

    in_parallel(work, len(tiling.lanes))
    return keep(O, m=m, l=l)


def _scaled_dot_product_attention_vjp(
    g: Array,
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None,
    kept: Array | None,
    out: Array,
    m: Array,
    l: Array,
    is_causal: bool,
    window: int | None,
    scale: float,
    dropout_p: float,
    needs: Sequence[str],
) -> list[Array | None]:
    options = (is_causal, window, scale, dropout_p, needs)
    arguments = {"query": query, "key": key, "value": value, "attn_mask": attn_mask, "kept": kept}
    simple = kept is None and "attn_mask" not in needs
    loops = attention_loops_for(xp, query, key, value, g) if simple else None
    tiling = tiles(xp, query, key, value, is_causal, loops is not None)
    if tiling is None:
        rows, keys = slice(0, query.shape[-2]), slice(0, key.shape[-2])
        dO_l = widen(xp, g) / l
        D_l = xp.sum(dO_l * widen(xp, out), axis=-1, keepdims=True)
        with on_this_thread(xp, query.shape[-2] * key.shape[-2]):
            found = _backward(xp, dO_l, D_l, m, query, key, value, attn_mask, kept, rows, keys, *options)
        return [found.get(name) for name in arguments]

    ndim = len(tiling.heads) + 2
    query, key, value, mask, kept = (padded(xp, x, ndim) for x in arguments.values())
    given = {"query": query, "key": key, "value": value, "attn_mask": mask}
    of_queries = {"query"} if mask is None or mask.shape[-2] == 1 else {"query", "attn_mask"}
    sums = {name: tiling.zeros(xp, given[name], name in of_queries) for name in needs}

    def work(lane: int) -> None:
        for heads, rows in tiling.lanes[lane]:
            at = (*heads, rows)
            Q, dO, O, m_rows, l_rows = (cut(x, at) for x in (query, g, out, m, l))
            dO_l = widen(xp, dO) / l_rows
            D_l = xp.sum(dO_l * widen(xp, O), axis=-1, keepdims=True)
            for keys in tiling.keys(rows, is_causal, window):
                to, tile = (*heads, keys), (*heads, rows, keys)
                K, V, M, kept_here = cut(key, to), cut(value, to), cut(mask, tile), cut(kept, tile)
                found = _backward(xp, dO_l, D_l, m_rows, Q, K, V, M, kept_here, rows, keys, *options)
                place = {"query": at, "key": to, "value": to, "attn_mask": tile}
                for name, gradient in found.items():
                    add(xp, sums[name][lane], place[name], gradient)

    if loops:
        loops.backward(tiling, g, query, key, value, mask, out, m, l, is_causal, window, scale, sums)
    else:
        in_parallel(work, len(tiling.lanes))
    return [xp.reshape(total(sums[name]), x.shape) if name in sums else None for name, x in arguments.items()]


_scaled_dot_product_attention.vjp_all(_scaled_dot_product_attention_vjp)
_scaled_dot_product_attention.example(
    (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3), None, None, is_causal=False, window=None, scale=0.5, dropout_p=0.0
)
_scaled_dot_product_attention.example(
    (2, 1, 3, 4), (3, 3, 4), (3, 3, 2), (2, 1, 1, 3), None, is_causal=True, window=None, scale=0.5, dropout_p=0.0
)
_scaled_dot_product_attention.example(
    (2, 5, 4), (2, 5, 4), (2, 5, 3), None, None, is_causal=True, window=2, scale=0.5, dropout_p=0.0
)
_scaled_dot_product_attention.example(
    (2, 3, 4),
    (2, 3, 4),
    (2, 3, 2),
    lambda: mg.asarray([[True, False, True], [True, True, False], [False, False, False]]),
    lambda: mg.asarray([[True, True, False], [True, False, True], [True, True, True]]),
    is_causal=False,
    window=None,
    scale=0.5,
    dropout_p=0.25,
)


# ------------------------------------------------------------------------------------------------ the mathematics


def _forward(
    xp: Any,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    kept: Array | None,
    rows: slice,
    blocks: list[slice],
    is_causal: bool,
    window: int | None,
    scale: float,
    dropout_p: float,
) -> tuple[Array, Array, Array]:
    """O, m and l of the queries ``rows``, from the ``blocks`` of keys; 0, 0 and 1 where one may attend to nothing."""
    Q = scale * widen(xp, Q)
    O = l = m = highest = None
    for keys in blocks:
        K_block, V_block = widen(xp, along(K, -2, keys)), widen(xp, along(V, -2, keys))
        _, _, V_block, S = _scores(xp, Q, K_block, V_block, along(mask, -1, keys), rows, keys, is_causal, window)
        before: Any = highest
        highest = maximum(xp, S, before)
        m = finite(xp, highest)
        P = exp_minus(xp, S, m)
        l_block = row_sums(xp, P)
        O_block = xp.matmul(_dropped(xp, P, along(kept, -1, keys), dropout_p), V_block)
        if before is None:
            O, l = O_block, l_block
        else:
            factor = xp.exp(before - m)
            O *= factor
            O += O_block
            l *= factor
            l += l_block
    l = one_for_zero(xp, l)
    O /= l
    return O, m, l


def _backward(
    xp: Any,
    dO_l: Array,
    D_l: Array,
    m: Array,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    kept: Array | None,
    rows: slice,
    keys: slice,
    is_causal: bool,
    window: int | None,
    scale: float,
    dropout_p: float,
    needs: Sequence[str],
) -> dict[str, Array]:
    """What the tile of the queries ``rows`` and the keys ``keys`` adds to the gradients that are needed.

    P here is exp(S − m), and what it is to be divided by has been: ``dO_l`` is dO / l, ``D_l`` is D / l.
    """
    found = {}
    Q, K, V, S = _scores(xp, scale * widen(xp, Q), widen(xp, K), widen(xp, V), mask, rows, keys, is_causal, window)
    P = exp_minus(xp, S, m)
    if "value" in needs:
        found["value"] = xp.matmul(xp.matrix_transpose(_dropped(xp, P, kept, dropout_p)), dO_l)
    if "query" in needs or "key" in needs or "attn_mask" in needs:
        dP = _dropped(xp, xp.matmul(dO_l, xp.matrix_transpose(V)), kept, dropout_p)
        dS = times_difference(xp, P, dP, D_l)
    if "query" in needs:
        found["query"] = scale * xp.matmul(dS, K)
    if "key" in needs:
        found["key"] = xp.matmul(xp.matrix_transpose(dS), Q)  # this Q has the scale in it
    if "attn_mask" in needs:
        found["attn_mask"] = dS
    return found


def _scores(
    xp: Any,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    rows: slice,
    keys: slice,
    is_causal: bool,
    window: int | None,
) -> tuple[Array, Array, Array, Array]:
    """Q, K, V and S = Q Kᵀ + mask of a tile, with Q scaled; S is −inf where a query must not attend."""
    Q, K, V, allowed = seen(xp, Q, K, V, mask, rows, keys, is_causal, window)
    S = xp.matmul(Q, xp.matrix_transpose(K))
    if mask is not None and not _is_bool(mask):
        S += cast(xp, mask, S)
    if allowed is not None:
        limit = xp.astype(allowed, S.dtype)  # ∞ or −∞; the same with `where` takes NumPy four times as long
        limit -= 0.5
        limit *= math.inf
        S = xp.minimum(S, limit)
    return Q, K, V, S


def seen(
    xp: Any,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    rows: slice,
    keys: slice,
    is_causal: bool,
    window: int | None,
) -> tuple[Array, Array, Array, Array | None]:
    """Q, K and V, and where a query may attend to a key, if booleans say so (None: anywhere).

    Of a query without a key here, and of a key without a query, the rows of Q, K and V are 0: their weights are 0, but
    0 · NaN is NaN.
    """
    some_later = is_causal and keys.stop > rows.start + 1
    some_left = window is not None and keys.start < rows.stop - window
    causal = causal_mask(xp, Q, rows, keys, window) if some_later or some_left else None
    allowed = causal if mask is None or not _is_bool(mask) else _both(xp, mask, causal)
    if mask is not None:
        visible = allowed if _is_bool(mask) else _both(xp, mask != -math.inf, causal)
        Q = kept_rows(xp, Q, xp.any(visible, axis=-1, keepdims=True))
        seen_keys = xp.matrix_transpose(xp.any(visible, axis=-2, keepdims=True))
        K, V = kept_rows(xp, K, seen_keys), kept_rows(xp, V, seen_keys)
    return Q, K, V, allowed


def causal_mask(xp: Any, Q: Array, rows: slice, keys: slice, window: int | None) -> Array:
    """Whether key j is not after query i, and not further than the window before it."""
    xp = library(xp, Q)
    i, j = (xp.arange(part.start, part.stop, dtype=xp.int32, device=device_of(Q)) for part in (rows, keys))
    i = xp.expand_dims(i, axis=-1)
    return i >= j if window is None else xp.logical_and(i >= j, i - j < window)


def _both(xp: Any, allowed: Array, causal: Array | None) -> Array:
    return allowed if causal is None else xp.logical_and(allowed, causal)


def _is_bool(mask: Array) -> bool:
    return dtype_name(mask.dtype) == "bool"


def _dropped(xp: Any, P: Array, kept: Array | None, dropout_p: float) -> Array:
    """P̃ = P ∘ M."""
    return P if kept is None else P * (xp.astype(kept, P.dtype) * inverse_of_kept(dropout_p))


# ------------------------------------------------------------------------------------------------ shapes


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(…, H, L, E) as (…, H/groups, groups, L, E); a single head, that of a mask, broadcasts to both."""
    if x.ndim < 3:
        return x
    if x.shape[-3] == 1:
        return mg.expand_dims(x, axis=-3)
    return mg.reshape(x, (*x.shape[:-3], x.shape[-3] // groups, groups, *x.shape[-2:]))


def _check(name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool) -> int:
    """How many query heads share each head of key and value; an error if the arguments do not fit together."""

    def error(expected: str, kind: type[Exception] = ValueError) -> Exception:
        arguments = {"query": query, "key": key, "value": value, "attn_mask": mask}
        given = ", ".join(f"{name}: {describe(x.data)}" for name, x in arguments.items() if x is not None)
        return kind(f"{name}: expected {expected} (given {given})")

    q, k, v, dtype = query.shape, key.shape, value.shape, query.dtype
    if min(len(q), len(k), len(v)) < 2:
        raise error("query (…, L, E), key (…, S, E) and value (…, S, Ev), of two axes or more")
    if not mg.isdtype(dtype, "real floating") or not dtype == key.dtype == value.dtype:
        raise error("query, key and value of one real floating-point dtype", TypeError)
    if q[-1] != k[-1]:
        raise error("query and key of the same width")
    if k[-2] != v[-2]:
        raise error("key and value of the same length")
    groups = 1
    leading = [q[:-2], k[:-2], v[:-2]]
    if enable_gqa:
        if min(len(q), len(k), len(v)) < 3 or k[-3] != v[-3]:
            raise error("query, key and value of shape (…, heads, length, width), key and value with the same heads")
        if k[-3] == 0 or q[-3] % k[-3]:
            raise error("a number of query heads that is a multiple of the heads of key and value")
        groups = q[-3] // k[-3]
        leading = [leading[0], *((*heads[:-1], heads[-1] * groups) for heads in leading[1:])]
    try:
        mg.broadcast_shapes(*leading)
    except ValueError:
        raise error("leading axes that broadcast; enable_gqa=True lets key and value have fewer heads") from None
    if mask is not None:
        if not mg.isdtype(mask.dtype, ("bool", "real floating")):
            raise error("a mask of booleans or of floating-point numbers", TypeError)
        shape = (*mg.broadcast_shapes(*leading[:2]), q[-2], k[-2])
        padded = (1,) * (len(shape) - mask.ndim) + mask.shape
        if mask.ndim > len(shape) or any(m not in (1, n) for m, n in zip(padded, shape, strict=True)):
            raise error(f"a mask that broadcasts to {shape}")
    return groups
