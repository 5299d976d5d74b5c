"""What results report of predictions besides the risk: how often the sign is wrong, and the square error."""

from functools import lru_cache

import numpy as np

from twolayer.ask import Training
from twolayer.core.same import Same
from twolayer.description import Plan, Record, seen_by_fields
from twolayer.expectation import PREDICTIONS, Auto, risk_along
from twolayer.problem import Correlation, Gaussian, Problem, Square
from twolayer.training import SGD, tasks_of
from twolayer.verbs.tasks import on_inputs, phase_along


def reported(problem: Problem) -> tuple[str, ...]:
    """Return the names of what is reported: signs where labels are signs, the square error where it is not the risk."""
    return _reported(Same((problem,)))


@lru_cache(maxsize=256)  # the cells of a sweep share their problems
def _reported(same: Same) -> tuple[str, ...]:
    (problem,) = same.members
    if not isinstance(problem.inputs, Gaussian):
        return ()
    wanted = {
        "classification_error": problem.has_sign_labels,
        "square_error": not isinstance(problem.loss, Square | Correlation),
    }
    return tuple(name for name in PREDICTIONS if wanted[name] and not Auto().refusal(problem, (name,)))


def with_predictions(problem: Problem, training: Training, plan: Plan, record: Record, in_time: bool) -> Record:
    """Return the record with what is reported of predictions at its overlaps, whatever description it comes from.

    The labels are those of the phase of each save point. With several tasks there are several labels, and what is
    reported is followed for each task at all save points.
    """
    tasks = tasks_of(problem, training)
    if len(tasks) > 1:
        return record._replace(others=dict(record.others or {}) | _of_tasks(tasks, plan, record))
    problems = (problem,) if isinstance(training, SGD) else training.problems(problem)
    names = [name for name in PREDICTIONS if all(name in reported(one) for one in problems)]
    if not names:
        return record
    others = dict(record.others or {})
    a = np.asarray(record.a)
    starts = on_inputs(problems[0], plan.starts)  # one task has the same inputs in all its phases
    Q, M, P = seen_by_fields(starts, {"Q": np.asarray(record.Q), "M": np.asarray(record.M), **others})
    phases = np.zeros(a.shape[1], int) if isinstance(training, SGD) else phase_along(problem, training, plan, in_time)
    # Phases of one task differ by their noise at most.
    first = [next(n for n, other in enumerate(problems) if other.noise == one.noise) for one in problems]
    for number in sorted(set(first)):
        here = np.isin(phases, [n for n, one in enumerate(first) if one == number])
        chosen = Auto().choose(problems[number], tuple(names))
        for name in names:
            both = risk_along(chosen, problems[number], Q, M, P, a, name)
            for key, values in zip((name, f"{name}_bound"), both, strict=True):
                others[key] = np.where(here, values, others.get(key, np.nan))
    return record._replace(others=others)


def _of_tasks(tasks: tuple[Problem, ...], plan: Plan, record: Record) -> dict[str, np.ndarray]:
    """What is reported of each task along a last axis; NaN for a task of which it is not, and nothing if for all."""
    rows = {"Q": record.Q, "M": record.M, **(record.others or {})}
    a = np.asarray(record.a, dtype=np.float64)

    def of_task(task: Problem, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in reported(task):
            return np.full(a.shape[:2], np.nan), np.full(a.shape[:2], np.nan)
        Q, M, P = seen_by_fields(on_inputs(task, plan.starts), rows)
        Q, M = np.asarray(Q, dtype=np.float64), np.asarray(M, dtype=np.float64)
        return risk_along(Auto().choose(task, (name,)), task, Q, M, P, a, name)

    values_by_name: dict[str, np.ndarray] = {}
    for name in PREDICTIONS:
        if not any(name in reported(task) for task in tasks):
            continue
        values, bounds = zip(*(of_task(task, name) for task in tasks), strict=True)
        values_by_name |= {f"task_{name}": np.stack(values, axis=-1), f"task_{name}_bound": np.stack(bounds, axis=-1)}
    return values_by_name
