"""Write docs/functions.md: every function of the standard, from its docstring and from the cases that the tests run.

    python docs/make_functions.py [-]        # - prints the page instead

Nothing is told here a second time: a function without a derivative says why in its docstring ("No derivative: …"), and
the order up to which derivatives are checked, and what a library lacks, stand in tests/standard.py.
"""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy  # noqa: E402
from standard import CASES, LACKING, names_used  # noqa: E402

import minigrad as mg  # noqa: E402

CHAPTERS = {
    "creation": "Creation functions",
    "data_types": "Data type functions",
    "elementwise": "Element-wise functions",
    "indexing": "Indexing functions",
    "linear_algebra": "Linear algebra functions",
    "manipulation": "Manipulation functions",
    "searching": "Searching functions",
    "sets": "Set functions",
    "sorting": "Sorting functions",
    "statistical": "Statistical functions",
    "utility": "Utility functions",
    "linalg": "linalg: linear algebra",
    "fft": "fft: Fourier transforms",
    "inspection": "Inspection",
}
OWN = {"getitem", "setitem", "to_device"}  # what stands behind x[key], x[key] = value and x.to_device

HEAD = """\
# The functions

<!-- Written by docs/make_functions.py; do not edit. -->

Every function of the Python Array API standard 2025.12, by its chapters: what it gives, whether it has a derivative,
and the highest order of derivative that the tests compare with finite differences of the order before. The first two
they also compare with PyTorch's and JAX's. Nothing ends there: a rule is written in these same functions, so
derivatives of any order exist. The tests run all of this on NumPy, PyTorch, JAX and array-api-strict; on CuPy the
functions are the same. The last column tells where one of these libraries departs from the standard.

[semantics.md](semantics.md) says what happens at kinks and ties, [rules.md](rules.md) how a function is added.
"""


def rows() -> dict[str, list[str]]:
    """The lines of each chapter's table."""
    mg.set_backend("numpy")
    orders: dict[str, int] = {}
    for case in CASES.values():
        arrays = [mg.asarray(numpy.array(a)) for a in case.arrays(case.kinds[0], 0)]
        for name in names_used(case.f, mg, arrays):
            orders[name] = max(case.order, orders.get(name, 0))
    chapters = {}
    for chapter in CHAPTERS:
        module: Any = importlib.import_module(f"minigrad.{chapter}")
        prefix = f"{chapter}." if chapter in ("linalg", "fft") else ""
        chapters[chapter] = [
            row(prefix + name, getattr(module, name), orders) for name in sorted(module.__all__) if name not in OWN
        ]
    return chapters


def row(name: str, function: Any, orders: dict[str, int]) -> str:
    text = inspect.cleandoc(function.__doc__)
    first = text.partition("\n\n")[0].replace("\n", " ")
    _, found, why = " ".join(text.split()).partition("No derivative: ")
    note = first.partition(" No derivative: ")[0]
    derivative, order = (f"no: {why.partition('.')[0]}", "") if found else ("yes", str(orders[name]))
    backends = "; ".join(f"{library}: {lack}" for library, lack in LACKING.get(name, {}).items())
    cells = (f"`{name}`", note.replace("``", "`").replace("|", "\\|"), derivative, order, backends)
    return f"| {' | '.join(cells)} |"


def page() -> str:
    parts = [HEAD]
    for chapter, lines in rows().items():
        parts.append(f"\n## {CHAPTERS[chapter]}\n\nIn `minigrad/{chapter}.py`.\n")
        parts.append(
            "\n| function | what it gives | derivative | order | what a library lacks |\n|---|---|---|---|---|\n"
            + "\n".join(lines)
            + "\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(page())
    else:
        (ROOT / "docs" / "functions.md").write_text(page(), encoding="utf-8")
