"""What a token is and where it stands: embeddings, and the three ways to tell positions apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from .module import Module, expect_positive, expect_width, parameter

LARGEST_TABLE = 1 << 27  # numbers: a million positions of width 128


class Embedding(Module):
    """Row ``indices`` of a table: integers of shape (...) become vectors of shape (..., embedding_dim).

    The table, ``weight`` of shape (num_embeddings, embedding_dim), is drawn from N(0, std²).

    Examples
    --------
    >>> Embedding(10, 4)(mg.asarray([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        std: float = 1.0,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        generator = generator or mg.random.default
        self.weight = parameter(generator.normal((num_embeddings, embedding_dim), std=std, dtype=dtype))

    def __call__(self, indices: Tensor) -> Tensor:
        """The rows at ``indices``. Raises TypeError for indices that are no integers."""
        return F.embedding(indices, self.weight)


class SinusoidalPositions(Module):
    """x plus a fixed wave for each pair of its components, so that every position has a pattern of its own:

        PE[t, 2i] = sin(t / 10000^(2i/d)),    PE[t, 2i+1] = cos(t / 10000^(2i/d))    with d = d_model

    A. Vaswani et al., "Attention is all you need" (2017), arXiv:1706.03762, section 3.5. With ``halves`` all sines come
    first, then all cosines, as in the weights of Marian. Raises ValueError for an odd d_model.

    Examples
    --------
    >>> SinusoidalPositions(10, 4)(mg.zeros((2, 4)))[0, ...].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, max_length: int, d_model: int, dtype: Any = "float32", *, halves: bool = False) -> None:
        angles = _angles(max_length, d_model, "SinusoidalPositions")
        waves = mg.stack([mg.sin(angles), mg.cos(angles)], axis=-2 if halves else -1)
        table = mg.reshape(waves, (max_length, d_model))
        self._table = mg.astype(table, dtype)

    def __call__(self, x: Tensor, offset: int = 0) -> Tensor:
        """For x of shape (..., T, d_model), whose first vector stands at position ``offset``.

        Raises ValueError for an x of another width or a sequence that goes beyond ``max_length``.
        """
        expect_width("SinusoidalPositions", x, self._table.shape[1], axes=2)
        return x + _rows(self._table, x.shape[-2], offset, "SinusoidalPositions")


class LearnedPositions(Module):
    """x plus a learned vector for each position: a table, ``weight`` of shape (max_length, d_model), from N(0, std²).

    A. Radford, J. Wu, R. Child, D. Luan, D. Amodei and I. Sutskever, "Language models are unsupervised multitask
    learners", OpenAI (2019), known as GPT-2.

    Examples
    --------
    >>> LearnedPositions(10, 4)(mg.zeros((2, 5, 4))).shape
    (2, 5, 4)
    """

    def __init__(
        self,
        max_length: int,
        d_model: int,
        std: float = 0.02,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("LearnedPositions", max_length=max_length, d_model=d_model)
        generator = generator or mg.random.default
        self.weight = parameter(generator.normal((max_length, d_model), std=std, dtype=dtype))

    def __call__(self, x: Tensor, offset: int = 0, positions: Tensor | None = None) -> Tensor:
        """For x of shape (..., T, d_model), whose first vector stands at position ``offset``.

        Where they do not stand one after the other, ``positions`` of shape (..., T) says where: integers, none of them
        beyond the last one without it. Raises ValueError for an x of another width or a sequence that goes beyond
        ``max_length``.
        """
        expect_width("LearnedPositions", x, self.weight.shape[1], axes=2)
        rows = _rows(self.weight, x.shape[-2], offset, "LearnedPositions")
        return x + (rows if positions is None else F.embedding(positions, self.weight))


class RotaryPositions(Module):
    """Queries and keys turned by an angle proportional to their position, pair of components by pair:

        (x[2i], x[2i+1])  →  (x[2i] cos tθ_i - x[2i+1] sin tθ_i,  x[2i] sin tθ_i + x[2i+1] cos tθ_i)

    with θ_i = 10000^(-2i/d_head). A product of a query at position m and a key at n then depends on m - n alone, as
    ⟨R_m q, R_n k⟩ = ⟨q, R_(n-m) k⟩. J. Su et al., "RoFormer: Enhanced Transformer with rotary position embedding"
    (2021), arXiv:2104.09864, equation 34. Give it to `MultiHeadAttention`. Raises ValueError for an odd d_head.

    Parameters
    ----------
    base
        What stands for 10000.
    rescale
        A function of the θ, (d_head/2,) in float64, to those that are used: for texts longer than those of training.
    halves
        Which components make a pair: with ``halves`` x[i] and x[i + d_head/2], as in the weights that are published
        for LLaMA. The order of components means nothing to a model that is trained with it.

    Examples
    --------
    >>> RotaryPositions(10, 4)(mg.ones((2, 5, 4))).shape
    (2, 5, 4)
    """

    def __init__(
        self,
        max_length: int,
        d_head: int,
        dtype: Any = "float32",
        *,
        base: float = 10000.0,
        rescale: Callable[[Tensor], Tensor] | None = None,
        halves: bool = False,
    ) -> None:
        angles = _angles(max_length, d_head, "RotaryPositions", base, rescale)
        self.halves = halves
        self._cos = mg.astype(mg.cos(angles), dtype)
        self._sin = mg.astype(mg.sin(angles), dtype)
        self._latest: tuple[Any, Any] = None, None  # queries and keys of all layers are turned by the same angles

    def __call__(self, x: Tensor, offset: int = 0) -> Tensor:
        """For x of shape (..., T, d_head), whose first vector stands at position ``offset``.

        Raises ValueError for an x of another width or a sequence that goes beyond ``max_length``.
        """
        expect_width("RotaryPositions", x, 2 * self._cos.shape[1], axes=2)
        which, angles = self._latest
        if which != (x.shape[-2], offset):
            angles = [_rows(table, x.shape[-2], offset, "RotaryPositions") for table in (self._cos, self._sin)]
            if self._cos.backend == "numpy":  # other libraries have compilers, whose stand-ins for arrays must not stay
                self._latest = (x.shape[-2], offset), angles
        turned: Tensor = F.rotary(x, *angles, halves=self.halves)
        return turned


def _angles(
    max_length: int,
    d: int,
    layer: str,
    base: float = 10000.0,
    rescale: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """tθ_i with θ_i = base^(-2i/d), for positions t and pairs i: (max_length, d/2), in float64."""
    expect_positive(layer, max_length=max_length, width=d)
    if d % 2:
        raise ValueError(f"{layer}: expected an even width, as components go in pairs; got {d}")
    if max_length * d > LARGEST_TABLE:
        raise ValueError(f"{layer}: expected max_length · width up to {LARGEST_TABLE:,}, got {max_length:,} · {d:,}")
    if not isinstance(base, Real) or not 0 < base < math.inf:
        raise ValueError(f"{layer}: expected a base > 0, got {base!r}")
    theta = mg.pow(base, -mg.arange(0, d, 2, dtype="float64") / d)
    positions = mg.expand_dims(mg.arange(max_length, dtype="float64"), axis=-1)
    return positions * (theta if rescale is None else rescale(theta))


def _rows(table: Tensor, length: int, offset: int, layer: str) -> Tensor:
    """The rows of a table of positions that belong to a sequence."""
    if offset < 0:
        raise ValueError(f"{layer}: expected an offset of 0 or more, got {offset}")
    max_length, end = table.shape[0], offset + length
    if end > max_length:
        raise ValueError(f"{layer}: a sequence of {end} positions is longer than max_length={max_length}")
    return table[offset:end, :]
