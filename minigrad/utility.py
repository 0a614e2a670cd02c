"""Utility functions: tests over axes, which answer yes or no and have no derivative, and differences.

An axis out of range is an IndexError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/utility_functions.html
"""

from __future__ import annotations

from typing import Any

import minigrad as mg

from .autodiff import primitive
from .backend import Array
from .manipulation import normal_axis
from .tensor import Tensor

__all__ = [
    "all", "any", "diff",
]  # fmt: skip


@primitive
def all(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Whether all elements are true. No derivative: yes or no.

    >>> mg.all(mg.asarray([[True, False], [True, True]]), axis=1).tolist()
    [False, True]
    """
    return xp.all(x, axis=axis, keepdims=keepdims)


@primitive
def any(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Whether any element is true. No derivative: yes or no.

    >>> mg.any(mg.asarray([False, True])).item()
    True
    """
    return xp.any(x, axis=axis, keepdims=keepdims)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Tensor:
    """The n-th differences xᵢ₊₁ - xᵢ along ``axis``, of x with ``prepend`` before and ``append`` after it.

    >>> mg.diff(mg.asarray([1, 4, 9, 16])).tolist(), mg.diff(mg.asarray([1, 4, 9, 16]), n=2).tolist()
    ([3, 5, 7], [2, 2])
    """
    if n < 0:
        raise ValueError(f"diff: expected n >= 0, got {n}")
    parts = [mg.asarray(part) for part in (prepend, x, append) if part is not None]
    y = mg.concat(parts, axis=axis) if len(parts) > 1 else parts[0]
    axis = normal_axis("diff", axis, y.ndim)
    along = (slice(None),) * axis
    for _ in range(n):
        if y.shape[axis] > 0:  # nothing stays nothing
            y = y[(*along, slice(1, None), ...)] - y[(*along, slice(None, -1), ...)]
    return y
