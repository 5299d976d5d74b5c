"""How much memory a run would hold, roughly, before anything of it is compiled.

It is the result while it is made, and what a description keeps at once besides: weights and samples, points of rules
and clouds, and the averages of the replicas that move together, whose program `explain` has compiled anyway. What
Python, its libraries and the compiler take comes on top.
"""

import math
from functools import singledispatch

import jax

from twolayer.ask import Ask, Training, bytes_of_record
from twolayer.description import AbstractDescription
from twolayer.expectation.auto import BATCH
from twolayer.problem import Problem
from twolayer.simulation import DirectSGD, OverlapSGD
from twolayer.simulation.direct import bytes_of_group
from twolayer.simulation.drivers import SAMPLES
from twolayer.theory import DMFT, HDMF, SDE, BatchMap, MeanField, SaadSolla
from twolayer.theory.batch_map import TOGETHER
from twolayer.theory.hdmf import BLOCK
from twolayer.theory.reuse.frame import gradients_per_step
from twolayer.theory.reuse.typical_samples import Layout
from twolayer.verbs.duration import Averages, Size, sizes

NUMBER = 8  # bytes
# Copies of an array of pairs of particles or of points that a force and its derivatives hold at once, of a cloud while
# a gradient is added to it, of the state of an integrator, and of a batch of fields.
OF_PAIRS, OF_CLOUD, OF_STATE, OF_BATCH = 6, 3, 20, 4


def memory_needed(
    description: AbstractDescription, problem: Problem, training: Training, ask: Ask, averages: Averages
) -> float | None:
    """Bytes that a run would hold at once besides what every process has; None where that is not known."""
    if jax.default_backend() != "cpu":
        return None
    phases = sizes(description, problem, training, ask, averages)
    works = [working(description, phase) for phase in phases]
    known = [work for work in works if work is not None]
    if len(known) < len(works):
        return None
    replicas = max((phase.replicas for phase in phases), default=1)
    total = bytes_of_record(problem, replicas, len(ask.times())) + max(known, default=0.0)
    return total if math.isfinite(total) else None


@singledispatch
def working(description: AbstractDescription, size: Size) -> float | None:
    """Bytes that one phase of a run by a description holds besides its result; None for one that is not known here."""
    return None


def _of_risks(size: Size) -> float:
    """Bytes of the risks at the save points, which are computed some at a time."""
    return BATCH * size.averages.memory


def _entries(size: Size) -> int:
    p, k = size.problem.p, size.problem.k
    return p * (p + k + 1)


@working.register
def _(description: DirectSGD, size: Size) -> float:
    return bytes_of_group(size.problem, size.training, size.replicas) + _of_risks(size)


@working.register
def _(description: OverlapSGD, size: Size) -> float:
    together = min(size.replicas * size.batch, SAMPLES)
    fields = size.problem.p + size.problem.k + 1
    batch = OF_BATCH * together * fields if size.batch > 1 else 0.0
    return NUMBER * (batch + OF_BATCH * size.replicas * _entries(size)) + _of_risks(size)


@working.register
def _(description: SaadSolla, size: Size) -> float:
    together = size.replicas if size.problem.is_quadratic else 1
    return together * (size.averages.memory + NUMBER * OF_STATE * _entries(size))


@working.register
def _(description: SDE, size: Size) -> float:
    p, k = size.problem.p, size.problem.k
    samples = description.samples * (p + k) + (p * (p + k + 1)) ** 2
    return size.replicas * (size.averages.memory + NUMBER * OF_BATCH * (samples + _entries(size)))


@working.register
def _(description: BatchMap, size: Size) -> float:
    return OF_BATCH * min(size.replicas, TOGETHER) * size.averages.memory


@working.register
def _(description: MeanField, size: Size) -> float:
    particles = max(size.problem.p, description.particles or 0)
    return NUMBER * OF_PAIRS * float(particles) ** 2


@working.register
def _(description: HDMF, size: Size) -> float:
    particles = max(size.problem.p, description.particles or 0)
    states = size.points * particles * (size.problem.k + 2)
    return NUMBER * (OF_PAIRS * BLOCK + 2.0 * states * size.replicas)


@working.register
def _(description: DMFT, size: Size) -> float:
    gradients = gradients_per_step(size.training) * (math.ceil(size.steps) + 1)
    numbers = Layout.of(size.problem, gradients).size * 2.0**description.log2_points
    return NUMBER * OF_CLOUD * numbers
