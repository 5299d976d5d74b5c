"""Single samples that are used several times in a row: the ODE against known numbers, both simulations and limits."""

import numpy as np
import pytest

import twolayer as tl
from tests.systems import erf_committee, no_symmetry


def two_units(activation: str, d: int) -> tl.Problem:
    return tl.Problem(
        tl.Committee(2, activation, second_layer=[2.0, -1.0]),
        tl.Student(2, activation, [2.0, 1.0]),
        tl.Gaussian(d),
        start=no_symmetry(),
        noise=0.1,
    )


def last(problem, training, description, until, replicas=1):
    return tl.evolve(problem, training, description, until=until, save=[until], replicas=replicas).isel(time=-1)


def test_look_ahead_has_the_known_solution():
    """A target of information exponent three, gamma = 1, rho = 2, noise 0.05, from m = 0.02: known to four digits."""
    problem = tl.Problem(
        tl.Hermite({3: 0.25}),
        tl.Student(1, "erf"),
        tl.Gaussian(800),
        start=tl.GivenOverlaps([[1.0]], [[0.02]]),
        noise=0.05,
    )
    result = last(problem, tl.SGD(1.0, reuse=tl.LookAhead(2.0)), tl.SaadSolla(), 3.0)
    error = result.overlap_error.item()
    assert error < 3e-3
    assert abs(result.M.item() + 0.0040) < error and abs(result.Q.item() - 0.4906) < error
    once = last(problem, tl.SGD(1.0), tl.SaadSolla(), 3.0)
    assert (once.M.item(), once.Q.item()) == pytest.approx((0.0102, 0.6345), abs=1e-4)


SETTINGS = {
    "three times, both layers": (
        "erf",
        tl.SGD(1.0, reuse=tl.Repeated(3), layers=tl.Both(0.7), weight_decay=0.05),
        tl.OverlapSGD(),
    ),
    "ascent, sphere": ("tanh", tl.SGD(1.0, reuse=tl.LookAhead(-2.0), constraint=tl.Sphere()), tl.OverlapSGD()),
    "twice, kinks": ("relu", tl.SGD(0.6, reuse=tl.Repeated(2)), tl.DirectSGD()),
    "second layer alone": ("erf", tl.SGD(1.0, reuse=tl.Repeated(2), layers=tl.Second(0.5)), tl.OverlapSGD()),
}
QUICK = ("twice, kinks",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]
)
def test_simulations_follow_it(name):
    """d = 1000, 64 runs: within 4 standard errors, the error of the averages, and a shift of 1/d; once is elsewhere."""
    activation, training, simulation = SETTINGS[name]
    problem = two_units(activation, 1000)
    theory = last(problem, training, tl.SaadSolla(), 1.0)
    fresh = last(problem, tl.SGD(training.learning_rate, layers=training.layers), tl.SaadSolla(), 1.0)
    runs = last(problem, training, simulation, 1.0, 64)
    distances = []
    for variable in ("Q", "M", "a"):
        sample, expected = runs[variable].values, theory[variable].values[0]
        error = sample.std(axis=0, ddof=1) / 8.0
        assert np.all(np.abs(sample.mean(axis=0) - expected) < 4 * error + theory.overlap_error.item() + 2 / 1000)
        distances.append(np.max(np.abs(sample.mean(axis=0) - fresh[variable].values[0]) / (error + 1e-3)))
    assert max(distances) > 10


@pytest.mark.long
def test_the_gap_is_of_order_one_over_d():
    """One erf unit used twice, 20,000 runs at each d: d times the gap of Q is one number, and not zero."""
    gaps, errors = [], []
    for d in (50, 200):
        problem = tl.Problem(
            tl.SingleIndex("erf"), tl.Student(1, "erf"), tl.Gaussian(d), tl.GivenOverlaps([[1.0]], [[0.3]]), noise=0.2
        )
        training = tl.SGD(1.0, reuse=tl.Repeated(2))
        theory, runs = (
            last(problem, training, description, 1.0, n)
            for description, n in ((tl.SaadSolla(), 1), (tl.OverlapSGD(), 20_000))
        )
        Q = runs.Q.values.ravel()
        gaps.append(d * (Q.mean() - theory.Q.item()))
        # The reported error of the averages is eight standard errors.
        errors.append(d * np.hypot(Q.std() / np.sqrt(Q.size), theory.overlap_error.item() / 8.0))
    assert abs(gaps[0]) > 5 * errors[0]
    assert abs(gaps[0] - gaps[1]) < 4 * np.hypot(*errors) + 0.1 * abs(gaps[0])


@pytest.mark.parametrize("reuse", [tl.Repeated(1), pytest.param(tl.LookAhead(0.0), marks=pytest.mark.slow)])
def test_a_sample_that_is_used_once_is_fresh(reuse):
    problem, training = two_units("erf", 1000), tl.SGD(1.5, reuse=reuse, layers=tl.Both(0.5))
    result, fresh = (last(problem, way, tl.SaadSolla(), 0.5) for way in (training, tl.SGD(1.5, layers=tl.Both(0.5))))
    error = result.overlap_error.item()
    assert error < 5e-3
    for variable in ("Q", "M", "a"):
        np.testing.assert_allclose(result[variable].values, fresh[variable].values, atol=error)


def test_what_it_does_not_describe_is_refused():
    problem = erf_committee(d=100)

    def reason(training: tl.SGD, problem: tl.Problem = problem) -> str:
        answer = tl.SaadSolla().applies(problem, training)
        assert not answer.ok
        return answer.statement

    again = tl.SGD(0.5, reuse=tl.Repeated(2))
    assert "fresh batches" in reason(tl.SGD(0.5, batch_size=4, reuse=tl.Repeated(2)))
    assert "without momentum" in reason(tl.SGD(0.5, reuse=tl.LookAhead(1.0), momentum=0.5))
    squares = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
    assert "slope is bounded" in reason(again, squares)
    steep = tl.Problem(tl.Hermite({6: 0.1}), tl.Student(1, "erf"), tl.Gaussian(100))
    assert "beyond all points" in reason(again, steep)
    correlated = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(100), loss="correlation")
    assert "square loss" in reason(again, correlated)
    for description in (tl.SDE(), tl.BatchMap(), tl.MeanField(), tl.HDMF()):
        assert "fresh batches" in description.applies(problem, again).statement
    linear = tl.Problem(tl.SingleIndex("linear"), tl.Student(1, "linear"), tl.Gaussian(100))
    with pytest.raises(tl.NotApplicable, match="used once"):
        tl.derive(linear, again)
    with pytest.raises(tl.NotApplicable, match="used once"):
        tl.optimise(linear, again, samples=1000.0)
