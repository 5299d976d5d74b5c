"""The verb that writes the equations of motion as formulas."""

from twolayer.core.errors import takes_these
from twolayer.problem import Problem
from twolayer.specification.fields import flag, instance
from twolayer.theory.symbolic import Equations
from twolayer.theory.symbolic import derive as derive_equations
from twolayer.training import SGD


@takes_these
def derive(problem: Problem, training: SGD, *, symbolic_p: bool = False, general: bool = False) -> Equations:
    r"""The closed equations of motion of a polynomial student on a polynomial target, as formulas.

    .. math:: \dot M = \Psi^{(M)}, \qquad \dot Q = \Psi^{(GF)} + \frac{\gamma}{p} \Psi^{(Var)}, \qquad
              \dot a = \kappa \chi

    with every Gaussian average worked out: polynomials in the overlaps. Also on the sphere, with weight decay and label
    noise.

    Parameters
    ----------
    problem, training
        What is learned, and how. The learning rate, the noise, the ratio of the layers' rates and a weight decay stay
        symbols, whatever their values; so do P and the second layer, unless they are the identity and frozen ones.
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
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    return derive_equations(problem, training, flag("symbolic_p")(symbolic_p), flag("general")(general))
