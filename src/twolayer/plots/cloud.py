"""The student as a cloud of units that flows: the density of their overlaps with a direction of the target."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.whole_files import write_whole
from twolayer.plots.descriptions import check_dimensions, parts
from twolayer.plots.panels import Panel, Place, Sheet, draw, side_by_side
from twolayer.plots.series import Drawable, HeatMap, Series, as_color
from twolayer.plots.style import COLUMN, DARK_GREY, PALETTE, RISK_LABEL, TIME_LABEL, colors, style

PANELS = 4  # in a row
CELLS = 80  # of the density along each axis
MANY = 2000  # units from which on a density says more than points
MARGIN = 0.06  # around the units of all times, in parts of their extent


class ParticleCloud:
    """The units of all replicas at all saved times, in the plane of one direction."""

    def __init__(self, dataset: Any, direction: int):
        _check(dataset)
        k = dataset.sizes["r"]
        if isinstance(direction, bool) or not isinstance(direction, int) or not 0 <= direction < k:
            raise InvalidInput(f"Argument `direction` must be an integer from 0 to {k - 1}, but is {shown(direction)}.")
        self.time = dataset.time.values
        P = dataset.P.values
        if "particle_M" in dataset:
            M, q = dataset.particle_M.values, dataset.particle_q.values
        else:
            M = dataset.M.values
            lengths = np.diagonal(dataset.Q.values, axis1=2, axis2=3)
            q = lengths - np.einsum("...r,rs,...s->...", M, np.linalg.inv(P), M)
        self.m = np.moveaxis(M[..., direction], 1, 0).reshape(len(self.time), -1)
        self.q = np.maximum(np.moveaxis(q, 1, 0).reshape(len(self.time), -1), 0.0)
        self.risk = np.nanmedian(dataset.excess_risk.values, axis=0)
        self.target = float(P[direction, direction])
        self.direction = direction if k > 1 else None
        self.limits = tuple(_limits(x) for x in (np.append(self.m, self.target), np.append(self.q, 0.0)))

    def units(self, number: int, color: int | str = 0, label: str = "") -> Drawable:
        """The units at one saved time: few as points, many as a density unless they have a colour of their own."""
        m, q = self.m[number], self.q[number]
        if m.size < MANY or label:
            look = {
                "marker": "o",
                "ms": 2.2,
                "mew": 0.0,
                "mfc": as_color(color),
                "alpha": 0.55,
                "rasterized": m.size >= MANY,
            }
            return Series(label, m, q, kind="points", color=color, look=look)
        counts, x, y = np.histogram2d(m, q, bins=CELLS, range=self.limits)
        norm = LogNorm(0.3, max(2.0, counts.max()))
        return HeatMap(x, y, np.ma.masked_equal(counts.T, 0.0), options={"cmap": "Blues", "norm": norm})

    def panel(self, number: int, units: Sequence[Drawable] = (), title: str = "") -> Panel:
        """The units at one saved time, and where a unit equal to the target would be."""
        star = {"marker": "*", "ms": 7.0, "mew": 0.0, "mfc": PALETTE[1], "clip_on": False, "zorder": 5}
        target = Series("", [self.target], [0.0], kind="points", color=1, look=star)
        moment = f"$t={self.time[number]:.3g}$"
        return Panel(
            "overlap  $m$" if self.direction is None else f"overlap  $m_{{{self.direction}}}$",
            r"outside of the target  $q$",
            [*(units or [self.units(number)]), target],
            title=f"{title}, {moment}" if title else moment,
            xlim=self.limits[0],
            ylim=self.limits[1],
            legend="figure",
        )

    def nearest(self, times: Sequence[float] | None) -> list[int]:
        """The numbers of the saved times nearest to those asked for, or of some between which the risk falls evenly."""
        if times is not None:
            return [int(np.argmin(np.abs(self.time - float(time)))) for time in np.atleast_1d(np.asarray(times))]
        fall = np.maximum.accumulate(-np.log(np.maximum(self.risk, 1e-300)))
        evenly = np.linspace(fall[0], fall[-1], PANELS)
        return sorted({0, len(fall) - 1, *(int(np.argmin(np.abs(fall - level))) for level in evenly[1:-1])})


def _check(dataset: Any) -> None:
    if not isinstance(dataset, xr.Dataset) or not dataset.sizes.get("replica"):
        raise InvalidInput(
            "Argument `result` must be the dataset of one description with a finished replica, such as that of "
            f"`evolve` or `tree['HDMF'].ds`, but is a {type(dataset).__name__}."
        )


def _limits(x: np.ndarray) -> tuple[float, float]:
    low, high = float(np.nanmin(x)), float(np.nanmax(x))
    margin = MARGIN * (high - low if high > low else 1.0)
    return (low - margin if low < 0.0 else 0.0 - margin * (low > 0.0), high + margin)


def flow(
    result: xr.Dataset,
    times: Sequence[float] | None = None,
    direction: int = 0,
    title: str | None = None,
    *,
    hue: str | None = None,
    col: str | None = None,
    ax: Place | None = None,
) -> Place:
    r"""The density of the units in the plane of their overlap m with the target and their squared length q outside.

    In the mean-field limits this density flows down the gradient of the risk in the Wasserstein metric of
    :math:`(m, \sqrt q)`.

    Parameters
    ----------
    result
        The dataset of one description. Particles of `HDMF` or `MeanField` are shown all; otherwise the units of the
        students of all replicas, :math:`q_i = Q_{ii} - (M P^{-1} M^T)_{ii}`.
    times
        Times of the panels, up to four to a row; by default some between which the logarithm of the risk falls evenly.
    direction
        The direction of the target whose overlap is shown, where there are several.
    title
        Written above the figure; formulas stand between dollars.
    hue, col
        Dimensions of the result: points of a colour for each value of the one, a column of panels for each value of the
        other, with the times one below the other.
    ax
        Where to draw, if not in a figure of its own: axes for the first time, several axes for as many times, or a
        `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure as wide as a page, or what was given as ``ax``: one panel for each time. Few units are points, many a
    density on a logarithmic scale; the star is where a unit equal to the target's would be.
    """
    _check(result)
    check_dimensions({"": result}, hue=hue, col=col)
    columns = {
        value: {name: ParticleCloud(piece, direction) for name, piece in parts(part, hue).items()}
        for value, part in parts(result, col).items()
    }
    clouds = [cloud for members in columns.values() for cloud in members.values()]
    names = list(dict.fromkeys(name for members in columns.values() for name in members))
    palette = dict(zip(names, colors(len(names)), strict=True))
    low, high = (np.array([[limit[end] for limit in cloud.limits] for cloud in clouds]) for end in (0, 1))
    limits = tuple(zip(low.min(axis=0), high.max(axis=0), strict=True))
    for cloud in clouds:
        cloud.limits = limits
    shown = [clouds[0].time[number] for number in clouds[0].nearest(times)]
    rows: list[list[Panel]] = []
    for time in shown:
        row: list[Panel] = []
        for value, members in columns.items():
            numbers = {name: cloud.nearest([time])[0] for name, cloud in members.items()}
            units = [cloud.units(numbers[name], palette[name], name) for name, cloud in members.items()]
            first = next(iter(members))
            row.append(members[first].panel(numbers[first], units, value))
        rows.append(row)
    if col is not None:
        return draw(side_by_side(rows, (2.0,)), title, ax)
    return draw(Sheet([row[0] for row in rows], min(PANELS, len(rows)), heights=(2.0,), shared="xy"), title, ax)


def flow_movie(result: xr.Dataset, path: str | Path, direction: int = 0, seconds: float = 8.0) -> Path:
    r"""Write the flow of `flow` as an animation (GIF), one frame for each saved time, with the risk beside it.

    Parameters
    ----------
    result, direction
        As for `flow`.
    path
        The file to write; ``.gif`` is appended where it is missing.
    seconds
        How long the animation takes.

    Returns
    -------
    The path of the file.
    """
    from PIL import Image

    cloud = ParticleCloud(result, direction)
    pause = int(np.clip(1000.0 * seconds / len(cloud.time), 20, 1000))
    frames: list[Any] = []
    with style():
        for number in range(len(cloud.time)):
            content = io.BytesIO()
            _frame(cloud, number).savefig(content, format="png", dpi=150)
            frames.append(Image.open(content).convert("RGB").quantize(64))
    content = io.BytesIO()
    # The last frame stays for a while, so that the end can be looked at.
    pauses = [pause] * (len(frames) - 1) + [1500]
    frames[0].save(content, format="GIF", save_all=True, append_images=frames[1:], duration=pauses, loop=0)
    path = Path(path)
    return write_whole(path if path.suffix == ".gif" else path.with_name(path.name + ".gif"), content.getvalue())


def _frame(cloud: ParticleCloud, number: int) -> Figure:
    is_shown = (cloud.risk > 0.0) & (cloud.time > 0.0)
    series: list[Drawable] = [Series("", cloud.time[is_shown], cloud.risk[is_shown], color=DARK_GREY, look={"lw": 0.9})]
    if is_shown[number]:
        look = {"marker": "o", "ms": 4.0, "mfc": PALETTE[1]}
        series.append(Series("", [cloud.time[number]], [cloud.risk[number]], kind="points", color=1, look=look))
    risk = Panel(TIME_LABEL, RISK_LABEL, series, log="xy")
    return draw(Sheet([cloud.panel(number), risk], columns=2, width=1.6 * COLUMN, heights=(2.6,)))
