"""Utility functions: tests over axes. They answer yes or no and have no derivative."""

from __future__ import annotations

from typing import Any

from .autodiff import primitive
from .backend import Array


@primitive
def all(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Whether all elements are true. No derivative."""
    return xp.all(x, axis=axis, keepdims=keepdims)


@primitive
def any(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Whether any element is true. No derivative."""
    return xp.any(x, axis=axis, keepdims=keepdims)
