"""The target of a data set: its labels."""

from typing import ClassVar

from jaxtyping import Array, Float

from twolayer.core.errors import NotApplicable
from twolayer.core.multivariate import Polynomial
from twolayer.problem.targets.target import AbstractTarget
from twolayer.specification.registry import register


@register
class Labels(AbstractTarget):
    r"""The labels :math:`y_\nu` of a data set, given by `Samples`; there are no target fields, so k = 0."""

    k: ClassVar[int] = 0
    is_smooth: ClassVar[bool] = True

    @property
    def polynomial(self) -> Polynomial | None:
        return None

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        raise NotApplicable("The target `Labels` has no formula: its values are those of `Samples(X, y)`.")
