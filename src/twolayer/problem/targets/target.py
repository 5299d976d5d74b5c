"""The base class of targets: their values and declared properties."""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import Polynomial
from twolayer.problem.activations import AbstractActivation

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class Units(NamedTuple):
    """A target as a weighted sum of one activation over its fields: the activation and the weights."""

    activation: AbstractActivation
    weights: Any


class AbstractTarget(eqx.Module):
    r"""The noiseless label as a function of the k target fields, :math:`y = f(\lambda^\star) + \sqrt\Delta\,\xi`.

    A target declares whether it ``is_smooth``, its ``kinks``, the covariance ``target_overlaps`` of its fields, and its
    form as a ``polynomial`` and as a sum of ``units`` if it has one. Engines are chosen by these properties.
    """

    k: AbstractVar[int]
    is_smooth: AbstractVar[bool]

    @abc.abstractmethod
    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        """Return the label without noise for each row of fields."""

    @property
    def is_continuous(self) -> bool:
        """Whether the target is known to have no jumps."""
        return self.is_smooth or self.units is not None

    @property
    def kinks(self) -> tuple[tuple[float, ...], ...] | None:
        """The places along each field where the target has a kink or a jump.

        None when the places of the kinks are not known, or are not on planes of one field.
        """
        return ((),) * self.k if self.is_smooth else None

    @property
    @abc.abstractmethod
    def polynomial(self) -> Polynomial | None:
        """The target as a polynomial in its fields, or None if it is not one."""

    @property
    def units(self) -> Units | None:
        """The target as a sum of units; None, the default, if it is not one."""
        return None

    @property
    def target_overlaps(self) -> np.ndarray | Array:
        """The covariance P of the target fields; the identity by default."""
        return np.eye(self.k)


def check_covariance(name: str, P: np.ndarray | Array, k: int) -> None:
    """Raise `InvalidInput` if P is not k x k, symmetric and positive definite."""
    P = np.asarray(P)
    if P.shape != (k, k):
        raise InvalidInput(f"Argument `{name}` must have shape (k, k) = ({k}, {k}), but has shape {P.shape}.")
    if not np.allclose(P, P.T, rtol=0, atol=1e-12 * max(1.0, float(np.abs(P).max()))):
        raise InvalidInput(f"Argument `{name}` must be symmetric, but differs from its transpose.")
    smallest = float(np.linalg.eigvalsh(P).min()) if k else 1.0
    if smallest <= 1e-12:
        raise InvalidInput(f"Argument `{name}` must be positive definite, but has the eigenvalue {smallest:.3g}.")
