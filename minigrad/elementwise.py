"""Element-wise functions: forward, and beside it the derivative.

Each rule reads: the gradient ``g`` of the output times the derivative of the function. Complex arguments follow the
same formulas where the function is holomorphic; the few that are not (`abs`, `real`, `imag`, `conj`) say what they do.
At a kink the rule takes the value that its docstring names.

Two arguments broadcast to one shape and promote to one dtype, and one of them can be a Python number. Shapes that do
not broadcast are a ValueError, arrays of two libraries a TypeError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/elementwise_functions.html
"""

from __future__ import annotations

import math
from typing import Any

from . import backend
from .autodiff import Primitive, primitive
from .backend import Array
from .searching import where
from .tensor import Tensor

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign",
    "cos", "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot",
    "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit",
    "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip


def _is_complex(xp: Any, x: Any) -> bool:
    return hasattr(x, "dtype") and bool(xp.isdtype(x.dtype, "complex floating"))


# ------------------------------------------------------------------------------------------------ arithmetic


@primitive
def add(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1 + x2, with broadcasting. d = dx1 + dx2.

    >>> mg.grad(lambda x2: mg.sum(mg.add(mg.ones(3), x2)))(5.0).item()  # one number added to three
    3.0
    """
    return xp.add(x1, x2)


add.vjp(x1=lambda g: g, x2=lambda g: g)


@primitive
def subtract(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1 - x2. d = dx1 - dx2.

    >>> mg.grad(mg.subtract, argnums=1)(3.0, 5.0).item()
    -1.0
    """
    return xp.subtract(x1, x2)


subtract.vjp(x1=lambda g: g, x2=lambda g: -g)


@primitive
def multiply(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1 · x2. d = x2 dx1 + x1 dx2.

    >>> mg.grad(mg.multiply)(3.0, 5.0).item()
    5.0
    """
    return xp.multiply(x1, x2)


multiply.vjp(x1=lambda g, x2: g * x2, x2=lambda g, x1: g * x1)


@primitive
def divide(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1 / x2. d = dx1 / x2 - (x1 / x2) dx2 / x2.

    >>> mg.grad(mg.divide, argnums=1)(6.0, 2.0).item()
    -1.5
    """
    return xp.divide(x1, x2)


divide.vjp(x1=lambda g, x2: g / x2, x2=lambda g, x2, out: -g * out / x2)
divide.example((2, 3), (3,), low=0.5, high=2)


@primitive
def reciprocal(xp: Any, x: Array, /) -> Array:
    """1 / x. d = -dx / x².

    >>> mg.grad(mg.reciprocal)(2.0).item()
    -0.25
    """
    return xp.reciprocal(x)


reciprocal.vjp(x=lambda g, out: -g * out * out)
reciprocal.example((2, 3), low=0.5, high=2)


@primitive
def remainder(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1 - ⌊x1 / x2⌋ · x2, with the sign of x2. d = dx1 - ⌊x1 / x2⌋ dx2 (the jumps have no derivative).

    >>> mg.remainder(mg.asarray([-7, 7]), 3).tolist()
    [2, 1]
    """
    return xp.remainder(x1, x2)


remainder.vjp(x1=lambda g: g, x2=lambda g, xp, x1, x2: -g * xp.floor(xp.divide(x1, x2)))
remainder.example((2, 3), (3,), low=0.5, high=2)


@primitive
def negative(xp: Any, x: Array, /) -> Array:
    """-x. d = -dx.

    >>> mg.grad(mg.negative)(3.0).item()
    -1.0
    """
    return xp.negative(x)


negative.vjp(x=lambda g: -g)


@primitive
def positive(xp: Any, x: Array, /) -> Array:
    """+x, a copy. d = dx.

    >>> mg.grad(mg.positive)(3.0).item()
    1.0
    """
    return xp.asarray(x, copy=True)  # PyTorch's positive is x itself


positive.vjp(x=lambda g: g)


@primitive(view=True)
def alias(xp: Any, x: Array, /) -> Array:
    """x itself as a new place in the graph: where the transforms (`grad`, `vjp` …) start from."""
    return x


alias.vjp(x=lambda g: g)


@primitive
def pow(xp: Any, x1: Array, x2: Array, /) -> Array:
    """x1 ** x2. d = x2 x1^(x2-1) dx1 + ln(x1) x1^x2 dx2, where 0·∞ is 0: x⁰ is flat in x, 0ʸ is flat in y.

    >>> mg.grad(mg.pow)(2.0, 3.0).item()
    12.0
    """
    # The operator, since NumPy's has a fast path for squares that numpy.power lacks.
    return x1**x2 if isinstance(x2, int | float) else xp.pow(x1, x2)


def _pow_x1(g: Array, xp: Any, x1: Array, x2: Array) -> Array:
    if isinstance(x2, int | float):
        return g * 0 if x2 == 0 else g * (x2 * x1 ** (x2 - 1))
    x1, x2 = _as(xp, x1, g), _as(xp, x2, g)  # integers would overflow
    return g * x2 * xp.pow(x1, xp.where(x2 == 0, 1, x2) - 1)


def _pow_x2(g: Array, xp: Any, x1: Array, out: Array) -> Array:
    if isinstance(x1, int | float):
        return g * 0 if x1 == 0 else g * (out * (math.log(x1) if x1 > 0 else math.nan))
    x1 = _as(xp, x1, g)
    return g * out * xp.log(xp.where(x1 == 0, 1, x1))


def _as(xp: Any, x: Array, g: Array) -> Array:
    """x in the dtype of g; a Python scalar stays as it is."""
    return xp.astype(x, g.dtype, copy=False) if hasattr(x, "dtype") else x


pow.vjp(x1=_pow_x1, x2=_pow_x2)
pow.example((2, 3), (3,), low=0.5, high=2)
pow.example((2, 3), 3)


@primitive
def square(xp: Any, x: Array, /) -> Array:
    """x². d = 2 x dx.

    >>> mg.grad(mg.square)(3.0).item()
    6.0
    """
    return xp.square(x)


square.vjp(x=lambda g, x: g * (2 * x))


@primitive
def sqrt(xp: Any, x: Array, /) -> Array:
    """√x. d = dx / (2 √x), infinite at 0.

    >>> mg.grad(mg.sqrt)(4.0).item()
    0.25
    """
    return xp.sqrt(x)


sqrt.vjp(x=lambda g, out: g / (2 * out))
sqrt.example((2, 3), low=0.5, high=2)


@primitive
def hypot(xp: Any, x1: Array, x2: Array, /) -> Array:
    """√(x1² + x2²) without overflow. d = (x1 dx1 + x2 dx2) / out, and 0 at the origin.

    >>> mg.grad(mg.hypot)(3.0, 4.0).item()
    0.6
    """
    return xp.hypot(x1, x2)


def _hypot(g: Array, xp: Any, x: Array, out: Array) -> Array:
    return g * (x / xp.where(out == 0, 1, out))


hypot.vjp(x1=lambda g, xp, x1, out: _hypot(g, xp, x1, out), x2=lambda g, xp, x2, out: _hypot(g, xp, x2, out))


# ------------------------------------------------------------------------------------------------ size and sign


@primitive
def abs(xp: Any, x: Array, /) -> Array:
    """|x|. d = sign(x) dx, and 0 at 0; for complex x, Re(x* dx) / |x|.

    >>> [mg.grad(mg.abs)(x).item() for x in (-2.0, 0.0, 2.0)]
    [-1.0, 0.0, 1.0]
    """
    return xp.abs(x)


def _abs(g: Array, xp: Any, x: Array, out: Array) -> Array:
    return g * (xp.conj(x) / xp.where(out == 0, 1, out) if _is_complex(xp, x) else xp.sign(x))


abs.vjp(x=_abs)
abs.example((2, 3))
abs.example((2, 3), complex=True)


@primitive
def copysign(xp: Any, x1: Array, x2: Array, /) -> Array:
    """|x1| with the sign of x2. d = ± dx1; flat in x2.

    >>> mg.copysign(mg.asarray([3.0, -3.0]), -0.0).tolist()
    [-3.0, -3.0]
    """
    return xp.copysign(x1, x2)


copysign.vjp(
    x1=lambda g, xp, x1, x2: xp.where(xp.signbit(x1) == xp.signbit(x2), g, -g), x2=lambda g, xp: xp.zeros_like(g)
)


@primitive
def maximum(xp: Any, x1: Array, x2: Array, /) -> Array:
    """The larger of x1 and x2; where they are equal, each gets half of the gradient.

    >>> [d.item() for d in mg.grad(mg.maximum, argnums=(0, 1))(2.0, 2.0)]
    [0.5, 0.5]
    """
    return xp.maximum(x1, x2)


@primitive
def minimum(xp: Any, x1: Array, x2: Array, /) -> Array:
    """The smaller of x1 and x2; where they are equal, each gets half of the gradient.

    >>> [d.item() for d in mg.grad(mg.minimum, argnums=(0, 1))(2.0, 3.0)]
    [1.0, 0.0]
    """
    return xp.minimum(x1, x2)


def _winner(g: Array, xp: Any, loses: Array, ties: Array) -> Array:
    """g where this argument was taken, half of it where both are equal. A NaN, which is no order, takes g as well."""
    return xp.where(ties, g / 2, xp.where(loses, xp.zeros_like(g), g))


maximum.vjp(
    x1=lambda g, xp, x1, x2: _winner(g, xp, x1 < x2, x1 == x2),
    x2=lambda g, xp, x1, x2: _winner(g, xp, x1 > x2, x1 == x2),
)
minimum.vjp(
    x1=lambda g, xp, x1, x2: _winner(g, xp, x1 > x2, x1 == x2),
    x2=lambda g, xp, x1, x2: _winner(g, xp, x1 < x2, x1 == x2),
)


@primitive
def clip(xp: Any, x: Array, /, min: Array | None = None, max: Array | None = None) -> Array:
    """x limited to [min, max]. The gradient goes to x inside and on the limits, to a limit where x is beyond it.

    >>> mg.grad(lambda x: mg.sum(mg.clip(x, 0.0, 1.0)))(mg.asarray([-2.0, 0.5, 1.0, 2.0])).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    return xp.clip(x, min, max)


def _clip_x(g: Array, xp: Any, x: Array, min: Array | None, max: Array | None) -> Array:
    zero = xp.zeros_like(g)
    if min is not None:
        g = xp.where(x < min, zero, g)
    if max is not None:
        g = xp.where(x > max, zero, g)
    return g


def _clip_min(g: Array, xp: Any, x: Array, min: Array, max: Array | None) -> Array:
    inside = x < min if max is None else xp.logical_and(x < min, min <= max)
    return xp.where(inside, g, xp.zeros_like(g))


def _clip_max(g: Array, xp: Any, x: Array, min: Array | None, max: Array) -> Array:
    inside = x > max if min is None else xp.logical_or(x > max, min > max)
    return xp.where(inside, g, xp.zeros_like(g))


clip.vjp(x=_clip_x, min=_clip_min, max=_clip_max)
clip.example((2, 3), -0.7, 0.9)
clip.example((2, 3), (3,), None)


# ------------------------------------------------------------------------------------------------ exponentials


@primitive
def exp(xp: Any, x: Array, /) -> Array:
    """eˣ. d = eˣ dx.

    >>> mg.grad(mg.exp)(0.0).item()
    1.0
    """
    return xp.exp(x)


exp.vjp(x=lambda g, out: g * out)


@primitive
def expm1(xp: Any, x: Array, /) -> Array:
    """eˣ - 1, exact for small x. d = eˣ dx.

    >>> mg.expm1(mg.asarray(1e-20)).item()
    1e-20
    """
    return xp.expm1(x)


expm1.vjp(x=lambda g, out: g * (out + 1))


@primitive
def log(xp: Any, x: Array, /) -> Array:
    """ln x. d = dx / x.

    >>> mg.grad(mg.log)(4.0).item()
    0.25
    """
    return xp.log(x)


log.vjp(x=lambda g, x: g / x)
log.example((2, 3), low=0.5, high=3)


@primitive
def log1p(xp: Any, x: Array, /) -> Array:
    """ln(1 + x), exact for small x. d = dx / (1 + x).

    >>> mg.log1p(mg.asarray(1e-20)).item()
    1e-20
    """
    return xp.log1p(x)


log1p.vjp(x=lambda g, x: g / (1 + x))
log1p.example((2, 3), low=-0.5, high=3)


@primitive
def log2(xp: Any, x: Array, /) -> Array:
    """log₂ x. d = dx / (x ln 2).

    >>> mg.log2(mg.asarray([1.0, 8.0])).tolist()
    [0.0, 3.0]
    """
    return xp.log2(x)


log2.vjp(x=lambda g, x: g / (x * math.log(2)))
log2.example((2, 3), low=0.5, high=3)


@primitive
def log10(xp: Any, x: Array, /) -> Array:
    """log₁₀ x. d = dx / (x ln 10).

    >>> mg.log10(mg.asarray([1.0, 100.0])).tolist()
    [0.0, 2.0]
    """
    return xp.log10(x)


log10.vjp(x=lambda g, x: g / (x * math.log(10)))
log10.example((2, 3), low=0.5, high=3)


@primitive
def logaddexp(xp: Any, x1: Array, x2: Array, /) -> Array:
    """ln(e^x1 + e^x2). d = e^(x1-out) dx1 + e^(x2-out) dx2: the softmax of two.

    >>> mg.grad(mg.logaddexp)(0.0, 0.0).item()
    0.5
    """
    return xp.logaddexp(x1, x2)


def _logaddexp(g: Array, xp: Any, x: Array, out: Array) -> Array:
    return g * xp.exp(x - xp.where(xp.isinf(out), 0, out))  # of two -inf, which are e⁰ = 0 each


logaddexp.vjp(
    x1=lambda g, xp, x1, out: _logaddexp(g, xp, x1, out), x2=lambda g, xp, x2, out: _logaddexp(g, xp, x2, out)
)


# ------------------------------------------------------------------------------------------------ trigonometry


@primitive
def sin(xp: Any, x: Array, /) -> Array:
    """sin x. d = cos x dx.

    >>> mg.grad(mg.sin)(0.0).item()
    1.0
    """
    return xp.sin(x)


sin.vjp(x=lambda g, xp, x: g * xp.cos(x))


@primitive
def cos(xp: Any, x: Array, /) -> Array:
    """cos x. d = -sin x dx.

    >>> mg.grad(mg.grad(mg.cos))(0.0).item()
    -1.0
    """
    return xp.cos(x)


cos.vjp(x=lambda g, xp, x: -g * xp.sin(x))


@primitive
def tan(xp: Any, x: Array, /) -> Array:
    """tan x. d = (1 + tan² x) dx.

    >>> mg.grad(mg.tan)(0.0).item()
    1.0
    """
    return xp.tan(x)


tan.vjp(x=lambda g, out: g * (1 + out * out))
tan.example((2, 3), low=-1, high=1)


@primitive
def asin(xp: Any, x: Array, /) -> Array:
    """arcsin x. d = dx / √(1 - x²).

    >>> mg.grad(mg.asin)(0.6).item()
    1.25
    """
    return xp.asin(x)


asin.vjp(x=lambda g, xp, x: g / xp.sqrt(1 - x * x))
asin.example((2, 3), low=-0.8, high=0.8)


@primitive
def acos(xp: Any, x: Array, /) -> Array:
    """arccos x. d = -dx / √(1 - x²).

    >>> mg.grad(mg.acos)(0.6).item()
    -1.25
    """
    return xp.acos(x)


acos.vjp(x=lambda g, xp, x: -g / xp.sqrt(1 - x * x))
acos.example((2, 3), low=-0.8, high=0.8)


@primitive
def atan(xp: Any, x: Array, /) -> Array:
    """arctan x. d = dx / (1 + x²).

    >>> mg.grad(mg.atan)(1.0).item()
    0.5
    """
    return xp.atan(x)


atan.vjp(x=lambda g, x: g / (1 + x * x))


@primitive
def atan2(xp: Any, x1: Array, x2: Array, /) -> Array:
    """The angle of the point (x2, x1). d = (x2 dx1 - x1 dx2) / (x1² + x2²).

    >>> [d.item() for d in mg.grad(mg.atan2, argnums=(0, 1))(4.0, 3.0)]
    [0.12, -0.16]
    """
    return xp.atan2(x1, x2)


def _over_square(g: Array, xp: Any, x: Array, x1: Array, x2: Array) -> Array:
    r = xp.hypot(x1, x2)  # not its square, which overflows sooner
    return g * (x / r) / r


atan2.vjp(
    x1=lambda g, xp, x1, x2: _over_square(g, xp, x2, x1, x2),
    x2=lambda g, xp, x1, x2: -_over_square(g, xp, x1, x1, x2),
)
atan2.example((2, 3), (3,), low=0.5, high=2)


# ------------------------------------------------------------------------------------------------ hyperbolic


@primitive
def sinh(xp: Any, x: Array, /) -> Array:
    """sinh x. d = cosh x dx.

    >>> mg.grad(mg.sinh)(0.0).item()
    1.0
    """
    return xp.sinh(x)


sinh.vjp(x=lambda g, xp, x: g * xp.cosh(x))


@primitive
def cosh(xp: Any, x: Array, /) -> Array:
    """cosh x. d = sinh x dx.

    >>> mg.grad(mg.grad(mg.cosh))(0.0).item()
    1.0
    """
    return xp.cosh(x)


cosh.vjp(x=lambda g, xp, x: g * xp.sinh(x))


@primitive
def tanh(xp: Any, x: Array, /) -> Array:
    """tanh x. d = (1 - tanh² x) dx.

    >>> mg.grad(mg.tanh)(0.0).item()
    1.0
    """
    return xp.tanh(x)


tanh.vjp(x=lambda g, out: g * (1 - out * out))


@primitive
def asinh(xp: Any, x: Array, /) -> Array:
    """arsinh x. d = dx / √(x² + 1).

    >>> mg.grad(mg.asinh)(0.75).item()
    0.8
    """
    return xp.asinh(x)


asinh.vjp(x=lambda g, xp, x: g / xp.sqrt(x * x + 1))


@primitive
def acosh(xp: Any, x: Array, /) -> Array:
    """arcosh x. d = dx / √(x² - 1).

    >>> mg.grad(mg.acosh)(1.25).item()
    1.3333333333333333
    """
    return xp.acosh(x)


acosh.vjp(x=lambda g, xp, x: g / (xp.sqrt(x - 1) * xp.sqrt(x + 1)))
acosh.example((2, 3), low=1.5, high=3)


@primitive
def atanh(xp: Any, x: Array, /) -> Array:
    """artanh x. d = dx / (1 - x²).

    >>> mg.grad(mg.atanh)(0.5).item()
    1.3333333333333333
    """
    return xp.atanh(x)


atanh.vjp(x=lambda g, x: g / (1 - x * x))
atanh.example((2, 3), low=-0.8, high=0.8)


# ------------------------------------------------------------------------------------------------ complex numbers


@primitive(view=True)  # PyTorch conjugates lazily
def conj(xp: Any, x: Array, /) -> Array:
    """The complex conjugate. It conjugates the gradient as well.

    >>> mg.conj(mg.asarray(1 + 2j)).item()
    (1-2j)
    """
    return xp.conj(x)


conj.vjp(x=lambda g, xp: xp.conj(g) if _is_complex(xp, g) else g)
conj.example((2, 3), complex=True)


@primitive(view=True)
def real(xp: Any, x: Array, /) -> Array:
    """The real part. d = Re dx.

    >>> mg.real(mg.asarray(1 + 2j)).item()
    1.0
    """
    return xp.real(x)


real.vjp(x=lambda g: g)
real.example((2, 3), complex=True)


@primitive(view=True)
def imag(xp: Any, x: Array, /) -> Array:
    """The imaginary part. d = Im dx = Re(-i dx).

    >>> mg.grad(mg.imag)(1 + 2j).item()  # it grows fastest in the direction of i
    1j
    """
    return xp.imag(x)


imag.vjp(x=lambda g: g * -1j)
imag.example((2, 3), complex=True)


def sign(x: Array, /) -> Tensor:
    """-1, 0 or 1, without a derivative; for complex x, x / |x| (0 at 0), which has one.

    >>> mg.sign(mg.asarray([-2.0, 0.0, 3.0])).tolist(), mg.sign(mg.asarray(2j)).item()
    ([-1.0, 0.0, 1.0], 1j)
    """
    if backend.dtype_name(x.dtype).startswith("complex"):
        size = abs(x)
        return where(equal(size, 0), 0, divide(x, where(equal(size, 0), 1, size)))
    return _sign(x)


# ------------------------------------------------------------------------------------------------ without a derivative
# Steps and comparisons: the result of these never requires a gradient. One line each, all made by the same two, which
# make a doctest of "x; number → result".


def _unary(name: str, doc: str, why: str, example: str, view: bool = False) -> Primitive[Any]:
    def function(xp: Any, x: Array, /) -> Array:
        return getattr(xp, name)(x)

    return _named(function, name, doc, why, example, view)


def _binary(name: str, doc: str, why: str, example: str) -> Primitive[Any]:
    def function(xp: Any, x1: Array, x2: Array, /) -> Array:
        return getattr(xp, name)(x1, x2)

    return _named(function, name, doc, why, example)


def _named(function: Any, name: str, doc: str, why: str, example: str, view: bool = False) -> Primitive[Any]:
    arguments, result = example.split(" → ")
    x, *number = arguments.split("; ")
    call = f"mg.{name}({', '.join([f'mg.asarray({x})', *number])})"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}. No derivative: {why}.\n\n>>> {call}.tolist()\n{result}\n"
    made: Primitive[Any] = primitive(function, view=view)
    return made


INTEGERS, ANSWER, STEPS = "made for integers", "yes or no", "flat between its steps"
SPACING = "where numbers are is a matter of the format"

bitwise_and = _binary("bitwise_and", "x1 & x2", INTEGERS, "12; 10 → 8")
bitwise_invert = _unary("bitwise_invert", "~x", INTEGERS, "[0, 5] → [-1, -6]")
bitwise_left_shift = _binary("bitwise_left_shift", "x1 << x2", INTEGERS, "3; 2 → 12")
bitwise_or = _binary("bitwise_or", "x1 | x2", INTEGERS, "12; 10 → 14")
bitwise_right_shift = _binary("bitwise_right_shift", "x1 >> x2", INTEGERS, "12; 2 → 3")
bitwise_xor = _binary("bitwise_xor", "x1 ^ x2", INTEGERS, "12; 10 → 6")
ceil = _unary("ceil", "The least integer that is not below x", STEPS, "1.5 → 2.0", view=True)  # integers stay as is
equal = _binary("equal", "x1 == x2", ANSWER, "[1, 2, 3]; 2 → [False, True, False]")
floor = _unary("floor", "The greatest integer that is not above x", STEPS, "-1.5 → -2.0", view=True)
floor_divide = _binary("floor_divide", "⌊x1 / x2⌋", STEPS, "[7, -7]; 2 → [3, -4]")
greater = _binary("greater", "x1 > x2", ANSWER, "[1, 2, 3]; 2 → [False, False, True]")
greater_equal = _binary("greater_equal", "x1 >= x2", ANSWER, "[1, 2, 3]; 2 → [False, True, True]")
isfinite = _unary("isfinite", "Whether x is neither infinite nor NaN", ANSWER, "[1.0, mg.inf] → [True, False]")
isinf = _unary("isinf", "Whether x is infinite", ANSWER, "[1.0, -mg.inf] → [False, True]")
isnan = _unary("isnan", "Whether x is NaN", ANSWER, "[mg.inf, mg.nan] → [False, True]")
less = _binary("less", "x1 < x2", ANSWER, "[1, 2, 3]; 2 → [True, False, False]")
less_equal = _binary("less_equal", "x1 <= x2", ANSWER, "[1, 2, 3]; 2 → [True, True, False]")
logical_and = _binary("logical_and", "x1 and x2", ANSWER, "[True, False]; True → [True, False]")
logical_not = _unary("logical_not", "not x", ANSWER, "[True, False] → [False, True]")
logical_or = _binary("logical_or", "x1 or x2", ANSWER, "[True, False]; False → [True, False]")
logical_xor = _binary("logical_xor", "Either x1 or x2, not both", ANSWER, "[True, False]; True → [False, True]")
nextafter = _binary("nextafter", "The next representable number after x1 towards x2", SPACING, "0.0; 1.0 → 5e-324")
not_equal = _binary("not_equal", "x1 != x2", ANSWER, "[1, 2, 3]; 2 → [True, False, True]")
round = _unary("round", "The nearest integer, the even one of two", STEPS, "[0.5, 1.5, 2.5] → [0.0, 2.0, 2.0]")
_sign = _unary("sign", "-1, 0 or 1", STEPS, "[-2, 0, 3] → [-1, 0, 1]")
signbit = _unary("signbit", "Whether the sign bit is set, also for -0.0", ANSWER, "[0.0, -0.0] → [False, True]")
trunc = _unary("trunc", "x rounded towards 0", STEPS, "-1.5 → -1.0", view=True)
