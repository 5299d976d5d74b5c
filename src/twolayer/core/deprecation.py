"""Former names that keep working for one minor version, with a warning that gives the replacement.

A name deprecated in version 0.2 warns in every 0.2.x and is removed in 0.3; `overdue` lists those that should be gone.
"""

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple, ParamSpec, TypeVar

from twolayer.core.errors import InvalidInput

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class TwolayerDeprecationWarning(FutureWarning):
    """A name of this package that will be removed in the next minor version was used.

    It is a `FutureWarning`, which Python shows by default; a `DeprecationWarning` would be hidden in most programs.
    """


class Deprecation(NamedTuple):
    """One former name: what it was, what replaces it, and the minor version that deprecated it, such as ``"0.2"``."""

    former: str
    replacement: str
    since: str

    @property
    def removed_in(self) -> str:
        """The minor version without the name: the one after `since`."""
        major, minor = self.since.split(".")
        return f"{major}.{int(minor) + 1}"

    def __str__(self) -> str:
        return (
            f"{self.former} is deprecated since version {self.since} and will be removed in version "
            f"{self.removed_in}; use {self.replacement} instead."
        )


_deprecations: list[Deprecation] = []


def overdue(version: str) -> list[Deprecation]:
    """Deprecations whose name should no longer exist in this version of the package."""

    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".")[:2])

    return [deprecation for deprecation in _deprecations if number(deprecation.removed_in) <= number(version)]


def renamed_argument(
    former: str, replacement: str, *, since: str, convert: Callable[[object], object] | None = None
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Let a function take an argument by its former name as well, with a warning.

    Parameters
    ----------
    former, replacement
        The keyword that callers used, and the one that the function has now.
    since
        The minor version that deprecates it, such as ``"0.2"``.
    convert
        Turns a value of the former argument into one of the new argument where they differ in meaning.

    Returns
    -------
    A decorator. The signature and the documentation of the function show the new name only.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        name = function.__name__
        deprecation = _announce(f"Argument `{former}` of `{name}`", f"`{replacement}`", since)
        signature = inspect.signature(function)
        if replacement not in signature.parameters:
            raise ValueError(f"Function `{name}` must have an argument `{replacement}`, but has {signature}.")

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if former in kwargs:
                value = kwargs.pop(former)
                if replacement in signature.bind_partial(*args, **kwargs).arguments:
                    raise InvalidInput(
                        f"Argument `{former}` of `{name}` is the former name of `{replacement}`, but both are given. "
                        f"Give only `{replacement}`."
                    )
                _warn(deprecation)
                kwargs[replacement] = value if convert is None else convert(value)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_function(
    former: str, replacement: Callable[Parameters, Result], *, since: str
) -> Callable[Parameters, Result]:
    """Keep a function under its former name: it warns and calls the replacement.

    Write ``old_name = renamed_function("old_name", new_name, since="0.2")`` beside the definition of ``new_name``.
    """
    deprecation = _announce(f"`{former}`", f"`{replacement.__name__}`", since)

    @functools.wraps(replacement)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        _warn(deprecation)
        return replacement(*args, **kwargs)

    call.__name__ = former
    call.__qualname__ = former
    call.__doc__ = f"Call `{replacement.__name__}`.\n\n.. deprecated:: {since}"
    return call


def former_option(option: str, replacement: str, *, since: str) -> Callable[[], None]:
    """Return a function that warns that an option of a command was used which has a replacement."""
    deprecation = _announce(f"Option `{option}`", f"`{replacement}`", since)
    return lambda: _warn(deprecation)


def renamed_attributes(module: str, replacements: Mapping[str, str], *, since: str) -> Callable[[str], object]:
    """Make the ``__getattr__`` of a module whose attributes have other names, or another place, now.

    Parameters
    ----------
    module
        ``__name__`` of the module.
    replacements
        From each former name to the present one: a name of the same module, or ``"package.module.name"``.
    since
        The minor version that deprecates the former names, such as ``"0.2"``.

    Returns
    -------
    The function to assign: ``__getattr__ = renamed_attributes(__name__, {"Old": "New"}, since="0.2")``.
    """
    deprecations = {
        former: _announce(f"`{module}.{former}`", f"`{place if '.' in place else f'{module}.{place}'}`", since)
        for former, place in replacements.items()
    }

    def get_attribute(name: str) -> object:
        if name not in deprecations:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(deprecations[name])
        home, _, present = replacements[name].rpartition(".")
        return getattr(importlib.import_module(home or module), present)

    return get_attribute


def deprecated_use(former: str, replacement: str, *, since: str) -> Callable[[], None]:
    """Announce a use of an argument that is going away; the result is called where it is met, and warns.

    Write ``warn = deprecated_use("`x` as a text", "a number", since="0.2")`` at the top of a module.
    """
    deprecation = _announce(former, replacement, since)
    return lambda: _warn(deprecation)


def _announce(former: str, replacement: str, since: str) -> Deprecation:
    """Record a deprecation, so that `overdue` knows of it."""
    deprecation = Deprecation(former, replacement, since)
    _deprecations.append(deprecation)
    return deprecation


def _warn(deprecation: Deprecation) -> None:
    """Warn at the line of the user: the first one outside of this package and of what wraps its functions."""
    level, frame = 1, sys._getframe()
    ours = {"twolayer", "jaxtyping", "beartype", "equinox", "importlib", "functools"}
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    warnings.warn(str(deprecation), TwolayerDeprecationWarning, stacklevel=level)
