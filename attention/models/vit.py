"""ViT as in CLIP: a Transformer encoder that reads an image as a sequence of patches.

A. Dosovitskiy et al., "An image is worth 16x16 words: Transformers for image recognition at scale" (2020),
arXiv:2010.11929; A. Radford et al., "Learning transferable visual models from natural language supervision" (2021),
arXiv:2103.00020, whose encoder has one more normalisation, in front of the first block.

    wiring    Q, K and V from the patches themselves and a class token; each sees all
    position  a learned vector for each patch, and for the class token
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import Array, namespace_of
from minigrad.random import Generator

from .. import functional as F
from ..layers import EncoderBlock, LayerNorm, LearnedPositions, Linear
from ..layers.module import expect_positive, parameter
from .published import ACTIVATIONS, PublishedModel, expect_setting


def quick_gelu(x: Tensor) -> Tensor:
    """x σ(1.702 x), near to gelu: D. Hendrycks and K. Gimpel (2016), arXiv:1606.08415, section 2.

    >>> quick_gelu(mg.asarray([-50.0, 0.0, 50.0])).tolist()
    [..., 0.0, 50.0]
    """
    gated: Tensor = x * F.sigmoid(1.702 * x)
    return gated


class ViT(PublishedModel):
    """Makes of an image what is in it, as one vector, or as one for each patch.

    Parameters
    ----------
    image_size, patch_size
        The height and width of an image, and of a patch, in pixels. What is left beside the last whole patch is not
        seen.
    d_model, num_heads, num_layers, d_ff
        CLIP's ViT-B/32 unless given.
    d_out
        The width of the image's vector, where it is projected. None: d_model.
    channels
        The numbers for each pixel: red, green and blue.
    activation, eps
        Of the feed-forward networks, and of the normalisations.

    Examples
    --------
    >>> model = ViT(image_size=8, patch_size=4, d_model=12, num_heads=2, num_layers=1, d_ff=24)
    >>> images = mg.ones((5, 3, 8, 8))
    >>> model(images).shape, model.states(images)[-1].shape
    ((5, 12), (5, 5, 12))
    >>> from attention.layers import ShapesOnly
    >>> ViT(generator=ShapesOnly()).parameter_count()
    87456000
    """

    names: ClassVar = {
        "class_token": "vision_model.embeddings.class_embedding",
        "patches": "vision_model.embeddings.patch_embedding",
        "positions": "vision_model.embeddings.position_embedding",
        "enter": "vision_model.pre_layrnorm",  # published so
        "blocks.*.attention.query": "vision_model.encoder.layers.*.self_attn.q_proj",
        "blocks.*.attention.key": "vision_model.encoder.layers.*.self_attn.k_proj",
        "blocks.*.attention.value": "vision_model.encoder.layers.*.self_attn.v_proj",
        "blocks.*.attention.output": "vision_model.encoder.layers.*.self_attn.out_proj",
        "blocks.*.attention_residual.norm": "vision_model.encoder.layers.*.layer_norm1",
        "blocks.*.feed_forward.up": "vision_model.encoder.layers.*.mlp.fc1",
        "blocks.*.feed_forward.down": "vision_model.encoder.layers.*.mlp.fc2",
        "blocks.*.feed_forward_residual.norm": "vision_model.encoder.layers.*.layer_norm2",
        "norm": "vision_model.post_layernorm",
        "output": "visual_projection",
    }
    prefix = "vision_model."
    # CLIP is published as a whole, with its encoder of texts.
    unused: Sequence[str] = ("*.position_ids", "text_model.*", "text_projection.weight", "logit_scale")

    def __init__(
        self,
        image_size: int = 224,
        patch_size: int = 32,
        d_model: int = 768,
        num_heads: int = 12,
        num_layers: int = 12,
        d_ff: int = 3072,
        d_out: int | None = None,
        channels: int = 3,
        activation: Callable[[Tensor], Tensor] = quick_gelu,
        eps: float = 1e-5,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        expect_positive("ViT", image_size=image_size, patch_size=patch_size, num_layers=num_layers, channels=channels)
        expect_positive("ViT", patches=image_size // patch_size)
        self.image_size, self.patch_size, self.channels = image_size, patch_size, channels
        common: dict[str, Any] = {"dtype": dtype, "generator": generator}
        normalization = partial(LayerNorm, eps=eps)
        random = generator or mg.random.default
        self.class_token = parameter(random.normal((d_model,), std=d_model**-0.5, dtype=dtype))
        self.patches = Linear(channels * patch_size**2, d_model, bias=False, **common)
        self.positions = LearnedPositions((image_size // patch_size) ** 2 + 1, d_model, **common)
        self.enter = normalization(d_model, dtype=dtype)
        block: dict[str, Any] = {"activation": activation, "normalization": normalization, **common}
        self.blocks = [EncoderBlock(d_model, num_heads, d_ff, norm="pre", **block) for _ in range(num_layers)]
        self.norm = normalization(d_model, dtype=dtype)
        self.output = None if d_out is None else Linear(d_model, d_out, bias=False, **common)
        if d_out is None:
            self.unused = (*type(self).unused, "visual_projection.weight")

    def __call__(self, images: Tensor) -> Tensor:
        """A vector for each image, (B, d_model) or (B, d_out): what the class token has gathered.

        ``images`` is (B, channels, image_size, image_size), of any real dtype. Raises ValueError for another shape.
        """
        x = self.norm(self.states(images)[-1][:, 0, :])
        return x if self.output is None else self.output(x)

    def states(self, images: Tensor, count: int | None = None) -> list[Tensor]:
        """What goes into the first block, and what comes out of each: (B, 1 + patches, d_model), class token first.

        ``count``, from 1 to num_layers + 1, is the number of these that are wanted, from the first on.
        """
        B, d = images.shape[0] if images.ndim == 4 else 0, self.class_token.shape[0]
        patches = self.patches(patches_of(self._expected(images), self.patch_size))
        x = mg.concat([mg.broadcast_to(self.class_token, (B, 1, d)), patches], axis=1)
        states = [self.enter(self.positions(x))]
        for block in self.blocks[: None if count is None else count - 1]:
            states.append(block(states[-1]))
        return states

    def _expected(self, images: Tensor) -> Tensor:
        shape = (self.channels, self.image_size, self.image_size)
        if images.ndim != 4 or images.shape[1:] != shape:
            raise ValueError(f"ViT: expected images of shape (B, {', '.join(map(str, shape))}), got {images.shape}")
        typed: Tensor = mg.astype(images, self.patches.weight.dtype, copy=False)
        return typed

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_flat_patches(state)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, of CLIP or of its vision encoder alone.

        Its ``architectures`` say whether there is a projection: CLIPModel and CLIPVisionModelWithProjection have one.
        """
        name = cls.__name__
        whole = config
        config = {**config, **config.get("vision_config", {})}
        expect_setting(name, config, "model_type", "clip_vision_model", "clip", "idefics_vision")
        expect_setting(name, config, "attention_dropout", 0.0)
        projected = {"CLIPModel", "CLIPVisionModelWithProjection"} & set(whole.get("architectures") or [])
        activations = {"quick_gelu": quick_gelu, **ACTIVATIONS}
        # Those of CLIP are left out where they are the ViT-B/32's.
        return cls(
            config.get("image_size", 224),
            config.get("patch_size", 32),
            d_model=config.get("hidden_size", config.get("embed_dim", 768)),
            num_heads=config.get("num_attention_heads", 12),
            num_layers=config.get("num_hidden_layers", 12),
            d_ff=config.get("intermediate_size", 3072),
            d_out=whole.get("projection_dim", 512) if projected else None,
            channels=config.get("num_channels", 3),
            activation=activations[expect_setting(name, config, "hidden_act", *activations)],
            eps=config.get("layer_norm_eps", 1e-5),
            dtype=dtype,
            generator=generator,
        )


def patches_of(images: Tensor, size: int) -> Tensor:
    """Images (B, C, H, W) as sequences of their patches, row by row: (B, ⌊H/size⌋ · ⌊W/size⌋, C · size²).

    A convolution whose windows do not overlap is then one product.

    >>> patches_of(mg.reshape(mg.arange(8), (1, 1, 2, 4)), 2).tolist()
    [[[0, 1, 4, 5], [2, 3, 6, 7]]]
    """
    B, C, rows, columns = *images.shape[:2], images.shape[2] // size, images.shape[3] // size
    x = mg.reshape(images[:, :, : rows * size, : columns * size], (B, C, rows, size, columns, size))
    x = mg.permute_dims(x, (0, 2, 4, 1, 3, 5))
    patches: Tensor = mg.reshape(x, (B, rows * columns, C * size * size))
    return patches


def with_flat_patches(state: Mapping[str, Any]) -> dict[str, Any]:
    """Published tensors with the patches' convolution, (d_model, C, size, size), as a matrix (d_model, C · size²).

    >>> with_flat_patches({"patch_embedding.weight": mg.zeros((8, 3, 4, 4))})["patch_embedding.weight"].shape
    (8, 48)
    """
    return {name: _flat(x) if name.endswith("patch_embedding.weight") else x for name, x in state.items()}


def _flat(kernel: Array) -> Any:
    if len(kernel.shape) != 4:
        return kernel
    shape = (kernel.shape[0], kernel.shape[1] * kernel.shape[2] * kernel.shape[3])
    return mg.reshape(kernel, shape) if isinstance(kernel, Tensor) else namespace_of(kernel).reshape(kernel, shape)
