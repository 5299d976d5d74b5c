"""Starts: the law of the overlaps against explicitly drawn weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.problem import Overlaps, embed

DRAWS = 4000
P3 = np.array([[1.0, 0.3, -0.2], [0.3, 1.5, 0.1], [-0.2, 0.1, 0.8]])


def keys(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


def drawn(start, p, P, d, n=DRAWS, seed=0):
    Q, M = jax.jit(jax.vmap(lambda key: start.draw(key, p, jnp.asarray(P), d)))(keys(n, seed))
    return np.asarray(Q), np.asarray(M)


def explicit(law, norm, p, P, d, n=DRAWS, seed=1):
    """The same overlaps from weights in d dimensions; target directions anywhere, as the inputs have no direction."""
    W = np.random.default_rng(seed).standard_normal((n, p, d))
    W *= norm / (np.linalg.norm(W, axis=2, keepdims=True) if law == "sphere" else np.sqrt(d))
    k = len(P)
    W_star = np.linalg.cholesky(P) @ np.linalg.qr(np.random.default_rng(9).standard_normal((d, k)))[0].T
    return np.einsum("npd,nqd->npq", W, W), W @ W_star.T


@pytest.mark.parametrize("law", ["sphere", pytest.param("gaussian", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "p, P, d, norm",
    [
        pytest.param(3, np.eye(2), 7, 1.0, id="d=7"),
        pytest.param(2, P3, 50, 1.7, id="d=50, P not the identity", marks=pytest.mark.slow),
        pytest.param(6, P3[:2, :2], 7, 1.0, id="more neurons than dimensions outside the target"),
        pytest.param(2, np.eye(2), 3, 1.0, id="d=k+1", marks=pytest.mark.slow),
    ],
)
def test_random_start_has_the_law_of_random_weights(law, p, P, d, norm, check_mean, check_same_law):
    Q, M = drawn(tl.RandomStart(law, norm), p, P, d)
    off = np.tril_indices(p, -1)

    # Exact moments, for both laws: Var M_jr = norm^2 P_rr / d, Var Q_jl = norm^4 / d.
    check_mean(M, 0.0, "M")
    check_mean(M**2, np.broadcast_to(norm**2 * np.diagonal(P) / d, M.shape[1:]), "M^2")
    check_mean(M[:, 0, 0] * M[:, 0, 1], norm**2 * P[0, 1] / d, "M M")
    check_mean(Q[:, *off], 0.0, "Q")
    check_mean(Q[:, *off] ** 2, norm**4 / d, "Q^2")
    lengths = np.diagonal(Q, axis1=1, axis2=2)
    if law == "sphere":
        np.testing.assert_allclose(lengths, norm**2, rtol=1e-13)
    else:
        check_mean(lengths, norm**2, "length")
        check_mean((lengths - norm**2) ** 2, 2 * norm**4 / d, "spread of the length")

    Q_weights, M_weights = explicit(law, norm, p, P, d)
    check_same_law(M[:, :2, :2], M_weights[:, :2, :2], "M")
    check_same_law(Q[:, :2, :2], Q_weights[:, :2, :2], "Q")
    # The overlaps of two neurons with the target and with each other are dependent; a joint statistic sees it.
    joint, joint_weights = (
        (Q[:, 1, 0] * M[:, 0, 0] * M[:, 1, 0])[:, None] * d**1.5 for Q, M in ((Q, M), (Q_weights, M_weights))
    )
    check_same_law(joint, joint_weights, "joint")

    omega = np.block([[Q, M], [np.swapaxes(M, 1, 2), np.broadcast_to(P, (DRAWS, *P.shape))]])
    eigenvalues = np.linalg.eigvalsh(omega)
    assert eigenvalues.min() > -1e-12
    if p + len(P) > d:  # weights in d dimensions have overlaps of rank d
        assert np.all(eigenvalues[:, : p + len(P) - d] < 1e-12)


def test_warm_start_keeps_what_is_given_and_draws_the_rest(check_mean, check_same_law):
    p, d, norm = 3, 9, 1.5
    m = np.array([[0.5, 0.1], [0.0, -0.9], [0.3, 0.3]])
    P = P3[:2, :2]
    Q, M = drawn(tl.WarmStart(m, norm), p, P, d)
    np.testing.assert_array_equal(M, np.broadcast_to(m, M.shape))
    np.testing.assert_allclose(np.diagonal(Q, axis1=1, axis2=2), norm**2, rtol=1e-13)

    across = Q - m @ np.linalg.solve(P, m.T)
    lengths = np.sqrt(np.diagonal(across, axis1=1, axis2=2))
    cosines = across / lengths[:, :, None] / lengths[:, None, :]
    # Random directions in the d - k dimensions outside the target: cosines of mean 0 and variance 1/(d - k).
    off = np.tril_indices(p, -1)
    check_mean(cosines[:, *off], 0.0, "cosines")
    check_mean(cosines[:, *off] ** 2, 1 / (d - 2), "cosines squared")
    rows = np.random.default_rng(2).standard_normal((DRAWS, p, d - 2))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    check_same_law(cosines[:, *off], np.einsum("npd,nqd->npq", rows, rows)[:, *off], "cosines")


def test_warm_start_with_one_number():
    Q, M = drawn(tl.WarmStart(0.25), 5, np.eye(2), 12, n=3)
    expected = 0.25 * np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(M, np.broadcast_to(expected, M.shape))
    Q, M = drawn(tl.WarmStart(1.0), 2, np.eye(2), 12, n=3)  # on the target itself: nothing is left to draw
    np.testing.assert_allclose(Q, np.broadcast_to(np.eye(2), Q.shape), atol=1e-15)


def test_scattered_start_has_its_law_and_orthogonal_parts_outside(check_mean):
    P = P3[:2, :2]
    Q, M = drawn(tl.ScatteredStart(0.4, norm=1.3), 3, P, 8)
    check_mean(M, 0.0, "M")
    check_mean(np.einsum("npr,nps->nrs", M, M) / 3 - 0.16 * P, 0.0, "covariance of the overlaps of a row")
    check_mean(M[:, 0, :] * M[:, 1, :], 0.0, "rows are independent")
    across = Q - np.einsum("npr,rs,nqs->npq", M, np.linalg.inv(P), M)
    np.testing.assert_allclose(across, np.broadcast_to(1.69 * np.eye(3), Q.shape), atol=1e-12)
    with pytest.raises(InvalidInput, match="needs p \\+ k = 4"):
        problem(tl.ScatteredStart(), d=3)


def test_scattered_start_with_random_directions_outside(check_mean):
    """Cosines of mean 0 and variance 1/(d - k); the overlaps are those of orthogonal directions, to the last bit."""
    P = P3[:2, :2]
    start = tl.ScatteredStart(0.4, norm=1.3, directions="random")
    Q, M = drawn(start, 3, P, 8)
    np.testing.assert_array_equal(M, drawn(tl.ScatteredStart(0.4, norm=1.3), 3, P, 8)[1])
    cosines = (Q - np.einsum("npr,rs,nqs->npq", M, np.linalg.inv(P), M)) / 1.69
    np.testing.assert_allclose(np.einsum("npp->np", cosines), 1.0, atol=1e-12)
    check_mean(cosines[:, 0, 1], 0.0, "cosine")
    check_mean(cosines[:, 0, 1] ** 2, 1.0 / 6.0, "squared cosine")
    check_mean(cosines[:, 0, 1] * M[:, 0, 0], 0.0, "directions do not depend on the overlaps")
    assert problem(start, p=12).d == 10  # more rows than there are dimensions


def problem(start, target=None, p=2, d=10):
    target = tl.Committee(2, "erf") if target is None else target
    return tl.Problem(target, tl.Student(p, "erf"), tl.Gaussian(d), start=start)


def test_given_overlaps_are_kept_exactly():
    Q, M = np.array([[1.0, 0.2], [0.2, 2.0]]), np.array([[0.1, 0.3], [-0.4, 0.0]])
    stated = problem(tl.GivenOverlaps(Q, M))
    start = stated.draw(jax.random.key(0))
    np.testing.assert_array_equal(start.Q, Q)
    np.testing.assert_array_equal(start.M, M)
    np.testing.assert_array_equal(start.P, np.eye(2))
    assert not stated.has_random_start
    P = P3[:2, :2]
    assert np.array_equal(problem(tl.GivenOverlaps(Q, M, P)).draw(jax.random.key(0)).P, P)


IDENTITY, NOTHING = np.eye(2), np.zeros((2, 2))


@pytest.mark.parametrize(
    "start, words",
    [
        (lambda: tl.GivenOverlaps([[1.0, 2.0], [2.0, 1.0]], NOTHING), "positive semi-definite"),
        (lambda: tl.GivenOverlaps(IDENTITY, 1.1 * IDENTITY), "positive semi-definite"),
        (lambda: tl.GivenOverlaps([[1.0, 0.1], [0.2, 1.0]], NOTHING), "`Q` must be symmetric"),
        (lambda: tl.GivenOverlaps(np.eye(3), NOTHING), r"`Q` must have shape \(p, p\)"),
        (lambda: tl.GivenOverlaps(IDENTITY, np.zeros((2, 3))), r"`M` must have shape \(p, k\)"),
        (lambda: tl.GivenOverlaps(IDENTITY, np.zeros((3, 2))), r"`M` must have shape \(p, k\)"),
        (lambda: tl.GivenOverlaps(IDENTITY, NOTHING, np.eye(3)), r"`P` must have shape \(k, k\)"),
        (lambda: tl.GivenOverlaps(IDENTITY, NOTHING, [[1.0, 1.0], [1.0, 1.0]]), "`P` must be positive definite"),
        (lambda: tl.GivenOverlaps([1.0, 1.0], NOTHING), "`Q`"),
        (lambda: tl.GivenOverlaps(np.nan * IDENTITY, NOTHING), "`Q` must be finite"),
        (lambda: tl.WarmStart(1.1), "`m` must not exceed"),
        (lambda: tl.ScatteredStart(-1.0), "`deviation`"),
        (lambda: tl.ScatteredStart(directions="parallel"), "`directions`"),
        (lambda: tl.WarmStart([[0.8, 0.8], [0.0, 0.0]]), "`m` must not exceed"),
        (lambda: tl.WarmStart(np.zeros((3, 2))), "`m` must have shape"),
        (lambda: tl.WarmStart([0.1, 0.2]), "`m`"),
        (lambda: tl.WarmStart("a"), "`m`"),
        (lambda: tl.WarmStart(0.1, norm=0.0), "`norm`"),
        (lambda: tl.RandomStart("cube"), "`law`"),
        (lambda: tl.RandomStart(norm=-1.0), "`norm`"),
    ],
)
def test_bad_starts_are_refused(start, words):
    with pytest.raises(InvalidInput, match=words):
        problem(start())


def test_overlaps_that_need_more_dimensions_than_there_are():
    start = tl.GivenOverlaps(np.eye(4), np.zeros((4, 2)))
    assert problem(start, p=4, d=6).d == 6
    with pytest.raises(InvalidInput, match="need 6 dimensions, but the inputs have d = 5"):
        problem(start, p=4, d=5)
    # Duplicate neurons need fewer: all four along one direction.
    assert problem(tl.GivenOverlaps(np.ones((4, 4)), np.zeros((4, 2))), p=4, d=3).d == 3


# ------------------------------------------------------------------------------------------------- weights


def random_overlaps(p, k, d, seed):
    rng = np.random.default_rng(seed)
    W, W_star = rng.standard_normal((p, d)), rng.standard_normal((k, d))
    return [jnp.asarray(x) for x in (W @ W.T, W @ W_star.T, W_star @ W_star.T)]


def recovered(p):
    """Perfect recovery with different lengths: the student's rows are the target's."""
    return [jnp.asarray(P3[:p, :p])] * 3


EMBEDDED = {
    "regular": (random_overlaps(3, 2, 9, 0), 9),
    "as many rows as dimensions": (random_overlaps(4, 2, 6, 1), 6),
    "more rows than dimensions": (random_overlaps(6, 2, 5, 2), 5),
    "one dimension outside": (random_overlaps(3, 2, 3, 3), 3),
    "perfect recovery": (recovered(3), 8),
    "duplicate neurons": ([jnp.ones((3, 3)), 0.5 * jnp.ones((3, 1)), jnp.ones((1, 1))], 7),
    "in the target's span": ([jnp.asarray([[0.25]]), jnp.asarray([[0.5]]), jnp.ones((1, 1))], 2),
    "no target": ([jnp.asarray(P3), jnp.zeros((3, 0)), jnp.zeros((0, 0))], 6),
}


# One with room outside the target, one without, and one that is singular; each compiles programs of its own.
QUICK = ("regular", "more rows than dimensions", "duplicate neurons")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EMBEDDED]
)
def test_weights_have_the_overlaps(name):
    (Q, M, P), d = EMBEDDED[name]
    overlaps = Overlaps(Q, M, P, jnp.ones(Q.shape[0]))
    W, W_star = (np.asarray(x) for x in embed(overlaps, d, jax.random.key(5)))
    assert W.shape == (Q.shape[0], d) and W_star.shape == (P.shape[0], d)
    # Rounding of sums over d, relative to squared lengths of order ten.
    np.testing.assert_allclose(W @ W.T, Q, rtol=0, atol=1e-12 * max(1.0, float(jnp.abs(Q).max())))
    np.testing.assert_allclose(W @ W_star.T, M, rtol=0, atol=1e-12 * max(1.0, float(jnp.abs(M).max(initial=0.0))))
    np.testing.assert_allclose(W_star @ W_star.T, P, rtol=0, atol=1e-12 * max(1.0, float(jnp.abs(P).max(initial=0.0))))
    if P.shape[0]:
        solved = np.asarray(Q) - np.asarray(M) @ np.linalg.solve(P, np.asarray(M).T)
        np.testing.assert_allclose(overlaps.perpendicular, solved, atol=1e-12 * max(1.0, float(jnp.abs(Q).max())))
        np.testing.assert_array_equal(overlaps.omega, np.block([[Q, M], [M.T, P]]))


def test_the_frame_is_uniformly_random(check_mean):
    """No direction of the input space is preferred, not even in sign."""
    Q, M, P = jnp.eye(2), jnp.asarray([[0.5], [0.0]]), jnp.eye(1)
    d, n = 5, 4000
    frames = jax.jit(jax.vmap(lambda key: embed(Overlaps(Q, M, P, jnp.ones(2)), d, key)))(keys(n, seed=8))
    W, W_star = (np.asarray(x) for x in frames)
    for rows in (W_star, W):
        check_mean(rows, 0.0, "mean")
        check_mean(rows**2, 1 / d, "variance of each coordinate")
        check_mean(rows[:, :, 0] * rows[:, :, 1], 0.0, "two coordinates")
        # Fourth moment of a coordinate of a uniform unit vector.
        check_mean(rows**4, 3 / (d * (d + 2)), "fourth moment")
    check_mean(W[:, 0] * W[:, 1], 0.0, "two rows")


def test_a_warm_start_is_checked_without_a_warning_in_single_precision(fresh_python):
    """The package switches no precision globally, and a warning is an error in this process."""
    program = """
import twolayer as tl
tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50), start=tl.WarmStart(0.2))
try:
    tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50), start=tl.WarmStart(1.2))
except tl.InvalidInput as refusal:
    print(refusal)
"""
    assert "asks for 1.2" in fresh_python(program)


@pytest.mark.slow
def test_antisymmetric_pairs_cancel():
    start = tl.AntisymmetricStart(deviation=0.5)
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(6, "erf", "gaussian"), tl.Gaussian(40), start=start)
    drawn = problem.draw(jax.random.key(0))
    assert np.array_equal(drawn.Q[:3, :3], drawn.Q[3:, 3:]) and np.array_equal(drawn.Q[:3, :3], drawn.Q[:3, 3:])
    assert np.array_equal(drawn.M[:3], drawn.M[3:]) and np.array_equal(drawn.a[:3], -drawn.a[3:])
    assert np.all(np.asarray(drawn.a) != 0.0)
    # Rows of d components of this deviation, each of them.
    many = jax.vmap(problem.draw)(jax.random.split(jax.random.key(1), 400))
    squares = np.diagonal(many.Q[:, :3, :3], axis1=1, axis2=2)
    assert abs(squares.mean() / (0.25 * 40) - 1.0) < 5.0 * np.sqrt(2.0 / 40 / 1200)
    assert abs(np.var(many.M[:, :3]) / 0.25 - 1.0) < 5.0 * np.sqrt(2.0 / 2400)
    with pytest.raises(InvalidInput, match="`p` must be even"):
        tl.Problem(tl.Committee(2, "erf"), tl.Student(5, "erf"), tl.Gaussian(40), start=start)
