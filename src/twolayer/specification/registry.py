"""The registry of classes by name: a decorator adds a class where it is defined, so that there is no central table."""

import dataclasses
import inspect
import typing
from importlib import import_module, metadata
from typing import Annotated, Any, TypeVar

import equinox as eqx

from twolayer.core.errors import InvalidInput, accepted_types, nearest, shown, takes_these
from twolayer.specification.display import as_html, as_text

ENTRY_POINTS = "twolayer.plugins"

_classes: dict[str, type] = {}
_all_loaded = False

C = TypeVar("C", bound=type)


def register(cls: C) -> C:
    """Make a class known under its own name: to specification files, the command line and `explain`.

    Write it above an activation, a target, a description or any other class of objects that may stand in a
    specification. An argument that the class does not have is then refused in a sentence, and its objects show
    themselves in short on a terminal and as a table in a notebook.
    """
    if cls.__name__ in _classes and _classes[cls.__name__] is not cls:
        raise ValueError(f"A class named {cls.__name__!r} is registered already: {_classes[cls.__name__]!r}.")
    _classes[cls.__name__] = cls
    signature = _typed(cls)
    cls.__init__ = takes_these(cls.__init__, cls.__name__)  # the error for a wrong argument suggests a right one
    cls.__init__.__dict__["__signature__"] = signature
    if cls.__repr__ is eqx.Module.__repr__:
        cls.__repr__ = as_text  # pyright: ignore[reportAttributeAccessIssue]  # a method once it is here
    cls._repr_html_ = as_html
    return cls


def _typed(cls: type) -> inspect.Signature:
    """The signature of a constructor, with the types that converters of its fields accept or that fields declare."""
    signature = inspect.signature(cls.__init__)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]

    def typed(parameter: inspect.Parameter) -> inspect.Parameter:
        field = fields.get(parameter.name)
        if field is None or typing.get_origin(parameter.annotation) is Annotated:
            return parameter.replace(annotation=accepted_types(parameter.annotation))
        accepted: Any = getattr(field.metadata.get("converter"), "accepts", field.type)
        return parameter.replace(annotation=accepted | None if parameter.default is None else accepted)

    return signature.replace(parameters=[typed(parameter) for parameter in signature.parameters.values()])


def _load_all() -> None:
    """Import every module that registers classes: those of this package, and the entry points of other packages."""
    global _all_loaded
    if not _all_loaded:
        _all_loaded = True
        import_module("twolayer.api")
        for entry in metadata.entry_points(group=ENTRY_POINTS):
            entry.load()


def registered(family: type | tuple[type, ...] = object) -> dict[str, type]:
    """Return the registered classes of a family, or of several, by name."""
    _load_all()
    return {name: cls for name, cls in _classes.items() if issubclass(cls, family)}


def lookup(name: str, family: type | tuple[type, ...] = object) -> type:
    """Return the registered class of a family by its name, ignoring case; an unknown name raises `InvalidInput`."""
    classes = registered(family)
    if name in classes:
        return classes[name]
    matching = [cls for registered_name, cls in classes.items() if registered_name.lower() == name.lower()]
    if len(matching) != 1:
        raise InvalidInput(f"{shown(name)} is not known here: {nearest(name, classes)}")
    return matching[0]
