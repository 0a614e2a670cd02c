"""The differentiable functions of the standard, each called in every way it has: what several test files go through.

A case is a function of a namespace and arrays, so that minigrad, NumPy, PyTorch (through array-api-compat) and JAX can
all run it. ``docs/functions.md`` tells from here up to which order a function's derivatives are checked, and where a
library lacks something.
"""

import itertools
import re
import types
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy


class Case(NamedTuple):
    """A call. ``kinds``: r for real arrays, c for complex ones, m for a real first argument among complex ones."""

    f: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    low: float = -2.0
    high: float = 2.0
    kinds: str = "r"
    order: int = 3  # of the highest derivative that is checked

    def arrays(self, kind: str, seed: int) -> list[Any]:
        rng = numpy.random.default_rng(seed)
        made = []
        for i, shape in enumerate(self.shapes):
            x = numpy.asarray(rng.uniform(self.low, self.high, shape))
            y = numpy.asarray(rng.uniform(0.2, 0.9, shape))
            made.append(x + 1j * y if kind == "c" or (kind == "m" and i > 0) else x)
        return made


_UINT8 = {"torch": "sums of uint8 are int64"}
LACKING: dict[str, dict[str, str]] = {
    "unique_all": {"torch": "not there"},
    **{name: {"torch": "no complex numbers"} for name in ("unique_counts", "unique_inverse", "unique_values")},
    **dict.fromkeys(("cumulative_prod", "cumulative_sum", "prod", "sum", "linalg.trace"), _UINT8),
}
"""What a library lacks of a function, or does otherwise than the standard says, and so minigrad on it."""

UNCOMPARED: dict[str, dict[str, str]] = {
    "jax": {
        "sign": "its derivative of z / |z| is 0",
        "repeat by an array": "a compiled function takes no such array",
        **dict.fromkeys(("linalg.eig", "linalg.eigvals"), "refused, unless an option of its own allows it"),
    },
    "autograd": {
        **dict.fromkeys(
            (
                *("asarray", "broadcast_arrays", "clip by arrays", "copysign", "cumulative_prod", "flip", "meshgrid"),
                *("positive", "sort", "take", "take_along_axis", "unstack", "vecdot", "fft.hfft", "fft.ihfft"),
                *("linalg.cross", "linalg.diagonal", "linalg.eigvals", "linalg.eigvalsh", "linalg.matmul"),
                *("linalg.matrix_norm", "linalg.matrix_power", "linalg.matrix_transpose", "linalg.outer"),
                *("linalg.qr", "linalg.svd square", "linalg.svdvals", "linalg.tensordot", "linalg.trace"),
                *("linalg.vecdot", "linalg.vector_norm", "fft.rfft"),
            ),
            "no rule under this name, or none for these arrays",
        ),
        **dict.fromkeys(
            (
                *("clip from below", "concat(axis=None)", "cumulative_sum(dtype)", "cumulative_sum(include_initial)"),
                *("diff(prepend, append)", "linalg.cholesky(upper)", "linalg.pinv wide", "repeat by an array"),
                "roll(axis)",
            ),
            "the option is unknown",
        ),
        **dict.fromkeys(
            ("broadcast_to", "linalg.solve", "where"), "the gradient is not summed over axes that were broadcast"
        ),
        **dict.fromkeys(("sign", "linalg.slogdet sign"), "the derivative of z / |z| is 0"),
        **dict.fromkeys(("fft.irfft", "fft.irfftn", "fft.rfftn"), "wrong, as PyTorch and JAX confirm"),
        **dict.fromkeys(("repeat(axis)", "std(correction)", "var(correction)"), "wrong, as PyTorch and JAX confirm"),
        "astype": "a warning about complex numbers",
        "prod with zeros": "divides by them",
    },
}
"""Cases, or functions with all their cases, whose derivatives cannot be compared with another library's, and why."""


def compared_with(peer: str) -> list[str]:
    """The names of the cases whose derivatives are compared."""
    table = UNCOMPARED[peer]
    return [name for name in CASES if name not in table and function_of(name) not in table]


def function_of(name: str) -> str:
    """The function that a case calls: ``sum`` of ``sum(axis=-2)``."""
    return re.split("[( ]", name)[0]


CASES: dict[str, Case] = {}


def case(name: str, f: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> None:
    assert name not in CASES
    CASES[name] = Case(f, shapes, **options)


def names_used(f: Callable[..., Any], xp: Any, arrays: list[Any]) -> set[str]:
    """The functions that ``f`` takes from the namespace: ``exp``, ``linalg.inv`` …"""
    used = set()

    class Recorder:
        def __init__(self, namespace: Any, prefix: str = "") -> None:
            self.namespace, self.prefix = namespace, prefix

        def __getattr__(self, name: str) -> Any:
            found = getattr(self.namespace, name)
            if isinstance(found, types.ModuleType):
                return Recorder(found, f"{name}.")
            used.add(self.prefix + name)
            return found

    f(Recorder(xp), *arrays)
    return used


def all_kinds() -> list[tuple[str, str]]:
    return [(name, kind) for name, case in CASES.items() for kind in case.kinds]


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


# ------------------------------------------------------------------------------------------------ elementwise

for name, low, high, kinds in (
    ("abs", 0.1, 2, "rc"), ("acos", -0.8, 0.8, "rc"), ("acosh", 1.5, 3, "rc"), ("asin", -0.8, 0.8, "rc"),
    ("asinh", -2, 2, "rc"), ("atan", -2, 2, "rc"), ("atanh", -0.8, 0.8, "rc"), ("conj", -2, 2, "c"),
    ("cos", -2, 2, "rc"), ("cosh", -2, 2, "rc"), ("exp", -2, 2, "rc"), ("expm1", -2, 2, "rc"), ("imag", -2, 2, "c"),
    ("log", 0.5, 3, "rc"), ("log10", 0.5, 3, "rc"), ("log1p", -0.5, 3, "rc"), ("log2", 0.5, 3, "rc"),
    ("negative", -2, 2, "rc"), ("positive", -2, 2, "rc"), ("real", -2, 2, "c"), ("reciprocal", 0.5, 2, "rc"),
    ("sign", 0.5, 2, "c"), ("sin", -2, 2, "rc"), ("sinh", -2, 2, "rc"), ("sqrt", 0.5, 2, "rc"),
    ("square", -2, 2, "rc"), ("tan", -1, 1, "rc"), ("tanh", -2, 2, "rc"),
):  # fmt: skip
    case(name, lambda xp, x, name=name: getattr(xp, name)(x), (2, 3), low=low, high=high, kinds=kinds)
for name, low, high, kinds in (
    ("add", -2, 2, "rcm"), ("subtract", -2, 2, "rcm"), ("multiply", -2, 2, "rcm"), ("divide", 0.5, 2, "rcm"),
    ("pow", 0.5, 2, "rcm"), ("atan2", 0.5, 2, "r"), ("copysign", -2, 2, "r"), ("hypot", 0.5, 2, "r"),
    ("logaddexp", -2, 2, "r"), ("maximum", -2, 2, "r"), ("minimum", -2, 2, "r"), ("remainder", -2, 2, "r"),
):  # fmt: skip
    case(name, lambda xp, x, y, name=name: getattr(xp, name)(x, y), (2, 1, 3), (4, 1), low=low, high=high, kinds=kinds)
case("operators", lambda xp, x, y: (1 - x) * (y + 2) / (3 / x - y) ** 2 - 2**y + x @ y, (3,), (3,), kinds="rc")
case("clip", lambda xp, x: xp.clip(x, -1.0, 0.9), (3, 4))
case("clip from below", lambda xp, x: xp.clip(x, min=-0.5) ** 2, (3, 4))
case("clip by arrays", lambda xp, x, y: xp.clip(x, y - 0.5, y + 0.7), (3, 4), (4,))
case("where", lambda xp, x, y: xp.where(xp.real(x) > 0, x * y, y), (2, 1), (3,), kinds="c")
case("where of reals", lambda xp, x, y: xp.where(x > 0, x * y, y), (2, 1), (3,))

# ------------------------------------------------------------------------------------------------ statistical

for name, options in itertools.product(
    ("sum", "mean", "max", "min", "prod", "var", "std"),
    ({}, {"axis": -2}, {"axis": (0, 2), "keepdims": True}),
):
    kinds = "rc" if name in ("sum", "prod") else "r"
    text = ", ".join(f"{key}={value}" for key, value in options.items())
    case(f"{name}({text})", lambda xp, x, f=name, o=options: getattr(xp, f)(x, **o) ** 2, (2, 3, 2), kinds=kinds)
case("var(correction)", lambda xp, x: xp.var(x, axis=1, correction=1), (3, 4))
case("std(correction)", lambda xp, x: xp.std(x, axis=0, correction=1, keepdims=True), (3, 4))
case("sum(dtype)", lambda xp, x: xp.sum(x, axis=0, dtype=xp.float64), (3, 2))
case("prod(dtype)", lambda xp, x: xp.prod(x, axis=0, dtype=xp.float64), (3, 2))
case("prod with zeros", lambda xp, x: xp.prod(x * xp.asarray([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), axis=1), (2, 3))
case("cumulative_sum", lambda xp, x: xp.cumulative_sum(x, axis=1) ** 2, (2, 4), kinds="rc")
case("cumulative_sum(include_initial)", lambda xp, x: xp.cumulative_sum(x, include_initial=True) ** 2, (4,))
case("cumulative_sum(dtype)", lambda xp, x: xp.cumulative_sum(x, axis=0, dtype=xp.float64) ** 2, (4, 2))
case("cumulative_prod", lambda xp, x: xp.cumulative_prod(x, axis=-2), (5, 2), kinds="rc")
case("cumulative_prod(include_initial)", lambda xp, x: xp.cumulative_prod(x, include_initial=True), (4,))
case("cumulative_prod(dtype)", lambda xp, x: xp.cumulative_prod(x, axis=0, dtype=xp.float64), (3, 2))
case("cumulative_prod with zeros", lambda xp, x: xp.cumulative_prod(x * xp.asarray([1.0, 0.0, 1.0, 0.0, 1.0])), (5,))

# ------------------------------------------------------------------------------------------------ manipulation

for name, f, *shapes in (
    ("broadcast_arrays", lambda xp, x, y: xp.broadcast_arrays(x, y), (2, 1), (3,)),
    ("broadcast_to", lambda xp, x: xp.broadcast_to(x, (4, 2, 3)), (2, 1)),
    ("concat", lambda xp, x, y: xp.concat([x, y, x], axis=-1), (2, 3), (2, 1)),
    ("concat(axis=None)", lambda xp, x, y: xp.concat([x, y], axis=None), (2, 3), (2,)),
    ("expand_dims", lambda xp, x: xp.expand_dims(x, axis=-2), (2, 3)),
    ("flip", lambda xp, x: xp.flip(x), (2, 3)),
    ("flip(axis)", lambda xp, x: xp.flip(x, axis=(0, -1)), (2, 3, 2)),
    ("moveaxis", lambda xp, x: xp.moveaxis(x, (0, 2), (-1, 0)), (2, 3, 4)),
    ("permute_dims", lambda xp, x: xp.permute_dims(x, (2, 0, 1)), (2, 3, 4)),
    ("repeat", lambda xp, x: xp.repeat(x, 2), (2, 3)),
    ("repeat(axis)", lambda xp, x: xp.repeat(x, 3, axis=-1), (2, 3)),
    ("repeat by an array", lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 1]), axis=1), (2, 3)),
    ("reshape", lambda xp, x: xp.reshape(x, (3, -1)), (2, 6)),
    ("roll", lambda xp, x: xp.roll(x, 2), (2, 3)),
    ("roll(axis)", lambda xp, x: xp.roll(x, (1, -1), axis=(0, 1)), (2, 3)),
    ("squeeze", lambda xp, x: xp.squeeze(x, axis=(0, -1)), (1, 2, 1)),
    ("stack", lambda xp, x, y: xp.stack([x, y, x], axis=-1), (2, 3), (2, 3)),
    ("tile", lambda xp, x: xp.tile(x, (2, 1, 3)), (2, 3)),
    ("unstack", lambda xp, x: xp.unstack(x, axis=-1), (2, 3)),
    ("meshgrid", lambda xp, x, y: xp.meshgrid(x, y), (2,), (3,)),
    ("meshgrid(indexing)", lambda xp, x, y: xp.meshgrid(x, y, x, indexing="ij"), (2,), (3,)),
    ("tril", lambda xp, x: xp.tril(x, k=1), (2, 3, 4)),
    ("triu", lambda xp, x: xp.triu(x, k=-1), (2, 3, 4)),
    ("diff", lambda xp, x: xp.diff(x), (2, 4)),
    ("diff(n, axis)", lambda xp, x: xp.diff(x, axis=0, n=2), (4, 2)),
    ("diff(prepend, append)", lambda xp, x, y, z: xp.diff(x, prepend=y, append=z), (2, 3), (2, 1), (2, 2)),
    ("take", lambda xp, x: xp.take(x, xp.asarray([2, 0, 2]), axis=1), (2, 3)),
    ("take of a vector", lambda xp, x: xp.take(x, xp.asarray([2, 0, 2])), (3,)),
    ("indices", lambda xp, x: x[..., None, 1:, 0] * x[0, 1:, :1], (3, 3, 2)),
):
    case(name, lambda xp, *x, f=f: _squares(f(xp, *x)), *shapes, kinds="rc")
for axis in (-1, 0):
    case(
        f"take_along_axis({axis=})",
        lambda xp, x, a=axis: xp.take_along_axis(x, xp.asarray([[2, 0, 2], [1, 1, 0], [0, 0, 0]]), axis=a) ** 2,
        (3, 3), kinds="rc",
    )  # fmt: skip
for options in ({}, {"axis": 0, "descending": True}, {"axis": -2, "stable": False}):
    text = ", ".join(f"{key}={value}" for key, value in options.items())
    case(f"sort({text})", lambda xp, x, o=options: xp.sort(x, **o) ** 2, (5, 4))
case("asarray", lambda xp, x: xp.asarray(x, copy=True) ** 2, (2, 3), kinds="rc")
case("astype", lambda xp, x: xp.astype(x, xp.complex128) * (1 + 2j), (3,))


def _squares(out: Any) -> Any:
    """Squares, so that linear functions have a second derivative too."""
    return [y * y for y in out] if isinstance(out, list | tuple) else out * out


# ------------------------------------------------------------------------------------------------ linear algebra


def _adjoint(xp: Any, x: Any) -> Any:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if xp.isdtype(x.dtype, "complex floating") else x


def _positive(xp: Any, x: Any) -> Any:
    """A Hermitian positive definite matrix made of x."""
    return xp.matmul(x, _adjoint(xp, x)) + xp.asarray(numpy.diag([1.0, 3.0, 5.0]).tolist())


def _sizes(xp: Any, *arrays: Any) -> Any:
    """Where a phase is a free choice: sizes alone."""
    return [xp.abs(x) ** 2 for x in arrays]


def _of_eigenvalues(xp: Any, w: Any) -> Any:
    """Symmetric functions, as the order of eigenvalues is free."""
    return [xp.sum(w**2, axis=-1), xp.sum(w * w * w * xp.conj(w), axis=-1)]


def _eig(xp: Any, x: Any) -> Any:
    w, V = xp.linalg.eig(x)
    return [*_of_eigenvalues(xp, w), xp.sum(xp.abs(V) ** 2 * w[..., None, :], axis=-1)]


for name, f, *shapes in (
    ("matmul", lambda xp, x, y: xp.matmul(x, y), (2, 1, 3, 2), (3, 2, 4)),
    ("matmul of a vector", lambda xp, x, y: xp.matmul(x, y), (3,), (2, 3, 4)),
    ("matmul by a vector", lambda xp, x, y: xp.matmul(x, y), (2, 4, 3), (3,)),
    ("matrix_transpose", lambda xp, x: xp.matrix_transpose(x) ** 2, (2, 3, 4)),
    ("tensordot", lambda xp, x, y: xp.tensordot(x, y), (2, 3, 4), (3, 4, 2)),
    ("tensordot(axes)", lambda xp, x, y: xp.tensordot(x, y, axes=((2, 0), (0, 2))), (2, 3, 4), (4, 5, 2)),
    ("vecdot", lambda xp, x, y: xp.vecdot(x, y), (2, 3), (4, 1, 3)),
    ("vecdot(axis)", lambda xp, x, y: xp.vecdot(x, y, axis=-2), (3, 2), (3, 2)),
    ("linalg.matmul", lambda xp, x, y: xp.linalg.matmul(x, y), (3, 2), (3, 2, 4)),
    ("linalg.matrix_transpose", lambda xp, x: xp.linalg.matrix_transpose(x) ** 2, (3, 4)),
    ("linalg.tensordot", lambda xp, x, y: xp.linalg.tensordot(x, y, axes=1), (2, 3), (3, 2)),
    ("linalg.vecdot", lambda xp, x, y: xp.linalg.vecdot(x, y), (2, 3), (2, 3)),
    ("linalg.cross", lambda xp, x, y: xp.linalg.cross(x, y), (2, 3), (2, 3)),
    ("linalg.cross(axis)", lambda xp, x, y: xp.linalg.cross(x, y, axis=-2), (3, 2), (3, 1)),
    ("linalg.outer", lambda xp, x, y: xp.linalg.outer(x, y), (2,), (3,)),
    ("linalg.diagonal", lambda xp, x: xp.linalg.diagonal(x) ** 2, (2, 3, 4)),
    ("linalg.diagonal(offset)", lambda xp, x: xp.linalg.diagonal(x, offset=-2) ** 2, (2, 4, 3)),
    ("linalg.trace", lambda xp, x: xp.linalg.trace(x) ** 2, (2, 3, 4)),
    ("linalg.trace(offset)", lambda xp, x: xp.linalg.trace(x, offset=1) ** 2, (2, 3, 4)),
    ("linalg.matrix_power(5)", lambda xp, x: xp.linalg.matrix_power(x, 5), (2, 3, 3)),
    ("linalg.matrix_power(-3)", lambda xp, x: xp.linalg.matrix_power(_positive(xp, x), -3), (2, 3, 3)),
    ("linalg.inv", lambda xp, x: xp.linalg.inv(_positive(xp, x)), (2, 3, 3)),
    ("linalg.solve", lambda xp, x, y: xp.linalg.solve(_positive(xp, x), y), (2, 3, 3), (3, 2)),
    ("linalg.solve for a vector", lambda xp, x, y: xp.linalg.solve(_positive(xp, x), y), (3, 3), (3,)),
    ("linalg.solve for matrices", lambda xp, x, y: xp.linalg.solve(_positive(xp, x), y), (3, 3), (2, 3, 1)),
    ("linalg.pinv tall", lambda xp, x: xp.linalg.pinv(x), (2, 4, 3)),
    ("linalg.pinv wide", lambda xp, x: xp.linalg.pinv(x, rtol=1e-9), (2, 4)),
    ("linalg.det", lambda xp, x: xp.linalg.det(x), (2, 3, 3)),
    ("linalg.slogdet", lambda xp, x: xp.linalg.slogdet(x)[1], (2, 3, 3)),
    ("linalg.cholesky", lambda xp, x: xp.linalg.cholesky(_positive(xp, x)), (2, 3, 3)),
    ("linalg.cholesky(upper)", lambda xp, x: xp.linalg.cholesky(_positive(xp, x), upper=True), (3, 3)),
    ("linalg.eigh", lambda xp, x: [*xp.linalg.eigh(_positive(xp, x))][:1], (2, 3, 3)),
    ("linalg.eigh vectors", lambda xp, x: _sizes(xp, xp.linalg.eigh(_positive(xp, x))[1]), (3, 3)),
    ("linalg.eigvalsh", lambda xp, x: xp.linalg.eigvalsh(_positive(xp, x)), (2, 3, 3)),
    ("linalg.qr tall", lambda xp, x: xp.linalg.qr(x), (2, 4, 3)),
    ("linalg.qr wide", lambda xp, x: xp.linalg.qr(x), (2, 4)),
    ("linalg.qr(mode)", lambda xp, x: xp.linalg.qr(x, mode="complete"), (3, 3)),
    ("linalg.svd tall", lambda xp, x: _svd(xp, x), (2, 4, 3)),
    ("linalg.svd wide", lambda xp, x: _svd(xp, x), (3, 5)),
    ("linalg.svd square", lambda xp, x: _svd(xp, x, full_matrices=True), (3, 3)),
    ("linalg.svdvals", lambda xp, x: xp.linalg.svdvals(x), (2, 3, 4)),
):
    case(name, f, *shapes, kinds="rc")
case("linalg.slogdet sign", lambda xp, x: xp.linalg.slogdet(x)[0], (2, 3, 3), kinds="c")
case("linalg.trace(dtype)", lambda xp, x: xp.linalg.trace(x, dtype=xp.float64) ** 2, (3, 3))
case("linalg.eig", _eig, (3, 3), kinds="rc")
case("linalg.eigvals", lambda xp, x: _of_eigenvalues(xp, xp.linalg.eigvals(x)), (2, 3, 3), kinds="rc")


def _svd(xp: Any, x: Any, full_matrices: bool = False) -> Any:
    U, S, Vh = xp.linalg.svd(x, full_matrices=full_matrices)
    return [S, *_sizes(xp, U, Vh)]


for ord in (2, 1, 3, 0.5, -1, 0, float("inf"), -float("inf")):
    case(
        f"linalg.vector_norm(ord={ord})", lambda xp, x, ord=ord: xp.linalg.vector_norm(x, ord=ord, axis=-1), (3, 4),
        kinds="rc",
    )  # fmt: skip
case("linalg.vector_norm", lambda xp, x: xp.linalg.vector_norm(x), (2, 3), kinds="rc")
case(
    "linalg.vector_norm(axis, keepdims)",
    lambda xp, x: xp.linalg.vector_norm(x, axis=(0, -1), keepdims=True, ord=4), (2, 3, 2), kinds="rc",
)  # fmt: skip
for ord in ("fro", "nuc", 2, -2, 1, -1, float("inf"), -float("inf")):
    case(
        f"linalg.matrix_norm(ord={ord})", lambda xp, x, ord=ord: xp.linalg.matrix_norm(x, ord=ord), (2, 3, 4),
        kinds="rc",
    )  # fmt: skip
case("linalg.matrix_norm(keepdims)", lambda xp, x: xp.linalg.matrix_norm(x, keepdims=True), (2, 3, 4), kinds="rc")

# ------------------------------------------------------------------------------------------------ Fourier transforms


def _power(xp: Any, x: Any) -> Any:
    return (x * x) * (1 + 0.5j) if xp.isdtype(x.dtype, "complex floating") else x * x


for name, norm, n in itertools.product(
    ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), ("backward", "ortho", "forward"), (None, 3, 8)
):
    case(
        f"fft.{name}({n=}, {norm=})",
        lambda xp, x, f=name, n=n, o=norm: _power(xp, getattr(xp.fft, f)(x, n=n, axis=0, norm=o)),
        (5, 2), kinds="r" if name in ("rfft", "ihfft") else "c",
    )  # fmt: skip
for name, norm in itertools.product(("fftn", "ifftn", "rfftn", "irfftn"), ("backward", "ortho", "forward")):
    kinds = "r" if name == "rfftn" else "c"
    case(
        f"fft.{name}({norm=})",
        lambda xp, x, f=name, o=norm: _power(xp, getattr(xp.fft, f)(x, s=(4, 6), axes=(-1, 0), norm=o)),
        (5, 3, 4), kinds=kinds,
    )  # fmt: skip
    if norm == "backward":
        case(f"fft.{name}", lambda xp, x, f=name: _power(xp, getattr(xp.fft, f)(x)), (3, 4), kinds=kinds)
for name in ("fftshift", "ifftshift"):
    case(f"fft.{name}", lambda xp, x, f=name: _power(xp, getattr(xp.fft, f)(x)), (5, 4), kinds="c")
    case(f"fft.{name}(axes)", lambda xp, x, f=name: _power(xp, getattr(xp.fft, f)(x, axes=(1,))), (2, 5), kinds="c")
