"""twolayer: see exactly how two-layer neural networks learn.

State a learning problem once; simulate it at finite d, predict it by theory, and compare the two.
"""

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twolayer.api import *  # noqa: F403

__version__ = "0.2.0"

# XLA would report every program that it reads from disk as an error, since the names of two features of processors
# differ between its parts. Its real errors are exceptions. It reads this when JAX is imported; where that
# has happened before, `programs` sets the level.
if "jaxlib" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def __getattr__(name: str) -> Any:
    """Import the public names when one of them is first used.

    The command line is imported through this file. It must be able to listen for Ctrl-C, and to say in one sentence why
    JAX cannot be imported, before that import begins.
    """
    if name.startswith("__"):  # what Python itself asks of a module, such as __path__, is no reason to import anything
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:  # `from twolayer import cli` asks here first
        return importlib.import_module(f"{__name__}.{name}")
    public = vars(importlib.import_module("twolayer.api"))
    if name.startswith("_") or name not in public:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = public[name]
    return public[name]


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted(own | {name for name in vars(importlib.import_module("twolayer.api")) if not name.startswith("_")})
