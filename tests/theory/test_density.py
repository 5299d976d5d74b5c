"""The density of the units on a grid against its characteristics, and the identity of dissipation."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import erf
from scipy.stats import chi, norm

import twolayer as tl
from twolayer.expectation import Auto
from twolayer.theory.hdmf import field_landscapes
from twolayer.theory.mean_field import pair_landscapes
from twolayer.theory.motion.density import follow_density
from twolayer.theory.motion.particles import as_particles, dissipation, velocity

D, TIMES = 10, np.array([0.0, 1.0, 4.0])
PROBLEM = tl.Problem(tl.Committee(1, "erf", P=[[2.25]]), tl.Student(1, "erf"), tl.Gaussian(D))


def solution(cells):
    """The density that starts as the law of Gaussian rows in D dimensions."""
    b, s = np.linspace(-1.6, 2.4, 2 * cells + 1), np.linspace(0.0, 2.4, cells + 1)
    mass = np.outer(np.diff(norm.cdf(b * D**0.5)), np.diff(chi.cdf(s * D**0.5, D - 1)))
    return b, s, follow_density(PROBLEM, mass, b, s, TIMES)


def characteristics(nodes=24):
    """The same flow along its characteristics, in NumPy: nodes of a Gauss rule for the start keep their weights."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    y, v = np.polynomial.legendre.leggauss(nodes)
    reach = chi.ppf(1 - 1e-12, D - 1)
    y, v = 0.5 * reach * (y + 1), 0.5 * reach * v * chi.pdf(0.5 * reach * (y + 1), D - 1)
    weights = np.outer(w / w.sum(), v / v.sum()).ravel()
    start = np.concatenate([np.repeat(x, nodes), np.tile(y, nodes)]) / D**0.5
    gamma, g = np.polynomial.hermite_e.hermegauss(40)
    g, target = g / g.sum(), erf(1.5 * gamma / np.sqrt(2))

    def parts(state):
        b, s = np.split(state[:, None], 2)
        u, kappa = b * gamma, 1 + s**2
        bell = np.sqrt(2 / np.pi / kappa) * np.exp(-(u**2) / 2 / kappa)
        r = target - weights @ erf(u / np.sqrt(2 * kappa))
        return np.concatenate([bell @ (g * r * gamma), (-s * u / kappa * bell) @ (g * r)]), 0.5 * g @ r**2

    path = solve_ivp(lambda t, x: parts(x)[0], (0, TIMES[-1]), start, "DOP853", TIMES, rtol=1e-8, atol=1e-10).y.T
    return weights, np.split(path, 2, axis=1), np.array([parts(x)[1] for x in path])


def test_the_density_follows_its_characteristics():
    weights, (b, s), risk = characteristics()
    errors = []
    for cells in (30, 60):
        edges_b, edges_s, path = solution(cells)
        np.testing.assert_allclose(path.mass.sum(axis=(1, 2)), path.mass[0].sum(), rtol=1e-12)
        assert path.mass.min() >= 0.0
        middles = [0.5 * (x[1:] + x[:-1]) for x in (edges_b, edges_s)]
        means = [np.tensordot(path.mass.sum(axis=2 - place), middles[place], 1) for place in range(2)]
        errors.append(np.abs([path.risk - risk, means[0] - b @ weights, means[1] - s @ weights])[:, 1:].max(axis=1))
        # The risk falls by the integral of the squared velocity, here over a short time.
        assert path.dissipation[0] > path.dissipation[-1] > 0.0
    # Of second order: four times smaller on cells of half the size, and at least 2.8 times with limited slopes.
    assert np.all(errors[1] < 2e-3) and np.all(errors[1] < errors[0] / 2.8), errors


@pytest.mark.parametrize(
    "make", [lambda *of: field_landscapes(*of, 1e-8), lambda *of: pair_landscapes(*of, Auto(1e-8))]
)
def test_the_risk_falls_by_the_squared_forces(make):
    """The derivative of the risk along the motion by differentiation, against the forces."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(5, "erf"), tl.Gaussian(12))
    particles, _ = as_particles(problem.draw(jax.random.key(0)))
    landscape = make(problem, 5).variants[0]

    @eqx.filter_jit
    def both(landscape, particles):
        motion = velocity(tl.SGD(0.1), 5, particles, landscape.force(particles))
        return jax.jvp(landscape.risk, (particles,), (motion,))[1], dissipation(landscape, particles)

    rate, lost = both(landscape, particles)
    assert float(lost) == pytest.approx(-float(rate), rel=1e-9) and float(lost) > 1e-3


def test_bad_densities_are_refused():
    b, s, mass = np.linspace(-1, 1, 5), np.linspace(0, 1, 4), np.full((4, 3), 1 / 12)
    two = tl.Problem(tl.Committee(2, "erf"), tl.Student(1, "erf"), tl.Gaussian(D))
    with pytest.raises(tl.NotApplicable, match="a target of one direction"):
        follow_density(two, mass, b, s, TIMES)
    with pytest.raises(tl.InvalidInput, match="`mass` must be non-negative"):
        follow_density(PROBLEM, mass.T, b, s, TIMES)
    with pytest.raises(tl.InvalidInput, match="`b` must be edges"):
        follow_density(PROBLEM, mass, b**3, s, TIMES)
