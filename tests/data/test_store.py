"""Files: what is written is what is read, and what cannot be read is refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from twolayer.data.deviation import threshold

OLD = Path(__file__).parent / "version_0_1_0"
PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50), start=tl.WarmStart(0.3))


@pytest.fixture(scope="module")
def tree():
    training = tl.SGD(0.1, constraint=tl.Sphere())
    return tl.compare(PROBLEM, training, [tl.DirectSGD(), tl.SaadSolla()], until=1.0, save=5, replicas=3)


@pytest.mark.slow
def test_a_comparison_survives_the_disk(tree, tmp_path):
    path = tl.save(tree, tmp_path / "comparison.nc")
    again = tl.load(path)
    assert isinstance(again, xr.DataTree)
    assert again.attrs == tree.attrs
    for name in tree.children:
        xr.testing.assert_identical(again[name].to_dataset(), tree[name].to_dataset())
    assert [entry.name for entry in tmp_path.iterdir()] == ["comparison.nc"]


def test_one_result_survives_the_disk(tree, tmp_path):
    dataset = tree["SaadSolla"].to_dataset()
    again = tl.load(tl.save(dataset, tmp_path / "one.nc"))
    assert isinstance(again, xr.Dataset)
    xr.testing.assert_identical(again, dataset)


def test_a_corrupt_file_is_refused(tree, tmp_path):
    path = tl.save(tree, tmp_path / "whole.nc")
    content = path.read_bytes()
    for damaged in (b"", b"not a file", content[: len(content) // 2]):
        (tmp_path / "bad.nc").write_bytes(damaged)
        with pytest.raises(tl.InvalidInput, match=r"bad\.nc"):
            tl.load(tmp_path / "bad.nc")
    with pytest.raises(tl.InvalidInput, match="no result file"):
        tl.load(tmp_path / "missing.nc")


def test_a_foreign_file_is_refused(tree, tmp_path):
    xr.Dataset({"x": ("t", np.arange(3))}).to_netcdf(tmp_path / "foreign.nc", engine="h5netcdf")
    with pytest.raises(tl.InvalidInput, match="schema"):
        tl.load(tmp_path / "foreign.nc")
    newer = tree["SaadSolla"].to_dataset().assign_attrs(schema=99)
    newer.to_netcdf(tmp_path / "newer.nc", engine="h5netcdf")
    with pytest.raises(tl.InvalidInput, match="schema 99"):
        tl.load(tmp_path / "newer.nc")


def test_a_report_folder_is_loaded_by_its_name(tree, tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    with pytest.raises(tl.InvalidInput, match=r"report' must hold a result, but there is no file"):
        tl.load(folder)
    tl.save(tree["SaadSolla"].to_dataset(), folder / "escape.nc")
    assert tl.load(folder).attrs["description"] == "SaadSolla"
    tl.save(tree["SaadSolla"].to_dataset(), folder / "other.nc")
    with pytest.raises(tl.InvalidInput, match=r"must hold one result, but holds escape\.nc, other\.nc"):
        tl.load(str(folder))
    tl.save(tree, folder / "comparison.nc")
    assert list(tl.load(folder).children) == ["DirectSGD", "SaadSolla"]


def test_files_of_the_first_version_are_read():
    """Written by version 0.1.0: schema 1, without kinds, units and thresholds of today."""
    tree = tl.load(OLD / "comparison.nc")
    assert list(tree.children) == ["OverlapSGD", "SaadSolla"] and tree.attrs["outcome"] == "consistent"
    assert "Verdict, judged by OverlapSGD: consistent" in tl.summary(tree)
    dataset = tl.load(OLD / "trajectory.nc")
    assert dataset.attrs["schema"] == 1 and "kind" not in dataset.attrs
    assert float(dataset.risk[0, -1]) == pytest.approx(0.35696009, rel=1e-8)
    assert "BatchMap" in tl.summary(dataset)


def test_what_the_first_version_wrote_as_plain_numbers_has_a_remedy(tmp_path):
    """Its `exit-time`, `learn` and `ntk` wrote figures and summary.json, and no labelled result."""
    (tmp_path / "summary.json").write_text('{"annealed": 0.5}')
    for path in (tmp_path, tmp_path / "summary.json"):
        with pytest.raises(tl.InvalidInput, match=r"read it by `json\.load`, or run the command again") as refused:
            tl.load(path)
        assert str(refused.value).count(". ") == 0  # one sentence


def test_old_results_can_be_written_and_drawn_again(tmp_path):
    from twolayer import plots

    for name in ("comparison.nc", "trajectory.nc"):
        result = tl.load(OLD / name)
        assert type(tl.load(tl.save(result, tmp_path / name))) is type(result)
        plots.risk(result)


def test_an_unwritable_place_is_refused_and_nothing_is_left(tree, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tl.InvalidInput, match="cannot be written"):
        tl.save(tree, tmp_path / "file" / "result.nc")
    with pytest.raises(tl.InvalidInput, match="cannot be written"):
        tl.save(tree, tmp_path / "missing" / "result.nc")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_incomplete_dataset_is_not_written(tree, tmp_path):
    with pytest.raises(tl.InvalidInput, match="`risk`"):
        tl.save(tree["SaadSolla"].to_dataset().drop_vars("risk"), tmp_path / "x.nc")
    assert list(tmp_path.iterdir()) == []


def test_the_threshold_keeps_its_false_alarm_rate():
    """Among 200 Gaussian numbers with 8 replicas, chance passes the threshold in about one of 1000 comparisons."""
    limit = threshold(8, 200)
    x = np.random.default_rng(0).standard_normal((4000, 8, 200))
    z = np.abs(x.mean(1) / (x.std(1, ddof=1) / np.sqrt(8)))
    alarms = int(np.sum(z.max(1) > limit))
    assert 0 <= alarms <= 15  # expected 4, Poisson: 15 or more has probability 3e-5
    assert np.sum(z.max(1) > 0.6 * limit) > 15  # and it is not far above
