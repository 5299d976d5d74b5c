"""A disk that is full, at any file: one sentence, status 3, whole files or none; a run goes on without checkpoints."""

import os
import subprocess

import pytest

from .commands import SPEC, check_whole, start, wait

# Small results, of which every file is larger than the least of the limits below.
COMMANDS = {
    "run": ["run", "small.toml", "--out", "disk/out"],
    "exit-time": ["exit-time", "--d", "1000", "--replicas", "16", "--out", "disk/out"],
    "learn": ["learn", "he2", "--out", "disk/out"],
    "ntk": ["ntk", "sphere", "--n", "50", "--out", "disk/out"],
    "gallery": ["gallery", "escape-times", "--out", "disk/out"],
}


@pytest.fixture
def small_disk(tmp_path):
    """A function that makes ``disk`` in a folder a file system of so many bytes."""
    mounted = []

    def make(kilobytes):
        disk = tmp_path / "disk"
        disk.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
        if os.geteuid() or subprocess.run(command, capture_output=True, timeout=60).returncode:
            pytest.skip("this user may not mount a tmpfs")
        mounted.append(disk)
        (tmp_path / "small.toml").write_text(SPEC)
        return tmp_path

    yield make
    for disk in reversed(mounted):
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


def check_refused(ended, folder):
    assert ended.status == 3, ended
    assert len(ended.err.splitlines()) == 1 and ended.err.startswith("twolayer: "), ended
    assert "could not be written" in ended.err, ended
    return check_whole(folder / "disk")


def test_a_full_disk_at_the_report(small_disk):
    """The first file is larger than the disk: HDF5, which used to write it, crashed there."""
    folder = small_disk(16)
    ended = wait(start(folder, COMMANDS["run"]))
    assert "comparison.nc" not in check_refused(ended, folder) and "No space left" in ended.err


@pytest.mark.long
@pytest.mark.parametrize("kilobytes", [16, 64, 150, 300])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_fills_up_at_any_file(name, kilobytes, small_disk):
    folder = small_disk(kilobytes)
    ended = wait(start(folder, COMMANDS[name]), 600.0)
    if ended.status != 0:
        check_refused(ended, folder)
    else:
        assert check_whole(folder / "disk")


@pytest.mark.parametrize("name", [pytest.param("run", marks=pytest.mark.long), "learn"])
def test_files_that_may_not_become_so_large(name, tmp_path):
    """The same where nothing can be mounted: the system refuses every file beyond a few kilobytes."""
    (tmp_path / "small.toml").write_text(SPEC)
    (tmp_path / "disk").mkdir()

    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))"
    ended = wait(start(tmp_path, COMMANDS[name], before=limit))
    check_refused(ended, tmp_path)
    assert "File too large" in ended.err
