"""softmax and log_softmax: numbers as probabilities, and their logarithms."""

from __future__ import annotations

from typing import Any

from minigrad import primitive
from minigrad.backend import Array

from ._numerics import narrow, one_for_zero, shift, widen


@primitive
def softmax(xp: Any, x: Array, /, axis: int = -1) -> Array:
    """yᵢ = eˣⁱ / Σⱼ eˣʲ along ``axis``.

    Subtracting the same number m from every xᵢ leaves y as it is; with m = max x, no exponential overflows.

    Derivation. From ln yᵢ = xᵢ − ln Σⱼ eˣʲ follows dyᵢ = yᵢ (dxᵢ − Σⱼ yⱼ dxⱼ). With g the gradient of y,

        Σᵢ gᵢ dyᵢ = Σᵢ gᵢ yᵢ dxᵢ − (Σᵢ gᵢ yᵢ) Σⱼ yⱼ dxⱼ,   so   dx = y ∘ (g − Σ g∘y).

    Where every xᵢ is −inf there is nothing to choose from: y is 0 there, and so is the gradient (PyTorch: NaN).
    """
    wide = widen(xp, x)
    y = xp.exp(wide - shift(xp, wide, axis))
    y /= one_for_zero(xp, xp.sum(y, axis=axis, keepdims=True))
    return narrow(xp, y, x)


def _softmax(g: Array, xp: Any, out: Array, axis: int) -> Array:
    g, y = widen(xp, g), widen(xp, out)
    return y * (g - xp.sum(g * y, axis=axis, keepdims=True))


softmax.vjp(x=_softmax)
softmax.example((2, 3))
softmax.example((2, 3, 2), axis=1)


@primitive
def log_softmax(xp: Any, x: Array, /, axis: int = -1) -> Array:
    """yᵢ = xᵢ − ln Σⱼ eˣʲ along ``axis``: the logarithm of `softmax`, exact also where that would round to 0 or 1.

    Derivation. dyᵢ = dxᵢ − Σⱼ eʸʲ dxⱼ, since eʸ is the softmax. With g the gradient of y,

        Σᵢ gᵢ dyᵢ = Σᵢ gᵢ dxᵢ − (Σᵢ gᵢ) Σⱼ eʸʲ dxⱼ,   so   dx = g − eʸ Σ g.

    Where every xᵢ is −inf, so is every yᵢ.
    """
    wide = widen(xp, x)
    y = wide - shift(xp, wide, axis)
    y -= xp.log(one_for_zero(xp, xp.sum(xp.exp(y), axis=axis, keepdims=True)))
    return narrow(xp, y, x)


def _log_softmax(g: Array, xp: Any, out: Array, axis: int) -> Array:
    g, y = widen(xp, g), widen(xp, out)
    return g - xp.exp(y) * xp.sum(g, axis=axis, keepdims=True)


log_softmax.vjp(x=_log_softmax)
log_softmax.example((2, 3))
log_softmax.example((2, 3, 2), axis=1)
