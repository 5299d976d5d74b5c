"""The former signature of `ntk`, on samples and in the letters of the literature, for one more version."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from twolayer.analyses.lazy.setting import lazy_setting
from twolayer.core.deprecation import deprecated_use
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.problem import Samples
from twolayer.specification.fields import instance

_warn = deprecated_use(
    "`ntk(samples, width=..., eta=...)`",
    "`ntk(Problem(target=Labels(), inputs=samples, student=Student(p=width, activation='relu'), "
    "start=AntisymmetricStart(kappa)), SGD(learning_rate=eta * d, layers=First()))`, or `First()` alone for the "
    "default step size,",
    since="0.2",
)


P = ParamSpec("P")
R = TypeVar("R")


def takes_samples(verb: Callable[P, R]) -> Callable[P, R]:
    """Let `ntk` be called on samples as in version 0.1, with a warning that names the replacement."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        is_former = "samples" in kwargs or (args and isinstance(args[0], Samples))
        return _former(verb, *args, **kwargs) if is_former else verb(*args, **kwargs)

    return call


def _former(verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    @takes_these
    def ntk(
        samples: Any,
        *,
        test: Any = None,
        width: Any = 0,
        steps: Any = 100,
        eta: Any = None,
        start: str = "antisymmetric",
        kappa: Any = None,
        activation: Any = "relu",
        layers: str = "first",
        ridge: Any = 0.0,
        random_labels: bool = True,
        shares: Any = (),
        target: Any = None,
        formula: str = "",
        seed: int = 0,
        precision: str = "double",
        method: str = "auto",
        devices: Any = None,
        progress: Any = None,
    ) -> Any:
        instance("samples", Samples, "Samples(X, y), or what load_samples returns")(samples)
        names = ("width", "eta", "start", "kappa", "activation", "layers")
        given = locals()
        problem, training = lazy_setting(samples, **{name: given[name] for name in names})
        if width and layers != "first":
            raise InvalidInput("Argument `width` must be 0 unless the first layer of relu units is trained.")
        asked = ("test", "steps", "ridge", "random_labels", "shares", "target", "formula", "seed", "precision")
        fields = {name: given[name] for name in (*asked, "method", "devices")}
        return verb(problem, training, replicas=int(width > 0), progress=progress, **fields)

    _warn()
    return ntk(*args, **kwargs)
