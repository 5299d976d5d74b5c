"""Statistics of many replicas: those of the replicas themselves, by any workers, in any order, and after kills."""

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from tests.systems import phase_retrieval
from twolayer.sweeps import query as queries
from twolayer.sweeps import statistics
from twolayer.sweeps.content import CellStatus
from twolayer.sweeps.statistics import BinCounts, bins_of, ends_of, quantiles_of
from twolayer.sweeps.sweep_store import Store

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(30))
SPHERE = tl.SGD(0.05, constraint=tl.Sphere())
ASK = tl.Ask(until=2.0, save=4, replicas=300, risk_threshold=1.0)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(statistics, "MOST", 64)


def swept(ask=ASK, **more):
    return tl.sweep(PROBLEM, SPHERE, "OverlapSGD", ask, statistics=True, **({"workers": 0} | more))


@pytest.fixture(scope="module")
def whole():
    return tl.evolve(PROBLEM, SPHERE, "OverlapSGD", ASK)


def test_statistics_are_those_of_the_replicas(whole):
    result = swept()
    assert result.replicas.values.tolist() == [300, 0, 0, 0]
    for name in ("Q", "M", "a", "risk", "excess_risk", "crossing_time"):
        np.testing.assert_allclose(result[f"{name}_mean"], whole[name].mean("replica"), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            result[f"{name}_variance"], whole[name].var("replica", ddof=1), rtol=1e-9, atol=1e-14
        )
    np.testing.assert_array_equal(result.time, whole.time)
    for name in ("excess_risk", "crossing_time"):
        exact = whole[name].quantile(result["quantile"].values, "replica", method="inverted_cdf")
        assert np.all(np.abs(result[f"{name}_quantile"] - exact) <= 2.0**-8 * np.abs(exact))
    crossed = whole.crossing_time.dropna("replica").values
    number = result.crossing_time_histogram
    assert number.sum() == result.crossing_time_count == crossed.size < 300
    inside = (crossed[:, None] >= result.crossing_time_from.values) & (
        crossed[:, None] < result.crossing_time_to.values
    )
    assert np.array_equal(inside.sum(axis=0), number)
    assert np.all(result.risk_error >= 0.0) and result.excess_risk_mean.attrs["long_name"].startswith("mean of")


def test_parts_of_workers_and_of_one_process_give_the_same_bits():
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0", "set_as_default": False}
    over = {"training.learning_rate": [0.03, 0.05]}
    with distributed.Client(n_workers=2, **options) as client:
        there = swept(over=over, workers=None, scheduler=client)
    xr.testing.assert_identical(there, swept(over=over))
    assert np.array_equal(there.sel(learning_rate=0.05).Q_mean, swept().Q_mean)


def test_an_interrupted_run_goes_on_and_grows(tmp_path, monkeypatch):
    reduced, calls = queries._part, []

    def counted(query):
        calls.append(query.first)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return reduced(query)

    monkeypatch.setattr(queries, "_part", counted)
    monkeypatch.setattr(tl.OverlapSGD, "batch_key", lambda *_: None)
    with pytest.raises(tl.Interrupted) as raised:
        swept(out=tmp_path / "s")
    assert raised.value.result.cell_status == CellStatus.MISSING
    before = len(calls)
    resumed = swept(out=tmp_path / "s")
    assert len(calls) - before in (3, 4)  # of five parts one or two were kept
    xr.testing.assert_identical(resumed.drop_attrs(), swept().drop_attrs())
    xr.testing.assert_identical(tl.load(tmp_path / "s"), resumed)
    calls[:] = [None] * 10
    more = swept(tl.Ask(**{**ASK.__dict__, "replicas": 384}), out=tmp_path / "s")
    assert calls[10:] == [256, 320]  # whole parts are there; the last one was not whole
    assert more.replicas.sum() == 384


def test_parts_in_memory_are_given_up(monkeypatch):
    largest = 0

    def save(self, keys, pack, kept=Store.save):
        nonlocal largest
        kept(self, keys, pack)
        largest = max(largest, len(self._packs))

    monkeypatch.setattr(Store, "save", save)
    monkeypatch.setattr("twolayer.sweeps.runner.GROWTH", 1.0)  # one part at a time
    monkeypatch.setattr(tl.OverlapSGD, "batch_key", lambda *_: None)
    swept(tl.Ask(**{**ASK.__dict__, "replicas": 640, "until": 0.1, "risk_threshold": None}))
    assert largest <= 3  # of ten parts and the statistics


def test_a_part_that_fails_and_replicas_that_diverge_are_told(monkeypatch):
    result = tl.sweep(PROBLEM, tl.SGD(1.0), "OverlapSGD", ASK, statistics=True, workers=0)
    assert result.cell_status == CellStatus.DIVERGED and "of 300 replicas: diverged" in str(result.cell_message.values)
    assert result.replicas.sel(ending="diverged") > 0
    assert np.all(np.diff(result.excess_risk_count) <= 0)

    def broken(query):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(queries, "_part", broken)
    monkeypatch.setattr(tl.OverlapSGD, "batch_key", lambda *_: None)
    failed = swept()  # no cell has a result
    assert failed.cell_status == CellStatus.FAILED and "out of luck" in str(failed.cell_message.values)


@pytest.mark.parametrize("arguments", [{"verb": "exit_time", "descriptions": None}])
def test_bad_arguments_are_refused(arguments):
    given = {"descriptions": "OverlapSGD", "statistics": True, **arguments}
    with pytest.raises(tl.InvalidInput):
        tl.sweep(PROBLEM, SPHERE, **given)


def test_replicas_that_are_all_the_same_are_refused():
    result = tl.sweep(phase_retrieval(0.2), SPHERE, "SaadSolla", statistics=True, replicas=100, workers=0)
    assert result.cell_status == CellStatus.REFUSED and "are the same" in str(result.cell_message.values)


# ------------------------------------------------------------------------------------------------------------- bins


def test_bins_hold_their_numbers_and_grow_with_them():
    rng = np.random.default_rng(0)
    x = np.sort(rng.standard_normal(5000) * 10.0 ** rng.uniform(-300, 300, 5000))
    x[2500] = 0.0
    x = np.sort(np.append(x, 2.0 ** np.arange(-5.0, 5.0)))
    bins = bins_of(x)
    low, high = ends_of(bins)
    assert np.all(np.diff(bins) >= 0) and np.all((low <= x) & (x <= high))
    is_usual = np.abs(x) > 1e-300
    assert np.all((high - low)[is_usual] <= 2.0**-7 * np.maximum(np.abs(low), np.abs(high))[is_usual])


def test_counts_are_joined_in_any_order():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((90, 3)) * np.array([1.0, 0.0, 1e-9])
    values[5:70, 0] = np.nan
    whole = BinCounts.of(values)
    for cuts in ([30, 60], [1, 89], [45, 45]):
        parts = [BinCounts.of(part) for part in np.split(values, cuts)]
        for order in ([0, 1, 2], [2, 0, 1]):
            joined = parts[order[0]].joined(parts[order[1]]).joined(parts[order[2]])
            assert np.array_equal(joined.codes, whole.codes) and np.array_equal(joined.counts, whole.counts)
    assert [place for place, _, _ in whole.places()] == [0, 1, 2]
    assert [int(counts.sum()) for _, _, counts in whole.places()] == [25, 90, 90]
    assert not list(BinCounts.of(np.full((4, 2), np.nan)).places())


@pytest.mark.parametrize("law", ["normal", "lognormal", "exponential", "uniform"])
def test_errors_of_quantiles_cover_the_law(law):
    """In standard errors the deviation is about normal: its second moment is near one, or less where bins add to it."""
    scipy_law = {"normal": "norm", "lognormal": "lognorm", "exponential": "expon", "uniform": "uniform"}[law]
    from scipy import stats

    levels = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    frozen = getattr(stats, scipy_law)(*([1.0] if law == "lognormal" else []))
    rng, scores = np.random.default_rng(7), []
    for _ in range(200):
        counts = BinCounts.of(frozen.rvs(2000, random_state=rng)[:, None])
        _, bins, number = next(counts.places())
        value, error = quantiles_of(bins, number, levels)
        scores.append((value - frozen.ppf(levels)) / error)
    size = np.sqrt(np.mean(np.square(scores), axis=0))
    # 200 samples know a standard deviation to 5%; five times that, and half for what the bins add.
    assert np.all(size < 1.25) and np.all(size > 0.5), size
    assert np.all(np.abs(scores) < 5.0)
