r"""Closed forms for students and targets that are sums of waves :math:`A + B \cos \kappa h + C \sin \kappa h`.

Products of waves are sums of exponentials of the fields, whose averages are known for rows of any length,

.. math:: E[e^{i q \cdot \ell}] = e^{-q^T \Omega q / 2}, \qquad
          E[\ell\,e^{i q \cdot \ell}] = i\,\Omega q\,e^{-q^T \Omega q / 2}

while every rule with nodes is lost once a row is long. Waves are recognised by their values, on the grid on which
`features` looks for the features of any other function.
"""

import abc
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.break_points import cached_breaks, compiled, grid
from twolayer.expectation.engine import ROUNDING, AbstractEngine, Suits, by_coarser, with_doubts
from twolayer.expectation.gaussian_moments import MOMENTS, student_weights
from twolayer.problem import AbstractActivation, Cosine, Overlaps, Problem
from twolayer.problem.ridge_form import Along, ridges_of

# Units of the student and of the target together: the number of exponentials grows with its fourth power.
MOST_UNITS = 8
# A wave is looked for at these equal distances, and its number is refined so often.
SPACING, NUMBER, REFINED = 0.02, 4096, 4
# Values are those of a wave if they differ by rounding: of the value, and of the phase.
OF_VALUE, OF_PHASE = 1e-13, 4e-15
# Rounding of the exponents, relative to the sum of the moduli of their terms.
EPS = 4.0 * float(np.finfo(float).eps)


class Wave(NamedTuple):
    """The function ``mean + Re(amplitude exp(i number x))``."""

    mean: float
    amplitude: complex
    number: float

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """The coefficients and the numbers of the three exponentials."""
        half = 0.5 * self.amplitude
        return np.array([self.mean, half, half.conjugate()]), np.array([0.0, self.number, -self.number])


def _fitted(values: Callable[[np.ndarray], np.ndarray]) -> Wave | None:
    """Return the wave through the values of a function, or None if there is none."""
    x = SPACING * (np.arange(NUMBER) - NUMBER // 2)
    g = values(x)[:, 0]
    if not np.all(np.isfinite(g)) or np.ptp(g) <= OF_VALUE * np.max(np.abs(g)):
        return None
    neighbours = np.linalg.lstsq(np.stack([g[1:-1], np.ones(NUMBER - 2)], axis=1), g[2:] + g[:-2], rcond=None)[0]
    if not abs(neighbours[0]) < 2.0:
        return None
    number, cosine, sine, mean = float(np.arccos(0.5 * neighbours[0]) / SPACING), 0.0, 0.0, 0.0
    for _ in range(REFINED):
        c, s = np.cos(number * x), np.sin(number * x)
        mean, cosine, sine = np.linalg.lstsq(np.stack([np.ones(NUMBER), c, s], axis=1), g, rcond=None)[0]
        tangent = x * (sine * c - cosine * s)
        columns = np.stack([np.ones(NUMBER), c, s, tangent], axis=1)
        number += float(np.linalg.lstsq(columns, g - mean - cosine * c - sine * s, rcond=None)[0][3])
    return Wave(float(mean), complex(cosine, -sine), number)


def _is_wave(wave: Wave, values: Callable[[np.ndarray], np.ndarray]) -> bool:
    x = grid()
    phase = wave.amplitude * np.exp(1j * wave.number * x)
    truth = np.stack([wave.mean + phase.real, wave.number * (1j * phase).real], axis=1)
    given = values(x)
    sizes = np.array([abs(wave.mean) + abs(wave.amplitude), wave.number * abs(wave.amplitude)])[: given.shape[1]]
    allowed = (OF_VALUE + OF_PHASE * wave.number * np.abs(x))[:, None] * sizes
    return bool(np.all(np.abs(given - truth[:, : given.shape[1]]) <= allowed))


def with_slope(function: AbstractActivation | Along) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function on NumPy arrays, with the slope of an activation in a second column."""

    def columns(x: Array) -> Array:
        slope = [function.derivative(x)] if isinstance(function, AbstractActivation) else []
        return jnp.stack([function(x), *slope], axis=1)

    return compiled(columns)


@lru_cache(maxsize=64)
def _wave_of(function: AbstractActivation | Along) -> Wave | None:
    values = with_slope(function)
    wave = _fitted(values)
    return wave if wave is not None and _is_wave(wave, values) else None


def wave_of(function: AbstractActivation | Along) -> Wave | None:
    """Return the wave that a function is, with the slope of an activation; None if it is none."""
    if isinstance(function, Cosine):  # also one that oscillates faster than a grid shows
        return Wave(0.0, complex(np.exp(1j * function.phase)), function.frequency)
    degree = function.coefficients if isinstance(function, AbstractActivation) else function.degree
    return None if degree is not None or function.kinks else cached_breaks(_wave_of, function)


class _Sum(NamedTuple):
    """A sum of exponentials of the fields: coefficients and, for each, the vector q."""

    coefficients: Array
    vectors: Float[np.ndarray, "terms n"]

    def times(self, other: "_Sum") -> "_Sum":
        vectors = self.vectors[:, None, :] + other.vectors[None, :, :]
        return _Sum(
            jnp.outer(self.coefficients, other.coefficients).ravel(), vectors.reshape(-1, self.vectors.shape[1])
        )


class AbstractExponentials(AbstractEngine):
    """Base class: averages of products of exponentials of the fields, whose only error is rounding.

    A second variant adds a bound on the rounding to the moments.
    """

    # One adds the bound on rounding, zero does not.
    bound: Any = 0.0

    # What a student is not that is refused, what targets are sums of, and how many functions there may be together.
    otherwise: ClassVar[str]
    several: ClassVar[str]
    most_units: ClassVar[int]

    floor: ClassVar[float] = ROUNDING

    @classmethod
    @abc.abstractmethod
    def form_of(cls, function: AbstractActivation | Along) -> tuple[object, ...] | None:
        """Return the exponentials of which a function is the sum, or None if it is none."""

    @property
    def rtol(self) -> float:
        return 0.0

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if moment not in MOMENTS:
            return Suits(False, "no closed form for four displacements")
        if cls.form_of(problem.student.activation) is None:
            return Suits(False, f"the student is {problem.student.activation}, {cls.otherwise}")
        ridges = ridges_of(problem.target)
        if ridges is None or any(cls.form_of(ridge.function) is None for ridge in ridges):
            return Suits(False, f"the target is not a sum of {cls.several}")
        number = problem.p + len(ridges)
        if number > cls.most_units:
            return Suits(False, f"{number} units of student and target, limit {cls.most_units}")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "AbstractExponentials":
        return cls(np.asarray(0.0))

    def variants(self) -> tuple[AbstractEngine, ...]:
        return self, type(self)(np.asarray(1.0))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        return with_doubts(by_coarser(results[:1], self.floor), results[0], results[1:])


class Waves(AbstractExponentials):
    """Averages of products of waves, by the characteristic function of the fields."""

    otherwise: ClassVar[str] = "not a wave"
    several: ClassVar[str] = "waves"
    most_units: ClassVar[int] = MOST_UNITS

    @classmethod
    def form_of(cls, function: AbstractActivation | Along) -> Wave | None:
        return wave_of(function)

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        wave, omega, p, n = wave_of(problem.student.activation), overlaps.omega, problem.p, problem.p + problem.k
        assert wave is not None
        coefficients, numbers = wave.parts
        axes = np.eye(n)[:p]
        units = [_Sum(jnp.asarray(coefficients), np.outer(numbers, axis)) for axis in axes]
        slopes = [_Sum(jnp.asarray(1j * numbers * coefficients), np.outer(numbers, axis)) for axis in axes]
        displacement = _displacement(problem, overlaps, units)
        moments: dict[str, Callable[[], Array]] = {
            "excess_risk": lambda: 0.5 * self._average(displacement.times(displacement), omega),
            "chi": lambda: jnp.stack([self._average(unit.times(displacement), omega) for unit in units]),
            "v": lambda: jnp.stack([self._with_fields(slope.times(displacement), omega) for slope in slopes]),
            "phi_hd": lambda: self._two_slopes(problem, slopes, displacement, omega),
        }
        return {name: moments[name]() for name in wanted}

    def _two_slopes(self, problem: Problem, slopes: list[_Sum], displacement: _Sum, omega: Array) -> Array:
        square = displacement.times(displacement)
        with_noise = jnp.append(square.coefficients, problem.noise)
        whole = _Sum(with_noise, np.concatenate([square.vectors, np.zeros((1, len(omega)))]))
        first, second = np.triu_indices(problem.p)
        entries = jnp.stack(
            [self._average(slopes[j].times(slopes[l]).times(whole), omega) for j, l in zip(first, second, strict=True)]
        )
        return jnp.zeros((problem.p, problem.p)).at[first, second].set(entries).at[second, first].set(entries)

    def _terms(self, total: _Sum, omega: Array) -> tuple[Array, Array]:
        """Return the averages of the exponentials with their coefficients, and bounds on their errors."""
        q = jnp.asarray(total.vectors)
        terms = total.coefficients * jnp.exp(-0.5 * jnp.sum((q @ omega) * q, axis=1))
        sizes = jnp.sum((jnp.abs(q) @ jnp.abs(omega)) * jnp.abs(q), axis=1)
        # What a function may differ from its wave by counts for each term, however small its average is.
        return terms, EPS * (4.0 + sizes) * jnp.abs(terms) + OF_VALUE * jnp.abs(total.coefficients)

    def _average(self, total: _Sum, omega: Array) -> Float[Array, ""]:
        terms, errors = self._terms(total, omega)
        return jnp.sum(terms.real) + self.bound * jnp.sum(errors)

    def _with_fields(self, total: _Sum, omega: Array) -> Float[Array, " n"]:
        terms, errors = self._terms(total, omega)
        q = jnp.asarray(total.vectors)
        lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(omega), 0.0))
        rounding = EPS * jnp.abs(terms) @ (jnp.abs(q) @ jnp.abs(omega))
        missed = errors @ jnp.abs(q @ omega) + jnp.sum(errors) * lengths + rounding
        return (1j * terms).real @ (q @ omega) + self.bound * missed

    @property
    def name(self) -> str:
        return "closed form (waves)"


def _displacement(problem: Problem, overlaps: Overlaps, units: list[_Sum]) -> _Sum:
    weights = student_weights(problem, overlaps.a)
    sums = [_Sum(-weights[j] * unit.coefficients, unit.vectors) for j, unit in enumerate(units)]
    ridges = ridges_of(problem.target)
    assert ridges is not None
    for ridge in ridges:
        wave = wave_of(ridge.function)
        assert wave is not None
        coefficients, numbers = wave.parts
        direction = np.concatenate([np.zeros(problem.p), ridge.direction])
        sums.append(_Sum(ridge.weight * jnp.asarray(coefficients), np.outer(numbers, direction)))
    vectors = np.concatenate([part.vectors for part in sums])
    return _Sum(jnp.concatenate([part.coefficients for part in sums]), vectors)
