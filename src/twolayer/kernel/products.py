"""Products of a Gram matrix with vectors, made strip by strip, in double or in single precision.

In `GramProduct` the strips are made by NumPy, by JAX on accelerators (`kernel/device.py`), or by Dask's workers.
A strip in single precision has cosines good to some 1e-7. That is enough for every entry but those of nearly parallel
inputs, whose angle (and the diagonal, exactly) comes from the chord in double precision whatever that of the strip is.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from twolayer.core.errors import ComputationFailed
from twolayer.core.memory_limit import available_memory
from twolayer.core.types import Device
from twolayer.kernel.device import KEPT, DeviceStrips
from twolayer.kernel.matrices import apply_profile, one_norm, unit_rows
from twolayer.kernel.profile import LAYERS, Profile, make_profile
from twolayer.problem.activations import as_activation
from twolayer.specification.fields import choice, number

if TYPE_CHECKING:
    from distributed import Client

PRECISIONS = ("double", "single")
# Numbers in a strip of the matrix: what is held beside the inputs when the strips are made anew for each product.
STRIP = 2**24
# Pieces of the matrix that are dealt to workers: several for each, and few enough that what they send is little.
PIECES = 64


class Strips(Protocol):
    """What makes the strips of a matrix and multiplies by them."""

    is_kept: bool

    @property
    def main_device(self) -> Device | None:
        """The device on which other work of this size should be done; None where that is NumPy's."""
        ...

    def multiply(self, columns: np.ndarray) -> np.ndarray:
        """The product of the matrix of unit inputs with columns of one size, in float64."""
        ...


def strips(n: int, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """The first row of each strip, and the row after its last, of the rows from ``begin`` to ``end``."""
    end = n if end is None else end
    height = max(1, STRIP // n)
    return ((first, min(first + height, end)) for first in range(begin, end, height))


def make_strip(inputs: np.ndarray, rows: np.ndarray, profile: Profile, first: int, last: int) -> np.ndarray:
    """The rows from ``first`` to ``last`` of the matrix of unit inputs, from the column ``first`` on.

    ``rows`` are the inputs in the precision of the strip.
    """
    strip = rows[first:last] @ rows[first:].T
    apply_profile(strip, inputs[first:last], inputs[first:], profile)
    return strip


def add_product(result: np.ndarray, strip: np.ndarray, columns: np.ndarray, first: int, begin: int = 0) -> None:
    """Add what a strip and its mirror image contribute to the product with columns; results begin at row ``begin``."""
    last = first + len(strip)
    result[first - begin : last - begin] += strip @ columns[first:]
    result[last - begin :] += strip[:, last - first :].T @ columns[first:last]


class HostStrips:
    """Strips made by NumPy on this machine's cores.

    Each strip is made for the columns from its own on, and used twice, since the matrix is symmetric.
    """

    def __init__(self, inputs: np.ndarray, profile: Profile, dtype: np.dtype, keep: bool | None):
        self.inputs, self.profile = inputs, profile
        self._rows = inputs if dtype == np.float64 else inputs.astype(np.float32)
        size = 0.5 * dtype.itemsize * len(inputs) ** 2
        self.is_kept = size < KEPT * available_memory() if keep is None else bool(keep)
        self._strips: dict[int, np.ndarray] = {}

    @property
    def main_device(self) -> Device | None:
        """None: other work is NumPy's too."""
        return None

    def multiply(self, columns: np.ndarray) -> np.ndarray:
        """The product of the matrix of unit inputs with columns."""
        result = np.zeros(columns.shape)
        for first, last in strips(len(self.inputs)):
            add_product(result, self._strip(first, last), columns, first)
        return result

    def _strip(self, first: int, last: int) -> np.ndarray:
        if first in self._strips:
            return self._strips[first]
        strip = make_strip(self.inputs, self._rows, self.profile, first, last)
        if self.is_kept:
            self._strips[first] = strip
        return strip


class WorkerStrips:
    """Strips on Dask's workers, where they stay if they fit the memory of all.

    The rows are divided into pieces with about as many entries each. The pieces do not depend on the workers, and their
    products are summed in one order; a piece whose worker dies is made again by Dask.
    """

    def __init__(self, inputs: np.ndarray, profile: Profile, dtype: np.dtype, keep: bool | None, client: "Client"):
        self.client, n = client, len(inputs)
        # The rows above the part x of the height hold the share 1 - (1 - x)^2 of the upper triangle.
        ends = n * (1.0 - np.sqrt(1.0 - np.arange(PIECES + 1) / PIECES))
        bounds = np.unique(np.append(ends[:-1].round().astype(int), n)).tolist()
        self.pieces = list(pairwise(bounds))
        memory = sum(worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
        size = 0.5 * dtype.itemsize * n**2
        self.is_kept = size < KEPT * memory if keep is None else bool(keep)
        arguments = client.scatter(inputs, broadcast=True, hash=False), profile, dtype
        self._there: list[Any] = [
            client.submit(_piece, *arguments, *piece, pure=False) if self.is_kept else arguments
            for piece in self.pieces
        ]

    @property
    def main_device(self) -> Device | None:
        """None: other work is NumPy's on this machine."""
        return None

    def multiply(self, columns: np.ndarray) -> np.ndarray:
        """The product of the matrix of unit inputs with columns."""
        from distributed.client import FutureCancelledError

        result = np.zeros(columns.shape)
        sent = self.client.scatter(columns, broadcast=True, hash=False)
        parts = [
            self.client.submit(_kept_product, piece_data, sent, *piece, pure=False)
            if self.is_kept
            else self.client.submit(_piece_product, *piece_data, sent, *piece, pure=False)
            for piece_data, piece in zip(self._there, self.pieces, strict=True)
        ]
        try:
            for (begin, _), part in zip(self.pieces, parts, strict=True):
                result[begin:] += part.result()
        except (OSError, FutureCancelledError):
            raise ComputationFailed(
                "The Dask scheduler whose workers hold the Gram matrix does not answer: start it, and run again."
            ) from None
        return result


def _piece(inputs: np.ndarray, profile: Profile, dtype: np.dtype, begin: int, end: int) -> list[np.ndarray]:
    """The strips of a piece."""
    rows = np.asarray(inputs, dtype)
    return [make_strip(inputs, rows, profile, *strip) for strip in strips(len(inputs), begin, end)]


def _kept_product(products: list[np.ndarray], columns: np.ndarray, begin: int, end: int) -> np.ndarray:
    result = np.zeros((len(columns) - begin, columns.shape[1]))
    for (first, _), strip in zip(strips(len(columns), begin, end), products, strict=True):
        add_product(result, strip, columns, first, begin)
    return result


def _piece_product(
    inputs: np.ndarray, profile: Profile, dtype: np.dtype, columns: np.ndarray, begin: int, end: int
) -> np.ndarray:
    """The product with the strips of a piece, each of which is given up when it was used."""
    result, rows = np.zeros((len(columns) - begin, columns.shape[1])), np.asarray(inputs, dtype)
    for first, last in strips(len(inputs), begin, end):
        add_product(result, make_strip(inputs, rows, profile, first, last), columns, first, begin)
    return result


class GramProduct:
    """Products of the Gram matrix of inputs with vectors: on this machine's cores, accelerators, or Dask's workers.

    Parameters
    ----------
    X
        Inputs, one per row, as `gram` takes them.
    activation, layers, kappa
        Of the kernel, as in `gram`.
    precision
        Of the strips, ``"double"`` or ``"single"``; vectors and results are float64.
    keep
        Whether strips are kept or made anew for each product; by default as memory allows. The host keeps half of the
        matrix, devices all of it.
    devices
        JAX's devices among which the strips are dealt; without any, NumPy makes them.
    client
        A client of Dask's workers, among which the strips are dealt instead.
    """

    def __init__(
        self,
        X: Any,
        activation: Any = "relu",
        *,
        layers: str = "first",
        kappa: float | int = 1.0,
        precision: str = "double",
        keep: bool | None = None,
        devices: Sequence[Any] = (),
        client: "Client | None" = None,
    ):
        kind = as_activation(activation)
        self.inputs, norms = unit_rows(X)
        layers, kappa = choice("layers", LAYERS)(layers), float(number("kappa", above=0.0)(kappa))
        self.profile = make_profile(kind, layers, kappa, one_norm(kind, norms))
        self.norms = norms if self.profile.is_homogeneous else np.ones_like(norms)
        self.dtype = np.dtype(np.float64 if choice("precision", PRECISIONS)(precision) == "double" else np.float32)
        self._strips: Strips
        if client is not None:
            self._strips = WorkerStrips(self.inputs, self.profile, self.dtype, keep, client)
        elif len(devices):
            self._strips = DeviceStrips(self.inputs, self.profile, self.dtype, keep, devices)
        else:
            self._strips = HostStrips(self.inputs, self.profile, self.dtype, keep)

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.inputs)

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal of the matrix."""
        one = np.ones(1)
        return float(self.profile.function(one, 0.0 * one)[0]) * self.norms**2

    @property
    def entry_error(self) -> float:
        """A bound on the error of an entry of a double strip beyond the rounding of inner products."""
        return self.profile.error * float(np.max(self.norms)) ** 2

    def columns(self, chosen: np.ndarray) -> np.ndarray:
        """Some columns of the matrix, in double precision."""
        U = self.inputs
        values = U @ U[chosen].T
        apply_profile(values, U, U[chosen], self.profile)
        return values * self.norms[:, None] * self.norms[chosen]

    @property
    def is_kept(self) -> bool:
        """Whether the strips are kept between products."""
        return self._strips.is_kept

    @property
    def main_device(self) -> Device | None:
        """The device on which other work of this size should be done; None where that is NumPy's."""
        return self._strips.main_device

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """The product with a vector, or with each column of several."""
        columns = vector.reshape(self.n, -1)
        # Columns of one size: none drowns or overflows in single precision.
        sizes = np.maximum(np.max(np.abs(columns), axis=0), 1e-300)
        scales = self.norms[:, None]
        result = self._strips.multiply((scales * (columns / sizes)).astype(self.dtype))
        return (scales * result * sizes).reshape(vector.shape)
