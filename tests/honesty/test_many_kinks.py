"""Piecewise linear units with more kinks than any rule breaks at: unknown functions, whose error covers the truth.

References are sums over a fine grid of the two normals in which all fields are, whose error at a kink is of the order
of the squared spacing, and for the smoothed unit the closed form of each of its hinges.
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

import twolayer as tl
from twolayer.core.precision import double
from twolayer.expectation import Auto, estimate
from twolayer.expectation.engine import by_coarser
from twolayer.expectation.recognition import notes_on
from twolayer.expectation.smoothing import smoothings
from twolayer.problem import Custom, Overlaps

from .test_sums import MOMENTS, even

NUMBERS = (27, 34, 45)


class Hinges:
    """A sum of hinges at random places: as the package takes it, its values and its slopes."""

    def __init__(self, number: int):
        rng = np.random.default_rng(number)
        self.places = np.sort(rng.uniform(-3.0, 3.0, number))
        self.changes = rng.standard_normal(number) / np.sqrt(number)
        self.unit = Custom(lambda x: jnp.sum(self.changes * jnp.maximum(x - self.places, 0.0)))

    def value(self, x: np.ndarray) -> np.ndarray:
        values = np.zeros_like(x)
        for place, change in zip(self.places, self.changes, strict=True):
            values += change * np.maximum(x - place, 0.0)
        return values

    def slope(self, x: np.ndarray) -> np.ndarray:
        return np.append(0.0, np.cumsum(self.changes))[np.searchsorted(self.places, x)]

    def smoothed(self, u: np.ndarray, s: np.ndarray) -> np.ndarray:
        t = (u - self.places[:, None]) / s
        return self.changes @ (s * (t * ndtr(t) + np.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi)))


@lru_cache(maxsize=8)
def hinges(number: int) -> Hinges:
    with double():
        return Hinges(number)


def truth(unit: Hinges, W: np.ndarray, link) -> dict[str, np.ndarray]:
    p = len(W)
    totals = {"excess_risk": 0.0, "chi": np.zeros(p), "v": np.zeros((p, p + 1)), "phi_hd": np.zeros((p, p))}
    for g, weights in even(2):
        lam, lam_star = W @ g, g[:1]
        value, d = unit.value(lam), unit.slope(lam)
        eps = link(lam_star[0]) - np.sum(value, axis=0) / p
        totals["excess_risk"] += 0.5 * weights @ eps**2
        totals["chi"] += value @ (weights * eps)
        totals["v"] += (d * (weights * eps)) @ np.concatenate([lam, lam_star]).T
        totals["phi_hd"] += (d * (weights * (eps**2 + 0.1))) @ d.T
    return {name: np.asarray(total) for name, total in totals.items()}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("side", ["student", "both"])
def test_the_error_covers_units_with_too_many_kinks(number, side):
    """One unit is served by nested rules with a bound, two by clouds; the error is small enough to be of use."""
    unit = hinges(number)
    assert not unit.unit.has_known_kinks and not unit.unit.is_smooth
    p = 1 if side == "student" else 2
    target = tl.MultiIndex("tanh(z1)", k=1) if side == "student" else tl.SingleIndex(unit.unit)
    problem = tl.Problem(target, tl.Student(p, unit.unit), tl.Gaussian(100), noise=0.1)
    W = np.random.default_rng(number).standard_normal((p, 2))
    V = np.array([[1.0, 0.0]])
    overlaps = Overlaps(*(jnp.asarray(x) for x in (W @ W.T, W @ V.T, np.eye(1), np.ones(p))))
    found = estimate(Auto().choose(problem, MOMENTS), problem, overlaps, MOMENTS)
    for name, value in truth(unit, W, np.tanh if side == "student" else unit.value).items():
        size = np.max(np.abs(value))
        true, reported = np.abs(found.value[name] - value), np.asarray(found.error[name])
        assert np.all(true <= reported + 2e-4 * size), (name, true, reported)  # the grid's own error at the kinks
        assert np.max(reported) < 0.1 * size + 0.01, name


def test_too_many_kinks_are_said():
    problem = tl.Problem(tl.MultiIndex("z1"), tl.Student(2, hinges(NUMBERS[0]).unit), tl.Gaussian(50))
    (note,) = notes_on(problem)
    assert "more than 24 kinks" in note
    engines = set(Auto().assign(problem, MOMENTS)[0].values())
    assert engines == {"Cloud"}


def test_a_target_with_too_many_kinks_is_not_smooth():
    unit = hinges(NUMBERS[0])
    for target in (
        tl.MultiIndex(lambda z: unit.unit.function(z[0]), k=1),
        tl.MultiIndex(lambda z: unit.unit.function(z[0]) * z[1], k=2),
        tl.SingleIndex(unit.unit),
        tl.Committee(2, unit.unit),
    ):
        assert not target.is_smooth and target.kinks is None


@pytest.mark.parametrize("number", NUMBERS)
def test_the_error_covers_a_smoothed_unit(number):
    unit, rng = hinges(number), np.random.default_rng(number)
    u, s = rng.standard_normal(200), rng.uniform(0.1, 2.0, 200)
    found = by_coarser(tuple(rule.value(jnp.asarray(u), jnp.asarray(s)) for rule in smoothings(unit.unit, 1e-6)), 0.0)
    true = np.abs(found.value - unit.smoothed(u, s))
    # Each number has three rules only, whose differences may be small by accident: the error holds for nearly all.
    assert np.mean(true <= found.error) > 0.96
    assert np.max(true) < 2e-3
