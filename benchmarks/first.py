"""What a new process costs before it answers: the command line, the import, README's ten lines, and whole examples.

Every command runs in a process of its own, with an empty cache of programs and then with what it left there; CPU
seconds of that process and its children, compile time included. ``--examples`` adds the specifications in examples/.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from common import report

ROOT = Path(__file__).parents[1]


def cpu_seconds(command, cache):
    """CPU seconds of a command in a new process whose programs are kept in a folder."""
    environment = os.environ | {"TWOLAYER_CACHE": str(cache), "PYTHONPATH": str(ROOT / "src")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", action="store_true", help="run the specifications in examples/ as well")
    arguments = parser.parse_args()
    python, twolayer = sys.executable, [sys.executable, "-m", "twolayer"]
    lines = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
    works = {
        "twolayer --version": [*twolayer, "--version"],
        "twolayer --help": [*twolayer, "--help"],
        "import twolayer": [python, "-c", "import twolayer"],
        "README's ten lines": [python, "-c", lines],
    }
    with tempfile.TemporaryDirectory() as folder:
        for example in sorted((ROOT / "examples").glob("*.toml")) if arguments.examples else []:
            works[example.name] = [*twolayer, "run", str(example), "--quiet", "--out", "FOLDER"]
        rows = []
        for number, (name, command) in enumerate(works.items()):
            cache = Path(folder) / f"cache-{number}"
            outs = (str(Path(folder) / f"out-{number}-{run}") for run in range(2))
            empty, filled = (cpu_seconds([out if x == "FOLDER" else x for x in command], cache) for out in outs)
            rows.append({"work": name, "empty cache": empty, "filled cache": filled})
    report("first result, CPU seconds of a new process", rows)


if __name__ == "__main__":
    main()
