"""Every Python block of the README and docs/ runs, and so does every example in a docstring."""

import doctest
import importlib
import inspect
import io
import pkgutil
import re
import shlex
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

import attention
import minigrad
from attention.__main__ import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMPY_ONLY = pytest.mark.skipif(
    minigrad.get_backend() != "numpy", reason="the examples print Tensors of the default backend"
)


def modules():
    for package in (minigrad, attention):
        yield package.__name__
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                yield module.name


@NUMPY_ONLY
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_pages_run(page, monkeypatch, capsys, tmp_path):
    # CuPy's part is played by NumPy where there is no GPU: the code of the page is the same.
    import numpy

    monkeypatch.setitem(sys.modules, "cupy", numpy)
    monkeypatch.setitem(minigrad.backend._LOADERS, "cupy", lambda: minigrad.backend.NUMPY)
    monkeypatch.setattr(minigrad.backend, "is_installed", lambda name: True)
    # A primitive of a page would keep alive all that the page has defined, graphs too.
    monkeypatch.setattr(minigrad.autodiff, "ALL", dict(minigrad.autodiff.ALL))
    monkeypatch.chdir(tmp_path)
    run_blocks(page, PythonCodeBlockParser(), capsys)


def run_blocks(page, parser, capsys):
    document = Sybil(parsers=[parser]).parse(page)
    expected = []
    for example in document.examples():
        example.evaluate()
        # What a page says is printed, in a comment behind print(…), is printed.
        expected += re.findall(r"^ *print\(.*\) +# (.*)$", example.parsed, re.MULTILINE)
    document.namespace.clear()  # the primitives of a page are registered for good, and hold what it computed
    assert capsys.readouterr().out.splitlines() == expected


# Blocks that need published weights, which not every machine has that runs these tests.
WEIGHTS = 'python title="needs the published weights"'


@NUMPY_ONLY
@pytest.mark.models
@pytest.mark.parametrize("page", [page for page in PAGES if WEIGHTS in page.read_text()], ids=lambda page: page.stem)
def test_blocks_that_need_weights_run(page, monkeypatch, capsys, tmp_path):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    run_blocks(page, CodeBlockParser(WEIGHTS, PythonEvaluator()), capsys)


@NUMPY_ONLY
@pytest.mark.models
@pytest.mark.parametrize(("page", "count"), [("README.md", 5), ("docs/models.md", 5)])
def test_commands_for_published_models_print_what_the_page_says(page, count, monkeypatch, capsys, tmp_path):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # nothing is typed
    text = (ROOT / page).read_text().replace("\\\n", "")
    commands = re.findall(r"^\$ python -m attention (.* --model .*)\n((?:(?!\$|```).*\n)*)", text, re.MULTILINE)
    assert len(commands) == count
    for command, expected in commands:
        assert main(shlex.split(command, comments=True)) == 0
        assert capsys.readouterr().out == expected


@NUMPY_ONLY
@pytest.mark.parametrize("name", list(modules()))
def test_docstrings(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(name), extraglobs={"mg": minigrad}, optionflags=flags)
    assert result.failed == 0


WITH_USERS = [
    name for name in modules() if "._" not in name and name not in ("minigrad", "attention", "minigrad.command_line")
]
SOURCE = re.compile(r"https://|arXiv:|[(,] ?(19|20)\d\d\b")  # an address or a year


def public(module):
    """What a module has for its users: what it or its package lists in `__all__`; if nothing, all that it defines."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    own = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    package = sys.modules[module.__package__]
    listed = {id(getattr(package, name)) for name in getattr(package, "__all__", [])}
    return {name: value for name, value in own.items() if id(value) in listed} or own


@pytest.mark.parametrize("name", WITH_USERS)
def test_docstrings_give_examples_and_sources(name):
    module = importlib.import_module(name)
    docs = {name: inspect.getdoc(value) or "" for name, value in public(module).items()}
    assert [name for name, doc in docs.items() if ">>>" not in doc] == []
    assert SOURCE.search("\n".join([module.__doc__, *docs.values()]))


def test_pages_run_the_tests_that_the_makefile_runs():
    [suite] = re.findall(r'^SUITE := .* -m "(.*?)"', (ROOT / "Makefile").read_text(), re.MULTILINE)
    chosen = [found for page in PAGES for _, found in re.findall(r"pytest -m (['\"])(.*)\1", page.read_text())]
    assert len(chosen) >= 3
    assert set(chosen) == {suite}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
