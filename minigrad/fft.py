"""fft: the standard's Fourier transforms, all differentiable.

A transform is linear, y = F x, and the matrix F is symmetric: F[j, k] = exp(-2πi jk / n). Its transpose is itself, so
the gradient of `fft` is `fft` of the gradient (gradients carry no conjugate inside a backward pass, see `autodiff`).
What ``n`` cropped gets zeros, what it padded is dropped.

A transform gives complex numbers in x's precision; `irfft`, `irfftn` and `hfft` give real ones. An unknown ``norm`` is
a ValueError, complex x a TypeError for `rfft`, `rfftn` and `ihfft`. The extension of the standard:
https://data-apis.org/array-api/latest/extensions/fourier_transform_functions.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import minigrad as mg

from . import backend
from .autodiff import primitive
from .backend import Array, as_dtype
from .manipulation import normal_axis
from .tensor import Tensor

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _resize(xp: Any, x: Array, n: int, axis: int) -> Array:
    """x cropped or padded with zeros to length ``n`` along ``axis``."""
    axis = axis % len(x.shape)
    if x.shape[axis] > n:
        return x[(slice(None),) * axis + (slice(0, n), ...)]
    if x.shape[axis] < n:
        shape = (*x.shape[:axis], n - x.shape[axis], *x.shape[axis + 1 :])
        return xp.concat([x, xp.zeros(shape, dtype=x.dtype, device=backend.device_of(x))], axis=axis)
    return x


@primitive
def fft(xp: Any, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The discrete Fourier transform Σₖ xₖ exp(-2πi jk / n) along ``axis``.

    >>> mg.fft.fft(mg.asarray([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return xp.fft.fft(x, n=n, axis=axis, norm=norm)


fft.vjp(x=lambda g, xp, x_shape, axis, norm: _resize(xp, xp.fft.fft(g, axis=axis, norm=norm), x_shape[axis], axis))
fft.example((2, 5), complex=True)
fft.example((4, 2), n=6, axis=0, norm="ortho", complex=True)
fft.example((2, 5), n=3, norm="forward", complex=True)


@primitive
def ifft(xp: Any, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `fft`: Σⱼ xⱼ exp(2πi jk / n) / n.

    >>> mg.fft.ifft(mg.asarray([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return xp.fft.ifft(x, n=n, axis=axis, norm=norm)


ifft.vjp(x=lambda g, xp, x_shape, axis, norm: _resize(xp, xp.fft.ifft(g, axis=axis, norm=norm), x_shape[axis], axis))
ifft.example((2, 5), complex=True)
ifft.example((4, 2), n=6, axis=0, norm="ortho", complex=True)


@primitive
def rfft(xp: Any, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """`fft` of real x: the first n/2 + 1 numbers, of which the rest are the conjugates.

    >>> mg.fft.rfft(mg.asarray([1.0, 2.0, 1.0, 0.0])).tolist()
    [(4+0j), -2j, 0j]
    """
    return xp.fft.rfft(x, n=n, axis=axis, norm=norm)


def _rfft(g: Array, xp: Any, x_shape: tuple[int, ...], n: int | None, axis: int, norm: str) -> Array:
    g = _resize(xp, g, x_shape[axis] if n is None else n, axis)  # the numbers left out had no gradient
    return _resize(xp, xp.real(xp.fft.fft(g, axis=axis, norm=norm)), x_shape[axis], axis)


rfft.vjp(x=_rfft)
rfft.example((2, 5))
rfft.example((4, 2), n=6, axis=0, norm="ortho")
rfft.example((2, 6), n=4, norm="forward")


@primitive
def irfft(xp: Any, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `rfft`: ``n`` real numbers from n/2 + 1 complex ones (``n`` is 2 (length - 1) if not given).

    >>> mg.fft.irfft(mg.asarray([4.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    axis = normal_axis("irfft", axis, len(x.shape))
    if n is not None and x.shape[axis] == 0:
        x = _resize(xp, x, 1, axis)  # NumPy would give n numbers that stood somewhere in memory
    return xp.fft.irfft(x, n=n, axis=axis, norm=norm)


def _irfft(g: Array, xp: Any, x_shape: tuple[int, ...], axis: int, norm: str) -> Array:
    axis = axis % len(x_shape)
    n = g.shape[axis]
    spectrum = xp.conj(xp.fft.rfft(g, axis=axis, norm=_OPPOSITE[norm]))
    # Every number but the first, and the last of an even n, stands for its conjugate partner as well.
    j = xp.reshape(xp.arange(n // 2 + 1, device=backend.device_of(g)), (-1,) + (1,) * (len(x_shape) - 1 - axis))
    alone = xp.logical_or(j == 0, 2 * j == n)
    return _resize(xp, xp.where(alone, spectrum, 2 * spectrum), x_shape[axis], axis)


irfft.vjp(x=_irfft)
irfft.example((2, 4), complex=True)
irfft.example((4, 2), n=5, axis=0, norm="ortho", complex=True)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The real transform of a signal given by its first half, the rest being the conjugates: irfft(x*) without 1/n.

    >>> mg.fft.hfft(mg.asarray([1.0, 2.0])).tolist()
    [3.0, -1.0]
    """
    return irfft(mg.conj(x), n=n, axis=axis, norm=_opposite(norm))


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `hfft`: rfft(x)* / n.

    >>> mg.fft.hfft(mg.fft.ihfft(mg.asarray([3.0, -1.0]))).tolist()
    [3.0, -1.0]
    """
    return mg.conj(rfft(x, n=n, axis=axis, norm=_opposite(norm)))


def _opposite(norm: str) -> str:
    if norm not in _OPPOSITE:
        raise ValueError(f"fft: unknown norm {norm!r}; known: {', '.join(_OPPOSITE)}")
    return _OPPOSITE[norm]


Lengths = Sequence[int] | None


def _axes(x: Array, s: Lengths, axes: Lengths) -> list[tuple[int | None, int]]:
    """The pairs (n, axis) of a transform over several axes."""
    if axes is None:
        axes = range(len(x.shape)) if s is None else range(len(x.shape) - len(s), len(x.shape))
    lengths = [None] * len(axes) if s is None else list(s)
    if len(lengths) != len(axes):
        raise ValueError(f"fft: s={s} and axes={axes} differ in length")
    return list(zip(lengths, axes, strict=True))


def fftn(x: Array, /, *, s: Lengths = None, axes: Lengths = None, norm: str = "backward") -> Tensor:
    """`fft` over several axes, one after the other.

    >>> mg.fft.fftn(mg.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    for n, axis in _axes(x, s, axes):
        x = fft(x, n=n, axis=axis, norm=norm)
    return mg.asarray(x)


def ifftn(x: Array, /, *, s: Lengths = None, axes: Lengths = None, norm: str = "backward") -> Tensor:
    """`ifft` over several axes, one after the other.

    >>> mg.fft.ifftn(mg.asarray([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    for n, axis in _axes(x, s, axes):
        x = ifft(x, n=n, axis=axis, norm=norm)
    return mg.asarray(x)


def rfftn(x: Array, /, *, s: Lengths = None, axes: Lengths = None, norm: str = "backward") -> Tensor:
    """`rfft` over the last of ``axes``, then `fft` over the others.

    >>> mg.fft.rfftn(mg.ones((2, 4))).shape
    (2, 3)
    """
    *others, (n, axis) = _axes(x, s, axes)
    x = rfft(x, n=n, axis=axis, norm=norm)
    for n, axis in reversed(others):
        x = fft(x, n=n, axis=axis, norm=norm)
    return mg.asarray(x)


def irfftn(x: Array, /, *, s: Lengths = None, axes: Lengths = None, norm: str = "backward") -> Tensor:
    """`ifft` over all but the last of ``axes``, then `irfft` over that one.

    >>> mg.fft.irfftn(mg.ones((2, 3))).shape
    (2, 4)
    """
    *others, (n, axis) = _axes(x, s, axes)
    for m, other in others:
        x = ifft(x, n=m, axis=other, norm=norm)
    return irfft(x, n=n, axis=axis, norm=norm)


@primitive
def fftshift(xp: Any, x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The zero frequency moved to the middle.

    >>> mg.fft.fftshift(mg.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return xp.fft.fftshift(x, axes=axes)


@primitive
def ifftshift(xp: Any, x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of `fftshift`.

    >>> mg.fft.ifftshift(mg.fft.fftshift(mg.arange(5))).tolist()
    [0, 1, 2, 3, 4]
    """
    return xp.fft.ifftshift(x, axes=axes)


fftshift.vjp(x=lambda g, xp, axes: xp.fft.ifftshift(g, axes=axes))
fftshift.example((2, 5))
ifftshift.vjp(x=lambda g, xp, axes: xp.fft.fftshift(g, axes=axes))
ifftshift.example((2, 5), axes=1)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies that `fft` of ``n`` samples, ``d`` apart, gives. No derivative: a constant.

    >>> mg.fft.fftfreq(4, d=0.5).tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    return _frequencies("fftfreq", n, d, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies that `rfft` of ``n`` samples, ``d`` apart, gives. No derivative: a constant.

    >>> mg.fft.rfftfreq(4, d=0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    return _frequencies("rfftfreq", n, d, dtype, device)


def _frequencies(name: str, n: int, d: float, dtype: Any, device: Any) -> Tensor:
    _, xp, default_device = backend.current()
    device = default_device if device is None else device
    return Tensor._make(getattr(xp.fft, name)(n, d=d, dtype=as_dtype(xp, dtype), device=device))
