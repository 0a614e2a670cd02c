"""LLaMA: the decoder-only Transformer of today, with rotary positions, RMSNorm, gated feed-forward networks and GQA.

H. Touvron et al., "LLaMA: open and efficient foundation language models" (2023), arXiv:2302.13971; LLaMA 2 (2023),
arXiv:2307.09288; A. Grattafiori et al., "The Llama 3 herd of models" (2024), arXiv:2407.21783. SmolLM2 (L. B. Allal et
al. (2025), arXiv:2502.02737) is one of them.

    wiring    Q, K and V from the text itself; a token sees itself and those before it
    position  queries and keys are turned, by an angle proportional to their position
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
from ..layers import Embedding, EncoderBlock, Linear, RMSNorm, RotaryPositions
from ..layers.attention import Cache
from ..layers.module import expect_positive
from .published import CausalModel, expect_setting, last_positions


class LLaMA(CausalModel):
    """Predicts each token from those before it.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    d_model, num_heads, num_layers, d_ff, num_kv_heads, context_length
        SmolLM2-135M unless given.
    d_head
        The width of a head, where it is not d_model / num_heads.
    rope_base, rope_rescale
        Of `RotaryPositions`.
    eps
        Of the normalisations.
    tied
        Whether one matrix reads and writes tokens.
    window
        Of `MultiHeadAttention`.

    Examples
    --------
    >>> model = LLaMA(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, num_kv_heads=1, context_length=9)
    >>> ids = mg.asarray([[3, 4, 5]])
    >>> model(ids).shape, model.generate(ids, max_new_tokens=5).shape
    ((1, 3, 11), (1, 8))
    >>> from attention.layers import ShapesOnly
    >>> LLaMA(49152, generator=ShapesOnly()).parameter_count()
    134515008
    """

    names: ClassVar = {
        "tokens": "model.embed_tokens",
        "blocks.*.attention.query": "model.layers.*.self_attn.q_proj",
        "blocks.*.attention.key": "model.layers.*.self_attn.k_proj",
        "blocks.*.attention.value": "model.layers.*.self_attn.v_proj",
        "blocks.*.attention.output": "model.layers.*.self_attn.o_proj",
        "blocks.*.attention_residual.norm": "model.layers.*.input_layernorm",
        "blocks.*.feed_forward.gate": "model.layers.*.mlp.gate_proj",
        "blocks.*.feed_forward.up": "model.layers.*.mlp.up_proj",
        "blocks.*.feed_forward.down": "model.layers.*.mlp.down_proj",
        "blocks.*.feed_forward_residual.norm": "model.layers.*.post_attention_layernorm",
        "norm": "model.norm",
        "output": "lm_head",
    }
    prefix = "model."

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 576,
        num_heads: int = 9,
        num_layers: int = 30,
        d_ff: int = 1536,
        num_kv_heads: int = 3,
        context_length: int = 8192,
        d_head: int | None = None,
        rope_base: float = 10000.0,
        rope_rescale: Callable[[Tensor], Tensor] | None = None,
        eps: float = 1e-5,
        tied: bool = True,
        window: int | None = None,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("LLaMA", num_layers=num_layers, num_heads=num_heads)
        if d_head is None and d_model % num_heads:
            raise ValueError(f"LLaMA: num_heads={num_heads} does not divide d_model={d_model}")
        d_head = d_model // num_heads if d_head is None else d_head
        self.context_length = context_length
        self.tokens = Embedding(vocab_size, d_model, std=0.02, dtype=dtype, generator=generator)
        rotary = RotaryPositions(context_length, d_head, dtype, base=rope_base, rescale=rope_rescale, halves=True)
        normalization = partial(RMSNorm, eps=eps)
        self.blocks = [
            EncoderBlock(
                d_model,
                num_heads,
                d_ff,
                norm="pre",
                normalization=normalization,
                activation=F.silu,
                gated=True,
                bias=False,
                num_kv_heads=num_kv_heads,
                d_head=d_head,
                rotary=rotary,
                window=window,
                dtype=dtype,
                generator=generator,
            )
            for _ in range(num_layers)
        ]
        self.norm = normalization(d_model, dtype=dtype)
        self.output = None if tied else Linear(d_model, vocab_size, bias=False, dtype=dtype, generator=generator)
        self.unused = ("*.rotary_emb.inv_freq", *["lm_head.weight"] * tied)

    def __call__(
        self, ids: Tensor, mask: Any = None, cache: Cache | None = None, logits_to_keep: int | None = None
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: (B, T, vocab_size) for integers of shape (B, T).

        ``mask`` of shape (B, T), True = real, says what is padding. With a ``cache``, empty at first, ``ids`` is what
        has come since the last call, and ``mask`` is of all tokens so far. ``logits_to_keep`` counts the last positions
        whose logits are wanted.
        """
        return self.decode(self.tokens(ids), mask, cache, logits_to_keep)

    def decode(
        self, x: Tensor, mask: Any = None, cache: Cache | None = None, logits_to_keep: int | None = None
    ) -> Tensor:
        """The logits for vectors x of shape (B, T, d_model) in place of those of tokens; see `__call__`."""
        for block in self.blocks:
            x = block(x, mask, is_causal=True, cache=cache)
        x = self.norm(last_positions(x, logits_to_keep))
        return F.linear(x, self.tokens.weight.T) if self.output is None else self.output(x)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, with random parameters."""
        name = cls.__name__
        expect_setting(name, config, "hidden_act", "silu")
        expect_setting(name, config, "attention_bias", False)
        expect_setting(name, config, "mlp_bias", False)
        heads = config["num_attention_heads"]
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        return cls(
            config["vocab_size"],
            d_model=config["hidden_size"],
            num_heads=heads,
            num_layers=config["num_hidden_layers"],
            d_ff=config["intermediate_size"],
            num_kv_heads=config.get("num_key_value_heads") or heads,
            context_length=config.get("max_position_embeddings", 2048),
            d_head=config.get("head_dim"),
            rope_base=rope.get("rope_theta") or config.get("rope_theta", 10000.0),
            rope_rescale=_rescale(name, rope),
            eps=config.get("rms_norm_eps", 1e-6),
            tied=expect_setting(name, config, "tie_word_embeddings", False, True),
            window=config.get("sliding_window"),
            dtype=dtype,
            generator=generator,
        )


def _rescale(name: str, rope: Mapping[str, Any]) -> Callable[[Tensor], Tensor] | None:
    """How the frequencies of rotary positions are changed for longer texts.

    linear    all are slower by a factor: S. Chen et al., "Extending context window" (2023), arXiv:2306.15595
    llama3    so are those that turn less than ``low`` times in the old context; those that turn more than ``high``
              times stay; between the two a mixture. Llama 3.1's model card, 2024.
    """
    kind = rope.get("rope_type") or rope.get("type")
    expect_setting(name, {"rope_type": kind or "default"}, "rope_type", "default", "linear", "llama3")
    if kind in (None, "default"):
        return None
    more = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings") if kind == "llama3" else ()
    numbers = [rope[setting] for setting in ("factor", *more)]
    if not all(isinstance(number, int | float) and number > 0 for number in numbers):
        raise ValueError(f"{name}: expected numbers > 0 that say how positions are rescaled, got {numbers}")
    if kind == "linear":
        return lambda theta: theta / numbers[0]
    factor, low, high, old = numbers
    if low >= high:
        raise ValueError(f"{name}: expected low_freq_factor < high_freq_factor, got {low} and {high}")

    def llama3(theta: Tensor) -> Tensor:
        turns = old * theta / (2 * math.pi)
        kept = mg.clip((turns - low) / (high - low), 0.0, 1.0)
        rescaled: Tensor = kept * theta + (1 - kept) * theta / factor
        return rescaled

    return llama3
