"""The problem as a whole: consistency of its parts, and how starts are drawn from it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.specification.codec import content_hash, from_json, to_json

TARGET, STUDENT = tl.Committee(2, "erf"), tl.Student(3, "relu", "gaussian")
SAMPLES = tl.Samples(np.ones((4, 5)), np.ones(4))


def test_sizes():
    problem = tl.Problem(TARGET, STUDENT, tl.Gaussian(20), noise=0.3)
    assert (problem.d, problem.p, problem.k, problem.noise) == (20, 3, 2, 0.3)
    np.testing.assert_array_equal(problem.P, np.eye(2))
    assert problem.has_random_start
    data = tl.Problem(tl.Labels(), STUDENT, SAMPLES)
    assert (data.d, data.k) == (5, 0)


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: tl.Problem(TARGET, STUDENT, tl.Gaussian(2)), "`d` must exceed the number of target directions k = 2"),
        (lambda: tl.Problem(TARGET, STUDENT, SAMPLES), "must be used together"),
        (lambda: tl.Problem(tl.Labels(), STUDENT, tl.Gaussian(5)), "must be used together"),
        (lambda: tl.Problem(lambda z: z[0], STUDENT, tl.Gaussian(5)), r"MultiIndex\(function, k=...\)"),
        (lambda: tl.Problem("erf", STUDENT, tl.Gaussian(5)), "`target` must be a target"),
        (lambda: tl.Problem(TARGET, "erf", tl.Gaussian(5)), "`student` must be a Student"),
        (lambda: tl.Problem(TARGET, STUDENT, 5), "`inputs` must be"),
        (lambda: tl.Problem(TARGET, STUDENT, tl.Gaussian(5), start="Random"), "`start` must be"),
        (lambda: tl.Problem(TARGET, STUDENT, tl.Gaussian(5), loss="squared"), "`loss` must be .* mean 'Square'"),
        (lambda: tl.Problem(TARGET, STUDENT, tl.Gaussian(5), noise=-1e-9), "`noise` must be .* at least 0"),
        (
            lambda: tl.Problem(
                tl.Committee(1, "erf", P=[[2.0]]),
                tl.Student(1, "erf"),
                tl.Gaussian(5),
                start=tl.GivenOverlaps([[1.0]], [[0.0]], P=[[1.0]]),
            ),
            "`P` of the start must equal `P` of the target",
        ),
    ],
)
def test_inconsistent_parts_are_refused(build, words):
    with pytest.raises(InvalidInput, match=words):
        build()


def test_the_overlap_limit_follows_the_targets_own_covariance():
    def build(m):
        target = tl.Committee(1, "erf", P=[[0.25]])
        return tl.Problem(target, tl.Student(1, "erf"), tl.Gaussian(5), start=tl.WarmStart(m))

    assert build(0.5).k == 1  # |m| may reach norm * sqrt(P)
    with pytest.raises(InvalidInput, match="`m` must not exceed"):
        build(0.51)


@pytest.mark.parametrize("start", [tl.RandomStart(), tl.WarmStart(0.0), tl.RandomStart("gaussian")])
def test_a_data_set_has_no_target_directions(start):
    problem = tl.Problem(tl.Labels(), tl.Student(2, "erf"), SAMPLES, start=start)
    overlaps = problem.draw(jax.random.key(0))
    assert overlaps.M.shape == (2, 0) and overlaps.P.shape == (0, 0) and overlaps.Q.shape == (2, 2)


def test_draws_depend_on_the_key_alone():
    problem = tl.Problem(TARGET, STUDENT, tl.Gaussian(20))
    keys = jax.random.split(jax.random.key(1), 3)
    draw = eqx.filter_jit(problem.draw)
    first, again, other = draw(keys[0]), draw(keys[0]), draw(keys[1])
    for name in ("Q", "M", "a"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    assert first.Q.dtype == jnp.float64

    many = eqx.filter_jit(problem.draw_many)(keys)
    assert many.P.shape == (2, 2) and many.Q.shape == (3, 3, 3) and many.a.shape == (3, 3)
    for index, key in enumerate(keys):
        one = draw(key)
        for name in ("Q", "M", "a"):
            # The same random bits; sums may be taken in another order when stacked.
            np.testing.assert_allclose(getattr(many, name)[index], getattr(one, name), rtol=0, atol=1e-14)


def test_problems_differing_in_the_target_begin_alike():
    """One start for every description and every label: the key alone decides it."""
    others = [tl.Committee(2, "relu"), tl.MultiIndex("z1*z2"), tl.Staircase(2)]
    starts = [tl.Problem(t, STUDENT, tl.Gaussian(20), noise=0.1).draw(jax.random.key(2)) for t in others]
    for start in starts[1:]:
        np.testing.assert_array_equal(start.Q, starts[0].Q)
        np.testing.assert_array_equal(start.M, starts[0].M)


def test_numbers_stay_differentiable():
    def length(norm):
        problem = tl.Problem(TARGET, STUDENT, tl.Gaussian(9), start=tl.RandomStart("sphere", norm))
        return jnp.trace(problem.draw(jax.random.key(0)).Q)

    assert jax.grad(length)(1.5) == pytest.approx(2 * 3 * 1.5, rel=1e-12)  # trace Q = p norm^2


def test_problems_print_and_compare():
    first, second = (tl.Problem(TARGET, STUDENT, tl.Gaussian(20)) for _ in range(2))
    assert "Committee" in repr(first)
    assert eqx.tree_equal(first, second)
    assert not eqx.tree_equal(first, tl.Problem(TARGET, STUDENT, tl.Gaussian(21)))


def test_noise_on_given_labels_is_refused():
    with pytest.raises(InvalidInput, match="`noise`"):
        tl.Problem(tl.Labels(), tl.Student(2, "tanh"), tl.Samples(np.eye(5), np.ones(5)), noise=0.1)


@pytest.mark.parametrize("link", ["sqrt(z1 + 4)", "1/z1", "log(z1)"])
def test_targets_that_are_not_finite_at_rare_fields_are_refused(link):
    with pytest.raises(InvalidInput, match="finite"):
        tl.MultiIndex(link, k=1)


def test_a_large_data_set_is_written_as_its_digest():
    X = np.random.default_rng(0).standard_normal((300, 50))
    one, other = (tl.Samples(X + shift, np.ones(300)) for shift in (0.0, 1e-12))
    assert len(to_json(one)) < 6000 and content_hash(one) != content_hash(other)
    with pytest.raises(InvalidInput, match="pass the array again"):
        from_json(to_json(one), tl.Samples)
