"""Random cases over families that deceive rules: jumps, growth, bumps and waves, on both sides, short rows and long.

A case is a problem of one student unit on a target of one field (or one that reduces to it: two equal units, a jump on
an oblique surface), at overlaps drawn from a seed. Its reference is computed here, by rules that share no code with the
engines: Gauss-Legendre on panels that are short against every feature, along the target's field and along the rest of
the student's. Cases of one function share its compiled programs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import erf

import twolayer as tl
from twolayer.problem import Custom, Overlaps

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")


@dataclass(frozen=True)
class Side:
    """A function of one field: as the package takes it, its values and slopes in NumPy, what its panels must see."""

    source: str | Callable[[], Any]  # a name, a formula, or what builds the function: that takes a search for kinks
    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray] | None = None
    places: tuple[float, ...] = ()  # kinks, and places about narrow features
    wave: float = 0.0  # radians per unit of the field
    growth: float = 0.0  # of the logarithm, per unit of the field
    degree: int = 1

    @cached_property
    def given(self) -> Any:
        return self.source if isinstance(self.source, str) else self.source()


@dataclass(frozen=True)
class Pair:
    """A student and a target. ``shape`` is "plain", "twin" (two equal units) or "oblique" (two target fields)."""

    family: str
    student: Side
    target: Side
    shape: str
    noise: float  # a number in the program: one for all states

    def problem(self) -> tl.Problem:
        p, k = 2 if self.shape == "twin" else 1, 2 if self.shape == "oblique" else 1
        target = self.target.given
        if isinstance(target, str):
            target = tl.MultiIndex(target.replace("z1", "(0.6*z1 + 0.8*z2)") if k == 2 else target, k=k)
        return tl.Problem(target, tl.Student(p, self.student.given), tl.Gaussian(100), noise=self.noise)


@dataclass(frozen=True)
class State:
    """Overlaps of one unit, with numbers of few binary digits, so that the reference belongs to exactly these."""

    Q: float
    M: float
    a: float

    @property
    def rest(self) -> float:
        """The deviation of the student's field given the target's."""
        return float(Fraction(self.Q) - Fraction(self.M) ** 2) ** 0.5

    def overlaps(self, shape: str) -> Overlaps:
        p = 2 if shape == "twin" else 1
        Q, a = np.full((p, p), self.Q), np.full(p, self.a)
        M = np.full((p, 1), self.M) @ (np.array([[0.6, 0.8]]) if shape == "oblique" else np.ones((1, 1)))
        return Overlaps(*(jnp.asarray(x) for x in (Q, M, np.eye(M.shape[1]), a)))


# ------------------------------------------------------------------------------------------------------- reference


def panels(breaks: np.ndarray, reach: float, longest: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre for a standard normal, row by row between the sorted breaks and an even grid."""
    even = np.linspace(-reach, reach, int(np.ceil(2 * reach / longest)) + 1)
    rows = np.concatenate([np.broadcast_to(even, (len(breaks), len(even))), np.clip(breaks, -reach, reach)], axis=1)
    ends = np.sort(rows, axis=1)
    x, w = np.polynomial.legendre.leggauss(nodes)
    half = 0.5 * np.diff(ends, axis=1)[:, :, None]
    points = (0.5 * (ends[:, 1:] + ends[:, :-1])[:, :, None] + half * x).reshape(len(breaks), -1)
    weights = (half * w).reshape(len(breaks), -1) * np.exp(-0.5 * points**2) / np.sqrt(2.0 * np.pi)
    return points, weights


class Truth(NamedTuple):
    """The moments of one unit, and as their sizes the averages of the modulus of what they average."""

    values: dict[str, np.ndarray]
    sizes: dict[str, np.ndarray]


def reference(pair: Pair, state: State, nodes: int = 16) -> Truth:
    """Excess risk, chi, v along the student's and the target's field, phi_hd."""
    student, target, rest, pull = pair.student, pair.target, state.rest, state.M
    length = state.Q**0.5
    reach = 10.0 + 4.0 * (student.growth * length + target.growth) + (2.0 if student.degree > 4 else 0.0)
    smear = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0])
    places = np.asarray(student.places)
    met = (places[:, None] / pull + smear * rest / abs(pull)).ravel() if pull else np.empty(0)
    outer_wave = target.wave + student.wave * abs(pull)
    breaks = np.concatenate([met, target.places])[None, :]
    g, outer = (x[0] for x in panels(breaks, reach, min(0.5, 2.0 / max(outer_wave, 1e-9)), nodes))
    totals, sizes = np.zeros(5), np.zeros(5)
    for part in np.array_split(np.arange(len(g)), max(1, len(g) // 400)):
        if rest:
            longest = min(0.5, 2.0 / max(student.wave * rest, 1e-9))
            x, inner = panels((places[None, :] - pull * g[part, None]) / rest, reach, longest, nodes)
        else:
            x, inner = np.zeros((len(part), 1)), np.ones((len(part), 1))
        lam = pull * g[part, None] + rest * x
        w = outer[part, None] * inner
        sigma, slope = student.value(lam), student.slope(lam)  # type: ignore[misc]
        eps = target.value(g[part])[:, None] - state.a * sigma
        products = (0.5 * eps**2, sigma * eps, slope * lam * eps, slope * g[part, None] * eps)
        averaged = (*products, slope**2 * (eps**2 + pair.noise))
        totals += [np.sum(w * product) for product in averaged]
        sizes += [np.sum(w * np.abs(product)) for product in averaged]
    return Truth(_moments(pair, totals), _moments(pair, sizes))


def _moments(pair: Pair, averages: np.ndarray) -> dict[str, np.ndarray]:
    """The averages over one unit and one target field, in the shapes of the problem's moments."""
    risk, chi, along, across, phi = averages
    v = {"plain": [along, across], "twin": [along, along, across], "oblique": [along, 0.6 * across, 0.8 * across]}
    p = 2 if pair.shape == "twin" else 1
    return {
        "excess_risk": np.asarray(risk),
        "chi": np.full(p, chi),
        "v": np.tile(v[pair.shape], (p, 1)),
        "phi_hd": np.full((p, p), phi),
    }


# ------------------------------------------------------------------------------------------------------- functions


def around(centre: float, width: float) -> tuple[float, ...]:
    return tuple(centre + width * u for u in (-7.0, -4.5, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 7.0))


ERF = Side("erf", lambda x: erf(x / 2**0.5), lambda x: (2 / np.pi) ** 0.5 * np.exp(-(x**2) / 2), around(0.0, 1.0))
TANH = Side("tanh", np.tanh, lambda x: 1 / np.cosh(np.clip(x, -300, 300)) ** 2, (*around(0.0, 1.0), -15.0, 15.0))
RELU = Side("relu", lambda x: np.maximum(x, 0.0), lambda x: (x > 0) * 1.0, (0.0,))


def hard(low: float, high: float) -> Side:
    return Side(
        lambda: Custom(lambda x: jnp.clip(x, low, high), kinks=(low, high)),
        lambda x: np.clip(x, low, high),
        lambda x: ((x > low) & (x < high)) * 1.0,
        (low, high),
    )


def hermite(n: int) -> Side:
    polynomial = np.polynomial.hermite_e.HermiteE([0.0] * n + [1.0])
    return Side(f"he{n}", polynomial, polynomial.deriv(), degree=n)


def exponential(c: float) -> Side:
    return Side(
        lambda: Custom(lambda x: jnp.exp(c * x)), lambda x: np.exp(c * x), lambda x: c * np.exp(c * x), growth=abs(c)
    )


def bump(centre: float, width: float) -> Side:
    def value(x: np.ndarray) -> np.ndarray:
        return np.exp(-(((x - centre) / width) ** 2))

    def given() -> Custom:
        return Custom(lambda x: jnp.exp(-(((x - centre) / width) ** 2)), growth=0)

    return Side(given, value, lambda x: -2 * (x - centre) / width**2 * value(x), around(centre, width))


def wave(c: float) -> Side:
    return Side(
        lambda: Custom(lambda x: jnp.cos(c * x), growth=0),
        lambda x: np.cos(c * x),
        lambda x: -c * np.sin(c * x),
        wave=c,
    )


def kinked_targets(c: float, b: float) -> list[Side]:
    return [
        Side(f"step(z1 - {c})", lambda z: (z > c) * 1.0, places=(c,)),
        Side(f"abs(z1 - {c})", lambda z: np.abs(z - c), places=(c,)),
        Side(f"max(z1, {c})*z1", lambda z: np.maximum(z, c) * z, places=(c,)),
        Side(f"min(abs(z1), {b})", lambda z: np.minimum(np.abs(z), b), places=(-b, 0.0, b)),
        Side(f"sign(z1 - {c}) - {b}*step(z1)", lambda z: np.sign(z - c) - b * (z > 0), places=(0.0, c)),
        Side(f"relu({b}*z1 - {c})", lambda z: np.maximum(b * z - c, 0.0), places=(c / b,)),
    ]


def smooth_targets(c: float, s: float) -> list[Side]:
    def narrow(z: np.ndarray) -> np.ndarray:
        return np.exp(-(((z - c) / s) ** 2))

    return [
        Side(f"exp(-((z1 - {c})/{s})**2)", narrow, places=around(c, s)),
        Side(lambda: tl.MultiIndex(lambda z: jnp.exp(-(((z[0] - c) / s) ** 2)), k=1), narrow, places=around(c, s)),
        Side("cos(3*z1)", lambda z: np.cos(3 * z), wave=3.0),
        Side("tanh(z1)", np.tanh, places=around(0.0, 1.0)),
    ]


def draw_pair(rng: np.random.Generator, family: str) -> Pair:
    """A student and a target of the family."""
    c, b = round(float(rng.uniform(-2.5, 2.5)), 3), round(float(rng.uniform(0.3, 2.0)), 3)
    width, centre = float(2.0 ** rng.uniform(-4.0, 0.5)), round(float(rng.uniform(-2.0, 2.0)), 2)
    kinked, smooth = kinked_targets(c, b), smooth_targets(c, round(max(width, 0.06), 3))
    shape, noise = str(rng.choice(["plain", "plain", "plain", "twin", "oblique"])), float(rng.choice([0.0, 0.25]))
    straight = "plain" if shape == "oblique" else shape

    def one(sides: list[Side]) -> Side:
        return sides[int(rng.integers(len(sides)))]

    if family == "jumps":
        return Pair(family, one([ERF, TANH, RELU, hard(-b, 1.0), hard(c - 0.5, c + 0.5)]), one(kinked), shape, noise)
    if family == "growth":
        growing = [hermite(int(rng.integers(5, 9))), exponential(round(float(rng.uniform(0.3, 1.5)), 2))]
        return Pair(family, one(growing), one([*kinked, smooth[2], smooth[3]]), straight, noise)
    if family == "bumps":
        featured = [bump(centre, width), bump(0.0, 1.0), wave(round(float(rng.uniform(1.0, 4.0)), 2))]
        return Pair(family, one(featured), one([*kinked[:4], *smooth]), straight, noise)
    return Pair(
        "narrow targets", one([ERF, TANH, RELU, bump(centre, max(width, 0.2))]), one(smooth[:2]), "plain", noise
    )


FAMILIES = ("jumps", "growth", "bumps", "narrow targets")


def draw_state(rng: np.random.Generator, pair: Pair) -> State:
    """Overlaps from generic to singular; rows of length 0.1 to 20, of fast-growing students to 3."""
    longest = 3.0 if pair.family == "growth" else 20.0
    length = float(np.exp(rng.uniform(np.log(0.1), np.log(longest))))
    kind = rng.choice(["generic", "generic", "zero", "near", "singular"])
    cosine = {"generic": rng.uniform(-1.0, 1.0), "zero": 0.0}.get(str(kind), rng.choice([-1.0, 1.0]))
    M = round(length * float(cosine) * 1024) / 1024
    rest = {"near": 10.0 ** rng.uniform(-10.0, -2.0), "singular": 0.0}.get(str(kind), length**2 * (1.0 - cosine**2))
    Q = M * M + float(np.float32(rest))
    a = round(float(rng.uniform(-1.5, 1.5)), 2)
    if pair.student.degree > 4:
        a /= 10.0 ** (pair.student.degree // 2)
    return State(Q if Q > 0.0 else 1.0, M, a)


def is_extreme(pair: Pair, state: State) -> bool:
    """Whether averages are made so far out that refusing is in order."""
    return pair.student.growth * state.Q**0.5 > 1.5


@dataclass
class Group:
    """A pair of functions with some states."""

    pair: Pair
    states: list[State] = field(default_factory=list)


def draw(seed: int, functions: int, states: int) -> list[Group]:
    """So many functions of each family, with so many states each."""
    groups = []
    for number, family in enumerate(FAMILIES):
        for index in range(functions):
            rng = np.random.default_rng((seed, number, index))
            pair = draw_pair(rng, family)
            groups.append(Group(pair, [draw_state(rng, pair) for _ in range(states)]))
    return groups


def quoted() -> dict[str, tuple[Group, dict[str, list[float]]]]:
    """Cases in which nets and product rules once reported far too small errors, with moments known to some digits."""
    absolute, cosine = kinked_targets(0.0, 1.0)[1], smooth_targets(0.0, 1.0)[2]
    step, hat = Side("step(z1 + 1.0)", lambda z: (z > -1.0) * 1.0, places=(-1.0,)), kinked_targets(0.0, 1.0)[3]
    apart, small = State(1.0, 0.0, 0.0), State(1.0, 0.0, 0.05)
    long = [State(length**2, length, 0.9) for length in (10.0, 12.0, 20.0)]

    def group(student: Side, target: Side, states: list[State], noise: float = 0.0) -> Group:
        return Group(Pair("quoted", student, target, "plain", noise), states)

    return {
        "a jump": (group(ERF, step, [apart]), {"excess_risk": [0.4206724]}),
        "kinks that coincide": (group(hard(-1.0, 1.0), hat, [State(1.0, 1.0, 0.5)]), {}),
        "he8": (group(hermite(8), absolute, [small]), {"excess_risk": [50.9], "phi_hd": [2.3e13]}),
        "exp(2x)": (group(exponential(2.0), absolute, [small]), {"phi_hd": [7.9e11]}),
        "exp(x)": (group(exponential(1.0), absolute, [small], 0.2), {"phi_hd": [9.14]}),
        "a bump": (group(bump(0.0, 1.0), cosine, long), {"phi_hd": [0.0131, 0.0115, 0.0074]}),
    }
