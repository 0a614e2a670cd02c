"""What a token is and where it stands: embeddings, and the three ways to tell positions apart."""

from __future__ import annotations

from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import dtype_name
from minigrad.random import Generator

from .. import functional as F
from .module import Module, expect_width, parameter


class Embedding(Module):
    """Row ``indices`` of a table: integers of shape (...) become vectors of shape (..., d).

    The table, ``weight`` of shape (num_embeddings, d), is drawn from N(0, std²). Raises TypeError for indices that are
    no integers.

    Examples
    --------
    >>> Embedding(10, 4)(mg.asarray([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        d: int,
        std: float = 1.0,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        generator = generator or mg.random.default
        self.weight = parameter(generator.normal((num_embeddings, d), std=std, dtype=dtype))

    def __call__(self, indices: Tensor) -> Tensor:
        if not mg.isdtype(indices.dtype, "integral"):
            raise TypeError(f"Embedding: expected integer indices, got {dtype_name(indices.dtype)}")
        return F.embedding(indices, self.weight)


class SinusoidalPositions(Module):
    """x plus a fixed wave for each pair of its components, so that every position has a pattern of its own:

        PE[t, 2i] = sin(t / 10000^(2i/d)),    PE[t, 2i+1] = cos(t / 10000^(2i/d))

    Vaswani et al. (2017), section 3.5. x is (..., T, d), its first vector stands at position ``offset``. Raises
    ValueError for an odd d, and for a sequence that goes beyond ``max_length``.

    Examples
    --------
    >>> SinusoidalPositions(10, 4)(mg.zeros((2, 4)))[0, ...].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, max_length: int, d: int, dtype: Any = "float32") -> None:
        angles = _angles(max_length, d, "SinusoidalPositions")
        table = mg.reshape(mg.stack([mg.sin(angles), mg.cos(angles)], axis=-1), (max_length, d))
        self._table = mg.astype(table, dtype)

    def __call__(self, x: Tensor, offset: int = 0) -> Tensor:
        return x + _rows(self._table, x, offset, "SinusoidalPositions")


class LearnedPositions(Module):
    """x plus a learned vector for each position. x is (..., T, d), its first vector stands at position ``offset``.

    Radford et al., "Language models are unsupervised multitask learners" (2019). The table, ``weight`` of shape
    (max_length, d), is drawn from N(0, std²). Raises ValueError for a sequence that goes beyond ``max_length``.

    Examples
    --------
    >>> LearnedPositions(10, 4)(mg.zeros((2, 5, 4))).shape
    (2, 5, 4)
    """

    def __init__(
        self, max_length: int, d: int, std: float = 0.02, dtype: Any = "float32", generator: Generator | None = None
    ) -> None:
        generator = generator or mg.random.default
        self.weight = parameter(generator.normal((max_length, d), std=std, dtype=dtype))

    def __call__(self, x: Tensor, offset: int = 0) -> Tensor:
        return x + _rows(self.weight, x, offset, "LearnedPositions")


class RotaryPositions(Module):
    """Queries and keys turned by an angle proportional to their position, pair of components by pair:

        (x[2i], x[2i+1])  →  (x[2i] cos tθ_i - x[2i+1] sin tθ_i,  x[2i] sin tθ_i + x[2i+1] cos tθ_i)

    with θ_i = 10000^(-2i/d). A product of a query at position m and a key at n then depends on m - n alone, as
    ⟨R_m q, R_n k⟩ = ⟨q, R_(n-m) k⟩. Su et al., "RoFormer" (2021), equation 34. x is (..., T, d), its first vector
    stands at position ``offset``. Give it to `MultiHeadAttention`, with d the width of a head. Raises ValueError for
    an odd d, and for a sequence that goes beyond ``max_length``.

    Examples
    --------
    >>> RotaryPositions(10, 4)(mg.ones((2, 5, 4))).shape
    (2, 5, 4)
    """

    def __init__(self, max_length: int, d: int, dtype: Any = "float32") -> None:
        angles = _angles(max_length, d, "RotaryPositions")
        # Each angle twice, so that the tables are as wide as x.
        angles = mg.reshape(mg.stack([angles, angles], axis=-1), (max_length, d))
        self._cos = mg.astype(mg.cos(angles), dtype)
        self._sin = mg.astype(mg.sin(angles), dtype)

    def __call__(self, x: Tensor, offset: int = 0) -> Tensor:
        cos = _rows(self._cos, x, offset, "RotaryPositions")
        sin = _rows(self._sin, x, offset, "RotaryPositions")
        quarter_turn = mg.reshape(mg.stack([-x[..., 1::2], x[..., ::2]], axis=-1), x.shape)
        return x * cos + quarter_turn * sin


def _angles(max_length: int, d: int, layer: str) -> Tensor:
    """t / 10000^(2i/d) for positions t and pairs i: (max_length, d/2), in float64."""
    if d % 2:
        raise ValueError(f"{layer}: expected an even width, as components go in pairs; got {d}")
    pairs = mg.arange(0, d, 2, dtype="float64")
    positions = mg.expand_dims(mg.arange(max_length, dtype="float64"), axis=-1)
    return positions / mg.pow(10000.0, pairs / d)


def _rows(table: Tensor, x: Tensor, offset: int, layer: str) -> Tensor:
    """The rows of a table of positions that belong to x."""
    max_length, d = table.shape
    expect_width(layer, x, d)
    end = offset + x.shape[-2]
    if end > max_length:
        raise ValueError(f"{layer}: a sequence of {end} positions is longer than max_length={max_length}")
    return table[offset:end, :]
