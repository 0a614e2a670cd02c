"""The figures of chapters 1 to 3."""

import math
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#2E86C1", "#D55E00", "#009E73", "#808080"


def reverse_mode_graph() -> Figure:
    """Chapter 1: y = (ab + sin a) · b at a = 2, b = 3, each value above its gradient."""
    a, b = 2.0, 3.0
    p, s = a * b, math.sin(a)
    q = p + s
    gradients = {"y": 1.0, "q": b, "p": b, "s": b, "a": b * b + b * math.cos(a), "b": q + b * a}
    boxes = {
        "a": (0, 1.0, "a", a),
        "b": (0, -1.0, "b", b),
        "s": (2.4, 1.0, "s = sin a", s),
        "p": (2.4, -0.1, "p = ab", p),
        "q": (4.8, 0.45, "q = p + s", q),
        "y": (7.2, -0.3, "y = qb", q * b),
    }
    figure, axis = plt.subplots(figsize=(7.6, 3.4))
    half, height = 0.72, 0.36
    for name, (x, y, text, value) in boxes.items():
        axis.add_patch(plt.Rectangle((x - half, y - height), 2 * half, 2 * height, fill=False, ec=GREY, lw=1.2))
        axis.plot([x - half, x + half], [y, y], color=GREY, lw=0.6)
        axis.text(x, y + height + 0.07, text, ha="center", va="bottom", style="italic", color=GREY)
        axis.text(x, y + height / 2, f"{value:.3f}".rstrip("0").rstrip("."), ha="center", va="center", color=BLUE)
        below = f"{gradients[name]:.3f}".rstrip("0").rstrip(".")
        axis.text(x, y - height / 2, below, ha="center", va="center", color=ORANGE)
    arrows = [("a", "s", 0), ("a", "p", 0), ("b", "p", 0), ("p", "q", 0), ("s", "q", 0), ("q", "y", 0), ("b", "y", 0.18)]
    for start, end, bend in arrows:
        (x0, y0), (x1, y1) = boxes[start][:2], boxes[end][:2]
        axis.annotate(
            "",
            (x1 - half, y1),
            (x0 + half, y0),
            arrowprops={"arrowstyle": "-|>", "color": GREY, "connectionstyle": f"arc3,rad={bend}", "shrinkB": 1},
        )
    axis.text(7.2, 1.45, "value", ha="center", color=BLUE)
    axis.text(7.2, 1.15, "gradient of y", ha="center", color=ORANGE)
    axis.set(xlim=(-0.9, 8.1), ylim=(-2.0, 1.85))
    axis.axis("off")
    return figure


FIGURES = [reverse_mode_graph]
