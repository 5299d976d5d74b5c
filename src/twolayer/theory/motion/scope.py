"""Conditions that every theory of one-pass training has in common."""

from twolayer.core.errors import NotApplicable
from twolayer.expectation import Auto
from twolayer.problem import Gaussian, Problem, Square
from twolayer.training import SGD


def refusal(problem: Problem, training: SGD, engine: Auto, moments: tuple[str, ...], momentum: bool = False) -> str:
    """Why the closed equations for the overlaps do not apply, or their averages cannot be computed; empty if they do.

    ``momentum`` says whether the description covers momentum.
    """
    if not isinstance(problem.inputs, Gaussian):
        return "it describes Gaussian inputs, but `problem.inputs` is a data set; `DirectSGD` covers it."
    if not isinstance(problem.loss, Square):
        return f"it describes the square loss, but `problem.loss` is {problem.loss}."
    if not training.is_fresh:
        return f"it describes fresh batches, but `training.reuse` is {training.reuse}; `DirectSGD` covers reuse."
    if training.has_momentum and not momentum:
        return f"it describes SGD without momentum, but `training.momentum` is {training.momentum}."
    if not training.is_classical:
        return f"its momentum is heavy ball, but `training.momentum` is {training.momentum}; `DMFT` covers others."
    try:
        engine.assign(problem, moments)
    except NotApplicable as missing:
        return str(missing)
    return ""
