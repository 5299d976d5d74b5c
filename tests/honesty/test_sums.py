"""No error is smaller than the true one for several units of any activation on sums of functions of one field each.

References are sums over grids in the space of independent normals: the trapezoidal rule in four dimensions for rows of
moderate length, which converges geometrically for smooth functions, and a fine grid in two dimensions for long rows,
whose fields are all combinations of two normals. With kinks, fields are combinations of three normals, and the grid is
one of Gauss-Legendre rules between the planes of the kinks, then between their crossings, and the crossings of these.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import twolayer as tl
from twolayer.core.errors import NotApplicable
from twolayer.expectation import Auto, estimate
from twolayer.problem import Overlaps

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
SEED = 18
# Half-width and spacing of the grid, by the number of normals.
GRIDS = {4: (8.4, 0.4), 2: (8.5, 0.0125)}
# Half-width, longest panels and nodes on each panel of the grid between kinks.
REACH, LONGEST, NODES = 8.25, 1.5, 14


# What the references may be off by, in units of the largest entry, by the number of normals.
OFF = {4: 1e-10, 3: 1e-8, 2: 1e-10}


def silu(x):
    return x / (1.0 + np.exp(-x))


def silu_slope(x):
    s = 1.0 / (1.0 + np.exp(-x))
    return s * (1.0 + x * (1.0 - s))


def bump(x):
    return np.exp(-(x**2))


def gelu_slope(x):
    return 0.5 * (1.0 + erf(x / np.sqrt(2.0))) + x * np.exp(-0.5 * x**2) / np.sqrt(2.0 * np.pi)


def leaky_slope(x):
    return np.where(x > 0, 1.0, 0.1)


ACTIVATIONS = {
    "silu": (jax.nn.silu, silu, silu_slope),
    "bump": (lambda x: jnp.exp(-(x**2)), bump, lambda x: -2.0 * x * bump(x)),
    "odd bump": (
        lambda x: x * jnp.exp(-((x - 0.5) ** 2)),
        lambda x: x * np.exp(-((x - 0.5) ** 2)),
        lambda x: (1.0 - 2.0 * x * (x - 0.5)) * np.exp(-((x - 0.5) ** 2)),
    ),
    "gelu": ("gelu", lambda x: 0.5 * x * (1.0 + erf(x / np.sqrt(2.0))), gelu_slope),
    "abs": ("abs", np.abs, np.sign),
    "leaky": (lambda x: jnp.where(x > 0, x, 0.1 * x), lambda x: np.where(x > 0, x, 0.1 * x), leaky_slope),
    "hardtanh": ("hardtanh", lambda x: np.clip(x, -1.0, 1.0), lambda x: 1.0 * (np.abs(x) < 1.0)),
}
# The places of the kinks of activations, and of targets along z1.
KINKS = {"leaky": (0.0,), "abs": (0.0,), "hardtanh": (-1.0, 1.0), "abs(z1 - 0.5) + sin(2*z2)": (0.5,)}
TARGETS = {
    "tanh(z1) + z1*z2": lambda z: np.tanh(z[0]) + z[0] * z[1],
    "sin(z1)/2 + exp(-z2**2/2) - z1*z2/2": lambda z: np.sin(z[0]) / 2 + np.exp(-(z[1] ** 2) / 2) - z[0] * z[1] / 2,
    "tanh(z1 - 0.3)": lambda z: np.tanh(z[0] - 0.3),
    "silu(z1) - silu(z2)/2": lambda z: silu(z[0]) - silu(z[1]) / 2,
    "sin(z1) + z1*z2/2": lambda z: np.sin(z[0]) + z[0] * z[1] / 2,
    "abs(z1 - 0.5) + sin(2*z2)": lambda z: np.abs(z[0] - 0.5) + np.sin(2 * z[1]),
    "tanh(z1)*z2": lambda z: np.tanh(z[0]) * z[1],
    "exp(-4*(z1-1)**2) + tanh(z2)": lambda z: np.exp(-4 * (z[0] - 1) ** 2) + np.tanh(z[1]),
    "sin(z1)*tanh(z2) + z1*silu(z2)": lambda z: np.sin(z[0]) * np.tanh(z[1]) + z[0] * silu(z[1]),
}


@dataclass(frozen=True)
class Case:
    """A student and a target, with their rows in a space of few dimensions."""

    activation: str
    formula: str
    W: np.ndarray
    W_star: np.ndarray
    a: np.ndarray
    noise: float = 0.1

    def problem(self) -> tl.Problem:
        target = tl.MultiIndex(self.formula, k=len(self.W_star))
        return tl.Problem(target, tl.Student(len(self.a), ACTIVATIONS[self.activation][0]), tl.Gaussian(100), noise=0.1)

    def overlaps(self) -> Overlaps:
        W, V = self.W, self.W_star
        return Overlaps(*(jnp.asarray(x) for x in (W @ W.T, W @ V.T, V @ V.T, self.a)))

    def truth(self) -> dict[str, np.ndarray]:
        p, n = len(self.a), len(self.a) + len(self.W_star)
        totals = {"excess_risk": 0.0, "chi": np.zeros(p), "v": np.zeros((p, n)), "phi_hd": np.zeros((p, p))}
        _, value, slope = ACTIVATIONS[self.activation]
        for g, weights in between(self.planes()) if self.W.shape[1] == 3 else even(self.W.shape[1]):
            lam, lam_star = self.W @ g, self.W_star @ g
            eps = TARGETS[self.formula](lam_star) - self.a @ value(lam) / p
            d = slope(lam)
            totals["excess_risk"] += 0.5 * weights @ eps**2
            totals["chi"] += value(lam) @ (weights * eps)
            totals["v"] += (d * (weights * eps)) @ np.concatenate([lam, lam_star]).T
            totals["phi_hd"] += (d * (weights * (eps**2 + self.noise))) @ d.T
        return {name: np.asarray(total) for name, total in totals.items()}

    def planes(self) -> np.ndarray:
        """The planes of all kinks, as rows of normal vector and distance."""
        rows = [(*row, kink) for row in self.W for kink in KINKS.get(self.activation, ())]
        return np.array([*rows, *((*self.W_star[0], kink) for kink in KINKS.get(self.formula, ()))])


def even(dimension: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points and weights of the trapezoidal rule, slice by slice to bound the memory."""
    reach, spacing = GRIDS[dimension]
    line = np.arange(-reach, reach + spacing, spacing)
    density = np.exp(-0.5 * line**2) * spacing / np.sqrt(2.0 * np.pi)
    for first, share in zip(line, density, strict=True):
        rest = np.stack(np.meshgrid(*[line] * (dimension - 1), indexing="ij")).reshape(dimension - 1, -1)
        weights = share * np.prod(np.meshgrid(*[density] * (dimension - 1), indexing="ij"), axis=0).ravel()
        yield np.concatenate([np.full((1, rest.shape[1]), first), rest]), weights


def crossings(planes: np.ndarray) -> list[np.ndarray]:
    """Where planes end a rule along the first, the second and the last direction, as rows like those of planes."""
    by_dimension = [planes]
    while by_dimension[0].shape[1] > 2:  # where two of them cross, seen along the last direction
        scaled = by_dimension[0] / by_dimension[0][:, -2:-1]
        rows = [np.delete(x - y, -2) for i, x in enumerate(scaled) for y in scaled[:i]]
        rows = [row / np.linalg.norm(row[:-1]) for row in rows if np.linalg.norm(row[:-1]) > 1e-12]
        by_dimension.insert(0, np.array(rows).reshape(-1, by_dimension[0].shape[1] - 1))
    return by_dimension


def frame(planes: np.ndarray) -> np.ndarray:
    """The axes that planes and their crossings meet least obliquely, out of some: a kink is smooth along the others."""
    rng = np.random.default_rng(0)
    tried = [np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(500)]

    def least(axes: np.ndarray) -> float:
        rows = crossings(np.concatenate([planes[:, :3] @ axes, planes[:, 3:]], axis=1))
        return min(np.min(np.abs(x[:, -2]) / np.linalg.norm(x[:, :-1], axis=1), initial=1.0) for x in rows)

    return max(tried, key=least)


def between(planes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points and weights in three dimensions between planes, slice by slice along the first one."""
    axes = frame(planes)
    ends = crossings(np.concatenate([planes[:, :3] @ axes, planes[:, 3:]], axis=1))
    for part, weights in between_breaks(np.zeros((0, 1)), np.ones(1), ends[0], 16):
        points = next(between_breaks(part, weights, ends[1], 1))
        g, total = next(between_breaks(*points, ends[2], 1))
        yield axes @ g, total


def between_breaks(
    points: np.ndarray, weights: np.ndarray, planes: np.ndarray, parts: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The points with one more coordinate, on Gauss-Legendre rules that end where planes are met."""
    met = (planes[:, -1] - points.T @ planes[:, :-2].T) / planes[:, -2]
    grid = np.broadcast_to(np.linspace(-REACH, REACH, int(np.ceil(2 * REACH / LONGEST)) + 1), (points.shape[1], 12))
    ends = np.sort(np.concatenate([grid, np.clip(met, -REACH, REACH)], axis=1), axis=1)
    x, w = np.polynomial.legendre.leggauss(NODES)
    half = 0.5 * np.diff(ends, axis=1)[:, :, None]
    new = (0.5 * (ends[:, 1:] + ends[:, :-1])[:, :, None] + half * x).reshape(len(ends), -1)
    shares = (half * w).reshape(len(ends), -1) * np.exp(-0.5 * new**2) / np.sqrt(2.0 * np.pi)
    repeated = np.repeat(points[:, :, None], new.shape[1], axis=2).reshape(len(points), new.size)
    whole, total = np.concatenate([repeated, new.reshape(1, -1)]), (weights[:, None] * shares).ravel()
    kept = total > 1e-18
    for some in np.array_split(np.flatnonzero(kept), parts):
        yield whole[:, some], total[some]


def draw(rng: np.random.Generator, activation: str, formula: str, p: int, dimension: int, longest: float) -> Case:
    """Random rows, in half of the cases with two that are nearly equal; random P."""
    k = 1 if "z2" not in formula else 2
    W = rng.standard_normal((p, dimension))
    if rng.random() < 0.5:
        W[1] = W[0] * rng.choice([-1.0, 1.0]) + 10.0 ** rng.uniform(-6.0, -1.0) * rng.standard_normal(dimension)
    W *= np.exp(rng.uniform(np.log(0.3), np.log(longest), (p, 1))) / np.linalg.norm(W, axis=1)[:, None]
    W_star = rng.standard_normal((k, dimension))
    W_star /= np.linalg.norm(W_star, axis=1)[:, None]
    return Case(activation, formula, W, W_star, rng.uniform(-1.5, 1.5, p))


def check(case: Case, chosen, useful: float) -> list[str]:
    truth, result = case.truth(), estimate(chosen, case.problem(), case.overlaps(), MOMENTS)
    wrong = []
    for moment in MOMENTS:
        value, error = (np.asarray(part[moment]) for part in (result.value, result.error))
        size = np.max(np.abs(truth[moment]))
        if not np.all(np.abs(value - truth[moment]) <= error + OFF[case.W.shape[1]] * size):
            wrong.append(f"{moment} of {case}: reports {error}, true {np.abs(value - truth[moment])}")
        if not np.max(error) <= useful * size:
            wrong.append(f"{moment} of {case}: the error {np.max(error):.1g} says little about {size:.1g}")
    return wrong


@pytest.mark.parametrize(
    ("activation", "formula", "p", "dimension", "longest", "useful"),
    [
        ("silu", "tanh(z1) + z1*z2", 2, 4, 1.5, 1e-4),
        pytest.param("leaky", "sin(z1) + z1*z2/2", 2, 3, 20.0, 0.02, marks=pytest.mark.slow),
        pytest.param("leaky", "sin(z1) + z1*z2/2", 3, 3, 20.0, 0.05, marks=pytest.mark.long),
        pytest.param("leaky", "sin(z1) + z1*z2/2", 4, 3, 1.5, 0.02, marks=pytest.mark.long),
        pytest.param("hardtanh", "sin(z1) + z1*z2/2", 3, 3, 3.0, 0.2, marks=pytest.mark.long),
        pytest.param("gelu", "silu(z1) - silu(z2)/2", 2, 4, 1.5, 1e-4, marks=pytest.mark.slow),
        pytest.param("silu", "tanh(z1) + z1*z2", 4, 4, 1.5, 1e-4, marks=pytest.mark.slow),
        pytest.param("abs", "sin(z1) + z1*z2/2", 2, 3, 20.0, 0.05, marks=pytest.mark.long),
        pytest.param("silu", "tanh(z1) + z1*z2", 4, 2, 20.0, 0.05, marks=pytest.mark.long),
        pytest.param("bump", "sin(z1)/2 + exp(-z2**2/2) - z1*z2/2", 3, 2, 20.0, 0.2, marks=pytest.mark.long),
        pytest.param("hardtanh", "abs(z1 - 0.5) + sin(2*z2)", 2, 3, 20.0, 0.05, marks=pytest.mark.long),
        pytest.param("silu", "tanh(z1 - 0.3)", 2, 4, 1.5, 1e-3, marks=pytest.mark.long),
        pytest.param("silu", "sin(z1)/2 + exp(-z2**2/2) - z1*z2/2", 2, 2, 20.0, 0.05, marks=pytest.mark.long),
        pytest.param("bump", "tanh(z1 - 0.3)", 2, 2, 20.0, 0.2, marks=pytest.mark.long),
    ],
)
def test_no_error_is_smaller_than_the_true_one(activation, formula, p, dimension, longest, useful):
    rng = np.random.default_rng((SEED, p, dimension, len(formula)))
    cases = [draw(rng, activation, formula, p, dimension, longest) for _ in range(4)]
    chosen = Auto(engines=("Ridges",)).choose(cases[0].problem(), MOMENTS)
    wrong = [line for case in cases for line in check(case, chosen, useful)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("activation", "formula", "p", "useful"),
    [
        ("silu", "tanh(z1)*z2", 2, 1e-3),
        pytest.param("gelu", "sin(z1)*tanh(z2) + z1*silu(z2)", 2, 1e-3, marks=pytest.mark.slow),
        pytest.param("silu", "tanh(z1)*z2", 4, 1e-3, marks=pytest.mark.long),
    ],
)
def test_products_of_functions_are_averaged_given_the_target(activation, formula, p, useful):
    """Such targets are no sums of functions of one field; nets have errors of 1e-2 where these have 1e-5."""
    rng = np.random.default_rng((SEED, p, len(formula)))
    short = [draw(rng, activation, formula, p, 4, 1.5) for _ in range(2)]
    long = [draw(rng, activation, formula, p, 2, 8.0) for _ in range(4)]
    chosen = Auto().choose(short[0].problem(), ("phi_hd",))
    assert "trapezoidal" in chosen.name
    wrong = []
    for cases, allowed in ((short, useful), (long, 0.5)):
        for case in cases:
            truth, result = case.truth()["phi_hd"], estimate(chosen, case.problem(), case.overlaps(), ("phi_hd",))
            value, error = (np.asarray(part["phi_hd"]) for part in (result.value, result.error))
            size = np.max(np.abs(truth))
            if not np.all(np.abs(value - truth) <= error + OFF[case.W.shape[1]] * size):
                wrong.append(f"{case}: reports {error}, true {np.abs(value - truth)}")
            if not np.max(error) <= allowed * size:
                wrong.append(f"{case}: the error {np.max(error):.1g} says little about {size:.1g}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_error_covers_nearly_parallel_rows_and_slopes_of_both_signs():
    """Two rows of three are nearly parallel, and the slope of the unit changes its sign."""
    case = Case(
        "odd bump",
        "exp(-4*(z1-1)**2) + tanh(z2)",
        np.array(
            [
                [0.3573233001831214, 0.26515138134433475],
                [0.5548218251962355, 0.41170945683018767],
                [-0.49782037543523483, -0.5946571836614981],
            ]
        ),
        np.array([[-0.910119226107968, 0.41434646646089957], [-0.7907628077428761, 0.6121226853259102]]),
        np.array([-0.4442017610691371, 0.749357843299923, 0.8432124447473939]),
    )
    wrong = check(case, Auto(engines=("Ridges",)).choose(case.problem(), MOMENTS), 1e-2)
    assert not wrong, "\n".join(wrong)


def test_a_target_without_a_finite_average_is_refused():
    problem = tl.Problem(tl.MultiIndex("exp(0.3*z1**2)", k=1), tl.Student(1, "erf"), tl.Gaussian(100))
    with pytest.raises(NotApplicable, match="no finite average"):
        Auto().choose(problem)
