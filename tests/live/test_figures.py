"""Live figures in Chromium: they compute, answer to their knobs, judge what they show, and give way to printed ones."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from tests.live.conftest import FOLDER
from twolayer.data.deviation import OUTCOMES, judge_description, sharing, threshold
from twolayer.live import live_program

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")

pytestmark = pytest.mark.slow
LONG = 60_000  # milliseconds; the machine may be busy with other tests
SETTINGS = {
    "title": "Phase retrieval",
    "program": "small",
    "address": "small.js",
    "until": 2.0,
    "points": 40,
    "replicas": 12,
    "allowed": 7.0,
    "x": {"quantity": "time", "label": "time", "short": "time"},
    "y": {"quantity": "excess_risk", "label": "excess risk", "scale": "log"},
    "knobs": [
        {"name": "learning_rate", "label": "learning rate", "low": 0.01, "high": 0.2, "value": 0.05, "scale": "log"},
        {"name": "d", "label": "dimension", "values": [100, 1000], "value": 1000},
    ],
}


def made_site(folder: Path, start) -> Path:
    """A folder with the files of a page on which there is one figure, and the printed one after it."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000), start=start)
    program = live_program(problem, tl.SGD(0.05, constraint=tl.Sphere()), (100, 1000), replicas=12)
    (folder / "small.js").write_text(program.script("small"))
    for name in ("engine.js", "figure.js", "figure.css"):
        shutil.copyfile(FOLDER / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return made_site(tmp_path_factory.mktemp("site"), tl.WarmStart(0.7))


@pytest.fixture(scope="module")
def random_site(tmp_path_factory):
    return made_site(tmp_path_factory.mktemp("random_site"), tl.RandomStart())


@pytest.fixture
def page(browser):
    page = browser.new_page()
    yield page
    page.close()


def opened(page, site: Path, **others):
    """The figure of a page that is shown, and the errors that the page reports."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    settings = json.dumps(SETTINGS | others)
    text = f"""<!DOCTYPE html><html lang="en"><meta charset="utf-8"><link rel="stylesheet" href="figure.css">
        <div class="tl-live" data-state="absent"><script type="application/json">{settings}</script>
        <p class="tl-fallback">no figure</p></div><div class="tl-printed">printed</div>
        <script src="engine.js"></script><script src="figure.js"></script></html>"""
    (site / "page.html").write_text(text)
    page.goto((site / "page.html").as_uri())
    return page.locator(".tl-live"), errors


def done(figure, since=""):
    """Wait until a run that says something else than before is done, and return what the figure says."""
    playwright.expect(figure).to_have_attribute("data-state", "done", timeout=LONG)
    playwright.expect(figure.locator(".tl-status")).not_to_have_text(since, timeout=LONG)
    return figure.locator(".tl-status").inner_text()


def test_a_figure_answers_to_its_knobs_and_is_reset(page, site):
    figure, errors = opened(page, site, note="What to see.")
    first = done(figure)
    playwright.expect(figure.get_by_text("What to see.")).to_be_visible()
    assert figure.get_attribute("data-verdict") == "agrees" and first.startswith("SGD agrees with the theory: ")
    assert "12 runs of 4·10⁴ steps." in first
    playwright.expect(page.locator(".tl-printed")).to_be_hidden()
    rate, dimension = figure.locator("input").all()
    dimension.press("ArrowLeft")
    assert "12 runs of 4000 steps." in (second := done(figure, first))
    rate.press("End")
    assert "12 runs of 1000 steps." in (third := done(figure, second))
    figure.get_by_role("button", name="Reset").click()
    assert done(figure, third) == first.replace("\xa0", " ")
    figure.get_by_role("button", name="New runs").click()
    assert done(figure, first) != first
    assert not errors


def test_the_printed_figure_stays_until_the_first_numbers(page, site):
    waiting = []
    page.route("**/small.js", lambda route: waiting.append(route))
    figure, _ = opened(page, site)
    playwright.expect(figure).to_have_attribute("data-state", "idle")
    page.wait_for_timeout(200)
    assert len(waiting) == 1 and page.locator(".tl-printed").is_visible() and not figure.locator("canvas").is_visible()
    waiting[0].continue_()
    playwright.expect(page.locator(".tl-printed")).to_be_hidden(timeout=LONG)
    playwright.expect(figure.locator("canvas")).to_be_visible()


def test_a_figure_sees_a_theory_that_is_wrong(page, site):
    """The runs are compared with the equations at three quarters of their learning rate."""
    engine = (site / "engine.js").read_text()
    changed = engine.replace("new Theory(module, manifest, { ...ask,", "new Theory(module, manifest, { ...wrong(ask),")
    assert changed != engine
    wrong = "const wrong = (ask) => ({ ...ask, settings: { ...ask.settings, learning_rate: 0.0375 } });\n"
    changed = changed.replace("  /** Answer the messages of a page;", f"  {wrong}  /** Answer the messages of a page;")
    (site / "engine.js").write_text(changed)
    try:
        figure, _ = opened(page, site)
        assert done(figure).startswith("SGD differs from the theory: ")
        assert figure.get_attribute("data-verdict") == "differs"
    finally:
        (site / "engine.js").write_text(engine)


def cases():
    """Runs around a theory, with one bias at the end of each, such that all words occur."""
    random = np.random.default_rng(0)
    times = np.linspace(0.0, 1.0, 21)
    for runs, scatter, bias in itertools.product((2, 12, 256), (0.001, 0.03, 0.3, 2.0), (0.0, 0.02, 0.2, 1.0)):
        noise = scatter * times * random.standard_normal((runs, 1)) + 1e-3 * random.standard_normal((runs, 21))
        yield 1.0 - 0.5 * times + bias * times**2 + noise * (times > 0), (1.0 - 0.5 * times)[None]
    yield np.ones((4, 21)), np.ones((1, 21))
    yield np.ones((1, 21)), np.zeros((1, 21))
    yield np.full((4, 21), np.nan), np.ones((1, 21))


def judged(runs, theory):
    """The word of the package for one quantity, and the largest deviation in standard errors."""

    def dataset(values):
        risk = ("replica", "time"), values
        errors = {f"{name}_error": (("replica", "time"), np.zeros_like(values)) for name in ("risk", "overlap")}
        return xr.Dataset({"risk": risk, **errors}, coords={"time": np.linspace(0.0, 1.0, values.shape[1])})

    finding, _ = judge_description("SGD", "theory", dataset(runs), dataset(theory), "1", 100)
    return finding.outcome, finding.largest_z


def test_a_verdict_has_the_words_and_the_rule_of_the_package(page):
    page.add_script_tag(content=(FOLDER / "figure.js").read_text())
    assert page.evaluate("twolayerLive.OUTCOMES") == OUTCOMES
    found = []
    for runs, theory in cases():
        limit = threshold(len(runs), runs.shape[1] - 1, sharing(runs.shape[1]))
        texts = [json.dumps(np.where(np.isfinite(x), x, None).tolist()) for x in (runs, theory)]
        script = "([a, b, c]) => twolayerLive.judge(JSON.parse(a), JSON.parse(b), c)"
        theirs = page.evaluate(script, [*texts, limit])
        outcome, z = judged(runs, theory)
        assert theirs["outcome"] == outcome
        assert theirs["errors"] == pytest.approx(z, rel=1e-9)
        found.append(outcome)
    assert set(found) == set(OUTCOMES)


def test_a_page_computes_nothing_itself(page, site):
    """All work is in workers, so that the page has its thread for drawing: here it has no module and no instance.

    How many frames a second it draws is measured by `benchmarks/live_page.py`.
    """
    parts = ["Module", "Instance", "compile", "instantiate"]
    page.add_init_script(f"for (const part of {parts}) delete WebAssembly[part];")
    figure, errors = opened(page, site)
    assert done(figure).startswith("SGD agrees with the theory: ") and not errors


@pytest.mark.parametrize("start", ["one start", "random starts"])
def test_numbers_do_not_depend_on_the_number_of_workers(browser, random_site, site, start):
    """Replicas are divided among the cores but one, each with its own start and random numbers."""
    said = []
    for cores in (1, 2, 6):
        page = browser.new_page()
        page.add_init_script(f"Object.defineProperty(navigator, 'hardwareConcurrency', {{ value: {cores} }})")
        started: list[str] = []
        page.on("worker", lambda worker, started=started: started.append(worker.url))
        figure, errors = opened(page, site if start == "one start" else random_site)
        said.append(done(figure))
        assert len(started) == max(1, cores - 1) and not errors
        page.close()
    assert said[0] == said[1] == said[2]


def test_a_number_below_the_tolerance_of_the_theory_is_not_told(page, site):
    figure, _ = opened(page, site, until=20.0)
    assert "At time 20: excess risk below 10⁻⁶, theory too." in done(figure)


def test_without_webassembly_the_printed_figure_is_shown(page, site):
    page.add_init_script("delete window.WebAssembly")
    figure, errors = opened(page, site)
    playwright.expect(figure.locator(".tl-fallback")).to_be_visible()
    playwright.expect(page.locator(".tl-printed")).to_be_visible()
    assert not errors


def test_pages_with_live_figures_stay_light(monkeypatch):
    """Scripts and program of every figure of the site, as the build makes and keeps them, have less than 150 kB."""
    pytest.importorskip("docutils", reason="the site is not built here: pip install twolayer[docs]")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    figures = __import__("live_figures")
    scripts = sum((FOLDER / name).stat().st_size for name in ("engine.js", "figure.js", "figure.css"))
    sizes = {name: scripts + len(figures.program(name)) for name in figures.FIGURES}
    assert {name: size for name, size in sizes.items() if not scripts < size < 150_000} == {}
