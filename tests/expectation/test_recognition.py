"""Functions of users: which known activation they are, where their kinks are, and what `explain` says of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import special

import twolayer as tl
from twolayer.expectation import Auto, estimate
from twolayer.expectation.recognition import notes_on, recognised
from twolayer.problem import Custom
from twolayer.problem.activations import (
    Cosine,
    GaussianBump,
    Gelu,
    GeluTanh,
    Hardtanh,
    PiecewiseLinear,
    PolynomialActivation,
    Relu,
    Relu6,
    Rescaled,
    Silu,
    Softplus,
)

KNOWN = {
    "leaky relu": (lambda x: jnp.maximum(x, 0.1 * x), PiecewiseLinear((0.0,), (0.9,), 0.1, 0.0, 0.55)),
    "relu": (jax.nn.relu, Relu()),
    "relu6": (jax.nn.relu6, Relu6()),
    "hardtanh": (lambda x: jnp.clip(x, -1.0, 1.0), Hardtanh()),
    "hinges": (
        lambda x: 0.5 - x + jax.nn.relu(2.0 * x - 1.0) - 3.0 * jax.nn.relu(x + 2.0),
        PiecewiseLinear((-2.0, 0.5), (-3.0, 2.0), -1.0, 0.5),
    ),
    "silu": (jax.nn.silu, Silu()),
    "swish": (lambda x: x * jax.nn.sigmoid(1.7 * x), Silu(1.7)),
    "gelu": (lambda x: 0.5 * x * (1.0 + special.erf(x / 2**0.5)), Gelu()),
    "softplus": (lambda x: jnp.log1p(jnp.exp(x)), Softplus()),
    "gelu of jax": (jax.nn.gelu, GeluTanh()),  # approximate by default: it differs from x Phi(x) by up to 5e-4
    "softplus, slope": (lambda x: jax.nn.softplus(3.0 * x) / 3.0, Rescaled("softplus", 1.0 / 3.0, 3.0)),
    "minus a softplus": (lambda x: 1.0 - 2.0 * jax.nn.softplus(0.7 * x), Rescaled("softplus", -2.0, 0.7, 1.0)),
    "gelu, slope": (lambda x: x * jax.scipy.stats.norm.cdf(1.7 * x), Rescaled("gelu", 1.0 / 1.7, 1.7)),
    "a steep gelu": (lambda x: 3.0 * x * jax.scipy.stats.norm.cdf(8.0 * x), Rescaled("gelu", 3.0 / 8.0, 8.0)),
    "cosine": (jnp.cos, Cosine()),
    "sine": (jnp.sin, Cosine(1.0, -np.pi / 2)),
    "wave": (lambda x: 0.3 - 2.0 * jnp.cos(2.5 * x + 0.4), Rescaled(Cosine(2.5, 0.4), -2.0, 1.0, 0.3)),
    "bump": (lambda x: jnp.exp(-(x**2) / 2), GaussianBump()),
    "narrow bump": (
        lambda x: 1.0 - 0.5 * jnp.exp(-2.0 * (x - 0.7) ** 2),
        Rescaled(GaussianBump(0.7, 0.5), -0.5, 1.0, 1.0),
    ),
    "erf of mathematicians": (special.erf, Rescaled("erf", 1.0, 2**0.5)),
    "tanh rescaled": (lambda x: 1.7159 * jnp.tanh(2.0 * x / 3.0) + 1.0, Rescaled("tanh", 1.7159, 2.0 / 3.0, 1.0)),
    "polynomial": (lambda x: x**3 - 0.3 * x + 2.0, PolynomialActivation((2.0, -0.3, 0.0, 1.0))),
}


@pytest.mark.parametrize("name", KNOWN)
def test_functions_are_recognised(name):
    function, known = KNOWN[name]
    found = recognised(Custom(function))
    if isinstance(known, Rescaled):  # whose numbers are read off slopes and values
        assert isinstance(found, Rescaled) and found.base == known.base
        numbers = [(unit.amplitude, unit.rate, unit.offset) for unit in (found, known)]
        np.testing.assert_allclose(*numbers, rtol=2e-15)
    else:
        assert found == known


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_polynomials_are_recognised_whatever_their_coefficients(degree):
    """Numbers such as 1 and 1/2 make coefficients of the fit that are exactly zero, which NumPy leaves out."""
    rng = np.random.default_rng(degree)
    for halves in rng.integers(-4, 5, (8, degree + 1)):
        coefficients = tuple(float(c) for c in halves / 2.0)
        if not any(coefficients[2:]):  # constants and lines are other units
            continue
        unit = recognised(Custom(lambda x, c=coefficients: sum(c_n * x**n for n, c_n in enumerate(c))))
        assert isinstance(unit, PolynomialActivation)
        expected = np.trim_zeros(np.array(coefficients), "b")
        np.testing.assert_allclose(unit.coefficients, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.nn.gelu(x) + 1e-9 * jnp.tanh(x),
        lambda x: jnp.cos(x) + 1e-9 * jnp.cos(2.0 * x),
        lambda x: jnp.exp(-(x**2)) + 1e-9 * jnp.tanh(x),
        lambda x: jax.nn.softplus(x) + 1e-9 * x,
        lambda x: jnp.tanh(x) + 1e-12 * jnp.sin(x),
        lambda x: jnp.tanh(x) + jnp.where(x > 11.0, 1e-9, 0.0),
        lambda x: jnp.where(x > 0.3, x, 0.1 * x),  # jumps
        lambda x: jnp.maximum(x, 0.0) + 1e-6 * jnp.sin(x),
        jax.nn.elu,
        lambda x: jnp.exp(-(x**4)),
        lambda x: x + 1e-12 * x**3,
    ],
)
def test_functions_that_differ_are_not(function):
    custom = Custom(function)
    assert recognised(custom) is custom


KINKS = {
    "max": (lambda x: jnp.maximum(x, 0.1 * x), (0.0,)),
    "where": (lambda x: jnp.where(2.0 * x - 1.0 > 0.0, x, 0.0), (0.5,)),
    "clip of a line": (lambda x: jnp.clip(2.0 * x - 1.0, -1.0, 3.0), (0.0, 2.0)),
    "abs and sign": (lambda x: jnp.abs(3.0 * x - 1.5) + jnp.sign(x + 2.0), (-2.0, 0.5)),
    "kink at an irrational place": (lambda x: jnp.maximum(x**2, 2.0), (-(2**0.5), 2**0.5)),
    "second derivative": (jax.nn.elu, (0.0,)),
    "a root": (lambda x: jnp.sqrt(x**2), (0.0,)),
    "a program in a program": (jax.jit(lambda x: jax.nn.relu(x - 1.0)), (1.0,)),
    "max inside, smooth": (jax.nn.softplus, ()),
    "where inside, smooth": (lambda x: jnp.where(x > 0.0, jnp.exp(x), jnp.exp(x)), ()),
    "smooth": (jax.nn.silu, ()),
    "too many": (jnp.floor, ()),
    "log": (lambda x: jnp.log1p(x**2), ()),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_are_found(name):
    function, kinks = KINKS[name]
    np.testing.assert_allclose(Custom(function).kinks, kinks, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("function", "k", "kinks"),
    [
        (lambda z: jnp.sin(z[0]) * z[1], 2, ((), ())),
        (lambda z: jnp.dot(z, z), 3, ((), (), ())),
        (lambda z: jnp.abs(z[0] + z[1]), 2, None),
        (lambda z: jnp.max(z), 2, None),
        (lambda z: jnp.where(z[1] > 1.0, z[0], 0.0), 2, None),
        (lambda z: jnp.maximum(z[0], 0.5), 1, ((0.5,),)),
        (lambda z: jnp.logaddexp(z[0], z[1]), 2, ((), ())),
    ],
)
def test_targets_with_kinks_are_not_smooth(function, k, kinks):
    target = tl.MultiIndex(function, k=k)
    assert target.is_smooth == target.is_continuous == (kinks is not None and not any(kinks))
    assert target.kinks == kinks


def test_declared_kinks_stay():
    assert Custom(jnp.tanh, kinks=(1.0,)).kinks == (1.0,)
    assert Custom(lambda x: jnp.maximum(x, -1.0), kinks=(-1.0, 2.0)).kinks == (-1.0, 2.0)


@pytest.mark.slow
def test_engines_of_known_units_serve_a_function():
    """The same numbers as the named activation, by the same engine; the error covers the rounding of the function."""
    moments, overlaps = ("excess_risk", "chi", "v", "phi_hd"), None
    results = []
    for unit in (lambda x: jnp.where(x > 0.0, x, 0.25 * x), tl.LeakyRelu(0.25)):
        problem = tl.Problem(tl.Committee(1, unit), tl.Student(2, unit), tl.Gaussian(50), noise=0.1)
        overlaps = problem.draw(jax.random.key(0))
        assert set(Auto().assign(problem, moments)[0].values()) == {"ThresholdUnits"}
        results.append(estimate(Auto().choose(problem, moments), problem, overlaps, moments))
    for moment in moments:
        np.testing.assert_allclose(results[0].value[moment], results[1].value[moment], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("amplitude", "rate"), [(1.0, 1.0), (1.7159, 2.0 / 3.0), (0.5, 4.0)])
def test_rescaled_units_are_rescaled_overlaps(amplitude, rate):
    """A function of r x is the function of a field r times as long: exactly the moments of the plain unit."""
    plain = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "tanh"), tl.Gaussian(50))
    scaled = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, Rescaled("tanh", amplitude, rate)), tl.Gaussian(50))
    Q, M, P, a = jnp.array([[1.3]]), jnp.array([[0.4]]), jnp.eye(1), jnp.array([0.7])
    wanted = ("excess_risk", "chi", "v")
    first = estimate(Auto().choose(plain, wanted), plain, tl.Overlaps(Q * rate**2, M * rate, P, a * amplitude), wanted)
    second = estimate(Auto().choose(scaled, wanted), scaled, tl.Overlaps(Q, M, P, a), wanted)
    np.testing.assert_allclose(second.value["excess_risk"], first.value["excess_risk"], rtol=1e-12)
    np.testing.assert_allclose(second.value["chi"], amplitude * first.value["chi"], rtol=1e-12)
    np.testing.assert_allclose(second.value["v"][0, 1], amplitude * rate * first.value["v"][0, 1], rtol=1e-12)
    assert np.all(np.asarray(second.error["excess_risk"]) >= np.asarray(first.error["excess_risk"]) * 0.999)


def test_explain_says_what_was_found():
    def mine(x):
        return jnp.maximum(x, 0.1 * x)

    problem = tl.Problem(tl.MultiIndex("abs(z1 - 1) + z2"), tl.Student(1, mine), tl.Gaussian(50))
    assert notes_on(problem) == (
        "The student's activation Custom(mine) is recognised as leaky relu, slope 0.1.",
        "The student's activation Custom(mine) has kinks or jumps at 0.",
        "The target has kinks or jumps along z1 at 1.",
    )
    committee = tl.Problem(tl.Committee(1, jax.nn.silu), tl.Student(1, "erf"), tl.Gaussian(50))
    assert notes_on(committee) == ("The target's activation Custom(silu) is recognised as silu.",)
    for function, words in (
        (jnp.sin, "sin(1 x)"),
        (lambda x: 2.0 - jnp.cos(3.0 * x), "-1 times cos(3 x) + 2"),
        (lambda x: 2.0 * jnp.exp(-((x - 1.0) ** 2)), "2 times a Gaussian bump at 1, width 0.707107"),
        (lambda x: jax.nn.softplus(2.0 * x) / 2.0, "0.5 softplus(2 x)"),
    ):
        (note,) = notes_on(tl.Problem(tl.MultiIndex("z1"), tl.Student(1, function), tl.Gaussian(50)))
        assert note.endswith(f"is recognised as {words}.")
    explanation = tl.explain(committee, tl.SGD(0.1))
    assert notes_on(committee)[0] in str(explanation) and explanation.to_dict()["notes"] == list(notes_on(committee))
