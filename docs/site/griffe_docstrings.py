"""Docstrings as mkdocstrings needs them: a reader's call of a primitive has no ``xp``, and doctests are code."""

import importlib
from typing import Any

import griffe

from minigrad.autodiff import Primitive


class Docstrings(griffe.Extension):
    """Loaded by mkdocs.yml."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """The signature without what the decorator `primitive` takes away."""
        if any(str(decorator.value).split("(")[0].endswith("primitive") for decorator in func.decorators):
            del func.parameters[next(iter(func.parameters)).name]

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Functions that come from a table have their docstrings only once it is read."""
        if attr.parent is not None and attr.parent.is_module and attr.docstring is None:
            made = getattr(importlib.import_module(attr.parent.path), attr.name, None)
            if isinstance(made, Primitive) and made.__doc__:
                attr.docstring = griffe.Docstring(with_code_fences(made.__doc__), parent=attr)
                attr.value = str(made.__signature__)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_code_fences(obj.docstring.value)


def with_code_fences(text: str) -> str:
    """Put doctests into fences. Markdown would take ``>>>`` for three quotations.

    Under the heading Examples griffe finds them by itself.
    """
    lines: list[str] = []
    inside = under_examples = False
    before = ""
    for line in text.splitlines():
        if line and set(line) == {"-"}:
            under_examples = before == "Examples"
        if not under_examples:
            if line.lstrip().startswith(">>>") and not inside:
                lines += ["", "```pycon"]
                inside = True
            elif inside and not line.strip():
                lines.append("```")
                inside = False
        lines.append(line)
        before = line
    if inside:
        lines.append("```")
    return "\n".join(lines)
