"""What the tests share: how arrays are made on the backend under test, and derivatives by finite differences.

Nothing in a test file knows which backend it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest

import minigrad as mg
from minigrad import backend

not_on_jax = pytest.mark.skipif(
    backend.current().name == "jax", reason="the same on every backend, and JAX compiles its operations for minutes"
)


def tensor(values: Any, requires_grad: bool = False) -> mg.Tensor:
    """A Tensor with a copy of NumPy's ``values``, on the backend and device under test."""
    made = mg.asarray(backend.from_numpy(numpy.array(values)))
    made.requires_grad = requires_grad
    return made


def value(x: Any) -> Any:
    """A copy of the values of a Tensor, or raw array, as a NumPy array."""
    return numpy.array(backend.to_numpy(x._data if type(x) is mg.Tensor else x))


def numeric_gradient(f: Callable[..., Any], arrays: Sequence[Any], i: int, step: float = 1e-6) -> Any:
    """The gradient of the real scalar ``f(*arrays)`` with respect to ``arrays[i]``, by central differences.

    For a complex array the derivative along the real axis + i times the one along the imaginary axis.
    """
    gradient = numpy.zeros_like(arrays[i])
    for position in numpy.ndindex(arrays[i].shape):
        for direction in (1, 1j) if numpy.iscomplexobj(gradient) else (1,):
            ends = []
            for sign in (1, -1):
                moved = [numpy.array(x) for x in arrays]
                moved[i][position] += sign * direction * step
                ends.append(f(*moved))
            gradient[position] += direction * (ends[0] - ends[1]) / (2 * step)
    return gradient


def check(
    f: Callable[..., Any],
    reference: Callable[..., Any],
    *arrays: Any,
    differentiable: Sequence[int] | None = None,
    rtol: float = 1e-6,
) -> None:
    """Hold value, shape and dtype of ``f`` against NumPy's ``reference``, its gradients against finite differences."""
    chosen = range(len(arrays)) if differentiable is None else differentiable
    inputs = [tensor(a, requires_grad=i in chosen) for i, a in enumerate(arrays)]
    out = f(*inputs)
    expected = numpy.asarray(reference(*arrays))
    assert type(out) is mg.Tensor
    assert out.shape == expected.shape
    assert backend.dtype_name(out.dtype) == expected.dtype.name
    numpy.testing.assert_allclose(value(out), expected, rtol=1e-12, atol=1e-13)

    rng = numpy.random.default_rng(1)
    seed = rng.normal(size=expected.shape)
    if numpy.iscomplexobj(expected):
        seed = seed + 1j * rng.normal(size=expected.shape)
    out.backward(tensor(seed))
    for i in chosen:
        numeric = numeric_gradient(lambda *a: numpy.sum(numpy.conj(seed) * reference(*a)).real, arrays, i)
        found = inputs[i].grad
        assert found is not None
        assert found.shape == arrays[i].shape
        assert found.dtype == inputs[i].dtype
        numpy.testing.assert_allclose(value(found), numeric, rtol=rtol, atol=1e-7, err_msg=f"gradient {i}")
