"""Closed forms of piecewise linear units against integrals in polar coordinates, and against rules along fields."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.expectation import ENGINES, Auto, estimate
from twolayer.problem import Overlaps
from twolayer.problem.activations import LeakyRelu, PiecewiseLinear, as_activation, names

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
SEED = 18

# Values and slopes of units with a kink at zero at most, in NumPy.
UNITS = {
    "leaky": (LeakyRelu(0.125), lambda x: np.where(x > 0.0, x, 0.125 * x), lambda x: np.where(x > 0.0, 1.0, 0.125)),
    "steep": (LeakyRelu(-2.0), lambda x: np.where(x > 0.0, x, -2.0 * x), lambda x: np.where(x > 0.0, 1.0, -2.0)),
    "abs": ("abs", np.abs, np.sign),
    "raised": (
        PiecewiseLinear((0.0,), (0.5,), 0.25, 1.5),
        lambda x: 1.5 + 0.25 * x + 0.5 * np.maximum(x, 0.0),
        lambda x: 0.25 + 0.5 * (x > 0.0),
    ),
    "relu": ("relu", lambda x: np.maximum(x, 0.0), lambda x: 1.0 * (x > 0.0)),
    "erf": ("erf", lambda x: erf(x / np.sqrt(2.0)), lambda x: np.sqrt(2.0 / np.pi) * np.exp(-(x**2) / 2.0)),
}


def panels(breaks: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.legendre.leggauss(nodes)
    half = 0.5 * np.diff(breaks)[:, None]
    return (0.5 * (breaks[1:] + breaks[:-1])[:, None] + half * x).ravel(), (half * w).ravel()


def in_the_plane(student: str, target: str, W: np.ndarray, V: np.ndarray, a: np.ndarray, noise: float) -> dict:
    """The moments of fields that are combinations of two normals, in polar coordinates between the kinks."""
    rows = np.concatenate([W, V])
    kinks = np.concatenate([np.arctan2(-rows[:, 0], rows[:, 1]), np.arctan2(rows[:, 0], -rows[:, 1])])
    # An error function of a long row is a layer around its kink.
    layers = [0.0]
    if "erf" in (student, target):
        layers += [sign * 0.4 * 4.0**-i for i in range(5) for sign in (-1, 1)]
    breaks = (kinks[:, None] + np.array(layers)).ravel()
    angles, shares = panels(np.unique([-np.pi, np.pi, *np.linspace(-3.0, 3.0, 7), *breaks[np.abs(breaks) < np.pi]]), 16)
    # The radius in panels that resolve an error function of a row of length 20.
    radii, weights = panels(np.concatenate([np.linspace(0.0, 1.0, 11), np.linspace(1.5, 10.0, 18)]), 10)
    g = radii[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    measure = (radii * np.exp(-(radii**2) / 2.0) * weights)[:, None] * shares / (2.0 * np.pi)
    lam, lam_star = g @ W.T, g @ V.T
    (_, value, slope), (_, label, _) = UNITS[student], UNITS[target]
    eps = label(lam_star) @ np.full(len(V), 1.0 / len(V)) - value(lam) @ a / len(a)
    # Sums of 10^5 numbers in double precision would lose three digits.
    measure, lam, g = (x.astype(np.longdouble) for x in (measure, lam, g))
    d, w = slope(lam.astype(float)), measure * eps
    return {
        "excess_risk": 0.5 * np.sum(w * eps),
        "chi": np.einsum("raj,ra->j", value(lam.astype(float)), w),
        "v": np.einsum("raj,rau,ra->ju", d, g @ rows.T, w),
        "phi_hd": np.einsum("raj,ral,ra->jl", d, d, measure * (eps**2 + noise)),
    }


def problem_of(student: str, target: str, noise: float) -> tl.Problem:
    units = UNITS[student][0], UNITS[target][0]
    return tl.Problem(tl.Committee(2, units[1]), tl.Student(2, units[0]), tl.Gaussian(50), noise=noise)


def draw(rng: np.random.Generator, longest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in the plane with few binary digits, half of them next to a row of the target or to one another."""
    W, V = rng.standard_normal((2, 2)), rng.standard_normal((2, 2))
    V /= np.linalg.norm(V, axis=1)[:, None]
    W *= np.exp(rng.uniform(np.log(0.2), np.log(longest), (2, 1))) / np.linalg.norm(W, axis=1)[:, None]
    near = 10.0 ** rng.uniform(-6.0, -2.0) * rng.standard_normal(2)
    if rng.random() < 0.5:
        W[1] = (V[0] if rng.random() < 0.5 else W[0]) * rng.choice([-1.0, 1.0]) + near
    return *(np.round(x * 2**20) / 2**20 for x in (W, V)), rng.uniform(-1.5, 1.5, 2)


@pytest.mark.parametrize(
    ("student", "target"),
    [
        ("leaky", "leaky"),
        ("abs", "raised"),
        pytest.param("raised", "erf", marks=pytest.mark.slow),
        pytest.param("relu", "relu", marks=pytest.mark.slow),
        pytest.param("steep", "abs", marks=pytest.mark.slow),
        pytest.param("relu", "steep", marks=pytest.mark.slow),
        pytest.param("erf", "raised", marks=pytest.mark.slow),
        pytest.param("leaky", "erf", marks=pytest.mark.slow),
    ],
)
def test_no_error_is_smaller_than_the_true_one_in_the_plane(student, target):
    """Singular overlaps of four fields in a plane, with rows up to 20, nearly equal, opposite or at the target."""
    rng, noise = np.random.default_rng((SEED, len(student), len(target))), 0.25
    problem = problem_of(student, target, noise)
    chosen = Auto(engines=("ThresholdUnits",)).choose(problem, MOMENTS)
    for case in range(16):
        W, V, a = draw(rng, 20.0 if case % 2 else 1.5)
        truth = in_the_plane(student, target, W, V, a, noise)
        result = estimate(chosen, problem, Overlaps(*(jnp.asarray(x) for x in (W @ W.T, W @ V.T, V @ V.T, a))), MOMENTS)
        for name in MOMENTS:
            true, size = np.abs(np.asarray(result.value[name]) - truth[name]), np.max(np.abs(truth[name]))
            assert np.all(true <= np.asarray(result.error[name]) + 2e-12 * size), (case, name, true, result.error[name])
            assert np.max(np.asarray(result.error[name])) <= 1e-5 * (1.0 + size), (case, name, result.error[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("student", "target"), [("leaky", "steep"), ("raised", "erf"), ("abs", "abs"), ("erf", "raised")]
)
def test_closed_forms_agree_with_rules_along_fields(student, target):
    problem = problem_of(student, target, 0.2)
    X = 0.7 * np.random.default_rng(SEED).standard_normal((4, 6))
    C, a = X @ X.T, np.array([0.7, -1.3])
    overlaps = Overlaps(*(jnp.asarray(x) for x in (C[:2, :2], C[:2, 2:], C[2:, 2:], a)))
    closed, rules = (
        estimate(Auto(engines=(name,)).choose(problem, MOMENTS), problem, overlaps, MOMENTS)
        for name in ("ThresholdUnits", "Ridges")
    )
    for name in MOMENTS:
        gap = np.abs(np.asarray(closed.value[name]) - np.asarray(rules.value[name]))
        assert np.all(gap <= np.asarray(closed.error[name]) + np.asarray(rules.error[name])), name
        assert np.max(gap) < 1e-5, name


def test_a_unit_of_zero_weights_has_the_slope_at_the_kink():
    """The derivative of the modulus at zero is zero, that of a leaky relu is its negative slope."""
    for unit, slope in (("abs", 0.0), (LeakyRelu(0.25), 0.25)):
        problem = tl.Problem(tl.Committee(1, unit), tl.Student(2, unit), tl.Gaussian(50), noise=0.5)
        Q, M = jnp.diag(jnp.array([0.0, 1.0])), jnp.array([[0.0], [0.5]])
        result = estimate(Auto().choose(problem), problem, Overlaps(Q, M, jnp.eye(1), jnp.ones(2)))
        square = 2.0 * result.value["excess_risk"] + 0.5
        np.testing.assert_allclose(result.value["phi_hd"][0, 0], slope**2 * square, rtol=1e-12, atol=1e-15)
        # E[x* sigma(x*)] is (1 + slope) / 2 of a leaky relu, and the student's unit has half of it at this overlap.
        along = slope * (1.0 + slope) / 2.0 * (1.0 - 0.5 * 0.5)
        np.testing.assert_allclose(result.value["v"][0, 2], along, rtol=1e-12, atol=1e-15)


def test_names_with_and_without_underscores():
    for name in ("leaky_relu", "leakyrelu", "Leaky_ReLU", "hardtanh", "hard_tanh", "relu6", "swish", "silu", "abs"):
        assert as_activation(name) is not None
    assert {"leaky_relu", "abs", "relu6", "hardtanh", "hardsigmoid", "silu"} <= set(names())
    assert "piecewise_linear" not in names() and "piecewiselinear" not in names()


@pytest.mark.parametrize("kinks, changes", [((0.0, 1.0), (1.0,)), ((1.0, 0.0), (1.0, 1.0)), ((), ())])
def test_piecewise_linear_units_check_their_kinks(kinks, changes):
    with pytest.raises(InvalidInput, match=r"Argument `(changes|kinks)` must"):
        PiecewiseLinear(kinks, changes)


def test_units_with_other_kinks_are_not_taken_for_a_relu():
    problem = tl.Problem(tl.Committee(1, "relu"), tl.Student(1, "hardtanh"), tl.Gaussian(50))
    assert not ENGINES["ThresholdUnits"].suits(problem, "excess_risk").ok
