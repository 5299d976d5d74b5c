"""A place on disk: what was kept comes back, what is damaged or another's is set aside, and nothing raises."""

import os
import random
import socket
import subprocess
import sys

import numpy as np
import pytest

from twolayer.core import checkpoint as module
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import CheckpointWarning, InvalidInput
from twolayer.core.whole_files import remove_drafts

WHO = {"computation": "this", "jax": "1.0"}
ARRAYS = {"step": np.asarray(7), "W": np.arange(600.0).reshape(20, 30), "name": np.array("erf")}


def saved(path, identity=WHO):
    place = Checkpoint(path, every=0.0).open(identity)
    place.finish("first", {"Q": np.arange(5.0)})
    place.save(ARRAYS)
    return path.read_bytes()


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_what_was_kept_comes_back(tmp_path):
    path = tmp_path / "new" / "place.npz"
    saved(path)
    place = Checkpoint(path, every=0.0).open(WHO)
    assert same(place.load(), ARRAYS) and same(place.part("first"), {"Q": np.arange(5.0)})
    assert place.part("second") is None and place.result is None
    place.finish("second", {"Q": np.zeros(2)})
    place = Checkpoint(path, every=0.0).open(WHO)
    assert place.load() is None and same(place.part("second"), {"Q": np.zeros(2)})
    place.conclude({"Q": np.ones(3)})
    place = Checkpoint(path, every=0.0).open(WHO)
    assert same(place.result, {"Q": np.ones(3)}) and place.part("first") is None
    place.remove()
    assert list(path.parent.iterdir()) == []


def test_what_took_less_than_the_interval_is_not_written(tmp_path):
    place = Checkpoint(tmp_path / "place.npz", every=100.0).open(WHO)
    place.finish("first", ARRAYS)
    place.conclude(ARRAYS)
    assert not place.is_due and list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="every"):
        Checkpoint(tmp_path / "place.npz", every=-1.0)
    with pytest.raises(InvalidInput, match="must be the path of a file or folder, but is ''"):
        Checkpoint("")


def as_folder(path, content):
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("something")


def as_pipe(path, content):
    path.unlink()
    os.mkfifo(path)


def as_bytes(change):
    return lambda path, content: path.write_bytes(change(content))


DAMAGES = {
    "empty": as_bytes(lambda content: b""),
    "truncated": as_bytes(lambda content: content[: len(content) // 2]),
    "zeros in the middle": as_bytes(lambda content: content[:2000] + bytes(200) + content[2200:]),
    "text": as_bytes(lambda content: b"not a checkpoint"),
    "another format": lambda path, content: np.savez(path, fingerprint=np.array("x"), step=np.asarray(3)),
    "one array": lambda path, content: path.write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'shape': (3,), }"),
    "a folder": as_folder,
    "a pipe": as_pipe,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_set_aside(tmp_path, damage):
    path = tmp_path / "place.npz"
    for name in ("place.npz.damaged", "place.npz.damaged2"):
        DAMAGES[damage](path, saved(path))
        with pytest.warns(CheckpointWarning, match=rf"is damaged .* renamed to '{name}', and .* starts again\.$"):
            place = Checkpoint(path, every=0.0).open(WHO)
        assert place.load() is None and not path.exists() and os.path.lexists(tmp_path / name)
        place.save(ARRAYS)  # and the place can be kept again
        assert same(Checkpoint(path).open(WHO).load(), ARRAYS)
        path.unlink()


@pytest.mark.filterwarnings("ignore::twolayer.core.errors.CheckpointWarning")
def test_random_damage_never_gives_other_numbers(tmp_path):
    """Bytes are changed, cut out or doubled at 400 random places: the arrays are those that were kept, or none."""
    generator = random.Random(15)
    path = tmp_path / "place.npz"
    content = saved(path)
    refused = 0
    for _ in range(400):
        first = generator.randrange(len(content))
        last = min(len(content), first + generator.choice([1, 2, 8, 100, 3000]))
        middle = generator.choice(
            [b"", bytes(last - first), generator.randbytes(last - first), 2 * content[first:last]]
        )
        path.write_bytes(content[:first] + middle + content[last:])
        place = Checkpoint(path, every=0.0).open(WHO)
        if place.load() is None:
            refused += 1
            assert place.part("first") is None
        else:
            assert same(place.load(), ARRAYS) and same(place.part("first"), {"Q": np.arange(5.0)})
    assert refused > 300


def test_the_file_of_another_computation_or_version_is_not_continued(tmp_path, monkeypatch):
    path = tmp_path / "place.npz"
    saved(path)
    with pytest.warns(CheckpointWarning, match=r"belongs to another computation: .*'place.npz.other'"):
        assert Checkpoint(path).open(WHO | {"computation": "that"}).load() is None
    saved(path)
    with pytest.warns(
        CheckpointWarning, match=r"with jax 1\.0, but this computation uses jax 1\.1, whose .*'place.npz.other2'"
    ):
        assert Checkpoint(path).open(WHO | {"jax": "1.1"}).load() is None
    saved(path)
    monkeypatch.setattr(module, "FORMAT", 1000)
    with pytest.warns(CheckpointWarning, match="but this computation uses format 1000"):
        assert Checkpoint(path).open(WHO).load() is None
    with np.load(tmp_path / "place.npz.other") as kept:  # nothing of it is lost
        np.testing.assert_array_equal(kept["now/W"], ARRAYS["W"])


def test_drafts_of_killed_processes_are_removed(tmp_path):
    """Those of this machine: a process of another one that has the number of a dead one here may still be writing."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    path, number, here = tmp_path / "place.npz", ended.stdout.strip(), socket.gethostname().replace(".", "-")
    dead, alive = (tmp_path / f".place.npz.{here}.{process}.0f.part" for process in (number, os.getppid()))
    elsewhere = tmp_path / f".place.npz.not-{here}.{number}.0f.part"
    other = tmp_path / f".other.npz.{here}.{number}.0f.part"
    for draft in (dead, alive, elsewhere, other):
        draft.write_bytes(b"half")
    Checkpoint(path).open(WHO)
    assert not dead.exists() and alive.exists() and elsewhere.exists() and other.exists()
    remove_drafts(tmp_path)
    assert alive.exists() and elsewhere.exists() and not other.exists()
