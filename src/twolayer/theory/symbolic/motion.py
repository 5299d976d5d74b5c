r"""The closed equations of motion as formulas, for polynomial students on polynomial targets."""

from fractions import Fraction
from typing import Any

import numpy as np

from twolayer.core.algebra import as_fraction
from twolayer.core.errors import NotApplicable
from twolayer.core.multivariate import Polynomial, TooLarge, from_coefficients
from twolayer.expectation.wick import FieldPolynomial, Wick, slope
from twolayer.problem import Correlation, GivenOverlaps, Problem, RandomStart, WarmStart
from twolayer.problem.expression import Expression
from twolayer.specification.fields import is_traced
from twolayer.theory.saad_solla import SaadSolla
from twolayer.theory.symbolic.equations import Equations, KnownValues
from twolayer.theory.symbolic.indexed import IndexForm, OverlapRing
from twolayer.theory.symbolic.writing import written_equations
from twolayer.training import SGD, Both

# The most terms of an equation in its index form, and of all equations written out; more would take minutes.
MAX_TERMS = 3_000
MAX_WRITTEN = 100_000

Terms = dict[tuple[int, ...], Fraction]


def derive_motion(problem: Problem, training: SGD, symbolic_p: bool = False, general: bool = False) -> Equations:
    r"""The equations of `twolayer.theory.saad_solla.drift` and the risk as sympy expressions.

    With :math:`v_{ju} = E[\sigma'(\lambda_j)\,\ell_u\,\mathcal E]` from Stein's lemma, which takes one field less,

    .. math::
        v_{ju} = \Big(E[\sigma''_j f] - \frac1p \sum_m a_m E[\sigma''_j \sigma_m]\Big) \Omega_{ju}
        - \frac1p \sum_m a_m E[\sigma'_j \sigma'_m]\,\Omega_{mu} + \sum_s E[\sigma'_j\,\partial_s f]\,\Omega_{su}

    .. math::
        \varphi^{HD}_{jl} = E[\sigma'_j \sigma'_l f^2] - \frac2p \sum_m a_m E[\sigma'_j \sigma'_l \sigma_m f]
        + \frac1{p^2} \sum_{mn} a_m a_n E[\sigma'_j \sigma'_l \sigma_m \sigma_n] + \Delta\,E[\sigma'_j \sigma'_l]

    .. math::
        \chi_j = E[\sigma_j f] - \frac1p \sum_m a_m E[\sigma_j \sigma_m], \qquad
        \mathcal R = \frac12 E[f^2] - \frac1p \sum_m a_m E[\sigma_m f]
        + \frac1{2p^2} \sum_{mn} a_m a_n E[\sigma_m \sigma_n] + \frac\Delta2

    every average is a polynomial in the overlaps (`Wick`), the same one for every choice of units.

    Parameters
    ----------
    problem, training
        The problem and its training. The learning rate, the noise, the ratio of the layers' rates and a weight decay
        stay symbols, whatever their values.
    symbolic_p
        Whether the width stays a symbol, too; the equations are then those of units j and l, with sums over units.
    general
        Whether P, a frozen second layer and the lengths of rows on the sphere stay symbols even where they are the
        identity, ones, and one.

    Returns
    -------
    The equations, which can be printed, and whose parts are fields.

    Notes
    -----
    Assumes what `SaadSolla` does. Checked against: `drift` with exact engines and with Gauss-Hermite rules at random
    overlaps; the closed form of phase retrieval at p = 1 on the sphere; the matrix form for squares.

    References
    ----------
    :cite:t:`saad1995`; squares at any p: :cite:t:`arnaboldi2023escaping`.
    """
    SaadSolla().require(problem, training)
    if not problem.is_quadratic:
        raise NotApplicable(
            "The equations are written for the square or the correlation loss with additive noise, but `problem.loss` "
            f"is {problem.loss} and `problem.noise` is {problem.noise}."
        )
    if not problem.is_isotropic:
        raise NotApplicable(
            "The equations are written for training on inputs with the covariance I, "
            "but `problem.inputs` has a spectrum: see `evolve`."
        )
    if not training.is_fresh:
        raise NotApplicable(
            f"The equations are written for samples that are used once, but `training.reuse` is {training.reuse}."
        )
    if training.moves_by_signs:
        raise NotApplicable(
            f"The equations are written for averages that have closed forms, but the method is {training.method}, "
            "whose averages of signs `SaadSolla` takes over clouds of samples."
        )
    if training.has_momentum:
        raise NotApplicable(
            f"The equations are written for SGD without momentum, but the method is {training.method}: `SaadSolla` "
            "multiplies the moves by its gain, 1/(1 - beta)."
        )
    sigma, f = student_polynomial(problem), target_polynomial(problem)
    given = _given(problem, training, general)
    ring = OverlapRing(problem.k, given.has_unit_rows, given.has_unit_weights, given.is_orthonormal)
    try:
        form = _index_form(ring, _exact(sigma), _exact(f), problem, training)
    except TooLarge:
        raise _too_large("one of its averages alone") from None
    terms = len(form.dQ)
    if symbolic_p and terms > MAX_TERMS:
        raise _too_large(f"{terms} terms for Q[j, l], where {MAX_TERMS} are the most")
    if not symbolic_p and (size := _written_size(ring, form, problem.p)) > MAX_WRITTEN:
        remedy = "; keep the width as a symbol (`symbolic_p`, `--symbolic-p`)" if terms <= MAX_TERMS else ""
        raise _too_large(f"{size} terms at p = {problem.p}, where {MAX_WRITTEN} are the most{remedy}")
    return written_equations(ring, form, given, None if symbolic_p else problem.p, sigma, f)


def _written_size(ring: OverlapRing, form: IndexForm, p: int) -> int:
    """The number of terms of all entries of dQ and dM, before like terms are merged."""
    return p * (p + 1) // 2 * ring.size(form.dQ, p) + p * sum(ring.size(rate, p) for rate in form.dM)


def _too_large(reason: str) -> NotApplicable:
    return NotApplicable(f"`derive` writes formulas that can be read, but these are too long: {reason}.")


def _index_form(ring: OverlapRing, sigma: Terms, f: Terms, problem: Problem, training: SGD) -> IndexForm:
    """The equations for units j and l."""
    fields = tuple(range(1, problem.k + 1))
    target = FieldPolynomial(fields, f)
    squared = FieldPolynomial(fields, _squared(f))
    half = Fraction(1, 2)

    def unit(letter: str, order: int) -> FieldPolynomial:
        factor = FieldPolynomial((letter,), sigma)
        for _ in range(order):
            factor = slope(factor, 0)
        return factor

    wick = Wick(ring.covariance, MAX_WRITTEN)

    def E(*factors: FieldPolynomial) -> Any:
        return ring.ring(wick.average(*factors))

    C = ring.covariance
    gamma, Delta, kappa, decay, p, per_p = (
        ring(name) for name in ("gamma", "Delta", "kappa", "weight_decay", "p", "1/p")
    )
    a_j, a_l, a_m, a_n = (ring("a", letter) for letter in "jlmn")
    # The weight of a unit in the displacement, which the correlation loss leaves out.
    own = ring.ring.zero if isinstance(problem.loss, Correlation) else per_p * a_m

    s_m, s_n = unit("m", 0), unit("n", 0)
    slope_j, slope_l = unit("j", 1), unit("l", 1)
    curvature = E(unit("j", 2), target) - own * E(unit("j", 2), s_m)
    slopes = E(slope_j, unit("m", 1))
    along = {s: E(slope_j, slope(target, s - 1)) for s in fields}

    def v_j(u: Any) -> Any:
        student = curvature * C("j", u) - own * slopes * C("m", u)
        return student + sum((along[s] * C(s, u) for s in fields), ring.ring.zero)

    phi_hd = (
        E(slope_j, slope_l, squared)
        - 2 * own * E(slope_j, slope_l, s_m, target)
        + own * per_p * a_n * E(slope_j, slope_l, s_m, s_n)
        + Delta * E(slope_j, slope_l)
    )
    is_decaying = is_traced(training.weight_decay) or float(training.weight_decay) != 0.0
    shrink = p * decay if is_decaying else ring.ring.zero

    dM = [a_j * v_j(r) - shrink * C("j", r) for r in fields]
    pull = a_j * v_j("l")
    dQ = pull + ring.renamed(pull, {"j": "l", "l": "j"}) + gamma * per_p * a_j * a_l * phi_hd
    dQ = dQ - 2 * shrink * C("j", "l")
    if training.is_spherical:
        growth_j, growth_l = (
            ring.renamed(dQ, {"j": letter, "l": letter}) * ring("1/Q", letter) for letter in ("j", "l")
        )
        dM = [rate - half * C("j", r) * growth_j for r, rate in zip(fields, dM, strict=True)]
        dQ = dQ - half * C("j", "l") * (growth_j + growth_l)

    chi = E(unit("j", 0), target) - own * E(unit("j", 0), s_m)
    da = kappa * chi if isinstance(training.layers, Both) else ring.ring.zero
    excess_risk = half * (E(squared) - 2 * per_p * a_m * E(s_m, target) + per_p**2 * a_m * a_n * E(s_m, s_n))
    return IndexForm(dQ, dM, da, excess_risk)


# ------------------------------------------------------------------------------------ what the problem gives


def _exact(polynomial: Polynomial) -> Terms:
    return {exponents: as_fraction(coefficient) for exponents, coefficient in polynomial.terms.items()}


def _squared(terms: Terms) -> Terms:
    total: Terms = {}
    for e1, c1 in terms.items():
        for e2, c2 in terms.items():
            exponents = tuple(n1 + n2 for n1, n2 in zip(e1, e2, strict=True))
            total[exponents] = total.get(exponents, Fraction(0)) + c1 * c2
    return total


def student_polynomial(problem: Problem) -> Polynomial:
    """The student's activation as a polynomial; raises `NotApplicable` where it is none."""
    coefficients = problem.student.activation.coefficients
    if coefficients is None:
        raise NotApplicable(
            "`derive` needs polynomials, but the student's activation is "
            f"{problem.student.activation}: `linear`, `square` and `he2`, `he3`, ... are polynomials."
        )
    return from_coefficients(coefficients)


def target_polynomial(problem: Problem) -> Polynomial:
    """The target as a polynomial; raises `NotApplicable` where it is none."""
    polynomial = problem.target.polynomial
    if polynomial is not None:
        return polynomial
    parts = [getattr(problem.target, name, None) for name in ("function", "link", "activation")]
    inner = next((part for part in parts if part is not None), problem.target)
    if isinstance(inner, Expression):
        raise NotApplicable(
            f"`derive` needs polynomials, but the target contains {inner.obstacle(problem.k)!r} in {inner.text!r}."
        )
    raise NotApplicable(
        f"`derive` needs polynomials, but the target is {inner}: use a polynomial activation, or write a formula such "
        "as 'z1 + z1*z2'."
    )


def _given(problem: Problem, training: SGD, general: bool) -> KnownValues:
    second_layer = problem.student.second_layer
    is_frozen = not isinstance(training.layers, Both)
    if isinstance(second_layer, str):
        a = np.ones(problem.p) if second_layer == "ones" else None
    else:
        a = second_layer
    has_ones = a is not None and not is_traced(a) and bool(np.all(np.asarray(a) == 1.0))
    has_identity = not is_traced(problem.P) and bool(np.array_equal(np.asarray(problem.P), np.eye(problem.k)))
    return KnownValues(
        P=problem.P,
        a=a,
        gamma=training.learning_rate,
        Delta=problem.noise,
        kappa=training.layer_ratio,
        weight_decay=training.weight_decay,
        is_spherical=training.is_spherical,
        trains_second_layer=not is_frozen,
        has_unit_rows=training.is_spherical and _starts_on_unit_sphere(problem) and not general,
        has_unit_weights=is_frozen and has_ones and not general,
        is_orthonormal=has_identity and not general,
    )


def _starts_on_unit_sphere(problem: Problem) -> bool:
    match problem.start:
        case RandomStart(law="sphere", norm=norm) | WarmStart(norm=norm):
            return not is_traced(norm) and float(norm) == 1.0
        case GivenOverlaps(Q=Q):
            return not is_traced(Q) and bool(np.all(np.abs(np.diagonal(np.asarray(Q)) - 1.0) <= 1e-12))
    return False
