r"""Weights and overlaps by blocks of the spectrum of the inputs, exactly and at a cost that does not depend on d.

In block l the target directions span :math:`k_l` dimensions and p rows of weights at most p more. Weights are held in
orthonormal coordinates of these directions, block by block, first those within the span of the target.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.core.errors import InvalidInput
from twolayer.core.linalg import bartlett
from twolayer.core.random import Purpose, purpose_key

if TYPE_CHECKING:
    from twolayer.problem.inputs import Gaussian

# Eigenvalues below this fraction of the largest are rounding.
NULL = 1e-10


class BlockFrame(eqx.Module):
    """The blocks of a spectrum, and where in them the target lies."""

    eigenvalues: Float[Array | np.ndarray, " blocks"]
    roots: tuple[Float[Array | np.ndarray, "k _"], ...]  # factors of P_l, with as many columns as its rank
    ranks: tuple[int, ...] = eqx.field(static=True)

    @property
    def d(self) -> int:
        """The input dimension."""
        return sum(self.ranks)

    @property
    def shares(self) -> Float[np.ndarray, " blocks"]:
        """The share of the dimensions that each block has."""
        return np.array(self.ranks) / self.d

    @property
    def P(self) -> Float[Array, "blocks k k"]:
        """The target-target overlaps by block."""
        return jnp.stack([jnp.asarray(root @ root.T) for root in self.roots])

    @property
    def inside(self) -> tuple[int, ...]:
        """The dimensions of each block within the span of the target."""
        return tuple(root.shape[1] for root in self.roots)

    def outside(self, rows: int) -> tuple[int, ...]:
        """The dimensions of each block that so many rows of weights need beside them."""
        return tuple(min(rows, rank - inside) for rank, inside in zip(self.ranks, self.inside, strict=True))

    def columns(self, p: int) -> list[int]:
        """Where the coordinates of the blocks begin: within the target's span, beside it, and so on for each block."""
        sizes = [size for pair in zip(self.inside, self.outside(p), strict=True) for size in pair]
        return np.cumsum([0, *sizes]).tolist()

    def target_rows(self, p: int) -> Float[Array, "k n"]:
        """The coordinates of the target directions."""
        zeros = [jnp.zeros((len(root), size)) for root, size in zip(self.roots, self.outside(p), strict=True)]
        return jnp.concatenate([part for pair in zip(self.roots, zeros, strict=True) for part in pair], axis=1)

    def normal_rows(self, key: Key[Array, ""], p: int) -> Float[Array, "p n"]:
        """The coordinates of p independent standard normal rows in d dimensions, of all blocks at once."""
        rest = [rank - inside for rank, inside in zip(self.ranks, self.inside, strict=True)]
        is_wide = [size >= p for size in rest]
        sizes = [size for inside, own, wide in zip(self.inside, rest, is_wide, strict=True)
                 for size in (inside, 0 if wide else own)]  # fmt: skip
        drawn = jax.random.normal(key, (p, max(1, sum(sizes))), jnp.float64)
        parts = [drawn[:, first : first + size] for first, size in zip(np.cumsum([0, *sizes]), sizes, strict=False)]
        if any(is_wide):
            degrees = jnp.asarray([float(size) for size, wide in zip(rest, is_wide, strict=True) if wide])
            keys = jax.random.split(jax.random.fold_in(key, 1), sum(is_wide))
            across = iter(jax.vmap(lambda key, degree: bartlett(key, p, degree)[0])(keys, degrees))
            for block, wide in enumerate(is_wide):
                if wide:
                    parts[2 * block + 1] = next(across)
        return jnp.concatenate(parts, axis=1)

    def overlaps_of(self, W: Float[Array, "p n"]) -> "BlockOverlaps":
        """The overlaps of weights that are given by their coordinates."""
        begins = self.columns(W.shape[0])
        blocks = [W[:, begins[2 * l] : begins[2 * l + 2]] for l in range(len(self.ranks))]
        along = [W[:, begins[2 * l] : begins[2 * l + 1]] for l in range(len(self.ranks))]
        Q = jnp.stack([X @ X.T for X in blocks])
        M = jnp.stack([X @ root.T for X, root in zip(along, self.roots, strict=True)])
        return BlockOverlaps(Q, M, self)

    def with_eigenvalues(self, eigenvalues: Float[np.ndarray, " blocks"]) -> "BlockFrame":
        """The same blocks and target with other eigenvalues."""
        return BlockFrame(eigenvalues, self.roots, self.ranks)

    def shared(self, shares: str | Float[Array | np.ndarray, " blocks"], name: str) -> Float[Array, " blocks"]:
        """The shares of a row's squared length that a preference gives to the blocks."""
        blocks = len(self.ranks)
        if isinstance(shares, str):
            chosen = jnp.argmax(self.eigenvalues) if shares == "leading" else jnp.argmin(self.eigenvalues)
            return jnp.where(jnp.arange(blocks) == chosen, 1.0, 0.0)
        if shares.shape != (blocks,):
            raise InvalidInput(
                f"Argument `{name}` must have one share for each of the {blocks} blocks of the spectrum, but has shape "
                f"{shares.shape}."
            )
        return jnp.asarray(shares)


class BlockOverlaps(eqx.Module):
    r"""The overlaps by block, :math:`Q_l = W \Pi_l W^T`, :math:`M_l = W \Pi_l W^{\star T}` and :math:`P_l`.

    Their plain sums are :math:`Q = W W^T`, M and P; the covariance of the fields is their sum with the eigenvalues as
    weights. Q and M may have leading axes (replica, time).
    """

    Q: Float[np.ndarray | Array, "*n blocks p p"]
    M: Float[np.ndarray | Array, "*n blocks p k"]
    frame: BlockFrame

    def weighted(self) -> tuple[Float[Array, "*n p p"], Float[Array, "*n p k"], Float[Array, "k k"]]:
        r"""The covariance of the fields: :math:`\sum_l c_l Q_l`, :math:`\sum_l c_l M_l`, :math:`\sum_l c_l P_l`."""
        c = jnp.asarray(self.frame.eigenvalues)
        return tuple(jnp.einsum("l,...lab->...ab", c, jnp.asarray(x)) for x in (self.Q, self.M, self.frame.P))  # pyright: ignore[reportReturnType]


def coordinates_of(
    root: Float[Array | np.ndarray, "k m"], Q: Float[Array, "p p"], M: Float[Array, "p k"]
) -> tuple[Float[Array, "p m"], Float[Array, "p p"]]:
    r"""The coordinates of rows within the span of the target in a block, and a factor of their overlaps beside it.

    .. math:: \hat M = M R (R^T R)^{-1}, \qquad L L^T = Q - \hat M \hat M^T \quad\text{with}\quad R R^T = P

    The eigenvalues behind the columns of the factor ascend, so that its last columns hold all of a lower rank.
    """
    along = M @ (root @ jnp.linalg.inv(root.T @ root)) if root.shape[1] else jnp.zeros((len(Q), 0))
    values, vectors = jnp.linalg.eigh(0.5 * (Q + Q.T) - along @ along.T)
    return along, vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None, :]


def embed_blocks(
    frame: BlockFrame,
    Q: Float[Array, "blocks p p"],
    M: Float[Array, "blocks p k"],
    key: Key[Array, ""],
    W_star: Float[Array | np.ndarray, "k d"] | None = None,
) -> tuple[Float[Array, "p d"], Float[Array, "k d"]]:
    """Draw weights with the given overlaps by block, in a uniformly random frame of each block.

    The coordinates of the blocks come one after the other, so that the covariance of the inputs is diagonal. Where the
    target directions ``W_star`` are given in them, they are returned to the last digit, and only what lies beside them
    is random.
    """
    p = Q.shape[1]
    outside = frame.outside(p)
    widest = max(inside + size for inside, size in zip(frame.inside, outside, strict=True))
    drawn = jax.random.normal(purpose_key(key, Purpose.FRAME), (frame.d, widest), jnp.float64)
    students, targets, first = [], [], 0
    for block, (rank, root, size) in enumerate(zip(frame.ranks, frame.roots, outside, strict=True)):
        along, factor = coordinates_of(root, Q[block], M[block])
        normals = drawn[first : first + rank, : root.shape[1] + size]
        if W_star is not None:  # orthonormal columns at the beginning stay as they are
            spanned = jnp.asarray(W_star)[:, first : first + rank]
            normals = normals.at[:, : root.shape[1]].set(spanned.T @ root @ jnp.linalg.inv(root.T @ root))
        # The signs of R depend on the implementation of QR; the frame is uniform if its diagonal is made positive.
        vectors, R = jnp.linalg.qr(normals)
        axes = (vectors * jnp.where(jnp.diagonal(R) < 0.0, -1.0, 1.0)[None, :]).T
        students.append(along @ axes[: root.shape[1]] + factor[:, p - size :] @ axes[root.shape[1] :])
        targets.append(jnp.asarray(root) @ axes[: root.shape[1]])
        first += rank
    # The frame leaves out directions that are rounding, which the labels of given directions have as well.
    star = jnp.concatenate(targets, axis=1) if W_star is None else jnp.asarray(W_star)
    return jnp.concatenate(students, axis=1), star


# ------------------------------------------------------------------------------------------ where the target lies


def target_frame(inputs: "Gaussian", P: Float[np.ndarray, "k k"], given: np.ndarray | None = None) -> BlockFrame:
    """The blocks of the inputs with the overlaps of the target in them, which are ``given`` or those of the inputs."""
    eigenvalues, ranks = inputs.blocks
    blocks = _blocks_of(inputs.teacher if given is None else given, P, eigenvalues, ranks)
    name = "teacher" if given is None else "P"
    if blocks.shape != (len(ranks), *P.shape):
        raise InvalidInput(
            f"Argument `{name}` must have shape (blocks, k, k) = {(len(ranks), *P.shape)}, but has {blocks.shape}."
        )
    scale = max(1.0, float(np.abs(P).max(initial=0.0)))
    if not np.allclose(blocks.sum(axis=0), P, rtol=0, atol=1e-9 * scale):
        raise InvalidInput(f"The blocks of `{name}` must sum to the overlaps P of the target, but their sum differs.")
    roots = []
    for block, (part, rank) in enumerate(zip(blocks, ranks, strict=True)):
        values, vectors = np.linalg.eigh(0.5 * (part + part.T))
        if values.size and values.min() < -1e-9 * scale:
            raise InvalidInput(f"Block {block} of `{name}` must be positive semi-definite, but is not.")
        kept = values > NULL * scale
        if kept.sum() > rank:
            raise InvalidInput(
                f"The target needs {int(kept.sum())} dimensions in the block with the eigenvalue "
                f"{eigenvalues[block]:.4g}, which has {rank}: raise `d`, or put the target elsewhere by `teacher`."
            )
        roots.append(vectors[:, kept] * np.sqrt(values[kept])[None, :])
    check_seen(blocks, eigenvalues)
    return BlockFrame(eigenvalues, tuple(roots), ranks)


def check_seen(blocks: Float[np.ndarray, "blocks k k"], eigenvalues: Float[np.ndarray, " blocks"]) -> None:
    """Refuse a target with a direction along which the inputs have no variance."""
    seen = np.einsum("l,lrs->rs", eigenvalues, blocks)
    if len(seen) and float(np.linalg.eigvalsh(seen).min()) <= 1e-12 * float(np.abs(seen).max()):
        raise InvalidInput("The target must be seen by the inputs, but a direction has no variance.")


def _blocks_of(
    teacher: str | np.ndarray | None, P: np.ndarray, eigenvalues: np.ndarray, ranks: tuple[int, ...]
) -> Float[np.ndarray, "blocks k k"]:
    """The overlaps of the target in each block."""
    k, blocks = len(P), len(ranks)
    if len(ranks) == 1 and (teacher is None or isinstance(teacher, str)):
        return P[None]
    root = np.linalg.cholesky(P) if k else P
    if teacher is None:
        return _random_target(root, ranks)
    if isinstance(teacher, str):
        order = np.argsort(-eigenvalues if teacher == "leading" else eigenvalues, kind="stable")
        places = np.repeat(order, np.array(ranks)[order])[:k]
        shares = np.eye(blocks)[places]
    elif teacher.ndim == 3:
        return np.asarray(teacher)
    else:
        if teacher.shape not in ((blocks,), (k, blocks)):
            raise InvalidInput(
                f"Argument `teacher` must have shape (blocks,) = ({blocks},) or (k, blocks) = ({k}, {blocks}), but has "
                f"shape {teacher.shape}."
            )
        shares = np.broadcast_to(np.asarray(teacher), (k, blocks))
    return np.einsum("ra,al,sa->lrs", root, shares, root)


def _random_target(root: np.ndarray, ranks: tuple[int, ...]) -> Float[np.ndarray, "blocks k k"]:
    """The overlaps by block of one draw of uniformly random directions, whose factor of P is ``root``."""
    k, rng = len(root), np.random.default_rng(0)
    factors = []
    for rank in ranks:
        columns = min(k, rank)
        factor = np.tril(rng.standard_normal((k, columns)), -1)
        factor[np.arange(columns), np.arange(columns)] = np.sqrt(rng.chisquare(rank - np.arange(columns)))
        factors.append(factor)
    grams = np.stack([factor @ factor.T for factor in factors])
    turn = root @ np.linalg.inv(np.linalg.cholesky(grams.sum(axis=0)))
    return np.einsum("ra,lab,sb->lrs", turn, grams, turn)
