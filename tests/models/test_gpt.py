"""The decoder-only GPT: causality, tied weights, generation with and without chance, gradients, and that it learns."""

import math
from typing import Any

import numpy
import pytest
from checks import not_on_jax

import minigrad as mg
from attention.functional import cross_entropy
from attention.layers import Embedding
from attention.models import GPT
from minigrad.backend import dtype_name
from minigrad.optim import AdamW


def tiny(**options: Any) -> GPT:
    settings: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 2, "context_length": 6, "dropout": 0.0}
    return GPT(11, dtype="float64", **(settings | options))


def tokens(*shape: int) -> mg.Tensor:
    return mg.random.integers(0, 11, shape)


def test_a_later_token_changes_no_earlier_output() -> None:
    model = tiny()
    ids = tokens(2, 6)
    other = mg.concat([ids[:, :3], (ids[:, 3:] + 1) % 11], axis=1)
    one, two = model(ids).numpy(), model(other).numpy()
    assert one.shape == (2, 6, 11)
    numpy.testing.assert_array_equal(one[:, :3], two[:, :3])
    assert (one[:, 3:] != two[:, 3:]).all()


def test_one_matrix_reads_and_writes_tokens() -> None:
    model = tiny()
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "tokens.weight"
    assert not any(name.startswith("output") for name in names)
    d, layers = 8, 2
    per_block = (4 * d**2 + 4 * d) + (8 * d**2 + 5 * d) + 2 * 2 * d
    assert model.parameter_count() == 11 * d + 6 * d + layers * per_block + 2 * d
    # A token that was not read learns as one that could have been written.
    cross_entropy(model(mg.asarray([[1, 2]])), mg.asarray([[3, 4]])).backward()
    assert model.tokens.weight.grad is not None
    assert (model.tokens.weight.grad.numpy() != 0).any(axis=1).all()


def test_it_starts_as_gpt_2_does() -> None:
    model = GPT(1000, d_model=64, num_heads=4, num_layers=2, context_length=32)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    assert state["tokens.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert state["blocks.0.attention.query.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert state["blocks.1.attention.output.weight"].std() == pytest.approx(0.01, rel=0.05)
    assert state["blocks.1.feed_forward.down.weight"].std() == pytest.approx(0.01, rel=0.05)
    assert all((value == 0).all() for name, value in state.items() if name.endswith("bias"))
    assert {value.dtype.name for value in state.values()} == {"float32"}
    ids = mg.random.integers(0, 1000, (2, 32))
    # Knowing nothing, it gives all tokens the same probability.
    following = mg.random.integers(0, 1000, (2, 32))
    assert float(cross_entropy(model.eval()(ids), following)) == pytest.approx(math.log(1000), rel=0.02)


def test_greedy_generation_is_the_argmax_of_the_whole_also_beyond_the_context() -> None:
    model = tiny()
    ids = tokens(2, 3)
    written = model.generate(ids, max_new_tokens=5, temperature=0)
    assert written.shape == (2, 8)
    assert dtype_name(written.dtype) == "int64"
    assert written[:, :3].tolist() == ids.tolist()
    for end in range(3, 8):
        logits = model(written[:, max(0, end - 6) : end])
        assert mg.argmax(logits[:, -1, :], axis=-1).tolist() == written[:, end].tolist()
    assert model.generate(tokens(1, 9), 2).shape == (1, 11)
    assert model.generate(ids, 0).tolist() == ids.tolist()


def test_a_stream_can_be_left_and_records_nothing() -> None:
    model = tiny(dropout=0.5)
    ids = tokens(2, 3)
    expected = model.generate(ids, 5, generator=mg.random.Generator(7))
    stream = model.stream(ids, generator=mg.random.Generator(7))
    for i in range(3, 8):
        new = next(stream)
        assert new.tolist() == expected[:, i : i + 1].tolist()
        assert model.training, "left in evaluation mode between two tokens"
        assert model(ids).requires_grad, "left without recording between two tokens"


def test_sampling_follows_the_probabilities() -> None:
    model = tiny(num_layers=1)
    for parameter in model.parameters():
        parameter.data = (parameter * 5.0).data  # far from uniform
    ids = mg.broadcast_to(mg.asarray([[1, 2]]), (4000, 2))
    logits = model(ids[:1, :])[0, -1, :].numpy()
    for temperature in (1.0, 0.5, 3.0):
        p = numpy.exp(logits / temperature) / numpy.exp(logits / temperature).sum()
        new = model.generate(ids, 1, temperature=temperature)[:, -1].numpy()
        frequencies = numpy.bincount(new, minlength=11) / 4000
        assert abs(frequencies - p).max() < 5 * 0.5 / math.sqrt(4000)
    best = set(numpy.argsort(logits)[-3:].tolist())
    assert set(model.generate(ids, 1, top_k=3, temperature=3.0)[:, -1].tolist()) == best
    assert set(model.generate(ids, 1, top_k=1)[:, -1].tolist()) == {int(logits.argmax())}
    assert model.generate(ids, 1, top_k=100).shape == (4000, 3)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64"])
def test_tokens_that_the_prompt_s_dtype_cannot_hold(dtype: str) -> None:
    model = tiny()
    model.tokens = Embedding(300, 8)
    ids = mg.asarray([[255, 1]])
    expected = model.generate(ids, 9, temperature=3.0, generator=mg.random.Generator(1)).tolist()
    assert max(expected[0]) > 255
    written = model.generate(mg.astype(ids, dtype), 9, temperature=3.0, generator=mg.random.Generator(1))
    assert written.tolist() == expected


def test_a_tiny_temperature_means_the_likeliest_and_a_huge_one_any() -> None:
    model = tiny()
    ids = tokens(2, 3)
    likeliest = model.generate(ids, 5, temperature=0).tolist()
    for temperature in (5e-324, 1e-320, 1e-45, 1e-10):
        assert model.generate(ids, 5, temperature=temperature, top_k=3).tolist() == likeliest
    many = model.generate(mg.broadcast_to(ids[:1, :], (400, 3)), 1, temperature=1e300)[:, -1].tolist()
    assert set(many) == set(range(11))


def test_generation_is_reproducible_and_without_dropout() -> None:
    model = tiny(dropout=0.5)
    ids = tokens(2, 3)
    one, two = (model.generate(ids, 8, generator=mg.random.Generator(7)).tolist() for _ in range(2))
    assert one == two
    assert model.training
    assert model.blocks[0].attention.training
    assert (model(ids).numpy() != model(ids).numpy()).any()


def test_gradients_of_the_whole_are_the_finite_differences(check_gradients: Any) -> None:
    model = tiny(num_layers=1)
    for parameter in model.parameters():
        parameter.data = (parameter + 0.3 * mg.random.normal(parameter.shape)).data
    ids, following = tokens(2, 5), tokens(2, 5)

    def loss() -> mg.Tensor:
        return cross_entropy(model(ids), following)

    check_gradients(model, loss)


@not_on_jax
def test_it_learns_a_text_by_heart() -> None:
    mg.random.seed(1)
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 10]
    ids = mg.asarray([text[:-1]])
    model = GPT(11, d_model=32, num_heads=4, num_layers=1, context_length=12, dropout=0.0)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(ids), mg.asarray([text[1:]]))
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.05
    assert model.generate(ids[:, :1], 12, temperature=0).tolist() == [text]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tiny(num_heads=3), ValueError, "num_heads=3 does not divide d_model=8"),
        (lambda: tiny()(tokens(1, 7)), ValueError, "a sequence of 7 positions is longer than max_length=6"),
        (lambda: tiny()(mg.ones((1, 3))), TypeError, "embedding: expected indices of an integer dtype"),
        (
            lambda: tiny().generate(tokens(3), 2),
            ValueError,
            r"expected integer ids of shape \(B, T\) with T ≥ 1, got int64 \(3,\)",
        ),
        (lambda: tiny(num_layers=0), ValueError, "GPT: expected num_layers to be a positive integer, got 0"),
        (lambda: tiny(context_length=0), ValueError, "expected max_length to be a positive integer, got 0"),
        (lambda: tiny()(tokens(1, 3)[0, 0]), ValueError, r"expected x of shape \(\.\.\., T, 8\), got \(8,\)"),
        (lambda: tiny().generate(mg.ones((1, 3), dtype="float32"), 2), ValueError, r"got float32 \(1, 3\)"),
        (lambda: tiny().generate(tokens(1, 3), -1), ValueError, "expected max_new_tokens ≥ 0, got -1"),
        (lambda: tiny().generate(tokens(1, 3), 2, top_k=2.5), ValueError, "integer top_k ≥ 1, got 1.0 and 2.5"),
        (lambda: tiny().generate(tokens(1, 3), 2, math.nan), ValueError, "expected temperature ≥ 0 .* got nan"),
        (lambda: tiny().generate(tokens(1, 3), 2, math.inf), ValueError, "expected temperature ≥ 0 .* got inf"),
        (lambda: tiny().generate(tokens(1, 0), 2), ValueError, r"got int64 \(1, 0\)"),
        (
            lambda: tiny().generate(tokens(1, 3), 2, temperature=-1),
            ValueError,
            "temperature ≥ 0 and an integer top_k ≥ 1",
        ),
        (lambda: tiny().generate(tokens(1, 3), 2, top_k=0), ValueError, "temperature ≥ 0 and an integer top_k ≥ 1"),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
