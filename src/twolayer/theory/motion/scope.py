"""Conditions that every theory of one-pass training has in common."""

from twolayer.expectation import Auto
from twolayer.problem import AbstractLoss, Correlation, Gaussian, Problem, Square
from twolayer.training import SGD
from twolayer.training.methods import commutes_with_rotations, is_linear


def loss_refusal(problem: Problem, losses: tuple[type[AbstractLoss], ...] = (Square, Correlation)) -> str:
    """Why the loss is not covered; empty if it is one of ``losses``."""
    if isinstance(problem.loss, losses):
        return ""
    names = " and ".join(f"the {loss.__name__.lower()} loss" for loss in losses)
    return f"it describes {names}, but `problem.loss` is {problem.loss}."


def refusal(
    problem: Problem,
    training: SGD,
    engine: Auto,
    moments: tuple[str, ...],
    methods: str = "none",
    losses: tuple[type[AbstractLoss], ...] = (Square, Correlation),
) -> str:
    """Why the closed equations for the overlaps do not apply, or their averages cannot be computed; empty if they do.

    ``methods`` says which methods the description covers besides plain SGD: "none", "linear" ones such as momentum, or
    all "isotropic" ones, which commute with rotations of the inputs; ``losses`` are those that it covers.
    """
    if not isinstance(problem.inputs, Gaussian):
        return "it describes Gaussian inputs, but `problem.inputs` is a data set; `DirectSGD` covers it."
    if other := loss_refusal(problem, losses):
        return other
    if not training.is_fresh:
        return f"it describes fresh batches, but `training.reuse` is {training.reuse}; `DirectSGD` covers reuse."
    if training.has_momentum and methods == "none":
        return f"it describes SGD without momentum, but the method is {training.method}."
    if training.has_momentum and not commutes_with_rotations(training.method):
        return f"the method {training.method} does not commute with rotations of the inputs; `DirectSGD` covers it."
    if training.has_momentum and methods == "linear" and not is_linear(training.method):
        return f"it describes linear methods, but {training.method} is not linear in the gradient; see `BatchMap`."
    return engine.refusal(problem, moments)
