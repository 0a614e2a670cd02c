"""Write the notebooks of docs/course/notebooks from the chapters that are worth trying things out in.

    python docs/make_notebooks.py              # write them, without results
    python docs/make_notebooks.py --check      # fail where they differ from the chapters, and run every one of them

A notebook is committed without results; whoever opens it runs it.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

COURSE = Path(__file__).parent / "course"
CHAPTERS = ("01", "05", "06", "07")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(chapter: Path) -> Any:
    """The chapter as a notebook whose links and pictures are found from the folder notebooks/."""
    text = re.sub(r"(\]\()(?![a-z]+:|#)", r"\1../", chapter.read_text(encoding="utf-8"))
    made = jupytext.reads(text, fmt="md")
    made.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    made.nbformat_minor = 5
    for i, cell in enumerate(made.cells):
        cell.id = f"cell-{i}"  # jupytext draws random ones: the file would change at every run
        cell.metadata = {}
    return made


def text_of(made: Any) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(check: bool) -> None:
    for number in CHAPTERS:
        for chapter in COURSE.glob(f"{number}-*.md"):
            path = COURSE / "notebooks" / f"{chapter.stem}.ipynb"
            made = notebook(chapter)
            if not check:
                path.write_text(text_of(made), encoding="utf-8")
            elif not path.exists() or path.read_text(encoding="utf-8") != text_of(made):
                sys.exit(f"{path} is not what its chapter says: run make docs")
            else:
                with tempfile.TemporaryDirectory() as folder:
                    resources = {"metadata": {"path": folder}}
                    arguments = ["--log-level=ERROR"]
                    NotebookClient(made, timeout=120, resources=resources, extra_arguments=arguments).execute()
                cells = sum(cell.cell_type == "code" for cell in made.cells)
                print(f"{path.name}: {cells} cells ran")


if __name__ == "__main__":
    main(sys.argv[1:] == ["--check"])
