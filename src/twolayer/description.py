"""The interface of all descriptions, simulations and theories alike: `Applies`, `Plan`, `Record` and `Status`."""

import abc
import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from twolayer.core.checkpoint import Place
from twolayer.core.errors import NotApplicable
from twolayer.core.types import Numbers
from twolayer.problem import BlockOverlaps, Overlaps, Problem
from twolayer.training import SGD, Clock, PhasedClock, RidgeRegression

# A squared row length this many times that of the start (or target) is a divergence. Far beyond it an ODE that blows up
# in finite time could not be followed in double precision.
DIVERGED = 1e5
# Prefix, among the arrays of a record, of the variables that only one description has.
OTHERS = "others "


class Exactness(enum.Enum):
    """How a description relates to the training that it describes: exactly, or in which limit."""

    EXACT = "exact at finite d"
    LIMIT_D = "limit d -> infinity"
    LIMIT_BATCH = "limit n_b -> infinity"
    FLUCTUATIONS = "limit d -> infinity, with fluctuations"
    LIMIT_P = "limit p -> infinity"
    LIMIT_P_D = "limit p, d -> infinity"

    @property
    def is_random(self) -> bool:
        """Whether replicas that begin at the same start differ."""
        return self in (Exactness.EXACT, Exactness.FLUCTUATIONS)


class Applies(NamedTuple):
    """Whether a description covers a problem and its training, with a sentence on how exactly or why not."""

    ok: bool
    exactness: Exactness
    statement: str


class Status(enum.IntEnum):
    """How a replica ended."""

    DONE = 0
    DIVERGED = 1
    UNFINISHED = 2
    STOPPED = 3

    @property
    def sentence(self) -> str:
        """The status in words."""
        return {
            Status.DONE: "done",
            Status.DIVERGED: "diverged: the weights grew without bound, or a number is not finite",
            Status.UNFINISHED: "unfinished: it was stopped before its end",
            Status.STOPPED: "stopped as requested, when it had crossed its thresholds",
        }[self]


class Plan(eqx.Module):
    """What a description has to compute: starts, save points, and thresholds to watch."""

    starts: Overlaps  # one per replica, along a leading axis
    keys: Key[Array, " replicas"]  # one per replica: the random numbers of the run
    steps: (
        Int[np.ndarray, " times"] | Float[np.ndarray, " times"]
    )  # save points, from 0 on; real numbers in continuous time
    times: Float[np.ndarray, " times"]  # the save points as times
    risk_threshold: Any = None  # threshold on the excess risk, one for each replica
    overlap_threshold: Any = None  # on the largest cosine of a neuron with a target direction; a number or one each
    stops: bool = eqx.field(static=True, default=False)  # whether a replica ends when it has crossed its thresholds
    stops_at_any: bool = eqx.field(static=True, default=False)  # whether crossing one of them is enough
    progress: Callable[[float], None] = eqx.field(static=True, default=lambda fraction: None)
    checkpoint: Place | None = eqx.field(static=True, default=None)  # where the run keeps its place on disk

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.starts.Q.shape[0]

    @property
    def limit(self) -> float:
        """The square of a row's length, or of an output weight, beyond which a replica counts as diverged.

        It is relative to where the run begins: a fit of the second layer may leave large weights to the next phase.
        """
        lengths = [np.diagonal(np.asarray(x), axis1=-2, axis2=-1) for x in (self.starts.Q, self.starts.P)]
        lengths.append(np.asarray(self.starts.a) ** 2)
        return DIVERGED * max(1.0, *(float(x.max(initial=0.0)) for x in lengths))


class Watch(eqx.Module):
    """The thresholds that a description watches at every step: on the excess risk, on the overlaps with the target.

    The crossings of a replica are an array with one entry for each threshold that is watched, the risk first and then
    the k target directions: when the threshold was first reached, and -1 before that.
    """

    risk: bool = eqx.field(static=True)
    overlaps: bool = eqx.field(static=True)

    @classmethod
    def of(cls, plan: Plan) -> "Watch":
        """The thresholds that the plan contains."""
        return cls(plan.risk_threshold is not None, plan.overlap_threshold is not None)

    @property
    def is_on(self) -> bool:
        """Whether any threshold is watched."""
        return self.risk or self.overlaps

    @staticmethod
    def thresholds(plan: Plan) -> Float[np.ndarray, "replicas 2"]:
        """The thresholds of each replica, on the risk and on the overlaps; zero where there is none."""
        both = (plan.risk_threshold, plan.overlap_threshold)
        return np.stack([np.broadcast_to(0.0 if x is None else x, plan.replicas) for x in both], axis=1)

    def size(self, k: int) -> int:
        """The number of crossings of a replica; a single one, which never happens, where nothing is watched."""
        return max(1, int(self.risk) + (k if self.overlaps else 0))

    def crossed(
        self,
        overlaps: Overlaps,
        risk: Float[Array, ""] | None,
        thresholds: Float[Array, " 2"],
        crossing: Float[Array, " n"],
        at: Numbers,
    ) -> Float[Array, " n"]:
        """The crossings after a step, with ``at`` for each threshold that is reached for the first time.

        The overlap with a target direction is the largest cosine of a neuron with it, of either sign. The risk may be
        None where it is not watched.
        """
        if not self.is_on:
            return crossing
        return jnp.where((crossing < 0.0) & self.reached(overlaps, risk, thresholds), at, crossing)

    def reached(self, overlaps: Overlaps, risk: Array | None, thresholds: Float[Array, " 2"]) -> Bool[Array, " n"]:
        """Whether each threshold that is watched is reached."""
        distances = []
        if self.risk:
            assert risk is not None
            distances.append((thresholds[0] - risk)[None])
        if self.overlaps:  # squares are compared, so that no root is taken at every step
            lengths = jnp.diagonal(overlaps.Q)[:, None] * jnp.diagonal(overlaps.P)[None, :]
            distances.append(jnp.max(overlaps.M * overlaps.M - thresholds[1] * thresholds[1] * lengths, axis=0))
        return jnp.concatenate(distances) >= 0.0

    def times(
        self, crossing: Numbers, k: int, clock: Clock | PhasedClock | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The times of the risk (replicas,) and of the overlaps (replicas, k), NaN where never or not watched.

        A clock converts crossings in steps to times.
        """
        crossing = np.asarray(crossing)
        crossed = np.where(crossing >= 0.0, crossing if clock is None else clock.time(crossing), np.nan)
        times = np.full((len(crossed), 1 + k), np.nan)
        if self.risk:
            times[:, 0], crossed = crossed[:, 0], crossed[:, 1:]
        if self.overlaps:
            times[:, 1:] = crossed
        return times[:, 0], times[:, 1:]


class Record(NamedTuple):
    """The result of a description: plain arrays at the save points, which the room `data` labels.

    Rows after a divergence are NaN. An interrupted run holds only the replicas that were finished.
    """

    Q: Any  # (replicas, times, p, p)
    M: Any  # (replicas, times, p, k)
    a: Any  # (replicas, times, p)
    excess_risk: Any  # (replicas, times)
    risk_error: Any  # (replicas, times): bound on the numerical error of the risk
    overlap_error: Any  # (replicas, times): bound on the numerical error of any entry of Q, M, a
    status: Any  # (replicas,), values of Status
    crossing_time: Any  # (replicas,): first time with excess risk at most the threshold, NaN if never or not watched
    overlap_time: Any  # (replicas, k): first time with an overlap of at least the threshold, else NaN
    engine: str
    interrupted: bool = False
    others: Any = None  # name -> array: variables that only this description has; the schema of datasets lists them

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The record as named arrays, to be written to a file."""
        others = {f"{OTHERS}{name}": np.asarray(array) for name, array in (self.others or {}).items()}
        return {name: np.asarray(value) for name, value in self._asdict().items() if name != "others"} | others

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Record":
        """The record from its named arrays; the inverse of `to_arrays`."""
        plain: dict[str, Any] = {name: array for name, array in arrays.items() if not name.startswith(OTHERS)}
        others = {name.removeprefix(OTHERS): array for name, array in arrays.items() if name.startswith(OTHERS)}
        plain |= {"engine": str(plain["engine"]), "interrupted": bool(plain["interrupted"])}
        return cls(**plain, others=others or None)


class Cell(NamedTuple):
    """One of many settings that are computed together: what is learned, how, and what is asked of it."""

    problem: Problem
    training: SGD
    plan: Plan  # its own starts, keys, steps, times, thresholds


class AbstractDescription(eqx.Module):
    """A description of a training run, exact or in a limit: base class of all simulations and theories."""

    @abc.abstractmethod
    def applies(self, problem: Problem, training: SGD) -> Applies:
        """Whether this description covers the problem and its training, how exactly, or why not."""

    @abc.abstractmethod
    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        """Compute the training run at the save points of the plan."""

    def batch_key(self, problem: Problem, training: SGD) -> Hashable | None:
        """A value that is equal for problems and trainings that one compiled program serves.

        None, the default, where each runs by itself.
        """
        return None

    def run_batch(self, cells: Sequence[Cell]) -> list[Record]:
        """Compute several cells of one `batch_key` together; the default runs one after the other.

        The numbers of a cell do not depend on the other cells, and equal those of `run` up to rounding, or within the
        errors that it reports.
        """
        return [self.run(*cell) for cell in cells]

    @property
    def is_continuous(self) -> bool:
        """Whether time is continuous: results are saved at exactly the requested times and there are no steps."""
        return False

    @property
    def follows_data(self) -> bool:
        """Whether the description runs on the rows of a data set; by default it runs on their Gaussian equivalent."""
        return False

    def seen(self, problem: Problem) -> Problem:
        """The problem that is followed: on a data set that on its Gaussian equivalent, unless it runs on the rows."""
        return problem if self.follows_data else problem.equivalent

    def run_phases(self, problem: Problem, phases: tuple[SGD, ...], firsts: tuple[int, ...], plan: Plan) -> Record:
        """Compute a schedule on one fixed set: several trainings, each beginning at its first step."""
        raise NotApplicable(f"`{type(self).__name__}` does not follow a schedule on a fixed set of samples.")

    def applies_to_fit(self, problem: Problem, fit: RidgeRegression) -> Applies:
        """Whether this description covers a fit of the second layer in closed form, how exactly, or why not."""
        reason = f"it does not fit the second layer in closed form, but a phase is {fit}; see `OverlapSGD`, `BatchMap`."
        return Applies(False, Exactness.LIMIT_P, reason)

    def run_fit(self, problem: Problem, fit: RidgeRegression, plan: Plan) -> Record:
        """Fit the second layer at every step of the plan."""
        raise NotApplicable(f"`{type(self).__name__}` does not fit the second layer in closed form.")

    @property
    @abc.abstractmethod
    def references(self) -> tuple[str, ...]:
        """Keys of the works to cite, as in docs/references.bib."""

    def require(self, problem: Problem, training: SGD) -> Applies:
        """Return the answer of ``applies``, or raise `NotApplicable` with its reason."""
        answer = self.applies(problem, training)
        if not answer.ok:
            raise NotApplicable(f"`{type(self).__name__}` does not apply: {answer.statement}")
        return answer


# The variables of inputs with a spectrum: the overlaps by block.
BY_BLOCK = ("Q_block", "M_block")


def by_block(rows: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The overlaps by block among the saved rows of a run; empty where the inputs have no spectrum."""
    return {name: np.asarray(rows[name]) for name in BY_BLOCK if name in rows}


def seen_by_fields(starts: Overlaps, rows: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The saved Q, M and P of a run as the covariance of the fields, at which averages such as the risk are taken."""
    if starts.blocks is None:
        return rows["Q"], rows["M"], starts.P
    Q, M, P = BlockOverlaps(rows["Q_block"], rows["M_block"], starts.blocks.frame).weighted()
    return np.asarray(Q), np.asarray(M), P


def is_alive(Q: np.ndarray, a: np.ndarray, limit: float) -> np.ndarray:
    """Whether each saved point (replicas, times) has not diverged: all squared lengths are below the limit."""
    lengths = np.diagonal(Q, axis1=-2, axis2=-1)
    with np.errstate(invalid="ignore"):
        return np.all(lengths < limit, axis=-1) & np.all(a**2 < limit, axis=-1)


def blanked(lost: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The array with NaN at the points (replicas, times) that are marked as lost."""
    return np.where(lost.reshape(lost.shape + (1,) * (x.ndim - 2)), np.nan, x)


# The arrays of a record that have the axes (replicas, times, ...).
ROW = ("Q", "M", "a", "excess_risk", "risk_error", "overlap_error")


def with_finite_rows(record: Record) -> Record:
    """The record in which every replica with the status done has finite numbers only.

    Where a saved row holds NaN or infinity although the description calls the replica done, it counts as diverged, and
    that row and all after it are missing.
    """
    rows = {name: np.asarray(getattr(record, name), dtype=np.float64) for name in ROW}
    # An error may be infinite: the solution then depends on its start without bound.
    sound = [~np.isnan(x) if name.endswith("_error") else np.isfinite(x) for name, x in rows.items()]
    finite = [x.reshape(*x.shape[:2], -1).all(axis=2) for x in sound]
    status = np.asarray(record.status)
    is_done = status == Status.DONE
    lost = ~np.logical_and.accumulate(np.all(finite, axis=0), axis=1) & is_done[:, None]
    if not lost.any():
        return record
    status = np.where(lost.any(axis=1), np.asarray(Status.DIVERGED, status.dtype), status)
    return record._replace(status=status, **{name: blanked(lost, x) for name, x in rows.items()})


def stopped(record: Record, plan: Plan) -> Record:
    """The record with NaN after a replica has crossed its thresholds, where the plan stops replicas there.

    Thresholds that a replica would cross only after its stop have no crossing time.
    """
    if not plan.stops:
        return record
    watched = [np.asarray(record.crossing_time)[:, None]] if plan.risk_threshold is not None else []
    watched += [np.asarray(record.overlap_time)] if plan.overlap_threshold is not None else []
    crossed = np.concatenate([np.where(np.isnan(times), np.inf, times) for times in watched], axis=1)
    stop = crossed.min(axis=1) if plan.stops_at_any else crossed.max(axis=1)
    late = plan.times[None, :] > stop[:, None]
    cut = {name: blanked(late, np.asarray(getattr(record, name))) for name in ROW}
    others = {name: blanked(late, np.asarray(values)) for name, values in (record.others or {}).items()}
    # What would come after the stop, a divergence for example, does not count.
    status = np.where(late.any(axis=1), Status.STOPPED, record.status).astype(np.int8)
    for name in ("crossing_time", "overlap_time"):
        times = np.asarray(getattr(record, name))
        cut[name] = np.where(times > stop.reshape((-1,) + (1,) * (times.ndim - 1)), np.nan, times)
    return record._replace(**cut, others=others or None, status=status)


def first_crossings(plan: Plan, risk: np.ndarray, Q: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first saved times at which the risk and the overlaps have reached their thresholds; NaN where never."""
    watch, k = Watch.of(plan), M.shape[-1]
    crossing = np.full((len(Q), watch.size(k)), -1.0)
    if watch.is_on:

        def reached(Q: Array, M: Array, risk: Array, thresholds: Array) -> Array:
            return watch.reached(Overlaps(Q, M, plan.starts.P, jnp.zeros(len(Q))), risk, thresholds)

        along = jax.vmap(jax.vmap(reached, in_axes=(0, 0, 0, None)))
        is_there = np.asarray(along(*map(jnp.asarray, (Q, M, risk, Watch.thresholds(plan)[: len(Q)]))))
        crossing = np.where(is_there.any(axis=1), plan.times[np.argmax(is_there, axis=1)], -1.0)
    return watch.times(crossing, k)
