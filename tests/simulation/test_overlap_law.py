"""The overlap process has the law of SGD on the weights: the same numbers, drawn step by step in plain NumPy."""

import equinox as eqx
import numpy as np
import pytest
from scipy import stats
from scipy.special import erf

import twolayer as tl
from twolayer.compiler import draws
from twolayer.simulation import overlap_sgd

FUNCTIONS = {
    "erf": (lambda x: erf(x / np.sqrt(2)), lambda x: np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)),
    "square": (lambda x: x**2, lambda x: 2 * x),
}


def direct(problem, training, W, W_star, steps, replicas, seed):
    """SGD on the weights in plain NumPy, all replicas at once: M, Q (upper triangle) and a after some steps."""
    rng = np.random.default_rng(seed)
    p, d = W.shape
    act, slope = FUNCTIONS["erf" if "Erf" in str(problem.student.activation) else "square"]
    found = []
    for _ in range(max(1, replicas // 10_000)):
        size = min(replicas, 10_000)
        w, v, a = np.tile(W, (size, 1, 1)), np.zeros((size, p, d)), np.ones((size, p))
        lengths = np.linalg.norm(W, axis=1)
        rate, batch = float(training.learning_rate) / d, training.batch_size
        for _ in range(steps):
            z = rng.standard_normal((size, batch, d), dtype=np.float32).astype(np.float64)
            y = act(z @ W_star.T).mean(axis=2) + np.sqrt(float(problem.noise)) * rng.standard_normal((size, batch))

            def gradients(w, a, z=z, y=y):
                lam = np.einsum("rjd,rnd->rnj", w, z)
                eps = y - np.einsum("rnj,rj->rn", act(lam), a) / p
                by_w = a[:, :, None] / p * np.einsum("rnj,rn,rnd->rjd", slope(lam), eps, z)
                return by_w, np.einsum("rnj,rn->rj", act(lam), eps) / p

            for _ in range(training.reuse.times if isinstance(training.reuse, tl.Repeated) else 1):
                at = w
                if isinstance(training.reuse, tl.LookAhead):
                    at = w + training.reuse.rate / d * gradients(w, a)[0]
                by_w, by_a = gradients(at, a)
                if training.is_riemannian:
                    by_w = by_w - (np.sum(by_w * w, axis=2) / np.sum(w * w, axis=2))[:, :, None] * w
                v = float(training.momentum) * v + rate * by_w
                w = (1 - float(training.weight_decay) * rate * batch) * w + v
                if training.is_spherical:
                    w = w * (lengths / np.linalg.norm(w, axis=2))[:, :, None]
                a = a + training.layer_ratio * rate * by_a
        Q = np.einsum("rjd,rld->rjl", w, w)[:, *np.triu_indices(p)]
        found.append(np.concatenate([(w @ W_star.T).reshape(size, -1), Q, a], axis=1))
    return np.concatenate(found)


def by_overlaps(problem, training, steps, replicas, backend):
    """The same numbers from the overlap process."""
    time = float(training.clock(problem).time(steps)) * (1 + 1e-9)
    result = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), until=time, save=[time], replicas=replicas)
    p = problem.p
    Q = result.Q.values[:, -1][:, *np.triu_indices(p)]
    return np.concatenate([result.M.values[:, -1].reshape(replicas, -1), Q, result.a.values[:, -1]], axis=1)


def z_scores(x, y):
    """Means and variances of all entries, and of all products of two: z-scores, entries that never move left out."""
    moving = (x.std(axis=0) > 1e-12) & (y.std(axis=0) > 1e-12)
    assert np.allclose(x[:, ~moving].mean(axis=0), y[:, ~moving].mean(axis=0), atol=1e-9)
    x, y = x[:, moving], y[:, moving]
    centre = x.mean(axis=0)
    scores = []
    for f in (lambda u: u, lambda u: ((u - centre)[:, :, None] * (u - centre)[:, None, :]).reshape(len(u), -1)):
        error = np.hypot(f(x).std(axis=0) / np.sqrt(len(x)), f(y).std(axis=0) / np.sqrt(len(y)))
        scores.append((f(x).mean(axis=0) - f(y).mean(axis=0)) / error)
    pvalues = [stats.ks_2samp(x[:, i], y[:, i])[1] for i in range(x.shape[1])]
    return np.concatenate(scores), np.array(pvalues)


def energy_distance(x, y, size=1500):
    """The energy distance of the joint laws on subsamples, and its p-value over 200 permutations."""
    moving = x.std(axis=0) > 1e-12
    z = np.concatenate([x[:size, moving], y[:size, moving]]) / x[:, moving].std(axis=0)
    distances = np.sqrt(np.maximum(np.sum(z**2, 1)[:, None] + np.sum(z**2, 1) - 2 * z @ z.T, 0.0))
    rng = np.random.default_rng(0)

    def statistic(sign):
        return -sign @ distances @ sign  # 2 E|x - y| - E|x - x'| - E|y - y'|, times the number of pairs

    sign = np.repeat([1.0, -1.0], size)
    found = statistic(sign)
    return float(np.mean([statistic(rng.permutation(sign)) >= found for _ in range(200)]))


def make(activation, p, k, d, **choices):
    rng = np.random.default_rng(1)
    W_star = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    W = rng.standard_normal((p, d)) / np.sqrt(d)
    W /= np.linalg.norm(W, axis=1)[:, None]
    start = tl.GivenOverlaps(W @ W.T, W @ W_star.T)
    target = tl.Committee(k, activation)
    problem = tl.Problem(target, tl.Student(p, activation), tl.Gaussian(d), start=start, noise=0.1)
    return problem, tl.SGD(**choices), W, W_star


SPHERE, RIEMANNIAN, BOTH = tl.Sphere(), tl.Sphere(riemannian=True), tl.Both(0.7)


# The last word is the tier: each setting compiles programs of its own.
SETTINGS = [
    ("erf", 2, 2, 6, {"learning_rate": 3.0}, "native", "quick"),
    ("erf", 2, 1, 20, {"learning_rate": 3.0}, "native", "long"),
    ("erf", 2, 1, 20, {"learning_rate": 3.0}, "xla", "long"),
    ("erf", 2, 1, 20, {"learning_rate": 3.0, "constraint": SPHERE, "layers": BOTH}, "native", "slow"),
    ("erf", 2, 1, 5, {"learning_rate": 1.0, "batch_size": 3, "constraint": SPHERE}, "xla", "long"),
    ("erf", 2, 2, 20, {"learning_rate": 1.0, "batch_size": 3, "layers": BOTH}, "xla", "slow"),
    ("erf", 3, 1, 20, {"learning_rate": 1.0, "batch_size": 2}, "xla", "long"),
    ("erf", 2, 1, 20, {"learning_rate": 1.0, "batch_size": 4}, "xla", "long"),
    ("erf", 2, 1, 20, {"learning_rate": 2.0, "momentum": 0.6, "weight_decay": 0.3}, "native", "slow"),
    ("erf", 2, 1, 20, {"learning_rate": 1.0, "batch_size": 3, "momentum": 0.6}, "xla", "long"),
    ("square", 1, 1, 200, {"learning_rate": 0.1, "constraint": SPHERE}, "native", "slow"),
    # d - k < p: nothing is left outside, nor for the velocity's span.
    ("square", 3, 1, 3, {"learning_rate": 0.05}, "native", "long"),
    ("erf", 2, 1, 5, {"learning_rate": 1.0, "batch_size": 4, "momentum": 0.6}, "xla", "long"),
    ("erf", 2, 1, 200, {"learning_rate": 3.0, "batch_size": 3, "constraint": SPHERE, "layers": BOTH}, "xla", "long"),
    ("erf", 2, 1, 20, {"learning_rate": 3.0, "reuse": tl.Repeated(3), "constraint": SPHERE}, "native", "slow"),
    ("erf", 2, 1, 6, {"learning_rate": 1.0, "batch_size": 4, "reuse": tl.Repeated(2), "layers": BOTH}, "xla", "long"),
    ("erf", 2, 1, 20, {"learning_rate": 3.0, "reuse": tl.LookAhead(4.0), "layers": BOTH}, "native", "long"),
    (
        "erf",
        2,
        1,
        20,
        {"learning_rate": 1.0, "batch_size": 3, "reuse": tl.LookAhead(-2.0), "momentum": 0.6},
        "xla",
        "slow",
    ),
    ("erf", 2, 1, 20, {"learning_rate": 6.0, "constraint": RIEMANNIAN, "layers": BOTH}, "native", "slow"),
    (
        "erf",
        2,
        2,
        12,
        {"learning_rate": 3.0, "batch_size": 4, "constraint": RIEMANNIAN, "momentum": 0.6},
        "xla",
        "quick",
    ),
    (
        "erf",
        2,
        1,
        20,
        {"learning_rate": 6.0, "momentum": 0.6, "weight_decay": 0.3, "constraint": RIEMANNIAN},
        "native",
        "slow",
    ),
    ("square", 2, 1, 40, {"learning_rate": 0.3, "reuse": tl.Repeated(2), "constraint": RIEMANNIAN}, "native", "slow"),
    (
        "erf",
        2,
        1,
        20,
        {"learning_rate": 3.0, "batch_size": 3, "reuse": tl.LookAhead(-2.0), "constraint": RIEMANNIAN},
        "xla",
        "slow",
    ),
]


@pytest.mark.parametrize(
    ("activation", "p", "k", "d", "choices", "backend"),
    [pytest.param(*row, marks=[] if tier == "quick" else getattr(pytest.mark, tier)) for *row, tier in SETTINGS],
)
def test_the_law_is_that_of_sgd_on_the_weights(activation, p, k, d, choices, backend):
    """10^5 replicas of each after four steps: means, second moments, distributions, and the joint law.

    z < 5; p > 1e-6 for Kolmogorov and Smirnov's test; the energy distance is among the largest of 200 permutations in
    fewer than one of a hundred settings.
    """
    problem, training, W, W_star = make(activation, p, k, d, **choices)
    x = direct(problem, training, W, W_star, 4, 100_000, 0)
    y = by_overlaps(problem, training, 4, 100_000, backend)
    scores, pvalues = z_scores(x, y)
    assert np.max(np.abs(scores)) < 5 and np.min(pvalues) > 1e-6
    assert energy_distance(x, y) > 0.004


@pytest.mark.slow
def test_one_degree_of_freedom_too_few_is_noticed(monkeypatch):
    """A planted error of one in the chi variable at d = 20 moves the lengths by many standard errors."""
    problem, training, W, W_star = make("erf", 2, 1, 20, learning_rate=10.0)
    x = direct(problem, training, W, W_star, 4, 100_000, 0)
    right = by_overlaps(problem, training, 4, 100_000, "xla")
    assert np.max(np.abs(z_scores(x, right)[0])) < 5
    whole = overlap_sgd.make_setting

    def wrong(*arguments):
        made = whole(*arguments)
        return eqx.tree_at(
            lambda s: (s.degrees, s.chi), made, (made.degrees - 1, draws.chi_table([int(made.degrees[0]) - 1]))
        )

    monkeypatch.setattr(overlap_sgd, "make_setting", wrong)
    assert np.max(np.abs(z_scores(x, by_overlaps(problem, training, 4, 100_000, "xla"))[0])) > 8
