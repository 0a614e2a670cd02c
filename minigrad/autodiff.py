"""autodiff: primitives, the graph they record, and the backward pass.

A *primitive* is a forward function and, beside it, one rule per differentiable argument. A rule is the vector-Jacobian
product: given ``g``, the derivative of the final scalar with respect to the output, it returns the derivative with
respect to that argument.

    @primitive
    def multiply(xp, x1, x2, /):
        return xp.multiply(x1, x2)

    multiply.vjp(x1=lambda g, x2: g * x2,
                 x2=lambda g, x1: g * x1)

A rule names what it needs, and the graph keeps only that alive:

    g              the gradient of the output; always first
    out            the output
    x1, axis …     an argument, array or option, by its name in the forward function
    x1_shape       the shape of an array argument, without the array
    xp             the namespace to compute in
    needs          the names of the arguments whose gradient is wanted (for rules that give several at once)
    lse …          whatever the forward function handed to `keep` besides its output; all arguments then live on, too

Rules run with the raw namespace (``numpy``, ``cupy`` …) and raw arrays, which is fast and records nothing. With
``create_graph=True`` the same rules run with ``xp = minigrad`` on Tensors, so they record themselves, and the result
can be differentiated again.

Broadcasting and type promotion are undone here, once for all: a rule's result is summed over broadcast axes and cast
to the argument's dtype. Complex gradients are handled here as well: inside a backward pass ``g`` is the plain
derivative (no conjugate), so a rule for a holomorphic function reads as in the real case; `backward` conjugates where
gradients enter and leave, which gives PyTorch's convention (the direction of steepest ascent).

Sources: reverse mode is section 3.2 of A. G. Baydin et al., "Automatic differentiation in machine learning: a survey",
2018, arXiv:1502.05767; complex gradients are those of https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache, update_wrapper, wraps
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

import minigrad as mg

from . import backend
from .backend import NAMESPACES, NO_NUMBER, SCALAR, Array, describe, namespace_of, owns_memory, see
from .tensor import Tensor

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

# ------------------------------------------------------------------------------------------------ recording or not

_recording: ContextVar[bool] = ContextVar("minigrad_recording", default=True)


def is_recording() -> bool:
    """Whether operations on Tensors that require a gradient are recorded in this thread or async task."""
    return _recording.get()


class _recording_set_to:
    """Record or not inside a ``with`` block, in this thread or async task."""

    def __init__(self, value: bool) -> None:
        self._value = value
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        self._tokens.append(_recording.set(self._value))

    def __exit__(self, *error: object) -> None:
        _recording.reset(self._tokens.pop())


class no_grad(_recording_set_to):
    """Record nothing inside: ``with no_grad(): …``, or ``@no_grad()`` on a function, also an ``async`` one.

    It holds for this thread or async task alone.

    >>> w = Tensor([1.0, 2.0], requires_grad=True)
    >>> with no_grad():
    ...     w -= 0.5
    >>> w
    Tensor([0.5, 1.5], dtype=float64, backend=numpy, device=cpu, requires_grad=True)
    """

    def __init__(self) -> None:
        super().__init__(False)

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"no_grad: {function.__name__} is a generator; use `with no_grad():` between its yields")

        @wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        @wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return await function(*args, **kwargs)

        return asynchronous if inspect.iscoroutinefunction(function) else plain  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------ the graph

_order = itertools.count()


class Leaf:
    """The graph's end: a Tensor made by the user, where gradients arrive. It holds the gradient, not the Tensor."""

    __slots__ = ("dtype", "grad", "order", "shape")
    op = None

    def __init__(self, data: Array) -> None:
        self.shape = data.shape
        self.dtype = data.dtype
        self.grad: Tensor | None = None
        self.order = next(_order)


class Node:
    """One recorded operation: where its inputs came from and the values its rules asked for. Never a Tensor."""

    __slots__ = ("__weakref__", "dtype", "memories", "op", "order", "parents", "plan", "saved", "shape", "xp")

    saved: Any  # values by name; None, like the parents, once a backward pass has freed the node
    memories: Any  # those of the Tensors among what is saved
    shape: tuple[int, ...] | None  # None where the operation has several outputs
    dtype: Any

    def __init__(self, op: Primitive[Any], plan: Plan, xp: Any, parents: Any) -> None:
        self.op, self.plan, self.xp, self.parents, self.order = op, plan, xp, parents, next(_order)


class Plan(NamedTuple):
    """What to save, and which rules to run, when a given set of a primitive's arguments needs a gradient."""

    positions: tuple[int, ...]  # of those arguments
    names: tuple[str, ...]
    rules: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...]  # one each, or a single joint one
    joint: bool = False
    arrays: tuple[tuple[str, int], ...] = ()  # positional arguments to save
    shapes: tuple[tuple[str, int], ...] = ()  # positional arguments whose shape is enough
    options: tuple[str, ...] = ()  # keyword arguments to save
    out: bool = False
    saves: bool = True  # anything at all
    every: bool = False  # whether each of the arguments that need a gradient has a rule


NOTHING: dict[str, Any] = {}  # what all the nodes share that save nothing; never written to


class Kept(NamedTuple):
    """An output together with intermediate results that the rules can name. Made by `keep`."""

    out: Any
    values: dict[str, Any]


def keep(out: Any, **values: Any) -> Kept:
    """Return ``out`` from a primitive's forward function and keep ``values`` for its rules.

    The values must follow from the arguments: a derivative of a derivative computes them again, recorded, so that
    all arguments are kept alive as well.

    >>> @primitive
    ... def sine(xp, x, /):
    ...     return keep(xp.sin(x), cosine=xp.cos(x))
    >>> sine.vjp(x=lambda g, cosine: g * cosine)
    """
    return Kept(out, values)


# ------------------------------------------------------------------------------------------------ primitives


class Example(NamedTuple):
    """A call of a primitive with random numbers, see `Primitive.example`."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    low: float
    high: float
    complex: bool
    of: Callable[[Any], Any] | None


ALL: dict[str, Primitive[Any]] = {}
"""Every primitive defined so far, by module and name: what ``python -m minigrad gradcheck`` checks."""


class Primitive(Generic[P]):
    """A function of arrays with hand-written derivatives. Made by the decorator `primitive`.

    It takes Tensors and arrays of one library, of whatever shapes and dtypes that library's function takes, and gives a
    Tensor. What the library complains about becomes an error of one line that says what was given.

    >>> mg.add.names, sorted(mg.add.rules)
    (('x1', 'x2'), ['x1', 'x2'])
    >>> mg.add(mg.ones(2), mg.ones(3))
    Traceback (most recent call last):
    ValueError: add: operands could not be broadcast ... (given x1: float64 (2,) on numpy cpu, x2: float64 (3,) on ...)
    """

    def __init__(self, function: Callable[Concatenate[Any, P], Any], view: bool) -> None:
        update_wrapper(self, function)
        self.forward: Callable[..., Any] = function
        self.view = view
        self.rules: dict[str, Callable[..., Any]] = {}
        self.joint: Callable[..., Sequence[Any]] | None = None
        self.examples: list[Example] = []
        self._plans: dict[int, Plan] = {}

        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.__signature__ = inspect.Signature(parameters)
        self.names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        self.variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.by_name = frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        self.kinds = {p.name: frozenset(str(p.annotation).split(" | ")) for p in parameters}  # {"Array", "None"}
        # The positions of shapes and the like, and those where None needs no look.
        self.others = frozenset(i for i, name in enumerate(self.names) if "Array" not in self.kinds[name])
        self.or_none = self.others | {i for i, name in enumerate(self.names) if "None" in self.kinds[name]}
        self.keywords = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        reserved = {"out", "needs", "options", "xp"} & {p.name for p in parameters}
        if reserved:
            raise TypeError(f"primitive {self}: an argument cannot be named {reserved.pop()!r}: rules use that name")
        ALL[f"{function.__module__}.{function.__qualname__}"] = self

    __name__: str
    __qualname__: str
    __module__: str

    def __repr__(self) -> str:
        return f"<primitive {self.__name__}{self.__signature__}>"

    def __str__(self) -> str:
        return self.__name__.removeprefix("_")

    def __reduce__(self) -> str:
        return self.__qualname__  # a function: pickled by its name, and its own copy

    def vjp(self, **rules: Callable[..., Any]) -> None:
        """Give the rule of each differentiable argument. TypeError for a name that is none, or a rule without ``g``.

        >>> @primitive
        ... def product(xp, x1, x2, /):
        ...     return xp.multiply(x1, x2)
        >>> product.vjp(x1=lambda g, x2: g * x2, x2=lambda g, x1: g * x1)
        >>> mg.grad(product)(3.0, 5.0).item()
        5.0
        """
        if self.joint is not None:
            raise TypeError(f"{self}.vjp: all gradients have their rule already, given by vjp_all")
        for name, rule in rules.items():
            if name not in self.names:
                raise TypeError(f"{self}.vjp: no argument {name!r}; the arguments are {', '.join(self.names)}")
            self._check_rule(rule)
        self.rules.update(rules)
        self._plans.clear()

    def vjp_all(self, rule: Callable[..., Sequence[Any]]) -> None:
        """Give one rule that returns the gradients of all array arguments, in order (None where there is none).

        >>> @primitive
        ... def product(xp, x1, x2, /):
        ...     return xp.multiply(x1, x2)
        >>> product.vjp_all(lambda g, x1, x2: (g * x2, g * x1))
        >>> mg.grad(product, argnums=1)(3.0, 5.0).item()
        3.0
        """
        self._check_rule(rule)
        self.joint = rule
        self._plans.clear()

    def example(
        self,
        *args: Any,
        low: float = -2.0,
        high: float = 2.0,
        complex: bool = False,
        of: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        """Add a call for ``python -m minigrad gradcheck``: a tuple of ints stands for random numbers of that shape.

        The numbers lie between ``low`` and ``high``; ``complex`` gives them an imaginary part; ``of`` makes of each
        such array what the operation can take (a symmetric matrix, say). A function without arguments stands for the
        array that it returns. Without any example the first argument is of shape (2, 3), the others of shape (3,).

        >>> @primitive
        ... def root(xp, x, /):
        ...     return xp.sqrt(x)
        >>> root.vjp(x=lambda g, out: g / (2 * out))
        >>> root.example((4,), low=0.5)  # not 0 or below
        >>> from minigrad.gradcheck import prepared
        >>> mg.gradcheck(*prepared(root, root.examples[0])).compared
        16
        """
        self.examples.append(Example(args, options, low, high, complex, of))

    def raw(self, xp: Any) -> Callable[..., Any]:
        """This operation for use inside a rule: on raw arrays, or recorded where ``xp`` is minigrad.

        >>> mg.square.raw(backend.NUMPY)(backend.NUMPY.asarray([2.0, 3.0]))
        array([4., 9.])
        """
        if xp is mg:
            return self

        def forward(*args: Any, **options: Any) -> Any:
            out = self.forward(xp, *args, **options)
            return out.out if type(out) is Kept else out

        return forward

    def __call__(self, *args: P.args, **options: P.kwargs) -> Tensor:
        if options:
            if not options.keys() <= self.keywords:
                args = self._by_position(args, options)  # type: ignore[assignment]
            for name, value in options.items():
                if type(value) is Tensor:
                    if value._node is not None and _recording.get():
                        raise TypeError(f"{self}: option {name} has no gradient; detach() the Tensor that requires one")
                    options[name] = mg.positive(value)._data
                elif NAMESPACES.get(type(value)) is SCALAR:
                    options[name] = value.item()  # type: ignore[attr-defined]
        xp = kind = None
        raw: list[Any] = []
        needs_grad = 0  # one bit for each argument
        nodes: Any = ()
        for x in args:
            if type(x) is Tensor:
                if x._node is not None:
                    needs_grad |= 1 << len(raw)
                    nodes += (x._node,)
                x = x._data
            if type(x) is not kind:
                try:
                    found = NAMESPACES[type(x)]
                except KeyError:
                    found = see(x)
                if found is SCALAR:
                    x = x.item()  # type: ignore[attr-defined]
                elif found is NO_NUMBER:
                    if len(raw) not in (self.or_none if x is None else self.others):
                        self._expect_array(len(raw), x, args, options)
                elif xp is None:
                    xp, kind = found, type(x)
                elif found is not xp and found is not None:
                    raise TypeError(f"{self}: arrays of two libraries cannot be combined: {self._given(args)}")
            raw.append(x)
        if xp is None:
            raise self._explain(TypeError("expected a Tensor or an array"), args, options)
        try:
            if options:
                out = self.forward(xp, *raw, **options)
            elif len(raw) == 1:  # spelled out, a call takes half the time
                out = self.forward(xp, raw[0])
            elif len(raw) == 2:
                out = self.forward(xp, raw[0], raw[1])
            else:
                out = self.forward(xp, *raw)
        except Exception as error:
            explained = self._explain(error, args, options)
            if explained is error:
                raise
            raise explained from error

        kept = None
        if type(out) is not kind:
            if type(out) is Kept:
                out, kept = out
            if type(out) is kind:
                pass
            elif NAMESPACES.get(type(out)) is SCALAR:  # what NumPy gives for 0-dimensional arrays
                out = xp.asarray(out)
            elif isinstance(out, tuple):
                return cast("Tensor", self._many(args, raw, options, xp, needs_grad, out, kept))
            else:
                out = _as_array(xp, out, self)

        tensor: Tensor = _new(Tensor)
        tensor._data = out
        tensor._node = None
        tensor._memory = None
        if (out is raw[0] or (self.view and not owns_memory(out))) and type(args[0]) is Tensor:
            tensor._memory = args[0]._share_memory()
        tensor._op = self
        if nodes and _recording.get():
            plan = self._plans.get(needs_grad) or self._plan(needs_grad)
            dtype = out.dtype
            if plan.rules and (dtype is nodes[0].dtype or _has_derivative(dtype)):
                if not plan.every:
                    nodes = tuple([args[i]._node for i in plan.positions])  # type: ignore[attr-defined]
                tensor._node = node = _new(Node)  # what Node(…) does, without a call
                node.op, node.plan, node.xp = self, plan, xp
                node.parents, node.order = nodes, next(_order)
                node.shape, node.dtype = out.shape, dtype
                if plan.saves or kept is not None:
                    self._save(node, args, raw, options, kept, (tensor,))
                else:
                    node.saved = node.memories = NOTHING
        return tensor

    def _many(
        self, args: Any, raw: list[Any], options: Any, xp: Any, needs_grad: int, outs: Any, kept: Any
    ) -> tuple[Tensor, ...]:
        """The Tensors of an operation with several outputs: each is an item of one node."""
        memory = args[0]._share_memory() if self.view and type(args[0]) is Tensor else None
        tensors = tuple([Tensor._make(xp.asarray(out), None, memory, self) for out in outs])
        if needs_grad and _recording.get():
            plan = self._plans.get(needs_grad) or self._plan(needs_grad)
            if plan.rules:
                node = Node(self, plan, xp, tuple(args[i]._node for i in plan.positions))
                make_items(node, tensors)
                self._save(node, args, raw, options, kept, tensors)
        return tensors

    def _save(
        self, node: Node, args: Any, raw: list[Any], options: Any, kept: dict[str, Any] | None, outs: tuple[Tensor, ...]
    ) -> None:
        """Keep for a node what its rules name."""
        plan = node.plan
        node.saved = saved = {}
        node.memories = memories = {}
        # What `keep` kept is computed again for a second derivative, for which all arguments have to be there.
        for name, i in plan.arrays if kept is None else zip(self.names, itertools.count()):
            if i < len(raw):
                saved[name] = raw[i]
                x = args[i]
                if type(x) is Tensor:
                    memories[name] = x._share_memory().pin(node)
                elif type(x) is tuple:  # an index
                    for item in x:
                        if type(item) is Tensor:
                            memories[f"{name} {id(item)}"] = item._share_memory().pin(node)
            else:
                saved[name] = self.defaults[name]
        for name, i in plan.shapes:
            saved[name] = getattr(raw[i], "shape", None) if i < len(raw) else None
        for name in plan.options:
            saved[name] = options[name] if name in options else self.defaults[name]
        if self.variadic:
            saved[self.variadic + "_shape"] = tuple(x.shape for x in raw[len(self.names) :])
        if plan.out or kept is not None:  # what was kept can be the output or a part of it
            saved["out"] = outs[0]._data if node.shape is not None else tuple(out._data for out in outs)
            for i, out in enumerate(outs):
                memories[f"out {i}"] = out._share_memory().pin(node)
        if kept is not None:
            if self.variadic:
                raise TypeError(f"{self}: keep cannot be used with *{self.variadic}")
            saved.update(kept)
            saved["options"] = options

    def _plan(self, needs_grad: int) -> Plan:
        needing = [i for i in range(needs_grad.bit_length()) if needs_grad >> i & 1]
        positions = tuple(i for i in needing if self.joint is not None or self._name(i) in self.rules)
        names = tuple(self._name(i) for i in positions)
        rules = [self.rules[name] for name in names] if self.joint is None else [self.joint]
        wanted = [tuple(inspect.signature(rule).parameters)[1:] for rule in rules]
        every = set(itertools.chain(*wanted))
        plan = self._plans[needs_grad] = Plan(
            positions,
            names,
            tuple(zip(rules, wanted, strict=True)),
            self.joint is not None,
            tuple((name, i) for i, name in enumerate(self.names) if name in every),
            tuple((f"{name}_shape", i) for i, name in enumerate(self.names) if f"{name}_shape" in every),
            tuple(name for name in self.keywords if name in every),
            "out" in every,
            self.variadic is not None or not every <= {"xp", "needs"},
            len(positions) == len(needing),
        )
        return plan

    def _check_rule(self, rule: Callable[..., Any]) -> None:
        wanted = list(inspect.signature(rule).parameters)
        if not wanted or wanted[0] != "g":
            raise TypeError(f"{self}.vjp: a rule's first parameter is g, the gradient of the output; got {wanted}")

    def _by_position(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments that were given by keyword but can be arrays, moved to their positions; others stay in options."""
        given = args, options.copy()
        for name in self.names[len(args) :]:
            if name in options and name in self.by_name:
                args += (options.pop(name),)
            elif name in self.defaults and not options.keys() <= self.keywords:  # a later one is given
                args += (self.defaults[name],)
            else:
                break
        if not options.keys() <= self.keywords:  # one is unknown, given twice, or comes after one that is missing
            raise self._explain(TypeError("wrong arguments"), *given)
        return args

    def _expect_array(self, i: int, x: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """TypeError where text, None, a list or another object stands for an array."""
        name = self._name(i)
        kinds = self.kinds.get(name, frozenset())  # of one argument too many the function complains
        kind = "None" if x is None else type(x).__name__
        if "Array" in kinds and kind not in kinds and x is not self.defaults.get(name, self):
            raise self._explain(self._no_array(i, x), args, options)

    def _no_array(self, i: int, x: Any) -> Exception:
        return TypeError(f"expected a Tensor or an array for {self._name(i)}, got {type(x).__name__}")

    def _name(self, i: int) -> str:
        """The name of the positional argument number i."""
        return self.names[i] if i < len(self.names) else self.variadic or ""

    def _given(self, args: Iterable[Any]) -> str:
        return ", ".join(f"{self._name(i)}: {_describe(x)}" for i, x in enumerate(args))

    def _explain(self, error: Exception, args: Any, options: Any) -> Exception:
        """The library's complaint about a call, as one that names the operation and what it was given."""
        try:
            inspect.Signature.bind(self.__signature__, *args, **options)
        except TypeError as wrong_call:
            return TypeError(f"{self}: {wrong_call}")
        wanted = getattr(error, "name", None) or ""  # of an AttributeError: what only an array has
        known = any(hasattr(x, wanted) for x in (Tensor, *[getattr(x, "_data", x) for x in args]))
        if isinstance(error, AttributeError) and known and namespace_of(error.obj) is None:
            for i, x in enumerate(args):
                scalar = NAMESPACES.get(type(x)) is SCALAR and type(x.item()) is type(error.obj)
                if x is error.obj or scalar:  # it was taken for an array
                    error = self._no_array(i, x)
                    break
        kinds = (IndexError, TypeError, ValueError, OverflowError, MemoryError, RuntimeError)
        kind: type[Exception] | None = next((kind for kind in kinds if isinstance(error, kind)), None)
        if kind is None or isinstance(error, NotImplementedError | RecursionError | backend.BackendError):
            return error  # a bug in the function, or a wrong setting, not a wrong call
        message = backend._reason(error)
        if message.startswith(f"{self}: ") and "(given " in message:
            return error
        message = message.removeprefix(f"{self}: ")  # NumPy's matmul says its name as well
        # NumPy's class for shapes that do not fit; PyTorch's is RuntimeError, JAX's can be TypeError.
        words = ("shape", "size") if kind is RuntimeError else ("broadcast",)
        if any(word in message for word in words):
            try:
                mg.broadcast_shapes(*[tuple(x.shape) for x in args if hasattr(x, "shape")])
            except ValueError:
                kind = ValueError
        extra = "".join(f", {name}={value!r}" for name, value in options.items())
        return kind(f"{self}: {message} (given {self._given(args)}{extra})")


@overload
def primitive(function: Callable[Concatenate[Any, P], Any], *, view: bool = ...) -> Primitive[P]: ...
@overload
def primitive(*, view: bool = ...) -> Callable[[Callable[Concatenate[Any, P], Any]], Primitive[P]]: ...
def primitive(function: Any = None, *, view: bool = False) -> Any:
    """Make a differentiable function of ``function(xp, *arrays, **options)``, to be completed by `Primitive.vjp`.

    Arrays are positional parameters, options keyword-only; ``xp`` is the namespace of the arrays. A parameter that is
    annotated as ``Array`` takes arrays and numbers: text, None, lists and other objects are refused at the call, unless
    its annotation or its default says so (``Array | None``). ``view=True`` says that the output can share the memory of
    the first argument.

    >>> @primitive
    ... def cube(xp, x, /):
    ...     return x * x * x
    >>> cube.vjp(x=lambda g, x: 3 * g * x * x)
    >>> x = Tensor(2.0, requires_grad=True)
    >>> cube(x).backward()
    >>> x.grad
    Tensor(12., dtype=float64, backend=numpy, device=cpu)
    """
    if function is None:
        return lambda function: Primitive(function, view)
    return Primitive(function, view)


@lru_cache(maxsize=None, typed=True)
def _has_derivative(dtype: Any) -> bool:
    name = backend.dtype_name(dtype)
    return "float" in name or "complex" in name


def make_items(node: Node, tensors: Sequence[Tensor]) -> None:
    """Let each of the ``tensors`` be one output of ``node``."""
    node.shape = None
    node.dtype = tuple((tensor._data.shape, tensor._data.dtype) for tensor in tensors)
    for i, tensor in enumerate(tensors):
        if _has_derivative(tensor.dtype):
            tensor._node = _item(node, i)


def _item(node: Node, index: int) -> Node:
    """The node of output ``index`` of a node with several."""
    item = Node(node.op, Plan((0,), ("",), (((lambda g: {index: g}), ()),)), node.xp, (node,))
    item.saved = item.memories = NOTHING
    item.shape, item.dtype = node.dtype[index]
    return item


def now() -> int:
    """A number between those of the nodes made before and the nodes made after."""
    return next(_order)


def _describe(x: Any) -> str:
    if type(x) is Tensor:
        return describe(x._data)
    return describe(x) if namespace_of(x) is not None else repr(x)[:60]


# ------------------------------------------------------------------------------------------------ the backward pass


_accumulating = threading.Lock()


def backward(tensor: Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
    """Add the derivative of ``tensor`` to ``.grad`` of every leaf that it depends on.

    Parameters
    ----------
    gradient
        The derivative of the final scalar with respect to ``tensor``, of the same shape. Optional for a real scalar,
        where it is 1.
    retain_graph
        Keep what the rules saved, for another backward pass. Otherwise it is freed as the pass goes.
    create_graph
        Record the backward pass itself, so that ``.grad`` can be differentiated again. Implies ``retain_graph``.

    Raises
    ------
    RuntimeError
        ``tensor`` does not require a gradient; or its graph was freed by an earlier pass.
    ValueError
        No ``gradient`` for a Tensor that is no scalar; a gradient of another shape.

    Examples
    --------
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> backward(x * x, gradient=Tensor([1.0, 10.0]))
    >>> x.grad
    Tensor([ 2., 40.], dtype=float64, backend=numpy, device=cpu)
    """
    seed = _seed(tensor, gradient)
    with _recording_set_to(create_graph):
        gradients = propagate([tensor], [seed], create_graph, retain_graph or create_graph)
        with _accumulating:  # several threads can share a leaf
            for leaf, g in gradients.items():
                if isinstance(leaf, Leaf):
                    if create_graph or leaf is tensor._node:
                        g = mg.positive(g)  # nobody else shall hold what stays in ``.grad``, see `_unshared`
                    leaf.grad = g if leaf.grad is None else leaf.grad + g


def gradients_of(outputs: Sequence[Tensor], seeds: Sequence[Any], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """The derivatives of ``outputs`` by ``inputs``, which may be anywhere in the graph. No ``.grad`` changes.

    The pass is recorded only if its result can be differentiated by something: if it depends on anything but
    ``inputs`` that requires a gradient. The graph is kept.
    """
    targets = {x._node for x in inputs}
    reached, outside = _paths(outputs, targets)
    outside = outside or any(seed.requires_grad for seed in seeds)
    with _recording_set_to(outside):
        found = propagate(outputs, seeds, outside, retain_graph=True, targets=targets, only=reached)
    return [found.get(x._node) for x in inputs]


def _seed(tensor: Tensor, gradient: Any) -> Any:
    if tensor._node is None:
        raise RuntimeError(f"backward: {_why_no_grad(tensor)}")
    if gradient is None:
        if tensor.size != 1 or mg.isdtype(tensor.dtype, "complex floating"):
            raise ValueError(
                f"backward: {describe(tensor._data)} is no real scalar; give the gradient to start from, "
                f"as backward(gradient), or reduce it first, as tensor.sum().backward()"
            )
        return mg.ones_like(tensor)
    seed = gradient if type(gradient) is Tensor else mg.asarray(gradient, dtype=tensor.dtype)
    if tuple(seed.shape) != tensor.shape:
        raise ValueError(f"backward: expected a gradient of shape {tensor.shape}, got {describe(seed._data)}")
    if namespace_of(seed._data) is not namespace_of(tensor._data):
        raise TypeError(f"backward: expected a gradient like {describe(tensor._data)}, got {describe(seed._data)}")
    return seed


def _why_no_grad(tensor: Tensor) -> str:
    what = f"this Tensor ({describe(tensor._data)}) does not require a gradient"
    if tensor._op is None:
        return f"{what}; make it with requires_grad=True"
    if not tensor._op.rules and tensor._op.joint is None:
        return f"{what}: `{tensor._op}` has no derivative"
    return f"{what}: `{tensor._op}` was given no Tensor that requires one, or ran under no_grad()"


def propagate(
    outputs: Sequence[Tensor],
    seeds: Sequence[Tensor],
    create_graph: bool,
    retain_graph: bool,
    targets: set[Any] | None = None,
    only: set[Any] | None = None,
) -> dict[Any, Tensor]:
    """One backward pass: from ``seeds`` at ``outputs`` to the leaves, or to the nodes ``targets``.

    Nodes are visited in the reverse of the order in which they were made, which is a topological order, so a loop
    with a priority queue is enough. With ``create_graph`` gradients are Tensors and rules run with ``xp = minigrad``;
    without, both are raw. ``only`` limits the pass to the given nodes.
    """
    targets = targets or set()
    pending: dict[Any, Any] = {}
    owned: set[Any] = set()  # nodes whose pending gradient is a sum made here, which nobody else can hold
    queue: list[tuple[int, Node]] = []

    def add(node: Any, g: Any) -> None:
        if node not in pending:
            pending[node] = g
            if node.op is not None and node not in targets:
                heapq.heappush(queue, (-node.order, node))
        elif type(g) is dict:
            for i, item in g.items():
                pending[node][i] = pending[node][i] + item if i in pending[node] else item
        elif node in owned and not create_graph:
            pending[node] += g
        else:
            total = pending[node] + g
            pending[node] = total if NAMESPACES.get(type(total)) is xp else _as_array(xp, total, node.op)
            owned.add(node)

    for output, seed in zip(outputs, seeds, strict=True):
        if output._node is not None and (only is None or output._node in only):
            g = _fit(mg, _conjugate(seed), output._node, output._op)
            add(output._node, g if create_graph else g._data)

    while queue:
        node = heapq.heappop(queue)[1]
        g = pending.pop(node)
        if node.parents is None:
            raise RuntimeError(
                f"backward: the graph was freed by an earlier backward pass (at `{node.op}`); "
                "pass retain_graph=True to that one to keep it"
            )
        parents = node.parents
        if create_graph:
            xp, saved = mg, _saved_as_tensors(node)
        else:
            xp, saved = node.xp, node.saved or {}
        saved["xp"] = xp
        if node.shape is None:
            g = _complete(xp, g, node)
        if not retain_graph:
            node.parents = node.saved = node.memories = None
        plan = node.plan
        if plan.joint:
            saved["needs"] = plan.names
            results = _apply(plan.rules[0], g, saved, node)
        for i, parent in enumerate(parents):
            if only is not None and parent not in only:
                continue
            result = results[plan.positions[i]] if plan.joint else _apply(plan.rules[i], g, saved, node)
            if parent.shape is not None:
                found = NAMESPACES.get(type(result))
                if found is SCALAR:
                    result = xp.asarray(result)
                elif found is not xp:
                    if result is None and plan.joint:
                        continue
                    result = _as_array(xp, result, node.op)
                if result.dtype is not parent.dtype or result.shape != parent.shape:
                    result = _fit(xp, result, parent, node.op)
                if not create_graph and (parent.op is None or parent in targets):
                    result = _unshared(xp, result, g)
            add(parent, result)
        results = None  # or the last one would stay alive while the pass goes on

    return {node: _conjugate(g if create_graph else Tensor._make(g)) for node, g in pending.items()}


def _apply(rule: tuple[Callable[..., Any], tuple[str, ...]], g: Any, saved: dict[str, Any], node: Node) -> Any:
    function, names = rule
    if not names:
        return function(g)
    try:
        values = [saved[name] for name in names]
    except KeyError as error:
        raise TypeError(f"{node.op}: its rule names {error}, which is no argument and was not given to keep") from None
    return function(g, *values)


def _saved_as_tensors(node: Node) -> dict[str, Any]:
    """What a node saved, as Tensors that stand where the saved arrays stood in the graph."""
    op, plan = node.op, node.plan
    origin = dict(zip(plan.names, node.parents, strict=False))  # a checkpoint's parents have no names
    saved = dict(node.saved)
    for name in op.names:
        if name in saved and namespace_of(saved[name]) is not None:
            saved[name] = Tensor._make(saved[name], origin.get(name), node.memories.get(name))
    if plan.out:
        if node.shape is None:
            outs = enumerate(saved["out"])
            saved["out"] = tuple(Tensor._make(out, _item(node, i), node.memories[f"out {i}"]) for i, out in outs)
        else:
            saved["out"] = Tensor._make(saved["out"], node, node.memories["out 0"])
    if "options" in saved:  # what `keep` kept is computed again, so that it is recorded
        saved.update(op.forward(mg, *[saved[name] for name in op.names], **saved["options"]).values)
    return saved


def _complete(xp: Any, g: dict[int, Any], node: Node) -> tuple[Any, ...]:
    """The gradients of all outputs of a node, zeros for the outputs that nobody used."""
    some = next(iter(g.values()))
    return tuple(
        g[i] if i in g else xp.zeros(shape, dtype=dtype, device=backend.device_of(some))
        for i, (shape, dtype) in enumerate(node.dtype)
    )


def _fit(xp: Any, g: Any, node: Node | Leaf, op: Any) -> Any:
    """Undo broadcasting and type promotion: ``g`` in the shape and dtype of the value that ``node`` stands for."""
    shape = tuple(node.shape or ())
    if g.shape != shape:
        padded = (1,) * (len(g.shape) - len(shape)) + shape  # as broadcasting sees the argument
        axes = tuple(i for i, n in enumerate(padded[-len(g.shape) :]) if n == 1) if g.shape else ()
        kept = [n for i, n in enumerate(g.shape) if i not in axes]
        if kept != [n for n in shape if n != 1]:
            raise ValueError(
                f"{op}: its rule gave a gradient of shape {tuple(g.shape)} for an argument of shape {shape}"
            )
        g = xp.reshape(xp.asarray(mg.statistical.sum.raw(xp)(g, axis=axes)), shape)  # NumPy gives a scalar for ()
    if g.dtype != node.dtype:
        if xp.isdtype(g.dtype, "complex floating") and not xp.isdtype(node.dtype, "complex floating"):
            g = xp.real(g)
        g = xp.astype(g, node.dtype)
    return g


def _as_array(xp: Any, x: Any, op: Any) -> Any:
    """What a forward function or a rule gave, as an array: NumPy gives scalars for 0-dimensional results."""
    if NAMESPACES.get(type(x)) is SCALAR or isinstance(x, bool | int | float | complex):
        return xp.asarray(x)
    if namespace_of(x) is xp:
        return x
    raise TypeError(f"{op}: expected its function or rule to return an array, got {x!r:.80}")


def _unshared(xp: Any, result: Any, g: Any) -> Any:
    """A gradient that will stay in ``.grad``, as an array of its own: others may hold ``g`` or the base of a view."""
    alone = result is not g and (owns_memory(result) or backend.held_once(result))
    return result if alone else xp.asarray(result, copy=True)


def _conjugate(g: Tensor) -> Tensor:
    return mg.conj(g) if mg.isdtype(g.dtype, "complex floating") else g


def _paths(outputs: Iterable[Tensor], targets: set[Any]) -> tuple[set[Any], bool]:
    """The nodes between ``outputs`` and ``targets``, and whether anything else that requires a gradient is there."""
    seen: set[Any] = set()
    stack = [output._node for output in outputs if output._node is not None]
    outside = any(target is not None and target.op is not None for target in targets)
    oldest = min((target.order for target in targets if target is not None), default=0)
    while stack:
        node = stack.pop()
        if node in seen or node in targets:
            continue
        if node.op is None or node.order < oldest:  # made before every target, a node cannot depend on one
            outside = True
        elif node.parents is None:
            raise RuntimeError(f"the graph was freed by an earlier backward pass (at `{node.op}`)")
        else:
            seen.add(node)
            stack.extend(node.parents)
    reached = set(targets)
    for node in sorted(seen, key=lambda node: node.order):
        if any(parent in reached for parent in node.parents):
            reached.add(node)
    return reached, outside


_new: Any = object.__new__
