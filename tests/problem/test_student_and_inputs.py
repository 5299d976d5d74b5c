"""The student's output and second layer, and the inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.errors import InvalidInput


def test_the_output_is_the_mean_over_neurons():
    rng = np.random.default_rng(0)
    lam, a = rng.standard_normal((6, 3)), rng.standard_normal(3)
    student = tl.Student(3, "tanh")
    np.testing.assert_allclose(student(jnp.asarray(lam), jnp.asarray(a)), np.tanh(lam) @ a / 3, rtol=1e-14)
    assert student(jnp.asarray(lam[0]), jnp.asarray(a)).shape == ()
    assert student.scale == pytest.approx(1 / 3)


def draws(second_layer, p=4, n=4000):
    student = tl.Student(p, "erf", second_layer=second_layer)
    return student, np.asarray(jax.jit(jax.vmap(student.draw_second_layer))(jax.random.split(jax.random.key(3), n)))


def test_second_layers(check_mean):
    student, a = draws("ones")
    assert np.all(a == 1.0) and not student.is_random

    student, a = draws("rademacher")
    assert set(np.unique(a)) == {-1.0, 1.0} and student.is_random
    check_mean(a, 0.0, "signs")
    check_mean(a[:, 0] * a[:, 1], 0.0, "neurons are independent")

    student, a = draws("gaussian")
    assert student.is_random
    check_mean(a, 0.0, "mean")
    check_mean(a**2, 1.0, "variance")
    check_mean(a**4, 3.0, "fourth moment")
    check_mean(a[:, 0] * a[:, 1], 0.0, "neurons are independent")

    given = [0.5, -1.0, 2.0, 0.0]
    student, a = draws(given)
    np.testing.assert_array_equal(a, np.broadcast_to(given, a.shape))
    assert not student.is_random and a.dtype == np.float64


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: tl.Student(0, "erf"), "`p`"),
        (lambda: tl.Student(2.5, "erf"), "`p`"),
        (lambda: tl.Student(10**7, "erf"), "`p`"),
        (lambda: tl.Student(2, "eerf"), "did you mean 'erf'"),
        (lambda: tl.Student(2, "erf", second_layer="uniform"), "`second_layer`.*'uniform'"),
        (lambda: tl.Student(2, "erf", second_layer=[1.0]), "p = 2 entries"),
        (lambda: tl.Student(2, "erf", second_layer=[[1.0, 2.0]]), "1 dimension"),
        (lambda: tl.Student(2, "erf", second_layer=[1.0, np.nan]), "finite"),
        (lambda: tl.Student(2, "erf", second_layer=None), "`second_layer`"),
        (lambda: tl.Gaussian(0), "`d`"),
        (lambda: tl.Gaussian(-3), "`d`"),
        (lambda: tl.Gaussian("10"), "`d`"),
        (lambda: tl.Samples([[1.0, 2.0]], [1.0, 2.0]), "`y` must have one label per row"),
        (lambda: tl.Samples([1.0], [1.0]), "`X`"),
        (lambda: tl.Samples(np.zeros((0, 3)), []), "`X` must have at least one row"),
        (lambda: tl.Samples(np.zeros((3, 0)), np.zeros(3)), "`X` must have at least one row"),
        (lambda: tl.Samples([[np.inf]], [1.0]), "`X` must be finite"),
    ],
)
def test_refusals(build, words):
    with pytest.raises(InvalidInput, match=words):
        build()


def test_inputs_know_their_sizes():
    assert tl.Gaussian(1000).d == 1000
    samples = tl.Samples(np.ones((5, 3)), np.ones(5))
    assert (samples.n, samples.d) == (5, 3)
    assert samples.X.dtype == np.float64


def test_square_loss():
    y, s = jnp.asarray([1.0, -2.0]), jnp.asarray([0.0, 1.0])
    np.testing.assert_array_equal(tl.Square()(y, s), [0.5, 4.5])
