"""grad, vjp, jvp, jacobian, hessian, hvp and checkpoint: against closed forms and, nested, against each other."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
from checks import numeric_gradient, tensor, value
from numpy.testing import assert_allclose, assert_array_equal

import minigrad as mg
from minigrad import backend, checkpoint, grad, hessian, hvp, jacobian, jvp, no_grad, primitive, value_and_grad, vjp


class Layer(NamedTuple):
    w: Any
    b: Any


# ------------------------------------------------------------------------------------------------ grad


def test_grad_of_a_scalar_function() -> None:
    found = grad(lambda x: mg.sum(x**3))(tensor([1.0, 2.0]))
    assert_array_equal(value(found), [3, 12])
    assert not found.requires_grad


def test_arguments_may_be_floats_and_raw_arrays() -> None:
    assert grad(lambda x: x**3)(2.0).item() == 12
    raw = backend.from_numpy(numpy.array([1.0, 2.0]))
    assert_array_equal(value(grad(lambda x: mg.sum(x * x))(raw)), [2, 4])


def test_value_and_grad() -> None:
    y, g = value_and_grad(lambda x, k: mg.sum(x * x) * k)(tensor([1.0, 2.0]), k=3.0)
    assert y.item() == 15
    assert not y.requires_grad
    assert_array_equal(value(g), [6, 12])


def test_argnums() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return x * y**2 * z**3

    args = (tensor(2.0), tensor(3.0), tensor(1.0))
    assert grad(f, 1)(*args).item() == 12
    assert grad(f, -1)(*args).item() == 54
    assert [g.item() for g in grad(f, (0, 2))(*args)] == [9, 54]
    assert isinstance(grad(f, [0])(*args), tuple)
    with pytest.raises(ValueError, match=r"argnums=3 but the function got 3 positional argument"):
        grad(f, 3)(*args)


def test_nested_containers() -> None:
    tree = {
        "layers": [Layer(tensor([1.0, 2.0]), tensor(3.0)), Layer(tensor([4.0, 5.0]), tensor(6.0))],
        "pair": (tensor(7.0), tensor(8.0)),
        "empty": [],
    }

    def f(tree: Any) -> Any:
        first, second = tree["layers"]
        return mg.sum(first.w * second.w) * first.b + tree["pair"][0] ** 2

    found = grad(f)(tree)
    assert set(found) == set(tree)
    assert type(found["layers"][0]) is Layer
    assert type(found["pair"]) is tuple
    assert found["empty"] == []
    assert_array_equal(value(found["layers"][0].w), [12, 15])
    assert found["layers"][0].b.item() == 14
    assert_array_equal(value(found["layers"][1].w), [3, 6])
    assert found["layers"][1].b.item() == 0  # unused
    assert [g.item() for g in found["pair"]] == [14, 0]


def test_unused_arguments_get_zeros() -> None:
    found = grad(lambda x, y: mg.sum(x), (0, 1))(tensor([1.0]), tensor(numpy.float32([[1, 2]])))
    assert_array_equal(value(found[1]), [[0, 0]])
    assert backend.dtype_name(found[1].dtype) == "float32"
    assert_array_equal(value(grad(lambda x: tensor(1.0))(tensor([1.0, 2.0]))), [0, 0])


def test_grad_ignores_and_leaves_grad_attributes() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    x.grad = tensor([9.0, 9.0])
    assert_array_equal(value(grad(lambda x: mg.sum(x * x))(x)), [2, 4])
    assert_array_equal(value(x.grad), [9, 9])


def test_inside_no_grad() -> None:
    with no_grad():
        y, g = value_and_grad(lambda x: x**3)(tensor(2.0))
        second = grad(grad(lambda x: x**3))(tensor(2.0))
        _, pull = vjp(mg.sin, tensor(0.0))
        pulled = pull(tensor(1.0))[0]
    assert (y.item(), g.item(), second.item(), pulled.item()) == (8, 12, 12, 1)
    assert not any(x.requires_grad for x in (y, g, second, pulled))


def test_no_grad_inside() -> None:
    def f(x: Any) -> Any:
        with no_grad():
            constant = x * x
        return constant * x

    assert grad(f)(tensor(3.0)).item() == 9


# ------------------------------------------------------------------------------------------------ nesting


def test_fifth_derivative_of_sine() -> None:
    f = mg.sin
    for k in range(1, 6):
        f = grad(f)
        expected = [math.cos, lambda x: -math.sin(x), lambda x: -math.cos(x), math.sin, math.cos][k - 1](0.7)
        assert_allclose(f(tensor(0.7)).item(), expected, rtol=1e-13)


def test_perturbation_confusion() -> None:
    # d/dx (x · d/dy (x + y)) = d/dx (x · 1) = 1, and not 2 (Siskind and Pearlmutter, 2005)
    assert grad(lambda x: x * grad(lambda y: x + y)(tensor(1.0)))(tensor(3.0)).item() == 1
    # d/dx (x · d/dy (x y²)) = d/dx (2 x² y) = 4 x y
    assert grad(lambda x: x * grad(lambda y: x * y * y)(tensor(5.0)))(tensor(3.0)).item() == 60
    # the same Tensor inside and outside
    x = tensor(3.0)
    assert grad(lambda a: a * grad(lambda b: a * b)(x))(x).item() == 6
    assert grad(lambda a: grad(lambda b: a * b * b)(a))(x).item() == 12  # b = a: d/da 2 a a


def test_forward_over_reverse_over_reverse() -> None:
    f = grad(grad(lambda x: x**4))
    _, third = jvp(f, [tensor(2.0)], [tensor(1.0)])
    assert third.item() == 48


def test_gradient_penalty_is_trained_through() -> None:
    w, x = tensor([2.0, 3.0], requires_grad=True), tensor([5.0, 7.0])
    slope = grad(lambda x: mg.sum(w * x * x))(x)  # 2 w x
    penalty = mg.sum(slope**2)  # 4 w² x²
    penalty.backward()
    assert w.grad is not None
    assert_array_equal(value(w.grad), 8 * numpy.array([2 * 25, 3 * 49]))


def test_the_value_can_be_trained_through_as_well() -> None:
    w = tensor(2.0, requires_grad=True)
    y, g = value_and_grad(lambda x: w * x**2)(tensor(3.0))
    (y + g).backward()  # w x² + 2 w x
    assert w.grad is not None
    assert w.grad.item() == 15


def test_gradient_with_respect_to_the_point() -> None:
    x = tensor(3.0, requires_grad=True)
    grad(lambda x: x**3)(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 18


def test_transforms_of_what_the_function_closes_over() -> None:
    w = tensor([1.0, 2.0], requires_grad=True)
    for made in (
        jacobian(lambda x: w * x)(tensor([3.0, 4.0])),
        jvp(lambda x: w * x, [tensor([3.0, 4.0])], [tensor([1.0, 1.0])])[1],
        vjp(lambda x: w * x, tensor([3.0, 4.0]))[1](tensor([1.0, 1.0]))[0],
        hvp(lambda x: mg.sum(w * x * x / 2), [tensor([3.0, 4.0])], [tensor([1.0, 1.0])]),
    ):
        w.grad = None
        mg.sum(made).backward()
        assert w.grad is not None
        assert_allclose(value(w.grad), [1, 1])


def test_a_graph_outside_that_was_freed_is_no_obstacle() -> None:
    w = tensor(2.0, requires_grad=True)
    y = w * w
    y.backward()  # frees the graph of y, whose value is still good
    assert value(grad(lambda x: x * y)(tensor(3.0))) == 4


# ------------------------------------------------------------------------------------------------ vjp and jvp


def test_vjp_of_nested_outputs() -> None:
    x, y = tensor([1.0, 2.0]), tensor(3.0)
    out, pull = vjp(lambda x, y: {"a": x * y, "b": (mg.sum(x),)}, x, y)
    assert_array_equal(value(out["a"]), [3, 6])
    assert not out["a"].requires_grad
    for _ in range(2):  # it can be called again
        dx, dy = pull({"a": tensor([10.0, 100.0]), "b": (tensor(1.0),)})
        assert_array_equal(value(dx), [31, 301])
        assert dy.item() == 210
    with pytest.raises(ValueError, match=r"expected a cotangent of shape \(2,\), got \(3,\)"):
        pull({"a": tensor([1.0, 2.0, 3.0]), "b": (tensor(1.0),)})
    with pytest.raises(ValueError, match=r"expected a cotangent as a dict with the keys \['a', 'b'\], got \[Tensor"):
        pull([tensor([1.0, 2.0])])


def test_jvp_against_finite_differences() -> None:
    rng = numpy.random.default_rng(0)
    a, b, da, db = (rng.normal(size=shape) for shape in ((2, 3), (3,), (2, 3), (3,)))

    def f(x: Any, y: Any) -> Any:
        return mg.tanh(x * y) @ mg.exp(y), mg.sum(x)

    (out, total), (tangent, change) = jvp(f, [tensor(a), tensor(b)], [tensor(da), tensor(db)])
    ends = [numpy.tanh((a + h * da) * (b + h * db)) @ numpy.exp(b + h * db) for h in (1e-6, -1e-6)]
    assert_allclose(value(out), numpy.tanh(a * b) @ numpy.exp(b))
    assert_allclose(value(tangent), (ends[0] - ends[1]) / 2e-6, rtol=1e-7)
    assert_allclose(total.item(), a.sum())
    assert_allclose(change.item(), da.sum())
    assert not tangent.requires_grad


def test_vjp_and_jvp_are_adjoint() -> None:
    rng = numpy.random.default_rng(0)
    x, v, u = (tensor(rng.normal(size=shape)) for shape in ((3, 3), (3, 3), (3,)))

    def f(x: Any) -> Any:
        return mg.sum(mg.sin(x) @ mg.permute_dims(x, (1, 0)), axis=1)

    _, tangent = jvp(f, [x], [v])
    (cotangent,) = vjp(f, x)[1](u)
    assert_allclose(mg.sum(u * tangent).item(), mg.sum(cotangent * v).item(), rtol=1e-12)


def test_jvp_of_a_constant_function() -> None:
    _, tangent = jvp(lambda x: tensor([1.0, 2.0]), [tensor(1.0)], [tensor(1.0)])
    assert_array_equal(value(tangent), [0, 0])


# -------------------------------------------------------------------------------------------- jacobian, hessian, hvp


def test_jacobian() -> None:
    a = numpy.random.default_rng(0).normal(size=(2, 3))

    def f(x: Any) -> Any:
        return mg.sin(x) @ tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    found = jacobian(f)(tensor(a))
    assert found.shape == (2, 2, 2, 3)
    for i, j in numpy.ndindex(2, 2):
        matrix = numpy.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        row = numeric_gradient(lambda a, i=i, j=j, m=matrix: (numpy.sin(a) @ m)[i, j], [a], 0)
        assert_allclose(value(found)[i, j], row, rtol=1e-7, atol=1e-9)


def test_jacobian_of_several_arguments_and_shapes() -> None:
    dx, dy = jacobian(lambda x, y: x * mg.sum(y), (0, 1))(tensor([1.0, 2.0]), tensor([[3.0]]))
    assert_array_equal(value(dx), [[3, 0], [0, 3]])
    assert_array_equal(value(dy), [[[1]], [[2]]])
    assert jacobian(lambda x: x * 2)(tensor(1.0)).shape == ()
    assert jacobian(lambda x: x[:0])(tensor([1.0, 2.0])).shape == (0, 2)
    nested = jacobian(lambda t: t["a"] * t["b"])({"a": tensor([1.0, 2.0]), "b": tensor(3.0)})
    assert_array_equal(value(nested["a"]), [[3, 0], [0, 3]])
    assert_array_equal(value(nested["b"]), [1, 2])


def test_jacobian_of_a_holomorphic_function() -> None:
    """For a holomorphic function it is the derivative itself, which `grad` would conjugate."""
    z = numpy.array([1 + 2j, 0.5 - 1j])
    found = jacobian(lambda z: z * z)(tensor(z))
    assert_allclose(value(found), numpy.diag(2 * z))


def test_hessian_is_that_of_rosenbrock() -> None:
    def rosenbrock(x: Any) -> Any:
        return mg.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    x, y, z = 1.5, -0.5, 2.0
    found = hessian(rosenbrock)(tensor([x, y, z]))
    expected = [
        [1200 * x * x - 400 * y + 2, -400 * x, 0],
        [-400 * x, 1200 * y * y - 400 * z + 202, -400 * y],
        [0, -400 * y, 200],
    ]
    assert_allclose(value(found), expected, rtol=1e-13)
    v = tensor([1.0, 2.0, -1.0])
    product = hvp(rosenbrock, [tensor([x, y, z])], [v])
    assert_allclose(value(product), numpy.array(expected) @ [1, 2, -1], rtol=1e-13)


def test_hvp_of_several_arguments() -> None:
    # f = x² y: H = [[2y, 2x], [2x, 0]]
    dx, dy = hvp(lambda x, y: x * x * y, [tensor(3.0), tensor(5.0)], [tensor(1.0), tensor(10.0)])
    assert (dx.item(), dy.item()) == (2 * 5 + 2 * 3 * 10, 2 * 3)


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: grad(lambda x: x)(tensor([1.0])), ValueError, r"must return a real scalar Tensor, got float64 \(1,\)"),
        (lambda: grad(lambda x: 1.0)(tensor(1.0)), ValueError, "must return a real scalar Tensor, got 1.0"),
        (lambda: grad(lambda x: x)(tensor(1j)), ValueError, "must return a real scalar Tensor, got complex128"),
        (lambda: grad(lambda x: x)(tensor(1)), TypeError, r"expected floating-point arguments.*, got int64 \(\)"),
        (lambda: grad(lambda x: x)(True), TypeError, "expected floating-point arguments.*, got bool"),
        (lambda: vjp(lambda x: "text", tensor(1.0)), TypeError, "expected the function to return Tensors, got 'text'"),
        (lambda: jacobian(lambda x: (x, x))(tensor(1.0)), TypeError, "expected the function to return one Tensor"),
        (
            lambda: jvp(mg.sin, [tensor(1.0)], [tensor([1.0])]),
            ValueError,
            r"expected a tangent of shape \(\), got \(1,\)",
        ),
        (lambda: jvp(mg.sin, [tensor(1.0)], []), ValueError, r"expected a tangent of 1 elements, got \(\)"),
        (lambda: checkpoint(lambda x: 1.0)(tensor(1.0, True)), TypeError, "checkpoint: expected .* Tensors, got 1.0"),
    ],
)
def test_mistakes(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# ------------------------------------------------------------------------------------------------ checkpoint


def composed(w: Any, x: Any) -> Any:
    return mg.sum(mg.tanh(x @ w) * mg.exp(-w))


def both(f: Callable[..., Any]) -> list[Any]:
    w = tensor(numpy.random.default_rng(0).normal(size=(3, 3)), requires_grad=True)
    x = tensor(numpy.random.default_rng(1).normal(size=(3, 3)), requires_grad=True)
    y = f(w, x)
    y.backward()
    return [value(t) for t in (y, w.grad, x.grad)]


def test_checkpoint_changes_nothing() -> None:
    for found, expected in zip(both(checkpoint(composed)), both(composed), strict=True):
        assert_array_equal(found, expected)


def test_checkpoint_runs_the_function_again() -> None:
    calls = []

    @checkpoint
    def f(x: Any) -> Any:
        """Sine."""
        calls.append(1)
        return mg.sin(x)

    x = tensor([1.0], requires_grad=True)
    y = f(x)
    assert len(calls) == 1
    y.backward()
    assert len(calls) == 2
    assert f.__doc__ == "Sine."
    calls.clear()
    f(tensor([1.0]))
    with no_grad():
        f(x)
    assert len(calls) == 2


@pytest.mark.skipif(mg.get_backend() != "numpy", reason="needs weak references to arrays; it is the same code for all")
def test_checkpoint_keeps_nothing_inside() -> None:
    inside: list[Any] = []

    def f(x: Any) -> Any:
        h = mg.sin(x)
        inside.append(weakref.ref(h._data))
        return mg.sum(h * h)

    x = tensor(numpy.ones(4), requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        y = checkpoint(f)(x * 1.0)
        assert inside[0]() is None
        plain = f(x)
        assert inside[1]() is not None
        y.backward()
        assert inside[2]() is None
        del plain
    finally:
        gc.enable()
    assert_allclose(value(x.grad), numpy.sin(2.0) * numpy.ones(4))


@pytest.mark.skipif(mg.get_backend() != "numpy", reason="needs weak references to arrays; it is the same code for all")
def test_checkpoint_frees_its_arguments_after_backward() -> None:
    x = tensor(numpy.ones(4), requires_grad=True)
    h = x * 2
    y = mg.sum(checkpoint(mg.sin)(h))
    kept = weakref.ref(h._data)
    del h
    assert kept() is not None
    y.backward()
    assert kept() is None


def test_randomness_is_replayed() -> None:
    masks: list[Any] = []

    def dropout(x: Any) -> Any:
        mask = mg.astype(mg.random.uniform(x.shape) > 0.5, x.dtype)
        masks.append(value(mask))
        return mg.sum(x * x * mask)

    x = tensor(numpy.ones(50), requires_grad=True)
    y = checkpoint(dropout)(x)
    between = value(mg.random.uniform((3,)))
    y.backward()
    after = value(mg.random.uniform((3,)))
    assert_array_equal(masks[0], masks[1])
    assert x.grad is not None
    assert_array_equal(value(x.grad), 2 * masks[0])
    # and the stream outside goes on as if nothing had been drawn again
    mg.random.seed(0)
    mg.random.uniform((50,))
    assert_array_equal(between, value(mg.random.uniform((3,))))
    assert_array_equal(after, value(mg.random.uniform((3,))))


def test_checkpoint_of_a_closure() -> None:
    w, b = tensor([2.0, 3.0], requires_grad=True), tensor(1.0, requires_grad=True)
    scaled = w * 2  # not a leaf
    x = tensor([5.0, 7.0])  # needs no gradient
    y = checkpoint(lambda x: mg.sum(mg.square(scaled * x + b)))(x)
    y.backward()
    inner = 2 * (numpy.array([4.0, 6.0]) * [5, 7] + 1)
    assert w.grad is not None
    assert b.grad is not None
    assert_allclose(value(w.grad), inner * [5, 7] * 2)
    assert_allclose(value(b.grad), inner.sum())


def test_nested_checkpoints() -> None:
    @checkpoint
    def inner(x: Any) -> Any:
        return mg.sin(x) * x

    @checkpoint
    def outer(w: Any, x: Any) -> Any:
        return mg.sum(inner(inner(w)) * x)

    def plain(w: Any, x: Any) -> Any:
        once = mg.sin(w) * w
        return mg.sum(mg.sin(once) * once * x)

    for found, expected in zip(both(outer), both(plain), strict=True):
        assert_allclose(found, expected, rtol=1e-13)


def test_checkpoint_with_several_outputs() -> None:
    def f(x: Any) -> dict[str, Any]:
        return {"a": mg.exp(x), "b": (mg.sin(x), mg.cos(x))}

    x = tensor([0.3, 0.4], requires_grad=True)
    out = checkpoint(f)(x)
    assert type(out["b"]) is tuple
    mg.sum(out["a"] * out["b"][0]).backward()  # cos is not used
    assert x.grad is not None
    a = numpy.array([0.3, 0.4])
    assert_allclose(value(x.grad), numpy.exp(a) * (numpy.sin(a) + numpy.cos(a)))


def test_checkpoint_twice_differentiated() -> None:
    f = checkpoint(lambda x: mg.sum(mg.sin(x) * mg.exp(x)))
    x = tensor([0.3, 0.4])
    a = value(x)
    assert_allclose(value(grad(f)(x)), numpy.exp(a) * (numpy.sin(a) + numpy.cos(a)))
    assert_allclose(value(hessian(f)(x)), numpy.diag(2 * numpy.exp(a) * numpy.cos(a)), atol=1e-15)
    _, tangent = jvp(grad(f), [x], [tensor([1.0, 2.0])])
    assert_allclose(value(tangent), 2 * numpy.exp(a) * numpy.cos(a) * [1, 2])

    y = tensor([0.3, 0.4], requires_grad=True)
    f(y).backward(create_graph=True)
    slope, y.grad = y.grad, None
    assert slope is not None
    mg.sum(slope).backward()
    assert_allclose(value(y.grad), 2 * numpy.exp(a) * numpy.cos(a))


def test_checkpoint_backward_twice() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    y = mg.sum(checkpoint(mg.square)(x))
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [4, 8])
    with pytest.raises(RuntimeError, match="freed by an earlier backward pass"):
        y.backward()


def test_checkpoint_sees_arguments_as_they_were() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    h = x * 1
    y = mg.sum(checkpoint(mg.square)(h))
    h += 10.0  # h is another value now, and the checkpoint knows the old one
    y.backward()
    assert x.grad is not None
    assert_array_equal(value(x.grad), [2, 4])


def test_checkpoint_of_complex_numbers() -> None:
    z = tensor([1 + 2j, 0.5 - 1j], requires_grad=True)
    mg.sum(mg.real(checkpoint(lambda z: z * z)(z))).backward()
    assert z.grad is not None
    assert_allclose(value(z.grad), numpy.conj(2 * value(z)))


def test_an_error_while_recomputing_leaves_the_generator_alone() -> None:
    calls: list[int] = []

    def f(x: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("second call")
        return mg.sum(x * mg.random.uniform(x.shape))

    y = checkpoint(f)(tensor([1.0, 2.0], requires_grad=True))
    state = mg.random.default.state
    with pytest.raises(KeyError):
        y.backward()
    assert mg.random.default.state == state


def test_checkpoint_of_a_primitive_of_ones_own() -> None:
    @primitive
    def cube(xp: Any, x: Any, /) -> Any:
        return x * x * x

    cube.vjp(x=lambda g, x: 3 * g * x * x)
    assert value(grad(checkpoint(cube))(tensor(2.0))) == 12
    assert value(grad(grad(checkpoint(cube)))(tensor(2.0))) == 12


# ------------------------------------------------------------------------------------------------ JAX


@pytest.mark.peers
def test_as_jax() -> None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    rng = numpy.random.default_rng(0)
    w, x, v = rng.normal(size=(3, 3)), rng.normal(size=(3,)), rng.normal(size=(3,))

    def f(xp: Any) -> Callable[..., Any]:
        return lambda x, w: xp.sum(xp.tanh(w @ x) ** 2 * xp.exp(-x)) + xp.max(x) * xp.prod(x)

    def vector(xp: Any) -> Callable[..., Any]:
        return lambda x, w: xp.sin(w @ x) * x[::-1]

    ours, theirs = (tensor(x), tensor(w)), (jnp.asarray(x), jnp.asarray(w))

    def same(found: Any, expected: Any) -> None:
        assert_allclose(value(found), numpy.asarray(expected), rtol=1e-11, atol=1e-12)

    for i in (0, 1):
        same(grad(f(mg), i)(*ours), jax.grad(f(jnp), i)(*theirs))
        same(jacobian(vector(mg), i)(*ours), jax.jacobian(vector(jnp), i)(*theirs))
        same(hessian(f(mg), i)(*ours), jax.hessian(f(jnp), i)(*theirs))
    for found, expected in zip(
        jvp(vector(mg), ours, (tensor(v), tensor(w))), jax.jvp(vector(jnp), theirs, (v, w)), strict=True
    ):
        same(found, expected)
    for found, expected in zip(
        vjp(vector(mg), *ours)[1](tensor(v)), jax.vjp(vector(jnp), *theirs)[1](jnp.asarray(v)), strict=True
    ):
        same(found, expected)
    third = grad(lambda x, w: mg.sum(hvp(lambda x: f(mg)(x, w), [x], [tensor(v)]) ** 2))
    peer = jax.grad(lambda x, w: jnp.sum((jax.hessian(f(jnp))(x, w) @ v) ** 2))
    same(third(*ours), peer(*theirs))
