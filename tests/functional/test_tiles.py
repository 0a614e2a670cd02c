"""Tiles: how a problem is cut, and on how many threads, never changes a result beyond rounding."""

import itertools
import math
import multiprocessing
import threading
import time
from queue import SimpleQueue
from typing import Any

import numpy
import pytest
import threadpoolctl
from checks import tensor, value
from composed import value_and_gradients
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import attention.functional as F
import minigrad as mg
from attention.functional import _tiles
from minigrad import backend
from minigrad.random import Generator

WRITES = backend.tile_size(backend.current().xp) is not None
needs_tiles = pytest.mark.skipif(not WRITES, reason="JAX's arrays cannot be written to: there is always one tile")


def cut_into(size: int | None, threads: int, f: Any) -> Any:
    """f() with tiles of ``size`` numbers (None: one tile) and so many threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "tile_size", lambda xp: None if xp is mg else size)
        patch.setattr(backend, "threads", lambda xp: threads)
        return f()


@st.composite
def problems(draw: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arrays and options of `scaled_dot_product_attention`."""
    lengths = st.integers(0, 9)
    L, S, E, Ev = draw(lengths), draw(lengths), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    gqa = draw(st.booleans())
    heads, groups, batch = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    leading = [(batch, heads * groups if gqa else heads), (batch, heads), (batch, heads)]
    if not gqa:  # any of the leading axes may be left out or broadcast
        leading = [draw(st.sampled_from([(batch, heads), (1, heads), (batch, 1), (heads,), ()])) for _ in "qkv"]
    rng = numpy.random.default_rng(draw(st.integers(0, 99)))
    shapes = [(*leading[0], L, E), (*leading[1], S, E), (*leading[2], S, Ev)]
    arrays = [rng.normal(size=shape) for shape in shapes]
    options: dict[str, Any] = {"is_causal": draw(st.booleans()), "enable_gqa": gqa}
    if options["is_causal"]:
        options["window"] = draw(st.sampled_from([None, 1, 2, 3, 9]))
    kind = draw(st.sampled_from(["none", "booleans", "bias", "bias with gradient"]))
    if kind != "none":
        H = leading[0] if gqa else numpy.broadcast_shapes(*leading[:2])
        shape = tuple(draw(st.sampled_from([1, n])) for n in (*H, L, S))
        allowed = rng.random(shape) < 0.7
        if kind == "booleans":
            options["attn_mask"] = tensor(allowed)
        else:
            bias = numpy.where(allowed, rng.normal(size=shape), -math.inf)
            if kind == "bias":
                options["attn_mask"] = tensor(bias)
            else:
                arrays.append(bias)
    if draw(st.booleans()):
        options["dropout_p"] = 0.3
    return arrays, options


@needs_tiles
@given(problems(), st.sampled_from([1, 4, 6, 16, 50]), st.integers(1, 4))
def test_any_problem(problem: Any, size: int, threads: int) -> None:
    arrays, options = problem

    def f() -> Any:
        return value_and_gradients(
            lambda *xs: F.scaled_dot_product_attention(*xs, generator=Generator(3), **options), arrays
        )

    y, gradients = cut_into(size, threads, f)
    expected, whole = cut_into(None, 1, f)
    assert_allclose(y, expected, rtol=1e-11, atol=1e-13)
    for found, right in zip(gradients, whole, strict=True):
        assert_allclose(found, right, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(backend.get_backend() != "numpy", reason="tiles of a real size are NumPy's")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(20, 130, 16), (1, 1, 700, 8), (2, 5, 257, 8), (3, 1000, 4)])
def test_real_tiles(shape: tuple[int, ...], is_causal: bool) -> None:
    rng = numpy.random.default_rng(0)
    arrays = [rng.normal(size=shape) for _ in "qkv"]
    assert _tiles.tiles(backend.NUMPY, *arrays, is_causal) is not None

    def f() -> Any:
        return value_and_gradients(lambda *xs: F.scaled_dot_product_attention(*xs, is_causal=is_causal), arrays)

    y, gradients = f()
    expected, whole = cut_into(None, 1, f)
    assert_allclose(y, expected, rtol=1e-10, atol=1e-13)
    for found, right in zip(gradients, whole, strict=True):
        assert_allclose(found, right, rtol=1e-9, atol=1e-12)


@needs_tiles
@given(
    st.lists(st.integers(1, 5), max_size=3), st.integers(1, 40), st.integers(1, 40),
    st.integers(1, 300), st.integers(1, 5),
)  # fmt: skip
def test_every_score_is_in_exactly_one_tile(heads: list[int], L: int, S: int, size: int, threads: int) -> None:
    q, k = numpy.zeros((*heads, L, 1)), numpy.zeros((*heads, S, 1))
    tiling = cut_into(size, threads, lambda: _tiles.tiles(backend.NUMPY, q, k, k, False))
    if tiling is None:
        assert q.size * S <= size // 2
        return
    assert len(tiling.lanes) <= threads or not tiling.splits_heads
    count = numpy.zeros((*heads, L, S), dtype=int)
    lanes_of_a_head: dict[tuple[int, ...], set[int]] = {}
    for i, lane in enumerate(tiling.lanes):
        assert lane
        for part, _ in lane:
            for head in itertools.product(*[range(p.start, p.stop) for p in part]):
                lanes_of_a_head.setdefault(head, set()).add(i)
    assert tiling.splits_heads or all(len(lanes) == 1 for lanes in lanes_of_a_head.values())
    for lane in tiling.lanes:
        for part, rows in lane:
            for keys in tiling.keys(rows, False, None):
                tile = count[(*part, rows, keys)]
                assert tile.size <= size or tile.shape[-2] == tile.size
                tile += 1
    assert_array_equal(count, 1)


def test_the_future_does_not_reach_the_past_in_another_tile() -> None:
    rng = numpy.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 12, 3)) for _ in "qkv")

    def f() -> Any:
        return value(F.scaled_dot_product_attention(tensor(q), tensor(k), tensor(v), is_causal=True))

    expected = cut_into(20, 2, f) if WRITES else f()
    k[:, 7:], v[:, 7:] = 1e3, -1e3
    found = cut_into(20, 2, f) if WRITES else f()
    assert_array_equal(found[:, :7], expected[:, :7])
    assert numpy.all(found[:, 7:] != expected[:, 7:])


# ------------------------------------------------------------------------------------------------ threads


def test_threads_are_as_many_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.threads(mg) == 1
    monkeypatch.setenv("MINIGRAD_THREADS", "3")
    assert backend._cpu_threads.__wrapped__() == 3  # which is asked once
    for bad in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("MINIGRAD_THREADS", bad)
        with pytest.raises(backend.BackendError, match="MINIGRAD_THREADS: expected a whole number from 1 on, got"):
            backend._cpu_threads.__wrapped__()


def test_in_parallel_runs_each_part_once_and_passes_errors_on() -> None:
    for n in (1, 2, 5):
        done: list[int] = []
        backend.in_parallel(done.append, n)
        assert sorted(done) == list(range(n))

        def fails(i: int, n: int = n) -> None:
            if i == n - 1:
                raise ZeroDivisionError("the last")

        with pytest.raises(ZeroDivisionError, match="the last"):
            backend.in_parallel(fails, n)


@pytest.mark.parametrize("pause", [0.0, 0.02])  # workers are awake in between, or asleep
@pytest.mark.parametrize("awake", [True, False])
def test_in_parallel_from_several_threads(pause: float, awake: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not awake:
        monkeypatch.setattr(backend, "_threads", lambda: None)
    done: list[tuple[int, int]] = []

    def calls(caller: int) -> None:
        for _ in range(5):
            backend.in_parallel(lambda i: done.append((caller, i)), 3)
            time.sleep(pause)

    callers = [threading.Thread(target=calls, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(done) == sorted([(caller, i) for caller in range(4) for i in range(3)] * 5)


def test_waiting_awake_ends() -> None:
    awake = backend._threads()
    if awake is None:
        pytest.skip("to wait awake takes a compiler")
    state = numpy.asarray([3, 0])
    assert awake.until(state, 0, 3, 10**12) == 3  # at once
    assert awake.until(state, 1, 1, 100) == 0  # after so many looks
    other = threading.Timer(0.05, awake.count, args=(state, 1))
    other.start()
    assert awake.until(state, 1, 1, 10**12) == 1  # when another thread has counted
    other.join()


def test_nobody_waits_for_a_thread_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does all parts itself where no other thread has begun, and these then find nothing left."""
    monkeypatch.setattr(backend, "threads", lambda xp: 3)
    monkeypatch.setattr(backend, "_start_workers", lambda n: None)
    monkeypatch.setattr(backend, "_jobs", SimpleQueue())
    done: list[tuple[int, int]] = []
    backend.in_parallel(lambda i: done.append((i, threading.get_ident())), 4)
    assert done == [(i, threading.get_ident()) for i in range(4)]
    while not backend._jobs.empty():
        context, parts = backend._jobs.get()
        context.run(parts.help)
    assert len(done) == 4


def test_after_an_error_no_part_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "threads", lambda xp: 1)
    done: list[int] = []

    def fails(i: int) -> None:
        done.append(i)
        if i == 1:
            raise ZeroDivisionError("the second")

    with pytest.raises(ZeroDivisionError, match="the second"):
        backend.in_parallel(fails, 5)
    assert done == [0, 1]


def test_in_parallel_has_the_callers_errstate() -> None:
    def divides(i: int) -> None:
        numpy.ones(2) / numpy.zeros(2)

    with numpy.errstate(divide="raise"), pytest.raises(FloatingPointError):
        backend.in_parallel(divides, 3)


def test_matrix_products_use_one_thread_inside_and_as_many_as_before_outside() -> None:
    libraries = backend._blas_libraries()
    before = [library.num_threads for library in libraries]
    seen: list[list[int]] = []
    with backend.blas_threads(2):
        backend.in_parallel(lambda i: seen.append([library.num_threads for library in libraries]), 3)
        assert [library.num_threads for library in libraries] == [2] * len(libraries)
    assert seen == [[1] * len(libraries)] * 3
    assert [library.num_threads for library in libraries] == before
    with threadpoolctl.threadpool_limits(3, user_api="blas"):  # somebody else's choice, made later
        backend.in_parallel(lambda i: None, 2)
        assert [library.num_threads for library in libraries] == [3] * len(libraries)


@pytest.mark.skipif(backend.get_backend() != "numpy", reason="other libraries have threads of their own")
@given(st.integers(0, 40), st.integers(0, 5), st.integers(0, 5), st.integers(1, 4), st.booleans())
def test_matrix_product(n: int, k: int, m: int, threads: int, transposed: bool) -> None:
    rng = numpy.random.default_rng(0)
    a = rng.normal(size=(k, n)).T if transposed else rng.normal(size=(n, k))
    b = rng.normal(size=(k, m))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "threads", lambda xp: threads)
        patch.setattr(backend, "is_small", lambda xp, multiplications: False)
        assert_allclose(backend.matrix_product(backend.NUMPY, a, b), a @ b, rtol=1e-13, atol=1e-15)


def test_the_number_of_threads_does_not_change_a_step_of_an_optimizer() -> None:
    def step(threads: int) -> list[Any]:
        rng = numpy.random.default_rng(0)
        parameters = [tensor(rng.normal(size=shape), requires_grad=True) for shape in ((3,), (2, 5), (4, 4), ())]
        optimizer = mg.optim.AdamW(parameters, lr=0.1)
        for _ in range(2):
            for p in parameters:
                p.grad = tensor(rng.normal(size=p.shape))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(backend, "threads", lambda xp: threads)
                optimizer.step()
        return [value(p) for p in parameters]

    for found, expected in zip(step(3), step(1), strict=True):
        assert_array_equal(found, expected)


def _attend(seed: int) -> Any:
    rng = numpy.random.default_rng(seed)
    arrays = [rng.normal(size=(4, 40, 8)) for _ in "qkv"]
    return value_and_gradients(lambda *xs: F.scaled_dot_product_attention(*xs, is_causal=True), arrays)


@needs_tiles
def test_several_threads_of_the_users_own() -> None:
    expected = cut_into(None, 1, lambda: [_attend(i) for i in range(4)])
    found: list[Any] = [None] * 4

    def run(i: int) -> None:
        found[i] = _attend(i)

    def all_at_once() -> None:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    cut_into(100, 3, all_at_once)
    for (y, gradients), (right, whole) in zip(found, expected, strict=True):
        assert_allclose(y, right, rtol=1e-11)
        for one, other in zip(gradients, whole, strict=True):
            assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def _in_child(queue: Any) -> None:
    queue.put(cut_into(100, 3, lambda: _attend(0)[0]))


@pytest.mark.skipif(
    backend.get_backend() != "numpy" or "fork" not in multiprocessing.get_all_start_methods(),
    reason="threads and forking concern NumPy, where the system can fork",
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning", "ignore:os.fork:RuntimeWarning")  # JAX's
def test_a_process_that_forked() -> None:
    expected = cut_into(100, 3, lambda: _attend(0)[0])  # the parent has its threads now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert_array_equal(queue.get(timeout=60), expected)
    child.join(timeout=60)
    assert child.exitcode == 0


# ------------------------------------------------------------------------------------------------ rows

ROWS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "layer_norm": (F.layer_norm, [(3, 7, 5), (5,), (5,)]),
    "layer_norm of rows": (F.layer_norm, [(21, 5)]),
    "rms_norm": (F.rms_norm, [(3, 7, 5), (5,)]),
    "silu": (F.silu, [(3, 7, 5)]),
    "gelu": (F.gelu, [(105,)]),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), [(3, 7, 5)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, tensor(numpy.arange(21) % 5), ignore_index=2), [(21, 5)]),
    "cross_entropy of each": (
        lambda x: F.cross_entropy(x, tensor(numpy.arange(21) % 5), reduction="none", label_smoothing=0.1),
        [(21, 5)],
    ),
}


@needs_tiles
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("size", [8, 40, 256])
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_of_rows(name: str, size: int, threads: int) -> None:
    f, shapes = ROWS[name]
    rng = numpy.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in shapes]
    y, gradients = cut_into(size, threads, lambda: value_and_gradients(f, arrays))
    expected, whole = cut_into(None, 1, lambda: value_and_gradients(f, arrays))
    assert_allclose(y, expected, rtol=1e-13)
    for found, right in zip(gradients, whole, strict=True):
        assert_allclose(found, right, rtol=1e-12, atol=1e-14)
