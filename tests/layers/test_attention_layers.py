"""Attention layers: the published equations, symmetry, heads, masks, padding that may hold NaN, and the cache."""

import math
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention.layers import (
    CrossAttention,
    DecoderBlock,
    EncoderBlock,
    Module,
    MultiHeadAttention,
    SelfAttention,
    attention_weights,
)
from attention.layers.attention import Cache, tokens_seen

DTYPE = "float64"


def numbers(*shape: int) -> mg.Tensor:
    return mg.random.normal(shape)


def softmax(x: Any) -> Any:
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(x: mg.Tensor, expected: Any, tolerance: float = 1e-12) -> None:
    expected = expected.numpy() if isinstance(expected, mg.Tensor) else expected
    numpy.testing.assert_allclose(x.numpy(), expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------ one head


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_self_attention_is_the_published_equation(batch: tuple[int, ...]) -> None:
    head = SelfAttention(6, 4, dtype=DTYPE)
    x = numbers(*batch, 5, 6)
    X = x.numpy()
    Q, K, V = (X @ W.numpy() for W in (head.query.weight, head.key.weight, head.value.weight))
    expected = softmax(Q @ K.swapaxes(-1, -2) / math.sqrt(4)) @ V
    close(head(x), expected)


def test_cross_attention_reads_from_the_source() -> None:
    head = CrossAttention(6, 4, d_source=3, dtype=DTYPE)
    x, source = numbers(2, 5, 6), numbers(2, 7, 3)
    X, S = x.numpy(), source.numpy()
    Q, K, V = X @ head.query.weight.numpy(), S @ head.key.weight.numpy(), S @ head.value.weight.numpy()
    close(head(x, source), softmax(Q @ K.swapaxes(-1, -2) / math.sqrt(4)) @ V)


def test_cross_attention_to_itself_is_self_attention() -> None:
    one, two = SelfAttention(6, 4, dtype=DTYPE), CrossAttention(6, 4, dtype=DTYPE)
    two.load_state_dict(one.state_dict())
    x = numbers(2, 5, 6)
    close(two(x, x), one(x))


def scores(head: SelfAttention, x: mg.Tensor) -> Any:
    return (head.query(x) @ head.key(x).mT).numpy()


def test_scores_are_symmetric_only_if_queries_and_keys_share_their_matrix() -> None:
    head = SelfAttention(6, 4, dtype=DTYPE)
    x = numbers(5, 6)
    separate = scores(head, x)
    assert abs(separate - separate.T).max() > 0.1
    head.key.weight.data = head.query.weight.data
    shared = scores(head, x)
    numpy.testing.assert_allclose(shared, shared.T, atol=1e-12)


def test_a_causal_head_ignores_the_future() -> None:
    head = SelfAttention(6, 4, dtype=DTYPE)
    x = numbers(5, 6)
    changed = mg.concat([x[:3, :], numbers(2, 6)], axis=0)
    close(head(changed, is_causal=True)[:3, :], head(x, is_causal=True)[:3, :])
    assert not numpy.allclose(head(changed)[:3, :].numpy(), head(x)[:3, :].numpy())


# ------------------------------------------------------------------------------------------------ several heads


def by_hand(attend: MultiHeadAttention, X: Any, S: Any, allowed: Any) -> tuple[Any, Any]:
    """Head after head, on NumPy."""
    state = {name: value.numpy() for name, value in attend.state_dict().items()}
    Q, K, V = (
        part @ state[f"{name}.weight"] + state.get(f"{name}.bias", 0)
        for part, name in [(X, "query"), (S, "key"), (S, "value")]
    )
    width = Q.shape[-1] // attend.num_heads
    group = attend.num_heads // attend.num_kv_heads
    outputs, weights = [], []
    for head in range(attend.num_heads):
        own = slice(head * width, (head + 1) * width)
        served = slice(head // group * width, (head // group + 1) * width)
        score = Q[..., own] @ K[..., served].swapaxes(-1, -2) / math.sqrt(width)
        weights.append(softmax(numpy.where(allowed, score, -1e300)))
        outputs.append(weights[-1] @ V[..., served])
    Y = numpy.concatenate(outputs, -1) @ state["output.weight"] + state.get("output.bias", 0)
    return Y, numpy.stack(weights, -3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention_is_its_heads_side_by_side(kv_heads: int, bias: bool) -> None:
    attend = MultiHeadAttention(8, 4, num_kv_heads=kv_heads, bias=bias, dtype=DTYPE)
    x = numbers(2, 5, 8)
    Y, W = by_hand(attend, x.numpy(), x.numpy(), True)
    y, weights = attend(x, return_weights=True)
    close(y, Y)
    close(weights, W)
    close(attend(x), Y)
    close(attend(x, is_causal=True), by_hand(attend, x.numpy(), x.numpy(), numpy.tri(5, dtype=bool))[0])
    close(attend(x[0, ...]), Y[0])


def test_multi_head_cross_attention_with_masks() -> None:
    attend = MultiHeadAttention(8, 2, d_source=3, dtype=DTYPE)
    x, source = numbers(2, 5, 8), numbers(2, 7, 3)
    real = [[True] * 7, [True] * 4 + [False] * 3]
    may = numbers(5, 7).numpy() > -0.5
    may[:, 0] = True
    keys = numpy.array(real)[:, None, :]
    source_mask = mg.asarray(real)
    for attn_mask, allowed in [(None, keys), (mg.asarray(may.tolist()), keys & may)]:
        Y, W = by_hand(attend, x.numpy(), source.numpy(), allowed)
        y, weights = attend(x, source, source_mask=source_mask, attn_mask=attn_mask, return_weights=True)
        close(y, Y)
        close(weights, W)
    added = mg.where(mg.asarray(may.tolist()), 0.0, mg.full((5, 7), -mg.inf))
    close(attend(x, source, source_mask=source_mask, attn_mask=added), Y)
    one_each = mg.asarray(numpy.broadcast_to(may, (2, 2, 5, 7)).tolist())
    close(attend(x, source, source_mask=source_mask, attn_mask=one_each), Y)


def test_attention_dropout_acts_in_training_alone() -> None:
    attend = MultiHeadAttention(8, 2, dropout=0.5, dtype=DTYPE, generator=mg.random.Generator(1))
    x = numbers(2, 5, 8)
    assert not numpy.allclose(attend(x).numpy(), attend(x).numpy())
    close(attend.eval()(x), by_hand(attend, x.numpy(), x.numpy(), True)[0])


def test_causal_and_padding_go_together() -> None:
    attend = MultiHeadAttention(8, 2, dtype=DTYPE)
    x = numbers(1, 5, 8)
    real = [False, False, True, True, True]
    y = attend(x, mask=mg.asarray([real]), is_causal=True)
    close(y[:, 2:, :], attend(x[:, 2:, :], is_causal=True))
    assert (y[:, :2, :].numpy() == 0).all()


@pytest.mark.parametrize("rotary", [True, False])
def test_one_token_at_a_time_is_the_same_as_all_at_once(rotary: bool) -> None:
    from attention.layers import RotaryPositions

    positions = RotaryPositions(9, 4, dtype=DTYPE) if rotary else None
    attend = MultiHeadAttention(8, 2, num_kv_heads=1, rotary=positions, dtype=DTYPE)
    x = numbers(2, 4, 8)
    cache: Cache = {}
    parts = [attend(x[:, :2, :], is_causal=True, cache=cache)]
    parts += [attend(x[:, i : i + 1, :], is_causal=True, cache=cache) for i in (2, 3)]
    close(mg.concat(parts, axis=1), attend(x, is_causal=True))
    cache = {}
    parts = [attend(x[:, i : i + 2, :], is_causal=True, cache=cache) for i in (0, 2)]
    close(mg.concat(parts, axis=1), attend(x, is_causal=True))


def test_padding_in_front_and_a_cache_go_together() -> None:
    attend = MultiHeadAttention(8, 2, dtype=DTYPE)
    x = numbers(2, 5, 8)
    mask = mg.asarray([[False, False, True, True, True], [True] * 5])
    whole = attend(x, mask=mask, is_causal=True)
    cache: Cache = {}
    parts = [attend(x[:, a:b, :], mask=mask[:, :b], is_causal=True, cache=cache) for a, b in ((0, 2), (2, 4), (4, 5))]
    close(mg.concat(parts, axis=1), whole)
    close(whole[:1, 2:, :], attend(x[:1, 2:, :], is_causal=True))


def test_a_window_sees_the_nearest_tokens_only() -> None:
    attend = MultiHeadAttention(8, 2, window=2, dtype=DTYPE)
    x = numbers(1, 5, 8)
    y, weights = attend(x, is_causal=True, return_weights=True)
    with pytest.raises(ValueError, match="expected is_causal=True, as window=2 looks back"):
        attend(x)
    near = [[j in (i - 1, i) for j in range(5)] for i in range(5)]
    assert ((weights.numpy() > 0) == near).all()
    cache: Cache = {}
    parts = [attend(x[:, a:b, :], is_causal=True, cache=cache) for a, b in ((0, 1), (1, 4), (4, 5))]
    close(mg.concat(parts, axis=1), y)


def test_weights_are_recorded_by_name() -> None:
    block = EncoderBlock(8, 2, dtype=DTYPE)
    x = numbers(1, 3, 8)
    _, expected = block.attention(block.attention_residual.enter(x), return_weights=True)
    with attention_weights(block) as weights:
        block(x)
    block(x)
    assert list(weights) == ["attention"]
    assert len(weights["attention"]) == 1
    close(weights["attention"][0], expected)


def test_the_source_is_projected_once() -> None:
    attend = MultiHeadAttention(8, 2, dtype=DTYPE)
    x, source = numbers(2, 3, 8), numbers(2, 6, 8)
    cache: Cache = {}
    parts = [attend(x[:, i : i + 1, :], source, cache=cache) for i in range(3)]
    close(mg.concat(parts, axis=1), attend(x, source))
    assert cache[attend][0].shape == (2, 2, 6, 4)
    assert tokens_seen(cache, attend) == 6
    # Later it is not even looked at: neither projected nor masked.
    close(attend(x[:, :1, :], mg.zeros((0,)), cache=cache), parts[0])


# ------------------------------------------------------------------------------------------------ padding


class Both(Module):
    """The layer under test as a function of a target and a source, each with a mask."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.layer: Any = {
            "self": lambda: MultiHeadAttention(8, 2, dtype=DTYPE),
            "cross": lambda: MultiHeadAttention(8, 2, d_source=6, dtype=DTYPE),
            "encoder-pre": lambda: EncoderBlock(8, 2, norm="pre", dtype=DTYPE),
            "encoder-post": lambda: EncoderBlock(8, 2, norm="post", dtype=DTYPE),
            "decoder-pre": lambda: DecoderBlock(8, 2, norm="pre", dtype=DTYPE),
            "decoder-post": lambda: DecoderBlock(8, 2, norm="post", dtype=DTYPE),
        }[kind]()

    def __call__(self, x: Any, source: Any, mask: Any, source_mask: Any) -> Any:
        if self.kind == "self" or self.kind.startswith("encoder"):
            return self.layer(x, mask=mask)
        return self.layer(x, source, mask=mask, source_mask=source_mask)


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("kind", ["self", "cross", "encoder-pre", "encoder-post", "decoder-pre", "decoder-post"])
def test_what_stands_at_padding_reaches_nothing(kind: str, filler: float) -> None:
    model = Both(kind)
    width = 6 if kind == "cross" else 8
    real, source_real = [[True] * 5, [True] * 3 + [False] * 2], [[False] + [True] * 3, [True] * 2 + [False] * 2]
    mask, source_mask = mg.asarray(real), mg.asarray(source_real)
    clean, clean_source = numbers(2, 5, 8), numbers(2, 4, width)

    def run(filler: float) -> list[Any]:
        x = mg.where(mask[..., None], clean, filler)
        source = mg.where(source_mask[..., None], clean_source, filler)
        for leaf in (x, source):
            leaf.requires_grad = True
        for parameter in model.parameters():
            parameter.grad = None
        y = model(x, source, mask, source_mask)
        at_real = mg.where(mask[..., None], y, 0.0)
        mg.sum(at_real * at_real * at_real).backward()
        gradients = [leaf.grad for leaf in (x, *model.parameters())]
        if source.grad is not None:
            gradients.append(source.grad)
        assert all(g is not None for g in gradients)
        return [at_real.numpy(), *(g.numpy() for g in gradients if g is not None)]

    for dirty, zeros in zip(run(filler), run(0.0), strict=True):
        assert numpy.isfinite(dirty).all()
        numpy.testing.assert_array_equal(dirty, zeros)


def test_padded_queries_give_zeros_and_a_row_of_nothing_but_padding_too() -> None:
    attend = MultiHeadAttention(8, 2, dtype=DTYPE)
    x = numbers(2, 3, 8)
    y = attend(x, mask=mg.asarray([[True, True, False], [False] * 3])).numpy()
    assert (y[0, 2] == 0).all()
    assert (y[1] == 0).all()
    assert (y[0, :2] != 0).all()
    close(attend(x[:1, :2, :]), y[:1, :2])


# ------------------------------------------------------------------------------------------------ errors


def attend(*args: Any, **options: Any) -> Any:
    return MultiHeadAttention(8, 2, d_source=options.pop("d_source", None))(*args, **options)


X = (2, 5, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MultiHeadAttention(8, 3), "num_heads=3 does not divide d_model=8"),
        (lambda: MultiHeadAttention(8, 0), "num_heads=0 does not divide d_model=8"),
        (lambda: MultiHeadAttention(8, 4, num_kv_heads=3), "num_kv_heads=3 does not divide num_heads=4"),
        (lambda: MultiHeadAttention(8, 4, dropout=2), "expected dropout between 0 and 1, got 2"),
        (lambda: attend(mg.ones((2, 5, 7))), r"expected x of shape \(\.\.\., T, 8\), got \(2, 5, 7\)"),
        (lambda: attend(mg.ones(X), d_source=3), r"expected source of shape \(\.\.\., T, 3\), got \(2, 5, 8\)"),
        (lambda: attend(mg.ones(X), mg.ones(X), is_causal=True), "is_causal is for self-attention"),
        (lambda: attend(mg.ones(X), source_mask=mg.ones((2, 5), dtype="bool")), "source_mask without a source"),
        (
            lambda: attend(mg.ones(X), mask=mg.ones((2, 4), dtype="bool")),
            r"expected a boolean padding mask of shape \(2, 5\) \(True = real\), got bool \(2, 4\)",
        ),
        (lambda: attend(mg.ones(X), mask=mg.ones((2, 5), dtype="float64")), r"got float64 \(2, 5\)"),
        (
            lambda: attend(mg.ones(X), mg.ones((2, 3, 8)), source_mask=mg.ones((2, 5), dtype="bool")),
            r"padding mask of shape \(2, 3\)",
        ),
        (lambda: attend(mg.ones(X), attn_mask=mg.ones((5, 4), dtype="bool")), r"attn_mask.*\(5, 4\)"),
        (
            lambda: attend(mg.ones(X), mask=mg.ones((2, 5), dtype="bool"), attn_mask=mg.ones((5, 4), dtype="bool")),
            r"expected attn_mask of .* that broadcasts to \(2, 2, 5, 5\), got bool \(5, 4\)",
        ),
        (lambda: attend(mg.ones((8,))), r"expected x of shape \(\.\.\., T, 8\), got \(8,\)"),
        (lambda: attend(mg.ones(X), mg.ones((8,))), r"expected source of shape \(\.\.\., T, 8\), got \(8,\)"),
        (lambda: EncoderBlock(8, 2, norm="middle"), "norm: expected 'pre' or 'post', got 'middle'"),
        (lambda: EncoderBlock(8, 2)(mg.ones((2, 5, 7))), r"x: .* \(2, 5, 7\) .*weight: float32 \(8,\)"),
        (lambda: SelfAttention(8, 2)(mg.ones((5, 7))), r"x: .* \(5, 7\) .*weight: float32 \(8, 2\)"),
        (lambda: DecoderBlock(8, 2)(mg.ones(X), mg.ones((2, 5, 7))), r"expected source of shape \(\.\.\., T, 8\)"),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_a_mask_of_whole_numbers_is_no_bias() -> None:
    """Nor does a padding mask beside it make it one."""
    for mask in (None, mg.ones((2, 5), dtype="bool")):
        with pytest.raises(TypeError, match=r"booleans or .*floating-point numbers.* int64 \(5, 5\)"):
            attend(mg.ones(X), mask=mask, attn_mask=mg.ones((5, 5), dtype="int64"))


def test_masks_may_be_lists() -> None:
    layer, x = MultiHeadAttention(8, 2), mg.random.normal(X, dtype="float32")
    real, may = [[True, True, True, False, False], [True] * 5], mg.tril(mg.ones((5, 5), dtype="bool")).tolist()
    expected = layer(x, mask=mg.asarray(real), attn_mask=mg.asarray(may)).tolist()
    assert layer(x, mask=real, attn_mask=may).tolist() == expected


def test_a_cache_of_another_batch_is_refused() -> None:
    layer, cache = MultiHeadAttention(8, 2), {}
    layer(mg.ones((1, 3, 8)), cache=cache)
    with pytest.raises(ValueError, match=r"the cache is of a batch of shape \(1,\), x of \(2,\)"):
        layer(mg.ones((2, 1, 8)), cache=cache)


def test_a_mask_with_a_cache_is_of_all_tokens() -> None:
    attend = MultiHeadAttention(8, 2, dtype=DTYPE)
    x, cache = numbers(2, 5, 8), Cache()
    attend(x[:, :4, :], is_causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"expected a mask of the 5 tokens .* in the cache, got \(2, 1\)"):
        attend(x[:, 4:, :], mask=mg.ones((2, 1), dtype="bool"), is_causal=True, cache=cache)


def test_an_integer_mask_is_refused_with_a_cache_too() -> None:
    attend = MultiHeadAttention(8, 2, dtype=DTYPE)
    x, cache = numbers(1, 5, 8), Cache()
    attend(x[:, :2, :], is_causal=True, cache=cache)
    with pytest.raises(TypeError, match="expected attn_mask of booleans or floating-point numbers"):
        attend(x[:, 2:, :], attn_mask=mg.ones((3, 5), dtype="int64"), is_causal=True, cache=cache)
