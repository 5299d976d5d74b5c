"""Gradient descent of an actual network: against automatic differentiation, and against the prediction as it widens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import gram, network_gram, spectrum, train
from twolayer.kernel.training import first_layer, second_layer


def labels(n, seed=1):
    return np.random.default_rng(seed).choice([-1.0, 1.0], n)


def weights(width, d, start, kappa, seed):
    W = np.empty((width, d))
    for rows, block in first_layer(width, d, start, kappa, seed):
        W[rows] = block
    return W, second_layer(width, start, seed)


@pytest.mark.parametrize("start, kappa", [("antisymmetric", 1.0), ("small", 0.3)])
@pytest.mark.parametrize("d", [6, 12])  # fewer than half as many dimensions as samples, and more
def test_dual_form_is_gradient_descent(start, kappa, d, monkeypatch):
    # Blocks of a few units, so that several of them are exercised; the loss is differentiated, not the formula.
    monkeypatch.setattr("twolayer.kernel.training.BLOCK", {"cpu": 100, "gpu": 100})
    X, y, T = unit(17, d), labels(17), unit(9, d, seed=8)
    m, eta, steps = 48, 0.15, 40
    W, a = weights(m, d, start, kappa, seed=3)

    def outputs(W, inputs):
        return jnp.maximum(inputs @ W.T, 0.0) @ jnp.asarray(a) / np.sqrt(m)

    slope = jax.jit(jax.grad(lambda W: 0.5 * jnp.sum((outputs(W, X) - y) ** 2)))
    moved, expected = jnp.asarray(W), []
    for _ in range(steps):
        expected.append(float(jnp.linalg.norm(outputs(moved, X) - y)))
        moved = moved - eta * slope(moved)
    expected.append(float(jnp.linalg.norm(outputs(moved, X) - y)))
    found = train(X, y, width=m, eta=eta, steps=steps, start=start, kappa=kappa, seed=3, others=T)
    np.testing.assert_allclose(found.residuals, expected, rtol=1e-11)
    np.testing.assert_allclose(found.outputs, outputs(moved, X), atol=1e-11)
    np.testing.assert_allclose(found.other_outputs, outputs(moved, T), atol=1e-11)
    np.testing.assert_allclose(found.initial_gram, network_gram(X, W), atol=1e-13)
    np.testing.assert_allclose(found.final_gram, network_gram(X, np.asarray(moved)), atol=1e-13)
    assert found.flip_share == np.mean((X @ W.T >= 0) != (X @ np.asarray(moved).T >= 0))
    assert 0.0 < found.flip_share < 0.5


def test_antisymmetric_start_begins_at_zero():
    X, y = unit(12, 5), labels(12)
    found = train(X, y, width=64, eta=0.1, steps=0)
    np.testing.assert_allclose(found.residuals, [np.sqrt(12.0)], rtol=1e-14)
    assert found.flip_share == 0.0


def test_prediction_improves_with_width():
    # The correction of finite width comes from H(0) - H_infinity and from flipped signs, both of order m^-1/2.
    X, y = unit(40, 10), labels(40)
    found = spectrum(X)
    predicted = found.residuals(y, 60, 0.5)
    widths, seeds = (256, 1024, 4096, 8192), range(3)
    gaps, flips, distances = [], [], []
    for m in widths:
        runs = [train(X, y, width=m, eta=0.5, steps=60, seed=seed) for seed in seeds]
        gaps.append(np.mean([np.max(np.abs(run.residuals - predicted)) for run in runs]))
        flips.append(np.mean([run.flip_share for run in runs]))
        distances.append(np.mean([np.linalg.norm(run.initial_gram - gram(X)) for run in runs]))
    slopes = [np.polyfit(np.log(widths), np.log(values), 1)[0] for values in (gaps, flips, distances)]
    assert np.all(np.abs(np.array(slopes) + 0.5) < 0.12), (slopes, gaps, flips, distances)
    assert gaps[-1] < 0.03 * np.sqrt(40.0)


def test_small_start_is_less_lazy_than_the_antisymmetric_one():
    X, y = unit(60, 10), labels(60)
    predicted = spectrum(X).residuals(y, 60, 0.3)
    runs = {start: train(X, y, width=4096, eta=0.3, steps=60, start=start) for start in ("small", "antisymmetric")}
    gaps = {start: np.max(np.abs(run.residuals - predicted)) for start, run in runs.items()}
    assert gaps["antisymmetric"] < 0.5 * gaps["small"]
    assert runs["antisymmetric"].flip_share < 0.05 < 0.1 < runs["small"].flip_share


def test_single_precision_is_close():
    X, y = unit(30, 8), labels(30)
    both = [train(X, y, width=512, eta=0.3, steps=50, precision=name) for name in ("double", "single")]
    np.testing.assert_allclose(both[0].residuals, both[1].residuals, rtol=2e-5)


def test_divergence_is_told():
    X, y = unit(30, 8), np.ones(30)
    with pytest.raises(tl.ComputationFailed, match="diverges"):
        train(X, y, width=512, eta=40.0 / spectrum(X).lambda_max, steps=200)


def test_memory_is_asked_for_before_anything_starts(monkeypatch):
    X, y = unit(50, 8), labels(50)
    monkeypatch.setattr("twolayer.kernel.training.available_memory", lambda: 5_000_000)
    train(X, y, width=2000, eta=0.1, steps=1, grams=False)  # 3.2 MB
    with pytest.raises(tl.InvalidInput, match=r"8000 units on 50 samples need 12.8 MB.*width of 3100 would fit"):
        train(X, y, width=8000, eta=0.1, steps=1, grams=False)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"width": 33}, "even"),
        ({"X": 2.0 * unit(5, 3)}, "unit norm"),
        ({"y": np.ones(4)}, "one label per row"),
        ({"eta": 0.0}, "eta"),
        ({"start": "large"}, "start"),
        ({"others": unit(3, 4)}, "others"),
        ({"precision": "half"}, "precision"),
    ],
)
def test_bad_input(changes, words):
    arguments = {"X": unit(5, 3), "y": np.ones(5), "width": 32, "eta": 0.1, "steps": 2} | changes
    with pytest.raises(tl.InvalidInput, match=words):
        train(**arguments)
