"""Compiled loops that threads share (`_threads`): each part once, and a matrix times a vector."""

import importlib
import multiprocessing
import threading
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from minigrad import backend

if backend.get_backend() != "numpy" or not backend.has_compiler():
    pytest.skip("the loops are for NumPy's arrays, and take a compiler", allow_module_level=True)

threads: Any = importlib.import_module("minigrad._threads")


@backend.compiled()
def _visit(part: int, parts: int, visits: Any) -> None:
    for _ in range(1000):  # long enough for another thread to take the next one
        visits[part] += 1


_visit_task = threads.task(_visit)
in_parts = threads.in_parts


@backend.compiled()
def visit(state: Any, parts: int, visits: Any) -> None:
    code, data = _visit_task((parts, visits))
    in_parts(state, parts, code, data)


def at_once(callers: int, f: Any) -> None:
    started = [threading.Thread(target=f) for _ in range(callers)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("callers", [1, 3])
def test_every_part_is_done_once(workers: int, callers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "threads", lambda xp: workers + 1)

    def call() -> None:
        for parts in [1, 2, 5, 50] * 20:
            backend.parts_for(1 << 20)  # wakes the workers
            visits = numpy.zeros(parts, "int64")
            visit(threads.state, parts, visits)
            found.append(visits)

    found: list[Any] = []
    at_once(callers, call)
    assert len(found) == 80 * callers
    for visits in found:
        assert_array_equal(visits, 1000)


def numbers(seed: int, *shape: int) -> Any:
    return numpy.random.default_rng(seed).normal(size=shape).astype("float32")


@given(st.integers(0, 70), st.integers(0, 70), st.integers(1, 20))
def test_matrix_times_vector(n: int, k: int, parts: int) -> None:
    """Right, and to the last bit the same in however many parts."""
    W, x = numbers(0, n, k), numbers(1, k)
    y, whole = numpy.full(n, numpy.nan, "float32"), numpy.full(n, numpy.nan, "float32")
    threads.matrix_times_vector(threads.state, threads.followers, parts, W, x, y)
    threads.matrix_times_vector(threads.state, threads.followers, 1, W, x, whole)
    assert_array_equal(y, whole)
    assert_allclose(y, W.astype("float64") @ x, atol=1e-5)


def test_a_row_times_a_matrix_however_it_lies_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    W, x = numbers(0, 200, 300), numbers(1, 1, 1, 300)
    expected = (x.astype("float64") @ W.T.astype("float64")).astype("float32")
    kept = W.copy()
    kept.flags.writeable = False
    misaligned = numpy.frombuffer(b"x" + W.tobytes(), "float32", offset=1).reshape(W.shape)
    every_other = numpy.repeat(x, 2, axis=-1)[..., ::2]
    taken = []
    run = backend._row_times_matrix
    monkeypatch.setattr(backend, "_row_times_matrix", lambda a, b: taken.append(a) or run(a, b))
    for ours, a, b in [
        (1, x, W.T),
        (1, x, kept.T),
        (1, x[0, 0], W.T),
        (0, x, numpy.ascontiguousarray(W.T)),
        (0, x, W.astype("f8").T),
        (0, x, misaligned.T),
        (0, every_other, W.T),
        (0, x[..., ::-1], W[:, ::-1].T),
    ]:
        taken.clear()
        y = backend.matrix_product(backend.NUMPY, a, b)
        assert len(taken) == ours
        assert y.shape == (*a.shape[:-1], 200)
        assert y.dtype == numpy.result_type(a, b)
        assert_allclose(y.reshape(-1), expected.reshape(-1), atol=2e-4)


def test_what_follows_a_matrix_is_fetched() -> None:
    """A worker asks for the matrix that came next the last time, also where its memory is no more."""
    state, followers = numpy.zeros_like(threads.state), numpy.zeros_like(threads.followers)
    first, second = numbers(0, 64, 64), numbers(1, 64, 64)
    y = numpy.empty(64, "float32")
    for W in (first, second, first):
        threads.matrix_times_vector(state, followers, 1, W, numbers(2, 64), y)
    assert state[threads.NEXT] == second.ctypes.data
    assert state[threads.STOP] == second.ctypes.data + second.nbytes
    state[threads.NEXT], state[threads.STOP] = 8, 1 << 20  # where no process has memory
    threads.serve(state, 0)
    assert state[threads.NEXT] >= state[threads.STOP]
    assert state[threads.AWAKE] == 0


def test_nan_and_infinity_reach_their_rows() -> None:
    W, x = numbers(0, 40, 30), numbers(1, 30)
    W[3, 4], W[17, 29] = numpy.nan, numpy.inf
    y = numpy.empty(40, "float32")
    threads.matrix_times_vector(threads.state, threads.followers, 8, W, x, y)
    assert numpy.isnan(y[3])
    assert numpy.isinf(y[17])
    assert numpy.isfinite(numpy.delete(y, [3, 17])).all()


def _in_child(queue: Any, W: Any, x: Any) -> None:
    queue.put(backend.matrix_product(backend.NUMPY, x, W.T))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning", "ignore:os.fork:RuntimeWarning")  # JAX's
def test_a_process_that_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "threads", lambda xp: 3)
    W, x = numbers(0, 200, 300), numbers(1, 1, 300)
    expected = backend.matrix_product(backend.NUMPY, x, W.T)  # the parent has its workers now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, W, x))
    child.start()
    assert_array_equal(queue.get(timeout=60), expected)
    child.join(timeout=60)
    assert child.exitcode == 0
