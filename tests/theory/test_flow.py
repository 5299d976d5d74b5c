"""The runner of flows: thresholds are crossed at roots of the solution, whatever was saved, in every limit theory."""

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

import twolayer as tl

PROBLEM = tl.Problem(
    tl.PhaseRetrieval(),
    tl.Student(2, "square"),
    tl.Gaussian(300),
    start=tl.GivenOverlaps(Q=[[1.0, 0.1], [0.1, 0.8]], M=[[0.3], [-0.2]]),
)
THRESHOLDS = {"risk_threshold": 0.3, "overlap_threshold": 0.8}


SLOW = [pytest.param(tl.SaadSolla(), marks=pytest.mark.long), pytest.param(tl.MeanField(), marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.parametrize("description", [tl.HDMF(), *SLOW], ids=lambda d: type(d).__name__)
def test_crossings_are_roots_of_the_solution_and_not_save_points(description):
    few = tl.evolve(PROBLEM, tl.SGD(0.05), description, until=3.0, save=2, **THRESHOLDS)
    times = np.linspace(0.0, 3.0, 301)[1:]
    many = tl.evolve(PROBLEM, tl.SGD(0.05), description, until=3.0, save=times, **THRESHOLDS)
    lengths = np.sqrt(np.diagonal(many.Q.values[0], axis1=1, axis2=2))
    alignment = np.max(np.abs(many.M.values[0, :, :, 0]) / lengths, axis=1)
    curves = {"crossing_time": many.excess_risk.values[0] - 0.3, "overlap_time": alignment - 0.8}
    for name, curve in curves.items():
        spline = CubicSpline(many.time.values, curve)
        root = brentq(spline, 0.02, 2.9)
        located = float(few[name].values.ravel()[0])
        # The spline through 301 points is wrong by less than 1e-7 here; save points are 0.01 apart.
        assert located == pytest.approx(root, abs=1e-6)
        assert float(many[name].values.ravel()[0]) == pytest.approx(located, abs=1e-8)
