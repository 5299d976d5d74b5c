"""What `exit_time` gives back: formulas, the ODE and the measurement of one exit, as numbers, words and plain data."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twolayer.core.estimate import Estimate

QUANTILES = (0.1, 0.5, 0.9)
# The estimates in words.
ESTIMATES = {
    "annealed": "annealed, linearised",
    "quenched": "quenched, linearised",
    "quenched_with_noise": "quenched, with SGD noise",
    "ode": "ODE",
    "ode_with_noise": "ODE, with SGD noise",
    "ode_at_finite_d": "ODE, with SGD noise at this d",
}


# What counts as the exit, in words with the number of the level in place of the brackets.
CRITERIA = {
    "risk": "excess risk at {remains:.4g} of its initial value",
    "overlap": "largest squared cosine c^2 of a neuron with a target direction at {level:.4g} + {remains:.4g} c0^2, "
    "where c0 is that of the start",
}


@dataclass(frozen=True)
class Sample:
    """Exit times of several starts or runs, all followed until the time ``until``; NaN where there was no exit by then.

    Such a time is censored: all that is known is that it exceeds ``until``. Since all runs are followed equally long,
    the Kaplan-Meier estimate of the survival function at a time is the share of all runs that have not exited by then,
    and its standard error (Greenwood) that of a share. A run that diverged has not exited, and never will.
    """

    times: np.ndarray
    until: float

    @property
    def size(self) -> int:
        """The number of starts or runs."""
        return self.times.size

    @property
    def exited(self) -> np.ndarray:
        """The times of those that did exit."""
        return self.times[np.isfinite(self.times)]

    @property
    def is_censored(self) -> bool:
        """Whether some did not exit, so that the sample has no mean."""
        return self.exited.size < self.size

    @property
    def share(self) -> float:
        """The share of all that has exited."""
        return self.exited.size / self.size

    @property
    def share_error(self) -> float:
        """One standard deviation of the share, by Wilson's score, which is positive also where all or none exited."""
        n = self.size
        return float(np.sqrt(self.share * (1.0 - self.share) / n + 0.25 / n**2) / (1.0 + 1.0 / n))

    @property
    def mean(self) -> float:
        """The mean exit time; NaN where some did not exit, since the mean over the others is too early."""
        return np.nan if self.is_censored else float(np.mean(self.times))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN for fewer than two runs, and where some did not exit."""
        return np.nan if self.is_censored else _standard_error(self.times)

    @property
    def restricted_mean(self) -> float:
        """The mean of the exit time or ``until``, whichever is earlier: the area below the survival function."""
        return float(np.mean(self._restricted)) if np.isfinite(self.until) or not self.is_censored else np.nan

    @property
    def restricted_mean_error(self) -> float:
        """Standard error of the restricted mean; NaN for fewer than two runs."""
        return _standard_error(self._restricted) if np.isfinite(self.until) or not self.is_censored else np.nan

    @property
    def _restricted(self) -> np.ndarray:
        return np.where(np.isfinite(self.times), self.times, self.until)

    @property
    def median(self) -> float:
        """The time by which half of all have exited; NaN when fewer have."""
        return self.quantile(0.5)

    @property
    def median_error(self) -> float:
        """Half the distance of the quantiles one standard deviation of a share around one half; NaN if not reached."""
        deviation = min(0.5 / np.sqrt(self.size), 0.5)
        return 0.5 * (self.quantile(0.5 + deviation) - self.quantile(0.5 - deviation))

    def quantile(self, fraction: float) -> float:
        """The time by which this fraction of all has exited; NaN when fewer have."""
        ordered = np.sort(np.where(np.isfinite(self.times), self.times, np.inf))
        time = float(np.quantile(ordered, fraction, method="inverted_cdf"))
        return time if np.isfinite(time) else np.nan

    @property
    def censoring(self) -> str:
        """The sentence that says how many have not exited."""
        return (
            f"{self.size - self.exited.size} of {self.size} runs had not exited by time {self.until:.4g}: their times "
            f"are censored, and there is no mean. The share that exited is {self.share:.3f} +- {self.share_error:.3f}."
        )

    def to_dict(self, unit: float = 1.0) -> dict[str, Any]:
        """Plain data, with times in another unit; numbers that do not exist are None."""
        return {
            "mean": finite(self.mean * unit),
            "stderr": finite(self.standard_error * unit),
            "median": finite(self.median * unit),
            "median_stderr": finite(self.median_error * unit),
            "restricted_mean": finite(self.restricted_mean * unit),
            "restricted_mean_stderr": finite(self.restricted_mean_error * unit),
            "until": finite(self.until * unit),
            "quantiles": {str(fraction): finite(self.quantile(fraction) * unit) for fraction in QUANTILES},
            "replicas": self.size,
            "exited": int(self.exited.size),
            "censored": int(self.size - self.exited.size),
            "share_exited": self.share,
            "share_exited_stderr": self.share_error,
        }


def _standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(values.size)) if values.size > 1 else np.nan


@dataclass(frozen=True)
class ExitTime:
    r"""The exit time of one problem and training, by every account there is.

    Times are on the clock of the package, :math:`t = \gamma\,\mathrm{samples}/(pd)`; ``steps_per_time`` converts them.
    An `Estimate` holds a value and a bound on its numerical and statistical error. What is about the saddle of phase
    retrieval is None for other problems. ``*_with_noise`` are earlier by ``noise_shift``.

    ``criterion`` says what counts as the exit. ``"risk"``: the excess risk is (1 - T) times its initial value.
    ``"overlap"``: the squared cosine between some neuron and some target direction is T + (1 - T) times the largest one
    of the start. The second is used where the risk also falls without any overlap with the target, because rows or
    output weights change their size; for one neuron on the sphere that learns phase retrieval the two are the same.

    ``model_errors`` holds for some estimates how far the mean of actual runs may be from them because the model leaves
    out terms of the next order in 1/d. It is apart from the error of the estimate, which is numerical.
    """

    p: int
    d: int
    noise: float
    threshold: float  # T of the criterion
    learning_rate: float
    steps_per_time: float
    growth_rate: float | None
    optimal_learning_rate: float | None
    maximal_learning_rate: float | None  # the saddle is left only below it
    recovery_learning_rate: float | None  # runs end near the target only below it
    noise_shift: float | None  # how much earlier than the ODE noisy runs exit, for large d
    annealed: Estimate | None
    quenched: Estimate | None
    quenched_with_noise: Estimate | None
    ode: Estimate | None  # mean over the law of the start
    ode_with_noise: Estimate | None
    ode_at_finite_d: Estimate | None  # with what the noise of SGD changes at this d
    ode_sample: Sample | None  # the ODE from each start
    measured: Sample | None
    measured_by: str
    notes: tuple[str, ...]
    criterion: str = "risk"  # a key of CRITERIA
    model_errors: dict[str, float] = field(default_factory=dict)  # by the name of the estimate

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The estimates there are, by name."""
        found = {name: getattr(self, name) for name in ESTIMATES}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def definition(self) -> str:
        """What counts as the exit, in words."""
        return CRITERIA[self.criterion].format(level=self.threshold, remains=1.0 - self.threshold)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that do not exist are None.

        ``measured.mean`` is None where some runs have not exited; their times are then described by the median, the
        restricted mean and the share that exited, which stand beside it.
        """
        rates = ("growth_rate", "optimal_learning_rate", "maximal_learning_rate", "recovery_learning_rate")
        values = {name: finite(value.value) for name, value in self.estimates.items()}
        unit = self.steps_per_time
        steps: dict[str, Any] = {name: None if value is None else value * unit for name, value in values.items()}
        named = dict.fromkeys(ESTIMATES)
        return {
            "p": self.p,
            "d": self.d,
            "noise": self.noise,
            "threshold": self.threshold,
            "criterion": self.criterion,
            "definition": self.definition,
            "learning_rate": self.learning_rate,
            **{name: getattr(self, name) for name in rates},
            "noise_shift": self.noise_shift,
            **named,
            **values,
            "errors": {name: finite(value.error) for name, value in self.estimates.items()},
            "model_errors": {name: finite(value) for name, value in self.model_errors.items()},
            "measured": None if self.measured is None else self.measured.to_dict(),
            "measured_by": self.measured_by if self.measured else None,
            "ode_sample": None if self.ode_sample is None else self.ode_sample.to_dict(),
            "steps_per_time": unit,
            "steps": named | steps | {"measured": None if self.measured is None else self.measured.to_dict(unit)},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        rates = ""
        if self.optimal_learning_rate is not None:
            rates = f" (optimal {self.optimal_learning_rate:.4g}, at most {self.maximal_learning_rate:.4g})"
        head = (
            f"Exit: {self.definition}; p = {self.p}, d = {self.d}, noise {self.noise:.4g}, "
            f"learning rate {self.learning_rate:.4g}{rates}"
        )
        lines = [head, "", f"{'account':<32}{'time':>12}{'error':>10}{'model':>10}{'steps':>14}"]
        lines += [
            _row(ESTIMATES[name], value.value, value.error, self.steps_per_time, self.model_errors.get(name, np.nan))
            for name, value in self.estimates.items()
        ]
        words = []
        if self.measured is not None:
            lines += _measured_rows(self.measured, self.steps_per_time)
            words.append("Errors bound how well an account is evaluated; those of measured times are standard errors.")
        if self.model_errors:
            words.append(
                "Model: how far the mean of runs may be from the account, which leaves out higher orders in 1/d."
            )
        return "\n".join([*lines, *([""] if words or self.notes else []), *words, *self.notes])


def _measured_rows(sample: Sample, unit: float) -> list[str]:
    """The mean, or where some runs have not exited what is known of their times."""
    name = f"measured, {sample.size} runs"
    if not sample.is_censored:
        return [_row(name, sample.mean, sample.standard_error, unit)]
    share = f"{sample.exited.size} exited"
    return [
        f"{name:<32}{share:>12}",
        _row("  median", sample.median, sample.median_error, unit, missing="not reached"),
        _row(f"  mean, or {sample.until:.4g} if later", sample.restricted_mean, sample.restricted_mean_error, unit),
    ]


def _row(
    name: str, value: float, error: float, unit: float, model_error: float = np.nan, missing: str = "never"
) -> str:
    is_there = np.isfinite(value)
    errors = "".join(f"{f'{x:.1e}' if is_there and np.isfinite(x) else '':>10}" for x in (error, model_error))
    shown, steps = (f"{value:.4f}", f"{value * unit:.4g}") if is_there else (missing, "")
    return f"{name:<32}{shown:>12}{errors}{steps:>14}".rstrip()


def finite(value: Any) -> float | None:
    """A number that JSON can hold, or None."""
    return float(value) if value is not None and np.isfinite(value) else None


def does_not_escape(learning_rate: float, threshold: float | None, where: str) -> str:
    """The sentence that the ODE does not exit; with the threshold of phase retrieval, also what the formulas say."""
    if threshold is None:
        return f"At the learning rate {learning_rate:.4g} the ODE does not exit {where}."
    return (
        f"The learning rate {learning_rate:.4g} does not escape {where}: the formulas, linearised at the saddle, say "
        f"when the saddle is left, but the excess risk of the ODE does not fall to {1.0 - threshold:.4g} of its start."
    )
