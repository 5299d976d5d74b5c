"""The verb that says what of a target can be learned, how fast, and in which order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twolayer.analyses.learnable.verification import Checks, check
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.learnability import Learnability, analyse
from twolayer.problem import Gaussian, Problem, Student
from twolayer.problem.activations import as_activation
from twolayer.specification.fields import count, flag, number
from twolayer.theory.formulas.plateau import Plateau, plateau
from twolayer.verbs.progress import Progress, shows_progress


@dataclass(frozen=True)
class Learned:
    """The answer of `learn`: the analysis, the time scale for a student in d dimensions, and the checks that were run.

    What the analysis holds can be asked of the answer itself, as in ``answer.leap``.
    """

    analysis: Learnability
    d: int | None
    plateau: Plateau | None
    checks: Checks | None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.analysis, name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self.analysis.to_dict() | {
            "d": self.d,
            "plateau": None if self.plateau is None else self.plateau.to_dict(),
            "verify": None if self.checks is None else self.checks.to_dict(),
        }

    def __str__(self) -> str:
        parts = [str(self.analysis)]
        if self.plateau is not None:
            parts.append(_in_numbers(self.plateau, self.d))
        if self.checks is not None:
            parts.append(str(self.checks))
        return "\n\n".join(parts)


def _in_numbers(found: Plateau, d: int | None) -> str:
    if found.exponent is None:
        return f"In d = {d}: the linearised ODE does not leave the plateau; only the powers of d above are known."
    if found.time is None:
        return (
            f"In d = {d}, learning rate {found.learning_rate:.4g}: the plateau is not left, "
            f"since the rate must be below {found.maximal_learning_rate:.4g}."
        )
    scale = (
        f"the overlaps grow from zero at the speed {found.speed:.4g}"
        if found.exponent == 1
        else f"the squared overlaps grow at the rate {found.growth_rate:.4g}"
    )
    most = "" if found.maximal_learning_rate is None else f" (at most {found.maximal_learning_rate:.4g})"
    return (
        f"In d = {d}, one sample a step, learning rate {found.learning_rate:.4g}{most}: {scale}; "
        f"overlap 1/2 after time {found.time:.4g}, {found.steps:.4g} steps (linearised ODE, mean over random starts)."
    )


@takes_these
@shows_progress
def learn(
    target: Any,
    student: Any = None,
    *,
    d: int | None = None,
    P: Any = None,
    noise: float | int = 0.0,
    learning_rate: float | int | None = None,
    spherical: bool = True,
    verify: bool = False,
    seed: Any = 0,
    largest: int | None = None,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> Learned:
    r"""What first-order methods find of a target, before any run: exponents, staircase, and what every protocol takes.

    The information exponent is the order of the first Hermite tensor :math:`C_r = E[\nabla^r f]` that is not zero. The
    subspace iteration gives the order in which directions are found: given those known, the lowest order r of
    :math:`E[f\,\mathbf{He}_r(z_\perp) \mid z_U]` that is not zero; the leap is the largest r met. The generative
    exponent and leap are the smallest over all functions of the label. Zero is decided by proof or by an error bar;
    where neither decides, the answer is None, and the report says at what size.

    Parameters
    ----------
    target
        A formula such as ``"he2(z1) + z1*z2"``, a target, or a name of `twolayer.learnability.named_targets`.
    student
        An activation or a `Student`: what it can see of the target is then said, too.
    d
        The input dimension: with a student, the growth rate and the time to leave the plateau of a random start.
    P
        The covariance of the target's fields, where it is not the target's own.
    noise, learning_rate, spherical
        Label noise, learning rate (the best one when None) and constraint for that time.
    verify
        Whether the predictions are run: giant steps by `BatchMap` and `DMFT`, escape times against d by `OverlapSGD`.
    seed, largest
        The seed of these runs, and the largest dimension.
    progress
        Called with the name of what is done, and the fraction of it; as in `evolve`.
    checkpoint
        A folder in which the runs of ``verify`` keep their places and results, as in `compare`.

    Examples
    --------
    >>> import twolayer as tl
    >>> answer = tl.learn("z1 + z1*z2")
    >>> answer.information_exponent, answer.leap, answer.giant_steps()
    (1, 1, [['z1'], ['z2']])
    """
    d = count("d", low=2, high=10**12, optional=True)(d)
    noise = number("noise", low=0.0)(noise)
    learning_rate = number("learning_rate", above=0.0, optional=True)(learning_rate)
    spherical, verify = flag("spherical")(spherical), flag("verify")(verify)
    seed = count("seed", low=0, high=2**31 - 1)(seed)
    if student is not None and not isinstance(student, Student):
        student = Student(1, as_activation(student))
    if d is not None and student is None:
        raise InvalidInput("Argument `d` asks for the time of one student, but `student` is not given.")
    analysis = analyse(target, P, student)
    scale = None
    if d is not None and student is not None:
        if P is not None and not np.allclose(np.asarray(analysis.target.target_overlaps), np.asarray(P)):
            raise InvalidInput("Argument `d` asks for a time, which is known for the target's own P alone.")
        with double():
            scale = plateau(Problem(analysis.target, student, Gaussian(d), noise=noise), learning_rate, spherical)
    checks = None
    if verify:
        folder = Checkpoint.of(checkpoint)
        checks = check(analysis, seed, progress, largest, folder)
        if folder is not None and not folder.is_part:
            folder.remove()
    return Learned(analysis, d, scale, checks)
