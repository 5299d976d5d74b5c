r"""The generative exponent and leap: what functions of the label reveal beyond the label itself.

.. math:: \zeta_r(y) = E[\mathrm{He}_r(z) \mid y], \qquad k^\star = \min\{r \ge 1 : E[\zeta_r(y)^2] > 0\}

is the smallest information exponent over all transformations :math:`T(y)` of the label, and its version for several
directions is the subspace iteration with :math:`C_r(x, y) = E[\mathbf{He}_r(z_\perp) \mid z_U = x, y]`. Here the
iteration is that of `stages`, applied to f and several transformed targets :math:`T_m(f(z))` together. A direction that
they reveal exists; one that they do not reveal is absent by a symmetry, or as far as these transformations can show.
See :cite:t:`damian2024`.
"""

from collections.abc import Callable

import numpy as np

from twolayer.learnability.formula import Factor, Formula
from twolayer.learnability.sources import REACH, from_values, line_coefficients
from twolayer.learnability.stages import INDEPENDENT, LearningStages, climb
from twolayer.learnability.symmetry import Symmetries
from twolayer.learnability.tensors import HermiteTable, bound_beyond

# Orders that are computed, by the number of fields.
ORDERS = {1: 8, 2: 6, 3: 5, 4: 4}
# The label is measured from a point that is not a centre of symmetry, in units of the target's standard deviation.
CENTRE = 0.3
TRANSFORMATIONS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda u: u / np.sqrt(1.0 + u**2),
    lambda u: 1.0 / (1.0 + u**2),
    lambda u: u / np.sqrt(0.1 + u**2),
    lambda u: 1.0 / np.sqrt(1.0 + 4.0 * (u - 1.0) ** 2),
)


def transformed_tables(
    evaluate: Callable[[np.ndarray], np.ndarray], formula: Formula | None, mean: float, scale: float, k: int
) -> list[HermiteTable]:
    """Return the Hermite tensors of the transformed labels."""
    orders = ORDERS[k]
    tables = []
    for transform in TRANSFORMATIONS:

        def label(z: np.ndarray, transform=transform) -> np.ndarray:
            return transform((evaluate(z) - mean) / scale - CENTRE)

        if k == 1:
            value, error, square = line_coefficients(lambda x, f=label: f(x[:, None]), orders, _kinks(formula))
            values, errors = (
                [value[n : n + 1] for n in range(orders + 1)],
                [error[n : n + 1] for n in range(orders + 1)],
            )
            variance = square - float(value[0]) ** 2
            if variance > 1e-14:
                tables.append(HermiteTable(1, values, errors, variance, bound_beyond(values, errors, variance, 1)))
        else:
            table = from_values(label, k, orders)
            if table.variance > 1e-14:
                tables.append(table)
    return tables


def _kinks(formula: Formula | None) -> tuple[float, ...]:
    if formula is None:
        return (0.0,)
    return tuple(Factor((0,), formula.form, formula.symbols).kinks(REACH))


def takes_two_values(evaluate: Callable[[np.ndarray], np.ndarray], k: int) -> bool:
    """Whether the label has only two values, so that every function of the label is affine."""
    z = np.random.default_rng(1).standard_normal((4096, k))
    values = evaluate(z)
    return bool(np.all(np.minimum(np.abs(values - values.min()), np.abs(values - values.max())) < 1e-12))


def generative_staircase(
    evaluate: Callable[[np.ndarray], np.ndarray],
    formula: Formula | None,
    table: HermiteTable,
    plain: LearningStages,
    symmetries: Symmetries,
) -> LearningStages | None:
    """Return the stages when any function of the label may be used; None (not computed) beyond four fields."""
    if takes_two_values(evaluate, table.k) or all(stage.leap == 1 and not stage.undecided for stage in plain.stages):
        return plain  # a leap of one is the smallest possible
    if table.k > max(ORDERS):
        return None
    transformed = transformed_tables(evaluate, formula, float(table.values[0][0]), table.scale, table.k)
    invariances = symmetries.invariances

    def prove(rows: np.ndarray, r: int) -> str | None:
        return INDEPENDENT if table.depends_within(rows) else invariances.forbids(rows, r)

    return climb([table, *transformed], prove)
