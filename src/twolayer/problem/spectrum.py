"""Spectra of covariances: their eigenvalues in blocks, each with a share of the dimensions."""

import abc
from functools import lru_cache
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.types import NumbersLike
from twolayer.specification.fields import MAX_LENGTH, ONLY_WHEN_GIVEN, accepts, count, nested, number, static
from twolayer.specification.registry import register

# Shares may miss one by this much, and eigenvalues that differ by less, relative to the largest, are one.
ROUNDING = 1e-9
# The largest eigenvalue, and the number of blocks of a covariance with more eigenvalues than that.
LARGEST, BINS = MAX_LENGTH**2, 16
# Terms of a power law that are summed one by one.
SUMMED = 100_000


class AbstractCovariance(eqx.Module):
    r"""Base class: the covariance of the inputs, by its eigenvalues in blocks.

    .. math:: C = \sum_l c_l \Pi_l, \qquad \mathrm{rank}\,\Pi_l = d_l
    """

    @abc.abstractmethod
    def blocks(self, d: int) -> tuple[Float[np.ndarray, " blocks"], tuple[int, ...]]:
        """The eigenvalue and the rank of each block in d dimensions; the ranks sum to d."""


def _as_pairs(value: Any) -> tuple[tuple[float, float], ...]:
    must = "Argument `spectrum` must be a list of pairs (eigenvalue, share)"
    try:
        pairs = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{must}, but is {shown(value)}.") from None
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise InvalidInput(f"{must}, but has shape {pairs.shape}.")
    if not np.all(np.isfinite(pairs)):
        raise InvalidInput(f"{must} of finite numbers, but contains NaN or infinity.")
    eigenvalues, shares = pairs.T
    if np.any(eigenvalues < 0.0) or np.any(eigenvalues > LARGEST):
        wrong = eigenvalues[(eigenvalues < 0.0) | (eigenvalues > LARGEST)][0]
        raise InvalidInput(f"The eigenvalues of `spectrum` must lie in [0, {LARGEST:g}], but one is {wrong:g}.")
    if not np.any(eigenvalues > 0.0):
        raise InvalidInput("One eigenvalue of `spectrum` must be above 0, but all are 0.")
    if np.any(shares <= 0.0):
        raise InvalidInput(f"The shares of `spectrum` must be above 0, but one is {shares.min():g}.")
    if abs(shares.sum() - 1.0) > ROUNDING:
        raise InvalidInput(f"The shares of `spectrum` must sum to 1, but sum to {shares.sum():.12g}.")
    return tuple((float(c), float(f)) for c, f in pairs)


@register
class Eigenvalues(AbstractCovariance):
    r"""Eigenvalues :math:`c_l` with their shares :math:`f_l` of the dimensions, as a list of pairs.

    The ranks are the whole numbers nearest to :math:`f_l d` that sum to d (those with the largest remainders are
    rounded up), and the shares that count are :math:`d_l / d`. The spectrum of a covariance also has its dimension
    ``d``, which is then that of the inputs.
    """

    pairs: tuple[tuple[float, float], ...] = static(_as_pairs)
    d: int | None = static(count("d", optional=True), default=None, metadata=ONLY_WHEN_GIVEN)

    def blocks(self, d: int) -> tuple[Float[np.ndarray, " blocks"], tuple[int, ...]]:
        if self.d not in (None, d):
            raise InvalidInput(f"The covariance `spectrum` has {self.d} dimensions, but the inputs have d = {d}.")
        eigenvalues, shares = np.array(self.pairs).T
        exact = shares * d
        ranks = np.floor(exact + ROUNDING * d).astype(int)
        up = np.argsort(ranks - exact, kind="stable")[: d - int(ranks.sum())]
        ranks[up] += 1
        if ranks.min() < 1:
            least = int(np.ceil(1.0 / shares.min()))
            raise InvalidInput(
                f"Argument `d` must leave a dimension to every block of `spectrum`, which {least} do, but is {d}: "
                f"the block with the eigenvalue {eigenvalues[ranks.argmin()]:g} would have none."
            )
        return eigenvalues, tuple(map(int, ranks))

    def __repr__(self) -> str:
        return f"Eigenvalues([{', '.join(f'({c:.6g}, {f:.6g})' for c, f in self.pairs)}])"


def power_sums(alpha: float, ends: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    r"""The sums of :math:`l^{-\alpha}` over :math:`1 \le l < b`, for each end b in ascending order.

    The first `SUMMED` terms are added up; the others are Euler and Maclaurin's series, whose first term left out is
    below the rounding of double precision there, so that the cost does not depend on the dimension.
    """
    first = np.concatenate([[0.0], np.cumsum(np.arange(1.0, min(ends[-1], SUMMED + 1.0)) ** -alpha)])
    sums = first[np.minimum(ends, SUMMED + 1.0).astype(np.int64) - 1]
    begin, far = SUMMED + 1.0, ends[ends > SUMMED + 1.0]
    decay, growth = 1.0 - alpha, np.log(far / begin)
    integral = growth if decay == 0.0 else begin**decay * np.expm1(decay * growth) / decay
    ends_differ = 0.5 * (begin**-alpha - far**-alpha) + alpha / 12.0 * (begin ** (-alpha - 1) - far ** (-alpha - 1))
    sums[ends > SUMMED + 1.0] += integral + ends_differ
    return sums


@lru_cache(maxsize=256)
def _power_blocks(alpha: float, bins: int, d: int) -> tuple[Float[np.ndarray, " blocks"], tuple[int, ...]]:
    """The blocks of a power law, which are asked for again and again."""
    edges = np.unique(np.round(np.geomspace(1.0, d + 1.0, bins + 1)).astype(np.int64))
    tails = power_sums(alpha, edges.astype(np.float64))
    ranks = np.diff(edges)
    eigenvalues = d * np.diff(tails) / ranks / tails[-1]
    eigenvalues.flags.writeable = False
    return eigenvalues, tuple(map(int, ranks))


@register
class PowerLaw(AbstractCovariance):
    r"""Eigenvalues that fall as a power, :math:`\propto l^{-\alpha}` for :math:`l = 1, \dots, d`, in ``bins`` blocks.

    .. math:: c_l = d\,\frac{l^{-\alpha}}{\sum_m m^{-\alpha}}

    so that their mean is one. The edges of the blocks are geometric in l, and the eigenvalue of a block is the mean
    of those in it, so that the trace is exact. Near l = 1 a block has one eigenvalue, so that there may be fewer blocks
    than ``bins``. The error of binning is what a result changes with `finer`, twice as many bins.
    """

    alpha: float = static(number("alpha", above=0.0, high=10.0))
    bins: int = static(count("bins", high=4096), default=BINS)

    def blocks(self, d: int) -> tuple[Float[np.ndarray, " blocks"], tuple[int, ...]]:
        return _power_blocks(self.alpha, self.bins, d)

    @property
    def finer(self) -> "PowerLaw":
        """The same power with twice as many bins."""
        return PowerLaw(self.alpha, 2 * self.bins)


def of_covariance(
    covariance: Float[np.ndarray, "d d"], bins: int = BINS, name: str = "spectrum"
) -> tuple[Eigenvalues, Float[np.ndarray, "d d"]]:
    """The spectrum of a covariance and its eigenvectors, as columns in the order of the blocks.

    Each eigenvalue is a block as long as ``bins`` are enough. Otherwise the edges of the blocks are geometric in the
    place of an eigenvalue, the largest first, as those of `PowerLaw`.
    """
    d = len(covariance)
    scale = float(np.abs(covariance).max(initial=0.0))
    if not np.all(np.isfinite(covariance)):
        raise InvalidInput(f"Argument `{name}` must be finite, but contains NaN or infinity.")
    if not np.allclose(covariance, covariance.T, rtol=0, atol=ROUNDING * scale):
        raise InvalidInput(f"Argument `{name}` must be symmetric as a covariance, but differs from its transpose.")
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    if values[-1] < -ROUNDING * max(scale, values[0]):
        raise InvalidInput(
            f"Argument `{name}` must be positive semi-definite as a covariance, but has the eigenvalue "
            f"{values[-1]:.3g}."
        )
    if values[0] <= 0.0:
        raise InvalidInput(f"Argument `{name}` must have variance in some direction, but all of its eigenvalues are 0.")
    values = np.maximum(values, 0.0)
    edges = np.flatnonzero(np.concatenate([[True], values[:-1] - values[1:] > ROUNDING * values[0], [True]]))
    if len(edges) - 1 > bins:
        edges = np.unique(np.round(np.geomspace(1.0, d + 1.0, bins + 1)).astype(np.int64)) - 1
    ranks = np.diff(edges)
    means = np.add.reduceat(values, edges[:-1]) / ranks
    return Eigenvalues(tuple((float(c), float(n) / d) for c, n in zip(means, ranks, strict=True)), d), vectors


@accepts(AbstractCovariance, np.ndarray, nested(2), None)
def as_spectrum(value: AbstractCovariance | NumbersLike | None) -> AbstractCovariance | None:
    """A spectrum from itself, from pairs (eigenvalue, share), or from a covariance; None for isotropic inputs."""
    if value is None or isinstance(value, AbstractCovariance):
        return value
    if isinstance(value, str | dict):
        raise InvalidInput(
            "Argument `spectrum` must be a list of pairs (eigenvalue, share), a covariance, or a spectrum such as "
            f"PowerLaw(alpha=1.5), but is {shown(value)}."
        )
    try:
        shape = np.shape(value)
    except ValueError:  # rows of different lengths
        shape = ()
    if len(shape) == 2 and shape[0] == shape[1] > 2:
        return of_covariance(np.asarray(value, dtype=np.float64))[0]
    return Eigenvalues(value)  # pyright: ignore[reportArgumentType]: its converter checks what it is
