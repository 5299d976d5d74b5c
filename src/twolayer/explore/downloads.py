"""Files that the page gives away: a specification, a script, figures and results."""

import base64
import re
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

import twolayer as tl
from twolayer.ask import RunSpec
from twolayer.explore.messages import Tables
from twolayer.problem import Expression
from twolayer.problem.activations import AbstractActivation
from twolayer.problem.activations import names as activation_names
from twolayer.specification.codec import encode
from twolayer.specification.display import is_default

if TYPE_CHECKING:
    import xarray as xr

FIGURES = ("risk", "overlaps")
WIDTH = 110


def zipped(spec: RunSpec, content: bytes) -> Tables:
    """A file for the way to the server: its name without suffix, and its content."""
    words = re.sub(r"[^a-z0-9]+", "-", spec.title.lower()).strip("-")[:40].strip("-")
    return {"name": words or f"twolayer-{spec.key[:8]}", "content": base64.b64encode(content).decode()}


def toml(spec: Tables) -> bytes:
    """The tables as the file that `twolayer run` takes."""
    import tomli_w

    return tomli_w.dumps(_without_none(spec)).encode()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def netcdf(tree: "xr.DataTree") -> bytes:
    """The comparison as `twolayer.load` reads it."""
    from twolayer.data.store import as_file

    return as_file(tree)


class Pin(NamedTuple):
    """A setting that the page shows beside its own: its name, its tables, and the theory that is drawn."""

    name: str
    tables: Tables
    spec: RunSpec  # with this theory alone

    def follow(self) -> "xr.Dataset":
        """What the theory says."""
        return tl.evolve(self.spec.problem, self.spec.training, self.spec.descriptions[0], self.spec.ask)


def picture(tree: "xr.DataTree", spec: RunSpec, figure: str, form: str, seen: Tables, pins: Sequence[Pin]) -> bytes:
    """A figure of our own plots; ``seen`` are the fields of the view."""
    from twolayer import plots
    from twolayer.plots.figure_files import as_file

    draw = plots.risk if figure == "risk" else plots.overlaps
    view = plots.View(**seen, beside={pin.name: pin.follow() for pin in pins}) if seen or pins else None
    return as_file(draw(tree, spec.title or None, view=view), form)


# ------------------------------------------------------------------------------------------------------ scripts

SCRIPT = '''"""{title}

Written by the explorer of twolayer {version}. Run it with `python FILE`: it prints the verdict, and writes the figure
of the page.
"""

import twolayer as tl
{imports}
{definitions}
result = tl.compare({arguments})
print(result.attrs["verdict"])
{view}figure = tl.plots.{figure}(result{title_argument})
tl.plots.save_figure(figure, "{figure}")
'''


def script(spec: RunSpec, tables: Tables, figure: str, seen: Tables, pins: Sequence[Pin] = ()) -> bytes:
    """A Python script that makes the figure of the page; ``seen`` are the fields of the view."""
    title = spec.title or "Theory against simulation"
    definitions, arguments = _stated(spec, tables, "descriptions")
    view = ""
    if pins:
        stated = [_stated(pin.spec, pin.tables, "description", f"_{pin.name}") for pin in pins]
        rows = [f"{pin.name!r}: tl.evolve({given})" for pin, (_, given) in zip(pins, stated, strict=True)]
        view = "\n".join([*(text for text, _ in stated), f"pinned = {_lines('{', rows, '}')}\n"])
    if seen or pins:
        items = [f"{name}={value!r}" for name, value in seen.items()] + ["beside=pinned"] * bool(pins)
        view += f"view = tl.plots.View({', '.join(items)})\n"
    imports = "from twolayer.experiment import parse_spec\n" if "parse_spec(" in definitions + view else ""
    content = SCRIPT.format(
        title=_in_docstring(title),
        version=tl.__version__,
        imports=imports,
        definitions=definitions,
        arguments=arguments,
        figure=figure,
        view=view,
        title_argument=(f", {spec.title!r}" if spec.title else "") + ", view=view" * bool(view),
    )
    return content.encode()


def _stated(spec: RunSpec, tables: Tables, followed: str, suffix: str = "") -> tuple[str, str]:
    """The definition of all parts of a specification as code, and the arguments that they are for a verb."""
    names = [f"{name}{suffix}" for name in ("problem", "training", followed, "ask")]
    members = list(spec.descriptions) if followed == "descriptions" else spec.descriptions[0]
    try:
        parts = [_code(part) for part in (spec.problem, spec.training, members, spec.ask)]
    except _NotWritten:  # an object without a public name: the specification as text says it all
        text = toml(tables).decode().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        whole = f"spec{suffix}"
        chosen = f"{whole}.descriptions" if followed == "descriptions" else repr(type(members).__name__)
        return f'{whole} = parse_spec("""\n{text}""")\n', f"{whole}.problem, {whole}.training, {chosen}, {whole}.ask"
    lines = [f"{name} = {part}" for name, part in zip(names, parts, strict=True)]
    return "\n".join([*lines, ""]), ", ".join(names)


class _NotWritten(Exception):
    """A value has no expression in the names that users have."""


def _in_docstring(title: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in title).replace("\\", "/").replace('"', "'")
    return plain.rstrip(".") + "."


def _code(value: Any, indent: int = 0) -> str:
    """The expression that makes a value, with the public names of the package."""
    if isinstance(value, AbstractActivation):
        return _activation(value)
    if isinstance(value, Expression):
        return repr(value.text)
    if isinstance(value, eqx.Module):
        return _call(value, indent)
    if isinstance(value, np.ndarray | jax.Array):
        return repr(np.asarray(value).tolist())
    if isinstance(value, list | tuple):
        items = [_code(item, indent + 4) for item in value]
        line = f"[{', '.join(items)}]"
        return line if indent + len(line) < WIDTH else _lines("[", items, "]")
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise _NotWritten


def _activation(value: AbstractActivation) -> str:
    """The name of an activation; one with numbers of its own has none."""
    for name, cls in activation_names().items():
        if type(value) is cls and encode(value) == encode(cls()):
            return repr(name)
    degree = getattr(value, "degree", None)
    if type(value).__name__ == "HermiteActivation" and isinstance(degree, int):
        return repr(f"he{degree}")
    raise _NotWritten


def _call(value: Any, indent: int) -> str:
    name = type(value).__name__
    if getattr(tl.api, name, None) is not type(value):
        raise _NotWritten
    shown = [part.name for part in fields(value) if part.init and not is_default(value, part)]
    items = [f"{part}={_code(getattr(value, part), indent + 4)}" for part in shown]
    line = f"tl.{name}({', '.join(items)})"
    return line if indent + len(line) < WIDTH and "\n" not in line else _lines(f"tl.{name}(", items, ")")


def _lines(opening: str, items: list[str], closing: str) -> str:
    inner = textwrap.indent("\n".join(f"{item}," for item in items), " " * 4)
    return f"{opening}\n{inner}\n{closing}"
