"""Split the formula of a target into a sum of products of functions of few variables."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.algebra import as_fraction
from twolayer.problem import AbstractTarget, Committee, MultiIndex, SingleIndex
from twolayer.problem.expression import Expression, symbolic_activation

if TYPE_CHECKING:
    import sympy as sp

# A formula with more terms than this after expansion is not expanded.
MAX_TERMS = 400
# A number with a larger denominator is a rounded one.
MAX_DENOMINATOR = 10**12
# A sum is far from zero if it exceeds this fraction of the sum of absolute values; rounding is much smaller.
SEEN = 1e-6
# The largest multiple of an angle up to which identities of sines are tried.
MAX_MULTIPLE = 12
KINKED = ("Abs", "sign", "Max", "Min", "Heaviside")


@dataclass(frozen=True)
class Factor:
    """A function of some of the variables."""

    variables: tuple[int, ...]
    form: Any  # sympy, in the symbols of these variables
    symbols: tuple[Any, ...]

    def function(self) -> Callable[..., np.ndarray]:
        """The factor as a function of arrays of its variables."""
        import sympy as sp

        compiled = sp.lambdify(self.symbols, self.form, modules=["scipy", "numpy"])
        return lambda *x: np.broadcast_to(np.asarray(compiled(*x), dtype=float), np.broadcast_shapes(*map(np.shape, x)))

    @property
    def is_smooth(self) -> bool:
        """Whether the factor contains no functions with kinks."""
        return not any(type(part).__name__ in KINKED for part in _parts(self.form))

    @property
    def powers(self) -> dict[int, Fraction] | None:
        """The exact coefficients of a polynomial in one variable by power; None if the factor is not one."""
        import sympy as sp

        if len(self.symbols) != 1 or not self.form.is_polynomial(*self.symbols):
            return None
        terms = sp.Poly(self.form, *self.symbols).terms()
        if not all(c.is_Rational for _, c in terms):
            return None
        return {int(n): Fraction(int(c.p), int(c.q)) for (n,), c in terms}

    def parity(self) -> int:
        """The parity of a function of one variable: +1 if it is proved even, -1 if proved odd, else 0."""
        (x,) = self.symbols
        mirrored = self.form.subs(x, -x)
        return 1 if vanishes(mirrored - self.form) else -1 if vanishes(mirrored + self.form) else 0

    def kinks(self, reach: float) -> list[float]:
        """Return where a function of one variable may have kinks: the zeros of the arguments of ``abs`` and others."""
        import sympy as sp
        from scipy.optimize import brentq

        (x,) = self.symbols
        grid = np.linspace(-reach, reach, 2001)
        places = {0.0}
        for part in _parts(self.form):
            name = type(part).__name__
            if name not in KINKED:
                continue
            first, *others = part.args
            inside = [first - other for other in others] if name in ("Max", "Min") else [first]
            for argument in inside:
                value = sp.lambdify(x, argument, modules=["scipy", "numpy"])
                signs = np.sign(np.broadcast_to(np.asarray(value(grid), dtype=float), grid.shape))
                for below in np.flatnonzero(signs[1:] * signs[:-1] < 0):
                    places.add(float(brentq(value, grid[below], grid[below + 1], xtol=1e-15)))  # pyright: ignore
                places |= set(grid[signs == 0].tolist()) if np.mean(signs == 0) < 0.01 else set()
        return sorted(places)


def _parts(form: Any) -> list[Any]:
    import sympy as sp

    return list(sp.preorder_traversal(form))


def vanishes(form: "sp.Expr") -> bool:
    """Whether an expression is proved to be zero; False means that this was not proved."""
    import sympy as sp

    if form == 0:
        return True
    if _is_seen(form):
        return False
    form = sp.expand(form)
    return form == 0 or (is_tame(form) and sp.simplify(form) == 0)


def _is_seen(form: Any) -> bool:
    """Whether an expression is far from zero at one of a few points, so that it needs no proof."""
    import sympy as sp

    symbols = sorted(form.free_symbols, key=str)
    points = np.random.default_rng(0).standard_normal((len(symbols), 5))
    try:
        with np.errstate(all="ignore"):
            parts = [sp.lambdify(symbols, part, modules=["scipy", "numpy"])(*points) for part in sp.Add.make_args(form)]
            values = np.stack([np.broadcast_to(np.asarray(part, dtype=float), (5,)) for part in parts])
    except (TypeError, ValueError, NameError, OverflowError):  # a function that NumPy does not have
        return False
    size = np.sum(np.abs(values), axis=0)
    return bool(np.any((np.abs(np.sum(values, axis=0)) > SEEN * size) & (size > 0.0) & np.isfinite(size)))


def is_tame(form: "sp.Expr") -> bool:
    """Whether sympy simplifies an expression quickly: it is short, and no angle is a large multiple.

    Sympy expands a sine of n x into n products.
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
    is_exact: bool  # whether its numbers are exact, not rounded

    def function(self) -> Callable[..., np.ndarray]:
        """The formula as a function of arrays of the fields; polynomials by Horner's scheme, since powers are slow."""
        import sympy as sp

        is_polynomial = self.form.is_polynomial(*self.symbols) and self.form.free_symbols
        form = sp.horner(self.form, *self.symbols) if is_polynomial else self.form
        return Factor(tuple(range(len(self.symbols))), form, self.symbols).function()

    @property
    def polynomial(self) -> dict[tuple[int, ...], Any] | None:
        """The exact coefficients (fractions or sympy numbers) by exponents; None if it is not a polynomial."""
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
        """The formula as a sum of functions of single linear forms, with the vectors of these forms, or None.

        The constant is omitted, since it belongs to no direction.
        """
        import sympy as sp

        by_direction: dict[tuple[float, ...], tuple[Any, np.ndarray]] = {}
        t = sp.Symbol("t", real=True)
        for term in sp.Add.make_args(sp.expand(self.form, deep=False)):
            if not term.free_symbols:
                continue
            written = _along_one_form(term, self.symbols, t)
            if written is None:
                return None
            form, vector = written
            key = tuple(np.round(vector / np.linalg.norm(vector) * np.sign(vector[np.argmax(np.abs(vector))]), 12))
            if key in by_direction:
                ratio = sp.nsimplify(
                    float(vector @ by_direction[key][1] / (by_direction[key][1] @ by_direction[key][1])), rational=True
                )
                by_direction[key] = by_direction[key][0] + form.subs(t, ratio * t), by_direction[key][1]
            else:
                by_direction[key] = form, vector
        return [(Factor((0,), form, (t,)), vector) for form, vector in by_direction.values()]

    def terms(self) -> list[tuple[float, list[Factor]]] | None:
        """The terms as coefficients and factors in separate variables; None if the formula has too many terms."""
        import sympy as sp

        form = sp.expand(self.form, deep=False)
        listed = sp.Add.make_args(form)
        if len(listed) > MAX_TERMS:
            return None
        terms = []
        for term in listed:
            number, variable_part = term.as_independent(*self.symbols, as_Add=False)
            groups: list[tuple[set[Any], list[Any]]] = []
            for factor in sp.Mul.make_args(variable_part):
                used = set(factor.free_symbols)
                if not used:
                    continue
                joined = [group for group in groups if group[0] & used]
                groups = [group for group in groups if not group[0] & used]
                groups.append((used.union(*(g[0] for g in joined)), [factor, *(f for g in joined for f in g[1])]))
            places = (tuple(i for i, symbol in enumerate(self.symbols) if symbol in used) for used, _ in groups)
            terms.append((number, {place: sp.Mul(*parts) for place, (_, parts) in zip(places, groups, strict=True)}))
        for variable in range(len(self.symbols)):
            terms = _merged(terms, (variable,))
        return [
            (float(number), [Factor(at, form, tuple(self.symbols[i] for i in at)) for at, form in factors.items()])
            for number, factors in terms
        ]


def in_fewest_fields(formula: Formula) -> tuple[str, np.ndarray] | None:
    r"""A formula that varies along fewer directions than it has fields, as a formula of that many fields.

    Directions v along which it does not vary, those with :math:`v \cdot \nabla f = 0`, are found numerically and then
    proved. The result is a formula and the orthonormal rows that are its fields; None if there is no such direction,
    or none is proved.
    """
    import sympy as sp

    symbols = formula.symbols
    slopes = [sp.diff(formula.form, symbol) for symbol in symbols]
    points = np.random.default_rng(0).standard_normal((len(symbols), 8 * len(symbols)))
    try:
        with np.errstate(all="ignore"):
            rows = [sp.lambdify(symbols, slope, modules=["scipy", "numpy"])(*points) for slope in slopes]
            values = np.stack([np.broadcast_to(np.asarray(row, dtype=float), points.shape[1]) for row in rows])
    except (TypeError, ValueError, NameError, OverflowError):  # a function that NumPy does not have
        return None
    values = values[:, np.all(np.isfinite(values), axis=0)]
    if not values.size:
        return None
    sizes, vectors = np.linalg.eigh(values @ values.T)
    flat = vectors[:, sizes < 1e-16 * sizes[-1]].T
    if not len(flat) or len(flat) == len(symbols):
        return None
    # Numbers of few digits, in which formulas are written, are recognised in the reduced echelon form.
    reduced = sp.Matrix(flat).rref(iszerofunc=lambda x: abs(x) < 1e-9)[0]
    exact = reduced.applyfunc(lambda x: sp.nsimplify(x, rational=True, tolerance=1e-9).limit_denominator(1000))
    for row in range(exact.rows):
        if not vanishes(sp.Add(*(exact[row, i] * slope for i, slope in enumerate(slopes)))):
            return None
    rest = sp.Matrix([vector.T for vector in exact.nullspace()]).rref()[0]
    basis = sp.GramSchmidt([rest.row(i) for i in range(rest.rows)], orthonormal=True)
    new = sp.symbols(f"z1:{len(basis) + 1}", real=True)
    moved = {s: sp.Add(*(row[i] * field for row, field in zip(basis, new, strict=True))) for i, s in enumerate(symbols)}
    form = sp.expand(formula.form.subs(moved, simultaneous=True))
    return str(form), np.array([[float(x) for x in row] for row in basis])


def _along_one_form(term: Any, symbols: tuple[Any, ...], t: Any) -> tuple[Any, np.ndarray] | None:
    """Return a term as a function of its linear form t, and the vector of t; None if it has several linear forms."""
    import sympy as sp

    vector, replaced = None, {}
    for part in _parts(term):
        if not part.free_symbols or not part.is_polynomial(*symbols):
            continue
        linear = sp.Poly(part, *symbols)
        if linear.total_degree() != 1:
            continue
        coefficients, offset = [linear.coeff_monomial(symbol) for symbol in symbols], linear.coeff_monomial(1)
        if vector is None:
            vector = coefficients
        first = next(i for i, c in enumerate(vector) if c != 0)
        ratio = coefficients[first] / vector[first]
        if all(sp.simplify(c - ratio * v) == 0 for c, v in zip(coefficients, vector, strict=True)):
            replaced[part] = ratio * t + offset
    if vector is None:
        return None
    form = term.xreplace(replaced)
    if form.free_symbols != {t}:
        return None
    return form, np.array([float(c) for c in vector])


def _merged(terms: list[tuple[Any, dict[Any, Any]]], place: tuple[int, ...]) -> list[tuple[Any, dict[Any, Any]]]:
    """Merge terms that differ only in their factor of one variable: x^3 y - 3 x y is He_3(x) y."""
    import sympy as sp

    groups: dict[Any, list[tuple[Any, dict[Any, Any]]]] = {}
    for number, factors in terms:
        other_factors = frozenset((at, form) for at, form in factors.items() if at != place)
        is_apart = all(place[0] not in at for at, _ in other_factors)
        groups.setdefault(other_factors if is_apart else len(groups), []).append((number, factors))
    merged = []
    for members in groups.values():
        if len(members) == 1:
            merged += members
            continue
        form = sp.Add(*(number * factors.get(place, 1) for number, factors in members))
        other_factors = {at: f for at, f in members[0][1].items() if at != place}
        if form != 0:
            merged.append((sp.Integer(1), other_factors | ({place: form} if form.free_symbols else {})))
            if not form.free_symbols:
                merged[-1] = (form, other_factors)
    return merged


def formula_of(target: AbstractTarget) -> Formula | None:
    """Return the formula of a target, or None if it has none."""
    import sympy as sp

    symbols = sp.symbols(f"z1:{target.k + 1}", real=True)
    text = (
        target.function if isinstance(target, MultiIndex) else target.link if isinstance(target, SingleIndex) else None
    )
    if isinstance(text, Expression):
        symbolic = text.symbolic(target.k)
        return None if symbolic is None else Formula(symbolic[0], symbols, symbolic[1])
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
