"""attention.plot: what is drawn is what was given, every token has its label, no display is needed."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from checks import tensor
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from attention.plot import heatmap, visible

ROWS, COLUMNS = "2026", ["3", " ", "и", "ю", "н", "я"]
ONE = numpy.random.default_rng(0).dirichlet(numpy.ones(6), size=4)  # (4, 6), each row a distribution
SEVERAL = numpy.random.default_rng(1).dirichlet(numpy.ones(6), size=(5, 4))  # five heads


def images(figure: Any) -> list[Any]:
    """The data of the heat maps of ``figure``, in order (the colour bar is no image)."""
    return [axis.get_images()[0].get_array() for axis in figure.axes if axis.get_images()]


@pytest.mark.parametrize("weights", [ONE, ONE.tolist(), tensor(ONE), tuple(map(tuple, ONE.tolist()))])
def test_one_head(weights: Any) -> None:
    figure = heatmap(weights, ROWS, COLUMNS, title="a $title$")
    panel, bar = figure.axes
    (image,) = images(figure)
    numpy.testing.assert_allclose(image, ONE, rtol=1e-6)  # PyTorch makes float32 of a list
    assert [label.get_text() for label in panel.get_yticklabels()] == ["2", "0", "2", "6"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["3", "␣", "и", "ю", "н", "я"]
    assert panel.get_yticks().tolist() == [0, 1, 2, 3]
    assert panel.get_xticks().tolist() == [0, 1, 2, 3, 4, 5]
    assert panel.get_ylim() == (3.5, -0.5)  # the first query on top
    assert figure.get_suptitle() == "a $title$"
    assert bar.get_ylim() == pytest.approx((0, ONE.max()))


@pytest.mark.parametrize("weights", [SEVERAL, SEVERAL.tolist(), tensor(SEVERAL)])
def test_all_heads(weights: Any) -> None:
    figure = heatmap(weights, ROWS, COLUMNS)
    numpy.testing.assert_allclose(images(figure), SEVERAL, rtol=1e-6)
    panels = figure.axes[:5]
    assert [panel.get_title() for panel in panels] == [f"head {i}" for i in range(5)]
    assert len({panel.get_images()[0].get_clim() for panel in panels}) == 1  # one colour, one weight
    assert panels[0].get_images()[0].get_clim() == pytest.approx((0, SEVERAL.max()))
    assert len(figure.axes) == 6  # the sixth place of the grid is empty, and there is one colour bar
    for panel in panels:
        assert len(panel.get_xticklabels()) == 6
        assert len(panel.get_yticklabels()) == 4


def test_the_png_shows_the_weights(tmp_path: Path) -> None:
    """Dark where the weight is, in the place where the axes say: the file itself, read back."""
    file = tmp_path / "attention.png"
    weights = [[0.0] * 6 for _ in range(4)]
    weights[1][4] = 1.0
    figure = heatmap(weights, ROWS, COLUMNS, path=file)
    picture = imread(file)
    height = picture.shape[0]
    scale = 150 / figure.dpi  # the file has 150 dots an inch
    for row in range(4):
        for column in range(6):
            x, y = figure.axes[0].transData.transform((column, row)) * scale
            red = picture[height - 1 - round(y), round(x), 0]
            assert red < 0.1 if (row, column) == (1, 4) else red > 0.9


def test_labels_neither_overlap_nor_leave_the_picture() -> None:
    for weights in (ONE, SEVERAL):
        figure = heatmap(weights, ["<eos>"] * 4, ["<bos>", *"WWWWW"], title="title")
        figure.draw_without_rendering()
        for panel in figure.axes[:-1]:
            for labels in (panel.get_xticklabels(), panel.get_yticklabels()):
                boxes = [label.get_window_extent() for label in labels]
                for box, following in pairwise(boxes):
                    assert not box.overlaps(following)
                for box in boxes:
                    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
                    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_a_formula_is_not_set_as_one(tmp_path: Path) -> None:
    """Two dollar signs in a label or a title would be TeX to matplotlib, and bad TeX an exception."""
    heatmap([[1.0]], [r"$\frac$"], [r"$x^$"], title=r"$\nothing$", path=tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


def test_nothing_in_a_label_or_a_title_is_obeyed_or_warned_of(tmp_path: Path) -> None:
    """(A warning is an error in these tests.)"""
    figure = heatmap([[1.0]], ["日"], ["本"], title="日本\n\x1b[2J\udcff  →  x", path=tmp_path / "x.png")
    assert figure.get_suptitle() == "日本↵U+001B[2JU+DCFF  →  x"


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.pdf", b"%PDF"), ("x.svg", b"<?xml"), ("x", b"\x89PNG")]
)
def test_the_ending_is_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    heatmap([[1.0]], "a", "b", path=tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_an_ending_that_is_no_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.tex: expected a picture, .* pdf, .*png"):
        heatmap([[1.0]], "a", "b", path=tmp_path / "x.tex")
    assert not list(tmp_path.iterdir())


def test_a_long_text_makes_no_giant_picture() -> None:
    n = 700
    weights = [[0.0] * n] * n
    width, height = heatmap(weights, "a" * n, "a" * n).get_size_inches()
    assert max(width, height) < 35
    small = heatmap([[1.0]], "a", "b").get_size_inches()
    assert min(small) >= 1


@pytest.mark.parametrize(
    ("weights", "shape"),
    [
        (0.5, ()),
        ([], (0,)),
        ([[]], (1, 0)),
        (ONE[0], (6,)),
        (SEVERAL[None], (1, 5, 4, 6)),
        (SEVERAL[:0], (0, 4, 6)),
        (ONE.T, (6, 4)),
        (SEVERAL[:, :3], (5, 3, 6)),
    ],
)
def test_wrong_shapes_are_refused_in_one_line(tmp_path: Path, weights: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^expected weights of shape \(T_q, T_k\) or \(H, T_q, T_k\), ") as caught:
        heatmap(weights, ROWS, COLUMNS, path=tmp_path / "x.png")
    assert str(caught.value).endswith(f"got {shape} with 4 and 6 labels")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_save_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        heatmap(ONE, ROWS, COLUMNS, path=file)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_neither_pyplot_nor_a_display_nor_a_hurry(tmp_path: Path) -> None:
    """Importing the module does not import matplotlib; drawing does not import pyplot."""
    code = (
        "import sys; from attention.plot import heatmap; assert 'matplotlib' not in sys.modules;"
        "heatmap([[1.0]], 'a', 'b', path=sys.argv[1]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    file = tmp_path / "x.png"
    subprocess.run([sys.executable, "-c", code, file], check=True, env=environment)
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" ", "␣"),
        ("\n", "↵"),
        ("\t", "⇥"),
        ("\0", "U+0000"),
        ("\u202f", "U+202F"),
        ("\udcff", "U+DCFF"),
        ("\U000e0001", "U+E0001"),
        ("3 июня\n", "3␣июня↵"),
        ("<bos>", "<bos>"),
        ("", ""),
    ],
)
def test_visible(token: str, label: str) -> None:
    assert visible(token) == label


@given(st.text())
def test_visible_hides_nothing(token: str) -> None:
    label = visible(token)
    assert label.isprintable()
    assert not any(character.isspace() for character in label)
    assert len(label) >= len(token)
