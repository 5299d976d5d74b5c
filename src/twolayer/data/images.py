"""Named image sets: where their files are searched, how they are read, and how they are verified.

Nothing is downloaded unless requested. A set may be in a folder in any of its usual forms; each is plain data that is
read without executing anything (no pickles).
"""

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.core.memory_limit import bytes_in_words
from twolayer.core.program_cache import cache_folder
from twolayer.core.reading import parsing
from twolayer.data.array_files import names_in, read_idx, read_npz
from twolayer.data.fetch import RemoteFile, fetch, verified, verify_digest

VARIABLE = "TWOLAYER_DATA"


class Images(NamedTuple):
    """Pixels (samples, ...) and class numbers, for training and for testing, in the original order."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class ImageSet(NamedTuple):
    """A named set: its published files, and the archives of arrays that may replace them."""

    title: str
    files: tuple[RemoteFile, ...]
    archives: tuple[str, ...]
    # SHA-256 of the training and of the test images in memory, whichever file they were read from.
    contents: tuple[str, str] | None = None


def _idx(name: str, base: str, published: tuple[tuple[int, str], ...]) -> tuple[RemoteFile, ...]:
    """The four files of a set in the format of MNIST, with their sizes and SHA-256."""
    names = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    names += ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    return tuple(
        RemoteFile(f"{name}/{file}", base + file, size, sha256)
        for file, (size, sha256) in zip(names, published, strict=True)
    )


def _read_published(files: tuple[RemoteFile, ...], folder: Path, verify: bool) -> Images:
    """The images of published files: one archive of CIFAR-10, or four arrays in the format of MNIST."""
    paths = [verified(folder / file.name, file.sha256, verify) for file in files]
    return _checked(_read_cifar(paths[0]) if len(paths) == 1 else Images(*map(read_idx, paths)), paths[0])


CIFAR = RemoteFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR_ROW = 1 + 3 * 32 * 32  # a class, then red, green and blue planes
CIFAR_UNPACKED = 2**28  # six batches of 30.7 MB, and less than a MB of other files


def _read_cifar(path: Path) -> Images:
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    with parsing(path, "archive"):
        with gzip.open(path) as packed:
            content = packed.read(CIFAR_UNPACKED + 1)
        if len(content) > CIFAR_UNPACKED:
            raise InvalidInput(f"The archive {shown(path)} may unpack to {bytes_in_words(CIFAR_UNPACKED)} at most.")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            batches = [_read_batch(archive, path, name) for name in names]
    rows = (np.concatenate(batches[:5]), batches[5])
    images = [part[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for part in rows]
    return Images(images[0], rows[0][:, 0], images[1], rows[1][:, 0])


def _read_batch(archive: tarfile.TarFile, path: Path, name: str) -> np.ndarray:
    """The rows of one batch of the archive; links are not followed."""
    members = [member for member in archive.getmembers() if member.name == f"cifar-10-batches-bin/{name}"]
    file = archive.extractfile(members[0]) if members and members[0].isreg() else None
    if file is None:
        raise InvalidInput(f"The archive {shown(path)} does not hold {name!r}.")
    content = file.read()
    if len(content) % CIFAR_ROW or len(content) != members[0].size:
        raise InvalidInput(f"The file {name!r} in {shown(path)} is cut off: an image has {CIFAR_ROW} bytes.")
    return np.frombuffer(content, np.uint8).reshape(-1, CIFAR_ROW)


_MNIST = _idx(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
)
_FASHION = _idx(
    "fashion-mnist",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    (
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
)
SETS: dict[str, ImageSet] = {
    "mnist": ImageSet(
        "MNIST",
        _MNIST,
        ("mnist.npz",),
        # The checksums are of the unpacked files without their headers of 16 bytes.
        (
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        ),
    ),
    "fashion-mnist": ImageSet("Fashion-MNIST", _FASHION, ("fashion-mnist.npz",)),
    "cifar10": ImageSet("CIFAR-10", (CIFAR,), ("cifar10.npz", "cifar10_airplane_automobile.npz")),
}


def load_images(name: str, data_dir: str | Path | None = None, download: bool = False, verify: bool = True) -> Images:
    """The images of a named set.

    Parameters
    ----------
    name
        ``"mnist"``, ``"fashion-mnist"`` or ``"cifar10"``.
    data_dir
        The folder to search; by default that of the environment variable ``TWOLAYER_DATA``, then the cache.
    download
        Whether files that are in none of these folders are downloaded to the cache.
    verify
        Whether checksums are verified where they are known.

    Returns
    -------
    Training and test images with their classes. Files are read in their published form, or from one ``.npz`` archive
    with the arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``.
    """
    if name not in SETS:
        raise InvalidInput(f"The image set {shown(name)} is not known: {nearest(name, SETS)}")
    chosen = SETS[name]
    stated = os.environ.get(VARIABLE)
    folders = [Path(stated), cache_folder()] if stated else [cache_folder()]
    folders = folders if data_dir is None else [Path(data_dir)]
    for folder in folders:
        for archive in chosen.archives:
            if _is_there(folder / archive):
                images = read_archive(folder / archive)
                return _compared(images, chosen, folder / archive) if verify else images
        if all(_is_there(folder / file.name) for file in chosen.files):
            return _read_published(chosen.files, folder, verify)
    if download:
        folder = cache_folder() if data_dir is None else Path(data_dir)
        for file in chosen.files:
            fetch(file, folder)
        return _read_published(chosen.files, folder, verify)
    files = ", ".join(file.name for file in chosen.files)
    raise InvalidInput(
        f"The set {chosen.title} is not in {' or '.join(shown(folder) for folder in folders)}: put "
        f"{chosen.archives[0]!r} (arrays x_train, y_train, x_test, y_test) or {files} there, name another folder by "
        f"`--data-dir` or {VARIABLE}, or let it be downloaded (`--download`)."
    )


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def read_archive(path: Path) -> Images:
    """Images from an ``.npz`` archive."""
    there = names_in(path)
    missing = [name for name in Images._fields if name not in there]
    if missing:
        raise InvalidInput(f"The archive {shown(path)} must hold {', '.join(Images._fields)}, not {missing[0]}.")
    return _checked(Images(*read_npz(path, Images._fields)), path)


def _checked(images: Images, path: Path) -> Images:
    """The images, after checking that there are some and that each has a class."""
    for x, y in ((images.x_train, images.y_train), (images.x_test, images.y_test)):
        if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or x.size == 0:
            raise InvalidInput(
                f"The file {shown(path)} must hold one class per image, but has the shapes {x.shape} and {y.shape}."
            )
    return images


def _compared(images: Images, chosen: ImageSet, path: Path) -> Images:
    """The images, after checking that they are the published ones where their checksums are known."""
    if chosen.contents is not None:
        for x, expected in zip((images.x_train, images.x_test), chosen.contents, strict=True):
            verify_digest(hashlib.sha256(np.ascontiguousarray(x).data).hexdigest(), expected, path)
    return images
