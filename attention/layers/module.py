"""Module: plain data that owns parameters, and the few things that every model needs to do with them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import device_of, dtype_name, namespace_of, to_numpy
from minigrad.random import Generator


class Module:
    """Base of all layers and models: an object whose attributes are its parameters, its settings and other Modules.

    A parameter is a Tensor held as an attribute of a Module, or in a list or dict there. Its name is the path to it, as
    in PyTorch: ``"blocks.0.attention.query.weight"``. One that is reached by two paths (tied weights) is one parameter,
    under the name of the first. An attribute whose name begins with an underscore is left out: a Tensor there is no
    parameter (a table of positions), a Module there is neither trained nor switched. To freeze a parameter, set its
    ``requires_grad`` to False: it is no longer trained, but still saved.
    There is nothing to call in ``__init__``. The methods are those of https://docs.pytorch.org/docs/stable/nn.html

    Examples
    --------
    >>> class Affine(Module):
    ...     def __init__(self, d_model: int) -> None:
    ...         self.scale = mg.Tensor([1.0] * d_model, requires_grad=True, dtype="float32")
    ...         self.shift = mg.Tensor([0.0] * d_model, requires_grad=True, dtype="float32")
    ...     def __call__(self, x: Tensor) -> Tensor:
    ...         return self.scale * x + self.shift
    >>> model = Affine(3)
    >>> [name for name, _ in model.named_parameters()], model.parameter_count()
    (['scale', 'shift'], 6)
    >>> model
    Affine(scale=float32 (3,), shift=float32 (3,))
    """

    training: bool = True
    """Whether dropout drops; see `train` and `eval`."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter that is trained, once, with its dotted name, in the order in which ``__init__`` set them."""
        return ((name, value) for name, value in self._state() if value.requires_grad)

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter, also those that are frozen. ValueError where two have one name, through a dot in a key."""
        names = set()
        for name, value in _walk(self, "", set()):
            if type(value) is Tensor:
                if name in names:
                    raise ValueError(f"{type(self).__name__}: two parameters have the name {name!r}")
                names.add(name)
                yield name, value

    def parameters(self) -> list[Tensor]:
        """The parameters, for an optimizer."""
        return [parameter for _, parameter in self.named_parameters()]

    def parameter_count(self) -> int:
        """The number of trainable numbers. For a model that is too large to build, see `ShapesOnly`."""
        return sum(parameter.size for parameter in self.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of each parameter by name, outside of any graph; ``.numpy()`` gives what a file format wants.

        >>> from attention.layers import Linear
        >>> {name: value.shape for name, value in Linear(3, 2).state_dict().items()}
        {'weight': (3, 2), 'bias': (2,)}
        """
        return {name: Tensor(parameter) for name, parameter in self._state()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        """Copy the values of ``state`` into the parameters: Tensors or arrays of any library, NumPy's included.

        They are placed on the library and device of each parameter and cast to its dtype. With ``strict=False``, names
        that only one side has are passed over. With ``assign=True`` an array that is already as it should be is not
        copied, but becomes the parameter's own. Raises KeyError for names that only one side has, ValueError for what
        is no array, is complex or has a shape that does not fit, each in one line, and before anything is changed.

        >>> from attention.layers import Linear
        >>> layer = Linear(3, 2)
        >>> layer.load_state_dict({"weight": mg.ones((2, 3)), "bias": mg.ones(2)})
        Traceback (most recent call last):
        ValueError: load_state_dict: what does not fit: weight (2, 3) instead of (3, 2)
        >>> layer.load_state_dict({"bias": mg.ones(2)}, strict=False)
        >>> layer.bias.tolist()
        [1.0, 1.0]
        """
        own = dict(self._state())
        if strict and own.keys() != state.keys():
            missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise KeyError(f"load_state_dict: missing {missing}, not in this {type(self).__name__} {extra}")
        both = {name: _described(state[name]) for name in own if name in state}
        wrong = [
            f"{name} {given} instead of {own[name].shape}"
            for name, given in both.items()
            if given != f"{own[name].shape}"
        ]
        if wrong:
            raise ValueError(f"load_state_dict: what does not fit: {', '.join(wrong)}")
        values = {}
        for name in both:
            value, old = state[name], own[name].data
            host = to_numpy(value.data if type(value) is Tensor else value)
            values[name] = namespace_of(old).asarray(
                host, dtype=old.dtype, device=device_of(old), copy=None if assign else True
            )
        for name, value in values.items():
            own[name].data = value

    def train(self, mode: bool = True) -> Self:
        """Switch dropout on (off with ``mode=False``), in this Module and all inside it; returns the Module itself."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch dropout off: ``train(False)``."""
        return self.train(False)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout off and nothing recorded, inside a ``with`` block: for using a model that is being trained.

        Afterwards every Module inside is in the mode in which it was.

        >>> from attention.layers import Dropout
        >>> dropout = Dropout(0.5)
        >>> with dropout.evaluating():
        ...     dropout(mg.ones(4)).tolist()
        [1.0, 1.0, 1.0, 1.0]
        >>> dropout.training
        True
        """
        with evaluating([module for _, module in self.named_modules()]):
            yield

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """This Module, under the name "", and each inside it, once, with its dotted name.

        >>> from attention.layers import FeedForward
        >>> [name for name, _ in FeedForward(4).named_modules()]
        ['', 'up', 'down']
        """
        return ((name, value) for name, value in _walk(self, "", set()) if isinstance(value, Module))

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        settings, inside = [], []
        for name, value in _flat(vars(self)):
            if type(value) is Tensor:
                settings.append(f"{name}={dtype_name(value.dtype)} {value.shape}")
            elif isinstance(value, Module):
                inside.append(f"{name}: {value!r}".replace("\n", "\n  "))
            elif isinstance(value, int | float | str) and name != "training":
                settings.append(f"{name}={value!r}")
        head = f"({', '.join(settings)})" if settings or not inside else ""
        return "\n  ".join([type(self).__name__ + head, *inside])


@contextmanager
def evaluating(modules: list[Module]) -> Iterator[None]:
    """`Module.evaluating` for a list: to find all in a large model takes as long as a layer."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        with mg.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _flat(items: Any, path: str = "", around: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What stands in nested dicts and lists, with the path to it; what contains itself is entered once."""
    around = (*around, id(items))
    for key, value in items.items() if isinstance(items, dict) else enumerate(items):
        if not isinstance(value, dict | list | tuple):
            yield f"{path}{key}", value
        elif id(value) not in around:
            yield from _flat(value, f"{path}{key}.", around)


def _described(value: Any) -> str:
    """The shape of an array of real numbers; of anything else, what it is."""
    if not hasattr(value, "dtype"):
        return type(value).__name__
    kind, shape = dtype_name(value.dtype), tuple(value.shape)
    return f"{shape}" if kind.startswith(("bool", "int", "uint", "float", "bfloat")) else f"{kind} {shape}"


def _walk(module: Module, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Every Tensor and Module in ``module``, itself included, once each and with its path."""
    seen.add(id(module))
    yield path, module
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    for name, value in _flat(public, f"{path}." if path else ""):
        if id(value) in seen:
            continue
        if isinstance(value, Module):
            yield from _walk(value, name, seen)
        elif type(value) is Tensor:
            seen.add(id(value))
            yield name, value


class ShapesOnly(Generator):
    """Stands in for a random generator and draws nothing: every number is one zero in memory, seen many times.

    Layers made with it have parameters of the right shape and no memory behind them, to be counted but not used
    (on NumPy, CuPy and PyTorch; JAX has no such views and allocates).

    Examples
    --------
    >>> from attention.layers import MultiHeadAttention
    >>> MultiHeadAttention(4096, 32, bias=False, generator=ShapesOnly()).parameter_count()  # 268 MB, if they were real
    67108864
    """

    def normal(
        self, shape: Any, mean: float = 0.0, std: float = 1.0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Zeros of ``shape`` that take no memory."""
        return self.uniform(shape, dtype=dtype, device=device)

    def uniform(
        self, shape: Any, low: float = 0.0, high: float = 1.0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Zeros of ``shape`` that take no memory."""
        zeros: Tensor = mg.broadcast_to(mg.zeros((), dtype=dtype, device=device), shape)
        return zeros


def parameter(values: Tensor) -> Tensor:
    """``values`` as a parameter: a leaf that requires a gradient. Raises TypeError unless they are real numbers."""
    if not mg.isdtype(values.dtype, "real floating"):
        raise TypeError(f"expected parameters of a real floating-point dtype, got {dtype_name(values.dtype)}")
    values.requires_grad = True
    return values


def expect_positive(layer: str, **sizes: int) -> None:
    """Raise the one-line error of a layer that cannot be made of these sizes."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(f"{layer}: expected {name} to be a positive integer, got {size!r}")


def expect_width(layer: str, x: Any, width: int, what: str = "x", axes: int = 1) -> None:
    """Raise the one-line error of a layer that was given vectors of another width than it was made for, or no vectors.

    With ``axes=2`` they have to be sequences of vectors.
    """
    if len(x.shape) < axes or x.shape[-1] != width:
        shape = ", ".join(("T",) * (axes - 1) + (str(width),))
        raise ValueError(f"{layer}: expected {what} of shape (..., {shape}), got {tuple(x.shape)}")


def without_padding(x: Tensor, mask: Any, layer: str) -> Tensor:
    """x with zeros at padded positions, for x of shape (..., T, d) and ``mask`` of shape (..., T), True = real.

    A product would not do, as 0 · NaN is NaN: neither here nor in a weight's gradient XᵀG, where the padded rows of G
    are zero but those of X are whatever stands there. `where` lets nothing through in either direction.
    """
    if mask is None:
        return x
    mask = mg.asarray(mask)
    if tuple(mask.shape) != tuple(x.shape[:-1]) or not mg.isdtype(mask.dtype, "bool"):
        raise ValueError(
            f"{layer}: expected a boolean padding mask of shape {tuple(x.shape[:-1])} (True = real), "
            f"got {dtype_name(mask.dtype)} {tuple(mask.shape)}"
        )
    real: Tensor = mg.where(mask[..., None], x, 0.0)
    return real
