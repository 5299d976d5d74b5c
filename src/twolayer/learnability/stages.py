r"""The order in which directions are learned: the subspace iteration on Hermite tensors.

Given the directions U learned so far, split :math:`z = (z_U, z_\perp)`. The next ones are found in

.. math:: C_r(x) = E[f(z)\,\mathbf{He}_r(z_\perp) \mid z_U = x], \qquad
          E_x \frac{\|C_r(x)\|^2}{r!} = \sum_{\gamma:\,|\gamma_\perp| = r} \frac{c_\gamma^2}{\gamma!}

at the smallest :math:`r \ge 1` for which it is not zero: the number of ascents is the leap of this stage, and the
directions that :math:`C_r(x)` contains, over all x, are added to U. In the Hermite basis of U the functions
:math:`C_r(x)` are the entries of the tensors of all orders with r indices across U, so that nothing is integrated here.
See :cite:t:`abbe2023` and :cite:t:`dandi2023giant`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from twolayer.learnability.certificate import TOLERANCE, Certificate, Verdict, decide
from twolayer.learnability.symmetry import Symmetries
from twolayer.learnability.tensors import HermiteTable, factorials, monomials

Prover = Callable[[np.ndarray, int], str | None]


@dataclass(frozen=True)
class Stage:
    """One stage of the staircase: the directions that are learned next, given those learned before."""

    leap: int
    directions: np.ndarray  # orthonormal rows, in whitened coordinates
    known: np.ndarray  # directions learned before
    size: Certificate  # size of the tensor that contains the directions
    strengths: tuple[float, ...]  # strengths of the directions in this tensor
    excluded: tuple[Certificate, ...]  # sizes of the tensors of lower order: zero, or undecided
    doubtful: tuple[Certificate, ...] = ()  # further directions that the tensor may or may not contain

    @property
    def undecided(self) -> tuple[int, ...]:
        """The lower orders that could not be excluded, so that the leap may be one of them."""
        return tuple(
            r for r, certificate in enumerate(self.excluded, start=1) if certificate.verdict is Verdict.UNDECIDED
        )

    @property
    def possible(self) -> tuple[int, ...]:
        """All leaps that are consistent with the certificates."""
        return (*self.undecided, self.leap)


@dataclass(frozen=True)
class LearningStages:
    """All stages, and the directions on which the function does not depend according to its tensors."""

    stages: tuple[Stage, ...]
    unseen: np.ndarray  # orthonormal rows
    unseen_why: tuple[Certificate, ...]  # certificates for every order that was computed

    @property
    def leap(self) -> int | None:
        """The largest leap of a stage; None when an undecided number could change it, or when there is no stage."""
        leaps = [stage.leap for stage in self.stages]
        if not leaps or any(stage.undecided and stage.leap == max(leaps) for stage in self.stages):
            return None
        return None if any(c.verdict is Verdict.UNDECIDED for c in self.unseen_why) else max(leaps)

    @property
    def exponent(self) -> int | None:
        """The leap of the first stage: the information exponent."""
        return self.stages[0].leap if self.stages and not self.stages[0].undecided else None

    @property
    def possible_exponents(self) -> tuple[int, ...]:
        """The values that the exponent may have."""
        return self.stages[0].possible if self.stages else ()


def climb(tables: Sequence[HermiteTable], prove: Prover) -> LearningStages:
    """Run the subspace iteration, for one function or for several that are learned together.

    Parameters
    ----------
    tables
        Hermite tensors of the functions.
    prove
        Function that says why the tensor of an order across a subspace is zero for all of them, or returns None.
    """
    k = tables[0].k
    learned, stages = np.zeros((0, k)), []
    while len(learned) < k:
        stage, certificates = _next_stage(tables, prove, learned)
        if stage is None or not len(stage.directions):
            return LearningStages(tuple(stages), complement(learned), certificates)
        stages.append(stage)
        learned = np.concatenate([learned, stage.directions])
    return LearningStages(tuple(stages), np.zeros((0, k)), ())


def complement(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the orthogonal complement of orthonormal rows."""
    k = rows.shape[1]
    across = np.eye(k) - rows.T @ rows
    _, _, vectors = np.linalg.svd(across)
    return vectors[: k - len(rows)]


def _next_stage(
    tables: Sequence[HermiteTable], prove: Prover, learned: np.ndarray
) -> tuple[Stage | None, tuple[Certificate, ...]]:
    inside = len(learned)
    basis = np.concatenate([learned, complement(learned)])
    orders = max(table.order for table in tables)
    looked: list[Certificate] = []
    for r in range(1, orders + 1):
        square, lower, upper = 0.0, 0.0, 0.0
        for table in tables:
            turned, errors = table.turned(basis), table.size_errors()
            for n in range(r, table.order + 1):
                across = monomials(table.k, n)[:, inside:].sum(axis=1) == r
                square += float(np.sum((turned[n][across]) ** 2 / factorials(table.k, n)[across])) / table.variance
            # In the first stage an order has one tensor; later it also occurs in all higher ones.
            orders_met = slice(r, None) if inside else slice(r, r + 1)
            error = float(np.sum(errors[orders_met] ** 2)) / table.variance
            lower += error
            upper += error + (table.beyond**2 / table.variance if inside else 0.0)
        rounding = 1e-14
        value = math.sqrt(square)
        lower, upper = math.sqrt(lower) + rounding, math.sqrt(upper) + rounding
        certificate = decide(value, lower, upper, prove(learned, r))
        looked.append(certificate)
        if certificate.verdict is Verdict.NONZERO:
            return _stage(tables, basis, inside, r, certificate, lower, tuple(looked[:-1])), tuple(looked)
    return None, tuple(looked)


def _stage(
    tables: Sequence[HermiteTable],
    basis: np.ndarray,
    inside: int,
    r: int,
    certificate: Certificate,
    error: float,
    excluded: tuple[Certificate, ...],
) -> Stage:
    gram = sum(_gram(table, table.turned(basis), inside, r) / table.variance for table in tables)
    sizes, vectors = np.linalg.eigh(gram)
    sizes = np.sqrt(np.maximum(sizes[::-1], 0.0))
    vectors = vectors[:, ::-1].T @ basis[inside:]
    # The square root of a zero eigenvalue is of the order of the square root of the matrix's rounding.
    floor = max(error, 3e-8 * float(sizes[0]))
    verdicts = [decide(float(size), floor, floor) for size in sizes]
    added = [v.verdict is Verdict.NONZERO and v.value > 2.0 * floor for v in verdicts]
    doubtful = tuple(
        Certificate(Verdict.UNDECIDED, v.value, v.error)
        for v, is_added in zip(verdicts, added, strict=True)
        if not is_added and error > TOLERANCE
    )
    rows = _readable(vectors[added])
    along = rows @ basis[inside:].T
    strengths = tuple(float(x) for x in np.sqrt(np.maximum(np.einsum("ai,ij,aj->a", along, gram, along), 0.0)))
    return Stage(r, rows, basis[:inside], certificate, strengths, excluded, doubtful)


def _readable(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the same span that is easier to read: coordinates, or vectors with many zeros."""
    reduced = echelon(rows)
    lengths = np.linalg.norm(reduced, axis=1)
    products = reduced @ reduced.T
    if np.all(np.abs(products - np.diag(lengths**2)) < 1e-9):
        return tidy_signs(reduced / lengths[:, None])
    return tidy_signs(rows)


def echelon(rows: np.ndarray) -> np.ndarray:
    """Return the reduced row echelon form, with full pivoting of rows and entries below 1e-10 set to zero."""
    rows = np.array(rows, dtype=float)
    place = 0
    for column in range(rows.shape[1]):
        if place == len(rows):
            break
        pivot = place + int(np.argmax(np.abs(rows[place:, column])))
        if abs(rows[pivot, column]) < 1e-7:
            continue
        rows[[place, pivot]] = rows[[pivot, place]]
        rows[place] /= rows[place, column]
        for row in range(len(rows)):
            if row != place:
                rows[row] -= rows[row, column] * rows[place]
        place += 1
    return np.where(np.abs(rows) < 1e-10, 0.0, rows)


def tidy_signs(rows: np.ndarray) -> np.ndarray:
    """Return the directions with signs such that their largest component is positive."""
    largest = np.argmax(np.round(np.abs(rows), 9), axis=1)
    return rows * np.sign(rows[np.arange(len(rows)), largest])[:, None] + 0.0


def _gram(table: HermiteTable, turned: list[np.ndarray], inside: int, r: int) -> np.ndarray:
    r"""Return the Gram matrix of one index of :math:`C_r(x)`; its trace is the squared size of the tensor.

    .. math:: \frac{1}{r!} \sum_{|\beta| = r - 1} \frac{(r-1)!}{\beta!}
              E_x\big[C_{\beta + e_i}(x)\,C_{\beta + e_j}(x)\big]
    """
    k = table.k
    outside = k - inside
    gram = np.zeros((outside, outside))
    for n in range(r, table.order + 1):
        index = {tuple(map(int, m)): c for m, c in zip(monomials(k, n), turned[n], strict=True)}
        for lower in monomials(k, n - 1):
            if lower[inside:].sum() != r - 1:
                continue
            entries = []
            for i in range(outside):
                raised = lower.copy()
                raised[inside + i] += 1
                entries.append(index[tuple(map(int, raised))])
            weight = 1.0 / (r * math.prod(math.factorial(int(b)) for b in lower))
            gram += weight * np.outer(entries, entries)
    return gram


def spanning_coordinates(rows: np.ndarray) -> tuple[int, ...] | None:
    """Return the coordinates that span a subspace (orthonormal rows), or None if it is not spanned by coordinates."""
    diagonal = np.diagonal(rows.T @ rows) if len(rows) else np.zeros(rows.shape[1])
    if np.all(np.minimum(np.abs(diagonal), np.abs(diagonal - 1.0)) < 1e-12):
        return tuple(int(i) for i in np.flatnonzero(diagonal > 0.5))
    return None


INDEPENDENT = "since no term depends on the remaining directions"


def prover(table: HermiteTable, symmetries: Symmetries) -> Prover:
    """Return a function that proves zeros without integration: by exact arithmetic, the formula, or symmetries."""

    def prove(learned: np.ndarray, r: int) -> str | None:
        if table.depends_within(learned):
            return INDEPENDENT
        inside = spanning_coordinates(learned)
        if inside is not None:
            outside = [i for i in range(table.k) if i not in inside]
            if table.proved_zero is not None and (not inside or table.beyond == 0.0):
                met = range(r, table.order + 1) if inside else [r]
                if all(
                    np.all(table.proved_zero[n][monomials(table.k, n)[:, outside].sum(axis=1) == r])
                    for n in met
                    if n <= table.order
                ):
                    return "exactly"
            if table.support is not None and not any(_can_have(term, outside, r) for term in table.support):
                return "by the form of every term"
        return symmetries.forbids(learned, r)

    return prove


def _can_have(degrees: Sequence[frozenset[int]], outside: Sequence[int], r: int) -> bool:
    """Whether the possible degrees in the variables ``outside`` can add up to r."""
    sums = {0}
    for i in outside:
        sums = {s + n for s in sums for n in degrees[i] if s + n <= r}
    return r in sums
