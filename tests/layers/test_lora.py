"""LoRA starts as the model that it tunes, is the composition that it says it is, and can be merged into the weights."""

import math
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention.functional import cross_entropy
from attention.layers import Linear, LoRA, Module, MultiHeadAttention, add_lora, merge_lora
from attention.models import BERT, GPT, LLaMA
from minigrad.optim import AdamW

X = numpy.random.default_rng(0).normal(size=(3, 5, 6))


def tensor(values: Any) -> mg.Tensor:
    return mg.asarray(values.tolist())  # on the backend under test


def trained(model: Module) -> None:
    """As after training: no B is zero."""
    for name, parameter in model.named_parameters():
        assert name.endswith((".A", ".B"))
        parameter.data = mg.random.normal(parameter.shape, dtype=parameter.dtype).data


@pytest.mark.peers
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_composition_in_pytorch(bias: bool) -> None:
    import torch

    layer = LoRA(Linear(6, 4, bias=bias, dtype="float64"), rank=2, alpha=3.0)
    layer.B.data = mg.random.normal((2, 4), dtype="float64").data
    x = mg.Tensor(X, requires_grad=True)
    y = layer(x)
    mg.sum(y**3).backward()
    state = {name: torch.tensor(value.numpy(), requires_grad=True) for name, value in layer.state_dict().items()}
    their_x = torch.tensor(X, requires_grad=True)
    theirs = their_x @ (state["weight"] + 3.0 / 2 * state["A"] @ state["B"])
    theirs = theirs + state["bias"] if bias else theirs
    torch.sum(theirs**3).backward()
    numpy.testing.assert_allclose(y.numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-12)
    for ours, their in ((x, their_x), (layer.A, state["A"]), (layer.B, state["B"])):
        assert ours.grad is not None
        assert their.grad is not None
        numpy.testing.assert_allclose(ours.grad.numpy(), their.grad.numpy(), rtol=1e-11, atol=1e-11)
    assert layer.weight.grad is None
    assert not bias or layer.bias.grad is None


def test_it_starts_as_the_layer_that_it_tunes() -> None:
    linear = Linear(400, 300)
    x = mg.random.normal((2, 400), dtype="float32")
    expected = linear(x).numpy()
    layer = LoRA(linear, rank=50, alpha=16.0)
    numpy.testing.assert_array_equal(layer(x).numpy(), expected)
    assert layer.A.numpy().std() == pytest.approx(1 / math.sqrt(400), rel=0.05)
    assert layer.A.numpy().dtype == layer.B.numpy().dtype == "float32"
    assert [name for name, _ in layer.named_parameters()] == ["A", "B"]
    assert layer.parameter_count() == 50 * 700


@pytest.mark.parametrize("make", [LLaMA, GPT, BERT])
def test_a_model_is_unchanged_at_first_and_the_same_when_merged(make: Any) -> None:
    model = make(19, 16, 4, 2, **({"num_kv_heads": 2, "d_ff": 24} if make is LLaMA else {}), dtype="float64").eval()
    ids = mg.asarray([[3, 4, 5, 6]])
    before = model(ids).numpy()
    names = [name for name, _ in model.named_parameters()]
    add_lora(model, rank=2, alpha=8.0, names=("query", "value", "down"))
    numpy.testing.assert_array_equal(model(ids).numpy(), before)
    layers = [
        f"blocks.{i}.{name}" for i in range(2) for name in ("attention.query", "attention.value", "feed_forward.down")
    ]
    assert sorted(name for name, _ in model.named_parameters()) == sorted(
        f"{name}.{m}" for name in layers for m in "AB"
    )

    trained(model)
    mg.sum(model(ids) ** 2).backward()
    for name, parameter in model._state():
        assert (parameter.grad is not None) == name.endswith((".A", ".B")), name
    tuned = model(ids).numpy()
    assert abs(tuned - before).max() > 1e-3
    merge_lora(model)
    numpy.testing.assert_allclose(model(ids).numpy(), tuned, rtol=1e-10, atol=1e-12)
    assert [name for name, _ in model.named_parameters()] == names


def test_published_weights_are_loaded_beside_a_and_b() -> None:
    source, model = (LLaMA(19, 16, 4, 1, 24, 2, dtype="float64") for _ in range(2))
    turned = {f"{name}.weight" for name, layer in source.named_modules() if isinstance(layer, Linear)}
    state = {
        source.published_name(name): value.numpy().T if name in turned else value.numpy()
        for name, value in source.state_dict().items()
    }
    add_lora(model, rank=2, alpha=2.0)
    with pytest.raises(ValueError, match=r"4 missing: model.layers.0.self_attn.q_proj.A \(16, 2\)"):
        model.load_state_dict(state)
    model.load_state_dict(state, strict=False)
    ids = mg.asarray([[3, 4, 5, 6]])
    numpy.testing.assert_allclose(model(ids).numpy(), source(ids).numpy(), rtol=1e-12)


def test_what_was_trained_is_stored_alone_and_goes_into_another_copy() -> None:
    first = GPT(19, 16, 4, 2, dtype="float64", dropout=0.0)
    second = GPT(19, 16, 4, 2, dtype="float64", dropout=0.0)
    second.load_state_dict(first.state_dict())
    add_lora(first, rank=2, alpha=8.0)
    add_lora(second, rank=2, alpha=8.0)
    trained(first)
    tuning = {name: value.numpy() for name, value in first.named_parameters()}
    second.load_state_dict(tuning, strict=False)
    ids = mg.asarray([[3, 4, 5, 6]])
    numpy.testing.assert_array_equal(first(ids).numpy(), second(ids).numpy())


def test_it_learns_and_leaves_the_weights_alone() -> None:
    model = GPT(11, d_model=32, num_heads=4, num_layers=1, context_length=12, dropout=0.0)
    model.tokens.weight.data = (model.tokens.weight * 10.0).data  # else no logits are far apart, whatever is learned
    add_lora(model, rank=4, alpha=8.0, names=("query", "value", "output", "up", "down"))
    frozen = {name: value.numpy().copy() for name, value in model._state() if not value.requires_grad}
    text = mg.asarray([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 10]])
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(text[:, :-1]), text[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.1 * losses[0]
    for name, value in model._state():
        if name in frozen:
            numpy.testing.assert_array_equal(value.numpy(), frozen[name], err_msg=name)


def test_a_layer_that_is_used_twice_stays_one() -> None:
    class Twice(Module):
        def __init__(self) -> None:
            self.first = Linear(4, 4, dtype="float64")
            self.second = self.first

    model = Twice()
    add_lora(model, rank=1, alpha=1.0, names=("first", "second"))
    assert model.first is model.second
    assert [name for name, _ in model.named_parameters()] == ["first.A", "first.B"]
    model.first.B.data = mg.ones((1, 4), dtype="float64").data
    x = mg.random.normal((2, 4), dtype="float64")
    expected = model.first(x).numpy()
    merge_lora(model)
    assert model.first is model.second
    numpy.testing.assert_allclose(model.second(x).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: add_lora(m, 0, 1.0), "expected rank to be a positive integer, got 0"),
        (lambda m: add_lora(m, 2, 1.0, ["quary"]), r"are \['key', 'output', 'query', 'value'\], got \['quary'\]"),
        (lambda m: add_lora(m, 2, 1.0, []), r"expected names of Linear layers, which here are .* got \[\]"),
        (lambda m: [add_lora(m, 2, 1.0) for _ in range(2)], "the model has LoRA layers already: merge_lora first"),
        (merge_lora, "merge_lora: the model has no LoRA layers"),
    ],
)
def test_errors_are_one_line_at_the_call(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call(MultiHeadAttention(8, 2))
    assert "\n" not in str(raised.value)


def test_what_was_frozen_before_stays_frozen() -> None:
    attend = MultiHeadAttention(8, 2)
    attend.key.weight.requires_grad = False
    before = [name for name, _ in attend.named_parameters()]
    add_lora(attend, rank=2, alpha=4.0)
    merge_lora(attend)
    assert [name for name, _ in attend.named_parameters()] == before
