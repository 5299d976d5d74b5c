"""Sweeps: labelled results, cells that fail, folders that are continued, and numbers that are those of the verbs."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from tests.systems import erf_committee, phase_retrieval
from twolayer.sweeps import counts, failures, kept_cells, make_spec
from twolayer.sweeps import query as queries
from twolayer.sweeps.compute import Job
from twolayer.sweeps.content import CellStatus, Content, node_of, packed, unpacked
from twolayer.sweeps.forecast import forecast
from twolayer.sweeps.runner import Counts, InProcess, Lost, run_jobs
from twolayer.sweeps.sweep_store import MANIFEST, Store

SPHERE = tl.SGD(0.05, constraint=tl.Sphere())
RATES = {"training.learning_rate": [0.02, 0.05]}


@pytest.fixture
def counted(monkeypatch):
    """A verb that takes no time, in place of `evolve`, and the learning rates and seeds of its calls."""
    calls = []

    def answer(query):
        rate, seed = float(query.training.learning_rate), query.run.seed
        calls.append((rate, seed))
        if rate == 0.5:
            raise tl.NotApplicable("`SaadSolla` does not apply: the rate is one half.")
        if rate == 0.25:
            raise RuntimeError("out of luck")
        values = {"x": ((), rate * 10 + seed), "curve": (("time",), rate * np.arange(3.0))}
        return {"": xr.Dataset(values, {"time": [0.0, 1.0, 2.0]}, {"kind": "test", "outcome": "agrees"})}

    monkeypatch.setitem(queries.VERBS, "evolve", answer)
    monkeypatch.setattr(tl.SaadSolla, "batch_key", lambda *_: None)
    return calls


def swept(over, **more):
    return tl.sweep(phase_retrieval(0.2), SPHERE, "SaadSolla", over=over, workers=0, **more)


# ------------------------------------------------------------------------------------------------ labelled results


def test_cells_are_the_results_of_the_verb():
    result = swept({**RATES, "problem.noise": [0.1, 0.2]}, until=1.0, save=4)
    assert result.excess_risk.dims == ("learning_rate", "noise", "replica", "time")
    for rate in (0.02, 0.05):
        for noise in (0.1, 0.2):
            training = tl.SGD(rate, constraint=tl.Sphere())
            alone = tl.evolve(phase_retrieval(0.2, noise=noise), training, "SaadSolla", until=1.0, save=4)
            cell = result.sel(learning_rate=rate, noise=noise)
            assert np.allclose(cell.excess_risk, alone.excess_risk, rtol=1e-8, atol=1e-12)
            assert np.array_equal(cell.time, alone.time) and np.array_equal(cell.step, alone.step)
    assert result.risk.attrs == alone.risk.attrs
    assert result.attrs["description"] == "SaadSolla" and result.attrs["verb"] == "evolve"


def test_widths_are_padded_and_times_of_steps_differ():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(30))
    over = {"problem.student.p": [1, 2], "training.learning_rate": [0.02, 0.05]}
    result = tl.sweep(problem, SPHERE, "OverlapSGD", over=over, until=0.1, save=4, replicas=3, workers=0)
    assert result.Q.dims == ("p", "learning_rate", "replica", "point", "i", "j")
    assert np.isnan(result.Q.sel(p=1, i=1)).all() and not np.isnan(result.Q.sel(p=1, i=0, j=0).isel(point=0)).any()
    alone = tl.evolve(problem, tl.SGD(0.02, constraint=tl.Sphere()), "OverlapSGD", until=0.1, save=4, replicas=3)
    cell = result.sel(p=1, learning_rate=0.02)
    assert np.array_equal(cell.time[: alone.sizes["time"]], alone.time)
    assert np.allclose(cell.risk[:, : alone.sizes["time"]], alone.risk, rtol=1e-12)


def test_a_comparison_is_a_tree_with_a_verdict_for_each_cell():
    result = tl.sweep(phase_retrieval(0.2, d=100), SPHERE, ["OverlapSGD", "SaadSolla"], over=RATES, until=0.5, save=4)
    assert isinstance(result, xr.DataTree) and set(result.children) == {"OverlapSGD", "SaadSolla"}
    assert result.outcome.dims == ("learning_rate",) and set(result.outcome.values) <= {
        *("agrees", "consistent", "finite-d effect", "differs", "undecided")
    }
    assert result["SaadSolla"].deviation_risk.dims[0] == "learning_rate"
    assert "cells: 2 done" in tl.summary(result)


@pytest.mark.parametrize(
    ("verb", "fields", "over", "variable"),
    [
        ("exit_time", {"replicas": 0}, {"run.threshold": [0.05, 0.1]}, "predicted"),
        ("learn", {}, {"problem.target": [tl.PhaseRetrieval(), tl.SingleIndex("he3")]}, "information_exponent"),
        ("optimise", {"samples": 50.0}, {"problem.noise": [0.1, 0.2]}, "value"),
    ],
)
def test_every_analysis_can_be_swept(verb, fields, over, variable):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
    result: Any = tl.sweep(problem, tl.SGD(0.05, constraint=tl.Sphere()), verb=verb, over=over, workers=0, **fields)
    assert counts(result)["done"] == 2, failures(result)
    assert np.isfinite(result[variable].values.astype(float)).any()


def test_cells_with_different_variables_along_a_dimension_are_put_together():
    """One neuron has the ODE from the starts of all runs, and two from fewer, which alone have a largest threshold."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(60))
    over, asked = {"problem.student.p": [1, 2]}, {"threshold": 0.1, "replicas": 6, "starts": 3, "until": 3.0}
    result = tl.sweep(problem, tl.SGD(0.08, constraint=tl.Sphere()), verb="exit_time", over=over, workers=0, **asked)
    assert counts(result)["done"] == 2, failures(result)
    known = {name: np.isfinite(result[name].values).sum(axis=1).tolist() for name in ("ode", "largest_threshold")}
    assert known == {"ode": [6, 3], "largest_threshold": [0, 3]}


def test_comparisons_are_computed_together_and_judged_one_by_one(monkeypatch):
    """Every number and every word is that of `compare`, and no cell is computed by itself."""
    calls = []
    for description in (tl.OverlapSGD, tl.SaadSolla):
        together = description.run_batch

        def counting(self, cells, together=together):
            calls.append((type(self).__name__, len(cells)))
            return together(self, cells)

        monkeypatch.setattr(description, "run_batch", counting)
    members, asked = ["OverlapSGD", "SaadSolla"], {"until": 1.0, "save": 4, "replicas": 4, "seed": 3}
    problem, over = phase_retrieval(0.2), {**RATES, "problem.inputs.d": [50, 400]}
    result = tl.sweep(problem, SPHERE, members, verb="compare", over=over, workers=0, **asked)
    for name in members:
        assert sum(size for called, size in calls if called == name) == 4 and (name, 1) not in calls
    for rate in RATES["training.learning_rate"]:
        for d in (50, 400):
            at = dataclasses.replace(problem, inputs=tl.Gaussian(d))
            alone = tl.compare(at, dataclasses.replace(SPHERE, learning_rate=rate), members, **asked)
            for name, dataset in alone.children.items():
                cell = result[name].to_dataset().sel(learning_rate=rate, d=d)
                for variable in dataset.variables:
                    assert np.allclose(
                        cell[variable].values, dataset[variable].values, rtol=1e-7, atol=1e-9, equal_nan=True
                    )
            words = result.to_dataset().sel(learning_rate=rate, d=d)
            assert str(words.outcome.values) == alone.attrs["outcome"]
            assert str(words.verdict.values) == alone.attrs["verdict"]


def test_lazy_training_can_be_swept():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 4))
    problem = tl.Problem(tl.Labels(), tl.Student(8, "relu"), tl.Samples(X, np.sign(X[:, 0])))
    result = tl.sweep(problem, tl.First(), verb="ntk", over={"run.steps": [2, 4]}, replicas=0, workers=0)
    assert counts(result)["done"] == 2, failures(result)
    assert np.allclose(result.complexity.values, result.complexity.values[0])


def test_saved_results_are_read_back(tmp_path):
    result = swept(RATES, until=0.5, save=3)
    tl.save(result, tmp_path / "sweep.nc")
    xr.testing.assert_identical(tl.load(tmp_path / "sweep.nc"), result)


# ------------------------------------------------------------------------------------------------ cells that fail


def test_cells_that_fail_say_why_and_do_not_stop_the_others(counted):
    result = swept({"training.learning_rate": [0.1, 0.5, 0.25, -1.0]})
    assert result.cell_status.values.tolist() == [0, 1, 3, 1]
    assert result.x.values[0] == 1.0 and np.isnan(result.x.values[1:]).all()
    messages = result.cell_message.values
    assert messages[0] == "" and "one half" in messages[1] and "out of luck" in messages[2] and "-1.0" in messages[3]
    assert [row["learning_rate"] for row in failures(result)] == [0.5, 0.25, -1.0]
    assert "out of luck" in tl.summary(result)


def test_diverged_cells_keep_what_they_have():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(30))
    result = tl.sweep(
        problem, tl.SGD(1.0), "SaadSolla", over={"training.learning_rate": [0.02, 3.0]}, until=5.0, workers=0
    )
    assert result.cell_status.values.tolist() == [0, 2] and "diverged" in str(result.cell_message.values[1])
    risk = result.excess_risk.isel(learning_rate=1, replica=0).values
    assert np.isfinite(risk[0]) and np.isnan(risk[-1])


def test_a_sweep_without_a_possible_cell_is_refused(counted):
    with pytest.raises(tl.InvalidInput, match="learning_rate"):
        swept({"training.learning_rate": [-1.0, -2.0]})
    assert not counted


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("training.rate", "`training` has no field 'rate'"),
        ("problem.student.p.q", "no fields"),
        ("learning_rate", "begins with"),
        ("training.phases.0", "no field 'phases'"),
        ("run.threshold", "no field 'threshold'"),
    ],
)
def test_unknown_paths_are_refused(counted, path, part):
    with pytest.raises(tl.InvalidInput, match=part):
        swept({path: [1.0]})
    assert not counted


@pytest.mark.parametrize(
    "arguments",
    [
        {"verb": "evolv"},
        {"verb": "exit_time", "until": 3.0, "seeds": 3},
        {"descriptions": ["SaadSolla", "OverlapSGD"], "verb": "evolve"},
        {"workers": 2, "scheduler": "tcp://127.0.0.1:1"},
        {"workers": -1},
        {"training": None},
    ],
)
def test_bad_arguments_are_refused(counted, arguments):
    given = {"training": SPHERE, "over": RATES, **arguments}
    with pytest.raises(tl.InvalidInput):
        tl.sweep(phase_retrieval(0.2), **given)
    assert not counted


# ------------------------------------------------------------------------------------------------ folders


def test_a_folder_is_continued_and_grows(counted, tmp_path):
    first = swept({"training.learning_rate": [0.1, 0.2]}, out=tmp_path / "s")
    assert len(counted) == 2
    again = swept({"training.learning_rate": [0.1, 0.2]}, out=tmp_path / "s")
    xr.testing.assert_identical(first, again)
    assert len(counted) == 2
    more = swept({"training.learning_rate": [0.1, 0.15, 0.2], "run.seed": [0, 1]}, out=tmp_path / "s")
    assert len(counted) == 6 and more.sizes["seed"] == 2
    assert np.array_equal(more.x.sel(learning_rate=[0.1, 0.2], seed=0), first.x)
    xr.testing.assert_identical(tl.load(tmp_path / "s"), more)
    swept({"training.learning_rate": [0.1, 0.2]}, out=tmp_path / "s", fresh=True)
    assert len(counted) == 8


def test_an_interrupted_sweep_keeps_its_cells(counted, tmp_path, monkeypatch):
    answer = queries.VERBS["evolve"]

    def interrupted(query):
        if query.run.seed == 3:
            raise KeyboardInterrupt
        return answer(query)

    monkeypatch.setitem(queries.VERBS, "evolve", interrupted)
    with pytest.raises(tl.Interrupted) as raised:
        swept({"run.seed": range(6)}, out=tmp_path / "s")
    ended = counts(raised.value.result)  # the cells of the portion that was interrupted are missing
    assert 1 <= ended["done"] <= 3 and ended["done"] + ended["missing"] == 6
    xr.testing.assert_identical(tl.load(tmp_path / "s"), raised.value.result)
    monkeypatch.setitem(queries.VERBS, "evolve", answer)
    counted.clear()
    result = swept({"run.seed": range(6)}, out=tmp_path / "s")
    assert len(counted) == ended["missing"] and counts(result)["done"] == 6


def test_damaged_cells_are_computed_again(counted, tmp_path):
    whole = swept({"run.seed": [0, 1, 2]}, out=tmp_path / "s")
    packs = sorted((tmp_path / "s" / "cells").iterdir())
    packs[0].write_bytes(packs[0].read_bytes()[:100])
    packs[1].write_bytes(b"")
    again = swept({"run.seed": [0, 1, 2]}, out=tmp_path / "s")
    xr.testing.assert_identical(whole, again)


def test_cells_of_other_versions_are_computed_again(counted, tmp_path, monkeypatch):
    swept({"run.seed": [0, 1]}, out=tmp_path / "s")
    monkeypatch.setattr("twolayer.sweeps.over_grid.environment", lambda: json.dumps(["other versions"]))
    swept({"run.seed": [0, 1]}, out=tmp_path / "s")
    assert len(counted) == 4


def test_a_folder_of_another_layout_is_refused(counted, tmp_path):
    (tmp_path / MANIFEST).write_text('{"format": 99}')
    with pytest.raises(tl.InvalidInput, match="layout 99"):
        swept({"run.seed": [0, 1]}, out=tmp_path)
    (tmp_path / MANIFEST).write_text("no JSON")
    with pytest.raises(tl.InvalidInput, match="description of a sweep"):
        tl.load(tmp_path)


def test_equal_cells_are_computed_once(counted):
    """A student whose activation is named, and one that is given the activation itself, are one specification."""
    named = tl.Student(1, "square")
    students = [named, tl.Student(1, named.activation), tl.Student(1, "he2")]
    result = swept({"problem.student": students, "training.learning_rate": [0.1]})
    assert counts(result)["done"] == 3 and len(counted) == 2
    assert result.x.values.tolist() == [[1.0]] * 3


def test_fields_that_change_together_share_a_dimension(counted):
    over = {"training.learning_rate": [0.1, 0.2], "run.seed": [5, 6]}
    result = swept(over, together=[list(over)])
    assert result.x.dims == ("learning_rate",) and result.seed.dims == ("learning_rate",)
    assert counted == [(0.1, 5), (0.2, 6)]


def test_a_folder_that_cannot_be_written_is_told(counted, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(tl.InvalidInput, match="cannot be written"):
        swept({"run.seed": [0, 1]}, out=tmp_path / "file" / "s")
    assert not counted

    def full(*_):
        raise OSError(28, "No space left on device")

    swept({"run.seed": [0, 1]}, out=tmp_path / "s")
    monkeypatch.setattr(Store, "write_manifest", lambda *_: None)
    monkeypatch.setattr("twolayer.sweeps.sweep_store.write_whole", full)
    with pytest.raises(tl.ComputationFailed, match="No space left"):
        swept({"run.seed": [0, 1, 2]}, out=tmp_path / "s")
    assert counts(tl.load(tmp_path / "s"))["done"] == 2


def test_axes_keep_their_names_beside_variables_of_the_result(counted, monkeypatch):
    problem = {"problem.start.M": [[[0.1]], [[0.2]]]}
    assert swept(problem).x.dims == ("start_M",)
    dataset = xr.Dataset({"noise": ("noise", [1.0, 2.0])}, attrs={"kind": "test"})
    monkeypatch.setitem(queries.VERBS, "evolve", lambda query: {"": dataset})
    result = swept({"problem.noise": [0.1, 0.2, 0.3]})
    assert result.noise.values.tolist() == [0.1, 0.2, 0.3] and result.result_noise.values.tolist() == [1.0, 2.0]


class Deadly(InProcess):
    """Loses the portions of a cell that kills its worker, and those that wait behind it."""

    slots, ahead = 2, 4

    def next(self):
        if any(job.query.run.seed == 17 for job in self._jobs[0][0]):
            self.behind = len(self._jobs)
        self.behind = max(0, getattr(self, "behind", 0) - 1)
        if self.behind or any(job.query.run.seed == 17 for job in self._jobs[0][0]):
            return Lost(self._jobs.popleft()[0], 3)
        return super().next()


@pytest.mark.parametrize("seconds", [0.0, 1.0])  # portions of single cells, and of many
def test_a_cell_that_kills_its_worker_is_marked_and_the_others_are_computed(counted, monkeypatch, seconds):
    """What was lost is computed alone at the end, and by halves, until the cell that is to blame is left."""
    monkeypatch.setattr("twolayer.sweeps.runner.SECONDS", seconds)
    spec = make_spec(phase_retrieval(0.2), SPHERE, "SaadSolla", None, {"run.seed": range(40)}, (), None, {})
    store, told = Store(), []
    jobs = [Job(cell.query.key("here"), cell.query) for cell in spec.cells() if cell.query is not None]
    counts_of = Counts(len(jobs), 0)
    run_jobs(jobs, Deadly(), store, lambda counts: told.append((counts.computed, counts.running)), counts_of)
    found = dict(store.contents(job.key for job in jobs))
    assert [job.query.run.seed for job in jobs if found[job.key].status != CellStatus.DONE] == [17]
    marked = found[jobs[17].key]
    assert "killed its worker 3 times" in marked.message and marked.status == CellStatus.FAILED
    assert told[-1] == (40, 0) and counts_of.failed == 1


def test_cells_that_another_process_stores_are_not_computed_again(counted, tmp_path, monkeypatch):
    """They are looked for between portions; here the other process works while the first cell is computed."""
    answer = queries.VERBS["evolve"]

    def beside(query):
        if len(counted) == 1:
            monkeypatch.setitem(queries.VERBS, "evolve", answer)
            swept({"run.seed": range(10, 60)}, out=tmp_path / "s")
        return answer(query)

    monkeypatch.setattr("twolayer.sweeps.runner.SECONDS", 0.0)
    monkeypatch.setitem(queries.VERBS, "evolve", beside)
    result = swept({"run.seed": range(60)}, out=tmp_path / "s")
    assert counts(result)["done"] == 60 and sorted(calls[1] for calls in counted) == list(range(60))
    xr.testing.assert_identical(tl.load(tmp_path / "s"), result)


def test_the_grids_of_one_folder_do_not_hide_one_another(counted, tmp_path):
    """The larger of two is that of the folder, else the last one; the other one is kept in a folder of its own."""
    folder = tmp_path / "s"
    wide = swept({"run.seed": range(4)}, out=folder)
    narrow = swept({"run.seed": range(2)}, out=folder)
    xr.testing.assert_identical(tl.load(folder), wide)
    other = swept({"run.seed": [3, 9]}, out=folder)
    xr.testing.assert_identical(tl.load(folder), other)
    grids = [tl.load(grid) for grid in (folder / "grids").iterdir()]
    assert len(grids) == 2 and all(any(grid.identical(known) for grid in grids) for known in (wide, narrow))
    assert len(counted) == 5


def test_a_smaller_grid_that_was_there_first_keeps_its_description(counted, tmp_path):
    """It may be that of another process, which counts its own cells when it is interrupted."""
    folder = tmp_path / "s"
    narrow = swept({"run.seed": range(2)}, out=folder)
    wide = swept({"run.seed": range(4)}, out=folder)
    xr.testing.assert_identical(tl.load(folder), wide)
    (grid,) = (folder / "grids").iterdir()
    xr.testing.assert_identical(tl.load(grid), narrow)
    for seeds in (2, 4):
        asked = {"over": {"run.seed": range(seeds)}, "together": (), "verb": "evolve", "fields": {}}
        spec = make_spec(phase_retrieval(0.2), SPHERE, "SaadSolla", None, **asked)
        assert kept_cells(folder, spec) == (seeds, seeds, "cells")


def test_a_description_that_was_overwritten_at_the_same_moment_is_written_again(counted, tmp_path):
    wide = swept({"run.seed": range(4)}, out=tmp_path / "wide")
    swept({"run.seed": range(2)}, out=tmp_path / "s")
    narrow = json.loads((tmp_path / "s" / MANIFEST).read_text())
    (tmp_path / "s" / MANIFEST).write_bytes((tmp_path / "wide" / MANIFEST).read_bytes())
    Store(tmp_path / "s").keep_manifest(narrow)
    (grid,) = (tmp_path / "s" / "grids").iterdir()
    assert tl.load(grid).sizes["seed"] == 2 and tl.load(tmp_path / "s").sizes["seed"] == wide.sizes["seed"]


# ------------------------------------------------------------------------------------------------ packs


def test_packs_hold_cells_of_any_shape():
    rng = np.random.default_rng(3)
    contents = {}
    for number in range(12):
        size = int(rng.integers(1, 3))
        dataset = xr.Dataset(
            {"x": ("n", rng.standard_normal(size)), "word": ((), f"w{number}"), "same": ("m", np.arange(4))},
            {"n": np.arange(size), "label": ("n", [f"l{j}" for j in range(size)])},
            {"kind": "test", "number": number, "list": [1.0, 2.0], "none": "x" * number},
        )
        nodes = {"": node_of(dataset)} | ({"child": node_of(dataset)} if number % 3 == 0 else {})
        contents[f"key{number}"] = Content(CellStatus.DONE, "why" * (number % 2), nodes)
    contents["empty"] = Content(CellStatus.FAILED, "no", {})
    found = unpacked(packed(contents))
    assert set(found) == set(contents)
    for key, content in contents.items():
        assert found[key].status == content.status and found[key].message == content.message
        assert set(found[key].nodes) == set(content.nodes)
        for name, node in content.nodes.items():
            assert found[key].nodes[name].attributes == node.attributes
            for variable, stated in node.variables.items():
                read = found[key].nodes[name].variables[variable]
                assert read.dimensions == stated.dimensions and read.is_coordinate == stated.is_coordinate
                assert np.array_equal(read.values, stated.values) and read.values.dtype == stated.values.dtype


def test_a_store_in_memory_and_one_on_disk_hold_the_same(tmp_path):
    content = {"a": Content(CellStatus.DONE, "", {"": node_of(xr.Dataset({"x": ((), 1.5)}))})}
    for store in (Store(), Store(tmp_path)):
        assert "a" not in store
        store.save(["a"], packed(content))
        assert "a" in store and dict(store.contents(["a", "b"]))["a"].nodes[""].variables["x"].values == 1.5
    assert "a" in Store(tmp_path)


@pytest.mark.slow
def test_cells_that_are_computed_together_are_forecast_to_take_less():
    """Equations of four erf units take a small part of the time among many; those with a threshold as long as alone."""
    problem, over, number = erf_committee(4), {"training.learning_rate": np.linspace(0.1, 1.0, 50)}, 50
    shares = []
    for ask in (tl.Ask(until=10.0, replicas=16), tl.Ask(until=10.0, replicas=16, risk_threshold=0.1)):
        (row,) = (row for row in tl.explain(problem, SPHERE, ask).descriptions if row.description == "SaadSolla")
        expected = forecast(make_spec(problem, SPHERE, "SaadSolla", ask, over, (), None, {})).seconds
        assert expected is not None and row.seconds is not None
        shares.append(expected / (number * row.seconds))
    # Averages are measured anew where they are not remembered, and machines do other work.
    assert shares[0] < 0.2 and 0.5 < shares[1] < 2.0
