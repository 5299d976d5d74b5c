"""Runs that were cut short go on from their place, whatever the simulation and the training, and end the same."""

import json

import numpy as np
import pytest

import twolayer as tl
from twolayer.core import pace
from twolayer.verbs import places

ERF = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(24), noise=0.1)
SQUARES = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(30))
FALLING = tl.Schedule([tl.SGD(2.0), tl.SGD(0.5, layers=tl.Both(0.5)), tl.SGD(1.0, layers=tl.Second(0.5))], [2.0, 3.0])
SAME_SET = tl.Schedule(
    [tl.SGD(1.0, reuse=tl.Reused(2.0), momentum=0.5), tl.SGD(0.2, reuse=tl.Reused(2.0), momentum=0.5)], [2.0]
)
# What is run, until when, and the least share that must have been kept when it dies at 60%.
CASES = {
    "schedule of OverlapSGD": (ERF, FALLING, tl.OverlapSGD(backend="xla"), 0.5),
    "schedule of DirectSGD": (ERF, FALLING, tl.DirectSGD(), 0.5),
    "schedule on a fixed set": (ERF, SAME_SET, tl.DirectSGD(), 0.3),
    "paths": (SQUARES, tl.SGD(0.1), tl.SDE(dt=2.0**-10), 0.3),
    "schedule of a theory": (ERF, tl.Schedule([tl.SGD(2.0), tl.SGD(0.5)], [2.0]), tl.SaadSolla(), 0.3),
}


class Died(Exception):
    """What stands for a kill: nothing in the package catches it."""


@pytest.fixture(autouse=True)
def short_calls(monkeypatch):
    monkeypatch.setattr(pace, "CALL_SECONDS", 0.01)


def die_at(share):
    def progress(*told):
        if told[-1] > share:
            raise Died

    return progress


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_died_goes_on_and_ends_with_the_same_numbers(case, tmp_path):
    problem, training, description, kept = CASES[case]
    ask = {"until": 4.0, "save": "linear:9", "replicas": 3, "seed": 2, "risk_threshold": 0.06, "overlap_threshold": 0.5}
    path = tmp_path / "place.npz"
    place = tl.Checkpoint(path, every=0.0)
    whole = tl.evolve(problem, training, description, **ask)
    with pytest.raises(Died):
        tl.evolve(problem, training, description, progress=die_at(0.6), checkpoint=place, **ask)
    assert path.exists()
    fractions = []
    resumed = tl.evolve(problem, training, description, progress=fractions.append, checkpoint=place, **ask)
    assert fractions[0] > kept and not path.exists()
    assert resumed.identical(whole)


def test_finished_phases_are_not_run_again(tmp_path, monkeypatch):
    """Three phases of which the last one dies: the first two are read, the third begins at its place."""
    runs = []
    run = tl.OverlapSGD.run

    def counted(self, problem, training, plan):
        runs.append((training.learning_rate, plan.checkpoint.load() is not None))
        return run(self, problem, training, plan)

    ask = {"until": 4.0, "save": 5, "checkpoint": tl.Checkpoint(tmp_path / "place.npz", every=0.0)}
    with monkeypatch.context() as patch:
        patch.setattr(tl.OverlapSGD, "run", counted)
        with pytest.raises(Died):
            tl.evolve(ERF, FALLING, tl.OverlapSGD(backend="xla"), progress=die_at(0.9), **ask)
        tl.evolve(ERF, FALLING, tl.OverlapSGD(backend="xla"), **ask)
    assert runs == [(2.0, False), (0.5, False), (1.0, False), (1.0, True)]


def test_a_comparison_keeps_finished_descriptions(tmp_path):
    told = []

    def progress(name, fraction):
        told.append(name)
        if name == "SaadSolla":
            raise Died

    folder = tmp_path / "places"
    ask = {"until": 1.0, "save": 4, "replicas": 3}
    accounts = [tl.OverlapSGD(backend="xla"), tl.SaadSolla()]
    whole = tl.compare(ERF, tl.SGD(0.5), accounts, **ask)
    with pytest.raises(Died):
        tl.compare(ERF, tl.SGD(0.5), accounts, progress=progress, checkpoint=tl.Checkpoint(folder, 0.0), **ask)
    assert [path.name for path in folder.iterdir()] == ["OverlapSGD.npz"]
    told.clear()
    progress = lambda name, fraction: told.append((name, fraction))  # noqa: E731
    resumed = tl.compare(ERF, tl.SGD(0.5), accounts, progress=progress, checkpoint=folder, **ask)
    assert [fraction for name, fraction in told if name == "OverlapSGD"] == [1.0]
    assert resumed.identical(whole) and list(folder.iterdir()) == []


def test_an_exit_time_goes_on_in_any_stage(tmp_path):
    """`DirectSGD` is measured in stages; each is kept, and a kill within one goes on inside of it."""
    training = tl.SGD(0.1, constraint=tl.Sphere())
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(12))
    ask = {"replicas": 24, "description": tl.DirectSGD(), "until": 6.0}
    whole = tl.exit_time(problem, training, **ask)
    path = tmp_path / "place.npz"
    for share in (0.2, 0.6):
        with pytest.raises(Died):
            place = tl.Checkpoint(path, every=0.0)
            tl.exit_time(problem, training, progress=die_at(share), checkpoint=place, **ask)
    fractions = []
    progress = lambda name, fraction: fractions.append(fraction)  # noqa: E731
    resumed = tl.exit_time(problem, training, progress=progress, checkpoint=path, **ask)
    np.testing.assert_array_equal(resumed.measured.times, whole.measured.times)
    assert json.dumps(resumed.to_dict()) == json.dumps(whole.to_dict()) and not path.exists()


def test_a_checkpoint_of_another_version_begins_anew_and_says_so(tmp_path, monkeypatch):
    ask = {"until": 2.0, "save": 3, "replicas": 2, "checkpoint": tl.Checkpoint(tmp_path / "place.npz", every=0.0)}
    description = tl.OverlapSGD(backend="xla")
    with pytest.raises(Died):
        tl.evolve(ERF, tl.SGD(0.5), description, progress=die_at(0.5), **ask)
    real = places.versions
    for package in ("twolayer", "jax", "jaxlib", "numpy", "numba"):
        monkeypatch.setattr(places, "versions", lambda names, package=package: real(names) | {package: "0.0"})
        with pytest.warns(tl.CheckpointWarning, match=f"{package} .* but here is {package} 0.0, .* begins anew"):
            with pytest.raises(Died):
                tl.evolve(ERF, tl.SGD(0.5), description, progress=die_at(0.5), **ask)
        monkeypatch.setattr(places, "versions", real)
        with pytest.warns(tl.CheckpointWarning, match=f"written with {package} 0.0"), pytest.raises(Died):
            tl.evolve(ERF, tl.SGD(0.5), description, progress=die_at(0.5), **ask)
    fractions = []
    tl.evolve(ERF, tl.SGD(0.5), description, progress=fractions.append, **ask)
    assert fractions[0] > 0.3


def test_a_damaged_checkpoint_begins_anew_and_says_so(tmp_path):
    path = tmp_path / "place.npz"
    ask = {"until": 1.0, "save": 3, "replicas": 2}
    path.write_bytes(b"PK\x03\x04")
    with pytest.warns(tl.CheckpointWarning, match=r"'place\.npz\.damaged', and the computation begins anew"):
        result = tl.evolve(ERF, tl.SGD(0.5), tl.OverlapSGD(backend="xla"), checkpoint=path, **ask)
    assert result.identical(tl.evolve(ERF, tl.SGD(0.5), tl.OverlapSGD(backend="xla"), **ask))
    assert [each.name for each in tmp_path.iterdir()] == ["place.npz.damaged"]
    with pytest.raises(Died):
        tl.evolve(
            ERF,
            tl.SGD(0.5),
            tl.OverlapSGD(backend="xla"),
            progress=die_at(0.5),
            checkpoint=tl.Checkpoint(path, 0),
            **ask,
        )
    with pytest.warns(tl.CheckpointWarning, match=r"another computation.*place\.npz\.other"):
        tl.evolve(ERF, tl.SGD(0.5), tl.OverlapSGD(backend="xla"), seed=1, checkpoint=path, **ask)
