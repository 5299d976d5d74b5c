"""Convert registered modules to plain dictionaries, to canonical JSON and to hashes, and back.

The runtime objects are the specification: a module is written as ``{"kind": "Committee", "k": 2, ...}`` from its
fields, and read back by calling its constructor, which validates. No class needs a separate specification class.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import types
import typing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import numpy as np

from twolayer.core.errors import InvalidInput, first_line, nearest, shown
from twolayer.specification.registry import lookup, registered

T = TypeVar("T")
if TYPE_CHECKING:  # what JSON can hold; tests check types while they run, and cannot read a type within itself
    JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | float | int | bool | None"
else:
    JSON = object

# A larger array, such as a data set, is written as its shape and digest.
MAX_NUMBERS = 10_000


def encode(value: object) -> JSON:
    """Return a module, container or number as plain data that JSON can represent."""
    if isinstance(value, eqx.Module):
        fields = [field for field in dataclasses.fields(value) if field.init and _is_written(value, field)]
        return {"kind": type(value).__name__} | {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        plain = np.asarray(value)
        if plain.size > MAX_NUMBERS:
            digest = hashlib.sha256(np.ascontiguousarray(plain, dtype="<f8").tobytes()).hexdigest()
            return {"kind": "array", "shape": list(plain.shape), "sha256": digest}
        return encode(plain.tolist())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not np.isfinite(value):
            raise InvalidInput(f"A number in a specification must be finite, but is {value}.")
        return value
    if callable(value):
        name = f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', repr(value))}"
        return {"kind": "callable", "name": name, "code": _fingerprint(value)}
    raise InvalidInput(f"A value of type {type(value).__name__} cannot be part of a specification.")


def _is_written(module: eqx.Module, field: Any) -> bool:
    """Whether a field is part of a specification: always, unless it is one that counts only where it is given."""
    if not field.metadata.get("only_when_given"):
        return True
    value = getattr(module, field.name)
    return not (value is field.default or (isinstance(value, str) and value == field.default))


def _fingerprint(function: Any, outer: tuple[Any, ...] = ()) -> str:
    """Return a digest of a function's code, which distinguishes two lambdas of the same name; it cannot be inverted.

    It is the same in every process, since enclosed variables enter by their value and not by their address.
    """

    def parts(code: types.CodeType) -> list[str]:
        constants = [parts(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
        return [code.co_code.hex(), repr(constants), repr(code.co_names)]

    def enclosed(cell: types.CellType) -> str:
        try:
            value = cell.cell_contents
        except ValueError:  # an enclosed variable that has no value yet
            return "unbound"
        if isinstance(value, types.FunctionType):
            return "itself" if value in (*outer, function) else _fingerprint(value, (*outer, function))
        try:
            return to_json(value)
        except InvalidInput:
            return repr(value)

    code = getattr(function, "__code__", None)
    cells = [enclosed(cell) for cell in getattr(function, "__closure__", None) or ()]
    content = repr((parts(code), cells)) if code is not None else ""
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def to_json(value: object) -> str:
    """Return canonical JSON: sorted keys, no spaces, shortest exact numbers."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(value: object) -> str:
    """Return the hexadecimal SHA-256 of the canonical JSON."""
    return hashlib.sha256(to_json(value).encode()).hexdigest()


def decode(data: object, expected: type[T] | tuple[type[T], ...], path: str = "") -> T:
    """Build the object that plain data describes; ``expected`` is its class or family, or a tuple of these.

    A mapping without ``kind`` is read as the expected class if that class is concrete; of several classes, as the first
    one that has the most of its fields. A string is read as the class of that name with its defaults. Error messages
    begin with the path of the field.
    """
    if isinstance(data, expected):
        return data
    with _at(path):
        if isinstance(data, str):
            cls, data = lookup(data, expected), {}
        elif not isinstance(data, dict):
            raise InvalidInput(f"must be a table with a `kind`, but is {shown(data)}.")
        elif "kind" in data:
            kind = data["kind"]
            if kind == "callable":
                raise InvalidInput(f"the Python function {shown(data.get('name'))} cannot be rebuilt from a file.")
            if kind == "array":
                raise InvalidInput(
                    f"the array of shape {shown(data.get('shape'))} was saved as a digest only; pass the array again."
                )
            if not isinstance(kind, str):
                raise InvalidInput(f"the `kind` must be a name, but is {shown(kind)}.")
            cls, data = lookup(kind, expected), {key: item for key, item in data.items() if key != "kind"}
        elif (concrete := _without_kind(data, expected)) is not None:
            cls = concrete
        else:
            raise InvalidInput(f"needs a `kind`. Allowed: {', '.join(sorted(registered(expected)))}.")
        fields = {field.name for field in dataclasses.fields(cls) if field.init}  # pyright: ignore[reportArgumentType]
        unknown = [key for key in data if key not in fields]
        if unknown:
            raise InvalidInput(f"`{cls.__name__}` has no field {shown(unknown[0])}: {nearest(unknown[0], fields)}")
        needed = [
            name
            for name, parameter in inspect.signature(cls.__init__).parameters.items()
            if name != "self" and parameter.default is inspect.Parameter.empty
        ]
        missing = [name for name in needed if name in fields and name not in data]
        if missing:
            raise InvalidInput(f"`{cls.__name__}` needs the field `{missing[0]}`.")
    hints = _hints(cls)
    values = {name: _decode_field(item, hints[name], f"{path}.{name}" if path else name) for name, item in data.items()}
    with _at(path):
        return cls(**values)


def _without_kind(data: dict[str, Any], expected: type | tuple[type, ...]) -> type | None:
    """Return the class that a mapping without ``kind`` describes; None when only families are expected."""
    families = expected if isinstance(expected, tuple) else (expected,)
    concrete = [cls for cls in families if registered().get(cls.__name__) is cls]

    def shared_fields(cls: Any) -> int:
        return len(data.keys() & {field.name for field in dataclasses.fields(cls)})

    return max(concrete, key=shared_fields, default=None)


def from_json(text: str, expected: type[T] | tuple[type[T], ...]) -> T:
    """Build the object that canonical JSON describes; the inverse of `to_json`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a syntax error, or an integer with too many digits
        raise InvalidInput(f"The specification is not valid JSON: {first_line(error)}.") from None
    return decode(data, expected)


def field_at(value: object, path: str, above: str = "") -> object:
    """Return the field of a module at a path such as ``student.p``; a number names an entry of a tuple.

    ``above`` is the path of the module itself, with which error messages begin.
    """
    for name in path.split("."):
        value = _member(value, name, above)
        above = f"{above}.{name}" if above else name
    return value


def replaced_at(value: T, path: str, new: object, above: str = "") -> T:
    """Return a module with another value of the field at a path such as ``student.p``.

    Plain data is read as in a file. All modules on the path are built again, so that they validate the new value; error
    messages begin with the path, after ``above``.
    """
    name, _, rest = path.partition(".")
    here = f"{above}.{name}" if above else name
    old: Any = _member(value, name, above)
    if rest:
        inner = replaced_at(old, rest, new, here)
    elif isinstance(value, tuple):
        inner = decode(new, eqx.Module, here) if isinstance(new, str | dict) else new
    else:
        inner = _decode_field(new, _hints(type(value))[name], here)
    with _at(here):
        if isinstance(value, tuple):
            place = int(name)
            return (*value[:place], inner, *value[place + 1 :])  # pyright: ignore[reportReturnType]
        return dataclasses.replace(value, **{name: inner})  # pyright: ignore[reportArgumentType, reportCallIssue]


def _member(value: Any, name: str, above: str) -> Any:
    """Return a field of a module or an entry of a tuple, or refuse a name that is neither."""
    where = f"`{above}` has" if above else "There is"
    if isinstance(value, tuple):
        if name.isdecimal() and int(name) < len(value):
            return value[int(name)]
        raise InvalidInput(f"{where} no entry {shown(name)}: it has {len(value)}, counted from 0.")
    fields = [field.name for field in dataclasses.fields(value) if field.init] if _is_module(value) else []
    if not fields:
        raise InvalidInput(f"{where} no fields, since it is {shown(value)}, so that {shown(name)} cannot be changed.")
    if name not in fields:
        raise InvalidInput(f"{where} no field {shown(name)}: {nearest(name, fields)}")
    return getattr(value, name)


def _is_module(value: object) -> bool:
    return isinstance(value, eqx.Module)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode_field(value: Any, hint: Any, path: str) -> Any:
    """Decode a field's value if its annotation names a module; other values are left to the field's converter."""
    families = _module_families(hint)
    if not families:  # a field annotated by another type may still hold a module, which then has a `kind`
        return decode(value, eqx.Module, path) if isinstance(value, dict) and "kind" in value else value
    parse = next((cls.parse for cls in families if hasattr(cls, "parse")), None)
    if isinstance(value, str) and parse is not None:
        with _at(path):
            return parse(value)
    if isinstance(value, str) and str in typing.get_args(hint):  # text means more than a name here
        return value
    if isinstance(value, list):
        return tuple(_decode_field(item, hint, f"{path}[{index}]") for index, item in enumerate(value))
    if isinstance(value, str | dict):
        return decode(value, families, path)
    return value


def _module_families(hint: Any) -> tuple[Any, ...]:
    """Return the module classes in an annotation such as ``X``, ``X | Y``, ``X | None`` or ``tuple[X, ...]``."""
    if isinstance(hint, type) and issubclass(hint, eqx.Module):
        return (hint,)
    if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        return tuple(family for argument in typing.get_args(hint) for family in _module_families(argument))
    return ()


class _at:
    """Context that puts the path of the field before the message of an error raised inside."""

    def __init__(self, path: str):
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidInput) and self.path and not getattr(error, "has_path", False):
            located = type(error)(f"`{self.path}`: {error}")
            located.has_path = True  # pyright: ignore[reportAttributeAccessIssue]
            located.position = error.position
            raise located from None
