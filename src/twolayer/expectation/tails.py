"""Whether the points of a rule reach where an average is made: fast growth moves it out to rare fields."""

import jax.numpy as jnp
import numpy as np

from twolayer.core.precision import double
from twolayer.problem import AbstractTarget


def tail_share(target: AbstractTarget, reach: float) -> float:
    r"""The part of :math:`E[f^2]`, along the axes and the diagonal, made by fields beyond ``reach`` deviations."""
    if target.k == 0:
        return 0.0
    z = np.linspace(-14.0, 14.0, 5601)
    directions = [*np.eye(target.k), np.ones(target.k) / np.sqrt(target.k)]
    shares = []
    for direction in directions:
        with double():
            values = np.asarray(target(jnp.asarray(z[:, None] * direction[None, :] @ _root(target))))
        with np.errstate(over="ignore", invalid="ignore"):
            density = np.exp(2.0 * np.log(np.abs(values) + 1e-300) - 0.5 * z**2)
        total = np.sum(density)
        if not np.isfinite(total):
            return 1.0
        # A target that vanishes along a line has no average there to miss.
        shares.append(float(np.sum(density[np.abs(z) > reach]) / total) if np.any(values != 0.0) else 0.0)
    return max(shares)


def _root(target: AbstractTarget) -> np.ndarray:
    return np.linalg.cholesky(np.asarray(target.target_overlaps)).T
