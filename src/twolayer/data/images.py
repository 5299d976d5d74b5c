"""Named image sets: where their files are looked for, how they are read, and whether they are what they should be.

Nothing is fetched unless asked. A set may lie in a folder in any of its usual forms; each is plain data that is read
without executing anything (no pickles).
"""

import gzip
import hashlib
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput, nearest
from twolayer.core.files import make_folder, write_whole

VARIABLE = "TWOLAYER_DATA"


class Images(NamedTuple):
    """Pixels (samples, ...) and class numbers, for training and for testing, in the original order."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class RemoteFile(NamedTuple):
    """A file as it is published: its name, where it is, and its MD5."""

    name: str
    address: str
    md5: str


class ImageSet(NamedTuple):
    """A named set: its published files, the archives of arrays that may stand in for them, and how they are read."""

    title: str
    files: tuple[RemoteFile, ...]
    archives: tuple[str, ...]
    read: Callable[[Path, bool], Images]
    # MD5 of the training images and of the test images as they lie in memory, in whatever file they came.
    contents: tuple[str, str] | None = None


def _idx(name: str, base: str, md5: tuple[str, str, str, str]) -> tuple[RemoteFile, ...]:
    names = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    names += ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    return tuple(RemoteFile(f"{name}/{each}", base + each, sum_) for each, sum_ in zip(names, md5, strict=True))


def _read_idx(path: Path) -> np.ndarray:
    """An array in the format of the original MNIST files, packed or not."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 8 or content[:3] != b"\0\0\x08":
        raise InvalidInput(f"The file {str(path)!r} is not an array of bytes in IDX form.")
    dimensions = content[3]
    shape = tuple(np.frombuffer(content, ">i4", dimensions, offset=4))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if values.size != int(np.prod(shape)):
        raise InvalidInput(f"The file {str(path)!r} is cut off: it holds {values.size} of {int(np.prod(shape))} bytes.")
    return values.reshape(shape)


def _read_mnist(files: tuple[RemoteFile, ...]) -> Callable[[Path, bool], Images]:
    def read(folder: Path, verify: bool) -> Images:
        return Images(*(_read_idx(_verified(folder / file.name, file.md5, verify)) for file in files))

    return read


CIFAR = RemoteFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR_ROW = 1 + 3 * 32 * 32  # a class, then red, green and blue planes


def _read_cifar(folder: Path, verify: bool) -> Images:
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    with tarfile.open(_verified(folder / CIFAR.name, CIFAR.md5, verify)) as archive:
        batches = []
        for name in names:
            member = archive.extractfile(f"cifar-10-batches-bin/{name}")
            if member is None:
                raise InvalidInput(f"The archive {CIFAR.name!r} does not hold {name!r}.")
            batches.append(np.frombuffer(member.read(), np.uint8).reshape(-1, CIFAR_ROW))
    rows = (np.concatenate(batches[:5]), batches[5])
    images = [part[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for part in rows]
    return Images(images[0], rows[0][:, 0], images[1], rows[1][:, 0])


_MNIST = _idx(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
_FASHION = _idx(
    "fashion-mnist",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
SETS: dict[str, ImageSet] = {
    "mnist": ImageSet(
        "MNIST",
        _MNIST,
        ("mnist.npz",),
        _read_mnist(_MNIST),
        # Of the unpacked files without their headers of 16 bytes.
        ("6510e85a72c3e9475c492d559d3770d2", "240610fa99e73bfa49df8e7fc24d3206"),
    ),
    "fashion-mnist": ImageSet("Fashion-MNIST", _FASHION, ("fashion-mnist.npz",), _read_mnist(_FASHION)),
    "cifar10": ImageSet("CIFAR-10", (CIFAR,), ("cifar10.npz", "cifar10_airplane_automobile.npz"), _read_cifar),
}


def cache_folder() -> Path:
    """Where fetched files are kept: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twolayer"


def load_images(name: str, data_dir: str | Path | None = None, download: bool = False, verify: bool = True) -> Images:
    """The images of a named set.

    Parameters
    ----------
    name
        ``"mnist"``, ``"fashion-mnist"`` or ``"cifar10"``.
    data_dir
        The folder to look in. Without one: that of the environment variable ``TWOLAYER_DATA``, then the cache.
    download
        Whether files that are in none of the folders are fetched to the cache.
    verify
        Whether checksums are compared where they are known.

    Returns
    -------
    Training and test images with their classes. Files are read in their published form, or from one ``.npz`` archive
    with the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``.
    """
    if name not in SETS:
        raise InvalidInput(f"The image set {name!r} is not known: {nearest(name, SETS)}")
    chosen = SETS[name]
    stated = os.environ.get(VARIABLE)
    folders = [Path(stated), cache_folder()] if stated else [cache_folder()]
    folders = folders if data_dir is None else [Path(data_dir)]
    for folder in folders:
        for archive in chosen.archives:
            if (folder / archive).is_file():
                return _checked(read_archive(folder / archive), chosen, folder / archive, verify)
        if all((folder / file.name).is_file() for file in chosen.files):
            return chosen.read(folder, verify)
    if download:
        folder = cache_folder() if data_dir is None else Path(data_dir)
        for file in chosen.files:
            _fetch(file, folder)
        return chosen.read(folder, verify)
    files = ", ".join(file.name for file in chosen.files)
    raise InvalidInput(
        f"The set {chosen.title} is not in {' or '.join(repr(str(folder)) for folder in folders)}: put "
        f"{chosen.archives[0]!r} (arrays x_train, y_train, x_test, y_test) or {files} there, name another folder by "
        f"`--data-dir` or {VARIABLE}, or ask for it to be fetched (`--download`)."
    )


def read_archive(path: Path) -> Images:
    """Images from an ``.npz`` archive."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in Images._fields if name not in archive]
            if missing:
                raise InvalidInput(
                    f"The archive {str(path)!r} must hold {', '.join(Images._fields)}, not {missing[0]}."
                )
            return Images(*(archive[name] for name in Images._fields))
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"The archive {str(path)!r} cannot be read: {error}.") from None


def _checked(images: Images, chosen: ImageSet, path: Path, verify: bool) -> Images:
    for x, y in ((images.x_train, images.y_train), (images.x_test, images.y_test)):
        if len(x) != len(y) or x.ndim < 2 or y.ndim != 1:
            raise InvalidInput(f"The archive {str(path)!r} must hold one class per image.")
    if verify and chosen.contents is not None:
        for x, expected in ((images.x_train, chosen.contents[0]), (images.x_test, chosen.contents[1])):
            _compare(hashlib.md5(np.ascontiguousarray(x).data, usedforsecurity=False).hexdigest(), expected, path)
    return images


def _verified(path: Path, md5: str, verify: bool) -> Path:
    if verify:
        _compare(hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest(), md5, path)
    return path


def _compare(found: str, expected: str, path: Path) -> None:
    if found != expected:
        raise InvalidInput(
            f"The file {str(path)!r} is not the published one: its MD5 is {found}, but should be {expected}."
        )


def _fetch(file: RemoteFile, folder: Path) -> None:
    """Fetch one file; it is kept only when it is the published one."""
    from urllib.error import URLError
    from urllib.request import urlopen

    path = folder / file.name
    if path.is_file():
        return
    try:
        with urlopen(file.address, timeout=60) as answer:
            content = answer.read()
    except (URLError, OSError) as error:
        raise InvalidInput(
            f"The file {file.name!r} could not be fetched from {file.address} ({error}): put it into {str(folder)!r}."
        ) from None
    _compare(hashlib.md5(content, usedforsecurity=False).hexdigest(), file.md5, path)
    make_folder(path.parent)
    write_whole(path, content)
