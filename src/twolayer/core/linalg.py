"""Small symmetric matrices: square roots that exist for singular matrices, and random triangular factors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from twolayer.core.types import Numbers


def symmetrise(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the symmetric part of a matrix."""
    return 0.5 * (A + A.T)


# Square roots of eigenvalues below this fraction of the largest are rounding.
NULL = 1e-7


@jax.custom_jvp
def root(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r"""Return the symmetric square root of a positive semi-definite matrix.

    Negative eigenvalues, which only rounding can cause, count as zero. Unlike a Cholesky factor, the root exists and is
    continuous at singular matrices: perfect recovery, duplicate neurons, more neurons than dimensions.

    Its derivative solves :math:`R\,dR + dR\,R = dA`. Within the null space, where the root has no derivative, zero is
    used, so that derivatives through singular matrices are finite.
    """
    values, vectors = _roots(A)
    return (vectors * values[None, :]) @ vectors.T


@root.defjvp
def _root_derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    values, vectors = _roots(primals[0])
    sums = values[:, None] + values[None, :]
    is_free = sums > NULL * jnp.max(values)
    turned = vectors.T @ symmetrise(tangents[0]) @ vectors
    derivative = jnp.where(is_free, turned / jnp.where(is_free, sums, 1.0), 0.0)
    return (vectors * values[None, :]) @ vectors.T, vectors @ derivative @ vectors.T


def _roots(A: Array) -> tuple[Array, Array]:
    """Return the square roots of the eigenvalues, and the eigenvectors."""
    values, vectors = jnp.linalg.eigh(symmetrise(A))
    return jnp.sqrt(jnp.maximum(values, 0.0)), vectors


# A pivot below this fraction of its diagonal entry is rounding.
NO_PIVOT = 1e-15
# Factors up to this size are unrolled, which vectorises over replicas; larger ones are computed in a loop.
WRITTEN_OUT = 8


def cholesky(A: Float[Array, "n n"], least: Float[Array, " n"] | None = None) -> Float[Array, "n n"]:
    """Return the lower-triangular factor of a matrix that may be singular.

    A column is zero where its pivot is not above ``least``; by default the rounding of the diagonal entry.
    """
    n = A.shape[0]
    least = NO_PIVOT * jnp.diagonal(A) if least is None else least
    place = jnp.arange(n)

    def column_at(j: Any, remainder: Array) -> Array:
        pivot = remainder[j, j]
        is_free = pivot > least[j]
        scale = jnp.where(is_free, 1.0 / jnp.sqrt(jnp.where(is_free, pivot, 1.0)), 0.0)
        return jnp.where(place >= j, remainder[:, j] * scale, 0.0)

    if n <= WRITTEN_OUT:
        remainder, columns = A, []
        for j in range(n):
            columns.append(column_at(j, remainder))
            remainder = remainder - columns[-1][:, None] * columns[-1][None, :]
        return jnp.stack(columns, axis=1)

    def step(j: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        remainder, factor = carry
        column = column_at(j, remainder)
        return remainder - column[:, None] * column[None, :], factor.at[:, j].set(column)

    return jax.lax.fori_loop(0, n, step, (A, jnp.zeros_like(A)))[1]


def pair_positions(n: int) -> Int[np.ndarray, "n n"]:
    """Return the position of each pair (i, j) in the list ``np.triu_indices(n)``, which turns a list into a matrix."""
    rows, columns = np.triu_indices(n)
    position = np.zeros((n, n), dtype=int)
    position[rows, columns] = position[columns, rows] = np.arange(len(rows))
    return position


# Proposals for a chi variable: all are rejected with probability 0.05^12, below the rounding of a probability.
PROPOSALS = 12


def bartlett(key: Key[Array, ""], rows: int, degrees: Numbers, beside: int = 0) -> tuple[Any, Any]:
    r"""Draw the lower-trapezoidal factor of a ``rows x degrees`` standard Gaussian matrix without drawing the matrix.

    .. math:: G = B O, \qquad B_{ij} \sim N(0, 1)\ (i > j), \qquad B_{jj} \sim \chi_{D - j}\ (j = 0, 1, \dots)

    with orthonormal rows of O independent of B, so that :math:`B B^T` is Wishart with D degrees of freedom. It has
    min(rows, degrees) columns. Its cost does not depend on ``degrees``, which may be traced if it is at least ``rows``.

    Returns
    -------
    The factor, and ``beside`` columns of independent standard normals. All numbers are drawn at once, since each call
    of the generator takes half a second to compile.
    """
    columns = min(rows, degrees) if isinstance(degrees, int) else rows
    drawn = jax.random.normal(key, (rows * (beside + columns) + (2 * PROPOSALS + 1) * columns,), dtype=jnp.float64)
    normals, proposals = jnp.split(drawn, [rows * (beside + columns)])
    normals, proposals = normals.reshape(rows, beside + columns), proposals.reshape(2 * PROPOSALS + 1, columns)
    uniforms = 0.5 * jax.scipy.special.erfc(proposals[PROPOSALS:] / jnp.sqrt(2.0))
    chi = _chi(jnp.asarray(degrees) - jnp.arange(columns, dtype=jnp.float64), proposals[:PROPOSALS], uniforms)
    factor = jnp.tril(normals[:, beside:], -1) + jnp.eye(rows, columns) * chi[None, :]
    return factor, normals[:, :beside]


def _chi(freedom: Float[Array, " n"], normals: Float[Array, "proposals n"], uniforms: Any) -> Float[Array, " n"]:
    r"""Draw chi variables by the rejection method of Marsaglia and Tsang: take the first accepted proposal.

    For the gamma law of shape a at least one, :math:`b (1 + x / \sqrt{9 b})^3` with :math:`b = a - 1/3` is accepted
    with probability 0.95 or more; one degree of freedom has shape 1/2, which is shape 3/2 times a power of a uniform
    number. Loops until acceptance, as in ``jax.random.gamma``, take two seconds to compile.
    """
    shape = freedom / 2.0
    is_small = shape < 1.0
    b = jnp.where(is_small, shape + 1.0, shape) - 1.0 / 3.0
    v = (1.0 + normals / jnp.sqrt(9.0 * b)[None, :]) ** 3
    logarithm = jnp.log(jnp.where(v > 0.0, v, 1.0))
    bound = 0.5 * normals**2 + b[None, :] * (1.0 - v + logarithm)
    is_accepted = (v > 0.0) & (jnp.log(uniforms[:-1]) < bound)
    chosen = jnp.take_along_axis(b[None, :] * v, jnp.argmax(is_accepted, axis=0)[None, :], axis=0)[0]
    return jnp.sqrt(2.0 * chosen * jnp.where(is_small, uniforms[-1] ** (1.0 / shape), 1.0))
