"""Activation functions: gelu, silu, relu, and the error function that gelu is made of."""

from __future__ import annotations

import math
from typing import Any

from minigrad import keep, primitive
from minigrad.backend import Array, dtype_name, exp_in_place

from ._numerics import cast, widen
from ._tiles import elementwise


@primitive
def relu(xp: Any, x: Array, /) -> Array:
    """max(x, 0). dx = g where x > 0, else 0 (also at 0 itself).

    (V. Nair, G. Hinton, "Rectified Linear Units Improve Restricted Boltzmann Machines", ICML, 2010.)

    >>> relu(mg.asarray([-2.0, 3.0])).tolist()
    [0.0, 3.0]
    >>> mg.grad(relu)(0.0).item()
    0.0
    """
    if dtype_name(x.dtype).startswith("complex"):  # some libraries compare the real parts
        raise TypeError(f"expected real numbers, got {dtype_name(x.dtype)} {tuple(x.shape)}")
    return xp.maximum(x, 0)


relu.vjp(x=lambda g, xp, out: xp.where(out > 0, g, xp.zeros_like(g)))
relu.example((2, 3), low=0.1, high=2)
relu.example((2, 3), low=-2, high=-0.1)


@primitive
def sigmoid(xp: Any, x: Array, /) -> Array:
    """s = 1 / (1 + e⁻ˣ), without overflow. δs = e⁻ˣ / (1 + e⁻ˣ)² δx, so dx = g s (1 − s).

    >>> sigmoid(mg.asarray([0.0, -1000.0])).tolist()
    [0.5, 0.0]
    >>> mg.grad(sigmoid)(0.0).item()
    0.25
    """
    wide = widen(xp, x)
    e = exp_in_place(xp, -xp.abs(wide))  # not above 1; s is 1/(1 + e) to the right of 0 and e/(1 + e) to the left
    s = xp.maximum(e, xp.astype(wide >= 0, wide.dtype))  # the same with `where` takes NumPy twice as long in all
    e += 1
    s /= e
    return cast(xp, s, x)


sigmoid.vjp(x=lambda g, out: g * out * (1 - out))
sigmoid.example((2, 3))


@primitive
def silu(xp: Any, x: Array, /) -> Any:
    """y = x s with the sigmoid s = 1 / (1 + e⁻ˣ), also known as swish.

    (S. Elfwing, E. Uchibe, K. Doya, 2017, arXiv:1702.03118.)

    Derivation. δs = s (1 − s) δx (see `sigmoid`), so δy = (s + x s (1 − s)) δx and dx = g s (1 + x (1 − s)).

    >>> silu(mg.asarray([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    >>> mg.grad(silu)(0.0).item()
    0.5
    """

    def forward(x: Array) -> tuple[Array, ...]:
        wide = widen(xp, x)
        s = sigmoid.raw(xp)(wide)
        return cast(xp, wide * s, x), s

    y, s = elementwise(xp, forward, x, loop="silu", results=2)
    return keep(y, s=s)


def _silu(g: Array, xp: Any, x: Array, s: Array) -> Array:
    return elementwise(xp, lambda g, x, s: (g * s * (1 + x * (1 - s)),), g, x, s, loop="silu_vjp")[0]


silu.vjp(x=_silu)
silu.example((2, 3))


@primitive
def gelu(xp: Any, x: Array, /, *, approximate: str = "none") -> Any:
    """y = x Φ(x) with Φ the distribution function of a normal variable.

    (D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", 2016, arXiv:1606.08415.)

    ``approximate="none"``: Φ(x) = (1 + erf(x/√2)) / 2, whose derivative is φ(x) = exp(−x²/2) / √(2π).
    ``approximate="tanh"``: Φ(x) = (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³), as in GPT-2. That is the sigmoid
    of v = 2u, so its derivative is φ(x) = Φ (1 − Φ) v′ with v′ = √(8/π) (1 + 3 · 0.044715 x²).

    Derivation. δy = Φ δx + x δΦ, so dx = g (Φ + x φ), with the Φ that the forward pass kept.

    >>> gelu(mg.asarray([0.0, 100.0])).tolist()
    [0.0, 100.0]
    >>> mg.grad(gelu)(0.0).item()
    0.5
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"expected approximate='none' or 'tanh', got {approximate!r}")

    def forward(x: Array) -> tuple[Array, ...]:
        wide = widen(xp, x)
        if approximate == "none":
            Phi = erf.raw(xp)(wide * math.sqrt(1 / 2))
            Phi += 1
            Phi *= 0.5
        else:
            # Exact far to the left, where 1 + tanh u is nothing but rounding; and NumPy's exp takes half of its tanh.
            Phi = sigmoid.raw(xp)(_v(wide))
        return cast(xp, wide * Phi, x), Phi

    y, Phi = elementwise(xp, forward, x, loop="gelu" if approximate == "none" else "gelu_tanh", results=2)
    return keep(y, Phi=Phi)


def _v(x: Array) -> Array:
    return x * (math.sqrt(8 / math.pi) + math.sqrt(8 / math.pi) * 0.044715 * (x * x))


def _gelu(g: Array, xp: Any, x: Array, Phi: Array, approximate: str) -> Array:
    def backward(g: Array, x: Array, Phi: Array) -> tuple[Array, ...]:
        x = widen(xp, x)
        if approximate == "none":
            phi = x * x
            phi *= -0.5
            phi = xp.exp(phi)
            phi *= 1 / math.sqrt(2 * math.pi)
        else:
            phi = x * x
            phi *= 3 * 0.044715
            phi += 1
            phi *= math.sqrt(8 / math.pi)
            phi *= Phi
            phi *= 1 - Phi
        phi *= x
        phi += Phi
        return (g * phi,)

    loop = "gelu_vjp" if approximate == "none" else "gelu_tanh_vjp"
    return elementwise(xp, backward, g, x, Phi, loop=loop)[0]


gelu.vjp(x=_gelu)
gelu.example((2, 3))
gelu.example((2, 3), approximate="tanh")


@primitive
def erf(xp: Any, x: Array, /) -> Array:
    """The error function (2/√π) ∫₀ˣ exp(−t²) dt. δ = (2/√π) exp(−x²) δx. (https://dlmf.nist.gov/7.2#E1)

    The standard has no such function. A namespace that has one is asked; else it is computed from rational
    approximations, to the last bit or two of float64 and float32.

    >>> round(float(erf(mg.asarray(1.0))), 6)
    0.842701
    """
    wide = widen(xp, x)
    if hasattr(xp, "erf"):
        return xp.erf(x)
    return cast(xp, _erf64(xp, wide) if dtype_name(wide.dtype) == "float64" else _erf32(xp, wide), x)


erf.vjp(x=lambda g, xp, x: g * xp.exp(-(x * x)) * (2 / math.sqrt(math.pi)))
erf.example((2, 3))

# S. L. Moshier, Cephes Math Library 2.2, ndtr.c, 1992; highest power first.
# |x| < 1: erf(x) = x T(x²) / U(x²).   1 ≤ x: erf(x) = 1 − exp(−x²) P(x) / Q(x).
_T = (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
      5.55923013010394962768e4)  # fmt: skip
_U = (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
      4.92673942608635921086e4)  # fmt: skip
_P = (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
      1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
      5.57535335369399327526e2)  # fmt: skip
_Q = (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
      1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3,
      5.57535340817727675546e2)  # fmt: skip

# For float32 those of Eigen 3.4, generic_fast_erf_float: erf(x) = x A(x²) / B(x²). From 3.9 on that is a little over 1
# and is cut, so that the result is 1 exactly: x Φ(x) with x = −10⁶ has to be 0.
_A = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
_B = (-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667,
      0.11098505178285362, 0.49746925110067538, 1.0)  # fmt: skip


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """By Horner's rule; the highest power comes first."""
    first, second, *rest = coefficients
    y = x * first
    y += second
    for c in rest:
        y *= x
        y += c
    return y


def _erf64(xp: Any, x: Array) -> Array:
    x = xp.clip(x, -6.0, 6.0)  # 1 − erf(6) is 2e-17
    z, zz = xp.abs(x), x * x
    tail = xp.exp(-zz)
    tail *= _polynomial(z, _P)
    tail /= _polynomial(z, _Q)
    near = x * _polynomial(zz, _T)
    near /= _polynomial(zz, _U)
    return xp.where(z < 1, near, xp.sign(x) * (1 - tail))


def _erf32(xp: Any, x: Array) -> Array:
    x = xp.clip(x, -4.0, 4.0)
    xx = x * x
    y = x * _polynomial(xx, _A)
    y /= _polynomial(xx, _B)
    return xp.clip(y, -1.0, 1.0)
