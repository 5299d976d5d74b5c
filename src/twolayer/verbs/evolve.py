"""The verb that checks, runs and labels one description."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import ComputationFailed, InvalidInput, shown, takes_these
from twolayer.core.fields import as_data, count, flag, instance, number
from twolayer.core.memory import available_memory, in_words
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.data import attributes, to_dataset
from twolayer.description import AbstractDescription, Plan, Record, Status
from twolayer.problem import Overlaps, Problem
from twolayer.training import SGD, Schedule
from twolayer.verbs import cautions
from twolayer.verbs.phases import Training, follow, require
from twolayer.verbs.places import conclude, open_place

if TYPE_CHECKING:
    import xarray as xr

MAX_STEPS = 10**12
# How often the overlaps of a result are held: as they are made, blanked where runs diverged, and labelled.
COPIES = 4


class Interrupted(KeyboardInterrupt):
    """The user stopped the work; ``result`` holds what was finished."""

    def __init__(self, result: Any):
        super().__init__()
        self.result = result


@takes_these
def evolve(
    problem: Problem,
    training: Training,
    description: AbstractDescription | str,
    *,
    until: float | int = 20.0,
    save: Any = 100,
    replicas: Any = 1,
    seed: Any = 0,
    risk_threshold: Any = None,
    overlap_threshold: float | int | None = None,
    stop_at_threshold: bool | str = False,
    throw: bool = True,
    progress: Callable[[float], None] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> "xr.Dataset":
    r"""Follow a training run by one description.

    Parameters
    ----------
    problem, training, description
        What is learned, how the weights move (an `SGD`, or a `Schedule` of several), and by which account we follow it;
        the name of a description, such as ``"SaadSolla"``, stands for one with its defaults.
    until
        The time at which to stop, :math:`t = \gamma\,\mathrm{samples} / (p d)`.
    save
        The times to save, or their number: time zero and a geometric grid up to ``until``; ``"linear:200"`` is an even
        grid, ``"log:200"`` the geometric one. Times move to the nearest step.
    replicas
        Independent runs; replica n of any description has the same start for the same seed. A theory without randomness
        of its own from a start without randomness has one replica whatever is asked.
    seed
        The seed from which every random number comes.
    risk_threshold
        Record the first time at which the excess risk is at most this (``crossing_time``): exactly for a differential
        equation, at the very step for `OverlapSGD`, at the save points for a simulation on the weights. One number, or
        one for each replica.
    overlap_threshold
        Record for each target direction the first time at which the cosine of some neuron with it, of either sign, is
        at least this (``overlap_time``), in the same way.
    stop_at_threshold
        Whether a replica ends when it has crossed all its thresholds, or with ``"any"`` one of them; `OverlapSGD` then
        spends no more on it, and what would come later is missing.
    throw
        Whether a run that did not reach its end raises `ComputationFailed` (with the result so far) or only says so in
        ``status``.
    progress
        Called with the fraction done.
    checkpoint
        A file in which a simulation keeps its place every twenty seconds: killed at any moment, the same call goes on
        from there and ends with the same numbers. It is removed at the end. `Checkpoint` sets another interval.

    Returns
    -------
    A labelled dataset with dimensions replica, time, i, j, r, s. What speaks against trusting it (a limit of small
    steps that are not small, few steps, a numerical error above 1%) stands in the attribute ``cautions`` and is warned
    of (`Caution`), as is a run that takes longer than a minute.
    """
    with double(), interrupts.deferred():
        plan, told = make_plan(
            problem, training, until, save, replicas, seed, risk_threshold, overlap_threshold, stop_at_threshold
        )
        place = Checkpoint.of(checkpoint)
        dataset, interrupted = run(problem, training, description, plan, told, progress, place)
    if interrupted:
        raise Interrupted(dataset)
    if throw:
        check_ended(dataset)
    return dataset


def make_plan(
    problem: Problem,
    training: Training,
    until: float | int,
    save: Any,
    replicas: Any,
    seed: Any,
    risk_threshold: Any = None,
    overlap_threshold: Any = None,
    stop_at_threshold: Any = False,
) -> tuple[Plan, dict[str, Any]]:
    """Check what is asked, and draw the starts; also what was asked in plain numbers, for the record."""
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    until = number("until", above=0.0)(until)
    replicas = count("replicas", high=10**7)(replicas)
    seed = count("seed", low=0, high=2**31 - 1)(seed)
    risk_threshold, each_threshold = _risk_thresholds(risk_threshold, replicas)
    overlap_threshold = number("overlap_threshold", above=0.0, below=1.0, optional=True)(overlap_threshold)
    at_any = stop_at_threshold == "any"
    stops = at_any or flag("stop_at_threshold")(stop_at_threshold)
    if stops and risk_threshold is None and overlap_threshold is None:
        raise InvalidInput("Argument `stop_at_threshold` needs a `risk_threshold` or an `overlap_threshold`.")
    clock = training.clock(problem)
    steps = clock.steps(until)
    if steps < 1:
        raise InvalidInput(
            f"Argument `until` must cover at least one step, which takes time {clock.time_per_step:.3g}, "
            f"but is {until:g}."
        )
    if steps > MAX_STEPS:
        raise InvalidInput(f"Argument `until` asks for {float(steps):.2g} steps; {MAX_STEPS:.0e} are the most.")
    save_steps = np.unique(clock.steps(save_times(save, until, float(clock.time_per_step))))
    asked = save if isinstance(save, str) else [float(time) for time in save] if np.ndim(save) else int(save)
    check_starts(problem, replicas)
    if problem.has_random_start:  # without one there may be a single replica, which the description decides
        check_record(problem, replicas, len(save_steps))
    keys = _replica_keys(seed, replicas)
    starts = _draw(as_data(problem), keys)
    if training.is_spherical and float(np.min(np.diagonal(starts.Q, axis1=1, axis2=2))) <= 0.0:
        raise InvalidInput("On the sphere every row needs a length, but a row of the start is zero.")
    told = {"until": until, "save": asked, "replicas": replicas, "seed": seed, "risk_threshold": risk_threshold}
    told |= {"overlap_threshold": overlap_threshold, "stop_at_threshold": stop_at_threshold}
    times = clock.time(save_steps)
    return Plan(starts, keys, save_steps, times, each_threshold, overlap_threshold, stops, at_any), told


def check_starts(problem: Problem, replicas: int) -> None:
    """Refuse more starts than fit the memory."""
    width = problem.p + problem.k
    need = 8 * COPIES * width * (width + 1)
    fitting = int(available_memory() // need)
    if replicas > fitting:
        raise InvalidInput(
            f"Argument `replicas` must be at most {fitting} at p = {problem.p} and k = {problem.k} here: {replicas} "
            f"starts need {in_words(need * replicas)} of memory, but {in_words(available_memory())} are there."
        )


def check_record(problem: Problem, replicas: int, points: int) -> None:
    """Refuse a result that does not fit the memory: all overlaps of every replica at every save point."""
    p, k = problem.p, problem.k
    need = 8 * COPIES * replicas * (p * (p + k + 1) + k + 8)
    fitting = int(available_memory() // need)
    if points > fitting:
        raise InvalidInput(
            f"Argument `save` must be at most {fitting} points for {replicas} replicas at p = {p} and k = {k} here: "
            f"{points} of them need {in_words(need * points)} of memory, but {in_words(available_memory())} are there."
        )


def _risk_thresholds(asked: Any, replicas: int) -> tuple[Any, np.ndarray | None]:
    """What was asked in plain numbers, and one threshold for each replica."""
    if asked is None:
        return None, None
    if np.ndim(asked) == 0:
        asked = number("risk_threshold", above=0.0)(asked)
        return asked, np.full(replicas, float(asked))
    each = np.asarray(asked, dtype=float)
    if each.shape != (replicas,) or not np.all(np.isfinite(each)) or np.any(each <= 0.0):
        raise InvalidInput(
            f"Argument `risk_threshold` must be one positive number, or one for each of the {replicas} replicas."
        )
    return each.tolist(), each


def save_times(save: Any, until: float | int, step: float) -> np.ndarray:
    """The times to save, from a number, a grid in words or the times themselves; ``step`` is the time of one step."""
    if isinstance(save, str):
        kind, colon, points = save.partition(":")
        if kind not in ("linear", "log") or not colon or not points.strip().isdecimal() or len(points) > 20:
            raise InvalidInput(f'Argument `save` must be a number, times, "linear:N" or "log:N", but is {shown(save)}.')
        points = count("save", low=2, high=10**6)(int(points))
        return np.linspace(0.0, until, points) if kind == "linear" else save_times(points, until, step)
    if isinstance(save, int | np.integer) and not isinstance(save, bool):
        points = count("save", low=2, high=10**6)(save)
        first = min(max(step, until / 1000), until)
        return np.concatenate([[0.0], np.geomspace(first, until, points - 1)[: points - 2], [until]])
    try:
        times = np.asarray(save, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"Argument `save` must be a number of points or a list of times, but is {shown(save)}."
        ) from None
    if times.ndim != 1 or times.size == 0 or not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
        raise InvalidInput("Argument `save` must be a list of increasing finite times.")
    if times[0] < 0 or times[-1] > until * (1 + 1e-9):
        raise InvalidInput(
            f"Argument `save` must lie between 0 and `until` = {until:g}, but spans {times[0]:g} to {times[-1]:g}."
        )
    return times if times[0] == 0.0 else np.concatenate([[0.0], times])


def _replica_keys(seed: int, replicas: int) -> Key[Array, " replicas"]:
    return jax.vmap(lambda replica: replica_key(seed, replica))(jnp.arange(replicas))


@eqx.filter_jit
def _draw(problem: Problem, keys: Key[Array, " replicas"]) -> Overlaps:
    return problem.draw_many(keys)


def run(
    problem: Problem,
    training: Training,
    description: Any,
    plan: Plan,
    told: dict[str, Any],
    progress: Callable[[float], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple["xr.Dataset", bool]:
    """Run one description through a plan and label the record; says whether it was interrupted."""
    description = instance("description", AbstractDescription, "a description such as SaadSolla()")(description)
    applies = require(description, problem, training)
    has_one_threshold = plan.risk_threshold is None or np.ptp(plan.risk_threshold) == 0.0
    if not (applies.exactness.is_random or problem.has_random_start) and has_one_threshold:
        plan = first_replica(plan)
    check_record(problem, plan.replicas, len(plan.steps))
    place = open_place(checkpoint, problem, training, description, plan)
    name = type(description).__name__
    warned = cautions.of_limit(name, applies.exactness, problem, training, int(plan.steps[-1]))
    cautions.tell(warned)
    forecast = cautions.Forecast(description, progress)

    def report(fraction: float) -> None:
        interrupts.check()
        forecast(fraction)

    plan = dataclasses.replace(plan, progress=report, checkpoint=place)
    if place is not None and place.result is not None:
        record = Record.from_arrays(place.result)
        plan.progress(1.0)
    else:
        record = follow(description, problem, training, plan)
    if not record.interrupted:
        conclude(checkpoint, place, record)
    samples = training.clock(problem).samples(plan.steps)
    labels = attributes(problem, training, description, applies, record, told)
    dataset = to_dataset(record, plan, samples, float(problem.noise), labels)
    found = cautions.of_result(name, dataset)
    cautions.tell(found)
    if warned or found:
        dataset.attrs["cautions"] = "\n".join([*warned, *found])
    return dataset, record.interrupted


def first_replica(plan: Plan) -> Plan:
    """The plan for a deterministic account of a deterministic start: all replicas are the same."""
    starts = Overlaps(plan.starts.Q[:1], plan.starts.M[:1], plan.starts.P, plan.starts.a[:1])
    threshold = None if plan.risk_threshold is None else plan.risk_threshold[:1]
    return dataclasses.replace(plan, starts=starts, keys=plan.keys[:1], risk_threshold=threshold)


def check_ended(dataset: "xr.Dataset") -> None:
    """Raise when a replica did not reach its end, with the time and what is there."""
    status = dataset.status.values
    broken = np.flatnonzero((status != Status.DONE) & (status != Status.STOPPED))
    if not broken.size:
        return
    worst = Status(int(status[broken[0]]))
    finite = np.isfinite(dataset.risk.values[broken])
    reached = [float(dataset.time.values[row.argmin() - 1]) if row[0] else 0.0 for row in finite]
    remedy = "lower the learning rate" if worst is Status.DIVERGED else "raise `max_steps` or loosen the tolerance"
    raise ComputationFailed(
        f"`{dataset.attrs['description']}` did not reach the end in {len(broken)} of {len(status)} replicas; the first "
        f"has its last good point at time {min(reached):.3g} ({worst.sentence}): {remedy}. "
        "The result up to there is kept.",
        dataset,
    )
