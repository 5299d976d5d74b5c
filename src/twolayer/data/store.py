"""Results on disk: one netCDF file per result, or per comparison with one group per description."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twolayer.core.errors import InvalidInput
from twolayer.core.files import write_whole
from twolayer.data.schema import validate

if TYPE_CHECKING:
    import xarray as xr


def save(result: "xr.Dataset | xr.DataTree", path: str | Path) -> Path:
    """Write a result to a netCDF file, whole or not at all."""
    for dataset in _datasets(result):
        validate(dataset)
    path = Path(path)
    content = result.to_netcdf(engine="h5netcdf")  # in memory: the HDF5 library crashes where a disk is full
    try:
        return write_whole(path, bytes(content))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(f"The result cannot be written to {str(path)!r}: {reason}.") from None


def load(path: str | Path) -> "xr.Dataset | xr.DataTree":
    """Read a result written by `save`."""
    import xarray as xr

    path = Path(path)
    if not path.is_file():
        raise InvalidInput(f"There is no result file {str(path)!r}.")
    try:
        tree = xr.open_datatree(path, engine="h5netcdf").load()
        tree.close()
    except Exception as error:  # a damaged file fails in many ways inside the library that reads it
        raise InvalidInput(f"The file {str(path)!r} is not a readable result: {type(error).__name__}.") from None
    result: Any = tree if tree.children else tree.to_dataset()
    for dataset in _datasets(result):
        validate(dataset)
    return result


def _datasets(result: "xr.Dataset | xr.DataTree") -> list["xr.Dataset"]:
    import xarray as xr

    return [result] if isinstance(result, xr.Dataset) else [child.to_dataset() for child in result.children.values()]
