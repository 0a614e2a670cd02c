"""The standard, name by name, without its own test suite: NumPy and array-api-strict say what is right.

Derivatives of the first, second and third order are held against finite differences of the order before.
"""

import inspect
import itertools
import operator
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_api_compat.numpy as reference
import array_api_strict as strict
import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose, assert_array_equal
from standard import CASES, LACKING, all_kinds, names_used, seed_of

import minigrad as mg
from minigrad import autodiff, backend
from minigrad.backend import dtype_name

BACKEND = backend.current().name
BEYOND = {"float16", "bfloat16"} | ({"uint16", "uint32", "uint64"} if BACKEND == "torch" else set())  # half supported
DTYPES = [name for name in mg.data_types.DTYPES if name not in BEYOND]
compiles = pytest.mark.skipif(
    BACKEND == "jax", reason="JAX compiles every operation for every shape and dtype, for minutes"
)
OWN = ("array_api_strict_flags", "ArrayAPIStrictFlags", "Device")  # array-api-strict's, not the standard's


def chapters() -> Iterator[tuple[str, Any, Any]]:
    yield "", strict, mg
    yield "linalg.", strict.linalg, mg.linalg
    yield "fft.", strict.fft, mg.fft


NAMES = {
    prefix + name: (getattr(theirs, name), getattr(ours, name, None))
    for prefix, theirs, ours in chapters()
    for name in theirs.__all__
    if not name.endswith(OWN) and name != "__version__"
}
FUNCTIONS = {name: pair for name, pair in NAMES.items() if inspect.isfunction(pair[0])}


def several(out: Any) -> list[Any]:
    return list(out) if isinstance(out, list | tuple) else [out]


# ------------------------------------------------------------------------------------------------ names and signatures


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    theirs, ours = NAMES[name]
    if isinstance(theirs, strict._dtypes.DType):
        assert dtype_name(getattr(mg, name)) == name
    elif isinstance(theirs, float | str | None):
        assert ours == theirs or (ours != ours and theirs != theirs)
    else:
        assert ours is not None
        owner, _, last = name.rpartition(".")
        assert last in (getattr(mg, owner).__all__ if owner else mg.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature(name: str) -> None:
    """Parameters of the same names and kinds, and the same ones optional (of `expand_dims` also the axis)."""
    theirs, ours = ([*inspect.signature(f).parameters.values()] for f in FUNCTIONS[name])
    assert [(p.name, p.kind) for p in ours] == [(p.name, p.kind) for p in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.default is mine.empty) == (other.default is other.empty) or name == "expand_dims"
        if isinstance(other.default, int | float | str | bool):
            assert mine.default == other.default


def test_inspection() -> None:
    theirs, ours = strict.__array_namespace_info__(), mg.__array_namespace_info__()
    for name in ("capabilities", "default_device", "default_dtypes", "devices", "dtypes"):
        assert str(inspect.signature(getattr(ours, name))).partition(" ->")[0].replace("'Any'", "").count("=") == str(
            inspect.signature(getattr(theirs, name))
        ).partition(" ->")[0].count("=")
    assert set(ours.capabilities()) >= {"boolean indexing", "data-dependent shapes"}
    assert {name: dtype_name(dtype) for name, dtype in ours.default_dtypes().items()} == {
        "real floating": dtype_name(mg.ones(1).dtype),
        "complex floating": dtype_name((mg.ones(1) * 1j).dtype),
        "integral": "int64",
        "indexing": "int64",
    }
    assert {dtype_name(dtype) for dtype in ours.dtypes().values()} >= set(DTYPES)
    assert {dtype_name(dtype) for dtype in ours.dtypes(kind="real floating").values()} >= {"float32", "float64"}
    assert ours.default_device() in ours.devices()


def test_methods_and_attributes() -> None:
    x = strict.ones((2, 2))
    for name in dir(x):
        if not name.startswith("_") or (name.startswith("__") and name != "__buffer__"):
            assert hasattr(mg.Tensor, name), name


# ------------------------------------------------------------------------------------------------ derivatives


@pytest.mark.parametrize(
    ("name", "kind"),
    # JAX compiles every operation for every shape: there one call of each function has to do.
    [
        (name, kind)
        for name, kind in all_kinds()
        if BACKEND != "jax" or not (set("( ") & set(name) or kind in CASES[name].kinds[1:])
    ],
)
def test_value_and_derivatives(name: str, kind: str) -> None:
    case = CASES[name]
    arrays = case.arrays(kind, seed_of(name))
    rng = numpy.random.default_rng(0)
    expected = several(case.f(reference, *arrays))
    for mine, theirs in zip(several(case.f(mg, *map(tensor, arrays))), expected, strict=True):
        assert mine.shape == theirs.shape
        assert dtype_name(mine.dtype) == theirs.dtype.name
        assert_allclose(value(mine), theirs, rtol=1e-10, atol=1e-11)

    weights = [tensor(rng.normal(size=y.shape) * ((1 + 0.7j) if numpy.iscomplexobj(y) else 1)) for y in expected]
    every = tuple(range(len(arrays)))

    def s(*xs: Any) -> Any:
        return sum(_product(y, w) for y, w in zip(several(case.f(mg, *xs)), weights, strict=True))

    h = 1e-5
    for _ in range(1 if BACKEND == "jax" else case.order):
        directions = [rng.normal(size=a.shape) * ((0.6 + 0.8j) if numpy.iscomplexobj(a) else 1) for a in arrays]
        up, down = (s(*(tensor(a + d * v) for a, v in zip(arrays, directions, strict=True))) for d in (h, -h))
        numeric = (value(up) - value(down)) / (2 * h)

        def slope(*xs: Any, s: Any = s, directions: Any = directions) -> Any:
            """The derivative of s along the directions."""
            gradients = mg.grad(s, every)(*xs)
            return sum(_product(g, tensor(numpy.conj(v))) for g, v in zip(gradients, directions, strict=True))

        assert_allclose(value(slope(*map(tensor, arrays))), numeric, rtol=2e-6, atol=2e-6)
        s = slope


def _product(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    total = mg.sum(x * y)
    return mg.real(total) if mg.isdtype(total.dtype, "complex floating") else total


def doc(name: str) -> str:
    return " ".join((FUNCTIONS[name][1].__doc__ or "").split())


@pytest.mark.skipif(BACKEND == "jax", reason="the cases are the same on every backend, and JAX compiles all of them")
def test_every_function_has_checked_derivatives_or_says_why_not() -> None:
    used: set[str] = set()
    for name, kind in all_kinds():
        used |= names_used(CASES[name].f, mg, list(map(tensor, CASES[name].arrays(kind, 0))))
    without = {name for name in FUNCTIONS if "No derivative: " in doc(name)}
    assert without | used >= FUNCTIONS.keys()
    assert without & used <= {"isdtype"}  # which cases ask


def test_a_primitive_without_rules_says_why() -> None:
    for name, op in autodiff.ALL.items():
        if name.startswith("minigrad.") and not op.__name__.startswith("_"):
            assert (op.joint is None and not op.rules) == ("No derivative: " in (op.__doc__ or "")), name


WITHOUT: dict[str, tuple[Any, ...]] = {
    **{name: ([[-1.5, 0.5], [2.5, 0.0]],) for name in (
        "all", "any", "argmax", "argmin", "argsort", "ceil", "count_nonzero", "floor", "isfinite", "isinf", "isnan",
        "linalg.matrix_rank", "nonzero", "round", "sign", "signbit", "trunc", "unique_all", "unique_counts",
        "unique_inverse", "unique_values",
    )},
    **{name: ([-1.5, 0.5, 3.5], [0.5, 2.0, 2.0]) for name in (
        "equal", "floor_divide", "greater", "greater_equal", "isin", "less", "less_equal", "nextafter", "not_equal",
        "searchsorted",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_derivative_says_so(name: str) -> None:
    if name == "unique_all" and BACKEND == "torch":
        pytest.skip(LACKING[name][BACKEND])
    if name == "isin" and BACKEND == "array_api_strict":
        pytest.skip("the standard's isin is of integers")
    f = FUNCTIONS[name][1]
    out = several(f(*(tensor(a, requires_grad=True) for a in WITHOUT[name])))
    expected = several(_find(reference, name)(*map(numpy.array, WITHOUT[name])))
    for mine, theirs in zip(out, expected, strict=True):
        assert_array_equal(value(mine), theirs)
        assert not mine.requires_grad
        with pytest.raises(RuntimeError, match=f"`{name.removeprefix('linalg.')}` has no derivative"):
            mine.backward()
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        mg.sum(mg.astype(out[0], "float64")).backward()


def _find(xp: Any, name: str) -> Any:
    for part in name.split("."):
        xp = getattr(xp, part)
    return xp


@pytest.mark.parametrize(
    "call",
    [
        lambda x: mg.full(2, x), lambda x: mg.arange(x), lambda x: mg.linspace(x, 1.0, 3), lambda x: mg.full_like(x, x),
        lambda x: mg.asarray([x, x]), lambda x: mg.from_dlpack(x),
    ],
)  # fmt: skip
def test_a_constant_is_not_made_of_a_tensor_in_a_graph(call: Callable[[Any], Any]) -> None:
    """Else its gradient would be lost without a word."""
    with pytest.raises((TypeError, RuntimeError, ValueError), match=r"graph|gradient"):
        call(tensor(2.0, requires_grad=True))


# ------------------------------------------------------------------------------------------------ dtypes

TWO = {
    **{name: getattr(strict, name) for name in (
        "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
        "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal",
        "logaddexp", "logical_and", "logical_or", "logical_xor", "matmul", "maximum", "minimum", "multiply",
        "nextafter", "not_equal", "pow", "remainder", "subtract", "vecdot",
    )},
    "clip": lambda x, y: None, "concat": lambda x, y: None, "isin": lambda x, y: None, "stack": lambda x, y: None,
    "searchsorted": lambda x, y: None, "tensordot": lambda x, y: None, "where": lambda x, y: None,
}  # fmt: skip
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "concat": lambda xp, x, y: xp.concat([x, y]),
    "stack": lambda xp, x, y: xp.stack([x, y]),
    "tensordot": lambda xp, x, y: xp.tensordot(x, y, axes=1),
    "where": lambda xp, x, y: xp.where(xp.asarray([True, False]), x, y),
    "clip": lambda xp, x, y: xp.clip(x, y, y),
}


@compiles
@pytest.mark.parametrize("name", TWO)
def test_promotion(name: str) -> None:
    """Every pair of dtypes that the standard allows gives the dtype that the standard says."""
    call = CALLS.get(name, lambda xp, x, y: getattr(xp, name)(x, y))
    for a, b in zip(DTYPES, DTYPES, strict=True) if name == "clip" else itertools.product(DTYPES, DTYPES):
        if ("int" in a) != ("int" in b):
            continue  # array-api-strict lets some of these pass, but the standard does not say what they give
        theirs = [strict.ones(2, dtype=getattr(strict, dtype)) for dtype in (a, b)]
        try:
            expected = call(strict, *theirs)
        except TypeError:
            continue
        found = call(mg, tensor(theirs[0]._array), tensor(theirs[1]._array))
        assert dtype_name(found.dtype) == dtype_name(expected.dtype), (a, b)
        assert found.shape == expected.shape


def one_argument() -> list[str]:
    names = []
    for name, (f, _) in FUNCTIONS.items():
        parameters = list(inspect.signature(f).parameters.values())
        required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        if len(required) == 1 and parameters[0].name == "x":
            names.append(name)
    return names


@compiles
@pytest.mark.parametrize("name", one_argument())
def test_dtype_of_a_function_of_one_array(name: str) -> None:
    if BACKEND in LACKING.get(name, {}):
        pytest.skip(LACKING[name][BACKEND])
    for dtype, shape in itertools.product(DTYPES, ((1,), (2, 2))):
        x = strict.ones(shape, dtype=getattr(strict, dtype))
        if name == "linalg.matrix_rank" and not strict.isdtype(x.dtype, ("real floating", "complex floating")):
            continue
        with numpy.errstate(all="ignore"):
            try:
                expected = [y for y in several(FUNCTIONS[name][0](x)) if hasattr(y, "dtype")]
            except (TypeError, ValueError, IndexError, RuntimeError, numpy.linalg.LinAlgError):
                continue
            found = several(FUNCTIONS[name][1](tensor(x._array)))
        for mine, theirs in zip(found, expected, strict=False):
            assert dtype_name(mine.dtype) == dtype_name(theirs.dtype), (dtype, shape)
            assert mine.shape == theirs.shape


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod", "linalg.trace"])
def test_dtype_option(name: str) -> None:
    f = FUNCTIONS[name][1]
    x = tensor(numpy.ones((2, 2) if "trace" in name else 2, numpy.float32), requires_grad=True)
    total = f(x, dtype=mg.float64)
    assert dtype_name(total.dtype) == "float64"
    mg.sum(total).backward()
    assert x.grad is not None
    assert dtype_name(x.grad.dtype) == "float32"


def test_information_about_dtypes() -> None:
    for name in DTYPES:
        mine, theirs = getattr(mg, name), getattr(strict, name)
        x = tensor(strict.ones(1, dtype=theirs)._array)
        for kind in ("bool", "integral", "signed integer", "unsigned integer", "real floating", "complex floating",
                     "numeric"):  # fmt: skip
            assert mg.isdtype(mine, kind) == strict.isdtype(theirs, kind)
        if "float" in name or "complex" in name:
            for asked in (mine, name, x):
                limits, expected = mg.finfo(asked), strict.finfo(theirs)
                assert (limits.bits, dtype_name(limits.dtype)) == (expected.bits, dtype_name(expected.dtype))
                assert (limits.eps, limits.max, limits.smallest_normal) == (
                    expected.eps, expected.max, expected.smallest_normal,
                )  # fmt: skip
        elif "int" in name:
            for asked in (mine, name, x):
                whole, theirs_whole = mg.iinfo(asked), strict.iinfo(theirs)
                assert (whole.bits, whole.max, whole.min) == (theirs_whole.bits, theirs_whole.max, theirs_whole.min)
                assert whole.dtype == mine
        for other in DTYPES:
            assert mg.can_cast(mine, getattr(mg, other)) == mg.can_cast(x, other)
            try:
                expected = strict.result_type(theirs, getattr(strict, other))
            except TypeError:
                continue
            assert dtype_name(mg.result_type(mine, getattr(mg, other))) == dtype_name(expected)
            assert dtype_name(mg.result_type(x, getattr(mg, other))) == dtype_name(expected)


# ------------------------------------------------------------------------------------------------ shapes and axes

EMPTY: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    **{
        f"{name}{shape}": (lambda xp, x, n=name: _find(xp, n)(x), shape)
        for name in one_argument()
        for shape in ((), (0,), (0, 3), (2, 0), (0, 3, 3))
        if "r" in "".join(CASES[key].kinds for key in CASES.keys() & {name, f"{name}()"})
        if name not in ("tril", "triu") or len(shape) > 1
        if name not in ("sort", "cumulative_sum", "cumulative_prod") or shape
    },
    **{
        f"{name}, axis {axis}": (lambda xp, x, n=name, a=axis: getattr(xp, n)(x, axis=a), (0, 3))
        for name in ("sum", "prod", "mean", "max", "min", "var", "std", "cumulative_sum", "cumulative_prod", "sort")
        for axis in (0, -1)
        if axis == -1 or name not in ("mean", "max", "min", "var", "std")
    },
    "matmul": (lambda xp, x: xp.matmul(x, xp.permute_dims(x, (1, 0))), (3, 0)),
    "matmul of nothing": (lambda xp, x: xp.matmul(x, xp.permute_dims(x, (1, 0))), (0, 3)),
    "tensordot": (lambda xp, x: xp.tensordot(x, x), (0, 3)),
    "vecdot": (lambda xp, x: xp.vecdot(x, x), (3, 0)),
    "solve": (lambda xp, x: xp.linalg.solve(x, x), (0, 2, 2)),
    "concat": (lambda xp, x: xp.concat([x, xp.ones((2, 3), dtype=x.dtype)]), (0, 3)),
    "stack": (lambda xp, x: xp.stack([x, x], axis=1), (0, 3)),
    "broadcast_to": (lambda xp, x: xp.broadcast_to(x, (2, 0, 3)), (0, 1)),
    "reshape": (lambda xp, x: xp.reshape(x, (3, 0, 2)), (0, 3)),
    "where": (lambda xp, x: xp.where(x > 0, x, 1.0), (2, 0)),
    "take": (lambda xp, x: xp.take(x, xp.asarray([0, 1]), axis=1), (0, 3)),
    "a mask": (lambda xp, x: x[x > 9], (2, 3)),
    "a slice": (lambda xp, x: x[1:1, ...], (2, 3)),
    "meshgrid": (lambda xp, x: xp.meshgrid(x, x)[0], (0,)),
    "vector_norm": (lambda xp, x: xp.linalg.vector_norm(x, axis=0), (0, 3)),
    **({} if BACKEND == "torch" else {"fft": (lambda xp, x: xp.fft.fft(x * 1j), (0, 4))}),  # an error of MKL
    "broadcasting": (lambda xp, x: x * xp.ones((2, 1), dtype=x.dtype), (0,)),
}


@compiles
@pytest.mark.parametrize("name", EMPTY)
def test_nothing_and_one_number(name: str) -> None:
    """Arrays without elements and without axes: NumPy's value, and a gradient of the same shape."""
    f, shape = EMPTY[name]
    a = numpy.full(shape, 0.5) + numpy.eye(3) if shape == (0, 3, 3) else numpy.full(shape, 0.5)
    with numpy.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        try:
            expected = f(reference, a)
        except Exception:
            with pytest.raises((ValueError, IndexError, TypeError, RuntimeError)):
                f(mg, tensor(a))
            return
        x = tensor(a, requires_grad=True)
        out = f(mg, x)
        loss: Any = 0.0
        for mine, theirs in zip(several(out), several(expected), strict=True):
            assert mine.shape == numpy.shape(theirs)
            assert_allclose(value(mine), theirs)
            if mine.requires_grad:
                loss = loss + mg.sum(mg.real(mine) if mg.isdtype(mine.dtype, "complex floating") else mine)
        if isinstance(loss, mg.Tensor):
            loss.backward()
            assert x.grad is not None
            assert x.grad.shape == shape
            assert numpy.all(numpy.isfinite(value(x.grad))) or name == "acosh()"


AXIS: dict[str, Callable[[Any, Any, int], Any]] = {
    **{name: (lambda xp, x, axis, n=name: getattr(xp, n)(x, axis=axis)) for name in (
        "all", "any", "argmax", "argmin", "argsort", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff",
        "expand_dims", "flip", "max", "mean", "min", "prod", "sort", "std", "sum", "unstack", "var",
    )},
    "concat": lambda xp, x, axis: xp.concat([x, x], axis=axis),
    "moveaxis": lambda xp, x, axis: xp.moveaxis(x, 0, axis),
    "permute_dims": lambda xp, x, axis: xp.permute_dims(x, (axis, 0) if axis in (1, -1) else (axis, 1)),
    "repeat": lambda xp, x, axis: xp.repeat(x, 2, axis=axis),
    "roll": lambda xp, x, axis: xp.roll(x, 1, axis=axis),
    "squeeze": lambda xp, x, axis: xp.squeeze(x[:1, :1], axis=axis),
    "stack": lambda xp, x, axis: xp.stack([x, x], axis=axis),
    "take": lambda xp, x, axis: xp.take(x, xp.asarray([0]), axis=axis),
    "take_along_axis": lambda xp, x, axis: xp.take_along_axis(x, xp.asarray([[0, 1, 0]]), axis=axis),
    "linalg.cross": lambda xp, x, axis: xp.linalg.cross(x, x + 1, axis=axis if axis < 0 else axis - 2),
    "linalg.vector_norm": lambda xp, x, axis: xp.linalg.vector_norm(x, axis=axis),
    "tensordot": lambda xp, x, axis: xp.tensordot(x, x, axes=((axis,), (axis,))),
    "vecdot": lambda xp, x, axis: xp.vecdot(x, x, axis=axis if axis < 0 else axis - 2),
    **{f"fft.{name}": (lambda xp, x, axis, n=name: getattr(xp.fft, n)(x * 1j, axis=axis)) for name in (
        "fft", "ifft", "irfft", "hfft",
    )},
    **{f"fft.{name}": (lambda xp, x, axis, n=name: getattr(xp.fft, n)(x, axis=axis)) for name in ("rfft", "ihfft")},
    **{f"fft.{name}": (lambda xp, x, axis, n=name: getattr(xp.fft, n)(x * 1j, axes=(axis,))) for name in (
        "fftn", "ifftn", "irfftn", "fftshift", "ifftshift",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", AXIS)
def test_negative_axes_and_axes_out_of_range(name: str) -> None:
    f = AXIS[name]
    a = numpy.random.default_rng(0).normal(size=(3, 3))
    for axis in (-1, -2, 0, 1):
        for mine, theirs in zip(several(f(mg, tensor(a), axis)), several(f(reference, a, axis)), strict=True):
            assert_allclose(value(mine), theirs, rtol=1e-12, atol=1e-14)
    for axis in (4, -4):
        with pytest.raises((IndexError, ValueError, TypeError) if BACKEND == "jax" else (IndexError, ValueError)):
            f(mg, tensor(a, requires_grad=True), axis)


# ------------------------------------------------------------------------------------------------ operators

OPERATORS = {
    "+": (operator.add, operator.iadd, float), "-": (operator.sub, operator.isub, float),
    "*": (operator.mul, operator.imul, float), "/": (operator.truediv, operator.itruediv, float),
    "//": (operator.floordiv, operator.ifloordiv, float), "%": (operator.mod, operator.imod, float),
    "**": (operator.pow, operator.ipow, float), "@": (operator.matmul, operator.imatmul, float),
    "&": (operator.and_, operator.iand, int), "|": (operator.or_, operator.ior, int),
    "^": (operator.xor, operator.ixor, int), "<<": (operator.lshift, operator.ilshift, int),
    ">>": (operator.rshift, operator.irshift, int),
    "==": (operator.eq, None, float), "!=": (operator.ne, None, float), "<": (operator.lt, None, float),
    "<=": (operator.le, None, float), ">": (operator.gt, None, float), ">=": (operator.ge, None, float),
}  # fmt: skip


@pytest.mark.parametrize("sign", OPERATORS)
def test_operator(sign: str) -> None:
    """x ∘ y, x ∘ scalar, scalar ∘ x, x ∘ array, array ∘ x and x ∘= y give what NumPy gives."""
    f, in_place, kind = OPERATORS[sign]
    a, b = numpy.array([[3, 1], [2, 5]], kind), numpy.array([[1, 2], [3, 2]], kind)
    raw = backend.from_numpy(b)
    assert_allclose(value(f(tensor(a), tensor(b))), f(a, b))
    assert_allclose(value(f(tensor(a), raw)), f(a, b))
    if BACKEND == "numpy":  # a raw array on the left asks its own library first
        assert_allclose(value(f(raw, tensor(a))), f(b, a))
    if sign != "@":
        assert_allclose(value(f(tensor(a), kind(2))), f(a, kind(2)))
        assert_allclose(value(f(kind(2), tensor(a))), f(kind(2), a))
    if in_place is not None:
        x = y = tensor(a)
        x = in_place(x, tensor(b))
        assert x is y
        assert_allclose(value(x), f(a, b))
    if sign not in ("==", "!="):
        with pytest.raises(TypeError):
            f(tensor(a), "text")


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "**", "@", "%"])
def test_operator_in_place_in_a_graph(sign: str) -> None:
    """``z ∘= y`` on a result: both sides get the gradients of ``z ∘ y``, which NumPy's finite differences confirm."""
    f, in_place, _ = OPERATORS[sign]
    arrays = [numpy.array([[1.3, 0.7], [0.9, 1.1]]), numpy.array([[1.7, 2.1], [1.9, 2.3]])]
    found = []
    for operation in (f, in_place):
        x, y = (tensor(a, requires_grad=True) for a in arrays)
        z = mg.exp(x)
        before = z + 0.0
        z = operation(z, y)
        mg.sum(z * z + before).backward()
        found.append((value(z), value(x.grad), value(y.grad)))
    for pure, changed in zip(*found, strict=True):
        assert_allclose(changed, pure, rtol=1e-14)
    h = 1e-6
    up, down = (numpy.sum(f(numpy.exp(arrays[0]), arrays[1] + d) ** 2) for d in (h, -h))
    assert_allclose(numpy.sum(found[0][2]), (up - down) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize(
    "key", [0, (slice(None), 1), slice(None, None, -1), ..., (1, 2)], ids=["row", "column", "reverse", "all", "one"]
)
def test_assignment_in_a_graph(key: Any) -> None:
    a = numpy.random.default_rng(0).normal(size=(2, 3))
    b = numpy.random.default_rng(1).normal(size=a[key].shape)
    x, v = tensor(a, requires_grad=True), tensor(b, requires_grad=True)
    y = x * 2
    square = y * y  # needs the values before the assignment
    y[key] = v * 3
    mg.sum(y * y + square).backward()
    kept = numpy.ones_like(a)
    kept[key] = 0
    assert_allclose(value(x.grad), 8 * a + 8 * a * kept, rtol=1e-14)
    assert_allclose(value(v.grad), 18 * b, rtol=1e-14)


def test_assignment_to_a_constant_makes_it_part_of_the_graph() -> None:
    v = tensor(2.0, requires_grad=True)
    y = mg.zeros(3)
    y[1] = v
    mg.sum(y * y).backward()
    assert value(v.grad) == 4


def test_unary_operators_and_conversions() -> None:
    x = tensor([-1.5, 2.0])
    for f in (operator.neg, operator.pos, abs):
        assert_array_equal(value(f(x)), f(numpy.array([-1.5, 2.0])))
    assert_array_equal(value(~tensor([True, False])), [False, True])
    assert (bool(tensor(True)), int(tensor(3)), float(tensor(2.5)), complex(tensor(1j))) == (True, 3, 2.5, 1j)
    assert [10, 20, 30][tensor(1)] == 20
    with pytest.raises(TypeError):
        operator.index(tensor(1.0))
    assert (x.ndim, x.size, x.shape, x.T.shape if x.ndim == 2 else None) == (1, 2, (2,), None)
    m = tensor([[1.0, 2.0, 3.0]])
    assert m.T.shape == m.mT.shape == (3, 1)
    assert m.to_device(m.device).device == m.device
    assert m.__array_namespace__(api_version="2024.12") is mg


# ------------------------------------------------------------------------------------------------ special numbers


@pytest.mark.skipif(BACKEND != "numpy", reason="compared with NumPy")
@pytest.mark.parametrize(
    "name",
    [name for name in CASES if CASES[name].kinds.startswith("r") and not name.startswith(("linalg.", "fft."))],
)
def test_nan_stays_nan(name: str) -> None:
    """A NaN in the argument is NaN in the result where NumPy has it, and never becomes a number in the gradient."""
    case = CASES[name]
    arrays = case.arrays("r", seed_of(name))
    arrays[0].flat[0] = numpy.nan
    with numpy.errstate(all="ignore"):
        expected = several(case.f(reference, *arrays))
        x, *rest = (tensor(a, requires_grad=True) for a in arrays)
        out = several(case.f(mg, x, *rest))
        for mine, theirs in zip(out, expected, strict=True):
            assert_allclose(value(mine), theirs, equal_nan=True)
        loss: Any = sum(mg.sum(mg.real(y * y) if mg.isdtype(y.dtype, "complex floating") else y * y) for y in out)
        loss.backward()
    if numpy.isnan(value(loss)):
        assert numpy.isnan(value(x.grad)).any()


@pytest.mark.parametrize(
    ("f", "at", "slope"),
    [
        (mg.exp, -numpy.inf, 0.0), (mg.exp, numpy.inf, numpy.inf), (mg.tanh, numpy.inf, 0.0), (mg.atan, numpy.inf, 0.0),
        (mg.log, 0.0, numpy.inf), (mg.sqrt, 0.0, numpy.inf), (mg.sqrt, numpy.inf, 0.0), (mg.reciprocal, numpy.inf, 0.0),
        (mg.abs, -numpy.inf, -1.0), (mg.square, numpy.inf, numpy.inf), (mg.expm1, -numpy.inf, 0.0),
        (lambda x: mg.maximum(x, 0.0), -numpy.inf, 0.0), (lambda x: mg.clip(x, -1.0, 1.0), numpy.inf, 0.0),
        (lambda x: mg.logaddexp(x, tensor(0.0)), -numpy.inf, 0.0), (lambda x: mg.logaddexp(x, tensor(0.0)), 800.0, 1.0),
        (lambda x: mg.hypot(x, tensor(1e200)), 1e200, 0.5**0.5),
    ],
)  # fmt: skip
def test_slopes_at_the_ends(f: Any, at: float, slope: float) -> None:
    x = tensor(at, requires_grad=True)
    with numpy.errstate(all="ignore"):
        mg.sum(f(x)).backward()
    assert_allclose(value(x.grad), slope, rtol=1e-12)


# ------------------------------------------------------------------------------------------------ layouts


@pytest.mark.skipif(BACKEND != "numpy", reason="layouts of NumPy's arrays")
@pytest.mark.parametrize("name", [name for name in CASES if "dtype" not in name])
def test_layouts(name: str) -> None:
    """Big-endian, reversed and strided arrays give the same values and gradients as plain ones."""
    case = CASES[name]
    plain = case.arrays(case.kinds[0], seed_of(name))
    found = []
    for layout in (
        lambda a: a,
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        lambda a: numpy.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
        lambda a: numpy.flip(numpy.flip(a).copy()),
        numpy.asfortranarray,
    ):
        xs = [mg.asarray(layout(a)) for a in plain]
        for x in xs:
            x.requires_grad = True
        out = several(case.f(mg, *xs))
        sum(mg.sum(mg.real(y * y) if numpy.iscomplexobj(y.data) else y * y) for y in out).backward()
        found.append([value(y) for y in out] + [value(x.grad) for x in xs])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert_allclose(b, a, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------ the list of functions


@pytest.mark.skipif(BACKEND != "numpy", reason="the page is the same on every backend")
def test_the_page_of_functions_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "functions.md"
    made = subprocess.run(
        [sys.executable, page.with_name("make_functions.py"), "-"], capture_output=True, check=True, encoding="utf-8"
    )
    assert page.read_text(encoding="utf-8") == made.stdout, "run docs/make_functions.py"
