"""Live figures of the built site in Chromium: frames a second while they compute, and how long a figure takes.

    scripts/docs && python benchmarks/live_page.py

The figure computes at its own settings, in workers on all cores but one; frames are those that the browser gives the
page while it computes and draws, until the figure is done or for three seconds. Wall clock; the browser is an
installed Chromium, driven by Playwright.
"""

import shutil
from pathlib import Path
from typing import Any

from common import report

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
PAGES = ("index.html", "gallery/million-dimensions.html")
LONG = 300_000  # milliseconds
FRAMES = """() => new Promise((resolve) => {
    const figure = document.querySelector(".tl-live");
    const times = [];
    const frame = (now) => {
        times.push(now);
        const isOver = figure.dataset.state !== "running" || now - times[0] > 3000;
        if (isOver) resolve(times.slice(1).map((time, n) => time - times[n]));
        else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""
STATE = "(state) => document.querySelector('.tl-live').dataset.state === state"


def look(browser: Any, name: str) -> dict[str, Any]:
    """What a visitor of one page sees, after a second run has been asked for: nothing is compiled any more."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(LONG)
    page.goto((SITE / name).as_uri())
    figure = page.locator(".tl-live").first
    figure.scroll_into_view_if_needed()
    page.wait_for_function(STATE, arg="done")
    began = page.evaluate("performance.now()")
    figure.get_by_role("button", name="New runs").click()
    page.wait_for_function(STATE, arg="running")
    gaps = sorted(page.evaluate(FRAMES))
    page.wait_for_function(STATE, arg="done")
    seconds = (page.evaluate("performance.now()") - began) / 1000.0
    speed = float(figure.get_attribute("data-speed") or 0.0)
    cores = page.evaluate("navigator.hardwareConcurrency")
    page.close()
    return {
        "page": name,
        "cores": cores,
        "frames": len(gaps),
        "frames/s, median": 1000.0 / gaps[len(gaps) // 2] if gaps else float("nan"),
        "95% gap ms": gaps[int(0.95 * len(gaps))] if gaps else float("nan"),
        "steps/s": speed,
        "seconds": seconds,
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)))
    with sync_playwright() as library:
        browser = library.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        rows = [look(browser, name) for name in PAGES]
        browser.close()
    report("live_page", rows)


if __name__ == "__main__":
    main()
