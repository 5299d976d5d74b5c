"""The verb that writes the equations of motion as formulas."""

import equinox as eqx

from twolayer.ask import Training
from twolayer.core.errors import NotApplicable, takes_these
from twolayer.problem import Problem
from twolayer.specification.codec import to_json
from twolayer.specification.fields import flag, instance
from twolayer.theory.symbolic import Equations
from twolayer.theory.symbolic import derive as derive_equations
from twolayer.training import SGD, Schedule


@takes_these
def derive(problem: Problem, training: Training, *, symbolic_p: bool = False, general: bool = False) -> Equations:
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

    Returns
    -------
    Sympy expressions ``dQ``, ``dM``, ``da``, ``risk``; ``text()``, ``latex()``, and ``lambdify()`` for numbers.

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
    method = _one_method(training)
    return derive_equations(problem, method, flag("symbolic_p")(symbolic_p), flag("general")(general))


def _one_method(training: Training) -> SGD:
    """The method whose equations hold in all phases: the learning rate, which may change, is a symbol in them."""
    if isinstance(training, SGD):
        return training
    first = training.phases[0]
    at_one_rate = {
        to_json(eqx.tree_at(lambda method: method.learning_rate, phase, first.learning_rate))
        for phase in training.phases
    }
    if len(at_one_rate) > 1:
        raise NotApplicable(
            "Argument `training` must be one method, or a Schedule whose phases differ in the learning rate alone, but "
            "its phases differ in more: derive the equations of each phase, as in "
            "`derive(problem, training.phases[0])`."
        )
    return first
