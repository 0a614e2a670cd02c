"""The pictures of chapters 4 to 7. Each function draws one; its name is the name of the file."""

from __future__ import annotations

import calendar
import datetime
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import minigrad as mg
from attention import functional as F
from attention.data import BOS, EOS, PAD, Vocabulary, pad
from attention.layers import SelfAttention
from attention.models import Transformer
from minigrad import optim

# Colours that differ for colour-blind eyes, too (after M. Okabe and K. Ito, 2008), under white letters and as lines.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#9A4F7A", "#808080"


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
    axis.tick_params(colors=GREY, labelsize=9)
    axis.set_title(title, fontsize=10, color=GREY)
    axis.set_xlabel(x, fontsize=9, color=GREY)
    axis.set_ylabel(y, fontsize=9, color=GREY)


def _legend(axis: Axes, **options: Any) -> None:
    axis.legend(frameon=False, fontsize=9, labelcolor=GREY, **options)


def _heat(axis: Axes, values: Any, rows: Any, columns: Any, title: str = "", numbers: bool = True) -> Any:
    """Weights between 0 and 1 as a heat map, with the numbers in the cells."""
    values = np.asarray(values)
    image = axis.imshow(values, cmap="Blues", vmin=0, vmax=1)
    _plain(axis, title)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_xticks(range(len(columns)), list(columns), parse_math=False)
    axis.set_yticks(range(len(rows)), list(rows), parse_math=False)
    axis.tick_params(length=0)
    if numbers:
        for i, j in np.ndindex(*values.shape):
            colour = "white" if values[i, j] > 0.5 else "#303030"
            axis.text(j, i, f"{values[i, j]:.2f}", ha="center", va="center", fontsize=8, color=colour)
    return image


def _box(axis: Axes, x: float, y: float, text: str, colour: str, width: float = 1.5, height: float = 0.8) -> None:
    axis.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.02,rounding_size=0.12",
            facecolor=colour, edgecolor="none",
        )
    )  # fmt: skip
    axis.text(x, y, text, ha="center", va="center", fontsize=9, color="white", linespacing=1.3)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.3})


def _canvas(figure: Figure, width: float, height: float) -> Axes:
    axis = figure.subplots()
    axis.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axis.axis("off")
    return axis


# ------------------------------------------------------------------------------------------------ chapter 4


def softmax_derivative() -> Figure:
    """The weight of the first of two scores, and its derivative, over their difference."""
    figure = _figure(6.5, 2.8)
    axis = figure.subplots()
    x = np.linspace(-8, 8, 161)
    y = 1 / (1 + np.exp(-x))
    axis.plot(x, y, color=BLUE, lw=2, label="weight $y_1$")
    axis.plot(x, y * (1 - y), color=ORANGE, lw=2, ls="--", label="derivative $y_1 (1 - y_1)$")
    _plain(axis, x="difference of the scores, $x_1 - x_2$")
    _legend(axis, loc="center left")
    return figure


# ------------------------------------------------------------------------------------------------ chapter 5


def attention_graph() -> Figure:
    """Q, K and V, what is computed from them, and what goes back along each arrow."""
    figure = _figure(8.5, 3.2)
    axis = _canvas(figure, 14.2, 5.2)
    names = {"Q": (1.2, 4.6), "K": (1.2, 2.6), "V": (1.2, 0.6), "S": (5.9, 3.6), "A": (9.2, 3.6), "Y": (12.9, 2.1)}
    shapes = {"Q": "(T, $d_k$)", "K": "($T_s$, $d_k$)", "V": "($T_s$, $d_v$)", "Y": "(T, $d_v$)"}
    shapes |= dict.fromkeys("SA", "(T, $T_s$)")
    for name, (x, y) in names.items():
        _box(axis, x, y, f"{name}  {shapes[name]}", BLUE if name in "QKV" else GREEN if name == "Y" else ORANGE, 2.0)
    for a, b, (x, y), text in [
        ("Q", "S", (3.6, 4.55), "dQ = c dS K"),
        ("K", "S", (3.6, 2.45), "dK = c d$S^T$ Q"),
        ("S", "A", (7.55, 4.25), "dS = A ∘ (dA − D)"),
        ("A", "Y", (11.9, 3.35), "dA = dY $V^T$"),
        ("V", "Y", (7.2, 0.75), "dV = $A^T$ dY"),
    ]:
        (x1, y1), (x2, y2) = names[a], names[b]
        _arrow(axis, (x1 + 1.05, y1), (x2 - 1.05, y2))
        axis.text(x, y, text, ha="center", fontsize=9, color=GREY)
    return figure


def softmax_saturation() -> Figure:
    """What happens to the weights, and to what goes back through them, as d_k grows, with and without 1/√d_k."""
    figure = _figure(8.5, 2.9)
    widths = 4 ** np.arange(7)
    rng = np.random.default_rng(0)
    found: dict[str, dict[bool, list[float]]] = {name: {True: [], False: []} for name in ("largest", "entropy", "back")}
    for d in widths:
        q, k = rng.normal(size=(400, 1, d)), rng.normal(size=(400, 16, d))
        for scaled in (True, False):
            scores = np.sum(q * k, axis=-1) / (math.sqrt(d) if scaled else 1.0)
            y = np.exp(scores - scores.max(axis=-1, keepdims=True))
            y /= y.sum(axis=-1, keepdims=True)
            entropy = -np.sum(np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0)), 0.0), axis=-1)
            jacobian = y[:, :, None] * np.eye(16) - y[:, :, None] * y[:, None, :]
            found["largest"][scaled].append(float(np.mean(y.max(axis=-1))))
            found["entropy"][scaled].append(float(np.mean(entropy)))
            found["back"][scaled].append(float(np.median(np.linalg.norm(jacobian, axis=(1, 2)))))
    titles = ["largest weight (mean)", "entropy, in nats (mean)", "size of ∂A/∂S (median)"]
    for axis, (name, by_scale), title in zip(figure.subplots(1, 3), found.items(), titles, strict=True):
        axis.plot(widths, by_scale[True], color=BLUE, marker="o", ms=4, label="$QK^T/\\sqrt{d_k}$")
        axis.plot(widths, by_scale[False], color=ORANGE, marker="s", ms=4, ls="--", label="$QK^T$")
        axis.set_xscale("log", base=4)
        if name == "back":
            axis.set_yscale("log")
        _plain(axis, title, "$d_k$")
        if name == "largest":
            _legend(axis)
    return figure


def attention_masks() -> Figure:
    """The weights of one head of five tokens under four masks."""
    figure = _figure(8.5, 2.6)
    rng = np.random.default_rng(1)
    Q, K = mg.asarray(rng.normal(size=(5, 8))), mg.asarray(rng.normal(size=(5, 8)))
    i, j = np.indices((5, 5))
    masks = {
        "no mask": i == i,
        "causal": j <= i,
        "padding: 3 real keys": j < 3,
        "row 2 may see nothing": np.logical_and(j <= i, i != 2),
    }
    for axis, (title, mask) in zip(figure.subplots(1, 4), masks.items(), strict=True):
        _, A = F.scaled_dot_product_attention(Q, K, K, mg.asarray(mask), return_weights=True)
        _heat(axis, A.numpy(), range(5), range(5), title, numbers=False)
        axis.set_xlabel("key", fontsize=9, color=GREY)
        for a, b in zip(*np.nonzero(~mask), strict=True):
            axis.plot(b, a, marker="x", color=ORANGE, ms=5)
    return figure


# ------------------------------------------------------------------------------------------------ chapter 6


def _wiring(sources: list[tuple[str, str]], output: str) -> Figure:
    """From where the three projections come, and what becomes of them; one source or two."""
    figure = _figure(8.5, 3.0)
    axis = _canvas(figure, 14.2, 5.0)
    heights = {"q": 4.3, "k": 2.5, "v": 0.7}
    if len(sources) == 1:
        starts = dict.fromkeys("qkv", (1.3, 2.5))
    else:
        starts = {"q": (1.3, 4.3), "k": (1.3, 1.6), "v": (1.3, 1.6)}
    for (text, colour), place in zip(sources, dict.fromkeys(starts.values()), strict=True):
        _box(axis, *place, text, colour, 2.3, 1.0)
    for name, y in heights.items():
        _box(axis, 5.1, y, f"$W_{name}$", GREY, 1.1)
        _arrow(axis, (starts[name][0] + 1.2, starts[name][1]), (4.5, y))
    _box(axis, 8.9, 3.4, "$A$ = softmax($QK^T$/√$d_h$)", ORANGE, 3.6)
    _box(axis, 12.7, 2.0, output, GREEN, 2.6, 1.0)
    for name, (x1, y1), (x2, y2), dy in [
        ("Q", (5.7, 4.3), (7.05, 3.6), 0.25),
        ("K", (5.7, 2.5), (7.05, 3.2), -0.5),
        ("V", (5.7, 0.7), (11.35, 1.8), -0.4),
        ("A", (10.75, 3.4), (11.6, 2.55), 0.15),
    ]:
        _arrow(axis, (x1, y1), (x2, y2))
        axis.text((x1 + x2) / 2 + 0.1, (y1 + y2) / 2 + dy, f"${name}$", fontsize=10, color=GREY)
    return figure


def self_attention_wiring() -> Figure:
    """Queries, keys and values from one sequence."""
    return _wiring([("tokens  $X$\n$(T, d)$", BLUE)], "$Y = AV$\n$(T, d_h)$")


def tied_projections() -> Figure:
    """Chapter 6's task with three matrices, and with W_q = W_k: the losses, and where the words look at the end."""
    words, T = 8, 3
    losses, weights = {}, {}
    for name in ("three matrices", "$W_q = W_k$"):
        rng = np.random.default_rng(0)
        mg.random.seed(0)
        head = SelfAttention(words + T, words, dtype="float64")
        if name != "three matrices":
            head.key = head.query
        optimizer = optim.Adam(head.parameters(), lr=0.05)
        losses[name] = []
        for _ in range(200):
            ids = rng.integers(words, size=(32, T))
            X = mg.asarray(np.concatenate([np.eye(words)[ids], np.broadcast_to(np.eye(T), (32, T, T))], axis=-1))
            loss = F.cross_entropy(head(X), mg.asarray(np.roll(ids, 1, axis=1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
        scores = head.query(X) @ mg.matrix_transpose(head.key(X)) / math.sqrt(words)
        weights[name] = mg.mean(F.softmax(scores), axis=0).numpy()
    figure = _figure(8.5, 2.7)
    left, *right = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    for (name, values), colour, style in zip(losses.items(), (BLUE, ORANGE), ("-", "--"), strict=True):
        left.plot(values, color=colour, ls=style, label=name)
    left.set_ylim(0)
    _plain(left, "loss", "step")
    _legend(left, loc="center right", bbox_to_anchor=(1.0, 0.3))
    sentence = ["dogs", "chase", "cats"]
    for axis, (name, values) in zip(right, weights.items(), strict=True):
        _heat(axis, values, sentence, sentence, name)
    return figure


# ------------------------------------------------------------------------------------------------ chapter 7


def cross_attention_wiring() -> Figure:
    """Queries from the target, keys and values from the source."""
    return _wiring([("target  $X$\n$(T, d)$", BLUE), ("source  $Z$\n$(T_s, d_s)$", PURPLE)], "$Y = AV$\n$(T, d_h)$")


def small_translator() -> Figure:
    """Where the two heads of chapter 7's small translator look in the date while they write each character."""
    dates = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(366)]
    pairs = [(f"{day.day} {calendar.month_name[day.month]}", f"{day:%m-%d}") for day in dates]
    rng = np.random.default_rng(0)
    train = [pairs[i] for i in rng.permutation(len(pairs))[66:]]
    read, write = Vocabulary(source for source, _ in pairs), Vocabulary(target for _, target in pairs)
    mg.random.seed(0)
    model = Transformer(len(read), len(write), d_model=32, num_heads=2, num_layers=1, dropout=0.0, max_length=16)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    for step in range(160):
        optimizer.param_groups[0]["lr"] = optim.warmup_cosine(step, lr=0.01, warmup_steps=20, total_steps=160)
        batch = [train[i] for i in rng.integers(len(train), size=32)]
        source = mg.asarray(pad([read.encode(text) for text, _ in batch]))
        target = mg.asarray([[BOS, *write.encode(text), EOS] for _, text in batch])
        loss = F.cross_entropy(model(source, target[:, :-1], source_mask=source != PAD), target[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    text, answer = "27 September", "09-27"
    with model.evaluating():
        target = mg.asarray([[BOS, *write.encode(answer)]])
        _, weights = model(mg.asarray([read.encode(text)]), target, return_weights=True)
    figure = _figure(8.5, 2.7)
    for head, axis in enumerate(figure.subplots(1, 2)):
        _heat(axis, weights[0].numpy()[0, head], [*answer, "end"], text.replace(" ", "␣"), f"head {head}", False)
        axis.set_xlabel("what is read", fontsize=9, color=GREY)
        axis.set_ylabel("what is written", fontsize=9, color=GREY)
    return figure


FIGURES = [
    softmax_derivative,
    attention_graph,
    softmax_saturation,
    attention_masks,
    self_attention_wiring,
    tied_projections,
    cross_attention_wiring,
    small_translator,
]
