"""How a large computation is cut into tiles that stay in a core's cache: attention's, and those of rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import minigrad as mg
from minigrad import backend
from minigrad.backend import Array, device_of

from ._numerics import loops_for, wide

Part = tuple[slice, ...]
"""A slice of each of an array's first axes."""


def by_rows(
    xp: Any, f: Callable[..., tuple[Array, ...]], *arrays: Array, sums: int = 0, light: bool = False
) -> tuple[Array, ...]:
    """``f(*arrays)``, a few rows of all arrays at a time.

    f gives arrays with as many rows as it is given; the last ``sums`` of what it gives are summed over the blocks. It
    may write into its arrays instead, and give nothing. Where it is ``light``, a single pass over memory, two threads
    are as fast as one from a million numbers on.
    """
    n, size = arrays[0].shape[0], backend.tile_size(xp)
    if n < 2 or size is None:
        return f(*arrays) or ()
    numbers = n * max([math.prod(x.shape[1:]) for x in arrays])
    if numbers <= (2 * size if light else size // 4):
        with backend.on_this_thread(xp, numbers):
            return f(*arrays) or ()
    threads = backend.threads(xp)
    parts = blocks(n, -(-n // (threads * -(-numbers // (threads * size)))))  # as many for each thread
    lanes = min(threads, len(parts))
    whole: list[Array] = []
    totals: list[list[Array]] = [[] for _ in range(lanes)]
    lock = threading.Lock()

    def work(lane: int) -> None:
        for part in parts[lane::lanes]:
            results = f(*[x[part, ...] for x in arrays]) or ()
            stacked, summed = results[: len(results) - sums], results[len(results) - sums :]
            with lock:
                if not whole:  # the first results say what all look like
                    whole.extend([xp.empty((n, *x.shape[1:]), dtype=x.dtype, device=device_of(x)) for x in stacked])
            for all_rows, x in zip(whole, stacked, strict=True):
                all_rows[part, ...] = x
            before = totals[lane]
            totals[lane] = [x + y for x, y in zip(before, summed, strict=True)] if before else list(summed)

    backend.in_parallel(work, lanes)
    return *whole, *[total(list(lane_sums)) for lane_sums in zip(*totals, strict=True)]


def elementwise(
    xp: Any, f: Callable[..., tuple[Array, ...]], *arrays: Array, loop: str, results: int = 1
) -> tuple[Array, ...]:
    """``f(*arrays)`` for arrays of one shape and an f that treats each element by itself, a part at a time.

    Where there are compiled loops for them, the one of that name writes the results into so many arrays instead.
    """
    flat = [xp.reshape(x, (-1,)) for x in arrays]
    if loops := loops_for(xp, *flat):
        out = tuple([xp.empty_like(flat[0]) for _ in range(results)])
        by_rows(xp, getattr(loops, loop), *flat, *out, light=True)
    else:
        out = by_rows(xp, f, *flat)
    return tuple([xp.reshape(x, arrays[0].shape) for x in out])


# ------------------------------------------------------------------------------------------------ attention


class Tiles(NamedTuple):
    """A problem's heads (its leading axes) and lengths, and its blocks of queries, dealt out to threads."""

    heads: tuple[int, ...]
    L: int
    S: int
    lanes: list[list[tuple[Part, slice]]]  # for one thread after the other blocks: which heads, which queries
    splits_heads: bool  # whether queries of the same heads are in several lanes
    key_block: int

    def keys(self, rows: slice, is_causal: bool, window: int | None) -> list[slice]:
        """The blocks of keys to which the queries ``rows`` may attend."""
        end = min(self.S, rows.stop) if is_causal else self.S
        start = 0 if window is None else max(min(rows.start - window + 1, end - 1), 0)  # one key at least
        return [slice(start + b.start, start + b.stop) for b in blocks(end - start, self.key_block)]

    def zeros(self, xp: Any, x: Array, for_each_query: bool) -> list[Array]:
        """For each lane zeros like x to add to: one array for all, unless two lanes would add to the same element."""
        apart = x.shape[:-2] != self.heads or (self.splits_heads and not for_each_query)
        like = {"dtype": wide(xp, x.dtype), "device": device_of(x)}
        first = xp.zeros(x.shape, **like)
        return [first, *(xp.zeros(x.shape, **like) if apart else first for _ in self.lanes[1:])]


def tiles(xp: Any, query: Array, key: Array, value: Array, is_causal: bool, compiled: bool = False) -> Tiles | None:
    """The tiles for a problem; None where it is best left whole, or one where a ``compiled`` loop cuts it smaller."""
    size = backend.tile_size(xp)
    heads = mg.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    L, S = query.shape[-2], key.shape[-2]
    scores, width = math.prod(heads) * L * S, query.shape[-1] + value.shape[-1]
    # What is done before another thread has started:
    small = size is None or (scores <= size // 2 and backend.is_small(xp, scores * width))
    if size is None or (small and not compiled):
        return None
    threads = 1 if small else backend.threads(xp)
    # Wider than high: what is done for each row, for one block of keys after the other, is then done fewer times.
    # Causal blocks of queries are smaller, as the tiles on the diagonal are half wasted.
    flatter = 0 if compiled else 2 if is_causal else 1
    row_block = min(L, 1 << max((size.bit_length() - 1) // 2 - flatter, 0))
    if compiled and math.prod(heads) % threads:  # so blocks of queries are dealt out, as many to each thread
        many = threads * (2 if is_causal else 1)
        row_block = max(-(-L // (-(-L // (row_block * many)) * many)), min(L, 60))
    key_block = min(S, size // row_block)
    room = min(size // (row_block * key_block), -(-math.prod(heads) // threads))
    parts: list[Part] = [()]
    for n in reversed(heads):
        parts = [(part, *rest) for part in blocks(n, max(room, 1)) for rest in parts]
        room //= n
    rows = blocks(L, row_block)
    splits_heads = len(parts) % threads != 0 and len(parts) < 4 * threads
    work = [[(part, r) for r in rows] for part in parts]
    if splits_heads:
        work = [[block] for of_a_part in work for block in of_a_part]
    if not splits_heads and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return Tiles(heads, L, S, work, splits_heads, key_block)  # as many as there are, as none needs sums of its own
    # There and back again, as in a causal problem the later blocks of queries have more keys.
    turns = [work[i :: 2 * threads] + work[2 * threads - 1 - i :: 2 * threads] for i in range(min(threads, len(work)))]
    lanes = [[block for some in turn for block in some] for turn in turns]
    return Tiles(heads, L, S, lanes, splits_heads, key_block)


def blocks(n: int, size: int) -> list[slice]:
    """0 … n in blocks of at most ``size`` and of about the same length; at least one."""
    count = max(1, -(-n // size))
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def padded(xp: Any, x: Array | None, ndim: int) -> Array | None:
    """x with further leading axes of length 1, so that it has ``ndim``."""
    return x if x is None else xp.reshape(x, (1,) * (ndim - len(x.shape)) + tuple(x.shape))


def cut(x: Array | None, part: Part) -> Array | None:
    """``x[part]``, but whole along axes of length 1, which broadcast."""
    if x is None:
        return x
    return x[(*[p if n > 1 else slice(None) for p, n in zip(part, x.shape, strict=False)], ...)]


def along(x: Array | None, axis: int, part: slice) -> Array | None:
    """The ``part`` of x along one axis, counted from the end; x itself if that is all of it, or it broadcasts."""
    if x is None or x.shape[axis] == 1 or (part.start, part.stop) == (0, x.shape[axis]):
        return x
    return x[(..., part, *[slice(None)] * (-1 - axis))]


def add(xp: Any, total: Array, part: Part, x: Array) -> None:
    """Add x to ``total[part]``, summed over the axes along which ``total`` broadcasts."""
    here: Any = cut(total, part)
    axes = tuple([i for i, n in enumerate(here.shape) if n < x.shape[i]])
    here += xp.sum(x, axis=axes, keepdims=True) if axes else x


def total(sums: list[Array]) -> Array:
    """The sum of what the lanes added up, each in its own array or all in one (`Tiles.zeros`)."""
    first, *others = sums
    for x in others:
        if x is not first:
            first += x
    return first
