"""``twolayer learn``: what of a target can be learned, how fast, and in which order."""

import json
from pathlib import Path
from typing import Annotated, Any

from twolayer.cli.answer import Answer
from twolayer.cli.options import (
    AsJson,
    Context,
    Every,
    Overrides,
    Quiet,
    Seed,
    argument,
    folder,
    option,
    refuse,
    switch,
)

SHORT_FORM = (
    "student",
    "p",
    "second_layer",
    "d",
    "noise",
    "learning_rate",
    "loss",
    "free",
    "verify",
    "largest",
    "seed",
)


# Large: a command has one argument for each of its options.
def learn(
    context: Context,
    target: Annotated[
        str | None,
        argument("EXPRESSION", "A formula in z1, z2, ..., a name from --list, or the spec.json of a report."),
    ] = None,
    student: Annotated[
        str | None, option("--student", "NAME", "The activation of a student, such as erf, relu or he3.")
    ] = None,
    p: Annotated[int, option("--p", "N", "Width of the student.")] = 1,
    second_layer: Annotated[
        str, option("--second-layer", "NAME", "Its output weights: ones, rademacher or gaussian.")
    ] = "ones",
    d: Annotated[int | None, option("--d", "N", "Input dimension: with --student, when the plateau is left.")] = None,
    noise: Annotated[float, option("--noise", "VALUE", "Variance of the label noise.")] = 0.0,
    learning_rate: Annotated[
        float | None, option("--learning-rate", "VALUE", "For that time; the best rate when left out.")
    ] = None,
    loss: Annotated[
        str | None, option("--loss", "NAME", "The loss that is trained: correlation, logistic, hinge or huber.")
    ] = None,
    free: Annotated[bool, switch("--free", "Rows may change their length; else they keep it.")] = False,
    verify: Annotated[
        bool, switch("--verify", "Run what is predicted: giant steps, and escape times against d.")
    ] = False,
    largest: Annotated[int | None, option("--largest", "N", "The largest dimension of these runs.")] = None,
    seed: Seed = 0,
    listed: Annotated[bool, switch("--list", "List the named targets with their known answers.")] = False,
    out: Annotated[Path | None, folder("--out", "Write a figure and the numbers there.")] = None,
    overrides: Overrides = None,
    every: Every = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say what of a target can be learned: exponents, leaps, the order of directions, steps and samples by protocol.

    Example: twolayer learn "he2(z1) + z1*z2" --student relu --d 1000
    Example: twolayer learn he3 --verify --out he3
    """
    if listed:
        return _list()
    from twolayer.analyses import learn as find
    from twolayer.cli.folder import Work, progress_bar
    from twolayer.data import summary
    from twolayer.data.provenance import Question

    fields = _question(context)
    work = Work(out, "learn", Question("learn", fields).key, every)
    with progress_bar(quiet) as progress:
        result = find(**(fields | {"progress": progress, "checkpoint": work.checkpoint}))
    answer = Answer(json.loads(result.attrs["answer"]), str(summary(result)))

    def figures() -> dict[str, Any]:
        from twolayer.plots import staircase

        return {"learn": staircase(result)}

    return work.finish(answer, {"learn": result}, figures, result.attrs["spec"])


def _question(context: Context) -> dict[str, Any]:
    """The arguments of the verb, from options or from the specification of a report."""
    from twolayer.core.errors import InvalidInput
    from twolayer.experiment import read_question
    from twolayer.problem import Student

    given = context.params
    target, overrides = given["target"], given["overrides"] or ()
    if target is None:
        raise InvalidInput("Argument `EXPRESSION` is missing: give a formula such as 'he2(z1) + z1*z2', or use --list.")
    if Path(target).suffix.lower() == ".json":
        refuse(context, SHORT_FORM)
        return read_question(target, "learn", overrides)
    if overrides:
        raise InvalidInput("Option `--set` changes a specification, but EXPRESSION is a target.")
    network = None if given["student"] is None else Student(given["p"], given["student"], given["second_layer"])
    same = {
        name: given[name] for name in ("target", "d", "noise", "learning_rate", "loss", "verify", "largest", "seed")
    }
    return same | {"student": network, "spherical": not given["free"]}


def _list() -> Answer:
    from dataclasses import asdict

    from twolayer.learnability import named_targets

    known = named_targets()
    lines = [f"{'name':<20}{'formula':<42}{'information':>12}{'leap':>6}{'generative':>12}"]
    for name, target in known.items():
        exponents = f"{target.information_exponent:>12}{target.leap:>6}{target.generative_exponent:>12}"
        lines.append(f"{name:<20}{target.formula:<42}{exponents}")
    return Answer({"targets": {name: asdict(target) for name, target in known.items()}}, "\n".join(lines))
