"""Conditions that every theory of one-pass training has in common."""

from twolayer.expectation import Auto
from twolayer.expectation.again import cloud_refusal
from twolayer.problem import AbstractLoss, Correlation, Flips, Gaussian, Mixture, Problem, Square
from twolayer.specification.fields import is_traced, replaced
from twolayer.training import SGD
from twolayer.training.methods import Adam, RMSProp, commutes_with_rotations, is_linear

# Losses whose averages come apart into those of few fields, and all losses; only the latter allow flips of labels.
QUADRATIC: tuple[type[AbstractLoss], ...] = (Square, Correlation)
ALL_LOSSES: tuple[type[AbstractLoss], ...] = (AbstractLoss,)


def loss_refusal(problem: Problem, losses: tuple[type[AbstractLoss], ...] = QUADRATIC) -> str:
    """Why the loss is not covered; empty if it is one of ``losses``."""
    if isinstance(problem.noise, Flips) and losses != ALL_LOSSES:
        return f"it describes additive label noise, but `problem.noise` is {problem.noise}."
    if isinstance(problem.loss, losses):
        return ""
    names = " and ".join(f"the {loss.__name__.lower()} loss" for loss in losses)
    return f"it describes {names}, but `problem.loss` is {problem.loss}."


def spectrum_refusal(problem: Problem) -> str:
    """Why inputs with a spectrum are not covered; empty if no direction of the inputs differs from the others."""
    if problem.is_isotropic:
        return ""
    return (
        "it describes inputs with the covariance I, but `problem.inputs` has a spectrum; `SaadSolla`, `SDE`, "
        "`BatchMap`, `DMFT`, `OverlapSGD` and `DirectSGD` cover it."
    )


def mixture_refusal(problem: Problem) -> str:
    """Why targets that are drawn for each sample are not covered; empty if there is one target."""
    if not isinstance(problem.target, Mixture):
        return ""
    return "it describes one target, but `problem.target` is a Mixture; `SaadSolla` and `BatchMap` cover it."


def sign_refusal(problem: Problem, training: SGD, engine: Auto) -> str:
    """Why the equations of `SignDescent` do not apply, or their averages cannot be computed; empty if they do."""
    if training.samples_per_step(problem) > 1:
        return (
            f"the signs of a sum over {training.samples_per_step(problem)} samples have no closed equations, those of "
            "one sample have; `DirectSGD` covers larger batches."
        )
    beta = training.method.beta  # pyright: ignore[reportAttributeAccessIssue]
    if is_traced(beta) or float(beta) != 0.0:
        return (
            f"the signs of gradients that are averaged over steps have no closed equations, but `beta` is {beta}; "
            "`DirectSGD` covers it."
        )
    plain = replaced(training, momentum=0.0)
    if other := spectrum_refusal(problem):
        return f"signs of the gradient: {other}"
    reason = refusal(problem, plain, engine, ("excess_risk",), losses=ALL_LOSSES)
    return reason or cloud_refusal(problem, "averages of signs")


def method_refusal(problem: Problem, training: SGD, methods: str) -> str:
    """Why the method of the training has no closed equations, or others than these; empty if it has these."""
    method, n_b = training.method, training.samples_per_step(problem)
    is_small = n_b < problem.d
    if not commutes_with_rotations(method):
        begins = f"the method {method} does not commute with rotations of the inputs"
        if training.moves_by_signs:
            return f"{begins}, which `SaadSolla` covers on single samples without `beta`, and `DirectSGD` always."
        if is_small and isinstance(method, (Adam, RMSProp)):
            why = (
                f"with {n_b} sample{'s' if n_b > 1 else ''} a step its denominators are random, since they hold the "
                "squared gradients of the last few steps, and averages over these do not close in the overlaps"
            )
        elif is_small:
            why = "it uses single coordinates of the gradients, whose law the overlaps do not determine"
        else:
            why = (
                "after a step on a large batch the coordinates of the weights are not normal any more, and the next "
                "step depends on their law"
            )
        return f"{begins}: {why}. `DirectSGD` covers it."
    if methods == "linear" and not is_linear(method):
        return f"it describes linear methods, but {method} is not linear in the gradient: " + (
            f"with {n_b} sample{'s' if n_b > 1 else ''} a step it acts on single gradients, whose lengths are "
            "random, and not on their mean; `OverlapSGD` follows it exactly in law."
            if is_small
            else "`BatchMap` describes it on large batches, and `OverlapSGD` follows it exactly in law."
        )
    return ""


def refusal(
    problem: Problem,
    training: SGD,
    engine: Auto,
    moments: tuple[str, ...],
    methods: str = "none",
    losses: tuple[type[AbstractLoss], ...] = QUADRATIC,
    with_spectrum: bool = False,
    mixtures: bool = False,
) -> str:
    """Why the closed equations for the overlaps do not apply, or their averages cannot be computed; empty if they do.

    ``methods`` says which methods the description covers besides plain SGD: "none", "linear" ones such as momentum, or
    all "isotropic" ones, which commute with rotations of the inputs; ``losses`` are those that it covers, ``mixtures``
    says whether targets that are drawn for each sample are covered, ``with_spectrum`` whether inputs with a spectrum.
    """
    if not isinstance(problem.inputs, Gaussian):
        return "it describes Gaussian inputs, but `problem.inputs` is a data set; `DirectSGD` covers it."
    if not with_spectrum and (other := spectrum_refusal(problem)):
        return other
    if other := loss_refusal(problem, losses):
        return other
    if not mixtures and (other := mixture_refusal(problem)):
        return other
    if not training.is_fresh:
        return f"it describes fresh batches, but `training.reuse` is {training.reuse}; `DirectSGD` covers reuse."
    if training.has_momentum and methods == "none":
        return f"it describes SGD without momentum, but the method is {training.method}."
    if training.has_momentum and (other := method_refusal(problem, training, methods)):
        return other
    return engine.refusal(problem, moments)
