"""Gram matrices: against 40 digits, against networks of growing width, and at the places where angles lose digits."""

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import twolayer as tl
from twolayer.kernel import gram, network_gram, parallel_pairs
from twolayer.kernel.profile import _series, make_profile
from twolayer.problem.activations import Erf, Relu

ANGLES = np.linspace(0.0, np.pi, 301)


def unit(n, d, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def reference(X, layers="first", kappa=1.0):
    """Relu to 40 digits, from the very same inputs; the norms are those of the rows as they are."""
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(float(x)) for x in row] for row in X]
        norms = [mpmath.sqrt(mpmath.fdot(row, row)) for row in rows]
        H = np.empty((len(X), len(X)))
        for i, u in enumerate(rows):
            for j, v in enumerate(rows):
                scale = norms[i] * norms[j]
                rho = min(max(mpmath.fdot(u, v) / scale, mpmath.mpf(-1)), mpmath.mpf(1))
                theta = mpmath.acos(rho)
                first = rho * (mpmath.pi - theta) / (2 * mpmath.pi)
                second = kappa**2 * (mpmath.sin(theta) + (mpmath.pi - theta) * rho) / (2 * mpmath.pi)
                H[i, j] = scale * ((layers != "second") * first + (layers != "first") * second)
    return H


def awkward():
    """Random rows, and rows that are equal, opposite, or nearly so, down to a distance of 1e-12."""
    X = unit(4, 7)
    step = unit(1, 7, seed=1)[0]
    near = [X[0] + distance * step for distance in (3e-3, 1e-5, 1e-8, 1e-12)]
    opposite = [-X[1] - distance * step for distance in (1e-4, 1e-9)]
    return np.stack([*X, X[2], -X[3], *near, *opposite])


@pytest.mark.parametrize("layers", ["first", "second", "both"])
@pytest.mark.parametrize("scale", [1.0, 3.7])
def test_relu_to_40_digits(layers, scale):
    X = scale * awkward()
    H = gram(X, layers=layers, kappa=0.8)
    assert np.max(np.abs(H - reference(X, layers, 0.8))) < 1e-13 * scale**2
    assert np.array_equal(H, H.T)


def test_high_dimension_to_40_digits():
    # Sums over pixels of one sign, as in images: cosines near one without being parallel.
    X = np.random.default_rng(3).random((5, 784)) + 0.3
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    assert np.max(np.abs(gram(X) - reference(X))) < 1e-13


def test_diagonal_is_one_half():
    X = np.random.default_rng(0).random((300, 50))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    assert np.all(np.diagonal(gram(X)) == 0.5)
    twice = np.concatenate([X[:2], X[:2]])
    assert gram(twice)[0, 2] == 0.5
    assert gram(np.concatenate([X[:1], -X[:1]]))[0, 1] == 0.0


def test_tiles_make_no_difference(monkeypatch):
    X = unit(301, 12)
    whole = gram(X)
    monkeypatch.setattr("twolayer.kernel.matrices.TILE", 64)
    np.testing.assert_allclose(gram(X), whole, rtol=0, atol=1e-16)
    np.testing.assert_allclose(gram(X[:70], others=X), whole[:70], rtol=0, atol=2e-15)


def test_series_in_the_angle_matches_closed_forms():
    # The same route as for a user's own activation, where closed forms exist.
    rho = np.cos(ANGLES)
    for layers in ("first", "second", "both"):
        series, closed = _series(Relu(), layers, 1.3, 1.0), make_profile(Relu(), layers, 1.3)
        gap = np.max(np.abs(series.function(rho, ANGLES) - closed.function(rho, ANGLES)))
        assert gap < 1e-12 and gap <= series.error
    variance = 1.3**2
    series = _series(Erf(), "first", 1.3, 1.0)
    J2 = 2.0 / np.pi / np.sqrt((1.0 + variance) ** 2 - variance**2 * rho**2)
    gap = np.max(np.abs(series.function(rho, ANGLES) - rho * J2))
    assert gap < 1e-12 and gap <= series.error
    I2 = 2.0 / np.pi * np.arcsin(variance * rho / (1.0 + variance))
    series = _series(Erf(), "second", 1.3, 1.0)
    gap = np.max(np.abs(series.function(rho, ANGLES) - I2))
    assert gap < 1e-12 and gap <= series.error


@pytest.mark.slow
def test_kinks_are_found_and_too_many_of_them_are_refused():
    X = unit(3, 4)
    found, declared = (gram(X, activation) for activation in (_kinked, tl.Custom(_kinked, kinks=(0.3,))))
    assert np.array_equal(found, declared)
    normals = np.random.default_rng(0).standard_normal((400_000, 4))
    slopes = np.sign(normals @ X.T - 0.3)
    assert found == pytest.approx((slopes.T @ slopes / len(normals)) * (X @ X.T), abs=5 / np.sqrt(len(normals)))
    with pytest.raises(tl.ComputationFailed, match="kinks"):
        gram(X, lambda x: jnp.abs(jnp.sin(12.0 * x)))


def _kinked(x):
    return jnp.abs(x - 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("activation, layers", [("relu", "first"), ("relu", "both"), ("tanh", "both")])
def test_networks_approach_it_as_one_over_root_width(activation, layers):
    X = unit(30, 8)
    H = gram(X, activation, layers=layers, kappa=0.9)
    widths = np.array([250, 1000, 4000, 16000])
    rng = np.random.default_rng(5)
    # The mean square over independent networks: entries that are averages of m terms.
    distances = [
        np.sqrt(np.mean([_square(network_gram(X, w, activation, layers=layers) - H) for w in draws]))
        for draws in ((0.9 * rng.standard_normal((m, 8)) for _ in range(12)) for m in widths)
    ]
    slope = np.polyfit(np.log(widths), np.log(distances), 1)[0]
    assert abs(slope + 0.5) < 0.08, distances
    assert distances[-1] < 0.02 * np.linalg.norm(H)


def _square(A):
    return np.sum(A**2)


def test_mean_over_networks(check_mean):
    X = unit(6, 5)
    rng = np.random.default_rng(2)
    found = np.stack([network_gram(X, rng.standard_normal((200, 5))) for _ in range(400)])
    check_mean(found, gram(X), "relu")


def test_parallel_pairs_are_named():
    X = unit(2000, 6)
    X[1500] = 2.0 * X[3]
    X[700] = -X[600]
    assert parallel_pairs(X) == [(3, 1500), (600, 700)]
    assert parallel_pairs(X[:500]) == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"X": [[1.0, 0.0], [0.0, 0.0]]}, "row 1"),
        ({"X": [[1.0, 0.0], [0.0, 2.0]], "activation": "tanh"}, "one norm"),
        ({"X": [[1.0, 0.0]], "layers": "third"}, "third"),
        ({"X": [[1.0, 0.0]], "kappa": 0.0}, "kappa"),
        ({"X": [[1.0, 0.0]], "others": [[1.0]]}, "others"),
        ({"X": [[1.0, np.nan]]}, "finite"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(tl.InvalidInput, match=words):
        gram(**arguments)
