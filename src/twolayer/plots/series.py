"""What a panel can hold: curves, straight lines across it, maps of colours, words; each draws itself on axes."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container

from twolayer.core.errors import InvalidInput
from twolayer.plots.style import DARK_GREY, GREY, LINESTYLES, MARKERS, PALETTE

KINDS = ("line", "points", "reference", "bars", "steps")


# What a part has drawn, as matplotlib's legends take it.
Handle: TypeAlias = Artist | Container | tuple[Artist | Container, ...]


class Drawable(abc.ABC):
    """Part of a panel. Its label stands in the legend unless it is empty; a reference takes none of the colours."""

    label: str

    @property
    def is_reference(self) -> bool:
        """Whether the drawing is grey, and takes none of the colours."""
        return True

    @abc.abstractmethod
    def draw(self, ax: Axes, number: int) -> Handle:
        """Draw in the colour of this number, if it has none of its own; return a handle for the legend."""


@dataclass(frozen=True)
class Series(Drawable):
    """One curve: a theory is a line, a measurement points with bars of two standard errors, or of two rows of them.

    ``band`` holds a lower and an upper curve, such as quantiles of runs: shaded, or with ``edges`` dotted. Series of
    one ``color`` (a number, or any colour of matplotlib) belong together; without it each label has its own. A
    reference is a thin grey line; steps change at the points. Points are thinned to one of ``every`` and joined by a
    thin line where ``joined``. ``look`` holds further options of matplotlib. A series without points is an entry of the
    legend alone.
    """

    label: str
    x: Any
    y: Any
    error: Any = None
    band: Any = None
    kind: str = "line"
    color: int | str | None = None
    dashed: int = 0
    marker: int | None = None
    edges: bool = False
    joined: bool = False
    every: int = 1
    look: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"Argument `kind` must be one of {', '.join(KINDS)}, but is {self.kind!r}.")

    @property
    def is_reference(self) -> bool:
        """Whether the drawing is grey, and takes none of the colours."""
        return self.kind == "reference"

    def draw(self, ax: Axes, number: int) -> Handle:
        """Draw the curve and its band; return both as the handle for the legend."""
        x, y = np.asarray(self.x, dtype=float), np.asarray(self.y, dtype=float)
        color = as_color(number if self.color is None else self.color)
        linestyle = LINESTYLES[self.dashed % len(LINESTYLES)]
        named = {"label": self.label} if self.label else {}
        handle: Any
        if self.kind == "reference":
            (handle,) = ax.plot(
                x, y, **{"color": DARK_GREY, "lw": 0.6, "ls": linestyle, "zorder": 1, **named, **self.look}
            )
        elif self.kind == "bars":
            width = 0.8 * np.min(np.diff(x), initial=1.0)
            handle = ax.bar(x, y, **{"width": width, "color": color, **named, **self.look})
        elif self.kind == "points":
            handle = self._draw_points(ax, x, y, color, number, named)
        else:
            options: dict[str, Any] = {"drawstyle": "steps-post"} if self.kind == "steps" else {}
            (handle,) = ax.plot(x, y, **{"color": color, "ls": linestyle, "zorder": 3, **options, **named, **self.look})
        if self.band is not None:
            handle = self._draw_band(ax, x, color, handle)
        if not x.size:  # an entry of the legend alone leaves nothing on the axes
            for artist in handle if isinstance(handle, tuple) else (handle,):
                artist.remove()
        return handle

    def _draw_band(self, ax: Axes, x: Any, color: str, handle: Any) -> Any:
        low, high = np.asarray(self.band, dtype=float)
        if self.edges:
            for edge in (low, high):
                ax.plot(x, edge, ls=":", lw=0.8, color=color, zorder=2.8)
            return handle
        step = "post" if self.kind == "steps" else None
        return ax.fill_between(x, low, high, step=step, color=color, alpha=0.2, lw=0.0), handle

    def _draw_points(self, ax: Axes, x: Any, y: Any, color: str, number: int, named: dict[str, str]) -> Any:
        place = self.marker if self.marker is not None else self.color if isinstance(self.color, int) else number
        marker = MARKERS[place % len(MARKERS)]
        look = {
            "marker": marker,
            "ms": 3.2,
            "color": color,
            "mfc": "white",
            "zorder": 4,
            "ls": "",
            **named,
            **self.look,
        }
        if self.joined:
            ax.plot(x, y, lw=0.5, color=color, zorder=2.5)
        if self.error is None:
            return ax.plot(x, y, markevery=self.every, **look)[0]
        below, above = 2.0 * np.broadcast_to(np.asarray(self.error, dtype=float), (2, len(y)))
        # A bar that reaches zero has no lower end on a logarithmic axis.
        below = np.minimum(below, 0.95 * y) if ax.get_yscale() == "log" else below
        return ax.errorbar(x, y, (below, above), capsize=1.5, **look)


@dataclass(frozen=True)
class Rule(Drawable):
    """A straight line across the panel at one value of ``axis``, "x" or "y", with its error as a shaded ``band``."""

    label: str
    at: float | int
    axis: str = "y"
    band: tuple[float | int, float | int] | None = None
    color: int | str | None = None  # grey by default
    look: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, ax: Axes, number: int) -> Handle:
        """Draw the line and its band; return both as the handle for the legend."""
        line, span = (ax.axvline, ax.axvspan) if self.axis == "x" else (ax.axhline, ax.axhspan)
        color = DARK_GREY if self.color is None else as_color(self.color)
        named = {"label": self.label} if self.label else {}
        handle = line(self.at, **{"color": color, "lw": 0.7, "zorder": 1, **named, **self.look})
        if self.band is None:
            return handle
        shade: dict[str, Any] = {"color": GREY} if self.color is None else {"color": color, "alpha": 0.15}
        return span(*self.band, zorder=0, lw=0.0, **shade), handle


@dataclass(frozen=True)
class HeatMap(Drawable):
    """Values on a grid of cells, given by the edges of these, as colours; a bar beside the panel gives their scale.

    ``options`` are those of `matplotlib.axes.Axes.pcolormesh`. Without ``bar``, the label of the colour bar, there is
    none.
    """

    x: Any
    y: Any
    values: Any
    bar: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def draw(self, ax: Axes, number: int) -> Handle:
        """Draw the map and the bar of its colours."""
        mesh = ax.pcolormesh(self.x, self.y, self.values, rasterized=True, **self.options)
        if self.bar:
            bar = ax.figure.colorbar(mesh, ax=ax, pad=0.03)
            bar.set_label(self.bar)
            bar.outline.set_linewidth(0.5)  # pyright: ignore[reportCallIssue]
        return mesh


@dataclass(frozen=True)
class Note(Drawable):
    """Words in a panel, at a place given in its own units; ``look`` holds options of `matplotlib.axes.Axes.text`."""

    text: str
    x: float | int
    y: float | int
    look: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def draw(self, ax: Axes, number: int) -> Handle:
        """Write the note into the axes."""
        return ax.text(self.x, self.y, self.text, **{"fontsize": "small", "color": DARK_GREY, **self.look})


def as_color(color: int | str) -> str:
    """A colour of the palette by its number, or the colour itself."""
    return PALETTE[color % len(PALETTE)] if isinstance(color, int) else color
