"""Inputs: the distribution or data set that samples come from."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.specification.fields import array, count, leaf, static
from twolayer.specification.registry import register

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class AbstractInputs(eqx.Module):
    """Base class: the distribution of the inputs, whose dimension is d."""

    d: AbstractVar[int]


@register
class Gaussian(AbstractInputs):
    r"""Standard Gaussian inputs in d dimensions, :math:`z \sim N(0, I_d)`."""

    d: int = static(count("d"))


@register
class Samples(AbstractInputs):
    r"""A data set: inputs :math:`X \in R^{n \times d}` and labels :math:`y \in R^n`.

    A fresh sample is a random row of X.
    """

    X: Any = leaf(array("X", 2))
    y: Any = leaf(array("y", 1))

    def __check_init__(self):
        if self.X.shape[0] == 0 or self.X.shape[1] == 0:
            raise InvalidInput(f"Argument `X` must have at least one row and one column, but has shape {self.X.shape}.")
        if self.X.shape[0] != self.y.shape[0]:
            raise InvalidInput(
                f"Argument `y` must have one label per row of `X` ({self.X.shape[0]}), but has shape {self.y.shape}."
            )

    @property
    def d(self) -> int:
        return int(np.shape(self.X)[1])

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(np.shape(self.X)[0])
