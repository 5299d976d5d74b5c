"""Square roots of singular matrices, and random triangular factors against Gaussian matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from twolayer.core.linalg import bartlett, cholesky, root, symmetrise

RNG = np.random.default_rng(1)


def rows_of(*rows):
    W = np.array(rows)
    return W @ W.T


DUPLICATED = RNG.normal(size=(2, 5))
MATRICES = {
    "regular": rows_of(*RNG.normal(size=(4, 6))),
    "fewer dimensions than rows": rows_of(*RNG.normal(size=(5, 2))),
    "duplicate rows": rows_of(*DUPLICATED, *DUPLICATED),
    "opposite rows": rows_of(*DUPLICATED, *-DUPLICATED),
    "zero": np.zeros((3, 3)),
    "one by one": np.array([[2.0]]),
    "identity": np.eye(4),
    "tiny": 1e-20 * rows_of(*RNG.normal(size=(3, 3))),
    "very uneven": rows_of(*(np.diag([1e6, 1.0, 1e-6]) @ RNG.normal(size=(3, 4)))),
}


@pytest.mark.parametrize("name", MATRICES)
def test_root_squares_to_the_matrix(name):
    A = MATRICES[name]
    R = np.asarray(root(jnp.asarray(A)))
    np.testing.assert_allclose(R, R.T, rtol=0, atol=1e-14 * max(np.abs(R).max(), 1e-300))
    # Eigenvectors are orthonormal to rounding, so errors are rounding times the norm of A.
    np.testing.assert_allclose(R @ R, A, rtol=0, atol=1e-13 * np.abs(A).max())
    assert np.linalg.eigvalsh(R).min() >= -1e-7 * np.sqrt(np.abs(A).max())  # the positive root


def test_root_counts_rounding_below_zero_as_zero():
    A = np.diag([1.0, -1e-17])
    np.testing.assert_allclose(root(jnp.asarray(A)), np.diag([1.0, 0.0]), atol=1e-16)


@pytest.mark.parametrize("n", [1, 3, 8, 12])
@pytest.mark.parametrize("rank", [1, 2, 20])
def test_cholesky_of_singular_matrices(n, rank):
    """Written out and in a loop; a direction of no length, or less, leaves no column behind."""
    W = np.random.default_rng(n).normal(size=(n, rank))
    A = W @ W.T
    factor = np.asarray(cholesky(jnp.asarray(A)))
    np.testing.assert_allclose(factor @ factor.T, A, atol=1e-13 * rank)
    np.testing.assert_array_equal(np.triu(factor, 1), 0.0)
    negative = np.asarray(cholesky(jnp.asarray(np.diag(np.where(np.arange(n) % 2, -1.0, 4.0)))))
    np.testing.assert_array_equal(negative, np.diag(np.where(np.arange(n) % 2, 0.0, 2.0)))


def test_symmetrise():
    A = jnp.asarray(RNG.normal(size=(3, 3)))
    np.testing.assert_array_equal(symmetrise(A), 0.5 * (np.asarray(A) + np.asarray(A).T))


DRAWS = 6_000


def wishart(rows, degrees, seed):
    factors = jax.jit(jax.vmap(lambda key: bartlett(key, rows, degrees)[0]))(
        jax.random.split(jax.random.key(seed), DRAWS)
    )
    return np.asarray(factors), np.einsum("nic,njc->nij", factors, factors)


@pytest.mark.parametrize(
    "rows, degrees",
    [(3, 8), (4, 2), *(pytest.param(*each, marks=pytest.mark.long) for each in ((3, 3), (3, 1), (2, 1000)))],
)
def test_bartlett_is_wishart(rows, degrees, check_mean, check_same_law):
    B, S = wishart(rows, degrees, seed=rows * 100 + degrees)
    columns = min(rows, degrees)
    assert B.shape == (DRAWS, rows, columns)
    np.testing.assert_array_equal(np.triu(np.ones((rows, columns)), 1) * B, 0.0)
    assert np.all(B[:, range(columns), range(columns)] >= 0.0)

    identity = np.eye(rows)
    check_mean(S, degrees * identity, "mean")
    # Var S_ij = D (1 + delta_ij), exact for a Wishart matrix of identity scale.
    check_mean((S - degrees * identity) ** 2, degrees * (1 + identity), "variance")
    if degrees < rows:
        assert np.all(np.linalg.matrix_rank(S[:200], tol=1e-9) <= degrees)

    G = np.random.default_rng(7).standard_normal((DRAWS if degrees < 100 else 4000, rows, degrees))
    explicit = np.einsum("nic,njc->nij", G, G)
    entries = np.tril_indices(rows)
    check_same_law(S[:, *entries], explicit[:, *entries], "entries")
    # A joint statistic, blind to nothing that entrywise laws leave open: the product of all entries of a row pair.
    joint, joint_explicit = ((S[:, 0, 0] * S[:, -1, 0] * S[:, -1, -1])[:, None] for S in (S, explicit))
    check_same_law(joint / degrees**2, joint_explicit / degrees**2, "joint")


def test_bartlett_without_degrees_is_empty():
    assert bartlett(jax.random.key(0), 3, 0)[0].shape == (3, 0)


@pytest.mark.parametrize("degrees", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 10**6))])
def test_the_diagonal_of_bartlett_is_chi(degrees):
    """Kolmogorov's test of each diagonal entry at 50,000 draws; a scale that is off by half a percent fails at 10^6."""
    keys = jax.random.split(jax.random.key(5), 50_000)
    factors, _ = jax.jit(jax.vmap(lambda key: bartlett(key, 2, degrees)))(keys)
    for j in range(min(2, degrees)):
        assert stats.kstest(np.asarray(factors)[:, j, j], stats.chi(degrees - j).cdf).pvalue > 1e-6
