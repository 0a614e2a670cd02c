"""The other operations of a Transformer, forward and backward, beside PyTorch's kernels and JAX (jit)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import pytest
import torch
import torch.nn.functional as TF

import attention.functional as F
import minigrad as mg
from minigrad import backend

OPERATIONS: dict[str, tuple[Any, Any, Any, Callable[[int], list[tuple[int, ...]]]]] = {
    "layer_norm": (
        F.layer_norm,
        lambda x, w, b: TF.layer_norm(x, w.shape, w, b),
        lambda x, w, b: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,
        lambda d: [(d,), (d,)],
    ),
    "rms_norm": (
        F.rms_norm,
        lambda x, w: TF.rms_norm(x, w.shape, w, 1e-6),
        lambda x, w: x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w,
        lambda d: [(d,)],
    ),
    "gelu": (F.gelu, TF.gelu, lambda x: jax.nn.gelu(x, approximate=False), lambda d: []),
    "gelu (tanh)": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: TF.gelu(x, approximate="tanh"),
        jax.nn.gelu,
        lambda d: [],
    ),
    "linear": (F.linear, lambda x, w, b: TF.linear(x, w.T, b), lambda x, w, b: x @ w + b, lambda d: [(d, d), (d,)]),
    "cross_entropy": (F.cross_entropy, TF.cross_entropy, None, lambda d: []),
}


def jax_cross_entropy(x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x), target[:, None], axis=1).mean()


@pytest.mark.parametrize("shape", [(2048, 384), pytest.param((2048, 1536), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(compete: Any, name: str, shape: tuple[int, int]) -> None:
    mine, torchs, jaxs, parameters = OPERATIONS[name]
    rng = numpy.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype=numpy.float32) for s in (shape, *parameters(shape[1]))]
    target = rng.integers(0, shape[1], shape[0])
    g = numpy.float32(1.0) if name == "cross_entropy" else rng.standard_normal(shape, dtype=numpy.float32)
    extra = [target] if name == "cross_entropy" else []

    given, seed = [mg.asarray(backend.from_numpy(x)) for x in arrays], mg.asarray(backend.from_numpy(numpy.asarray(g)))
    mine_extra = [mg.asarray(backend.from_numpy(x)) for x in extra]

    def ours() -> Any:
        xs = [x.detach() for x in given]
        for x in xs:
            x.requires_grad = True
        y = mine(*xs, *mine_extra)
        y.backward(seed)
        return [y, *(x.grad for x in xs)]

    device = "cuda" if backend.get_backend() == "cupy" else "cpu"
    their_given, their_seed = [torch.tensor(x, device=device) for x in arrays], torch.tensor(g, device=device)
    their_extra = [torch.tensor(x, device=device) for x in extra]

    def pytorch() -> Any:
        xs = [x.detach().requires_grad_() for x in their_given]
        y = torchs(*xs, *their_extra)
        y.backward(their_seed)
        return [y, *(x.grad for x in xs)]

    f = jaxs or (lambda x: jax_cross_entropy(x, target))

    @jax.jit
    def both(xs: Any, g: Any) -> Any:
        y, pullback = jax.vjp(f, *xs)
        return y, *pullback(g)

    jax_given, jax_seed = tuple(map(jnp.asarray, arrays)), jnp.asarray(g)
    compete(
        f"{name} {shape}",
        ours,
        {"PyTorch": pytorch, "JAX (jit)": lambda: jax.block_until_ready(both(jax_given, jax_seed))},
        tolerance=1e-3,
        reach=1.0,
        table="Other operations, forward and backward",
    )
