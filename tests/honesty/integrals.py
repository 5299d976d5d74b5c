"""Gaussian averages with known values: what an engine must not be wrong about.

A case is one entry of one moment, for a problem at given overlaps, with its exact value. The overlaps are exact binary
numbers (most of them come from weights with few binary digits), so that the values, which are in ``values.json`` to
40 digits, belong to exactly these overlaps. ``make_integrals.py`` makes that file by routes of its own.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.problem import Custom, Overlaps

VALUES = Path(__file__).with_name("values.json")

TAGS = {
    "smooth": "student and target are analytic",
    "kinked": "student or target has a kink or a jump",
    "oscillating": "several waves within one deviation of a field",
    "fast-growing": "an exponential: the average is made by rare fields",
    "near-singular": "the overlap matrix has an eigenvalue between 1e-15 and 1e-6",
    "singular": "the overlap matrix has an eigenvalue that is zero",
    "polynomial": "student and target are polynomials",
    "many-fields": "a product under the average touches five fields or more",
}


def sine(x):
    return jnp.sin(2.0 * x)


def cosine(x):
    return jnp.cos(5.0 * x)


def steep(x):
    return jnp.tanh(20.0 * x)


def bump(x):
    return x * jnp.exp(-(x**2) / 2.0)


def growing(x):
    return jnp.exp(x / 2.0)


def leaky(x):
    return jnp.where(x > 0.0, x, 0.125 * x)


def hard(x):
    return jnp.clip(x, -1.0, 1.0)


P2 = ((1.5, 0.5), (0.5, 1.0))


def _problem(target: Any, p: int, activation: Any, noise: float = 0.0) -> tl.Problem:
    return tl.Problem(target, tl.Student(p, activation), tl.Gaussian(100), noise=noise)


# Name -> problem. "erf 2 on tanh 1" is a student of two erf units and a target of one tanh unit.
PROBLEMS: dict[str, Callable[[], tl.Problem]] = {
    "erf 2 on erf 2": lambda: _problem(tl.Committee(2, "erf", P=P2, second_layer=[1.0, -0.5]), 2, "erf", 0.25),
    "erf 4 on polynomial 3": lambda: _problem(tl.MultiIndex("he2(z1)/2 + z1*z2*z3"), 4, "erf", 0.125),
    "erf 3 on wave 2": lambda: _problem(tl.MultiIndex("sin(3*z1)*z2"), 3, "erf"),
    "erf 1 on exponential 1": lambda: _problem(tl.MultiIndex("exp(0.7*z1)"), 1, "erf"),
    "erf 2 on exponential 1": lambda: _problem(tl.MultiIndex("exp(2*z1)"), 2, "erf"),
    "erf 1 on exponential of square 1": lambda: _problem(tl.MultiIndex("exp(z1**2/8)"), 1, "erf"),
    "erf 3 on tanh 1": lambda: _problem(tl.SingleIndex("tanh"), 3, "erf", 0.125),
    "erf 1 on max 2": lambda: _problem(tl.MultiIndex("max(z1, z2)"), 1, "erf"),
    "relu 2 on relu 2": lambda: _problem(tl.Committee(2, "relu"), 2, "relu", 0.25),
    "relu 4 on relu 3": lambda: _problem(tl.Committee(3, "relu"), 4, "relu"),
    "relu 1 on erf 1": lambda: _problem(tl.SingleIndex("erf"), 1, "relu"),
    "relu 3 on tanh 1": lambda: _problem(tl.SingleIndex("tanh"), 3, "relu", 0.125),
    "relu 2 on polynomial 2": lambda: _problem(tl.MultiIndex("he2(z1)*z2 + z1"), 2, "relu"),
    "relu 1 on wave 2": lambda: _problem(tl.MultiIndex("sin(3*z1)*z2"), 1, "relu"),
    "relu 2 on sigmoid 2": lambda: _problem(tl.Committee(2, "sigmoid"), 2, "relu"),
    "relu 2 on smooth 2": lambda: _problem(tl.MultiIndex("tanh(z1)*z2"), 2, "relu"),
    "tanh 1 on tanh 1": lambda: _problem(tl.Committee(1, "tanh"), 1, "tanh", 0.25),
    "tanh 1 on relu 1": lambda: _problem(tl.SingleIndex("relu"), 1, "tanh"),
    "tanh 1 on jump 1": lambda: _problem(tl.MultiIndex("abs(z1) - step(z1)/2"), 1, "tanh"),
    "tanh 4 on tanh 3": lambda: _problem(tl.Committee(3, "tanh"), 4, "tanh"),
    "tanh 2 on wave 1": lambda: _problem(tl.MultiIndex("sin(8*z1)"), 2, "tanh"),
    "tanh 1 on steep 1": lambda: _problem(tl.SingleIndex(steep), 1, "tanh"),
    "tanh 1 on sign 2": lambda: _problem(tl.MultiIndex("sign(z1)*z2"), 1, "tanh"),
    "sigmoid 2 on sigmoid 1": lambda: _problem(tl.Committee(1, "sigmoid", P=[[2.0]]), 2, "sigmoid", 0.25),
    "softplus 1 on gelu 1": lambda: _problem(tl.SingleIndex("gelu"), 1, "softplus"),
    "gelu 2 on tanh 1": lambda: _problem(tl.SingleIndex("tanh"), 2, "gelu"),
    "he3 2 on hermite 1": lambda: _problem(tl.Hermite({3: 1.0, 1: 0.4}), 2, "he3", 0.25),
    "square 3 on phase 1": lambda: _problem(tl.PhaseRetrieval(), 3, "square", 0.125),
    "square 4 on staircase 3": lambda: _problem(tl.Staircase(3), 4, "square"),
    "square 2 on tanh 1": lambda: _problem(tl.SingleIndex("tanh"), 2, "square"),
    "linear 2 on step 2": lambda: _problem(tl.MultiIndex("step(z1)*z2"), 2, "linear"),
    "sine 4 on wave 3": lambda: _problem(tl.MultiIndex("cos(2*z1)*z2 + sin(z3)"), 4, Custom(sine, parity=-1, growth=0)),
    "sine 2 on wave 1": lambda: _problem(tl.SingleIndex(cosine), 2, Custom(sine, parity=-1, growth=0)),
    "bump 3 on bump 2": lambda: _problem(
        tl.MultiIndex("exp(-z1**2/2)*z2"), 3, Custom(bump, parity=-1, growth=0), 0.125
    ),
    "growing 2 on exponential 1": lambda: _problem(tl.MultiIndex("exp(z1)"), 2, Custom(growing)),
    "leaky 2 on tanh 1": lambda: _problem(tl.SingleIndex("tanh"), 2, Custom(leaky, kinks=(0.0,))),
    "hard 2 on relu 1": lambda: _problem(tl.SingleIndex("relu"), 2, Custom(hard, kinks=(-1.0, 1.0), parity=-1)),
}


@cache
def problem(name: str) -> tl.Problem:
    return PROBLEMS[name]()


class State(NamedTuple):
    """The overlaps as exact binary numbers, and the weights they come from, where they come from weights."""

    Q: np.ndarray
    M: np.ndarray
    P: np.ndarray
    a: np.ndarray
    W: np.ndarray | None
    W_star: np.ndarray | None

    @property
    def overlaps(self) -> Overlaps:
        return Overlaps(*(jnp.asarray(x, jnp.float64) for x in (self.Q, self.M, self.P, self.a)))


def weights(W: Any, k: int, a: Any = None, W_star: Any = None) -> State:
    """The state of given weights. The target's are the first k axes unless given."""
    W = np.asarray(W, np.float64)
    W_star = np.eye(k, W.shape[1]) if W_star is None else np.asarray(W_star, np.float64)
    second = np.ones(len(W)) if a is None else np.asarray(a, np.float64)
    return State(W @ W.T, W @ W_star.T, W_star @ W_star.T, second, W, W_star)


def given(Q: Any, M: Any, P: Any, a: Any) -> State:
    """A state that comes from no weights with few digits: its overlaps are rounded, as in a computation."""
    return State(*(np.asarray(x, np.float64) for x in (Q, M, P, a)), None, None)


class Setting(NamedTuple):
    """One state of one problem, and the entries of the moments that are known there."""

    problem: str
    label: str
    tags: str
    state: State
    entries: tuple[tuple[Any, ...], ...]


T2 = [[1.0, 0.5, 0.5], [0.0, 1.0, 0.0]]  # two target directions whose overlaps are P2
CLOSE, CLOSER, CLOSEST = 2.0**-10, 2.0**-17, 2.0**-23  # squares: 1e-6, 6e-11, 1.4e-14

SETTINGS = (
    # ------------------------------------------------------------------------------------------- erf students
    Setting(
        "erf 2 on erf 2",
        "generic",
        "smooth",
        weights([[0.5, -0.25, 0.75, 0.5], [-0.75, 0.25, 0.125, 0.625]], 2, [1.0, -0.75], [[*row, 0.0] for row in T2]),
        (("v", 0, 1), ("v", 1, 2), ("phi_hd", 0, 1), ("chi", 1), ("excess_risk",)),
    ),
    Setting(
        "erf 2 on erf 2",
        "close to recovery, 1e-6",
        "smooth near-singular",
        weights([T2[0] + [CLOSE, 0.0], T2[1] + [0.0, CLOSE]], 2, [1.0, -0.5], [[*row, 0.0, 0.0] for row in T2]),
        (("phi_hd", 0, 0), ("v", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "erf 2 on erf 2",
        "close to recovery, 1e-14",
        "smooth near-singular",
        weights([T2[0] + [CLOSEST, 0.0], T2[1] + [0.0, CLOSEST]], 2, [1.0, -0.5], [[*row, 0.0, 0.0] for row in T2]),
        (("phi_hd", 0, 1), ("excess_risk",)),
    ),
    Setting(
        "erf 2 on erf 2",
        "recovery",
        "smooth singular",
        weights(T2, 2, [1.0, -0.5], T2),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "erf 2 on erf 2",
        "large norms",
        "smooth",
        weights([[3.0, 0.0, 4.0, 0.0], [1.0, -2.0, 0.0, 2.0]], 2, [2.0, 1.0], [[*row, 0.0] for row in T2]),
        (("phi_hd", 0, 1), ("v", 0, 2)),
    ),
    Setting(
        "erf 4 on polynomial 3",
        "generic",
        "smooth",
        weights(
            [
                [0.5, 0.25, -0.5, 0.75, 0.0, 0.25, 0.0],
                [0.25, -0.5, 0.75, 0.25, 0.5, 0.0, 0.25],
                [-0.75, 0.5, 0.25, 0.0, 0.5, -0.25, 0.5],
                [0.5, 0.5, 0.5, -0.25, 0.0, 0.75, 0.125],
            ],
            3,
            [1.0, -0.5, 2.0, 1.5],
        ),
        (("phi_hd", 0, 1), ("phi_hd", 2, 2), ("v", 1, 5), ("v", 2, 3), ("excess_risk",)),
    ),
    Setting(
        "erf 4 on polynomial 3",
        "duplicates and a zero row",
        "smooth singular",
        weights(
            [[0.5, 0.25, -0.5, 0.75], [0.5, 0.25, -0.5, 0.75], [0.0, 0.0, 0.0, 0.0], [-0.5, -0.25, 0.5, -0.75]],
            3,
            [1.0, -0.5, 2.0, 1.5],
        ),
        (("phi_hd", 0, 2), ("phi_hd", 0, 3), ("v", 2, 4)),
    ),
    Setting(
        "erf 3 on wave 2",
        "generic",
        "smooth oscillating",
        weights(
            [[0.5, 0.75, 0.5, 0.0, 0.25], [-0.25, 0.5, 0.25, 0.5, 0.0], [0.75, -0.5, 0.0, 0.25, 0.5]],
            2,
            [1.0, 2.0, -1.5],
        ),
        (("phi_hd", 0, 1), ("phi_hd", 0, 2), ("phi_hd", 1, 1)),
    ),
    Setting(
        "erf 1 on exponential 1",
        "generic",
        "smooth fast-growing",
        weights([[0.5, 1.0]], 1, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 1), ("chi", 0)),
    ),
    Setting(
        "erf 1 on exponential 1",
        "aligned, 1e-10",
        "smooth fast-growing near-singular",
        weights([[1.0, CLOSER]], 1, [1.5]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "erf 2 on exponential 1",
        "generic",
        "smooth fast-growing",
        weights([[0.5, 0.75, 0.25], [1.0, -0.25, 0.5]], 1, [1.0, -2.0]),
        (("phi_hd", 0, 1), ("v", 1, 2), ("excess_risk",)),
    ),
    Setting(
        "erf 1 on exponential of square 1",
        "generic",
        "smooth fast-growing",
        weights([[0.75, 0.5]], 1, [1.0]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "erf 3 on tanh 1",
        "generic",
        "smooth",
        weights([[0.5, 0.75, 0.25, 0.0], [-0.25, 0.5, 0.5, 0.25], [1.0, 0.25, -0.5, 0.5]], 1, [1.0, 2.0, -1.5]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 2), ("phi_hd", 2, 2)),
    ),
    Setting(
        "erf 3 on tanh 1",
        "all on the target",
        "smooth singular",
        weights([[1.0], [0.5], [-2.0]], 1, [1.0, 2.0, -1.5]),
        (("phi_hd", 0, 2), ("phi_hd", 1, 1)),
    ),
    Setting(
        "erf 1 on max 2",
        "generic",
        "kinked",
        weights([[0.5, 0.5, 0.75]], 2, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 1), ("excess_risk",)),
    ),
    # ------------------------------------------------------------------------------------------ relu students
    Setting(
        "relu 2 on relu 2",
        "generic",
        "kinked",
        weights([[0.5, -0.25, 0.75, 0.5], [0.75, 0.25, 0.125, -0.625]], 2, [1.0, 0.75]),
        (("phi_hd", 0, 0), ("phi_hd", 0, 1), ("v", 0, 3), ("v", 1, 0), ("chi", 0), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on relu 2",
        "close to recovery, 1e-6",
        "kinked near-singular",
        weights([[1.0, 0.0, CLOSE, 0.0], [0.0, 1.0, 0.0, CLOSE]], 2),
        (("phi_hd", 0, 1), ("v", 0, 2), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on relu 2",
        "close to recovery, 1e-10",
        "kinked near-singular",
        weights([[1.0, 0.0, CLOSER, 0.0], [0.0, 1.0, 0.0, CLOSER]], 2),
        (("phi_hd", 0, 0), ("v", 0, 2), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on relu 2",
        "close to recovery, 1e-14",
        "kinked near-singular",
        weights([[1.0, 0.0, CLOSEST, 0.0], [0.0, 1.0, 0.0, CLOSEST]], 2, [1.0, 0.5]),
        (("phi_hd", 0, 0), ("phi_hd", 0, 1), ("v", 0, 2), ("v", 1, 3)),
    ),
    Setting(
        "relu 2 on relu 2",
        "recovery",
        "kinked singular",
        weights([[1.0, 0.0], [0.0, 1.0]], 2),
        (("phi_hd", 0, 1), ("v", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on relu 2",
        "duplicates",
        "kinked singular",
        weights([[0.75, 0.0, 0.5], [0.75, 0.0, 0.5]], 2, [1.0, -0.5]),
        (("phi_hd", 0, 1), ("v", 0, 1), ("chi", 1)),
    ),
    Setting(
        "relu 2 on relu 2",
        "correlation -1",
        "kinked singular",
        weights([[0.75, 0.0, 0.5], [-0.75, 0.0, -0.5]], 2, [1.0, -0.5]),
        (("phi_hd", 0, 0), ("phi_hd", 0, 1), ("v", 0, 2)),
    ),
    Setting(
        "relu 2 on relu 2",
        "a zero row",
        "kinked singular",
        weights([[0.75, 0.0, 0.5], [0.0, 0.0, 0.0]], 2, [1.0, -0.5]),
        (("phi_hd", 0, 0), ("v", 0, 2), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on relu 2",
        "large and small norms",
        "kinked",
        weights([[3.0, 0.0, 4.0, 0.0], [0.0, 0.0625, 0.0, 0.078125]], 2, [0.5, 4.0]),
        (("phi_hd", 0, 1), ("v", 1, 3)),
    ),
    Setting(
        "relu 2 on relu 2",
        "rounded, 1e-14",
        "kinked near-singular",
        given([[0.09 + 1e-14, 0.0], [0.0, 1.25]], [[0.3, 0.0], [0.0, -0.5]], np.eye(2), [2.0, 1.0]),
        (("v", 0, 2), ("phi_hd", 0, 0), ("phi_hd", 0, 1), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on relu 2",
        "rounded, 1e-10",
        "kinked near-singular",
        given([[0.49 + 1e-10, 0.0], [0.0, 1.25]], [[0.7, 0.0], [0.0, -0.5]], np.eye(2), [1.0, 2.0]),
        (("v", 0, 2), ("v", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "relu 4 on relu 3",
        "generic",
        "kinked",
        weights(
            [
                [0.5, 0.25, -0.5, 0.75, 0.0, 0.25, 0.0],
                [0.25, -0.5, 0.75, 0.25, 0.5, 0.0, 0.25],
                [-0.75, 0.5, 0.25, 0.0, 0.5, -0.25, 0.5],
                [0.5, 0.5, 0.5, -0.25, 0.0, 0.75, 0.125],
            ],
            3,
            [1.0, -0.5, 2.0, 1.5],
        ),
        (("phi_hd", 0, 1), ("phi_hd", 1, 2), ("phi_hd", 3, 3)),
    ),
    Setting(
        "relu 1 on erf 1",
        "generic",
        "kinked",
        weights([[0.75, 0.5]], 1, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 0), ("v", 0, 1)),
    ),
    Setting(
        "relu 1 on erf 1",
        "aligned, 1e-10",
        "kinked near-singular",
        weights([[1.0, CLOSER]], 1, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 1)),
    ),
    Setting(
        "relu 1 on erf 1",
        "aligned",
        "kinked singular",
        weights([[-0.5]], 1, [1.5]),
        (("phi_hd", 0, 0), ("chi", 0)),
    ),
    Setting(
        "relu 3 on tanh 1",
        "generic",
        "kinked",
        weights([[0.5, 0.75, 0.0, 0.0], [-0.25, 0.0, 0.5, 0.0], [1.0, 0.0, 0.0, 0.25]], 1, [1.0, 2.0, -1.5]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 2), ("phi_hd", 2, 2)),
    ),
    Setting(
        "relu 2 on polynomial 2",
        "one direction each",
        "kinked",
        weights([[0.75, 0.0, 0.5, 0.0], [0.0, -0.5, 0.0, 1.0]], 2, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("v", 1, 3), ("excess_risk",)),
    ),
    Setting(
        "relu 1 on wave 2",
        "generic",
        "kinked oscillating",
        weights([[0.5, 0.75, 0.5]], 2, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 1), ("excess_risk",)),
    ),
    Setting(
        "relu 1 on wave 2",
        "in the plane of the target",
        "kinked oscillating singular",
        weights([[0.5, 0.75]], 2, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 2)),
    ),
    Setting(
        "relu 2 on sigmoid 2",
        "one direction each",
        "kinked",
        weights([[0.75, 0.0, 0.5, 0.0], [0.0, -0.5, 0.0, 1.0]], 2, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("v", 1, 3), ("chi", 0)),
    ),
    Setting(
        "relu 2 on sigmoid 2",
        "aligned, 1e-10",
        "kinked near-singular",
        weights([[1.0, 0.0, CLOSER, 0.0], [0.0, 0.0, 0.0, 1.0]], 2, [1.0, 2.0]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "relu 2 on smooth 2",
        "one direction each",
        "kinked",
        weights([[0.75, 0.0, 0.5, 0.0], [0.0, -0.5, 0.0, 1.0]], 2, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 0, 0), ("phi_hd", 1, 1)),
    ),
    # ------------------------------------------------------------------------- students without closed forms
    Setting(
        "tanh 1 on tanh 1",
        "generic",
        "smooth",
        weights([[0.75, 0.5]], 1, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 0), ("v", 0, 1), ("chi", 0)),
    ),
    Setting(
        "tanh 1 on tanh 1",
        "aligned, 1e-6",
        "smooth near-singular",
        weights([[1.0, CLOSE]], 1, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 0)),
    ),
    Setting(
        "tanh 1 on tanh 1",
        "recovery but for the second layer",
        "smooth singular",
        weights([[1.0]], 1, [1.5]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "tanh 1 on tanh 1",
        "large norm",
        "smooth",
        weights([[3.0, 4.0]], 1, [1.0]),
        (("phi_hd", 0, 0), ("v", 0, 1)),
    ),
    Setting(
        "tanh 1 on tanh 1",
        "small norm",
        "smooth",
        weights([[0.0625, 0.078125]], 1, [4.0]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "tanh 1 on relu 1",
        "generic",
        "kinked",
        weights([[0.75, 0.5]], 1, [1.5]),
        (("phi_hd", 0, 0),),
    ),
    Setting(
        "tanh 1 on relu 1",
        "aligned",
        "kinked singular",
        weights([[1.0]], 1, [1.5]),
        (("phi_hd", 0, 0),),
    ),
    Setting(
        "tanh 1 on jump 1",
        "generic",
        "kinked",
        weights([[0.75, 0.5]], 1, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 1)),
    ),
    Setting(
        "tanh 1 on jump 1",
        "aligned, 1e-6",
        "kinked near-singular",
        weights([[1.0, CLOSE]], 1, [1.5]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "tanh 4 on tanh 3",
        "one direction each",
        "smooth",
        weights(
            [
                [0.75, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0],
                [0.0, -0.5, 0.0, 0.0, 1.0, 0.0, 0.0],
                [0.0, 0.0, 1.0, 0.0, 0.0, 0.25, 0.0],
                [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5],
            ],
            3,
            [1.0, -0.5, 2.0, 1.5],
        ),
        (("phi_hd", 0, 1), ("phi_hd", 0, 3), ("phi_hd", 2, 2)),
    ),
    Setting(
        "tanh 2 on wave 1",
        "generic",
        "smooth oscillating",
        weights([[0.5, 0.75, 0.0], [1.0, 0.0, 0.5]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("v", 1, 2), ("chi", 0)),
    ),
    Setting(
        "tanh 2 on wave 1",
        "on the target",
        "smooth oscillating singular",
        weights([[1.0], [-1.0]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("v", 0, 2)),
    ),
    Setting(
        "tanh 1 on steep 1",
        "aligned",
        "smooth singular",
        weights([[1.0]], 1, [1.0]),
        (("phi_hd", 0, 0), ("v", 0, 1), ("excess_risk",)),
    ),
    Setting(
        "tanh 1 on steep 1",
        "generic",
        "smooth",
        weights([[0.75, 0.5]], 1, [1.0]),
        (("phi_hd", 0, 0), ("chi", 0)),
    ),
    Setting(
        "tanh 1 on sign 2",
        "on the smooth direction",
        "kinked",
        weights([[0.0, 0.75, 0.5]], 2, [1.5]),
        (("phi_hd", 0, 0), ("v", 0, 1), ("v", 0, 2)),
    ),
    Setting(
        "sigmoid 2 on sigmoid 1",
        "generic",
        "smooth",
        weights([[0.75, 0.75, 0.5, 0.0], [-0.5, -0.5, 0.0, 1.0]], 1, [1.0, 2.0], [[1.0, 1.0, 0.0, 0.0]]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 1)),
    ),
    Setting(
        "sigmoid 2 on sigmoid 1",
        "a zero row",
        "smooth singular",
        weights([[0.75, 0.75, 0.5], [0.0, 0.0, 0.0]], 1, [1.0, 2.0], [[1.0, 1.0, 0.0]]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 1)),
    ),
    Setting(
        "sigmoid 2 on sigmoid 1",
        "duplicates",
        "smooth singular",
        weights([[0.75, 0.75, 0.5], [0.75, 0.75, 0.5]], 1, [1.0, 2.0], [[1.0, 1.0, 0.0]]),
        (("phi_hd", 0, 1),),
    ),
    Setting(
        "softplus 1 on gelu 1",
        "generic",
        "smooth",
        weights([[0.75, 0.5]], 1, [1.0]),
        (("phi_hd", 0, 0), ("v", 0, 1)),
    ),
    Setting(
        "softplus 1 on gelu 1",
        "large norm",
        "smooth",
        weights([[1.0, 2.0, 2.0]], 1, [0.5]),
        (("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "gelu 2 on tanh 1",
        "generic",
        "smooth",
        weights([[0.5, 0.75, 0.0], [1.0, 0.0, 0.5]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 1)),
    ),
    # --------------------------------------------------------------------------------------- polynomial students
    Setting(
        "he3 2 on hermite 1",
        "generic",
        "smooth polynomial",
        weights([[0.5, 0.75, 0.25], [1.0, -0.25, 0.5]], 1, [1.0, -2.0]),
        (("phi_hd", 0, 1), ("v", 1, 2), ("excess_risk",)),
    ),
    Setting(
        "he3 2 on hermite 1",
        "large norms",
        "smooth polynomial",
        weights([[3.0, 4.0, 0.0], [1.0, 2.0, 2.0]], 1, [1.0, -2.0]),
        (("phi_hd", 0, 1), ("chi", 0)),
    ),
    Setting(
        "he3 2 on hermite 1",
        "close to recovery, 1e-14",
        "smooth polynomial near-singular",
        weights([[1.0, CLOSEST, 0.0], [1.0, 0.0, CLOSEST]], 1, [1.0, 1.0]),
        (("phi_hd", 0, 1), ("v", 0, 2), ("excess_risk",)),
    ),
    Setting(
        "square 3 on phase 1",
        "generic",
        "smooth polynomial",
        weights([[0.5, 0.75, 0.25, 0.0], [1.0, -0.25, 0.5, 0.25], [-0.75, 0.5, 0.5, 0.5]], 1, [1.0, -2.0, 3.0]),
        (("phi_hd", 0, 1), ("v", 2, 1), ("excess_risk",)),
    ),
    Setting(
        "square 3 on phase 1",
        "recovery",
        "smooth polynomial singular",
        weights([[1.0], [1.0], [-1.0]], 1),
        (("phi_hd", 0, 2), ("excess_risk",)),
    ),
    Setting(
        "square 4 on staircase 3",
        "generic",
        "smooth polynomial",
        weights(
            [
                [0.5, 0.25, -0.5, 0.75, 0.0, 0.25, 0.0],
                [0.25, -0.5, 0.75, 0.25, 0.5, 0.0, 0.25],
                [-0.75, 0.5, 0.25, 0.0, 0.5, -0.25, 0.5],
                [0.5, 0.5, 0.5, -0.25, 0.0, 0.75, 0.125],
            ],
            3,
            [1.0, -0.5, 2.0, 1.5],
        ),
        (("phi_hd", 0, 1), ("phi_hd", 2, 3)),
    ),
    Setting(
        "square 2 on tanh 1",
        "generic",
        "smooth",
        weights([[0.5, 0.75, 0.25], [1.0, -0.25, 0.5]], 1, [1.0, -2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 0, 0)),
    ),
    Setting(
        "linear 2 on step 2",
        "one direction each",
        "kinked",
        weights([[0.75, 0.0, 0.5, 0.0], [0.0, -0.5, 0.0, 1.0]], 2, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("v", 0, 3), ("excess_risk",)),
    ),
    # -------------------------------------------------------------------------------- students of one's own
    Setting(
        "sine 4 on wave 3",
        "generic",
        "smooth oscillating",
        weights(
            [
                [0.5, 0.25, -0.5, 0.75, 0.0, 0.25, 0.0],
                [0.25, -0.5, 0.75, 0.25, 0.5, 0.0, 0.25],
                [-0.75, 0.5, 0.25, 0.0, 0.5, -0.25, 0.5],
                [0.5, 0.5, 0.5, -0.25, 0.0, 0.75, 0.125],
            ],
            3,
            [1.0, -0.5, 2.0, 1.5],
        ),
        (("phi_hd", 0, 1), ("phi_hd", 2, 3), ("phi_hd", 3, 3)),
    ),
    Setting(
        "sine 2 on wave 1",
        "large norms",
        "smooth oscillating",
        weights([[1.0, 2.0, 2.0], [0.5, -1.0, 0.25]], 1, [1.0, -2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 0, 0), ("excess_risk",)),
    ),
    Setting(
        "bump 3 on bump 2",
        "generic",
        "smooth",
        weights(
            [[0.5, 0.75, 0.5, 0.0, 0.25], [-0.25, 0.5, 0.25, 0.5, 0.0], [0.75, -0.5, 0.0, 0.25, 0.5]],
            2,
            [1.0, 2.0, -1.5],
        ),
        (("phi_hd", 0, 2), ("phi_hd", 1, 2), ("phi_hd", 1, 1)),
    ),
    Setting(
        "growing 2 on exponential 1",
        "generic",
        "smooth fast-growing",
        weights([[0.5, 0.75, 0.25], [1.0, -0.25, 0.5]], 1, [1.0, -2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 1)),
    ),
    Setting(
        "leaky 2 on tanh 1",
        "generic",
        "kinked",
        weights([[0.5, 0.75, 0.0], [1.0, 0.0, 0.5]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 1, 1)),
    ),
    Setting(
        "leaky 2 on tanh 1",
        "aligned, 1e-6, and correlation -1",
        "kinked near-singular singular",
        weights([[1.0, CLOSE], [-1.0, -CLOSE]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("phi_hd", 0, 0)),
    ),
    Setting(
        "hard 2 on relu 1",
        "generic",
        "kinked",
        weights([[0.5, 0.75, 0.0], [1.0, 0.0, 0.5]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 1), ("v", 1, 0), ("excess_risk",)),
    ),
    Setting(
        "hard 2 on relu 1",
        "aligned, 1e-10",
        "kinked near-singular",
        weights([[1.0, CLOSER, 0.0], [-0.5, 0.0, CLOSER]], 1, [1.0, 2.0]),
        (("phi_hd", 0, 0), ("v", 0, 1), ("chi", 1)),
    ),
    Setting(
        "hard 2 on relu 1",
        "aligned",
        "kinked singular",
        weights([[1.0], [-2.0]], 1, [1.0, 2.0]),
        (("phi_hd", 1, 1), ("v", 0, 2), ("excess_risk",)),
    ),
)


def fields_touched(setting: Setting, entry: tuple[Any, ...]) -> int:
    """The number of different fields in the largest product under the average; the target touches all of its own."""
    p, k = setting.state.M.shape
    moment, *index = entry
    if moment == "excess_risk":
        return max(k + 1, min(p, 2))
    units = len({i for i in index if i < p})  # the student's fields that every product touches
    if moment == "phi_hd":
        return max(min(p, units + 1) + k, min(p, units + 2))
    return max(units + k, min(p, units + 1) + sum(i >= p for i in index))


class Case(NamedTuple):
    """One number: a moment's entry, and its exact value as a decimal text."""

    name: str
    tags: frozenset[str]
    setting: Setting
    moment: str
    index: tuple[int, ...]
    fields: int
    exact: str


def case_name(setting: Setting, entry: tuple[Any, ...]) -> str:
    moment, *index = entry
    return f"{setting.problem}, {setting.label}: {moment}" + (f"[{', '.join(map(str, index))}]" if index else "")


def cases() -> list[Case]:
    """All cases, with their values."""
    values = json.loads(VALUES.read_text())
    found = []
    for setting in SETTINGS:
        for entry in setting.entries:
            name, fields = case_name(setting, entry), fields_touched(setting, entry)
            tags = frozenset([*setting.tags.split(), *(["many-fields"] if fields >= 5 else [])])
            found.append(Case(name, tags, setting, entry[0], tuple(entry[1:]), fields, values[name]))
    return found
