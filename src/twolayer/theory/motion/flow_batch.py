"""Many flows of one structure at once: one compiled program, mapped over their numbers, starts and times."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.row_blocks import alike, if_hashable, in_blocks, leaf_key
from twolayer.compiler.scalar import Unsupported
from twolayer.core.precision import double
from twolayer.description import Plan, Record, Watch
from twolayer.theory.motion.error_bounds import nudged_overlaps
from twolayer.theory.motion.flow import AbstractFlow, Accuracy, Flows, Saved, Solving, judged, passage, saved_along
from twolayer.theory.motion.integrate import Tolerance
from twolayer.theory.motion.integrate_rows import RowCode, interpolates, risks_of_rows, row_code, solve_rows

# Blocks of one call: few, since integrating a block takes long, and calls are divided among the cores.
BLOCKS = 2


class FlowCell(NamedTuple):
    """A flow of the overlaps, whose states are (Q, M, a), and what is asked of it."""

    flows: Flows
    plan: Plan


class Template(NamedTuple):
    """A flow whose numbers at some places among its leaves differ between rows."""

    flow: AbstractFlow
    places: tuple[int, ...]

    @classmethod
    def of(cls, flow: AbstractFlow, other: AbstractFlow) -> "Template":
        """The flow with the places of the numbers in which another one of its structure differs."""
        pairs = zip(jax.tree.leaves(flow), jax.tree.leaves(other), strict=True)
        return cls(flow, tuple(place for place, (x, y) in enumerate(pairs) if leaf_key(x) != leaf_key(y)))

    def numbers(self, flow: AbstractFlow) -> list[np.ndarray]:
        """The numbers of another flow of this structure."""
        leaves = jax.tree.leaves(flow)
        return [np.asarray(leaves[place]) for place in self.places]

    def with_numbers(self, numbers: Sequence[Array]) -> AbstractFlow:
        """The flow with other numbers."""
        leaves, structure = jax.tree.flatten(self.flow)
        for place, number in zip(self.places, numbers, strict=True):
            leaves[place] = number
        return jax.tree.unflatten(structure, leaves)


def _trajectory(common: tuple[Template, Accuracy], row: tuple[Any, ...]) -> Any:
    template, accuracy = common
    numbers, start, times, limit = row
    flow = template.with_numbers(numbers)
    saved, *ends = saved_along(flow, start, (), times, accuracy, limit)
    risk = jax.lax.map(flow.risk, (saved.Q, saved.M, saved.a))  # in the same program, since the numbers differ
    return saved._replace(excess_risk=risk), *ends


def _passage(common: tuple[Template, Accuracy, Any], row: tuple[Any, ...]) -> Array:
    template, accuracy, direction = common
    numbers, start, times, threshold = row
    return passage(
        template.with_numbers(numbers), start, jnp.stack([times[0], times[-1]]), accuracy, threshold, direction
    )


# ------------------------------------------------------------------------------------------- by machine code on vectors

# The code of templates, by what their programs depend on.
_CODES: dict[Hashable, RowCode | None] = {}
MOST_CODES = 32


def machine_code(template: Template, numbers: Sequence[np.ndarray], start: tuple[np.ndarray, ...]) -> RowCode | None:
    """The code of a flow whose averages are closed forms, for rows of numbers and starts; None where there is none."""
    flow = template.flow
    if jax.default_backend() != "cpu" or flow.is_coarse or flow.interpolates:
        return None
    leaves, structure = jax.tree.flatten(flow)
    common = [None if n in template.places else leaf_key(leaf) for n, leaf in enumerate(leaves)]
    shapes = [x.shape[1:] for x in (*numbers, *start)]
    key = if_hashable((structure, *common, *shapes))
    if key is None:
        return None
    if key not in _CODES:
        if len(_CODES) >= MOST_CODES:
            _CODES.clear()
        _CODES[key] = _compiled(template, [np.asarray(x[0]) for x in numbers], tuple(x[0] for x in start))
    return _CODES[key]


def _compiled(template: Template, numbers: list[np.ndarray], start: tuple[np.ndarray, ...]) -> RowCode | None:
    functions = {
        "velocity": lambda state, numbers: template.with_numbers(numbers).velocity(state),
        "largest": lambda state, numbers: template.with_numbers(numbers).largest(state),
        "risk": lambda state, numbers: template.with_numbers(numbers).risk(state),
    }
    try:
        with double():
            return row_code(functions, start, numbers)
    except Unsupported:
        return None


def _in_vectors(code: RowCode, accuracies: Sequence[Accuracy], parts: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Solve several sets of rows, each with its own accuracy.

    Gives for each set the saved values along its rows (NaN after the end), and whether each is done or diverged.
    """
    number, shapes = len(parts[0][2]), [x.shape[1:] for x in parts[0][1]]

    def flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.reshape(x, (number, -1)) for x in arrays] or [np.empty((number, 0))], axis=1)

    numbers, starts = (np.concatenate([flat(part[n]) for part in parts]) for n in (0, 1))
    times, limits = (np.concatenate([part[n] for part in parts]) for n in (2, 3))
    tolerances = [np.repeat([float(getattr(x, name)) for x in accuracies], number) for name in ("rtol", "atol")]
    # The step of a method of eighth order is in proportion to this power of its tolerance.
    first = (tolerances[0] / tolerances[0].max()) ** (1 / 8)
    steps = int(accuracies[0].max_steps)
    solutions = solve_rows(code, starts, numbers, times, Tolerance(*tolerances), steps, limits, first)
    states = np.where(np.isfinite(solutions.states), solutions.states, np.nan)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    columns = np.split(states, ends[:-1], axis=2)
    saved: Any = [x.reshape(*states.shape[:2], *shape) for x, shape in zip(columns, shapes, strict=True)]
    saved.append(risks_of_rows(code, states, numbers))
    pieces = [slice(first, first + number) for first in range(0, len(states), number)]
    return [
        (Saved._make([*(x[piece] for x in saved), {}]), solutions.is_finished[piece], solutions.has_stopped[piece])
        for piece in pieces
    ]


def follow_together(cells: Sequence[FlowCell], other: Flows, k: int, accuracy: Accuracy) -> list[Record]:
    """Solve flows of one structure, each for its own plan; see `follow`, which solves one.

    Parameters
    ----------
    cells
        The flows and their plans.
    other
        A flow that differs from the first one in all numbers that may differ between cells. What it has in common with
        the first one, all cells have in common.
    k
        The number of target directions.
    accuracy
        The tolerances of the integrator.
    """
    first = cells[0].flows
    templates = [Template.of(*pair) for pair in zip(first.variants, other.variants, strict=False)]
    records: dict[int, Record] = {}
    for places in alike([_kind(cell.plan) for cell in cells]):
        part = [cells[place] for place in places]
        records |= zip(places, _follow_alike(part, templates, k, accuracy), strict=True)
    return [records[place] for place in range(len(cells))]


def _kind(plan: Plan) -> tuple[Any, ...]:
    return len(plan.times), plan.replicas, plan.risk_threshold is None, plan.overlap_threshold is None


def _follow_alike(cells: Sequence[FlowCell], templates: Sequence[Template], k: int, accuracy: Accuracy) -> list[Record]:
    """Solve flows whose plans have as many times and replicas and watch the same."""
    plans, flows = [cell.plan for cell in cells], cells[0].flows
    replicas, times = plans[0].replicas, np.stack([plan.times for plan in plans])
    Q, M, a = (np.stack([np.asarray(getattr(plan.starts, name)) for plan in plans]) for name in ("Q", "M", "a"))

    def numbers_of(variant: int, template: Template) -> list[np.ndarray]:
        numbers = [template.numbers(cell.flows.variants[variant]) for cell in cells]
        return [np.repeat(np.stack(x), replicas, axis=0) for x in zip(*numbers, strict=True)]

    numbers_of_variants = [numbers_of(*pair) for pair in enumerate(templates)]

    def rows_of(variant: int, Q: np.ndarray, M: np.ndarray, *data: Any) -> tuple[Any, ...]:
        """The rows of all replicas of all cells: numbers, starts, times and further data of each."""
        numbers = numbers_of_variants[variant]
        start = tuple(x.reshape(-1, *x.shape[2:]) for x in (Q, M, a))
        return numbers, start, np.repeat(times, replicas, axis=0), *data

    limits = np.repeat([plan.limit for plan in plans], replicas)
    is_between = False

    def paths(solvings: Sequence[Solving]) -> list[Any]:
        """The solutions with one variant of the averages."""
        template = templates[solvings[0].variant]
        wanted = [accuracy.looser(solving.looser) for solving in solvings]
        begins = [nudged_overlaps(Q, M, solving.sign) if solving.sign else (Q, M) for solving in solvings]
        rows = [rows_of(solvings[0].variant, *begin, limits) for begin in begins]
        code = machine_code(template, *rows[0][:2])
        if code is None:
            return [in_blocks(_trajectory, (template, one), row, BLOCKS) for one, row in zip(wanted, rows, strict=True)]
        nonlocal is_between
        is_between = interpolates(times.shape[1])
        return _in_vectors(code, wanted, rows)

    of_variants, of_integrator = flows.solvings
    solvings = [*of_variants, *of_integrator]
    solved: dict[int, Any] = {}
    for places in alike([solving.variant for solving in solvings]):
        solved |= zip(places, paths([solvings[place] for place in places]), strict=True)
    results = [solved[place] for place in range(len(of_variants))]
    loose = [solved[place][0] for place in range(len(of_variants), len(solvings))]
    crossing, overlap_time = np.full(len(limits), np.nan), np.full((len(limits), k), np.nan)
    thresholds = np.concatenate([Watch.thresholds(plan) for plan in plans])
    watch = Watch.of(plans[0])
    for direction in [None] * watch.risk + [*range(k)] * watch.overlaps:
        rows = rows_of(0, Q, M, thresholds[:, 0 if direction is None else 1])
        where = None if direction is None else np.asarray(direction)
        reached = in_blocks(_passage, (templates[0], accuracy.looser(1.0), where), rows, BLOCKS)
        if direction is None:
            crossing = reached
        else:
            overlap_time[:, direction] = reached
    if is_between:  # the error of the interpolation is about the tolerance
        least = tuple(np.maximum(flows.least, (float(accuracy.rtol), float(accuracy.atol))).tolist())
        flows = flows._replace(least=least)
    record = judged(flows, results, loose, crossing, overlap_time)
    return [
        jax.tree.map(lambda x: x[first : first + replicas] if isinstance(x, np.ndarray) else x, record)  # noqa: B023
        for first in range(0, len(limits), replicas)
    ]
