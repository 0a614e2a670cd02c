"""linalg: the standard's linear algebra extension, batched over leading axes, with derivatives.

The rules are written as the literature writes them, with the adjoint: for Y = f(X), ``G`` with dL = Re tr(Gᴴ dY) goes
in and the same of X comes out. It is the conjugate of the gradient ``g`` that the engine carries, and for real arrays
the same number, so each rule begins and ends with `_conj`.

The extension of the standard: https://data-apis.org/array-api/latest/extensions/linear_algebra_functions.html. Matrices
are the last two axes; inverses and decompositions are of floating-point numbers, real or complex. A matrix that a
function cannot take (not square, singular, not positive definite) is a ValueError; JAX gives NaN or infinite numbers
for the last two. The sources that the docstrings name:

- G. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
  separate" (1973)
- M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation" (2008)
- S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions with application in optimum
  experimental design" (2010, arXiv:1001.1654)
- I. Murray, "Differentiation of the Cholesky decomposition" (2016, arXiv:1602.07527)
- J. Townsend, "Differentiating the singular value decomposition" (2016)
- C. Boeddeker et al., "On the computation of complex-valued gradients with application to statistically optimum
  beamforming" (2017, arXiv:1701.00392)
- M. Seeger et al., "Auto-differentiating linear algebra" (2017, arXiv:1710.08717)
- D. Roberts and L. Roberts, "QR and LQ decomposition matrix backpropagation algorithms for square, wide, and deep …
  matrices and their software implementation" (2020, arXiv:2009.10071)

Eigenvectors of equal eigenvalues (and singular vectors of equal singular values) are not unique, and have no
derivative. There the part of the gradient that mixes them is taken as 0: a function of the eigenvalues alone has the
right gradient, one of the eigenvectors in general not, and near such a point it is sensitive to rounding.
docs/semantics.md says more.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import minigrad as mg

from . import backend
from .autodiff import primitive
from .backend import Array
from .linear_algebra import _conj, matmul, matrix_transpose, tensordot, vecdot
from .tensor import Tensor

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def _H(xp: Any, x: Array) -> Array:
    """The conjugate transpose."""
    return _conj(xp, xp.matrix_transpose(x))


def _eye(xp: Any, n: int, like: Array) -> Array:
    return xp.eye(n, dtype=like.dtype, device=backend.device_of(like))


def _diag(xp: Any, d: Array, like: Array) -> Array:
    """Diagonal matrices of (…, n)."""
    return xp.expand_dims(xp.astype(d, like.dtype), axis=-1) * _eye(xp, d.shape[-1], like)


def _positive(x: Tensor) -> Tensor:
    """A Hermitian positive definite matrix made of x, for the gradient check."""
    positive: Tensor = matmul(x, mg.conj(matrix_transpose(x))) + _eye(mg, x.shape[-1], x)
    return positive


# ------------------------------------------------------------------------------------------------ products and parts


@primitive
def cross(xp: Any, x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three numbers along ``axis``. d = dx1 × x2 + x1 × dx2.

    >>> mg.linalg.cross(mg.asarray([1, 0, 0]), mg.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:  # NumPy takes two numbers, too
        raise ValueError("expected vectors of three numbers")
    return xp.linalg.cross(x1, x2, axis=axis)


cross.vjp(
    x1=lambda g, xp, x2, axis: xp.linalg.cross(xp.broadcast_to(x2, g.shape), g, axis=axis),
    x2=lambda g, xp, x1, axis: xp.linalg.cross(g, xp.broadcast_to(x1, g.shape), axis=axis),
)
cross.example((2, 3), (2, 3))
cross.example((3, 2), (3, 2), axis=-2)


@primitive
def outer(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1ᵢ x2ⱼ for vectors.

    >>> mg.linalg.outer(mg.asarray([1, 2]), mg.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return xp.linalg.outer(x1, x2)


outer.vjp(x1=lambda g, xp, x2: xp.matmul(g, x2), x2=lambda g, xp, x1: xp.matmul(x1, g))
outer.example((2,), (3,))


@primitive(view=True)
def diagonal(xp: Any, x: Array, /, *, offset: int = 0) -> Array:
    """The diagonal of the last two axes, ``offset`` above (or, negative, below) the main one.

    >>> mg.linalg.diagonal(mg.asarray([[1, 2, 3], [4, 5, 6]]), offset=1).tolist()
    [2, 6]
    """
    return xp.linalg.diagonal(x, offset=offset)


def _diagonal(g: Array, xp: Any, x_shape: tuple[int, ...], offset: int) -> Array:
    # Row i of the result holds gᵢ at column i, moved by the offset: a product of g with shifted identity matrices.
    m, n = x_shape[-2:]
    k = g.shape[-1]
    row, column = max(-offset, 0), max(offset, 0)
    g = xp.expand_dims(g, axis=-1) * xp.eye(k, n, k=column, dtype=g.dtype, device=backend.device_of(g))
    above = xp.zeros((*g.shape[:-2], row, n), dtype=g.dtype, device=backend.device_of(g))
    below = xp.zeros((*g.shape[:-2], m - k - row, n), dtype=g.dtype, device=backend.device_of(g))
    return xp.concat([above, g, below], axis=-2)


diagonal.vjp(x=_diagonal)
diagonal.example((2, 3, 4), offset=1)
diagonal.example((2, 4, 3), offset=-2)


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of the diagonal.

    >>> mg.grad(mg.linalg.trace)(mg.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return mg.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


# ------------------------------------------------------------------------------------------------ inverses


@primitive
def inv(xp: Any, x: Array, /) -> Array:
    """X⁻¹. d = -X⁻¹ dX X⁻¹ (Giles, 2008).

    >>> mg.linalg.inv(mg.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return xp.linalg.inv(x)


inv.vjp(x=lambda g, xp, out: -xp.matmul(xp.matrix_transpose(out), xp.matmul(g, xp.matrix_transpose(out))))
inv.example((2, 3, 3))


@primitive
def solve(xp: Any, x1: Array, x2: Array, /) -> Array:
    """The Y of x1 Y = x2, for matrices or one vector x2. dY = x1⁻¹ (dx2 - dx1 Y) (Giles, 2008).

    >>> mg.linalg.solve(mg.asarray([[2.0, 0.0], [0.0, 4.0]]), mg.asarray([6.0, 8.0])).tolist()
    [3.0, 2.0]
    """
    return xp.linalg.solve(x1, x2)


def _solve_x2(g: Array, xp: Any, x1: Array, x2_shape: tuple[int, ...]) -> Array:
    if len(x2_shape) == 1:
        return xp.linalg.solve(xp.matrix_transpose(x1), g[..., None])[..., 0]
    return xp.linalg.solve(xp.matrix_transpose(x1), g)


def _solve_x1(g: Array, xp: Any, x1: Array, x2_shape: tuple[int, ...], out: Array) -> Array:
    g = _solve_x2(g, xp, x1, x2_shape)
    if len(x2_shape) == 1:
        return -g[..., None] * out[..., None, :]
    return -xp.matmul(g, xp.matrix_transpose(out))


solve.vjp(x1=_solve_x1, x2=_solve_x2)
solve.example((2, 3, 3), (3, 2))
solve.example((3, 3), (3,))


@primitive
def pinv(xp: Any, x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """The pseudo-inverse P = X⁺, of constant rank: dP = -P dX P + P Pᴴ dXᴴ (I - X P) + (I - P X) dXᴴ Pᴴ P.

    X is (…, m, n), P (…, n, m). The derivative: Golub and Pereyra (1973).

    >>> mg.linalg.pinv(mg.asarray([[[4.0]], [[0.0]]])).tolist()  # of two matrices, the second without an inverse
    [[[0.25]], [[0.0]]]
    """
    return xp.linalg.pinv(x) if rtol is None else xp.linalg.pinv(x, rtol=rtol)


def _pinv(g: Array, xp: Any, x: Array, out: Array) -> Array:
    G, P, PH, GH = _conj(xp, g), out, _H(xp, out), _H(xp, _conj(xp, g))
    outside_left = GH - xp.matmul(xp.matmul(x, P), GH)  # (I - X P) Gᴴ
    outside_right = GH - xp.matmul(GH, xp.matmul(P, x))  # Gᴴ (I - P X)
    X = -xp.matmul(PH, xp.matmul(G, PH))
    X = X + xp.matmul(outside_left, xp.matmul(P, PH)) + xp.matmul(xp.matmul(PH, P), outside_right)
    return _conj(xp, X)


pinv.vjp(x=_pinv)
pinv.example((2, 4, 3))
pinv.example((2, 4))


@primitive
def det(xp: Any, x: Array, /) -> Array:
    """The determinant. d = det(X) tr(X⁻¹ dX). Where X is singular, LAPACK's error about X⁻¹ is the derivative's.

    The derivative: Giles (2008).

    >>> mg.grad(mg.linalg.det)(mg.eye(2)).tolist()  # d det(I) = tr dX
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return xp.linalg.det(x)


def _scaled_inverse(xp: Any, g: Array, x: Array) -> Array:
    """g X⁻ᵀ for each matrix of the stack."""
    return g[..., None, None] * xp.matrix_transpose(xp.linalg.inv(x))


det.vjp(x=lambda g, xp, x, out: _scaled_inverse(xp, g * out, x))
det.example((2, 3, 3))


class SlogdetResult(NamedTuple):
    """What `slogdet` gives: det(X) = sign · exp(logabsdet)."""

    sign: Tensor
    logabsdet: Tensor


@primitive
def _slogdet(xp: Any, x: Array, /) -> tuple[Array, ...]:
    """The sign and the logarithm of the determinant. d ln|det X| = Re tr(X⁻¹ dX); d sign = i sign Im tr(X⁻¹ dX)."""
    return tuple(xp.linalg.slogdet(x))


def _slogdet_x(g: tuple[Array, Array], xp: Any, x: Array, out: tuple[Array, Array]) -> Array:
    g_sign, g_log = g
    if not xp.isdtype(x.dtype, "complex floating"):
        return _scaled_inverse(xp, g_log, x)
    # With t = tr(X⁻¹ dX): Re(g_log Re t + g_sign i sign Im t), and i Im t = (t - t*) / 2.
    turn = g_sign * out[0]
    return _scaled_inverse(xp, g_log + (turn - xp.conj(turn)) / 2, x)


_slogdet.vjp(x=_slogdet_x)
_slogdet.example((2, 3, 3))
_slogdet.example((2, 2), complex=True)


def slogdet(x: Array, /) -> SlogdetResult:
    """The sign of the determinant (for complex x a number on the unit circle) and the logarithm of its size.

    The derivative: Giles (2008).

    >>> sign, logabsdet = mg.linalg.slogdet(-mg.eye(3))
    >>> sign.item(), logabsdet.item()
    (-1.0, 0.0)
    """
    return SlogdetResult(*_slogdet(x))


def matrix_power(x: Array, n: int, /) -> Tensor:
    """X multiplied by itself n times, by repeated squaring; its inverse for negative n, the identity for n = 0.

    >>> mg.linalg.matrix_power(mg.asarray([[1, 1], [0, 1]]), 5).tolist()
    [[1, 5], [0, 1]]
    """
    x = mg.asarray(x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"matrix_power: expected square matrices, got shape {x.shape}")
    if n < 0:
        return matrix_power(inv(x), -n)
    result: Tensor | None = None
    while n:
        if n & 1:
            result = x if result is None else matmul(result, x)
        n >>= 1
        if n:
            x = matmul(x, x)
    if result is not None:
        return result
    identity = Tensor._make(_eye(backend.namespace_of(x._data), x.shape[-1], x._data))
    stack: Tensor = mg.broadcast_to(identity, x.shape)
    return stack


# ------------------------------------------------------------------------------------------------ decompositions


@primitive
def cholesky(xp: Any, x: Array, /, *, upper: bool = False) -> Array:
    """The triangular L with X = L Lᴴ (``upper``: U with X = Uᴴ U). dL = L Φ(L⁻¹ dX L⁻ᴴ), Φ: lower half, half diagonal.

    The gradient is that of a function of Hermitian matrices, and Hermitian itself (Murray, 2016).

    >>> mg.linalg.cholesky(mg.asarray([[4.0, 2.0], [2.0, 10.0]])).tolist()
    [[2.0, 0.0], [1.0, 3.0]]
    """
    return xp.linalg.cholesky(x, upper=upper)


def _cholesky(g: Array, xp: Any, out: Array, upper: bool) -> Array:
    G, L = (_H(xp, _conj(xp, g)), _H(xp, out)) if upper else (_conj(xp, g), out)
    half = xp.tril(xp.matmul(_H(xp, L), G))
    half = half - half * (_eye(xp, half.shape[-1], half) / 2)
    S = xp.linalg.solve(_H(xp, L), _H(xp, xp.linalg.solve(_H(xp, L), _H(xp, half))))  # L⁻ᴴ half L⁻¹
    return _conj(xp, (S + _H(xp, S)) / 2)


cholesky.vjp(x=_cholesky)
cholesky.example((2, 3, 3), of=_positive)
cholesky.example((3, 3), upper=True, complex=True, of=_positive)


class QRResult(NamedTuple):
    """What `qr` gives: X = Q R."""

    Q: Tensor
    R: Tensor


@primitive
def _qr(xp: Any, x: Array, /, *, mode: str = "reduced") -> tuple[Array, ...]:
    """Orthonormal Q and upper triangular R with X = Q R."""
    return tuple(xp.linalg.qr(x, mode=mode))


def _qr_x(g: tuple[Array, Array], xp: Any, x_shape: tuple[int, ...], x: Array, out: tuple[Array, Array]) -> Array:
    Q, R = out
    GQ, GR = _conj(xp, g[0]), _conj(xp, g[1])
    m, n = x_shape[-2:]
    if m >= n:
        return _conj(xp, _qr_tall(xp, GQ, GR, Q, R))
    # Wide: X = [X₁ X₂] with X₁ = Q R₁ square, and R₂ = Qᴴ X₂.
    G2, X2 = GR[..., :, m:], x[..., :, m:]
    G1 = _qr_tall(xp, GQ + xp.matmul(X2, _H(xp, G2)), GR[..., :, :m], Q, R[..., :, :m])
    return _conj(xp, xp.concat([G1, xp.matmul(Q, G2)], axis=-1))


def _qr_tall(xp: Any, GQ: Array, GR: Array, Q: Array, R: Array) -> Array:
    M = xp.matmul(R, _H(xp, GR)) - xp.matmul(_H(xp, GQ), Q)
    low = xp.tril(M, k=-1)
    middle = _diag(
        xp, xp.real(xp.linalg.diagonal(M)) if xp.isdtype(M.dtype, "complex floating") else xp.linalg.diagonal(M), M
    )
    symmetric = low + _H(xp, low) + middle
    return _H(xp, xp.linalg.solve(R, _H(xp, GQ + xp.matmul(Q, symmetric))))  # (G_Q + Q symmetric) R⁻ᴴ


_qr.vjp(x=_qr_x)
_qr.example((2, 4, 3))
_qr.example((2, 4))


def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal Q and upper triangular R with X = Q R; ``mode="complete"`` gives a square Q.

    The derivative needs independent columns (the first m of a wide matrix), and of a tall one the reduced mode, as the
    columns that complete Q are a free choice. It is that of Walter and Lehmann (2010) and Seeger et al. (2017), for a
    wide matrix that of Roberts and Roberts (2020).

    >>> Q, R = mg.linalg.qr(mg.ones((3, 2)))
    >>> Q.shape, R.shape
    ((3, 2), (2, 2))
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: expected mode 'reduced' or 'complete', got {mode!r}")
    x = mg.asarray(x)
    _refuse_free_columns("qr", x, mode == "complete" and x.shape[-2] > x.shape[-1], 'mode="reduced"')
    return QRResult(*_qr(x, mode=mode))


def _refuse_free_columns(name: str, x: Tensor, free: bool, instead: str) -> None:
    if free and x.requires_grad and mg.autodiff.is_recording():
        raise ValueError(
            f"{name}: has a derivative of shape {x.shape} only with {instead}, as the rest is a free choice"
        )


class EighResult(NamedTuple):
    """What `eigh` gives: X V = V diag(w)."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _inverse_differences(xp: Any, w: Array) -> Array:
    """1 / (wⱼ - wᵢ) at (i, j), and 0 where they are equal up to LAPACK's rounding (see the top of the file)."""
    difference = w[..., None, :] - w[..., :, None]
    rounding = xp.sum(xp.abs(w), axis=-1, keepdims=True)[..., None] * float(xp.finfo(w.dtype).eps)
    equal = xp.abs(difference) <= rounding
    return xp.where(equal, xp.zeros_like(difference), 1 / xp.where(equal, xp.ones_like(difference), difference))


@primitive
def _eigh(xp: Any, x: Array, /) -> tuple[Array, ...]:
    """Eigenvalues w and eigenvectors V of Hermitian X. dw = diag(Vᴴ dX V), dV = V (F ∘ Vᴴ dX V), F = 1 / (wⱼ - wᵢ)."""
    return tuple(xp.linalg.eigh(x))


def _eigh_x(g: tuple[Array, Array], xp: Any, out: tuple[Array, Array]) -> Array:
    w, V = out
    Gw, GV = g[0], _conj(xp, g[1])
    inner = xp.matmul(_H(xp, V), GV) * xp.astype(_inverse_differences(xp, w), V.dtype) + _diag(xp, Gw, V)
    X = xp.matmul(V, xp.matmul(inner, _H(xp, V)))
    return _conj(xp, (X + _H(xp, X)) / 2)


_eigh.vjp(x=_eigh_x)
_eigh.example((2, 3, 3), of=_positive)


def eigh(x: Array, /) -> EighResult:
    """The eigenvalues of Hermitian matrices, in increasing order, and the eigenvectors as columns.

    The gradient is that of a function of Hermitian matrices, and Hermitian itself (Seeger et al., 2017).

    >>> mg.linalg.eigh(mg.asarray([[3.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 3.0]
    """
    return EighResult(*_eigh(x))


class EigResult(NamedTuple):
    """What `eig` gives: X V = V diag(w), both complex."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@primitive
def _eig(xp: Any, x: Array, /) -> tuple[Array, ...]:
    """Eigenvalues and eigenvectors of any square matrix, of length 1: V⁻¹ dX V = diag(dw) + …"""
    return tuple(xp.linalg.eig(x))


def _eig_x(g: tuple[Array, Array], xp: Any, out: tuple[Array, Array]) -> Array:
    w, V = out
    Gw, GV = _conj(xp, g[0]), _conj(xp, g[1])
    VhG = xp.matmul(_H(xp, V), GV)
    length = _diag(xp, xp.real(xp.linalg.diagonal(VhG)), V)  # what would make the vectors longer has no effect
    inner = (VhG - xp.matmul(xp.matmul(_H(xp, V), V), length)) * xp.conj(_inverse_differences(xp, w))
    X = xp.matmul(xp.linalg.solve(_H(xp, V), inner + _diag(xp, Gw, V)), _H(xp, V))
    return _conj(xp, X)


_eig.vjp(x=_eig_x)
_eig.example((3, 3), of=_positive)


def eig(x: Array, /) -> EigResult:
    """The eigenvalues, in no particular order, and eigenvectors of length 1 of square matrices, both complex.

    The derivative: Boeddeker et al. (2017), equation 4.77.

    >>> mg.linalg.eig(mg.asarray([[1.0, 2.0], [0.0, 3.0]])).eigenvalues.tolist()
    [(1+0j), (3+0j)]
    """
    return EigResult(*_eig(x))


def eigvals(x: Array, /) -> Tensor:
    """The eigenvalues of square matrices, in no particular order and complex.

    >>> mg.imag(mg.linalg.eigvals(mg.asarray([[0.0, 1.0], [-1.0, 0.0]]))).tolist()  # i and -i
    [1.0, -1.0]
    """
    return eig(x).eigenvalues


def eigvalsh(x: Array, /) -> Tensor:
    """The eigenvalues of Hermitian matrices, in increasing order. dw = diag(Vᴴ dX V) (Giles, 2008).

    >>> mg.grad(lambda x: mg.linalg.eigvalsh(x)[0])(mg.asarray([[3.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.0, 0.0], [0.0, 1.0]]
    """
    return _eigvalsh(x)


@primitive
def _eigvalsh(xp: Any, x: Array, /) -> Array:
    """The eigenvalues of Hermitian X."""
    return xp.linalg.eigvalsh(x)


def _eigvalsh_x(g: Array, xp: Any, x: Array) -> Array:
    _, V = xp.linalg.eigh(x)
    return _conj(xp, xp.matmul(V * xp.astype(g, V.dtype)[..., None, :], _H(xp, V)))


_eigvalsh.vjp(x=_eigvalsh_x)
_eigvalsh.example((2, 3, 3), of=_positive)
_eigvalsh.example((3, 3), complex=True, of=_positive)


class SVDResult(NamedTuple):
    """What `svd` gives: X = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@primitive
def _svd(xp: Any, x: Array, /, *, full_matrices: bool = True) -> tuple[Array, ...]:
    """The singular value decomposition."""
    return tuple(xp.linalg.svd(x, full_matrices=full_matrices))


def _svd_x(g: tuple[Array, Array, Array], xp: Any, out: tuple[Array, Array, Array]) -> Array:
    U, S, Vh = out
    GU, GS, GVh = _conj(xp, g[0]), g[1], _conj(xp, g[2])
    left, right = xp.matmul(_H(xp, U), GU), xp.matmul(Vh, _H(xp, GVh))
    left, right = left - _H(xp, left), right - _H(xp, right)
    # 1 / (sⱼ² - sᵢ²) (left sⱼ + right sᵢ), so that only what turns U and V together is divided by a difference
    total = S[..., None, :] + S[..., :, None]
    together = xp.astype(_inverse_differences(xp, S), U.dtype) * (left + right)
    apart = xp.astype(1 / xp.where(total == 0, xp.ones_like(total), total), U.dtype) * (left - right)
    inner = (together + apart) / 2 + _diag(xp, GS, U)
    inverse = 1 / xp.where(S == 0, xp.ones_like(S), S)
    inverse = xp.astype(xp.where(S == 0, xp.zeros_like(S), inverse), U.dtype)
    X = xp.matmul(U, xp.matmul(inner, Vh))
    if U.shape[-2] > U.shape[-1]:
        outside = GU - xp.matmul(U, xp.matmul(_H(xp, U), GU))
        X = X + xp.matmul(outside * inverse[..., None, :], Vh)
    if Vh.shape[-1] > Vh.shape[-2]:
        outside = GVh - xp.matmul(xp.matmul(GVh, _H(xp, Vh)), Vh)
        X = X + xp.matmul(U, inverse[..., :, None] * outside)
    return _conj(xp, X)


_svd.vjp(x=_svd_x)
_svd.example((2, 3, 4), full_matrices=False)
_svd.example((4, 3), full_matrices=False)


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition X = U diag(S) Vh, the singular values decreasing.

    The derivative of a matrix that is not square needs ``full_matrices=False``, as the vectors that complete U or Vh
    are a free choice (Townsend, 2016).

    >>> [part.shape for part in mg.linalg.svd(mg.ones((3, 2)), full_matrices=False)]
    [(3, 2), (2,), (2, 2)]
    """
    x = mg.asarray(x)
    _refuse_free_columns("svd", x, full_matrices and x.shape[-1] != x.shape[-2], "full_matrices=False")
    return SVDResult(*_svd(x, full_matrices=full_matrices))


@primitive
def svdvals(xp: Any, x: Array, /) -> Array:
    """The singular values, decreasing. ds = Re diag(Uᴴ dX V) (Townsend, 2016).

    >>> mg.linalg.svdvals(mg.asarray([[3.0, 0.0], [0.0, -4.0]])).tolist()
    [4.0, 3.0]
    """
    return xp.linalg.svdvals(x)


def _svdvals(g: Array, xp: Any, x: Array) -> Array:
    U, _, Vh = xp.linalg.svd(x, full_matrices=False)
    return _conj(xp, xp.matmul(U * xp.astype(g, U.dtype)[..., None, :], Vh))


svdvals.vjp(x=_svdvals)
svdvals.example((2, 3, 4))


# ------------------------------------------------------------------------------------------------ norms and ranks


@primitive
def matrix_rank(xp: Any, x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """The number of singular values above ``rtol`` times the largest. No derivative: whole numbers.

    >>> mg.linalg.matrix_rank(mg.ones((3, 3))).item()
    1
    """
    return xp.linalg.matrix_rank(x) if rtol is None else xp.linalg.matrix_rank(x, rtol=rtol)


@primitive
def vector_norm(
    xp: Any,
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Array:
    """(Σ |x|^ord)^(1/ord) over ``axis``; ±inf: the largest or smallest |x|; 0: how many are not 0.

    d = Σ sign(x) (|x| / norm)^(ord-1) dx, and 0 where the norm is 0. Equal largest ones share the gradient evenly.

    >>> mg.grad(mg.linalg.vector_norm)(mg.asarray([3.0, 4.0])).tolist()
    [0.6, 0.8]
    """
    return xp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)


def _vector_norm(
    g: Array, xp: Any, x: Array, out: Array, axis: int | tuple[int, ...] | None, keepdims: bool, ord: float
) -> Array:
    if ord == 0:
        return xp.zeros_like(x)
    if not keepdims:
        axes = range(len(x.shape)) if axis is None else [i % len(x.shape) for i in _as_tuple(axis)]
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        g, out = xp.reshape(g, shape), xp.reshape(out, shape)
    size = xp.abs(x)
    direction = _conj(xp, x) / xp.where(size == 0, 1, size) if xp.isdtype(x.dtype, "complex floating") else xp.sign(x)
    if ord in (math.inf, -math.inf):
        chosen = xp.astype(size == out, out.dtype)
        weight = chosen / xp.sum(chosen, axis=axis, keepdims=True)
    elif ord == 1:
        weight = xp.ones_like(size)
    else:
        flat = out == 0
        ratio = size / xp.where(flat, xp.ones_like(out), out)
        if ord < 1:  # the derivative is infinite at 0
            ratio = xp.where(ratio == 0, xp.ones_like(ratio), ratio)
        weight = ratio if ord == 2 else ratio ** (ord - 1)
        weight = xp.where(flat, xp.zeros_like(weight), weight)
    return (g * weight) * direction


def _as_tuple(axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else axis


vector_norm.vjp(x=_vector_norm)
vector_norm.example((2, 3))
vector_norm.example((2, 3, 4), axis=(0, -1), ord=3)
vector_norm.example((2, 3), axis=1, ord=math.inf, keepdims=True)
vector_norm.example((2, 3), axis=0, ord=1)
vector_norm.example((2, 2), complex=True)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Tensor:
    """A norm of the last two axes.

    ``"fro"`` √Σ|x|², ``"nuc"`` the sum of the singular values, ±2 the largest or smallest of them, ±1 the largest or
    smallest sum of |x| down a column, ±inf that along a row.

    >>> mg.linalg.matrix_norm(mg.asarray([[1.0, -2.0], [3.0, 4.0]]), ord=1).item()
    6.0
    """
    x = mg.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"matrix_norm: expected at least 2 axes, got shape {x.shape}")
    extremum = mg.max if isinstance(ord, int | float) and ord > 0 else mg.min
    if ord in ("fro", None):
        norm = vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    elif ord == "nuc":
        norm = mg.sum(svdvals(x), axis=-1)
    elif ord in (2, -2):
        norm = extremum(svdvals(x), axis=-1)
    elif ord in (1, -1):
        norm = extremum(mg.sum(mg.abs(x), axis=-2), axis=-1)
    elif ord in (math.inf, -math.inf):
        norm = extremum(mg.sum(mg.abs(x), axis=-1), axis=-1)
    else:
        raise ValueError(f"matrix_norm: unknown ord {ord!r}; known: 'fro', 'nuc', 1, -1, 2, -2, inf, -inf")
    return norm[..., None, None] if keepdims and norm.ndim < x.ndim else norm
