"""Spectra of the inputs: blocks, where target and starts lie in them, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.problem import Eigenvalues, embed_blocks
from twolayer.problem.spectrum import power_sums
from twolayer.specification.codec import from_json, to_json

TWO = [(2.0, 0.3), (0.5, 0.7)]
DRAWS = 4000


def committee(inputs, p=3, start=None, k=2):
    return tl.Problem(tl.Committee(k, "erf"), tl.Student(p, "erf"), inputs, start=start or tl.RandomStart())


def test_ranks_sum_to_the_dimension_and_are_nearest_to_their_shares():
    rng = np.random.default_rng(0)
    for _ in range(200):
        shares = rng.dirichlet(np.ones(rng.integers(1, 8)))
        d = int(rng.integers(int(np.ceil(1 / shares.min())), 3000 + int(np.ceil(1 / shares.min()))))
        _, ranks = Eigenvalues([(1.0, share) for share in shares]).blocks(d)
        assert sum(ranks) == d
        assert np.all(np.abs(np.array(ranks) - shares * d) < 1.0)


@pytest.mark.parametrize("d", [10, 1000, 10**6])
def test_a_power_law_is_binned_with_its_trace(d):
    eigenvalues, ranks = tl.PowerLaw(1.3).blocks(d)
    assert sum(ranks) == d
    assert np.dot(eigenvalues, ranks) == pytest.approx(d, rel=1e-12)
    assert np.all(np.diff(eigenvalues) < 0)
    finer, own = tl.PowerLaw(1.3).finer.blocks(d)
    assert len(own) > len(ranks) if d > 10 else sum(own) == d
    if d == 10:  # every eigenvalue is a block of its own: the power itself
        l = np.arange(1.0, 11.0)
        exact = tl.PowerLaw(1.3, bins=400).blocks(d)[0]
        np.testing.assert_allclose(exact, 10 * l**-1.3 / np.sum(l**-1.3), rtol=1e-12)
    assert finer[0] >= eigenvalues[0]


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.0 + 1e-9, 1.5, 9.0])
def test_sums_of_a_power_law_are_right_in_any_dimension(alpha):
    """Against sums in extended precision to 3 10^6, and in 10^9 dimensions against the trace, which is d."""
    ends = np.array([1.0, 2.0, 1e5, 1e5 + 1, 1e5 + 2, 2e5, 3e6])
    terms = np.arange(1.0, 3e6).astype(np.longdouble) ** -np.longdouble(alpha)
    sums = np.concatenate([[0.0], np.cumsum(terms)])[ends.astype(int) - 1].astype(np.float64)
    np.testing.assert_allclose(power_sums(alpha, ends), sums, rtol=1e-13)
    eigenvalues, ranks = tl.PowerLaw(alpha).blocks(10**9)
    assert np.dot(eigenvalues, ranks) == pytest.approx(1e9, rel=1e-12)


def test_a_covariance_gives_its_eigenvalues():
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    C = axes @ np.diag([3.0, 3.0, 1.0, 1.0, 1.0, 0.0]) @ axes.T
    eigenvalues, ranks = tl.Gaussian(6, spectrum=C).blocks
    np.testing.assert_allclose(eigenvalues, [3.0, 1.0, 0.0], atol=1e-12)
    assert ranks == (2, 3, 1)


def test_the_gaussian_equivalent_of_a_data_set_has_its_covariance_and_directions():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((400, 40)) * np.arange(1, 41) ** -0.4 + 3.0
    directions = rng.standard_normal((2, 40)) / np.sqrt(40)
    inputs = tl.Gaussian.like(X, directions, bins=400)
    assert inputs.d == 40
    C = np.cov(X.T, bias=True)
    seen = np.einsum("l,lrs->rs", inputs.blocks[0], inputs.teacher)
    np.testing.assert_allclose(seen, directions @ C @ directions.T, atol=1e-12)
    P = directions @ directions.T
    problem = tl.Problem(tl.Committee(2, "erf", P=P), tl.Student(2, "erf"), tl.Gaussian.like(X, directions))
    np.testing.assert_allclose(problem.frame.P.sum(axis=0), P, atol=1e-9)
    assert len(problem.frame.ranks) <= 16
    same = tl.Gaussian.with_covariance(C, directions, bins=400)
    np.testing.assert_allclose(same.blocks[0], inputs.blocks[0], atol=1e-12)
    np.testing.assert_allclose(same.teacher, inputs.teacher, atol=1e-12)


def test_what_is_not_given_is_not_part_of_a_specification():
    assert to_json(tl.Gaussian(100)) == '{"d":100,"kind":"Gaussian"}'
    assert "blocks" not in to_json(tl.RandomStart())
    for inputs in (
        tl.Gaussian(200, spectrum=TWO),
        tl.Gaussian(200, spectrum=tl.PowerLaw(1.5, bins=8), teacher="tail"),
        tl.Gaussian(200, spectrum=TWO, teacher=[0.2, 0.8]),
    ):
        again = from_json(to_json(inputs), tl.Gaussian)
        assert to_json(again) == to_json(inputs)
        assert "spectrum=" in repr(inputs)


def explicit(start, p, P, eigenvalues_and_ranks, roots, n, seed=3):
    """Overlaps by block of weights that are drawn in all dimensions; the target lies along the first axes of blocks."""
    rng = np.random.default_rng(seed)
    ranks = eigenvalues_and_ranks[1]
    d, ends = sum(ranks), np.cumsum(ranks)[:-1]
    W_star = np.concatenate(
        [np.hstack([root, np.zeros((len(P), rank - root.shape[1]))]) for root, rank in zip(roots, ranks, strict=True)],
        axis=1,
    )
    G = rng.standard_normal((n, p, d))
    beside = G - G @ W_star.T @ np.linalg.solve(P, W_star)
    unit = lambda x: x / np.linalg.norm(x, axis=2, keepdims=True)  # noqa: E731
    if isinstance(start, tl.WarmStart):
        W = np.sqrt(1 - 0.3**2) * unit(beside) + 0.3 * (np.arange(p)[:, None] % 2 == np.arange(2)) @ W_star
    elif isinstance(start, tl.ScatteredStart):
        along = 0.5 * rng.standard_normal((n, p, len(P))) @ np.linalg.solve(np.linalg.cholesky(P), W_star)
        W = along + unit(beside)
    elif start.blocks is not None:
        parts = np.split(G, ends, axis=2)
        W = np.concatenate([np.sqrt(s) * unit(part) for s, part in zip(start.blocks, parts, strict=True)], axis=2)
    else:
        W = unit(G) if start.law == "sphere" else G / np.sqrt(d)
    parts, stars = np.split(W, ends, axis=2), np.split(W_star, ends, axis=1)
    Q = np.stack([np.einsum("npd,nqd->npq", part, part) for part in parts], axis=1)
    M = np.stack([part @ star.T for part, star in zip(parts, stars, strict=True)], axis=1)
    return Q, M


@pytest.mark.parametrize("d", [9, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "start",
    [
        tl.RandomStart(),
        pytest.param(tl.RandomStart("gaussian"), marks=pytest.mark.slow),
        pytest.param(tl.RandomStart(blocks=[0.8, 0.2]), marks=pytest.mark.slow),
        tl.WarmStart(0.3),
        pytest.param(tl.ScatteredStart(directions="random"), marks=pytest.mark.slow),
    ],
    ids=["sphere", "gaussian", "shares", "warm", "scattered"],
)
def test_starts_have_the_law_of_weights_drawn_in_all_dimensions(start, d, check_same_law):
    problem = committee(tl.Gaussian(d, spectrum=TWO), start=start)
    frame = problem.frame
    drawn = jax.jit(lambda keys: problem.draw_many(keys, None, frame))(jax.random.split(jax.random.key(0), DRAWS))
    Q, M = explicit(start, 3, np.eye(2), (frame.eigenvalues, frame.ranks), frame.roots, DRAWS)
    assert drawn.blocks is not None
    rows, columns = np.triu_indices(3)
    for block in range(2):
        ours = np.asarray(drawn.blocks.Q)[:, block, rows, columns], np.asarray(drawn.blocks.M)[:, block].reshape(-1, 6)
        theirs = Q[:, block, rows, columns], M[:, block].reshape(-1, 6)
        check_same_law(np.round(np.hstack(ours), 9), np.round(np.hstack(theirs), 9))
    np.testing.assert_allclose(drawn.Q, np.asarray(drawn.blocks.Q).sum(axis=1), atol=1e-12)


@pytest.mark.parametrize("teacher", [None, "leading", "tail", [0.1, 0.9], [[1.0, 0.0], [0.4, 0.6]]])
def test_weights_are_embedded_with_their_overlaps(teacher):
    problem = committee(tl.Gaussian(10, spectrum=TWO, teacher=teacher))
    frame = problem.frame
    np.testing.assert_allclose(frame.P.sum(axis=0), np.eye(2), atol=1e-12)
    start = problem.draw(jax.random.key(4))
    assert start.blocks is not None
    W, W_star = embed_blocks(frame, start.blocks.Q, start.blocks.M, jax.random.key(5))
    for block, part in enumerate((slice(0, 3), slice(3, 10))):
        np.testing.assert_allclose(W[:, part] @ W[:, part].T, start.blocks.Q[block], atol=1e-9)
        np.testing.assert_allclose(W[:, part] @ W_star[:, part].T, start.blocks.M[block], atol=1e-9)
        np.testing.assert_allclose(W_star[:, part] @ W_star[:, part].T, frame.P[block], atol=1e-9)


def test_leading_targets_take_the_directions_of_the_largest_eigenvalues_one_by_one():
    problem = committee(tl.Gaussian(50, spectrum=tl.PowerLaw(1.0, bins=50), teacher="leading"), k=3)
    shares = np.asarray(problem.frame.P)[:, np.arange(3), np.arange(3)]
    np.testing.assert_allclose(shares[:3].sum(axis=0), 1.0, atol=1e-12)


def test_matrices_are_spread_over_the_blocks_as_in_high_dimension():
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])
    problem = committee(tl.Gaussian(100, spectrum=TWO, teacher=[0.3, 0.7]), 2, start)
    drawn = problem.draw(jax.random.key(0))
    assert drawn.blocks is not None
    np.testing.assert_allclose(drawn.blocks.Q, np.array([0.3, 0.7])[:, None, None] * start.Q, atol=1e-12)
    np.testing.assert_allclose(drawn.blocks.M, np.array([0.3, 0.7])[:, None, None] * start.M, atol=1e-12)
    np.testing.assert_allclose(drawn.of_fields.Q, (0.6 + 0.35) * jnp.asarray(start.Q), atol=1e-12)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: tl.Gaussian(10, spectrum=[(-1.0, 0.5), (1.0, 0.5)]), "eigenvalues of `spectrum` must lie in"),
        (lambda: tl.Gaussian(10, spectrum=[(1.0, 0.5), (2.0, 0.4)]), "must sum to 1, but sum to 0.9"),
        (lambda: tl.Gaussian(10, spectrum=[(1.0, 1.5), (2.0, -0.5)]), "shares of `spectrum` must be above 0"),
        (lambda: tl.Gaussian(10, spectrum=[(0.0, 1.0)]), "must be above 0, but all are 0"),
        (lambda: tl.Gaussian(10, spectrum=[(float("nan"), 1.0)]), "contains NaN"),
        (lambda: tl.Gaussian(10, spectrum=[]), "pairs"),
        (lambda: tl.Gaussian(10, spectrum="steep"), "must be a list of pairs"),
        (lambda: tl.Gaussian(10, spectrum=[[1.0, 0.5], [2.0]]), "must be a list of pairs"),
        (lambda: tl.Gaussian(10, spectrum=[(1.0, 0.999), (2.0, 0.001)]), "leave a dimension to every block"),
        (lambda: tl.Gaussian(4, spectrum=-np.eye(4)), "positive semi-definite"),
        (lambda: tl.Gaussian(4, spectrum=np.triu(np.ones((4, 4)))), "must be symmetric"),
        (lambda: tl.Gaussian(5, spectrum=np.eye(4)), "has 4 dimensions, but the inputs have d = 5"),
        (lambda: tl.PowerLaw(-1.0), "`alpha`"),
        (lambda: tl.Gaussian(10, teacher="leading"), "needs a `spectrum`"),
        (lambda: tl.Gaussian(10, spectrum=TWO, teacher="first"), "which is not known"),
        (lambda: tl.Gaussian(10, spectrum=TWO, teacher=[0.5, 0.6]), "must sum to 1"),
        (lambda: tl.RandomStart(blocks=[1.5, -0.5]), "at least 0"),
        (lambda: committee(tl.Gaussian(10), start=tl.RandomStart(blocks="tail")), "needs inputs with a spectrum"),
        (lambda: committee(tl.Gaussian(10, spectrum=TWO), start=tl.RandomStart(blocks=[1.0])), "one share for each"),
        (lambda: committee(tl.Gaussian(10, spectrum=TWO, teacher=[1.0])), "must have shape"),
        (
            lambda: committee(tl.Gaussian(10, spectrum=[(2.0, 0.1), (1.0, 0.9)], teacher=[0.5, 0.5])),
            "needs 2 dimensions",
        ),
        (lambda: committee(tl.Gaussian(10, spectrum=TWO, teacher=np.ones((2, 2, 2)))), "must sum to the overlaps P"),
        (
            lambda: committee(tl.Gaussian(10, spectrum=[(0.0, 0.5), (1.0, 0.5)], teacher=[1.0, 0.0])),
            "must be seen by the inputs",
        ),
        (
            lambda: committee(tl.Gaussian(10), 2, tl.GivenOverlaps(np.ones((2, 2, 2)), np.ones((2, 2, 2)))),
            "need inputs with a spectrum",
        ),
        (
            lambda: committee(
                tl.Gaussian(40, spectrum=TWO), 2, tl.GivenOverlaps([np.eye(2), -np.eye(2)], np.zeros((2, 2, 2)))
            ),
            "Block 1 of the spectrum",
        ),
        (lambda: tl.Gaussian.like(np.ones((5, 3))), "variance in some direction"),
        (lambda: tl.Gaussian.like(np.random.default_rng(0).normal(size=(9, 3)), np.eye(4)), "rows of 3 numbers"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(make, words):
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")) as refused:
        make()
    assert "\n" not in str(refused.value)
