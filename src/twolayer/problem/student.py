"""The student network."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.types import Values
from twolayer.problem.activations import AsActivation, as_activation
from twolayer.specification.fields import MAX_LENGTH, accepts, array, count, leaf, static
from twolayer.specification.registry import register

# The widest networks are those of lazy training, which follows them without overlap matrices.
MOST_UNITS = 2**20
SECOND_LAYERS = ("ones", "rademacher", "gaussian")


@accepts(str, np.ndarray, jax.Array, Sequence[float])
def _as_second_layer(value: Any) -> Any:
    if isinstance(value, str):
        if value not in SECOND_LAYERS:
            raise InvalidInput(
                f"Argument `second_layer` must be {', '.join(map(repr, SECOND_LAYERS))} or an array, but is "
                f"{shown(value)}."
            )
        return value
    return array("second_layer", 1, largest=MAX_LENGTH)(value)


@register
class Student(eqx.Module):
    r"""A two-layer network of width p, :math:`s(z) = \frac1p \sum_j a_j\,\sigma(w_j \cdot z)`.

    ``second_layer`` is the initial second layer a: ``"ones"``, ``"rademacher"`` (random signs), ``"gaussian"``
    (standard normal) or an array.
    """

    p: int = static(count("p", high=MOST_UNITS))
    activation: AsActivation = leaf(as_activation)
    second_layer: Values = leaf(_as_second_layer, default="ones")

    def __check_init__(self):
        if not isinstance(self.second_layer, str) and self.second_layer.shape != (self.p,):
            raise InvalidInput(
                f"Argument `second_layer` must have p = {self.p} entries, but has shape {self.second_layer.shape}."
            )

    @property
    def scale(self) -> float:
        """The factor of the sum over neurons."""
        return 1.0 / self.p

    @property
    def is_random(self) -> bool:
        """Whether the initial second layer is random, so that it differs between replicas."""
        return isinstance(self.second_layer, str) and self.second_layer != "ones"

    def draw_second_layer(self, key: Key[Array, ""]) -> Float[Array, " p"]:
        """Draw the initial second layer of one replica."""
        if not isinstance(self.second_layer, str):
            return jnp.asarray(self.second_layer, jnp.float64)
        if self.second_layer == "rademacher":
            return jax.random.rademacher(key, (self.p,), dtype=jnp.float64)
        if self.second_layer == "gaussian":
            return jax.random.normal(key, (self.p,), dtype=jnp.float64)
        return jnp.ones(self.p, jnp.float64)

    def __call__(self, lam: Float[Array, "*n p"], a: Float[Array, " p"]) -> Float[Array, "*n"]:
        """Return the output, given the local fields and the second layer."""
        return self.activation(lam) @ a.astype(lam.dtype) * self.scale
