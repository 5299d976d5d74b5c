"""Figures of exit times: their law, and how they change with the dimension, the width and the learning rate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.escape.exit_result import KIND, estimates, sample_of
from twolayer.analyses.escape.sample import Sample
from twolayer.core.errors import InvalidInput, shown
from twolayer.data.schema import check_kind
from twolayer.plots.cells import cells_of, is_sweep
from twolayer.plots.panels import Panel, Place, draw, is_whole, side_by_side
from twolayer.plots.series import Drawable, Rule, Series
from twolayer.plots.style import LINESTYLES

if TYPE_CHECKING:
    import xarray as xr

HEIGHT = 2.6
# Name, colour and number of the dashes of each estimate: with noise in the colour of what it corrects.
LOOKS: dict[str, tuple[str, int, int]] = {
    "annealed": ("annealed", 3, 3),
    "quenched": ("quenched", 2, 0),
    "quenched_with_noise": ("quenched, SGD noise", 2, 1),
    "ode": ("ODE", 1, 0),
    "ode_with_noise": ("ODE, SGD noise", 1, 1),
    "ode_at_finite_d": ("ODE, SGD noise at finite $d$", 1, 2),
}
AXES = {
    "d": r"dimension  $d$",
    "p": r"width  $p$",
    "learning_rate": r"learning rate  $\gamma$",
    "threshold": r"threshold  $T$",
}
SYMBOLS = {"p": "p", "d": "d", "noise": r"\Delta", "learning_rate": r"\gamma", "threshold": "T"}


def exit_law(
    result: "xr.Dataset",
    title: str | None = None,
    *,
    hue: str | None = None,
    col: str | None = None,
    ax: Place | None = None,
) -> Place:
    r"""Draw the law of the exit time: how many runs, and how many starts of the ODE, have exited by a time.

    Parameters
    ----------
    result
        What `twolayer.exit_time` returned, or a sweep of it.
    title
        Written above the figure; formulas stand between dollars.
    hue, col
        Axes of the sweep: a colour for each value of the one, without the vertical lines; a column of panels for each
        value of the other.
    ax
        Where to draw, if not in a figure of its own: axes, several axes for as many columns, or a
        `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of one journal column, or what was given as ``ax``. Steps: one minus the Kaplan-Meier estimate of the
    survival function, with the band that contains all of the true one with probability 95% (Dvoretzky, Kiefer and
    Wolfowitz), and the same of the ODE over random starts. A cross marks where runs that have not exited are censored.
    Vertical lines: means, by formula, by the ODE (with the band of its model error) and as measured (with the band of
    two standard errors); the measured median where runs are censored and half have exited.
    """
    columns = cells_of(result, KIND, "exit_time", col, hue)
    if is_sweep(result):
        columns = {
            value: {name: _without_gaps(cell) for name, cell in cells.items()} for value, cells in columns.items()
        }
    row = [_law_panel(value, cells, title, ax) for value, cells in columns.items()]
    return draw(side_by_side([row], (HEIGHT,), "y"), title, ax)


def exit_scan(
    results: "xr.Dataset | Sequence[xr.Dataset]",
    axis: str,
    title: str | None = None,
    ratio: bool = False,
    *,
    col: str | None = None,
    ax: Place | None = None,
) -> Place:
    r"""Draw the steps to the exit against one number that changes between results.

    Parameters
    ----------
    results
        What `twolayer.exit_time` returned, several times; or a sweep of it.
    axis
        ``"d"``, ``"p"``, ``"learning_rate"`` or ``"threshold"``.
    title
        Written above the figure; formulas stand between dollars.
    ratio
        Show measured over predicted, one set of points for each prediction, in place of the steps themselves.
    col
        A further axis of the sweep: a column of panels for each of its values. There is no ``hue``, since colours tell
        the predictions apart.
    ax
        Where to draw, if not in a figure of its own: axes, several axes for as many columns, or a
        `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of one journal column, or what was given as ``ax``. Lines: mean steps by the formulas and the ODE, with a
    band for the model error; points: measured means with two standard errors. Ratios to an estimate with a model error
    have it in their bars. Against the dimension the steps are divided by it: growth as :math:`d \log d` is a straight
    line. Against the learning rate the optimal one is marked, and others that theory singles out where they are in
    view. Where some runs did not exit there is no point, since the mean of the others would mislead; the legend says
    so.
    """
    if axis not in AXES:
        raise InvalidInput(f"Argument `axis` must be one of {', '.join(map(repr, AXES))}, but is {shown(axis)}.")
    if is_sweep(results):
        cells = cells_of(results, KIND, "exit_time", col, axis, hue_name="axis")
        columns = {value: list(members.values()) for value, members in cells.items()}
    elif col is not None:
        raise InvalidInput("Argument `col` names an axis of a sweep, but `results` is a list of single ones.")
    else:
        listed = results if isinstance(results, Sequence) else [results]
        columns = {"": [check_kind(result, KIND, "exit_time", "results") for result in listed]}
    row = [_scan_panel(value, members, axis, ratio, title, ax) for value, members in columns.items()]
    return draw(side_by_side([row], (HEIGHT,), "y"), title, ax)


# -------------------------------------------------------------------------------------------------------- law


def _law_panel(value: str, cells: dict[str, "xr.Dataset"], title: str | None, ax: Any) -> Panel:
    """The laws of one result with its means, or of several in colours of their own."""
    results = list(cells.values())
    samples = [(sample_of(result), sample_of(result, "ode")) for result in results]
    ends = [_time_limits(result) for result in results]
    limits = min(low for low, _ in ends), max(high for _, high in ends)
    exits = [sample.exited.max(initial=0.0) for pair in samples for sample in pair if sample is not None]
    end = max(limits[1], *exits, 0.0)
    units = {result.attrs.get("steps_per_time") for result in results}
    unit = units.pop() if len(units) == 1 else None
    if len(results) > 1 or "" not in cells:
        pairs = enumerate(zip(cells, samples, strict=True))
        series = [part for color, (name, pair) in pairs for part in _laws(*pair, end, (color, color), f"{name}, ")]
    else:
        series = [*_laws(*samples[0], end), *_means(results[0], samples[0][0])]
    return Panel(
        r"exit time  $t$",
        "fraction that has exited",
        series,
        xlim=limits,
        ylim=(0.0, 1.02),
        top=None if unit is None else ("steps", unit),
        legend="below",
        title=value or _numbers(title, results, ax),
        name=value,
    )


def _without_gaps(cell: "xr.Dataset") -> "xr.Dataset":
    """A cell of a sweep without the starts that only others have: where there is a mean, all starts have exited."""
    mean = estimates(cell).get("ode")
    is_whole = "ode" not in cell or mean is None or not np.isfinite(mean.value)
    return cell if is_whole else cell.isel(start=cell.ode.notnull().values)


def _laws(
    measured: Sample | None, ode: Sample | None, end: float, colors: tuple[int, int] = (0, 1), words: str = ""
) -> list[Drawable]:
    """The distribution of the measured times, with its band, and that of the ODE."""
    series: list[Drawable] = []
    if measured is not None:
        times, fraction = _distribution(measured.times, end)
        margin = np.sqrt(np.log(2.0 / 0.05) / (2.0 * measured.size))
        band = np.clip([fraction - margin, fraction + margin], 0.0, 1.0)
        label = f"{words}measured: {measured.size} runs"
        series.append(Series(label, times, fraction, band=band, kind="steps", color=colors[0]))
        if measured.is_censored:
            label = f"{words}censored: {measured.size - measured.exited.size} runs"
            cross = {"marker": "+", "ms": 7, "mew": 1.2, "zorder": 5}
            series.append(Series(label, [measured.until], [measured.share], kind="points", color=colors[0], look=cross))
    if ode is not None and ode.size > 1:
        times, fraction = _distribution(ode.times, end)
        dashed = int(colors[0] == colors[1])
        label = f"{words}ODE: {ode.size} starts"
        series.append(Series(label, times, fraction, kind="steps", color=colors[1], dashed=dashed, look={"lw": 0.9}))
    return series


def _distribution(times: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Ordered times up to the end and the fraction that has exited by then; those that never do count in the whole."""
    exited = np.sort(times[np.isfinite(times)])
    fraction = np.arange(exited.size + 1) / times.size
    return np.concatenate([[0.0], exited, [end]]), np.append(fraction, fraction[-1])


def _means(result: "xr.Dataset", sample: Sample | None) -> list[Drawable]:
    """Vertical lines at the measured mean, or median, and at the estimates."""
    lines: list[Drawable] = []
    if sample is not None:
        middle = (sample.median, sample.median_error) if sample.is_censored else (sample.mean, sample.standard_error)
        if np.isfinite(middle[0]):
            label = f"{'median' if sample.is_censored else 'mean'}: measured"
            lines.append(_line(label, middle[0], 2.0 * np.nan_to_num(middle[1]), 0, {"lw": 0.8, "ls": ":"}))
    for name, (value, error, left_out) in estimates(result).items():
        label, color, dashes = LOOKS[name]
        # The shift at large d is left out where that at this d is shown.
        if name.endswith("with_noise") or not np.isfinite(value):
            continue
        look = {"lw": 0.9, "ls": ":" if name == "ode" else LINESTYLES[dashes]}
        lines.append(_line(f"mean: {label}", value, error + left_out, color, look))
    return lines


def _line(label: str, value: float, error: float, color: int, look: dict[str, Any]) -> Rule:
    band = (value - error, value + error) if np.isfinite(error) else None
    return Rule(label, value, "x", band, color=color, look=look)


def _time_limits(result: "xr.Dataset") -> tuple[float, float]:
    samples = [sample for sample in (sample_of(result), sample_of(result, "ode")) if sample is not None]
    marks = [estimate.value for estimate in estimates(result).values() if np.isfinite(estimate.value)]
    if "measured" in result and samples[0].is_censored and np.isfinite(samples[0].until):
        marks.append(samples[0].until)
    times = np.concatenate([*(sample.exited for sample in samples), marks])
    if not times.size:
        return 0.0, 1.0
    high = max(float(np.quantile(times, 0.99)), float(np.max(marks, initial=0.0)))
    low = max(0.0, float(np.min(times)) - 0.1 * (high - float(np.min(times))))
    return low, high + 0.05 * (high - low) if high > low else low + 1.0


# ------------------------------------------------------------------------------------------------------ scans


def _scan_panel(
    value: str, results: Sequence["xr.Dataset"], axis: str, ratio: bool, title: str | None, ax: Any
) -> Panel:
    """The steps of several results, or the ratios of measured and predicted ones, against one number."""
    if len(results) < 2:
        raise InvalidInput("Argument `results` must be a list of at least two results of `exit_time`.")
    if any("steps_per_time" not in result.attrs for result in results):
        raise InvalidInput("Argument `results` must be about one method each, but a schedule has no steps per time.")
    results = sorted(results, key=lambda result: result.attrs[axis])
    x = np.array([result.attrs[axis] for result in results], dtype=float)
    over = x if axis == "d" and not ratio else np.ones_like(x)
    series = _ratios(results, x) if ratio else _steps(results, x, over)
    marks = _marked_rates(results[0], x) if axis == "learning_rate" else []
    is_logarithmic = axis in ("d", "p", "threshold")
    return Panel(
        AXES[axis],
        "measured / predicted" if ratio else r"steps to the exit$\,/\,d$" if axis == "d" else "steps to the exit",
        [*series, *_left_out(results, x), *marks],
        log=("x" if is_logarithmic else "") + ("" if ratio or axis == "d" else "y"),
        xlim=_margins(x, is_logarithmic),
        xticks=x if axis == "p" else None,
        legend="below",
        title=value or _numbers(title, results, ax),
        name=value,
    )


def _steps(results: Sequence["xr.Dataset"], x: np.ndarray, over: np.ndarray) -> list[Drawable]:
    """The steps of every estimate as lines, and those that were measured as points."""
    series: list[Drawable] = []
    for name, (label, color, dashes) in LOOKS.items():
        values, left_out = _predicted(results, name) / over
        if np.isfinite(values).any():
            has_band = name == "ode_at_finite_d" and np.isfinite(left_out).any()
            band = (values - left_out, values + left_out) if has_band else None
            series.append(Series(label, x, values, band=band, color=color, dashed=dashes))
    measured, error = _measured(results) / over
    if np.isfinite(measured).any():
        series.append(Series("measured, two standard errors", x, measured, error, kind="points", color=0))
    return series


def _ratios(results: Sequence["xr.Dataset"], x: np.ndarray) -> list[Drawable]:
    """What was measured over every estimate."""
    measured, error = _measured(results)
    series: list[Drawable] = [Rule("", 1.0, look={"lw": 0.5})]
    for name, (label, color, dashes) in LOOKS.items():
        values, left_out = _predicted(results, name)
        if np.isfinite(values / measured).any():
            # A bar is two errors long, and holds the model error once.
            bars = (error + 0.5 * np.nan_to_num(left_out) * measured / values) / values
            look = {"ls": LINESTYLES[dashes], "marker": ""}
            series.append(Series(label, x, measured / values, bars, kind="points", color=color, look=look))
    if len(series) == 1:
        raise InvalidInput("Argument `results` holds no measured time to divide by a prediction.")
    return series


def _predicted(results: Sequence["xr.Dataset"], name: str) -> np.ndarray:
    """The steps of an estimate, and its model errors with its numerical ones; NaN where there are none."""
    rows = [estimates(result).get(name, (np.nan, np.nan, np.nan)) for result in results]
    return _in_steps(results, [(x, error + more) if np.isfinite(x) else (np.nan, np.nan) for x, error, more in rows])


def _measured(results: Sequence["xr.Dataset"]) -> np.ndarray:
    """Measured mean steps and their standard errors; NaN where not all runs have exited, since a mean would mislead."""
    names = ("measured_mean", "measured_mean_error")
    return _in_steps(results, [[float(result.get(name, np.nan)) for name in names] for result in results])


def _in_steps(results: Sequence["xr.Dataset"], times: Sequence[Sequence[float]]) -> np.ndarray:
    """Numbers and their errors, in steps of each result."""
    return np.transpose(times) * [result.attrs["steps_per_time"] for result in results]


def _left_out(results: Sequence["xr.Dataset"], x: np.ndarray) -> list[Drawable]:
    """A line of the legend that names the points without a measured mean because some runs did not exit."""
    is_missing = ["censored" in result and bool(result.censored.any()) for result in results]
    missing = ", ".join(f"{place:.3g}" for place in x[is_missing])
    return [Series(f"not all runs exit at {missing}", [], [], look={"ls": ""})] if missing else []


def _margins(x: np.ndarray, is_logarithmic: bool) -> tuple[float, float]:
    """All places, also those without a point, with a margin."""
    if is_logarithmic:
        factor = (x[-1] / x[0]) ** 0.05
        return x[0] / factor, x[-1] * factor
    return x[0] - 0.05 * (x[-1] - x[0]), x[-1] + 0.05 * (x[-1] - x[0])


def _marked_rates(result: "xr.Dataset", x: np.ndarray) -> list[Drawable]:
    """Vertical lines at the learning rates that theory singles out, where they are in view."""
    marks = {
        "optimal_learning_rate": (r"$\gamma_{\mathrm{opt}}$", "--"),
        "recovery_learning_rate": ("recovery only below", ":"),
        "maximal_learning_rate": (r"$\gamma_{\max}$", "-"),
    }
    return [
        Rule(label, float(result[name]), "x", look={"ls": linestyle})
        for name, (label, linestyle) in marks.items()
        if name in result and x.min() <= float(result[name]) <= 1.05 * x.max()
    ]


# ------------------------------------------------------------------------------------------------------ words


def _numbers(title: str | None, results: Sequence["xr.Dataset"], ax: Any) -> str:
    """For a figure of its own without a title: the numbers that are the same in all results."""
    if title or not is_whole(ax):
        return ""
    formulas = []
    for name, symbol in SYMBOLS.items():
        values = {result.attrs[name] for result in results}
        if len(values) == 1:
            formulas.append(f"${symbol}={_number(values.pop())}$")
        elif name == "learning_rate":
            optimal = [float(result.get("optimal_learning_rate", np.nan)) for result in results]
            if np.allclose([result.attrs[name] for result in results], optimal):
                formulas.append(r"$\gamma=\gamma_{\mathrm{opt}}$")
    return ", ".join(formulas)


def _number(value: float | int) -> str:
    if value >= 1e5 and value == 10 ** round(np.log10(value)):
        return f"10^{{{round(np.log10(value))}}}"
    return f"{value:.4g}" if not float(value).is_integer() else f"{int(value)}"
