"""Data types: converting, and asking about them. The dtype objects are those of the backend in use.

A dtype can be given by its name; one that the library lacks is a TypeError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/data_type_functions.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from . import backend
from .autodiff import primitive
from .backend import NUMBERS, Array, as_dtype, dtype_name, namespace_of, python_scalar
from .tensor import Tensor

__all__ = [
    "astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type",
]  # fmt: skip


@primitive(view=True)  # with copy=False
def astype(xp: Any, x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """x in another dtype. The gradient comes back in x's; through integers and booleans there is none.

    >>> mg.grad(lambda x: mg.astype(x, "float64"))(mg.asarray(2.0, dtype="float32")).dtype
    dtype('float32')
    """
    options = {} if device is None else {"device": device}  # array-api-strict takes None for its CPU
    return xp.astype(x, as_dtype(xp, dtype), copy=copy, **options)


astype.vjp(x=lambda g: g)  # the engine casts a gradient to the dtype of its argument
astype.example((2, 3), "complex128")


def _raw(x: Any) -> Any:
    """The array behind a Tensor; anything else, a dtype or a scalar, as it is."""
    return x._data if type(x) is Tensor else x


def _dtype(x: Any) -> Any:
    """The dtype of an array, Tensor or not; a dtype as it is."""
    raw = _raw(x)
    return raw if namespace_of(raw) is None else raw.dtype


def _namespace(*raw: Any) -> Any:
    """The library of the first array among them; without one, that of the backend in use."""
    return next((xp for xp in map(namespace_of, raw) if xp is not None), None) or backend.current().xp


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that an operation on these arrays, dtypes and scalars gives. No derivative: not an array.

    >>> mg.result_type(mg.ones(2, dtype="float32"), mg.float64, 1)
    dtype('float64')
    """
    raw = [python_scalar(_raw(x)) for x in arrays_and_dtypes]
    xp = _namespace(*raw)
    numbers = (bool, int, float, complex)  # and their subclasses; Python has none for a longdouble, which is in NUMBERS
    return xp.result_type(*[
        x if isinstance(x, numbers) or type(x) in NUMBERS or namespace_of(x) is not None else as_dtype(xp, x)
        for x in raw
    ])  # fmt: skip


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether a conversion to dtype ``to`` is allowed by the standard's rules. No derivative: not an array.

    >>> mg.can_cast(mg.int32, mg.int64), mg.can_cast(mg.int64, mg.int32)
    (True, False)
    """
    xp = _namespace(_raw(from_))
    return bool(xp.can_cast(as_dtype(xp, _dtype(from_)), as_dtype(xp, to)))


Info = TypeVar("Info")


def _limits(name: str, info: Callable[[Any, Any], Info], x: Any, kind: str) -> Info:
    """What ``info`` says of x's dtype in x's library; TypeError for a dtype that is not of this kind."""
    xp, dtype = _namespace(_raw(x)), _dtype(x)
    try:
        if dtype is not None:  # NumPy's default
            return info(xp, as_dtype(xp, dtype))
    except (TypeError, ValueError, AttributeError):
        pass
    raise TypeError(f"{name}: expected {kind} dtype or an array of one, got {dtype!r:.60}")


class FloatInfo(NamedTuple):
    """What `finfo` gives, the numbers as Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


def finfo(type: Any, /) -> FloatInfo:
    """Limits of a floating-point dtype: ``bits eps max min smallest_normal dtype``. No derivative: not an array.

    >>> mg.finfo(mg.float32).eps == 2**-23
    True
    """
    return _limits("finfo", _float_info, type, "a floating-point")


@lru_cache(maxsize=None, typed=True)  # typed: see `dtype_name`
def _float_info(xp: Any, dtype: Any) -> FloatInfo:
    info = xp.finfo(dtype)
    eps, largest, least, smallest = map(float, (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(info.bits, eps, largest, least, smallest, as_dtype(xp, dtype_name(info.dtype)))


class IntInfo(NamedTuple):
    """What `iinfo` gives."""

    bits: int
    max: int
    min: int
    dtype: Any


def iinfo(type: Any, /) -> IntInfo:
    """Limits of an integer dtype: ``bits max min dtype``. No derivative: not an array.

    >>> mg.iinfo(mg.int8).min, mg.iinfo(mg.int8).max
    (-128, 127)
    """
    return _limits("iinfo", _int_info, type, "an integer")


@lru_cache(maxsize=None, typed=True)
def _int_info(xp: Any, dtype: Any) -> IntInfo:
    info = xp.iinfo(dtype)
    return IntInfo(info.bits, int(info.max), int(info.min), as_dtype(xp, dtype_name(info.dtype)))


_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float16", "bfloat16", "float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]

DTYPES = (*_KINDS["bool"], *_KINDS["numeric"])
"""The standard's dtypes (float16 and bfloat16 are beyond it): ``minigrad.float32`` is that of the backend in use."""


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether ``dtype``, of any library, is of a kind of the standard (``"real floating"`` …), or of any of several.

    No derivative: not an array.

    >>> mg.isdtype(mg.ones(1).dtype, ("real floating", "complex floating"))
    True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"isdtype: unknown kind {kind!r}; known: {', '.join(_KINDS)}")
        return backend.dtype_name(dtype) in _KINDS[kind]
    return bool(dtype == kind)
