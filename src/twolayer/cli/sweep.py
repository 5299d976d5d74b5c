"""``twolayer sweep``: one question at every point of a grid, from a specification to a folder that can be continued."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twolayer.cli.answer import DONE, INTERRUPTED, Answer, Failure
from twolayer.cli.interrupt import keeping
from twolayer.cli.options import AsJson, Overrides, Quiet, Spec, folder, option, switch
from twolayer.core.whole_files import held

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.sweeps import SweepSpec

Over = Annotated[
    list[str] | None,
    option(
        "--over",
        "PATH=VALUES",
        "An axis: training.learning_rate=0.1,0.2 or lin:LOW:HIGH:N or log:LOW:HIGH:N; may be repeated.",
    ),
]
Together = Annotated[
    list[str] | None,
    option("--together", "PATH,PATH", "Axes that change together along one dimension; may be repeated."),
]
Workers = Annotated[
    int | None,
    option(
        "--workers", "N", "Processes on this machine; 0 for none. Left out: as many as cores, where they are worth it."
    ),
]
Scheduler = Annotated[
    str | None,
    option("--scheduler", "ADDRESS", "A running Dask scheduler; left out: what DASK_SCHEDULER_ADDRESS says."),
]


# Large: a command has one argument for each of its options.
def sweep(
    spec: Spec,
    over: Over = None,
    together: Together = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    out: Annotated[Path | None, folder("--out", "The folder; results/NAME-HASH when left out.")] = None,
    statistics: Annotated[
        bool, switch("--statistics", "Reduce the replicas of each cell to statistics; --over may then be left out.")
    ] = False,
    dry_run: Annotated[bool, switch("--dry-run", "Say what would be computed, and compute nothing.")] = False,
    fresh: Annotated[bool, switch("--fresh", "Compute also the cells that are there.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Ask the question of a specification at every point of a grid; run again, it goes on where it stopped.

    Example: twolayer sweep examples/phase_retrieval_p1.toml --over training.learning_rate=log:0.02:0.12:6 --out rates
    """
    from twolayer.cli.folder import folder_of
    from twolayer.experiment import read_sweep

    asked = read_sweep(spec, overrides or (), over or (), together or (), statistics)
    if dry_run:
        return _forecast(asked, folder_of(out, spec.stem, asked.key), workers, scheduler, fresh)
    return _run(asked, spec.stem, out, workers, scheduler, fresh, quiet)


def _run(
    spec: "SweepSpec",
    stem: str,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
    fresh: bool,
    quiet: bool,
) -> Answer:
    from twolayer.cli.folder import Work, pictures, progress_bar
    from twolayer.data import summary
    from twolayer.report import write_sweep
    from twolayer.sweeps import kept_cells, run_sweep
    from twolayer.verbs import Interrupted

    began = time.perf_counter()
    work = Work(out, stem, spec.key, is_written=True)

    def finish() -> Failure:
        there, total, noun = kept_cells(work.folder, spec)
        if not there:
            return Failure("Interrupted: no cell was finished.", INTERRUPTED)
        place = f"kept in {str(work.folder)!r}; the same command goes on from there"
        return Failure(f"Interrupted: {there} of {total} {noun} are {place}.", INTERRUPTED)

    with held():  # from the end of the computation on, an interruption waits for the report
        try:
            with keeping(finish), progress_bar(quiet) as progress:
                result, done = run_sweep(spec, work.folder, workers, scheduler, fresh, progress)
        except Interrupted:
            raise finish() from None
        report = work.write(lambda: write_sweep(result, work.folder, _numbers(result, done), spec.json))
    lines = [str(summary(result)), "", f"folder    {work.folder}", *pictures(report)]
    text = "\n".join([*lines, f"elapsed   {time.perf_counter() - began:.1f} s"])
    return Answer(report, text, DONE)


def _numbers(result: "xr.Dataset | xr.DataTree", computed: int) -> dict[str, Any]:
    """The numbers that other programs read."""
    from twolayer.sweeps import counts

    ended = counts(result)
    cells = sum(ended.values())
    status: Any = result["cell_status"]
    axes = {str(name): status[name].values.tolist() for name in status.dims}
    failed = cells - ended["done"] - ended["missing"]
    return {
        "cells": cells,
        "done": ended["done"],
        "failed": failed,
        "computed": computed,
        "status": ended,
        "axes": axes,
    }


def _forecast(spec: "SweepSpec", folder: Path, workers: int | None, scheduler: str | None, fresh: bool) -> Answer:
    """What would be computed: cells, programs to compile, time and memory."""
    from twolayer.core.memory_limit import bytes_in_words
    from twolayer.sweeps.forecast import forecast
    from twolayer.verbs.cautions import in_words

    plan = forecast(spec, folder, workers, scheduler, fresh)
    known = plan.seconds is not None
    duration = (
        "not known" if plan.seconds is None else "under a minute" if plan.seconds < 60 else in_words(plan.seconds)
    )
    there = f" and {plan.there} are in {str(folder)!r}" if plan.there else ""
    of_a_cell = (
        f", about {bytes_in_words(float(f'{plan.cell_memory:.1g}'))} while a cell is computed"
        if plan.cell_memory
        else ""
    )
    lines = [
        f"axes          {', '.join(f'{axis.name} ({axis.size})' for axis in spec.axes)}",
        f"cells         {plan.cells}, of which {plan.refused} cannot be asked{there}",
        f"compilations  {plan.programs}",
        f"time          {duration}" + (" on one core, without compiling" if known else ""),
        f"workers       {'those of the scheduler' if plan.workers is None else plan.workers or 'none'}",
        f"memory        {bytes_in_words(plan.memory)} for the whole result{of_a_cell}",
        *(f"- {reason}" for reason in plan.reasons),
    ]
    data = {
        "cells": plan.cells,
        "refused": plan.refused,
        "there": plan.there,
        "compilations": plan.programs,
        "seconds": plan.seconds,
        "workers": plan.workers,
        "bytes": plan.memory,
        "cell_bytes": plan.cell_memory,
        "reasons": plan.reasons,
    }
    return Answer(data, "\n".join(lines))
