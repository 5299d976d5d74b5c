"""Rules along a field: their nodes are the inverse of the map, and features that are wide need none of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.expectation.break_points import activation_breaks
from twolayer.expectation.mesh import WIDE, Extent, Monitor, even_rule, features_of, mesh, narrowest, scaled
from twolayer.problem.activations import as_activation

EDGE = jnp.asarray(9.0)


def monitors(is_plain: jax.Array | bool):
    """Monitors of random kernels, narrow ones included."""
    rng = np.random.default_rng(4)
    for _ in range(3):
        centres, widths = jnp.asarray(rng.normal(0.0, 2.0, 4)), jnp.asarray(10.0 ** rng.uniform(-3.0, 1.0, 4))
        yield Monitor(centres, widths, jnp.asarray(rng.uniform(0.0, 2.0)), Extent(EDGE, is_plain))


@pytest.mark.parametrize("is_plain", [False, jnp.asarray(True)], ids=["adaptive", "plain"])
def test_nodes_are_even_in_the_variable_of_the_map(is_plain):
    rule = even_rule(60)
    for monitor in monitors(is_plain):
        y, _, (low, high) = mesh(monitor, jnp.zeros(0), rule)
        t = 0.5 * (high + low) + 0.5 * (high - low) * rule.points
        np.testing.assert_allclose(monitor.count(y), t, atol=1e-5)  # of a distance of about one between nodes
        before, after = monitor.count(y - 1e-6), monitor.count(y + 1e-6)
        np.testing.assert_allclose(monitor.density(y) * 2e-6, after - before, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("name", ["silu", "gelu", "tanh"])
def test_wide_features_need_no_nodes_of_their_own(name):
    """At the length from which on nodes adapt, the rule without them is right: against one of 400 nodes."""
    activation = as_activation(name)
    breaks = activation_breaks(activation)
    length = narrowest(breaks) / WIDE
    assert 0.5 < length < 4.0

    def averages(nodes: int, is_plain: bool):
        extent = Extent(EDGE, jnp.asarray(is_plain))
        monitor, _ = scaled(features_of(breaks), jnp.asarray(0.3), jnp.asarray(length), extent)
        y, w, _ = mesh(monitor, jnp.zeros(0), even_rule(nodes))
        g = activation(0.3 + length * y)
        return np.array([w @ g**2, w @ g**4, w @ y**2, w @ (g * y**6)])

    exact = averages(400, False)
    np.testing.assert_allclose(averages(32, True), exact, rtol=1e-5)
    np.testing.assert_allclose(averages(64, True), exact, rtol=1e-9)


def test_a_function_with_kinks_has_no_wide_features():
    assert narrowest(activation_breaks(as_activation("relu"))) == 0.0
    assert narrowest(activation_breaks(as_activation("he3"))) == np.inf
