"""Building a page of the gallery: run its script, write its folder, and check its claims."""

import importlib.util
import json
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.whole_files import held, make_folder, write_whole
from twolayer.gallery.page import Claim, Made, Page, PageOptions

if TYPE_CHECKING:
    from twolayer.ask import RunSpec

PARTS = ("spec.toml", "script.py")


@dataclass(frozen=True)
class Result:
    """The result of building a page: its claims, the seconds it took, and the files in its folder."""

    page: Page
    claims: tuple[Claim, ...]
    seconds: float
    full: bool
    folder: Path
    files: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether all claims are true."""
        return all(claim.holds for claim in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        return {
            "name": self.page.name,
            "title": self.page.title,
            "source": self.page.source,
            "full": self.full,
            "holds": self.holds,
            "claims": [claim.to_dict() for claim in self.claims],
            "seconds": round(self.seconds, 1),
            "folder": str(self.folder),
            "files": list(self.files),
        }

    def __str__(self) -> str:
        marks = {True: "holds", False: "FAILS"}
        lines = [f"{self.page.title} ({self.seconds:.0f} s)"]
        lines += [f"  {marks[claim.holds]:<7}{claim}" for claim in self.claims]
        return "\n".join([*lines, f"  {self.folder}"])


def make(page: Page, folder: Path, ask: PageOptions | None = None) -> Result:
    """Build a page in a folder: specification, script, figures, numbers, and the text with all of them.

    Parameters
    ----------
    page
        The page to build.
    folder
        The folder to write to; it is created if it does not exist.
    ask
        The size of the page, and the folder of data sets.

    Returns
    -------
    The claims and the names of the files. Nothing is written before the script has ended.
    """
    ask = ask or PageOptions()
    began = time.perf_counter()
    outcome = _call(page.folder, ask)
    seconds = time.perf_counter() - began
    with held():
        return _write(page, folder, ask, outcome, seconds)


def _write(page: Page, folder: Path, ask: PageOptions, outcome: Made, seconds: float) -> Result:
    """Write the files of a page."""
    make_folder(folder)
    files = [*_write_figures(outcome, folder)]
    for part in PARTS:
        if page.folder.resolve() != folder.resolve():
            write_whole(folder / part, (page.folder / part).read_bytes())
        files.append(part)
    files += ["numbers.json", "README.md"]
    result = Result(page, tuple(outcome.claims), seconds, ask.full, folder, tuple(files))
    numbers = {key: value for key, value in result.to_dict().items() if key != "folder"}
    write_whole(folder / "numbers.json", (json.dumps(numbers, indent=2, allow_nan=False) + "\n").encode())
    write_whole(folder / "README.md", _readme(result, list(outcome.figures)).encode())
    return result


def run_script(script: str | Path) -> None:
    """Build a page from its own script: the command ``python script.py [--full] [--data-dir DIR]``."""
    import argparse

    folder = Path(script).resolve().parent
    parser = argparse.ArgumentParser(description=f"Make the gallery page {folder.name}.")
    parser.add_argument("--full", action="store_true", help="the papers' sizes, or beyond")
    parser.add_argument("--data-dir", type=Path, help="where the named data sets are")
    parser.add_argument("--out", type=Path, default=Path("."), help="where the figures go")
    options = parser.parse_args()
    outcome = _call(folder, PageOptions(options.full, options.data_dir))
    make_folder(options.out)
    print("\n".join([str(claim) for claim in outcome.claims] + list(_write_figures(outcome, options.out))))
    sys.exit(0 if all(claim.holds for claim in outcome.claims) else 3)


def _call(folder: Path, ask: PageOptions) -> Made:
    where = importlib.util.spec_from_file_location(f"twolayer_gallery_{folder.name}", folder / "script.py")
    if where is None or where.loader is None:
        raise InvalidInput(f"There is no script in the folder {shown(folder)}.")
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module.make(read_page_spec(folder / "spec.toml"), ask)


def read_page_spec(path: Path) -> "RunSpec | dict[str, Any]":
    """A `RunSpec` where the file states a whole problem, else its tables as they are, as for data sets."""
    from twolayer.experiment import parse_spec

    text = path.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return parse_spec(text, source=str(path)) if "problem" in tables and "data" not in tables else tables


def _write_figures(outcome: Made, folder: Path) -> list[str]:
    from twolayer.plots import save_figure

    files = [path.name for name, figure in outcome.figures.items() for path in save_figure(figure, folder / name)]
    for name, write in outcome.extras.items():
        write(folder / name)
    return files + list(outcome.extras)


def _readme(result: Result, figures: list[str]) -> str:
    """The text of a page with the figures after its title and the claims at the end."""
    title, _, body = result.page.text.partition("\n")
    pictures = "\n\n".join(f"![{result.page.title}]({name}.png)" for name in figures)
    return "\n".join([title, "", pictures, body, claims_table(result.claims)])


def claims_table(claims: tuple[Claim, ...]) -> str:
    """The claims as a Markdown table."""
    rows = ["| claim | number | allowed | outcome |", "|---|---|---|---|"]
    for claim in claims:
        sentence, holds = claim.sentence.replace("|", "\\|"), "holds" if claim.holds else "**fails**"
        rows.append(f"| {sentence} | {claim.value:.4g} | {claim.allowed} | {holds} |")
    return "\n".join(rows) + "\n"
