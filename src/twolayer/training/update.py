"""One step of training given a gradient, for weights in any orthonormal coordinates."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.types import Numbers
from twolayer.problem import Problem
from twolayer.training.sgd import SGD


class Weights(NamedTuple):
    """The weights during training; rows are vectors of the input space, in orthonormal coordinates."""

    W: Float[Array, "p n"]
    V: Float[Array, "m v"]  # additional state of the method; of size zero for plain SGD
    a: Float[Array, " p"]


Gradient = tuple[Any, Any]  # gradient of the summed loss with respect to W and a


def at_rest(training: SGD, W: Float[Array, "p n"], a: Float[Array, " p"]) -> Weights:
    """Return the weights at the start of training, where the additional state of the method is zero."""
    p, n = W.shape
    return Weights(W, jnp.zeros((training.method.memory * p, n) if training.has_momentum else (p, 0)), a)


def queried(training: SGD, weights: Weights) -> Weights:
    """Return the weights at which the method takes the gradient."""
    if not training.has_momentum:
        return weights
    return weights._replace(W=training.method.query(weights.W, weights.V))


def looked_ahead(problem: Problem, rate: Numbers, weights: Weights, gradient: Gradient) -> Weights:
    r"""Return the weights after a trial step along the gradient, :math:`\tilde W = W - \frac{\rho}{d} \nabla L`."""
    return weights._replace(W=weights.W - rate / problem.d * gradient[0])


def moved(problem: Problem, training: SGD, weights: Weights, gradient: Gradient) -> Weights:
    r"""Return the weights after one step but before the constraint; each column is moved on its own.

    .. math:: W^+ = (1 - \gamma_d \lambda_w) W - \frac{\gamma}{d} \nabla_W \sum_\nu \ell^\nu, \qquad
              a^+ = a - \kappa \frac{\gamma}{d} \nabla_a \sum_\nu \ell^\nu

    with :math:`\gamma_d = \gamma n_b / d`; heavy ball adds :math:`\beta V` to the step.
    """
    W, V, a = weights
    rate = training.learning_rate / problem.d
    a = a - training.layer_ratio * rate * gradient[1]
    if not training.trains_first:
        return Weights(W, V, a)
    decay = training.weight_decay * rate * training.samples_per_step(problem)
    W = (1.0 - decay) * W
    if training.has_momentum:
        return Weights(*training.method.step(W, V, gradient[0], rate), a)
    return Weights(W - rate * gradient[0], V, a)


def projected(W: Float[Array, "p n"], move: Float[Array, "p n"]) -> Float[Array, "p n"]:
    """Return the moves of the rows without their parts along the rows."""
    along = jnp.sum(W * move, axis=1) / jnp.sum(W * W, axis=1)
    return move - along[:, None] * W


def update(
    problem: Problem, training: SGD, weights: Weights, lengths: Float[Array, " p"], gradient: Gradient
) -> Weights:
    """Return the weights after one step, given the gradient of the summed loss; see `moved`.

    On the sphere each row then returns to its initial length; the Riemannian variant projects the gradient before.
    """
    if training.is_riemannian:
        gradient = projected(weights.W, gradient[0]), gradient[1]
    weights = moved(problem, training, weights, gradient)
    if not (training.is_spherical and training.trains_first):
        return weights
    return weights._replace(W=weights.W * (lengths / jnp.linalg.norm(weights.W, axis=1))[:, None])
