"""Errors of trajectories, from the errors of their integrals, of rounding and of the integrator."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from twolayer.core.estimate import Estimate
from twolayer.problem import BlockOverlaps, Overlaps

# Starts are moved by this much, a few times the rounding of a number of order one.
NUDGE = 1e-15


def nudged(starts: Overlaps, sign: float) -> Overlaps:
    """The starts moved by the size of rounding, in the direction of ``sign``.

    Where a symmetry is unstable, starts that are moved in opposite directions lead to different ends.
    """
    if starts.blocks is not None:
        blocks = starts.blocks
        Q, M = nudged_overlaps(np.asarray(blocks.Q), np.asarray(blocks.M), sign)
        moved = BlockOverlaps(jnp.asarray(Q), jnp.asarray(M), blocks.frame)
        return Overlaps.by_block(moved, starts.a)
    Q, M = nudged_overlaps(np.asarray(starts.Q), np.asarray(starts.M), sign)
    return Overlaps(jax.device_put(Q), jax.device_put(M), starts.P, starts.a)


def nudged_overlaps(Q: np.ndarray, M: np.ndarray, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """The overlaps (replicas, ...) moved as by `nudged`; axes before those have starts that are moved alike."""
    rng = np.random.default_rng(0)
    size = sign * NUDGE
    moved = [x + size * rng.standard_normal(x.shape[-3:]) * (1.0 + np.abs(x)) for x in (Q, M)]
    return 0.5 * (moved[0] + np.swapaxes(moved[0], -1, -2)), moved[1]


def carried(
    combine: Callable[[tuple[Any, ...]], Estimate],
    paths: Sequence[Any],
    others: Sequence[Any],
    judged: int = 0,
    least: tuple[Any, Any] = (0.0, 0.0),
) -> Estimate:
    """Value and error of trajectories (arrays: replicas, times, ...); the error never shrinks with time.

    Parameters
    ----------
    combine
        Combines the results of all variants of an engine to a value and an error.
    paths
        The trajectories with each variant.
    others
        Trajectories that differ from that of the variant ``judged`` by numerical errors only.
    judged
        The index of that variant.
    least
        Lower bounds on the relative and the absolute error of the integrator.

    A trajectory is NaN after its end.
    """
    combined = combine(tuple(paths))

    def error(engine_error: Any, first: Any, *others: Any) -> Any:
        # Where another trajectory has ended, it has diverged: its distance is infinite, also that of another variant.
        engine_error = np.where(np.isnan(engine_error) & ~np.isnan(first), np.inf, engine_error)
        gaps = [np.where(np.isnan(other) & ~np.isnan(first), np.inf, np.abs(first - other)) for other in others]
        gaps.append(np.zeros_like(first))
        # Trajectories that have separated may meet again at a fixed point, so the error keeps its maximum.
        return np.maximum.accumulate(engine_error + np.max(gaps, axis=0) + least[0] * np.abs(first) + least[1], axis=1)

    return Estimate(combined.value, jax.tree.map(error, combined.error, paths[judged], *others))


def largest(*errors: np.ndarray | Array) -> np.ndarray:
    """The largest error of any entry at each replica and time."""
    flat = [np.abs(x).reshape(*x.shape[:2], -1).max(axis=2, initial=0.0) for x in errors]
    return np.max(flat, axis=0)
