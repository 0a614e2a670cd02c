"""The operations of attention.functional once more, composed from minigrad's primitives without a thought for anything.

No rule is written here: the engine derives the derivative of each. So the hand-derived operations have a second face to
agree with (`agree`), value for value and gradient for gradient, on every backend.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from checks import tensor, value
from numpy.testing import assert_allclose

import minigrad as mg
from minigrad import Tensor
from minigrad.gradcheck import gradcheck, gradgradcheck


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    e = mg.exp(x - mg.max(x, axis=axis, keepdims=True))
    return e / mg.sum(e, axis=axis, keepdims=True)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    y = x - mg.max(x, axis=axis, keepdims=True)
    return y - mg.log(mg.sum(mg.exp(y), axis=axis, keepdims=True))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x @ weight
    return y if bias is None else y + bias


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    y = x - mg.mean(x, axis=-1, keepdims=True)
    y = y / mg.sqrt(mg.mean(mg.square(y), axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    y = x / mg.sqrt(mg.mean(mg.square(x), axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def relu(x: Tensor) -> Tensor:
    return mg.where(x > 0, x, mg.zeros_like(x))


def silu(x: Tensor) -> Tensor:
    return x / (1 + mg.exp(-x))


def erf(x: Tensor) -> Tensor:
    """(2/√π) exp(−x²) Σₙ 2ⁿ x²ⁿ⁺¹ / (1·3·5···(2n+1)), whose terms do not cancel (Abramowitz & Stegun, 7.1.6)."""
    total = term = x
    for n in range(1, 120):
        term = term * (2 * x * x / (2 * n + 1))
        total = total + term
    return (2 / math.sqrt(math.pi)) * mg.exp(-x * x) * total


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + mg.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    rows = mg.take(weight, mg.reshape(indices, (-1,)), axis=0)
    return mg.reshape(rows, (*indices.shape, weight.shape[1]))


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    counts = target != ignore_index
    log_p = log_softmax(logits)
    chosen = mg.take_along_axis(log_p, mg.where(counts, target, mg.zeros_like(target))[..., None], axis=-1)[..., 0]
    loss = -(1 - label_smoothing) * chosen - label_smoothing * mg.mean(log_p, axis=-1)
    loss = mg.where(counts, loss, mg.zeros_like(loss))
    if reduction == "none":
        return loss
    return mg.sum(loss) / (mg.sum(mg.astype(counts, loss.dtype)) if reduction == "mean" else 1)


def dropout(x: Tensor, kept: Tensor, p: float) -> Tensor:
    return mg.where(kept, x / (1 - p), mg.zeros_like(x))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    kept: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The output and the weights. Rows in which everything is masked are not provided for."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = mg.repeat(key, groups, axis=-3), mg.repeat(value, groups, axis=-3)
    scores = (query @ key.mT) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None and mg.isdtype(attn_mask.dtype, "bool"):
        scores = mg.where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        scores = mg.where(tensor(numpy.tri(*scores.shape[-2:], dtype=bool)), scores, -math.inf)
    weights = softmax(scores)
    return (weights if kept is None else dropout(weights, kept, dropout_p)) @ value, weights


# ------------------------------------------------------------------------------------------------ how they are compared


def value_and_gradients(f: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The result of f and the gradients of its arguments, from a seed of random numbers, as NumPy arrays."""
    xs = [tensor(x, requires_grad=True) for x in arrays]
    y = f(*xs)
    y.backward(tensor(numpy.random.default_rng(7).normal(size=y.shape)))
    for x in xs:
        assert x.grad is not None
        assert (x.grad.shape, x.grad.dtype) == (x.shape, x.dtype)
    return value(y), [value(x.grad) for x in xs]


def agree(f: Callable[..., Any], twin: Callable[..., Any], *arrays: Any, tolerance: float = 1e-12) -> None:
    """Hold f and its twin together: their values and the gradients of every argument."""
    y, gradients = value_and_gradients(f, arrays)
    expected, expected_gradients = value_and_gradients(twin, arrays)
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype
    assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    for i, (found, gradient) in enumerate(zip(gradients, expected_gradients, strict=True)):
        assert_allclose(found, gradient, rtol=tolerance, atol=tolerance, err_msg=f"gradient {i}")


def check_derivatives(f: Callable[..., Any], *arrays: Any) -> None:
    """First and second derivatives against finite differences."""
    gradcheck(f, [tensor(x) for x in arrays])
    gradgradcheck(f, [tensor(x) for x in arrays])
