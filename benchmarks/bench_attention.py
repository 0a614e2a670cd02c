"""Attention, forward and backward, beside PyTorch's fused kernel, JAX (jit), HIPS autograd and the bare products."""

import math
from typing import Any

import autograd
import autograd.numpy as anp
import jax
import jax.numpy as jnp
import numpy
import pytest
import torch

import minigrad as mg
from attention.functional import scaled_dot_product_attention
from minigrad import backend

LARGE = [(4, 8, 512, 64), pytest.param((1, 4, 2048, 64), marks=pytest.mark.long)]  # (B, H, T, D)
SHAPES = [*LARGE, (8, 4, 128, 32), (8, 6, 256, 64), (12, 4, 64, 32)]


def arrays(shape: tuple[int, ...], n: int = 4) -> list[Any]:
    rng = numpy.random.default_rng(0)
    return [rng.standard_normal(shape, dtype=numpy.float32) for _ in range(n)]


def ours(xs: list[Any], g: Any, **options: Any) -> Any:
    """Output and gradients of ``xs``: queries, keys, values and, if there are four, the bias."""
    xs, g = [mg.asarray(backend.from_numpy(x)) for x in xs], mg.asarray(backend.from_numpy(g))

    def run() -> list[Any]:
        tensors = [x.detach() for x in xs]
        for x in tensors:
            x.requires_grad = True
        y = scaled_dot_product_attention(*tensors, **options)
        y.backward(g)
        return [y, *(x.grad for x in tensors)]

    return run


def pytorch(xs: list[Any], g: Any, **options: Any) -> Any:
    device = "cuda" if backend.get_backend() == "cupy" else "cpu"
    xs, g = [torch.tensor(x, device=device) for x in xs], torch.tensor(g, device=device)

    def run() -> list[Any]:
        tensors = [x.detach().requires_grad_() for x in xs]
        y = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
        y.backward(g)
        return [y, *(x.grad for x in tensors)]

    return run


def composed(np: Any, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(numpy.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -numpy.float32(1e30))
    scores = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return np.matmul(scores / np.sum(scores, axis=-1, keepdims=True), v)


def jax_jit(xs: list[Any], g: Any, is_causal: bool) -> Any:
    @jax.jit
    def both(xs: Any, g: Any) -> Any:
        y, pullback = jax.vjp(lambda *xs: composed(jnp, *xs, is_causal), *xs)
        return y, *pullback(g)

    xs, g = tuple(map(jnp.asarray, xs)), jnp.asarray(g)
    return lambda: jax.block_until_ready(both(xs, g))


def hips(xs: list[Any], g: Any, is_causal: bool) -> Any:
    def run() -> Any:
        pullback, y = autograd.make_vjp(lambda xs: composed(anp, *xs, is_causal))(tuple(xs))
        return y, *pullback(g)

    return run


def products(xs: list[Any], g: Any) -> Any:
    """The six matrix products of attention and its gradients, of whole matrices, with nothing between them."""
    q, k, v = xs

    def T(x: Any) -> Any:
        return numpy.swapaxes(x, -1, -2)

    def run() -> Any:
        S = q @ T(k)
        dP = g @ T(v)
        return S @ v, dP @ k, T(dP) @ q, T(S) @ g

    return run


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(compete: Any, shape: tuple[int, ...], is_causal: bool) -> None:
    *xs, g = arrays(shape)
    peers = {"PyTorch SDPA": pytorch(xs, g, is_causal=is_causal), "JAX (jit)": jax_jit(xs, g, is_causal)}
    if shape[2] <= 256:  # beyond, HIPS autograd takes seconds
        peers["HIPS autograd"] = hips(xs, g, is_causal)
    compete(
        f"{shape}{', causal' if is_causal else ''}",
        ours(xs, g, is_causal=is_causal),
        peers,
        tolerance=2e-4,
        reach=1.0 if shape == (12, 4, 64, 32) else 0.75,
        table="Attention, forward and backward",
    )


@pytest.mark.skipif(backend.get_backend() != "numpy", reason="the products are NumPy's")
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_against_the_bare_products(compete: Any, shape: tuple[int, ...]) -> None:
    *xs, g = arrays(shape)
    compete(
        str(shape),
        ours(xs, g),
        {"six bare products": products(xs, g)},
        tolerance=None,  # the products alone are no attention
        reach=1.25,
        table="Attention against the matrix products it is made of",
    )


@pytest.mark.parametrize("kind", ["boolean mask", "bias with gradient", "8 query heads, 2 key heads"])
def test_masks_and_groups(compete: Any, kind: str) -> None:
    shape = (4, 8, 512, 64)
    *xs, g = arrays(shape)
    mine: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    rng = numpy.random.default_rng(1)
    if kind == "boolean mask":
        mask = rng.random((4, 1, 512, 512)) < 0.8
        mask[..., 0] = True
        mine["attn_mask"], theirs["attn_mask"] = mg.asarray(backend.from_numpy(mask)), torch.tensor(mask)
    elif kind == "bias with gradient":
        xs.append(rng.standard_normal((1, 8, 512, 512), dtype=numpy.float32))
    else:
        xs[1:] = [x[:, :2] for x in xs[1:]]
        mine["enable_gqa"] = theirs["enable_gqa"] = True
    compete(
        f"{shape}, {kind}",
        ours(xs, g, **mine),
        {"PyTorch SDPA": pytorch(xs, g, **theirs)},
        tolerance=2e-4,
        reach=0.9,
        table="Attention with masks and grouped heads",
    )
