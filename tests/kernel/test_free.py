"""The matrix-free route against the exact one: products, forms with errors that hold, traces."""

import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import GramProduct, gram, lanczos, spectrum, trace


@pytest.mark.parametrize("activation, scale", [("relu", 1.0), ("relu", 2.5), ("erf", 1.0)])
def test_products_in_strips(activation, scale, monkeypatch):
    monkeypatch.setattr("twolayer.kernel.products.STRIP", 700)
    X = scale * unit(130, 7)
    V = np.random.default_rng(0).standard_normal((130, 3))
    product = GramProduct(X, activation)
    np.testing.assert_allclose(product(V), gram(X, activation) @ V, atol=1e-12)
    np.testing.assert_allclose(product(V[:, 0]), gram(X, activation) @ V[:, 0], atol=1e-12)


@pytest.mark.parametrize("kind", ["given", "random"])
@pytest.mark.parametrize("nodes", [20, 50, 110])
def test_errors_of_forms_hold(kind, nodes):
    X = unit(160, 8)
    y = np.sign(X[:, 0]) if kind == "given" else np.random.default_rng(1).choice([-1.0, 1.0], 160)
    exact, rule = spectrum(X), lanczos(GramProduct(X), y, nodes)
    form = rule.inverse_form()
    true = exact.inverse_form(y).value
    assert abs(form.value - true) <= form.error
    assert form.value <= true * (1.0 + 1e-10)  # a Gauss rule is below
    measure = rule.complexity(160)
    assert abs(measure.value - exact.complexity(y).value) <= measure.error
    steps, eta = np.array([0.0, 1.0, 10.0, 50.0]), 0.5 * exact.largest_step
    found = rule.residuals(steps, eta)
    assert np.all(np.abs(found.value - exact.residuals(y, steps, eta)) <= found.error + 1e-12)
    if nodes == 110:
        assert form.error < 1e-6 * true and np.all(found.error < 1e-8)
        assert rule.nodes[-1] == pytest.approx(exact.lambda_max, rel=1e-10)


def test_a_process_that_ends_is_exact():
    X = unit(12, 5)
    rule = lanczos(GramProduct(X), np.ones(12), 100)
    assert rule.nodes.size <= 12
    assert float(rule.inverse_form().value) == pytest.approx(spectrum(X).inverse_form(np.ones(12)).value, rel=1e-9)


def test_traces():
    X = unit(120, 8)
    values = spectrum(X).eigenvalues
    found = trace(GramProduct(X), 120, lambda theta: np.log(theta), probes=10, nodes=40)
    assert abs(found.value - np.sum(np.log(values))) <= found.error < 0.2 * abs(found.value)


def test_bad_input():
    with pytest.raises(tl.InvalidInput, match="zero everywhere"):
        lanczos(GramProduct(unit(5, 3)), np.zeros(5))
    with pytest.raises(tl.InvalidInput, match="2 / lambda_max"):
        lanczos(GramProduct(unit(5, 3)), np.ones(5)).residuals([1.0], 100.0)
