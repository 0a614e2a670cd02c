"""Layers against torch.nn: values, and the gradient of every parameter and input, with the same weights in float64."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import minigrad as mg
from attention import functional as F
from attention.layers import (
    DecoderBlock,
    Embedding,
    EncoderBlock,
    LayerNorm,
    Linear,
    Module,
    MultiHeadAttention,
    RMSNorm,
)

pytestmark = pytest.mark.peers
RNG = numpy.random.default_rng(5)


def linear(ours: str, theirs: str) -> dict[str, tuple[str, slice | None, bool]]:
    """Where our parameters are in PyTorch's: name, rows, transposed."""
    return {f"{ours}weight": (f"{theirs}weight", None, True), f"{ours}bias": (f"{theirs}bias", None, False)}


def norm(ours: str, theirs: str) -> dict[str, tuple[str, slice | None, bool]]:
    return {f"{ours}weight": (f"{theirs}weight", None, False), f"{ours}bias": (f"{theirs}bias", None, False)}


def attention(ours: str, theirs: str, d: int) -> dict[str, tuple[str, slice | None, bool]]:
    places = linear(f"{ours}output.", f"{theirs}out_proj.")
    for i, name in enumerate(("query", "key", "value")):
        rows = slice(i * d, (i + 1) * d)
        places[f"{ours}{name}.weight"] = (f"{theirs}in_proj_weight", rows, True)
        places[f"{ours}{name}.bias"] = (f"{theirs}in_proj_bias", rows, False)
    return places


def ours_from(theirs: Any, places: dict[str, tuple[str, slice | None, bool]], what: Callable[[Any], Any]) -> Any:
    found = dict(theirs.named_parameters())
    state = {}
    for name, (their_name, rows, transposed) in places.items():
        value = what(found[their_name]).detach().numpy()[rows or slice(None)]
        state[name] = value.T if transposed else value
    return state


def compare(
    ours: Module,
    theirs: Any,
    places: dict[str, tuple[str, slice | None, bool]],
    arrays: list[Any],
    our_options: dict[str, Any] | None = None,
    their_options: dict[str, Any] | None = None,
    call: Callable[..., Any] | None = None,
) -> None:
    import torch

    theirs = theirs.double().train()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.from_numpy(RNG.normal(size=parameter.shape))  # so that no bias is zero
    ours.load_state_dict(ours_from(theirs, places, lambda p: p))
    floats = [x.dtype.kind == "f" for x in arrays]
    our_x = [mg.Tensor(x, requires_grad=f) for x, f in zip(arrays, floats, strict=True)]
    their_x = [torch.tensor(x, requires_grad=f) for x, f in zip(arrays, floats, strict=True)]

    y: Any = ours(*our_x, **(our_options or {}))  # type: ignore[operator]
    expected = call(*their_x) if call else theirs(*their_x, **(their_options or {}))
    y, weights = y if isinstance(y, tuple) else (y, None)
    expected, expected_weights = expected if isinstance(expected, tuple) else (expected, None)
    numpy.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-10)
    if weights is not None and expected_weights is not None:
        numpy.testing.assert_allclose(weights.numpy(), expected_weights.detach().numpy(), rtol=1e-10, atol=1e-10)

    g = RNG.normal(size=y.shape)
    y.backward(mg.asarray(g))
    expected.backward(torch.from_numpy(g))
    gradients = ours_from(theirs, places, lambda p: p.grad)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        numpy.testing.assert_allclose(parameter.grad.numpy(), gradients[name], rtol=1e-10, atol=1e-10, err_msg=name)
    for a, b, f in zip(our_x, their_x, floats, strict=True):
        if f:
            assert a.grad is not None
            numpy.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_linear() -> None:
    import torch

    compare(Linear(6, 4, dtype="float64"), torch.nn.Linear(6, 4), linear("", ""), [RNG.normal(size=(2, 5, 6))])


def test_layer_norm() -> None:
    import torch

    compare(LayerNorm(6, dtype="float64"), torch.nn.LayerNorm(6), norm("", ""), [RNG.normal(size=(2, 5, 6))])


def test_rms_norm() -> None:
    import torch

    places = {"weight": ("weight", None, False)}
    compare(RMSNorm(6, dtype="float64"), torch.nn.RMSNorm(6, eps=1e-6), places, [RNG.normal(size=(2, 5, 6))])


def test_embedding() -> None:
    import torch

    places = {"weight": ("weight", None, False)}
    compare(Embedding(7, 4, dtype="float64"), torch.nn.Embedding(7, 4), places, [RNG.integers(0, 7, (3, 5))])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_multi_head_self_attention(padded: bool, causal: bool) -> None:
    import torch

    ours, theirs = MultiHeadAttention(8, 2, dtype="float64"), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    real = numpy.array([[True] * 5, [True] * 3 + [False] * 2]) if padded else numpy.ones((2, 5), bool)
    # PyTorch computes padded rows all the same; the gradient that enters them is zero here and there.
    rows = torch.from_numpy(real)[..., None]

    def call(x: Any) -> Any:
        y, weights = theirs(
            x,
            x,
            x,
            key_padding_mask=torch.from_numpy(~real) if padded else None,
            attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None,
            average_attn_weights=False,
        )
        return torch.where(rows, y, 0.0), weights

    options = {"mask": mg.asarray(real) if padded else None, "is_causal": causal, "return_weights": not padded}
    places = attention("", "", 8)
    compare(ours, theirs, places, [numpy.where(real[..., None], RNG.normal(size=(2, 5, 8)), 0)], options, call=call)


def test_multi_head_cross_attention_with_a_source_of_another_width() -> None:
    import torch

    ours = MultiHeadAttention(8, 4, d_source=3, dtype="float64")
    theirs = torch.nn.MultiheadAttention(8, 4, kdim=3, vdim=3, batch_first=True)
    places = attention("", "", 8)
    for letter, name in zip("qkv", ("query", "key", "value"), strict=True):
        places[f"{name}.weight"] = (f"{letter}_proj_weight", None, True)

    def call(x: Any, source: Any) -> Any:
        return theirs(x, source, source, average_attn_weights=False)

    arrays = [RNG.normal(size=(2, 5, 8)), RNG.normal(size=(2, 7, 3))]
    compare(ours, theirs, places, arrays, {"return_weights": True}, call=call)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre", [False, True])
def test_encoder_block(pre: bool, activation: str) -> None:
    import torch

    ours = EncoderBlock(
        8, 2, d_ff=12, norm="pre" if pre else "post", activation=getattr(F, activation), dtype="float64"
    )
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation, batch_first=True, norm_first=pre)
    places = {
        **attention("attention.", "self_attn.", 8),
        **norm("attention_residual.norm.", "norm1."),
        **linear("feed_forward.up.", "linear1."),
        **linear("feed_forward.down.", "linear2."),
        **norm("feed_forward_residual.norm.", "norm2."),
    }
    compare(ours, theirs, places, [RNG.normal(size=(2, 5, 8))])


@pytest.mark.parametrize("pre", [False, True])
def test_decoder_block(pre: bool) -> None:
    import torch

    ours = DecoderBlock(8, 2, norm="pre" if pre else "post", dtype="float64")
    theirs = torch.nn.TransformerDecoderLayer(8, 2, 32, 0.0, batch_first=True, norm_first=pre)
    places = {
        **attention("attention.", "self_attn.", 8),
        **norm("attention_residual.norm.", "norm1."),
        **attention("cross_attention.", "multihead_attn.", 8),
        **norm("cross_attention_residual.norm.", "norm2."),
        **linear("feed_forward.up.", "linear1."),
        **linear("feed_forward.down.", "linear2."),
        **norm("feed_forward_residual.norm.", "norm3."),
    }
    real = numpy.array([[True] * 7, [True] * 4 + [False] * 3])
    compare(
        ours,
        theirs,
        places,
        [RNG.normal(size=(2, 5, 8)), RNG.normal(size=(2, 7, 8))],
        {"source_mask": mg.asarray(real)},
        {
            "tgt_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
            "memory_key_padding_mask": torch.from_numpy(~real),
        },
    )
