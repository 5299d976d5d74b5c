"""First-order methods beyond plain SGD: momentum, methods on single coordinates, and the interface for others."""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.precision import double
from twolayer.core.types import Number
from twolayer.specification.fields import accepts, leaf, number
from twolayer.specification.registry import register


class AbstractMethod(eqx.Module):
    r"""A first-order method whose state has more than the weights, such as a velocity.

    One step takes the gradient at the weights that ``query`` returns and moves the weights by ``advance``. Both are
    functions of arrays whose rows are vectors of the input space; ``memory`` is the number of arrays of the size of the
    weights in the additional state, which are stacked and zero at the start.

    `OverlapSGD`, `BatchMap` and `DMFT` cover every method that commutes with rotations of the input space: linear
    combinations, and nonlinear ones with factors that depend on lengths and scalar products (a gradient clipped by its
    norm). Whether a method does is tested on random numbers. A method that uses single coordinates (`RMSProp`,
    `Adam`) is simulated on the weights, by `DirectSGD`; `SaadSolla` covers `SignDescent` on single samples.
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

    def step(
        self, W: Float[Array, "p n"], V: Float[Array, "m n"], gradient: Float[Array, "p n"], rate: float | Array
    ) -> tuple[Float[Array, "p n"], Float[Array, "m n"]]:
        r"""Return the next weights and memory, given the gradient and the rate :math:`\gamma/d`.

        It calls ``advance`` with the move of plain SGD; a method whose steps do not scale with the gradient, such as
        `SignDescent`, defines this function instead.
        """
        return self.advance(W, V, -rate * gradient)


@register
class HeavyBall(AbstractMethod):
    r"""Polyak's momentum, :math:`V^+ = \beta V - \frac{\gamma}{d}\nabla L(W),\ W^+ = W + V^+`.

    ``SGD(..., momentum=0.9)`` is equivalent to ``SGD(..., momentum=HeavyBall(0.9))``.
    """

    beta: Number = leaf(number("beta", low=0.0, below=1.0), default=0.9)

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        V = self.beta * V + move
        return W + V, V


@register
class Nesterov(AbstractMethod):
    r"""Nesterov's momentum: the gradient is taken at the weights moved by the velocity.

    .. math:: V^+ = \beta V - \frac{\gamma}{d}\nabla L(W + \beta V), \qquad W^+ = W + V^+
    """

    beta: Number = leaf(number("beta", low=0.0, below=1.0), default=0.9)

    def query(self, W: Array, V: Array) -> Array:
        return W + self.beta * V

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        V = self.beta * V + move
        return W + V, V


class AbstractCoordinateMethod(AbstractMethod):
    r"""Base class: a method that treats every coordinate of the weights by itself.

    The weights move by :math:`\frac{\gamma}{d} u` with steps u of order one, which depend on the gradient and on the
    basis of the input space.
    """

    @abc.abstractmethod
    def steps(
        self, V: Float[Array, "m n"], gradient: Float[Array, "p n"]
    ) -> tuple[Float[Array, "p n"], Float[Array, "m n"]]:
        """Return the step u of every coordinate, and the next memory."""

    def advance(self, W: Array, V: Array, move: Array) -> tuple[Array, Array]:
        raise NotImplementedError("A method on single coordinates is defined by its gradient; see `step`.")

    def step(self, W: Array, V: Array, gradient: Array, rate: float | Array) -> tuple[Array, Array]:
        steps, V = self.steps(V, gradient)
        return W + rate * steps, V


@register
class SignDescent(AbstractCoordinateMethod):
    r"""Steps of one size in every coordinate, :math:`W^+ = W - \frac{\gamma}{d}\,\mathrm{sign}\,V^+`.

    :math:`V^+ = \beta V + (1 - \beta) \nabla L`; with :math:`\beta = 0`, the default, the sign is that of the gradient.
    """

    beta: Number = leaf(number("beta", low=0.0, below=1.0), default=0.0)

    def steps(self, V: Array, gradient: Array) -> tuple[Array, Array]:
        V = self.beta * V + (1.0 - self.beta) * gradient
        return -jnp.sign(V), V


@register
class RMSProp(AbstractCoordinateMethod):
    r"""Gradients divided by the root mean square of past ones.

    .. math:: W^+ = W - \frac{\gamma}{d}\,\frac{\nabla L}{\sqrt{V^+} + \epsilon}, \qquad
              V^+ = \beta V + (1 - \beta) (\nabla L)^2
    """

    beta: Number = leaf(number("beta", low=0.0, below=1.0), default=0.9)
    epsilon: Number = leaf(number("epsilon", above=0.0), default=1e-8)

    def steps(self, V: Array, gradient: Array) -> tuple[Array, Array]:
        V = self.beta * V + (1.0 - self.beta) * gradient**2
        return -gradient / (jnp.sqrt(V) + self.epsilon), V


@register
class Adam(AbstractCoordinateMethod):
    r"""Adam, :math:`W^+ = W - \frac{\gamma}{d}\,\hat m / (\sqrt{\hat v} + \epsilon)`.

    .. math::
        m^+ = \beta_1 m + (1 - \beta_1) \nabla L, \quad v^+ = \beta_2 v + (1 - \beta_2) (\nabla L)^2, \quad
        \hat m = \frac{m^+}{1 - \beta_1^t}, \quad \hat v = \frac{v^+}{1 - \beta_2^t}

    The number t of steps is the third array of the memory.
    """

    memory: ClassVar[int] = 3

    beta1: Number = leaf(number("beta1", low=0.0, below=1.0), default=0.9)
    beta2: Number = leaf(number("beta2", low=0.0, below=1.0), default=0.999)
    epsilon: Number = leaf(number("epsilon", above=0.0), default=1e-8)

    def steps(self, V: Array, gradient: Array) -> tuple[Array, Array]:
        mean, square, number_of_steps = jnp.split(V, 3)
        mean = self.beta1 * mean + (1.0 - self.beta1) * gradient
        square = self.beta2 * square + (1.0 - self.beta2) * gradient**2
        number_of_steps = number_of_steps + 1.0
        unbiased_mean = mean / (1.0 - self.beta1**number_of_steps)
        unbiased_square = square / (1.0 - self.beta2**number_of_steps)
        steps = -unbiased_mean / (jnp.sqrt(unbiased_square) + self.epsilon)
        return steps, jnp.concatenate([mean, square, number_of_steps])


@accepts(Number, AbstractMethod)
def as_momentum(value: object) -> AbstractMethod | Number:
    """Convert the argument ``momentum``: a number, which means heavy ball, or a method; heavy ball becomes a number."""
    if isinstance(value, HeavyBall):
        return value.beta
    if isinstance(value, AbstractMethod):
        return value
    return number("momentum", low=0.0, below=1.0)(value)


# ------------------------------------------------------------------------------------------- properties of a method


def _outcome(method: AbstractMethod, W: Array, V: Array, gradient: Array) -> list[Array]:
    """What a step at rate 1 returns, and where it takes the gradient."""
    return [method.query(W, V), *method.step(W, V, gradient, 1.0)]


def _example(method: AbstractMethod, seed: int, n: int = 5) -> list[Array]:
    """Random weights, memory and gradient of two units."""
    rng = np.random.default_rng(seed)
    # The memory is positive, since some methods take roots of it.
    W, V, gradient = (rng.standard_normal((rows, n)) for rows in (2, 2 * method.memory, 2))
    return [jnp.asarray(W), jnp.asarray(np.abs(V)), jnp.asarray(gradient)]


def _is_close(x: list[Array], y: list[Array]) -> bool:
    return all(bool(jnp.allclose(u, v, rtol=1e-9, atol=1e-9)) for u, v in zip(x, y, strict=True))


def commutes_with_rotations(method: AbstractMethod) -> bool:
    """Whether a step commutes with rotations of the input space, tested on random numbers."""
    with double():
        arrays = _example(method, 0)
        turn = jnp.asarray(np.linalg.qr(np.random.default_rng(1).standard_normal((5, 5)))[0])
        turned = _outcome(method, *(x @ turn for x in arrays))
        return _is_close([x @ turn for x in _outcome(method, *arrays)], turned)


def is_linear(method: AbstractMethod) -> bool:
    """Whether a step is linear in weights, memory and gradient together, tested on random numbers."""
    with double():
        first, second = _example(method, 0), _example(method, 1)
        mixed = [2.0 * x - 0.5 * y for x, y in zip(first, second, strict=True)]
        separate = zip(_outcome(method, *first), _outcome(method, *second), strict=True)
        return _is_close(_outcome(method, *mixed), [2.0 * x - 0.5 * y for x, y in separate])


def gain(method: AbstractMethod) -> Array:
    r"""The distance that the weights move in the long run for a move of one, by a linear method.

    With :math:`V^+ = A V + b\,u` and :math:`W^+ = W + c V + e\,u` for a move u it is :math:`e + c (1 - A)^{-1} b`, that
    is :math:`1/(1 - \beta)` for heavy ball and Nesterov.
    """
    one, none = jnp.ones((1, 1)), jnp.zeros((1, 1))
    V = jnp.zeros((method.memory, 1))
    e, b = method.advance(none, V, one)
    by_V = jax.jacfwd(lambda V: method.advance(none, V, none))(V)
    c, A = by_V[0].reshape(1, -1), by_V[1].reshape(method.memory, -1)
    return (e + c @ jnp.linalg.solve(jnp.eye(method.memory) - A, b))[0, 0]
