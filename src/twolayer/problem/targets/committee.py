"""The committee machine as a target."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import Polynomial, constant, from_coefficients
from twolayer.core.types import OptionalValues
from twolayer.problem.activations import AsActivation, as_activation
from twolayer.problem.targets.target import AbstractTarget, Units, check_covariance
from twolayer.specification.fields import MAX_LENGTH, array, count, is_traced, leaf, static
from twolayer.specification.registry import register


@register
class Committee(AbstractTarget):
    r"""A two-layer network with k units as a target.

    .. math:: f(\lambda^\star) = \frac1k \sum_r a^\star_r\, \sigma^\star(\lambda^\star_r)

    ``P`` is the overlap matrix of its directions (the identity by default), ``second_layer`` are its output weights
    (ones by default). See :cite:t:`saad1995`.
    """

    k: int = static(count("k"))
    activation: AsActivation = leaf(as_activation)
    P: OptionalValues = leaf(array("P", 2, optional=True, largest=MAX_LENGTH**2), default=None)
    second_layer: OptionalValues = leaf(array("second_layer", 1, optional=True, largest=MAX_LENGTH), default=None)

    def __check_init__(self):
        if self.P is not None and not is_traced(self.P):
            check_covariance("P", self.P, self.k)
        if self.second_layer is not None and self.second_layer.shape != (self.k,):
            raise InvalidInput(
                f"Argument `second_layer` must have k = {self.k} entries, but has shape {self.second_layer.shape}."
            )

    @property
    def is_smooth(self) -> bool:
        return self.activation.is_smooth

    @property
    def kinks(self) -> tuple[tuple[float, ...], ...] | None:
        return (self.activation.kinks,) * self.k if self.activation.has_known_kinks else None

    @property
    def target_overlaps(self) -> np.ndarray | Array:
        return np.eye(self.k) if self.P is None else self.P

    @property
    def units(self) -> Units | None:
        outer = np.ones(self.k) if self.second_layer is None else self.second_layer
        return Units(self.activation, outer / self.k)

    @property
    def polynomial(self) -> Polynomial | None:
        if self.activation.coefficients is None or is_traced(self.second_layer):
            return None
        unit = from_coefficients(self.activation.coefficients)
        weights = np.asarray(self.units.weights)  # pyright: ignore[reportOptionalMemberAccess]
        return sum((unit.embed(self.k, (r,)) * float(weights[r]) for r in range(self.k)), start=constant(self.k, 0.0))

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        weights = jnp.asarray(self.units.weights, dtype=lam_star.dtype)  # pyright: ignore[reportOptionalMemberAccess]
        return self.activation(lam_star) @ weights
