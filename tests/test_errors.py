"""Mistakes: each is refused at the call that makes it, in one line that says what was given and what to do."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from checks import tensor

import attention.functional as F
import minigrad as mg
from minigrad import backend, primitive, use_backend
from minigrad.backend import Array

BACKEND = backend.current().name


def leaf(*shape: int) -> mg.Tensor:
    return tensor(numpy.ones(shape), requires_grad=True)


def integers() -> mg.Tensor:
    return tensor([1, 2])


def backward_twice() -> None:
    y = mg.sum(leaf(2) ** 2)
    y.backward()
    y.backward()


def add_in_place() -> None:
    x = leaf(2)
    x += 1.0


def write_what_is_needed() -> None:
    w, x = leaf(2), tensor([1.0, 2.0])
    y = w * x
    x[0] = 5.0
    del y


def requires_grad_off() -> None:
    (leaf(2) * 2).requires_grad = False


@primitive
def without_rules(xp: Any, x: Any, /) -> Any:
    return x + 1


@primitive
def with_a_wrong_rule(xp: Any, x: Any, /) -> Any:
    return xp.sum(x)


with_a_wrong_rule.vjp(x=lambda g, xp: xp.ones((7,)))


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # ------------------------------------------------------------------------------------ the backward pass
    "backward from no scalar": (
        lambda: (leaf(2, 3) * 2).backward(), ValueError,
        r"^backward: float64 \(2, 3\) on \S+ .* is no real scalar; give the gradient .* tensor.sum\(\).backward\(\)$",
    ),
    "backward from a complex scalar": (
        lambda: mg.sum(mg.astype(leaf(2), "complex128")).backward(), ValueError, r"complex128 \(\) .*is no real scalar",
    ),
    "second backward": (
        backward_twice, RuntimeError, "^backward: the graph was freed by an earlier .*`sum`.*retain_graph=True",
    ),
    "gradient of another shape": (
        lambda: (leaf(2, 3) * 2).backward(tensor([1.0, 2.0])), ValueError,
        r"^backward: expected a gradient of shape \(2, 3\), got float64 \(2,\)",
    ),
    "backward without requires_grad": (
        lambda: tensor(1.0).backward(), RuntimeError, "does not require a gradient; make it with requires_grad=True",
    ),
    "backward through a step": (
        lambda: mg.floor(mg.sum(leaf(2))).backward(), RuntimeError, "`floor` has no derivative",
    ),
    "backward from constants": (
        lambda: mg.exp(tensor(1.0)).backward(), RuntimeError,
        "`exp` was given no Tensor that requires one, or ran under",
    ),
    "a rule of the wrong shape": (
        lambda: with_a_wrong_rule(leaf(2, 3)).backward(), ValueError,
        r"^with_a_wrong_rule: its rule gave a gradient of shape \(7,\).* for an argument of shape \(2, 3\)",
    ),
    # ------------------------------------------------------------------------------------ Tensors
    "a gradient of integers": (
        lambda: mg.Tensor([1, 2], requires_grad=True), TypeError,
        r"^requires_grad: int64 \(2,\) on .* has no derivative; use a floating-point dtype$",
    ),
    "a gradient of booleans": (
        lambda: mg.Tensor([True], requires_grad=True), TypeError, "^requires_grad: bool .* has no derivative",
    ),
    "a list of tracked Tensors": (
        lambda: mg.Tensor([leaf(), leaf()]), TypeError, "^a list of Tensors in a graph .*use minigrad.stack, or detach",
    ),
    "asarray of tracked Tensors": (lambda: mg.asarray([[leaf()]]), TypeError, "use minigrad.stack"),
    **{
        f"{data!r} for numbers": (
            lambda data=data: mg.asarray(data), TypeError, "^asarray: expected numbers .*, lists of them or an array; ",
        )
        for data in (None, "a", b"ab", {}, [None], [[1.0], ["a"]], numpy.str_("a"), numpy.array([None]), range)
    },
    **{  # of which NumPy makes NaN, False or the number that is written there
        f"{data!r} for numbers of {dtype}": (
            lambda data=data, dtype=dtype: mg.asarray(data, dtype=dtype), TypeError,
            "^asarray: expected numbers .*, lists of them or an array; got ",
        )
        for data in (
            None, "1", [None], ["1"], [b"1"], [[1.0, None]], ((1.0, "1"),), [{}], [numpy.str_("1")], numpy.array(["1"]),
            numpy.array([None]), [numpy.array(["1"])], [numpy.datetime64("2020-01-01")],
        )
        for dtype in ("float64", "complex128", "int64", "bool")
    },
    "None in a Tensor's list": (lambda: mg.Tensor([1.0, None], dtype="float64"), TypeError, "^asarray: .* got None$"),
    "a list without a shape": (
        lambda: mg.asarray([[1.0], [1.0, 2.0]]), ValueError,
        r"^asarray: .* \(given \[\[1.0\], \[1.0, 2.0\]\]\)$",
    ),
    "complex numbers for real ones": (
        lambda: mg.asarray([1j], dtype="float64"), TypeError, r"^asarray: .* \(given \[1j\], dtype='float64'\)$",
    ),
    **{
        f"{data!r} for an element": (
            lambda data=data: tensor([1.0, 2.0]).__setitem__(0, data), TypeError,
            "^x\\[…\\] = …: expected numbers .*; got ",
        )
        for data in (None, "1.5", b"1")
    },
    "None for an element in a graph": (
        lambda: (leaf(2) * 2).__setitem__(0, None), TypeError,
        "^setitem: expected a Tensor or an array for value, got NoneType",
    ),
    # ------------------------------------------------------------------------------------ creation functions
    **{
        f"full of {data!r}": (
            lambda data=data: mg.full((2,), data), TypeError, f"^full: expected numbers .*; got {data!r}$",
        )
        for data in (None, "1.5")
    },
    **{
        f"full_like of {data!r}": (
            lambda data=data: mg.full_like(leaf(2), data), TypeError, f"^full_like: expected numbers .*; got {data!r}$",
        )
        for data in (None, "1.5")
    },
    **{
        f"{name} of {given}": (
            lambda name=name, args=args, options=options: getattr(mg, name)(*args, **options),
            (TypeError, ValueError, RuntimeError), rf"^{name}: .* \(given {given}.*\)$",
        )
        for name, args, options, given in (
            ("arange", ([3],), {}, r"\[3\], None, 1"),
            ("arange", (0, 3, 0), {}, "0, 3, 0"),
            ("empty", ("a",), {}, "'a'"),
            ("eye", (2, -1), {}, "2, -1, k=0"),
            ("full", ((-2,), 1.0), {}, r"\(-2,\), 1.0"),
            ("linspace", (0, 1, "a"), {}, "0, 1, 'a'"),
            ("ones", (1.5,), {}, "1.5"),
            ("ones", (2,), {"device": "nowhere"}, "2, device='nowhere'"),
            ("zeros", (-1,), {}, "-1"),
            ("zeros", (2,), {"dtype": "float7"}, "2, dtype='float7'"),
        )
    },
    "ones_like of an unknown dtype": (
        lambda: mg.ones_like(leaf(2), dtype="float7"), TypeError, "^ones_like: .* has no dtype 'float7' .given Tensor",
    ),
    **{
        f"from_dlpack of {data!r}": (
            lambda data=data: mg.from_dlpack(data), TypeError, "^from_dlpack: expected an array with __dlpack__, got ",
        )
        for data in (3, None, "a", [1.0])
    },
    "a triangle of a vector": (lambda: mg.tril(leaf(2)), ValueError, "^tril: expected at least two axes .given x: "),
    "a triangle of a number": (lambda: mg.triu(leaf()), ValueError, "^triu: expected at least two axes .given x: "),
    # ------------------------------------------------------------------------------------ dtypes
    **{
        f"{name} of {kind}": (
            lambda f=f, kind=kind: f(getattr(mg, kind)), TypeError, f"^{name}: expected an? .* dtype .*, got .*{kind}",
        )
        for f, name, kinds in ((mg.finfo, "finfo", ("int64", "bool")), (mg.iinfo, "iinfo", ("float32", "bool")))
        for kind in kinds
    },
    "finfo of integers": (lambda: mg.finfo(integers()), TypeError, "^finfo: expected a floating-.* got .*int64"),
    "finfo of a number": (lambda: mg.finfo(1.5), TypeError, "^finfo: expected a floating-point dtype .*, got 1.5$"),
    "finfo of None": (lambda: mg.finfo(None), TypeError, "^finfo: expected a floating-point dtype .*, got None$"),
    "iinfo of floats": (lambda: mg.iinfo(leaf(2)), TypeError, "^iinfo: expected an integer dtype .* got .*float64"),
    "iinfo of an unknown name": (lambda: mg.iinfo("int7"), TypeError, "^iinfo: expected an integer .*, got 'int7'$"),
    "requires_grad off in a graph": (requires_grad_off, RuntimeError, r"the result of `multiply` .*use detach\(\)"),
    "an unknown dtype": (lambda: mg.Tensor([1.0], dtype="float7"), TypeError, "has no dtype 'float7'"),
    "in place on a leaf": (add_in_place, RuntimeError, "^`add` in place on a leaf .*work on a copy.*or under no_grad"),
    "a write to what is needed": (
        write_what_is_needed, RuntimeError,
        r"^x\[…\] = … would change values that `multiply` needs .*float64 \(2,\).*"
        r"call backward first, or write to a copy$",
    ),
    # ------------------------------------------------------------------------------------ shapes
    "add": (
        lambda: leaf(2, 3) + leaf(4), ValueError, r"^add: .*given x1: float64 \(2, 3\) on .*, x2: float64 \(4,\) on ",
    ),
    "matmul": (
        lambda: leaf(2, 3) @ leaf(4, 2), (ValueError, TypeError),
        r"^matmul: .*x1: float64 \(2, 3\).*x2: float64 \(4, 2\)",
    ),
    "where": (lambda: mg.where(leaf(2) > 0, leaf(2), leaf(3)), ValueError, r"^where: .*condition: bool \(2,\)"),
    "reshape": (
        lambda: mg.reshape(leaf(2, 3), (4,)), (ValueError, RuntimeError, TypeError),
        r"^reshape: .*given x: float64 \(2, 3\).*shape: \(4,\)",
    ),
    "broadcast_to": (
        lambda: mg.broadcast_to(leaf(2, 3), (4,)), (ValueError, RuntimeError),
        r"^broadcast_to: .*float64 \(2, 3\).*shape: \(4,\)",
    ),
    "broadcast_shapes": (
        lambda: mg.broadcast_shapes((2, 3), (4,)), ValueError, r"^broadcast_shapes: \(2, 3\), \(4,\) do not broadcast$",
    ),
    "sum over an axis that is not there": (
        lambda: mg.sum(leaf(2, 3), axis=2), (ValueError, IndexError), r"^sum: .*given x: float64 \(2, 3\).*, axis=2",
    ),
    **{
        f"the cross product of {n} and {m} numbers": (
            lambda n=n, m=m: mg.linalg.cross(leaf(n), leaf(m)), ValueError,
            rf"^cross: expected vectors of three numbers \(given x1: float64 \({n},\) on .*, x2: float64 \({m},\) on ",
        )
        for n, m in ((2, 2), (3, 2), (2, 3), (3, 1), (4, 4), (1, 1))
    },
    "concat of nothing": (lambda: mg.concat([]), ValueError, "^concat: expected at least one array, got none$"),
    "stack of nothing": (lambda: mg.stack([]), ValueError, "^stack: expected at least one array, got none$"),
    "take without an axis": (
        lambda: mg.take(leaf(2, 3), integers()), ValueError, r"^take: axis is required .*x: float64 \(2, 3\)",
    ),
    "take by a number": (
        lambda: mg.take(leaf(2), 0), TypeError, r"^take: expected an array of integers as indices, got 0 \(given x",
    ),
    "an index out of range": (lambda: leaf(2)[5], IndexError, r"^getitem: .*x: float64 \(2,\).*key: 5"),
    "a list as an index": (
        lambda: leaf(3)[[0, 1]], IndexError,
        r"a list is no index of the standard; use an integer array: asarray\(\[0, 1\]\)",
    ),
    # ------------------------------------------------------------------------------------ calls
    "an unknown option": (lambda: mg.sum(leaf(2), axes=0), TypeError,
    "^sum: got an unexpected keyword argument 'axes'"),
    "a missing argument": (lambda: mg.add(leaf(2)), TypeError, "^add: missing a required.* 'x2'"),
    "too many arguments": (lambda: mg.exp(leaf(2), leaf(2)), TypeError, "^exp: too many positional arguments"),
    "no array at all": (lambda: mg.add(1.0, 2.0), TypeError, "^add: expected a Tensor or an array .*x1: 1.0, x2: 2.0"),
    "a text": (lambda: mg.exp("text"), TypeError, "^exp: expected a Tensor or an array .*x: 'text'"),
    "a list for an array": (
        lambda: F.linear([1.0, 2.0], leaf(2, 3)), TypeError,
        r"^linear: expected a Tensor or an array for x, got list \(given x: \[1.0, 2.0\], weight: float64 \(2, 3\)",
    ),
    "None for an array": (
        lambda: F.layer_norm(None, leaf(2)), TypeError,
        "^layer_norm: expected a Tensor or an array for x, got NoneType",
    ),
    **{
        f"{x!r:.8} among numbers, {name}": (
            lambda call=call, x=x: call(x), TypeError,
            f"^{name}: expected a Tensor or an array for \\w+, got {type(x).__name__} ",
        )
        for x in (None, "a", b"1", {}, len, ..., int, [1.0, 2.0])
        for name, call in {
            "where": lambda x: mg.where(leaf(2) > 0, x, leaf(2)),
            "equal": lambda x: mg.equal(leaf(2), x),
            "logical_and": lambda x: mg.logical_and(leaf(2) > 0, x),
            "searchsorted": lambda x: mg.searchsorted(leaf(2), x),
            "concat": lambda x: mg.concat([leaf(2), x]),
        }.items()
    },
    **{
        f"{x!r} to broadcast": (lambda x=x: mg.broadcast_arrays(leaf(2), x), TypeError, "^asarray: expected numbers ")
        for x in (None, "a", {})
    },
    "text for a limit": (
        lambda: mg.clip(leaf(2), "0", 1.0), TypeError, "^clip: expected a Tensor or an array for min, got str",
    ),
    "a NumPy scalar for an array": (
        lambda: F.cross_entropy(leaf(1, 2), numpy.int64(1)), TypeError,
        "^cross_entropy: expected a Tensor or an array for target, got int64",
    ),
    "NaN of NumPy for an array": (
        lambda: F.cross_entropy(leaf(1, 2), numpy.float64("nan")), TypeError,
        "^cross_entropy: expected a Tensor or an array for target, got float64",
    ),
    "a number for an array": (
        lambda: F.embedding(integers(), 2.0), TypeError,
        "^embedding: expected a Tensor or an array for weight, got float",
    ),
    "a number for an array, where NumPy's arrays have a method": (
        lambda: mg.take(2.0, numpy.asarray([1]), axis=0), TypeError,
        "^take: expected a Tensor or an array for x, got float",
    ),
    "an unknown mode": (
        lambda: mg.linalg.qr(leaf(2, 2), mode="r"), ValueError, "^qr: expected mode 'reduced' or 'complete', got 'r'$",
    ),
    "an option that requires a gradient": (
        lambda: F.layer_norm(leaf(2), eps=leaf()), TypeError,
        r"^layer_norm: option eps has no gradient; detach\(\) the Tensor that requires one$",
    ),
    "a rule for no argument": (
        lambda: without_rules.vjp(y=lambda g: g), TypeError,
        "^without_rules.vjp: no argument 'y'; the arguments are x$",
    ),
    "a rule without g": (
        lambda: without_rules.vjp(x=lambda x: x), TypeError, "^without_rules.vjp: a rule's first parameter is g",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(request: Any, call: Callable[[], Any], error: type[Exception], message: str) -> None:
    if BACKEND == "jax" and "index out of range" in request.node.name:
        pytest.skip("JAX clips such an index, as it cannot look at values")
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_two_backends() -> None:
    here = leaf(2)
    with use_backend("numpy" if BACKEND != "numpy" else "array_api_strict"):
        there = mg.Tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=r"^add: arrays of two libraries cannot be combined: x1: .*, x2: ") as caught:
        here + there
    assert f"on {BACKEND}" in str(caught.value)
    assert f"on {there.backend}" in str(caught.value)


def test_two_devices() -> None:
    with use_backend("array_api_strict"):
        x = mg.Tensor([1.0, 2.0], requires_grad=True)
        y = mg.to_device(x, "device1")
        with pytest.raises((ValueError, RuntimeError), match=r"^add: .*CPU_DEVICE.*device1") as caught:
            x + y
    assert "\n" not in str(caught.value)


def test_the_library_s_own_error_is_the_cause() -> None:
    with pytest.raises(ValueError, match=r"^add: ") as caught:
        leaf(2) + leaf(3)
    assert caught.value.__cause__ is not None


@primitive
def failing(xp: Any, x1: Any, x2: Any, /, *, error: Any) -> Any:
    raise error


@pytest.mark.parametrize("kind", [
    NameError, AttributeError, ZeroDivisionError, KeyError, NotImplementedError, RecursionError, AssertionError,
])  # fmt: skip
def test_a_bug_in_a_function_is_no_mistake_in_the_call(kind: type[Exception]) -> None:
    """Its error comes out as it is, also where the shapes do not broadcast."""
    error = kind("a bug")
    with pytest.raises(kind) as caught:
        failing(leaf(2), leaf(3), error=error)
    assert caught.value is error
    with pytest.raises(AttributeError, match=r"^'NoneType' object has no attribute 'nothing'$"):
        with_a_bug(leaf(2), None)


@primitive
def with_a_bug(xp: Any, x1: Any, x2: Any, /) -> Any:
    return x2.nothing


def test_an_error_about_shapes_is_a_value_error_others_keep_their_class() -> None:
    for said, kind in (("mat1 and mat2 shapes cannot be multiplied", ValueError), ("out of resources", RuntimeError)):
        with pytest.raises(kind, match=rf"^failing: {said} \(given x1: float64 \(2,\)") as caught:
            failing(leaf(2), leaf(3), error=RuntimeError(said))
        assert type(caught.value) is kind


def test_a_failed_call_changes_nothing() -> None:
    x = leaf(2)
    y = x * 2
    with pytest.raises(ValueError, match="add"):
        y += leaf(3)
    mg.sum(y).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_what_an_annotation_or_a_default_allows() -> None:
    @primitive
    def f(xp: Any, x: "Array", y: "Array" = None, mode: "Array | str" = "") -> Any:
        return x if mode == "same" and y is None else -x

    assert f(tensor([1.0]), mode="same").tolist() == [1]  # y is filled in
    assert f(tensor([1.0]), None, "same").tolist() == [1]
    assert f(tensor([1.0]), tensor([2.0]), "same").tolist() == [-1]
    with pytest.raises(TypeError, match=r"^f: expected a Tensor or an array for y, got str \(given x: "):
        f(tensor([1.0]), "same")
    with pytest.raises(TypeError, match=r"^f: expected a Tensor or an array for mode, got NoneType \(given x: "):
        f(tensor([1.0]), None, None)


def test_an_attribute_that_arrays_lack_is_a_bug_of_the_function() -> None:
    @primitive
    def f(xp: Any, x: Any, factor: Any) -> Any:
        return x.backend * factor

    with pytest.raises(AttributeError, match="backend"):
        f(tensor([1.0, 2.0]), numpy.float64(3.0))
