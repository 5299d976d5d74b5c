"""Strips on Dask's workers: the numbers of one process, whatever the number of workers."""

from functools import cache

import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import GramProduct, gram

distributed = pytest.importorskip("distributed")


@pytest.fixture
def client():
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0", "set_as_default": False}
    with distributed.Client(n_workers=2, **options) as client:
        yield client


@pytest.mark.parametrize("keep", [True, False])
def test_products_are_those_of_one_process(client, keep, monkeypatch):
    monkeypatch.setattr("twolayer.kernel.products.STRIP", 700)
    X = 2.5 * unit(130, 7)
    V = np.random.default_rng(0).standard_normal((130, 3))
    product = GramProduct(X, "relu", client=client, keep=keep)
    assert product.is_kept == keep
    np.testing.assert_allclose(product(V), gram(X, "relu") @ V, atol=1e-12)
    once = product(V)
    assert np.array_equal(once, product(V))
    worker = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
    client.retire_workers([worker])
    assert np.array_equal(once, product(V))  # by the worker that is left


def test_few_samples_and_series_of_angles(client):
    X = unit(3, 2)
    np.testing.assert_allclose(GramProduct(X, "erf", client=client)(np.eye(3)), gram(X, "erf"), atol=1e-12)


def test_lazy_training_on_workers(client):
    X = unit(60, 5)
    problem = tl.Problem(tl.Labels(), tl.Student(8, "relu"), tl.Samples(X, np.sign(X[:, 0])))

    @cache
    def asked(**more):
        return tl.ntk(problem, steps=20, replicas=0, progress=False, **more)

    there, here = asked(client=client), asked(method="free", devices=0)
    assert there.attrs["method"] == "free" and "workers" in there.attrs["reason"]
    np.testing.assert_allclose(there.complexity, here.complexity, rtol=1e-9)
    np.testing.assert_allclose(there.predicted_residual, here.predicted_residual, rtol=1e-9)
    with pytest.raises(tl.InvalidInput, match="client"):
        tl.ntk(problem, steps=20, replicas=0, method="exact", client=client)
