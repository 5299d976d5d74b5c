"""What the formula of a target says about it: a sum of products of functions of few variables each."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from twolayer.core.algebra import as_fraction
from twolayer.problem import AbstractTarget, Committee, MultiIndex, SingleIndex
from twolayer.problem.expression import Expression, symbolic_activation

# A formula with more terms than this after expansion is left as it is.
MAX_TERMS = 400
# A number with a larger denominator is the rounding of another.
MAX_DENOMINATOR = 10**12
# A sum of parts is far from zero when it is more than this share of their moduli; rounding makes much less.
SEEN = 1e-6
# The largest factor of an angle up to which identities of sines are looked for.
MAX_MULTIPLE = 12
KINKED = ("Abs", "sign", "Max", "Min", "Heaviside")


@dataclass(frozen=True)
class Factor:
    """A function of some of the variables."""

    variables: tuple[int, ...]
    form: Any  # sympy, in the symbols of these variables
    symbols: tuple[Any, ...]

    def function(self) -> Callable[..., np.ndarray]:
        """Values from arrays of the variables."""
        import sympy as sp

        compiled = sp.lambdify(self.symbols, self.form, modules=["scipy", "numpy"])
        return lambda *x: np.broadcast_to(np.asarray(compiled(*x), dtype=float), np.broadcast_shapes(*map(np.shape, x)))

    @property
    def is_smooth(self) -> bool:
        """Whether it is free of functions with kinks."""
        return not any(type(part).__name__ in KINKED for part in _parts(self.form))

    @property
    def powers(self) -> dict[int, Fraction] | None:
        """The coefficients of a polynomial in one variable, exact; None for anything else."""
        import sympy as sp

        if len(self.symbols) != 1 or not self.form.is_polynomial(*self.symbols):
            return None
        terms = sp.Poly(self.form, *self.symbols).terms()
        if not all(c.is_Rational for _, c in terms):
            return None
        return {int(n): Fraction(int(c.p), int(c.q)) for (n,), c in terms}

    def parity(self) -> int:
        """+1 for even, -1 for odd, 0 for neither, of a function of one variable; only what is certain counts."""
        (x,) = self.symbols
        mirrored = self.form.subs(x, -x)
        return 1 if vanishes(mirrored - self.form) else -1 if vanishes(mirrored + self.form) else 0

    def kinks(self, reach: float) -> list[float]:
        """Where a function of one variable may have kinks: the zeros of what stands inside |.|, max and the like."""
        import sympy as sp
        from scipy.optimize import brentq

        (x,) = self.symbols
        grid = np.linspace(-reach, reach, 2001)
        found = {0.0}
        for part in _parts(self.form):
            name = type(part).__name__
            if name not in KINKED:
                continue
            first, *others = part.args
            inside = [first - other for other in others] if name in ("Max", "Min") else [first]
            for each in inside:
                value = sp.lambdify(x, each, modules=["scipy", "numpy"])
                signs = np.sign(np.broadcast_to(np.asarray(value(grid), dtype=float), grid.shape))
                for left in np.flatnonzero(signs[1:] * signs[:-1] < 0):
                    found.add(float(brentq(value, grid[left], grid[left + 1], xtol=1e-15)))  # pyright: ignore
                found |= set(grid[signs == 0].tolist()) if np.mean(signs == 0) < 0.01 else set()
        return sorted(found)


def _parts(form: Any) -> list[Any]:
    import sympy as sp

    return list(sp.preorder_traversal(form))


def vanishes(form: Any) -> bool:
    """Whether an expression is zero for certain; False says that this was not proved."""
    import sympy as sp

    if form == 0:
        return True
    if _is_seen(form):
        return False
    form = sp.expand(form)
    return form == 0 or (is_tame(form) and sp.simplify(form) == 0)


def _is_seen(form: Any) -> bool:
    """Whether an expression is far from zero at one of a few points, so that no proof need be tried."""
    import sympy as sp

    symbols = sorted(form.free_symbols, key=str)
    points = np.random.default_rng(0).standard_normal((len(symbols), 5))
    try:
        with np.errstate(all="ignore"):
            parts = [sp.lambdify(symbols, part, modules=["scipy", "numpy"])(*points) for part in sp.Add.make_args(form)]
            values = np.stack([np.broadcast_to(np.asarray(part, dtype=float), (5,)) for part in parts])
    except (TypeError, ValueError, NameError, OverflowError):  # a function that numpy does not have
        return False
    size = np.sum(np.abs(values), axis=0)
    return bool(np.any((np.abs(np.sum(values, axis=0)) > SEEN * size) & (size > 0.0) & np.isfinite(size)))


def is_tame(form: Any) -> bool:
    """Whether sympy's simplifications of an expression end soon: it is short, and no angle is a large multiple.

    A sine of n x is taken apart into n products on the way.
    """
    import sympy as sp

    angles = [part.args[0] for part in _parts(form) if isinstance(part, sp.sin | sp.cos)]
    multiples = [number for angle in angles for number in angle.atoms(sp.Number)]
    return bool(form.count_ops() < 200 and all(abs(number) <= MAX_MULTIPLE for number in multiples))


@dataclass(frozen=True)
class Formula:
    """A target as a sympy expression in k symbols."""

    form: Any
    symbols: tuple[Any, ...]
    is_exact: bool  # whether its numbers are those that were meant, and not rounded ones

    def function(self) -> Callable[..., np.ndarray]:
        """Values from arrays of the fields; polynomials by Horner's scheme, since powers of arrays are slow."""
        import sympy as sp

        is_polynomial = self.form.is_polynomial(*self.symbols) and self.form.free_symbols
        form = sp.horner(self.form, *self.symbols) if is_polynomial else self.form
        return Factor(tuple(range(len(self.symbols))), form, self.symbols).function()

    @property
    def polynomial(self) -> dict[tuple[int, ...], Any] | None:
        """Exponents -> exact coefficient (a fraction, or a number of sympy's), or None for another function."""
        import sympy as sp

        if not self.form.is_polynomial(*self.symbols):
            return None
        terms = sp.Poly(self.form, *self.symbols).terms()
        if any(c.free_symbols or not c.is_number for _, c in terms):
            return None
        return {
            tuple(map(int, e)): Fraction(int(c.p), int(c.q)) if c.is_Rational else sp.nsimplify(c)
            for e, c in terms
            if c
        }

    def ridges(self) -> list[tuple[Factor, np.ndarray]] | None:
        """The formula as a sum of functions of one linear form each, with the vectors of these forms; else None.

        The constant is left out: it belongs to no direction.
        """
        import sympy as sp

        found: dict[tuple[float, ...], tuple[Any, np.ndarray]] = {}
        t = sp.Symbol("t", real=True)
        for term in sp.Add.make_args(sp.expand(self.form, deep=False)):
            if not term.free_symbols:
                continue
            written = _along_one_form(term, self.symbols, t)
            if written is None:
                return None
            form, vector = written
            key = tuple(np.round(vector / np.linalg.norm(vector) * np.sign(vector[np.argmax(np.abs(vector))]), 12))
            if key in found:
                ratio = sp.nsimplify(float(vector @ found[key][1] / (found[key][1] @ found[key][1])), rational=True)
                found[key] = found[key][0] + form.subs(t, ratio * t), found[key][1]
            else:
                found[key] = form, vector
        return [(Factor((0,), form, (t,)), vector) for form, vector in found.values()]

    def terms(self) -> list[tuple[float, list[Factor]]] | None:
        """Coefficients and factors in separate variables; None when the formula has too many terms."""
        import sympy as sp

        form = sp.expand(self.form, deep=False)
        listed = sp.Add.make_args(form)
        if len(listed) > MAX_TERMS:
            return None
        found = []
        for term in listed:
            number, rest = term.as_independent(*self.symbols, as_Add=False)
            groups: list[tuple[set[Any], list[Any]]] = []
            for factor in sp.Mul.make_args(rest):
                used = set(factor.free_symbols)
                if not used:
                    continue
                joined = [group for group in groups if group[0] & used]
                groups = [group for group in groups if not group[0] & used]
                groups.append((used.union(*(g[0] for g in joined)), [factor, *(f for g in joined for f in g[1])]))
            places = (tuple(i for i, symbol in enumerate(self.symbols) if symbol in used) for used, _ in groups)
            found.append((number, {place: sp.Mul(*parts) for place, (_, parts) in zip(places, groups, strict=True)}))
        for variable in range(len(self.symbols)):
            found = _merged(found, (variable,))
        return [
            (float(number), [Factor(at, form, tuple(self.symbols[i] for i in at)) for at, form in factors.items()])
            for number, factors in found
        ]


def _along_one_form(term: Any, symbols: tuple[Any, ...], t: Any) -> tuple[Any, np.ndarray] | None:
    """A term as a function of t, the first linear form in it, and the vector of that form; None if it has others."""
    import sympy as sp

    vector, replaced = None, {}
    for part in _parts(term):
        if not part.free_symbols or not part.is_polynomial(*symbols):
            continue
        linear = sp.Poly(part, *symbols)
        if linear.total_degree() != 1:
            continue
        here, offset = [linear.coeff_monomial(symbol) for symbol in symbols], linear.coeff_monomial(1)
        if vector is None:
            vector = here
        first = next(i for i, c in enumerate(vector) if c != 0)
        ratio = here[first] / vector[first]
        if all(sp.simplify(c - ratio * v) == 0 for c, v in zip(here, vector, strict=True)):
            replaced[part] = ratio * t + offset
    if vector is None:
        return None
    form = term.xreplace(replaced)
    if form.free_symbols != {t}:
        return None
    return form, np.array([float(c) for c in vector])


def _merged(terms: list[tuple[Any, dict[Any, Any]]], place: tuple[int, ...]) -> list[tuple[Any, dict[Any, Any]]]:
    """Terms that differ in their factor of one variable alone become one: x^3 y - 3 x y is He_3(x) y."""
    import sympy as sp

    groups: dict[Any, list[tuple[Any, dict[Any, Any]]]] = {}
    for number, factors in terms:
        others = frozenset((at, form) for at, form in factors.items() if at != place)
        is_apart = all(place[0] not in at for at, _ in others)
        groups.setdefault(others if is_apart else len(groups), []).append((number, factors))
    merged = []
    for members in groups.values():
        if len(members) == 1:
            merged += members
            continue
        form = sp.Add(*(number * factors.get(place, 1) for number, factors in members))
        others = {at: f for at, f in members[0][1].items() if at != place}
        if form != 0:
            merged.append((sp.Integer(1), others | ({place: form} if form.free_symbols else {})))
            if not form.free_symbols:
                merged[-1] = (form, others)
    return merged


def formula_of(target: AbstractTarget) -> Formula | None:
    """The formula of a target, where it has one that can be written down."""
    import sympy as sp

    symbols = sp.symbols(f"z1:{target.k + 1}", real=True)
    text = (
        target.function if isinstance(target, MultiIndex) else target.link if isinstance(target, SingleIndex) else None
    )
    if isinstance(text, Expression):
        found = text.symbolic(target.k)
        return None if found is None else Formula(found[0], symbols, found[1])
    polynomial = target.polynomial
    if polynomial is not None:
        numbers = {e: as_fraction(c) for e, c in polynomial.terms.items()}
        exact = all(c.denominator <= MAX_DENOMINATOR for c in numbers.values())
        terms = (
            sp.Rational(c.numerator, c.denominator) * sp.Mul(*(s**n for s, n in zip(symbols, e, strict=True)))
            for e, c in numbers.items()
        )
        return Formula(sp.Add(*terms), symbols, exact)
    if isinstance(target, Committee) or target.units is not None:
        units = target.units
        assert units is not None
        forms = [symbolic_activation(units.activation, symbol) for symbol in symbols]
        if any(form is None for form in forms):
            return None
        weights = [as_fraction(float(w)) for w in np.asarray(units.weights)]
        exact = all(w.denominator <= MAX_DENOMINATOR for w in weights)
        total = sp.Add(*(sp.Rational(w.numerator, w.denominator) * f for w, f in zip(weights, forms, strict=True)))
        return Formula(total, symbols, exact)
    return None
