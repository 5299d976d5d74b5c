"""Converters for the fields of modules: they accept many types and refuse a wrong value with one clear sentence.

A converter runs before anything else sees the value, so a wrong field fails at construction with its name.
Numbers that may be differentiated or swept stay as they are if they are JAX arrays or tracers; plain Python and NumPy
numbers become ``float`` and float64 arrays, so that no digit is lost before double precision is switched on.
"""

import dataclasses
import functools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, Literal, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.core.types import Number
from twolayer.specification.registry import lookup

MAX_COUNT = 2**53
# Larger weights are mistakes, and their powers would leave the range of double precision.
MAX_LENGTH = 1e6

# Metadata of a field that came after the first specifications: it is written only where it is not the default, so that
# the hash of a specification without it stays what it was.
ONLY_WHEN_GIVEN = {"only_when_given": True}

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


def is_traced(value: object) -> bool:
    """Whether the value is a tracer of JAX, whose number is unknown and cannot be checked."""
    return isinstance(value, Tracer)


def accepts(*accepted: object) -> Callable[[C], C]:
    """Name the types that a converter takes, which `inspect.signature` of a constructor shows; None where it may be.

    The argument of a converter itself is annotated with anything, since the converter is what refuses a wrong value.
    """
    union: Any = functools.reduce(operator.or_, cast("tuple[Any, ...]", accepted))

    def named(converter: C) -> C:
        converter.__dict__["accepts"] = union
        return converter

    return named


def _or_none(optional: bool, *accepted: object) -> tuple[object, ...]:
    return (*accepted, None) if optional else accepted


def nested(ndim: int) -> type | GenericAlias:
    """The type of numbers in nested sequences of so many levels."""
    return GenericAlias(Sequence, (nested(ndim - 1),)) if ndim else float


def _refuse(name: str, must: str, value: Any) -> InvalidInput:
    return InvalidInput(f"Argument `{name}` must be {must}, but is {shown(value)}.")


def _is_finite(value: Any) -> bool:
    """Whether the value is a real number that a float can represent."""
    if isinstance(value, np.ndarray | jax.Array):
        return value.ndim == 0 and value.dtype.kind in "iuf" and bool(np.isfinite(value))
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


# Type checkers read the type of what a converter returns from here. A tracer passes through, and counts as the number
# or the array that it stands for; None does where the field is optional.
def count(name: str, low: int = 1, high: int = MAX_COUNT, optional: bool = False) -> Callable[[Any], int]:
    """Return a converter to a whole number in [low, high]."""
    must = f"a whole number of at least {low}" + (f" and at most {high}" if high < MAX_COUNT else "")

    @accepts(*_or_none(optional, int))
    def convert(value: Any) -> Any:
        if optional and value is None:
            return None
        if not _is_finite(value) or int(value) != value or not low <= value <= high:
            raise _refuse(name, must, value)
        return int(value)

    return convert


def number(
    name: str,
    low: float = -math.inf,
    high: float = math.inf,
    above: float | None = None,
    below: float | None = None,
    optional: bool = False,
) -> Callable[[Any], float]:
    """Return a converter to a finite real number within the bounds; ``above`` and ``below`` are strict."""
    bounds = [f"at least {low:g}"] if low > -math.inf else []
    bounds += [f"above {above:g}"] if above is not None else []
    bounds += [f"at most {high:g}"] if high < math.inf else []
    bounds += [f"below {below:g}"] if below is not None else []
    must = " ".join(["a finite number", " and ".join(bounds)]).strip()

    @accepts(*_or_none(optional, Number))
    def convert(value: Any) -> Any:
        if (optional and value is None) or is_traced(value):
            return value
        if not _is_finite(value):
            raise _refuse(name, must, value)
        outside = value < low or value > high or (above is not None and value <= above)
        if outside or (below is not None and value >= below):
            raise _refuse(name, must, value)
        return value if isinstance(value, jax.Array) else float(value)

    return convert


def array(name: str, ndim: int, optional: bool = False, largest: float = math.inf) -> Callable[[Any], np.ndarray]:
    """Return a converter to a finite array with ``ndim`` dimensions whose entries are at most ``largest`` in size."""
    must = f"a finite array with {ndim} dimension{'s' if ndim != 1 else ''}"

    @accepts(*_or_none(optional, np.ndarray, jax.Array, nested(ndim)))
    def convert(value: Any) -> Any:
        if (optional and value is None) or is_traced(value):
            return value
        if isinstance(value, jax.Array):
            concrete: Any = value
        else:
            try:
                if np.iscomplexobj(value):
                    raise TypeError
                concrete = value = np.asarray(value, dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                raise _refuse(name, must, value) from None
        if concrete.ndim != ndim:
            raise InvalidInput(f"Argument `{name}` must be {must}, but has shape {tuple(concrete.shape)}.")
        if not np.all(np.isfinite(concrete)):
            raise InvalidInput(f"Argument `{name}` must be finite, but contains NaN or infinity.")
        size = float(np.max(np.abs(concrete), initial=0.0))
        if size > largest:
            raise InvalidInput(f"Argument `{name}` must have entries of at most {largest:g}, but has one of {size:g}.")
        return value

    return convert


def vector(name: str) -> Callable[[Any], tuple[float, ...]]:
    """Return a converter to a tuple of finite numbers."""

    @accepts(np.ndarray, nested(1))
    def convert(value: Any) -> tuple[float, ...]:
        return tuple(array(name, 1)(value).tolist())

    return convert


def dimensions(value: object) -> int:
    """The number of dimensions of an array or of nested lists; one for lists of unequal length, which are no array."""
    try:
        return np.ndim(value)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return 1


def choice(name: str, allowed: tuple[str, ...]) -> Callable[[Any], str]:
    """Return a converter that accepts one of the allowed strings."""

    @accepts(Literal[allowed])
    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise _refuse(name, f"one of {', '.join(allowed)}", value)
        if value not in allowed:
            raise InvalidInput(f"Argument `{name}` is {shown(value)}, which is not known: {nearest(value, allowed)}")
        return value

    return convert


def flag(name: str) -> Callable[[Any], bool]:
    """Return a converter that accepts true or false."""

    @accepts(bool)
    def convert(value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise _refuse(name, "true or false", value)
        return bool(value)

    return convert


def instance(name: str, family: type | tuple[type, ...], noun: str) -> Callable[[Any], Any]:
    """Return a converter that accepts an object of a family of classes, or of one of several families.

    The name of a class of the family, as in a file (``constraint="sphere"``), means an object with its defaults.
    """

    @accepts(*((family, str) if isinstance(family, type) else family))
    def convert(value: Any) -> Any:
        if isinstance(value, str) and isinstance(family, type):
            try:
                return lookup(value, family)()
            except InvalidInput as error:
                raise InvalidInput(f"Argument `{name}` must be {noun}: {error}") from None
        if not isinstance(value, family):
            raise _refuse(name, f"{noun}", value)
        return value

    return convert


def static(converter: Callable[[Any], Any], **kwargs: Any) -> Any:
    """Declare a field that is part of the structure, such as a size or a name; changing it compiles again."""
    return eqx.field(static=True, converter=converter, **kwargs)


def leaf(converter: Callable[[Any], Any], **kwargs: Any) -> Any:
    """Declare a field that is data: it may be differentiated, swept or traced."""
    return eqx.field(converter=converter, **kwargs)


def replaced(module: T, **values: object) -> T:
    """Return a module with some fields replaced, without checking again what was checked when it was built."""
    if all(getattr(module, name) is value for name, value in values.items()):
        return module
    changed = object.__new__(type(module))
    for field in dataclasses.fields(module):  # pyright: ignore[reportArgumentType]
        object.__setattr__(changed, field.name, values.get(field.name, getattr(module, field.name)))
    return changed


def as_data(module: T) -> T:
    """Return the module with its nonzero floats as arrays, so that one compiled function serves all their values.

    An exact zero (no noise, no momentum) stays a Python number: it is structure, and the part of the computation that
    it switches off is not compiled.
    """
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float) and x != 0.0 else x, module)
