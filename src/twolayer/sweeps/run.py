"""The verb that asks one question at every point of a grid."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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
from twolayer.sweeps.content import Content
from twolayer.sweeps.query import GridCell, Query, cells_of, check_paths, environment, make_query, whole_numbers
from twolayer.sweeps.result import assembled
from twolayer.sweeps.runner import AbstractExecutor, Counts, InProcess, run_jobs
from twolayer.sweeps.store import MANIFEST, Store, read_manifest
from twolayer.training.sgd import AbstractLayers
from twolayer.verbs.evolve import Interrupted
from twolayer.verbs.progress import Progress, note, reporting

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
    query = make_query(verb, problem, training, members, ask, fields)
    if not isinstance(over, Mapping):
        raise InvalidInput(f"Argument `over` must map paths of fields to their values, but is {shown(over)}.")
    axes = make_axes(over, together, whole_numbers(query, [path for path in over if isinstance(path, str)]))
    check_paths(query, axes)
    return SweepSpec(query, axes)


@takes_these
def sweep(
    problem: Problem,
    training: Training | AbstractLayers | None = None,
    descriptions: "AbstractDescription | str | Sequence[AbstractDescription | str] | Ask | NTKAsk | None" = None,
    ask: Ask | NTKAsk | None = None,
    *,
    over: Mapping[str, Any],
    together: Sequence[Sequence[str]] = (),
    verb: str | None = None,
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

    Examples
    --------
    >>> import twolayer as tl
    >>> problem = tl.Problem(tl.Committee(k=2, activation="erf"), tl.Student(2, "erf"), tl.Gaussian(1000))
    >>> result = tl.sweep(problem, tl.SGD(1.0), "SaadSolla", over={"training.learning_rate": [0.5, 1.0]}, until=2.0)
    >>> result.excess_risk.sel(learning_rate=0.5).dims
    ('replica', 'time')
    """
    spec = make_spec(problem, training, descriptions, ask, over, together, verb, fields)
    return run_sweep(spec, None if out is None else Path(out), workers, scheduler, fresh, progress)[0]


def run_sweep(
    spec: SweepSpec,
    folder: Path | None = None,
    workers: int | None = None,
    scheduler: "str | Client | None" = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
) -> "tuple[xr.Dataset | xr.DataTree, Counts]":
    """Compute the cells of a sweep that are missing; its result, and how many cells were computed now.

    What is finished when the user interrupts it is kept, and is the result of `Interrupted`.
    """
    cells = spec.cells()
    store = Store(folder)
    with (
        reporting(progress, "sweep") as tell,
        interrupts.deferred(),
        _executor(workers, scheduler) as (executor, where),
    ):
        keys = [cell.query.key(where) if cell.query is not None else "" for cell in cells]
        asked = {key: cell for key, cell in zip(keys, cells, strict=True) if key}
        if fresh:
            store.discard(asked)
        store.write_manifest(_manifest(spec, cells, keys, where))
        jobs = [Job(key, cell.query) for key, cell in asked.items() if key not in store and cell.query is not None]
        counts = Counts(len(jobs), len(asked) - len(jobs))

        def told(counts: Counts) -> None:
            note(tell, counts.words)
            tell("sweep", counts.computed / max(1, counts.jobs))

        try:
            run_jobs(jobs, executor, store, told, counts)
        except KeyboardInterrupt:
            raise Interrupted(_result(spec, store, cells, keys)) from None
    return _result(spec, store, cells, keys), counts


@contextlib.contextmanager
def _executor(workers: int | None, scheduler: "str | Client | None") -> Iterator[tuple[AbstractExecutor, str]]:
    """Where the work is done, and what its numbers depend on there."""
    address = scheduler if scheduler is not None else os.environ.get(cluster.ADDRESS) if workers is None else None
    if workers is not None and scheduler is not None:
        raise InvalidInput("Arguments `workers` and `scheduler` exclude one another: give one of them.")
    if (workers is not None and workers != 0) or address is not None:
        if isinstance(address, str):
            opened = cluster.connected(address)
        elif address is not None:
            opened = contextlib.nullcontext(address)
        else:
            opened = cluster.local(workers or 1)
        with opened as client:
            yield cluster.OnCluster(client), cluster.asked_of_worker(client, environment)
        return
    with contextlib.ExitStack() as stack:

        def more() -> AbstractExecutor:
            return cluster.OnCluster(stack.enter_context(cluster.local(cores())))

        with double():
            here = environment()
        can_grow = workers is None and cores() > 1 and cluster.has_dask() and not cluster.gpus()
        yield InProcess(more if can_grow else None), here


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
    def found() -> Iterator[tuple[tuple[int, ...], Content]]:
        return ((place, content) for key, content in store.contents(places) for place in places[key])

    return assembled(coordinates, found, reasons, attributes)


def _by_key(keys: Sequence[str], all_places: Sequence[tuple[int, ...]]) -> dict[str, list[tuple[int, ...]]]:
    """The places of each cell: several, where different values state the same."""
    places: dict[str, list[tuple[int, ...]]] = {}
    for key, place in zip(keys, all_places, strict=True):
        if key:
            places.setdefault(key, []).append(place)
    return places


def kept_cells(folder: Path) -> tuple[int, int]:
    """How many cells of the sweep in a folder are there, and how many it has."""
    try:
        keys = read_manifest(folder)["keys"]
    except InvalidInput:  # the sweep has not begun
        return 0, 0
    store = Store(folder)
    return sum(not key or key in store for key in keys), len(keys)


def load_sweep(folder: Path) -> "xr.Dataset | xr.DataTree":
    """The result of the sweep whose cells are in a folder, as far as they are there."""
    stated = read_manifest(folder)
    coordinates = [{name: np.asarray(values) for name, values in axis.items()} for axis in stated["coordinates"]]
    sizes = [len(next(iter(axis.values()))) for axis in coordinates]
    all_places = list(np.ndindex(*sizes))
    places = _by_key(stated["keys"], all_places)
    reasons = {all_places[int(number)]: reason for number, reason in stated["reasons"].items()}
    return _assembled(coordinates, Store(folder), places, reasons, stated["attributes"])


FOLDERS[MANIFEST] = load_sweep
