"""Averages of losses that are not quadratic, against integrals that know every kink and jump.

The reference is nested Gauss-Legendre quadrature in NumPy. Its innermost variable is the last normal number of the
student (or that of additive noise), in which the kinks of activation and loss are at places that are known in closed
form, so that it has about twelve digits.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, erfinv

import twolayer as tl
from twolayer.core.precision import double
from twolayer.expectation import LOSS_ENGINES, Auto, choose, estimate

WANTED = ("excess_risk", "chi", "v", "phi_hd", "classification_error", "square_error")
NODES, WEIGHTS = np.polynomial.legendre.leggauss(28)
EDGE = 8.5
SIGMA = {
    "erf": (
        lambda x: erf(x / np.sqrt(2)),
        lambda x: np.sqrt(2 / np.pi) * np.exp(-0.5 * x**2),
        lambda v: np.where(np.abs(v) < 1, np.sqrt(2) * erfinv(np.clip(v, -1, 1)), np.inf),
    ),
    "relu": (lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0), lambda v: np.where(v > 0, v, np.inf)),
}
LOSSES = {
    "logistic": (lambda y, s: np.logaddexp(0, -y * s), lambda y, s: y / (1 + np.exp(y * s)), lambda y: []),
    "hinge": (lambda y, s: np.maximum(0, 1 - y * s), lambda y, s: y * (y * s < 1), lambda y: [y]),
    "huber": (
        lambda y, s: np.where(abs(y - s) < 0.6, 0.5 * (y - s) ** 2, 0.6 * abs(y - s) - 0.18),
        lambda y, s: np.clip(y - s, -0.6, 0.6),
        lambda y: [y - 0.6, y + 0.6],
    ),
    "square": (lambda y, s: 0.5 * (y - s) ** 2, lambda y, s: y - s, lambda y: []),
    "correlation": (lambda y, s: 0.5 * (y - s) ** 2, lambda y, s: y + 0 * s, lambda y: []),
}


def line(places: list[np.ndarray], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a standard normal between places that differ from point to point, on a last axis."""
    rows = [np.broadcast_to(np.nan_to_num(x, nan=EDGE, posinf=EDGE, neginf=-EDGE), shape) for x in places]
    ends = np.sort(
        np.clip(np.stack([*rows, np.full(shape, -EDGE), np.full(shape, EDGE), np.zeros(shape)], -1), -EDGE, EDGE)
    )
    half = 0.5 * np.diff(ends, axis=-1)[..., None]
    x = (0.5 * (ends[..., 1:] + ends[..., :-1])[..., None] + half * NODES).reshape(*shape, -1)
    return x, (half * WEIGHTS).reshape(*shape, -1) * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


def reference(name: str, activation: str, a: np.ndarray, Q: np.ndarray, M: np.ndarray, flip: float) -> dict:
    """All averages of labels sign(z1) with flips."""
    p = len(a)
    value, slope, inverse = SIGMA[activation]
    loss, displacement, kinks = LOSSES[name]
    root = np.linalg.cholesky(Q - M @ M.T)
    star, weights = line([], ())
    fields = M[:, 0] * star[:, None]  # filled up, one normal number after the other
    for j in range(p - 1):
        x, w = line([-fields[:, j] / root[j, j]], (len(fields),))
        weights = (weights[:, None] * w).ravel()
        repeated = np.repeat(fields[:, None, :], x.shape[1], axis=1) + x[..., None] * root[:, j]
        star = np.repeat(star, x.shape[1])
        fields = repeated.reshape(-1, p)
    total = {}
    for sign, share in ((1.0, 1.0 - flip), (-1.0, flip)):
        y = sign * np.sign(star)
        before = value(fields[:, :-1]) @ a[:-1]
        outputs = [*kinks(y), np.zeros_like(y)]
        places = [inverse((p * s - before) / a[-1]) for s in outputs]
        places = [(x - fields[:, -1]) / root[-1, -1] for x in [*places, np.zeros_like(y)]]
        x, w = line(places, (len(fields),))
        w = share * weights[:, None] * w
        lam = np.repeat(fields[:, None, :], x.shape[1], axis=1)
        lam[..., -1] += x * root[-1, -1]
        s, y = value(lam) @ a / p, y[:, None]
        eps, slopes = displacement(y, s), slope(lam)
        all_fields = np.concatenate([lam, np.broadcast_to(star[:, None, None], (*x.shape, 1))], axis=-1)
        parts = {
            "excess_risk": np.sum(w * loss(y, s)),
            "chi": np.einsum("nx,nxj->j", w * eps, value(lam)),
            "v": np.einsum("nx,nxj,nxu->ju", w * eps, slopes, all_fields),
            "phi_hd": np.einsum("nx,nxj,nxl->jl", w * eps**2, slopes, slopes),
            "classification_error": np.sum(w * (y * s < 0)) + 0.5 * np.sum(w * (s == 0)),
            "square_error": np.sum(w * (y - s) ** 2),
        }
        total = {key: total.get(key, 0.0) + part for key, part in parts.items()}
    return total


def drawn(seed: int, p: int, activation: str, name: str, flip: float) -> tuple[tl.Problem, tl.Overlaps, dict]:
    """A problem with random overlaps and output weights, and its averages."""
    random = np.random.default_rng(seed)
    W = random.standard_normal((p, 6)) * random.uniform(0.3, 0.7)
    Q, M, a = W @ W.T, W[:, :1], p * random.choice([-1.0, 1.0], p) * random.uniform(0.7, 2.0, p)
    loss = tl.Huber(0.6) if name == "huber" else name
    target = tl.SingleIndex("sign(z)")
    noise = tl.Flips(flip) if flip else 0.0
    problem = tl.Problem(target, tl.Student(p, activation), tl.Gaussian(50), loss=loss, noise=noise)
    with double():
        overlaps = tl.Overlaps(jnp.asarray(Q), jnp.asarray(M), jnp.eye(1), jnp.asarray(a))
    expected = reference(name, activation, a, Q, M, flip)
    expected["excess_risk"] -= problem.risk_floor
    return problem, overlaps, expected


def check(problem: tl.Problem, overlaps: tl.Overlaps, expected: dict, engines: str, sharp: float) -> None:
    with double():
        auto = Auto(engines=(engines,))
        wanted = tuple(name for name in WANTED if not auto.refusal(problem, (name,)))
        assert "excess_risk" in wanted
        result = estimate(auto.choose(problem, wanted), problem, overlaps, wanted)
    for name in wanted:
        value, error = np.asarray(result.value[name]), np.asarray(result.error[name])
        off = np.abs(value - expected[name])
        assert np.all(off <= error + 1e-9), f"{name}: off by {off.max():.2g}, reported {error.max():.2g}"
        assert np.all(error < sharp * (1.0 + np.abs(value))), f"{name}: reported {error.max():.2g}"


FAST = [("logistic", "erf", 1), ("hinge", "erf", 2), ("huber", "relu", 1), ("logistic", "relu", 2)]
REST = [
    *((name, activation, p) for name in ("hinge", "huber", "logistic") for activation in SIGMA for p in (1, 2)),
    ("square", "erf", 2),
    ("correlation", "relu", 1),
]


@pytest.mark.parametrize(("name", "activation", "p"), FAST)
def test_nets_are_honest(name, activation, p):
    """The error is an upper bound (one in 10^4 numbers may exceed it), and small enough to be of use."""
    check(*drawn(p, p, activation, name, 0.1), "SplitNets", 0.02)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "activation", "p"), REST)
def test_nets_are_honest_on_many(name, activation, p, seed):
    check(
        *drawn(10 * seed + 7, p, activation, name, 0.1 * (seed > 0) + 0.1 * (name in ("square", "correlation"))),
        "SplitNets",
        0.03,
    )


@pytest.mark.parametrize("seed", range(4))
def test_product_rules_are_honest(seed):
    check(*drawn(seed + 20, 1, "erf", "logistic", 0.1 * seed), "ProductRule", 1e-3)


def test_reference_against_plain_sums():
    """The reference itself, at four standard errors of 400,000 samples."""
    problem, overlaps, expected = drawn(3, 2, "erf", "hinge", 0.2)
    random = np.random.default_rng(5)
    Q, M, a = (np.asarray(x) for x in (overlaps.Q, overlaps.M, overlaps.a))
    lam, star = np.split(
        random.standard_normal((400_000, 3)) @ np.linalg.cholesky(np.block([[np.eye(1), M.T], [M, Q]])).T, [1], axis=1
    )[::-1]
    y = np.sign(star[:, 0]) * np.where(random.random(len(lam)) < 0.2, -1, 1)
    s = erf(lam / np.sqrt(2)) @ a / 2
    slopes = np.sqrt(2 / np.pi) * np.exp(-0.5 * lam**2)
    samples = {
        "excess_risk": np.maximum(0, 1 - y * s) - problem.risk_floor,
        "chi": (y * (y * s < 1))[:, None] * erf(lam / np.sqrt(2)),
        "phi_hd": (1.0 * (y * s < 1))[:, None, None] * slopes[:, :, None] * slopes[:, None, :],
        "classification_error": 1.0 * (y * s < 0),
        "square_error": (y - s) ** 2,
    }
    for name, values in samples.items():
        error = values.std(axis=0) / np.sqrt(len(values))
        assert np.all(np.abs(values.mean(axis=0) - expected[name]) < 4 * error + 1e-9), name


def test_flips_of_the_square_loss_are_a_smaller_target_with_noise():
    r"""Flips with probability e: the label has mean (1 - 2e) f and variance 4 e (1 - e)."""
    flip, overlaps = 0.15, drawn(4, 2, "erf", "square", 0.15)[1]
    student, inputs = tl.Student(2, "erf"), tl.Gaussian(50)
    flipped = tl.Problem(tl.SingleIndex("sign(z)"), student, inputs, noise=tl.Flips(flip))
    scaled = tl.Problem(tl.SingleIndex(f"{1 - 2 * flip}*sign(z)"), student, inputs, noise=4 * flip * (1 - flip))
    names = WANTED[:4]
    with double():
        ours, known = (estimate(choose(x, names), x, overlaps, names) for x in (flipped, scaled))
    for name in names:
        off = np.abs(np.asarray(ours.value[name]) - np.asarray(known.value[name]))
        assert np.all(off < np.asarray(ours.error[name]) + np.asarray(known.error[name]) + 1e-9), name


TARGETS = {
    "two kinks": "sign(z1**2 - 0.5)",
    "product": "sign((z1 - 0.3)*z2)",
    "oblique": "sign(z1 + 0.7*z2 - 0.2)",
    "curved": "sign(z1**2 + z2 - 0.5)",
}


@pytest.mark.parametrize("kind", TARGETS)
def test_parts_of_the_target(kind):
    """Nets between the jumps of a label against 4 million samples, at five joint errors."""
    target = tl.MultiIndex(TARGETS[kind])
    k, p = target.k, 2
    random = np.random.default_rng(1)
    W = 0.6 * random.standard_normal((p, 6))
    Q, M, a = W @ W.T, W[:, :k], np.array([2.0, -3.0])
    problem = tl.Problem(target, tl.Student(p, "erf"), tl.Gaussian(50), loss="logistic")
    z = random.standard_normal((4_000_000, 6))
    names = ("excess_risk", "chi", "v")
    with double():
        overlaps = tl.Overlaps(*(jnp.asarray(x) for x in (Q, M, np.eye(k), a)))
        result = estimate(Auto(engines=("SplitNets",)).choose(problem, names), problem, overlaps, names)
        y = np.asarray(target(jnp.asarray(z[:, :k])))
    lam = z @ W.T
    s = erf(lam / np.sqrt(2)) @ a / p
    eps, slopes = y / (1 + np.exp(y * s)), np.sqrt(2 / np.pi) * np.exp(-0.5 * lam**2)
    fields = np.concatenate([lam, z[:, :k]], axis=1)
    samples = {
        "excess_risk": np.logaddexp(0, -y * s),
        "chi": eps[:, None] * erf(lam / np.sqrt(2)),
        "v": (eps[:, None] * slopes)[:, :, None] * fields[:, None, :],
    }
    for name, values in samples.items():
        error = values.std(axis=0) / np.sqrt(len(values))
        off = np.abs(np.asarray(result.value[name]) - values.mean(axis=0))
        assert np.all(off < 5 * error + np.asarray(result.error[name])), name
        assert np.all(np.asarray(result.error[name]) < 3e-3), name


def test_who_computes_what():
    """Smooth problems of two fields have a rule; those with kinks, more fields or signs of the output have nets."""
    sign = tl.SingleIndex("sign(z)")
    make = partial(tl.Problem, sign, inputs=tl.Gaussian(50))
    for student, loss, engine in (
        (tl.Student(1, "erf"), "logistic", "ProductRule"),
        (tl.Student(2, "erf"), "logistic", "SplitNets"),
        (tl.Student(1, "relu"), "logistic", "SplitNets"),
        (tl.Student(1, "erf"), "hinge", "SplitNets"),
    ):
        assigned, _ = Auto().assign(make(student=student, loss=loss), WANTED)
        assert {assigned[name] for name in ("excess_risk", "v", "phi_hd")} == {engine}
        assert assigned["classification_error"] == "SplitNets"
    assert set(LOSS_ENGINES) == {"ProductRule", "SplitNets"}
    square, _ = Auto().assign(make(student=tl.Student(2, "erf")), WANTED)
    assert not {square[name] for name in WANTED[:4]} & set(LOSS_ENGINES)  # closed forms, as ever
    with pytest.raises(tl.NotApplicable, match=r"Logistic.* needs ProductRule or SplitNets"):
        Auto(engines=("Cloud",)).assign(make(student=tl.Student(2, "erf"), loss="logistic"), WANTED)
    with pytest.raises(tl.NotApplicable, match="labels are not signs"):
        Auto().assign(tl.Problem(tl.SingleIndex("tanh"), tl.Student(2, "erf"), tl.Gaussian(50)), WANTED)
