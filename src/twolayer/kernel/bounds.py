r"""Targets that overparametrised relu networks provably learn, with bounds on :math:`\sqrt{y^\top (H^\infty)^{-1} y}`.

For unit inputs and a target :math:`y = \sum_j \alpha_j (\beta_j \cdot x)^{q_j}` with every :math:`q_j` one or even,

.. math:: \sqrt{y^\top (H^\infty)^{-1} y} \le 3 \sum_j q_j |\alpha_j|\,\|\beta_j\|^{q_j}

The kernel has the series :math:`\sum_q c_q \rho^q` with :math:`c_1 = \frac14` and, for even powers, the coefficients of
:math:`\rho\arcsin(\rho)/2\pi`; all others vanish. So y is a linear function of the tensors
:math:`\sqrt{c_q}\,x^{\otimes q}`, whose coefficients bound it in turn, and more sharply:

.. math:: \sqrt{y^\top (H^\infty)^{-1} y} \le \Big(\sum_q \frac{1}{c_q} \|T_q\|^2\Big)^{1/2}, \qquad
          \|T_q\|^2 = \sum_{jl:\,q_j = q_l = q} \alpha_j \alpha_l\,(\beta_j \cdot \beta_l)^q

For a single power the constants are 2, 2.507, 6.140, 9.153 at q = 1, 2, 4, 6 instead of 3, 6, 12, 18.
"""

import ast
import itertools
import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.multivariate import Polynomial
from twolayer.core.types import Number, NumbersLike
from twolayer.kernel.taylor_series import direction, taylor
from twolayer.problem.expression import Expression
from twolayer.specification.fields import array, leaf, number
from twolayer.specification.registry import register

# The series of a cosine ends where its terms are below this fraction of the bound.
NEGLIGIBLE = 1e-17
# A cosine of a longer vector would need powers whose coefficients overflow.
LONGEST = 100.0


def series_coefficient(q: int) -> float:
    r"""The coefficient :math:`c_q` of :math:`\rho^q` in :math:`\rho(\pi - \arccos\rho)/2\pi`, zero where there is none.

    .. math:: c_1 = \tfrac14, \qquad c_{2l} = \frac{1}{2\pi}\,\frac{(2l-3)!!}{(2l-2)!!\,(2l-1)}
    """
    if q == 1:
        return 0.25
    if q < 2 or q % 2:
        return 0.0
    # (2l - 3)!! / (2l - 2)!! is the central binomial coefficient of l - 1 over 4^(l - 1).
    l = q // 2
    ratio = math.exp(math.lgamma(2 * l - 1) - 2.0 * math.lgamma(l) - (l - 1) * math.log(4.0))
    return ratio / (2.0 * math.pi * (2 * l - 1))


def _as_powers(value: Any) -> np.ndarray:
    return np.asarray(array("powers", 1)(value), dtype=int)


@register
class PowerSum(eqx.Module):
    r"""A target :math:`\sum_j \alpha_j (\beta_j \cdot x)^{q_j}`, with powers one or even.

    Linear terms are added up, and quadratic ones to a symmetric matrix that is split along its eigenvectors: no other
    way of writing them gives a smaller sum of :math:`|\alpha|\,\|\beta\|^2` (the nuclear norm). ``rest`` bounds the sum
    of :math:`q\,|\alpha|\,\|\beta\|^q` over the terms of a series that are left out; both bounds contain it.
    """

    alphas: np.ndarray = leaf(array("alphas", 1))
    betas: np.ndarray = leaf(array("betas", 2))
    powers: np.ndarray = leaf(_as_powers)
    rest: Number = leaf(number("rest", low=0.0), default=0.0)

    def __call__(self, X: Any) -> np.ndarray:
        """The target at each row of X."""
        fields = array("X", 2)(X) @ self.betas.T
        return (fields ** self.powers[None, :]) @ self.alphas

    @property
    def bound(self) -> float:
        r"""The bound of the paper, :math:`3 \sum_j q_j |\alpha_j|\,\|\beta_j\|^{q_j}`."""
        lengths = np.linalg.norm(self.betas, axis=1)
        return float(3.0 * np.sum(self.powers * np.abs(self.alphas) * lengths**self.powers)) + 3.0 * float(self.rest)

    @property
    def sharp_bound(self) -> float:
        """The bound from the tensors of the target, which is never above that of the paper."""
        total = 0.0
        for q in np.unique(self.powers):
            chosen = self.powers == q
            products = (self.betas[chosen] @ self.betas[chosen].T) ** q
            total += max(float(self.alphas[chosen] @ products @ self.alphas[chosen]), 0.0) / series_coefficient(int(q))
        return math.sqrt(total) + 3.0 * float(self.rest)


def power_sum(terms: Iterable[tuple[float | int, NumbersLike, int]], rest: float | int = 0.0) -> PowerSum:
    r"""A target from terms :math:`(\alpha, \beta, q)`; raises for constants and for odd powers of three and more.

    ``rest`` bounds the sum of :math:`q\,|\alpha|\,\|\beta\|^q` over the terms of a series that are left out.
    """
    if not (terms := list(terms)):
        raise InvalidInput("Argument `terms` must hold at least one term (alpha, beta, power).")
    linear: Any = 0.0
    quadratic: Any = 0.0
    others: list[tuple[float, np.ndarray, int]] = []
    d = None
    for alpha, beta, q in terms:
        beta = array("beta", 1)(beta)
        d = beta.size if d is None else d
        if beta.size != d:
            raise InvalidInput(f"Argument `beta` must have {d} entries in every term, but has {beta.size} in one.")
        check_power(q)
        if q == 1:
            linear = linear + alpha * beta
        elif q == 2:
            quadratic = quadratic + alpha * np.outer(beta, beta)
        else:
            others.append((float(alpha), beta, int(q)))
    if np.ndim(linear):
        others.append((1.0, np.asarray(linear), 1))
    if np.ndim(quadratic):
        values, vectors = np.linalg.eigh(quadratic)
        kept = np.abs(values) > 1e-15 * np.max(np.abs(values), initial=0.0)
        others += [(float(value), vector, 2) for value, vector in zip(values[kept], vectors.T[kept], strict=True)]
    others.sort(key=lambda term: term[2])
    if not others:  # quadratic terms that cancel
        others = [(0.0, np.zeros(d or 1), 1)]
    alphas, betas, powers = zip(*others, strict=True)
    return PowerSum(np.array(alphas), np.stack(betas), np.array(powers), rest)


def check_power(q: float | int) -> None:
    """Raise `InvalidInput` for powers that the theorem does not cover."""
    if int(q) == q and (q == 1 or (q >= 2 and q % 2 == 0)):
        return
    if q == 0:
        reason = "a constant has no part in the kernel, but is a multiple of |x|^2 for unit inputs"
    elif int(q) == q and q > 0:
        reason = "odd powers from three on have no part in the kernel"
    else:
        reason = "it is neither"
    raise InvalidInput(f"Powers must be 1 or even and positive for a bound, but one is {q}: {reason}.")


def linear(beta: NumbersLike) -> PowerSum:
    r"""The target :math:`\beta \cdot x`, with the bound :math:`3\|\beta\|`."""
    return power_sum([(1.0, beta, 1)])


def quadratic(A: NumbersLike) -> PowerSum:
    r"""The target :math:`x^\top A x`, with the bound :math:`6\|A\|_*` (nuclear norm)."""
    A = array("A", 2)(A)
    if A.shape[0] != A.shape[1]:
        raise InvalidInput(f"Argument `A` must be a square matrix, but has shape {A.shape}.")
    values, vectors = np.linalg.eigh(0.5 * (A + A.T))
    return power_sum([(value, vector, 2) for value, vector in zip(values, vectors.T, strict=True)])


def cosine(beta: NumbersLike, alpha: float | int = 1.0) -> PowerSum:
    r"""The target :math:`\alpha(\cos(\beta \cdot x) - 1)`, with the bound :math:`3\|\beta\|\sinh\|\beta\|` at one."""
    return power_sum(_cosine_terms(float(alpha), array("beta", 1)(beta)))


def _cosine_terms(alpha: float, beta: np.ndarray) -> list[tuple[float, np.ndarray, int]]:
    """The series in even powers of a unit vector, up to terms that change no digit."""
    length = float(np.linalg.norm(beta))
    if length > LONGEST:
        raise InvalidInput(
            f"A cosine must have a vector of length {LONGEST:g} at most for a bound, but it is {length:g}."
        )
    if length == 0.0:
        return [(0.0, beta, 2)]
    terms, largest = [], 0.0
    for j in itertools.count(1):
        size = math.exp(2 * j * math.log(length) - math.lgamma(2 * j + 1))
        terms.append((alpha * (-1.0) ** j * size, beta / length, 2 * j))
        largest = max(largest, j * size)
        if j * size < NEGLIGIBLE * largest and 2 * j > length:
            return terms
    raise AssertionError("The series of a cosine ends.")


def from_expression(text: str, directions: NumbersLike) -> PowerSum:
    r"""A target from a formula in the fields :math:`z_r = \beta_r \cdot x`, such as ``"z1 + 0.5*z1*z2 + cos(z2) - 1"``.

    Parameters
    ----------
    text
        A sum of polynomials in the fields and of functions of one linear form each, such as ``cos(z1 - z2)``,
        ``exp(-z1**2)`` or ``log(1 + z2**2/2)``, which enter by their Taylor series with a bound on the rest. It is
        parsed, never evaluated as Python.
    directions
        The vectors :math:`\beta_r`, one per row.

    Returns
    -------
    The expansion in powers of linear forms. A product of several fields is a sum of powers by polarisation,

    .. math:: z_1^{a_1} \cdots z_k^{a_k} = \frac{1}{2^q q!} \sum_\nu (-1)^{|\nu|} \prod_i \binom{a_i}{\nu_i}
              \Big(\sum_i (a_i - 2\nu_i) z_i\Big)^q, \qquad q = \sum_i a_i

    A constant is a multiple of :math:`\|x\|^2 = 1`, a quadratic form. Odd powers of three and more raise
    `InvalidInput`, and so does a series at a vector so long that :math:`\sum_q q\,|\alpha_q|\,\|\beta\|^q` diverges:
    the promise ends at its radius of convergence, one for ``log(1 + z1**2)`` and ``1/(1 + z1**2)``, while
    ``exp(-z1**2)`` has no end.
    """
    B = array("directions", 2)(directions)
    formula = Expression(text)
    k = len(B)
    if formula.fields > k:
        raise InvalidInput(f"The formula {shown(text)} has {formula.fields} fields, but `directions` has {k} rows.")
    polynomial, cosines, others = _take_apart(ast.parse(text.strip(), mode="eval").body, k, 1.0)
    terms: list[tuple[float, np.ndarray, int]] = []
    for alpha, form in cosines:
        terms += _cosine_terms(alpha, form @ B)
    constant = sum(alpha for alpha, _ in cosines)
    series, rest = _series_terms(others, B)
    size = 1.0 + sum(abs(alpha) for alpha, _ in cosines) + sum(abs(alpha) for alpha, _, _ in series)
    for exponents, coefficient in polynomial.terms.items():
        q = sum(exponents)
        if q == 0:
            constant += coefficient
        elif coefficient != 0.0:
            check_power(q)
            terms += [(coefficient * alpha, form @ B, q) for alpha, form in _polarised(exponents)]
    constant += sum(alpha for alpha, _, q in series if q == 0)
    terms += [term for term in series if term[2] > 0]
    if abs(constant) > 1e-12 * size:
        terms += [(constant, axis, 2) for axis in np.eye(B.shape[1])]
    return power_sum(terms or [(0.0, np.zeros(B.shape[1]), 2)], rest)


def _series_terms(
    parts: list[tuple[float, ast.expr]], B: np.ndarray
) -> tuple[list[tuple[float, np.ndarray, int]], float]:
    """Terms of the Taylor series of all parts, those of one direction added up, and what they leave out."""
    along: list[tuple[np.ndarray, np.ndarray]] = []
    rest = 0.0
    for factor, node in parts:
        form = direction(node, len(B))
        beta = form @ B
        length = float(np.linalg.norm(beta))
        coefficients, left = taylor(node, form, length)
        coefficients, unit, rest = factor * coefficients, beta / (length or 1.0), rest + abs(factor) * left
        for place, (other, before) in enumerate(along):
            cosine = float(other @ unit)
            if abs(cosine) > 1.0 - 1e-12:
                longer = np.zeros(max(len(before), len(coefficients)))
                longer[: len(before)] += before
                longer[: len(coefficients)] += coefficients * np.sign(cosine) ** np.arange(len(coefficients))
                along[place] = (other, longer)
                break
        else:
            along.append((unit, coefficients))
    terms = []
    for unit, coefficients in along:
        kept = np.abs(coefficients) > 1e-15 * np.sum(np.abs(coefficients))
        for q in np.flatnonzero(kept):
            if q > 0:
                check_power(int(q))
            terms.append((float(coefficients[q]), unit, int(q)))
        weights = np.arange(len(coefficients)) * np.abs(coefficients)
        rest += float(np.sum(weights[~kept]))
    return terms, rest


def _take_apart(
    node: ast.expr, k: int, factor: float
) -> tuple[Polynomial, list[tuple[float, np.ndarray]], list[tuple[float, ast.expr]]]:
    """A sum as its polynomial part, its cosines of linear forms and all other parts, with their factors."""
    whole = Expression(ast.unparse(node)).polynomial(k)
    if whole is not None:
        return whole * factor, [], []
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            first = _take_apart(left, k, factor)
            second = _take_apart(right, k, factor if isinstance(op, ast.Add) else -factor)
            return first[0] + second[0], first[1] + second[1], first[2] + second[2]
        case ast.UnaryOp(op, operand):
            return _take_apart(operand, k, -factor if isinstance(op, ast.USub) else factor)
        case ast.BinOp(left, ast.Mult(), right):
            for scale, rest in ((left, right), (right, left)):
                value = _number(scale, k)
                if value is not None:
                    return _take_apart(rest, k, factor * value)
        case ast.BinOp(left, ast.Div(), right):
            value = _number(right, k)
            if value:
                return _take_apart(left, k, factor / value)
        case ast.Call(ast.Name("cos"), [argument]):
            inner = Expression(ast.unparse(argument)).polynomial(k)
            if inner is not None and all(sum(exponents) == 1 for exponents, c in inner.terms.items() if c != 0.0):
                form = np.zeros(k)
                for exponents, coefficient in inner.terms.items():
                    form += coefficient * np.asarray(exponents, dtype=float)
                return Polynomial(k, {}), [(factor, form)], []
    return Polynomial(k, {}), [], [(factor, node)]


def _number(node: ast.expr, k: int) -> float | None:
    polynomial = Expression(ast.unparse(node)).polynomial(k)
    if polynomial is None or polynomial.degree > 0:
        return None
    return float(sum(polynomial.terms.values()))


def _polarised(exponents: tuple[int, ...]) -> list[tuple[float, np.ndarray]]:
    """A product of powers of the fields as powers of linear forms; a form and its negative are merged."""
    q = sum(exponents)
    if max(exponents) == q:
        return [(1.0, (np.asarray(exponents) > 0).astype(float))]
    weights: dict[tuple[int, ...], float] = {}
    for nu in itertools.product(*(range(a + 1) for a in exponents)):
        form = tuple(a - 2 * i for a, i in zip(exponents, nu, strict=True))
        weight = (-1.0) ** sum(nu) * math.prod(math.comb(a, i) for a, i in zip(exponents, nu, strict=True))
        mirrored = max(form, tuple(-f for f in form))
        weights[mirrored] = weights.get(mirrored, 0.0) + weight * (1.0 if mirrored == form else (-1.0) ** q)
    scale = 2.0**q * math.factorial(q)
    return [(weight / scale, np.array(form, dtype=float)) for form, weight in weights.items() if any(form) and weight]
