"""The planes in the space of a target's fields on which it has kinks and jumps, oblique ones included."""

import ast
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from twolayer.problem import expression as formulas
from twolayer.problem.kinks import MOST, _factors, _surfaces, _zeros
from twolayer.problem.ridge_form import Direction, _axis, _directions, _on_line, _text
from twolayer.problem.targets import AbstractTarget


class Planes(NamedTuple):
    """Parallel planes: their common normal vector, and the values of the field along it where they are."""

    direction: Direction
    places: tuple[float, ...]


def kink_planes(target: AbstractTarget) -> tuple[Planes, ...] | None:
    """Return the planes on which a target has kinks or jumps, by direction.

    They are those along single fields where these are known, as for ``step(z1)*z2``, and those of a formula whose kinks
    are at values of linear forms, as for ``abs(z1 + z2)*z2`` and ``max(z1, z2)``. None if they are not known, are
    curved as for ``abs(z1*z2 - 1)``, or are more than ``MOST`` in one direction.
    """
    if target.kinks is not None:
        axes = (Planes(_axis(r, target.k), places) for r, places in enumerate(target.kinks))
        return tuple(planes for planes in axes if planes.places)
    text = _text(target)
    return None if text is None else _of_formula(text, target.k)


@lru_cache(maxsize=256)
def _of_formula(text: str, k: int) -> tuple[Planes, ...] | None:
    places: dict[Direction, set[float]] = {}
    for call in ast.walk(formulas._parse(text)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        for surface in _surfaces(call.func.id, call.args):
            for factor in _factors(surface):
                directions = _directions(factor, k)
                if len(directions) > 1:
                    return None
                for direction in directions:
                    line = np.asarray(direction) / np.dot(direction, direction)
                    places.setdefault(direction, set()).update(_zeros(_on_line(factor, line)))
    if max(map(len, places.values()), default=0) > MOST:
        return None
    return tuple(Planes(direction, tuple(sorted(offsets))) for direction, offsets in places.items() if offsets)
