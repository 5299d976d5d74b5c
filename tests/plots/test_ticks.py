"""Logarithmic axes can be read over any range: enough labels, all different, each the number at its place."""

import re

import numpy as np
import pytest

from twolayer.plots import Panel, Series, panels
from twolayer.plots.ticks import LogLabels

RANGES = [
    (0.52, 0.58),
    (0.3, 0.9),
    (0.15, 20.0),
    (6e-5, 9e-5),
    (1.1e-5, 2e-5),
    (2e3, 5e3),
    (3e4, 7e4),
    (0.9998, 1.0003),
]


def read(label: str) -> float:
    """The number that a label says."""
    label = re.sub(r"\\mathdefault|[${}]", "", label)
    mantissa, _, power = label.rpartition("10^")
    return float((mantissa.removesuffix(r"\times") or "1") + "e" + power) if "^" in label else float(label)


def labels(low: float, high: float, axis: str) -> list[tuple[float, str]]:
    """Ticks in view with their labels."""
    x = np.geomspace(low, high, 5)
    limits = {f"{axis}lim": (low, high)}
    figure = panels([Panel("x", "y", [Series("a", x, x)], log="xy", **limits)])
    figure.canvas.draw()
    ax = figure.axes[0]
    shown = getattr(ax, f"{axis}axis").get_major_ticks()
    found = [(tick.get_loc(), tick.label1.get_text()) for tick in shown]
    return [(place, text) for place, text in found if low <= place <= high and text]


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_less_than_a_decade_can_be_read(low, high, axis):
    shown = labels(low, high, axis)
    texts = [text for _, text in shown]
    assert 3 <= len(texts) <= 9 and len(set(texts)) == len(texts)
    for place, text in shown:
        assert read(text) == pytest.approx(place, rel=1e-6)


def test_many_decades_are_labelled_by_powers_of_ten():
    shown = labels(1e-9, 1e4, "y")
    assert 3 <= len(shown) <= 14 and all("10^{" in text and "times" not in text for _, text in shown)
    assert [read(text) for _, text in shown] == pytest.approx([place for place, _ in shown])


def test_a_single_label_can_be_written():
    assert LogLabels()(0.25) == "0.25" and read(LogLabels()(1e-7)) == 1e-7
