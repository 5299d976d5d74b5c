"""Random jumps and kinks on oblique surfaces of two target fields, which nets meet without knowing where they are.

A target is h(t) + kappa s with t and s two orthogonal directions of its fields, so that steps, absolute values and
maxima of linear forms are among them. Given t and the student's field, s is normal with known mean and variance: every
moment is an average over two fields, computed as in `families`.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.problem import Overlaps

from .families import ERF, RELU, TANH, Side, hard, panels


@dataclass(frozen=True)
class Oblique:
    """A student unit on a target of two fields. ``along`` and ``across`` are the directions of t and s."""

    student: Side
    formula: str
    height: Side  # h
    slope: float  # kappa
    along: tuple[float, float]

    @property
    def frame(self) -> np.ndarray:
        """The directions of t and s, one in each row."""
        first, second = self.along
        return np.array([[first, second], [-second, first]])

    def problem(self) -> tl.Problem:
        student = tl.Student(1, self.student.given)
        return tl.Problem(tl.MultiIndex(self.formula, k=2), student, tl.Gaussian(100), noise=0.1)


@dataclass(frozen=True)
class ObliqueState:
    """Overlaps of the student with t and s, and its variance given both."""

    pulls: tuple[float, float]
    rest: float
    a: float

    def overlaps(self, case: Oblique) -> Overlaps:
        M = np.array([self.pulls]) @ case.frame
        Q = np.array([[M[0] @ M[0] + self.rest]])
        return Overlaps(*(jnp.asarray(x) for x in (Q, M, np.eye(2), np.array([self.a]))))


def reference(case: Oblique, state: ObliqueState, nodes: int = 16) -> dict[str, np.ndarray]:
    """The moments by rules along t and along what is left of the student's field."""
    student, (pull, lean), height, kappa = case.student, state.pulls, case.height, case.slope
    width = float(np.sqrt(lean**2 + state.rest))
    smear = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0])
    places = np.asarray(student.places)
    met = (places[:, None] / pull + smear * width / abs(pull)).ravel() if pull else np.empty(0)
    t, outer = (x[0] for x in panels(np.concatenate([met, height.places])[None, :], 10.0, 0.5, nodes))
    totals = np.zeros(6)
    for part in np.array_split(np.arange(len(t)), max(1, len(t) // 400)):
        if width:
            x, inner = panels((places[None, :] - pull * t[part, None]) / width, 10.0, 0.5, nodes)
        else:
            x, inner = np.zeros((len(part), 1)), np.ones((len(part), 1))
        lam, w = pull * t[part, None] + width * x, outer[part, None] * inner
        # s given t and the student's field.
        mean = lean / width * x if width else np.zeros_like(x)
        variance = state.rest / width**2 if width else 1.0
        sigma, slope = student.value(lam), student.slope(lam)  # type: ignore[misc]
        eps = height.value(t[part])[:, None] + kappa * mean - state.a * sigma
        square = eps**2 + kappa**2 * variance
        along = slope * t[part, None] * eps, slope * (mean * eps + kappa * variance)
        averaged = (0.5 * square, sigma * eps, slope * lam * eps, *along, slope**2 * (square + 0.1))
        totals += [np.sum(w * product) for product in averaged]
    v = np.concatenate([totals[2:3], totals[3:5] @ case.frame])
    values = {"excess_risk": totals[0], "chi": totals[1:2], "v": v[None, :], "phi_hd": totals[5:].reshape(1, 1)}
    return {name: np.asarray(value) for name, value in values.items()}


def draw_oblique(rng: np.random.Generator) -> Oblique:
    """A target with one jump or kink, up to five deviations from the origin."""
    students = [ERF, TANH, RELU, hard(-1.0, round(float(rng.uniform(0.2, 1.5)), 2))]
    student = students[int(rng.integers(len(students)))]
    angle = rng.uniform(0.0, 2.0 * np.pi)
    c1, c2 = (round(float(x), 3) for x in rng.uniform(0.5, 2.0) * np.array([np.cos(angle), np.sin(angle)]))
    size = float(np.hypot(c1, c2))
    kind = int(rng.integers(4))
    b = round(float(rng.uniform(-5.0, 2.5 if kind == 0 else 0.0)) * size, 3)
    form, place, along = f"({c1}*z1 + {c2}*z2 - {b})".replace("- -", "+ "), (b / size,), (c1 / size, c2 / size)
    if kind == 0:
        return Oblique(student, f"step{form}", Side("", lambda t: (size * t > b) * 1.0, places=place), 0.0, along)
    if kind == 1:
        return Oblique(student, f"sign{form}", Side("", lambda t: np.sign(size * t - b), places=place), 0.0, along)
    if kind == 2:
        return Oblique(student, f"abs{form}", Side("", lambda t: np.abs(size * t - b), places=place), 0.0, along)
    half = 2.0**-0.5  # the maximum of two fields: a kink along their difference, and a slope along their sum
    height = Side("", lambda t: half * np.abs(t), places=(0.0,))
    return Oblique(student, "max(z1, z2)", height, half, (half, -half))


def draw_state(rng: np.random.Generator) -> ObliqueState:
    """Rows of length 0.1 to 20, from generic to within the plane of the target's fields, along a direction of it."""
    length = float(np.exp(rng.uniform(np.log(0.1), np.log(20.0))))
    kind = str(rng.choice(["generic", "generic", "zero", "within", "along"]))
    direction = rng.standard_normal(3) * {"zero": [0, 0, 1], "within": [1, 1, 0], "along": [1, 0, 0]}.get(kind, 1.0)
    direction *= length / np.linalg.norm(direction)
    pulls = float(direction[0]), float(direction[1])
    return ObliqueState(pulls, float(direction[2] ** 2), round(float(rng.uniform(-1.5, 1.5)), 2))
