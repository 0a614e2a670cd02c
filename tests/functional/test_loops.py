"""The compiled loops for NumPy's float32 against NumPy's passes, and against float64."""

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor, value
from composed import value_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_tiles import cut_into, problems

import attention.functional as F
import minigrad as mg
from attention.functional._numerics import exp_minus, loops_for
from minigrad import backend

if backend.get_backend() != "numpy":
    pytest.skip("the loops are for NumPy's arrays", allow_module_level=True)

XP = backend.NUMPY
loops: Any = importlib.import_module("attention.functional._loops")
attention_loops: Any = importlib.import_module("attention.functional._attention_loops")


def without_loops(f: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "has_compiler", lambda: False)
        return f()


def numbers(seed: int, *shape: int) -> Any:
    return numpy.random.default_rng(seed).normal(size=shape).astype("float32")


# ------------------------------------------------------------------------------------------------ which arrays


def test_float32_row_after_row_is_for_the_loops_and_nothing_else_is() -> None:
    x = numbers(0, 3, 4)
    assert loops_for(XP, x, None, x[1:]) is loops
    assert loops_for(XP, x[:0]) is loops
    others = [x.astype("float64"), x.astype("float16"), x.T, x[:, 1:], x[::-1], x.astype(">f4"), x.view(numpy.recarray)]
    assert [loops_for(XP, x, y) for y in others] == [None] * len(others)
    assert loops_for(mg, mg.asarray(x)) is None  # a derivative of a derivative records each operation
    assert without_loops(lambda: loops_for(XP, x)) is None


@pytest.mark.parametrize("error", [ImportError("Numba needs NumPy 2.4 or less"), AttributeError("numpy.long")])
def test_without_numba_there_is_no_compiler(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise error

    monkeypatch.setattr(backend.importlib, "import_module", fails)
    assert backend.has_compiler.__wrapped__() is False


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = importlib.import_module("numba")
    njit = numba.njit

    def keeps_nothing(f: Any, **options: Any) -> Any:
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(f, **options)

    monkeypatch.setattr(numba, "njit", keeps_nothing)

    def doubled(x: Any) -> None:
        for i in range(x.size):
            x[i] *= 2

    x = numbers(0, 5)
    expected = 2 * x
    backend.compiled()(doubled)(x)
    assert_array_equal(x, expected)


def test_importing_the_library_does_not_import_numba() -> None:
    code = "import sys, minigrad, attention; print('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.strip() == "False"


# ------------------------------------------------------------------------------------------------ functions


def exponentials(x: Any) -> Any:
    x = numpy.atleast_2d(numpy.asarray(x, dtype="float32")).copy()
    return exp_minus(XP, x, numpy.zeros((len(x), 1), "float32"))


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = numpy.linspace(-87.3, 88.3, 1_000_003, dtype="float32")
    assert_allclose(exponentials(x)[0], numpy.exp(x.astype("float64")), rtol=2 * 2.0**-24)


def test_exp_at_its_ends() -> None:
    x = [-math.inf, -1e30, -1000.0, -88.1, 0.0, 88.9, 1e30, math.inf, math.nan]
    assert_array_equal(exponentials(x)[0], numpy.float32([0, 0, 0, 0, 1, math.inf, math.inf, math.inf, math.nan]))
    below = numpy.linspace(-90, -87.3, 1001, dtype="float32")  # where no normal number is so small
    assert_allclose(exponentials(below)[0], numpy.exp(below.astype("float64")), atol=1.2e-38, rtol=0)


def test_a_number_becomes_the_same_wherever_it_stands() -> None:
    """In the middle of a vector instruction or at a row's end: one key more changes no weight in the last bit."""
    x = -numpy.abs(5 * numbers(0, 1003))
    alone = numpy.array([exponentials(v)[0, 0] for v in x])
    assert_array_equal(exponentials(x)[0], alone)
    for f in (F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh")):
        together = value(f(tensor(x)))
        assert_array_equal(together, [value(f(tensor(v))) for v in x])


def test_gelu_is_as_exact_as_its_error_function() -> None:
    x = numpy.linspace(-6, 6, 10_001, dtype="float32")
    exact = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.tolist()]
    assert_allclose(value(F.gelu(tensor(x))), exact, rtol=3e-7, atol=8e-7)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu tanh"])
def test_activations_far_out(name: str) -> None:
    """Far to the left nothing is left, far to the right x itself; NaN stays, and only where it is."""
    f = {"silu": F.silu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh")}[name]
    x = tensor(numpy.float32([-1e6, -200.0, 200.0, 1e6, math.nan, 0.0]))
    assert_array_equal(value(f(x)), numpy.float32([0, 0, 200, 1e6, math.nan, 0]))
    slopes = value(mg.grad(lambda x: mg.sum(f(x)))(x))
    assert_array_equal(slopes, numpy.float32([0, 0, 1, 1, math.nan, 0.5]))


# ------------------------------------------------------------------------------------------------ whole operations


def agree(f: Any, arrays: list[Any], scale: float = 1.0) -> None:
    """f and its gradients are those of float64, on the same numbers, and of NumPy's passes, both to rounding."""
    arrays = [x.astype("float32") for x in arrays]
    fast = value_and_gradients(f, arrays)
    exact = value_and_gradients(f, [x.astype("float64") for x in arrays])
    slow = without_loops(lambda: value_and_gradients(f, arrays))
    for found, expected, also in zip(*[[y, *gradients] for y, gradients in (fast, exact, slow)], strict=True):
        assert found.dtype == also.dtype == "float32"
        tolerance = 2e-6 * scale * max(1.0, float(numpy.max(numpy.abs(expected), initial=0.0)))
        assert_allclose(found, expected, rtol=0, atol=tolerance)
        assert_allclose(found, also, rtol=0, atol=tolerance)


shapes = st.lists(st.integers(0, 5), min_size=0, max_size=2)
widths = st.integers(1, 40)  # of vector instructions' lengths, and not


@given(shapes, widths, st.sampled_from(["silu", "gelu", "gelu tanh"]), st.integers(0, 9))
def test_activations(shape: list[int], d: int, name: str, seed: int) -> None:
    f = {"silu": F.silu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh")}[name]
    agree(f, [3 * numbers(seed, *shape, d)])


@given(shapes, widths, st.booleans(), st.booleans(), st.integers(0, 9))
def test_layer_norm(shape: list[int], d: int, weight: bool, bias: bool, seed: int) -> None:
    def f(x: Any, *wb: Any) -> Any:
        w, b = wb[0] if weight else None, wb[-1] if bias else None
        return F.layer_norm(x, w, b, eps=0.1)  # one number alone has no deviation

    agree(f, [1 + numbers(seed, *shape, d), *[numbers(seed + 1 + i, d) for i in range(weight + bias)]], scale=4)


@given(shapes, widths, st.booleans(), st.integers(0, 9))
def test_rms_norm(shape: list[int], d: int, weight: bool, seed: int) -> None:
    agree(F.rms_norm, [1 + numbers(seed, *shape, d), *[numbers(seed + 1, d)][:weight]], scale=4)


@given(shapes, st.integers(1, 9), st.integers(1, 20), st.booleans(), st.integers(0, 9))
def test_rotary(shape: list[int], T: int, half: int, halves: bool, seed: int) -> None:
    angles = numbers(seed + 1, T, half).astype("float64")

    def f(x: Any) -> Any:
        cos, sin = (tensor(g(angles).astype(mg.backend.dtype_name(x.dtype))) for g in (numpy.cos, numpy.sin))
        return F.rotary(x, cos, sin, halves=halves)

    agree(f, [numbers(seed, *shape, T, 2 * half)])


@given(st.integers(0, 6), widths, st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from(["mean", "sum", "none"]), st.data())
def test_cross_entropy(n: int, C: int, smoothing: float, reduction: str, data: Any) -> None:
    targets = tensor(numpy.asarray(data.draw(st.lists(st.integers(-1, C - 1), min_size=n, max_size=n)), "int64"))
    options = {"ignore_index": -1, "label_smoothing": smoothing, "reduction": reduction}
    agree(lambda x: F.cross_entropy(x, targets, **options), [5 * numbers(n, n, C)], scale=4)


@pytest.mark.parametrize("target", [-7, -21, 0])
def test_cross_entropy_of_what_is_no_number(target: int) -> None:
    """A target that is no class, and NaN among the logits: NaN in this row alone. An ignored row is 0 in any case."""
    x = numbers(0, 3, 20)
    x[0, 5], x[2] = (0.0, math.nan) if target else (math.nan, math.nan)
    f = lambda x: F.cross_entropy(x, tensor([target, 1, -100]), reduction="none")
    y, (dx,) = value_and_gradients(f, [x])
    assert_array_equal(numpy.isnan(y), [True, False, False])
    assert_array_equal(numpy.isnan(dx), numpy.repeat([[True], [False], [False]], 20, axis=1))
    assert_array_equal(dx[2], 0)


@given(problems(), st.sampled_from([None, 4, 16, 50]))
def test_attention(problem: Any, size: int | None) -> None:
    arrays, options = problem

    def f(*arrays: Any) -> Any:
        mask = {"attn_mask": arrays[3]} if len(arrays) == 4 else {}
        if "attn_mask" in options and options["attn_mask"].dtype != mg.bool:
            mask = {"attn_mask": mg.astype(options["attn_mask"], arrays[0].dtype)}
        generator = {"generator": mg.random.Generator(0)} if "dropout_p" in options else {}
        return F.scaled_dot_product_attention(*arrays[:3], **{**options, **mask, **generator})

    cut_into(size, 1, lambda: agree(f, arrays, scale=10))


@given(st.integers(1, 130), st.integers(1, 70), st.integers(0, 70), st.booleans(), st.booleans())
def test_product(rows: int, columns: int, n: int, transposed: bool, add: bool) -> None:
    high, wide = -(-rows // 6) * 6, -(-columns // 16) * 16  # as many numbers as it may read and write
    a, b, c = numbers(0, high, n), numbers(1, n, wide), numbers(2, high, wide)
    expected = a.astype("float64") @ b + (c if add else 0)
    attention_loops.product(numpy.ascontiguousarray(a.T).T if transposed else a, b, c, rows, columns, n, add)
    assert_allclose(c[:rows, :columns], expected[:rows, :columns], rtol=1e-5, atol=1e-5)


lengths = st.sampled_from([1, 5, 6, 16, 60, 64, 65, 120, 121, 127, 250, 600])  # of blocks of 64, 120 and 512


@given(lengths, lengths, st.integers(1, 20), st.integers(1, 40), st.sampled_from([1, 3]), st.data())
def test_attention_in_blocks(L: int, S: int, E: int, Ev: int, threads: int, data: Any) -> None:
    heads = data.draw(st.sampled_from([((), ()), ((2,), (2,)), ((2, 3), (2, 1)), ((1, 3), (2, 1)), ((1, 2, 2), (2,))]))
    q, k, v = numbers(0, *heads[0], L, E), numbers(1, *heads[1], S, E), numbers(2, *heads[1], S, Ev)
    options: dict[str, Any] = {"is_causal": data.draw(st.booleans())}
    if options["is_causal"]:
        options["window"] = data.draw(st.sampled_from([None, 1, 5, 64, 200, 10**30]))
    mask = data.draw(st.sampled_from(["none", "booleans", "keys", "numbers", "padding"]))
    allowed = numpy.random.default_rng(0).random((L, S)) < 0.7
    bias = numpy.where(allowed, numbers(3, L, S), -math.inf)
    masks = {"booleans": allowed, "keys": allowed[:1], "numbers": bias, "padding": allowed[:, :1]}

    def f(*arrays: Any) -> Any:
        given = tensor(masks[mask]) if mask in masks else None
        if given is not None and given.dtype != mg.bool:
            given = mg.astype(given, arrays[0].dtype)
        return F.scaled_dot_product_attention(*arrays, given, **options)

    cut_into(1 << 19, threads, lambda: agree(f, [q, k, v], scale=10))


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qv", "kv"])
def test_attention_computes_the_gradients_that_are_wanted(wanted: str) -> None:
    def gradients(names: str) -> list[Any]:
        tensors = [mg.Tensor(numbers(i, 2, 70, 8), requires_grad=name in names) for i, name in enumerate("qkv")]
        F.scaled_dot_product_attention(*tensors).sum().backward()
        return [None if x.grad is None else value(x.grad) for x in tensors]

    for name, found, expected in zip("qkv", gradients(wanted), gradients("qkv"), strict=True):
        if name in wanted:
            assert_array_equal(found, expected)
        else:
            assert found is None


def test_attention_of_arrays_however_they_lie_in_memory() -> None:
    q, k, v = (numbers(i, 2, 3, 70, 8) for i in range(3))
    expected, gradients = value_and_gradients(F.scaled_dot_product_attention, [q, k, v])
    apart = [numpy.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2), numpy.asfortranarray(k), v.copy()]
    apart[2].flags.writeable = False
    y, found = value_and_gradients(F.scaled_dot_product_attention, apart)
    assert_array_equal(y, expected)
    for a, b in zip(found, gradients, strict=True):
        assert_array_equal(a, b)
    misaligned = numpy.frombuffer(b"x" + q.tobytes(), "float32", offset=1).reshape(q.shape)
    assert_allclose(value(F.scaled_dot_product_attention(tensor(misaligned), k, v)), expected, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_attention_does_not_see_what_is_masked(bad: float) -> None:
    """Padding, of any numbers, reaches neither the output nor a gradient; nor does a query without a key."""
    q, k, v = numbers(0, 2, 70, 8), numbers(1, 2, 90, 8), numbers(2, 2, 90, 8)
    allowed = numpy.arange(90) < numpy.asarray([80, 90])[:, None, None]
    allowed = numpy.repeat(allowed, 70, axis=1)
    allowed[0, 3] = False
    f = lambda *xs: F.scaled_dot_product_attention(*xs, tensor(allowed))
    expected, gradients = value_and_gradients(f, [q, k, v])
    for x in (k, v):
        x[0, 80:] = bad
    q[0, 3] = bad
    y, found = value_and_gradients(f, [q, k, v])
    assert_array_equal(y[0, 3], 0)
    assert_array_equal(y, expected)
    for a, b in zip(found, gradients, strict=True):
        assert_array_equal(a, b)


def test_attention_to_what_is_no_number() -> None:
    """NaN where a key is NaN, or a score is too large: for the queries that see it."""
    q, k, v = numbers(0, 70, 8), numbers(1, 70, 8), numbers(2, 70, 8)
    k[60] = math.nan
    y = value(F.scaled_dot_product_attention(*map(tensor, (q, k, v)), is_causal=True))
    assert_array_equal(numpy.isnan(y).all(axis=1), numpy.arange(70) >= 60)
    k[60], q[65] = 3e38, 3e38
    y = value(F.scaled_dot_product_attention(*map(tensor, (q, k, v)), is_causal=True))
    assert numpy.isnan(y[65]).all()
    assert numpy.isfinite(y[:60]).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_every_thread_computes_its_part(threads: int) -> None:
    """Of sizes at which several threads work, with the real tiles: the result is the same to the last bit or so."""
    x, w = numbers(0, 1200, 900), numbers(1, 900)
    t = tensor(numpy.arange(1200) % 900)
    functions: list[tuple[Any, list[Any]]] = [
        (F.gelu, [x]),
        (F.layer_norm, [x, w, w]),
        (F.rms_norm, [x, w]),
        (lambda x: F.cross_entropy(x, t), [x]),
    ]
    for f, arrays in functions:
        y, gradients = cut_into(1 << 19, threads, lambda f=f, arrays=arrays: value_and_gradients(f, arrays))
        expected, whole = cut_into(1 << 24, 1, lambda f=f, arrays=arrays: value_and_gradients(f, arrays))
        for found, right in zip([y, *gradients], [expected, *whole], strict=True):
            assert_allclose(found, right, rtol=1e-6, atol=1e-6 * float(numpy.max(numpy.abs(right))))
