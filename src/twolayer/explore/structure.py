"""What of a question decides which programs are compiled: its structure, without the numbers that are data.

The key is a hint, by which a question goes to a worker that has its programs; a wrong one costs time, never numbers.
"""

import hashlib
import json
from collections.abc import Hashable
from typing import Any

from twolayer.explore.messages import Tables

# Numbers that compiled programs take as data; only whether they are zero is known when compiling.
DATA = frozenset(
    "d noise learning_rate until seed weight_decay momentum ratio norm m deviation beta beta1 beta2 epsilon rate "
    "threshold risk_threshold overlap_threshold".split()
)
# What does not change the programs of a kind at all.
OF_NO_MATTER = frozenset(("title", "descriptions", "replicas"))
# Kinds that use the same programs.
FAMILIES = {"simulate": "simulate", "compare": "simulate", "download": "simulate"}


def structure(kind: str, spec: Tables, options: Tables) -> Hashable:
    """The kind of a question and its specification without numbers, as a key."""
    if kind == "check":
        return "check"
    chosen = {name: options[name] for name in ("description", "replicas") if name in options}
    return FAMILIES.get(kind, kind), json.dumps([_skeleton(spec), chosen], sort_keys=True)


def family(kind: str, spec: Tables, options: Tables) -> Hashable:
    """Structures that take about as long to compile: the same kinds of objects, of sizes up to a factor of two."""
    problem, training, run = (_table(spec, name) for name in ("problem", "training", "run"))
    student = _table(problem, "student")
    width = student.get("p")
    size = width.bit_length() if isinstance(width, int) else None
    target = problem.get("target")
    names = [target.get(name) for name in ("kind", "activation", "function")] if isinstance(target, dict) else target
    methods = {name: value for name, value in training.items() if not isinstance(value, int | float)}
    chosen = options.get("description") or run.get("descriptions")
    text = json.dumps([size, student.get("activation"), names, _skeleton(methods), chosen], sort_keys=True)
    return kind, hashlib.sha256(text.encode()).hexdigest()


def _table(tables: Tables, name: str) -> Tables:
    """A table within another one; empty where it is none."""
    inner = tables.get(name)
    return inner if isinstance(inner, dict) else {}


def _skeleton(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _skeleton(item, key) for key, item in value.items() if key not in OF_NO_MATTER}
    if name in DATA and isinstance(value, int | float) and not isinstance(value, bool):
        return "number" if value else "zero"
    return value


def what_is_compiled(kind: str, spec: Tables) -> str:
    """The structure in words."""
    problem = spec.get("problem")
    student = problem.get("student") if isinstance(problem, dict) else None
    words = {"simulate": "the simulation", "compare": "theory and simulation", "download": "theory and simulation"}
    what = words.get(kind, "the averages" if kind in ("explain", "learn", "escape") else "the equations")
    if not isinstance(student, dict):
        return what
    width, activation = student.get("p"), student.get("activation")
    if not isinstance(width, int) or not isinstance(activation, str) or len(activation) > 20:
        return what
    return f"{what} of {width} {activation} unit{'s' * (width != 1)}"
