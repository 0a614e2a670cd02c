"""Searching functions: `where` chooses and has a derivative, the others answer with positions and have none.

Positions are integers of the library's dtype for indices; an axis out of range is an IndexError. The chapter of the
standard: https://data-apis.org/array-api/latest/API_specification/searching_functions.html
"""

from __future__ import annotations

from typing import Any

from .autodiff import primitive
from .backend import Array
from .creation import asarray

__all__ = [
    "argmax", "argmin", "count_nonzero", "nonzero", "searchsorted", "where",
]  # fmt: skip


@primitive
def where(xp: Any, condition: Array, x1: Array, x2: Array, /) -> Array:
    """x1 where ``condition`` holds, else x2. The gradient goes to the one that was chosen; the other gets 0.

    >>> mg.grad(lambda x: mg.sum(mg.where(x > 0, 10 * x, x)))(mg.asarray([-1.0, 1.0])).tolist()
    [1.0, 10.0]
    """
    return xp.where(condition, x1, x2)


where.vjp(
    x1=lambda g, xp, condition: xp.where(condition, g, xp.zeros_like(g)),
    x2=lambda g, xp, condition: xp.where(condition, xp.zeros_like(g), g),
)
where.example(lambda: asarray([[True, False, True], [False, False, True]]), (2, 3), (3,))


@primitive
def argmax(xp: Any, x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the largest element along ``axis`` (None: of all). No derivative: whole numbers.

    >>> mg.argmax(mg.asarray([3, 7, 7])).item()  # the first of equal ones
    1
    """
    return xp.argmax(x, axis=axis, keepdims=keepdims)


@primitive
def argmin(xp: Any, x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the smallest element along ``axis`` (None: of all). No derivative: whole numbers.

    >>> mg.argmin(mg.asarray([[3, 1], [2, 5]]), axis=1).tolist()
    [1, 0]
    """
    return xp.argmin(x, axis=axis, keepdims=keepdims)


@primitive
def count_nonzero(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """How many elements are not 0. No derivative: whole numbers.

    >>> mg.count_nonzero(mg.asarray([0, 5, -1])).item()
    2
    """
    return xp.count_nonzero(x, axis=axis, keepdims=keepdims)


@primitive
def nonzero(xp: Any, x: Array, /) -> tuple[Array, ...]:
    """The indices of the elements that are not 0, an array for each axis. No derivative: whole numbers.

    >>> [i.tolist() for i in mg.nonzero(mg.asarray([[0, 5], [7, 0]]))]
    [[0, 1], [1, 0]]
    """
    return tuple(xp.nonzero(x))


@primitive
def searchsorted(xp: Any, x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Where each element of x2 would stand in the sorted x1. No derivative: whole numbers.

    >>> mg.searchsorted(mg.asarray([10, 20, 30]), mg.asarray([5, 20, 25])).tolist()
    [0, 1, 2]
    """
    return xp.searchsorted(x1, x2, side=side, sorter=sorter)
