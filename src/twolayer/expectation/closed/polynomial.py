r"""Exact averages of polynomials of any degree, by Isserlis' theorem.

.. math:: E\Big[\prod_i x_i^{n_i}\Big] = \prod_i n_i! \sum_{N} \prod_{i<j} \frac{C_{ij}^{N_{ij}}}{N_{ij}!}
          \prod_i \frac{C_{ii}^{N_{ii}}}{2^{N_{ii}} N_{ii}!}, \qquad 2 N_{ii} + \sum_{j \ne i} N_{ij} = n_i

The sum is written out once, in Python, as a table of powers of the covariances; the table is then evaluated for all
tuples of units at once, so that neither tracing nor compilation grows with the width of the student.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.core.linalg import pair_positions
from twolayer.core.polynomial import Polynomial, from_coefficients
from twolayer.expectation.base import AbstractEngine, Suits, exact_combine
from twolayer.expectation.moments import Moments
from twolayer.problem import Overlaps, Problem

MAX_TERMS = 20_000
# Terms of high degree cancel: at degree six, the highest served, all but five digits of rounding are lost.
CANCELLATION = 2e-11


class Table(NamedTuple):
    """An average as a polynomial in the covariances of its fields: sum of coefficient x product of powers."""

    fields: int
    powers: np.ndarray  # (terms, pairs i <= j in the order of triu_indices)
    coefficients: np.ndarray

    def __call__(self, C: Float[Array, "n n"]) -> Float[Array, ""]:
        rows, columns = np.triu_indices(self.fields)
        highest = int(self.powers.max(initial=0))
        # Powers by repeated products: exact at zero covariance, and with finite derivatives there.
        ladder = jnp.cumprod(jnp.broadcast_to(C[rows, columns], (highest, len(rows))), axis=0)
        ladder = jnp.concatenate([jnp.ones((1, len(rows))), ladder])
        return jnp.asarray(self.coefficients) @ jnp.prod(ladder[self.powers, np.arange(len(rows))], axis=1)


def _pairings(exponents: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every way to pair up the factors of a monomial: powers of the covariances, and how often the way occurs."""
    fields = len(exponents)
    order = list(zip(*np.triu_indices(fields), strict=True))

    def place(index: int, left: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], float]]:
        if index == len(order):
            if not any(left):
                yield (), 1.0
            return
        i, j = order[index]
        room = left[i] // 2 if i == j else min(left[i], left[j])
        is_last = j == fields - 1  # the last chance to use up field i
        for number in range(room + 1):
            after = list(left)
            after[i] -= number
            after[j] -= number
            if is_last and after[i] != 0:
                continue
            weight = 1.0 / math.factorial(number) * (0.5**number if i == j else 1.0)
            for powers, rest in place(index + 1, tuple(after)):
                yield (number, *powers), weight * rest

    scale = math.prod(math.factorial(n) for n in exponents)
    for powers, weight in place(0, exponents):
        yield powers, scale * weight


@lru_cache(maxsize=1024)
def _table(fields: int, terms: tuple[tuple[tuple[int, ...], float], ...]) -> Table:
    total: dict[tuple[int, ...], float] = {}
    for exponents, coefficient in terms:
        if sum(exponents) % 2 == 0:
            for powers, weight in _pairings(exponents):
                total[powers] = total.get(powers, 0.0) + coefficient * weight
    kept = {powers: weight for powers, weight in total.items() if weight != 0.0}
    pairs = fields * (fields + 1) // 2
    return Table(fields, np.array([*kept], dtype=np.int64).reshape(len(kept), pairs), np.array([*kept.values()]))


def isserlis(polynomial: Polynomial) -> Table:
    """The average of a polynomial of centred Gaussian fields, as a table in their covariances."""
    return _table(polynomial.variables, tuple(sorted(polynomial.terms.items())))


def _derivative(polynomial: Polynomial, index: int) -> Polynomial:
    terms = {
        tuple(e - (i == index) for i, e in enumerate(exponents)): c * exponents[index]
        for exponents, c in polynomial.terms.items()
        if exponents[index] > 0
    }
    return Polynomial(polynomial.variables, terms)


class PolynomialTables(AbstractEngine):
    r"""Exact averages: the student's activation and the target are polynomials.

    The vector moments use Stein's lemma, :math:`v = b\,\Omega` with
    :math:`b_{ju} = E[\partial_{\ell_u}(\sigma'(\lambda_j)\,\mathcal E)]`, which needs no inverse and no extra field.
    """

    tables: dict[str, Any] = eqx.field(static=True)

    rtol: float = 0.0

    @classmethod
    def suits(cls, problem: Problem) -> Suits:
        coefficients, target = problem.student.activation.coefficients, problem.target.polynomial
        if coefficients is None:
            return Suits(False, f"the student is {problem.student.activation}, not a polynomial")
        if target is None:
            return Suits(False, "the target is not a polynomial")
        degree = len(coefficients) - 1
        if 4 * degree - 2 > 24 or 2 * (degree - 1) + 2 * target.degree > 24:
            return Suits(False, f"the degrees {degree} and {target.degree} give averages of degree above 24")
        largest = max(len(table.coefficients) for table in _make_tables(problem).values())
        if largest > MAX_TERMS:
            return Suits(False, f"the exact average has {largest} terms, more than {MAX_TERMS}")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem) -> "PolynomialTables":
        return cls(_make_tables(problem))

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (self,)

    def combine(self, results: tuple) -> Estimate:
        return exact_combine(results, CANCELLATION)

    def moments(self, problem: Problem, overlaps: Overlaps) -> Moments:
        p, k, omega = problem.p, problem.k, overlaps.omega
        c = overlaps.a * problem.student.scale
        star = np.arange(p, p + k)

        def average(name: str, *units: np.ndarray) -> Array:
            """The table ``name`` at every tuple of student units, followed by the target fields it touches."""
            table = self.tables[name]
            uses_target = table.fields > len(units)

            def at(*indices: Array | np.ndarray) -> Array:
                parts = [jnp.stack(indices)] if indices else []
                index = jnp.concatenate(parts + ([jnp.asarray(star)] if uses_target else []))
                return table(omega[index][:, index])

            return jax.vmap(at)(*units) if units else at()

        one = np.arange(p)
        first, second = (axis.ravel() for axis in np.meshgrid(one, one, indexing="ij"))
        rows, columns = np.triu_indices(p)
        position = pair_positions(p)
        pairs = len(rows)

        def symmetric(name: str) -> Array:
            return average(name, rows, columns)[position]

        f_s, s_s = average("f s", one), symmetric("s s")
        ds_ds = symmetric("ds ds")
        # b by Stein's lemma: student block and target block.
        curvature = average("f dds", one) - average("dds s", first, second).reshape(p, p) @ c
        b_student = jnp.diag(curvature) - ds_ds * c[None, :]
        b_target = jnp.stack([average(f"df{r} ds", one) for r in range(k)], axis=1)
        v = jnp.concatenate([b_student, b_target], axis=1) @ omega
        # phi_hd: the displacement squared, term by term, for each pair of slopes j <= l.
        with_f = average("ff ds ds", rows, columns)
        triple = average("f ds ds s", np.repeat(rows, p), np.repeat(columns, p), np.tile(one, pairs)).reshape(pairs, p)
        four = [np.repeat(rows, pairs), np.repeat(columns, pairs), np.tile(rows, pairs), np.tile(columns, pairs)]
        quadruple = average("ds ds s s", *four).reshape(pairs, pairs)
        multiplicity = np.where(rows == columns, 1.0, 2.0)
        squared = with_f - 2.0 * triple @ c + quadruple @ (multiplicity * c[rows] * c[columns])
        return Moments(
            v=v,
            phi_hd=squared[position] + problem.noise * ds_ds,
            chi=f_s - s_s @ c,
            excess_risk=0.5 * (average("ff") - 2.0 * c @ f_s + c @ s_s @ c),
        )

    @property
    def name(self) -> str:
        return "exact polynomial (Isserlis)"


class _Frozen(dict):
    """Tables are structure, made once for each pair of polynomials: the same object is the same table."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_tables(problem: Problem) -> "_Frozen":
    coefficients, target = problem.student.activation.coefficients, problem.target.polynomial
    assert coefficients is not None and target is not None
    return _tables(coefficients, problem.k, tuple(sorted(target.terms.items())))


@lru_cache(maxsize=64)
def _tables(coefficients: tuple[float, ...], k: int, terms: tuple[tuple[tuple[int, ...], float], ...]) -> "_Frozen":
    target = Polynomial(k, dict(terms))
    s = from_coefficients(coefficients)
    factors = {"s": s, "ds": _derivative(s, 0), "dds": _derivative(_derivative(s, 0), 0)}
    targets = {"f": target, "ff": target * target} | {f"df{r}": _derivative(target, r) for r in range(k)}

    def table(name: str) -> Table:
        words = name.split()
        students = [factors[word] for word in words if word in factors]
        wanted = [targets[word] for word in words if word in targets]
        size = len(students) + (k if wanted else 0)
        product = Polynomial(size, {(0,) * size: 1.0})
        for position, factor in enumerate(students):
            product = product * factor.embed(size, (position,))
        for factor in wanted:
            product = product * factor.embed(size, tuple(range(len(students), size)))
        return isserlis(product)

    names = ["ff", "f s", "s s", "ds ds", "f dds", "dds s", "ff ds ds", "f ds ds s", "ds ds s s"]
    names += [f"df{r} ds" for r in range(k)]
    return _Frozen({name: table(name) for name in names})
