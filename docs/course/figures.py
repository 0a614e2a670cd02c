"""Draw the figures of the course: python docs/course/figures.py [NAME …] writes docs/course/figures/NAME.svg,
or NAME.png where the SVG would be large.

Each figure is a function in one of the modules figures_partK.py beside this file, which has a list ``FIGURES``. The
files are the same at every run with the same Matplotlib, so that a figure that changed is a figure whose data changed.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

LARGEST = 60_000  # bytes of an SVG; what is larger becomes a PNG
STYLE = {
    # Grey lines and letters can be read on white and on the dark pages alike; colours: Okabe and Ito, 2008.
    "axes.edgecolor": "#808080",
    "axes.labelcolor": "#808080",
    "axes.prop_cycle": matplotlib.cycler(color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.color": "#808080",
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.labelcolor": "#808080",
    "savefig.transparent": True,
    "svg.hashsalt": "minigrad",
    "text.color": "#808080",
    "xtick.color": "#808080",
    "ytick.color": "#808080",
}


def figures() -> dict[str, Callable[[], Figure]]:
    """Every figure of the course by its name."""
    modules = [importlib.import_module(path.stem) for path in sorted(HERE.glob("figures_part*.py"))]
    return {figure.__name__: figure for module in modules for figure in module.FIGURES}


def draw(name: str, figure: Callable[[], Figure]) -> Path:
    """Write one figure and give its file."""
    with plt.rc_context(STYLE):
        drawn = figure()
        path = HERE / "figures" / f"{name}.svg"
        drawn.savefig(path, bbox_inches="tight", metadata={"Date": None})
        if path.stat().st_size > LARGEST:
            path.unlink()
            path = path.with_suffix(".png")
            drawn.savefig(path, bbox_inches="tight", dpi=150, metadata={"Software": None})
        plt.close(drawn)
    return path


def main(names: list[str]) -> None:
    every = figures()
    (HERE / "figures").mkdir(exist_ok=True)
    for name in names or every:
        print(draw(name, every[name]).relative_to(HERE))


if __name__ == "__main__":
    main(sys.argv[1:])
