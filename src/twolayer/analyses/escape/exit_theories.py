"""What theories say about one exit, and what a theory of it is made of."""

import abc
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from twolayer.analyses.escape.exit_starts import Starts
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.ask import Training
from twolayer.core.estimate import Estimate
from twolayer.problem import Problem
from twolayer.verbs.progress import Progress

# The ODE is followed for so many times the time that formulas give, and runs for so many times that of the ODE.
PATIENCE = 10.0


@dataclass(frozen=True)
class Predictions:
    """What theories say about one exit: only what exists is there.

    ``estimates`` are mean times over the law of the start, by the names of `ESTIMATES`; ``rates`` further numbers about
    the saddle. ``ode`` holds the time of the ODE from each start, ``reached`` the largest threshold that it reaches.
    """

    estimates: dict[str, Prediction]
    rates: dict[str, float] = field(default_factory=dict)
    ode: Sample | None = None
    notes: tuple[str, ...] = ()
    reached: Estimate | None = None


class AskedExit(NamedTuple):
    """What is asked of a theory: the level of the exit, the starts, and how far the ODE is followed."""

    threshold: float
    drawn: Starts
    starts: int  # from which the ODE is solved, where it is not solved in closed form
    until: float | None
    tell: Progress


class AbstractPredictor(abc.ABC):
    """A theory of the exit: which problems it is about, and what it says of them."""

    references: tuple[str, ...] = ()

    @abc.abstractmethod
    def applies(self, problem: Problem, training: Training) -> bool:
        """Whether this theory is about the problem and the training."""

    def check(self, problem: Problem, training: Training) -> None:  # noqa: B027 (most refuse nothing)
        """Refuse, before anything is computed, what it says has no exit."""

    def starts_needed(self, problem: Problem) -> int:
        """How many starts it wants to be drawn."""
        return 1

    @abc.abstractmethod
    def predict(self, problem: Problem, training: Training, asked: AskedExit) -> Predictions:
        """Predict the exit time by this theory and by the ODE."""


def from_which_starts(sample: Sample) -> str:
    """From which starts the ODE does not exit, and by when."""
    lost = sample.size - sample.exited.size
    starts = f"from {lost} of {sample.size} starts" if sample.size > 1 else "from its start"
    return f"{starts} before time {sample.until:.4g}"


def without_mean(sample: Sample) -> Prediction:
    """The prediction of an ODE that does not exit from some starts: no mean, or none at all."""
    return Prediction(np.nan if sample.exited.size else np.inf, 0.0)


def does_not_exit(learning_rate: float, threshold: float | None, where: str) -> str:
    """The sentence that the ODE does not exit; with the threshold of phase retrieval, also what the formulas say."""
    if threshold is None:
        return f"At the learning rate {learning_rate:.4g} the ODE does not exit {where}."
    return (
        f"The learning rate {learning_rate:.4g} does not escape {where}: the formulas, linearised at the saddle, say "
        f"when the saddle is left, but the excess risk of the ODE does not fall to {1.0 - threshold:.4g} of its start."
    )
