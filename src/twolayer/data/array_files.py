"""Arrays from files: the header is checked first, so that no more memory is used than the file justifies."""

import ast
import gzip
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.memory_limit import check_room
from twolayer.core.reading import parsing, regular_file

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
MAX_DIMENSIONS = 8
# A number from a file takes up to three doubles in memory until its row has unit norm.
BYTES_OF_A_NUMBER = 3 * 8


def names_in(path: Path) -> list[str]:
    """The names of the arrays in an ``.npz`` archive."""
    with parsing(regular_file(path, "archive"), "archive"), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npz(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Arrays of numbers from an ``.npz`` archive, by name."""
    with parsing(regular_file(path, "archive"), "archive"), zipfile.ZipFile(path) as archive:
        return [_read_member(archive, path, name) for name in names]


def _read_member(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray:
    known = archive.namelist()
    member = archive.getinfo(name + ".npy" if name + ".npy" in known else name)
    with archive.open(member) as file:
        dtype, shape, is_fortran, header = _read_header(file)  # pyright: ignore[reportArgumentType]
        what = f"The array `{name}` of {shown(path)}"
        if dtype.kind not in "biuf":
            raise InvalidInput(f"{what} must hold numbers, but holds values of type {shown(str(dtype))}.")
        if not 1 <= len(shape) <= MAX_DIMENSIONS or any(size < 0 for size in shape):
            raise InvalidInput(
                f"{what} must have one to {MAX_DIMENSIONS} dimensions, but has the shape {shown(shape)}."
            )
        size = math.prod(shape)
        held = member.file_size - header
        if size * dtype.itemsize != held:
            raise InvalidInput(f"{what} is damaged: its shape {shown(shape)} does not fit the {held} bytes it has.")
        check_room(size * BYTES_OF_A_NUMBER, what)
        content = file.read()
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")


def _read_header(file: io.BufferedIOBase) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """Type, shape, whether the order is Fortran's, and the length of the header of an array in NumPy's format."""
    start = file.read(8)
    if start[:6] != MAGIC or start[6:7] not in (b"\x01", b"\x02"):
        raise ValueError("an array in it does not begin with the header of NumPy")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > MAX_HEADER:
        raise ValueError(f"the header of an array in it has {length} characters")
    header = ast.literal_eval(file.read(length).decode("latin1").strip())
    dtype, shape = np.dtype(header["descr"]), header["shape"]
    if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
        raise ValueError("the shape of an array in it is not a tuple of whole numbers")
    return dtype, shape, bool(header["fortran_order"]), 8 + width + length


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in the format of the original MNIST files, packed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with parsing(regular_file(path)), opened(path, "rb") as file:
        start = file.read(4)
        if len(start) < 4 or start[:3] != b"\0\0\x08" or not 1 <= start[3] <= MAX_DIMENSIONS:
            raise InvalidInput(f"The file {shown(path)} is not an array of bytes in IDX form.")
        sizes = file.read(4 * start[3])
        if len(sizes) < 4 * start[3]:
            raise InvalidInput(f"The file {shown(path)} is cut off within its header.")
        shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
        size = math.prod(shape)
        check_room(size * BYTES_OF_A_NUMBER, f"The array of {shown(path)}")
        content = file.read(size + 1)
    if len(content) != size:
        held = f"{len(content)}" if len(content) < size else "more"
        raise InvalidInput(f"The file {shown(path)} is damaged: it holds {held} of {size} bytes.")
    return np.frombuffer(content, np.uint8).reshape(shape)
