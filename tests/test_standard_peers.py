"""The whole differentiable standard in PyTorch, and some of it in JAX: values, first and second derivatives.

Gradients of real numbers by complex ones follow PyTorch's convention; JAX gives the conjugate.
"""

from typing import Any

import numpy
import pytest
from checks import tensor, value
from numpy.testing import assert_allclose
from standard import CASES, all_kinds, seed_of

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


@pytest.mark.parametrize(("name", "kind"), [(name, case.kinds[-1]) for name, case in CASES.items() if case.jax])
def test_as_jax(name: str, kind: str) -> None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    f = CASES[name].f
    arrays = CASES[name].arrays(kind, seed_of(name))
    every = tuple(range(len(arrays)))

    def scalar(*xs: Any) -> Any:
        return sum(product(jnp, y, like(i, y)) for i, y in enumerate(several(f(jnp, *xs))))

    directions = [like(50 + i, a) for i, a in enumerate(arrays)]
    both = jax.jit(lambda xs, vs: jax.jvp(jax.grad(scalar, every), xs, vs))
    first, second = both(tuple(arrays), tuple(directions))
    out = several(f(jnp, *map(jnp.asarray, arrays)))
    compare(minigrads(name, arrays), [out, [g.conj() for g in first], [h.conj() for h in second]])
