"""Tensors and the world: DLPack, NumPy, pickles, copies, and Python's own protocols."""

import copy
import importlib
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_array_equal

import minigrad as mg
from attention import SelfAttention
from minigrad import backend

CPU_ONLY = pytest.mark.skipif(
    backend.current().device is not None or mg.get_backend() == "cupy", reason="NumPy shares memory with the CPU alone"
)

# ------------------------------------------------------------------------------------------------ DLPack


@CPU_ONLY
def test_numpy_takes_a_tensor_without_a_copy() -> None:
    x = tensor([1.0, 2.0, 3.0])
    array = numpy.from_dlpack(x)  # type: ignore[arg-type]
    assert_array_equal(array, [1, 2, 3])
    if mg.get_backend() != "jax":  # whose arrays cannot be written to
        x[0] = 10.0
        assert_array_equal(array, [10, 2, 3])


def test_from_dlpack_shares_memory() -> None:
    x = tensor([1.0, 2.0, 3.0])
    y = mg.from_dlpack(x)
    assert y.backend == x.backend
    assert_array_equal(value(y), [1, 2, 3])
    if mg.get_backend() != "jax":
        x[0] = 10.0
        assert_array_equal(value(y), [10, 2, 3])


def test_a_pending_backward_pass_sees_through_from_dlpack() -> None:
    x = tensor([1.0, 2.0, 3.0])
    leaf = tensor([1.0, 1.0, 1.0], requires_grad=True)
    out = mg.sum(leaf * x)
    with pytest.raises(RuntimeError, match="would change values that `multiply` needs"):
        mg.from_dlpack(x)[0] = 10.0
    out.backward()
    assert_array_equal(value(leaf.grad), [1, 2, 3])


def test_dlpack_is_no_way_out_of_a_graph() -> None:
    x = tensor([1.0], requires_grad=True)
    for y in (x, x * 2):
        with pytest.raises(RuntimeError, match=r"cannot be exported, as its gradient would be lost: detach\(\) first"):
            mg.from_dlpack(y)
    assert_array_equal(value(mg.from_dlpack((x * 2).detach())), [2])
    assert x.__dlpack_device__() == x.detach().__dlpack_device__()


def _numpy() -> tuple[Any, Any, Callable[..., Any]]:
    array = numpy.array([1.0, 2.0, 3.0])
    return array, numpy, numpy.asarray


def _torch() -> tuple[Any, Any, Callable[..., Any]]:
    torch = importlib.import_module("torch")
    return torch.tensor([1.0, 2.0, 3.0]), torch, lambda x: x.numpy()


def _jax() -> tuple[Any, Any, Callable[..., Any]]:
    jnp = backend.load("jax")
    return jnp.asarray([1.0, 2.0, 3.0]), jnp, numpy.asarray


LIBRARIES = [
    pytest.param("numpy", _numpy),
    pytest.param("torch", _torch, marks=pytest.mark.peers),
    pytest.param("jax", _jax, marks=pytest.mark.peers),
]


@pytest.mark.parametrize(("name", "library"), LIBRARIES)
def test_arrays_come_in_without_a_copy(name: str, library: Callable[[], Any]) -> None:
    array, _, host = library()
    with mg.use_backend(name):
        for x in (mg.from_dlpack(array), mg.asarray(array)):
            assert x.backend == name
            assert_array_equal(value(x), [1, 2, 3])
            assert numpy.shares_memory(host(array), host(x._data))
            if name != "jax":
                array[0] = 10.0
                assert_array_equal(value(x), [10, 2, 3])
                x[0] = 1.0
                assert_array_equal(host(array), [1, 2, 3])


@pytest.mark.parametrize(("name", "library"), LIBRARIES)
def test_tensors_go_out_without_a_copy(name: str, library: Callable[[], Any]) -> None:
    array, xp, host = library()
    with mg.use_backend(name):
        x = mg.asarray(array)
        out = xp.from_dlpack(x)
        assert type(out) is type(array)
        assert numpy.shares_memory(host(out), host(array))
        if name != "jax":
            x[0] = 10.0
            assert_array_equal(host(out), [10, 2, 3])
            out[1] = 20.0
            assert_array_equal(value(x), [10, 20, 3])


@pytest.mark.peers
@pytest.mark.parametrize("library", [_torch, _jax])
def test_from_one_library_into_another_without_a_copy(library: Callable[[], Any]) -> None:
    array, _, host = library()
    x = mg.from_dlpack(array)
    assert x.backend == "numpy"
    assert numpy.shares_memory(x.numpy(), host(array))
    if library is _jax:
        with pytest.raises(ValueError, match="read-only"):  # as JAX's arrays are
            x[0] = 1.0


@pytest.mark.peers
@pytest.mark.parametrize("library", [_torch, _jax])
def test_another_library_takes_a_numpy_tensor_without_a_copy(library: Callable[[], Any]) -> None:
    _, xp, host = library()
    room = numpy.zeros(1024, dtype=numpy.uint8)
    start = -room.ctypes.data % 64  # JAX copies what does not start at a multiple of 64 bytes
    x = mg.asarray(room[start : start + 512].view(numpy.float64))
    assert numpy.shares_memory(host(xp.from_dlpack(x)), room)


@pytest.mark.peers
def test_memory_that_a_pending_backward_pass_needs_goes_out_read_only() -> None:
    _, jnp, _ = _jax()
    x = mg.asarray(numpy.array([1.0, 2.0]))
    loss = mg.sum(x * mg.asarray([3.0, 4.0]))  # no graph: nothing is pending
    assert numpy.from_dlpack(x).flags.writeable  # type: ignore[arg-type]
    loss = mg.sum(x * mg.Tensor([3.0, 4.0], requires_grad=True))
    assert not numpy.from_dlpack(x).flags.writeable  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="through from_dlpack would change values that `multiply` needs"):
        jnp.from_dlpack(x)  # JAX asks for memory in a version of DLPack that knows no read-only
    loss.backward()
    assert_array_equal(value(jnp.from_dlpack(x)), [1, 2])


# ------------------------------------------------------------------------------------------------ NumPy


def test_numpy_outside_of_a_graph_and_inside() -> None:
    x = tensor([[1.0, 2.0]])
    assert_array_equal(numpy.asarray(x), [[1, 2]])
    assert numpy.asarray(x, dtype="float32").dtype == numpy.float32
    copied = numpy.array(x)
    x[0, 0] = 5.0
    assert_array_equal(copied, [[1, 2]])
    for y in (tensor([1.0], requires_grad=True), tensor([1.0], requires_grad=True) * 2):
        with pytest.raises(RuntimeError, match=r"a Tensor in a graph is no NumPy array, .* detach\(\) first"):
            numpy.asarray(y)
        assert numpy.asarray(y.detach()).shape == (1,)


# ------------------------------------------------------------------------------------------------ pickles and copies


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


WAYS = pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled], ids=lambda way: way.__name__)


@WAYS
def test_constants_and_leaves_are_copied(way: Callable[[Any], Any]) -> None:
    constant = way(mg.exp(tensor([1.0, 2.0])))
    assert not constant.requires_grad
    x = tensor([[1.0, 2.0]], requires_grad=True)
    mg.sum(x * x).backward()
    y = way(x)
    assert type(y) is mg.Tensor
    assert (y.backend, y.dtype, y.device, y.shape) == (x.backend, x.dtype, x.device, x.shape)
    assert y.requires_grad
    assert y.is_leaf
    assert_array_equal(value(y.grad), [[2, 4]])
    mg.sum(y**3).backward()  # adds to the copy's gradient alone
    assert_array_equal(value(y.grad), [[5, 16]])
    assert_array_equal(value(x.grad), [[2, 4]])
    with mg.no_grad():
        y[0, 0] = 100.0  # and writes to the copy's values alone
    assert_array_equal(value(x), [[1, 2]])


@WAYS
def test_a_tensor_in_a_graph_is_not_copied(way: Callable[[Any], Any]) -> None:
    x = tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^a Tensor in a graph cannot be .*`exp`\): detach\(\) first$"):
        way(mg.exp(x))
    assert_array_equal(value(way((x * 2).detach())), [2])


@WAYS
def test_primitives_are_copied_as_functions_are(way: Callable[[Any], Any]) -> None:
    for function in (mg.exp, mg.sum, mg.getitem, mg.linalg.inv):
        assert way(function) is function


@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_modules_are_copied(way: Callable[[Any], Any]) -> None:
    module = SelfAttention(d_model=4, d_head=2)
    x = mg.random.normal((3, 4), dtype="float32")
    other = way(module)
    assert_array_equal(value(other(x)), value(module(x)))
    mg.sum(other(x)).backward()
    before = dict(module.named_parameters())
    for name, parameter in other.named_parameters():
        assert parameter.requires_grad
        assert parameter.grad is not None
        assert parameter is not before[name]
        assert before[name].grad is None


def test_two_names_of_one_parameter_stay_one() -> None:
    x = tensor([1.0], requires_grad=True)
    for way in (copy.deepcopy, pickled):
        first, second = way([x, x])
        assert first is second


# ------------------------------------------------------------------------------------------------ Python's protocols


def test_an_integer_tensor_is_an_index() -> None:
    two = tensor(2)
    assert ["a", "b", "c"][two] == "c"
    assert "abc"[: tensor(1)] == "a"
    assert list(range(two)) == [0, 1]
    assert operator.index(two) == 2
    assert list(range(0, 4, two)) == [0, 2]
    with pytest.raises(TypeError, match="only an integer Tensor can be an index, got float64"):
        range(tensor(2.0))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="expected one element"):
        range(tensor([1, 2]))  # type: ignore[call-overload]


def test_scalars_become_python_scalars() -> None:
    for requires_grad in (False, True):
        x = tensor(2.5, requires_grad=requires_grad)
        assert (float(x), int(x), complex(x), bool(x)) == (2.5, 2, 2.5, True)
        assert type(complex(x)) is complex
    with pytest.raises(TypeError):
        float(tensor(1j))


def test_formatting() -> None:
    x = tensor(2.5, requires_grad=True)
    assert f"{x:.2f}" == "2.50"
    assert f"{x * 2:8.3f}" == "   5.000"
    assert f"{tensor(7):03d}" == "007"
    assert f"{x}" == str(x) == repr(x)
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{tensor([1.0, 2.0]):.2f}"


def test_to_its_own_device() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x.to_device(x.device)
    assert y.device == x.device
    mg.sum(y * y).backward()
    assert_array_equal(value(x.grad), [2, 4])


def test_the_namespace_of_each_version_of_the_standard() -> None:
    x = tensor([1.0])
    for version in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
        assert x.__array_namespace__(api_version=version) is mg
    with pytest.raises(ValueError, match=r"up to 2025\.12, not '2031\.12'"):
        x.__array_namespace__(api_version="2031.12")


def test_array_api_compat_finds_the_namespace() -> None:
    from array_api_compat import array_namespace, device, is_array_api_obj, size

    x = tensor([[1.0, 2.0]])
    assert is_array_api_obj(x)
    assert array_namespace(x, tensor([1.0])) is mg
    assert device(x) == x.device
    assert size(x) == 2


# ------------------------------------------------------------------------------------------------ lazy arrays


@pytest.mark.peers
def test_a_dask_array_stays_lazy() -> None:
    """Forward, backward and second derivative only add to Dask's graph: nothing is computed before it is asked for."""
    dask = importlib.import_module("dask")
    da = importlib.import_module("dask.array")

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the graph was computed")

    def energy(x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
        y = mg.tanh(x @ w) - mg.mean(x, axis=1, keepdims=True)
        y = mg.concat([y, mg.where(y > 0, y, mg.exp(y))], axis=1)
        return mg.sum(y[1:, 0] * mg.max(y, axis=1)[1:]) + mg.sum(mg.std(y, axis=0))

    rng = numpy.random.default_rng(0)
    a, b = rng.normal(size=(4, 6)), rng.normal(size=(6, 3))
    with dask.config.set(scheduler=refuse):
        x = mg.Tensor(da.from_array(a, chunks=(2, 3)), requires_grad=True)
        w = mg.Tensor(da.from_array(b, chunks=3), requires_grad=True)
        assert x.backend == "dask"
        assert "(4, 6)" in repr(x)
        energy(x, w).backward()
        grads = [x.grad, w.grad]
        second = mg.hvp(lambda x: energy(x, w.detach()), [x.detach()], [x.detach()])
        assert all(type(g._data) is da.Array for g in (*grads, second) if g is not None)

    p, q = mg.Tensor(a, requires_grad=True), mg.Tensor(b, requires_grad=True)
    energy(p, q).backward()
    for found, expected in zip(grads, (p.grad, q.grad), strict=True):
        numpy.testing.assert_allclose(value(found), value(expected), rtol=1e-12)
    expected = mg.hvp(lambda p: energy(p, q.detach()), [p.detach()], [p.detach()])
    numpy.testing.assert_allclose(value(second), value(expected), rtol=1e-10)
