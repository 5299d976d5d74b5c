"""The verb that checks, runs and labels one description."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.fields import array, as_data, count, instance, number
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.data import attributes, to_dataset
from twolayer.description import AbstractDescription, Exactness, Plan, Record, Status
from twolayer.problem import Overlaps, Problem
from twolayer.training import SGD

if TYPE_CHECKING:
    import xarray as xr

MAX_STEPS = 10**12


class Interrupted(KeyboardInterrupt):
    """The user stopped the work; ``result`` holds what was finished."""

    def __init__(self, result: Any):
        super().__init__()
        self.result = result


def evolve(
    problem: Problem,
    training: SGD,
    description: AbstractDescription,
    *,
    until: float | int = 20.0,
    save: Any = 100,
    replicas: Any = 1,
    seed: Any = 0,
    risk_threshold: Any = None,
    throw: bool = True,
    progress: Callable[[float], None] | None = None,
) -> "xr.Dataset":
    r"""Follow a training run by one description.

    Parameters
    ----------
    problem, training, description
        What is learned, how the weights move, and by which account we follow it.
    until
        The time at which to stop, :math:`t = \gamma\,\mathrm{samples} / (p d)`.
    save
        The times to save, or their number: time zero and a geometric grid up to ``until``. Times move to the nearest
        step.
    replicas
        Independent runs; replica n of any description has the same start for the same seed. A theory without randomness
        of its own from a start without randomness has one replica whatever is asked.
    seed
        The seed from which every random number comes.
    risk_threshold
        Record the first time at which the excess risk is at most this (``crossing_time``): exactly for a differential
        equation, at every step on the overlaps, at the save points for a simulation on the weights. One number, or one
        per replica.
    throw
        Whether a run that did not reach its end raises `ComputationFailed` (with the result so far) or only says so in
        ``status``.
    progress
        Called with the fraction done.

    Returns
    -------
    A labelled dataset with dimensions replica, time, i, j, r, s.
    """
    with double():
        plan, told = make_plan(problem, training, until, save, replicas, seed, risk_threshold)
        dataset, interrupted = run(problem, training, description, plan, told, progress)
    if interrupted:
        raise Interrupted(dataset)
    if throw:
        check_ended(dataset)
    return dataset


def make_plan(
    problem: Problem,
    training: SGD,
    until: float | int,
    save: Any,
    replicas: Any,
    seed: Any,
    risk_threshold: Any = None,
) -> tuple[Plan, dict[str, Any]]:
    """Check what is asked, and draw the starts; also what was asked in plain numbers, for the record."""
    instance("problem", Problem, "a Problem")(problem)
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    until = number("until", above=0.0)(until)
    replicas = count("replicas", high=10**7)(replicas)
    seed = count("seed", low=0, high=2**31 - 1)(seed)
    risk_threshold = _as_threshold(risk_threshold, replicas)
    clock = training.clock(problem)
    steps = clock.steps(until)
    if steps < 1:
        raise InvalidInput(
            f"Argument `until` must cover at least one step, which takes time {clock.time_per_step:.3g}, "
            f"but is {until:g}."
        )
    if steps > MAX_STEPS:
        raise InvalidInput(f"Argument `until` asks for {float(steps):.2g} steps; {MAX_STEPS:.0e} are the most.")
    save_steps = np.unique(clock.steps(_save_times(save, until, float(clock.time_per_step))))
    times = [float(time) for time in save] if np.ndim(save) else int(save)  # pyright: ignore[reportArgumentType]
    keys = _replica_keys(seed, replicas)
    starts = _draw(as_data(problem), keys)
    if training.is_spherical and float(np.min(np.diagonal(starts.Q, axis1=1, axis2=2))) <= 0.0:
        raise InvalidInput("On the sphere every row needs a length, but a row of the start is zero.")
    asked = risk_threshold.tolist() if isinstance(risk_threshold, np.ndarray) else risk_threshold
    told = {"until": until, "save": times, "replicas": replicas, "seed": seed, "risk_threshold": asked}
    return Plan(starts, keys, save_steps, clock.time(save_steps), risk_threshold), told


def _as_threshold(value: Any, replicas: int) -> Any:
    """One positive number for all replicas, or one for each."""
    if value is None or np.ndim(value) == 0:
        return number("risk_threshold", above=0.0, optional=True)(value)
    values = np.asarray(array("risk_threshold", 1)(value))
    if values.shape != (replicas,) or np.any(values <= 0.0):
        raise InvalidInput(
            f"Argument `risk_threshold` must be one positive number or one for each of {replicas} replicas, "
            f"but is an array of {values.size} with smallest entry {values.min(initial=np.inf):g}."
        )
    return values


def _save_times(save: Any, until: float | int, step: float) -> np.ndarray:
    if isinstance(save, int | np.integer) and not isinstance(save, bool):
        points = count("save", low=2, high=10**6)(save)
        first = min(max(step, until / 1000), until)
        return np.concatenate([[0.0], np.geomspace(first, until, points - 1)[: points - 2], [until]])
    try:
        times = np.asarray(save, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(f"Argument `save` must be a number of points or a list of times, but is {save!r}.") from None
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
    training: SGD,
    description: AbstractDescription,
    plan: Plan,
    told: dict[str, Any],
    progress: Callable[[float], None] | None = None,
) -> tuple["xr.Dataset", bool]:
    """Run one description through a plan and label the record; says whether it was interrupted."""
    instance("description", AbstractDescription, "a description such as SaadSolla()")(description)
    applies = description.require(problem, training)
    if applies.exactness is not Exactness.EXACT and not problem.has_random_start:
        plan = first_replica(plan)
    plan = Plan(
        plan.starts, plan.keys, plan.steps, plan.times, plan.risk_threshold, progress or (lambda fraction: None)
    )
    record: Record = description.run(problem, training, plan)
    samples = training.clock(problem).samples(plan.steps)
    labels = attributes(problem, training, description, applies, record, told)
    return to_dataset(record, plan, samples, float(problem.noise), labels), record.interrupted


def first_replica(plan: Plan) -> Plan:
    """The plan for a deterministic account of a deterministic start: all replicas are the same."""
    starts = Overlaps(plan.starts.Q[:1], plan.starts.M[:1], plan.starts.P, plan.starts.a[:1])
    threshold = None if plan.risk_threshold is None else plan.thresholds[:1]
    return Plan(starts, plan.keys[:1], plan.steps, plan.times, threshold, plan.progress)


def check_ended(dataset: "xr.Dataset") -> None:
    """Raise when a replica did not reach its end, with the time and what is there."""
    status = dataset.status.values
    if not status.any():
        return
    broken = np.flatnonzero(status)
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
