"""The verb that says when training leaves its start: by formulas, by the ODE, and as measured."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.escape.exit_result import KIND, judge_exit, label_exit
from twolayer.analyses.escape.exit_starts import CRITERIA, Starts, draw_starts
from twolayer.analyses.escape.exit_theories import PATIENCE, AbstractPredictor, AskedExit, Predictions
from twolayer.analyses.escape.from_ode import FromODE
from twolayer.analyses.escape.from_plateau import FromPlateau
from twolayer.analyses.escape.from_saddle import FromSaddle
from twolayer.analyses.escape.measurement import measured_times
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import AbstractQuantity
from twolayer.ask import Ask, Training, reads_ask
from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import NotApplicable, takes_these
from twolayer.core.precision import double
from twolayer.data.deviation import Finding
from twolayer.data.provenance import Question, provenance
from twolayer.description import AbstractDescription
from twolayer.problem import Problem
from twolayer.simulation import OverlapSGD
from twolayer.specification.fields import count, instance, number
from twolayer.theory import SaadSolla
from twolayer.training import SGD, Schedule, tasks_of
from twolayer.verbs.evolve import Interrupted
from twolayer.verbs.phases import require
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr

# How long a measurement goes on where the ODE does not exit.
MEASURED_UNTIL = 20.0
# The theories of an exit, the more special ones first: the first one that applies is asked.
PREDICTORS: tuple[AbstractPredictor, ...] = (FromSaddle(), FromPlateau(), FromODE())


@dataclass(frozen=True)
class ExitTime(AbstractQuantity[Predictions, Sample | None]):
    """The time at which training leaves its start; the arguments of `exit_time` say what each field is."""

    threshold: float = 0.1
    replicas: int = 256
    starts: int = 256
    seed: int = 0
    until: float | None = None
    description: AbstractDescription = field(default_factory=OverlapSGD)
    progress: Progress = nobody
    checkpoint: Checkpoint | None = None

    def draw(self, problem: Problem, training: Training) -> Starts:
        """The starts of the ODE and of all runs: run n begins at start n."""
        needed = predictor_of(problem, training).starts_needed(problem)
        return draw_starts(problem, training, self.threshold, max(self.replicas, self.starts, needed), self.seed)

    def predict(self, problem: Problem, training: Training, drawn: Starts | None = None) -> Predictions:
        """The formulas where they apply, and the ODE where it does."""
        drawn = self.draw(problem, training) if drawn is None else drawn
        asked = AskedExit(self.threshold, drawn, self.starts, self.until, self.progress)
        return predictor_of(problem, training).predict(problem, training, asked)

    def measure(
        self, problem: Problem, training: Training, drawn: Starts | None = None, ode: Sample | None = None
    ) -> Sample:
        """The times of the runs, followed for ten times as long as the ODE takes unless it is said how long."""
        drawn = self.draw(problem, training) if drawn is None else drawn
        exited = np.empty(0) if ode is None else ode.exited
        usual = float(np.mean(exited)) if exited.size else MEASURED_UNTIL / PATIENCE
        longest = PATIENCE * usual if self.until is None else self.until
        first = drawn.first(self.replicas)
        return measured_times(
            problem, training, self.description, first, usual, longest, self.progress, self.checkpoint
        )

    def judge(self, predicted: Predictions, measured: Sample | None) -> Finding:
        """The best prediction at this d against the mean of the runs; undecided without runs."""
        return judge_exit(predicted.estimates, measured)


def predictor_of(problem: Problem, training: Training) -> AbstractPredictor:
    """The theory that is asked about the exit."""
    return next(predictor for predictor in PREDICTORS if predictor.applies(problem, training))


# Large: a verb has one argument for each thing that can be asked.
@takes_these
@reads_ask(until="until", replicas="replicas", seed="seed")
@shows_progress
def exit_time(
    problem: Problem,
    training: SGD | Schedule,
    *,
    ask: Ask | None = None,
    threshold: float | int = 0.1,
    replicas: int = 256,
    starts: int = 256,
    seed: int = 0,
    until: float | int | None = None,
    description: AbstractDescription | str | None = None,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> "xr.Dataset":
    r"""Say when training leaves its start.

    On the sphere with a fixed second layer the exit is the time at which the excess risk is :math:`(1 - T)` times its
    initial value. Where rows or output weights change their size the risk falls also without any overlap with the
    target, and the exit is by overlap: the first time at which the squared cosine :math:`c^2` between some neuron and
    some target direction is :math:`T + (1 - T)\,c_0^2`, with the largest cosine :math:`c_0` of the start. For one
    neuron on the sphere that learns phase retrieval the two are the same. The attribute ``criterion`` of the result
    says which is used.

    For phase retrieval on the sphere from random starts: the annealed and the quenched formula, both linearised at the
    saddle; the mean of the ODE over the law of the start (at p = 1 in closed form); the same with the shift that the
    noise of SGD makes, in the limit of large d and at this d; the optimal and the largest learning rate. The same for
    free rows, and with both layers trained: there neurons without overlap first relax to another length and output
    weight, and the formulas are linearised along this motion and at the plateau where it ends (`notes` say where, or
    why there is none). For any other problem, and for a schedule: the ODE from random starts. And for all of them the
    measured times of a simulation, at the resolution of a step.

    Parameters
    ----------
    problem, training
        What is learned, and how the weights move; a `Schedule` has no formulas.
    ask
        ``until``, ``replicas`` and ``seed`` as an `Ask`, as in `evolve`; arguments beside it come first.
    threshold
        T, between 0 and 1. It is relative to the initial excess risk, or overlap, of each start.
    replicas
        Measured runs; 0 for none.
    starts
        Starts from which the ODE is solved, where it is not solved in closed form.
    seed
        The seed from which every random number comes; replica n begins at start n.
    until
        The longest time followed. By default ten times what the ODE takes.
    description
        The description that is measured, `OverlapSGD` by default. One that looks at its save points only, such as
        `DirectSGD`, resolves 1/256 of the time that the ODE takes.
    progress
        Called with the name of what is done, and the fraction of it. Without one a bar appears within two seconds on a
        terminal and in a notebook; False silences it.
    checkpoint
        A file in which the measurement keeps its place, as in `evolve`.

    Returns
    -------
    A labelled dataset of kind "exit_time", which `twolayer.summary` writes as a table; what does not exist is not in
    it. Along ``estimate``: ``predicted``, ``predicted_error`` (numerical and statistical) and ``model_error`` (what
    the model leaves out). Along ``start``: ``ode`` and, for several neurons that learn phase retrieval on the sphere,
    ``largest_threshold``, the largest one that the ODE reaches at this learning rate, at most until ``until``, before
    its risk rises again, with ``largest_threshold_error``. Along ``replica``: ``measured`` and ``censored``, with the
    mean, the median, the restricted mean and the share of the runs that exited beside them; where some runs do not exit
    there is no mean. The attributes ``outcome`` and ``verdict`` say whether the best prediction at this d agrees with
    the mean of the runs.

    Examples
    --------
    >>> import twolayer as tl
    >>> problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000))
    >>> result = tl.exit_time(problem, tl.SGD(1 / 12, constraint=tl.Sphere()), replicas=0)
    >>> print(f"{float(result.predicted.sel(estimate='quenched')):.2f}")
    1.47
    """
    quantity = checked(
        problem,
        training,
        threshold=threshold,
        replicas=replicas,
        starts=starts,
        seed=seed,
        until=until,
        description=description,
        progress=progress if callable(progress) else None,
        checkpoint=checkpoint,
    )
    with double(), interrupts.deferred():
        drawn = quantity.draw(problem, training)
        predictions = quantity.predict(problem, training, drawn)
        attributes = _attributes(problem, training, quantity, drawn.criterion)
        result = label_exit(predictions, None, quantity.judge(predictions, None), attributes)
        if not quantity.replicas:
            return result
        interrupts.offer(lambda: result)
        try:
            sample = quantity.measure(problem, training, drawn, predictions.ode)
        except KeyboardInterrupt:
            raise Interrupted(result) from None
        attributes["measured_by"] = type(quantity.description).__name__
        return label_exit(predictions, sample, quantity.judge(predictions, sample), attributes)


def checked(
    problem: Problem,
    training: SGD | Schedule,
    *,
    threshold: float | int = 0.1,
    replicas: int = 256,
    starts: int = 256,
    seed: int = 0,
    until: float | int | None = None,
    description: AbstractDescription | str | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> ExitTime:
    """Check the arguments of `exit_time`, before anything is computed, and return them as a quantity."""
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    check = instance("description", AbstractDescription, "a description such as OverlapSGD()")
    quantity = ExitTime(
        float(number("threshold", above=0.0, below=1.0)(threshold)),
        count("replicas", low=0, high=10**7)(replicas),
        count("starts", high=10**6)(starts),
        count("seed", low=0, high=2**31 - 1)(seed),
        number("until", above=0.0, optional=True)(until),
        OverlapSGD() if description is None else check(description),
        nobody if progress is None else progress,
        Checkpoint.of(checkpoint),
    )
    _check(problem, training, quantity)
    return quantity


def question_of(problem: Problem, training: Training, quantity: ExitTime) -> Question:
    """The specification of the result: everything that it depends on."""
    asked = [part.name for part in fields(quantity) if part.name not in ("progress", "checkpoint")]
    return Question(
        KIND, {"problem": problem, "training": training} | {name: getattr(quantity, name) for name in asked}
    )


def _check(problem: Problem, training: Training, quantity: ExitTime) -> None:
    """Refuse what has no exit, or cannot be measured, before anything is computed."""
    if not problem.is_isotropic:
        raise NotApplicable(
            "Exit times are predicted on inputs with the covariance I, "
            "but `problem.inputs` has a spectrum: see `evolve`."
        )
    if quantity.replicas:
        require(quantity.description, problem, training)
    if len(tasks_of(problem, training)) > 1:
        raise NotApplicable("An exit is from the plateau of one target, but the training meets several tasks.")
    phases = training.trainings if isinstance(training, Schedule) else (training,)
    if not any(phase.trains_first for phase in phases):
        raise NotApplicable(
            "Argument `training` must train the first layer, but its `layers` are Second(): the overlaps with the "
            "target stay where they are, and there is nothing to leave."
        )
    predictor_of(problem, training).check(problem, training)


def _attributes(problem: Problem, training: Training, quantity: ExitTime, criterion: str) -> dict[str, Any]:
    known = predictor_of(problem, training).references
    references = dict.fromkeys((*known, *SaadSolla().references, *quantity.description.references))
    remains = 1.0 - quantity.threshold
    attributes = {
        "p": problem.p,
        "d": problem.d,
        "noise": float(problem.noise_level),
        "threshold": quantity.threshold,
        "criterion": criterion,
        "definition": CRITERIA[criterion].format(level=quantity.threshold, remains=remains),
        "learning_rate": float(training.learning_rate),
    }
    if isinstance(training, SGD):  # a step of a schedule takes another time in each phase
        attributes["steps_per_time"] = 1.0 / float(training.clock(problem).time_per_step)
    return attributes | provenance(question_of(problem, training, quantity), quantity.seed, tuple(references))
