"""Runs that were cut short go on from their place, whatever the simulation and the training, and end the same."""

import pytest

import twolayer as tl
from twolayer import stepping
from twolayer.verbs import places

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(24), noise=0.1)
FALLING = tl.Schedule([tl.SGD(0.05), tl.SGD(0.02), tl.SGD(0.03)], [2.0, 3.0])
SAME_SET = tl.Schedule(
    [tl.SGD(0.02, reuse=tl.Reused(2.0), momentum=0.5), tl.SGD(0.01, reuse=tl.Reused(2.0), momentum=0.5)], [2.0]
)
BY_XLA = tl.OverlapSGD(backend="xla")
CASES = {
    "schedule of OverlapSGD": (FALLING, BY_XLA),
    "schedule of DirectSGD": (FALLING, tl.DirectSGD()),
    "schedule on a fixed set": (SAME_SET, tl.DirectSGD()),
    "paths": (tl.SGD(0.05), tl.SDE(dt=2.0**-10)),
    "schedule of a theory": (FALLING, tl.SaadSolla()),
}
SLOW = ("schedule of a theory", "paths")


class Died(Exception):
    """What stands for a kill: nothing in the package catches it."""


@pytest.fixture(autouse=True)
def short_calls(monkeypatch):
    monkeypatch.setattr(stepping, "CALL_SECONDS", 0.01)


def die_at(share):
    def progress(*told):
        if told[-1] > share:
            raise Died

    return progress


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.long] * (case in SLOW)) for case in CASES])
def test_a_run_that_died_goes_on_and_ends_with_the_same_numbers(case, tmp_path):
    training, description = CASES[case]
    ask = {"until": 4.0, "save": "linear:9", "replicas": 3, "seed": 2, "risk_threshold": 0.5}
    path = tmp_path / "place.npz"
    place = tl.Checkpoint(path, every=0.0)
    whole = tl.evolve(PROBLEM, training, description, **ask)
    with pytest.raises(Died):
        tl.evolve(PROBLEM, training, description, progress=die_at(0.6), checkpoint=place, **ask)
    assert path.exists()
    fractions = []
    resumed = tl.evolve(
        PROBLEM,
        training,
        description,
        progress=lambda name, fraction: fractions.append(fraction),
        checkpoint=place,
        **ask,
    )
    assert fractions[0] > 0.15 and not path.exists()
    assert resumed.identical(whole)


def test_finished_phases_are_not_run_again(tmp_path, monkeypatch):
    """Three phases of which the last one dies: the first two are read, the third begins at its place."""
    runs = []
    run = tl.OverlapSGD.run

    def counted(self, problem, training, plan):
        runs.append((training.learning_rate, plan.checkpoint.load() is not None))
        return run(self, problem, training, plan)

    ask = {"until": 4.0, "save": "linear:9", "checkpoint": tl.Checkpoint(tmp_path / "place.npz", every=0.0)}
    monkeypatch.setattr(tl.OverlapSGD, "run", counted)
    with pytest.raises(Died):
        tl.evolve(PROBLEM, FALLING, BY_XLA, progress=die_at(0.9), **ask)
    tl.evolve(PROBLEM, FALLING, BY_XLA, **ask)
    assert runs == [(0.05, False), (0.02, False), (0.03, False), (0.03, True)]


def test_a_comparison_keeps_finished_descriptions(tmp_path):
    told = []

    def tell(name, fraction):
        told.append((name, fraction))

    def die_in_the_second(name, fraction):
        if name == "DirectSGD":
            raise Died

    folder = tmp_path / "places"
    ask = {"until": 1.0, "save": 4, "replicas": 3}
    descriptions = [BY_XLA, tl.DirectSGD()]
    whole = tl.compare(PROBLEM, tl.SGD(0.05), descriptions, **ask)
    with pytest.raises(Died):
        place = tl.Checkpoint(folder, every=0.0)
        tl.compare(PROBLEM, tl.SGD(0.05), descriptions, progress=die_in_the_second, checkpoint=place, **ask)
    assert [path.name for path in folder.iterdir()] == ["OverlapSGD.npz"]
    resumed = tl.compare(PROBLEM, tl.SGD(0.05), descriptions, progress=tell, checkpoint=folder, **ask)
    assert [fraction for name, fraction in told if name == "OverlapSGD"] == [1.0]
    assert resumed.identical(whole) and list(folder.iterdir()) == []


@pytest.mark.long
def test_an_exit_time_goes_on_in_any_stage(tmp_path):
    """`DirectSGD` is measured in stages; each is kept, and a kill within one goes on inside of it."""
    training = tl.SGD(0.1, constraint=tl.Sphere())
    ask = {"replicas": 24, "description": tl.DirectSGD(), "until": 6.0}
    whole = tl.exit_time(PROBLEM, training, **ask)
    path = tmp_path / "place.npz"
    for share in (0.2, 0.6):
        with pytest.raises(Died):
            place = tl.Checkpoint(path, every=0.0)
            tl.exit_time(PROBLEM, training, progress=die_at(share), checkpoint=place, **ask)
    resumed = tl.exit_time(PROBLEM, training, checkpoint=path, **ask)
    assert resumed.identical(whole) and not path.exists()


@pytest.mark.long
def test_the_checks_of_learn_go_on(tmp_path):
    """Killed in the second dimension of the slope, nothing that was finished is run again."""
    told = []

    def tell(name, fraction):
        told.append((name, fraction))

    def die_in_the_second_dimension(name, fraction):
        if name == "escape against d" and fraction > 0.6:
            raise Died

    ask = {"verify": True, "largest": 300}
    whole = tl.learn("z1", **ask)
    folder = tmp_path / "places"
    with pytest.raises(Died):
        tl.learn("z1", progress=die_in_the_second_dimension, checkpoint=tl.Checkpoint(folder, every=0.0), **ask)
    kept = ["escape_30.npz", "escape_300.npz", "giant_steps.npz", "one_batch_again.npz"]
    assert sorted(path.name for path in folder.iterdir()) == kept
    resumed = tl.learn("z1", progress=tell, checkpoint=folder, **ask)
    assert resumed.identical(whole) and list(folder.iterdir()) == []
    assert told[:3] == [("giant steps", 1.0), ("one batch again", 1.0), ("escape against d", 0.5)]


def test_a_checkpoint_of_another_version_begins_anew_and_says_so(tmp_path, monkeypatch):
    place = tl.Checkpoint(tmp_path / "place.npz", every=0.0)
    ask = {"until": 2.0, "save": 5, "replicas": 2, "checkpoint": place}

    def dies():
        with pytest.raises(Died):
            tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, progress=die_at(0.5), **ask)

    dies()
    versions = places.versions
    for package in ("twolayer", "jax", "jaxlib", "numpy", "numba"):
        monkeypatch.setattr(places, "versions", lambda names, package=package: versions(names) | {package: "0.0"})
        with pytest.warns(
            tl.CheckpointWarning, match=f"{package} .* but this computation uses {package} 0.0, .* starts again"
        ):
            dies()
        monkeypatch.setattr(places, "versions", versions)
        with pytest.warns(tl.CheckpointWarning, match=f"written with {package} 0.0"):
            dies()
    fractions, fresh = [], []
    tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, progress=lambda name, fraction: fractions.append(fraction), **ask)
    ask.pop("checkpoint")
    tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, progress=lambda name, fraction: fresh.append(fraction), **ask)
    assert fractions[0] > fresh[0]


def test_a_damaged_checkpoint_begins_anew_and_says_so(tmp_path):
    path = tmp_path / "place.npz"
    ask = {"until": 2.0, "save": 5, "replicas": 2}
    path.write_bytes(b"PK\x03\x04")
    with pytest.warns(tl.CheckpointWarning, match=r"'place\.npz\.damaged', and the computation starts again"):
        result = tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, checkpoint=path, **ask)
    assert result.identical(tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, **ask))
    assert [file.name for file in tmp_path.iterdir()] == ["place.npz.damaged"]
    with pytest.raises(Died):
        place = tl.Checkpoint(path, every=0.0)
        tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, progress=die_at(0.5), checkpoint=place, **ask)
    with pytest.warns(tl.CheckpointWarning, match=r"another computation.*place\.npz\.other"):
        tl.evolve(PROBLEM, tl.SGD(0.05), BY_XLA, seed=1, checkpoint=path, **ask)
