"""The verb for the central limit theorem of SGD: it labels what `theory.linear_noise` integrates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

from twolayer.ask import Ask, first_start, reads_ask
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.core.text import Text, table
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import TIME_UNIT, Schema, Variable, add_kind, label
from twolayer.data.summary import with_error
from twolayer.expectation import Auto
from twolayer.problem import Overlaps, Problem
from twolayer.specification.fields import count, instance, number
from twolayer.theory import SDE
from twolayer.theory.linear_noise import linear_noise
from twolayer.training import SGD
from twolayer.verbs.progress import Progress, named_progress, shows_progress

if TYPE_CHECKING:
    import xarray as xr

# Entries that a table shows at most.
SHOWN = 40


def summary(result: "xr.Dataset") -> Text:
    """The limit, the scatter of single runs and the shift of their mean at the last time, at the d of the problem."""
    d, last = result.attrs["d"], result.isel(time=-1)
    rows = []
    for entry in result.entry.values[:SHOWN]:
        here = last.sel(entry=entry)
        variance, error = (float(here[name].sel(other_entry=entry)) for name in ("covariance", "covariance_error"))
        scatter = np.sqrt(max(variance, 0.0) / d)
        scatter_error = min(np.sqrt(error / d), error / (2.0 * d * scatter) if scatter > 0.0 else np.inf)
        rows.append(
            [
                entry,
                with_error(float(here.limit), float(here.limit_error)),
                with_error(scatter, scatter_error),
                with_error(float(here["shift"]) / d, float(here.shift_error) / d),
            ]
        )
    lines = [f"At time {float(last.time):.6g}, d = {d}:"]
    lines += table(["overlap", "limit", "scatter of a run", "shift of the mean"], rows, right=(1, 2, 3))
    if result.sizes["entry"] > SHOWN:
        lines.append(f"and {result.sizes['entry'] - SHOWN} more")
    return Text("\n".join(lines))


_ENTRIES = ("time", "entry")
_PAIRS = ("time", "entry", "other_entry")
FLUCTUATIONS = add_kind(
    Schema(
        kind="fluctuations",
        variables={
            "limit": Variable(_ENTRIES, "overlaps in the limit of infinite d"),
            "limit_error": Variable(_ENTRIES, "bound on the numerical error of the limit"),
            "covariance": Variable(_PAIRS, "covariance of the overlaps of single runs, times d"),
            "covariance_error": Variable(_PAIRS, "bound on the numerical error of the covariance"),
            "shift": Variable(_ENTRIES, "mean of the overlaps of runs minus the limit, times d"),
            "shift_error": Variable(_ENTRIES, "bound on the numerical error of the shift"),
        },
        coordinates={
            "time": Variable(("time",), "time, learning_rate * samples / (p d)", TIME_UNIT),
            "entry": Variable(("entry",), "an output weight a[j], or an overlap M[j,r] or Q[j,l]"),
            "other_entry": Variable(("other_entry",), "an output weight a[j], or an overlap M[j,r] or Q[j,l]"),
        },
        attributes=("d", "method"),
        summary=summary,
    )
)


# Large: a verb has one argument for each thing that can be asked.
@takes_these
@reads_ask(until="until", save="save", seed="seed")
@shows_progress
def fluctuations(
    problem: Problem,
    training: SGD,
    times: Sequence[float | int] | Float[np.ndarray | Array, " times"] | None = None,
    *,
    ask: Ask | None = None,
    until: float | int | None = None,
    save: int | str | Sequence[float] | Float[np.ndarray, " times"] | None = None,
    seed: int = 0,
    start: Overlaps | None = None,
    covariance: Sequence[Sequence[float | int]] | Float[np.ndarray | Array, "entries entries"] | None = None,
    rtol: float = 1e-8,
    engine: Auto = Auto(),
    progress: Progress | bool | None = None,
) -> "xr.Dataset":
    r"""Compute the covariance and the shift of the mean of the overlaps of SGD at leading order in 1/d.

    This is the central limit theorem of SGD: no path is drawn. With the drift F, its derivative J and the covariance
    :math:`\Sigma` of the increments along the solution X of the ODE, and the drift h/d of the corrections,

    .. math::
        \dot C = J C + C J^T + \frac{\gamma}{p}\,\Sigma, \qquad
        \dot\delta = J \delta + \tfrac12 \sum_{uv} \partial_u \partial_v F\; C_{uv} + h

    Parameters
    ----------
    problem, training
        What is learned, and how: fresh batches much smaller than d.
    times
        Increasing times; the first is that of the start. By default those that ``until`` and ``save`` say.
    ask
        ``until``, ``save`` and ``seed`` as an `Ask`, as in `evolve`; arguments beside it come first.
    until, save
        The time at which to stop, and the times to save or their number, as in `evolve`: time zero comes first.
    seed
        The seed of a random start, which is that of the first replica of `evolve`.
    start
        Where to start; by default the start of the problem.
    covariance
        The covariance at the start, times d; none by default.
    rtol
        Tolerance of the integrator per step.
    engine
        How the engines of the Gaussian moments are chosen.
    progress
        Called with a name and the share of the solutions that are done, of which the last ones say how large the errors
        are; as in `evolve`.

    Returns
    -------
    A labelled dataset of kind "fluctuations" along ``time`` and ``entry`` (``"a[0]"``, ``"M[0,0]"``, ``"Q[0,1]"``; for
    inputs with a spectrum those of block l are ``"M_block[l,0,0]"`` and ``"Q_block[l,0,1]"``):
    the ``limit`` X, the ``covariance`` C and the ``shift`` :math:`\delta`, each with its numerical error. The overlaps
    of SGD have the mean :math:`X + \delta/d` and the covariance :math:`C/d`; `twolayer.summary` writes them at the d of
    the problem. Its attribute ``method`` names the engines of the averages and the number of points in time.

    Notes
    -----
    The averages are taken at 33 Chebyshev points in time, or more where these do not suffice, and interpolated between;
    what every second point alone would give counts as an error. Where the ODE diverges, values are infinite and errors
    NaN from the next time on. Checked against: the equations without interpolation,
    mean and variance of the overlap process at growing d.

    Examples
    --------
    >>> import twolayer as tl
    >>> start = tl.GivenOverlaps([[1.0]], [[0.3]])
    >>> problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000), start=start)
    >>> result = tl.fluctuations(problem, tl.SGD(0.05, constraint=tl.Sphere()), [0.0, 1.0])
    >>> result.covariance.sel(entry="M[0,0]", other_entry="M[0,0]").dims
    ('time',)
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    tolerance = number("rtol", above=0.0, below=1.0)(rtol)
    instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)")(engine)
    seed = count("seed", low=0, high=2**31 - 1)(seed)
    with double():
        begun = first_start(problem, seed) if start is None else start
        tell = named_progress(progress, "fluctuations")
        solution = linear_noise(
            problem, training, _times(times, until, save), begun, covariance, tolerance, engine, tell
        )
        fields: dict[str, Any] = {
            "engine": engine,
            "times": solution.times,
            "start": start,
            "covariance": covariance,
            "rtol": tolerance,
        } | ({"seed": seed} if seed else {})  # results of seed 0 keep the hash that they had without the argument
        question = Question("fluctuations", {"problem": problem, "training": training, **fields})
        method = f"{solution.engine}; coefficients at {solution.nodes} Chebyshev points in time"
        attributes = {"d": problem.d, "method": method} | provenance(question, seed, SDE().references)
    values = {name: getattr(solution, name) for name in FLUCTUATIONS.variables}
    entries = list(solution.entries)
    return label(FLUCTUATIONS, values, {"time": solution.times, "entry": entries, "other_entry": entries}, attributes)


def _times(times: Any, until: Any, save: Any) -> Any:
    """The times that were given, or those of an `Ask`."""
    asked = {name: value for name, value in (("until", until), ("save", save)) if value is not None}
    if times is None:
        return Ask(**asked).times()
    if asked:
        raise InvalidInput(f"Arguments `times` and `{next(iter(asked))}` both say when to save: give one of them.")
    return times
