"""Figures of a sweep: curves with bands against one axis, or maps of colours over two of them."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.data.schema import kind_of
from twolayer.description import Exactness
from twolayer.plots.descriptions import QUANTILES, value_label
from twolayer.plots.panels import PANEL_HEIGHT, Panel, Place, Sheet, draw
from twolayer.plots.series import Drawable, Handle, HeatMap, Series
from twolayer.plots.style import COLUMN, DARK_GREY, PAGE
from twolayer.sweeps.content import CellStatus
from twolayer.sweeps.sweep_result import STATUS

# What is shown unless it is said, the first of them that is there.
SHOWN = ("measured_mean", "crossing_time", "crossing_time_mean", "excess_risk", "excess_risk_mean", "value",
         "complexity", "leap")  # fmt: skip
LABELS = {
    "learning_rate": r"learning rate $\gamma$",
    "d": "dimension $d$",
    "p": "width $p$",
    "k": "target directions $k$",
    "noise": r"label noise $\Delta$",
    "batch_size": "batch size",
    "threshold": "threshold $T$",
    "excess_risk": "excess risk",
    "crossing_time": "time to the threshold",
    "measured_mean": "mean exit time",
    "excess_risk_mean": "mean excess risk",
    "crossing_time_mean": "mean time to the threshold",
}
# A range whose ends differ by more than this factor is shown on a logarithmic scale, and so is an even one of factors.
WIDE = 30.0
CONTOURS, FEWEST_CONTOURS = 6, 3
# Variables that replicas may not have, since they did not get there.
TIMES = ("crossing_time", "overlap_time", "measured")


@dataclass(frozen=True)
class Hatched(Drawable):
    """Cells of a grid, given by its edges, that are hatched where ``values`` are true; white on a colour."""

    x: Any
    y: Any
    values: Any
    label: str = ""
    hatch: str = "////"
    color: str = DARK_GREY

    def draw(self, ax: Axes, number: int) -> Handle:
        """Hatch the cells; return a patch for the legend."""
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Patch, Rectangle

        sizes = np.diff(self.x), np.diff(self.y)
        cells = [
            Rectangle((self.x[column], self.y[row]), sizes[0][column], sizes[1][row])
            for row, column in np.argwhere(np.asarray(self.values, bool))
        ]
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": self.color, "hatch": self.hatch, "lw": 0.0}
        ax.add_collection(PatchCollection(cells, **look))
        if self.color == "white":  # white dots need something behind them
            look["facecolor"] = DARK_GREY
        return Patch(**look)


@dataclass(frozen=True)
class Contours(Drawable):
    """Lines of equal value over a grid, given by the centres of its cells."""

    x: Any
    y: Any
    values: Any
    levels: Any = None
    look: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def draw(self, ax: Axes, number: int) -> Handle:
        """Draw the lines with their values."""
        lines = ax.contour(self.x, self.y, self.values, self.levels, colors="white", linewidths=0.6, **self.look)
        ax.clabel(lines, fontsize="xx-small", fmt=_level)
        return lines  # pyright: ignore[reportReturnType]: a set of lines is an artist, and has no label


def _level(value: float) -> str:
    """A level as a number, or as a power of ten where that is shorter."""
    power = round(math.log10(value)) if value > 0.0 else 0
    is_power = abs(power) > 2 and math.isclose(value, 10.0**power, rel_tol=1e-9)
    return f"$10^{{{power}}}$" if is_power else f"{value:.3g}"


def _levels(finite: np.ndarray, is_log: bool) -> np.ndarray:
    """Round numbers between the least and the largest one; powers of ten where these are enough."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = float(finite.min()), float(finite.max())
    locators = [LogLocator(subs=subs, numticks=CONTOURS + 1) for subs in ((1.0,), (1.0, 2.0, 5.0))] if is_log else []
    for locator in (*locators, MaxNLocator(CONTOURS)):
        levels = np.asarray(locator.tick_values(low, high))
        levels = levels[(levels > low) & (levels < high)]
        if len(levels) >= FEWEST_CONTOURS:
            break
    return levels


def sweep(
    result: xr.Dataset | xr.DataTree,
    variable: str | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    hue: str | None = None,
    col: str | None = None,
    title: str | None = None,
    ax: Place | None = None,
) -> Place:
    """Draw one number of every cell of a sweep.

    Parameters
    ----------
    result
        What `twolayer.sweep` or `twolayer.load` returned; it may be unfinished.
    variable
        The variable of the result: at the last save point where it has several, and its distribution over replicas
        where it has these: the mean, or the median of a time that some have not reached. By default a measured
        time, the time to a threshold, or the excess risk.
    x, y
        The axes of the sweep along the figure's axes. With ``y`` it is a map of colours with contours, in which cells
        that have no number are hatched, those that are not computed yet are dotted in grey, and those whose verdict is
        undecided in white; without, curves with the band of the inner 80% of the replicas. By default the first axis,
        and the second one for a map unless ``hue`` or ``col`` take it.
    hue, col
        The axes that colours and columns of panels tell apart.
    title
        Written above the figure.
    ax
        Where to draw, if not in a figure of its own.

    Returns
    -------
    A figure, or what was given as ``ax``.
    """
    arrays = _arrays(result, variable)
    status: Any = result[STATUS]
    axes = [str(name) for name in status.dims]
    for name, given in {"x": x, "y": y, "hue": hue, "col": col}.items():
        if given is not None and given not in axes:
            raise InvalidInput(f"Argument `{name}` is {shown(given)}, which is no axis: {nearest(given, axes)}")
    taken = [name for name in (x, y, hue, col) if name is not None]
    if len(set(taken)) < len(taken):
        raise InvalidInput("Arguments `x`, `y`, `hue` and `col` must be different axes, but two of them are the same.")
    left = [name for name in axes if name not in taken]
    if not axes:
        raise InvalidInput("A figure of a sweep needs an axis, but this one has a single cell.")
    x = x or left.pop(0)
    if y is None and hue is None and left and _is_number(status[left[0]]):
        y = left.pop(0)
    if y is None and hue is None and left:
        hue = left.pop(0)
    if left and col is None:
        col = left.pop(0)
    if left:
        raise InvalidInput(f"The sweep has the further axis {shown(left[0])}: select a value of it, as by `sel`.")
    panels, undecided = [], _undecided(result)
    for value in status[col].values if col else [None]:
        heading = "" if value is None else f"{_label(str(col))} {_written(value)}"
        where = {} if value is None else {col: value}
        chosen = {name: array.sel(where) for name, array in arrays.items()}
        cells = status.sel(where), undecided.sel(where)
        panels += _maps(chosen, *cells, x, y, heading) if y else [_curves(chosen, x, hue, heading)]
    columns = min(len(panels), 2 if y else 3)
    width = COLUMN if len(panels) == 1 else PAGE
    return draw(Sheet(panels, columns, width, (PANEL_HEIGHT,), shared="" if y else "y"), title, ax)


# ---------------------------------------------------------------------------------------------------------- data


def _arrays(result: Any, variable: str | None) -> dict[str, xr.DataArray]:
    """The variable of every description, or of the only dataset, with its axes and at most the replicas."""
    if not isinstance(result, xr.Dataset | xr.DataTree) or kind_of(result.attrs) != "sweep":
        raise InvalidInput(f"Argument `result` must be what `sweep` returned, but is a {type(result).__name__}.")
    if isinstance(result, xr.DataTree) and result.children:
        datasets = {name: child.to_dataset() for name, child in result.children.items()}
    else:
        datasets = {"": result.to_dataset() if isinstance(result, xr.DataTree) else result}
    first = next(iter(datasets.values()))
    names = [str(name) for name in first.data_vars if first[name].dtype.kind in "fiub" and name != STATUS]
    if not names:
        raise InvalidInput("Argument `result` holds no finished cell: there is nothing to plot.")
    if variable is None:
        there = [name for name in SHOWN if name in first and bool(first[name].notnull().any())]
        variable = there[0] if there else names[0]
    if variable not in names:
        raise InvalidInput(f"Argument `variable` is {shown(variable)}, which is not there: {nearest(variable, names)}")
    axes = [str(name) for name in result[STATUS].dims]
    arrays = {}
    for name, dataset in datasets.items():
        array = dataset[variable]
        if "time" in array.dims:
            array = array.isel(time=-1)
        if "point" in array.dims:  # cells may have different numbers of save points
            last = dataset["time"].notnull().sum("point") - 1
            array = array.isel(point=last.clip(min=0)).drop_vars(("time", "step", "samples"), errors="ignore")
        further = [str(d) for d in array.dims if d not in (*axes, "replica")]
        if further:
            raise InvalidInput(f"Variable `{variable}` has the further dimension `{further[0]}`: choose another one.")
        arrays[name] = array.assign_attrs(is_simulation=dataset.attrs.get("exactness") == Exactness.EXACT.value)
    return arrays


def _undecided(result: xr.Dataset | xr.DataTree) -> xr.DataArray:
    """The cells whose numbers do not suffice for a verdict."""
    status: Any = result[STATUS]
    outcome: Any = result["outcome"] if "outcome" in result else None
    has_verdicts = outcome is not None and outcome.dims == status.dims
    return outcome == "undecided" if has_verdicts else xr.zeros_like(status, bool)


def _is_number(coordinate: xr.DataArray) -> bool:
    return coordinate.dtype.kind in "fiu" and coordinate.size > 1


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def _value_label(array: xr.DataArray) -> str:
    """What is shown of a variable."""
    name = _label(str(array.name))
    if array.sizes.get("replica", 1) == 1:
        return name
    return f"median {name}" if array.name in TIMES else f"mean {name}"


def _written(value: Any) -> str:
    return f"{value:g}" if np.issubdtype(np.asarray(value).dtype, np.number) else str(value)


def is_logarithmic(values: np.ndarray) -> bool:
    """Whether values are spaced by factors rather than by steps."""
    values = np.asarray(values, float)
    if values.size < 3 or not np.all(np.isfinite(values)) or values.min() <= 0.0:
        return bool(values.size == 2 and values.min() > 0.0 and values.max() / values.min() > WIDE)
    ordered = np.sort(values)
    steps, factors = np.diff(ordered), np.diff(np.log(ordered))
    return bool(np.std(factors) / np.mean(factors) < np.std(steps) / np.mean(steps))


def _edges(values: np.ndarray, is_log: bool) -> np.ndarray:
    """The edges of cells around values."""
    centres = np.log(values) if is_log else np.asarray(values, float)
    if centres.size == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = 0.5 * (centres[1:] + centres[:-1])
    edges = np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
    return np.exp(edges) if is_log else edges


# -------------------------------------------------------------------------------------------------------- panels


def _curves(arrays: Mapping[str, xr.DataArray], x: str, hue: str | None, heading: str) -> Panel:
    """Curves against one axis: means with bands over the replicas, one colour for each value of the hue."""
    series: list[Drawable] = []
    first = next(iter(arrays.values()))
    is_text = first[x].dtype.kind not in "fiu"
    across = np.arange(first.sizes[x]) if is_text else np.asarray(first[x].values, float)
    values = first[hue].values if hue else [None]
    for place, (name, array) in enumerate(arrays.items()):
        for number, value in enumerate(values):
            part = array if value is None else array.sel({hue: value})
            words = [name] if name else []
            words += [] if value is None else [value_label(str(hue), value)]
            series += _curve(", ".join(words), part, x, across, number if hue else place, place)
    finite = np.concatenate([np.ravel(array.values[np.isfinite(array.values)]) for array in arrays.values()])
    has_log = finite.size > 0 and finite.min() > 0.0 and finite.max() / finite.min() > WIDE
    log = ("x" if not is_text and is_logarithmic(across) else "") + ("y" if has_log else "")
    ticks = (across, [str(value) for value in first[x].values]) if is_text else None
    return Panel(_label(x), _value_label(first), series, log=log, title=heading, xticks=ticks, legend="best")


def _curve(label: str, array: xr.DataArray, x: str, across: np.ndarray, color: int, place: int) -> list[Drawable]:
    if "replica" not in array.dims:
        return [Series(label, across, array.values, color=color, dashed=place)]
    centre, error, *band = of_replicas(array.transpose("replica", x))
    if array.sizes["replica"] == 1:
        return [Series(label, across, centre, color=color, dashed=place)]
    if not array.attrs.get("is_simulation"):
        return [Series(label, across, centre, band=band, color=color, dashed=place)]
    points = Series(label, across, centre, error=error, kind="points", color=color, joined=True)
    return [points, Series("", across, centre, band=band, color=color, look={"lw": 0.0})]


def of_replicas(array: xr.DataArray) -> list[np.ndarray]:
    """The centre of the replicas, which are the first dimension, its standard error, and the ends of the inner 80%.

    The error of a median has two rows, below and above it.

    It is the mean; of a time that some replicas have not reached it is the median, in which these count as later than
    all others. Where numbers are missing there is no mean: the runs that are left are no fair sample.
    """
    values = np.asarray(array.values, float)
    number, is_time = len(values), array.name in TIMES
    late = np.where(np.isnan(values), np.inf, values) if is_time else values
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all replicas may be missing
        low, middle, high = np.quantile(late, QUANTILES, axis=0, method="nearest")
        if is_time:  # the number of replicas below the median has a standard error of half of this share
            share = min(0.5, 1.0 / np.sqrt(number))
            before, after = np.quantile(late, (0.5 - share, 0.5 + share), axis=0, method="nearest")
            below, above = 0.5 * (middle - before), 0.5 * (after - middle)
            error = np.stack([below, np.where(np.isfinite(above), above, below)])
        else:
            error = np.std(values, axis=0, ddof=min(1, number - 1)) / np.sqrt(number)
        centre = middle if is_time else np.mean(values, axis=0)
    limits = [np.where(np.isfinite(x), x, np.nan) for x in (centre, error, low, high)]
    return [limits[0], np.nan_to_num(limits[1]), *limits[2:]]


def _maps(
    arrays: Mapping[str, xr.DataArray], status: xr.DataArray, undecided: xr.DataArray, x: str, y: str, heading: str
) -> list[Panel]:
    """Maps of colours over two axes, one for each description."""
    panels = []
    for name, array in arrays.items():
        if "replica" in array.dims:
            values = of_replicas(array.transpose("replica", y, x))[0]
        else:
            values = np.asarray(array.transpose(y, x).values, float)
        across, up = (np.asarray(array[axis].values, float) for axis in (x, y))
        logs = {axis: is_logarithmic(points) for axis, points in (("x", across), ("y", up))}
        edges = _edges(across, logs["x"]), _edges(up, logs["y"])
        finite = values[np.isfinite(values)]
        options: dict[str, Any] = {"cmap": "viridis"}
        if finite.size and finite.min() > 0.0 and finite.max() / finite.min() > WIDE:
            from matplotlib.colors import LogNorm

            options["norm"] = LogNorm(finite.min(), finite.max())
        series: list[Drawable] = [HeatMap(*edges, values, _value_label(array), options)]
        if min(values.shape) > 4 and finite.size > 0.5 * values.size and np.ptp(finite) > 0.0:
            series.append(Contours(across, up, np.ma.masked_invalid(values), _levels(finite, "norm" in options)))
        has_number, is_missing = np.isfinite(values), status.transpose(y, x).values == CellStatus.MISSING
        for cells, *look in (
            (~has_number & ~is_missing, "no number", "////", DARK_GREY),
            (~has_number & is_missing, "not computed yet", "....", DARK_GREY),
            (undecided.transpose(y, x).values & has_number, "undecided", "....", "white"),
        ):
            if np.any(cells):
                series.append(Hatched(*edges, cells, *look))
        words = ", ".join(filter(None, (name, heading)))
        log = "".join(axis for axis, is_log in logs.items() if is_log)
        panels.append(Panel(_label(x), _label(y), series, log=log, title=words, legend="below"))
    return panels
