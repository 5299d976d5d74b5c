"""Optimal learning rates against closed formulas, finite differences and runs."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import twolayer as tl
from tests.systems import phase_retrieval, time_to_overlap


def phase(m0, noise=0.0, d=10**6):
    return phase_retrieval(m0, d=d, noise=noise), tl.SGD(0.03, constraint=tl.Sphere())


def test_phase_retrieval_finds_the_closed_optimum(tmp_path):
    """Against the closed escape time; and from a tiny overlap within the next order of 1/(12 + noise)."""
    m0, m1, noise = 1e-4, 0.1, 0.5
    problem, training = phase(m0, noise)

    def samples(gamma):
        return time_to_overlap(m0, m1, gamma, noise) / gamma

    exact = minimize_scalar(samples, bounds=(0.01, 0.15), method="bounded", options={"xatol": 1e-10})
    told = []
    optimum = tl.optimise(problem, training, risk_threshold=2 * (1 - m1**2), progress=lambda *both: told.append(both))
    search = [fraction for name, fraction in told if name == "one learning rate"]
    assert search[0] == 0.0 and search[-1] == 1.0 and search == sorted(search) and len(set(search)) > 3
    assert told[-1] == ("errors", 1.0)
    np.testing.assert_allclose(float(optimum.value), exact["fun"], rtol=1e-7)
    assert abs(float(optimum.value) - exact["fun"]) < float(optimum.value_error) < 1e-5 * exact["fun"]
    np.testing.assert_allclose(optimum.rate.values[0], exact["x"], rtol=1e-4)  # a minimum is flat
    assert abs(optimum.rate.values[0] * (12 + noise) - 1) < 0.02
    best = tl.best_training(optimum)
    assert isinstance(best, tl.SGD) and best.learning_rate == optimum.rate.values[0] and best.is_spherical
    again = tl.load(tl.save(optimum, tmp_path / "optimum.nc"))
    assert again.identical(optimum) and tl.best_training(again).learning_rate == best.learning_rate
    text = tl.summary(again)
    assert f"learning rates {best.learning_rate:.6g}: " in text and "best constant rate" in text
    assert "samples over d until the excess risk" in text and optimum.attrs["kind"] == "optimum"
    assert all(variable.attrs["long_name"] for variable in optimum.data_vars.values())


@pytest.mark.long
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
    optimum = tl.optimise(problem, tl.SGD(1.0), samples=n, pieces=2)
    value, constant_value = float(optimum.value), float(optimum.constant_value)
    assert value < 0.8 * constant_value and float(optimum.value_error) < 1e-6 * value
    assert np.all(np.diff(optimum.rate.values) < 0)
    best = tl.best_training(optimum)
    assert isinstance(best, tl.Schedule)
    until = float(best.clock(problem).time(int(n)))
    result = tl.evolve(problem, best, tl.SaadSolla(), until=until, save=[until])
    np.testing.assert_allclose(float(result.excess_risk[0, -1]), value, rtol=1e-2)  # switches move to whole steps
    constant = tl.SGD(float(optimum.constant_rate))
    until = float(constant.clock(problem).time(n))
    result = tl.evolve(problem, constant, tl.SaadSolla(), until=until, save=[until])
    np.testing.assert_allclose(float(result.excess_risk[0, -1]), constant_value, rtol=1e-6)
    # At an optimum no rate can be moved for the better.
    for piece in range(2):
        for factor in (0.8, 1.25):
            rates = optimum.rate.values.copy()
            rates[piece] *= factor
            moved = tl.Schedule([tl.SGD(rate) for rate in rates], np.cumsum(rates * optimum.span.values)[:-1].tolist())
            end = float(moved.clock(problem).time(n))
            risk = float(tl.evolve(problem, moved, tl.SaadSolla(), until=end, save=[end]).excess_risk[0, -1])
            assert risk > value * (1 - 1e-3)


def test_what_cannot_be_optimised_is_refused():
    problem, training = phase(0.1)
    with pytest.raises(tl.InvalidInput, match="Exactly one"):
        tl.optimise(problem, training)
    with pytest.raises(tl.NotApplicable, match="rotations"):
        tl.optimise(problem, tl.SGD(0.05, method=tl.Adam()), samples=1e6)
    with pytest.raises(tl.NotApplicable, match="differentiates averages"):
        tl.optimise(problem, tl.SGD(0.05, method=tl.SignDescent()), samples=1e6)
    with pytest.raises(tl.InvalidInput, match="what `optimise` returned, but is a SGD"):
        tl.best_training(training)
