"""attention.heatmap_page: the page holds the weights, tokens stay text, nothing is loaded."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor
from hypothesis import given
from hypothesis import strategies as st

from attention import heatmap_page as module
from attention.heatmap_page import heatmap_page

ROWS, COLUMNS = ["a", "b", "c", "d"], ["3", " ", "и", "ю", "н", "я"]
LAYERS = {f"layer {i}": numpy.random.default_rng(i).dirichlet(numpy.ones(6), size=(5, 4)) for i in range(3)}
HOSTILE = [
    "</script><img src=x onerror=document.title='hacked'>",
    "<!--<script>",
    "\"'><b>&amp;",
    "@SCRIPT@",
    "\u2028\u202e\x00\udcff",
    "${x}`\\u003c",
]


class Page(HTMLParser):
    """The elements of a page in order, and what stands in its scripts and its title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self.open = dict(attrs).get("type") or tag

    def handle_endtag(self, tag: str) -> None:
        self.open = None

    def handle_data(self, text: str) -> None:
        if self.open is not None:
            self.texts[self.open] = self.texts.get(self.open, "") + text

    @property
    def data(self) -> Any:
        return json.loads(self.texts["application/json"])


@pytest.mark.parametrize("kind", [numpy.asarray, tensor, numpy.ndarray.tolist])
def test_the_numbers_in_the_page_are_the_weights(kind: Any) -> None:
    data = Page(heatmap_page({name: kind(x) for name, x in LAYERS.items()}, ROWS, COLUMNS, "title", digits=4)).data
    assert [layer["name"] for layer in data["layers"]] == list(LAYERS)
    for layer, weights in zip(data["layers"], LAYERS.values(), strict=True):
        found = numpy.asarray(layer["heads"]).reshape(5, 4, 6) / data["unit"]
        numpy.testing.assert_allclose(found, weights, rtol=0, atol=0.5001e-4)
    assert (data["rows"], data["columns"]) == (ROWS, ["3", "␣", "и", "ю", "н", "я"])


def test_one_script_which_is_the_only_one_that_may_run() -> None:
    found = Page(heatmap_page(LAYERS, ROWS, COLUMNS, "a <title>", layer=2, head=4))
    assert found.texts["title"] == found.data["title"] == "a <title>"
    assert (found.data["layer"], found.data["head"]) == (2, 4)
    assert [tag for tag, _ in found.elements].count("script") == 2  # the numbers are the other
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(found.texts["script"].encode()).digest()).decode()
    assert policy.split("; ")[:3] == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]


def test_nothing_is_asked_for() -> None:
    page = heatmap_page(LAYERS, ROWS, COLUMNS)
    for _, attributes in Page(page).elements:
        assert "src" not in attributes
        assert attributes.get("href") in (None, "data:,")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|import\(", page)


def test_every_element_that_the_script_asks_for_is_there() -> None:
    found = Page(heatmap_page(LAYERS, ROWS, COLUMNS))
    asked = set(re.findall(r'(?:\bat|getElementById)\("(\w+)"\)', found.texts["script"]))
    assert asked == {attributes["id"] for _, attributes in found.elements if "id" in attributes}
    assert "innerHTML" not in found.texts["script"]


def test_hostile_tokens_stay_text() -> None:
    n = len(HOSTILE)
    same = heatmap_page({"x": numpy.full((1, n, n), 1 / n)}, ["a"] * n, ["a"] * n, "a")
    page = heatmap_page({HOSTILE[0]: numpy.full((1, n, n), 1 / n)}, HOSTILE, HOSTILE, HOSTILE[0])
    assert Page(page).elements == Page(same).elements
    assert Page(page).texts["script"] == Page(same).texts["script"]
    data = Page(page).data
    shown = [*(token.replace(" ", "␣") for token in HOSTILE[:4]), "U+2028U+202EU+0000U+DCFF", HOSTILE[5]]
    assert data["rows"] == data["columns"] == shown
    assert data["title"] == Page(page).texts["title"] == HOSTILE[0]
    assert page.encode().decode() == page  # no lone surrogate


@given(st.text())
def test_any_token_stays_text(token: str) -> None:
    page = Page(heatmap_page({token: [[[1.0]]]}, [token], [token], token))
    assert len(page.elements) == len(Page(heatmap_page({"": [[[1.0]]]}, [""], [""], "")).elements)
    assert page.data["layers"][0]["name"] == token


@pytest.mark.peers
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """Chromium runs it: the cells that it made, and what hostile tokens became."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium here")
    n = len(HOSTILE)
    weights = numpy.random.default_rng(0).dirichlet(numpy.ones(n), size=(2, 3, n))
    file = tmp_path / "x.html"
    heatmap_page({"0": weights[0], "1": weights[1]}, HOSTILE, HOSTILE, HOSTILE[0], file, layer=1, head=2)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    shown = subprocess.run([browser, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = Page(shown.stdout)
    assert found.texts["title"] == HOSTILE[0]
    assert not {"img", "b"} & {tag for tag, _ in found.elements}
    labels = [float(a["aria-label"] or "") for tag, a in found.elements if tag == "td" and "data-at" in a]
    numpy.testing.assert_allclose(labels, weights[1, 2].flatten(), rtol=0, atol=0.5001e-3)
    assert [tag for tag, _ in found.elements].count("canvas") == 3
    assert [a["title"] for tag, a in found.elements if a.get("scope") == "row"] == Page(file.read_text()).data["rows"]


@pytest.mark.models
def test_the_command_line_writes_the_weights_of_all_layers(tmp_path: Path) -> None:
    from attention.__main__ import main
    from attention.formats import open_published
    from attention.models.load import find, load
    from attention.use import weights_of

    text, file = "A cat sat.", tmp_path / "x.html"
    assert main(["heatmap", "--model", "minilm", "--layer", "5", "--output", str(file), text]) == 0
    data = Page(file.read_text("utf-8")).data
    tokens, layers = weights_of(load("minilm"), open_published(find("minilm")), text)
    assert (data["rows"], data["columns"], data["layer"]) == (tokens, tokens, 5)
    found = numpy.asarray([layer["heads"] for layer in data["layers"]]).reshape(6, 12, len(tokens), len(tokens))
    numpy.testing.assert_allclose(found / data["unit"], layers, rtol=0, atol=0.5001e-3)


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        (LAYERS["layer 0"][0], r"^x: expected weights of shape \(H, T_q, T_k\), .* got \(4, 6\) with 4 and 6 labels$"),
        (LAYERS["layer 0"][:, :3], r"^x: expected weights of shape .* got \(5, 3, 6\) with 4 and 6 labels$"),
        (LAYERS["layer 0"][:0], r"^x: expected weights of shape .* got \(0, 4, 6\) with 4 and 6 labels$"),
        (LAYERS["layer 0"] - 1, r"^x: expected weights from 0 to 1, got -\d.* to -\d.*$"),
        (LAYERS["layer 0"] * numpy.nan, r"^x: expected weights from 0 to 1, got nan to nan$"),
    ],
)
def test_what_is_no_weights_is_refused_in_one_line(tmp_path: Path, weights: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        heatmap_page({"x": weights}, ROWS, COLUMNS, path=tmp_path / "x.html")
    assert not list(tmp_path.iterdir())


def test_too_many_none_and_a_head_that_is_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^expected 1 to 4,000,000 weights for a page, got 0: take fewer"):
        heatmap_page({}, ROWS, COLUMNS)
    with pytest.raises(ValueError, match=r"^expected a layer and a head of these, got 3 and 0$"):
        heatmap_page(LAYERS, ROWS, COLUMNS, layer=3)
    with pytest.raises(ValueError, match=r"^expected a layer and a head of these, got 0 and 5$"):
        heatmap_page(LAYERS, ROWS, COLUMNS, head=5)
    monkeypatch.setattr(module, "MOST_WEIGHTS", 359)
    with pytest.raises(ValueError, match=r"^expected 1 to 359 weights for a page, got 360: take fewer"):
        heatmap_page(LAYERS, ROWS, COLUMNS)


def test_the_example_of_the_documentation_is_small() -> None:
    file = Path(__file__).parent.parent / "docs" / "course" / "heatmap.html"
    assert file.stat().st_size < 300_000
    found = Page(file.read_text("utf-8"))
    for layer in found.data["layers"]:
        heads = numpy.asarray(layer["heads"]).reshape(len(layer["heads"]), len(found.data["rows"]), -1)
        numpy.testing.assert_allclose(heads.sum(axis=-1) / found.data["unit"], 1, atol=0.01)
    # What chapter 12 says of it: a head that looks at the token before, and where more than half of the weight is.
    n = len(found.data["rows"])
    every = numpy.asarray([layer["heads"] for layer in found.data["layers"]]).reshape(6, 12, n, n) / found.data["unit"]
    assert every[0, 2, 0, 0] > 0.99
    assert numpy.diag(every[0, 2], -1).min() > 0.99
    assert int((every[..., [0, -1]].sum(axis=-1).mean(axis=-1) > 0.5).sum()) == 34
    made = heatmap_page({"x": [[[1.0]]]}, "a", "a")  # with the script of today
    assert found.texts["script"] == Page(made).texts["script"]
    assert found.texts["style"] == Page(made).texts["style"]
