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


@pytest.mark.parametrize("choices", CHOICES)
def test_the_kernel_on_the_weights_follows_xla(choices):
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf"), tl.Gaussian(103), noise=0.1)
    training = tl.SGD(1.0, **choices)
    kernel, xla = both(problem, training, tl.DirectSGD(backend="native"), tl.DirectSGD(backend="xla"))
    assert "GPU kernel" in kernel.attrs["engine"] and "xla" in xla.attrs["engine"]
    for name in ("Q", "M", "a"):
        np.testing.assert_allclose(kernel[name].values, xla[name].values, atol=1e-5)
