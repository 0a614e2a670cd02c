"""Convolution along a sequence: each position reads its neighbourhood, with the same weights everywhere."""

from __future__ import annotations

import math
from typing import Any

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from .module import Module, expect_positive, expect_width, parameter


class Conv1d(Module):
    """Y[t] = Σ_j X[stride·t + j - padding] W_j + b over j = 0 … width - 1, with zeros before and after the sequence.

    X is (..., T, in_features), Y (..., T', out_features) with T' = ⌊(T + 2·padding - width) / stride⌋ + 1. The weight
    has PyTorch's shape, (out_features, in_features, width), and W_j is the transpose of ``weight[:, :, j]``: published
    weights are taken as they are. Both are drawn from U(-1/√n, 1/√n) with n = in_features · width, PyTorch's range.
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv1d.html, where the sequence is the last axis.)

    Examples
    --------
    >>> Conv1d(3, 5, width=3, stride=2, padding=1)(mg.ones((2, 8, 3))).shape
    (2, 4, 5)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        width: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("Conv1d", in_features=in_features, out_features=out_features, width=width, stride=stride)
        generator = generator or mg.random.default
        bound = 1 / math.sqrt(in_features * width)
        self.stride, self.padding = stride, padding
        self.weight = parameter(generator.uniform((out_features, in_features, width), -bound, bound, dtype=dtype))
        self.bias = parameter(generator.uniform((out_features,), -bound, bound, dtype=dtype)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Y. Raises ValueError for an X of another width, or one that is too short for a single position of Y."""
        out_features, in_features, width = self.weight.shape
        expect_width("Conv1d", x, in_features, axes=2)
        if self.padding:
            zeros = mg.zeros((*x.shape[:-2], self.padding, in_features), dtype=x.dtype, device=x.device)
            x = mg.concat([zeros, x, zeros], axis=-2)
        span = x.shape[-2] - width + 1  # where a neighbourhood may begin
        if span < 1:
            raise ValueError(f"Conv1d: a sequence of {x.shape[-2]} positions, padding included, is under width={width}")
        # Each neighbourhood as one row, so that all is one product: Y = [X_0 … X_(width-1)] [W_0; …; W_(width-1)] + b.
        rows = mg.concat([x[..., j : j + span : self.stride, :] for j in range(width)], axis=-1)
        columns = mg.reshape(mg.permute_dims(self.weight, (2, 1, 0)), (width * in_features, out_features))
        return F.linear(rows, columns, self.bias)
