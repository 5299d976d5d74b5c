"""The kind of result that `exit_time` returns: its variables, its table, its verdict, and its plain data for JSON."""

from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.escape.exit_theories import Predictions
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.core.text import Text
from twolayer.data.deviation import Finding, judge_number
from twolayer.data.schema import TIME_UNIT, Schema, Variable, add_kind, label
from twolayer.data.summary import as_python, finite, verdict_lines

if TYPE_CHECKING:
    import xarray as xr

KIND = "exit_time"
# The estimates in words.
ESTIMATES = {
    "annealed": "annealed, linearised",
    "quenched": "quenched, linearised",
    "quenched_with_noise": "quenched, with SGD noise",
    "ode": "ODE",
    "ode_with_noise": "ODE, with SGD noise",
    "ode_at_finite_d": "ODE, with SGD noise at this d",
}
# The estimates that a measurement can be held against, the best one first.
JUDGED = ("ode_at_finite_d", "ode")

_RATES = {
    "growth_rate": Variable((), "rate at which the squared overlap grows at the saddle", "1 / time"),
    "optimal_learning_rate": Variable((), "learning rate that takes the fewest steps"),
    "maximal_learning_rate": Variable((), "learning rate below which the saddle is left"),
    "recovery_learning_rate": Variable((), "learning rate below which runs end near the target"),
    "noise_shift": Variable((), "how much earlier than the ODE noisy runs exit, for large d", TIME_UNIT),
}
_MEASURED = {
    "measured": Variable(("replica",), "exit time of each run, NaN where it has not exited", TIME_UNIT),
    "censored": Variable(("replica",), "whether the run had not exited by the time until which it was followed"),
    "measured_until": Variable((), "time until which runs were followed", TIME_UNIT),
    "measured_mean": Variable((), "mean exit time of runs, NaN where some have not exited", TIME_UNIT),
    "measured_mean_error": Variable((), "standard error of the mean exit time", TIME_UNIT),
    "measured_median": Variable((), "time by which half of all runs have exited, NaN if fewer have", TIME_UNIT),
    "measured_median_error": Variable((), "standard error of the median", TIME_UNIT),
    "restricted_mean": Variable((), "mean of the exit time or `measured_until`, whichever is earlier", TIME_UNIT),
    "restricted_mean_error": Variable((), "standard error of the restricted mean", TIME_UNIT),
    "share_exited": Variable((), "share of the runs that have exited"),
    "share_exited_error": Variable((), "standard error of the share that has exited"),
}


def summary(result: "xr.Dataset") -> Text:
    """The table of an exit time: every estimate with its errors, what was measured, the verdict and the notes."""
    attributes = result.attrs
    rates = ""
    if "optimal_learning_rate" in result:
        optimal, largest = float(result.optimal_learning_rate), float(result.maximal_learning_rate)
        rates = f" (optimal {optimal:.4g}, at most {largest:.4g})"
    rate = "largest learning rate" if "steps_per_time" not in attributes else "learning rate"
    head = (
        f"Exit: {attributes['definition']}; p = {attributes['p']}, d = {attributes['d']}, noise "
        f"{attributes['noise']:.4g}, {rate} {attributes['learning_rate']:.4g}{rates}"
    )
    unit = attributes.get("steps_per_time", np.nan)
    lines = [head, "", f"{'estimate':<32}{'time':>12}{'error':>10}{'model':>10}{'steps':>14}".rstrip()]
    predictions = estimates(result)
    lines += [_row(ESTIMATES.get(name, name), *numbers, unit=unit) for name, numbers in predictions.items()]
    remarks = []
    sample = sample_of(result)
    if sample is not None:
        lines += _measured_rows(sample, unit)
        remarks.append("Errors bound how well an estimate is evaluated; those of measured times are standard errors.")
    if any(np.isfinite(numbers.model_error) for numbers in predictions.values()):
        remarks.append(
            "Model: how far the mean of runs may be from the estimate, which leaves out higher orders in 1/d."
        )
    notes = attributes["notes"].splitlines()
    return Text("\n".join([*lines, "", *remarks, *notes, *verdict_lines(attributes)]))


EXIT_TIME = add_kind(
    Schema(
        kind=KIND,
        variables={},
        optional={
            "predicted": Variable(("estimate",), "predicted mean exit time over the law of the start", TIME_UNIT),
            "predicted_error": Variable(
                ("estimate",), "bound on the numerical and statistical error of the prediction", TIME_UNIT
            ),
            "model_error": Variable(
                ("estimate",), "how far the mean of runs may be from the prediction, NaN if unknown", TIME_UNIT
            ),
            "ode": Variable(("start",), "exit time of the ODE from each start, NaN if it does not exit", TIME_UNIT),
            "ode_until": Variable((), "time until which the ODE was followed", TIME_UNIT),
            "largest_threshold": Variable(
                ("start",), "largest threshold that the ODE reaches from each start while it is followed"
            ),
            "largest_threshold_error": Variable(("start",), "bound on the numerical error of the largest threshold"),
            **_RATES,
            **_MEASURED,
        },
        attributes=("threshold", "criterion", "definition", "p", "d", "noise", "learning_rate", "outcome", "verdict"),
        summary=summary,
    )
)


# ------------------------------------------------------------------------------------------------ to a dataset


def label_exit(
    predictions: Predictions, sample: Sample | None, finding: Finding, attributes: dict[str, Any]
) -> "xr.Dataset":
    """The dataset of an exit time, with its verdict: what does not exist is not in it."""
    values: dict[str, Any] = {name: np.asarray(value, dtype=float) for name, value in predictions.rates.items()}
    coordinates: dict[str, Any] = {}
    names = [name for name in ESTIMATES if name in predictions.estimates]
    if names:
        value, error, model_error = np.array([predictions.estimates[name] for name in names], dtype=float).T
        coordinates["estimate"] = names
        values |= {"predicted": value, "predicted_error": error}
        if np.isfinite(model_error).any():
            values["model_error"] = model_error
    if predictions.ode is not None:
        coordinates["start"] = np.arange(predictions.ode.size)
        values |= {"ode": predictions.ode.times, "ode_until": predictions.ode.until}
    if predictions.reached is not None:
        values |= {"largest_threshold": predictions.reached.value, "largest_threshold_error": predictions.reached.error}
    notes = list(predictions.notes)
    if sample is not None:
        coordinates["replica"] = np.arange(sample.size)
        values |= _measured_values(sample)
        if sample.is_censored:
            notes.append(sample.censoring)
    return label(EXIT_TIME, values, coordinates, attributes | finding.attributes | {"notes": "\n".join(notes)})


def _measured_values(sample: Sample) -> dict[str, Any]:
    return {
        "measured": sample.times,
        "censored": ~np.isfinite(sample.times),
        "measured_until": sample.until,
        "measured_mean": sample.mean,
        "measured_mean_error": sample.standard_error,
        "measured_median": sample.median,
        "measured_median_error": sample.median_error,
        "restricted_mean": sample.restricted_mean,
        "restricted_mean_error": sample.restricted_mean_error,
        "share_exited": sample.share,
        "share_exited_error": sample.share_error,
    }


def judge_exit(predictions: dict[str, Prediction], sample: Sample | None) -> Finding:
    """The best prediction at this d against the mean of the runs.

    What finite d may change is the model error. Of an ODE without one, which is a limit, it is the scatter of single
    runs, as in `compare`.
    """
    name = next((name for name in JUDGED if name in predictions), None)
    runs = 0 if sample is None else sample.size
    named = "No prediction" if name is None else ESTIMATES[name]
    reason = ""
    if name is None:
        reason = "no theory of it is known"
    elif sample is None:
        reason = "no runs were made"
    elif sample.is_censored:
        reason = f"{sample.size - sample.exited.size} of {sample.size} runs have not exited, so that there is no mean"
    elif not np.isfinite(predictions[name].value):
        reason = "the ODE does not exit from every start, so that it has no mean"
    if reason or name is None or sample is None:
        undecided = judge_number(named, np.nan, np.nan, np.nan, np.nan, runs)
        against = f" against {runs} runs" if runs else ""
        return undecided._replace(sentence=f"{named}{against} is undecided: {reason}.")
    value, error, model_error = predictions[name]
    scatter = float(np.std(sample.times, ddof=1)) if runs > 1 else 0.0
    finite_d = model_error if np.isfinite(model_error) else scatter
    return judge_number(named, value, error, sample.mean, sample.standard_error, runs, finite_d)


# ---------------------------------------------------------------------------------------------- from a dataset


def estimates(result: "xr.Dataset") -> dict[str, Prediction]:
    """The predictions of a result by their names."""
    if "predicted" not in result:
        return {}
    numbers = [result[name].values for name in ("predicted", "predicted_error")]
    numbers.append(result.model_error.values if "model_error" in result else np.full_like(numbers[0], np.nan))
    return {
        str(name): Prediction(*map(float, row)) for name, *row in zip(result.estimate.values, *numbers, strict=True)
    }


def sample_of(result: "xr.Dataset", name: str = "measured") -> Sample | None:
    """The measured times of a result, or with the name "ode" those of the ODE; None where there are none."""
    return Sample(result[name].values, float(result[f"{name}_until"])) if name in result else None


def plain(result: "xr.Dataset") -> dict[str, Any]:
    """Convert a result of `exit_time` to plain data for JSON; numbers that do not exist are None.

    ``measured.mean`` is None where some runs have not exited; their times are then described by the median, the
    restricted mean and the share that exited, which stand beside it.
    """
    attributes, predictions, sample, ode = result.attrs, estimates(result), sample_of(result), sample_of(result, "ode")
    values = {name: finite(numbers.value) for name, numbers in predictions.items()}
    unit = attributes.get("steps_per_time")
    named = dict.fromkeys(ESTIMATES)
    steps = None
    if unit is not None:
        in_steps: dict[str, Any] = {name: None if value is None else value * unit for name, value in values.items()}
        steps = named | in_steps | {"measured": None if sample is None else sample.to_dict(unit)}
    numbers = ("p", "d", "noise", "threshold", "criterion", "definition", "learning_rate")
    return {
        **{name: as_python(attributes[name]) for name in numbers},
        **{name: float(result[name]) if name in result else None for name in _RATES},
        **named,
        **values,
        "errors": {name: finite(estimate.error) for name, estimate in predictions.items()},
        "model_errors": {
            name: estimate.model_error for name, estimate in predictions.items() if np.isfinite(estimate.model_error)
        },
        "measured": None if sample is None else sample.to_dict(),
        "measured_by": attributes.get("measured_by"),
        "ode_sample": None if ode is None else ode.to_dict(),
        "steps_per_time": as_python(unit),
        "steps": steps,
        "largest_threshold": finite(float(result.largest_threshold.min())) if "largest_threshold" in result else None,
        "outcome": attributes["outcome"],
        "verdict": attributes["verdict"],
        "notes": attributes["notes"].splitlines(),
    }


# ---------------------------------------------------------------------------------------------------- the table


def _measured_rows(sample: Sample, unit: float) -> list[str]:
    """The mean, or where some runs have not exited what is known of their times."""
    name = f"measured, {sample.size} runs"
    if not sample.is_censored:
        return [_row(name, sample.mean, sample.standard_error, unit=unit)]
    share = f"{sample.exited.size} exited"
    restricted = sample.restricted_mean, sample.restricted_mean_error
    return [
        f"{name:<32}{share:>12}",
        _row("  median", sample.median, sample.median_error, unit=unit, missing="not reached"),
        _row(f"  mean, or {sample.until:.4g} if later", *restricted, unit=unit),
    ]


def _row(
    name: str, value: float, error: float, model_error: float = np.nan, *, unit: float, missing: str = "never"
) -> str:
    is_there = np.isfinite(value)
    errors = "".join(f"{f'{x:.1e}' if is_there and np.isfinite(x) else '':>10}" for x in (error, model_error))
    time = f"{value:.4f}" if is_there else missing
    steps = f"{value * unit:.4g}" if is_there and np.isfinite(unit) else ""
    return f"{name:<32}{time:>12}{errors}{steps:>14}".rstrip()
