r"""Averages of one unit over a normal part of its field with Hermite polynomials, where they have closed forms.

.. math:: T_q(\mu) = \frac{1}{\sqrt{q!}} E_y[g(\mu + s y)\,\mathrm{He}_q(y)]
          = \frac{s^q}{\sqrt{q!}}\,\partial_\mu^q\,E_y[g(\mu + s y)]

as rows, and the average of the square as one more.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import factorial

from twolayer.expectation.closed.waves import Wave, wave_of
from twolayer.expectation.rules import gauss_hermite
from twolayer.problem import AbstractActivation
from twolayer.problem.activations import AbstractPiecewiseLinear, Relu
from twolayer.problem.ridge_form import Along

# A kink this many deviations away has no effect: exp(-FAR^2 / 2) is zero.
FAR = 40.0

# Means (x,), a positive deviation, the number of terms -> rows (terms + 1, x), the last of which is E[g^2].
Closed = Callable[[Array, Array, int], Array]


def closed_averages(function: AbstractActivation | Along) -> Closed | None:
    """Return the averages of a function in closed form; None if there is none."""
    if isinstance(function, Relu):
        return _hinges(0.0, 0.0, ((0.0, 1.0),))
    if isinstance(function, AbstractPiecewiseLinear):
        return _hinges(function.offset, function.slope, function.hinges)
    if isinstance(function, AbstractActivation):
        degree = None if function.coefficients is None else len(function.coefficients) - 1
    else:
        degree = function.degree
    if degree is not None:
        return _polynomial(function, degree)
    wave = wave_of(function)
    return None if wave is None else _of_wave(wave)


def hermite_rows(
    first: Float[Array, " x"], z: Float[Array, " x"], number: int, of_row: Callable[[Array], Array] = jnp.asarray
) -> Float[Array, "number ..."]:
    r"""Return ``first`` times :math:`\mathrm{He}_n(z)/\sqrt{n!}` for n below ``number``, or ``of_row`` of each row."""

    def step(carry: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], Array]:
        before, now = carry
        share = jax.lax.rsqrt(n + 1.0)
        return (now, (share * z) * now - (jnp.sqrt(n) * share) * before), of_row(now)

    # A loop of the compiled program, which would grow with the number of terms otherwise.
    return jax.lax.scan(step, (jnp.zeros_like(first), first), jnp.arange(number, dtype=z.dtype))[1]


def _hinges(offset: float, slope: float, hinges: tuple[tuple[float, float], ...]) -> Closed:
    r"""Return the averages of :math:`\alpha + b x + \sum_i c_i (x - k_i)_+`.

    With :math:`m = \mu - k` and :math:`z = -m/s`, those of a hinge are :math:`m \Phi + s \varphi`, :math:`s \Phi` and
    :math:`s\,\varphi\,\mathrm{He}_{q-2}(z)/\sqrt{q!}`, and products of hinges are truncated moments.
    """

    def averages(mean: Array, s: Array, terms: int) -> Array:
        line = offset + slope * mean
        first_two, square = jnp.stack([line, jnp.full_like(mean, slope) * s]), line**2 + (slope * s) ** 2
        higher = jnp.zeros((terms - 2, len(mean)))
        q = np.arange(2.0, terms)[:, None]
        ordered = sorted(hinges)
        for i, (kink, change) in enumerate(ordered):
            m = mean - kink
            z = jnp.clip(-m / s, -FAR, FAR)
            above = 0.5 * jax.lax.erfc(z * np.sqrt(0.5))
            bell = jnp.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
            once, twice = m * above + s * bell, (m * m + s * s) * above + m * s * bell
            first_two = first_two + change * jnp.stack([once, s * above])
            if terms > 2:
                higher = higher + change * hermite_rows(s * bell, z, terms - 2) / np.sqrt(q * (q - 1.0))
            # Together with the line and with the hinges further left, which are linear where this one is not zero.
            lean = slope + sum(c for _, c in ordered[:i])
            level = offset + slope * kink + sum(c * (kink - k) for k, c in ordered[:i])
            square = square + change * (change + 2.0 * lean) * twice + 2.0 * change * level * once
        return jnp.concatenate([first_two, higher, square[None]])

    return averages


def _of_wave(wave: Wave) -> Closed:
    r"""Return averages :math:`\mathrm{Re}\,A\,(i\kappa s)^q e^{i\kappa\mu - \kappa^2 s^2/2}/\sqrt{q!}` of a wave."""
    size, phase, number = abs(wave.amplitude), float(np.angle(wave.amplitude)), wave.number

    def averages(mean: Array, s: Array, terms: int) -> Array:
        angle, damping = number * mean + phase, jnp.exp(-0.5 * (number * s) ** 2)
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        turned = jnp.stack([cosine, -sine, -cosine, sine])[np.arange(terms) % 4]
        steps = jnp.concatenate([size * damping[None], number * s / np.sqrt(np.arange(1.0, terms))])
        rows = jnp.cumprod(steps)[:, None] * turned
        twice = size**2 * damping**4 * (cosine**2 - 0.5)  # of which cos(2 angle) is the double
        square = wave.mean**2 + 2.0 * wave.mean * rows[0] + 0.5 * size**2 + twice
        return jnp.concatenate([wave.mean + rows[:1], rows[1:], square[None]])

    return averages


def _polynomial(function: Callable[[Array], Array], degree: int) -> Closed:
    """Return the averages of a polynomial of degree n by a rule of order n + 1, which is exact for all of them."""
    nodes, weights = gauss_hermite(degree + 1)
    orders = np.arange(degree + 1)
    shares = np.polynomial.hermite_e.hermevander(nodes, degree).T * weights / np.sqrt(factorial(orders))[:, None]

    def averages(mean: Array, s: Array, terms: int) -> Array:
        g = function(jnp.asarray(nodes)[:, None] * s + mean[None, :])
        series = jnp.asarray(shares[:terms]) @ g
        zeros = jnp.zeros((terms - len(series), len(mean)))
        return jnp.concatenate([series, zeros, (jnp.asarray(weights) @ (g * g))[None]])

    return averages
