"""layer_norm and rms_norm: the features of each position brought to one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad import keep, primitive
from minigrad.autodiff import Kept
from minigrad.backend import Array

from ._numerics import narrow, sum_rows, widen


def _mean(xp: Any, x: Array) -> Array:
    return xp.mean(x, axis=-1, keepdims=True)


def _check_width(x: Array, **parameters: Array | None) -> None:
    for name, parameter in parameters.items():
        if parameter is not None and (len(x.shape) == 0 or parameter.shape != x.shape[-1:]):
            raise ValueError(f"expected {name} of shape {tuple(x.shape[-1:])}, the last axis of x")


@primitive
def layer_norm(xp: Any, x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Kept:
    """y = w ∘ n + b with n = (x − μ) r, the mean μ and r = 1 / √(σ² + ε), over the last axis.

    (J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016, arXiv:1607.06450.) σ² is the mean of (x − μ)².

    Derivation. With an overbar for the mean over the features, δσ² = 2 ((x−μ) δx)‾ (μ's own change drops out, as
    (x−μ)‾ = 0) and δr = −½ r³ δσ² = −r² (n δx)‾. Hence

        δn = (δx − δx‾) r + (x − μ) δr = r (δx − δx‾ − n (n δx)‾).

    This map of δx to δn is symmetric, so it takes the gradient of n, dn = w ∘ g, to that of x:

        dx = r (dn − dn‾ − n (n dn)‾),   dw = Σ g ∘ n,   db = Σ g   (over all positions).

    Kept for it are μ and r, two numbers for each position; n is computed again.
    """
    _check_width(x, weight=weight, bias=bias)
    wide = widen(xp, x)
    mu = _mean(xp, wide)
    n = wide - mu
    r = 1 / xp.sqrt(_mean(xp, n * n) + eps)
    n *= r
    return keep(narrow(xp, _scale_and_add(xp, n, weight, bias), x), mu=mu, r=r)


def _scale_and_add(xp: Any, n: Array, weight: Array | None, bias: Array | None) -> Array:
    y = n if weight is None else n * xp.astype(weight, n.dtype, copy=False)
    return y if bias is None else y + xp.astype(bias, n.dtype, copy=False)


def _layer_norm(
    g: Array, xp: Any, x: Array, weight: Array | None, mu: Array, r: Array, needs: Sequence[str]
) -> tuple[Array | None, ...]:
    g = widen(xp, g)
    n = (widen(xp, x) - mu) * r
    dx = dw = db = None
    if "x" in needs:
        dn = _scale_and_add(xp, g, weight, None)
        dx = r * (dn - _mean(xp, dn) - n * _mean(xp, n * dn))
    if "weight" in needs:
        dw = sum_rows(xp, g * n)
    if "bias" in needs:
        db = sum_rows(xp, g)
    return dx, dw, db


layer_norm.vjp_all(_layer_norm)
layer_norm.example((2, 2, 4), (4,), (4,))
layer_norm.example((3, 4), eps=0.1)


@primitive
def rms_norm(xp: Any, x: Array, weight: Array | None = None, *, eps: float = 1e-6) -> Kept:
    """y = w ∘ n with n = x r and r = 1 / √(x²‾ + ε), the root of the mean square over the last axis.

    (B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.)

    Derivation. With an overbar for the mean over the features, δr = −½ r³ · 2 (x δx)‾ = −r² (n δx)‾. Hence

        δn = r δx + x δr = r (δx − n (n δx)‾),

    which is symmetric as for `layer_norm`, so with dn = w ∘ g the gradient of n

        dx = r (dn − n (n dn)‾),   dw = Σ g ∘ n   (over all positions).
    """
    _check_width(x, weight=weight)
    wide = widen(xp, x)
    r = 1 / xp.sqrt(_mean(xp, wide * wide) + eps)
    return keep(narrow(xp, _scale_and_add(xp, wide * r, weight, None), x), r=r)


def _rms_norm(
    g: Array, xp: Any, x: Array, weight: Array | None, r: Array, needs: Sequence[str]
) -> tuple[Array | None, ...]:
    g = widen(xp, g)
    n = widen(xp, x) * r
    dx = dw = None
    if "x" in needs:
        dn = _scale_and_add(xp, g, weight, None)
        dx = r * (dn - n * _mean(xp, n * dn))
    if "weight" in needs:
        dw = sum_rows(xp, g * n)
    return dx, dw


rms_norm.vjp_all(_rms_norm)
rms_norm.example((2, 2, 4), (4,))
rms_norm.example((3, 4), eps=0.1)
