"""Figures of two times: the overlaps of the weights with their own past, and their response to it."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twolayer.core.errors import InvalidInput
from twolayer.plots.style import PAGE, new_figure, put_title, style

if TYPE_CHECKING:
    import xarray as xr

SIGNED = "RdBu_r"  # white at zero
POSITIVE = "viridis"
MAX_TICKS = 8


def kernels(result: Any, title: str | None = None, i: int = 0, j: int | None = None, replica: int = 0) -> Figure:
    r"""The overlap :math:`C_{ij}(t, s)` of the weights at two times, and their response :math:`R_{ij}(t, s)`.

    Parameters
    ----------
    result
        What `twolayer.evolve` returned for a description that knows both, `DMFT`; or a comparison with it.
    title
        Written above the figure; formulas stand between dollars.
    i, j
        The neurons; the same one twice by default.
    replica
        The replica to show.

    Returns
    -------
    A figure of two heat maps, the number of the step against that of the earlier one. There is no response to what is
    not past: that half of the map is empty.
    """
    dataset = _with_kernels(result)
    j = i if j is None else j
    p = dataset.sizes["i"]
    if not (0 <= i < p and 0 <= j < p):
        raise InvalidInput(f"Arguments `i` and `j` must be neurons from 0 to {p - 1}, but are {i} and {j}.")
    there = dataset.replica.values
    if replica not in there:
        raise InvalidInput(f"Argument `replica` must be one of {there[0]} to {there[-1]}, but is {replica}.")
    one = dataset.sel(replica=replica)
    steps = one.step.values
    with style():
        figure = new_figure(PAGE, 2.9)
        names = [name for name in ("C", "R") if name in one]
        for ax, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
            values = one[name].values[:, :, i, j]
            if name == "R":
                is_past = steps[:, None] > steps[None, :]
                values = np.where(is_past, values, np.nan)
            _map(figure, ax, steps, values, rf"${name}_{{{i}{j}}}(t, s)$")
        put_title(figure, title)
    return figure


def _with_kernels(result: Any) -> "xr.Dataset":
    import xarray as xr

    found = [result] if isinstance(result, xr.Dataset) else []
    if isinstance(result, xr.DataTree):
        found = [child.to_dataset() for child in result.children.values()]
    for dataset in found:
        if "C" in dataset:
            return dataset
    raise InvalidInput("Argument `result` must hold overlaps at two times, as the results of `DMFT` do.")


def _map(figure: Figure, ax: Axes, steps: np.ndarray, values: np.ndarray, label: str) -> None:
    finite = values[np.isfinite(values)]
    largest = float(np.max(np.abs(finite), initial=0.0)) or 1.0
    is_signed = finite.size == 0 or finite.min() < -1e-9 * largest or label.startswith("$R")
    limits = (-largest, largest) if is_signed else (float(finite.min()), largest)
    # Cells are centred on their steps and reach half-way to the next.
    edges = np.concatenate([[steps[0] - 0.5], 0.5 * (steps[1:] + steps[:-1]), [steps[-1] + 0.5]])
    drawn = ax.pcolormesh(
        edges, edges, values, cmap=SIGNED if is_signed else POSITIVE, vmin=limits[0], vmax=limits[1], rasterized=True
    )
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
    ax.tick_params(length=0)
    ax.set_xlabel(r"earlier step  $s$")
    ax.set_ylabel(r"step  $t$")
    bar = figure.colorbar(drawn, ax=ax, pad=0.03)
    bar.set_label(label)
    bar.outline.set_linewidth(0.5)  # pyright: ignore[reportCallIssue]
