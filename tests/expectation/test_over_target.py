"""Rules for the cosine of two directions and between kinks; averages over the target's fields and their errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

import twolayer as tl
from twolayer.expectation.over_target import kind_of_rule, over_target
from twolayer.expectation.rules import cosine_order, cosine_rule, legendre_rule, panel_rule


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 7, 50, 10**6, 10**9])
def test_cosine_rule_has_the_moments_of_two_random_directions(dimension):
    r"""E[rho^2m] = Gamma(m + 1/2) Gamma(D/2) / (Gamma(1/2) Gamma(m + D/2)), exact up to degree 2 n - 1."""
    rule = cosine_rule(6, dimension)
    assert np.sum(rule.weights) == pytest.approx(1.0, abs=1e-14)
    assert np.all(np.abs(rule.points) <= 1.0 + 1e-15)
    for m in range(1, 6):
        D = dimension / 2
        # Of numbers as large as 10^10 the difference of two logarithms keeps six digits.
        exact = np.exp(gammaln(m + 0.5) - gammaln(0.5) - sum(np.log(D + i) for i in range(m)))
        assert rule.weights @ rule.points ** (2 * m) == pytest.approx(exact, rel=1e-10)
        assert rule.weights @ rule.points ** (2 * m - 1) == pytest.approx(0.0, abs=1e-14)


def test_cosine_rule_draws_what_random_directions_draw(check_mean):
    """Against directions drawn one by one, on a function that is no polynomial."""
    rng = np.random.default_rng(0)
    g = rng.standard_normal((2, 40_000, 4))
    g /= np.linalg.norm(g, axis=2, keepdims=True)
    cosines = np.sum(g[0] * g[1], axis=1)
    rule = cosine_rule(12, 4)
    check_mean(np.exp(2.0 * cosines), rule.weights @ np.exp(2.0 * rule.points))


def test_fewer_cosines_are_needed_in_more_dimensions():
    orders = [cosine_order(dimension, 1e-9) for dimension in (2, 5, 50, 1000, 10**6)]
    assert orders == sorted(orders, reverse=True) and orders[-1] == 4 and 10 < orders[0] < 32


def test_panels_end_at_kinks_of_correlated_fields():
    """Two relus of correlated fields against their closed average: as exact as if there were no kinks."""
    P = np.array([[1.0, 0.6], [0.6, 2.0]])
    rule = panel_rule(np.linalg.cholesky(P), ((0.0,), (0.0,)), legendre_rule(32))
    fields = rule.points @ np.linalg.cholesky(P).T
    rho = P[0, 1] / np.sqrt(P[0, 0] * P[1, 1])
    exact = np.sqrt(np.linalg.det(P)) + P[0, 1] * (np.pi / 2 + np.arcsin(rho))
    assert rule.weights @ np.prod(np.maximum(fields, 0.0), axis=1) == pytest.approx(exact / (2 * np.pi), abs=1e-10)
    assert np.sum(rule.weights) == pytest.approx(1.0, abs=1e-10)


def problem(target, activation, d=50):
    return tl.Problem(target, tl.Student(2, activation), tl.Gaussian(d))


KINDS = [
    (tl.Committee(2, "erf"), "erf", "hermite"),
    (tl.Committee(2, "erf"), "relu", "hermite"),
    (tl.SingleIndex("erf"), "relu", "panels"),
    (tl.Committee(2, "relu", P=[[1.0, 0.5], [0.5, 2.0]]), "relu", "panels"),
    (tl.Committee(3, "relu"), "erf", "cloud"),
    (tl.MultiIndex("abs(z1) + z2"), "erf", "panels"),
    (tl.MultiIndex("abs(z1 + z2)"), "erf", "cloud"),
    (tl.MultiIndex("z1*z2*z3*z4"), "tanh", "cloud"),
]


@pytest.mark.parametrize(("target", "activation", "kind"), KINDS)
def test_each_target_gets_the_points_that_suit(target, activation, kind):
    assert kind_of_rule(problem(target, activation)) == (kind, "")


def test_a_target_out_of_reach_is_refused_with_the_reason():
    kind, reason = kind_of_rule(problem(tl.MultiIndex("exp(3*z1)*abs(z2)"), "erf"))
    assert kind == "" and "deviations" in reason


B, S = np.array([0.8, -0.5]), 0.6


def moments(member, b=B):
    """Averages with one unit, those of the dynamics: of the value, of the slope with the fields, of the square."""
    rule, smooth = member
    at = rule.points @ b[: rule.points.shape[1]], jnp.asarray([S])
    along, spread = smooth.slopes(*at)
    weighted = rule.weights * rule.values
    square = rule.weights @ rule.values**2 + 2.0 * rule.rest
    return jnp.stack([square, weighted @ smooth.value(*at), weighted @ spread, *((weighted * along) @ rule.points)])


def brute_force(target, activation, b=B):
    """The same on a fine grid of equal steps: for k = 2, spectrally exact where the target is smooth."""
    h = 0.05
    x = np.arange(-9.0, 9.0, h) + h / 2
    g = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = h**2 * np.exp(-0.5 * np.sum(g**2, axis=1)) / (2 * np.pi)
    f = np.asarray(target(jnp.asarray(g @ np.linalg.cholesky(target.target_overlaps).T)))
    t, wt = np.polynomial.hermite_e.hermegauss(40)
    wt /= wt.sum()
    fields = jnp.asarray((g @ b)[:, None] + S * t[None, :])
    value, slope = np.asarray(activation(fields)), np.asarray(activation.derivative(fields))
    weighted = weights * f
    own = [weights @ f**2, weighted @ (value @ wt), weighted @ ((slope * t) @ wt)]
    return np.array([*own, *((weighted * (slope @ wt)) @ g)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "activation"),
    [
        (tl.Committee(2, "erf", P=[[1.0, 0.3], [0.3, 2.0]]), "erf"),
        pytest.param(tl.MultiIndex("tanh(z1) + z1*z2"), "tanh", marks=pytest.mark.long),
        pytest.param(tl.MultiIndex("z1 + z2**2"), "softplus", marks=pytest.mark.long),
        pytest.param(tl.Hermite({(1, 0): 1.0, (0, 2): 0.5}), "square", marks=pytest.mark.long),
        (tl.MultiIndex("abs(z1) + z2"), "erf"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tl.AbstractTarget) else str(value),
)
def test_averages_are_within_their_error(target, activation):
    """With a kink the brute force is wrong by a twelfth of its step squared, below the scatter of clouds."""
    asked = problem(target, activation)
    exact = brute_force(target, asked.student.activation)
    for rtol in (1e-2, 1e-6):
        points = over_target(asked, rtol, padded=True)
        estimate = points.combine(tuple(moments(member) for member in points.members))
        assert np.all(np.abs(np.asarray(estimate.value) - exact) <= np.asarray(estimate.error))
        # Nor is the error so large that nothing could be wrong.
        assert np.max(estimate.error) < (1e-2 if points.clouds > 1 else 100 * rtol)


@pytest.mark.slow
def test_folding_leaves_every_average_as_it_is():
    """An odd student sees the odd half of the target, on half the points; the rest is a constant."""
    target = tl.MultiIndex("tanh(z1) + z1*z2 + z2**2 + 0.3")
    folded = over_target(problem(target, "erf"), 1e-10, padded=False).members[0]
    whole = over_target(problem(target, "gelu"), 1e-10, padded=False).members[0]
    assert len(folded.rule.weights) <= len(whole.rule.weights) / 2 + 1
    assert folded.rule.rest > 0.1 and whole.rule.rest == 0.0
    np.testing.assert_allclose(
        moments(folded), moments(whole._replace(smoothing=folded.smoothing)), rtol=1e-8, atol=1e-10
    )
