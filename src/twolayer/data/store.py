"""Results on disk: one netCDF file per result, or per comparison with one group per description."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twolayer.core.errors import InvalidInput, shown, takes_these
from twolayer.core.memory_limit import check_room
from twolayer.core.reading import parsing, regular_file
from twolayer.core.whole_files import write_whole
from twolayer.data.schema import Labelled, as_dataset, validate

if TYPE_CHECKING:
    import xarray as xr

# The file of a comparison in its report folder, and that of plain numbers.
COMPARISON, SUMMARY = "comparison.nc", "summary.json"
# What to do with a folder that has no other numbers: version 0.1.0 wrote such ones.
REMEDY = (
    f"; version 0.1.0 wrote the numbers of `exit-time`, `learn` and `ntk` to {SUMMARY} alone: read it by `json.load`, "
    "or run the command again for a labelled result"
)


@takes_these
def save(result: "xr.Dataset | xr.DataTree | Labelled", path: str | Path) -> Path:
    """Write a result of any verb to a netCDF file, whole or not at all."""
    path, content = Path(path), as_file(result)
    try:
        return write_whole(path, content)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(f"The result cannot be written to {shown(path)}: {reason}.") from None


def as_file(result: "xr.Dataset | xr.DataTree | Labelled") -> bytes:
    """The content of the netCDF file of a result; made in memory, since the HDF5 library crashes on a full disk."""
    import xarray as xr

    result = as_dataset(result)
    if not isinstance(result, xr.Dataset | xr.DataTree):
        raise InvalidInput(f"Argument `result` must be what a verb returned, but is a {type(result).__name__}.")
    for dataset in _datasets(result):
        validate(dataset)
    return bytes(result.to_netcdf(engine="h5netcdf"))


# Results that are folders: for each the file by which such a folder is known, and the function that reads it.
FOLDERS: "dict[str, Callable[[Path], xr.Dataset | xr.DataTree]]" = {}


@takes_these
def load(path: str | Path) -> "xr.Dataset | xr.DataTree":
    """Read a result written by `save`, or the one that lies in a report folder or in the folder of a sweep.

    Files of earlier versions are read as well.
    """
    import h5py
    import xarray as xr

    for name, read in FOLDERS.items():
        if _has(Path(path), name):
            return read(Path(path))
    path = regular_file(_result_file(Path(path)), "result file")
    if path.name == SUMMARY:
        raise InvalidInput(f"The file {shown(path)} holds plain numbers and no labelled result{REMEDY}.")
    with parsing(path, fault="is not a readable result"):
        with h5py.File(path, "r") as file:
            file.attrs.get("_nc3_strict")  # what h5netcdf reads first; where it cannot, it complains on stderr later
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            need = sum(x.nbytes for node in tree.subtree for x in node.variables.values())
            check_room(need, f"The result {shown(path)}")
            loaded = tree.load()
        result: Any = loaded if loaded.children else loaded.to_dataset()
        for dataset in _datasets(result):
            validate(dataset)
    return result


def _has(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except (OSError, ValueError):  # a name that is too long, or no name at all
        return False


def _result_file(path: Path) -> Path:
    """The file itself, or in a folder the comparison of a report, or else the only result there."""
    try:
        files = sorted(path.glob("*.nc")) if path.is_dir() else [path]
    except (OSError, ValueError):  # a name that is too long, or no name at all: reading it says so
        return path
    files = [file for file in files if file.name == COMPARISON] or files
    if not files:
        remedy = REMEDY if _has(path, SUMMARY) else ""
        raise InvalidInput(f"The folder {shown(path)} must hold a result, but there is no file *.nc in it{remedy}.")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise InvalidInput(f"The folder {shown(path)} must hold one result, but holds {names}: name one of them.")
    return files[0]


def _datasets(result: "xr.Dataset | xr.DataTree") -> list["xr.Dataset"]:
    import xarray as xr

    return [result] if isinstance(result, xr.Dataset) else [child.to_dataset() for child in result.children.values()]
