"""The check button of `learn`: what the analysis predicts, run by descriptions that know nothing of it."""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.analyses.learnable.checks import Checks, GiantSteps, Slope
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.precision import double
from twolayer.description import AbstractDescription
from twolayer.learnability import Learnability
from twolayer.learnability.scaling import learning_rate_exponent
from twolayer.learnability.stages import LearningStages
from twolayer.problem import Custom, Gaussian, GivenOverlaps, MultiIndex, Problem, RandomStart, Student
from twolayer.problem.activations import HermiteActivation
from twolayer.simulation import OverlapSGD
from twolayer.theory import DMFT, BatchMap
from twolayer.theory.formulas.plateau import LEFT, Plateau, plateau
from twolayer.training import SGD, AbstractReuse, Fresh, Reused, Sphere
from twolayer.verbs.evolve import evolve
from twolayer.verbs.progress import Progress, nobody

# Giant steps: width of the student, samples over d, step size in units of the width.
WIDTH, RATIO, STRIDE, MOST_STEPS = 4, 4.0, 2.0, 4
DMFT_SAMPLES = 2**16
# A direction is found where a neuron has this cosine with it; below the second number it is not there.
FOUND, ABSENT = 1e-3, 1e-6
# Dimensions and runs for the slope of the escape time, by exponent.
DIMENSIONS = {1: (30, 300, 3000, 30_000), 2: (100, 1000, 10_000, 100_000), 3: (10, 100, 1000, 10_000)}
RUNS = {1: (256,) * 4, 2: (512,) * 4, 3: (512, 256, 128, 64)}
# How much longer than the prediction a run may take before it counts as lost.
PATIENCE = {1: 20.0, 2: 10.0, 3: 60.0}
# Exponent 3: the rate at which the pull to the sphere's equator balances the drift at this many times 1/sqrt(d).
BALANCE = 1.0
# Share of the best output weight that the neuron has: its own output is noise, which makes the escape slower.
MODEST = 0.1
# The rates of exponents 1 and 2, in units of the best one.
SLOWER = 0.25


def check(
    result: Learnability,
    seed: int = 0,
    tell: Progress = nobody,
    largest: int | None = None,
    checkpoint: Checkpoint | None = None,
) -> Checks:
    """Run what the analysis predicts.

    Parameters
    ----------
    result
        The analysis.
    seed
        The seed of every random number.
    tell
        Called with the name of what is done, and the fraction of it.
    largest
        The largest dimension for the slope; all of `DIMENSIONS` when None.
    checkpoint
        The folder in which every run keeps its place, and its result until all are done.
    """
    notes = []
    with double():
        giant = _giant_steps(result, tell, checkpoint)
        reused = _reused_batch(result, tell, checkpoint)
        stages = result.staircase.stages
        if not stages or stages[0].leap not in DIMENSIONS:
            slope = None
            leap = stages[0].leap if stages else None
            notes.append(f"No slope was measured: the first stage has leap {leap}, and runs would take too long.")
        elif len(_chosen(stages[0].leap, largest)) < 2:
            slope = None
            notes.append(f"No slope was measured: it takes two dimensions of {DIMENSIONS[stages[0].leap]}.")
        else:
            slope = _slope(result, seed, tell, largest, checkpoint)
    return Checks(giant, reused, slope, tuple(notes))


# ------------------------------------------------------------------------------------------------- giant steps


def _giant_steps(result: Learnability, tell: Progress, checkpoint: Checkpoint | None) -> GiantSteps:
    r"""Follow `BatchMap` from no overlap at all, with batches of order d and steps of order one.

    By the analysis, after t steps the overlaps span the first t stages of leap one, and nothing else. The student sees
    every order (a logistic unit with a bias) unless one was given.
    """
    staircase: LearningStages = result.staircase if result.seen is None else result.seen.staircase
    run = _from_nothing(result, staircase, BatchMap(), Fresh(), "giant steps", tell, checkpoint)
    expected = run.stage_of[None, :] < np.minimum(run.steps, run.giant)[:, None]
    masks, bounds = (expected, expected, ~expected), (FOUND, ABSENT + 10.0 * run.error)
    return GiantSteps("BatchMap", run.student, run.predicted, run.cosines, run.names, *masks, *bounds)


def _reused_batch(result: Learnability, tell: Progress, checkpoint: Checkpoint | None) -> GiantSteps | None:
    """Follow `DMFT` on one batch of order d that is used again.

    By the analysis, from the second step on all directions of the first stage for any function of the label are there,
    those of the next stage of leap one a step later, and those of higher leap never in a few steps.
    """
    staircase = result.generative
    if staircase is None or result.seen is not None:
        return None
    about = DMFT(samples=DMFT_SAMPLES)
    run = _from_nothing(result, staircase, about, Reused(RATIO), "one batch again", tell, checkpoint)
    expected = run.stage_of[None, :] < np.minimum(run.steps - 1, run.giant)[:, None]
    absent = np.broadcast_to(run.stage_of >= run.giant, expected.shape)
    masks, bounds = (~absent, expected, absent), (FOUND + run.error, ABSENT + 2.0 * run.error)
    return GiantSteps("DMFT, the same batch", run.student, run.predicted, run.cosines, run.names, *masks, *bounds)


class GiantRun(NamedTuple):
    """A run of giant steps: the steps from one on, cosines of each step and direction, and the stages of directions."""

    steps: np.ndarray
    cosines: np.ndarray  # largest cosine of a neuron with each direction
    error: float
    stage_of: np.ndarray  # the stage of each direction, from zero on; one more than all for those that are not seen
    giant: int  # stages before the first of a higher leap than one
    student: str
    predicted: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]


def _from_nothing(
    result: Learnability,
    staircase: LearningStages,
    description: AbstractDescription,
    reuse: AbstractReuse,
    name: str,
    tell: Progress,
    checkpoint: Checkpoint | None,
) -> GiantRun:
    """Giant steps from no overlap at all: batches of order d, and steps of order one."""
    student, student_name = _judge(result)
    giant = list(itertools.takewhile(lambda stage: stage.leap == 1, staircase.stages))
    steps = np.arange(1, min(len(giant) + 1, MOST_STEPS) + 1)
    d = 1000
    batch = int(RATIO * d)
    rate = STRIDE * student.p / result.table.scale * d / batch
    training = SGD(rate, batch_size=None if isinstance(reuse, Reused) else batch, reuse=reuse)
    start = GivenOverlaps(np.eye(student.p), np.zeros((student.p, result.k)))
    problem = Problem(result.target, student, Gaussian(d), start)
    times = steps * float(training.clock(problem).time_per_step)
    run = evolve(
        problem,
        training,
        description,
        until=times[-1],
        save=times,
        throw=False,
        progress=lambda _, fraction: tell(name, fraction),
        checkpoint=None if checkpoint is None else checkpoint.part(f"{name.replace(' ', '_')}.npz"),
    )
    cosines, error = _cosines(result, staircase, run)
    stage_of = [n for n, stage in enumerate(staircase.stages) for _ in stage.directions]
    stage_of += [len(staircase.stages)] * len(staircase.unseen)
    names = [word for stage in staircase.stages for word in result.direction_names(stage)]
    names += [f"unseen {n + 1}" for n in range(len(staircase.unseen))]
    predicted = tuple(tuple(result.direction_names(stage)) for stage in giant)
    return GiantRun(steps, cosines, error, np.array(stage_of, int), len(giant), student_name, predicted, tuple(names))


def _judge(result: Learnability) -> tuple[Student, str]:
    """The student that was given, or one that sees every order."""
    if result.seen is not None:
        student = result.seen.student
        return student, f"{student.p} {type(student.activation).__name__} units"
    student = Student(WIDTH, Custom(_shifted_logistic), np.linspace(-1.0, 1.5, WIDTH))
    return student, f"{WIDTH} logistic units with a bias"


def _cosines(result: Learnability, staircase: LearningStages, run: Any) -> tuple[np.ndarray, float]:
    """The largest cosine of a neuron with each direction after each step, and a bound on the numerical error."""
    rows = np.concatenate([*(stage.directions for stage in staircase.stages), staircase.unseen])
    inverse = np.linalg.inv(result.root)
    cosines = []
    for M, Q in zip(run.M.values[0, 1:], run.Q.values[0, 1:], strict=True):
        overlap = M @ inverse @ rows.T / np.sqrt(np.diagonal(Q))[:, None]
        cosines.append(np.max(np.abs(overlap), axis=0))
    return np.array(cosines), float(np.nan_to_num(np.max(run.overlap_error.values)))


def _shifted_logistic(x: Any) -> Any:
    return jax.nn.sigmoid(x + 1.0)


# ------------------------------------------------------------------------------------------------------ slopes


def _slope(
    result: Learnability, seed: int, tell: Progress, largest: int | None, checkpoint: Checkpoint | None
) -> Slope:
    r"""The steps after which one neuron with the activation :math:`\mathrm{He}_\ell` has left its random start.

    On the sphere, one fresh sample a step; the output weight is a tenth of the largest
    :math:`\langle C_\ell, v^{\otimes\ell} \rangle / \ell!`. The start is left at an overlap of 1/2 with v, or, where n
    directions are found together, of :math:`\sqrt{3/n}/2` with one of them from n = 4 on.

    * exponent 1: mean steps, slope of log steps against log d, predicted 1;
    * exponent 2: mean steps over d against log d, predicted :math:`1 / (\gamma r)` with r from the linearised ODE;
    * exponent 3: median steps at the rate :math:`\gamma \propto d^{-1/2}`, slope of log steps against log d,
      predicted 2.
    """
    stage = result.staircase.stages[0]
    leap = stage.leap
    direction, size = _strongest(result.table.tensor(leap), leap)
    amplitude = MODEST * size / math.factorial(leap)
    student = Student(1, HermiteActivation(leap), np.array([amplitude]))
    target = _in_basis(result, direction)
    chosen = _chosen(leap, largest)
    steps_found, errors = [], []
    problem = Problem(target, student, Gaussian(chosen[0][0]))
    known = plateau(problem)
    if known.learning_rate is not None:  # at the best rate a neuron with little output stays short of the overlap 1/2
        known = plateau(problem, known.learning_rate * SLOWER)
    drift = leap * amplitude * size  # dm/dt = drift m^(leap - 1) - gamma decay m, along the direction
    for number, (d, runs) in enumerate(chosen):
        rate, usual = _rate(known, leap, drift, d, chosen[0][0])
        run = evolve(
            Problem(target, student, Gaussian(d), RandomStart()),
            SGD(rate, constraint=Sphere()),
            OverlapSGD(),
            until=PATIENCE[leap] * usual,
            save=2,
            replicas=runs,
            seed=seed,
            overlap_threshold=LEFT / math.sqrt(max(1.0, len(stage.directions) / 3.0)),
            stop_at_threshold="any",
            throw=False,
            progress=lambda _, fraction, n=number: tell("escape against d", (n + fraction) / len(chosen)),
            checkpoint=None if checkpoint is None else checkpoint.part(f"escape_{d}.npz"),
        )
        times = np.where(np.isnan(run.overlap_time.values), np.inf, run.overlap_time.values).min(axis=1)
        steps, error = _typical_steps(times * d / rate, by_median=leap == 3)
        steps_found.append(steps)
        errors.append(error)
    dimensions, counts = zip(*chosen, strict=True)
    return _fitted(leap, dimensions, np.array(steps_found), np.array(errors), counts, known)


def _chosen(leap: int, largest: int | None) -> list[tuple[int, int]]:
    """Dimensions, and runs in each."""
    return [(d, runs) for d, runs in zip(DIMENSIONS[leap], RUNS[leap], strict=True) if d <= (largest or d)]


def _rate(known: Plateau, leap: int, drift: float, d: int, first: int) -> tuple[float, float]:
    """The learning rate for a dimension, and the time that the escape is expected to take."""
    if leap == 3:
        rate = BALANCE * drift / known.decay * d ** learning_rate_exponent(leap)
        return rate, d ** (leap / 2.0 - 1.0) / drift
    assert known.learning_rate is not None and known.time is not None
    if leap == 1:
        return known.learning_rate, known.time
    assert known.growth_rate is not None
    return known.learning_rate, known.time + math.log(d / first) / known.growth_rate


def _typical_steps(steps: np.ndarray, by_median: bool) -> tuple[float, float]:
    """Mean or median over runs, those that did not escape counting as the longest; and its standard error."""
    if not by_median and np.all(np.isfinite(steps)):
        return float(np.mean(steps)), float(np.std(steps, ddof=1) / math.sqrt(len(steps)))
    ordered = np.sort(np.where(np.isfinite(steps), steps, np.inf))
    spread = 0.5 / math.sqrt(len(ordered))  # one standard error around the median, as a rank
    low, middle, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.5 - spread, 0.5, 0.5 + spread))
    return float(middle), float(0.5 * (high - low))


def _fitted(
    leap: int, dimensions: tuple[int, ...], steps: np.ndarray, errors: np.ndarray, runs: tuple[int, ...], known: Any
) -> Slope:
    kept = np.isfinite(steps) & (steps > 0.0) & np.isfinite(errors)  # without those that begin beyond the threshold
    d, y, sigma = np.array(dimensions, dtype=float)[kept], steps[kept], errors[kept]
    if leap == 2:
        y, sigma, predicted = y / d, sigma / d, 1.0 / (known.learning_rate * known.growth_rate)
        definition = "mean steps to leave the start over d, against log d"
    else:
        y, sigma, predicted = np.log(y), sigma / y, float(max(1, leap - 1))
        average = "median" if leap == 3 else "mean"
        definition = f"{average} steps to leave the start, log against log d"
    # A floor, so that the smallest dimensions, where corrections are larger than the scatter, do not decide alone.
    sigma = np.maximum(sigma, 0.02 * (predicted if leap == 2 else 1.0))
    weights = 1.0 / sigma**2
    x = np.log(d)
    centre = np.sum(weights * x) / np.sum(weights) if len(d) else np.nan
    spread = float(np.sum(weights * (x - centre) ** 2))
    slope = float(np.sum(weights * (x - centre) * y) / spread) if len(d) > 1 else np.nan
    return Slope(
        leap,
        definition,
        dimensions,
        tuple(steps.tolist()),
        tuple(errors.tolist()),
        runs,
        slope,
        1.0 / math.sqrt(spread) if len(d) > 1 else np.nan,
        float(predicted),
    )


def _strongest(tensor: np.ndarray, order: int) -> tuple[np.ndarray, float]:
    """The unit vector with the largest absolute value of the form of a symmetric tensor, and that value."""
    k = tensor.shape[0]
    best: tuple[np.ndarray, float] = (np.eye(k)[0], 0.0)
    for seed in range(32):
        v = np.random.default_rng(seed).standard_normal(k)
        v /= np.linalg.norm(v)
        shift = 0.0
        for _ in range(400):
            image = tensor
            for _ in range(order - 1):
                image = image @ v
            sign = 1.0 if seed % 2 or order % 2 else -1.0
            image = sign * image + shift * v
            shift = (order - 1) * float(np.linalg.norm(tensor))
            length = float(np.linalg.norm(image))
            if length < 1e-300:
                break
            v = image / length
        value = tensor
        for _ in range(order):
            value = value @ v
        if abs(float(value)) > abs(best[1]) * (1.0 + 1e-9):
            best = v, float(value)
    return best


def _in_basis(result: Learnability, direction: np.ndarray) -> Any:
    """The target as a function of orthonormal fields, the first of which is along the direction."""
    first = np.eye(result.k)[0]
    if np.allclose(result.root, np.eye(result.k)) and np.allclose(np.abs(direction), first, atol=1e-9):
        return result.target
    basis = np.linalg.qr(np.column_stack([direction, np.eye(result.k)]))[0][:, : result.k]
    turn = jnp.asarray(result.root @ basis)
    target = result.target
    return MultiIndex(lambda z: target(turn @ z), k=result.k, smooth=target.is_smooth)
