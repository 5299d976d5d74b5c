"""The high-dimensional limit of one-pass SGD: ordinary differential equations for the overlaps."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.fields import as_data, count, flag, instance, leaf, number, static
from twolayer.core.registry import register
from twolayer.description import AbstractDescription, Applies, Exactness, Plan, Record, Status
from twolayer.expectation import MOMENTS, Auto, Chosen
from twolayer.problem import Overlaps, Problem
from twolayer.theory.drift import drift
from twolayer.theory.errors import carried, largest, nudged
from twolayer.theory.integrate import Solution, solve
from twolayer.theory.scope import refusal
from twolayer.training import SGD

# The same equations solved at this many times the tolerance: the difference bounds the error of the finer solution.
LOOSER = 100.0


class _Args(eqx.Module):
    """What the right-hand side needs besides the state."""

    problem: Problem
    training: SGD
    engine: Chosen
    P: Float[Array, "k k"]
    variance: float
    limit: Any
    threshold: Any
    direction: Any  # of the target, when the threshold is on its overlap


def _field(t: Any, state: tuple[Array, Array, Array], args: _Args) -> tuple[Array, Array, Array]:
    overlaps = Overlaps(state[0], state[1], args.P, state[2])
    moments = args.engine.moments(args.problem, overlaps)
    dQ, dM, da = drift(args.problem, args.training, overlaps, moments, args.variance)
    return dQ, dM, da


def _has_diverged(state: tuple[Array, Array, Array], args: _Args) -> Array:
    return jnp.maximum(jnp.max(jnp.diagonal(state[0])), jnp.max(state[2] ** 2)) > args.limit


def _risk_over_threshold(state: tuple[Array, Array, Array], args: _Args) -> Array:
    overlaps = Overlaps(state[0], state[1], args.P, state[2])
    return args.engine.parts(args.problem, overlaps, ("excess_risk",))["excess_risk"] - args.threshold


def _threshold_over_overlap(state: tuple[Array, Array, Array], args: _Args) -> Array:
    Q, M, _ = state
    cosines = M[:, args.direction] / jnp.sqrt(jnp.diagonal(Q) * jnp.diagonal(args.P)[args.direction])
    return args.threshold - jnp.max(jnp.abs(cosines))


@register
class SaadSolla(AbstractDescription):
    r"""Ordinary differential equations for the overlaps, exact for one-pass SGD as :math:`d \to \infty`.

    .. math:: \dot M = \Psi^{(M)}, \qquad \dot Q = \Psi^{(GF)} + \frac{\gamma}{p} \Psi^{(Var)}, \qquad
              \dot a = \kappa \chi

    At finite d a single run scatters around the solution by order :math:`\sqrt{\gamma/(pd)}`, and the mean of many runs
    is shifted by order :math:`1/d`. See `drift` for the equations, and :cite:t:`saad1995`, :cite:t:`goldt2019`.

    Parameters
    ----------
    rtol, atol
        Tolerances of the integrator per step. Engines that are themselves approximate set a coarser floor.
    variance
        Whether the variance term is kept; without it this is gradient flow.
    max_steps
        Steps of the integrator after which it gives up.
    engine
        How the engines of the Gaussian moments are chosen.
    """

    rtol: Any = leaf(number("rtol", above=0.0, below=1.0), default=1e-10)
    atol: Any = leaf(number("atol", above=0.0), default=1e-12)
    variance: bool = static(flag("variance"), default=True)
    max_steps: int = static(count("max_steps"), default=200_000)
    engine: Auto = static(instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)"), default=Auto())

    @property
    def references(self) -> tuple[str, ...]:
        return ("saad1995", "goldt2019", "veiga2022", "arnaboldi2023")

    @property
    def needed(self) -> tuple[str, ...]:
        """The moments in the equations: gradient flow does without the averages over four fields."""
        return MOMENTS if self.variance else tuple(name for name in MOMENTS if name != "phi_hd")

    def applies(self, problem: Problem, training: SGD) -> Applies:
        def no(reason: str) -> Applies:
            return Applies(False, Exactness.LIMIT_D, reason)

        reason = refusal(problem, training, self.engine, self.needed)
        if reason:
            return no(reason)
        batch = training.samples_per_step(problem)
        if 2 * batch > problem.d:
            return no(
                f"it needs batches much smaller than d, but `batch_size` is {batch} at d = {problem.d}; "
                "`BatchMap` covers it."
            )
        scatter = float(np.sqrt(training.learning_rate / (problem.p * problem.d)))
        statement = (
            f"error of a single run O(sqrt(gamma/(p d))), here {scatter:.2g} times a constant; of the mean O(1/d)"
        )
        if batch > 1:
            statement += f", and O(n_b/d) = {batch / problem.d:.2g} from the batch"
        return Applies(True, Exactness.LIMIT_D, statement)

    def trajectory(
        self,
        engine: Chosen,
        problem: Problem,
        training: SGD,
        start: Overlaps,
        times: Float[Array, " times"],
        looser: Any = 1.0,
        limit: Any = jnp.inf,
        threshold: Any = None,
        direction: Any = None,
    ) -> Solution:
        """The solution from one start at the given times: pure JAX, to be mapped and differentiated (in reverse).

        It ends early where a squared row length exceeds ``limit``.
        With a ``threshold`` the solution ends where the excess risk falls to it (with a ``direction``, where the
        overlap with that target direction rises to it), and only that end is returned.
        """
        locate = threshold is not None
        args = _Args(problem, training, engine, start.P, float(self.variance), limit, threshold, direction)
        rtol = looser * jnp.maximum(self.rtol, engine.rtol)
        atol = looser * jnp.maximum(self.atol, 0.01 * engine.rtol)
        state = (start.Q, start.M, start.a)
        watched = _risk_over_threshold if direction is None else _threshold_over_overlap
        stop = watched if locate else _has_diverged
        # Averages known to few digits are costly, and set the error: steps are as long as it allows, and what is saved
        # between is interpolated.
        is_coarse = engine.rtol > 1e-6
        landing = jnp.stack([times[0], times[-1]]) if is_coarse and not locate else None
        return solve(_field, state, times, args, rtol, atol, self.max_steps, stop, locate, is_coarse, landing)

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        engine = self.engine.choose(problem, self.needed)
        variants = engine.variants()
        watches = [(plan.risk_threshold, None)] if plan.risk_threshold is not None else []
        if plan.overlap_threshold is not None:
            watches += [(np.full(plan.replicas, plan.overlap_threshold), np.asarray(r)) for r in range(problem.k)]
        work = len(variants) + 1 + len(watches)
        times = jnp.asarray(plan.times)
        data = as_data((self, problem, training))

        def follow(variant: Chosen, looser: float, starts: Overlaps = plan.starts) -> Any:
            limits = np.asarray(plan.limit), np.asarray(looser)
            return jax.device_get(_trajectories(variant, *data, starts, times, *limits))

        results = []
        for number_done, variant in enumerate(variants):
            results.append(follow(variant, 1.0))
            plan.progress((number_done + 1) / work)
        loose = [follow(variants[0], LOOSER, nudged(plan.starts, sign))[0] for sign in (1.0, -1.0)]
        plan.progress((len(variants) + 1) / work)

        result = carried(engine, [paths for paths, _, _ in results], loose)
        Q, M, a, risk = (np.asarray(x) for x in result.value)
        finished = np.all([np.asarray(done) for _, done, _ in results], axis=0)
        diverged = np.any([np.asarray(stopped) for _, _, stopped in results], axis=0)
        status = np.where(diverged, Status.DIVERGED, np.where(finished, Status.DONE, Status.UNFINISHED))
        crossing, overlap_time = np.full(plan.replicas, np.nan), np.full((plan.replicas, problem.k), np.nan)
        for number_done, (threshold, direction) in enumerate(watches):
            found = np.asarray(crossings(variants[0], *data, plan.starts, times, threshold, direction))
            if direction is None:
                crossing = found
            else:
                overlap_time[:, int(direction)] = found
            plan.progress((len(variants) + 2 + number_done) / work)
        overlap_error, status = largest(*result.error[:3]), status.astype(np.int8)
        return Record(Q, M, a, risk, result.error[3], overlap_error, status, crossing, overlap_time, engine.name)


@eqx.filter_jit
def _trajectories(
    engine: Chosen,
    description: SaadSolla,
    problem: Problem,
    training: SGD,
    starts: Overlaps,
    times: Array,
    limit: Any,
    looser: Any,
) -> Any:
    """Q, M, a and excess risk along the solutions from all starts; NaN beyond the end of a solution."""

    def one(Q: Array, M: Array, a: Array) -> Any:
        start = Overlaps(Q, M, starts.P, a)
        solution = description.trajectory(engine, problem, training, start, times, looser, limit)

        def risk(state: tuple[Array, Array, Array]) -> Array:
            overlaps = Overlaps(state[0], state[1], starts.P, state[2])
            return engine.parts(problem, overlaps, ("excess_risk",))["excess_risk"]

        states = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), solution.states)
        return (*states, jax.lax.map(risk, states)), solution.is_finished, solution.has_stopped

    return over_starts(one, starts.Q, starts.M, starts.a)


def over_starts(one: Any, *data: Any) -> Any:
    """One function for all rows at once; a single row as it is, which takes less time to compile."""
    if data[0].shape[0] > 1:
        return jax.vmap(one)(*data)
    return jax.tree.map(lambda x: x[None], one(*(x[0] for x in data)))


@eqx.filter_jit
def crossings(
    engine: Chosen,
    description: SaadSolla,
    problem: Problem,
    training: SGD,
    starts: Overlaps,
    times: Any,
    thresholds: Any,
    direction: Any = None,
    looser: Any = 1.0,
) -> Array:
    """The time at which the excess risk, or the overlap with a direction, reaches the threshold; NaN if it does not."""

    def one(Q: Array, M: Array, a: Array, threshold: Array) -> Array:
        start = Overlaps(Q, M, starts.P, a)
        span = jnp.stack([times[0], times[-1]])
        solution = description.trajectory(
            engine, problem, training, start, span, looser, threshold=threshold, direction=direction
        )
        args = _Args(problem, training, engine, starts.P, 1.0, None, threshold, direction)
        watched = _risk_over_threshold if direction is None else _threshold_over_overlap
        is_there = watched((Q, M, a), args) <= 0.0
        return jnp.where(is_there, times[0], jnp.where(solution.has_stopped, solution.reached, jnp.nan))

    return over_starts(one, starts.Q, starts.M, starts.a, jnp.asarray(thresholds))
