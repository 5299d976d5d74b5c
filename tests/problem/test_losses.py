"""Losses and label noise: values, slopes, floors, how they are stated, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import twolayer as tl
from twolayer.core.precision import double
from twolayer.problem.noise import noisy
from twolayer.specification.codec import content_hash, from_json, to_json

SIGN = tl.SingleIndex("sign(z)")
BOTH_SIGNS = np.array([-1.0, 1.0])


def problem(target: tl.MultiIndex | tl.SingleIndex = SIGN, **fields: object) -> tl.Problem:
    return tl.Problem(target, tl.Student(2, "erf"), tl.Gaussian(100), **fields)


# Written here by the formulas of textbooks, in NumPy.
FORMULAS = {
    "square": (tl.Square(), lambda y, s: 0.5 * (y - s) ** 2),
    "logistic": (tl.Logistic(), lambda y, s: np.log(1.0 + np.exp(-y * s))),
    "hinge": (tl.Hinge(), lambda y, s: np.where(y * s < 1.0, 1.0 - y * s, 0.0)),
    "huber": (
        tl.Huber(0.7),
        lambda y, s: np.where(abs(y - s) < 0.7, 0.5 * (y - s) ** 2, 0.7 * abs(y - s) - 0.5 * 0.7**2),
    ),
    "custom": (tl.CustomLoss(lambda y, s: jnp.cosh(y - s)), lambda y, s: np.cosh(y - s)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_slopes(name):
    loss, formula = FORMULAS[name]
    y = np.repeat(BOTH_SIGNS, 40)
    s = np.tile(np.linspace(-5.0, 5.0, 40) + 0.013, 2)  # no kink is within a step of a difference
    step = 1e-5
    with double():
        np.testing.assert_allclose(loss(jnp.asarray(y), jnp.asarray(s)), formula(y, s), rtol=1e-12, atol=1e-12)
        slope = (formula(y, s - step) - formula(y, s + step)) / (2 * step)
        np.testing.assert_allclose(loss.displacement(jnp.asarray(y), jnp.asarray(s)), slope, rtol=1e-7, atol=1e-7)
        # What the simulators differentiate is the loss itself, one sample at a time.
        by_grad = -jax.vmap(jax.grad(loss, argnums=1))(jnp.asarray(y), jnp.asarray(s))
        np.testing.assert_allclose(by_grad, loss.displacement(jnp.asarray(y), jnp.asarray(s)), rtol=1e-12, atol=1e-12)


def test_logistic_is_finite_far_out():
    with double():
        values = tl.Logistic()(jnp.ones(2), jnp.array([-1e4, 1e4]))
        assert np.asarray(values).tolist() == [1e4, 0.0]


@pytest.mark.parametrize("loss", ["square", "logistic", "hinge", "huber", tl.Huber(0.6), tl.Huber(3.0)])
@pytest.mark.parametrize("flip", [0.0, 0.05, 0.3])
def test_floor_of_flips_is_the_least_risk(loss, flip):
    setting = problem(loss=loss, noise=tl.Flips(flip))

    def risk(s):
        with double():
            up, down = setting.loss(jnp.ones(()), jnp.asarray(s)), setting.loss(-jnp.ones(()), jnp.asarray(s))
        return float((1.0 - flip) * up + flip * down)

    solution = minimize_scalar(risk, bounds=(-30.0, 30.0), method="bounded", options={"xatol": 1e-10})
    least = risk(solution.x)  # pyright: ignore[reportAttributeAccessIssue]
    assert setting.risk_floor == pytest.approx(least, abs=1e-7)


@pytest.mark.parametrize("width", [0.3, 1.0, 4.0])
def test_floor_of_huber_with_additive_noise(width):
    x = np.linspace(-12.0, 12.0, 400_001)
    density = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    residual = np.sqrt(0.8) * np.abs(x)
    values = np.where(residual < width, 0.5 * residual**2, width * residual - 0.5 * width**2)
    setting = problem(tl.SingleIndex("tanh"), loss=tl.Huber(width), noise=0.8)
    assert setting.risk_floor == pytest.approx(density @ values, abs=1e-9)  # the trapezoidal rule


def test_flips_have_their_probability():
    xi = np.random.default_rng(0).standard_normal(200_000)
    with double():
        flipped = np.mean(np.asarray(noisy(tl.Flips(0.2), jnp.ones(len(xi)), jnp.asarray(xi))) < 0.0)
    assert abs(flipped - 0.2) < 5 * np.sqrt(0.2 * 0.8 / len(xi))  # five standard errors


@pytest.mark.parametrize("name", ["square", "correlation", "logistic", "hinge", "huber"])
def test_names_in_files(name):
    stated = problem(loss=name, noise=tl.Flips(0.1))
    again = from_json(to_json(stated), tl.Problem)
    assert to_json(again) == to_json(stated)
    assert type(again.loss).__name__.lower() == name
    assert again.noise.probability == 0.1


def test_problems_that_were_there_keep_their_hashes():
    stated = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), noise=0.5)
    assert content_hash(stated) == "eba6b0aee28082df6827fc2abcc6e79596f89fbb046a769e99740747fd8977cf"


@pytest.mark.parametrize("target", ["committee", "formula"])
def test_signs_of_a_target(target):
    inner = tl.Committee(2, "erf") if target == "committee" else tl.MultiIndex("z1*z2 - 0.3")
    signs = tl.Signs(inner)
    fields = np.random.default_rng(0).standard_normal((1000, 2))
    with double():
        np.testing.assert_array_equal(signs(jnp.asarray(fields)), np.sign(inner(jnp.asarray(fields))))
    assert problem(signs, loss="logistic").has_sign_labels
    assert from_json(to_json(signs), tl.Signs).k == 2
    assert signs.kinks is None


def test_kinks_of_signs():
    assert tl.Signs(tl.MultiIndex("(z1 - 0.5)*z2")).kinks == ((0.5,), (0.0,))
    assert tl.Signs(tl.SingleIndex("z**2 - 1")).kinks == ((-1.0, 1.0),)
    assert tl.Signs(tl.SingleIndex(lambda z: z + 1.0)).kinks == ((-1.0,),)


REFUSED = [
    ({"loss": "logistic", "target": tl.SingleIndex("tanh")}, "Logistic.* needs labels that are signs.*Tanh"),
    ({"loss": "hinge", "noise": 0.1}, "Hinge.* needs labels that are signs.*variance 0.1"),
    ({"noise": tl.Flips(0.1), "target": tl.PhaseRetrieval()}, "Flips.* needs labels that are signs"),
    ({"noise": "much"}, "`noise` must be a variance or Flips"),
    ({"loss": "logistc"}, "`loss`.*did you mean 'Logistic'"),
    ({"loss": 3}, "`loss` must be a loss such as"),
    ({"loss": lambda y, s: jnp.sqrt(s)}, "`loss`.*not finite at y"),
    ({"loss": lambda y, s: jnp.where(y * s < 0, 1.0, 0.0)}, "`loss`.*no jumps"),
    ({"loss": lambda y, s: s * jnp.ones(2)}, "`loss`.*one finite number, but it fails"),
    ({"loss": lambda y: y}, "`loss`.*but it fails"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_bad_input_is_one_sentence(fields, words):
    with pytest.raises(tl.InvalidInput, match=words) as error:
        problem(**fields)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("probability", [-0.1, 0.5, 1.0, float("nan"), "much"])
def test_flips_below_one_half(probability):
    with pytest.raises(tl.InvalidInput, match=r"`probability` must be a finite number at least 0 and below 0.5"):
        tl.Flips(probability)


def test_labels_of_samples_fit_the_loss():
    X = np.ones((3, 4))
    stated = {"loss": "logistic", "start": tl.RandomStart()}
    inputs = tl.Samples(X, np.array([1.0, -1.0, 1.0]))
    tl.Problem(tl.Labels(), tl.Student(2, "erf"), inputs, **stated)
    with pytest.raises(tl.InvalidInput, match="needs labels that are signs"):
        tl.Problem(tl.Labels(), tl.Student(2, "erf"), tl.Samples(X, np.array([1.0, 0.0, 1.0])), **stated)
