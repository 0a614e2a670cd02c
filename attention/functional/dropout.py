"""dropout: elements set to zero by chance."""

from __future__ import annotations

from numbers import Real
from typing import Any

import minigrad as mg
from minigrad import Tensor, primitive
from minigrad.backend import Array
from minigrad.random import Generator

from ._numerics import library


def dropout(x: Array, p: float = 0.5, training: bool = True, generator: Generator | None = None) -> Tensor:
    """Each element of x set to 0 with probability ``p``, the others divided by 1 − p, so that the mean stays.

    (N. Srivastava et al., "Dropout", JMLR 15, 2014, pages 1929-1958.) With ``training=False`` x as it is. The choice
    comes from ``generator`` (`minigrad.random.default`), whose stream is the same on every backend.

    Raises ValueError for a ``p`` outside of [0, 1].

    >>> sorted({*dropout(mg.ones(100), p=0.75).tolist()})
    [0.0, 4.0]
    >>> dropout(mg.ones(2), p=0.75, training=False).tolist()
    [1.0, 1.0]
    """
    check_probability("dropout", "p", p)
    tensor = mg.asarray(x)
    if training and p > 0:
        tensor = _dropout(tensor, chosen(tensor, tensor.shape, p, generator), p=p)
    return tensor


@primitive
def _dropout(xp: Any, x: Array, kept: Array, /, *, p: float) -> Array:
    """x / (1 − p) where ``kept`` holds, else 0. A diagonal matrix is its own transpose: so is the gradient."""
    return xp.where(kept, x, 0.0) * inverse_of_kept(p)


_dropout.vjp(x=lambda g, xp, kept, p: _dropout.raw(xp)(g, kept, p=p))
_dropout.example((2, 3), lambda: mg.asarray([[True, False, True], [False, True, True]]), p=0.4)


def check_probability(operation: str, name: str, p: float) -> None:
    """ValueError unless p is a probability."""
    if not isinstance(p, Real) or not 0 <= float(p) <= 1:
        raise ValueError(f"{operation}: expected {name} between 0 and 1, got {p!r}")


def inverse_of_kept(p: float) -> float:
    """1 / (1 − p), the factor of what is kept; for p = 1, where nothing is, 0."""
    return 1 / (1 - p) if p < 1 else 0.0


def chosen(x: Tensor, shape: tuple[int, ...], p: float, generator: Generator | None) -> Array:
    """Which elements are kept, each with probability 1 − p: booleans of ``shape``, in the library and device of x."""
    with mg.use_backend("numpy"):  # chosen on the host, so that one byte for each element goes to the device
        kept = (generator or mg.random.default).uniform(shape) >= p
    return library(mg, x).asarray(kept.numpy(), device=x.device)
