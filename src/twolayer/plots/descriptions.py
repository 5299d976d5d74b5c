"""What plots read from results: descriptions with their look, parts along a dimension, quantiles over replicas."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from twolayer.core.errors import InvalidInput
from twolayer.description import Exactness, Status
from twolayer.plots.style import colors

Result: TypeAlias = (
    xr.Dataset | xr.DataTree
)  # what `evolve` or `compare` returns, or several of these along a dimension

QUANTILES = (0.1, 0.5, 0.9)
# Of dimensions along which results are often put together; others are written by their names.
SYMBOLS = {"learning_rate": r"\gamma", "d": "d", "p": "p", "k": "k", "noise": r"\Delta", "batch_size": "n_b"}


class ShownDescription(NamedTuple):
    """One description's dataset without time zero, which has no place on a logarithmic axis, and its look."""

    name: str
    dataset: Any
    starts: Any  # the dataset at time zero
    is_simulation: bool
    color: str
    place: int  # among the simulations, or among the theories: gives its marker or line style
    is_colored: bool = False  # whether colours tell values of a dimension apart
    value: str = ""  # of that dimension, if it depends on it

    @property
    def time(self) -> np.ndarray:
        """The saved times after zero."""
        return self.dataset.time.values

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.dataset.sizes["replica"]

    @property
    def lost(self) -> str:
        """How many replicas did not reach the end, in words; empty where all did."""
        lost = [
            f"{number} of {self.replicas} {word}"
            for status, word in ((Status.DIVERGED, "diverged"), (Status.UNFINISHED, "unfinished"))
            if (number := int(np.sum(self.dataset.status.values == status)))
        ]
        return ", ".join(lost)

    @property
    def has_one_start(self) -> bool:
        """Whether all replicas begin at the same overlaps and second layer."""
        return all(
            np.allclose(values, values[:1], rtol=0, atol=1e-12)
            for values in (self.starts[name].values for name in ("Q", "M", "a"))
        )

    @property
    def samples_per_time(self) -> float | None:
        """How many samples over d go by in one unit of time; None when nothing was sampled or d is not recorded."""
        if not self.time.size:
            return None
        d = self.d
        time, samples = float(self.time[-1]), float(self.dataset.samples.values[-1])
        return samples / (d * time) if d and time > 0 and samples > 0 else None

    @property
    def d(self) -> float:
        """The input dimension; 0 where it is not recorded."""
        if "d" in self.dataset.coords:  # results of several d share one specification
            return float(self.dataset.d)
        inputs = json.loads(self.dataset.attrs["spec"]).get("problem", {}).get("inputs", {})
        return float(inputs.get("d") or len((inputs.get("X") or [[]])[0]))

    @property
    def has_variance_floor(self) -> bool:
        """Whether the least risk is half a variance: quadratic losses and additive noise, in all phases."""
        asked = json.loads(self.dataset.attrs["spec"])
        parts = [asked.get("problem", {}), *asked.get("training", {}).get("phases", [])]
        losses = {loss["kind"] for part in parts if (loss := part.get("loss"))}
        return losses <= {"Square", "Correlation"} and not any(isinstance(part.get("noise"), dict) for part in parts)

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


class Facet(NamedTuple):
    """The descriptions of one column of panels, and the value of the dimension to which the column belongs."""

    value: str
    descriptions: list[ShownDescription]


def facets(result: object, hue: str | None = None, col: str | None = None) -> list[Facet]:
    """The datasets of a comparison, or the one of a single run, in their order.

    Parameters
    ----------
    result
        What `evolve` or `compare` returned, or several such datasets put together along new dimensions.
    hue, col
        The dimensions whose values colours and columns of panels tell apart.
    """
    datasets = named_datasets(result)
    check_dimensions(datasets, hue=hue, col=col)
    columns: dict[str, dict[str, xr.Dataset]] = {}
    for name, dataset in datasets.items():
        for value, part in parts(dataset, col).items():
            columns.setdefault(value, {})[name] = part
    for name, part in columns.pop("", {}).items() if col and len(columns) > 1 else ():
        for column in columns.values():  # what does not depend on the dimension stands in every column
            column[name] = part
    values = list(dict.fromkeys(value for dataset in datasets.values() for value in parts(dataset, hue) if value))
    palette = dict(zip(values, colors(len(values)), strict=True)) | {"": "black"}
    is_simulation = [dataset.attrs.get("exactness") == Exactness.EXACT.value for dataset in datasets.values()]
    shown: list[Facet] = []
    for value, column in columns.items():
        facet = Facet(value, [])
        for number, (name, color) in enumerate(zip(datasets, colors(len(datasets)), strict=True)):
            for hue_value, part in parts(column[name], hue).items() if name in column else ():
                facet.descriptions.append(
                    ShownDescription(
                        name,
                        part.isel(time=part.time.values > 0),
                        part.isel(time=0),
                        is_simulation[number],
                        palette[hue_value] if hue else color,
                        is_simulation[:number].count(is_simulation[number]),
                        hue is not None,
                        hue_value,
                    )
                )
        shown.append(facet)
    return shown


def named_datasets(result: object) -> dict[str, xr.Dataset]:
    """The datasets of a result that hold a finished replica, by the names of their descriptions."""
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
    return named


def check_dimensions(datasets: Mapping[str, xr.Dataset], **asked: str | None) -> None:
    """Refuse a dimension that the results do not have, and results with a dimension that no one asked for."""
    present = {str(dim) for dataset in datasets.values() for dim in dataset.excess_risk.dims} - {"time"}
    named = [dim for dim in asked.values() if dim is not None]
    for argument, dim in asked.items():
        if dim is not None and (dim not in present or named.count(dim) > 1):
            known = ", ".join(sorted(present))
            raise InvalidInput(f"Argument `{argument}` must be a dimension of its own among {known}, but is {dim!r}.")
    left = sorted(present - {"replica", *named})
    if left:
        arguments = " or ".join(f"`{argument}`" for argument in asked)
        raise InvalidInput(
            f"Argument `result` has the further dimension `{left[0]}`, but none of {arguments} names it."
        )


def parts(dataset: xr.Dataset, dim: str | None) -> dict[str, xr.Dataset]:
    """The dataset at each value along a dimension, by labels of the values; whole where it has no such dimension."""
    if dim is None or dim not in dataset.dims:
        return {"": dataset}
    pieces: dict[str, xr.Dataset] = {}
    for number in range(dataset.sizes[dim]):
        value = dataset[dim].values[number] if dim in dataset.coords else number
        pieces[value_label(dim, value)] = _unpadded(dataset.isel({dim: [number] if dim == "replica" else number}))
    return pieces


def value_label(dim: str, value: object) -> str:
    """A value of a dimension in the words of a legend or a title."""
    kind = np.asarray(value).dtype.kind
    written = f"{value:g}" if kind in "iuf" else str(value)
    if kind in "iu" and int(float(written)) != value:  # large numbers that six digits do not tell apart
        written = str(value)
    return f"${SYMBOLS[dim]}={written}$" if dim in SYMBOLS else f"{dim.replace('_', ' ')} {written}"


def _unpadded(dataset: xr.Dataset) -> xr.Dataset:
    """Without the missing values that `xarray.concat` fills in where times, replicas or neurons differ."""
    kept: dict[str, np.ndarray] = {}
    for dim, name in (("time", "step"), ("replica", "status")):
        if name in dataset and dataset[name].dims == (dim,):
            kept[dim] = np.isfinite(dataset[name].values.astype(float))
    if "time" in kept:
        kept["earlier"] = kept["time"]
    for pair, name in ((("i", "j"), "a"), (("r", "s"), "P")):
        if name in dataset:
            start = dataset[name].isel(time=0, missing_dims="ignore")
            there = start.notnull().any([dim for dim in start.dims if dim != pair[0]])
            kept |= {dim: there.values for dim in pair}
    return dataset.isel({dim: there for dim, there in kept.items() if dim in dataset.dims and not there.all()})


def quantiles(values: np.ndarray) -> np.ndarray:
    """The 10%, 50% and 90% quantiles along the first axis, over what is there.

    NaN where less than half is there: the survivors of a divergence are no fair sample of the runs.
    """
    there = np.isfinite(values)
    enough = 2 * there.sum(axis=0) >= max(1, values.shape[0])
    enough &= there.any(axis=0)
    result = np.full((len(QUANTILES), *values.shape[1:]), np.nan)
    if enough.any():
        result[:, enough] = np.nanquantile(values[:, enough], QUANTILES, axis=0)
    return result
