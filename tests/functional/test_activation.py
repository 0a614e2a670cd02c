"""relu, silu, gelu and the error function: agreement with their twins, accuracy, and the ends of the range."""

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


def gelu_tanh(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


PAIRS = [
    (F.relu, composed.relu),
    (F.sigmoid, lambda x: 1 / (1 + mg.exp(-x))),
    (F.silu, composed.silu),
    (F.erf, composed.erf),
    (F.gelu, composed.gelu),
    (gelu_tanh, lambda x: composed.gelu(x, "tanh")),
]


@pytest.mark.parametrize(("f", "twin"), PAIRS)
@given(shape=st.lists(st.integers(0, 4), max_size=3), seed=st.integers(0, 999))
def test_twin(f: Any, twin: Any, shape: list[int], seed: int) -> None:
    agree(f, twin, numpy.asarray(numpy.random.default_rng(seed).uniform(-4, 4, shape)), tolerance=3e-14)


def test_erf_is_exact_to_the_last_digits() -> None:
    x = numpy.concatenate([numpy.linspace(0, 6.5, 20_001), 10.0 ** numpy.arange(-307.0, 0)])
    exact = numpy.array([math.erf(t) for t in x])
    assert_allclose(value(F.erf(tensor(x))), exact, rtol=5e-16)
    assert_array_equal(value(F.erf(tensor(-x))), -value(F.erf(tensor(x))))


def test_erf_in_float32() -> None:
    x = numpy.concatenate([numpy.linspace(0, 6.5, 20_001), 10.0 ** numpy.arange(-37.0, 0)]).astype(numpy.float32)
    y = F.erf(tensor(x))
    assert y.dtype == tensor(x).dtype
    assert_allclose(value(y), [math.erf(t) for t in x], rtol=4e-7)  # three units in the last place


def test_erf_at_the_ends() -> None:
    for dtype in (numpy.float64, numpy.float32):
        big = numpy.finfo(dtype).max
        x = tensor(numpy.array([-math.inf, -big, -0.0, 0.0, big, math.inf, math.nan], dtype=dtype))
        assert_array_equal(value(F.erf(x)), [-1, -1, 0, 0, 1, 1, math.nan])


def test_published_values() -> None:
    # The normal distribution function at 1 and 2 (Abramowitz & Stegun, table 26.1), the logistic function at ln 3.
    y = value(F.gelu(tensor([-1.0, 1.0, 2.0])))
    assert_allclose(y, [-(1 - 0.841344746068543), 0.841344746068543, 2 * 0.977249868051821], rtol=1e-14)
    assert_allclose(value(F.silu(tensor([math.log(3), -math.log(3)]))), math.log(3) * numpy.array([0.75, -0.25]))


def test_the_tanh_approximation_is_close_and_not_the_same() -> None:
    x = tensor(numpy.linspace(-6, 6, 1001))
    difference = numpy.abs(value(F.gelu(x) - gelu_tanh(x))).max()
    assert 1e-4 < difference < 1e-3


def test_the_tanh_approximation_is_exact_far_left_in_float32() -> None:
    """Where 1 + tanh u is nothing but rounding: at -5, Φ is the sigmoid of -16.9, 4.6e-8."""
    x = numpy.array([-3.0, -5.0, -8.0])
    v = math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)
    assert_allclose(value(gelu_tanh(tensor(x.astype("float32")))), x / (1 + numpy.exp(-v)), rtol=1e-5)


@pytest.mark.parametrize("f", [F.relu, F.silu, F.gelu, gelu_tanh])
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
def test_large_numbers_pass_or_vanish(f: Any, dtype: Any) -> None:
    x = tensor(numpy.array([-1e6, -1e3, 1e3, 1e6], dtype=dtype), requires_grad=True)
    y = f(x)
    assert_array_equal(value(y), [0, 0, 1e3, 1e6])
    y.backward(tensor(numpy.ones(4, dtype=dtype)))
    assert_array_equal(value(x.grad), [0, 0, 1, 1])


def test_silu_keeps_its_digits_in_the_tail() -> None:
    assert_allclose(value(F.silu(tensor([-50.0, -700.0]))), [-50 * math.exp(-50), -700 * math.exp(-700)], rtol=1e-14)


def test_relu_is_flat_at_0_and_passes_nan_on() -> None:
    x = tensor([-1.0, 0.0, 1.0, math.nan], requires_grad=True)
    y = F.relu(x)
    assert_array_equal(value(y), [0, 0, 1, math.nan])
    y.backward(tensor([1.0, 1.0, 1.0, 1.0]))
    assert_array_equal(value(x.grad)[:3], [0, 0, 1])


@pytest.mark.parametrize("f", [F.relu, F.sigmoid, F.silu, F.gelu, gelu_tanh, F.erf])
def test_complex_numbers_are_refused(f: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^\w+: expected .*real.*, got complex128 \(1,\) \(given x: complex128 \(1,\) "
    ):
        f(tensor(numpy.array([1j])))


def test_gelu_names_its_approximations() -> None:
    with pytest.raises(ValueError, match=r"^gelu: expected approximate='none' or 'tanh', got 'fast'"):
        F.gelu(mg.ones((2,)), approximate="fast")


@pytest.mark.parametrize("x", [0.0, -1.0, 3.0])
def test_the_second_derivative_of_silu(x: float) -> None:
    """s(1 − s) (2 + x (1 − 2s)); ½ at 0, where s is written with |x|, too."""
    s = 1 / (1 + math.exp(-x))
    assert_allclose(value(mg.grad(mg.grad(F.silu))(tensor(x))), s * (1 - s) * (2 + x * (1 - 2 * s)), rtol=1e-14)
    assert mg.gradgradcheck(F.silu, [tensor(numpy.array([x]))])
