"""Layers that act on each position by itself: Linear, FeedForward, Dropout, and the two normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from .module import Module, expect_width, parameter


class Linear(Module):
    """Y = XW + b, with X of shape (..., in_features) and W of shape (in_features, out_features).

    Both are drawn from U(-1/√in_features, 1/√in_features), PyTorch's range; W is the transpose of PyTorch's.
    Raises ValueError for an X of another width.

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
        if in_features < 1 or out_features < 1:
            raise ValueError(f"Linear: expected positive widths, got {in_features} and {out_features}")
        generator = generator or mg.random.default
        bound = 1 / math.sqrt(in_features)
        self.weight = parameter(generator.uniform((in_features, out_features), -bound, bound, dtype=dtype))
        self.bias = parameter(generator.uniform((out_features,), -bound, bound, dtype=dtype)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        expect_width("Linear", x, self.weight.shape[0])
        return F.linear(x, self.weight, self.bias)


class Dropout(Module):
    """In training, zero with probability p and the rest scaled by 1/(1-p); in evaluation, x itself.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014).

    Examples
    --------
    >>> dropout = Dropout(0.5).eval()
    >>> float(mg.sum(dropout(mg.ones(4))))
    4.0
    """

    def __init__(self, p: float = 0.5, generator: Generator | None = None) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: expected a probability between 0 and 1, got {p}")
        self.p = p
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training, self.generator)


class LayerNorm(Module):
    """y = (x - mean) / √(variance + eps) · weight + bias, over the last axis, of width d.

    Ba, Kiros and Hinton, "Layer normalization" (2016), equation 4. The weight starts as ones, the bias as zeros.

    Examples
    --------
    >>> LayerNorm(4)(mg.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(self, d: int, eps: float = 1e-5, dtype: Any = "float32") -> None:
        self.eps = eps
        self.weight = parameter(mg.ones((d,), dtype=dtype))
        self.bias = parameter(mg.zeros((d,), dtype=dtype))

    def __call__(self, x: Tensor) -> Tensor:
        expect_width("LayerNorm", x, self.weight.shape[0])
        return F.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """y = x / √(mean(x²) + eps) · weight, over the last axis, of width d: LayerNorm without the centre.

    Zhang and Sennrich, "Root mean square layer normalization" (2019), equation 4. The weight starts as ones.

    Examples
    --------
    >>> RMSNorm(4)(mg.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(self, d: int, eps: float = 1e-6, dtype: Any = "float32") -> None:
        self.eps = eps
        self.weight = parameter(mg.ones((d,), dtype=dtype))

    def __call__(self, x: Tensor) -> Tensor:
        expect_width("RMSNorm", x, self.weight.shape[0])
        return F.rms_norm(x, self.weight, eps=self.eps)


class FeedForward(Module):
    """FFN(x) = activation(xW₁ + b₁)W₂ + b₂, with W₁ of shape (d, d_ff) and d_ff = 4d unless given.

    Vaswani et al., "Attention is all you need" (2017), equation 2; there the activation is ReLU. Without biases and
    with d_ff = 4d it has 8d² parameters.

    Examples
    --------
    >>> FeedForward(6, bias=False).parameter_count() == 8 * 6**2
    True
    """

    def __init__(
        self,
        d: int,
        d_ff: int | None = None,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] = F.relu,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        d_ff = 4 * d if d_ff is None else d_ff
        self.activation = activation
        self.up = Linear(d, d_ff, bias, dtype, generator)
        self.down = Linear(d_ff, d, bias, dtype, generator)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
