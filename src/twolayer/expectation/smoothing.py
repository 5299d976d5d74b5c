r"""Activations averaged over the part of their field that is independent of the target.

.. math:: \bar\sigma(u, s) = E_\xi[\sigma(u + s\,\xi)], \qquad \xi \sim N(0, 1)

with the part u of the field that the target's fields determine, and the deviation s of the independent part. As a
function of u and :math:`s^2/2` it solves the heat equation, so that
:math:`\partial_s \bar\sigma = s\,\partial_u^2 \bar\sigma`. As functions of s, and not of its square, the forms are not
singular at s = 0; they are even in s. The shape of s must broadcast to that of u.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.special import erf
from twolayer.expectation.closed.thresholds import Thresholds, mixture, terms_for, thresholds
from twolayer.expectation.engine import ROUNDING
from twolayer.expectation.recognition import recognised
from twolayer.expectation.rules import QuadratureRule, coarser_orders, gauss_hermite, legendre_rule, line_rule
from twolayer.problem import AbstractActivation

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

# Nodes for a smooth activation without a closed form, and on each panel between the kinks of one that is not smooth.
NODES, PANEL = 48, 24
# Ends of panels, in deviations, for a function with more kinks than there are panels.
EVEN = (-5.0, -3.5, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5, 3.5, 5.0)
# A kink this many deviations away has no effect: exp(-FAR^2 / 2) is zero.
FAR = 40.0


class Slopes(NamedTuple):
    r"""The derivatives of the smoothed activation, :math:`\partial_u\bar\sigma` and :math:`\partial_s\bar\sigma`."""

    along: Float[Array, "*n"]
    spread: Float[Array, "*n"]


class AbstractSmoothing(eqx.Module):
    """Base class: the average of an activation over a Gaussian part of its field."""

    # The smallest error that is reported, relative to a number of order one.
    floor: AbstractVar[float]

    @abc.abstractmethod
    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        """Return the average at each mean u and deviation s."""

    @abc.abstractmethod
    def slopes(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Slopes:
        """Return the derivatives of the average at each mean u and deviation s."""

    @property
    @abc.abstractmethod
    def nodes(self) -> int:
        """How many numbers are in memory for each value, which limits the size of a block of values."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the smoothing in tables and datasets."""


class SignSmoothing(AbstractSmoothing):
    r"""Smoothing of noisy signs: exact for erf, one term with :math:`\tau = 1`; tanh and sigmoid are mixtures.

    .. math::
        \bar\sigma = \alpha + \sum_i w_i\,\mathrm{erf}\frac{u}{\sqrt{2\kappa_i}}, \qquad
        \partial_u\bar\sigma = \sum_i w_i \sqrt{\frac{2}{\pi\kappa_i}}\,e^{-u^2/2\kappa_i}, \qquad
        \kappa_i = \tau_i^2 + s^2

    and :math:`\partial_s` is :math:`-s u/\kappa_i` times :math:`\partial_u`, term by term.
    """

    units: Thresholds
    floor: float = eqx.field(static=True)

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        total = jnp.full_like(u, self.units.offset)
        for weight, noise in zip(self.units.weights, self.units.noise, strict=True):
            total = total + weight * erf(u * jax.lax.rsqrt(2.0 * (noise + s * s)))
        return total

    def slopes(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Slopes:
        # Written out, since automatic differentiation would also compute the error functions, which are expensive.
        along, spread = jnp.zeros_like(u), jnp.zeros_like(u)
        for weight, noise in zip(self.units.weights, self.units.noise, strict=True):
            kappa = noise + s * s
            bell = weight * jnp.sqrt(2.0 / (np.pi * kappa)) * jnp.exp(-0.5 / kappa * (u * u))
            along, spread = along + bell, spread - s / kappa * u * bell
        return Slopes(along, spread)

    @property
    def nodes(self) -> int:
        return len(self.units.weights)

    @property
    def name(self) -> str:
        terms = np.count_nonzero(self.units.weights)
        return f"closed smoothing (mixture of {terms})" if terms > 1 else "closed smoothing"


class AbstractClosedSmoothing(AbstractSmoothing):
    """Base class: a smoothing by one closed formula."""

    @property
    def nodes(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return "closed smoothing"


class ReluSmoothing(AbstractClosedSmoothing):
    r"""Smoothing of the rectifier, :math:`\bar\sigma = u\,\Phi(u/s) + s\,\varphi(u/s)`; the rectifier at s = 0.

    ``units`` may add a linear part to it.
    """

    units: Thresholds
    floor: float = eqx.field(static=True, default=ROUNDING)

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        along, spread = self.slopes(u, s)
        return self.units.offset + u * along + s * spread

    def slopes(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Slopes:
        units, is_free = self.units, s != 0.0
        # The distribution function is constant beyond FAR deviations, and at tiny s the ratio would overflow.
        x = jnp.where(is_free, jnp.clip(u / jnp.where(is_free, jnp.abs(s), 1.0), -FAR, FAR), jnp.sign(u) * FAR)
        weight = units.weights[0]
        along = units.linear + weight * 0.5 * jax.lax.erfc(-x * np.sqrt(0.5))
        along = jnp.where(is_free | (u != 0.0), along, units.slope_at_zero)
        return Slopes(along, weight * jnp.sign(s) * jnp.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi))


class PolynomialSmoothing(AbstractClosedSmoothing):
    r"""Smoothing of polynomials, :math:`\bar\sigma = \sum_n h_n H_n`, by their Hermite coefficients.

    The average of :math:`\mathrm{He}_n` is the Hermite polynomial of variance :math:`1 - s^2`,

    .. math:: H_{n+1} = u\,H_n - n\,(1 - s^2)\,H_{n-1}, \qquad \partial_u H_n = n H_{n-1}, \qquad
              \partial_s H_n = s\,n(n-1) H_{n-2}
    """

    hermite: tuple[float, ...] = eqx.field(static=True)
    floor: float = eqx.field(static=True, default=ROUNDING)

    def _ladder(self, u: Array, s: Array) -> list[Array]:
        variance = 1.0 - s * s
        ladder = [jnp.ones_like(u), u]
        for n in range(1, len(self.hermite) - 1):
            ladder.append(u * ladder[n] - n * variance * ladder[n - 1])
        return ladder

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        pairs = zip(self.hermite, self._ladder(u, s), strict=False)
        return sum((h * H for h, H in pairs), start=jnp.zeros_like(u))

    def slopes(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Slopes:
        along, spread, ladder = jnp.zeros_like(u), jnp.zeros_like(u), self._ladder(u, s)
        for n, h in enumerate(self.hermite[1:], start=1):
            along = along + h * n * ladder[n - 1]
            spread = spread + (h * n * (n - 1) * s * ladder[n - 2] if n > 1 else 0.0)
        return Slopes(along, spread)


class QuadratureSmoothing(AbstractSmoothing):
    r"""Smoothing of any activation by a rule for :math:`\xi`: Gauss-Hermite, or Gauss-Legendre between its kinks.

    The derivatives are averages of the slope of the activation, :math:`E[\sigma'(u + s\xi)]` and
    :math:`E[\sigma'(u + s\xi)\,\xi]`, which SGD uses.
    """

    activation: AbstractActivation
    rule: QuadratureRule
    floor: float = eqx.field(static=True, default=ROUNDING)

    def _fields(self, u: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return the nodes for the noise, their weights, and the fields at the nodes."""
        if self.activation.is_smooth:
            shape = (1,) * u.ndim + (-1,)
            x, w = (jnp.asarray(part).reshape(shape) for part in self.rule)
            return x, w, u[..., None] + s[..., None] * x
        is_free = jnp.abs(s) > 1e-300
        safe = jnp.where(is_free, s, 1.0)
        places = [jnp.clip(jnp.where(is_free, (kink - u) / safe, 0.0), -FAR, FAR) for kink in self.activation.kinks]
        places += [jnp.full_like(u, place) for place in (() if self.activation.has_known_kinks else EVEN)]
        flat = jnp.stack(places, axis=-1).reshape(-1, self._breaks)
        x, w = jax.vmap(lambda breaks: line_rule(breaks, self.rule))(flat)
        x, w = x.reshape(*u.shape, -1), w.reshape(*u.shape, -1)
        return x, w, u[..., None] + s[..., None] * x

    def value(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Float[Array, "*n"]:
        _, w, fields = self._fields(u, s)
        return jnp.sum(w * self.activation(fields), axis=-1)

    def slopes(self, u: Float[Array, "*n"], s: Float[Array, "..."]) -> Slopes:
        x, w, fields = self._fields(u, s)
        slope = w * self.activation.derivative(fields)
        return Slopes(jnp.sum(slope, axis=-1), jnp.sum(slope * x, axis=-1))

    @property
    def nodes(self) -> int:
        return len(self.rule.weights) * (self._breaks + 1)

    @property
    def _breaks(self) -> int:
        return len(self.activation.kinks) + (0 if self.activation.has_known_kinks else len(EVEN))

    @property
    def name(self) -> str:
        return f"smoothing by {self.rule.size} nodes{' between kinks' if self.activation.kinks else ''}"


def smoothings(activation: AbstractActivation, rtol: float) -> tuple[AbstractSmoothing, ...]:
    """Return the smoothed activation, and if it is not a closed form two coarser versions of the same shape."""
    activation = recognised(activation)
    if activation.coefficients is not None:
        hermite = np.polynomial.hermite_e.poly2herme(activation.coefficients)
        return (PolynomialSmoothing(tuple(float(h) for h in hermite)),)
    units = thresholds(activation)
    if units is None:
        return _by_quadrature(activation)
    if units.is_relu:
        return (ReluSmoothing(units),)
    if units.is_exact:
        return (SignSmoothing(units, ROUNDING),)
    terms = terms_for(rtol)
    # Two mixtures may agree by accident; the known distance to the activation bounds the error.
    finest = mixture(activation, terms, terms)
    return tuple(SignSmoothing(mixture(activation, terms - fewer, terms), finest.sup_error) for fewer in range(3))


def _by_quadrature(activation: AbstractActivation) -> tuple[AbstractSmoothing, ...]:
    make, finest = (legendre_rule, PANEL) if not activation.is_smooth else (gauss_hermite, NODES)
    # Where kinks are at unknown places, two rules of similar orders may agree by accident.
    coarser = coarser_orders(finest) if activation.has_known_kinks else (finest // 2 - 2, finest // 4)
    rules = [make(order).padded(finest) for order in (finest, *coarser)]
    first = QuadratureSmoothing(activation, rules[0])
    return (first, *(dataclasses.replace(first, rule=rule) for rule in rules[1:]))
