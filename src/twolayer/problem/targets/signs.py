"""The sign of another target."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.multivariate import Polynomial
from twolayer.core.precision import double
from twolayer.problem.activations.found_kinks import kinks_in
from twolayer.problem.expression import Expression
from twolayer.problem.kinks import kinks_of
from twolayer.problem.targets.mixture import Mixture
from twolayer.problem.targets.target import AbstractTarget
from twolayer.specification.fields import instance, is_traced, leaf
from twolayer.specification.registry import register


@register
class Signs(AbstractTarget):
    r"""The sign of a target, :math:`y = \mathrm{sign} f(\lambda^\star)`: labels :math:`\pm 1` for classification.

    Parameters
    ----------
    target
        The target whose sign is the label, such as ``Committee(3, "erf")``.
    """

    target: AbstractTarget = leaf(instance("target", AbstractTarget, "a target such as Committee(k=2)"))

    is_smooth: ClassVar[bool] = False

    @property
    def k(self) -> int:
        return self.target.k

    @property
    def target_overlaps(self) -> np.ndarray | Array:
        return self.target.target_overlaps

    @property
    def kinks(self) -> tuple[tuple[float, ...], ...] | None:
        formula = getattr(self.target, "function", getattr(self.target, "link", None))
        if isinstance(formula, Expression):
            return kinks_of(f"sign({formula.text})", self.k)
        if self.k != 1:
            return None
        kinks = kinks_in(lambda z: self(jnp.reshape(z, (1, 1)))[0])
        return (kinks,) if kinks else None

    @property
    def polynomial(self) -> Polynomial | None:
        return None

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        value = self.target(lam_star)
        return jnp.where(value < 0.0, -1.0, 1.0).astype(value.dtype)


def has_signs(target: AbstractTarget) -> bool:
    """Return whether all labels of a target are signs, plus or minus one, but for a set of inputs of measure zero."""
    if isinstance(target, Signs):
        return True
    if isinstance(target, Mixture):
        return all(has_signs(part) for part in target.targets)
    if target.is_continuous:
        return False
    if any(is_traced(leaf) for leaf in jax.tree.leaves(target)):
        return True  # numbers of programs are not known; they were checked before
    fields = np.random.default_rng(0).standard_normal((2**12, target.k)) * np.linspace(0.5, 2.0, 2**12)[:, None]
    # Within programs, too, this is computed at once: targets of a mixture are looked at there.
    with double(), jax.ensure_compile_time_eval():
        values = np.asarray(target(jnp.asarray(fields @ np.linalg.cholesky(np.asarray(target.target_overlaps)).T)))
    return bool(np.all(np.abs(values) == 1.0))
