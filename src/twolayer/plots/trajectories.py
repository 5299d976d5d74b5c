"""Figures of trajectories: the risk and the overlaps against time, theory against simulation."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.description import Status
from twolayer.plots.descriptions import Facet, Result, ShownDescription, facets, quantiles
from twolayer.plots.deviations import VARIABLES, deviation_panel, has_deviation, largest_deviation_panel
from twolayer.plots.panels import Panel, Place, Sheet, draw, side_by_side
from twolayer.plots.series import Drawable, Series
from twolayer.plots.style import COLUMN, DARK_GREY, PAGE, PALETTE, RISK_LABEL, TIME_LABEL
from twolayer.plots.view import View

MAX_DIRECTIONS = 6  # panels of M; more would not fit a page
MARKERS_PER_CURVE = 30
LONG = 30.0  # the last time over the first from which on a logarithmic axis is worth its while
CROSS: dict[str, Any] = {"marker": "x", "ms": 4.0, "mew": 0.9}
SMALL_MARKS: dict[str, Any] = {"ms": 2.6, "mew": 0.6}
SMALLEST_BAND = 0.02  # in decades: a narrower band cannot be told from its line
BEYOND = 1e200  # stands for the risk of a diverged replica; finite, so that quantiles can be interpolated
FINITE = 1e100  # a quantile above this touches a diverged replica


def risk(
    result: Result,
    title: str | None = None,
    *,
    hue: str | None = None,
    col: str | None = None,
    view: View | None = None,
    ax: Place | None = None,
) -> Place:
    r"""The excess risk (:math:`\mathcal{R} - \Delta/2` for the square loss), and how far theory is from simulation.

    Parameters
    ----------
    result
        The tree that `twolayer.compare` returned, or the dataset that `twolayer.evolve` returned; or several of these,
        put together along new dimensions (`xarray.concat`).
    title
        Written above the figure; formulas stand between dollars.
    hue, col
        Dimensions of the result: a colour for each value of the one, a column of panels for each value of the other.
        ``hue="replica"`` shows every run by itself.
    view
        Another unit or scale, a part of the axis, or theories of other settings beside, for results of one training.
    ax
        Where to draw, if not in a figure of its own: axes for the risk alone, two axes for the risk and the deviation,
        a mapping from the names of panels ("risk", "deviation") to axes, or a `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of one journal column, or what was given as ``ax``. Above: theories as a line, the median over replicas
    (dotted: 10% and 90% quantiles, where random starts make them visible); simulations as markers at the median, with
    the 10-90% band shaded. Crosses mark where replicas diverged. Below, where standard errors exist: the deviation of
    the mean risk in standard errors.
    """
    columns = facets(result, hue, col)
    everyone = [description for facet in columns for description in facet.descriptions]
    shared = _time_axis(everyone)
    # Deviations are those of means over replicas.
    has_means = "replica" not in (hue, col)
    judged = [description for description in everyone if has_means and has_deviation(description, "risk")]
    rows = [[_risk_panel(facet, everyone, shared) for facet in columns]]
    if judged:
        rows.append([deviation_panel(facet, judged, shared) for facet in columns])
    rows = _viewed(rows, everyone, view)
    return draw(side_by_side(rows, (2.4, 1.1) if judged else (2.5,)), title, ax)


def overlaps(
    result: Result,
    title: str | None = None,
    replica: int | None = None,
    *,
    hue: str | None = None,
    col: str | None = None,
    view: View | None = None,
    ax: Place | None = None,
) -> Place:
    r"""The overlaps :math:`M` and :math:`Q_{ii}` (and the second layer where it moves) against time.

    Where replicas begin differently their neurons specialise differently, and a median over them would show no run that
    ever happened: then one replica is shown, theory and simulation from the same start. Where all begin alike, the
    median and the 10-90% band over replicas are shown. Students of more than eight neurons are shown by the mean and
    the 10-90% band over neurons, in one replica.

    Parameters
    ----------
    result
        The tree that `twolayer.compare` returned, or the dataset that `twolayer.evolve` returned; or several of these,
        put together along new dimensions (`xarray.concat`).
    title
        Written above the figure; formulas stand between dollars.
    replica
        The replica to show where starts are random; by default the first, number 0.
    hue, col
        Dimensions of the result: a colour for each value of the one, shared by all neurons; a column of panels for each
        value of the other.
    view
        Another unit or scale, or a part of the axis, for results of one training.
    ax
        Where to draw, if not in a figure of its own: axes for the first panel, several axes for as many panels, a
        mapping from the names of panels ("M0", "M1", ..., "Q", "a", "deviation") to axes, or a
        `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure with one panel per target direction (the first six), one of the diagonal of Q, and, where standard errors
    exist, one of the largest deviation; or what was given as ``ax``.
    """
    columns = facets(result, hue, col)
    everyone = [description for facet in columns for description in facet.descriptions]
    most = max(everyone, key=lambda description: description.replicas)
    there = most.dataset.replica.values
    replica = int(there[0]) if replica is None else replica
    if replica not in there and hue != "replica" and col != "replica":
        raise InvalidInput(f"Argument `replica` must be one of {there[0]} to {there[-1]}, but is {replica}.")
    over_replicas = most.replicas > 1 and all(description.has_one_start for description in everyone)
    shared = _time_axis(everyone)
    variables = _variables(everyone)
    rows = [
        [_overlap_panel(facet, variable, shared, replica, over_replicas) for facet in columns] for variable in variables
    ]
    key = _overlap_key(everyone, replica, over_replicas)
    of_M = [panel for row in rows for panel in row if panel.name.startswith("M")]
    limits = [_limits(of_M if row[0].name.startswith("M") else row) for row in rows]
    rows = [
        [replace(panel, series=[*panel.series, *key], ylim=ylim) for panel in row]
        for row, ylim in zip(rows, limits, strict=True)
    ]
    rows[0] = [replace(panel, title=facet.value) for panel, facet in zip(rows[0], columns, strict=True)]
    judged = [description for description in everyone if has_deviation(description, *VARIABLES)]
    if judged and "replica" not in (hue, col):
        last = [largest_deviation_panel(facet, judged, shared) for facet in columns]
        rows.append([replace(panel, ylim=(0.0, max(other.ylim[1] for other in last))) for panel in last])
    rows = _viewed(rows, everyone, view)
    if col is not None:
        return draw(side_by_side(rows, (1.75,)), title, ax)
    number = len(rows)
    across = 1 if number <= 3 and most.dataset.sizes["r"] <= 1 else 2 if number in (2, 4) else 3
    height = (1.35 if across == 1 else 1.75) + 0.4 / -(-number // across)
    width = COLUMN if across == 1 else PAGE
    return draw(Sheet([row[0] for row in rows], across, width, (height,), shared="x", fills=True), title, ax)


# ------------------------------------------------------------------------------------------------------- axes


def _viewed(rows: list[list[Panel]], everyone: Sequence[ShownDescription], view: View | None) -> list[list[Panel]]:
    """Rows of panels as a view asks for them."""
    if view is None:
        return rows
    if not isinstance(view, View):
        raise InvalidInput(f"Argument `view` must be a View, but is {shown(view)}.")
    if everyone[0].is_colored or any(len(row) > 1 for row in rows):
        raise InvalidInput("Argument `view` is for results of one training, without `hue` and `col`.")
    return [[panel] for panel in view.of([row[0] for row in rows], everyone[0])]


def _time_axis(everyone: Sequence[ShownDescription]) -> dict[str, Any]:
    """The horizontal axis that all panels share: from the first time after zero to the last one seen."""
    # Nothing is to be seen of the time after all replicas of all descriptions have diverged.
    seen = [description.time[np.isfinite(description.values("excess_risk")).any(axis=0)] for description in everyone]
    times = np.concatenate(seen)
    shared: dict[str, Any] = {"xlabel": TIME_LABEL, "log": "x"}
    if times.size and times.min() < times.max():
        if times.max() < LONG * times.min():  # a few steps, whose logarithms have no round numbers between them
            margin = 0.015 * (times.max() - times.min())
            return shared | {"log": "", "xlim": (times.min() - margin, times.max() + margin)}
        margin = (times.max() / times.min()) ** 0.015
        shared["xlim"] = (times.min() / margin, times.max() * margin)
    return shared


def _samples_axis(facet: Facet) -> tuple[str, float] | None:
    """Samples over d, where these are the same multiple of the time for every value of a further dimension."""
    rates = [description.samples_per_time for description in facet.descriptions]
    if not facet.descriptions[0].is_colored:
        rates = rates[:1]  # of a comparison all follow the same training
    is_one = None not in rates and np.allclose(np.array(rates, dtype=float), rates[0] or 0.0, rtol=1e-6)
    return (r"samples$\,/\,d$", float(rates[0])) if is_one and rates[0] else None


def _every(values: np.ndarray) -> int:
    return max(1, -(-int(np.isfinite(values).sum()) // MARKERS_PER_CURVE))


# ---------------------------------------------------------------------------------------------------- legends


def _key_of_names(
    everyone: Sequence[ShownDescription], labels: Mapping[str, str], banded: Container[str]
) -> list[Drawable]:
    """An entry of the legend for each description in grey, by marker or line style alone."""
    return [
        Series(
            labels[description.name],
            [],
            [],
            kind="points" if description.is_simulation else "line",
            band=([], []) if description.name in banded and description.is_simulation else None,
            color=DARK_GREY,
            dashed=description.place,
            marker=description.place,
            look=SMALL_MARKS if description.is_simulation else {},
        )
        for description in {description.name: description for description in everyone}.values()
    ]


def _runs(everyone: Sequence[ShownDescription], name: str) -> str:
    """The number of runs of a description, which may differ between values of a further dimension."""
    numbers = sorted({description.replicas for description in everyone if description.name == name})
    return f"{numbers[0]} runs" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} runs"


def _key_of_colors(shown: dict[str, str]) -> list[Drawable]:
    return [Series(label, [], [], color=color, look={"lw": 2.0}) for label, color in shown.items()]


def _key_of_values(everyone: Sequence[ShownDescription]) -> list[Drawable]:
    """An entry of the legend for each value that colours tell apart, with the replicas that did not reach the end."""
    several = len({description.name for description in everyone}) > 1
    shown: dict[str, str] = {}
    for value in dict.fromkeys(description.value for description in everyone if description.value):
        members = [description for description in everyone if description.value == value]
        lost = [(f"{member.name}: " if several else "") + member.lost for member in members if member.lost]
        shown[f"{value} ({'; '.join(lost)})" if lost else value] = members[0].color
    return _key_of_colors(shown)


# ------------------------------------------------------------------------------------------------------- risk


def _risk_panel(facet: Facet, everyone: Sequence[ShownDescription], shared: dict[str, Any]) -> Panel:
    limits = _risk_limits(everyone)
    series: list[Drawable] = []
    labels: dict[str, str] = {}
    banded: set[str] = set()
    for description in facet.descriptions:
        curve, label = _risk_curve(description, limits, _runs(everyone, description.name))
        if curve.band is not None or description.name not in labels:
            labels[description.name] = label
            banded |= {description.name} if curve.band is not None else set()
        label = f"{label} ({description.lost})" if description.lost else label
        series.append(replace(curve, label="" if description.is_colored else label))
    if everyone[0].is_colored:
        series += _key_of_names(facet.descriptions, labels, banded) + _key_of_values(everyone)
    crosses = [(description, _divergences(description)) for description in facet.descriptions]
    for description, ends in crosses:
        if ends:
            x, y = zip(*ends, strict=True)
            series.append(Series("", x, y, kind="points", color=description.color, look=CROSS))
    if any(ends for _, ends in crosses):
        label = "last saved point of a diverged replica"
        series.append(Series(label, [], [], kind="points", color=DARK_GREY, look=CROSS))
    axis = shared | {"log": shared["log"] + "y", "ylim": limits, "top": _samples_axis(facet)}
    name = f"risk {facet.value}".strip()
    label = RISK_LABEL if all(description.has_variance_floor for description in everyone) else "excess risk"
    return Panel(ylabel=label, series=series, title=facet.value, legend="figure", name=name, **axis)


def _risk_curve(description: ShownDescription, limits: tuple[float, float] | None, runs: str) -> tuple[Series, str]:
    """The curve of one description, without label, and the label."""
    values, name = description.values("excess_risk"), description.name
    # A diverged replica counts as above all others: left out, it would lower the median of the rest.
    low, median, high = quantiles(np.where(_has_diverged(description)[:, None] & np.isnan(values), BEYOND, values))
    low, median = (np.where((edge > 0) & (edge < FINITE), edge, np.nan) for edge in (low, median))
    curve = Series("", description.time, median, color=description.color, dashed=description.place)
    if description.is_simulation:
        every = _every(median)
        curve = replace(curve, kind="points", marker=description.place, joined=True, every=every, look=SMALL_MARKS)
        if description.replicas == 1:
            return curve, name
        return replace(curve, band=(low, high)), f"{name}: median, 10-90% of {runs}"
    if description.has_one_start or not _is_visible(limits, low, high):
        return curve, name
    high = np.where(high < FINITE, high, np.nan)
    return replace(curve, band=(low, high), edges=True), f"{name}: median (dotted: 10-90%)"


def _has_diverged(description: ShownDescription) -> np.ndarray:
    return description.dataset.status.values == Status.DIVERGED


def _divergences(description: ShownDescription) -> list[tuple[float, float]]:
    """The last time and excess risk of every replica that diverged, if it was saved at all."""
    values = description.values("excess_risk")[_has_diverged(description)]
    ends = np.isfinite(values).sum(axis=1) - 1
    last = [(float(description.time[end]), float(row[end])) for row, end in zip(values, ends, strict=True) if end >= 0]
    return [(time, value) for time, value in last if value > 0]


def _is_visible(limits: tuple[float, float] | None, low: np.ndarray, high: np.ndarray) -> bool:
    inside = (low > (limits[0] if limits else 0.0)) & np.isfinite(high)
    return bool(np.max(np.log10(high[inside] / low[inside]), initial=0.0) > SMALLEST_BAND)


def _risk_limits(everyone: Sequence[ShownDescription]) -> tuple[float, float] | None:
    """Show what is known: every value seen, except those below the smallest one that exceeds its numerical error."""
    values = np.concatenate([description.values("excess_risk").ravel() for description in everyone])
    errors = np.concatenate([description.dataset["risk_error"].values.ravel() for description in everyone])
    positive = values > 0
    known = values[positive & (values > np.nan_to_num(errors))]
    shown = known if known.size else values[positive]
    if not shown.size:
        return None
    margin = max(1.2, (shown.max() / shown.min()) ** 0.05)
    return shown.min() / margin, shown.max() * margin


# --------------------------------------------------------------------------------------------------- overlaps

Variable = tuple[str, str, str, Any]  # name of the panel, name of the variable, label, entries as replica, time, neuron


def _variables(everyone: Sequence[ShownDescription]) -> list[Variable]:
    """What the panels show."""
    k = max(description.dataset.sizes["r"] for description in everyone)
    shown: list[Variable] = [
        (f"M{r}", "M", rf"$M_{{i,{r}}}$", np.s_[:, :, :, r]) for r in range(min(k, MAX_DIRECTIONS))
    ]
    if not shown or any(_moves(description, "Q") for description in everyone):
        shown.append(("Q", "Q", r"$Q_{ii}$", np.s_[:]))
    if any(_moves(description, "a") for description in everyone):
        shown.append(("a", "a", r"$a_i$", np.s_[:]))
    return shown


def _entries(values: np.ndarray, name: str) -> np.ndarray:
    """The values as they are shown: of Q the diagonal."""
    return np.diagonal(values, axis1=-2, axis2=-1) if name == "Q" else values


def _moves(description: ShownDescription, name: str) -> bool:
    values = _entries(description.values(name), name)
    change = np.abs(values - _entries(description.starts[name].values, name)[:, None])
    return bool(np.max(change, where=np.isfinite(change), initial=0.0) > 1e-9)


def _overlap_panel(
    facet: Facet, variable: Variable, shared: dict[str, Any], replica: int, over_replicas: bool
) -> Panel:
    panel_name, name, label, entries = variable
    series: list[Drawable] = []
    for description in facet.descriptions:
        values = _entries(description.values(name), name)
        if name != "M" or values.shape[-1] > int(panel_name[1:]):
            series += _neurons(description, values[entries], replica, over_replicas)
    return Panel(ylabel=label, series=series, legend="figure", name=f"{panel_name} {facet.value}".strip(), **shared)


def _neurons(description: ShownDescription, values: np.ndarray, replica: int, over_replicas: bool) -> list[Drawable]:
    """The curves of one variable (replica, time, neuron) of one description."""
    one = description.one_replica(values, replica)
    if values.shape[-1] > len(PALETTE):
        low, _, high = quantiles(one.T)
        return [_overlap_curve(description, one.mean(axis=1), description.color, (low, high))]
    curves: list[Drawable] = []
    for neuron in range(values.shape[-1]):
        color, middle, band = description.color if description.is_colored else PALETTE[neuron], one[:, neuron], None
        if over_replicas:
            low, middle, high = quantiles(values[:, :, neuron])
            band = (low, high) if description.is_simulation and description.replicas > 1 else None
        curves.append(_overlap_curve(description, middle, color, band))
    return curves


def _overlap_curve(description: ShownDescription, values: np.ndarray, color: str, band: Any) -> Series:
    place = description.place
    options: dict[str, Any] = {"color": color, "band": band, "dashed": place, "marker": place}
    if not description.is_simulation:
        return Series("", description.time, values, edges=True, **options)
    look = SMALL_MARKS | {"zorder": 2.5}
    return Series("", description.time, values, kind="points", every=_every(values), look=look, **options)


def _limits(row: Sequence[Panel]) -> tuple[float, float]:
    """Limits in which all curves of some panels can be seen."""
    drawn = [x for panel in row for part in panel.series if isinstance(part, Series) for x in (part.y, part.band)]
    values = np.concatenate([np.ravel(x) for x in drawn if x is not None] or [np.empty(0)])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    # Rounding errors around a constant would otherwise fill the panel.
    margin = 0.05 * (high - low) if high - low >= 1e-6 * max(abs(low), abs(high)) and high > low else 0.5
    return low - margin, high + margin


def _overlap_key(everyone: Sequence[ShownDescription], replica: int, over_replicas: bool) -> list[Drawable]:
    """The entries of the legend: descriptions, then the values or neurons that colours tell apart."""
    p = max(description.dataset.sizes["i"] for description in everyone)
    is_wide, is_colored = p > len(PALETTE), everyone[0].is_colored
    labels: dict[str, str] = {}
    banded: set[str] = set()
    for description in everyone:
        label = f"{description.name} ({description.lost})" if description.lost and not is_colored else description.name
        if is_wide or (over_replicas and description.is_simulation):
            label += (
                ": mean, 10-90% over neurons" if is_wide else f": median, 10-90% of {_runs(everyone, description.name)}"
            )
            banded.add(description.name)
        labels[description.name] = label
        if not over_replicas and description.replicas > 1:
            labels[description.name] += f", replica {replica}"
    key = _key_of_names(everyone, labels, banded)
    if is_colored:
        return key + _key_of_values(everyone)
    if is_wide:
        own = {labels[description.name]: description.color for description in everyone}
        return [replace(entry, color=own[entry.label]) for entry in key if isinstance(entry, Series)]
    return key + (_key_of_colors({rf"$i={i}$": PALETTE[i] for i in range(p)}) if p > 1 else [])
