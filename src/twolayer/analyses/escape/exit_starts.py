"""The starts of all runs, what counts as the exit from them, and its level for each."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from twolayer.ask import Ask, Training, make_plan
from twolayer.core.errors import InvalidInput
from twolayer.description import Plan, Record
from twolayer.expectation import choose, risk_along
from twolayer.expectation.engine import ROUNDING
from twolayer.problem import Overlaps, Problem
from twolayer.training import SGD, Schedule

# What counts as the exit, in words with the number of the level in place of the brackets.
CRITERIA = {
    "risk": "excess risk at {remains:.4g} of its initial value",
    "overlap": "largest squared cosine c^2 of a neuron with a target direction at {level:.4g} + {remains:.4g} c0^2, "
    "where c0 is that of the start",
}


class Starts(NamedTuple):
    """Starts and keys of all replicas, what counts as the exit, and its level for each of them.

    By the criterion ``"risk"`` thresholds are excess risks, by ``"overlap"`` cosines.
    """

    plan: Plan
    criterion: str
    thresholds: Float[np.ndarray, " replicas"]

    def first(self, size: int) -> "Starts":
        """The starts of the first replicas."""
        starts = self.plan.starts
        few = Overlaps(starts.Q[:size], starts.M[:size], starts.P, starts.a[:size])
        plan = dataclasses.replace(self.plan, starts=few, keys=self.plan.keys[:size])
        return Starts(plan, self.criterion, self.thresholds[:size])

    @property
    def watched(self) -> dict[str, Any]:
        """The thresholds as fields of a plan. An exit is the first overlap that reaches its threshold."""
        by_overlap = self.criterion == "overlap"
        name = "overlap_threshold" if by_overlap else "risk_threshold"
        return {"risk_threshold": None, "stops_at_any": by_overlap, name: np.asarray(self.thresholds)}

    def exits(self, record: Record) -> Float[np.ndarray, " replicas"]:
        """The times at which the runs of a record exit; NaN where they do not."""
        if self.criterion == "overlap":
            return np.fmin.reduce(np.asarray(record.overlap_time), axis=1)
        return np.array(record.crossing_time, dtype=float)


def draw_starts(problem: Problem, training: Training, threshold: float, size: int, seed: int) -> Starts:
    """Draw so many starts, and find the level of the exit of each."""
    phases = training.trainings if isinstance(training, Schedule) else (training,)
    step = float(phases[0].clock(problem).time_per_step)
    plan = make_plan(problem, training, Ask(until=step, save=[step], replicas=size, seed=seed))
    methods = [phase for phase in phases if isinstance(phase, SGD)]
    if len(methods) < len(phases) or any(not x.is_spherical or float(x.layer_ratio) != 0.0 for x in methods):
        return Starts(plan, "overlap", overlap_thresholds(plan.starts, threshold))
    Q, M, a = (np.asarray(x)[:, None] for x in (plan.starts.Q, plan.starts.M, plan.starts.a))
    risks, _ = risk_along(choose(problem, ("excess_risk",)), problem, Q, M, plan.starts.P, a)
    risks = risks[:, 0]
    if float(np.min(risks)) <= 0.0:
        raise InvalidInput("The excess risk of a start is zero: there is nothing to leave.")
    return Starts(plan, "risk", (1.0 - threshold) * risks)


def overlap_thresholds(starts: Overlaps, threshold: float) -> Float[np.ndarray, " replicas"]:
    """The cosine at which each start is left."""
    largest = largest_squares(starts)
    if float(np.max(largest)) >= 1.0 - ROUNDING:
        raise InvalidInput("A neuron of the start lies along a target direction: there is nothing to leave.")
    return np.sqrt(threshold + (1.0 - threshold) * largest)


def largest_squares(starts: Overlaps) -> Float[np.ndarray, " replicas"]:
    """The largest squared cosine of a neuron with a target direction, of each start."""
    lengths = np.diagonal(np.asarray(starts.Q), axis1=1, axis2=2)
    if float(np.min(lengths)) <= 0.0:
        raise InvalidInput("The exit is measured by overlap, but a row of the start is zero and has none.")
    squares = np.asarray(starts.M) ** 2 / (lengths[:, :, None] * np.diagonal(np.asarray(starts.P)))
    return np.max(squares, axis=(1, 2))
