r"""What the first gradient of a loss sees of a target: its slope at a student whose output is near zero.

.. math:: g(\lambda^\star) = E_\xi[-\partial_s \ell(y, s)]_{s = 0}, \qquad y = f(\lambda^\star) + \sqrt\Delta\,\xi

takes the place of the target in every exponent. It is f itself for the square and the correlation loss, and a multiple
of f wherever labels are signs: half of it for the logistic loss, all of it for the hinge loss, (1 - 2 epsilon) times
that with flips. The loss of Huber cuts labels at its width, which may leave a linear part where f has none.
"""

import jax.numpy as jnp
import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.precision import double
from twolayer.core.types import Numbers
from twolayer.problem import AbstractLoss, AbstractTarget, Correlation, Huber, MultiIndex, Square
from twolayer.problem.expression import Expression
from twolayer.problem.targets import has_signs

# Nodes of the average over additive noise, and fields along each direction at which the slope must be finite.
NODES = 40
PROBED = np.linspace(-12.0, 12.0, 49)


def seen_by_gradient(target: AbstractTarget, loss: AbstractLoss, noise: Numbers = 0.0) -> AbstractTarget:
    """Return the target that the first gradient of a loss sees, with additive label noise of some variance."""
    if isinstance(loss, Square | Correlation):
        return target
    if has_signs(target):
        with double():
            slopes = np.asarray(loss.displacement(jnp.array([1.0, -1.0]), jnp.zeros(2)))
        if slopes[0] == slopes[1]:
            raise InvalidInput(f"The loss {loss} has the same slope for both signs: nothing can be learned from them.")
        return target
    if loss.needs_signs:
        raise InvalidInput(f"The loss {loss} needs labels that are signs, such as Signs(target), but has {target}.")
    formula = getattr(target, "function", getattr(target, "link", None))
    if isinstance(loss, Huber) and isinstance(formula, Expression) and float(noise) == 0.0:
        width = float(loss.width)
        return MultiIndex(f"max(min({formula.text}, {width!r}), -{width!r})", k=target.k)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES if float(noise) else 1)
    shifts, weights = np.sqrt(float(noise)) * nodes, weights / weights.sum()

    def slope(z: jnp.ndarray) -> jnp.ndarray:
        y = target(z[None, :])[0] + jnp.asarray(shifts, z.dtype)
        return loss.displacement(y, jnp.zeros_like(y)) @ jnp.asarray(weights, z.dtype)

    _check_slope(target, loss)
    return MultiIndex(slope, k=target.k, smooth=loss.is_smooth and target.is_smooth)


def _check_slope(target: AbstractTarget, loss: AbstractLoss) -> None:
    """Refuse a loss whose slope overflows at labels that the target has."""
    with double():
        labels = np.asarray(target(jnp.concatenate([PROBED[:, None] * axis[None, :] for axis in np.eye(target.k)])))
        slopes = np.asarray(loss.displacement(jnp.asarray(labels), jnp.zeros_like(labels)))
    wrong = labels[np.isfinite(labels) & ~np.isfinite(slopes)]
    if len(wrong):
        least = wrong[np.argmin(np.abs(wrong))]
        raise InvalidInput(
            f"Argument `loss` must have a finite slope at all labels of the target, but at y = {least:.4g} and s = 0 "
            "it is not finite: write it so that it does not overflow."
        )
