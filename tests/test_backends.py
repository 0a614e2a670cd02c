"""Backends: choosing one, in the process, a thread or a task; what is not installed; and that nothing is mixed."""

import asyncio
import os
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_array_equal

import minigrad as mg
from attention.__main__ import main
from minigrad import BackendError, backend, get_backend, set_backend, use_backend

BACKEND = backend.current().name
INSTALLED = [name for name in ("numpy", "array_api_strict", "torch", "jax") if backend.is_installed(name)]


def other() -> str:
    """A backend that is not the one under test, and is installed with the tests."""
    return "numpy" if BACKEND == "array_api_strict" else "array_api_strict"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MINIGRAD_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )


# ------------------------------------------------------------------------------------------------ choosing


@pytest.mark.parametrize("name", INSTALLED)
def test_use_backend(name: str) -> None:
    with use_backend(name):
        assert get_backend() == name
        x = mg.Tensor([1.0, 2.0], requires_grad=True)
        assert x.backend == name
        mg.sum(x * x).backward()
        assert x.grad is not None
        assert x.grad.backend == name
        assert x.grad.tolist() == [2, 4]
        with use_backend(BACKEND):
            assert get_backend() == BACKEND
        assert get_backend() == name
    assert get_backend() == BACKEND
    assert (x * 2).backend == name  # an operation follows its arrays


def test_use_backend_after_an_error() -> None:
    with pytest.raises(KeyError), use_backend(other()):
        raise KeyError
    assert get_backend() == BACKEND


def test_set_backend() -> None:
    before = backend._default
    try:
        set_backend(other())
        assert get_backend() == other()
        assert mg.zeros(2).backend == other()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(get_backend).result() == other()  # the process's
    finally:
        backend._default = before


def test_use_backend_holds_for_one_thread() -> None:
    with use_backend(other()), ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_backend).result() == BACKEND


def test_use_backend_holds_for_one_task() -> None:
    async def ask(go: asyncio.Event) -> str:
        await go.wait()
        return get_backend()

    async def main() -> str:
        go = asyncio.Event()
        task = asyncio.create_task(ask(go))
        with use_backend(other()):
            go.set()
            return await task

    assert asyncio.run(main()) == BACKEND


def test_a_device_by_name() -> None:
    with use_backend("array_api_strict", "device1"):
        x = mg.Tensor([1.0])
        assert "device1" in str(x.device)
        assert "device1" in str(mg.zeros(2).device)
        assert "device2" in str(mg.to_device(x, "device2").device)
        with pytest.raises(RuntimeError, match="backend 'array_api_strict' has no device 'gpu'; it has: cpu, device1"):
            mg.to_device(x, "gpu")
    with (
        pytest.raises(BackendError, match="backend 'array_api_strict' has no device 'gpu'"),
        use_backend("array_api_strict", "gpu"),
    ):
        pass
    with pytest.raises(BackendError, match="backend 'numpy' cannot use device 'gpu'"), use_backend("numpy", "gpu"):
        pass


def test_gradients_come_back_over_devices() -> None:
    with use_backend("array_api_strict"):
        x = mg.Tensor([1.0, 2.0], requires_grad=True)
        there = mg.to_device(x * 3, "device1")
        assert "device1" in str(there.device)
        mg.sum(there * there).backward()
        assert x.grad is not None
        assert x.grad.device == x.device
        assert x.grad.tolist() == [18, 36]


# ------------------------------------------------------------------------------------------------ mistakes


def test_an_unknown_name() -> None:
    message = "unknown backend 'tensorflow'; known: numpy, cupy, torch, jax, array_api_strict"
    with pytest.raises(BackendError, match=message):
        set_backend("tensorflow")
    with pytest.raises(BackendError, match=message), use_backend("tensorflow"):
        pass
    assert get_backend() == BACKEND


@pytest.mark.parametrize(
    ("name", "extra"), [("cupy", "cupy"), ("torch", "torch"), ("jax", "jax"), ("array_api_strict", "test")]
)
def test_not_installed(monkeypatch: pytest.MonkeyPatch, name: str, extra: str) -> None:
    monkeypatch.setattr(backend, "is_installed", lambda name: False)
    message = rf"backend '{name}' is not installed; install it with: pip install -e '\.\[{extra}\]'"
    with pytest.raises(BackendError, match=message):
        backend.load(name)


@pytest.mark.parametrize("failure", ["error", "none"])
def test_cupy_without_a_gpu(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """CuPy installs on a machine without a GPU and fails at the first array; this says so before."""

    def count() -> int:
        if failure == "error":
            raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected\nand a second line")
        return 0

    cupy: Any = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=count))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(backend, "is_installed", lambda name: True)
    with (
        pytest.raises(BackendError, match=r"backend 'cupy' cannot be used: .*device") as caught,
        use_backend("cupy"),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ImportError(""), "ImportError"), (OSError("libtorch.so: cannot open\nmore"), "libtorch.so: cannot open")],
)
@pytest.mark.parametrize("name", ["cupy", "torch", "jax", "array_api_strict"])
def test_a_library_that_is_there_but_broken(
    monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, reason: str
) -> None:
    def broken(name: str) -> Any:
        raise error

    monkeypatch.setattr(backend, "is_installed", lambda name: True)
    monkeypatch.setattr(backend.importlib, "import_module", broken)
    with pytest.raises(BackendError) as caught:
        backend.load(name)
    assert str(caught.value) == f"backend '{name}' cannot be used: {reason}"


def test_another_module_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setattr(backend, "is_installed", lambda name: True)
    with pytest.raises(BackendError, match="backend 'jax' cannot be used: module 'jax' has no attribute 'config'"):
        backend.load("jax")


@pytest.mark.skipif(not backend.is_installed("torch"), reason="a device of PyTorch")
def test_a_device_without_values() -> None:
    with pytest.raises(BackendError, match="backend 'torch' cannot use device 'meta': "), use_backend("torch", "meta"):
        pass


def test_arrays_of_two_libraries() -> None:
    here = tensor([1.0, 2.0], requires_grad=True)
    with use_backend(other()):
        there = mg.Tensor([1.0, 2.0])
    for combine in (lambda: here * there, lambda: mg.where(here > 0, here, there), lambda: mg.concat([here, there])):
        with pytest.raises(TypeError, match=r"arrays of two libraries cannot be combined: .*float64") as caught:
            combine()
        assert BACKEND in str(caught.value)
        assert other() in str(caught.value)
    with pytest.raises(TypeError, match="expected a gradient like float64"):
        (here * 2).backward(there)


# ------------------------------------------------------------------------------------------------ a process of its own


def test_environment_variables() -> None:
    show = "import minigrad as mg; x = mg.zeros(2); print(mg.get_backend(), x.backend, x.device)"
    assert python(show).stdout.split() == ["numpy", "numpy", "cpu"]
    done = python(show, MINIGRAD_BACKEND="array_api_strict", MINIGRAD_DEVICE="device1")
    assert done.stdout.startswith("array_api_strict array_api_strict")
    assert "device1" in done.stdout
    assert python(show, MINIGRAD_BACKEND="").stdout.split()[0] == "numpy"
    failed = python(show, MINIGRAD_BACKEND="fortran")
    assert failed.returncode == 1
    assert "BackendError: unknown backend 'fortran'; known: numpy, cupy" in failed.stderr
    failed = python(show, MINIGRAD_DEVICE="gpu")
    assert "BackendError: backend 'numpy' cannot use device 'gpu'" in failed.stderr


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = """
import sys
import minigrad as mg
x = mg.Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
loss = mg.sum(mg.tanh(x @ x) ** 2)
heavy = {"torch", "jax", "cupy", "array_api_strict", "array_api_compat.numpy", "numpy.random", "scipy"}
before = sorted(heavy & set(sys.modules))
loss.backward()
print(before, sorted(heavy & set(sys.modules)))
"""
    done = python(code)
    assert done.stderr == ""
    assert done.stdout.strip() == "[] []"


def test_two_threads_find_the_default_together() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import minigrad as mg
with ThreadPoolExecutor(8) as pool:
    print(len({id(b) for b in pool.map(lambda _: mg.backend.current(), range(8))}))
"""
    assert python(code).stdout.strip() == "1"


# ------------------------------------------------------------------------------------------------ beyond the standard


def test_names() -> None:
    for name in INSTALLED:
        xp = backend.load(name)
        assert backend.name_of(xp) == name
        with use_backend(name):
            array = mg.zeros(2)._data
        assert backend.namespace_of(array) is xp
    assert backend.namespace_of(1.0) is None
    assert backend.namespace_of([1.0]) is None
    assert backend.namespace_of(numpy.float64(1.0)) is None
    assert backend.dtype_name(mg.float32) == "float32"


STANDARD_DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
def test_dtypes(dtype: str) -> None:
    x = mg.zeros(2, dtype=getattr(mg, dtype))
    assert backend.dtype_name(x.dtype) == dtype
    assert value(x).dtype.name == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_can_be_read(dtype: str) -> None:
    if not hasattr(backend.current().xp, dtype):
        pytest.skip(f"{BACKEND} has no {dtype}")
    x = mg.Tensor([1.5, -2.0], dtype=dtype)
    assert backend.dtype_name(x.dtype) == dtype
    assert x.tolist() == [1.5, -2.0]
    assert "1.5" in repr(x)
    assert x[0].item() == 1.5


def test_the_command_line_trains_and_uses_what_it_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"{i}\t{i % 10}\n" for i in range(20)))
    assert main(("train", "--pairs", "pairs.tsv", "--steps", "2", "--width", "8", "--layers", "1", "--batch", "2")) == 0
    assert main(("translate", "--checkpoint", "runs/pairs", "7")) == 0
    assert "parameters, checkpoint in runs/pairs\n" in capsys.readouterr().out


def test_unknown_dtypes() -> None:
    with pytest.raises(TypeError, match=f"backend '{BACKEND}' has no dtype 'float7'"):
        mg.zeros(2, dtype="float7")
    with pytest.raises(AttributeError, match="float7"):
        _ = mg.float7


def test_there_and_back() -> None:
    a = numpy.arange(6.0).reshape(2, 3)
    assert_array_equal(value(backend.from_numpy(a)), a)
    assert type(backend.to_numpy(backend.from_numpy(a))) is numpy.ndarray


@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_add(axis: int) -> None:
    """Against NumPy's, with repeated, negative and no indices."""
    rng = numpy.random.default_rng(0)
    for indices in (rng.integers(-4, 4, 100), numpy.array([2]), numpy.zeros(0, numpy.int64)):
        values = rng.normal(size=(4, 4)[:axis] + indices.shape + (4, 4)[axis + 1 :])
        expected = numpy.zeros((4, 4))
        numpy.add.at(expected, (slice(None),) * axis + (indices,), values)
        found = mg.indexing.add_along(tensor(values), tensor(indices), (4, 4), axis)
        numpy.testing.assert_allclose(value(found), expected, rtol=1e-13, atol=1e-14)


def test_scatter_add_keeps_nan_where_it_is() -> None:
    found = mg.indexing.add_along(tensor([numpy.nan, 1.0, 2.0]), tensor([0, 2, 2]), (3,), 0)
    assert_array_equal(value(found), [numpy.nan, 0, 3])


# ------------------------------------------------------------------------------------------------ NumPy's own


def test_the_mean_of_float16_is_taken_in_float32() -> None:
    assert backend.NUMPY.mean(numpy.full(1000, 100, dtype="float16")) == 100  # the sum would be inf


def test_masked_arrays_act_as_in_numpy() -> None:
    x = numpy.ma.array([[1.0, 2.0], [8.0, 4.0]], mask=[[False, False], [True, False]])
    assert mg.sum(x).item() == 7
    assert mg.max(x).item() == 4
    assert mg.min(-x, axis=0).tolist() == [-1, -4]
    assert mg.mean(x).item() == 7 / 3
    assert mg.clip(x, 1.5, 3).data.tolist() == [[1.5, 2], [None, 3]]
    assert mg.take(x, numpy.asarray([1]), axis=0).data.tolist() == [[None, 4]]
    assert mg.sort(x).data.tolist() == [[1, 2], [4, None]]  # what is masked comes last
    assert mg.sort(x, descending=True).data.tolist() == [[2, 1], [None, 4]]
    assert mg.argsort(x).tolist() == [[0, 1], [1, 0]]


def test_a_rule_may_give_a_scalar_of_numpy() -> None:
    @mg.primitive
    def double(xp: Any, x: Any, /) -> Any:
        return xp.multiply(x, 2.0)

    double.vjp(x=lambda g: numpy.float64(2.0))
    with use_backend("numpy"):
        assert mg.grad(double)(3.0).item() == 2
        assert mg.grad(mg.grad(double))(3.0).item() == 0


def test_errors_name_numpys_functions() -> None:
    @mg.primitive
    def total(xp: Any, x: Any, /) -> Any:
        return xp.sum(x, 0)

    with pytest.raises(TypeError, match=r"^total: sum\(\) takes 1 positional argument but 2 were given \(given x: "):
        total(numpy.ones(2))
