"""GPT: the decoder-only Transformer, which continues a text, in its second version and its first.

A. Radford, J. Wu, R. Child, D. Luan, D. Amodei and I. Sutskever, "Language models are unsupervised multitask learners",
OpenAI (2019), known as GPT-2: blocks with the normalisation in front, GELU in its tanh form, learned positions, and one
matrix for reading and writing tokens. A. Radford, K. Narasimhan, T. Salimans and I. Sutskever, "Improving language
understanding by generative pre-training", OpenAI (2018), known as GPT-1: the same with the normalisation behind.

    wiring    Q, K and V from the text itself; a token sees itself and those before it
    position  a learned vector for each is added to the tokens
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..functional.dropout import check_probability
from ..layers import Dropout, Embedding, EncoderBlock, LayerNorm, LearnedPositions, Linear, Module
from ..layers.attention import Cache, newest, positions_of, tokens_seen
from ..layers.module import expect_positive, without_padding
from .published import ACTIVATIONS, CausalModel, expect_setting, last_positions


class GPT(CausalModel):
    """Predicts each token from those before it.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    d_model, num_heads, num_layers, context_length, dropout
        The smallest GPT-2 (124 million parameters with its vocabulary of 50257) unless given.
    d_ff, activation
        Of the feed-forward networks, which are 4·d_model wide unless given.
    norm, eps
        Where the normalisations stand, "pre" or "post", and their epsilon. After the last block there is one more with
        "pre".
    tied
        Whether one matrix reads and writes tokens.

    Examples
    --------
    >>> model = GPT(11, d_model=8, num_heads=2, num_layers=1, context_length=6)
    >>> ids = mg.asarray([[3, 4, 5]])
    >>> model(ids).shape
    (1, 3, 11)
    >>> model.generate(ids, max_new_tokens=5).shape
    (1, 8)
    >>> from attention.layers import ShapesOnly
    >>> GPT(50257, generator=ShapesOnly()).parameter_count()
    124439808
    """

    names: ClassVar = {
        "tokens": "transformer.wte",
        "positions": "transformer.wpe",
        "blocks.*.attention.query": "transformer.h.*.attn.c_attn.query",  # these three are one, see `_apart`
        "blocks.*.attention.key": "transformer.h.*.attn.c_attn.key",
        "blocks.*.attention.value": "transformer.h.*.attn.c_attn.value",
        "blocks.*.attention.output": "transformer.h.*.attn.c_proj",
        "blocks.*.attention_residual.norm": "transformer.h.*.ln_1",
        "blocks.*.feed_forward.up": "transformer.h.*.mlp.c_fc",
        "blocks.*.feed_forward.down": "transformer.h.*.mlp.c_proj",
        "blocks.*.feed_forward_residual.norm": "transformer.h.*.ln_2",
        "norm": "transformer.ln_f",
        "output": "lm_head",
    }
    prefix = "transformer."

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        context_length: int = 1024,
        dropout: float = 0.1,
        dtype: Any = "float32",
        generator: Generator | None = None,
        *,
        d_ff: int | None = None,
        activation: Callable[[Tensor], Tensor] = ACTIVATIONS["gelu_new"],
        norm: str = "pre",
        eps: float = 1e-5,
        tied: bool = True,
    ) -> None:
        expect_positive("GPT", num_layers=num_layers)
        self.context_length = context_length
        self.tokens = Embedding(vocab_size, d_model, std=0.02, dtype=dtype, generator=generator)
        self.positions = LearnedPositions(context_length, d_model, std=0.02, dtype=dtype, generator=generator)
        self.dropout = Dropout(dropout, generator)
        self.blocks = [
            EncoderBlock(
                d_model,
                num_heads,
                d_ff,
                dropout=dropout,
                norm=norm,
                activation=activation,
                normalization=partial(LayerNorm, eps=eps),
                dtype=dtype,
                generator=generator,
            )
            for _ in range(num_layers)
        ]
        self.norm = LayerNorm(d_model, eps, dtype) if norm == "pre" else None
        self.output = None if tied else Linear(d_model, vocab_size, bias=False, dtype=dtype, generator=generator)
        self.unused = ("*.attn.bias", "*.attn.masked_bias", *["*lm_head.weight"] * tied)
        self._initialise(num_layers, dtype, generator or mg.random.default)

    def _initialise(self, num_layers: int, dtype: Any, generator: Generator) -> None:
        """GPT-2's start: N(0, 0.02²) and zero biases. What is added to the residual stream, by two projections in each
        block, starts smaller by √(2·num_layers), so that the sum over the blocks does not grow with their number."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.data = mg.zeros_like(parameter).data
            elif name.startswith(("blocks", "output")) and parameter.ndim == 2:
                residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                # With the norm behind, the stream is of one size after every block.
                std = 0.02 / math.sqrt(2 * num_layers) if residual and self.norm is not None else 0.02
                parameter.data = generator.normal(parameter.shape, std=std, dtype=dtype).data

    def __call__(
        self, ids: Tensor, mask: Any = None, cache: Cache | None = None, logits_to_keep: int | None = None
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: (B, T, vocab_size) for integers of shape (B, T).

        T is at most ``context_length``. ``mask`` of shape (B, T), True = real, says what is padding; positions count
        what is real. With a ``cache``, empty at first, ``ids`` is what has come since the last call, and ``mask`` is of
        all tokens so far. ``logits_to_keep`` counts the last positions whose logits are wanted.
        """
        x = self.tokens(ids)
        x = without_padding(x, newest(mask, x, cache), "GPT")
        x = self.positions(x, tokens_seen(cache, self.blocks[0].attention), positions_of(mask, x))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, mask, is_causal=True, cache=cache)
        x = last_positions(x, logits_to_keep)
        x = x if self.norm is None else self.norm(x)
        return F.linear(x, self.tokens.weight.T) if self.output is None else self.output(x)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, with random parameters."""
        name = cls.__name__
        expect_setting(name, config, "model_type", "gpt2")
        expect_setting(name, config, "add_cross_attention", False)
        # Of precision alone, and ours is that of True: half precision accumulates in float32.
        expect_setting(name, config, "reorder_and_upcast_attn", False, True)
        activation = expect_setting(name, config, "activation_function", "gelu_new", *ACTIVATIONS)
        model = cls(
            config["vocab_size"],
            **_sizes(config, 1024),
            d_ff=config.get("n_inner"),
            activation=ACTIVATIONS[activation],
            tied=expect_setting(name, config, "tie_word_embeddings", True, False),
            dtype=dtype,
            generator=generator,
        )._dropping(config)
        scaled = expect_setting(name, config, "scale_attn_weights", True, False)
        falling = expect_setting(name, config, "scale_attn_by_inverse_layer_idx", False, True)
        for i, block in enumerate(model.blocks):
            scale = 1 / math.sqrt(config["n_embd"] // config["n_head"]) if scaled else 1.0
            block.attention.scale = scale / (i + 1) if falling else scale
        return model

    def _dropping(self, config: Mapping[str, Any]) -> Self:
        """Itself, with the published probabilities, of which there are three."""
        outer, inner = (config.get(name, 0.1) for name in ("embd_pdrop", "attn_pdrop"))
        check_probability(type(self).__name__, "embd_pdrop", outer)
        check_probability(type(self).__name__, "attn_pdrop", inner)
        self.dropout.p = outer
        for block in self.blocks:
            block.attention.dropout = inner
        return self

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queries, keys and values are published as one layer, side by side."""
        apart: dict[str, Any] = {}
        for name, value in state.items():
            layer, both, kind = name.partition(".c_attn.")
            if both and len(value.shape):
                d = value.shape[-1] // 3
                apart[f"{layer}.c_attn.query.{kind}"] = value[..., :d]
                apart[f"{layer}.c_attn.key.{kind}"] = value[..., d : 2 * d]
                apart[f"{layer}.c_attn.value.{kind}"] = value[..., 2 * d :]
            else:
                apart[name] = value
        return apart

    def _is_turned(self, layer: Module) -> bool:
        """The weights inside the blocks are published as they are here, (in, out)."""
        return layer is self.output


class GPT1(GPT):
    """The first GPT: its normalisations stand behind, and there is none after the last block.

    The parameters are those of `GPT` but for ``norm``. Unless given they are those that are published, with a
    vocabulary of 40478.

    Examples
    --------
    >>> model = GPT1(11, d_model=8, num_heads=2, num_layers=1, context_length=6)
    >>> model(mg.asarray([[3, 4, 5]])).shape
    (1, 3, 11)
    >>> from attention.layers import ShapesOnly
    >>> GPT1(40478, generator=ShapesOnly()).parameter_count()
    116534784
    """

    names: ClassVar = GPT.names | {"tokens": "transformer.tokens_embed", "positions": "transformer.positions_embed"}

    def __init__(self, vocab_size: int, *, context_length: int = 512, **options: Any) -> None:
        super().__init__(vocab_size, context_length=context_length, norm="post", **options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, with random parameters."""
        name = cls.__name__
        expect_setting(name, config, "model_type", "openai-gpt")
        expect_setting(name, config, "tie_word_embeddings", True)
        activation = expect_setting(name, config, "afn", "gelu", "relu", "silu", "swish")
        return cls(
            config["vocab_size"],
            **_sizes(config, 512),
            activation=ACTIVATIONS["gelu_new" if activation == "gelu" else activation],
            dtype=dtype,
            generator=generator,
        )._dropping(config)


def _sizes(config: Mapping[str, Any], context_length: int) -> dict[str, Any]:
    """What the settings of both versions have in common."""
    return {
        "d_model": config["n_embd"],
        "num_heads": config["n_head"],
        "num_layers": config["n_layer"],
        "context_length": config.get("n_positions", context_length),
        "dropout": config.get("resid_pdrop", 0.1),
        "eps": config.get("layer_norm_epsilon", 1e-5),
    }
