"""How SGD scatters around its limit and how its mean is shifted, at leading order in 1/d: no path is drawn."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, NotApplicable
from twolayer.core.programs import QuickProgram
from twolayer.core.types import NumbersLike
from twolayer.expectation import MOMENTS, Auto, Chosen, Cloud, Moments, MonteCarlo
from twolayer.expectation.gaussian_moments import FORCES
from twolayer.problem import BlockFrame, BlockOverlaps, Overlaps, Problem
from twolayer.specification.fields import as_data
from twolayer.theory.motion.drift import changing, drift, pack, unpack
from twolayer.theory.motion.increments import sample_covariance, scaled_by_length, small_drift, tangent_map
from twolayer.theory.motion.integrate import solve
from twolayer.theory.sde import SDE
from twolayer.training import SGD

MAX_STEPS = 100_000
# The tolerance of the solution that judges the integrator, over that of the result, and the largest that is used.
LOOSER, LOOSEST = 100.0, 0.1
# The tolerance of the linear equations, over that of the result.
INNER = 1e-2
# Numbers of points in time at which coefficients are computed: the first one, the largest, and how many in one call.
FEWEST_NODES, MOST_NODES, CHUNK = 33, 513, 17
# Relative distance of the interpolation by every second point from the values at the others; sizes that count as zero.
TABLE, TINY = 1e-5, 1e-12


class Fluctuations(NamedTuple):
    r"""The law of the overlaps of SGD at large d, at each time: mean :math:`X + \delta/d`, covariance :math:`C/d`.

    Entries are ordered as a, then M row by row, then the pairs j <= l of Q, the latter two block by block.
    Errors are bounds on the numerical ones.
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
    tens of times and not at every stage of the integrator. Both equations are linear and small, and are integrated
    without compiling anything. Variants of the engine of :math:`\Sigma` share the solution and its derivatives.

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
    names = _names(problem.p, problem.k, begun)
    first = jnp.zeros((len(names), len(names))) if covariance is None else jnp.asarray(covariance, jnp.float64)
    if first.shape != (len(names), len(names)):
        raise InvalidInput(
            f"Argument `covariance` must have shape {(len(names), len(names))}, a row for each of a, M and Q, "
            f"but has shape {first.shape}."
        )
    chosen = engine.choose(problem, (*MOMENTS, "covariance"))
    _check_derivatives(problem, chosen)
    frame = None if begun.blocks is None else begun.blocks.frame
    system = _System(*as_data((problem.without_dimension, training)), begun.P, frame)
    start = pack(changing(begun))

    tell(0.0)
    known = times[: _finite(_parted(chosen.variants()[0])[0], system, start, times, rtol)]
    if len(known) > 1:
        values, errors, nodes = _with_errors(chosen, system, start, known, first, rtol, tell)
    else:  # nothing but the start
        values, nodes = tuple(np.asarray(x)[None] for x in (start, first, jnp.zeros_like(start))), 0
        errors = tuple(0.0 * x for x in values)
    tell(1.0)
    filled = [_continued(x, len(times), np.inf) for x in values] + [_continued(x, len(times), np.nan) for x in errors]
    return Fluctuations(times, tuple(names), *filled, nodes=nodes, engine=chosen.name)


def _check_derivatives(problem: Problem, chosen: Chosen) -> None:
    """Raise `NotApplicable` where averages of a student with kinks are sums over points, which move across the kinks.

    The derivative of such a sum leaves out what the crossing of a kink changes. Points along the target do not move.
    """
    for engine, names in zip(chosen.engines, chosen.serves, strict=True):
        if isinstance(engine, Cloud | MonteCarlo) and not problem.student.activation.is_smooth and {*FORCES} & {*names}:
            raise NotApplicable(
                f"`fluctuations` need derivatives of `{', '.join(names)}`, but for this student with kinks they are "
                f"averages over points ({engine.name}), whose derivatives leave the kinks out; `SDE` and `OverlapSGD` "
                "need none."
            )


def _names(p: int, k: int, begun: Overlaps) -> list[str]:
    """The names of the entries in the order of `pack`; those by block have the block as their first index."""
    blocks = [("", "")] if begun.blocks is None else [("_block", f"{l},") for l in range(len(begun.blocks.frame.ranks))]
    pairs = list(zip(*np.triu_indices(p), strict=True))
    names = [f"a[{j}]" for j in range(p)]
    names += [f"M{which}[{block}{j},{r}]" for which, block in blocks for j in range(p) for r in range(k)]
    return names + [f"Q{which}[{block}{j},{l}]" for which, block in blocks for j, l in pairs]


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
    variants = [_parted(variant) for variant in chosen.variants()]
    best, noisy = variants[0]
    course, noise = _resolved(best, noisy, system, start, times, rtol, max(TABLE, LOOSER * chosen.rtol))
    # Variants that differ in the covariance of the increments only have the same solution and derivatives.
    groups: dict[tuple[int, ...], tuple[_Course, list[tuple[int, _Noise]]]] = {}
    for number, (engine, covariance) in enumerate(variants):
        tell((1 + number) / (len(variants) + 2))
        same = tuple(map(id, engine.engines))
        if number and same not in groups:
            groups[same] = (_course(engine, system, start, times, course.nodes, rtol), [])
        members = groups.setdefault(same, (course, []))
        own = _noise_along(covariance, system, members[0]) if number else noise
        members[1].append((number, own))
    results: dict[int, Any] = {}
    for own_course, members in groups.values():
        along = _along(system, own_course, [noise for _, noise in members], times, first, rtol)
        results |= zip((number for number, _ in members), along, strict=True)
    combined = chosen.combine(tuple(results[number] for number in range(len(variants))))
    tell((1 + len(variants)) / (len(variants) + 2))
    tolerance = min(LOOSER * rtol, LOOSEST)
    rough = _course(best, system, start, times, _chebyshev(times, len(course.nodes) // 2 + 1), tolerance)
    (looser,) = _along(system, rough, [_noise_along(noisy, system, rough)], times, first, tolerance)
    errors = [
        np.abs(np.asarray(mean) - value) + np.asarray(error) + np.abs(value - loose)
        for value, loose, mean, error in zip(results[0], looser, combined.value, combined.error, strict=True)
    ]
    return results[0], tuple(errors), len(course.nodes)


def _parted(chosen: Chosen) -> tuple[Chosen, Chosen]:
    """The engines of the mean motion, and that of the covariance of the increments."""
    pairs = [(engine, names) for engine, names in zip(chosen.engines, chosen.serves, strict=True)]
    others = [(engine, tuple(name for name in names if name in MOMENTS)) for engine, names in pairs]
    engines, serves = zip(*[(engine, names) for engine, names in others if names], strict=True)
    return Chosen(engines, serves, ()), chosen.only("covariance")


class _System(eqx.Module):
    """The drift of the overlaps, as a vector, and what noise adds to it."""

    problem: Problem
    training: SGD
    P: Array | np.ndarray
    frame: BlockFrame | None  # the blocks of a spectrum

    def at(self, x: Array) -> Overlaps:
        """The overlaps that a vector stands for."""
        blocks = None if self.frame is None else len(self.frame.ranks)
        change = unpack(x, self.problem.p, self.problem.k, blocks)
        if self.frame is None:
            return Overlaps(change.Q, change.M, jnp.asarray(self.P), change.a)
        return Overlaps.by_block(BlockOverlaps(change.Q, change.M, self.frame), change.a)

    def drift(self, engine: Chosen, x: Array) -> Array:
        """The drift at a vector of overlaps."""
        overlaps = self.at(x)
        return pack(drift(self.problem, self.training, overlaps, engine.moments(self.problem, overlaps.of_fields)))

    def moved(self, engine: Chosen, x: Array, beyond: tuple[Array, ...]) -> tuple[Array, Moments]:
        """The drift and the moments where the covariance of the fields is that of the overlaps and something more."""
        overlaps = self.at(x)
        of = overlaps.of_fields
        fields = Overlaps(of.Q + beyond[0], of.M + beyond[1], of.P + beyond[2], of.a)
        moments = engine.moments(self.problem, fields)
        return pack(drift(self.problem, self.training, overlaps, moments)), moments

    def noise(self, engine: Chosen, x: Array, derived: "_Derived") -> tuple[Array, Array]:
        """The covariance of the increments times their rate, and the drift of order 1/d, from the derivatives there."""
        problem, training, overlaps = self.problem, self.training, self.at(x)
        raw = engine.parts(problem, overlaps.of_fields, ("covariance",))["covariance"]
        sigma = sample_covariance(problem, training, overlaps, raw, derived.moments)
        size = training.learning_rate / problem.p
        blocks = None if self.frame is None else len(self.frame.ranks)
        lag = unpack(derived.jacobian @ derived.drift, problem.p, problem.k, blocks)
        h = small_drift(problem, training, overlaps, derived.moments, sigma, size, derived.by_length, lag)
        if training.is_spherical:
            project = tangent_map(overlaps, len(x))
            sigma = project @ sigma @ project.T
        return size * sigma, pack(h)


class _Derived(NamedTuple):
    """The drift and its derivatives along the solution, for each point in time."""

    drift: Any
    moments: Moments
    jacobian: Any
    by_length: Any  # the derivatives of phi_hd along `scaled_by_length`
    curvature: Any  # the sum over pairs of entries of the second derivatives of the drift with their covariance


class _Course(NamedTuple):
    """The solution of the ODE, and the derivatives of the drift at Chebyshev points in time along it."""

    engine: Chosen
    limit: np.ndarray  # X at the times asked for
    nodes: np.ndarray
    x: np.ndarray  # X at the nodes
    derived: _Derived


class _Noise(NamedTuple):
    """The covariance of the increments times their rate, and the drift of order 1/d, at the same points."""

    sigma: np.ndarray
    h: np.ndarray


def _course(
    engine: Chosen, system: _System, start: Array, times: np.ndarray, nodes: np.ndarray, rtol: float
) -> _Course:
    """Solve the ODE, and differentiate the drift at the nodes."""
    landing = np.union1d(times, nodes)
    path = np.asarray(_solution(engine, system, start, _filled_times(times, landing), np.asarray(rtol)))
    x = path[np.searchsorted(landing, nodes)]
    derived = _in_chunks(partial(_derivatives_at, engine, system), x, np.zeros((*x.shape, x.shape[1])))
    return _Course(engine, path[np.searchsorted(landing, times)], nodes, x, derived)


def _noise_along(engine: Chosen, system: _System, course: _Course) -> _Noise:
    """What noise adds, at the nodes of a solution."""
    return _Noise(*_in_chunks(partial(_noise_at, engine, system), course.x, course.derived))


def _resolved(
    engine: Chosen, covariance: Chosen, system: _System, start: Array, times: np.ndarray, rtol: float, tolerance: float
) -> tuple[_Course, _Noise]:
    """The first number of nodes of which every second one gives the coefficients at the others."""
    number = FEWEST_NODES
    while True:
        course = _course(engine, system, start, times, _chebyshev(times, number), rtol)
        noise = _noise_along(covariance, system, course)
        between = _barycentric(course.nodes[::2], course.nodes[1::2])
        distances = [
            np.max(np.abs(np.tensordot(between, values[::2], axes=1) - values[1::2]))
            / max(np.max(np.abs(values)), TINY)
            for values in (course.derived.jacobian, *noise)
        ]
        if max(distances) <= tolerance or number >= MOST_NODES:
            return course, noise
        number = 2 * number - 1


def _along(
    system: _System, course: _Course, noises: list[_Noise], times: np.ndarray, first: Array, rtol: float
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The limit, the covariance and the shift at the times, with each of several covariances of the increments."""
    n, cases = course.x.shape[1], len(noises)
    jacobian, landing = course.derived.jacobian, np.union1d(times, course.nodes)
    at_nodes, at_times = np.searchsorted(landing, course.nodes), np.searchsorted(landing, times)
    sigma = np.stack([noise.sigma for noise in noises], axis=1)

    def spreading(J: np.ndarray, S: np.ndarray, C: np.ndarray) -> np.ndarray:
        moved = J @ C
        return moved + np.swapaxes(moved, -1, -2) + S

    start = np.broadcast_to(np.asarray(first), (cases, n, n))
    C = _integrated(spreading, start, course.nodes, (jacobian, sigma), landing, rtol)
    found = []
    for case, noise in enumerate(noises):
        derived = _in_chunks(partial(_derivatives_at, course.engine, system), course.x, C[at_nodes, case])
        found.append(noise.h + 0.5 * derived.curvature)

    def shifting(J: np.ndarray, push: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return J @ shift + push

    shift = _integrated(shifting, np.zeros((n, cases)), course.nodes, (jacobian, np.stack(found, axis=2)), times, rtol)
    return [(course.limit, C[at_times, case], shift[:, :, case]) for case in range(cases)]


def _integrated(
    field: Callable[..., np.ndarray],
    start: np.ndarray,
    nodes: np.ndarray,
    tables: tuple[np.ndarray, ...],
    times: np.ndarray,
    rtol: float,
) -> np.ndarray:
    """Integrate a linear equation whose coefficients are interpolated between nodes in time.

    It costs next to nothing, so that its tolerance is a hundredth of the one asked for, and values within a step, which
    are less accurate than those at its end, are as accurate as asked.
    """
    from scipy.integrate import solve_ivp

    sizes = [table[0].size for table in tables]
    flat = np.concatenate([table.reshape(len(nodes), -1) for table in tables], axis=1)
    shapes, ends = [table.shape[1:] for table in tables], np.cumsum(sizes)[:-1]

    def velocity(t: float, y: np.ndarray) -> np.ndarray:
        parts = np.split(_barycentric(nodes, np.array([t]))[0] @ flat, ends)
        return field(
            *(x.reshape(shape) for x, shape in zip(parts, shapes, strict=True)), y.reshape(start.shape)
        ).ravel()

    span = (float(times[0]), float(times[-1]))
    fine = max(INNER * rtol, 1e-13)
    solution = solve_ivp(velocity, span, start.ravel(), "DOP853", times, rtol=fine, atol=INNER * fine)
    found = np.full((len(times), start.size), np.inf)  # after a divergence
    found[: len(solution.t)] = solution.y.T
    return found.reshape(len(times), *start.shape)


@QuickProgram
def _solution(engine: Chosen, system: _System, start: Array, times: Any, rtol: Any) -> Array:
    def field(t: Any, x: Array, args: Any) -> Array:
        return system.drift(engine, x)

    return solve(field, start, jnp.asarray(times), None, rtol, 1e-2 * rtol, MAX_STEPS, _never, is_coarse=True).states


@QuickProgram
def _derivatives_at(engine: Chosen, system: _System, rows: Array, covariances: Array) -> _Derived:
    """The derivatives at each row of overlaps, with the sum of second derivatives along a covariance."""

    def at(row: tuple[Array, Array]) -> _Derived:
        x, C = row
        n, along = len(x), scaled_by_length(system.at(x))
        nothing = tuple(jnp.zeros(part.shape[1:]) for part in along)

        def along_one(entry: Array, beyond: tuple[Array, ...], second: Array) -> tuple[Any, ...]:
            def first(y: Array) -> tuple[Any, Any]:
                return jax.jvp(lambda *at: system.moved(engine, *at), (y, nothing), (entry, beyond))

            (here, slope), (_, curvature) = jax.jvp(first, (x,), (second,))
            return here, slope[0], slope[1].phi_hd, curvature[0]

        # One second derivative for each entry u, along u and along its row of C, instead of one for each pair.
        blocks, apart = len(along[0]), tuple(jnp.zeros((n, *part.shape)) for part in nothing)
        directions = (jnp.eye(n), apart, C)
        by_length = (jnp.zeros((blocks, n)), along, jnp.zeros((blocks, n)))
        rows = jax.tree.map(lambda *x: jnp.concatenate(x), directions, by_length)
        (F, moments), J, phi_hd, curvature = jax.vmap(along_one, out_axes=(None, 0, 0, 0))(*rows)
        return _Derived(F, moments, J[:n].T, phi_hd[n:], jnp.sum(curvature[:n], axis=0))

    return jax.lax.map(at, (rows, covariances))


@QuickProgram
def _noise_at(engine: Chosen, system: _System, rows: Array, derived: _Derived) -> tuple[Array, Array]:
    """The covariance of the increments times their rate, and the drift of order 1/d, at each row of overlaps."""
    return jax.lax.map(lambda row: system.noise(engine, *row), (rows, derived))


def _never(state: Any, args: Any) -> Array:
    return jnp.asarray(False)


# ----------------------------------------------------------------------------------------- tables at points in time


def _chebyshev(times: np.ndarray, number: int) -> np.ndarray:
    """Points of the interval between which polynomials are interpolated; every second one is such a set again."""
    share = 0.5 - 0.5 * np.cos(np.pi * np.arange(number) / (number - 1))
    return np.concatenate([times[:1], times[0] + (times[-1] - times[0]) * share[1:-1], times[-1:]])


def _barycentric(nodes: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The matrix from values at Chebyshev points to those of the polynomial through them at some times."""
    shares = (-1.0) ** np.arange(len(nodes))
    shares[[0, -1]] *= 0.5
    distance = times[:, None] - nodes[None, :]
    is_there = distance == 0.0
    weights = shares / np.where(is_there, 1.0, distance)
    weights = np.where(is_there.any(axis=1)[:, None], is_there, weights)
    return weights / weights.sum(axis=1, keepdims=True)


def _filled_times(times: np.ndarray, landing: np.ndarray) -> np.ndarray:
    """Where steps end, filled up with the last of them, so that one program serves any number of nodes."""
    return np.append(landing, np.full(len(times) + MOST_NODES - len(landing), landing[-1]))


def _in_chunks(function: Callable[..., Any], *rows: Any) -> Any:
    """Apply a compiled function to rows, of which it sees a fixed number."""
    number = len(rows[0])
    chunks = [np.minimum(first + np.arange(CHUNK), number - 1) for first in range(0, number, CHUNK)]
    parts = [jax.device_get(function(*jax.tree.map(lambda x: x[chunk], rows))) for chunk in chunks]  # noqa: B023
    return jax.tree.map(lambda *values: np.concatenate(values)[:number], *parts)
