"""The student as a cloud of units that flows: the density of their overlaps with a direction of the target."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.files import write_whole
from twolayer.plots.style import COLUMN, DARK_GREY, PAGE, PALETTE, new_figure, put_title, style

PANELS = 4  # in a row
CELLS = 80  # of the density along each axis
MANY = 2000  # units from which on a density says more than points
MARGIN = 0.06  # around the units of all times, in parts of their extent


class Cloud:
    """The units of all replicas at all saved times, in the plane of one direction."""

    def __init__(self, dataset: Any, direction: int):
        import xarray as xr

        if not isinstance(dataset, xr.Dataset) or not dataset.sizes.get("replica"):
            raise InvalidInput(
                "Argument `result` must be the dataset of one description with a finished replica, such as that of "
                f"`evolve` or `tree['HDMF'].ds`, but is a {type(dataset).__name__}."
            )
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

    def draw(self, ax: Axes, number: int) -> None:
        """The units at one saved time, and where a unit equal to the target would be."""
        m, q = self.m[number], self.q[number]
        if m.size < MANY:
            ax.plot(m, q, ls="", marker="o", ms=2.2, mew=0.0, color=PALETTE[0], alpha=0.55)
        else:
            counts, *edges = np.histogram2d(m, q, bins=CELLS, range=self.limits)
            most = max(2.0, counts.max())
            shown = np.ma.masked_equal(counts.T, 0.0)
            ax.pcolormesh(*edges, shown, cmap="Blues", norm=LogNorm(0.3, most), rasterized=True)
        ax.plot([self.target], [0.0], ls="", marker="*", ms=7.0, mew=0.0, color=PALETTE[1], clip_on=False, zorder=5)
        ax.set_xlim(*self.limits[0])
        ax.set_ylim(*self.limits[1])
        ax.set_xlabel("overlap  $m$" if self.direction is None else f"overlap  $m_{{{self.direction}}}$")
        ax.set_title(f"$t={self.time[number]:.3g}$")

    def nearest(self, times: Sequence[float] | None) -> list[int]:
        """The numbers of the saved times nearest to those asked for, or of some between which the risk falls evenly."""
        if times is not None:
            return [int(np.argmin(np.abs(self.time - float(time)))) for time in np.atleast_1d(np.asarray(times))]
        fall = np.maximum.accumulate(-np.log(np.maximum(self.risk, 1e-300)))
        evenly = np.linspace(fall[0], fall[-1], PANELS)
        return sorted({0, len(fall) - 1, *(int(np.argmin(np.abs(fall - level))) for level in evenly[1:-1])})


def _limits(x: np.ndarray) -> tuple[float, float]:
    low, high = float(np.nanmin(x)), float(np.nanmax(x))
    margin = MARGIN * (high - low if high > low else 1.0)
    return (low - margin if low < 0.0 else 0.0 - margin * (low > 0.0), high + margin)


def flow(result: Any, times: Sequence[float] | None = None, direction: int = 0, title: str | None = None) -> Figure:
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

    Returns
    -------
    A figure as wide as a page: one panel for each time. Few units are points, many a density on a logarithmic scale;
    the star is where a unit equal to the target's would be.
    """
    cloud = Cloud(result, direction)
    numbers = cloud.nearest(times)
    with style():
        rows = -(-len(numbers) // PANELS)
        figure = new_figure(PAGE, 2.0 * rows)
        panels = figure.subplots(rows, min(PANELS, len(numbers)), sharex=True, sharey=True, squeeze=False)
        for ax, number in zip(panels.flat, numbers, strict=False):
            cloud.draw(ax, number)
        for ax in panels.flat[len(numbers) :]:
            ax.set_axis_off()
        for row in panels:
            row[0].set_ylabel(r"outside of the target  $q$")
        put_title(figure, title)
    return figure


def flow_movie(result: Any, path: str | Path, direction: int = 0, seconds: float = 8.0) -> Path:
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

    cloud = Cloud(result, direction)
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


def _frame(cloud: Cloud, number: int) -> Figure:
    figure = new_figure(1.6 * COLUMN, 2.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    cloud.draw(left, number)
    left.set_ylabel(r"outside of the target  $q$")
    is_shown = (cloud.risk > 0.0) & (cloud.time > 0.0)
    right.loglog(cloud.time[is_shown], cloud.risk[is_shown], color=DARK_GREY, lw=0.9)
    if is_shown[number]:
        right.plot([cloud.time[number]], [cloud.risk[number]], ls="", marker="o", ms=4.0, color=PALETTE[1])
    right.set_xlabel(r"time  $t$")
    right.set_ylabel(r"excess risk  $\mathcal{R}-\Delta/2$")
    return figure
