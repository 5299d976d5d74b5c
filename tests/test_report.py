"""The report folder of a comparison."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from twolayer.report import write_report

FILES = [
    "comparison.nc",
    "risk.png",
    "risk.pdf",
    "overlaps.png",
    "overlaps.pdf",
    "spec.json",
    "report.md",
    "summary.json",
]
SPEC = '{"until":2.0}'


@pytest.fixture(scope="module")
def tree() -> xr.DataTree:
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50))
    return tl.compare(
        problem, tl.SGD(0.1, constraint=tl.Sphere()), [tl.DirectSGD(), tl.SaadSolla()], until=2.0, save=20, replicas=4
    )


@pytest.fixture(scope="module")
def written(tree, tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("report")
    return folder, write_report(tree, folder, "Phase retrieval", SPEC)


def no_constant(name: str):
    raise AssertionError(f"{name} is not JSON")


def test_all_files_are_there_and_no_others(written):
    folder, summary = written
    assert summary["files"] == FILES
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert all((folder / name).stat().st_size > 0 for name in FILES)


def test_summary_is_what_was_returned(tree, written):
    folder, summary = written
    assert json.loads((folder / "summary.json").read_text(), parse_constant=no_constant) == summary
    assert list(summary) == ["verdict", "outcome", "judge", "cautions", "descriptions", "files", "folder"]
    assert summary["verdict"] == tree.attrs["verdict"] and summary["outcome"] == tree.attrs["outcome"]
    assert summary["judge"] == "DirectSGD" and summary["folder"] == str(folder)


def test_descriptions_carry_the_numbers_of_the_datasets(tree, written):
    for each, (name, child) in zip(written[1]["descriptions"], tree.children.items(), strict=True):
        final = child.excess_risk.values[:, -1]
        assert each["name"] == name
        assert (each["exactness"], each["engine"]) == (child.attrs["exactness"], child.attrs["engine"])
        assert each["statement"] == child.attrs["statement"]
        assert each["final_excess_risk_median"] == pytest.approx(np.median(final), rel=1e-14)
        assert each["final_excess_risk_range"] == pytest.approx(list(np.quantile(final, (0.1, 0.9))), rel=1e-14)
        assert each["risk_error_max"] == child.risk_error.values.max()
        assert each["replicas"] == 4
        assert each["status"] == {"done": 4, "diverged": 0, "unfinished": 0, "stopped": 0}


def test_numbers_and_specification_can_be_read_back(tree, written):
    folder, _ = written
    assert (folder / "spec.json").read_text() == SPEC
    loaded = tl.load(folder / "comparison.nc")
    for name, child in tree.children.items():
        xr.testing.assert_identical(loaded[name].to_dataset(), child.to_dataset())


def test_report_says_the_verdict_and_shows_the_pictures(tree, written):
    text = (written[0] / "report.md").read_text()
    assert text.startswith("# Phase retrieval\n") and tree.attrs["verdict"] in text
    assert f"**Verdict: {tree.attrs['outcome']}: " in text
    assert "](risk.png)" in text and "](overlaps.png)" in text
    table = [row for row in text.splitlines() if row.startswith("|")]
    assert len(table) == 4 and table[3].startswith("| SaadSolla | limit d -> infinity |")
    assert len({row.count("|") for row in table}) == 1
    assert "saad1995" in text and f"python {json.loads(tree['SaadSolla'].attrs['versions'])['python']}" in text


def test_a_second_report_replaces_the_first(tree, tmp_path):
    write_report(tree, tmp_path, "title", SPEC)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_report(tree, tmp_path, "title", SPEC)
    second = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(first) == sorted(FILES)
    assert {name for name in FILES if first[name] != second[name]} <= {"comparison.nc"}


def test_numbers_that_do_not_exist_are_null(tree, tmp_path):
    broken = tree["DirectSGD"].to_dataset().copy(deep=True)
    broken.status.values[:] = 1
    for name in ("Q", "M", "a", "risk", "excess_risk", "risk_error", "overlap_error"):
        broken[name].values[:, 1:] = np.nan
    broken.risk_error.values[:] = np.inf
    result = xr.DataTree.from_dict({"/DirectSGD": broken})
    result.attrs = {"verdict": "DirectSGD alone: nothing to compare with.", "outcome": "single", "judge": "DirectSGD"}
    summary = write_report(result, tmp_path, "title", SPEC)
    (each,) = json.loads((tmp_path / "summary.json").read_text(), parse_constant=no_constant)["descriptions"]
    assert each == summary["descriptions"][0]
    assert each["final_excess_risk_median"] is None and each["final_excess_risk_range"] == [None, None]
    assert each["risk_error_max"] is None
    assert each["status"] == {"done": 0, "diverged": 4, "unfinished": 0, "stopped": 0}
    assert "none reached the end" in (tmp_path / "report.md").read_text()


def test_an_empty_tree_writes_nothing(tmp_path):
    with pytest.raises(tl.InvalidInput, match="must hold at least one description"):
        write_report(xr.DataTree(), tmp_path, "title", SPEC)
    assert not list(tmp_path.iterdir())
