"""The high-dimensional limit of one-pass SGD: ordinary differential equations for the overlaps."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from twolayer.compiler.blocks import alike, as_key, if_hashable, leaf_key
from twolayer.core.types import Numbers
from twolayer.description import Applies, Cell, Exactness, Plan, Record
from twolayer.expectation import MOMENTS, Auto, Chosen, risks_of
from twolayer.expectation.again import again_refusal, choose_again
from twolayer.expectation.moments import FORCES
from twolayer.fitting import FitsPopulation
from twolayer.problem import Gaussian, Overlaps, Problem, Square
from twolayer.specification.fields import as_data, count, flag, instance, leaf, number, replaced, static
from twolayer.specification.registry import register
from twolayer.theory.motion.drift import drift
from twolayer.theory.motion.error_bounds import nudged
from twolayer.theory.motion.flow import AbstractFlow, Accuracy, Flows, Saved, follow, trajectory
from twolayer.theory.motion.flow_batch import FlowCell, follow_together
from twolayer.theory.motion.integrate import Solution
from twolayer.theory.motion.scope import refusal
from twolayer.training import SGD, Fresh, RidgeRegression


class OverlapFlow(AbstractFlow):
    """The motion of the overlaps as a flow: the state is (Q, M, a)."""

    problem: Problem
    training: SGD
    engine: Chosen
    P: Float[Array, "k k"]
    variance: float
    pace: Any = 1.0  # factor of the velocity; at 1 the unit of time is p d / learning_rate samples

    def _overlaps(self, state: tuple[Array, Array, Array]) -> Overlaps:
        return Overlaps(state[0], state[1], self.P, state[2])

    def velocity(self, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        overlaps = self._overlaps(state)
        moments = self.engine.moments(self.problem, overlaps, FORCES)
        change = drift(self.problem, self.training, overlaps, moments, self.variance)
        is_usual = isinstance(self.pace, float) and self.pace == 1.0
        dQ, dM, da = change if is_usual else jax.tree.map(lambda x: self.pace * x, change)
        return dQ, dM, da

    def risk(self, state: tuple[Array, Array, Array]) -> Array:
        return self.engine.parts(self.problem, self._overlaps(state), ("excess_risk",))["excess_risk"]

    def largest(self, state: tuple[Array, Array, Array]) -> Array:
        return jnp.maximum(jnp.max(jnp.diagonal(state[0])), jnp.max(state[2] ** 2))

    def alignment(self, state: tuple[Array, Array, Array], direction: Numbers) -> Array:
        Q, M, _ = state
        cosines = M[:, direction] / jnp.sqrt(jnp.diagonal(Q) * jnp.diagonal(self.P)[direction])
        return jnp.max(jnp.abs(cosines))

    def saved(self, state: tuple[Array, Array, Array], kept: PyTree) -> Saved:
        return Saved(*state, jnp.zeros(()), {})

    def completed(self, saved: Saved) -> Saved:
        # The program for the risk is that of simulations too, and compiled once for all of them.
        return saved._replace(excess_risk=risks_of(self.engine, self.problem, self.P, saved.Q, saved.M, saved.a))

    def is_together(self, starts: int) -> bool:
        return True

    @property
    def is_coarse(self) -> bool:
        return self.engine.rtol > 1e-6

    @property
    def interpolates(self) -> bool:
        # Averages over points are expensive and limit the accuracy, so steps are as long as the tolerance allows.
        return self.is_coarse


def as_state(start: Overlaps) -> tuple[Array, Array, Array]:
    """The state of the flow at some overlaps."""
    return start.Q, start.M, start.a


@register
class SaadSolla(FitsPopulation):
    r"""Ordinary differential equations for the overlaps, exact for one-pass SGD as :math:`d \to \infty`.

    .. math:: \dot M = \Psi^{(M)}, \qquad \dot Q = \Psi^{(GF)} + \frac{\gamma}{p} \Psi^{(Var)}, \qquad
              \dot a = \kappa \chi

    At finite d a single run scatters around the solution by order :math:`\sqrt{\gamma/(pd)}`, and the mean of many runs
    is shifted by order :math:`1/d`. See `drift` for the equations, and :cite:t:`saad1995`, :cite:t:`goldt2019`.

    Single samples that are used several times in a row (`Repeated`, `LookAhead`) have the same equations with other
    averages (:cite:t:`arnaboldi2024repetita`): the second gradient on a sample is taken at the fields that the first
    one has moved, :math:`\tilde\lambda_j = \lambda_j + \frac{\rho}{p} a_j \sigma'(\lambda_j)\,\mathcal E`.

    Parameters
    ----------
    rtol, atol
        Tolerances of the integrator per step; raised to the accuracy of engines that are themselves approximate.
    variance
        Whether the variance term is kept; without it this is gradient flow.
    max_steps
        Steps of the integrator after which it gives up.
    engine
        How the engines of the Gaussian moments are chosen.
    """

    rtol: Any = leaf(number("rtol", above=0.0, below=1.0), default=1e-10)
    atol: Any = leaf(number("atol", above=0.0), default=1e-12)
    variance: bool = static(flag("variance"), default=True)
    max_steps: int = static(count("max_steps"), default=200_000)
    engine: Auto = static(instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)"), default=Auto())

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def references(self) -> tuple[str, ...]:
        return ("saad1995", "goldt2019", "veiga2022", "arnaboldi2023")

    @property
    def needed(self) -> tuple[str, ...]:
        """The moments in the equations; gradient flow needs no averages over four fields."""
        return MOMENTS if self.variance else tuple(name for name in MOMENTS if name != "phi_hd")

    def applies(self, problem: Problem, training: SGD | RidgeRegression) -> Applies:
        if isinstance(training, RidgeRegression):
            return self.applies_to_fit(problem, training)

        def no(reason: str) -> Applies:
            return Applies(False, Exactness.LIMIT_D, reason)

        batch = training.samples_per_step(problem)
        is_again = training.uses_batches_again and batch == 1
        if is_again:
            once = dataclasses.replace(training, reuse=Fresh())
            reason = refusal(problem, once, self.engine, ("excess_risk",), losses=(Square,)) or again_refusal(problem)
        else:
            reason = refusal(problem, training, self.engine, self.needed, methods="linear")
        if reason:
            return no(reason)
        if 2 * batch > problem.d:
            return no(
                f"it needs batches much smaller than d, but `batch_size` is {batch} at d = {problem.d}; "
                "`BatchMap` covers it."
            )
        scatter = float(np.sqrt(training.learning_rate / (problem.p * problem.d)))
        statement = (
            f"error of a single run O(sqrt(gamma/(p d))), here {scatter:.2g} times a constant; of the mean O(1/d)"
        )
        if is_again:
            statement += "; averages over samples that are used again come from nets, with their scatter as error"
        if batch > 1:
            statement += f", and O(n_b/d) = {batch / problem.d:.2g} from the batch"
        return Applies(True, Exactness.LIMIT_D, statement)

    def choose(self, problem: Problem, training: SGD) -> Chosen:
        """The engines of the averages in the equations of this training."""
        if training.uses_batches_again:
            return choose_again(self.engine, problem, training)
        return self.engine.choose(problem, self.needed)

    def flow(self, engine: Chosen, problem: Problem, training: SGD, P: Float[Array, "k k"]) -> OverlapFlow:
        """The equation with one variant of its averages."""
        return OverlapFlow(problem, training, engine, P, float(self.variance))

    def accuracy(self, engine: Chosen) -> Accuracy:
        """The tolerances of the integrator, raised to the accuracy of averages that are themselves approximate."""
        return Accuracy(self.rtol, self.atol, self.max_steps).at_least(engine.rtol)

    def trajectory(
        self, engine: Chosen, problem: Problem, training: SGD, start: Overlaps, times: Float[Array, " times"]
    ) -> Solution:
        """The solution from one start at the given times, as pure JAX that can be mapped and differentiated."""
        flow = self.flow(engine, problem, training, start.P)
        return trajectory(flow, as_state(start), times, self.accuracy(engine), is_reversible=True)

    def batch_key(self, problem: Problem, training: SGD) -> Hashable | None:
        if not isinstance(problem.inputs, Gaussian) or not training.is_fresh:
            return None
        P = leaf_key(np.asarray(problem.P))
        problem, training = as_data((replaced(problem.without_dimension, start=None), training))
        noise = problem.noise if isinstance(problem.noise, float) else "noise"
        numbers = jax.tree.map(lambda x: "number" if isinstance(x, np.ndarray) else x, training)
        return if_hashable((*as_key((self, replaced(problem, noise=noise))), *as_key(numbers), P))

    def run_batch(self, cells: Sequence[Cell]) -> list[Record]:
        if self.batch_key(*cells[0][:2]) is None:
            return super().run_batch(cells)
        noises = [float(cell.problem.noise) for cell in cells]
        distinct = dict(zip(noises, cells, strict=True))
        engines = {noise: self.choose(cell.problem, cell.training) for noise, cell in distinct.items()}
        kinds = {noise: _kind(engine) for noise, engine in engines.items()}
        records: dict[int, Record] = {}
        for places in alike([kinds[noise] for noise in noises]):
            part = [cells[place] for place in places]
            flows = [self._flows(engines[noises[place]], *cells[place]) for place in places]
            together = [FlowCell(*pair) for pair in zip(flows, (cell.plan for cell in part), strict=True)]
            engine = engines[noises[places[0]]]
            solved = follow_together(together, self._other(engine, part[0]), part[0].problem.k, self.accuracy(engine))
            records |= zip(places, solved, strict=True)
        return [records[place] for place in range(len(cells))]

    def _other(self, engine: Chosen, cell: Cell) -> Flows:
        """The flow of a cell with other numbers, where cells of one program may have other ones."""
        problem, training, plan = cell
        if problem.noise != 0.0:
            problem = replaced(problem, noise=problem.noise + 1.0)
            engine = self.choose(problem, training)
        training = jax.tree.map(lambda x: 1.5 * x if isinstance(x, np.ndarray) else x, as_data(training))
        return self._flows(engine, problem, training, plan)

    def _flows(self, engine: Chosen, problem: Problem, training: SGD, plan: Plan) -> Flows:
        problem, training = for_every_dimension(problem, training)
        variants = [self.flow(variant, problem, training, plan.starts.P) for variant in engine.variants()]
        return Flows(variants, engine.combine, engine.name)

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        engine = self.choose(problem, training)
        flows = self._flows(engine, problem, training, plan)
        return follow(flows, problem.k, plan, as_state(plan.starts), (), self.accuracy(engine), _nudged(plan.starts))


def _kind(engine: Chosen) -> Hashable:
    """A value that is equal for engines that differ in their numbers only."""
    return (jax.tree.structure(engine), *map(np.shape, jax.tree.leaves(engine)), engine.rtol, engine.name)


def for_every_dimension(problem: Problem, training: SGD) -> tuple[Problem, SGD]:
    """A problem and its training as data of a program that serves every d, unless d determines the batch size."""
    small = problem.without_dimension
    is_same = training.samples_per_step(small) == training.samples_per_step(problem)
    return as_data((small if is_same else problem, training))


def _nudged(starts: Overlaps) -> Any:
    """A function that moves the starts by the size of rounding, in the direction of a sign."""
    return lambda _, sign: as_state(nudged(starts, sign))
