"""What every page of a source text must do; a test file per source text, so that they run side by side."""

import importlib.util
import json

import equinox as eqx
import pytest

from twolayer.experiment import read_lazy_spec, read_spec
from twolayer.gallery import PageOptions, make, pages

# Made by `scripts/test --all`: at least one page of each source, those that take about half a minute. `--long` makes
# the others as well, and so does `docs/make_gallery.py`.
QUICK = {
    "wasserstein-flow",
    "escape-trajectories",
    "batch-sizes",
    "eigenvector-projections",
    "provable-learning",
    "million-dimensions",
}


def names_of(source):
    """The pages of a source text as parameters."""
    return [
        pytest.param(page.name, marks=pytest.mark.slow if page.name in QUICK else pytest.mark.long)
        for page in pages()
        if page.source == source
    ]


def check(page, folder):
    """Its claims hold, its folder is whole, its text has an equation and says what to look at."""
    result = make(page, folder, PageOptions())
    assert result.claims and result.holds, "\n".join(map(str, result.claims))
    there = {path.name for path in folder.iterdir()}
    assert {"README.md", "spec.toml", "script.py", "numbers.json", *result.files} == there
    assert any(name.endswith(".png") for name in there)
    assert len(json.loads((folder / "numbers.json").read_text())["claims"]) == len(result.claims)
    text = (folder / "README.md").read_text()
    assert "$$" in text and "**What to look at.**" in text and "| claim |" in text
    tables = (folder / "spec.toml").read_text()
    if "[data]" in tables:  # `twolayer ntk` takes it, here without the files of an image set
        read_lazy_spec(folder / "spec.toml", ["data.source=sphere"])
    elif "[problem" in tables:
        read_spec(folder / "spec.toml")  # `twolayer run` takes it


def double_the_rate(monkeypatch, description):
    """A theory with twice the learning rate, which on its clock doubles the terms of second order in a step."""
    run = description.run

    def wrong(self, problem, training, plan):
        return run(self, problem, eqx.tree_at(lambda method: method.learning_rate, training, replace_fn=twice), plan)

    monkeypatch.setattr(description, "run", wrong)


def twice(number):
    """The double."""
    return 2.0 * number


def script_of(page):
    """The script of a page as a module."""
    where = importlib.util.spec_from_file_location(f"script_of_{page.folder.name}", page.folder / "script.py")
    script = importlib.util.module_from_spec(where)
    where.loader.exec_module(script)
    return script
