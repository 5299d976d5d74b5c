"""How SGD scatters around its limit and how its mean is shifted, at leading order in 1/d: no path is drawn."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.types import NumbersLike
from twolayer.expectation import MOMENTS, Auto, Chosen, increment_covariance
from twolayer.problem import Overlaps, Problem, without_dimension
from twolayer.specification.fields import as_data
from twolayer.theory.motion.drift import Change, drift, pack, tangent, unpack
from twolayer.theory.motion.increments import corrections
from twolayer.theory.motion.integrate import solve
from twolayer.theory.sde import SDE
from twolayer.training import SGD

MAX_STEPS = 100_000
# The tolerance of the solution that judges the integrator, over that of the result, and the largest that is used.
LOOSER, LOOSEST = 100.0, 0.1


class Fluctuations(NamedTuple):
    r"""The law of the overlaps of SGD at large d, at each time: mean :math:`X + \delta/d`, covariance :math:`C/d`.

    Entries are ordered as a, then M row by row, then the pairs j <= l of Q. Errors are bounds on the numerical ones.
    """

    times: Float[np.ndarray, " times"]
    entries: tuple[str, ...]
    limit: Float[np.ndarray, "times entries"]  # X, the solution of the ODE
    covariance: Float[np.ndarray, "times entries entries"]  # C = lim d Cov
    shift: Float[np.ndarray, "times entries"]  # delta = lim d (mean - X)
    limit_error: Float[np.ndarray, "times entries"]
    covariance_error: Float[np.ndarray, "times entries entries"]
    shift_error: Float[np.ndarray, "times entries"]


def linear_noise(
    problem: Problem,
    training: SGD,
    times: NumbersLike,
    begun: Overlaps,
    covariance: NumbersLike | None,
    rtol: float,
    engine: Auto,
) -> Fluctuations:
    r"""Integrate the covariance and the shift of the mean of the overlaps, times d, along the solution of the ODE.

    With the drift F, its derivative J and the covariance :math:`\Sigma` of the increments along the solution X of the
    ODE, and the drift h/d of `corrections`,

    .. math::
        \dot C = J C + C J^T + \frac{\gamma}{p}\,\Sigma, \qquad
        \dot\delta = J \delta + \tfrac12 \sum_{uv} \partial_u \partial_v F\; C_{uv} + h

    Notes
    -----
    Errors come from all variants of the engines of the averages, and from a second solution at a hundred times the
    tolerance. Checked against: mean and variance of the overlap process at growing d.
    """
    SDE(corrections=True, engine=engine).require(problem, training)
    times = np.asarray(times, dtype=float)
    if times.ndim != 1 or times.size < 2 or not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
        raise InvalidInput("Argument `times` must be a list of two or more increasing finite times.")
    p, k = problem.p, problem.k
    rows, columns = np.triu_indices(p)
    names = [f"a[{j}]" for j in range(p)] + [f"M[{j},{r}]" for j in range(p) for r in range(k)]
    names += [f"Q[{j},{l}]" for j, l in zip(rows, columns, strict=True)]
    first = jnp.zeros((len(names), len(names))) if covariance is None else jnp.asarray(covariance, jnp.float64)
    if first.shape != (len(names), len(names)):
        raise InvalidInput(
            f"Argument `covariance` must have shape {(len(names), len(names))}, a row for each of a, M and Q, "
            f"but has shape {first.shape}."
        )
    chosen = engine.choose(problem, (*MOMENTS, "covariance"))
    variants = chosen.variants()
    state = (pack(Change(begun.Q, begun.M, begun.a)), first, jnp.zeros(len(names)))
    data = as_data((without_dimension(problem), training))

    def solved(variant: Chosen, tolerance: float) -> Any:
        return jax.device_get(_along(variant, *data, begun.P, state, times, np.asarray(tolerance)))

    results = tuple(solved(variant, rtol) for variant in variants)
    combined = chosen.combine(results)
    looser = solved(variants[0], min(LOOSER * rtol, LOOSEST))
    errors = [
        np.abs(np.asarray(mean) - value) + np.asarray(error) + np.abs(value - loose)
        for value, loose, mean, error in zip(results[0], looser, combined.value, combined.error, strict=True)
    ]
    return Fluctuations(times, tuple(names), *results[0], *errors)


@eqx.filter_jit
def _along(engine: Chosen, problem: Problem, training: SGD, P: Array, state: Any, times: Any, rtol: Any) -> Any:
    p, k = problem.p, problem.k

    def at(x: Array) -> Overlaps:
        change = unpack(x, p, k)
        return Overlaps(change.Q, change.M, P, change.a)

    def F(x: Array) -> Array:
        return pack(drift(problem, training, at(x), engine.moments(problem, at(x))))

    def field(t: Any, state: tuple[Array, Array, Array], args: Any) -> tuple[Array, Array, Array]:
        x, C, shift = state
        overlaps = at(x)
        raw = engine.parts(problem, overlaps, ("covariance",))["covariance"]
        sigma = increment_covariance(problem, training, raw)
        h = pack(corrections(problem, training, engine, overlaps, sigma, training.learning_rate / p))
        if training.is_spherical:
            project = jax.vmap(lambda e: pack(tangent(overlaps, unpack(e, p, k))))(jnp.eye(len(x))).T
            sigma = project @ sigma @ project.T
        J = jax.jacfwd(F)(x)
        curvature = jnp.einsum("kuv,uv->k", jax.jacfwd(jax.jacfwd(F))(x), C)
        dC = J @ C + C @ J.T + training.learning_rate / p * sigma
        return F(x), dC, J @ shift + 0.5 * curvature + h

    def never(state: Any, args: Any) -> Array:
        return jnp.asarray(False)

    solution = solve(field, state, jnp.asarray(times), None, rtol, 1e-2 * rtol, MAX_STEPS, never, is_coarse=True)
    return solution.states
