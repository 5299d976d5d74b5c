r"""Hermite tensors of a function of k normal variables, as tables, and how they turn with the basis.

.. math:: f = \sum_\beta \frac{c_\beta}{\beta!} \prod_i \mathrm{He}_{\beta_i}(z_i), \qquad
          c_\beta = E\Big[f \prod_i \mathrm{He}_{\beta_i}(z_i)\Big] = C_{|\beta|}[i_1, \dots, i_{|\beta|}]

The entries of the symmetric tensor :math:`C_n = E[\nabla^n f]` that differ are those of the monomials of degree n. As a
homogeneous polynomial :math:`\langle C_n, v^{\otimes n} \rangle = \sum_\beta \frac{n!}{\beta!} c_\beta v^\beta` it
turns with the basis by substitution, and :math:`\sum_\beta c_\beta^2 / \beta!` does not change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

# The largest number of monomials of one degree.
MAX_MONOMIALS = 3000


@lru_cache(maxsize=512)
def monomials(k: int, n: int) -> np.ndarray:
    """All exponents of degree n in k variables, (count, k)."""
    if k == 1:
        return np.array([[n]])
    parts = [np.pad(monomials(k - 1, n - first), ((0, 0), (1, 0)), constant_values=first) for first in range(n, -1, -1)]
    return np.concatenate(parts)


def count(k: int, n: int) -> int:
    """How many they are."""
    return math.comb(n + k - 1, k - 1)


@lru_cache(maxsize=512)
def _index(k: int, n: int) -> dict[tuple[int, ...], int]:
    return {tuple(map(int, exponents)): place for place, exponents in enumerate(monomials(k, n))}


@lru_cache(maxsize=512)
def _raised(k: int, n: int) -> np.ndarray:
    """Where each monomial of degree n goes when one more factor i is put to it, (k, count)."""
    index = _index(k, n + 1)
    places = [[index[tuple(int(b) for b in beta + step)] for beta in monomials(k, n)] for step in np.eye(k, dtype=int)]
    return np.array(places)


@lru_cache(maxsize=512)
def factorials(k: int, n: int) -> np.ndarray:
    r""":math:`\beta!` of each monomial."""
    table = np.array([float(math.factorial(m)) for m in range(n + 1)])
    return np.prod(table[monomials(k, n)], axis=1)


def _turned_powers(basis: np.ndarray, orders: int) -> list[np.ndarray]:
    """For each degree the monomials in v as polynomials in w, where v_j = sum_i w_i basis[i, j]."""
    k = len(basis)
    found = [np.ones((1, 1))]
    for n in range(orders):
        before = found[-1]
        rows = np.zeros((count(k, n + 1), count(k, n + 1)))
        done = np.zeros(len(rows), dtype=bool)
        raised = _raised(k, n)
        for j in range(k):
            new = ~done[raised[j]]
            target = raised[j][new]
            for i in range(k):
                rows[np.ix_(target, raised[i])] += basis[i, j] * before[new]
            done[target] = True
        found.append(rows)
    return found


@dataclass(frozen=True)
class HermiteTable:
    """The Hermite tensors of one function, up to an order, with errors.

    ``values[n]``, ``errors[n]`` and ``proved_zero[n]`` are aligned with ``monomials(k, n)``; ``beyond`` bounds the size
    of all higher orders together, zero for a polynomial. ``support`` says, where the structure of the formula is known,
    which degrees in each variable its terms can have at all, at any order: for each term and variable a set.
    """

    k: int
    values: Sequence[np.ndarray]
    errors: Sequence[np.ndarray]
    variance: float
    beyond: float = 0.0
    proved_zero: Sequence[np.ndarray] | None = None
    support: Any = None
    ridges: np.ndarray | None = None  # rows: the function is a sum of functions of these linear forms
    how: str = ""
    _turned: dict[bytes, list[np.ndarray]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def order(self) -> int:
        """The highest order in the table."""
        return len(self.values) - 1

    @property
    def scale(self) -> float:
        """The standard deviation of the function."""
        return math.sqrt(max(self.variance, 0.0))

    def sizes(self) -> np.ndarray:
        r"""For each order :math:`\|C_n\| / \sqrt{n!}`: its square is the share of the order in :math:`E f^2`."""
        return np.array([math.sqrt(np.sum(c**2 / factorials(self.k, n))) for n, c in enumerate(self.values)])

    def size_errors(self) -> np.ndarray:
        """Bounds on the errors of the sizes, in any basis."""
        return np.array([math.sqrt(np.sum(e**2 / factorials(self.k, n))) for n, e in enumerate(self.errors)])

    def turned(self, basis: np.ndarray) -> list[np.ndarray]:
        """The entries in another orthonormal basis, whose vectors are rows."""
        key = np.asarray(basis).tobytes()
        if key not in self._turned:
            powers = _turned_powers(np.asarray(basis), self.order)
            found = []
            for n, (c, matrix) in enumerate(zip(self.values, powers, strict=True)):
                weight = math.factorial(n) / factorials(self.k, n)
                found.append((weight * c) @ matrix / weight)
            self._turned[key] = found
        return self._turned[key]

    def tensor(self, n: int) -> np.ndarray:
        r"""The tensor :math:`C_n` with all its :math:`k^n` entries."""
        index = _index(self.k, n)
        full = np.zeros((self.k,) * n)
        for place in np.ndindex(*full.shape):
            full[place] = self.values[n][index[tuple(np.bincount(place, minlength=self.k).tolist())]] if n else 0.0
        return full if n else np.asarray(self.values[0][0])

    def depends_within(self, subspace: np.ndarray) -> bool:
        """Whether all forms that the function is known to depend on lie in a subspace (orthonormal rows)."""
        if self.ridges is None:
            return False
        left = self.ridges - self.ridges @ subspace.T @ subspace
        return bool(np.all(np.abs(left) < 1e-9 * np.max(np.abs(self.ridges))))

    def seen_by(self, orders: Sequence[bool]) -> "HermiteTable":
        """The same function without the orders that are not seen."""
        keep = [n == 0 or (n < len(orders) and bool(orders[n])) for n in range(self.order + 1)]
        values = [c if kept else np.zeros_like(c) for c, kept in zip(self.values, keep, strict=True)]
        zero = self.proved_zero or [np.zeros(len(c), dtype=bool) for c in self.values]
        zero = [z if kept else np.ones_like(z) for z, kept in zip(zero, keep, strict=True)]
        errors = [e if kept else np.zeros_like(e) for e, kept in zip(self.errors, keep, strict=True)]
        return HermiteTable(
            self.k, values, errors, self.variance, self.beyond, zero, self.support, self.ridges, self.how
        )


def rest(values: Sequence[np.ndarray], errors: Sequence[np.ndarray], variance: float, k: int) -> float:
    """A bound on the size of all orders beyond those given, by Parseval's identity.

    A difference of nearly equal numbers resolves no less than the root of their rounding. Where it resolves nothing and
    the last three orders are zero within their errors, the function is a polynomial as far as numbers tell, and the
    bound is that of these errors.
    """
    weights = [1.0 / factorials(k, n) for n in range(len(values))]
    sizes = np.array([float(np.sum(c**2 * w)) for c, w in zip(values, weights, strict=True)])
    bounds = np.array([float(np.sum(e**2 * w)) for e, w in zip(errors, weights, strict=True)])
    left = variance - float(np.sum(sizes[1:]))
    error = 2.0 * float(np.sum(np.sqrt(sizes * bounds))) + 1e-12 * variance
    if len(sizes) > 4 and abs(left) < 1e-8 * variance and np.all(sizes[-3:] <= bounds[-3:]):
        return math.sqrt(float(np.sum(bounds)))
    return math.sqrt(max(left, 0.0) + error)
