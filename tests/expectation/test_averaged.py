"""Averages of one unit with Hermite polynomials: closed forms against a fine rule between kinks."""

import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.expectation.closed.averaged import closed_averages
from twolayer.problem.activations import Hardtanh, LeakyRelu, PiecewiseLinear, Relu, as_activation
from twolayer.problem.ridge_form import Along, ridges_of
from twolayer.problem.targets import MultiIndex

TERMS = 8


def formula(text: str) -> Along:
    """The function of one field that a formula is."""
    ridges = ridges_of(MultiIndex(text, k=1))
    assert ridges is not None and len(ridges) == 1 and isinstance(ridges[0].function, Along)
    return ridges[0].function


def by_rule(function, mean: float, s: float, kinks: tuple[float, ...]) -> np.ndarray:
    ends = np.sort(np.concatenate([np.linspace(-12.0, 12.0, 97), np.clip((np.array(kinks) - mean) / s, -12, 12)]))
    x, w = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(ends)[:, None]
    y = (0.5 * (ends[1:] + ends[:-1])[:, None] + half * x).ravel()
    weights = (half * w).ravel() * np.exp(-0.5 * y**2) / np.sqrt(2.0 * np.pi)
    g = np.asarray(function(jnp.asarray(mean + s * y)))
    rows = [np.ones_like(y), y]
    for n in range(1, TERMS - 1):
        rows.append((y * rows[-1] - n**0.5 * rows[-2]) / (n + 1) ** 0.5)
    return np.append(np.array(rows) @ (weights * g), weights @ g**2)


@pytest.mark.parametrize(
    "function",
    [
        Relu(),
        LeakyRelu(0.1),
        Hardtanh(),
        PiecewiseLinear((-2.0, 0.5, 1.0), (1.0, -3.0, 0.7), slope=-0.4, offset=0.3),
        as_activation("he3"),
        formula("sin(z1)"),
        formula("0.3 - 2*cos(1.7*z1 + 0.4)"),
        formula("z1**2 - z1 + 2"),
    ],
    ids=str,
)
def test_closed_forms_agree_with_a_rule(function):
    closed = closed_averages(function)
    assert closed is not None
    means = np.array([-7.0, -1.0, 0.0, 0.5, 3.0])
    for s in (0.05, 1.0, 6.0):
        values = np.asarray(closed(jnp.asarray(means), jnp.asarray(s), TERMS))
        expected = np.stack([by_rule(function, mean, s, function.kinks) for mean in means], axis=1)
        scale = 1.0 + np.max(np.abs(expected), axis=0)
        np.testing.assert_allclose(values / scale[None, :], expected / scale[None, :], atol=3e-14, rtol=0)
        # No more terms than are asked for, as for the moments with one slope.
        np.testing.assert_allclose(np.asarray(closed(jnp.asarray(means), jnp.asarray(s), 2)), values[[0, 1, -1]])


def test_other_functions_have_none():
    assert closed_averages(as_activation("silu")) is None and closed_averages(formula("tanh(z1)")) is None
