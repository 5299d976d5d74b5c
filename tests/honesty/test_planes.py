"""Sigmoidal students on targets of two fields with kinks and jumps on planes, oblique ones included.

References are sums over the three normals in which all fields are: Gauss-Legendre rules that end at the planes along
the first two, in the frame of their normals, and the trapezoidal rule along the third.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import twolayer as tl
from twolayer.expectation import Auto, estimate
from twolayer.problem import Overlaps
from twolayer.problem.kink_planes import kink_planes

from .families import panels

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
NOISE, NODES = 0.1, 16


class Target(NamedTuple):
    """A formula, its values, and the normal vectors of its planes with the places along them."""

    formula: str
    value: object
    planes: tuple[tuple[tuple[float, float], float], ...]


TARGETS = {
    "oblique step": Target(
        "step(z1 + 2*z2 - 0.5)*z2", lambda z: (z[0] + 2.0 * z[1] > 0.5) * z[1], (((1.0, 2.0), 0.5),)
    ),
    "maximum": Target("max(z1, z2)*z1", lambda z: np.maximum(z[0], z[1]) * z[0], (((1.0, -1.0), 0.0),)),
    "along a field": Target(
        "abs(z1 - 0.3)*tanh(z2)", lambda z: np.abs(z[0] - 0.3) * np.tanh(z[1]), (((1.0, 0.0), 0.3),)
    ),
    "two directions": Target(
        "step(z1 + z2)*abs(z1 - 3*z2 - 0.3)",
        lambda z: (z[0] + z[1] > 0.0) * np.abs(z[0] - 3.0 * z[1] - 0.3),
        (((1.0, 1.0), 0.0), ((1.0, -3.0), 0.3)),
    ),
}
STUDENTS = {
    "erf": (lambda x: erf(x / 2**0.5), lambda x: (2.0 / np.pi) ** 0.5 * np.exp(-0.5 * x**2)),
    "tanh": (np.tanh, lambda x: 1.0 / np.cosh(x) ** 2),
}


def points(target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Points (3, N) in the space of the normals, the first two of which are the target's fields, and weights."""
    (first, place), *others = target.planes
    along = np.asarray(first) / np.linalg.norm(first)
    across = np.array([-along[1], along[0]])
    x, w = (part[0] for part in panels(np.array([[place / np.linalg.norm(first)]]), 8.5, 2.0, NODES))
    breaks = np.full((len(x), 1), 100.0)
    for normal, where in others:
        breaks = ((where - (np.asarray(normal) @ along) * x) / (np.asarray(normal) @ across))[:, None]
    y, v = panels(breaks, 8.5, 2.0, NODES)
    r = np.arange(-8.5, 8.6, 0.125)
    u = np.exp(-0.5 * r**2) * 0.125 / np.sqrt(2.0 * np.pi)
    z = along[:, None, None] * x[None, :, None] + across[:, None, None] * y[None]
    shape = (*y.shape, len(r))
    g = np.stack([*(np.broadcast_to(part[..., None], shape) for part in z), np.broadcast_to(r, shape)])
    return g.reshape(3, -1), ((w[:, None] * v)[..., None] * u).ravel()


def truth(target: Target, student: str, W: np.ndarray) -> dict[str, np.ndarray]:
    p, (g, weights) = len(W), points(target)
    value, slope = STUDENTS[student]
    lam = W @ g
    eps = target.value(g[:2]) - np.sum(value(lam), axis=0) / p  # type: ignore[operator]
    d = slope(lam)
    return {
        "excess_risk": 0.5 * weights @ eps**2,
        "chi": value(lam) @ (weights * eps),
        "v": (d * (weights * eps)) @ np.concatenate([lam, g[:2]]).T,
        "phi_hd": (d * (weights * (eps**2 + NOISE))) @ d.T,
    }


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("oblique step", "erf"),
        ("two directions", "erf"),
        ("along a field", "erf"),
        pytest.param("maximum", "tanh", marks=pytest.mark.slow),
    ],
)
def test_the_error_covers_kinks_on_planes(name, student):
    target, rng = TARGETS[name], np.random.default_rng(len(name))
    problem = tl.Problem(tl.MultiIndex(target.formula, k=2), tl.Student(2, student), tl.Gaussian(100), noise=NOISE)
    assert set(Auto().assign(problem, MOMENTS)[0].values()) == {"Tilted"}
    chosen = Auto().choose(problem, MOMENTS)
    for longest in (1.0, 1.0, 3.0):
        W = longest * rng.standard_normal((2, 3)) / 3.0**0.5
        V = np.eye(2, 3)
        overlaps = Overlaps(*(jnp.asarray(x) for x in (W @ W.T, W @ V.T, np.eye(2), np.ones(2))))
        found = estimate(chosen, problem, overlaps, MOMENTS)
        for moment, value in truth(target, student, W).items():
            size = np.max(np.abs(value))
            true, reported = np.abs(found.value[moment] - value), np.asarray(found.error[moment])
            assert np.all(true <= reported + 1e-9 * size), (moment, longest, true, reported)
            assert np.max(reported) < (1e-5 if longest == 1.0 else 1e-2) * (size + 1.0), (moment, longest, reported)


@pytest.mark.parametrize("name", TARGETS)
def test_planes_are_found(name):
    target = TARGETS[name]
    found = kink_planes(tl.MultiIndex(target.formula, k=2))
    assert found is not None and len(found) == len(target.planes)
    for normal, place in target.planes:
        unit = np.asarray(normal) / np.linalg.norm(normal)
        places = [each.places for each in found if abs(abs(np.dot(each.direction, unit)) - 1.0) < 1e-12]
        np.testing.assert_allclose(places, [[place / np.linalg.norm(normal)]], atol=1e-13)


@pytest.mark.parametrize("formula", ["abs(z1*z2 - 1)*z2", "abs(z1**2 + z2**2 - 1)"])
def test_curved_kinks_are_not_planes(formula):
    assert kink_planes(tl.MultiIndex(formula, k=2)) is None
