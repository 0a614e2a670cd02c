"""Indexing: taking elements out, and assigning them.

Taking is linear: the gradient of each element taken is added where the element came from. If an index repeats, the
gradients add up; that scatter-add is the one operation here that the standard lacks (`backend.add_at`).

An index out of range is an IndexError; JAX and CuPy may not look. The chapters of the standard:
https://data-apis.org/array-api/latest/API_specification/indexing.html and indexing_functions.html beside it.
"""

from __future__ import annotations

from typing import Any

from . import backend
from .autodiff import primitive
from .backend import Array
from .creation import asarray
from .statistical import _in_float32, _narrow
from .tensor import Tensor

__all__ = [
    "getitem", "setitem", "take", "take_along_axis",
]  # fmt: skip


def raw_key(x: Array, key: Any) -> Any:
    """An index with raw arrays in it and, as array-api-strict asks, an entry for each axis or ``...`` for the rest."""
    if type(key) in (int, slice):
        return key if len(x.shape) == 1 else (key, ...)
    items = [item._data if type(item) is Tensor else item for item in (key if isinstance(key, tuple) else (key,))]
    items = [backend.as_index(item) if hasattr(item, "dtype") else item for item in items]
    axes = 0
    for item in items:
        if type(item) in (int, slice):
            axes += 1
            continue
        if isinstance(item, list):
            raise IndexError(f"indexing: a list is no index of the standard; use an integer array: asarray({item!r})")
        if item is Ellipsis or hasattr(item, "shape"):
            return tuple(items) if isinstance(key, tuple) else items[0]
        axes += item is not None
    return (*items, ...) if axes < len(x.shape) else tuple(items)


def _repeats(key: Any) -> bool:
    """Whether an index can name an element twice: integer arrays can, slices, integers and masks cannot."""
    items = key if isinstance(key, tuple) else (key,)
    return any(hasattr(item, "dtype") and backend.dtype_name(item.dtype) != "bool" for item in items)


@primitive(view=True)
def getitem(xp: Any, x: Array, key: Any, /) -> Array:
    """``x[key]``: integers, slices, ``...``, None, integer arrays and boolean masks.

    >>> mg.grad(lambda x: x[0] + 10 * x[-1])(mg.asarray([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.0, 10.0]
    """
    return backend.get_item(x, raw_key(x, key))


@primitive
def put(xp: Any, g: Array, key: Any, shape: tuple[int, ...], /) -> Array:
    """Zeros of ``shape`` with ``g`` added at ``key``: the gradient of ``x[key]``."""
    zeros = xp.zeros(shape, dtype=g.dtype, device=backend.device_of(g))
    key = raw_key(zeros, key)
    if not _repeats(key):
        return _set(xp, zeros, key, g)
    return _narrow(xp, backend.add_at(_in_float32(xp, zeros), key, _in_float32(xp, g)), g)


def _set(xp: Any, x: Array, key: Any, value: Any) -> Array:
    """x with ``x[key] = value``, where the key may hold None, which the standard allows for reading alone."""
    if isinstance(key, tuple) and any(item is None for item in key):
        key = tuple(item for item in key if item is not None)
        if hasattr(value, "shape"):
            value = xp.reshape(value, backend.get_item(x, key).shape)
    return backend.set_item(x, key, value)


getitem.vjp(x=lambda g, xp, x_shape, key: put.raw(xp)(g, key, tuple(x_shape)))
getitem.example((4, 3), (slice(None, None, 2), None, 1))
getitem.example((4, 3), (slice(None, None, -2), ...))
getitem.example((4, 3), lambda: (asarray([2, 0, 2]), asarray([1, 1, 1])))
put.vjp(g=lambda g, xp, key: getitem.raw(xp)(g, key))
put.example((2, 3), slice(1, 3), [4, 3])
put.example((3,), lambda: (asarray([2, 0, 2]), asarray([1, 1, 1])), [4, 3])


@primitive
def setitem(xp: Any, x: Array, key: Any, value: Array, /) -> Array:
    """A copy of x with ``x[key] = value``. The gradient at ``key`` goes to the value, the rest to x.

    >>> mg.setitem(mg.zeros(3), 1, 5.0).tolist()
    [0.0, 5.0, 0.0]
    """
    return backend.set_item(xp.asarray(x, copy=True), raw_key(x, key), value)


setitem.vjp(
    x=lambda g, xp, key: setitem.raw(xp)(g, key, 0),
    value=lambda g, xp, key: getitem.raw(xp)(g, key),
)
setitem.example((4, 3), (slice(None, None, 2), 1), (2,))


@primitive
def take(xp: Any, x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """The elements of x at ``indices`` along ``axis`` (optional where x has one axis).

    >>> mg.grad(lambda x: mg.sum(mg.take(x, mg.asarray([2, 0, 2]))))(mg.asarray([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.0, 2.0]
    """
    return xp.take(x, backend.as_index(indices), axis=_only_axis(x, axis))


def _only_axis(x: Array, axis: int | None) -> int:
    if axis is None and len(x.shape) != 1:
        raise ValueError("axis is required for an array of more than one axis")
    return axis or 0


@primitive
def add_along(xp: Any, g: Array, indices: Array, shape: tuple[int, ...], axis: int, /) -> Array:
    """Zeros of ``shape`` with the slices of g along ``axis`` added at ``indices``: the gradient of `take`."""
    zeros = xp.zeros(shape, dtype=g.dtype, device=backend.device_of(g))
    indices = backend.as_index(indices)
    total = backend.add_along(_in_float32(xp, zeros), axis % len(shape), indices, _in_float32(xp, g))
    return _narrow(xp, total, g)


take.vjp(x=lambda g, xp, x_shape, indices, axis: add_along.raw(xp)(g, indices, tuple(x_shape), axis or 0))
add_along.vjp(g=lambda g, xp, indices, axis: take.raw(xp)(g, indices, axis=axis))
take.example((4, 3), lambda: asarray([2, 0, 2]), axis=0)
take.example((3,), lambda: asarray([2, 0, 2]))
add_along.example((3, 2), lambda: asarray([2, 0, 2]), [4, 2], 0)


@primitive
def take_along_axis(xp: Any, x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """``x[…, indices[…, i, …], …]``: one index for each element of the result, along ``axis``.

    >>> mg.take_along_axis(mg.asarray([[1, 2], [3, 4]]), mg.asarray([[1], [0]]), axis=1).tolist()
    [[2], [3]]
    """
    return xp.take_along_axis(x, backend.as_index(indices), axis=axis)


@primitive
def put_along_axis(xp: Any, g: Array, indices: Array, shape: tuple[int, ...], axis: int, /) -> Array:
    """Zeros of ``shape`` with g added at ``indices`` along ``axis``: the gradient of `take_along_axis`."""
    zeros = xp.zeros(shape, dtype=g.dtype, device=backend.device_of(g))
    axis = axis % len(shape)
    indices = xp.broadcast_to(backend.as_index(indices), g.shape)
    key = []
    for i, n in enumerate(g.shape):
        along = xp.reshape(xp.arange(n, device=backend.device_of(g)), (-1,) + (1,) * (len(shape) - 1 - i))
        key.append(indices if i == axis else along)
    return backend.add_at(zeros, tuple(key), g)


def _put_along_axis(g: Array, xp: Any, x_shape: tuple[int, ...], indices: Array, axis: int) -> Array:
    axis = axis % len(x_shape)
    shape = tuple(n if i == axis else g.shape[i] for i, n in enumerate(x_shape))
    return put_along_axis.raw(xp)(g, indices, shape, axis)


take_along_axis.vjp(x=_put_along_axis)
put_along_axis.vjp(g=lambda g, xp, indices, axis: take_along_axis.raw(xp)(g, indices, axis=axis))
take_along_axis.example((2, 3), lambda: asarray([[2, 0, 2, 1], [1, 1, 0, 0]]))
put_along_axis.example((2, 4), lambda: asarray([[2, 0, 2, 1], [1, 1, 0, 0]]), [2, 3], -1)
