"""Datasets as curves of a page: plain lists, with None where a number does not exist."""

from typing import TYPE_CHECKING

import numpy as np

from twolayer.description import Exactness, Status
from twolayer.explore.messages import Tables

if TYPE_CHECKING:
    import xarray as xr

Plain = list[object] | float | int | str | None  # numbers, and lists of lists of them

MAX_SHOWN = 64  # single runs of a curve
LOW, HIGH = 0.1, 0.9  # the band over runs


def curve(name: str, dataset: "xr.Dataset", d: int) -> Tables:
    """One description in ``d`` dimensions as a curve of the excess risk, with the overlaps of the first run."""
    excess = dataset.excess_risk.values
    replicas = excess.shape[0]
    is_simulation = dataset.attrs["exactness"] == Exactness.EXACT.value
    low, high = np.quantile(excess, (LOW, HIGH), axis=0) if replicas > 1 else (None, None)
    return {
        "name": name,
        "kind": "simulation" if is_simulation else "theory",
        "replicas": replicas,
        "d": d,
        "time": as_lists(dataset.time.values),
        "samples": as_lists(dataset.samples.values),
        "excess_risk": as_lists(excess.mean(axis=0)),
        "risk": as_lists(dataset.risk.values.mean(axis=0)),
        "low": as_lists(low),
        "high": as_lists(high),
        "error": as_lists(dataset.risk_error.values.max(axis=0)),
        "runs": as_lists(excess[:MAX_SHOWN]),
        "Q": as_lists(dataset.Q.values[0]),
        "M": as_lists(dataset.M.values[0]),
        "a": as_lists(dataset.a.values[0]),
        "P": as_lists(dataset.P.values),
        "status": [Status(int(status)).name.lower() for status in dataset.status.values],
        "statement": dataset.attrs["statement"],
        "engine": dataset.attrs["engine"],
    }


def deviations(tree: "xr.DataTree") -> list[Tables]:
    """How far every other description is from the judge, in standard errors of the mean risk."""
    known = []
    for name, node in tree.children.items():
        child = node.to_dataset()
        if "deviation_risk" not in child:
            continue
        z = child["deviation_risk"].values
        seen = np.abs(z[np.isfinite(z)])
        known.append(
            {
                "name": name,
                "time": as_lists(child.time.values),
                "risk": as_lists(z),
                "largest": float(seen.max()) if seen.size else None,
                "threshold": as_lists(np.asarray(child.attrs.get("threshold", np.nan))),
            }
        )
    return known


def as_lists(values: np.ndarray | None) -> Plain:
    """Nested lists of an array; numbers that are not finite, and missing arrays, are None."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    listed = array.astype(object)
    listed[~np.isfinite(array)] = None
    return listed.tolist()
