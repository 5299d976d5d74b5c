"""Flows that share a program: they have the numbers that each has alone, whatever other flows are solved with it."""

import numpy as np
import pytest

import twolayer as tl
from tests.simulation.test_batches import assert_independent, assert_same, cells_of
from tests.systems import erf_committee, phase_retrieval, squared_overlap, time_to_overlap
from twolayer.ask import Ask
from twolayer.core.precision import double
from twolayer.description import Status


def erf_units():
    """Both layers from random starts, with noise, rates, weight decay, ratios, times and dimensions of their own."""
    numbers = ((100, 0.5, 0.1, 0.3), (1000, 1.5, 0.2, 1.0), (50, 0.2, 0.2, 2.0))
    settings = [
        (erf_committee(2, d=d, noise=noise), tl.SGD(rate, layers=tl.Both(ratio=ratio), weight_decay=0.01 * ratio))
        for d, rate, noise, ratio in numbers
    ]
    return settings, [Ask(until=until, save=5, replicas=2, risk_threshold=0.05) for until in (1.0, 2.0, 3.0)]


def squares():
    """On the sphere with momentum; numbers of plans that differ, and a cell that stops at its threshold."""
    settings = [
        (phase_retrieval(m, noise=0.1), tl.SGD(rate, constraint="sphere", momentum=0.5))
        for m, rate in ((0.3, 0.02), (0.5, 0.04), (0.3, 0.01))
    ]
    options = {"overlap_threshold": 0.7, "risk_threshold": 0.6}
    return settings, [Ask(until=1.0, save=save, **options) for save in (3, 4, 3)]


def polynomials():
    """Noise enters the tables of the engine."""
    settings = [
        (tl.Problem(tl.Committee(1, "he3"), tl.Student(2, "he3"), tl.Gaussian(100), noise=noise), tl.SGD(rate))
        for noise, rate in ((0.1, 0.1), (0.3, 0.05))
    ]
    return settings, [Ask(until=0.3, save=3)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("make", [erf_units, squares, polynomials])
def test_flows_have_the_numbers_that_each_has_alone(make):
    settings, asks = make()
    description = tl.SaadSolla()
    with double():
        cells = cells_of(settings, asks, in_steps=False)
        assert len({description.batch_key(*cell[:2]) for cell in cells}) == 1
        for record, cell in zip(assert_independent(description, cells), cells, strict=True):
            assert_same(record, description.run(*cell), rtol=1e-9)


def test_flows_follow_the_exact_solution_and_diverge_by_themselves():
    """Phase retrieval at three rates, and one at which the weights of a free student grow without bound."""
    rates = (0.01, 0.05, 0.1)
    settings = [(phase_retrieval(0.2), tl.SGD(rate, constraint="sphere")) for rate in rates]
    ask = Ask(until=1.0, save=4, overlap_threshold=0.3)
    with double():
        records = assert_independent(tl.SaadSolla(), cells_of(settings, [ask] * 3, in_steps=False))
        free = [(phase_retrieval(0.2), tl.SGD(rate)) for rate in (0.05, 10.0)]
        status = [x.status[0] for x in tl.SaadSolla().run_batch(cells_of(free, [ask] * 2, in_steps=False))]
    for rate, record in zip(rates, records, strict=True):
        exact = squared_overlap(0.2, rate, 0.0, ask.times())
        np.testing.assert_allclose(record.M[0, :, 0, 0] ** 2, exact, rtol=1e-8)
        np.testing.assert_allclose(record.overlap_time[0, 0], time_to_overlap(0.2, 0.3, rate, 0.0), rtol=1e-6)
    assert status == [Status.DONE, Status.DIVERGED]


def test_numbers_share_a_flow_and_structure_does_not():
    description, training = tl.SaadSolla(), tl.SGD(0.5)
    key = description.batch_key(erf_committee(2), training)
    assert key == description.batch_key(erf_committee(2, d=500), tl.SGD(0.7))
    others = [
        description.batch_key(erf_committee(2, noise=0.1), training),
        description.batch_key(erf_committee(2), tl.SGD(0.5, layers="both")),
        description.batch_key(erf_committee(2), tl.SGD(0.5, momentum=0.1)),
        description.batch_key(erf_committee(3), training),
        tl.SaadSolla(rtol=1e-8).batch_key(erf_committee(2), training),
        tl.SaadSolla(variance=False).batch_key(erf_committee(2), training),
    ]
    assert len({key, *others}) == 1 + len(others)
    assert description.batch_key(erf_committee(2), tl.SGD(0.5, reuse=tl.Repeated(2))) is None
