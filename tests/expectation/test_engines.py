"""Engines that approximate: the error they report, how it shrinks, and which of them is chosen."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.precision import double
from twolayer.expectation import (
    ENGINES,
    MOMENTS,
    Auto,
    Cloud,
    Quadrature,
    choose,
    estimate,
    increment_covariance,
    risk_along,
)
from twolayer.expectation.qmc import MonteCarlo, scrambled_normals
from twolayer.expectation.rules import legendre_rule
from twolayer.expectation.slices import pair
from twolayer.problem import Overlaps
from twolayer.problem.activations import as_activation

from .test_closed_forms import moments, random_overlaps, rule


def erf_problem(k: int = 1, p: int = 2) -> tl.Problem:
    return tl.Problem(tl.Committee(k, "erf"), tl.Student(p, "erf"), tl.Gaussian(100), noise=0.3)


def by(name: str, problem: tl.Problem, wanted=MOMENTS, rtol=1e-6):
    return Auto(rtol=rtol, engines=(name,)).choose(problem, wanted)


@pytest.mark.parametrize("name", ["Cloud", "MonteCarlo"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_clouds_report_at_least_their_true_error(seed, p, name):
    """Against closed forms.

    The error is a t-quantile at 1e-4, so that a false alarm in these 200 numbers is unlikely.
    """
    problem = erf_problem(p=p)
    overlaps = random_overlaps(p, np.eye(1), seed)
    exact = moments(choose(problem), problem, overlaps)
    result = estimate(by(name, problem), problem, overlaps)
    useful = {"Cloud": 2e-3 if p == 2 else 1e-2, "MonteCarlo": 0.1}[name]
    for moment in MOMENTS:
        assert np.all(np.abs(exact[moment] - result.value[moment]) <= result.error[moment])
        assert np.all(result.error[moment] < useful)


@pytest.mark.parametrize("order", [6, *(pytest.param(order, marks=pytest.mark.slow) for order in (8, 12, 20, 40))])
@pytest.mark.parametrize("seed", range(3))
def test_quadrature_reports_at_least_its_true_error(order, seed):
    problem = erf_problem()
    overlaps = random_overlaps(2, np.eye(1), seed)
    exact = moments(choose(problem), problem, overlaps)
    engine = Quadrature.of_order(order, 3)
    result = engine.combine(tuple(moments(variant, problem, overlaps) for variant in engine.variants()))
    for moment in MOMENTS:
        assert np.all(np.abs(exact[moment] - result.value[moment]) <= result.error[moment])


def test_quadrature_converges_geometrically():
    """Errors at 8, 16 and 32 nodes.

    Each doubling squares the error, up to constants; slope of log error is negative.
    """
    problem = erf_problem()
    overlaps = random_overlaps(2, np.eye(1), 0)
    exact = moments(choose(problem), problem, overlaps)
    errors = [
        max(float(jnp.max(jnp.abs(exact[m] - got[m]))) for m in MOMENTS)
        for got in (moments(rule(order, 3), problem, overlaps) for order in (8, 16, 32))
    ]
    assert errors[1] < errors[0] / 10 and errors[2] < errors[1] / 100


@pytest.mark.slow
def test_mixtures_converge_geometrically():
    """Each term of a tanh mixture gains a factor of about seven: at least 100 from five to eight terms."""
    problem = tl.Problem(tl.Committee(2, "tanh"), tl.Student(2, "tanh"), tl.Gaussian(100))
    overlaps, low = random_overlaps(2, np.eye(2), 0, rank=0), MOMENTS[:3]
    truth = moments(by("Slices", problem, low).variants()[0], problem, overlaps, low)
    errors = []
    for rtol in (1e-5, 1e-8):
        got = moments(by("ThresholdUnits", problem, rtol=rtol).variants()[0], problem, overlaps, low)
        errors.append(max(float(jnp.max(jnp.abs(got[m] - truth[m]))) for m in low))
    assert errors[1] < errors[0] / 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "factor"), [(("relu", "relu"), 1e4), pytest.param(("tanh", "gelu"), 1e2, marks=pytest.mark.long)]
)
def test_slices_converge_geometrically_across_kinks(kinds, factor):
    """Panels of 8, 16 and 32 nodes: kinks do not spoil the order, near-determined fields included."""
    first, second = map(as_activation, kinds)
    for C in ([[1.0, 0.3], [0.3, 2.0]], [[1.0, 1.0 - 1e-8], [1.0 - 1e-8, 1.0]]):
        truth = pair(first, second, jnp.asarray(C), legendre_rule(128))
        errors = [np.max(np.abs(pair(first, second, jnp.asarray(C), legendre_rule(n)) - truth)) for n in (8, 16, 48)]
        assert errors[1] < errors[0] and errors[2] < errors[0] / factor


@pytest.mark.parametrize(("kind", "low", "high"), [(Cloud, -2.0, -0.7), (MonteCarlo, -0.75, -0.25)])
def test_clouds_converge_at_their_rates(kind, low, high):
    """The error against the number of points falls as N^-1/2 by chance, and faster than N^-0.7 for a net."""
    problem = erf_problem()
    overlaps = random_overlaps(2, np.eye(1), 0)
    exact = float(moments(choose(problem), problem, overlaps)["excess_risk"])
    sizes, errors = [7, 10, 13], []
    rng = np.random.default_rng(0)
    for log2_points in sizes:
        points = [
            scrambled_normals(3, log2_points, seed) if kind is Cloud else rng.standard_normal((2**log2_points, 3))
            for seed in range(32)
        ]
        values = [float(moments(kind(x[None], False), problem, overlaps)["excess_risk"]) for x in points]
        errors.append(np.sqrt(np.mean((np.array(values) - exact) ** 2)))
    slope = np.polyfit(np.array(sizes) * np.log(2), np.log(errors), 1)[0]
    assert low < slope < high


@pytest.mark.parametrize(
    ("target", "student", "low", "high"),
    [
        (tl.Committee(2, "erf"), tl.Student(4, "erf"), "ThresholdUnits", "ThresholdUnits"),
        (tl.SingleIndex("erf"), tl.Student(4, "erf"), "ThresholdUnits", "ThresholdUnits"),
        (tl.Committee(2, "sigmoid"), tl.Student(3, "relu"), "ThresholdUnits", "ThresholdUnits"),
        (tl.PhaseRetrieval(), tl.Student(3, "square"), "SquareUnits", "SquareUnits"),
        (tl.Hermite({3: 1.0}), tl.Student(3, "he3"), "PolynomialTables", "PolynomialTables"),
        (tl.Staircase(2), tl.Student(2, "square"), "PolynomialTables", "PolynomialTables"),
        (tl.Hermite({2: 1.0}), tl.Student(1, "erf"), "Tilted", "Tilted"),
        (tl.MultiIndex("tanh(z1) + z1*z2"), tl.Student(8, "tanh"), "Tilted", "Tilted"),
        (tl.Committee(3, "softplus"), tl.Student(4, "gelu"), "Series", "Ridges"),
        (tl.Committee(3, "softplus"), tl.Student(5, "gelu"), "Series", "Cloud"),
        (tl.Committee(1, "softplus"), tl.Student(1, "gelu"), "Series", "Quadrature"),
        (tl.MultiIndex("tanh(z1) + z1*z2"), tl.Student(2, "relu"), "Ridges", "Ridges"),
        (tl.MultiIndex("tanh(z1) + z1*z2"), tl.Student(3, "relu"), "Slices", "Ridges"),
        (tl.MultiIndex("tanh(z1) + z1*z2"), tl.Student(5, "relu"), "Slices", "Cloud"),
        (tl.MultiIndex("tanh(z1)*z2"), tl.Student(4, "silu"), "Slices", "GivenTarget"),
        (tl.MultiIndex("tanh(z1)*z2"), tl.Student(5, "silu"), "Slices", "Cloud"),
        (tl.MultiIndex("abs(z1)", k=1), tl.Student(3, "tanh"), "Tilted", "Tilted"),
        (tl.MultiIndex("abs(z1)", k=1), tl.Student(1, "relu"), "Panels", "Panels"),
        (tl.MultiIndex("abs(z1)", k=1), tl.Student(2, "he8"), "Ridges", "Ridges"),
        (tl.MultiIndex("step(z1 + z2)"), tl.Student(1, "tanh"), "Ridges", "Ridges"),
        (tl.Committee(2, "gelu"), tl.Student(40, "gelu"), "Series", "MonteCarlo"),
    ],
)
def test_each_moment_gets_the_first_engine_that_serves(target, student, low, high):
    assigned, refusals = Auto().assign(tl.Problem(target, student, tl.Gaussian(50)))
    assert assigned["excess_risk"] == assigned["v"] == low and assigned["phi_hd"] == high
    order = list(ENGINES)
    for moment, name in assigned.items():
        asked = [refusal.engine for refusal in refusals if refusal.moment == moment]
        assert asked == order[: order.index(name)]
    assert all(refusal.reason for refusal in refusals)


@pytest.mark.long
def test_engines_can_be_named_and_accuracy_asked_for():
    problem = tl.Problem(tl.MultiIndex("sin(z1) + z2**2"), tl.Student(2, "erf"), tl.Gaussian(50))
    overlaps = random_overlaps(2, np.eye(2), 0)
    coarse, fine = (
        max(float(np.max(x)) for x in estimate(by("Tilted", problem, rtol=rtol), problem, overlaps).error.values())
        for rtol in (1e-3, 1e-9)
    )
    assert fine < 1e-7 and fine < coarse / 30
    with pytest.raises(tl.InvalidInput, match="which is not known"):
        Auto(engines=("Clouds",))
    with pytest.raises(tl.NotApplicable, match="No engine"):
        Auto(engines=("SquareUnits",)).choose(problem)
    result = tl.evolve(problem, tl.SGD(0.5), tl.SaadSolla(engine=Auto(engines=("Cloud",))), until=0.2, save=2)
    assert "QMC" in result.attrs["engine"]


def test_relu_moments_against_known_values():
    """E[relu(x)^2] = 1/2 and E[relu(x) relu(y)] = 1/(2 pi) at correlation zero fix the risk of one relu unit."""
    problem = tl.Problem(tl.SingleIndex("relu"), tl.Student(1, "relu"), tl.Gaussian(100))
    overlaps = Overlaps(jnp.eye(1), jnp.zeros((1, 1)), jnp.eye(1), jnp.ones(1))
    result = estimate(choose(problem), problem, overlaps)
    truth = 0.5 * (0.5 + 0.5 - 2 / (2 * np.pi))
    assert abs(result.value["excess_risk"] - truth) <= result.error["excess_risk"] < 1e-11


@pytest.mark.long
def test_label_noise_enters_phi_hd_alone():
    overlaps = random_overlaps(2, np.eye(1), 1)
    for activation, target in (("erf", "erf"), ("tanh", "tanh"), ("gelu", "erf"), ("erf", "sin(z)")):
        noisy, quiet = (
            tl.Problem(tl.SingleIndex(target), tl.Student(2, activation), tl.Gaussian(9), noise=noise)
            for noise in (0.3, 0.0)
        )
        with_noise, without = (moments(choose(problem), problem, overlaps) for problem in (noisy, quiet))
        np.testing.assert_allclose(with_noise["v"], without["v"], atol=1e-14)
        np.testing.assert_allclose(with_noise["excess_risk"], without["excess_risk"], atol=1e-14)
        assert np.all(np.linalg.eigvalsh(with_noise["phi_hd"] - without["phi_hd"]) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["tanh(20*z)", "tanh(50*z)", "1/(z**2 + 0.01)", "sin(8*z)", "exp(z)"])
@pytest.mark.parametrize("name", ["Tilted", "Quadrature", "Slices"])
def test_rules_are_honest_on_steep_and_wavy_functions(link, name):
    """Against a sum over 4 x 10^5 equidistant points, which is exact to rounding for these functions."""
    problem = tl.Problem(tl.SingleIndex(link), tl.Student(1, "tanh"), tl.Gaussian(50))
    wanted = tuple(moment for moment in MOMENTS if ENGINES[name].suits(problem, moment).ok)
    if not wanted:
        assert ENGINES[name].suits(problem, "v").reason
        return
    overlaps = Overlaps(jnp.eye(1), jnp.eye(1) * (1 - 1e-12), jnp.eye(1), jnp.ones(1))
    result = estimate(by(name, problem, wanted), problem, overlaps, wanted)
    z = np.linspace(-12, 12, 400_001)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    f = np.asarray(problem.target(jnp.asarray(z[:, None])))
    eps, slope = f - np.tanh(z), 1 / np.cosh(z) ** 2
    truths = {
        "excess_risk": 0.5 * weights @ eps**2,
        "chi": weights @ (np.tanh(z) * eps),
        "v": weights @ (slope * z * eps),
        "phi_hd": weights @ (slope * slope * eps**2),
    }
    for moment in wanted:
        assert np.all(np.abs(result.value[moment] - truths[moment]) <= result.error[moment] + 1e-9), moment


@pytest.mark.parametrize(("p", "link"), [(3, "exp(3*z1)"), (2, "exp(6*z1)")])
def test_a_target_that_outgrows_every_rule_is_refused(p, link):
    problem = tl.Problem(tl.MultiIndex(link, k=1), tl.Student(p, "tanh"), tl.Gaussian(50))
    with pytest.raises(tl.NotApplicable, match="beyond 4 deviations"):
        choose(problem)
    with pytest.raises(tl.NotApplicable, match="DirectSGD"):
        tl.evolve(problem, tl.SGD(0.1), tl.DirectSGD(), until=1.0)


def test_one_unit_is_served_however_fast_the_target_grows():
    """E[exp(12 z)] = exp(72), which is made twelve deviations out."""
    problem = tl.Problem(tl.MultiIndex("exp(6*z1)", k=1), tl.Student(1, "tanh"), tl.Gaussian(50))
    wanted = ("excess_risk",)
    overlaps = Overlaps(jnp.eye(1), jnp.zeros((1, 1)), jnp.eye(1), jnp.ones(1))
    result = estimate(choose(problem, wanted), problem, overlaps, wanted)
    assert abs(result.value["excess_risk"] - 0.5 * np.exp(72.0)) <= result.error["excess_risk"] < 1e-6 * np.exp(72.0)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["erf", "square", "relu"])
def test_increment_covariance_against_increments_drawn_one_by_one(activation):
    """The full covariance of (a, M, Q), cross terms included, against 10^6 samples in NumPy: z < 5 for every entry."""
    problem = tl.Problem(tl.Committee(1, activation), tl.Student(2, activation), tl.Gaussian(9), noise=0.3)
    training = tl.SGD(0.8, layers=tl.Both(0.5))
    overlaps = random_overlaps(2, np.eye(1), 3)
    chosen = choose(problem, ("covariance",))
    result = estimate(chosen, problem, overlaps, ("covariance",))
    covariance = np.asarray(increment_covariance(problem, training, result.value["covariance"]))
    rng = np.random.default_rng(0)
    N, a, gamma = 1_000_000, np.asarray(overlaps.a), 0.8
    x = rng.standard_normal((N, 3)) @ np.linalg.cholesky(np.asarray(overlaps.omega)).T
    act = problem.student.activation
    s, ds = (np.asarray(function(jnp.asarray(x[:, :2]))) for function in (act, act.derivative))
    eps = np.asarray(act(jnp.asarray(x[:, 2]))) + np.sqrt(0.3) * rng.standard_normal(N) - s @ a / 2
    g = a * ds * eps[:, None]
    Q = [g[:, j] * x[:, l] + g[:, l] * x[:, j] + gamma / 2 * g[:, j] * g[:, l] for j, l in ((0, 0), (0, 1), (1, 1))]
    S = np.stack([0.5 * s[:, 0] * eps, 0.5 * s[:, 1] * eps, g[:, 0] * x[:, 2], g[:, 1] * x[:, 2], *Q], axis=1)
    S = S - S.mean(axis=0)
    products = S[:, :, None] * S[:, None, :]
    scatter = products.std(axis=0) / np.sqrt(N)
    error = float(np.max(result.error["covariance"])) * (1 + gamma) ** 2
    assert np.all(np.abs(products.mean(axis=0) - covariance) < 5 * scatter + error)
    assert np.all(np.linalg.eigvalsh(covariance) > -1e-9)
    if activation == "square":
        assert "closed form" in chosen.name


def test_tracing_does_not_grow_with_the_width():
    """The number of traced operations is the same at p = 2 and p = 16, but for an indexing operation or two."""
    for target, activation in ((tl.Committee(2, "erf"), "erf"), (tl.Committee(2, "relu"), "relu")):
        sizes = []
        for p in (2, 16):
            problem = tl.Problem(target, tl.Student(p, activation), tl.Gaussian(100))
            engine = choose(problem)
            jaxpr = jax.make_jaxpr(lambda o, e=engine, q=problem: e.parts(q, o, MOMENTS))(
                random_overlaps(p, np.eye(2), 0)
            )
            sizes.append(len(jaxpr.jaxpr.eqns))
        assert abs(sizes[0] - sizes[1]) < 5


@pytest.mark.slow
def test_rules_along_fields_are_finer_where_more_digits_are_asked_for():
    """Forces of a silu on a formula: six digits asked for are right within their error, nine differ by less than it."""
    problem = tl.Problem(tl.MultiIndex("tanh(z1) + z1*z2"), tl.Student(1, "silu"), tl.Gaussian(50))
    overlaps = random_overlaps(1, np.eye(2), 3)
    usual, fine = (Auto(rtol, engines=("Ridges",)).choose(problem, ("chi", "phi_hd")) for rtol in (1e-6, 1e-9))
    assert usual.rtol == 2e-6 and fine.rtol == pytest.approx(2e-9)
    first, second = (estimate(chosen, problem, overlaps, ("chi", "phi_hd")) for chosen in (usual, fine))
    for name in ("chi", "phi_hd"):
        distance = np.abs(first.value[name] - second.value[name])
        assert np.all(distance <= first.error[name] + second.error[name])
        assert np.all(second.error[name] < 0.1 * first.error[name]) and np.all(second.error[name] < 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "student"),
    [
        ("ThresholdUnits", tl.Committee(2, "erf"), tl.Student(2, "relu")),
        ("ThresholdUnits", tl.Committee(2, "leaky_relu"), tl.Student(2, "abs")),
        ("ThresholdUnits", tl.Committee(2, "tanh"), tl.Student(2, tl.LeakyRelu(0.3))),
        ("Tilted", tl.MultiIndex("he2(z1) + z1*z2"), tl.Student(2, "tanh")),
        ("Panels", tl.MultiIndex("abs(z1)", k=1), tl.Student(1, "relu")),
        ("Series", tl.Committee(2, "softplus"), tl.Student(2, "gelu")),
        ("Ridges", tl.MultiIndex("he2(z1) + z1*z2"), tl.Student(2, "relu")),
        ("Ridges", tl.MultiIndex("sin(z1) + z1*z2"), tl.Student(2, "gelu")),
        ("Slices", tl.MultiIndex("he2(z1) + z1*z2"), tl.Student(2, "relu")),
        ("GivenTarget", tl.MultiIndex("tanh(z1)*z2"), tl.Student(2, "silu")),
        ("Waves", tl.MultiIndex("sin(2*z1) + cos(z2)"), tl.Student(2, jnp.sin)),
        ("Bumps", tl.MultiIndex("sin(2*z1) + exp(-z2**2)"), tl.Student(2, lambda x: jnp.exp(-((x - 0.5) ** 2)))),
    ],
)
def test_derivatives_are_those_of_the_values(name, target, student):
    """Plateaus and corrections at finite d take them, also at zero overlap, where square roots have infinite ones."""
    problem = tl.Problem(target, student, tl.Gaussian(50), noise=0.2)
    served = tuple(moment for moment in MOMENTS if ENGINES[name].suits(problem, moment).ok and moment != "covariance")
    engine = by(name, problem, served).variants()[0]
    k, a = problem.k, jnp.array([0.7, -1.2])[: problem.p]
    away = 0.2 * np.random.default_rng(5).standard_normal((2, problem.p, k))

    motion = (jnp.eye(problem.p), jnp.asarray(away[1]))

    @jax.jit  # one program for the values and their derivatives, since compiling it is what this test costs
    def along(Q, M):
        return jax.jvp(lambda Q, M: engine.parts(problem, Overlaps(Q, M, jnp.eye(k), a), served), (Q, M), motion)

    Q, step = jnp.eye(problem.p) + 0.1, 1e-5
    for M in (jnp.zeros((problem.p, k)), jnp.asarray(away[0])):
        _, derivatives = along(Q, M)
        ends = [along(Q + sign * step * motion[0], M + sign * step * motion[1])[0] for sign in (1.0, -1.0)]
        for moment in served:
            numerical = (ends[0][moment] - ends[1][moment]) / (2.0 * step)
            assert np.allclose(derivatives[moment], numerical, rtol=1e-5, atol=1e-6), moment


@pytest.mark.slow
def test_series_of_wide_students_end_at_the_degree_of_a_polynomial():
    """Nine units on products of fields: the risk and chi by powers of linear forms are those of rules along fields."""
    problem = tl.Problem(tl.MultiIndex("z1 + z1*z2"), tl.Student(9, "gelu"), tl.Gaussian(50))
    assigned, _ = Auto().assign(problem)
    assert (assigned["excess_risk"], assigned["chi"], assigned["v"]) == ("Series", "Series", "Slices")
    overlaps, wanted = random_overlaps(9, np.eye(2), 0), ("excess_risk", "chi")
    series, slices = (estimate(by(name, problem, wanted), problem, overlaps, wanted) for name in ("Series", "Slices"))
    for name in wanted:
        gap = np.abs(np.asarray(series.value[name]) - np.asarray(slices.value[name]))
        assert np.all(gap <= np.asarray(series.error[name]) + np.asarray(slices.error[name]))
        assert np.all(np.asarray(series.error[name]) < 1e-6)


def test_the_risk_is_one_program_for_all_descriptions(caplog):
    """It depends on neither the dimension nor the noise nor what else is computed, with room for more save points."""
    rng = np.random.default_rng(0)
    with jax.log_compiles(), caplog.at_level(logging.WARNING), double():
        for d, times, wanted in ((50, 9, MOMENTS), (60, 10, ("excess_risk",))):
            problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "relu"), tl.Gaussian(d), noise=0.001 * d)
            W = rng.standard_normal((3, times, 2, 4))
            Q, M = W @ np.swapaxes(W, 2, 3), W[..., :1]
            chosen = Auto().choose(problem, wanted)
            risk, error = risk_along(chosen, problem, Q, M, jnp.eye(1), np.ones((3, times, 2)))
            one = Overlaps(*(jnp.asarray(x) for x in (Q[2, 3], M[2, 3], np.eye(1), np.ones(2))))
            expected = estimate(chosen, problem, one, ("excess_risk",))
            assert risk.shape == error.shape == (3, times)
            np.testing.assert_allclose(risk[2, 3], expected.value["excess_risk"], rtol=1e-12)
            np.testing.assert_allclose(error[2, 3], expected.error["excess_risk"], rtol=1e-3, atol=1e-14)
    assert sum("Compiling jit(_risks_of)" in record.getMessage() for record in caplog.records) == 1
