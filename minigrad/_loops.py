"""The optimizers' loops for a compiler (`backend.compiled`): in one pass over memory what takes NumPy fifteen."""

from __future__ import annotations

import math

import numpy

from .backend import Array, compiled

f = numpy.float32


@compiled()
def adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    new: Array,
    step: float,
    beta1: float,
    beta2: float,
    root: float,
    eps: float,
    shrink: float,
) -> None:
    """`Adam._update` with step = lr / (1 − β₁ᵗ) and root = √(1 − β₂ᵗ); p decays to shrink · p."""
    for i in range(p.size):
        m[i] = f(beta1) * m[i] + f(1 - beta1) * g[i]
        v[i] = f(beta2) * v[i] + f(1 - beta2) * (g[i] * g[i])
        size = f(math.sqrt(v[i])) / f(root) + f(eps)
        new[i] = f(shrink) * p[i] - f(step) * (m[i] / size)
