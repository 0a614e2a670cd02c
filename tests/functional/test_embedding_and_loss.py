"""embedding and cross_entropy: integers that choose. Twins, rows that are ignored, and errors."""

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

REDUCTIONS = ["mean", "sum", "none"]

# ------------------------------------------------------------------------------------------------ embedding


@given(st.lists(st.integers(0, 4), max_size=3), st.integers(1, 6), st.integers(1, 4), st.integers(0, 999))
def test_embedding_twin(shape: list[int], n: int, d: int, seed: int) -> None:
    rng = numpy.random.default_rng(seed)
    indices = tensor(rng.integers(0, n, shape))
    agree(lambda w: F.embedding(indices, w), lambda w: composed.embedding(indices, w), rng.normal(size=(n, d)))


@pytest.mark.parametrize("count", [4, 400])  # NumPy's two ways to add at indices
def test_repeated_indices_add_up(count: int) -> None:
    weight = tensor(numpy.zeros((3, 2)), requires_grad=True)
    F.embedding(tensor(numpy.full((count,), 1)), weight).backward(tensor(numpy.ones((count, 2))))
    assert_array_equal(value(weight.grad), [[0, 0], [count, count], [0, 0]])


@pytest.mark.parametrize(
    ("dtype", "n"), [("int8", 200), ("uint8", 256), ("int16", 70000), ("uint16", 70000), ("int32", 3), ("uint32", 3)]
)
def test_indices_of_any_integer_dtype(dtype: str, n: int) -> None:
    """Also those that cannot count the rows: n overflows them."""
    rows = numpy.arange(60).reshape(2, 30) % min(n, 50)
    agree(
        lambda w: F.embedding(tensor(rows.astype(dtype)), w),
        lambda w: composed.embedding(tensor(rows), w),
        numpy.random.default_rng(0).normal(size=(n, 2)),
    )


@pytest.mark.skipif(mg.get_backend() == "jax", reason="JAX does not check: it gives NaN")
def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises((IndexError, RuntimeError), match=r"^embedding: .*weight: float64 \(3, 2\)"):
        F.embedding(tensor([3]), tensor(numpy.zeros((3, 2))))


@pytest.mark.skipif(mg.get_backend() != "jax", reason="other libraries check")
def test_an_index_out_of_range_is_nan_on_jax() -> None:
    assert numpy.all(numpy.isnan(value(F.embedding(tensor([3]), tensor(numpy.zeros((3, 2)))))))


def test_embedding_errors() -> None:
    with pytest.raises(TypeError, match=r"^embedding: expected indices of an integer dtype \(given indices: float64"):
        F.embedding(tensor([1.0]), tensor(numpy.zeros((3, 2))))
    with pytest.raises(ValueError, match=r"^embedding: expected weight of shape \(n, d\)"):
        F.embedding(tensor([1]), tensor(numpy.zeros((3,))))


# ------------------------------------------------------------------------------------------------ cross_entropy


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([-100, 0, 3]),
    st.integers(0, 999),
)
def test_cross_entropy_twin(
    reduction: str, shape: list[int], C: int, smoothing: float, ignored: int, seed: int
) -> None:
    rng = numpy.random.default_rng(seed)
    targets = numpy.asarray(rng.integers(0, C, shape))
    targets[rng.random(shape) < 0.3] = ignored
    if numpy.all(targets == ignored):  # the twin divides by 0 there
        targets = numpy.full(shape, 1 % C if ignored == 0 else 0)
        ignored = -100
    target = tensor(targets)
    options: dict[str, Any] = {"ignore_index": ignored, "label_smoothing": smoothing, "reduction": reduction}
    agree(
        lambda x: F.cross_entropy(x, target, **options),
        lambda x: composed.cross_entropy(x, target, **options),
        rng.normal(0, 3, (*shape, C)),
    )


def test_a_uniform_guess_costs_log_C() -> None:
    assert_allclose(value(F.cross_entropy(tensor(numpy.zeros((3, 7))), tensor([0, 3, 6]))), math.log(7), rtol=1e-15)


def test_certainty_costs_nothing_or_much() -> None:
    x = tensor([[1e4, 0.0], [1e4, 0.0]])
    assert_array_equal(value(F.cross_entropy(x, tensor([0, 1]), reduction="none")), [0, 1e4])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_ignored_row_reaches_nothing(reduction: str, smoothing: float, bad: float) -> None:
    rows = numpy.random.default_rng(0).normal(size=(4, 3))
    target = numpy.array([2, -100, 0, -100])
    clean, spoilt = tensor(rows, requires_grad=True), numpy.array(rows)
    spoilt[1] = bad
    spoilt[3, 0] = bad
    dirty = tensor(spoilt, requires_grad=True)
    direction = tensor(numpy.ones((4, 3)))

    def loss(x: Any) -> Any:
        y = F.cross_entropy(x, tensor(target), label_smoothing=smoothing, reduction=reduction)
        return mg.sum(y * y)

    for x in (clean, dirty):
        loss(x).backward()
    assert_array_equal(value(loss(dirty)), value(loss(clean)))
    assert_array_equal(value(dirty.grad), value(clean.grad))
    assert_array_equal(value(clean.grad)[[1, 3]], 0)
    assert numpy.all(value(clean.grad)[[0, 2]] != 0)
    second = value(mg.hvp(loss, [dirty], [direction]))
    assert_array_equal(second, value(mg.hvp(loss, [clean], [direction])))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_all_rows_ignored_is_0(reduction: str) -> None:
    x = tensor([[math.nan, 1.0], [2.0, 3.0]], requires_grad=True)
    loss = F.cross_entropy(x, tensor([-100, -100]), reduction=reduction)
    assert_array_equal(value(loss), numpy.zeros(loss.shape))
    mg.sum(loss).backward()
    assert_array_equal(value(x.grad), numpy.zeros((2, 2)))


def test_the_mean_is_over_the_rows_that_count() -> None:
    x = numpy.random.default_rng(1).normal(size=(4, 3))
    few = F.cross_entropy(tensor(x[:2]), tensor([0, 1]))
    padded = F.cross_entropy(tensor(x), tensor([0, 1, -1, -1]), ignore_index=-1)
    assert_allclose(value(padded), value(few), rtol=1e-15)


def test_an_impossible_class_has_no_gradient() -> None:
    x = tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    loss = F.cross_entropy(x, tensor([0]))
    assert_allclose(value(loss), math.log(2), rtol=1e-15)
    loss.backward()
    assert_allclose(value(x.grad), [[-0.5, 0, 0.5]], rtol=1e-15)


@pytest.mark.parametrize("target", [-1, 3, 1000])
def test_a_target_out_of_range_is_no_other_class(target: int) -> None:
    x = tensor(numpy.zeros((2, 3)), requires_grad=True)
    if target > 0 and mg.get_backend() in ("numpy", "array_api_strict"):
        with pytest.raises(IndexError, match=r"^cross_entropy: .*logits: float64 \(2, 3\)"):
            F.cross_entropy(x, tensor([0, target]))
    else:
        F.cross_entropy(x, tensor([0, target]), reduction="none").backward(tensor([1.0, 1.0]))
        assert numpy.all(numpy.isfinite(value(x.grad)[0]))
        assert numpy.all(numpy.isnan(value(x.grad)[1]))
        assert numpy.isnan(value(F.cross_entropy(x, tensor([0, target]))))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_targets_of_any_integer_dtype(dtype: str) -> None:
    """Also those that some libraries do not compare with int64."""
    targets = numpy.asarray([2, 0, 1])
    agree(
        lambda x: F.cross_entropy(x, tensor(targets.astype(dtype)), ignore_index=1),
        lambda x: composed.cross_entropy(x, tensor(targets), ignore_index=1),
        numpy.random.default_rng(0).normal(size=(3, 4)),
    )


@pytest.mark.parametrize(
    ("target", "options", "kind", "message"),
    [
        ([0, 1, 0], {}, ValueError, "expected logits of shape (…, C) and target of shape (…)"),
        ([0.0, 1.0], {}, TypeError, "expected target of an integer dtype"),
        ([0, 1], {"reduction": "max"}, ValueError, "expected reduction='mean', 'sum' or 'none', got 'max'"),
        ([0, 1], {"label_smoothing": 1.5}, ValueError, "expected label_smoothing between 0 and 1, got 1.5"),
    ],
)
def test_cross_entropy_errors(target: Any, options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        F.cross_entropy(tensor(numpy.zeros((2, 4))), tensor(target), **options)
    assert str(error.value).startswith(f"cross_entropy: {message}")
    assert "given logits: float64 (2, 4)" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("dtype", "shared"), [("float32", 1e8), ("float32", -1e30), ("float64", 1e17)])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_logits_that_share_a_large_number(dtype: str, shared: float, label_smoothing: float) -> None:
    """A constant added to all logits changes nothing: equal ones are a uniform distribution, ln 3 from any class."""
    x = tensor(numpy.full((1, 3), shared, dtype=dtype), requires_grad=True)
    loss = F.cross_entropy(x, tensor(numpy.array([0])), label_smoothing=label_smoothing)
    loss.backward()
    assert_allclose(value(loss), math.log(3), rtol=1e-6)
    q = label_smoothing / 3 + (1 - label_smoothing) * numpy.array([[1.0, 0, 0]])
    assert_allclose(value(x.grad), 1 / 3 - q, rtol=1e-6)
