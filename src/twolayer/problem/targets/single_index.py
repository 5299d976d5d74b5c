"""Targets of one field."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.multivariate import Polynomial, from_coefficients
from twolayer.core.types import Converted
from twolayer.problem.activations import AbstractActivation, SquareActivation, as_activation
from twolayer.problem.expression import Expression
from twolayer.problem.kinks import kinks_of
from twolayer.problem.targets.multi_index import check_values
from twolayer.problem.targets.target import AbstractTarget, Units
from twolayer.specification.fields import accepts, leaf
from twolayer.specification.registry import register


@accepts(AbstractActivation, Expression, str, Callable)
def _as_link(value: Any) -> AbstractActivation | Expression:
    """Convert an activation, its name, a function, or a formula in ``z`` to an activation or a formula."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        try:
            return as_activation(value)
        except InvalidInput as unknown_name:
            if value.isidentifier() and value not in ("z", "z1"):
                raise unknown_name
            return Expression(value)
    return as_activation(value)


@register
class SingleIndex(AbstractTarget):
    r"""A target of one field, :math:`f(\lambda^\star) = g(\lambda^\star_1)`: a generalised linear model.

    The link g is an activation or a formula: ``SingleIndex("tanh")``, ``SingleIndex("z**3 - 3*z")``.
    """

    link: Converted[AbstractActivation | Expression | str | Callable[[Any], Any], Any] = leaf(_as_link)

    k: ClassVar[int] = 1

    def __check_init__(self):
        if isinstance(self.link, Expression) and self.link.fields > 1:
            raise InvalidInput(f"Argument `link` must use only the field z (or z1), but is {shown(self.link.text)}.")
        check_values(self, "link")

    @property
    def is_smooth(self) -> bool:
        return self.link.is_smooth

    @property
    def is_continuous(self) -> bool:
        return self.link.is_continuous if isinstance(self.link, Expression) else super().is_continuous

    @property
    def kinks(self) -> tuple[tuple[float, ...], ...] | None:
        if not isinstance(self.link, Expression):
            return (self.link.kinks,) if self.link.has_known_kinks else None
        return ((),) if self.is_smooth else kinks_of(self.link.text, 1)

    @property
    def units(self) -> Units | None:
        return None if isinstance(self.link, Expression) else Units(self.link, np.ones(1))

    @property
    def polynomial(self) -> Polynomial | None:
        if isinstance(self.link, Expression):
            return self.link.polynomial(1)
        return None if self.link.coefficients is None else from_coefficients(self.link.coefficients)

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        return self.link(lam_star) if isinstance(self.link, Expression) else self.link(lam_star[..., 0])


@register
class PhaseRetrieval(AbstractTarget):
    r"""Phase retrieval, :math:`f(\lambda^\star) = (\lambda^\star_1)^2`; see :cite:t:`arnaboldi2023escaping`."""

    k: ClassVar[int] = 1
    is_smooth: ClassVar[bool] = True

    @property
    def units(self) -> Units | None:
        return Units(SquareActivation(), np.ones(1))

    @property
    def polynomial(self) -> Polynomial | None:
        return from_coefficients((0.0, 0.0, 1.0))

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        return lam_star[..., 0] ** 2
