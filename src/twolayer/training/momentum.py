"""What a method remembers of its past steps: heavy ball, Nesterov, and the protocol for any other."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from twolayer.specification.fields import leaf, number
from twolayer.specification.registry import register


class AbstractMethod(eqx.Module):
    r"""A first-order method that carries something along besides the weights.

    One step takes the gradient at the weights that ``query`` names and moves by ``advance``. Both are functions of
    arrays whose rows are vectors of the input space; ``memory`` is the number of arrays of the size of the weights that
    are carried along, stacked, and zero at the start.

    The theories of reused samples follow any method that treats all directions of the input space alike, that is,
    commutes with rotations: linear combinations, and nonlinear ones with factors that depend on lengths and scalar
    products (a gradient clipped by its norm). One that looks at single coordinates (signs, Adam) is for `DirectSGD`.
    """

    memory: ClassVar[int] = 1

    def query(self, W: Float[Array, "p n"], V: Float[Array, "m n"]) -> Float[Array, "p n"]:
        """Where the gradient is taken: at the weights, unless the method says otherwise."""
        return W

    @abc.abstractmethod
    def advance(
        self, W: Float[Array, "p n"], V: Float[Array, "m n"], move: Float[Array, "p n"]
    ) -> tuple[Float[Array, "p n"], Float[Array, "m n"]]:
        r"""The next weights and memory from the weights (after their decay) and the ``move`` of plain SGD.

        The move is :math:`-\frac{\gamma}{d} \nabla \sum_\nu \ell^\nu` at the point of ``query``.
        """


@register
class HeavyBall(AbstractMethod):
    r"""Polyak's momentum, :math:`V^+ = \beta V - \frac{\gamma}{d}\nabla L(W),\ W^+ = W + V^+`.

    ``SGD(..., momentum=0.9)`` says the same.
    """

    beta: Any = leaf(number("beta", low=0.0, below=1.0))

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        V = self.beta * V + move
        return W + V, V


@register
class Nesterov(AbstractMethod):
    r"""Nesterov's momentum: the gradient is taken where the velocity leads.

    .. math:: V^+ = \beta V - \frac{\gamma}{d}\nabla L(W + \beta V), \qquad W^+ = W + V^+
    """

    beta: Any = leaf(number("beta", low=0.0, below=1.0))

    def query(self, W: Array, V: Array) -> Array:
        return W + self.beta * V

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        V = self.beta * V + move
        return W + V, V


def as_momentum(value: Any) -> Any:
    """A number, which means heavy ball, or a method; heavy ball is always kept as its number."""
    if isinstance(value, HeavyBall):
        return value.beta
    if isinstance(value, AbstractMethod):
        return value
    return number("momentum", low=0.0, below=1.0)(value)
