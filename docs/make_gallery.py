"""Make the gallery's pages of the site: text, figure, numbers and script of each, the index, and the claims.

    python docs/make_gallery.py                # all pages, at their small sizes
    python docs/make_gallery.py escape-times   # some of them
    python docs/make_gallery.py --cards        # the cards of the index alone, from the pictures that are stored

The pictures, the numbers and the times that pages take are kept in docs/gallery/, so that a build of the site runs
nothing; the tests make every page again and hold it to its claims.
"""

import argparse
import resource
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import live_figures
import make_cards
import make_claims

from twolayer.gallery import PageOptions, find_page, make, pages
from twolayer.gallery.make import claims_table
from twolayer.gallery.page import SOURCES

HERE = Path(__file__).parent / "gallery"
TIMES = "times.toml"  # seconds of CPU time that pages take, by their names


def opened(page) -> list[str]:
    """How to open the problem of a page in the explorer, or why it does not take it."""
    path = page.folder / "spec.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    file = f"../../src/twolayer/gallery/{page.source}/{page.folder.name}/{path.name}"
    if "data" in tables:
        why = "The [explorer](../explorer.md) follows training on Gaussian inputs, and this page is about a data set"
        return [f"{why}: `twolayer ntk` takes its specification, {{download}}`{path.name} <{file}>`.", ""]
    command = f"twolayer explore {page.name}"
    label = "Open in the explorer: copy the command"
    button = f'<button type="button" class="copy-command" data-command="{command}">{label}</button>'
    words = f"It copies `{command}`, which opens this problem in the [explorer](../explorer.md)"
    return [button, "", f"{words}; its specification is {{download}}`{path.name} <{file}>`.", ""]


def write_page(page, folder: Path, data_dir: Path | None) -> None:
    before = cpu_time()
    result = make(page, folder, PageOptions(data_dir=data_dir))
    assert result.holds, str(result)
    store_time(page, cpu_time() - before)
    pictures = [name for name in result.files if name.endswith((".png", ".gif"))]
    for name in pictures:
        shutil.copyfile(folder / name, HERE / f"{page.name}-{name}")
    make_cards.write_card(figure_of(page), page.name, card_of(page))
    title, _, body = page.text.partition("\n")
    shown = "\n\n".join(f"![{page.title}]({page.name}-{name})" for name in pictures)
    script = f"../../src/twolayer/gallery/{page.source}/{page.folder.name}/script.py"
    made = f"Made by `twolayer gallery {page.name}`"
    live = ["", f"```{{live-figure}} {page.name}\n```"] if page.name in live_figures.FIGURES else []
    parts = [title, *live, "", shown, body, "## In numbers", "", claims_table(result.claims), "## How it is made", "",
             *opened(page), f"{made}, from this script (and `--full` at larger sizes):", "",
             f"```{{literalinclude}} {script}\n:language: python\n```"]  # fmt: skip
    (HERE / f"{page.name}.md").write_text("\n".join(parts).rstrip() + "\n")


def cpu_time() -> float:
    """Seconds of CPU time of this process and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def times() -> dict[str, int]:
    """The seconds of CPU time that pages took when they were made last."""
    path = HERE / TIMES
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def store_time(page, seconds: float) -> None:
    """Keep the time that a page took, beside those of the others."""
    known = times() | {page.name: round(seconds)}
    lines = [f"{each.name} = {known[each.name]}\n" for each in pages() if each.name in known]
    words = "# Seconds of CPU time of pages at their default sizes; made by make_gallery.py.\n"
    (HERE / TIMES).write_text(words + "".join(lines), encoding="utf-8")


def times_table() -> list[str]:
    """A table of all pages: how many claims each makes, and how long it takes."""
    known = times()
    lines = ["| page | claims | CPU seconds |", "|---|---|---|"]
    for page in pages():
        text = (HERE / f"{page.name}.md").read_text(encoding="utf-8")
        claims = sum(line.rstrip().endswith("| holds |") for line in text.splitlines())
        lines.append(f"| [{page.title}](gallery/{page.name}.md) | {claims} | {known.get(page.name, '')} |")
    return lines


def figure_of(page) -> Path:
    """The stored figure of which the index shows a panel."""
    return min(path for path in HERE.glob(f"{page.name}-*.png") if path.name != card_of(page).name)


def card_of(page) -> Path:
    """The picture of a page in the index."""
    return HERE / f"{page.name}-card.png"


def index_text() -> str:
    lines = [
        "# Gallery",
        "",
        "Claims and figures of the source texts, made by this package with its theory and its simulation on them.",
        "Each page states its claims in numbers, and fails when they do not hold. `twolayer gallery` lists them,",
        "`twolayer gallery NAME` makes one, most of them in under a minute; a table at the end has the times.",
    ]
    for source, (title, key) in SOURCES.items():
        cited = ["", f"From {{cite:t}}`{key}`."] if key else []  # not in the heading, whose text is in the contents
        lines += ["", f"## {title}", *cited, "", "::::{grid} 1 2 2 3", ":gutter: 3", ""]
        names = [page for page in pages() if page.source == source]
        for page in names:
            if not card_of(page).exists():
                sys.exit(
                    f"The index shows a card of every page, but docs/gallery/ has none of `{page.name}`; "
                    f"run `python docs/make_gallery.py {page.name}` first."
                )
            lines += [
                f":::{{grid-item-card}} {page.title}",
                f":link: gallery/{page.name}",
                ":link-type: doc",
                f":img-bottom: gallery/{card_of(page).name}",
                ":::",
                "",
            ]
        lines += ["::::", "", "```{toctree}", ":hidden:", "", *(f"gallery/{page.name}" for page in names), "```"]
    lines += [
        "",
        "## How long the pages take",
        "",
        "Seconds of CPU time at the default sizes, as measured when the page was made last, on a machine with two",
        "cores that had other work. Most programs were on disk already: compiling them in a first run can take as",
        "long again, or longer.",
        "Pages spread over the cores, so that a free machine takes less.",
        "`--full` takes minutes to hours; the pages say so.",
        "",
        *times_table(),
    ]
    return "\n".join(lines) + "\n"


def reword(page) -> None:
    """Write how to open a page in the explorer anew, in the text that there is: numbers and pictures stay."""
    path = HERE / f"{page.name}.md"
    head, title, rest = path.read_text().partition("## How it is made\n\n")
    _, made, rest = rest.partition(f"Made by `twolayer gallery {page.name}`")
    path.write_text("".join([head, title, *(f"{line}\n" for line in opened(page)), made, rest]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--words", action="store_true", help="compute nothing: write the words around the figures anew")
    parser.add_argument("--cards", action="store_true", help="compute nothing: cut the cards of the index out anew")
    asked = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for page in [find_page(name) for name in asked.names] if asked.names else pages():
            if asked.cards:
                make_cards.write_card(figure_of(page), page.name, card_of(page))
            elif asked.words:
                reword(page)
            else:
                write_page(page, Path(folder) / page.name, asked.data_dir)
            print(page.name, flush=True)
    HERE.with_suffix(".md").write_text(index_text())
    (HERE.parent / "claims.md").write_text(make_claims.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
