"""embedding: rows of a table, chosen by integers."""

from __future__ import annotations

import math
from typing import Any

import minigrad as mg
from minigrad import primitive
from minigrad.backend import Array
from minigrad.indexing import add_along, take

from ._numerics import widen


@primitive
def embedding(xp: Any, indices: Array, weight: Array) -> Array:
    """yₜ = w at row indicesₜ: for ``indices`` (…) and ``weight`` (n, d), y is of shape (…, d).

    (PyTorch's torch.nn.functional.embedding: https://docs.pytorch.org/docs/stable/nn.functional.html)

    Derivation. δyₜ = δw at row indicesₜ, so each row of w gathers from wherever it was used:

        dwᵢ = Σ gₜ over all t with indicesₜ = i.

    An index outside of [0, n) is an error where the library checks: NumPy and array-api-strict (which count a
    negative one from the end) and PyTorch on the CPU raise IndexError. JAX gives NaN, and CUDA stops the process or
    wraps around, as a check would have to wait for the values.

    >>> embedding(mg.asarray([2, 0]), mg.asarray([[1.0], [3.0], [5.0]])).tolist()
    [[5.0], [1.0]]
    >>> mg.grad(lambda weight: mg.sum(embedding(mg.asarray([2, 0, 2]), weight)))(mg.zeros((3, 1))).tolist()
    [[1.0], [0.0], [2.0]]
    """
    if not mg.isdtype(indices.dtype, "integral"):
        raise TypeError("expected indices of an integer dtype")
    if len(weight.shape) != 2:
        raise ValueError("expected weight of shape (n, d), a row for each index")
    y = take.raw(xp)(weight, xp.reshape(indices, (math.prod(indices.shape),)), axis=0)
    return xp.reshape(y, tuple(indices.shape) + tuple(weight.shape[1:]))


def _embedding(g: Array, xp: Any, indices: Array, weight_shape: tuple[int, ...]) -> Array:
    count = math.prod(indices.shape)
    g = xp.reshape(widen(xp, g), (count, weight_shape[1]))
    return add_along.raw(xp)(g, xp.reshape(indices, (count,)), tuple(weight_shape), 0)


embedding.vjp(weight=_embedding)
embedding.example(lambda: mg.asarray([[0, 2], [2, 1], [2, 0]]), (4, 3))
