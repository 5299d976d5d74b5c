"""The verb that writes the equations of motion as formulas."""

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np

from twolayer.ask import Training
from twolayer.core.errors import NotApplicable, takes_these
from twolayer.core.precision import double
from twolayer.core.text import Text
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.problem import Problem
from twolayer.specification.codec import to_json
from twolayer.specification.fields import flag, instance
from twolayer.theory.symbolic import Equations, derive_motion
from twolayer.training import SGD, Schedule
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr

EQUATIONS = add_kind(
    Schema(
        kind="equations",
        variables={
            "text": Variable(("equation",), "equation as a line of text"),
            "latex": Variable(("equation",), "equation as LaTeX"),
        },
        coordinates={"equation": Variable(("equation",), "left side of an equation")},
        attributes=("report", "answer"),
        summary=lambda dataset: Text(dataset.attrs["report"]),
    )
)


@dataclass(frozen=True, repr=False)
class Derivation(Equations):
    """The equations of one problem and training; `twolayer.save` and `twolayer.summary` take them like any result."""

    question: Question = field(kw_only=True)

    def to_dataset(self) -> "xr.Dataset":
        """The equations as text and as LaTeX in a labelled dataset; the expressions themselves are not kept."""
        equations = self.equations()
        values = {
            "text": np.array([equation.text for equation in equations]),
            "latex": np.array([equation.latex for equation in equations]),
        }
        attributes = {"report": self.text(), "answer": json.dumps(self.to_dict())}
        coordinates = {"equation": np.array([equation.left for equation in equations])}
        with double():
            return label(EQUATIONS, values, coordinates, attributes | provenance(self.question, seed=0))


@takes_these
@shows_progress
def derive(
    problem: Problem,
    training: Training,
    *,
    symbolic_p: bool = False,
    general: bool = False,
    progress: Progress | bool | None = None,
) -> Derivation:
    r"""The closed equations of motion of a polynomial student on a polynomial target, as formulas.

    .. math:: \dot M = \Psi^{(M)}, \qquad \dot Q = \Psi^{(GF)} + \frac{\gamma}{p} \Psi^{(Var)}, \qquad
              \dot a = \kappa \chi

    with every Gaussian average worked out: polynomials in the overlaps. Also on the sphere, with weight decay and label
    noise.

    Parameters
    ----------
    problem, training
        What is learned, and how. The learning rate, the noise, the ratio of the layers' rates and a weight decay stay
        symbols, whatever their values; so do P and the second layer, unless they are the identity and frozen ones. A
        `Schedule` of learning rates alone has the equations of its first phase; other phases have equations of their
        own, and are refused.
    symbolic_p
        Keep the width as a symbol: the equations of any two units j and l, with sums over units.
    general
        Keep P, a frozen second layer and the lengths of rows on the sphere as symbols in any case.
    progress
        Called with the name of what is done, and the fraction of it; as in `evolve`.

    Returns
    -------
    Sympy expressions ``dQ``, ``dM``, ``da``, ``risk``; ``text()``, ``latex()``, and ``lambdify()`` for numbers.
    `twolayer.save` keeps them as text and LaTeX.

    Examples
    --------
    >>> import twolayer as tl
    >>> problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000))
    >>> equations = tl.derive(problem, tl.SGD(0.1, constraint=tl.Sphere()))
    >>> print(equations.equations()[0].text)
    dM_11/dt = 2*M_11*(2*(1 - M_11**2)*(1 - 6*gamma) - Delta*gamma)
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    form = {"symbolic_p": flag("symbolic_p")(symbolic_p), "general": flag("general")(general)}
    tell = progress if callable(progress) else nobody
    tell("equations", 0.0)
    derived = derive_motion(problem, _one_method(training), **form)
    tell("equations", 1.0)
    question = Question("derive", {"problem": problem, "training": training} | form)
    return Derivation(**{part.name: getattr(derived, part.name) for part in fields(derived)}, question=question)


def _one_method(training: Training) -> SGD:
    """The method whose equations hold in all phases: the learning rate, which may change, is a symbol in them."""
    if isinstance(training, SGD):
        return training
    methods = training.methods
    at_one_rate = {
        to_json(eqx.tree_at(lambda method: method.learning_rate, phase, methods[0].learning_rate)) for phase in methods
    }
    if len(at_one_rate) != 1 or any(not isinstance(phase, SGD) for phase in training.phases):
        raise NotApplicable(
            "Argument `training` must be one method, or a Schedule whose phases differ in the learning rate alone, but "
            "its phases differ in more: derive the equations of each phase, as in "
            "`derive(problem, training.phases[0])`."
        )
    return methods[0]
