"""What `twolayer doctor` says of a machine: what is broken, and what would make it faster."""

import json
from importlib import metadata

import pytest

import twolayer as tl
from twolayer.cli import main, remedies
from twolayer.cli.remedies import Remedy


def said(environment=None, platforms=("cpu",)):
    """The commands that mend what is slow or missing."""
    return {remedy.command: remedy.what for remedy in remedies.remedies(platforms, environment or {})}


@pytest.fixture
def installed(monkeypatch):
    """A function that changes what is installed: versions by name, None for a package that is not there."""
    version = metadata.version

    def change(**packages):
        def changed(name):
            if name not in packages:
                return version(name)
            if packages[name] is None:
                raise metadata.PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(metadata, "version", changed)

    return change


@pytest.mark.long
def test_it_measures_and_is_healthy(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] and answer["versions"]["twolayer"] == tl.__version__
    assert answer["speed"]["direct_sgd_microseconds_per_step"] > 0
    assert not list(tmp_path.iterdir())


def test_it_names_a_broken_jax_and_what_else_could_be_better(capsys, monkeypatch):
    versions = {"python": "3.11", "jax": "0.10.2"}
    monkeypatch.setattr("twolayer.data.provenance.versions", lambda: versions)
    monkeypatch.setattr("twolayer.cli.doctor.remedies", lambda platforms: [Remedy("it is slow", "mend it")])
    assert main(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "BROKEN" in out and "0.10.2" in out and "could be better: it is slow\n    mend it\n" in out
    assert main(["doctor", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["remedies"] == [{"what": "it is slow", "command": "mend it"}]


def test_an_environment_that_slows_down_is_told():
    assert not {"unset TWOLAYER_CACHE", "unset NUMBA_DISABLE_JIT"} & said().keys()
    assert {"unset TWOLAYER_CACHE", "unset NUMBA_DISABLE_JIT"} <= said(
        {"TWOLAYER_CACHE": "off", "NUMBA_DISABLE_JIT": "1"}
    ).keys()


def test_a_card_that_jax_does_not_use_is_told(monkeypatch, tmp_path):
    command = 'pip install -U "jax[cuda13]"'
    monkeypatch.setattr(remedies.shutil, "which", lambda name: None)
    monkeypatch.setattr(remedies, "DRIVER", tmp_path / "version")
    assert command not in said()
    (tmp_path / "version").write_text("NVRM")
    assert command in said() and command not in said(platforms=("gpu",))


def test_old_and_missing_packages_are_told_with_the_command(installed):
    installed(numpy="1.26.4", distributed=None)
    commands = said()
    (old,) = (command for command in commands if command.startswith('pip install -U "numpy'))
    assert ">=" in old and "1.26.4" in commands[old]
    assert "one process without distributed" in commands['pip install "twolayer[cluster]"']
    assert not any("pytest" in command for command in commands)  # packages of tests are no concern of users


def test_a_dashboard_that_is_missing_is_no_missing_cluster(installed):
    installed(bokeh=None, distributed="2026.1.1")
    assert said()['pip install "twolayer[cluster]"'] == "a running sweep on workers has no dashboard without bokeh"


def test_the_excluded_version_of_jax_is_one_of_them(installed):
    installed(jax="0.10.2")
    assert any(command.startswith('pip install -U "jax') for command in said())


def test_only_a_checkout_is_told_of_a_browser(monkeypatch):
    monkeypatch.setattr(remedies.shutil, "which", lambda name: None)
    assert "apt-get install chromium" in said()
    monkeypatch.setattr(remedies, "__file__", "/somewhere/site-packages/twolayer/cli/remedies.py")
    assert "apt-get install chromium" not in said()
