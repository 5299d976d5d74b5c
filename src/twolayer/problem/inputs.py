"""Inputs: the distribution or data set that samples come from."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.core.plain_methods import plain_attributes
from twolayer.core.same import Same
from twolayer.core.types import NumbersLike, OptionalValues, Values
from twolayer.problem.spectrum import BINS, ROUNDING, AbstractCovariance, as_spectrum, of_covariance
from twolayer.specification.fields import (
    MAX_LENGTH,
    ONLY_WHEN_GIVEN,
    accepts,
    array,
    count,
    dimensions,
    leaf,
    nested,
    replaced,
    static,
)
from twolayer.specification.registry import register

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

# Where directions may be put without numbers: in which blocks, named by their eigenvalues.
PREFERENCES = ("random", "leading", "tail")


class AbstractInputs(eqx.Module):
    """Base class: the distribution of the inputs, whose dimension is d."""

    d: AbstractVar[int]


def as_preference(name: str, most: int = 2) -> Callable[[Any], Any]:
    """A converter to "leading" or "tail", or to numbers by block, with at most so many dimensions; None is random."""

    @accepts(str, np.ndarray, *(nested(ndim) for ndim in range(1, most + 1)), None)
    def convert(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value == "random"):
            return None
        if isinstance(value, str):
            if value not in PREFERENCES:
                raise InvalidInput(
                    f"Argument `{name}` is {shown(value)}, which is not known: {nearest(value, PREFERENCES)}"
                )
            return value
        numbers = array(name, max(1, min(most, dimensions(value))), largest=MAX_LENGTH**2)(value)
        if numbers.ndim < 3 and np.any(numbers < 0.0):
            raise InvalidInput(f"The shares in `{name}` must be at least 0, but one is {np.min(numbers):g}.")
        sums = np.sum(numbers, axis=-1) if numbers.ndim < 3 else 1.0
        if np.any(np.abs(sums - 1.0) > ROUNDING):
            wrong = np.ravel(sums)[np.argmax(np.abs(np.ravel(sums) - 1.0))]
            raise InvalidInput(f"The shares in `{name}` must sum to 1, but sum to {wrong:.12g}.")
        return numbers

    return convert


@plain_attributes
@register
class Gaussian(AbstractInputs):
    r"""Gaussian inputs in d dimensions: standard ones, :math:`z \sim N(0, I_d)`, or with a spectrum.

    .. math:: z \sim N(0, C), \qquad C = \sum_l c_l \Pi_l, \qquad \mathrm{rank}\,\Pi_l = d_l = f_l d

    Parameters
    ----------
    d
        The dimension.
    spectrum
        The eigenvalues of C in blocks: a list of pairs (eigenvalue :math:`c_l`, share :math:`f_l`), a `PowerLaw`, or
        a covariance as an array (d, d) with d above 2, of which the eigenvalues count (`with_covariance` keeps
        directions as well; an array (2, 2) is two pairs). By default all are one.
    teacher
        Where the target directions lie: ``"random"``, the default, one draw of uniformly random directions that all
        runs share; ``"leading"`` or ``"tail"``, one after the other in the directions of the largest or smallest
        eigenvalues; shares of the blocks as an array (blocks,), or (k, blocks) for each direction its own; or the
        overlaps :math:`P_l = W^\star \Pi_l W^{\star T}` of the blocks, an array (blocks, k, k).
    """

    d: int = static(count("d"))
    spectrum: AbstractCovariance | None = static(as_spectrum, default=None, metadata=ONLY_WHEN_GIVEN)
    teacher: OptionalValues = leaf(as_preference("teacher", 3), default=None, metadata=ONLY_WHEN_GIVEN)

    def __check_init__(self):
        if self.spectrum is not None:
            self.spectrum.blocks(self.d)
        elif self.teacher is not None:
            raise InvalidInput("Argument `teacher` needs a `spectrum`: without one no direction differs from others.")

    @property
    def blocks(self) -> tuple[Float[np.ndarray, " blocks"], tuple[int, ...]]:
        """The eigenvalue and the rank of each block."""
        return (np.ones(1), (self.d,)) if self.spectrum is None else self.spectrum.blocks(self.d)

    @property
    def is_isotropic(self) -> bool:
        """Whether all eigenvalues are one, in one block: the setting of all closed formulas."""
        if self.spectrum is None:
            return True
        eigenvalues, ranks = self.blocks
        return len(ranks) == 1 and float(eigenvalues[0]) == 1.0

    @classmethod
    def like(cls, X: NumbersLike, directions: NumbersLike | None = None, bins: int = BINS) -> "Gaussian":
        r"""The Gaussian equivalent of a data set: inputs with the covariance of its rows.

        Parameters
        ----------
        X
            Inputs as rows, (n, d). Their mean is subtracted: Gaussian inputs here have none.
        directions
            The target directions :math:`W^\star` as rows, (k, d), whose overlaps with the eigenvectors then count:
            the target needs the overlaps :math:`P = W^\star W^{\star T}`. By default they are random.
        bins
            The number of blocks into which the eigenvalues are put.
        """
        given = None if directions is None else array("directions", 2)(directions)
        return principal_axes(array("X", 2)(X), given, count("bins")(bins)).equivalent

    @classmethod
    def with_covariance(cls, C: NumbersLike, directions: NumbersLike | None = None, bins: int = BINS) -> "Gaussian":
        r"""Inputs with a covariance, and target directions in its frame.

        Parameters
        ----------
        C
            The covariance, (d, d).
        directions
            The target directions :math:`W^\star` as rows, (k, d), whose overlaps with the eigenvectors then count:
            the target needs the overlaps :math:`P = W^\star W^{\star T}`. By default they are random.
        bins
            The number of blocks into which the eigenvalues are put.
        """
        covariance = np.asarray(array("C", 2)(C))
        if covariance.shape[0] != covariance.shape[1] or not len(covariance):
            raise InvalidInput(f"Argument `C` must be a square matrix, but has shape {covariance.shape}.")
        given = None if directions is None else array("directions", 2)(directions)
        return _axes_of_covariance(covariance, given, count("bins")(bins), "C").equivalent


@register
class Samples(AbstractInputs):
    r"""A data set: inputs :math:`X \in R^{n \times d}`, with labels :math:`y \in R^n` or with target directions.

    With labels ``y`` the target is `Labels`. With ``directions`` :math:`W^\star \in R^{k \times d}` labels are those of
    any target of k fields, and every sample is a random row, drawn with replacement:

    .. math:: z = x_\nu - \bar x, \qquad y = f(W^\star z) + \sqrt\Delta\,\xi

    The mean :math:`\bar x` of the rows is subtracted. `DirectSGD` runs on the rows; other descriptions run on their
    Gaussian equivalent, `Gaussian.like` with these directions.

    Parameters
    ----------
    X
        Inputs as rows, (n, d).
    y
        The label of each row.
    directions
        The target directions as rows, (k, d). Their overlaps are the P of the target: orthonormal rows, unless the
        target states another P.
    bins
        The number of blocks into which the Gaussian equivalent puts the eigenvalues of the covariance. More of them
        lower the error of binning.
    """

    X: Values = leaf(array("X", 2))
    y: OptionalValues = leaf(array("y", 1, optional=True), default=None, metadata=ONLY_WHEN_GIVEN)
    directions: OptionalValues = leaf(array("directions", 2, optional=True), default=None, metadata=ONLY_WHEN_GIVEN)
    bins: int = static(count("bins"), default=BINS, metadata=ONLY_WHEN_GIVEN)

    def __check_init__(self):
        if self.X.shape[0] == 0 or self.X.shape[1] == 0:
            raise InvalidInput(f"Argument `X` must have at least one row and one column, but has shape {self.X.shape}.")
        if (self.y is None) == (self.directions is None):
            both = "both are given" if self.y is not None else "neither is given"
            raise InvalidInput(f"`Samples` needs labels `y` or the target's `directions`, but {both}.")
        if self.y is not None and self.X.shape[0] != self.y.shape[0]:
            raise InvalidInput(
                f"Argument `y` must have one label per row of `X` ({self.X.shape[0]}), but has shape {self.y.shape}."
            )

    @property
    def axes(self) -> "PrincipalAxes":
        """The principal axes of rows with target directions, which are found once for the same arrays."""
        return _axes_of(Same((self.X, self.directions)), self.bins)

    @property
    def along_axes(self) -> "Samples":
        """The same samples without their mean, in the coordinates of their principal axes, block by block."""
        rows = np.asarray(self.X, dtype=np.float64)
        rows = (rows - rows.mean(axis=0)) @ self.axes.vectors
        return replaced(self, X=rows, directions=np.asarray(self.directions) @ self.axes.vectors)

    @property
    def d(self) -> int:
        return int(np.shape(self.X)[1])

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(np.shape(self.X)[0])


class PrincipalAxes(NamedTuple):
    """The eigenvectors of a data set's covariance, as columns in the order of the blocks, and its equivalent."""

    equivalent: Gaussian
    vectors: Float[np.ndarray, "d d"]


def principal_axes(
    X: Float[np.ndarray, "n d"], directions: Float[np.ndarray, "k _"] | None, bins: int
) -> PrincipalAxes:
    """Find the principal axes of rows, and the Gaussian equivalent with the target directions if these are given."""
    rows = np.asarray(X, dtype=np.float64)
    if rows.shape[0] < 2 or rows.shape[1] < 2:
        raise InvalidInput(f"Argument `X` must have at least two rows and columns, but has shape {rows.shape}.")
    if not np.any(np.ptp(rows, axis=0)):  # whose covariance may be rounding, and not zero
        raise InvalidInput("Argument `X` must have variance in some direction, but all of its rows are the same.")
    centred = rows - rows.mean(axis=0)
    return _axes_of_covariance(centred.T @ centred / len(rows), directions, bins, "X")


def _axes_of_covariance(
    C: Float[np.ndarray, "d d"], directions: Float[np.ndarray, "k _"] | None, bins: int, name: str
) -> PrincipalAxes:
    """Find the eigenvectors of a covariance, and the inputs that have it with the target directions in its frame."""
    d = len(C)
    spectrum, vectors = of_covariance(C, bins, name)
    if directions is None:
        return PrincipalAxes(Gaussian(d, spectrum), vectors)
    if directions.shape[1] != d:
        raise InvalidInput(
            f"Argument `directions` must have rows of {d} numbers as `{name}`, but has shape {directions.shape}."
        )
    parts = np.split(np.asarray(directions) @ vectors, np.cumsum(spectrum.blocks(d)[1])[:-1], axis=1)
    return PrincipalAxes(Gaussian(d, spectrum, np.stack([part @ part.T for part in parts])), vectors)


@lru_cache(maxsize=4)  # eigenvectors take seconds for a thousand dimensions, and are asked for many times
def _axes_of(same: Same, bins: int) -> PrincipalAxes:
    X, directions = same.members
    return principal_axes(np.asarray(X), np.asarray(directions), bins)
