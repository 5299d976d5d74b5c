"""Losses: what one sample costs."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from twolayer.specification.registry import register


class AbstractLoss(eqx.Module):
    """The cost of an output s for a label y."""

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The cost at each sample."""


@register
class Square(AbstractLoss):
    r"""The square loss, :math:`\frac12 (y - s)^2`."""

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return 0.5 * (y - s) ** 2
