"""The page of the explorer in a browser: what one sees, what one can do, and what happens when something goes wrong.

The browser is an installed Chromium, which Playwright drives. Without one the tests are skipped, and say so.
"""

import json
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

import twolayer as tl
from tests.explore.served import SMALL, served
from tests.explore.windows import LONG, MARKS, expect
from twolayer.experiment import from_tables

TOKEN = "a1b2c3d4e5f6g7h8"
pytestmark = MARKS


# -------------------------------------------------------------------------------------------- the first visit


def test_the_first_visit_is_light_and_survives_a_restart(window, tmp_path, record_property):
    with served(tmp_path, spec=None, TWOLAYER_EXPLORE_TOKEN=TOKEN) as first:
        start = time.monotonic()
        visit = window(first.link)
        expect(visit.part("risk-plot")).to_have_attribute("data-summary", re.compile("SaadSolla"))
        curve = time.monotonic() - start
        paint, weight = visit.page.evaluate(
            """() => [performance.getEntriesByName("first-contentful-paint")[0].startTime,
            [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")]
            .filter((item) => !item.name.includes("/api/")).reduce((sum, item) => sum + item.encodedBodySize, 0)]"""
        )
        # Times are recorded and not asserted: `benchmarks/explore_page.py` measures them.
        for name, value in (("first_curve_s", curve), ("first_paint_s", paint / 1000), ("weight_bytes", weight)):
            record_property(name, value)
        assert 100_000 < weight < 600_000
        assert all(url.startswith(first.link.partition("/?")[0]) for url in visit.requests)
        before = visit.settle().curves
        port = first.port
        first.process.send_signal(signal.SIGKILL)
        for worker in first.workers:
            worker.kill()
        first.process.wait()
        expect(visit.part("message")).to_contain_text("does not answer")  # although nobody touched it
    with served(tmp_path, "--port", str(port), spec=None, TWOLAYER_EXPLORE_TOKEN=TOKEN):
        expect(visit.part("message")).to_be_hidden()
        assert visit.settle().curves == before


def test_curves_are_those_of_the_package(window, server):
    visit = window().settle()
    asked = server.ask("compare").data
    by_name = {curve["name"]: curve for curve in asked["curves"]}
    assert visit.curves.keys() == by_name.keys() == {"OverlapSGD", "SaadSolla"}
    for name, curve in visit.curves.items():
        assert curve == {"name": name, "points": 12, "last": by_name[name]["excess_risk"][-1]}
    spec = from_tables(SMALL)
    limit = tl.evolve(spec.problem, spec.training, "SaadSolla", spec.ask)
    assert visit.curves["SaadSolla"]["last"] == pytest.approx(float(limit.excess_risk[:, -1].mean()), rel=1e-6)
    expect(visit.part("verdict")).to_contain_text(asked["verdict"]["outcome"])
    expect(visit.part("explain")).to_contain_text("the law of SGD at any d", ignore_case=True)
    expect(visit.part("learn-card")).to_contain_text("information exponent")


# ------------------------------------------------------------------------------------------------- the controls


def test_each_control_changes_the_specification(window, server):
    groups = json.loads(server.request("GET", "/api/form").read())["groups"]
    controls = [control for group in groups for control in group["controls"]]
    visit = window()
    visit.answered_by_nobody()
    visit.unfold()
    changed = []
    for control in sorted(controls, key=lambda control: control["kind"] == "object"):
        if control["shown_when"]:
            _show(visit, controls, control["shown_when"])
        if control["kind"] == "formula":
            continue  # checked by the server: see below
        element = visit.part(control["testid"])
        expect(element).to_be_visible()
        expected = _change(element, control, visit.stated(control["path"]))
        stated = visit.stated(control["path"])
        assert (stated if not isinstance(stated, dict) else stated["kind"]) == expected, control["id"]
        changed.append(control["id"])
    assert len(changed) == len(controls) - 1 > 20


def _show(visit, controls, when):
    """Choose what makes a control visible."""
    other = next(control for control in controls if control["path"] == when["path"])
    visit.unfold()  # a page that has just begun folds groups as its link says
    visit.part(other["testid"]).select_option(next(kind for kind in when["in"] if kind is not None))


def _change(element, control, stated):
    """Set a control to another value than the one it has, and return that."""
    kind, low = control["kind"], control["low"]
    if kind in ("choice", "object"):
        now = element.input_value()
        choice = next(choice for choice in control["choices"] if str(choice["value"]) != now)
        element.select_option(str(choice["value"]))
        is_table = kind == "choice" or isinstance(choice["table"], dict)
        return choice["value"] if is_table else choice["table"]
    if kind == "matrix":
        element.fill("[[1, 0.5], [0.5, 1]]")
        element.blur()
        return [[1, 0.5], [0.5, 1]]
    value = {"integer": 5, "log-integer": 2000, "log": 1.25, "number": 0.125}[kind]
    assert value not in (stated, low)
    element.fill(str(value))
    element.blur()
    return value


def test_sliders_move_by_keys_and_numbers_may_be_written_as_powers(window):
    visit = window()
    visit.answered_by_nobody()
    visit.part("dimension").fill("10^6")
    assert visit.stated("problem.inputs.d") == 10**6
    slider = visit.part("learning-rate-slider")
    slider.press("ArrowRight")
    assert visit.stated("training.learning_rate") > 0.1
    visit.part("learning-rate").press("ArrowUp")
    assert visit.stated("training.learning_rate") == 0.2


def test_a_wrong_formula_shows_where_it_is_wrong(window):
    visit = window().settle()
    before = visit.curves
    visit.part("formula").fill("z1**2 + z1*qq")
    expect(visit.part("message")).to_contain_text("qq")
    expect(visit.part("message")).to_contain_text("character 12")
    expect(visit.part("formula")).to_have_attribute("aria-invalid", "true")
    expect(visit.page.locator(".caret mark")).to_have_text("qq")
    assert visit.curves == before
    assert visit.stated("problem.target.kind") == "PhaseRetrieval"
    visit.part("formula").fill("z1**2 + 0.5*z1")
    expect(visit.part("message")).to_be_hidden()
    expect(visit.part("formula")).to_have_attribute("aria-invalid", "false")
    visit.settle()
    assert visit.stated("problem.target.function") == "z1**2 + 0.5*z1"
    assert visit.page.title() == "One square neuron learns z1**2 + 0.5*z1 · twolayer explorer"
    assert visit.curves["SaadSolla"]["last"] != before["SaadSolla"]["last"]


def test_a_number_that_is_not_allowed_says_what_is(window):
    visit = window().settle()
    for value, words in (("-1", "above 0, but is -1"), ("many", "but is 'many'")):
        visit.part("learning-rate").fill(value)
        expect(visit.part("message")).to_contain_text(words)
        expect(visit.part("learning-rate")).to_have_attribute("aria-invalid", "true")
    visit.part("learning-rate").fill("0.1")
    expect(visit.part("message")).to_be_hidden()
    expect(visit.part("learning-rate")).to_have_attribute("aria-invalid", "false")


def test_what_does_not_apply_says_why_and_the_rest_is_drawn(window):
    visit = window().settle()
    visit.part("run-DMFT").check()
    expect(visit.part("message")).to_contain_text("batches that grow with d")
    expect(visit.page.locator("#why-DMFT")).to_contain_text("Does not apply: it needs batches")
    assert visit.settle().curves.keys() == {"SaadSolla", "OverlapSGD"}
    expect(visit.page.locator("#verdict .verdict-word")).to_be_visible()  # of the theory that applies
    visit.page.locator("#equations > summary").click()
    expect(visit.page.locator("#equations .katex").first).to_be_visible()
    visit.page.locator("#escape > summary").click()
    expect(visit.page.locator("#escape table")).to_contain_text("ODE")
    before = visit.page.locator("#escape table").inner_text()
    visit.part("threshold").fill("0.5")
    visit.part("threshold").blur()
    expect(visit.page.locator("#escape .body")).to_contain_text("0.5")
    assert visit.page.locator("#escape table").inner_text() != before
    assert visit.state["view"]["threshold"] == 0.5


def test_a_divergence_is_said_in_one_sentence(window):
    visit = window().settle()
    visit.part("constraint").select_option("Free")
    visit.part("learning-rate").fill("60")
    expect(visit.part("message")).to_contain_text("diverge", ignore_case=True)
    visit.part("learning-rate").fill("0.1")
    expect(visit.part("message")).to_be_hidden()
    assert visit.settle().curves["SaadSolla"]["last"] > 0


# ------------------------------------------------------------------------------------------------------ the plots


def test_plots_answer_to_the_pointer_and_to_time(window):
    visit = window().settle()
    values = visit.page.locator("#risk-legend .value")
    at_the_end = values.all_inner_texts()
    box = visit.page.locator("#risk-plot .u-over").bounding_box()
    visit.page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + box["height"] / 2)
    expect(values.first).not_to_have_text(at_the_end[0])
    visit.drag(0.2, 0.6)
    expect(visit.page.locator("#unzoom")).to_be_visible()
    low, high = visit.state["view"]["zoom"]
    assert low == pytest.approx(0.8, abs=0.05) and high == pytest.approx(2.4, abs=0.05)
    visit.page.locator("#unzoom").click()
    expect(visit.page.locator("#unzoom")).to_be_hidden()
    ball = visit.page.locator("#plane .ball")
    at_the_end = ball.get_attribute("cx")
    visit.part("time").fill("0")
    assert float(ball.get_attribute("cx")) != float(at_the_end)
    expect(visit.page.locator("#time-value")).to_have_text("t = 0")
    visit.page.locator("#play").click()
    expect(visit.page.locator("#play")).to_have_attribute("aria-label", "Pause")
    expect(visit.part("time")).not_to_have_value("0")


def test_a_link_shows_the_same_picture_in_another_browser(window):
    first = window().settle()
    first.page.locator("#pin").click()
    first.page.get_by_text("samples / d", exact=True).first.click()
    first.page.locator("#y-scale").get_by_text("linear").click()
    first.page.locator("#overlap-kind").get_by_text("Q", exact=True).click()
    first.part("time").fill("300")
    first.drag(0.2, 0.6)
    first.part("learning-rate").fill("0.07")
    first.part("learning-rate-slider").press("ArrowRight")
    first.settle()
    view = first.state["view"]
    assert (view["x"], view["yScale"], view["overlaps"], view["at"]) == ("ratio", "linear", "Q", 0.3)
    zoom = view["zoom"]  # a slider leaves it
    assert zoom[1] > 2 * zoom[0] > 0
    assert first.curves.keys() == {"OverlapSGD", "SaadSolla", "A: SaadSolla"}
    second = window(first.part("share-link").get_attribute("href")).settle()
    assert second.state == first.state
    assert second.curves.keys() == first.curves.keys()
    for name in ("OverlapSGD", "SaadSolla"):
        assert second.curves[name] == first.curves[name]
    assert second.state["view"]["zoom"] == zoom
    expect(second.page.locator("#unzoom")).to_be_visible()
    expect(second.page.locator("#time-value")).to_have_text(first.page.locator("#time-value").inner_text())
    assert second.page.locator("#x-unit input:checked").input_value() == "ratio"
    assert second.part("risk-plot").get_attribute("aria-label") == first.part("risk-plot").get_attribute("aria-label")


def test_a_zoom_ends_with_the_axis_it_was_made_on(window):
    visit = window().settle()
    for end in (lambda: visit.part("until").fill("3"), lambda: visit.page.locator("#reset").click()):
        visit.drag(0.2, 0.6)
        expect(visit.page.locator("#unzoom")).to_be_visible()
        end()
        expect(visit.page.locator("#unzoom")).to_be_hidden()
        visit.settle()


def test_a_link_can_be_copied_where_browsers_allow_no_clipboard(window):
    visit = window()
    visit.answered_by_nobody()
    visit.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    visit.part("share-link").click()
    field = visit.page.get_by_label("copy the link yourself")
    expect(field).to_be_focused()
    assert field.input_value() == visit.part("share-link").get_attribute("href")
    assert visit.page.evaluate("getSelection().toString()") == field.input_value()
    visit.part("formula").focus()
    expect(field).to_be_hidden()


def test_a_schedule_says_that_no_control_changes_it(window):
    visit = window()
    visit.answered_by_nobody()
    visit.part("preset").select_option("staircase")
    visit.unfold()
    expect(visit.page.locator("[data-reason=training]")).to_contain_text("a schedule of 2 phases")
    expect(visit.part("learning-rate")).to_be_hidden()
    expect(visit.page.locator("#lead")).to_contain_text("schedule of 2 phases")
    assert visit.stated("training").keys() == {"switches", "phases"}
    visit.page.locator("#pin").click()
    visit.part("preset").select_option("first")
    expect(visit.part("learning-rate")).to_be_visible()
    expect(visit.page.locator("#pins")).to_contain_text("schedule of 2 phases")


def test_a_link_that_cannot_be_read_shows_the_first_example(window, server):
    visit = window(server.link + "#bm9uc2Vuc2U").settle()
    assert visit.curves.keys() == {"OverlapSGD", "SaadSolla"}


def test_two_windows_do_not_disturb_each_other(window):
    one, two = window(), window()
    one.part("learning-rate").fill("0.05")
    two.part("learning-rate").fill("0.12")
    one.settle()
    two.settle()
    assert one.stated("training.learning_rate") == 0.05
    assert two.stated("training.learning_rate") == 0.12
    assert one.curves["SaadSolla"]["last"] != two.curves["SaadSolla"]["last"]


@pytest.mark.parametrize("width", [1400, 390])
def test_what_the_contract_names_is_visible_without_opening_anything(window, width):
    visit = window(viewport={"width": width, "height": 844})
    visit.answered_by_nobody()
    names = ["share-link", *(f"download-{name}" for name in ("toml", "script", "figure"))]
    names += ["risk-plot", "overlap-plot", "verdict", "explain", "learn-card"]
    for name in names:
        expect(visit.part(name)).to_be_visible()
        assert visit.page.evaluate("item => item.closest('details')", visit.part(name).element_handle()) is None


def test_downloads_open(window, tmp_path):
    visit = window().settle()
    files = {}
    choices = [
        ("toml", None),
        ("script", None),
        ("netcdf", None),
        *(("figure", form) for form in ("png", "svg", "pdf")),
    ]
    for name, form_of_figure in choices:
        if form_of_figure:
            visit.page.get_by_label(form_of_figure.upper(), exact=True).check()
        with visit.page.expect_download(timeout=LONG) as waiting:
            visit.part(f"download-{name}").click()
        files[form_of_figure or name] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[form_of_figure or name])
    spec = from_tables(tomllib.loads(files["toml"].read_text()))
    assert spec.training.learning_rate == 0.1
    compile(files["script"].read_text(), "script.py", "exec")
    assert files["pdf"].read_bytes().startswith(b"%PDF")
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files["svg"].read_bytes()[:1000]
    last = float(tl.load(files["netcdf"])["SaadSolla"].excess_risk[:, -1].mean())
    assert last == pytest.approx(visit.curves["SaadSolla"]["last"], rel=1e-12)


# --------------------------------------------------------------------------------------------------- for everybody


def test_a_phone_shows_everything_without_scrolling_sideways(window):
    visit = window(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).settle()
    visit.unfold()
    for card in ("equations", "escape"):
        visit.page.locator(f"#{card} > summary").click()
    visit.settle()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    outside = visit.page.evaluate(
        """() => [...document.querySelectorAll("main *, aside *, header *")]
        .filter((item) => !item.closest(".scroll, .formulas, svg, .katex, select") && item.getClientRects().length)
        .filter((item) => item.getBoundingClientRect().right > 391).map((item) => item.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_everything_works_by_keyboard_alone(window):
    visit = window().settle()
    press = visit.page.keyboard.press
    reached = []
    for _ in range(120):
        press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.id || document.activeElement.dataset.testid || ''"))
        if reached[-1] == "learning-rate":
            break
    assert {"share-link", "preset", "formula", "width", "dimension", "learning-rate"} <= {*reached}
    outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press("ArrowUp")
    assert visit.stated("training.learning_rate") == 0.2
    visit.settle()
    visit.page.locator("#to-downloads").focus()
    press("Enter")
    reached = [visit.page.evaluate("document.activeElement.value")]
    for _ in range(5):
        press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.dataset.testid || document.activeElement.value"))
    assert reached == ["risk", "png", "download-figure", "download-script", "download-toml", "download-netcdf"]
    with visit.page.expect_download(timeout=LONG) as waiting:
        visit.part("download-toml").press("Enter")
    assert waiting.value.suggested_filename.endswith(".toml")
    visit.part("time").focus()
    press("Home")
    expect(visit.page.locator("#time-value")).to_have_text("t = 0")


def test_colours_follow_the_system_and_the_switch(window):
    visit = window(color_scheme="dark", reduced_motion="reduce")
    root = visit.page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    visit.page.locator("#theme").click()
    expect(root).to_have_attribute("data-theme", "light")
    visit.page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    assert visit.page.evaluate("getComputedStyle(document.querySelector('.dot')).animationName") == "none"


ACCESSIBLE = (Path(__file__).parent / "accessible.js").read_text()
NAMED = {
    "button",
    "checkbox",
    "combobox",
    "link",
    "radio",
    "slider",
    "textbox",
    "img",
    "radiogroup",
    "region",
    "dialog",
}


def unnamed(page):
    """What a screen reader finds without a name, as the browser itself computes names, and how much it finds."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"].lower() in NAMED]
    return [node["role"]["value"] for node in seen if not node.get("name", {}).get("value", "").strip()], len(seen)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 1400), ("light", 390)])
def test_names_references_and_contrast(window, scheme, width):
    visit = window(color_scheme=scheme, viewport={"width": width, "height": 900}).settle()
    visit.unfold()
    visit.part("formula").fill("z1 + q")
    expect(visit.part("message")).to_be_visible()
    visit.page.locator("#pin").click()
    found = visit.page.evaluate(ACCESSIBLE)
    assert found["problems"] == [] and found["texts"] > 200
    nameless, number = unnamed(visit.page)
    assert nameless == [] and number > 50
    # The checks see what is wrong.
    visit.page.evaluate("""() => {
        document.querySelector("#title").style.color = "color-mix(in srgb, currentColor 20%, Canvas)";
        document.querySelector("#simulate").setAttribute("aria-describedby", "nothing");
        document.querySelector("[data-testid=noise]").removeAttribute("id");
    }""")
    problems = visit.page.evaluate(ACCESSIBLE)["problems"]
    assert any("contrast" in line and 'id="title"' in line for line in problems)
    assert any('aria-describedby="nothing"' in line for line in problems)
    assert any('for="noise" names nothing' in line for line in problems)
    assert unnamed(visit.page)[0] == ["textbox"]


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The text of axe-core, which npm fetches into a folder that is thrown away."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"axe-core could not be fetched: {error}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 1400), ("light", 390)])
def test_axe_finds_no_violation(window, axe, scheme, width):
    visit = window(color_scheme=scheme, viewport={"width": width, "height": 900}).settle()
    visit.unfold()
    for card in ("equations", "escape"):
        visit.page.locator(f"#{card} > summary").click()
    visit.part("formula").fill("z1 + q")
    expect(visit.part("message")).to_be_visible()
    visit.page.locator("#pin").click()
    visit.settle()
    visit.page.evaluate(axe + "\n;0")
    found = visit.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    summary = [(item["id"], [node["html"][:120] for node in item["nodes"][:3]]) for item in found["violations"]]
    assert summary == []
