"""Try a wheel, with its extras, in a new environment of each Python that it is for. Used by scripts/release.

    python scripts/_pythons.py dist/twolayer-0.2.0-py3-none-any.whl

Pythons are looked for on the path, and among those of pyenv and uv. One that is not found is named, and not tried.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("cluster", "explore", "data")
# What each extra is for, in the least that shows that it is there.
USES = {
    "cluster": "from distributed import Client, LocalCluster",
    "explore": "import twolayer.explore.serve",
    "data": "import pyarrow.parquet",
}


def versions() -> list[str]:
    """The Pythons that the package says it is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kinds = [line.rpartition(" :: ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert kinds, "pyproject.toml names no version of Python."
    return kinds


def candidates(version: str) -> Iterator[str]:
    """Where a Python of a version may be."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python"))
    for folder in (*sorted(pyenv.glob(f"{version}.*")), *sorted(uv.glob(f"cpython-{version}.*"))):
        yield str(folder / "bin" / "python3")


def interpreter(version: str) -> str | None:
    """A Python of a version that runs; None where there is none."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in candidates(version):
        try:
            done = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if done.stdout.strip() == version:  # a shim of pyenv may stand for another one, or for none
            return python
    return None


class Failed(Exception):
    """A step that did not end well."""


def try_wheel(python: str, wheel: Path, folder: Path) -> None:
    """Install a wheel with its extras into a new environment, and use it away from the checkout."""
    run([python, "-m", "venv", "env"], folder)
    own, command = folder / "env" / "bin" / "python", folder / "env" / "bin" / "twolayer"
    pip = [str(own), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run([*pip, str(wheel)], folder)
    version = wheel.name.split("-")[1]
    printed = run([str(command), "--version"], folder).strip()
    if printed != f"twolayer {version}":
        raise Failed(f"twolayer --version must print 'twolayer {version}', but printed '{printed}'.")
    shutil.copyfile(ROOT / "scripts" / "_smoke.py", folder / "smoke.py")
    run([str(own), "-W", "error", "smoke.py"], folder)
    doctor = json.loads(run([str(command), "doctor", "--json"], folder))
    for remedy in doctor["remedies"]:
        print(f"twolayer:   doctor: {remedy['what']}: {remedy['command']}", file=sys.stderr)
    run([str(command), "demo", "--out", "demo", "--quiet", "--json"], folder)
    for extra in EXTRAS:
        run([*pip, f"{wheel}[{extra}]"], folder)
        run([str(own), "-c", USES[extra]], folder)
    open_page(str(command), folder)


def run(command: list[str], folder: Path) -> str:
    """What a command prints, in an environment that knows nothing of the checkout; `Failed` where it fails."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TWOLAYER_CACHE")}


def open_page(command: str, folder: Path) -> None:
    """Start the explorer, and load its page."""
    words = [command, "explore", "--no-browser"]
    with subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            if not link:
                raise Failed("`twolayer explore` must print its address, but printed nothing.")
            with urllib.request.urlopen(link, timeout=120) as page:
                if b"twolayer" not in page.read():
                    raise Failed(f"The page at {link} must be the explorer's, but is another one.")
        finally:
            process.terminate()


def main(wheel: Path) -> int:
    """Try every Python; the status is 0 if all that were found work, and one was."""
    found = {version: interpreter(version) for version in versions()}
    bad = 0
    for version, python in found.items():
        if python is None:
            continue
        print(f"twolayer: Python {version} ({python}): wheel, extras {', '.join(EXTRAS)} ...", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            try:
                try_wheel(python, wheel.resolve(), Path(folder))
            except (Failed, OSError, ValueError, subprocess.TimeoutExpired) as error:
                print(f"twolayer: Python {version} fails: {error}", file=sys.stderr)
                bad += 1
            else:
                print(f"twolayer: Python {version} is well.", file=sys.stderr)
    missing = [version for version, python in found.items() if python is None]
    if missing:
        print(f"twolayer: not found, and not tried: Python {', '.join(missing)}.", file=sys.stderr)
    return int(bad > 0 or len(missing) == len(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
