"""What every benchmark shares: one core, best of repeats, compile time apart, a table and a JSON line."""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any


def use_one_core() -> None:
    """Pin this process to one core; call it before jax is imported."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """CPU seconds of the quickest of several runs: the least disturbed by the machine."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def once(work: Callable[[], Any]) -> float:
    """CPU seconds of one run: for the first call, which compiles."""
    return best(work, repeats=1)


def against(
    what: str, unit: str, ours: float, naive: float | None = None, floor: float | None = None
) -> dict[str, Any]:
    """A line of the table of all benchmarks: ours, the naive way and the floor on the same work, in one unit."""
    return {"what": what, "unit": unit, "ours": ours, "naive": naive, "floor": floor}


def report(name: str, rows: list[dict[str, Any]], summary: Sequence[dict[str, Any]] = ()) -> None:
    """Print the rows as a table, then as one line of JSON with the machine and the lines of `against`."""
    header = list(rows[0])
    shown = [[f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for key in header] for row in rows]
    widths = [max(len(line[column]) for line in [header, *shown]) for column in range(len(header))]
    for line in [header, *shown]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    import jax

    machine = {"python": platform.python_version(), "jax": jax.__version__, "device": str(jax.devices()[0].device_kind)}
    print(json.dumps({"benchmark": name, "rows": rows, "machine": machine, "summary": list(summary)}))
