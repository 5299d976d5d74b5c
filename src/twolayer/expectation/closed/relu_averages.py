r"""Averages of steps, relus and signs of up to four Gaussian fields.

With slopes :math:`\theta` (steps) and :math:`\rho_{ab}` the correlation of two fields,

.. math::
    \Theta_2(\rho_{12}) = E[\theta\theta] = \tfrac14 + \tfrac{\arcsin\rho_{12}}{2\pi}, \qquad
    E[(x_1)_+ (x_2)_+] = \tfrac{1}{2\pi}\Big[\sqrt{C_{11}C_{22} - C_{12}^2}
    + C_{12}\big(\tfrac\pi2 + \arcsin\rho_{12}\big)\Big]

Two steps and two units contain an orthant probability in four dimensions. Its derivative with respect to the
covariances between the two steps and the two units is elementary, so that it is one smooth integral over an
interpolation s.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.rules import QuadratureRule

# A conditional variance below this fraction of the largest variance is rounding: the field is then determined.
DEGENERATE = 1e-15
# The same for a variance given two fields, as a fraction of that given one of them.
DETERMINED = 1e-13
# Fields whose squared correlation is this close to one coincide numerically.
COINCIDENT = 1e-15


def safe_root(x: Array) -> Array:
    """Return a square root that is zero, with zero derivative, where rounding makes its argument negative or zero."""
    return jnp.where(x > 0.0, jnp.sqrt(jnp.where(x > 0.0, x, 1.0)), 0.0)


def _product_error(a: Array, b: Array) -> Array:
    """Return what rounding removes from a product, by splitting the factors into halves :cite:p:`dekker1971`."""
    high = [134217729.0 * x - (134217729.0 * x - x) for x in (a, b)]
    low = [a - high[0], b - high[1]]
    return ((high[0] * high[1] - a * b) + high[0] * low[1] + low[0] * high[1]) + low[0] * low[1]


def difference(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return a b - c d with the error of one rounding only.

    Covariances given a field are such differences, all digits of which are lost where two fields nearly coincide.
    """
    return (a * b - c * d) + jax.lax.stop_gradient(_product_error(a, b) - _product_error(c, d))


def arcsine(c12: Array, c11: Array, c22: Array, scale: Array | float = 0.0) -> Array:
    r"""Return :math:`\arcsin(c_{12}/\sqrt{c_{11} c_{22}})`, and zero where a field is determined.

    Zero is correct there, since a step at its kink counts one half for any value of the other field. A variance counts
    as rounding if it is a tiny fraction of ``scale``.
    """
    usable = jnp.logical_and(c11 > DEGENERATE * scale, c22 > DEGENERATE * scale)
    usable = jnp.logical_and(usable, jnp.logical_and(c11 > 0.0, c22 > 0.0))
    a, b, c = jnp.where(usable, c11, 1.0), jnp.where(usable, c22, 1.0), jnp.where(usable, c12, 0.0)
    determinant = difference(a, b, c, c)
    # Its square root has an infinite derivative at full correlation, which is avoided.
    inside = determinant > COINCIDENT * a * b
    return jnp.where(inside, jnp.arctan2(c, jnp.sqrt(jnp.where(inside, determinant, 1.0))), jnp.sign(c) * np.pi / 2)


def orthant(c12: Array, c11: Array, c22: Array, scale: Array | float = 0.0) -> Array:
    r"""Return :math:`\Theta_2 = E[\theta(x_1)\theta(x_2)]`, the probability that two fields are both positive."""
    return 0.25 + arcsine(c12, c11, c22, scale) / (2.0 * np.pi)


@jax.custom_jvp
def two_units(c12: Array, c11: Array, c22: Array) -> Array:
    r"""Return :math:`E[(x_1)_+ (x_2)_+]`, with derivatives that are accurate where the two nearly coincide.

    .. math:: \partial_{12} = \Theta_2, \qquad \partial_{11} = \frac{\sqrt{C_{11}C_{22} - C_{12}^2}}{4\pi C_{11}}

    Differentiating root and arcsine one by one would subtract two numbers that are infinite at coincidence.
    """
    return (root_of_determinant(c12, c11, c22) + c12 * (np.pi / 2 + arcsine(c12, c11, c22))) / (2.0 * np.pi)


def root_of_determinant(c12: Array, c11: Array, c22: Array) -> Array:
    r"""Return :math:`\sqrt{C_{11} C_{22} - C_{12}^2}`, zero where the two fields coincide up to rounding."""
    determinant = difference(c11, c22, c12, c12)
    return safe_root(jnp.where(determinant > COINCIDENT * c11 * c22, determinant, 0.0))


@two_units.defjvp
def _two_units_derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    c12, c11, c22 = primals
    area = root_of_determinant(c12, c11, c22) / (4.0 * np.pi)
    by_first, by_second = (jnp.where(c > 0.0, area / jnp.where(c > 0.0, c, 1.0), 0.0) for c in (c11, c22))
    slope = orthant(c12, c11, c22) * tangents[0] + by_first * tangents[1] + by_second * tangents[2]
    return two_units(c12, c11, c22), slope


class Three(dict[str, Array]):
    """The six covariances of three fields a, b, c: ``V["ab"]`` in any order of the letters."""

    def __missing__(self, pair: str) -> Array:
        return self[pair[::-1]]

    def _rest(self, pair: str, one: str, other: str, variance: Array) -> Array:
        return difference(self[pair], variance, self[one], self[other]) / variance

    def given(self, i: str, scale: Array) -> tuple[Array, Array, str, str, Array, Array, Array]:
        """Condition on one field being zero; return whether it is free, its variance, the other fields' covariances."""
        first, second = (letter for letter in "abc" if letter != i)
        is_free = self[i + i] > DEGENERATE * scale
        variance = jnp.where(is_free, self[i + i], 1.0)
        c11, c22 = (self._rest(x + x, x + i, x + i, variance) for x in (first, second))
        c11, c22 = (jnp.where(rest > DETERMINED * self[x + x], rest, 0.0) for x, rest in ((first, c11), (second, c22)))
        c12 = self._rest(first + second, first + i, second + i, variance)
        return is_free, variance, first, second, c11, c22, c12


def two_steps_and_a_relu(V: Three, scale: Array) -> Array:
    r"""Return :math:`T_3 = E[\theta(x_a)\theta(x_b)(x_c)_+]`.

    .. math:: T_3 = \sum_{i} \frac{V_{ci}}{\sqrt{2\pi V_{ii}}}\,
              \Theta_2\big(\rho\ \text{of the other two given}\ x_i = 0\big)
    """
    total = jnp.zeros_like(V["aa"])
    is_one = jnp.asarray(True)
    for i in "abc":
        is_free, variance, _, _, c11, c22, c12 = V.given(i, scale)
        pull = V["c" + i] / jnp.sqrt(2.0 * np.pi * variance)
        total = total + jnp.where(is_free, pull * orthant(c12, c11, c22, scale), 0.0)
        is_one = is_one & is_free & (jnp.maximum(c11, c22) <= DEGENERATE * scale)
    # If the three fields are equal, their kinks coincide, and the sum above is not defined.
    alike = (V["ab"] > 0.0) & (V["ac"] > 0.0)
    return jnp.where(is_one, jnp.where(alike, safe_root(V["cc"]) / np.sqrt(2.0 * np.pi), 0.0), total)


def two_steps_and_a_sign(V: Three, scale: Array) -> Array:
    r"""Return :math:`E[\theta(x_a)\theta(x_b)\,\mathrm{sign}(x_c)] = (\arcsin\rho_{ac} + \arcsin\rho_{bc})/2\pi`.

    The third arcsine of the orthant probability cancels against that of the two steps.
    """
    angles = arcsine(V["ac"], V["aa"], V["cc"], scale) + arcsine(V["bc"], V["bb"], V["cc"], scale)
    return angles / (2.0 * np.pi)


def _step_and_relu(c12: Array, c11: Array, c22: Array, scale: Array) -> Array:
    r"""Return :math:`E[\theta(x_1)(x_2)_+]`."""
    is_free = c11 > DEGENERATE * scale
    pull = jnp.where(is_free, c12 / jnp.sqrt(jnp.where(is_free, c11, 1.0)), 0.0)
    return (safe_root(c22) + pull) / (2.0 * np.sqrt(2.0 * np.pi))


def _step_and_sign(c12: Array, c11: Array, c22: Array, scale: Array) -> Array:
    r"""Return :math:`E[\theta(x_1)\,\mathrm{sign}(x_2)] = \arcsin(\rho_{12})/\pi`."""
    return arcsine(c12, c11, c22, scale) / np.pi


def interpolation_rule(order: int) -> QuadratureRule:
    """Return a rule for s on [0, 1]: Gauss-Legendre in t, with s = cos(pi t^3 / 2).

    The integrand depends on the root of 1 - s^2 times a correlation, which is smooth in the angle, except for two
    fields that nearly coincide: it then varies within a short distance of s = 1, where the cube puts more nodes.
    """
    x, w = np.polynomial.legendre.leggauss(order)
    t = 0.5 * (x + 1.0)
    angle = np.pi / 2 * t**3
    return QuadratureRule(np.cos(angle), 0.75 * w * np.pi * t**2 * np.sin(angle))


def two_steps_and_two_relus(
    C: Float[Array, "4 4"], rule: QuadratureRule, nudge: Array | float = 0.0
) -> Float[Array, ""]:
    r"""Return :math:`I_4` of `two_steps_and_two_units` for two relus, with every angle computed once.

    Each term of the integrand sets two fields to zero and takes the orthant probability of the two others given these.
    The pairs of a step i and a relu j come from both relus, with the covariances V given the step,

    .. math:: \frac{C_{ij} V_{jl} + C_{il} V_{jj}}{2\pi\sqrt{C_{ii} V_{jj}}}\,\Theta_2(i', l \mid i, j)
    """
    s, weights = jnp.asarray(rule.points), jnp.asarray(rule.weights)
    rest, square, scale = (1.0 - s) * (1.0 + s), s**2, jnp.max(jnp.diagonal(C))
    own = jnp.diagonal(C)[:2]
    safe = jnp.where(own > 0.0, own, 1.0)
    given = difference(C[None], safe[:, None, None], C[:2, :, None], C[:2, None, :]) / safe[:, None, None]
    nudged = given * (1.0 + nudge * (2.0 * np.eye(4) - 1.0)[None])
    integrand = _of_both_steps(C, given, s)
    for i, other in ((0, 1), (1, 0)):
        V, step = nudged[i], nudged[i, other, other]
        for j, last in ((2, 3), (3, 2)):
            jj, ll, jl = (rest * C[x, y] + square * V[x, y] for x, y in ((j, j), (last, last), (j, last)))
            oj, ol = s * V[other, j], s * V[other, last]
            usable = (own[i] > 0.0) & (jj > DEGENERATE * scale)
            jj = jnp.where(usable, jj, 1.0)
            of_step, of_last = difference(step, jj, oj, oj), difference(ll, jj, jl, jl)
            of_step = jnp.where(of_step > DETERMINED * step * jj, of_step, 0.0)
            of_last = jnp.where(of_last > DETERMINED * ll * jj, of_last, 0.0)
            pull = (C[i, j] * jl + C[i, last] * jj) / (2.0 * np.pi * jnp.sqrt(safe[i] * jj))
            integrand += jnp.where(usable, pull * orthant(difference(ol, jj, oj, jl), of_step, of_last), 0.0)
    start = orthant(C[0, 1], C[0, 0], C[1, 1]) * two_units(C[2, 3], C[2, 2], C[3, 3])
    return start + weights @ integrand


def _of_both_steps(C: Float[Array, "4 4"], given: Float[Array, "2 4 4"], s: Array) -> Float[Array, " nodes"]:
    """Return the part of the integrand in which both steps are at their kinks, from covariances given each step."""
    i, j = np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3])
    pull = jnp.sum(C[i, j] * given[i, 5 - j, 1 - i])
    area = root_of_determinant(C[0, 1], C[0, 0], C[1, 1])
    is_apart = area > 0.0
    step = jnp.where(is_apart, given[0, 1, 1], 1.0)
    x, y = np.array([2, 2, 3]), np.array([3, 2, 3])
    both = difference(given[0, x, y], step[None], given[0, x, 1], given[0, y, 1]) / step
    S = ((1.0 - s) * (1.0 + s))[None, :] * C[x, y][:, None] + (s**2)[None, :] * both[:, None]
    angle = orthant(S[0], S[1], S[2], jnp.max(jnp.diagonal(C)))
    return jnp.where(is_apart, s * pull / (2.0 * np.pi * jnp.where(is_apart, area, 1.0)) * angle, 0.0)


def two_steps_and_two_units(
    C: Float[Array, "4 4"], are_relu: tuple[bool, bool], rule: QuadratureRule, nudge: Array | float = 0.0
) -> Float[Array, ""]:
    r"""Return :math:`I_4 = E[\theta(x_1)\theta(x_2)\,g_3(x_3)\,g_4(x_4)]`, where each g is a relu or a sign.

    With the four covariances between {1, 2} and {3, 4} multiplied by s,

    .. math:: I_4 = E[\theta\theta]\,E[g_3 g_4] + \int_0^1 ds \sum_{i \in \{1,2\}} \sum_{j \in \{3,4\}}
              \frac{C_{ij}}{\sqrt{2\pi C_{ii}}}\,E\big[\theta(x_{i'})\,g_j'(x_j)\,g_{j'}(x_{j'})\,\big|\,x_i = 0\big]

    The derivative of a relu is a step; that of a sign is twice a delta function, which conditions on its field too.
    The conditional covariances are changed by the relative ``nudge``, from which the effect of their rounding follows.
    """
    if all(are_relu):
        return two_steps_and_two_relus(C, rule, nudge)
    s, weights = jnp.asarray(rule.points), jnp.asarray(rule.weights)
    rest, scale = (1.0 - s) * (1.0 + s), jnp.max(jnp.diagonal(C))
    integrand = jnp.zeros_like(s)
    for i, other in ((0, 1), (1, 0)):
        is_free = C[i, i] > 0.0
        safe = jnp.where(is_free, C[i, i], 1.0)
        for j, last in ((2, 3), (3, 2)):

            def given(x: int, y: int, i: int = i, safe: Array = safe) -> Array:
                return difference(C[x, y], safe, C[x, i], C[y, i]) / safe * (1.0 + (nudge if x == y else -nudge))

            V = Three(
                aa=jnp.broadcast_to(given(other, other), s.shape),
                bb=rest * C[j, j] + s**2 * given(j, j),
                cc=rest * C[last, last] + s**2 * given(last, last),
                ab=s * given(other, j),
                ac=s * given(other, last),
                bc=rest * C[j, last] + s**2 * given(j, last),
            )
            inner = _inner(V, are_relu[j - 2], are_relu[last - 2], scale)
            integrand = integrand + jnp.where(is_free, C[i, j] / jnp.sqrt(2.0 * np.pi * safe) * inner, 0.0)
    start = orthant(C[0, 1], C[0, 0], C[1, 1]) * _two_of(C[2, 3], C[2, 2], C[3, 3], are_relu)
    return start + weights @ integrand


def _inner(V: Three, is_relu_b: bool, is_relu_c: bool, scale: Array) -> Array:
    if is_relu_b:
        return two_steps_and_a_relu(V, scale) if is_relu_c else two_steps_and_a_sign(V, scale)
    is_free, variance, _, _, c11, c22, c12 = V.given("b", scale)
    conditional = _step_and_relu(c12, c11, c22, scale) if is_relu_c else _step_and_sign(c12, c11, c22, scale)
    return jnp.where(is_free, 2.0 / jnp.sqrt(2.0 * np.pi * variance) * conditional, 0.0)


def _two_of(c12: Array, c11: Array, c22: Array, are_relu: tuple[bool, bool]) -> Array:
    if not any(are_relu):
        return 2.0 / np.pi * arcsine(c12, c11, c22)
    return c12 / jnp.sqrt(2.0 * np.pi * (c22 if are_relu[0] else c11))
