"""minigrad: reverse-mode automatic differentiation over any Python Array API namespace.

This package is itself such a namespace: ``minigrad.exp``, ``minigrad.sum`` … with the standard's names and
signatures, on Tensors that can be differentiated.

>>> import minigrad as mg
>>> x = mg.Tensor([1.0, 2.0], requires_grad=True)
>>> mg.sum(mg.exp(x)).backward()
>>> x.grad
Tensor([2.71828183, 7.3890561 ], dtype=float64, backend=numpy, device=cpu)
"""

from __future__ import annotations

import math as _math
from typing import Any as _Any

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

# isort: off  — from the bottom layer to the top, as in docs/: each file imports from those above it alone
from . import autodiff, backend, indexing, random
from .autodiff import Primitive, keep, no_grad, primitive
from .backend import BackendError, get_backend, set_backend, use_backend
from .creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    to_device,
    tril,
    triu,
    zeros,
    zeros_like,
)  # fmt: skip
from .data_types import astype, can_cast, finfo, iinfo, isdtype, result_type
from .elementwise import (
    abs,
    acos,
    acosh,
    add,
    alias,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    divide,
    equal,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    imag,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    real,
    reciprocal,
    remainder,
    round,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
)  # fmt: skip
from .indexing import getitem, setitem, take, take_along_axis
from .linear_algebra import matmul, matrix_transpose, tensordot, vecdot
from .manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)  # fmt: skip
from .searching import argmax, argmin, count_nonzero, nonzero, searchsorted, where
from .statistical import cumulative_sum, max, mean, min, prod, std, sum, var
from .tensor import Tensor
from .transforms import checkpoint, grad, hessian, hvp, jacobian, jvp, value_and_grad, vjp
from .utility import all, any

# isort: on

e = _math.e
inf = _math.inf
nan = _math.nan
newaxis = None
pi = _math.pi


__all__ = [
    "BackendError", "get_backend", "set_backend", "use_backend", "Tensor", "Primitive", "keep", "no_grad",
    "primitive", "astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type", "arange", "asarray", "empty",
    "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like", "to_device", "tril", "triu", "zeros",
    "zeros_like", "abs", "acos", "acosh", "add", "alias", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clip",
    "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor", "floor_divide", "greater",
    "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p",
    "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum",
    "multiply", "negative", "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round",
    "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc", "getitem", "setitem",
    "take", "take_along_axis", "cumulative_sum", "max", "mean", "min", "prod", "std", "sum", "var", "matmul",
    "matrix_transpose", "tensordot", "vecdot", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat",
    "expand_dims", "flip", "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "tile",
    "unstack", "argmax", "argmin", "count_nonzero", "nonzero", "searchsorted", "where", "all", "any", "random",
    "checkpoint", "grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp", "e", "inf", "nan",
    "newaxis", "pi", "optim", "gradcheck", "gradgradcheck",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    """The standard's dtypes, as the objects of the backend in use; and what is imported only when somebody asks."""
    from .data_types import DTYPES

    if name in DTYPES:
        xp = backend.current().xp
        if hasattr(xp, name):
            return getattr(xp, name)
        raise AttributeError(f"backend {get_backend()!r} has no dtype {name!r}")
    if name in ("gradcheck", "gradgradcheck"):
        from . import gradcheck

        return getattr(gradcheck, name)
    if name == "optim":
        import importlib

        return importlib.import_module("minigrad.optim")
    raise AttributeError(f"module 'minigrad' has no attribute {name!r}")
