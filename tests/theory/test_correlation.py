"""The correlation loss: theories against both simulations, and its averages against plain Monte Carlo sums."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from tests.systems import no_symmetry, phase_retrieval
from twolayer.core.precision import double
from twolayer.expectation import Auto, increment_covariance


def erf_problem(d: int, loss: str = "correlation") -> tl.Problem:
    return tl.Problem(
        tl.Committee(2, "erf"),
        tl.Student(2, "erf", [2.0, 1.0]),
        tl.Gaussian(d),
        start=no_symmetry(),
        noise=0.1,
        loss=loss,
    )


def last(problem, training, description, until, replicas=1) -> dict[str, np.ndarray]:
    """Overlaps, output weights and risk at one time, for each replica."""
    result = tl.evolve(problem, training, description, until=until, save=[until], replicas=replicas)
    return {name: result[name].values[:, -1] for name in ("M", "Q", "a", "risk")}


def test_the_ode_is_followed(check_mean):
    """d = 2000, both layers, 64 runs within 5 standard errors; the square loss would end elsewhere."""
    training = tl.SGD(1.5, layers=tl.Both(0.7))
    runs = last(erf_problem(2000), training, tl.OverlapSGD(), 1.5, 64)
    theory, other = (last(erf_problem(2000, loss), training, tl.SaadSolla(), 1.5) for loss in ("correlation", "square"))
    for name, sample in runs.items():
        check_mean(sample, theory[name][0], name)
    error = runs["M"].std(axis=0, ddof=1) / 8.0
    assert np.all(np.abs(theory["M"][0] - other["M"][0]) > 20 * error)


@pytest.mark.slow
def test_the_gap_to_the_ode_is_of_order_one_over_d():
    """Phase retrieval on the sphere, 20,000 runs at each d: d times the gap is one number, and not zero."""
    gaps, errors = [], []
    for d in (50, 200):
        start = tl.GivenOverlaps([[1.0]], [[0.5]])
        problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), start, "correlation")
        training = tl.SGD(0.03, constraint=tl.Sphere())
        runs = last(problem, training, tl.OverlapSGD(), 0.3, 20_000)["M"]
        gaps.append(d * (runs.mean() - last(problem, training, tl.SaadSolla(), 0.3)["M"].item()))
        errors.append(d * runs.std() / np.sqrt(runs.size))
    assert abs(gaps[0]) > 5 * errors[0] and abs(gaps[1]) > 5 * errors[1]
    assert abs(gaps[0] - gaps[1]) < 4 * np.hypot(*errors)


@pytest.mark.parametrize("constraint", ["free", pytest.param("sphere", marks=pytest.mark.slow)])
def test_giant_steps(constraint, check_mean):
    """Three steps of 800 samples at d = 400: the map for fresh ones, the theory of reused samples for the same ones."""
    options = {"layers": tl.Both(0.7), "weight_decay": 0.1, "constraint": constraint}
    problem = erf_problem(400)
    for training, theory, simulation in (
        (tl.SGD(1.0, batch_size=800, **options), tl.BatchMap(), tl.OverlapSGD()),
        (tl.SGD(1.0, reuse=tl.Reused(2.0), **options), tl.DMFT(samples=2**15), tl.DirectSGD()),
    ):
        until = float(training.clock(problem).time(3))
        expected = last(problem, training, theory, until)
        for name, sample in last(problem, training, simulation, until, 48).items():
            check_mean(sample, expected[name][0], f"{name} of {theory}")


def test_both_simulations_have_one_law(check_same_law):
    """Ten steps at d = 20 on the weights and by the overlaps, 2000 runs each."""
    training, problem = tl.SGD(3.0, layers=tl.Both(0.7)), erf_problem(20)
    until = float(training.clock(problem).time(10))
    first, second = (
        last(problem, training, simulation, until, 2000) for simulation in (tl.DirectSGD(), tl.OverlapSGD())
    )
    for name in ("M", "Q", "a"):
        check_same_law(first[name], second[name], name)


@pytest.mark.parametrize("activation", ["square", "erf"])
def test_the_displacement_is_the_label(activation):
    """All averages and the covariance of the increments against 400,000 samples of the fields."""
    problem = tl.Problem(
        tl.Committee(2, activation),
        tl.Student(2, activation, [1.5, -0.5]),
        tl.Gaussian(100),
        start=(start := no_symmetry()),
        noise=0.2,
        loss=tl.Correlation(),
    )
    Q, M, a = np.asarray(start.Q), np.asarray(start.M), np.array([1.5, -0.5])
    result = tl.moments(problem, tl.Overlaps(Q, M, np.eye(2), a))
    rng = np.random.default_rng(0)
    n = 400_000
    fields = rng.standard_normal((n, 4)) @ np.linalg.cholesky(np.block([[Q, M], [M.T, np.eye(2)]])).T
    act = problem.student.activation
    lam, star = fields[:, :2], fields[:, 2:]
    s, slope, f = (
        np.asarray(x) for x in (act(jnp.asarray(lam)), act.derivative(jnp.asarray(lam)), act(jnp.asarray(star)))
    )
    f = f.mean(axis=1)
    y = f + np.sqrt(0.2) * rng.standard_normal(n)
    samples = {
        "psi": slope[:, :, None] * star[:, None, :] * y[:, None, None],
        "phi_gf": slope[:, :, None] * lam[:, None, :] * y[:, None, None],
        "phi_hd": slope[:, :, None] * slope[:, None, :] * (y**2)[:, None, None],
        "chi": s * y[:, None],
        "excess_risk": 0.5 * (f - s @ a / 2) ** 2,
    }
    for name, sample in samples.items():
        error = sample.std(axis=0) / np.sqrt(n)
        assert np.all(np.abs(result[name].values - sample.mean(axis=0)) < 5 * error + result[name + "_error"].values), (
            name
        )


def test_covariances_of_increments_agree():
    """The closed form for squares against rules with points."""
    problem = phase_retrieval(0.4, d=100, noise=0.2)
    problem = tl.Problem(problem.target, problem.student, problem.inputs, problem.start, tl.Correlation(), 0.2)
    overlaps = tl.Overlaps(*(jnp.asarray(x) for x in ([[1.0]], [[0.4]], [[1.0]], [0.7])))
    with double():
        closed, points = (
            Auto(1e-8, engines).choose(problem, ("covariance",)).variants()[0].parts(problem, overlaps, ("covariance",))
            for engines in (("SquareUnits",), ("Quadrature",))
        )
        of = [increment_covariance(problem, tl.SGD(0.3), x["covariance"]) for x in (closed, points)]
    np.testing.assert_allclose(of[0], of[1], rtol=1e-6, atol=1e-6)


def test_formulas():
    """Phase retrieval on the sphere: dm/dt = 4 m (1 - m^2) - gamma m (6 + 24 m^2 + 2 Delta)."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), loss="correlation")
    m, gamma, noise = 0.3, 0.2, 0.5
    dM = tl.derive(problem, tl.SGD(0.1, constraint=tl.Sphere())).dM[0, 0]
    symbols = {str(symbol): symbol for symbol in dM.free_symbols}
    value = dM.subs({symbols["M_11"]: m, symbols["gamma"]: gamma, symbols["Delta"]: noise})
    assert float(value) == pytest.approx(4 * m * (1 - m**2) - gamma * m * (6 + 24 * m**2 + 2 * noise), rel=1e-12)


def test_the_risk_of_a_data_set_is_that_of_the_square_loss():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 5)), rng.standard_normal(30)
    problem = tl.Problem(tl.Labels(), tl.Student(1, "linear"), tl.Samples(X, y), loss="correlation")
    training = tl.SGD(0.1, reuse=tl.Reused(1.0))
    result = tl.evolve(problem, training, tl.DirectSGD(), until=3.0, save=2)
    # The length grows without end, which the square loss punishes and the correlation loss does not.
    assert result.risk.values[0, -1] > result.risk.values[0, 0] > 0.0
    other = tl.Problem(tl.Labels(), tl.Student(1, "linear"), tl.Samples(X, y))
    square = tl.evolve(other, training, tl.DirectSGD(), until=3.0, save=2)
    assert result.risk.values[0, 0] == square.risk.values[0, 0] > square.risk.values[0, -1]


def test_what_it_does_not_reach_is_refused():
    problem, training = erf_problem(100), tl.SGD(0.1)
    for description in (tl.MeanField(), tl.HDMF()):
        assert "describes the square loss, but" in description.applies(problem, training).statement
    samples = tl.Samples(np.eye(4)[:3], np.ones(3))
    lazy = tl.Problem(tl.Labels(), tl.Student(8, "relu"), samples, tl.AntisymmetricStart(), "correlation")
    with pytest.raises(tl.NotApplicable, match="square loss, but `problem"):
        tl.ntk(lazy, tl.SGD(0.1))
