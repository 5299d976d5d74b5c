"""Typical samples of a data set: points in the coordinates of a frame that grows with training."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from twolayer.core.programs import KeptProgram
from twolayer.core.types import Numbers
from twolayer.problem import BlockFrame, Problem
from twolayer.theory.reuse.sobol import Net, uniforms

# Larger counts of a sample in a batch have a probability below 1e-15 at a mean of one.
MOST_COUNTS = 18
# Factor by which the points are spread out along the target: in each direction it costs 7% of them.
WIDER = 1.25


class Layout(NamedTuple):
    """The order of the coordinates of the frame: target, start, then the noise of each gradient.

    Each of these has its coordinates in every block of the spectrum, block after block; isotropic inputs are one block.
    """

    inside: tuple[int, ...]  # the dimensions of each block within the span of the target
    p: int
    gradients: int

    @classmethod
    def of(cls, problem: Problem, gradients: int) -> "Layout":
        """The layout of a problem for so many gradients."""
        inside = (problem.k,) if problem.is_isotropic else problem.frame.inside
        return cls(inside, problem.p, gradients)

    @property
    def along(self) -> int:
        """The number of coordinates within the span of the target."""
        return sum(self.inside)

    @property
    def blocks(self) -> int:
        """The number of blocks of the spectrum."""
        return len(self.inside)

    @property
    def given(self) -> int:
        """The number of coordinates at the start."""
        return self.along + self.blocks * self.p

    @property
    def size(self) -> int:
        """The number of all coordinates."""
        return self.given + self.blocks * self.p * self.gradients

    @property
    def places(self) -> Int[np.ndarray, " size"]:
        """The block of each coordinate."""
        number = np.arange(self.blocks)
        rest = np.tile(np.repeat(number, self.p), 1 + self.gradients)
        return np.concatenate([np.repeat(number, self.inside), rest])


class TypicalSamples(NamedTuple):
    """A cloud of typical samples: points of the law of one sample, with weights."""

    weights: Float[Array, " points"]  # they sum to one
    x: Float[Array, "size points"]  # independent normal coordinates along the frame, with the variance of their block
    y: Float[Array, " points"]
    counts: Any  # (gradients, points): how often each batch contains the sample; None if once
    layout: Layout  # of the rows of x
    own: Any  # (blocks,): sqrt(c_l rho_l), of a sample's own share in the noise of gradients; None if isotropic


class Batches(NamedTuple):
    """How the mini-batches of a fixed set are drawn."""

    share: Any  # the fraction of the set that is in a batch
    per_epoch: int | None  # batches in one epoch; None if they are drawn with replacement

    def choices(self, gradients: int) -> int:
        """The number of independent choices that place a sample in its batches: one a batch, or one an epoch."""
        return gradients if self.per_epoch is None else -(-gradients // self.per_epoch)


def coordinates_needed(layout: Layout, batches: Batches | None) -> int:
    """The number of coordinates of the net that a cloud needs."""
    return layout.size + 1 + (0 if batches is None else batches.choices(layout.gradients))


@KeptProgram
def make_cloud(
    problem: Problem,
    target: Array | np.ndarray | BlockFrame,
    layout: Layout,
    batches: Batches | None,
    net: Net,
    log2_points: int,
) -> TypicalSamples:
    r"""Typical samples from a net: normal coordinates with exact first and second moments, labels, and counts.

    The target is given by its overlaps P, or by its place in the blocks of a spectrum. The coordinates that labels
    depend on are spread out by the factor `WIDER`, and weights correct for it, since averages of squared labels that
    grow as a polynomial are dominated by the tails.

    As the set grows, a sample is in a mini-batch that is drawn with replacement a number of times that has Poisson's
    law with mean :math:`n_b / n`, independently at each step. Without replacement it is in one batch of each epoch, all
    of which are equally likely, or is left over with the rest of the probability.
    """
    k, size = problem.k, layout.size
    points = uniforms(net, log2_points)
    # Without the barrier XLA would compute the quantiles again wherever they are used.
    normals = jax.lax.optimization_barrier(jax.scipy.special.ndtri(points[: size + 1]))
    weights = jnp.exp(-0.5 * (WIDER**2 - 1.0) * jnp.sum(normals[:k] ** 2, axis=0))
    weights = weights / jnp.sum(weights)
    # Exact means and covariances make linear problems exact, and reduce the error of all others.
    scale = jnp.where(jnp.arange(size + 1) < k, WIDER, 1.0)
    mean = scale * (normals @ weights)
    second = scale[:, None] * ((normals * weights[None, :]) @ normals.T) * scale[None, :]
    factor = jnp.linalg.cholesky(second - mean[:, None] * mean[None, :])
    whitening = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size + 1), lower=True)
    # In the net the label noise follows the target, since the first coordinates are the most uniform; here it is last.
    whitening = whitening[np.r_[:k, k + 1 : size + 1, k]]
    normals = (whitening * scale[None, :]) @ normals - (whitening @ mean)[:, None]
    x, own = normals[:-1], None
    if isinstance(target, BlockFrame):
        x, root = _in_blocks(target, layout, x)
        own = jnp.sqrt(jnp.asarray(target.eigenvalues) * target.shares)
    else:
        root = jnp.linalg.cholesky(jnp.asarray(target))
    y = problem.label((root @ x[: layout.along]).T, normals[-1])
    counts = None
    if batches is not None:
        counts = counts_of(batches, points[size + 1 :], layout.gradients)
    return TypicalSamples(weights, x, y, counts, layout, own)


def _in_blocks(
    target: BlockFrame, layout: Layout, normals: Float[Array, "size points"]
) -> tuple[Float[Array, "size points"], Float[Array, "k along"]]:
    r"""Coordinates in the blocks, with the variance :math:`c_l` of each, and the target's rows along the first of them.

    The target's fields are k combinations :math:`\sum_l \sqrt{c_l} R_l x_l` of its coordinates in all blocks. A turn of
    these makes them depend on the first k normal numbers alone, which are the most uniform and are spread out.
    """
    roots = jnp.concatenate([jnp.asarray(R) for R in target.roots], axis=1)
    scales = jnp.sqrt(jnp.asarray(target.eigenvalues))[layout.places]
    turn, _ = jnp.linalg.qr((roots * scales[None, : layout.along]).T, mode="complete")
    along = turn @ normals[: layout.along]
    return scales[:, None] * jnp.concatenate([along, normals[layout.along :]]), roots


def counts_of(batches: Batches, u: Float[Array, "choices points"], gradients: int) -> Float[Array, "gradients points"]:
    """How often each batch contains a sample, from the uniform variables of its choices."""
    if batches.per_epoch is None:
        return poisson(u, batches.share)
    number = np.arange(gradients)
    batch_of_epoch = jnp.floor(u / batches.share)[number // batches.per_epoch]
    return (batch_of_epoch == (number % batches.per_epoch)[:, None]).astype(jnp.float64)


def poisson(u: Float[Array, "n points"], mean: Numbers) -> Float[Array, "n points"]:
    """Poisson variables from uniform ones, by quantiles; for means of at most one."""
    number = jnp.arange(MOST_COUNTS, dtype=jnp.float64)
    below = jnp.cumsum(jnp.exp(-mean + number * jnp.log(mean) - jax.scipy.special.gammaln(number + 1.0)))

    def add(m: Array, total: Array) -> Array:
        return total + (u > below[m])

    return jax.lax.fori_loop(0, MOST_COUNTS, add, jnp.zeros_like(u))
