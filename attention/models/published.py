"""What models that others have published share: their settings and the names of their tensors, and writing text.

`CausalModel` continues a text, `EncoderDecoderModel` reads one sequence and writes another.

The settings and names are those of https://github.com/huggingface/transformers, as the published files have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import dtype_name
from minigrad.random import Generator

from .. import functional as F
from ..layers import Linear, Module
from ..layers.attention import Cache
from ..layers.module import evaluating, expect_positive


class PublishedModel(Module):
    """A Transformer whose weights are published under names of their own, those of the `transformers` library.

    A subclass says which of its parameters is which, and makes itself from a published ``config.json``. Then
    `load_state_dict` takes published tensors as they are: a Linear's weight, there (out, in), is transposed.

    >>> class Head(PublishedModel):
    ...     names = {"output": "lm_head"}
    ...     def __init__(self):
    ...         self.output = Linear(3, 2, bias=False)
    >>> head = Head()
    >>> head.load_state_dict({"lm_head.weight": mg.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])})
    >>> head.output.weight.tolist()
    [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    """

    names: ClassVar[Mapping[str, str]] = {}
    """Our name of a parameter, or of a Module with all that is in it, and the published one; ``*`` is a number."""

    prefix: ClassVar[str] = ""
    """What all published names begin with but those of a model's head; left out where a model without one is saved."""

    unused: Sequence[str] = ()
    """Published names (``*`` is anything) of what is no parameter here: fixed tables, or the second of tied weights."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a ``config.json`` describes, with random parameters. Raises ValueError for another kind.

        >>> from attention.models import GPT
        >>> len(GPT.from_config({"vocab_size": 11, "n_embd": 8, "n_head": 2, "n_layer": 3}).blocks)
        3
        """
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        """Load parameters by our names, or by the published ones; see `Module.load_state_dict`.

        Raises ValueError, in one line and before anything is changed, for published tensors that are missing, too many
        or of another shape.
        """
        ours = {name for name, _ in self._state()} & state.keys()
        if 2 * len(ours) < len(state):  # a published name can be one of ours, too
            state = self.from_published(state, strict)
        super().load_state_dict(state, strict, assign)

    def from_published(self, state: Mapping[str, Any], strict: bool = True) -> dict[str, Any]:
        """Published tensors, or anything of their shapes such as gradients, under our names and in our shapes.

        >>> from attention.models import T5
        >>> model = T5(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, d_head=3)
        >>> published = {"encoder.block.0.layer.1.DenseReluDense.wo.weight": mg.zeros((8, 16))}
        >>> {name: x.shape for name, x in model.from_published(published, strict=False).items()}
        {'encoder.0.feed_forward.down.weight': (16, 8)}
        """
        if self.prefix and not any(name.startswith(self.prefix) for name in state):
            state = {self.prefix + name: value for name, value in state.items()}
        state = self._apart(state)
        turned = {f"{name}.weight" for name, layer in self.named_modules() if self._is_turned(layer)}
        found, missing, misshapen, known = {}, [], [], set()
        for name, parameter in self._state():
            published = self.published_name(name)
            known.add(published)
            shape = parameter.shape[::-1] if name in turned else parameter.shape
            if published not in state:
                missing.append(f"{published} {shape}")
                continue
            value = state[published]
            if tuple(value.shape) != shape:
                misshapen.append(f"{published} {tuple(value.shape)} instead of {shape}")
            found[name] = value.T if name in turned else value
        extra = [name for name in state if name not in known and not any(fnmatchcase(name, p) for p in self.unused)]
        wrong = [("missing", missing), ("extra", extra)] * strict + [("misshapen", misshapen)]
        if any(names for _, names in wrong):
            raise ValueError(
                f"{type(self).__name__}: these tensors do not fit: "
                + "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in wrong if names)
            )
        return found

    def published_name(self, name: str) -> str:
        """The published name of our parameter ``name``.

        >>> from attention.models import GPT
        >>> GPT(11, d_model=8, num_heads=2, num_layers=1).published_name("blocks.0.feed_forward.up.weight")
        'transformer.h.0.mlp.c_fc.weight'
        """
        numbers = iter(re.findall(r"(?<=\.)\d+(?=\.)", name))
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        parts = pattern.split(".")
        for n in range(len(parts), 0, -1):
            published = self.names.get(".".join(parts[:n]))
            if published is not None:
                return re.sub(r"\*", lambda _: next(numbers), ".".join([published, *parts[n:]]))
        raise KeyError(f"{type(self).__name__}.names has no name for {name}")

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """``state`` with tensors that hold several of our parameters taken apart."""
        return state

    def _is_turned(self, layer: Module) -> bool:
        """Whether the weight of ``layer`` is published as the transpose of ours."""
        return isinstance(layer, Linear)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}
"""The activation functions by the names that published settings give them."""


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def expect_setting(model: str, config: Mapping[str, Any], name: str, *supported: Any) -> Any:
    """``config[name]``, or the first of those that are supported; raise ValueError for one that is not.

    >>> expect_setting("BERT", {}, "hidden_act", "gelu", "relu")
    'gelu'
    >>> expect_setting("BERT", {"hidden_act": "tanh"}, "hidden_act", "gelu", "relu")
    Traceback (most recent call last):
    ValueError: BERT: expected hidden_act in ['gelu', 'relu'], the config has 'tanh'
    """
    value = config.get(name, supported[0])
    if value not in supported:
        raise ValueError(f"{model}: expected {name} in {list(supported)}, the config has {value!r}")
    return value


def last_positions(x: Tensor, count: int | None) -> Tensor:
    """The last ``count`` vectors of x, (..., T, d), or all with None. Raises ValueError for less than one.

    >>> last_positions(mg.zeros((2, 5, 8)), 1).shape
    (2, 1, 8)
    """
    if count is None:
        return x
    expect_positive("logits_to_keep", count=count)
    return x[..., -count:, :]


class CausalModel(PublishedModel):
    """A model that continues a text: ``model(ids, mask, cache, logits_to_keep)`` gives the logits of what follows.

    >>> class Counting(CausalModel):
    ...     context_length = 9
    ...     def __call__(self, ids, mask=None, cache=None, logits_to_keep=None):
    ...         return -mg.abs(ids[..., None] + 1 - mg.arange(10))
    >>> Counting().generate(mg.asarray([[2, 3]]), max_new_tokens=4, temperature=0).tolist()
    [[2, 3, 4, 5, 6, 7]]
    """

    context_length: int

    def __call__(
        self, ids: Tensor, mask: Any = None, cache: Cache | None = None, logits_to_keep: int | None = None
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: (B, T, vocab_size) for integers of shape (B, T).

        ``mask`` of shape (B, T), True = real, says what is padding. With a ``cache``, empty at first, ``ids`` is what
        has come since the last call, and ``mask`` is of all tokens so far. ``logits_to_keep`` counts the last positions
        whose logits are wanted.
        """
        raise NotImplementedError

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
        *,
        top_p: float | None = None,
        mask: Any = None,
        stop: Sequence[int] = (),
        **inputs: Any,
    ) -> Tensor:
        """``ids`` of shape (B, T) and at most ``max_new_tokens`` more: int64 of shape (B, T + more).

        Ends earlier when every row has written one of the tokens ``stop``; a row that has goes on with that token. The
        other options are those of `stream`.

        >>> from attention.models import GPT
        >>> model = GPT(11, d_model=8, num_heads=2, num_layers=1, context_length=6)
        >>> model.generate(mg.asarray([[3, 4]]), max_new_tokens=5, stop=range(11)).shape  # any token ends it
        (1, 3)
        """
        if max_new_tokens < 0:
            raise ValueError(f"{type(self).__name__}: expected max_new_tokens ≥ 0, got {max_new_tokens}")
        new: list[Tensor] = []
        ended = None
        tokens = self.stream(ids, temperature, top_k, generator, top_p=top_p, mask=mask, **inputs)
        for token in islice(tokens, max_new_tokens):
            if stop:
                token = token if ended is None else mg.where(ended, new[-1], token)
                ended = mg.any(mg.stack([token == end for end in stop]), axis=0)
            new.append(token)
            if ended is not None and mg.all(ended):
                break
        longer: Tensor = mg.concat([mg.astype(ids, "int64"), *new], axis=1)
        return longer

    def stream(
        self,
        ids: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: Generator | None = None,
        *,
        top_p: float | None = None,
        mask: Any = None,
        **inputs: Any,
    ) -> Iterator[Tensor]:
        """The tokens after ``ids`` of shape (B, T), one by one and without end, each of shape (B, 1), in int64.

        Each is drawn from softmax(logits / temperature), or is the likeliest one with ``temperature=0``; with ``top_k``
        from the k likeliest alone, with ``top_p`` from as few of the likeliest as have that probability together:
        A. Holtzman et al., "The curious case of neural text degeneration" (2019), arXiv:1904.09751. Prompts of several
        lengths are padded in front, with ``mask`` of shape (B, T), True = real. Beyond ``context_length`` the model
        sees the last tokens only. Dropout is off.

        ``inputs`` are what else the model reads with the prompt, such as ``images``. A ValueError says where the text
        outgrows ``context_length``: what is left of it would no longer fit to them.

        >>> from attention.models import GPT
        >>> model = GPT(11, d_model=8, num_heads=2, num_layers=1, context_length=6)
        >>> next(model.stream(mg.asarray([[3, 4], [5, 6]]), temperature=0)).shape
        (2, 1)
        """
        name = type(self).__name__
        if ids.ndim != 2 or ids.shape[1] < 1 or not mg.isdtype(ids.dtype, "integral"):
            given = f"{dtype_name(ids.dtype)} {ids.shape}"
            raise ValueError(f"{name}: expected integer ids of shape (B, T) with T ≥ 1, got {given}")
        if not 0 <= temperature < math.inf or not (top_k is None or (isinstance(top_k, Integral) and top_k >= 1)):
            given = f"{temperature} and {top_k}"
            raise ValueError(f"{name}: expected temperature ≥ 0 and an integer top_k ≥ 1, got {given}")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"{name}: expected 0 < top_p ≤ 1, got {top_p}")

        inputs = {name: value for name, value in inputs.items() if value is not None}

        def write(seen: Tensor, mask: Any) -> Iterator[Tensor]:
            modules = [module for _, module in self.named_modules()]
            cache: Cache = {}
            new = seen
            while True:
                if seen.shape[1] > self.context_length:  # each token now stands at another position: begin anew
                    if inputs:
                        what = f"{', '.join(inputs)} and {seen.shape[1]} tokens"
                        raise ValueError(f"{name}: expected at most context_length={self.context_length}, got {what}")
                    seen = seen[:, -self.context_length :]
                    mask = None if mask is None else mask[:, -self.context_length :]
                    cache, new = {}, seen
                with evaluating(modules):
                    logits = self(new, mask, cache, logits_to_keep=1, **({} if cache else inputs))[:, -1, :]
                    token = choose(logits, temperature, top_k, top_p, generator or mg.random.default)
                    new = mg.expand_dims(token, axis=1)
                    seen = mg.concat([seen, new], axis=1)
                    if mask is not None:
                        mask = mg.concat([mask, mg.ones_like(new, dtype="bool")], axis=1)
                yield new

        # A prompt's own dtype need not hold all of the vocabulary.
        return write(mg.astype(ids, "int64"), None if mask is None else mg.asarray(mask))


def choose(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Generator) -> Any:
    """One token for each row of logits, of shape (B, V). Nothing is copied to the host.

    >>> choose(mg.asarray([[0.0, 3.0, 1.0]]), 1.0, top_k=1, top_p=None, generator=mg.random.default).tolist()
    [1]
    """
    if temperature == 0:
        return mg.argmax(logits, axis=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        lowest = mg.sort(logits, axis=-1)[:, -top_k, None]
        logits = mg.where(logits < lowest, -mg.inf, logits)
    if top_p is not None:
        falling = mg.sort(logits, axis=-1, descending=True)
        # By a tiny temperature, float32 would divide 0 by 0.
        likely = mg.exp(mg.astype(falling - falling[:, :1], "float64") / max(temperature, 1e-30))
        before = mg.cumulative_sum(likely, axis=-1) - likely  # of all that are likelier
        kept = before < top_p * mg.sum(likely, axis=-1, keepdims=True)
        lowest = mg.min(mg.where(kept, falling, mg.inf), axis=-1, keepdims=True)
        logits = mg.where(logits < lowest, -mg.inf, logits)
    # The largest of logits plus Gumbel noise is distributed as softmax(logits): C. J. Maddison, D. Tarlow and
    # T. Minka, "A* sampling" (2014), arXiv:1411.0030. In float64, as a float32 can round up to 1, of which the noise is
    # infinite.
    noise = -mg.log(-mg.log(generator.uniform(logits.shape, 1e-9, 1.0, device=logits.device)))
    # All multiplied by the temperature: by a tiny one, logits / temperature would overflow.
    return mg.argmax(logits + temperature * noise, axis=-1)


BLOCK_NAMES: Mapping[str, str] = {
    "encoder.*.attention.query": "model.encoder.layers.*.self_attn.q_proj",
    "encoder.*.attention.key": "model.encoder.layers.*.self_attn.k_proj",
    "encoder.*.attention.value": "model.encoder.layers.*.self_attn.v_proj",
    "encoder.*.attention.output": "model.encoder.layers.*.self_attn.out_proj",
    "encoder.*.attention_residual.norm": "model.encoder.layers.*.self_attn_layer_norm",
    "encoder.*.feed_forward.up": "model.encoder.layers.*.fc1",
    "encoder.*.feed_forward.down": "model.encoder.layers.*.fc2",
    "encoder.*.feed_forward_residual.norm": "model.encoder.layers.*.final_layer_norm",
    "decoder.*.attention.query": "model.decoder.layers.*.self_attn.q_proj",
    "decoder.*.attention.key": "model.decoder.layers.*.self_attn.k_proj",
    "decoder.*.attention.value": "model.decoder.layers.*.self_attn.v_proj",
    "decoder.*.attention.output": "model.decoder.layers.*.self_attn.out_proj",
    "decoder.*.attention_residual.norm": "model.decoder.layers.*.self_attn_layer_norm",
    "decoder.*.cross_attention.query": "model.decoder.layers.*.encoder_attn.q_proj",
    "decoder.*.cross_attention.key": "model.decoder.layers.*.encoder_attn.k_proj",
    "decoder.*.cross_attention.value": "model.decoder.layers.*.encoder_attn.v_proj",
    "decoder.*.cross_attention.output": "model.decoder.layers.*.encoder_attn.out_proj",
    "decoder.*.cross_attention_residual.norm": "model.decoder.layers.*.encoder_attn_layer_norm",
    "decoder.*.feed_forward.up": "model.decoder.layers.*.fc1",
    "decoder.*.feed_forward.down": "model.decoder.layers.*.fc2",
    "decoder.*.feed_forward_residual.norm": "model.decoder.layers.*.final_layer_norm",
}
"""The blocks of those encoder-decoder models that were first written in fairseq's terms, and of their heirs."""


class EncoderDecoderModel(PublishedModel):
    """A model that reads a source and writes a target: `encode` makes a memory of the one, `decode` looks at it.

    >>> from attention.models import T5
    >>> model = T5(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, d_head=3)
    >>> source, target = mg.asarray([[3, 4, 5, 6]]), mg.asarray([[0, 7, 8]])
    >>> memory = model.encode(source)
    >>> memory.shape, model.decode(target, memory).shape
    ((1, 4, 8), (1, 3, 11))
    """

    max_length: int
    """The most tokens of a target; `sys.maxsize` where there is no limit."""

    def __call__(self, source: Tensor, target: Tensor, source_mask: Any = None, target_mask: Any = None) -> Any:
        """Logits of the token that follows each target token: (B, T, vocab_size).

        Source and target are integers of shapes (B, T_s) and (B, T); the masks, of the same shapes and boolean, are
        True for real tokens.
        """
        return self.decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def encode(self, source: Tensor, source_mask: Any = None) -> Tensor:
        """The memory that the decoder reads, (B, T_s, d_model), of a source of shape (B, T_s)."""
        raise NotImplementedError

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        cache: Cache | None = None,
    ) -> Any:
        """Logits for target tokens of shape (B, T), given what `encode` made of the source; see `__call__`.

        With a ``cache``, empty at first, ``target`` is what has been written since the last call, and ``target_mask``
        is of all of it. The memory is looked at in the first call only.
        """
        raise NotImplementedError

    def generate(
        self,
        source: Tensor,
        max_length: int,
        bos: int | Sequence[int],
        eos: int,
        source_mask: Any = None,
        *,
        suppress: Sequence[int] = (),
        begin_suppress: Sequence[int] = (),
    ) -> Tensor:
        """Write the likeliest token, again and again, until every sequence has its ``eos``.

        Returns int64 of shape (B, T) with T ≤ ``max_length``, without ``bos``; after its ``eos`` a row goes on with
        ``eos``. ``bos`` is what all targets begin with: a token, or several. The tokens ``suppress`` are never written,
        those in ``begin_suppress`` not as the first. Dropout is off meanwhile. Raises ValueError where ``max_length``
        exceeds the model's.

        >>> from attention.models import T5
        >>> model = T5(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, d_head=3)
        >>> only = [token for token in range(11) if token != 7]
        >>> model.generate(mg.asarray([[3, 4, 5]]), max_length=4, bos=0, eos=1, suppress=only).tolist()
        [[7, 7, 7, 7]]
        """
        begin = [bos] if isinstance(bos, Integral) else list(bos)  # type: ignore[arg-type]
        limit = self.max_length - len(begin) + 1
        if not begin:
            raise ValueError("generate: expected bos to be a token or several, got none")
        if not 1 <= max_length <= limit:
            raise ValueError(f"generate: expected max_length between 1 and {limit}, got {max_length}")
        with self.evaluating():
            memory = self.encode(source, source_mask)
            if memory.ndim != 3 or memory.shape[1] < 1:
                raise ValueError(f"generate: expected source of shape (B, T_s), got {source.shape}")
            new = mg.broadcast_to(mg.asarray(begin, dtype="int64", device=memory.device), (memory.shape[0], len(begin)))
            finished = mg.zeros((memory.shape[0], 1), dtype="bool", device=memory.device)
            cache: Cache = {}
            written: list[Tensor] = []
            for _ in range(max_length):
                logits = self.decode(new, memory, source_mask, cache=cache)[:, -1:, :]
                logits = _without(logits, [*suppress] if written else [*suppress, *begin_suppress])
                new = mg.where(finished, eos, mg.argmax(logits, axis=-1))
                finished = mg.logical_or(finished, new == eos)
                written.append(new)
                if mg.all(finished):
                    break
            ids: Tensor = mg.concat(written, axis=1)
            return ids


def _without(logits: Tensor, tokens: list[int]) -> Tensor:
    """``logits`` of shape (..., V) with -inf for each of ``tokens``."""
    if not tokens:
        return logits
    vocabulary = mg.arange(logits.shape[-1], device=logits.device)
    is_one = mg.any(mg.expand_dims(vocabulary, axis=-1) == mg.asarray(tokens, device=logits.device), axis=-1)
    return mg.where(is_one, -mg.inf, logits)
