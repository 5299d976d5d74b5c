"""Optimal learning rates against closed formulas, finite differences and runs."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import twolayer as tl
from tests.systems import phase_retrieval, time_to_overlap


def phase(m0, noise=0.0, d=10**6):
    return phase_retrieval(m0, d=d, noise=noise), tl.SGD(0.03, constraint=tl.Sphere())


def test_phase_retrieval_finds_the_closed_optimum():
    """Against the closed escape time; and from a tiny overlap within the next order of 1/(12 + noise)."""
    m0, m1, noise = 1e-4, 0.1, 0.5
    problem, training = phase(m0, noise)

    def samples(gamma):
        return time_to_overlap(m0, m1, gamma, noise) / gamma

    exact = minimize_scalar(samples, bounds=(0.01, 0.15), method="bounded", options={"xatol": 1e-10})
    found = tl.optimise(problem, training, risk_threshold=2 * (1 - m1**2))
    np.testing.assert_allclose(found.value, exact["fun"], rtol=1e-7)
    np.testing.assert_allclose(found.rates[0], exact["x"], rtol=1e-4)  # a minimum is flat
    assert abs(found.rates[0] * (12 + noise) - 1) < 0.02
    assert isinstance(found.training, tl.SGD)


@pytest.mark.slow
def test_a_schedule_is_better_than_the_best_constant_rate_and_does_what_it_says():
    """With label noise a rate that falls leaves a lower risk; the ODE of the schedule ends at the value promised."""
    problem = tl.Problem(
        tl.Committee(1, "erf"),
        tl.Student(1, "erf"),
        tl.Gaussian(1000),
        start=tl.GivenOverlaps([[0.5]], [[0.1]]),
        noise=0.5,
    )
    n = 30 * problem.d
    found = tl.optimise(problem, tl.SGD(1.0), samples=n, pieces=2)
    assert found.value < 0.8 * found.constant_value
    assert np.all(np.diff(found.rates) < 0)
    clock = found.training.clock(problem)
    until = float(clock.time(int(n)))
    result = tl.evolve(problem, found.training, tl.SaadSolla(), until=until, save=[until])
    np.testing.assert_allclose(float(result.excess_risk[0, -1]), found.value, rtol=1e-2)  # switches move to whole steps
    constant = tl.SGD(found.constant_rate)
    until = float(constant.clock(problem).time(n))
    result = tl.evolve(problem, constant, tl.SaadSolla(), until=until, save=[until])
    np.testing.assert_allclose(float(result.excess_risk[0, -1]), found.constant_value, rtol=1e-6)
    # At an optimum no rate can be moved for the better.
    for piece in range(2):
        for factor in (0.8, 1.25):
            rates = found.rates.copy()
            rates[piece] *= factor
            moved = tl.Schedule([tl.SGD(rate) for rate in rates], np.cumsum(rates * found.spans)[:-1].tolist())
            end = float(moved.clock(problem).time(n))
            risk = float(tl.evolve(problem, moved, tl.SaadSolla(), until=end, save=[end]).excess_risk[0, -1])
            assert risk > found.value * (1 - 1e-3)


def test_what_cannot_be_optimised_is_refused():
    problem, training = phase(0.1)
    with pytest.raises(tl.InvalidInput, match="Exactly one"):
        tl.optimise(problem, training)
    with pytest.raises(tl.NotApplicable, match="momentum"):
        tl.optimise(problem, tl.SGD(0.05, momentum=0.5), samples=1e6)
