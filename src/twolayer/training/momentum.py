"""Methods with momentum: heavy ball, Nesterov, and the interface for others."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from twolayer.core.types import Numbers
from twolayer.specification.fields import leaf, number
from twolayer.specification.registry import register


class AbstractMethod(eqx.Module):
    r"""A first-order method whose state has more than the weights, such as a velocity.

    One step takes the gradient at the weights that ``query`` returns and moves the weights by ``advance``. Both are
    functions of arrays whose rows are vectors of the input space; ``memory`` is the number of arrays of the size of the
    weights in the additional state, which are stacked and zero at the start.

    The theories of reused samples cover any method that commutes with rotations of the input space: linear
    combinations, and nonlinear ones with factors that depend on lengths and scalar products (a gradient clipped by its
    norm). A method that uses single coordinates (signs, Adam) can only be simulated, by `DirectSGD`.
    """

    memory: ClassVar[int] = 1

    def query(self, W: Float[Array, "p n"], V: Float[Array, "m n"]) -> Float[Array, "p n"]:
        """Return the weights at which the gradient is taken; the current weights by default."""
        return W

    @abc.abstractmethod
    def advance(
        self, W: Float[Array, "p n"], V: Float[Array, "m n"], move: Float[Array, "p n"]
    ) -> tuple[Float[Array, "p n"], Float[Array, "m n"]]:
        r"""Return the next weights and memory, given the weights (after their decay) and the ``move`` of plain SGD.

        The move is :math:`-\frac{\gamma}{d} \nabla \sum_\nu \ell^\nu` at the point of ``query``.
        """


@register
class HeavyBall(AbstractMethod):
    r"""Polyak's momentum, :math:`V^+ = \beta V - \frac{\gamma}{d}\nabla L(W),\ W^+ = W + V^+`.

    ``SGD(..., momentum=0.9)`` is equivalent to ``SGD(..., momentum=HeavyBall(0.9))``.
    """

    beta: Any = leaf(number("beta", low=0.0, below=1.0))

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        V = self.beta * V + move
        return W + V, V


@register
class Nesterov(AbstractMethod):
    r"""Nesterov's momentum: the gradient is taken at the weights moved by the velocity.

    .. math:: V^+ = \beta V - \frac{\gamma}{d}\nabla L(W + \beta V), \qquad W^+ = W + V^+
    """

    beta: Any = leaf(number("beta", low=0.0, below=1.0))

    def query(self, W: Array, V: Array) -> Array:
        return W + self.beta * V

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        V = self.beta * V + move
        return W + V, V


def as_momentum(value: object) -> AbstractMethod | Numbers:
    """Convert the argument ``momentum``: a number, which means heavy ball, or a method; heavy ball becomes a number."""
    if isinstance(value, HeavyBall):
        return value.beta
    if isinstance(value, AbstractMethod):
        return value
    return number("momentum", low=0.0, below=1.0)(value)
