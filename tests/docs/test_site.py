"""The site as it is built: links, weight and network, and how pages look in a browser on desks and phones."""

import functools
import http.server
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
HEAVIEST = 3e6  # bytes of a page with all that it loads
# One page of each kind.
LOOKED_AT = (
    "index.html",
    "gallery.html",
    "gallery/escape-times.html",
    "course/plateau.html",
    "spectra.html",
    "api/problem.html",
)
# The number of paragraphs, points of lists and cells of tables that show a formula as it is written.
RAW = r"""() => [...document.querySelectorAll("article p, article li, article td")].filter((part) =>
    !part.querySelector("code, pre, script") && /\\\(|\\\[|\$\$/.test(part.innerText)).length"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built here: scripts/docs"),
]


class Document(HTMLParser):
    """What a page links to, what it loads, and the places in it that links may name."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.places |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])
        if tag in ("script", "img", "source", "video", "iframe") and named.get("src"):
            self.loaded.append(named["src"])
        if tag == "link" and named.get("rel") in ("stylesheet", "icon", "preload") and named.get("href"):
            self.loaded.append(named["href"])


@functools.cache
def documents() -> dict[Path, Document]:
    return {path: Document(path) for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts}


def target(page: Path, address: str) -> Path | None:
    """The file that an address on a page names; None for other sites."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    return (page if not path else (SITE / path.lstrip("/") if path.startswith("/") else page.parent / path)).resolve()


def test_every_link_within_the_site_leads_somewhere():
    wrong = []
    for page, document in documents().items():
        for link in document.links:
            file, place = target(page, link), unquote(urldefrag(link)[1])
            if file is None:
                continue
            file = file / "index.html" if file.is_dir() else file
            known = documents().get(file)
            if not file.exists() or (place and known is not None and place not in known.places):
                wrong.append(f"{page.relative_to(SITE)}: {link}")
    assert len(documents()) > 60 and not wrong, "\n".join(wrong)


def test_no_page_is_heavy_or_loads_from_a_network():
    for page, document in documents().items():
        files = [target(page, address) for address in document.loaded if not address.startswith("data:")]
        assert None not in files, f"{page.relative_to(SITE)} loads from another site"
        weight = page.stat().st_size + sum(file.stat().st_size for file in set(files) if file is not None)
        assert weight < HEAVIEST, f"{page.relative_to(SITE)}: {weight / 1e6:.2f} MB"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The site behind a server of this machine; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pages_fit_the_screen_without_errors(browser, served, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    errors, asked = [], []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        for name in LOOKED_AT:
            page.goto(f"{served}/{name}", wait_until="load")
            page.wait_for_function(
                "!window.MathJax?.startup?.promise || window.MathJax.startup.promise.then(() => true)"
            )
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name} is {wide} pixels wider than {width}"
            raw = page.evaluate(RAW)
            assert raw == 0, f"{name}: formulas that are not typeset"
            own = page.locator("article img:not(.sd-card-img-bottom)")
            linked = page.locator("article a img")
            assert linked.count() == own.count(), f"{name}: pictures that do not lead to themselves"
            if width == 1400:
                assert page.evaluate("document.querySelector('header').getBoundingClientRect().height") < 90.0, name
    finally:
        context.close()
    assert not errors and all(url.startswith((served, "data:", "blob:")) for url in asked), (errors, asked)


def test_words_are_found_without_a_network(browser, served):
    page = browser.new_page()
    try:
        page.goto(f"{served}/search.html?q=plateau", wait_until="load")
        page.wait_for_selector("#search-results li a", timeout=30_000)
        found = page.eval_on_selector_all("#search-results li a", "links => links.map((link) => link.href)")
        assert any("plateau" in link for link in found)
    finally:
        page.close()
