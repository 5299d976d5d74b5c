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
from twolayer.theory.motion.tableaus import DORMAND_PRINCE, FINE

# Up to so many save points steps end on them.
FEW = 8
# Trajectories that advance together: their slopes fit into the cache of a core.
ROWS = 512


def interpolates(points: int) -> bool:
    """Whether values at so many save points are interpolated between the ends of steps; steps end on fewer of them."""
    return points > FEW


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
    first: np.ndarray | float = 1.0,
) -> RowSolutions:
    """Integrate from all starts.

    Steps end on the save points of each row, as those of a single trajectory do, if these are few; otherwise they are
    as long as the tolerance allows, and the values between their ends are interpolated.

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
    first
        A factor of the first step of each row, where values are interpolated. Solutions whose tolerances and first
        steps differ have no step in common, so that their distance is not smaller than their errors.
    """
    rows, points = times.shape
    first = np.broadcast_to(first if interpolates(points) else 1.0, rows)
    states = np.full((rows, points, starts.shape[1]), np.inf)
    is_finished, has_stopped = np.zeros(rows, bool), np.zeros(rows, bool)
    share = -(-rows // cores())
    width = min(ROWS, -(-share // LANES) * LANES)

    def solve(piece: int) -> None:
        here = np.arange(piece * width, min((piece + 1) * width, rows))
        states[here, 0] = starts[here]
        # Vectors are filled up with copies of the last row, which are dropped again.
        filled = np.concatenate([here, np.full(-len(here) % LANES, here[-1])])
        setting = numbers[filled].T, times[filled], limits[filled], first[filled]
        bound = _Bound(code, _at(tolerance, filled), *setting, filled)
        for course in bound.steps(np.ascontiguousarray(starts[filled].T), max_steps, states):
            is_finished[bound.members] = (course.landed >= bound.ends.shape[1]) & ~course.has_stopped
            has_stopped[bound.members] = course.has_stopped

    with np.errstate(all="ignore"):  # a trajectory that diverges says so
        on_all_cores(lambda piece: _without_warnings(solve, piece), -(-rows // width))
    for row in np.flatnonzero(has_stopped):  # one value beyond the limit is kept
        is_beyond = _of_points(code.largest, states[row], numbers[row]) > limits[row]
        states[row, np.argmax(is_beyond) + 1 if is_beyond.any() else points :] = np.inf
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
        first: np.ndarray,
        members: np.ndarray,
    ):
        self.code, self.tolerance, self.numbers = code, tolerance, np.ascontiguousarray(numbers)
        self.times, self.limits, self.first, self.members = times, limits, first, members
        self.interpolates = interpolates(times.shape[1])
        self.ends = times[:, [0, -1]] if self.interpolates else times
        self.place = np.ones(len(times), int)  # of the next save point

    def kept(self, which: np.ndarray) -> None:
        """Go on with some of the rows."""
        self.numbers, self.times, self.ends = (
            np.ascontiguousarray(self.numbers[:, which]),
            self.times[which],
            self.ends[which],
        )
        self.limits, self.first = self.limits[which], self.first[which]
        self.members, self.place = self.members[which], self.place[which]
        self.tolerance = _at(self.tolerance, which)

    def steps(self, y: np.ndarray, max_steps: int, states: np.ndarray) -> Iterator[StepCourse]:
        """Take steps, which fill in the states at save points; yields the state of all rows after each of them."""
        zero, count = np.zeros(y.shape[1]), np.zeros(y.shape[1], int)
        course = StepCourse(self.times[:, 0] + zero, y, np.zeros_like(y), zero, 1 + count, count, zero > 0.0)
        last = self.ends.shape[1] - 1
        for _ in range(max_steps + 1):
            runs: Any = is_running(course, last)
            alive = np.flatnonzero(runs)
            if not alive.size:
                return
            if -(-alive.size // LANES) * LANES <= 0.75 * len(runs):
                alive = np.concatenate([alive, np.full(-alive.size % LANES, alive[-1])])
                self.kept(alive)
                course, runs = StepCourse(*(np.ascontiguousarray(part[..., alive]) for part in course)), runs[alive]
            following = self.step(course, runs, states)
            if not runs.all():  # rows that have ended stay as they are
                following = StepCourse(*(np.where(runs, new, old) for new, old in zip(following, course, strict=True)))
            course = following
            yield course

    def step(self, course: StepCourse, runs: np.ndarray, states: np.ndarray) -> StepCourse:
        """Attempt a step of every row, and save the states at the save points that it passes."""
        end = self.ends[np.arange(len(self.ends)), np.minimum(course.landed, self.ends.shape[1] - 1)]
        step: Any = next_step(np, course, course.size, end)
        attempt, slopes = self.attempt(course, *step)
        is_taken = attempt.error <= 1.0
        has_stopped = is_taken & (self.code.largest(np.concatenate([attempt.y, self.numbers]))[0] > self.limits)
        following = after_step(np, course, attempt, self.tolerance, DORMAND_PRINCE.order, is_taken)
        size = np.where(course.attempts == 0, self.first * following.size, following.size)
        following = following._replace(size=size)
        if self.interpolates:
            reached = np.where(following.landed > 1, np.inf, following.t)
            self.save_between(course, attempt, slopes, np.where(runs & is_taken, reached, -np.inf), states)
        else:
            landed = np.flatnonzero(runs & is_taken & attempt.is_cut)
            states[self.members[landed], course.landed[landed]] = attempt.y[:, landed].T
        return following._replace(has_stopped=has_stopped)

    def save_between(
        self, course: StepCourse, attempt: Attempt, slopes: np.ndarray, reached: np.ndarray, states: np.ndarray
    ) -> None:
        """Interpolate the states at the save points of each row up to the time that it has reached."""
        rows, points = self.times.shape
        first, last = len(DORMAND_PRINCE.c), len(FINE.c)
        while True:
            t = self.times[np.arange(rows), np.minimum(self.place, points - 1)]
            here = np.flatnonzero((self.place < points) & (t <= reached))
            if not here.size:
                return
            if first < last:
                self.code.velocity.stages(course.y, self.numbers, attempt.size, slopes, FINE.A, range(first, last))
                first = last
            part = (t - course.t) / np.where(attempt.size > 0.0, attempt.size, 1.0)
            weights = np.zeros((last, rows))
            for power in FINE.dense.T[::-1]:
                weights = (weights + power[:, None]) * part
            found = self.code.velocity.combination(course.y, attempt.size, slopes, weights)
            states[self.members[here], self.place[here]] = found[:, here].T
            self.place[here] += 1

    def attempt(self, course: StepCourse, size: np.ndarray, is_cut: np.ndarray) -> tuple[Attempt, np.ndarray]:
        """A step of every row, and the slopes of its stages, with room for those of the interpolation."""
        code, y = self.code.velocity, course.y
        slopes = np.empty((len(FINE.c), *y.shape))
        if not size.any():  # the first step of all rows
            slope = code(np.concatenate([y, self.numbers]))
            return Attempt(size, is_cut, y, slope, np.where(np.isfinite(slope).all(axis=0), 0.0, np.nan)), slopes
        slopes[0], last = course.slope, len(DORMAND_PRINCE.c)
        moved = code.stages(y, self.numbers, size, slopes, FINE.A, range(1, last))
        error = code.combination(np.zeros_like(y), size, slopes, FINE.error)
        return Attempt(size, is_cut, moved, slopes[last - 1], self.tolerance.norm(np, error, y, moved)), slopes


def risks_of_rows(code: RowCode, states: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The excess risk of states (rows, times, numbers of a state), NaN after the end of a trajectory."""
    risks = np.empty(states.shape[:2])

    def of_row(row: int) -> None:
        risks[row] = _of_points(code.risk, states[row], numbers[row])

    on_all_cores(of_row, len(states))
    return risks


def _of_points(code: VectorCode, states: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """A function of the states (times, numbers of a state) of one trajectory."""
    points = len(states)
    filled = np.arange(points + -points % LANES).clip(max=points - 1)
    given = np.concatenate([states[filled].T, np.repeat(numbers[:, None], len(filled), axis=1)])
    return code(given)[0, :points]
