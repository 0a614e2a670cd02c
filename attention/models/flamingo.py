"""Flamingo: a LLaMA that looks at images through gated cross-attention between its blocks; IDEFICS is an open one.

J.-B. Alayrac et al., "Flamingo: a visual language model for few-shot learning" (2022), arXiv:2204.14198, section 2;
H. Laurençon et al., "OBELICS: an open web-scale filtered dataset of interleaved image-text documents" (2023),
arXiv:2306.16527, whose IDEFICS are the weights that are published.

    wiring    Q, K and V of a block from the text; between blocks Q from the text, K and V from the images
    gates     tanh(alpha) times what the images add: from 0 on, so that training begins at the model of text alone
    resampler as many vectors for any image: Q from learned latents, K and V from the image and the latents
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import dtype_name
from minigrad.random import Generator

from .. import functional as F
from ..layers import Embedding, FeedForward, GatedFeedForward, LayerNorm, Linear, Module, MultiHeadAttention, RMSNorm
from ..layers.attention import Cache
from ..layers.module import expect_positive, parameter
from .llama import LLaMA
from .llava import LLAMA_7B
from .published import CausalModel, expect_setting, last_positions
from .vit import ViT, with_flat_patches


class PerceiverResampler(Module):
    """Vectors of an image, (..., S, d_model), made ``num_latents`` others: (..., num_latents, d_model).

    A. Jaegle et al., "Perceiver: general perception with iterative attention" (2021), arXiv:2103.03206; here as in
    Flamingo, section 2.1: keys and values are of the image and of the latents together.

    Examples
    --------
    >>> resample = PerceiverResampler(8, num_latents=3, num_layers=1, num_heads=2, d_head=4)
    >>> resample(mg.ones((2, 5, 8), dtype="float32")).shape
    (2, 3, 8)
    """

    def __init__(
        self,
        d_model: int,
        num_latents: int = 64,
        num_layers: int = 6,
        num_heads: int = 16,
        d_head: int = 96,
        qk_norm: bool = False,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("PerceiverResampler", num_latents=num_latents, num_layers=num_layers)
        common: dict[str, Any] = {"bias": False, "dtype": dtype, "generator": generator}
        heads: dict[str, Any] = {"d_head": d_head, "qk_norm": LayerNorm if qk_norm else None, **common}
        self.latents = parameter((generator or mg.random.default).normal((num_latents, d_model), dtype=dtype))
        self.blocks: list[dict[str, Any]] = [
            {
                "image_norm": LayerNorm(d_model, dtype=dtype),
                "latents_norm": LayerNorm(d_model, dtype=dtype),
                "attention": MultiHeadAttention(d_model, num_heads, **heads),
                "norm": LayerNorm(d_model, dtype=dtype),
                "feed_forward": FeedForward(d_model, **common),
            }
            for _ in range(num_layers)
        ]
        self.norm = LayerNorm(d_model, dtype=dtype)

    def __call__(self, image: Tensor) -> Tensor:
        """What the latents have gathered. Raises ValueError for vectors of another width."""
        x: Tensor = mg.broadcast_to(self.latents, (*image.shape[:-2], *self.latents.shape))
        for block in self.blocks:
            latents = block["latents_norm"](x)
            x = x + block["attention"](latents, mg.concat([block["image_norm"](image), latents], axis=-2))
            x = x + block["feed_forward"](block["norm"](x))
        gathered: Tensor = self.norm(x)
        return gathered


class GatedCrossAttention(Module):
    """What the images add to each token: Flamingo, section 2.2 and figure 4.

        y = x + tanh(alpha_attention) · attention(norm(x), images)
        z = y + tanh(alpha_feed_forward) · FFN(norm(y))

    ``alpha`` makes the two parameters that are so called, of a given shape: (1,), or (1, 1, d_model) with ``vectors``.

    Examples
    --------
    >>> look = GatedCrossAttention(8, num_heads=2, d_source=6, d_ff=16)
    >>> x, images = mg.ones((1, 5, 8), dtype="float32"), mg.ones((1, 7, 6), dtype="float32")
    >>> bool(mg.all(look(x, images) == x))  # both gates are closed at first
    True
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_source: int,
        d_ff: int,
        eps: float = 1e-6,
        qk_norm: bool = False,
        vectors: bool = False,
        alpha: Callable[..., Tensor] = mg.zeros,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        common: dict[str, Any] = {"bias": False, "dtype": dtype, "generator": generator}
        normalization = partial(RMSNorm, eps=eps)
        self.attention_norm = normalization(d_model, dtype=dtype)
        self.attention = MultiHeadAttention(
            d_model, num_heads, d_source, qk_norm=normalization if qk_norm else None, **common
        )
        self.feed_forward_norm = normalization(d_model, dtype=dtype)
        self.feed_forward = GatedFeedForward(d_model, d_ff, **common)
        shape = (1, 1, d_model) if vectors else (1,)
        self.alpha_attention = parameter(alpha(shape, dtype=dtype))
        self.alpha_feed_forward = parameter(alpha(shape, dtype=dtype))

    def __call__(
        self, x: Tensor, images: Tensor | None, attn_mask: Any = None, mask: Any = None, cache: Cache | None = None
    ) -> Tensor:
        """z for x of shape (B, T, d_model) and images (B, S, d_source). Without images the network alone adds to x.

        For the masks and the cache see `MultiHeadAttention`. A token that may look at nothing gets nothing.
        """
        if images is not None:
            y = self.attention(self.attention_norm(x), images, mask=mask, attn_mask=attn_mask, cache=cache)
            x = x + mg.tanh(self.alpha_attention) * y
        return x + mg.tanh(self.alpha_feed_forward) * self.feed_forward(self.feed_forward_norm(x))


class Flamingo(CausalModel):
    """Predicts each token from those before it, and from the images that it may look at.

    Parameters
    ----------
    vision
        What the images are read with.
    text
        What continues the text.
    every
        How many blocks of ``text`` are between two looks at the images; the first look is in front of the first block.
    num_heads, d_ff, eps, qk_norm, vectors, alpha
        Of `GatedCrossAttention`.
    resampler
        What makes few vectors of an image. None: the text looks at all of them.
    more_tokens
        The number of tokens beyond those of ``text``, with embeddings and a projection of their own: they can be
        trained where those of ``text`` are frozen.

    Examples
    --------
    >>> vision = ViT(image_size=8, patch_size=4, d_model=12, num_heads=2, num_layers=2, d_ff=24)
    >>> text = LLaMA(10, d_model=8, num_heads=2, num_layers=2, d_ff=16, num_kv_heads=2, context_length=20)
    >>> model = Flamingo(vision, text, every=2, num_heads=2, d_ff=16, more_tokens=1)
    >>> ids, images = mg.asarray([[10, 3, 4, 10, 5]]), mg.ones((1, 2, 3, 8, 8))
    >>> looks = last_image(ids, image_token=10, count=2)
    >>> model(ids, images=images, image_mask=looks).shape
    (1, 5, 11)
    >>> model.generate(ids, max_new_tokens=5, images=images, image_mask=looks).shape
    (1, 10)
    >>> from attention.layers import ShapesOnly
    >>> settings = {"cross_layer_interval": 4, "freeze_text_layers": False, "freeze_vision_layers": False}
    >>> Flamingo.from_config(settings, generator=ShapesOnly()).parameter_count()
    8467572240
    """

    names: ClassVar = {
        **{f"vision.{ours}": name.replace("vision_model", "model.vision_model") for ours, name in ViT.names.items()},
        **{f"text.{ours}": name for ours, name in LLaMA.names.items()},
        "more_tokens": "model.embed_tokens.additional_embedding",
        "more_output": "lm_head.additional_fc",
        "resampler.latents": "model.perceiver_resampler.latents",
        "resampler.blocks.*.image_norm": "model.perceiver_resampler.blocks.*.0.context_layer_norm",
        "resampler.blocks.*.latents_norm": "model.perceiver_resampler.blocks.*.0.latents_layer_norm",
        "resampler.blocks.*.attention.query_norm": "model.perceiver_resampler.blocks.*.0.q_layer_norm",
        "resampler.blocks.*.attention.key_norm": "model.perceiver_resampler.blocks.*.0.k_layer_norm",
        "resampler.blocks.*.attention.query": "model.perceiver_resampler.blocks.*.0.q_proj",
        "resampler.blocks.*.attention.key": "model.perceiver_resampler.blocks.*.0.k_proj",
        "resampler.blocks.*.attention.value": "model.perceiver_resampler.blocks.*.0.v_proj",
        "resampler.blocks.*.attention.output": "model.perceiver_resampler.blocks.*.0.output_proj",
        "resampler.blocks.*.norm": "model.perceiver_resampler.blocks.*.1.ln",
        "resampler.blocks.*.feed_forward.up": "model.perceiver_resampler.blocks.*.1.fc",
        "resampler.blocks.*.feed_forward.down": "model.perceiver_resampler.blocks.*.1.c_proj",
        "resampler.norm": "model.perceiver_resampler.layer_norm",
        "looks.*.attention_norm": "model.gated_cross_attn_layers.*.input_layernorm",
        "looks.*.attention.query_norm": "model.gated_cross_attn_layers.*.cross_attn.q_layer_norm",
        "looks.*.attention.key_norm": "model.gated_cross_attn_layers.*.cross_attn.k_layer_norm",
        "looks.*.attention.query": "model.gated_cross_attn_layers.*.cross_attn.q_proj",
        "looks.*.attention.key": "model.gated_cross_attn_layers.*.cross_attn.k_proj",
        "looks.*.attention.value": "model.gated_cross_attn_layers.*.cross_attn.v_proj",
        "looks.*.attention.output": "model.gated_cross_attn_layers.*.cross_attn.o_proj",
        "looks.*.alpha_attention": "model.gated_cross_attn_layers.*.alpha_cross_attn",
        "looks.*.feed_forward_norm": "model.gated_cross_attn_layers.*.post_attention_layernorm",
        "looks.*.feed_forward.gate": "model.gated_cross_attn_layers.*.mlp.gate_proj",
        "looks.*.feed_forward.up": "model.gated_cross_attn_layers.*.mlp.up_proj",
        "looks.*.feed_forward.down": "model.gated_cross_attn_layers.*.mlp.down_proj",
        "looks.*.alpha_feed_forward": "model.gated_cross_attn_layers.*.alpha_dense",
    }
    prefix = "model."

    def __init__(
        self,
        vision: ViT,
        text: LLaMA,
        every: int,
        num_heads: int,
        d_ff: int,
        resampler: PerceiverResampler | None = None,
        more_tokens: int = 0,
        eps: float = 1e-6,
        qk_norm: bool = False,
        vectors: bool = False,
        alpha: Callable[..., Tensor] = mg.zeros,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("Flamingo", every=every)
        if len(text.blocks) % every:
            raise ValueError(f"Flamingo: every={every} does not divide the {len(text.blocks)} blocks of the text")
        d_model, d_vision = text.tokens.weight.shape[1], vision.class_token.shape[0]
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        look: dict[str, Any] = {"eps": eps, "qk_norm": qk_norm, "vectors": vectors, "alpha": alpha, **common}
        self.context_length = text.context_length
        self.every = every
        self.vision, self.resampler, self.text = vision, resampler, text
        self.looks = [
            GatedCrossAttention(d_model, num_heads, d_vision, d_ff, **look) for _ in range(len(text.blocks) // every)
        ]
        self.more_tokens = Embedding(more_tokens, d_model, std=0.02, **common) if more_tokens else None
        tied = text.output is None
        self.more_output = None if tied or not more_tokens else Linear(d_model, more_tokens, bias=False, **common)
        self.unused = ("*.position_ids", *text.unused, *["lm_head.additional_fc.weight"] * tied)

    def __call__(
        self,
        ids: Tensor,
        mask: Any = None,
        cache: Cache | None = None,
        logits_to_keep: int | None = None,
        images: Tensor | None = None,
        image_mask: Any = None,
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: see `CausalModel`.

        ``images`` are (B, N, channels, image_size, image_size), N for each row. ``image_mask`` of shape (B, T, N),
        boolean, says which of them each token may look at: all unless given; see `last_image`. With a ``cache`` both
        come with the first call, and later tokens may look at what the last one of that call may.
        """
        known = None if cache is None else cache.get(self)
        if known is not None and images is not None:
            raise ValueError("Flamingo: expected images with the first call alone, the cache has earlier ones")
        features, looks = known or (None, None)
        if images is not None:
            features, looks = self.features(images), self._looks(ids, images, image_mask)
            if cache is not None:
                cache[self] = features, looks[:, :, -1:, :]
        x = self._embedded(ids)
        for i, block in enumerate(self.text.blocks):
            if i % self.every == 0:
                x = self.looks[i // self.every](x, features, looks, mask, cache)
            x = block(x, mask, is_causal=True, cache=cache)
        x = self.text.norm(last_positions(x, logits_to_keep))
        logits = _logits(x, self.text.tokens, self.text.output)
        if self.more_tokens is None:
            return logits
        both: Tensor = mg.concat([logits, _logits(x, self.more_tokens, self.more_output)], axis=-1)
        return both

    def features(self, images: Tensor) -> Tensor:
        """What the text looks at, for images (B, N, channels, size, size): (B, N · vectors of an image, d_vision)."""
        if images.ndim != 5:
            raise ValueError(f"Flamingo: expected images of shape (B, N, channels, size, size), got {images.shape}")
        x = self.vision.states(mg.reshape(images, (-1, *images.shape[2:])))[-1]
        x = x if self.resampler is None else self.resampler(x)
        features: Tensor = mg.reshape(x, (images.shape[0], -1, x.shape[-1]))
        return features

    def _looks(self, ids: Tensor, images: Tensor, image_mask: Any) -> Tensor:
        """Which of the `features` each token may look at: (B, 1, T, N · vectors), for all heads the same."""
        (B, T), N = ids.shape, images.shape[1]
        mask = mg.ones((B, T, N), dtype="bool", device=ids.device) if image_mask is None else mg.asarray(image_mask)
        if mask.shape != (B, T, N) or images.shape[0] != B or dtype_name(mask.dtype) != "bool":
            raise ValueError(
                f"Flamingo: expected images for {B} rows and a boolean image_mask of shape {(B, T, N)}, got images for "
                f"{images.shape[0]} and {dtype_name(mask.dtype)} {mask.shape}"
            )
        vectors = (self.vision.positions.weight if self.resampler is None else self.resampler.latents).shape[0]
        each = mg.broadcast_to(mg.expand_dims(mask, axis=-1), (B, T, N, vectors))
        looks: Tensor = mg.reshape(each, (B, 1, T, N * vectors))
        return looks

    def _embedded(self, ids: Tensor) -> Tensor:
        if self.more_tokens is None:
            return self.text.tokens(ids)
        n = self.text.tokens.weight.shape[0]
        more = self.more_tokens(mg.clip(ids - n, 0))
        embedded: Tensor = mg.where(mg.expand_dims(ids < n, axis=-1), self.text.tokens(mg.clip(ids, None, n - 1)), more)
        return embedded

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_flat_patches(state)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` of IDEFICS describes, with random parameters.

        What the config says is frozen, as the text's and the images' own models are unless it says otherwise, is.
        """
        name = cls.__name__
        expect_setting(name, config, "model_type", "idefics")
        expect_setting(name, config, "dropout", 0.0)
        start = expect_setting(name, config, "alpha_initializer", "zeros", "ones", "normal", "gaussian", "random")
        kind = expect_setting(name, config, "alpha_type", "float", "vector")
        for part in ("text", "vision"):
            expect_setting(name, config, f"freeze_{part}_module_exceptions", [], ())
        random = partial((generator or mg.random.default).normal, std=config.get("alphas_initializer_range", 0.0))
        config = {**LLAMA_7B, **config}
        vision = {
            "image_size": 224, "patch_size": 14, "num_hidden_layers": 32, "num_attention_heads": 16,
            "intermediate_size": 5120, "hidden_act": "gelu", **(config.get("vision_config") or {}),
            "model_type": "idefics_vision", "architectures": None,
        }  # fmt: skip
        made = ViT.from_config(vision, dtype, generator)
        resampler = None
        if expect_setting(name, config, "use_resampler", False, True):
            perceiver = config.get("perceiver_config") or {}
            resampler = PerceiverResampler(
                made.class_token.shape[0],
                num_latents=perceiver.get("resampler_n_latents", 64),
                num_layers=perceiver.get("resampler_depth", 6),
                num_heads=perceiver.get("resampler_n_heads", 16),
                d_head=perceiver.get("resampler_head_dim", 96),
                qk_norm=expect_setting(name, perceiver, "qk_layer_norms_perceiver", False, True),
                dtype=dtype,
                generator=generator,
            )
        model = cls(
            made,
            LLaMA.from_config(config, dtype, generator),
            every=config.get("cross_layer_interval", 1),
            num_heads=config["num_attention_heads"],
            d_ff=config["intermediate_size"],
            resampler=resampler,
            more_tokens=config.get("additional_vocab_size", 0),
            eps=config.get("rms_norm_eps", 1e-6),
            qk_norm=expect_setting(name, config, "qk_layer_norms", False, True),
            vectors=kind == "vector",
            alpha={"zeros": mg.zeros, "ones": mg.ones}.get(start, random),
            dtype=dtype,
            generator=generator,
        )
        frozen: dict[str, list[Module]] = {
            "freeze_text_layers": [*model.text.blocks, model.text.norm, model.text.tokens],
            "freeze_vision_layers": [model.vision],
            "freeze_lm_head": [model.text.output or model.text.tokens],
        }
        for setting, modules in frozen.items():
            usual = setting != "freeze_lm_head"
            if expect_setting(name, config, setting, usual, not usual):
                for p in [p for module in modules for p in module.parameters()]:
                    p.requires_grad = False
        return model


def last_image(ids: Tensor, image_token: int, count: int) -> Tensor:
    """Which of ``count`` images each token may look at: (B, T, count), for ids (B, T) with a token for each image.

    It is the last one that has come, from its own token on, and none before the first: Flamingo, section 2.3.

    >>> mg.astype(last_image(mg.asarray([[5, 9, 6, 9]]), image_token=9, count=2), "int64").tolist()
    [[[0, 0], [1, 0], [1, 0], [0, 1]]]
    """
    come = mg.cumulative_sum(mg.astype(ids == image_token, "int64"), axis=1)
    looks: Tensor = mg.expand_dims(come, axis=-1) == mg.arange(1, count + 1, device=ids.device)
    return looks


def _logits(x: Tensor, tokens: Embedding, output: Linear | None) -> Tensor:
    return F.linear(x, tokens.weight.T) if output is None else output(x)
