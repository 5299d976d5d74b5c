"""Data sets for `Samples` from files and named image sets, with labels of +-1, unit norms and random labels."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from twolayer.core.errors import MAX_PATH, InvalidInput, shortened, shown, takes_these
from twolayer.core.memory_limit import check_room
from twolayer.core.reading import parsing, regular_file
from twolayer.core.types import NumbersLike, PathLike, Unchecked
from twolayer.data.array_files import BYTES_OF_A_NUMBER, names_in, read_npz
from twolayer.data.images import SETS, load_images
from twolayer.problem import Samples
from twolayer.specification.fields import array, choice, count, number

SPLITS = ("train", "test")
SUFFIXES = (".npz", ".csv", ".parquet")


if TYPE_CHECKING:
    # Samples, a pair of arrays, the name of an image set, or a file.
    SamplesLike: TypeAlias = Samples | tuple[NumbersLike, NumbersLike] | PathLike
else:
    # `load_samples` refuses what it is not with one sentence.
    SamplesLike = Annotated[object, Samples | tuple | str | Path]


@takes_these
def load_samples(
    source: SamplesLike,
    *,
    classes: Unchecked[int | Sequence[int] | None] = None,
    n: Unchecked[int | None] = None,
    split: str = "train",
    random_labels: Unchecked[float] = 0.0,
    seed: int = 0,
    normalise: bool = True,
    data_dir: PathLike | None = None,
    download: bool = False,
    verify: bool = True,
) -> Samples:
    r"""Load a data set: inputs of unit norm, and labels of plus and minus one.

    Parameters
    ----------
    source
        ``"mnist"``, ``"fashion-mnist"``, ``"cifar10"``; a file ``.npz`` (arrays ``X`` and ``y``, or ``x_train``,
        ``y_train``, ``x_test``, ``y_test``), ``.csv`` or ``.parquet`` (labels in the column ``y``, else in the last
        one); `Samples`; or a pair of arrays.
    classes
        Two classes: the first becomes +1, the second -1, and all others are left out. One class becomes +1 and all
        others -1. By default images are of classes 0 and 1, and labels of other sources do not change.
    n
        The number of samples to keep, from the first one on; all by default.
    split
        ``"train"`` or ``"test"``, where the source holds both.
    random_labels, seed
        The fraction of labels that are replaced by random ones, and the seed of it; see `randomise_labels`.
    normalise
        Whether each input is divided by its Euclidean norm.
    data_dir, download, verify
        Where to search for named sets, whether to download them, and whether to verify checksums.

    Returns
    -------
    `Samples`, in the order of the source.
    """
    split = choice("split", SPLITS)(split)
    X, y = _read(source, split, data_dir, download, verify)
    if classes is None and isinstance(source, str) and source in SETS:
        classes = (0, 1)
    if classes is not None:
        X, y = _two_labels(X, y, classes)
    if n is not None:
        n = count("n")(n)
        if n > len(y):
            raise InvalidInput(f"Argument `n` must be at most {len(y)}, the number of samples, but is {n}.")
        X, y = X[:n], y[:n]
    X = array("X", 2)(np.asarray(X, dtype=np.float64).reshape(len(X), -1) if len(X) else X)
    if normalise:
        with np.errstate(over="ignore", under="ignore"):
            norms = np.linalg.norm(X, axis=1)
        if not np.all(norms > 0.0):
            raise InvalidInput(f"Sample {int(np.argmin(norms))} is zero everywhere: it cannot be given unit norm.")
        if not np.all(np.isfinite(norms)):
            raise InvalidInput(
                f"Sample {int(np.argmax(norms))} has a norm above the range of floats: it cannot be given unit norm."
            )
        X = X / norms[:, None]
    return Samples(X, randomise_labels(np.asarray(y, dtype=np.float64), random_labels, seed))


def randomise_labels(y: NumbersLike, share: NumbersLike, seed: int = 0) -> np.ndarray:
    """The labels with a fraction ``share`` of them drawn at random.

    Signs are replaced by plus or minus one with equal probability, other labels between -1 and 1 by labels that are
    drawn from all of them.
    The choice of samples and their new labels depend on the seed only: with a larger share, the samples that were
    already replaced keep the same random labels.
    """
    y = array("y", 1)(y)
    share = number("random_labels", low=0.0, high=1.0)(share)
    seed = count("seed", low=0)(seed)
    if share == 0.0:
        return y.copy()
    if not np.all(np.abs(y) <= 1.0):
        raise InvalidInput(
            "Labels must be between -1 and 1 for some of them to be drawn at random, but one is "
            f"{y[np.argmax(np.abs(y))]:g}: give `classes`, or divide them."
        )
    rng = np.random.default_rng([seed, 2])
    options = [-1.0, 1.0] if np.all(np.abs(y) == 1.0) else y
    order, drawn = rng.permutation(len(y)), rng.choice(options, len(y))
    chosen = order[: round(share * len(y))]
    changed = y.copy()
    changed[chosen] = drawn[chosen]
    return changed


def _two_labels(X: np.ndarray, y: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    wanted = np.atleast_1d(np.asarray(classes))
    if wanted.ndim != 1 or len(wanted) not in (1, 2) or len(set(wanted.tolist())) != len(wanted):
        raise InvalidInput(f"Argument `classes` must be one class or two different ones, but is {shown(classes)}.")
    present = np.unique(y)
    for label in wanted.tolist():
        if label not in present:
            there = ", ".join(f"{value:g}" for value in present[:12]) + (", ..." if len(present) > 12 else "")
            raise InvalidInput(f"Argument `classes` names {shown(label)}, but the labels are {there}.")
    if len(wanted) == 1:
        return X, np.where(y == wanted[0], 1.0, -1.0)
    kept = np.isin(y, wanted)
    return X[kept], np.where(y[kept] == wanted[0], 1.0, -1.0)


def _read(source: Any, split: str, data_dir: Any, download: bool, verify: bool) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(source, Samples):
        return np.asarray(source.X), np.asarray(source.y)
    if isinstance(source, tuple | list) and len(source) == 2:
        samples = Samples(source[0], source[1])
        return np.asarray(samples.X), np.asarray(samples.y)
    if isinstance(source, str) and source in SETS:
        images = load_images(source, data_dir, download, verify)
        return (images.x_train, images.y_train) if split == "train" else (images.x_test, images.y_test)
    if not isinstance(source, str | Path):
        raise InvalidInput(f"Argument `source` must be a file, a name or a pair of arrays, but is {shown(source)}.")
    path = Path(source)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInput(
            f"Argument `source` must be one of {', '.join(SETS)} or a file {', '.join(SUFFIXES)}, but is {shown(path)}."
        )
    regular_file(path)
    reader = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}[path.suffix.lower()]
    X, y = reader(path, split)
    if y.ndim != 1 or X.ndim < 2 or len(X) != len(y) or X.size == 0:
        raise InvalidInput(
            f"The file {shown(path)} must hold rows of inputs and one label for each, but has the shapes {X.shape} and "
            f"{y.shape}."
        )
    return X, y


def _read_npz(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    there = names_in(path)
    for names in ((f"x_{split}", f"y_{split}"), (f"X_{split}", f"y_{split}"), ("X", "y"), ("x", "y")):
        if all(name in there for name in names):
            X, y = read_npz(path, names)
            return X, np.asarray(y, dtype=np.float64)
    held = shortened(", ".join(there), MAX_PATH) or "nothing"
    raise InvalidInput(f"The archive {shown(path)} must hold `X` and `y`, but holds {held}.")


def _read_csv(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    # A number takes at least two characters in the file, and up to three doubles in memory.
    check_room(BYTES_OF_A_NUMBER * path.stat().st_size / 2, f"The table {shown(path)}")
    with parsing(path, fault="is not a table of numbers"):
        with path.open(newline="", encoding="utf-8") as file:
            first = next(csv.reader(file), [])
        has_header = not all(map(_is_number, first))
        table = np.loadtxt(path, delimiter=",", skiprows=int(has_header), ndmin=2, encoding="utf-8")
    return _split_columns(table, [name.strip() for name in first] if has_header else [], path)


def _read_parquet(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InvalidInput(
            f"Reading {shown(path)} needs the package pyarrow: install it (`pip install twolayer[data]`), or convert "
            "the file to .npz or .csv."
        ) from None
    with parsing(path, fault="is not a table of numbers"), parquet.ParquetFile(path) as file:
        # The size is checked first, since a few compressed bytes can represent any number of equal rows.
        check_room(file.metadata.num_rows * file.metadata.num_columns * BYTES_OF_A_NUMBER, f"The table {shown(path)}")
        table = file.read(use_threads=False)
        columns = np.stack([np.asarray(table[name], dtype=np.float64) for name in table.column_names], axis=1)
    return _split_columns(columns, list(table.column_names), path)


def _split_columns(table: np.ndarray, names: list[str], path: Path) -> tuple[np.ndarray, np.ndarray]:
    columns = table.shape[1]
    if table.shape[0] == 0 or columns < 2:
        raise InvalidInput(f"The file {shown(path)} must have rows, and a column of labels besides its inputs.")
    if names and len(names) != columns:
        raise InvalidInput(f"The file {shown(path)} has {len(names)} names for its {columns} columns.")
    place = names.index("y") if "y" in names else columns - 1
    return np.delete(table, place, axis=1), table[:, place]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
