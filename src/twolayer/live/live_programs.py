"""A problem and its training as a program for the browser: SGD on the overlaps, and the equations of their motion.

The program is written from the same functions as native code. Learning rate, noise and other nonzero numbers of the
training are data; dimensions are a list, since the chi variables of each have coefficients of their own.
"""

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.array_loops import ArrayProgram, as_loops
from twolayer.compiler.loops import WrittenOut, as_rows
from twolayer.compiler.scalar import Program, Unsupported, scalarize
from twolayer.compiler.wasm import Compiled, MemoryLayout, compiled_to_wasm
from twolayer.core.errors import InvalidInput, NotApplicable
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.expectation import Chosen, choose
from twolayer.problem import Overlaps, Problem
from twolayer.simulation import OverlapSGD
from twolayer.simulation.drivers import begun, numbers_of, varying, with_numbers, written_out
from twolayer.simulation.overlap import Setting, State, make_setting, overlaps_of
from twolayer.simulation.overlap_batch import shareable
from twolayer.simulation.overlap_sgd import MAX_WIDTH
from twolayer.specification.fields import as_data, replaced
from twolayer.theory import SaadSolla
from twolayer.theory.motion import integrate
from twolayer.theory.motion.tableaus import DORMAND_PRINCE, TSITOURAS
from twolayer.training import SGD

# Operations beyond which a program is written as loops over arrays instead of one line for each number, and beyond
# which one evaluation of the theory's right-hand side takes a browser some ten milliseconds, which is too long.
STRAIGHT, LONGEST = 5_000, 5_000_000


class LiveProgram(NamedTuple):
    """A module for the browser, and what the page has to know of it (see the architecture page)."""

    binary: bytes
    manifest: dict[str, Any]

    def script(self, name: str) -> str:
        """The program as a script that defines it under a name, so that a page needs no server to load it."""
        manifest = _packed(json.dumps(self.manifest, separators=(",", ":")).encode())
        return f"twolayerLive.define({json.dumps(name)},{json.dumps(manifest)},{json.dumps(self.packed)});\n"

    @property
    def packed(self) -> str:
        """The module, compressed and written as text, as the engine takes it."""
        return _packed(self.binary)


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def live_program(
    problem: Problem,
    training: SGD,
    dimensions: Sequence[int] = (),
    *,
    replicas: int = 32,
    seed: int = 0,
    risk_threshold: float | None = None,
    overlap_threshold: float | None = None,
    with_theory: bool = True,
    like: LiveProgram | None = None,
) -> LiveProgram:
    """Write a problem and its training as a program for the browser.

    Parameters
    ----------
    problem, training
        What `OverlapSGD` can follow, one sample a step, with a student of width up to eight. What is nonzero in them
        and a number can be changed on the page.
    dimensions
        The dimensions between which the page can choose; that of the inputs by default.
    replicas, seed
        How many starts the program holds, and the seed of these and of their random numbers: the replicas of
        ``evolve(problem, training, OverlapSGD(), replicas=replicas, seed=seed)``.
    risk_threshold, overlap_threshold
        Thresholds whose first passages are kept: on the excess risk, as a part of its value at each start, and on the
        cosine of a neuron with a target direction.
    with_theory
        Whether the equations of `SaadSolla` are part of the program, where their averages can be written out.
    like
        A program of the same structure, from which this one differs in numbers and starts: its module is used again.
    """
    with double():
        given = tuple(dimensions) or (problem.d,)
        settings = [_setting(problem, training, d) for d in given]
        for d, setting in zip(given, settings, strict=True):
            if setting.chi.shape != settings[0].chi.shape:
                raise InvalidInput(
                    f"Argument `dimensions` must hold {given[0]} and other numbers of one program, but d = {d} needs "
                    "chi variables of another length; leave out dimensions below 100."
                )
        watch = Watch(risk_threshold is not None, overlap_threshold is not None)
        chosen = choose(settings[0].problem, ("excess_risk",)).variants()[0]
        settings = [replaced(setting, risk=chosen if watch.risk else None) for setting in settings]
        parts = _parts(problem, training, settings[0], watch, chosen, with_theory) if like is None else _Parts.of(like)
        thresholds = (risk_threshold, overlap_threshold)
        keys = jax.vmap(lambda n: replica_key(seed, n))(jnp.arange(replicas))
        cells = _cells(settings, watch, chosen, keys, thresholds)
    count = len(cells[0]["numbers"])
    if like and (like.manifest["names"] != _names(settings[0]) or len(like.manifest["cells"][0]["numbers"]) != count):
        raise InvalidInput("Argument `like` must be a program of the same structure, but its numbers are others.")
    return LiveProgram(parts.module.binary, _manifest(parts, settings[0], watch, cells))


class _Parts(NamedTuple):
    """What programs of one structure share."""

    module: Compiled
    sizes: dict[str, int]
    theory: dict[str, Any] | None

    @classmethod
    def of(cls, program: LiveProgram) -> "_Parts":
        layout = MemoryLayout(**program.manifest["layout"])
        return cls(Compiled(program.binary, layout), program.manifest["sizes"], program.manifest["theory"])


def _parts(
    problem: Problem, training: SGD, setting: Setting, watch: Watch, chosen: Chosen, with_theory: bool
) -> _Parts:
    """Trace and compile the functions of a program."""
    step = _step(setting, watch)
    velocity, theory = _theory(problem, training, setting) if with_theory else (None, None)
    sizes = {"state": step.state, "own": step.fixed - step.shared}
    try:
        others: dict[str, Any] = {"measure": _written(*_measuring(setting, step, chosen))}
        others |= {"velocity": velocity} if velocity is not None else {}
        return _Parts(compiled_to_wasm(step, others, step.shared), sizes, theory)
    except Unsupported as missing:
        raise NotApplicable(
            f"There is no program for the browser, since the risk cannot be written out for it: {missing}."
        ) from None


def _setting(problem: Problem, training: SGD, d: int) -> Setting:
    """The setting at a dimension, as a program that serves all of them."""
    at = replaced(problem, inputs=replaced(problem.inputs, d=d))
    applies = OverlapSGD().applies(at, training)
    if not applies.ok:
        raise NotApplicable(f"There is no program for the browser: {applies.statement}")
    if not at.is_isotropic:
        raise NotApplicable("A program for the browser needs inputs with the covariance I, but they have a spectrum.")
    if training.samples_per_step(at) != 1 or problem.p > MAX_WIDTH:
        raise NotApplicable(f"A program for the browser needs one sample a step and a width up to {MAX_WIDTH}.")
    if d < problem.k + 2 * problem.p + 1:
        raise InvalidInput(f"Argument `dimensions` must hold numbers above k + 2 p, but holds {d}.")
    return shareable(make_setting(*as_data((at, training))))


def _step(setting: Setting, watch: Watch) -> WrittenOut:
    try:
        return written_out(setting, watch, is_shared=True)
    except Unsupported as missing:
        raise NotApplicable(f"There is no program for the browser, since a step contains `{missing}`.") from None


def _written(function: Callable[..., Any], *examples: Any) -> Program | ArrayProgram:
    """A function as a program: straight where that is short, loops otherwise."""
    try:
        loops = as_loops(function, *examples)
    except Unsupported:
        return scalarize(function, *examples)
    if loops.operations > LONGEST:
        raise Unsupported(f"{loops.operations} operations")
    if loops.operations > STRAIGHT:
        return loops
    try:
        return scalarize(function, *examples)
    except Unsupported:  # it does not evaluate what is known, such as a decomposition of constants
        return loops


def _real(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float64)


def _shapes(setting: Setting) -> tuple[State, Overlaps]:
    p, k = setting.problem.p, setting.problem.k
    state: Any = State(_real(setting.rows, k), _real(setting.rows, setting.outside), _real(p))
    overlaps: Any = Overlaps(_real(p, p), _real(p, k), np.asarray(setting.problem.P, float), _real(p))
    return state, overlaps


# The names and shapes of what is measured, in the order of the function's outputs.
def _measured(setting: Setting) -> dict[str, list[int]]:
    p, k = setting.problem.p, setting.problem.k
    return {"Q": [p, p], "M": [p, k], "a": [p], "excess_risk": [], "risk": [], "alignment": [k]}


def _of_overlaps(setting: Setting, chosen: Chosen, overlaps: Overlaps) -> tuple[Array, ...]:
    risk = chosen.parts(setting.problem, overlaps, ("excess_risk",))["excess_risk"]
    lengths = jnp.diagonal(overlaps.Q)[:, None] * jnp.diagonal(jnp.asarray(overlaps.P))[None, :]
    alignment = jnp.max(jnp.abs(overlaps.M) * jax.lax.rsqrt(lengths), axis=0)
    return overlaps.Q, overlaps.M, overlaps.a, risk, risk + setting.problem.loss.floor(setting.problem.noise), alignment


def _measuring(setting: Setting, step: WrittenOut, chosen: Chosen) -> tuple[Any, ...]:
    """The function that measures the overlaps of a state, and the shapes of its arguments."""
    state, _ = _shapes(setting)
    crossings = step.state - sum(int(np.prod(leaf.shape)) for leaf in state)

    def measure(state: State, crossing: Array, numbers: Array) -> tuple[Array, ...]:
        here = with_numbers(setting, numbers)
        return (*_of_overlaps(here, chosen, overlaps_of(here, state)), crossing)

    return measure, state, _real(crossings), _real(step.shared)


# ------------------------------------------------------------------------------------------------------ the theory


def _theory(problem: Problem, training: SGD, setting: Setting) -> tuple[Program | ArrayProgram | None, dict[str, Any]]:
    """The right-hand side of the equations with what is measured of their state, and how they are integrated."""
    description = SaadSolla()
    applies = description.applies(problem, training)
    if not applies.ok:
        return None, {"reason": applies.statement}
    engine = description.choose(problem, training)
    chosen = engine.variants()[0]
    _, shapes = _shapes(setting)

    def velocity(Q: Array, M: Array, a: Array, numbers: Float[Array, " numbers"]) -> tuple[Any, ...]:
        here = with_numbers(setting, numbers)
        flow = description.flow(chosen, here.problem, here.training, jnp.asarray(shapes.P))
        overlaps = Overlaps(Q, M, jnp.asarray(shapes.P), a)
        return *flow.velocity((Q, M, a)), *_of_overlaps(here, chosen, overlaps)[3:]

    try:
        program = _written(velocity, shapes.Q, shapes.M, shapes.a, _real(len(numbers_of(setting))))
        compiled_to_wasm(None, {"velocity": program}, len(numbers_of(setting)))
    except Unsupported as missing:
        return None, {"reason": f"The averages of `{engine.name}` cannot be written out for a browser: {missing}."}
    accuracy = description.accuracy(engine)
    has_exact_averages = len(engine.variants()) == 1
    method = _method(accuracy, engine.rtol > 1e-6)
    return program, method | {"engine": engine.name, "has_exact_averages": has_exact_averages}


def _method(accuracy: Any, is_coarse: bool) -> dict[str, Any]:
    """The method of integration, whose numbers are those of `integrate`; pictures need six digits."""
    tableau = TSITOURAS if is_coarse else DORMAND_PRINCE
    numbers = {"rtol": max(1e-8, float(accuracy.rtol)), "atol": max(1e-10, float(accuracy.atol)), "max_steps": 20_000}
    limits = {"safety": integrate.SAFETY, "shrink": integrate.SHRINK, "grow": integrate.GROW, "first": integrate.FIRST}
    return {"A": tableau.A.tolist(), "error": tableau.error.tolist(), "order": tableau.order} | numbers | limits


# ---------------------------------------------------------------------------------------------------- the manifest


def _names(setting: Setting) -> dict[str, int]:
    """The places of numbers that a page may change among those of a setting, by their paths in the training."""
    training, _ = jax.tree.flatten_with_path(setting.training)
    paths = {id(leaf): jax.tree_util.keystr(path, simple=True, separator=".") for path, leaf in training}
    paths |= {id(setting.problem.noise): "noise", id(setting.d): "d"}
    places, place = {}, 0
    for leaf in varying(setting):
        if id(leaf) in paths:
            places[paths[id(leaf)]] = place
        place += int(np.size(leaf))
    return places


def _cells(
    settings: Sequence[Setting], watch: Watch, chosen: Chosen, keys: Array, thresholds: tuple[float | None, ...]
) -> list[dict[str, Any]]:
    """What belongs to each dimension: its numbers, its unit of time, and the starts of the replicas."""
    setting = settings[0]

    def one(key: Array, numbers: Array, d: Array) -> tuple[Any, Overlaps]:
        here = with_numbers(setting, numbers)
        start = here.problem.draw(key, d)
        risk = chosen.parts(here.problem, start, ("excess_risk",))["excess_risk"]
        limits = jnp.stack([(thresholds[0] or 0.0) * risk, jnp.asarray(thresholds[1] or 0.0)])
        return begun(here, watch, start, key, limits), start

    begin = jax.jit(jax.vmap(one, in_axes=(0, None, None)))
    cells = []
    for here in settings:
        problem, d = here.problem, int(here.d)
        clock = here.training.clock(replaced(problem, inputs=replaced(problem.inputs, d=d)))
        run, starts = begin(keys, jnp.asarray(numbers_of(here)), jnp.asarray(d))
        cells.append({
            "d": d,
            "numbers": numbers_of(here).tolist(),
            "time_per_rate": float(clock.time_per_step) / float(here.training.learning_rate),
            "states": _table((*run.state, run.crossing)),
            "own": _table((run.lengths, run.thresholds)),
            "words": np.asarray(run.words).astype(int).tolist(),
            "overlaps": _table((starts.Q, starts.M, starts.a)),
        })  # fmt: skip
    return cells


def _table(tree: tuple[Any, ...]) -> list[list[float]]:
    return np.stack([np.asarray(row, float) for row in as_rows(tree)], axis=1).tolist()


def _manifest(parts: _Parts, setting: Setting, watch: Watch, cells: list[dict[str, Any]]) -> dict[str, Any]:
    problem = setting.problem
    watched = ["risk"] * watch.risk + [f"overlap {n}" for n in range(problem.k)] * watch.overlaps
    return {
        "version": 1,
        "p": problem.p,
        "k": problem.k,
        "layout": parts.module.layout._asdict(),
        "sizes": parts.sizes,
        "measured": _measured(setting),
        "watched": watched,
        "names": _names(setting),
        "cells": cells,
        "theory": parts.theory,
    }
