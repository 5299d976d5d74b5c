"""What is asked of `ntk`, and the one specification of its result."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import equinox as eqx
import numpy as np
from jaxtyping import Float

from twolayer.analyses.lazy.setting import as_lazy_training
from twolayer.core.errors import InvalidInput, WrongArguments, nearest, shown
from twolayer.kernel import PowerSum, from_expression
from twolayer.kernel.eigen import METHODS
from twolayer.kernel.products import PRECISIONS
from twolayer.problem import Expression, Problem, Samples
from twolayer.specification.codec import content_hash, to_json
from twolayer.specification.fields import array, choice, count, flag, instance, leaf, number, static
from twolayer.specification.registry import register
from twolayer.training import SGD
from twolayer.training.sgd import AbstractLayers


def _as_shares(value: Any) -> tuple[float, ...]:
    return tuple(float(number("shares", low=0.0, high=1.0)(share)) for share in array("shares", 1)(value))


def _as_target(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return instance("target", PowerSum, "a formula, or a target such as twolayer.kernel.linear(beta)")(value)


def _as_formula(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"Argument `formula` must be a text, but is {shown(value)}.")
    return value


def _as_test(value: Any) -> Any:
    return value if value is None else instance("test", Samples, "Samples(X, y), or what load_samples returns")(value)


class NTKFields(TypedDict, total=False):
    """The fields of `NTKAsk` as keywords of `ntk`."""

    steps: int
    replicas: int | None
    seed: int
    random_labels: bool
    test: Samples | None
    shares: Sequence[float] | Float[np.ndarray, " shares"]
    target: PowerSum | str | None
    formula: str
    ridge: float | int
    method: str
    precision: str
    devices: int | None
    delta: float
    epsilon: float


@register
class NTKAsk(eqx.Module):
    r"""What is asked of `twolayer.ntk`, which takes it whole, or its fields as keywords.

    Parameters
    ----------
    steps
        Steps of gradient descent, on all samples each.
    replicas
        Networks of the student's width that are trained for comparison, 0 for none. By default one where a network can
        be trained (relu units, first layer), else none.
    seed
        The seed of random labels, weights and signs. Replica 0 is a function of the seed alone.
    random_labels
        Whether the same is done with labels that are all drawn at random (where labels are plus and minus one).
    test
        Samples with clean labels, signs or any real numbers, on which the errors of the kernel and of the network at
        the last step are measured; needed for ``shares``. With ``target`` their labels are those of the target.
    shares
        Shares of random labels for which measure and test error are compared.
    target, formula
        A target with provable bounds, which gives the labels in place of those of the samples: a formula in the first
        coordinates such as ``"z1 + z1*z2"``, or a `twolayer.kernel.PowerSum`; and its name.
    ridge
        Added to the diagonal of the Gram matrix; nothing is unless asked.
    method
        ``"exact"``: all eigenvalues, for up to 20,000 samples; ``"free"``: from products of the Gram matrix, which is
        never held whole unless it fits, see `twolayer.kernel.free_spectrum`; ``"auto"``: the former where two matrices
        fit the memory. The result says which, and why.
    precision
        Of the network, and of the products inside the matrix-free route: ``"double"`` or ``"single"``. The measure
        keeps the error of double precision.
    devices
        How many accelerators make the products of the matrix-free route: all by default, 0 for none.
    delta, epsilon
        The failure probability of the theorems whose conditions are compared with the run, and the accuracy of theorem
        4.1 as a fraction of the norm of the labels.
    """

    steps: int = static(count("steps", low=0, high=10**7), default=100)
    replicas: int | None = static(count("replicas", low=0, high=10**6, optional=True), default=None)
    seed: int = static(count("seed", low=0), default=0)
    random_labels: bool = static(flag("random_labels"), default=True)
    test: Samples | None = leaf(_as_test, default=None)
    shares: Sequence[float] | Float[np.ndarray, " shares"] = static(_as_shares, default=())
    target: PowerSum | str | None = leaf(_as_target, default=None)
    formula: str = static(_as_formula, default="")
    ridge: float | int = leaf(number("ridge", low=0.0), default=0.0)
    method: str = static(choice("method", METHODS), default="auto")
    precision: str = static(choice("precision", PRECISIONS), default="double")
    devices: int | None = static(count("devices", low=0, optional=True), default=None)
    delta: float = leaf(number("delta", above=0.0, below=1.0), default=0.1)
    epsilon: float = leaf(number("epsilon", above=0.0), default=0.1)

    def __check_init__(self) -> None:
        """Fields that depend on one another fit."""
        if self.shares and self.test is None:
            raise InvalidInput("Argument `shares` needs `test`: samples on which errors are measured.")

    @classmethod
    def of(cls, ask: "NTKAsk | None", fields: Mapping[str, Any]) -> "NTKAsk":
        """The object that the verb was given, changed by the keywords beside it."""
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in fields if name not in names]
        if unknown:
            raise WrongArguments(f"`ntk` has no argument {shown(unknown[0])}: {nearest(unknown[0], names)}")
        if ask is None:
            return cls(**fields)
        instance("ask", cls, "an NTKAsk such as NTKAsk(steps=200)")(ask)
        return dataclasses.replace(ask, **fields)

    def target_in(self, d: int) -> PowerSum | None:
        """The target that gives the labels, for inputs of d dimensions."""
        if not isinstance(self.target, str):
            return self.target
        fields = Expression(self.target).fields
        if fields > d:
            raise InvalidInput(f"Argument `target` has {fields} fields, but inputs have {d} dimensions.")
        return from_expression(self.target, np.eye(max(fields, 1), d))

    @property
    def target_name(self) -> str:
        """What the target is called in results."""
        return self.formula or (self.target if isinstance(self.target, str) else "target")


@register
class LazySpec(eqx.Module):
    """Everything that a result of `ntk` depends on: the problem, the training, and what is asked."""

    problem: Problem = leaf(instance("problem", Problem, "a Problem"))
    training: SGD | AbstractLayers = leaf(as_lazy_training)
    ask: NTKAsk = leaf(instance("ask", NTKAsk, "an NTKAsk such as NTKAsk(steps=200)"), default=NTKAsk())

    @property
    def json(self) -> str:
        """The canonical JSON of all that numbers depend on; a large data set is named by its digest."""
        return to_json(self)

    @property
    def key(self) -> str:
        """The hash that names the result."""
        return content_hash(self)
