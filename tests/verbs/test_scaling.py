"""Exponents of power laws: known ones are found, intervals cover them, and the frontier is that of its envelope."""

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from twolayer.analyses.scaling.fit import OPERATIONS


def problem(p=1, d=200):
    return tl.Problem(tl.SingleIndex("linear"), tl.Student(p, "linear"), tl.Gaussian(d))


def made(risk, samples, description="OverlapSGD", exactness="exact at finite d", **axes):
    """A result with given risks (axes..., replicas, times)."""
    names = list(axes)
    attributes = {"description": description, "exactness": exactness, "kind": "sweep" if axes else "trajectory"}
    attributes["spec"] = '{"problem":{"inputs":{"d":100},"student":{"p":3}}}'
    coordinates = {"time": samples / 100.0, "samples": ("time", samples), **axes}
    return xr.Dataset({"excess_risk": ((*names, "replica", "time"), risk)}, coordinates, attributes)


@pytest.mark.parametrize("exponent", [-1.3, -0.5, 0.25])
def test_a_pure_power_has_its_exponent(exponent):
    x = np.geomspace(10.0, 1e5, 30)
    found = tl.scaling(made((2.0 * x**exponent)[None], x))
    assert float(found.exponent[0]) == pytest.approx(exponent, abs=1e-10)
    assert float(found.prefactor[0]) == pytest.approx(2.0, rel=1e-9)
    np.testing.assert_allclose(found.local_exponent.values[0], exponent, atol=1e-10)
    np.testing.assert_allclose(found.window.values[0], [10.0**3, 1e5], rtol=0.22)  # a grid point near the middle
    by_time = tl.scaling(made((2.0 * x**exponent)[None], x), "time", window=(1.0, 100.0))
    assert float(by_time.exponent[0]) == pytest.approx(exponent, abs=1e-10)


def test_intervals_cover_the_exponent():
    """Each replica has an exponent of its own; over 60 sets of 12 the 95% intervals cover it 51 times or more.

    Fewer than 51 of 60 has a chance of 0.1% at 95%; the interval is widened for the small number of replicas.
    """
    rng, x = np.random.default_rng(0), np.geomspace(10.0, 1e4, 12)
    drawn = x ** (-0.7 + 0.04 * rng.standard_normal((20_000, 1)))
    grid = np.geomspace(10.0, 1e4, 48)
    truth = np.polyfit(np.log(grid), np.interp(np.log(grid), np.log(x), np.log(np.mean(drawn, axis=0))), 1)[0]
    covered = 0
    for _ in range(60):
        slopes = -0.7 + 0.04 * rng.standard_normal((12, 1))
        found = tl.scaling(made(x**slopes, x), window=(10.0, 1e4), bootstrap=200)
        covered += float(found.exponent_low[0]) <= truth <= float(found.exponent_high[0])
    assert covered >= 51


def test_the_frontier_of_two_powers():
    r"""Risk :math:`p^{-1} + p / n` has, by calculus, the least risk at a budget :math:`C = 6 d p n` for :math:`p \sim
    C^{1/3}`, where the risk is :math:`C^{-1/3}` up to a factor; widths are a grid of steps of 1.3."""
    widths = np.unique(np.round(1.3 ** np.arange(2, 28))).astype(int)
    n = np.geomspace(10.0, 1e9, 200)
    risk = np.array([1.0 / p + p / n for p in widths])[:, None, :]
    found = tl.scaling(made(risk, n, p=widths), "compute", window=(OPERATIONS * 1e5, OPERATIONS * 1e9))
    best = found.sel(curve="frontier")
    assert float(best.exponent) == pytest.approx(-1 / 3, abs=0.02)
    assert float(found.width_exponent) == pytest.approx(1 / 3, abs=0.03)
    by_width = tl.scaling(made(risk, n, p=widths), "p", window=(2, 100))
    assert float(by_width.exponent[0]) == pytest.approx(-1.0, abs=1e-3)


def test_theory_stands_beside_the_measurement(tmp_path):
    """A linear student of one unit learns exponentially in time, -2 + gamma: slope in the logarithm times time."""
    tree = tl.compare(problem(), tl.SGD(0.1), ["OverlapSGD", "SaadSolla"], until=3.0, save="log:30", replicas=16)
    found = tl.scaling(tree, "time", window=(0.5, 3.0))
    assert found.attrs["judge"] == "OverlapSGD" and found.attrs["outcome"] == "agrees"
    assert "SaadSolla agrees" in found.attrs["verdict"] and "bootstrap" in str(tl.summary(found))
    local = found.sel(curve="SaadSolla").local_exponent.values / found.sel(curve="SaadSolla").x.values
    np.testing.assert_allclose(local[20:-1], -1.9, rtol=0.03)  # save points are interpolated
    tl.save(found, tmp_path / "scaling.nc")
    assert tl.load(tmp_path / "scaling.nc").identical(found)


def test_bad_input():
    x = np.geomspace(10.0, 1e5, 30)
    result = made(1.0 / x[None], x)
    with pytest.raises(tl.InvalidInput, match="at least 3 points of every curve, but 1e\\+07 to 1e\\+08 has 0"):
        tl.scaling(result, window=(1e7, 1e8))
    with pytest.raises(tl.InvalidInput, match="two increasing positive numbers"):
        tl.scaling(result, window=(10.0, 1.0))
    with pytest.raises(tl.InvalidInput, match="`against` is 'width'"):
        tl.scaling(result, "width")
    with pytest.raises(tl.InvalidInput, match="must be what `evolve`, `compare` or `sweep` returned"):
        tl.scaling(xr.Dataset())
    with pytest.raises(tl.InvalidInput, match="at least 3 points with positive x"):
        tl.scaling(made(1.0 / x[None, :2], x[:2]))
