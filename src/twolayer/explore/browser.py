"""Programs for the page itself: what a browser can compute of a specification, it computes at once."""

import json
from collections import OrderedDict

import numpy as np

from twolayer.ask import RunSpec
from twolayer.core.errors import InvalidInput
from twolayer.core.precision import double
from twolayer.explore.curves import as_lists
from twolayer.explore.messages import Tables
from twolayer.live import LiveProgram, live_program
from twolayer.problem import Flips
from twolayer.training import SGD

# Numbers of a training that are data of a program; whether they are zero is part of it.
DATA = frozenset(("learning_rate", "weight_decay", "momentum", "ratio"))
# Runs whose starts are sent to the page; more are left to the server.
RUNS = 64
KEPT = 8  # programs that are kept, by their structure

_programs: "OrderedDict[str, LiveProgram]" = OrderedDict()


def _structure(asked: RunSpec, spec: Tables) -> str:
    """The specification without the numbers that a module takes as data; chi variables are others at small d."""
    problem, training = dict(spec["problem"]), dict(spec["training"])
    own = asked.problem
    problem["inputs"] = [min(own.d, 100), isinstance(own.noise, Flips), own.is_noisy, own.is_isotropic]
    problem.pop("noise", None)

    def masked(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: bool(item) if name in DATA and _is_number(item) else masked(item) for name, item in value.items()}

    return json.dumps([problem, masked(training)], sort_keys=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def browser_program(asked: RunSpec, spec: Tables) -> Tables:
    """The program of a specification with the starts of its runs, and what else its curves hold.

    Raises `NotApplicable` with the reason where a browser cannot follow the training.
    """
    problem, training = asked.problem, asked.training
    if not isinstance(training, SGD):
        raise InvalidInput("`training`: must be one method here, but is a schedule of several.")
    structure = _structure(asked, spec)
    replicas = asked.ask.replicas if asked.ask.replicas <= RUNS else 1
    with double():
        live = live_program(problem, training, replicas=replicas, seed=asked.ask.seed, like=_programs.get(structure))
        times = asked.ask.times()
    _programs[structure] = live
    _programs.move_to_end(structure)
    while len(_programs) > KEPT:
        _programs.popitem(last=False)
    return {
        "manifest": live.manifest,
        "packed": live.packed,
        "times": as_lists(times),
        "replicas": asked.ask.replicas,
        "P": as_lists(np.asarray(problem.P)),
        "engine": (live.manifest["theory"] or {}).get("engine", ""),
    }
