"""The flow of units in the plane of (m, q): the right numbers at the right places, all kinds of results."""

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots
from twolayer.plots import cloud as module


@pytest.fixture(scope="module")
def wide():
    problem = tl.Problem(tl.Committee(1, "erf", P=[[2.25]]), tl.Student(8, "erf"), tl.Gaussian(50))
    return tl.evolve(problem, tl.SGD(0.1), tl.HDMF(particles=24), until=4.0, save=7)


def test_particles_are_pooled_over_replicas_at_each_time(wide):
    cloud = module.ParticleCloud(wide, 0)
    assert cloud.m.shape == cloud.q.shape == (wide.sizes["time"], 24 * wide.sizes["replica"])
    np.testing.assert_array_equal(np.sort(cloud.m[3]), np.sort(wide.particle_M.values[:, 3].ravel()))
    np.testing.assert_array_equal(np.sort(cloud.q[3]), np.sort(wide.particle_q.values[:, 3].ravel()))
    assert cloud.target == 2.25


def test_units_of_any_run_are_what_is_outside_of_the_span(wide):
    own = wide.drop_vars(["particle_a", "particle_M", "particle_q"])
    cloud = module.ParticleCloud(own, 0)
    # The first particles are the student's own units.
    np.testing.assert_allclose(cloud.m[2], wide.particle_M.values[0, 2, :8, 0], atol=1e-12)
    np.testing.assert_allclose(cloud.q[2], wide.particle_q.values[0, 2, :8], atol=1e-12)


def test_panels_show_the_times_asked_for(wide):
    figure = plots.flow(wide, times=[0.0, 4.0])
    first, last = figure.axes
    assert first.get_title() == "$t=0$" and last.get_title() == "$t=4$"
    points = last.lines[0].get_xydata()
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(wide.particle_M.values[0, -1, :, 0]))
    assert 3 <= len(plots.flow(wide).axes) <= module.PANELS


def test_many_units_are_a_density_that_counts_each_once(wide, monkeypatch):
    monkeypatch.setattr(module, "MANY", 10)
    ax = plots.flow(wide, times=[1.0]).axes[0]
    assert np.ma.sum(ax.collections[0].get_array()) == 24


def test_the_movie_has_a_frame_for_each_time(wide, tmp_path):
    from PIL import Image

    path = plots.flow_movie(wide, tmp_path / "flow")
    assert path == tmp_path / "flow.gif"
    with Image.open(path) as movie:
        assert getattr(movie, "n_frames", 1) == wide.sizes["time"]


def test_what_cannot_be_shown_is_refused(wide):
    with pytest.raises(tl.InvalidInput, match="`direction` must be an integer from 0 to 0"):
        plots.flow(wide, direction=1)
    with pytest.raises(tl.InvalidInput, match="`result` must be the dataset of one description"):
        module.ParticleCloud({"HDMF": wide}, 0)
