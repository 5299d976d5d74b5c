"""The kernels on a GPU against XLA on the same machine: the same random numbers, so the same weights to rounding."""

import jax
import numpy as np
import pytest

import twolayer as tl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() == "cpu", reason="there is no GPU"),
]

CHOICES = [
    {},
    {"constraint": tl.Sphere(), "layers": tl.Both(0.7)},
    {"momentum": 0.5, "weight_decay": 0.2},
]


def both(problem, training, native, xla, **ask):
    return [tl.evolve(problem, training, each, until=2.0, save=3, replicas=200, **ask) for each in (native, xla)]


@pytest.mark.parametrize("choices", CHOICES)
def test_the_overlap_kernel_follows_xla(choices):
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(100), noise=0.1)
    training = tl.SGD(1.0, **choices)
    kernel, xla = both(problem, training, tl.OverlapSGD(), tl.OverlapSGD(backend="xla"), overlap_threshold=0.5)
    assert "GPU kernel" in kernel.attrs["engine"] and "xla" in xla.attrs["engine"]
    for name in ("Q", "M", "a"):
        np.testing.assert_allclose(kernel[name].values, xla[name].values, atol=1e-5)


@pytest.mark.parametrize("d", [103, 4099])  # weights within the registers of one multiprocessor, and beyond them
@pytest.mark.parametrize("choices", CHOICES)
def test_the_kernel_on_the_weights_follows_xla(choices, d):
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf"), tl.Gaussian(d), noise=0.1)
    training = tl.SGD(1.0, **choices)
    kernel, xla = both(problem, training, tl.DirectSGD(backend="native"), tl.DirectSGD(backend="xla"))
    assert "GPU kernel" in kernel.attrs["engine"] and "xla" in xla.attrs["engine"]
    for name in ("Q", "M", "a"):
        np.testing.assert_allclose(kernel[name].values, xla[name].values, atol=1e-5)


@pytest.mark.parametrize("choices", CHOICES)
def test_the_kernel_on_batches_follows_xla(choices):
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(1000), noise=0.1)
    training, ask = tl.SGD(0.02, batch_size=100_003, **choices), {"until": 5.0, "save": 3, "replicas": 2}
    kernel, xla = (tl.evolve(problem, training, tl.OverlapSGD(backend=b), **ask) for b in ("auto", "xla"))
    assert "GPU kernel" in kernel.attrs["engine"] and "GPU" not in xla.attrs["engine"]
    for name in ("Q", "M", "a"):
        np.testing.assert_allclose(kernel[name].values, xla[name].values, rtol=1e-9, atol=1e-9)


def test_gradients_of_noisy_labels_are_single_in_the_kernel():
    """The same paths to rounding, and the same means as another seed in double precision, to five standard errors."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(100), noise=0.1)
    training, double = tl.SGD(1.0), tl.OverlapSGD(gradients="double")
    single, same = both(problem, training, tl.OverlapSGD(), double)
    assert "single precision" in single.attrs["engine"] and "single" not in same.attrs["engine"]
    for name in ("Q", "M", "a"):
        np.testing.assert_allclose(single[name].values, same[name].values, atol=1e-5)
    ask = {"until": 20.0, "save": 2, "replicas": 200_000}
    start = tl.GivenOverlaps(np.eye(4) + 0.1, np.linspace(-0.2, 0.3, 8).reshape(4, 2))
    fixed = tl.Problem(problem.target, problem.student, problem.inputs, start=start, noise=0.1)
    one, other = (
        tl.evolve(fixed, training, description, seed=seed, **ask)
        for description, seed in ((tl.OverlapSGD(), 1), (double, 2))
    )
    for name in ("Q", "M"):
        x, y = (np.asarray(result[name].values[:, -1]) for result in (one, other))
        error = np.sqrt((x.var(axis=0) + y.var(axis=0)) / len(x))
        assert np.max(np.abs(x.mean(axis=0) - y.mean(axis=0)) / error) < 5.0


def test_without_noise_the_kernel_takes_double_precision():
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(100))
    result = tl.evolve(problem, tl.SGD(1.0), tl.OverlapSGD(), until=1.0, save=2, replicas=100)
    assert "GPU kernel" in result.attrs["engine"] and "single" not in result.attrs["engine"]
