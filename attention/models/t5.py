"""T5: an encoder-decoder Transformer for which every task is text to text; mT5 is the same in many languages.

C. Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text Transformer" (2019),
arXiv:1910.10683; L. Xue et al., "mT5: a massively multilingual pre-trained text-to-text Transformer" (2020),
arXiv:2010.11934. T5 1.1, mT5 and FLAN-T5 (H. W. Chung et al., 2022, arXiv:2210.11416) have gated feed-forward networks
and an output matrix of their own.

    wiring    encoder: Q, K and V from the source, each token sees all; decoder: Q, K and V from the target, a token
              sees itself and those before it; then Q from the target, K and V from the source
    position  a learned number for each distance is added to the scores; the layers of a stack share it
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import DecoderBlock, Embedding, EncoderBlock, Linear, Module, RMSNorm
from ..layers.attention import Cache, tokens_seen
from ..layers.module import expect_positive, parameter
from .published import ACTIVATIONS, EncoderDecoderModel, expect_setting


class RelativePositions(Module):
    """A number for each head and each distance from a query to a key, to be added to their score.

    Distances share buckets. The nearest have one each; beyond, a bucket holds those from own · (max_distance / own)^x
    on, with x in equal steps from 0 to 1 and as many distances ``own`` as there are shared buckets. With ``both_ways``
    half of all buckets are for keys after the query; else these count as the query itself, as nobody looks at them.
    ``weight`` is (num_buckets, num_heads), as published. C. Raffel et al. (2019), arXiv:1910.10683, section 2.1.

    Examples
    --------
    >>> positions = RelativePositions(num_heads=2, num_buckets=6, max_distance=12, both_ways=False)
    >>> positions(3, 5).shape
    (2, 3, 5)
    >>> positions.buckets(-mg.arange(14)).tolist()
    [0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, 5]
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        both_ways: bool = True,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        count = num_buckets // 2 if both_ways else num_buckets
        own = count // 2
        if own < 1 or max_distance <= own:
            raise ValueError(f"RelativePositions: {num_buckets} buckets do not fit max_distance={max_distance}")
        generator = generator or mg.random.default
        self.both_ways = both_ways
        self.weight = parameter(generator.normal((num_buckets, num_heads), std=0.02, dtype=dtype))
        ratio, steps = max_distance / own, count - own
        # The distance with which each bucket but the first begins; 1e-9, as a whole number may come out a little above.
        shared = [math.ceil(own * ratio ** (step / steps) - 1e-9) for step in range(1, steps)]
        self._begins = mg.asarray([*range(1, own + 1), *shared])

    def __call__(self, queries: int, keys: int) -> Tensor:
        """The numbers of the last ``queries`` of ``keys`` positions: (num_heads, queries, keys)."""
        device = self.weight.device
        i = mg.expand_dims(mg.arange(keys - queries, keys, device=device), axis=-1)
        buckets = self.buckets(mg.arange(keys, device=device) - i)
        numbers: Tensor = mg.permute_dims(F.embedding(buckets, self.weight), (2, 0, 1))
        return numbers

    def buckets(self, distances: Tensor) -> Tensor:
        """Which row of ``weight`` is for each of ``distances``, from a query to a key: integers of any shape."""
        far = mg.abs(distances) if self.both_ways else mg.maximum(-distances, 0)
        bucket: Tensor = mg.searchsorted(self._begins, far, side="right")
        if self.both_ways:
            bucket = bucket + mg.astype(distances > 0, bucket.dtype) * (self.weight.shape[0] // 2)
        return bucket


class T5(EncoderDecoderModel):
    """Predicts each target token from those before and the source. A target begins with the token of padding, 0.

    Parameters
    ----------
    vocab_size
        The number of different tokens.
    d_model, num_heads, num_layers, d_ff, d_head
        The small model unless given.
    num_decoder_layers
        Of the decoder, where that has its own number.
    activation, gated
        Of the feed-forward networks: ReLU, and tanh's GELU with a gate from T5 1.1 on.
    tied
        Whether the matrix that reads tokens also writes them; what it is given is then multiplied by 1/√d_model.
    num_buckets, max_distance
        Of `RelativePositions`.
    eps
        Of the normalisations.

    Examples
    --------
    >>> model = T5(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, d_head=3)
    >>> source, target = mg.asarray([[3, 4, 5, 6]]), mg.asarray([[0, 7, 8]])
    >>> model(source, target).shape
    (1, 3, 11)
    >>> model.generate(source, max_length=5, bos=0, eos=1).shape[0]
    1
    >>> from attention.layers import ShapesOnly
    >>> T5(32128, generator=ShapesOnly()).parameter_count()
    60506624
    """

    names: ClassVar = {
        "tokens": "shared",
        "source_positions": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "encoder.*.attention.query": "encoder.block.*.layer.0.SelfAttention.q",
        "encoder.*.attention.key": "encoder.block.*.layer.0.SelfAttention.k",
        "encoder.*.attention.value": "encoder.block.*.layer.0.SelfAttention.v",
        "encoder.*.attention.output": "encoder.block.*.layer.0.SelfAttention.o",
        "encoder.*.attention_residual.norm": "encoder.block.*.layer.0.layer_norm",
        "encoder.*.feed_forward.gate": "encoder.block.*.layer.1.DenseReluDense.wi_0",
        "encoder.*.feed_forward.up": "encoder.block.*.layer.1.DenseReluDense.wi",
        "encoder.*.feed_forward.down": "encoder.block.*.layer.1.DenseReluDense.wo",
        "encoder.*.feed_forward_residual.norm": "encoder.block.*.layer.1.layer_norm",
        "encoder_norm": "encoder.final_layer_norm",
        "target_positions": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "decoder.*.attention.query": "decoder.block.*.layer.0.SelfAttention.q",
        "decoder.*.attention.key": "decoder.block.*.layer.0.SelfAttention.k",
        "decoder.*.attention.value": "decoder.block.*.layer.0.SelfAttention.v",
        "decoder.*.attention.output": "decoder.block.*.layer.0.SelfAttention.o",
        "decoder.*.attention_residual.norm": "decoder.block.*.layer.0.layer_norm",
        "decoder.*.cross_attention.query": "decoder.block.*.layer.1.EncDecAttention.q",
        "decoder.*.cross_attention.key": "decoder.block.*.layer.1.EncDecAttention.k",
        "decoder.*.cross_attention.value": "decoder.block.*.layer.1.EncDecAttention.v",
        "decoder.*.cross_attention.output": "decoder.block.*.layer.1.EncDecAttention.o",
        "decoder.*.cross_attention_residual.norm": "decoder.block.*.layer.1.layer_norm",
        "decoder.*.feed_forward.gate": "decoder.block.*.layer.2.DenseReluDense.wi_0",
        "decoder.*.feed_forward.up": "decoder.block.*.layer.2.DenseReluDense.wi",
        "decoder.*.feed_forward.down": "decoder.block.*.layer.2.DenseReluDense.wo",
        "decoder.*.feed_forward_residual.norm": "decoder.block.*.layer.2.layer_norm",
        "decoder_norm": "decoder.final_layer_norm",
        "output": "lm_head",
    }

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        d_ff: int = 2048,
        d_head: int = 64,
        num_decoder_layers: int | None = None,
        activation: Callable[[Tensor], Tensor] = F.relu,
        gated: bool = False,
        tied: bool = True,
        num_buckets: int = 32,
        max_distance: int = 128,
        eps: float = 1e-6,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        expect_positive("T5", num_layers=num_layers, num_decoder_layers=num_decoder_layers)
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        normalization = partial(RMSNorm, eps=eps)
        self.max_length = sys.maxsize
        self.gated = gated
        self.tokens = Embedding(vocab_size, d_model, **common)
        self.source_positions = RelativePositions(num_heads, num_buckets, max_distance, **common)
        self.target_positions = RelativePositions(num_heads, num_buckets, max_distance, both_ways=False, **common)
        block: dict[str, Any] = {
            "d_ff": d_ff,
            "norm": "pre",
            "normalization": normalization,
            "activation": activation,
            "gated": gated,
            "bias": False,
            "d_head": d_head,
            "scale": 1.0,
            **common,
        }
        self.encoder = [EncoderBlock(d_model, num_heads, **block) for _ in range(num_layers)]
        self.encoder_norm = normalization(d_model, dtype=dtype)
        self.decoder = [DecoderBlock(d_model, num_heads, **block) for _ in range(num_decoder_layers)]
        self.decoder_norm = normalization(d_model, dtype=dtype)
        self.output = None if tied else Linear(d_model, vocab_size, bias=False, **common)
        # Early checkpoints have a table of positions for the cross-attention, which is not used.
        self.unused = (
            "*coder.embed_tokens.weight",
            "*.EncDecAttention.relative_attention_bias.weight",
            *["lm_head.weight"] * tied,
        )

    def encode(self, source: Tensor, source_mask: Any = None) -> Tensor:
        """What the decoder reads: (B, T_s, d_model) for source tokens of shape (B, T_s)."""
        x = self.tokens(source)
        positions = self.source_positions(x.shape[-2], x.shape[-2])
        for block in self.encoder:
            x = block(x, source_mask, attn_mask=positions)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Any = None,
        target_mask: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits for target tokens of shape (B, T), given what `encode` made of the source: (B, T, vocab_size)."""
        x = self.tokens(target)
        new = x.shape[-2]
        positions = self.target_positions(new, tokens_seen(cache, self.decoder[0].attention) + new)
        for block in self.decoder:
            x = block(x, memory, target_mask, source_mask, cache, attn_mask=positions)
        x = self.decoder_norm(x)
        if self.output is not None:
            return self.output(x)
        return F.linear(x / math.sqrt(x.shape[-1]), self.tokens.weight.T)

    def published_name(self, name: str) -> str:
        """The published name of our parameter ``name``."""
        published = super().published_name(name)
        return published.replace(".wi.", ".wi_1.") if self.gated else published

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """What has been saved with one matrix for both, though it may have two, has the one under its first name."""
        if self.output is None or "lm_head.weight" in state or "shared.weight" not in state:
            return state
        return {**state, "lm_head.weight": state["shared.weight"]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json``, of T5 or mT5, describes, with random parameters."""
        name = cls.__name__
        kind = expect_setting(name, config, "model_type", "t5", "mt5")
        feed_forward = expect_setting(name, config, "feed_forward_proj", "relu", "gated-gelu", "gated-silu")
        gated, _, activation = feed_forward.rpartition("-")
        # T5 1.1 and mT5 have two matrices. Settings that were written anew may call them tied, but not scaled.
        one = expect_setting(name, config, "tie_word_embeddings", True, False)
        scaled = expect_setting(name, config, "scale_decoder_outputs", True, False)
        tied = one and scaled and kind == "t5"
        return cls(
            config["vocab_size"],
            d_model=config["d_model"],
            num_heads=config["num_heads"],
            num_layers=config["num_layers"],
            d_ff=config["d_ff"],
            d_head=config["d_kv"],
            num_decoder_layers=config.get("num_decoder_layers"),
            activation=ACTIVATIONS["gelu_new" if activation == "gelu" else activation],
            gated=gated == "gated",
            tied=tied,
            num_buckets=config.get("relative_attention_num_buckets", 32),
            max_distance=config.get("relative_attention_max_distance", 128),
            eps=config.get("layer_norm_epsilon", 1e-6),
            dtype=dtype,
            generator=generator,
        )
