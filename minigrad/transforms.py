"""transforms: functions that make the derivative of a function.

`grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian`, `hessian` and `hvp` take a function of Tensors and give its
derivative, without touching any ``.grad``. Arguments and results may be nested lists, tuples and dicts of Tensors.
They nest: ``grad(grad(f))`` is the second derivative, and a derivative inside of a loss can be trained through.

Names and arguments are JAX's (https://docs.jax.dev/en/latest/jax.html#automatic-differentiation), which has no `hvp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import minigrad as mg

from .autodiff import Leaf, _paths, _recording_set_to, gradients_of, is_recording
from .backend import describe, namespace_of
from .elementwise import alias
from .tensor import Tensor

__all__ = [
    "grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp",
]  # fmt: skip

Tree = Any  #: a Tensor, or nested lists, tuples and dicts of Tensors
Function = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ nested containers


def leaves(tree: Tree) -> list[Any]:
    """What stands in nested lists, tuples and dicts, in order."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def rebuild(tree: Tree, new: Iterable[Any]) -> Tree:
    """The nested containers of ``tree`` with the elements ``new`` in place of its own."""
    queue = iter(new)  # an iterator gives itself: all levels take from one queue
    if isinstance(tree, dict):
        return {key: rebuild(value, queue) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        built = [rebuild(value, queue) for value in tree]
        return type(tree)(*built) if hasattr(tree, "_fields") else type(tree)(built)
    return next(queue)


# ------------------------------------------------------------------------------------------------ the common part


def _inputs(name: str, tree: Tree) -> tuple[Tree, list[Tensor]]:
    """Fresh places in the graph with the values of ``tree``: differentiation goes down to these and no further."""
    fresh = []
    for value in leaves(tree):
        x = value if type(value) is Tensor else mg.asarray(value)
        if not mg.isdtype(x.dtype, ("real floating", "complex floating")):
            raise TypeError(f"{name}: expected floating-point arguments to differentiate by, got {describe(x._data)}")
        fresh.append(alias(x) if x.requires_grad else Tensor._make(x._data, Leaf(x._data), x._share_memory()))
    return rebuild(tree, fresh), fresh


def _chosen(name: str, args: Sequence[Any], argnums: int | Sequence[int]) -> tuple[list[Any], Tree, list[Tensor]]:
    """The arguments with fresh places for those that ``argnums`` names, these as they were nested, and flat."""
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    if not all(-len(args) <= i < len(args) for i in numbers):
        raise ValueError(f"{name}: argnums={argnums} but the function got {len(args)} positional argument(s)")
    if len({i % len(args) for i in numbers}) < len(numbers):
        raise ValueError(f"{name}: argnums={argnums} names an argument twice")
    args = list(args)
    wanted, flat = _inputs(name, [args[i] for i in numbers])
    for i, value in zip(numbers, wanted, strict=True):
        args[i] = value
    return args, wanted[0] if isinstance(argnums, int) else tuple(wanted), flat


def _outputs(name: str, tree: Tree) -> list[Tensor]:
    outputs = leaves(tree)
    for output in outputs:
        if type(output) is not Tensor:
            raise TypeError(f"{name}: expected the function to return Tensors, got {output!r:.80}")
    return outputs


def _pull(outputs: Sequence[Tensor], seeds: Sequence[Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The vector-Jacobian product, with zeros where an output does not depend on an input."""
    found = gradients_of(outputs, seeds, inputs)
    return [mg.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def _check_like(name: str, what: str, given: Tree, like: Tree) -> list[Tensor]:
    """The leaves of ``given``, which has to be nested as ``like`` is, in the order of the leaves of ``like``."""
    if isinstance(like, dict):
        if not isinstance(given, dict) or given.keys() != like.keys():
            raise ValueError(f"{name}: expected a {what} as a dict with the keys {list(like)}, got {given!r:.80}")
        return [leaf for key in like for leaf in _check_like(name, what, given[key], like[key])]
    if isinstance(like, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(like):
            raise ValueError(f"{name}: expected a {what} of {len(like)} elements, got {given!r:.80}")
        return [leaf for g, one in zip(given, like, strict=True) for leaf in _check_like(name, what, g, one)]
    value = mg.asarray(given)
    if value.shape != like.shape:
        raise ValueError(f"{name}: expected a {what} of shape {like.shape}, got {value.shape}")
    return [value]


# ------------------------------------------------------------------------------------------------ the transforms


def value_and_grad(f: Function, argnums: int | Sequence[int] = 0) -> Function:
    """A function that returns ``(f(…), the gradient)``, see `grad`.

    >>> value, gradient = value_and_grad(lambda x: x**3)(2.0)
    >>> value.item(), gradient.item()
    (8.0, 12.0)
    """

    @wraps(f)
    def function(*args: Any, **options: Any) -> tuple[Any, Tree]:
        with _recording_set_to(True):
            args, wanted, inputs = _chosen("grad", args, argnums)  # type: ignore[assignment]
            value = f(*args, **options)
            if type(value) is not Tensor or value.shape != () or mg.isdtype(value.dtype, "complex floating"):
                what = describe(value._data) if type(value) is Tensor else repr(value)[:80]
                raise ValueError(f"grad: the function must return a real scalar Tensor, got {what}; see jacobian, vjp")
            gradients = _pull([value], [mg.ones_like(value)], inputs)
        return _leave(value, inputs), rebuild(wanted, _recorded_only_if_wanted(gradients))

    return function


def _recorded_only_if_wanted(results: Sequence[Tensor]) -> list[Tensor]:
    """Results of a transform, which records inside in any case, outside of the graph if it was called under no_grad."""
    return list(results) if is_recording() else [result.detach() for result in results]


def _leave(value: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """A result without the graph inside the transform, unless something outside can want its gradient."""
    outside = value.requires_grad and is_recording() and _paths([value], {x._node for x in inputs})[1]
    return value if outside else value.detach()


def grad(f: Function, argnums: int | Sequence[int] = 0) -> Function:
    """The gradient of a scalar function, as a function of the same arguments.

    Parameters
    ----------
    f
        A function that returns a real Tensor of shape ().
    argnums
        Which positional argument to differentiate by; several give a tuple. An argument can be a Tensor, a raw
        array, a float, or nested lists, tuples and dicts of them; the gradient is nested likewise.

    Raises
    ------
    ValueError
        ``f`` returned no real scalar.
    TypeError
        An argument to differentiate by is not of a floating-point dtype.

    Examples
    --------
    >>> grad(lambda x: x**3)(2.0)
    Tensor(12., dtype=float64, backend=numpy, device=cpu)
    >>> grad(grad(lambda x: x**3))(2.0)
    Tensor(12., dtype=float64, backend=numpy, device=cpu)
    """
    both = value_and_grad(f, argnums)

    @wraps(f)
    def function(*args: Any, **options: Any) -> Tree:
        return both(*args, **options)[1]

    return function


def vjp(f: Function, *args: Any) -> tuple[Tree, Callable[[Tree], tuple[Tree, ...]]]:
    """``f(*args)`` and its vector-Jacobian product: a function from a cotangent of the result to one of each argument.

    >>> y, pull = vjp(lambda x: x * x, Tensor([1.0, 2.0]))
    >>> pull(Tensor([1.0, 10.0]))
    (Tensor([ 2., 40.], dtype=float64, backend=numpy, device=cpu),)
    """
    with _recording_set_to(True):
        places, inputs = _inputs("vjp", args)
        value = f(*places)
        outputs = _outputs("vjp", value)

    def pull(cotangent: Tree) -> tuple[Tree, ...]:
        seeds = _check_like("vjp", "cotangent", cotangent, value)
        with _recording_set_to(True):
            gradients = _pull(outputs, seeds, inputs)
        result: tuple[Tree, ...] = rebuild(args, _recorded_only_if_wanted(gradients))
        return result

    return rebuild(value, [_leave(output, inputs) for output in outputs]), pull


def jvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Tree, Tree]:
    """``f(*primals)`` and the Jacobian-vector product: how the result changes as the arguments move along ``tangents``.

    The product is the derivative of the vector-Jacobian product with respect to its cotangent, in which it is linear,
    so no second set of rules is needed (J. Townsend, "A new trick for calculating Jacobian vector products", 2017).

    >>> jvp(lambda x: x * x, [Tensor([1.0, 2.0])], [Tensor([1.0, 10.0])])[1]
    Tensor([ 2., 40.], dtype=float64, backend=numpy, device=cpu)
    """
    with _recording_set_to(True):
        places, inputs = _inputs("jvp", tuple(primals))
        directions = _check_like("jvp", "tangent", tuple(tangents), places)
        value = f(*places)
        outputs = _outputs("jvp", value)
        cotangents = [Tensor(mg.zeros_like(y), requires_grad=True) for y in outputs]
        pulled = _pull(outputs, cotangents, inputs)
        products = _pull(pulled, directions, cotangents)
    tangent = [_leave(product, [*inputs, *cotangents]) for product in products]
    return rebuild(value, [_leave(y, inputs) for y in outputs]), rebuild(value, tangent)


def jacobian(f: Function, argnums: int | Sequence[int] = 0) -> Function:
    """The Jacobian of a function of one Tensor result: for each argument, of shape ``result.shape + argument.shape``.

    For a complex result, of a holomorphic function, it holds the derivatives themselves; for a real result of complex
    arguments, the gradients in the convention of ``.grad``. TypeError for a function of another result.

    >>> jacobian(lambda x: x * x)(Tensor([1.0, 2.0]))
    Tensor([[2., 0.],
            [0., 4.]], dtype=float64, backend=numpy, device=cpu, op=reshape)
    """

    @wraps(f)
    def function(*args: Any, **options: Any) -> Tree:
        with _recording_set_to(True):
            args, wanted, inputs = _chosen("jacobian", args, argnums)  # type: ignore[assignment]
            value = f(*args, **options)
            if type(value) is not Tensor:
                raise TypeError(f"jacobian: expected the function to return one Tensor, got {value!r:.80}")
            xp, n = namespace_of(value._data), value.size
            basis = Tensor._make(xp.reshape(xp.eye(n, dtype=value.dtype, device=value.device), (n, *value.shape)))
            rows = [_pull([value], [basis[i, ...]], inputs) for i in range(n)]
            columns = [
                mg.reshape(mg.stack([row[i] for row in rows]), value.shape + x.shape)
                if rows
                else mg.reshape(mg.zeros_like(x)[None, ...][:0, ...], value.shape + x.shape)
                for i, x in enumerate(inputs)
            ]
            if mg.isdtype(value.dtype, "complex floating"):  # the derivative itself, as `jvp` has it
                columns = [mg.conj(column) for column in columns]
        return rebuild(wanted, _recorded_only_if_wanted(columns))

    return function


def hessian(f: Function, argnums: int = 0) -> Function:
    """The matrix of second derivatives of a scalar function: of shape ``x.shape + x.shape``.

    >>> hessian(lambda x: mg.sum(x**3))(Tensor([1.0, 2.0]))
    Tensor([[ 6.,  0.],
            [ 0., 12.]], dtype=float64, backend=numpy, device=cpu, op=reshape)
    """
    return jacobian(grad(f, argnums), argnums)


def hvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Tree:
    """The Hessian of a scalar function times a vector, without the Hessian: the gradient's change along ``tangents``.

    With one argument the product alone, with several a tuple of one for each. (B. A. Pearlmutter, "Fast exact
    multiplication by the Hessian", 1994. As the Hessian is symmetric, it is the gradient's vector-Jacobian product.)

    >>> hvp(lambda x: mg.sum(x**3), [Tensor([1.0, 2.0])], [Tensor([1.0, 10.0])])
    Tensor([  6., 120.], dtype=float64, backend=numpy, device=cpu)
    """
    with _recording_set_to(True):
        places, inputs = _inputs("hvp", tuple(primals))
        directions = _check_like("hvp", "tangent", tuple(tangents), places)
        gradients = grad(f, tuple(range(len(primals))))(*places)
        flat = _pull(leaves(gradients), directions, inputs)
    products = rebuild(tuple(primals), _recorded_only_if_wanted(flat))
    return products[0] if len(primals) == 1 else products
