"""A browser for tests of the page: an installed Chromium, which Playwright drives, and its windows."""

import base64
import json
from typing import Any

import pytest

playwright: Any = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)
pytest.importorskip("starlette", reason="the explorer is not installed: pip install twolayer[explore]")

LONG = 90_000  # milliseconds; the machine may be busy with other tests
expect = playwright.expect
expect.set_options(timeout=LONG)
MARKS = [pytest.mark.slow]  # without Chromium the fixture `browser` skips them


# The timers of the page one after the other: it waits 140 ms after a letter, and then 60 ms before it writes its link.
# Tests wait in the page as well: a browser that gets no processor for a while runs timers late, but in order.
AFTER_ITS_TIMERS = """async () => {
  for (const pause of [180, 90, 10]) await new Promise((resolve) => setTimeout(resolve, pause));
  await new Promise(requestAnimationFrame);
}"""


class Window:
    """A window of the browser at the page of a server."""

    def __init__(self, context, link):
        self.page = context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if "Content Security" in line.text else None)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(link)

    def part(self, name):
        return self.page.get_by_test_id(name)

    def settle(self):
        """Wait until everything that was asked is there, also the runs that begin half a second after the theory."""
        for pause in (0, 400):
            self.page.wait_for_timeout(pause)
            self.settle_drawing()
            expect(self.page.locator("body")).to_have_attribute("data-status", "idle")
        return self.settle_drawing()

    def settle_drawing(self):
        """Wait until what has arrived is drawn."""
        self.page.evaluate(AFTER_ITS_TIMERS)
        return self

    @property
    def curves(self):
        return json.loads(self.part("risk-plot").get_attribute("data-summary") or "{}")

    @property
    def state(self):
        """What the link says."""
        self.page.evaluate(AFTER_ITS_TIMERS)
        text = self.part("share-link").get_attribute("href").partition("#")[2]
        return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    def stated(self, path):
        value = self.state["spec"]
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def unfold(self):
        """Open all groups of controls."""
        folded = self.page.locator("details.group:not([open]) > summary")
        while folded.count():
            folded.first.click()

    def drag(self, start, end):
        """Drag over a part of the plot of the risk."""
        self.page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        box = self.page.locator("#risk-plot .u-over").bounding_box()
        middle = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + start * box["width"], middle)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + end * box["width"], middle)
        self.page.mouse.up()

    def answered_by_nobody(self):
        """Questions get an empty refusal, so that nothing is computed."""
        refusal = json.dumps({"message": "Nothing is computed here."})
        self.page.route("**/api/work", lambda route: route.fulfill(status=422, body=refusal))
