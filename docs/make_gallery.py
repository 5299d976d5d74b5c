"""Make the gallery's pages of the site: text, figure, numbers and script of each, the index, and the claims.

    python docs/make_gallery.py                # all pages, at their small sizes
    python docs/make_gallery.py escape-times   # some of them

The pictures and numbers are kept in docs/gallery/, so that a build of the site runs nothing; the tests make every page
again and hold it to its claims.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import make_claims

from twolayer.gallery import PageOptions, find_page, make, pages
from twolayer.gallery.make import claims_table
from twolayer.gallery.page import SOURCES

HERE = Path(__file__).parent / "gallery"


def write_page(page, folder: Path, data_dir: Path | None) -> None:
    result = make(page, folder, PageOptions(data_dir=data_dir))
    assert result.holds, str(result)
    pictures = [name for name in result.files if name.endswith((".png", ".gif"))]
    for name in pictures:
        shutil.copyfile(folder / name, HERE / f"{page.name}-{name}")
    title, _, body = page.text.partition("\n")
    shown = "\n\n".join(f"![{page.title}]({page.name}-{name})" for name in pictures)
    script = f"../../src/twolayer/gallery/{page.source}/{page.folder.name}/script.py"
    made = f"Made by `twolayer gallery {page.name}`"
    parts = [title, "", shown, body, "## In numbers", "", claims_table(result.claims), "## How it is made", "",
             f"{made}, from this script (and `--full` at larger sizes):", "",
             f"```{{literalinclude}} {script}\n:language: python\n```"]  # fmt: skip
    (HERE / f"{page.name}.md").write_text("\n".join(parts).rstrip() + "\n")


def first_picture(page) -> str:
    """The name of the stored picture that the index shows."""
    names = sorted(path.name for path in HERE.glob(f"{page.name}-*.png"))
    if not names:
        sys.exit(
            f"The index shows a picture of every page, but docs/gallery/ has none of `{page.name}`; "
            f"run `python docs/make_gallery.py {page.name}` first."
        )
    return names[0]


def index_text() -> str:
    lines = [
        "# Gallery",
        "",
        "Claims and figures of the source texts, made by this package with its theory and its simulation on them.",
        "Each page states its claims in numbers, and fails when they do not hold. `twolayer gallery` lists them,",
        "`twolayer gallery NAME` makes one in under a minute.",
    ]
    for source, (title, key) in SOURCES.items():
        cited = f" {{cite:p}}`{key}`" if key else ""
        lines += ["", f"## {title}{cited}", "", "::::{grid} 1 2 2 3", ":gutter: 3", ""]
        names = [page for page in pages() if page.source == source]
        for page in names:
            lines += [
                f":::{{grid-item-card}} {page.title}",
                f":link: gallery/{page.name}",
                ":link-type: doc",
                f":img-bottom: gallery/{first_picture(page)}",
                ":::",
                "",
            ]
        lines += ["::::", "", "```{toctree}", ":hidden:", "", *(f"gallery/{page.name}" for page in names), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for page in [find_page(name) for name in asked.names] if asked.names else pages():
            write_page(page, Path(folder) / page.name, asked.data_dir)
            print(page.name, flush=True)
    HERE.with_suffix(".md").write_text(index_text())
    (HERE.parent / "claims.md").write_text(make_claims.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
