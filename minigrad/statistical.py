"""Statistical functions: reductions over axes, each with its derivative.

A reduction's rule starts by giving ``g`` the input's shape again: `_expand`.

The reduced axes disappear, or stay with length 1 (``keepdims``). An axis out of range is an IndexError, `max` or `min`
of no elements a ValueError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/statistical_functions.html
"""

from __future__ import annotations

import math
from typing import Any

from .autodiff import primitive
from .backend import Array, as_dtype, is_half

__all__ = [
    "cumulative_prod", "cumulative_sum", "max", "mean", "min", "prod", "std", "sum", "var",
]  # fmt: skip

Axis = int | tuple[int, ...] | None


def _axes(ndim: int, axis: Axis) -> tuple[int, ...]:
    """``axis`` as a tuple of non-negative ints."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(i % ndim for i in (axis if isinstance(axis, tuple) else (axis,)))


def _expand(xp: Any, g: Array, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Array:
    """The gradient of a reduction at the input's shape: each input gets the gradient of the output it went into."""
    if not keepdims:
        axes = _axes(len(shape), axis)
        g = xp.reshape(g, tuple(1 if i in axes else n for i, n in enumerate(shape)))
    return xp.broadcast_to(g, shape)


def _count(shape: tuple[int, ...], axis: Axis) -> int:
    """How many elements go into each output."""
    return math.prod(shape[i] for i in _axes(len(shape), axis))


def _share(shape: tuple[int, ...], axis: Axis) -> float:
    """What part of a mean each element makes up."""
    return 1 / n if (n := _count(shape, axis)) else math.nan


def _in_float32(xp: Any, x: Array) -> Array:
    """Half-precision numbers as float32, in which they are accumulated; others as they are."""
    return xp.astype(x, xp.float32) if is_half(x.dtype) else x


def _narrow(xp: Any, result: Array, x: Array) -> Array:
    """What was accumulated by `_in_float32`, in the dtype of x again."""
    return xp.astype(result, x.dtype) if is_half(x.dtype) else result


@primitive
def sum(xp: Any, x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Σ x over ``axis`` (None: all). d = Σ dx. Half precision is accumulated in float32.

    >>> mg.sum(mg.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    total = xp.sum(_in_float32(xp, x), axis=axis, dtype=as_dtype(xp, dtype), keepdims=keepdims)
    return _narrow(xp, total, x) if dtype is None else total


sum.vjp(x=lambda g, xp, x_shape, axis, keepdims: _expand(xp, g, x_shape, axis, keepdims))
sum.example((2, 3))
sum.example((2, 3, 4), axis=(0, -1))
sum.example((2, 3, 4), axis=1, keepdims=True)


@primitive
def mean(xp: Any, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The mean over ``axis``. d = Σ dx / n.

    >>> mg.grad(mg.mean)(mg.asarray([5.0, 6.0, 7.0, 8.0])).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return _narrow(xp, xp.mean(_in_float32(xp, x), axis=axis, keepdims=keepdims), x)


mean.vjp(x=lambda g, xp, x_shape, axis, keepdims: _expand(xp, g * _share(x_shape, axis), x_shape, axis, keepdims))
mean.example((2, 3))
mean.example((2, 3, 4), axis=(0, -1))


@primitive
def var(xp: Any, x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance Σ (x - mean)² / (n - correction). d = 2 Σ (x - mean) dx / (n - correction).

    >>> mg.var(mg.asarray([1.0, 3.0]), correction=1).item()
    2.0
    """
    variance = xp.var(_in_float32(xp, x), axis=axis, correction=correction, keepdims=keepdims)
    return _narrow(xp, variance, x)


def _var(g: Array, xp: Any, x: Array, axis: Axis, correction: float, keepdims: bool) -> Array:
    n = _count(x.shape, axis) - correction
    g = _expand(xp, g, x.shape, axis, keepdims)
    d = x - xp.mean(x, axis=axis, keepdims=True)
    if xp.isdtype(d.dtype, "complex floating"):  # beyond the standard, but NumPy and others give Σ |d|²
        d = xp.conj(d)
    return g * d * (2 / n if n > 0 else math.nan)


var.vjp(x=_var)
var.example((2, 3), correction=1.0)
var.example((2, 3, 4), axis=(0, -1), keepdims=True)
var.example((2, 3), axis=1, correction=1.0, complex=True)


@primitive
def std(xp: Any, x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation √var. d = Σ (x - mean) dx / (std · (n - correction)), and 0 where std is 0.

    >>> mg.grad(mg.std)(mg.asarray([1.0, 3.0])).tolist()
    [-0.5, 0.5]
    """
    deviation = xp.std(_in_float32(xp, x), axis=axis, correction=correction, keepdims=keepdims)
    return _narrow(xp, deviation, x)


def _std(g: Array, xp: Any, x: Array, out: Array, axis: Axis, correction: float, keepdims: bool) -> Array:
    flat = out == 0
    g = xp.where(flat, xp.zeros_like(g), g / (2 * xp.where(flat, xp.ones_like(out), out)))
    return _var(g, xp, x, axis, correction, keepdims)


std.vjp(x=_std)
std.example((2, 3), correction=1.0)
std.example((2, 3, 4), axis=1)
std.example((2, 3), axis=1, correction=1.0, complex=True)


@primitive
def max(xp: Any, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The largest element over ``axis``. Equal ones share the gradient evenly.

    >>> mg.grad(mg.max)(mg.asarray([1.0, 7.0, 7.0])).tolist()
    [0.0, 0.5, 0.5]
    """
    return xp.max(x, axis=axis, keepdims=keepdims)


@primitive
def min(xp: Any, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The smallest element over ``axis``. Equal ones share the gradient evenly.

    >>> mg.min(mg.asarray([[3, 1], [2, 5]]), axis=1).tolist()
    [1, 2]
    """
    return xp.min(x, axis=axis, keepdims=keepdims)


def _extremum(g: Array, xp: Any, x: Array, out: Array, axis: Axis, keepdims: bool) -> Array:
    chosen = _in_float32(xp, xp.astype(x == _expand(xp, out, x.shape, axis, keepdims), x.dtype))
    share = chosen / xp.sum(chosen, axis=axis, keepdims=True)
    return _expand(xp, g, x.shape, axis, keepdims) * _narrow(xp, share, x)


max.vjp(x=_extremum)
max.example((2, 3))
max.example((2, 3, 4), axis=(0, -1))
min.vjp(x=_extremum)
min.example((2, 3))
min.example((2, 3, 4), axis=(0, -1), keepdims=True)


@primitive
def prod(xp: Any, x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Π x over ``axis``. d = Σ dxᵢ Π_{j≠i} xⱼ, right also where elements are 0.

    >>> mg.grad(mg.prod)(mg.asarray([2.0, 0.0, 5.0])).tolist()
    [0.0, 10.0, 0.0]
    """
    return xp.prod(x, axis=axis, dtype=as_dtype(xp, dtype), keepdims=keepdims)


def _prod(g: Array, xp: Any, x: Array, axis: Axis, keepdims: bool) -> Array:
    g = _expand(xp, g, x.shape, axis, keepdims)
    axes = _axes(len(x.shape), axis)
    kept = tuple(i for i in range(len(x.shape)) if i not in axes)
    rows = xp.permute_dims(x, kept + axes)  # the reduced axes last, and as one
    others = xp.reshape(
        _product_of_others(xp, xp.reshape(rows, (_count(x.shape, kept), _count(x.shape, axes)))), rows.shape
    )
    back = tuple((kept + axes).index(i) for i in range(len(x.shape)))
    return g * xp.permute_dims(others, back)


def _product_of_others(xp: Any, x: Array) -> Array:
    """For each element of a row, the product of the row's others: without division, so that zeros are no exception.

    Halves are multiplied by each other's product, from the whole row down to single elements: n log n operations.
    """
    n = x.shape[1]
    if n <= 1:
        return xp.ones_like(x)
    left, right = x[:, : n // 2], x[:, n // 2 :]
    return xp.concat(
        [
            _product_of_others(xp, left) * xp.prod(right, axis=1, keepdims=True),
            _product_of_others(xp, right) * xp.prod(left, axis=1, keepdims=True),
        ],
        axis=1,
    )


prod.vjp(x=_prod)
prod.example((2, 3))
prod.example((2, 3, 4), axis=(0, -1), keepdims=True)


@primitive
def cumulative_sum(
    xp: Any, x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Running sums along ``axis``. d is the running sum of dx; the gradient is the running sum from the end.

    >>> mg.cumulative_sum(mg.asarray([1, 2, 3]), include_initial=True).tolist()
    [0, 1, 3, 6]
    """
    _check_has_axes(x)
    total = xp.cumulative_sum(_in_float32(xp, x), axis=axis, dtype=as_dtype(xp, dtype), include_initial=include_initial)
    return _narrow(xp, total, x) if dtype is None else total


def _check_has_axes(x: Array) -> None:
    if not x.shape:
        raise ValueError("expected an array of at least one axis")


def _cumulative_sum(g: Array, xp: Any, axis: int | None, include_initial: bool) -> Array:
    axis = (axis or 0) % len(g.shape)
    if include_initial:
        g = g[(slice(None),) * axis + (slice(1, None), ...)]
    return xp.flip(xp.cumulative_sum(xp.flip(g, axis=axis), axis=axis), axis=axis)


cumulative_sum.vjp(x=_cumulative_sum)
cumulative_sum.example((3,))
cumulative_sum.example((2, 3), axis=0, include_initial=True)


@primitive
def cumulative_prod(
    xp: Any, x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Running products along ``axis``: outⱼ = x₀ ⋯ xⱼ. The derivative is right also where elements are 0.

    >>> mg.jacobian(mg.cumulative_prod)(mg.asarray([2.0, 0.0, 5.0])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 10.0, 0.0]]
    """
    _check_has_axes(x)
    return xp.cumulative_prod(x, axis=axis, dtype=as_dtype(xp, dtype), include_initial=include_initial)


def _cumulative_prod(g: Array, xp: Any, x: Array, axis: int | None, include_initial: bool) -> Array:
    # d outⱼ / d xᵢ = (x₀ ⋯ xᵢ₋₁) (xᵢ₊₁ ⋯ xⱼ) for j ≥ i: what comes before i, times Rᵢ = Σⱼ gⱼ xᵢ₊₁ ⋯ xⱼ, which obeys
    # Rᵢ = gᵢ + xᵢ₊₁ Rᵢ₊₁. The recurrence is solved for spans that double: log n steps instead of n, and no division
    # (P. Kogge and H. Stone, "A parallel algorithm for the efficient solution of a general class of recurrence
    # equations", 1973).
    axis = (axis or 0) % len(x.shape)
    along = (slice(None),) * axis
    n = x.shape[axis]
    if include_initial:
        g = g[(*along, slice(1, None), ...)]
    if n == 0:
        return g
    before = xp.cumulative_prod(x, axis=axis, include_initial=True)[(*along, slice(0, n), ...)]

    def ahead(y: Array, span: int) -> Array:
        """y moved ``span`` places towards the front, zeros following."""
        moved = y[(*along, slice(span, None), ...)]
        return xp.concat([moved, xp.zeros_like(y[(*along, slice(0, span), ...)])], axis=axis)

    total, factor, span = g, ahead(x, 1), 1
    while span < n:
        total = total + factor * ahead(total, span)
        factor = factor * ahead(factor, span)
        span *= 2
    return before * total


cumulative_prod.vjp(x=_cumulative_prod)
cumulative_prod.example((4,))
cumulative_prod.example((5, 2), axis=0, include_initial=True)
