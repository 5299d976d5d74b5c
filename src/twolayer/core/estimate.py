"""A number that is an approximation, together with its error."""

from typing import Any

import equinox as eqx


class Estimate(eqx.Module):
    """A value (any pytree of arrays) and a bound on its error, of the same structure.

    Every engine promises that the reported error is never smaller than the true one.
    """

    value: Any
    error: Any
