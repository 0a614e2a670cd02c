"""random: one stream of numbers for all backends.

The numbers are drawn on the host by NumPy's Philox generator and then placed on the backend in use, so that one seed
gives the same parameters, batches and dropout masks on NumPy, CuPy, PyTorch and JAX. Philox: J. Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3" (2011). An empty range and a negative ``std`` are a ValueError.
"""

from __future__ import annotations

import reprlib
from functools import cached_property
from typing import Any

import minigrad as mg

from . import backend
from .backend import python_scalar
from .creation import Shape
from .tensor import Tensor

__all__ = [
    "Generator", "integers", "normal", "permutation", "seed", "uniform",
]  # fmt: skip


class Generator:
    """A seeded stream of random numbers. ValueError: a seed that is no int, or negative.

    >>> (mg.random.Generator(7).uniform(3) == mg.random.Generator(7).uniform(3)).tolist()
    [True, True, True]
    """

    def __init__(self, seed: int = 0) -> None:
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed: expected an int that is not negative, got {seed!r}")
        self._seed = seed

    @cached_property
    def _host(self) -> Any:
        return backend.host_generator(self._seed)  # made when first needed, as importing numpy.random takes a while

    def _draw(self, name: str, expected: str, dtype: Any, device: Any, **given: Any) -> Tensor:
        try:
            values = getattr(self._host, name)(*given.values())
        except backend.COMPLAINTS as error:  # in NumPy's names
            listed = ", ".join(f"{option}={value!r:.60}" for option, value in given.items())
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}: expected {expected}, got {listed}") from error
        return mg.asarray(backend.from_numpy(values, device), dtype=dtype)

    def normal(
        self, shape: Shape, mean: float = 0.0, std: float = 1.0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Normally distributed numbers, float64 unless ``dtype`` says otherwise.

        >>> mg.random.Generator(0).normal((2, 3), dtype="float32").dtype
        dtype('float32')
        """
        expected = "a shape and numbers, std not negative"
        return self._draw("normal", expected, dtype, device, mean=mean, std=std, shape=shape)

    def uniform(
        self, shape: Shape, low: float = 0.0, high: float = 1.0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Numbers from [low, high), float64 unless ``dtype`` says otherwise.

        >>> mg.random.Generator(0).uniform((2, 3), dtype="float32").shape
        (2, 3)
        """
        expected = "a shape and finite numbers, low ≤ high"
        return self._draw("uniform", expected, dtype, device, low=low, high=high, shape=shape)

    def integers(self, low: int, high: int, shape: Shape = (), *, dtype: Any = None, device: Any = None) -> Tensor:
        """Integers from [low, high), int64 unless ``dtype`` says otherwise.

        >>> mg.unique_values(mg.random.Generator(0).integers(0, 3, 100)).tolist()
        [0, 1, 2]
        """
        expected = "a shape and ints of 64 bits, low < high"
        if not all(isinstance(python_scalar(n), int) for n in (low, high)):  # NumPy rounds
            raise TypeError(f"integers: expected {expected}, got low={low!r:.60}, high={high!r:.60}")
        return self._draw("integers", expected, dtype, device, low=low, high=high, shape=shape)

    def permutation(self, n: int, *, device: Any = None) -> Tensor:
        """0 … n-1 in random order.

        >>> mg.sort(mg.random.Generator(0).permutation(4)).tolist()
        [0, 1, 2, 3]
        """
        if not isinstance(python_scalar(n), int) or n < 0:  # NumPy takes both
            raise ValueError(f"permutation: expected an int that is not negative, got {n!r:.60}")
        return self._draw("permutation", "an int that is not negative", None, device, n=n)

    @property
    def state(self) -> dict[str, Any]:
        """Where the stream stands, as plain data for JSON. Assign it to go on from there.

        >>> generator = mg.random.Generator(0)
        >>> state, first = generator.state, generator.uniform(3)
        >>> generator.state = state
        >>> (generator.uniform(3) == first).tolist()
        [True, True, True]
        """
        state: dict[str, Any] = backend.plain(self._host.bit_generator.state)
        return state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        other = Generator(0)
        try:
            other._host.bit_generator.state = backend.unplain(state)  # NumPy checks little and pads or cuts the rest
            valid = other.state == state and 0 <= state["buffer_pos"] <= len(state["buffer"])
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            valid = False
        if not valid:
            raise ValueError(f"state: expected what Generator.state gave, got {reprlib.repr(state)}")
        self._host = other._host


default = Generator(0)
"""The generator that initial parameters and dropout use unless given another."""


def seed(value: int) -> None:
    """Start the default generator again from ``value``.

    >>> mg.random.seed(0)
    >>> first = mg.random.uniform(3)
    >>> mg.random.seed(0)
    >>> (mg.random.uniform(3) == first).tolist()
    [True, True, True]
    """
    default.state = Generator(value).state


def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`Generator.normal` of the default generator.

    >>> mg.random.normal((2, 3)).shape
    (2, 3)
    """
    return default.normal(shape, mean, std, dtype=dtype, device=device)


def uniform(shape: Shape, low: float = 0.0, high: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`Generator.uniform` of the default generator.

    >>> mg.random.uniform((2, 3)).shape
    (2, 3)
    """
    return default.uniform(shape, low, high, dtype=dtype, device=device)


def integers(low: int, high: int, shape: Shape = (), *, dtype: Any = None, device: Any = None) -> Tensor:
    """`Generator.integers` of the default generator.

    >>> mg.random.integers(5, 6).item()
    5
    """
    return default.integers(low, high, shape, dtype=dtype, device=device)


def permutation(n: int, *, device: Any = None) -> Tensor:
    """`Generator.permutation` of the default generator.

    >>> mg.random.permutation(3).shape
    (3,)
    """
    return default.permutation(n, device=device)
