"""Every figure is described by panels and drawn here: as a figure of its own, or on axes that are given."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, NullLocator
from typing_extensions import TypeVar

from twolayer.core.errors import InvalidInput
from twolayer.plots.series import Drawable
from twolayer.plots.style import COLUMN, LEGEND_LINE, LEGEND_SIZE, PAGE, grow, letters, new_figure, put_title, style
from twolayer.plots.ticks import readable_log_ticks

PANEL_HEIGHT = 2.3
MAX_COLUMNS = 3
LEGEND_COLUMNS = 2  # of a legend below its panel
LETTERS_PER_INCH = 13.5  # in a legend of the usual size
HANDLE = 8  # letters that are as wide as a handle of the legend and the space around it

# Where a figure is drawn, and what a figure function returns: the first panel on axes; as many panels as there are on
# several axes, in their order or by their names; all panels on a part of a figure; a new figure by default.
Place = TypeVar(
    "Place", bound=Axes | Sequence[Axes] | np.ndarray | Mapping[str, Axes] | SubFigure | Figure, default=Figure
)


@dataclass(frozen=True)
class Panel:
    """Series that share their axes; ``log`` names the logarithmic ones, as in "xy".

    ``legend`` is where matplotlib puts it, "below" the panel, where curves leave no room, or "figure": below all
    panels; by default it has one column, and two below. Ticks are numbers, numbers with their labels, or (an integer)
    at most so many whole numbers. ``top`` is the label of a second horizontal axis, and by what to multiply the first
    to get it.
    """

    xlabel: str
    ylabel: str
    series: Sequence[Drawable]
    log: str = ""
    title: str = ""
    xlim: Any = None
    ylim: Any = None
    xticks: Any = None
    legend: str = "best"
    legend_title: str = ""
    legend_columns: int = 0
    yticks: Any = None
    top: tuple[str, float] | None = None
    is_square: bool = False
    is_boxed: bool = True
    name: str = ""

    def draw(self, ax: Axes, labels: Sequence[str] = ()) -> dict[str, Any]:
        """Draw on axes; returns the handles of its labels. Colours go by the place of a label among all ``labels``."""
        has_data = ax.has_data()
        for axis in "xy":
            if axis in self.log:
                ax.set(**{f"{axis}scale": "log"})
                readable_log_ticks(getattr(ax, f"{axis}axis"))
        before = (ax.get_xlim(), ax.get_ylim()) if has_data else (None, None)
        handles: dict[str, Any] = {}
        for part in self.series:
            handle = part.draw(ax, labels.index(part.label) if part.label in labels else 0)
            if part.label:
                handles.setdefault(part.label, handle)
        for axis, limits, old in (("x", self.xlim, before[0]), ("y", self.ylim, before[1])):
            if limits is not None:  # what was there before stays in view
                limits = limits if old is None else (min(*limits, *old), max(*limits, *old))
                ax.set(**{f"{axis}lim": limits})
        for axis, ticks in (("x", self.xticks), ("y", self.yticks)):
            if ticks is not None:
                _put_ticks(getattr(ax, f"{axis}axis"), ticks)
        self._decorate(ax)
        return handles

    def _decorate(self, ax: Axes) -> None:
        if self.title:
            ax.set_title(self.title)
        ax.set_xlabel(self.xlabel)
        ax.set_ylabel(self.ylabel, fontsize="medium" if "\n" in self.ylabel else mpl.rcParams["axes.labelsize"])
        if self.is_square:
            ax.set_aspect("equal")
            ax.tick_params(length=0)
        if not self.is_boxed:
            ax.spines[["top", "right"]].set_visible(False)
        if self.top is not None:
            label, rate = self.top
            scale: Any = (lambda x: x * rate, lambda x: x / rate)
            above = ax.secondary_xaxis("top", functions=scale)
            above.set_xlabel(label)
            if "x" in self.log:
                readable_log_ticks(above.xaxis)
            ax.tick_params(which="both", top=False)


@dataclass(frozen=True)
class Sheet:
    """The panels of a figure, row by row (None leaves a place empty), and how they lie on the page.

    ``heights`` are those of the rows, again from the first where there are more rows. Panels of a column share the
    horizontal axis if ``shared`` names "x", panels of a row the vertical one if it names "y"; it is labelled once. With
    ``fills`` the last panel takes what is left of its row. Labels that panels have in common stand in one legend below
    all of them, unless ``has_common_legend`` is false.
    """

    panels: Sequence[Panel | None]
    columns: int = 3
    width: float = PAGE
    heights: Sequence[float] = (PANEL_HEIGHT,)
    shared: str = ""
    fills: bool = False
    has_common_legend: bool = True

    @property
    def shown(self) -> list[Panel]:
        """The panels without empty places."""
        return [panel for panel in self.panels if panel is not None]

    @property
    def row_heights(self) -> list[float]:
        """The height of each row."""
        return [self.heights[row % len(self.heights)] for row in range(-(-len(self.panels) // self.columns))]

    def axes_on(self, figure: FigureBase) -> list[tuple[Panel, Axes]]:
        """Make the axes of all panels in a figure or a part of one; labels that stand elsewhere are left out."""
        heights = self.row_heights
        grid = figure.add_gridspec(len(heights), self.columns, height_ratios=heights)
        pairs: list[tuple[Panel, Axes]] = []
        tops: dict[int, Axes] = {}
        lefts: dict[int, Axes] = {}
        last = len(self.panels) - 1
        for place, panel in enumerate(self.panels):
            row, column = divmod(place, self.columns)
            if panel is None:
                continue
            cell = grid[row, column:] if self.fills and place == last else grid[row, column]
            above = tops.get(column) if "x" in self.shared else None
            beside = lefts.get(row) if "y" in self.shared else None
            ax = figure.add_subplot(cell, sharex=above, sharey=beside)
            tops.setdefault(column, ax)
            lefts.setdefault(row, ax)
            below = place + self.columns
            below = min(below, last) if self.fills and row == len(heights) - 2 else below
            if "x" in self.shared and below <= last and self.panels[below] is not None:
                ax.tick_params(which="both", labelbottom=False)
                panel = replace(panel, xlabel="")
            if beside is not None:
                ax.tick_params(which="both", labelleft=False)
                panel = replace(panel, ylabel="")
            pairs.append((panel, ax))
        return pairs


def side_by_side(rows: Sequence[Sequence[Panel]], heights: Sequence[float], shared: str = "xy") -> Sheet:
    """Columns of panels, three in a row of the page; a single one is as wide as a journal column."""
    number = len(rows[0])
    across = min(number, MAX_COLUMNS)
    shown: list[Panel | None] = []
    for first in range(0, number, across):
        for row in rows:
            part = row[first : first + across]
            shown += [*part, *[None] * (across - len(part))]
    return Sheet(shown, across, COLUMN if across == 1 else PAGE, heights, shared)


def panels(
    shown: Sequence[Panel],
    title: str | None = None,
    columns: int = 3,
    ax: Place | None = None,
    has_common_legend: bool = True,
) -> Place:
    """Panels side by side, each with its legend; what several panels have in common stands below all of them.

    Parameters
    ----------
    shown
        The panels, at most ``columns`` in a row.
    title
        Written above the figure; formulas stand between dollars.
    columns
        Panels in a row.
    ax
        Where to draw, if not in a figure of its own: axes for the first panel, several axes for as many panels, a
        mapping from names of panels to axes, or a `matplotlib.figure.SubFigure` for all of them.
    has_common_legend
        Whether labels that panels have in common stand in one legend below all of them; otherwise in that of each.

    Returns
    -------
    A figure as wide as a page, or what was given as ``ax``. A label that appears in several panels has one colour in
    all of them.
    """
    if not shown or not all(isinstance(panel, Panel) for panel in shown):
        raise InvalidInput("Argument `shown` must be a list of `Panel`.")
    sheet = Sheet(shown, min(columns, len(shown)), has_common_legend=has_common_legend)
    return draw(sheet, title, ax)


def is_whole(ax: object) -> bool:
    """Whether a figure, or a part of one, belongs to the panels alone, so that it may have a title of its own."""
    return ax is None or isinstance(ax, FigureBase)


def draw(sheet: Sheet, title: str | None = None, ax: Place | None = None) -> Place:
    """Draw the panels of a sheet: in a new figure in the style of the package, or where it is said, in the user's own.

    Returns
    -------
    The new figure, or what was given as ``ax``.
    """
    if ax is None:
        with style():
            figure = new_figure(sheet.width, sum(sheet.row_heights))
            _draw_on(figure, sheet, title)
        return figure  # pyright: ignore[reportReturnType]  # the default of the type variable
    if isinstance(ax, FigureBase):
        _draw_on(ax, sheet, title)
        return ax
    pairs = _pairs(sheet.shown, ax)
    if title and len(pairs) > 1:
        raise InvalidInput("Argument `title` is for a whole figure, but `ax` holds several axes: set their own titles.")
    if title:
        pairs = [(replace(pairs[0][0], title=title), pairs[0][1])]
    _draw_pairs(pairs, sheet, None)
    return ax


def _draw_on(figure: FigureBase, sheet: Sheet, title: str | None) -> None:
    has_room = isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)  # pyright: ignore
    _draw_pairs(sheet.axes_on(figure), sheet, figure if has_room else None)
    if sheet.shared:
        figure.align_ylabels()
    put_title(figure, title)


def _pairs(shown: Sequence[Panel], ax: Any) -> list[tuple[Panel, Axes]]:
    """The panels to draw with the axes given for them."""
    if isinstance(ax, Axes):
        return [(shown[0], ax)]
    named = {panel.name or str(place): panel for place, panel in enumerate(shown)}
    if isinstance(ax, Mapping):
        unknown = [str(name) for name in ax if name not in named]
        if unknown:
            raise InvalidInput(f"Argument `ax` must name panels ({', '.join(named)}), but names {', '.join(unknown)}.")
        axes, shown = list(ax.values()), [named[name] for name in ax]
    else:
        axes = list(np.ravel(ax)) if isinstance(ax, np.ndarray) else list(ax) if isinstance(ax, Sequence) else [ax]
    if not axes or not all(isinstance(given, Axes) for given in axes):
        raise InvalidInput(
            f"Argument `ax` must be axes, several axes, a mapping to axes or a SubFigure, but is a {type(ax).__name__}."
        )
    if len(axes) > len(shown):
        raise InvalidInput(f"Argument `ax` holds {len(axes)} axes, but there are {len(shown)} panels to draw.")
    return list(zip(shown, axes, strict=False))


# ---------------------------------------------------------------------------------------------------- legends


def _draw_pairs(pairs: Iterable[tuple[Panel, Axes]], sheet: Sheet, figure: FigureBase | None) -> None:
    """Draw panels on axes, their legends, and below the figure, if there is room, a legend of what they share."""
    labels = list(dict.fromkeys(part.label for panel in sheet.shown for part in panel.series if not part.is_reference))
    homes = Counter(label for panel in sheet.shown for label in {part.label for part in panel.series})
    common: dict[str, Any] = {}
    lines = 0  # of legends below the panels
    for panel, ax in pairs:
        others = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))  # that were there before
        own = panel.draw(ax, labels)
        if figure is None:
            own = others | {label: handle for label, handle in own.items() if label not in common}
            common |= own if sheet.has_common_legend else {}
        else:
            is_common = {
                label: panel.legend == "figure" or (sheet.has_common_legend and homes[label] > 1) for label in own
            }
            common |= {label: handle for label, handle in own.items() if is_common[label] and label not in common}
            own = {label: handle for label, handle in own.items() if not is_common[label]}
        if own:
            lines = max(lines, _put_legend(ax, panel, own, figure is not None))
    if figure is not None:
        grow(figure, LEGEND_LINE * lines)
        _put_common_legend(figure, common)


def _put_legend(ax: Axes, panel: Panel, entries: dict[str, Any], has_room: bool) -> int:
    """Put the legend of one panel; returns how many lines of it are below the panel."""
    place = "best" if panel.legend in ("below", "figure") else panel.legend
    is_below = has_room and panel.legend == "below"
    columns = panel.legend_columns or (LEGEND_COLUMNS if is_below else 1)
    options: dict[str, Any] = {"loc": place, "ncols": columns}
    if is_below:
        options |= {"loc": "upper center", "bbox_to_anchor": (0.5, -0.24), "borderaxespad": 0.0}
    ax.legend(
        list(entries.values()), list(entries), title=panel.legend_title or None, title_fontsize="small", **options
    )
    return -(-len(entries) // columns) if is_below else 0


def _put_common_legend(figure: FigureBase, entries: dict[str, Any]) -> None:
    """Below the panels, where it covers nothing, in as many columns as there is room for."""
    if not entries:
        return
    size = FontProperties(size=mpl.rcParams["legend.fontsize"]).get_size_in_points()
    room = LETTERS_PER_INCH * LEGEND_SIZE / size * figure.bbox.width / figure.dpi  # pyright: ignore
    widths = [letters(label) + HANDLE for label in entries]
    columns = len(entries)
    while columns > 1 and sum(max(column) for column in np.array_split(widths, columns)) > room:
        columns -= 1
    grow(figure, LEGEND_LINE * -(-len(entries) // columns))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def _put_ticks(axis: Any, ticks: Any) -> None:
    if isinstance(ticks, int):
        axis.set_major_locator(MaxNLocator(ticks, integer=True))
        return
    shown = ticks if isinstance(ticks, dict) else {tick: f"{tick:g}" for tick in ticks}
    axis.set_ticks(list(shown), labels=list(shown.values()))
    axis.set_minor_locator(NullLocator())
