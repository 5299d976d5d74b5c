"""How the errors of integrals, of rounding and of integrators reach a trajectory."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.estimate import Estimate
from twolayer.problem import Overlaps

# Starts are moved by this much, a few times the rounding of a number of order one.
NUDGE = 1e-15


def nudged(starts: Overlaps, sign: float) -> Overlaps:
    """The starts moved by rounding, one way or the other: where a symmetry is unstable, the two fall to either side."""
    rng = np.random.default_rng(0)
    size = sign * NUDGE
    moved = [np.asarray(x) + size * rng.standard_normal(x.shape) * (1.0 + np.abs(x)) for x in (starts.Q, starts.M)]
    Q = 0.5 * (moved[0] + np.swapaxes(moved[0], -1, -2))
    return Overlaps(jnp.asarray(Q), jnp.asarray(moved[1]), starts.P, starts.a)


def carried(
    combine: Callable[[tuple[Any, ...]], Estimate],
    paths: Sequence[Any],
    others: Sequence[Any],
    judged: int = 0,
    least: tuple[Any, Any] = (0.0, 0.0),
) -> Estimate:
    """Value and error of trajectories (arrays: replicas, times, ...), which never shrinks with time.

    Parameters
    ----------
    combine
        How results of the variants of an engine become a value and an error.
    paths
        The trajectories with each variant.
    others
        Trajectories that only a numerical error tells apart from those with the variant ``judged``.
    judged
        The number of that variant.
    least
        The relative and the absolute error that the integrator has at least.

    A trajectory is NaN where it has ended.
    """
    combined = combine(tuple(paths))

    def error(engine_error: Any, first: Any, *others: Any) -> Any:
        # A neighbour that is not there any more has gone away without bound.
        gaps = [np.where(np.isnan(other) & ~np.isnan(first), np.inf, np.abs(first - other)) for other in others]
        # What has once gone apart may come together again at a common fixed point.
        return np.maximum.accumulate(engine_error + np.max(gaps, axis=0) + least[0] * np.abs(first) + least[1], axis=1)

    return Estimate(combined.value, jax.tree.map(error, combined.error, paths[judged], *others))


def largest(*errors: Any) -> np.ndarray:
    """The largest error of any entry at each replica and time."""
    flat = [np.abs(x).reshape(*x.shape[:2], -1).max(axis=2, initial=0.0) for x in errors]
    return np.max(flat, axis=0)
