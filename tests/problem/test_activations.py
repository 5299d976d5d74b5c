"""Every activation: its values, its derivative, and whether what it declares about itself is true."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.problem.activations import AbstractActivation, HermiteActivation, as_activation, names
from twolayer.specification.registry import registered

FORMULAS = {
    "erf": lambda x: special.erf(x / math.sqrt(2)),
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "square": lambda x: x**2,
    "sigmoid": special.expit,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "cosine": np.cos,
    "gaussian_bump": lambda x: np.exp(-0.5 * x**2),
    "silu": lambda x: x * special.expit(x),
    "linear": lambda x: x,
    "abs": np.abs,
    "leaky_relu": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "hardtanh": lambda x: np.clip(x, -1.0, 1.0),
    "hardsigmoid": lambda x: np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "he1": lambda x: x,
    "he2": lambda x: x**2 - 1,
    "he3": lambda x: x**3 - 3 * x,
    "he4": lambda x: x**4 - 6 * x**2 + 3,
    "he12": lambda x: special.eval_hermitenorm(12, x),
}
# Away from kinks, and never symmetric by accident.
POINTS = np.concatenate([np.linspace(-3.07, 3.1, 40), [0.013, -0.007]])


def test_the_table_covers_every_registered_activation():
    assert set(names()) <= set(FORMULAS)
    assert "custom" not in names() and "hermite" not in names()


@pytest.mark.parametrize("name", FORMULAS)
def test_values(name):
    # He_12 sums terms up to 1e7 at |x| = 3: relative to the largest term the rounding is 1e-15.
    atol = 1e-8 if name == "he12" else 1e-13
    np.testing.assert_allclose(as_activation(name)(jnp.asarray(POINTS)), FORMULAS[name](POINTS), rtol=1e-12, atol=atol)


@pytest.mark.parametrize("name", FORMULAS)
def test_derivative(name):
    h = 1e-5
    slope = (FORMULAS[name](POINTS + h) - FORMULAS[name](POINTS - h)) / (2 * h)
    # Central differences: h^2/6 times the third derivative, and rounding 1e-16/h times the value.
    scale = 1.0 + np.abs(FORMULAS[name](POINTS)) + np.abs(slope)
    error = np.abs(np.asarray(as_activation(name).derivative(jnp.asarray(POINTS))) - slope)
    assert np.all(error < (1e-4 if name == "he12" else 1e-8) * scale)


@pytest.mark.parametrize("name", FORMULAS)
def test_parity_is_as_declared(name):
    activation, x = as_activation(name), jnp.asarray(POINTS)
    even, odd = bool(jnp.all(activation(-x) == activation(x))), bool(jnp.all(activation(-x) == -activation(x)))
    assert (activation.parity == 1) == even and (activation.parity == -1) == odd


@pytest.mark.parametrize("name", FORMULAS)
def test_kinks_are_where_the_derivative_jumps_and_nowhere_else(name):
    activation = as_activation(name)
    grid = np.round(np.arange(-8.0, 8.0, 0.125), 3)  # contains the places where kinks of activations sit
    h = 1e-6
    left, right = (np.asarray(activation.derivative(jnp.asarray(grid + s * h))) for s in (-1, 1))
    jump = np.abs(right - left) / (1.0 + np.abs(left).max())
    found = grid[jump > 1e-2]  # a smooth derivative moves by 2e-6 times its own slope, a kink by order one
    assert set(found) == set(activation.kinks)


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "cosine"])  # which has no limit
def test_growth(name):
    activation, far = as_activation(name), jnp.asarray([-400.0, -200.0, 200.0, 400.0])
    values = np.abs(np.asarray(activation(far)))
    # |f(2x) / f(x)| is 2^growth on the side where it grows, up to the lower orders (1e-3 at |x| = 200).
    powers = [math.log2(values[i] / values[j]) for i, j in ((0, 1), (3, 2)) if values[j] > 1e-12]
    assert max(powers, default=0.0) == pytest.approx(activation.growth, abs=1e-2)


@pytest.mark.parametrize("name", FORMULAS)
def test_coefficients(name):
    activation = as_activation(name)
    polynomials = {"square", "linear"} | {n for n in FORMULAS if n.startswith("he")}
    assert (activation.coefficients is not None) == (name in polynomials)
    if activation.coefficients is not None:
        value = np.polynomial.polynomial.polyval(POINTS, activation.coefficients)
        np.testing.assert_allclose(value, FORMULAS[name](POINTS), rtol=1e-10, atol=1e-7 if name == "he12" else 1e-12)


def test_relu_at_its_kink():
    assert tl.Student(1, "relu").activation.derivative(jnp.zeros(())) == 0.0


def test_names_are_liberal_in_case_and_strict_in_spelling():
    assert type(as_activation("ReLU")) is registered()["Relu"]
    assert as_activation("HE3") == HermiteActivation(3)
    activation = as_activation("erf")
    assert as_activation(activation) is activation
    assert AbstractActivation.parse("tanh") == as_activation("tanh")
    for bad in ("rellu", "he0", "he", "he13", "he99", "he-1", "he1.5", "", " erf", "custom", "hermite"):
        with pytest.raises(InvalidInput):
            as_activation(bad)
    with pytest.raises(InvalidInput, match="did you mean 'relu'"):
        as_activation("rellu")
    for bad in (None, 3, ["erf"]):
        with pytest.raises(InvalidInput, match="must be a name, an activation object or a JAX function"):
            as_activation(bad)


def test_hermite_degree_is_limited():
    assert HermiteActivation(12).growth == 12
    for degree in (0, 13, 2.5):
        with pytest.raises(InvalidInput, match="`degree`"):
            HermiteActivation(degree)


# ---------------------------------------------------------------------------------------------- a user's own


def test_custom_equals_its_function():
    activation = as_activation(lambda x: jnp.sin(x) * x)
    assert isinstance(activation, tl.Custom)
    x = jnp.asarray(POINTS).reshape(6, 7)
    np.testing.assert_allclose(activation(x), np.sin(x) * np.asarray(x), rtol=1e-14)
    np.testing.assert_allclose(activation.derivative(x), np.cos(x) * x + np.sin(x), rtol=1e-12)
    assert (activation.kinks, activation.parity, activation.growth, activation.coefficients) == ((), 0, 1, None)


def test_custom_for_one_number_only():
    """A function with a branch on its own argument, which only works on one number at a time."""
    activation = tl.Custom(lambda x: jax.lax.cond(x > 0, lambda: x, lambda: 0.1 * x), kinks=(0.0,))
    np.testing.assert_allclose(activation(jnp.asarray([-1.0, 2.0])), [-0.1, 2.0])
    assert activation.kinks == (0.0,)


BAD_FUNCTIONS = {
    "not JAX": lambda x: math.sin(x),
    "branch": lambda x: x if x > 0 else 0.0,
    "two numbers": lambda x, y: x + y,
    "no argument": lambda: 1.0,
    "vector": lambda x: jnp.stack([x, x]),
    "nothing": lambda x: None,
    "tuple": lambda x: (x, x),
    "raises": lambda x: 1 / 0,
}


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_bad_functions_are_refused_at_once(name):
    with pytest.raises(InvalidInput, match="`function` must ") as caught:
        tl.Custom(BAD_FUNCTIONS[name])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400  # not JAX's own page of advice


@pytest.mark.parametrize("function", [lambda x: x > 0, lambda x: jnp.asarray(1), lambda x: 1j * x])
def test_functions_without_real_values_are_refused(function):
    with pytest.raises(InvalidInput, match="`function`"):
        tl.Custom(function)


@pytest.mark.parametrize("kinks", [0.0, ("a",), (float("nan"),), None])
def test_bad_kinks_are_refused(kinks):
    with pytest.raises(InvalidInput, match="`kinks`"):
        tl.Custom(jnp.abs, kinks=kinks)


@pytest.mark.parametrize("arguments", [{"parity": 2}, {"parity": 0.5}, {"growth": -1}])
def test_bad_declarations_are_refused(arguments):
    with pytest.raises(InvalidInput, match=next(iter(arguments))):
        tl.Custom(jnp.abs, **arguments)
