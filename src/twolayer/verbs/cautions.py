"""Sentences of caution: where a description applies, but its answer may say little, or take long."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.errors import Caution
from twolayer.description import AbstractDescription, Status
from twolayer.problem import Problem
from twolayer.verbs.phases import Training

if TYPE_CHECKING:
    import xarray as xr

# Fewer steps than these are no continuous time: one of them moves the weights by more than 5% of the way.
FEW_STEPS = 20
# A sample that moves the weights by more than this part of the way, along the directions of the largest eigenvalue.
STEEP = 0.05
# Numerical errors above this part of what they belong to are told.
LARGE_ERROR = 0.01
# Seconds of work that are told before they are spent, and seconds of it from which they are estimated.
LONG, WATCHED = 60.0, 2.0


def of_limit(
    description: AbstractDescription, problem: Problem, training: Training, steps: int | None = None
) -> tuple[str, ...]:
    """Why continuous time, where a description takes it, may be far from the training of ``steps`` in all."""
    if not description.is_continuous:
        return ()
    name, sentences = type(description).__name__, []
    scatter, formula = problem.scatter(training.learning_rate), problem.scatter_formula
    if scatter > 1.0:
        sentences.append(
            f"`{name}` is a limit of small steps, but {formula} = {scatter:.2g} is above 1: what it predicts "
            f"may be far from training at d = {problem.d}."
        )
    elif not problem.is_isotropic and scatter**2 > STEEP:
        sentences.append(
            f"`{name}` is a limit in which one sample moves the weights little, but along the directions of the "
            f"largest eigenvalue c_1 it moves them by a part gamma c_1/(p d) = {scatter**2:.2g}: single runs scatter "
            "around what it predicts there, and their mean may differ."
        )
    if steps is not None and steps < FEW_STEPS:
        sentences.append(
            f"`{name}` takes time to be continuous, but `until` covers {steps} step{'s' * (steps != 1)} in all: what "
            "it predicts may be far from training."
        )
    return tuple(sentences)


def of_result(name: str, result: "xr.Dataset") -> tuple[str, ...]:
    """Whether the numerical error of a risk is large beside the largest risk of its replica.

    A replica that did not reach its end says so by its status, and its last numbers have no bound.
    """
    ended = np.isin(result.status.values, (Status.DONE, Status.STOPPED))
    rows = [np.asarray(result[variable].values)[ended] for variable in ("excess_risk", "risk_error")]
    risk, error = (np.max(np.where(np.isnan(x), 0.0, np.abs(x)), axis=1, initial=0.0) for x in rows)
    share = float(np.max(error[risk > 0.0] / risk[risk > 0.0], initial=0.0))
    if share <= LARGE_ERROR:
        return ()
    engine = result.attrs["engine"]
    return (f"The numerical error of the risk by `{name}` reaches {share:.2g} of its largest value ({engine}).",)


def of_moments(values: dict[str, Any], errors: dict[str, Any]) -> dict[str, str]:
    """A sentence for each Gaussian moment whose error is large beside its largest entry and the risk."""
    sentences = {}
    floor = float(np.max(np.abs(np.asarray(values["excess_risk"])), initial=0.0))
    for name, error in errors.items():
        size = max(float(np.max(np.abs(np.asarray(values[name])), initial=0.0)), floor)
        largest = float(np.max(np.asarray(error), initial=0.0))
        if largest > LARGE_ERROR * size:
            share = largest / size if size else np.inf
            sentences[name] = f"The numerical error of the average `{name}` is {share:.2g} of its size at the start."
    return sentences


def tell(sentences: Sequence[str]) -> None:
    """Issue every sentence of caution as a warning."""
    for sentence in sentences:
        warnings.warn(sentence, Caution, stacklevel=2)


class Forecast:
    """A listener to progress that warns once of a run that takes longer than a minute.

    The estimate is rough: it takes what remains to go on as fast as what was seen. Time before the first and the second
    piece of work is done, in which programs are compiled, does not count.
    """

    def __init__(
        self, description: AbstractDescription, progress: Callable[[float], None] | None, is_told: bool = False
    ):
        self.name, self.progress = type(description).__name__, progress
        self.first: tuple[float, float] | None = None
        self.pieces = 0
        self.is_told = is_told

    def __call__(self, fraction: float) -> None:
        now = time.monotonic()
        self.pieces += fraction > 0.0
        if self.first is None or self.pieces <= 2:
            self.first = (now, fraction)
        elapsed, done = now - self.first[0], fraction - self.first[1]
        if not self.is_told and elapsed >= WATCHED and done > 0.0:
            left = elapsed * (1.0 - fraction) / done
            if left > LONG:
                self.is_told = True
                tell([f"`{self.name}` takes about {in_words(left)} more, by a rough estimate from its first seconds."])
        if self.progress is not None:
            self.progress(fraction)


def in_words(seconds: float) -> str:
    """A time in the unit that fits it, below a minute to one digit."""
    if seconds < 1.0:
        return "less than a second"
    if seconds < 0.9 * LONG:
        return f"{float(f'{seconds:.1g}'):g} s"
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0)):
        if seconds >= 2.0 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(1, round(seconds / 60.0))} minutes" if seconds >= 90.0 else "a minute"
