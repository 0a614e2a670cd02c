"""LLaVA: a LLaMA that reads images, put into its text as if their patches were words.

H. Liu, C. Li, Q. Wu and Y. J. Lee, "Visual instruction tuning" (2023), arXiv:2304.08485, section 4.1; H. Liu, C. Li,
Y. Li and Y. J. Lee, "Improved baselines with visual instruction tuning" (2023), arXiv:2310.03744, section 3.3, where
the projection has two layers.

    wiring    Q, K and V from text and images in one sequence; a token sees itself and those before it
    images    a ViT's last layer but one, projected to the width of a token
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import minigrad as mg
from minigrad import Tensor
from minigrad.random import Generator

from .. import functional as F
from ..layers import Linear
from ..layers.attention import Cache
from .llama import LLaMA
from .published import CausalModel, expect_setting
from .vit import ViT, with_flat_patches

# What a published config.json leaves out where it is LLaMA-7B's.
LLAMA_7B: Mapping[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32,
}  # fmt: skip

# Tensors were published under other names than those that the library has given them since.
RENAMED = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^(model\.)?vision_tower\.(vision_model\.)?", "model.vision_tower."),
    (r"^multi_modal_projector\.", "model.multi_modal_projector."),
)


class LLaVA(CausalModel):
    """Predicts each token from those before it, and from the images that stand between them.

    Parameters
    ----------
    vision
        What the images are read with.
    text
        What continues the text.
    image_token
        The token in whose place a vector of an image is put: as many of it for each image as there are vectors.
    layers
        Which of the states of ``vision`` are taken, side by side: 0 is what goes into its first block, -1 what comes
        out of the last.
    class_token
        Whether that of ``vision`` is taken, too, in front of the patches.
    bias
        Whether the two layers of the projection have one.

    Examples
    --------
    >>> vision = ViT(image_size=8, patch_size=4, d_model=12, num_heads=2, num_layers=2, d_ff=24)
    >>> text = LLaMA(11, d_model=8, num_heads=2, num_layers=1, d_ff=16, num_kv_heads=1, context_length=20)
    >>> model = LLaVA(vision, text, image_token=10)
    >>> ids, images = mg.asarray([[3, 10, 10, 10, 10, 5]]), mg.ones((1, 3, 8, 8))
    >>> model(ids, images=images).shape, model.generate(ids, max_new_tokens=5, images=images).shape
    ((1, 6, 11), (1, 11))
    >>> model.parameter_count() - vision.parameter_count() - text.parameter_count() == (12 + 1) * 8 + (8 + 1) * 8
    True
    """

    names: ClassVar = {
        **{f"vision.{ours}": name.replace("vision_model", "model.vision_tower") for ours, name in ViT.names.items()},
        **{f"text.{ours}": re.sub(r"^model\b", "model.language_model", name) for ours, name in LLaMA.names.items()},
        "project_1": "model.multi_modal_projector.linear_1",
        "project_2": "model.multi_modal_projector.linear_2",
    }

    def __init__(
        self,
        vision: ViT,
        text: LLaMA,
        image_token: int,
        layers: Sequence[int] = (-2,),
        class_token: bool = False,
        bias: bool = True,
        dtype: Any = "float32",
        generator: Generator | None = None,
    ) -> None:
        states = len(vision.blocks) + 1
        if not layers or not all(-states <= layer < states for layer in layers):
            raise ValueError(f"LLaVA: expected layers between {-states} and {states - 1}, got {list(layers)}")
        if not isinstance(image_token, int) or not 0 <= image_token < text.tokens.weight.shape[0]:
            raise ValueError(f"LLaVA: expected image_token to be one of the vocabulary, got {image_token!r}")
        self.vision, self.text = vision, text
        self.context_length = text.context_length
        self.image_token = image_token
        self.layers = [layer % states for layer in layers]
        self.class_token = class_token
        d_vision, d_model = vision.class_token.shape[0], text.tokens.weight.shape[1]
        self.project_1 = Linear(len(layers) * d_vision, d_model, bias=bias, dtype=dtype, generator=generator)
        self.project_2 = Linear(d_model, d_model, bias=bias, dtype=dtype, generator=generator)
        self.unused = ("*.position_ids", *text.unused)

    def __call__(
        self,
        ids: Tensor,
        mask: Any = None,
        cache: Cache | None = None,
        logits_to_keep: int | None = None,
        images: Tensor | None = None,
    ) -> Tensor:
        """Logits of the token that follows each of ``ids``: see `CausalModel`.

        ``images`` of shape (N, channels, image_size, image_size) are those whose places are in ``ids``, in the order of
        the rows, and in a row from left to right. Raises ValueError where these are more or fewer places than the
        images have vectors: that counts the places, and so waits for their values. The rest looks at none.
        """
        x = self.text.tokens(ids)
        if images is not None:
            x = self._placed(x, ids == self.image_token, self.features(images))
        return self.text.decode(x, mask, cache, logits_to_keep)

    def features(self, images: Tensor) -> Tensor:
        """The vectors of the images, as wide as a token: (N, patches, d_model), with the class token's if it counts."""
        states = self.vision.states(images, max(self.layers) + 1)
        x = mg.concat([states[layer][:, 0 if self.class_token else 1 :, :] for layer in self.layers], axis=-1)
        return self.project_2(F.gelu(self.project_1(x)))

    def _placed(self, x: Tensor, places: Tensor, features: Tensor) -> Tensor:
        """x of shape (B, T, d_model) with the vectors of ``features`` one after the other where ``places`` is True."""
        vectors = mg.reshape(features, (-1, features.shape[-1]))
        count = int(mg.sum(mg.astype(places, "int64")))
        if count != vectors.shape[0]:
            raise ValueError(
                f"LLaVA: expected {vectors.shape[0]} tokens {self.image_token}, {features.shape[1]} for each of "
                f"{features.shape[0]} images, got {count}"
            )
        before = mg.cumulative_sum(mg.astype(mg.reshape(places, (-1,)), "int64")) - 1
        which = mg.reshape(mg.clip(before, 0), places.shape)  # of no meaning outside of places, but a row
        placed: Tensor = mg.where(mg.expand_dims(places, axis=-1), F.embedding(which, vectors), x)
        return placed

    def _apart(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        renamed = {}
        for name, value in state.items():
            for old, new in RENAMED:
                name = re.sub(old, new, name)
            renamed[name] = value
        return with_flat_patches(renamed)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: Any = "float32", generator: Generator | None = None) -> Self:
        """The model that a published ``config.json`` describes, with random parameters."""
        name = cls.__name__
        text, vision = config["text_config"], config["vision_config"]
        expect_setting(name, text, "model_type", "llama")
        expect_setting(name, vision, "model_type", "clip_vision_model")
        expect_setting(name, config, "projector_hidden_act", "gelu")
        taken = expect_setting(name, config, "vision_feature_select_strategy", "default", "full")
        layers = config.get("vision_feature_layer", -2)
        tied = True in [expect_setting(name, one, "tie_word_embeddings", False, True) for one in (config, text)]
        text = {**LLAMA_7B, **text, "tie_word_embeddings": tied}
        return cls(
            ViT.from_config({**vision, "architectures": None}, dtype, generator),  # its projection is not used
            LLaMA.from_config(text, dtype, generator),
            image_token=config.get("image_token_index", 32000),
            layers=[layers] if isinstance(layers, int) else layers,
            class_token=taken == "full",
            bias=expect_setting(name, config, "multimodal_projector_bias", True, False),
            dtype=dtype,
            generator=generator,
        )
