"""Every hand-derived rule against finite differences, to second order: the examples that each operation gives."""

from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose

import attention.functional as F
import minigrad as mg
from minigrad import autodiff
from minigrad.autodiff import Example, Primitive
from minigrad.gradcheck import gradcheck, gradgradcheck, prepared

OPERATIONS = {name: op for name, op in autodiff.ALL.items() if name.startswith("attention.functional.")}
EXAMPLES = [
    pytest.param(op, example, id=f"{op.__name__}-{i}")
    for op in OPERATIONS.values()
    for i, example in enumerate(op.examples)
]


def test_every_public_operation_is_checked() -> None:
    assert {op.__name__.lstrip("_") for op in OPERATIONS.values()} == set(F.__all__)
    assert all(op.examples for op in OPERATIONS.values())


@pytest.mark.parametrize(("op", "example"), EXAMPLES)
def test_first_derivative(op: Primitive[Any], example: Example) -> None:
    assert gradcheck(*prepared(op, example)).compared > 0


@pytest.mark.parametrize(("op", "example"), EXAMPLES)
def test_second_derivative(op: Primitive[Any], example: Example) -> None:
    assert gradgradcheck(*prepared(op, example)).compared > 0


def test_only_what_is_wanted_is_computed_and_it_is_the_same() -> None:
    """Joint rules skip the gradients that nobody asked for."""
    rng = numpy.random.default_rng(0)
    cases: list[tuple[Any, list[Any]]] = [
        (F.layer_norm, [rng.normal(size=s) for s in ((3, 4), (4,), (4,))]),
        (F.rms_norm, [rng.normal(size=s) for s in ((3, 4), (4,))]),
        (F.scaled_dot_product_attention, [rng.normal(size=s) for s in ((3, 4), (5, 4), (5, 2), (3, 5))]),
    ]
    for f, arrays in cases:
        together = mg.grad(lambda *xs, f=f: mg.sum(mg.sin(f(*xs))), argnums=range(len(arrays)))(*map(tensor, arrays))
        for i, expected in enumerate(together):
            alone = mg.grad(lambda *xs, f=f: mg.sum(mg.sin(f(*xs))), argnums=i)(*map(tensor, arrays))
            assert_allclose(value(alone), value(expected), rtol=1e-14, atol=1e-15)


@pytest.mark.skipif(mg.get_backend() != "numpy", reason="the arrays are NumPy's, the backend in use is another")
def test_operations_follow_their_arrays_whichever_backend_is_in_use() -> None:
    pytest.importorskip("array_api_strict")
    rng = numpy.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)), rng.normal(size=(4,))
    target = numpy.array([1, -100, 3])

    def f(x: Any, w: Any) -> Any:
        y = F.layer_norm(F.gelu(F.silu(x)), w)
        y = F.scaled_dot_product_attention(y, y, y, numpy.array([True, False, True]), 0.5, True)
        return F.cross_entropy(F.dropout(F.softmax(y), 0.1), target)

    def derivatives(dtype: str) -> list[Any]:
        mg.random.seed(0)
        arrays = [mg.Tensor(a.astype(dtype)) for a in (x, w)]
        first = mg.grad(f)(*arrays)
        mg.random.seed(0)
        second = mg.hvp(lambda x: f(x, arrays[1]), [arrays[0]], [arrays[0]])
        return [value(first), value(second)]

    for dtype in ("float64", "float16"):
        expected = derivatives(dtype)
        with mg.use_backend("array_api_strict"):
            found = derivatives(dtype)
        numpy.testing.assert_array_equal(found, expected)
