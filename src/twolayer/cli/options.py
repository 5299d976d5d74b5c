"""Options of commands: one line each, and those that several commands share."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import ArgumentInfo, OptionInfo

if TYPE_CHECKING:
    from typer import Context as Context
else:
    Context = typer.Context.__base__  # what typer hands over is of the class below the one that it documents


def option(name: str, metavar: str, help: str, **more: object) -> OptionInfo:
    """An option of a command that takes a value."""
    return typer.Option(name, metavar=metavar, help=help, **more)  # pyright: ignore


def switch(name: str, help: str, **more: object) -> OptionInfo:
    """An option of a command that takes no value."""
    return typer.Option(name, help=help, **more)  # pyright: ignore


def argument(metavar: str, help: str) -> ArgumentInfo:
    """A positional argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def folder(name: str, help: str) -> OptionInfo:
    """An option that names a folder; empty text is an unset variable, and would mean the current folder."""

    def parse(text: str | Path) -> Path:
        if not str(text).strip():
            raise typer.BadParameter("it must name a folder, but is empty")
        return Path(text)

    return option(name, "DIR", help, parser=parse)


Spec = Annotated[Path, argument("SPEC.toml", "The specification.")]
AsJson = Annotated[
    bool, switch("--json", "Print one JSON object on stdout and nothing else there; words go to stderr.")
]
Quiet = Annotated[bool, switch("--quiet", "No progress bar and no words: errors only, and what --json prints.")]
Seed = Annotated[int, option("--seed", "S", "The seed of every random number.")]
Overrides = Annotated[
    list[str] | None, option("--set", "KEY=VALUE", "Change a field, as in training.learning_rate=0.3; may be repeated.")
]
Every = Annotated[
    float | None,
    option(
        "--checkpoint-every",
        "SECONDS",
        "How often simulations keep their place, from which the same command goes on when it was killed; 20 when left "
        "out.",
    ),
]


def is_given(context: Context, name: str) -> bool:
    """Whether the user gave an option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse(context: Context, names: Iterable[str]) -> None:
    """Refuse options of a short form beside a specification, which has fields for them."""
    from twolayer.core.errors import InvalidInput

    for name in names:
        if is_given(context, name):
            stated = name.replace("_", "-")
            raise InvalidInput(f"Option `--{stated}` belongs to the short form: change a specification by `--set`.")
