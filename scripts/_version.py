"""Print the version of the checkout; the status is 1 when its files disagree. Used by scripts/release."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def versions() -> dict[str, str]:
    """The version that each file states."""
    package = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/twolayer/__init__.py").read_text(), flags=re.MULTILINE)
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    return {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        "src/twolayer/__init__.py": package[1] if package else "none",
        "CITATION.cff": citation[1] if citation else "none",
    }


stated = versions()
print(stated["pyproject.toml"])
if len(set(stated.values())) > 1:
    print(f"twolayer: the versions in the files must be the same, but are {stated}.", file=sys.stderr)
    sys.exit(1)
