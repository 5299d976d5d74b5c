"""Files are there whole or not at all: threads that write one path, processes that make one parent, full disks."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import twolayer as tl
from twolayer.core import whole_files
from twolayer.core.checkpoint import Place
from twolayer.core.whole_files import make_folder, write_whole

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), start=tl.WarmStart(0.3))
TRAINING = tl.SGD(0.1, constraint=tl.Sphere())
ASK = {"until": 0.5, "save": 4, "replicas": 2}


@pytest.fixture(scope="module")
def result():
    return tl.evolve(PROBLEM, TRAINING, tl.OverlapSGD(backend="xla"), **ASK)


@pytest.fixture
def full_disk(monkeypatch):
    """Every draft that is written meets a full disk, at its first byte."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole_files.os, "fsync", refuse)


def test_threads_that_write_one_path_publish_whole_files_only(tmp_path):
    """Each writes a file of one letter, of its own length; a reader never finds another, and no draft stays."""
    path = tmp_path / "shared"
    contents = {letter.encode() * (200_000 + 1000 * n) for n, letter in enumerate("abcd")}
    stop, wrong, failed = threading.Event(), [], []

    def write(content):
        try:
            for _ in range(25):
                write_whole(path, content)
        except OSError as error:
            failed.append(error)

    def read():
        while not stop.is_set():
            if path.exists() and path.read_bytes() not in contents:
                wrong.append(True)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not failed and not wrong
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared"]


@pytest.mark.slow
def test_processes_make_folders_below_one_new_parent(tmp_path):
    """Each tries the folder as a command does before its work, and then makes it, again and again from nothing."""
    program = """
import shutil, sys
from pathlib import Path
from twolayer.cli.folder import check_writable
from twolayer.core.whole_files import make_folder, write_whole
root, name = Path(sys.argv[1]), sys.argv[2]
for turn in range(150):
    folder = root / str(turn) / "deeper" / name
    check_writable(folder)
    write_whole(make_folder(folder) / "file", b"content")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), name], stderr=subprocess.PIPE, env=environment, text=True
        )
        for name in ("one", "two")
    ]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert written == sorted(f"{turn}/deeper/{name}/file" for turn in range(150) for name in ("one", "two"))
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_that_others_make_and_remove_meanwhile(tmp_path, monkeypatch):
    """The first two tries meet a parent that vanishes, and a folder that vanishes after it was found."""
    refusals = iter([FileNotFoundError(), FileExistsError()])
    real = Path.mkdir

    def mkdir(self, *args, **kwargs):
        for refusal in refusals:
            raise refusal
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert make_folder(tmp_path / "a" / "b").is_dir()
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        make_folder(tmp_path / "file" / "folder")


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path, full_disk, result):
    path = tmp_path / "result.nc"
    path.write_bytes(b"old")
    with pytest.raises(tl.InvalidInput, match="No space left"):
        tl.save(result, path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.nc"]


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(tmp_path, full_disk, monkeypatch, result):
    """It says so once, goes on, and ends with the same numbers."""
    monkeypatch.setattr(Place, "is_due", True)
    with pytest.warns(UserWarning, match="No space left") as said:
        kept = tl.evolve(PROBLEM, TRAINING, tl.OverlapSGD(backend="xla"), checkpoint=tmp_path / "place.npz", **ASK)
    assert len(said) == 1
    np.testing.assert_array_equal(kept.M, result.M)
    assert not list(tmp_path.iterdir())


def test_a_closed_shop_finishes_what_was_begun_and_begins_nothing(tmp_path):
    """In a process of its own, since what is closed stays closed."""
    program = """
import sys, threading, time
from pathlib import Path
from twolayer.core import whole_files
folder = Path(sys.argv[1])
inside, leave = threading.Event(), threading.Event()

def together():
    with whole_files.held():
        whole_files.write_whole(folder / "first", b"1")
        inside.set()
        leave.wait()
        whole_files.write_whole(folder / "second", b"2")

def late():
    whole_files.write_whole(folder / "late", b"3")

threading.Thread(target=together, daemon=True).start()
inside.wait()
threading.Timer(0.3, leave.set).start()
whole_files.close(60.0)
threading.Thread(target=late, daemon=True).start()
time.sleep(0.3)
print(sorted(path.name for path in folder.iterdir()))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, env=environment, text=True, timeout=60
    )
    assert done.stdout.strip() == "['first', 'second']", done.stderr
