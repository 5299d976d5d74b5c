"""The pages and notebooks of the documentation do what they show.

Blocks of a page run in order: ``python`` in one namespace, the lines of ``sh`` that begin with ``twolayer`` through the
command line, and a ``toml`` block is written to the file that the sentence before it names. A ``text`` block right
after one of them is its output: the words must be the same, numbers near. Nothing else in a page is code.
"""

import json
import math
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

import twolayer
from twolayer import api
from twolayer.cli import main
from twolayer.data.deviation import OUTCOMES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# The gallery has tests of its own.
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "gallery")
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))

FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"`([\w-]+\.toml)`[^`\n]*:\n\n\Z")
DIRECTIVES = {"{live-figure}", "{claims}", "{toctree}", "{eval-rst}", "{bibliography}", "{include}"}
KINDS = {"python", "sh", "toml", "text", *DIRECTIVES}
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")
# How near a number must be to the one shown: another machine rounds sums in another order.
RELATIVE, ABSOLUTE = 0.02, 1e-6


class Block(NamedTuple):
    """What stands between two fences, and the text before it."""

    kind: str
    text: str
    before: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found, end = [], 0
    for match in FENCE.finditer(text):
        found.append(Block(match[1], match[2], text[end : match.start()], text[: match.start()].count("\n") + 2))
        end = match.end()
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def check_output(shown: str, printed: str) -> None:
    """The words of what is shown are those that were printed; a line of three dots stands for any number of lines."""
    have = printed.split("\n")
    place = 0
    anywhere = True
    for line in shown.strip("\n").split("\n"):
        if line.strip() == "...":
            anywhere = True
            continue
        candidates = range(place, len(have)) if anywhere else range(place, min(place + 1, len(have)))
        hit = next((n for n in candidates if is_like(line, have[n])), None)
        assert hit is not None, f"shown but not printed: {line!r}\nprinted:\n{printed}"
        place, anywhere = hit + 1, False


def is_like(shown: str, printed: str) -> bool:
    if NUMBER.sub("#", " ".join(shown.split())) != NUMBER.sub("#", " ".join(printed.split())):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in pairs)


@pytest.fixture
def folder(tmp_path, monkeypatch, own_registry):
    """A folder like that of a reader: the examples are there, and what is written stays there."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_page(page, folder, capsys):
    names: dict = {"__name__": "__main__"}
    printed = None
    for block in blocks_of(page):
        place = f"{name_of(page)}, line {block.line}"
        assert block.kind in KINDS, f"{place}: the fence {block.kind!r} is none of {sorted(KINDS)}"
        if block.kind == "text":
            if printed is not None:
                check_output(block.text, printed)
            printed = None
        elif block.kind == "toml":
            file = FILE_NAME.search(block.before)
            assert file, f"{place}: say the name of the file before it, as in: save this as `name.toml`:"
            (folder / file[1]).write_text(block.text)
        elif block.kind == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
            printed = capsys.readouterr().out
        elif block.kind == "sh":
            for line in block.text.splitlines():
                if line.startswith("twolayer "):
                    assert main(shlex.split(line, comments=True)[1:]) == 0, f"{place}: {line}"
            printed = capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_notebook(notebook, folder, capsys):
    cells = json.loads(notebook.read_text())["cells"]
    names: dict = {"__name__": "__main__", "display": lambda shown: None}
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number}", "exec"), names)
        shown = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
        printed = capsys.readouterr().out
        if shown:
            check_output(shown, printed)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_a_notebook_opens_with_a_picture(notebook):
    first = next(cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code")
    assert any("image/png" in output.get("data", {}) for output in first["outputs"])


def test_there_are_notebooks_and_pages():
    assert len(NOTEBOOKS) >= 3 and len(PAGES) >= 20


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_that_a_page_names_exist(page):
    named = re.findall(r"`((?:tests|examples|benchmarks|src|scripts|docs)/[\w./-]+)`", page.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_every_public_name_is_in_the_reference():
    reference = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: twolayer\.([\w.]+)$", reference, flags=re.MULTILINE))
    modules = {"kernel", "learnability", "plots"}
    public = {name for name in vars(api) if not name.startswith("_")}
    assert public <= set(dir(twolayer))
    objects = {name for name in public if not isinstance(getattr(twolayer, name), type(math))}
    rooms = {f"{room}.{name}" for room in modules for name in exported(room)}
    assert not sorted((objects | rooms) - named)


def exported(room: str) -> list[str]:
    """The names that the file of a room imports to be found there: those with an `as` of the same name."""
    text = (ROOT / "src" / "twolayer" / room / "__init__.py").read_text()
    return re.findall(r"^from \S+ import (\w+) as \1$", text, flags=re.MULTILINE)


def test_output_that_differs_is_seen():
    check_output("a 1.00\n...\nlast", "a 1.001\nb\nc\nlast")
    for shown in ("a 2.0", "b 1.0", "a 1.0\nlast"):
        with pytest.raises(AssertionError):
            check_output(shown, "a 1.0\nb\nlast")


def test_the_course_gives_the_words_of_a_verdict_the_meanings_of_the_package():
    rows = re.findall(
        r"^\| ([a-z-]+(?: effect)?) \| (.+) \|$", (DOCS / "course" / "limits.md").read_text(), re.MULTILINE
    )
    assert [row for row in rows if row[0] != "word"] == list(OUTCOMES.items())
