"""The verb that says what of a target can be learned, how fast, and in which order."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.learnable.checks import run_checks
from twolayer.analyses.learnable.learn_result import Learned, label_learned
from twolayer.ask import Ask, reads_ask
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.core.types import NumbersLike, Unchecked
from twolayer.data.provenance import Question
from twolayer.learnability import Learnability, analyse
from twolayer.learnability.analysis import TargetLike
from twolayer.learnability.of_loss import seen_by_gradient
from twolayer.problem import AbstractLoss, Gaussian, Problem, Square, Student
from twolayer.problem.activations import ActivationLike, as_activation
from twolayer.problem.losses import as_loss
from twolayer.specification.fields import count, flag, number
from twolayer.theory.formulas.plateau import Plateau, plateau
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Asked:
    """What is asked of `learn`; its fields are those of the verb, checked."""

    target: Any
    student: Student | None = None
    d: int | None = None
    P: Any = None
    noise: float = 0.0
    learning_rate: float | None = None
    spherical: bool = True
    verify: bool = False
    seed: int = 0
    largest: int | None = None
    loss: AbstractLoss | None = None

    @property
    def question(self) -> Question:
        """The specification, whose hash names the result; a loss is part of it where one is stated."""
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        return Question("learn", stated if self.loss is not None else {k: v for k, v in stated.items() if k != "loss"})


# Large: a verb has one argument for each thing that can be asked.
@takes_these
@reads_ask(seed="seed")
@shows_progress
def learn(
    target: TargetLike,
    student: Student | ActivationLike | None = None,
    *,
    ask: Ask | None = None,
    d: int | None = None,
    P: NumbersLike | None = None,
    noise: float | int = 0.0,
    learning_rate: float | int | None = None,
    spherical: bool = True,
    verify: bool = False,
    seed: Unchecked[int] = 0,
    largest: int | None = None,
    loss: AbstractLoss | str | Callable[..., object] | None = None,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> "xr.Dataset":
    r"""Say what first-order methods find of a target, before any run: exponents, order of directions, steps, samples.

    The information exponent is the order of the first Hermite tensor :math:`C_r = E[\nabla^r f]` that is not zero. The
    subspace iteration gives the order in which directions are found: given those known, the lowest order r of
    :math:`E[f\,\mathbf{He}_r(z_\perp) \mid z_U]` that is not zero; the leap is the largest r met. The generative
    exponent and leap are the smallest over all functions of the label. Zero is decided by proof or by an error bar;
    where neither decides, the number is missing (NaN), and the summary says at what size.

    Parameters
    ----------
    target
        A formula such as ``"he2(z1) + z1*z2"``, a target, or a name of `twolayer.learnability.named_targets`.
    student
        An activation or a `Student`: what it can see of the target is then said, too.
    ask
        ``seed`` as an `Ask`, as in `evolve`; an argument beside it comes first.
    d
        The input dimension: with a student, the growth rate and the time to leave the plateau of a random start.
    P
        The covariance of the target's fields, where it is not the target's own.
    noise, learning_rate, spherical
        Label noise, learning rate (the best one when None) and constraint for that time.
    verify
        Whether the predictions are run: giant steps by `BatchMap` and `DMFT`, escape times against d by `OverlapSGD`.
        The result then ends in a verdict.
    seed, largest
        The seed of these runs, and the largest dimension.
    loss
        The loss that is trained, where it is not the square loss. Exponents and stages are then those of its gradient
        at the start, :math:`g(\lambda^\star) = E_\xi[-\partial_s \ell(y, s)]` at s = 0, in place of the target: those
        of the label for the correlation loss, and for the logistic and the hinge loss, which need signs; others for
        Huber's, which cuts large labels. The generative exponent is that of the label in any case.
    progress
        Called with the name of what is done, and the fraction of it; as in `evolve`.
    checkpoint
        A folder in which the runs of ``verify`` keep their places and results, as in `compare`.

    Returns
    -------
    A labelled dataset: exponents, leap and size of every stage, directions as vectors, sizes of the tensors with their
    errors, powers of d for every protocol, and what was measured. Stages by any function of the label have the prefix
    ``generative_``, those that the student sees ``student_``. `twolayer.summary` writes it as a page; the attribute
    ``answer`` holds everything as JSON, with the certificates of zero. `twolayer.learnability.analyse` gives the same
    analysis as an object.

    Examples
    --------
    >>> import twolayer as tl
    >>> result = tl.learn("z1 + z1*z2")
    >>> int(result.information_exponent), int(result.leap), result.direction.values.tolist()
    (1, 1, ['z1', 'z2'])
    """
    if student is not None and not isinstance(student, Student):
        student = Student(1, as_activation(student))
    asked = Asked(
        target,
        student,
        count("d", low=2, high=10**12, optional=True)(d),
        P,
        number("noise", low=0.0)(noise),
        number("learning_rate", above=0.0, optional=True)(learning_rate),
        flag("spherical")(spherical),
        flag("verify")(verify),
        count("seed", low=0, high=2**31 - 1)(seed),
        count("largest", optional=True)(largest),
        None if loss is None else as_loss(loss),
    )
    tell = progress if callable(progress) else None
    with double():
        return label_learned(analysed(asked, tell, checkpoint), asked.question, asked.seed)


def analysed(
    asked: Asked, progress: Progress | None = None, checkpoint: str | Path | Checkpoint | None = None
) -> Learned:
    """The analysis, the time scale and the checks as objects."""
    if asked.d is not None and asked.student is None:
        raise InvalidInput("Argument `d` asks for the time of one student, but `student` is not given.")
    if asked.loss is not None and not isinstance(asked.loss, Square) and (asked.d is not None or asked.verify):
        name = "d" if asked.d is not None else "verify"
        raise InvalidInput(f"Argument `{name}` asks for times or runs of the square loss, but `loss` is {asked.loss}.")
    analysis = _analysis(asked)
    scale = _plateau(asked, analysis)
    checks = None
    if asked.verify:
        folder = Checkpoint.of(checkpoint)
        checks = run_checks(analysis, asked.seed, progress or nobody, asked.largest, folder)
        if folder is not None and not folder.is_part:
            folder.remove()
    return Learned(analysis, asked.d, scale, checks)


def _analysis(asked: Asked) -> Learnability:
    """The analysis of what the gradient of the loss sees of the target, with the generative exponent of the label."""
    whole = analyse(asked.target, asked.P, asked.student)
    seen = whole.target if asked.loss is None else seen_by_gradient(whole.target, asked.loss, asked.noise)
    if seen is whole.target:
        return whole
    P = whole.root @ whole.root.T
    text = f"{whole.text}, as the slope of {asked.loss} shows it"
    return replace(analyse(seen, P, asked.student), text=text, generative=whole.generative)


def of_analysis(analysis: Learnability) -> "xr.Dataset":
    """Convert an analysis to the dataset that `learn` returns, without a time scale and without checks."""
    student = None if analysis.seen is None else analysis.seen.student
    asked = Asked(analysis.target, student, P=analysis.root @ analysis.root.T)
    return label_learned(Learned(analysis, None, None, None), asked.question, asked.seed)


def _plateau(asked: Asked, analysis: Learnability) -> Plateau | None:
    """When the student leaves the plateau of a random start, where that was asked."""
    if asked.d is None or asked.student is None:
        return None
    P = asked.P
    if P is not None and not np.allclose(np.asarray(analysis.target.target_overlaps), np.asarray(P)):
        raise InvalidInput("Argument `d` asks for a time, which is known for the target's own P alone.")
    with double():
        problem = Problem(analysis.target, asked.student, Gaussian(asked.d), noise=asked.noise)
        return plateau(problem, asked.learning_rate, asked.spherical)
