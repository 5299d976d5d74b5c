r"""How the steps after which one neuron leaves its random start grow with the dimension.

The neuron has the activation :math:`\mathrm{He}_\ell`, with the leap l of the first stage, and is trained on the sphere
with one fresh sample a step; its output weight is a tenth of the largest
:math:`\langle C_\ell, v^{\otimes\ell} \rangle / \ell!`. The start is left at an overlap of 1/2 with v, or, where n
directions are found together, of :math:`\sqrt{3/n}/2` with one of them from n = 4 on.

* leap 1: mean steps, slope of log steps against log d, predicted 1;
* leap 2: mean steps over d against log d, predicted :math:`1 / (\gamma r)` with r from the linearised ODE;
* leap 3: median steps at the rate :math:`\gamma \propto d^{-1/2}`, slope of log steps against log d, predicted 2.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from twolayer.analyses.quantity import AbstractQuantity, Prediction
from twolayer.ask import Training
from twolayer.core.checkpoint import Checkpoint
from twolayer.data.deviation import Finding, judge_number
from twolayer.data.summary import for_json
from twolayer.learnability import Learnability
from twolayer.learnability.scaling import learning_rate_exponent
from twolayer.problem import Gaussian, MultiIndex, Problem, RandomStart, Student
from twolayer.problem.activations import HermiteActivation
from twolayer.simulation import OverlapSGD
from twolayer.theory.formulas.plateau import LEFT, Plateau, plateau
from twolayer.training import SGD, Sphere
from twolayer.verbs.evolve import evolve
from twolayer.verbs.progress import Progress, nobody

# Dimensions and runs in each, by the leap of the first stage.
DIMENSIONS = {1: (30, 300, 3000, 30_000), 2: (100, 1000, 10_000, 100_000), 3: (10, 100, 1000, 10_000)}
RUNS = {1: (256,) * 4, 2: (512,) * 4, 3: (512, 256, 128, 64)}
# How much longer than the prediction a run may take before it counts as lost.
PATIENCE = {1: 20.0, 2: 10.0, 3: 60.0}
# Leap 3: the rate at which the pull to the sphere's equator balances the drift at this many times 1/sqrt(d).
BALANCE = 1.0
# Share of the best output weight that the neuron has: its own output is noise, which makes the escape slower.
MODEST = 0.1
# The rates of leaps 1 and 2, in units of the best one.
SLOWER = 0.25
# The relative deviation of a slope from its prediction that corrections at finite d may cause.
AGREES = 0.1


@dataclass(frozen=True)
class Slope:
    """How the steps of escape grow with the dimension, measured by `OverlapSGD`, beside the predicted slope."""

    exponent: int
    definition: str
    dimensions: tuple[int, ...]
    steps: tuple[float, ...]
    errors: tuple[float, ...]  # standard errors
    runs: tuple[int, ...]
    slope: float
    slope_error: float
    predicted: float

    @property
    def compared(self) -> tuple[float, float, float]:
        """The predicted slope, the measured one, and its standard error."""
        return self.predicted, self.slope, self.slope_error

    @property
    def agrees(self) -> bool:
        """Whether the slope is within 10% of the predicted one."""
        return bool(abs(self.slope / self.predicted - 1.0) < AGREES)

    @property
    def finding(self) -> Finding:
        """The verdict: a deviation of at most 10% counts as an effect of finite d, where corrections are that large."""
        measured = (self.slope, self.slope_error, min(self.runs))
        return judge_number("The slope of the escape", self.predicted, 0.0, *measured, AGREES * abs(self.predicted))

    def to_dict(self) -> dict[str, Any]:
        """Convert the slope and its verdict to plain data, for JSON."""
        own = {{"dimensions": "d", "errors": "stderr"}.get(name, name): value for name, value in vars(self).items()}
        return for_json(own | {"agrees": self.agrees}) | self.finding.attributes

    def __str__(self) -> str:
        lines = [f"Escape (OverlapSGD, one neuron He_{self.exponent}): {self.definition}"]
        rows = zip(self.dimensions, self.steps, self.errors, self.runs, strict=True)
        lines += [f"  d = {d:<8} {steps:>12.4g} +- {error:<9.2g} steps, {runs} runs" for d, steps, error, runs in rows]
        judgement = "within 10%" if self.agrees else "NOT within 10%"
        lines.append(f"  slope {self.slope:.3f} +- {self.slope_error:.3f}, predicted {self.predicted:.3f}: {judgement}")
        return "\n".join(lines)


@dataclass(frozen=True)
class EscapeSlope(AbstractQuantity[Prediction, Slope]):
    r"""How the steps of escape of one neuron grow with the dimension; the problem's own dimension does not matter.

    The overlap m along the best direction obeys :math:`\dot m = c\,m^{\ell-1}` with the ``drift`` c. That many
    directions are found ``together``. ``runs`` holds the dimensions, and the number of runs in each.
    """

    leap: int
    drift: float
    together: int
    runs: tuple[tuple[int, int], ...]
    seed: int = 0
    progress: Progress = nobody
    checkpoint: Checkpoint | None = None

    def predict(self, problem: Problem, training: Training) -> Prediction:
        """Predict the slope by the linearised ODE for leap 2, by the power of d otherwise; finite d may add 10%."""
        value = float(max(1, self.leap - 1))
        if self.leap == 2:
            scale = _scale(problem, training)
            assert scale.growth_rate is not None
            value = 1.0 / (float(training.learning_rate) * scale.growth_rate)
        return Prediction(value, 0.0, AGREES * abs(value))

    def measure(self, problem: Problem, training: Training) -> Slope:
        """Run `OverlapSGD` in all dimensions until the first overlap has reached its threshold, and fit the slope."""
        scale = _scale(problem, training)
        steps, errors = np.empty(len(self.runs)), np.empty(len(self.runs))
        for place, (d, replicas) in enumerate(self.runs):
            rate, usual = self._rate(scale, problem.d, d, training)
            run = evolve(
                Problem(problem.target, problem.student, Gaussian(d), problem.start),
                SGD(rate, constraint=Sphere()),
                OverlapSGD(),
                until=PATIENCE[self.leap] * usual,
                save=2,
                replicas=replicas,
                seed=self.seed,
                overlap_threshold=LEFT / math.sqrt(max(1.0, self.together / 3.0)),
                stop_at_threshold="any",
                throw=False,
                progress=lambda _, part, n=place: self.progress("escape against d", (n + part) / len(self.runs)),
                checkpoint=None if self.checkpoint is None else self.checkpoint.part(f"escape_{d}.npz"),
            )
            times = np.where(np.isnan(run.overlap_time.values), np.inf, run.overlap_time.values).min(axis=1)
            steps[place], errors[place] = _typical_steps(times * d / rate, by_median=self.leap == 3)
        average = "median" if self.leap == 3 else "mean"
        axes = " over d, against log d" if self.leap == 2 else ", log against log d"
        definition = f"{average} steps to leave the start{axes}"
        dimensions, replicas = zip(*self.runs, strict=True)
        predicted = self.predict(problem, training).value
        fit = self._fit(steps, errors, predicted)
        return Slope(
            self.leap, definition, dimensions, tuple(steps.tolist()), tuple(errors.tolist()), replicas, *fit, predicted
        )

    def judge(self, predicted: Prediction, measured: Slope) -> Finding:
        """Judge the slope; a deviation of at most 10% counts as an effect of finite d."""
        return replace(measured, predicted=predicted.value).finding

    def _rate(self, scale: Plateau, first: int, d: int, training: Training) -> tuple[float, float]:
        """The learning rate for a dimension, and the time that the escape is expected to take."""
        if self.leap == 3:
            return _balanced(self.leap, self.drift, scale.decay, d), d ** (self.leap / 2.0 - 1.0) / self.drift
        assert scale.time is not None
        growth = 0.0 if self.leap == 1 or scale.growth_rate is None else math.log(d / first) / scale.growth_rate
        return float(training.learning_rate), scale.time + growth

    def _fit(self, steps: np.ndarray, errors: np.ndarray, predicted: float) -> tuple[float, float]:
        """The slope of weighted least squares, and its standard error."""
        kept = np.isfinite(steps) & (steps > 0.0) & np.isfinite(errors)  # those that begin beyond the threshold go
        d = np.array([dimension for dimension, _ in self.runs], dtype=float)[kept]
        if self.leap == 2:
            y, sigma = steps[kept] / d, errors[kept] / d
        else:
            y, sigma = np.log(steps[kept]), errors[kept] / steps[kept]
        if len(d) < 2:
            return np.nan, np.nan
        # A floor, so that the smallest dimensions, where corrections are larger than the scatter, do not decide alone.
        sigma = np.maximum(sigma, 0.02 * (predicted if self.leap == 2 else 1.0))
        weights = 1.0 / sigma**2
        x = np.log(d)
        centre = np.sum(weights * x) / np.sum(weights)
        spread = float(np.sum(weights * (x - centre) ** 2))
        return float(np.sum(weights * (x - centre) * y) / spread), 1.0 / math.sqrt(spread)


def escape_slope(
    analysis: Learnability, seed: int, tell: Progress, largest: int | None, checkpoint: Checkpoint | None
) -> Slope | str:
    """The slope for the first stage of a target, in dimensions up to the largest; or a sentence why there is none."""
    stages = analysis.staircase.stages
    leap = stages[0].leap if stages else None
    if leap not in DIMENSIONS:
        return f"No slope was measured: the first stage has leap {leap}, and runs would take too long."
    runs = tuple((d, n) for d, n in zip(DIMENSIONS[leap], RUNS[leap], strict=True) if d <= (largest or d))
    if len(runs) < 2:
        return f"No slope was measured: it takes two dimensions of {DIMENSIONS[leap]}."
    direction, size = _strongest(analysis.table.tensor(leap), leap)
    amplitude = MODEST * size / math.factorial(leap)
    student = Student(1, HermiteActivation(leap), np.array([amplitude]))
    drift = leap * amplitude * size
    first = runs[0][0]
    problem = Problem(_in_basis(analysis, direction), student, Gaussian(first), RandomStart())
    best = plateau(problem)
    # At the best rate a neuron with little output stays short of the overlap 1/2.
    known = best.learning_rate
    rate = _balanced(leap, drift, best.decay, first) if known is None else known * SLOWER
    slope = EscapeSlope(leap, drift, len(stages[0].directions), runs, seed, tell, checkpoint)
    training = SGD(rate, constraint=Sphere())
    return slope.measure(problem, training)


def _scale(problem: Problem, training: Training) -> Plateau:
    """How fast the linearised ODE leaves the start."""
    return plateau(problem, float(training.learning_rate))


def _balanced(leap: int, drift: float, decay: float, d: int) -> float:
    """The rate at which the noise of SGD turns the neuron away as fast as the drift pulls it, in d dimensions."""
    return BALANCE * drift / decay * d ** learning_rate_exponent(leap)


def _typical_steps(steps: np.ndarray, by_median: bool) -> tuple[float, float]:
    """Mean or median over runs, those that did not escape counting as the longest; and its standard error."""
    if not by_median and np.all(np.isfinite(steps)):
        return float(np.mean(steps)), float(np.std(steps, ddof=1) / math.sqrt(len(steps)))
    ordered = np.sort(np.where(np.isfinite(steps), steps, np.inf))
    spread = 0.5 / math.sqrt(len(ordered))  # one standard error around the median, as a rank
    low, middle, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.5 - spread, 0.5, 0.5 + spread))
    return float(middle), float(0.5 * (high - low))


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
