r"""Closed forms for units that are all :math:`x^2`: a few products of small matrices, without a loop over units."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.types import Numbers
from twolayer.expectation.engine import ROUNDING, AbstractEngine, AbstractRule, Suits
from twolayer.expectation.gaussian_moments import opposed_weights, unit_weights
from twolayer.problem import Overlaps, Problem
from twolayer.problem.activations import SquareActivation


class SquareUnits(AbstractRule):
    r"""Closed forms for a student and a target whose units are all squares :cite:p:`arnaboldi2023escaping`.

    With :math:`D = \mathrm{diag}(c)`, :math:`\tau_1 = \mathrm{tr} D\Omega`,
    :math:`\tau_2 = \mathrm{tr} D\Omega D\Omega`:

    .. math::
        E[\mathcal E \ell\ell^T] = \tau_1 \Omega + 2\,\Omega D \Omega, \qquad
        E[\mathcal E^2 \ell\ell^T] = (\tau_1^2 + 2\tau_2 + \Delta)\,\Omega + 4\tau_1\,\Omega D\Omega
        + 8\,\Omega D\Omega D\Omega

    See `increment_covariance_of_squares` for products of four fields.
    """

    others: tuple[AbstractEngine, ...] = ()

    floor: ClassVar[float] = ROUNDING

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        units = problem.target.units
        if not isinstance(problem.student.activation, SquareActivation):
            return Suits(False, f"the student is {problem.student.activation}, not square")
        if units is None or not isinstance(units.activation, SquareActivation):
            return Suits(False, "the target is not a sum of squares")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "SquareUnits":
        return cls()

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        p, omega = problem.p, overlaps.omega
        c = unit_weights(problem, overlaps.a)
        once = omega * c[None, :] @ omega  # Omega D Omega
        twice = once * c[None, :] @ omega  # Omega D Omega D Omega
        tau1 = c @ jnp.diagonal(omega)
        tau2 = c @ jnp.diagonal(once)
        X1 = tau1 * omega + 2.0 * once
        X2 = (tau1**2 + 2.0 * tau2 + problem.noise) * omega + 4.0 * tau1 * once + 8.0 * twice
        values = {
            "excess_risk": 0.5 * (tau1**2 + 2.0 * tau2),
            "chi": jnp.diagonal(X1)[:p],
            "v": 2.0 * X1[:p],
            "phi_hd": 4.0 * X2[:p, :p],
        }
        if "covariance" in wanted:
            values["covariance"] = increment_covariance_of_squares(
                unit_weights(problem, opposed_weights(problem, overlaps.a)), omega, overlaps.a, problem.noise
            )
        return {name: values[name] for name in wanted}

    @property
    def name(self) -> str:
        return "closed form (square)"


def increment_covariance_of_squares(
    c: Float[Array, " n"], omega: Float[Array, "n n"], a: Float[Array, " p"], noise: Numbers
) -> Float[Array, "rows rows"]:
    r"""Return the moment ``covariance`` of students and targets of squares, by a generating function.

    With :math:`\Omega_s = \Omega (1 - 2 s D \Omega)^{-1}`,

    .. math::
        E[e^{s\mathcal E} \ell\ell^T] = V(s) = Z(s)\,\Omega_s, \qquad
        E[e^{s\mathcal E} \ell_u\ell_w\ell_x\ell_y]
        = \Omega_{s,uw} V_{xy} + \Omega_{s,ux} V_{wy} + \Omega_{s,uy} V_{wx}, \qquad
        \log Z = \sum_n \frac{(2s)^n}{2n} \mathrm{tr}(D\Omega)^n + \frac{s^2 \Delta}{2}

    and the powers of the displacement are coefficients of these series. Every entry of the increments is a displacement
    or its square, times two fields.

    Parameters
    ----------
    c, omega, a, noise
        Weights of all units in the displacement, covariance of all fields, second layer, variance of the label noise.

    Returns
    -------
    Covariance of the parts of `twolayer.expectation.sample_parts`, in their order.

    Notes
    -----
    Checked against: an exact rule in five fields, the polynomials of p = k = 1 written out.
    """
    n, p = len(c), len(a)
    highest = 4
    # Coefficients of the powers of s: those of Omega_s, of the derivative of log Z, of Z, of V.
    fields = [omega]
    for _ in range(highest):
        fields.append(2.0 * (omega * c[None, :]) @ fields[-1])
    slopes = [c @ jnp.diagonal(fields[order]) + (noise if order == 1 else 0.0) for order in range(highest)]
    Z: list[Any] = [1.0]
    for order in range(1, highest + 1):
        Z.append(sum(slopes[i] * Z[order - 1 - i] for i in range(order)) / order)
    V: list[Any] = [sum(Z[order - i] * fields[i] for i in range(order + 1)) for order in range(highest + 1)]

    units, (left, right) = np.arange(p), np.triu_indices(p)
    first, second = np.repeat(units, n), np.tile(np.arange(n), p)
    # Products of the same two fields are the same numbers, so that a program on single numbers has them once.
    first, second = np.minimum(first, second), np.maximum(first, second)
    first, second = np.concatenate([units, first]), np.concatenate([units, second])
    factor = jnp.concatenate([jnp.ones(p), 2.0 * jnp.repeat(a, n)])
    linear, square = (first, second, factor), (left, right, 4.0 * a[left] * a[right])

    def block(first_part: tuple[Any, Any, Any], second_part: tuple[Any, Any, Any], powers: tuple[int, int]) -> Array:
        u, w, scale = first_part
        x, y, other_scale = second_part
        order = sum(powers)
        total = jnp.zeros((len(u), len(x)))
        for i in range(order + 1):
            A, B = fields[i], V[order - i]
            total = total + A[u, w][:, None] * B[x, y][None, :] + A[u][:, x] * B[w][:, y] + A[u][:, y] * B[w][:, x]
        means = [math.factorial(power) * V[power][i, j] for power, (i, j) in zip(powers, ((u, w), (x, y)), strict=True)]
        covariance = math.factorial(order) * total - means[0][:, None] * means[1][None, :]
        return scale[:, None] * covariance * other_scale[None, :]

    mixed = block(linear, square, (1, 2))
    top = jnp.concatenate([block(linear, linear, (1, 1)), mixed], axis=1)
    return jnp.concatenate([top, jnp.concatenate([mixed.T, block(square, square, (2, 2))], axis=1)])
