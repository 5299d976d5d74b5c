"""A phase of a schedule with a task of its own: another target, noise, loss, or other inputs."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from twolayer.core.types import Converted, Number
from twolayer.problem import AbstractLoss, AbstractTarget, Gaussian, Problem
from twolayer.problem.losses import as_loss
from twolayer.problem.noise import Flips, as_noise
from twolayer.specification.codec import to_json
from twolayer.specification.fields import ONLY_WHEN_GIVEN, accepts, instance, leaf, replaced
from twolayer.specification.registry import register
from twolayer.training.regression import RidgeRegression
from twolayer.training.sgd import SGD


def _optional(name: str, family: type, noun: str) -> Any:
    check = instance(name, family, noun)

    @accepts(family, str, None)
    def convert(value: Any) -> Any:
        return None if value is None else check(value)

    return convert


@accepts(Number, Flips, None)
def _as_own_noise(value: Any) -> Any:
    return None if value is None else as_noise(value)


@accepts(AbstractLoss, str, Callable, None)
def _as_own_loss(value: Any) -> Any:
    return None if value is None else as_loss(value)


@register
class Task(eqx.Module):
    r"""A phase of a `Schedule` that trains another task than the rest: its own target, noise, loss or inputs.

    .. math:: y = f_n(\lambda^\star) + \sqrt{\Delta_n}\,\xi

    The k target directions of the problem span all tasks: every target is a function of the same fields
    :math:`\lambda^\star_1 \dots \lambda^\star_k`, and their overlaps P are the similarity of tasks. A committee takes
    some of them by its output weights, ``Committee(2, "erf", second_layer=[0, 2])``; a formula names them,
    ``MultiIndex("tanh(z2)", k=2)``. The target of a phase may be a `Mixture` of tasks: replay.

    Inputs of a phase have other eigenvalues in the blocks of the problem's inputs: the directions of the blocks, their
    ranks, and where the target lies in them stay. Without a spectrum all eigenvalues of the phase are one. A problem
    whose own inputs have the covariance I states the blocks by eigenvalues of one, ``spectrum=[(1, 0.3), (1, 0.7)]``.

    Parameters
    ----------
    training
        How the weights move in this phase: an `SGD`, for example with ``layers=Second()``, or a `RidgeRegression`.
    target, noise, loss
        What is learned in this phase; by default that of the problem.
    inputs
        The inputs of this phase, a `Gaussian` without ``teacher``; by default those of the problem.
    """

    training: SGD | RidgeRegression = leaf(
        instance("training", (SGD, RidgeRegression), "a training method such as SGD(learning_rate=0.5)")
    )
    target: AbstractTarget | None = leaf(
        _optional("target", AbstractTarget, "a target such as Committee(k=2, activation='erf')"), default=None
    )
    noise: Converted[Number | Flips | None, Any] = leaf(_as_own_noise, default=None)
    loss: AbstractLoss | None = leaf(_as_own_loss, default=None)

    inputs: Gaussian | None = leaf(
        _optional("inputs", Gaussian, "Gaussian(d, spectrum=...)"), default=None, metadata=ONLY_WHEN_GIVEN
    )

    def problem(self, problem: Problem) -> Problem:
        """Return the problem with the labels and the inputs of this phase."""
        own = problem if self.inputs is None else problem.with_inputs(self.inputs)
        return own.with_task(self.target, self.loss, self.noise)


def distinct(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """The tasks of several problems that differ in labels or inputs, each once, in the order in which they come first.

    Two tasks differ by target, loss or spectrum of the inputs; the noise of a task is that with which it comes first.
    """
    parts = [part for problem in problems for part in problem.components]
    if len(parts) == 1:  # every cell of a sweep asks
        return tuple(parts)
    tasks: dict[str, Problem] = {}
    for part in parts:
        tasks.setdefault(task_key(part), part)
    return tuple(tasks.values())


def share_of(problem: Problem, task: Problem) -> float:
    """The part of the samples of a problem that belong to a task."""
    shares = [1.0] if len(problem.components) == 1 else np.asarray(problem.target.shares)  # pyright: ignore[reportAttributeAccessIssue]
    parts = zip(problem.components, shares, strict=True)
    return float(sum(share for part, share in parts if task_key(part) == task_key(task)))


def task_key(problem: Problem) -> str:
    """The text that tells two tasks apart: function, loss and spectrum, whether or not the target states P."""
    target = problem.target
    spectrum = [list(part) for part in problem.inputs.blocks] if isinstance(problem.inputs, Gaussian) else None
    bare = replaced(target, P=None) if getattr(target, "P", None) is not None else target
    return to_json({"target": bare, "loss": problem.loss, "spectrum": spectrum})
