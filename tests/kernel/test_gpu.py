"""The kernel side on an accelerator against NumPy on the same numbers."""

import jax
import numpy as np
import pytest

from twolayer.kernel import GramProduct, free_spectrum, spectrum, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() == "cpu", reason="there is no GPU"),
]


def inputs(n=1500, d=60):
    X = np.random.default_rng(0).standard_normal((n, d))
    X[1] = X[0] + 1e-6  # nearly parallel: single precision would lose their angle
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-12), ("single", 3e-6)])
@pytest.mark.parametrize("keep", [True, False])
def test_products_are_those_of_numpy(precision, tolerance, keep):
    X = inputs()
    V = np.random.default_rng(1).standard_normal((len(X), 3))
    found, expected = (
        GramProduct(X, precision=precision, keep=keep, devices=jax.local_devices())(V),
        GramProduct(X)(V),
    )
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


def test_the_measure_in_single_precision_is_that_of_the_exact_route():
    X = inputs()
    X = np.delete(X, 1, axis=0)
    y = np.sign(X[:, 0])
    found, exact = free_spectrum(X, precision="single").inverse_form(y), spectrum(X).inverse_form(y)
    assert abs(found.value - exact.value) <= found.error + exact.error < 1e-6 * exact.value


def test_training_in_single_precision_is_single_and_not_less():
    X = inputs(400)
    y = np.sign(X[:, 0])
    single, double = (
        train(X, y, width=2048, eta=0.05, steps=64, precision=p, grams=False) for p in ("single", "double")
    )
    np.testing.assert_allclose(single.residuals, double.residuals, rtol=2e-5)
