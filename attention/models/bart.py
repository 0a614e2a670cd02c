"""BART: an encoder-decoder Transformer that was trained to restore spoiled text; mBART is the same in many languages.

M. Lewis et al., "BART: denoising sequence-to-sequence pre-training for natural language generation, translation, and
comprehension" (2019), arXiv:1910.13461; Y. Liu et al., "Multilingual denoising pre-training for neural machine
translation" (2020), arXiv:2001.08210.

    wiring    encoder: Q, K and V from the source, each token sees all; decoder: Q, K and V from the target, a token
              sees itself and those before it; then Q from the target, K and V from the source
    position  added: a learned vector, and then a normalisation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import DecoderBlock, Embedding, EncoderBlock, LayerNorm, LearnedPositions
from ..layers.attention import Cache, newest, tokens_seen
from ..layers.module import expect_positive, parameter, without_padding
from .published import ACTIVATIONS, BLOCK_NAMES, EncoderDecoderModel, expect_setting


class BART(EncoderDecoderModel):
    """Predicts each target token from those before and the source.

    Published models begin a target with two tokens: the one that ends texts, then the one that begins them, or for
    mBART the language. They are ``bos`` of `generate`.

    Parameters
    ----------
    vocab_size
        The number of different tokens. One matrix reads and writes them.
    d_model, num_heads, num_layers, d_ff, max_length
        The base model unless given; d_ff is 4·d_model. ``max_length`` is of sources and targets.
    num_decoder_layers
        Of the decoder, where that has its own number.
    norm
        ``"post"``; ``"pre"`` for mBART, see `attention.layers.blocks`.
    activation
        Of the feed-forward networks.
    scaled
        Whether embeddings are multiplied by √d_model.

    Examples
    --------
    >>> model = BART(11, d_model=8, num_heads=2, num_layers=1, max_length=7)
    >>> source, target = mg.asarray([[3, 4, 5, 6]]), mg.asarray([[2, 7, 8]])
    >>> model(source, target).shape
    (1, 3, 11)
    >>> model.generate(source, max_length=5, bos=[2, 0], eos=2).shape[0]
    1
    >>> from attention.layers import ShapesOnly
    >>> BART(50265, generator=ShapesOnly()).parameter_count()
    139417344
    """

    names: ClassVar = {
        "tokens": "model.shared",
        "source_positions": "model.encoder.embed_positions",
        "source_norm": "model.encoder.layernorm_embedding",
        "encoder_norm": "model.encoder.layer_norm",
        "target_positions": "model.decoder.embed_positions",
        "target_norm": "model.decoder.layernorm_embedding",
        "decoder_norm": "model.decoder.layer_norm",
        "logits_bias": "final_logits_bias",
        **BLOCK_NAMES,
    }
    prefix = "model."
    unused = ("*coder.embed_tokens.weight", "lm_head.weight")

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 768,
        num_heads: int = 12,
        num_layers: int = 6,
        num_decoder_layers: int | None = None,
        d_ff: int | None = None,
        max_length: int = 1024,
        norm: str = "post",
        activation: Callable[[Tensor], Tensor] = F.gelu,
        scaled: bool = False,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        expect_positive("BART", num_layers=num_layers, num_decoder_layers=num_decoder_layers)
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        block: dict[str, Any] = {"d_ff": d_ff, "norm": norm, "activation": activation, **common}
        self.max_length = max_length
        self.scale = math.sqrt(d_model) if scaled else 1.0
        self.tokens = Embedding(vocab_size, d_model, std=0.02, **common)
        self.source_positions = LearnedPositions(max_length, d_model, **common)
        self.source_norm = LayerNorm(d_model, dtype=dtype)
        self.encoder = [EncoderBlock(d_model, num_heads, **block) for _ in range(num_layers)]
        self.encoder_norm = LayerNorm(d_model, dtype=dtype) if norm == "pre" else None
        self.target_positions = LearnedPositions(max_length, d_model, **common)
        self.target_norm = LayerNorm(d_model, dtype=dtype)
        self.decoder = [DecoderBlock(d_model, num_heads, **block) for _ in range(num_decoder_layers)]
        self.decoder_norm = LayerNorm(d_model, dtype=dtype) if norm == "pre" else None
        self.logits_bias = parameter(mg.zeros((1, vocab_size), dtype=dtype))
        self.logits_bias.requires_grad = False

    def encode(self, source: Tensor, source_mask: Any = None) -> Tensor:
        """What the decoder reads: (B, T_s, d_model) for source tokens of shape (B, T_s)."""
        x = self._embed(source, source_mask)
        x = self.source_norm(self.source_positions(x))
        for block in self.encoder:
            x = block(x, source_mask)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits for target tokens of shape (B, T), given what `encode` made of the source: (B, T, vocab_size)."""
        x = self._embed(target, target_mask, cache)
        x = self.target_norm(self.target_positions(x, tokens_seen(cache, self.decoder[0].attention)))
        for block in self.decoder:
            x = block(x, memory, target_mask, source_mask, cache)
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        return F.linear(x, self.tokens.weight.T) + self.logits_bias

    def _embed(self, tokens: Tensor, mask: Any, cache: Cache | None = None) -> Tensor:
        """Of padding nothing may reach the normalisation, which would spread it over the positions' gradient."""
        x = self.tokens(tokens) * self.scale
        return without_padding(x, newest(mask, x, cache), "BART")

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Published tables of positions begin with two rows that stand for nothing."""
        tables = [f"model.{half}.embed_positions.weight" for half in ("encoder", "decoder")]
        return {**state, **{name: state[name][2:, :] for name in tables if name in state}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json``, of BART or mBART, describes, with random parameters."""
        name = cls.__name__
        kind = expect_setting(name, config, "model_type", "bart", "mbart")
        expect_setting(name, config, "normalize_before", kind == "mbart")
        expect_setting(name, config, "normalize_embedding", True)
        expect_setting(name, config, "add_final_layer_norm", kind == "mbart")
        expect_setting(name, config, "static_position_embeddings", False)
        expect_setting(name, config, "tie_word_embeddings", True)
        expect_setting(name, config, "decoder_attention_heads", config["encoder_attention_heads"])
        expect_setting(name, config, "decoder_ffn_dim", config["encoder_ffn_dim"])
        activation = expect_setting(name, config, "activation_function", "gelu", *ACTIVATIONS)
        return cls(
            config["vocab_size"],
            d_model=config["d_model"],
            num_heads=config["encoder_attention_heads"],
            num_layers=config["encoder_layers"],
            num_decoder_layers=config["decoder_layers"],
            d_ff=config["encoder_ffn_dim"],
            max_length=config.get("max_position_embeddings", 1024),
            norm="pre" if kind == "mbart" else "post",
            activation=ACTIVATIONS[activation],
            scaled=expect_setting(name, config, "scale_embedding", False, True),
            dtype=dtype,
            generator=generator,
        )
