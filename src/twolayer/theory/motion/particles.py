r"""Particles: the common part of the mean-field limits, in which a student is a set of particles.

A unit is a point :math:`(a, b, s)`: its output weight, its components :math:`b = P^{-1/2} m` along the target's
directions (:math:`P^{1/2}` the Cholesky factor), and the length :math:`s = \sqrt{q}` of its part outside of their span.
The risk R is a function of the particles alone, and the flow of n of them is the gradient flow

.. math:: (\dot a, \dot b, \dot s) = -n\,(\kappa\,\partial_a,\ \partial_b,\ \partial_s)\,R

which in the overlaps reads :math:`\dot m = -n P\,\partial_m R,\ \dot q = -4 n q\,\partial_q R`: the Wasserstein
gradient flow of R in the coordinates :math:`(P^{-1/2} m, \sqrt q)`. Outside of the span a unit keeps its direction.
"""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.programs import KeptProgram
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.types import Numbers
from twolayer.description import Applies, Exactness, Plan, Record
from twolayer.expectation import Auto
from twolayer.problem import Overlaps, Problem, Square
from twolayer.specification.fields import as_data
from twolayer.theory.motion.error_bounds import NUDGE
from twolayer.theory.motion.flow import AbstractFlow, Accuracy, Flows, Saved, follow
from twolayer.theory.motion.scope import refusal
from twolayer.training import SGD

if TYPE_CHECKING:  # an AbstractVar is no argument of the constructor, but a type checker would take it for one
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

# Above this value of gamma/p, the variance of the gradient is not a small correction.
LARGEST_RATE = 0.5
# A part outside of the target's span below this part of the squared length is rounding.
NULL = 1e-14
# Replicas run one after the other, in steps of their own, when an evaluation computes more numbers than this, or when
# there are fewer replicas than this.
HEAVY, MANY = 2**16, 16


class Particles(NamedTuple):
    """The units of a student as particles; leading axes are replicas or times."""

    a: Float[Array, "*n particles"]
    b: Float[Array, "*n particles k"]
    s: Float[Array, "*n particles"]


class AbstractLandscape(eqx.Module):
    """The risk as a function of the particles, in one limit and with one variant of its averages."""

    # Numbers computed in one evaluation.
    work: AbstractVar[int]

    @abc.abstractmethod
    def risk(self, particles: Particles) -> Float[Array, ""]:
        """The excess risk."""

    @abc.abstractmethod
    def force(self, particles: Particles, with_a: bool = True) -> Particles:
        """Minus n times the gradient of the risk; zero instead of the derivative in a unless ``with_a``."""


class Landscapes(NamedTuple):
    """The variants of one landscape, with the function that combines their results to a value and an error."""

    variants: tuple[AbstractLandscape, ...]
    combine: Any  # results of the variants -> Estimate
    rtol: float  # the relative accuracy of the averages, which limits that of the integrator
    name: str
    cheapest: int = 0  # the variant with which the error of the integrator is estimated


# --------------------------------------------------------------------------------- between overlaps and particles


def as_particles(overlaps: Overlaps) -> tuple[Particles, Float[Array, "p p"]]:
    """The units of a student, and the cosines between their parts outside of the target's span."""
    root = jnp.linalg.cholesky(overlaps.P)
    b = jax.scipy.linalg.solve_triangular(root, overlaps.M.T, lower=True).T
    lengths = jnp.diagonal(overlaps.Q)
    q = lengths - jnp.sum(b**2, axis=1)
    s = jnp.sqrt(jnp.where(q > NULL * lengths, q, 0.0))
    sizes = s[:, None] * s[None, :]
    cosines = jnp.where(sizes > 0.0, (overlaps.Q - b @ b.T) / jnp.where(sizes > 0.0, sizes, 1.0), 0.0)
    return Particles(overlaps.a, b, s), jnp.where(jnp.eye(len(s), dtype=bool), 1.0, cosines)


def as_overlaps(
    particles: Particles, cosines: Float[Array, "p p"], root: Float[Array, "k k"]
) -> tuple[Float[Array, "p p"], Float[Array, "p k"]]:
    r"""Q and M of units that keep their directions, :math:`Q_{ij} = b_i \cdot b_j + s_i s_j\,\Xi_{ij}`."""
    _, b, s = particles
    return b @ b.T + s[:, None] * s[None, :] * cosines, b @ root.T


def draw_particles(problem: Problem, plan: Plan, number: int | None) -> tuple[Particles, Float[Array, "replicas p p"]]:
    """The units of each replica, followed by those of further students drawn from the law of the start."""
    units, cosines = _own_units(plan.starts)
    students = 1 if number is None else -(-number // problem.p)
    if students == 1:
        return units, cosines
    drawn = _draw_students(as_data(problem), plan.keys, np.arange(1, students))
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), units, drawn), cosines


@KeptProgram
def _own_units(starts: Overlaps) -> tuple[Particles, Array]:
    return jax.vmap(lambda Q, M, a: as_particles(Overlaps(Q, M, starts.P, a)))(starts.Q, starts.M, starts.a)


@KeptProgram
def _draw_students(problem: Problem, keys: Any, numbers: Any) -> Particles:
    def one(key: Any) -> Particles:
        stream = purpose_key(key, Purpose.PARTICLES)

        def student(number: Array) -> Particles:
            return as_particles(problem.draw(jax.random.fold_in(stream, number)))[0]

        students = jax.lax.map(student, jnp.asarray(numbers), batch_size=max(1, 2**16 // problem.p**2))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), students)

    return jax.lax.map(one, keys)


# ----------------------------------------------------------------------------------------------- the motion


def velocity(training: SGD, p: int, particles: Particles, force: Particles) -> Particles:
    r"""The velocities of the particles under a force, the decay of weights and the constraint.

    .. math:: \dot a = \kappa f_a, \qquad \dot w = f_w - p \lambda_w w, \qquad w = (b, s)

    On the sphere the part of :math:`\dot w` along w is taken away, which keeps :math:`|b|^2 + s^2` as it is.
    """
    _, b, s = particles
    decay = p * training.weight_decay
    db, ds = force.b - decay * b, force.s - decay * s
    if training.is_spherical:
        # The current length and not the initial one, with which a deviation by rounding would grow.
        lengths = jnp.sum(b**2, axis=1) + s**2
        growth = (jnp.sum(b * db, axis=1) + s * ds) / lengths
        db, ds = db - growth[:, None] * b, ds - growth * s
    if not training.trains_first:
        db, ds = jnp.zeros_like(b), jnp.zeros_like(s)
    return Particles(force.a * training.layer_ratio, db, ds)


def dissipation(landscape: AbstractLandscape, particles: Particles) -> Float[Array, ""]:
    r"""The rate at which gradient flow of the first layer lowers the risk, :math:`-\dot R = \frac1n\sum_i|f_i|^2`."""
    force = landscape.force(particles, with_a=False)
    return (jnp.sum(force.b**2) + jnp.sum(force.s**2)) / len(force.s)


def moves_second_layer(training: SGD) -> bool:
    """Whether the second layer moves; only an exact zero, known when compiling, leaves its force out."""
    return not (isinstance(training.layer_ratio, float) and training.layer_ratio == 0.0)


class ParticleFlow(AbstractFlow):
    """The motion of the particles; the cosines between units outside of the target's span do not change."""

    landscape: AbstractLandscape
    training: SGD
    p: int = eqx.field(static=True)  # the student's own units come first
    P: Float[Array, "k k"]

    def velocity(self, state: Particles) -> Particles:
        force = self.landscape.force(state, with_a=moves_second_layer(self.training))
        return velocity(self.training, self.p, state, force)

    def risk(self, state: Particles) -> Array:
        return self.landscape.risk(state)

    def largest(self, state: Particles) -> Array:
        longest = jnp.max(jnp.sum(state.b**2, axis=1) + state.s**2)
        return jnp.maximum(longest, jnp.max(state.a**2))

    def alignment(self, state: Particles, direction: Numbers) -> Array:
        b, s = state.b[: self.p], state.s[: self.p]
        lengths = jnp.sum(b**2, axis=1) + s**2
        along = b @ jnp.linalg.cholesky(self.P)[direction]
        return jnp.max(jnp.abs(along) / jnp.sqrt(lengths * jnp.diagonal(self.P)[direction]))

    def saved(self, state: Particles, kept: Float[Array, "p p"]) -> Saved:
        root = jnp.linalg.cholesky(self.P)
        units = jax.tree.map(lambda x: x[: self.p], state)
        Q, M = as_overlaps(units, kept, root)
        others = {"particle_a": state.a, "particle_M": state.b @ root.T, "particle_q": state.s**2}
        return Saved(Q, M, units.a, self.risk(state), others)

    def is_together(self, starts: int) -> bool:
        return self.landscape.work <= HEAVY and starts >= MANY

    @property
    def is_coarse(self) -> bool:
        return True  # a step ends at a save point as often as by its tolerance

    @property
    def interpolates(self) -> bool:
        return False


# ------------------------------------------------------------------------------------------------ the record


def mean_field_applies(
    problem: Problem, training: SGD, exactness: Exactness, particles: int | None, also: tuple[str, ...]
) -> Applies:
    """Whether one-pass SGD of this student follows a mean-field flow; ``also`` are further errors to state."""

    def no(reason: str) -> Applies:
        return Applies(False, exactness, reason)

    reason = refusal(problem, training, Auto(), (), losses=(Square,))
    if reason:
        return no(reason)
    rate = float(training.learning_rate) / problem.p
    if rate > LARGEST_RATE:
        return no(f"it is gradient flow, gamma/p << 1, but gamma/p is {rate:.3g}; `SaadSolla` keeps the variance.")
    step = float(training.clock(problem).time_per_step)
    if step > LARGEST_RATE:
        return no(f"it is gradient flow, but one step takes the time gamma n_b/(p d) = {step:.3g}, which is not small.")
    if particles is not None and particles < problem.p:
        return no(f"`particles` must be at least the student's width p = {problem.p}, but is {particles}.")
    width_error = f"O(1/p) = {1 / problem.p:.2g}" if particles is None else f"O(1/sqrt p) = {problem.p**-0.5:.2g}"
    errors = [width_error, f"O(gamma/p) = {rate:.2g}", *also]
    return Applies(True, exactness, f"error {', '.join(errors)}, each times a constant")


def follow_particles(
    landscapes: Landscapes,
    problem: Problem,
    training: SGD,
    plan: Plan,
    starts: Particles,
    cosines: Float[Array, "replicas p p"],
    accuracy: Accuracy,
) -> Record:
    """Solve the flow from all starts, with the errors of the averages and of the integrator."""
    accuracy = accuracy.at_least(landscapes.rtol)
    training = as_data(training)
    variants = [ParticleFlow(landscape, training, problem.p, plan.starts.P) for landscape in landscapes.variants]
    least, few = (accuracy.rtol, accuracy.atol), _thinned(plan.times)
    flows = Flows(variants, landscapes.combine, landscapes.name, False, landscapes.cheapest, least, few)
    record = follow(flows, problem.k, plan, starts, cosines, accuracy, _nudged)
    return record if starts.s.shape[1] > problem.p else record._replace(others=None)


def _thinned(times: np.ndarray) -> np.ndarray:
    """Every third time and the last one, padded with the last one to the same size.

    Two solutions whose steps end on many common save points take the same steps at any tolerance, and their difference
    would not show the error of the integrator.
    """
    kept = np.append(times[:-1:3], times[-1])
    return np.append(kept, np.full(len(times) - len(kept), times[-1]))


def _nudged(starts: Particles, sign: float) -> Particles:
    """The starts moved by the size of rounding, in the direction of ``sign``; see `error_bounds.nudged`."""
    rng = np.random.default_rng(0)

    def moved(x: Any) -> Array:
        x = np.asarray(x)
        return jnp.asarray(x + sign * NUDGE * rng.standard_normal(x.shape) * (1.0 + np.abs(x)))

    # A unit within the target's span stays there, since no force leads out of it.
    return Particles(starts.a, moved(starts.b), jnp.where(starts.s > 0.0, moved(starts.s), 0.0))
