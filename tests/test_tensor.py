"""Tensor: what it is made of, what it says of itself, how its operators meet other arrays, and what it refuses."""

import array
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from minigrad import backend

BACKEND = backend.current().name


def raw(values: Any) -> Any:
    return backend.from_numpy(numpy.array(values))


# ------------------------------------------------------------------------------------------------ making one


def test_a_tensor_copies_and_asarray_shares() -> None:
    array = raw([1.0, 2.0, 3.0])
    copy, shared = mg.Tensor(array), mg.asarray(array)
    assert shared._data is array or BACKEND == "array_api_strict"  # which wraps the same memory anew
    if BACKEND != "jax":
        array[0] = 100.0
        assert value(copy)[0] == 1
        assert value(shared)[0] == 100


def test_a_tensor_of_a_tensor_is_a_copy() -> None:
    x = tensor([1.0, 2.0])
    y = mg.Tensor(x)
    x[0] = 100.0
    assert_array_equal(value(y), [1, 2])
    tracked = mg.Tensor(tensor([1.0], requires_grad=True))
    assert not tracked.requires_grad
    assert tracked.is_leaf


def test_asarray_of_a_tensor() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    assert mg.asarray(y) is y
    copied = mg.asarray(y, copy=True)
    assert copied.requires_grad  # it stays in the graph
    mg.sum(copied * mg.asarray(y, dtype="float32")).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [8, 16])


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1.0, "float64", ()), ([1.0, 2.0], "float64", (2,)), ([[True], [False]], "bool", (2, 1)),
        ([1, 2], "int64", (2,)), (1j, "complex128", ()), ([], "float64", (0,)), (((1.0,),), "float64", (1, 1)),
    ],
)  # fmt: skip
def test_lists_and_scalars(data: Any, dtype: str, shape: tuple[int, ...]) -> None:
    x = mg.Tensor(data, dtype=dtype if data in (1.0, []) or dtype == "float64" else None)
    if BACKEND == "torch" and dtype == "complex128":
        x = mg.Tensor(data, dtype=dtype)  # PyTorch's default is complex64
    assert backend.dtype_name(x.dtype) == dtype
    assert x.shape == shape
    assert x.backend == BACKEND
    assert x.tolist() == (data if not isinstance(data, tuple) else [[1.0]])


def test_memory_and_ranges() -> None:
    for data, dtype in ((array.array("d", [1, 2]), "float64"), (bytearray(b"\1\2"), "uint8"), (range(1, 3), "int64")):
        x = mg.asarray(data)
        assert (x.backend, backend.dtype_name(x.dtype), x.tolist()) == (BACKEND, dtype, [1, 2])


def test_a_list_with_tensors_in_it() -> None:
    assert mg.Tensor([tensor(1.0), 2.0]).tolist() == [1, 2]
    assert mg.Tensor([tensor([1.0, 2.0]), [3.0, 4.0]]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_other_numbers_in_a_list(dtype: str) -> None:
    for data in (
        [numpy.int8(1), numpy.int64(2)], [True, numpy.uint64(2)], range(1, 3), [1, 2.0], numpy.asarray([1, 2]),
    ):  # fmt: skip
        assert mg.asarray(data, dtype=dtype).tolist() == [1, 2]
    assert mg.asarray([range(1, 3)], dtype=dtype).tolist() == [[1, 2]]
    assert mg.asarray([2**70, math.nan], dtype="float64")[0].item() == 2.0**70


def test_dtype_by_name_and_by_object() -> None:
    for dtype in ("float32", mg.float32):
        assert backend.dtype_name(mg.Tensor([1.0], dtype=dtype).dtype) == "float32"
        assert backend.dtype_name(mg.zeros(2, dtype=dtype).dtype) == "float32"


def test_it_cannot_be_subclassed() -> None:
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (mg.Tensor,), {})


def test_creation() -> None:
    assert_array_equal(value(mg.zeros((2, 3))), numpy.zeros((2, 3)))
    assert_array_equal(value(mg.ones(2)), [1, 1])
    assert_array_equal(value(mg.full((2,), 7.0)), [7, 7])
    assert_array_equal(value(mg.eye(2, 3, k=1)), numpy.eye(2, 3, k=1))
    assert_array_equal(value(mg.arange(1, 7, 2)), [1, 3, 5])
    assert_array_equal(value(mg.arange(3)), [0, 1, 2])
    assert_allclose(value(mg.linspace(0, 1, 5)), numpy.linspace(0, 1, 5))
    assert mg.empty((2, 0)).shape == (2, 0)
    x = tensor(numpy.float32([[1, 2]]), requires_grad=True)
    for like, expected in ((mg.zeros_like(x), 0), (mg.ones_like(x), 1), (mg.full_like(x, 7), 7)):
        assert_array_equal(value(like), [[expected, expected]])
        assert like.dtype == x.dtype
        assert like.device == x.device
        assert not like.requires_grad
    assert mg.empty_like(x).shape == (1, 2)


# ------------------------------------------------------------------------------------------------ what it says


def test_attributes() -> None:
    x = tensor(numpy.zeros((2, 0, 3)))
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 0, 3), 3, 0, 2)
    assert tensor(1.0).size == 1
    assert x.backend == BACKEND
    assert type(x.shape) is tuple


def test_repr() -> None:
    x = mg.Tensor([[1.0, 2.0], [3.0, 4.0]], dtype="float64", requires_grad=True)
    lines = repr(x).splitlines()
    assert lines[0] == "Tensor([[1., 2.],"
    assert lines[1].startswith(f"        [3., 4.]], dtype=float64, backend={BACKEND}, device=")
    assert lines[1].endswith("requires_grad=True)")
    assert "op=exp" in repr(mg.exp(x))
    assert "requires_grad" not in repr(x.detach())
    assert repr(mg.Tensor(1.5, dtype="float64")).startswith("Tensor(1.5, dtype=float64")


def test_out_of_the_tensor() -> None:
    x = tensor([[1.0, 2.0]], requires_grad=True)
    assert x.tolist() == [[1, 2]]
    assert type(x.numpy()) is numpy.ndarray
    assert tensor([[3.5]]).item() == 3.5
    assert type(tensor([[3.5]]).item()) is float
    assert float(tensor(2.0)) == 2
    assert int(tensor(2.7)) == 2
    assert complex(tensor(1j)) == 1j
    assert bool(tensor(0.0)) is False
    assert [10, 20, 30][tensor(1)] == 20
    with pytest.raises(ValueError, match=r"item: expected one element, got shape \(1, 2\)"):
        x.item()
    with pytest.raises(ValueError, match="expected one element"):
        bool(x)
    with pytest.raises(TypeError, match="only an integer Tensor can be an index, got float64"):
        [1][tensor(0.0)]
    with pytest.raises(TypeError, match="len"):
        len(tensor(1.0))


def test_numpy_functions_get_the_values_but_not_out_of_a_graph() -> None:
    x = tensor([1.0, 2.0])
    assert_array_equal(numpy.asarray(x), [1, 2])
    assert numpy.asarray(x, dtype=numpy.float32).dtype == numpy.float32
    with pytest.raises(RuntimeError, match=r"detach\(\) first"):
        numpy.asarray(tensor([1.0], requires_grad=True))


def test_iteration() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    first, second = x
    mg.sum(first * second).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [[3, 4], [1, 2]])


def test_it_is_its_own_namespace() -> None:
    x = tensor([1.0])
    assert x.__array_namespace__() is mg
    assert x.__array_namespace__(api_version=mg.__array_api_version__) is mg
    with pytest.raises(ValueError, match=mg.__array_api_version__):
        x.__array_namespace__(api_version="1999.01")


def test_comparisons_are_elementwise_and_hash_is_by_identity() -> None:
    x = tensor([1.0, 2.0])
    assert (x == tensor([1.0, 3.0])).tolist() == [True, False]
    assert (x != 1.0).tolist() == [False, True]
    assert (x > 1).tolist() == [False, True]
    assert (x > 1).tolist() == [False, True]
    assert {x: 1}[x] == 1
    assert len({x, tensor([1.0, 2.0])}) == 2


def test_methods_are_the_functions() -> None:
    a = numpy.array([[1.0, 2.0], [3.0, 4.0]])
    x = tensor(a)
    assert x.sum().item() == a.sum()
    assert_array_equal(value(x.sum(axis=0, keepdims=True)), a.sum(axis=0, keepdims=True))
    assert_array_equal(value(x.mean(1)), a.mean(1))
    assert_array_equal(value(x.max(axis=(0, 1))), 4)
    assert_array_equal(value(x.min(0)), a.min(0))
    assert_allclose(value(x.exp()), numpy.exp(a))
    assert_allclose(value(x.log()), numpy.log(a))
    assert_array_equal(value(x.reshape(4)), a.reshape(4))
    assert_array_equal(value(x.reshape(1, 4)), a.reshape(1, 4))
    assert_array_equal(value(x.reshape((4, -1))), a.reshape(4, 1))
    assert backend.dtype_name(x.astype("float32").dtype) == "float32"
    assert x.to_device(x.device).device == x.device
    with pytest.raises(ValueError, match=r"T: expected 2 axes, got shape \(4,\)"):
        _ = x.reshape(4).T


# -------------------------------------------------------------------------------------------- data, grad, requires_grad


def test_data_can_be_replaced() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    x.data = tensor([3.0, 4.0])
    assert_array_equal(value(x), [3, 4])
    assert x.requires_grad
    x.data = raw([5.0, 6.0])
    assert_array_equal(value(x), [5, 6])
    with pytest.raises(ValueError, match=r"data: expected float64 \(2,\).*, got float64 \(3,\)"):
        x.data = raw([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"data: expected float64 \(2,\).*, got float32 \(2,\)"):
        x.data = raw(numpy.float32([1, 2]))


def test_grad_can_be_set() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    assert x.grad is None
    x.grad = tensor([5.0, 6.0])
    mg.sum(x).backward()
    assert_array_equal(value(x.grad), [6, 7])
    x.grad = None
    assert x.grad is None
    for wrong in (tensor([1.0]), tensor(numpy.float32([1, 2])), 1.0):
        with pytest.raises(ValueError, match=r"^grad: expected a Tensor like float64 \(2,\) on .*, got float"):
            x.grad = wrong  # type: ignore[assignment]
    for other in (tensor([1.0]), x * 2):
        with pytest.raises(RuntimeError, match="only a leaf that requires a gradient has one"):
            other.grad = tensor([1.0])


def test_requires_grad_can_be_switched() -> None:
    x = tensor([1.0])
    x.requires_grad = True
    assert x.requires_grad
    x.requires_grad = True
    x.requires_grad = False
    assert not x.requires_grad
    assert not (x * 2).requires_grad
    y = tensor([1.0], requires_grad=True) * 2
    with pytest.raises(RuntimeError, match=r"the result of `multiply` depends on a graph; use detach\(\)"):
        y.requires_grad = False


def test_detach() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = (x * 3).detach()
    assert not y.requires_grad
    assert y.is_leaf
    mg.sum(x * y).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [3, 6])


# ------------------------------------------------------------------------------------------------ operators

OPERATORS: list[Callable[..., Any]] = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip
BITWISE: list[Callable[..., Any]] = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_operators(op: Callable[..., Any]) -> None:
    a, b = numpy.array([[1.5, 2.0], [4.0, 0.5]]), numpy.array([2.0, 1.5])
    assert_allclose(value(op(tensor(a), tensor(b))), op(a, b))
    assert_allclose(value(op(tensor(a), raw(b))), op(a, b))  # an array of the same library
    assert_allclose(value(op(tensor(a), 2.0)), op(a, 2.0))
    assert_allclose(value(op(tensor(a), 2)), op(a, 2))
    assert_allclose(value(op(2.0, tensor(a))), op(2.0, a))


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_an_array_on_the_left(op: Callable[..., Any]) -> None:
    if BACKEND == "array_api_strict":
        pytest.skip("the operators of array-api-strict's arrays refuse foreign types instead of asking them")
    a, b = numpy.array([2.0, 1.5]), numpy.array([[1.5, 2.0], [4.0, 0.5]])
    x = tensor(b, requires_grad=True)
    out = op(raw(a), x)
    assert type(out) is mg.Tensor
    assert_allclose(value(out), op(a, b))
    if out.requires_grad:
        mg.sum(out).backward()
        assert x.grad is not None


@pytest.mark.parametrize("op", BITWISE, ids=lambda op: op.__name__)
def test_bitwise_operators(op: Callable[..., Any]) -> None:
    a, b = numpy.array([5, 6]), numpy.array([1, 3])
    assert_array_equal(value(op(tensor(a), tensor(b))), op(a, b))
    assert_array_equal(value(op(tensor(a), 2)), op(a, 2))
    assert_array_equal(value(op(2, tensor(a))), op(2, a))
    x = tensor(a)
    x = getattr(operator, f"i{op.__name__.strip('_')}")(x, 1)
    assert_array_equal(value(x), op(a, 1))


def test_unary_operators_and_matmul() -> None:
    a = numpy.array([[1.0, -2.0], [3.0, -4.0]])
    x = tensor(a)
    assert_array_equal(value(-x), -a)
    assert_array_equal(value(+x), a)
    assert_array_equal(value(abs(x)), abs(a))
    assert_array_equal(value(~tensor([1, 2])), [-2, -3])
    assert_array_equal(value(x @ x), a @ a)
    assert_array_equal(value(x @ raw(a)), a @ a)
    y = tensor(a)
    y @= x
    assert_array_equal(value(y), a @ a)
    y = tensor(a)
    y //= 2
    y %= 2
    assert_array_equal(value(y), (a // 2) % 2)


def test_numpy_scalars_are_constants() -> None:
    x = tensor(numpy.float32([1, 2]))
    for scalar in (numpy.float64(2.0), numpy.float32(2.0), numpy.int64(2)):
        assert_array_equal(value(mg.multiply(x, scalar)), [2, 4])
        assert mg.multiply(x, scalar).dtype == mg.result_type(x, scalar) == mg.result_type(x.dtype, scalar) == x.dtype


def test_the_result_type_with_a_scalar_that_is_none_of_pythons() -> None:
    x = numpy.ones(2, dtype="float32")
    assert mg.result_type(x, numpy.longdouble(2)) == numpy.result_type(x, numpy.longdouble(2))
    assert mg.result_type(x, numpy.clongdouble(2)) == numpy.result_type(x, numpy.clongdouble(2))


@pytest.mark.parametrize("kind", [numpy.float64, numpy.float32, numpy.complex64, numpy.int32, numpy.bool])
def test_numpy_scalars_make_arrays_as_python_scalars_do(kind: Any) -> None:
    one, two = kind(1), numpy.int64(2)
    calls: list[Any] = [lambda one, two: mg.full((two, 3), one), lambda one, two: mg.full(two, one)]
    calls += [lambda one, two: mg.full_like(mg.zeros(2, dtype="float32"), one)] * (kind is not numpy.complex64)
    calls += [lambda one, two: mg.eye(two, k=two), lambda one, two: mg.zeros(two)]
    if kind in (numpy.float64, numpy.float32):
        calls += [lambda one, two: mg.arange(one), lambda one, two: mg.arange(one, one * 3, one)]
        calls += [lambda one, two: mg.linspace(one, one * 3, two)]
    for call in calls:
        found, expected = call(one, two), call(one.item(), 2)
        assert found.dtype == expected.dtype
        assert_array_equal(value(found), value(expected))
    assert backend.dtype_name(mg.asarray(one).dtype) == numpy.dtype(kind).name  # an array is of the scalar's dtype
    assert mg.asarray(one).backend == BACKEND


def test_unknown_operands_are_left_to_python() -> None:
    class Other:
        def __radd__(self, x: Any) -> str:
            return "mine"

    mine: Any = tensor([1.0]) + Other()
    assert type(mine) is str
    assert mine == "mine"
    assert (tensor([1.0]) == None) is False  # noqa: E711
    assert (tensor([1.0]) != "text") is True
    with pytest.raises(TypeError):
        tensor([1.0]) + "text"
    with pytest.raises(TypeError):
        "text" * tensor([1.0])


# ------------------------------------------------------------------------------------------------ indexing writes


def test_writing() -> None:
    x = tensor(numpy.zeros((3, 3)))
    x[0] = 1.0
    x[1, ...] = tensor([1.0, 2.0, 3.0])
    x[2, ::-1] = raw([1.0, 2.0, 3.0])
    assert_array_equal(value(x), [[1, 1, 1], [1, 2, 3], [3, 2, 1]])
    x[x > 1] = 0.0
    assert_array_equal(value(x), [[1, 1, 1], [1, 0, 0], [0, 0, 1]])


def test_writing_with_none_in_the_index() -> None:
    x = tensor(numpy.zeros((2, 3)), requires_grad=True)
    mg.sum(x[:, None, 1:] * tensor(numpy.arange(4.0).reshape(2, 1, 2))).backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [[0, 0, 1], [0, 2, 3]])


def test_deepcopy_and_copy() -> None:
    import copy

    x = tensor([1.0, 2.0], requires_grad=True)
    other = copy.deepcopy(x)
    assert_array_equal(value(other), [1, 2])
    with mg.no_grad():
        x[0] = 100.0
    assert value(other)[0] == 1
