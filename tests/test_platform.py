"""The canary: compilers err. Compiled, eager and NumPy results of our hottest kernels agree at awkward sizes.

It exists because jax 0.10.2 silently returned wrong values on CPU for a compiled, mapped matrix-vector product followed
by a sum (jax issue 39103); that version is excluded, and this test would have caught it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import twolayer as tl
from twolayer.expectation import MOMENTS, choose
from twolayer.expectation.gaussian_moments import from_cloud
from twolayer.simulation.direct import batch_loss


@pytest.mark.parametrize("rows", [127, 16_385, 65_537])
def test_mapped_products_followed_by_a_sum(rows):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((rows, 5)), rng.standard_normal((5, 5))

    def total(x):
        return jax.vmap(lambda row: B @ row)(x).sum(0)

    expected = (A @ B.T).sum(0)
    for value in (total(jnp.asarray(A)), jax.jit(total)(jnp.asarray(A))):
        np.testing.assert_allclose(value, expected, atol=1e-9)


@pytest.mark.parametrize("points", [1_023, 16_385])
def test_moments_over_a_cloud(points):
    rng = np.random.default_rng(1)
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf"), tl.Gaussian(50), noise=0.3)
    fields, weights, a = rng.standard_normal((points, 5)), rng.random(points), rng.standard_normal(3)
    lam, lam_star = fields[:, :3], fields[:, 3:]
    slope = np.sqrt(2 / np.pi) * np.exp(-(lam**2) / 2)
    eps = erf(lam_star / np.sqrt(2)).mean(1) - erf(lam / np.sqrt(2)) @ a / 3
    force = slope * eps[:, None]
    expected = {
        "v": np.einsum("n,nj,nu->ju", weights, force, fields),
        "phi_hd": np.einsum("n,nj,nl->jl", weights, force, force)
        + 0.3 * np.einsum("n,nj,nl->jl", weights, slope, slope),
        "chi": np.einsum("n,nj,n->j", weights, erf(lam / np.sqrt(2)), eps),
        "excess_risk": 0.5 * weights @ eps**2,
    }
    arguments = [jnp.asarray(x) for x in (a, fields, weights)]
    for function in (from_cloud, eqx.filter_jit(from_cloud)):
        moments = function(problem, *arguments, MOMENTS)
        for name, value in expected.items():
            np.testing.assert_allclose(moments[name], value, rtol=1e-9, atol=1e-9)


def test_gradient_of_the_loss_and_closed_forms():
    rng = np.random.default_rng(2)
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf"), tl.Gaussian(1_001))
    W, a = rng.standard_normal((3, 1_001)) / 30, rng.standard_normal(3)
    z, y = rng.standard_normal((17, 1_001)), rng.standard_normal(17)
    lam = z @ W.T
    eps = y - erf(lam / np.sqrt(2)) @ a / 3
    expected = -(a[:, None] / 3) * ((np.sqrt(2 / np.pi) * np.exp(-(lam**2) / 2) * eps[:, None]).T @ z)
    gradient = jax.grad(lambda W: batch_loss(problem, W, jnp.asarray(a), jnp.asarray(z), jnp.asarray(y)))
    for function in (gradient, jax.jit(gradient)):
        np.testing.assert_allclose(function(jnp.asarray(W)), expected, atol=1e-12)
    omega = jnp.asarray(np.cov(rng.standard_normal((5, 20))))
    overlaps = tl.Overlaps(omega[:3, :3], omega[:3, 3:], omega[3:, 3:], jnp.asarray(a))
    eager = choose(problem).moments(problem, overlaps)
    compiled = eqx.filter_jit(lambda o: choose(problem).moments(problem, o))(overlaps)
    for x, y in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-14)
