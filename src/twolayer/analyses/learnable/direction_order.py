"""The order in which giant steps find directions: predicted by the analysis, and run by what knows nothing of it."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from twolayer.analyses.quantity import AbstractQuantity
from twolayer.ask import Training
from twolayer.core.checkpoint import Checkpoint
from twolayer.data.deviation import Finding
from twolayer.data.summary import for_json
from twolayer.description import AbstractDescription
from twolayer.learnability import Learnability
from twolayer.learnability.stages import LearningStages
from twolayer.problem import Custom, Gaussian, GivenOverlaps, Problem, Student
from twolayer.theory import DMFT, BatchMap
from twolayer.training import SGD, AbstractReuse, Fresh, Reused
from twolayer.verbs.evolve import evolve
from twolayer.verbs.progress import Progress, nobody

# Giant steps: width of the student, samples over d, step size in units of the width.
WIDTH, RATIO, STRIDE, MOST_STEPS = 4, 4.0, 2.0, 4
DMFT_SAMPLES = 2**16
# A direction is found where a neuron has this cosine with it; below the second number it is not there.
FOUND, ABSENT = 1e-3, 1e-6


@dataclass(frozen=True)
class GiantSteps:
    """The cosines after giant steps beside their prediction; every array has the axes step and direction."""

    description: str
    student: str
    predicted: tuple[tuple[str, ...], ...]
    cosines: np.ndarray  # largest cosine of a neuron with each direction, in the predicted order
    directions: tuple[str, ...]
    expected: np.ndarray  # whether the direction may be there after the step
    present: np.ndarray  # whether it must be there
    absent: np.ndarray  # whether it must not
    floor: float  # a cosine above this is there
    ceiling: float  # a cosine below this is not

    @property
    def share(self) -> float:
        """The share of the cosines that are there, or are not, as predicted."""
        right = np.sum(self.cosines[self.present] > self.floor) + np.sum(self.cosines[self.absent] < self.ceiling)
        return float(right / max(1, np.sum(self.present) + np.sum(self.absent)))

    @property
    def compared(self) -> tuple[float, float, float]:
        """The predicted share, the measured one, and its error."""
        return 1.0, self.share, 0.0

    @property
    def agrees(self) -> bool:
        """Whether all cosines are as predicted."""
        return self.share == 1.0

    @property
    def finding(self) -> Finding:
        """The verdict on the order of directions."""
        outcome = "agrees" if self.agrees else "differs" if np.all(np.isfinite(self.cosines)) else "undecided"
        heads = {
            "agrees": f"The order of directions agrees with {self.description}",
            "differs": f"The order of directions differs from {self.description}",
            "undecided": f"The order of directions against {self.description} is undecided, since the run did not end",
        }
        parts = [f"{self.share:.0%} of the cosines after {len(self.cosines)} steps are as predicted"]
        if self.present.any():
            parts.append(f"the smallest one that should be there is {np.min(self.cosines[self.present]):.2g}")
        if self.absent.any():
            parts.append(f"the largest one that should not is {np.max(self.cosines[self.absent]):.2g}")
        sentence = f"{heads[outcome]}: {'; '.join(parts)}."
        return Finding("order of directions", self.description, outcome, sentence, 0.0, "", np.inf)

    def to_dict(self) -> dict[str, Any]:
        """Convert the steps and their verdict to plain data, for JSON."""
        own = {name: getattr(self, name) for name in ("description", "student", "predicted", "directions", "cosines")}
        return for_json(own | {"agrees": self.agrees}) | self.finding.attributes

    def __str__(self) -> str:
        head = f"Giant steps ({self.description}; {self.student}): largest cosine of a neuron with each direction"
        rows = [f"{'':10}" + "".join(f"{name:>18}" for name in self.directions)]
        for step, (row, expected) in enumerate(zip(self.cosines, self.expected, strict=True), start=1):
            cells = (f"{x:.3g}{'' if e else ' (none)'}" for x, e in zip(row, expected, strict=True))
            rows.append(f"  step {step:<3}" + "".join(f"{cell:>18}" for cell in cells))
        judgement = "as predicted" if self.agrees else "NOT as predicted"
        return "\n".join([head, *rows, f"  {judgement}; (none) marks directions that are predicted to be absent"])


class Expected(NamedTuple):
    """What the analysis predicts for each step and direction; every array has the axes step and direction."""

    allowed: np.ndarray  # whether the direction may be there
    present: np.ndarray  # whether it must be there
    absent: np.ndarray  # whether it must not


class Cosines(NamedTuple):
    """The largest cosine of a neuron with each direction after each step, and a bound on the numerical error."""

    values: np.ndarray
    error: float


@dataclass(frozen=True)
class DirectionOrder(AbstractQuantity[Expected, Cosines]):
    """Which directions a student has found after each giant step that begins with no overlap at all.

    ``staircase`` is the order that the analysis predicts, and ``description`` runs the steps. The run is called
    ``name``.
    """

    analysis: Learnability
    staircase: LearningStages
    description: AbstractDescription
    name: str
    progress: Progress = nobody
    checkpoint: Checkpoint | None = None

    @property
    def giant(self) -> list[Any]:
        """The stages before the first one of a higher leap than one."""
        return list(itertools.takewhile(lambda stage: stage.leap == 1, self.staircase.stages))

    @property
    def steps(self) -> np.ndarray:
        """The numbers of steps after which cosines are compared."""
        return np.arange(1, min(len(self.giant) + 1, MOST_STEPS) + 1)

    def predict(self, problem: Problem, training: Training) -> Expected:
        """After which step each direction is there.

        On fresh batches the overlaps span after t steps the first t stages of leap one, and nothing else. On one batch
        that is used again all directions of the first stage for any function of the label are there from the second
        step on, those of the next stage of leap one a step later, and those of higher leap never in a few steps.
        """
        stages = self.staircase.stages
        # Directions that no stage contains are of a stage after all others.
        stage_of = np.array([n for n, stage in enumerate(stages) for _ in stage.directions], int)
        stage_of = np.append(stage_of, np.full(len(self.staircase.unseen), len(stages)))
        delay = 1 if training.has_fixed_set else 0
        present = stage_of[None, :] < np.minimum(self.steps - delay, len(self.giant))[:, None]
        if not training.has_fixed_set:
            return Expected(present, present, ~present)
        absent = np.broadcast_to(stage_of >= len(self.giant), present.shape)
        return Expected(~absent, present, absent)

    def measure(self, problem: Problem, training: Training) -> Cosines:
        """Run the steps, and return the largest cosine of a neuron with each direction after each of them."""
        times = self.steps * float(training.clock(problem).time_per_step)
        place = None if self.checkpoint is None else self.checkpoint.part(f"{self.name.replace(' ', '_')}.npz")
        run = evolve(
            problem,
            training,
            self.description,
            until=times[-1],
            save=times,
            throw=False,
            progress=lambda _, fraction: self.progress(self.name, fraction),
            checkpoint=place,
        )
        rows = np.concatenate([*(stage.directions for stage in self.staircase.stages), self.staircase.unseen])
        inverse = np.linalg.inv(self.analysis.root)
        cosines = []
        for M, Q in zip(run.M.values[0, 1:], run.Q.values[0, 1:], strict=True):
            overlap = M @ inverse @ rows.T / np.sqrt(np.diagonal(Q))[:, None]
            cosines.append(np.max(np.abs(overlap), axis=0))
        return Cosines(np.array(cosines), float(np.nan_to_num(np.max(run.overlap_error.values))))

    def judge(self, predicted: Expected, measured: Cosines) -> Finding:
        """Judge whether all directions are there, or are not, as predicted."""
        return self.beside(predicted, measured).finding

    def beside(self, predicted: Expected, measured: Cosines) -> GiantSteps:
        """The run beside its prediction, with the names of the directions."""
        analysis, is_reused = self.analysis, isinstance(self.description, DMFT)
        names = [word for stage in self.staircase.stages for word in analysis.direction_names(stage)]
        names += [f"unseen {n + 1}" for n in range(len(self.staircase.unseen))]
        error = measured.error
        return GiantSteps(
            "DMFT, the same batch" if is_reused else "BatchMap",
            _student(analysis)[1],
            tuple(tuple(analysis.direction_names(stage)) for stage in self.giant),
            measured.values,
            tuple(names),
            *predicted,
            floor=FOUND + error if is_reused else FOUND,
            ceiling=ABSENT + (2.0 if is_reused else 10.0) * error,
        )


def on_fresh_batches(analysis: Learnability, tell: Progress, checkpoint: Checkpoint | None) -> GiantSteps:
    r"""Follow `BatchMap` from no overlap at all, with batches of order d and steps of order one.

    The student sees every order (a logistic unit with a bias) unless one was given.
    """
    staircase = analysis.staircase if analysis.seen is None else analysis.seen.staircase
    order = DirectionOrder(analysis, staircase, BatchMap(), "giant steps", tell, checkpoint)
    return _verified(order, Fresh())


def on_one_batch(analysis: Learnability, tell: Progress, checkpoint: Checkpoint | None) -> GiantSteps | None:
    """Follow `DMFT` on one batch of order d that is used again."""
    staircase = analysis.generative
    if staircase is None or analysis.seen is not None:
        return None
    description = DMFT(samples=DMFT_SAMPLES)
    return _verified(
        DirectionOrder(analysis, staircase, description, "one batch again", tell, checkpoint), Reused(RATIO)
    )


def _verified(order: DirectionOrder, reuse: AbstractReuse) -> GiantSteps:
    """Predict and measure for batches of order d and steps of order one, from no overlap."""
    analysis = order.analysis
    student, _ = _student(analysis)
    d = 1000
    batch = int(RATIO * d)
    rate = STRIDE * student.p / analysis.table.scale * d / batch
    training = SGD(rate, batch_size=None if isinstance(reuse, Reused) else batch, reuse=reuse)
    start = GivenOverlaps(np.eye(student.p), np.zeros((student.p, analysis.k)))
    problem = Problem(analysis.target, student, Gaussian(d), start)
    return order.beside(order.predict(problem, training), order.measure(problem, training))


def _student(result: Learnability) -> tuple[Student, str]:
    """The student that was given, or one that sees every order."""
    if result.seen is not None:
        student = result.seen.student
        return student, f"{student.p} {type(student.activation).__name__} units"
    student = Student(WIDTH, Custom(_shifted_logistic), np.linspace(-1.0, 1.5, WIDTH))
    return student, f"{WIDTH} logistic units with a bias"


def _shifted_logistic(x: Any) -> Any:
    return jax.nn.sigmoid(x + 1.0)
