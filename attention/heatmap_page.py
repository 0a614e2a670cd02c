"""A page that shows attention weights in a browser: all layers and heads, and each weight at the pointer.

One file, ``heatmap.html`` with ``heatmap.js`` and the weights in it, which asks for nothing from anywhere.

What may stand in a script element: https://html.spec.whatwg.org/multipage/scripting.html, "Restrictions for contents of
script elements". That nothing but this script runs: https://www.w3.org/TR/CSP3/
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import minigrad as mg

from .files import write_atomically
from .plot import visible

MOST_WEIGHTS = 4_000_000
"""More of them than a browser likes to show: each takes about three bytes of the file."""


def heatmap_page(
    layers: Mapping[str, Any],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "Attention weights",
    path: str | os.PathLike[str] | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    digits: int = 3,
) -> str:
    """The HTML of a page of attention weights, saved if ``path`` is given, in place of what is there.

    ``layers`` are the weights by the name of their layer, (H, T_q, T_k) each, from 0 to 1: Tensors, arrays or nested
    lists. They are rounded to ``digits`` decimals. ``rows`` are the T_q query tokens (what looks), ``columns`` the T_k
    key tokens (what is looked at), which show as in `attention.plot.heatmap`, whatever is in them. ``layer`` and
    ``head`` are what the page begins with.

    Raises ValueError, one line, for shapes that do not fit, numbers that are no weights and more than `MOST_WEIGHTS`;
    OSError if the file cannot be written.

    >>> page = heatmap_page({"layer 0": [[[0.9, 0.1], [0.25, 0.75]]]}, rows="ab", columns=["<b>", "y"])
    >>> '"heads":[[900,100,250,750]]' in page, "<b>" in page
    (True, False)
    """
    unit = 10**digits
    made = []
    for name, weights in layers.items():
        values = mg.asarray(weights).numpy()
        if values.ndim != 3 or values.shape[1:] != (len(rows), len(columns)) or values.size == 0:
            raise ValueError(
                f"{name}: expected weights of shape (H, T_q, T_k), with a label for each of the T_q rows and T_k "
                f"columns, got {values.shape} with {len(rows)} and {len(columns)} labels"
            )
        if not ((values >= 0) & (values <= 1 + 1e-3)).all():
            raise ValueError(f"{name}: expected weights from 0 to 1, got {values.min()} to {values.max()}")
        numbers = (values.astype("float64") * unit).round().astype("int64")
        made.append({"name": name, "heads": numbers.reshape(len(values), -1).tolist()})
    count = sum(len(each["heads"]) for each in made) * len(rows) * len(columns)
    if not 1 <= count <= MOST_WEIGHTS:
        raise ValueError(f"expected 1 to {MOST_WEIGHTS:,} weights for a page, got {count:,}: take fewer tokens")
    if not (0 <= layer < len(made) and 0 <= head < len(made[layer]["heads"])):
        raise ValueError(f"expected a layer and a head of these, got {layer} and {head}")
    title = " ".join(map(visible, title.split(" ")))
    data = {
        "title": title,
        "unit": unit,
        "rows": [visible(token) for token in rows],
        "columns": [visible(token) for token in columns],
        "layer": layer,
        "head": head,
        "layers": made,
    }
    page = _filled(title, json.dumps(data, separators=(",", ":")))
    if path is not None:
        write_atomically(path, page.encode())
    return page


def _filled(title: str, data: str) -> str:
    """The template with all that belongs into it."""
    folder = files(__package__)
    script = folder.joinpath("heatmap.js").read_text("utf-8")
    parts = {
        "TITLE": html.escape(title),
        # In a script element only "</script" and "<!--" mean anything, and in JSON "<" is in strings alone.
        "DATA": data.replace("<", "\\u003c"),
        "SCRIPT": script,
        "HASH": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    template = folder.joinpath("heatmap.html").read_text("utf-8")
    # In one go, so that what is put in is not looked through for more places.
    return re.sub(f"@({'|'.join(parts)})@", lambda found: parts[found[1]], template)
