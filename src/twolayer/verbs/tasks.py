"""The risks of all tasks along a run, whichever of them is being trained."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from twolayer.ask import Training
from twolayer.core.programs import KeptProgram
from twolayer.description import Applies, Exactness, Plan, Record, seen_by_fields
from twolayer.expectation import Chosen, choose, in_parts, risk_along
from twolayer.problem import Gaussian, Overlaps, Problem
from twolayer.specification.fields import as_data
from twolayer.training import SGD, Schedule, Task, share_of, tasks_of

WIDE = (Exactness.LIMIT_P, Exactness.LIMIT_P_D)


def refusal(problem: Problem, training: Training, applies: Applies) -> str:
    """Why a description cannot follow the risks of several tasks; empty if it can, or if there is one task."""
    if applies.exactness in WIDE and len(tasks_of(problem, training)) > 1:
        return (
            "its risk is a function of particles and not of the overlaps, from which the risks of the tasks that are "
            "not being trained are computed; `SaadSolla` covers several tasks."
        )
    if problem.has_data and len(tasks_of(problem, training)) > 1:
        return "on the rows of a data set it follows one task; `SaadSolla` and `OverlapSGD` follow several."
    return ""


def floor_along(problem: Problem, training: Training, plan: Plan, in_time: bool) -> float | np.ndarray:
    """The noise floor of the task that is being trained at each save point: one number where it never changes."""
    problems = (problem,) if isinstance(training, SGD) else training.problems(problem)
    floors = [one.risk_floor for one in problems]
    if isinstance(training, SGD) or len(set(floors)) == 1:
        return floors[0]
    return np.array(floors)[phase_along(problem, training, plan, in_time)]


def phase_along(problem: Problem, training: Schedule, plan: Plan, in_time: bool) -> np.ndarray:
    """The number of the phase, from 0, of each save point; the point at which a phase ends belongs to it."""
    firsts = np.array([0.0, *training.switches]) if in_time else training.clock(problem).first_steps
    points = save_times(problem, training, plan) if in_time else plan.steps
    return np.maximum(np.searchsorted(firsts, points, side="left") - 1, 0)


def save_times(problem: Problem, training: Training, plan: Plan) -> np.ndarray:
    """The times of the save points; with tasks in phases, a step at which a phase ends lies exactly at its switch.

    Otherwise rounding would put that point into the next phase of a theory, where the risk is that of another task.
    """
    times = np.array(plan.times, dtype=float)
    in_steps = np.issubdtype(np.asarray(plan.steps).dtype, np.integer)
    if isinstance(training, SGD) or not in_steps or not any(isinstance(phase, Task) for phase in training.phases):
        return times
    firsts = training.clock(problem).first_steps
    for first, switch in zip(firsts[1:], training.switches, strict=True):
        times[np.asarray(plan.steps) == first] = switch
    return times


def phases_of(problem: Problem, training: Training, in_time: bool) -> list[dict[str, Any]]:
    """Where each phase of several tasks begins and ends, and its share of each task; empty where there is one task."""
    tasks = tasks_of(problem, training)
    if len(tasks) < 2 or isinstance(training, SGD):
        return []
    firsts = [0.0, *training.switches] if in_time else training.clock(problem).first_times
    ends = [*map(float, firsts[1:]), None]
    shares = [[share_of(of_phase, task) for task in tasks] for of_phase in training.problems(problem)]
    rows = zip(firsts, ends, shares, strict=True)
    return [{"begin": float(first), "end": end, "shares": share} for first, end, share in rows]


def on_inputs(task: Problem, starts: Overlaps) -> Overlaps:
    """The starts on the inputs of a task, whose eigenvalues may be others than those of the problem."""
    if starts.blocks is None or not isinstance(task.inputs, Gaussian):
        return starts
    return starts.with_eigenvalues(task.inputs.blocks[0])


def task_risks(problem: Problem, training: Training, plan: Plan, record: Record) -> dict[str, np.ndarray]:
    r"""The risk of every task at all save points (replicas, times, tasks), with a bound on its numerical error.

    The risk is a function of the overlaps; their error :math:`\epsilon` adds
    :math:`\epsilon \sum |\partial_{(Q, M, a)} \mathcal R|`. Empty where there is one task.
    """
    tasks = tasks_of(problem, training)
    if len(tasks) < 2:
        return {}
    a = np.asarray(record.a, dtype=np.float64)
    rows = {"Q": record.Q, "M": record.M, **(record.others or {})}
    risks, errors = [], []
    for task in tasks:
        starts = on_inputs(task, plan.starts)
        Q, M, P = seen_by_fields(starts, rows)
        Q, M = np.asarray(Q, dtype=np.float64), np.asarray(M, dtype=np.float64)
        blocks = starts.blocks
        spread = 1.0 if blocks is None else float(np.sum(blocks.frame.eigenvalues))  # of errors of overlaps by block
        chosen = choose(task, ("excess_risk",))
        risk, error = risk_along(chosen, task, Q, M, P, a)
        if np.any(np.asarray(record.overlap_error) > 0.0):
            slopes = _slopes(chosen.variants()[0], task, P, Q, M, a)
            error = error + spread * record.overlap_error * slopes
        risks.append(risk + task.risk_floor)
        errors.append(error)
    return {"task_risk": np.stack(risks, axis=-1), "task_risk_error": np.stack(errors, axis=-1)}


def _slopes(
    variant: Chosen, problem: Problem, P: Float[Array, "k k"], Q: np.ndarray, M: np.ndarray, a: np.ndarray
) -> Float[np.ndarray, "replicas times"]:
    """The sum of the sizes of all derivatives of the risk by the overlaps and the second layer."""
    data = as_data(problem.without_dimension)
    rows = [x.reshape(-1, *x.shape[2:]) for x in (Q, M, a)]
    return in_parts(lambda part: _slopes_of_rows(variant, data, P, part), rows).reshape(a.shape[:2])


@KeptProgram
def _slopes_of_rows(variant: Chosen, problem: Problem, P: Any, rows: list[Array]) -> Float[Array, " rows"]:
    def risk(Q: Array, M: Array, a: Array) -> Array:
        return variant.parts(problem, Overlaps(Q, M, P, a), ("excess_risk",))["excess_risk"]

    def one(row: list[Array]) -> Any:
        slopes = jax.grad(risk, argnums=(0, 1, 2))(*row)
        return sum(abs(slope).sum() for slope in slopes)

    return jax.lax.map(one, rows)
