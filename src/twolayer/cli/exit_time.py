"""``twolayer exit-time``: when training leaves its start, by formulas, by the ODE, and as measured."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twolayer.cli.answer import INTERRUPTED, Answer, Failure
from twolayer.cli.interrupt import keeping
from twolayer.cli.options import AsJson, Context, Every, Overrides, Quiet, Seed, argument, folder, option, refuse
from twolayer.core import interrupts

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.cli.folder import Work

# What a scan may change, and how its values are read.
SCANNED: dict[str, Any] = {"d": int, "p": int, "learning-rate": str, "threshold": float}
MAX_SCANNED = 1000
LABELS = {"annealed": "annealed", "quenched": "quenched", "ode": "ODE", "ode_at_finite_d": "ODE, SGD noise"}
MEASURES = ("OverlapSGD", "SDE", "DirectSGD")
# Options that a specification has fields for, and those that only the specification of a report has.
SHORT_FORM = ("p", "d", "noise", "learning_rate", "scan")
ASKED = ("threshold", "replicas", "seed", "by")


# Large: a command has one argument for each of its options.
def exit_time(
    context: Context,
    spec: Annotated[
        Path | None,
        argument(
            "[SPEC.toml]",
            "A specification with another problem, or the spec.json of a report; without one it is phase retrieval on "
            "the sphere.",
        ),
    ] = None,
    p: Annotated[int, option("--p", "N", "Width of the student.")] = 1,
    d: Annotated[int, option("--d", "N", "Input dimension.")] = 1000,
    noise: Annotated[float, option("--noise", "VALUE", "Variance of the label noise.")] = 0.0,
    learning_rate: Annotated[
        str, option("--learning-rate", "VALUE|optimal", "Learning rate; `optimal` takes the fewest steps.")
    ] = "optimal",
    threshold: Annotated[
        float,
        option(
            "--threshold",
            "T",
            "Level of the exit: 1 - T times the initial excess risk; for a specification without sphere or with both "
            "layers trained, the squared cosine T + (1 - T) c0^2 of a neuron with a target direction.",
        ),
    ] = 0.1,
    replicas: Annotated[int, option("--replicas", "N", "Measured runs; 0 for none.")] = 256,
    by: Annotated[str, option("--by", "NAME", "What is measured: OverlapSGD, SDE or DirectSGD.")] = "OverlapSGD",
    scan: Annotated[
        str | None,
        option(
            "--scan",
            "NAME=V,V,...",
            "Several values of d, p, learning-rate or threshold; the figure shows the steps against them. With --out "
            "the same scan goes on where it stopped, also with more values.",
        ),
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path | None, folder("--out", "Write a figure, the numbers and the result there.")] = None,
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
    from twolayer.cli.folder import Work, progress_bar
    from twolayer.data.provenance import Question
    from twolayer.verbs import Interrupted

    axis, questions = _questions(context, spec, overrides or ())
    work = Work(out, "exit-time", Question("exit_time", {"questions": questions}).key, every)
    if axis is not None:
        return _scan(axis, questions, work, quiet)

    def finish() -> Answer | Failure:
        partial = interrupts.offered()
        return _interrupted([] if partial is None else [partial()], None)

    try:
        with keeping(finish), progress_bar(quiet) as progress:
            places = {"progress": progress, "checkpoint": work.checkpoint.part("0.npz")}
            result = find_exit_time(**(questions[0] | places))
    except Interrupted as stopped:
        return _interrupted([stopped.result], None)
    except KeyboardInterrupt:
        return _interrupted([], None)

    def figures() -> dict[str, Any]:
        from twolayer.plots import exit_law

        return {"exit_time": exit_law(result)}

    return work.finish(_answer([result], None), {"exit_time": result}, figures, result.attrs["spec"])


def _scan(axis: str, questions: Sequence[dict[str, Any]], work: "Work", quiet: bool) -> Answer:
    """The exit times of several questions, computed and kept as the cells of a sweep are.

    In the folder that the user named they stay, so that a scan over more values computes only what is missing; without
    one they are kept until all are there.
    """
    from twolayer.cli.folder import progress_bar
    from twolayer.specification.codec import to_json
    from twolayer.verbs import Interrupted

    scan = _Scan(questions, work)

    def finish() -> Answer | Failure:
        partial = interrupts.offered()
        return _interrupted([*scan.results(), *([] if partial is None else [partial()])], axis)

    try:
        with keeping(finish), progress_bar(quiet) as progress:
            scan.compute(progress)
    except Interrupted as stopped:
        return _interrupted([*scan.results(), stopped.result], axis)
    except KeyboardInterrupt:
        return _interrupted(scan.results(), axis)
    results = scan.results(is_whole=True)
    scan.tidy()

    def figures() -> dict[str, Any]:
        from twolayer.plots import exit_scan

        return {"exit_time": exit_scan(results, axis)}

    named = {f"exit_time_{number}": result for number, result in enumerate(results)}
    stated = to_json({"analysis": "exit_time", "scan": axis, "questions": questions})
    return work.finish(_answer(results, axis), named, figures, stated)


class _Scan:
    """Several questions about exit times, all of which are checked before the first is computed."""

    def __init__(self, questions: Sequence[dict[str, Any]], work: "Work"):
        from twolayer.analyses.escape.exit_time import checked, question_of
        from twolayer.cli.folder import check_writable
        from twolayer.core.errors import InvalidInput
        from twolayer.sweeps.listed import Listed
        from twolayer.sweeps.query import make_query

        self._work, queries, self._stated = work, [], []
        for question in questions:
            problem, training = question["problem"], question["training"]
            question_itself = question_of(problem, training, checked(**question))
            asked = {name: x for name, x in question_itself.fields.items() if name not in ("problem", "training")}
            queries.append(make_query("exit_time", problem, training, (), None, asked))
            self._stated.append({"spec": question_itself.json, "spec_hash": question_itself.key})
        self._folder: Path | None = work.folder if work.is_written else work.checkpoint.path
        try:
            check_writable(self._folder)
        except InvalidInput:  # nobody asked for a folder
            self._folder = None
        self._listed = Listed(queries, self._folder)

    def compute(self, progress: Any) -> None:
        """Answer what has no answer yet."""
        self._listed.compute(self._work.checkpoint, progress)

    def results(self, is_whole: bool = False) -> "list[xr.Dataset]":
        """The results that are there; if there must be all of them, a question that failed says why."""
        from twolayer.core.errors import ComputationFailed
        from twolayer.data.schema import ordered
        from twolayer.sweeps.content import dataset_of

        results = []
        for content, stated in zip(self._listed.known(), self._stated, strict=True):
            if content is not None and content.nodes:
                result = dataset_of(content.nodes[""])
                result.attrs = ordered(result.attrs | stated)
                results.append(result)
            elif is_whole:
                raise ComputationFailed("A cell could not be read again." if content is None else content.message)
        return results

    def tidy(self) -> None:
        """Remove the cells, if nobody asked for a folder."""
        if self._folder is not None and not self._work.is_written:
            shutil.rmtree(self._folder / "cells", ignore_errors=True)


def _answer(results: "list[xr.Dataset]", axis: str | None) -> Answer:
    from twolayer.analyses.escape.exit_result import plain
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


# ----------------------------------------------------------------------------------------------- what is asked


def _questions(
    context: Context, spec: Path | None, overrides: Sequence[str]
) -> tuple[str | None, list[dict[str, Any]]]:
    """The name of what changes, as results call it, and the arguments of every call of the verb; all are checked."""
    from twolayer.core.errors import InvalidInput, shown
    from twolayer.experiment import analysis_of, read_question, read_spec

    given = context.params
    if spec is not None and analysis_of(spec) is not None:
        refuse(context, (*SHORT_FORM, *ASKED))
        question = read_question(spec, "exit_time", overrides)
        axis, questions = question.get("scan"), question.get("questions", [question])
        if axis not in (None, *(name.replace("-", "_") for name in SCANNED)) or not isinstance(questions, list):
            raise InvalidInput(f"`scan`: must be one of {', '.join(SCANNED)}, with a list of `questions`.")
        return axis, [part for part in questions if isinstance(part, dict)]
    if given["by"] not in MEASURES:
        raise InvalidInput(f"Option `--by` must be one of {', '.join(MEASURES)}, but is {shown(given['by'])}.")
    asked = {"replicas": given["replicas"], "seed": given["seed"], "description": given["by"]}
    if spec is not None:
        refuse(context, SHORT_FORM)
        run = read_spec(spec, overrides)
        return None, [{"problem": run.problem, "training": run.training, "threshold": given["threshold"]} | asked]
    if overrides:
        raise InvalidInput("Option `--set` changes a specification, but none is given: use --p, --d, --noise.")
    if given["scan"] is None:
        return None, [_phase_retrieval(given) | asked]
    name, _, listed = given["scan"].partition("=")
    values = [value for value in listed.split(",") if value]
    if name not in SCANNED or not 2 <= len(values) <= MAX_SCANNED or len(set(values)) < len(values):
        raise InvalidInput(
            f"Option `--scan` must be one of {', '.join(SCANNED)} with 2 to {MAX_SCANNED} different values, as in "
            f"d=100,1000, but is {shown(given['scan'])}."
        )
    axis = name.replace("-", "_")
    questions = []
    for value in values:
        try:
            questions.append(_phase_retrieval(given | {axis: SCANNED[name](value)}) | asked)
        except InvalidInput:
            raise
        except ValueError:
            raise InvalidInput(f"Option `--scan` must list numbers for {name}, but {shown(value)} is none.") from None
    return axis, questions


def _phase_retrieval(given: dict[str, Any]) -> dict[str, Any]:
    """Phase retrieval on the sphere, and the level of the exit."""
    from twolayer.core.errors import InvalidInput, shown
    from twolayer.problem import Gaussian, PhaseRetrieval, Problem, Student
    from twolayer.specification.fields import count, number
    from twolayer.theory.formulas.phase_retrieval import optimal_learning_rate
    from twolayer.training import SGD, Sphere

    p, noise = count("p", high=100_000)(given["p"]), number("noise", low=0.0)(given["noise"])
    stated = given["learning_rate"]
    try:
        rate = optimal_learning_rate(p, noise) if stated == "optimal" else float(stated)
    except ValueError:
        sentence = f"Argument `learning_rate` must be a number or 'optimal', but is {shown(stated)}."
        raise InvalidInput(sentence) from None
    problem = Problem(PhaseRetrieval(), Student(p, "square"), Gaussian(given["d"]), noise=noise)
    return {"problem": problem, "training": SGD(float(rate), constraint=Sphere()), "threshold": given["threshold"]}


# -------------------------------------------------------------------------------------------- the table of a scan


def _table(results: "list[xr.Dataset]", axis: str) -> str:
    """One line for each result: mean times by the estimates, as measured, and the verdict."""
    from twolayer.analyses.escape.exit_result import estimates
    from twolayer.core.text import table
    from twolayer.data.summary import explained

    names = [name for name in LABELS if name in estimates(results[0])]
    head = [axis, *(LABELS[name] for name in names), "measured", "steps", "verdict"]
    rows = []
    for result in results:
        cells = [_cell(*estimates(result)[name]) for name in names]
        rows.append([f"{result.attrs[axis]:g}", *cells, *_measured_cells(result), result.attrs["outcome"]])
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
    from twolayer.analyses.escape.exit_result import sample_of

    sample = sample_of(result)
    if sample is None:
        return ["-", "-"]
    if sample.is_censored:
        median = f"{sample.median:.4f} +- {sample.median_error:.4f}" if math.isfinite(sample.median) else "not reached"
        return [f"median {median}", f"({sample.exited.size} of {sample.size} runs exit by {sample.until:.4g})"]
    return [f"{sample.mean:.4f} +- {sample.standard_error:.4f}", f"{sample.mean * result.attrs['steps_per_time']:.4g}"]
