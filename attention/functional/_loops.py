"""Loops for a compiler: in one pass over memory what takes NumPy one for each arithmetic operation.

Where Numba is installed, NumPy's float32 arrays are computed here: with the formulas of each operation's own file,
where their derivations stand, for one row or one number after the other. Each loop writes its results into arrays that
it is given, and every array is row after row in memory. The tests hold both ways together.
"""

# ruff: noqa: E741  — l is the sum of a row's exponentials, as in attention.py

from __future__ import annotations

import math
from typing import Any

import numpy

from minigrad.backend import Array, compiled

from .activation import _A, _B

f = numpy.float32
loop, loop_with_sums = compiled(), compiled(sums_in_any_order=True)
_A32, _B32 = tuple([f(c) for c in _A]), tuple([f(c) for c in _B])


# ------------------------------------------------------------------------------------------------ functions


@loop
def exp(x: Any) -> Any:
    """eˣ to the last bit or two; below x = −87.7 it is 0, and above 88.4 infinite. NumPy's takes three times as long.

    eˣ = 2ⁿ eʳ with n the integer nearest to x / ln 2, and eʳ a polynomial (S. L. Moshier, Cephes Math Library 2.2,
    expf.c). To add 1.5 · 2²³ rounds to an integer, which then stands in the last bits, from where it is shifted to
    those of an exponent; that of 2⁻¹²⁷ is 0's.
    """
    x = f(-88) if x < f(-88) else x  # written so that NaN stays
    x = f(88.5) if x > f(88.5) else x
    shifted = x * f(1.44269504088896341) + f(12582912)
    n = shifted - f(12582912)
    r = x - n * f(0.693359375) + n * f(2.12194440e-4)
    y = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    y = y * r + f(8.3334519073e-3)
    y = y * r + f(4.1665795894e-2)
    y = y * r + f(1.6666665459e-1)
    y = y * r + f(5.0000001201e-1)
    y = y * r * r + r + f(1)
    return y * numpy.int32((f(shifted).view(numpy.int32) + 127) << 23).view(numpy.float32)


@loop
def sigmoid(x: Any) -> Any:
    e = exp(-abs(x))
    return (f(1) if x >= f(0) else e) / (f(1) + e)


@loop
def erf(x: Any) -> Any:
    x = f(-4) if x < f(-4) else x
    x = f(4) if x > f(4) else x
    xx = x * x
    above, below = _A32[0], _B32[0]
    for c in _A32[1:]:
        above = above * xx + c
    for c in _B32[1:]:
        below = below * xx + c
    y = x * above / below
    y = f(-1) if y < f(-1) else y
    return f(1) if y > f(1) else y


# ------------------------------------------------------------------------------------------------ softmax


@loop
def exp_minus(x: Array, m: Array) -> None:
    """x becomes exp(x − m)."""
    for i in range(x.shape[0]):
        mi = m[i]
        for j in range(x.shape[1]):
            x[i, j] = exp(x[i, j] - mi)


@loop_with_sums
def exp_and_sum(x: Array, m: Array, e: Array) -> Array:
    """e = exp(x − m); the sum of each row."""
    l = numpy.empty_like(m)
    for i in range(x.shape[0]):
        total, mi = f(0), m[i, 0]
        for j in range(x.shape[1]):
            eij = exp(x[i, j] - mi)
            e[i, j] = eij
            total += eij
        l[i, 0] = total
    return l


@loop
def times_difference(P: Array, dP: Array, D: Array) -> None:
    """dP becomes P ∘ (dP − D)."""
    for i in range(P.shape[0]):
        Di = D[i]
        for j in range(P.shape[1]):
            dP[i, j] = P[i, j] * (dP[i, j] - Di)


@loop
def cross_entropy_vjp(label_smoothing: float, t: Array, e: Array, l: Array, g: Array, dx: Array) -> None:
    """dx = g (p − q) with p = e / l; what q is in the loop is its part that all classes have."""
    C = e.shape[1]
    q = f(label_smoothing / C)
    for i in range(e.shape[0]):
        inverse, gi = f(1) / l[i, 0], g[i, 0]
        for j in range(C):
            dx[i, j] = (e[i, j] * inverse - q) * gi
        if 0 <= t[i, 0] < C:
            dx[i, t[i, 0]] = (e[i, t[i, 0]] * inverse - (q + f(1 - label_smoothing))) * gi


# ------------------------------------------------------------------------------------------------ activation


@loop
def silu(x: Array, y: Array, s: Array) -> None:
    for i in range(x.size):
        s[i] = sigmoid(x[i])
        y[i] = x[i] * s[i]


@loop
def silu_vjp(g: Array, x: Array, s: Array, dx: Array) -> None:
    for i in range(x.size):
        dx[i] = g[i] * s[i] * (f(1) + x[i] * (f(1) - s[i]))


@loop
def gelu(x: Array, y: Array, Phi: Array) -> None:
    for i in range(x.size):
        Phi[i] = f(0.5) * erf(x[i] * f(math.sqrt(1 / 2))) + f(0.5)
        y[i] = x[i] * Phi[i]


@loop
def gelu_vjp(g: Array, x: Array, Phi: Array, dx: Array) -> None:
    for i in range(x.size):
        phi = exp(f(-0.5) * x[i] * x[i]) * f(1 / math.sqrt(2 * math.pi))
        dx[i] = g[i] * (Phi[i] + x[i] * phi)


@loop
def gelu_tanh(x: Array, y: Array, Phi: Array) -> None:
    for i in range(x.size):
        Phi[i] = sigmoid(x[i] * (f(math.sqrt(8 / math.pi)) + f(math.sqrt(8 / math.pi) * 0.044715) * x[i] * x[i]))
        y[i] = x[i] * Phi[i]


@loop
def gelu_tanh_vjp(g: Array, x: Array, Phi: Array, dx: Array) -> None:
    for i in range(x.size):
        slope = f(math.sqrt(8 / math.pi)) * (f(1) + f(3 * 0.044715) * x[i] * x[i])
        dx[i] = g[i] * (Phi[i] + x[i] * (slope * Phi[i] * (f(1) - Phi[i])))


# ------------------------------------------------------------------------------------------------ rotary


@loop
def rotary(halves: bool, cos: Array, sin: Array, x: Array, y: Array) -> None:
    """Of x (n · T, d), with cos and sin (T, d/2)."""
    T, half = cos.shape
    for i in range(x.shape[0]):
        c, s = cos[i % T], sin[i % T]
        if halves:
            a, b, ya, yb = x[i, :half], x[i, half:], y[i, :half], y[i, half:]
            for j in range(half):
                ya[j] = a[j] * c[j] - b[j] * s[j]
                yb[j] = a[j] * s[j] + b[j] * c[j]
        else:
            for j in range(half):
                aj, bj = x[i, 2 * j], x[i, 2 * j + 1]
                y[i, 2 * j] = aj * c[j] - bj * s[j]
                y[i, 2 * j + 1] = aj * s[j] + bj * c[j]


# ------------------------------------------------------------------------------------------------ normalization


@loop_with_sums
def layer_norm(weight: Array | None, bias: Array | None, eps: float, x: Array, y: Array, mu: Array, r: Array) -> None:
    d = x.shape[1]
    for i in range(x.shape[0]):
        total = f(0)
        for j in range(d):
            total += x[i, j]
        mean = total / f(d)
        squares = f(0)
        for j in range(d):
            squares += (x[i, j] - mean) * (x[i, j] - mean)
        scale = f(1) / f(math.sqrt(squares / f(d) + f(eps)))
        for j in range(d):
            n = (x[i, j] - mean) * scale
            if weight is not None:
                n *= weight[j]
            if bias is not None:
                n += bias[j]
            y[i, j] = n
        mu[i, 0], r[i, 0] = mean, scale


@loop_with_sums
def layer_norm_vjp(weight: Array | None, g: Array, x: Array, mu: Array, r: Array, dx: Array) -> tuple[Array, Array]:
    d = x.shape[1]
    dw, db = numpy.zeros(d, f), numpy.zeros(d, f)
    for i in range(x.shape[0]):
        mean, scale = mu[i, 0], r[i, 0]
        sum_dn = sum_n_dn = f(0)
        for j in range(d):
            n = (x[i, j] - mean) * scale
            dn = g[i, j] if weight is None else g[i, j] * weight[j]
            dw[j] += g[i, j] * n
            db[j] += g[i, j]
            sum_dn += dn
            sum_n_dn += n * dn
        mean_dn, mean_n_dn = sum_dn / f(d), sum_n_dn / f(d)
        for j in range(d):
            dn = g[i, j] if weight is None else g[i, j] * weight[j]
            dx[i, j] = scale * (dn - mean_dn - (x[i, j] - mean) * scale * mean_n_dn)
    return dw, db


@loop_with_sums
def rms_norm(weight: Array | None, eps: float, x: Array, y: Array, r: Array) -> None:
    d = x.shape[1]
    for i in range(x.shape[0]):
        squares = f(0)
        for j in range(d):
            squares += x[i, j] * x[i, j]
        scale = f(1) / f(math.sqrt(squares / f(d) + f(eps)))
        for j in range(d):
            n = x[i, j] * scale
            y[i, j] = n if weight is None else n * weight[j]
        r[i, 0] = scale


@loop_with_sums
def rms_norm_vjp(weight: Array | None, g: Array, x: Array, r: Array, dx: Array) -> tuple[Array]:
    d = x.shape[1]
    dw = numpy.zeros(d, f)
    for i in range(x.shape[0]):
        scale = r[i, 0]
        total = f(0)
        for j in range(d):
            n = x[i, j] * scale
            dw[j] += g[i, j] * n
            total += n * (g[i, j] if weight is None else g[i, j] * weight[j])
        mean = total / f(d)
        for j in range(d):
            dn = g[i, j] if weight is None else g[i, j] * weight[j]
            dx[i, j] = scale * (dn - x[i, j] * scale * mean)
    return (dw,)
