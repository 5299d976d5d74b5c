"""What `twolayer doctor` says of a machine: what is broken, and what would make it faster."""

import json
import os
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

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


def after(command, environment):
    """The variables of a shell after a command."""
    printed = subprocess.run(
        ["sh", "-c", f"{command}; env"], env=environment | {"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert printed.returncode == 0, printed.stderr
    return dict(line.split("=", 1) for line in printed.stdout.splitlines() if "=" in line)


def wanted(command):
    """The packages that a command installs for this interpreter."""
    python, *words, what = shlex.split(command)
    assert (python, words) == (sys.executable, ["-m", "pip", "install"])
    return Requirement(what)


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A function that puts an NVIDIA card into the machine, with a driver."""
    monkeypatch.setattr(remedies.shutil, "which", lambda name: None)
    monkeypatch.setattr(remedies, "DRIVER", tmp_path / "version")

    def put(driver):
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}.65.06  Sun Jul 27\nGCC version: 12.3.0"
        (tmp_path / "version").write_text(line)

    return put


@pytest.mark.parametrize(
    ("name", "value", "platforms"),
    [
        ("TWOLAYER_CACHE", "off", ("gpu",)),
        ("NUMBA_DISABLE_JIT", "1", ("gpu",)),
        ("JAX_PLATFORMS", "cpu", ("cpu",)),
        ("CUDA_VISIBLE_DEVICES", "", ("cpu",)),
        ("CUDA_VISIBLE_DEVICES", "-1", ("cpu",)),
    ],
)
def test_a_variable_that_slows_down_is_told_and_its_command_mends_it(card, name, value, platforms):
    card(580)
    environment = {name: value}
    commands = said(environment, platforms)
    assert f"unset {name}" in commands and name in commands[f"unset {name}"]
    assert not any("jax[" in command for command in commands)  # which would mend nothing
    assert f"unset {name}" not in said(after(f"unset {name}", environment), platforms)


@pytest.mark.parametrize(("driver", "extra"), [(580, "cuda13"), (575, "cuda12"), (470, "cuda12")])
def test_a_card_that_jax_does_not_use_is_told(card, driver, extra):
    assert not any("jax[" in command for command in said())
    card(driver)
    (command,) = (command for command in said() if "jax[" in command)
    requirement = wanted(command)
    assert (requirement.name, requirement.extras) == ("jax", {extra})
    assert extra in metadata.metadata("jax").get_all("Provides-Extra")
    assert requirement.specifier.contains(metadata.version("jax"))  # and no other version comes with it
    assert not any("jax[" in command for command in said(platforms=("gpu",)))
    assert not any("jax[" in command for command in said({"JAX_PLATFORMS": "cuda,cpu"}, platforms=("cuda",)))


def test_old_and_missing_packages_are_told_with_the_command(installed):
    installed(numpy="1.26.4", distributed=None, sympy=None)
    commands = said()
    (old,) = (command for command, what in commands.items() if "1.26.4" in what)
    assert wanted(old).name == "numpy" and not wanted(old).specifier.contains("1.26.4")
    (extra,) = (command for command, what in commands.items() if "one process without distributed" in what)
    assert (wanted(extra).name, wanted(extra).extras) == ("twolayer", {"cluster"})
    (missing,) = (command for command, what in commands.items() if "sympy is not installed" in what)
    assert wanted(missing).name == "sympy" and str(wanted(missing).specifier)
    assert not any("pytest" in command for command in commands)  # packages of tests are no concern of users
    mended = {"numpy": "2.3.0", "distributed": "2026.1.1", "bokeh": "3.8.0", "sympy": "1.14.0"}
    installed(**mended)
    assert not {old, extra, missing} & said().keys()
    for command in (old, missing):
        assert wanted(command).specifier.contains(mended[wanted(command).name])


def test_a_dashboard_that_is_missing_is_no_missing_cluster(installed):
    installed(bokeh=None, distributed="2026.1.1")
    (command,) = (command for command, what in said().items() if what.endswith("has no dashboard without bokeh"))
    assert wanted(command).extras == {"cluster"}


def test_the_excluded_version_of_jax_is_one_of_them(installed):
    installed(jax="0.10.2")
    (command,) = (command for command, what in said().items() if what.startswith("jax 0.10.2"))
    assert not wanted(command).specifier.contains("0.10.2")


def test_an_environment_without_pip_is_mended_by_uv(monkeypatch):
    monkeypatch.setattr(remedies.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(remedies.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    assert remedies.install("a>=1", "b") == f'uv pip install --python {sys.executable} "a>=1" "b"'


@pytest.mark.parametrize(("manager", "command"), remedies.INSTALLERS.items())
def test_only_a_checkout_is_told_of_a_browser(monkeypatch, manager, command):
    monkeypatch.setattr(remedies.shutil, "which", lambda name: f"/bin/{name}" if name == manager else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert command in said()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (command if manager == "brew" else f"sudo {command}") in said()
    monkeypatch.setattr(remedies.shutil, "which", lambda name: f"/bin/{name}" if name == "chromium" else None)
    assert not any("chromium" in command for command in said())
    monkeypatch.setattr(remedies, "__file__", "/somewhere/site-packages/twolayer/cli/remedies.py")
    monkeypatch.setattr(remedies.shutil, "which", lambda name: None)
    assert not any("chromium" in command for command in said())
