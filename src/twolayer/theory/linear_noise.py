"""How SGD scatters around its limit and how its mean is shifted, at leading order in 1/d: no path is drawn."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.program_cache import QuickProgram, compiled_for
from twolayer.core.types import NumbersLike
from twolayer.expectation import MOMENTS, Auto, Chosen, increment_covariance
from twolayer.problem import Overlaps, Problem
from twolayer.specification.fields import as_data
from twolayer.theory.motion.drift import Change, drift, pack, tangent, unpack
from twolayer.theory.motion.increments import corrections
from twolayer.theory.motion.integrate import solve
from twolayer.theory.sde import SDE
from twolayer.training import SGD

MAX_STEPS = 100_000
# The tolerance of the solution that judges the integrator, over that of the result, and the largest that is used.
LOOSER, LOOSEST = 100.0, 0.1
# Numbers of points in time at which coefficients are computed: the first one, the largest, and how many in one call.
FEWEST_NODES, MOST_NODES, CHUNK = 33, 513, 17
# Relative distance of the interpolation by every second point from the values at the others; sizes that count as zero.
TABLE, TINY = 1e-5, 1e-12


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
    nodes: int  # points in time at which the coefficients were computed
    engine: str  # the names of the engines of the averages


def linear_noise(
    problem: Problem,
    training: SGD,
    times: NumbersLike,
    begun: Overlaps,
    covariance: NumbersLike | None,
    rtol: float,
    engine: Auto,
    tell: Callable[[float], None],
) -> Fluctuations:
    r"""Integrate the covariance and the shift of the mean of the overlaps, times d, along the solution of the ODE.

    With the drift F, its derivative J and the covariance :math:`\Sigma` of the increments along the solution X of the
    ODE, and the drift h/d of `corrections`,

    .. math::
        \dot C = J C + C J^T + \frac{\gamma}{p}\,\Sigma, \qquad
        \dot\delta = J \delta + \tfrac12 \sum_{uv} \partial_u \partial_v F\; C_{uv} + h

    The coefficients are smooth in time: J, :math:`\Sigma`, h and the sum of second derivatives are computed at
    Chebyshev points along the solution and interpolated between, so that their averages, the costly part, are taken
    tens of times and not at every stage of the integrator.

    Notes
    -----
    Where the ODE diverges, values are infinite and errors NaN from the next time on; the tables end at the one before.
    Errors come from all variants of the engines of the averages, and from a second solution at a hundred times the
    tolerance with every second Chebyshev point; ``tell`` is called with the share of these solutions that is done.
    Checked against: the same equations without tables, mean and variance of the overlap process at growing d.
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
    system = _System(*as_data((problem.without_dimension, training)), begun.P)
    start = pack(Change(begun.Q, begun.M, begun.a))

    tell(0.0)
    known = times[: _finite(variants[0], system, start, times, rtol)]
    if len(known) > 1:
        values, errors, nodes = _with_errors(chosen, system, start, known, first, rtol, tell)
    else:  # nothing but the start
        values, nodes = tuple(np.asarray(x)[None] for x in (start, first, jnp.zeros_like(start))), 0
        errors = tuple(0.0 * x for x in values)
    tell(1.0)
    filled = [_continued(x, len(times), np.inf) for x in values] + [_continued(x, len(times), np.nan) for x in errors]
    return Fluctuations(times, tuple(names), *filled, nodes=nodes, engine=chosen.name)


def _finite(engine: Chosen, system: "_System", start: Array, times: np.ndarray, rtol: float) -> int:
    """How many of the times, the first of them at least, the solution of the ODE reaches before it diverges."""
    path = np.asarray(_solution(engine, system, start, _filled_times(times, times), np.asarray(rtol)))[: len(times)]
    diverged = np.flatnonzero(~np.all(np.isfinite(path[1:]), axis=1))
    return 1 + int(diverged[0]) if diverged.size else len(times)


def _continued(values: np.ndarray, number: int, beyond: float) -> np.ndarray:
    """Values at so many times, which are ``beyond`` after those that are known."""
    values = np.asarray(values)
    return np.concatenate([values, np.full((number - len(values), *values.shape[1:]), beyond)])


def _with_errors(
    chosen: Chosen,
    system: "_System",
    start: Array,
    times: np.ndarray,
    first: Array,
    rtol: float,
    tell: Callable[[float], None],
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], int]:
    """The limit, the covariance and the shift at times that the solution reaches, their errors, and the nodes."""
    variants = chosen.variants()
    cases = len(variants) + 2  # the first variant is solved on tables of two sizes, and once more

    def solved(variant: Chosen, nodes: int, tolerance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _along(_tabulated(variant, system, start, times, nodes, tolerance), times, first, tolerance)

    table = _resolved(variants[0], system, start, times, rtol, max(TABLE, LOOSER * chosen.rtol))
    nodes = len(table.nodes)
    results = [_along(table, times, first, rtol)]
    for number, variant in enumerate(variants[1:]):
        tell((2 + number) / cases)
        results.append(solved(variant, nodes, rtol))
    combined = chosen.combine(tuple(results))
    tell((1 + len(variants)) / cases)
    looser = solved(variants[0], nodes // 2 + 1, min(LOOSER * rtol, LOOSEST))
    errors = [
        np.abs(np.asarray(mean) - value) + np.asarray(error) + np.abs(value - loose)
        for value, loose, mean, error in zip(results[0], looser, combined.value, combined.error, strict=True)
    ]
    return results[0], tuple(errors), nodes


def _derivatives(F: Callable[[Array], Array], x: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """The derivative of a function in a first direction, and the derivative of that in a second one."""
    return jax.jvp(lambda y: jax.jvp(F, (y,), (first,))[1], (x,), (second,))


class _System(eqx.Module):
    """The drift of the overlaps, as a vector, and what noise adds to it."""

    problem: Problem
    training: SGD
    P: Array

    def at(self, x: Array) -> Overlaps:
        change = unpack(x, self.problem.p, self.problem.k)
        return Overlaps(change.Q, change.M, self.P, change.a)

    def drift(self, engine: Chosen, x: Array) -> Array:
        return pack(drift(self.problem, self.training, self.at(x), engine.moments(self.problem, self.at(x))))

    def noise(self, engine: Chosen, x: Array) -> tuple[Array, Array]:
        """The covariance of the increments, and the drift of order 1/d."""
        p, k = self.problem.p, self.problem.k
        overlaps = self.at(x)
        raw = engine.parts(self.problem, overlaps, ("covariance",))["covariance"]
        sigma = increment_covariance(self.problem, self.training, raw)
        size = self.training.learning_rate / p
        h = pack(corrections(self.problem, self.training, engine, overlaps, sigma, size))
        if self.training.is_spherical:
            project = jax.vmap(lambda e: pack(tangent(overlaps, unpack(e, p, k))))(jnp.eye(len(x))).T
            sigma = project @ sigma @ project.T
        return size * sigma, h


class _Table(NamedTuple):
    """The coefficients of the equations of covariance and shift at Chebyshev points in time, along the solution."""

    engine: Chosen
    system: _System
    limit: np.ndarray  # X at the times asked for
    nodes: np.ndarray
    x: np.ndarray  # X at the nodes
    jacobian: np.ndarray
    sigma: np.ndarray
    h: np.ndarray


def _tabulated(engine: Chosen, system: _System, start: Array, times: np.ndarray, number: int, rtol: float) -> _Table:
    """Solve the ODE, and compute the coefficients at so many points in time."""
    nodes = _chebyshev(times, number)
    landing = np.union1d(times, nodes)
    filled = _filled_times(times, landing)
    path = np.asarray(_solution(engine, system, start, filled, np.asarray(rtol)))
    x = path[np.searchsorted(landing, nodes)]
    jacobian, sigma, h = _in_chunks(partial(compiled_for(_coefficients, 0), engine, system), x)
    return _Table(engine, system, path[np.searchsorted(landing, times)], nodes, x, jacobian, sigma, h)


def _resolved(
    engine: Chosen, system: _System, start: Array, times: np.ndarray, rtol: float, tolerance: float
) -> _Table:
    """The table with the first number of points of which every second one gives the coefficients at the others."""
    number = FEWEST_NODES
    while True:
        table = _tabulated(engine, system, start, times, number, rtol)
        distances = [
            np.max(np.abs(_interpolated(table.nodes[::2], values[::2], t) - value)) / max(np.max(np.abs(values)), TINY)
            for values in (table.jacobian, table.sigma, table.h)
            for t, value in zip(table.nodes[1::2], values[1::2], strict=True)
        ]
        if max(distances) <= tolerance or number >= MOST_NODES:
            return table
        number = 2 * number - 1


def _along(table: _Table, times: np.ndarray, first: Array, rtol: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The limit, the covariance and the shift at the times."""
    landing = np.union1d(times, table.nodes)
    filled = _filled_times(times, landing)
    C = np.asarray(_covariances(*_filled(table.nodes, table.jacobian, table.sigma), first, filled, np.asarray(rtol)))
    at_nodes, at_times = C[np.searchsorted(landing, table.nodes)], np.searchsorted(landing, times)
    curvatures = partial(compiled_for(_curvatures, 0), table.engine, table.system)  # in haste, as it runs a few times
    (curvature,) = _in_chunks(curvatures, table.x, at_nodes)
    push = table.h + 0.5 * curvature
    shift = np.asarray(_shifts(*_filled(table.nodes, table.jacobian, push), filled, np.asarray(rtol)))
    return table.limit, C[at_times], shift[at_times]


@QuickProgram
def _solution(engine: Chosen, system: _System, start: Array, times: Any, rtol: Any) -> Array:
    def field(t: Any, x: Array, args: Any) -> Array:
        return system.drift(engine, x)

    return solve(field, start, jnp.asarray(times), None, rtol, 1e-2 * rtol, MAX_STEPS, _never, is_coarse=True).states


def _coefficients(engine: Chosen, system: _System, rows: Array) -> tuple[Array, Array, Array]:
    """The derivative of the drift, the covariance of the increments and the drift of order 1/d at each row."""

    def at(x: Array) -> tuple[Array, Array, Array]:
        columns = jax.vmap(lambda e: jax.jvp(lambda y: system.drift(engine, y), (x,), (e,))[1])(jnp.eye(len(x)))
        return columns.T, *system.noise(engine, x)

    return jax.lax.map(at, rows)


def _curvatures(engine: Chosen, system: _System, rows: Array, covariances: Array) -> tuple[Array]:
    """The sum over pairs of entries of the second derivatives of the drift with their covariance, at each row."""

    def at(row: tuple[Array, Array]) -> Array:
        x, C = row
        # One second derivative for each entry u, along u and along its row of C, instead of one for each pair.
        second = jax.vmap(lambda e, c: _derivatives(lambda y: system.drift(engine, y), x, e, c)[1])(jnp.eye(len(x)), C)
        return jnp.sum(second, axis=0)

    return (jax.lax.map(at, (rows, covariances)),)


@jax.jit
def _covariances(nodes: Any, shares: Any, jacobian: Any, sigma: Any, first: Array, times: Any, rtol: Any) -> Array:
    def field(t: Any, C: Array, args: Any) -> Array:
        J, S = (_interpolated(nodes, values, t, shares) for values in (jacobian, sigma))
        return J @ C + C @ J.T + S

    return solve(field, first, jnp.asarray(times), None, rtol, 1e-2 * rtol, MAX_STEPS, _never).states


@jax.jit
def _shifts(nodes: Any, shares: Any, jacobian: Any, push: Any, times: Any, rtol: Any) -> Array:
    def field(t: Any, shift: Array, args: Any) -> Array:
        J, h = (_interpolated(nodes, values, t, shares) for values in (jacobian, push))
        return J @ shift + h

    start = jnp.zeros(push.shape[1])
    return solve(field, start, jnp.asarray(times), None, rtol, 1e-2 * rtol, MAX_STEPS, _never).states


def _never(state: Any, args: Any) -> Array:
    return jnp.asarray(False)


# ----------------------------------------------------------------------------------------- tables at points in time


def _chebyshev(times: np.ndarray, number: int) -> np.ndarray:
    """Points of the interval between which polynomials are interpolated; every second one is such a set again."""
    share = 0.5 - 0.5 * np.cos(np.pi * np.arange(number) / (number - 1))
    return np.concatenate([times[:1], times[0] + (times[-1] - times[0]) * share[1:-1], times[-1:]])


def _shares(number: int) -> np.ndarray:
    """The weights of the points in the barycentric formula."""
    shares = (-1.0) ** np.arange(number)
    shares[[0, -1]] *= 0.5
    return shares


def _interpolated(nodes: Any, values: Any, t: Any, shares: Any = None) -> Any:
    """The polynomial through values at nodes, by the barycentric formula; nodes without a share do not count."""
    shares = _shares(len(nodes)) if shares is None else shares
    there = (t == nodes) & (shares != 0.0)
    weights = shares / jnp.where(t == nodes, 1.0, t - nodes)
    weights = jnp.where(jnp.any(there), there, weights)
    return jnp.tensordot(weights / jnp.sum(weights), values, axes=1)


def _filled_times(times: np.ndarray, landing: np.ndarray) -> np.ndarray:
    """Where steps end, filled up with the last of them, so that one program serves any number of nodes."""
    return np.append(landing, np.full(len(times) + MOST_NODES - len(landing), landing[-1]))


def _filled(nodes: np.ndarray, *tables: np.ndarray) -> tuple[np.ndarray, ...]:
    """The nodes, their shares and tables with room for the largest number of nodes, so that one program serves all."""
    missing = MOST_NODES - len(nodes)
    beyond = np.full(missing, nodes[-1] + 1.0)
    padded = (np.concatenate([table, np.zeros((missing, *table.shape[1:]))]) for table in tables)
    return np.append(nodes, beyond), np.append(_shares(len(nodes)), np.zeros(missing)), *padded


def _in_chunks(function: Callable[..., tuple[Any, ...]], *rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Apply a compiled function to rows, of which it sees a fixed number."""
    number = len(rows[0])
    chunks = [np.minimum(first + np.arange(CHUNK), number - 1) for first in range(0, number, CHUNK)]
    parts = [jax.device_get(function(*(x[chunk] for x in rows))) for chunk in chunks]
    return tuple(np.concatenate(values)[:number] for values in zip(*parts, strict=True))
