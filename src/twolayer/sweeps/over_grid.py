"""The verb that asks one question at every point of a grid."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from twolayer.analyses import NTKAsk
from twolayer.ask import Ask, AskFields, Training
from twolayer.core import interrupts
from twolayer.core.errors import InvalidInput, shown, takes_these
from twolayer.core.machine import cores
from twolayer.core.precision import double
from twolayer.data.provenance import provenance
from twolayer.data.store import FOLDERS
from twolayer.description import AbstractDescription
from twolayer.problem import Problem, Samples
from twolayer.specification.codec import encode
from twolayer.specification.fields import instance
from twolayer.sweeps import cluster
from twolayer.sweeps.axes import Axis, make_axes
from twolayer.sweeps.compute import Job
from twolayer.sweeps.content import CellBlock
from twolayer.sweeps.gathering import Gathering
from twolayer.sweeps.query import (
    GridCell,
    Query,
    cells_of,
    check_paths,
    environment,
    keys_of,
    make_query,
    whole_numbers,
)
from twolayer.sweeps.runner import AbstractExecutor, Counts, InProcess, run_jobs
from twolayer.sweeps.sweep_result import assembled
from twolayer.sweeps.sweep_store import MANIFEST, Store, home, own_folder, read_manifest
from twolayer.sweeps.workers import gpus, has_dask, local, number_of
from twolayer.training.sgd import AbstractLayers
from twolayer.verbs.evolve import Interrupted
from twolayer.verbs.progress import Progress, note, reporting, shows_progress

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client


class SweepFields(AskFields, total=False):
    """The fields of `Ask`, and the arguments of the analyses that can be swept."""

    threshold: float
    starts: int
    description: "AbstractDescription | str"
    samples: float
    pieces: int
    verify: bool
    largest: int
    steps: int
    random_labels: bool
    test: Samples
    shares: Sequence[float]
    target: str
    formula: str
    ridge: float
    method: str
    precision: str
    devices: int
    delta: float
    epsilon: float


class SweepSpec(NamedTuple):
    """What a sweep asks: a query, and the axes along which its fields change."""

    query: Query
    axes: tuple[Axis, ...]

    @property
    def json(self) -> str:
        """The canonical JSON of all that numbers depend on."""
        return json.dumps(self.tables(), sort_keys=True)

    def tables(self) -> dict[str, Any]:
        """The specification as plain data: what is asked, and the values of the axes."""
        over = {path: list(row) for axis in self.axes for path, row in zip(axis.paths, axis.values, strict=True)}
        together = [list(axis.paths) for axis in self.axes if len(axis.paths) > 1]
        return {"analysis": "sweep", **json.loads(self.query.json), "over": encode(over), "together": together}

    @property
    def key(self) -> str:
        """The hash that names the folder: that of the query, so that a sweep over more values finds what is there."""
        return self.query.key("")

    def cells(self) -> list[GridCell]:
        """All cells; refuses a sweep in which none can be asked."""
        cells = list(cells_of(self.query, self.axes))
        if all(cell.query is None for cell in cells):
            raise InvalidInput(cells[0].reason)
        return cells


def make_spec(
    problem: Problem,
    training: Training | AbstractLayers | None,
    descriptions: "AbstractDescription | str | Sequence[AbstractDescription | str] | Ask | NTKAsk | None",
    ask: Ask | NTKAsk | None,
    over: Mapping[str, Any],
    together: Sequence[Sequence[str]],
    verb: str | None,
    fields: Mapping[str, Any],
    statistics: bool = False,
) -> SweepSpec:
    """The specification of a sweep from the arguments of the verb."""
    instance("problem", Problem, "a Problem")(problem)
    if isinstance(descriptions, Ask | NTKAsk):  # what is asked may stand in the third place
        if ask is not None:
            raise InvalidInput("Argument `ask` is given twice.")
        descriptions, ask = None, descriptions
    is_one = isinstance(descriptions, AbstractDescription | str)
    if verb is None:
        verb = "evolve" if is_one else "compare"
    if descriptions is None:
        descriptions = ("DirectSGD", "SaadSolla") if verb == "compare" else ()
    members: Any = (descriptions,) if is_one else descriptions
    check = instance("descriptions", AbstractDescription, "a description such as SaadSolla(), or a list of them")
    members = tuple(check(member) for member in members)
    if verb == "evolve" and len(members) != 1:
        raise InvalidInput(
            f"Argument `descriptions` must be one description for `evolve`, but there are {len(members)}."
        )
    query = make_query(verb, problem, training, members, ask, fields, statistics)
    if not isinstance(over, Mapping):
        raise InvalidInput(f"Argument `over` must map paths of fields to their values, but is {shown(over)}.")
    if statistics and not over:
        return SweepSpec(query, ())
    axes = make_axes(over, together, whole_numbers(query, [path for path in over if isinstance(path, str)]))
    check_paths(query, axes)
    return SweepSpec(query, axes)


# Large: a verb has one argument for each thing that can be asked.
@takes_these
@shows_progress
def sweep(
    problem: Problem,
    training: Training | AbstractLayers | None = None,
    descriptions: "AbstractDescription | str | Sequence[AbstractDescription | str] | Ask | NTKAsk | None" = None,
    ask: Ask | NTKAsk | None = None,
    *,
    over: Mapping[str, Any] = MappingProxyType({}),
    together: Sequence[Sequence[str]] = (),
    verb: str | None = None,
    statistics: bool = False,
    out: str | Path | None = None,
    workers: int | None = None,
    scheduler: "str | Client | None" = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
    **fields: Unpack[SweepFields],
) -> "xr.Dataset | xr.DataTree":
    r"""Ask one question at every point of a grid, and label the answers by the axes.

    Parameters
    ----------
    problem, training
        What is learned, and how, where the axes do not say otherwise.
    descriptions
        One description, which `evolve` follows, or a list of them, which `compare` compares.
    ask
        What is asked of a run, as in `evolve`; its fields may be given as keywords instead.
    over
        The axes: paths of fields as in ``--set``, each with its values. Paths begin with ``problem.``, ``training.`` or
        ``run.``, as in ``"training.learning_rate"``, ``"problem.student.p"`` or ``"run.seed"``. Values are a list, an
        array, or a range in words: ``"lin:0:1:11"``, ``"log:1e-3:1:13"``. Several axes span a product.
    together
        Groups of paths that change together along one dimension.
    verb
        What is asked: ``"evolve"`` (the default for one description), ``"compare"`` (for several), ``"exit_time"``,
        ``"learn"``, ``"ntk"`` or ``"optimise"``, whose arguments are given as keywords.
    statistics
        Whether the replicas of `evolve` are reduced to statistics on the way, so that memory does not grow with their
        number: means, variances, quantiles with errors, and the histogram of first passages. Their parts are divided
        among the workers; ``over`` may then be left out.
    out
        A folder that keeps every cell as soon as it is finished. The same sweep, or one with more values, then computes
        only what is missing, also after it was killed.
    workers
        Processes that share the work on this machine, one for each GPU where there are some; 0 for none. By default
        they are started when the work turns out to take more than half a minute. They need ``twolayer[cluster]``.
    scheduler
        The address of a running Dask scheduler, or a client of one; by default what the variable
        ``DASK_SCHEDULER_ADDRESS`` says.
    fresh
        Whether cells that are there are computed again.
    progress
        Called with ``"sweep"`` and the fraction of the cells that are done; as in `evolve`.
    **fields
        The fields of `Ask`, or the arguments of the analysis.

    Returns
    -------
    The variables of the verb's result with the axes as further dimensions, each named by the last part of its path. The
    save points have the dimension ``time`` where all cells are saved at the same times, and otherwise ``point``, with
    ``time`` as a coordinate. Cells that do not apply, diverged or failed hold NaN where they have no numbers;
    ``cell_status`` and ``cell_message`` say which and why. Of comparisons it is a tree, as `compare` returns it.

    With ``statistics`` the replicas have given way to ``excess_risk_mean``, ``_variance``, ``_stderr`` (of the mean),
    ``_count`` (replicas with a value) and, along ``quantile``, ``_quantile`` and ``_quantile_error``; the same of
    ``crossing_time`` and ``overlap_time``, and without quantiles of the other variables. The error of a quantile is
    the scatter of the sample and the width of a bin, 0.8% of the number. ``crossing_time_histogram`` counts first
    passages in the bins from ``crossing_time_from`` to ``crossing_time_to``; ``replicas`` says how many ended how.

    Examples
    --------
    >>> import twolayer as tl
    >>> problem = tl.Problem(tl.Committee(k=2, activation="erf"), tl.Student(2, "erf"), tl.Gaussian(1000))
    >>> result = tl.sweep(problem, tl.SGD(1.0), "SaadSolla", over={"training.learning_rate": [0.5, 1.0]}, until=2.0)
    >>> result.excess_risk.sel(learning_rate=0.5).dims
    ('replica', 'time')
    """
    spec = make_spec(problem, training, descriptions, ask, over, together, verb, fields, statistics)
    return run_sweep(spec, None if out is None else Path(out), workers, scheduler, fresh, progress)[0]


def run_sweep(
    spec: SweepSpec,
    folder: Path | None = None,
    workers: int | None = None,
    scheduler: "str | Client | None" = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
) -> "tuple[xr.Dataset | xr.DataTree, int]":
    """Compute the cells of a sweep that are missing; its result, and how many cells were computed now.

    What is finished when the user interrupts it is kept, and is the result of `Interrupted`.
    """
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(reporting(progress, "sweep"))  # naming many cells takes a while
        stack.enter_context(interrupts.deferred())
        cells, store = spec.cells(), Store(folder)  # what is refused is refused before workers are started
        executor, where = stack.enter_context(_executor(workers, scheduler))
        keys = keys_of([cell.query for cell in cells], where)
        asked = {key: cell for key, cell in zip(keys, cells, strict=True) if key}
        queries = {key: cell.query for key, cell in asked.items() if cell.query is not None}
        if fresh:
            store.discard(queries)
        missing = {key: query for key, query in queries.items() if key not in store}
        gathering = Gathering(missing, where, store) if spec.query.statistics else None
        parts = [] if gathering is None else list(gathering.queries)
        if fresh:
            store.discard(parts)
        manifest = _manifest(spec, cells, keys, where) | ({"parts": parts} if parts else {})
        store.write_manifest(manifest)
        jobs = [Job(*job) for job in missing.items()] if gathering is None else gathering.jobs()
        stored = len(queries) if gathering is None else len(gathering.queries)
        counts = Counts(len(jobs), stored - len(jobs), "cells" if gathering is None else "parts of the replicas")

        def told(counts: Counts) -> None:
            note(tell, counts.words)
            tell("sweep", counts.computed / max(1, counts.jobs))

        try:
            run_jobs(jobs, executor, store, told, counts, *([] if gathering is None else [gathering.arrived]))
        except KeyboardInterrupt:
            raise Interrupted(_result(spec, store, cells, keys)) from None
        finally:
            store.keep_manifest(manifest)
    computed = counts.computed if gathering is None else sum(key in store for key in missing)
    return _result(spec, store, cells, keys), computed


@contextlib.contextmanager
def _executor(workers: int | None, scheduler: "str | Client | None") -> Iterator[tuple[AbstractExecutor, str]]:
    """Where the work is done, and what its numbers depend on there."""
    workers, address = _chosen(workers, scheduler)
    if (workers is not None and workers != 0) or address is not None:
        if isinstance(address, str):
            opened = cluster.connected(address)
        elif address is not None:
            opened = contextlib.nullcontext(address)
        else:
            opened = local(workers or 1)
        with opened as client:
            executor = cluster.OnCluster(client)
            yield executor, executor.where
        return
    with contextlib.ExitStack() as stack:
        with double():
            here = environment()

        def more() -> AbstractExecutor:
            return cluster.OnCluster(stack.enter_context(local(cores())), here)

        yield InProcess(more if workers is None and _can_grow() else None), here


def _chosen(workers: int | None, scheduler: "str | Client | None") -> "tuple[int | None, str | Client | None]":
    """The workers that are started at once, None where the work decides; and the scheduler in place of them."""
    if workers is not None and scheduler is not None:
        raise InvalidInput("Arguments `workers` and `scheduler` exclude one another: give one of them.")
    address = scheduler if scheduler is not None else os.environ.get(cluster.ADDRESS) if workers is None else None
    if workers is None and address is None and has_dask() and len(gpus()) > 1:
        workers = len(gpus())  # this process would use the first one alone
    return workers, address


def _can_grow() -> bool:
    """Whether work that turns out to be long is shared among workers on this machine."""
    return cores() > 1 and has_dask() and not gpus()


def expected_workers(workers: int | None, scheduler: "str | Client | None") -> int | None:
    """How many processes would share the work of a sweep, if there is enough; None where those of a scheduler do."""
    workers, address = _chosen(workers, scheduler)
    if address is not None:
        return None
    if workers is None:
        return cores() if _can_grow() else 0
    return number_of(workers, gpus()) if workers != 0 else 0


# --------------------------------------------------------------------------------------------------- the result


def _manifest(spec: SweepSpec, cells: Sequence[GridCell], keys: Sequence[str], where: str) -> dict[str, Any]:
    """What `load_sweep` needs to put the cells of a folder together."""
    reasons = {str(number): cell.reason for number, cell in enumerate(cells) if cell.query is None}
    coordinates = [{name: np.asarray(x).tolist() for name, x in axis.coordinates().items()} for axis in spec.axes]
    return {
        "verb": spec.query.verb,
        "spec": json.loads(spec.json),
        "spec_hash": spec.key,
        "environment": json.loads(where),
        "coordinates": coordinates,
        "keys": list(keys),
        "reasons": reasons,
        "attributes": _attributes(spec),
    }


def _attributes(spec: SweepSpec) -> dict[str, Any]:
    seed = spec.query.run.get("seed", 0) if isinstance(spec.query.run, dict) else spec.query.run.seed
    with double():
        stated = {"verb": spec.query.verb} | provenance(spec, seed)
    return {name: value for name, value in stated.items() if name != "references"}  # cells have their own


def _result(
    spec: SweepSpec, store: Store, cells: Sequence[GridCell], keys: Sequence[str]
) -> "xr.Dataset | xr.DataTree":
    places = _by_key(keys, [cell.place for cell in cells])
    reasons = {cell.place: cell.reason for cell in cells if cell.query is None}
    return _assembled([axis.coordinates() for axis in spec.axes], store, places, reasons, _attributes(spec))


def _assembled(
    coordinates: Sequence[Mapping[str, Any]],
    store: Store,
    places: Mapping[str, Sequence[tuple[int, ...]]],
    reasons: Mapping[tuple[int, ...], str],
    attributes: Mapping[str, Any],
) -> "xr.Dataset | xr.DataTree":
    def found() -> Iterator[tuple[list[tuple[int, ...]], CellBlock]]:
        for block in store.blocks(places):
            where = [places[key] for key in block.keys]
            rows = [row for row, own in enumerate(where) for _ in own]  # several, where different values state the same
            yield [place for own in where for place in own], block if len(rows) == len(where) else block.chosen(rows)

    return assembled(coordinates, found, reasons, attributes)


def _by_key(keys: Sequence[str], all_places: Sequence[tuple[int, ...]]) -> dict[str, list[tuple[int, ...]]]:
    """The places of each cell: several, where different values state the same."""
    places: dict[str, list[tuple[int, ...]]] = {}
    for key, place in zip(keys, all_places, strict=True):
        if key:
            places.setdefault(key, []).append(place)
    return places


def kept_cells(folder: Path, spec: SweepSpec) -> tuple[int, int, str]:
    """How many cells of a sweep are in its folder (or parts of replicas), how many it has, and their noun."""
    try:
        stated = read_manifest(own_folder(folder, json.loads(spec.json)))
    except InvalidInput:  # the sweep has not begun
        return 0, 0, "cells"
    store, parts = Store(folder), stated.get("parts")
    keys = stated["keys"] if parts is None else parts
    noun = "cells" if parts is None else "parts of the replicas"
    return sum(not key or key in store for key in keys), len(keys), noun


def load_sweep(folder: Path) -> "xr.Dataset | xr.DataTree":
    """The result of the sweep whose cells are in a folder, as far as they are there."""
    stated = read_manifest(folder)
    coordinates = [{name: np.asarray(values) for name, values in axis.items()} for axis in stated["coordinates"]]
    sizes = [len(next(iter(axis.values()))) for axis in coordinates]
    all_places = list(np.ndindex(*sizes))
    places = _by_key(stated["keys"], all_places)
    reasons = {all_places[int(number)]: reason for number, reason in stated["reasons"].items()}
    return _assembled(coordinates, Store(home(folder)), places, reasons, stated["attributes"])


FOLDERS[MANIFEST] = load_sweep
