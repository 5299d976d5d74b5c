"""What the width adds to the prediction: against networks that are trained, and against their Gram matrices."""

import numpy as np
import pytest

from tests.kernel.test_gram import unit
from twolayer.analyses.lazy.verdict import width_effect
from twolayer.kernel import network_gram, spectrum, train
from twolayer.kernel.finite_width import width_effects
from twolayer.kernel.training import first_layer

STEPS = [3, 10, 30, 60]
RUNS = 24


@pytest.fixture(scope="module", params=["random", "last eigenvector"])
def labelled(request):
    """Samples, their spectrum and labels, easy or as hard as can be."""
    X = unit(30, 8)
    known = spectrum(X)
    y = np.sqrt(len(X)) * known.eigenvectors[:, -1]
    return X, known, np.random.default_rng(1).choice([-1.0, 1.0], len(X)) if request.param == "random" else y


def test_networks_lag_and_scatter_by_what_the_first_order_says(labelled):
    X, known, y = labelled
    width, kappa, eta = 4096, 1.5, known.check_step(None)
    options = {"width": width, "eta": eta, "steps": max(STEPS), "kappa": kappa, "start": "antisymmetric"}
    runs = [train(X, y, replica=replica, grams=False, precision="single", **options) for replica in range(RUNS)]
    gaps = np.array([run.residuals[STEPS] for run in runs]) - known.residuals(y, max(STEPS), eta)[STEPS]
    gaps /= np.linalg.norm(y)
    expected = width_effects(X, known, y, STEPS, eta, kappa, units=1000)
    scatter, lag = expected.scatter / np.sqrt(width), expected.lag / np.sqrt(width)
    # The next order is smaller by the way of a unit's weights over their length.
    next_order = np.sqrt(known.inverse_form(y).value / width) / kappa
    chance = 5.0 * scatter / np.sqrt(RUNS)
    assert np.all(np.abs(gaps.mean(axis=0) - lag) <= chance + next_order * lag)
    assert np.max((lag - next_order * lag) / chance) > 2.0  # a lag of twice the size, or none, is seen
    ratio = gaps.std(axis=0, ddof=1) / scatter
    assert np.all(np.abs(ratio - 1.0) <= 5.0 / np.sqrt(2.0 * (RUNS - 1)) + next_order)


def test_the_scatter_is_that_of_gram_matrices_of_the_start(labelled):
    """The residual of the linear update with the Gram matrix of a network's start, which nothing moves."""
    X, known, y = labelled
    width, eta, step = 4096, known.check_step(None), 10
    lengths = []
    for draw in range(200):
        W = np.concatenate([rows for _, rows in first_layer(width, X.shape[1], "antisymmetric", 1.0, 3, draw)])
        left = np.linalg.matrix_power(np.eye(len(X)) - eta * network_gram(X, W), step) @ y
        lengths.append(np.linalg.norm(left) / np.linalg.norm(y))
    scatter = width_effects(X, known, y, [step], eta, units=1000).scatter[0] / np.sqrt(width)
    assert np.std(lengths, ddof=1) / scatter == pytest.approx(1.0, abs=5.0 / np.sqrt(2.0 * 199))
    plain = known.residuals(y, step, eta)[-1] / np.linalg.norm(y)
    assert abs(np.mean(lengths) - plain) < 5.0 * scatter / np.sqrt(200) + 3.0 * scatter**2


def test_the_estimate_of_verdicts_is_of_the_first_order(labelled):
    X, known, y = labelled
    effects = width_effects(X, known, y, STEPS, known.check_step(None))
    estimate = width_effect(10**8, np.array([np.sqrt(known.inverse_form(y).value)]))[0] * 1e4
    assert 0.5 < estimate / np.max(effects.lag + effects.scatter) < 10.0
