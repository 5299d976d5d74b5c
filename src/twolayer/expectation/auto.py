"""Choose the engine of each moment before anything is compiled, and record every refusal."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from twolayer.compiler.row_blocks import in_blocks
from twolayer.core.errors import InvalidInput, NotApplicable, nearest, shown
from twolayer.core.estimate import Estimate
from twolayer.core.memory_limit import check_size
from twolayer.core.plain_methods import plain
from twolayer.core.programs import QuickProgram
from twolayer.core.same import Same
from twolayer.expectation.all_fields import PREDICTIONS, ProductRule, SplitNets
from twolayer.expectation.closed.bumps import Bumps
from twolayer.expectation.closed.polynomial_tables import PolynomialTables
from twolayer.expectation.closed.square import SquareUnits
from twolayer.expectation.closed.units import ThresholdUnits
from twolayer.expectation.closed.waves import Waves
from twolayer.expectation.engine import AbstractEngine, Suits, combined_of, one_varied
from twolayer.expectation.gaussian_moments import FORCES, MOMENTS, Moments, opposed_weights
from twolayer.expectation.given_target import GivenTarget
from twolayer.expectation.hermite_series import MehlerSeries
from twolayer.expectation.nested_rules import Panels
from twolayer.expectation.qmc import Cloud, MonteCarlo
from twolayer.expectation.quadrature import Quadrature
from twolayer.expectation.recognition import with_known_units
from twolayer.expectation.ridge_averages import Ridges
from twolayer.expectation.slices import Slices
from twolayer.expectation.tails import diverges
from twolayer.expectation.tilted import Tilted
from twolayer.problem import Correlation, Gaussian, Mixture, Overlaps, Problem
from twolayer.specification.fields import accepts, as_data, number, replaced, static
from twolayer.specification.registry import register

# In the order of preference: closed forms, exact polynomials, rules in few dimensions, many points.
ENGINES: dict[str, type[AbstractEngine]] = {
    "ThresholdUnits": ThresholdUnits,
    "SquareUnits": SquareUnits,
    "PolynomialTables": PolynomialTables,
    "Tilted": Tilted,
    "Waves": Waves,
    "Bumps": Bumps,
    "Panels": Panels,
    "Series": MehlerSeries,
    "Ridges": Ridges,
    "Slices": Slices,
    "GivenTarget": GivenTarget,
    "Quadrature": Quadrature,
    "Cloud": Cloud,
    "MonteCarlo": MonteCarlo,
}

# For losses that are not quadratic, for labels that are flipped, and for what is reported besides the risk.
LOSS_ENGINES: dict[str, type[AbstractEngine]] = {"ProductRule": ProductRule, "SplitNets": SplitNets}
_ALL_ENGINES = ENGINES | LOSS_ENGINES

# Overlaps whose risks are computed at once.
BATCH = 16
# Operations of an exponential, logarithm or error function.
TRANSCENDENTAL = 10.0
# Saved points whose risk is computed in one call; a call takes a thousandth of a second more than its work.
ROWS = 1024


class Refusal(NamedTuple):
    """An engine that cannot compute a moment, with the reason."""

    moment: str
    engine: str
    reason: str


class Chosen(eqx.Module):
    """The engines chosen for the moments of a problem, and the refusals of other engines."""

    engines: tuple[AbstractEngine, ...]
    serves: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    refusals: tuple[Refusal, ...] = eqx.field(static=True)

    def engine_of(self, moment: str) -> AbstractEngine:
        """Return the engine that computes the moment."""
        return next(engine for engine, names in zip(self.engines, self.serves, strict=True) if moment in names)

    def only(self, moment: str) -> "Chosen":
        """Return what computes one moment alone."""
        return Chosen((self.engine_of(moment),), ((moment,),), ())

    def name_of(self, moment: str) -> str:
        """Return the name of what computes the moment."""
        return self.engine_of(moment).name

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        """Return the wanted moments at the overlaps, computed by their engines.

        The correlation loss has the forces of a student whose output is zero.
        """
        problem = with_known_units(problem)
        values: dict[str, Array] = {}
        silent = Overlaps(overlaps.Q, overlaps.M, overlaps.P, opposed_weights(problem, overlaps.a))
        for engine, names in zip(self.engines, self.serves, strict=True):
            served = tuple(name for name in wanted if name in names)
            forces = tuple(name for name in served if name in FORCES and isinstance(problem.loss, Correlation))
            others = tuple(name for name in served if name not in forces)
            values |= engine.parts(problem, silent, forces) if forces else {}
            values |= engine.parts(problem, overlaps, others) if others else {}
        return {name: values[name] for name in wanted}

    def moments(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...] = MOMENTS) -> Moments:
        """Return moments at the overlaps; zero are those not wanted, and ``phi_hd`` if no engine was chosen for it."""
        served = tuple(name for names in self.serves for name in names)
        values = self.parts(problem, overlaps, tuple(name for name in wanted if name in served))
        missing = {"phi_hd": (problem.p, problem.p), "excess_risk": ()}
        return Moments(**{name: jnp.zeros(shape) for name, shape in missing.items()} | values)

    def variants(self) -> tuple["Chosen", ...]:
        """Return the engines, and copies in which one engine at a time is replaced by one of its variants."""
        return tuple(Chosen(engines, self.serves, self.refusals) for engines in one_varied(self.engines))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        """Return value and error from the results of the variants; corrections and errors of the engines add up."""
        combined = combined_of(self.engines, results)
        return Estimate(combined.value, jax.tree.map(_without_nan, combined.error))

    @property
    def judges_first(self) -> bool:
        """Whether other variants than the first one are expensive and only judge it, for all engines."""
        return all(engine.judges_first for engine in self.engines)

    @property
    def rtol(self) -> float:
        """The largest tolerance of the engines; an integrator gains nothing from a smaller one."""
        return max(engine.rtol for engine in self.engines)

    @property
    def name(self) -> str:
        """The names of the engines as they appear in datasets."""
        if len(self.engines) == 1:
            return self.engines[0].name
        pairs = zip(self.engines, self.serves, strict=True)
        return "; ".join(f"{', '.join(names)}: {engine.name}" for engine, names in pairs)


def _without_nan(error: Any) -> Any:
    """Replace errors that are NaN, as where values overflow, by infinity."""
    return jnp.where(jnp.isnan(error), jnp.inf, error) if isinstance(error, jax.Array) else error


class Mixed(AbstractEngine):
    r"""The engines of every target of a `Mixture`, whose moments are added up by the shares of the targets.

    .. math:: E[g] = \sum_n q_n\,E_n[g]

    for every function g of one sample, its label included.
    """

    members: tuple[Chosen, ...]

    @property
    def rtol(self) -> float:
        return max(member.rtol for member in self.members)

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        return Suits(isinstance(problem.target, Mixture), "the target is not a mixture")

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Mixed":
        return cls(tuple(Auto(rtol).choose(part) for part in problem.components))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        shares: Any = problem.target.shares  # pyright: ignore[reportAttributeAccessIssue]
        rows = enumerate(zip(self.members, problem.components, strict=True))
        parts = [(shares[n], member.parts(component, overlaps, wanted)) for n, (member, component) in rows]
        return {name: jnp.asarray(sum(share * part[name] for share, part in parts)) for name in wanted}

    def variants(self) -> tuple["Mixed", ...]:
        return tuple(Mixed(members) for members in one_varied(self.members))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        return combined_of(self.members, results)

    @property
    def name(self) -> str:
        return "mixture of " + "; ".join(dict.fromkeys(member.name for member in self.members))


@accepts(str, Sequence[str], None)
def _as_engines(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, tuple | list) else (value,)
    for name in names:
        if not isinstance(name, str) or name not in _ALL_ENGINES:
            known = nearest(name, _ALL_ENGINES)
            raise InvalidInput(f"Argument `engines` names {shown(name)}, which is not known: {known}")
    return names


@register
class Auto(eqx.Module):
    """Chooses the first engine that can compute each moment of a problem.

    Closed forms come first, then exact polynomials, rules in few dimensions, randomised quasi-Monte Carlo, Monte Carlo.

    Parameters
    ----------
    rtol
        The relative accuracy that determines the sizes of rules. The reported error is measured independently of it.
    engines
        The names of the engines that may be chosen; all by default.
    """

    rtol: float = static(number("rtol", low=1e-12, below=1.0), default=1e-6)
    engines: tuple[str, ...] | None = static(_as_engines, default=None)

    def assign(self, problem: Problem, wanted: tuple[str, ...] = MOMENTS) -> tuple[dict[str, str], tuple[Refusal, ...]]:
        """Return the name of the engine for each moment, and every refusal, without building the engines."""
        if isinstance(problem.target, Mixture):
            return self._assign_mixture(problem, wanted)
        if not isinstance(problem.inputs, Gaussian):
            raise NotApplicable("Gaussian moments need Gaussian inputs, but `problem.inputs` is a data set.")
        if diverges(problem.target):
            raise NotApplicable(
                "No engine computes moments of this problem: the target's square has no finite average."
            )
        problem = with_known_units(problem)
        assigned: dict[str, str] = {}
        refusals: list[Refusal] = []
        for moment in wanted:
            for name, engine in self._allowed(problem, moment).items():
                suits = engine.suits(problem, moment)
                if suits.ok:
                    assigned[moment] = name
                    break
                refusals.append(Refusal(moment, name, suits.reason))
            else:
                reason = refusals[-1].reason if refusals else f"{problem.loss} needs ProductRule or SplitNets"
                raise NotApplicable(f"No engine computes `{moment}` of this problem: {reason}.")
        return assigned, tuple(refusals)

    def _allowed(self, problem: Problem, moment: str) -> dict[str, type[AbstractEngine]]:
        """Return the engines that may be chosen for a moment, by name."""
        engines = ENGINES if problem.is_quadratic and moment not in PREDICTIONS else LOSS_ENGINES
        return {name: cls for name, cls in engines.items() if self.engines is None or name in self.engines}

    def _assign_mixture(self, problem: Problem, wanted: tuple[str, ...]) -> tuple[dict[str, str], tuple[Refusal, ...]]:
        """Return the engine of a mixture for every moment, if each of its targets has one for it."""
        if "covariance" in wanted:
            raise NotApplicable("No engine computes the covariance of increments where the target is drawn.")
        refusals = [refusal for part in problem.components for refusal in self.assign(part, wanted)[1]]
        return dict.fromkeys(wanted, "Mixed"), tuple(dict.fromkeys(refusals))

    @plain
    def refusal(self, problem: Problem, wanted: tuple[str, ...] = MOMENTS) -> str:
        """Return why some wanted moment has no engine; empty if each has one."""
        if not isinstance(problem.inputs, Gaussian):  # a data set should not be kept alive
            return _refusal(self, problem, wanted)
        return _known_refusal(self.rtol, self.engines, Same((problem,)), wanted)

    def choose(self, problem: Problem, wanted: tuple[str, ...] = MOMENTS) -> Chosen:
        """Build the engines for the wanted moments of a problem."""
        if isinstance(problem.target, Mixture):
            _, refusals = self.assign(problem, wanted)
            members = tuple(self.choose(part, wanted) for part in problem.components)
            return Chosen((Mixed(members),), (wanted,), refusals)
        problem = with_known_units(problem)
        assigned, refusals = self.assign(problem, wanted)
        for moment, name in assigned.items():
            need = partial(_ALL_ENGINES[name].room, problem, moment, self.rtol)
            check_size("p", problem.p, need, f"the moment `{moment}` by {name}")
        names = tuple(dict.fromkeys(assigned.values()))
        engines = tuple(_ALL_ENGINES[name].build(problem, self.rtol) for name in names)
        serves = tuple(tuple(moment for moment in wanted if assigned[moment] == name) for name in names)
        return Chosen(engines, serves, refusals)


def _refusal(auto: Auto, problem: Problem, wanted: tuple[str, ...]) -> str:
    try:
        auto.assign(problem, wanted)
    except NotApplicable as missing:
        return str(missing)
    return ""


@lru_cache(maxsize=256)  # the cells of a sweep share their problems
def _known_refusal(rtol: float, engines: tuple[str, ...] | None, same: Same, wanted: tuple[str, ...]) -> str:
    return _refusal(Auto(rtol, engines), same.members[0], wanted)


def choose(problem: Problem, wanted: tuple[str, ...] = MOMENTS) -> Chosen:
    """Build the engines that the default `Auto` chooses."""
    return Auto().choose(problem, wanted)


def estimate(chosen: Chosen, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...] = MOMENTS) -> Estimate:
    """Return the wanted moments at the overlaps and their errors, as two dictionaries by name."""
    return _combined(chosen, tuple(_parts(variant, problem, overlaps, wanted) for variant in chosen.variants()))


@QuickProgram  # one small program instead of one for each operation on each shape
def _combined(chosen: Chosen, results: tuple[PyTree, ...]) -> Estimate:
    return chosen.combine(results)


@QuickProgram
def _parts(chosen: Chosen, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
    return chosen.parts(problem, overlaps, wanted)


def operations(chosen: Chosen, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...] = MOMENTS) -> float:
    """Operations of one evaluation of the moments by one variant, as the compiler counts them: a loop counts once."""
    counts = _parts.counts(chosen.variants()[0], problem, overlaps, wanted)
    return counts.get("flops", 0.0) + TRANSCENDENTAL * counts.get("transcendentals", 0.0)


def temporary_bytes(chosen: Chosen, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...] = MOMENTS) -> float:
    """Bytes that one evaluation of the moments by one variant holds, as the compiler has laid them out.

    The program is that of `estimate`; nothing is compiled after it.
    """
    return _parts.held_bytes(chosen.variants()[0], problem, overlaps, wanted)


def risk_along(
    chosen: Chosen,
    problem: Problem,
    Q: Float[np.ndarray, "replicas times p p"],
    M: Float[np.ndarray, "replicas times p k"],
    P: Float[Array, "k k"],
    a: Float[np.ndarray, "replicas times p"],
    moment: str = "excess_risk",
) -> tuple[Float[np.ndarray, "replicas times"], Float[np.ndarray, "replicas times"]]:
    """Return the excess risk and its numerical error along saved trajectories; NaN where the overlaps are NaN.

    ``moment`` may name another one that is a number.
    """
    alone = chosen.only(moment)
    risks = tuple(risks_of(variant, problem, P, Q, M, a, moment=moment) for variant in alone.variants())
    result = _combined(alone, risks)
    return np.asarray(result.value), np.asarray(result.error)


def risks_along(
    chosen: Chosen,
    problem: Problem,
    P: Float[Array, "k k"],
    Q: Sequence[Float[np.ndarray, "_ _ p p"]],
    M: Sequence[Float[np.ndarray, "_ _ p k"]],
    a: Sequence[Float[np.ndarray, "_ _ p"]],
) -> list[tuple[Float[np.ndarray, "_ _"], Float[np.ndarray, "_ _"]]]:
    """Return `risk_along` for several sets of trajectories, whose numbers do not depend on the other sets."""
    rows = tuple(np.concatenate([x.reshape(-1, *x.shape[2:]) for x in several]) for several in (Q, M, a))
    value, error = in_blocks(_risk_of_row, (chosen, problem, np.asarray(P)), rows)
    shapes = [x.shape[:2] for x in a]
    ends = np.cumsum([size * times for size, times in shapes])[:-1]
    pairs = zip(np.split(value, ends), np.split(error, ends), shapes, strict=True)
    return [(risk.reshape(shape), its_error.reshape(shape)) for risk, its_error, shape in pairs]


def _risk_of_row(common: tuple[Chosen, Problem, Array], row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    chosen, problem, P = common
    result = estimate(chosen, problem, Overlaps(row[0], row[1], P, row[2]), ("excess_risk",))
    return result.value["excess_risk"], result.error["excess_risk"]


def risks_of(
    variant: Chosen,
    problem: Problem,
    P: Array,
    Q: Array | np.ndarray,
    M: Array | np.ndarray,
    a: Array | np.ndarray,
    *,
    moment: str = "excess_risk",
) -> Float[np.ndarray, "rows times"]:
    """Return the excess risk with one variant of the engines, at overlaps with the leading axes (rows, times)."""
    # Without all that the risk does not depend on, so that every description has the same program.
    alone = variant.only(moment)
    small = problem.without_dimension
    if problem.is_quadratic and moment == "excess_risk":
        small = replaced(small, noise=0.0)
    number = a.shape[0] * a.shape[1]
    size = min(BATCH, _power_of_two(number))
    batches = -(-number // size)
    # Room for a power of two of batches, so that one program serves similar numbers of save points.
    rows = [np.asarray(x).reshape(number, *x.shape[2:]) for x in (Q, M, a)]
    members = np.minimum(np.arange(_power_of_two(batches) * size), number - 1)
    batched = tuple(x[members].reshape(-1, size, *x.shape[1:]) for x in rows)
    risks = _risks_of(alone, as_data(small), np.asarray(P), batched, np.asarray(batches))
    return np.asarray(risks).ravel()[:number].reshape(a.shape[:2])


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


@QuickProgram
def _risks_of(
    variant: Chosen, problem: Problem, P: Array | np.ndarray, rows: tuple[Array | np.ndarray, ...], batches: Any
) -> Float[Array, "room size"]:
    """Return the risks of the first batches of rows, one batch after the other."""

    def risk_of_row(row: tuple[Array, ...]) -> Array:
        (moment,) = variant.serves[0]
        return variant.parts(problem, Overlaps(row[0], row[1], P, row[2]), (moment,))[moment]

    # Rules that adapt to each row would make all of their choices in every row of a vector.
    over_rows = jax.lax.map if variant.judges_first else lambda function, batch: jax.vmap(function)(batch)

    def advance(batch: Array, risks: Array) -> Array:
        return risks.at[batch].set(over_rows(risk_of_row, tuple(x[batch] for x in rows)))

    return jax.lax.fori_loop(0, batches, advance, jnp.zeros(rows[2].shape[:2]))


def in_parts(function: Callable[[list[Array]], Array], rows: list[np.ndarray]) -> np.ndarray:
    """Apply a compiled function to rows of arrays, of which it sees few different numbers.

    Their number is filled up to a power of two with the last of them, and many are taken in parts.
    """
    count = len(rows[0])
    size = min(ROWS, 1 << (count - 1).bit_length())
    parts = [np.minimum(first + np.arange(size), count - 1) for first in range(0, count, size)]
    return np.concatenate([function([jnp.asarray(x[members]) for x in rows]) for members in parts])[:count]
