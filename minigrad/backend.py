"""backend: the only file that names an array library, besides the compiled `_loops` and `_threads`, which are NumPy's.

Everything else in minigrad is written against a namespace ``xp`` of the Python Array API standard. This file finds
that namespace for an array (`namespace_of`), chooses the library that makes *new* arrays (`set_backend`,
``MINIGRAD_BACKEND``), and holds the few operations that the standard lacks, each with a portable fallback.

No array library but NumPy is imported before it is needed.

Sources: the standard, https://data-apis.org/array-api/latest/, and where a library departs from it,
https://data-apis.org/array-api-compat/
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import cache, lru_cache
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy

Array = Any  #: an array of any library that follows the standard
Namespace = Any  #: that library's namespace: a module that has the standard's functions

EXTRAS = {"numpy": "numpy", "cupy": "cupy", "torch": "torch", "jax": "jax", "array_api_strict": "test"}
"""The known backends, and the extra of this package that installs each (`how_to_install`)."""


class BackendError(RuntimeError):
    """A backend that is unknown, not installed, or has no usable device.

    >>> set_backend("fortran")
    Traceback (most recent call last):
    minigrad.backend.BackendError: unknown backend 'fortran'; known: numpy, cupy, torch, jax, array_api_strict
    """


# ------------------------------------------------------------------------------------------------ the namespaces


# Where NumPy departs from the standard, array-api-compat's function is taken, or one of `_QUICK`.
# The rest is NumPy's own, which spares a wrapper at each call; and array-api-compat is loaded when one is first used,
# which keeps ``import minigrad`` as cheap as ``import numpy``.
_DEPARTS = {
    "numpy": ("count_nonzero", "finfo", "iinfo", "nonzero", "take_along_axis"),
    "numpy.fft": ("fftfreq", "rfftfreq"),
    "numpy.linalg": ("eig", "eigvals"),
}


def _standard(name: str) -> types.ModuleType:
    """The module of NumPy, or array-api-compat's functions in place of some; each is found at its first use."""
    module = types.ModuleType(name, f"{name} as the standard's namespace.")

    def find(attribute: str) -> Any:
        if f"{name}.{attribute}" in _DEPARTS:
            value = _standard(f"{name}.{attribute}")
        else:
            source = f"array_api_compat.{name}" if attribute in _DEPARTS[name] else name
            value = getattr(importlib.import_module(source), attribute)
        setattr(module, attribute, value)
        return value

    module.__getattr__ = find  # type: ignore[method-assign]
    return module


NUMPY = _standard("numpy")


def _reduction(name: str, ufunc: Any) -> Callable[..., Array]:
    reduce: Any = ufunc.reduce
    usual = getattr(numpy, name)

    def function(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
        if type(x) is numpy.ndarray:  # exactly: a masked array, say, sums in its own way
            return reduce(x, axis, dtype, None, keepdims)
        return usual(x, axis=axis, keepdims=keepdims, **({} if dtype is None else {"dtype": dtype}))

    return function


def _mean(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    # The rest is NumPy's: float16 is summed in float32, of nothing there is a warning, without axes axis=0 is an error.
    if type(x) is numpy.ndarray and x.dtype.char in "fd" and x.size and x.shape:
        total = NUMPY.sum(x, axis=axis, keepdims=keepdims)
        return total / (x.size // total.size)
    return numpy.mean(x, axis=axis, keepdims=keepdims)


def _var(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    if type(x) is numpy.ndarray and x.dtype.char in "fd" and x.size and x.shape:
        d = x - NUMPY.mean(x, axis=axis, keepdims=True)
        total = NUMPY.sum(d * d, axis=axis, keepdims=keepdims)
        n = x.size // total.size - float(correction)
        if n > 0:
            return total / n
    return numpy.var(x, axis=axis, correction=correction, keepdims=keepdims)


def _std(x: Array, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    if type(x) is numpy.ndarray:
        return numpy.sqrt(NUMPY.var(x, axis=axis, correction=correction, keepdims=keepdims))
    return numpy.std(x, axis=axis, correction=correction, keepdims=keepdims)


def _clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    if x.dtype.kind == "f" and {type(min), type(max)} <= {float, int}:
        return x.clip(min, max)  # there NumPy does as the standard says
    # array-api-compat's fails for the other byte order, and writes into limits that are arrays.
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    limits = [limit.copy() if isinstance(limit, numpy.ndarray) else limit for limit in (min, max)]
    return importlib.import_module("array_api_compat.numpy").clip(x, *limits)


# NumPy's functions of these names look first for another library that would rather do it, or for options that the
# standard has not, and array-api-compat's clip for more. That takes 1 to 15 µs, which the array's method, the ufunc
# behind them or the formula does not. Arguments are spelled out: handing on *args and **options takes 0.5 µs.
_QUICK: dict[str, Callable[..., Array]] = {
    **{name: _reduction(name, ufunc) for name, ufunc in {
        "all": numpy.logical_and, "any": numpy.logical_or, "max": numpy.maximum, "min": numpy.minimum,
        "prod": numpy.multiply, "sum": numpy.add,
    }.items()},
    "argmax": lambda x, /, *, axis=None, keepdims=False: x.argmax(axis, keepdims=keepdims),
    "argmin": lambda x, /, *, axis=None, keepdims=False: x.argmin(axis, keepdims=keepdims),
    # NumPy has no descending order. Flipped positions would not do, as `sort` has it: equal numbers keep their order.
    "argsort": lambda x, /, *, axis=-1, descending=False, stable=True: (
        x.argsort(axis, "stable" if stable else None) if not descending else
        importlib.import_module("array_api_compat.numpy").argsort(x, axis=axis, descending=True, stable=stable)
    ),
    "astype": lambda x, dtype, /, *, copy=True, device="cpu": (
        x.astype(dtype, copy=copy) if device == "cpu" else numpy.astype(x, dtype, copy=copy, device=device)
    ),
    "clip": _clip,
    "expand_dims": lambda x, /, *, axis: (
        x[(slice(None),) * axis + (None,)] if 0 <= axis <= x.ndim else numpy.expand_dims(x, axis)
    ),
    "matrix_transpose": lambda x, /: x.mT,
    "mean": _mean,
    "permute_dims": lambda x, /, axes: x.transpose(axes),
    "reshape": lambda x, /, shape, *, copy=None: (
        x.reshape(shape) if copy is None else numpy.reshape(x, shape, copy=copy)
    ),
    "sort": lambda x, /, *, axis=-1, descending=False, stable=True: (
        numpy.sort(x, axis, "stable" if stable else None) if not descending else
        numpy.flip(numpy.sort(x, axis, "stable" if stable else None), axis)
    ),
    "squeeze": lambda x, /, axis: x.squeeze(axis),
    "std": _std,
    "take": lambda x, indices, /, *, axis=None: x.take(indices, axis),
    "unique_values": lambda x, /: numpy.unique(x, equal_nan=False),  # in order, which its unique_values are not
    "var": _var,
}  # fmt: skip
for _name, _function in _QUICK.items():
    _function.__qualname__ = _name  # which errors about its arguments say
    setattr(NUMPY, _name, _function)


def _load_cupy() -> Namespace:
    if importlib.import_module("cupy").cuda.runtime.getDeviceCount() == 0:  # without a driver it raises
        raise RuntimeError("the CUDA driver lists no device")
    return importlib.import_module("array_api_compat.cupy")


def _load_jax() -> Namespace:
    # The standard asks for 64-bit types; JAX hides them unless told so before its first array.
    importlib.import_module("jax").config.update("jax_enable_x64", True)
    return importlib.import_module("jax.numpy")


_LOADERS: dict[str, Callable[[], Namespace]] = {
    "numpy": lambda: NUMPY,
    "cupy": _load_cupy,
    "torch": lambda: importlib.import_module("array_api_compat.torch"),
    "jax": _load_jax,
    "array_api_strict": lambda: importlib.import_module("array_api_strict"),
}


def is_installed(name: str) -> bool:
    """Whether the library behind backend ``name`` can be imported (it is not imported to find out)."""
    return importlib.util.find_spec(name) is not None


def load(name: str) -> Namespace:
    """The namespace of backend ``name``; `BackendError` where it is unknown, not installed or has no device."""
    if name not in _LOADERS:
        raise BackendError(f"unknown backend {name!r}; known: {', '.join(EXTRAS)}")
    if not is_installed(name):
        raise BackendError(f"backend {name!r} is not installed; {how_to_install(EXTRAS[name])}")
    try:
        return _LOADERS[name]()
    except Exception as error:  # a broken installation, or another module of that name, can raise anything
        raise BackendError(f"backend {name!r} cannot be used: {_reason(error)}") from error


def how_to_install(extra: str) -> str:
    """What to type for an extra of this package, or for what it needs without one."""
    return f"install it with: pip install -e '.{f'[{extra}]' if extra else ''}' in the project's folder"


def _reason(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


SCALAR = object()  # stands for the namespace of NumPy's scalars, which act as Python's do, on whichever backend
NO_NUMBER = object()  # and for that of what is neither an array nor a number: text, None, lists, other objects

NAMESPACES: dict[type, Namespace] = {
    numpy.ndarray: NUMPY,
    **{kind: SCALAR if numpy.dtype(kind).kind in "biufc" else NO_NUMBER for kind in numpy.sctypeDict.values()},
    **dict.fromkeys((bool, int, float, complex), None),
    **dict.fromkeys((tuple, list, slice, type, type(Ellipsis), str, bytes, type(None)), NO_NUMBER),
}
"""The namespace of each type seen so far, None for Python's numbers. `namespace_of` fills it."""


def namespace_of(x: Any) -> Namespace:
    """The array-API namespace of a raw array, None for anything else (a Python scalar, a shape, a dtype)."""
    kind = type(x)
    found = NAMESPACES[kind] if kind in NAMESPACES else see(x)
    return None if found is SCALAR or found is NO_NUMBER else found


def see(x: Any) -> Namespace:
    """Enter the type of x, met for the first time, into `NAMESPACES`; returns what was entered."""
    found = NAMESPACES[type(x)] = _find_namespace(x)
    return found


def _find_namespace(x: Any) -> Namespace:
    bases = {base.__module__.partition(".")[0] + "." + base.__name__ for base in type(x).__mro__}
    if "numpy.generic" in bases:
        return SCALAR
    if "numpy.ndarray" in bases:
        return NUMPY
    if "cupy.ndarray" in bases:
        return load("cupy")
    if "torch.Tensor" in bases:
        return load("torch")
    if "dask.Array" in bases:  # lazy: nothing here computes its values
        return importlib.import_module("array_api_compat.dask.array")
    if hasattr(x, "__array_namespace__"):  # JAX and its tracers, array-api-strict, any library of the standard
        return x.__array_namespace__()
    return None if isinstance(x, int | float | complex) else NO_NUMBER  # a subclass of a number: an enum, say


@cache
def name_of(xp: Namespace) -> str:
    """The backend's name for a namespace: ``'numpy'``, ``'cupy'``, ``'torch'``, ``'jax'`` …"""
    parts = str(xp.__name__).split(".")
    return parts[1] if parts[0] == "array_api_compat" else parts[0]


# ------------------------------------------------------------------------------------------------ where new arrays go


class Backend(NamedTuple):
    """Where new arrays are made: a namespace and a device of it (None: the library's default)."""

    name: str
    xp: Namespace
    device: Any


_default: Backend | None = None  # the process's choice, made at first use from the environment
_lock = threading.Lock()
_override: ContextVar[Backend | None] = ContextVar("minigrad_backend", default=None)


def _backend(name: str, device: Any = None) -> Backend:
    xp = load(name)
    try:
        if isinstance(device, str) and name in ("cupy", "jax", "array_api_strict"):
            device = _parse_device(name, device)
        to_numpy(xp.zeros((1,), device=device))  # PyTorch's device "meta" makes arrays, but has no values
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(f"backend {name!r} cannot use device {str(device)!r}: {_reason(error)}") from None
    return Backend(name, xp, device)


def _parse_device(name: str, device: str) -> Any:
    """A device written as text (``"cuda:1"``, ``"cpu:0"``, ``"device1"``) as the object the library wants."""
    if name == "array_api_strict":
        devices = importlib.import_module("array_api_strict").__array_namespace_info__().devices()
        known = {d._device.lower().removesuffix("_device"): d for d in devices}
    elif name == "cupy":
        cupy = importlib.import_module("cupy")
        known = {f"cuda:{i}": cupy.cuda.Device(i) for i in range(cupy.cuda.runtime.getDeviceCount())}
    else:
        jax = importlib.import_module("jax")
        known = {f"{d.platform}:{d.id}": d for d in [*jax.devices("cpu"), *jax.devices()]}
    found = known.get(device.lower(), known.get(f"{device.lower()}:0"))
    if found is None:
        raise BackendError(f"backend {name!r} has no device {device!r}; it has: {', '.join(known)}")
    return found


def current() -> Backend:
    """The `Backend` on which new arrays are made."""
    global _default
    chosen = _override.get() or _default
    if chosen is None:
        with _lock:
            if _default is None:
                _default = _backend(
                    os.environ.get("MINIGRAD_BACKEND") or "numpy", os.environ.get("MINIGRAD_DEVICE") or None
                )
        chosen = _default
    return chosen


def get_backend() -> str:
    """The name of the backend on which new arrays are made, ``'numpy'`` unless chosen otherwise.

    >>> get_backend()
    'numpy'
    """
    return current().name


def set_backend(name: str, device: Any = None) -> None:
    """Make new arrays on backend ``name`` from here on, in the whole process.

    Arrays that exist stay where they are, and an operation always follows the arrays it is given. ``device`` is the
    library's own device object or its name (``"cuda:1"``). Raises `BackendError` for an unknown name, a library
    that is not installed or a device that cannot be used.

    >>> set_backend("numpy")
    >>> mg.ones(2).backend
    'numpy'
    """
    global _default
    _default = _backend(name, device)


@contextmanager
def use_backend(name: str, device: Any = None) -> Iterator[None]:
    """Make new arrays on backend ``name`` inside a ``with`` block, in this thread or async task alone.

    >>> import minigrad as mg
    >>> with mg.use_backend("array_api_strict"):
    ...     mg.ones(2).backend
    'array_api_strict'
    """
    token = _override.set(_backend(name, device))
    try:
        yield
    finally:
        _override.reset(token)


# ------------------------------------------------------------------------------------------------ beyond the standard


def asarray(data: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """A raw array of scalars or nested lists, on the backend in use; an array of any library stays in it."""
    xp, place = namespace_of(data), device
    if xp is None:
        xp, default_device = current()[1:]
        place = default_device if device is None else device
        if type(data) not in (list, bool, int, float, complex):  # the libraries differ about anything else
            data = _numbers(data)
    elif dtype is not None and xp is NUMPY:
        _numbers(data)
    if device is not None and xp is NUMPY and device != "cpu":
        raise ValueError(f"backend 'numpy' has one device, 'cpu'; got device={device!r}")
    try:
        made = xp.asarray(data, dtype=as_dtype(xp, dtype), device=place, copy=copy)
    except COMPLAINTS as error:
        if isinstance(data, list):
            with suppress(ValueError):
                _numbers(data)  # it may say why
        raise explained("asarray", error, data, dtype=dtype, device=device) from error
    return _numbers(made) if xp is NUMPY else made


def _numbers(data: Any, name: str = "asarray") -> Array:
    """What NumPy makes of scalars, nested lists, ranges or memory; TypeError for text, None and other objects."""
    array = numpy.asarray(data)
    if array.dtype.kind not in "biufcV":  # V: bfloat16, which NumPy does not know
        given = " ".join(repr(data).split())  # in one line
        raise TypeError(f"{name}: expected numbers that fit a dtype, lists of them or an array; got {given:.60}")
    return array


NUMBERS = frozenset((bool, int, float, complex, *(kind for kind, found in NAMESPACES.items() if found is SCALAR)))
"""The types of scalars that are numbers: Python's and NumPy's."""


def expect_numbers(name: str, x: Any) -> None:
    """TypeError where NumPy has no number for x: given a dtype, it parses text and makes NaN of None."""
    if type(x) not in NUMBERS and namespace_of(x) in (None, NUMPY):
        _numbers(x, name)


COMPLAINTS: tuple[type[Exception], ...] = (
    TypeError, ValueError, OverflowError, RuntimeError, AttributeError, ZeroDivisionError,
)  # fmt: skip
"""What a library raises about arguments that it cannot use."""


def explained(name: str, error: Exception, *given: Any, **options: Any) -> Exception:
    """A library's complaint about a call, as one line that names the function and what it was given."""
    kind: type[Exception] = next(kind for kind in COMPLAINTS if isinstance(error, kind))
    kind = {AttributeError: TypeError, ZeroDivisionError: ValueError}.get(kind, kind)
    values = [" ".join(f"{x!r:.60}".split()) for x in given]
    values += [f"{option}={value!r}" for option, value in options.items() if value is not None]
    return kind(f"{name}: {_reason(error).removeprefix(f'{name}: ')} (given {', '.join(values)})")


def python_scalar(x: Any) -> Any:
    """A NumPy scalar as Python's, which does not change the dtype of a result; anything else as it is."""
    return x.item() if NAMESPACES.get(type(x)) is SCALAR else x


def from_numpy(array: Array, device: Any = None) -> Array:
    """A NumPy array as a raw array on the backend in use (a copy to its device, where that is not the CPU)."""
    name, xp, default_device = current()
    return array if name == "numpy" else xp.asarray(array, device=default_device if device is None else device)


def to_numpy(x: Array) -> Array:
    """A raw array as a NumPy array: the one deliberate copy to the host. Memory is shared where the library can."""
    if isinstance(x, numpy.ndarray | numpy.generic):
        return numpy.asarray(x)
    name = name_of(namespace_of(x))
    if name == "cupy":
        return x.get()
    if name == "torch":
        x = x.detach().cpu().resolve_conj().resolve_neg()
        return (x.float() if dtype_name(x.dtype) == "bfloat16" else x).numpy()  # NumPy has no bfloat16
    if name == "array_api_strict":
        return numpy.array(x._array)  # also from its fake devices, which refuse np.asarray
    array = numpy.asarray(x)
    return array.astype("float32") if dtype_name(x.dtype) == "bfloat16" else array  # JAX adds one to NumPy's types


def as_dtype(xp: Namespace, dtype: Any) -> Any:
    """``dtype`` as an object of the library: it may be a name of the standard (``"float32"``) or another library's."""
    if dtype is None or (xp is NUMPY and isinstance(dtype, numpy.dtype | type)):
        return dtype
    python = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    name = dtype if isinstance(dtype, str) else python.get(dtype) or dtype_name(dtype)
    if not hasattr(xp, name):
        raise TypeError(f"backend {name_of(xp)!r} has no dtype {dtype!r:.60}")
    return getattr(xp, name)


@lru_cache(maxsize=None, typed=True)  # NumPy works its names out anew each time; typed, so that it is never asked
def dtype_name(dtype: Any) -> str:  # whether a dtype of another library equals its own
    """The standard's name of a dtype of any library.

    >>> dtype_name(numpy.dtype("float32"))
    'float32'
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2]


@lru_cache(maxsize=None, typed=True)
def is_half(dtype: Any) -> bool:
    """Whether a dtype of any library is float16 or bfloat16."""
    return dtype_name(dtype) in ("float16", "bfloat16")


def device_of(x: Array) -> Any:
    """The device on which a raw array lives, as its library names it; None inside a tracing compiler."""
    device = getattr(x, "device", None)
    return device() if callable(device) else device


def describe(x: Array) -> str:
    """An array in one line, for error messages: ``float64 (2, 3) on numpy cpu``."""
    return f"{dtype_name(x.dtype)} {tuple(x.shape)} on {name_of(namespace_of(x))} {device_of(x)}"


def owns_memory(x: Array) -> bool:
    """Whether no other array can be a view of the same memory: what came out of a computation and is no view."""
    if type(x) is numpy.ndarray:
        return x.base is None
    name = name_of(namespace_of(x) or NUMPY)
    if name == "torch":
        return not x._is_view()
    return getattr(getattr(x, "_array", x), "base", None) is None


def held_once(x: Array) -> bool:
    """Whether x is a view of memory that only x holds: a fresh array reshaped, say. NumPy only; False if unknown."""
    base = x.base if type(x) is numpy.ndarray else None
    # Three references: that of x, the variable here, and the argument of getrefcount.
    return type(base) is numpy.ndarray and base.base is None and sys.getrefcount(base) == 3


def read_only(x: Array) -> Array:
    """The same memory, refusing to be written where the library can refuse (NumPy)."""
    if isinstance(x, numpy.ndarray):
        x = x.view()
        x.flags.writeable = False
    return x


def as_index(i: Array) -> Array:
    """Integers to index with, as int64, and a NumPy scalar as Python's; anything else (a mask) as it is.

    PyTorch takes uint8 for a mask and refuses other dtypes, and arithmetic in a small one, as ``i % n``, overflows.
    """
    if not hasattr(i, "dtype"):
        raise TypeError(f"expected an array of integers as indices, got {i!r:.60}")
    name = dtype_name(i.dtype)
    if name not in _INTEGERS or (name == "int64" and type(i) is numpy.ndarray):  # nothing to do, as mostly
        return i
    xp = namespace_of(i)
    return i.item() if xp is None else xp.astype(i, xp.int64, copy=False)


_INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def _forwards(x: Array, key: Any) -> tuple[Any, tuple[int, ...]]:
    """An index without negative steps, and the axes of the result to reverse instead, for PyTorch, which has none."""
    items = list(key) if isinstance(key, tuple) else [key]
    if not any(isinstance(item, slice) and (item.step or 1) < 0 for item in items):
        return key, ()
    if Ellipsis in [item for item in items if not hasattr(item, "shape")]:
        i = items.index(Ellipsis)
        used = sum(item is not None for item in items) - 1
        items[i : i + 1] = [slice(None)] * (x.ndim - used)
    flipped, axis, place = [], 0, 0
    for i, item in enumerate(items):
        if isinstance(item, slice) and (item.step or 1) < 0:
            chosen = range(x.shape[axis])[item][::-1]
            items[i] = slice(chosen.start, chosen.stop, chosen.step) if len(chosen) else slice(0, 0)
            flipped.append(place)
        axis += item is not None
        place += item is None or isinstance(item, slice)
    return tuple(items), tuple(flipped)


def get_item(x: Array, key: Any) -> Array:
    """``x[key]``, with negative steps on every library."""
    if type(x) is numpy.ndarray or name_of(namespace_of(x) or NUMPY) != "torch":  # NumPy has scalars, too
        return x[key]
    key, flipped = _forwards(x, key)
    return x[key].flip(flipped) if flipped else x[key]


def set_item(x: Array, key: Any, value: Any) -> Array:
    """``x[key] = value``, in x's memory where the library allows writing; returns the array that has the new values."""
    if namespace_of(value) is None:
        expect_numbers("x[…] = …", value)
    name = name_of(namespace_of(x))
    if name == "jax":
        if getattr(value, "ndim", 0) and value.shape[0] == 1 and (extra := value.ndim - x[key].ndim) > 0:
            value = value.reshape(value.shape[extra:])  # leading axes of length 1, which the others drop
        return x.at[key].set(value)
    if name == "torch":
        key, flipped = _forwards(x, key)
        if flipped and hasattr(value, "shape"):
            value = value.expand(x[key].shape).flip(flipped)
    x[key] = value
    return x


def add_at(x: Array, key: Any, value: Array) -> Array:
    """``x[key] += value`` for keys with integer arrays, where a repeated index adds every time; may write into x.

    The standard has no scatter-add: each library's own is used, and a portable one elsewhere.
    """
    name = name_of(namespace_of(x))
    if name == "numpy":
        numpy.add.at(x, key, value)
        return x
    if name == "cupy":
        importlib.import_module("cupyx").scatter_add(x, key, value)
        return x
    if name == "jax":
        return x.at[key].add(value)
    return _add_at_positions(x, value, lambda positions: positions[key])


def add_along(x: Array, axis: int, indices: Array, value: Array) -> Array:
    """``x[:, …, indices, …] += value`` with the integer array ``indices`` at ``axis``, as `add_at`."""
    name = name_of(namespace_of(x))
    if name == "numpy" and axis == 0 and x.ndim == 2 and indices.size > 32:
        # Rows of a table (an embedding): sorted rows summed by one reduceat, several times faster than add.at.
        rows = indices.reshape(-1) % x.shape[0]
        order = numpy.argsort(rows, kind="stable")
        rows, starts = numpy.unique(rows[order], return_index=True)
        x[rows] += numpy.add.reduceat(numpy.reshape(value, (-1, x.shape[1]))[order], starts, axis=0)
        return x
    if name in ("numpy", "cupy", "jax"):
        return add_at(x, (slice(None),) * axis + (indices,), value)
    return _add_at_positions(x, value, lambda positions: namespace_of(x).take(positions, indices, axis=axis))


def _add_at_positions(x: Array, value: Array, choose: Callable[[Array], Array]) -> Array:
    """x with ``value`` added where ``choose`` finds the elements of an array that holds each element's position."""
    xp = namespace_of(x)
    positions = xp.reshape(xp.arange(math.prod(x.shape), device=device_of(x)), x.shape)
    chosen = choose(positions)
    value = xp.broadcast_to(value, chosen.shape)
    if name_of(xp) == "torch":
        return x.reshape(-1).index_add(0, chosen.reshape(-1), value.reshape(-1)).reshape(x.shape)
    hits = xp.reshape(positions, (-1, 1)) == xp.reshape(chosen, (1, -1))
    value = xp.reshape(value, (1, -1))
    added = xp.sum(xp.where(hits, value, xp.zeros_like(value)), axis=1)  # where, not a product: NaN stays put
    return x + xp.reshape(added, x.shape)


def to_device(x: Array, device: Any) -> Array:
    """x on another device of its library, which may be named by a string."""
    name = name_of(namespace_of(x))
    if isinstance(device, str) and name in ("cupy", "jax", "array_api_strict"):
        device = _parse_device(name, device)
    if name == "torch":
        return x.to(device)
    if name == "cupy":
        with device:
            return importlib.import_module("cupy").asarray(x)
    return x.to_device(device)


# ------------------------------------------------------------------------------------------------ threads


def threads(xp: Namespace) -> int:
    """How many parts of a computation to run at once: 1, but on NumPy, which would leave the other cores idle.

    ``MINIGRAD_THREADS`` says how many there; otherwise as many as this process has CPUs.
    """
    return _cpu_threads() if xp is NUMPY else 1


@cache
def _cpu_threads() -> int:
    given = os.environ.get("MINIGRAD_THREADS")  # a look at the environment takes 2 µs
    if given:
        if not given.isdecimal() or int(given) < 1:
            raise BackendError(f"MINIGRAD_THREADS: expected a whole number from 1 on, got {given!r}")
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tile_size(xp: Namespace) -> int | None:
    """How many numbers a part of a large computation may hold; None where arrays cannot be written to in parts.

    On NumPy 2¹⁹, 2 MiB in float32: a few arrays of that size stay in a processor's last cache. Smaller tiles would stay
    in a core's own, but after each operation a thread has to wait for Python's lock, and waking one takes some 100 µs:
    blocks of 2¹⁵ were slower on two threads than on one. On a GPU a tile has to keep thousands of threads busy.
    """
    if xp is NUMPY:
        return 1 << 19
    return 1 << 24 if name_of(xp) in ("cupy", "torch", "array_api_strict") else None


def exp_in_place(xp: Namespace, x: Array) -> Array:
    """eˣ, in the memory of x on NumPy: there a tile then takes half the cache."""
    return numpy.exp(x, out=x) if type(x) is numpy.ndarray else xp.exp(x)  # without axes NumPy makes scalars


@cache
def has_compiler() -> bool:
    """Whether loops over NumPy's arrays can be `compiled`: whether there is Numba, and it gets on with this NumPy."""
    return not why_no_compiler()


def why_no_compiler() -> str:
    """Why loops cannot be `compiled`, and what to do; nothing where they can."""
    if not is_installed("numba"):
        return how_to_install("fast")
    try:
        off = importlib.import_module("numba").config.DISABLE_JIT
    except Exception as error:  # as in `load`
        return f"numba cannot be used: {_reason(error)}"
    return "NUMBA_DISABLE_JIT is set" if off else ""


def compiles(xp: Namespace, *arrays: Array | None, strided: bool = False) -> bool:
    """Whether `compiled` loops are for these arrays: NumPy's, float32, row after row in memory if not ``strided``."""
    if xp is not NUMPY or not has_compiler():
        return False
    for x in arrays:
        if x is not None and not (type(x) is numpy.ndarray and x.dtype == numpy.float32 and x.flags.aligned):
            return False
        if x is not None and not (strided or x.flags.c_contiguous):
            return False
    return True


def compiled(*, sums_in_any_order: bool = False, signature: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for a function of loops over NumPy's arrays: machine code, which runs without Python's lock.

    It is made at once for a ``signature``, otherwise for each kind of arguments when the function is first called with
    them, and kept on disk where that can be written to. A sum is taken in the order of the loop, unless it may be in
    any order: only then are there vector instructions for it.
    """
    numba: Any = importlib.import_module("numba")
    fastmath = {"contract", "reassoc"} if sums_in_any_order else {"contract"}
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}

    def decorator(loops: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, cache=True, **options)(loops)
        except RuntimeError:  # no directory to keep it in
            return numba.njit(signature, **options)(loops)

    return decorator


def kept_rows(xp: Namespace, x: Array, which: Array) -> Array:
    """x (…, d) with 0 in the rows where ``which`` (…, 1) does not hold, whatever stands there.

    It is x itself if all rows are kept. On NumPy `where` takes ten times as long as any arithmetic.
    """
    if type(x) is not numpy.ndarray:
        return xp.where(which, x, 0.0)
    if not which.all():
        shape = numpy.broadcast_shapes(x.shape[:-1], which.shape[:-1])
        x = numpy.array(numpy.broadcast_to(x, (*shape, x.shape[-1])))
        x[~numpy.broadcast_to(which[..., 0], shape)] = 0.0
    return x


def in_parallel(work: Callable[[int], None], n: int) -> None:
    """Call ``work(0)`` … ``work(n − 1)``, several at once on threads: NumPy lets go of Python's lock while it computes.

    Each thread takes the next one that nobody has taken: one that comes late, as the processor has other things to do,
    is not waited for. A matrix product inside runs on the thread that asks for it. ``work`` must not call this function
    again.
    """
    _keep_freed_memory()
    helpers = min(n, threads(NUMPY)) - 1
    if n == 1:
        return work(0)
    parts, awake = _Parts(work, n), _threads()
    with blas_threads(1):
        if helpers:
            _start_workers(helpers)
            for _ in range(helpers):
                _jobs.put((copy_context(), parts))  # NumPy's errstate is in the context
        try:
            if helpers and awake:
                awake.call(awake.state, parts.counts, helpers)
            parts.run()
        finally:
            parts.finish(awake)
    if parts.errors:
        raise parts.errors[0]
    return None


class _Parts:
    """The parts of a computation, which threads take one after the other."""

    def __init__(self, work: Callable[[int], None], n: int) -> None:
        self.work: Callable[[int], None] | None = work
        self.left = iter(range(n))
        self.lock = threading.Lock()
        self.helpers: list[threading.Lock] = []  # each locked as long as it may be at work
        self.counts = numpy.zeros(2, numpy.int64)  # how many helpers have begun, and are done
        self.errors: list[BaseException] = []

    def run(self) -> None:
        while True:
            with self.lock:
                i, work = next(self.left, None), self.work
            if i is None or work is None:
                return
            work(i)

    def help(self) -> None:
        running = threading.Lock()
        running.acquire()
        with self.lock:
            if self.work is None:  # it came too late
                return
            self.helpers.append(running)
        try:
            self.run()
        except BaseException as error:
            self.errors.append(error)
        finally:
            running.release()

    def finish(self, awake: Any) -> None:
        """Let nobody begin a part any more, and wait for those at work, as they write into the caller's arrays."""
        with self.lock:
            self.work, helpers = None, list(self.helpers)
        if awake:
            awake.until(self.counts, 1, len(helpers), awake.LONG)
        for running in helpers:
            running.acquire()


# Worker threads of our own: concurrent.futures takes 100 µs for what takes 20 here, as long as a small product.
_jobs: SimpleQueue[Any] = SimpleQueue()
_workers = 0


def _start_workers(n: int) -> None:
    global _workers
    if _workers < n:
        with _limiting:
            while _workers < n:
                threading.Thread(target=_serve, args=(_jobs,), name="minigrad", daemon=True).start()
                _workers += 1


def _serve(jobs: SimpleQueue[Any]) -> None:
    awake = _threads()
    while True:
        before = awake.state[awake.CALLS] if awake else 0
        if awake and jobs.empty():
            awake.serve(awake.state, before)
        given = jobs.get()
        if given is None:  # from `parts_for`
            continue
        context, parts = given
        if awake:
            awake.count(parts.counts, 0)
        context.run(parts.help)
        if awake:
            awake.count(parts.counts, 1)
        del given, context, parts  # nothing is held while waiting


def parts_for(multiplications: int) -> int:
    """In how many parts to have compiled loops share their work (`_threads.in_parts`); wakes the threads for them."""
    n = threads(NUMPY) if multiplications >= 1 << 14 else 1
    if n == 1:
        return 1
    _start_workers(n - 1)
    if _threads().state[_threads().AWAKE] < n - 1 and _jobs.empty():
        for _ in range(n - 1):
            _jobs.put(None)
    return 4 * n  # more than threads, as one of them may come late


@cache
def _threads() -> Any:
    """The module in which threads wait awake for each other; None without a compiler, where they sleep."""
    return importlib.import_module("._threads", __package__) if has_compiler() else None


def is_small(xp: Namespace, multiplications: int) -> bool:
    """Whether a product is for one thread: of half a millisecond at most, or 0.1 where others wait awake."""
    return multiplications < 1 << 22 or (multiplications < 1 << 24 and not (xp is NUMPY and has_compiler()))


def matrix_product(xp: Namespace, a: Array, b: Array) -> Array:
    """a @ b for rows a (…, k) and a matrix b (k, n). On NumPy the rows are dealt out to our own threads."""
    count = math.prod(a.shape[:-1])
    if count == 1:
        return _row_times_matrix(a, b) if compiles(xp, a, b.T) else xp.matmul(a, b)
    shape = (*a.shape[:-1], b.shape[1])
    a = xp.reshape(a, (count, a.shape[-1]))
    n = min(threads(xp), count)
    multiplications = count * b.shape[0] * b.shape[1]
    if n < 2 or is_small(xp, multiplications):
        with on_this_thread(xp, multiplications >> 5):
            return xp.reshape(xp.matmul(a, b), shape)
    out = numpy.empty((count, b.shape[1]), dtype=numpy.result_type(a, b))

    def work(i: int) -> None:
        rows = slice(count * i // n, count * (i + 1) // n)
        numpy.matmul(a[rows], b, out=out[rows])

    in_parallel(work, n)
    return out.reshape(shape)


def _row_times_matrix(a: Array, b: Array) -> Array:
    """a @ b for a single row a, and b with one column after the other in memory, as published weights have them.

    That is as much reading as computing. Our own loops read up to 30 GB/s on two threads, OpenBLAS's threads half of
    that in matrices of 1 MB.
    """
    loops, parts = _threads(), parts_for(b.size)
    out = numpy.empty((*a.shape[:-1], b.shape[1]), b.dtype)
    loops.matrix_times_vector(loops.state, loops.followers, parts, b.T, a.reshape(-1), out.reshape(-1))
    return out


@cache
def _keep_freed_memory() -> None:
    """Ask the C library (glibc) to keep what is freed for the next arrays, up to 1 GiB.

    As it comes, it hands large pieces back to the system at once. Then each large array begins with a page fault for
    every 4 KiB, and each unmapping interrupts all threads: in six paired runs on two cores 3 to 34 % of the time of a
    training step, the more the smaller the model. On one thread, gelu of a few hundred thousand numbers took 2.5 times
    as long.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(importlib.import_module("ctypes").CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)  # the highest that it takes


_limits: list[int] = []  # of the `blas_threads` that are open, in all threads
_unlimited: list[int] = []  # how many threads each library used before the first of them
_limiting = threading.Lock()


@contextmanager
def blas_threads(n: int) -> Iterator[None]:
    """A context in which NumPy's matrix products use ``n`` threads, in the whole process.

    For small matrices one is best: two gain nothing, and on a machine with other work they wait for each other.
    """
    # threadpoolctl's own context asks each library for its version and more: 50 µs, against 1 µs for this.
    libraries = _blas_libraries()
    with _limiting:
        if not _limits:
            _unlimited[:] = [library.num_threads for library in libraries]
        _limits.append(n)
        for library in libraries:
            library.set_num_threads(n)
    try:
        yield
    finally:
        with _limiting:
            if n in _limits:  # not in a process that was forked inside
                _limits.remove(n)
            for library, before in zip(libraries, _unlimited, strict=True):
                library.set_num_threads(_limits[-1] if _limits else before)


def on_this_thread(xp: Namespace, numbers: int) -> Any:
    """A context for a computation on that many numbers which is too small for several threads.

    OpenBLAS would wake its own, and these go on asking for work for a tenth of a second after a product, and take the
    time away from whatever of ours runs next: a training step took up to a third more. For little it wakes none: 2¹³
    numbers in a sum, or 2¹⁸ multiplications in a product.
    """
    if xp is not NUMPY or numbers < 1 << 13:
        return nullcontext()
    _keep_freed_memory()
    return blas_threads(1)


@cache
def _blas_libraries() -> list[Any]:
    """The matrix libraries in this process."""
    threadpoolctl = importlib.import_module("threadpoolctl")
    libraries: list[Any] = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


def _after_fork() -> None:
    """A child process has none of its parent's threads, and a lock that one of them held stays locked."""
    global _limiting, _jobs, _workers
    _limiting = threading.Lock()
    _limits.clear()
    _jobs, _workers = SimpleQueue(), 0
    if awake := sys.modules.get(f"{__package__}._threads"):
        awake.state[:] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ------------------------------------------------------------------------------------------------ random numbers


def host_generator(seed: int) -> numpy.random.Generator:
    """NumPy's counter-based generator, from which the numbers of all backends come."""
    return numpy.random.Generator(numpy.random.Philox(seed))


def plain(state: Any) -> Any:
    """A generator's state as data that JSON can hold."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, numpy.ndarray | numpy.generic) else state


def unplain(state: Any) -> Any:
    """A generator's state from what `plain` gave."""
    if isinstance(state, dict):
        return {key: unplain(value) for key, value in state.items()}
    return numpy.asarray(state, dtype=numpy.uint64) if isinstance(state, list) else state
