"""The encoder-decoder Transformer, which reads one sequence and writes another; Marian's translators are such.

A. Vaswani, N. Shazeer, N. Parmar, J. Uszkoreit, L. Jones, A. N. Gomez, Ł. Kaiser and I. Polosukhin, "Attention is all
you need" (2017), arXiv:1706.03762. With ``norm="post"`` and ``shared=True`` it is the paper's model, but for its lack
of biases in the attention; with ``norm="pre"`` it trains without a warm-up of the learning rate. Marian is M.
Junczys-Dowmunt et al., "Marian: fast neural machine translation in C++" (2018), arXiv:1804.00344; its published weights
are those of J. Tiedemann and S. Thottingal, "OPUS-MT: building open translation services for the world", EAMT (2020).

    wiring    encoder: Q, K and V from the source, each token sees all; decoder: Q, K and V from the target, a token
              sees itself and those before it; then Q from the target, K and V from the source
    position  added: a fixed wave
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import DecoderBlock, Dropout, Embedding, EncoderBlock, LayerNorm, Linear, SinusoidalPositions
from ..layers.attention import Cache, newest, tokens_seen
from ..layers.module import expect_positive, parameter, without_padding
from .published import ACTIVATIONS, BLOCK_NAMES, EncoderDecoderModel, expect_setting


class Transformer(EncoderDecoderModel):
    """An encoder over source tokens, and a decoder that predicts each target token from those before and the source.

    Parameters
    ----------
    source_vocab, target_vocab
        The numbers of different tokens.
    d_model, num_heads, num_layers, d_ff, dropout
        The paper's base model unless given; d_ff is 4·d_model.
    max_length
        The longest source or target.
    norm
        ``"pre"`` or ``"post"``, see `attention.layers.blocks`.
    num_decoder_layers
        Of the decoder, where that has its own number.
    activation
        Of the feed-forward networks.
    shared
        Whether one matrix reads the source, reads the target and writes it (arXiv:1706.03762, section 3.4). Instead of
        an output layer's bias the logits then have a fixed one, ``logits_bias``, which starts as zeros.
    scaled
        Whether embeddings are multiplied by √d_model.
    halves
        Of `SinusoidalPositions`.

    Examples
    --------
    >>> model = Transformer(11, 13, d_model=8, num_heads=2, num_layers=1, max_length=7)
    >>> source, target = mg.asarray([[3, 4, 5, 6]]), mg.asarray([[1, 7, 8]])
    >>> logits, weights = model(source, target, return_weights=True)
    >>> logits.shape, [w.shape for w in weights]
    ((1, 3, 13), [(1, 2, 3, 4)])
    >>> model.generate(source, max_length=5, bos=1, eos=2).shape[0]
    1
    >>> from attention.layers import ShapesOnly
    >>> Transformer(58101, 58101, shared=True, norm="post", generator=ShapesOnly()).parameter_count()
    73886208
    """

    names: ClassVar = {
        "source_embedding": "model.shared",
        "target_embedding": "model.decoder.embed_tokens",
        "encoder_norm": "model.encoder.layer_norm",
        "decoder_norm": "model.decoder.layer_norm",
        "output": "lm_head",
        "logits_bias": "final_logits_bias",
        **BLOCK_NAMES,
    }
    prefix = "model."

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        d_ff: int | None = None,
        dropout: float = 0.1,
        max_length: int = 1024,
        norm: str = "pre",
        dtype: Any = "float32",
        generator: Generator | None = None,
        *,
        num_decoder_layers: int | None = None,
        activation: Callable[[Tensor], Tensor] = F.relu,
        shared: bool = False,
        scaled: bool = True,
        halves: bool = False,
    ) -> None:
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        expect_positive("Transformer", d_model=d_model, num_layers=num_layers, num_decoder_layers=num_decoder_layers)
        if shared and source_vocab != target_vocab:
            raise ValueError(f"Transformer: shared needs one vocabulary, got {source_vocab} and {target_vocab} tokens")
        std = 1 / math.sqrt(d_model)  # so that, scaled by √d_model, an embedding is as large as a position
        self.max_length = max_length
        self.scale = math.sqrt(d_model) if scaled else 1.0
        self.source_embedding = Embedding(source_vocab, d_model, std=std, dtype=dtype, generator=generator)
        self.target_embedding = (
            self.source_embedding
            if shared
            else Embedding(target_vocab, d_model, std=std, dtype=dtype, generator=generator)
        )
        self.positions = SinusoidalPositions(max_length, d_model, dtype=dtype, halves=halves)
        self.dropout = Dropout(dropout, generator)
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        block: dict[str, Any] = {"d_ff": d_ff, "dropout": dropout, "norm": norm, "activation": activation, **common}
        self.encoder = [EncoderBlock(d_model, num_heads, **block) for _ in range(num_layers)]
        self.decoder = [DecoderBlock(d_model, num_heads, **block) for _ in range(num_decoder_layers)]
        # A pre-norm stack ends with the plain sum of all its blocks, which nothing has normalised yet.
        self.encoder_norm = LayerNorm(d_model, dtype=dtype) if norm == "pre" else None
        self.decoder_norm = LayerNorm(d_model, dtype=dtype) if norm == "pre" else None
        self.output = None if shared else Linear(d_model, target_vocab, dtype=dtype, generator=generator)
        self.logits_bias = parameter(mg.zeros((1, target_vocab), dtype=dtype)) if shared else None
        if self.logits_bias is not None:
            self.logits_bias.requires_grad = False
        self.unused = ("*.embed_positions.weight", *["*coder.embed_tokens.weight", "lm_head.weight"] * shared)

    def __call__(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Logits of the token that follows each target token: (B, T, target_vocab).

        ``source`` and ``target`` are integers of shapes (B, T_s) and (B, T), where T and T_s are at most
        ``max_length``; the masks, of the same shapes and boolean, are True for real tokens. With ``return_weights``
        also a list of the cross-attention weights of each layer, (B, num_heads, T, T_s).
        """
        memory = self.encode(source, source_mask)
        return self.decode(target, memory, source_mask, target_mask, return_weights=return_weights)

    def encode(self, source: Tensor, source_mask: Any = None) -> Tensor:
        """What the decoder reads: (B, T_s, d_model) for source tokens of shape (B, T_s)."""
        x = self._embed(self.source_embedding, source, source_mask)
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
        return_weights: bool = False,
    ) -> Any:
        """Logits for target tokens of shape (B, T), given what `encode` made of the source; see `__call__`.

        With a ``cache``, empty at first, ``target`` is what has been written since the last call.
        """
        x = self._embed(self.target_embedding, target, target_mask, cache)
        weights = []
        for block in self.decoder:
            x = block(x, memory, target_mask, source_mask, cache, return_weights)
            if return_weights:
                x, cross = x
                weights.append(cross)
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        if self.output is None:
            logits = F.linear(x, self.target_embedding.weight.T) + self.logits_bias
        else:
            logits = self.output(x)
        return (logits, weights) if return_weights else logits

    def _embed(self, embedding: Embedding, tokens: Tensor, mask: Any, cache: Cache | None = None) -> Tensor:
        x = self.positions(embedding(tokens) * self.scale, tokens_seen(cache, self.decoder[0].attention))
        return without_padding(self.dropout(x), newest(mask, x, cache), "Transformer")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that Marian's published ``config.json`` describes, with random parameters."""
        name = cls.__name__
        expect_setting(name, config, "normalize_before", False)
        expect_setting(name, config, "normalize_embedding", False)
        expect_setting(name, config, "add_final_layer_norm", False)
        expect_setting(name, config, "static_position_embeddings", True)
        expect_setting(name, config, "share_encoder_decoder_embeddings", True)
        expect_setting(name, config, "tie_word_embeddings", True)
        expect_setting(name, config, "decoder_vocab_size", config["vocab_size"], None)
        expect_setting(name, config, "decoder_attention_heads", config["encoder_attention_heads"])
        expect_setting(name, config, "decoder_ffn_dim", config["encoder_ffn_dim"])
        activation = expect_setting(name, config, "activation_function", "gelu", *ACTIVATIONS)
        return cls(
            config["vocab_size"],
            config["vocab_size"],
            d_model=config["d_model"],
            num_heads=config["encoder_attention_heads"],
            num_layers=config["encoder_layers"],
            d_ff=config["encoder_ffn_dim"],
            dropout=config.get("dropout", 0.1),
            max_length=config.get("max_position_embeddings", 1024),
            norm="post",
            dtype=dtype,
            generator=generator,
            num_decoder_layers=config["decoder_layers"],
            activation=ACTIVATIONS[activation],
            shared=True,
            scaled=expect_setting(name, config, "scale_embedding", False, True),
            halves=True,
        )
