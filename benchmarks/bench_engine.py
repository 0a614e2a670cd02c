"""What the engine costs: a chain of 1,000 operations on a scalar, where the arithmetic itself is nothing."""

import pytest

import minigrad as mg

OPERATIONS = 1000


def chain(x, operation):
    y = x
    for _ in range(OPERATIONS):
        y = operation(y)
    y.backward()


@pytest.mark.parametrize("name", ["add", "multiply", "sin"])
def test_chain_of_scalars(benchmark, name):
    operation = {"add": lambda y: y + 1.0, "multiply": lambda y: y * 1.0001, "sin": mg.sin}[name]
    benchmark.extra_info["operations"] = OPERATIONS
    benchmark(lambda: chain(mg.Tensor(1.0, requires_grad=True), operation))


@pytest.mark.parametrize("name", ["add", "multiply", "sin"])
def test_chain_of_scalars_in_pytorch(benchmark, name):
    torch = pytest.importorskip("torch", reason="the peer is optional: pip install -e '.[peers]'")
    operation = {"add": lambda y: y + 1.0, "multiply": lambda y: y * 1.0001, "sin": torch.sin}[name]
    benchmark.extra_info["operations"] = OPERATIONS
    benchmark(lambda: chain(torch.tensor(1.0, dtype=torch.float64, requires_grad=True), operation))
