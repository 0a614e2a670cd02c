"""cross_entropy: how surprised a classifier is by the right answers."""

# ruff: noqa: E741  — l is the sum of a row's exponentials, as in attention.py

from __future__ import annotations

import math
from functools import partial
from typing import Any

import minigrad as mg
from minigrad import keep, primitive
from minigrad.backend import Array, device_of, kept_rows

from ._numerics import cast, exp_and_sum, library, loops_for, one_for_zero, rows, shift, widen
from ._tiles import by_rows


@primitive
def cross_entropy(
    xp: Any,
    logits: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """The cross entropy −Σ_c q_c ln p_c between p = softmax(x) and the target t, for each row x of ``logits``.

    ``logits`` is of shape (…, C), ``target`` of shape (…) with integers in [0, C). With label smoothing ε, the target
    distribution is q = (1 − ε) 1ₜ + ε / C (C. Szegedy et al., 2015, arXiv:1512.00567). A row's maximum m changes no p,
    so with z = x − m and l = Σ_c e^z_c, ln p = z − ln l, and as Σ q = 1 a row's loss is

        ℓ = ln l − Σ_c q_c z_c = ln l − (1 − ε) zₜ − ε z‾.

    ``reduction="mean"`` is the mean over the rows that are not ignored, ``"sum"`` their sum, ``"none"`` each row's.

    Derivation. δ ln l = Σ_c p_c δz_c with p = e^z / l, so with g the gradient of the row's loss

        dx = g (p − q),   where g is divided by the number of rows that count for the mean.

    Kept for it are e^z, as large as the logits are, and l: to compute e^z again took a third more time.

    A row whose target is ``ignore_index`` does not count: its loss and its gradient are 0, whatever stands in it, NaN
    included. If all rows are ignored, the mean is 0 and so are the gradients (PyTorch: NaN). A target outside of
    [0, C) gives NaN, and from C on IndexError where the library checks (NumPy and array-api-strict).

    >>> round(float(cross_entropy(mg.asarray([[0.0, 0.0]]), mg.asarray([1]))), 4)  # ln 2
    0.6931
    >>> mg.grad(cross_entropy)(mg.asarray([[0.0, 0.0]]), mg.asarray([1])).tolist()  # p − q
    [[0.5, -0.5]]
    """
    if len(logits.shape) == 0 or logits.shape[:-1] != target.shape:
        raise ValueError("expected logits of shape (…, C) and target of shape (…)")
    if not mg.isdtype(target.dtype, "integral"):
        raise TypeError("expected target of an integer dtype")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"expected label_smoothing between 0 and 1, got {label_smoothing}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"expected reduction='mean', 'sum' or 'none', got {reduction!r}")

    def forward(x: Array, t: Array, *room: Array) -> tuple[Array, ...]:
        x, t, counts = _without_ignored(xp, x, t, ignore_index)
        m = shift(xp, x, -1)
        loss = -(1 - label_smoothing) * (xp.take_along_axis(x, t, axis=-1) - m)
        if label_smoothing:
            loss -= label_smoothing * xp.mean(x - m, axis=-1, keepdims=True)
        e, l = exp_and_sum(xp, x, m, *room)
        l = one_for_zero(xp, l)
        loss += xp.log(l)
        return loss * counts, counts, l, *(() if room else (e,))

    x, t = rows(xp, logits), xp.reshape(target, (-1, 1))
    if loops_for(xp, x):
        e = xp.empty_like(x)
        loss, counts, l = by_rows(xp, forward, x, t, e, light=True)
    else:
        loss, counts, l, e = by_rows(xp, forward, x, t)
    loss = xp.reshape(loss, target.shape) if reduction == "none" else xp.sum(loss)
    if reduction == "mean":
        loss = loss / one_for_zero(xp, xp.sum(counts))
    return keep(cast(xp, loss, logits), e=e, l=l, counts=counts)


def _without_ignored(xp: Any, x: Array, t: Array, ignore_index: int) -> tuple[Array, Array, Array]:
    """Logits (n, C), targets and what each row counts (n, 1): ignored rows are 0 in all three.

    Other rows count 1, or NaN where the target is no class: some libraries would take another class instead.
    """
    t = xp.astype(t, library(xp, t).int64, copy=False)
    counted = t != ignore_index
    x = kept_rows(xp, widen(xp, x), counted)
    no_class = xp.logical_and(counted, xp.logical_or(t < 0, t >= x.shape[-1]))
    t = xp.where(xp.logical_and(counted, t >= 0), t, 0)
    return x, t, xp.where(no_class, math.nan, xp.astype(counted, x.dtype))


def _cross_entropy(
    g: Array,
    xp: Any,
    logits_shape: tuple[int, ...],
    target: Array,
    e: Array,
    l: Array,
    counts: Array,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Array:
    g = widen(xp, g)
    if reduction == "mean":
        g = g / one_for_zero(xp, xp.sum(counts))
    g = counts * (xp.reshape(g, (-1, 1)) if reduction == "none" else g)
    C = logits_shape[-1]
    lib = library(xp, target)
    t = xp.astype(target, lib.int64, copy=False)  # some libraries compare no unsigned integers with signed ones
    classes = lib.arange(C, device=device_of(target))

    def backward(t: Array, e: Array, l: Array, g: Array) -> tuple[Array, ...]:
        dx = e * (1 / l)  # p
        q = xp.astype(t == classes, dx.dtype)
        if label_smoothing:
            q *= 1 - label_smoothing
            q += label_smoothing / C
        dx -= q
        dx *= g
        return (dx,)

    t = xp.reshape(t, (-1, 1))
    if loops := loops_for(xp, e, l, g):
        dx = xp.empty_like(e)
        by_rows(xp, partial(loops.cross_entropy_vjp, label_smoothing), t, e, l, g, dx, light=True)
    else:
        (dx,) = by_rows(xp, backward, t, e, l, g)
    return xp.reshape(dx, logits_shape)


cross_entropy.vjp(logits=_cross_entropy)
cross_entropy.example((3, 4), lambda: mg.asarray([1, 0, 3]))
cross_entropy.example((2, 2, 3), lambda: mg.asarray([[1, -100], [0, 2]]), label_smoothing=0.1)
cross_entropy.example((3, 4), lambda: mg.asarray([1, 9, 3]), ignore_index=9, reduction="sum")
cross_entropy.example((2, 2, 3), lambda: mg.asarray([[1, -100], [0, 2]]), label_smoothing=0.1, reduction="none")
