r"""Make the exact values of ``integrals.py``: ``python -m tests.honesty.make_integrals [--verify] [--sample]``.

Nothing of ``twolayer.expectation`` is used. A moment is expanded into averages of products of functions of single
fields, and each product goes one of five routes, the first that takes it; all in 60 digits, at the exact binary values
of the overlaps.

1. `Rational`: products of monomials, by Isserlis' recursion in fractions.
2. `Closed`: monomials times :math:`e^{\alpha x - d x^2/2}` times :math:`\mathrm{erf}(x/\sqrt2)`, any covariance.
3. `ReluUnits`: products of relus and steps, any covariance; four of them by an integral in one dimension.
4. `Outer`: one field of any kind, the others as in 2: closed given that field, and one integral over it.
5. `Tree`: fields that are independent given one of them: an integral over that field of products of smoothed functions.

It takes about five minutes. ``--verify`` (twice as long) computes everything again, by a second route where there is
one, with finer rules and more digits, and wants 34 digits to agree. ``--sample`` compares with plain Monte Carlo, the
problem's own functions at fields drawn from the overlaps. Words that are no flags pick the settings whose name they are
in; the others then keep their values.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

from tests.honesty.integrals import SETTINGS, VALUES, Setting, case_name, problem

DIGITS = 60
KEPT = 40


class NoRoute(Exception):
    """This route does not take the product."""


class Accuracy(NamedTuple):
    """How fine the rules are: the reference, and the check."""

    nodes: int = 34  # Gauss-Legendre nodes in each panel
    step: float = 1.0  # factor on the steps of trapezoidal rules
    reach: int = 15  # deviations


RULES = Accuracy()

# ------------------------------------------------------------------------------------------- functions of one field
#
# Each has one or more forms: `closed` is a list of (coefficient, power n, alpha, d, e) that stands for the sum of
# coefficient x^n exp(alpha x - d x^2 / 2) erf(x / sqrt 2)^e; `pieces` is (breaks, polynomials), constant first;
# `smooth` maps (x, exp(x)) to a number, and is analytic within `strip` of the real line.


class Function(NamedTuple):
    closed: Any = None
    pieces: Any = None
    smooth: Any = None
    strip: float = 1.5


def polynomial(*coefficients: Any) -> Function:
    closed = [(Fraction(c), n, 0, 0, 0) for n, c in enumerate(coefficients) if c]

    def value(x: Any, _: Any) -> Any:
        total = mp.mpf(0)
        for c in reversed(coefficients):
            total = total * x + mp.mpf(Fraction(c).numerator) / Fraction(c).denominator
        return total

    return Function(closed, ((), (tuple(map(Fraction, coefficients)),)), value, 4.0)


def wave(kind: str, k: float) -> Function:
    """A sine or cosine as a sum of two exponentials."""
    i = mp.mpc(0, 1)
    pair = [(1 / (2 * i), i * k), (-1 / (2 * i), -i * k)] if kind == "sin" else [(0.5, i * k), (0.5, -i * k)]
    function = getattr(mp, kind)
    return Function([(c, 0, alpha, 0, 0) for c, alpha in pair], smooth=lambda x, _: function(k * x))


def exponential(alpha: float = 0.0, d: float = 0.0, powers: Iterable[tuple[float, int]] = ((1.0, 0),)) -> Function:
    powers = tuple(powers)

    def value(x: Any, _: Any) -> Any:
        return sum(c * x**n for c, n in powers) * mp.exp(mp.mpf(alpha) * x - mp.mpf(d) * x**2 / 2)

    return Function([(mp.mpf(c), n, mp.mpf(alpha), mp.mpf(d), 0) for c, n in powers], smooth=value)


@lru_cache(maxsize=2**20)
def distribution(x: Any) -> Any:
    """The normal distribution function."""
    return mp.erfc(-x / mp.sqrt(2)) / 2


def functions() -> dict[str, Function]:
    """All functions by name; a prime marks the derivative."""
    slope = mp.sqrt(2 / mp.pi)
    half = Fraction(1, 2)

    def tanh(_: Any, ex: Any) -> Any:
        return 1 - 2 / (ex * ex + 1)

    return {
        "x": polynomial(0, 1),
        "one": polynomial(1),
        "linear": polynomial(0, 1),
        "linear'": polynomial(1),
        "square": polynomial(0, 0, 1),
        "square'": polynomial(0, 2),
        "he2": polynomial(-1, 0, 1),
        "he3": polynomial(0, -3, 0, 1),
        "he3'": polynomial(-3, 0, 3),
        "erf": Function([(mp.mpf(1), 0, 0, 0, 1)], smooth=lambda x, _: mp.erf(x / mp.sqrt(2)), strip=4.0),
        "erf'": Function([(slope, 0, 0, mp.mpf(1), 0)], smooth=lambda x, _: slope * mp.exp(-x * x / 2), strip=4.0),
        "relu": Function(pieces=((0.0,), ((0,), (0, 1)))),
        "relu'": Function(pieces=((0.0,), ((0,), (1,)))),
        "abs": Function(pieces=((0.0,), ((0, -1), (0, 1)))),
        "sign": Function(pieces=((0.0,), ((-1,), (1,)))),
        "step": Function(pieces=((0.0,), ((0,), (1,)))),
        "leaky": Function(pieces=((0.0,), ((0, Fraction(1, 8)), (0, 1)))),
        "leaky'": Function(pieces=((0.0,), ((Fraction(1, 8),), (1,)))),
        "hard": Function(pieces=((-1.0, 1.0), ((-1,), (0, 1), (1,)))),
        "hard'": Function(pieces=((-1.0, 1.0), ((0,), (1,), (0,)))),
        "tanh": Function(smooth=tanh),
        "tanh'": Function(smooth=lambda x, ex: 1 - tanh(x, ex) ** 2),
        "steep": Function(smooth=lambda x, _: mp.tanh(20 * x), strip=1.5 / 20),
        "sigmoid": Function(smooth=lambda _, ex: ex / (1 + ex), strip=3.1),
        "sigmoid'": Function(smooth=lambda _, ex: ex / (1 + ex) ** 2, strip=3.1),
        "softplus": Function(smooth=lambda _, ex: mp.log1p(ex), strip=3.1),
        "softplus'": Function(smooth=lambda _, ex: ex / (1 + ex), strip=3.1),
        "gelu": Function(smooth=lambda x, _: x * distribution(x), strip=4.0),
        "gelu'": Function(smooth=lambda x, _: distribution(x) + x * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi), strip=4.0),
        "sin": wave("sin", 1.0),
        "sin3": wave("sin", 3.0),
        "sin8": wave("sin", 8.0),
        "cos2": wave("cos", 2.0),
        "cos5": wave("cos", 5.0),
        "sine": wave("sin", 2.0),
        "sine'": wave("cos", 2.0)._replace(
            closed=[(2 * c, *rest) for c, *rest in wave("cos", 2.0).closed], smooth=lambda x, _: 2 * mp.cos(2 * x)
        ),
        "exp0.7": exponential(0.7),
        "exp2": exponential(2.0),
        "exp1": exponential(1.0),
        "exp square": exponential(d=-0.25),
        "gauss": exponential(d=1.0),
        "bump": exponential(d=1.0, powers=((1.0, 1),)),
        "bump'": exponential(d=1.0, powers=((1.0, 0), (-1.0, 2))),
        "growing": exponential(0.5),
        "growing'": exponential(0.5, powers=((0.5, 0),)),
        "half": polynomial(half),
    }


# ------------------------------------------------------------------------------------------------- what is averaged

Product = tuple[tuple[int, tuple[str, ...]], ...]  # ((field, names of functions of it), ...), sorted
Sum = list[tuple[Any, Product]]


class Target(NamedTuple):
    """The target as a sum of (coefficient, {field: functions}).

    ``frame`` is an orthogonal matrix when the fields here are combinations of the problem's: frame @ fields.
    """

    terms: list[tuple[Any, dict[int, tuple[str, ...]]]]
    frame: Any = None


def single(name: str) -> Target:
    return Target([(Fraction(1), {0: (name,)})])


def committee(name: str, outer: Iterable[float]) -> Target:
    outer = list(outer)
    return Target([(Fraction(c) / len(outer), {r: (name,)}) for r, c in enumerate(outer)])


def targets() -> dict[str, Target]:
    one, half = Fraction(1), Fraction(1, 2)
    r2 = 1 / mp.sqrt(2)
    wave2 = Target([(one, {0: ("sin3",), 1: ("x",)})])
    stairs = Target([(one, {s: ("x",) for s in range(r + 1)}) for r in range(3)])
    return {
        "erf 2 on erf 2": committee("erf", [1.0, -0.5]),
        "erf 4 on polynomial 3": Target([(half, {0: ("he2",)}), (one, {0: ("x",), 1: ("x",), 2: ("x",)})]),
        "erf 3 on wave 2": wave2,
        "erf 1 on exponential 1": single("exp0.7"),
        "erf 2 on exponential 1": single("exp2"),
        "erf 1 on exponential of square 1": single("exp square"),
        "erf 3 on tanh 1": single("tanh"),
        # max(z1, z2) = (w1 + |w2|) / sqrt 2 in the fields w = (z1 + z2, z1 - z2) / sqrt 2.
        "erf 1 on max 2": Target([(r2, {0: ("x",)}), (r2, {1: ("abs",)})], [[r2, r2], [r2, -r2]]),
        "relu 2 on relu 2": committee("relu", [1.0, 1.0]),
        "relu 4 on relu 3": committee("relu", [1.0] * 3),
        "relu 1 on erf 1": single("erf"),
        "relu 3 on tanh 1": single("tanh"),
        "relu 2 on polynomial 2": Target([(one, {0: ("he2",), 1: ("x",)}), (one, {0: ("x",)})]),
        "relu 1 on wave 2": wave2,
        "relu 2 on sigmoid 2": committee("sigmoid", [1.0, 1.0]),
        "relu 2 on smooth 2": Target([(one, {0: ("tanh",), 1: ("x",)})]),
        "tanh 1 on tanh 1": single("tanh"),
        "tanh 1 on relu 1": single("relu"),
        "tanh 1 on jump 1": Target([(one, {0: ("abs",)}), (-half, {0: ("step",)})]),
        "tanh 4 on tanh 3": committee("tanh", [1.0] * 3),
        "tanh 2 on wave 1": single("sin8"),
        "tanh 1 on steep 1": single("steep"),
        "tanh 1 on sign 2": Target([(one, {0: ("sign",), 1: ("x",)})]),
        "sigmoid 2 on sigmoid 1": single("sigmoid"),
        "softplus 1 on gelu 1": single("gelu"),
        "gelu 2 on tanh 1": single("tanh"),
        "he3 2 on hermite 1": Target([(one, {0: ("he3",)}), (Fraction(0.4), {0: ("x",)})]),
        "square 3 on phase 1": single("square"),
        "square 4 on staircase 3": stairs,
        "square 2 on tanh 1": single("tanh"),
        "linear 2 on step 2": Target([(one, {0: ("step",), 1: ("x",)})]),
        "sine 4 on wave 3": Target([(one, {0: ("cos2",), 1: ("x",)}), (one, {2: ("sin",)})]),
        "sine 2 on wave 1": single("cos5"),
        "bump 3 on bump 2": Target([(one, {0: ("gauss",), 1: ("x",)})]),
        "growing 2 on exponential 1": single("exp1"),
        "leaky 2 on tanh 1": single("tanh"),
        "hard 2 on relu 1": single("relu"),
    }


def number(x: Any) -> Any:
    """A fraction or a number in mpmath's precision."""
    return mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else mp.mpmathify(x)


def times(*sums: Sum) -> Sum:
    """The product of sums of products."""
    result: Sum = []
    for choice in itertools.product(*sums):
        fields: dict[int, tuple[str, ...]] = {}
        coefficient: Any = Fraction(1)
        for c, product in choice:
            exact = isinstance(c, Fraction) and isinstance(coefficient, Fraction)
            coefficient = coefficient * c if exact else number(coefficient) * number(c)
            for field, names in product:
                fields[field] = tuple(sorted(fields.get(field, ()) + names))
        result.append((coefficient, tuple(sorted(fields.items()))))
    return result


class Model:
    """A setting as sums of products: its moments, before any average is taken."""

    def __init__(self, setting: Setting):
        self.activation = setting.problem.split()[0]
        self.target = targets()[setting.problem]
        self.noise = Fraction(float(problem(setting.problem).noise))
        state = setting.state
        self.p, self.k = state.M.shape
        self.omega = [[Fraction(x) for x in row] for row in np.block([[state.Q, state.M], [state.M.T, state.P]])]
        if self.target.frame is not None:
            self.omega = self._turned()
        weights = [Fraction(x) / self.p for x in state.a]
        self.student = [(-w, ((j, (self.activation,)),)) for j, w in enumerate(weights)]
        terms = [(c, tuple((self.p + r, names) for r, names in fields.items())) for c, fields in self.target.terms]
        self.displacement: Sum = [*self.student, *terms]

    def _turned(self) -> list[list[Any]]:
        """The overlaps with the turned target fields."""
        p, k, frame = self.p, self.k, self.target.frame
        turn = mp.eye(p + k)
        turn[p:, p:] = mp.matrix(frame)
        omega = turn * mp.matrix([[number(x) for x in row] for row in self.omega]) * turn.T
        size = mp.mpf(10) ** (-DIGITS + 10)
        nearest = [[omega[i, j] for j in range(p + k)] for i in range(p + k)]
        return [[mp.mpf(0) if abs(x) < size else mp.mpf(1) if abs(x - 1) < size else x for x in row] for row in nearest]

    def slope(self, j: int) -> Sum:
        return [(Fraction(1), ((j, (self.activation + "'",)),))]

    def field(self, u: int) -> Sum:
        if u < self.p or self.target.frame is None:
            return [(Fraction(1), ((u, ("x",)),))]
        return [(self.target.frame[r][u - self.p], ((self.p + r, ("x",)),)) for r in range(self.k)]

    def moment(self, name: str, index: tuple[int, ...]) -> Sum:
        eps = self.displacement
        match name:
            case "excess_risk":
                return times([(Fraction(1, 2), ())], eps, eps)
            case "chi":
                return times([(Fraction(1), ((index[0], (self.activation,)),))], eps)
            case "v":
                return times(self.slope(index[0]), self.field(index[1]), eps)
            case "phi_hd":
                slopes = times(self.slope(index[0]), self.slope(index[1]))
                return times(slopes, eps, eps) + (times([(self.noise, ())], slopes) if self.noise else [])
        raise ValueError(name)


# ----------------------------------------------------------------------------------------------------- the routes


class Rational:
    """Monomials, by Isserlis in fractions: E[x_i R] is the sum over u of Omega_iu E[dR/dx_u]."""

    def __init__(self, model: Model):
        self.omega = model.omega

    def __call__(self, product: Product) -> Any:
        if not all(isinstance(x, Fraction) for row in self.omega for x in row):
            raise NoRoute
        total = Fraction(0)
        for coefficient, powers, alpha, d, e in monomials(product):
            if any(alpha.values()) or any(d.values()) or e or not isinstance(coefficient, Fraction):
                raise NoRoute
            total += coefficient * self.average(tuple(sorted(powers.items())))
        return number(total)

    def average(self, powers: tuple[tuple[int, int], ...]) -> Fraction:
        left = {i: n for i, n in powers if n}
        if not left:
            return Fraction(1)
        if sum(left.values()) % 2:
            return Fraction(0)
        i = min(left)
        left[i] -= 1
        total = Fraction(0)
        for u, n in left.items():
            if n and self.omega[i][u]:
                total += n * self.omega[i][u] * self._cached(tuple(sorted((left | {u: n - 1}).items())))
        return total

    def _cached(self, powers: tuple[tuple[int, int], ...]) -> Fraction:
        store = self.__dict__.setdefault("store", {})
        if powers not in store:
            store[powers] = self.average(powers)
        return store[powers]


def monomials(product: Product) -> Iterable[tuple[Any, dict, dict, dict, tuple[int, ...]]]:
    """The product of the `closed` forms, multiplied out: coefficient, powers, alpha, d, and the fields under erf."""
    factors = []
    for field, names in product:
        for name in names:
            form = table()[name].closed
            if form is None:
                raise NoRoute
            factors.append([(field, term) for term in form])
    for choice in itertools.product(*factors):
        coefficient: Any = Fraction(1)
        powers: dict[int, int] = {}
        alpha: dict[int, Any] = {}
        d: dict[int, Any] = {}
        erfs: list[int] = []
        for field, (c, n, slope, curvature, e) in choice:
            exact = isinstance(c, Fraction) and isinstance(coefficient, Fraction)
            coefficient = coefficient * c if exact else number(coefficient) * number(c)
            powers[field] = powers.get(field, 0) + n
            alpha[field] = alpha.get(field, 0) + slope
            d[field] = d.get(field, 0) + curvature
            erfs += [field] * e
        yield coefficient, powers, alpha, d, tuple(sorted(erfs))


@lru_cache(maxsize=4)
def _table(digits: int) -> dict[str, Function]:
    return functions()


def table() -> dict[str, Function]:
    return _table(mp.mp.dps)


def gaussian_average(powers: dict, alpha: dict, d: dict, erfs: tuple[int, ...], omega: Any, mean: dict) -> Any:
    r"""E[x^n exp(alpha x - x^T D x / 2) prod erf(x_m / sqrt 2)] for x of the given mean and covariance.

    The exponential tilts the Gaussian: covariance (1 + Omega D)^{-1} Omega, and a new mean. Powers go by Stein's lemma,
    E[x_i R] = mean_i E[R] + sum_u Omega_iu E[dR/dx_u], where an erf becomes a Gaussian, that is, another tilt. What is
    left is E erf(x / sqrt 2) = erf(mean / sqrt(2 (1 + C))), or, for two at mean zero,
    (2 / pi) arcsin(C_12 / sqrt((1 + C_11) (1 + C_22))).
    """
    fields = sorted({*powers, *alpha, *d, *erfs})
    n = len(fields)
    if n == 0:
        return mp.mpf(1)
    C = mp.matrix([[number(omega[i][j]) for j in fields] for i in fields])
    m = mp.matrix([number(mean.get(i, 0)) for i in fields])
    factor = mp.mpf(1)
    if any(d.get(i, 0) for i in fields):
        D = mp.diag([number(d.get(i, 0)) for i in fields])
        tilt = mp.eye(n) + C * D
        factor /= mp.sqrt(mp.det(tilt))
        inverse = mp.inverse(tilt)
        Dm = D * m
        # Completing the square: exp(-m^T D (1 + C D)^{-1} m / 2), mean (1 + C D)^{-1} m.
        m_new = inverse * m
        factor *= mp.exp(-sum(Dm[i] * m_new[i] for i in range(n)) / 2)
        C, m = inverse * C, m_new
    if any(alpha.get(i, 0) for i in fields):
        A = mp.matrix([number(alpha.get(i, 0)) for i in fields])
        CA = C * A
        factor *= mp.exp(sum(A[i] * (m[i] + CA[i] / 2) for i in range(n)))
        m = m + CA
    place = {field: i for i, field in enumerate(fields)}
    rows = {i: {j: C[place[i], place[j]] for j in fields} for i in fields}
    means = {i: m[place[i]] for i in fields}

    def stein(powers: dict, erfs: tuple[int, ...]) -> Any:
        left = {i: n for i, n in powers.items() if n}
        if not left:
            return base(erfs)
        i = next(iter(left))
        left[i] -= 1
        total = means[i] * stein(left, erfs) if means[i] else mp.mpf(0)
        for u, power in left.items():
            if power:
                total += rows[i][u] * power * stein(left | {u: power - 1}, erfs)
        for position, u in enumerate(erfs):
            rest = erfs[:position] + erfs[position + 1 :]
            density = mp.sqrt(2 / mp.pi) * gaussian_average(left, {}, {u: 1}, rest, rows, means)
            total += rows[i][u] * density
        return total

    def base(erfs: tuple[int, ...]) -> Any:
        if not erfs:
            return mp.mpf(1)
        if len(erfs) == 1:
            (i,) = erfs
            return mp.erf(means[i] / mp.sqrt(2 * (1 + rows[i][i])))
        if len(erfs) == 2 and not any(means[i] for i in erfs):
            i, j = erfs
            return 2 / mp.pi * mp.asin(rows[i][j] / mp.sqrt((1 + rows[i][i]) * (1 + rows[j][j])))
        raise NoRoute

    return factor * stein(dict(powers), erfs)


class Closed:
    """Products of monomials, exponentials and erf, at any covariance: see `gaussian_average`."""

    def __init__(self, model: Model):
        self.omega = model.omega

    def __call__(self, product: Product) -> Any:
        total = mp.mpf(0)
        for coefficient, powers, alpha, d, erfs in monomials(product):
            total += number(coefficient) * gaussian_average(powers, alpha, d, erfs, self.omega, {})
        return mp.re(total)


class ReluUnits:
    r"""Steps theta and relus, by the angle between two fields, rho their correlation.

    .. math::
        E[\theta\theta] = \tfrac14 + \tfrac{\arcsin\rho}{2\pi}, \quad
        E[x_+ y_+] = \tfrac{\sqrt{C_{xx} C_{yy}}}{2\pi} (\sqrt{1 - \rho^2} + \rho\,(\pi - \arccos\rho)), \quad
        E[\theta(x)\,u\,y_+] = \tfrac{C_{xu}}{2\pi C_{xx}} \sqrt{C_{xx} C_{yy} - C_{xy}^2} + C_{uy} E[\theta\theta]

    A field that is determined by those given counts theta(0) = 1/2, the limit from fields that are nearly so.
    """

    def __init__(self, model: Model):
        self.omega = model.omega

    def __call__(self, product: Product) -> Any:
        steps, units, lines = [], [], []
        for field, names in product:
            for name in names:
                place = {"relu'": steps, "relu": units, "x": lines}.get(name)
                if place is None:
                    raise NoRoute
                place.append(field)
        C = self.omega
        if any(C[i][i] == 0 for i in [*steps, *units]):
            raise NoRoute
        order = [*steps, *lines, *units]
        S = mp.matrix([[number(C[i][j]) for j in order] for i in order])
        match (len(steps), len(lines), len(units)):
            case (2, 0, 0):
                return orthant(S[0, 1], S[0, 0], S[1, 1])
            case (0, 0, 2):
                return two_relus(S)
            case (1, 1, 1):
                area = mp.sqrt(abs(S[0, 0] * S[2, 2] - S[0, 2] ** 2))
                return S[0, 1] * area / (2 * mp.pi * S[0, 0]) + S[1, 2] * orthant(S[0, 2], S[0, 0], S[2, 2])
            case (2, 0, 2):
                return four_relus(S)
        raise NoRoute


def orthant(c12: Any, c11: Any, c22: Any) -> Any:
    nothing = mp.mpf(10) ** (-mp.mp.dps + 12)
    if c11 < nothing or c22 < nothing:
        return mp.mpf(1) / 4
    rho = c12 / mp.sqrt(c11 * c22)
    return mp.mpf(1) / 4 + mp.asin(max(-1, min(1, rho))) / (2 * mp.pi)


def two_relus(S: Any) -> Any:
    root = mp.sqrt(S[0, 0] * S[1, 1])
    rho = max(-1, min(1, S[0, 1] / root))
    return root / (2 * mp.pi) * (mp.sqrt(1 - rho**2) + rho * (mp.pi - mp.acos(rho)))


def two_steps_and_a_relu(S: Any) -> Any:
    """E[theta(x_0) theta(x_1) relu(x_2)]: Stein's lemma on x_2, where the slope of each factor fixes one field at 0."""
    total = mp.mpf(0)
    for i, a, b in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
        if S[i, i] < mp.mpf(10) ** (-mp.mp.dps + 12):
            continue
        given = [S[u, w] - S[u, i] * S[w, i] / S[i, i] for u, w in ((a, b), (a, a), (b, b))]
        total += S[2, i] / mp.sqrt(2 * mp.pi * S[i, i]) * orthant(*given)
    return total


def four_relus(S: Any) -> Any:
    """E[theta(x_0) theta(x_1) relu(x_2) relu(x_3)] along an interpolation of the covariance.

    With the covariances between {0, 1} and {2, 3} multiplied by s, the derivative in s is the sum over i in {0, 1} and
    j in {2, 3} of C_ij E[delta(x_i) theta(x_i') theta(x_j) relu(x_j')], which `two_steps_and_a_relu` knows.
    """

    def rate(s: Any) -> Any:
        total = mp.mpf(0)
        for i, other in ((0, 1), (1, 0)):
            for j, last in ((2, 3), (3, 2)):
                trio = (other, j, last)
                scale = {(u, w): s if (u < 2) != (w < 2) else mp.mpf(1) for u in range(4) for w in range(4)}
                V = mp.matrix(3, 3)
                for a, u in enumerate(trio):
                    for b, w in enumerate(trio):
                        V[a, b] = scale[u, w] * S[u, w] - scale[u, i] * scale[w, i] * S[u, i] * S[w, i] / S[i, i]
                total += S[i, j] / mp.sqrt(2 * mp.pi * S[i, i]) * two_steps_and_a_relu(V)
        return total

    start = orthant(S[0, 1], S[0, 0], S[1, 1]) * two_relus(S[2:, 2:])
    if all(S[i, j] == 0 for i in (0, 1) for j in (2, 3)):
        return start
    # s = 1 - t^2 removes square roots at s = 1; panels shrink geometrically in t, far where the covariance is singular.
    smallest = min(mp.eigsy(S, eigvals_only=True))
    edges = [mp.mpf(0), *(mp.mpf(2) ** -j for j in range(6 if smallest > 1e-3 else 40, -1, -1))]
    nodes = [(t, w) for low, high in itertools.pairwise(edges) for t, w in legendre(RULES.nodes, low, high)]
    return start + mp.fsum(2 * t * w * rate(1 - t * t) for t, w in nodes)


@lru_cache(maxsize=16)
def _legendre(n: int, digits: int) -> list[tuple[Any, Any]]:
    found = []
    for i in range(1, n + 1):
        x = mp.cos(mp.pi * (mp.mpf(i) - mp.mpf(1) / 4) / (n + mp.mpf(1) / 2))
        for _ in range(8):
            previous, value = mp.mpf(1), x
            for degree in range(2, n + 1):
                previous, value = value, ((2 * degree - 1) * x * value - (degree - 1) * previous) / degree
            slope = n * (x * value - previous) / (x * x - 1)
            x -= value / slope
        found.append((x, 2 / ((1 - x * x) * slope**2)))
    return found


def legendre(n: int, low: Any, high: Any) -> list[tuple[Any, Any]]:
    middle, half = (low + high) / 2, (high - low) / 2
    return [(middle + half * x, half * w) for x, w in _legendre(n, mp.mp.dps)]


def panels(hot: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Nodes and weights of the standard normal law, with panels that shrink towards every (place, width)."""
    edges = {mp.mpf(i) for i in range(-RULES.reach, RULES.reach + 1)}
    for place, width in hot:
        edges.add(mp.mpf(place))
        size = mp.mpf(width) / 2
        while size and size < 1:
            edges |= {place - size, place + size}
            size *= 2
    inside = sorted(edge for edge in edges if abs(edge) <= RULES.reach)
    inside = [edge for edge, following in itertools.pairwise([*inside, mp.inf]) if following - edge > mp.mpf(10) ** -40]
    density = 1 / mp.sqrt(2 * mp.pi)
    pieces = itertools.pairwise(inside)
    return [(x, w * density * mp.exp(-x * x / 2)) for low, high in pieces for x, w in legendre(RULES.nodes, low, high)]


BITS = 260


def whole(x: Any) -> int:
    """A number as a whole number of 2^-BITS."""
    return mp.libmp.to_fixed(x._mpf_, BITS)  # pyright: ignore[reportAttributeAccessIssue]


def trapezoidal(strip: Any) -> list[tuple[Any, Any]]:
    """Nodes and weights of the standard normal law, for functions that are analytic within ``strip`` of the real line.

    The error is about exp(-2 pi strip / step), 1e-49 here.
    """
    h = RULES.step * min(mp.mpf("0.16"), mp.mpf("0.055") * strip)
    count = int(mp.ceil(RULES.reach / h))
    return [(j * h, h / mp.sqrt(2 * mp.pi) * mp.exp(-((j * h) ** 2) / 2)) for j in range(-count, count + 1)]


def pieces_of(names: tuple[str, ...]) -> tuple[list[Any], list[list[Any]]]:
    """The product of piecewise polynomials of one variable."""
    forms = [table()[name].pieces for name in names]
    if any(form is None for form in forms):
        raise NoRoute
    breaks = sorted({b for form in forms for b in form[0]})
    result = []
    for i in range(len(breaks) + 1):
        inside = breaks[i - 1] + 1e-9 if i else (breaks[0] - 1.0 if breaks else 0.0)
        total = [Fraction(1)]
        for edges, polynomials in forms:
            factor = polynomials[sum(inside > edge for edge in edges)]
            longer = [Fraction(0)] * (len(total) + len(factor) - 1)
            for a, x in enumerate(total):
                for b, y in enumerate(factor):
                    longer[a + b] += x * Fraction(y)
            total = longer
        result.append(total)
    return breaks, result


def is_smooth(names: tuple[str, ...]) -> bool:
    return all(table()[name].smooth is not None for name in names)


def smooth_value(names: tuple[str, ...], x: Any, ex: Any) -> Any:
    total = mp.mpf(1)
    for name in names:
        total *= table()[name].smooth(x, ex)
    return total


def pieces_value(breaks: list[Any], polynomials: list[list[Any]], x: Any) -> Any:
    """The value at x, which must not be a point where the function jumps."""
    edges = [number(b) for b in breaks]
    sides = {sum(x > edge for edge in edges), sum(x >= edge for edge in edges)}
    values = [mp.polyval([number(c) for c in reversed(polynomials[side])], x) for side in sides]
    if any(value != values[0] for value in values):
        raise NoRoute
    return values[0]


class Outer:
    """One field of any kind, the rest closed given that field.

    Given x_r, the others are Gaussian with mean Omega_ir / Omega_rr x_r: `gaussian_average` at each node of x_r.
    """

    def __init__(self, model: Model):
        self.omega = model.omega

    def __call__(self, product: Product) -> Any:
        special = [field for field, names in product if any(table()[name].closed is None for name in names)]
        if len(special) != 1 or self.omega[special[0]][special[0]] == 0:
            raise NoRoute
        (root,) = special
        rest = tuple((field, names) for field, names in product if field != root)
        names = dict(product)[root]
        fields = [field for field, _ in rest]
        variance = number(self.omega[root][root])
        scale = mp.sqrt(variance)
        pull = {i: number(self.omega[i][root]) / variance for i in fields}
        given = {i: {j: number(self.omega[i][j]) - pull[i] * pull[j] * variance for j in fields} for i in fields}
        terms = list(monomials(rest))
        if is_smooth(names):
            strip = min(table()[name].strip for name in names) / scale
            nodes = [(x, w * smooth_value(names, scale * x, mp.exp(scale * x))) for x, w in panels([(0, strip)])]
        else:
            form = pieces_of(names)
            nodes = [(x, w * pieces_value(*form, scale * x)) for x, w in panels([(b / scale, 0) for b in form[0]])]
        total = mp.mpf(0)
        for x, w in nodes:
            if w:
                mean = {i: pull[i] * scale * x for i in fields}
                for coefficient, *term in terms:
                    total += w * number(coefficient) * gaussian_average(*term, given, mean)
        return mp.re(total)


class Tree:
    """Fields in groups that are independent of each other and, within a group, independent given one of them.

    A field that is a multiple of an earlier one is the same variable. Given the root x of a group, the variable
    b x + c g has a function smoothed by g: closed for piecewise polynomials, a trapezoidal rule (which converges
    geometrically for functions analytic in a strip) otherwise. The integral over x is in panels that shrink towards
    kinks and towards poles near the real line.
    """

    def __init__(self, model: Model):
        omega = model.omega
        size = len(omega)
        own = {model.activation, model.activation + "'"}
        self.names = {i: own if i < model.p else {"x"} for i in range(size)}
        for _, product in model.displacement:
            for field, names in product:
                self.names[field] = self.names[field] | set(names)
        self.same: dict[int, tuple[int, Any]] = {}  # field -> (variable, multiple)
        for i in range(size - 1, -1, -1):  # the target's fields first: they are the roots
            for j in range(size - 1, i, -1):
                if self.same[j] == (j, 1) and omega[i][j] ** 2 == omega[i][i] * omega[j][j] != 0:
                    self.same[i] = (j, omega[i][j] / omega[j][j])
                    break
            else:
                self.same[i] = (i, 1) if omega[i][i] else (i, 0)
        variables = [i for i, (j, multiple) in self.same.items() if i == j and multiple]
        self.groups: list[list[int]] = []
        for i in variables:
            touching = [group for group in self.groups if any(omega[i][j] for j in group)]
            self.groups = [group for group in self.groups if group not in touching]
            self.groups.append([i, *(j for group in touching for j in group)])
        self.root: dict[int, int] = {}
        self.shape: dict[int, tuple[Any, Any]] = {}  # variable -> (b, c)
        self.possible = True
        for group in self.groups:
            for root in sorted(group, reverse=True):
                rest = [i for i in group if i != root]
                left = {
                    (i, j): omega[i][j] - omega[i][root] * omega[j][root] / omega[root][root]
                    for i in rest
                    for j in rest
                }
                if all(value == 0 for (i, j), value in left.items() if i != j):
                    break
            else:
                self.possible = False
                continue
            for i in group:
                self.root[i] = root
                b = number(omega[i][root]) / mp.sqrt(number(omega[root][root]))
                self.shape[i] = (b, mp.mpf(0) if i == root else mp.sqrt(number(left[i, i])))
        self.store: dict[Any, Any] = {}

    def __call__(self, product: Product) -> Any:
        if not self.possible:
            raise NoRoute
        factors: dict[int, list[tuple[tuple[str, ...], Any]]] = {}
        total = mp.mpf(1)
        for field, names in product:
            variable, multiple = self.same[field]
            if multiple == 0:
                total *= self._at_zero(names)
            else:
                factors.setdefault(variable, []).append((names, multiple))
        for group in self.groups:
            inside = tuple((i, tuple(factors[i])) for i in group if i in factors)
            if inside:
                if inside not in self.store:
                    self.store[inside] = self._average(inside)
                total *= self.store[inside]
        return total

    @staticmethod
    def _at_zero(names: tuple[str, ...]) -> Any:
        if is_smooth(names):
            return smooth_value(names, mp.mpf(0), mp.mpf(1))
        return pieces_value(*pieces_of(names), mp.mpf(0))

    def _average(self, inside: tuple[tuple[int, Any], ...]) -> Any:
        hot = []
        for i, functions in inside:
            b, c = self.shape[i]
            for names, multiple in functions:
                if is_smooth(names):
                    strip = min(table()[name].strip for name in names) / abs(number(multiple))
                    hot.append((mp.mpf(0), strip / abs(b)))
                else:
                    hot += [(number(e) / (number(multiple) * b), c / abs(b)) for e in pieces_of(names)[0]]
        everything_smooth = all(is_smooth(names) for _, functions in inside for names, _ in functions)
        nodes = self._nodes(tuple(sorted(set(hot))), everything_smooth)
        columns = [self._smoothed(i, functions, nodes) for i, functions in inside]
        return mp.fsum(w * mp.fprod(values) for (_, w), *values in zip(nodes, *columns, strict=True))

    def _nodes(self, hot: tuple[Any, ...], everything_smooth: bool) -> list[tuple[Any, Any]]:
        """Panels, or the trapezoidal rule where that takes fewer nodes."""
        key = ("nodes", hot, everything_smooth)
        if key not in self.store:
            nodes = panels(hot)
            if everything_smooth:
                even = trapezoidal(min((width for _, width in hot), default=mp.mpf(1)))
                nodes = min(nodes, even, key=len)
            self.store[key] = nodes
        return self.store[key]

    def _smoothed(self, i: int, functions: Any, nodes: list[tuple[Any, Any]]) -> list[Any]:
        """E over g of the function at b x + c g, for every x."""
        key = ("smoothed", i, functions, id(nodes))
        if key not in self.store:
            b, c = self.shape[i]
            kinds = {is_smooth(names) for names, _ in functions}
            if kinds == {True}:
                self.store[key] = self._smooth_column(i, functions, nodes)
            elif kinds == {False}:
                self.store[key] = self._pieces_column(b, c, functions, nodes)
            elif c == 0:
                parts = [self._smoothed(i, (function,), nodes) for function in functions]
                self.store[key] = [mp.fprod(row) for row in zip(*parts, strict=True)]
            else:
                raise NoRoute
        return self.store[key]

    def _smooth_column(self, i: int, functions: Any, nodes: list[tuple[Any, Any]]) -> list[Any]:
        """The smoothed function on a grid in (x, g), in whole numbers of 2^-BITS, which are faster than mpmath's."""
        b, c = self.shape[i]
        parts = [(name, number(multiple)) for names, multiple in functions for name in names]
        if c == 0:
            return [mp.fprod(table()[name].smooth(s * b * x, mp.exp(s * b * x)) for name, s in parts) for x, _ in nodes]
        strip = min(table()[name].strip / abs(number(multiple)) for name, multiple in self._functions_of(i))
        inner = trapezoidal(strip / c)
        total: Any = None
        for name, s in parts:
            key = ("grid", i, name, s, id(nodes))
            if key not in self.store:
                left = [(s * b * x, mp.exp(s * b * x)) for x, _ in nodes]
                right = [(s * c * g, mp.exp(s * c * g)) for g, _ in inner]
                function = table()[name].smooth
                grid = np.empty((len(left), len(right)), dtype=object)
                for row, (y, ey) in enumerate(left):
                    grid[row] = [whole(function(y + z, ey * ez)) for z, ez in right]
                self.store[key] = grid
            total = self.store[key] if total is None else (total * self.store[key]) >> BITS
        sums = total.dot(np.array([whole(w) for _, w in inner], dtype=object))
        return [mp.ldexp(mp.mpf(int(value)), -2 * BITS) for value in sums]

    def _functions_of(self, i: int) -> list[tuple[str, Any]]:
        """The functions that any product may have of a variable: they share one grid."""
        return [
            (name, multiple)
            for field, (j, multiple) in self.same.items()
            if j == i and multiple
            for name in self.names[field]
        ]

    def _pieces_column(self, b: Any, c: Any, functions: Any, nodes: list[tuple[Any, Any]]) -> list[Any]:
        breaks, polynomials = _joined(functions)
        if c == 0:
            return [pieces_value(breaks, polynomials, b * x) for x, _ in nodes]
        degree = max(map(len, polynomials))
        # The function is its first polynomial plus a jump polynomial beyond every break.
        jumps = []
        for place, before, after in zip(breaks, polynomials, polynomials[1:], strict=False):
            padded = [[number(x) for x in row] + [mp.mpf(0)] * (degree - len(row)) for row in (before, after)]
            jumps.append((number(place), [y - x for x, y in zip(*padded, strict=True)]))
        result = []
        for x, _ in nodes:
            u = b * x
            total = mp.fsum(
                number(q) * m for q, m in zip(polynomials[0], tail_moments(u, c, None, degree), strict=False)
            )
            for place, jump in jumps:
                total += mp.fsum(q * m for q, m in zip(jump, tail_moments(u, c, place, degree), strict=True) if q)
            result.append(total)
        return result


def _joined(functions: Any) -> tuple[list[Any], list[list[Any]]]:
    """The product of piecewise polynomials of multiples of one variable."""
    forms = []
    for names, multiple in functions:
        breaks, polynomials = pieces_of(names)
        scaled = [[Fraction(c) * Fraction(multiple) ** n for n, c in enumerate(row)] for row in polynomials]
        edges = [Fraction(edge) / Fraction(multiple) for edge in breaks]
        forms.append((edges[::-1], scaled[::-1]) if multiple < 0 else (edges, scaled))
    edges = sorted({edge for form in forms for edge in form[0]})
    places = [edges[0] - 1, *((x + y) / 2 for x, y in itertools.pairwise(edges)), edges[-1] + 1] if edges else [0]
    result = []
    for place in places:
        total = [Fraction(1)]
        for breaks, polynomials in forms:
            factor = polynomials[sum(place > edge for edge in breaks)]
            longer = [Fraction(0)] * (len(total) + len(factor) - 1)
            for a, x in enumerate(total):
                for b, y in enumerate(factor):
                    longer[a + b] += x * y
            total = longer
        result.append(total)
    return edges, result


def tail_moments(u: Any, c: Any, place: Any, count: int) -> list[Any]:
    """E[y^n; y > place] for n below count, y normal of mean u and deviation c; the whole line where place is None.

    J_n = u J_{n-1} + c^2 (n - 1) J_{n-2} + c^2 place^{n-1} density(place).
    """
    far = 22  # deviations: beyond, the part on the other side is below every digit
    z = mp.inf if place is None else (u - place) / c
    if abs(z) > far:
        head, density, place = mp.mpf(z > 0), mp.mpf(0), mp.mpf(0)
    else:
        head = mp.erfc(-z / mp.sqrt(2)) / 2
        density = mp.exp(-z * z / 2) / (c * mp.sqrt(2 * mp.pi))
    found = [head]
    for n in range(1, count):
        before = c * c * (n - 1) * found[n - 2] if n > 1 else mp.mpf(0)
        found.append(u * found[n - 1] + before + c * c * place ** (n - 1) * density)
    return found


ROUTES: tuple[Callable[[Model], Any], ...] = (Rational, Closed, ReluUnits, Outer, Tree)

# ------------------------------------------------------------------------------------------------------- the whole


def values(setting: Setting, skip: int = 0) -> tuple[dict[str, Any], int, int]:
    """The exact values of a setting, and how many of its products went another route than the first.

    ``skip`` passes over the first routes that take a product, if others do.
    """
    model = Model(setting)
    routes = [route(model) for route in ROUTES]
    known: dict[Product, tuple[Any, int]] = {}

    def average(product: Product) -> Any:
        if product not in known:
            taken = 0
            for route in routes:
                try:
                    known[product] = route(product), taken
                except NoRoute:
                    continue
                taken += 1
                if taken > skip:
                    break
            if not taken:
                raise NoRoute(f"{setting.problem}, {setting.label}: {product}")
        return known[product][0]

    found = {
        case_name(setting, entry): mp.fsum(
            number(c) * average(product) for c, product in model.moment(entry[0], tuple(entry[1:])) if c
        )
        for entry in setting.entries
    }
    return found, sum(place > 0 for _, place in known.values()), len(known)


def text(value: Any) -> str:
    """The digits kept; what is zero up to the rounding of its terms is zero."""
    return "0" if abs(value) < mp.mpf(10) ** (-DIGITS + 8) else str(mp.nstr(value, KEPT, strip_zeros=False))


def make(only: str = "") -> dict[str, str]:
    found = {}
    for setting in SETTINGS:
        if only in f"{setting.problem}, {setting.label}":
            begun = time.time()
            found |= {name: text(value) for name, value in values(setting)[0].items()}
            print(f"{time.time() - begun:6.1f} s  {setting.problem}, {setting.label}", flush=True)
    return found


def verify(stored: dict[str, str], only: str = "") -> None:
    """Every value again: by a second route where there is one, with finer rules and 12 digits more."""
    global RULES
    RULES = Accuracy(nodes=42, step=0.85, reach=20)
    mp.mp.dps = DIGITS + 12
    worst = mp.mpf(0)
    for setting in SETTINGS:
        if only not in f"{setting.problem}, {setting.label}":
            continue
        begun = time.time()
        found, others, products = values(setting, skip=1)
        for name, value in found.items():
            exact = mp.mpf(stored[name])
            error = abs(value - exact) / (abs(exact) if exact else mp.mpf(10) ** -16)
            worst = max(worst, error)
            if error > mp.mpf(10) ** -34:
                print(f"DIFFERS by {mp.nstr(error, 3)}: {name} {mp.nstr(value, 40)} {stored[name]}")
        another = f"{others} of {products} products by another route"
        print(f"{time.time() - begun:6.1f} s  {setting.problem}, {setting.label}: {another}", flush=True)
    print(f"largest relative difference {mp.nstr(worst, 3)}")
    if worst > mp.mpf(10) ** -34:
        sys.exit("Some values differ.")


def sample(stored: dict[str, str], only: str = "", count: int = 2**22, chunk: int = 2**16) -> None:
    """Plain Monte Carlo with the problem's own functions: |z| < 5."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    largest = 0.0
    for seed, setting in enumerate(SETTINGS):
        if only not in f"{setting.problem}, {setting.label}":
            continue
        state, prob = setting.state, problem(setting.problem)
        W, W_star = state.W, state.W_star
        if W is None or W_star is None:  # orthonormal targets, and units that are independent given them
            rest = [
                Fraction(q) - sum(Fraction(x) ** 2 for x in row)
                for q, row in zip(np.diag(state.Q), state.M, strict=True)
            ]
            W = np.concatenate([state.M, np.diag([float(mp.sqrt(number(x))) for x in rest])], axis=1)
            W_star = np.eye(state.M.shape[1], W.shape[1])
        both = jnp.asarray(np.concatenate([W, W_star]))
        p = W.shape[0]

        def sums(x, prob=prob, both=both, state=state, p=p, setting=setting):
            fields = x @ both.T
            lam = fields[:, :p]
            eps = prob.target(fields[:, p:]) - prob.student(lam, jnp.asarray(state.a))
            slope, unit = prob.student.activation.derivative(lam), prob.student.activation(lam)
            found = []
            for moment, *i in setting.entries:
                if moment == "excess_risk":
                    y = 0.5 * eps**2
                elif moment == "chi":
                    y = unit[:, i[0]] * eps
                elif moment == "v":
                    y = slope[:, i[0]] * fields[:, i[1]] * eps
                else:
                    y = slope[:, i[0]] * slope[:, i[1]] * (eps**2 + prob.noise)
                found.append(y)
            return jnp.stack(found)

        compiled = jax.jit(sums)
        rng = np.random.default_rng(seed)
        total = np.zeros(len(setting.entries))
        square = np.zeros(len(setting.entries))
        for _ in range(count // chunk):
            y = np.asarray(compiled(jnp.asarray(rng.standard_normal((chunk, both.shape[1])))))
            total += y.sum(axis=1)
            square += (y**2).sum(axis=1)
        mean = total / count
        error = np.sqrt(np.maximum(square / count - mean**2, 0.0) / count)
        for entry, m, e in zip(setting.entries, mean, error, strict=True):
            name = case_name(setting, entry)
            exact = float(stored[name])
            z = (m - exact) / max(e, 1e-13 * abs(exact), 1e-30)
            largest = max(largest, abs(z))
            mark = "WRONG " if abs(z) > 5 else ""
            print(f"{mark}z {z:6.2f}  {name}: {m:.6g} +- {e:.1g}, exact {exact:.6g}", flush=True)
    print(f"largest z {largest:.2f}")
    if largest > 5.0:
        sys.exit("Some values differ.")


def main() -> None:
    mp.mp.dps = DIGITS
    flags = [word for word in sys.argv[1:] if word.startswith("--")]
    only = " ".join(word for word in sys.argv[1:] if not word.startswith("--"))
    if "--verify" in flags:
        verify(json.loads(VALUES.read_text()), only)
    elif "--sample" in flags:
        sample(json.loads(VALUES.read_text()), only)
    else:
        stored = json.loads(VALUES.read_text()) if only and VALUES.exists() else {}
        found = stored | make(only)
        names = [case_name(setting, entry) for setting in SETTINGS for entry in setting.entries]
        VALUES.write_text(json.dumps({name: found[name] for name in names if name in found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
