r"""Polynomials in the overlaps with letters for units, and with implicit sums over units.

The equations of motion are the same for every unit, so they are derived once, for units j and l. The student's output
brings in further units m and n, over which the equations sum; each of them comes with its weight :math:`a_m`, so that a
term that contains :math:`a_m` is summed over m. Two readings follow: `at_units` puts in numbers for all letters at a
given width p, `with_sums` keeps j and l and writes the sums, at any p.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from twolayer.core.algebra import Monomial

if TYPE_CHECKING:
    from sympy.polys.rings import PolyElement

FREE = ("j", "l")
SUMMED = ("m", "n")
UNITS = (*FREE, *SUMMED)
PARAMETERS = ("gamma", "Delta", "kappa", "weight_decay")

# ("Q", "j", "m"), ("M", "j", 1), ("P", 1, 2), ("a", "m"), ("gamma",), ("p",); ("1/p",) and ("1/Q", "j") are inverses.
# ("sum", monomial) is a sum over the units m, or m and n, that occur in it.
Key = tuple[Any, ...]


class IndexForm(NamedTuple):
    """Right-hand sides for units j and l as elements of an `OverlapRing`; ``dM`` has one for each target field."""

    dQ: Any
    dM: list[Any]
    da: Any
    excess_risk: Any


class OverlapRing:
    """The ring of polynomials in the overlaps, the second layer and the rates.

    ``has_unit_rows`` puts in 1 for the squared lengths of the student's rows, ``has_unit_weights`` for the second
    layer, ``is_orthonormal`` the identity for P.
    """

    def __init__(self, k: int, has_unit_rows: bool, has_unit_weights: bool, is_orthonormal: bool):
        from sympy import QQ
        from sympy.polys.rings import PolyRing

        self.has_unit_rows = has_unit_rows
        self.has_unit_weights = has_unit_weights
        self.is_orthonormal = is_orthonormal
        fields = range(1, k + 1)
        self.keys: list[Key] = [
            *((name,) for name in (*PARAMETERS, "p", "1/p")),
            *(("a", unit) for unit in UNITS),
            *(("1/Q", unit) for unit in FREE),
            *(("Q", *pair) for pair in itertools.combinations_with_replacement(UNITS, 2)),
            *(("M", unit, r) for unit in UNITS for r in fields),
            *(("P", *pair) for pair in itertools.combinations_with_replacement(fields, 2)),
        ]
        self.ring = PolyRing([f"x{n}" for n in range(len(self.keys))], QQ)
        self._generators = dict(zip(self.keys, self.ring.gens, strict=True))

    def __call__(self, *key: Any) -> Any:
        """The element of a key: an unknown, or the number that was put in."""
        if key[0] in ("Q", "1/Q") and key[1] == key[-1] and self.has_unit_rows:
            return self.ring.one
        if key[0] == "P" and self.is_orthonormal:
            return self.ring.one if key[1] == key[2] else self.ring.zero
        return self._generators[key]

    def covariance(self, u: int | str, v: int | str) -> "PolyElement":
        """The covariance of two fields: letters are units of the student, numbers are fields of the target."""
        if isinstance(u, int) and isinstance(v, int):
            return self("P", *sorted((u, v)))
        if isinstance(u, int):
            u, v = v, u
        return self("M", u, v) if isinstance(v, int) else self("Q", *sorted((u, v)))

    def renamed(self, element: "PolyElement", letters: Mapping[str, str]) -> "PolyElement":
        """The element with other letters for the units j and l."""
        total = self.ring.zero
        for factors, coefficient in self.factors(element):
            term = self.ring(coefficient)
            for key, power in factors:
                name, *units = key
                named = [letters.get(unit, unit) if isinstance(unit, str) else unit for unit in units]
                term *= self(name, *(sorted(named) if name == "Q" else named)) ** power
            total += term
        return total

    def factors(self, element: "PolyElement") -> Iterator[tuple[list[tuple[Key, int]], Fraction]]:
        """The terms of an element: the powers of its unknowns, and the coefficient."""
        for powers, coefficient in element.terms():
            factors = [(key, power) for key, power in zip(self.keys, powers, strict=True) if power]
            yield factors, Fraction(int(coefficient.numerator), int(coefficient.denominator))

    def size(self, element: "PolyElement", p: int) -> int:
        """The number of terms when the sums are written out at a width p, before like terms are merged."""
        return sum(p ** len(_summed(factors)) for factors, _ in self.factors(element))

    def at_units(self, element: "PolyElement", p: int, units: Mapping[str, int]) -> dict[Monomial, Fraction]:
        """The element at a width p and given units (from 1) for the letters that are not summed over."""
        total: dict[Monomial, Fraction] = {}
        for factors, coefficient in self.factors(element):
            summed = _summed(factors)
            for values in itertools.product(range(1, p + 1), repeat=len(summed)):
                named = {**units, **dict(zip(summed, values, strict=True))}
                powers: Counter[Key] = Counter()
                for (name, *letters), power in factors:
                    self._count(powers, (name, *(named.get(x, x) for x in letters)), power)
                scale = Fraction(p) ** powers.pop(("p",), 0)
                key = _monomial(powers)
                total[key] = total.get(key, Fraction(0)) + coefficient * scale
        return total

    def with_sums(self, element: "PolyElement") -> dict[Monomial, Fraction]:
        """The element with its sums as separate unknowns; empty sums are powers of p."""
        total: dict[Monomial, Fraction] = {}
        for factors, coefficient in self.factors(element):
            powers: Counter[Key] = Counter()
            inside: Counter[Key] = Counter()
            summed = _summed(factors)
            for key, power in factors:
                self._count(inside if set(key) & set(SUMMED) else powers, key, power)
            for part in _sums(inside, summed):
                powers[("sum", part) if part else ("p",)] += 1
            width = powers.pop(("p",), 0)
            powers[("p",) if width > 0 else ("1/p",)] = abs(width)
            key = _monomial(powers)
            total[key] = total.get(key, Fraction(0)) + coefficient
        return total

    def _count(self, powers: Counter[Key], key: Key, power: int) -> None:
        """Multiply by a power of an unknown; inverses are negative powers, and the letters of Q are sorted."""
        name, *rest = key
        if name == "a" and self.has_unit_weights:
            return
        if name in ("Q", "1/Q") and rest[0] == rest[-1]:
            if not self.has_unit_rows:
                powers[("Q", rest[0], rest[0])] += power if name == "Q" else -power
            return
        if name == "1/p":
            powers[("p",)] -= power
        else:
            powers[(name, *(sorted(rest) if name == "Q" else rest))] += power


def _summed(factors: list[tuple[Key, int]]) -> list[str]:
    """The letters that a term is summed over."""
    return [key[1] for key, _ in factors if key[0] == "a" and key[1] in SUMMED]


def _monomial(powers: Counter[Key]) -> Monomial:
    return tuple(sorted(((key, power) for key, power in powers.items() if power), key=repr))


def _sums(inside: Counter[Key], summed: list[str]) -> list[Monomial]:
    """The sums that a product of unknowns with the letters m and n falls into; single ones are over m."""
    if any(set(SUMMED) <= set(key) for key in inside):
        return [min(_monomial(inside), _monomial(_swapped(inside)), key=repr)]
    parts = [Counter({key: power for key, power in inside.items() if letter in key}) for letter in summed]
    return [_monomial(_swapped(part) if letter == "n" else part) for letter, part in zip(summed, parts, strict=True)]


def _swapped(powers: Counter[Key]) -> Counter[Key]:
    """The product with the letters m and n exchanged."""
    other = {"m": "n", "n": "m"}
    named = ((key[0], [other.get(x, x) for x in key[1:]], power) for key, power in powers.items())
    return Counter({(name, *(sorted(x) if name == "Q" else x)): power for name, x, power in named})
