"""``twolayer exit-time``: when training leaves its start, by formulas, by the ODE, and as measured."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import (
    FAILED,
    INTERRUPTED,
    Answer,
    AsJson,
    Every,
    Failure,
    Overrides,
    Quiet,
    folder_option,
)
from twolayer.cli.interrupt import keeping, say_answer, writing
from twolayer.core import interrupts

# What a scan may change, and how its values are read.
SCANNED: dict[str, Any] = {"d": int, "p": int, "learning-rate": str, "threshold": float}
MAX_SCANNED = 1000
LABELS = {"annealed": "annealed", "quenched": "quenched", "ode": "ODE", "ode_at_finite_d": "ODE, SGD noise"}

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.ask import Training
    from twolayer.problem import Problem
    from twolayer.training import SGD


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
        float,
        typer.Option(
            "--threshold",
            metavar="T",
            help="Level of the exit: 1 - T times the initial excess risk; for a specification without sphere or with "
            "both layers trained, the squared cosine T + (1 - T) c0^2 of a neuron with a target direction.",
        ),
    ] = 0.1,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Measured runs; 0 for none.")] = 256,
    by: Annotated[
        str, typer.Option("--by", metavar="NAME", help="What is measured: OverlapSGD, SDE or DirectSGD.")
    ] = "OverlapSGD",
    scan: Annotated[
        str | None,
        typer.Option(
            "--scan",
            metavar="NAME=V,V,...",
            help="Several values of d, p, learning-rate or threshold, one after the other; the figure shows the steps "
            "against them.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The seed of every random number.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write a figure, the numbers and the result there.",
            show_default=False,
            parser=folder_option,
        ),
    ] = None,
    overrides: Overrides = None,
    every: Every = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say when training leaves its start: annealed, quenched, ODE and measured times, and the optimal learning rate.

    Example: twolayer exit-time --p 4 --d 10000 --noise 0.1 --threshold 0.05 --learning-rate optimal --replicas 512
    Example: twolayer exit-time --scan d=100,1000,10000 --out rates
    """
    from twolayer.analyses import exit_time as find_exit_time
    from twolayer.cli.folder import check_writable, checkpoint_in, default_folder, tidy
    from twolayer.cli.progress import progress_bar
    from twolayer.specification.codec import content_hash
    from twolayer.verbs import Interrupted

    given = {"p": p, "d": d, "noise": noise, "learning-rate": learning_rate}
    asked: dict[str, Any] = {"replicas": replicas, "seed": seed, "description": _measured_by(by)}
    axis, settings = _settings(spec, given, threshold, scan, overrides)
    folder = default_folder("exit-time", content_hash({"settings": settings} | asked)) if out is None else out
    checkpoint = checkpoint_in(folder, every)
    if out is not None:
        check_writable(out)
    results: list[xr.Dataset] = []

    def finish() -> Answer | Failure:
        partial = interrupts.offered()
        return _interrupted([*results, *([] if partial is None else [partial()])], axis)

    try:
        with keeping(finish), progress_bar(quiet) as progress:
            for number, (problem, training, level) in enumerate(settings):
                ask = asked | {"progress": progress, "checkpoint": checkpoint.part(f"{number}.npz")}
                results.append(find_exit_time(problem, training, threshold=level, **ask))
    except Interrupted as stopped:
        return _interrupted([*results, stopped.result], axis)
    except KeyboardInterrupt:
        return _interrupted(results, axis)
    answer = _answer(results, axis)
    if out is None:
        tidy(folder, checkpoint)
        return answer
    say_answer(answer)
    files = _write(results, axis, answer.data, out)
    tidy(folder, checkpoint, files)
    data = answer.data | {"files": files, "folder": str(out)}
    return Answer(data, f"{answer.words}\n\npicture   {out / 'exit_time.png'}")


def _answer(results: "list[xr.Dataset]", axis: str | None) -> Answer:
    from twolayer.analyses.escape.result import plain
    from twolayer.data import summary

    if axis is None:
        return Answer(plain(results[0]), str(summary(results[0])))
    return Answer({"scan": axis, "results": [plain(result) for result in results]}, _table(results, axis))


def _interrupted(results: "list[xr.Dataset]", axis: str | None) -> Answer:
    """What was known when the user stopped the work; nothing of it is written to files."""
    if not results:
        raise Failure("Interrupted: nothing was finished, and nothing was written.", INTERRUPTED)
    lacks = "the measurement was not finished" if axis is None else f"{len(results)} values of {axis} were begun"
    return _answer(results, axis)._replace(status=INTERRUPTED, sentence=f"Interrupted: {lacks}.")


def _measured_by(name: str) -> Any:
    from twolayer.core.errors import InvalidInput, shown
    from twolayer.simulation import DirectSGD, OverlapSGD
    from twolayer.theory import SDE

    known = {each.__name__: each for each in (OverlapSGD, SDE, DirectSGD)}
    if name not in known:
        raise InvalidInput(f"Option `--by` must be one of {', '.join(known)}, but is {shown(name)}.")
    return known[name]()


def _settings(
    spec: Path | None, given: dict[str, Any], threshold: float, scan: str | None, overrides: list[str] | None
) -> "tuple[str | None, list[tuple[Problem, Training, float]]]":
    """The name of what changes, as results call it, and all problems, trainings and thresholds; all are checked."""
    from twolayer.core.errors import InvalidInput, shown

    if scan is None:
        problem, training = _from_options(given, overrides) if spec is None else _from_spec(spec, given, overrides)
        return None, [(problem, training, threshold)]
    if spec is not None:
        raise InvalidInput("Option `--scan` is for phase retrieval; for a specification call `exit_time` in Python.")
    name, _, listed = scan.partition("=")
    values = [value for value in listed.split(",") if value]
    if name not in SCANNED or not 2 <= len(values) <= MAX_SCANNED or len(set(values)) < len(values):
        allowed = ", ".join(SCANNED)
        raise InvalidInput(
            f"Option `--scan` must be one of {allowed} with 2 to {MAX_SCANNED} different values, as in d=100,1000, but "
            f"is {shown(scan)}."
        )
    settings: list[tuple[Problem, Training, float]] = []
    for value in values:
        try:
            level = float(value) if name == "threshold" else threshold
            chosen = given if name == "threshold" else given | {name: SCANNED[name](value)}
        except ValueError:
            raise InvalidInput(f"Option `--scan` must list numbers for {name}, but {shown(value)} is none.") from None
        settings.append((*_from_options(chosen, overrides), level))
    return name.replace("-", "_"), settings


def _table(results: "list[xr.Dataset]", axis: str) -> str:
    """One line for each result: mean times by the estimates, as measured, and the verdict."""
    from twolayer.analyses.escape.result import estimates
    from twolayer.core.text import table
    from twolayer.data.summary import explained

    names = [name for name in LABELS if name in estimates(results[0])]
    head = [axis, *(LABELS[name] for name in names), "measured", "steps", "verdict"]
    rows = [
        [
            f"{result.attrs[axis]:g}",
            *(_cell(*estimates(result)[name]) for name in names),
            *_measured_cells(result),
            result.attrs["outcome"],
        ]
        for result in results
    ]
    lines = table(head, rows, right=range(len(head)))
    outcomes = dict.fromkeys(result.attrs["outcome"] for result in results)
    return "\n".join(["mean exit times", *lines, "", *(f"{explained(outcome)}." for outcome in outcomes)])


def _cell(value: float, error: float, model_error: float) -> str:
    """An estimate, with its model error where it has one."""
    if not math.isfinite(value):
        return "none"
    return f"{value:.4f}" + (f" (model {model_error:.4f})" if math.isfinite(model_error) else "")


def _measured_cells(result: "xr.Dataset") -> list[str]:
    """The measured mean and its steps; where some runs did not exit there is no mean, and the share is given."""
    from twolayer.analyses.escape.result import sample_of

    sample = sample_of(result)
    if sample is None:
        return ["-", "-"]
    if sample.is_censored:
        median = f"{sample.median:.4f} +- {sample.median_error:.4f}" if math.isfinite(sample.median) else "not reached"
        return [f"median {median}", f"({sample.exited.size} of {sample.size} runs exit by {sample.until:.4g})"]
    return [f"{sample.mean:.4f} +- {sample.standard_error:.4f}", f"{sample.mean * result.attrs['steps_per_time']:.4g}"]


def _from_options(given: dict[str, Any], overrides: list[str] | None) -> "tuple[Problem, SGD]":
    """Phase retrieval on the sphere."""
    from twolayer.core.errors import InvalidInput
    from twolayer.problem import Gaussian, PhaseRetrieval, Problem, Student
    from twolayer.specification.fields import count, number
    from twolayer.theory.formulas.phase_retrieval import optimal_learning_rate
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
    from twolayer.core.errors import InvalidInput, shown

    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"Argument `learning_rate` must be a number or 'optimal', but is {shown(text)}.") from None


def _from_spec(path: Path, given: dict[str, Any], overrides: list[str] | None) -> "tuple[Problem, Training]":
    from twolayer.core.errors import InvalidInput
    from twolayer.experiment import read_spec

    stated = [name for name, value in given.items() if value is not None]
    if stated:
        raise InvalidInput(f"Option `--{stated[0]}` is for phase retrieval; change a specification by `--set`.")
    spec = read_spec(path, overrides or ())
    return spec.problem, spec.training


def _write(results: "list[xr.Dataset]", axis: str | None, data: dict[str, Any], folder: Path) -> list[str]:
    """The figure, the numbers and the results themselves; returns the names of the files."""
    import json

    from twolayer.core.files import make_folder, write_whole
    from twolayer.data import save
    from twolayer.plots import exit_law, exit_scan, save_figure

    try:
        with writing(folder) as names:
            make_folder(folder)
            figure = exit_law(results[0]) if axis is None else exit_scan(results, axis)
            files = save_figure(figure, folder / "exit_time")
            text = json.dumps(data, indent=2, allow_nan=False) + "\n"
            files.append(write_whole(folder / "summary.json", text.encode()))
            for number, result in enumerate(results):
                files.append(save(result, folder / ("exit_time.nc" if axis is None else f"exit_time_{number}.nc")))
            names += [path.name for path in files]
    except OSError as error:
        raise Failure(f"The figure could not be written to {str(folder)!r}: {error}.", FAILED) from None
    return names
