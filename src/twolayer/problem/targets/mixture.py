"""A target that is drawn for each sample: several tasks that are learned at the same time."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, NotApplicable, shown
from twolayer.core.multivariate import Polynomial
from twolayer.core.types import Values
from twolayer.problem.targets.labels import Labels
from twolayer.problem.targets.target import AbstractTarget
from twolayer.specification.fields import array, instance, is_traced, leaf
from twolayer.specification.registry import register

# The sum of the shares may differ from one by this much.
ROUNDING = 1e-9


def _as_targets(value: Any) -> tuple[AbstractTarget, ...]:
    check = instance("targets", AbstractTarget, "a list of targets such as [Committee(2, 'erf'), Committee(2, 'relu')]")
    targets = tuple(check(target) for target in (value if isinstance(value, tuple | list) else (value,)))
    if any(isinstance(target, Labels | Mixture) for target in targets):
        raise InvalidInput("Argument `targets` must name functions of the fields, but holds labels or a mixture.")
    if len({target.k for target in targets}) != 1:
        numbers = ", ".join(str(target.k) for target in targets)
        raise InvalidInput(f"Argument `targets` must all have the same number k of fields, but have {numbers}.")
    return targets


@register
class Mixture(AbstractTarget):
    r"""Several targets of the same fields, one of which labels each sample: tasks that are learned together.

    .. math:: y = f_n(\lambda^\star) + \sqrt\Delta\,\xi \quad \text{with probability } q_n

    independently for each sample. With shares such as ``[0.9, 0.1]`` it is replay: a tenth of the samples belong to an
    earlier task. Every average over a sample is the sum of those of the targets, weighted by their shares; the excess
    risk is :math:`\sum_n q_n\,\tfrac12 E[(f_n - s)^2]`. A share of zero follows the risk of a task without training it.

    Parameters
    ----------
    targets
        Functions of the same k fields; at most one overlap matrix P may be stated.
    shares
        The probabilities, which sum to one.
    """

    targets: tuple[AbstractTarget, ...] = eqx.field(converter=_as_targets)
    shares: Values = leaf(array("shares", 1))

    def __check_init__(self) -> None:
        """Check the shares, and that the targets state one overlap matrix at most."""
        if self.shares.shape != (len(self.targets),):
            raise InvalidInput(
                f"Argument `shares` must have one number for each of the {len(self.targets)} targets, but has shape "
                f"{self.shares.shape}."
            )
        if not is_traced(self.shares):
            shares = np.asarray(self.shares)
            if np.any(shares < 0.0) or abs(float(shares.sum()) - 1.0) > ROUNDING:
                raise InvalidInput(
                    f"Argument `shares` must be at least 0 and sum to 1, but is {shown(shares.tolist())}, whose sum is "
                    f"{float(shares.sum()):.6g}."
                )
        stated = [target.P for target in self.targets if getattr(target, "P", None) is not None]  # pyright: ignore[reportAttributeAccessIssue]
        if any(not np.array_equal(np.asarray(P), np.asarray(stated[0])) for P in stated if not is_traced(P)):
            raise InvalidInput("Argument `P` of the targets of a mixture must be the same, but differs.")

    @property
    def k(self) -> int:
        return self.targets[0].k

    @property
    def P(self) -> np.ndarray | Array | None:
        """The overlap matrix that one of the targets states; None if none does."""
        return next((P for target in self.targets if (P := getattr(target, "P", None)) is not None), None)

    @property
    def target_overlaps(self) -> np.ndarray | Array:
        return np.eye(self.k) if self.P is None else self.P

    @property
    def is_smooth(self) -> bool:
        return all(target.is_smooth for target in self.targets)

    @property
    def is_continuous(self) -> bool:
        return all(target.is_continuous for target in self.targets)

    @property
    def polynomial(self) -> Polynomial | None:
        return None

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        raise NotApplicable(
            "The labels of a `Mixture` are drawn for each sample, so that it is no function of the fields; "
            "`DirectSGD`, `OverlapSGD`, `SaadSolla` and `BatchMap` cover it."
        )

    def chosen(self, lam_star: Float[Array, "*n k"], number: Array) -> Float[Array, "*n"]:
        """Return the label without noise, where a standard normal number says whose label it is."""
        is_known = not is_traced(self.shares)
        quantiles = _quantiles(np.asarray(self.shares)) if is_known else _traced_quantiles(self.shares)
        values = [target(lam_star) for target in self.targets]
        label = values[0]
        for quantile, value in zip(quantiles, values[1:], strict=True):
            label = jnp.where(number > quantile, value, label)
        return label


def _quantiles(shares: np.ndarray) -> np.ndarray:
    """The normal numbers that are exceeded by all targets but the first, the first two, and so on."""
    from scipy.special import ndtri

    return ndtri(np.clip(np.cumsum(shares)[:-1], 0.0, 1.0))


def _traced_quantiles(shares: Array) -> Array:
    return jax.scipy.special.ndtri(jnp.clip(jnp.cumsum(shares)[:-1], 0.0, 1.0))
