"""``twolayer run``: theory against simulation, from a specification to a report folder."""

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twolayer.cli.answer import FAILED, INTERRUPTED, Answer, Failure
from twolayer.cli.interrupt import keeping
from twolayer.cli.options import AsJson, Every, Overrides, Quiet, Spec, folder
from twolayer.core import interrupts
from twolayer.core.whole_files import held

if TYPE_CHECKING:
    from twolayer.experiment import RunSpec

Out = Annotated[Path | None, folder("--out", "The report folder; results/NAME-HASH when left out.")]


def run(
    spec: Spec,
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
    from twolayer.cli.folder import Work, pictures, progress_bar
    from twolayer.core.errors import ComputationFailed
    from twolayer.data.summary import explained
    from twolayer.experiment import run_spec
    from twolayer.report import write_report
    from twolayer.specification.codec import to_json
    from twolayer.verbs import Interrupted

    began = time.perf_counter()
    title = spec.title or stem
    work = Work(out, stem, spec.key, every, is_written=True)

    def write(tree: Any) -> dict[str, Any]:
        """Write the report of a result; an empty one writes nothing."""
        if not getattr(tree, "children", None):
            return {"files": []}
        return work.write(lambda: write_report(tree, work.folder, title, to_json(spec)))

    def stopped(tree: Any) -> Failure:
        return _interrupted(tree, write(tree)["files"], work.folder, spec.ask.replicas)

    def finish() -> Failure:
        partial = interrupts.offered()
        return stopped(None if partial is None else partial())

    with held():  # from the end of the computation on, an interruption waits for the report
        try:
            with keeping(finish), progress_bar(quiet) as progress:
                tree = run_spec(spec, progress, work.checkpoint)
        except ComputationFailed as failure:
            files = write(failure.result)["files"]
            work.tidy(files)
            raise Failure(f"{failure} {_saved(files, work.folder)}", FAILED, tuple(files)) from None
        except Interrupted as interrupted:
            raise stopped(interrupted.result) from None
        report = write(tree)
        work.tidy(report["files"])
    elapsed = time.perf_counter() - began
    verdict = [] if report["outcome"] == "single" else [f"Verdict: {explained(report['outcome'])}."]
    words = [textwrap.fill(sentence, 100) for sentence in (*verdict, report["verdict"])]
    lines = [title, "", *words, "", f"report    {work.folder / 'report.md'}"]
    text = "\n".join([*lines, *pictures(report), f"elapsed   {elapsed:.1f} s"])
    return Answer(report | {"elapsed_seconds": round(elapsed, 3)}, text)


def _interrupted(tree: Any, files: list[str], folder: Path, replicas: int) -> Failure:
    """Say what was finished and written."""
    from twolayer.description import Status

    checkpoint = folder / "checkpoint"
    place = f" The same command goes on from {str(checkpoint)!r}." if any(checkpoint.glob("*.npz")) else ""
    if not files:
        return Failure(f"Interrupted: nothing was finished.{place}", INTERRUPTED)
    finished = {name: int((child.status != Status.UNFINISHED).sum()) for name, child in tree.children.items()}
    kept = ", ".join(f"{number} of {replicas} replicas of {name}" for name, number in finished.items())
    return Failure(f"Interrupted: {kept} were finished. {_saved(files, folder)}{place}", INTERRUPTED, tuple(files))


def _saved(files: list[str], folder: Path) -> str:
    return f"Saved in {str(folder)!r}." if files else "Nothing was saved."
