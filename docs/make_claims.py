"""Make docs/claims.md: every claim of the source texts with its place, the numbers that show it, and whether it holds.

    python docs/make_claims.py

The claims are those of docs/claims.toml, the numbers those of the stored pages in docs/gallery/. The same claims
without their numbers are the table of the directive ``claims`` on other pages.
"""

import tomllib
from pathlib import Path
from typing import Any

from twolayer.gallery.page import SOURCES

HERE = Path(__file__).parent
STATUSES = ("holds", "holds under a condition", "fails")
HEAD = """# Claims of the source texts

Every claim of the four texts behind the [gallery](gallery.md), in the order of the text: where it stands, the numbers
in which a page asserts it, what was measured at the page's default size, and whether it holds. The range that a number
must be in is set by a standard error, by a theorem, or by an allowance that the page states with its reason.
"""


def numbers_of(page: str) -> dict[str, tuple[str, str]]:
    """Return the measured number and the allowed range of each claim of a stored page, by its sentence."""
    table = {}
    for line in (HERE / "gallery" / f"{page}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[3].rstrip(" |") == "holds":
            table[cells[0]] = (cells[1], cells[2])
    return table


def evidence(claim: dict) -> list[tuple[str, str, str]]:
    """Return what is asserted, the range it must be in, and the measured number, for each sentence of the pages."""
    rows = []
    for page, beginnings in claim.get("shown", {}).items():
        numbers = numbers_of(page)
        for beginning in beginnings:
            sentences = [sentence for sentence in numbers if sentence.startswith(beginning)]
            if len(sentences) != 1:
                raise ValueError(f"{page}: {len(sentences)} claims begin with {beginning!r}: {list(numbers)}")
            value, allowed = numbers[sentences[0]]
            rows.append((f"{sentences[0]} ([{page}](gallery/{page}.md))", allowed, value))
    return rows


def tests_of(claim: dict) -> list[tuple[str, list[str]]]:
    """Return the files of tests that show a claim, each with the names of its functions without the first part."""
    pairs = [line.split(": ") for line in claim.get("tests", [])]
    return [(f"tests/{file}", names.split(", ")) for file, names in pairs]


def elsewhere(claim: dict) -> str:
    """Return what shows a claim that is on no page, with its tests."""
    parts = [f"`{file}` ({', '.join(name.replace('_', ' ') for name in names)})" for file, names in tests_of(claim)]
    return f"{claim['elsewhere']} Tests: {'; '.join(parts)}."


def outcome(claim: dict) -> tuple[str, str, str]:
    """Return the place of a claim, what it says, and whether it holds, as cells of a table."""
    if claim["status"] not in STATUSES:
        raise ValueError(f"The status {claim['status']!r} is none of {STATUSES}.")
    note = f". {claim['note']}" if "note" in claim else ""
    cells = (claim["place"], claim["says"], f"**{claim['status']}**{note}")
    place, says, status = (cell.replace("|", "\\|") for cell in cells)
    return place, says, status


def all_claims() -> list[dict]:
    return tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))["claim"]


def short() -> str:
    """Return the table of all claims without their numbers, and one sentence that counts them."""
    claims = all_claims()
    counts = [sum(claim["status"] == status for claim in claims) for status in STATUSES]
    parts = [f"Of {len(claims)} claims {counts[0]} hold, {counts[1]} hold under a condition, and {counts[2]} fail.", ""]
    parts += ["| text | place | claim | status |", "|---|---|---|---|"]
    for source, (_, key) in SOURCES.items():
        ours = [claim for claim in claims if claim["source"] == source]
        parts += [f"| {{cite:t}}`{key}` | {' | '.join(outcome(claim))} |" for claim in ours]
    return "\n".join(parts)


def text() -> str:
    """Return the page."""
    claims = all_claims()
    parts = [HEAD]
    for source, (title, key) in SOURCES.items():
        ours = [claim for claim in claims if claim["source"] == source]
        if not ours:
            continue
        parts += [f"## {title}", "", f"{{cite:t}}`{key}`.", ""]  # citations in headings would be keys in the contents
        parts += ["| place | claim | asserted | allowed | measured | status |", "|---|---|---|---|---|---|"]
        for claim in ours:
            rows = evidence(claim) or [(elsewhere(claim), "", "")]
            place, says, status = outcome(claim)
            for number, (asserted, allowed, measured) in enumerate(rows):
                first = (place, says, status) if number == 0 else ("", "", "")
                parts.append(f"| {first[0]} | {first[1]} | {asserted} | {allowed} | {measured} | {first[2]} |")
        parts.append("")
    return "\n".join(parts)


def setup(app: Any) -> dict[str, bool]:
    """Let pages of the site contain the table of claims: the directive ``claims``."""
    from docutils import nodes
    from docutils.parsers.rst import Directive
    from docutils.statemachine import StringList

    class ClaimsTable(Directive):
        def run(self) -> list[nodes.Node]:
            self.state.document.settings.env.note_dependency(str(HERE / "claims.toml"))
            table = nodes.container(classes=["claims"])
            self.state.nested_parse(StringList(short().splitlines()), self.content_offset, table)
            return [table]

    app.add_directive("claims", ClaimsTable)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    (HERE / "claims.md").write_text(text(), encoding="utf-8")
