"""The overlaps, which determine the dynamics on Gaussian inputs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.core.errors import InvalidInput
from twolayer.core.linalg import symmetrise
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.types import NumbersLike
from twolayer.problem.spectrum_blocks import BlockOverlaps

TOLERANCE = 1e-9


def _as_array(value: NumbersLike) -> Any:
    """Lists and NumPy arrays as arrays of doubles, which JAX without double precision would round; others as is."""
    return np.asarray(value, dtype=np.float64) if isinstance(value, list | tuple | np.ndarray) else value


class Overlaps(eqx.Module):
    r"""The overlap matrices and the second layer, as JAX arrays, NumPy arrays or lists.

    .. math:: Q = W W^T, \quad M = W W^{\star T}, \quad P = W^\star W^{\star T}, \quad
              \Omega = \begin{pmatrix} Q & M \\ M^T & P \end{pmatrix} \succeq 0

    Omega is the covariance of the local fields (student first, then target). Invariants: Q and P are symmetric, Omega
    is positive semi-definite, P is positive definite and constant. Arrays may have leading axes (replica, time). Where
    the inputs have a spectrum, ``blocks`` holds the overlaps by block, whose plain sums these are: the covariance of
    the fields is then that of `of_fields`.
    """

    Q: Float[Array, "*n p p"] = eqx.field(converter=_as_array)
    M: Float[Array, "*n p k"] = eqx.field(converter=_as_array)
    P: Float[Array, "k k"] = eqx.field(converter=_as_array)
    a: Float[Array, "*n p"] = eqx.field(converter=_as_array)
    blocks: BlockOverlaps | None = None

    @property
    def of_fields(self) -> "Overlaps":
        """The overlaps that are the covariance of the fields, at which Gaussian averages are taken."""
        return self if self.blocks is None else Overlaps(*self.blocks.weighted(), self.a)

    def with_eigenvalues(self, eigenvalues: Float[np.ndarray, " blocks"]) -> "Overlaps":
        """The same overlaps by block on inputs with other eigenvalues."""
        assert self.blocks is not None
        frame = self.blocks.frame.with_eigenvalues(eigenvalues)
        return Overlaps(self.Q, self.M, self.P, self.a, BlockOverlaps(self.blocks.Q, self.blocks.M, frame))

    def replica(self, which: int | slice | np.ndarray) -> "Overlaps":
        """The overlaps of one of several replicas, which are along the first axis, or of some of them."""
        blocks = self.blocks
        if blocks is not None:
            blocks = BlockOverlaps(blocks.Q[which], blocks.M[which], blocks.frame)
        return Overlaps(self.Q[which], self.M[which], self.P, self.a[which], blocks)

    @classmethod
    def by_block(cls, blocks: BlockOverlaps, a: Float[Array, "*n p"]) -> "Overlaps":
        """The overlaps from those by block, which are their plain sums."""
        Q, M = (jnp.sum(jnp.asarray(x), axis=-3) for x in (blocks.Q, blocks.M))
        return cls(Q, M, jnp.sum(blocks.frame.P, axis=0), a, blocks)

    @property
    def omega(self) -> Float[Array, "n n"]:
        """The covariance of all p + k local fields."""
        return jnp.block([[self.Q, self.M], [self.M.T, self.P]])

    @property
    def projection(self) -> Float[Array, "p k"]:
        r"""The coefficients :math:`M P^{-1}` of the student rows along the target directions."""
        return self.M if self.M.shape[1] == 0 else jnp.linalg.solve(self.P, self.M.T).T

    @property
    def perpendicular(self) -> Float[Array, "p p"]:
        r"""The overlaps of the parts of the rows orthogonal to the target, :math:`Q^\perp = Q - M P^{-1} M^T`."""
        return symmetrise(self.Q - self.projection @ self.M.T)


def check_overlaps(Q: np.ndarray | Array, M: np.ndarray | Array, P: np.ndarray | Array) -> None:
    """Raise `InvalidInput` if the shapes do not fit or the overlap matrix is not positive semi-definite."""
    Q, M, P = np.asarray(Q), np.asarray(M), np.asarray(P)
    p, k = M.shape
    if Q.shape != (p, p):
        raise InvalidInput(f"Argument `Q` must have shape (p, p) = ({p}, {p}), but has shape {Q.shape}.")
    if P.shape != (k, k):
        raise InvalidInput(f"Argument `P` must have shape (k, k) = ({k}, {k}), but has shape {P.shape}.")
    scale = max(1.0, float(np.abs(Q).max()), float(np.abs(P).max()) if k else 0.0)
    for name, matrix in (("Q", Q), ("P", P)):
        if not np.allclose(matrix, matrix.T, rtol=0, atol=TOLERANCE * scale):
            raise InvalidInput(f"Argument `{name}` must be symmetric, but differs from its transpose.")
    smallest = float(np.linalg.eigvalsh(np.block([[Q, M], [M.T, P]])).min())
    if smallest < -TOLERANCE * scale:
        raise InvalidInput(
            "The overlap matrix of `Q`, `M` and `P` must be positive semi-definite, "
            f"but has the eigenvalue {smallest:.3g}."
        )


def embed(overlaps: Overlaps, d: int, key: Key[Array, ""]) -> tuple[Float[Array, "p d"], Float[Array, "k d"]]:
    r"""Draw weights with the given overlaps, in a uniformly random frame.

    .. math:: W^\star = P^{1/2} E^\star, \qquad W = M P^{-1} W^\star + L E^\perp, \qquad L L^T = Q^\perp

    with orthonormal rows :math:`(E^\star, E^\perp)`. Gaussian inputs have no preferred direction, so weights drawn
    through their overlaps have the same distribution as weights drawn directly, at any d.
    """
    p, k = overlaps.M.shape
    rank = min(p, d - k)
    values, vectors = jnp.linalg.eigh(overlaps.perpendicular)
    factor = vectors[:, p - rank :] * jnp.sqrt(jnp.maximum(values[p - rank :], 0.0))[None, :]
    normals = jax.random.normal(purpose_key(key, Purpose.FRAME), (d, k + rank), dtype=jnp.float64)
    # The signs of R depend on the implementation of QR; the frame is uniform if its diagonal is made positive.
    vectors, R = jnp.linalg.qr(normals)
    frame = (vectors * jnp.where(jnp.diagonal(R) < 0.0, -1.0, 1.0)[None, :]).T
    W_star = jnp.linalg.cholesky(overlaps.P) @ frame[:k] if k else jnp.zeros((0, d))
    return overlaps.projection @ W_star + factor @ frame[k:], W_star
