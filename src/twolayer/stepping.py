"""The common runner of everything that goes in steps: simulations, maps, stochastic paths, networks on a data set.

A description states its process as a `Stepper`: a state, how it moves from one step to another, and what is saved of
it. The runner divides the steps into calls of about half a second and saves at the save points. Between two calls it
checks for an interruption, reports the progress and writes the checkpoint, from which a run that was killed continues.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from twolayer.core import interrupts
from twolayer.core.checkpoint import Place
from twolayer.description import Plan, Status, blanked, is_alive

# Seconds between two checks for an interruption, and between two updates of the progress.
CALL_SECONDS = 0.5

Advance = Callable[[Any, Any, Any], Any]


class Stepper(NamedTuple):
    """A process that goes in steps. Its numbers must not depend on how the steps are divided into calls."""

    state: Any  # at step 0: a pytree of arrays
    advance: Advance  # the state at the second step, given that at the first; steps are arrays without axes
    measure: Callable[[Any], Mapping[str, Any]]  # what is saved: named arrays with the replicas along the first axis
    is_over: Callable[[Mapping[str, Any]], bool] = lambda row: False  # whether what is saved will not change any more
    is_kept: bool = True  # whether checkpoints hold the state; a large one is computed again instead
    together: int = 1  # steps that are computed at once: calls end at multiples of it, or at save points


class Course(NamedTuple):
    """The result of a run of steps."""

    saved: dict[str, np.ndarray]  # (replicas, points, ...); an interruption leaves out the last points
    state: Any
    interrupted: bool


class Pace:
    """Adapts the number of steps per call to take about half a second; the first calls also compile."""

    def __init__(self) -> None:
        self.steps = 1

    @contextlib.contextmanager
    def over(self, steps: int) -> Iterator[None]:
        """Time a block that computes this many steps, and adapt the number of steps of the next call.

        They may be fewer than allowed, when a save point comes first. A pending interruption is raised before them.
        """
        interrupts.check()
        began = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - began, 1e-4)
        self.steps = int(min(max(steps * CALL_SECONDS / seconds, 1), 4 * self.steps))

    def strides(self, points: Int[np.ndarray, " points"], together: int = 1) -> Iterator[tuple[int, int, bool]]:
        """Yield the calls from the first point to the last: first and last step, and whether the call ends on a point.

        Calls that end elsewhere do so at multiples of ``together``. The time until the generator is resumed counts as
        the time of the call.
        """
        for before, after in itertools.pairwise(points):
            first = int(before)
            while first < after:
                last = min(-(-(first + self.steps) // together) * together, int(after))
                with self.over(last - first):
                    yield first, last, last == after
                first = last


def run_steps(
    stepper: Stepper,
    points: Int[np.ndarray, " points"],
    progress: Callable[[float], None] = lambda fraction: None,
    place: Place | None = None,
) -> Course:
    """Follow a process through its save points, which begin at step 0, or continue it from its checkpoint.

    A process that is over keeps its last values. An interrupted run keeps its place, where it has one, and returns the
    points that it has reached; it raises `KeyboardInterrupt` where these are none but the start.
    """
    place = place if stepper.is_kept else None
    step, state, rows = _resumed(stepper, place)
    interrupted = False
    try:
        for first, last, is_point in Pace().strides(np.append(step, points[points > step]), stepper.together):
            moved = jax.block_until_ready(stepper.advance(state, np.asarray(first), np.asarray(last)))
            if is_point:
                rows.append(jax.device_get(stepper.measure(moved)))
            step, state = last, moved
            progress(step / int(points[-1]))
            if is_point and stepper.is_over(rows[-1]):
                rows += [rows[-1]] * (len(points) - len(rows))
                break
            if place is not None and place.is_due:
                _keep(place, step, state, rows)
    except KeyboardInterrupt:
        interrupted = True
        del rows[int(np.sum(points <= step)) :]  # a second signal may come between two lines of the loop
        if place is not None:
            _keep(place, step, state, rows)
        if len(rows) < 2:
            raise
    return Course(_stacked(rows), state, interrupted)


def run_each(
    makers: Sequence[Callable[[], Stepper]], points: Int[np.ndarray, " points"], plan: Plan
) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Follow several processes one after the other: what is saved of each, and whether they were interrupted.

    An interruption leaves those that are finished, or the first one as far as it came.
    """
    finished: list[dict[str, np.ndarray]] = []
    for number, make in enumerate(makers):

        def share(fraction: float, before: int = number) -> None:
            plan.progress((before + fraction) / len(makers))

        saved = None if plan.checkpoint is None else plan.checkpoint.piece(str(number))
        if saved is None:
            try:
                course = run_steps(make(), points, share, plan.checkpoint)
            except KeyboardInterrupt:
                if not finished:
                    raise
                return finished, True
            if course.interrupted:
                return finished or [course.saved], True
            saved = course.saved
            if plan.checkpoint is not None:
                plan.checkpoint.finish_piece(str(number), saved)
        finished.append(saved)
    return finished, False


def in_phases(advances: Sequence[Advance], firsts: Sequence[int]) -> Advance:
    """One function that runs the phases of a schedule in turn, each from its own first step to that of the next."""

    def advance(state: Any, before: Any, after: Any) -> Any:
        for phase, first, end in zip(advances, firsts, (*firsts[1:], after), strict=True):
            low, high = np.maximum(before, first), np.minimum(after, end)
            if low < high:
                state = phase(state, np.asarray(low), np.asarray(high))
        return state

    return advance


def _stacked(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([np.asarray(row[name]) for row in rows], axis=1) for name in rows[0]}


def _keep(place: Place, step: int, state: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the current state and the saved rows to the checkpoint."""
    leaves = {f"state {number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
    saved = {f"saved {name}": array for name, array in _stacked(rows).items()}
    place.save(leaves | saved | {"step": step})


def _resumed(stepper: Stepper, place: Place | None) -> tuple[int, Any, list[Mapping[str, Any]]]:
    """The step, the state and the saved rows of an earlier run that was killed, or those of the start."""
    start = jax.device_get(stepper.measure(stepper.state))
    kept = None if place is None else place.load()
    if kept is None:
        return 0, stepper.state, [start]
    leaves, structure = jax.tree.flatten(stepper.state)
    state = jax.tree.unflatten(structure, [kept[f"state {number}"] for number in range(len(leaves))])
    columns = {name: kept[f"saved {name}"] for name in start}
    points = next(iter(columns.values())).shape[1]
    return int(kept["step"]), state, [{name: x[:, n] for name, x in columns.items()} for n in range(points)]


def sealed(
    plan: Plan, rows: Mapping[str, np.ndarray], alive: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The saved rows (replicas, times, ...) as a record has them, and the status of each replica.

    They are NaN from the point on at which a replica has diverged, and at the points that an interruption has left
    out. ``alive`` says which points have not diverged, where that is not decided by ``Q`` and ``a`` alone.
    """
    alive = is_alive(rows["Q"], rows["a"], plan.limit) if alive is None else alive
    lost = ~np.logical_and.accumulate(alive, axis=1)
    missing = len(plan.times) - lost.shape[1]
    ended = Status.UNFINISHED if missing else Status.DONE
    status = np.where(lost.any(axis=1), Status.DIVERGED, ended).astype(np.int8)
    return {name: padded(blanked(lost, x), len(plan.times)) for name, x in rows.items()}, status


def padded(rows: np.ndarray, times: int) -> np.ndarray:
    """The rows (replicas, times, ...), followed by NaN up to the given number of times."""
    missing = times - rows.shape[1]
    return np.pad(rows, [(0, 0), (0, missing)] + [(0, 0)] * (rows.ndim - 2), constant_values=np.nan)
