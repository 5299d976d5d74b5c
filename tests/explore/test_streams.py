"""The page while answers arrive, in an order and at moments that the test chooses: its questions reach no server."""

import pytest

from tests.explore.served import SMALL
from tests.explore.windows import MARKS, expect

pytestmark = MARKS

# Questions wait in `window.asked` for what the test says.
INTERCEPT = """
window.asked = [];
const real = window.fetch;
window.fetch = (path, options) => {
  if (!String(path).endsWith("api/work")) return real(path, options);
  const question = { ...JSON.parse(options.body), isAborted: false };
  const stream = new ReadableStream({ start: (pen) => {
    const write = (text) => pen.enqueue(new TextEncoder().encode(text));
    question.say = (event, data) => write(`event: ${event}\\ndata: ${JSON.stringify(data)}\\n\\n`);
    question.end = () => pen.close();
    options.signal?.addEventListener("abort", () => {
      question.isAborted = true;
      try { pen.error(new DOMException("left", "AbortError")); } catch { /* it is over */ }
    });
  } });
  window.asked.push(question);
  return Promise.resolve(new Response(stream));
};
"""
ENDS = ("result", "refused", "failed", "cancelled")


class Conversation:
    """What a page asks, and what it is told."""

    def __init__(self, visit):
        self.page = visit.page

    def asked(self, kind):
        """The number of questions of a kind so far."""
        return self.page.evaluate("kind => asked.filter((question) => question.kind === kind).length", kind)

    def say(self, kind, event, number=1, **data):
        """An event of the last question of a kind, as soon as there have been so many."""
        for _ in range(2000):
            if self.asked(kind) >= number:
                break
            self.page.wait_for_timeout(25)
        says = """([kind, event, data, isEnd]) => {
            const question = asked.findLast((item) => item.kind === kind);
            question.say(event, data);
            if (isEnd) question.end();
        }"""
        self.page.evaluate(says, [kind, event, data, event in ENDS])


def curve(name="SaadSolla", p=1, runs=1):
    """An answer of four points."""
    times = [0.0, 1.0, 2.0, 4.0]
    risk = [1.0, 0.5, 0.2, 0.1]
    kind = "theory" if name == "SaadSolla" else "simulation"
    Q = [[[float(i == j) for j in range(p)] for i in range(p)] for _ in times]
    M = [[[0.1 * t * (i + 1)] for i in range(p)] for t in times]
    band = {"low": risk, "high": risk} if runs > 1 else {"low": None, "high": None}
    return {
        **{"name": name, "kind": kind, "replicas": runs, "d": 100, "time": times, "samples": [100 * t for t in times]},
        **{"excess_risk": risk, "risk": risk, "error": [1e-3] * 4, "runs": [risk] * runs, "Q": Q, "M": M, **band},
        **{"a": [[1.0] * p] * 4, "P": [[1.0]], "status": ["done"] * runs, "statement": "", "engine": ""},
    }


@pytest.fixture
def visit(window, server):
    visit = window("about:blank")
    visit.page.add_init_script(INTERCEPT)
    visit.page.goto(server.link)
    return visit


def test_what_is_under_way_is_said_and_can_be_stopped(visit):
    told, body, words = Conversation(visit), visit.page.locator("body"), visit.page.locator("#state-text")
    told.say("theory", "queued", position=3)
    expect(words).to_have_text("Busy, in line: place 3")
    told.say("theory", "compiling", what="the equations of 4 erf units", usual_seconds=4.2)
    expect(words).to_have_text("Compiling the equations of 4 erf units (usually about 4 s)")
    expect(body).to_have_attribute("data-status", "compiling")
    told.say("theory", "result", curves=[curve()], cautions=[], seconds=0.1)
    legend = visit.page.locator("#risk-legend")
    expect(legend).to_contain_text("numerical error of ODE")
    assert visit.curves["SaadSolla"] == {"name": "SaadSolla", "points": 4, "last": 0.1}
    for runs in (2, 4):  # single runs appear while they are simulated
        told.say("compare", "partial", curves=[curve("OverlapSGD", runs=runs)])
        expect(legend).to_contain_text(f"mean of {runs} runs")
    expect(body).to_have_attribute("data-status", "computing")
    told.say("compare", "progress", fraction=0.4, words="SaadSolla")
    expect(words).to_have_text("Simulating and comparing: ODE, 40%")
    expect(visit.page.locator("#stop")).to_be_visible()
    visit.page.locator("#stop").click()
    expect(body).to_have_attribute("data-status", "idle")
    expect(visit.page.locator("#stop")).to_be_hidden()
    assert visit.page.evaluate("asked.findLast((item) => item.kind === 'compare').isAborted")
    assert visit.curves.keys() == {"SaadSolla", "OverlapSGD"}  # what is there stays
    visit.page.locator("#auto").uncheck()
    visit.part("learning-rate").fill("0.2")  # the verdict of another setting would be none of this one
    visit.part("learning-rate").blur()
    told.say("theory", "result", number=2, curves=[curve()], cautions=[], seconds=0.1)
    expect(visit.part("verdict")).to_contain_text("Simulate to compare")


def test_a_failure_leaves_no_verdict_of_another_setting(visit):
    told, verdict = Conversation(visit), visit.part("verdict")
    told.say("theory", "result", curves=[curve()], cautions=[], seconds=0.1)
    judged = {"verdict": {"outcome": "agrees", "sentence": "They agree.", "judge": "OverlapSGD"}, "deviations": []}
    told.say("compare", "result", curves=[curve(), curve("OverlapSGD", runs=2)], cautions=[], seconds=0.1, **judged)
    expect(verdict).to_contain_text("They agree.")
    visit.part("learning-rate").fill("60")
    told.say("theory", "failed", number=2, message="It diverged.")
    expect(visit.part("message")).to_have_text("It diverged.")
    expect(verdict).not_to_contain_text("agree")
    assert visit.curves.keys() == {"SaadSolla", "OverlapSGD"}  # the pale ones of before stay together
    expect(visit.part("risk-plot")).to_have_class("plot stale")
    told.say("simulate", "result", curves=[curve("OverlapSGD", runs=2)], cautions=[], seconds=0.1)
    expect(verdict).to_contain_text("No theory answers for this setting")
    expect(visit.part("risk-plot")).to_have_class("plot")
    assert visit.settle_drawing().curves.keys() == {"OverlapSGD"}


def test_many_neurons_are_heat_maps_and_three_settings_can_be_pinned(visit):
    told = Conversation(visit)
    visit.part("width").fill("8")
    visit.part("width").blur()
    expect(visit.page.locator("#lead")).to_contain_text("8 square neurons")
    told.say("theory", "result", curves=[curve(p=8)], cautions=[], seconds=0.1)
    heat = visit.page.locator("#overlap-plot canvas")
    expect(heat).to_have_count(2)
    words = visit.page.locator("#overlap-plot .help")
    expect(words).to_contain_text("blue up to 3.2")  # 0.1 t (i + 1) at the end
    visit.part("time").fill("500")
    expect(words).to_contain_text("blue up to 1.6")
    pin, rows = visit.page.locator("#pin"), visit.page.locator("#pins li")
    for number, rate in enumerate((0.2, 0.3, 0.4), start=1):
        expect(pin).to_be_enabled()
        pin.click()
        told.say("theory", "result", curves=[curve(p=8)], cautions=[], seconds=0.1)
        expect(rows).to_have_count(number)
        visit.part("learning-rate").fill(str(rate))
        visit.part("learning-rate").blur()
    expect(pin).to_be_disabled()
    assert [row[0] for row in rows.all_inner_texts()] == ["A", "B", "C"]
    expect(rows.first).to_contain_text(f"γ = {SMALL['training']['learning_rate']}")
    assert {"A: SaadSolla", "B: SaadSolla", "C: SaadSolla"} <= visit.curves.keys()
    rows.nth(1).get_by_text("Remove").click()
    expect(pin).to_be_enabled()
    pin.click()
    assert [pinned["name"] for pinned in visit.state["view"]["pins"]] == ["A", "C", "B"]


def test_a_part_of_the_axis_can_be_typed(visit):
    Conversation(visit).say("theory", "result", curves=[curve()], cautions=[], seconds=0.1)
    low, high = visit.page.locator("#zoom-from"), visit.page.locator("#zoom-to")
    expect(high).to_have_attribute("placeholder", "4")
    low.fill("1")
    low.press("Enter")
    assert visit.state["view"]["zoom"] == [1, 4]
    for wrong in ("0.5", "much"):
        high.fill(wrong)
        high.press("Enter")
        expect(high).to_have_attribute("aria-invalid", "true")
        assert visit.state["view"]["zoom"] == [1, 4]
    visit.page.locator("#unzoom").click()
    expect(low).to_have_value("")
