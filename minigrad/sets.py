"""Set functions: the different values of an array. The shape of the result depends on the values; no derivatives.

The values are of x's dtype, the rest are indices and counts; only the inverse indices have the shape of x. The chapter
of the standard: https://data-apis.org/array-api/latest/API_specification/set_functions.html
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .autodiff import primitive
from .backend import Array
from .tensor import Tensor

__all__ = [
    "isin", "unique_all", "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip


class UniqueAllResult(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


@primitive
def _unique_all(xp: Any, x: Array, /) -> tuple[Array, ...]:
    return tuple(xp.unique_all(x))


@primitive
def _unique_counts(xp: Any, x: Array, /) -> tuple[Array, ...]:
    return tuple(xp.unique_counts(x))


@primitive
def _unique_inverse(xp: Any, x: Array, /) -> tuple[Array, ...]:
    return tuple(xp.unique_inverse(x))


def unique_all(x: Array, /) -> UniqueAllResult:
    """The different values, where each occurs first, which of them each element is, and how often each occurs.

    No derivative: their number depends on x.

    >>> [part.tolist() for part in mg.unique_all(mg.asarray([7, 5, 7]))]
    [[5, 7], [1, 0], [1, 0, 1], [1, 2]]
    """
    return UniqueAllResult(*_unique_all(x))


def unique_counts(x: Array, /) -> UniqueCountsResult:
    """The different values, and how often each occurs. No derivative: their number depends on x.

    >>> mg.unique_counts(mg.asarray([7, 5, 7])).counts.tolist()
    [1, 2]
    """
    return UniqueCountsResult(*_unique_counts(x))


def unique_inverse(x: Array, /) -> UniqueInverseResult:
    """The different values, and which of them each element is. No derivative: their number depends on x.

    >>> values, inverse = mg.unique_inverse(mg.asarray([7, 5, 7]))
    >>> values[inverse].tolist()
    [7, 5, 7]
    """
    return UniqueInverseResult(*_unique_inverse(x))


@primitive
def unique_values(xp: Any, x: Array, /) -> Array:
    """The different values. No derivative: their number depends on x.

    >>> mg.unique_values(mg.asarray([7, 5, 7])).tolist()
    [5, 7]
    """
    return xp.unique_values(x)


@primitive
def isin(xp: Any, x1: Array, x2: Array, /, *, invert: bool = False) -> Array:
    """For each element of x1, whether it occurs in x2. No derivative: yes or no.

    >>> mg.isin(mg.asarray([1, 2, 3]), mg.asarray([3, 1])).tolist()
    [True, False, True]
    """
    return xp.isin(x1, x2, invert=invert)
