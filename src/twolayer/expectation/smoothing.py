r"""Activations averaged over a Gaussian part of their field: all that a target sees of a unit.

.. math:: \bar\sigma(u, s) = E_\xi[\sigma(u + s\,\xi)], \qquad \xi \sim N(0, 1)

with the part u of the field that the target's fields determine, and the deviation s of the rest. As a function of u and
:math:`s^2/2` it solves the heat equation, so that :math:`\partial_s \bar\sigma = s\,\partial_u^2 \bar\sigma`. In s
itself, and not in its square, nothing is singular at s = 0; every form here is even in s. The shape of s may be any
that stretches to that of u.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.base import ROUNDING
from twolayer.expectation.closed.thresholds import Thresholds, mixture, terms_for, thresholds
from twolayer.expectation.rules import Rule, coarser_orders, gauss_hermite, legendre_rule, line_rule
from twolayer.problem import AbstractActivation

if TYPE_CHECKING:  # an AbstractVar is no argument of the constructor, but a type checker would take it for one
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

# Nodes for a smooth activation without a closed form, and on each panel between the kinks of another.
NODES, PANEL = 48, 24
# A kink this many deviations away is not felt: exp(-FAR^2 / 2) is zero.
FAR = 40.0


class Jet(NamedTuple):
    r"""The smoothed activation, :math:`\bar\sigma`, and its derivatives in u and s."""

    value: Float[Array, "*n"]
    slope: Float[Array, "*n"]
    spread: Float[Array, "*n"]


class AbstractSmoothing(eqx.Module):
    """The average of an activation over a Gaussian part of its field."""

    # The least error that is claimed, relative to a number of order one.
    floor: AbstractVar[float]

    @abc.abstractmethod
    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        """The average at each mean u and deviation s."""

    @abc.abstractmethod
    def jet(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Jet:
        """The average and its derivatives."""

    @property
    @abc.abstractmethod
    def nodes(self) -> int:
        """The numbers held for each value: what a block of values must be divided by."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How it appears in tables and datasets."""


def _jet(smoothing: AbstractSmoothing, u: Array, s: Array) -> Jet:
    """The derivatives of a closed form, by differentiating it."""
    value, slope = jax.jvp(lambda u: smoothing.value(u, s), (u,), (jnp.ones_like(u),))
    return Jet(value, slope, jax.jvp(lambda s: smoothing.value(u, s), (s,), (jnp.ones_like(s),))[1])


class SignSmoothing(AbstractSmoothing):
    r"""Noisy signs, :math:`\bar\sigma = \alpha + \sum_i w_i\,\mathrm{erf}\big(u / \sqrt{2(\tau_i^2 + s^2)}\big)`.

    Exact for erf, where there is one term with :math:`\tau = 1`; tanh and sigmoid are mixtures.
    """

    units: Thresholds
    floor: float = eqx.field(static=True)

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        total = jnp.full_like(u, self.units.offset)
        for weight, noise in zip(self.units.weights, self.units.noise, strict=True):
            total = total + weight * jax.lax.erf(u * jax.lax.rsqrt(2.0 * (noise + s * s)))
        return total

    def jet(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Jet:
        return _jet(self, u, s)

    @property
    def nodes(self) -> int:
        return len(self.units.weights)

    @property
    def name(self) -> str:
        terms = np.count_nonzero(self.units.weights)
        return f"closed smoothing (mixture of {terms})" if terms > 1 else "closed smoothing"


class ReluSmoothing(AbstractSmoothing):
    r"""The rectifier, :math:`\bar\sigma = u\,\Phi(u/s) + s\,\varphi(u/s)`; at s = 0 the rectifier itself."""

    floor: float = eqx.field(static=True, default=ROUNDING)

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        return self.jet(u, s).value

    def jet(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Jet:
        is_free = s != 0.0
        # This many deviations out the distribution function has long been a step; at tiny s the ratio would overflow.
        x = jnp.where(is_free, jnp.clip(u / jnp.where(is_free, jnp.abs(s), 1.0), -FAR, FAR), jnp.sign(u) * FAR)
        slope = jnp.where(is_free | (u != 0.0), 0.5 * jax.lax.erfc(-x * np.sqrt(0.5)), 0.0)
        spread = jnp.sign(s) * jnp.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
        return Jet(u * slope + s * spread, slope, spread)

    @property
    def nodes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return "closed smoothing"


class PolynomialSmoothing(AbstractSmoothing):
    r"""Polynomials, :math:`\bar\sigma = \sum_n h_n H_n`, from their coefficients in Hermite polynomials.

    The average of :math:`\mathrm{He}_n` is the Hermite polynomial of variance :math:`1 - s^2`,

    .. math:: H_{n+1} = u\,H_n - n\,(1 - s^2)\,H_{n-1}, \qquad \partial_u H_n = n H_{n-1}, \qquad
              \partial_s H_n = s\,n(n-1) H_{n-2}
    """

    hermite: tuple[float, ...] = eqx.field(static=True)
    floor: float = eqx.field(static=True, default=ROUNDING)

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        return self.jet(u, s).value

    def jet(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Jet:
        left = 1.0 - s * s
        ladder = [jnp.ones_like(u), u]
        for n in range(1, len(self.hermite)):
            ladder.append(u * ladder[n] - n * left * ladder[n - 1])
        value, slope, spread = (jnp.zeros_like(u) for _ in range(3))
        for n, h in enumerate(self.hermite):
            value = value + h * ladder[n]
            slope = slope + (h * n * ladder[n - 1] if n else 0.0)
            spread = spread + (h * n * (n - 1) * s * ladder[n - 2] if n > 1 else 0.0)
        return Jet(value, slope, spread)

    @property
    def nodes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return "closed smoothing"


class QuadratureSmoothing(AbstractSmoothing):
    r"""Any activation, by a rule for :math:`\xi`: Gauss-Hermite, or Gauss-Legendre on the panels between its kinks.

    The derivatives are averages of the activation's own slope, :math:`E[\sigma'(u + s\xi)]` and
    :math:`E[\sigma'(u + s\xi)\,\xi]`, as SGD sees it.
    """

    activation: AbstractActivation
    rule: Rule
    floor: float = eqx.field(static=True, default=ROUNDING)

    def _fields(self, u: Array, s: Array) -> tuple[Array, Array, Array]:
        """Nodes for the noise, their weights, and the fields there."""
        kinks = self.activation.kinks
        if not kinks:
            shape = (1,) * u.ndim + (-1,)
            x, w = (jnp.asarray(part).reshape(shape) for part in self.rule)
            return x, w, u[..., None] + s[..., None] * x
        is_free = jnp.abs(s) > 1e-300
        safe = jnp.where(is_free, s, 1.0)
        places = [jnp.clip(jnp.where(is_free, (kink - u) / safe, 0.0), -FAR, FAR) for kink in kinks]
        flat = jnp.stack(places, axis=-1).reshape(-1, len(kinks))
        x, w = jax.vmap(lambda breaks: line_rule(breaks, self.rule))(flat)
        x, w = x.reshape(*u.shape, -1), w.reshape(*u.shape, -1)
        return x, w, u[..., None] + s[..., None] * x

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        _, w, fields = self._fields(u, s)
        return jnp.sum(w * self.activation(fields), axis=-1)

    def jet(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Jet:
        x, w, fields = self._fields(u, s)
        slope = w * self.activation.derivative(fields)
        return Jet(jnp.sum(w * self.activation(fields), axis=-1), jnp.sum(slope, axis=-1), jnp.sum(slope * x, axis=-1))

    @property
    def nodes(self) -> int:
        return len(self.rule.weights) * (len(self.activation.kinks) + 1 if self.activation.kinks else 1)

    @property
    def name(self) -> str:
        between = " between kinks" if self.activation.kinks else ""
        return f"smoothing by {self.rule.size} nodes{between}"


def smoothings(activation: AbstractActivation, rtol: float) -> tuple[AbstractSmoothing, ...]:
    """The smoothed activation, and where it is no closed form two coarser versions, all of one shape."""
    if activation.coefficients is not None:
        hermite = np.polynomial.hermite_e.poly2herme(activation.coefficients)
        return (PolynomialSmoothing(tuple(float(h) for h in hermite)),)
    units = thresholds(activation)
    if units is None:
        return _by_quadrature(activation)
    if units.is_relu:
        return (ReluSmoothing(),)
    if units.is_exact:
        return (SignSmoothing(units, ROUNDING),)
    terms = terms_for(rtol)
    # Two mixtures may agree by accident, but none is further from its activation than this.
    finest = mixture(activation, terms, terms)
    return tuple(SignSmoothing(mixture(activation, terms - fewer, terms), finest.sup_error) for fewer in range(3))


def _by_quadrature(activation: AbstractActivation) -> tuple[AbstractSmoothing, ...]:
    make, finest = (legendre_rule, PANEL) if activation.kinks else (gauss_hermite, NODES)
    rules = [make(order).padded(finest) for order in (finest, *coarser_orders(finest))]
    first = QuadratureSmoothing(activation, rules[0])
    return (first, *(dataclasses.replace(first, rule=rule) for rule in rules[1:]))
