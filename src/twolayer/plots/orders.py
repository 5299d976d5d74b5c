"""How fast distances shrink: points with error bars on logarithmic axes, and lines of the expected order."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.plots.panels import Panel, Place, Sheet, draw
from twolayer.plots.series import Drawable, Series


class Distances(NamedTuple):
    """Distances at several sizes, their standard errors, and the order at which they are expected to shrink."""

    label: str
    sizes: Any
    values: Any
    errors: Any
    order: float | None = None

    @property
    def slope(self) -> float:
        """Slope of log distance by log size, with weights from the errors and 2% for corrections to the order."""
        sizes, values, errors = (np.asarray(x, dtype=float) for x in (self.sizes, self.values, self.errors))
        weights = values / np.hypot(errors, 0.02 * values)
        return float(np.polyfit(np.log(sizes), np.log(values), 1, w=weights)[0])


def convergence(
    panels: Mapping[tuple[str, str], Sequence[Distances]], title: str | None = None, *, ax: Place | None = None
) -> Place:
    """Distances against sizes, a panel for each theory.

    Parameters
    ----------
    panels
        For each panel its title and the label of its horizontal axis, and the distances shown in it, which colours tell
        apart: these take the place of ``hue`` and ``col``, since distances are plain numbers without dimensions.
    title
        Written above the figure; formulas stand between dollars.
    ax
        Where to draw, if not in a figure of its own: axes for the first panel, several axes for as many panels, a
        mapping from the titles of panels to axes, or a `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure as wide as a page, two panels in a row, or what was given as ``ax``. Points have bars of two standard
    errors; the legends give the fitted slopes; the thin lines have the expected order and pass through the first point.
    """
    if not panels or not all(isinstance(curve, Distances) for curves in panels.values() for curve in curves):
        raise InvalidInput("Argument `panels` must hold lists of `Distances` under pairs (title, label of the axis).")
    shown = [_panel(name, label, curves) for (name, label), curves in panels.items()]
    return draw(Sheet(shown, columns=2, has_common_legend=False), title, ax)


def _panel(name: str, label: str, curves: Sequence[Distances]) -> Panel:
    series: list[Drawable] = []
    for number, curve in enumerate(curves):
        sizes, values, errors = (np.asarray(x, dtype=float) for x in (curve.sizes, curve.values, curve.errors))
        label_with_slope = curve.label if curve.order is None else f"{curve.label} (slope ${curve.slope:.2f}$)"
        series.append(Series(label_with_slope, sizes, values, errors, kind="points", color=number))
        if curve.order is not None:
            expected = values[0] * (sizes / sizes[0]) ** curve.order
            series.append(Series("", sizes, expected, kind="reference"))
    ends = np.concatenate([np.ravel([np.subtract(c.values, c.errors), np.add(c.values, c.errors)]) for c in curves])
    low, high = ends[ends > 0.0].min(), ends.max()
    room = (high / low) ** (0.1 + 0.16 * len(curves))  # for the legend
    ticks = sorted({float(size) for curve in curves for size in curve.sizes})
    options: dict[str, Any] = {
        "xticks": ticks,
        "ylim": (low / (high / low) ** 0.1, high * room),
        "legend": "upper right",
    }
    return Panel(label, "distance", series, log="xy", title=name, name=name, **options)
