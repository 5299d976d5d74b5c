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


def test_products_of_a_batch_in_single_precision():
    """Twenty steps with the same random numbers, in parts: their rounding is far below the scatter between runs."""
    weights = 8 * np.arange(1.0, 9.0) ** -1.0
    start = tl.GivenOverlaps(np.eye(4), 0.1 * np.random.default_rng(0).standard_normal((4, 8)))
    target = tl.Committee(8, "square", second_layer=weights)
    problem = tl.Problem(target, tl.Student(4, "square"), tl.Gaussian(50_000), start=start)
    training = tl.SGD(0.3, batch_size=10_000)
    until = float(training.clock(problem).time(20)) * (1 + 1e-9)
    single, double = (
        tl.evolve(problem, training, tl.OverlapSGD(gradients=x), until=until, save=[until], replicas=3)
        for x in ("single", "double")
    )
    for name in ("Q", "M"):
        gap = np.abs(single[name].values - double[name].values).max()
        moved = np.abs(double[name].values[:, -1] - np.asarray(getattr(start, name))).max()
        assert 0.0 < gap < 1e-5 * moved
        assert gap < 1e-3 * double[name].values[:, -1].std(axis=0).max()
