"""linear: the affine map that every layer is made of."""

from __future__ import annotations

from typing import Any

from minigrad import primitive
from minigrad.backend import Array, matrix_product

from ._numerics import cast, rows, sum_rows, widen
from ._tiles import by_rows


@primitive
def linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """y = x W + b: for x of shape (…, in), ``weight`` (in, out) and ``bias`` (out,), y is of shape (…, out).

    Vectors are rows, as in the papers; PyTorch's ``weight`` is the transpose of this one. The gradients of the product
    are those of M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
    differentiation", 2008, section 2.2.2.

    Derivation. With the positions as the rows of a matrix, Y = X W + 1bᵀ and δY = δX W + X δW + 1δbᵀ. With G the
    gradient of Y, tr(Gᵀ δY) = tr(W Gᵀ δX) + tr(Gᵀ X δW) + (Gᵀ1)ᵀ δb, so

        dX = G Wᵀ,   dW = Xᵀ G,   db = Σ over the rows of G.

    >>> linear(mg.ones((5, 3)), mg.ones((3, 2))).shape
    (5, 2)
    >>> x, weight, bias = mg.asarray([1.0, 2.0]), mg.asarray([[3.0], [5.0]]), mg.asarray([7.0])
    >>> linear(x, weight, bias).tolist()
    [20.0]
    >>> mg.grad(lambda x: mg.sum(linear(x, weight, bias)))(x).tolist()
    [3.0, 5.0]
    """
    if len(weight.shape) != 2 or len(x.shape) == 0 or x.shape[-1] != weight.shape[0]:
        raise ValueError("expected x of shape (…, in) and weight of shape (in, out)")
    if bias is not None and bias.shape != weight.shape[1:]:
        raise ValueError(f"expected bias of shape {tuple(weight.shape[1:])}, the width of weight")
    y = matrix_product(xp, widen(xp, x), widen(xp, weight))
    if bias is not None:
        y += cast(xp, widen(xp, bias), y)
    return cast(xp, y, x)


def _linear_x(g: Array, xp: Any, weight: Array) -> Array:
    return matrix_product(xp, widen(xp, g), xp.matrix_transpose(widen(xp, weight)))


def _linear_weight(g: Array, xp: Any, x: Array) -> Array:
    G, X = rows(xp, widen(xp, g)), rows(xp, widen(xp, x))
    return matrix_product(xp, xp.matrix_transpose(X), G)


def _linear_bias(g: Array, xp: Any) -> Array:
    (total,) = by_rows(xp, lambda G: (sum_rows(xp, G),), rows(xp, widen(xp, g)), sums=1, light=True)
    return total


linear.vjp(x=_linear_x, weight=_linear_weight, bias=_linear_bias)
linear.example((2, 2, 3), (3, 4), (4,))
linear.example((3,), (3, 2))
