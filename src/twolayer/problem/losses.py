"""Losses of one sample."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from twolayer.specification.registry import register


class AbstractLoss(eqx.Module):
    """Base class: the loss of an output s for a label y."""

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the loss of each sample."""


@register
class Square(AbstractLoss):
    r"""The square loss, :math:`\frac12 (y - s)^2`."""

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return 0.5 * (y - s) ** 2
