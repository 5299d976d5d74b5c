"""Exit times and fixed points from the limiting ODE, for any problem it covers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import ComputationFailed
from twolayer.core.estimate import Estimate
from twolayer.core.programs import KeptProgram
from twolayer.expectation import Chosen, choose
from twolayer.problem import Gaussian, Overlaps, PhaseRetrieval, Problem, Student
from twolayer.specification.fields import as_data
from twolayer.theory.formulas.phase_retrieval import fixed_overlap
from twolayer.theory.motion.drift import drift
from twolayer.theory.motion.flow import LOOSER, passages
from twolayer.theory.motion.integrate import solve
from twolayer.theory.saad_solla import SaadSolla, as_state, for_every_dimension
from twolayer.training import SGD, Sphere


def ode_exit_times(
    problem: Problem,
    training: SGD,
    starts: Overlaps,
    thresholds: Float[np.ndarray, " starts"],
    until: float,
    description: SaadSolla | None = None,
    by_overlap: bool = False,
) -> Estimate:
    """The time at which the ODE from each start first reaches its threshold on the excess risk, or on the overlaps.

    Parameters
    ----------
    problem, training
        The problem and its training.
    starts, thresholds
        Overlaps along a leading axis, and one excess risk (or cosine) for each.
    until
        The time at which the search ends.
    description
        The ODE with its tolerances.
    by_overlap
        Whether the thresholds are on the largest cosine between a neuron and any direction of the target.

    Returns
    -------
    The times, NaN where the threshold is not reached, and a bound on the numerical error of each: from the engines of
    the Gaussian moments, and from a second solution at a hundred times the tolerance.
    """
    description = SaadSolla() if description is None else description
    engine = description.choose(problem, training)
    variants = engine.variants()
    problem, training = for_every_dimension(problem, training)
    span, accuracy = np.array([0.0, until]), description.accuracy(engine)
    directions = [np.asarray(r) for r in range(problem.k)] if by_overlap else [None]

    def follow(variant: Chosen, looser: float) -> np.ndarray:
        flow = description.flow(variant, problem, training, starts.P)
        arguments = as_state(starts), span, accuracy.looser(looser), thresholds
        times = [np.asarray(passages(flow, *arguments, direction)) for direction in directions]
        return np.fmin.reduce(times)  # NaN only where no direction is reached

    results = tuple(follow(variant, 1.0) for variant in variants)
    combined = engine.combine(results)
    change = np.abs(results[0] - follow(variants[0], LOOSER))
    # The largest difference over all starts is used, since for one start the two solutions may agree by accident.
    loose = np.max(change, where=np.isfinite(change), initial=0.0)
    return Estimate(np.asarray(combined.value), np.asarray(combined.error) + loose)


class FixedPoint(NamedTuple):
    """A fixed point of phase retrieval at which all neurons are equal up to sign."""

    m: float  # overlap of every neuron with the target
    q: float  # overlap of any two neurons
    excess_risk: float
    is_stable: bool  # also against perturbations under which neurons differ


def fixed_point(p: int, learning_rate: float, noise: float) -> FixedPoint:
    r"""The fixed point of phase retrieval on the sphere when all neurons leave the saddle in the same way.

    .. math:: M_j = m, \qquad Q_{jl} = q \quad (j \ne l), \qquad \dot m = \dot q = 0

    At p = 1 in closed form, :math:`m^2 = 1 - \gamma\Delta / (2(1 - 6\gamma))`. For p > 1 the two equations, taken from
    the drift of the overlaps, are followed from the saddle for a long time and then solved by Newton's method.

    Parameters
    ----------
    p, learning_rate, noise
        Width, rate and label noise; the rate must let the neurons leave the saddle.

    Returns
    -------
    The fixed point. It is stable when every eigenvalue of the Jacobian of the full drift is negative, or zero up to
    rounding; where it is not stable, runs end elsewhere, with neurons that differ: use `evolve` to find out where.

    Notes
    -----
    Checked against: long solutions of the full ODE from random starts, where it is stable.
    """
    if p == 1:
        square = float(fixed_overlap(learning_rate, noise))
        if not 0.0 < square <= 1.0:
            raise ComputationFailed(f"One neuron does not leave the saddle at the learning rate {learning_rate:g}.")
        return FixedPoint(square**0.5, 1.0, 2.0 * (1.0 - square), True)
    problem = Problem(PhaseRetrieval(), Student(p, "square"), Gaussian(p + 2), noise=noise)
    training = SGD(learning_rate, constraint=Sphere())
    end, residual, risk, leading = jax.device_get(_symmetric_end(choose(problem), *as_data((problem, training))))
    if not residual < 1e-10:
        raise ComputationFailed(
            f"The symmetric dynamics of p = {p} neurons has no fixed point at the learning rate {learning_rate:g}."
        )
    return FixedPoint(abs(float(end[0])), float(end[1]), float(risk), bool(leading < 1e-9))


@KeptProgram
def _symmetric_end(engine: Chosen, problem: Problem, training: SGD) -> tuple[Array, Array, Array, Array]:
    """The end (m, q) of the symmetric dynamics, its residual, excess risk, and the leading eigenvalue of the drift."""
    import optimistix

    p = problem.p
    rows, columns = np.triu_indices(p, 1)

    def overlaps(x: Array) -> Overlaps:
        """The overlaps of the student from those with the target (p) and those of the pairs of neurons."""
        upper = jnp.zeros((p, p)).at[rows, columns].set(x[p:])
        return Overlaps(jnp.eye(p) + upper + upper.T, x[:p, None], jnp.eye(1), jnp.ones(p))

    def full(x: Array) -> Array:
        at = overlaps(x)
        dQ, dM, _ = drift(problem, training, at, engine.moments(problem, at))
        return jnp.concatenate([dM[:, 0], dQ[rows, columns]])

    def spread(y: Array) -> Array:
        return jnp.concatenate([jnp.full(p, y[0]), jnp.full(len(rows), y[1])])

    def reduced(y: Array) -> Array:
        return full(spread(y))[jnp.array([0, p])]

    # The time is far beyond that of the escape; Newton's method removes what slow directions leave.
    long = solve(
        lambda t, y, _: reduced(y),
        jnp.array([1e-2, 0.0]),
        jnp.array([0.0, 100.0]),
        None,
        1e-8,
        1e-10,
        100_000,
        lambda y, _: jnp.asarray(False),
        is_coarse=True,
    )
    newton = optimistix.Newton(rtol=1e-13, atol=1e-13)
    near = long.states[-1]
    root = optimistix.root_find(lambda y, _: reduced(y), newton, near, max_steps=50, throw=False).value
    # Without label noise all neurons end on the target, a degenerate root at which Newton's method may fail.
    better = jnp.all(jnp.isfinite(root)) & (jnp.max(jnp.abs(root - near)) < 0.1)
    end = jnp.where(better, root, near)
    leading = jnp.max(jnp.linalg.eigvals(jax.jacfwd(full)(spread(end))).real)
    at = overlaps(spread(end))
    return end, jnp.max(jnp.abs(reduced(end))), engine.moments(problem, at).excess_risk, leading
