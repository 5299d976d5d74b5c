r"""Closed forms for students and targets that are sums of Gaussian bumps :math:`A e^{-(h - c)^2 / 2 s^2}` and waves.

Their products are exponentials of quadratic forms, which turn the Gaussian distribution of the fields into another,

.. math:: E\big[e^{-\frac12 h^T A h + q \cdot h}\big] = \frac{e^{\frac12 q^T S q}}{\sqrt{\det(1 + A K)}}, \qquad
          S = (K^{-1} + A)^{-1}, \qquad E_A[h] = S q, \qquad \mathrm{Cov}_A[h] = S

with the covariance K of the fields of all units and a diagonal A. A slope is a linear function times the exponential.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from twolayer.expectation.break_points import cached_breaks, grid
from twolayer.expectation.closed.waves import EPS, OF_VALUE, AbstractExponentials, wave_of, with_slope
from twolayer.expectation.gaussian_moments import student_weights
from twolayer.problem import AbstractActivation, Overlaps, Problem
from twolayer.problem.activations.found_kinks import rounded
from twolayer.problem.ridge_form import Along, ridges_of

# Units of the student and of the target together: the number of products grows with its fourth power.
MOST_UNITS = 6
# A bump is far smaller than its height here, and its logarithm is a parabola where it is larger than this fraction.
OUTSIDE, SEEN = 300.0, 1e-6
# So often the fit of a bump is refined.
REFINED = 6
# Rounding of a bump relative to its height, for each unit of its logarithm.
OF_LOGARITHM = 4e-16


class GaussianSum(NamedTuple):
    """A function ``mean + sum of c exp(-alpha x^2 / 2 + beta x + constant)``, with the largest value of each term."""

    mean: float
    c: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    constant: np.ndarray
    height: np.ndarray
    steepness: np.ndarray


def _bump(values: Callable[[np.ndarray], np.ndarray]) -> GaussianSum | None:
    """Return the bump through the values of a function, or None if there is none."""
    x = grid()
    given = values(x)
    g, edge = given[:, 0], values(np.array([-OUTSIDE, OUTSIDE]))[:, 0]
    if not np.all(np.isfinite(given)) or edge[0] != edge[1]:
        return None
    mean = float(edge[0])
    bare = g - mean
    peak = bare[np.argmax(np.abs(bare))]
    near = np.abs(bare) > SEEN * abs(peak)
    if peak == 0.0 or np.any(bare[near] / peak <= 0.0) or np.count_nonzero(near) < 8:
        return None
    middle = x[near][len(x[near]) // 2]
    a, b, c = np.polyfit(x[near] - middle, np.log(bare[near] / peak), 2, w=bare[near] / peak)
    if not a < 0.0:
        return None
    fit = np.array([peak * np.exp(c - 0.25 * b**2 / a), -2.0 * a, middle - 0.5 * b / a])
    for _ in range(REFINED):
        gap, bell = x[near] - fit[2], np.exp(-0.5 * fit[1] * (x[near] - fit[2]) ** 2)
        columns = np.stack([bell, -0.5 * fit[0] * gap**2 * bell, fit[0] * fit[1] * gap * bell], axis=1)
        fit = fit + np.linalg.lstsq(columns, bare[near] - fit[0] * bell, rcond=None)[0]
    height, alpha, centre = rounded(fit, 1e-14).tolist()
    logarithm = 0.5 * alpha * (x - centre) ** 2
    bell = height * np.exp(-logarithm)
    truth = np.stack([mean + bell, -alpha * (x - centre) * bell], axis=1)[:, : given.shape[1]]
    sizes = np.array([abs(mean) + abs(height), np.sqrt(alpha) * abs(height)])[: given.shape[1]]
    allowed = OF_VALUE * sizes + (OF_LOGARITHM * (1.0 + logarithm) * np.exp(-logarithm))[:, None] * sizes
    if not np.all(np.abs(given - truth) <= allowed):
        return None
    one = np.ones(1)
    return GaussianSum(
        mean, height * one, alpha * one, alpha * centre * one + 0j, -0.5 * alpha * centre**2 * one,
        abs(height) * one, np.sqrt(alpha) * one,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _sum_of(function: AbstractActivation | Along) -> GaussianSum | None:
    wave = wave_of(function)
    if wave is not None:
        half, number = 0.5 * wave.amplitude, wave.number
        return GaussianSum(
            wave.mean, np.array([half, half.conjugate()]), np.zeros(2), np.array([1j, -1j]) * number, np.zeros(2),
            np.full(2, abs(half)), np.full(2, number),
        )  # fmt: skip

    return _bump(with_slope(function))


def gaussian_sum(function: AbstractActivation | Along) -> GaussianSum | None:
    """Return the bump or wave that a function is; None if it is neither."""
    degree = function.coefficients if isinstance(function, AbstractActivation) else function.degree
    return None if degree is not None or function.kinks else cached_breaks(_sum_of, function)


class _Terms(NamedTuple):
    """Exponentials of the units' fields: coefficients, the diagonals of A, the vectors q, constants, largest values."""

    c: Array
    A: Float[np.ndarray, "terms units"]
    q: np.ndarray
    constant: np.ndarray
    size: Array

    def times(self, other: "_Terms") -> "_Terms":
        def every(x: Any, y: Any) -> Any:
            return (x[:, None] + y[None]).reshape(-1, *x.shape[1:])

        c, size = (jnp.outer(x, y).ravel() for x, y in ((self.c, other.c), (self.size, other.size)))
        return _Terms(c, every(self.A, other.A), every(self.q, other.q), every(self.constant, other.constant), size)


class Bumps(AbstractExponentials):
    """Averages of products of Gaussian bumps and waves, by the Gaussian distributions that they lead to."""

    otherwise: ClassVar[str] = "neither a Gaussian bump nor a wave"
    several: ClassVar[str] = "Gaussian bumps and waves"
    most_units: ClassVar[int] = MOST_UNITS

    @classmethod
    def form_of(cls, function: AbstractActivation | Along) -> GaussianSum | None:
        return gaussian_sum(function)

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        averages = _BumpAverages(problem, overlaps, self.bound)
        moments = {
            "excess_risk": averages.excess_risk,
            "chi": averages.chi,
            "v": averages.v,
            "phi_hd": averages.phi_hd,
        }
        return {name: moments[name]() for name in wanted}

    @property
    def name(self) -> str:
        return "closed form (Gaussian bumps and waves)"


class _BumpAverages:
    """The averages of one problem at given overlaps."""

    def __init__(self, problem: Problem, overlaps: Overlaps, bound: Any):
        self.problem, self.p, self.bound = problem, problem.p, jnp.asarray(bound)
        ridges = ridges_of(problem.target)
        assert ridges is not None
        k = problem.k
        rows = [np.concatenate([np.eye(self.p)[j], np.zeros(k)]) for j in range(self.p)]
        rows += [np.concatenate([np.zeros(self.p), ridge.direction]) for ridge in ridges]
        directions = jnp.asarray(np.array(rows))
        self.number = len(rows)
        # Covariances of the units' fields with one another and with the fields of the problem.
        to_problem = directions @ overlaps.omega
        self.K, self.with_problem = to_problem @ directions.T, to_problem
        student = gaussian_sum(problem.student.activation)
        assert student is not None
        self.student = student
        self.lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(overlaps.omega), 0.0))
        weights = -student_weights(problem, overlaps.a)
        units = [(weights[j], j, student) for j in range(self.p)]
        for u, ridge in enumerate(ridges, start=self.p):
            function = gaussian_sum(ridge.function)
            assert function is not None
            units.append((jnp.asarray(ridge.weight), u, function))
        offset = sum(weight * function.mean for weight, _, function in units)
        parts = [self._terms(function, u, weight) for weight, u, function in units]
        self.displacement = _joined([self._constant(offset), *parts])

    def _constant(self, value: Any) -> _Terms:
        zeros, number = np.zeros((1, self.number)), jnp.asarray(value)[None]
        return _Terms(number + 0j, zeros, zeros + 0j, np.zeros(1), jnp.abs(number))

    def _terms(self, function: GaussianSum, unit: int, weight: Any, of_slope: bool = False) -> _Terms:
        axis = np.eye(self.number)[unit]
        height = function.height * (function.steepness if of_slope else 1.0)
        c, size = weight * jnp.asarray(function.c + 0j), jnp.abs(weight) * jnp.asarray(height)
        return _Terms(c, np.outer(function.alpha, axis), np.outer(function.beta, axis), function.constant, size)

    def _tilted(self, terms: _Terms) -> tuple[Array, Array, Array, Array, Array]:
        """Return values, means and covariances of the units' fields with all fields, and errors of the values."""
        K, both = self.K, jnp.concatenate([self.K, self.with_problem], axis=1)

        def one(A: Array, q: Array) -> tuple[Array, Array, Array]:
            root = jnp.sqrt(A)
            L = jnp.linalg.cholesky(jnp.eye(len(A)) + root[:, None] * K * root[None, :])
            half = solve_triangular(L, root[:, None] * both, lower=True)
            S = both - half[:, : len(A)].T @ half
            return S, q @ S, jnp.sum(jnp.log(jnp.diagonal(L)))

        A, q = jnp.asarray(terms.A), jnp.asarray(terms.q)
        S, mean, logarithm = jax.vmap(one)(A, q)
        exponent = 0.5 * jnp.sum(mean[:, : self.number] * q, axis=1) + jnp.asarray(terms.constant) - logarithm
        values = terms.c * jnp.exp(exponent)
        sizes = jnp.sum((jnp.abs(q) @ jnp.abs(K)) * jnp.abs(q), axis=1) + jnp.abs(jnp.asarray(terms.constant))
        sizes = sizes + A @ jnp.diagonal(K)
        # What a function may differ from its bump by counts for each term, however small its average is.
        return values, mean, S, EPS * (16.0 + sizes) * jnp.abs(values), OF_VALUE * terms.size

    def _average(self, terms: _Terms) -> Float[Array, ""]:
        values, _, _, errors, missed = self._tilted(terms)
        return jnp.sum(values.real) + self.bound * jnp.sum(errors + missed)

    def excess_risk(self) -> Float[Array, ""]:
        return 0.5 * self._average(self.displacement.times(self.displacement))

    def chi(self) -> Float[Array, " p"]:
        units = [_joined([self._constant(self.student.mean), self._terms(self.student, j, 1.0)]) for j in range(self.p)]
        return jnp.stack([self._average(unit.times(self.displacement)) for unit in units])

    def _slope(self, j: int, mean: Array, number: int, before: int) -> tuple[Array, Array]:
        """Return the linear factors of a slope and its coefficients of the field, for each term of a product."""
        repeats = number // (len(self.student.c) * before)
        beta, alpha = (
            jnp.asarray(np.tile(np.repeat(x, repeats), before)) for x in (self.student.beta, self.student.alpha)
        )
        return beta - alpha * mean[:, j], -alpha

    def v(self) -> Float[Array, "p n"]:
        rows = []
        for j in range(self.p):
            terms = self._terms(self.student, j, 1.0, of_slope=True).times(self.displacement)
            values, mean, S, errors, missed = self._tilted(terms)
            factor, along = self._slope(j, mean, len(values), 1)
            fields, shared = mean[:, self.number :], S[:, j, self.number :]
            row = jnp.sum((values[:, None] * (factor[:, None] * fields + along[:, None] * shared)).real, axis=0)
            size = jnp.abs(factor)[:, None] * jnp.abs(fields) + jnp.abs(along)[:, None] * jnp.abs(shared)
            size = size + (jnp.abs(factor) + jnp.abs(along) * self.lengths[j])[:, None] * self.lengths[None, :]
            rows.append(row + self.bound * (errors @ size + jnp.sum(missed) * self.lengths))
        return jnp.stack(rows)

    def phi_hd(self) -> Float[Array, "p p"]:
        square = self.displacement.times(self.displacement)
        whole = _joined([square, self._constant(self.problem.noise)])
        entries, (rows, columns) = [], np.triu_indices(self.p)
        for j, l in zip(rows.tolist(), columns.tolist(), strict=True):
            first, second = (self._terms(self.student, unit, 1.0, of_slope=True) for unit in (j, l))
            terms = first.times(second.times(whole))
            values, mean, S, errors, missed = self._tilted(terms)
            (one, along), (other, across) = (
                self._slope(unit, mean, len(values), before) for unit, before in ((j, 1), (l, len(self.student.c)))
            )
            total = jnp.sum((values * (one * other + along * across * S[:, j, l])).real)
            sizes = [
                jnp.abs(x) + jnp.abs(y) * self.lengths[unit] for x, y, unit in ((one, along, j), (other, across, l))
            ]
            entries.append(total + self.bound * (errors @ (sizes[0] * sizes[1]) + jnp.sum(missed)))
        values = jnp.stack(entries)
        return jnp.zeros((self.p, self.p)).at[rows, columns].set(values).at[columns, rows].set(values)


def _joined(parts: list[_Terms]) -> _Terms:
    c, size = (jnp.concatenate([getattr(part, name) for part in parts]) for name in ("c", "size"))
    A, q, constant = (np.concatenate([getattr(part, name) for part in parts]) for name in ("A", "q", "constant"))
    return _Terms(c, A, q, constant, size)
