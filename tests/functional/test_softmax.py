"""softmax and log_softmax: agreement with their twins, and the edges of their numerics."""

import math
from typing import Any

import composed
import numpy
import pytest
from checks import tensor, value
from composed import agree
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import attention.functional as F
import minigrad as mg

PAIRS = [(F.softmax, composed.softmax), (F.log_softmax, composed.log_softmax)]


@pytest.mark.parametrize(("f", "twin"), PAIRS)
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3), data=st.data())
def test_twin(f: Any, twin: Any, shape: list[int], data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = numpy.random.default_rng(data.draw(st.integers(0, 999))).normal(0, 3, shape)
    agree(lambda x: f(x, axis=axis), lambda x: twin(x, axis), x)


def test_axis_by_position() -> None:
    x = tensor(numpy.arange(6.0).reshape(2, 3))
    assert_array_equal(value(F.softmax(x, 0)), value(F.softmax(x, axis=0)))


def test_published_values() -> None:
    # ln of 1, 2, 3, 4 are the logarithms of numbers that sum to 10.
    x = tensor(numpy.log(numpy.arange(1.0, 5.0)))
    assert_allclose(value(F.softmax(x)), [0.1, 0.2, 0.3, 0.4], rtol=1e-15)
    assert_allclose(value(F.log_softmax(x)), numpy.log([0.1, 0.2, 0.3, 0.4]), rtol=1e-15)


@pytest.mark.parametrize("offset", [1e4, -1e4, 1e300, -1e300])
def test_a_constant_changes_nothing(offset: float) -> None:
    x = numpy.zeros(4)
    assert_allclose(value(F.softmax(tensor(x + offset))), [0.25] * 4, rtol=1e-15)
    assert_allclose(value(F.log_softmax(tensor(x + offset))), [-math.log(4)] * 4, rtol=1e-15)


def test_log_softmax_is_exact_where_softmax_is_0() -> None:
    x = tensor([0.0, -2000.0])
    assert_array_equal(value(F.softmax(x)), [1, 0])
    assert_array_equal(value(F.log_softmax(x)), [0, -2000])


def test_minus_infinity_has_no_weight_and_no_gradient() -> None:
    x = tensor([[1.0, -math.inf, 2.0], [-math.inf, -math.inf, -math.inf]], requires_grad=True)
    y = F.softmax(x)
    assert_allclose(value(y)[0, [0, 2]], value(F.softmax(tensor([1.0, 2.0]))), rtol=1e-15)
    assert_array_equal(value(y)[0, 1], 0)
    assert_array_equal(value(y)[1], [0, 0, 0])
    y.backward(tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert_array_equal(value(x.grad)[[0, 1, 1, 1], [1, 0, 1, 2]], 0)
    assert numpy.all(value(x.grad)[0, [0, 2]] != 0)
    assert_array_equal(value(F.log_softmax(x))[1], [-math.inf] * 3)


@pytest.mark.parametrize("f", [F.softmax, F.log_softmax])
def test_nan_and_plus_infinity_spoil_their_row_alone(f: Any) -> None:
    y = value(f(tensor([[0.0, math.nan], [0.0, math.inf], [0.0, 0.0]])))  # and no warning of inf − inf
    assert numpy.all(numpy.isnan(y[:2]))
    assert numpy.all(numpy.isfinite(y[2]))


@pytest.mark.parametrize("f", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_empty(f: Any, shape: tuple[int, ...]) -> None:
    x = tensor(numpy.zeros(shape), requires_grad=True)
    y = f(x)
    assert y.shape == shape
    y.backward(y.detach())
    assert x.grad is not None
    assert x.grad.shape == shape


def test_the_gradient_of_a_row_sums_to_0() -> None:
    """A constant added to a row changes nothing, so the gradient has no part along it."""
    x = tensor(numpy.random.default_rng(0).normal(size=(5, 7)), requires_grad=True)
    mg.sum(F.softmax(x) ** 3).backward()
    assert_allclose(value(mg.sum(x.grad, axis=-1)), numpy.zeros(5), atol=1e-15)


def test_integers_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"^softmax: expected a real floating-point array, got int64 \(2,\)") as error:
        F.softmax(tensor([1, 2]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("f", [F.softmax, F.log_softmax])
@pytest.mark.parametrize(
    ("shape", "axis", "message"),
    [
        ((2, 3), 2, r"expected axis between -2 and 1 \(given x: float64 \(2, 3\) on .*, axis: 2\)"),
        ((2, 3), -3, r"expected axis between -2 and 1 \(given x: float64 \(2, 3\) on .*, axis: -3\)"),
        ((), -1, "expected an array of at least one axis"),
    ],
)
def test_an_axis_that_is_not_there(f: Any, shape: tuple[int, ...], axis: int, message: str) -> None:
    with pytest.raises(IndexError, match=rf"^{f}: {message}"):
        f(tensor(numpy.zeros(shape)), axis)
