"""checkpoint: a part of a computation that is done again in the backward pass, instead of keeping what it computed.

It is one node of the graph, from the nodes that were there before to the outputs; the rule of this node runs the
function again, recorded, and takes a backward pass through it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import minigrad as mg

from . import random
from .autodiff import (
    Leaf,
    Node,
    Plan,
    _conjugate,
    _recording_set_to,
    is_recording,
    make_items,
    now,
    primitive,
    propagate,
)
from .backend import namespace_of
from .tensor import Memory, Tensor
from .transforms import _outputs, leaves, rebuild

__all__ = ["checkpoint"]


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, forgetting what it computed inside: the backward pass computes it again.

    It trades time (one more forward pass) for memory. Random numbers are drawn again as they were; ``f`` has to be a
    function of its arguments, the Tensors it closes over and the default random generator. Writing to one of these
    before the backward pass is an error, but giving it another array (``w.data = …``, as an optimizer does) is not
    noticed, and the backward pass would compute with the new one.
    (T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv:1604.06174.)

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(lambda x: mg.exp(mg.sin(x)))(x).sum().backward()
    """

    @wraps(f)
    def function(*args: Any, **options: Any) -> Any:
        if not is_recording():
            return f(*args, **options)
        state, context, start = random.default.state, contextvars.copy_context(), now()
        value = f(*args, **options)
        outputs = _outputs("checkpoint", value)
        parents, memories = _made_before(start, outputs)
        if not parents:
            return value
        # Arguments are kept as they are now: an in-place operation later changes the Tensor, not these.
        given = (args, options)
        kept_args, kept_options = rebuild(given, [_snapshot(x) for x in leaves(given)])
        memories += [x._share_memory() for x in leaves(given) if type(x) is Tensor]

        def again() -> list[Tensor]:
            with _recording_set_to(True):
                return _outputs("checkpoint", f(*kept_args, **kept_options))

        def recompute(g: Any, xp: Any) -> list[Any]:
            create_graph = xp is mg
            current_state = random.default.state
            random.default.state = state
            try:
                results = context.copy().run(again)  # with the backend of then
            finally:
                random.default.state = current_state
            seeds = [_conjugate(seed if create_graph else Tensor._make(seed)) for seed in g]
            with _recording_set_to(create_graph):
                found = propagate(results, seeds, create_graph, create_graph, targets=set(parents))
                gradients = [_conjugate(found[p]) if p in found else None for p in parents]
            return gradients if create_graph else [None if g is None else g._data for g in gradients]

        plan = Plan(tuple(range(len(parents))), (), ((recompute, ("xp",)),), joint=True)
        node = Node(_checkpoint, plan, namespace_of(outputs[0]._data), tuple(parents))
        node.saved, node.memories = {}, {str(i): memory.pin(node) for i, memory in enumerate(memories)}
        tensors = [Tensor._make(y._data, None, y._memory, _checkpoint) for y in outputs]
        make_items(node, tensors)
        return rebuild(value, tensors)

    return function


@primitive
def _checkpoint(xp: Any, *arrays: Any) -> Any:
    """Stands in the graph for all the operations inside a checkpointed function."""
    return arrays


def _snapshot(x: Any) -> Any:
    return Tensor._make(x._data, x._node, x._share_memory(), x._op) if type(x) is Tensor else x


def _made_before(start: int, outputs: Sequence[Tensor]) -> tuple[list[Node | Leaf], list[Memory]]:
    """The nodes on which ``outputs`` depend that were there before number ``start`` was given out, and what the nodes
    made since then have saved."""
    found: dict[Node | Leaf, None] = {}
    memories: list[Memory] = []
    stack: list[Any] = [y._node for y in outputs if y._node is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node.order < start:
            found[node] = None
        elif node.op is not None:
            memories.extend(node.memories.values())
            new = [parent for parent in node.parents if parent not in seen]
            seen.update(new)
            stack.extend(new)
    return list(found), memories
