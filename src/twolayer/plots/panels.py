"""A figure from plain numbers: panels of curves, points with error bars, and bands; for gallery pages and notebooks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twolayer.core.errors import InvalidInput, shown
from twolayer.plots.style import (
    DARK_GREY,
    LEGEND_LINE,
    LINESTYLES,
    MARKERS,
    PAGE,
    PALETTE,
    grow,
    new_figure,
    put_title,
    style,
)

PANEL_HEIGHT = 2.3
KINDS = ("line", "points", "reference", "bars")
LEGEND_COLUMNS = 2  # of a legend below its panel
LETTERS_IN_LEGEND = 95  # of a row as wide as a page


@dataclass(frozen=True)
class Series:
    """One curve: a theory is a line, a measurement points with bars of two standard errors.

    ``band`` holds a lower and an upper curve that are shaded, such as quantiles of runs. Series of one ``color`` (a
    number) belong together; without it each label has its own. A reference is a thin grey line.
    """

    label: str
    x: Any
    y: Any
    error: Any = None
    band: Any = None
    kind: str = "line"
    color: int | None = None
    dashed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"Argument `kind` must be one of {', '.join(KINDS)}, but is {shown(self.kind)}.")


@dataclass(frozen=True)
class Panel:
    """Series that share their axes; ``log`` names the logarithmic ones, as in "xy"."""

    xlabel: str
    ylabel: str
    series: Sequence[Series]
    log: str = ""
    title: str = ""
    xlim: Any = None
    ylim: Any = None
    xticks: Any = None
    legend: str = "best"  # where matplotlib puts it, or "below" the panel, where curves leave no room


def panels(shown: Sequence[Panel], title: str | None = None, columns: int = 3) -> Figure:
    """Panels side by side, each with its legend; what several panels have in common stands below all of them.

    Parameters
    ----------
    shown
        The panels, at most ``columns`` in a row.
    title
        Written above the figure; formulas stand between dollars.
    columns
        Panels in a row.

    Returns
    -------
    A figure as wide as a page. A label that appears in several panels has one colour in all of them.
    """
    if not shown or not all(isinstance(each, Panel) for each in shown):
        raise InvalidInput("Argument `shown` must be a list of `Panel`.")
    labels = list(dict.fromkeys(each.label for panel in shown for each in panel.series if each.kind != "reference"))
    with style():
        columns = min(columns, len(shown))
        rows = -(-len(shown) // columns)
        figure = new_figure(PAGE, PANEL_HEIGHT * rows)
        grid = figure.subplots(rows, columns, squeeze=False)
        homes = Counter(label for panel in shown for label in {each.label for each in panel.series} if label)
        common: dict[str, Any] = {}
        below = 0  # lines of legends below the panels
        for ax, panel in zip(grid.flat, shown, strict=False):
            own: dict[str, Any] = {}
            for series in panel.series:
                number = labels.index(series.label) if series.label in labels else 0
                handle = _draw(ax, series, number if series.color is None else series.color)
                if series.label:
                    (common if homes[series.label] > 1 else own).setdefault(series.label, handle)
            _axes(ax, panel)
            if own and panel.legend == "below":
                place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.24), "borderaxespad": 0.0}
                ax.legend(list(own.values()), list(own), ncols=LEGEND_COLUMNS, **place)
                below = max(below, -(-len(own) // LEGEND_COLUMNS))
            elif own:
                ax.legend(list(own.values()), list(own), loc=panel.legend)
        for ax in grid.flat[len(shown) :]:
            ax.set_axis_off()
        grow(figure, LEGEND_LINE * below)
        _legend(figure, common)
        put_title(figure, title)
    return figure


def _draw(ax: Axes, series: Series, number: int) -> Any:
    x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
    color = PALETTE[number % len(PALETTE)]
    handle: Any
    if series.band is not None:
        ax.fill_between(x, *np.asarray(series.band, dtype=float), color=color, alpha=0.18)
    if series.kind == "reference":
        (handle,) = ax.plot(x, y, color=DARK_GREY, lw=0.6, ls=LINESTYLES[series.dashed], zorder=1)
    elif series.kind == "bars":
        handle = ax.bar(x, y, width=0.8 * np.min(np.diff(x), initial=1.0), color=color)
    elif series.kind == "points":
        error = None if series.error is None else 2.0 * np.asarray(series.error, dtype=float)
        marker = MARKERS[number % len(MARKERS)]
        handle = ax.errorbar(x, y, error, ls="", marker=marker, ms=3.2, color=color, mfc="white", capsize=1.5, zorder=4)
    else:
        (handle,) = ax.plot(x, y, color=color, ls=LINESTYLES[series.dashed % len(LINESTYLES)], zorder=3)
    return handle


def _axes(ax: Axes, panel: Panel) -> None:
    if "x" in panel.log:
        ax.set_xscale("log")
    if "y" in panel.log:
        ax.set_yscale("log")
    if panel.xlim is not None:
        ax.set_xlim(*panel.xlim)
    if panel.ylim is not None:
        ax.set_ylim(*panel.ylim)
    if panel.xticks is not None:
        shown = panel.xticks if isinstance(panel.xticks, dict) else {tick: f"{tick:g}" for tick in panel.xticks}
        ax.set_xticks(list(shown), list(shown.values()))
        ax.xaxis.minorticks_off()
    ax.set_title(panel.title)
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)


def _legend(figure: Figure, entries: dict[str, Any]) -> None:
    if not entries:
        return
    longest = max(map(len, entries)) + 8  # the handle is as wide as some letters
    columns = max(1, min(len(entries), LETTERS_IN_LEGEND // longest))
    grow(figure, LEGEND_LINE * -(-len(entries) // columns))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
