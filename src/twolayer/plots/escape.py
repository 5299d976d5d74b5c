"""Figures of exit times: their law, and how they change with the dimension, the width and the learning rate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twolayer.analyses import ExitTime
from twolayer.analyses.escape.result import Sample
from twolayer.core.errors import InvalidInput, shown
from twolayer.plots.style import (
    COLUMN,
    DARK_GREY,
    LEGEND_LINE,
    LINESTYLES,
    PALETTE,
    TITLE_LINE,
    grow,
    new_figure,
    put_title,
    style,
)

# Name, colour and line of each estimate: with noise in the colour of what it corrects.
LOOKS: dict[str, tuple[str, str, Any]] = {
    "annealed": ("annealed", PALETTE[3], LINESTYLES[3]),
    "quenched": ("quenched", PALETTE[2], "-"),
    "quenched_with_noise": ("quenched, SGD noise", PALETTE[2], LINESTYLES[1]),
    "ode": ("ODE", PALETTE[1], "-"),
    "ode_with_noise": ("ODE, SGD noise", PALETTE[1], LINESTYLES[1]),
    "ode_at_finite_d": ("ODE, SGD noise at finite $d$", PALETTE[1], LINESTYLES[2]),
}
MEASURED: dict[str, Any] = {"ls": "", "marker": "o", "color": PALETTE[0], "mfc": "white", "capsize": 1.5, "zorder": 4}
AXES = {
    "d": r"dimension  $d$",
    "p": r"width  $p$",
    "learning_rate": r"learning rate  $\gamma$",
    "threshold": r"threshold  $T$",
}


def exit_law(result: ExitTime, title: str | None = None) -> Figure:
    r"""The law of the exit time: how many runs, and how many starts of the ODE, have exited by a time.

    Parameters
    ----------
    result
        What `twolayer.exit_time` returned.
    title
        Written above the figure; formulas stand between dollars.

    Returns
    -------
    A figure of one journal column. Steps: one minus the Kaplan-Meier estimate of the survival function, with the band
    that contains all of the true one with probability 95% (Dvoretzky, Kiefer and Wolfowitz), and the same of the ODE
    over random starts. A cross marks where runs that have not exited are censored. Vertical lines: means, by formula,
    by the ODE (with the band of its model error) and as measured (with the band of two standard errors); the measured
    median where runs are censored and half have exited.
    """
    if not isinstance(result, ExitTime):
        raise InvalidInput(f"Argument `result` must be what `exit_time` returned, but is a {type(result).__name__}.")
    with style():
        figure = new_figure(COLUMN, 2.6)
        ax = figure.subplots()
        entries = _draw_samples(ax, result) + _draw_means(ax, result)
        ax.set_xlabel(r"exit time  $t$")
        ax.set_ylabel("fraction that has exited")
        ax.set_ylim(0.0, 1.02)
        ax.set_xlim(*_time_limits(result))
        top = ax.secondary_xaxis("top", functions=_steps(result))
        top.set_xlabel("steps")
        ax.tick_params(which="both", top=False)
        _legend(figure, entries, 2)
        _title(figure, title, [result])
    return figure


def exit_scan(results: Sequence[ExitTime], axis: str, title: str | None = None, ratio: bool = False) -> Figure:
    r"""The steps to the exit against one number that changes between results.

    Parameters
    ----------
    results
        What `twolayer.exit_time` returned, several times.
    axis
        ``"d"``, ``"p"``, ``"learning_rate"`` or ``"threshold"``.
    title
        Written above the figure; formulas stand between dollars.
    ratio
        Show measured over predicted, one set of points for each prediction, in place of the steps themselves.

    Returns
    -------
    A figure of one journal column. Lines: mean steps by the formulas and the ODE, with a band for the model error;
    points: measured means with two standard errors. Ratios to an estimate with a model error have it in their bars.
    Against the dimension the steps are divided by it: growth as :math:`d \log d` is a straight line.
    Against the learning rate the optimal one is marked, and others that theory singles out where they are in view.
    Where some runs did not exit there is no point, since the mean of the others would mislead; the legend says so.
    """
    results = sorted(results, key=lambda result: getattr(result, _checked(axis)))
    if len(results) < 2 or not all(isinstance(result, ExitTime) for result in results):
        raise InvalidInput("Argument `results` must be a list of at least two results of `exit_time`.")
    x = np.array([getattr(result, axis) for result in results], dtype=float)
    with style():
        figure = new_figure(COLUMN, 2.6)
        ax = figure.subplots()
        ax.set_xlabel(AXES[axis])
        if axis in ("d", "p", "threshold"):
            ax.set_xscale("log")
        if axis == "p":
            ax.set_xticks(x, [f"{value:g}" for value in x])
            ax.minorticks_off()
        entries = _draw_ratios(ax, results, x) if ratio else _draw_steps(ax, results, x, axis)
        ax.set_xlim(*_margins(ax, x))
        if axis == "learning_rate":
            entries += _mark_rates(ax, results, x)
        _legend(figure, entries, 2)
        _title(figure, title, results)
    return figure


def _checked(axis: str) -> str:
    if axis not in AXES:
        raise InvalidInput(f"Argument `axis` must be one of {', '.join(map(repr, AXES))}, but is {shown(axis)}.")
    return axis


# -------------------------------------------------------------------------------------------------------- law


def _draw_samples(ax: Axes, result: ExitTime) -> list[tuple[Any, str]]:
    entries: list[tuple[Any, str]] = []
    end = max(_time_limits(result)[1], *(s.exited.max(initial=0.0) for s in _samples(result)), 0.0)
    if result.measured is not None:
        times, fraction = _distribution(result.measured.times, end)
        (line,) = ax.step(times, fraction, where="post", color=PALETTE[0])
        margin = np.sqrt(np.log(2.0 / 0.05) / (2.0 * result.measured.size))
        low, high = np.clip(fraction - margin, 0.0, 1.0), np.clip(fraction + margin, 0.0, 1.0)
        band = ax.fill_between(times, low, high, step="post", color=PALETTE[0], alpha=0.2)
        entries.append(((band, line), f"measured: {result.measured.size} runs"))
        if result.measured.is_censored:
            entries.append(_draw_censoring(ax, result.measured))
    if result.ode_sample is not None and result.ode_sample.size > 1:
        times, fraction = _distribution(result.ode_sample.times, end)
        (line,) = ax.step(times, fraction, where="post", color=PALETTE[1], lw=0.9)
        entries.append((line, f"ODE: {result.ode_sample.size} starts"))
    return entries


def _draw_censoring(ax: Axes, sample: Sample) -> tuple[Any, str]:
    """A cross at the time until which runs without an exit were followed."""
    (mark,) = ax.plot([sample.until], [sample.share], ls="", marker="+", ms=7, mew=1.2, color=PALETTE[0], zorder=5)
    return mark, f"censored: {sample.size - sample.exited.size} runs"


def _samples(result: ExitTime) -> list[Sample]:
    return [sample for sample in (result.measured, result.ode_sample) if sample is not None]


def _distribution(times: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Ordered times up to the end and the fraction that has exited by then; those that never do count in the whole."""
    exited = np.sort(times[np.isfinite(times)])
    fraction = np.arange(exited.size + 1) / times.size
    return np.concatenate([[0.0], exited, [end]]), np.append(fraction, fraction[-1])


def _draw_means(ax: Axes, result: ExitTime) -> list[tuple[Any, str]]:
    entries: list[tuple[Any, str]] = []
    sample = result.measured
    if sample is not None:
        middle = (sample.median, sample.median_error) if sample.is_censored else (sample.mean, sample.standard_error)
        if np.isfinite(middle[0]):
            band = _span(ax, middle[0], 2 * np.nan_to_num(middle[1]), PALETTE[0])
            line = ax.axvline(middle[0], color=PALETTE[0], lw=0.8, ls=":")
            entries.append(((band, line), f"{'median' if sample.is_censored else 'mean'}: measured"))
    for name, value in result.estimates.items():
        label, color, linestyle = LOOKS[name]
        # The shift at large d is left out where that at this d is shown.
        if name.endswith("with_noise") or not np.isfinite(value.value):
            continue
        line = ax.axvline(value.value, color=color, lw=0.9, ls=":" if name == "ode" else linestyle)
        left_out = result.model_errors.get(name)
        band = () if left_out is None else (_span(ax, value.value, value.error + left_out, color),)
        entries.append(((*band, line), f"mean: {label}"))
    return entries


def _span(ax: Axes, value: float, error: float, color: str) -> Any:
    return ax.axvspan(value - error, value + error, color=color, alpha=0.15, lw=0)


def _time_limits(result: ExitTime) -> tuple[float, float]:
    shown = [sample.exited for sample in _samples(result)]
    if result.measured is not None and result.measured.is_censored and np.isfinite(result.measured.until):
        shown.append(np.array([result.measured.until]))
    shown.append(np.array([value.value for value in result.estimates.values() if np.isfinite(value.value)]))
    times = np.concatenate(shown)
    if not times.size:
        return 0.0, 1.0
    marks = np.concatenate([values for values in shown[len(_samples(result)) :]])
    high = max(float(np.quantile(times, 0.99)), float(np.max(marks, initial=0.0)))
    low = max(0.0, float(np.min(times)) - 0.1 * (high - float(np.min(times))))
    return low, high + 0.05 * (high - low) if high > low else low + 1.0


def _steps(result: ExitTime) -> Any:
    unit = result.steps_per_time
    return (lambda time: time * unit, lambda steps: steps / unit)


# ------------------------------------------------------------------------------------------------------ scans


def _draw_steps(ax: Axes, results: Sequence[ExitTime], x: np.ndarray, axis: str) -> list[tuple[Any, str]]:
    unit = x if axis == "d" else np.ones_like(x)
    ax.set_ylabel(r"steps to the exit$\,/\,d$" if axis == "d" else "steps to the exit")
    ax.set_yscale("linear" if axis == "d" else "log")
    entries: list[tuple[Any, str]] = []
    for name, (label, color, linestyle) in LOOKS.items():
        values = _means(results, name) / unit
        if np.isfinite(values).any():
            (line,) = ax.plot(x, values, color=color, ls=linestyle)
            left_out = _model_errors(results, name) / unit
            if name == "ode_at_finite_d" and np.isfinite(left_out).any():
                band = ax.fill_between(x, values - left_out, values + left_out, color=color, alpha=0.15, lw=0)
                entries.append(((band, line), label))
            else:
                entries.append((line, label))
    measured, error = _measured(results)
    if np.isfinite(measured).any():
        points = ax.errorbar(x, measured / unit, 2.0 * error / unit, **MEASURED)
        entries.append((points, "measured, two standard errors"))
    return entries + _left_out(results, x)


def _draw_ratios(ax: Axes, results: Sequence[ExitTime], x: np.ndarray) -> list[tuple[Any, str]]:
    ax.set_ylabel("measured / predicted")
    ax.axhline(1.0, color=DARK_GREY, lw=0.5)
    measured, error = _measured(results)
    entries: list[tuple[Any, str]] = []
    for name, (label, color, linestyle) in LOOKS.items():
        values = _means(results, name)
        if np.isfinite(values / measured).any():
            left_out = np.nan_to_num(_model_errors(results, name)) * measured / values
            bars = ax.errorbar(
                x, measured / values, (2.0 * error + left_out) / values, color=color, ls=linestyle, capsize=1.5
            )
            entries.append((bars, label))
    if not entries:
        raise InvalidInput("Argument `results` holds no measured time to divide by a prediction.")
    return entries + _left_out(results, x)


def _left_out(results: Sequence[ExitTime], x: np.ndarray) -> list[tuple[Any, str]]:
    """A line of the legend that names the points without a measured mean because some runs did not exit."""
    missing = [
        f"{place:.3g}"
        for place, result in zip(x, results, strict=True)
        if result.measured is not None and result.measured.is_censored
    ]
    return [(Line2D([], [], ls=""), f"not all runs exit at {', '.join(missing)}")] if missing else []


def _margins(ax: Axes, x: np.ndarray) -> tuple[float, float]:
    """All places, also those without a point, with a margin."""
    if ax.get_xscale() == "log":
        factor = (x[-1] / x[0]) ** 0.05
        return x[0] / factor, x[-1] * factor
    return x[0] - 0.05 * (x[-1] - x[0]), x[-1] + 0.05 * (x[-1] - x[0])


def _mark_rates(ax: Axes, results: Sequence[ExitTime], x: np.ndarray) -> list[tuple[Any, str]]:
    """Vertical lines at the learning rates that theory singles out."""
    marks = (
        ("optimal_learning_rate", r"$\gamma_{\mathrm{opt}}$", "--"),
        ("recovery_learning_rate", r"recovery only below", ":"),
        ("maximal_learning_rate", r"$\gamma_{\max}$", "-"),
    )
    entries: list[tuple[Any, str]] = []
    for name, label, linestyle in marks:
        value = getattr(results[0], name)
        if value is not None and x.min() <= value <= 1.05 * x.max():
            entries.append((ax.axvline(value, color=DARK_GREY, lw=0.7, ls=linestyle), label))
    return entries


def _means(results: Sequence[ExitTime], name: str) -> np.ndarray:
    found = [result.estimates.get(name) for result in results]
    values = [np.nan if value is None or not np.isfinite(value.value) else value.value for value in found]
    return np.array([value * result.steps_per_time for value, result in zip(values, results, strict=True)])


def _model_errors(results: Sequence[ExitTime], name: str) -> np.ndarray:
    """Model errors of an estimate with its numerical errors, in steps; NaN where there is none."""
    rows = [
        (result.estimates[name].error + result.model_errors[name]) * result.steps_per_time
        if name in result.model_errors
        else np.nan
        for result in results
    ]
    return np.array(rows, dtype=float)


def _measured(results: Sequence[ExitTime]) -> tuple[np.ndarray, np.ndarray]:
    """Measured mean steps and their standard errors; NaN where not all runs have exited, since a mean would mislead."""
    samples = [result.measured for result in results]
    rows = [
        (np.nan, np.nan)
        if sample is None or sample.is_censored
        else (sample.mean * result.steps_per_time, sample.standard_error * result.steps_per_time)
        for sample, result in zip(samples, results, strict=True)
    ]
    means, errors = np.array(rows, dtype=float).T
    return means, errors


# ------------------------------------------------------------------------------------------------------ words

SYMBOLS = {"p": "p", "d": "d", "noise": r"\Delta", "learning_rate": r"\gamma", "threshold": "T"}


def _title(figure: Figure, title: str | None, results: Sequence[ExitTime]) -> None:
    """The title that was given, or the numbers that are the same in all results."""
    if title:
        put_title(figure, title)
        return
    words = []
    for name, symbol in SYMBOLS.items():
        values = {getattr(each, name) for each in results}
        if len(values) == 1:
            words.append(f"${symbol}={_shown(values.pop())}$")
        elif name == "learning_rate" and all(_is_optimal(each) for each in results):
            words.append(r"$\gamma=\gamma_{\mathrm{opt}}$")
    figure.suptitle(", ".join(words))
    grow(figure, TITLE_LINE)


def _is_optimal(result: ExitTime) -> bool:
    optimal = result.optimal_learning_rate
    return optimal is not None and bool(np.isclose(result.learning_rate, optimal))


def _shown(value: float | int) -> str:
    if value >= 1e5 and value == 10 ** round(np.log10(value)):
        return f"10^{{{round(np.log10(value))}}}"
    return f"{value:.4g}" if not float(value).is_integer() else f"{int(value)}"


def _legend(figure: Figure, entries: list[tuple[Any, str]], columns: int) -> None:
    """Below the panel, where it covers nothing."""
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))
    grow(figure, LEGEND_LINE * -(-len(labels) // columns))
