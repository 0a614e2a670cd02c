"""What the namespace adds to a call of NumPy's: every function of the standard, outside a graph, on arrays of 3 x 3."""

import statistics
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import array_api_compat.numpy
import numpy
import pytest

import minigrad as mg
from minigrad import backend

X = numpy.array([[1.1, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.5]])
U, N, B, Z = X / 10, numpy.array([[1, 2, 3]] * 3), X > 1.5, X + 1j * X  # for asin, integers, booleans, complex numbers
SYMMETRIC = X + X.T + 9 * numpy.eye(3)
V, I = X[0], numpy.array([2, 0, 1])  # noqa: E741

# By the standard's chapters: the arguments, and the functions that take them.
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any], str]]] = {
    "element-wise functions": [
        ((U,), {}, "abs acos asin asinh atan atanh ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan log"),
        ((U,), {}, "log10 log1p log2 negative positive real reciprocal round sign signbit sin sinh sqrt square tan"),
        ((U,), {}, "tanh trunc"),
        ((X,), {}, "acosh"),
        ((X, U), {}, "add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal"),
        ((X, U), {}, "logaddexp maximum minimum multiply nextafter not_equal pow remainder subtract"),
        ((N, N), {}, "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor"),
        ((B, B), {}, "logical_and logical_or logical_xor"),
        ((N,), {}, "bitwise_invert"),
        ((B,), {}, "logical_not"),
        ((X, 1.0, 2.0), {}, "clip"),
    ],
    "statistical, searching, sorting and utility functions": [
        ((X,), {}, "all any argmax argmin count_nonzero max mean min nonzero prod std sum var"),
        ((X,), {"axis": 1}, "all any argmax argmin argsort max mean min prod sort std sum var"),
        ((V,), {}, "argsort cumulative_prod cumulative_sum diff sort"),
        ((V, V), {}, "searchsorted"),
        ((B, X, U), {}, "where"),
        ((I, I), {}, "isin"),
        ((V,), {}, "unique_all unique_counts unique_inverse unique_values"),
    ],
    "creation, data types, manipulation and indexing": [
        (((3, 3),), {}, "empty ones zeros"),
        (((3, 3), 1.0), {}, "full"),
        ((3,), {}, "arange eye"),
        ((0.0, 1.0, 3), {}, "linspace"),
        ((X,), {}, "asarray empty_like flip ones_like tril triu unstack zeros_like"),
        ((X, 1.0), {}, "full_like"),
        ((X, numpy.float32), {}, "astype"),
        ((X, U), {}, "result_type broadcast_arrays"),
        ((numpy.float32, numpy.float64), {}, "can_cast"),
        ((numpy.float32,), {}, "finfo"),
        ((numpy.int32,), {}, "iinfo"),
        ((V, (2, 3)), {}, "broadcast_to"),
        (([X, U],), {}, "concat stack"),
        ((X,), {"axis": 0}, "expand_dims"),
        ((X[None],), {"axis": 0}, "squeeze"),
        ((X, 0, 1), {}, "moveaxis"),
        ((X, (1, 0)), {}, "permute_dims"),
        ((X, (9,)), {}, "reshape"),
        ((V, 2), {}, "repeat roll"),
        ((V, (2,)), {}, "tile"),
        ((V, V), {}, "meshgrid"),
        ((X, I), {"axis": 0}, "take"),
        ((V, I), {}, "take_along_axis"),
    ],
    "linear algebra": [
        ((X,), {}, "matrix_transpose linalg.diagonal linalg.matrix_norm linalg.pinv linalg.qr linalg.svd"),
        ((X,), {}, "linalg.matrix_rank linalg.svdvals linalg.trace linalg.vector_norm"),
        ((X, U), {}, "matmul tensordot vecdot linalg.cross"),
        ((SYMMETRIC,), {}, "linalg.cholesky linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.slogdet"),
        ((SYMMETRIC, X), {}, "linalg.solve"),
        ((X, 2), {}, "linalg.matrix_power"),
        ((V, V), {}, "linalg.outer"),
    ],
    "Fourier transforms": [
        ((Z,), {}, "fft.fft fft.fftn fft.fftshift fft.hfft fft.ifft fft.ifftn fft.ifftshift fft.irfft fft.irfftn"),
        ((X,), {}, "fft.ihfft fft.rfft fft.rfftn"),
        ((4,), {}, "fft.fftfreq fft.rfftfreq"),
    ],
}


def calls(chapter: str) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Each function's name, a call of ours and the same of NumPy's, or of array-api-compat's where NumPy has none."""
    for args, options, names in CALLS[chapter]:
        for name in names.split():
            theirs = find(numpy, name) or find(array_api_compat.numpy, name)
            # A partial calls both in the same way, with the arguments in their places.
            ours = partial(find(mg, name), *map(as_tensors, args), **options)
            yield (
                name + "".join(f"({key}={value})" for key, value in options.items()),
                ours,
                partial(theirs, *args, **options),
            )


def find(xp: Any, name: str) -> Any:
    for part in name.split("."):
        xp = getattr(xp, part, None)
    return xp


def as_tensors(x: Any) -> Any:
    if isinstance(x, list):
        return [mg.asarray(item) for item in x]
    return mg.asarray(x) if isinstance(x, numpy.ndarray) else x


@pytest.mark.skipif(backend.get_backend() != "numpy", reason="what is measured is the cost beside NumPy's")
@pytest.mark.parametrize("chapter", CALLS)
def test_cost_of_a_call(benchmark: Any, request: pytest.FixtureRequest, chapter: str) -> None:
    rounds, number = (9, 50) if request.config.getoption("quick") else (41, 100)
    costs = {}
    for name, ours, theirs in calls(chapter):
        times = [(timeit.timeit(ours, number=number), timeit.timeit(theirs, number=number)) for _ in range(rounds)]
        mine, others = map(statistics.median, zip(*times, strict=True))
        costs[name] = (mine - others) / number * 1e6
    benchmark.pedantic(lambda: None)  # the clock is above; pytest-benchmark carries the figures
    benchmark.extra_info.update(
        table="What the namespace adds to a call outside a graph, small arrays, NumPy",
        work=chapter,
        costs=costs,
        reach=1.5,
    )
