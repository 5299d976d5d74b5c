"""Downloads of published files, whose size and checksum are verified before they are kept."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from twolayer.core.errors import InvalidInput, first_line, shown
from twolayer.core.reading import parsing, regular_file
from twolayer.core.whole_files import make_folder

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
    import pooch
    from requests import RequestException

    path = folder / file.name
    pooch.get_logger().setLevel("WARNING")  # it would write a line to stderr for each file
    try:
        if not path.is_file():
            make_folder(path.parent)
            download = partial(_download, file)
            pooch.retrieve(file.address, f"sha256:{file.sha256}", path.name, path.parent, downloader=download)  # pyright: ignore[reportArgumentType]: it names its own parameters
    except InvalidInput:
        raise
    except RequestException as error:
        raise InvalidInput(
            f"The file {shown(file.name)} could not be downloaded from {file.address} ({first_line(error)}): put it "
            f"into {shown(folder)}."
        ) from None
    except ValueError:
        raise _is_another(file, f"its SHA-256 is not {file.sha256}") from None
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise InvalidInput(
            f"The file {shown(file.name)} could not be written to {shown(folder)} ({reason}): make room "
            "there, or name another folder."
        ) from None


def _download(file: RemoteFile, address: str, draft: str, _: object) -> None:
    """Write what a server sends to a draft, unless its size is wrong; a server might never stop sending.

    This replaces pooch's own downloader, which has no limit and does not close the connection after an error.
    """
    import requests

    received = 0
    as_it_is = {"Accept-Encoding": "identity"}  # size and checksum are those of the file, not of what it unpacks to
    with requests.get(address, headers=as_it_is, stream=True, timeout=TIMEOUT) as answer, open(draft, "wb") as output:
        answer.raise_for_status()
        for block in answer.iter_content(min(BLOCK, file.size + 1)):
            received += len(block)
            if received > file.size:
                break
            output.write(block)
    if received != file.size:
        words = "more" if received > file.size else str(received)
        raise _is_another(file, f"it should have {file.size} bytes, but {words} were received")


def _is_another(file: RemoteFile, reason: str) -> InvalidInput:
    return InvalidInput(f"The file {shown(file.name)} from {file.address} is not the published one: {reason}.")


def verified(path: Path, sha256: str, verify: bool) -> Path:
    """The path, after checking that the file is the published one if ``verify`` is true."""
    if verify:
        from pooch import file_hash

        with parsing(regular_file(path)):
            verify_digest(file_hash(str(path), "sha256"), sha256, path)
    return path


def verify_digest(sha256: str, expected: str, path: Path) -> None:
    """Raise `InvalidInput` for a file whose SHA-256 is not that of the published one."""
    if sha256 != expected:
        raise InvalidInput(
            f"The file {shown(path)} is not the published one: its SHA-256 is {sha256}, but should be {expected}."
        )
