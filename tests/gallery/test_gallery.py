"""The gallery as a whole: what is listed, what a claim is, and that a page fails when its physics is broken."""

import importlib
import inspect
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from tests.gallery.pages import TWICE
from twolayer.cli import main
from twolayer.gallery import Claim, Page, agrees, make, pages, run_script, slope
from twolayer.gallery.page import HERE, SOURCES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_folder_is_a_page_and_every_page_is_listed(capsys):
    there = {path.parent for path in HERE.glob("*/*/script.py")}
    assert {page.folder for page in pages()} == there
    assert {page.source for page in pages()} <= set(SOURCES)
    assert main(["gallery", "--json"]) == 0
    out, err = capsys.readouterr()
    listed = json.loads(out)["pages"]
    assert [each["name"] for each in listed] == [page.name for page in pages()]
    assert all(each["title"] in err for each in listed)


def test_every_page_is_tried_with_broken_physics():
    """The list names a test of every page, which speaks of that page by its name or in its parameters."""
    assert sorted(name for tests in TWICE.values() for name in tests) == sorted(page.name for page in pages())
    for file, tests in TWICE.items():
        module = importlib.import_module(f"tests.gallery.{file}")
        for name, test in tests.items():
            function = getattr(module, test)
            parameters = [mark.args[1] for mark in function.pytestmark if mark.name == "parametrize"]
            assert f'"{name}"' in inspect.getsource(function) or any(_has(values, name) for values in parameters)


def _has(values, name):
    """Whether a page is among parameters, by itself or first of several."""
    return any(name == (value if isinstance(value, str) else value[0]) for value in values)


def test_the_site_shows_every_page_with_its_text():
    """Pictures and numbers of the site are made by `docs/make_gallery.py`; its words must be those of the pages."""
    index = (DOCS / "gallery.md").read_text()
    for page in pages():
        shown = (DOCS / "gallery" / f"{page.name}.md").read_text()
        title, _, body = page.text.partition("\n")
        assert shown.startswith(title) and body.strip() in shown, f"run `python docs/make_gallery.py {page.name}`"
        assert "**fails**" not in shown and f":link: gallery/{page.name}\n" in index


def test_the_index_is_made_of_stored_pictures(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS))
    make_gallery = importlib.import_module("make_gallery")
    assert (DOCS / "gallery.md").read_text() == make_gallery.index_text()
    monkeypatch.setattr(make_gallery, "HERE", tmp_path)
    with pytest.raises(SystemExit, match=rf"has none of `{pages()[0].name}`; run `python docs/make_gallery.py"):
        make_gallery.index_text()


def test_every_page_has_a_card():
    """A small picture of one panel of its figure."""
    for page in pages():
        path = DOCS / "gallery" / f"{page.name}-card.png"
        assert path.stat().st_size < 60_000
        with Image.open(path) as card:
            assert card.size == (600, 450) and len(np.unique(np.asarray(card.convert("L")))) > 10


def test_a_card_is_cut_out_at_the_gutters(monkeypatch, tmp_path):
    """Four panels with one colour each, under a common title: a card has its own colour and title and no other's."""
    monkeypatch.syspath_prepend(str(DOCS))
    make_cards = importlib.import_module("make_cards")
    colours = ["#ff0000", "#00ff00", "#0000ff", "#ff00ff"]
    figure, axes = plt.subplots(2, 2, figsize=(7, 5.5), layout="constrained")
    for ax, colour in zip(axes.flat, colours, strict=True):
        ax.fill_between([0, 1], [0, 1], color=colour)
        ax.set_title("its title", color=colour)
        ax.set_xlabel("an axis", color=colour)
        ax.set_ylabel("another axis", color=colour)
    figure.suptitle("the title of all", color="#00ffff")
    figure.savefig(tmp_path / "figure.png", dpi=200)
    plt.close(figure)
    boxes = make_cards.frames(np.asarray(Image.open(tmp_path / "figure.png").convert("L")))
    assert len(boxes) == 4
    for number in range(4):
        card = np.asarray(make_cards.card(tmp_path / "figure.png", number).convert("RGB")).astype(int)
        rgb = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in [*colours, "#00ffff"]]
        drawn = [np.abs(card - colour).sum(axis=-1) < 60 for colour in rgb]
        assert [each.any() for each in drawn] == [other == number for other in range(5)]
        assert not (card[:8] < 250).any() and not (card[-8:] < 250).any()
        own = drawn[number]  # letters above, below and to the left of the frame
        frame = np.argwhere(card.sum(axis=-1) < 90)
        (top, left), (bottom, _) = frame.min(axis=0), frame.max(axis=0)
        assert own[:top].any() and own[bottom:].any() and own[:, :left].any()


def test_the_table_of_claims_is_that_of_the_stored_pages(monkeypatch):
    """Each claim of the texts names claims of pages or tests that exist, and every page on a text serves one."""
    monkeypatch.syspath_prepend(str(DOCS))
    make_claims = importlib.import_module("make_claims")
    assert (DOCS / "claims.md").read_text() == make_claims.text()
    claims = make_claims.all_claims()
    cited = {page for claim in claims for page in claim.get("shown", {})}
    for claim in claims:
        assert "shown" in claim or make_claims.tests_of(claim)
        for file, names in make_claims.tests_of(claim):
            text = (DOCS.parent / file).read_text()
            assert all(f"\ndef test_{name}(" in text for name in names), (file, names)
    assert {page.name for page in pages() if SOURCES[page.source][1]} <= cited


def test_claims():
    assert Claim("a", 1.0, 0.9, 1.1).holds and not Claim("a", 1.2, 0.9, 1.1).holds
    assert not Claim("a", np.nan, low=0.0).holds
    assert Claim("a", np.nan).to_dict() == {"sentence": "a", "value": None, "low": None, "high": None, "holds": False}
    assert agrees("b", [1.0, 2.0], [0.1, 0.1], [1.0, 1.6]).value == pytest.approx(4.0)
    assert agrees("b", [1.0, 2.0], [0.1, 0.1], [1.0, 1.6], known_to=0.3).value == pytest.approx(1.0)
    assert slope([1.0, 10.0, 100.0], [3.0, 0.3, 0.03]) == pytest.approx(-1.0)


def test_bad_names_are_refused_and_nothing_is_written(tmp_path, capsys):
    assert main(["gallery", "escape-tims", "--out", str(tmp_path / "x")]) == 2
    assert "escape-times" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


BROKEN = """
import equinox as eqx
import twolayer as tl
from twolayer.gallery import Claim, Made, run_script
from twolayer.plots import risk
from twolayer.theory.formulas.phase_retrieval import closed_overlap

def make(spec, ask):
    wrong = eqx.tree_at(lambda each: each.learning_rate, spec.training, {factor} * spec.training.learning_rate)
    ode = tl.evolve(spec.problem, wrong, tl.SaadSolla(), until=1.0, save=[0.0, 1.0])
    exact = float(closed_overlap(1.0, 0.09, 0.06, 0.0)) ** 0.5
    return Made({{"figure": risk(ode)}}, [Claim("M", float(ode.M[0, -1, 0, 0]), exact - 1e-4, exact + 1e-4)])

if __name__ == "__main__":
    run_script(__file__)
"""


def page_with(folder, factor):
    folder.mkdir()
    (folder / "spec.toml").write_text(
        '[problem]\ntarget = "PhaseRetrieval"\n[problem.student]\np = 1\nactivation = "square"\n'
        '[problem.inputs]\nkind = "Gaussian"\nd = 2000\n[problem.start]\nkind = "WarmStart"\nm = [[0.3]]\n'
        '[training]\nlearning_rate = 0.06\nconstraint = "Sphere"\n'
    )
    (folder / "script.py").write_text(BROKEN.format(factor=factor))
    (folder / "text.md").write_text("# A page\n\n$$1$$\n")
    return Page(folder)


def test_a_page_whose_physics_is_broken_fails(tmp_path, monkeypatch, capsys):
    assert make(page_with(tmp_path / "right", 1.0), tmp_path / "a").holds
    result = make(page_with(tmp_path / "wrong", 1.5), tmp_path / "b")
    assert not result.holds and "FAILS" in str(result)
    assert "**fails**" in (tmp_path / "b" / "README.md").read_text()
    monkeypatch.setattr("sys.argv", ["script.py", "--out", str(tmp_path / "c")])
    with pytest.raises(SystemExit) as ended:
        run_script(tmp_path / "wrong" / "script.py")
    assert ended.value.code == 3 and "must be from" in capsys.readouterr().out
    assert (tmp_path / "c" / "figure.png").exists()
