"""Names that two processes give to the same thing: a digest of all that a traced program can depend on.

Numbers, texts and containers are described by their content, objects of this package and of the libraries by their
class and their fields, functions of modules by their place. A function of the user is described by its code and by
everything the code refers to. What cannot be described has no name, and `Nameless` is raised.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib
import os
import sys
import types
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PACKAGE = Path(__file__).parents[1]
# Modules whose content is that of their versions.
LIBRARIES = ("jax", "jaxlib", "numpy", "equinox", "scipy", "jaxtyping", *sys.stdlib_module_names)
OWN = "twolayer"
# Those that take part in traced programs, whose versions therefore belong to the name of each.
TRACED = ("jax", "jaxlib", "numpy", "scipy", "equinox", "optimistix", "lineax")
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


class Nameless(Exception):
    """Something that two processes cannot recognise as the same."""


class Argument(NamedTuple):
    """An array that a program is given: only its shape and type belong to the program."""

    shape: tuple[int, ...]
    dtype: str
    is_weak: bool


@cache
def foundations() -> str:
    """What programs depend on besides themselves: Python, the libraries, and the files of this package."""
    known = [sys.version, *map(metadata.version, TRACED)]
    files = [f"{place} {status.st_size} {status.st_mtime_ns}" for place, status in sorted(_files(PACKAGE))]
    known += [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_ENABLE_X64")]
    return hashlib.sha256("\n".join([*known, *files]).encode()).hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            elif entry.name.endswith(".py"):
                yield entry.path[len(str(PACKAGE)) :], entry.stat()


def digest(*things: object) -> str:
    """The name of some things together; raises `Nameless`."""
    pieces: list[str] = []
    _Description(pieces).of(things)
    return hashlib.sha256("\x00".join(pieces).encode()).hexdigest()


class _Description:
    """The pieces of text that describe things, in an order that is the same in every process.

    An array is a constant of the program, with its numbers, unless an `Argument` stands in its place.
    """

    def __init__(self, pieces: list[str]):
        self.pieces = pieces
        self.open: list[Any] = []  # what is being described, which may refer to itself

    def say(self, *words: object) -> None:
        """Add the words to the description."""
        self.pieces.append(" ".join(map(str, words)))

    def of(self, thing: Any) -> None:
        """Describe one thing with everything in it."""
        if isinstance(thing, PLAIN) and type(thing) in PLAIN:
            self.say(type(thing).__name__, repr(thing))
            return
        for place, other in enumerate(self.open):
            if other is thing:
                self.say("again", place)
                return
        self.open.append(thing)
        try:
            self._of_content(thing)
        finally:
            self.open.pop()

    def _of_content(self, thing: Any) -> None:
        import jax

        if isinstance(thing, Argument):
            self.say("argument", *thing)
        elif isinstance(thing, jax.Array | np.ndarray | np.generic):
            self._of_array(thing)
        elif isinstance(thing, np.dtype | enum.Enum):
            self.say(type(thing).__name__, str(thing))
        elif isinstance(thing, types.ModuleType | type):
            self._of_place(thing, thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__)
        elif type(thing) in (tuple, list):
            self.say(type(thing).__name__, len(thing))
            for member in thing:
                self.of(member)
        elif type(thing) is dict:
            self.say("dict", len(thing))
            for key, member in thing.items():
                self.of(key)
                self.of(member)
        elif type(thing) is frozenset:
            self.of(sorted(map(digest, thing)))
        elif isinstance(thing, types.CodeType):
            self._of_code(thing)
        elif isinstance(thing, functools.partial):
            self.say("partial")
            self.of((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, types.MethodType):
            self.say("method")
            self.of((thing.__self__, thing.__func__))
        elif callable(thing) and self._is_at_its_place(thing):
            self.say("at", thing.__module__, thing.__qualname__)
        elif isinstance(thing, types.FunctionType):
            self._of_function(thing)
        elif dataclasses.is_dataclass(thing) or isinstance(thing, tuple):
            self._of_fields(thing)
        else:
            raise Nameless(f"{type(thing).__module__}.{type(thing).__qualname__}")

    def _of_array(self, thing: Any) -> None:
        if not isinstance(thing.dtype, np.dtype) or thing.dtype.hasobject:  # random keys, and objects
            raise Nameless(str(thing.dtype))
        self.say("array", np.shape(thing), thing.dtype, getattr(thing, "weak_type", False))
        self.say(hashlib.sha256(np.ascontiguousarray(thing).tobytes()).hexdigest())

    def _of_place(self, thing: Any, module: str) -> None:
        if module.partition(".")[0] not in (*LIBRARIES, OWN):
            raise Nameless(module)
        self.say(type(thing).__name__, module, getattr(thing, "__qualname__", ""))

    def _is_at_its_place(self, thing: Any) -> bool:
        """Whether a function is what its module, of a library or of this package, holds under its name."""
        module, path = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        if not module or not path or module.partition(".")[0] not in (*LIBRARIES, OWN):
            return False
        try:
            found = functools.reduce(getattr, path.split("."), importlib.import_module(module))
        except (ImportError, AttributeError):
            return False
        return thing in (found, getattr(found, "__wrapped__", None))

    def _of_function(self, thing: types.FunctionType) -> None:
        self.say("function")
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        self.of((thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells))
        for name in sorted(_names(thing.__code__)):
            if name in thing.__globals__:
                self.say(name)
                self.of(thing.__globals__[name])

    def _of_code(self, thing: types.CodeType) -> None:
        names = thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_cellvars
        arguments = thing.co_argcount, thing.co_posonlyargcount, thing.co_kwonlyargcount, thing.co_flags
        self.say("code", thing.co_code.hex(), thing.co_exceptiontable.hex(), *names, *arguments)
        self.of(thing.co_consts)

    def _of_fields(self, thing: Any) -> None:
        """Describe a module of Equinox, another data class or a named tuple by its class and its fields."""
        self._of_place(type(thing), type(thing).__module__)
        is_tuple = isinstance(thing, tuple)
        names = getattr(thing, "_fields", ()) if is_tuple else [field.name for field in dataclasses.fields(thing)]
        if is_tuple and len(names) != len(thing):
            raise Nameless(type(thing).__qualname__)
        for name in names:
            self.say(name)
            self.of(getattr(thing, name))


def _names(code: types.CodeType) -> set[str]:
    """The names to which code refers, with that of functions within it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
