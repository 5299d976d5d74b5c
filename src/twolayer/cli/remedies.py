"""What makes `twolayer` slow or incomplete on a machine although nothing is broken, and the command that mends it."""

import os
import shutil
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
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Remedy(NamedTuple):
    """Something that is slow or missing, and the command that mends it."""

    what: str
    command: str


def remedies(platforms: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[Remedy]:
    """What is slow or missing here; ``platforms`` are those of the devices that JAX found."""
    return [
        *_unused_card(platforms),
        *_native_code(environment),
        *_programs(environment),
        *_packages(metadata.requires("twolayer") or []),
        *_browser(),
    ]


def _unused_card(platforms: Sequence[str]) -> Iterator[Remedy]:
    has_card = DRIVER.exists() or shutil.which("nvidia-smi") is not None
    if has_card and not {"gpu", "cuda"} & {platform.lower() for platform in platforms}:
        yield Remedy("there is an NVIDIA card, but JAX was installed without it", 'pip install -U "jax[cuda13]"')


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
    for text in requirements:
        requirement = Requirement(text)
        extra = next((name for name in EXTRAS if _is_for(requirement, name)), "")
        if not extra and not _is_for(requirement, ""):
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.setdefault(extra, []).append(requirement.name)
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            yield Remedy(
                f"{requirement.name} {installed} is not a version that was tried", f'pip install -U "{wanted}"'
            )
    for extra, names in missing.items():
        first = [name for name in names if name not in PARTS]
        if extra and not first:
            lacks = " and ".join(f"{PARTS[name]} without {name}" for name in names)
            yield Remedy(lacks, f'pip install "twolayer[{extra}]"')
            continue
        names = first
        what = f"{EXTRAS[extra]} without {', '.join(names)}" if extra else f"{', '.join(names)} is not installed"
        yield Remedy(what, f'pip install "twolayer[{extra}]"' if extra else f"pip install {' '.join(names)}")


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
        yield Remedy("tests of pages are skipped without a browser", "apt-get install chromium")
