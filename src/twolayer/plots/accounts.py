"""What plots read from results: accounts with their look, quantiles over replicas, times and samples."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.description import Exactness, Status
from twolayer.plots.style import LINESTYLES, MARKERS, PALETTE

if TYPE_CHECKING:
    import xarray as xr

QUANTILES = (0.1, 0.5, 0.9)


class Account(NamedTuple):
    """One description's dataset without time zero, which has no place on a logarithmic axis, and its look."""

    name: str
    dataset: Any
    starts: Any  # the dataset at time zero
    is_simulation: bool
    color: str
    linestyle: Any
    marker: str

    @property
    def time(self) -> np.ndarray:
        """The saved times after zero."""
        return self.dataset.time.values

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.dataset.sizes["replica"]

    @property
    def label(self) -> str:
        """The name, and how many replicas did not reach the end."""
        lost = [
            f"{number} of {self.replicas} {word}"
            for status, word in ((Status.DIVERGED, "diverged"), (Status.UNFINISHED, "unfinished"))
            if (number := int(np.sum(self.dataset.status.values == status)))
        ]
        return f"{self.name} ({', '.join(lost)})" if lost else self.name

    def one_replica(self, values: np.ndarray, replica: int) -> np.ndarray:
        """The values of one replica, NaN if it was not finished; a single replica stands for all."""
        if self.replicas == 1:
            return values[0]
        there = np.flatnonzero(self.dataset.replica.values == replica)
        return values[there[0]] if there.size else np.full(values.shape[1:], np.nan)

    def values(self, name: str) -> np.ndarray:
        """A variable, NaN where it is not finite."""
        values = self.dataset[name].values
        return np.where(np.isfinite(values), values, np.nan)


def accounts(result: Any) -> list[Account]:
    """The datasets of a comparison, or the one of a single run, in their order."""
    import xarray as xr

    if isinstance(result, xr.Dataset):
        named = {str(result.attrs.get("description", "result")): result}
    elif isinstance(result, xr.DataTree):
        named = {name: child.to_dataset() for name, child in result.children.items()}
    else:
        raise InvalidInput(
            f"Argument `result` must be what `evolve` or `compare` returned, but is a {type(result).__name__}."
        )
    named = {name: dataset for name, dataset in named.items() if dataset.sizes["replica"]}
    if not named:
        raise InvalidInput("Argument `result` holds no finished replica: there is nothing to plot.")
    found: list[Account] = []
    for number, (name, dataset) in enumerate(named.items()):
        is_simulation = dataset.attrs.get("exactness") == Exactness.EXACT.value
        earlier = sum(other.is_simulation == is_simulation for other in found)
        found.append(
            Account(
                name,
                dataset.isel(time=dataset.time.values > 0),
                dataset.isel(time=0),
                is_simulation,
                PALETTE[number % len(PALETTE)],
                LINESTYLES[earlier % len(LINESTYLES)],
                MARKERS[earlier % len(MARKERS)],
            )
        )
    return found


def quantiles(values: np.ndarray) -> np.ndarray:
    """The 10%, 50% and 90% quantiles along the first axis, over what is there.

    NaN where less than half is there: the survivors of a divergence are no fair sample of the runs.
    """
    there = np.isfinite(values)
    enough = 2 * there.sum(axis=0) >= max(1, values.shape[0])
    enough &= there.any(axis=0)
    found = np.full((len(QUANTILES), *values.shape[1:]), np.nan)
    if enough.any():
        found[:, enough] = np.nanquantile(values[:, enough], QUANTILES, axis=0)
    return found


def has_one_start(account: Account) -> bool:
    """Whether all replicas begin at the same overlaps and second layer."""
    return all(
        np.allclose(values, values[:1], rtol=0, atol=1e-12)
        for values in (account.starts[name].values for name in ("Q", "M", "a"))
    )


def samples_per_time(dataset: "xr.Dataset") -> float | None:
    """How many samples over d go by in one unit of time; None when nothing was sampled or d is not recorded."""
    inputs = json.loads(dataset.attrs["spec"]).get("problem", {}).get("inputs", {})
    d = inputs.get("d") or len((inputs.get("X") or [[]])[0])
    time, samples = float(dataset.time.values[-1]), float(dataset.samples.values[-1])
    return samples / (d * time) if d and time > 0 and samples > 0 else None
