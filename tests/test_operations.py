"""Every primitive: its value against NumPy, its derivatives against finite differences of NumPy's function."""

import math
import types
from typing import Any, NamedTuple

import numpy
import pytest
from checks import check, numeric_gradient, tensor, value
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from minigrad import autodiff, backend

BACKEND = backend.current().name

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def numbers(seed: int, shape: tuple[int, ...], low: float, high: float, complex: bool = False) -> Any:
    rng = numpy.random.default_rng(seed)
    real = numpy.asarray(rng.uniform(low, high, shape))
    return numpy.asarray(real + 1j * rng.uniform(low, high, shape)) if complex else real


# ------------------------------------------------------------------------------------------------ of one array

UNARY = {
    "abs": (0.1, 2), "acos": (-0.8, 0.8), "acosh": (1.5, 3), "asin": (-0.8, 0.8), "asinh": (-2, 2), "atan": (-2, 2),
    "atanh": (-0.8, 0.8), "cos": (-2, 2), "cosh": (-2, 2), "exp": (-2, 2), "expm1": (-2, 2), "log": (0.5, 3),
    "log10": (0.5, 3), "log1p": (-0.5, 3), "log2": (0.5, 3), "negative": (-2, 2), "positive": (-2, 2),
    "reciprocal": (0.5, 2), "sin": (-2, 2), "sinh": (-2, 2), "sqrt": (0.5, 2), "square": (-2, 2), "tan": (-1, 1),
    "tanh": (-2, 2),
}  # fmt: skip
COMPLEX = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "exp", "expm1", "imag", "log",
    "log10", "log1p", "log2", "negative", "positive", "real", "reciprocal", "sin", "sinh", "sqrt", "square", "tan",
    "tanh",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@given(shape=shapes, seed=seeds)
def test_unary(name: str, shape: tuple[int, ...], seed: int) -> None:
    check(getattr(mg, name), getattr(numpy, name), numbers(seed, shape, *UNARY[name]))


@pytest.mark.parametrize("name", COMPLEX)
@given(shape=shapes, seed=seeds)
def test_unary_complex(name: str, shape: tuple[int, ...], seed: int) -> None:
    z = numbers(seed, shape, 0.2, 0.9, complex=True)
    check(getattr(mg, name), getattr(numpy, name), z + 1 if name == "acosh" else z, rtol=1e-5)


@pytest.mark.parametrize("name", UNARY)
def test_float32_stays_float32(name: str) -> None:
    a = numbers(3, (5,), *UNARY[name]).astype(numpy.float32)
    x = tensor(a, requires_grad=True)
    y = getattr(mg, name)(x)
    assert y.dtype == x.dtype
    assert_allclose(value(y), getattr(numpy, name)(a.astype(float)), rtol=1e-5, atol=1e-6)
    mg.sum(y).backward()
    assert x.grad is not None
    assert x.grad.dtype == x.dtype
    exact = numeric_gradient(lambda a: numpy.sum(getattr(numpy, name)(a)), [a.astype(float)], 0)
    assert_allclose(value(x.grad), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", UNARY)
def test_second_derivative(name: str) -> None:
    a = numbers(5, (3,), *UNARY[name])
    direction = numpy.array([1.0, -2.0, 0.5])

    def slope(a: Any) -> Any:
        return value(mg.grad(lambda x: mg.sum(getattr(mg, name)(x)))(tensor(a)))

    numeric = (slope(a + 1e-6 * direction) - slope(a - 1e-6 * direction)) / 2e-6
    found = mg.hvp(lambda x: mg.sum(getattr(mg, name)(x)), [tensor(a)], [tensor(direction)])
    assert_allclose(value(found), numeric, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------ of two arrays

BINARY: dict[str, tuple[float, float]] = {
    "add": (-2, 2), "subtract": (-2, 2), "multiply": (-2, 2), "divide": (0.5, 2), "pow": (0.5, 2),
    "remainder": (0.5, 2), "maximum": (-2, 2), "minimum": (-2, 2), "atan2": (0.5, 2), "hypot": (0.5, 2),
    "logaddexp": (-2, 2), "copysign": (0.5, 2),
}  # fmt: skip


@st.composite
def broadcastable(draw: st.DrawFn, count: int = 2) -> list[tuple[int, ...]]:
    """Shapes that broadcast: a common one with axes set to 1 and leading axes left out."""
    common = draw(shapes)
    found = []
    for _ in range(count):
        kept = [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in common]
        found.append(tuple(kept[draw(st.integers(0, len(common))) :]))
    return found


@pytest.mark.parametrize("name", BINARY)
@given(both=broadcastable(), seed=seeds)
def test_binary_broadcasts(name: str, both: list[tuple[int, ...]], seed: int) -> None:
    low, high = BINARY[name]
    a, b = numbers(seed, both[0], low, high), numbers(seed + 1, both[1], low, high)
    if name == "remainder":  # away from the jumps, where there is no derivative
        b = b + 3
    check(getattr(mg, name), getattr(numpy, name), a, b)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "pow"])
@given(both=broadcastable(), seed=seeds)
def test_binary_complex(name: str, both: list[tuple[int, ...]], seed: int) -> None:
    a, b = (numbers(seed + i, shape, 0.5, 1.5, complex=True) for i, shape in enumerate(both))
    check(getattr(mg, name), getattr(numpy, name), a, b, rtol=1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_second_derivative_of_two(name: str) -> None:
    low, high = BINARY[name]
    arrays = [numbers(5, (2, 3), low, high), numbers(6, (3,), low, high) + (3 if name == "remainder" else 0)]
    directions = [numbers(7, (2, 3), -1, 1), numbers(8, (3,), -1, 1)]

    def f(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
        return mg.sum(getattr(mg, name)(x, y) * (x + 2) * (y + 1))  # no second derivative is 0

    def slopes(sign: int) -> list[Any]:
        moved = [tensor(a + sign * 1e-6 * d) for a, d in zip(arrays, directions, strict=True)]
        return [value(g) for g in mg.grad(f, (0, 1))(*moved)]

    found = mg.hvp(f, [tensor(a) for a in arrays], [tensor(d) for d in directions])
    for product, up, down in zip(found, slopes(1), slopes(-1), strict=True):
        assert_allclose(value(product), (up - down) / 2e-6, rtol=1e-6, atol=1e-7)


SCALARS = {"add": 1.5, "subtract": 1.5, "multiply": -2, "divide": 2.5, "pow": 3, "remainder": 2.7}


@pytest.mark.parametrize("name", SCALARS)
def test_python_scalars(name: str) -> None:
    a, scalar = numbers(2, (2, 3), 0.5, 2), SCALARS[name]
    f, reference = getattr(mg, name), getattr(numpy, name)
    check(lambda x: f(x, scalar), lambda x: reference(x, scalar), a)
    if name != "remainder":
        check(lambda x: f(2, x), lambda x: reference(2, x), a)


def test_dtypes_are_promoted_and_gradients_come_back_in_their_own() -> None:
    x = tensor(numpy.float32([1, 2]), requires_grad=True)
    y = tensor([3.0, 4.0], requires_grad=True)
    out = x * y
    assert backend.dtype_name(out.dtype) == "float64"
    out.backward(tensor([1.0, 1.0]))
    assert x.grad is not None
    assert y.grad is not None
    assert (backend.dtype_name(x.grad.dtype), backend.dtype_name(y.grad.dtype)) == ("float32", "float64")
    assert_array_equal(value(x.grad), [3, 4])
    assert_array_equal(value(y.grad), [1, 2])


def test_real_times_complex_gives_a_real_gradient() -> None:
    a, z = numbers(0, (3,), -1, 1), numbers(1, (3,), -1, 1, complex=True)
    check(mg.multiply, numpy.multiply, a, z)
    check(mg.add, numpy.add, z, a)


# ------------------------------------------------------------------------------------------------ kinks and zeros


def gradient_at(f: Any, *arrays: Any, seed: Any = None) -> list[Any]:
    inputs = [tensor(a, requires_grad=True) for a in arrays]
    out = f(*inputs)
    out.backward(tensor(numpy.ones(out.shape) if seed is None else seed))
    return [value(x.grad) for x in inputs]


def test_equal_arguments_share_the_gradient_of_maximum() -> None:
    a, b = [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]
    assert_array_equal(gradient_at(mg.maximum, a, b), [[0, 0.5, 1], [1, 0.5, 0]])
    assert_array_equal(gradient_at(mg.minimum, a, b), [[1, 0.5, 0], [0, 0.5, 1]])


@pytest.mark.parametrize(("f", "sign"), [(mg.max, 1.0), (mg.min, -1.0)])
def test_equal_elements_share_the_gradient_of_max(f: Any, sign: float) -> None:
    a = sign * numpy.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0], [5.0, 5.0, 5.0]])
    third = 1 / 3
    rows = [[0, 0.5, 0.5], [1, 0, 0], [third, third, third]]
    assert_allclose(gradient_at(lambda x: f(x, axis=1), a)[0], rows)
    assert_allclose(gradient_at(lambda x: f(x, axis=-1, keepdims=True), a)[0], rows)
    assert_allclose(gradient_at(f, a)[0], [[0, 0, 0], [0, 0, 0], [third, third, third]])


def test_abs_is_flat_at_zero() -> None:
    assert_array_equal(gradient_at(mg.abs, [-2.0, 0.0, 3.0]), [[-1, 0, 1]])
    assert_allclose(gradient_at(mg.abs, [3 + 4j, 0j]), [[0.6 + 0.8j, 0]], rtol=1e-15)


def test_hypot_is_flat_at_the_origin() -> None:
    assert_array_equal(gradient_at(mg.hypot, [0.0, 3.0], [0.0, 4.0]), [[0, 0.6], [0, 0.8]])


def test_std_is_flat_where_it_is_zero() -> None:
    a = [[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]]
    found = gradient_at(lambda x: mg.std(x, axis=1), a)[0]
    assert_array_equal(found[0], [0, 0, 0])
    assert_allclose(found[1], numpy.array([-1, 0, 1]) / (3 * math.sqrt(2 / 3)))


@pytest.mark.parametrize(
    ("x", "y", "dx", "dy"),
    [
        (0.0, 2.0, 0.0, 0.0),  # 0ʸ is flat in y
        (0.0, 1.0, 1.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),  # x⁰ is flat in x, at 0 as elsewhere
        (2.0, 0.0, 0.0, math.log(2)),
        (2.0, 3.0, 12.0, 8 * math.log(2)),
    ],
)
def test_powers_at_zero(x: float, y: float, dx: float, dy: float) -> None:
    assert_allclose(gradient_at(mg.pow, [x], [y]), [[dx], [dy]])
    assert_allclose(gradient_at(lambda a: mg.pow(a, y), [x]), [[dx]])
    assert_allclose(gradient_at(lambda b: mg.pow(x, b), [y]), [[dy]])


def test_negative_base_with_a_whole_exponent() -> None:
    assert_allclose(gradient_at(lambda x: x**3, [-2.0, 0.5]), [[12, 0.75]])
    assert_allclose(gradient_at(lambda x: x ** tensor([3.0, 2.0]), [-2.0, 0.5]), [[12, 1]])
    assert_allclose(gradient_at(lambda x: x**-1, [-2.0, 0.5]), [[-0.25, -4]])


def test_second_derivative_of_a_power_at_zero() -> None:
    for exponent, second in ((0, 0.0), (1, 0.0), (2, 2.0), (3, 0.0), (2.0, 2.0)):
        found = mg.grad(mg.grad(lambda x, n=exponent: x**n))(tensor(0.0))
        assert value(found) == second, exponent


def test_clip_leaves_its_limits_as_they_are() -> None:
    low = mg.asarray([-1000, 2, 0])  # the first is no int8
    assert mg.clip(mg.asarray([1, 1, 1], dtype="int8"), low).tolist() == [1, 2, 1]
    assert low.tolist() == [-1000, 2, 0]


def test_clip() -> None:
    a, low, high = [-2.0, -1.0, 0.0, 1.0, 2.0], numpy.full(5, -1.0), numpy.full(5, 1.0)
    assert_array_equal(gradient_at(mg.clip, a, low, high), [[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert_array_equal(gradient_at(lambda x: mg.clip(x, -1.0, None), a), [[0, 1, 1, 1, 1]])
    assert_array_equal(gradient_at(lambda x: mg.clip(x, None, 1.0), a), [[1, 1, 1, 1, 0]])
    assert_array_equal(gradient_at(lambda x: mg.clip(x, min=-1.0, max=1.0), a), [[0, 1, 1, 1, 0]])
    inner = numpy.array([-1.7, -0.2, 0.4, 1.6])
    check(lambda x: mg.clip(x, -1, 1), lambda x: numpy.clip(x, -1, 1), inner)
    check(mg.clip, numpy.clip, inner, numpy.full(4, -1.0), numpy.full(4, 1.0))


def test_copysign_keeps_the_magnitude_in_x1() -> None:
    assert_array_equal(gradient_at(mg.copysign, [-2.0, 3.0], [1.0, -1.0]), [[-1, -1], [0, 0]])


# ------------------------------------------------------------------------------------------------ reductions

REDUCTIONS = ["sum", "mean", "max", "min", "prod", "var", "std"]


@st.composite
def reductions(draw: st.DrawFn, empty: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    shape = tuple(draw(st.lists(st.integers(0 if empty else 2, 3), max_size=3)))
    axes = st.integers(-len(shape), len(shape) - 1)
    axis: Any = st.none()
    if shape:
        several = st.lists(axes, max_size=len(shape), unique_by=lambda i: i % len(shape)).map(tuple)
        axis = axis | axes | several
    return shape, {"axis": draw(axis), "keepdims": draw(st.booleans())}


@pytest.mark.parametrize("name", ["sum", "prod"])
@given(case=reductions(empty=True), seed=seeds)
def test_sum_and_prod(name: str, case: Any, seed: int) -> None:
    shape, options = case
    f, reference = getattr(mg, name), getattr(numpy, name)
    check(lambda x: f(x, **options), lambda x: reference(x, **options), numbers(seed, shape, -2, 2))


@pytest.mark.parametrize("name", ["mean", "max", "min", "var", "std"])
@given(case=reductions(empty=False), seed=seeds)
def test_statistics(name: str, case: Any, seed: int) -> None:
    shape, options = case
    if name == "std" and (shape == () or options["axis"] == ()):
        return  # the deviation of one number is 0, where it has a kink
    f, reference = getattr(mg, name), getattr(numpy, name)
    check(lambda x: f(x, **options), lambda x: reference(x, **options), numbers(seed, shape, -2, 2))


def test_a_correction_does_not_change_the_dtype() -> None:
    for correction in (1.0, numpy.float64(1.0), *([mg.asarray(1.0)] if BACKEND == "numpy" else [])):
        assert mg.var(mg.ones(3, dtype="float32"), correction=correction).dtype == mg.float32


def test_arrays_that_were_broadcast_are_no_way_to_change_the_original() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    (y,) = mg.broadcast_arrays(x)
    assert y is not x
    assert not y.is_leaf


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("correction", [0, 1, 0.5])
def test_correction(name: str, correction: float) -> None:
    if BACKEND == "torch" and name == "std" and isinstance(correction, float):
        pytest.skip("array-api-compat's torch.std takes whole corrections only")
    f, reference = getattr(mg, name), getattr(numpy, name)
    a = numbers(1, (4, 3), -2, 2)
    check(lambda x: f(x, axis=0, correction=correction), lambda x: reference(x, axis=0, ddof=correction), a)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_second_derivative_of_a_reduction(name: str) -> None:
    f = getattr(mg, name)

    def scalar(x: mg.Tensor) -> mg.Tensor:
        return mg.sum(f(x, axis=(0, -1)) ** 2)

    a, direction = numbers(4, (2, 2, 3), -2, 2), numbers(5, (2, 2, 3), -1, 1)
    up, down = (value(mg.grad(scalar)(tensor(a + h * direction))) for h in (1e-6, -1e-6))
    found = mg.hvp(scalar, [tensor(a)], [tensor(direction)])
    assert_allclose(value(found), (up - down) / 2e-6, rtol=1e-6, atol=1e-6)


def test_prod_with_zeros() -> None:
    a = [[2.0, 0.0, 3.0], [0.0, 5.0, 0.0], [1.0, 2.0, 4.0]]
    found = gradient_at(lambda x: mg.prod(x, axis=1), a)[0]
    assert_array_equal(found, [[0, 6, 0], [0, 0, 0], [8, 4, 2]])
    check(mg.prod, numpy.prod, numpy.array([2.0, 0.0, 3.0]))


def test_prod_with_zeros_twice() -> None:
    # ∂²(xyz) = [[0, z, y], [z, 0, x], [y, x, 0]]
    found = mg.hessian(mg.prod)(tensor([0.0, 0.0, 3.0]))
    assert_array_equal(value(found), [[0, 3, 0], [3, 0, 0], [0, 0, 0]])


@given(shape=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), seed=seeds, data=st.data())
def test_cumulative_sum(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    first = data.draw(st.booleans())
    check(
        lambda x: mg.cumulative_sum(x, axis=axis, include_initial=first),
        lambda x: numpy.cumulative_sum(x, axis=axis, include_initial=first),
        numbers(seed, shape, -2, 2),
    )


def test_reductions_of_complex_numbers() -> None:
    z = numbers(0, (2, 3), -1, 1, complex=True)
    for name in ("sum", "mean", "prod"):
        if BACKEND == "array_api_strict" and name == "mean":
            continue  # the standard's mean is of real numbers alone
        f, reference = getattr(mg, name), getattr(numpy, name)
        check(lambda x, f=f: f(x, axis=0), lambda x, r=reference: r(x, axis=0), z)


def test_sum_in_another_dtype() -> None:
    x = tensor(numpy.float32([1, 2]), requires_grad=True)
    total = mg.sum(x, dtype="float64")
    assert backend.dtype_name(total.dtype) == "float64"
    total.backward()
    assert x.grad is not None
    assert x.grad.dtype == x.dtype


def test_half_precision_is_summed_in_float32() -> None:
    if not hasattr(backend.current().xp, "float16"):
        pytest.skip(f"{BACKEND} has no float16")
    x = tensor(numpy.ones(4096, numpy.float16), requires_grad=True)
    total = mg.sum(x)  # in float16, 2048 + 1 is 2048
    assert backend.dtype_name(total.dtype) == "float16"
    assert total.item() == 4096
    big = tensor(numpy.full(16, 60000, numpy.float16))
    assert mg.mean(big).item() == 60000  # their sum is beyond float16
    assert backend.dtype_name(mg.mean(big).dtype) == "float16"
    product = mg.matmul(mg.reshape(x, (1, 4096)), mg.reshape(x, (4096, 1)))
    assert backend.dtype_name(product.dtype) == "float16"
    assert product.item() == 4096


# ------------------------------------------------------------------------------------------------ linear algebra


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 2)), ((2, 3), (5, 3, 2)),
        ((5, 1, 2, 3), (4, 3, 2)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
        ((1, 2, 3), (4, 3, 2)), ((4, 2, 3), (1, 3, 2)),
    ],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(mg.matmul, numpy.matmul, numbers(0, a, -1, 1), numbers(1, b, -1, 1))
    check(mg.matmul, numpy.matmul, numbers(0, a, -1, 1, complex=True), numbers(1, b, -1, 1, complex=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "axes"),
    [
        ((2, 3, 4), (3, 4, 2), 2), ((2, 3), (3, 2), 1), ((2,), (3,), 0), ((2, 3), (2, 3), 2),
        ((2, 3, 4), (4, 5, 3), ((2, 1), (0, 2))), ((2, 3, 4), (4, 5, 3), ((1, 2), (2, 0))),
        ((3, 2, 4), (4, 3, 3), ((-1, 0), (0, -1))), ((0, 3), (3, 2), 1),
    ],
)  # fmt: skip
def test_tensordot(a: tuple[int, ...], b: tuple[int, ...], axes: Any) -> None:
    check(
        lambda x, y: mg.tensordot(x, y, axes=axes),
        lambda x, y: numpy.tensordot(x, y, axes=axes),
        numbers(0, a, -1, 1),
        numbers(1, b, -1, 1),
    )


@pytest.mark.parametrize("complex", [False, True])
def test_vecdot(complex: bool) -> None:
    for a, b, axis in (((2, 3), (3,), -1), ((3,), (3,), -1), ((4, 3), (4, 1), -2), ((2, 1, 3), (4, 3), -1)):
        check(
            lambda x, y, axis=axis: mg.vecdot(x, y, axis=axis),
            lambda x, y, axis=axis: numpy.vecdot(x, y, axis=axis),
            numbers(0, a, -1, 1, complex),
            numbers(1, b, -1, 1, complex),
        )


def test_matrix_transpose() -> None:
    a = numbers(0, (2, 3, 4), -1, 1)
    check(mg.matrix_transpose, numpy.matrix_transpose, a)
    check(lambda x: x.mT, lambda x: x.mT, a)
    check(lambda x: x.T, lambda x: x.T, a[0])
    for name in ("tril", "triu"):
        for k in (-1, 0, 2):
            check(lambda x, n=name, k=k: getattr(mg, n)(x, k=k), lambda x, n=name, k=k: getattr(numpy, n)(x, k=k), a)


# ------------------------------------------------------------------------------------------------ shapes

MANIPULATIONS: list[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = [
    ("reshape", (2, 6), ((3, -1),), {}), ("reshape", (2, 3), ((6,),), {}), ("reshape", (), ((1, 1),), {}),
    ("reshape", (0, 3), ((3, 0),), {}), ("reshape", (1,), ((),), {}),
    ("permute_dims", (2, 3, 4), ((2, 0, 1),), {}), ("permute_dims", (2, 3, 4), ((2, 0, -2),), {}),
    ("permute_dims", (), ((),), {}),
    ("moveaxis", (2, 3, 4), (0, -1), {}), ("moveaxis", (2, 3, 4), ((0, 2), (1, 0)), {}),
    ("broadcast_to", (3, 1), ((2, 3, 4),), {}), ("broadcast_to", (), ((2, 2),), {}),
    ("broadcast_to", (1, 3), ((0, 3),), {}),
    ("expand_dims", (2, 3), (), {"axis": 0}), ("expand_dims", (2, 3), (), {"axis": -1}),
    ("expand_dims", (2, 3), (), {"axis": -2}),
    ("squeeze", (2, 1, 3), (), {"axis": 1}), ("squeeze", (1, 2, 1), (), {"axis": (0, -1)}),
    ("flip", (2, 3), (), {}), ("flip", (2, 3), (), {"axis": 1}), ("flip", (2, 3, 2), (), {"axis": (0, -1)}),
    ("roll", (2, 3), (2,), {"axis": 1}), ("roll", (2, 3), ((1, -1),), {"axis": (0, 1)}), ("roll", (2, 3), (1,), {}),
    ("tile", (2, 3), ((2, 2),), {}), ("tile", (3,), ((2, 1, 2),), {}), ("tile", (2, 3), ((2,),), {}),
    ("repeat", (2, 3), (2,), {"axis": 1}), ("repeat", (2, 3), (2,), {}), ("repeat", (2, 3), (3,), {"axis": -2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "args", "options"), MANIPULATIONS)
def test_manipulation(name: str, shape: tuple[int, ...], args: Any, options: Any) -> None:
    f, reference = getattr(mg, name), getattr(numpy, name, None)
    if name == "permute_dims":
        reference = numpy.transpose
    a = numbers(0, shape, -1, 1)
    check(lambda x: f(x, *args, **options), lambda x: reference(x, *args, **options), a)
    # Once more through the rule itself: all of these are linear, so the second derivative of a square is exact.
    direction = numbers(1, shape, -1, 1)
    found = mg.hvp(lambda x: mg.sum(mg.square(f(x, *args, **options))), [tensor(a)], [tensor(direction)])
    expected = mg.grad(lambda x: mg.sum(mg.square(f(x, *args, **options))))(tensor(direction))
    assert_allclose(value(found), value(expected), rtol=1e-12)


def test_repeat_by_counts() -> None:
    a = numbers(0, (3, 2), -1, 1)
    counts = numpy.array([2, 0, 3])
    check(lambda x: mg.repeat(x, tensor(counts), axis=0), lambda x: numpy.repeat(x, counts, axis=0), a)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_concat(axis: int | None) -> None:
    a, b, c = numbers(0, (2, 3), -1, 1), numbers(1, (2, 3), -1, 1), numbers(2, (2, 3), -1, 1)
    check(lambda *x: mg.concat(x, axis=axis), lambda *x: numpy.concat(x, axis=axis), a, b, c)
    check(lambda *x: mg.concat(x, axis=axis), lambda *x: numpy.concat(x, axis=axis), a, b, c, differentiable=[1])


def test_concat_of_different_lengths() -> None:
    a, b = numbers(0, (2, 0), -1, 1), numbers(1, (2, 3), -1, 1)
    check(lambda *x: mg.concat(x, axis=1), lambda *x: numpy.concat(x, axis=1), a, b)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack_and_unstack(axis: int) -> None:
    a, b = numbers(0, (2, 3), -1, 1), numbers(1, (2, 3), -1, 1)
    check(lambda *x: mg.stack(x, axis=axis), lambda *x: numpy.stack(x, axis=axis), a, b)
    check(lambda x: mg.unstack(x, axis=axis)[1], lambda x: numpy.unstack(x, axis=axis)[1], a)
    x = tensor(a)
    assert [value(row).tolist() for row in mg.unstack(x, axis=axis)] == [
        row.tolist() for row in numpy.unstack(a, axis=axis)
    ]


def test_the_same_array_twice() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    mg.sum(mg.concat([x, x * 2, x]) * tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [1 + 2 * 3 + 5, 2 + 2 * 4 + 6])


def test_broadcast_arrays_and_shapes() -> None:
    assert mg.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert mg.broadcast_shapes((0, 1), (3,)) == (0, 3)
    assert mg.broadcast_shapes() == ()
    a, b = numbers(0, (2, 1), -1, 1), numbers(1, (3,), -1, 1)
    for i in range(2):
        check(
            lambda *x, i=i: mg.broadcast_arrays(*x)[i],
            lambda *x, i=i: numpy.broadcast_arrays(*x)[i],
            a,
            b,
            differentiable=[i],
        )


@given(three=broadcastable(3), seed=seeds)
def test_where(three: list[tuple[int, ...]], seed: int) -> None:
    condition = numbers(seed, three[0], -1, 1) > 0
    check(
        mg.where,
        numpy.where,
        condition,
        numbers(seed + 1, three[1], -1, 1),
        numbers(seed + 2, three[2], -1, 1),
        differentiable=[1, 2],
    )


def test_where_keeps_nan_out_of_the_gradient_that_was_not_chosen() -> None:
    x = tensor([0.0, 4.0], requires_grad=True)
    positive = x > 0
    mg.sum(mg.where(positive, mg.sqrt(mg.where(positive, x, 1.0)), 0.0)).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [0, 0.25])


# ------------------------------------------------------------------------------------------------ indexing

KEYS: list[Any] = [
    0, -1, (1, 2), (slice(None), 1), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2),
    slice(0, 0), ..., (..., 0), (0, ...), (slice(None), ..., slice(None, None, -1)), None, (None, 1),
    (slice(None), None, slice(1, None)), (..., None), (slice(None, None, -1), None, 2), (slice(10, None),),
    numpy.array([0, 2, 2]), numpy.array([[0, 1], [3, 0]]), numpy.array([-1, 0]),
    (numpy.array([0, 1]), numpy.array([2, 2])),
]  # fmt: skip


def _on_backend(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_on_backend, key))
    return tensor(key) if isinstance(key, numpy.ndarray) else key


def _skip_beyond_the_standard(key: Any) -> None:
    """array-api-strict takes no slice that starts outside, and integer arrays only if there is one for each axis."""
    items = key if isinstance(key, tuple) else (key,)
    arrays = sum(isinstance(item, numpy.ndarray) for item in items)
    outside = any(isinstance(item, slice) and item.start == 10 for item in items)
    if BACKEND == "array_api_strict" and (arrays == 1 or outside):
        pytest.skip("this index is beyond the standard")


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_getitem(key: Any) -> None:
    _skip_beyond_the_standard(key)
    check(lambda x: x[_on_backend(key)], lambda x: x[key], numbers(0, (4, 3), -1, 1))


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_getitem_twice_differentiated(key: Any) -> None:
    _skip_beyond_the_standard(key)
    a, direction = numbers(0, (4, 3), -1, 1), numbers(1, (4, 3), -1, 1)
    found = mg.hvp(lambda x: mg.sum(x[_on_backend(key)] ** 3), [tensor(a)], [tensor(direction)])
    times = numpy.bincount(numpy.ravel(numpy.arange(12).reshape(4, 3)[key]), minlength=12).reshape(4, 3)
    assert_allclose(value(found), 6 * a * direction * times, rtol=1e-12, atol=1e-15)


def test_boolean_masks() -> None:
    a = numbers(0, (4, 3), -1, 1)
    check(lambda x: x[tensor(a > 0)], lambda x: x[a > 0], a)
    check(lambda x: x[tensor(a > 5)], lambda x: x[a > 5], a)
    if BACKEND != "array_api_strict":  # a mask of fewer axes is beyond the standard
        rows = numpy.array([True, False, True, True])
        check(lambda x: x[tensor(rows)], lambda x: x[rows], a)


def test_zero_dimensional_indexing() -> None:
    check(lambda x: x[()], lambda x: x[()], numpy.array(3.0))
    check(lambda x: x[...], lambda x: x[...], numpy.array(3.0))
    check(lambda x: x[None], lambda x: x[None], numpy.array(3.0))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(axis: int) -> None:
    a = numbers(0, (4, 3), -1, 1)
    for indices in ([0, 2, 2, 1], [], [1]):
        i = numpy.array(indices, dtype=numpy.int64)
        check(lambda x, i=i: mg.take(x, tensor(i), axis=axis), lambda x, i=i: numpy.take(x, i, axis=axis), a)
    check(lambda x: mg.take(x, tensor([1, 1, 0])), lambda x: numpy.take(x, [1, 1, 0]), a[:, 0])


def test_take_of_many_repeated_rows() -> None:
    table = numbers(0, (5, 3), -1, 1)
    rows = numpy.random.default_rng(0).integers(0, 5, 100)
    check(lambda x: mg.take(x, tensor(rows), axis=0), lambda x: numpy.take(x, rows, axis=0), table)


INDEX_DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_indices_of_any_integer_dtype(dtype: str) -> None:
    """300 rows are more than the small dtypes can count, 40 indices as many as NumPy's fast path asks for."""
    rng = numpy.random.default_rng(0)
    table = rng.normal(size=(300, 2))
    rows = rng.integers(0, 100, size=40)
    i = tensor(rows.astype(dtype))
    check(lambda x: mg.take(x, i, axis=0), lambda x: x[rows], table)
    check(lambda x: mg.take(mg.matrix_transpose(x), i, axis=1), lambda x: x.T[:, rows], table)
    check(lambda x: x[i, tensor(rows.astype(dtype) % 2)], lambda x: x[rows, rows % 2], table)
    along = numpy.stack([rows, rows[::-1]], axis=1)
    check(
        lambda x: mg.take_along_axis(x, tensor(along.astype(dtype)), axis=0),
        lambda x: numpy.take_along_axis(x, along, axis=0),
        table,
    )


@pytest.mark.skipif(BACKEND == "array_api_strict", reason="assignment at integer arrays is beyond the standard")
@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_assignment_at_indices_of_any_integer_dtype(dtype: str) -> None:
    i = tensor(numpy.array([1, 0, 2], dtype))

    def assigned(x: mg.Tensor, v: mg.Tensor) -> mg.Tensor:
        y = mg.positive(x)
        y[i] = v
        return y

    check(assigned, lambda x, v: numpy.concatenate([v[[1, 0, 2]], x[3:]]), numpy.ones(300), numpy.array([2.0, 3, 4]))
    plain = mg.zeros(300)
    plain[i] = 1.0  # outside of a graph
    assert value(mg.sum(plain)) == 3


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_second_derivatives_at_indices_of_any_integer_dtype(dtype: str) -> None:
    i = tensor(numpy.array([2, 0, 2], dtype))
    for choose in (mg.take, mg.take_along_axis, lambda x, i: x[i]):
        slope = mg.grad(lambda x, choose=choose: mg.sum(choose(x, i) ** 3))
        found = mg.grad(lambda x, slope=slope: mg.sum(slope(x)))(tensor([1.0, 2.0, 3.0]))
        assert_allclose(value(found), [6, 0, 36], rtol=1e-12)


def test_numpy_integers_as_indices() -> None:
    a = numpy.arange(6.0).reshape(2, 3)
    for key in (numpy.int64(1), numpy.uint8(1), (numpy.int32(1), slice(None)), (numpy.int8(1), numpy.int64(2))):
        check(lambda x, key=key: x[key], lambda x, key=key: x[key], a)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis(axis: int) -> None:
    a = numbers(0, (4, 3), -1, 1)
    indices = numpy.random.default_rng(0).integers(0, 3, (2, 3) if axis == 0 else (4, 2))
    check(
        lambda x: mg.take_along_axis(x, tensor(indices), axis=axis),
        lambda x: numpy.take_along_axis(x, indices, axis=axis),
        a,
    )


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        (0, (3,)),
        (slice(1, 3), (2, 3)),
        (slice(None, None, -2), (2, 3)),
        ((..., 1), ()),
        ((..., 1), (4,)),
        (..., (4, 3)),
    ],
)
def test_setitem(key: Any, shape: tuple[int, ...]) -> None:
    def assigned(x: Any, v: Any) -> Any:
        y = x * 1
        y[key] = v
        return y

    check(lambda x, v: mg.setitem(x, key, v), assigned, numbers(0, (4, 3), -1, 1), numbers(1, shape, -1, 1))


def test_setitem_with_a_mask_and_a_scalar() -> None:
    a = numbers(0, (4, 3), -1, 1)
    check(lambda x: mg.setitem(x, tensor(a > 0), 2.0), lambda x: numpy.where(a > 0, 2.0, x), a)


# ------------------------------------------------------------------------------------------------ without a derivative

STEPS_UNARY = ["ceil", "floor", "isfinite", "isinf", "isnan", "round", "sign", "signbit", "trunc"]
STEPS_BINARY = ["equal", "floor_divide", "greater", "greater_equal", "less", "less_equal", "nextafter", "not_equal"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]


def no_gradient(f: Any, reference: Any, *arrays: Any) -> None:
    inputs = [tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    found = f(*inputs)
    assert not found.requires_grad
    assert_array_equal(value(found), reference(*arrays))


@pytest.mark.parametrize("name", STEPS_UNARY)
def test_steps(name: str) -> None:
    no_gradient(getattr(mg, name), getattr(numpy, name), numpy.array([-1.5, -0.5, 0.0, 0.5, 2.5]))


@pytest.mark.parametrize("name", STEPS_BINARY)
def test_comparisons(name: str) -> None:
    no_gradient(getattr(mg, name), getattr(numpy, name), numpy.array([[-1.5, 0.5, 2.5]]), numpy.array([[0.5], [2.5]]))


@pytest.mark.parametrize("name", BITS)
def test_bits(name: str) -> None:
    no_gradient(getattr(mg, name), getattr(numpy, name), numpy.array([1, 2, 5]), numpy.array([3, 1, 2]))


@pytest.mark.parametrize("name", LOGIC)
def test_logic(name: str) -> None:
    no_gradient(getattr(mg, name), getattr(numpy, name), numpy.array([True, False]), numpy.array([[True], [False]]))


def test_searches_and_questions() -> None:
    a = numpy.array([[1.0, 3.0, 0.0], [4.0, 2.0, 9.0]])
    no_gradient(mg.bitwise_invert, numpy.invert, numpy.array([1, 2]))
    no_gradient(mg.logical_not, numpy.logical_not, numpy.array([True, False]))
    for name in ("argmax", "argmin", "count_nonzero"):
        f, reference = getattr(mg, name), getattr(numpy, name)
        no_gradient(lambda x, f=f: f(x, axis=1), lambda x, r=reference: r(x, axis=1), a)
        no_gradient(lambda x, f=f: f(x, axis=0, keepdims=True), lambda x, r=reference: r(x, axis=0, keepdims=True), a)
        no_gradient(f, reference, a)
    for name in ("all", "any"):
        f, reference = getattr(mg, name), getattr(numpy, name)
        no_gradient(lambda x, f=f: f(x, axis=1), lambda x, r=reference: r(x, axis=1), a)
    assert_array_equal([value(i) for i in mg.nonzero(tensor(a))], numpy.nonzero(a))
    line = numpy.array([1.0, 3.0, 5.0])
    for side in ("left", "right"):
        no_gradient(
            lambda x, y, s=side: mg.searchsorted(x, y, side=s),
            lambda x, y, s=side: numpy.searchsorted(x, y, side=s),
            line,
            numpy.array([0.0, 3.0, 6.0]),
        )


def test_a_step_inside_a_graph_passes_no_gradient() -> None:
    x = tensor([1.4, 2.6], requires_grad=True)
    mg.sum(mg.floor(x) * x).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [1, 2])


# ------------------------------------------------------------------------------------------------ dtypes and devices


def test_astype() -> None:
    x = tensor(numpy.float32([1.5, -2.5]), requires_grad=True)
    y = mg.astype(x, "float64")
    assert backend.dtype_name(y.dtype) == "float64"
    mg.sum(y * y).backward()
    assert x.grad is not None
    assert x.grad.dtype == x.dtype
    assert_array_equal(value(x.grad), [3, -5])
    assert not mg.astype(x, "int64").requires_grad
    z = mg.astype(tensor([1.0, 2.0], requires_grad=True), "complex128")
    assert backend.dtype_name(z.dtype) == "complex128"
    check(lambda x: mg.astype(x, "complex128"), lambda x: x.astype(complex), numbers(0, (2, 3), -1, 1))


def test_to_device() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    there = mg.to_device(x * 2, x.device)
    assert there.device == x.device
    mg.sum(there).backward()
    assert_array_equal(value(x.grad), [2, 2])


# ------------------------------------------------------------------------------------------------ the registry

writable = pytest.mark.skipif(BACKEND == "jax", reason="arrays of JAX cannot be written, so that sharing does no harm")


def shares_memory(x: mg.Tensor, y: mg.Tensor) -> bool:
    """Whether a write to one can be seen in the other."""

    def memory(t: mg.Tensor) -> Any:
        return t._data._array if BACKEND == "array_api_strict" else backend.to_numpy(t._data)

    return numpy.shares_memory(memory(x), memory(y))


class Call(NamedTuple):
    args: tuple[Any, ...]
    options: dict[str, Any]


def example_calls(op: Any) -> list[Call]:
    """The registry's own examples of a primitive, with random numbers for shapes."""
    rng = numpy.random.default_rng(0)
    calls = []
    required = sum(name not in op.defaults for name in op.names)
    for example in op.examples or [autodiff.Example(((2, 3), (3,))[:required], {}, -2.0, 2.0, False, None)]:
        made = []
        for arg in example.args:
            if isinstance(arg, tuple) and all(type(n) is int for n in arg):
                numbers = rng.uniform(example.low, example.high, arg)
                x = tensor(numbers * (1 + 0.5j) if example.complex else numbers)
                made.append(example.of(x) if example.of else x)
            else:
                made.append(arg() if isinstance(arg, types.FunctionType) else arg)
        calls.append(Call(tuple(made), example.options))
    return calls


EXTRA: dict[str, list[Call]] = {
    "where": [Call((numpy.array([True, False, True]), numpy.ones((2, 3)), numpy.ones(3)), {})],
    "take": [Call((numpy.ones((4, 3)), numpy.array([0, 2])), {"axis": 0})],
    "take_along_axis": [Call((numpy.ones((4, 3)), numpy.zeros((1, 3), numpy.int64)), {"axis": 0})],
    "add_along": [Call((numpy.ones((2, 3)), numpy.array([0, 2]), (4, 3), 0), {})],
    "put_along_axis": [Call((numpy.ones((1, 3)), numpy.zeros((1, 3), numpy.int64), (4, 3), 0), {})],
    **{name: [Call((numpy.ones((2, 3)),), {"axis": 1})] for name in ("var", "std")},  # complex: not everywhere
    "searchsorted": [Call((numpy.array([1.0, 2.0]), numpy.array([1.5])), {})],
    "to_device": [],
    "cholesky": [Call((numpy.eye(3),), {})],
    "cross": [Call((numpy.ones((2, 3)), numpy.ones(3)), {})],
    "isin": [Call((numpy.ones(2, int), numpy.ones(3, int)), {})],
    **{name: [Call((numpy.ones(2), numpy.ones(2)), {})] for name in (*STEPS_BINARY, "logaddexp")},
    **{name: [Call((numpy.ones(2, int), numpy.ones(2, int)), {})] for name in BITS},
    **{name: [Call((numpy.ones(2, bool), numpy.ones(2, bool)), {})] for name in (*LOGIC,)},
    "bitwise_invert": [Call((numpy.ones(2, int),), {})],
    "logical_not": [Call((numpy.ones(2, bool),), {})],
}


def own_primitives() -> list[str]:
    return [name for name in autodiff.ALL if name.startswith("minigrad.") and autodiff.ALL[name].__name__[0] != "_"]


@writable
@pytest.mark.parametrize("name", own_primitives())
def test_only_a_declared_view_shares_memory(name: str) -> None:
    """In-place safety rests on this: a write to the output of anything else cannot change an input."""
    op = autodiff.ALL[name]
    calls = EXTRA[op.__name__] if op.__name__ in EXTRA else example_calls(op)
    for args, options in calls:
        inputs = [tensor(a) if isinstance(a, numpy.ndarray) else a for a in args]
        out = op(*inputs, **options)
        for result in out if isinstance(out, tuple) else (out,):
            for i, x in enumerate(inputs):
                if type(x) is mg.Tensor and shares_memory(x, result):
                    assert op.view, f"{name} shares memory with its argument {i}"
                    assert i == 0
                    assert result._memory is x._memory


@writable
@pytest.mark.parametrize(
    ("name", "array", "args", "options"),
    [
        ("conj", numpy.ones(3), (), {}), ("positive", numpy.ones(3), (), {}), ("round", numpy.ones(3, int), (), {}),
        ("trunc", numpy.ones(3, int), (), {}), ("ceil", numpy.ones(3, int), (), {}),
        ("floor", numpy.ones(3, int), (), {}), ("sum", numpy.ones(3), (), {"axis": ()}),
        ("prod", numpy.ones(3), (), {"axis": ()}), ("max", numpy.ones(3), (), {"axis": ()}),
        ("mean", numpy.ones(3), (), {"axis": ()}), ("sum", numpy.ones((1, 3)), (), {"axis": 0}),
        ("max", numpy.ones((1, 3)), (), {"axis": 0}), ("cumulative_sum", numpy.ones(1), (), {}),
        ("clip", numpy.ones(3), (None, None), {}), ("tril", numpy.ones((2, 2)), (), {"k": 5}),
        ("roll", numpy.ones(3), (0,), {}), ("roll", numpy.ones((2, 3)), (0,), {"axis": 1}),
        ("tile", numpy.ones(3), ((1,),), {}), ("repeat", numpy.ones(3), (1,), {}), ("tile", numpy.ones(3), ((),), {}),
        ("setitem", numpy.ones(3), (0, 1.0), {}), ("put", numpy.ones(3), (slice(None), (3,)), {}),
        ("astype", numpy.ones(3), ("float64",), {}), ("astype", numpy.ones(3), ("float64",), {"copy": False}),
        ("pow", numpy.ones(3), (1,), {}), ("to_device", numpy.ones(3), (None,), {}),
    ],
)  # fmt: skip
def test_no_hidden_view(name: str, array: Any, args: Any, options: Any) -> None:
    op = getattr(mg, name, None) or getattr(mg.indexing, name)
    x = tensor(array)
    out = op(x, *((x.device,) if name == "to_device" else args), **options)
    if shares_memory(x, out):
        assert op.view
        assert out._memory is not None
        assert out._memory is x._memory


@writable
def test_one_array_in_concat_is_copied() -> None:
    x = tensor(numpy.ones(3))
    for out in (mg.concat([x]), mg.stack([x]), mg.concat([x], axis=None)):
        assert not shares_memory(x, out)
