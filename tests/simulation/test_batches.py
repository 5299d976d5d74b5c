"""Cells that share a program: they have the numbers that each has alone, whatever other cells are computed with it."""

from typing import NamedTuple

import numpy as np
import pytest
from jax.experimental import pallas

import twolayer as tl
from tests.systems import erf_committee, no_symmetry
from twolayer.ask import Ask, make_plan, make_plans
from twolayer.compiler import row_blocks
from twolayer.core import interrupts
from twolayer.core.precision import double
from twolayer.description import Cell, Record, Status
from twolayer.simulation import overlap_batch, overlap_sgd
from twolayer.simulation.overlap_batch import by_gpu_kernel


def square(d, noise=0.0, **options):
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), noise=noise, **options)


def cells_of(settings, asks, in_steps=True):
    """Cells of problems and trainings, each with its own ask."""
    problems, trainings = zip(*settings, strict=True)
    plans = make_plans(problems, trainings, asks, in_steps)
    return [Cell(*cell) for cell in zip(problems, trainings, plans, strict=True)]


def assert_same(x: Record, y: Record, rtol: float = 0.0):
    assert x.engine == y.engine
    for name, value in x._asdict().items():
        if isinstance(value, np.ndarray):
            other = np.asarray(getattr(y, name))
            assert value.shape == other.shape and value.dtype == other.dtype
            np.testing.assert_allclose(value, other, rtol=rtol, atol=rtol, err_msg=name)


def assert_independent(description, cells):
    """The cells in another order, and divided into several batches, have the same numbers, bit for bit."""
    records = description.run_batch(cells)
    order = np.random.default_rng(0).permutation(len(cells))
    again = description.run_batch([cells[place] for place in order])
    for place, record in zip(order, again, strict=True):
        assert_same(records[place], record)
    for record, cell in zip(records, cells, strict=True):
        assert_same(record, *description.run_batch([cell]))
    return records


class System(NamedTuple):
    settings: list
    asks: list
    description: tl.OverlapSGD = tl.OverlapSGD()


def on_the_sphere():
    """Exits of phase retrieval at several rates and dimensions: all replicas of some cells, a part of others."""
    settings = [(square(d), tl.SGD(rate, constraint="sphere")) for d, rate in ((80, 0.1), (300, 0.1), (110, 0.04))]
    options = {"replicas": 37, "risk_threshold": 0.5, "stop_at_threshold": True}
    return System(settings, [Ask(until=until, save=4, **options) for until in (4.0, 1.5, 1.0)])


def with_batches():
    """A cell whose rate is too large diverges alone."""
    settings = [
        (erf_committee(2, d=d, noise=0.1), tl.SGD(rate, batch_size=5, layers="both"))
        for d, rate in ((100, 0.5), (160, 2.0))
    ]
    diverging = (erf_committee(2, d=90, noise=0.1), tl.SGD(3e3, batch_size=5, layers="both"))
    asks = [Ask(until=until, save="linear:3", replicas=replicas) for until, replicas in ((1.0, 3), (2.0, 40), (3e4, 5))]
    return System([*settings, diverging], asks)


def with_velocity():
    """Noise, momentum, weight decay, both thresholds, and lengths of the start."""
    settings = [
        (
            tl.Problem(
                tl.Committee(2, "erf"),
                tl.Student(2, "erf"),
                tl.Gaussian(d),
                start=tl.RandomStart(norm=norm),
                noise=noise,
            ),
            tl.SGD(rate, momentum=0.5, weight_decay=0.01, layers=tl.Both(ratio=0.5)),
        )
        for d, rate, noise, norm in ((100, 0.5, 0.1, 1.0), (200, 1.0, 0.2, 0.5))
    ]
    options = {"save": 3, "replicas": 20, "risk_threshold": 0.2, "overlap_threshold": 0.3}
    return System(settings, [Ask(until=1.0, **options, stop_at_threshold="any"), Ask(until=2.0, **options, seed=3)])


def in_few_dimensions():
    """Dimensions with long polynomials of the chi variable, few replicas, and samples that are used again."""
    settings = [
        (erf_committee(2, d=d, start=no_symmetry()), tl.SGD(rate, reuse=tl.Repeated(2)))
        for d, rate in ((30, 0.5), (34, 0.7))
    ]
    return System(settings, [Ask(until=1.0, save=3, replicas=3)] * 2)


def on_arrays():
    settings, asks, _ = with_velocity()
    return System(settings, asks, tl.OverlapSGD(backend="xla"))


SLOW = [pytest.param(make, marks=pytest.mark.slow) for make in (with_velocity, in_few_dimensions, on_arrays)]


@pytest.mark.parametrize("make", [on_the_sphere, with_batches, *SLOW])
def test_cells_have_the_numbers_that_each_has_alone(make):
    settings, asks, description = make()
    with double():
        cells = cells_of(settings, asks)
        assert len({description.batch_key(*cell[:2]) for cell in cells}) == 1
        for record, cell in zip(assert_independent(description, cells), cells, strict=True):
            assert_same(record, description.run(*cell), rtol=1e-9)


def test_a_cell_that_diverges_or_stops_leaves_the_others_alone():
    with double():
        settings, asks, description = with_batches()
        status = [record.status for record in description.run_batch(cells_of(settings, asks))]
        assert [set(x) for x in status] == [{Status.DONE}, {Status.DONE}, {Status.DIVERGED}]
        settings, asks, description = on_the_sphere()
        stopped = [np.mean(x.status == Status.STOPPED) for x in description.run_batch(cells_of(settings, asks))]
        assert stopped[0] > 0.9 and 0.0 < stopped[2] < 1.0


def test_numbers_do_not_depend_on_how_steps_are_divided(monkeypatch):
    """Long runs are divided, so that an interruption is noticed, and an interruption ends them."""
    with double():
        ask = Ask(until=0.3, save=2, replicas=20)
        cells = cells_of([(square(d), tl.SGD(0.1, constraint="sphere")) for d in (100, 200)], [ask] * 2)
        records = tl.OverlapSGD().run_batch(cells)
        checks = []
        monkeypatch.setattr(overlap_batch, "SAMPLES", 1)
        monkeypatch.setattr(interrupts, "check", lambda: checks.append(1))
        for record, other in zip(records, tl.OverlapSGD().run_batch(cells), strict=True):
            assert_same(record, other)
        assert len(checks) > 3
        monkeypatch.undo()
        interrupts.ask()
        with pytest.raises(KeyboardInterrupt):
            tl.OverlapSGD().run_batch(cells)


def test_no_time_is_spent_on_replicas_that_have_stopped(monkeypatch):
    """Steps of all replicas together, over those until their exits: blocks are filled up, and checked now and then."""
    steps = []
    whole = overlap_batch.native_blocks

    def counted(kernel, state, fixed, words, constants, spans):
        steps.append(kernel.width * np.sum(spans[:, 1] - spans[:, 0]))
        return whole(kernel, state, fixed, words, constants, spans)

    monkeypatch.setattr(overlap_batch, "native_blocks", counted)
    training = tl.SGD(0.1, constraint="sphere")
    with double():
        ask = Ask(until=20.0, save=2, replicas=128, risk_threshold=0.5, stop_at_threshold=True)
        (record,) = tl.OverlapSGD().run_batch(cells_of([(square(300), training)], [ask]))
    needed = np.sum(record.crossing_time) / training.clock(square(300)).time_per_step
    assert np.all(record.status == Status.STOPPED)
    assert needed < sum(steps) < 1.25 * needed


@pytest.mark.slow
def test_the_gpu_kernel_goes_through_the_steps_of_each_cell(monkeypatch):
    """Interpreted on a CPU: cells of more and of fewer replicas than a block have the numbers of native code."""
    whole = pallas.pallas_call

    def interpreted(*arguments, **options):
        return whole(*arguments, **{**options, "compiler_params": None, "interpret": True})

    monkeypatch.setattr(pallas, "pallas_call", interpreted)
    settings, _, description = on_the_sphere()
    options = {"until": 0.2, "save": 3, "risk_threshold": 1.6, "stop_at_threshold": True}
    with double():
        cells = cells_of(settings, [Ask(replicas=replicas, **options) for replicas in (150, 20, 10)])
        records = description.run_batch(cells)
        driver = overlap_sgd._shared_driver.__wrapped__
        monkeypatch.setattr(overlap_sgd, "_shared_driver", driver)
        monkeypatch.setattr(overlap_sgd, "by_native_code", lambda program, replicas: by_gpu_kernel(program))
        for record, other in zip(records, description.run_batch(cells), strict=True):
            assert_same(record, other, rtol=1e-12)
    assert any(np.any(record.status == Status.STOPPED) for record in records)


def test_numbers_share_a_program_and_structure_does_not():
    description, training = tl.OverlapSGD(), tl.SGD(0.5)
    key = description.batch_key(square(100), training)
    start = tl.RandomStart(norm=0.3)
    assert key == description.batch_key(square(900, start=start), tl.SGD(0.7))
    noisy = description.batch_key(square(100, noise=0.1), training)
    assert noisy == description.batch_key(square(500, noise=0.2), tl.SGD(0.1))
    others = [
        noisy,
        description.batch_key(square(100), tl.SGD(0.5, momentum=0.5)),
        description.batch_key(square(100), tl.SGD(0.5, constraint="sphere")),
        description.batch_key(square(100), tl.SGD(0.5, batch_size=2)),
        description.batch_key(erf_committee(1), training),
        description.batch_key(erf_committee(2), training),
        description.batch_key(erf_committee(2, d=3), training),  # the student fills the space
        tl.OverlapSGD(backend="xla").batch_key(square(100), training),
    ]
    assert len({key, *others}) == 1 + len(others)
    assert description.batch_key(square(100), tl.SGD(0.5, reuse=tl.Reused(2.0))) is None


STARTS = {
    "sphere": [tl.RandomStart(), tl.RandomStart(norm=0.5)],
    "gaussian": [tl.RandomStart("gaussian", 2.0), tl.RandomStart("gaussian", 0.1)],
    "warm": [tl.WarmStart(0.3), tl.WarmStart(0.1, norm=2.0)],
    "scattered": [tl.ScatteredStart(0.2, directions="random"), tl.ScatteredStart(0.4, directions="random")],
    "antisymmetric": [tl.AntisymmetricStart(), tl.AntisymmetricStart(0.2)],
    "given": [no_symmetry(), tl.GivenOverlaps(np.eye(2), np.zeros((2, 2)))],
}


@pytest.mark.parametrize(
    "starts",
    [pytest.param(x, id=name, marks=[pytest.mark.slow] if name != "sphere" else []) for name, x in STARTS.items()],
)
def test_plans_made_together_are_those_made_one_by_one(starts, monkeypatch):
    """Cells of several dimensions have the starts of one call, but those of fewer dimensions than p + k."""
    calls = []
    whole = row_blocks._some_blocks
    monkeypatch.setattr(row_blocks, "_some_blocks", lambda *arguments: calls.append(1) or whole(*arguments))
    dimensions = (50, 1000, 80, *((3,) if starts[0].is_random else ()))
    settings = [
        tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf", "rademacher"), tl.Gaussian(d), start=starts[d % 2])
        for d in dimensions
    ]
    trainings = [tl.SGD(0.1 + 0.1 * n) for n in range(len(settings))]
    asks = [Ask(until=1.0 + n, save=5, replicas=2 + n % 2, seed=n) for n in range(len(settings))]
    with double():
        plans = make_plans(settings, trainings, asks)
        assert len(calls) == len(dimensions) - 2
        for plan, *cell in zip(plans, settings, trainings, asks, strict=True):
            alone = make_plan(*cell)
            np.testing.assert_array_equal(plan.steps, alone.steps)
            np.testing.assert_array_equal(plan.times, alone.times)
            assert (plan.keys == alone.keys).all()
            for name in ("Q", "M", "P", "a"):
                np.testing.assert_allclose(getattr(plan.starts, name), getattr(alone.starts, name), rtol=0, atol=4e-15)


def test_rows_are_computed_in_blocks_of_one_shape(monkeypatch):
    """More rows than one call holds, and a number that does not fill the last block."""
    monkeypatch.setattr(row_blocks, "WIDTH", 4)
    monkeypatch.setattr(row_blocks, "BLOCKS", 3)
    rows = {"x": np.arange(31.0), "y": np.ones((31, 2))}
    with double():
        result = row_blocks.in_blocks(_scaled, np.asarray(3.0), rows)
    np.testing.assert_array_equal(result, 3.0 * np.arange(31.0)[:, None] * np.ones((1, 2)))


def _scaled(common, row):
    return common * row["x"] * row["y"]
