r"""Averages of pairs of smooth units by Hermite series (Mehler's formula), with a bound on the truncation error.

With :math:`h_u(r) = E[\sigma_u(\sqrt{q_u}\,\xi)\,\mathrm{He}_r(\xi)] / \sqrt{r!}` and :math:`\rho` the correlation,

.. math:: E[\sigma_u \sigma_w] = \sum_{r < R} h_u(r)\,h_w(r)\,\rho^r + \text{rest}, \qquad
          |\text{rest}| \le |\rho|^R \big(\|\sigma_u\|^2 - \textstyle\sum h_u^2\big)^{1/2}
          \big(\|\sigma_w\|^2 - \sum h_w^2\big)^{1/2}

by the Cauchy-Schwarz inequality, since the norm of the truncated part of an orthogonal series is known.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.closed.relu_averages import safe_root
from twolayer.expectation.doubt import Marginals, doubts
from twolayer.expectation.engine import ROUNDING, SAFETY, AbstractEngine, Suits
from twolayer.expectation.gaussian_moments import UnitIntegrals, from_units, unit_weights
from twolayer.expectation.rules import QuadratureRule, gauss_hermite
from twolayer.expectation.slices import one_slope_integrals
from twolayer.expectation.units_of import fields_of, unit_kinds
from twolayer.problem import Overlaps, Problem
from twolayer.problem.ridge_form import ridges_of

TERMS = 64
NODES = 128
# A student with more units than these takes long by rules along single fields, where the target is a polynomial.
NARROW = 8


def hermite_functions(x: Float[np.ndarray, " nodes"]) -> Float[np.ndarray, "nodes terms"]:
    r"""Return :math:`\mathrm{He}_r(x) / \sqrt{r!}` for r below the number of terms."""
    columns = [np.ones_like(x), x]
    for r in range(1, TERMS - 1):
        columns.append((x * columns[-1] - np.sqrt(r) * columns[-2]) / np.sqrt(r + 1))
    return np.stack(columns, axis=1)


class MehlerSeries(AbstractEngine):
    """Hermite series, whose coefficients are one-dimensional integrals.

    They compute the risk and the moments with one slope of smooth units, at a cost that hardly grows with their number.
    A polynomial is a sum of powers of linear forms, whose series end: the risk of a wide student that learns it, too.
    """

    rule: QuadratureRule
    functions: Any
    # 1.0 adds the bound on the truncation error, 0.0 does not.
    bound: Any = 0.0
    # Whether what the nodes may miss is added to the bound, in the variant with the bound only.
    is_doubting: bool = eqx.field(static=True, default=False)

    @property
    def rtol(self) -> float:
        return 0.0

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        units = problem.target.units
        if moment not in ("excess_risk", "chi", "v"):
            return Suits(False, "a series in the correlations of four fields converges too slowly")
        if units is None and (moment == "v" or problem.target.polynomial is None or ridges_of(problem.target) is None):
            return Suits(False, "the target is not a sum of units")
        if units is None and problem.p <= NARROW:
            return Suits(False, f"{problem.p} units, for which rules along single fields are fast")
        if not problem.student.activation.is_smooth or (units is not None and not units.activation.is_smooth):
            return Suits(False, "the series of a function with kinks converges slowly")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "MehlerSeries":
        rule = gauss_hermite(NODES)
        return cls(rule, hermite_functions(rule.points), np.asarray(0.0))

    def variants(self) -> tuple[AbstractEngine, ...]:
        coarse = gauss_hermite(int(0.7 * NODES)).padded(NODES)
        with_bound = MehlerSeries(self.rule, self.functions, np.asarray(1.0), True)
        return (self, MehlerSeries(coarse, hermite_functions(coarse.points), np.asarray(0.0)), with_bound)

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        def error(x: Any, coarse: Any, bounded: Any) -> Any:
            return SAFETY * abs(x - coarse) + abs(bounded - x) + ROUNDING * (1.0 + abs(x))

        return Estimate(results[0], jax.tree.map(error, *results))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        p, units = problem.p, problem.target.units
        student, slopes = problem.student.activation, problem.student.activation.derivative
        if units is not None:
            omega, c = overlaps.omega, unit_weights(problem, overlaps.a)
            kinds = [(student, slopes, slice(0, p)), (units.activation, units.activation.derivative, slice(p, None))]
        else:
            fields = fields_of(problem, overlaps)
            omega, c = fields.covariance, fields.weights
            kinds = [(kind.value, kind.slope, np.array(kind.units)) for kind in unit_kinds(problem) or ()]
        scale = safe_root(jnp.diagonal(omega))
        rows = [self._coefficients(function, derivative, scale[members]) for function, derivative, members in kinds]
        value, slope, along = (
            [jnp.concatenate(parts) for parts in zip(*functions, strict=True)] for functions in zip(*rows, strict=True)
        )
        sizes = scale[:, None] * scale[None, :]
        rho = jnp.where(sizes > 0.0, omega / jnp.where(sizes > 0.0, sizes, 1.0), 0.0)
        rho = jnp.clip(rho, -1.0, 1.0)
        I2, bound_I2 = self._sum(value, value, rho)
        A, bound_A = self._sum([x[:p] for x in along], value, rho[:p])
        B, bound_B = self._sum([x[:p] for x in slope], slope, rho[:p])
        I3 = one_slope_integrals(omega, p, np.arange(len(c)), A, B)
        values = from_units(c, UnitIntegrals(I2, B[:, :p], I3, None), 0.0)
        bound_I3 = one_slope_integrals(omega, p, np.arange(len(c)), bound_A, bound_B, abs)
        bounds = from_units(abs(c), UnitIntegrals(bound_I2, bound_B[:, :p], bound_I3, None), 0.0)
        values = {name: values[name] for name in wanted}
        if not self.is_doubting:
            return {name: values[name] + self.bound * bounds[name] for name in wanted}
        x, w = (jnp.asarray(table)[:, None] for table in self.rule)
        lengths = safe_root(jnp.diagonal(overlaps.omega))
        nodes, weights = x * lengths[None, :], jnp.broadcast_to(w, (len(x), len(lengths)))
        marginals = Marginals(nodes[:, :p], weights[:, :p], nodes[:, p:], weights[:, p:])
        missed = doubts(problem, overlaps, values, marginals)
        return {name: values[name] + bounds[name] + missed[name] for name in wanted}

    def _coefficients(
        self, function: Callable[[Array], Array], derivative: Callable[[Array], Array], scale: Float[Array, " units"]
    ) -> list[list[Array]]:
        """Return series and truncated squared norms of the function, its slope, and the field times its slope."""
        x, w, functions = (jnp.asarray(table) for table in (*self.rule, self.functions))
        fields = scale[:, None] * x[None, :]
        slope = derivative(fields)
        coefficients = []
        for values in (function(fields), slope, fields * slope):
            series = (values * w[None, :]) @ functions
            norm = values**2 @ w
            # The difference is only known up to the rounding of the norm.
            truncated = jnp.maximum(norm - jnp.sum(series**2, axis=1), 0.0) + 1e-15 * norm
            coefficients.append([series, truncated])
        return coefficients

    def _sum(self, first: list[Array], second: list[Array], rho: Array) -> tuple[Array, Array]:
        """Return Mehler's sum for all pairs, and the bound on its truncation error."""

        def longer(total: Array, term: tuple[Array, Array]) -> tuple[Array, None]:
            """Horner's rule: no powers, whose derivatives would not be finite at zero correlation."""
            return total * rho + term[0][:, None] * term[1][None, :], None

        total, _ = jax.lax.scan(longer, jnp.zeros(rho.shape), (first[0].T, second[0].T), reverse=True)
        return total, abs(rho) ** TERMS * jnp.sqrt(first[1][:, None] * second[1][None, :])

    @property
    def name(self) -> str:
        return f"Hermite series, {TERMS} terms"
