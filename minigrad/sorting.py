"""Sorting functions: `sort` moves elements, so that its gradient moves back; `argsort` gives positions and has none.

The shape is that of x; an axis out of range is an IndexError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/sorting_functions.html
"""

from __future__ import annotations

from typing import Any

from .autodiff import primitive
from .backend import Array
from .indexing import put_along_axis

__all__ = [
    "argsort", "sort",
]  # fmt: skip


@primitive
def argsort(xp: Any, x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The indices that sort x along ``axis``. No derivative: whole numbers.

    >>> mg.argsort(mg.asarray([30, 10, 20])).tolist()
    [1, 2, 0]
    """
    return xp.argsort(x, axis=axis, descending=descending, stable=stable)


@primitive
def sort(xp: Any, x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements of x in order along ``axis``. The gradient goes back to where each element stood.

    >>> mg.grad(lambda x: mg.sort(x)[0])(mg.asarray([30.0, 10.0, 20.0])).tolist()  # of the smallest
    [0.0, 1.0, 0.0]
    """
    return xp.sort(x, axis=axis, descending=descending, stable=stable)


def _sort(g: Array, xp: Any, x: Array, axis: int, descending: bool) -> Array:
    order = xp.argsort(x, axis=axis, descending=descending, stable=True)
    return put_along_axis.raw(xp)(g, order, x.shape, axis)


sort.vjp(x=_sort)
sort.example((3, 4))
sort.example((3, 4), axis=0, descending=True)
