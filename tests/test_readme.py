"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

from twolayer.gallery import pages

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_python_of_the_readme_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(compile(block, str(README), "exec"), names)
    assert names["result"].attrs["outcome"] in ("agrees", "consistent")
    out = capsys.readouterr().out
    assert "closed form (thresholds)" in out and "standard errors" in out


def test_the_files_the_readme_names_exist():
    for name in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()):
        assert (README.parent / name).exists(), name


def test_the_readme_counts_the_examples_and_the_pages_of_the_gallery():
    text = README.read_text()
    said = [int(re.search(pattern, text)[1]) for pattern in (r"(\d+) specifications", r"(\d+) pages")]
    examples = list((README.parent / "examples").rglob("*.toml"))
    assert said == [len(examples), len(pages())]
