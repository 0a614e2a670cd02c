"""Every operation that PyTorch has, against PyTorch: values and gradients in float64."""

import math
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose

import attention.functional as F

pytestmark = pytest.mark.peers


def numbers(*shapes: tuple[int, ...], scale: float = 1.0) -> list[Any]:
    rng = numpy.random.default_rng(0)
    return [scale * rng.normal(size=shape) for shape in shapes]


def same(ours: Any, theirs: Any, *arrays: Any) -> None:
    import torch

    xs = [tensor(a, requires_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, t = ours(*xs), theirs(*ts)
    seed = numpy.random.default_rng(1).normal(size=y.shape)
    y.backward(tensor(seed))
    t.backward(torch.tensor(seed))
    assert_allclose(value(y), t.detach().numpy(), rtol=1e-10, atol=1e-12)
    for i, (x, t) in enumerate(zip(xs, ts, strict=True)):
        assert_allclose(value(x.grad), t.grad.numpy(), rtol=1e-10, atol=1e-12, err_msg=f"gradient {i}")


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(name: str, axis: int) -> None:
    import torch

    f, g = getattr(F, name), getattr(torch.nn.functional, name)
    same(lambda x: f(x, axis=axis), lambda x: g(x, dim=axis), *numbers((3, 4, 5), scale=3))


def test_linear() -> None:
    import torch

    g = torch.nn.functional.linear
    same(F.linear, lambda x, w, b: g(x, w.T, b), *numbers((2, 3, 4), (4, 5), (5,)))


def test_normalization() -> None:
    import torch

    g = torch.nn.functional
    same(F.layer_norm, lambda x, w, b: g.layer_norm(x, (8,), w, b), *numbers((2, 3, 8), (8,), (8,)))
    same(F.layer_norm, lambda x: g.layer_norm(x, (8,)), *numbers((2, 3, 8)))
    same(F.rms_norm, lambda x, w: g.rms_norm(x, (8,), w, 1e-6), *numbers((2, 3, 8), (8,)))


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_activations(scale: float) -> None:
    import torch

    g, x = torch.nn.functional, numbers((50, 40), scale=scale)
    same(F.relu, g.relu, *x)
    same(F.silu, g.silu, *x)
    same(F.gelu, g.gelu, *x)
    same(lambda x: F.gelu(x, approximate="tanh"), lambda x: g.gelu(x, approximate="tanh"), *x)
    same(F.erf, torch.erf, *x)


def test_embedding() -> None:
    import torch

    i = numpy.random.default_rng(0).integers(0, 7, (5, 20))
    g = torch.nn.functional.embedding
    same(lambda w: F.embedding(tensor(i), w), lambda w: g(torch.tensor(i), w), *numbers((7, 4)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_cross_entropy(reduction: str, smoothing: float, ignored: int) -> None:
    import torch

    target = numpy.array([0, ignored, 4, 1, ignored, 3])
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
    same(
        lambda x: F.cross_entropy(x, tensor(target), **options),
        lambda x: torch.nn.functional.cross_entropy(x, torch.tensor(target), **options),
        *numbers((6, 5), scale=3),
    )


BOOLEANS = numpy.random.default_rng(0).random((2, 1, 6, 7)) < 0.7
BOOLEANS[..., 0] = True

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "booleans": {"attn_mask": BOOLEANS},
    "padding": {"attn_mask": BOOLEANS[:, :, :1]},
    "numbers": {"attn_mask": numpy.where(BOOLEANS, numpy.random.default_rng(1).normal(size=(6, 7)), -math.inf)},
    "groups": {"enable_gqa": True},
    "groups, causal": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_scaled_dot_product_attention(name: str) -> None:
    import torch

    options = OPTIONS[name]
    heads = 2 if "enable_gqa" in options else 4
    ours, theirs = dict(options), dict(options)
    if "attn_mask" in options:
        ours["attn_mask"], theirs["attn_mask"] = tensor(options["attn_mask"]), torch.tensor(options["attn_mask"])
    same(
        lambda *xs: F.scaled_dot_product_attention(*xs, **ours),
        lambda *xs: torch.nn.functional.scaled_dot_product_attention(*xs, **theirs),
        *numbers((2, 4, 6, 5), (2, heads, 7, 5), (2, heads, 7, 3)),
    )


@pytest.mark.parametrize("shape", [(2, 4, 6, 7), (6, 7), (4, 1, 7)])
def test_the_gradient_of_a_bias(shape: tuple[int, ...]) -> None:
    import torch

    arrays = numbers((2, 4, 6, 5), (2, 4, 7, 5), (2, 4, 7, 3), shape)
    same(F.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention, *arrays)


def test_a_query_with_nothing_to_attend_to() -> None:
    """Zeros, as PyTorch gives since 2.5."""
    import torch

    mask = numpy.array(BOOLEANS)
    mask[:, :, 2] = False
    same(
        lambda *xs: F.scaled_dot_product_attention(*xs, tensor(mask)),
        lambda *xs: torch.nn.functional.scaled_dot_product_attention(*xs, torch.tensor(mask)),
        *numbers((2, 4, 6, 5), (2, 4, 7, 5), (2, 4, 7, 3)),
    )
