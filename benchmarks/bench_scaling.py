"""How attention grows with the length: time of forward and backward, and the memory it needs at its peak."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_attention import arrays, ours, pytorch

from minigrad import backend

LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384]


def up_to(longest: int) -> list[Any]:
    """The lengths, those beyond ``longest`` left out with --quick."""
    return [pytest.param(T, marks=[pytest.mark.long] if longest < T else []) for T in LENGTHS]


D = 64


@pytest.mark.parametrize("T", up_to(2048))
def test_time(compete: Any, T: int) -> None:
    *xs, g = arrays((1, 1, T, D))
    table = "Time against the length, one head of width 64"
    compete(f"T = {T}", ours(xs, g), {"PyTorch SDPA": pytorch(xs, g)}, tolerance=1e-3, table=table)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.skipif(backend.get_backend() == "cupy", reason="it is the memory of the host that is measured")
@pytest.mark.parametrize("T", up_to(256))
def test_memory(benchmark: Any, T: int) -> None:
    def measure(which: str) -> float:
        command = [sys.executable, __file__, which, str(T)]
        return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    peers = {"minigrad": measure("ours"), "PyTorch SDPA": measure("pytorch")}
    benchmark.pedantic(lambda: None, rounds=1)
    benchmark.extra_info.update(
        work=f"T = {T}",
        table="Memory above inputs, output and gradients, one head of width 64",
        reach=24.0 if T == 16384 else None,
        mebibytes=peers,
    )


def peak_of(which: str, T: int) -> float:
    """MiB that forward and backward need at most beyond inputs, output and gradients, in a process of its own."""
    implementation = {"ours": ours, "pytorch": pytorch}[which]
    *small, g = arrays((1, 1, 512, D))
    implementation(small, g)()  # libraries and threads are there
    *xs, g = arrays((1, 1, T, D))
    run = implementation(xs, g)
    Path("/proc/self/clear_refs").write_text("5")  # from now on, the highest
    before = _status("VmRSS")
    results = run()
    peak = _status("VmHWM")
    assert len(results) == 4
    return (peak - before) / 1024 - 4 * T * D * 4 / 2**20


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


if __name__ == "__main__":
    print(json.dumps(peak_of(sys.argv[1], int(sys.argv[2]))))
