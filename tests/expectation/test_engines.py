"""Engines that approximate: the error they report, how it shrinks, and which of them is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import Cloud, Quadrature, choose, estimate
from twolayer.expectation.qmc import scrambled_normals
from twolayer.problem import Overlaps

from .test_closed_forms import moments, random_overlaps


def erf_problem(k: int = 1, p: int = 2) -> tl.Problem:
    return tl.Problem(tl.Committee(k, "erf"), tl.Student(p, "erf"), tl.Gaussian(100), noise=0.3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("p", [2, 4])
def test_cloud_reports_at_least_its_true_error(seed, p):
    """Against closed forms.

    The error is a t-quantile at 1e-4, so that a false alarm in these 100 numbers is unlikely.
    """
    problem = erf_problem(p=p)
    overlaps = random_overlaps(p, np.eye(1), seed)
    exact = moments(choose(problem).engine, problem, overlaps)
    result = estimate(Cloud.build(problem), problem, overlaps)
    for truth, value, error in zip(*map(jax.tree.leaves, (exact, result.value, result.error)), strict=True):
        assert np.all(np.abs(truth - value) <= error)
        assert np.all(error < (2e-3 if p == 2 else 1e-2))  # useful, too


@pytest.mark.parametrize("order", [6, 8, 12, 20, 40])
@pytest.mark.parametrize("seed", range(3))
def test_quadrature_reports_at_least_its_true_error(order, seed):
    problem = erf_problem()
    overlaps = random_overlaps(2, np.eye(1), seed)
    exact = moments(choose(problem).engine, problem, overlaps)
    result = estimate(Quadrature(order, 3), problem, overlaps)
    for truth, value, error in zip(*map(jax.tree.leaves, (exact, result.value, result.error)), strict=True):
        assert np.all(np.abs(truth - value) <= error)


def test_quadrature_converges_geometrically():
    """Errors at 8, 16 and 32 nodes.

    Each doubling squares the error, up to constants; slope of log error is negative.
    """
    problem = erf_problem()
    overlaps = random_overlaps(2, np.eye(1), 0)
    exact = moments(choose(problem).engine, problem, overlaps)
    errors = [
        max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(jax.tree.leaves(exact), jax.tree.leaves(got), strict=True))
        for got in (moments(Quadrature(order, 3), problem, overlaps) for order in (8, 16, 32))
    ]
    assert errors[1] < errors[0] / 10 and errors[2] < errors[1] / 100


def test_cloud_converges_faster_than_monte_carlo():
    """The error against the number of points falls faster than N^-1/2: slope below -0.7 over a factor 64."""
    problem = erf_problem()
    overlaps = random_overlaps(2, np.eye(1), 0)
    exact = moments(choose(problem).engine, problem, overlaps)
    sizes, errors = [7, 10, 13], []
    for log2_points in sizes:
        clouds = [Cloud(scrambled_normals(3, log2_points, seed)[None], False) for seed in range(16)]
        squares = [float((cloud.moments(problem, overlaps).excess_risk - exact.excess_risk) ** 2) for cloud in clouds]
        errors.append(np.sqrt(np.mean(squares)))
    slope = np.polyfit(np.array(sizes) * np.log(2), np.log(errors), 1)[0]
    assert slope < -0.7


@pytest.mark.parametrize(
    ("target", "student", "name"),
    [
        (tl.Committee(2, "erf"), tl.Student(4, "erf"), "ErfUnits"),
        (tl.SingleIndex("erf"), tl.Student(4, "erf"), "ErfUnits"),
        (tl.PhaseRetrieval(), tl.Student(3, "square"), "SquareUnits"),
        (tl.Hermite({3: 1.0}), tl.Student(3, "he3"), "PolynomialTables"),
        (tl.Staircase(2), tl.Student(2, "square"), "PolynomialTables"),
        (tl.SingleIndex("tanh"), tl.Student(2, "tanh"), "Quadrature"),
        (tl.Hermite({2: 1.0}), tl.Student(1, "erf"), "Quadrature"),
        (tl.SingleIndex("tanh"), tl.Student(1, "relu"), "Cloud"),
        (tl.SingleIndex("tanh"), tl.Student(4, "tanh"), "Cloud"),
        (tl.MultiIndex("abs(z1)", k=1), tl.Student(1, "tanh"), "Cloud"),
    ],
)
def test_choice_follows_the_ladder_and_says_why(target, student, name):
    choice = choose(tl.Problem(target, student, tl.Gaussian(50)))
    assert type(choice.engine).__name__ == name
    assert all(refusal.reason for refusal in choice.refusals)
    assert name not in [refusal.engine for refusal in choice.refusals]


def test_relu_moments_against_known_values():
    """E[relu(x)^2] = 1/2 and E[relu(x) relu(y)] = 1/(2 pi) at correlation zero fix the risk of one relu unit."""
    problem = tl.Problem(tl.SingleIndex("relu"), tl.Student(1, "relu"), tl.Gaussian(100))
    overlaps = Overlaps(jnp.eye(1), jnp.zeros((1, 1)), jnp.eye(1), jnp.ones(1))
    result = estimate(choose(problem).engine, problem, overlaps)
    truth = 0.5 * (0.5 + 0.5 - 2 / (2 * np.pi))
    assert abs(result.value.excess_risk - truth) <= result.error.excess_risk < 1e-3


def test_label_noise_enters_phi_hd_alone():
    overlaps = random_overlaps(2, np.eye(1), 1)
    for activation, make in (("erf", erf_problem), ("tanh", None)):
        noisy = (
            make() if make else tl.Problem(tl.SingleIndex("tanh"), tl.Student(2, activation), tl.Gaussian(9), noise=0.3)
        )
        quiet = tl.Problem(noisy.target, noisy.student, noisy.inputs, noise=0.0)
        engine = choose(noisy).engine
        with_noise, without = moments(engine, noisy, overlaps), moments(engine, quiet, overlaps)
        np.testing.assert_allclose(with_noise.v, without.v, atol=1e-14)
        np.testing.assert_allclose(with_noise.excess_risk, without.excess_risk, atol=1e-14)
        assert np.all(np.linalg.eigvalsh(with_noise.phi_hd - without.phi_hd) > 0)


@pytest.mark.parametrize("link", ["tanh(20*z)", "tanh(50*z)", "1/(z**2 + 0.01)", "sin(8*z)", "exp(z)"])
def test_quadrature_is_honest_on_steep_and_wavy_functions(link):
    """Against a sum over 4 x 10^5 equidistant points, which is exact to rounding for these functions."""
    problem = tl.Problem(tl.SingleIndex(link), tl.Student(1, "tanh"), tl.Gaussian(50))
    engine = choose(problem).engine
    assert isinstance(engine, Quadrature)
    overlaps = Overlaps(jnp.eye(1), jnp.eye(1) * (1 - 1e-12), jnp.eye(1), jnp.ones(1))
    result = estimate(engine, problem, overlaps)
    z = np.linspace(-12, 12, 400_001)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    f = np.asarray(problem.target(jnp.asarray(z[:, None])))
    eps, slope = f - np.tanh(z), 1 / np.cosh(z) ** 2
    assert abs(float(result.value.excess_risk) - 0.5 * weights @ eps**2) <= float(result.error.excess_risk) + 1e-9
    truth = weights @ (slope * slope * eps**2)
    assert abs(float(result.value.phi_hd[0, 0]) - truth) <= float(result.error.phi_hd[0, 0]) + 1e-9


@pytest.mark.parametrize(("p", "link"), [(3, "exp(3*z1)"), (1, "exp(6*z1)")])
def test_a_target_that_outgrows_every_rule_is_refused(p, link):
    problem = tl.Problem(tl.MultiIndex(link, k=1), tl.Student(p, "tanh"), tl.Gaussian(50))
    with pytest.raises(tl.NotApplicable, match="beyond 4 deviations"):
        choose(problem)
    with pytest.raises(tl.NotApplicable, match="DirectSGD"):
        tl.evolve(problem, tl.SGD(0.1), tl.DirectSGD(), until=1.0)
