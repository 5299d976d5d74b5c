"""Many cells of the overlap process at once: one compiled program, vectorised over cells and replicas.

Cells of one program differ in numbers only, which are constants of their replicas. The replicas of a cell fill whole
blocks, each with the steps of its own cell. Replicas that have stopped are left out.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from twolayer.compiler.draws import POWERS, SHORT
from twolayer.compiler.loops import LANES, WrittenOut, by_kernel, native, native_blocks
from twolayer.compiler.row_blocks import in_blocks, leaf_key
from twolayer.core import interrupts
from twolayer.description import Cell, Watch
from twolayer.problem import Overlaps
from twolayer.simulation.drivers import RunState, after_step, begun, numbers_of, varying, with_numbers
from twolayer.simulation.overlap import Setting, State, overlaps_of
from twolayer.specification.fields import replaced

# Where replicas stop at thresholds, all are looked at after this many steps, and then after this part of the steps.
FEWEST, PART = 64, 0.1
# Samples of all replicas between two checks for an interruption: a few seconds of work.
SAMPLES = 2**28


class Shared:
    """The setting of a program that serves many cells, known by a key: two with the same key are the same program."""

    def __init__(self, key: Hashable, setting: Setting, watch: Watch):
        self.key, self.setting, self.watch = (key, watch.risk, watch.overlaps), setting, watch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class CellTable(NamedTuple):
    """The replicas of all cells, along the first axis; the state is changed in place."""

    state: Float[np.ndarray, "rows n"]  # the numbers of the state, then the crossings
    fixed: Float[np.ndarray, "rows m"]  # lengths and thresholds
    words: Any  # two words of a key
    cell: Int[np.ndarray, " rows"]
    numbers: Float[np.ndarray, "cells numbers"]


# Advances some rows of a table, from the first to the last step of each cell.
AdvanceRows = Callable[[CellTable, np.ndarray, np.ndarray, np.ndarray], None]


def shareable(setting: Setting) -> Setting:
    """The setting with the table of its chi variables in a length that many dimensions have in common."""
    missing = 1 + max(degree for degree in POWERS if degree < SHORT) - setting.chi.shape[1]
    return replaced(setting, chi=np.pad(setting.chi, [(0, 0), (0, missing)])) if missing > 0 else setting


def key_of(setting: Setting) -> tuple[Hashable, ...]:
    """A value that is equal for settings that differ in their numbers only; starts are not part of a program."""
    numbers = {id(leaf) for leaf in varying(setting)}
    leaves, structure = jax.tree.flatten(replaced(setting, problem=replaced(setting.problem, start=None)))
    return (structure, *(np.shape(leaf) if id(leaf) in numbers else leaf_key(leaf) for leaf in leaves))


def _packed(run: RunState) -> Float[Array, " n"]:
    return jnp.concatenate([jnp.ravel(x) for x in (*run.state, run.crossing)])


def _unpacked(setting: Setting, flat: Float[Array, " n"]) -> tuple[State, Float[Array, " crossings"]]:
    p, k, rows, outside = setting.problem.p, setting.problem.k, setting.rows, setting.outside
    M, L, a, crossing = jnp.split(flat, np.cumsum([rows * k, rows * outside, p]))
    return State(M.reshape(rows, k), L.reshape(rows, outside), a), crossing


# ------------------------------------------------------------------------------------------------ start and end


def _begun(common: tuple[Setting, Watch, Array], row: tuple[Any, ...]) -> tuple[Array, Array, Array]:
    setting, watch, P = common
    Q, M, a, words, thresholds, numbers = row
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    run = begun(with_numbers(setting, numbers), watch, Overlaps(Q, M, P, a), key, thresholds)
    return _packed(run), jnp.concatenate([run.lengths, run.thresholds]), run.words


def begin_cells(shared: Shared, settings: Sequence[Setting], cells: Sequence[Cell]) -> CellTable:
    """The table of all replicas at their starts."""
    plans = [cell.plan for cell in cells]
    numbers = np.stack([numbers_of(setting) for setting in settings])
    cell = np.repeat(np.arange(len(cells)), [plan.replicas for plan in plans])
    distinct = {id(plan.keys): plan.keys for plan in plans}
    data = {name: np.asarray(jax.random.key_data(keys)) for name, keys in distinct.items()}
    starts = [np.concatenate([np.asarray(getattr(plan.starts, name)) for plan in plans]) for name in ("Q", "M", "a")]
    keys = np.concatenate([data[id(plan.keys)] for plan in plans])
    thresholds = np.concatenate([Watch.thresholds(plan) for plan in plans])
    common = (shared.setting, shared.watch, np.asarray(plans[0].starts.P))
    state, fixed, words = in_blocks(_begun, common, (*starts, keys, thresholds, numbers[cell]))
    return CellTable(np.array(state), fixed, words, cell, numbers)


def _measured(setting: Setting, flat: Array) -> tuple[Array, Array, Array]:
    overlaps = overlaps_of(setting, _unpacked(setting, flat)[0])
    return overlaps.Q, overlaps.M, overlaps.a


# ------------------------------------------------------------------------------------------------ the steps


class Blocks(NamedTuple):
    """Rows in blocks of one width; a block holds rows of one cell, and is filled up with the last of them."""

    members: Int[np.ndarray, " blocks*width"]
    is_own: Bool[np.ndarray, " blocks*width"]  # False for what fills up a block
    cell: Int[np.ndarray, " blocks"]

    @classmethod
    def of(cls, rows: np.ndarray, cell: np.ndarray, width: int) -> "Blocks":
        """Arrange rows, which are sorted by their cells."""
        cells, first, count = np.unique(cell, return_index=True, return_counts=True)
        blocks = -(-count // width)
        ends = width * np.cumsum(blocks)
        place = np.arange(ends[-1]) - np.repeat(ends - width * blocks, width * blocks)
        last = np.repeat(count - 1, width * blocks)
        members = rows[np.repeat(first, width * blocks) + np.minimum(place, last)]
        return cls(members, place <= last, np.repeat(cells, blocks))


def by_native_code(program: WrittenOut, replicas: int) -> AdvanceRows:
    """The steps by native code, for cells of about ``replicas`` replicas."""
    kernel = native(program, replicas).kernel

    def advance(table: CellTable, rows: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
        blocks = Blocks.of(rows, table.cell[rows], kernel.width)
        constants = np.hstack([np.tile(kernel.constants, (len(table.numbers), 1)), table.numbers])
        spans = np.stack([first, last], axis=1)[blocks.cell]
        state, fixed, words = (x[blocks.members] for x in (table.state, table.fixed, table.words))
        moved = native_blocks(kernel, state, fixed, words, constants[blocks.cell], spans)
        table.state[rows] = moved[blocks.is_own]

    return advance


def by_gpu_kernel(program: WrittenOut) -> AdvanceRows:
    """The steps by one GPU kernel."""

    def advance(table: CellTable, rows: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
        blocks = Blocks.of(rows, table.cell[rows], LANES)
        # Few compiled shapes are needed when blocks without a step fill up a power of two.
        missing = (1 << (len(blocks.cell) - 1).bit_length()) - len(blocks.cell)
        members = np.append(blocks.members, np.resize(blocks.members, missing * LANES))
        cell = table.cell[members]
        fixed = np.hstack([table.fixed[members], table.numbers[cell]])
        begin, end = (np.append(steps[blocks.cell], np.zeros(missing, np.int64)) for steps in (first, last))
        state, constants, words = (list(x.T) for x in (table.state[members], fixed, table.words[members]))
        moved = np.stack(jax.device_get(by_kernel(program, state, constants, words, begin, end)), axis=1)
        table.state[rows] = moved[: len(blocks.is_own)][blocks.is_own]

    return advance


def _advanced(common: tuple[Setting, Watch], row: tuple[Any, ...]) -> Array:
    setting, watch = common
    flat, fixed, words, numbers, first, last = row
    setting = with_numbers(setting, numbers)
    state, crossing = _unpacked(setting, flat)
    run = RunState(state, fixed[: setting.problem.p], fixed[setting.problem.p :], words, crossing)
    return _packed(jax.lax.fori_loop(first, last, lambda step, run: after_step(setting, watch, run, step), run))


def advance_arrays(shared: Shared) -> AdvanceRows:
    """The steps on arrays by XLA, for any batch size and width."""

    def advance(table: CellTable, rows: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
        cell = table.cell[rows]
        # Rows of a block take as long as the longest of them.
        rows = rows[np.argsort(first[cell] - last[cell], kind="stable")]
        cell = table.cell[rows]
        parts = (table.state[rows], table.fixed[rows], table.words[rows], table.numbers[cell], first[cell], last[cell])
        table.state[rows] = in_blocks(_advanced, (shared.setting, shared.watch), parts)

    return advance


class SavedRows(NamedTuple):
    """What is saved of the replicas of a cell."""

    rows: dict[str, np.ndarray]  # Q, M and a at the save points
    crossing: np.ndarray  # at the end


def follow_cells(shared: Shared, table: CellTable, cells: Sequence[Cell], advance: AdvanceRows) -> list[SavedRows]:
    """Advance all rows through the save points of their cells; the plans agree on whether and when replicas stop."""
    plan, setting = cells[0].plan, shared.setting
    points = [np.asarray(cell.plan.steps, np.int64) for cell in cells]
    sizes = np.array([len(steps) for steps in points])
    goals = np.stack([np.pad(steps, (0, sizes.max() - len(steps)), mode="edge") for steps in points])
    crossings = shared.watch.size(setting.problem.k)
    saved = np.empty((len(table.state), sizes.max(), table.state.shape[1]))
    saved[:, 0] = table.state
    at, place = np.zeros(len(cells), np.int64), np.ones(len(cells), np.int64)
    while np.any(is_open := place < sizes):
        interrupts.check()
        reached = (np.any if plan.stops_at_any else np.all)(table.state[:, -crossings:] >= 0.0, axis=1)
        rows = np.flatnonzero(is_open[table.cell] & ~(plan.stops & reached))
        goal = goals[np.arange(len(cells)), np.minimum(place, sizes.max() - 1)]
        most = max(FEWEST, SAMPLES // (setting.batch * max(1, rows.size)))
        stride = np.maximum(FEWEST, (PART * at).astype(np.int64)) if plan.stops else most
        has_rows = np.bincount(table.cell[rows], minlength=len(cells)) > 0
        last = np.where(has_rows, np.minimum(goal, at + np.minimum(stride, most)), goal)
        if rows.size:
            advance(table, rows, at, last)
        at = np.where(is_open, last, at)
        is_there = np.flatnonzero((is_open & (at == goal))[table.cell])
        saved[is_there, place[table.cell[is_there]]] = table.state[is_there]
        place = place + (is_open & (at == goal))
    is_point = np.arange(sizes.max())[None, :] < sizes[table.cell][:, None]
    measured = in_blocks(_measured, setting, saved[is_point])
    ends = np.cumsum(sizes * np.bincount(table.cell))[:-1]
    parts = zip(*(np.split(x, ends) for x in measured), strict=True)
    last_crossings = np.split(table.state[:, -crossings:], np.flatnonzero(np.diff(table.cell)) + 1)
    return [
        SavedRows({name: x.reshape(-1, size, *x.shape[1:]) for name, x in zip("QMa", part, strict=True)}, crossing)
        for part, size, crossing in zip(parts, sizes, last_crossings, strict=True)
    ]
