"""How threads wait awake for each other, for a compiler: one that sleeps is woken after 0.1 to 0.2 ms.

Nothing depends on it: `backend.in_parallel` hands over work through a queue and waits for locks. Here a thread only
stays awake for a while without Python's lock, so that it is there at once when it finds something in the queue.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy

from .backend import Array, compiled

types: Any = importlib.import_module("numba.types")
cgutils: Any = importlib.import_module("numba.core.cgutils")
intrinsic: Callable[..., Any] = importlib.import_module("numba.extending").intrinsic

calls = numpy.zeros(1, numpy.int64)  # how often work was put into the queue
LONG = 500_000  # looks at a counter, 1 ms: longer than what comes between two operations of a model
SHORT = 5_000  # 10 µs: to take work from the queue


def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    x = context.make_array(signature.args[0])(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, signature.args[0], x, args[1:2])


@intrinsic
def _read(typing: Any, x: Any, i: Any) -> Any:
    """x[i] as it is now in memory, where another thread may have changed it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_address(context, builder, signature, args), "acquire", 8)

    return types.int64(x, types.intp), generate


@intrinsic
def _add_one(typing: Any, x: Any, i: Any) -> Any:
    """x[i] += 1, of which none is lost where several threads do so."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", _address(context, builder, signature, args), one, "acq_rel")

    return types.int64(x, types.intp), generate


@compiled()
def count(x: Array, i: int) -> None:
    """x[i] += 1"""
    _add_one(x, i)


@compiled()
def until(x: Array, i: int, at_least: int, looks: int) -> Any:
    """Return x[i] once it is ``at_least`` that, or after so many looks at it."""
    found = _read(x, i)
    while found < at_least and looks > 0:
        found = _read(x, i)
        looks -= 1
    return found


@compiled()
def call(calls: Array, state: Array, workers: int) -> None:
    """Say that there is work, and leave Python's lock to so many workers until they have begun to compute, too."""
    _add_one(calls, 0)
    if until(state, 0, workers, SHORT) >= workers:
        until(state, 1, workers, SHORT)
