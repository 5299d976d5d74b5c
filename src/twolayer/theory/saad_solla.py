"""The high-dimensional limit of one-pass SGD: ordinary differential equations for the overlaps."""

import dataclasses
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from twolayer.compiler.row_blocks import alike, as_key, if_hashable, leaf_key
from twolayer.core.same import Same
from twolayer.core.types import Number, Numbers
from twolayer.description import Applies, Cell, Exactness, Plan, Record
from twolayer.expectation import MOMENTS, Auto, Chosen, risks_of
from twolayer.expectation.again import again_refusal, choose_forces
from twolayer.expectation.gaussian_moments import FORCES
from twolayer.fitting import FitsPopulation
from twolayer.problem import BlockFrame, BlockOverlaps, Gaussian, Overlaps, Problem, Square
from twolayer.specification.fields import as_data, count, flag, instance, leaf, number, replaced, static
from twolayer.specification.registry import register
from twolayer.theory.motion.drift import drift
from twolayer.theory.motion.error_bounds import nudged
from twolayer.theory.motion.flow import AbstractFlow, Accuracy, Flows, Saved, follow, trajectory
from twolayer.theory.motion.flow_batch import FlowCell, follow_together
from twolayer.theory.motion.integrate import Solution
from twolayer.theory.motion.scope import ALL_LOSSES, refusal, sign_refusal, spectrum_refusal
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
        return self.problem.is_quadratic  # averages over all fields have points enough for one start at a time

    @property
    def is_coarse(self) -> bool:
        return self.engine.rtol > 1e-6

    @property
    def interpolates(self) -> bool:
        # Averages over points are expensive and limit the accuracy, so steps are as long as the tolerance allows.
        return self.is_coarse


class BlockFlow(OverlapFlow):
    """The motion of the overlaps by block, for inputs with a spectrum: the state is (Q_l, M_l, a)."""

    frame: BlockFrame | None = None

    def _blocks(self, state: tuple[Array, Array, Array]) -> BlockOverlaps:
        assert self.frame is not None
        return BlockOverlaps(state[0], state[1], self.frame)

    def _overlaps(self, state: tuple[Array, Array, Array]) -> Overlaps:
        return Overlaps(*self._blocks(state).weighted(), state[2])

    def velocity(self, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        moments = self.engine.moments(self.problem, self._overlaps(state), FORCES)
        overlaps = Overlaps.by_block(self._blocks(state), state[2])
        change = drift(self.problem, self.training, overlaps, moments, self.variance)
        return change.Q, change.M, change.a

    def largest(self, state: tuple[Array, Array, Array]) -> Array:
        return super().largest((jnp.sum(state[0], axis=0), state[1], state[2]))

    def alignment(self, state: tuple[Array, Array, Array], direction: Numbers) -> Array:
        return super().alignment((jnp.sum(state[0], axis=0), jnp.sum(state[1], axis=0), state[2]), direction)

    def saved(self, state: tuple[Array, Array, Array], kept: PyTree) -> Saved:
        Q, M = (jnp.sum(x, axis=0) for x in state[:2])
        return Saved(Q, M, state[2], jnp.zeros(()), {"Q_block": state[0], "M_block": state[1]})

    def completed(self, saved: Saved) -> Saved:
        Q, M, P = self._blocks((saved.others["Q_block"], saved.others["M_block"], saved.a)).weighted()
        return saved._replace(excess_risk=risks_of(self.engine, self.problem, P, Q, M, saved.a))


def block_flow(engine: Chosen, problem: Problem, training: SGD, frame: BlockFrame, variance: float) -> BlockFlow:
    """The equation of the overlaps by block with one variant of its averages."""
    return BlockFlow(problem, training, engine, jnp.sum(frame.P, axis=0), variance, frame=frame)


def as_state(start: Overlaps) -> tuple[Array, Array, Array]:
    """The state of the flow at some overlaps."""
    if start.blocks is not None:
        return jnp.asarray(start.blocks.Q), jnp.asarray(start.blocks.M), start.a
    return start.Q, start.M, start.a


@register
class SaadSolla(FitsPopulation):
    r"""Ordinary differential equations for the overlaps, exact for one-pass SGD as :math:`d \to \infty`.

    .. math:: \dot M = \Psi^{(M)}, \qquad \dot Q = \Psi^{(GF)} + \frac{\gamma}{p} \Psi^{(Var)}, \qquad
              \dot a = \kappa \chi

    For inputs with a spectrum (`Gaussian`) the overlaps are followed by block, see `drift`:

    .. math:: \dot M_l = c_l\,(G_s M_l + G_t P_l), \qquad
              \dot Q_l = c_l\,(G_s Q_l + G_t M_l^T) + (\cdot)^T + \frac{\gamma}{p}\,c_l f_l\,\Psi^{(Var)}

    At finite d a single run scatters around the solution by order :math:`\sqrt{\gamma/(pd)}`, and the mean of many runs
    is shifted by order :math:`1/d`. See `drift` for the equations, and :cite:t:`saad1995`, :cite:t:`goldt2019`.

    Single samples that are used several times in a row (`Repeated`, `LookAhead`) have the same equations with other
    averages (:cite:t:`arnaboldi2024repetita`): the second gradient on a sample is taken at the fields that the first
    one has moved, :math:`\tilde\lambda_j = \lambda_j + \frac{\rho}{p} a_j \sigma'(\lambda_j)\,\mathcal E`.

    `SignDescent` without averaging, on single samples, has equations of the same form with
    :math:`\mathrm{sign}(a_j\sigma'(\lambda_j)\,\mathcal E)` in place of :math:`a_j\sigma'(\lambda_j)\,\mathcal E`,
    the drift times :math:`p\sqrt{2/\pi}` and the variance times :math:`p^2`, as long as no direction has a coordinate
    of order one.

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

    rtol: Number = leaf(number("rtol", above=0.0, below=1.0), default=1e-10)
    atol: Number = leaf(number("atol", above=0.0), default=1e-12)
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
        if is_again and (reason := spectrum_refusal(problem)):
            return no(f"samples that are used again: {reason}")
        if is_again:
            once = dataclasses.replace(training, reuse=Fresh())
            reason = refusal(problem, once, self.engine, ("excess_risk",), losses=(Square,)) or again_refusal(problem)
        elif training.moves_by_signs:
            reason = sign_refusal(problem, training, self.engine)
        else:
            options: Any = {"methods": "linear", "losses": ALL_LOSSES, "mixtures": True, "with_spectrum": True}
            reason = refusal(problem, training, self.engine, self.needed, **options)
        if reason:
            return no(reason)
        if 2 * batch > problem.d:
            return no(
                f"it needs batches much smaller than d, but `batch_size` is {batch} at d = {problem.d}; "
                "`BatchMap` covers it."
            )
        scatter = problem.scatter(training.learning_rate)
        of_mean = "O(1/d)" if problem.is_isotropic else "the square of it"
        statement = (
            f"error of a single run O({problem.scatter_formula}), here {scatter:.2g} times a constant; of the mean "
            f"{of_mean}"
        )
        if is_again or training.moves_by_signs:
            averages = "averages over samples that are used again" if is_again else "averages of signs"
            statement += f"; {averages} come from nets, with their scatter as error"
        if batch > 1:
            statement += f", and O(n_b/d) = {batch / problem.d:.2g} from the batch"
        return Applies(True, Exactness.LIMIT_D, statement)

    def choose(self, problem: Problem, training: SGD) -> Chosen:
        """The engines of the averages in the equations of this training."""
        if training.uses_batches_again or training.moves_by_signs:
            return choose_forces(self.engine, problem, training)
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
        if not isinstance(problem.inputs, Gaussian) or not problem.is_isotropic:
            return None
        if not training.is_fresh or training.moves_by_signs or not problem.is_quadratic:
            return None
        leaves, structure = jax.tree.flatten(training)
        # Other numbers than zero are data of a program, see `as_data`.
        kept = [
            "number" if isinstance(leaf, np.ndarray) or (isinstance(leaf, float) and leaf) else leaf_key(leaf)
            for leaf in leaves
        ]
        return if_hashable((*_own_key(Same((self,))), *_key_of(Same((problem,))), structure, *kept))

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
            first = self._flows(engines[noises[places[0]]], *cells[places[0]])
            flows = [self._like(first, engines[noises[place]], *cells[place]) for place in places]
            together = [FlowCell(*pair) for pair in zip(flows, (cell.plan for cell in part), strict=True)]
            engine = engines[noises[places[0]]]
            solved = follow_together(together, self._other(engine, part[0]), part[0].problem.k, self.accuracy(engine))
            records |= zip(places, solved, strict=True)
        return [records[place] for place in range(len(cells))]

    def _like(self, first: Flows, engine: Chosen, problem: Problem, training: SGD, plan: Plan) -> Flows:
        """The flows of a cell, made of those of another cell where only the training differs."""
        known = first.variants[0]
        setting = for_every_dimension(problem, training)
        if not isinstance(known, OverlapFlow) or known.problem is not setting[0]:
            return self._flows(engine, problem, training, plan)
        return first._replace(variants=[replaced(variant, training=setting[1]) for variant in first.variants])

    def _other(self, engine: Chosen, cell: Cell) -> Flows:
        """The flow of a cell with other numbers, where cells of one program may have other ones."""
        problem, training, plan = cell
        if problem.noise != 0.0:
            problem = replaced(problem, noise=problem.noise + 1.0)
            engine = self.choose(problem, training)
        training = jax.tree.map(lambda x: 1.5 * x if isinstance(x, np.ndarray) else x, as_data(training))
        return self._flows(engine, problem, training, plan)

    def _flows(self, engine: Chosen, problem: Problem, training: SGD, plan: Plan) -> Flows:
        blocks = plan.starts.blocks
        if blocks is not None:
            setting = (*for_every_dimension(problem, training), blocks.frame, float(self.variance))
            by_block = [block_flow(variant, *setting) for variant in engine.variants()]
            return Flows(by_block, engine.combine, engine.name, engine.judges_first)
        problem, training = for_every_dimension(problem, training)
        variants = [self.flow(variant, problem, training, plan.starts.P) for variant in engine.variants()]
        return Flows(variants, engine.combine, engine.name, engine.judges_first)

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        engine = self.choose(problem, training)
        flows = self._flows(engine, problem, training, plan)
        return follow(flows, problem.k, plan, as_state(plan.starts), (), self.accuracy(engine), _nudged(plan.starts))


@lru_cache(maxsize=256)  # the cells of a sweep share their descriptions
def _own_key(same: Same) -> tuple[Hashable, ...]:
    return as_key(same.members[0])


@lru_cache(maxsize=256)  # and their problems
def _key_of(same: Same) -> tuple[Hashable, ...]:
    """A value that is equal for problems with one structure, and with equal numbers but for the noise and the start."""
    (problem,) = same.members
    data = as_data(replaced(problem.without_dimension, start=None))
    noise = data.noise if isinstance(data.noise, float) else "noise"
    return (*as_key(replaced(data, noise=noise)), leaf_key(np.asarray(problem.P)))


@lru_cache(maxsize=256)
def _data_of(same: Same) -> Problem:
    """A problem of any dimension as data."""
    return as_data(same.members[0].without_dimension)


def _kind(engine: Chosen) -> Hashable:
    """A value that is equal for engines that differ in their numbers only."""
    return (jax.tree.structure(engine), *map(np.shape, jax.tree.leaves(engine)), engine.rtol, engine.name)


def for_every_dimension(problem: Problem, training: SGD) -> tuple[Problem, SGD]:
    """A problem and its training as data of a program that serves every d, unless d determines the batch size."""
    small = _data_of(Same((problem,)))
    is_same = training.samples_per_step(small) == training.samples_per_step(problem)
    return small if is_same else as_data(problem), as_data(training)


def _nudged(starts: Overlaps) -> Any:
    """A function that moves the starts by the size of rounding, in the direction of a sign."""
    return lambda _, sign: as_state(nudged(starts, sign))
