"""``twolayer exit-time``: when training leaves its start, by formulas, by the ODE, and as measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import DONE, FAILED, INTERRUPTED, Answer, AsJson, Failure, Overrides, Quiet

if TYPE_CHECKING:
    from twolayer.problem import Problem
    from twolayer.training import SGD
    from twolayer.verbs import ExitTime


def exit_time(
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SPEC.toml]",
            help="A specification with another problem; without one it is phase retrieval on the sphere.",
            show_default=False,
        ),
    ] = None,
    p: Annotated[int | None, typer.Option("--p", metavar="N", help="Width of the student; 1 when left out.")] = None,
    d: Annotated[int | None, typer.Option("--d", metavar="N", help="Input dimension; 1000 when left out.")] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="VALUE", help="Variance of the label noise; 0 when left out.")
    ] = None,
    learning_rate: Annotated[
        str | None,
        typer.Option(
            "--learning-rate",
            metavar="VALUE|optimal",
            help="Learning rate; `optimal`, which takes the fewest steps, when left out.",
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="T", help="Exit at 1 - T times the initial excess risk.")
    ] = 0.1,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Measured runs; 0 for none.")] = 256,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The seed of every random number.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write a figure and the numbers there.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say when training leaves its start: annealed, quenched, ODE and measured times, and the optimal learning rate.

    Example: twolayer exit-time --p 4 --d 10000 --noise 0.1 --threshold 0.05 --learning-rate optimal --replicas 512
    """
    from twolayer.cli.folder import check_writable
    from twolayer.cli.progress import progress_bar
    from twolayer.verbs import Interrupted
    from twolayer.verbs import exit_time as find_exit_time

    given = {"p": p, "d": d, "noise": noise, "learning-rate": learning_rate}
    problem, training = _from_options(given, overrides) if spec is None else _from_spec(spec, given, overrides)
    if out is not None:
        check_writable(out)
    asked: dict[str, Any] = {"threshold": threshold, "replicas": replicas, "seed": seed}
    try:
        with progress_bar(quiet) as progress:
            result = find_exit_time(problem, training, progress=progress, **asked)
    except Interrupted as stopped:
        words = f"{stopped.result}\n\nInterrupted: the measurement was not finished."
        return Answer(stopped.result.to_dict(), words, INTERRUPTED)
    data, words = result.to_dict(), str(result)
    if out is not None:
        data["files"] = _write(result, out)
        data["folder"] = str(out)
        words += f"\n\npicture   {out / 'exit_time.png'}"
    return Answer(data, words, DONE)


def _from_options(given: dict[str, Any], overrides: list[str] | None) -> "tuple[Problem, SGD]":
    """Phase retrieval on the sphere."""
    from twolayer.core.errors import InvalidInput
    from twolayer.core.fields import count, number
    from twolayer.problem import Gaussian, PhaseRetrieval, Problem, Student
    from twolayer.theory.phase_retrieval import optimal_learning_rate
    from twolayer.training import SGD, Sphere

    if overrides:
        raise InvalidInput("Option `--set` changes a specification, but none is given: use --p, --d, --noise.")
    defaults = {"p": 1, "d": 1000, "noise": 0.0, "learning-rate": "optimal"}
    chosen = {name: defaults[name] if value is None else value for name, value in given.items()}
    p, d = count("p", high=100_000)(chosen["p"]), chosen["d"]
    noise = number("noise", low=0.0)(chosen["noise"])
    is_optimal = chosen["learning-rate"] == "optimal"
    rate = optimal_learning_rate(p, noise) if is_optimal else _rate(chosen["learning-rate"])
    problem = Problem(PhaseRetrieval(), Student(p, "square"), Gaussian(d), noise=noise)
    return problem, SGD(rate, constraint=Sphere())


def _rate(text: str) -> float:
    from twolayer.core.errors import InvalidInput

    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"Argument `learning_rate` must be a number or 'optimal', but is {text!r}.") from None


def _from_spec(path: Path, given: dict[str, Any], overrides: list[str] | None) -> "tuple[Problem, SGD]":
    from twolayer.core.errors import InvalidInput
    from twolayer.experiment import read_spec

    stated = [name for name, value in given.items() if value is not None]
    if stated:
        raise InvalidInput(f"Option `--{stated[0]}` is for phase retrieval; change a specification by `--set`.")
    spec = read_spec(path, overrides or ())
    return spec.problem, spec.method


def _write(result: "ExitTime", folder: Path) -> list[str]:
    """The figure and the numbers; returns the names of the files."""
    import json

    from twolayer.core.files import write_whole
    from twolayer.plots import exit_law, save_figure

    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = save_figure(exit_law(result), folder / "exit_time")
        text = json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n"
        files.append(write_whole(folder / "summary.json", text.encode()))
    except OSError as error:
        raise Failure(f"The figure could not be written to {str(folder)!r}: {error}", FAILED) from None
    return [path.name for path in files]
