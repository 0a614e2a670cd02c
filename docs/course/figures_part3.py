"""The pictures of chapters 8 to 11. Each function draws one; its name is the name of the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

import minigrad as mg
from attention import functional as F
from attention.layers import (
    Embedding,
    EncoderBlock,
    FeedForward,
    LayerNorm,
    Linear,
    Module,
    RotaryPositions,
    SinusoidalPositions,
)

# Colours that differ for colour-blind eyes, too (M. Okabe and K. Ito, 2008), and read well on white and on black.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#808080"


def _figure(width: float, height: float) -> Figure:
    """A figure without a background, so that it stands on light and on dark pages."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def _plain(axis: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Grey labels and ticks, which read on white and on black; no frame on top and at the right."""
    axis.patch.set_alpha(0)
    for name, spine in axis.spines.items():
        spine.set_color(GREY)
        spine.set_visible(name in ("left", "bottom"))
    axis.tick_params(colors=GREY, labelsize=9, which="both")
    axis.set_title(title, fontsize=10, color=GREY)
    axis.set_xlabel(x, fontsize=9, color=GREY)
    axis.set_ylabel(y, fontsize=9, color=GREY)


def _legend(axis: Axes, **options: Any) -> None:
    axis.legend(frameon=False, fontsize=9, labelcolor=GREY, **options)


# ------------------------------------------------------------------------------------------------ chapter 8


def _weights(query: Any, key: Any, bias: Any, scale: float) -> Any:
    value = mg.zeros((key.shape[0], 1))
    _, A = F.scaled_dot_product_attention(query, key, value, bias, is_causal=True, scale=scale, return_weights=True)
    return A.numpy()


def three_back() -> Figure:
    """The weights of the four heads of chapter 8 that are to look three tokens back."""
    length, width = 12, 64
    nothing = mg.zeros((length, 4))
    PE = SinusoidalPositions(length, width, dtype="float64")(mg.zeros((length, width)))
    theta = 10000.0 ** (-mg.arange(0, width, 2, dtype="float64") / width)
    rotary = RotaryPositions(64, width, dtype="float64")
    same = mg.ones((length, width))
    i = mg.arange(length, dtype="float64")
    distance = mg.expand_dims(i, axis=1) - i
    heads = {
        "sinusoidal": _weights(F.rotary(PE, mg.cos(3 * theta), mg.sin(3 * theta)), PE, None, 2.0),
        "rotary": _weights(rotary(same), rotary(same, offset=3), None, 1.0),
        "relative bias": _weights(nothing, nothing, mg.where(distance == 3, 8.0, 0.0), 1.0),
        "ALiBi": _weights(nothing, nothing, -0.5 * distance, 1.0),
    }
    figure = _figure(9, 2.7)
    for axis, (name, A) in zip(figure.subplots(1, 4), heads.items(), strict=True):
        image = axis.imshow(A, cmap="Blues", vmin=0, vmax=1)
        _plain(axis, name, "key")
        axis.set_xticks([0, 4, 8])
        axis.set_yticks([0, 4, 8])
        for spine in axis.spines.values():
            spine.set_visible(True)
    figure.axes[0].set_ylabel("query", fontsize=9, color=GREY)
    bar = figure.colorbar(image, ax=figure.axes, fraction=0.03, shrink=0.8)
    bar.ax.tick_params(labelsize=8, colors=GREY)
    bar.outline.set_edgecolor(GREY)
    return figure


def sinusoidal() -> Figure:
    """The table of sinusoidal positions, and the dot product of two of its rows."""
    table = SinusoidalPositions(48, 32, dtype="float64")(mg.zeros((48, 32))).numpy()
    figure = _figure(8, 3)
    left, right = figure.subplots(1, 2)
    image = left.imshow(table, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    _plain(left, "position t, component c", "component c", "position t")
    bar = figure.colorbar(image, ax=left)
    bar.ax.tick_params(labelsize=8, colors=GREY)
    bar.outline.set_edgecolor(GREY)
    for t, colour in ((8, BLUE), (24, ORANGE), (40, GREEN)):
        right.plot(np.arange(48) - t, table @ table[t], color=colour, label=f"t = {t}", linewidth=5 - t / 10)
    _plain(right, "the dot product of positions s and t", "s − t", "")
    right.grid(color=GREY, alpha=0.2)
    _legend(right)
    return figure


def rotary() -> Figure:
    """A query of two components, turned; and the score of a key that is turned three positions further."""
    figure = _figure(8, 3)
    left, right = figure.subplots(1, 2)
    turn = RotaryPositions(5, 2, dtype="float64")
    for t, (a, b) in enumerate(turn(mg.asarray([[1.0, 0.0]] * 5)).numpy()):
        left.annotate("", (a, b), (0, 0), arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.8})
        left.text(1.15 * a, 1.15 * b, f"{t}", color=GREY, ha="center", va="center", fontsize=10)
    _plain(left, "a pair of components at positions 0 to 4")
    left.set_xlim(-1.35, 1.35)
    left.set_ylim(-1.3, 1.3)
    left.set_aspect("equal")
    left.set_xticks([])
    left.set_yticks([])
    left.spines[["left", "bottom"]].set_visible(False)
    length, width = 48, 64
    layer, same = RotaryPositions(64, width, dtype="float64"), mg.ones((length, width))
    scores = (layer(same) @ layer(same, offset=3).T).numpy()
    right.plot(np.arange(length), scores[-1, ::-1], color=BLUE, marker=".")
    right.axvline(3, color=ORANGE, linestyle=":")
    right.text(3.9, 58, "distance 3", color=ORANGE, fontsize=9)
    right.grid(color=GREY, alpha=0.2)
    _plain(right, "the score of equal contents, width 64", "distance i − j", "score")
    return figure


def alibi() -> Figure:
    """The weights of ALiBi's four heads by distance, where all contents match equally."""
    figure = _figure(6, 3)
    axis = figure.subplots()
    distance = np.arange(32)
    for h, (colour, style) in enumerate(zip((BLUE, ORANGE, GREEN, PURPLE), ("-", "--", "-.", ":"), strict=True), 1):
        bias = mg.asarray(-(2.0 ** (-8 * h / 4)) * distance)
        axis.plot(distance, F.softmax(bias).numpy(), style, color=colour, label=f"head {h}: price 1/{4**h}")
    axis.set_yscale("log")
    axis.set_ylim(1e-4, 1)
    axis.grid(color=GREY, alpha=0.2)
    _plain(axis, "", "distance i − j", "weight")
    _legend(axis)
    return figure


def prompt_masks() -> Figure:
    """Which tokens of source and target each may see, in three kinds of model."""
    i = np.arange(7)
    causal = i[:, None] >= i
    prefix = causal | (i < 4)
    figure = _figure(8.6, 3.1)
    titles = ("encoder and decoder", "one causal mask", "a prefix mask")
    for axis, title, allowed in zip(figure.subplots(1, 3), titles, (prefix, causal, prefix), strict=True):
        two_networks = title == titles[0]
        for q, k in np.ndindex(7, 7):
            if allowed[q, k]:
                cross = q >= 4 > k
                colour = ORANGE if cross else GREEN if q >= 4 else BLUE
                axis.add_patch(Rectangle((k + 0.06, q + 0.06), 0.88, 0.88, color=colour, linewidth=0))
        axis.set_xlim(0, 7)
        axis.set_ylim(7, 0)
        axis.set_aspect("equal")
        names = ["s₁", "s₂", "s₃", "s₄", "g₁", "g₂", "g₃"]
        axis.set_xticks(i + 0.5, names)
        axis.set_yticks(i + 0.5, names)
        _plain(axis, title, "key", "query" if two_networks else "")
        axis.tick_params(length=0)
        for place in ("left", "bottom"):
            axis.spines[place].set_visible(False)
        axis.plot([0, 7], [4, 4], color=GREY, linewidth=0.8)
        axis.plot([4, 4], [0, 7], color=GREY, linewidth=0.8)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in (BLUE, ORANGE, GREEN)]
    labels = ["source reads source", "target reads source", "target reads target"]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=GREY)
    return figure


# ------------------------------------------------------------------------------------------------ chapter 9


def _gradient_sizes(layers: Sequence[Any], x: Any, g: Any) -> list[float]:
    """The size of the gradient at the input of each layer, from the bottom to the top, where it is g."""
    pulls = []
    for layer in layers:
        x, pull = mg.vjp(layer, x)
        pulls.append(pull)
    sizes = [float(mg.linalg.vector_norm(g))]
    for pull in reversed(pulls):
        (g,) = pull(g)
        sizes.append(float(mg.linalg.vector_norm(g)))
    return sizes[::-1]


def residual() -> Figure:
    """Gradients in a stack of feed-forward networks, with and without residual connections."""
    mg.random.seed(0)
    x, g = mg.random.normal((4, 32)), mg.random.normal((4, 32))
    layers = [FeedForward(32, dtype="float64") for _ in range(32)]
    figure = _figure(6, 3)
    axis = figure.subplots()
    added = [lambda x, f=f: x + f(x) for f in layers]
    axis.plot(_gradient_sizes(added, x, g), color=BLUE, marker=".", label="x + f(x)")
    axis.plot(_gradient_sizes(layers, x, g), color=ORANGE, marker="x", markersize=4, label="f(x)")
    axis.set_yscale("log")
    axis.grid(color=GREY, alpha=0.2)
    _plain(axis, "", "layer (the loss is at the right)", "size of the gradient")
    _legend(axis, loc="center right")
    return figure


class _Stack(Module):
    """Blocks between an embedding and a linear output, with weights of variance 1/n; the `Stack` of chapter 9."""

    def __init__(self, norm: str, num_layers: int, d: int = 32, vocab: int = 16, dtype: str = "float64") -> None:
        self.tokens = Embedding(vocab, d, dtype=dtype)
        self.blocks = [EncoderBlock(d, 4, norm=norm, dtype=dtype) for _ in range(num_layers)]
        self.norm = LayerNorm(d, dtype=dtype) if norm == "pre" else None
        self.output = Linear(d, vocab, dtype=dtype)
        for name, parameter in self.named_parameters():
            if name.startswith("blocks") and parameter.ndim == 2:
                parameter.data = (parameter.detach() * math.sqrt(3)).data

    def __call__(self, ids: Any) -> Any:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, is_causal=True)
        return self.output(x if self.norm is None else self.norm(x))


def _stream(norm: str) -> list[float]:
    mg.random.seed(0)
    model = _Stack(norm, 24)
    x, g = mg.random.normal((16, 32)), mg.random.normal((16, 32))
    return _gradient_sizes([*model.blocks, *([model.norm] if model.norm else [])], x, g)[: 24 + 1]


def _last_gradient(norm: str, num_layers: int) -> float:
    mg.random.seed(0)
    model = _Stack(norm, num_layers)
    ids = mg.random.integers(0, 16, (4, 16))
    F.cross_entropy(model(ids), (5 * ids + 3) % 16).backward()
    return float(mg.linalg.vector_norm(model.blocks[-1].feed_forward.down.weight.grad))


def _losses(norm: str) -> list[float]:
    mg.random.seed(0)
    model = _Stack(norm, 12, d=16, vocab=8, dtype="float32")
    optimizer = mg.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(200):
        ids = mg.random.integers(0, 8, (1, 16))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), (5 * ids + 3) % 8)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pre_post() -> Figure:
    """Gradients and training of stacks with the normalisation before and after."""
    figure = _figure(9, 3.2)
    left, middle, right = figure.subplots(1, 3)
    depths = [2, 4, 8, 16, 32]
    for norm, colour, marker in (("pre", BLUE, "."), ("post", ORANGE, "x")):
        left.plot(_stream(norm), color=colour, label=norm)
        middle.plot(depths, [_last_gradient(norm, n) for n in depths], color=colour, marker=marker, label=norm)
        losses = _losses(norm)
        right.plot([sum(losses[i : i + 8]) / 8 for i in range(0, 200, 8)], color=colour, label=norm)
    middle.plot(depths, [0.8 / math.sqrt(n) for n in depths], ":", color=GREY, label="∝ 1/√L")
    left.set_ylim(0)
    middle.set_xscale("log", base=2)
    middle.set_yscale("log", base=2)
    middle.set_xticks(depths, [str(n) for n in depths])
    middle.set_yticks([0.125, 0.25, 0.5, 1.0], ["⅛", "¼", "½", "1"])
    right.axhline(math.log(8), linestyle=":", color=GREY)
    right.set_ylim(0, 2.4)
    right.set_yticks([0, 1, 2])
    right.set_xticks([0, 12.5, 25], ["0", "100", "200"])
    _plain(left, "gradient of the stream", "block (loss at the right)", "")
    _plain(middle, "gradient of the last W₂", "number of blocks L", "")
    _plain(right, "loss, twelve blocks", "step", "")
    for axis in (left, middle, right):
        axis.grid(color=GREY, alpha=0.2)
    for axis in (left, middle):
        _legend(axis)
    return figure


# ------------------------------------------------------------------------------------------------ chapter 10


def tiles() -> Figure:
    """The tiles of a causal matrix of scores, and what one of them needs."""
    figure = _figure(5.4, 4.3)
    axis = figure.subplots()
    for i, j in np.ndindex(8, 8):
        if j < i:
            axis.add_patch(Rectangle((j + 0.05, i + 0.05), 0.9, 0.9, color=BLUE, alpha=0.75, linewidth=0))
        elif j == i:
            corners = [(j + 0.05, i + 0.05), (j + 0.05, i + 0.95), (j + 0.95, i + 0.95)]
            axis.add_patch(Polygon(corners, color=BLUE, alpha=0.75, linewidth=0))
    axis.add_patch(Rectangle((0, 0), 8, 8, fill=False, edgecolor=GREY, linewidth=0.8))
    axis.add_patch(Rectangle((2.05, 5.05), 0.9, 0.9, color=ORANGE, linewidth=0))
    axis.add_patch(Rectangle((-1.2, 5.05), 0.9, 0.9, color=ORANGE, linewidth=0))
    axis.add_patch(Rectangle((2.05, -1.2), 0.9, 0.9, color=ORANGE, linewidth=0))
    axis.text(-1.4, 5.5, "rows I of\nQ, dY, lse, D\nand of dQ, Y", ha="right", va="center", color=GREY, fontsize=9)
    axis.text(3.15, -0.75, "columns J: rows of K, V and of dK, dV", va="center", color=GREY, fontsize=9)
    axis.text(6.0, 2.0, "not computed", ha="center", va="center", color=GREY, fontsize=9)
    for x0, y0, x1, y1 in ((-0.25, 5.5, 2.0, 5.5), (2.5, -0.25, 2.5, 5.0)):
        axis.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": ORANGE, "linewidth": 1.5})
    axis.set_xlim(-4.3, 9.2)
    axis.set_ylim(8.1, -1.4)
    axis.set_aspect("equal")
    axis.axis("off")
    axis.patch.set_alpha(0)
    return figure


# ------------------------------------------------------------------------------------------------ chapter 11


def one_rule() -> Figure:
    """A primitive's forward function and its rule, run on raw arrays or on Tensors."""
    figure = _figure(7.6, 3.7)
    axis = figure.subplots()

    def box(x: float, y: float, width: float, lines: str, colour: str) -> None:
        axis.add_patch(Rectangle((x, y), width, 1.25, fill=False, edgecolor=colour, linewidth=1.6))
        axis.text(x + width / 2, y + 0.62, lines, ha="center", va="center", color=GREY, fontsize=9, linespacing=1.5)

    def arrow(x0: float, y0: float, x1: float, y1: float) -> None:
        axis.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 1.3})

    box(0, 3.4, 4.2, "cube(Tensor)\nforward(xp = numpy, x) → x³", BLUE)
    box(5.6, 3.4, 4.2, "a node of the graph keeps\nwhat the rule names: x", GREEN)
    box(0, 0.3, 4.2, "backward()\nrule(g, x) → 3 g x²\nxp = numpy, raw arrays", BLUE)
    box(5.6, 0.3, 4.2, "backward(create_graph=True)\nrule(g, x) → 3 g x²\nxp = minigrad, Tensors", ORANGE)
    arrow(4.25, 4.02, 5.55, 4.02)
    arrow(6.2, 3.35, 3.4, 1.62)
    arrow(7.7, 3.35, 7.7, 1.62)
    axis.text(2.1, 0.05, "fast, records nothing", ha="center", va="top", color=GREY, fontsize=9)
    axis.text(7.7, 0.05, "records itself: new nodes", ha="center", va="top", color=GREY, fontsize=9)
    axis.set_xlim(-0.1, 9.9)
    axis.set_ylim(-0.4, 4.75)
    axis.axis("off")
    return figure


FIGURES: Sequence[Any] = [three_back, sinusoidal, rotary, alibi, prompt_masks, residual, pre_post, tiles, one_rule]
