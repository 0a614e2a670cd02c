"""Drawings of where a Transformer looks: attention weights as heat maps, with the tokens along both sides.

As in figure 3 of D. Bahdanau, K. Cho and Y. Bengio, "Neural machine translation by jointly learning to align and
translate" (2014), arXiv:1409.0473.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import minigrad as mg

from .files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heatmap(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """A figure of attention weights, saved if ``path`` is given: as its ending says (png, pdf, svg), else as a PNG.

    ``weights`` is (T_q, T_k) for one head or (H, T_q, T_k) for several, which become a grid with one colour scale: a
    Tensor, an array or a nested list. ``rows`` are the T_q query tokens (what is written), ``columns`` the T_k key
    tokens (what is read). Every character shows: a space as "␣", a newline as "↵", what cannot be printed as its code
    point. (One that the font lacks is a box; matplotlib's setting ``font.family`` names another font.) Raises a
    one-line ValueError for shapes that do not fit or an ending that stands for no format, OSError if the file cannot be
    written; a file already there is replaced in one step.

    >>> figure = heatmap([[0.9, 0.1], [0.2, 0.8]], rows="ab", columns="xy", title="one head")
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['x', 'y']
    """
    from matplotlib.figure import Figure  # here, so that whoever draws nothing does not wait for it

    heads = mg.asarray(weights).numpy()
    several = heads.ndim == 3
    if heads.ndim not in (2, 3) or heads.shape[-2:] != (len(rows), len(columns)) or heads.size == 0:
        raise ValueError(
            f"expected weights of shape (T_q, T_k) or (H, T_q, T_k), with a label for each of the T_q rows and T_k "
            f"columns, got {heads.shape} with {len(rows)} and {len(columns)} labels"
        )
    heads = heads if several else heads[None]
    across = math.ceil(math.sqrt(len(heads)))
    down = math.ceil(len(heads) / across)
    # A cell is big enough for one letter, unless that would make the figure metres wide.
    cell = min(0.2, 30 / max(across * len(columns), down * len(rows)))  # inches
    font = 0.6 * 72 * cell  # points
    row_labels, column_labels = [visible(token) for token in rows], [visible(token) for token in columns]
    width = cell * (len(columns) + 1 + 0.5 * max(map(len, row_labels)))
    height = cell * (len(rows) + 1 + 0.5 * max(map(len, column_labels))) + (0.2 if several else 0)

    # The figure object alone, without pyplot: no window, no backend to choose, no state to clean up.
    size = (across * width + 1, max(down * height + (0.1 if title is None else 0.4), 1.5))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for number, (axis, head) in enumerate(zip(axes, heads, strict=False)):
        image = axis.imshow(head, cmap="Blues", vmin=0, vmax=heads.max())
        # Text between two dollar signs is text, not a formula: hence parse_math.
        axis.set_xticks(range(len(columns)), column_labels, fontsize=font, parse_math=False)
        axis.set_yticks(range(len(rows)), row_labels, fontsize=font, parse_math=False)
        for label in axis.get_xticklabels():
            label.set_rotation(90 if len(label.get_text()) > 1 else 0)
        axis.tick_params(length=0, pad=2)
        if several:
            axis.set_title(f"head {number}", fontsize=8)
    for axis in axes[len(heads) :]:
        axis.remove()
    figure.colorbar(image, ax=axes[: len(heads)], fraction=0.05, shrink=0.8).ax.tick_params(labelsize=7)
    _finish(figure, title, path)
    return figure


def sound_heatmap(
    weights: Any,
    rows: Sequence[str],
    seconds: float,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """A figure of where in a sound each token was heard; saved, and with errors, as of `heatmap`.

    ``weights`` is (T, n), ``rows`` are the T tokens, and the n columns share ``seconds`` of sound.

    >>> figure = sound_heatmap([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]], rows=["My", "name"], seconds=0.06)
    >>> figure.axes[0].get_xlabel()
    'seconds'
    """
    from matplotlib.figure import Figure

    values = mg.asarray(weights).numpy()
    if values.ndim != 2 or len(values) != len(rows) or values.size == 0:
        raise ValueError(
            f"expected weights of shape (T, n) with a label for each of the T rows, got {values.shape} with {len(rows)}"
        )
    figure = Figure(figsize=(10, 1 + 0.2 * len(rows)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(values, cmap="Blues", vmin=0, aspect="auto", extent=(0, seconds, len(rows) - 0.5, -0.5))
    axis.set_yticks(range(len(rows)), [visible(token) for token in rows], fontsize=8, parse_math=False)
    axis.set_xlabel("seconds")
    figure.colorbar(image, ax=axis, fraction=0.05, shrink=0.8).ax.tick_params(labelsize=7)
    _finish(figure, title, path)
    return figure


def expect_picture(path: Path) -> None:
    """Raise ValueError, one line, for a path whose ending stands for no kind of picture.

    >>> expect_picture(Path("heads.svg"))
    >>> expect_picture(Path("heads.doc"))
    Traceback (most recent call last):
    ValueError: heads.doc: expected a picture, whose name ends in one of ...
    """
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in ("", *kinds):
        raise ValueError(f"{path}: expected a picture, whose name ends in one of {', '.join(sorted(kinds))}")


def _finish(figure: Figure, title: str | None, path: str | os.PathLike[str] | None) -> None:
    """Give ``figure`` its title, and save it."""
    if title is not None:
        figure.suptitle(" ".join(map(visible, title.split(" "))), fontsize=10, parse_math=False)
    if path is not None:
        expect_picture(Path(path))
        picture = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(picture, format=Path(path).suffix.removeprefix(".") or "png", dpi=150)
        write_atomically(path, picture.getvalue())


def visible(token: str) -> str:
    r"""``token`` with a mark for every character that leaves none on paper.

    >>> visible("3 juin"), visible("a\n"), visible("\u202f")
    ('3␣juin', 'a↵', 'U+202F')
    """
    marks = {" ": "␣", "\n": "↵", "\t": "⇥"}
    return "".join(marks.get(c, c if c.isprintable() else f"U+{ord(c):04X}") for c in token)
