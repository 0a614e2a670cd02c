"""gradcheck on rules that are right, and on rules that are wrong in every way that rules go wrong."""

from __future__ import annotations

import math
import re

import pytest

import minigrad as mg
from minigrad import gradcheck, gradgradcheck, primitive
from minigrad.autodiff import ALL
from minigrad.gradcheck import GradcheckError

METHODS = ["differences", "complex-step", "projection"]


@pytest.fixture(autouse=True)
def no_trace():
    """The operations defined here do not stay among those that the command line checks."""
    before = dict(ALL)
    yield
    ALL.clear()
    ALL.update(before)


def numbers(*shape, seed=0, dtype="float64"):
    x = mg.random.Generator(seed).normal(shape)
    if dtype == "complex128":
        y = mg.random.Generator(seed + 1).normal(shape)
        return mg.astype(x, dtype) + 1j * mg.astype(y, dtype)
    return mg.astype(x, dtype)


def cube(rule):
    """x³ with the given rule."""

    @primitive
    def cube(xp, x, /):
        return x * x * x

    cube.vjp(x=rule)
    return cube


# ------------------------------------------------------------------------------------------------ right rules pass


@pytest.mark.parametrize("method", METHODS)
def test_right_rules_pass(method):
    f = lambda x, w: [mg.sin(x @ w), mg.sum(mg.exp(x))]
    args = (numbers(2, 3), numbers(3, 2, seed=1))
    entries = 16 if method == "projection" else 12 * 5
    report = gradcheck(f, args, method=method)
    assert report.compared == entries
    assert report.error < (1e-14 if method == "complex-step" else 1e-8)
    assert gradgradcheck(f, args, method=method).error < (1e-13 if method == "complex-step" else 1e-7)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * mg.exp(x) / (1 + x * x),
        lambda x: mg.sum(mg.tanh(x), axis=0),
        lambda x: mg.matmul(x, mg.matrix_transpose(x)),
        lambda x: mg.log(mg.sum(mg.exp(x))),
    ],
)
def test_complex_step_is_exact_to_the_last_digits(f):
    assert gradcheck(f, numbers(2, 3), method="complex-step").error < 1e-14


def test_nested_inputs_and_outputs():
    params = {"w": numbers(3, 2), "b": [numbers(2, seed=1), numbers(seed=2)]}
    f = lambda x, p: {"y": (x @ p["w"] + p["b"][0], p["b"][1] * 2), "loss": mg.sum(mg.square(p["w"]))}
    assert gradcheck(f, (numbers(3), params)).compared == (3 + 6 + 2 + 1) * (2 + 1 + 1)


def test_what_is_no_float_stays_as_it_is():
    indices = mg.asarray([2, 0])
    assert gradcheck(lambda x, i, n, axis: mg.take(x, i, axis=axis) ** n, (numbers(3), indices, 2, 0)).compared == 6
    assert gradcheck(lambda x: (mg.max(x), mg.argmax(x)), numbers(3)).compared == 3


def test_only_what_requires_a_gradient_is_checked_where_anything_does():
    x, target = numbers(3), numbers(3, seed=1)
    x.requires_grad = True
    assert gradcheck(lambda x, t: mg.sum(mg.square(x - t.detach())), (x, target)).compared == 3
    assert x.grad is None


def test_a_raw_array_is_an_input():
    assert gradcheck(mg.exp, numbers(3).data).compared == 9


def test_arrays_without_elements():
    assert gradcheck(mg.exp, mg.zeros((0, 3), dtype="float64")) == (0.0, 0)


def test_inputs_are_left_alone():
    x = numbers(2, 3)
    before = x.tolist()

    def writes(x):
        y = x * 1
        y[0, 0] = 5.0
        return y

    gradcheck(writes, x)
    assert x.tolist() == before


def test_large_and_small_arguments():
    # A step of 6e-6 would drown in the rounding of 1e9; close to 0 it may be too long, and is an argument.
    assert gradcheck(mg.square, mg.asarray([1e9, -3e7, 1.0], dtype="float64")).error < 1e-6
    assert gradcheck(mg.log, mg.asarray([1e-3], dtype="float64"), eps=1e-7).error < 1e-6


def test_rounding_of_a_large_result_is_no_wrong_derivative():
    gradcheck(lambda x: 1e8 + mg.sum(mg.sin(x)), numbers(4))
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: 1e8 + mg.sum(mg.sin(x)), numbers(4), atol=0.0)


def test_both_zero_is_equal_without_an_absolute_tolerance():
    assert gradcheck(lambda x: x * 0, numbers(2), atol=0.0).error == 0


# ------------------------------------------------------------------------------------------------ complex numbers


def test_complex_inputs_follow_the_convention_of_backward():
    assert gradcheck(lambda z: mg.abs(z) * z, numbers(2, dtype="complex128")).compared == 4 * 4
    assert gradcheck(mg.exp, numbers(2, dtype="complex128")).compared == 4 * 4
    gradgradcheck(lambda z, x: mg.real(mg.conj(z) * mg.exp(z)) * x, (numbers(2, dtype="complex128"), numbers(2)))
    gradcheck(lambda z: mg.exp(z), numbers(5, dtype="complex128"), method="projection")


def test_a_conjugate_that_is_missing():
    @primitive
    def modulus2(xp, z, /):
        return xp.real(z * xp.conj(z))

    modulus2.vjp(z=lambda g, z: 2 * g * z)  # should be conj(z)
    with pytest.raises(GradcheckError, match=r"output\[\d\] by the imaginary part of input 0\[\d\]"):
        gradcheck(modulus2, numbers(2, dtype="complex128"))


# ------------------------------------------------------------------------------------------------ wrong rules fail


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "rule",
    [lambda g, x: 2 * g * x * x, lambda g, x: 3 * g * x, lambda g, x: -3 * g * x * x, lambda g, x: g * 0],
    ids=["factor", "power", "sign", "zero"],
)
def test_a_wrong_factor(rule, method):
    with pytest.raises(GradcheckError):
        gradcheck(cube(rule), numbers(2, 3), method=method)


def test_the_message_names_entries_values_and_error():
    @primitive
    def f(xp, x, y, /):
        return x * y

    f.vjp(x=lambda g, y: g * y, y=lambda g, xp, x: g * xp.where(x == 6, 1.5 * x, x))  # wrong where x is 6
    x = mg.reshape(mg.arange(1.0, 7.0, dtype="float64"), (2, 3))
    with pytest.raises(GradcheckError) as failure:
        gradcheck(f, (x, 2 * x))
    message = str(failure.value)
    assert message.startswith("gradcheck: the derivative of output[1, 2] by input 1[1, 2] is wrong: the rule gives 9, ")
    assert float(re.search(r"differences give ([\d.e+-]+),", message)[1]) == pytest.approx(6, rel=1e-8)
    assert "relative error 0.33 (allowed: 1e-06)" in message
    assert "1 of 72 derivatives are wrong" in message
    assert failure.value.error == pytest.approx(1 / 3)
    assert isinstance(failure.value, AssertionError)
    with pytest.raises(GradcheckError, match=r"input 1 along a random direction .* 8 of 16 derivatives"):
        gradcheck(f, (x, 2 * x), method="projection")


def test_the_message_names_a_place_in_nested_inputs():
    wrong = cube(lambda g, x: g * x)
    with pytest.raises(GradcheckError, match=r"output\['y'\]\[1\]\[0\] by input 0\['w'\]\[0\]\[0\] is"):
        gradcheck(lambda p: {"y": [p["b"] * 1, wrong(p["w"][0])]}, {"w": [numbers(1)], "b": numbers(1)})


def test_a_missing_term():
    @primitive
    def softmax(xp, x, /):
        e = xp.exp(x)
        return e / xp.sum(e)

    softmax.vjp(x=lambda g, out: g * out)  # lacks - out Σ g out
    with pytest.raises(GradcheckError):
        gradcheck(softmax, numbers(4))


def test_a_missing_rule():
    @primitive
    def product(xp, x, y, /):
        return x * y

    product.vjp(x=lambda g, y: g * y)
    with pytest.raises(GradcheckError, match=r"by input 1\[\d\] is wrong: the rule gives 0,"):
        gradcheck(product, (numbers(2), numbers(2)))


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_that_is_wrong_only_in_its_second_derivative(method):
    # The slope has the right values, but nothing says that it depends on x.
    f = cube(lambda g, x: 3 * g * (mg.square(x).detach() if type(x) is mg.Tensor else x * x))
    x = numbers(3)
    gradcheck(f, x, method=method)
    with pytest.raises(GradcheckError, match=r"^gradgradcheck: the derivative of the .*by input 0"):
        gradgradcheck(f, x, method=method)


def test_a_nan_or_infinite_gradient():
    for wrong, value in (
        (lambda g, xp: xp.full_like(g, math.nan), "nan"),
        (lambda g, xp: xp.full_like(g, math.inf), "inf"),
    ):
        with pytest.raises(GradcheckError, match=f"the rule gives {value}, central differences give") as failure:
            gradcheck(cube(wrong), numbers(3))
        assert failure.value.error == math.inf


def test_one_wrong_entry_of_many_shows_in_a_projection():
    @primitive
    def f(xp, x, /):
        return xp.sin(x)

    def rule(g, xp, x):
        slope = xp.cos(x)
        return g * xp.where(x == xp.max(x), 1.01 * slope, slope)

    f.vjp(x=rule)
    x = numbers(100, 100)
    with pytest.raises(GradcheckError, match="the output by input 0 along a random direction"):
        gradcheck(f, x, method="projection")
    gradcheck(mg.sin, x, method="projection")


def test_an_error_of_one_in_a_hundred_thousand():
    with pytest.raises(GradcheckError):
        gradcheck(cube(lambda g, x: 3.00003 * g * x * x), numbers(3))
    gradcheck(cube(lambda g, x: 3.00003 * g * x * x), numbers(3), rtol=1e-4)


def test_a_small_error_that_only_the_complex_step_sees():
    slightly = cube(lambda g, x: 3.00000000003 * g * x * x)
    gradcheck(slightly, numbers(3))
    with pytest.raises(GradcheckError, match="the complex step gives"):
        gradcheck(slightly, numbers(3), method="complex-step")


def test_a_function_that_is_none():
    with pytest.raises(GradcheckError, match="Two calls of the function differ"):
        gradcheck(lambda x: x * mg.random.normal(x.shape), numbers(3))


# ------------------------------------------------------------------------------------------------ errors of the call


def test_float32_is_refused():
    with pytest.raises(TypeError, match=r"gradcheck: input 1 is float32 \(3,\) on .*float64 or complex128"):
        gradcheck(mg.add, (numbers(3), numbers(3, dtype="float32")))
    with pytest.raises(TypeError, match=r"gradgradcheck: input 0 is complex64"):
        gradgradcheck(mg.exp, mg.astype(numbers(3, dtype="complex128"), "complex64"))
    with pytest.raises(TypeError, match=r"gradcheck: output is float32"):
        gradcheck(lambda x: mg.astype(x, "float32"), numbers(3))


def test_nothing_to_differentiate_by():
    with pytest.raises(TypeError, match="expected floating-point Tensors to differentiate by"):
        gradcheck(lambda i: i, mg.asarray([1, 2]))


def test_a_result_that_cannot_be_differentiated():
    with pytest.raises(TypeError, match="expected the function to return floating-point Tensors, got Tensor"):
        gradcheck(mg.argmax, numbers(2))
    with pytest.raises(TypeError, match=r"gradcheck: expected the function to return Tensors, got 1\.0"):
        gradcheck(lambda x: 1.0, numbers(2))


@pytest.mark.parametrize("wrong", [{"eps": 0.0}, {"rtol": 0.0}, {"atol": -1.0}, {"eps": math.nan}])
def test_tolerances_that_mean_nothing(wrong):
    with pytest.raises(ValueError, match="must be positive"):
        gradcheck(mg.exp, numbers(2), **wrong)


def test_an_unknown_method():
    with pytest.raises(ValueError, match="unknown method 'forward'; known: differences, complex-step, projection"):
        gradcheck(mg.exp, numbers(2), method="forward")


def test_complex_step_wants_real_inputs():
    with pytest.raises(TypeError, match="the complex step needs real inputs"):
        gradcheck(mg.exp, numbers(2, dtype="complex128"), method="complex-step")


def test_complex_step_says_what_is_not_analytic():
    with pytest.raises(TypeError, match=r"output is real for complex inputs.*use abs"):
        gradcheck(mg.abs, numbers(3), method="complex-step")
    with pytest.raises(TypeError, match=r"the function is not analytic.*use abs"):
        gradcheck(lambda x: mg.abs(x) * x, numbers(3), method="complex-step")
    if mg.get_backend() != "jax":  # which takes atan2 of complex numbers for something else
        with pytest.raises(TypeError, match=r"does not accept complex numbers.*atan2"):
            gradcheck(lambda x: mg.atan2(x, x + 3), numbers(3), method="complex-step")


def test_the_functions_have_the_name_of_their_module():
    import minigrad.gradcheck  # which must not put the module in the function's place

    assert mg.gradcheck is gradcheck
    assert callable(minigrad.gradcheck)
