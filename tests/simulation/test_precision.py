"""Gradients of samples in single precision: the same paths to rounding, and a floor where labels have no noise."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.simulation.overlap import gradients

ERF = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf"), tl.Gaussian(100), noise=0.1)


def run(problem, training, precision, **ask):
    return tl.evolve(problem, training, tl.OverlapSGD(backend="xla", gradients=precision), progress=False, **ask)


@pytest.mark.parametrize("choices", [{}, {"constraint": tl.Sphere(), "layers": tl.Both(0.7)}])
def test_paths_are_those_of_double_precision_to_rounding(choices):
    """The random numbers are the same, so that the paths differ by the rounding of gradients only."""
    ask = {"until": 2.0, "save": 3, "replicas": 50}
    double, single = (run(ERF, tl.SGD(1.0, **choices), precision, **ask) for precision in ("double", "single"))
    assert "single precision" in single.attrs["engine"] and "single" not in double.attrs["engine"]
    for name in ("Q", "M", "a"):
        np.testing.assert_allclose(single[name].values, double[name].values, atol=1e-5)
    assert np.any(single.M.values != double.M.values)


def test_a_residual_below_the_rounding_of_single_precision_is_lost():
    """So that `auto` takes double precision without noise: near recovery the residual is such a small difference."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(10))
    target = jnp.array([0.3, -0.7])
    double = gradients(problem, target + 1e-9, target, jnp.ones(2), 0.0)[0]
    single = gradients(problem, *(x.astype(jnp.float32) for x in (target + 1e-9, target, jnp.ones(2))), 0.0)[0]
    assert np.all((np.asarray(double) > 1e-10) & (np.asarray(double) < 1e-9)) and np.all(np.asarray(single) == 0.0)


def test_a_cpu_takes_double_precision_unless_told_otherwise():
    for problem in (ERF, tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf"), tl.Gaussian(100))):
        result = tl.evolve(problem, tl.SGD(1.0), tl.OverlapSGD(), until=0.1, save=2, progress=False)
        assert "single" not in result.attrs["engine"]
