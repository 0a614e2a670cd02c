"""Each model gives the same result on every backend, and so does the gradient of each parameter."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from checks import tensor, value

import minigrad as mg
from attention.layers import Module
from attention.models import (
    BART,
    BERT,
    GPT,
    GPT1,
    RETRO,
    T5,
    Flamingo,
    LLaMA,
    LLaVA,
    Mistral,
    Transformer,
    ViT,
    Whisper,
)
from attention.models.flamingo import last_image
from minigrad import backend

OTHER = "numpy" if backend.get_backend() != "numpy" else "array_api_strict"
SMALL: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 1, "dtype": "float64"}
IDS, SOURCE = [[3, 4, 5, 6]], [[7, 8, 9]]


def images(count: int = 1) -> Any:
    return tensor(numpy.random.default_rng(0).normal(size=(count, 3, 8, 8)))


def vision() -> ViT:
    return ViT(image_size=8, patch_size=4, d_ff=16, **SMALL | {"num_layers": 2})


def text(vocab_size: int, layers: int = 1) -> LLaMA:
    return LLaMA(vocab_size, num_kv_heads=2, d_ff=16, context_length=20, **SMALL | {"num_layers": layers})


def flamingo(model: Module) -> Any:
    ids = tensor([[10, 3, 4, 10, 5]])
    looks = last_image(ids, image_token=10, count=2)
    return model(ids, images=mg.reshape(images(2), (1, 2, 3, 8, 8)), image_mask=looks)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "GPT": (lambda: GPT(11, context_length=9, dropout=0.0, **SMALL), lambda m: m(tensor(IDS))),
    "GPT1": (lambda: GPT1(11, context_length=9, dropout=0.0, **SMALL), lambda m: m(tensor(IDS))),
    "LLaMA": (lambda: text(11), lambda m: m(tensor(IDS))),
    "Mistral": (
        lambda: Mistral(11, window=2, num_kv_heads=1, d_ff=16, context_length=9, **SMALL),
        lambda m: m(tensor(IDS)),
    ),
    "BERT": (lambda: BERT(11, d_ff=16, context_length=9, **SMALL), lambda m: m.embed(tensor(IDS))),
    "Transformer": (lambda: Transformer(11, 11, max_length=9, **SMALL), lambda m: m(tensor(SOURCE), tensor(IDS))),
    "BART": (lambda: BART(11, max_length=9, **SMALL), lambda m: m(tensor(SOURCE), tensor(IDS))),
    "T5": (lambda: T5(11, d_ff=16, d_head=3, **SMALL), lambda m: m(tensor(SOURCE), tensor(IDS))),
    "Whisper": (
        lambda: Whisper(11, num_mels=3, source_length=4, max_length=9, **SMALL),
        lambda m: m(images()[:, :, 0, :], tensor(IDS)),
    ),
    "ViT": (vision, lambda m: m(images())),
    "LLaVA": (
        lambda: LLaVA(vision(), text(11), image_token=10),
        lambda m: m(tensor([[3, 10, 10, 10, 10, 5]]), images=images()),
    ),
    "Flamingo": (lambda: Flamingo(vision(), text(10, 2), every=2, num_heads=2, d_ff=16, more_tokens=1), flamingo),
    "RETRO": (
        lambda: RETRO(11, chunk=2, d_head=4, d_ff=16, reading=[0], d_encoder=6, **SMALL),
        lambda m: m(tensor([[3, 4, 5, 6, 7]]), neighbours=tensor(numpy.arange(6).reshape(1, 2, 1, 3))),
    ),
}


def result(name: str) -> tuple[Any, dict[str, Any]]:
    """What the model gives, with parameters from one seed, and the gradients of a loss that all of it takes part in."""
    make, run = MODELS[name]
    mg.random.seed(0)
    model = make().eval()
    y = run(model)
    mg.sum(y * mg.sin(y)).backward()
    return value(y), {name: value(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_same_on_every_backend(name: str) -> None:
    y, gradients = result(name)
    with mg.use_backend(OTHER):
        expected, others = result(name)
    numpy.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-11)
    assert gradients.keys() == others.keys() != set()
    for parameter, gradient in gradients.items():
        numpy.testing.assert_allclose(gradient, others[parameter], rtol=1e-8, atol=1e-10, err_msg=parameter)
