"""Linear algebra functions: products and transposes.

For matrices C = A B, with G the gradient of C:  dA = G Bᵀ,  dB = Aᵀ G. Everything here is that, with axes arranged
(M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation", 2008).

Lengths that do not fit are a ValueError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/linear_algebra_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .autodiff import primitive
from .backend import Array, is_half
from .statistical import _in_float32

__all__ = [
    "matmul", "matrix_transpose", "tensordot", "vecdot",
]  # fmt: skip


@primitive
def matmul(xp: Any, x1: Array, x2: Array, /) -> Array:
    """The matrix product, batched over leading axes; a 1-dimensional argument is a row (x1) or a column (x2).

    (…, m, k) times (…, k, n) is (…, m, n). d = dx1 x2 + x1 dx2, so the gradients are G x2ᵀ and x1ᵀ G. Half precision is
    accumulated in float32.

    >>> mg.matmul(mg.asarray([[1, 2], [3, 4]]), mg.asarray([10, 1])).tolist()
    [12, 34]
    """
    if not (is_half(x1.dtype) or is_half(x2.dtype)):
        return xp.matmul(x1, x2)
    product = xp.matmul(_in_float32(xp, x1), _in_float32(xp, x2))
    return xp.astype(product, xp.result_type(x1, x2))


def _matmul_x1(g: Array, xp: Any, x1_shape: tuple[int, ...], x2: Array) -> Array:
    if len(x2.shape) == 1:
        return (g[..., None] if len(x1_shape) > 1 else g) * x2
    if len(x1_shape) == 1:  # a row: sum the batch axes of (…, k) here, as they belong to x2 alone
        return xp.matmul(x2, g[..., None])[..., 0]
    return xp.matmul(g, xp.matrix_transpose(x2))


def _matmul_x2(g: Array, xp: Any, x1: Array, x2_shape: tuple[int, ...]) -> Array:
    if len(x1.shape) == 1:
        return x1[..., None] * g[..., None, :] if len(x2_shape) > 1 else x1 * g
    if len(x2_shape) == 1:
        return xp.matmul(xp.matrix_transpose(x1), g[..., None])[..., 0]
    if len(x2_shape) == 2 and len(x1.shape) > 2:  # one product over all rows rather than a sum of many
        rows = math.prod(x1.shape[:-1])  # rather than -1, which cannot be found where there are no columns
        x1, g = xp.reshape(x1, (rows, x1.shape[-1])), xp.reshape(g, (rows, g.shape[-1]))
    return xp.matmul(xp.matrix_transpose(x1), g)


matmul.vjp(x1=_matmul_x1, x2=_matmul_x2)
matmul.example((2, 3), (3, 4))
matmul.example((5, 1, 2, 3), (4, 3, 2))
matmul.example((3,), (2, 3, 4))
matmul.example((2, 4, 3), (3,))
matmul.example((2, 4, 3), (3, 5))
matmul.example((3,), (3,))


@primitive(view=True)
def matrix_transpose(xp: Any, x: Array, /) -> Array:
    """The last two axes swapped. The gradient is transposed back.

    >>> mg.matrix_transpose(mg.zeros((5, 2, 3))).shape
    (5, 3, 2)
    """
    return xp.matrix_transpose(x)


matrix_transpose.vjp(x=lambda g, xp: xp.matrix_transpose(g))


@primitive
def tensordot(xp: Any, x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """The sum of products over ``axes``: the last n of x1 with the first n of x2, or the two lists of axes.

    As a product of matrices: the axes that stay × the axes that are summed.

    >>> mg.tensordot(mg.ones((2, 3, 4)), mg.ones((3, 4, 5))).shape
    (2, 5)
    """
    return xp.tensordot(x1, x2, axes=axes)


def _tensordot_axes(axes: Any, n1: int, n2: int) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        return list(range(n1 - axes, n1)), list(range(axes))
    return [i % n1 for i in axes[0]], [i % n2 for i in axes[1]]


def _tensordot_x1(g: Array, xp: Any, x1_shape: tuple[int, ...], x2: Array, axes: Any) -> Array:
    n1, n2 = len(x1_shape), len(x2.shape)
    summed1, summed2 = _tensordot_axes(axes, n1, n2)
    kept1 = [i for i in range(n1) if i not in summed1]
    kept2 = [i for i in range(n2) if i not in summed2]
    kept_in_g = list(range(len(kept1), len(kept1) + len(kept2)))
    g = xp.tensordot(g, x2, axes=(kept_in_g, kept2))  # now (kept1…, summed2 in increasing order…)
    order = kept1 + [a for _, a in sorted(zip(summed2, summed1, strict=True))]
    return xp.permute_dims(g, tuple(order.index(i) for i in range(n1)))


def _tensordot_x2(g: Array, xp: Any, x1: Array, x2_shape: tuple[int, ...], axes: Any) -> Array:
    n1, n2 = len(x1.shape), len(x2_shape)
    summed1, summed2 = _tensordot_axes(axes, n1, n2)
    kept1 = [i for i in range(n1) if i not in summed1]
    kept2 = [i for i in range(n2) if i not in summed2]
    g = xp.tensordot(x1, g, axes=(kept1, list(range(len(kept1)))))  # now (summed1 in increasing order…, kept2…)
    order = [a for _, a in sorted(zip(summed1, summed2, strict=True))] + kept2
    return xp.permute_dims(g, tuple(order.index(i) for i in range(n2)))


tensordot.vjp(x1=_tensordot_x1, x2=_tensordot_x2)
tensordot.example((2, 3, 4), (3, 4, 2))
tensordot.example((2, 3, 4), (4, 5, 3), axes=((2, 1), (0, 2)))
tensordot.example((2,), (3,), axes=0)


@primitive
def vecdot(xp: Any, x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Σ conj(x1) · x2 over ``axis``, with broadcasting. d = Σ x2 dx1* + x1* dx2.

    >>> mg.vecdot(mg.asarray([1j, 1.0]), mg.asarray([1j, 2.0])).item()
    (3+0j)
    """
    return xp.vecdot(x1, x2, axis=axis)


def _conj(xp: Any, x: Array) -> Array:
    return xp.conj(x) if xp.isdtype(x.dtype, "complex floating") else x


def _vecdot_x1(g: Array, xp: Any, x2: Array, axis: int) -> Array:
    return _conj(xp, xp.expand_dims(g, axis=axis) * x2)


def _vecdot_x2(g: Array, xp: Any, x1: Array, axis: int) -> Array:
    return xp.expand_dims(g, axis=axis) * _conj(xp, x1)


vecdot.vjp(x1=_vecdot_x1, x2=_vecdot_x2)
vecdot.example((2, 3), (3,))
vecdot.example((4, 3), (4, 1), axis=-2)
vecdot.example((2, 3), (3,), complex=True)
