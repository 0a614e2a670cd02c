"""optim: how parameters follow their gradients. SGD, Adam and AdamW, gradient clipping, a learning-rate schedule.

PyTorch's names and formulas (https://docs.pytorch.org/docs/stable/optim.html); for float16 and bfloat16 parameters
computed, and remembered, in float32. An update makes a new array and hands it to ``parameter.data``: a graph, a view or
anything else that holds the old array is not disturbed. Only the moments, which nobody else can hold, are changed in
place. Nothing here looks at values, so a step never waits for a GPU.

>>> import minigrad as mg
>>> w = mg.Tensor([1.0, -2.0], requires_grad=True)
>>> optimizer = AdamW([w], lr=0.1, weight_decay=0.0)
>>> for _ in range(100):
...     optimizer.zero_grad()
...     mg.sum(w * w).backward()
...     norm = clip_grad_norm_([w], max_norm=1.0)
...     optimizer.step()
>>> bool(mg.all(mg.abs(w) < 0.1))
True
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

import minigrad as mg

from . import backend
from .backend import Array, describe, namespace_of
from .statistical import _in_float32
from .tensor import Tensor

Group = dict[str, Any]  #: parameters that share hyperparameters: ``{"params": [Tensor, …], "lr": …, …}``


class Optimizer:
    """What the optimizers have in common: parameter groups, one state per parameter, saving and loading.

    ``param_groups`` is a list of dicts that hold ``params`` and the hyperparameters, which may be changed between
    steps; ``state`` maps each parameter that has been updated to a dict of its own.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> optimizer = SGD([w], lr=0.1)
    >>> optimizer.param_groups[0]["lr"] = 0.5
    >>> w.grad = Tensor([1.0])
    >>> optimizer.step()
    >>> w.tolist()
    [0.5]
    """

    _remembers: tuple[str, ...] = ()  # the names in that dict

    def __init__(self, params: Iterable[Tensor] | Iterable[Group], **defaults: Any) -> None:
        if type(params) is Tensor:
            raise TypeError(f"{self._name}: expected an iterable of parameters, got one Tensor; write [parameter]")
        given: list[Any] = list(params)
        if not given:
            raise ValueError(f"{self._name}: expected at least one parameter, got none")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        seen: set[int] = set()
        for group in groups:
            self._add_group(group, defaults, seen)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _add_group(self, group: Any, defaults: dict[str, Any], seen: set[int]) -> None:
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f"{self._name}: expected a group as a dict with 'params', got {group!r:.80}")
        unknown = group.keys() - defaults.keys() - {"params"}
        if unknown:
            raise TypeError(f"{self._name}: unknown option {min(unknown)!r} in a group; known: {', '.join(defaults)}")
        params = [group["params"]] if type(group["params"]) is Tensor else list(group["params"])
        for p in params:
            if type(p) is not Tensor:
                raise TypeError(f"{self._name}: expected a parameter to be a Tensor, got {type(p).__name__}")
            if not (p.is_leaf and p.requires_grad):
                what = "does not require a gradient" if p.is_leaf else f"is the result of `{p._op}`, not a leaf"
                raise ValueError(f"{self._name}: a parameter ({describe(p._data)}) {what}")
            if id(p) in seen:
                raise ValueError(f"{self._name}: a parameter ({describe(p._data)}) was given twice")
            seen.add(id(p))
        full = {**defaults, **group, "params": params}
        self._options(full)
        self.param_groups.append(full)

    def _options(self, group: Group) -> dict[str, Any]:
        """The hyperparameters of a group as Python floats, which change no dtype; an error for what is none."""
        options = {name: value for name, value in group.items() if name in ("lr", "weight_decay", "momentum", "eps")}
        for name, value in options.items():
            options[name] = _number(self._name, name, value)
            if options[name] == math.inf:
                raise ValueError(f"{self._name}: expected a finite {name}, got {value!r}")
        return options

    def _update(self, p: Array, g: Array, state: dict[str, Any], options: dict[str, Any]) -> Array:
        """The new value of a parameter ``p`` with gradient ``g``: an array that nobody else holds."""
        raise NotImplementedError

    def step(self) -> None:
        """Update every parameter that has a gradient; one whose ``.grad`` is None stays as it is."""
        options = [self._options(group) for group in self.param_groups]  # before anything is changed
        todo = [
            (p, self.state.setdefault(p, {}), chosen)
            for group, chosen in zip(self.param_groups, options, strict=True)
            for p in group["params"]
            if p.grad is not None
        ]
        if not todo:
            return
        todo.sort(key=lambda job: -job[0].size)  # so that threads have about the same to do
        # After a short operation a thread often waits for Python's lock: with parameters of up to 2¹⁶ numbers, two
        # threads took 1.3 times as long as one.
        lanes = backend.threads(namespace_of(todo[0][0]._data)) if todo[0][0].size >= 1 << 17 else 1

        def work(lane: int) -> None:
            for p, state, chosen in todo[lane::lanes]:
                xp: Any = namespace_of(p._data)
                new = self._update(_in_float32(xp, p._data), _in_float32(xp, p.grad._data), state, chosen)
                p.data = xp.asarray(new, dtype=p.dtype)  # NumPy gives a scalar for ()

        backend.in_parallel(work, lanes)

    def zero_grad(self) -> None:
        """Forget the gradients: ``.grad`` of every parameter becomes None."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit: a copy, with parameters as numbers in the order given.

        ``{"state": {0: {"step": 7, "exp_avg": Tensor, …}, …}, "param_groups": [{"params": [0, …], "lr": …}, …]}``

        >>> w = Tensor([1.0], requires_grad=True)
        >>> SGD([w], lr=0.1).state_dict()["param_groups"]
        [{'lr': 0.1, 'momentum': 0.0, 'weight_decay': 0.0, 'params': [0]}]
        """
        number = {p: i for i, p in enumerate(self._parameters())}
        return {
            "state": {
                number[p]: {name: value if isinstance(value, int) else Tensor(value) for name, value in state.items()}
                for p, state in self.state.items()
            },
            "param_groups": [
                {**group, **self._options(group), "params": [number[p] for p in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where ``state_dict()`` was called, on an optimizer of the same parameters in the same groups.

        The moments may be Tensors or arrays of any library, NumPy's from a file too; they are copied to the
        parameter's. Raises ValueError or TypeError, and changes nothing, where something is missing, is no such
        value or doesn't belong to these parameters.

        >>> w = Tensor([1.0], requires_grad=True)
        >>> optimizer = SGD([w], lr=0.5)
        >>> optimizer.load_state_dict(SGD([w], lr=0.1).state_dict())
        >>> optimizer.param_groups[0]["lr"]
        0.1
        """
        try:
            states = {int(i): dict(values) for i, values in state_dict["state"].items()}  # JSON made strings of numbers
            groups = state_dict["param_groups"]
            sizes, expected = [[len(g["params"]) for g in given] for given in (groups, self.param_groups)]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(
                f"{self._name}: expected a dict with 'state' and 'param_groups', as state_dict() gives"
            ) from None
        if sizes != expected:
            raise ValueError(
                f"{self._name}: expected the state of groups of {expected} parameters, got groups of {sizes}"
            )
        params = self._parameters()
        for new, group in zip(groups, self.param_groups, strict=True):
            if new.keys() != group.keys():
                raise ValueError(f"{self._name}: expected groups with {', '.join(group)}, got {', '.join(new)}")
            self._options(new)
        loaded = {}
        for i, values in states.items():
            if not 0 <= i < len(params):
                raise ValueError(f"{self._name}: got the state of parameter {i}, but there are {len(params)}")
            if values and values.keys() != set(self._remembers):
                names = ", ".join(self._remembers)
                raise ValueError(f"{self._name}: expected {names} of parameter {i}, got {', '.join(values)}")
            loaded[params[i]] = {
                name: self._loaded(f"{self._name}: {name} of parameter {i}", name, value, params[i])
                for name, value in values.items()
            }
        self.state = loaded
        for new, group in zip(groups, self.param_groups, strict=True):
            group.update({name: value for name, value in new.items() if name != "params"})

    def _loaded(self, what: str, name: str, value: Any, p: Tensor) -> Any:
        """The number of steps, or a moment: a copy of ``value`` where ``p`` lives, of whose shape it has to be."""
        if name == "step":
            try:
                step = operator.index(value)
            except TypeError:
                step = -1
            if step < 0:
                raise ValueError(f"{what}: expected a whole number >= 0, got {value!r:.80}")
            return step
        raw = value._data if type(value) is Tensor else value
        xp: Any = namespace_of(p._data)
        like = _in_float32(xp, p._data)
        if not hasattr(raw, "dtype"):
            raise ValueError(f"{what}: expected {describe(like)}, got {raw!r:.80}")
        if namespace_of(raw) is not xp:
            raw = backend.to_numpy(raw)
        if tuple(raw.shape) != p.shape or backend.dtype_name(raw.dtype) != backend.dtype_name(like.dtype):
            raise ValueError(f"{what}: expected {describe(like)}, got {describe(raw)}")
        return xp.asarray(raw, device=p.device, copy=True)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


class SGD(Optimizer):
    """Stochastic gradient descent, with (heavy-ball) momentum.

        g ← g + λ p            weight_decay λ
        b ← μ b + g            momentum μ; b = g at the first step
        p ← p − lr b

    The momentum is that of I. Sutskever et al., "On the importance of initialization and momentum in deep learning",
    2013, with the learning rate outside of the buffer, as in PyTorch.

    Parameters
    ----------
    params
        Leaf Tensors of any shape that require a gradient, or groups of them: dicts with ``params`` and any of the
        other options, which then hold for this group.

    Raises
    ------
    ValueError
        No parameter, one given twice or without ``requires_grad``; an option that is negative or not finite.
    TypeError
        An option that is no number.

    Examples
    --------
    >>> w = Tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    Tensor([0., 0.], dtype=float64, backend=numpy, device=cpu)
    """

    _remembers = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def _update(self, p: Array, g: Array, state: dict[str, Any], options: dict[str, Any]) -> Array:
        if options["weight_decay"]:
            g = g + options["weight_decay"] * p
        if options["momentum"]:
            if "momentum_buffer" in state:
                b = state["momentum_buffer"]
                b *= options["momentum"]
                b += g
            else:
                b = namespace_of(p).asarray(g, copy=True)
            g = state["momentum_buffer"] = b
        new = -options["lr"] * g
        new += p
        return new


class Adam(Optimizer):
    """Adam: a step for each element in units of its gradient's recent size.

        g ← g + λ p                            weight_decay λ (`AdamW` decays the parameter instead)
        m ← β₁ m + (1 − β₁) g
        v ← β₂ v + (1 − β₂) g²
        p ← p − lr (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)          t = 1, 2, … steps of this parameter

    D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1 (arXiv:1412.6980).

    Parameters
    ----------
    params
        Leaf Tensors of any shape and real dtype that require a gradient, or groups of them: dicts with ``params`` and
        any of the other options, which then hold for this group.
    betas
        β₁ and β₂, each in [0, 1).

    Raises
    ------
    ValueError
        No parameter, one given twice or without ``requires_grad``; an option that is negative or not finite, a β
        outside of [0, 1).
    TypeError
        A complex parameter; an option that is no number.

    Examples
    --------
    >>> w = Tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.detach()
    Tensor([ 0.5, -1.5], dtype=float64, backend=numpy, device=cpu)
    """

    _remembers = ("step", "exp_avg", "exp_avg_sq")
    _decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

        for p in self._parameters():
            if mg.isdtype(p.dtype, "complex floating"):
                raise TypeError(f"{self._name}: expected real parameters, got {describe(p._data)}")

    def _options(self, group: Group) -> dict[str, Any]:
        betas = group["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(map(_is_beta, betas)):
            raise ValueError(f"{self._name}: expected two betas in [0, 1), got {betas!r:.80}")
        return {**super()._options(group), "betas": tuple(map(float, betas))}

    def _update(self, p: Array, g: Array, state: dict[str, Any], options: dict[str, Any]) -> Array:
        xp: Any = namespace_of(p)
        lr, (beta1, beta2), decay = options["lr"], options["betas"], options["weight_decay"]
        if decay and not self._decoupled:
            g = g + decay * p
        if not state:
            state.update(step=0, exp_avg=xp.zeros_like(p), exp_avg_sq=xp.zeros_like(p))
        t = state["step"] = state["step"] + 1
        m, v = state["exp_avg"], state["exp_avg_sq"]
        step, root = lr / (1 - beta1**t), math.sqrt(1 - beta2**t)
        shrink = 1 - lr * decay if decay and self._decoupled else 1.0
        if backend.compiles(xp, p, g, m, v):
            new = xp.empty_like(p)
            arrays = [xp.reshape(x, (-1,)) for x in (p, g, m, v, new)]
            loops = importlib.import_module("minigrad._loops")
            loops.adam(*arrays, step, beta1, beta2, root, options["eps"], shrink)
            return new
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        squared = g * g
        squared *= 1 - beta2
        v += squared
        state["exp_avg"], state["exp_avg_sq"] = m, v  # new arrays where a library has no in-place arithmetic

        size = xp.sqrt(v)
        size /= root
        size += options["eps"]
        new = m / size
        new *= -step
        new += shrink * p if shrink != 1 else p
        return new


class AdamW(Adam):
    """Adam with decoupled weight decay: the parameter shrinks by itself, by the same factor for every element.

        m, v           as in `Adam`, of the gradient alone
        p ← (1 − lr λ) p − lr (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)

    I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2 (arXiv:1711.05101), with λ
    scaled by the learning rate, as in PyTorch. Usually matrices decay, and biases and norms do not: two groups.

    >>> weight = Tensor([[1.0, 2.0]], requires_grad=True)
    >>> bias = Tensor([0.0], requires_grad=True)
    >>> groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]
    >>> AdamW(groups, lr=1e-3).param_groups[0]["weight_decay"]
    0.1
    """

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


def _number(owner: str, name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{owner}: expected {name} as a number, got {type(value).__name__}")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{owner}: expected {name} >= 0, got {value!r}")
    return number


def _is_beta(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < 1


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """Scale all gradients by one factor, so that their common norm is at most ``max_norm``; return the norm before.

        norm = √Σ |g|²      over the elements of all gradients
        g ← g · min(1, max_norm / (norm + 10⁻⁶))

    R. Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, algorithm 1 (arXiv:1211.5063).
    The norm is a Tensor of shape (), in float32 for half precision; reading it (``float(norm)``) waits for a GPU,
    clipping does not. Parameters without a gradient are passed over.

    >>> w = Tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> clip_grad_norm_([w], max_norm=1.0)
    Tensor(10., dtype=float64, backend=numpy, device=cpu)
    >>> w.grad
    Tensor([0.59999994, 0.79999992], dtype=float64, backend=numpy, device=cpu)
    """
    max_norm = _number("clip_grad_norm_", "max_norm", max_norm)
    params = [p for p in ([parameters] if type(parameters) is Tensor else parameters) if p.grad is not None]
    if not params:
        return mg.zeros(())
    xp: Any = namespace_of(params[0]._data)
    for p in params:
        if namespace_of(p._data) is not xp:
            given = f"{describe(params[0]._data)}, {describe(p._data)}"
            raise TypeError(f"clip_grad_norm_: parameters of two libraries have no common norm: {given}")
    norm = xp.sqrt(sum(_sum_of_squares(xp, p.grad._data) for p in params))  # type: ignore[union-attr]
    factor = xp.clip(max_norm / (norm + 1e-6), 0.0, 1.0)
    for p in params:
        g = p.grad._data  # type: ignore[union-attr]
        p.grad = Tensor._make(xp.asarray(g * factor, dtype=g.dtype))
    return Tensor._make(xp.asarray(norm))


def _sum_of_squares(xp: Any, g: Array) -> Array:
    if mg.isdtype(g.dtype, "complex floating"):
        return xp.sum(xp.real(g * xp.conj(g)))
    g = _in_float32(xp, g)
    return xp.sum(g * g)


def warmup_cosine(step: int, *, lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0) -> float:
    """The learning rate of ``step`` = 0, 1, …: up to ``lr`` in a line, then down to ``min_lr`` along half a cosine.

        lr (step + 1) / (warmup_steps + 1)                                    step < warmup_steps
        min_lr + ½ (lr − min_lr) (1 + cos π t)                                t = (step − warmup) / (total − warmup)
        min_lr                                                                step ≥ total_steps

    I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, equation 5
    (arXiv:1608.03983). There is no state to save but ``step``:

    >>> for step in range(3):
    ...     lr = warmup_cosine(step, lr=1e-3, warmup_steps=1, total_steps=3)
    ...     for group in AdamW([Tensor(1.0, requires_grad=True)]).param_groups:
    ...         group["lr"] = lr
    >>> [warmup_cosine(step, lr=1.0, warmup_steps=1, total_steps=3) for step in range(4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(
            f"warmup_cosine: expected 0 <= warmup_steps <= total_steps, got {warmup_steps} and {total_steps}"
        )
    if not step >= 0:
        raise ValueError(f"warmup_cosine: expected step >= 0, got {step}")
    if step < warmup_steps:
        return lr * (step + 1) / (warmup_steps + 1)
    if step >= total_steps:
        return min_lr
    t = (step - warmup_steps) / (total_steps - warmup_steps)
    return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * t))
