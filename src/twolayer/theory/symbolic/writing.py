"""From the index form to sympy: the symbol of each unknown, and the order of terms in a formula."""

from typing import Any

from twolayer.core.algebra import as_fraction, sympy_number, tidy
from twolayer.core.multivariate import Polynomial
from twolayer.theory.symbolic.equations import Equations, KnownValues
from twolayer.theory.symbolic.indexed import PARAMETERS, SUMMED, IndexForm, Key, OverlapRing

NAMES = {"weight_decay": "lambda_w"}
# Terms of formulas are collected in this order, so that the noise and the variance term stand apart.
COLLECTED = ("Delta", "gamma", "weight_decay", "kappa", "1/p", "a")


def written_equations(
    ring: OverlapRing, form: IndexForm, given: KnownValues, p: int | None, sigma: Polynomial, f: Polynomial
) -> Equations:
    """The equations at a width p, or at any width if it is None, from their index form."""
    import sympy as sp

    symbols = _Symbols(p, f.variables)

    def write(element: Any, **units: Any) -> Any:
        terms = ring.with_sums(element) if p is None else ring.at_units(element, p, units)
        return tidy(terms, symbols, _rank)

    def overlap(j: Any, l: Any) -> Any:
        is_one = given.has_unit_rows and j == l
        return sp.Integer(1) if is_one else symbols.plain(("Q", *sorted((j, l))))

    def target_overlap(r: int, s: int) -> Any:
        return sp.Integer(int(r == s)) if given.is_orthonormal else symbols.plain(("P", *sorted((r, s))))

    def weight(j: Any) -> Any:
        return sp.Integer(1) if given.has_unit_weights else symbols.plain(("a", j))

    # At a given width units are numbers; at any width, the letters j and l stand for two of them.
    rows: Any = ["j"] if p is None else range(1, p + 1)
    columns: Any = ["l"] if p is None else rows
    fields = range(1, f.variables + 1)
    dQ = {(j, l): write(form.dQ, j=j, l=l) for j in rows for l in columns if j <= l}
    excess_risk = write(form.excess_risk)
    parameters = {name: symbols.plain((name,)) for name in PARAMETERS}
    return Equations(
        p=sp.Symbol("p") if p is None else p,
        k=f.variables,
        sigma=_polynomial(sigma, ["x"]),
        f=_polynomial(f, [f"z{r}" for r in fields]),
        Q=sp.ImmutableMatrix([[overlap(j, l) for l in columns] for j in rows]),
        M=sp.ImmutableMatrix([[symbols.plain(("M", j, r)) for r in fields] for j in rows]),
        P=sp.ImmutableMatrix([[target_overlap(r, s) for s in fields] for r in fields]),
        a=sp.ImmutableMatrix([weight(j) for j in rows]),
        **parameters,
        dQ=sp.ImmutableMatrix([[dQ[min(j, l), max(j, l)] for l in columns] for j in rows]),
        dM=sp.ImmutableMatrix([[write(rate, j=j) for rate in form.dM] for j in rows]),
        da=sp.ImmutableMatrix([write(form.da, j=j) for j in rows]),
        risk=excess_risk + parameters["Delta"] / 2,
        excess_risk=excess_risk,
        given=given,
        keys=symbols.used | {parameters["Delta"]: ("Delta",)},
    )


def _rank(key: Key) -> int | None:
    return COLLECTED.index(key[0]) if key[0] in COLLECTED else None


def _polynomial(polynomial: Polynomial, names: list[str]) -> Any:
    import sympy as sp

    unknowns = [sp.Symbol(name) for name in names]
    return sp.Add(
        *(
            sp.Mul(sympy_number(as_fraction(c)), *(x**n for x, n in zip(unknowns, exponents, strict=True)))
            for exponents, c in polynomial.terms.items()
        )
    )


class _Symbols:
    """The sympy expression of each key, and which were used.

    Plain symbols such as ``Q_12`` at a given width (``Q_1_12`` beyond nine units), indexed ones such as ``Q[j, m]`` at
    any width.
    """

    def __init__(self, p: int | None, k: int):
        self.is_indexed = p is None
        self.joint = "_" if max(p or 0, k) > 9 else ""
        self.used: dict[Any, Key] = {}
        self._known: dict[Key, Any] = {}

    def __call__(self, key: Key) -> Any:
        if key not in self._known:
            self._known[key] = self._new(key)
        return self._known[key]

    def _new(self, key: Key) -> Any:
        import sympy as sp

        if key[0] == "1/p":
            return 1 / self(("p",))
        if key[0] == "sum":
            letters = [letter for letter in SUMMED if any(letter in factor for factor, _ in key[1])]
            product = sp.Mul(*(self.plain(factor) ** power for factor, power in key[1]))
            symbol: Any = sp.Sum(product, *((sp.Symbol(letter), 1, sp.Symbol("p")) for letter in letters))
        else:
            symbol = self.plain(key)
        self.used[symbol] = key
        return symbol

    def plain(self, key: Key) -> Any:
        """The symbol of a key that is not a sum."""
        import sympy as sp

        name, *index = key
        if not index:
            return sp.Symbol(NAMES.get(name, name))
        if self.is_indexed:
            places = (sp.Symbol(x) if isinstance(x, str) else sp.Integer(x) for x in index)
            return sp.Indexed(sp.IndexedBase(name), *places)
        return sp.Symbol(f"{name}_{self.joint.join(map(str, index))}")
