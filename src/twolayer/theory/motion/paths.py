"""Paths of a stochastic differential equation for the overlaps: one step, and many steps of many paths."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.draws import four_normals, four_of
from twolayer.compiler.loops import WrittenOut, counter
from twolayer.compiler.scalar import Program, Unsupported, scalarize
from twolayer.core.linalg import cholesky
from twolayer.core.types import Numbers
from twolayer.description import Watch
from twolayer.expectation import Chosen, Moments, SquareUnits, increment_covariance, increment_parts, increment_rates
from twolayer.problem import Overlaps, Problem
from twolayer.theory.motion.drift import Change, drift, mean_increments, pack, tangent, unpack
from twolayer.theory.motion.increments import corrections, moving_entries, noise_covariance
from twolayer.training import SGD

# Operations for the random numbers of a step beyond which arrays are faster.
MAX_DRAWING = 2000
# A negative part of the overlaps above this fraction of the squared lengths is more than rounding.
OUTSIDE = 1e-9
# Paths computed at once where the moments are averages over points, and where they are formulas or few samples.
FEW, MANY = 8, 256


class OverlapPath(NamedTuple):
    """The current state of a path; arrays of several paths have them along the first axis."""

    Q: Any
    M: Any
    a: Any
    outside: Any  # number of steps after which negative overlaps were cut off
    crossing: Any  # times at which thresholds were first reached, -1 before


class Kept(NamedTuple):
    """The data of a path that does not change during an interval of equal steps."""

    lengths: Any  # lengths of the rows at the start
    thresholds: Any
    step: Any  # the time dt of a step
    offset: Any  # the time after step n, counted from one, is offset + n dt
    amplitude: Any  # amplitude of the noise: sqrt(gamma / (p d)), or zero


class PathSetting(eqx.Module):
    """The fixed data of a step; the dimension d enters through the amplitude of the noise only."""

    problem: Problem
    training: SGD
    engine: Chosen
    watch: Watch
    P: Any
    inverse: Any  # inverse of P
    root: Any  # Cholesky factor of P
    method: str = eqx.field(static=True)
    corrections: bool = eqx.field(static=True)
    # Samples from which the noise of a step is made; 0 for Gaussian noise from its covariance.
    samples: int = eqx.field(static=True)

    @property
    def numbers(self) -> int:
        """The number of normal numbers of a step, or of each of its samples."""
        if self.samples:
            return self.problem.k + self.problem.p + 1
        return len(moving_entries(self.problem, self.training))


def draw(setting: PathSetting, key: tuple[Any, Any], step: tuple[Any, Any]) -> Float[Array, "samples numbers"]:
    """The normal numbers of a step, which depend on its key and number alone; one row for each sample."""
    rows = max(1, setting.samples)
    blocks = four_of(setting.numbers)
    block = jnp.broadcast_to(jnp.arange(blocks, dtype=jnp.uint32)[None, :], (rows, blocks))
    sample = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.uint32)[:, None], block.shape)
    k0, k1, low, high = (jnp.full_like(block, word) for word in (*key, *step))
    four = four_normals(k0, k1, block, sample, low, high)
    return jnp.stack(four, axis=2).reshape(rows, -1)[:, : setting.numbers].astype(jnp.float64)


def positive(setting: PathSetting, Q: Array, M: Array, lengths: Array) -> tuple[Array, Array, Array, Array]:
    r"""The overlaps made positive: Q, M, a factor of :math:`Q^\perp`, and whether anything was cut off.

    The negative part of :math:`Q^\perp = Q - M P^{-1} M^T` is cut off; on the sphere the rows are then rescaled to
    their lengths. Positive overlaps do not change.
    """
    within = M @ jnp.asarray(setting.inverse) @ M.T
    rest = Q - within
    if len(Q) == 1:
        kept = jnp.maximum(rest, 0.0)
        factor = jnp.sqrt(kept)
    else:
        factor = cholesky(rest)
        kept = factor @ factor.T
    lost = jnp.sum(jnp.abs(rest - kept))
    Q = within + kept
    if setting.training.is_spherical:
        scale = lengths / jnp.sqrt(jnp.diagonal(Q))
        Q, M, factor = scale[:, None] * Q * scale[None, :], scale[:, None] * M, scale[:, None] * factor
    return Q, M, factor, lost > OUTSIDE * jnp.sum(jnp.diagonal(Q))


# A function of overlaps, their moments and a factor of Q^perp that gives unit noise and its covariance.
Shake = Callable[[Overlaps, Moments, Array], tuple[Change, Array]]


def noise(
    setting: PathSetting, overlaps: Overlaps, moments: Moments, factor: Array, normals: Array
) -> tuple[Change, Float[Array, "entries entries"]]:
    r"""Unit noise with the full covariance of the increments, and that covariance (or its estimate from the samples).

    Gaussian noise is a triangular factor of the covariance times the normal numbers. From samples it is what they add
    beyond the mean, over the root of their number, :math:`N^{-1/2} \sum_\nu (S_\nu - E[S])`, of the same covariance.
    """
    problem, training = setting.problem, setting.training
    p, k = problem.p, problem.k
    if not setting.samples:
        raw = setting.engine.parts(problem, overlaps, ("covariance",))["covariance"]
        covariance = increment_covariance(problem, training, raw)
        moved = cholesky(noise_covariance(problem, training, overlaps, covariance)) @ normals[0]
        where = np.zeros((covariance.shape[0], len(moved)))
        where[moving_entries(problem, training), np.arange(len(moved))] = 1.0
        return unpack(jnp.asarray(where) @ moved, p, k), covariance
    lam_star = normals[:, :k] @ jnp.asarray(setting.root).T
    projection = overlaps.M @ jnp.asarray(setting.inverse)
    lam = lam_star @ projection.T + normals[:, k : k + p] @ factor.T
    fields = jnp.concatenate([lam, lam_star], axis=1)
    parts = increment_parts(problem, overlaps.a, fields, jnp.sqrt(problem.noise) * normals[:, k + p])
    mean = pack(mean_increments(problem, training, overlaps, moments))
    beyond = parts @ increment_rates(problem, training).T - mean[None, :]
    change = unpack(jnp.sum(beyond, axis=0) / np.sqrt(setting.samples), p, k)
    if training.is_spherical:
        change = tangent(overlaps, change)
    return change, beyond.T @ beyond / setting.samples


def path_step(setting: PathSetting, path: OverlapPath, kept: Kept, shake: Shake, at: Numbers) -> OverlapPath:
    r"""One step of time dt: trapezoidal in the drift, with noise of the size that it has half-way.

    .. math:: \bar X = X + \tfrac12 F(X)\,dt, \qquad
              Y = X + F(X)\,dt + \epsilon\sqrt{dt}\,\Sigma(\bar X)^{1/2} \eta, \qquad
              X^+ = X + \tfrac12 \big(F(X) + F(Y)\big)\,dt + \epsilon\sqrt{dt}\,\Sigma(\bar X)^{1/2} \eta

    Half-way is reached without noise, so that the noise stays without mean. For noise of small size :math:`\epsilon`
    mean and covariance are then right up to order :math:`dt^2` each, besides :math:`\epsilon^2 dt` in the mean and
    :math:`\epsilon^4 dt` in the covariance (:cite:t:`milstein1997`). Euler's method has the noise of X and stops at Y.
    """
    problem, training = setting.problem, setting.training
    P = jnp.asarray(setting.P)
    state = (path.Q, path.M, path.a)
    here = Overlaps(*state[:2], P, path.a)
    moments = setting.engine.moments(problem, here)
    first = drift(problem, training, here, moments)

    def moved(time: Any, F: Change, size: Any = None, unit: Any = None) -> tuple[Overlaps, Array, Array]:
        Q, M, a = (x + time * f for x, f in zip(state, F, strict=True))
        if unit is not None:
            Q, M, a = (x + size * n for x, n in zip((Q, M, a), unit, strict=True))
        Q, M, factor, was_outside = positive(setting, Q, M, kept.lengths)
        return Overlaps(Q, M, P, a), factor, was_outside

    half, factor = here, positive(setting, path.Q, path.M, kept.lengths)[2]
    if setting.method == "heun":
        half, factor, _ = moved(0.5 * kept.step, first)
        moments = setting.engine.moments(problem, half) if setting.samples else moments
    unit, covariance = shake(half, moments, factor)
    size = kept.amplitude * jnp.sqrt(kept.step)
    small = jax.tree.map(jnp.zeros_like, first)
    if setting.corrections:  # they are of order 1/d, and their change within a step is negligible
        small = corrections(problem, training, setting.engine, half, covariance, kept.amplitude * kept.amplitude)
    there, _, was_outside = moved(kept.step, jax.tree.map(jnp.add, first, small), size, unit)
    if setting.method == "heun":
        second = drift(problem, training, there, setting.engine.moments(problem, there))
        rate = jax.tree.map(lambda x, y, more: 0.5 * (x + y) + more, first, second, small)
        there, _, was_outside = moved(kept.step, rate, size, unit)
    crossing = path.crossing
    if setting.watch.is_on:
        risk = setting.engine.parts(problem, there, ("excess_risk",))["excess_risk"] if setting.watch.risk else None
        crossing = setting.watch.crossed(there, risk, kept.thresholds, crossing, kept.offset + kept.step * at)
    outside = path.outside + jnp.where(was_outside, 1.0, 0.0)
    return OverlapPath(there.Q, there.M, there.a, outside, crossing)


@eqx.filter_jit
def advance_xla(
    setting: PathSetting,
    path: OverlapPath,
    kept: Kept,
    words: np.ndarray | Array,
    draws: Numbers,
    first: Numbers,
    last: Numbers,
) -> OverlapPath:
    """Advance all paths from one step to another; a step combines the noise of ``draws`` steps of a finer path."""

    def one(row: tuple[OverlapPath, Kept, Array]) -> OverlapPath:
        path, kept, words = row

        def step(number: Array, path: OverlapPath) -> OverlapPath:
            def shake(overlaps: Overlaps, moments: Moments, factor: Array) -> tuple[Change, Array]:
                def unit_of(i: Array) -> tuple[Change, Array]:
                    normals = draw(setting, (words[0], words[1]), counter(number * draws + i))
                    return noise(setting, overlaps, moments, factor, normals)

                def more(i: Array, total: Any) -> Any:
                    return jax.tree.map(jnp.add, total, unit_of(i))

                zero = jax.tree.map(lambda x: jnp.zeros(x.shape), jax.eval_shape(unit_of, number))
                unit, covariance = jax.lax.fori_loop(0, draws, more, zero)
                return jax.tree.map(lambda x: x / jnp.sqrt(draws), unit), covariance / draws

            return path_step(setting, path, kept, shake, (number + 1).astype(jnp.float64))

        return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), step, path)

    is_light = setting.samples > 0 or isinstance(setting.engine.engine_of("covariance"), SquareUnits)
    width = MANY if is_light else FEW
    return jax.lax.map(one, (path, kept, words), batch_size=min(width, len(path.outside)))


def written_out(setting: PathSetting) -> WrittenOut:
    """One step as a program on scalars; raises `Unsupported` where that is impossible or would be too long."""
    p, k = setting.problem.p, setting.problem.k
    real = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)

    def step(path: OverlapPath, kept: Kept, normals: Array, at: Array) -> OverlapPath:
        def shake(overlaps: Overlaps, moments: Moments, factor: Array) -> tuple[Change, Array]:
            return noise(setting, overlaps, moments, factor, normals)

        return path_step(setting, path, kept, shake, at)

    path = OverlapPath(*(real(shape) for shape in ((p, p), (p, k), (p,), (), (setting.watch.size(k),))))  # pyright: ignore[reportArgumentType]
    kept = Kept(*(real(shape) for shape in ((p,), (2,), (), (), ())))  # pyright: ignore[reportArgumentType]
    normals: Any = real((max(1, setting.samples), setting.numbers))  # pyright: ignore[reportArgumentType]
    draws = _drawn(setting, 1)
    program = scalarize(step, path, kept, normals, real(()))  # pyright: ignore[reportArgumentType]
    if len(draws.ops) > MAX_DRAWING:
        raise Unsupported(f"{len(draws.ops)} operations for its random numbers")
    sizes = [sum(int(np.prod(leaf.shape)) for leaf in tree) for tree in (path, kept)]
    return WrittenOut(draws, program, sizes[0], sizes[1])


def in_long_steps(setting: PathSetting, program: WrittenOut, draws: int) -> WrittenOut | None:
    """The program in which a step combines the noise of several; None for noise from samples, which is not Gaussian."""
    return None if setting.samples else program._replace(draws=_drawn(setting, draws))


def _drawn(setting: PathSetting, draws: int) -> Program:
    """The normal numbers of a step that combines several draws, and the number of the step, counted from one."""
    word = jax.ShapeDtypeStruct((), jnp.uint32)

    def numbers(k0: Any, k1: Any, low: Any, high: Any) -> tuple[Array, Array]:
        first = (low.astype(jnp.uint64) + (high.astype(jnp.uint64) << np.uint64(32))) * np.uint64(draws)
        total = sum(draw(setting, (k0, k1), counter(first + np.uint64(i))) for i in range(draws))
        at = low.astype(jnp.float64) + 2.0**32 * high.astype(jnp.float64) + 1.0
        return jnp.asarray(total) / np.sqrt(draws), at

    return scalarize(numbers, word, word, word, word)
