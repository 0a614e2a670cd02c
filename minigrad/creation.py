"""Creation functions: new Tensors, on the backend and device in use (`set_backend`), or like a given one.

A dtype is the library's own or its name (``"float32"``); None is the library's default. A dtype that the library lacks
is a TypeError, and so is a Tensor in a graph where a constant is made. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/creation_functions.html
"""

from __future__ import annotations

from typing import Any

import minigrad as mg

from . import backend
from .autodiff import primitive
from .backend import COMPLAINTS, NUMBERS, Array, as_dtype, expect_numbers, explained, python_scalar
from .tensor import Tensor

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid",
    "ones", "ones_like", "to_device", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

Shape = int | tuple[int, ...]


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """A Tensor of scalars, nested lists or an array of any library, which keeps its library and shares its memory.

    Inside a graph it stays in the graph. To copy the values out of reach of later writes, use ``copy=True``.

    >>> mg.asarray([1.0, 2.0], dtype="float32")
    Tensor([1., 2.], dtype=float32, backend=numpy, device=cpu)
    """
    if type(obj) is Tensor:
        if dtype is not None and as_dtype(backend.namespace_of(obj._data), dtype) != obj.dtype:
            return mg.astype(obj, dtype)
        return mg.positive(obj) if copy else obj
    return Tensor._make(backend.asarray(without_tensors(obj), dtype=dtype, device=device, copy=copy))


def without_tensors(data: Any) -> Any:
    """Nested lists with the Tensors in them replaced by their values; TypeError for an item that is no number."""
    if isinstance(data, (list, tuple)):
        return [x if type(x) in NUMBERS else _item(x) for x in data]
    return data


def _item(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return without_tensors(x)
    if type(x) is Tensor:
        if x._node is not None:
            raise TypeError("a list of Tensors in a graph would lose their gradients: use minigrad.stack, or detach()")
        return x.tolist()
    expect_numbers("asarray", x)
    return x


_PLAIN = frozenset((int, float, bool, complex, tuple, type(None)))  # types that `_constant` would leave as they are


def _constant(name: str, x: Any) -> Any:
    """An argument as the libraries take it; TypeError for a Tensor whose gradient would be lost."""
    if type(x) is Tensor and x._node is not None:
        raise TypeError(
            f"{name}: makes a constant, so the gradient of a Tensor in a graph would be lost: use broadcast_to and "
            "arithmetic, or detach()"
        )
    return python_scalar(x)


def _new(name: str, dtype: Any, device: Any, *args: Any, **options: Any) -> Tensor:
    _, xp, default_device = backend.current()
    constants = [arg if type(arg) in _PLAIN else _constant(name, arg) for arg in args]
    place = default_device if device is None else device
    try:
        return Tensor._make(getattr(xp, name)(*constants, dtype=as_dtype(xp, dtype), device=place, **options))
    except COMPLAINTS as error:
        raise explained(name, error, *args, dtype=dtype, device=device, **options) from error


def _like(name: str, dtype: Any, device: Any, x: Any, *args: Any) -> Tensor:
    raw = x._data if type(x) is Tensor else backend.asarray(x)
    xp = backend.namespace_of(raw)
    constants = [arg if type(arg) in _PLAIN else _constant(name, arg) for arg in args]
    try:
        return Tensor._make(getattr(xp, name)(raw, *constants, dtype=as_dtype(xp, dtype), device=device))
    except COMPLAINTS as error:
        raise explained(name, error, x, *args, dtype=dtype, device=device) from error


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """``start, start + step, …`` before ``stop``; with one argument, from 0 up to it. No derivative: a constant.

    >>> mg.arange(1, 7, 2).tolist()
    [1, 3, 5]
    """
    return _new("arange", dtype, device, start, stop, step)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A Tensor with whatever stood in memory. No derivative: a constant.

    >>> mg.empty((2, 3)).shape
    (2, 3)
    """
    return _new("empty", dtype, device, shape)


def empty_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """As `empty`, in the shape, library and device of x. No derivative: a constant.

    >>> mg.empty_like(mg.ones((2, 3))).shape
    (2, 3)
    """
    return _like("empty_like", dtype, device, x)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere. No derivative: a constant.

    >>> mg.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return _new("eye", dtype, device, n_rows, n_cols, k=k)


def full(shape: Shape, fill_value: complex, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Every element ``fill_value``. No derivative: a constant.

    >>> mg.full((2, 2), 7.0).tolist()
    [[7.0, 7.0], [7.0, 7.0]]
    """
    expect_numbers("full", fill_value)
    return _new("full", dtype, device, shape, fill_value)


def full_like(x: Array, /, fill_value: complex, *, dtype: Any = None, device: Any = None) -> Tensor:
    """As `full`, in the shape, library and device of x. No derivative: a constant.

    >>> mg.full_like(mg.asarray([5, 6]), 7).tolist()
    [7, 7]
    """
    expect_numbers("full_like", fill_value)
    return _like("full_like", dtype, device, x, fill_value)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """``num`` evenly spaced numbers from ``start`` to ``stop``. No derivative: a constant.

    >>> mg.linspace(0.0, 1.0, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    return _new("linspace", dtype, device, start, stop, num, endpoint=endpoint)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Every element 1. No derivative: a constant.

    >>> mg.ones((2, 3), dtype="int64").tolist()
    [[1, 1, 1], [1, 1, 1]]
    """
    return _new("ones", dtype, device, shape)


def ones_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """As `ones`, in the shape, library and device of x. No derivative: a constant.

    >>> mg.ones_like(mg.asarray([5, 6])).tolist()
    [1, 1]
    """
    return _like("ones_like", dtype, device, x)


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Every element 0. No derivative: a constant.

    >>> mg.zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    return _new("zeros", dtype, device, shape)


def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """As `zeros`, in the shape, library and device of x. No derivative: a constant.

    >>> mg.zeros_like(mg.asarray([5, 6])).tolist()
    [0, 0]
    """
    return _like("zeros_like", dtype, device, x)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A Tensor of an array of any library with ``__dlpack__``, on the backend in use, sharing memory where it can.

    No derivative: what comes from another library comes without a graph, and a Tensor in a graph is refused.

    >>> import numpy
    >>> mg.from_dlpack(numpy.asarray([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: expected an array with __dlpack__, got {x!r:.60}")
    options = {name: value for name, value in {"device": device, "copy": copy}.items() if value is not None}
    memory = x._share_memory() if type(x) is Tensor and not copy else None
    xp = backend.current().xp
    try:
        return Tensor._make(xp.from_dlpack(x, **options), None, memory)
    except COMPLAINTS as error:
        raise explained("from_dlpack", error, x, **options) from error


def meshgrid(*arrays: Array, indexing: str = "xy") -> tuple[Tensor, ...]:
    """The coordinates of a grid: each 1-dimensional array along an axis of its own, repeated along the others.

    ``"ij"`` puts them along axes 0, 1, …; ``"xy"`` swaps the first two. The gradient sums over the repetitions.

    >>> [x.tolist() for x in mg.meshgrid(mg.arange(2), mg.arange(3), indexing="ij")]
    [[[0, 0, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: expected indexing 'xy' or 'ij', got {indexing!r}")
    swap = {0: 1, 1: 0} if indexing == "xy" and len(arrays) > 1 else {}
    tensors = [asarray(x) for x in arrays]
    shape = [1] * len(tensors)
    for i, x in enumerate(tensors):
        if x.ndim > 1:
            raise ValueError(f"meshgrid: expected 1-dimensional arrays, got shape {x.shape}")
        shape[swap.get(i, i)] = x.size
    rows = [
        mg.reshape(x, tuple(x.size if axis == swap.get(i, i) else 1 for axis in range(len(tensors))))
        for i, x in enumerate(tensors)
    ]
    return tuple(mg.broadcast_to(row, tuple(shape)) for row in rows)


def _matrices(x: Array) -> Array:
    if len(x.shape) < 2:  # of which NumPy makes a matrix
        raise ValueError("expected at least two axes")
    return x


@primitive
def tril(xp: Any, x: Array, /, *, k: int = 0) -> Array:
    """x with 0 above the k-th diagonal of the last two axes; so is the gradient.

    >>> mg.tril(mg.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return xp.tril(_matrices(x), k=k)


@primitive
def triu(xp: Any, x: Array, /, *, k: int = 0) -> Array:
    """x with 0 below the k-th diagonal of the last two axes; so is the gradient.

    >>> mg.triu(mg.ones((2, 2)), k=1).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return xp.triu(_matrices(x), k=k)


tril.vjp(x=lambda g, xp, k: xp.tril(g, k=k))
triu.vjp(x=lambda g, xp, k: xp.triu(g, k=k))


@primitive(view=True)  # where it is on that device already
def to_device(xp: Any, x: Array, device: Any, /) -> Array:
    """x on another device of its library. The gradient comes back to the device of x.

    >>> x = mg.ones(2)
    >>> mg.to_device(x, x.device).tolist()
    [1.0, 1.0]
    """
    return backend.to_device(x, device)


to_device.vjp(x=lambda g, x: backend.to_device(g, x.device))
to_device.example((2, 3), lambda: zeros(1).device)
