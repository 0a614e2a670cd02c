"""softmax and log_softmax: numbers as probabilities, and their logarithms."""

from __future__ import annotations

from typing import Any

from minigrad import primitive
from minigrad.backend import Array

from ._numerics import cast, one_for_zero, shift, widen


@primitive
def softmax(xp: Any, x: Array, /, axis: int = -1) -> Array:
    """yᵢ = eˣⁱ / Σⱼ eˣʲ along ``axis``.

    Subtracting the same number m from every xᵢ leaves y as it is; with m = max x, no exponential overflows.
    (P. Blanchard, D. J. Higham, N. J. Higham, "Accurately computing the log-sum-exp and softmax functions", IMA Journal
    of Numerical Analysis 41, 2021, arXiv:1909.03469, which says how exact that is, here and for `log_softmax`.)

    Derivation. From ln yᵢ = xᵢ − ln Σⱼ eˣʲ follows δyᵢ = yᵢ (δxᵢ − Σⱼ yⱼ δxⱼ). With g the gradient of y,

        Σᵢ gᵢ δyᵢ = Σᵢ gᵢ yᵢ δxᵢ − (Σᵢ gᵢ yᵢ) Σⱼ yⱼ δxⱼ,   so   dx = y ∘ (g − Σ g∘y).

    Where every xᵢ is −inf there is nothing to choose from: y is 0 there, and so is the gradient (PyTorch: NaN).

    >>> softmax(mg.asarray([0.0, 0.0, -mg.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    wide = _checked(xp, x, axis)
    y = xp.exp(wide - shift(xp, wide, axis))
    y /= one_for_zero(xp, xp.sum(y, axis=axis, keepdims=True))
    return cast(xp, y, x)


def _checked(xp: Any, x: Array, axis: int) -> Array:
    """x in the precision to compute in, or an error if there is no such axis."""
    n = len(x.shape)
    if not -n <= axis < n:
        raise IndexError(f"expected axis between {-n} and {n - 1}" if n else "expected an array of at least one axis")
    return widen(xp, x)


def _softmax(g: Array, xp: Any, out: Array, axis: int) -> Array:
    g, y = widen(xp, g), widen(xp, out)
    return y * (g - xp.sum(g * y, axis=axis, keepdims=True))


softmax.vjp(x=_softmax)
softmax.example((2, 3))
softmax.example((2, 3, 2), axis=1)


@primitive
def log_softmax(xp: Any, x: Array, /, axis: int = -1) -> Array:
    """yᵢ = xᵢ − ln Σⱼ eˣʲ along ``axis``: the logarithm of `softmax`, exact also where that would round to 0 or 1.

    Derivation. δyᵢ = δxᵢ − Σⱼ eʸʲ δxⱼ, since eʸ is the softmax. With g the gradient of y,

        Σᵢ gᵢ δyᵢ = Σᵢ gᵢ δxᵢ − (Σᵢ gᵢ) Σⱼ eʸʲ δxⱼ,   so   dx = g − eʸ Σ g.

    Where every xᵢ is −inf, so is every yᵢ.

    >>> log_softmax(mg.asarray([1000.0, 0.0])).tolist()
    [0.0, -1000.0]
    """
    wide = _checked(xp, x, axis)
    y = wide - shift(xp, wide, axis)
    y -= xp.log(one_for_zero(xp, xp.sum(xp.exp(y), axis=axis, keepdims=True)))
    return cast(xp, y, x)


def _log_softmax(g: Array, xp: Any, out: Array, axis: int) -> Array:
    g, y = widen(xp, g), widen(xp, out)
    return g - xp.exp(y) * xp.sum(g, axis=axis, keepdims=True)


log_softmax.vjp(x=_log_softmax)
log_softmax.example((2, 3))
log_softmax.example((2, 3, 2), axis=1)
