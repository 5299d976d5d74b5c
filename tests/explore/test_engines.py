"""The browser as the second engine of the page: the same numbers as the server, without its questions."""

import json
from pathlib import Path

import numpy as np
import pytest

import twolayer as tl
from tests.explore.served import SMALL
from tests.explore.windows import MARKS, expect
from twolayer import explore
from twolayer.experiment import from_tables
from twolayer.explore.browser import RUNS

pytestmark = MARKS

ERF = {
    "problem": {
        "target": {"kind": "Committee", "k": 2, "activation": "erf"},
        "student": {"p": 2, "activation": "erf"},
        "inputs": {"kind": "Gaussian", "d": 200},
        "noise": 0.01,
    },
    "training": {"learning_rate": 0.6, "layers": {"kind": "Both", "ratio": 0.5}},
    "run": {"descriptions": ["OverlapSGD", "SaadSolla"], "until": 3.0, "save": 9, "replicas": 5, "seed": 2},
}
# Ask both engines about a specification whose numbers are others than those that the program was made with.
BOTH = """async ([made, asked]) => {
    const { Browser, Server } = await import("./static/engines.js");
    const [browser, server] = [new Browser(), new Server()];
    await browser.prepare(made);
    const found = { state: document.body.dataset.engine };
    for (const [name, engine] of [["browser", browser], ["server", server]]) {
        const theory = await engine.theory(asked, { description: "SaadSolla", slot: "t" });
        const runs = await engine.runs(asked, { description: "OverlapSGD", slot: "r" });
        found[name] = [theory?.curves[0], runs?.curves[0]];
    }
    return found;
}"""


def changed(spec, rate, noise):
    other = json.loads(json.dumps(spec))
    other["training"]["learning_rate"], other["problem"]["noise"] = rate, noise
    return other


@pytest.mark.parametrize("spec", [SMALL, ERF], ids=["phase retrieval", "erf, both layers"])
def test_both_engines_find_the_same_curves(window, spec):
    visit = window()
    found = visit.page.evaluate(BOTH, [spec, changed(spec, 0.8 * spec["training"]["learning_rate"], 0.05)])
    assert found["state"] == "browser"
    for here, there in zip(found["browser"], found["server"], strict=True):
        assert here.keys() >= there.keys() - {"statement"}  # which says the numbers of one learning rate
        for name in ("time", "samples", "excess_risk", "risk", "low", "high", "runs", "Q", "M", "a", "P"):
            if there[name] is None:
                assert here[name] is None
                continue
            # Random numbers are drawn in single precision, and native code rounds products and sums at once.
            np.testing.assert_allclose(here[name], there[name], rtol=2e-5, atol=1e-6, err_msg=name)
        for name in ("name", "kind", "replicas", "status"):
            assert here[name] == there[name], name


def test_the_error_of_a_theory_stays_when_the_browser_computes_it(window):
    """The bound of the browser holds against a solution with tolerances of a thousandth and less."""
    asked = changed(ERF, 0.5, 0.05)
    visit = window()
    found = visit.page.evaluate(BOTH, [ERF, asked])
    here, there = (found[name][0] for name in ("browser", "server"))
    spec = from_tables(asked)
    precise = (
        tl.evolve(spec.problem, spec.training, tl.SaadSolla(rtol=1e-12, atol=1e-14), spec.ask).excess_risk[0].values
    )
    gap, error = np.abs(here["excess_risk"] - precise), np.array(here["error"])
    assert np.all(gap <= error + 1e-15) and 1e-12 < error.max() < 1e-4
    assert np.all(np.diff(error) >= 0.0) and here["errorOf"] == ""
    assert len(there["error"]) == len(error) and max(there["error"]) < error.max()  # its tolerance is smaller


def test_a_bound_that_leaves_averages_out_says_so(window):
    """Averages of a hyperbolic tangent are sums over points, whose error the server knows."""
    spec = json.loads(json.dumps(SMALL))
    spec["problem"]["target"] = {"kind": "SingleIndex", "link": "tanh"}
    spec["problem"]["student"]["activation"] = "tanh"
    spec["problem"]["start"] = {"kind": "WarmStart", "m": 0.3}
    visit = window()
    theory, _ = visit.page.evaluate(BOTH, [spec, changed(spec, 0.05, 0.05)])["browser"]
    assert theory["errorOf"] == "the integration alone" and max(theory["error"]) > 0.0


def test_the_page_on_the_explorer_states_the_limits_of_the_browser():
    page = (Path(__file__).parents[2] / "docs" / "explorer.md").read_text()
    static = (Path(explore.__file__).parent / "static" / "engines.js").read_text()
    assert "MOST_STEPS = 1e8;" in static and "10⁸ steps at most" in page
    assert f"up to eight neurons and {RUNS} runs" in page


def test_what_no_browser_follows_is_left_to_the_server(window):
    spec = json.loads(json.dumps(SMALL))
    spec["training"]["batch_size"] = 3
    found = window().page.evaluate(BOTH, [spec, changed(spec, 0.05, 0.05)])
    assert "one sample a step" in found["state"] and found["browser"] == [None, None]
    assert found["server"][0]["name"] == "SaadSolla"


def test_while_the_rate_moves_the_server_is_not_asked_for_theories(window):
    visit = window().settle()
    visit.part("learning-rate").fill("0.09")
    visit.settle()
    expect(visit.page.locator("body")).to_have_attribute("data-engine", "browser")
    asked = []
    visit.page.on(
        "request", lambda request: asked.append(request.post_data_json["kind"]) if "work" in request.url else 0
    )
    shown = []
    for _ in range(6):
        before = visit.part("risk-plot").get_attribute("data-summary")
        visit.part("learning-rate-slider").press("ArrowLeft")
        expect(visit.part("risk-plot")).not_to_have_attribute("data-summary", before)
        shown.append(visit.curves["SaadSolla"]["last"])
    assert "theory" not in asked
    assert len(set(shown)) == 6
    assert visit.settle().curves["OverlapSGD"]["last"] > 0.0 and "compare" in asked


def test_no_range_of_a_logarithmic_axis_stops_the_page(window):
    """Ticks of axes whose lower end is just below a power of ten never came to an end."""
    drawn = window().page.evaluate("""async () => {
        const { Plot } = await import("./static/plots.js");
        const plot = new Plot(document.getElementById("risk-plot"), { onCursor() {}, onZoom() {}, height: () => 300 });
        let count = 0;
        for (let low = 0.9; low < 1.5; low += 0.01) {
            const line = { name: "a", title: "a", x: [0, 1], y: [low * 1e-3, 2], colour: "#000", width: 1, dash: [] };
            plot.draw([line], { xLog: false, yLog: true, xLabel: "x", zoom: null, fromZero: true });
            await new Promise(requestAnimationFrame);
            count += 1;
        }
        return count;
    }""")
    assert drawn == 60


# Let a number of a specification move several times, and wait each time for the answer about its program.
LOOKED_AT = """async (spec) => {
    const { Engines } = await import("./static/engines.js");
    const engines = new Engines();
    for (const rate of [0.05, 0.06, 0.07, 0.08]) {
        engines.look({ ...spec, training: { ...spec.training, learning_rate: rate } });
        while (document.body.dataset.engine === "preparing") await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return document.body.dataset.engine;
}"""


def test_a_refused_program_is_asked_for_once_and_a_lost_one_again(window):
    spec = json.loads(json.dumps(SMALL))
    spec["training"]["batch_size"] = 3
    page, asked = window().settle().page, []
    page.on("request", lambda one: asked.append(one.post_data_json["kind"]) if one.url.endswith("/work") else None)
    assert "one sample a step" in page.evaluate(LOOKED_AT, spec)
    assert asked.count("program") == 1
    asked.clear()
    page.route("**/api/work", lambda route: route.abort())
    assert "does not answer" in page.evaluate(LOOKED_AT, spec)
    assert asked.count("program") == 3


def test_runs_that_are_replaced_or_stopped_come_to_an_end(window):
    spec = json.loads(json.dumps(SMALL))
    spec["run"]["until"] = 400.0
    found = window().page.evaluate(
        """async (spec) => {
        const { Browser } = await import("./static/engines.js");
        const browser = new Browser();
        await browser.prepare(spec);
        const stops = [0, 1, 2].map(() => new AbortController());
        const runs = stops.map(({ signal }) => browser.runs(spec, { description: "OverlapSGD" }, { signal }));
        stops[1].abort();  // which does not stop the last one
        const late = new Promise((resolve) => setTimeout(() => resolve("never"), 30000));
        const ends = runs.map((run) => Promise.race([
            run.then((answer) => answer?.curves[0].time.at(-1) ?? null, ({ name }) => name), late,
        ]));
        const first = await ends[0];
        stops[0].abort();
        return [first, await ends[1], await ends[2], browser.waiting.size];
    }""",
        spec,
    )
    assert found[:2] == [None, "AbortError"]
    assert found[2] == pytest.approx(400.0, rel=1e-3)
    assert found[3] == 0


def test_programs_that_are_loaded_at_once_are_not_mixed(window):
    found = window().page.evaluate(
        """async ([one, other]) => {
        const { work } = await import("./static/api.js");
        const { Browser } = await import("./static/engines.js");
        const programs = [];
        for (const spec of [other, one]) programs.push(await work("program", spec, { slot: "program" }));
        const worker = new Worker("static/engine-worker.js");
        const [{ times }, answers] = [programs[1], []];
        const end = new Promise((resolve) => {
            worker.onmessage = ({ data }) => { answers.push([data.kind, data.id]); if (data.id === 3) resolve(data); };
        });
        programs.forEach((program, n) => worker.postMessage({ kind: "load", id: n + 1, ...program }));
        worker.postMessage({ kind: "solve", id: 3, settings: {}, times });
        const { width, rows } = await end;
        const browser = new Browser();
        await Promise.all([one, other, one].map((spec) => browser.prepare(spec)));
        const { curves: [curve] } = await browser.theory(one, { description: "SaadSolla" });
        const risk = Array.from({ length: times.length }, (_, n) => rows[n * width + 3]);
        const ready = answers.filter(([kind]) => kind === "ready").map(([, id]) => id);
        return [ready.sort(), width, risk, curve.excess_risk];
    }""",
        [SMALL, ERF],
    )
    assert found[:2] == [[1, 2], 6]  # Q, M, a, both risks and the alignment of one unit
    assert found[2] == found[3]


def test_a_zoom_of_a_link_is_two_finite_numbers_or_none(window):
    zooms = [[1.0, 2.5], None, "ab", [1.0], [1.0, "2"], [1.0, None], [1, 2, 3], {"0": 1, "1": 2}]
    found = window().page.evaluate(
        """async (zooms) => {
        const { encode, fromAddress } = await import("./static/state.js");
        return zooms.map((zoom) => {
            history.replaceState(null, "", `#${encode({ v: 1, spec: {}, view: { zoom } })}`);
            return fromAddress().view.zoom;
        });
    }""",
        zooms,
    )
    assert found == [[1.0, 2.5]] + [None] * 7
