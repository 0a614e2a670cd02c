"""Module: which Tensors are parameters, under which names, and how they are counted, saved and loaded."""

from typing import Any

import numpy
import pytest

import minigrad as mg
from attention.layers import (
    FeedForward,
    Linear,
    Module,
    MultiHeadAttention,
    SelfAttention,
    ShapesOnly,
    SinusoidalPositions,
)
from attention.models import GPT, Transformer
from minigrad.backend import dtype_name, is_installed


class Nested(Module):
    def __init__(self) -> None:
        self.scale = mg.Tensor([1.0, 2.0], requires_grad=True, dtype="float64")
        self._constant = mg.Tensor([1.0, 2.0], dtype="float64")
        self.first = Linear(2, 3)
        self.items = [Linear(3, 2, bias=False), {"a": Linear(2, 1)}]
        self.by_name = {"x": Linear(1, 1, bias=False)}
        self.tied = self.first
        self.tied_weight = self.items[0].weight  # type: ignore[union-attr]
        self.nothing = None


NAMES = [
    "scale",
    "first.weight",
    "first.bias",
    "items.0.weight",
    "items.1.a.weight",
    "items.1.a.bias",
    "by_name.x.weight",
]


def test_parameters_are_found_once_and_named_by_their_path() -> None:
    model = Nested()
    assert [name for name, _ in model.named_parameters()] == NAMES
    assert len({id(p) for p in model.parameters()}) == len(NAMES)
    assert model.parameter_count() == 2 + (6 + 3) + 6 + (2 + 1) + 1


def test_train_and_eval_reach_every_module() -> None:
    model = Nested()
    inside = [model, model.first, model.items[0], model.items[1]["a"], model.by_name["x"]]  # type: ignore[index]
    assert model.eval() is model
    assert not any(m.training for m in inside)  # type: ignore[union-attr]
    assert model.train() is model
    assert all(m.training for m in inside)  # type: ignore[union-attr]


def test_evaluating_ends_even_by_an_exception() -> None:
    model = Nested()

    def fail() -> None:
        with model.evaluating():
            assert not model.first.training
            assert not model.first(mg.ones((1, 2))).requires_grad
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.first.training
    assert model.first(mg.ones((1, 2))).requires_grad


def test_evaluating_gives_every_module_its_own_mode_back() -> None:
    model = Nested()
    model.first.eval()
    with model.evaluating():
        assert not model.training
        assert not model.by_name["x"].training
    assert model.training
    assert model.by_name["x"].training
    assert not model.first.training, "a part that was in evaluation mode is trained again"


def test_state_is_a_copy_that_loads_into_another_model() -> None:
    one, two = Nested(), Nested()
    state = one.state_dict()
    assert list(state) == NAMES
    assert not any(value.requires_grad for value in state.values())
    x = mg.ones((4, 2), dtype="float32")
    before = one.first(x).tolist()
    two.load_state_dict(state)
    assert two.first(x).tolist() == before
    with mg.no_grad():
        one.first.weight *= 2.0
    assert two.first(x).tolist() == before
    one.load_state_dict(state)
    assert one.first(x).tolist() == before


def test_numpy_arrays_load_and_take_the_parameter_s_dtype() -> None:
    layer = Linear(2, 3)
    state = {"weight": numpy.arange(6.0).reshape(2, 3), "bias": numpy.zeros(3)}
    for array in state.values():
        array.flags.writeable = False  # as from a file
    device = layer.weight.device
    layer.load_state_dict(state)
    state["weight"].flags.writeable = True
    state["weight"][:] = 7
    assert layer.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dtype_name(layer.weight.dtype) == "float32"
    assert layer.weight.device == device
    assert layer.weight.requires_grad


def test_loading_says_what_does_not_fit_and_changes_nothing() -> None:
    layer = Linear(2, 3)
    before = layer.weight.tolist()
    with pytest.raises(KeyError, match=r"load_state_dict: missing \['bias'\], not in this Linear \['biases'\]"):
        layer.load_state_dict({"weight": numpy.zeros((2, 3)), "biases": numpy.zeros(3)})
    with pytest.raises(ValueError, match=r"bias \(4,\) instead of \(3,\)") as error:
        layer.load_state_dict({"weight": numpy.zeros((2, 3)), "bias": numpy.zeros(4)})
    assert "\n" not in str(error.value)
    assert layer.weight.tolist() == before
    layer.load_state_dict({"weight": numpy.zeros((2, 3)), "other": numpy.zeros(1)}, strict=False)
    assert layer.weight.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_loading_is_refused_whole() -> None:
    layer = Linear(2, 3)
    before = layer.weight.tolist()
    for bad, said in (
        (numpy.zeros(3, "complex64"), r"complex64 \(3,\)"),
        (numpy.zeros(3, object), r"object \(3,\)"),
        ([0.0] * 3, "list"),
        (None, "NoneType"),
    ):
        with pytest.raises(ValueError, match=rf"load_state_dict: what does not fit: bias {said} instead of \(3,\)$"):
            layer.load_state_dict({"weight": numpy.zeros((2, 3)), "bias": bad})
    assert layer.weight.tolist() == before


@pytest.mark.skipif(not is_installed("jax"), reason="NumPy has a bfloat16 where JAX brings it")
def test_half_precision_of_another_library_loads() -> None:
    with mg.use_backend("jax"):
        bias = mg.asarray([1.5, 2.0, -1.0], dtype="bfloat16")
    layer = Linear(2, 3)
    layer.load_state_dict({"bias": bias}, strict=False)
    assert layer.bias.tolist() == [1.5, 2.0, -1.0]


def test_what_contains_itself_is_walked_once() -> None:
    model: Any = Nested()
    model.items.append(model.items)
    model.itself = model
    assert [name for name, _ in model.named_parameters()] == NAMES
    assert "itself: ..." in repr(model)


def test_two_parameters_of_one_name_are_refused() -> None:
    model: Any = Nested()
    model.by_name = {"a.b": Linear(1, 1), "a": {"b": Linear(1, 1)}}
    with pytest.raises(ValueError, match=r"Nested: two parameters have the name 'by_name\.a\.b\.weight'"):
        model.state_dict()


def test_repr_shows_the_tree() -> None:
    assert repr(Linear(2, 3)) == "Linear(weight=float32 (2, 3), bias=float32 (3,))"
    lines = repr(Nested()).splitlines()
    assert lines[0].startswith("Nested(scale=float64 (2,), _constant=float64 (2,)")
    assert "  items.1.a: Linear(weight=float32 (2, 1), bias=float32 (1,))" in lines
    assert "\n  blocks.1: EncoderBlock\n    attention: MultiHeadAttention(num_heads=2, " in repr(GPT(5, 4, 2, 2))


def test_one_seed_gives_one_model() -> None:
    def numbers() -> list[Any]:
        generator = mg.random.Generator(3)
        model = Transformer(5, 5, 8, 2, 1, max_length=4, generator=generator)
        return [value.tolist() for value in model.state_dict().values()]

    assert numbers() == numbers()
    mg.random.seed(1)
    one = Linear(2, 2).weight.tolist()
    mg.random.seed(1)
    assert Linear(2, 2).weight.tolist() == one
    # The very numbers, so that they are the same on every backend.
    assert (
        one
        == numpy.random.Generator(numpy.random.Philox(1))
        .uniform(-(2**-0.5), 2**-0.5, (2, 2))
        .astype("float32")
        .tolist()
    )


@pytest.mark.parametrize("d", [8, 32])
@pytest.mark.parametrize("heads", [1, 4])
def test_parameter_counts_are_the_formulas(d: int, heads: int) -> None:
    assert SelfAttention(d, d // heads).parameter_count() == 3 * d * (d // heads)
    assert MultiHeadAttention(d, heads, bias=False).parameter_count() == 4 * d**2
    assert MultiHeadAttention(d, heads).parameter_count() == 4 * d**2 + 4 * d
    assert FeedForward(d, bias=False).parameter_count() == 8 * d**2
    assert FeedForward(d).parameter_count() == 8 * d**2 + 5 * d
    assert MultiHeadAttention(d, heads, d_source=5, bias=False).parameter_count() == 2 * d**2 + 2 * 5 * d


def test_a_model_too_large_to_build_can_be_counted() -> None:
    assert MultiHeadAttention(4096, 32, bias=False, generator=ShapesOnly()).parameter_count() == 67_108_864
    assert FeedForward(4096, bias=False, generator=ShapesOnly()).parameter_count() == 2 * 67_108_864
    small: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 2}
    assert GPT(7, **small).parameter_count() == GPT(7, **small, generator=ShapesOnly()).parameter_count()


def test_a_frozen_parameter_is_saved_but_not_trained() -> None:
    layer = Linear(2, 3)
    layer.bias.requires_grad = False
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert layer.parameter_count() == 6
    other = Linear(2, 3)
    other.load_state_dict(layer.state_dict())
    assert other.bias.tolist() == layer.bias.tolist()


def test_tables_of_positions_are_no_parameters() -> None:
    assert SinusoidalPositions(5, 4).state_dict() == {}
