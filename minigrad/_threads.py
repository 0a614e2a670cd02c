"""How threads share compiled loops, and wait awake for each other: one that sleeps is woken after 0.1 to 0.2 ms.

A worker (`backend._serve`) looks for work here, without Python's lock, for a while before it sleeps. Of a function
that `in_parts` divides it takes parts as the caller does, each the next one left; where no worker is awake, the caller
computes all of them. A part does the same on whichever thread. For what Python has to divide (`backend.in_parallel`),
threads only stay awake here; the work itself is handed over through a queue.

All that one of these functions calls stands in this file: what a compiler keeps on disk is made anew when it changes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy

from .backend import Array, compiled

ir: Any = importlib.import_module("llvmlite.ir")
types: Any = importlib.import_module("numba.types")
cgutils: Any = importlib.import_module("numba.core.cgutils")
intrinsic: Callable[..., Any] = importlib.import_module("numba.extending").intrinsic

loop, loop_with_sums = compiled(), compiled(sums_in_any_order=True)
f = numpy.float32
LONG = 500_000  # looks at a counter, 1 ms: longer than what comes between two operations of a model
SHORT = 5_000  # 10 µs: to take work from the queue

state = numpy.zeros(64, numpy.int64)
"""What all threads share. What one of them writes while others look at it has a cache line, eight numbers, to itself:

TAKEN   whether a function is being divided          CODE, DATA   its address, and that of its arguments
LEFT    its parts that nobody has taken yet          NEXT, STOP   the memory that will be read next, as far as that is
DONE    those that workers have done                              not yet fetched
AWAKE   the workers that look for parts              BEFORE       the matrix that was read last
CALLS   how often work was put into the queue
"""
TAKEN, LEFT, DONE, AWAKE, CALLS, NEXT, STOP, CODE, DATA, BEFORE = 0, 8, 16, 24, 32, 40, 48, 49, 50, 51
followers = numpy.zeros((4093, 3), numpy.int64)
"""Of a matrix its address, and the address and bytes of the one that was read after it the last time."""


# ------------------------------------------------------------------------------------------------ atomic memory


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
def _write(typing: Any, x: Any, i: Any, value: Any) -> Any:
    """x[i] = value, for other threads after all that this one wrote before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _address(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(x, types.intp, types.int64), generate


@intrinsic
def _add(typing: Any, x: Any, i: Any, value: Any) -> Any:
    """x[i] += value, of which none is lost where several threads do so; what was there before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _address(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(x, types.intp, types.int64), generate


@intrinsic
def _swap(typing: Any, x: Any, i: Any, value: Any) -> Any:
    """x[i] = value; what was there before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _address(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(x, types.intp, types.int64), generate


# ------------------------------------------------------------------------------------------------ waiting


@loop
def count(x: Array, i: int) -> None:
    """x[i] += 1"""
    _add(x, i, 1)


@loop
def until(x: Array, i: int, at_least: int, looks: int) -> Any:
    """Return x[i] once it is ``at_least`` that, or after so many looks at it."""
    found = _read(x, i)
    while found < at_least and looks > 0:
        found = _read(x, i)
        looks -= 1
    return found


@loop
def call(state: Array, job: Array, workers: int) -> None:
    """Say that there is work in the queue, and leave Python's lock to so many workers until they compute, too."""
    _add(state, CALLS, 1)
    if until(job, 0, workers, SHORT) >= workers:
        until(job, 1, workers, SHORT)


# ------------------------------------------------------------------------------------------------ parts of a function

_int64 = ir.IntType(64)
_part = ir.FunctionType(ir.VoidType(), [_int64, _int64])  # of the address of the arguments, and which part


def task(loops: Any) -> Any:
    """A function of a tuple that gives the addresses of ``loops(part, *tuple)``, as a `_part`, and of the tuple.

    The second is one on the stack: of a place in the function that calls it.
    """

    @intrinsic
    def addresses(typing: Any, arguments: Any) -> Any:
        kind = types.Dispatcher(loops).get_call_type(typing, (types.intp, *arguments.types), {})

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            made = loops.overloads[kind.args]
            context.active_code_library.add_linking_library(made.library)
            code = ir.Function(builder.module, _part, builder.module.get_unique_name("part"))
            code.linkage = "internal"
            inside = ir.IRBuilder(code.append_basic_block())
            place = inside.inttoptr(code.args[0], context.get_value_type(arguments).as_pointer())
            given = [code.args[1], *cgutils.unpack_tuple(inside, inside.load(place), len(arguments.types))]
            function = context.declare_function(builder.module, made.fndesc)
            context.call_conv.call_function(inside, function, kind.return_type, kind.args, given)
            inside.ret_void()
            data = cgutils.alloca_once_value(builder, args[0])
            both = [builder.ptrtoint(code, _int64), builder.ptrtoint(data, _int64)]
            return context.make_tuple(builder, signature.return_type, both)

        return types.UniTuple(types.int64, 2)(arguments), generate

    return addresses


@intrinsic
def _run(typing: Any, code: Any, data: Any, part: Any) -> Any:
    """Call a `task`'s function for a part."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(builder.inttoptr(args[0], _part.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@loop
def in_parts(state: Array, n: int, code: int, data: int) -> None:
    """Call a `task` for the parts 0 … n − 1, some of them by workers. None of them may raise an error."""
    if n == 1 or _swap(state, TAKEN, 1):  # by another thread
        for part in range(n):
            _run(code, data, part)
        return
    state[CODE], state[DATA] = code, data
    _write(state, DONE, 0)
    _write(state, LEFT, n)
    mine = 0
    part = _add(state, LEFT, -1) - 1
    while part >= 0:
        _run(code, data, part)
        mine += 1
        part = _add(state, LEFT, -1) - 1
    while _read(state, DONE) < n - mine:
        pass
    _write(state, TAKEN, 0)


@loop
def serve(state: Array, calls: int) -> Any:
    """Run parts as long as there are some to be had every now and then; return if something new is in the queue."""
    _add(state, AWAKE, 1)
    looks, pace = LONG, calls
    while looks > 0 and _read(state, CALLS) == calls:
        looks -= 1
        if _read(state, LEFT) > 0:
            part = _add(state, LEFT, -1) - 1
            if part >= 0:  # the arguments are there until this part is done
                _run(state[CODE], state[DATA], part)
                _add(state, DONE, 1)
                looks = LONG
        elif _read(state, NEXT) < state[STOP]:
            address = _add(state, NEXT, 1024)
            for i in range(address, address + 1024, 64):
                _fetch(i)
                for _ in range(3):  # 4 ns: what is asked for faster than memory can give it, a processor forgets
                    pace = pace * 6364136223846793005 ^ pace >> 7
    _add(state, AWAKE, -1)
    return pace  # or a compiler would leave it out


# ------------------------------------------------------------------------------------------------ what is read next


@intrinsic
def _fetch(typing: Any, address: Any) -> Any:
    """Ask for the cache line at an address, which need not be one of the process's own."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address], kind)
        builder.call(prefetch, [builder.inttoptr(args[0], address), number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@loop
def _place(followers: Array, address: int) -> Any:
    """Where in ``followers`` a matrix has its place, unless another one has taken it."""
    return (address >> 6) * 40503 % len(followers)


@loop
def _fetch_next(state: Array, followers: Array, W: Array) -> None:
    """W has been read: let workers that have nothing to do fetch what came after it the last time.

    A model reads its weights in the same order again and again. While Python is busy between two products, memory
    would have nothing to do: a token took a seventh longer.
    """
    address, before = W.ctypes.data, state[BEFORE]
    here = followers[_place(followers, before)]
    here[0], here[1], here[2] = before, address, 4 * W.size
    state[BEFORE] = address
    here = followers[_place(followers, address)]
    if here[0] == address:
        state[STOP] = here[1] + here[2]
        _write(state, NEXT, here[1])


# ------------------------------------------------------------------------------------------------ matrix times vector


@loop_with_sums
def _some_rows(part: int, parts: int, W: Array, x: Array, y: Array) -> None:
    n, width = W.shape
    for i in range(part * (n // 8) // parts * 8, (part + 1) * (n // 8) // parts * 8, 8):
        for r in range(i + 8, i + 16):  # where the next eight begin, which processors do not foresee
            for line in range(3):
                _fetch(W.ctypes.data + 4 * r * width + 64 * line)
        y0 = y1 = y2 = y3 = y4 = y5 = y6 = y7 = f(0)
        for j in range(width):
            y0 += W[i, j] * x[j]
            y1 += W[i + 1, j] * x[j]
            y2 += W[i + 2, j] * x[j]
            y3 += W[i + 3, j] * x[j]
            y4 += W[i + 4, j] * x[j]
            y5 += W[i + 5, j] * x[j]
            y6 += W[i + 6, j] * x[j]
            y7 += W[i + 7, j] * x[j]
        y[i], y[i + 1], y[i + 2], y[i + 3] = y0, y1, y2, y3
        y[i + 4], y[i + 5], y[i + 6], y[i + 7] = y4, y5, y6, y7
    if part == parts - 1:
        for i in range(n // 8 * 8, n):
            total = f(0)
            for j in range(width):
                total += W[i, j] * x[j]
            y[i] = total


_some_rows_task = task(_some_rows)
_given = {n: types.Array(types.float32, n, "C", readonly=True) for n in (1, 2)}
_made = types.Array(types.float32, 1, "C")


@compiled(signature=types.void(types.int64[::1], types.int64[:, ::1], types.intp, _given[2], _given[1], _made))
def matrix_times_vector(state: Array, followers: Array, parts: int, W: Array, x: Array, y: Array) -> None:
    """y = W x, in so many parts. Each row is summed in the same way wherever it is computed."""
    code, data = _some_rows_task((parts, W, x, y))
    in_parts(state, parts, code, data)
    _fetch_next(state, followers, W)
