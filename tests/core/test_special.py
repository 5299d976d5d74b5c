import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from twolayer.compiler.special import erf


def test_the_error_function_is_exact_to_rounding():
    x = np.concatenate([np.linspace(-9.0, 9.0, 100_001), [0.0, -0.0, 1e-300, -1e-300, 1e300, np.inf, -np.inf]])
    assert np.max(np.abs(np.asarray(jax.jit(erf)(jnp.asarray(x))) - special.erf(x))) < 4e-15
    assert np.isnan(erf(jnp.asarray(np.nan)))


def test_its_derivative_is_the_bell():
    x = jnp.linspace(-7.0, 7.0, 101)
    derivative = jax.vmap(jax.grad(erf))(x)
    np.testing.assert_allclose(derivative, 2 / np.sqrt(np.pi) * np.exp(-(x**2)), rtol=1e-14)
