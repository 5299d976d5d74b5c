"""The cells of a sweep as the results that its verb returned, in the order of the axes that a figure names."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.data.schema import check_kind, kind_of, schema_of
from twolayer.plots.descriptions import value_label
from twolayer.sweeps.content import CellStatus
from twolayer.sweeps.sweep_result import KIND as SWEEP
from twolayer.sweeps.sweep_result import MESSAGE, STATUS

if TYPE_CHECKING:
    import xarray as xr

# Dimensions along which a missing number says something: from these starts nothing exits.
WITH_GAPS = ("start",)

# Results by the values of an axis, and these by the values of another one; the label is empty without an axis.
Cells = dict[str, "dict[str, xr.Dataset]"]


def is_sweep(result: object) -> bool:
    """Whether a result holds the cells of a sweep."""
    return kind_of(getattr(result, "attrs", {})) == SWEEP


def cells_of(
    result: object, kind: str, verb: str, col: str | None, hue: str | None = None, hue_name: str = "hue"
) -> Cells:
    """The results in the finished cells of a sweep of one verb, by their labels along two axes.

    Parameters
    ----------
    result
        What the verb returned, or what `sweep` returned for it.
    kind, verb
        The kind of result, and the verb that returns it.
    col, hue
        The axes of the sweep that tell the results apart; it must have no other one.
    hue_name
        What the argument ``hue`` is called in the figure.
    """
    asked = {name: axis for name, axis in (("col", col), (hue_name, hue)) if axis is not None}
    if not is_sweep(result):
        single = check_kind(result, kind, verb)
        if asked:
            name = next(iter(asked))
            raise InvalidInput(f"Argument `{name}` names an axis of a sweep, but `result` is what `{verb}` returned.")
        return {"": {"": single}}
    swept = cast(Any, result)
    if swept.attrs.get("verb") != verb:
        other = shown(swept.attrs.get("verb"))
        raise InvalidInput(f"Argument `result` must be a sweep of `{verb}`, but is one of {other}.")
    axes, chosen = [str(axis) for axis in swept[STATUS].dims], list(asked.values())
    for name, axis in asked.items():
        if axis not in axes or chosen.count(axis) > 1:
            known = ", ".join(axes)
            raise InvalidInput(f"Argument `{name}` must be an axis of its own among {known}, but is {axis!r}.")
    left = [axis for axis in axes if axis not in chosen]
    if left:
        raise InvalidInput(
            f"Argument `result` has the further axis `{left[0]}`: select a value of it, as by `result.sel(...)`, or "
            f"name it by `col` or `{hue_name}`."
        )
    cells: Cells = {}
    for place in np.ndindex(*(swept.sizes[axis] for axis in chosen)):
        cell = swept.isel(dict(zip(chosen, place, strict=True)))
        if int(cell[STATUS]) == CellStatus.DONE:
            labels = ["" if axis is None else value_label(axis, cell[axis].item()) for axis in (col, hue)]
            cells.setdefault(labels[0], {})[labels[1]] = _as_result(cell, kind)
    if not cells:
        raise InvalidInput("Argument `result` holds no finished cell: there is nothing to plot.")
    return cells


def _as_result(cell: Any, kind: str) -> "xr.Dataset":
    """One cell as its verb returned it: attributes that differ between cells are variables of a sweep."""
    import xarray as xr

    cell = cell.drop_vars([STATUS, MESSAGE])
    schema = schema_of(xr.Dataset(attrs={"schema": cell.attrs["schema"], "kind": kind}))
    known = {**schema.variables, **schema.optional, **schema.coordinates}
    single = [name for name, variable in cell.variables.items() if not variable.dims and name not in known]
    attributes = dict(cell.attrs) | {"kind": kind}
    for name in single:
        value = cell[name].item()
        if value == value:  # a number that a cell does not state is NaN
            attributes[name] = value
    whole = cell.drop_vars(single)
    # Labels that differ from cell to cell are numbered in a sweep.
    moved = {f"{name}_number": name for name in whole.variables if f"{name}_number" in whole.dims}
    whole = whole.swap_dims(moved)
    for dim in set(whole.dims) - set(WITH_GAPS):
        whole = whole.isel({dim: slice(_length(whole, str(dim)))})
    missing = [str(name) for name, x in whole.data_vars.items() if x.dtype.kind == "f" and _is_absent(whole, str(name))]
    return whole.drop_vars(missing).assign_attrs(attributes)


def _length(whole: Any, dim: str) -> int:
    """The length of a dimension in its cell, which may be shorter than the longest one: there, numbers are missing."""
    there = np.zeros(whole.sizes[dim], bool)
    variables = [variable for variable in whole.data_vars.values() if dim in variable.dims]
    for variable in variables:
        there |= variable.notnull().any([other for other in variable.dims if other != dim]).values
    return int(np.flatnonzero(there)[-1]) + 1 if there.any() else whole.sizes[dim]


def _is_absent(whole: Any, name: str) -> bool:
    """Whether a cell has no such variable: nothing of it is there, nor the time until which it was looked for."""
    until = f"{name}_until"
    return not bool(whole[name].notnull().any()) and not (until in whole and bool(whole[until].notnull()))
