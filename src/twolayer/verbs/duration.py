"""How long a run would take, roughly, before anything of it is compiled.

The work of each description is a number of operations that follows from its sizes; the averages in it are counted, or
timed where counting misses a loop, by the program that `explain` runs anyway. Constants were measured on one core, and
are scaled by the speed of the machine at hand. The result is an order of magnitude: it tells a minute from an hour.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache, singledispatch
from typing import Any, NamedTuple

import jax
import numpy as np

from twolayer.ask import Ask, Training
from twolayer.core.machine import cores
from twolayer.core.remembered import recall, remember
from twolayer.description import AbstractDescription
from twolayer.expectation import MOMENTS, Chosen, estimate
from twolayer.expectation.auto import operations, temporary_bytes
from twolayer.problem import Overlaps, Problem
from twolayer.simulation import DirectSGD, OverlapSGD
from twolayer.simulation.direct import GROUP
from twolayer.simulation.overlap_sgd import MAX_WIDTH
from twolayer.specification.codec import content_hash
from twolayer.theory import DMFT, HDMF, SDE, BatchMap, MeanField, SaadSolla
from twolayer.theory.batch_map import TOGETHER
from twolayer.theory.motion.integrate_rows import interpolates
from twolayer.theory.motion.tableaus import DORMAND_PRINCE, FINE
from twolayer.theory.reuse.frame import gradients_per_step
from twolayer.theory.reuse.typical_samples import Layout
from twolayer.theory.sde import PROBES, TOLERANCE
from twolayer.training import SGD, RidgeRegression
from twolayer.verbs.cautions import LONG, in_words
from twolayer.verbs.phases import applies_throughout

# Seconds of one operation on a number, and of one program of XLA on small arrays with all its parts, on a core that
# draws a normal number by NumPy in the third.
OPERATION, CALL, REFERENCE = 5e-10, 1e-5, 1.1e-8
# Operations of a random number, of a unit with its slope, and of a pair of units in a closed form.
DRAW, UNIT, PAIR = 30, 30, 60
# Seconds of an operation where the rows of many cells fill vectors of machine code, and of a cell among many.
OF_A_ROW, OF_A_CELL = 3e-11, 1e-3
# Replicas that native code advances at once on one core.
LANES = 4
# Steps of an integrator in a unit of time besides those to the save points, and evaluations in each, for averages that
# are exact, and for those that are known to few digits.
RATE, STAGES, COARSE_STAGES = 1, 13, 6
# Steps of a less accurate solution, in units of those of the accurate one.
LOOSE = 0.6
# Relative accuracy of averages beyond which they count as coarse.
COARSE = 1e-6
# Nodes over cosines between particles, operations of a particle at a node of a rule over the target's fields, solutions
# of a mean-field flow, and operations for each number of an earlier gradient that a gradient is projected on.
COSINES, NODE, SOLUTIONS, PASSES = 5, 2.5, 6, 16
# Operations of all averages at one point below which the risk counts as much as all of them.
CHEAP = 1e5
# Under which measured costs of averages are remembered.
TOPIC = "averages"
# Under which the times of runs are remembered, and the seconds from which one is worth it.
RUNS, WORTH = "run-times", 2.0
# Seconds that a call from Python may take before it counts as work, and seconds of all timed calls.
DISPATCH, TRIALS = 2e-2, 0.3


class Averages(NamedTuple):
    """The cost of all Gaussian moments at one point: operations of all variants together, and their number."""

    operations: float = 0.0
    variants: int = 1
    is_coarse: bool = False
    # Operations of the risk alone, which simulations compute at the save points of each replica.
    of_risk: float = 0.0
    # Bytes that one variant holds at one point.
    memory: float = 0.0
    # Whether other variants than the first one are solved with fewer steps.
    judges_first: bool = False

    @property
    def of_solutions(self) -> float:
        """Operations at one point for a solution with each variant, and two more that give its numerical error."""
        return self.operations * (self.variants + 2) / self.variants

    @property
    def trajectories(self) -> float:
        """Solutions of an ODE with its error, in units of one of full accuracy."""
        return 1.0 + LOOSE * (self.variants - 1) if self.judges_first else self.variants + 2.0


class Size(NamedTuple):
    """The size of a run: what is asked for, and the cost of its averages."""

    problem: Problem
    training: Any  # the method, or a fit of the second layer
    time: float
    points: int
    replicas: int
    averages: Averages

    @property
    def steps(self) -> float:
        return max(1.0, self.time / float(self.training.clock(self.problem).time_per_step))

    @property
    def batch(self) -> int:
        return self.training.samples_per_step(self.problem)

    @property
    def evaluations(self) -> float:
        """Typical number of right-hand sides of an ODE, one after the other; the solver chooses it as it goes on."""
        if self.averages.is_coarse:  # steps do not end on the save points then
            return COARSE_STAGES * (10 + RATE * self.time)
        return STAGES * (self.points + RATE * self.time)

    @property
    def of_risks(self) -> float:
        """Operations of the risk at the save points of all replicas."""
        return self.points * self.replicas * self.averages.of_risk


class Cost(NamedTuple):
    """The work of a run: programs that run one after the other, and operations on numbers."""

    calls: float
    operations: float


def seconds(
    description: AbstractDescription, problem: Problem, training: Training, ask: Ask, averages: Averages
) -> float | None:
    """The time that a run would take here, without compiling; None where it is not known."""
    if jax.default_backend() != "cpu":
        return None
    works = [
        _fit_work(description, problem, size.training, size.replicas, averages)
        if isinstance(size.training, RidgeRegression)
        else work(description, size)
        for size in sizes(description, problem, training, ask, averages, with_fits=True)
    ]
    known = [part for part in works if part is not None]
    if len(known) < len(works):
        return None
    total = _speed() * sum(part.calls * CALL + part.operations * OPERATION for part in known)
    return total if math.isfinite(total) else None


def seconds_together(
    description: AbstractDescription, problem: Problem, training: Training, ask: Ask, averages: Averages
) -> float | None:
    """The time of a run among many that are computed together, where that is less than alone; None where it is not."""
    watches = ask.risk_threshold is not None or ask.overlap_threshold is not None
    if not isinstance(description, SaadSolla) or not isinstance(training, SGD) or watches:
        return None
    if description.batch_key(problem, training) is None or averages.is_coarse or averages.variants > 1:
        return None
    (size,) = sizes(description, problem, training, ask, averages)
    is_between = interpolates(size.points)
    steps = (10 if is_between else size.points) + RATE * size.time
    evaluations = len((FINE if is_between else DORMAND_PRINCE).c) * steps * averages.trajectories
    return _speed() * (OF_A_CELL + evaluations * size.replicas * averages.operations * OF_A_ROW)


def foreseen(
    descriptions: Sequence[AbstractDescription], problem: Problem, training: Training, ask: Ask
) -> tuple[str, ...]:
    """What to say before a run, or several in a row, that takes longer than a minute; nothing is compiled to know it.

    Where `explain` has not measured the averages of such a problem, here or in another process, an earlier run of this
    kind says how long another one takes. Without either, averages count nothing, so that the time is too short.
    """
    averages = recalled(problem, training)
    times = [seconds(description, problem, training, ask, averages) for description in descriptions]
    if averages == Averages():
        ran = [seconds_as_before(description, problem, training, ask) for description in descriptions]
        times = [before if time is None or before > time else time for time, before in zip(times, ran, strict=True)]
    names = [f"`{type(description).__name__}`" for description in descriptions]
    parts = [(name, time) for name, time in zip(names, times, strict=True) if time is not None]
    if sum(time for _, time in parts) <= LONG:
        return ()
    ends = "to an order of magnitude and without compiling; `explain` says what each description takes."
    if len(parts) == 1:
        return (f"{parts[0][0]} takes about {in_words(parts[0][1])} here, {ends}",)
    parts_in_words = ", ".join(f"{name} {in_words(time)}" for name, time in parts)
    return (f"This takes about {in_words(sum(time for _, time in parts))} here ({parts_in_words}), {ends}",)


def remember_run(
    description: AbstractDescription, problem: Problem, training: Training, ask: Ask, taken: float
) -> None:
    """Keep how long a run took besides compiling, for later ones of its kind, where averages are most of the work."""
    if taken > WORTH and (extent := _extent(description, problem, training, ask)):
        remember(RUNS, kind_of_programs(description, problem, training), [taken / extent])


def seconds_as_before(description: AbstractDescription, problem: Problem, training: Training, ask: Ask) -> float:
    """The time of a run by the last one of its kind, here or in another process; zero where there was none."""
    known = recall(RUNS, kind_of_programs(description, problem, training))
    return known[0] * _extent(description, problem, training, ask) if known else 0.0


def _extent(description: AbstractDescription, problem: Problem, training: Training, ask: Ask) -> float:
    """How many operations a run takes for each of those of its averages; zero if their cost does not matter to it."""
    usual, more = Averages(), Averages(operations=1e9)
    times = [seconds(description, problem, training, ask, averages) for averages in (usual, more)]
    return 0.0 if times[0] is None or times[1] is None else (times[1] - times[0]) / (_speed() * OPERATION * 1e9)


def kind_of_programs(description: AbstractDescription, problem: Problem, training: Training) -> str:
    """What runs have in common whose programs take about the same time to compile."""
    phases = (training,) if isinstance(training, SGD) else training.trainings
    return f"{type(description).__name__} {_kind(problem)} {[_switches(phase) for phase in phases]}"


def recalled(problem: Problem, training: Training) -> Averages:
    """The cost of the averages of such a problem as it was measured last; nothing where it never was."""
    known = recall(TOPIC, _kind_of_averages(problem, training))
    if known is None or len(known) != len(Averages()):
        return Averages()
    # Files hold numbers; each field has the type of its default.
    fields = zip(Averages._fields, Averages(), known, strict=True)
    numbers: dict[str, Any] = {name: type(usual)(number) for name, usual, number in fields}
    return Averages(**numbers)


def remember_averages(problem: Problem, training: Training, averages: Averages) -> None:
    """Keep the measured cost of the averages of such a problem, also for other processes."""
    remember(TOPIC, _kind_of_averages(problem, training), list(averages))


def _kind_of_averages(problem: Problem, training: Training) -> str:
    phases = (training,) if isinstance(training, SGD) else training.trainings
    return f"{_kind(problem)} {[phase.is_fresh for phase in phases]}"


def _kind(problem: Problem) -> str:
    """What of a problem its averages and its programs depend on, besides numbers such as d."""
    return content_hash({"target": problem.target, "student": problem.student, "loss": problem.loss})


def _switches(phase: SGD | RidgeRegression) -> str:
    if isinstance(phase, RidgeRegression):
        return "fit"
    return f"{phase.is_spherical} {phase.is_fresh} {type(phase.method).__name__} {phase.trains_first}"


def sizes(
    description: AbstractDescription,
    problem: Problem,
    training: Training,
    ask: Ask,
    averages: Averages,
    with_fits: bool = False,
) -> list[Size]:
    """The size of each phase that a run reaches; fits of the second layer only ``with_fits``."""
    phases = (training,) if isinstance(training, SGD) else training.trainings
    switches = () if isinstance(training, SGD) else training.switches
    ends = [min(float(ask.until), switch) for switch in (*switches, math.inf)]
    exactness = applies_throughout(description, problem, training).exactness
    replicas = ask.replicas if exactness.is_random or problem.has_random_start else 1
    return [
        Size(problem, phase, last - first, len(ask.times()), replicas, averages)
        for phase, first, last in zip(phases, [0.0, *ends], ends, strict=False)
        if last > first and (with_fits or isinstance(phase, SGD))
    ]


def measured(chosen: Chosen, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...] = MOMENTS) -> Averages:
    """The cost of the averages at some overlaps, where their program is compiled already: counted, or timed if more."""
    shortest = _shortest(lambda: jax.block_until_ready(estimate(chosen, problem, overlaps, wanted)))
    timed = (shortest - DISPATCH) / (OPERATION * _speed())
    variants = len(chosen.variants())
    counted = variants * operations(chosen, problem, overlaps, wanted)
    total = max(timed, counted)
    # Tracing another program would take longer than all risks of a run where averages are cheap.
    is_all = total < CHEAP or not counted or len(wanted) == 1
    risk = counted if is_all else variants * operations(chosen, problem, overlaps, ("excess_risk",))
    held = temporary_bytes(chosen, problem, overlaps, wanted)
    of_risk = total * risk / counted if counted else total
    return Averages(total, variants, chosen.rtol > COARSE, of_risk, held, chosen.judges_first)


def _shortest(function: Callable[[], Any]) -> float:
    """The shortest time of a few calls, since others use the machine as well; one call if it takes long."""
    times: list[float] = []
    while len(times) < 10 and sum(times) < TRIALS:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


@cache
def _speed() -> float:
    """The time of an operation on this machine, in units of that for which the constants hold."""
    rng = np.random.default_rng(0)
    return _shortest(lambda: rng.standard_normal(2**13)) / 2**13 / REFERENCE


def _at_once(replicas: int) -> int:
    """Replicas that native code advances at the same time on all cores."""
    return min(replicas, LANES * cores())


# ------------------------------------------------------------------------------------------------ the work of each


def _fit_work(
    description: AbstractDescription, problem: Problem, fit: RidgeRegression, replicas: int, averages: Averages
) -> Cost:
    """The work of one fit of the second layer: features of the samples, or averages of them by the engines."""
    p, k = problem.p, problem.k
    if fit.samples is None or not isinstance(description, DirectSGD | OverlapSGD):
        return Cost(averages.variants, replicas * averages.operations)
    per_number = DRAW / 4 + p + k
    drawn = problem.d * per_number if isinstance(description, DirectSGD) else (p + k) * (DRAW + p)
    return Cost(1.0, replicas * fit.samples * (drawn + p * (UNIT + p)))


@singledispatch
def work(description: AbstractDescription, size: Size) -> Cost | None:
    """The work of one phase of a run by a description; None for one that is not known here."""
    return None


@work.register
def _(description: DirectSGD, size: Size) -> Cost:
    problem, is_drawn = size.problem, not size.training.has_fixed_set
    samples = size.replicas * size.steps * size.batch
    per_number = (DRAW / 4 if is_drawn else 0) + 2 * problem.p + (problem.k if is_drawn else 0)
    operations = samples * problem.d * per_number + size.of_risks
    return Cost(size.steps * math.ceil(size.replicas / GROUP), operations)


@work.register
def _(description: OverlapSGD, size: Size) -> Cost:
    p, k = size.problem.p, size.problem.k
    sample = (DRAW + UNIT) * (p + k + 1) + 4 * p * (p + k)
    operations = size.replicas * size.steps * size.batch * sample
    if size.batch == 1 and p <= MAX_WIDTH and description.backend != "xla":
        return Cost(0.0, operations / _at_once(size.replicas) + size.of_risks)
    return Cost(size.steps, operations + size.of_risks)


@work.register
def _(description: SaadSolla, size: Size) -> Cost:
    evaluations, averages = size.evaluations * size.averages.trajectories, size.averages
    return Cost(evaluations, evaluations * size.replicas * averages.operations / averages.variants)


@work.register
def _(description: SDE, size: Size) -> Cost:
    problem, step = size.problem, float(size.training.clock(size.problem).time_per_step)
    # The error of a step is that of its square, and the noise of few samples is taken where no formula gives it.
    scatter = math.sqrt(float(size.training.learning_rate) / (problem.p * problem.d))
    dt = max(step, math.sqrt(TOLERANCE * scatter)) if description.dt is None else float(description.dt)
    steps = max(size.time / dt, float(size.points))
    noise = description.samples * (DRAW + UNIT) * (problem.p + problem.k)
    operations = (2.0 * size.averages.operations / size.averages.variants + noise) * steps
    if description.backend != "xla" and problem.p <= MAX_WIDTH:
        return Cost(0.0, operations * (size.replicas / _at_once(size.replicas) + PROBES * size.averages.variants))
    return Cost(4.0 * steps, operations * (size.replicas + PROBES * (size.averages.variants + 2)))


@work.register
def _(description: BatchMap, size: Size) -> Cost:
    # The forces are derivatives of the risk, which cost some four times the averages.
    calls = size.steps * (size.averages.variants + 2) * math.ceil(size.replicas / TOGETHER)
    return Cost(calls, 4.0 * size.steps * size.replicas * size.averages.of_solutions)


@work.register(MeanField)
@work.register(HDMF)
def _(description: MeanField | HDMF, size: Size) -> Cost:
    particles = max(size.problem.p, description.particles or 0)
    if isinstance(description, MeanField):
        evaluation = particles**2 * COSINES * PAIR
    else:  # points of a product rule over the target's fields, or of a net
        evaluation = particles * 32 ** min(size.problem.k, 2.6) * NODE
    solutions = size.evaluations * SOLUTIONS
    return Cost(solutions * size.replicas, solutions * size.replicas * evaluation)


@work.register
def _(description: DMFT, size: Size) -> Cost:
    gradients = gradients_per_step(size.training) * (size.steps + 1.0)
    frame = Layout.of(size.problem, math.ceil(gradients)).size
    # Each gradient of each unit is projected on the earlier ones, at all points.
    clouds = description.scramblings * size.replicas
    projections = gradients * size.problem.p * frame * 2.0**description.log2_points
    return Cost(10.0 * gradients * clouds, projections * PASSES * clouds)
