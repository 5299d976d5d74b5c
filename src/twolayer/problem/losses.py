"""Losses of one sample."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, first_line, shown
from twolayer.core.precision import double
from twolayer.core.types import Number, Numbers
from twolayer.problem.activations.found_kinks import has_kinks
from twolayer.problem.noise import Flips
from twolayer.specification.fields import accepts, instance, leaf, number
from twolayer.specification.registry import register

# Where a function of a user is tried: labels, and a grid of outputs that avoids round numbers, where kinks often are.
LABELS = np.concatenate([[-1.0, 1.0], np.linspace(-3.0, 3.0, 12)])
OUTPUTS = np.linspace(-10.0, 10.0, 2001) + np.pi * 1e-3


class AbstractLoss(eqx.Module):
    """Base class: the loss of an output s for a label y.

    A loss declares whether its labels must be signs (``needs_signs``) and whether it is smooth in the output
    (``is_smooth``), by which engines are chosen.
    """

    needs_signs: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the loss of each sample."""

    @property
    def is_smooth(self) -> bool:
        """Whether all derivatives by the output exist; False, the default, is safe and slower."""
        return False

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return minus the derivative of the loss by the output of each sample, which is what drives training."""
        return -jax.grad(lambda s: jnp.sum(self(y, s)))(s)

    def error(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the error of each sample whose mean is reported as the risk; by default the loss."""
        return self(y, s)

    def floor(self, noise: Numbers | Flips) -> Numbers:
        """Return the least risk that any predictor has with this label noise; by default zero, where it is not known.

        The risk minus this number is the excess risk.
        """
        return 0.0


@register
class Square(AbstractLoss):
    r"""The square loss, :math:`\frac12 (y - s)^2`."""

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return 0.5 * (y - s) ** 2

    @property
    def is_smooth(self) -> bool:
        return True

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return y - s

    def floor(self, noise: Numbers | Flips) -> Numbers:
        if isinstance(noise, Flips):
            return 2.0 * noise.probability * (1.0 - noise.probability)
        return 0.5 * noise


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

    @property
    def is_smooth(self) -> bool:
        return True

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return y

    def error(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return Square()(y, s)

    def floor(self, noise: Numbers | Flips) -> Numbers:
        return Square().floor(noise)


@register
class Logistic(AbstractLoss):
    r"""The logistic loss of a label :math:`y = \pm 1`, :math:`\log(1 + e^{-y s})`.

    .. math:: -\partial_s \ell = \frac{y}{1 + e^{y s}}

    With flips of probability :math:`\epsilon` the least risk is their entropy
    :math:`-\epsilon\log\epsilon - (1 - \epsilon)\log(1 - \epsilon)`, in nats.
    """

    needs_signs: ClassVar[bool] = True

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        margin = y * s
        # The larger of zero and minus the margin is written by the modulus, whose slope at zero is zero.
        return jnp.log1p(jnp.exp(-jnp.abs(margin))) + 0.5 * (jnp.abs(margin) - margin)

    @property
    def is_smooth(self) -> bool:
        return True

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return y * jax.nn.sigmoid(-y * s)

    def floor(self, noise: Numbers | Flips) -> Numbers:
        if not isinstance(noise, Flips):
            return 0.0
        epsilon = jnp.asarray(noise.probability, float)
        return -jax.scipy.special.xlogy(epsilon, epsilon) - jax.scipy.special.xlog1py(1.0 - epsilon, -epsilon)


@register
class Hinge(AbstractLoss):
    r"""The hinge loss of a label :math:`y = \pm 1`, :math:`\max(0, 1 - y s)`.

    .. math:: -\partial_s \ell = y\,\theta(1 - y s)

    With flips of probability :math:`\epsilon` the least risk is :math:`2\epsilon`.
    """

    needs_signs: ClassVar[bool] = True

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.maximum(1.0 - y * s, 0.0)

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.where(y * s < 1.0, y, 0.0)

    def floor(self, noise: Numbers | Flips) -> Numbers:
        return 2.0 * noise.probability if isinstance(noise, Flips) else 0.0


@register
class Huber(AbstractLoss):
    r"""The loss of Huber: square for residuals up to a width, linear beyond it.

    .. math:: \ell = \tfrac12 (y - s)^2 \ \text{ if } |y - s| \le w, \qquad w |y - s| - \tfrac12 w^2 \ \text{ else},
              \qquad -\partial_s \ell = \min(\max(y - s, -w), w)

    Parameters
    ----------
    width
        The residual w beyond which the loss is linear.
    """

    width: Number = leaf(number("width", above=0.0, high=1e6), default=1.0)

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        near = self.displacement(y, s)
        return near * (y - s - 0.5 * near)

    def displacement(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        width = jnp.asarray(self.width, jnp.result_type(y, s))
        return jnp.maximum(jnp.minimum(y - s, width), -width)

    def floor(self, noise: Numbers | Flips) -> Numbers:
        w = jnp.asarray(self.width, float)
        if isinstance(noise, Flips):
            flip = noise.probability
            best = jnp.where(2.0 * (1.0 - flip) <= w, 1.0 - 2.0 * flip, 1.0 - flip * w / (1.0 - flip))
            return (1.0 - flip) * self(jnp.ones(()), best) + flip * self(-jnp.ones(()), best)
        if isinstance(noise, float) and noise == 0.0:
            return 0.0
        deviation = jnp.sqrt(noise)
        t = w / deviation
        beyond, density = jax.scipy.special.ndtr(-t), jnp.exp(-0.5 * t**2) / np.sqrt(2.0 * np.pi)
        within = 0.5 * noise * (1.0 - 2.0 * beyond - 2.0 * t * density)
        return within + 2.0 * w * deviation * density - w**2 * beyond


@register
class CustomLoss(AbstractLoss):
    r"""A loss of your own: a JAX function of a label and an output that returns one number.

    ``Problem(loss=function)`` makes one of these. The function must be finite and differentiable almost everywhere; it
    may have kinks, and its slope may jump. Its excess risk is the risk itself: nothing is subtracted.

    Parameters
    ----------
    function
        Maps a label y and an output s, both numbers, to the loss, by operations of JAX.
    """

    function: Callable[[Any, Any], Any] = eqx.field(static=True)

    def __check_init__(self):
        if not callable(self.function):
            raise InvalidInput(f"Argument `function` must be a function of y and s, but is {shown(self.function)}.")
        _check_values(self.function)

    def __call__(self, y: Float[Array, "*n"], s: Float[Array, "*n"]) -> Float[Array, "*n"]:
        y = jnp.asarray(y, jnp.result_type(y, s))
        if y.ndim == 0:  # without an axis the loss can be written out in scalars
            return jnp.asarray(self.function(y, s))
        return jnp.vectorize(self.function)(y, s)

    @property
    def is_smooth(self) -> bool:
        return not has_kinks(lambda both: self.function(both[0], both[1]), 2)


def _check_values(function: Callable[[Any, Any], Any]) -> None:
    """Raise `InvalidInput` if a function is no loss: not one finite number, or not the integral of its slope."""
    words = "Argument `loss` must be a JAX function of a label and an output that returns one finite number"

    def both(y: Array, s: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(lambda s: jnp.asarray(function(y, s), float))(s)

    try:
        with double():
            over = jax.jit(jax.vmap(jax.vmap(both, (None, 0)), (0, None)))
            value, slope = map(np.asarray, over(jnp.asarray(LABELS), jnp.asarray(OUTPUTS)))
    except Exception as error:  # a user's function may raise anything
        raise InvalidInput(f"{words}, but it fails: {first_line(error)}") from None
    bad = np.argwhere(~(np.isfinite(value) & np.isfinite(slope)))
    if len(bad):
        y, s = LABELS[bad[0, 0]], OUTPUTS[bad[0, 1]]
        raise InvalidInput(f"{words}, but it or its slope is not finite at y = {y:.3g}, s = {s:.3g}.")
    step = OUTPUTS[1] - OUTPUTS[0]
    missed = np.abs(np.diff(value) - 0.5 * step * (slope[:, 1:] + slope[:, :-1]))
    allowed = step * np.abs(np.diff(slope)) + 1e-4 * (1.0 + np.abs(value[:, 1:]))
    jumps = np.argwhere(missed > allowed)
    if len(jumps):
        y, s = LABELS[jumps[0, 0]], OUTPUTS[jumps[0, 1]]
        raise InvalidInput(
            f"Argument `loss` must be differentiable almost everywhere and have no jumps, but it is not the integral "
            f"of its slope near s = {s:.3g} at y = {y:.3g}."
        )


_known = instance("loss", AbstractLoss, 'a loss such as Square(), "logistic", or a JAX function of y and s')


@accepts(AbstractLoss, str, Callable)
def as_loss(value: object) -> AbstractLoss:
    """Convert a loss, its name, or a function of label and output to a loss."""
    is_function = callable(value) and not isinstance(value, AbstractLoss | type)
    return CustomLoss(value) if is_function else _known(value)  # pyright: ignore[reportArgumentType]
