"""What makes `twolayer` slow or incomplete on a machine although nothing is broken, and the command that mends it."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# What a user misses without the packages of an extra.
EXTRAS = {
    "data": "Parquet files cannot be read",
    "cluster": "sweeps run in one process",
    "explore": "`twolayer explore` cannot start",
}
# Packages of an extra whose lack is felt in one place alone, and is told where nothing else of the extra is missing.
PARTS = {"bokeh": "a running sweep on workers has no dashboard"}
# Where the driver of an NVIDIA card shows itself.
DRIVER = Path("/proc/driver/nvidia/version")
# The oldest drivers on which the libraries of CUDA run that JAX brings, the newest first.
CUDA = (("cuda13", 580), ("cuda12", 525))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# How a browser is installed, by the program that does so.
INSTALLERS = {
    "apt-get": "apt-get install -y chromium",
    "dnf": "dnf install -y chromium",
    "pacman": "pacman -S --noconfirm chromium",
    "brew": "brew install --cask chromium",
}


class Remedy(NamedTuple):
    """Something that is slow or missing, and the command that mends it."""

    what: str
    command: str


def remedies(platforms: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[Remedy]:
    """What is slow or missing here; ``platforms`` are those of the devices that JAX found."""
    return [
        *_unused_card(platforms, environment),
        *_native_code(environment),
        *_programs(environment),
        *_packages(metadata.requires("twolayer") or []),
        *_browser(),
    ]


def install(*requirements: str) -> str:
    """The command that installs packages for this very interpreter, of which there may be several on the machine."""
    python = shlex.quote(sys.executable)
    wanted = " ".join(f'"{requirement}"' for requirement in requirements)
    if importlib.util.find_spec("pip") is None and shutil.which("uv") is not None:
        return f"uv pip install --python {python} {wanted}"
    return f"{python} -m pip install {wanted}"


def _unused_card(platforms: Sequence[str], environment: Mapping[str, str]) -> Iterator[Remedy]:
    has_card = DRIVER.exists() or shutil.which("nvidia-smi") is not None
    if not has_card or {"gpu", "cuda"} & {platform.lower() for platform in platforms}:
        return
    chosen = environment.get("JAX_PLATFORMS", "")
    if chosen and not {"gpu", "cuda"} & set(chosen.lower().split(",")):
        yield Remedy(f"there is an NVIDIA card, but JAX_PLATFORMS={chosen} leaves it out", "unset JAX_PLATFORMS")
    elif environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        yield Remedy("there is an NVIDIA card, but CUDA_VISIBLE_DEVICES hides it", "unset CUDA_VISIBLE_DEVICES")
    else:
        what = "there is an NVIDIA card, but JAX was installed without it, or with parts of other versions"
        # The version of JAX stays: a newer one may be one that was not tried, and parts for CUDA must be of the same.
        yield Remedy(what, install(f"jax[{_cuda()}]=={metadata.version('jax')}"))


def _cuda() -> str:
    """The extra of JAX whose libraries run on the driver here, as far as its version can be read."""
    version = re.search(r"Kernel Module.*?\s(\d+)\.\d", DRIVER.read_text()) if DRIVER.exists() else None
    offered = metadata.metadata("jax").get_all("Provides-Extra") or []
    known = [(extra, oldest) for extra, oldest in CUDA if extra in offered] or list(CUDA)
    return next((extra for extra, oldest in known if version is None or int(version[1]) >= oldest), known[-1][0])


def _native_code(environment: Mapping[str, str]) -> Iterator[Remedy]:
    if environment.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        yield Remedy("NUMBA_DISABLE_JIT is set: simulations have no native code", "unset NUMBA_DISABLE_JIT")


def _programs(environment: Mapping[str, str]) -> Iterator[Remedy]:
    if environment.get("TWOLAYER_CACHE", "").lower() == "off":
        what = "TWOLAYER_CACHE=off: every process compiles its programs again, which takes seconds"
        yield Remedy(what, "unset TWOLAYER_CACHE")


def _packages(requirements: Sequence[str]) -> Iterator[Remedy]:
    """Packages that are older than the versions that were tried, and extras of which something is missing."""
    from packaging.requirements import Requirement

    missing: dict[str, list[str]] = {}
    wanted_of: dict[str, str] = {}
    for text in requirements:
        requirement = Requirement(text)
        extra = next((name for name in EXTRAS if _is_for(requirement, name)), "")
        if not extra and not _is_for(requirement, ""):
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.setdefault(extra, []).append(requirement.name)
            wanted_of[requirement.name] = f"{requirement.name}{requirement.specifier}"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            yield Remedy(f"{requirement.name} {installed} is not a version that was tried", install(wanted))
    for extra, names in missing.items():
        first = [name for name in names if name not in PARTS]
        if extra and not first:
            lacks = " and ".join(f"{PARTS[name]} without {name}" for name in names)
            yield Remedy(lacks, install(f"twolayer[{extra}]"))
            continue
        names = first
        what = f"{EXTRAS[extra]} without {', '.join(names)}" if extra else f"{', '.join(names)} is not installed"
        yield Remedy(what, install(*([f"twolayer[{extra}]"] if extra else (wanted_of[name] for name in names))))


def _is_for(requirement: "Requirement", extra: str) -> bool:
    """Whether a requirement is one of an extra, or of the package itself where the extra is empty."""
    if requirement.marker is None:
        return extra == ""
    is_always = requirement.marker.evaluate({"extra": ""})
    return is_always if extra == "" else not is_always and requirement.marker.evaluate({"extra": extra})


def _browser() -> Iterator[Remedy]:
    """A browser is needed by tests alone, so that only a checkout is told."""
    is_checkout = (Path(__file__).parents[3] / "scripts" / "test").exists()
    if is_checkout and not any(shutil.which(name) for name in BROWSERS):
        command = next((command for name, command in INSTALLERS.items() if shutil.which(name)), INSTALLERS["apt-get"])
        needs_root = not command.startswith("brew") and hasattr(os, "geteuid") and os.geteuid() != 0
        yield Remedy("tests of pages are skipped without a browser", f"{'sudo ' * needs_root}{command}")
