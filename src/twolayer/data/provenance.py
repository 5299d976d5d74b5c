"""Provenance of results: specification, hash, versions, precision, device, seed, citations."""

import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from twolayer.specification.codec import content_hash, to_json

# Packages on which numbers depend, and those that are needed to read a result.
NUMERICAL = ("twolayer", "jax", "jaxlib", "numpy", "scipy", "numba", "equinox")
PACKAGES = (*NUMERICAL, "xarray")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of packages, by default of those on which a result depends."""
    return {"python": platform.python_version()} | {package: _version(package) for package in packages}


@cache  # a process has one of each, and looking it up takes milliseconds
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@runtime_checkable
class Specification(Protocol):
    """The specification of a result: its canonical JSON, and the hash that identifies it."""

    @property
    def json(self) -> str:
        """The canonical JSON."""
        ...

    @property
    def key(self) -> str:
        """The hash of the canonical JSON."""
        ...


class Question(NamedTuple):
    """The specification of an analysis: its name, and everything that its result depends on."""

    analysis: str
    fields: Mapping[str, Any]

    @property
    def json(self) -> str:
        """The canonical JSON."""
        return to_json({"analysis": self.analysis, **self.fields})

    @property
    def key(self) -> str:
        """The hash of the canonical JSON."""
        return content_hash({"analysis": self.analysis, **self.fields})


def provenance(specification: Specification, seed: int, references: Sequence[str] = ()) -> dict[str, Any]:
    """The attributes that every result carries.

    No clock time is among them: the same specification and seed give the same file.
    """
    return {
        "spec": specification.json,
        "spec_hash": specification.key,
        "precision": str(jnp.result_type(float)),
        "versions": json.dumps(versions()),
        "device": jax.devices()[0].platform,
        "seed": seed,
        "references": " ".join(references),
    }
