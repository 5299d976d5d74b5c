"""The common solver of all differential equations of the theories: trajectories, first-passage times, errors.

A description states its equation as an `AbstractFlow`: the velocity of a state, its risk, and what is saved of it. The
solver follows it from many starts with every variant of its averages, estimates the error of the integrator from
solutions of lower accuracy whose starts are moved by rounding, and locates the times at which thresholds are crossed.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from twolayer.core.estimate import Estimate
from twolayer.core.programs import QuickProgram
from twolayer.core.types import Numbers
from twolayer.description import Plan, Record, Status
from twolayer.theory.motion.error_bounds import carried, largest
from twolayer.theory.motion.integrate import Solution, solve

# A second solution has this many times the tolerance: the difference bounds the error of the finer solution.
LOOSER = 100.0


class Accuracy(NamedTuple):
    """The tolerances of the integrator per step, and the number of steps after which it gives up."""

    rtol: Any
    atol: Any
    max_steps: int

    def at_least(self, rtol: float) -> "Accuracy":
        """The same tolerances, raised to the accuracy ``rtol`` of averages that are themselves approximate."""
        return Accuracy(np.maximum(self.rtol, rtol), np.maximum(self.atol, 0.01 * rtol), self.max_steps)

    def looser(self, factor: Numbers) -> "Accuracy":
        """Tolerances that are larger by a factor."""
        return self._replace(rtol=np.asarray(factor * self.rtol), atol=np.asarray(factor * self.atol))


class Saved(NamedTuple):
    """The saved part of a state: overlaps, second layer, excess risk, and variables of one description."""

    Q: Float[Array, "*n p p"]
    M: Float[Array, "*n p k"]
    a: Float[Array, "*n p"]
    excess_risk: Float[Array, "*n"]
    others: dict[str, Array]


class AbstractFlow(eqx.Module):
    """A differential equation for a state, with one variant of its averages. A state is a pytree of arrays.

    ``kept`` is data of a start that does not change along its trajectory.
    """

    @abc.abstractmethod
    def velocity(self, state: PyTree) -> PyTree:
        """The derivative of the state with respect to time."""

    @abc.abstractmethod
    def risk(self, state: PyTree) -> Float[Array, ""]:
        """The excess risk."""

    @abc.abstractmethod
    def largest(self, state: PyTree) -> Float[Array, ""]:
        """The largest squared length of a row or output weight, by which a divergence is detected."""

    @abc.abstractmethod
    def alignment(self, state: PyTree, direction: Numbers) -> Float[Array, ""]:
        """The largest cosine of a neuron with a target direction, of either sign."""

    @abc.abstractmethod
    def saved(self, state: PyTree, kept: PyTree) -> Saved:
        """The part of the state that is saved."""

    def completed(self, saved: Saved) -> Saved:
        """The saved values of all starts with what is computed from them afterwards, by a program of its own."""
        return saved

    @abc.abstractmethod
    def is_together(self, starts: int) -> bool:
        """Whether this number of starts is solved at once, in common steps, or one after the other."""

    @property
    @abc.abstractmethod
    def is_coarse(self) -> bool:
        """Whether the velocity has few digits or is not smooth, so that a method of high order gains nothing."""

    @property
    @abc.abstractmethod
    def interpolates(self) -> bool:
        """Whether values at save points are interpolated between steps instead of steps ending there."""


class _Args(NamedTuple):
    flow: AbstractFlow
    limit: Any
    threshold: Any
    direction: Any


def _velocity(t: Any, state: Any, args: _Args) -> Any:
    return args.flow.velocity(state)


def _has_diverged(state: Any, args: _Args) -> Array:
    return args.flow.largest(state) > args.limit


def _distance(state: Any, args: _Args) -> Array:
    """The distance of the state from its threshold; zero or negative once it is crossed."""
    if args.direction is None:
        return args.flow.risk(state) - args.threshold
    return args.threshold - args.flow.alignment(state, args.direction)


def trajectory(
    flow: AbstractFlow,
    start: PyTree,
    times: Float[Array, " times"],
    accuracy: Accuracy,
    limit: Numbers = jnp.inf,
    landing: Array | None = None,
    is_reversible: bool = False,
) -> Solution:
    """The solution from one start at the given times, as pure JAX that can be mapped and differentiated.

    It ends early where a squared length exceeds ``limit``. Steps end on the save points, or on ``landing`` instead.
    Derivatives exist in forward mode, and in reverse mode if it is ``is_reversible``.
    """
    if landing is None and flow.interpolates:
        landing = jnp.stack([times[0], times[-1]])
    args = _Args(flow, limit, None, None)
    options = {"is_coarse": flow.is_coarse, "landing": landing, "is_reversible": is_reversible}
    return solve(_velocity, start, times, args, *accuracy, _has_diverged, **options)


def passage(
    flow: AbstractFlow,
    start: PyTree,
    span: Float[Array, " 2"],
    accuracy: Accuracy,
    threshold: Numbers,
    direction: Numbers | None = None,
) -> Float[Array, ""]:
    """The time at which the excess risk falls to the threshold, or with a ``direction`` the alignment rises to it.

    NaN where that does not happen within the span. The time is a root of the solution, not a save point.
    """
    args = _Args(flow, None, threshold, direction)
    solution = solve(_velocity, start, span, args, *accuracy, _distance, locate=True, is_coarse=flow.is_coarse)
    is_there = _distance(start, args) <= 0.0
    return jnp.where(is_there, span[0], jnp.where(solution.has_stopped, solution.reached, jnp.nan))


# --------------------------------------------------------------------------------------------------- from many starts


def _over_starts(flow: AbstractFlow, one: Callable[..., Any], *rows: Any) -> Any:
    """Apply a function to every row; a single row is not mapped, which takes less time to compile."""
    number = jax.tree.leaves(rows)[0].shape[0]
    if number == 1:
        return jax.tree.map(lambda x: x[None], one(*jax.tree.map(lambda x: x[0], rows)))
    return jax.vmap(one)(*rows) if flow.is_together(number) else jax.lax.map(lambda row: one(*row), rows)


@QuickProgram
def trajectories(
    flow: AbstractFlow,
    starts: PyTree,
    kept: PyTree,
    times: Numbers,
    accuracy: Accuracy,
    limit: Numbers,
    landing: np.ndarray | Array | None = None,
) -> tuple[Saved, Array, Array]:
    """The saved values along the solutions from all starts (NaN after the end); whether each is done or diverged."""

    def one(start: Any, kept: Any) -> Any:
        points = None if landing is None else jnp.asarray(landing)
        return saved_along(flow, start, kept, jnp.asarray(times), accuracy, limit, points)

    return _over_starts(flow, one, starts, kept)


def saved_along(
    flow: AbstractFlow,
    start: PyTree,
    kept: PyTree,
    times: Float[Array, " times"],
    accuracy: Accuracy,
    limit: Numbers,
    landing: Array | None = None,
) -> tuple[Saved, Array, Array]:
    """The saved values along the solution from one start (NaN after the end); whether it is done or diverged."""
    solution = trajectory(flow, start, times, accuracy, limit, landing)
    states = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), solution.states)
    saved = jax.lax.map(lambda state: flow.saved(state, kept), states)
    return saved, solution.is_finished, solution.has_stopped


@QuickProgram
def passages(
    flow: AbstractFlow,
    starts: PyTree,
    span: Numbers,
    accuracy: Accuracy,
    thresholds: Numbers,
    direction: Numbers | None = None,
) -> Float[Array, " starts"]:
    """The time at which each start reaches its threshold; NaN where it does not."""

    def one(start: Any, threshold: Array) -> Array:
        ends = jnp.asarray(span)[jnp.array([0, -1])]
        return passage(flow, start, ends, accuracy, threshold, direction)

    return _over_starts(flow, one, starts, jnp.asarray(thresholds))


class Solving(NamedTuple):
    """A solution with one variant of the averages: the factor of its tolerances, and in which direction it starts."""

    variant: int
    looser: float = 1.0
    sign: float = 0.0  # that of a move by the size of rounding; zero for none


class Flows(NamedTuple):
    """The variants of one flow, the function that combines their results, and options of the solver."""

    variants: Sequence[AbstractFlow]
    combine: Callable[[tuple[Any, ...]], Estimate]
    name: str
    # Whether the combined value is that of the first variant, of which the others only give the error.
    judges_first: bool = False
    judged: int = 0  # the variant with which the error of the integrator is estimated
    least: Any = (0.0, 0.0)  # lower bounds on the relative and absolute error of the integrator
    landing: Any = None  # where steps of the less accurate solutions end, if not on the save points

    @property
    def solvings(self) -> tuple[list[Solving], list[Solving]]:
        """The solutions that are combined, one for each variant, and less accurate ones for the integrator's error.

        Where other variants only judge the first one, they are the less accurate ones: then the error of the averages
        has that of the integrator in it.
        """
        if not self.judges_first:
            loose = [Solving(self.judged, LOOSER, sign) for sign in (1.0, -1.0)]
            return [Solving(variant) for variant in range(len(self.variants))], loose
        others = [Solving(i, LOOSER, 1.0 if i % 2 else -1.0) for i in range(1, len(self.variants))]
        return [Solving(0), *others], []


def follow(
    flows: Flows,
    problem_k: int,
    plan: Plan,
    starts: PyTree,
    kept: PyTree,
    accuracy: Accuracy,
    nudged: Callable[[Any, float], Any],
) -> Record:
    """Solve a flow for a plan, with the errors of the averages and of the integrator.

    Parameters
    ----------
    flows
        The variants of the flow.
    problem_k
        The number of target directions.
    plan
        The save points and thresholds.
    starts, kept
        States, and their data that does not change, with a leading axis of replicas.
    accuracy
        The tolerances of the integrator.
    nudged
        Moves starts by the size of rounding in the direction of a sign, which reveals unstable symmetries.
    """
    variants = flows.variants
    watches: list[tuple[Any, Any]] = [] if plan.risk_threshold is None else [(plan.risk_threshold, None)]
    if plan.overlap_threshold is not None:
        levels = np.broadcast_to(plan.overlap_threshold, plan.replicas)
        watches += [(np.asarray(levels), np.asarray(direction)) for direction in range(problem_k)]
    of_variants, loose = flows.solvings
    work, done = len(of_variants) + len(loose) + len(watches), 0

    def finished_one() -> None:
        nonlocal done
        done += 1
        plan.progress(done / work)

    def paths(solving: Solving, landing: Any = None) -> Any:
        flow, limit = variants[solving.variant], np.asarray(plan.limit)
        begin = nudged(starts, solving.sign) if solving.sign else starts
        saved, *ends = trajectories(flow, begin, kept, plan.times, accuracy.looser(solving.looser), limit, landing)
        saved = flow.completed(saved)
        finished_one()
        return jax.device_get((saved, *ends))

    results = [paths(solving) for solving in of_variants]
    loosely = [paths(solving, flows.landing)[0] for solving in loose]
    crossing, overlap_time = np.full(plan.replicas, np.nan), np.full((plan.replicas, problem_k), np.nan)
    for threshold, direction in watches:
        times = np.asarray(passages(variants[0], starts, plan.times, accuracy.looser(1.0), threshold, direction))
        if direction is None:
            crossing = times
        else:
            overlap_time[:, int(direction)] = times
        finished_one()
    return judged(flows, results, loosely, crossing, overlap_time)


def judged(
    flows: Flows, results: Sequence[Any], loose: Sequence[Saved], crossing: np.ndarray, overlap_time: np.ndarray
) -> Record:
    """The record of all starts: values with the errors of the averages and of the integrator.

    Parameters
    ----------
    results
        For each variant what is saved, and whether each start is done or diverged.
    loose
        What the less accurate solutions save.
    crossing, overlap_time
        The times at which thresholds are crossed.
    """
    saved = carried(flows.combine, [path for path, _, _ in results], loose, flows.judged, flows.least)
    value: Saved = jax.tree.map(np.asarray, saved.value)
    error: Saved = saved.error
    deciding = results[:1] if flows.judges_first else results  # less accurate solutions only say how large errors are
    is_done = np.all([np.asarray(finished) for _, finished, _ in deciding], axis=0)
    diverged = np.any([np.asarray(stopped) for _, _, stopped in deciding], axis=0)
    status = np.where(diverged, Status.DIVERGED, np.where(is_done, Status.DONE, Status.UNFINISHED))
    overlap_error = largest(error.Q, error.M, error.a, *error.others.values())
    return Record(
        *(value.Q, value.M, value.a, value.excess_risk, error.excess_risk, overlap_error),
        *(status.astype(np.int8), crossing, overlap_time, flows.name),
        others=value.others or None,
    )
