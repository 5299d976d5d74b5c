"""Questions that are listed one by one, without axes: computed, kept and continued as the cells of a sweep are."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.precision import double
from twolayer.sweeps.compute import Job
from twolayer.sweeps.content import Content
from twolayer.sweeps.query import Query, environment, keys_of
from twolayer.sweeps.runner import Counts, InProcess, run_jobs
from twolayer.sweeps.sweep_store import Store
from twolayer.verbs.progress import Progress, note, reporting


class Listed:
    """Questions and what is known of their answers.

    Parameters
    ----------
    queries
        The questions.
    folder
        Where answers are kept as soon as they are finished, and found again; in memory where none is given.
    """

    def __init__(self, queries: Sequence[Query], folder: Path | None):
        with double():
            keys = keys_of(queries, environment())
        self._queries = dict(zip(keys, queries, strict=True))
        self._keys = keys
        self._store = Store(folder)

    def known(self) -> list[Content | None]:
        """The answers in the order of the questions, with None in place of those that are not there."""
        contents = dict(self._store.contents(self._queries))
        return [contents.get(key) for key in self._keys]

    def compute(self, places: Checkpoint | None = None, progress: Progress | bool | None = None) -> None:
        """Answer the questions that have no answer, in this process; what takes long keeps its place.

        An interruption leaves the answers that are finished.
        """
        jobs = [Job(key, query) for key, query in self._queries.items() if key not in self._store]
        counts = Counts(len(jobs), len(self._queries) - len(jobs), "questions")
        with contextlib.ExitStack() as stack:
            tell = stack.enter_context(reporting(progress, "sweep"))
            stack.enter_context(interrupts.deferred())

            def told(counts: Counts) -> None:
                note(tell, counts.words)
                tell("sweep", counts.computed / max(1, counts.jobs))

            run_jobs(jobs, InProcess(places=places), self._store, told, counts)
