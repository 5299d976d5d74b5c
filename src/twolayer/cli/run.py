"""``twolayer run``: theory against simulation, from a specification to a report folder."""

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import FAILED, INTERRUPTED, Answer, AsJson, Every, Failure, Overrides, Quiet, folder_option
from twolayer.cli.interrupt import keeping, writing
from twolayer.core import interrupts
from twolayer.core.files import held, make_folder

if TYPE_CHECKING:
    from twolayer.experiment import RunSpec

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="The report folder; results/NAME-HASH when left out.",
        show_default=False,
        parser=folder_option,
    ),
]


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="The specification.", show_default=False)],
    out: Out = None,
    overrides: Overrides = None,
    every: Every = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Compare theory with simulation and write a report folder with figures, data and the verdict.

    Example: twolayer run examples/erf_committee.toml --set training.learning_rate=3 --out results/erf
    """
    from twolayer.experiment import read_spec

    return compare_and_report(read_spec(spec, overrides or ()), spec.stem, out, quiet, every)


def compare_and_report(spec: "RunSpec", stem: str, out: Path | None, quiet: bool, every: float | None = None) -> Answer:
    """Run a specification and write its report; what was finished is written also when it fails or is interrupted.

    Long simulations keep their place in the folder every so many seconds: killed and run again, they go on from there.
    """
    from twolayer.cli.folder import check_writable, checkpoint_in, default_folder, tidy
    from twolayer.cli.progress import progress_bar
    from twolayer.core.errors import ComputationFailed
    from twolayer.experiment import run_spec
    from twolayer.verbs import Interrupted

    began = time.perf_counter()
    folder = default_folder(stem, spec.key) if out is None else out
    checkpoint = checkpoint_in(folder, every)
    check_writable(folder)

    def finish() -> Failure:
        partial = interrupts.offered()
        return _interrupted(None if partial is None else partial(), folder, spec, stem)

    with held():  # from the end of the computation on, an interruption waits for the report
        try:
            with keeping(finish), progress_bar(quiet) as progress:
                tree = run_spec(spec, progress, checkpoint)
        except ComputationFailed as failure:
            files = _write(failure.result, folder, spec, stem)["files"]
            tidy(folder, checkpoint, files)
            raise Failure(f"{failure} {_saved(files, folder)}", FAILED, tuple(files)) from None
        except Interrupted as stopped:
            raise _interrupted(stopped.result, folder, spec, stem) from None
        report = _write(tree, folder, spec, stem)
        tidy(folder, checkpoint, report["files"])
    elapsed = time.perf_counter() - began
    return Answer(report | {"elapsed_seconds": round(elapsed, 3)}, _words(spec.title or stem, report, elapsed))


def _interrupted(tree: Any, folder: Path, spec: "RunSpec", stem: str) -> Failure:
    """Write what was finished, and say what that is."""
    from twolayer.description import Status

    files = _write(tree, folder, spec, stem)["files"]
    checkpoint = folder / "checkpoint"
    place = f" The same command goes on from {str(checkpoint)!r}." if any(checkpoint.glob("*.npz")) else ""
    if not files:
        return Failure(f"Interrupted: nothing was finished.{place}", INTERRUPTED)
    finished = {name: int((child.status != Status.UNFINISHED).sum()) for name, child in tree.children.items()}
    kept = ", ".join(f"{number} of {spec.ask.replicas} replicas of {name}" for name, number in finished.items())
    return Failure(f"Interrupted: {kept} were finished. {_saved(files, folder)}{place}", INTERRUPTED, tuple(files))


def _write(tree: Any, folder: Path, spec: "RunSpec", stem: str) -> dict[str, Any]:
    """Write the report of a result; an empty one writes nothing."""
    if not getattr(tree, "children", None):
        return {"files": []}
    from twolayer.core.errors import InvalidInput
    from twolayer.report import write_report
    from twolayer.specification.codec import to_json

    try:
        with writing(folder) as names:
            make_folder(folder)
            report = write_report(tree, folder, spec.title or stem, to_json(spec))
            names += report["files"]
        return report
    except (OSError, InvalidInput) as error:  # the folder was writable before the work, so the input is not to blame
        sentence = f"The report could not be written to {str(folder)!r}, which may lack some of it: {error}"
        raise Failure(f"{sentence.rstrip('.')}.", FAILED) from None
    except KeyboardInterrupt:
        sentence = f"Interrupted while the report was written; {str(folder)!r} may lack some of it."
        raise Failure(sentence, INTERRUPTED) from None


def _saved(files: list[str], folder: Path) -> str:
    return f"Saved in {str(folder)!r}." if files else "Nothing was saved."


def _words(title: str, report: dict[str, Any], elapsed: float) -> str:
    """The verdict and where the pictures are."""
    folder = Path(report["folder"])
    lines = [
        title,
        "",
        textwrap.fill(report["verdict"], 100),
        "",
        f"report    {folder / 'report.md'}",
        *(f"picture   {folder / name}" for name in report["files"] if name.endswith(".png")),
        f"elapsed   {elapsed:.1f} s",
    ]
    return "\n".join(lines)
