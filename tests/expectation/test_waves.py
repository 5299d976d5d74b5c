"""Closed forms of waves against sums over a fine grid, and what is recognised as a wave."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import MOMENTS, Auto, estimate
from twolayer.expectation.closed.waves import wave_of
from twolayer.problem import Custom, Overlaps

FORMULA = "cos(3*z1) + 0.5*sin(z1 - 2*z2) + 0.2"


def shifted(x):
    return 0.3 + jnp.cos(1.7 * x - 0.4)


def problem(noise: float = 0.2) -> tl.Problem:
    return tl.Problem(tl.MultiIndex(FORMULA, k=2), tl.Student(2, Custom(shifted)), tl.Gaussian(100), noise=noise)


def by_grid(W: np.ndarray, a: np.ndarray) -> dict[str, np.ndarray]:
    """The moments for target rows along the axes of the plane, by the trapezoidal rule, which is geometric here."""
    line = np.arange(-8.5, 8.5, 0.03)
    g = np.stack(np.meshgrid(line, line)).reshape(2, -1)
    w = np.exp(-0.5 * np.sum(g**2, axis=0)) * 0.03**2 / (2.0 * np.pi)
    lam = W @ g
    value, slope = 0.3 + np.cos(1.7 * lam - 0.4), -1.7 * np.sin(1.7 * lam - 0.4)
    eps = np.cos(3.0 * g[0]) + 0.5 * np.sin(g[0] - 2.0 * g[1]) + 0.2 - a @ value / 2
    return {
        "excess_risk": 0.5 * np.sum(w * eps**2),
        "chi": value @ (w * eps),
        "v": (slope * w * eps) @ np.concatenate([lam, g]).T,
        "phi_hd": (slope * w * (eps**2 + 0.2)) @ slope.T,
    }


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.4, 1.0, 6.0])
def test_waves_agree_with_a_grid(scale):
    W, a = scale * np.array([[1.0, 0.3], [-0.5, 0.8]]), np.array([0.7, -1.2])
    overlaps = Overlaps(*(jnp.asarray(x) for x in (W @ W.T, W, np.eye(2), a)))
    chosen = Auto().choose(problem(), MOMENTS)
    assert [type(engine).__name__ for engine in chosen.engines] == ["Waves"]
    result, truth = estimate(chosen, problem(), overlaps), by_grid(W, a)
    for moment in MOMENTS:
        true = np.abs(np.asarray(result.value[moment]) - truth[moment])
        assert np.all(true <= result.error[moment] + 1e-13), moment
        assert np.max(result.error[moment]) < 1e-9


def test_what_is_a_wave():
    wave = wave_of(Custom(shifted))
    assert wave is not None
    assert (wave.mean, wave.number) == pytest.approx((0.3, 1.7), abs=1e-13)
    assert wave.amplitude == pytest.approx(np.exp(-0.4j), abs=1e-12)
    others = [
        jnp.tanh,
        lambda x: jnp.cos(x) + 1e-6 * jnp.cos(3.0 * x),
        lambda x: jnp.cos(x) + jnp.exp(-(((x - 20.0) / 0.02) ** 2)),
        lambda x: jnp.cos(x) + 1e-3 * jnp.maximum(x - 100.0, 0.0),
        lambda x: 0.0 * x + 2.0,
    ]
    assert [wave_of(Custom(function)) for function in others] == [None] * 5
    product = tl.Problem(tl.MultiIndex("cos(z1)*z2", k=2), tl.Student(1, Custom(shifted)), tl.Gaussian(100))
    assert Auto().assign(product, ("chi",))[0]["chi"] != "Waves"


@pytest.mark.slow
def test_a_product_rule_does_not_claim_a_wave_that_it_cannot_see():
    """On a row this long, all orders and all phases may agree by accident."""
    student = tl.Student(2, Custom(lambda x: jnp.cos(2.52 * x), growth=0))
    case = tl.Problem(tl.MultiIndex("cos(3*z1)", k=1), student, tl.Gaussian(100), noise=0.25)
    Q, M = 350.7572975196176, -18.728515625
    overlaps = Overlaps(jnp.full((2, 2), Q), jnp.full((2, 1), M), jnp.eye(1), jnp.full(2, -0.79))
    truth, by_rule = (estimate(Auto(engines=(name,)).choose(case), case, overlaps) for name in ("Waves", "Quadrature"))
    for moment in MOMENTS:
        assert np.all(np.abs(by_rule.value[moment] - truth.value[moment]) <= by_rule.error[moment]), moment
        assert np.max(by_rule.error[moment]) >= 0.1 * np.max(np.abs(truth.value[moment]))


def test_a_wave_by_name_has_closed_forms_however_fast_it_is():
    """A fast wave averages to nothing but for the square of itself: E[cos^2] = 1/2."""
    for frequency in (1.0, 300.0):
        problem = tl.Problem(tl.SingleIndex("0*z"), tl.Student(1, tl.Cosine(frequency)), tl.Gaussian(50))
        overlaps = Overlaps(*map(jnp.asarray, ([[1.0]], [[0.3]], [[1.0]], [1.0])))
        chosen = Auto().choose(problem, MOMENTS)
        assert "waves" in chosen.name
        risk = estimate(chosen, problem, overlaps).value["excess_risk"]
        np.testing.assert_allclose(risk, 0.25 * (1.0 + np.exp(-2.0 * frequency**2)), rtol=1e-12)
