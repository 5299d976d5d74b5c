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
from twolayer.core.programs import KeptProgram
from twolayer.core.types import Numbers
from twolayer.description import Watch
from twolayer.expectation import Chosen, Moments, SquareUnits, increment_parts, increment_rates
from twolayer.problem import BlockFrame, BlockOverlaps, Overlaps, Problem
from twolayer.theory.motion.drift import (
    Change,
    across,
    changing,
    drift,
    lengths,
    mean_increments,
    pack,
    tangent,
    unpack,
)
from twolayer.theory.motion.increments import corrections, moving_entries, noise_covariance, sample_covariance
from twolayer.training import SGD

# Operations for the random numbers of a step beyond which arrays are faster.
MAX_DRAWING = 2000
# A negative part of the overlaps above this fraction of the squared lengths is more than rounding.
OUTSIDE = 1e-9
# Paths computed at once where the moments are averages over points, and where they are formulas or few samples.
FEW, MANY = 8, 256


class OverlapPath(NamedTuple):
    """The current state of a path; arrays of several paths have them along the first axis, before that of blocks."""

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
    inverse: Any  # inverse of P, or that of the target's overlaps in each block
    root: Any  # triangular factor of P, or a factor for each block
    method: str = eqx.field(static=True)
    corrections: bool = eqx.field(static=True)
    # Samples from which the noise of a step is made; 0 for Gaussian noise from its covariance.
    samples: int = eqx.field(static=True)
    frame: BlockFrame | None = None  # the blocks of a spectrum

    @classmethod
    def of(
        cls,
        setting: tuple[Problem, SGD, Chosen, Watch],
        starts: Overlaps,
        method: str,
        corrections: bool,
        samples: int,
    ) -> "PathSetting":
        """The setting of paths from some starts."""
        rest: Any = (method, corrections, samples)
        P = np.asarray(starts.P, dtype=np.float64)
        if starts.blocks is None:
            return cls(*setting, P, np.linalg.inv(P), np.linalg.cholesky(P), *rest)
        frame, k = starts.blocks.frame, setting[0].k
        roots = [np.asarray(root, dtype=np.float64) for root in frame.roots]
        inverse = np.stack([np.linalg.pinv(root @ root.T, rcond=1e-9, hermitian=True) for root in roots])
        root = np.stack([np.pad(root, ((0, 0), (0, k - root.shape[1]))) for root in roots])
        return cls(*setting, P, inverse, root, *rest, frame=frame)

    @property
    def numbers(self) -> int:
        """The number of normal numbers of a step, or of each of its samples."""
        if self.samples:
            return self.blocks * (self.problem.k + self.problem.p) + 1
        return len(moving_entries(self.problem, self.training, self.frame))

    @property
    def blocks(self) -> int:
        """The number of blocks of the spectrum; one where there is none."""
        return 1 if self.frame is None else len(self.frame.ranks)

    def overlaps(self, Q: Array, M: Array, a: Array) -> Overlaps:
        """The overlaps of a state, by block where there are blocks."""
        if self.frame is None:
            return Overlaps(Q, M, jnp.asarray(self.P), a)
        return Overlaps.by_block(BlockOverlaps(Q, M, self.frame), a)


def draw(setting: PathSetting, key: tuple[Any, Any], step: tuple[Any, Any]) -> Float[Array, "samples numbers"]:
    """The normal numbers of a step, which depend on its key and number alone; one row for each sample."""
    rows = max(1, setting.samples)
    blocks = four_of(setting.numbers)
    block = jnp.broadcast_to(jnp.arange(blocks, dtype=jnp.uint32)[None, :], (rows, blocks))
    sample = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.uint32)[:, None], block.shape)
    k0, k1, low, high = (jnp.full_like(block, word) for word in (*key, *step))
    four = four_normals(k0, k1, block, sample, low, high)
    return jnp.stack(four, axis=2).reshape(rows, -1)[:, : setting.numbers].astype(jnp.float64)


def positive(setting: PathSetting, Q: Array, M: Array, rows: Array) -> tuple[Array, Array, Array, Array]:
    r"""The overlaps made positive: Q, M, a factor of :math:`Q^\perp`, and whether anything was cut off.

    The negative part of :math:`Q^\perp = Q - M P^{-1} M^T` is cut off, in each block by itself; on the sphere the rows
    are then rescaled to their lengths ``rows``. Positive overlaps do not change.
    """
    if setting.frame is None:
        Q, M, factor, lost = _positive(jnp.asarray(setting.inverse), Q, M)
    else:
        Q, M, factor, lost = jax.vmap(_positive)(jnp.asarray(setting.inverse), Q, M)
        lost = jnp.sum(lost)
    if setting.training.is_spherical:
        down, along = across(rows / jnp.sqrt(lengths(Q)), Q)
        Q, M, factor = down * Q * along, down * M, down * factor
    return Q, M, factor, lost > OUTSIDE * jnp.sum(lengths(Q))


def _positive(inverse: Array, Q: Array, M: Array) -> tuple[Array, Array, Array, Array]:
    """The overlaps made positive, a factor of their part outside of the target's span, and how much was cut off."""
    within = M @ inverse @ M.T
    rest = Q - within
    if len(Q) == 1:
        kept = jnp.maximum(rest, 0.0)
        factor = jnp.sqrt(kept)
    else:
        factor = cholesky(rest)
        kept = factor @ factor.T
    return within + kept, M, factor, jnp.sum(jnp.abs(rest - kept))


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
    p, k, blocks = problem.p, problem.k, None if setting.frame is None else setting.blocks
    if not setting.samples:
        raw = setting.engine.parts(problem, overlaps.of_fields, ("covariance",))["covariance"]
        covariance = sample_covariance(problem, training, overlaps, raw, moments)
        moved = cholesky(noise_covariance(problem, training, overlaps, covariance)) @ normals[0]
        where = np.zeros((covariance.shape[0], len(moved)))
        where[moving_entries(problem, training, setting.frame), np.arange(len(moved))] = 1.0
        return unpack(jnp.asarray(where) @ moved, p, k, blocks), covariance
    fields, seen = _sampled_fields(setting, overlaps, factor, normals)
    parts = increment_parts(problem, overlaps.a, fields, jnp.sqrt(problem.noise) * normals[:, -1], seen)
    mean = pack(mean_increments(problem, training, overlaps, moments))
    beyond = parts @ increment_rates(problem, training, setting.frame).T - mean[None, :]
    change = unpack(jnp.sum(beyond, axis=0) / np.sqrt(setting.samples), p, k, blocks)
    if training.is_spherical:
        change = tangent(overlaps, change)
    return change, beyond.T @ beyond / setting.samples


def _sampled_fields(
    setting: PathSetting, overlaps: Overlaps, factor: Array, normals: Array
) -> tuple[Float[Array, "samples n"], Float[Array, "samples m"] | None]:
    """The fields of samples from normal numbers; and what each block contributes to them, block after block."""
    p, k = setting.problem.p, setting.problem.k

    def fields(normals: Array, root: Array, inverse: Array, M: Array, factor: Array) -> Array:
        lam_star = normals[:, :k] @ root.T
        lam = lam_star @ (M @ inverse).T + normals[:, k : k + p] @ factor.T
        return jnp.concatenate([lam, lam_star], axis=1)

    root, inverse = jnp.asarray(setting.root), jnp.asarray(setting.inverse)
    if setting.frame is None or overlaps.blocks is None:
        return fields(normals, root, inverse, overlaps.M, factor), None
    own = jnp.moveaxis(normals[:, :-1].reshape(len(normals), setting.blocks, k + p), 1, 0)
    by_block = jax.vmap(fields)(own, root, inverse, jnp.asarray(overlaps.blocks.M), factor)
    by_block = jnp.sqrt(jnp.asarray(setting.frame.eigenvalues))[:, None, None] * by_block
    return jnp.sum(by_block, axis=0), jnp.moveaxis(by_block, 0, 1).reshape(len(normals), -1)


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
    state = (path.Q, path.M, path.a)
    here = setting.overlaps(*state)
    moments = setting.engine.moments(problem, here.of_fields)
    first = drift(problem, training, here, moments)

    def moved(time: Any, F: Change, size: Any = None, unit: Any = None) -> tuple[Overlaps, Array, Array]:
        Q, M, a = (x + time * f for x, f in zip(state, F, strict=True))
        if unit is not None:
            Q, M, a = (x + size * n for x, n in zip((Q, M, a), unit, strict=True))
        Q, M, factor, was_outside = positive(setting, Q, M, kept.lengths)
        return setting.overlaps(Q, M, a), factor, was_outside

    half, factor = here, positive(setting, path.Q, path.M, kept.lengths)[2]
    if setting.method == "heun":
        half, factor, _ = moved(0.5 * kept.step, first)
        is_needed = setting.samples > 0 or setting.frame is not None
        moments = setting.engine.moments(problem, half.of_fields) if is_needed else moments
    unit, covariance = shake(half, moments, factor)
    size = kept.amplitude * jnp.sqrt(kept.step)
    small = jax.tree.map(jnp.zeros_like, first)
    if setting.corrections:  # they are of order 1/d, and their change within a step is negligible
        small = corrections(problem, training, setting.engine, half, covariance, kept.amplitude * kept.amplitude)
    there, _, was_outside = moved(kept.step, jax.tree.map(jnp.add, first, small), size, unit)
    if setting.method == "heun":
        second = drift(problem, training, there, setting.engine.moments(problem, there.of_fields))
        rate = jax.tree.map(lambda x, y, more: 0.5 * (x + y) + more, first, second, small)
        there, _, was_outside = moved(kept.step, rate, size, unit)
    crossing = path.crossing
    if setting.watch.is_on:
        seen = there.of_fields
        risk = setting.engine.parts(problem, seen, ("excess_risk",))["excess_risk"] if setting.watch.risk else None
        crossing = setting.watch.crossed(there, risk, kept.thresholds, crossing, kept.offset + kept.step * at)
    outside = path.outside + jnp.where(was_outside, 1.0, 0.0)
    return OverlapPath(*changing(there), outside, crossing)


@KeptProgram
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

    leading = () if setting.frame is None else (setting.blocks,)
    shapes = ((*leading, p, p), (*leading, p, k), (p,), (), (setting.watch.size(k),))
    path = OverlapPath(*(real(shape) for shape in shapes))  # pyright: ignore[reportArgumentType]
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
