"""Integration of many trajectories of one equation at once, by machine code on vectors of rows.

The steps are those of `integrate`, decided by the same functions. Each trajectory has its own, and its own numbers in
the equation; what it becomes does not depend on the trajectories beside it.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from twolayer.compiler.array_loops import as_loops
from twolayer.compiler.loops import on_all_cores
from twolayer.compiler.vector_loops import LANES, VectorCode
from twolayer.core.machine import cores
from twolayer.theory.motion.integrate import Attempt, StepCourse, Tolerance, after_step, is_running, next_step
from twolayer.theory.motion.tableaus import DORMAND_PRINCE

# Trajectories that advance together: their slopes fit into the cache of a core.
ROWS = 512


class RowCode(NamedTuple):
    """The machine code of an equation: functions of a state and of the numbers in which rows differ."""

    velocity: VectorCode
    largest: VectorCode
    risk: VectorCode


class RowSolutions(NamedTuple):
    """Trajectories (rows, times, numbers of a state), infinite after their ends; and how each of them ended."""

    states: np.ndarray
    is_finished: np.ndarray
    has_stopped: np.ndarray


def row_code(functions: dict[str, Callable[[Any, Any], Any]], state: PyTree, numbers: PyTree) -> RowCode:
    """Compile the functions of a state and of numbers, whose shapes the examples give.

    Raises `Unsupported` where a function has an operation without machine code.
    """
    flat, unravel = ravel_pytree(state)

    def code(function: Callable[[Any, Any], Any]) -> VectorCode:
        def of_numbers(y: jax.Array, numbers: Any) -> jax.Array:
            return ravel_pytree(function(unravel(y), numbers))[0]

        return VectorCode(as_loops(of_numbers, flat, numbers))

    return RowCode(**{name: code(function) for name, function in functions.items()})


def solve_rows(
    code: RowCode,
    starts: np.ndarray,
    numbers: np.ndarray,
    times: np.ndarray,
    tolerance: Tolerance,
    max_steps: int,
    limits: np.ndarray,
) -> RowSolutions:
    """Integrate from all starts, with steps that end on the save points of each row.

    Parameters
    ----------
    code
        The equation.
    starts, numbers
        States, and the numbers in the equation: one row for each trajectory.
    times
        The save points of each row.
    tolerance, max_steps
        The tolerances of a step, which are arrays with one for each row, and the number of steps after which a
        trajectory is given up.
    limits
        The largest squared length beyond which each trajectory has diverged.
    """
    rows, points = times.shape
    states = np.full((rows, points, starts.shape[1]), np.inf)
    is_finished, has_stopped = np.zeros(rows, bool), np.zeros(rows, bool)
    share = -(-rows // cores())
    width = min(ROWS, -(-share // LANES) * LANES)

    def solve(piece: int) -> None:
        here = np.arange(piece * width, min((piece + 1) * width, rows))
        states[here, 0] = starts[here]
        # Vectors are filled up with copies of the last row, which are dropped again.
        filled = np.concatenate([here, np.full(-len(here) % LANES, here[-1])])
        bound = _Bound(code, _at(tolerance, filled), numbers[filled].T, times[filled], limits[filled], filled)
        for landed, course in bound.steps(np.ascontiguousarray(starts[filled].T), max_steps):
            states[bound.members[landed], course.landed[landed] - 1] = course.y[:, landed].T
            is_finished[bound.members] = (course.landed > points - 1) & ~course.has_stopped
            has_stopped[bound.members] = course.has_stopped

    with np.errstate(all="ignore"):  # a trajectory that diverges says so
        on_all_cores(lambda piece: _without_warnings(solve, piece), -(-rows // width))
    return RowSolutions(states, is_finished, has_stopped)


def _without_warnings(solve: Callable[[int], None], piece: int) -> None:
    with np.errstate(all="ignore"):  # each thread has its own
        solve(piece)


def _at(tolerance: Tolerance, rows: np.ndarray) -> Tolerance:
    return Tolerance(*(np.asarray(part)[rows] for part in tolerance))


class _Bound:
    """An equation with the numbers, times and limits of some rows, along the last axis."""

    def __init__(
        self,
        code: RowCode,
        tolerance: Tolerance,
        numbers: np.ndarray,
        times: np.ndarray,
        limits: np.ndarray,
        members: np.ndarray,
    ):
        self.code, self.tolerance, self.numbers = code, tolerance, np.ascontiguousarray(numbers)
        self.times, self.limits, self.members = times, limits, members

    def kept(self, which: np.ndarray) -> None:
        """Go on with some of the rows."""
        self.numbers, self.times = np.ascontiguousarray(self.numbers[:, which]), self.times[which]
        self.limits, self.members = self.limits[which], self.members[which]
        self.tolerance = _at(self.tolerance, which)

    def steps(self, y: np.ndarray, max_steps: int) -> Iterator[tuple[np.ndarray, StepCourse]]:
        """Yield after each attempted step which rows have landed on a save point, and the state of all."""
        zero, count = np.zeros(y.shape[1]), np.zeros(y.shape[1], int)
        course = StepCourse(self.times[:, 0] + zero, y, np.zeros_like(y), zero, 1 + count, count, zero > 0.0)
        last = self.times.shape[1] - 1
        for _ in range(max_steps + 1):
            runs: Any = is_running(course, last)
            alive = np.flatnonzero(runs)
            if not alive.size:
                return
            if -(-alive.size // LANES) * LANES <= 0.75 * len(runs):
                alive = np.concatenate([alive, np.full(-alive.size % LANES, alive[-1])])
                self.kept(alive)
                course, runs = StepCourse(*(np.ascontiguousarray(part[..., alive]) for part in course)), runs[alive]
            following, attempt, is_taken = self.step(course)
            if not runs.all():  # rows that have ended stay as they are
                following = StepCourse(*(np.where(runs, new, old) for new, old in zip(following, course, strict=True)))
            course = following
            yield np.flatnonzero(runs & is_taken & attempt.is_cut), course

    def step(self, course: StepCourse) -> tuple[StepCourse, Attempt, np.ndarray]:
        """Attempt a step of every row."""
        end = self.times[np.arange(len(self.times)), np.minimum(course.landed, self.times.shape[1] - 1)]
        step: Any = next_step(np, course, course.size, end)
        attempt = self.attempt(course, *step)
        is_taken = attempt.error <= 1.0
        has_stopped = is_taken & (self.code.largest(np.concatenate([attempt.y, self.numbers]))[0] > self.limits)
        following = after_step(np, course, attempt, self.tolerance, DORMAND_PRINCE.order, is_taken)
        return following._replace(has_stopped=has_stopped), attempt, is_taken

    def attempt(self, course: StepCourse, size: np.ndarray, is_cut: np.ndarray) -> Attempt:
        tableau, code, y = DORMAND_PRINCE, self.code.velocity, course.y
        if not size.any():  # the first step of all rows
            slope = code(np.concatenate([y, self.numbers]))
            return Attempt(size, is_cut, y, slope, np.where(np.isfinite(slope).all(axis=0), 0.0, np.nan))
        slopes = np.empty((len(tableau.c), *y.shape))
        slopes[0] = course.slope
        moved = code.stages(y, self.numbers, size, slopes, tableau.A)
        error = code.combination(np.zeros_like(y), size, slopes, tableau.error)
        return Attempt(size, is_cut, moved, slopes[-1], self.tolerance.norm(np, error, y, moved))


def risks_of_rows(code: RowCode, states: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The excess risk of states (rows, times, numbers of a state), NaN after the end of a trajectory."""
    rows, points, _ = states.shape
    risks = np.empty((rows, points))

    def of_row(row: int) -> None:
        filled = np.arange(points + -points % LANES).clip(max=points - 1)
        given = np.concatenate([states[row, filled].T, np.repeat(numbers[row][:, None], len(filled), axis=1)])
        risks[row] = code.risk(given)[0, :points]

    on_all_cores(of_row, rows)
    return risks
