"""The engine: what a backward pass does, what it keeps and frees, and what it refuses to get wrong."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from minigrad import autodiff, backend, keep, no_grad, primitive

BACKEND = backend.current().name
only_numpy = pytest.mark.skipif(
    BACKEND != "numpy",
    reason="what a node keeps is the same for every library, and NumPy's arrays take weak references",
)
only_writable = pytest.mark.skipif(BACKEND == "jax", reason="arrays of JAX cannot be written, so there is no danger")


def vector(requires_grad: bool = True) -> mg.Tensor:
    return tensor([1.0, 2.0, 3.0], requires_grad)


def grad_of(x: mg.Tensor) -> Any:
    assert x.grad is not None
    return value(x.grad)


# ------------------------------------------------------------------------------------------------ the backward pass


def test_gradients_accumulate_on_leaves() -> None:
    x = vector()
    mg.sum(x * 2).backward()
    first = x.grad
    mg.sum(x * 3).backward()
    assert_array_equal(grad_of(x), [5, 5, 5])
    assert first is not None
    assert_array_equal(value(first), [2, 2, 2])  # accumulation makes a new Tensor
    x.grad = None
    mg.sum(x).backward()
    assert_array_equal(grad_of(x), [1, 1, 1])


def test_a_tensor_in_the_middle_gets_no_grad() -> None:
    x = vector()
    y = x * 2
    mg.sum(y).backward()
    assert y.grad is None
    assert not y.is_leaf
    assert x.is_leaf


def test_gradient_argument() -> None:
    x = vector()
    (x * x).backward(tensor([1.0, 10.0, 100.0]))
    assert_array_equal(grad_of(x), [2, 40, 600])
    x.grad = None
    (x * x).backward([1.0, 10.0, 100.0])  # array-like
    assert_array_equal(grad_of(x), [2, 40, 600])


def test_a_single_element_counts_as_scalar() -> None:
    x = tensor([[3.0]], requires_grad=True)
    (x * x).backward()
    assert_array_equal(grad_of(x), [[6]])


def test_retain_graph() -> None:
    x = vector()
    y = mg.sum(x * x)
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert_array_equal(grad_of(x), [6, 12, 18])
    with pytest.raises(RuntimeError, match=r"freed by an earlier backward pass.*retain_graph=True"):
        y.backward()
    assert_array_equal(grad_of(x), [6, 12, 18])


def test_two_losses_share_a_part_of_the_graph() -> None:
    x = vector()
    shared = mg.exp(x)
    one, two = mg.sum(shared), mg.sum(shared * 2)
    one.backward()
    with pytest.raises(RuntimeError, match="freed"):
        two.backward()


def test_diamond() -> None:
    x = tensor(3.0, requires_grad=True)
    a = x * x
    b = a + x
    c = a * b  # x⁴ + x³
    c.backward()
    assert grad_of(x) == 4 * 27 + 3 * 9


def test_many_uses_of_one_tensor_are_summed() -> None:
    x = vector()
    y = mg.exp(x)
    total = y
    for _ in range(10):
        total = total + y
    total.backward(tensor([1.0, 2.0, 3.0]))
    assert_allclose(grad_of(x), 11 * numpy.exp([1, 2, 3]) * [1, 2, 3], rtol=1e-14)


def test_sums_do_not_write_into_what_others_hold() -> None:
    """The gradient of z reaches x directly and by two more ways: the sum must not grow inside of the seed."""
    x = vector()
    y = mg.positive(x)
    z = (y + y) + (y + y) + y
    seed = tensor([1.0, 2.0, 3.0])
    z.backward(seed)
    assert_array_equal(grad_of(x), [5, 10, 15])
    assert_array_equal(value(seed), [1, 2, 3])


def test_create_graph() -> None:
    x = tensor(2.0, requires_grad=True)
    (x**3).backward(create_graph=True)
    first = x.grad
    assert first is not None
    assert first.requires_grad
    x.grad = None
    first.backward()
    assert grad_of(x) == 12


def test_without_create_graph_the_gradient_is_a_constant() -> None:
    x = tensor(2.0, requires_grad=True)
    (x**3).backward()
    assert x.grad is not None
    assert not x.grad.requires_grad


def test_unused_outputs_get_zeros() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    _, second = mg.unstack(x)
    mg.sum(second * second).backward()
    assert_array_equal(grad_of(x), [[0, 0], [6, 8]])


@primitive
def sin_and_cos(xp: Any, x: Any, /) -> tuple[Any, Any]:
    return xp.sin(x), xp.cos(x)


sin_and_cos.vjp(x=lambda g, out: g[0] * out[1] - g[1] * out[0])


def test_an_operation_with_two_outputs() -> None:
    x = tensor([0.3, 0.4], requires_grad=True)
    sine, cosine = sin_and_cos(x)
    mg.sum(sine * 2).backward(retain_graph=True)
    assert_allclose(grad_of(x), 2 * numpy.cos([0.3, 0.4]))
    x.grad = None
    mg.sum(sine * cosine).backward()
    assert_allclose(grad_of(x), numpy.cos([0.6, 0.8]))


def test_an_operation_with_two_outputs_twice() -> None:
    # (sin x cos x)″ = -2 sin 2x
    def f(x: mg.Tensor) -> mg.Tensor:
        sine, cosine = sin_and_cos(x)
        return mg.sum(sine * cosine)

    found = mg.hessian(f)(tensor([0.3, 0.4]))
    assert_allclose(value(found), numpy.diag(-2 * numpy.sin([0.6, 0.8])), atol=1e-15)


@primitive
def softplus(xp: Any, x: Any, /, *, scale: float = 1.0) -> Any:
    e = xp.exp(x * scale)
    return keep(xp.log1p(e), e=e)


softplus.vjp(x=lambda g, e, scale: g * (scale * e / (1 + e)))


def test_kept_values_are_differentiable() -> None:
    x = tensor([0.3, -0.4], requires_grad=True)
    mg.sum(softplus(x, scale=2.0)).backward()
    s = 1 / (1 + numpy.exp(-2 * numpy.array([0.3, -0.4])))
    assert_allclose(grad_of(x), 2 * s)
    second = mg.hessian(lambda x: mg.sum(softplus(x, scale=2.0)))(tensor([0.3, -0.4]))
    assert_allclose(value(second), numpy.diag(4 * s * (1 - s)))


def test_a_joint_rule() -> None:
    asked: list[Any] = []

    @primitive
    def product(xp: Any, a: Any, b: Any, /) -> Any:
        return a * b

    def rule(g: Any, a: Any, b: Any, needs: Any) -> tuple[Any, Any]:
        asked.append(needs)
        return g * b, (g * a if "b" in needs else None)

    product.vjp_all(rule)
    x, y = vector(), vector()
    mg.sum(product(x, 2 * y)).backward()
    assert_array_equal(grad_of(x), [2, 4, 6])
    assert_array_equal(grad_of(y), [2, 4, 6])
    x.grad = None
    mg.sum(product(x, tensor([5.0, 6.0, 7.0]))).backward()
    assert_array_equal(grad_of(x), [5, 6, 7])
    assert asked == [("a", "b"), ("a",)]


def test_only_wanted_gradients_are_computed() -> None:
    ran: list[str] = []

    @primitive
    def product(xp: Any, a: Any, b: Any, /) -> Any:
        return a * b

    def by(name: str, other: str) -> Callable[..., Any]:
        if other == "b":
            return lambda g, b: ran.append(name) or g * b
        return lambda g, a: ran.append(name) or g * a

    product.vjp(a=by("a", "b"), b=by("b", "a"))
    mg.sum(product(vector(), vector(requires_grad=False))).backward()
    assert ran == ["a"]


# -------------------------------------------------------------------------------------------- gradients are one's own


def change(x: mg.Tensor) -> None:
    with no_grad():
        x *= 100.0


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a + b,
        lambda a, b: mg.concat([a, b])[:3] + mg.concat([a, b])[3:],
        lambda a, b: mg.reshape(a, (3, 1))[:, 0] + mg.flip(b),
        lambda a, b: mg.sum(mg.stack([a, b]), axis=0),
        lambda a, b: (a + 0) + (b + 0),
        lambda a, b: mg.positive(a) - (-b),
        lambda a, b: mg.astype(a, "float64") + mg.real(b),
    ],
    ids=["add", "concat", "views", "stack", "chain", "negative", "casts"],
)
def test_leaf_gradients_never_share_memory(f: Callable[..., Any], create_graph: bool) -> None:
    a, b, seed = vector(), vector(), tensor([1.0, 2.0, 3.0])
    f(a, b).backward(seed, create_graph=create_graph)
    before = grad_of(b)
    assert a.grad is not None
    assert a.grad is not b.grad
    assert a.grad is not seed
    change(a.grad)
    assert_array_equal(grad_of(b), before)
    assert_array_equal(value(seed), [1, 2, 3])


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradient_of_a_leaf_by_itself(create_graph: bool) -> None:
    x, seed = vector(), tensor([1.0, 2.0, 3.0])
    x.backward(seed, create_graph=create_graph)
    assert_array_equal(grad_of(x), [1, 2, 3])
    assert x.grad is not None
    change(x.grad)
    assert_array_equal(value(seed), [1, 2, 3])


def test_a_broadcast_gradient_can_be_written() -> None:
    x = vector()
    mg.sum(x).backward()  # the rule gives a broadcast 1, which is read-only and one element in memory
    assert x.grad is not None
    with no_grad():
        x.grad[0] = 7.0
    assert_array_equal(grad_of(x), [7, 1, 1])


# ------------------------------------------------------------------------------------------------ no_grad


def test_no_grad_as_context_manager() -> None:
    x = vector()
    with no_grad():
        assert not (x * 2).requires_grad
        with no_grad():
            pass
        assert not (x * 2).requires_grad  # still
    assert (x * 2).requires_grad
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert (x * 2).requires_grad


def test_one_no_grad_object_entered_twice() -> None:
    x, off = vector(), no_grad()
    with off:
        with off:
            assert not (x * 2).requires_grad
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_no_grad_as_decorator() -> None:
    @no_grad()
    def double(x: mg.Tensor) -> mg.Tensor:
        """Twice x."""
        return x * 2

    assert not double(vector()).requires_grad
    assert double.__doc__ == "Twice x."
    assert (vector() * 2).requires_grad


def test_no_grad_on_an_async_function() -> None:
    @no_grad()
    async def double(x: mg.Tensor) -> mg.Tensor:
        await asyncio.sleep(0)
        return x * 2

    async def main() -> tuple[bool, bool]:
        x = vector()
        inside = asyncio.create_task(double(x))
        await asyncio.sleep(0)  # `double` is now in the middle
        outside = (x * 2).requires_grad
        return (await inside).requires_grad, outside

    assert asyncio.run(main()) == (False, True)


def test_no_grad_refuses_generators() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="numbers is a generator"):
        no_grad()(numbers)


def test_no_grad_holds_for_one_task() -> None:
    async def with_grad(x: mg.Tensor, go: asyncio.Event) -> bool:
        await go.wait()
        return (x * 2).requires_grad

    async def main() -> bool:
        x, go = vector(), asyncio.Event()
        task = asyncio.create_task(with_grad(x, go))
        with no_grad():
            go.set()
            return await task

    assert asyncio.run(main())


def test_no_grad_holds_for_one_thread() -> None:
    x = vector()
    with no_grad(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (x * 2).requires_grad).result()
        assert not (x * 2).requires_grad


def test_eight_threads() -> None:
    start = threading.Barrier(8)
    shared = tensor([1.0, 2.0])  # a constant for all of them

    def work(seed: int) -> Any:
        start.wait()
        x = tensor([float(seed), 1.0], requires_grad=True)
        for _ in range(20):
            x.grad = None
            y = x
            for _ in range(10):
                y = y * shared + x
            mg.sum(y).backward()
        return grad_of(x)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    # y = sᵏ x + sᵏ⁻¹ x + … + x
    for found in results:
        assert_array_equal(found, [11, 2.0**11 - 1])


# ------------------------------------------------------------------------------------------------ size


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free anything in this test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_million_operations() -> None:
    """Forward, backward, and dropped without a recursion. (Other libraries take longer for each operation.)"""
    before = live_nodes()  # of tests that ran in this process before
    length = 1_000_000 if BACKEND == "numpy" else 20_000
    x = tensor(1.0, requires_grad=True)
    y = x
    for _ in range(length):
        y = -y
    assert y.item() == 1
    y.backward(retain_graph=True)
    assert grad_of(x) == 1
    del y
    assert live_nodes() == before


# ------------------------------------------------------------------------------------------------ memory


def live_nodes() -> int:
    return sum(type(thing) is autodiff.Node for thing in gc.get_objects())


GRAPHS: dict[str, Callable[[mg.Tensor], Any]] = {
    "add": lambda x: x + 1,
    "mul": lambda x: x * x,
    "exp": mg.exp,
    "matmul": lambda x: x @ x,
    "getitem": lambda x: x[:2],
    "softplus": softplus,
    "outputs": sin_and_cos,
    "unstack": mg.unstack,
    "concat": lambda x: mg.concat([x, x * 2]),
    "setitem": lambda x: mg.setitem(x, 0, x[1]),
    "checkpoint": mg.checkpoint(lambda x: mg.exp(mg.sin(x))),
    "checkpoint of two": mg.checkpoint(lambda x: (mg.exp(x), mg.sin(x))),
    "view": lambda x: mg.exp(mg.reshape(x, (3, 1))),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("f", GRAPHS.values(), ids=GRAPHS)
def test_a_dropped_graph_is_freed_at_once(f: Callable[..., Any]) -> None:
    before = live_nodes()
    x = vector()
    y = f(x)
    assert live_nodes() > before
    del y
    assert live_nodes() == before
    assert x._memory is None or x._memory.needed_by() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("f", GRAPHS.values(), ids=GRAPHS)
def test_nothing_is_left_after_backward(f: Callable[..., Any], create_graph: bool) -> None:
    before = live_nodes()
    x = vector()
    y = f(x)
    scalar = mg.sum(y[0] * y[0] if isinstance(y, tuple) else y * y)
    scalar.backward(create_graph=create_graph)
    del y, scalar
    x.grad = None
    assert live_nodes() == before


@pytest.mark.usefixtures("no_collector")
def test_transforms_leave_nothing() -> None:
    before = live_nodes()
    x = tensor([0.1, 0.2])
    mg.value_and_grad(lambda x: mg.sum(mg.sin(x)))(x)
    mg.hessian(lambda x: mg.sum(mg.sin(x)))(x)
    mg.jvp(mg.sin, [x], [x])
    mg.hvp(lambda x: mg.sum(mg.sin(x)), [x], [x])
    mg.vjp(mg.sin, x)[1](x)
    assert live_nodes() == before


@only_numpy
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("f", "input_kept", "output_kept"),
    [
        (mg.exp, False, True), (mg.tanh, False, True), (mg.sqrt, False, True), (lambda h: h + 1, False, False),
        (lambda h: h * 2, False, False), (mg.negative, False, False), (mg.sum, False, False), (mg.mean, False, False),
        (lambda h: mg.concat([h, h]), False, False), (lambda h: mg.roll(h, 1), False, False),
        (lambda h: mg.astype(h, "float32"), False, False), (lambda h: mg.setitem(h, 0, 1.0), False, False),
        (lambda h: h - h, False, False), (lambda h: mg.cumulative_sum(h), False, False),
        (mg.sin, True, False), (mg.log, True, False), (mg.square, True, False), (lambda h: h * h, True, False),
    ],
)  # fmt: skip
def test_a_rule_keeps_only_what_it_names(f: Callable[..., Any], input_kept: bool, output_kept: bool) -> None:
    x = vector()
    h = x * 2.0
    y = f(h)
    z = mg.sum(y + 1.0)
    inside, outside = weakref.ref(h._data), weakref.ref(y._data)
    del h, y
    assert (inside() is not None, outside() is not None) == (input_kept, output_kept)
    z.backward()
    assert inside() is None
    assert outside() is None
    assert z.requires_grad  # and yet the end of the graph is still here


@only_numpy
@pytest.mark.usefixtures("no_collector")
def test_memory_is_freed_as_the_backward_pass_goes() -> None:
    alive: list[bool] = []
    references: list[Any] = []

    @primitive
    def probe(xp: Any, x: Any, /) -> Any:
        return x + 0

    def rule(g: Any) -> Any:
        alive.append(any(r() is not None for r in references))
        return g

    probe.vjp(x=rule)
    h = probe(vector())
    for _ in range(3):
        h = mg.sin(h)
        references.append(weakref.ref(h._data))
    y = mg.sum(h)
    del h
    assert sum(r() is not None for r in references) == 2  # sin keeps its input; the last result is nobody's
    y.backward()
    assert alive == [False]


@only_numpy
@pytest.mark.usefixtures("no_collector")
def test_a_constant_is_not_kept() -> None:
    """For c · x only c is needed, and x is not."""
    x, c = vector(), vector(requires_grad=False)
    h = x + 0
    y = h * c
    kept, dropped = weakref.ref(c._data), weakref.ref(h._data)
    del h, c
    assert kept() is not None
    assert dropped() is None
    del y
    assert kept() is None


# ------------------------------------------------------------------------------------------------ in place

WRITES: dict[str, Callable[[mg.Tensor], None]] = {
    "x[…] = v": lambda x: x.__setitem__(..., 5.0),
    "x[0] = v": lambda x: x.__setitem__(0, 5.0),
    "x += v": lambda x: x.__iadd__(5.0),
    "x *= v": lambda x: x.__imul__(5.0),
    "x -= x": lambda x: x.__isub__(x.detach()),
    "x /= v": lambda x: x.__itruediv__(5.0),
    "x **= v": lambda x: x.__ipow__(2),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_to_what_a_pending_backward_needs(write: Callable[..., None]) -> None:
    w, x = vector(), vector(requires_grad=False)
    y = mg.sum(mg.sin(w) * x)
    with pytest.raises(RuntimeError, match=r"would change values that `multiply` needs for a pending backward pass"):
        write(x)
    assert_array_equal(value(x), [1, 2, 3])
    y.backward()
    assert_allclose(grad_of(w), numpy.cos([1, 2, 3]) * [1, 2, 3])
    write(x)  # now it may
    assert not numpy.array_equal(value(x), [1, 2, 3])


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_after_the_graph_is_dropped(write: Callable[..., None]) -> None:
    w, x = vector(), vector(requires_grad=False)
    y = w * x
    with pytest.raises(RuntimeError, match="`multiply`"):
        write(x)
    del y
    write(x)
    assert not numpy.array_equal(value(x), [1, 2, 3])


def test_writing_to_an_output_that_is_needed() -> None:
    x = vector()
    y = mg.exp(x)
    with no_grad(), pytest.raises(RuntimeError, match="`exp`"):
        y[0] = 1.0
    mg.sum(y).backward()
    with no_grad():
        y[0] = 1.0


def test_writing_to_what_nobody_needs() -> None:
    w, x = vector(), vector(requires_grad=False)
    y = mg.sum(w + x)
    x[0] = 100.0
    y.backward()
    assert_array_equal(grad_of(w), [1, 1, 1])


@only_writable
def test_raw_writes_to_what_is_needed() -> None:
    w, x = vector(), vector(requires_grad=False)
    y = w * x
    with pytest.raises((RuntimeError, ValueError), match=r"`multiply`|read-only"):
        x.data += 1.0
    if BACKEND == "numpy":  # the others cannot refuse
        with pytest.raises(ValueError, match="read-only"):
            x.data[0] = 5.0
        with pytest.raises(ValueError, match="read-only"):
            x.numpy()[0] = 5.0
        assert_array_equal(value(x), [1, 2, 3])
    del y
    before = value(x)
    x.data += 1.0
    assert_array_equal(value(x), before + 1)
    x.data[0] = 5.0
    assert value(x)[0] == 5


def test_replacing_data_does_not_disturb_a_graph() -> None:
    w, x = vector(), vector(requires_grad=False)
    y = mg.sum(w * x)
    x.data = tensor([7.0, 8.0, 9.0])
    w.data = tensor([0.0, 0.0, 0.0])
    x[0] = 0.0  # its memory is another one now
    y.backward()
    assert_array_equal(grad_of(w), [1, 2, 3])


VIEWS: dict[str, Callable[[mg.Tensor], mg.Tensor]] = {
    "slice": lambda x: x[1:],
    "reshape": lambda x: mg.reshape(x, (3, 1)),
    "transpose": lambda x: mg.matrix_transpose(x[None]),
    "expand": lambda x: x[None],
    "detach": lambda x: x.detach(),
    "view of a view": lambda x: mg.permute_dims(mg.reshape(x, (1, 3)), (1, 0)),
    "broadcast": lambda x: mg.broadcast_to(x, (2, 3)),
    "squeeze": lambda x: mg.squeeze(x[None], axis=0),
    "asarray": mg.asarray,
}


@only_writable
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_writing_to_the_base_of_a_needed_view(view: Callable[..., Any]) -> None:
    w, x = tensor(2.0, requires_grad=True), vector(requires_grad=False)
    seen = view(x)
    y = mg.sum(w * seen)
    with pytest.raises(RuntimeError, match="`multiply`"):
        x[0] = 100.0
    total = value(seen).sum()
    y.backward()
    assert grad_of(w) == total
    x[0] = 100.0


@only_writable
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_writing_to_a_view_of_a_needed_base(view: Callable[..., Any]) -> None:
    w, x = tensor(2.0, requires_grad=True), vector(requires_grad=False)
    seen = view(x)
    y = mg.sum(w * x)
    with pytest.raises(RuntimeError, match="`multiply`"):
        seen[...] = 100.0
    y.backward()
    assert grad_of(w) == 6


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no views")
def test_a_view_sees_writes_where_the_library_has_views() -> None:
    x = vector(requires_grad=False)
    seen = x[1:]
    x[1] = 100.0
    assert_array_equal(value(seen), [100, 3])


def test_iadd_on_a_leaf_that_requires_a_gradient() -> None:
    x = vector()
    for write in WRITES.values():
        with pytest.raises(RuntimeError, match="on a leaf that requires a gradient"):
            write(x)
    with no_grad():
        x += 1.0
        x[0] = 0.0
    assert_array_equal(value(x), [0, 3, 4])
    assert x.requires_grad


def test_assignment_in_a_graph_gives_gradients_to_both_sides() -> None:
    x, v = vector(), tensor([10.0, 20.0], requires_grad=True)
    y = x * 2
    y[1:] = v * 3
    mg.sum(y * y).backward()
    assert_array_equal(grad_of(x), [8, 0, 0])  # y₀ = 2x₀
    assert_array_equal(grad_of(v), [180, 360])


def test_assignment_of_a_tracked_value_to_a_constant() -> None:
    v = tensor(2.0, requires_grad=True)
    y = tensor(numpy.zeros(3))
    y[1] = v * v
    assert y.requires_grad
    mg.sum(y * tensor([1.0, 10.0, 100.0])).backward()
    assert grad_of(v) == 40


def test_assignment_does_not_change_what_was_needed_before() -> None:
    x = vector()
    y = mg.exp(x)
    before = y * y  # needs the old values
    y[0] = 0.0
    y += x
    mg.sum(before).backward()
    assert_allclose(grad_of(x), 2 * numpy.exp([2.0, 4.0, 6.0]))


@pytest.mark.parametrize(
    ("operator", "reference"),
    [
        ("__iadd__", lambda a, b: a + b), ("__isub__", lambda a, b: a - b), ("__imul__", lambda a, b: a * b),
        ("__itruediv__", lambda a, b: a / b),
    ],
)  # fmt: skip
def test_in_place_arithmetic_in_a_graph(operator: str, reference: Callable[..., Any]) -> None:
    a, b = vector(), tensor([4.0, 5.0, 6.0], requires_grad=True)
    y = mg.positive(a)
    same = y
    y = getattr(y, operator)(b)
    assert y is same
    mg.sum(y**2).backward()
    x, z = vector(), tensor([4.0, 5.0, 6.0], requires_grad=True)
    mg.sum(reference(x, z) ** 2).backward()
    assert_allclose(grad_of(a), grad_of(x))
    assert_allclose(grad_of(b), grad_of(z))


def test_in_place_keeps_shape_and_dtype() -> None:
    x = vector(requires_grad=False)
    with pytest.raises(ValueError, match=r"the result, float64 \(2, 3\).*, does not fit into float64 \(3,\)"):
        x += tensor(numpy.ones((2, 3)))
    half = tensor(numpy.ones(3, numpy.float32))
    with pytest.raises((ValueError, TypeError), match="float64"):
        half += vector(requires_grad=False)
    integers = tensor([1, 2])
    with pytest.raises((ValueError, TypeError), match="int64"):
        integers /= 2


def test_checkpoint_arguments_are_needed() -> None:
    w, x = vector(), vector(requires_grad=False)
    y = mg.checkpoint(lambda w, x: w * x)(w, x)
    with pytest.raises(RuntimeError, match="needs for a pending backward pass"):
        x[0] = 100.0
    del y
    x[0] = 100.0


# ------------------------------------------------------------------------------------------------ the host is not asked


def test_no_copy_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward and a step of the optimizer run without one look at a value."""
    w = tensor(numpy.ones((3, 3)) * 0.1, requires_grad=True)
    b = tensor(numpy.zeros(3), requires_grad=True)
    x = tensor(numpy.ones((4, 3)))
    rows = tensor([0, 2, 2])
    optimizer = mg.optim.AdamW([w, b])

    def refuse(*args: Any) -> Any:
        raise AssertionError("copied to the host")

    monkeypatch.setattr(backend, "to_numpy", refuse)
    for name in ("__bool__", "__float__", "__int__", "__index__", "__complex__", "item", "tolist", "numpy"):
        monkeypatch.setattr(mg.Tensor, name, refuse)
    for create_graph in (False, True):
        h = mg.tanh(x @ w + b)
        h = mg.where(h > 0, h, mg.exp(h) - 1)
        h = mg.concat([h, mg.take(h, rows, axis=0)])
        h = h - mg.max(h, axis=1, keepdims=True) + mg.std(h) + mg.prod(h) + mg.clip(h, -1, 1)[..., ::-1]
        loss = mg.checkpoint(lambda h: mg.mean(h * h))(h)
        optimizer.zero_grad()
        loss.backward(create_graph=create_graph)
        mg.optim.clip_grad_norm_([w, b], 1.0)
        optimizer.step()
    with pytest.raises(AssertionError, match="copied to the host"):
        float(loss)  # so the test would have noticed


@pytest.mark.peers
def test_jax_can_trace_it() -> None:
    """A tracing compiler has no values at all."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any) -> Any:
        h = mg.tanh(w @ w) if type(w) is mg.Tensor else jnp.tanh(w @ w)
        xp = mg if type(w) is mg.Tensor else jnp
        h = xp.where(h > 0, h, xp.exp(h)) + xp.max(h, axis=0)
        return xp.sum(h[1:, ::-1] * h[:-1]) + xp.std(h) + xp.prod(h[0])

    @jax.jit
    def ours(w: Any) -> tuple[Any, Any]:
        leaf = mg.asarray(w)
        leaf.requires_grad = True
        y = loss(leaf)
        y.backward()
        assert leaf.grad is not None
        return y.data, leaf.grad.data

    with mg.use_backend("jax"):
        w = jnp.asarray(numpy.random.default_rng(0).normal(size=(3, 3)))
        y, g = ours(w)
        expected_y, expected_g = jax.value_and_grad(loss)(w)
    assert_allclose(numpy.asarray(y), numpy.asarray(expected_y), rtol=1e-12)
    assert_allclose(numpy.asarray(g), numpy.asarray(expected_g), rtol=1e-10)


@pytest.mark.peers
def test_a_training_step_can_be_traced() -> None:
    import jax
    import jax.numpy as jnp

    def train(w: Any, x: Any) -> Any:
        leaf = mg.asarray(w)
        leaf.requires_grad = True
        optimizer = mg.optim.AdamW([leaf], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            mg.mean(mg.checkpoint(lambda w: (mg.asarray(x) @ w) ** 2)(leaf)).backward()
            mg.optim.clip_grad_norm_([leaf], 1.0)
            optimizer.step()
        return leaf.data

    with mg.use_backend("jax"):
        w, x = jnp.ones((3, 2)), jnp.arange(12.0).reshape(4, 3)
        assert_allclose(numpy.asarray(jax.jit(train)(w, x)), numpy.asarray(train(w, x)), rtol=1e-12)
