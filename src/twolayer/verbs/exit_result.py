"""What `exit_time` gives back: formulas, the ODE and the measurement of one exit, as numbers, words and plain data."""

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Sample:
    """Exit times of several starts or runs; NaN where there was no exit until the time ``until``."""

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
    def mean(self) -> float:
        """The mean over those that did exit; NaN when none did."""
        return float(np.mean(self.exited)) if self.exited.size else np.nan

    @property
    def standard_error(self) -> float:
        """Of that mean; NaN for fewer than two."""
        return float(np.std(self.exited, ddof=1) / np.sqrt(self.exited.size)) if self.exited.size > 1 else np.nan

    def quantile(self, fraction: float) -> float:
        """The time by which this fraction of all has exited; NaN when fewer have."""
        ordered = np.sort(np.where(np.isfinite(self.times), self.times, np.inf))
        found = float(np.quantile(ordered, fraction, method="inverted_cdf"))
        return found if np.isfinite(found) else np.nan

    def to_dict(self, unit: float = 1.0) -> dict[str, Any]:
        """Plain data, with times in another unit; numbers that do not exist are None."""
        return {
            "mean": finite(self.mean * unit),
            "stderr": finite(self.standard_error * unit),
            "quantiles": {str(fraction): finite(self.quantile(fraction) * unit) for fraction in QUANTILES},
            "replicas": self.size,
            "exited": int(self.exited.size),
        }


@dataclass(frozen=True)
class ExitTime:
    r"""The exit time of one problem and training, by every account there is.

    Times are on the clock of the package, :math:`t = \gamma\,\mathrm{samples}/(pd)`; ``steps_per_time`` converts them.
    An `Estimate` holds a value and a bound on its numerical and statistical error. What is about the saddle of phase
    retrieval is None for other problems. ``*_with_noise`` are earlier by ``noise_shift``.
    """

    p: int
    d: int
    noise: float
    threshold: float  # the exit is at (1 - threshold) times the initial excess risk
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

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The estimates there are, by name."""
        found = {name: getattr(self, name) for name in ESTIMATES}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that do not exist are None."""
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
            "learning_rate": self.learning_rate,
            **{name: getattr(self, name) for name in rates},
            "noise_shift": self.noise_shift,
            **named,
            **values,
            "errors": {name: finite(value.error) for name, value in self.estimates.items()},
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
            f"Exit at {1.0 - self.threshold:.4g} of the initial excess risk: p = {self.p}, d = {self.d}, "
            f"noise {self.noise:.4g}, learning rate {self.learning_rate:.4g}{rates}"
        )
        rows = [(ESTIMATES[name], value.value, value.error) for name, value in self.estimates.items()]
        lines = [head, "", f"{'account':<32}{'time':>10}{'error':>10}{'steps':>14}"]
        lines += [_row(name, value, error, self.steps_per_time) for name, value, error in rows]
        if self.measured is not None:
            name = f"measured, {self.measured.size} runs"
            lines.append(_row(name, self.measured.mean, self.measured.standard_error, self.steps_per_time))
            lines += [
                "",
                "Errors bound how well an account is evaluated; that of the measured mean is its standard error.",
            ]
        return "\n".join([*lines, *([""] if self.notes and self.measured is None else []), *self.notes])


def _row(name: str, value: float, error: float, unit: float) -> str:
    shown = "never" if not np.isfinite(value) else f"{value:.4f}"
    steps = "" if not np.isfinite(value) else f"{value * unit:.4g}"
    return f"{name:<32}{shown:>10}{f'{error:.1e}' if np.isfinite(error) else '':>10}{steps:>14}"


def finite(value: Any) -> float | None:
    """A number that JSON can hold, or None."""
    return float(value) if value is not None and np.isfinite(value) else None
