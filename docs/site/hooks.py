"""What MkDocs is told beyond mkdocs.yml.

- The README is the home page. A link from a page to a source file, which GitHub shows, leads to a page with its text.
- The reference has a page for each public module, with what its docstrings and annotations say.
- Formulas become MathML, which browsers draw without a script.
"""

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".yml": "yaml"}

sources: set[str] = set()  # files outside docs/ that pages link to


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the chapters of the course and the pages of the reference to the navigation."""
    sources.clear()
    assert config.nav is not None
    for item in config.nav:
        for title, children in item.items():
            if title == "Course":
                chapters = sorted((ROOT / "docs" / "course").glob("[0-9]*.md"))
                children += [f"course/{path.name}" for path in chapters]
            elif title == "Reference":
                for package in ("minigrad", "attention"):
                    children.append({package: [page_of(module) for module in modules(package)]})
    return config


def modules(package: str) -> list[str]:
    """The public modules, in the order of their names, the package first."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / package).rglob("*.py")
    ]
    return sorted(name for name in names if not re.search(r"\._", name))


def page_of(module: str) -> str:
    return f"reference/{module}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written here: the home page, the reference, the sources."""
    pages = {"index.md": in_docs((ROOT / "README.md").read_text(encoding="utf-8"))}
    pages["reference/index.md"] = REFERENCE + "".join(
        f"\n## {package}\n\n" + "".join(f"- [`{module}`]({module}.md)\n" for module in modules(package))
        for package in ("minigrad", "attention")
    )
    for package in ("minigrad", "attention"):
        for module in modules(package):
            pages[page_of(module)] = reference(module)
    for file in files.documentation_pages():
        find_sources(Path(file.abs_src_path).read_text(encoding="utf-8"), posixpath.dirname("docs/" + file.src_uri))
    find_sources((ROOT / "README.md").read_text(encoding="utf-8"), "")
    for path in sorted(sources):
        pages[source_page(path)] = source(path)
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


REFERENCE = """\
# Reference

Each module, with what its docstrings say: shapes, dtypes, errors and examples. The functions of the Python Array API
standard are in the modules of its chapters, and all of them in the namespace `minigrad`.
"""


def reference(module: str) -> str:
    """The page of a module. A package's own page shows no members: these have pages of their own."""
    is_package = (ROOT / module.replace(".", "/")).is_dir()
    options = "\n    options:\n      members: false" if is_package else ""
    return f"# `{module}`\n\n::: {module}{options}\n"


# ------------------------------------------------------------------------------------------------ links to sources


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links out of docs/ lead to the pages of these files."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.generated_by:
        return markdown

    def there(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if path.startswith(("docs/", "..")) or not (ROOT / path).exists():
            return match[0]
        target = "index.md" if path == "README.md" else source_page(path)
        return match[1] + posixpath.relpath(target, folder or ".") + (match[3] or "") + match[4]

    return LINK.sub(there, markdown)


def in_docs(readme: str) -> str:
    """The README's text with links as from docs/index.md."""

    def there(match: re.Match[str]) -> str:
        path = posixpath.normpath(match[2])
        target = path.removeprefix("docs/") if path.startswith("docs/") else source_page(path)
        return match[1] + target + (match[3] or "") + match[4]

    return LINK.sub(there, readme)


def find_sources(markdown: str, folder: str) -> None:
    """Note the files outside docs/ to which a page in ``folder`` links, and what the folders among them hold."""
    for _, target, _, _ in LINK.findall(markdown):
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith(("docs/", "..")) or path == "README.md" or not (ROOT / path).exists():
            continue
        sources.add(path)
        if (ROOT / path).is_dir():
            sources.update(f"{path}/{name}" for name in listing(path))


def listing(folder: str) -> list[str]:
    return sorted(p.name for p in (ROOT / folder).iterdir() if p.is_file() and p.suffix in (*LANGUAGES, ".txt"))


def source_page(path: str) -> str:
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def source(path: str) -> str:
    """The page of a file or folder outside docs/."""
    if (ROOT / path).is_dir():
        return f"# {path}\n\n" + "".join(f"- [`{name}`]({name}.md)\n" for name in listing(path))
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n``````{language}\n{text}``````\n"


# ------------------------------------------------------------------------------------------------ formulas

FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


# sin x, not sinx: a thin space behind a function's name, unless a bracket follows, or an index belongs to it.
NAME = re.compile(r"((?<!<msub>)(?<!<msup>)(?<!<munder>)<mi>(?:sin|cos|tanh|log|ln|exp)</mi>)(?=<m[a-z])(?!<mo)")
LONG = 40  # signs of LaTeX: such a formula in a line can be wider than a phone


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Turn the formulas that pymdownx.arithmatex found into MathML, and let the long messages of errors.md wrap."""

    def drawn(match: re.Match[str]) -> str:
        formula, display = html.unescape(match[2]).strip(), match[1] == "div"
        kind = "formula" if display or len(formula) < LONG else "formula long"
        return f'<{match[1]} class="{kind}">{mathml(formula, display, page)}</{match[1]}>'

    content = FORMULA.sub(drawn, content)
    return f'<div class="wrapped">{content}</div>' if page.file.src_uri == "errors.md" else content


def mathml(formula: str, display: bool, page: Page) -> str:
    try:
        result = convert(formula, display="block" if display else "inline")
    except Exception as error:
        raise PluginError(f"{page.file.src_uri}: formula {formula!r}: {type(error).__name__} {error}") from error
    if "\\" in html.unescape(result):
        raise PluginError(f"{page.file.src_uri}: formula {formula!r}: an unknown command in {result}")
    return NAME.sub(r'\1<mspace width="0.17em" />', result)
