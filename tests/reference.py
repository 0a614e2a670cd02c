"""Tiny models of the `transformers` library, made on the spot with random weights, for ours to be equal to.

`Pair` makes both, in float64 or float32; `agree` holds logits, loss and the gradient of every parameter together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy
import torch

import minigrad as mg
from attention.models.published import PublishedModel

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """For `transformers` in float64: it computes some steps in float32 whatever the model's dtype."""
    if dtype == "float32":
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            patch.object(torch, "float32", torch.float64),
            patch.object(torch, "float", torch.float64),
            patch.object(torch.Tensor, "float", torch.Tensor.double),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


def make_reference(kind: type[Any], config: Any, dtype: str, seed: int = 0) -> Any:
    """A model of ``kind`` in evaluation mode, all of its parameters random: also those that start as zeros or ones."""
    torch.manual_seed(seed)
    with precision(dtype):
        model = kind(config).to(getattr(torch, dtype)).eval()
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.5) + (parameter.ndim == 1)
    return model


def close(ours: Any, theirs: Any, dtype: str, what: str = "", scale: Any = None) -> None:
    """Equal to 1e-9 in float64 or 1e-4 in float32, relative to the largest number, of ``scale`` if it is given."""
    ours = ours.numpy() if isinstance(ours, mg.Tensor) else numpy.asarray(ours)
    theirs, scale = (
        x.detach().numpy() if isinstance(x, torch.Tensor) else numpy.asarray(x)
        for x in (theirs, theirs if scale is None else scale)
    )
    assert ours.shape == theirs.shape, what
    largest = float(numpy.max(numpy.abs(scale), initial=0.0))
    assert numpy.isfinite(largest), what
    error = float(numpy.max(numpy.abs(ours - theirs), initial=0.0))
    assert error <= TOLERANCE[dtype] * max(largest, 1e-3), f"{what}: off by {error:.2e} of {largest:.2e}"


def agree(
    ours: PublishedModel, theirs: Any, loss: Callable[[], Any], their_loss: Callable[[], Any], dtype: str
) -> None:
    """The two losses, and the gradient of every parameter; each that has one there has one here, and conversely."""
    ours.load_state_dict(theirs.state_dict())
    own, other = loss(), their_loss()
    close(own, other, dtype, "loss")
    own.backward()
    theirs.zero_grad()
    other.backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    expected = ours.from_published(gradients, strict=False)
    found = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # A bias of the keys changes no softmax: its gradient is 0 but for the rounding of what its weight's is made of.
        close(found[name], gradient, dtype, name, expected[name.replace("key.bias", "key.weight")])
