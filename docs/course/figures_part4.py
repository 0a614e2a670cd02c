"""The figure of chapter 12."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import minigrad as mg
from attention.layers import Module, attention_weights
from attention.models import BERT, GPT, RETRO, T5, Flamingo, LLaMA, LLaVA, Mistral, ViT, Whisper
from attention.models.flamingo import last_image

GREY = "#808080"
SIZE: dict[str, Any] = {"d_model": 8, "num_heads": 2, "num_layers": 2}


def _looks(model: Module, name: str, *inputs: Any, **options: Any) -> Any:
    """The weights of the first head of the layer ``name``, where larger parameters make larger differences."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data = mg.random.normal(parameter.shape, std=0.6, dtype="float32").data
    with model.evaluating(), attention_weights(model) as weights:
        model(*inputs, **options)
    return weights[name][0].numpy()[..., 0, :, :]


def wirings() -> Figure:
    """Where tiny models of eight architectures look; what is never looked at is left blank."""
    mg.random.seed(1)
    ids = mg.asarray([[3, 4, 5, 6, 7, 8, 9, 10]])
    image = mg.random.normal((1, 3, 8, 8))
    vit = ViT(image_size=8, patch_size=4, d_model=8, num_heads=2, num_layers=2, d_ff=16)
    llama: dict[str, Any] = {**SIZE, "d_ff": 16, "num_kv_heads": 2, "context_length": 20}
    drawn: list[tuple[str, Any, list[str], list[str]]] = []

    def add(title: str, weights: Any, rows: Any, columns: Any) -> None:
        drawn.append((title, weights, list(rows), list(columns)))

    add("BERT: all", _looks(BERT(12, **SIZE, d_ff=16), "blocks.0.attention", ids)[0], "abcdefgh", "abcdefgh")
    add("GPT: causal", _looks(GPT(12, **SIZE), "blocks.0.attention", ids)[0], "abcdefgh", "abcdefgh")
    mistral = Mistral(12, **llama, window=3)
    add("Mistral: a window of 3", _looks(mistral, "blocks.0.attention", ids)[0], "abcdefgh", "abcdefgh")

    t5 = T5(12, **SIZE, d_ff=16, d_head=4)
    _looks(t5, "encoder.0.attention", ids, ids)
    t5.source_positions.weight.data = mg.random.normal((32, 2), std=1.2, dtype="float32").data
    t5.encoder[0].attention.query.weight.data = mg.zeros((8, 8), dtype="float32").data  # the bias alone
    with attention_weights(t5) as recorded:
        t5(ids, ids)
    add("T5: a bias by distance", recorded["encoder.0.attention"][0].numpy()[0, 0], "abcdefgh", "abcdefgh")

    whisper = Whisper(12, **SIZE, num_mels=5, source_length=10, max_length=9)
    cross = _looks(whisper, "decoder.0.cross_attention", mg.random.normal((1, 5, 20)), ids[:, :6])
    add("Whisper: text to sound", cross[0], "abcdef", "0123456789")

    words = mg.asarray([[3, 4, 11, 11, 11, 11, 5, 6]])
    llava = LLaVA(vit, LLaMA(12, **llama), image_token=11)
    labels = ["a", "b", "□", "□", "□", "□", "c", "d"]
    add(
        "LLaVA: patches □ in the text", _looks(llava, "text.blocks.0.attention", words, images=image)[0], labels, labels
    )

    words = mg.asarray([[3, 11, 5, 6, 11, 7, 8]])
    flamingo = Flamingo(vit, LLaMA(12, **llama), every=2, num_heads=2, d_ff=16)
    mask = last_image(words, image_token=11, count=2)
    seen = _looks(flamingo, "looks.0.attention", words, images=mg.random.normal((1, 2, 3, 8, 8)), image_mask=mask)
    add("Flamingo: text to last image", seen[0], ["a", "□", "b", "c", "■", "d", "e"], "□" * 5 + "■" * 5)

    retro = RETRO(12, chunk=2, **SIZE, d_head=4, d_ff=16, reading=[1], d_encoder=6, neighbour_length=4)
    neighbours = mg.asarray([[[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]], [[9, 8, 7]]]])
    chunks = _looks(retro, "blocks.1.cross_attention", ids, neighbours=neighbours)[0]  # (chunks, 2, 3)
    whole = np.zeros((8, 12))
    for u, weights in enumerate(chunks):  # chunk u is read by tokens 2u + 1 and 2u + 2
        for n, row in enumerate(weights):
            if 2 * u + 1 + n < 8:
                whole[2 * u + 1 + n, 3 * u : 3 * u + 3] = row
    add("RETRO: text to passages", whole, "abcdefgh", "111222333444")

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    figure.patch.set_alpha(0)
    for axis, (title, weights, rows, columns) in zip(figure.subplots(2, 4).flatten(), drawn, strict=True):
        assert weights.shape == (len(rows), len(columns)), title
        axis.patch.set_alpha(0)
        for i, j in zip(*np.nonzero(weights), strict=True):
            # From light to dark blue, as on white, whatever is behind the picture; what is looked at is never blank.
            shade = 0.12 + 0.88 * weights[i, j] / weights.max()
            colour = (1 - shade) * np.array([0.93, 0.96, 1.0]) + shade * np.array([0.03, 0.32, 0.61])
            axis.add_patch(_cell(j, i, colour))
        axis.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), aspect="equal")
        axis.set_xticks(range(len(columns)), columns, color=GREY, fontsize=8)
        axis.set_yticks(range(len(rows)), rows, color=GREY, fontsize=8)
        axis.tick_params(length=0)
        axis.set_title(title, fontsize=10, color=GREY)
        for spine in axis.spines.values():
            spine.set_visible(True)
            spine.set_color(GREY)
    return figure


def _cell(x: float, y: float, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=tuple(colour), edgecolor="none")


FIGURES = [wirings]
