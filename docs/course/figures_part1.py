"""The figures of chapters 1 to 3."""

import math

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
    arrows = [("a", "s", 0), ("a", "p", 0), ("b", "p", 0), ("p", "q", 0), ("s", "q", 0), ("q", "y", 0)]
    arrows += [("b", "y", 0.18)]
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
    axis.set(xlim=(-0.9, 8.1), ylim=(-1.75, 1.85))
    axis.axis("off")
    return figure


def step_size() -> Figure:
    """Chapter 3: the errors of three estimates of the derivative of eˣ sin x at 1 against their step."""

    def f(x: complex) -> complex:
        return np.exp(x) * np.sin(x)

    x = 1.0
    exact = np.exp(x) * (np.sin(x) + np.cos(x))
    steps = 10.0 ** np.arange(-18, 0.01, 0.25)
    estimates = {
        "forward differences": [(f(x + h) - f(x)) / h for h in steps],
        "central differences": [(f(x + h) - f(x - h)) / (2 * h) for h in steps],
        "complex step": [f(complex(x, h)).imag / h for h in steps],
    }
    figure, axis = plt.subplots(figsize=(6.0, 3.6))
    for (name, values), colour in zip(estimates.items(), (ORANGE, BLUE, GREEN), strict=True):
        errors = np.maximum(np.abs(np.asarray(values) - exact) / exact, 1e-17)  # 0 has no place on this axis
        axis.loglog(steps, errors, "--" if name == "complex step" else "-", lw=1.4, color=colour, label=name)
    axis.set(xlabel="step h", ylabel="relative error", xlim=(1e-18, 1), ylim=(3e-18, 3))
    axis.set_xticks(10.0 ** np.arange(-18, 1, 3))
    axis.set_yticks(10.0 ** np.arange(-16, 1, 4))
    axis.minorticks_off()
    axis.grid(visible=True)
    axis.annotate("slope 1", (4e-5, 8e-5), color=ORANGE, ha="right", fontsize=9)
    axis.annotate("slope 2", (6e-3, 5e-7), color=BLUE, fontsize=9)
    axis.annotate("rounding: ε / h", (1.5e-14, 1.5e-1), color="#808080", fontsize=9)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.4))
    return figure


FIGURES = [reverse_mode_graph, step_size]
