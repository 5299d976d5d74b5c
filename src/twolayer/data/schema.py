"""Schemas of results: for each kind its variables with dimensions, units and long names, and its attributes.

Every result of a verb is a labelled dataset of one kind. A kind is defined once, by a `Schema` next to the verb that
returns it; `validate` is called whenever a result is written or read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.text import Text
from twolayer.description import Status

if TYPE_CHECKING:
    import xarray as xr

# The version of the attributes and of all kinds together. Version 1 has only trajectories, without `kind`.
SCHEMA = 2
TIME_UNIT = "p d / learning_rate samples"

ATTRIBUTES = ("schema", "spec", "spec_hash", "precision", "versions", "device", "seed")


class Variable(NamedTuple):
    """A variable of a result: its dimensions, its long name, and its unit ("1" if it has none)."""

    dimensions: tuple[str, ...]
    long_name: str
    units: str = "1"


@dataclass(frozen=True)
class Schema:
    """The schema of one kind of result.

    Parameters
    ----------
    kind
        The name of the kind, in the attribute ``kind`` of a dataset.
    variables
        The variables that every result of this kind has.
    optional
        The variables that some results of this kind have.
    coordinates
        The coordinates that every result of this kind has.
    attributes
        The attributes besides those of all kinds.
    summary
        The function that writes the short table of a result: numbers, errors, verdict.
    """

    kind: str
    variables: Mapping[str, Variable]
    optional: Mapping[str, Variable] = field(default_factory=dict)
    coordinates: Mapping[str, Variable] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    summary: Callable[["xr.Dataset"], Text] | None = None


_KINDS: dict[str, Schema] = {}


def add_kind(schema: Schema) -> Schema:
    """Make a kind of result known to `save`, `load` and `summary`."""
    if schema.kind in _KINDS:
        raise InvalidInput(f"There are two kinds of result named {schema.kind!r}.")
    _KINDS[schema.kind] = schema
    return schema


def kind_of(attributes: Mapping[Any, Any]) -> str:
    """The kind of a result from its attributes; results without the attribute ``kind`` are trajectories."""
    return str(attributes.get("kind", "trajectory"))


def check_kind(result: object, kind: str, verb: str, argument: str = "result") -> "xr.Dataset":
    """The dataset that a verb returned; raises `InvalidInput` if it is anything else."""
    import xarray as xr

    if isinstance(result, xr.Dataset) and kind_of(result.attrs) == kind:
        return result
    is_dataset = isinstance(result, xr.Dataset)
    other = f"its kind is {kind_of(result.attrs)!r}" if is_dataset else f"is a {type(result).__name__}"
    raise InvalidInput(f"Argument `{argument}` must be what `{verb}` returned, but {other}.")


def schema_of(dataset: "xr.Dataset") -> Schema:
    """The schema of a dataset; raises `InvalidInput` if it has none."""
    version = dataset.attrs.get("schema")
    if version is None:
        raise InvalidInput("This is not a twolayer result: it has no `schema` attribute.")
    if not isinstance(version, int | np.integer) or version < 1:
        raise InvalidInput(f"The attribute `schema` of a result must be a whole number, but is {shown(version)}.")
    if version > SCHEMA:
        raise InvalidInput(f"This result has schema {version}, but this version reads up to {SCHEMA}: update twolayer.")
    kind = kind_of(dataset.attrs)
    if kind not in _KINDS:
        raise InvalidInput(f"The attribute `kind` of a result is {shown(kind)}, which this version does not know.")
    return _KINDS[kind]


def validate(dataset: "xr.Dataset") -> None:
    """Raise `InvalidInput` with the first fault of a dataset that does not follow its schema."""
    schema = schema_of(dataset)
    present = {name: variable for name, variable in schema.optional.items() if name in dataset}
    for name, variable in {**schema.variables, **schema.coordinates, **present}.items():
        if name not in dataset.variables:
            raise InvalidInput(f"This result lacks the variable `{name}`.")
        if dataset[name].dims != variable.dimensions:
            raise InvalidInput(
                f"Variable `{name}` must have the dimensions {variable.dimensions}, but has {dataset[name].dims}."
            )
    missing = [name for name in (*ATTRIBUTES, *schema.attributes) if name not in dataset.attrs]
    if missing:
        raise InvalidInput(f"This result lacks the attribute `{missing[0]}`.")


def label(
    schema: Schema, values: Mapping[str, Any], coordinates: Mapping[str, Any], attributes: Mapping[str, Any]
) -> "xr.Dataset":
    """A validated dataset from plain arrays, with units and long names; optional variables may be missing."""
    import xarray as xr

    known = {**schema.variables, **schema.optional, **schema.coordinates}

    def labelled(name: str, content: Any) -> Any:
        if name not in known:
            return content
        dimensions, long_name, units = known[name]
        return (dimensions, content, {"long_name": long_name, "units": units})

    dataset = xr.Dataset(
        {name: labelled(name, content) for name, content in values.items()},
        {name: labelled(name, content) for name, content in coordinates.items()},
        ordered({"schema": SCHEMA, "kind": schema.kind, **attributes}),
    )
    validate(dataset)
    return dataset


# What a reader looks for first: xarray shows attributes in their order.
FOREMOST = ("kind", "description", "judge", "outcome", "verdict", "cautions")


def ordered(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """The attributes with the verdict and the cautions before the long record of where the numbers come from."""
    first = {name: attributes[name] for name in FOREMOST if name in attributes}
    return first | {name: value for name, value in attributes.items() if name not in first}


@runtime_checkable
class Labelled(Protocol):
    """A result that reads as an object and becomes a labelled dataset where one is needed."""

    def to_dataset(self) -> "xr.Dataset":
        """The result as a dataset of its kind."""
        ...


Result = TypeVar("Result")


def as_dataset(result: Labelled | Result) -> "xr.Dataset | Result":
    """A dataset or a tree as it is; the dataset of a result that is an object."""
    import xarray as xr

    if isinstance(result, Labelled) and not isinstance(result, xr.Dataset | xr.DataTree | xr.DataArray):
        return result.to_dataset()
    return result  # pyright: ignore[reportReturnType]: a tree is `Labelled`, too


# ------------------------------------------------------------------------------------------------------ trajectories

STATUS_ATTRIBUTES: dict[str, Any] = {
    "flag_values": [int(status) for status in Status],
    "flag_meanings": " ".join(status.name.lower() for status in Status),
}

_RUN = ("replica", "time")
TRAJECTORY = add_kind(
    Schema(
        kind="trajectory",
        variables={
            "Q": Variable((*_RUN, "i", "j"), "student-student overlaps"),
            "M": Variable((*_RUN, "i", "r"), "student-target overlaps"),
            "P": Variable(("r", "s"), "target-target overlaps"),
            "a": Variable((*_RUN, "i"), "second layer"),
            "risk": Variable(_RUN, "population risk: the average loss, with the noise floor"),
            "excess_risk": Variable(_RUN, "population risk above the noise floor"),
            "risk_error": Variable(_RUN, "bound on the numerical error of the risk"),
            "overlap_error": Variable(_RUN, "bound on the numerical error of any overlap"),
            "status": Variable(("replica",), "how the replica ended"),
            "crossing_time": Variable(
                ("replica",), "first time at which the excess risk is at most the threshold", TIME_UNIT
            ),
            "overlap_time": Variable(
                ("replica", "r"),
                "first time at which the cosine of a neuron with the target direction reaches the threshold",
                TIME_UNIT,
            ),
        },
        optional={
            "classification_error": Variable(_RUN, "probability that the sign of the output differs from the label"),
            "classification_error_bound": Variable(
                _RUN, "bound on the numerical error of the classification error at these overlaps"
            ),
            "square_error": Variable(_RUN, "mean square error of the output, E[(y - s)^2], with the noise floor"),
            "square_error_bound": Variable(_RUN, "bound on the numerical error of the square error at these overlaps"),
            "particle_a": Variable((*_RUN, "particle"), "output weights of the particles"),
            "particle_M": Variable((*_RUN, "particle", "r"), "overlaps of the particles with the target"),
            "particle_q": Variable(
                (*_RUN, "particle"), "squared lengths of the particles outside of the target's span"
            ),
            "Q_block": Variable((*_RUN, "block", "i", "j"), "student-student overlaps by block of the spectrum"),
            "M_block": Variable((*_RUN, "block", "i", "r"), "student-target overlaps by block of the spectrum"),
            "P_block": Variable(("block", "r", "s"), "target-target overlaps by block of the spectrum"),
            "eigenvalue": Variable(("block",), "eigenvalue of the covariance of the inputs"),
            "share": Variable(("block",), "share of the dimensions"),
            "task_risk": Variable((*_RUN, "task"), "population risk of each task, with its noise floor"),
            "task_risk_error": Variable((*_RUN, "task"), "bound on the numerical error of the risk of each task"),
            "task_classification_error": Variable(
                (*_RUN, "task"), "probability that the sign of the output differs from the label of each task"
            ),
            "task_classification_error_bound": Variable(
                (*_RUN, "task"),
                "bound on the numerical error of the classification error of each task, at these overlaps",
            ),
            "task_square_error": Variable((*_RUN, "task"), "mean square error of the output for each task"),
            "task_square_error_bound": Variable(
                (*_RUN, "task"), "bound on the numerical error of the square error of each task, at these overlaps"
            ),
            "task": Variable(("task",), "number of the task, in the order in which tasks are first trained"),
            "training_risk": Variable(_RUN, "risk over the samples of the fixed set, with the noise of their labels"),
            "training_risk_error": Variable(_RUN, "bound on the numerical error of the risk over the fixed set"),
            "C": Variable((*_RUN, "earlier", "i", "j"), "overlaps of the weights at two times"),
            "C_error": Variable((*_RUN, "earlier"), "bound on the numerical error of any overlap at two times"),
            "R": Variable((*_RUN, "earlier", "i", "j"), "response of the weights to the noise of an earlier gradient"),
            "R_error": Variable((*_RUN, "earlier"), "bound on the numerical error of the response"),
            "earlier": Variable(("earlier",), "time, learning_rate * samples / (p d)", TIME_UNIT),
        },
        coordinates={
            "time": Variable(("time",), "time, learning_rate * samples / (p d)", TIME_UNIT),
            "step": Variable(("time",), "number of steps taken", "steps"),
            "samples": Variable(("time",), "number of samples seen", "samples"),
        },
        attributes=("description", "exactness", "engine"),
    )
)
