"""How fast distances shrink: points with error bars on logarithmic axes, and lines of the expected order."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twolayer.core.errors import InvalidInput
from twolayer.plots.style import DARK_GREY, MARKERS, PAGE, PALETTE, new_figure, put_title, style

PANEL_HEIGHT = 2.3


class Distances(NamedTuple):
    """Distances at several sizes, their standard errors, and the order at which they are expected to shrink."""

    label: str
    sizes: Any
    values: Any
    errors: Any
    order: float | None = None

    @property
    def slope(self) -> float:
        """Of the logarithms, points weighted by their errors; two percent stand for corrections to the order."""
        sizes, values, errors = (np.asarray(x, dtype=float) for x in (self.sizes, self.values, self.errors))
        weights = values / np.hypot(errors, 0.02 * values)
        return float(np.polyfit(np.log(sizes), np.log(values), 1, w=weights)[0])


def convergence(panels: Any, title: str | None = None) -> Figure:
    """Distances against sizes, a panel for each theory.

    Parameters
    ----------
    panels
        For each panel its title and the label of its horizontal axis, and the distances shown in it.
    title
        Written above the figure; formulas stand between dollars.

    Returns
    -------
    A figure as wide as a page, two panels in a row. Points have bars of two standard errors; the legends give the
    fitted slopes; the thin lines have the expected order and pass through the first point.
    """
    if not panels or not all(isinstance(each, Distances) for curves in panels.values() for each in curves):
        raise InvalidInput("Argument `panels` must hold lists of `Distances` under pairs (title, label of the axis).")
    with style():
        rows = -(-len(panels) // 2)
        figure = new_figure(PAGE, PANEL_HEIGHT * rows)
        grid = figure.subplots(rows, 2, squeeze=False)
        for ax, ((name, label), curves) in zip(grid.flat, panels.items(), strict=False):
            for number, curve in enumerate(curves):
                _draw(ax, curve, number)
            ax.set_xscale("log")
            ax.set_yscale("log")
            sizes = sorted({float(size) for curve in curves for size in curve.sizes})
            ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
            ax.xaxis.minorticks_off()
            ax.set_title(name)
            ax.set_xlabel(label)
            low, high = ax.get_ylim()
            ax.set_ylim(low, high * (high / low) ** (0.13 * len(curves)))  # room for the legend
            ax.legend(loc="upper right")
        for ax in grid.flat[len(panels) :]:
            ax.set_axis_off()
        for row in grid:
            row[0].set_ylabel("distance")
        put_title(figure, title)
    return figure


def _draw(ax: Axes, curve: Distances, number: int) -> None:
    sizes, values, errors = (np.asarray(x, dtype=float) for x in (curve.sizes, curve.values, curve.errors))
    # A bar that reaches zero has no lower end on a logarithmic axis.
    below = np.minimum(2.0 * errors, 0.95 * values)
    color, marker = PALETTE[number], MARKERS[number % len(MARKERS)]
    label = f"{curve.label} (slope ${curve.slope:.2f}$)" if curve.order is not None else curve.label
    ax.errorbar(
        sizes, values, (below, 2.0 * errors), ls="", marker=marker, color=color, mfc="white", capsize=1.5, label=label
    )
    if curve.order is not None:
        ax.plot(sizes, values[0] * (sizes / sizes[0]) ** curve.order, color=DARK_GREY, lw=0.6, zorder=1)
