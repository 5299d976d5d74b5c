"""Smoothed activations against adaptive quadrature, their derivatives, and what their error says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation.engine import by_coarser
from twolayer.expectation.smoothing import smoothings
from twolayer.problem.activations import as_activation

KINKED = tl.Custom(lambda x: jnp.abs(x - 0.3) + 0.5 * jax.nn.relu(x + 1.0), kinks=(-1.0, 0.3))
ACTIVATIONS = ["erf", "relu", "tanh", "sigmoid", "square", "he7", "softplus", "leaky_relu", "abs", KINKED]
U, S = (x.ravel() for x in np.meshgrid([-2.1, -0.4, 0.0, 0.9, 3.0], [0.0, 1e-9, 0.05, 0.7, 1.6], indexing="ij"))


def averages(activation, u, s):
    """The three averages by many nodes on the panels between the kinks, at all points."""
    x, w = np.polynomial.legendre.leggauss(300)
    edge = np.full((len(u), 1), 12.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = (np.array(activation.kinks)[None, :] - u[:, None]) / s[:, None]
    ends = np.concatenate([-edge, np.sort(np.clip(np.nan_to_num(places), -12.0, 12.0), axis=1), edge], axis=1)
    half, middle = 0.5 * np.diff(ends, axis=1)[:, :, None], 0.5 * (ends[:, 1:] + ends[:, :-1])[:, :, None]
    noise, weights = (middle + half * x).reshape(len(u), -1), (half * w).reshape(len(u), -1)
    weights = weights * np.exp(-0.5 * noise**2) / np.sqrt(2 * np.pi)
    fields = jnp.asarray(u[:, None] + s[:, None] * noise)
    value, slope = np.asarray(activation(fields)), np.asarray(activation.derivative(fields))
    return [np.sum(weights * each, axis=1) for each in (value, slope, slope * noise)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_values_and_derivatives_are_averages_within_their_error(activation):
    activation = as_activation(activation)
    members = smoothings(activation, 1e-8)
    u, s = jnp.asarray(U), jnp.asarray(S)
    estimate = by_coarser(tuple((each.value(u, s), *each.slopes(u, s)) for each in members), members[0].floor)
    for value, error, exact in zip(estimate.value, estimate.error, averages(activation, U, S), strict=True):
        assert np.all(np.abs(value - exact) <= error)


@pytest.mark.parametrize("activation", ["erf", "relu", "tanh", "he7", "softplus"], ids=str)
def test_it_solves_the_heat_equation_and_keeps_parity(activation):
    """The spread is s times the second derivative in u; smoothing an even or odd function leaves it so."""
    activation = as_activation(activation)
    smooth = smoothings(activation, 1e-8)[0]
    u, s = jnp.asarray([-1.3, -0.2, 0.6]), jnp.asarray([0.4, 0.8, 1.3])
    curvature = jax.jvp(lambda u: smooth.slopes(u, s).along, (u,), (jnp.ones_like(u),))[1]
    np.testing.assert_allclose(smooth.slopes(u, s).spread, s * curvature, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(smooth.slopes(u, -s).spread, -smooth.slopes(u, s).spread, rtol=1e-12, atol=1e-14)
    if activation.parity:
        np.testing.assert_allclose(smooth.value(-u, s), activation.parity * smooth.value(u, s), rtol=1e-12, atol=1e-14)


def test_a_deviation_stretches_over_points():
    smooth = smoothings(as_activation("softplus"), 1e-8)[0]
    u, s = jnp.asarray([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), jnp.asarray([[0.5], [1.5]])
    whole = smooth.slopes(u, jnp.broadcast_to(s, u.shape))
    np.testing.assert_allclose(jnp.stack(smooth.slopes(u, s)), jnp.stack(whole), rtol=1e-14)


def test_relu_without_noise_is_the_rectifier():
    u = jnp.asarray([-2.0, -1e-300, 0.0, 1e-300, 1e10])
    smooth = smoothings(as_activation("relu"), 1e-6)[0]
    np.testing.assert_array_equal(smooth.value(u, jnp.zeros(5)), np.maximum(u, 0.0))
    np.testing.assert_array_equal(smooth.slopes(u, jnp.zeros(5)).along, [0.0, 0.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(smooth.slopes(u, jnp.zeros(5)).spread, np.zeros(5))
