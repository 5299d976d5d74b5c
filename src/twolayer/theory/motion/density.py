r"""The flow of infinitely many units as a density: the continuity equation of `HDMF` for one target direction.

In the coordinates :math:`x = (b, s)` of `particles`, with the first variation V of the risk,

.. math::
    \partial_t \mu = \nabla \cdot (\mu \nabla V), \qquad V(b, s) = -E[r\,\bar\sigma(b\gamma, s)], \qquad
    r = f - \int \bar\sigma\,d\mu, \qquad \frac{dR}{dt} = -\int |\nabla V|^2 d\mu

The finite-volume method keeps the mass in each cell of a fixed grid: fluxes through the faces are upwind, of second
order where the density is smooth (slopes limited as by van Leer), and steps are those of Heun. What is lost by one cell
is gained by another, so that the mass is conserved to rounding; it never becomes negative. The error is of second order
in the size of the cells: half as many of them give an estimate of it.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from twolayer.core.errors import InvalidInput, NotApplicable
from twolayer.core.precision import double
from twolayer.core.types import Numbers
from twolayer.expectation.over_target import kind_of_rule, over_target
from twolayer.problem import Problem

# The fraction of a cell that mass crosses in one step; positivity needs at most a quarter in each of two directions.
COURANT = 0.25


class DensityPath(NamedTuple):
    """The mass in each cell at the given times, the excess risk, and the integral of the squared velocity."""

    mass: np.ndarray  # times, cells of b, cells of s
    risk: np.ndarray
    dissipation: np.ndarray


class _Grid:
    """The smoothed activation at the centres of the cells and the points of the target's field."""

    def __init__(self, problem: Problem, b: np.ndarray, s: np.ndarray, accuracy: float):
        middle_b, middle_s = 0.5 * (b[1:] + b[:-1]), 0.5 * (s[1:] + s[:-1])
        with double():
            rule, smoothing = over_target(problem, accuracy, padded=False).members[0]
            u = middle_b[:, None, None] * np.asarray(rule.points[:, 0])
            u, spread = np.broadcast_arrays(u, middle_s[:, None])
            self.values = np.asarray(smoothing.value(jnp.asarray(u), jnp.asarray(spread)))
        self.weights, self.target, self.rest = (np.asarray(x) for x in (rule.weights, rule.values, rule.rest))
        self.sizes = float(b[1] - b[0]), float(s[1] - s[0])

    def velocities(self, mass: np.ndarray) -> tuple[list[np.ndarray], float]:
        """Return the velocities through the faces between cells along b and along s, and the risk."""
        residual = self.target - np.tensordot(mass, self.values, 2)
        potential = -self.values @ (self.weights * residual)
        risk = float(0.5 * self.weights @ residual**2 + self.rest)
        return [-np.diff(potential, axis=axis) / size for axis, size in enumerate(self.sizes)], risk

    def rate(self, mass: np.ndarray, velocities: list[np.ndarray]) -> np.ndarray:
        """Return the change of the mass in each cell per time."""
        change = np.zeros_like(mass)
        for axis, (velocity, size) in enumerate(zip(velocities, self.sizes, strict=True)):
            flux = np.moveaxis(_flux(np.moveaxis(mass, axis, 0), np.moveaxis(velocity, axis, 0)), 0, axis) / size
            wall = [(1, 1) if place == axis else (0, 0) for place in range(2)]
            change -= np.diff(np.pad(flux, wall), axis=axis)
        return change

    def dissipation(self, mass: np.ndarray, velocities: list[np.ndarray]) -> float:
        """Return the integral of the squared velocity over the mass, with the mean mass beside each face."""
        along, across = velocities
        return float(
            np.sum(along**2 * 0.5 * (mass[1:] + mass[:-1])) + np.sum(across**2 * 0.5 * (mass[:, 1:] + mass[:, :-1]))
        )


def _flux(mass: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the flux of mass through the faces along the first axis, times the size of a cell."""
    steps = np.diff(mass, axis=0)
    left, right = steps[:-1], steps[1:]
    product = left * right
    slopes = np.zeros_like(mass)  # the harmonic mean where both have one sign, else zero
    slopes[1:-1] = np.where(product > 0.0, 2.0 * product / np.where(product > 0.0, left + right, 1.0), 0.0)
    below, above = (mass + 0.5 * slopes)[:-1], (mass - 0.5 * slopes)[1:]
    return np.where(velocity > 0.0, velocity * below, velocity * above)


def follow_density(
    problem: Problem, mass: Numbers, b: Numbers, s: Numbers, times: Numbers, accuracy: float = 1e-6
) -> DensityPath:
    r"""Solve the continuity equation of the units on a grid, for one target direction.

    Parameters
    ----------
    problem
        The target and the activation; the units have output weights of one. The width of the student is not used.
    mass
        The mass of the units in each cell at time zero, of shape (cells of b, cells of s).
    b, s
        The edges of the cells, at equal distances: components along the target's direction, :math:`b = m/\sqrt P`, and
        lengths outside of it, :math:`s = \sqrt q`. No mass leaves the grid.
    times
        The times at which the mass is saved; the first one is that of the start.
    accuracy
        The relative accuracy for which the rule over the target's field is sized.
    """
    mass, b, s, times = (np.asarray(x, dtype=np.float64) for x in (mass, b, s, times))
    if problem.k != 1:
        raise NotApplicable(f"A density on a grid needs a target of one direction, but k is {problem.k}.")
    kind, reason = kind_of_rule(problem)
    if not kind:
        raise NotApplicable(f"A density on a grid needs a rule for averages over the target's field: {reason}.")
    if mass.shape != (b.size - 1, s.size - 1) or np.any(mass < 0.0):
        raise InvalidInput(
            f"Argument `mass` must be non-negative and of shape {(b.size - 1, s.size - 1)}, but has {mass.shape}."
        )
    for name, edges in (("b", b), ("s", s)):
        if not np.allclose(np.diff(edges), edges[1] - edges[0], rtol=1e-6, atol=0.0):
            raise InvalidInput(f"Argument `{name}` must be edges at equal distances.")
    grid = _Grid(problem, b, s, accuracy)
    saved: list[tuple[np.ndarray, float, float]] = []
    now = float(times[0])
    for end in times:
        while now < end:
            velocities, _ = grid.velocities(mass)
            fastest = max(np.max(np.abs(v)) / size for v, size in zip(velocities, grid.sizes, strict=True))
            step = min(float(end) - now, COURANT / max(fastest, 1e-300))
            ahead = mass + step * grid.rate(mass, velocities)
            mass = 0.5 * (mass + ahead + step * grid.rate(ahead, grid.velocities(ahead)[0]))
            now = float(end) if step == float(end) - now else now + step
        velocities, risk = grid.velocities(mass)
        saved.append((mass, risk, grid.dissipation(mass, velocities)))
    return DensityPath(*(np.array(part) for part in zip(*saved, strict=True)))
