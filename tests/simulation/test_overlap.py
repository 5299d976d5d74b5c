"""The overlap process against SGD on the weights, written here in NumPy, and its parts against independent routes."""

import logging
import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import erf

import twolayer as tl
from tests.systems import erf_committee, phase_retrieval, time_to_overlap
from twolayer import stepping
from twolayer.compiler import draws
from twolayer.compiler.loops import native
from twolayer.compiler.native import compiled_text
from twolayer.compiler.scalar import Unsupported, scalarize
from twolayer.description import Watch
from twolayer.simulation import drivers, overlap, overlap_sgd
from twolayer.specification.fields import as_data


@pytest.mark.parametrize(
    ("rounds", "word", "answer"),
    [
        (7, 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (10, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_numbers(monkeypatch, rounds, word, answer):
    """Known answers of the authors of Philox-4x32, for counter and key of zeros and of ones."""
    monkeypatch.setattr(draws, "ROUNDS", rounds)
    x = jnp.uint32(word)
    assert tuple(int(y) for y in draws.philox((x, x), (x, x, x, x))) == answer


def some_normals(size=2**20):
    """Normal numbers as pairs (pairs, 2) in double precision, and the words from which they were made."""
    index = jnp.arange(size, dtype=jnp.uint32)
    key = (jnp.uint32(3), jnp.uint32(5))
    zero = jnp.zeros_like(index)
    words = jax.jit(lambda i: jnp.stack(draws.philox(key, (i, zero, zero, zero))))(index)
    radius, angle = words[::2].ravel(), words[1::2].ravel()
    return np.stack([np.asarray(x, dtype=np.float64) for x in draws.normal_pair(radius, angle)], axis=1), radius, angle


@pytest.mark.slow
def test_normal_numbers_follow_the_normal_law():
    """4 x 10^6 numbers: four moments with z < 5, the distance of the distribution functions, and no correlation."""
    pairs, *_ = some_normals()
    for x in (pairs.ravel(), *pairs.T):
        for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
            assert abs(np.mean(x**power) - mean) < 5 * np.sqrt(variance / x.size)
        assert stats.kstest(x, "norm").pvalue > 1e-6
    for power in (1, 2):
        x, y = (pairs**power - (power == 2)).T
        assert abs(np.mean(x * y)) < 5 * np.std(x * y) / np.sqrt(len(x))
    assert stats.kstest(np.sum(pairs**2, axis=1), "chi2", args=(2,)).pvalue > 1e-6


def test_normal_numbers_are_those_of_the_formula():
    """In double precision from the same words; at the ends of the range the length is sqrt(2 log 2^33)."""
    pairs, radius, angle = some_normals(2**14)
    u = (np.asarray(radius, dtype=np.float64) + 0.5) / 2.0**32
    theta = np.pi / 2 * np.asarray(angle).astype(np.int32).astype(np.float64) / 2.0**31
    sign = np.where(np.asarray(angle) % 2 == 1, -1.0, 1.0)
    exact = np.sqrt(-2 * np.log(u))[:, None] * np.stack([np.sin(theta), sign * np.cos(theta)], axis=1)
    away = u < 1 - 1e-3  # closer to one the spacing of single precision shows in the smallest lengths
    np.testing.assert_allclose(pairs[away], exact[away], atol=2e-6)
    np.testing.assert_allclose(pairs, exact, atol=1e-4)
    longest = float(draws.normal_pair(jnp.uint32(0), jnp.uint32(0))[1])
    np.testing.assert_allclose(longest, np.sqrt(2 * np.log(2.0**33)), rtol=1e-6)
    assert longest < draws.REACH


@pytest.mark.parametrize("degrees", [1, 2, 7, 20, 1000, 10**4])
def test_chi_is_the_quantile_transform(degrees):
    """Tail probabilities in 40 digits at several deviations: the error in units of the normal number."""
    mpmath.mp.dps = 40
    coefficients = jnp.asarray(draws.chi_coefficients(float(degrees)))
    for z in (-3.0, -1.3, 0.2, 2.0, 5.5):
        value = mpmath.mpf(float(draws.chi(jnp.asarray(z), float(degrees), coefficients)))
        below = mpmath.gammainc(mpmath.mpf(degrees) / 2, 0, value**2 / 2, regularized=True)
        accuracy = 1e-7 if len(coefficients) <= draws.SHORT else 2e-12  # that in which the series is summed
        assert abs(below - mpmath.ncdf(z)) / mpmath.npdf(z) < accuracy * max(1, degrees**0.5)


@pytest.mark.parametrize("degrees", [10**6, 10**9, 10**12])
def test_chi_of_many_degrees_is_nearly_normal(degrees):
    """Against the expansion of the quantile in 1 / sqrt(D), whose next term is of order 1 / D."""
    z = np.linspace(-5, 5, 11)
    u = np.asarray(draws.chi_above(jnp.asarray(z), jnp.asarray(draws.chi_coefficients(float(degrees)))))
    D = float(degrees)
    # chi^2 = D + sqrt(2 D) z + 2/3 (z^2 - 1) + ..., so that the first correction of sqrt(2)(chi - sqrt D) to z is
    first = (2.0 / 3.0 * (z**2 - 1) - z**2 / 2) / np.sqrt(2 * D)
    assert np.max(np.abs(u - z - first)) < 20.0 / D + 2e-8


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_sample_is_absorbed_into_the_triangular_factor(n):
    rng = np.random.default_rng(n)
    for rest in (1.7, 1e-9):
        L, c, g = np.tril(rng.standard_normal((n, n))), rng.standard_normal(n), rng.standard_normal(n)
        K = np.concatenate([L + np.outer(c, g), rest * c[:, None]], axis=1)
        for factor in (overlap.absorbed(*map(jnp.asarray, (L, c, g, rest))), overlap.lower(jnp.asarray(K))):
            np.testing.assert_allclose(factor @ factor.T, K @ K.T, atol=1e-13)
            np.testing.assert_allclose(np.triu(factor, 1), 0.0, atol=1e-14)
    zero = overlap.absorbed(jnp.zeros((n, n)), jnp.zeros(n), jnp.asarray(g), jnp.asarray(1.0))
    assert np.all(np.asarray(zero) == 0.0)


def equations(jaxpr):
    """How many operations the compiler is given, those inside of loops and calls included."""
    inner = [getattr(value, "jaxpr", value) for equation in jaxpr.eqns for value in equation.params.values()]
    return len(jaxpr.eqns) + sum(equations(each) for each in inner if hasattr(each, "eqns"))


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5}, {"batch_size": 100}, {"batch_size": 2}, {"reuse": tl.Repeated(2)}], ids=str
)
def test_the_program_of_a_step_does_not_grow_with_the_width(options):
    """Compiling takes as long for a hundred units as for ten; written out, it would take minutes."""
    sizes = []
    for p in (10, 100):
        problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(p, "erf"), tl.Gaussian(1000), noise=0.1)
        problem, training = as_data((problem, tl.SGD(1.0, **options)))
        made = overlap.make_setting(problem, training)
        rows = 2 * p if training.has_momentum else p
        state = overlap.State(jnp.zeros((3, rows, 2)), jnp.zeros((3, rows, made.outside)), jnp.zeros((3, p)))
        words, crossing = jnp.zeros((3, 2), jnp.uint32), jnp.zeros((3, 1))
        run = drivers.RunState(state, jnp.ones((3, p)), jnp.zeros((3, 2)), words, crossing)
        watch = Watch(False, True)
        advance = jax.make_jaxpr(lambda run, made=made, watch=watch: drivers.advance_xla(made, watch, run, 0, 5))
        sizes.append(equations(advance(run._replace(crossing=jnp.zeros((3, watch.size(problem.k))))).jaxpr))
        begin = jax.make_jaxpr(lambda L: overlap.lower(L))
        sizes[-1] += equations(begin(state.L[0]).jaxpr)
    assert sizes[1] <= sizes[0]


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


RIEMANNIAN = tl.Sphere(riemannian=True)
SETTINGS = [
    ("erf", 2, 2, 6, {"learning_rate": 3.0}, "native"),
    pytest.param("erf", 2, 1, 20, {"learning_rate": 3.0}, "native", marks=pytest.mark.long),
    pytest.param("erf", 2, 1, 20, {"learning_rate": 3.0}, "xla", marks=pytest.mark.long),
    ("erf", 2, 1, 20, {"learning_rate": 3.0, "constraint": tl.Sphere(), "layers": tl.Both(0.7)}, "native"),
    pytest.param(
        "erf",
        2,
        1,
        5,
        {"learning_rate": 1.0, "batch_size": 3, "constraint": tl.Sphere()},
        "xla",
        marks=pytest.mark.long,
    ),
    ("erf", 2, 2, 20, {"learning_rate": 1.0, "batch_size": 3, "layers": tl.Both(0.7)}, "xla"),
    pytest.param("erf", 3, 1, 20, {"learning_rate": 1.0, "batch_size": 2}, "xla", marks=pytest.mark.long),
    pytest.param("erf", 2, 1, 20, {"learning_rate": 1.0, "batch_size": 4}, "xla", marks=pytest.mark.long),
    ("erf", 2, 1, 20, {"learning_rate": 2.0, "momentum": 0.6, "weight_decay": 0.3}, "native"),
    pytest.param(
        "erf", 2, 1, 20, {"learning_rate": 1.0, "batch_size": 3, "momentum": 0.6}, "xla", marks=pytest.mark.long
    ),
    ("square", 1, 1, 200, {"learning_rate": 0.1, "constraint": tl.Sphere()}, "native"),
    pytest.param(
        "square", 3, 1, 3, {"learning_rate": 0.05}, "native", marks=pytest.mark.long
    ),  # d - k < p: nothing is left outside
    pytest.param(
        "erf", 2, 1, 5, {"learning_rate": 1.0, "batch_size": 4, "momentum": 0.6}, "xla", marks=pytest.mark.long
    ),  # nor for the velocity's span
    pytest.param(
        "erf",
        2,
        1,
        200,
        {"learning_rate": 3.0, "batch_size": 3, "constraint": tl.Sphere(), "layers": tl.Both(0.7)},
        "xla",
        marks=pytest.mark.long,
    ),
    ("erf", 2, 1, 20, {"learning_rate": 3.0, "reuse": tl.Repeated(3), "constraint": tl.Sphere()}, "native"),
    pytest.param(
        "erf",
        2,
        1,
        6,
        {"learning_rate": 1.0, "batch_size": 4, "reuse": tl.Repeated(2), "layers": tl.Both(0.7)},
        "xla",
        marks=pytest.mark.long,
    ),
    pytest.param(
        "erf",
        2,
        1,
        20,
        {"learning_rate": 3.0, "reuse": tl.LookAhead(4.0), "layers": tl.Both(0.7)},
        "native",
        marks=pytest.mark.long,
    ),
    ("erf", 2, 1, 20, {"learning_rate": 1.0, "batch_size": 3, "reuse": tl.LookAhead(-2.0), "momentum": 0.6}, "xla"),
    ("erf", 2, 1, 20, {"learning_rate": 6.0, "constraint": RIEMANNIAN, "layers": tl.Both(0.7)}, "native"),
    ("erf", 2, 2, 12, {"learning_rate": 3.0, "batch_size": 4, "constraint": RIEMANNIAN, "momentum": 0.6}, "xla"),
    pytest.param(
        "erf",
        2,
        1,
        20,
        {"learning_rate": 6.0, "momentum": 0.6, "weight_decay": 0.3, "constraint": RIEMANNIAN},
        "native",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "square",
        2,
        1,
        40,
        {"learning_rate": 0.3, "reuse": tl.Repeated(2), "constraint": RIEMANNIAN},
        "native",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "erf",
        2,
        1,
        20,
        {"learning_rate": 3.0, "batch_size": 3, "reuse": tl.LookAhead(-2.0), "constraint": RIEMANNIAN},
        "xla",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("activation", "p", "k", "d", "choices", "backend"), SETTINGS)
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


@pytest.mark.long
def test_same_seed_same_numbers_whatever_the_number_of_replicas_and_the_driver():
    """Replica 3 alone among 4, among 40 (another kernel width), and by XLA, whose logarithm rounds otherwise."""
    problem, training, *_ = make("erf", 2, 1, 50, learning_rate=1.0)
    runs = [
        tl.evolve(problem, training, tl.OverlapSGD(backend=backend), until=2.0, save=3, replicas=replicas)
        for backend, replicas in (("native", 4), ("native", 40), ("xla", 4))
    ]
    rows = [run.Q.values[3] for run in runs]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-12)
    np.testing.assert_allclose(rows[0], rows[2], rtol=1e-5)
    again = tl.evolve(problem, training, tl.OverlapSGD(), until=2.0, save=[1.0, 1.5, 2.0], replicas=4)
    np.testing.assert_array_equal(again.Q.values[:, -1], runs[0].Q.values[:, -1])  # the save grid does not matter


def test_batches_are_streamed_in_blocks(monkeypatch):
    """The sums do not depend on the size of the blocks but for rounding; a batch of a million samples is one step."""
    problem, training, *_ = make("erf", 2, 1, 30, learning_rate=0.5, batch_size=1000)
    whole = by_overlaps(problem, training, 2, 3, "xla")
    monkeypatch.setattr(drivers, "BLOCK", 96)
    np.testing.assert_allclose(by_overlaps(problem, training, 2, 3, "xla"), whole, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "backend"), [("square", "native"), pytest.param("erf", "xla", marks=pytest.mark.long)]
)
def test_first_passage_is_recorded_at_the_very_step(activation, backend):
    problem, training, *_ = make(activation, 1, 1, 30, learning_rate=0.1, constraint=tl.Sphere())
    steps = 400
    clock = training.clock(problem)
    times = clock.time(np.arange(1, steps + 1))
    threshold = 0.8 * float(
        tl.evolve(problem, training, tl.OverlapSGD(), until=times[0], save=[times[0]]).excess_risk[0, 0]
    )
    every = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), until=times[-1], save=times, replicas=8)
    risk = every.excess_risk.values
    for thresholds in (threshold, np.linspace(0.8, 0.99, 8) * risk[:, 0]):  # one for all replicas, or one for each
        few = tl.evolve(
            problem,
            training,
            tl.OverlapSGD(backend=backend),
            until=times[-1],
            save=2,
            replicas=8,
            risk_threshold=thresholds,
        )
        below = risk <= np.broadcast_to(thresholds, 8)[:, None]
        expected = np.where(below.any(axis=1), every.time.values[np.argmax(below, axis=1)], np.nan)
        assert np.isfinite(expected).any()
        np.testing.assert_allclose(few.crossing_time.values, expected, rtol=1e-12)


@pytest.mark.long
def test_a_million_dimensions_follow_the_ode():
    """Phase retrieval from a warm start: the scatter at d = 10^6 is of order 10^-3, and the mean is that of the ODE."""
    start = tl.GivenOverlaps([[1.0]], [[0.3]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(10**6), start=start)
    training = tl.SGD(1 / 12, constraint=tl.Sphere())
    tree = tl.compare(problem, training, [tl.OverlapSGD(), tl.SaadSolla()], until=0.1, save=3, replicas=32)
    assert tree.attrs["outcome"] in ("agrees", "consistent"), tree.attrs["verdict"]
    assert float(tree["OverlapSGD"].M.std("replica")[-1].max()) < 5e-3


@pytest.mark.slow
def test_an_interruption_leaves_what_was_saved_and_calls_it_unfinished(monkeypatch):
    """Stopped between two save points: the first one is kept, the rest is missing, and nothing is said to diverge."""
    monkeypatch.setattr(stepping, "CALL_SECONDS", 1e-6)  # as few steps a call as there are
    problem, training, *_ = make("erf", 2, 1, 50, learning_rate=1.0)

    def stop(name, fraction):
        if fraction > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(tl.Interrupted) as stopped:
        tl.evolve(problem, training, tl.OverlapSGD(), until=2.0, save=[1.0, 2.0], replicas=3, progress=stop)
    result = stopped.value.result
    whole = tl.evolve(problem, training, tl.OverlapSGD(), until=2.0, save=[1.0, 2.0], replicas=3)
    np.testing.assert_array_equal(result.Q.values[:, 1], whole.Q.values[:, 1])
    assert np.all(np.isnan(result.Q.values[:, 2])) and np.all(result.status.values == 2)


@pytest.mark.long
def test_overlap_thresholds_are_crossed_at_the_very_step():
    """Per target direction; the same from the saved overlaps of every step, and by direct SGD and the ODE."""
    problem = erf_committee(3, d=40)
    training = tl.SGD(4.0, layers=tl.Both(0.3))
    clock = training.clock(problem)
    times = clock.time(np.arange(1, 301))
    ask = {"until": times[-1], "replicas": 6, "overlap_threshold": 0.6}
    every = tl.evolve(problem, training, tl.OverlapSGD(), save=times, **ask)
    few = tl.evolve(problem, training, tl.OverlapSGD(backend="xla"), save=2, **ask)
    cosines = np.abs(every.M.values) / np.sqrt(np.diagonal(every.Q.values, axis1=2, axis2=3))[..., None]
    reached = cosines.max(axis=2) >= 0.6
    expected = np.where(reached.any(axis=1), every.time.values[np.argmax(reached, axis=1)], np.nan)
    assert np.isfinite(expected).any() and np.isnan(expected).any()
    for result in (every, few):
        np.testing.assert_allclose(result.overlap_time.values, expected, rtol=1e-12)
        assert np.all(np.isnan(result.crossing_time.values))
    on_weights = tl.evolve(problem, training, tl.DirectSGD(), save=times, **ask)
    cosines = np.abs(on_weights.M.values) / np.sqrt(np.diagonal(on_weights.Q.values, axis1=2, axis2=3))[..., None]
    first = on_weights.time.values[np.argmax(cosines.max(axis=2) >= 0.6, axis=1)]
    found = on_weights.overlap_time.values
    np.testing.assert_array_equal(found[np.isfinite(found)], first[np.isfinite(found)])


@pytest.mark.long
def test_the_ode_crosses_an_overlap_threshold_between_its_save_points():
    training = tl.SGD(1 / 12, constraint=tl.Sphere())
    result = tl.evolve(phase_retrieval(0.3), training, tl.SaadSolla(), until=2.0, save=2, overlap_threshold=0.8)
    expected = time_to_overlap(0.3, 0.8, 1 / 12, 0.0)
    np.testing.assert_allclose(float(result.overlap_time[0, 0]), expected, rtol=1e-8)


@pytest.mark.parametrize("backend", ["native", pytest.param("xla", marks=pytest.mark.long)])
def test_replicas_stop_when_they_have_crossed(backend):
    """Crossing times are those of replicas that go on; what comes later is missing, and nothing is an error."""
    problem, training, *_ = make("square", 1, 1, 30, learning_rate=0.1, constraint=tl.Sphere())
    until = float(training.clock(problem).time(1000))
    ask = {"until": until, "save": "linear:21", "replicas": 40, "risk_threshold": 1.5}
    on = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), **ask)
    off = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), stop_at_threshold=True, **ask)
    np.testing.assert_array_equal(on.crossing_time.values, off.crossing_time.values)
    crossed = np.isfinite(on.crossing_time.values)
    assert 0 < crossed.sum()
    np.testing.assert_array_equal(off.status.values, np.where(crossed, 3, 0))
    after = off.time.values[None, :] > np.where(crossed, on.crossing_time.values, np.inf)[:, None]
    np.testing.assert_array_equal(np.isnan(off.risk.values), after)
    np.testing.assert_array_equal(on.M.values[~after], off.M.values[~after])
    with pytest.raises(tl.InvalidInput, match="stop_at_threshold"):
        tl.evolve(problem, training, tl.OverlapSGD(), until=until, stop_at_threshold=True)


@pytest.mark.slow
def test_each_replica_may_have_its_own_threshold():
    problem, training, *_ = make("square", 1, 1, 30, learning_rate=0.1, constraint=tl.Sphere())
    until = float(training.clock(problem).time(500))
    common = {"until": until, "save": 2, "replicas": 3}
    levels = [1.7, 1.2, 0.4]
    each = tl.evolve(problem, training, tl.OverlapSGD(), risk_threshold=levels, **common).crossing_time.values
    for replica, level in enumerate(levels):
        one = tl.evolve(problem, training, tl.OverlapSGD(), risk_threshold=level, **common).crossing_time.values
        np.testing.assert_array_equal(each[replica], one[replica])
    with pytest.raises(tl.InvalidInput, match="risk_threshold"):
        tl.evolve(problem, training, tl.OverlapSGD(), risk_threshold=[1.0, 2.0], **common)


KILLED = """
import os, sys
import twolayer as tl
from twolayer import stepping
stepping.CALL_SECONDS = 0.02
problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(30), noise=0.1)
description = {description}
def progress(name, fraction):
    if fraction > 0.55:
        os._exit(9)  # as if killed: nothing is tidied up
tl.evolve(problem, tl.SGD(2.0, momentum=0.3), description, until=40.0, save="linear:9", replicas=12, progress=progress,
          checkpoint=tl.Checkpoint(sys.argv[1], every=0.0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "description",
    [
        "tl.OverlapSGD()",
        pytest.param("tl.OverlapSGD(backend='xla')", marks=pytest.mark.long),
        pytest.param("tl.DirectSGD()", marks=pytest.mark.long),
        pytest.param("tl.DirectSGD(backend='native')", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_resumes_and_ends_with_the_same_numbers(description, tmp_path):
    place = tmp_path / "place.npz"
    code = KILLED.format(description=description)
    ended = subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert ended.returncode == 9 and place.exists()
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(30), noise=0.1)
    training, ask = tl.SGD(2.0, momentum=0.3), {"until": 40.0, "save": "linear:9", "replicas": 12}
    made = eval(description, {"tl": tl})
    fractions = []
    resumed = tl.evolve(
        problem, training, made, checkpoint=place, progress=lambda name, fraction: fractions.append(fraction), **ask
    )
    whole = tl.evolve(problem, training, made, **ask)
    assert fractions[0] > 0.3 and not place.exists()
    for name in ("Q", "M", "a", "risk", "status"):
        np.testing.assert_array_equal(resumed[name].values, whole[name].values)


def test_what_it_does_not_describe_is_refused():
    problem, *_ = make("erf", 2, 1, 20, learning_rate=1.0)
    with pytest.raises(tl.NotApplicable, match="DirectSGD"):
        tl.evolve(problem, tl.SGD(0.5, reuse=tl.Reused(2.0)), tl.OverlapSGD(), until=2.0)
    with pytest.raises(tl.NotApplicable, match="one sample a step"):
        tl.evolve(problem, tl.SGD(0.5, batch_size=4), tl.OverlapSGD(backend="native"), until=0.5)
    with pytest.raises(tl.InvalidInput, match="backend"):
        tl.OverlapSGD(backend="cuda")
    with pytest.raises(tl.NotApplicable, match="1024 samples"):
        tl.evolve(problem, tl.SGD(0.5, batch_size=2000, reuse=tl.Repeated(2)), tl.OverlapSGD(), until=100.0)


def test_programs_on_scalars_compute_what_the_function_does():
    """Products, sums, slices, indexing, selection: written out and run on vectors of replicas."""

    def function(A, x):
        y = jnp.where(A @ x > 0.0, jnp.tanh(A @ x), x[jnp.array([2, 0, 1])])
        return {"y": y[::-1], "s": jnp.sum(A[1:, :2] ** 3) + jnp.max(x), "t": jnp.concatenate([x[:1], A.T[0]])}

    rng = np.random.default_rng(0)
    A, x = rng.standard_normal((7, 3, 3)), rng.standard_normal((7, 3))
    program = scalarize(function, A[0], x[0])
    flat = [jnp.asarray(v) for v in np.concatenate([A.reshape(7, -1), x], axis=1).T]
    found = np.stack([np.asarray(v) for v in program.run(flat)], axis=1)
    for i in range(7):
        expected = np.concatenate(
            [np.ravel(v) for v in jax.tree.leaves(function(jnp.asarray(A[i]), jnp.asarray(x[i])))]
        )
        np.testing.assert_allclose(found[i], expected, rtol=1e-14)
    with pytest.raises(Unsupported, match="sort"):
        scalarize(jnp.sort, x[0])


def test_the_setting_keeps_the_dimensions_outside_every_span():
    for d, outside, rest in ((3, 2, 0), (4, 3, 0), (5, 3, 1), (100, 3, 96)):
        problem = as_data(tl.Problem(tl.Committee(1, "erf"), tl.Student(3, "erf"), tl.Gaussian(d)))
        made = overlap.make_setting(problem, as_data(tl.SGD(1.0, batch_size=8)))
        assert made.outside == outside
        assert made.degrees.tolist() == [rest - j for j in range(min(3, rest))]


def test_one_kernel_serves_all_learning_rates_and_dimensions():
    """Rates, noise and the laws of lengths are data of the native code, which takes seconds to compile."""
    results = []
    for d, rate, noise in ((300, 0.3, 0.1), (300, 0.7, 0.3), (400, 0.3, 0.1)):
        problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "erf"), tl.Gaussian(d), noise=noise)
        description = tl.OverlapSGD(backend="native")
        results.append(tl.evolve(problem, tl.SGD(rate), description, until=0.05, save=2, replicas=8))
        compiled = compiled_text.cache_info().misses
        if len(results) == 1:
            first = compiled
    assert compiled == first
    assert len({float(result.excess_risk[0, -1]) for result in results}) == 3


def test_a_long_compilation_is_told_first():
    """Eight units with momentum take most of a minute; here nothing is compiled, which waits for the first step."""

    def kernel(p, momentum):
        problem, training = as_data((erf_committee(p), tl.SGD(0.1, momentum=momentum)))
        program = drivers.written_out(overlap.make_setting(problem, training), Watch(False, False))
        return native(program, 64)

    with pytest.warns(tl.Caution, match="compiled to native code first, which takes about [4-6]0 seconds"):
        kernel(8, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(2, 0.0)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_one_program_serves_every_dimension(batch_size, caplog):
    def run(d, replicas=7):
        system = tl.Problem(tl.Committee(k=1, activation="erf"), tl.Student(2, "erf"), tl.Gaussian(d), noise=0.1)
        training, asked = tl.SGD(0.5, batch_size=batch_size), {"until": 0.3, "save": [0.3], "replicas": replicas}
        return tl.evolve(system, training, tl.OverlapSGD(), **asked)

    def compiled():
        messages = [record.getMessage() for record in caplog.records]
        programs = ("_begin", "advance_xla", "_measured", "_risks_of_rows")
        return [text for text in messages if any(f"Compiling jit({name})" in text for name in programs)]

    first = run(60)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        second = run(90)
        assert not compiled()
        run(60, replicas=9)
        assert compiled()  # another number of runs is another program, and is told
    assert float(abs(first.Q[:, -1] - second.Q[:, -1]).max()) > 1e-3
