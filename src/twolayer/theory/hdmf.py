"""The mean-field limit of infinite width and dimension: particles in the directions of the target."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.types import Number
from twolayer.description import AbstractDescription, Applies, Exactness, Plan, Record
from twolayer.expectation.over_target import TargetRule, kind_of_rule, over_target
from twolayer.expectation.smoothing import AbstractSmoothing
from twolayer.problem import Problem
from twolayer.specification.fields import count, leaf, number, static
from twolayer.specification.registry import register
from twolayer.theory.motion.flow import Accuracy
from twolayer.theory.motion.particles import (
    AbstractLandscape,
    Landscapes,
    Particles,
    draw_particles,
    follow_particles,
    mean_field_applies,
)
from twolayer.training import SGD

# Numbers in memory at once: a block of particles at all points fits the caches of a core.
BLOCK = 2**17
# Numbers in one evaluation above which coarser rules are not padded to the size of the finest: running them costs more
# than compiling each.
LARGE = 2**20


class FieldLandscape(AbstractLandscape):
    r"""The risk of particles whose parts outside of the target's span are orthogonal to each other.

    With independent standard normals :math:`\gamma \in R^k`, :math:`\lambda^\star = P^{1/2}\gamma`, and the smoothed
    activation :math:`\bar\sigma(u, s) = E_\xi[\sigma(u + s\xi)]`,

    .. math::
        R = \tfrac12 E_\gamma[r^2], \qquad r = f(\lambda^\star) - F, \qquad
        F(\gamma) = \frac1n \sum_i a_i\,\bar\sigma(b_i \cdot \gamma,\ s_i)

    .. math::
        f_a = E[r\,\bar\sigma], \qquad f_b = a\,E[r\,\partial_u\bar\sigma\;\gamma], \qquad
        f_s = a\,E[r\,\partial_s\bar\sigma]

    The cost is linear in the number of particles: one pass over them for r, a second one for the forces.
    """

    rule: TargetRule
    smoothing: AbstractSmoothing
    number: int = eqx.field(static=True)

    @property
    def work(self) -> int:
        return self.number * self.rule.weights.shape[0] * self.smoothing.nodes

    @property
    def _block(self) -> int:
        """The number of particles in a block."""
        return max(1, min(self.number, BLOCK // (self.rule.weights.shape[0] * self.smoothing.nodes)))

    def _in_blocks(self, x: Array) -> Array:
        """The array with a first axis of blocks, padded with particles at zero, whose output weights vanish."""
        missing = -len(x) % self._block
        filled = jnp.concatenate([x, jnp.zeros((missing, *x.shape[1:]), x.dtype)])
        return filled.reshape(-1, self._block, *x.shape[1:])

    def residual(self, particles: Particles) -> Float[Array, " points"]:
        """The target minus the student at the points."""

        def add(total: Array, block: Particles) -> tuple[Array, None]:
            a, b, s = block
            return total + a @ self.smoothing.value(self._along(b), s[:, None]), None

        blocks = jax.tree.map(self._in_blocks, particles)
        total, _ = jax.lax.scan(add, jnp.zeros_like(self.rule.weights), blocks)
        return self.rule.values - total / self.number

    def _along(self, b: Float[Array, "block k"]) -> Float[Array, "block points"]:
        # Written as a sum over the k components, which XLA fuses with later operations, unlike a matrix product.
        points = self.rule.points
        terms = [b[:, r][:, None] * points[:, r][None, :] for r in range(points.shape[1])]
        return sum(terms[1:], start=terms[0])

    def risk(self, particles: Particles) -> Float[Array, ""]:
        return 0.5 * self.rule.weights @ self.residual(particles) ** 2 + self.rule.rest

    def risk_without_pairs(self, particles: Particles) -> Float[Array, ""]:
        r"""The risk less that of the student on a target of zero, :math:`\frac12 E[f^2] - E[f F]`."""
        f = self.rule.values
        return self.rule.weights @ (f * (self.residual(particles) - 0.5 * f)) + self.rule.rest

    def force(self, particles: Particles, with_a: bool = True) -> Particles:
        return self.force_of(particles, self.residual(particles), with_a)

    def force_of(self, particles: Particles, residual: Float[Array, " points"], with_a: bool) -> Particles:
        """The forces from given values of the residual at the points."""
        weighted = self.rule.weights * residual
        shares = weighted[:, None] * self.rule.points

        def of(block: Particles) -> Particles:
            a, b, s = block
            u = self._along(b)
            output = self.smoothing.value(u, s[:, None]) @ weighted if with_a else jnp.zeros_like(a)
            slopes = self.smoothing.slopes(u, s[:, None])
            return Particles(output, a[:, None] * (slopes.along @ shares), a * (slopes.spread @ weighted))

        forces = jax.lax.map(of, jax.tree.map(self._in_blocks, particles))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: self.number], forces)


def field_landscapes(problem: Problem, number: int, rtol: float) -> Landscapes:
    """The landscape of the problem for a number of particles, with the variants that give its error."""
    points = over_target(problem, rtol, padded=True)
    first = points.members[0]
    is_large = number * len(first.rule.weights) * first.smoothing.nodes > LARGE
    if is_large:
        points = over_target(problem, rtol, padded=False)
    variants = tuple(FieldLandscape(rule, smoothing, number) for rule, smoothing in points.members)
    cheapest = len(variants) - 1 if is_large else 0
    return Landscapes(variants, points.combine, points.rtol, points.name, cheapest)


@register
class HDMF(AbstractDescription):
    r"""The mean-field limit in high dimension, :math:`p \to \infty` and then :math:`d \to \infty`.

    Particles :math:`(a_i, m_i, q_i)` with :math:`m_i \in R^k` and :math:`q_i` the squared length outside of the
    target's span; with :math:`\bar\sigma_q(u) = E_\xi[\sigma(u + \sqrt q\,\xi)]` and
    :math:`u_i = m_i^T P^{-1}\lambda^\star`,

    .. math::
        \dot m_i = a_i\,E[r\,\bar\sigma'_{q_i}(u_i)\,\lambda^\star], \qquad
        \dot q_i = 2 q_i a_i\,E[r\,\bar\sigma''_{q_i}(u_i)], \qquad
        \dot a_i = \kappa\,E[r\,\bar\sigma_{q_i}(u_i)], \qquad
        r = f(\lambda^\star) - \frac1n \sum_i a_i\,\bar\sigma_{q_i}(u_i)

    with averages over the k fields :math:`\lambda^\star \sim N(0, P)`. The risk is
    :math:`\frac12 E[r^2] + \frac\Delta2`; weight decay and the sphere act as in `velocity`. See
    :cite:t:`arnaboldi2023`, and :cite:t:`mei2018`, :cite:t:`chizat2018` for the mean-field picture.

    The particles are the p units of the student, so that this compares with `SaadSolla` from the same start. The risks
    differ by :math:`O(1/p)` (the pair of a unit with itself, correlations between units), :math:`O(\gamma/p)` (the
    variance of the gradient) and :math:`O(1/d)` (what units share by chance outside of the target's span). The theorem
    allows :math:`O(1/\sqrt p)` and :math:`O(1/\sqrt d)`, the size of the change from one random start to another.

    Parameters
    ----------
    particles
        The number of particles; by default the units of the student. Otherwise the units of further students, drawn
        from the law of the start, are added until there are at least this many: all move in their common field, which
        approaches the limit :math:`p = \infty`. The result then holds Q, M and a of the units of the student, the risk
        of all particles together, and ``particle_a``, ``particle_M``, ``particle_q`` (dimension ``particle``, the
        student's units first).
    rtol, atol
        Tolerances of the integrator per step; raised to the accuracy of averages that are themselves approximate.
    accuracy
        The relative accuracy for which rules over the target's fields are sized; the reported error is measured.
    max_steps
        Steps of the integrator after which it gives up.

    Notes
    -----
    Q holds what the flow says of the student's units: outside of the span they keep their directions, so that the
    cosines between them are those of the start. Checked against: SaadSolla without variance at growing p, MeanField at
    growing d, closed averages, the dissipation identity of the Wasserstein gradient flow.
    """

    particles: int | None = static(count("particles", optional=True), default=None)
    rtol: Number = leaf(number("rtol", above=0.0, below=1.0), default=1e-8)
    atol: Number = leaf(number("atol", above=0.0), default=1e-10)
    accuracy: float = static(number("accuracy", low=1e-12, below=1.0), default=1e-5)
    max_steps: int = static(count("max_steps"), default=200_000)

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def references(self) -> tuple[str, ...]:
        return ("arnaboldi2023", "mei2018", "chizat2018")

    def applies(self, problem: Problem, training: SGD) -> Applies:
        also = (f"O(1/sqrt d) = {problem.d**-0.5:.2g}",)
        answer = mean_field_applies(problem, training, Exactness.LIMIT_P_D, self.particles, also)
        if not answer.ok:
            return answer
        kind, reason = kind_of_rule(problem)
        return answer if kind else Applies(False, Exactness.LIMIT_P_D, f"no rule serves the target: {reason}.")

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        starts, cosines = draw_particles(problem, plan, self.particles)
        landscapes = field_landscapes(problem, starts.s.shape[1], self.accuracy)
        accuracy = Accuracy(self.rtol, self.atol, self.max_steps)
        return follow_particles(landscapes, problem, training, plan, starts, cosines, accuracy)
