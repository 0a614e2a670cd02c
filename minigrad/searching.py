"""Searching functions: `where` chooses and has a derivative, the others answer with positions and have none."""

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
    """x1 where ``condition`` holds, else x2. The gradient goes to the one that was chosen; the other gets 0."""
    return xp.where(condition, x1, x2)


where.vjp(
    x1=lambda g, xp, condition: xp.where(condition, g, xp.zeros_like(g)),
    x2=lambda g, xp, condition: xp.where(condition, xp.zeros_like(g), g),
)
where.example(lambda: asarray([[True, False, True], [False, False, True]]), (2, 3), (3,))


@primitive
def argmax(xp: Any, x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the largest element along ``axis`` (None: of all). No derivative: whole numbers."""
    return xp.argmax(x, axis=axis, keepdims=keepdims)


@primitive
def argmin(xp: Any, x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the smallest element along ``axis`` (None: of all). No derivative: whole numbers."""
    return xp.argmin(x, axis=axis, keepdims=keepdims)


@primitive
def count_nonzero(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """How many elements are not 0. No derivative: whole numbers."""
    return xp.count_nonzero(x, axis=axis, keepdims=keepdims)


@primitive
def nonzero(xp: Any, x: Array, /) -> tuple[Array, ...]:
    """The indices of the elements that are not 0, an array for each axis. No derivative: whole numbers."""
    return tuple(xp.nonzero(x))


@primitive
def searchsorted(xp: Any, x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Where each element of x2 would stand in the sorted x1. No derivative: whole numbers."""
    return xp.searchsorted(x1, x2, side=side, sorter=sorter)
