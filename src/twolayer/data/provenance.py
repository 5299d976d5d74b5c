"""Where numbers come from: specification, hash, versions, precision, device, seed, citations."""

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from twolayer.core.codec import content_hash, to_json
from twolayer.data.schema import SCHEMA
from twolayer.description import AbstractDescription, Applies, Record
from twolayer.problem import Problem
from twolayer.training import SGD, Schedule

# What computes numbers, and what else it takes to read a result.
NUMERICAL = ("twolayer", "jax", "jaxlib", "numpy", "scipy", "numba", "equinox", "diffrax")
PACKAGES = (*NUMERICAL, "xarray")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of packages: by default of those that a result depends on."""
    known = {"python": platform.python_version()}
    for package in packages:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            known[package] = "not installed"
    return known


def attributes(
    problem: Problem,
    training: SGD | Schedule,
    description: AbstractDescription,
    applies: Applies,
    record: Record,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """The attributes of a result. ``asked`` is what the verb was told: until, save, replicas, seed.

    No clock time is among them: the same specification and seed give the same file.
    """
    spec = {"problem": problem, "training": training, "description": description} | asked
    return {
        "schema": SCHEMA,
        "spec": to_json(spec),
        "spec_hash": content_hash(spec),
        "description": type(description).__name__,
        "exactness": applies.exactness.value,
        "statement": applies.statement,
        "engine": record.engine,
        "precision": str(jnp.result_type(float)),
        "versions": json.dumps(versions()),
        "device": jax.devices()[0].platform,
        "seed": asked["seed"],
        "references": " ".join(description.references),
    }
