"""The former signature of `ntk`, on samples and in the letters of the literature, for one more version."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from twolayer.analyses.lazy.setting import LETTERS, lazy_setting
from twolayer.core.deprecation import deprecated_use
from twolayer.core.errors import InvalidInput
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
        if "samples" in kwargs or (args and isinstance(args[0], Samples)):
            _warn()
            return _former(verb, *args, **kwargs)  # pyright: ignore[reportCallIssue]
        return verb(*args, **kwargs)

    return call


def _former(verb: Callable[..., Any], samples: Any, *others: Any, **given: Any) -> Any:
    instance("samples", Samples, "Samples(X, y), or what load_samples returns")(samples)
    letters = {name: given.pop(name) for name in LETTERS if name in given}
    problem, training = lazy_setting(samples, **letters)
    width = letters.get("width", 0)
    if width and letters.get("layers", "first") != "first":
        raise InvalidInput("Argument `width` must be 0 unless the first layer of relu units is trained.")
    return verb(problem, training, *others, replicas=int(width > 0), **given)
