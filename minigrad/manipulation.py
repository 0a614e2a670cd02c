"""Manipulation functions: elements move, repeat or disappear. The gradient of each goes back where it came from.

A shape that does not fit is a ValueError, an axis out of range an IndexError. The chapter of the standard:
https://data-apis.org/array-api/latest/API_specification/manipulation_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import minigrad as mg

from .autodiff import Primitive, primitive
from .backend import Array
from .tensor import Tensor

__all__ = [
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis",
    "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip


@primitive(view=True)
def reshape(xp: Any, x: Array, /, shape: tuple[int, ...] | int, *, copy: bool | None = None) -> Array:
    """The same elements in row-major order in another shape; one length may be -1.

    >>> mg.reshape(mg.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return xp.reshape(x, (shape,) if isinstance(shape, int) else tuple(shape), copy=copy)


reshape.vjp(x=lambda g, xp, x_shape: xp.reshape(g, tuple(x_shape)))
reshape.example((2, 6), [3, -1])


@primitive(view=True)
def permute_dims(xp: Any, x: Array, /, axes: Sequence[int]) -> Array:
    """The axes in another order: axis ``i`` of the result is axis ``axes[i]`` of x.

    >>> mg.permute_dims(mg.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return xp.permute_dims(x, tuple([normal_axis("permute_dims", axis, len(axes)) for axis in axes]))


def _permute_back(g: Array, xp: Any, axes: Sequence[int]) -> Array:
    positions = [axis % len(axes) for axis in axes]
    return xp.permute_dims(g, tuple(positions.index(i) for i in range(len(axes))))


permute_dims.vjp(x=_permute_back)
permute_dims.example((2, 3, 4), [2, 0, -2])


@primitive(view=True)
def moveaxis(xp: Any, x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Axes moved to other positions, the rest in their order.

    >>> mg.moveaxis(mg.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    return xp.moveaxis(x, source, destination)


moveaxis.vjp(x=lambda g, xp, source, destination: xp.moveaxis(g, destination, source))
moveaxis.example((2, 3, 4), 0, -1)


@primitive(view=True)
def broadcast_to(xp: Any, x: Array, /, shape: Sequence[int]) -> Array:
    """x repeated along new axes and axes of length 1. The gradient sums over the copies.

    >>> mg.grad(lambda x: mg.sum(mg.broadcast_to(x, (3, 2))))(mg.asarray([5.0, 6.0])).tolist()
    [3.0, 3.0]
    """
    return xp.broadcast_to(x, tuple(shape))


broadcast_to.vjp(x=lambda g: g)  # the engine sums over broadcast axes
broadcast_to.example((3, 1), [2, 3, 4])


@primitive(view=True)
def expand_dims(xp: Any, x: Array, /, axis: int | Sequence[int] = 0) -> Array:
    """A new axis of length 1 at position ``axis`` of the result, or several at once.

    >>> mg.expand_dims(mg.zeros((2, 3)), axis=(0, -1)).shape
    (1, 2, 3, 1)
    """
    if isinstance(axis, int):
        return xp.expand_dims(x, axis=axis)
    ndim = len(x.shape) + len(axis)
    new = {i % ndim if -ndim <= i < ndim else i for i in axis}
    if len(new) < len(axis) or not all(0 <= i < ndim for i in new):
        raise ValueError(f"axis {axis} does not name {len(axis)} different axes of {ndim}")
    lengths = iter(x.shape)
    return xp.reshape(x, tuple(1 if i in new else next(lengths) for i in range(ndim)))


expand_dims.vjp(x=lambda g, xp, x_shape: xp.reshape(g, tuple(x_shape)))
expand_dims.example((2, 3), -1)
expand_dims.example((2, 3), [0, -1])


@primitive(view=True)
def squeeze(xp: Any, x: Array, /, axis: int | Sequence[int]) -> Array:
    """x without the given axes, which have length 1.

    >>> mg.squeeze(mg.zeros((2, 1, 3)), 1).shape
    (2, 3)
    """
    return xp.squeeze(x, axis=axis if isinstance(axis, int) else tuple(axis))


squeeze.vjp(x=lambda g, xp, x_shape: xp.reshape(g, tuple(x_shape)))
squeeze.example((2, 1, 3), -2)


@primitive(view=True)
def flip(xp: Any, x: Array, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """The elements in reverse order along ``axis`` (None: all axes).

    >>> mg.flip(mg.asarray([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    return xp.flip(x, axis=axis)


flip.vjp(x=lambda g, xp, axis: xp.flip(g, axis=axis))
flip.example((2, 3), axis=1)


@primitive
def roll(xp: Any, x: Array, /, shift: int | Sequence[int], *, axis: int | tuple[int, ...] | None = None) -> Array:
    """The elements shifted along ``axis``, those that leave at one end entering at the other.

    >>> mg.roll(mg.asarray([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    return xp.roll(x, shift if isinstance(shift, int) else tuple(shift), axis=axis)


roll.vjp(
    x=lambda g, xp, shift, axis: xp.roll(g, -shift if isinstance(shift, int) else tuple(-s for s in shift), axis=axis)
)
roll.example((2, 3), 2, axis=1)
roll.example((2, 3), [1, -1], axis=(0, 1))
roll.example((2, 3), 1)


@primitive
def tile(xp: Any, x: Array, repetitions: Sequence[int], /) -> Array:
    """x repeated as a block, ``repetitions[i]`` times along axis i. The gradient sums over the blocks.

    >>> mg.tile(mg.asarray([1, 2]), (3,)).tolist()
    [1, 2, 1, 2, 1, 2]
    """
    return xp.tile(x, tuple(repetitions))


def _tile(g: Array, xp: Any, x_shape: tuple[int, ...], repetitions: Sequence[int]) -> Array:
    ndim = max(len(x_shape), len(repetitions))
    shape = (1,) * (ndim - len(x_shape)) + tuple(x_shape)
    times = (1,) * (ndim - len(repetitions)) + tuple(repetitions)
    blocks = xp.reshape(g, tuple(n for pair in zip(times, shape, strict=True) for n in pair))
    return xp.reshape(xp.sum(blocks, axis=tuple(range(0, 2 * ndim, 2))), tuple(x_shape))


tile.vjp(x=_tile)
tile.example((2, 3), [2, 2])
tile.example((3,), [2, 1, 2])


@primitive
def repeat(xp: Any, x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element repeated ``repeats`` times along ``axis`` (None: of the flattened x). The gradient sums over them.

    ``repeats`` can be an array with one count for each element; the shape of the result then depends on its values.

    >>> mg.repeat(mg.asarray([1, 2]), 3).tolist()
    [1, 1, 1, 2, 2, 2]
    """
    return xp.repeat(x, repeats, axis=axis)


def _repeat(g: Array, xp: Any, x_shape: tuple[int, ...], repeats: int | Array, axis: int | None) -> Array:
    shape = (math.prod(x_shape),) if axis is None else tuple(x_shape)
    axis = (axis or 0) % len(shape)
    if isinstance(repeats, int):
        groups = shape[: axis + 1] + (repeats,) + shape[axis + 1 :]
        return xp.reshape(xp.sum(xp.reshape(g, groups), axis=axis + 1), tuple(x_shape))
    from .indexing import add_along

    source = xp.repeat(xp.arange(shape[axis], device=g.device), repeats)
    return xp.reshape(add_along.raw(xp)(g, source, shape, axis), tuple(x_shape))


repeat.vjp(x=_repeat)
repeat.example((2, 3), 2)
repeat.example((2, 3), 3, axis=1)


@primitive
def _concat(xp: Any, *arrays: Array, axis: int | None = 0) -> Array:
    """The arrays one after the other along ``axis``."""
    return xp.concat(arrays, axis=axis)


def _split(g: Array, xp: Any, arrays_shape: Sequence[tuple[int, ...]], axis: int | None) -> list[Array]:
    pieces, start = [], 0
    for shape in arrays_shape:
        end = start + (math.prod(shape) if axis is None else shape[axis])
        along = 0 if axis is None else axis % len(shape)
        pieces.append(xp.reshape(g[(slice(None),) * along + (slice(start, end), ...)], tuple(shape)))
        start = end
    return pieces


_concat.vjp_all(_split)
_concat.example((2, 3), (4, 3))
_concat.example((2, 3), (2, 1), axis=-1)
_concat.example((2, 3), (2,), axis=None)


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Tensor:
    """The arrays one after the other along ``axis`` (None: all flattened). Each gets its piece of the gradient.

    >>> mg.concat([mg.asarray([[1, 2]]), mg.asarray([[3, 4]])]).tolist()
    [[1, 2], [3, 4]]
    """
    return _of_many("concat", _concat, arrays, axis)


@primitive
def _stack(xp: Any, *arrays: Array, axis: int = 0) -> Array:
    """The arrays along a new axis."""
    return xp.stack(arrays, axis=axis)


def _unstack(g: Array, arrays_shape: Sequence[tuple[int, ...]], axis: int) -> list[Array]:
    along = (slice(None),) * (axis % len(g.shape))
    return [g[(*along, i, ...)] for i in range(len(arrays_shape))]


_stack.vjp_all(_unstack)
_stack.example((2, 3), (2, 3), axis=-1)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Tensor:
    """The arrays, all of one shape, along a new axis. Each gets its piece of the gradient.

    >>> mg.stack([mg.asarray([1, 2]), mg.asarray([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    return _of_many("stack", _stack, arrays, axis)


def _of_many(name: str, op: Primitive[Any], arrays: Sequence[Array], axis: int | None) -> Tensor:
    arrays = list(arrays)
    if not arrays:
        raise ValueError(f"{name}: expected at least one array, got none")
    result: Tensor = op(*arrays, axis=axis)
    return result


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The pieces of x along ``axis``, which disappears.

    >>> [row.tolist() for row in mg.unstack(mg.asarray([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    x = mg.asarray(x)
    along = (slice(None),) * normal_axis("unstack", axis, x.ndim)
    return tuple(x[(*along, i, ...)] for i in range(x.shape[axis]))


def normal_axis(name: str, axis: int, ndim: int) -> int:
    """``axis`` counted from the front."""
    if not -ndim <= axis < ndim:
        raise IndexError(f"{name}: axis {axis} is out of range for an array of {ndim} axes")
    return axis % ndim


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that arrays of these shapes have together. No derivative: not an array.

    >>> mg.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    if shapes and all(shape == shapes[0] for shape in shapes):  # a tenth of the time of what follows
        return tuple(shapes[0])
    ndim = max((len(shape) for shape in shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for i, n in enumerate(shape, start=ndim - len(shape)):
            if n != 1 and result[i] not in (1, n):
                raise ValueError(f"broadcast_shapes: {', '.join(map(str, shapes))} do not broadcast")
            result[i] = n if n != 1 else result[i]
    return tuple(result)


def broadcast_arrays(*arrays: Array) -> tuple[Tensor, ...]:
    """Each array in the shape that they have together.

    >>> [x.shape for x in mg.broadcast_arrays(mg.ones((2, 1)), mg.ones(3))]
    [(2, 3), (2, 3)]
    """
    tensors = [mg.asarray(x) for x in arrays]
    shape = broadcast_shapes(*(x.shape for x in tensors))
    return tuple(broadcast_to(x, shape) for x in tensors)
