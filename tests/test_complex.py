"""Complex numbers: the gradient of a real loss is ∂/∂Re + i ∂/∂Im, PyTorch's convention, so that descent descends."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from checks import numeric_gradient, tensor, value
from numpy.testing import assert_allclose

import minigrad as mg
from minigrad import backend

BACKEND = backend.current().name

rng = numpy.random.default_rng(0)
Z = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
W = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3)) + 3 * numpy.eye(3)
A = rng.normal(size=(3, 3))

Loss = Callable[..., Any]

# Real losses of complex and real arguments, in names that minigrad, PyTorch and NumPy share.
LOSSES: dict[str, tuple[Loss, list[Any]]] = {
    "|z|²": (lambda xp, z: xp.sum(xp.abs(z) ** 2), [Z]),
    "|z|": (lambda xp, z: xp.sum(xp.abs(z)), [Z]),
    "Re and Im": (lambda xp, z: xp.sum(xp.real(z) * xp.imag(z) ** 2), [Z]),
    "conj": (lambda xp, z: xp.sum(xp.real(xp.conj(z) * z * z)), [Z]),
    "sign": (lambda xp, z: xp.sum(xp.real(xp.sign(z) * (2 - 1j))), [Z]),
    "the angle": (lambda xp, z: xp.sum(xp.atan2(xp.imag(z), xp.real(z))), [Z]),
    "holomorphic": (lambda xp, z: xp.sum(xp.real(xp.exp(z) * xp.sin(z) / (3 + z * z))), [Z]),
    "powers": (lambda xp, z, w: xp.sum(xp.imag(z**2 + w ** (-1) + w**1.5)), [Z, W]),
    "a power of a power": (lambda xp, z, a: xp.sum(xp.real((z + 4) ** a)), [Z, A]),
    "a real times a complex one": (lambda xp, a, z: xp.sum(xp.abs(a * z + a) ** 2), [A, Z]),
    "a real minus and over a complex one": (lambda xp, a, z: xp.sum(xp.real((a - z) / z * (1 + 1j))), [A, Z]),
    "real arguments alone": (lambda xp, a: xp.sum(xp.abs(xp.exp(1j * a) + a)), [A]),
    "broadcasting": (lambda xp, a, z: xp.sum(xp.imag(a[:, :1] * z[0] + z[:1, 0] * 2j)), [A, Z]),
    "where": (lambda xp, a, z: xp.sum(xp.real(xp.where(a > 0, z * z * a, 2 * z) * 1j)), [A, Z]),
    "an index": (lambda xp, z: xp.sum(xp.abs(z[1:, 0] * z[0, 1:]) ** 2), [Z]),
    "matmul": (lambda xp, z, w: xp.sum(xp.abs(z @ w) ** 2), [Z, W]),
    "a real matrix times a complex one": (
        lambda xp, a, z: xp.sum(xp.real(xp.matmul(xp.matmul(a, z), a) * (1 - 2j))),
        [A, Z],
    ),
    "vecdot": (lambda xp, z, w: xp.sum(xp.imag(xp.linalg.vecdot(z, w) ** 2)), [Z, W]),
    "a quadratic form": (lambda xp, z, w: xp.sum(xp.real(xp.conj(z[0]) @ w @ z[0])), [Z, W]),
    "solve": (lambda xp, w, z: xp.sum(xp.abs(xp.linalg.solve(w, z)) ** 2), [W, Z]),
    "inv and det": (lambda xp, w: xp.sum(xp.abs(xp.linalg.inv(w))) + xp.real(xp.linalg.det(w)), [W]),
    "slogdet": (lambda xp, w: xp.linalg.slogdet(w)[1] + xp.imag(xp.linalg.slogdet(w)[0]), [W]),
    "singular values": (lambda xp, w: xp.sum(xp.linalg.svdvals(w) ** 3), [W]),
    "fft": (lambda xp, z: xp.sum(xp.abs(xp.fft.fft(z)) ** 3), [Z]),
    "fft of reals": (lambda xp, a: xp.sum(xp.abs(xp.fft.rfft(a)) ** 3), [A]),
    "a filter": (lambda xp, a, z: xp.sum(xp.fft.irfft(xp.fft.rfft(a) * z[:, :2], n=3) ** 2), [A, Z]),
    "a norm": (lambda xp, z: xp.linalg.vector_norm(z) ** 3, [Z]),
}


def real(x: Any) -> Any:
    return mg.real(x) if mg.isdtype(x.dtype, "complex floating") else x


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    f, arrays = LOSSES[name]
    xs = [tensor(a, requires_grad=True) for a in arrays]
    f(mg, *xs).backward()
    for i, (a, x) in enumerate(zip(arrays, xs, strict=True)):
        assert x.grad is not None
        assert x.grad.dtype == x.dtype  # real arguments get real gradients
        numeric = numeric_gradient(lambda *a: float(value(f(mg, *map(tensor, a)))), arrays, i)
        assert_allclose(value(x.grad), numeric, rtol=1e-6, atol=1e-7, err_msg=f"{name}: {a.dtype}")


@pytest.mark.skipif(BACKEND == "jax", reason="JAX compiles every operation, for minutes")
@pytest.mark.parametrize("name", LOSSES)
def test_second_order_is_that_of_finite_differences(name: str) -> None:
    f, arrays = LOSSES[name]
    generator = numpy.random.default_rng(1)
    directions = [generator.normal(size=a.shape) * (1 if a.dtype == float else 0.6 - 0.8j) for a in arrays]
    every = tuple(range(len(arrays)))

    def slopes(h: float) -> list[Any]:
        moved = [tensor(a + h * v) for a, v in zip(arrays, directions, strict=True)]
        return [value(g) for g in mg.grad(lambda *xs: f(mg, *xs), every)(*moved)]

    found = mg.hvp(lambda *xs: f(mg, *xs), list(map(tensor, arrays)), list(map(tensor, directions)))
    found = list(found) if isinstance(found, list | tuple) else [found]
    for product, up, down in zip(found, slopes(1e-5), slopes(-1e-5), strict=True):
        assert_allclose(value(product), (up - down) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX compiles every operation, for minutes")
@pytest.mark.parametrize("name", LOSSES)
def test_a_small_step_along_the_gradient_ascends(name: str) -> None:
    """The change of the loss is the square of the gradient's length: no other direction of that length gives more."""
    f, arrays = LOSSES[name]
    gradients = [value(g) for g in mg.grad(lambda *xs: f(mg, *xs), tuple(range(len(arrays))))(*map(tensor, arrays))]
    squared = sum(numpy.sum(numpy.abs(g) ** 2) for g in gradients)
    h = 1e-6 / numpy.sqrt(squared)
    up, down = (
        float(value(f(mg, *(tensor(a + d * g) for a, g in zip(arrays, gradients, strict=True))))) for d in (h, -h)
    )
    assert_allclose((up - down) / (2 * h), squared, rtol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize("name", LOSSES)
def test_as_pytorch(name: str) -> None:
    import array_api_compat.torch as xp
    import torch

    f, arrays = LOSSES[name]
    xs, peers = ([make(a) for a in arrays] for make in (tensor, torch.tensor))
    for x in (*xs, *peers):
        x.requires_grad = True
    loss = f(mg, *xs)
    loss.backward(create_graph=True)
    first = torch.autograd.grad(f(xp, *peers), peers, create_graph=True)
    assert_allclose(loss.item(), f(xp, *peers).item(), rtol=1e-12)
    for x, g in zip(xs, first, strict=True):
        assert_allclose(value(x.grad), g.numpy(force=True), rtol=1e-10, atol=1e-12)
    ours = sum(mg.sum(mg.abs(x.grad) ** 2) for x in xs)
    second = torch.autograd.grad(sum((g.abs() ** 2).sum() for g in first), peers, materialize_grads=True)
    for x, g, h in zip(xs, mg.autodiff.gradients_of([ours], [tensor(1.0)], xs), second, strict=True):
        assert_allclose(0 * x.numpy() if g is None else value(g), h.numpy(force=True), rtol=1e-9, atol=1e-9)


def test_holomorphic_functions_conjugate_their_derivative() -> None:
    z = tensor(Z, requires_grad=True)
    (z * z * z).backward(tensor(numpy.ones((3, 3), complex)))
    assert z.grad is not None
    assert_allclose(value(z.grad), numpy.conj(3 * Z**2))


def test_descent_finds_a_root() -> None:
    z = tensor(1 + 1j, requires_grad=True)
    for _ in range(200):
        (mg.abs(z * z + 1) ** 2).backward()
        with mg.no_grad():
            z -= 0.05 * z.grad
        z.grad = None
    assert_allclose(value(z), 1j, atol=1e-9)


def test_a_complex_gradient_can_start_the_pass() -> None:
    z = tensor(Z, requires_grad=True)
    seed = W
    (z * 2j).backward(tensor(seed))
    assert z.grad is not None
    assert_allclose(value(z.grad), seed * numpy.conj(2j))


def test_a_complex_scalar_is_no_loss() -> None:
    with pytest.raises(ValueError, match="no real scalar"):
        mg.sum(tensor(Z, requires_grad=True)).backward()


def test_abs_and_sign_at_zero() -> None:
    for f in (mg.abs, lambda z: mg.real(mg.sign(z))):
        z = tensor(numpy.zeros(2, complex), requires_grad=True)
        mg.sum(f(z)).backward()
        assert z.grad is not None
        assert_allclose(value(z.grad), 0)


def test_real_functions_of_real_numbers() -> None:
    a = tensor(A, requires_grad=True)
    if BACKEND == "array_api_strict":
        return  # asks for complex numbers
    for f, slope in ((mg.real, 1), (mg.conj, 1)):
        a.grad = None
        mg.sum(f(a) * 2).backward()
        assert_allclose(value(a.grad), numpy.full((3, 3), 2.0 * slope))


def test_single_precision_stays_single() -> None:
    z = tensor(Z.astype(numpy.complex64), requires_grad=True)
    a = tensor(A.astype(numpy.float32), requires_grad=True)
    mg.sum(mg.abs(z @ mg.astype(a, "complex64")) ** 2).backward()
    assert backend.dtype_name(z.grad.dtype) == "complex64"
    assert backend.dtype_name(a.grad.dtype) == "float32"
