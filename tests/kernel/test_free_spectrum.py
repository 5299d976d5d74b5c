"""The matrix-free spectrum against the exact one: every number within its error, in double and in single precision."""

import jax
import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import GramProduct, complexity, free_spectrum, gram, measure, residuals, spectrum
from twolayer.kernel.solve import Preconditioner, conjugate_gradients, norm_of_difference, smallest_eigenvalue

N = 300


def images(n, d=30, seed=0):
    """Inputs of one sign, as pixels are, of which two pairs are nearly parallel: the angle needs the chord."""
    X = np.random.default_rng(seed).random((n, d)) ** 3
    X[1] = X[0] * (1.0 + 1e-5 * np.arange(d))
    X[5] = X[9] * (1.0 + 1e-3 * (np.arange(d) % 2))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def labels():
    rng = np.random.default_rng(1)
    X = images(N)
    return np.stack([np.sign(X[:, 0] - np.median(X[:, 0]) + 1e-9), rng.choice([-1.0, 1.0], N)], axis=1)


@pytest.fixture(scope="module")
def exact():
    return spectrum(images(N))


@pytest.fixture(scope="module", params=["double", "single"])
def found(request):
    return free_spectrum(images(N), precision=request.param)


def test_extremes_are_within_their_errors(found, exact):
    assert exact.lambda_min <= found.lambda_min <= exact.lambda_min + found.lambda_min_error
    assert found.lambda_min - found.lambda_min_error > 0.0  # the bound of the measure needs it
    assert abs(found.lambda_max - exact.lambda_max) <= found.lambda_max_error < 1e-4 * exact.lambda_max
    assert not found.is_singular


def test_measure_has_the_error_of_double_precision(found, exact, labels):
    for y, form in zip(labels.T, found.inverse_forms(labels), strict=True):
        true = exact.inverse_form(y)
        assert abs(form.value - true.value) <= form.error + true.error
        assert form.error <= 1.1 * true.error + 1e-11 * true.value
    assert found.complexity(labels[:, 0]).value == pytest.approx(measure(images(N), labels[:, 0]).value, rel=1e-8)


def test_a_solution_that_is_cut_short_has_an_error_that_holds(found, exact, labels, monkeypatch):
    # Steps end at a tenth of the labels, and nothing is corrected: the bound must say what is missing.
    monkeypatch.setattr("twolayer.kernel.solve.MOST_CORRECTIONS", 1)
    monkeypatch.setattr("twolayer.kernel.free.HANDOVER", {"float64": 0.1, "float32": 0.1})
    for y, form in zip(labels.T, found.inverse_forms(labels), strict=True):
        true = exact.inverse_form(y).value
        assert 1e-9 * true < abs(form.value - true) <= form.error


@pytest.mark.parametrize("steps", [[0, 3, 30], [0, 500, 5000]])
def test_predicted_residuals_are_within_their_errors(found, exact, labels, steps):
    eta = 1.9 / exact.lambda_max
    for y, prediction in zip(labels.T, found.predictions(labels, steps, eta), strict=True):
        gap = np.abs(prediction.residuals - exact.residuals(y, steps, eta))
        assert np.all(gap <= prediction.error + 1e-11)
        assert np.all(prediction.error[:2] < 2e-3 * np.sqrt(N))
        assert prediction.weights.sum() == pytest.approx(N) and np.all(np.diff(prediction.eigenvalues) < 0.0)


def test_coefficients_are_those_of_the_recursion(found, exact, labels):
    gap = found.coefficients(labels, 40) - exact.coefficients(labels, 40, found.check_step(None))
    assert np.linalg.norm(gap) < 1e-4 * np.linalg.norm(found.coefficients(labels, 40))
    limit = found.coefficients(labels[:, 0])
    np.testing.assert_allclose(gram(images(N)) @ limit, labels[:, 0], atol=1e-4)


def test_density_counts_the_eigenvalues(found, exact):
    assert found.counts.sum() == pytest.approx(N, rel=1e-10)
    # Of eight random signs: the variance of one form is twice the sum of the squares off the diagonal.
    scatter = np.sqrt(2.0 * (np.sum(exact.eigenvalues**2) - 0.25 * N) / 8.0)
    assert abs(found.counts @ found.eigenvalues - 0.5 * N) < 5.0 * scatter
    for level in (0.05, 0.2):
        # Eight random vectors: a count of c has a scatter of sqrt(2 c / 8) at most, and nodes blur its edge.
        expected = np.sum(exact.eigenvalues > level)
        assert abs(found.counts[found.eigenvalues > level].sum() - expected) < 5.0 * np.sqrt(expected / 4.0)


def test_single_precision_knows_its_distance():
    X = images(N)
    single, full = GramProduct(X, precision="single"), GramProduct(X)
    true = np.linalg.norm(single(np.eye(N)) - gram(X), 2)
    assert 1e-8 < true <= norm_of_difference(single, full, N) < 30.0 * true
    # The diagonal and the nearly parallel pairs have all digits of single precision.
    entries = single(np.eye(N))
    assert np.array_equal(np.diagonal(entries), np.full(N, 0.5))
    assert abs(entries[0, 1] - gram(X)[0, 1]) < 5e-8 and abs(entries[5, 9] - gram(X)[5, 9]) < 5e-8


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "activation, precision",
    [("relu", "single"), *(pytest.param(name, "double", marks=pytest.mark.slow) for name in ("relu", "erf"))],
)
def test_products_of_a_device(keep, activation, precision, monkeypatch):
    monkeypatch.setattr("twolayer.kernel.device.STRIP", {"cpu": 40 * N, "gpu": 40 * N})
    X = images(N) * (3.0 if activation == "relu" else 1.0)
    V = np.random.default_rng(0).standard_normal((N, 3))
    product = GramProduct(X, activation, precision=precision, keep=keep, devices=jax.local_devices())
    assert product.is_kept is keep and product.main_device == jax.local_devices()[0]
    expected = gram(X, activation)
    tolerance = 1e-12 if precision == "double" else 2e-6
    np.testing.assert_allclose(product(V), expected @ V, atol=tolerance * np.linalg.norm(expected, 2))
    np.testing.assert_allclose(product(V[:, 0]), (expected @ V)[:, 0], atol=tolerance * np.linalg.norm(expected, 2))
    entries = product(np.eye(N))
    for i, j in ((0, 0), (0, 1), (5, 9), (N - 1, N - 1)):
        assert abs(entries[i, j] - expected[i, j]) <= (1e-15 if precision == "double" else 1e-7) * expected[i, i]


@pytest.mark.slow
def test_strips_are_dealt_to_several_devices(fresh_python):
    # Four devices of the host stand for four accelerators; a fresh process, since their number is fixed at the start.
    program = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np
from twolayer.kernel import GramProduct, free_spectrum, gram, spectrum
X = np.random.default_rng(0).random((150, 12)) ** 2
X /= np.linalg.norm(X, axis=1, keepdims=True)
V, H = np.random.default_rng(1).standard_normal((150, 2)), gram(X)
for keep in (True, False):
    product = GramProduct(X, precision="single", keep=keep, devices=jax.local_devices())
    assert len(set(product._strips._places)) == len(product._strips.devices) == 4
    assert np.linalg.norm(product(V) - H @ V) < 1e-5 * np.linalg.norm(H @ V)
y = np.sign(V[:, 0])
form, true = free_spectrum(X, precision="single", devices=4).inverse_form(y), spectrum(X).inverse_form(y)
assert abs(form.value - true.value) <= form.error + true.error and form.error < 1e-8 * form.value
print("done")
"""
    assert fresh_python(program).strip() == "done"


def test_preconditioner_saves_steps():
    X = images(N)
    product, y = GramProduct(X), np.random.default_rng(2).choice([-1.0, 1.0], (N, 1))
    chosen = np.arange(0, N, 5)
    near = Preconditioner(product.columns(chosen), chosen, product.diagonal)
    with_it = conjugate_gradients(product, near, y, 1e-8)
    without = conjugate_gradients(product, lambda v: v, y, 1e-8)
    for each in (with_it, without):
        assert np.linalg.norm(product(each.solutions) - y) < 2e-8 * np.sqrt(N)
    assert with_it.steps < 0.5 * without.steps


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_smallest_eigenvalue_of_a_matrix_with_a_lonely_one(seed):
    # One eigenvalue far below the others, along a direction that no start prefers.
    values = np.concatenate([[1e-4], np.linspace(0.1, 1.0, 399)])
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((400, 400)))[0]
    H = (Q * values) @ Q.T

    def solve(vectors):
        return conjugate_gradients(lambda v: H @ v, lambda v: v, vectors, 1e-6)

    found = smallest_eigenvalue(solve, 400, seed=seed)
    assert abs(found.value - 1e-4) <= found.error < 2e-5


def test_a_singular_matrix_is_told_and_a_ridge_helps():
    X = images(N)
    X[7] = X[3]
    found = free_spectrum(X)
    assert found.is_singular
    with pytest.raises(tl.ComputationFailed, match="singular"):
        found.complexity(np.ones(N))
    with pytest.raises(tl.ComputationFailed, match="3 and 7"):
        complexity(X, np.ones(N), method="free")
    y = np.where(np.arange(N) % 2, 1.0, -1.0)
    ridge = 0.01
    expected = np.sqrt(2.0 / N * y @ np.linalg.solve(gram(X) + ridge * np.eye(N), y))
    assert free_spectrum(X, ridge=ridge).complexity(y).value == pytest.approx(expected, rel=1e-9)


def test_functions_of_arrays_take_the_route_that_is_asked_for(labels):
    X, y = images(N), labels[:, 1]
    assert complexity(X, y, method="free") == pytest.approx(complexity(X, y, method="exact"), rel=1e-8)
    free, full = (residuals(X, y, 0.01, 30, method=method) for method in ("free", "exact"))
    np.testing.assert_allclose(free, full, rtol=1e-9)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda X: free_spectrum(X, precision="half"), "precision"),
        (lambda X: free_spectrum(X, ridge=-1.0), "ridge"),
        (lambda X: free_spectrum(X, devices=1000), "devices"),
        (lambda X: free_spectrum(X).residuals(np.ones(20), 3, 100.0), "2 / lambda_max"),
        (lambda X: free_spectrum(X).complexity(np.ones(3)), "one label per sample"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(tl.InvalidInput, match=words):
        call(unit(20, 5))
