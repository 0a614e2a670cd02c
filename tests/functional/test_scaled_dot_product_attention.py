"""scaled_dot_product_attention: its twin, masks, what must not leak, weights, dropout, memory and errors."""

import math
from typing import Any

import composed
import numpy
import pytest
from checks import tensor, value
from composed import agree, check_derivatives, value_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import attention.functional as F
import minigrad as mg
from minigrad import backend
from minigrad.random import Generator

attention = F.scaled_dot_product_attention
BAD = [math.nan, math.inf, -math.inf]


def numbers(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = numpy.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def booleans(shape: tuple[int, ...], seed: int = 0) -> Any:
    """A mask that leaves every query something to attend to: the first key, to which a causal query may attend."""
    mask = numpy.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] = True
    return mask


# ------------------------------------------------------------------------------------------------ the twin

CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "one head": ([(3, 4), (5, 4), (5, 2)], {}),
    "batch and heads": ([(2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)], {}),
    "scale": ([(3, 4), (5, 4), (5, 2)], {"scale": 2.0}),
    "leading axes that broadcast": ([(2, 1, 3, 4), (3, 5, 4), (1, 3, 5, 2)], {}),
    "values with more leading axes": ([(3, 4), (5, 4), (2, 5, 2)], {"attn_mask": booleans((3, 5)), "is_causal": True}),
    "causal": ([(2, 4, 3), (2, 4, 3), (2, 4, 3)], {"is_causal": True}),
    "causal, more keys": ([(2, 3, 4), (2, 5, 4), (2, 5, 2)], {"is_causal": True}),
    "causal, more queries": ([(2, 5, 4), (2, 3, 4), (2, 3, 2)], {"is_causal": True}),
    "booleans": ([(2, 3, 4), (2, 5, 4), (2, 5, 2)], {"attn_mask": booleans((2, 3, 5))}),
    "booleans for keys": ([(2, 3, 4), (2, 5, 4), (2, 5, 2)], {"attn_mask": booleans((5,))}),
    "booleans for queries": ([(2, 3, 4), (2, 5, 4), (2, 5, 2)], {"attn_mask": booleans((3, 1))}),
    "booleans and causal": ([(2, 3, 4), (2, 5, 4), (2, 5, 2)], {"attn_mask": booleans((2, 1, 5)), "is_causal": True}),
    "groups": ([(2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)], {"enable_gqa": True}),
    "groups, one key head": ([(6, 3, 4), (1, 5, 4), (1, 5, 3)], {"enable_gqa": True}),
    "groups that are none": ([(2, 3, 4), (2, 5, 4), (2, 5, 3)], {"enable_gqa": True}),
    "groups, causal": ([(4, 3, 4), (2, 5, 4), (2, 5, 3)], {"enable_gqa": True, "is_causal": True}),
    "groups, mask for each head": (
        [(2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)],
        {"enable_gqa": True, "attn_mask": booleans((4, 3, 5))},
    ),
    "groups, mask for each batch": (
        [(2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)],
        {"enable_gqa": True, "attn_mask": booleans((2, 1, 1, 5))},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weights", [False, True], ids=["output", "with weights"])
def test_twin(case: str, weights: bool) -> None:
    shapes, options = CASES[case]
    options = {name: tensor(v) if name == "attn_mask" else v for name, v in options.items()}
    arrays = numbers(*shapes)
    if weights:
        agree(
            lambda *xs: attention(*xs, return_weights=True, **options)[0],
            lambda *xs: composed.scaled_dot_product_attention(*xs, **options)[0],
            *arrays,
        )
        agree(
            lambda q, k: attention(q, k, tensor(arrays[2]), return_weights=True, **options)[1],
            lambda q, k: composed.scaled_dot_product_attention(q, k, tensor(arrays[2]), **options)[1],
            *arrays[:2],
        )
    else:
        agree(
            lambda *xs: attention(*xs, **options),
            lambda *xs: composed.scaled_dot_product_attention(*xs, **options)[0],
            *arrays,
        )


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (4, 3, 5), (1, 1, 5), (3, 1), (5,), (2, 1, 3, 5), ()])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_bias_has_a_gradient_summed_over_its_broadcast_axes(shape: tuple[int, ...], is_causal: bool) -> None:
    arrays = numbers((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3), shape)
    agree(
        lambda *xs: attention(*xs, is_causal=is_causal, enable_gqa=True),
        lambda *xs: composed.scaled_dot_product_attention(*xs, is_causal=is_causal, enable_gqa=True)[0],
        *arrays,
    )


@given(st.lists(st.integers(1, 2), max_size=2), *[st.integers(1, 4)] * 4, st.booleans(), st.integers(0, 999))
def test_twin_of_any_shape(leading: list[int], L: int, S: int, E: int, Ev: int, is_causal: bool, seed: int) -> None:
    arrays = numbers((*leading, L, E), (*leading, S, E), (*leading, S, Ev), seed=seed)
    mask = tensor(booleans((L, S), seed))
    agree(
        lambda *xs: attention(*xs, mask, is_causal=is_causal),
        lambda *xs: composed.scaled_dot_product_attention(*xs, mask, is_causal)[0],
        *arrays,
    )


def test_derivatives_of_groups_with_masks() -> None:
    mask = tensor(booleans((2, 3, 4)))
    arrays = numbers((2, 3, 2), (1, 4, 2), (1, 4, 3))
    check_derivatives(lambda *xs: attention(*xs, mask, is_causal=True, enable_gqa=True), *arrays)


def test_derivatives_of_output_and_weights() -> None:
    arrays = numbers((3, 2), (4, 2), (4, 2), (3, 4))
    check_derivatives(lambda *xs: attention(*xs, is_causal=True, return_weights=True), *arrays)


# ------------------------------------------------------------------------------------------------ nothing to attend to


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_with_every_key_masked_gets_zeros_and_gives_none(additive: bool, is_causal: bool) -> None:
    allowed = numpy.array([[True, True, False], [False, False, False], [False, True, True]])
    mask = numpy.where(allowed, 0.0, -math.inf) if additive else allowed
    q, k, v = numbers((2, 3, 4), (2, 3, 4), (2, 3, 4))

    def f(*xs: Any) -> Any:
        return attention(*xs, tensor(mask), is_causal=is_causal)

    y, (dq, dk, dv) = value_and_gradients(f, [q, k, v])
    assert_array_equal(y[:, 1], 0)
    assert_array_equal(dq[:, 1], 0)
    assert numpy.all(y[:, [0, 2]] != 0)
    # The rest is as if this query were not there.
    others = tensor(mask[[0, 2]])
    seed = numpy.random.default_rng(7).normal(size=y.shape)[:, [0, 2]]
    if not is_causal:  # rows would move
        xs = [tensor(x, requires_grad=True) for x in (q[:, [0, 2]], k, v)]
        attention(*xs, others).backward(tensor(seed))
        for found, x in zip((dq[:, [0, 2]], dk, dv), xs, strict=True):
            assert_allclose(found, value(x.grad), rtol=1e-13, atol=1e-15)
    second = mg.hvp(lambda *xs: mg.sum(f(*xs) ** 2), [tensor(x) for x in (q, k, v)], [tensor(x) for x in (q, k, v)])
    assert all(numpy.all(numpy.isfinite(value(x))) for x in second)
    assert_array_equal(value(second[0])[:, 1], 0)


def test_all_masked_for_all() -> None:
    arrays = numbers((3, 4), (5, 4), (5, 2))
    for mask in (numpy.zeros((3, 5), dtype=bool), numpy.full((3, 5), -math.inf)):
        y, gradients = value_and_gradients(lambda *xs, mask=mask: attention(*xs, tensor(mask)), arrays)
        for x in (y, *gradients):
            assert_array_equal(x, 0)


def test_the_gradient_of_a_bias_of_minus_infinity_is_0() -> None:
    q, k, v = numbers((3, 4), (5, 4), (5, 2))
    bias = numbers((3, 5), seed=1)[0]
    bias[0, 2:] = bias[1] = -math.inf
    b = tensor(bias, requires_grad=True)
    y = attention(tensor(q), tensor(k), tensor(v), b)
    y.backward(tensor(numpy.ones((3, 2))))
    assert_array_equal(value(b.grad)[bias == -math.inf], 0)
    assert numpy.all(value(b.grad)[bias != -math.inf] != 0)


def test_rows_of_a_bias_gradient_sum_to_0() -> None:
    """A constant added to a query's scores changes nothing: dS = P ∘ (dP − D) sums to 0."""
    arrays = numbers((3, 4), (5, 4), (5, 2), (3, 5))
    _, gradients = value_and_gradients(attention, arrays)
    assert_allclose(gradients[3].sum(axis=-1), numpy.zeros(3), atol=1e-15)
    assert numpy.abs(gradients[3]).max() > 0.01


@pytest.mark.parametrize(("L", "S", "B"), [(3, 0, 2), (0, 3, 2), (0, 0, 2), (2, 3, 0)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_nothing_there(L: int, S: int, B: int, is_causal: bool) -> None:
    arrays = numbers((B, L, 4), (B, S, 4), (B, S, 2))
    y, gradients = value_and_gradients(lambda *xs: attention(*xs, is_causal=is_causal), arrays)
    assert y.shape == (B, L, 2)
    # Of no keys there is nothing to attend to; of no queries nobody does; and a batch of none is empty.
    for x in (y, *gradients):
        assert_array_equal(x, 0)


# ------------------------------------------------------------------------------------------------ what must not leak


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("with_weights", [False, True])
def test_padding_reaches_nothing(bad: float, additive: bool, is_causal: bool, with_weights: bool) -> None:
    """Keys 3 and 4 are padding: the result is that of the first three keys alone."""
    q, k, v = numbers((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 3))
    k[..., 3:, :], v[..., 3:, :] = bad, bad
    allowed = numpy.arange(5) < 3
    mask = tensor(numpy.where(allowed, 0.0, -math.inf) if additive else allowed)

    def f(*xs: Any, mask: Any = None) -> Any:
        out = attention(*xs, mask, is_causal=is_causal, enable_gqa=True, return_weights=with_weights)
        return out[0] if with_weights else out

    y, (dq, dk, dv) = value_and_gradients(lambda *xs: f(*xs, mask=mask), [q, k, v])
    expected, (eq, ek, ev) = value_and_gradients(f, [q, k[..., :3, :], v[..., :3, :]])
    assert_allclose(y, expected, rtol=1e-13)
    assert_allclose(dq, eq, rtol=1e-12, atol=1e-14)
    for found, cut in ((dk, ek), (dv, ev)):
        assert_allclose(found[..., :3, :], cut, rtol=1e-12, atol=1e-14)
        assert_array_equal(found[..., 3:, :], 0)

    xs = [tensor(x) for x in (q, k, v)]
    directions = [tensor(numpy.ones(x.shape)) for x in (q, k, v)]
    for product in mg.hvp(lambda *xs: mg.sum(f(*xs, mask=mask) ** 2), xs, directions):
        assert numpy.all(numpy.isfinite(value(product)))


@pytest.mark.parametrize("bad", BAD)
def test_a_padded_query_reaches_nothing_either(bad: float) -> None:
    """Self-attention in which positions 3 and 4 take no part: mask of rows and columns."""
    x = numbers((5, 4))[0]
    x[3:] = bad
    there = numpy.arange(5) < 3
    mask = tensor(there[:, None] & there)
    y, (dx,) = value_and_gradients(lambda x: attention(x, x, x, mask), [x])
    expected, (cut,) = value_and_gradients(lambda x: mg.concat([attention(x, x, x), mg.zeros_like(x)[:2]]), [x[:3]])
    assert_allclose(y, expected, rtol=1e-13)
    assert_allclose(dx[:3], cut, rtol=1e-12, atol=1e-14)
    assert_array_equal(dx[3:], 0)


def test_the_future_does_not_reach_the_past() -> None:
    """With other keys and values from position 2 on, outputs and gradients of queries 0 and 1 are the same bits."""
    q, k, v = numbers((2, 4, 3), (2, 4, 3), (2, 4, 3))
    expected, (dq, _, _) = value_and_gradients(lambda *xs: attention(*xs, is_causal=True), [q, k, v])
    k[:, 2:], v[:, 2:] = 1e3, -1e3
    y, (found, _, _) = value_and_gradients(lambda *xs: attention(*xs, is_causal=True), [q, k, v])
    assert_array_equal(y[:, :2], expected[:, :2])
    assert_array_equal(found[:, :2], dq[:, :2])
    assert numpy.all(y[:, 2:] != expected[:, 2:])


@pytest.mark.parametrize(("L", "S"), [(4, 4), (3, 5), (5, 3)])
def test_causal_is_counted_from_the_first_position(L: int, S: int) -> None:
    """∂ output i / ∂ value j is the weight: not 0 for j ≤ i, 0 for j > i."""
    q, k, v = numbers((L, 2), (S, 2), (S, 1))
    J = value(mg.jacobian(lambda v: attention(tensor(q), tensor(k), v, is_causal=True))(tensor(v)))
    assert_array_equal(J[:, 0, :, 0] != 0, numpy.tri(L, S, dtype=bool))


@pytest.mark.parametrize(("L", "S"), [(5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("window", [1, 2, 4, 9])
def test_a_window_is_a_mask(L: int, S: int, window: int) -> None:
    """i − window < j ≤ i, written as a mask; value and gradients."""
    arrays = numbers((2, L, 3), (2, S, 3), (2, S, 2))
    i, j = numpy.arange(L)[:, None], numpy.arange(S)
    mask = tensor((j <= i) & (j > i - window))
    y, gradients = value_and_gradients(
        lambda *xs: F.scaled_dot_product_attention(*xs, is_causal=True, window=window), arrays
    )
    expected, right = value_and_gradients(lambda *xs: F.scaled_dot_product_attention(*xs, attn_mask=mask), arrays)
    assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    for found, gradient in zip(gradients, right, strict=True):
        assert_allclose(found, gradient, rtol=1e-12, atol=1e-12)
    if window < 9:
        weights = F.scaled_dot_product_attention(
            *map(tensor, arrays), is_causal=True, window=window, return_weights=True
        )[1]
        assert ((value(weights) > 0) == ((j <= i) & (j > i - window))).all()


def test_a_bad_number_that_is_seen_shows() -> None:
    q, k, v = numbers((3, 4), (5, 4), (5, 2))
    v[1, 0] = math.nan
    y = value(attention(tensor(q), tensor(k), tensor(v), tensor(numpy.ones((3, 5), dtype=bool))))
    assert numpy.all(numpy.isnan(y[:, 0]))
    assert numpy.all(numpy.isfinite(y[:, 1]))


# ------------------------------------------------------------------------------------------------ exact cases


def test_equal_keys_give_the_mean() -> None:
    q, v = numbers((3, 4), (5, 2))
    y = attention(tensor(q), tensor(numpy.ones((5, 4))), tensor(v))
    assert_allclose(value(y), numpy.broadcast_to(v.mean(axis=0), (3, 2)), rtol=1e-13)


@pytest.mark.parametrize("scale", ["1", [1.0], 1j, mg.Tensor(1.0, requires_grad=True)], ids=repr)
def test_the_scale_is_a_number(scale: Any) -> None:
    """No Tensor, to which no gradient would come."""
    q = tensor([[1.0, 2.0]])
    with pytest.raises(TypeError, match="scaled_dot_product_attention: expected scale to be a real number, got "):
        attention(q, q, q, scale=scale)
    for number in (2, 2.0, numpy.float32(2), numpy.float64(2), numpy.int64(2)):
        assert value(attention(q, q, q, scale=number)).tolist() == [[1, 2]]


def test_the_default_scale_is_one_over_the_root_of_the_width() -> None:
    q, k, v = map(tensor, numbers((3, 16), (5, 16), (5, 2)))
    assert_array_equal(value(attention(q, k, v)), value(attention(q, k, v, scale=0.25)))
    assert numpy.any(value(attention(q, k, v)) != value(attention(q, k, v, scale=0.5)))


@pytest.mark.parametrize("size", [1e3, 1e100])
def test_large_scores_choose_without_overflow(size: float) -> None:
    q, k, v = tensor([[size]], requires_grad=True), tensor([[1.0], [-1.0]]), tensor([[3.0], [5.0]])
    y = attention(q, k, v)
    assert_array_equal(value(y), [[3]])
    y.backward(tensor([[1.0]]))
    assert_array_equal(value(q.grad), [[0]])


@pytest.mark.parametrize(("dtype", "masked"), [("float32", -1e9), ("float32", -3e38), ("float64", 1e17)])
def test_gradients_of_scores_that_share_a_large_number(dtype: str, masked: float) -> None:
    """A constant added to all of a row's scores changes nothing, as where every key is masked by −10⁹."""
    arrays = [x.astype(dtype) for x in numbers((2, 3), (4, 3), (4, 2))]
    mask = tensor(numpy.full((2, 4), masked, dtype=dtype))
    q, k, v = (tensor(x, requires_grad=True) for x in arrays)
    attention(q, k, v, mask).backward(tensor(numpy.ones((2, 2), dtype=dtype)))
    assert_allclose(value(v.grad), numpy.full((4, 2), 0.5), rtol=1e-6)  # 1/4 by each of the two queries
    for x in (q, k):  # dS = P ∘ (dP − D) sums to 0
        assert numpy.abs(value(x.grad)).max() < 2


def test_second_derivatives_where_the_only_key_has_the_lowest_score() -> None:
    """One key: the output is its value, whatever the query is, so that nothing depends on the query."""
    query, key, value_ = map(tensor, numbers((2, 3), (2, 3), (2, 1)))
    mask = tensor([[float(mg.finfo(query.dtype).min), 0.0]])  # and causal: the first query sees the first key alone

    def of_value(query: Any, value_: Any) -> Any:
        return mg.sum(attention(query, key, value_, attn_mask=mask, is_causal=True) * tensor([[1.0], [0.0]]))

    mixed = mg.grad(lambda query: mg.sum(mg.grad(lambda v: of_value(query, v))(value_) * tensor([[1.0], [2.0]])))(query)
    assert_allclose(value(mixed), numpy.zeros((2, 3)), atol=1e-15)


def test_the_order_of_keys_does_not_matter() -> None:
    q, k, v = numbers((3, 4), (5, 4), (5, 2))
    order = [4, 2, 0, 1, 3]
    expected = value(attention(tensor(q), tensor(k), tensor(v)))
    assert_allclose(value(attention(tensor(q), tensor(k[order]), tensor(v[order]))), expected, rtol=1e-13)


# ------------------------------------------------------------------------------------------------ weights and dropout


def test_weights_are_probabilities_of_which_the_output_is_the_mean() -> None:
    q, k, v = map(tensor, numbers((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)))
    mask = tensor(booleans((3, 5)))
    out, weights = attention(q, k, v, mask, enable_gqa=True, return_weights=True)
    assert weights.shape == (2, 4, 3, 5)
    assert_allclose(value(mg.sum(weights, axis=-1)), numpy.ones((2, 4, 3)), rtol=1e-14)
    assert_array_equal(value(weights)[..., ~value(mask)], 0)
    assert_allclose(value(out), value(weights @ mg.repeat(v, 2, axis=1)), rtol=1e-13, atol=1e-15)
    assert_allclose(value(out), value(attention(q, k, v, mask, enable_gqa=True)), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("with_weights", [False, True])
def test_dropout_twin(with_weights: bool) -> None:
    shape = (2, 4, 3, 5)
    kept = tensor(numpy.random.Generator(numpy.random.Philox(3)).uniform(0, 1, shape) >= 0.3)

    def f(*xs: Any) -> Any:
        out = attention(
            *xs, dropout_p=0.3, enable_gqa=True, is_causal=True, return_weights=with_weights, generator=Generator(3)
        )
        return out[0] if with_weights else out

    agree(
        f,
        lambda *xs: composed.scaled_dot_product_attention(
            *xs, enable_gqa=True, is_causal=True, kept=kept, dropout_p=0.3
        )[0],
        *numbers((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)),
    )


def test_dropout_of_everything_gives_zeros() -> None:
    y, gradients = value_and_gradients(lambda *xs: attention(*xs, dropout_p=1.0), numbers((3, 4), (5, 4), (5, 2)))
    for x in (y, *gradients):
        assert_array_equal(x, 0)


def test_weights_are_those_before_dropout() -> None:
    q, k, v = map(tensor, numbers((3, 4), (5, 4), (5, 2)))
    dropped = attention(q, k, v, dropout_p=0.5, return_weights=True)
    assert_array_equal(value(dropped[1]), value(attention(q, k, v, return_weights=True)[1]))
    assert numpy.any(value(dropped[0]) != value(attention(q, k, v)))


# ------------------------------------------------------------------------------------------------ memory


def test_the_graph_keeps_nothing_of_the_size_of_the_scores() -> None:
    L = 64
    q, k, v = (tensor(x, requires_grad=True) for x in numbers(*[(2, L, 4)] * 3))
    y = attention(q, k, v, is_causal=True)
    kept = [x for x in y._node.saved.values() if hasattr(x, "shape")]
    assert sorted(tuple(x.shape) for x in kept) == [(2, L, 1)] * 2 + [(2, L, 4)] * 4  # m and l; Q, K, V and O


# ------------------------------------------------------------------------------------------------ errors


def ones(*shape: int, dtype: str = "float64") -> Any:
    return mg.ones(shape, dtype=dtype)


QKV = (ones(2, 3, 4), ones(2, 5, 4), ones(2, 5, 6))


@pytest.mark.parametrize(
    ("args", "options", "kind", "message"),
    [
        ((ones(4), ones(5, 4), ones(5, 6)), {}, ValueError, "expected query (…, L, E), key (…, S, E) and value"),
        ((ones(3, 4), ones(5, 2), ones(5, 6)), {}, ValueError, "expected query and key of the same width"),
        ((ones(3, 4), ones(5, 4), ones(4, 6)), {}, ValueError, "expected key and value of the same length"),
        ((ones(4, 3, 4), ones(2, 5, 4), ones(2, 5, 6)), {}, ValueError, "expected leading axes that broadcast; enable"),
        (
            (ones(5, 3, 4), ones(2, 5, 4), ones(2, 5, 6)),
            {"enable_gqa": True},
            ValueError,
            "expected a number of query heads that is a multiple",
        ),
        ((ones(3, 4), ones(5, 4), ones(5, 6)), {"enable_gqa": True}, ValueError, "expected query, key and value of"),
        (
            (ones(3, 4), ones(5, 4, dtype="float32"), ones(5, 6)),
            {},
            TypeError,
            "expected query, key and value of one real floating-point dtype",
        ),
        (tuple(ones(3, 4, dtype="int64") for _ in "qkv"), {}, TypeError, "expected query, key and value of one real"),
        ((*QKV, ones(3, 4)), {}, ValueError, "expected a mask that broadcasts to (2, 3, 5)"),
        ((*QKV, ones(4, 2, 3, 5)), {}, ValueError, "expected a mask that broadcasts to (2, 3, 5)"),
        ((*QKV, ones(3, 5, dtype="int64")), {}, TypeError, "expected a mask of booleans or of floating-point numbers"),
        (QKV, {"window": 2}, ValueError, "expected window to be a positive integer, with is_causal=True; got 2"),
        (QKV, {"window": 0, "is_causal": True}, ValueError, "expected window to be a positive integer"),
        (QKV, {"dropout_p": 1.5}, ValueError, "expected dropout_p between 0 and 1, got 1.5"),
    ],
)
def test_errors(args: Any, options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        attention(*args, **options)
    text = str(error.value)
    assert text.startswith(f"scaled_dot_product_attention: {message}")
    assert "\n" not in text
    if not {"dropout_p", "window"} & options.keys():
        assert f"given query: {backend.describe(args[0].data)}" in text
