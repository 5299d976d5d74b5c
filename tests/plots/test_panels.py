"""Figures from plain numbers: what is drawn, where legends stand, and what is refused."""

import numpy as np
import pytest

from twolayer.core.errors import InvalidInput
from twolayer.plots import Panel, Series, panels, save_figure
from twolayer.plots.style import PALETTE

X = np.array([1.0, 2.0, 4.0])


def test_panels_share_colours_and_the_common_legend(tmp_path):
    first = [Series("theory", X, X), Series("runs", X, X, error=0.1 * X, kind="points", color=3)]
    second = [Series("theory", X, 2 * X, band=(X, 3 * X)), Series("$x$", X, X, kind="reference"), Series("", X, X)]
    figure = panels([Panel("x", "y", first), Panel("x", "y", second, log="xy", xticks=[1, 4], title="b")], "title")
    left, right = figure.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["runs"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["$x$"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["theory"]
    assert left.lines[0].get_color() == right.lines[0].get_color() == PALETTE[0]
    assert right.get_xscale() == right.get_yscale() == "log" and list(right.get_xticks()) == [1, 4]
    bars = left.containers[0].lines[2][0].get_segments()  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_allclose([bar[1, 1] - bar[0, 1] for bar in bars], 4 * 0.1 * X)  # two standard errors each way
    assert all(path.stat().st_size > 1000 for path in save_figure(figure, tmp_path / "figure"))


def test_every_panel_may_have_its_own_legend():
    figure = panels([Panel("x", "y", [Series("theory", X, X)]) for _ in range(2)], has_common_legend=False)
    assert not figure.legends
    assert all([text.get_text() for text in ax.get_legend().get_texts()] == ["theory"] for ax in figure.axes)


def test_bad_panels_are_refused():
    with pytest.raises(InvalidInput, match="`shown`"):
        panels([])
    with pytest.raises(InvalidInput, match="`kind`"):
        Series("a", X, X, kind="dots")
