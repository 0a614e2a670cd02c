"""The differentiable standard in PyTorch, JAX and HIPS autograd: values, first and second derivatives.

Gradients of real numbers by complex ones follow PyTorch's convention; the other two give the conjugate.
"""

import types
import warnings
from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose
from standard import CASES, UNCOMPARED, all_kinds, compared_with, function_of, seed_of

import minigrad as mg

pytestmark = pytest.mark.peers


def several(out: Any) -> list[Any]:
    return list(out) if isinstance(out, list | tuple) else [out]


def like(seed: int, x: Any) -> Any:
    """Random numbers of the shape of ``x``, complex where it is."""
    rng = numpy.random.default_rng(seed)
    real = numpy.asarray(rng.normal(size=tuple(x.shape)))
    return real + 1j * rng.normal(size=real.shape) if "complex" in str(x.dtype) else real


def minigrads(name: str, arrays: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, gradients of a random combination of them, and its Hessian times random directions."""
    f = CASES[name].f
    inputs = [tensor(a) for a in arrays]
    out = several(f(mg, *inputs))

    def scalar(*xs: Any) -> Any:
        return sum(product(mg, y, tensor(like(i, y))) for i, y in enumerate(several(f(mg, *xs))))

    every = tuple(range(len(inputs)))
    first = mg.grad(scalar, every)(*inputs)
    second = mg.hvp(scalar, inputs, [tensor(like(50 + i, a)) for i, a in enumerate(arrays)])
    return [value(y) for y in out], [value(g) for g in first], [value(h) for h in several(second)]


def product(xp: Any, y: Any, weights: Any) -> Any:
    """Re Σ y · weights."""
    total = xp.sum(y * weights)
    return xp.real(total) if "complex" in str(total.dtype) else total


def compare(found: Any, expected: Any) -> None:
    for part, peer, tolerance in zip(found, expected, (1e-11, 1e-9, 1e-7), strict=True):
        for mine, theirs in zip(part, peer, strict=True):
            assert mine.shape == tuple(theirs.shape)
            assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:torch.asarray:UserWarning")  # a change of its default, told once
@pytest.mark.parametrize(("name", "kind"), all_kinds())
def test_as_pytorch(name: str, kind: str) -> None:
    import array_api_compat.torch as xp
    import torch

    case = CASES[name]
    arrays = case.arrays(kind, seed_of(name))
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    out = several(case.f(xp, *inputs))
    loss = sum(product(torch, y, torch.tensor(like(i, y))) for i, y in enumerate(out))
    first = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
    slope = sum(product(torch, g, torch.tensor(like(50 + i, g)).conj()) for i, g in enumerate(first))
    second: Any = [torch.zeros_like(x) for x in inputs]
    if slope.requires_grad:
        second = torch.autograd.grad(slope, inputs, materialize_grads=True)
    compare(minigrads(name, arrays), [[x.numpy(force=True) for x in part] for part in (out, first, second)])


@pytest.mark.parametrize("name", compared_with("jax"))
def test_as_jax(name: str) -> None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    f = CASES[name].f
    arrays = CASES[name].arrays(CASES[name].kinds[-1], seed_of(name))  # one kind each: JAX compiles every one
    every = tuple(range(len(arrays)))

    def scalar(*xs: Any) -> Any:
        return sum(product(jnp, y, like(i, y)) for i, y in enumerate(several(f(jnp, *xs))))

    directions = [like(50 + i, a) for i, a in enumerate(arrays)]
    both = jax.jit(lambda xs, vs: jax.jvp(jax.grad(scalar, every), xs, vs))
    first, second = both(tuple(arrays), tuple(directions))
    out = several(f(jnp, *map(jnp.asarray, arrays)))
    compare(minigrads(name, arrays), [out, [g.conj() for g in first], [h.conj() for h in second]])


def hips() -> Any:
    """The namespace of HIPS autograd, with the names that the standard has changed since."""
    import autograd.numpy as anp

    xp = types.SimpleNamespace(**vars(anp))
    for old, new in (
        ("arccos", "acos"), ("arccosh", "acosh"), ("arcsin", "asin"), ("arcsinh", "asinh"), ("arctan", "atan"),
        ("arctanh", "atanh"), ("arctan2", "atan2"), ("concatenate", "concat"), ("transpose", "permute_dims"),
        ("power", "pow"), ("cumsum", "cumulative_sum"),
    ):  # fmt: skip
        setattr(xp, new, getattr(anp, old))
    xp.matrix_transpose = lambda x: anp.swapaxes(x, -1, -2)
    return xp


@pytest.mark.parametrize("name", compared_with("autograd"))
def test_as_hips_autograd(name: str) -> None:
    from autograd import grad

    xp, f = hips(), CASES[name].f
    arrays = CASES[name].arrays(CASES[name].kinds[0], seed_of(name))
    every = range(len(arrays))

    def scalar(*xs: Any) -> Any:
        return sum(product(xp, y, like(i, y)) for i, y in enumerate(several(f(xp, *xs))))

    def slope(*xs: Any) -> Any:
        return sum(product(xp, grad(scalar, i)(*xs), like(50 + i, x)) for i, x in enumerate(arrays))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Output seems independent of input")  # as that of a linear function is
        first, second = ([grad(g, i)(*arrays).conj() for i in every] for g in (scalar, slope))
    compare(minigrads(name, arrays), [several(f(xp, *arrays)), first, second])


def test_what_is_not_compared_is_known() -> None:
    """A name in the list of exceptions is that of a case, or the function of one."""
    heads = {name for case in CASES for name in (case, function_of(case))}
    assert [name for table in UNCOMPARED.values() for name in table if name not in heads] == []
