"""Gaussian bumps, with one another and with waves: exact moments, against sums over a fine grid of two normals."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import ENGINES, Auto, estimate
from twolayer.expectation.closed.bumps import gaussian_sum
from twolayer.problem import Custom, Overlaps

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
NOISE = 0.1
# For fields that are combinations of two normals the trapezoidal rule converges geometrically; this one has 12 digits
# for products of four bumps of width 0.6 in rows of length 20.
LINE = np.arange(-8.5, 8.5, 0.0125)


def bump(width, centre, height=1.0, mean=0.0):
    def of(exp):
        return lambda x: mean + height * exp(-((x - centre) ** 2) / (2 * width**2))

    def slope(x):
        return -(x - centre) / width**2 * (of(np.exp)(x) - mean)

    return of(jnp.exp), of(np.exp), slope


CASES = {
    "bumps": (bump(1.0, 0.0), tl.Committee(2, bump(1.0, 0.0)[0]), lambda z: bump(1.0, 0.0)[1](z).mean(axis=0)),
    "shifted bumps on a formula": (
        bump(0.6, 0.4, -2.0, 0.5),
        tl.MultiIndex("cos(2*z1) + exp(-(z1 + z2)**2) - 0.5"),
        lambda z: np.cos(2 * z[0]) + np.exp(-((z[0] + z[1]) ** 2)) - 0.5,
    ),
    "waves on a bump": (
        (jnp.sin, np.sin, np.cos),
        tl.MultiIndex("exp(-(z1 - 1)**2/2)/2 + 0.3", k=1),
        lambda z: np.exp(-((z[0] - 1) ** 2) / 2) / 2 + 0.3,
    ),
}


def truth(case, W, V, a):
    (_, value, slope), _, label = CASES[case]
    totals = dict.fromkeys(MOMENTS, 0.0)
    density = np.exp(-0.5 * LINE**2) * (LINE[1] - LINE[0]) / np.sqrt(2 * np.pi)
    for part in np.array_split(np.arange(len(LINE)), 40):
        g = np.stack([x.ravel() for x in np.meshgrid(LINE[part], LINE, indexing="ij")])
        w = np.outer(density[part], density).ravel()
        lam, lam_star = W @ g, V @ g
        eps, d = label(lam_star) - a @ value(lam) / len(a), slope(lam)
        totals["excess_risk"] += 0.5 * w @ eps**2
        totals["chi"] += value(lam) @ (w * eps)
        totals["v"] += (d * (w * eps)) @ np.concatenate([lam, lam_star]).T
        totals["phi_hd"] += (d * (w * (eps**2 + NOISE))) @ d.T
    return totals


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("longest", [1.5, pytest.param(20.0, marks=pytest.mark.slow)])
def test_no_error_is_smaller_than_the_true_one(case, longest):
    (function, _, _), target, _ = CASES[case]
    problem = tl.Problem(target, tl.Student(2, function), tl.Gaussian(50), noise=NOISE)
    assert set(Auto().assign(problem, MOMENTS)[0].values()) == {"Bumps"}
    chosen = Auto().choose(problem, MOMENTS)
    for seed in range(2 if longest < 2.0 else 6):
        rng = np.random.default_rng(seed)
        W, V = rng.standard_normal((2, 2)), rng.standard_normal((problem.k, 2))
        V /= np.linalg.norm(V, axis=1)[:, None]
        if seed % 2:  # nearly equal units
            W[1] = W[0] + 10.0 ** rng.uniform(-8.0, -2.0) * rng.standard_normal(2)
        W *= np.exp(rng.uniform(np.log(0.3), np.log(longest), (2, 1))) / np.linalg.norm(W, axis=1)[:, None]
        a = rng.uniform(-1.5, 1.5, 2)
        exact = truth(case, W, V, a)
        result = estimate(chosen, problem, Overlaps(*(jnp.asarray(x) for x in (W @ W.T, W @ V.T, V @ V.T, a))), MOMENTS)
        for name in MOMENTS:
            error, size = np.asarray(result.error[name]), np.max(np.abs(exact[name]))
            true = np.abs(np.asarray(result.value[name]) - exact[name])
            assert np.all(true <= error + 1e-12 * size), (seed, name, true, error)
            assert np.max(error) <= 1e-8 * (1.0 + size), (seed, name, error)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.exp(-(x**2)) + 1e-9 * jnp.exp(-((x - 3.0) ** 2)),
        lambda x: jnp.exp(-(jnp.abs(x) ** 2.001)),
        lambda x: 1.0 / (1.0 + x**2),
        lambda x: x * jnp.exp(-(x**2)),
        jnp.tanh,
        lambda x: 0.0 * x,
    ],
)
def test_other_functions_are_not_taken_for_bumps(function):
    assert gaussian_sum(Custom(function)) is None


def test_a_bump_is_read_off_its_values():
    found = gaussian_sum(Custom(bump(0.05, -1.25, -3.0, 0.5)[0]))
    assert found is not None and found.mean == 0.5
    np.testing.assert_allclose([found.c[0], found.alpha[0], found.beta[0]], [-3.0, 400.0, -500.0], rtol=1e-13)


def test_many_units_are_refused():
    problem = tl.Problem(tl.Committee(3, bump(1.0, 0.0)[0]), tl.Student(4, bump(1.0, 0.0)[0]), tl.Gaussian(50))
    assert "7 units" in ENGINES["Bumps"].suits(problem, "phi_hd").reason
