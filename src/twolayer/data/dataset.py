"""From records of descriptions to labelled datasets."""

from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.data.schema import STATUS_ATTRIBUTES, TRAJECTORY, label
from twolayer.description import Plan, Record, with_finite_rows

if TYPE_CHECKING:
    import xarray as xr


def to_dataset(
    record: Record, plan: Plan, samples: np.ndarray, floor: float | np.ndarray, attributes: dict[str, Any]
) -> "xr.Dataset":
    """Label the arrays of a record with names, units and coordinates.

    A replica with a number that is not finite never has the status done.
    """
    dataset = label(TRAJECTORY, *trajectory_arrays(record, plan, samples, floor), attributes)
    dataset.status.attrs.update(STATUS_ATTRIBUTES)
    return dataset


def trajectory_arrays(
    record: Record, plan: Plan, samples: np.ndarray, floor: float | np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The variables and the coordinates of a dataset of trajectories, as plain arrays."""
    record = with_finite_rows(record)
    others = {name: np.asarray(value) for name, value in (record.others or {}).items()}
    arrays = record._asdict() | {"P": plan.starts.P, "risk": record.excess_risk + floor}
    values = {name: np.asarray(arrays[name]) for name in TRAJECTORY.variables} | others
    replicas, _, p, k = np.shape(record.M)
    coordinates = {
        "replica": np.arange(replicas),
        "time": plan.times,
        "step": plan.steps,
        "samples": samples,
        "i": np.arange(p),
        "j": np.arange(p),
        "r": np.arange(k),
        "s": np.arange(k),
    }
    blocks = plan.starts.blocks
    if blocks is not None:
        frame = blocks.frame
        values["P_block"] = np.asarray(frame.P)
        coordinates |= {"block": np.arange(len(frame.ranks)), "eigenvalue": np.asarray(frame.eigenvalues)}
        coordinates["share"] = frame.shares
    if "task_risk" in others:
        coordinates["task"] = np.arange(1, others["task_risk"].shape[-1] + 1)
    if any("earlier" in TRAJECTORY.optional[name].dimensions for name in others):
        coordinates["earlier"] = plan.times
    return values, coordinates
