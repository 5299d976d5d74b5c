"""Steps of the overlap process in Chromium on one core, against native code on the same core.

One replica at a time, after warming up. Chromium tells wall time, so that its number is the best of many short pieces
of work; that of native code is from CPU time.

    python benchmarks/live.py
"""

import base64
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from common import against, best, report, use_one_core

use_one_core()

import jax
import numpy as np

import twolayer as tl
from twolayer.compiler.loops import as_rows, by_native, native
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.live import live_program
from twolayer.simulation import drivers, overlap, overlap_sgd
from twolayer.specification.fields import as_data

tl.precision("double")
NOTHING = Watch(False, False)
PIECES = 400
SCRIPT = """
    const E = twolayerEngine();
    const bytes = Uint8Array.from(atob(given.module), (letter) => letter.charCodeAt(0));
    const process_ = new E.Process(new WebAssembly.Module(bytes), given.manifest);
    let least = Infinity;
    for (let n = 1; n <= given.pieces; n++) {
        const began = performance.now();
        process_.advanceTo(n * given.steps);
        least = Math.min(least, performance.now() - began);
    }
    document.title = "done";
    document.getElementById("out").textContent = (given.steps / least) * 1000;
"""


def in_chromium(program, steps):
    """Return steps a second in Chromium, in pieces of ``steps`` steps."""
    given = {"module": base64.b64encode(program.binary).decode(), "manifest": program.manifest}
    engine = (Path(tl.__file__).parent / "live" / "engine.js").read_text()
    page = f"""<!DOCTYPE html><pre id="out"></pre><script>{engine}</script>
        <script>const given = {json.dumps(given | {"steps": steps, "pieces": PIECES})};{SCRIPT}</script>"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(page)
        command = [shutil.which("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                   f"--user-data-dir={folder}/profile", f"file://{folder}/page.html"]  # fmt: skip
        text = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True).stdout
    return float(text.partition('<pre id="out">')[2].partition("</pre>")[0])


def in_native(problem, training, replicas, steps):
    """Return steps a second of native code on one core, all replicas together."""
    problem, training = as_data((problem, training))
    setting = overlap.make_setting(problem, training)
    program = native(drivers.written_out(setting, NOTHING), replicas)
    keys = jax.vmap(lambda n: replica_key(0, n))(jax.numpy.arange(replicas))
    starts = jax.jit(lambda keys: problem.draw_many(keys))(keys)
    run = overlap_sgd._begin(setting, NOTHING, starts, keys, np.zeros((replicas, 2)))
    rows = as_rows((*run.state, run.crossing)), as_rows((run.lengths, run.thresholds)), as_rows((run.words,))
    by_native(program, *rows, 0, 32)
    return replicas * steps / best(lambda: by_native(program, *rows, 0, steps))


PROBLEMS = {
    "phase retrieval p=1": (
        tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000)),
        tl.SGD(1 / 12, constraint=tl.Sphere()),
    ),
    "erf p=4 k=2": (tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(1000)), tl.SGD(1.0)),
    "relu p=2 k=2, both layers": (
        tl.Problem(tl.Committee(2, "relu"), tl.Student(2, "relu"), tl.Gaussian(1000), noise=0.01),
        tl.SGD(0.5, layers=tl.Both()),
    ),
    "tanh p=2 k=2": (tl.Problem(tl.Committee(2, "tanh"), tl.Student(2, "tanh"), tl.Gaussian(1000)), tl.SGD(0.5)),
}

rows, summary = [], []
for name, (problem, training) in PROBLEMS.items():
    program = live_program(problem, training, replicas=1, with_theory=False)
    here = in_chromium(program, 50_000 if problem.p == 1 else 20_000)
    one, many = in_native(problem, training, 1, 200_000), in_native(problem, training, 32, 20_000)
    rows.append({"problem": name, "bytes": len(program.binary), "Chromium steps/s": here, "native, one replica": one,
                 "native, 32 replicas": many, "Chromium / native one": here / one})  # fmt: skip
    summary.append(against(f"a step in Chromium, {name}", "ns", 1e9 / here, floor=1e9 / one))
report("live", rows, summary)
