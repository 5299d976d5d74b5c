"""Dynamical mean-field theory: training on reused samples, as d and the number of samples grow together."""

import itertools
from collections.abc import Mapping
from functools import lru_cache, partial

import numpy as np
from jaxtyping import Array

from twolayer.core.errors import InvalidInput
from twolayer.description import Applies, Exactness, Plan, Record, by_block, first_crossings, is_alive, seen_by_fields
from twolayer.expectation import Auto, Chosen, choose, risks_of
from twolayer.expectation.qmc import SCRAMBLINGS, by_scatter
from twolayer.fitting import FitsPopulation
from twolayer.problem import BlockFrame, Gaussian, Problem
from twolayer.specification.fields import as_data, count, static
from twolayer.specification.registry import register
from twolayer.stepping import Stepper, run_each, sealed
from twolayer.theory.motion.error_bounds import largest
from twolayer.theory.motion.scope import ALL_LOSSES, loss_refusal, mixture_refusal
from twolayer.theory.reuse.frame import gradients_per_step, stepper
from twolayer.theory.reuse.sobol import Net, scrambled_net
from twolayer.theory.reuse.typical_samples import Batches, Layout, TypicalSamples, coordinates_needed, make_cloud
from twolayer.training import SGD
from twolayer.training.methods import commutes_with_rotations

# Batches that are smaller than this fraction of d belong to another limit, that of the ODE.
LEAST_RATIO = 0.05
MAX_NUMBERS = 2**30  # in the coordinates and traces of one cloud
MAX_COORDINATES = 21_201  # of Sobol's sequence


@register
class DMFT(FitsPopulation):
    r"""Training on the same :math:`n = \alpha d` samples at every step, as :math:`d \to \infty`.

    .. math::
        h^t = \vartheta^t + \sum_{s<t} R(t, s)\,g^s, \qquad g^t = \partial_h \ell(y, s(h^t)), \qquad
        \mathrm{Cov}(\vartheta^t, \vartheta^s) = C(t, s) = W^t W^{s T}

    The fields of a sample that is used again differ from those of a fresh one: they depend on its earlier gradients
    through the response R of the weights, and the overlaps are no longer Markov. Both kernels follow from averages over
    this process; see `twolayer.theory.reuse.frame` for the equations, which invert no covariance and need no special
    treatment of kinks.

    Full batches and mini-batches of a fixed set (`Reused`; drawn with replacement, so that a sample is in a batch a
    number of times that has Poisson's law, or in epochs, once in each), batches used several times in a row
    (`Repeated`), look-ahead (`LookAhead`) and fresh batches, where it is `BatchMap` by other means; any activation,
    target, width, label noise and start; both layers, sphere, weight decay, heavy ball, `Nesterov` and every
    `AbstractMethod` that treats all directions alike; inputs with a spectrum, where C and R are those of the fields:
    :math:`C(t, s) = \sum_l c_l W^t \Pi_l W^{s T}`. The clock is that of `DirectSGD`; :math:`\eta` of the literature,
    for a loss that is summed and divided by d, is the learning rate :math:`\gamma`.

    The averages are taken over scrambled Sobol nets with exact first and second moments, the same points at all times.
    Each scrambling follows the whole training on its own: their mean is the result, their scatter its error. A single
    run at finite d scatters around it by order :math:`1/\sqrt d`, the mean of many is shifted by order 1/d. Besides the
    usual variables there are ``training_risk`` (over the set) and the kernels ``C`` and ``R`` between save points.

    Checked against: the Marchenko-Pastur solution of linear networks (to rounding), `BatchMap` (one step, fresh
    batches, :math:`\alpha \to \infty`), `DirectSGD`, published numbers. See :cite:t:`celentano2021`,
    :cite:t:`gerbelot2022`, :cite:t:`dandi2024reusing`.

    Parameters
    ----------
    samples
        The number of points in all clouds together; each cloud has the next power of two.
    scramblings
        The number of independent clouds.
    seed
        The seed of the scramblings.
    """

    samples: int = static(count("samples", low=2**10, high=2**34), default=2**19)
    scramblings: int = static(count("scramblings", low=SCRAMBLINGS, high=2**16), default=SCRAMBLINGS)
    seed: int = static(count("seed", low=0, high=2**31 - 1), default=0)

    @property
    def references(self) -> tuple[str, ...]:
        return ("celentano2021", "gerbelot2022", "dandi2024reusing")

    @property
    def log2_points(self) -> int:
        """The binary logarithm of the number of points of one cloud."""
        return max(7, int(np.ceil(np.log2(self.samples / self.scramblings))))

    def applies(self, problem: Problem, training: SGD) -> Applies:
        reason = _refusal(problem, training)
        if reason:
            return Applies(False, Exactness.LIMIT_D, reason)
        size = training.set_size(problem) or training.samples_per_step(problem)
        c_1 = problem.largest_eigenvalue
        scatter, shift = ("1/sqrt(d)", "1/d") if c_1 == 1.0 else ("sqrt(c_1/d)", "c_1/d")
        statement = (
            f"alpha = n/d = {size / problem.d:.3g}; error of a single run O({scatter}), here "
            f"{(c_1 / problem.d) ** 0.5:.2g} times a constant, of the mean O({shift}), at any fixed number of steps; "
            "the cost grows with its square"
        )
        return Applies(True, Exactness.LIMIT_D, statement)

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        return self.run_phases(problem, (training,), (0,), plan)

    def run_phases(self, problem: Problem, phases: tuple[SGD, ...], firsts: tuple[int, ...], plan: Plan) -> Record:
        steps, training, starts = int(plan.steps[-1]), phases[0], plan.starts
        target = starts.P if starts.blocks is None else starts.blocks.frame
        nets, layout, batches = self._nets(problem, training, steps)
        size = training.set_size(problem) or training.samples_per_step(problem)
        alpha = np.asarray(size / problem.d)
        problem_data, methods = as_data((problem, phases))

        @lru_cache(maxsize=1)  # all replicas of a net use one cloud
        def cloud(number: int) -> TypicalSamples:
            return make_cloud(problem_data, target, layout, batches, nets[number], self.log2_points)

        def run_of(number: int, replica: int) -> Stepper:
            return stepper(problem_data, methods, firsts, alpha, starts.replica(replica), cloud(number))

        runs = itertools.product(range(len(nets)), range(plan.replicas))
        saved, interrupted = run_each([partial(run_of, *run) for run in runs], plan.steps, plan)
        if interrupted:  # the mean and its error need all nets
            raise KeyboardInterrupt
        has_kernel = gradients_per_step(training) == 1
        seen = [_seen(target, layout, has_kernel, run, plan.steps, float(alpha)) for run in saved]
        of_net = (seen[first : first + plan.replicas] for first in range(0, len(seen), plan.replicas))
        clouds = [{name: np.stack([x[name] for x in replicas]) for name in replicas[0]} for replicas in of_net]
        return self._record(problem, training, plan, clouds)

    def _nets(self, problem: Problem, training: SGD, steps: int) -> tuple[list[Net], Layout, Batches | None]:
        """The nets of all clouds, the frame, and how mini-batches are drawn (None where there are none)."""
        layout = Layout.of(problem, gradients_per_step(training) * (steps + 1))
        batches = None
        if training.has_fixed_set and training.batch_size is not None:
            share = np.asarray(training.batch_size / (training.set_size(problem) or 1), dtype=np.float64)
            batches = Batches(share, training.steps_per_epoch(problem))
        needed = coordinates_needed(layout, batches)
        if 2 * layout.size * 2**self.log2_points > MAX_NUMBERS or needed > MAX_COORDINATES:
            raise InvalidInput(
                f"`DMFT` remembers every step: {steps} steps of {problem.p} neurons with clouds of "
                f"{2**self.log2_points} points are too many; lower `until` or `samples`."
            )
        if needed >= 2**self.log2_points:
            raise InvalidInput(
                f"Argument `samples` of `DMFT` is {self.samples}: clouds need more than {needed} points for {steps} "
                "steps."
            )
        seeds = range(self.seed * self.scramblings, (self.seed + 1) * self.scramblings)
        return [scrambled_net(needed, self.log2_points, seed) for seed in seeds], layout, batches

    def _record(self, problem: Problem, training: SGD, plan: Plan, clouds: list[dict[str, np.ndarray]]) -> Record:
        engine = choose(problem, ("excess_risk",))
        alive = np.all([is_alive(rows["Q"], rows["a"], plan.limit) for rows in clouds], axis=0)
        ended = [sealed(plan, rows, alive) for rows in clouds]
        clouds, status = [rows for rows, _ in ended], ended[0][1]
        result = by_scatter(tuple(clouds))
        mean = dict(result.value)
        spread = {name: np.maximum.accumulate(x, axis=1) for name, x in dict(result.error).items()}

        def risks(variant: Chosen, rows: dict[str, np.ndarray]) -> np.ndarray:
            Q, M, P = seen_by_fields(plan.starts, rows)
            return risks_of(variant, problem, P, Q, M, rows["a"])

        # The scatter of the risk follows from that of the overlaps; one variant of the engine is enough for it.
        variants = engine.variants()
        risk_estimate = engine.combine(tuple({"excess_risk": risks(variant, mean)} for variant in variants))
        risk, engine_error = (
            np.asarray(estimate["excess_risk"]) for estimate in (risk_estimate.value, risk_estimate.error)
        )
        scatter = by_scatter(tuple(risks(variants[0], rows) for rows in clouds)).error
        risk_error = np.maximum.accumulate(scatter + engine_error, axis=1)
        overlap_error = largest(*(x for name, x in spread.items() if name not in ("training_risk", "C", "R")))
        others = by_block(mean)
        if training.has_fixed_set:
            others |= {"training_risk": mean["training_risk"], "training_risk_error": spread["training_risk"]}
        for kernel in ("C", "R"):
            if kernel in mean:
                others |= {kernel: mean[kernel], f"{kernel}_error": spread[kernel].max(axis=(-2, -1))}
        Q, M, a = mean["Q"], mean["M"], mean["a"]
        crossings = first_crossings(plan, risk, Q, M)
        name = f"{engine.name}; sample process: {len(clouds)} scrambled nets of {2**self.log2_points} points"
        return Record(Q, M, a, risk, risk_error, overlap_error, status, *crossings, name, others=others)


def _seen(
    target: Array | np.ndarray | BlockFrame,
    layout: Layout,
    has_kernel: bool,
    saved: Mapping[str, np.ndarray],
    steps: np.ndarray,
    alpha: float,
) -> dict[str, np.ndarray]:
    """Overlaps and kernels of a run at the save points; C and R have the axes (times, earlier, p, p)."""
    p = layout.p
    B, a, risk, behind = (saved[name][0] for name in ("B", "a", "risk", "behind"))
    along = B[:, :, : layout.along]
    rows = {"a": a, "training_risk": risk}
    if isinstance(target, BlockFrame):
        blocks = [(layout.places == number, root) for number, root in enumerate(target.roots)]
        Q = np.stack([np.einsum("tix,tjx->tij", B[:, :, at], B[:, :, at]) for at, _ in blocks], axis=1)
        M = np.stack([along[:, :, at[: layout.along]] @ np.asarray(root).T for at, root in blocks], axis=1)
        seen = B * np.sqrt(np.asarray(target.eigenvalues))[layout.places]
        rows |= {"Q": Q.sum(axis=1), "M": M.sum(axis=1), "Q_block": Q, "M_block": M}
        rows["C"] = np.einsum("tix,sjx->tsij", seen, seen)
    else:
        C = np.einsum("tix,sjx->tsij", B, B)
        M = along @ np.linalg.cholesky(np.asarray(target)).T
        rows |= {"Q": C[np.arange(len(steps)), np.arange(len(steps))], "M": M, "C": C}
    if has_kernel:
        R = np.zeros((len(steps), len(steps), p, p))
        if np.all(np.isfinite(B)):
            R = np.moveaxis((behind / np.sqrt(alpha)).reshape(len(steps), p, -1, p)[:, :, steps], 1, 2)
        rows["R"] = R
    return rows


def _refusal(problem: Problem, training: SGD) -> str:
    """Why the theory does not apply; empty if it does."""
    if not isinstance(problem.inputs, Gaussian):
        return "it describes Gaussian inputs, but `problem.inputs` is a data set; `DirectSGD` covers it."
    if other := loss_refusal(problem, ALL_LOSSES) or mixture_refusal(problem):
        return other
    batch = training.samples_per_step(problem)
    if batch < LEAST_RATIO * problem.d:
        return (
            f"it needs batches that grow with d, of {LEAST_RATIO:g} d at least, but `batch_size` is {batch} at d = "
            f"{problem.d}; `SaadSolla` and `BatchMap` cover small batches."
        )
    if not training.is_classical and not commutes_with_rotations(training.method):
        return f"the method {training.momentum} does not commute with rotations of the inputs; `DirectSGD` covers it."
    return Auto().refusal(problem, ("excess_risk",))
