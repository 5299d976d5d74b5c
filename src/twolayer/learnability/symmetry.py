r"""Symmetries of a target, and which Hermite tensors they forbid.

If :math:`f(g z) = \chi(g) f(z) + const` for a group of orthogonal matrices g that leave every vector of a subspace U in
its place, the tensors :math:`C_r(x) = E[f\,\mathbf{He}_r(z_\perp) \mid z_U = x]` of order :math:`r \ge 1` are
invariant, :math:`g^{\otimes r} C_r = \chi(g)\,C_r`. The number of independent tensors with this property is

.. math:: \frac1{|G|} \sum_g \chi(g)\, \mathrm{tr}\,\mathrm{Sym}^r(g|_\perp)

and where it is zero the tensor is zero, which is a proof without integration.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.learnability.formula import Formula, is_tame, vanishes

# Beyond this many variables only changes of signs are tried, since there are 2^k k! signed permutations.
MAX_PERMUTED = 4
MAX_FLIPPED = 8
POINTS = 24


@dataclass(frozen=True)
class Symmetries:
    """The group of signed permutations that leave a target unchanged up to a sign and a constant."""

    matrices: np.ndarray  # (elements, k, k)
    signs: np.ndarray  # (elements,)

    @property
    def invariances(self) -> "Symmetries":
        """The symmetries that leave every label unchanged."""
        keep = self.signs > 0
        return Symmetries(self.matrices[keep], self.signs[keep])

    def forbids(self, subspace: np.ndarray, r: int) -> str | None:
        """Return why the tensor of order r across a subspace (orthonormal rows) is zero, or None."""
        k = self.matrices.shape[1]
        across = np.eye(k) - subspace.T @ subspace
        moved = self.matrices @ subspace.T - subspace.T
        # An element of a finite group either fixes a vector or moves it by much more than this tolerance.
        fixed = np.max(np.abs(moved), axis=(1, 2), initial=0.0) < 1e-6
        group, signs = self.matrices[fixed], self.signs[fixed]
        if len(group) < 2:
            return None
        sums = []  # traces of powers on the complement
        power = np.broadcast_to(across, group.shape)
        for _ in range(r):
            power = power @ group
            sums.append(np.trace(power, axis1=1, axis2=2))
        complete: list[Any] = [np.ones(len(group))]  # traces on symmetric powers, by Newton's identities
        for n in range(1, r + 1):
            complete.append(sum(sums[i - 1] * complete[n - i] for i in range(1, n + 1)) / n)
        if abs(float(np.mean(signs * complete[r]))) > 0.5 / len(group):
            return None
        return f"by symmetry: none of order {r} is left by {len(group)} signed permutations of the fields"


def find_symmetries(formula: Formula | None, evaluate: Callable[[np.ndarray], np.ndarray], k: int) -> Symmetries:
    """Return the signed permutations under which a formula keeps its value or changes its sign, up to a constant.

    Candidates are selected by values at random points; those that sympy cannot prove are omitted.
    """
    group = {_key(np.eye(k)): (np.eye(k), 1.0)}
    if formula is None or k > MAX_FLIPPED:
        return _as_symmetries(group)
    z = np.random.default_rng(0).standard_normal((POINTS, k))
    candidates = list(_signed_permutations(k))
    values, *permuted_values = evaluate(np.stack([z, *(z @ g.T for g in candidates)]))
    scale = float(np.max(np.abs(values))) + 1e-300
    generators: list[tuple[np.ndarray, float]] = []
    for g, permuted in zip(candidates, permuted_values, strict=True):
        if _key(g) in group:  # a product of proved symmetries needs no proof
            continue
        for sign in (1.0, -1.0):
            gap = permuted - sign * values
            is_close = np.ptp(gap) < 1e-9 * scale and (sign < 0 or abs(gap[0]) < 1e-9 * scale)
            if is_close and _is_proved(formula, g, sign):
                generators.append((g, sign))
                _close(group, generators)
                break
    return _as_symmetries(group)


def _key(matrix: np.ndarray) -> bytes:
    return matrix.astype(np.int8).tobytes()


def _close(group: dict[bytes, tuple[np.ndarray, float]], generators: list[tuple[np.ndarray, float]]) -> None:
    """Add all products of elements, so that the result is a group."""
    fresh = list(group.values())
    while fresh:
        products = {}
        for (g, sign), (h, other_sign) in itertools.product(fresh, generators):
            if (key := _key(g @ h)) not in group:
                products[key] = (g @ h, sign * other_sign)
        group |= products
        fresh = list(products.values())


def _as_symmetries(group: dict[bytes, tuple[np.ndarray, float]]) -> Symmetries:
    return Symmetries(np.stack([g for g, _ in group.values()]), np.array([sign for _, sign in group.values()]))


def _signed_permutations(k: int) -> Iterator[np.ndarray]:
    orders = itertools.permutations(range(k)) if k <= MAX_PERMUTED else [tuple(range(k))]
    for order in orders:
        for flips in itertools.product((1.0, -1.0), repeat=k):
            matrix = np.zeros((k, k))
            matrix[np.arange(k), order] = flips
            if not np.array_equal(matrix, np.eye(k)):
                yield matrix


def _is_proved(formula: Formula, g: np.ndarray, sign: float) -> bool:
    import sympy as sp

    rows = [sp.Add(*(int(x) * s for x, s in zip(row, formula.symbols, strict=True))) for row in g]
    moved = formula.form.subs(dict(zip(formula.symbols, rows, strict=True)), simultaneous=True)
    gap = sp.expand(moved - int(sign) * formula.form)
    if sign > 0:
        return vanishes(gap)
    # The difference at zero is subtracted, since symmetries hold up to a constant.
    return vanishes(gap) or (is_tame(gap) and not sp.simplify(gap).free_symbols)
