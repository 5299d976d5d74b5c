r"""Averages of signs and relus with linear fields, for units with a linear part such as leaky relu and abs.

A step is :math:`\theta = (1 + s)/2` with the sign s, and a relu is :math:`(x + |x|)/2`; averages of an odd number of
odd factors vanish. With Stein's lemma, for a linear field x and :math:`C_{ab}` the covariances,

.. math::
    E[s_1 x] = \sqrt{\tfrac{2}{\pi}} \frac{C_{1x}}{\sqrt{C_{11}}}, \qquad
    E[s_1 x |y|] = \tfrac2\pi \Big[ \frac{C_{1x}}{C_{11}} \sqrt{C_{11}C_{yy} - C_{1y}^2}
    + C_{xy} \arcsin\rho_{1y} \Big], \\
    E[s_1 s_2 x y] = \tfrac2\pi \Big[ C_{xy} \arcsin\rho_{12}
    + \frac{C_{1x} (C_{2y} - C_{12} C_{1y}/C_{11}) + C_{2x} (C_{1y} - C_{12} C_{2y}/C_{22})}
    {\sqrt{C_{11}C_{22} - C_{12}^2}} \Big]

and three signs with a linear field or a modulus are sums of arcsines of conditional correlations.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.closed.relu_averages import (
    Three,
    arcsine,
    difference,
    root_of_determinant,
    safe_root,
)
from twolayer.expectation.closed.thresholds import UnitList

# E|x| of a standard normal.
MODULUS = np.sqrt(2.0 / np.pi)


def mean_slopes(variance: Float[Array, " rows"], units: UnitList) -> Float[Array, " rows"]:
    r"""Return :math:`E[g']` of each row: one half for relus, :math:`\sqrt{2/\pi\kappa}` for noisy signs."""
    is_relu = jnp.asarray(units.is_relu)
    return jnp.where(is_relu, 0.5, MODULUS / jnp.sqrt(jnp.where(is_relu, 1.0, variance + units.noise)))


def mean_square_of_linear(S: Float[Array, "n n"], units: UnitList, c: Float[Array, " units"]) -> Float[Array, ""]:
    """Return what the linear parts add to the average square of the weighted sum of units."""
    linear = S @ (c * units.linear)
    rows = c[units.fields] * units.weights * mean_slopes(jnp.diagonal(S)[units.fields], units)
    return linear @ (c * units.linear) + 2.0 * linear[units.fields] @ rows


def slopes_of_linear(omega: Array, slopes: UnitList) -> Float[Array, " p"]:
    """Return the slopes of the linear parts; that at the kink for a row of zero weights."""
    is_free = jnp.diagonal(omega)[: len(slopes.linear)] > 0.0
    return jnp.where(is_free, jnp.asarray(slopes.linear), jnp.asarray(slopes.slopes_at_zero))


def pairs_of_linear(omega: Array, slopes: UnitList, units: UnitList) -> tuple[Array, Array, Array]:
    """Return what the linear parts add to the averages of two units, two slopes, and a slope with field and unit."""
    variance, p = jnp.diagonal(omega), len(slopes.linear)
    b, own_b = jnp.asarray(units.linear), slopes_of_linear(omega, slopes)
    m = units.one_hot.T @ mean_slopes(variance[units.fields], units)
    I2 = omega * (b[:, None] * b[None, :] + b[:, None] * m[None, :] + m[:, None] * b[None, :])
    is_step, own = jnp.asarray(slopes.is_relu), variance[slopes.fields]
    # A step of a field without variance is in the slope at zero.
    rows = jnp.where(is_step & (own <= 0.0), 0.0, mean_slopes(own, slopes))
    own_m = slopes.one_hot.T @ rows
    narrowed = slopes.one_hot.T @ jnp.where(is_step, 0.0, rows / jnp.where(is_step, 1.0, own + slopes.noise))
    J2 = own_b[:, None] * own_b[None, :] + own_b[:, None] * own_m[None, :] + own_m[:, None] * own_b[None, :]
    I3 = own_b[:, None, None] * (omega * (b + m)[None, :])[None, :, :]
    I3 = I3 + own_m[:, None, None] * (omega * b[None, :])[None, :, :]
    I3 = I3 - narrowed[:, None, None] * omega[:p, :, None] * (omega[:p] * b[None, :])[:, None, :]
    return I2, J2, I3


def ratio_of(x: Array, y: Array) -> Array:
    """Return x / y, and zero where y is zero."""
    return jnp.where(y != 0.0, x / jnp.where(y != 0.0, y, 1.0), 0.0)


def sign_and_modulus(c1x: Array, c11: Array, c1y: Array, cyy: Array, cxy: Array) -> Array:
    r"""Return :math:`E[s_1 x |y|]`."""
    root = root_of_determinant(c1y, c11, cyy)
    return 2.0 / np.pi * (ratio_of(c1x * root, c11) + cxy * arcsine(c1y, c11, cyy))


def two_signs(c12: Array, c11: Array, c22: Array, x: tuple[Array, Array], y: tuple[Array, Array], cxy: Array) -> Array:
    r"""Return :math:`E[s_1 s_2 x y]`, with the covariances of x and y with the fields 1 and 2."""
    (c1x, c2x), (c1y, c2y) = x, y
    tilt = c1x * ratio_of(difference(c2y, c11, c12, c1y), c11) + c2x * ratio_of(difference(c1y, c22, c12, c2y), c22)
    return 2.0 / np.pi * (cxy * arcsine(c12, c11, c22) + ratio_of(tilt, root_of_determinant(c12, c11, c22)))


def three_signs(V: Three, x: tuple[Array, Array, Array], scale: Array) -> Array:
    r"""Return :math:`E[s_a s_b s_c x]`, with the covariances of the linear field x with the fields a, b, c.

    With x the field of c it is :math:`E[s_a s_b |x_c|]`.
    """
    total = jnp.zeros_like(V["aa"])
    for i, cx in zip("abc", x, strict=True):
        is_free, variance, _, _, c11, c22, c12 = V.given(i, scale)
        pull = MODULUS * cx / jnp.sqrt(variance)
        total = total + jnp.where(is_free, pull * 2.0 / np.pi * arcsine(c12, c11, c22, scale), 0.0)
    return total


def quartic_of_linear(
    omega: Float[Array, "n n"], slopes: UnitList, units: UnitList, c: Float[Array, " units"], square: Float[Array, ""]
) -> Float[Array, "p p"]:
    r"""Return what linear parts add to the averages of two slopes that are steps and the squared sum of units.

    Slopes are :math:`b_j + w_j \theta_j`, and ``square`` is the average of the squared sum.
    """
    sums = _Sums(omega, slopes, units, c)
    b = slopes_of_linear(omega, slopes)
    w = slopes.weights * jnp.where(jnp.diagonal(omega)[slopes.fields] > 0.0, 1.0, 0.0)
    one = 0.5 * w * (square + 2.0 * sums.odd_and_even())
    mixed = b[:, None] * one[None, :]
    return b[:, None] * b[None, :] * square + mixed + mixed.T + w[:, None] * w[None, :] * sums.two_steps()


class _Sums:
    """The displacement o + L + G as offset, linear field and rows, with the covariances of these and the slopes."""

    def __init__(self, omega: Array, slopes: UnitList, units: UnitList, c: Array):
        self.omega, self.p = omega, len(slopes.fields)
        self.own, self.offset, self.linear = jnp.diagonal(omega)[: self.p], c @ units.offsets, c * units.linear
        rows, kappa = c[units.fields] * units.weights, jnp.diagonal(omega)[units.fields] + units.noise
        relus, signs = np.flatnonzero(units.is_relu), np.flatnonzero(~units.is_relu)
        # The relus as linear halves and moduli, and the noisy signs.
        belongs = units.fields[relus][:, None] == np.arange(len(c))[None, :]
        self.halves = (0.5 * rows[relus]) @ jnp.asarray(belongs, omega.dtype)
        self.moduli, self.modulus_fields, self.modulus_kappa = 0.5 * rows[relus], units.fields[relus], kappa[relus]
        self.signs, self.sign_fields, self.sign_kappa = rows[signs], units.fields[signs], kappa[signs]

    def _one_sign(self, x: Float[Array, " n"]) -> Float[Array, " p"]:
        r"""Return :math:`E[s_j x]` for the linear field with coefficients x."""
        return MODULUS * ratio_of((self.omega @ x)[: self.p], safe_root(self.own))

    def _with_moduli(self, x: Float[Array, " n"]) -> Float[Array, " p"]:
        r"""Return :math:`E[s_j x \sum_a w_a |x_a|]` for the linear field with coefficients x."""
        along, fields = self.omega @ x, self.modulus_fields
        cross, own = self.omega[: self.p][:, fields], self.own[:, None]
        kappa, shared = self.modulus_kappa[None, :], along[fields][None, :]
        return sign_and_modulus(along[: self.p, None], own, cross, kappa, shared) @ self.moduli

    def odd_and_even(self) -> Float[Array, " p"]:
        """Return the average of each sign with the odd and the even part of the displacement."""
        odd = self.linear + self.halves
        total = self.offset * self._one_sign(odd) + self._with_moduli(odd)
        if not len(self.signs):
            return total
        cross, own = self.omega[: self.p][:, self.sign_fields], self.own[:, None]
        total = total + self.offset * (2.0 / np.pi * arcsine(cross, own, self.sign_kappa[None, :]) @ self.signs)
        if not len(self.moduli):
            return total
        other = self.omega[: self.p][:, self.modulus_fields]
        between = self.omega[self.sign_fields][:, self.modulus_fields]
        a, b, c = self.own[:, None, None], self.sign_kappa[None, :, None], self.modulus_kappa[None, None, :]
        V = _three(a, b, c, cross[:, :, None], other[:, None, :], between[None])
        three = three_signs(V, (V["ac"], V["bc"], V["cc"]), jnp.max(jnp.diagonal(self.omega)))
        return total + jnp.einsum("jab,a,b->j", three, self.signs, self.moduli)

    def two_steps(self) -> Float[Array, "p p"]:
        r"""Return the part of :math:`E[\theta_j \theta_l (o + L + G)^2]` in which L appears."""
        p, L, R = self.p, self.omega @ self.linear, self.omega @ self.halves
        c12, c11, c22 = self.omega[:p, :p], self.own[:, None], self.own[None, :]
        x, y = (L[:p, None], L[None, :p]), ((L + 2.0 * R)[:p, None], (L + 2.0 * R)[None, :p])
        square = self.linear @ (L + 2.0 * R)
        # Of a step with itself the product of signs is one.
        total = square + jnp.where(jnp.eye(p, dtype=bool), square, two_signs(c12, c11, c22, x, y, square))
        once = 2.0 * (self._with_moduli(self.linear) + self.offset * self._one_sign(self.linear))
        total = total + once[:, None] + once[None, :]
        if len(self.signs):
            total = total + 2.0 * self._with_signs(L) @ self.signs
        return 0.25 * total

    def _with_signs(self, L: Float[Array, " n"]) -> Float[Array, "p p rows"]:
        r"""Return :math:`E[(1 + s_j s_l) L\,\mathrm{sign}_a]` for the noisy signs a."""
        p, cross = self.p, self.omega[: self.p][:, self.sign_fields]
        a, b, c = self.own[:, None, None], self.own[None, :, None], self.sign_kappa[None, None, :]
        x = L[:p, None, None], L[None, :p, None], L[self.sign_fields][None, None, :]
        V = _three(a, b, c, self.omega[:p, :p, None], cross[:, None, :], cross[None, :, :])
        alone = jnp.broadcast_to(MODULUS * x[2] / jnp.sqrt(c), V["aa"].shape)
        three = three_signs(V, x, jnp.max(jnp.diagonal(self.omega)))
        # Of a step with itself the product of signs is one.
        return alone + jnp.where(jnp.eye(p, dtype=bool)[:, :, None], alone, three)


def _three(aa: Array, bb: Array, cc: Array, ab: Array, ac: Array, bc: Array) -> Three:
    values = jnp.broadcast_arrays(aa, bb, cc, ab, ac, bc)
    return Three(zip(("aa", "bb", "cc", "ab", "ac", "bc"), values, strict=True))
