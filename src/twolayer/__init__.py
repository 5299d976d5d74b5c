"""twolayer: see exactly how two-layer neural networks learn.

State a learning problem once; simulate it at finite d, predict it by theory, and compare the two.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twolayer.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the public names when one of them is first used.

    The command line is imported through this file. It must be able to listen for Ctrl-C, and to say in one sentence why
    JAX cannot be imported, before that import begins.
    """
    if name.startswith("__"):  # what Python itself asks of a module, such as __path__, is no reason to import anything
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = {key: value for key, value in vars(importlib.import_module("twolayer.api")).items() if key[0] != "_"}
    globals().update(public)
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in vars(importlib.import_module("twolayer.api")) if name[0] != "_")})
