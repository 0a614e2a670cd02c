"""Normalisations: the features of each position brought to one scale."""

from __future__ import annotations

from typing import Any

import minigrad as mg
from minigrad import Tensor

from .. import functional as F
from .module import Module, expect_positive, parameter


def _check(layer: str, d_model: int, eps: float) -> None:
    expect_positive(layer, d_model=d_model)
    if not eps >= 0:
        raise ValueError(f"{layer}: expected eps of 0 or more, got {eps!r}")


class LayerNorm(Module):
    """y = (x - mean) / √(variance + eps) · weight + bias, over the last axis, of width d_model.

    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization" (2016), arXiv:1607.06450, equation 4. The weight
    starts as ones, the bias as zeros.

    Examples
    --------
    >>> LayerNorm(2, eps=0.0)(mg.asarray([[1.0, 3.0], [5.0, 4.0]])).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """

    def __init__(self, d_model: int, eps: float = 1e-5, dtype: Any = "float32") -> None:
        _check("LayerNorm", d_model, eps)
        self.eps = eps
        self.weight = parameter(mg.ones((d_model,), dtype=dtype))
        self.bias = parameter(mg.zeros((d_model,), dtype=dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """y for x of shape (..., d_model). Raises ValueError for an x of another width."""
        return F.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """y = x / √(mean(x²) + eps) · weight, over the last axis, of width d_model: LayerNorm without the centre.

    B. Zhang and R. Sennrich, "Root mean square layer normalization" (2019), arXiv:1910.07467, equation 4. The weight
    starts as ones.

    Examples
    --------
    >>> RMSNorm(2, eps=0.0)(mg.asarray([[3.0, -3.0], [1.0, 1.0]])).tolist()
    [[1.0, -1.0], [1.0, 1.0]]
    """

    def __init__(self, d_model: int, eps: float = 1e-6, dtype: Any = "float32") -> None:
        _check("RMSNorm", d_model, eps)
        self.eps = eps
        self.weight = parameter(mg.ones((d_model,), dtype=dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """y for x of shape (..., d_model). Raises ValueError for an x of another width."""
        return F.rms_norm(x, self.weight, eps=self.eps)
