"""Records become labelled datasets."""

from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.data.schema import DIMENSIONS, LONG_NAMES, OPTIONAL, STATUS_ATTRIBUTES, validate
from twolayer.description import Plan, Record, with_finite_rows

if TYPE_CHECKING:
    import xarray as xr


def to_dataset(
    record: Record, plan: Plan, samples: np.ndarray, noise: float, attributes: dict[str, Any]
) -> "xr.Dataset":
    """Put names on the arrays of a record; a replica with a number that is not finite is never called done."""
    import xarray as xr

    record = with_finite_rows(record)
    others = record.others or {}
    values = (
        record._asdict()
        | others
        | {
            "P": np.asarray(plan.starts.P),
            "risk": record.excess_risk + 0.5 * noise,
        }
    )
    variables = {
        name: (dimensions, np.asarray(values[name]), {"long_name": LONG_NAMES[name]})
        for name, dimensions in (DIMENSIONS | {name: OPTIONAL[name] for name in others}).items()
    }
    variables["status"][2].update(STATUS_ATTRIBUTES)
    replicas, _, p, k = np.shape(record.M)
    coordinates = {
        "replica": np.arange(replicas),
        "time": ("time", plan.times, {"long_name": LONG_NAMES["time"]}),
        "step": ("time", plan.steps, {"long_name": LONG_NAMES["step"]}),
        "samples": ("time", samples, {"long_name": LONG_NAMES["samples"]}),
        "i": np.arange(p),
        "j": np.arange(p),
        "r": np.arange(k),
        "s": np.arange(k),
    }
    if any("earlier" in OPTIONAL[name] for name in others):
        coordinates["earlier"] = ("earlier", plan.times, {"long_name": LONG_NAMES["earlier"]})
    dataset = xr.Dataset(variables, coordinates, attributes)
    validate(dataset)
    return dataset
