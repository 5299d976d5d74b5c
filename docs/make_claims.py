"""Make docs/claims.md: every claim of the source texts with its place, the numbers that show it, and whether it holds.

    python docs/make_claims.py

The claims are those of docs/claims.toml, the numbers those of the stored pages in docs/gallery/.
"""

import tomllib
from pathlib import Path

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


def text() -> str:
    """Return the page."""
    claims = tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))["claim"]
    parts = [HEAD]
    for source, (title, key) in SOURCES.items():
        ours = [claim for claim in claims if claim["source"] == source]
        if not ours:
            continue
        parts += [f"## {title} {{cite:p}}`{key}`", ""]
        parts += ["| place | claim | asserted | allowed | measured | status |", "|---|---|---|---|---|---|"]
        for claim in ours:
            if claim["status"] not in STATUSES:
                raise ValueError(f"The status {claim['status']!r} is none of {STATUSES}.")
            rows = evidence(claim) or [(claim["elsewhere"], "", "")]
            note = f". {claim['note']}" if "note" in claim else ""
            for number, (asserted, allowed, measured) in enumerate(rows):
                first = (claim["place"], claim["says"]) if number == 0 else ("", "")
                status = f"**{claim['status']}**{note}" if number == 0 else ""
                parts.append(f"| {first[0]} | {first[1]} | {asserted} | {allowed} | {measured} | {status} |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    (HERE / "claims.md").write_text(text(), encoding="utf-8")
