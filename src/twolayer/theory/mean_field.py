"""The mean-field limit of infinite width at finite dimension: particles with random directions."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import NotApplicable
from twolayer.core.estimate import Estimate
from twolayer.core.types import Number
from twolayer.description import AbstractDescription, Applies, Exactness, Plan, Record
from twolayer.expectation import Auto, Chosen
from twolayer.expectation.closed.random_directions import risk_over_directions
from twolayer.expectation.closed.units import ThresholdUnits
from twolayer.expectation.engine import by_coarser
from twolayer.expectation.gaussian_moments import unit_weights
from twolayer.expectation.over_target import OverTarget, kind_of_rule, over_target
from twolayer.expectation.rules import QuadratureRule, coarser_orders, cosine_order, cosine_rule
from twolayer.problem import Committee, Overlaps, Problem, Student
from twolayer.specification.fields import count, instance, leaf, number, static
from twolayer.specification.registry import register
from twolayer.theory.hdmf import FieldLandscape
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

# Engines that compute the risk pair by pair, from the covariances of each pair alone.
BY_PAIRS = ("ThresholdUnits", "SquareUnits", "PolynomialTables", "Tilted", "Series", "Slices")


class PairLandscape(AbstractLandscape):
    r"""The risk of particles whose directions outside of the target's span are uniform and independent.

    The risk is a sum over pairs of units, so that the average over directions is one over the cosine
    :math:`\rho = g \cdot g'` of each pair:

    .. math::
        R = E_\rho\big[R(\Omega_\rho)\big], \qquad
        Q_{ij}(\rho) = b_i \cdot b_j + s_i s_j\,\big(\delta_{ij} + (1 - \delta_{ij})\,\rho\big), \qquad
        \mathrm{density}(\rho) \propto (1 - \rho^2)^{(d - k - 3)/2}

    with the risk :math:`R(\Omega)` of the student at given overlaps. One cosine may replace those of all pairs at
    once, since no term contains two of them; such overlaps need not belong to any vectors. Units that are sums of noisy
    signs (erf, tanh, sigmoid) are averaged pair by pair (`random_directions`). The forces are the gradient of this one
    function. A target that no engine covers pair by pair is averaged over its k
    fields, by ``target``.
    """

    engine: Chosen
    problem: Problem  # of the width n
    P: Float[Array, "k k"]
    cosines: QuadratureRule
    target: FieldLandscape | None

    @property
    def work(self) -> int:
        return self.problem.p**2 * len(self.cosines.weights)

    @property
    def _signs(self) -> ThresholdUnits | None:
        """The engine if student and target are sums of noisy signs, whose pairs have derivatives without arcsines."""
        engine = self.engine.engine_of("excess_risk")
        if not isinstance(engine, ThresholdUnits) or engine.student.is_relu or engine.target.is_relu:
            return None
        return engine

    def _risk_of_signs(self, engine: ThresholdUnits, particles: Particles) -> Float[Array, ""]:
        a, b, s = particles
        c, root = unit_weights(self.problem, a), jnp.linalg.cholesky(self.P)
        return risk_over_directions(engine.student, engine.target, c, (b, s), root, self.cosines)

    def _risk_at(self, particles: Particles, rho: Float[Array, ""]) -> Float[Array, ""]:
        a, b, s = particles
        among = jnp.where(jnp.eye(len(s), dtype=bool), 1.0, rho)
        overlaps = Overlaps(b @ b.T + s[:, None] * s[None, :] * among, b @ jnp.linalg.cholesky(self.P).T, self.P, a)
        return self.engine.parts(self.problem, overlaps, ("excess_risk",))["excess_risk"]

    def risk(self, particles: Particles) -> Float[Array, ""]:
        if (signs := self._signs) is not None:
            total = self._risk_of_signs(signs, particles)
        else:
            rho, weights = (jnp.asarray(x) for x in self.cosines)
            total = jax.lax.map(lambda rho: self._risk_at(particles, rho), rho) @ weights
        return total if self.target is None else total + self.target.risk_without_pairs(particles)

    def force(self, particles: Particles, with_a: bool = True) -> Particles:
        a, b, s = particles

        def gradient(risk: Callable[[Particles], Array]) -> Particles:
            if with_a:
                return jax.grad(risk)(particles)
            # Only the derivative in a needs the averages themselves, which cost more than their derivatives.
            moved = jax.grad(lambda b, s: risk(Particles(a, b, s)), argnums=(0, 1))(b, s)
            return Particles(jnp.zeros_like(a), *moved)

        if (signs := self._signs) is not None:
            total = gradient(lambda x: self._risk_of_signs(signs, x))
        else:
            rho, weights = (jnp.asarray(x) for x in self.cosines)
            gradients = jax.lax.map(lambda rho: gradient(lambda x: self._risk_at(x, rho)), rho)
            total = jax.tree.map(lambda x: jnp.tensordot(weights, x, axes=1), gradients)
        forces = jax.tree.map(lambda x: -self.problem.p * x, total)
        if self.target is None:
            return forces
        pull = self.target.force_of(particles, self.target.rule.values, with_a)
        return jax.tree.map(lambda x, y: x + y, forces, pull)


def pair_landscapes(problem: Problem, number: int, auto: Auto) -> Landscapes:
    """The landscape of the problem for a number of particles, with the variants that give its error."""
    wide = Problem(problem.target, Student(number, problem.student.activation), problem.inputs)
    target: OverTarget | None = None
    try:
        engine = _by_pairs(auto).choose(wide, ("excess_risk",))
    except NotApplicable:
        target = over_target(wide, auto.rtol, padded=True)
        wide = _without_target(wide)
        engine = _by_pairs(auto).choose(wide, ("excess_risk",))
    dimension = problem.d - problem.k
    order = cosine_order(dimension, auto.rtol)
    # In one dimension the rule is exact, so that no coarser rule is needed for its error.
    orders = (order, *coarser_orders(order)) if dimension > 1 else (order,)
    rules = [cosine_rule(n, dimension).padded(order if dimension > 1 else 2) for n in orders]
    members = () if target is None else tuple(FieldLandscape(*member, number) for member in target.members)
    P = jnp.asarray(problem.P, jnp.float64)
    first = PairLandscape(engine.variants()[0], wide, P, rules[0], members[0] if members else None)
    others = [
        [dataclasses.replace(first, engine=variant) for variant in engine.variants()[1:]],
        [dataclasses.replace(first, cosines=rule) for rule in rules[1:]],
        [dataclasses.replace(first, target=member) for member in members[1:]],
    ]
    combine = [engine.combine, lambda results: by_coarser(results, 0.0), target.combine if target else None]

    def combined(results: tuple[Any, ...]) -> Estimate:
        """Corrections and errors of the engine, of the cosines and of the target's fields add up."""
        finest, rest = results[0], results[1:]
        value, error = finest, jax.tree.map(lambda x: 0.0 * abs(x), finest)
        for group, combine_group in zip(others, combine, strict=True):
            group_results, rest = rest[: len(group)], rest[len(group) :]
            if combine_group is not None:
                part = combine_group((finest, *group_results))
                value = jax.tree.map(lambda total, x, y: total + (x - y), value, part.value, finest)
                error = jax.tree.map(lambda total, x: total + x, error, part.error)
        return Estimate(value, error)

    name = f"{engine.name}; {rules[0].size} cosines" + (f"; target: {target.name}" if target else "")
    rtol = max(engine.rtol, target.rtol if target else 0.0)
    return Landscapes((first, *(landscape for group in others for landscape in group)), combined, rtol, name)


def _by_pairs(auto: Auto) -> Auto:
    allowed = BY_PAIRS if auto.engines is None else tuple(name for name in auto.engines if name in BY_PAIRS)
    return Auto(auto.rtol, allowed)


def _without_target(problem: Problem) -> Problem:
    """The problem with a target of zero, as a sum of units whose weights vanish."""
    silent = Committee(problem.k, problem.student.activation, second_layer=np.zeros(problem.k))
    return Problem(silent, problem.student, problem.inputs)


@register
class MeanField(AbstractDescription):
    r"""The mean-field limit :math:`p \to \infty` at finite d, by particles :math:`(a_i, m_i, q_i)`.

    Outside of the target's span, where nothing distinguishes one direction from another, the units of a random start
    point into independent uniform directions :math:`g_i \in R^{d-k}`, and keep them. With
    :math:`\Xi_{ij} = g_i \cdot g_j` and the overlaps :math:`\tilde\Omega` that follow from (m, q) and :math:`\Xi`,

    .. math:: \dot M = E_\Xi[\Psi^{(M)}(\tilde\Omega)], \qquad \dot q_i = E_\Xi[\Psi^\perp_{ii}(\tilde\Omega)], \qquad
              \dot a_i = \kappa\,E_\Xi[\chi_i(\tilde\Omega)], \qquad R = E_\Xi[R(\tilde\Omega)]

    This is the flow of particles (a, w) in all d dimensions, reduced by its symmetry: the average over directions is
    computed in advance, and k + 2 numbers per particle remain. It holds for starts that are rotationally invariant
    outside of the target's span (a given Q enters by its diagonal). See :cite:t:`arnaboldi2023`.

    The particles are the p units of the student; the distance from `SaadSolla` is then :math:`O(1/p)` and
    :math:`O(\gamma/p)`. The cost grows with the square of their number.

    Parameters
    ----------
    particles
        The number of particles, as in `HDMF`.
    rtol, atol
        Tolerances of the integrator per step; raised to the accuracy of averages that are themselves approximate.
    max_steps
        Steps of the integrator after which it gives up.
    engine
        How the engine of the risk is chosen, among those that go pair by pair.

    Notes
    -----
    Checked against: SaadSolla without variance at growing p, particles in all d dimensions, HDMF at growing d, forces
    from the moments of the expectation room, the dissipation identity of the gradient flow.
    """

    particles: int | None = static(count("particles", optional=True), default=None)
    rtol: Number = leaf(number("rtol", above=0.0, below=1.0), default=1e-8)
    atol: Number = leaf(number("atol", above=0.0), default=1e-10)
    max_steps: int = static(count("max_steps"), default=200_000)
    engine: Auto = static(instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)"), default=Auto(1e-8))

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def references(self) -> tuple[str, ...]:
        return ("arnaboldi2023", "mei2018", "chizat2018")

    def applies(self, problem: Problem, training: SGD) -> Applies:
        answer = mean_field_applies(problem, training, Exactness.LIMIT_P, self.particles, ())
        if not answer.ok:
            return answer
        if _by_pairs(self.engine).refusal(problem, ("excess_risk",)):
            kind, reason = kind_of_rule(problem)
            if not kind:
                return Applies(False, Exactness.LIMIT_P, f"no rule serves the target: {reason}.")
        return answer

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        starts, cosines = draw_particles(problem, plan, self.particles)
        landscapes = pair_landscapes(problem, starts.s.shape[1], self.engine)
        accuracy = Accuracy(self.rtol, self.atol, self.max_steps)
        return follow_particles(landscapes, problem, training, plan, starts, cosines, accuracy)
