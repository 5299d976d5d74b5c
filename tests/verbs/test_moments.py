"""The public call for Gaussian averages: against Monte Carlo over the fields, and against the motion of SGD."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl

rng = np.random.default_rng(4)
ROWS = rng.normal(size=(4, 6)) / 2.5
OVERLAPS = tl.Overlaps(ROWS[:2] @ ROWS[:2].T, ROWS[:2] @ ROWS[2:].T, ROWS[2:] @ ROWS[2:].T, np.array([0.7, -1.2]))
NAMES = ("excess_risk", "chi", "psi", "phi_gf", "phi_hd")


def problem_of(activation, target) -> tl.Problem:
    return tl.Problem(target, tl.Student(2, activation), tl.Gaussian(50), noise=0.3)


COMMITTEE = problem_of("erf", tl.Committee(2, "erf", P=OVERLAPS.P))
FORMULA = problem_of("tanh", tl.MultiIndex("tanh(z1) + z1*z2", k=2))


def error_function(x):
    return jax.scipy.special.erf(x / 2**0.5)


@pytest.mark.parametrize(
    ("problem", "sigma", "function"),
    [
        (COMMITTEE, error_function, lambda z: error_function(z).mean(axis=0)),
        (FORMULA, jnp.tanh, lambda z: np.tanh(z[0]) + z[0] * z[1]),
    ],
)
def test_averages_are_those_of_samples(problem, sigma, function, check_mean):
    samples = rng.normal(size=(200_000, 6)) @ ROWS.T
    fields, target = samples[:, :2], samples[:, 2:]
    value, slope = (np.asarray(part) for part in jax.jvp(sigma, (fields,), (np.ones_like(fields),)))
    eps = np.asarray(function(target.T)) - (value * OVERLAPS.a).mean(axis=1)
    noisy = eps**2 + 0.3
    result = tl.moments(problem, OVERLAPS)
    assert result.attrs["kind"] == "moments" and set(NAMES) <= set(result)
    check_mean(0.5 * eps**2, result.excess_risk)
    check_mean(value * eps[:, None], result.chi)
    check_mean(slope[:, :, None] * target[:, None, :] * eps[:, None, None], result.psi)
    check_mean(slope[:, :, None] * fields[:, None, :] * eps[:, None, None], result.phi_gf)
    check_mean(slope[:, :, None] * slope[:, None, :] * noisy[:, None, None], result.phi_hd)
    for name in NAMES:
        assert result[name].dims == result[f"{name}_error"].dims
        assert float(result[f"{name}_error"].max()) < 1e-4


def test_along_a_trajectory_they_are_those_at_its_points_and_move_it():
    start = tl.GivenOverlaps([[0.8]], [[0.3]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), start=start)
    run = tl.evolve(problem, tl.SGD(1e-6), tl.SaadSolla(), until=1e-4, save=3)
    along = tl.moments(problem, run)
    assert along.psi.dims == ("replica", "time", "i", "r") and along.attrs["kind"] == "moments along a trajectory"
    last = run.isel(replica=0, time=-1)
    there = tl.moments(problem, tl.Overlaps(last.Q.values, last.M.values, run.P.values, last.a.values))
    for name in NAMES:
        np.testing.assert_allclose(along[name].isel(replica=0, time=-1), there[name], rtol=1e-12)
    np.testing.assert_allclose(along.excess_risk, run.excess_risk, rtol=1e-9)
    speed = float(run.M[0, -1, 0, 0] - run.M[0, 0, 0, 0]) / 1e-4
    assert speed == pytest.approx(float(along.psi.mean()), rel=1e-3)


def test_some_of_them_are_computed_alone_saved_and_summarised(tmp_path):
    result = tl.moments(COMMITTEE, OVERLAPS, wanted=["psi"])
    assert set(result.data_vars) == {"psi", "psi_error"}
    tl.save(result, tmp_path / "moments.nc")
    assert tl.load(tmp_path / "moments.nc").psi.equals(result.psi)
    assert "psi[1,0]" in str(tl.summary(result))
    assert tl.moments(COMMITTEE).attrs["engine"] == result.attrs["engine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wanted": ["psy"]}, "`wanted` names 'psy'"),
        ({"wanted": []}, "at least one"),
        ({"overlaps": 3}, "`overlaps` must be"),
        ({"overlaps": tl.Overlaps(np.eye(3), np.eye(3), np.eye(3), np.ones(3))}, "`Q` of `overlaps` must have shape"),
        ({"overlaps": tl.Overlaps(np.eye(2), 2 * np.eye(2), np.eye(2), np.ones(2))}, "positive semi-definite"),
        ({"overlaps": tl.Overlaps(np.nan * np.eye(2), np.eye(2), np.eye(2), np.ones(2))}, "finite"),
        ({"points": 3}, "no argument 'points'"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message):
    with pytest.raises(tl.InvalidInput, match=message):
        tl.moments(COMMITTEE, **arguments)
