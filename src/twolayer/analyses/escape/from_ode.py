"""The exit by the ODE of any problem, from random starts."""

import dataclasses
from itertools import pairwise

import numpy as np

from twolayer.analyses.escape.exit_starts import Starts
from twolayer.analyses.escape.exit_theories import (
    AbstractPredictor,
    AskedExit,
    Predictions,
    does_not_exit,
    from_which_starts,
    without_mean,
)
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.ask import Training
from twolayer.core.estimate import Estimate
from twolayer.expectation.engine import ROUNDING
from twolayer.problem import Problem
from twolayer.theory import SaadSolla
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.limit_exits import ode_exit_times
from twolayer.theory.motion.flow import LOOSER
from twolayer.training import Schedule
from twolayer.verbs.phases import follow_phases
from twolayer.verbs.progress import Progress

# How far the ODE is followed where nothing is known of its time.
ODE_UNTIL = 1000.0
# Points in each phase at which the ODE of a schedule says how large its errors are, and how much longer it is followed
# at a time. As many points in all phases, whatever the end: one compiled program serves them.
POINTS, LONGER = 32, 4.0


class FromODE(AbstractPredictor):
    """The ODE of any problem, or the reason why there is none."""

    def applies(self, problem: Problem, training: Training) -> bool:
        """Always true: where there is no ODE, the prediction says so."""
        return True

    def predict(self, problem: Problem, training: Training, asked: AskedExit) -> Predictions:
        """The mean over random starts."""
        phases = training.trainings if isinstance(training, Schedule) else (training,)
        refused = [answer for answer in (SaadSolla().applies(problem, phase) for phase in phases) if not answer.ok]
        if refused:
            return Predictions({}, notes=(f"No ODE: {refused[0].statement}",))
        drawn = asked.drawn.first(asked.starts if problem.has_random_start else 1)
        times, longest = ode_times(problem, training, drawn, asked.until, asked.tell)
        sample = Sample(np.asarray(times.value), longest)
        if sample.is_censored:
            note = does_not_exit(float(training.learning_rate), None, from_which_starts(sample))
            return Predictions({"ode": without_mean(sample)}, ode=sample, notes=(note,))
        spread = np.nan_to_num(sample.standard_error) if problem.has_random_start else 0.0
        error = phase_retrieval.STANDARD_ERRORS * spread + float(np.max(np.asarray(times.error)))
        return Predictions({"ode": Prediction(sample.mean, error)}, ode=sample)


def ode_times(
    problem: Problem, training: Training, drawn: Starts, until: float | None, tell: Progress
) -> tuple[Estimate, float]:
    """The time of the ODE from each start with its error, and how long it was followed."""
    tell("ODE", 0.0)
    if isinstance(training, Schedule):
        times, longest = _schedule_times(problem, training, drawn, until)
    else:
        longest = ODE_UNTIL if until is None else until
        by_overlap = drawn.criterion == "overlap"
        times = ode_exit_times(problem, training, drawn.plan.starts, drawn.thresholds, longest, by_overlap=by_overlap)
    tell("ODE", 1.0)
    return times, longest


def _schedule_times(problem: Problem, training: Schedule, drawn: Starts, until: float | None) -> tuple[Estimate, float]:
    """The times of the ODE of a schedule: longer and longer until all starts have exited, unless ``until`` is given.

    The error of a time is how far it moves when the level of the exit moves by the error of the solution there, and
    with the tolerances of the integrator.
    """
    ode = SaadSolla()

    def followed(levels: Starts, end: float, looser: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        edges = [0.0, *(switch for switch in training.switches if switch < end), end]
        pieces = [np.linspace(low, high, POINTS, endpoint=False) for low, high in pairwise(edges)]
        times = np.concatenate([*pieces, [end]])
        steps = training.clock(problem).steps_at(times)
        plan = dataclasses.replace(levels.plan, times=times, steps=steps, **levels.watched)
        description = dataclasses.replace(ode, rtol=looser * ode.rtol, atol=looser * ode.atol)
        record = follow_phases(description, problem, training, plan)
        exits = levels.exits(record)
        latest = np.searchsorted(times, np.where(np.isfinite(exits), exits, end))
        before = np.arange(len(times)) <= latest[:, None]
        errors = record.risk_error
        if levels.criterion == "overlap":  # of a cosine, from those of the overlaps and the shortest rows
            shortest = np.min(np.diagonal(np.asarray(record.Q), axis1=2, axis2=3), axis=2)
            scale = np.sqrt(shortest * np.min(np.diagonal(np.asarray(plan.starts.P))))
            errors = record.overlap_error * (1.0 / scale + 0.5 / shortest)
        return exits, np.nanmax(np.where(before, errors, 0.0), axis=1)

    longest = 2.0 * training.switches[-1] if until is None else until
    exits, errors = followed(drawn, longest)
    while until is None and np.isnan(exits).any() and longest < ODE_UNTIL:
        longest = min(LONGER * longest, ODE_UNTIL)
        exits, errors = followed(drawn, longest)

    def change(side: float, looser: float = 1.0) -> np.ndarray:
        levels = np.maximum(drawn.thresholds + side * errors, np.finfo(float).tiny)
        shifted, _ = followed(drawn._replace(thresholds=levels), longest, looser)
        return np.abs(np.where(np.isfinite(shifted), shifted, longest) - exits)  # a harder level may not be reached

    error = np.maximum(change(-1.0), change(1.0)) + change(0.0, LOOSER)
    return Estimate(exits, error + ROUNDING * (1.0 + np.abs(exits))), longest
