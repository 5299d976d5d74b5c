"""The explorer's page in Chromium: first paint, first curve, and from a move of a slider to the curve that is drawn.

    python benchmarks/explore_page.py [--moves 40] [--pause 0.5]

The server is a process of its own that has just been started, with an empty cache of programs; the browser is an
installed Chromium, driven by Playwright. Wall clock. A move sets the slider of the learning rate; its time ends with
the frame after the one in which the new curve was put into the plot. Runs after every change are switched off. The CPU
time of a move is that of the processes of the page in the browser, and of the server with its workers; the CPU time of
an answer is that of one worker alone, in this process. Both hardly depend on what else the machine does.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

MOVE = """(value) => new Promise((done) => {
  const slider = document.querySelector("[data-testid=learning-rate-slider]");
  const seen = new MutationObserver(() => {
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - began));
  });
  seen.observe(document.getElementById("risk-plot"), { attributes: true, attributeFilter: ["data-summary"] });
  const began = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
LONG = 120_000  # milliseconds
FIRST = 3  # moves that reach workers which have not compiled yet; after them the page waits for its own program


def used(of_page: bool) -> float:
    """CPU seconds of the processes of the page in the browser, or of the server with its workers."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_page = "--type=renderer" in words
            if is_page if of_page else any("twolayer" in word for word in words[:4]):
                total += sum(process.cpu_times()[:2])
    return total


def visit(link: str, moves: int, pause: float) -> dict[str, Any]:
    """What a visitor of a server that has just been started sees."""
    from playwright.sync_api import sync_playwright

    chromium = next(path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)))
    with sync_playwright() as library:
        browser = library.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(LONG)
        began = time.monotonic()
        page.goto(link)
        page.locator("#risk-plot[data-summary*=SaadSolla]").wait_for()
        first = time.monotonic() - began
        paint = page.evaluate(PAINT)
        page.locator("#auto").uncheck()
        page.locator("body[data-status=idle]").wait_for()
        times = []
        before = [0.0, 0.0]
        for number in range(moves):
            if number == FIRST:
                page.locator("body[data-engine]:not([data-engine=preparing])").wait_for()
                before = [used(of_page) for of_page in (True, False)]
            times.append(page.evaluate(MOVE, 300 + (37 * number) % 200))
            page.wait_for_timeout(1000 * pause)
        after = [used(of_page) for of_page in (True, False)]
        browser.close()
    times = sorted(times[FIRST:])
    return {
        "first paint ms": paint,
        "first curve s": first,
        "moves": len(times),
        "median ms": times[len(times) // 2],
        "95% ms": times[int(0.95 * len(times))],
        "longest ms": times[-1],
    } | {
        f"CPU ms a move, {name}": 1e3 * (end - start) / len(times)
        for name, start, end in zip(("page", "server"), before, after, strict=True)
    }


def cpu_of_an_answer(answers: int = 24) -> dict[str, Any]:
    """CPU milliseconds of one answer of the first theory, median and least, with its JSON."""
    from twolayer.explore.answers import answer
    from twolayer.explore.form import initial_spec

    spec, times = initial_spec(), []
    for number in range(answers):
        spec["training"]["learning_rate"] = 1.0 + 0.1 * number
        began = time.process_time()
        json.dumps(answer("theory", spec, {"description": "SaadSolla"}, lambda name, **data: None), allow_nan=False)
        times.append(1e3 * (time.process_time() - began))
    times = sorted(times[4:])
    return {"CPU ms an answer": times[len(times) // 2], "least CPU ms": times[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two moves")
    asked = parser.parse_args()
    from common import report

    command = [sys.executable, "-m", "twolayer", "explore", "--no-browser", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TWOLAYER_CACHE": folder}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                row = visit(process.stdout.readline().strip(), asked.moves, asked.pause)
            finally:
                process.terminate()
    report("explore_page", [row | {"load": os.getloadavg()[0]} | cpu_of_an_answer()])


if __name__ == "__main__":
    main()
