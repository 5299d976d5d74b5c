"""``twolayer learn``: what of a target can be learned, how fast, and in which order."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import FAILED, Answer, AsJson, Every, Failure, Quiet, folder_option
from twolayer.cli.interrupt import say_answer, writing

if TYPE_CHECKING:
    import xarray as xr


def learn(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPRESSION", help="A formula in z1, z2, ..., or a name from --list.", show_default=False
        ),
    ] = None,
    student: Annotated[
        str | None,
        typer.Option("--student", metavar="NAME", help="The activation of a student, such as erf, relu or he3."),
    ] = None,
    p: Annotated[int, typer.Option("--p", metavar="N", help="Width of the student.")] = 1,
    second_layer: Annotated[
        str, typer.Option("--second-layer", metavar="NAME", help="Its output weights: ones, rademacher or gaussian.")
    ] = "ones",
    d: Annotated[
        int | None,
        typer.Option("--d", metavar="N", help="Input dimension: with --student, when the plateau is left."),
    ] = None,
    noise: Annotated[float, typer.Option("--noise", metavar="VALUE", help="Variance of the label noise.")] = 0.0,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", metavar="VALUE", help="For that time; the best rate when left out."),
    ] = None,
    free: Annotated[bool, typer.Option("--free", help="Rows may change their length; else they keep it.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run what is predicted: giant steps, and escape times against d.")
    ] = False,
    largest: Annotated[
        int | None, typer.Option("--largest", metavar="N", help="The largest dimension of these runs.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The seed of every random number.")] = 0,
    listed: Annotated[bool, typer.Option("--list", help="List the named targets with their known answers.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write a figure and the numbers there.",
            show_default=False,
            parser=folder_option,
        ),
    ] = None,
    every: Every = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say what of a target can be learned: exponents, leaps, the order of directions, steps and samples by protocol.

    Example: twolayer learn "he2(z1) + z1*z2" --student relu --d 1000
    Example: twolayer learn he3 --verify --out he3
    """
    from twolayer.analyses import learn as find
    from twolayer.cli.folder import check_writable, checkpoint_in, default_folder, tidy
    from twolayer.cli.progress import progress_bar
    from twolayer.core.errors import InvalidInput
    from twolayer.data import summary
    from twolayer.problem import Student
    from twolayer.specification.codec import content_hash

    if listed:
        return _list()
    if target is None:
        raise InvalidInput("Argument `EXPRESSION` is missing: give a formula such as 'he2(z1) + z1*z2', or use --list.")
    network = None if student is None else Student(p, student, second_layer)
    folder = default_folder("learn", content_hash([target, network, seed, largest])) if out is None else out
    checkpoint = checkpoint_in(folder, every)
    if out is not None:
        check_writable(out)
    with progress_bar(quiet) as progress:
        result = find(
            target,
            network,
            d=d,
            noise=noise,
            learning_rate=learning_rate,
            spherical=not free,
            verify=verify,
            seed=seed,
            largest=largest,
            progress=progress,
            checkpoint=checkpoint,
        )
    data, words = json.loads(result.attrs["answer"]), str(summary(result))
    if out is not None:
        say_answer(Answer(data, words))
        data["files"] = _write(result, data, out)
        data["folder"] = str(out)
        words += f"\n\npicture   {out / 'learn.png'}"
    tidy(folder, checkpoint, data.get("files", ()))
    return Answer(data, words)


def _list() -> Answer:
    from dataclasses import asdict

    from twolayer.learnability import named_targets

    known = named_targets()
    lines = [f"{'name':<20}{'formula':<42}{'information':>12}{'leap':>6}{'generative':>12}"]
    lines += [
        f"{name:<20}{each.formula:<42}{each.information_exponent:>12}{each.leap:>6}{each.generative_exponent:>12}"
        for name, each in known.items()
    ]
    return Answer({"targets": {name: asdict(each) for name, each in known.items()}}, "\n".join(lines))


def _write(result: "xr.Dataset", data: dict[str, Any], folder: Path) -> list[str]:
    """The figure, the result and its numbers; returns the names of the files."""
    from twolayer.core.errors import InvalidInput
    from twolayer.core.files import make_folder, write_whole
    from twolayer.data import save
    from twolayer.plots import save_figure, staircase

    try:
        with writing(folder) as names:
            make_folder(folder)
            files = [*save_figure(staircase(result), folder / "learn"), save(result, folder / "learn.nc")]
            text = json.dumps(data, indent=2, allow_nan=False) + "\n"
            files.append(write_whole(folder / "summary.json", text.encode()))
            names += [path.name for path in files]
    except (OSError, InvalidInput) as error:  # the folder was writable before the work
        raise Failure(
            f"The figure could not be written to {str(folder)!r}: {str(error).rstrip('.')}.", FAILED
        ) from None
    return names
