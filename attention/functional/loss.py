"""cross_entropy: how surprised a classifier is by the right answers."""

from __future__ import annotations

import math
from typing import Any

import minigrad as mg
from minigrad import keep, primitive
from minigrad.autodiff import Kept
from minigrad.backend import Array, describe, device_of

from ._numerics import library, narrow, one_for_zero, shift, widen


@primitive
def cross_entropy(
    xp: Any,
    logits: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Kept:
    """The cross entropy −Σ_c q_c ln p_c between p = softmax(x) and the target t, for each row x of ``logits``.

    ``logits`` is of shape (…, C), ``target`` of shape (…) with integers in [0, C). With label smoothing ε, the target
    distribution is q = (1 − ε) 1ₜ + ε / C (C. Szegedy et al., 2015, arXiv:1512.00567), and as ln p = x − lse with
    lse = ln Σ_c eˣᶜ and Σ q = 1, a row's loss is

        ℓ = lse − Σ_c q_c x_c = lse − (1 − ε) xₜ − ε x‾.

    ``reduction="mean"`` is the mean over the rows that are not ignored, ``"sum"`` their sum, ``"none"`` each row's.

    Derivation. δlse = Σ_c p_c δx_c with p = exp(x − lse), so with g the gradient of the row's loss

        dx = g (p − q),   where g is divided by the number of rows that count for the mean.

    A row whose target is ``ignore_index`` does not count: its loss and its gradient are 0, whatever stands in it, NaN
    included. If all rows are ignored, the mean is 0 and so are the gradients (PyTorch: NaN). A target outside of
    [0, C) gives NaN, and from C on IndexError where the library checks (NumPy and array-api-strict).
    """
    if len(logits.shape) == 0 or logits.shape[:-1] != target.shape:
        raise ValueError("expected logits of shape (…, C) and target of shape (…)")
    if not mg.isdtype(target.dtype, "integral"):
        given = f"given logits: {describe(logits)}, target: {describe(target)}"
        raise TypeError(f"cross_entropy: expected target of an integer dtype ({given})")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"expected label_smoothing between 0 and 1, got {label_smoothing}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"expected reduction='mean', 'sum' or 'none', got {reduction!r}")

    x, t, counts = _without_ignored(xp, logits, target, ignore_index)
    x_t = xp.take_along_axis(x, t, axis=-1)
    x_mean = xp.mean(x, axis=-1, keepdims=True) if label_smoothing else 0.0
    m = shift(xp, x, -1)
    lse = m + xp.log(one_for_zero(xp, xp.sum(xp.exp(x - m), axis=-1, keepdims=True)))
    loss = counts * (lse - (1 - label_smoothing) * x_t - label_smoothing * x_mean)
    loss = xp.squeeze(loss, axis=-1) if reduction == "none" else xp.sum(loss)
    if reduction == "mean":
        loss = loss / one_for_zero(xp, xp.sum(counts))
    return keep(narrow(xp, loss, logits), lse=lse)


def _without_ignored(xp: Any, logits: Array, target: Array, ignore_index: int) -> tuple[Array, Array, Array]:
    """Logits, targets and what each row counts, (…, C), (…, 1) and (…, 1): ignored rows are 0 in all three.

    Other rows count 1, or NaN where the target is no class: some libraries would take another class instead.
    """
    t = xp.expand_dims(xp.astype(target, library(xp, target).int64, copy=False), axis=-1)
    ignored = t == ignore_index
    x = xp.where(ignored, 0.0, widen(xp, logits))
    t = xp.where(ignored, 0, t)
    counts = xp.astype(xp.logical_not(ignored), x.dtype)
    return x, t, xp.where(xp.logical_or(t < 0, t >= x.shape[-1]), math.nan, counts)


def _cross_entropy(
    g: Array,
    xp: Any,
    logits: Array,
    target: Array,
    lse: Array,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Array:
    x, t, counts = _without_ignored(xp, logits, target, ignore_index)
    g = widen(xp, g)
    if reduction == "none":
        g = xp.expand_dims(g, axis=-1)
    if reduction == "mean":
        g = g / one_for_zero(xp, xp.sum(counts))
    C = x.shape[-1]
    classes = library(xp, target).arange(C, dtype=t.dtype, device=device_of(t))
    dx = xp.exp(x - lse)
    dx -= (1 - label_smoothing) * xp.astype(t == classes, x.dtype)
    if label_smoothing:
        dx -= label_smoothing / C
    dx *= g * counts
    return dx


cross_entropy.vjp(logits=_cross_entropy)
cross_entropy.example((3, 4), lambda: mg.asarray([1, 0, 3]))
cross_entropy.example((2, 2, 3), lambda: mg.asarray([[1, -100], [0, 2]]), label_smoothing=0.1)
cross_entropy.example((3, 4), lambda: mg.asarray([1, 9, 3]), ignore_index=9, reduction="sum")
cross_entropy.example((2, 2, 3), lambda: mg.asarray([[1, -100], [0, 2]]), label_smoothing=0.1, reduction="none")
