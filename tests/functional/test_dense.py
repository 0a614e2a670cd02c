"""linear, layer_norm and rms_norm: agreement with their twins, exact cases, and errors."""

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

leading = st.lists(st.integers(0, 3), max_size=2).map(tuple)
widths = st.integers(1, 5)


def numbers(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = numpy.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def test_a_complex_bias_is_not_made_real() -> None:
    with pytest.raises(TypeError, match=r"linear: expected a real floating-point array, got complex128 \(2,\)"):
        F.linear(tensor([[1.0]]), tensor([[1.0, 2.0]]), tensor([1j, 2j]))


@given(leading, widths, widths, st.booleans(), st.integers(0, 999))
def test_linear_twin(leading: tuple[int, ...], n: int, m: int, bias: bool, seed: int) -> None:
    agree(F.linear, composed.linear, *numbers(seed, (*leading, n), (n, m), *([(m,)] if bias else [])))


@pytest.mark.parametrize("trained", [{"x"}, {"weight"}, {"bias"}, {"x", "bias"}, {"weight", "bias"}])
def test_linear_with_some_arguments_frozen(trained: set[str]) -> None:
    arrays = dict(zip(("x", "weight", "bias"), numbers(0, (4, 3), (3, 2), (2,)), strict=True))
    given = {name: tensor(a, requires_grad=name in trained) for name, a in arrays.items()}
    y = F.linear(**given)
    with mg.no_grad():  # no gradient needs what is frozen, nor what only the gradient of something frozen needs
        for name, used_by in (("x", {"weight"}), ("weight", {"x"}), ("bias", set())):
            if not used_by & trained:
                given[name][...] = 0.0
    mg.sum(y * y).backward()
    G = 2 * (arrays["x"] @ arrays["weight"] + arrays["bias"])
    expected = {"x": G @ arrays["weight"].T, "weight": arrays["x"].T @ G, "bias": G.sum(axis=0)}
    for name in trained:
        assert_allclose(value(given[name].grad), expected[name], rtol=1e-12)


@given(leading, st.integers(2, 5), st.integers(0, 2), st.integers(0, 999))
def test_layer_norm_twin(leading: tuple[int, ...], n: int, parameters: int, seed: int) -> None:
    arrays = numbers(seed, (*leading, n), *[(n,)] * parameters)
    agree(
        lambda *xs: F.layer_norm(*xs, eps=0.01),
        lambda *xs: composed.layer_norm(*xs, eps=0.01),
        *arrays,
    )


@given(leading, widths, st.integers(0, 1), st.integers(0, 999))
def test_rms_norm_twin(leading: tuple[int, ...], n: int, parameters: int, seed: int) -> None:
    arrays = numbers(seed, (*leading, n), *[(n,)] * parameters)
    agree(lambda *xs: F.rms_norm(*xs, eps=0.01), lambda *xs: composed.rms_norm(*xs, eps=0.01), *arrays)


def test_layer_norm_has_mean_0_and_variance_1() -> None:
    [x] = numbers(0, (5, 64))
    y = value(F.layer_norm(tensor(100 + 7 * x), eps=0.0))
    assert_allclose(y.mean(axis=-1), numpy.zeros(5), atol=1e-13)
    assert_allclose(y.var(axis=-1), numpy.ones(5), rtol=1e-13)


def test_rms_norm_of_3_and_4() -> None:
    assert_allclose(
        value(F.rms_norm(tensor([3.0, 4.0]), eps=0.0)), [0.6 * math.sqrt(2), 0.8 * math.sqrt(2)], rtol=1e-15
    )


def test_defaults_are_those_documented() -> None:
    x = numpy.array([1e-3, -1e-3])  # a variance of 1e-6, so that ε is what decides
    assert_allclose(value(F.layer_norm(tensor(x))), x / math.sqrt(1e-6 + 1e-5), rtol=1e-14)
    assert_allclose(value(F.rms_norm(tensor(x))), x / math.sqrt(1e-6 + 1e-6), rtol=1e-14)


@pytest.mark.parametrize("f", [F.layer_norm, F.rms_norm])
def test_constant_features_are_no_division_by_0(f: Any) -> None:
    x = tensor(numpy.zeros((2, 4)), requires_grad=True)
    y = f(x, tensor([1.0, 2.0, 3.0, 4.0]))
    assert_array_equal(value(y), numpy.zeros((2, 4)))
    y.backward(tensor(numpy.ones((2, 4))))
    assert numpy.all(numpy.isfinite(value(x.grad)))


def test_a_bias_without_a_weight() -> None:
    x, b = numbers(1, (3, 4), (4,))
    agree(lambda x, b: F.layer_norm(x, bias=b), lambda x, b: composed.layer_norm(x, bias=b), x, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.linear(x, mg.ones((3, 5))), "linear: expected x of shape (…, in) and weight of shape (in, out)"),
        (lambda x: F.linear(x, mg.ones((4,))), "linear: expected x of shape (…, in) and weight of shape (in, out)"),
        (lambda x: F.linear(x, mg.ones((4, 5)), mg.ones((4,))), "linear: expected bias of shape (5,)"),
        (lambda x: F.layer_norm(x, mg.ones((3,))), "layer_norm: expected weight of shape (4,)"),
        (lambda x: F.layer_norm(x, mg.ones((4,)), mg.ones((1,))), "layer_norm: expected bias of shape (4,)"),
        (lambda x: F.rms_norm(x, mg.ones((2, 4))), "rms_norm: expected weight of shape (4,)"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match="given x: float64 \\(2, 4\\)") as error:
        call(mg.ones((2, 4), dtype="float64"))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
