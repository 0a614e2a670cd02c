"""How a benchmark is made: ours and its peers in one process, in turn, after their results were compared.

``MINIGRAD_BACKEND`` decides where ours computes, ``--quick`` that each row takes a second instead of many. PyTorch has
as many threads as we have.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import threadpoolctl
import torch

import minigrad as mg
from minigrad import backend

THREADS = backend.threads(backend.NUMPY)
torch.set_num_threads(THREADS)

# How long each does the same without a clock before it is measured; --quick: a third. The threads of OpenBLAS and of
# OpenMP go on asking for work for a tenth of a second after a computation, and would take the time away from whoever
# comes next. (Waiting would do for that, but a virtual processor that has slept is slow for its first 20 ms.)
WARM_UP = 0.2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a second for each row, and only the smaller ones")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left out with --quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        chosen = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_report_header() -> list[str]:
    return [f"{name}: {value}" for name, value in machine().items()]


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    machine_info["described"] = machine()


def machine() -> dict[str, str]:
    """What a figure depends on besides the code."""
    with open("/proc/cpuinfo") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "?")
    blas = [
        f"{library['internal_api']} {library['version']}, kernel {library.get('architecture', '?')}"
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    ]
    import autograd
    import jax
    import numba

    versions = {"NumPy": numpy, "Numba": numba, "PyTorch": torch, "JAX": jax, "minigrad": mg}
    return {
        "backend": f"{backend.get_backend()} {backend.current().device or ''}".strip(),
        "processor": f"{cpu}, {THREADS} CPUs used of {os.cpu_count()}",
        "versions": ", ".join(f"{name} {module.__version__}" for name, module in versions.items())
        + f", HIPS autograd {getattr(autograd, '__version__', '')}".rstrip(),
        "BLAS": "; ".join(blas),
    }


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if backend.get_backend() == "cupy":
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        torch.cuda.synchronize()


def clock(f: Callable[[], Any]) -> float:
    synchronize()
    start = time.perf_counter()
    f()
    synchronize()
    return time.perf_counter() - start


@pytest.fixture
def compete(benchmark: Any, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Measure a row of the tables: ``compete("work", ours, {"PyTorch": f, …}, tolerance=…, reach=0.75)``.

    Every function returns its results, as anything that `as_numpy` takes; the first peer is the reference for their
    values and for the ratio. ``per`` divides the times that are shown.
    """
    quick = request.config.getoption("quick")
    seconds = 1.0 if quick else 7.0

    def run(
        work: str,
        ours: Callable[[], Any],
        peers: dict[str, Callable[[], Any]],
        tolerance: float | None,
        reach: float | None = None,
        table: str = "",
        per: int = 1,
    ) -> None:
        results = as_numpy(ours())
        for name, peer in peers.items():
            expected = as_numpy(peer())
            if tolerance is not None:
                for i, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
                    error = numpy.abs(mine - theirs).max() / max(numpy.abs(theirs).max(), 1e-30)
                    assert error <= tolerance, f"{name}: result {i} differs by {error:.1e}"
        del results, expected

        def warm_up(t: float) -> float:
            return max(t, WARM_UP / 3 if quick else WARM_UP) if t < 0.5 else 0.0

        once = {f: clock(f) for f in (ours, *peers.values())}
        rounds = int(min(max(seconds / sum(t + warm_up(t) for t in once.values()), 3 if quick else 7), 300))
        times: dict[str, list[float]] = {name: [] for name in peers}

        gc.collect()

        def warm(f: Callable[[], Any]) -> None:
            for _ in range(round(warm_up(once[f]) / once[f])):
                f()

        def setup() -> None:
            for name, peer in peers.items():
                warm(peer)
                times[name].append(clock(peer))
            warm(ours)

        benchmark.pedantic(lambda: (ours(), synchronize()), setup=setup, rounds=rounds)
        mine = list(benchmark.stats.stats.data)
        rows = {"minigrad": mine, **times}
        ratios = [a / b for a, b in zip(mine, times[next(iter(times))], strict=True)]
        benchmark.extra_info.update(
            work=work,
            table=table or request.node.name,
            reach=reach,
            rounds=rounds,
            per=per,
            medians={name: statistics.median(values) for name, values in rows.items()},
            minima={name: min(values) for name, values in rows.items()},
            ratio=statistics.median(mine) / statistics.median(times[next(iter(times))]),
            spread=statistics.quantiles(ratios, n=4)[::2],
        )

    return run


def as_numpy(results: Any) -> list[Any]:
    """Arrays of any library as NumPy arrays."""
    if not isinstance(results, list | tuple):
        results = [results]
    found = []
    for x in results:
        if isinstance(x, torch.Tensor):
            x = x.detach().cpu().numpy()
        elif type(x) is mg.Tensor:
            x = x.detach().numpy()
        found.append(numpy.array(x, dtype=numpy.float64))
    return found
