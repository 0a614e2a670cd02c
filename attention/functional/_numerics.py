"""What the operations share: which precision they compute in, and how a softmax is shifted."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any

import minigrad as mg
from minigrad import backend
from minigrad.backend import Array, device_of, dtype_name, exp_in_place, is_half, namespace_of


def library(xp: Any, x: Array) -> Any:
    """The library behind ``xp`` and x: itself, or that of a Tensor's values. Constants come from there, and dtypes."""
    return namespace_of(x.data) if xp is mg else xp


def wide(xp: Any, dtype: Any) -> Any:
    """The dtype to compute in: float32 for float16 and bfloat16, others themselves."""
    return xp.float32 if is_half(dtype) else dtype


def widen(xp: Any, x: Array) -> Array:
    """x in the precision to compute in: float16 and bfloat16 as float32, float32 and float64 as they are."""
    if dtype_name(x.dtype) in ("float32", "float64"):
        return x
    if not mg.isdtype(x.dtype, "real floating"):
        raise TypeError(f"expected a real floating-point array, got {dtype_name(x.dtype)} {tuple(x.shape)}")
    return xp.astype(x, wide(library(xp, x), x.dtype), copy=False)


def cast(xp: Any, x: Array, like: Array) -> Array:
    """x in the dtype of ``like``: a result in that of the argument, which ends what `widen` began; a parameter."""
    return x if x.dtype == like.dtype else xp.astype(x, like.dtype)


def shift(xp: Any, x: Array, axis: int) -> Array:
    """The number to subtract from x along ``axis`` before `exp`, so that nothing overflows: the maximum."""
    return finite(xp, maximum(xp, x, axis=axis))


def maximum(xp: Any, x: Array, so_far: Array | None = None, axis: int = -1) -> Array:
    """The maximum of x along ``axis``, and of another one; −inf of nothing."""
    there = x.shape[axis] > 0
    m = xp.max(x, axis=axis, keepdims=True) if there else xp.sum(x, axis=axis, keepdims=True) - math.inf
    return m if so_far is None else xp.maximum(m, so_far)


def finite(xp: Any, m: Array) -> Array:
    """A maximum that can be subtracted from what it is the maximum of: an infinite one would give inf − inf.

    Where all is −inf, nothing needs a shift, so it is 0: each e⁻ⁱⁿᶠ is then 0. Where there is +inf, the result is NaN
    in any case, and the shift says so.
    """
    return xp.where(m == -math.inf, 0.0, xp.where(m == math.inf, math.nan, m))


def one_for_zero(xp: Any, x: Array) -> Array:
    """x with 1 in place of 0: a sum of exponentials of nothing, made safe to divide by and to take the logarithm of."""
    return xp.where(x == 0, 1.0, x)


def rows(xp: Any, x: Array) -> Array:
    """x of shape (…, d) as a matrix (n, d): every vector along the last axis a row."""
    return x if len(x.shape) == 2 else xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def one_for_each(xp: Any, x: Array) -> Array:
    """Room for a number for each row of x (n, d), an array of NumPy's."""
    return xp.empty((x.shape[0], 1), dtype=x.dtype)


def row_sums(xp: Any, x: Array) -> Array:
    """Σ over the last axis, which stays; a product with ones, which takes NumPy a third of `sum`'s time."""
    return xp.matmul(x, _ones(xp, x.shape[-1], x))[..., None]


def mean(xp: Any, x: Array) -> Array:
    """x‾, the mean over the last axis, which stays."""
    return row_sums(xp, x) / (x.shape[-1] or math.nan)


def mean_of_product(xp: Any, x: Array, y: Array) -> Array:
    """(x ∘ y)‾, the mean over the last axis, which stays."""
    return (xp.vecdot(x, y) / (x.shape[-1] or math.nan))[..., None]


def sum_rows(xp: Any, x: Array) -> Array:
    """Σ over all axes but the last: the gradient of a vector that was used at every position."""
    x = rows(xp, x)
    return xp.matmul(_ones(xp, x.shape[0], x), x)


def _ones(xp: Any, n: int, like: Array) -> Array:
    return library(xp, like).ones((n,), dtype=like.dtype, device=device_of(like))


# ------------------------------------------------------------------------------------------------ compiled loops


def loops_for(xp: Any, *arrays: Array | None) -> Any:
    """The module `_loops` where it is for these arrays, else None."""
    return _module("._loops") if backend.compiles(xp, *arrays) else None


def attention_loops_for(xp: Any, query: Array, *others: Array) -> Any:
    """The module `_attention_loops` where it is for these arrays, else None."""
    if not backend.compiles(xp, query, *others, strided=True):
        return None
    for x in (query, *others):
        if x.ndim > 5 or x.size == 0:
            return None
    return _module("._attention_loops")


@cache
def _module(name: str) -> Any:
    return importlib.import_module(name, __package__)  # which needs Numba


def exp_minus(xp: Any, x: Array, m: Array) -> Array:
    """exp(x − m) with a number m for each row of x, in the memory of x where it can be."""
    if loops := loops_for(xp, x):
        loops.exp_minus(rows(xp, x), xp.reshape(m, (-1,)))
        return x
    x -= m
    return exp_in_place(xp, x)


def exp_and_sum(xp: Any, x: Array, m: Array, room: Array | None = None) -> tuple[Array, Array]:
    """exp(x − m) with a number m for each row of x, and the sum of each row; compiled loops have ``room`` for it."""
    if room is not None:
        return room, loops_for(xp, x, m, room).exp_and_sum(x, m, room)
    e = exp_in_place(xp, x - m)
    return e, row_sums(xp, e)


def times_difference(xp: Any, P: Array, dP: Array, D: Array) -> Array:
    """P ∘ (dP − D) with a number D for each row, in the memory of dP where it can be."""
    if loops := loops_for(xp, P, dP):
        loops.times_difference(rows(xp, P), rows(xp, dP), xp.reshape(D, (-1,)))
        return dP
    dP -= D
    dP *= P
    return dP
