"""How the objects of a specification show themselves: short on a terminal, as tables in a notebook."""

import dataclasses
import html
import inspect
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from twolayer.core.errors import shortened, shown
from twolayer.core.text import html_table

# Letters of a line, of a module that stands in one cell of a table, and numbers of an array that are written out.
WIDTH, CELL, NUMBERS = 88, 60, 6


def as_text(value: object, indent: int = 0) -> str:
    """A module as the call that makes it, without the fields that have their defaults; long ones over several lines."""
    if not is_shown_here(value):
        return _plain(value, indent)
    name = type(value).__name__
    fields = [(field.name, getattr(value, field.name)) for field in _fields(value) if not is_default(value, field)]
    line = f"{name}({', '.join(f'{field}={as_text(item)}' for field, item in fields)})"
    if "\n" not in line and indent + len(line) <= WIDTH:
        return line
    inner = indent + 4
    rows = [f"{' ' * inner}{field}={as_text(item, inner)},\n" for field, item in fields]
    return f"{name}(\n{''.join(rows)}{' ' * indent})"


def as_html(value: object) -> str:
    """A module as a table of all its fields, with tables inside for the modules that it holds."""
    rows = [(field.name, _cell(getattr(value, field.name))) for field in _fields(value)]
    return html_table(rows, type(value).__name__) if rows else f"<b>{html.escape(as_text(value))}</b>"


def is_shown_here(value: object) -> bool:
    """Whether a value is a module that has no other way to write itself."""
    return isinstance(value, eqx.Module) and type(value).__repr__ in (eqx.Module.__repr__, as_text)


def _cell(value: Any) -> str:
    if isinstance(value, tuple | list) and any(isinstance(item, eqx.Module) for item in value):
        return "".join(map(_cell, value))
    text = as_text(value)
    is_table = is_shown_here(value) and len(text) > CELL
    return as_html(value) if is_table else html.escape(text)


def _fields(value: Any) -> list[Any]:
    return [field for field in dataclasses.fields(value) if field.init]


def is_default(value: object, field: "dataclasses.Field[Any]") -> bool:
    """Whether a field of a module has its default."""
    parameter = inspect.signature(type(value).__init__).parameters.get(field.name)
    defaults = [field.default] if parameter is None else [field.default, parameter.default]
    if field.default_factory is not dataclasses.MISSING:
        defaults.append(field.default_factory())
    return any(_are_equal(getattr(value, field.name), default) for default in defaults)


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, Tracer | jax.Array | np.ndarray):
        return False
    if isinstance(one, eqx.Module):
        names = [field.name for field in dataclasses.fields(one)]
        return all(_are_equal(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def _plain(value: Any, indent: int) -> str:
    """What is no module of ours: numbers, texts, arrays, functions, and sequences of anything."""
    if isinstance(value, Tracer):
        return f"<traced {value.aval.str_short()}>"
    if isinstance(value, np.ndarray | jax.Array):
        if value.size > NUMBERS:
            return f"<array of shape {tuple(value.shape)}>"
        return str(np.round(np.asarray(value), 12).tolist())
    if isinstance(value, tuple | list) and any(isinstance(item, eqx.Module) for item in value):
        line = f"[{', '.join(map(as_text, value))}]"
        if "\n" not in line and indent + len(line) <= WIDTH:
            return line
        inner = indent + 4
        rows = [f"{' ' * inner}{as_text(item, inner)},\n" for item in value]
        return f"[\n{''.join(rows)}{' ' * indent}]"
    if callable(value) and not isinstance(value, eqx.Module):
        return getattr(value, "__name__", "a function")
    return shortened(repr(value), WIDTH) if isinstance(value, eqx.Module | str | float) else shown(value)
