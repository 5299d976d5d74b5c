"""What is asked of a run, stated once: how long, what to save, how many replicas, which thresholds.

`Ask` holds these numbers for every verb. `RunSpec` puts them beside the problem, the training and the descriptions: it
is the one specification of a run, and its hash names the report folder, the datasets and the checkpoints.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypedDict, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.compiler.row_blocks import alike, as_key, in_blocks
from twolayer.core.errors import InvalidInput, WrongArguments, nearest, shown
from twolayer.core.memory_limit import available_memory, bytes_in_words
from twolayer.core.programs import KeptProgram, QuickProgram
from twolayer.core.random import key_of, seed_data
from twolayer.description import AbstractDescription, Plan
from twolayer.problem import BlockFrame, Overlaps, Problem
from twolayer.specification.codec import content_hash, to_json
from twolayer.specification.fields import as_data, count, flag, instance, leaf, number, replaced, static
from twolayer.specification.registry import register
from twolayer.training import SGD, Schedule, tasks_of

MAX_STEPS = 10**12
MAX_POINTS = 10**6
# Replicas of a comparison unless said otherwise, and the largest p + k at which as many starts cost nothing.
USUAL, NARROW = 16, 64
# How often the overlaps of a result are held: as they are made, blanked where runs diverged, and labelled.
COPIES = 4
Training = SGD | Schedule
P = ParamSpec("P")
R = TypeVar("R")


# ---------------------------------------------------------------------------------------------------- fields


def _as_save(value: Any) -> Any:
    """A number of points, a grid in words, or increasing times as a tuple."""
    if isinstance(value, str):
        _grid(value)
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return count("save", low=2, high=MAX_POINTS)(value)
    try:
        times = np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        times = np.empty(0)
    if times.ndim != 1 or times.size == 0:
        given = "an empty list" if np.shape(value) == (0,) else shown(value)
        raise InvalidInput(f'Argument `save` must be a number, times, "linear:N" or "log:N", but is {given}.')
    if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0.0) or times[0] < 0.0:
        raise InvalidInput("Argument `save` must be a list of increasing finite times from 0 on.")
    if times.size > MAX_POINTS:
        raise InvalidInput(f"Argument `save` must have at most {MAX_POINTS} times, but has {times.size}.")
    return tuple(times.tolist())


def _grid(words: str) -> tuple[str, int]:
    """The kind of a grid such as "linear:200" and its number of points."""
    kind, colon, points = words.partition(":")
    if kind not in ("linear", "log") or not colon or not points.strip().isdecimal() or len(points) > 20:
        raise InvalidInput(f'Argument `save` must be a number, times, "linear:N" or "log:N", but is {shown(words)}.')
    return kind, count("save", low=2, high=MAX_POINTS)(int(points))


def _as_risk_threshold(value: Any) -> Any:
    """One positive number, or one for each replica as a tuple."""
    if value is None or np.ndim(value) == 0:
        return number("risk_threshold", above=0.0, optional=True)(value)
    return tuple(float(number("risk_threshold", above=0.0)(threshold)) for threshold in np.asarray(value).ravel())


def _as_stop(value: Any) -> bool | str:
    return value if isinstance(value, str) and value == "any" else flag("stop_at_threshold")(value)


class AskFields(TypedDict, total=False):
    """The fields of `Ask` as keywords of a verb."""

    until: float | int
    save: int | str | Sequence[float] | Float[np.ndarray, " times"]
    replicas: int
    seed: int
    risk_threshold: float | Sequence[float] | Float[np.ndarray, " replicas"] | None
    overlap_threshold: float | None
    stop_at_threshold: bool | str


@register
class Ask(eqx.Module):
    r"""What is asked of a run: every verb takes it whole, or its fields as keywords.

    Parameters
    ----------
    until
        The time at which to stop, :math:`t = \gamma\,\mathrm{samples} / (p d)`.
    save
        The times to save, or their number: time zero and a geometric grid up to ``until``; ``"linear:200"`` is an even
        grid, ``"log:200"`` the geometric one. A limit theory is saved at these very times; what goes in steps is saved
        at the nearest ones.
    replicas
        The number of independent runs. Replica n of any description has the same start for the same seed. A theory
        without randomness of its own from a start without randomness has one replica whatever is asked.
    seed
        The seed from which every random number comes.
    risk_threshold
        Record the first time at which the excess risk is at most this (``crossing_time``): exactly for a differential
        equation, at the very step for `OverlapSGD`, at the save points for a simulation on the weights. One number, or
        one for each replica.
    overlap_threshold
        Record for each target direction the first time at which the cosine of some neuron with it, of either sign, is
        at least this (``overlap_time``), in the same way.
    stop_at_threshold
        Whether a replica ends when it has crossed all its thresholds, or with ``"any"`` one of them: what would come
        later is missing, and its status says that it stopped. `OverlapSGD` then spends no more time on it.
    """

    until: float | int = leaf(number("until", above=0.0), default=20.0)
    save: int | str | Sequence[float] | Float[np.ndarray, " times"] = static(_as_save, default=100)
    replicas: int = static(count("replicas", high=10**7), default=1)
    seed: int = static(count("seed", low=0, high=2**31 - 1), default=0)
    risk_threshold: float | Sequence[float] | Float[np.ndarray, " replicas"] | None = static(
        _as_risk_threshold, default=None
    )
    overlap_threshold: float | None = static(
        number("overlap_threshold", above=0.0, below=1.0, optional=True), default=None
    )
    stop_at_threshold: bool | str = static(_as_stop, default=False)

    def __check_init__(self) -> None:
        """Fields that depend on one another fit."""
        has_threshold = self.risk_threshold is not None or self.overlap_threshold is not None
        if self.stop_at_threshold and not has_threshold:
            raise InvalidInput("Argument `stop_at_threshold` needs a `risk_threshold` or an `overlap_threshold`.")
        if isinstance(self.risk_threshold, tuple) and len(self.risk_threshold) != self.replicas:
            raise InvalidInput(
                f"Argument `risk_threshold` must be one positive number, or one for each of the {self.replicas} "
                f"replicas, but there are {len(self.risk_threshold)}."
            )
        if isinstance(self.save, tuple) and self.save[-1] > self.until * (1 + 1e-9):
            raise InvalidInput(
                f"Argument `save` must lie between 0 and `until` = {self.until:g}, but reaches {self.save[-1]:g}."
            )

    @classmethod
    def of(cls, ask: "Ask | None", fields: Mapping[str, Any], replicas: int = 1) -> "Ask":
        """The object that a verb was given, changed by the keywords beside it; ``replicas`` is the verb's default."""
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in fields if name not in names]
        if unknown:
            raise WrongArguments(f"There is no argument `{unknown[0]}`: {nearest(unknown[0], names)}")
        if ask is None:
            given: dict[str, Any] = {"replicas": replicas, **fields}
            return cls(**given)
        instance("ask", cls, "an Ask such as Ask(until=10.0, replicas=32)")(ask)
        return dataclasses.replace(ask, **fields)

    def times(self, shortest: float = 0.0) -> Float[np.ndarray, " times"]:
        """The times to save, from zero on; a geometric grid begins no earlier than at ``shortest``."""
        if isinstance(self.save, str):
            kind, points = _grid(self.save)
        elif isinstance(self.save, int):
            kind, points = "log", self.save
        else:
            times = np.asarray(self.save)
            return times if times[0] == 0.0 else np.concatenate([[0.0], times])
        if kind == "linear":
            return np.linspace(0.0, self.until, points)
        first = min(max(shortest, self.until / 1000), self.until)
        return np.concatenate([[0.0], np.geomspace(first, self.until, points - 1)[: points - 2], [self.until]])

    @property
    def thresholds(self) -> Float[np.ndarray, " replicas"] | None:
        """The threshold on the excess risk of each replica; None without one."""
        if self.risk_threshold is None:
            return None
        return np.broadcast_to(np.asarray(self.risk_threshold, dtype=float), self.replicas).copy()


def reads_ask(**arguments: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let an analysis take an `Ask`, whose fields become the arguments given here; keywords beside it come first.

    A field that the analysis does not read must have its default, since it would be ignored.
    """

    def decorate(analysis: Callable[P, R]) -> Callable[P, R]:
        @wraps(analysis)
        def asked(*args: P.args, **kwargs: P.kwargs) -> R:
            ask: Any = kwargs.pop("ask", None)
            read: Any = kwargs if ask is None else arguments_of(asked, ask) | kwargs
            return analysis(*args, **read)  # pyright: ignore[reportCallIssue]

        asked.__dict__["reads"] = arguments
        return asked

    return decorate


def arguments_of(analysis: Callable[..., Any], ask: object) -> dict[str, Any]:
    """The arguments of an analysis that `reads_ask` decorates, from an `Ask`."""
    given: Ask = instance("ask", Ask, "an Ask such as Ask(until=10.0, replicas=32)")(ask)
    arguments = analysis.__dict__["reads"]
    others = [field.name for field in dataclasses.fields(given) if field.name not in arguments]
    unread = next((name for name in others if getattr(given, name) != getattr(Ask(), name)), None)
    if unread is not None:
        raise InvalidInput(
            f"`{analysis.__name__}` reads {', '.join(arguments)} of an `Ask`, "
            f"but `ask.{unread}` is {shown(getattr(given, unread))}."
        )
    return {argument: getattr(given, name) for name, argument in arguments.items()}


# ------------------------------------------------------------------------------------------- the whole specification


def _as_descriptions(value: Any) -> tuple[Any, ...]:
    descriptions = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not descriptions:
        raise InvalidInput("Argument `descriptions` must name at least one description, but is empty.")
    check = instance("descriptions", AbstractDescription, "a list of descriptions such as ['DirectSGD', 'SaadSolla']")
    return tuple(check(description) for description in descriptions)


def _as_title(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"Argument `title` must be a text, but is {shown(value)}.")
    return value


@register
class RunSpec(eqx.Module):
    """Everything that a run depends on: what is learned, how, by which descriptions it is followed, and what is asked.

    Invariant: the canonical JSON of a specification rebuilds it. Its ``key`` names its results wherever they are kept;
    the title is not part of it, since no number depends on it.
    """

    problem: Problem = leaf(instance("problem", Problem, "a Problem"))
    training: SGD | Schedule = leaf(
        instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")
    )
    descriptions: tuple[AbstractDescription, ...] = leaf(_as_descriptions)
    ask: Ask = leaf(instance("ask", Ask, "an Ask such as Ask(until=10.0)"), default=Ask())
    title: str = static(_as_title, default="")

    def __check_init__(self) -> None:
        """The tasks of a schedule fit the problem."""
        tasks_of(self.problem, self.training)

    @property
    def json(self) -> str:
        """The canonical JSON of all that numbers depend on."""
        return to_json(dataclasses.replace(self, title=""))

    @property
    def key(self) -> str:
        """The hash that names folder, datasets and checkpoints."""
        return content_hash(dataclasses.replace(self, title=""))


# ---------------------------------------------------------------------------------------------------------- the plan


def make_plan(
    problem: Problem, training: Training, ask: Ask, in_steps: bool = True, first: int = 0, like: Plan | None = None
) -> Plan:
    """Draw the starts, and fix the save points.

    Parameters
    ----------
    problem, training, ask
        What is learned, how, and what is asked.
    in_steps
        Whether the save points move to the nearest steps of the training, for what goes in steps; a limit theory alone
        is saved at the very times asked, which do not depend on d.
    first
        The number of the first replica, where the replicas are a part of many.
    like
        A plan of the same problem, seed and replicas, whose starts are taken.
    """
    steps, times = _save_points(problem, training, ask, in_steps)
    if like is not None:
        return _plan(training, ask, steps, times, like.keys, like.starts)
    keys = _replica_keys(ask.seed, ask.replicas, first)
    return _plan(training, ask, steps, times, keys, _drawn(problem, keys))


def make_plans(
    problems: Sequence[Problem],
    trainings: Sequence[SGD],
    asks: Sequence[Ask],
    in_steps: bool = True,
    firsts: Sequence[int] | None = None,
) -> list[Plan]:
    """Return the plans of many cells, as `make_plan` does one by one, with the starts of all cells drawn together."""
    known = _Known({}, set())
    points = [_save_points(*cell, in_steps, known) for cell in zip(problems, trainings, asks, strict=True)]
    which = [(ask.seed, ask.replicas, first) for ask, first in zip(asks, firsts or [0] * len(asks), strict=True)]
    distinct = {pair: _replica_keys(*pair) for pair in dict.fromkeys(which)}
    keys = [distinct[pair] for pair in which]
    starts = _starts(problems, keys)
    return [
        _plan(training, ask, *points[place], keys[place], starts[place])
        for place, (training, ask) in enumerate(zip(trainings, asks, strict=True))
    ]


def _starts(problems: Sequence[Problem], keys: Sequence[Key[Array, " _"]]) -> list[Overlaps]:
    """The starts of many problems, drawn together where the problems differ in d and in numbers of the start only."""
    pairs = [(id(problem), id(rows)) for problem, rows in zip(problems, keys, strict=True)]
    first = {pair: place for place, pair in reversed(list(enumerate(pairs)))}
    if len(first) < len(pairs):  # cells of one problem and one seed have one start
        distinct = list(first.values())
        starts = dict(zip(distinct, _starts([problems[n] for n in distinct], [keys[n] for n in distinct]), strict=True))
        return [starts[first[pair]] for pair in pairs]
    problems = [problem.equivalent for problem in problems]
    if not all(problem.is_isotropic for problem in problems):
        return [_drawn(problem, rows) for problem, rows in zip(problems, keys, strict=True)]
    drawable = [_drawable(problem) for problem in problems]
    kinds = [_kind_of_start(problem, d) for problem, d in drawable]
    starts: dict[int, Overlaps] = {}
    for places in alike(kinds):
        sizes = [len(keys[place]) for place in places]
        words = [np.asarray(jax.random.key_data(keys[place])) for place in places]
        parts = [eqx.filter((drawable[place][0].start, drawable[place][1]), eqx.is_array) for place in places]
        numbers = jax.tree.map(lambda *x: np.repeat(np.stack(x), sizes, axis=0), *parts)  # noqa: B023 (used at once)
        values = in_blocks(_start_of_row, drawable[places[0]][0], (numbers, np.concatenate(words)))
        ends = np.cumsum(sizes)[:-1]
        for place, Q, M, a in zip(places, *(np.split(x, ends) for x in values), strict=True):
            P = np.asarray(problems[place].P, np.float64)
            starts[place] = Overlaps(jnp.asarray(Q), jnp.asarray(M), jnp.asarray(P), jnp.asarray(a))
    return [starts[place] for place in range(len(problems))]


def _kind_of_start(problem: Problem, d: Any) -> Hashable:
    """A value that is equal for starts that one program draws: numbers of the start may differ, and d."""
    leaves, structure = jax.tree.flatten(problem.start)
    shapes = [leaf.shape if eqx.is_array(leaf) else leaf for leaf in leaves]
    return (*as_key(replaced(problem, start=None)), structure, *shapes, d is None)


def _start_of_row(problem: Problem, row: tuple[Any, Any]) -> tuple[Array, Array, Array]:
    """The start of one row: the numbers of its start, its dimension, and the words of its key."""
    (numbers, d), words = row
    start = eqx.combine(numbers, problem.start)
    drawn = replaced(problem, start=start).draw(jax.random.wrap_key_data(words, impl="threefry2x32"), d)
    return drawn.Q, drawn.M, drawn.a


def _drawable(problem: Problem) -> tuple[Problem, Any]:
    """The problem as data, and its dimension as a number where one program serves all dimensions."""
    data = replaced(as_data(problem), noise=0.0)  # no start depends on it
    if problem.d < problem.p + problem.k or not problem.is_isotropic:
        return data, None
    return data.without_dimension, np.asarray(float(problem.d))


class _Known(NamedTuple):
    """What is known of cells with much in common: the times that an `Ask` asks for, and the sizes that fit."""

    times: dict[int, np.ndarray]
    fitting: set[tuple[int, int, int]]


def _save_points(
    problem: Problem, training: Training, ask: Ask, in_steps: bool, known: _Known | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The save points of a run as steps and as times; what is ``known`` is not computed again."""
    known = _Known({}, set()) if known is None else known
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    clock, wanted = training.clock(problem), partial(_wanted, problem, training, ask)
    if in_steps:
        steps = clock.steps(ask.until)
        if steps < 1:
            raise InvalidInput(
                f"Argument `until` must cover at least one step, which takes time {clock.time_per_step:.3g}, "
                f"but is {ask.until:g}."
            )
        if steps > MAX_STEPS:
            raise InvalidInput(f"Argument `until` asks for {float(steps):.2g} steps; {MAX_STEPS:.0e} are the most.")
        save_steps = np.unique(clock.steps(wanted(float(clock.time_per_step))))
        times = np.asarray(clock.time(save_steps))
    else:
        times = known.times.get(id(ask)) if isinstance(training, SGD) else None
        if times is None:
            times = known.times[id(ask)] = wanted()
        save_steps = np.asarray(clock.steps_at(times))
    size = id(problem), ask.replicas, len(times)
    if size in known.fitting:
        return save_steps, times
    known.fitting.add(size)
    check_starts(problem, ask.replicas)
    if problem.has_random_start:  # without one there may be a single replica, which the description decides
        check_record(problem, ask.replicas, len(times))
    return save_steps, times


def _wanted(problem: Problem, training: Training, ask: Ask, shortest: float = 0.0) -> Float[np.ndarray, " times"]:
    """The times to save; with several tasks also the ends of the phases, where one task begins to be forgotten."""
    times = ask.times(shortest)
    if isinstance(training, SGD) or len(tasks_of(problem, training)) < 2:
        return times
    return np.union1d(times, [switch for switch in training.switches if switch < ask.until])


def _plan(
    training: Training, ask: Ask, steps: np.ndarray, times: np.ndarray, keys: Key[Array, " replicas"], starts: Overlaps
) -> Plan:
    if training.is_spherical and float(np.min(np.diagonal(starts.Q, axis1=1, axis2=2))) <= 0.0:
        raise InvalidInput("On the sphere every row needs a length, but a row of the start is zero.")
    stops, at_any = bool(ask.stop_at_threshold), ask.stop_at_threshold == "any"
    return Plan(starts, keys, steps, times, ask.thresholds, ask.overlap_threshold, stops, at_any)


def _replica_keys(seed: int, replicas: int, first: int = 0) -> Key[Array, " replicas"]:
    return _keys(seed_data(seed), np.arange(first, first + replicas))


@KeptProgram
def _keys(seed: np.ndarray | Array, replicas: np.ndarray | Array) -> Key[Array, " replicas"]:
    return jax.vmap(partial(jax.random.fold_in, key_of(seed)))(jnp.asarray(replicas))


def first_start(problem: Problem, seed: int = 0) -> Overlaps:
    """The start of the first replica of a seed, by the program that draws those of a comparison."""
    replicas = USUAL if problem.p + problem.k <= NARROW else 1
    return jax.device_get(_drawn(problem, _replica_keys(seed, replicas))).replica(0)


def _drawn(problem: Problem, keys: Key[Array, " replicas"]) -> Overlaps:
    """The starts of several replicas; on a data set they are those on its Gaussian equivalent."""
    problem = problem.equivalent
    return _draw(*_drawable(problem), keys, None if problem.is_isotropic else problem.frame)


@QuickProgram
def _draw(problem: Problem, d: Any, keys: Key[Array, " replicas"], frame: BlockFrame | None) -> Overlaps:
    return problem.draw_many(keys, d, frame)


def check_starts(problem: Problem, replicas: int) -> None:
    """Refuse more starts than fit the memory."""
    width = problem.p + problem.k
    need = 8 * COPIES * width * (width + 1)
    fitting = int(available_memory() // need)
    if replicas > fitting:
        raise InvalidInput(
            f"Argument `replicas` must be at most {fitting} at p = {problem.p} and k = {problem.k} here: {replicas} "
            f"starts need {bytes_in_words(need * replicas)} of memory, but "
            f"{bytes_in_words(available_memory())} are there."
        )


def bytes_of_record(problem: Problem, replicas: int, points: int) -> int:
    """The memory of a result while it is made: all overlaps of every replica at every save point."""
    p, k = problem.p, problem.k
    return 8 * COPIES * replicas * points * (p * (p + k + 1) + k + 8)


def check_record(problem: Problem, replicas: int, points: int) -> None:
    """Refuse a result that does not fit the memory: all overlaps of every replica at every save point."""
    p, k = problem.p, problem.k
    need = bytes_of_record(problem, replicas, 1)
    fitting = int(available_memory() // need)
    if points > fitting:
        raise InvalidInput(
            f"Argument `save` must be at most {fitting} points for {replicas} replicas at p = {p} and k = {k} here: "
            f"{points} of them need {bytes_in_words(need * points)} of memory, but "
            f"{bytes_in_words(available_memory())} are there."
        )
