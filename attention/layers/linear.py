"""Layers that act on each position by itself: Linear, Dropout and the feed-forward networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..functional.dropout import check_probability
from .module import Module, expect_positive, parameter


class Linear(Module):
    """Y = XW + b, with X of shape (..., in_features) and W of shape (in_features, out_features).

    Both are drawn from U(-1/√in_features, 1/√in_features), PyTorch's range; W is the transpose of PyTorch's. Raises
    ValueError for a width below 1.

    Examples
    --------
    >>> layer = Linear(3, 2)
    >>> layer(mg.ones((5, 3))).shape
    (5, 2)
    >>> layer
    Linear(weight=float32 (3, 2), bias=float32 (2,))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("Linear", in_features=in_features, out_features=out_features)
        generator = generator or mg.random.default
        bound = 1 / math.sqrt(in_features)
        self.weight = parameter(generator.uniform((in_features, out_features), -bound, bound, dtype=dtype))
        self.bias = parameter(generator.uniform((out_features,), -bound, bound, dtype=dtype)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Y of shape (..., out_features). Raises ValueError for an X of another width than in_features."""
        return F.linear(x, self.weight, self.bias)


class Dropout(Module):
    """In training, zero with probability p and the rest scaled by 1/(1-p); in evaluation, x itself.

    N. Srivastava, G. Hinton, A. Krizhevsky, I. Sutskever and R. Salakhutdinov, "Dropout: a simple way to prevent neural
    networks from overfitting", JMLR 15 (2014), pages 1929-1958. Raises ValueError for a p that is no probability.

    Examples
    --------
    >>> dropout = Dropout(0.5).eval()
    >>> float(mg.sum(dropout(mg.ones(4))))
    4.0
    """

    def __init__(self, p: float = 0.5, generator: Generator | None = None) -> None:
        check_probability("Dropout", "p", p)
        self.p = p
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        """x with elements dropped in training, of any shape."""
        return F.dropout(x, self.p, training=self.training, generator=self.generator)


class FeedForward(Module):
    """FFN(x) = activation(xW₁ + b₁)W₂ + b₂, with W₁ of shape (d_model, d_ff) and d_ff = 4·d_model unless given.

    A. Vaswani et al., "Attention is all you need" (2017), arXiv:1706.03762, equation 2; there the activation is ReLU.
    Without biases and with d_ff = 4·d_model it has 8·d_model² parameters.

    Examples
    --------
    >>> FeedForward(6, bias=False).parameter_count() == 8 * 6**2
    True
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] = F.relu,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        _check_activation("FeedForward", activation)
        d_ff = 4 * d_model if d_ff is None else d_ff
        self.activation = activation
        self.up = Linear(d_model, d_ff, bias=bias, dtype=dtype, generator=generator)
        self.down = Linear(d_ff, d_model, bias=bias, dtype=dtype, generator=generator)

    def __call__(self, x: Tensor) -> Tensor:
        """FFN(x) of the shape of x, (..., d_model)."""
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(Module):
    """FFN(x) = (activation(xW_gate) ∘ xW_up) W_down, with W_gate and W_up of shape (d_model, d_ff).

    N. Shazeer, "GLU variants improve Transformer" (2020), arXiv:2002.05202, equation 6; with ``activation=F.silu``,
    as unless given, it is SwiGLU. Without biases it has 3·d_model·d_ff parameters.

    Examples
    --------
    >>> GatedFeedForward(6, 16).parameter_count() == 3 * 6 * 16
    True
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        bias: bool = False,
        activation: Callable[[Tensor], Tensor] = F.silu,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        _check_activation("GatedFeedForward", activation)
        self.activation = activation
        self.gate = Linear(d_model, d_ff, bias=bias, dtype=dtype, generator=generator)
        self.up = Linear(d_model, d_ff, bias=bias, dtype=dtype, generator=generator)
        self.down = Linear(d_ff, d_model, bias=bias, dtype=dtype, generator=generator)

    def __call__(self, x: Tensor) -> Tensor:
        """FFN(x) of the shape of x, (..., d_model)."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def _check_activation(layer: str, activation: Any) -> None:
    if not callable(activation):
        raise TypeError(f"{layer}: expected activation to be a function of a Tensor, got {activation!r}")
