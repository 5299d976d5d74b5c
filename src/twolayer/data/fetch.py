"""Downloads of published files, whose size and checksum are verified before they are kept."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from twolayer.core.errors import InvalidInput, first_line, shown
from twolayer.core.files import make_folder, write_whole
from twolayer.core.reading import parsing, regular_file

TIMEOUT = 60.0
BLOCK = 2**20


class RemoteFile(NamedTuple):
    """A published file: its name, its address, its size in bytes and its SHA-256."""

    name: str
    address: str
    size: int
    sha256: str


def fetch(file: RemoteFile, folder: Path) -> None:
    """Download one file into a folder, unless it exists there; it is kept only if it is the published one."""
    path = folder / file.name
    try:
        if path.is_file():
            return
        make_folder(path.parent)
        content = b"".join(_blocks(file, folder))
        if len(content) != file.size:
            came = f"{len(content)}" if len(content) < file.size else "more"
            raise InvalidInput(
                f"The file {shown(file.name)} from {file.address} is not the published one: it should have "
                f"{file.size} bytes, but {came} were received."
            )
        verify_digest(hashlib.sha256(content).hexdigest(), file.sha256, path)
        write_whole(path, content)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise InvalidInput(
            f"The file {shown(file.name)} could not be written to {shown(folder)} ({reason}): make room "
            "there, or name another folder."
        ) from None


def _blocks(file: RemoteFile, folder: Path) -> Iterator[bytes]:
    """The content that a server sends, in blocks, up to one byte more than expected, since it might never end."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    left = file.size + 1
    try:
        with urlopen(file.address, timeout=TIMEOUT) as answer:
            while left and (block := answer.read(min(BLOCK, left))):
                left -= len(block)
                yield block
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # closes the connection
        raise InvalidInput(
            f"The file {shown(file.name)} could not be downloaded from {file.address} ({first_line(error)}): put it "
            f"into {shown(folder)}."
        ) from None


def verified(path: Path, sha256: str, verify: bool) -> Path:
    """The path, after checking that the file is the published one if ``verify`` is true."""
    if verify:
        with parsing(regular_file(path)), path.open("rb") as file:
            verify_digest(hashlib.file_digest(file, "sha256").hexdigest(), sha256, path)
    return path


def verify_digest(sha256: str, expected: str, path: Path) -> None:
    """Raise `InvalidInput` for a file whose SHA-256 is not that of the published one."""
    if sha256 != expected:
        raise InvalidInput(
            f"The file {shown(path)} is not the published one: its SHA-256 is {sha256}, but should be {expected}."
        )
