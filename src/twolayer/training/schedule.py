"""Training in phases, such as learning rates that change or layers that are trained in turn."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.types import Numbers, NumbersLike
from twolayer.problem import Problem
from twolayer.specification.fields import accepts, count, instance, leaf, number, static
from twolayer.specification.registry import register
from twolayer.training.clock import Clock
from twolayer.training.regression import RidgeRegression
from twolayer.training.sgd import SGD
from twolayer.training.task import Task, distinct

Phase = SGD | RidgeRegression | Task


@accepts(Phase, Sequence[Phase])
def _as_phases(value: Any) -> tuple[Phase, ...]:
    phases = tuple(value) if isinstance(value, tuple | list) else (value,)
    check = instance("phases", (SGD, RidgeRegression, Task), "a list of training methods such as [SGD(0.5), SGD(0.1)]")
    return tuple(check(phase) for phase in phases)


@accepts(float, Sequence[float], np.ndarray)
def _as_switches(value: Any) -> tuple[float, ...]:
    times = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value,)
    return tuple(float(number("switches", above=0.0)(time)) for time in times)


@register
class Schedule(eqx.Module):
    r"""Several trainings one after the other, each of which starts where the last one ended.

    A piecewise constant learning rate is ``Schedule([SGD(0.5), SGD(0.1)], switches=[20.0])``; layer-wise training is
    ``Schedule([SGD(2.0), SGD(1.0, layers=Second())], switches=[5.0])``, or with `RidgeRegression` as its second phase,
    a fit of the second layer in closed form. Time continues through all phases,

    .. math:: t = \frac{1}{pd} \sum_{samples} \gamma

    to which a fit adds one unit. A fit alone, on the features of the start, is ``Schedule([RidgeRegression(0.1)])``.

    A phase may have its own target, noise, loss or inputs: a `Task`, as in
    ``Schedule([SGD(0.5), Task(SGD(0.5), target=other)], switches=[20.0])``. The risk is that of the task being trained;
    results follow the risk of every task at all times, as ``task_risk``. See `forgetting`.

    A phase on the sphere keeps the lengths that the rows have when the phase begins, which differ from those of the
    start if an earlier phase was free. On a fixed set it keeps the lengths of the start.

    Parameters
    ----------
    phases
        The trainings, each of which may stand in a `Task`: all on fresh samples without momentum, where the next phase
        depends only on the overlaps at the end of the last one; or all on the same fixed set, with one batch size and
        one kind of momentum. After a fixed set the second layer may be fitted on fresh samples, by `RidgeRegression`.
    switches
        The times at which the next phase begins, in increasing order: one fewer than there are phases.
    """

    phases: tuple[Phase, ...] = leaf(_as_phases)
    switches: tuple[float, ...] = static(_as_switches, default=())

    def __check_init__(self) -> None:
        """Check that phases and switches fit, and that no state besides the overlaps passes between phases."""
        trainings, methods, is_alone = self.trainings, self.methods, len(self.methods) == 1
        is_one_method = len(self.phases) == 1 and isinstance(self.phases[0], SGD)
        if is_one_method or len(self.switches) != len(self.phases) - 1:
            raise InvalidInput(
                f"Argument `switches` must have one time fewer than there are phases (two or more, or one fit of the "
                f"second layer), but there are {len(self.switches)} for {len(self.phases)} phases."
            )
        if any(later <= before for before, later in zip(self.switches, self.switches[1:], strict=False)):
            raise InvalidInput(f"Argument `switches` must be increasing, but is {list(self.switches)}.")
        if self.has_fixed_set and any(isinstance(phase, Task) for phase in self.phases):
            raise InvalidInput(
                "Argument `phases` must have one task where samples are reused, since all phases share their labels, "
                "but one of them is a Task."
            )
        if self.has_fixed_set and any(isinstance(phase, SGD) for phase in trainings[len(methods) :]):
            raise InvalidInput(
                "Argument `phases` must have its fits of the second layer at the end where samples are reused, but one "
                f"of them comes before {shown(methods[-1])}."
            )
        for phase in methods:
            if self.has_fixed_set:
                kinds = [
                    (training.reuse, training.batch_size, training.has_momentum, type(training.method))
                    for training in (methods[0], phase)
                ]
                if kinds[0] != kinds[1]:
                    raise InvalidInput(
                        "Argument `phases` must share the fixed set, the batch size and the kind of momentum, but "
                        f"{shown(phase)} does not fit {shown(methods[0])}."
                    )
            elif phase.has_momentum and not is_alone:
                raise InvalidInput(
                    "Argument `phases` must be trainings without momentum on fresh samples: a velocity is carried from "
                    "one phase to the next on a fixed set only."
                )

    @property
    def trainings(self) -> tuple[SGD | RidgeRegression, ...]:
        """How the weights move in each phase, whatever its task."""
        return tuple(phase.training if isinstance(phase, Task) else phase for phase in self.phases)

    @property
    def methods(self) -> tuple[SGD, ...]:
        """The phases that go in steps of SGD, without fits of the second layer."""
        return tuple(phase for phase in self.trainings if isinstance(phase, SGD))

    def problems(self, problem: Problem) -> tuple[Problem, ...]:
        """The problem of each phase, with the labels of its task; raises where a task does not fit the problem."""
        return tuple(phase.problem(problem) if isinstance(phase, Task) else problem for phase in self.phases)

    def only(self, number: int) -> "Schedule":
        """The schedule of one phase by itself, from the start: a student that has learned nothing before it.

        Phases are counted from 1. `forgetting` compares with it to find what the earlier phases have transferred.
        """
        place = count("number", high=len(self.phases))(number) - 1
        phase = self.phases[place]
        return Schedule((Task(phase) if isinstance(phase, SGD) else phase,))

    @property
    def has_fixed_set(self) -> bool:
        """Whether the phases share a fixed set of samples, so that they pass on more than the overlaps."""
        return any(phase.has_fixed_set for phase in self.trainings)

    @property
    def learning_rate(self) -> Numbers:
        """The largest learning rate of all phases, which bounds the scatter of a run; 0 if all phases are fits."""
        return max((float(phase.learning_rate) for phase in self.methods), default=0.0)

    @property
    def is_spherical(self) -> bool:
        """Whether the rows keep their length in at least one phase."""
        return any(phase.is_spherical for phase in self.trainings)

    def clock(self, problem: Problem) -> "PhasedClock":
        """Return the conversion between steps, time and samples through all phases."""
        clocks = [phase.clock(problem) for phase in self.trainings]
        firsts, times, samples = [0], [0.0], [0]
        for clock, switch in zip(clocks[:-1], self.switches, strict=True):
            steps = max(1, int(clock.steps(switch - times[-1])))
            firsts.append(firsts[-1] + steps)
            times.append(times[-1] + float(clock.time(steps)))
            samples.append(samples[-1] + int(clock.samples(steps)))
        return PhasedClock(tuple(clocks), np.array(firsts), np.array(times), np.array(samples), self.switches)


class PhasedClock(NamedTuple):
    """The clock of a schedule: the clocks of its phases, and the step, time and sample at which each phase begins."""

    clocks: tuple[Clock, ...]
    first_steps: np.ndarray
    first_times: np.ndarray
    first_samples: np.ndarray
    switches: tuple[float, ...]  # the requested times; `first_times` are those of the nearest steps

    @property
    def time_per_step(self) -> float:
        """The time of the shortest step."""
        return min(float(clock.time_per_step) for clock in self.clocks)

    def _phase(self, firsts: np.ndarray, value: Any, name: str) -> tuple[Any, Any]:
        """Return the phase that contains a step or a time, and the length of its steps in time or samples."""
        phase = np.searchsorted(firsts, value, side="right") - 1
        return phase, np.array([float(getattr(clock, name)) for clock in self.clocks])[phase]

    def steps(self, time: NumbersLike) -> Numbers:
        """Return the number of the step nearest to a time."""
        phase, length = self._phase(self.first_times, time, "time_per_step")
        nearest = self.first_steps[phase] + np.rint((np.asarray(time) - self.first_times[phase]) / length)
        ends = np.append(self.first_steps[1:], 2**62)
        return np.minimum(nearest, ends[phase]).astype(np.int64)

    def steps_at(self, time: NumbersLike) -> Numbers:
        """Return the number of steps taken at a time, as a real number; phases end exactly at ``switches``."""
        return self._counted(time, "time_per_step")

    def samples_at(self, time: NumbersLike) -> Numbers:
        """Return the number of samples seen at a time, as a real number."""
        return self._counted(time, "time_per_sample")

    def _counted(self, time: Any, unit: str) -> Any:
        """Return how many steps or samples have passed at a time, as a real number."""
        begins = np.array([0.0, *self.switches])
        ends = np.append(self.switches, np.inf)
        spent = np.clip(np.asarray(time)[..., None], begins, ends) - begins
        return spent @ (1.0 / np.array([float(getattr(clock, unit)) for clock in self.clocks]))

    def time(self, step: NumbersLike) -> Numbers:
        """Return the time after ``step`` steps."""
        phase, length = self._phase(self.first_steps, step, "time_per_step")
        return self.first_times[phase] + (np.asarray(step) - self.first_steps[phase]) * length

    def samples(self, step: NumbersLike) -> Numbers:
        """Return the number of samples seen after ``step`` steps."""
        phase, size = self._phase(self.first_steps, step, "samples_per_step")
        return (self.first_samples[phase] + (np.asarray(step) - self.first_steps[phase]) * size).astype(np.int64)


def tasks_of(problem: Problem, training: SGD | Schedule) -> tuple[Problem, ...]:
    """The distinct tasks that a training meets, in the order in which it first does so; one for most trainings."""
    return distinct(training.problems(problem) if isinstance(training, Schedule) else (problem,))
