"""Linear, FeedForward, Dropout, LayerNorm, RMSNorm, Embedding: values, errors, and what training switches."""

import math

import numpy
import pytest

import minigrad as mg
from attention.layers import Dropout, Embedding, FeedForward, LayerNorm, Linear, RMSNorm
from minigrad.backend import dtype_name


def numbers(*shape: int) -> mg.Tensor:
    return mg.random.normal(shape)


def test_linear_is_xw_plus_b() -> None:
    layer = Linear(3, 2, dtype="float64")
    x = numbers(4, 5, 3)
    assert layer.bias is not None
    expected = x.numpy() @ layer.weight.numpy() + layer.bias.numpy()
    numpy.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12)
    assert Linear(3, 2, bias=False).bias is None


def test_linear_is_drawn_from_pytorch_s_range() -> None:
    layer = Linear(16, 4000)
    assert layer.bias is not None
    for values in (layer.weight.numpy(), layer.bias.numpy()):
        assert abs(values).max() <= 0.25
        assert abs(values).max() > 0.249
        assert abs(values.mean()) < 0.01


def test_parameters_are_float32_unless_told_otherwise() -> None:
    for layer in (Linear(2, 3), LayerNorm(3), RMSNorm(3), Embedding(3, 2), FeedForward(2)):
        assert {dtype_name(p.dtype) for p in layer.parameters()} == {"float32"}
    assert dtype_name(Linear(2, 3)(mg.ones((1, 2), dtype="float32")).dtype) == "float32"
    assert dtype_name(Linear(2, 3, dtype="float64").weight.dtype) == "float64"


def test_feed_forward_is_four_times_as_wide_inside() -> None:
    layer = FeedForward(3, dtype="float64")
    x = numbers(5, 3)
    assert layer.up.bias is not None
    assert layer.down.bias is not None
    inside = numpy.maximum(x.numpy() @ layer.up.weight.numpy() + layer.up.bias.numpy(), 0)
    assert inside.shape == (5, 12)
    expected = inside @ layer.down.weight.numpy() + layer.down.bias.numpy()
    numpy.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_norms() -> None:
    x = numbers(2, 3, 8)
    values = x.numpy()
    centred = values - values.mean(-1, keepdims=True)
    expected = centred / numpy.sqrt(values.var(-1, keepdims=True) + 1e-5)
    numpy.testing.assert_allclose(LayerNorm(8, dtype="float64")(x).numpy(), expected, rtol=1e-10, atol=1e-12)
    expected = values / numpy.sqrt((values**2).mean(-1, keepdims=True) + 1e-6)
    numpy.testing.assert_allclose(RMSNorm(8, dtype="float64")(x).numpy(), expected, rtol=1e-10, atol=1e-12)


def test_embedding_takes_rows_and_adds_gradients_of_repeated_ones() -> None:
    layer = Embedding(5, 3, dtype="float64")
    indices = mg.asarray([[1, 4, 1]])
    y = layer(indices)
    assert y.shape == (1, 3, 3)
    numpy.testing.assert_array_equal(y.numpy()[0, 1], layer.weight.numpy()[4])
    mg.sum(y).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.numpy()[:, 0].tolist() == [0, 2, 0, 0, 1]


def test_dropout_drops_and_scales_in_training_alone() -> None:
    dropout = Dropout(0.25)
    x = mg.ones((100, 100), dtype="float64")
    y = dropout(x).numpy()
    assert set(numpy.unique(y)) == {0.0, 1 / 0.75}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert (dropout(x).numpy() != y).any()
    assert (dropout.eval()(x).numpy() == 1).all()
    one, two = (Dropout(0.5, mg.random.Generator(4))(x).numpy() for _ in range(2))
    assert (one == two).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Linear(3, 2)(mg.ones((4, 5))), ValueError, r"linear: .* x: .* \(4, 5\) .*weight: .* \(3, 2\)"),
        (lambda: Linear(3, 2)(mg.ones(())), ValueError, r"linear: .* x: .* \(\) .*weight: float32 \(3, 2\)"),
        (lambda: Linear(0, 2), ValueError, "Linear: expected in_features to be a positive integer, got 0"),
        (lambda: Linear(2.5, 2), ValueError, "Linear: expected in_features to be a positive integer, got 2.5"),
        (
            lambda: Linear(2, 2, dtype="complex64"),
            TypeError,
            "parameters of a real floating-point dtype, got complex64",
        ),
        (lambda: Embedding(0, 2), ValueError, "Embedding: expected num_embeddings to be a positive integer, got 0"),
        (lambda: LayerNorm(0), ValueError, "LayerNorm: expected d_model to be a positive integer, got 0"),
        (lambda: RMSNorm(2, eps=-1), ValueError, "RMSNorm: expected eps of 0 or more, got -1"),
        (lambda: FeedForward(2, activation="relu"), TypeError, "activation to be a function of a Tensor, got 'relu'"),
        (lambda: LayerNorm(3)(mg.ones((4, 5))), ValueError, r"layer_norm: .* x: .* \(4, 5\) .*weight: .* \(3,\)"),
        (lambda: RMSNorm(3)(mg.ones((4, 5))), ValueError, r"rms_norm: .* x: .* \(4, 5\) .*weight: float32 \(3,\)"),
        (
            lambda: Embedding(3, 2)(mg.ones((4,), dtype="float64")),
            TypeError,
            r"embedding: expected indices of an integer dtype .* float64 \(4,\) .*weight: float32 \(3, 2\)",
        ),
        (lambda: Dropout(1.5), ValueError, "Dropout: expected p between 0 and 1, got 1.5"),
        (lambda: Dropout("a"), ValueError, "Dropout: expected p between 0 and 1, got 'a'"),
        (lambda: Dropout(None), ValueError, "Dropout: expected p between 0 and 1, got None"),
        (lambda: Dropout(math.nan), ValueError, "Dropout: expected p between 0 and 1, got nan"),
    ],
)
def test_errors_are_one_line_at_the_call(call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
