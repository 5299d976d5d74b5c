"""Every example in a docstring gives what stands below it."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
WITH_EXAMPLES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted((SOURCE / "twolayer").rglob("*.py"))
    if re.search(r"^\s+>>> ", path.read_text(), re.MULTILINE)
]


def test_examples_are_found():
    assert {"twolayer.analyses.quantity", "twolayer.verbs.derive"} <= set(WITH_EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings(module, capsys):
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0 < results.attempted, capsys.readouterr().out
