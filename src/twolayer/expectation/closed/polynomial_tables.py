r"""Exact averages of polynomials by the diagram formula, which adds one unit after the other.

Let F be a polynomial of centred Gaussian fields x, and g one of a further field y, with the covariances
:math:`C_u = E[x_u y]`. Then

.. math:: E[F(x)\,g(y)] = \sum_n \frac{1}{n!}\,E\big[(C \cdot \nabla)^n F(x)\big]\,E\big[g^{(n)}(y)\big]

A polynomial thus enters only through the averages of its derivatives, and the derivatives of :math:`F g` average in
the same way: after a unit was added, only a table of :math:`E[\partial^\alpha (F g)]` is kept. Written out for
all units it is the sum over diagrams, with :math:`\prod_{u<w} C_{uw}^{N_{uw}} / N_{uw}!` for :math:`N_{uw}` links
between u and w. It holds at any covariance, singular ones included, and never divides by a variance.

The table of a single polynomial follows from that at another covariance :math:`C_0`, by the heat equation:

.. math:: E_C[\partial^\alpha F] = \sum_n \frac{1}{n!}\,
          E_{C_0}\Big[\Big(\tfrac12 \nabla^T (C - C_0) \nabla\Big)^n\,\partial^\alpha F\Big]

At :math:`C_0 = 1` it holds the coefficients in Hermite polynomials, at :math:`C_0 = 0` those in powers, each times a
factorial. In the right basis few terms cancel: there is one for :math:`\mathrm{He}_n`, with
:math:`E[\mathrm{He}_n(\sqrt q\,\xi)] = (q - 1)^{n/2}\,(n - 1)!!` for even n.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from twolayer.core.estimate import Estimate
from twolayer.core.linalg import pair_positions
from twolayer.core.multivariate import (
    Exponents,
    Polynomial,
    divisors,
    from_coefficients,
    in_hermite,
    over_integers,
    square,
)
from twolayer.expectation.base import AbstractEngine, Suits
from twolayer.expectation.moments import MOMENTS, student_weights
from twolayer.problem import Overlaps, Problem

# The largest length of a table, and number of products of two terms in the square of the target. At these limits the
# tables take seconds to build, once, and an evaluation takes about ten milliseconds.
MAX_TERMS = 100_000
MAX_PRODUCTS = 1_000_000
# Numbers in memory for a chunk of pairs of units: 16 MiB.
CHUNK = 2**21


class Polynomials(NamedTuple):
    """The student's activation and the target, which determine the tables."""

    coefficients: tuple[float, ...]
    k: int
    terms: tuple[tuple[Exponents, float], ...]

    @property
    def degree(self) -> int:
        """The degree of the activation, at least two, so that there is a second derivative."""
        return max(len(self.coefficients) - 1, 2)

    @property
    def total_degree(self) -> int:
        """The degree of the largest product, two slopes and the square of the displacement."""
        target = max((sum(exponents) for exponents, _ in self.terms), default=0)
        return 2 * (self.degree - 1) + 2 * max(self.degree, target)


class Orders(NamedTuple):
    """Orders of differentiation as rows; ``up`` holds the index of the row with one more derivative in a field."""

    alpha: Int[np.ndarray, "terms fields"]
    up: Int[np.ndarray, "terms fields"]  # the number of rows if there is no such row

    @property
    def total(self) -> Int[np.ndarray, " terms"]:
        """The total order of each row."""
        return self.alpha.sum(axis=1)

    @property
    def highest(self) -> int:
        """The highest total order."""
        return int(self.total.max())


class Block(NamedTuple):
    """A polynomial, given by the averages of its derivatives at the covariance ``base`` times the identity."""

    orders: Orders
    averages: Float[np.ndarray, " terms"]
    base: float


class Stage(NamedTuple):
    """A table after some units were added; ``keep`` selects its rows from those of the stage before."""

    orders: Orders
    keep: Int[np.ndarray, " terms"]


class Stages(NamedTuple):
    r"""The intermediate tables of averages over three and four factors; the last unit needs no table.

    Two slopes with the square of the target, :math:`f^2 \sigma'_j \sigma'_l`; with the target and a unit,
    :math:`f \sigma'_j \sigma'_l \sigma_m`; with two units, :math:`\sigma'_j \sigma'_l \sigma_m \sigma_n`.
    """

    ff: tuple[Stage, ...]
    fs: tuple[Stage, ...]
    ss: tuple[Stage, ...]


# ------------------------------------------------------------------------------- tables, made once in Python


def _orders(rows: Sequence[Exponents] | np.ndarray, fields: int) -> Orders:
    alpha = np.asarray(rows, dtype=np.int64).reshape(len(rows), fields)
    position = {tuple(row): index for index, row in enumerate(alpha.tolist())}
    up = np.full(alpha.shape, len(alpha))
    for row, index in position.items():
        for field in range(fields):
            up[index, field] = position.get((*row[:field], row[field] + 1, *row[field + 1 :]), len(alpha))
    return Orders(alpha, up)


def _block(orders: Orders, monomials: dict[Exponents, int], denominator: int) -> Block:
    """Return the block at the base where less cancels: where the sum of the norms of its terms is smaller."""
    hermite = in_hermite(monomials)
    is_hermite = _norms(hermite, math.factorial) < _norms(monomials, lambda n: math.prod(range(1, 2 * n, 2)))
    terms = hermite if is_hermite else monomials
    averages = np.zeros(len(orders.alpha))
    for index, exponents in enumerate(map(tuple, orders.alpha.tolist())):
        above = terms.get(exponents, 0) * math.prod(map(math.factorial, exponents))
        try:
            averages[index] = above / denominator
        except OverflowError:
            averages[index] = np.inf
    return Block(orders, averages, float(is_hermite))


def _norms(terms: dict[Exponents, int], squared_norm: Callable[[int], int]) -> int:
    return sum(math.isqrt(c * c * math.prod(map(squared_norm, exponents))) for exponents, c in terms.items())


@lru_cache(maxsize=64)
def _student(polynomials: Polynomials) -> Block:
    terms, denominator = over_integers(from_coefficients(polynomials.coefficients).terms)
    return _block(_orders(np.arange(polynomials.degree + 1), 1), terms, denominator)


@lru_cache(maxsize=64)
def _target(polynomials: Polynomials, power: int) -> Block:
    terms, denominator = over_integers(dict(polynomials.terms))
    if power == 2:
        terms, denominator = square(terms), denominator**2
    return _block(_orders(sorted(_target_orders(polynomials, power)), polynomials.k), terms, denominator)


@lru_cache(maxsize=64)
def _target_orders(polynomials: Polynomials, power: int) -> set[Exponents]:
    """Return the orders at which the derivative of the target (or of its square) is not zero, including order zero."""
    orders, largest = divisors([(0,) * polynomials.k, *dict(polynomials.terms)], MAX_TERMS)
    if power == 2 and len(orders) <= MAX_TERMS:
        orders, _ = divisors({tuple(np.add(e1, e2).tolist()) for e1 in largest for e2 in largest}, MAX_TERMS)
    return orders


def _joining(degree: int) -> dict[str, tuple[int, ...]]:
    """Return the degrees of the units that are added in each chain of `Stages`; slopes have one less."""
    return {"ff": (degree - 1, degree - 1), "fs": (degree - 1, degree - 1, degree), "ss": (degree - 1, degree, degree)}


@lru_cache(maxsize=64)
def _stages(polynomials: Polynomials) -> Stages:
    degree = polynomials.degree
    averages = _student(polynomials).averages
    # Orders at which the average of a derivative can be nonzero: half of them if there is a parity.
    is_live = np.array([np.any(averages[order::2] != 0.0) for order in range(degree + 1)])
    starts = {
        "ff": _target(polynomials, 2).orders,
        "fs": _target(polynomials, 1).orders,
        "ss": _orders(np.arange(degree), 1),
    }
    last = {"ff": is_live[1:], "fs": is_live, "ss": is_live}
    return Stages(**{name: _chain(starts[name], units, last[name]) for name, units in _joining(degree).items()})


def _chain(start: Orders, units: tuple[int, ...], is_live: np.ndarray) -> tuple[Stage, ...]:
    """Return the stages when units of these degrees are added, all but the last one, whose live orders are given.

    A derivative of higher total order than the remaining units can have is omitted.
    """
    left = sum(units)
    keep = np.flatnonzero(start.total <= left)
    stages = [Stage(_orders(start.alpha[keep], start.alpha.shape[1]), keep)]
    for unit in units[:-1]:
        left -= unit
        before = stages[-1].orders.alpha
        alpha = np.column_stack([np.repeat(before, unit + 1, axis=0), np.tile(np.arange(unit + 1), len(before))])
        keep = np.flatnonzero(alpha.sum(axis=1) <= left)
        stages.append(Stage(_orders(alpha[keep], alpha.shape[1]), keep))
    orders, keep = stages.pop()
    live = is_live[orders.total]
    return (*stages, Stage(Orders(orders.alpha[live], orders.up[live]), keep[live]))


def _longest(totals: np.ndarray, units: tuple[int, ...]) -> int:
    """Return the length of the longest table of `_chain` from the total orders at its start, without building it."""
    left = sum(units)
    number, longest = np.bincount(totals[totals <= left], minlength=left + 1), 0
    for unit in units[:-1]:
        left -= unit
        number = np.convolve(number, np.ones(unit + 1, dtype=int))[: left + 1]
        longest = max(longest, int(number.sum()))
    return longest


def _refusal(polynomials: Polynomials, moment: str) -> str:
    """Return why the tables for a moment are too large, or an empty string."""
    powers = (1,) if moment in ("chi", "v") else (1, 2)
    products = len(polynomials.terms) ** 2
    if 2 in powers and products > MAX_PRODUCTS:
        return f"the square of the target needs {products} products of terms, the limit is {MAX_PRODUCTS}"
    lengths = []
    for power in powers:
        orders = _target_orders(polynomials, power)
        lengths.append(len(orders))
        if moment == "phi_hd" and len(orders) <= MAX_TERMS:
            units = _joining(polynomials.degree)["fs" if power == 1 else "ff"]
            lengths.append(_longest(np.array([sum(exponents) for exponents in orders]), units))
    if moment == "phi_hd":
        lengths.append(_longest(np.arange(polynomials.degree), _joining(polynomials.degree)["ss"]))
    if max(lengths) > MAX_TERMS:
        return f"the exact average is a sum of {max(lengths)} terms or more, the limit is {MAX_TERMS}"
    if not all(np.all(np.isfinite(_target(polynomials, power).averages)) for power in powers):
        return "the coefficients of the target exceed the range of floating-point numbers"
    return ""


# ----------------------------------------------------------------------------- averages, at given covariances


def _raised(table: Float[Array, " terms"], orders: Orders) -> Float[Array, "terms fields"]:
    """Return the tables of the first derivatives; entries beyond the table are zero or not needed."""
    return jnp.pad(table, (0, 1))[orders.up]


def _at_covariance(
    averages: Float[Array, " terms"], excess: Float[Array, "fields fields"], orders: Orders
) -> Float[Array, " terms"]:
    """Return the table at a covariance that exceeds the base by ``excess``, by the heat equation."""
    fields = np.arange(orders.alpha.shape[1])

    def diffuse(carry: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], None]:
        term, total = carry
        slopes = jnp.pad(_raised(term, orders) @ excess, ((0, 1), (0, 0)))
        term = jnp.sum(slopes[orders.up, fields], axis=1) / (2.0 * n)
        return (term, total + term), None

    steps = jnp.arange(1.0, orders.highest // 2 + 1)
    return jax.lax.scan(diffuse, (averages, averages), steps)[0][1]


def _joined(
    table: Float[Array, " terms"],
    stages: tuple[Stage, ...],
    number: int,
    C: Float[Array, " fields"],
    unit: Float[Array, " orders"],
) -> Float[Array, " joined"]:
    """Return the table of the next stage, given that of stage ``number`` and the averages of the added unit."""
    orders = stages[number].orders
    steps = np.arange(min(len(unit) - 1, orders.highest) + 1)
    _, powers = jax.lax.scan(lambda last, n: (_raised(last, orders) @ C / n, last), table, steps + 1.0)
    derivatives = jnp.pad(unit, (0, len(steps)))[np.add.outer(steps, np.arange(len(unit)))]
    return (powers.T @ derivatives).ravel()[stages[number + 1].keep]


def _links(C: Float[Array, "*n"], highest: int) -> Float[Array, "*n powers"]:
    """Return the powers :math:`C^n / n!` by repeated products, which have finite derivatives at zero."""
    steps = jnp.arange(1.0, highest + 2.0, dtype=C.dtype)
    _, powers = jax.lax.scan(lambda last, n: (last * C / n, last), jnp.ones_like(C), steps)
    return jnp.moveaxis(powers, 0, -1)


def _closed(
    table: Float[Array, " terms"],
    alpha: Int[np.ndarray, "terms fields"],
    links: Float[Array, "fields powers"],
    unit: Float[Array, " orders"],
) -> Float[Array, ""]:
    """Return the average when the last unit is added, which is a sum over the table."""
    linked = jnp.prod(links[np.arange(alpha.shape[1]), alpha], axis=1)
    return jnp.sum(table * linked * unit[alpha.sum(axis=1)])


def _slopes_and_square(
    stages: Stages,
    f: Float[Array, " target"],
    ff: Float[Array, " square"],
    units: Float[Array, "p orders"],
    C: Float[Array, "p n"],
    links: Float[Array, "p n orders"],
    c: Float[Array, " p"],
) -> Float[Array, "p p"]:
    r"""Return :math:`E[\sigma'_j \sigma'_l (f + \sum_m c_m \sigma_m)^2]` for j <= l, expanding the square.

    ``C`` holds the covariances of each unit with the target's fields and with all units, in this order.
    """
    p, slopes = len(units), units[:, 1:]
    k = C.shape[1] - p
    target = np.arange(k)
    rows, columns = np.triu_indices(p)
    weights = np.where(rows == columns, 1.0, 2.0) * c[rows] * c[columns]
    # Add the first slope to the target.
    ff_j = jax.vmap(lambda C, unit: _joined(ff[stages.ff[0].keep], stages.ff, 0, C, unit))(C[:, :k], slopes)
    f_j = jax.vmap(lambda C, unit: _joined(f[stages.fs[0].keep], stages.fs, 0, C, unit))(C[:, :k], slopes)
    with_f, with_s = stages.fs[2].orders.alpha, stages.ss[2].orders.alpha

    def average(pair: tuple[Array, Array]) -> Array:
        j, l = pair
        one, both = (jnp.append(target, jnp.stack(slots) + k) for slots in ((j,), (j, l)))
        ff_jl = _closed(ff_j[j], stages.ff[1].orders.alpha, links[l, one], slopes[l])
        # Add one more unit m to the target.
        f_jl = _joined(f_j[j], stages.fs, 1, C[l, one], slopes[l])
        f_jlm = jax.vmap(lambda links, unit: _closed(f_jl, with_f, links, unit))(links[:, both], units)
        # Add two more units m <= n to the slopes.
        jl = _joined(slopes[j], stages.ss, 0, C[l, one[k:]], slopes[l])
        jlm = jax.vmap(lambda C, unit: _joined(jl, stages.ss, 1, C, unit))(C[:, both[k:]], units)
        to_n = links[:, k + j][:, with_s[:, 0]] * links[:, k + l][:, with_s[:, 1]] * units[:, with_s.sum(axis=1)]
        jlmn = jnp.sum(jlm[rows] * to_n[columns] * links[rows, k + columns][:, with_s[:, 2]], axis=1)
        return ff_jl + 2.0 * f_jlm @ c + jlmn @ weights

    numbers_per_pair = p * with_f.size + len(rows) * len(with_s)
    size = max(1, min(len(rows), CHUNK // numbers_per_pair))
    # All chunks have one size, the last one padded with the last pair, so that the program is the same for every p.
    index = np.minimum(np.arange(-(-len(rows) // size) * size), len(rows) - 1).reshape(-1, size)
    averages = jax.lax.map(jax.vmap(average), (rows[index], columns[index]))
    return averages.ravel()[pair_positions(p)]


# ------------------------------------------------------------------------------------------------- the engine


class Numbers(NamedTuple):
    """The signed numbers from which the moments are computed."""

    Q: Float[Array, "p p"]
    M: Float[Array, "p k"]
    omega: Float[Array, "n n"]
    c: Float[Array, " p"]  # minus the weights of the units in the student
    noise: Float[Array, ""]
    s: tuple[Array, Array]  # averages at the base, and the excess of the covariance over the base for each unit
    f: tuple[Array, Array]
    ff: tuple[Array, Array] | None


class PolynomialTables(AbstractEngine):
    r"""Exact averages for a student's activation and a target that are polynomials.

    The vector moments use Stein's lemma, :math:`v = b\,\Omega` with
    :math:`b_{ju} = E[\partial_{\ell_u}(\sigma'(\lambda_j)\,\mathcal E)]`, which needs no inverse and no extra field.

    Rounding is the only error. It is bounded by the same sums over absolute values, times the rounding of the
    operations for a term; a second variant returns the moments plus this bound.
    """

    polynomials: Polynomials = eqx.field(static=True)
    # 1.0 adds the bound on rounding, 0.0 does not; it is data, so that both compile to one program.
    moved: Any = eqx.field(default_factory=lambda: np.asarray(0.0))

    @property
    def rtol(self) -> float:
        return 0.0

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if moment not in MOMENTS:
            return Suits(False, f"there are no tables for `{moment}`")
        if problem.student.activation.coefficients is None:
            return Suits(False, f"the student is {problem.student.activation}, not a polynomial")
        target = problem.target.polynomial
        if target is None:
            return Suits(False, "the target is not a polynomial")
        reason = _refusal(_polynomials(problem, target), moment)
        return Suits(not reason, reason)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "PolynomialTables":
        target = problem.target.polynomial
        assert target is not None
        return cls(_polynomials(problem, target))

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (self, PolynomialTables(self.polynomials, np.asarray(1.0)))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        value, moved = results
        return Estimate(value, jax.tree.map(lambda x, y: abs(x - y), value, moved))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        numbers = self._numbers(problem, overlaps, wanted)
        both = jax.vmap(lambda numbers: self._sums(numbers, wanted))(
            jax.tree.map(lambda x: jnp.stack([x, jnp.abs(x)]), numbers)
        )
        # Each link between fields has about four roundings, and the sums have as many.
        rounding = (2 * self.polynomials.total_degree + 16) * float(jnp.finfo(overlaps.Q.dtype).eps)
        return {name: value + self.moved * rounding * size for name, (value, size) in both.items()}

    @property
    def name(self) -> str:
        return "exact polynomial (diagram formula)"

    def _numbers(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> Numbers:
        s = _student(self.polynomials)

        def target(power: int) -> tuple[Array, Array]:
            block = _target(self.polynomials, power)
            return jnp.asarray(block.averages), overlaps.P - block.base * jnp.eye(problem.k)

        return Numbers(
            Q=overlaps.Q,
            M=overlaps.M,
            omega=overlaps.omega,
            c=-student_weights(problem, overlaps.a),
            noise=jnp.asarray(problem.noise),
            s=(jnp.asarray(s.averages), jnp.diagonal(overlaps.Q) - s.base),
            f=target(1),
            ff=target(2) if "excess_risk" in wanted or "phi_hd" in wanted else None,
        )

    def _sums(self, numbers: Numbers, wanted: tuple[str, ...]) -> dict[str, Array]:
        """Return the moments without subtractions, so that absolute values of the numbers give bounds."""
        c, degree = numbers.c, self.polynomials.degree
        k = numbers.M.shape[1]
        orders = _target(self.polynomials, 1).orders
        f = _at_covariance(*numbers.f, orders)
        student = _student(self.polynomials).orders
        units = jax.vmap(lambda excess: _at_covariance(numbers.s[0], excess[None, None], student))(numbers.s[1])
        derivatives = [jnp.pad(units[:, order:], ((0, 0), (0, order))) for order in range(3)]
        C = jnp.concatenate([numbers.M, numbers.Q], axis=1)
        links = _links(C, degree)

        near = np.flatnonzero(orders.total <= degree)
        alpha, total = orders.alpha[near], orders.total[near]
        linked = jnp.prod(links[:, np.arange(k), alpha], axis=2)

        def with_unit(f: Array, order: int) -> Array:
            return (linked * derivatives[order][:, total]) @ f[near]

        def two_units(first: int, second: int) -> Float[Array, "p p"]:
            return jnp.einsum("jln,jn,ln->jl", links[:, k:], derivatives[first], derivatives[second])

        parts: dict[str, Array] = {}
        if "chi" in wanted or "excess_risk" in wanted:
            f_s, s_s = with_unit(f, 0), two_units(0, 0)
            parts["chi"] = f_s + s_s @ c
            parts["excess_risk"] = 0.5 * c @ (2.0 * f_s + s_s @ c)
        if "v" in wanted:
            curvature = with_unit(f, 2) + two_units(2, 0) @ c
            b_student = jnp.diag(curvature) + two_units(1, 1) * c[None, :]
            b_target = with_unit(_raised(f, orders), 1)
            parts["v"] = jnp.concatenate([b_student, b_target], axis=1) @ numbers.omega
        if numbers.ff is not None:
            ff = _at_covariance(*numbers.ff, _target(self.polynomials, 2).orders)
            if "excess_risk" in wanted:
                parts["excess_risk"] = parts["excess_risk"] + 0.5 * ff[0]
            if "phi_hd" in wanted:
                squared = _slopes_and_square(_stages(self.polynomials), f, ff, units, C, links, c)
                parts["phi_hd"] = squared + numbers.noise * two_units(1, 1)
        return {name: parts[name] for name in wanted}


def _polynomials(problem: Problem, target: Polynomial) -> Polynomials:
    coefficients = problem.student.activation.coefficients
    assert coefficients is not None
    return Polynomials(coefficients, problem.k, tuple(sorted(target.terms.items())))
