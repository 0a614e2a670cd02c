"""CuPy without a GPU: every function and keyword that the project calls on a namespace exists in CuPy's.

CuPy's namespace can be imported where there is no GPU; nothing can be computed. On a machine with one, the whole suite
runs on it: MINIGRAD_BACKEND=cupy python -m pytest -m "not peers".
"""

import ast
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [*sorted((ROOT / "minigrad").glob("*.py")), *sorted((ROOT / "attention").rglob("*.py"))]
BY_NAME = {"_new", "_like", "_unary", "_binary", "_frequencies"}  # helpers that are given a function's name


def calls():
    """(file, function, its keywords) of each call of a namespace's function in the source."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                path = attribute_path(node.func)
                if path[:1] == ["xp"] and len(path) > 1:
                    keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
                    yield file.name, ".".join(path[1:]), keywords
                elif path and path[0] in BY_NAME and isinstance(node.args[0], ast.Constant):
                    prefix = "fft." if path[0] == "_frequencies" else ""
                    keywords = tuple(k.arg for k in node.keywords if k.arg not in (None, "view"))
                    yield file.name, prefix + node.args[0].value, keywords


def attribute_path(node):
    if isinstance(node, ast.Attribute):
        head = attribute_path(node.value)
        return [*head, node.attr] if head else []
    return [node.id] if isinstance(node, ast.Name) else []


# erf is asked for with hasattr first, and computed where a namespace lacks it.
CALLS = [call for call in calls() if call[1] != "erf"]


def test_calls_are_found():
    found = {name for _, name, _ in CALLS}
    assert {"exp", "matmul", "linalg.solve", "fft.rfft", "zeros", "floor", "where"} <= found


@pytest.mark.peers
@pytest.mark.parametrize("name", sorted({name for _, name, _ in CALLS}))
def test_cupy_has(name):
    import array_api_compat.cupy as xp

    function = xp
    for part in name.split("."):
        function = getattr(function, part)
    for file, called, keywords in CALLS:
        if called != name or not keywords:
            continue
        parameters = inspect.signature(function).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for keyword in keywords:
            assert anything or keyword in parameters, f"{file}: {name}(…, {keyword}=…)"
