"""The first correction to the limit of high dimension: a stochastic differential equation for the overlaps."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from twolayer.compiler.loops import WrittenOut, as_rows, from_rows, loop_here, written
from twolayer.core.errors import NotApplicable
from twolayer.core.programs import KeptProgram
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.types import Number
from twolayer.description import Applies, Exactness, Plan, Record, Watch, blanked, by_block, seen_by_fields
from twolayer.expectation import MOMENTS, Auto, Chosen, SquareUnits, risk_along, risks_of
from twolayer.fitting import FitsPopulation
from twolayer.problem import Overlaps, Problem
from twolayer.specification.fields import as_data, choice, count, flag, instance, leaf, number, static
from twolayer.specification.registry import register
from twolayer.stepping import Course, Stepper, run_steps, sealed
from twolayer.theory.motion.drift import changing, lengths
from twolayer.theory.motion.error_bounds import carried, largest
from twolayer.theory.motion.paths import (
    Kept,
    OverlapPath,
    PathSetting,
    advance_xla,
    in_long_steps,
    written_out,
)
from twolayer.theory.motion.scope import refusal
from twolayer.training import SGD

# Paths with which the step is chosen and errors are measured; all paths when there are few and none is native.
PROBES, FEW = 8, 64
# The largest error of the drift over the whole run at an automatic step, in units of the scatter of a single path.
TOLERANCE = 1e-3
# The coarsest step is the whole time over the first number; the second is the largest number of halvings.
FEWEST_STEPS, HALVINGS = 16, 16


@register
class SDE(FitsPopulation):
    r"""A stochastic differential equation for the overlaps: the ODE of `SaadSolla` and the noise of SGD around it.

    .. math:: dX = F(X)\,dt + \sqrt{\frac{\gamma}{p d}}\;\Sigma(X)^{1/2}\,dB_t, \qquad X = (a, M, Q)

    with the full covariance :math:`\Sigma` of what a sample adds to all entries together. On the sphere the noise is
    projected to the tangent space. At :math:`d \to \infty` the law of :math:`\sqrt d\,(X - X_{ODE})` is that of SGD;
    see :cite:t:`arnaboldi2023escaping` for phase retrieval, where the covariances between entries, which matter, were
    left out. Replicas are paths. Prefer the exact process `OverlapSGD` where it is affordable: it takes as many steps
    as SGD, whereas the number of steps here depends on the drift and not on d.

    For inputs with a spectrum the overlaps are followed by block, with the covariance of what a sample adds to all
    blocks together (`sample_covariance`): the fields of a sample are sums over blocks, and so its noise moves them
    together.

    Noise may push overlaps near the boundary of the possible ones (:math:`Q^\perp \succeq 0`) across it. The negative
    part is then cut off, and rows on the sphere are rescaled to their lengths; the attribute ``engine`` of the dataset
    says for how many paths this happened.

    Parameters
    ----------
    dt
        The time of a step; by default the first of until/16, until/32, ... at which halving it moves the solution
        without noise by less than a thousandth of the scatter of a path. Steps end on the save points.
    method
        ``"heun"`` is trapezoidal in the drift (:cite:t:`milstein1997`), ``"euler"`` is the method of Euler and
        Maruyama.
    corrections
        Whether the drift contains its terms of order 1/d (see `corrections`): the mean is then right to this order.
    noise
        ``"covariance"``: Gaussian noise by a factor of :math:`\Sigma`; ``"samples"``: the noise of a step is that of a
        few fresh samples, scaled, which has the same covariance and needs no integral; ``"auto"`` takes the first where
        :math:`\Sigma` is a formula and the inputs have no spectrum.
    samples
        How many samples a step takes with ``noise="samples"``.
    backend
        ``"native"`` compiles the step to machine code where it can be written out, ``"xla"`` runs anywhere; ``"auto"``
        takes native code on a CPU where it can.
    engine
        How the engines of the Gaussian moments are chosen.
    """

    dt: Number | None = leaf(number("dt", above=0.0, optional=True), default=None)
    method: str = static(choice("method", ("heun", "euler")), default="heun")
    corrections: bool = static(flag("corrections"), default=False)
    noise: str = static(choice("noise", ("auto", "covariance", "samples")), default="auto")
    samples: int = static(count("samples", high=10**6), default=32)
    backend: str = static(choice("backend", ("auto", "native", "xla")), default="auto")
    engine: Auto = static(instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)"), default=Auto())

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def references(self) -> tuple[str, ...]:
        return ("arnaboldi2023escaping", "milstein1997")

    def applies(self, problem: Problem, training: SGD) -> Applies:
        reason = refusal(problem, training, self.engine, MOMENTS, with_spectrum=True)
        if not reason and 2 * (batch := training.samples_per_step(problem)) > problem.d:
            reason = f"it needs batches much smaller than d, but `batch_size` is {batch} at d = {problem.d}."
        if not reason and self.corrections and training.is_riemannian:
            reason = (
                "the drift of order 1/d (`corrections`) is known for gradients that are not projected, but "
                f"`training.constraint` is {training.constraint}; without it both variants have the same equation."
            )
        if reason:
            return Applies(False, Exactness.FLUCTUATIONS, reason)
        scatter, formula = problem.scatter(training.learning_rate), problem.scatter_formula
        order = "O(d^-2)" if self.corrections else "O(1/d)"
        statement = (
            f"single runs with their scatter, O({formula}) = {scatter:.2g} times a constant, whose covariance "
            f"has a relative error O(1/d); error of the mean {order}"
        )
        return Applies(True, Exactness.FLUCTUATIONS, statement)

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        samples = self.samples if self._takes_samples(problem) else 0
        engine = self.engine.choose(problem, MOMENTS if samples else (*MOMENTS, "covariance"))
        scatter = float(np.sqrt(training.learning_rate / (problem.p * problem.d)))
        # The dimension d enters a step through the amplitude of its noise only: one compilation serves every d.
        problem, training = as_data((problem.without_dimension, training))
        watch, fixed = Watch.of(plan), (plan.starts, self.method, self.corrections, samples)
        settings = [PathSetting.of((problem, training, variant, watch), *fixed) for variant in engine.variants()]
        begun = _begin(settings[0], plan.starts, plan.keys, Watch.thresholds(plan))
        program = written(self.backend, partial(written_out, settings[0]))
        # Following a few paths again costs less than compiling for another number of paths.
        is_few = program is None and plan.replicas <= FEW
        probes = begun if is_few else jax.tree.map(lambda x: x[:PROBES], begun)

        def probe(
            setting: PathSetting, dt: float, draws: int = 1, amplitude: float = scatter
        ) -> tuple[np.ndarray, ...]:
            own = program if setting is settings[0] else None
            own = own if own is None or draws == 1 else in_long_steps(setting, own, draws)
            advance = _driver(self.backend, setting, own, probes.words, draws)[0]
            course = _follow(advance, probes, plan.times, _counts(plan.times, dt) // draws, amplitude)
            if course.interrupted:
                raise KeyboardInterrupt
            return _overlaps(course)

        def with_risk(setting: PathSetting, path: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            rows = _by_name(setting, path)
            Q, M, P = seen_by_fields(plan.starts, rows)
            return (*path, risks_of(setting.engine, setting.problem, P, Q, M, rows["a"]))

        dt = self.dt
        if dt is None:
            without_noise = partial(probe, settings[0], amplitude=0.0)
            span, finest = float(plan.times[-1]), float(plan.times[-1] / plan.steps[-1])
            dt = _resolved(without_noise, span, finest, TOLERANCE * scatter, self.method)
        advance, driver = _driver(self.backend, settings[0], program, begun.words, 1)
        course = _follow(advance, begun, plan.times, _counts(plan.times, float(dt)), scatter, plan)
        # Errors come from paths with the same noise: with each variant of the engines, and in steps twice as long.
        results = [with_risk(setting, probe(setting, float(dt))) for setting in settings]
        coarse = with_risk(settings[0], probe(settings[0], float(dt), draws=2))
        probed = carried(engine.combine, results, [coarse])
        # The paths use the first variant, whereas the best value combines all of them.
        apart = jax.tree.map(lambda best, first: np.abs(best - first), probed.value, results[0])
        errors = jax.tree.map(np.add, probed.error, apart)
        name = f"{engine.name}; steps: {driver}, dt = {float(dt):.3g}"
        return _record(engine, settings[0], plan, course, errors, name)

    def _takes_samples(self, problem: Problem) -> bool:
        if self.noise != "auto":
            return self.noise == "samples"
        if not problem.is_isotropic:  # the covariance of all blocks together is a large matrix
            return True
        try:
            return self.engine.assign(problem, ("covariance",))[0]["covariance"] != SquareUnits.__name__
        except NotApplicable:
            return True


_Advance = Callable[[OverlapPath, Kept, int, int], OverlapPath]


def _driver(
    backend: str, setting: PathSetting, program: WrittenOut | None, words: Any, draws: int
) -> tuple[_Advance, str]:
    """The function that advances paths on this machine, by the program if there is one, and the name of its backend."""
    if program is None:
        return lambda path, *rest: advance_xla(setting, path, rest[0], words, np.asarray(draws), *rest[1:]), "xla"
    loop, name = loop_here(backend, program, len(words))

    def advance(path: OverlapPath, kept: Kept, first: Any, last: Any) -> OverlapPath:
        return from_rows(path, loop(as_rows(path), as_rows(kept), as_rows((words,)), first, last))

    return advance, name


class _Begun(NamedTuple):
    """Paths at their start, with their data that does not change."""

    path: OverlapPath
    lengths: Any
    thresholds: Any
    words: Any  # two words of a key for each path


@KeptProgram
def _begin(setting: PathSetting, starts: Overlaps, keys: Array, thresholds: Any) -> _Begun:
    def one(Q: Array, M: Array, a: Array, key: Array, thresholds: Array) -> _Begun:
        words = jax.random.key_data(purpose_key(key, Purpose.PATHS)).astype(jnp.uint32)
        overlaps = setting.overlaps(Q, M, a)
        crossing = jnp.full(setting.watch.size(setting.problem.k), -1.0)
        if setting.watch.is_on:
            risk = setting.engine.parts(setting.problem, overlaps.of_fields, ("excess_risk",))["excess_risk"]
            crossing = setting.watch.crossed(overlaps, risk, thresholds, crossing, 0.0)
        return _Begun(OverlapPath(Q, M, a, jnp.zeros(()), crossing), jnp.sqrt(lengths(Q)), thresholds, words)

    return jax.vmap(one)(*changing(starts), keys, jnp.asarray(thresholds))


def _counts(times: np.ndarray, dt: float) -> Int[np.ndarray, " intervals"]:
    """The number of steps between save points, of size dt at most; even, so that steps twice as long end there too."""
    return 2 * np.maximum(1, np.ceil(np.diff(times) / (2.0 * dt) * (1.0 - 1e-9))).astype(np.int64)


def _follow(
    advance: _Advance, begun: _Begun, times: np.ndarray, counts: np.ndarray, amplitude: float, plan: Plan | None = None
) -> Course:
    """The paths at the save points, with ``counts`` steps between them; with a plan, its progress and checkpoint."""
    points = np.concatenate([[0], np.cumsum(counts)])

    def forward(path: OverlapPath, first: Any, last: Any) -> OverlapPath:
        interval = int(np.searchsorted(points, first, side="right")) - 1
        step = float(times[interval + 1] - times[interval]) / int(counts[interval])
        offset = float(times[interval]) - int(points[interval]) * step
        common = (np.full(len(begun.lengths), x) for x in (step, offset, amplitude))
        return advance(path, Kept(begun.lengths, begun.thresholds, *common), first, last)

    stepper = Stepper(begun.path, forward, OverlapPath._asdict)
    return run_steps(stepper, points) if plan is None else run_steps(stepper, points, plan.progress, plan.checkpoint)


def _overlaps(course: Course) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, M and a of all paths (paths, times, ...), NaN where they are not finite."""
    Q, M, a = (course.saved[name] for name in ("Q", "M", "a"))
    whole = [np.isfinite(x).reshape(*x.shape[:2], -1).all(axis=2) for x in (Q, M, a)]
    lost = ~np.logical_and.reduce(whole)
    return blanked(lost, Q), blanked(lost, M), blanked(lost, a)


def _resolved(
    solve: Callable[[float], tuple[np.ndarray, ...]], total: float, finest: float, tolerance: float, method: str
) -> float:
    """The first step size, halved from a coarse one, at which the solution without noise is accurate."""
    dt = total / FEWEST_STEPS
    # The error of the finer of two solutions, in units of their difference.
    share = 1.0 / 3.0 if method == "heun" else 1.0
    coarse = solve(dt)
    for _ in range(HALVINGS):
        if dt <= finest:
            break
        dt = 0.5 * dt
        fine = solve(dt)
        # Values that have diverged in either solution are left out.
        gaps = [np.nan_to_num(np.abs(x - y), nan=0.0) for x, y in zip(fine, coarse, strict=True)]
        if share * max(float(gap.max(initial=0.0)) for gap in gaps) <= tolerance:
            break
        coarse = fine
    return dt


def _mean_distance(errors: np.ndarray) -> np.ndarray:
    """The mean over the finite probes at each time; infinite where there is none.

    The mean distance of paths that share their noise bounds the distance of their laws.
    """
    there = ~np.isnan(errors)
    number = there.sum(axis=0)
    return np.where(number > 0, np.where(there, errors, 0.0).sum(axis=0) / np.maximum(number, 1), np.inf)


def _by_name(setting: PathSetting, path: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """The saved overlaps of paths by name, with those by block and their sums where there are blocks."""
    Q, M, a = path
    if setting.frame is None:
        return {"Q": Q, "M": M, "a": a}
    return {"Q": Q.sum(axis=2), "M": M.sum(axis=2), "a": a, "Q_block": Q, "M_block": M}


def _record(engine: Chosen, setting: PathSetting, plan: Plan, course: Course, errors: Any, name: str) -> Record:
    problem = setting.problem
    rows, status = sealed(plan, _by_name(setting, _overlaps(course)))
    seen = seen_by_fields(plan.starts, rows)
    Q, M, a = (rows[name] for name in ("Q", "M", "a"))
    risk, risk_error = risk_along(engine, problem, *seen, a)
    error, more = (_mean_distance(x) for x in (largest(*errors[:3]), errors[3]))
    cut = int(np.sum(course.saved["outside"][:, -1] > 0.0))
    if cut:
        name += f"; {cut} of {plan.replicas} paths cut off at the boundary of positive overlaps"
    overlap_error = np.where(np.isnan(risk), np.nan, error[None, :])
    times = Watch.of(plan).times(course.saved["crossing"][:, -1], problem.k)
    found = (Q, M, a, risk, risk_error + more[None, :], overlap_error, status, *times, name, course.interrupted)
    return Record(*found, by_block(rows) or None)
