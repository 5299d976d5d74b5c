"""What every target declares about itself, besides its values."""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import Polynomial
from twolayer.problem.activations import AbstractActivation

if TYPE_CHECKING:  # an AbstractVar is no argument of the constructor, but a type checker would take it for one
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class Units(NamedTuple):
    """A target that is a sum over single fields: one activation, and the weight of each field's term."""

    activation: AbstractActivation
    weights: Any


class AbstractTarget(eqx.Module):
    r"""The noiseless label as a function of the k target fields, :math:`y = f(\lambda^\star) + \sqrt\Delta\,\xi`.

    A target declares the covariance ``P`` of its fields, whether it ``is_smooth``, where its ``kinks`` are, and, where
    it has one, its form as a polynomial and as a sum of units; engines choose by these.
    """

    k: AbstractVar[int]
    is_smooth: AbstractVar[bool]

    @abc.abstractmethod
    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        """The label without noise, at each row of fields."""

    @property
    def is_continuous(self) -> bool:
        """Whether it is known to have no jumps."""
        return self.is_smooth or self.units is not None

    @property
    def kinks(self) -> tuple[tuple[float, ...], ...] | None:
        """The places along each field where the target has a kink or a jump.

        None when there are kinks and their places are not known, or are not on planes of one field.
        """
        return ((),) * self.k if self.is_smooth else None

    @property
    @abc.abstractmethod
    def polynomial(self) -> Polynomial | None:
        """The target as a polynomial in its fields, or None."""

    @property
    @abc.abstractmethod
    def units(self) -> Units | None:
        """The target as a sum of units, or None."""

    @property
    @abc.abstractmethod
    def target_overlaps(self) -> Any:
        """The covariance P of the target fields."""


def check_covariance(name: str, P: Any, k: int) -> None:
    """P must be k x k, symmetric and positive definite."""
    P = np.asarray(P)
    if P.shape != (k, k):
        raise InvalidInput(f"Argument `{name}` must have shape (k, k) = ({k}, {k}), but has shape {P.shape}.")
    if not np.allclose(P, P.T, rtol=0, atol=1e-12 * max(1.0, float(np.abs(P).max()))):
        raise InvalidInput(f"Argument `{name}` must be symmetric, but differs from its transpose.")
    smallest = float(np.linalg.eigvalsh(P).min()) if k else 1.0
    if smallest <= 1e-12:
        raise InvalidInput(f"Argument `{name}` must be positive definite, but has the eigenvalue {smallest:.3g}.")
