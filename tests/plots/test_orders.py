"""Distances against sizes: slopes, lines of the expected order, what is refused."""

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots

SIZES = np.array([10, 20, 40, 80])
HALF = plots.Distances("rms", SIZES, 3.0 * SIZES**-0.5, np.full(4, 1e-3), -0.5)


def test_the_slope_is_that_of_the_logarithms():
    assert HALF.slope == pytest.approx(-0.5)
    # A point that is known to nothing has no say.
    values, errors = SIZES**-1.0, np.full(4, 1e-4)
    values[3], errors[3] = 1.0, 100.0
    assert plots.Distances("mean", SIZES, values, errors).slope == pytest.approx(-1.0, abs=1e-3)


def test_panels_show_points_and_the_expected_order():
    figure = plots.convergence({("SaadSolla", "d"): [HALF], ("HDMF", "p"): [HALF], ("SDE", "d"): [HALF]})
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == ["SaadSolla", "HDMF", "SDE"]
    line = next(line for line in shown[0].lines if line.get_linestyle() == "-")
    np.testing.assert_allclose(line.get_ydata(), HALF.values)
    assert "slope $-0.50$" in shown[0].get_legend().get_texts()[0].get_text()


def test_what_is_no_distance_is_refused():
    with pytest.raises(tl.InvalidInput, match="`panels` must hold lists of `Distances`"):
        plots.convergence({})
