"""``twolayer run``: theory against simulation, from a specification to a report folder."""

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import FAILED, INTERRUPTED, Answer, AsJson, Every, Failure, Overrides, Quiet

if TYPE_CHECKING:
    from twolayer.experiment import RunSpec

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="The report folder; results/NAME-HASH when left out.", show_default=False
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
    try:
        with progress_bar(quiet) as progress:
            tree = run_spec(spec, progress, checkpoint)
    except ComputationFailed as failure:
        files = _write(failure.result, folder, spec, stem)["files"]
        tidy(folder, checkpoint, files)
        raise Failure(f"{failure} {_saved(files, folder)}", FAILED, tuple(files)) from None
    except Interrupted as stopped:
        files = _write(stopped.result, folder, spec, stem)["files"]
        if not files:
            raise
        kept = ", ".join(
            f"{data.sizes['replica']} of {spec.ask.replicas} replicas of {name}" for name, data in _parts(stopped)
        )
        sentence = f"Interrupted: {kept} were finished. {_saved(files, folder)}"
        raise Failure(sentence, INTERRUPTED, tuple(files)) from None
    report = _write(tree, folder, spec, stem)
    tidy(folder, checkpoint, report["files"])
    elapsed = time.perf_counter() - began
    return Answer(report | {"elapsed_seconds": round(elapsed, 3)}, _words(spec.title or stem, report, elapsed))


def _parts(stopped: Any) -> list[tuple[str, Any]]:
    return [(name, child.to_dataset()) for name, child in stopped.result.children.items()]


def _write(tree: Any, folder: Path, spec: "RunSpec", stem: str) -> dict[str, Any]:
    """Write the report of a result; an empty one writes nothing."""
    if not getattr(tree, "children", None):
        return {"files": []}
    from twolayer.core.codec import to_json
    from twolayer.core.errors import InvalidInput
    from twolayer.report import write_report

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_report(tree, folder, spec.title or stem, to_json(spec))
    except (OSError, InvalidInput) as error:  # the folder was writable before the work, so the input is not to blame
        raise Failure(f"The report could not be written to {str(folder)!r}: {error}", FAILED) from None
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
