"""Whisper: the encoder-decoder Transformer that reads speech and writes text.

A. Radford, J. W. Kim, T. Xu, G. Brockman, C. McLeavey and I. Sutskever, "Robust speech recognition via large-scale weak
supervision" (2022), arXiv:2212.04356.

    wiring    encoder: Q, K and V from the sound, each moment of it sees all; decoder: Q, K and V from the text itself,
              a token sees itself and those before it; then Q from the text, K and V from the sound
    position  added: a fixed wave for the sound, a learned vector for the text
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import Conv1d, DecoderBlock, Embedding, EncoderBlock, LayerNorm, LearnedPositions
from ..layers.attention import Cache, tokens_seen
from ..layers.module import expect_positive
from .published import BLOCK_NAMES, EncoderDecoderModel, expect_setting


class Whisper(EncoderDecoderModel):
    """Writes down what is said in a log-mel spectrogram (`attention.audio`).

    A text begins with tokens that say what is wanted, such as ``<|startoftranscript|>``: they are ``bos`` of
    `generate`. Where words were said can be read from the weights of the cross-attention, see `attention_weights`.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    d_model, num_heads, num_layers
        The tiny model unless given. ``num_layers`` is of the encoder, and of the decoder unless that has its own.
    num_decoder_layers
        Fewer layers in the decoder, as in the turbo model.
    d_ff
        4·d_model unless given.
    num_mels
        The bands of the spectrogram.
    source_length, max_length
        The longest sound, counted in pairs of frames, and the longest text.

    Examples
    --------
    >>> model = Whisper(11, d_model=8, num_heads=2, num_layers=1, num_mels=5, source_length=6, max_length=7)
    >>> features = mg.ones((1, 5, 12))
    >>> model(features, mg.asarray([[1, 7, 8]])).shape
    (1, 3, 11)
    >>> model.generate(features, max_length=4, bos=[1, 7], eos=2).shape[0]
    1
    >>> from attention.layers import ShapesOnly
    >>> Whisper(51864, generator=ShapesOnly()).parameter_count()
    37184256
    """

    names: ClassVar = {
        "convolution_1": "model.encoder.conv1",
        "convolution_2": "model.encoder.conv2",
        "source_positions": "model.encoder.embed_positions",
        "encoder_norm": "model.encoder.layer_norm",
        "tokens": "model.decoder.embed_tokens",
        "target_positions": "model.decoder.embed_positions",
        "decoder_norm": "model.decoder.layer_norm",
        **BLOCK_NAMES,
    }
    prefix = "model."
    unused = ("proj_out.weight",)

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 384,
        num_heads: int = 6,
        num_layers: int = 4,
        num_decoder_layers: int | None = None,
        d_ff: int | None = None,
        num_mels: int = 80,
        source_length: int = 1500,
        max_length: int = 448,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        expect_positive("Whisper", num_layers=num_layers, num_decoder_layers=num_decoder_layers)
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        block: dict[str, Any] = {"d_ff": d_ff, "norm": "pre", "activation": F.gelu, "key_bias": False, **common}
        self.max_length = max_length
        self.convolution_1 = Conv1d(num_mels, d_model, width=3, padding=1, **common)
        self.convolution_2 = Conv1d(d_model, d_model, width=3, stride=2, padding=1, **common)
        self.source_positions = LearnedPositions(source_length, d_model, **common)
        # Saved with the model, but not trained: the waves of the paper, with others of the usual lengths.
        self.source_positions.weight = mg.astype(_waves(source_length, d_model), dtype)
        self.encoder = [EncoderBlock(d_model, num_heads, **block) for _ in range(num_layers)]
        self.encoder_norm = LayerNorm(d_model, dtype=dtype)
        self.tokens = Embedding(vocab_size, d_model, std=0.02, **common)
        self.target_positions = LearnedPositions(max_length, d_model, **common)
        self.decoder = [DecoderBlock(d_model, num_heads, **block) for _ in range(num_decoder_layers)]
        self.decoder_norm = LayerNorm(d_model, dtype=dtype)

    def encode(self, source: Tensor, source_mask: Any = None) -> Tensor:
        """What the decoder reads of log-mel features (B, num_mels, frames): (B, T_s, d_model), T_s = ⌈frames / 2⌉.

        Whisper was made for sounds of 3000 frames, with silence after shorter ones, and knows no padding: ValueError
        for a mask, for other features and for too many frames.
        """
        bands = self.convolution_1.weight.shape[1]
        if source.ndim != 3 or source.shape[1] != bands:
            raise ValueError(f"Whisper: expected features of shape (B, {bands}, frames), got {source.shape}")
        if source_mask is not None:
            raise ValueError("Whisper: expected no source_mask, a shorter sound goes on with silence")
        x = mg.astype(mg.matrix_transpose(source), self.tokens.weight.dtype)
        x = F.gelu(self.convolution_1(x))
        x = F.gelu(self.convolution_2(x))
        x = self.source_positions(x)
        for block in self.encoder:
            x = block(x)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits for target tokens of shape (B, T), given what `encode` made of the sound: (B, T, vocab_size)."""
        x = self.target_positions(self.tokens(target), tokens_seen(cache, self.decoder[0].attention))
        for block in self.decoder:
            x = block(x, memory, target_mask, source_mask, cache)
        return F.linear(self.decoder_norm(x), self.tokens.weight.T)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, with random parameters."""
        name = cls.__name__
        expect_setting(name, config, "activation_function", "gelu")
        expect_setting(name, config, "scale_embedding", False)
        expect_setting(name, config, "tie_word_embeddings", True)
        heads, width = config["encoder_attention_heads"], config["encoder_ffn_dim"]
        expect_setting(name, config, "decoder_attention_heads", heads)
        expect_setting(name, config, "decoder_ffn_dim", width)
        return cls(
            config["vocab_size"],
            d_model=config["d_model"],
            num_heads=heads,
            num_layers=config["encoder_layers"],
            num_decoder_layers=config["decoder_layers"],
            d_ff=width,
            num_mels=config["num_mel_bins"],
            source_length=config["max_source_positions"],
            max_length=config["max_target_positions"],
            dtype=dtype,
            generator=generator,
        )


def _waves(length: int, d_model: int) -> Tensor:
    """sin tθ_i, then cos tθ_i, with θ_i = 10000^(-i / (d_model/2 - 1)): (length, d_model), in float64."""
    if d_model < 4 or d_model % 2:
        raise ValueError(f"Whisper: expected an even d_model of 4 or more, as waves go in pairs; got {d_model}")
    half = d_model // 2
    theta = mg.pow(10000.0, -mg.arange(half, dtype="float64") / (half - 1))
    angles = mg.expand_dims(mg.arange(length, dtype="float64"), axis=-1) * theta
    waves: Tensor = mg.concat([mg.sin(angles), mg.cos(angles)], axis=-1)
    return waves
