"""Products of a Gram matrix with vectors, made strip by strip, in double or in single precision.

In `GramProduct` the strips are made by NumPy, or by JAX on accelerators (`kernel/device.py`).
A strip in single precision has cosines good to some 1e-7. That is enough for every entry but those of nearly parallel
inputs, whose angle (and the diagonal, exactly) comes from the chord in double precision whatever that of the strip is.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from twolayer.core.memory import available_memory
from twolayer.core.types import Device
from twolayer.kernel.device import KEPT, DeviceStrips
from twolayer.kernel.matrices import apply_profile, one_norm, unit_rows
from twolayer.kernel.profile import LAYERS, Profile, make_profile
from twolayer.problem.activations import as_activation
from twolayer.specification.fields import choice, number

PRECISIONS = ("double", "single")
# Numbers in a strip of the matrix: what is held beside the inputs when the strips are made anew for each product.
STRIP = 2**24


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
        result, n = np.zeros(columns.shape), len(self.inputs)
        height = max(1, STRIP // n)
        for first in range(0, n, height):
            last = min(first + height, n)
            strip = self._strip(first, last)
            result[first:last] += strip @ columns[first:]
            result[last:] += strip[:, last - first :].T @ columns[first:last]
        return result

    def _strip(self, first: int, last: int) -> np.ndarray:
        if first in self._strips:
            return self._strips[first]
        strip = self._rows[first:last] @ self._rows[first:].T
        apply_profile(strip, self.inputs[first:last], self.inputs[first:], self.profile)
        if self.is_kept:
            self._strips[first] = strip
        return strip


class GramProduct:
    """Products of the Gram matrix of inputs with vectors, on this machine's cores or on accelerators.

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
    ):
        kind = as_activation(activation)
        self.inputs, norms = unit_rows(X)
        layers, kappa = choice("layers", LAYERS)(layers), float(number("kappa", above=0.0)(kappa))
        self.profile = make_profile(kind, layers, kappa, one_norm(kind, norms))
        self.norms = norms if self.profile.is_homogeneous else np.ones_like(norms)
        self.dtype = np.dtype(np.float64 if choice("precision", PRECISIONS)(precision) == "double" else np.float32)
        self._strips: Strips = (
            DeviceStrips(self.inputs, self.profile, self.dtype, keep, devices)
            if len(devices)
            else HostStrips(self.inputs, self.profile, self.dtype, keep)
        )

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
