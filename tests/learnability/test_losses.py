"""What the first gradient of a loss sees of a target: exponents against the overlap that the ODE gains."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.precision import double
from twolayer.learnability.of_loss import seen_by_gradient


@pytest.mark.parametrize(("loss", "exponent"), [("square", 3), (tl.Huber(1.0), 1)])
def test_huber_gives_a_linear_part_to_he3(loss, exponent):
    """The exponent, and the first Hermite coefficient of the cut label by the trapezoidal rule."""
    assert int(tl.learn("he3(z1)", loss=loss).information_exponent) == exponent
    seen = seen_by_gradient(tl.MultiIndex("he3(z1)"), tl.Huber(1.0))
    z = np.linspace(-10.0, 10.0, 200_001)
    with double():
        values = np.asarray(seen(jnp.asarray(z[:, None])))
    np.testing.assert_allclose(values, np.clip(z**3 - 3 * z, -1.0, 1.0), atol=1e-12)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    assert abs(density @ (z * values)) > 0.1


def test_signs_have_the_exponents_of_the_label():
    """The slope is a multiple of the label, which no exponent notices."""
    label = tl.MultiIndex("sign(z1*z2)")
    assert all(seen_by_gradient(label, loss) is label for loss in (tl.Logistic(), tl.Hinge(), tl.Correlation()))
    with pytest.raises(tl.InvalidInput, match="the same slope for both signs"):
        seen_by_gradient(label, tl.CustomLoss(lambda y, s: (s - y**2) ** 2))


def test_additive_noise_is_averaged():
    """The average of the cut label over its noise, against plain sums of 10^6 numbers at five standard errors."""
    seen = seen_by_gradient(tl.SingleIndex("z**2"), tl.CustomLoss(lambda y, s: jnp.log(jnp.cosh(y - s))), 0.5)
    xi = np.random.default_rng(0).standard_normal(1_000_000)
    for z in (-1.0, 0.3, 2.0):
        samples = np.tanh(z**2 + np.sqrt(0.5) * xi)
        with double():
            value = float(seen(jnp.array([[z]]))[0])
        assert abs(value - samples.mean()) < 5 * samples.std() / 1000


def test_a_loss_that_overflows_at_labels_of_the_target_is_named():
    """The logarithm of cosh overflows beyond 710; written by logaddexp it is finite."""
    with pytest.raises(tl.InvalidInput, match="Argument `loss` must have a finite slope at all labels of the target"):
        tl.learn("he3(z1)", loss=lambda y, s: jnp.log(jnp.cosh(y - s)))
    found = tl.learn("he3(z1)", loss=lambda y, s: jnp.logaddexp(y - s, s - y))
    assert int(found.information_exponent) == 1


def test_bad_input():
    for arguments, words in (
        ({"target": "tanh(z1)", "loss": "logistic"}, "needs labels that are signs"),
        ({"target": "he3(z1)", "loss": "huber", "verify": True}, "`verify` asks for times or runs of the square loss"),
        ({"target": "he3(z1)", "loss": "nothing"}, "`loss` must be a loss"),
    ):
        with pytest.raises(tl.InvalidInput, match=words):
            tl.learn(**arguments)
