"""Streams and settings that are no good: one sentence, a status of the contract, no traceback, nothing written."""

import json
import os
import subprocess
import sys

import pytest

from twolayer.cli import main

LIST = ["gallery"]
ANSWER = ["learn", "he2"]


def run(*arguments, stdout=subprocess.PIPE, **settings):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", "twolayer", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | settings,
        timeout=120,
    )


def check_sentence(done, status, *words):
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("twolayer: ") and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in words)


@pytest.mark.parametrize("arguments", [LIST, ["gallery", "--json", "--quiet"], ["--version"]])
def test_a_full_device_as_stdout(arguments):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        check_sentence(run(*arguments, stdout=full), 3, "standard output", "No space left")


@pytest.mark.parametrize("arguments", [LIST, ["--help"]])
def test_a_reader_that_has_gone(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        check_sentence(run(*arguments, stdout=pipe), 3, "standard output", "Broken pipe")


def test_a_stderr_that_takes_nothing_leaves_the_status():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "twolayer", "explain", "missing.toml"]
        assert subprocess.run(command, stdout=full, stderr=full, env=environment, timeout=120).returncode == 2


def test_ascii_only_output_is_the_same_up_to_codes(capsys):
    assert main(ANSWER) == 0
    plain = capsys.readouterr().out
    assert not plain.isascii(), "the test would be blind"
    ascii_only = run(*ANSWER, PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0, ascii_only.stderr
    assert ascii_only.stdout == plain.encode("ascii", "backslashreplace").decode()


def test_settings_of_jax_that_it_does_not_know():
    check_sentence(run(*ANSWER, JAX_ENABLE_X64="banana"), 2, "JAX_ENABLE_X64", "banana")
    check_sentence(run(*ANSWER, JAX_PLATFORMS="bogus"), 2, "JAX_PLATFORMS='bogus'")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "some.toml", "--out", ""],
        ["demo", "--out", ""],
        ["exit-time", "--out", ""],
        ["learn", "he2", "--out", " "],
        ["ntk", "--out", ""],
        ["ntk", "mnist", "--data-dir", ""],
        ["gallery", "all", "--out", ""],
        ["gallery", "all", "--data-dir", ""],
    ],
)
def test_an_empty_folder_is_an_unset_variable(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert arguments[-2] in err and "empty" in err and err.count("\n") == 1
    assert json.loads(out)["status"] == 2
    assert not list(tmp_path.iterdir())
