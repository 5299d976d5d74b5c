"""Strips of a Gram matrix on accelerators, for `GramProduct`: dealt to all of them, kept where they fit.

A strip is made in one compiled program: cosines, angles, kernel. Where inputs are nearly parallel its entries are set
to numbers that the host makes from the chord in double precision, for the rows that hold any.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.memory_limit import available_memory
from twolayer.core.precision import double
from twolayer.core.types import Device, NumbersLike
from twolayer.kernel.matrices import NEARLY_PARALLEL, stable_angle
from twolayer.kernel.profile import Profile
from twolayer.specification.fields import count

# The part of the memory there is that kept strips may take.
KEPT = 0.4
# Numbers in a strip: what fills a GPU and leaves room for its temporaries, what fits the caches.
STRIP = {"cpu": 2**22, "gpu": 2**28}
# A cosine in single precision may be this far from the true one.
COSINE_ERROR = 4e-6
# Numbers in a block of cosines on the host, and the most pairs of nearly parallel inputs.
HOST_BLOCK = 2**25
MOST_PAIRS = 2**24
# The default of accelerators for products of float32 has ten bits: the angle would be lost.
EXACT = jax.lax.Precision.HIGHEST


def chosen_devices(devices: NumbersLike | None) -> list[Any]:
    """The devices that make products: so many, or all accelerators; none where products are made by NumPy."""
    if devices is None:
        return [] if jax.default_backend() == "cpu" else jax.local_devices()
    there = jax.local_devices()
    return there[: count("devices", low=0, high=len(there))(devices)]


class DeviceStrips:
    """Strips on one or several of JAX's devices.

    Each device holds the inputs and its strips, or makes these anew for each product where they do not fit its memory.
    """

    def __init__(
        self, inputs: np.ndarray, profile: Profile, dtype: np.dtype, keep: bool | None, devices: Sequence[Any]
    ):
        self.inputs, self.profile, self.dtype = inputs, profile, dtype
        self.devices = list(devices)
        kind = "cpu" if self.devices[0].platform == "cpu" else "gpu"
        n = self.n
        self.height = min(n, max(1, STRIP[kind] // n), -(-n // len(self.devices)))
        # The last strip overlaps the one before it, so that all have one shape and are compiled once.
        self.firsts = [min(first, n - self.height) for first in range(0, n, self.height)]
        size = len(self.firsts) * self.height * n * dtype.itemsize / len(self.devices)
        self.is_kept = size < KEPT * device_memory(self.devices) if keep is None else bool(keep)
        height = self.height

        def cosines(U: Any, first: Any) -> Any:
            rows = jax.lax.dynamic_slice_in_dim(U, first, height)
            return jnp.clip(jnp.matmul(rows, U.T, precision=EXACT), -1.0, 1.0)

        def near(U: Any, first: Any, limit: Any) -> Any:
            is_near = jnp.abs(cosines(U, first)) > limit
            return jnp.sum(is_near & ~_on_diagonal(first, height, n), axis=1)

        def strip(U: Any, first: Any, on_diagonal: Any, rows: Any, columns: Any, values: Any) -> Any:
            rho = cosines(U, first)
            H = profile.function(rho, jnp.arccos(rho)).astype(dtype)
            H = jnp.where(_on_diagonal(first, height, n), on_diagonal, H)
            # Rows beyond the strip fill up the list, and are dropped.
            return H.at[rows, columns].set(values, mode="drop")

        def product(U: Any, x: Any, *entries: Any) -> Any:
            return jnp.matmul(strip(U, *entries), x, precision=EXACT)

        self._near, self._make, self._product = jax.jit(near), jax.jit(strip), jax.jit(product)
        self._multiply = jax.jit(lambda H, x: jnp.matmul(H, x, precision=EXACT))
        with double():
            rows = inputs if dtype == np.float64 else inputs.astype(np.float32)
            self._held = {device: jax.device_put(rows, device) for device in self.devices}
            entries = self._entries()
            self._places = [self.devices[i % len(self.devices)] for i in range(len(self.firsts))]
            self._lists = [jax.device_put(entry_lists, d) for entry_lists, d in zip(entries, self._places, strict=True)]
            if self.is_kept:
                self._lists = [
                    self._make(self._held[d], *entry_lists)
                    for entry_lists, d in zip(self._lists, self._places, strict=True)
                ]
                self._held = {}

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.inputs)

    @property
    def main_device(self) -> Device:
        """The device on which other work of this size should be done."""
        return self.devices[0]

    def multiply(self, columns: np.ndarray) -> np.ndarray:
        """The product of the matrix of unit inputs with columns, in float64."""
        result = np.zeros((self.n, columns.shape[1]))
        with double():
            there = {device: jax.device_put(columns, device) for device in self.devices}
            # All programs are started before the first result is asked for: the devices work side by side.
            parts = [
                self._multiply(entry_lists, there[d])
                if self.is_kept
                else self._product(self._held[d], there[d], *entry_lists)
                for entry_lists, d in zip(self._lists, self._places, strict=True)
            ]
            for first, part in zip(self.firsts, parts, strict=True):
                result[first : first + self.height] = np.asarray(part)
        return result

    def _entries(self) -> list[tuple[Any, ...]]:
        """For each strip: its first row, the diagonal, and the places and numbers of nearly parallel inputs."""
        limit = NEARLY_PARALLEL[self.dtype.name] - COSINE_ERROR
        one = np.ones(1)
        diagonal = self.dtype.type(self.profile.function(one, 0.0 * one)[0])
        U = self._held[self.devices[0]]
        strip_counts = [np.asarray(self._near(U, first, self.dtype.type(limit))) for first in self.firsts]
        counts = np.zeros(self.n, int)
        for first, number in zip(self.firsts, strip_counts, strict=True):
            counts[first : first + self.height] = number
        if counts.sum() > MOST_PAIRS:
            raise InvalidInput(
                f"Argument `X` has {int(counts.sum()) // 2} pairs of nearly parallel inputs, too many for an "
                "accelerator: use `devices=0`, or leave out inputs that are nearly the same."
            )
        i, j, values = self._near_values(np.flatnonzero(counts), limit)
        lists = []
        for first in self.firsts:
            here = (i >= first) & (i < first + self.height)
            lists.append((i[here] - first, j[here], values[here]))
        longest = max(len(part[0]) for part in lists)
        padded = []
        for first, (rows, columns, numbers) in zip(self.firsts, lists, strict=True):
            fill = longest - len(rows)
            padded.append(
                (
                    np.int32(first),
                    diagonal,
                    np.pad(rows, (0, fill), constant_values=self.height).astype(np.int32),
                    np.pad(columns, (0, fill)).astype(np.int32),
                    np.pad(numbers, (0, fill)).astype(self.dtype),
                )
            )
        return padded

    def _near_values(self, rows: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places and kernel values of the nearly parallel inputs in some rows of the matrix, from the chord."""
        U, parts = self.inputs, []
        block = max(1, HOST_BLOCK // self.n)
        for start in range(0, len(rows), block):
            chosen = rows[start : start + block]
            i, j = np.nonzero(np.abs(U[chosen] @ U.T) > limit - COSINE_ERROR)
            i = chosen[i]
            i, j = i[i != j], j[i != j]
            parts.append((i, j, self.profile.function(*stable_angle(U[i], U[j]))))
        if not parts:
            return np.zeros(0, int), np.zeros(0, int), np.zeros(0)
        i, j, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        return i, j, values


def _on_diagonal(first: Any, height: int, n: int) -> Any:
    rows = jax.lax.broadcasted_iota(jnp.int32, (height, n), 0)
    return rows + first == jax.lax.broadcasted_iota(jnp.int32, (height, n), 1)


def device_memory(devices: list[Any]) -> float:
    """Bytes of the smallest device that are free."""
    if devices[0].platform == "cpu":
        return available_memory() / len(devices)
    free = []
    for device in devices:
        stats = device.memory_stats() or {}
        free.append(stats.get("bytes_limit", 2**33) - stats.get("bytes_in_use", 0))
    return float(min(free))
