"""The same functions in PyTorch, JAX and HIPS autograd: value, gradient and second derivative, in float64."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose

import minigrad as mg

pytestmark = pytest.mark.peers

Function = Callable[..., Any]


def uniform(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    return numpy.random.default_rng(seed).uniform(low, high, shape)


# name: (function of a namespace and arrays, arrays). Written in names that NumPy, JAX and PyTorch share.
CASES: dict[str, tuple[Function, list[Any]]] = {
    **{
        name: (lambda xp, x, name=name: getattr(xp, name)(x), [uniform(1, 3, 4, low=low, high=high)])
        for name, low, high in (
            ("exp", -2, 2), ("expm1", -2, 2), ("log", 0.5, 3), ("log1p", -0.5, 3), ("log2", 0.5, 3), ("log10", 0.5, 3),
            ("sin", -2, 2), ("cos", -2, 2), ("tan", -1, 1), ("sinh", -2, 2), ("cosh", -2, 2), ("tanh", -2, 2),
            ("sqrt", 0.5, 2), ("square", -2, 2), ("reciprocal", 0.5, 2), ("abs", -2, 2), ("negative", -2, 2),
        )
    },
    "add": (lambda xp, x, y: x + y, [uniform(1, 3, 1), uniform(2, 4)]),
    "subtract": (lambda xp, x, y: x - y, [uniform(1, 3, 1), uniform(2, 4)]),
    "multiply": (lambda xp, x, y: x * y, [uniform(1, 2, 1, 4), uniform(2, 3, 1)]),
    "divide": (lambda xp, x, y: x / y, [uniform(1, 3, 4), uniform(2, 4, low=0.5)]),
    "pow": (lambda xp, x, y: x**y, [uniform(1, 3, 4, low=0.5), uniform(2, 4)]),
    "pow of a scalar": (lambda xp, x: x**3 + 2.0**x + x**-1, [uniform(1, 3, 4, low=0.5)]),
    "maximum": (lambda xp, x, y: xp.maximum(x, y) * x, [uniform(1, 3, 4), uniform(2, 3, 4)]),
    "minimum": (lambda xp, x, y: xp.minimum(x, y) * y, [uniform(1, 3, 4), uniform(2, 3, 4)]),
    "logaddexp": (lambda xp, x, y: xp.logaddexp(x, y), [uniform(1, 3, 4), uniform(2, 4)]),
    "hypot": (lambda xp, x, y: xp.hypot(x, y), [uniform(1, 3, 4), uniform(2, 4)]),
    "where": (lambda xp, x, y: xp.where(x > 0, x * y, y**2), [uniform(1, 3, 4), uniform(2, 4)]),
    "sum": (lambda xp, x: xp.sum(x, axis=(0, -1)) ** 2, [uniform(1, 2, 3, 4)]),
    "sum of all": (lambda xp, x: xp.sum(x) ** 2, [uniform(1, 2, 3)]),
    "mean": (lambda xp, x: xp.mean(x, axis=1, keepdims=True) * x, [uniform(1, 2, 3, 4)]),
    "prod": (lambda xp, x: xp.prod(x, axis=1), [uniform(1, 2, 3)]),
    "matmul": (lambda xp, x, y: xp.matmul(x, y), [uniform(1, 2, 3), uniform(2, 3, 4)]),
    "batched matmul": (lambda xp, x, y: xp.matmul(x, y), [uniform(1, 5, 1, 2, 3), uniform(2, 4, 3, 2)]),
    "matmul of vectors": (lambda xp, x, y: xp.matmul(x, y), [uniform(1, 3), uniform(2, 3)]),
    "matmul of a vector": (lambda xp, x, y: xp.matmul(x, y), [uniform(1, 3), uniform(2, 2, 3, 4)]),
    "tensordot": (lambda xp, x, y: xp.tensordot(x, y), [uniform(1, 2, 3, 4), uniform(2, 3, 4, 2)]),
    "reshape": (lambda xp, x: xp.reshape(x, (4, 3)) ** 2, [uniform(1, 3, 4)]),
    "slices": (lambda xp, x: x[1:, 0] * x[:-1, 2], [uniform(1, 3, 4)]),
    "an integer and a new axis": (lambda xp, x: x[0, :, None] * x[1], [uniform(1, 3, 4)]),
    "softmax": (
        lambda xp, x: xp.exp(x) / xp.sum(xp.exp(x), axis=-1, keepdims=True), [uniform(1, 3, 4)],
    ),
    "a network": (
        lambda xp, x, w, v: xp.sum(xp.tanh(xp.matmul(xp.sin(xp.matmul(x, w)), v)) ** 2, axis=0),
        [uniform(1, 5, 3), uniform(2, 3, 4), uniform(3, 4, 2)],
    ),
    "a polynomial": (lambda xp, x, y: x**2 * y + x * y**3 - x, [uniform(1, 3), uniform(2, 3)]),
}  # fmt: skip

# HIPS autograd has no rule for these, or none that broadcasts.
NOT_IN_HIPS = {"hypot"}


def weights(out: Any) -> Any:
    return uniform(9, *out.shape)


def ours(f: Function, arrays: list[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Value, gradients, and gradients of ½ Σ |gradient|²."""
    inputs = [tensor(a, requires_grad=True) for a in arrays]
    out = f(mg, *inputs)
    mg.sum(out * tensor(weights(out))).backward(create_graph=True)
    first = [x.grad for x in inputs]
    for x in inputs:
        x.grad = None
    energy = sum(mg.sum(g * g) for g in first if g is not None) / 2
    if energy.requires_grad:
        energy.backward()
    second = [numpy.zeros(x.shape) if x.grad is None else value(x.grad) for x in inputs]
    return value(out), [value(g) for g in first], second


def host(x: Any) -> Any:
    """A PyTorch tensor as a NumPy array, whatever it is attached to."""
    return x.numpy(force=True)


def compare(found: Any, expected: Any, rtol: float = 1e-10) -> None:
    for part, peer in zip(found, expected, strict=True):
        if isinstance(part, list):
            compare(part, peer, rtol)
        else:
            assert_allclose(part, peer, rtol=rtol, atol=1e-11)


@pytest.mark.parametrize(("f", "arrays"), CASES.values(), ids=CASES)
def test_as_pytorch(f: Function, arrays: list[Any]) -> None:
    import torch

    from minigrad.backend import load

    xp = load("torch")  # PyTorch under the standard's names
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    out = f(xp, *inputs)
    scalar = (out * torch.tensor(weights(out))).sum()
    first = torch.autograd.grad(scalar, inputs, create_graph=True)
    energy = sum((g * g).sum() for g in first) / 2
    second = [torch.zeros_like(x) for x in inputs]
    if energy.requires_grad:
        found = torch.autograd.grad(energy, inputs, allow_unused=True)
        second = [z if g is None else g for z, g in zip(second, found, strict=True)]
    compare(ours(f, arrays), (host(out), [host(g) for g in first], [host(g) for g in second]))


@pytest.mark.parametrize(("f", "arrays"), CASES.values(), ids=CASES)
def test_as_jax(f: Function, arrays: list[Any]) -> None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    inputs = [jnp.asarray(a) for a in arrays]
    numbers = tuple(range(len(inputs)))

    def scalar(*inputs: Any) -> Any:
        out = f(jnp, *inputs)
        return jnp.sum(out * weights(out))

    first = jax.jit(jax.grad(scalar, numbers))
    energy = jax.jit(jax.grad(lambda *x: sum(jnp.sum(g * g) for g in jax.grad(scalar, numbers)(*x)) / 2, numbers))
    compare(ours(f, arrays), (f(jnp, *inputs), list(first(*inputs)), list(energy(*inputs))))


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_HIPS])
def test_as_hips_autograd(name: str) -> None:
    import autograd
    import autograd.numpy as anp

    f, arrays = CASES[name]

    def scalar(*inputs: Any) -> Any:
        out = f(anp, *inputs)
        return anp.sum(out * weights(out))

    numbers = list(range(len(arrays)))
    first = [autograd.grad(scalar, i)(*arrays) for i in numbers]

    def energy(*inputs: Any) -> Any:
        return sum(anp.sum(autograd.grad(scalar, i)(*inputs) ** 2) for i in numbers) / 2

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Output seems independent of input")  # as that of a linear function is
        second = [autograd.grad(energy, i)(*arrays) for i in numbers]
    compare(ours(f, arrays), (f(numpy, *arrays), first, second))


def test_as_pytorch_with_complex_numbers() -> None:
    """PyTorch's convention: the gradient of a real loss points along its steepest ascent."""
    import torch

    z = uniform(1, 3, 4) + 1j * uniform(2, 3, 4)
    w = uniform(3, 4, 2) + 1j * uniform(4, 4, 2)
    functions: list[Function] = [
        lambda xp, z, w: xp.exp(z) @ w,
        lambda xp, z, w: xp.abs(z) @ xp.real(w),
        lambda xp, z, w: xp.conj(z) @ (w * w),
        lambda xp, z, w: xp.sum(xp.imag(z)) * xp.prod(w[0]),
        lambda xp, z, w: xp.tanh(z / 3) @ (1 / w),
        lambda xp, z, w: xp.linalg.vecdot(z, w.T[:1]),
    ]
    for f in functions:
        x, y = tensor(z, requires_grad=True), tensor(w, requires_grad=True)
        out = f(mg, x, y)
        mg.sum(mg.abs(out) ** 2).backward()
        a, b = torch.tensor(z, requires_grad=True), torch.tensor(w, requires_grad=True)
        peer = f(torch, a, b)
        (peer.abs() ** 2).sum().backward()
        compare(
            (value(out), [value(x.grad), value(y.grad)]),
            (host(peer), [host(a.grad), host(b.grad)]),
        )


def test_indexing_as_pytorch() -> None:
    import torch

    a = uniform(1, 4, 3)
    rows, columns, mask = numpy.array([0, 2, 2, -1]), numpy.array([1, 1, 1, 0]), a > 0
    keys: list[tuple[Any, Any, Any]] = [
        (rows, tensor(rows), torch.tensor(rows)),
        ((rows, columns), (tensor(rows), tensor(columns)), (torch.tensor(rows), torch.tensor(columns))),
        (mask, tensor(mask), torch.tensor(mask)),
        ((..., None, slice(0, 2)),) * 3,
    ]
    for _, key, peer_key in keys:
        x, y = tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
        mg.sum(x[key] ** 3).backward()
        (y[peer_key] ** 3).sum().backward()
        assert_allclose(value(x.grad), host(y.grad), rtol=1e-13)


def test_statistics_as_pytorch() -> None:
    import torch

    a = uniform(1, 3, 4)
    for f, peer in (
        (lambda x: mg.std(x, axis=1, correction=1), lambda x: x.std(dim=1, correction=1)),
        (lambda x: mg.var(x, axis=0), lambda x: x.var(dim=0, correction=0)),
        (lambda x: mg.max(x, axis=1), lambda x: x.amax(dim=1)),
        (lambda x: mg.min(x), lambda x: x.amin()),
        (lambda x: mg.cumulative_sum(x, axis=1), lambda x: x.cumsum(dim=1)),
        (lambda x: mg.take_along_axis(x, mg.argmax(x, axis=1, keepdims=True)), lambda x: x.max(dim=1, keepdim=True)[0]),
        (lambda x: mg.clip(x, -1, 1), lambda x: x.clip(-1, 1)),
        (lambda x: mg.roll(x, (1, -1), axis=(0, 1)), lambda x: x.roll((1, -1), (0, 1))),
        (lambda x: mg.tril(x, k=1), lambda x: x.tril(1)),
        (lambda x: mg.repeat(x, 2, axis=1), lambda x: x.repeat_interleave(2, dim=1)),
        (lambda x: mg.tile(x, (2, 1)), lambda x: x.tile((2, 1))),
    ):
        x, y = tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
        out, expected = f(x), peer(y)
        mg.sum(out**3).backward()
        (expected**3).sum().backward()
        compare((value(out), value(x.grad)), (host(expected), host(y.grad)))


@pytest.mark.parametrize("values", [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
def test_ties_as_pytorchs_amax(values: list[float]) -> None:
    import torch

    x, y = tensor(values, requires_grad=True), torch.tensor(values, dtype=torch.float64, requires_grad=True)
    mg.max(x).backward()
    y.amax().backward()
    assert_allclose(value(x.grad), host(y.grad))
    x.grad = y.grad = None
    mg.sum(mg.maximum(x, tensor([3.0, 3.0, 2.0]))).backward()
    torch.maximum(y, torch.tensor([3.0, 3.0, 2.0], dtype=torch.float64)).sum().backward()
    assert_allclose(value(x.grad), host(y.grad))


def test_derivatives_of_special_functions_as_scipy() -> None:
    """The nth derivative of e^(-x²) is (-1)ⁿ Hₙ(x) e^(-x²), with the Hermite polynomials of SciPy."""
    from scipy import special

    f = lambda x: mg.exp(-x * x)
    for n in range(1, 6):
        f = mg.grad(f)
        expected = (-1) ** n * special.eval_hermite(n, 0.6) * numpy.exp(-0.36)
        assert_allclose(f(tensor(0.6)).item(), expected, rtol=1e-11)


def test_scipy_minimizes_with_our_gradient() -> None:
    from scipy import optimize

    def rosenbrock(x: Any) -> Any:
        return mg.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    a = uniform(1, 5)
    assert_allclose(value(mg.grad(rosenbrock)(tensor(a))), optimize.rosen_der(a), rtol=1e-11)
    assert_allclose(value(mg.hessian(rosenbrock)(tensor(a))), optimize.rosen_hess(a), rtol=1e-11, atol=1e-11)
    direction = uniform(2, 5)
    product = mg.hvp(rosenbrock, [tensor(a)], [tensor(direction)])
    assert_allclose(value(product), optimize.rosen_hess_prod(a, direction), rtol=1e-11)
