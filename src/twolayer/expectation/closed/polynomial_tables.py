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

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from twolayer.core.estimate import Estimate
from twolayer.core.linalg import pair_positions
from twolayer.core.multivariate import Polynomial
from twolayer.expectation.closed.diagram_tables import (
    GrownTable,
    Orders,
    Polynomials,
    Stages,
    refusal,
    stages_of,
    student_block,
    target_block,
)
from twolayer.expectation.engine import AbstractEngine, Suits
from twolayer.expectation.gaussian_moments import MOMENTS, student_weights
from twolayer.problem import Overlaps, Problem

# Numbers in memory for a chunk of pairs of units: 16 MiB.
CHUNK = 2**21


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
    stages: tuple[GrownTable, ...],
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
        reason = refusal(_polynomials(problem, target), moment)
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
        s = student_block(self.polynomials)

        def target(power: int) -> tuple[Array, Array]:
            block = target_block(self.polynomials, power)
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
        orders = target_block(self.polynomials, 1).orders
        f = _at_covariance(*numbers.f, orders)
        student = student_block(self.polynomials).orders
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
            ff = _at_covariance(*numbers.ff, target_block(self.polynomials, 2).orders)
            if "excess_risk" in wanted:
                parts["excess_risk"] = parts["excess_risk"] + 0.5 * ff[0]
            if "phi_hd" in wanted:
                squared = _slopes_and_square(stages_of(self.polynomials), f, ff, units, C, links, c)
                parts["phi_hd"] = squared + numbers.noise * two_units(1, 1)
        return {name: parts[name] for name in wanted}


def _polynomials(problem: Problem, target: Polynomial) -> Polynomials:
    coefficients = problem.student.activation.coefficients
    assert coefficients is not None
    return Polynomials(coefficients, problem.k, tuple(sorted(target.terms.items())))
