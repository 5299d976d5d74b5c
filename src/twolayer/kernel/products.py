"""Products of a Gram matrix with vectors, made strip by strip, in double or in single precision.

A strip in single precision has cosines good to some 1e-7. That is enough for every entry but those of nearly parallel
inputs, whose angle (and the diagonal, exactly) comes from the chord in double precision whatever that of the strip is.
"""

from typing import Any

import numpy as np

from twolayer.core.memory import available_memory
from twolayer.kernel.matrices import apply_profile, one_norm, unit_rows
from twolayer.kernel.profile import LAYERS, make_profile
from twolayer.problem.activations import as_activation
from twolayer.specification.fields import choice, number

PRECISIONS = ("double", "single")
# Numbers in a strip of the matrix: what is held beside the inputs when the strips are made anew for each product.
STRIP = 2**24
# The part of the memory there is that kept strips may take.
KEPT = 0.4


class GramProduct:
    """Products of the Gram matrix of inputs with vectors, on this machine's cores.

    Each strip is made for the columns from its own on, and used twice, since the matrix is symmetric.

    Parameters
    ----------
    X
        Inputs, one per row, as `gram` takes them.
    activation, layers, kappa
        Of the kernel, as in `gram`.
    precision
        Of the strips, ``"double"`` or ``"single"``; vectors and results are float64.
    keep
        Whether strips are kept (half of the matrix) or made anew for each product; by default as memory allows.
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
    ):
        kind = as_activation(activation)
        self.inputs, norms = unit_rows(X)
        layers, kappa = choice("layers", LAYERS)(layers), float(number("kappa", above=0.0)(kappa))
        self.profile = make_profile(kind, layers, kappa, one_norm(kind, norms))
        self.norms = norms if self.profile.is_homogeneous else np.ones_like(norms)
        self.dtype = np.dtype(np.float64 if choice("precision", PRECISIONS)(precision) == "double" else np.float32)
        self._rows = self.inputs if self.dtype == np.float64 else self.inputs.astype(np.float32)
        size = 0.5 * self.dtype.itemsize * self.n**2
        self.is_kept = size < KEPT * available_memory() if keep is None else bool(keep)
        self._strips: dict[int, np.ndarray] = {}

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
    def main_device(self) -> Any:
        """The device on which other work of this size should be done; none where that is NumPy's."""
        return None

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """The product with a vector, or with each column of several."""
        scales, sizes, scaled = self._prepared(vector)
        result = np.zeros(scaled.shape)
        height = max(1, STRIP // self.n)
        for first in range(0, self.n, height):
            last = min(first + height, self.n)
            strip = self._strip(first, last)
            result[first:last] += strip @ scaled[first:]
            result[last:] += strip[:, last - first :].T @ scaled[first:last]
        return (scales * result * sizes).reshape(vector.shape)

    def _prepared(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Norms, sizes of the columns, and what the strips multiply: columns of one size.

        No column drowns or overflows in single precision then.
        """
        columns = vector.reshape(self.n, -1)
        sizes = np.maximum(np.max(np.abs(columns), axis=0), 1e-300)
        scales = self.norms[:, None]
        return scales, sizes, (scales * (columns / sizes)).astype(self.dtype)

    def _strip(self, first: int, last: int) -> np.ndarray:
        if first in self._strips:
            return self._strips[first]
        strip = self._rows[first:last] @ self._rows[first:].T
        apply_profile(strip, self.inputs[first:last], self.inputs[first:], self.profile)
        if self.is_kept:
            self._strips[first] = strip
        return strip
