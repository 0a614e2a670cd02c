"""gradcheck: the derivatives that the rules give, against the definition of a derivative.

Everything is compared in real numbers. A function of arrays is a map of their *coordinates*: an array of n real numbers
has n, a complex one 2n, the real parts and then the imaginary parts. Coordinate i of the arguments is moved by a small
step, and the change of all coordinates of the results is divided by it: a column of the Jacobian J, here a row of its
transpose. The rules give the same matrix the other way: the backward pass from result coordinate j alone, seeded with 1
or, for an imaginary part, with 1j. For complex arguments this is PyTorch's convention, ∂/∂Re + i ∂/∂Im.

Three ways to move:

    differences   (f(x + h) - f(x - h)) / 2h. Its error is h² f'''/6, from the Taylor series, and about ε f/h, from
                  rounding f; they balance at h = ∛ε ≈ 6e-6, where ε = 2⁻⁵² is float64's, and leave about h² = 4e-11.
                  (Numerical Recipes, 3rd ed., section 5.7; in float32 only 2e-5 would be left: hence float64 alone.)
    complex-step  Im f(x + ih) / h. Nothing is subtracted, so nothing cancels: h = 1e-20 makes the Taylor error vanish
                  and the result exact to the last digits. For functions that are analytic and accept complex numbers.
                  (W. Squire and G. Trapp, "Using Complex Variables to Estimate Derivatives of Real Functions", 1998.)
    projection    differences along random directions u, one input at a time, seen along random directions w of the
                  results: wᵀ J u. Two evaluations for each direction, however large the arrays; a single wrong entry
                  of J shows in every direction, though which one it was does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import minigrad as mg

from .autodiff import Example, Primitive, _conjugate
from .backend import describe, dtype_name, host_generator, namespace_of
from .tensor import Tensor
from .transforms import _outputs, leaves, rebuild, vjp

EPSILON = 2.0**-52  # the distance from 1 to the next float64
DIRECTIONS = 8  # random directions for each input
FLOATING = ("real floating", "complex floating")

Named = dict[str, Tensor]  # inputs or outputs, by what an error message calls them


class Method(NamedTuple):
    """How a method moves its arguments, and how well it then knows the derivative."""

    eps: float  # the step, for arguments up to 1 in size; it grows with larger ones
    rtol: float
    what: str


METHODS = {
    "differences": Method(EPSILON ** (1 / 3), 1e-6, "central differences give"),
    "complex-step": Method(1e-20, 1e-12, "the complex step gives"),
    "projection": Method(EPSILON ** (1 / 3), 1e-6, "central differences give"),
}


class GradcheckError(AssertionError):
    """The rules give something else than the derivative. ``error`` is the largest relative error."""

    def __init__(self, message: str, error: float) -> None:
        super().__init__(message)
        self.error = error


class Report(NamedTuple):
    """What a check found that passed."""

    error: float  # the largest relative error
    compared: int  # how many derivatives were compared


# ------------------------------------------------------------------------------------------------ the two checks


def gradcheck(
    f: Callable[..., Any],
    inputs: Any,
    *,
    method: str = "differences",
    eps: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Report:
    """Compare the derivatives of ``f(*inputs)`` with finite differences: every input entry, every output entry.

    Parameters
    ----------
    f
        A function of Tensors that returns Tensors; arguments and results may be nested lists, tuples and dicts.
    inputs
        The positional arguments (or the only one, a Tensor). Checked are the Tensors that require a gradient or, where
        none does, all floating-point Tensors and arrays, on whichever backend they live. The rest stays as it is.
    method
        ``"differences"``, ``"complex-step"`` (exact to about 1e-14, if ``f`` is analytic and accepts complex numbers)
        or ``"projection"`` (for arrays too large to go through entry by entry). See the top of this file.
    eps
        The step; it is multiplied by ``max(1, |x|)``, so that large arguments move too. By default ∛2⁻⁵² ≈ 6e-6, or
        1e-20 for the complex step.
    rtol, atol
        The rule's value a and the method's value b agree if ``|a - b| <= max(atol, rtol * max(|a|, |b|))``. By
        default ``rtol`` is 1e-6, or 1e-12 for the complex step; and ``atol`` is a hundred times what rounding ``f``
        leaves: 2⁻⁵² |f| / eps, or 2⁻⁵² |f| for the complex step, where 1 stands for a smaller |f|.

    Returns
    -------
    Report
        ``error``, the largest ``|a - b| / max(|a|, |b|, atol / rtol)``, and ``compared``, the number of derivatives.

    Raises
    ------
    GradcheckError
        A derivative is wrong. The message names the worst input and output entry, both values and their relative error.
    TypeError
        A checked input or an output is not float64 or complex128; ``f`` is not one for the complex step.

    Examples
    --------
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> gradcheck(mg.exp, x).compared
    16
    >>> gradcheck(lambda x: mg.sum(x * mg.sin(x)), x, method="complex-step").error < 1e-13
    True
    """
    function, xs = _by_name("gradcheck", f, inputs)
    return _check("gradcheck", function, xs, method, eps, rtol, atol)


def gradgradcheck(
    f: Callable[..., Any],
    inputs: Any,
    *,
    method: str = "differences",
    eps: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Report:
    """Compare second derivatives: `gradcheck` of the vector-Jacobian product of ``f``.

    The product is a function of the inputs and of the cotangents, the gradients that come from above; both are
    checked. The cotangents are random numbers, the same in every run. Parameters and errors are those of `gradcheck`.

    >>> gradgradcheck(mg.exp, Tensor([1.0, 2.0])).compared
    8
    """
    function, xs = _by_name("gradgradcheck", f, inputs)
    ys = function(xs)
    cotangents = _arrays(_random(host_generator(0), _coordinates(ys).size), ys)
    xs_and_vs = xs | {f"the cotangent of {name}": v for name, v in cotangents.items()}

    def first_order(given: Named) -> Named:
        _, pull = vjp(function, {name: given[name] for name in xs})
        # Conjugated on both sides this is the plain derivative, analytic where f is, so that complex-step can be used.
        (gradients,) = pull({name: _conjugate(given[f"the cotangent of {name}"]) for name in ys})
        return {f"the gradient of {name}": _conjugate(g) for name, g in gradients.items()}

    return _check("gradgradcheck", first_order, xs_and_vs, method, eps, rtol, atol)


def _by_name(who: str, f: Callable[..., Any], inputs: Any) -> tuple[Callable[[Named], Named], Named]:
    """``f`` as a function of its checked inputs alone, from names to names, and these inputs."""
    args = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    names = [name for i, arg in enumerate(args) for name in _names(arg, f"input {i}")]
    values = [mg.asarray(x) if namespace_of(x) is not None else x for x in leaves(args)]
    floating = [i for i, x in enumerate(values) if type(x) is Tensor and mg.isdtype(x.dtype, FLOATING)]
    chosen = [i for i in floating if values[i].requires_grad] or floating
    if not chosen:
        raise TypeError(f"{who}: expected floating-point Tensors to differentiate by, got {inputs!r:.80}")

    def function(xs: Named) -> Named:
        new = list(values)
        for i, x in zip(chosen, xs.values(), strict=True):
            new[i] = x
        result = f(*rebuild(args, new))
        outputs = zip(_names(result, "output"), _outputs(who, result), strict=True)
        ys = {name: y for name, y in outputs if mg.isdtype(y.dtype, FLOATING)}
        if not ys:
            raise TypeError(f"{who}: expected the function to return floating-point Tensors, got {result!r:.80}")
        return ys

    return function, {names[i]: values[i].detach() for i in chosen}


def _names(tree: Any, name: str) -> list[str]:
    """What to call each of the `leaves`: ``input 0['weight']``."""
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in _names(value, f"{name}[{key!r}]")]
    if isinstance(tree, list | tuple):
        return [leaf for i, value in enumerate(tree) for leaf in _names(value, f"{name}[{i}]")]
    return [name]


def _check(
    who: str,
    function: Callable[[Named], Named],
    xs: Named,
    method: str,
    eps: float | None,
    rtol: float | None,
    atol: float | None,
) -> Report:
    if method not in METHODS:
        raise ValueError(f"{who}: unknown method {method!r}; known: {', '.join(METHODS)}")
    eps = METHODS[method].eps if eps is None else eps
    rtol = METHODS[method].rtol if rtol is None else rtol
    if not (eps > 0 and rtol > 0 and (atol is None or atol >= 0)):
        raise ValueError(f"{who}: eps and rtol must be positive and atol not negative, got {eps=}, {rtol=}, {atol=}")
    _check_float64(who, xs)
    ys, pull = vjp(function, xs)
    _check_float64(who, ys)
    x, y = _coordinates(xs), _coordinates(ys)
    if x.size == 0 or y.size == 0:
        return Report(0.0, 0)

    def moved(x: Tensor) -> Tensor:
        return _coordinates(function(_arrays(x, xs)))

    def pulled(w: Tensor) -> Tensor:
        return _coordinates(pull(_arrays(w, ys))[0])

    # Both are the Jacobian's transpose: a row for each way to move the arguments, a column for each view of the result.
    if method == "projection":
        counts = [_coordinates({name: x}).size for name, x in xs.items()]
        analytic, numeric, size = _projections(moved, pulled, x, y, counts, eps)
        rows, columns = [f"{name} along a random direction" for name in xs for _ in range(DIRECTIONS)], ["the output"]
    else:
        size = mg.abs(y)
        numeric = _differences(moved, x, eps) if method == "differences" else _complex_steps(who, function, x, xs, eps)
        analytic = mg.matrix_transpose(mg.stack([pulled(_with(mg.zeros_like(y), j, 1.0)) for j in range(y.size)]))
        rows, columns = _entries(xs), _entries(ys)

    # What rounding the function leaves: the size below which a difference of two derivatives says nothing.
    noise = 100 * EPSILON * mg.maximum(size, mg.ones_like(size)) / (1.0 if method == "complex-step" else eps)
    smallest = (mg.full_like(size, atol) if atol is not None else noise) / rtol
    relative = _relative_error(analytic, numeric, smallest)
    worst = int(mg.argmax(relative))
    error = float(mg.reshape(relative, (-1,))[worst])
    if error <= rtol:
        return Report(error, numeric.size)

    i, j = divmod(worst, len(columns))
    a, b = float(analytic[i, j]), float(numeric[i, j])
    wrong = numeric.size - int(mg.count_nonzero(relative <= rtol))
    message = (
        f"{who}: the derivative of {columns[j]} by {rows[i]} is wrong: the rule gives {a:.10g}, {METHODS[method].what} "
        f"{b:.10g}, relative error {error:.2g} (allowed: {rtol:g}); {wrong} of {numeric.size} derivatives are wrong"
    )
    once, again = moved(x), moved(x)
    if bool(mg.any(mg.logical_or(once < again, once > again))):
        message += ". Two calls of the function differ: if it draws random numbers, seed them inside"
    if method == "complex-step":
        step, allowed, _ = METHODS["differences"]
        difference = _difference(moved, x, i, step)[j]
        if float(_relative_error(numeric[i, j], difference, noise[j] / step / allowed)) > allowed:
            raise TypeError(
                f"{who}: the function is not analytic, so the complex step does not give its derivative: for "
                f"{columns[j]} by {rows[i]} it gives {b:.10g}, central differences {float(difference):.10g}. Does the "
                "function use abs, real, conj, max or the like? Use method='differences'"
            )
    raise GradcheckError(message, error)


def _check_float64(who: str, named: Named) -> None:
    for name, x in named.items():
        if dtype_name(x.dtype) not in ("float64", "complex128"):
            raise TypeError(
                f"{who}: {name} is {describe(x._data)}; finite differences need float64 or complex128, "
                "as rounding in any smaller dtype hides what they measure"
            )


def _relative_error(a: Tensor, b: Tensor, smallest: Tensor) -> Tensor:
    """|a - b| relative to the larger of both and of ``smallest``; infinite where a or b is not finite."""
    finite = mg.logical_and(mg.isfinite(a), mg.isfinite(b))
    a, b = mg.where(finite, a, mg.zeros_like(a)), mg.where(finite, b, mg.zeros_like(b))
    size = mg.maximum(mg.maximum(mg.abs(a), mg.abs(b)), smallest)
    error = mg.abs(a - b) / mg.maximum(size, mg.full_like(size, 1e-300))  # both may be 0, and atol too
    return mg.where(finite, error, mg.full_like(error, math.inf))


# ------------------------------------------------------------------------------------------------ the examples


def prepared(op: Primitive[Any], example: Example) -> tuple[Callable[..., Any], list[Any]]:
    """The call that `Primitive.example` gave, as a function of its arguments, and these: the arrays to check require a
    gradient."""
    generator = mg.random.Generator(0)
    args: list[Any] = []
    drawn: list[bool] = []
    for i, arg in enumerate(example.args):
        shape = isinstance(arg, tuple) and all(type(n) is int for n in arg)
        drawn.append(shape and (op.joint is not None or op._name(i) in op.rules))
        if drawn[-1]:
            x = generator.uniform(arg, example.low, example.high)
            if example.complex:
                x = mg.astype(x, "complex128") + 1j * generator.uniform(arg, example.low, example.high)
            x.requires_grad = True
            args.append(x)
        else:
            args.append(arg() if callable(arg) else arg)

    def call(*args: Any) -> Any:
        if example.of is not None:
            args = tuple(example.of(x) if random else x for x, random in zip(args, drawn, strict=True))
        return op(*args, **example.options)

    return call, args


# ------------------------------------------------------------------------------------------------ the methods

Moved = Callable[[Tensor], Tensor]  # from the coordinates of the arguments to those of the results


def _difference(f: Moved, x: Tensor, i: int, eps: float) -> Tensor:
    """The derivatives of f by x[i]."""
    here = float(x[i])
    h = eps * max(1.0, abs(here))
    above, below = here + h, here - h
    return (f(_with(x, i, above)) - f(_with(x, i, below))) / (above - below)  # the step as rounding has left it


def _differences(f: Moved, x: Tensor, eps: float) -> Tensor:
    return mg.stack([_difference(f, x, i, eps) for i in range(x.size)])


def _complex_steps(who: str, function: Callable[[Named], Named], x: Tensor, xs: Named, eps: float) -> Tensor:
    if any(_is_complex(x) for x in xs.values()):
        raise TypeError(f"{who}: the complex step needs real inputs; use method='differences'")
    z = mg.astype(x, "complex128")
    rows = []
    for i in range(x.size):
        try:
            ys = function(_arrays(_with(z, i, complex(float(x[i]), eps)), xs))
        except Exception as error:
            raise TypeError(
                f"{who}: the function does not accept complex numbers, which the complex step needs: {error}. "
                "Does it compare, or use max, atan2 or the like? Use method='differences'"
            ) from error
        for name, y in ys.items():
            if not _is_complex(y):
                raise TypeError(
                    f"{who}: {name} is real for complex inputs, so the function is not analytic, as the complex step "
                    "needs. Does it use abs, real, var or the like? Use method='differences'"
                )
        rows.append(_coordinates({name: mg.imag(y) for name, y in ys.items()}) / eps)
    return mg.stack(rows)


def _projections(
    f: Moved, pulled: Moved, x: Tensor, y: Tensor, counts: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """wᵀ J u by rule and by differences, one row for each random u and w; and the size of the wᵀ f(x) subtracted."""
    generator = host_generator(0)
    scale = mg.maximum(mg.abs(x), mg.ones_like(x))
    analytic, numeric, size = [], [], []
    start = 0
    for count in counts:
        for _ in range(DIRECTIONS):
            u, w = mg.zeros_like(x), _random(generator, y.size)
            u[start : start + count] = scale[start : start + count] * _random(generator, count)
            above, below = x + eps * u, x - eps * u
            analytic.append(mg.sum(pulled(w) * (above - below)) / (2 * eps))  # the step as rounding has left it
            numeric.append(mg.sum(w * (f(above) - f(below))) / (2 * eps))
            size.append(mg.sqrt(mg.sum(mg.square(w * y))))  # rounding errors are independent: they add as squares
        start += count
    return mg.stack(analytic)[:, None], mg.stack(numeric)[:, None], mg.stack(size)[:, None]


def _random(generator: Any, size: int) -> Tensor:
    return mg.asarray(generator.normal(size=size))


# ------------------------------------------------------------------------------------------------ coordinates
# They live on the host, where NumPy compares them: only the function and its rules run on the backend that is checked.


def _is_complex(x: Tensor) -> bool:
    return mg.isdtype(x.dtype, "complex floating")


def _coordinates(named: Named) -> Tensor:
    """Arrays as one vector of real numbers: a complex array's real parts, then its imaginary parts."""
    parts = []
    for x in named.values():
        flat = mg.reshape(mg.asarray(x.numpy()), (-1,))
        parts += [mg.real(flat), mg.imag(flat)] if _is_complex(x) else [flat]
    return mg.concat(parts)


def _arrays(vector: Tensor, like: Named) -> Named:
    """The arrays whose coordinates these are, named, shaped and placed as ``like``."""
    named, start = {}, 0
    for name, x in like.items():
        flat = vector[start : start + x.size]
        start += x.size
        if _is_complex(x):
            flat = flat + 1j * vector[start : start + x.size]
            start += x.size
        values = mg.reshape(flat, x.shape).data
        named[name] = mg.asarray(namespace_of(x._data).asarray(values, device=x.device, copy=True))
    return named


def _entries(named: Named) -> list[str]:
    """What to call each coordinate: ``input 0[1, 2]``."""
    entries = []
    for name, x in named.items():
        places = [f"{name}{list(index) or ''}" for index in itertools.product(*map(range, x.shape))]
        parts = ("the real part of ", "the imaginary part of ") if _is_complex(x) else ("",)
        entries += [part + place for part in parts for place in places]
    return entries


def _with(vector: Tensor, i: int, value: complex) -> Tensor:
    """The vector with another value in one place."""
    new = mg.asarray(vector, copy=True)
    new[i] = value
    return new
