r"""Tables of the Hermite tensors of a function of k normal variables, and their change of basis.

.. math:: f = \sum_\beta \frac{c_\beta}{\beta!} \prod_i \mathrm{He}_{\beta_i}(z_i), \qquad
          c_\beta = E\Big[f \prod_i \mathrm{He}_{\beta_i}(z_i)\Big] = C_{|\beta|}[i_1, \dots, i_{|\beta|}]

The entries of the symmetric tensor :math:`C_n = E[\nabla^n f]` that differ are those of the monomials of degree n. As a
homogeneous polynomial :math:`\langle C_n, v^{\otimes n} \rangle = \sum_\beta \frac{n!}{\beta!} c_\beta v^\beta` it
changes with the basis by substitution, and :math:`\sum_\beta c_\beta^2 / \beta!` is invariant.
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
    """Return all exponents of degree n in k variables, an array of shape (count, k)."""
    if k == 1:
        return np.array([[n]])
    parts = [np.pad(monomials(k - 1, n - first), ((0, 0), (1, 0)), constant_values=first) for first in range(n, -1, -1)]
    return np.concatenate(parts)


def monomial_count(k: int, n: int) -> int:
    """Return the number of monomials of degree n in k variables."""
    return math.comb(n + k - 1, k - 1)


@lru_cache(maxsize=512)
def _index(k: int, n: int) -> dict[tuple[int, ...], int]:
    return {tuple(map(int, exponents)): place for place, exponents in enumerate(monomials(k, n))}


@lru_cache(maxsize=512)
def _raised(k: int, n: int) -> np.ndarray:
    """Return the index of each monomial of degree n times variable i, an array of shape (k, count)."""
    index = _index(k, n + 1)
    places = [[index[tuple(int(b) for b in beta + step)] for beta in monomials(k, n)] for step in np.eye(k, dtype=int)]
    return np.array(places)


@lru_cache(maxsize=512)
def factorials(k: int, n: int) -> np.ndarray:
    r"""Return :math:`\beta!` of each monomial."""
    table = np.array([float(math.factorial(m)) for m in range(n + 1)])
    return np.prod(table[monomials(k, n)], axis=1)


def _turned_powers(basis: np.ndarray, orders: int) -> list[np.ndarray]:
    """Return, for each degree, the monomials in v as polynomials in w, where v_j = sum_i w_i basis[i, j]."""
    k = len(basis)
    powers = [np.ones((1, 1))]
    for n in range(orders):
        before = powers[-1]
        rows = np.zeros((monomial_count(k, n + 1), monomial_count(k, n + 1)))
        done = np.zeros(len(rows), dtype=bool)
        raised = _raised(k, n)
        for j in range(k):
            new = ~done[raised[j]]
            target = raised[j][new]
            for i in range(k):
                rows[np.ix_(target, raised[i])] += basis[i, j] * before[new]
            done[target] = True
        powers.append(rows)
    return powers


@dataclass(frozen=True)
class HermiteTable:
    """The Hermite tensors of one function, up to an order, with errors.

    ``values[n]``, ``errors[n]`` and ``proved_zero[n]`` are aligned with ``monomials(k, n)``; ``beyond`` bounds the size
    of all higher orders together, zero for a polynomial. ``support`` holds, if the structure of the formula is known,
    the degrees that its terms can have at any order: a set for each term and variable.
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
        r"""The size :math:`\|C_n\| / \sqrt{n!}` of each order; its square is the contribution to :math:`E f^2`."""
        return np.array([math.sqrt(np.sum(c**2 / factorials(self.k, n))) for n, c in enumerate(self.values)])

    def size_errors(self) -> np.ndarray:
        """Bounds on the errors of the sizes, in any basis."""
        return np.array([math.sqrt(np.sum(e**2 / factorials(self.k, n))) for n, e in enumerate(self.errors)])

    def turned(self, basis: np.ndarray) -> list[np.ndarray]:
        """Return the entries in another orthonormal basis, whose vectors are rows."""
        key = np.asarray(basis).tobytes()
        if key not in self._turned:
            powers = _turned_powers(np.asarray(basis), self.order)
            entries = []
            for n, (c, matrix) in enumerate(zip(self.values, powers, strict=True)):
                weight = math.factorial(n) / factorials(self.k, n)
                entries.append((weight * c) @ matrix / weight)
            self._turned[key] = entries
        return self._turned[key]

    def tensor(self, n: int) -> np.ndarray:
        r"""Return the tensor :math:`C_n` with all its :math:`k^n` entries."""
        index = _index(self.k, n)
        full = np.zeros((self.k,) * n)
        for place in np.ndindex(*full.shape):
            full[place] = self.values[n][index[tuple(np.bincount(place, minlength=self.k).tolist())]] if n else 0.0
        return full if n else np.asarray(self.values[0][0])

    def depends_within(self, subspace: np.ndarray) -> bool:
        """Whether the function is known to depend only on linear forms in a subspace (orthonormal rows)."""
        if self.ridges is None:
            return False
        outside = self.ridges - self.ridges @ subspace.T @ subspace
        return bool(np.all(np.abs(outside) < 1e-9 * np.max(np.abs(self.ridges))))

    def seen_by(self, orders: Sequence[bool]) -> "HermiteTable":
        """Return the table without the orders that are not seen."""
        keep = [n == 0 or (n < len(orders) and bool(orders[n])) for n in range(self.order + 1)]
        values = [c if is_seen else np.zeros_like(c) for c, is_seen in zip(self.values, keep, strict=True)]
        zero = self.proved_zero or [np.zeros(len(c), dtype=bool) for c in self.values]
        zero = [z if is_seen else np.ones_like(z) for z, is_seen in zip(zero, keep, strict=True)]
        errors = [e if is_seen else np.zeros_like(e) for e, is_seen in zip(self.errors, keep, strict=True)]
        return HermiteTable(
            self.k, values, errors, self.variance, self.beyond, zero, self.support, self.ridges, self.how
        )


def bound_beyond(values: Sequence[np.ndarray], errors: Sequence[np.ndarray], variance: float, k: int) -> float:
    """Return a bound on the size of all orders beyond those given, by Parseval's identity.

    A difference of nearly equal numbers cannot resolve sizes below the square root of their rounding. If the difference
    is that small and the last three orders are zero within their errors, the function is numerically a polynomial, and
    the bound is that of these errors.
    """
    weights = [1.0 / factorials(k, n) for n in range(len(values))]
    sizes = np.array([float(np.sum(c**2 * w)) for c, w in zip(values, weights, strict=True)])
    bounds = np.array([float(np.sum(e**2 * w)) for e, w in zip(errors, weights, strict=True)])
    remaining = variance - float(np.sum(sizes[1:]))
    error = 2.0 * float(np.sum(np.sqrt(sizes * bounds))) + 1e-12 * variance
    if len(sizes) > 4 and abs(remaining) < 1e-8 * variance and np.all(sizes[-3:] <= bounds[-3:]):
        return math.sqrt(float(np.sum(bounds)))
    return math.sqrt(max(remaining, 0.0) + error)
