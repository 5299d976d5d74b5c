"""Figures of two times: the overlaps of the weights with their own past, and their response to it."""

import numpy as np
import xarray as xr

from twolayer.core.errors import InvalidInput
from twolayer.plots.descriptions import Result, check_dimensions, named_datasets, parts
from twolayer.plots.panels import Panel, Place, Sheet, draw, side_by_side
from twolayer.plots.series import HeatMap

SIGNED = "RdBu_r"  # white at zero
POSITIVE = "viridis"
MAX_TICKS = 8


def kernels(
    result: Result,
    title: str | None = None,
    i: int = 0,
    j: int | None = None,
    replica: int = 0,
    *,
    col: str | None = None,
    ax: Place | None = None,
) -> Place:
    r"""The overlap :math:`C_{ij}(t, s)` of the weights at two times, and their response :math:`R_{ij}(t, s)`.

    Parameters
    ----------
    result
        What `twolayer.evolve` returned for a description that knows both, `DMFT`; or a comparison with it; or several
        of these, put together along a new dimension (`xarray.concat`).
    title
        Written above the figure; formulas stand between dollars.
    i, j
        The neurons; the same one twice by default.
    replica
        The replica to show.
    col
        A dimension of the result: a column of maps for each of its values.
    ax
        Where to draw, if not in a figure of its own: axes for the overlap alone, several axes for as many maps, a
        mapping from the names of panels ("C", "R") to axes, or a `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of two heat maps, the number of the step against that of the earlier one, or what was given as ``ax``.
    There is no response to what is not past: that half of the map is empty.
    """
    datasets = {name: dataset for name, dataset in named_datasets(result).items() if "C" in dataset}
    if not datasets:
        raise InvalidInput("Argument `result` must hold overlaps at two times, as the results of `DMFT` do.")
    dataset = next(iter(datasets.values()))
    check_dimensions({"": dataset}, col=col)
    j = i if j is None else j
    p = dataset.sizes["i"]
    if not (0 <= i < p and 0 <= j < p):
        raise InvalidInput(f"Arguments `i` and `j` must be neurons from 0 to {p - 1}, but are {i} and {j}.")
    there = dataset.replica.values
    if replica not in there:
        raise InvalidInput(f"Argument `replica` must be one of {there[0]} to {there[-1]}, but is {replica}.")
    names = [name for name in ("C", "R") if name in dataset]
    chosen = {
        value: (part.isel(replica=0) if col == "replica" else part.sel(replica=replica)).isel(i=i, j=j)
        for value, part in parts(dataset, col).items()
    }
    rows = [[_map(part, name, f"{i}{j}", value) for value, part in chosen.items()] for name in names]
    sheet = side_by_side(rows, (2.5,), "") if col else Sheet([row[0] for row in rows], len(rows), heights=(2.9,))
    return draw(sheet, title, ax)


def _map(dataset: xr.Dataset, name: str, neurons: str, title: str) -> Panel:
    steps, values = dataset.step.values, dataset[name].values
    if name == "R":
        values = np.where(steps[:, None] > steps[None, :], values, np.nan)
    finite = values[np.isfinite(values)]
    largest = float(np.max(np.abs(finite), initial=0.0)) or 1.0
    is_signed = name == "R" or finite.size == 0 or finite.min() < -1e-9 * largest
    low = -largest if is_signed else float(finite.min())
    # Cells are centred on their steps and reach half-way to the next.
    edges = np.concatenate([[steps[0] - 0.5], 0.5 * (steps[1:] + steps[:-1]), [steps[-1] + 0.5]])
    options = {"cmap": SIGNED if is_signed else POSITIVE, "vmin": low, "vmax": largest}
    heat = HeatMap(edges, edges, values, bar=rf"${name}_{{{neurons}}}(t, s)$", options=options)
    ticks = {"xticks": MAX_TICKS, "yticks": MAX_TICKS, "is_square": True}
    panel_name = f"{name} {title}".strip()
    return Panel(r"earlier step  $s$", r"step  $t$", [heat], title=title, name=panel_name, **ticks)
