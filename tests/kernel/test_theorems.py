"""The numbers of the theorems against brute force: loss at the start, bound on new samples, law of lambda_0."""

import math

import numpy as np
import pytest
from scipy.stats import binom

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import non_degenerate, spectrum, theorems, train


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_loss_at_the_start(kappa):
    X, y = unit(20, 6), np.linspace(-1.0, 1.0, 20)
    rng = np.random.default_rng(int(10 * kappa))
    fields = kappa * rng.standard_normal((2000, 50, 6)) @ X.T
    outputs = np.einsum("rm,rmn->rn", rng.choice([-1.0, 1.0], (2000, 50)), np.maximum(fields, 0.0)) / math.sqrt(50)
    losses = 0.5 * np.sum((y - outputs) ** 2, axis=1)
    error = losses.std(ddof=1) / math.sqrt(len(losses))
    assert abs(losses.mean() - theorems.initial_loss(y, kappa)) < 4.0 * error < 0.1 * losses.mean()
    run = train(X, y, width=50, eta=0.1, steps=0, kappa=kappa, grams=False)  # from the antisymmetric start
    assert run.losses[0] == pytest.approx(theorems.initial_loss(y, 0.0))
    # Markov's inequality: at most a share delta is above the mean over delta.
    assert np.mean(losses > theorems.initial_loss(y, kappa) / 0.5) <= 0.5


@pytest.mark.parametrize("n, d", [(40, 4), (100, 30)])
def test_the_measure_is_twice_a_rademacher_complexity(n, d):
    """That of all predictors of the norm of the trained one, within the constants of Khintchine's inequality."""
    X, rng = unit(n, d), np.random.default_rng(n)
    y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    known = spectrum(X)
    norm = math.sqrt(known.inverse_form(y).value)
    signs = rng.choice([-1.0, 1.0], (2000, n))
    values = norm / n * np.sqrt(np.sum((signs @ known.eigenvectors) ** 2 * known.eigenvalues, axis=1))
    twice, measure = 2.0 * values.mean(), known.complexity(y).value
    assert measure / math.sqrt(2.0) <= twice <= measure


def test_remainder_and_steps():
    assert theorems.remainder(100, 0.04, 0.1) == pytest.approx(math.sqrt(0.02) + 3 * math.sqrt(math.log(1000) / 200))
    X = unit(30, 5)
    known, delta = spectrum(X), 0.2
    y = math.sqrt(30) * known.eigenvectors[:, -1]  # labels that are learned most slowly
    eta = known.check_step(None)
    steps = math.ceil(theorems.required_steps(30, known.lambda_min, eta, delta))
    left = known.residuals(y, np.array([steps, steps // 2]), eta) / math.sqrt(30)
    assert left[0] <= delta / 30 < left[1]


def test_orders_of_the_conditions():
    numbers = {"n": 10, "lambda_0": 0.1, "delta": 0.5}
    assert theorems.needed_width("3.1", **numbers, kappa=0.5) == pytest.approx(10**6 / (1e-4 * 0.25 * 0.125))
    assert theorems.needed_width("4.1", **numbers, kappa=0.5, epsilon=0.2) == pytest.approx(
        10**7 / (1e-4 * 0.25 * 0.0625 * 0.04)
    )
    assert theorems.allowed_step_size(10, 0.1) == pytest.approx(1e-3)
    assert theorems.allowed_kappa("4.1", **numbers, epsilon=0.2) == pytest.approx(0.1 / math.sqrt(10))
    assert theorems.allowed_kappa("5.1", **numbers) == pytest.approx(0.005)


# ----------------------------------------------------------------------------------------- laws that do not degenerate


def sometimes_parallel(seed):
    """Inputs of which two are parallel with probability 0.3."""
    rng = np.random.default_rng([seed, 5])
    X = rng.standard_normal((8, 6))
    if rng.random() < 0.3:
        X[1] = 2.0 * X[0]
    return X


def test_probability_of_a_smallest_eigenvalue():
    known = non_degenerate(sometimes_parallel, 8, 1e-9, draws=200, seed=1)
    assert known.low < 0.7 < known.high and known.high - known.low < 0.15
    reached = round(200 * known.share)
    # Clopper and Pearson's ends leave 2.5% each by the binomial law itself.
    assert binom.sf(reached - 1, 200, known.low) == pytest.approx(0.025, rel=1e-6)
    assert binom.cdf(reached, 200, known.high) == pytest.approx(0.025, rel=1e-6)
    assert known.is_shown(0.5) and not known.is_shown(0.3) and not known.is_shown(0.01)
    assert np.sum(known.lambda_min > 1e-9) == reached


def test_a_data_set_is_cut_into_disjoint_sets(monkeypatch):
    seen = []

    def remember(X):
        seen.append(X)
        return spectrum(X)

    monkeypatch.setattr(theorems, "spectrum", remember)
    pool = unit(53, 7)
    known = non_degenerate(pool, 10, 0.0, seed=3)
    rows = np.concatenate(seen)
    assert len(seen) == 5 and len(np.unique(rows, axis=0)) == 50 and np.isin(rows, pool).all()
    assert known.share == 1.0 and known.high == 1.0 and known.low == pytest.approx(0.025 ** (1 / 5))
    assert len(non_degenerate(pool, 10, 0.0, draws=2).lambda_min) == 2
    # The eigenvalue in the middle of the draws is reached by about half of them.
    middle = float(np.median(known.lambda_min))
    assert non_degenerate(pool, 10, middle * (1 - 1e-9), seed=3).share == 0.6


@pytest.mark.parametrize("changes, words", [
    ({"n": 100}, "`n` must be at most 20"),
    ({"lambda_0": -1.0}, "lambda_0"),
    ({"confidence": 1.0}, "confidence"),
    ({"draws": 0}, "draws"),
])  # fmt: skip
def test_bad_input(changes, words):
    with pytest.raises(tl.InvalidInput, match=words):
        non_degenerate(unit(20, 5), **({"n": 5, "lambda_0": 0.1} | changes))
