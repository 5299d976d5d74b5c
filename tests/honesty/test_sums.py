"""No error is smaller than the true one for several units of any activation on sums of functions of one field each.

References are sums over grids in the space of independent normals: the trapezoidal rule in four dimensions for rows of
moderate length, which converges geometrically for smooth functions, and a fine grid in two dimensions for long rows,
whose fields are all combinations of two normals.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.errors import NotApplicable
from twolayer.expectation import Auto, estimate
from twolayer.problem import Overlaps

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
SEED = 18
# Half-width and spacing of the grid, by the number of normals.
GRIDS = {4: (8.5, 0.5), 2: (8.5, 0.0125)}


def silu(x):
    return x / (1.0 + np.exp(-x))


def silu_slope(x):
    s = 1.0 / (1.0 + np.exp(-x))
    return s * (1.0 + x * (1.0 - s))


def bump(x):
    return np.exp(-(x**2))


ACTIVATIONS = {
    "silu": (jax.nn.silu, silu, silu_slope),
    "bump": (lambda x: jnp.exp(-(x**2)), bump, lambda x: -2.0 * x * bump(x)),
}
TARGETS = {
    "tanh(z1) + z1*z2": lambda z: np.tanh(z[0]) + z[0] * z[1],
    "sin(z1)/2 + exp(-z2**2/2) - z1*z2/2": lambda z: np.sin(z[0]) / 2 + np.exp(-(z[1] ** 2) / 2) - z[0] * z[1] / 2,
    "tanh(z1 - 0.3)": lambda z: np.tanh(z[0] - 0.3),
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
        _, value, slope = ACTIVATIONS[self.activation]
        dimension = self.W.shape[1]
        reach, spacing = GRIDS[dimension]
        line = np.arange(-reach, reach + spacing, spacing)
        density = np.exp(-0.5 * line**2) * spacing / np.sqrt(2.0 * np.pi)
        p, n = len(self.a), len(self.a) + len(self.W_star)
        totals = {"excess_risk": 0.0, "chi": np.zeros(p), "v": np.zeros((p, n)), "phi_hd": np.zeros((p, p))}
        for first, share in zip(line, density, strict=True):  # slice by slice, to bound the memory
            rest = np.stack(np.meshgrid(*[line] * (dimension - 1), indexing="ij")).reshape(dimension - 1, -1)
            weights = share * np.prod(np.meshgrid(*[density] * (dimension - 1), indexing="ij"), axis=0).ravel()
            g = np.concatenate([np.full((1, rest.shape[1]), first), rest])
            lam, lam_star = self.W @ g, self.W_star @ g
            eps = TARGETS[self.formula](lam_star) - self.a @ value(lam) / p
            d = slope(lam)
            totals["excess_risk"] += 0.5 * weights @ eps**2
            totals["chi"] += value(lam) @ (weights * eps)
            totals["v"] += (d * (weights * eps)) @ np.concatenate([lam, lam_star]).T
            totals["phi_hd"] += (d * (weights * (eps**2 + self.noise))) @ d.T
        return {name: np.asarray(total) for name, total in totals.items()}


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
        if not np.all(np.abs(value - truth[moment]) <= error + 1e-10 * size):
            wrong.append(f"{moment} of {case}: reports {error}, true {np.abs(value - truth[moment])}")
        if not np.max(error) <= useful * size:
            wrong.append(f"{moment} of {case}: the error {np.max(error):.1g} says little about {size:.1g}")
    return wrong


@pytest.mark.parametrize(
    ("activation", "formula", "p", "dimension", "longest", "useful"),
    [
        ("silu", "tanh(z1) + z1*z2", 2, 4, 1.5, 1e-4),
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


def test_a_target_without_a_finite_average_is_refused():
    problem = tl.Problem(tl.MultiIndex("exp(0.3*z1**2)", k=1), tl.Student(1, "erf"), tl.Gaussian(100))
    with pytest.raises(NotApplicable, match="no finite average"):
        Auto().choose(problem)
