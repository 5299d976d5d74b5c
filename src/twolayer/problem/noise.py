r"""Label noise: additive, given by its variance, or flips of signs."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.types import Number, Numbers
from twolayer.specification.fields import MAX_LENGTH, accepts, leaf, number
from twolayer.specification.registry import register

_variance = number("noise", low=0.0, high=MAX_LENGTH**2)


@register
class Flips(eqx.Module):
    r"""Label noise that turns a label of sign :math:`\pm 1` around with some probability, for every sample anew.

    .. math:: P(y = -f(\lambda^\star)) = \epsilon, \qquad P(y = f(\lambda^\star)) = 1 - \epsilon

    Parameters
    ----------
    probability
        The probability :math:`\epsilon` of a flip, below one half.
    """

    probability: Number = leaf(number("probability", low=0.0, below=0.5))


@accepts(Number, Flips)
def as_noise(value: object) -> Number | Flips:
    """Convert the noise of a problem: a variance, or `Flips`."""
    if isinstance(value, Flips):
        return value
    if isinstance(value, str | dict | eqx.Module):
        raise InvalidInput(f"Argument `noise` must be a variance or Flips(probability), but is {shown(value)}.")
    return _variance(value)


def level_of(noise: Numbers | Flips) -> Numbers:
    """Return the number that says how strong the noise is: a variance or a probability."""
    return noise.probability if isinstance(noise, Flips) else noise


def noisy(noise: Numbers | Flips, y: Float[Array, "*n"], xi: Numbers) -> Float[Array, "*n"]:
    """Return labels with noise from standard normal numbers; below a quantile of these a label is flipped."""
    if not isinstance(noise, Flips):
        return y + jnp.sqrt(noise) * xi
    return jnp.where(jax.scipy.special.erf(2.0**-0.5 * xi) < 2.0 * noise.probability - 1.0, -y, y)
