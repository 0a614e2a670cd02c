"""LoRA: a model is tuned by small matrices beside its own, which stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from .linear import Linear
from .module import Module, expect_positive, parameter

_FROZEN = "_frozen_before_lora"  # where a model keeps the names of what was frozen anyway


class LoRA(Linear):
    """Y = XW + b + α/r · XAB: a Linear layer with W and b frozen, A of shape (in, r) and B of shape (r, out) trained.

    E. J. Hu et al., "LoRA: low-rank adaptation of large language models" (2021), arXiv:2106.09685, equation 3; there W
    and the product BA are the transposes of these. A is drawn from N(0, 1/in) and B starts as zeros, so that at first
    the layer gives what ``linear`` gives, whose W and b it takes over. Raises ValueError for a ``rank`` r below 1.

    Examples
    --------
    >>> layer = LoRA(Linear(6, 4), rank=2, alpha=4.0)
    >>> layer(mg.ones((5, 6))).shape, [name for name, _ in layer.named_parameters()]
    ((5, 4), ['A', 'B'])
    """

    def __init__(self, linear: Linear, rank: int, alpha: float, generator: Generator | None = None) -> None:
        expect_positive("LoRA", rank=rank)
        generator = generator or mg.random.default
        self._linear = linear
        self.scale = alpha / rank
        self.weight, self.bias = linear.weight, linear.bias
        d_in, d_out = self.weight.shape
        like: dict[str, Any] = {"dtype": self.weight.dtype, "device": self.weight.device}
        self.A = parameter(generator.normal((d_in, rank), std=1 / math.sqrt(d_in), **like))
        self.B = parameter(mg.zeros((rank, d_out), **like))
        _freeze(linear)

    def __call__(self, x: Tensor) -> Tensor:
        """Y of shape (..., out). Raises ValueError for an X of another width."""
        return super().__call__(x) + F.linear(self.scale * F.linear(x, self.A), self.B)

    def merged(self) -> Linear:
        """The Linear layer that this was made of, with W + α/r · AB as its weight. B is zero again.

        >>> layer = LoRA(Linear(6, 4), rank=2, alpha=4.0)
        >>> x, layer.B.data = mg.ones((5, 6)), mg.ones((2, 4), dtype="float32")
        >>> y = layer(x)
        >>> bool(mg.all(mg.abs(layer.merged()(x) - y) < 1e-4))
        True
        """
        with mg.no_grad():
            self.weight.data = (self.weight + self.scale * (self.A @ self.B)).data
        self.B.data = mg.zeros_like(self.B).data
        return self._linear


def add_lora(
    model: Module,
    rank: int,
    alpha: float,
    names: Sequence[str] = ("query", "value"),
    generator: Generator | None = None,
) -> None:
    """Freeze ``model``, and make each Linear layer in it that is called one of ``names`` a `LoRA` with this rank and α.

    Then what an optimizer trains, `Module.parameters`, are the matrices A and B alone. Raises ValueError for
    a name that no layer has, and for a model that has such layers already.

    Examples
    --------
    >>> from attention.layers import MultiHeadAttention
    >>> attend = MultiHeadAttention(8, num_heads=2)
    >>> add_lora(attend, rank=2, alpha=4.0)
    >>> [name for name, _ in attend.named_parameters()]
    ['query.A', 'query.B', 'value.A', 'value.B']
    """
    found = list(_layers(model))
    if any(isinstance(layer, LoRA) for _, _, layer in found):
        raise ValueError("add_lora: the model has LoRA layers already: merge_lora first")
    known = sorted({name for _, name, _ in found})
    if not names or not set(names) <= set(known):
        raise ValueError(f"add_lora: expected names of Linear layers, which here are {known}, got {list(names)}")
    expect_positive("add_lora", rank=rank)
    vars(model)[_FROZEN] = frozenset(name for name, value in model._state() if not value.requires_grad)
    _freeze(model)
    made: dict[Linear, LoRA] = {}  # a layer that is used twice stays one
    for owner, name, layer in found:
        if name in names:
            if layer not in made:
                made[layer] = LoRA(layer, rank, alpha, generator)
            setattr(owner, name, made[layer])


def merge_lora(model: Module) -> None:
    """Undo `add_lora`, with what was trained put into the weights. What was trainable before it is so again.

    Raises ValueError for a model without LoRA layers.

    Examples
    --------
    >>> from attention.layers import MultiHeadAttention
    >>> attend = MultiHeadAttention(8, num_heads=2)
    >>> count = attend.parameter_count()
    >>> add_lora(attend, rank=2, alpha=4.0)
    >>> merge_lora(attend)
    >>> attend.parameter_count() == count
    True
    """
    found = [(owner, name, layer) for owner, name, layer in _layers(model) if isinstance(layer, LoRA)]
    if not found:
        raise ValueError("merge_lora: the model has no LoRA layers")
    merged = {layer: layer.merged() for layer in {layer for _, _, layer in found}}
    for owner, name, layer in found:
        setattr(owner, name, merged[layer])
    frozen = vars(model).pop(_FROZEN, frozenset())
    for name, value in model._state():
        value.requires_grad, value.grad = name not in frozen, None


def _layers(model: Module) -> list[tuple[Module, str, Linear]]:
    """Each Linear layer that is an attribute of a Module in ``model``: that Module, the attribute's name, the layer."""
    return [
        (owner, name, layer)
        for _, owner in model.named_modules()
        for name, layer in vars(owner).items()
        if isinstance(layer, Linear) and not name.startswith("_")
    ]


def _freeze(model: Module) -> None:
    for _, value in model._state():
        value.requires_grad, value.grad = False, None
