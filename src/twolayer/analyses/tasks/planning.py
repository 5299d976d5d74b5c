"""The mixing of tasks, or the order of their phases, after which the risks of all tasks are least, through the ODE."""

import warnings
from collections.abc import Callable, Sequence
from itertools import permutations, product
from math import factorial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from twolayer.core.errors import Caution, ComputationFailed, InvalidInput
from twolayer.core.text import Text
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.data.summary import with_error
from twolayer.problem import Mixture, Problem
from twolayer.specification.codec import to_json
from twolayer.specification.fields import replaced
from twolayer.theory import SaadSolla
from twolayer.training import Schedule, Task, tasks_of
from twolayer.training.task import task_key
from twolayer.verbs import evolve
from twolayer.verbs.progress import Progress

if TYPE_CHECKING:
    import xarray as xr

# Shares are first tried in multiples of one over this number; orders are tried one by one, up to so many phases.
PARTS, MOST_PHASES = 8, 5
# Grid points of the shares that are tried at most; with many tasks the grid is coarser.
MOST_POINTS = 150
# Step of the finite differences in the shares, and the change of the objective at which the search ends.
STEP, TOLERANCE = 1e-5, 1e-11


def summary(result: "xr.Dataset") -> Text:
    """The best plan beside the one that was given."""
    best, given = (result.candidate.values[int(place)] for place in (result.best, result.given))
    value, error = (float(result[name].values[int(result.best)]) for name in ("value", "value_error"))
    first = float(result.value.values[int(result.given)])
    return Text(
        f"Objective: {result.attrs['objective']}\n"
        f"best {result.attrs['over']}: {best}, {with_error(value, error)}\n"
        f"as it was given: {given}, {first:.6g}"
    )


TASK_PLAN = add_kind(
    Schema(
        kind="task_plan",
        variables={
            "value": Variable(("candidate",), "mean over the tasks of their excess risks at the end"),
            "value_error": Variable(("candidate",), "bound on the numerical error of the mean"),
            "task_risk": Variable(("candidate", "task"), "excess risk of a task at the end, mean over starts"),
            "best": Variable((), "place of the best candidate"),
            "given": Variable((), "place of the candidate that was given"),
        },
        optional={
            "share": Variable(("candidate", "target"), "part of the samples of the last phase that belong to a target"),
            "order": Variable(("candidate", "phase"), "number of the phase, as given, that comes at this place"),
        },
        coordinates={"candidate": Variable(("candidate",), "shares or order of a candidate, in words")},
        attributes=("objective", "over", "training"),
        summary=summary,
    )
)


class _Trials:
    """The plans that were tried: schedules, the excess risk of every task at the end, and the error of their mean."""

    def __init__(self, problem: Problem, until: float, starts: int, seed: int):
        self.problem, self.until, self.seed = problem, until, seed
        self.replicas = starts if problem.has_random_start else 1
        self.rows: dict[tuple[float, ...], tuple[Schedule, np.ndarray, float]] = {}

    def value(self, candidate: Sequence[float | int] | np.ndarray, schedule: Schedule, is_kept: bool = True) -> float:
        """The mean of the excess risks of all tasks at the end of a schedule, infinite where it is not reached."""
        key = tuple(map(float, candidate))
        row = self.rows.get(key) or self._followed(schedule)
        if is_kept:
            self.rows[key] = row
        return _mean(row[1])

    def _followed(self, schedule: Schedule) -> tuple[Schedule, np.ndarray, float]:
        asked: dict[str, Any] = {"until": self.until, "save": [self.until], "replicas": self.replicas}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Caution)  # of every plan that is tried
            result = evolve(self.problem, schedule, SaadSolla(), seed=self.seed, throw=False, progress=False, **asked)
        floors = np.array([task.risk_floor for task in tasks_of(self.problem, schedule)])
        risks = result.task_risk.values[:, -1].mean(axis=0) - floors
        return schedule, risks, float(result.task_risk_error.values[:, -1].mean())

    def best(self) -> tuple[float, ...]:
        """The plan with the least value."""
        key = min(self.rows, key=lambda tried: _mean(self.rows[tried][1]))
        if not np.isfinite(_mean(self.rows[key][1])):
            raise ComputationFailed("The ODE does not reach the end for any of the plans: lower the learning rate.")
        return key


def _mean(risks: np.ndarray) -> float:
    return float(risks.mean()) if np.all(np.isfinite(risks)) else np.inf


def best_plan(
    problem: Problem, schedule: Schedule, over: str, until: float, starts: int, seed: int, tell: Progress
) -> "xr.Dataset":
    """The mixing or the order of a schedule with which the mean of the risks of all tasks is least at the end."""
    if len(tasks_of(problem, schedule)) < 2:
        raise InvalidInput(
            "Argument `training` must be a Schedule with several tasks for `tasks`, but has one: give a phase its own "
            "target with `Task`."
        )
    if schedule.switches and until <= schedule.switches[-1]:
        raise InvalidInput(
            f"Argument `until` must lie in the last phase, which begins at {schedule.switches[-1]:.6g}, but is "
            f"{until:.6g}."
        )
    SaadSolla().require(problem, schedule.methods[0])
    trials = _Trials(problem, until, starts, seed)
    if over == "order":
        given, labels = _try_orders(trials, schedule, until, tell)
    else:
        given, labels = _try_mixtures(trials, schedule, tell)
    keys = sorted(trials.rows)
    best = trials.best()
    risks = np.array([_in_order(trials, key, given) for key in keys])
    values: dict[str, Any] = {
        "value": risks.mean(axis=1),
        "value_error": np.array([trials.rows[key][2] for key in keys]),
        "task_risk": risks,
        "best": keys.index(best),
        "given": keys.index(given),
        labels: np.array(keys) if labels == "share" else np.array(keys, dtype=int) + 1,
    }
    fields = {"problem": problem, "training": schedule, "tasks": over, "until": until, "starts": starts, "seed": seed}
    attributes = {
        "objective": f"mean over {risks.shape[1]} tasks of the excess risk at time {until:.6g}",
        "over": over,
        "training": to_json(trials.rows[best][0]),
    } | provenance(Question("task_plan", fields), seed, SaadSolla().references)
    return label(TASK_PLAN, values, {"candidate": [_in_words(key, over) for key in keys]}, attributes)


def _in_order(trials: _Trials, key: tuple[float, ...], given: tuple[float, ...]) -> np.ndarray:
    """The risks of the tasks in the order in which the schedule that was given first trains them."""
    schedule, risks, _ = trials.rows[key]
    names = [task_key(task) for task in tasks_of(trials.problem, schedule)]
    return risks[[names.index(task_key(task)) for task in tasks_of(trials.problem, trials.rows[given][0])]]


def _in_words(key: tuple[float, ...], over: str) -> str:
    if over == "order":
        return ", ".join(f"{int(place) + 1}" for place in key)
    return ", ".join(f"{share:.6g}" for share in key)


# --------------------------------------------------------------------------------------------------- orders


def _try_orders(trials: _Trials, schedule: Schedule, until: float, tell: Progress) -> tuple[tuple[float, ...], str]:
    """Try every order of the phases, each of which keeps its duration."""
    number = len(schedule.phases)
    if number > MOST_PHASES:
        raise InvalidInput(
            f'Argument `training` must have at most {MOST_PHASES} phases for `tasks="order"`, whose '
            f"{factorial(MOST_PHASES)} orders are tried one by one, but has {number}."
        )
    durations = np.diff([0.0, *schedule.switches, until])
    orders = list(permutations(range(number)))
    for place, order in enumerate(orders):
        tell("orders", place / len(orders))
        phases = tuple(_as_task(trials.problem, schedule.phases[n]) for n in order)
        trials.value(order, Schedule(phases, tuple(np.cumsum(durations[list(order)])[:-1].tolist())))
    tell("orders", 1.0)
    return tuple(map(float, range(number))), "order"


def _as_task(problem: Problem, phase: Any) -> Any:
    """A phase with its target stated, which is that of the problem where it is not."""
    if isinstance(phase, Task):
        return phase if phase.target is not None else replaced(phase, target=problem.target)
    return Task(phase, target=problem.target)


# ------------------------------------------------------------------------------------------------- mixtures


def _try_mixtures(trials: _Trials, schedule: Schedule, tell: Progress) -> tuple[tuple[float, ...], str]:
    """Try shares of the targets of the last phase on a grid, and descend from the best of them."""
    from scipy.optimize import minimize

    last = schedule.phases[-1]
    if not (isinstance(last, Task) and isinstance(last.target, Mixture)):
        raise InvalidInput(
            'Argument `training` must end with a Task whose target is a Mixture for `tasks="mixing"`, but its last '
            "phase has one target."
        )
    mixture = last.target
    number = len(mixture.targets)

    def at(shares: Float[np.ndarray, " targets"], is_kept: bool = True) -> float:
        shares = np.round(np.maximum(shares, 0.0) / np.maximum(shares, 0.0).sum(), 12)
        phase = replaced(last, target=replaced(mixture, shares=shares))
        return trials.value(shares, replaced(schedule, phases=(*schedule.phases[:-1], phase)), is_kept)

    given = np.asarray(mixture.shares, dtype=float)
    at(given)
    parts = PARTS
    while parts > 2 and len(grid := _simplex(number, parts)) > MOST_POINTS:
        parts //= 2
    grid = _simplex(number, parts)
    for place, shares in enumerate(grid):
        tell("shares on a grid", place / len(grid))
        at(shares)
    tell("shares on a grid", 1.0)
    minimize(
        at,
        np.array(trials.best()),
        jac=_derivative(at),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * number,
        constraints={"type": "eq", "fun": lambda shares: np.sum(shares) - 1.0, "jac": lambda shares: np.ones(number)},
        options={"ftol": TOLERANCE},
    )
    return tuple(map(float, np.round(given / given.sum(), 12))), "share"


def _simplex(number: int, parts: int) -> list[Float[np.ndarray, " targets"]]:
    """All shares that are multiples of one over ``parts``."""
    rows = [counts for counts in product(range(parts + 1), repeat=number - 1) if sum(counts) <= parts]
    return [np.array([*counts, parts - sum(counts)]) / parts for counts in rows]


def _derivative(at: Callable[..., float]) -> Callable[[np.ndarray], np.ndarray]:
    """Derivatives towards each target, by central differences within the simplex where there is room."""

    def derivative(shares: np.ndarray) -> np.ndarray:
        slopes = []
        for place in range(len(shares)):
            towards = np.eye(len(shares))[place] - shares
            back = STEP if shares[place] > STEP else 0.0
            ahead = STEP if shares[place] < 1.0 - STEP else 0.0
            rise = at(shares + ahead * towards, False) - at(shares - back * towards, False)
            slopes.append(rise / max(ahead + back, STEP))
        return np.array(slopes)

    return derivative
