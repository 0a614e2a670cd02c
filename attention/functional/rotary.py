"""rotary: pairs of components turned by given angles."""

from __future__ import annotations

from typing import Any

import minigrad as mg
from minigrad import primitive
from minigrad.backend import Array

from ._numerics import loops_for, rows


@primitive
def rotary(xp: Any, x: Array, cos: Array, sin: Array, *, halves: bool = False) -> Array:
    """Each pair (a, b) of components of x turned by an angle of its own: (a cos − b sin, a sin + b cos).

    x is (…, T, d), and ``cos`` and ``sin`` are (T, d/2), or what broadcasts with (…, T, d/2): the angle of each
    position and pair. The pairs are x[2i] and x[2i+1], or with ``halves`` x[i] and x[i + d/2]. What the angles are good
    for stands in `attention.layers.RotaryPositions`. (J. Su et al., 2021, arXiv:2104.09864, equation 34.)

    Derivation. y = R x with an orthogonal R for each position, so δy = R δx and dx = Rᵀ g: g turned back, by the
    negative angle. cos and sin have no gradient here, as angles are no parameters.

    >>> right_angle = mg.asarray([[0.0]]), mg.asarray([[1.0]])
    >>> rotary(mg.asarray([[3.0, 4.0]]), *right_angle).tolist()
    [[-4.0, 3.0]]
    """
    if x.shape[-1] != 2 * cos.shape[-1] or cos.shape != sin.shape:
        raise ValueError("expected x of shape (…, T, d), cos and sin of (T, d/2)")
    one_each = cos.shape == (x.shape[-2], x.shape[-1] // 2)  # an angle for each position and pair
    if one_each and (loops := loops_for(xp, cos, sin)) and loops_for(xp, X := rows(xp, x)):
        y = xp.empty_like(X)
        loops.rotary(halves, cos, sin, X, y)
        return xp.reshape(y, x.shape)
    half = x.shape[-1] // 2
    a, b = (x[..., :half], x[..., half:]) if halves else (x[..., ::2], x[..., 1::2])
    turned = [a * cos - b * sin, a * sin + b * cos]
    if halves:
        return xp.concat(turned, axis=-1)
    return xp.reshape(xp.stack(turned, axis=-1), (*turned[0].shape[:-1], x.shape[-1]))


def _turned_back(g: Array, xp: Any, cos: Array, sin: Array, halves: bool) -> Array:
    return rotary.raw(xp)(g, cos, -sin, halves=halves)


rotary.vjp(x=_turned_back)
_ANGLES = [[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]]
rotary.example((2, 3, 4), lambda: mg.cos(mg.asarray(_ANGLES)), lambda: mg.sin(mg.asarray(_ANGLES)))
rotary.example((2, 3, 4), lambda: mg.cos(mg.asarray(_ANGLES)), lambda: mg.sin(mg.asarray(_ANGLES)), halves=True)
