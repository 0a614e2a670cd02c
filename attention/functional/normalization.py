"""layer_norm and rms_norm: the features of each position brought to one scale."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from minigrad import keep, primitive
from minigrad.backend import Array

from ._numerics import cast, loops_for, mean, mean_of_product, one_for_each, rows, sum_rows, widen
from ._tiles import by_rows


def _check_width(x: Array, **parameters: Array | None) -> None:
    for name, parameter in parameters.items():
        if parameter is not None and (len(x.shape) == 0 or parameter.shape != x.shape[-1:]):
            raise ValueError(f"expected {name} of shape {tuple(x.shape[-1:])}, the last axis of x")


@primitive
def layer_norm(xp: Any, x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Any:
    """y = w ∘ n + b with n = (x − μ) r, the mean μ and r = 1 / √(σ² + ε), over the last axis.

    (J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016, arXiv:1607.06450.) σ² is the mean of (x − μ)².

    Derivation. With an overbar for the mean over the features, δσ² = 2 ((x−μ) δx)‾ (μ's own change drops out, as
    (x−μ)‾ = 0) and δr = −½ r³ δσ² = −r² (n δx)‾. Hence

        δn = (δx − δx‾) r + (x − μ) δr = r (δx − δx‾ − n (n δx)‾).

    This map of δx to δn is symmetric, so it takes the gradient of n, dn = w ∘ g, to that of x:

        dx = r (dn − dn‾ − n (n dn)‾),   dw = Σ g ∘ n,   db = Σ g   (over all positions).

    Kept for it are μ and r, two numbers for each position; n is computed again.

    >>> layer_norm(mg.asarray([1.0, 3.0]), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    _check_width(x, weight=weight, bias=bias)

    def forward(x: Array) -> tuple[Array, ...]:
        n = widen(xp, x)
        mu = mean(xp, n)
        n = n - mu
        r = 1 / xp.sqrt(mean_of_product(xp, n, n) + eps)
        n *= r
        return cast(xp, _scaled(xp, n, weight, bias), x), mu, r

    X = rows(xp, x)
    if loops := loops_for(xp, X, weight, bias):
        y, mu, r = xp.empty_like(X), one_for_each(xp, X), one_for_each(xp, X)
        by_rows(xp, partial(loops.layer_norm, weight, bias, eps), X, y, mu, r, light=True)
    else:
        y, mu, r = by_rows(xp, forward, X)
    return keep(xp.reshape(y, x.shape), mu=mu, r=r)


def _scaled(xp: Any, n: Array, weight: Array | None, bias: Array | None = None) -> Array:
    """w ∘ n + b, in the memory of n where it can be."""
    if weight is not None:
        n *= cast(xp, weight, n)
    if bias is not None:
        n += cast(xp, bias, n)
    return n


def _layer_norm(
    g: Array, xp: Any, x: Array, weight: Array | None, mu: Array, r: Array, needs: Sequence[str]
) -> tuple[Array | None, ...]:
    def backward(g: Array, x: Array, mu: Array, r: Array) -> tuple[Array, ...]:
        n = widen(xp, x) - mu
        n *= r
        g = widen(xp, g)
        dw, db = sum_rows(xp, g * n), sum_rows(xp, g)
        dn = g if weight is None else g * cast(xp, weight, g)
        n *= mean_of_product(xp, n, dn)
        n += mean(xp, dn)
        dx = dn - n
        dx *= r
        return dx, dw, db

    G, X = rows(xp, g), rows(xp, x)
    if loops := loops_for(xp, G, X, weight):
        dx = xp.empty_like(X)
        dw, db = by_rows(xp, partial(loops.layer_norm_vjp, weight), G, X, mu, r, dx, sums=2, light=True)
    else:
        dx, dw, db = by_rows(xp, backward, G, X, mu, r, sums=2)
    return xp.reshape(dx, x.shape), dw if "weight" in needs else None, db if "bias" in needs else None


layer_norm.vjp_all(_layer_norm)
layer_norm.example((2, 2, 4), (4,), (4,))
layer_norm.example((3, 4), eps=0.1)


@primitive
def rms_norm(xp: Any, x: Array, weight: Array | None = None, *, eps: float = 1e-6) -> Any:
    """y = w ∘ n with n = x r and r = 1 / √(x²‾ + ε), the root of the mean square over the last axis.

    (B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.)

    Derivation. With an overbar for the mean over the features, δr = −½ r³ · 2 (x δx)‾ = −r² (n δx)‾. Hence

        δn = r δx + x δr = r (δx − n (n δx)‾),

    which is symmetric as for `layer_norm`, so with dn = w ∘ g the gradient of n

        dx = r (dn − n (n dn)‾),   dw = Σ g ∘ n   (over all positions).

    >>> rms_norm(mg.asarray([3.0, -3.0]), eps=0.0).tolist()
    [1.0, -1.0]
    """
    _check_width(x, weight=weight)

    def forward(x: Array) -> tuple[Array, ...]:
        wide = widen(xp, x)
        r = 1 / xp.sqrt(mean_of_product(xp, wide, wide) + eps)
        return cast(xp, _scaled(xp, wide * r, weight), x), r

    X = rows(xp, x)
    if loops := loops_for(xp, X, weight):
        y, r = xp.empty_like(X), one_for_each(xp, X)
        by_rows(xp, partial(loops.rms_norm, weight, eps), X, y, r, light=True)
    else:
        y, r = by_rows(xp, forward, X)
    return keep(xp.reshape(y, x.shape), r=r)


def _rms_norm(
    g: Array, xp: Any, x: Array, weight: Array | None, r: Array, needs: Sequence[str]
) -> tuple[Array | None, ...]:
    def backward(g: Array, x: Array, r: Array) -> tuple[Array, ...]:
        n = widen(xp, x) * r
        g = widen(xp, g)
        dw = sum_rows(xp, g * n)
        dn = g if weight is None else g * cast(xp, weight, g)
        n *= mean_of_product(xp, n, dn)
        dx = dn - n
        dx *= r
        return dx, dw

    G, X = rows(xp, g), rows(xp, x)
    if loops := loops_for(xp, G, X, weight):
        dx = xp.empty_like(X)
        (dw,) = by_rows(xp, partial(loops.rms_norm_vjp, weight), G, X, r, dx, sums=1, light=True)
    else:
        dx, dw = by_rows(xp, backward, G, X, r, sums=1)
    return xp.reshape(dx, x.shape), dw if "weight" in needs else None


rms_norm.vjp_all(_rms_norm)
rms_norm.example((2, 2, 4), (4,))
rms_norm.example((3, 4), eps=0.1)
