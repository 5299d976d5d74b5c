"""All benchmarks, one after the other, and the table of docs/performance.md from this one run.

python benchmarks/all.py                 # about ten minutes on a quiet machine
python benchmarks/all.py --only sde      # some of them; the page is left alone
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
NAMES = (
    "direct_sgd",
    "overlap_sgd",
    "saad_solla",
    "sde",
    "moments",
    "mean_field",
    "dmft",
    "layer_wise",
    "nesterov",
    "learn",
    "ntk",
)
TOP = """# Performance

Measured at commit {commit} on {date}, with Python {python} and jax {jax} on {device}. What has changed since is not in
this table: later records, of one part each, are in `benchmarks/results/`, with their commit and machine.

"""
HEAD = """\
Ours, the naive way and the floor on the same work in one run, from `python benchmarks/all.py`: one core and CPU time
(best of several, compile time apart), but for the Gram matrix, on all cores and by the wall clock, and layer-wise
training, on all cores. The naive
way is the equations as one would write them in NumPy. The floor is the part that every implementation shares: the
random numbers as JAX draws them (`DirectSGD` draws its own, which are cheaper), or one matrix product or decomposition
by BLAS and LAPACK. The floor of `SDE` is its own loop with its random numbers and no equation; that of `DMFT` are the
normal numbers, their exact second moments, and the products that fields and averages are in each step: both say how far
a path-step and a run with as many points are from what they cannot do without, and what counts is the line above them,
the time to an error, where `SDE` takes fewer steps and `DMFT` fewer points than the naive way. Other machines and the
H200 are in `benchmarks/results/`, too.
"""


def run(name: str) -> list[dict]:
    """The lines of JSON that one script prints; its words pass through."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, HERE / f"{name}.py"], stdout=subprocess.PIPE, text=True, check=True, cwd=HERE
    )
    print(done.stdout)
    print(f"{name}: {time.perf_counter() - began:.0f} s\n", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"benchmark"')]


def shown(x: float, unit: str) -> str:
    """A time in three digits or more and the unit of its row, on one line."""
    digits = max(0, 2 - math.floor(math.log10(abs(x))))
    return f"{x:,.{digits}f}\N{NO-BREAK SPACE}{unit}"


def page(found: dict[str, list[dict]], commit: str, date: str) -> str:
    machine = next(iter(found.values()))[0]["machine"]
    versions = {name: machine[name] for name in ("python", "jax", "device")}
    lines = [
        TOP.format(commit=commit, date=date, **versions) + HEAD,
        "| work | ours | naive | floor | naive / ours | ours / floor |",
        "|---|---|---|---|---|---|",
    ]
    for answers in found.values():
        for each in (line for answer in answers for line in answer["summary"]):
            ours, naive, floor = each["ours"], each["naive"], each["floor"]
            cells = [shown(x, each["unit"]) if x is not None else "" for x in (ours, naive, floor)]
            ratios = [f"{naive / ours:.3g}" if naive else "", f"{ours / floor:.3g}" if floor else ""]
            lines.append("| " + " | ".join([each["what"], *cells, *ratios]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=NAMES)
    asked = parser.parse_args()
    found = {name: run(name) for name in asked.only or NAMES}
    if not asked.only:
        described = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(described, capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
        PAGE.write_text(page(found, commit, time.strftime("%Y-%m-%d")))
        print(PAGE.read_text())


if __name__ == "__main__":
    main()
