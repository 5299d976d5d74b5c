"""Where numbers come from: specification, hash, versions, precision, device, seed, citations."""

import json
import platform
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from twolayer.core.codec import content_hash, to_json
from twolayer.data.schema import SCHEMA
from twolayer.description import AbstractDescription, Applies, Record
from twolayer.problem import Problem
from twolayer.training import SGD, Schedule

PACKAGES = ("twolayer", "jax", "jaxlib", "numpy", "equinox", "diffrax", "xarray")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


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
