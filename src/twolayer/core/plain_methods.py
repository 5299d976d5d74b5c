"""Methods of modules that are called often in Python."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


class plain(Generic[P, R]):
    """Mark a method of an Equinox module that is only called, and never passed to a transformation of JAX.

    Equinox makes a module of every method at each access, so that `jax.jit` takes it; that takes 20 microseconds, and a
    sweep calls some methods several times for each of its cells.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], R]):
        self.method: Any = method
        itself: Any = self
        functools.update_wrapper(itself, method)

    def __get__(self, module: object, owner: type | None = None) -> Callable[P, R]:
        return self.method if module is None else functools.partial(self.method, module)


def plain_attributes(cls: C) -> C:
    """Let the attributes of a class of Equinox modules be read as those of any other object.

    Equinox looks at each attribute that is read, whether it is a method, which takes a microsecond; a sweep reads some
    hundred of them for each of its cells. Methods of such a class are not to be passed to `jax.jit`.
    """
    cls.__getattribute__ = object.__getattribute__  # pyright: ignore[reportAttributeAccessIssue]
    return cls
