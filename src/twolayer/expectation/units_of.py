"""The displacement of a problem as a sum of functions of one field each: student's units, then the target's."""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.precision import double
from twolayer.expectation.break_points import WHOLE, Breaks, activation_breaks, cached_breaks, line_breaks
from twolayer.expectation.closed.averaged import closed_averages
from twolayer.expectation.conditional import Kind
from twolayer.expectation.gaussian_moments import student_weights
from twolayer.problem import AbstractActivation, Overlaps, Problem
from twolayer.problem.ridge_form import Along, Ridge, ridges_of

# A function jumps if its values on both sides of a kink, at this distance, differ by more than this.
BESIDE, JUMP = 1e-9, 1e-6


def unit_kinds(problem: Problem) -> tuple[Kind, ...] | None:
    """Return the kinds of functions, the student's first; None if the target is not a sum of such functions."""
    ridges = _ordered(problem)
    if ridges is None:
        return None
    kinds, first = [], 0
    for function, members in ridges:
        number = len(members) + (0 if kinds else problem.p)
        kinds.append(_kind(function, tuple(range(first, first + number))))
        first += number
    return tuple(kinds)


def sum_of(problem: Problem) -> tuple[np.ndarray, Any]:
    """Return directions and weights of the target's functions, in the order of the kinds."""
    ridges = _ordered(problem)
    assert ridges is not None
    members = [ridge for _, group in ridges for ridge in group]
    directions = np.array([ridge.direction for ridge in members]).reshape(len(members), problem.k)
    return directions, jnp.stack([jnp.asarray(ridge.weight) for ridge in members])


class Fields(NamedTuple):
    """The fields of all units: their covariance, that with the fields of the problem, and weights."""

    covariance: Float[Array, "u u"]
    with_problem: Float[Array, "u n"]
    weights: Float[Array, " u"]


def fields_of(problem: Problem, overlaps: Overlaps) -> Fields:
    """Return the fields of the student's units and of the target's functions, in the order of the kinds."""
    directions, weights = sum_of(problem)
    omega, p, k = overlaps.omega, problem.p, problem.k
    to_units = jnp.asarray(np.block([[np.eye(p), np.zeros((p, k))], [np.zeros((len(directions), p)), directions]]))
    with_problem = to_units @ omega
    c = jnp.concatenate([-student_weights(problem, overlaps.a), jnp.asarray(weights, omega.dtype)])
    return Fields(with_problem @ to_units.T, with_problem, c)


class Kernels(NamedTuple):
    """The kernels of all units; kinks are kernels without a width of their own, at which rules may break."""

    owner: Any
    centres: Any
    widths: Any
    breaks: np.ndarray

    @classmethod
    def of(cls, kinds: tuple[Kind, ...]) -> "Kernels":
        rows = [(u, *place) for kind in kinds for u in kind.units for place in places_of(kind)]
        owner, centres, widths = np.array(rows).reshape(-1, 3).T
        return cls(owner.astype(int), centres, widths, np.flatnonzero(widths == 0.0))

    def along_one(self) -> "Kernels":
        """Return them for the field of one unit, along which all kinks at zero are at one place."""
        is_zero = self.centres[self.breaks] == 0.0
        return self._replace(breaks=np.append(self.breaks[~is_zero], self.breaks[is_zero][:1]))

    def given(self, unit: Array, number: int) -> "Kernels":
        """Return them without those of a unit of the student, which has this number of them, as all others have."""
        rest = jnp.arange(len(self.owner) - number)
        kept = rest + jnp.where(rest >= number * unit, number, 0)
        breaks = np.flatnonzero(self.widths[number:] == 0.0)
        owner, centres, widths = (jnp.asarray(part)[kept] for part in self[:3])
        return Kernels(owner, centres, widths, breaks)


def moved(kind: Kind, steps: int) -> Kind:
    """Return a kind whose units have other numbers, without those that would be negative."""
    return kind._replace(units=tuple(u + steps for u in kind.units if u + steps >= 0))


def places_of(kind: Kind) -> list[tuple[float, float]]:
    """Return centre and width of the kernels of a unit."""
    features = kind.features
    return [*zip(features.centres, features.widths, strict=True), *((kink, 0.0) for kink in features.kinks)]


def _ordered(problem: Problem) -> list[tuple[Any, list[Ridge]]] | None:
    """Return the target's functions, each with its terms; the first one is the student's, which may have none."""
    ridges = ridges_of(problem.target)
    if ridges is None:
        return None
    groups: list[tuple[Any, list[Ridge]]] = [(problem.student.activation, [])]
    for ridge in ridges:
        for function, members in groups:
            if function is ridge.function or _is_same(function, ridge.function):
                members.append(ridge)
                break
        else:
            groups.append((ridge.function, [ridge]))
    return groups


def _is_same(first: Any, second: Any) -> bool:
    """Whether two activations are the same function, as far as can be told."""
    try:
        return isinstance(first, AbstractActivation) and hash(first) == hash(second) and bool(first == second)
    except TypeError:  # arrays in their fields
        return False


def _kind(function: AbstractActivation | Along, units: tuple[int, ...]) -> Kind:
    closed = closed_averages(function)
    if isinstance(function, AbstractActivation):
        breaks, coefficients = activation_breaks(function), function.coefficients
        number = None if coefficients is None else len(coefficients)
        return Kind(function, function.derivative, units, breaks, not _jumps(function, breaks), closed, number)

    def slope(x: jax.Array) -> jax.Array:
        return jax.jvp(function, (x,), (jnp.ones_like(x),))[1]

    breaks, number = (line_breaks(function), None) if function.degree is None else (WHOLE, function.degree + 1)
    return Kind(function, slope, units, breaks, function.is_continuous, closed, number)


def _jumps(function: AbstractActivation, breaks: Breaks) -> bool:
    return bool(breaks.kinks) and cached_breaks(_has_jump, (function, breaks.kinks))


@lru_cache(maxsize=64)
def _has_jump(subject: tuple[AbstractActivation, tuple[float, ...]]) -> bool:
    function, kinks = subject
    places = np.asarray(kinks)
    with double():
        left, right = (np.asarray(function(jnp.asarray(places + side))) for side in (-BESIDE, BESIDE))
    return bool(np.any(np.abs(right - left) > JUMP * (1.0 + np.abs(left))))
