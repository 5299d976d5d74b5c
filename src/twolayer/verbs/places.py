"""Runs that keep their place: what identifies a run on disk, and how its finished parts come back."""

import hashlib
import platform

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.ask import Training
from twolayer.core.checkpoint import Checkpoint, Place
from twolayer.data.provenance import NUMERICAL, versions
from twolayer.description import AbstractDescription, Plan, Record
from twolayer.problem import Problem
from twolayer.specification.codec import content_hash
from twolayer.training import RidgeRegression, Schedule


def open_place(checkpoint: Checkpoint | None, computation: str) -> Place | None:
    """The place on disk of a computation with this key, on this device and with these versions."""
    if checkpoint is None:
        return None
    device = jax.devices()[0]
    identity = {
        "computation": computation,
        "device": f"{device.platform} {device.device_kind} {platform.machine()}",
        "precision": str(jnp.result_type(float)),
    }
    return checkpoint.open(identity | versions(NUMERICAL))


def plan_key(problem: Problem, training: Training, description: AbstractDescription, plan: Plan) -> str:
    """The key of a run whose plan an analysis made itself: a hash of everything that its numbers depend on."""
    return content_hash({"problem": problem, "training": training, "description": description, "plan": _digest(plan)})


def _digest(plan: Plan) -> str:
    """A digest of what a plan asks: every number from which a description computes."""
    starts = plan.starts
    asked = (starts.Q, starts.M, starts.P, starts.a, jax.random.key_data(plan.keys), plan.steps, plan.times)
    if starts.blocks is not None:
        asked = (*asked, starts.blocks.Q, starts.blocks.M, starts.blocks.frame.P)
    watched = (plan.risk_threshold, plan.overlap_threshold, plan.stops, plan.stops_at_any)
    digest = hashlib.sha256(repr([x if x is None else np.shape(x) for x in (*asked, *watched)]).encode())
    for array in (*asked, *(x for x in watched if x is not None)):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def run_whole(
    description: AbstractDescription, problem: Problem, training: Training | RidgeRegression, plan: Plan
) -> Record:
    """Run a description without a cut: one method, one fit of the second layer, or a schedule on a fixed set."""
    if isinstance(training, RidgeRegression):
        return description.run_fit(problem, training, plan)
    if isinstance(training, Schedule):
        firsts = training.clock(problem).first_steps
        return description.run_phases(problem, training.methods, tuple(map(int, firsts)), plan)
    return description.run(problem, training, plan)


def run_part(
    description: AbstractDescription, problem: Problem, training: Training | RidgeRegression, plan: Plan, name: str
) -> Record:
    """Run a description as one part of a longer run; a part that was finished before a kill is read from disk."""
    place = plan.checkpoint
    arrays = None if place is None else place.part(name)
    if arrays is not None:
        plan.progress(1.0)
        return Record.from_arrays(arrays)
    record = run_whole(description, problem, training, plan)
    if place is not None and not record.interrupted:
        place.finish(name, record.to_arrays())
    return record


def conclude(checkpoint: Checkpoint | None, place: Place | None, record: Record) -> None:
    """A run is over: keep its result where a longer run needs it again, else remove its place."""
    if checkpoint is None or place is None:
        return
    if checkpoint.is_part:
        place.conclude(record.to_arrays())
    else:
        checkpoint.remove()
