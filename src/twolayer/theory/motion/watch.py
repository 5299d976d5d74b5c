"""Thresholds on the excess risk and on the overlaps with the target, watched at every step of a discrete account."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.description import Plan
from twolayer.problem import Overlaps


class Watch(eqx.Module):
    """What a plan watches for."""

    risk: bool = eqx.field(static=True)
    overlaps: bool = eqx.field(static=True)

    @classmethod
    def of(cls, plan: Plan) -> "Watch":
        """What the plan asks for."""
        return cls(plan.risk_threshold is not None, plan.overlap_threshold is not None)

    @property
    def is_on(self) -> bool:
        """Whether there is anything to watch for."""
        return self.risk or self.overlaps

    @staticmethod
    def thresholds(plan: Plan) -> Float[np.ndarray, "replicas 2"]:
        """The thresholds of each replica, on the risk and on the overlaps."""
        both = (plan.risk_threshold, plan.overlap_threshold)
        return np.stack([np.broadcast_to(0.0 if x is None else x, plan.replicas) for x in both], axis=1)

    def crossed(
        self,
        overlaps: Overlaps,
        risk: Float[Array, ""],
        thresholds: Float[Array, " 2"],
        crossing: Float[Array, " n"],
        at: Any,
    ) -> Float[Array, " n"]:
        """When the risk and each overlap first reached its threshold, -1 before: ``at`` for those that do now.

        The overlap with a target direction is the largest cosine of a neuron with it, of either sign.
        """
        if not self.is_on:
            return crossing
        k = overlaps.M.shape[1]
        by_risk = (thresholds[0] - risk)[None] if self.risk else jnp.full(1, -1.0)
        by_overlap = jnp.full(k, -1.0)
        if self.overlaps:  # squares, so that no root is taken
            lengths = jnp.diagonal(overlaps.Q)[:, None] * jnp.diagonal(overlaps.P)[None, :]
            by_overlap = jnp.max(overlaps.M**2 - thresholds[1] ** 2 * lengths, axis=0)
        reached = jnp.concatenate([by_risk, by_overlap]) >= 0.0
        return jnp.where((crossing < 0.0) & reached, at, crossing)


def as_times(crossing: Any, clock: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The times of the risk and of the overlaps (replicas, k), NaN where never; a clock converts steps to times."""
    crossing = np.asarray(crossing)
    times = np.where(crossing >= 0.0, crossing if clock is None else clock.time(crossing), np.nan)
    return times[:, 0], times[:, 1:]
