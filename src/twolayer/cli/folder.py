"""The folder of a command: whether it can be written before time is spent, places of long runs, and the report."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twolayer.cli.interrupt import say_answer, writing
from twolayer.cli.outcome import FAILED, INTERRUPTED, Answer, Failure
from twolayer.core.checkpoint import EVERY, Checkpoint
from twolayer.core.errors import InvalidInput, shown
from twolayer.core.whole_files import held, make_folder, remove_drafts
from twolayer.verbs.progress import Progress, reporting

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.report import Figures

RESULTS = Path("results")


class Work:
    """A command whose results may go to a folder, in which long runs keep their places until these are written.

    Parameters
    ----------
    out
        The folder that the user named, or None.
    stem, key
        What names a folder if the user did not: the same question always has the same one.
    every
        Seconds between two places of a run.
    is_written
        Whether results are written; by default if the user named a folder.
    """

    def __init__(self, out: Path | None, stem: str, key: str, every: float | None = None, is_written: bool = False):
        self.folder = folder_of(out, stem, key)
        self.is_written = is_written or out is not None
        if every is not None and not (0.0 <= every < float("inf")):
            raise InvalidInput(
                f"Option `--checkpoint-every` must be a number of seconds of at least 0, but is {every}."
            )
        self.checkpoint = Checkpoint(self.folder / "checkpoint", EVERY if every is None else every, is_part=True)
        if self.is_written:
            check_writable(self.folder)

    def finish(
        self,
        answer: Answer,
        results: "Mapping[str, xr.Dataset]",
        figures: "Callable[[], Figures]",
        spec: str,
    ) -> Answer:
        """The answer of a command, written to its folder if that was asked; the places of its runs are removed."""
        if not self.is_written:
            self.tidy()
            return answer
        from twolayer.report import write_folder

        say_answer(answer)
        texts = {"spec.json": spec}
        report = self.write(lambda: write_folder(self.folder, answer.data, results, figures(), texts))
        self.tidy(report["files"])
        return Answer(report, "\n".join([answer.text, "", *pictures(report)]))

    def write(self, write: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call what writes the report; an interruption waits for it."""
        place = f"{str(self.folder)!r}"
        try:
            with writing(self.folder) as names:
                make_folder(self.folder)
                report = write()
                names += report["files"]
            return report
        except (OSError, InvalidInput) as error:  # the folder was writable before the work: the input is not to blame
            sentence = f"The report could not be written to {place}, which may lack some of it: {error}"
            raise Failure(f"{sentence.rstrip('.')}.", FAILED) from None
        except KeyboardInterrupt:
            sentence = f"Interrupted while the report was written; {place} may lack some of it."
            raise Failure(sentence, INTERRUPTED) from None

    def tidy(self, files: Iterable[str] = ()) -> None:
        """Remove what a command that is done needs no more: its places, and what was left by one that was killed."""
        self.checkpoint.remove()
        for name in files:
            remove_drafts(self.folder / name)
        parents = (parent for parent in self.folder.parents if parent == RESULTS)
        for empty in (self.checkpoint.path, self.folder, *parents):
            with contextlib.suppress(OSError):  # it holds something, or was never made
                empty.rmdir()


def folder_of(out: Path | None, stem: str, key: str) -> Path:
    """The folder that the user named, or that of a question; see `Work`."""
    return RESULTS / f"{stem}-{key[:8]}" if out is None else out


def pictures(report: Mapping[str, Any]) -> list[str]:
    """The lines that say where the pictures of a report are."""
    return [f"picture   {Path(report['folder']) / name}" for name in report["files"] if name.endswith(".png")]


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, and leave nothing behind.

    It is tried rather than asked: permission bits say yes to root even where the file system says no. What is not there
    yet is tried under a parent of a name of its own: the folders themselves may be what another process makes just now.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"The folder {shown(folder)} cannot be written: it is a file.")
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        there = missing[-1].parent if missing else folder
        with held():
            trial = Path(tempfile.mkdtemp(prefix=".twolayer-", dir=there))
            try:
                inside = trial / folder.relative_to(there)
                inside.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=inside):
                    pass
            finally:
                shutil.rmtree(trial, ignore_errors=True)
    except OSError as error:
        raise InvalidInput(f"The folder {shown(folder)} cannot be written: {error.strerror}.") from None


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A function to be told (name, fraction done), with one bar per name; nobody listens where none can look."""
    with reporting(False if quiet else None, after=0.0) as tell:
        yield tell
