"""The spectrum: errors that hold against 40 digits, predicted curves against iteration, singular matrices."""

import mpmath
import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import complexity, decompose, explain_singular, gram, measure, residuals, spectrum
from twolayer.kernel.eigen import lower_factor


def form_to_40_digits(X, y):
    """y H^-1 y of relu's first layer, from the very same inputs."""
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(float(x)) for x in row] for row in X]
        norms = [mpmath.sqrt(mpmath.fdot(row, row)) for row in rows]
        H = mpmath.matrix(len(X))
        for i, u in enumerate(rows):
            for j, v in enumerate(rows):
                rho = mpmath.fdot(u, v) / (norms[i] * norms[j])
                angle = mpmath.mpf(0) if i == j else mpmath.acos(rho)
                H[i, j] = mpmath.fdot(u, v) * (mpmath.pi - angle) / (2 * mpmath.pi)
        labels = mpmath.matrix([mpmath.mpf(float(value)) for value in y])
        return float((labels.T * mpmath.lu_solve(H, labels))[0])


@pytest.mark.parametrize("distance", [1.0, 1e-3, 1e-6, 1e-9])
def test_error_of_the_measure_holds(distance):
    X = unit(24, 6)
    X[1] = X[0] + distance * X[2]
    X[1] /= np.linalg.norm(X[1])
    y = np.where(np.arange(24) % 2, 1.0, -1.0)  # opposite labels on the pair: the measure is large
    found = spectrum(X).inverse_form(y)
    exact = form_to_40_digits(X, y)
    assert abs(found.value - exact) <= found.error
    assert found.error < 1e-3 * exact
    # By the spectrum and by Cholesky's factor, each with an error of its own.
    for found in (spectrum(X).complexity(y), measure(X, y)):
        assert abs(found.value - np.sqrt(2.0 * exact / 24)) <= found.error < 1e-3 * found.value
    assert complexity(X, y) == found.value


def test_prediction_is_the_linear_recursion():
    X, y = unit(40, 10), np.random.default_rng(1).choice([-1.0, 1.0], 40)
    H, eta = gram(X), 0.4
    u, expected = np.zeros(40), []
    for _ in range(61):
        expected.append(np.linalg.norm(y - u))
        u = u - eta * H @ (u - y)
    np.testing.assert_allclose(residuals(X, y, eta, 60), expected, rtol=1e-12)
    found = spectrum(X)
    np.testing.assert_allclose(found.residuals(y, [0, 7, 60], eta), [expected[k] for k in (0, 7, 60)], rtol=1e-12)
    # u has taken 61 steps.
    np.testing.assert_allclose(found.outputs(y, 61, eta), u, atol=1e-12)
    np.testing.assert_allclose(H @ found.coefficients(y, 61, eta), u, atol=1e-12)
    np.testing.assert_allclose(H @ found.coefficients(y), y, atol=1e-11)


def test_small_steps_follow_the_flow_to_first_order():
    X, y = unit(30, 6), np.random.default_rng(1).choice([-1.0, 1.0], 30)
    found = spectrum(X)
    exact = found.flow(y, [3.0])[0]
    gaps = [abs(found.residuals(y, [3.0 / eta], eta)[0] - exact) for eta in (0.1, 0.05, 0.025)]
    orders = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert np.all(np.abs(orders - 1.0) < 0.1)


def test_last_step_size_converges_and_the_next_is_refused():
    X, y = unit(30, 6), np.ones(30)
    found = spectrum(X)
    assert np.all(np.diff(found.residuals(y, 50, 0.999 * found.largest_step)) < 0.0)
    with pytest.raises(tl.InvalidInput, match="2 / lambda_max"):
        residuals(X, y, found.largest_step, 5)
    # One step beyond grows along the leading eigenvector: the bound is the true one.
    leading = found.eigenvectors[:, 0]
    eta = 1.01 * found.largest_step
    assert np.linalg.norm(leading - eta * gram(X) @ leading) > 1.0


def test_values_of_the_theory_page():
    # n = 40, d = 10: random labels near 12, a linear target below 2.
    X = unit(40, 10, seed=4)
    found = spectrum(X)
    assert found.inverse_form(X @ unit(1, 10, seed=5)[0]).value < 4.0
    labels = np.random.default_rng(6).choice([-1.0, 1.0], 40)
    assert 8.0 < np.sqrt(found.inverse_form(labels).value) < 17.0
    assert np.all(found.eigenvalues > 0.0) and np.all(np.diff(found.eigenvalues) <= 0.0)
    np.testing.assert_allclose(found.eigenvalues.sum(), 20.0, rtol=1e-13)
    np.testing.assert_allclose(found.projections(labels) @ found.projections(labels), 40.0, rtol=1e-12)


def test_parallel_inputs_are_named_and_a_ridge_is_taken_when_asked():
    X, y = unit(20, 5), np.ones(20)
    X[7], y[7] = X[3], -1.0
    with pytest.raises(tl.ComputationFailed, match="3 and 7"):
        complexity(X, y)
    assert "1 of 1 the labels differ" in explain_singular(X, y)
    ridge = 1e-3
    expected = np.sqrt(2.0 / 20 * y @ np.linalg.solve(gram(X) + ridge * np.eye(20), y))
    np.testing.assert_allclose(complexity(X, y, ridge=ridge), expected, rtol=1e-9)


def test_more_antipodal_pairs_than_dimensions_are_singular():
    half = unit(6, 5)
    assert spectrum(np.concatenate([half, -half])).is_singular
    # As many as dimensions are not.
    assert not spectrum(np.concatenate([half[:5], -half[:5]])).is_singular


def test_panels_give_the_factor_and_the_products(monkeypatch):
    X = unit(70, 6)
    expected = gram(X)
    monkeypatch.setattr("twolayer.kernel.matrices.TILE", 8)
    monkeypatch.setattr("twolayer.kernel.matrices.PANEL", 16)
    monkeypatch.setattr("twolayer.kernel.eigen.FACTOR_PANEL", 16)
    H = gram(X)
    np.testing.assert_allclose(H, expected, atol=1e-15)
    assert np.array_equal(H, H.T)
    np.testing.assert_allclose(np.tril(lower_factor(H)), np.linalg.cholesky(expected), atol=1e-12)


def test_the_matrix_is_kept_unless_it_may_be_destroyed():
    H = gram(unit(10, 4))
    kept = H.copy()
    found = decompose(H)
    assert np.array_equal(H, kept)
    again = found.eigenvectors * found.eigenvalues @ found.eigenvectors.T
    np.testing.assert_allclose(again, kept, atol=1e-14)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda X: complexity(X, np.ones(3)), "one label per sample"),
        (lambda X: complexity(X, np.ones(4), ridge=-1.0), "ridge"),
        (lambda X: residuals(X, np.ones(4), -0.1, 3), "eta"),
        (lambda X: decompose(X), "square"),
        (lambda X: spectrum(np.ones((20_001, 1))), "20000 rows"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(tl.InvalidInput, match=words):
        call(unit(4, 3))
