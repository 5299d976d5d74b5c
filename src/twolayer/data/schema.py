"""The dataset: names, dimensions, units and attributes, in one place; `validate` is called on every write and read."""

from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.description import Status

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = 1

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "Q": ("replica", "time", "i", "j"),
    "M": ("replica", "time", "i", "r"),
    "P": ("r", "s"),
    "a": ("replica", "time", "i"),
    "risk": ("replica", "time"),
    "excess_risk": ("replica", "time"),
    "risk_error": ("replica", "time"),
    "overlap_error": ("replica", "time"),
    "status": ("replica",),
    "crossing_time": ("replica",),
    "overlap_time": ("replica", "r"),
}

# Variables that some descriptions have.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "particle_a": ("replica", "time", "particle"),
    "particle_M": ("replica", "time", "particle", "r"),
    "particle_q": ("replica", "time", "particle"),
    "training_risk": ("replica", "time"),
    "training_risk_error": ("replica", "time"),
    "C": ("replica", "time", "earlier", "i", "j"),
    "C_error": ("replica", "time", "earlier"),
    "R": ("replica", "time", "earlier", "i", "j"),
    "R_error": ("replica", "time", "earlier"),
}

LONG_NAMES = {
    "Q": "student-student overlaps",
    "M": "student-target overlaps",
    "P": "target-target overlaps",
    "a": "second layer",
    "risk": "population risk, with the noise floor",
    "excess_risk": "population risk above the noise floor",
    "risk_error": "bound on the numerical error of the risk",
    "overlap_error": "bound on the numerical error of any overlap",
    "particle_a": "output weights of the particles",
    "particle_M": "overlaps of the particles with the target",
    "particle_q": "squared lengths of the particles outside of the target's span",
    "training_risk": "risk over the samples of the fixed set, with the noise of their labels",
    "training_risk_error": "bound on the numerical error of the risk over the fixed set",
    "C": "overlaps of the weights at two times",
    "C_error": "bound on the numerical error of any overlap at two times",
    "R": "response of the weights to the noise of an earlier gradient",
    "R_error": "bound on the numerical error of the response",
    "earlier": "time, gamma * samples / (p d)",
    "status": "how the replica ended",
    "crossing_time": "first time at which the excess risk is at most the threshold",
    "overlap_time": "first time at which the cosine of a neuron with the target direction reaches the threshold",
    "time": "time, gamma * samples / (p d)",
    "step": "number of steps taken",
    "samples": "number of samples seen",
}

ATTRIBUTES = (
    "schema",
    "spec",
    "spec_hash",
    "description",
    "exactness",
    "engine",
    "precision",
    "versions",
    "device",
    "seed",
)

STATUS_ATTRIBUTES: dict[str, Any] = {
    "flag_values": [int(status) for status in Status],
    "flag_meanings": " ".join(status.name.lower() for status in Status),
}


def validate(dataset: "xr.Dataset") -> None:
    """Refuse a dataset that does not follow the schema, with the first thing that is wrong."""
    schema = dataset.attrs.get("schema")
    if schema is None:
        raise InvalidInput("This is not a twolayer result: it has no `schema` attribute.")
    if not isinstance(schema, int | np.integer) or schema < 1:
        raise InvalidInput(f"The attribute `schema` of a result must be a whole number, but is {shown(schema)}.")
    if schema > SCHEMA:
        raise InvalidInput(f"This result has schema {schema}, but this version reads up to {SCHEMA}: update twolayer.")
    present = {name: dimensions for name, dimensions in OPTIONAL.items() if name in dataset}
    for name, dimensions in (DIMENSIONS | present).items():
        if name not in dataset:
            raise InvalidInput(f"This result lacks the variable `{name}`.")
        if dataset[name].dims != dimensions:
            raise InvalidInput(
                f"Variable `{name}` must have the dimensions {dimensions}, but has {dataset[name].dims}."
            )
    missing = [name for name in ATTRIBUTES if name not in dataset.attrs]
    if missing:
        raise InvalidInput(f"This result lacks the attribute `{missing[0]}`.")
