"""Losses of one sample."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.specification.registry import register


class AbstractLoss(eqx.Module):
    """Base class: the loss of an output s for a label y."""

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the loss of each sample."""

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return minus the derivative of the loss by the output of each sample, which is what drives training."""
        return -jax.grad(lambda s: jnp.sum(self(y, s)))(s)

    def error(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the error of each sample whose mean over a data set is reported as its risk; by default the loss."""
        return self(y, s)


@register
class Square(AbstractLoss):
    r"""The square loss, :math:`\frac12 (y - s)^2`."""

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return 0.5 * (y - s) ** 2

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return y - s


@register
class Correlation(AbstractLoss):
    r"""The correlation loss, :math:`-y\,s`: training follows the labels and never sees the student's own output.

    .. math:: w_j \leftarrow w_j + \frac{\gamma}{p d}\, a_j \sum_{\nu \in batch} \sigma'(\lambda_j^\nu)\,
              y^\nu z^\nu

    The units do not interact, and giant batches keep what the square loss would correct. The loss has no minimum:
    without `Sphere` or weight decay the weights grow for ever. Results report the risk of the square loss,
    :math:`\frac12 E[(y - s)^2]`, for this loss as well; training does not minimise it.
    """

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return -y * s

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return y

    def error(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return Square()(y, s)
