"""Shared links: the state of a page stands after ``#``, as JSON in base 64 (`static/state.js` writes it)."""

import base64
import binascii
import re

from twolayer.core.errors import InvalidInput, shown
from twolayer.explore.messages import Tables, read_body

VERSION = 1


def is_link(text: str) -> bool:
    """Whether a text is a link of the page, or the part of one from ``#`` on."""
    return re.match(r"https?://|#", text) is not None


def state_of(link: str) -> tuple[str, Tables]:
    """What a link says after ``#``, and the tables of its specification; `InvalidInput` where it holds none."""
    state = link.partition("#")[2].strip()
    try:
        content = base64.b64decode(state + "=" * (-len(state) % 4), altchars=b"-_", validate=True)
        tables = read_body(content)
    except (binascii.Error, ValueError):  # of which `InvalidInput` is one
        tables = {}
    spec = tables.get("spec")
    if not state or tables.get("v") != VERSION or not isinstance(spec, dict):
        raise InvalidInput(
            f"Argument `SPEC` must be a file, the name of a gallery page, or a link that the explorer's page copied, "
            f"but is {shown(link)}, which holds no state of that page."
        )
    return state, spec
