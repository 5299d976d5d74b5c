"""The verb for Gaussian averages at given overlaps: it labels what the engines of `expectation` compute."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, nearest, shown, takes_these
from twolayer.core.estimate import Estimate
from twolayer.core.precision import double
from twolayer.core.programs import QuickProgram
from twolayer.core.random import replica_key
from twolayer.core.text import Text, table
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.data.summary import with_error
from twolayer.expectation import MOMENTS as COMPUTED
from twolayer.expectation import Auto, Chosen, estimate
from twolayer.problem import BlockOverlaps, Overlaps, Problem
from twolayer.problem.overlaps import check_overlaps
from twolayer.specification.fields import instance
from twolayer.theory import SaadSolla
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr

# The public averages, each with the moment of the engines of which it is a part.
PART_OF = {"excess_risk": "excess_risk", "chi": "chi", "psi": "v", "phi_gf": "v", "phi_hd": "phi_hd"}
# Entries of one average that a table shows at most.
SHOWN = 16
# Points of a trajectory that are computed at once.
BATCH = 64

_VARIABLES = {
    "excess_risk": Variable((), "E[(f - s)^2] / 2, the risk above the noise floor"),
    "chi": Variable(("i",), "E[sigma(lambda_i) (f - s)], which moves the second layer"),
    "psi": Variable(("i", "r"), "E[sigma'(lambda_i) lambda*_r (f - s)], which moves M"),
    "phi_gf": Variable(("i", "j"), "E[sigma'(lambda_i) lambda_j (f - s)], which moves Q at first order in the step"),
    "phi_hd": Variable(("i", "j"), "E[sigma'(lambda_i) sigma'(lambda_j) (y - s)^2], which moves Q at second order"),
}


def summary(result: "xr.Dataset") -> Text:
    """Each average with its error, entry by entry, or their ranges along a trajectory."""
    names = [name for name in PART_OF if name in result]
    if "time" in result.dims:
        rows = [
            [name, f"{float(result[name].min()):.6g}", f"{float(result[name].max()):.6g}", f"{largest:.2g}"]
            for name in names
            for largest in [float(result[f"{name}_error"].max())]
        ]
        lines = [f"At {result.sizes['time']} times of {result.sizes['replica']} runs:"]
        return Text("\n".join(lines + table(["average", "lowest", "highest", "largest error"], rows, right=(1, 2, 3))))
    rows = []
    for name in names:
        values, errors = result[name].values, result[f"{name}_error"].values
        for entry in list(np.ndindex(values.shape))[:SHOWN]:
            index = f"[{','.join(map(str, entry))}]" if entry else ""
            rows.append([f"{name}{index}", with_error(float(values[entry]), float(errors[entry]))])
        if values.size > SHOWN:
            rows.append([f"{name}: {values.size - SHOWN} more", ""])
    return Text("\n".join(table(["average", "value"], rows, right=(1,))))


def _schema(kind: str, leading: tuple[str, ...]) -> Schema:
    variables = {
        name: Variable((*leading, *variable.dimensions), variable.long_name) for name, variable in _VARIABLES.items()
    }
    errors = {
        f"{name}_error": Variable(variable.dimensions, f"bound on the numerical error of {name}")
        for name, variable in variables.items()
    }
    return add_kind(
        Schema(kind=kind, variables={}, optional=variables | errors, attributes=("engine",), summary=summary)
    )


AT_POINT = _schema("moments", ())
ALONG = _schema("moments along a trajectory", ("replica", "time"))


@takes_these
@shows_progress
def moments(
    problem: Problem,
    overlaps: "Overlaps | xr.Dataset | None" = None,
    *,
    wanted: Sequence[str] | None = None,
    engine: Auto = Auto(),
    progress: Progress | bool | None = None,
) -> "xr.Dataset":
    r"""Compute the Gaussian averages that move the overlaps, with their errors.

    .. math::
        \psi_{jr} = E[\sigma'(\lambda_j)\,\lambda^\star_r\,(f - s)], \quad
        \varphi^{GF}_{jl} = E[\sigma'(\lambda_j)\,\lambda_l\,(f - s)], \quad
        \varphi^{HD}_{jl} = E[\sigma'(\lambda_j)\,\sigma'(\lambda_l)\,(y - s)^2], \quad
        \chi_j = E[\sigma(\lambda_j)\,(f - s)]

    In one step of SGD with one sample, at leading order in 1/d, M moves by :math:`(\gamma/pd)\, a_j \psi_{jr}`, Q by
    :math:`(\gamma/pd)(a_j \varphi^{GF}_{jl} + a_l \varphi^{GF}_{lj}) + (\gamma^2/p^2 d)\, a_j a_l \varphi^{HD}_{jl}`.
    Of the averages only :math:`\varphi^{HD}` contains the label noise; :math:`\varphi^{GF}` is not symmetric.

    Parameters
    ----------
    problem
        Target, student and noise; the inputs are Gaussian.
    overlaps
        Where to compute them: `Overlaps(Q, M, P, a)`, or a trajectory that `evolve` returned, at all of its times. By
        default the start of the problem, drawn with seed 0 where it is random. For inputs with a spectrum `Overlaps`
        are the covariance of the fields, and those of a trajectory are taken from its blocks.
    wanted
        Some of ``"excess_risk"``, ``"chi"``, ``"psi"``, ``"phi_gf"``, ``"phi_hd"``; all by default. The last one is the
        most expensive.
    engine
        How the engine of each average is chosen.
    progress
        Called with the name of what is done, and the fraction of it; as in `evolve`.

    Returns
    -------
    A labelled dataset of kind "moments" with the dimensions ``i``, ``j`` (student) and ``r`` (target), and with
    ``replica`` and ``time`` for a trajectory. Each average has its error beside it, ``psi_error`` for ``psi``; the
    attribute ``engine`` says how they were computed.

    Notes
    -----
    Checked against: Monte Carlo averages over the fields, and finite steps of SGD on the weights.

    Examples
    --------
    >>> import twolayer as tl
    >>> problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000))
    >>> result = tl.moments(problem, tl.Overlaps([[0.5]], [[0.5]], [[1.0]], [1.0]))
    >>> round(float(result.psi[0, 0]), 12)
    1.5
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)")(engine)
    names = _as_names(wanted)
    with double():
        if overlaps is None:
            overlaps = problem.draw(replica_key(0, 0)).of_fields
        points, leading = _as_points(problem, overlaps)
        needed = tuple(moment for moment in COMPUTED if moment in {PART_OF[name] for name in names})
        chosen = engine.choose(problem, needed)
        tell = progress if callable(progress) else nobody
        tell("averages", 0.0)
        result = _at_points(chosen, problem, points, needed)
        tell("averages", 1.0)
        where = {name: getattr(points, name)[0].tolist() for name in ("Q", "M", "a")} | {"P": points.P.tolist()}
        if not isinstance(overlaps, Overlaps):
            where = {"trajectory": overlaps.attrs.get("spec_hash", "")}
        question = Question("moments", {"problem": problem, "at": where, "wanted": list(names), "engine": engine})
        attributes = {"engine": chosen.name} | provenance(question, 0, SaadSolla().references)
    values: dict[str, Float[np.ndarray, "..."]] = {}
    for suffix, of_points in (("", result.value), ("_error", result.error)):
        for name, value in _named(of_points, problem.p).items():
            if name in names:
                values[name + suffix] = np.asarray(value).reshape((*(leading or ()), *value.shape[1:]))
    if leading is None:
        return label(AT_POINT, values, {}, attributes)
    assert not isinstance(overlaps, Overlaps)
    return label(ALONG, values, {"time": overlaps.time}, attributes)


def _as_names(wanted: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(PART_OF) if wanted is None else (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in PART_OF:
            raise InvalidInput(f"Argument `wanted` names {shown(name)}, which is not known: {nearest(name, PART_OF)}")
    if not names:
        raise InvalidInput(f"Argument `wanted` must name at least one of {', '.join(PART_OF)}, but is empty.")
    return names


def _as_points(problem: Problem, given: "Overlaps | xr.Dataset") -> tuple[Overlaps, tuple[int, int] | None]:
    """The overlaps stacked along one axis, and the sizes of that axis for a trajectory (replicas, times)."""
    p, k = problem.p, problem.k
    is_one = isinstance(given, Overlaps)
    if not is_one and not all(hasattr(given, name) for name in ("Q", "M", "P", "a", "time")):
        raise InvalidInput(f"Argument `overlaps` must be `Overlaps` or the result of `evolve`, but is {shown(given)}.")
    Q, M, P, a = (np.asarray(getattr(given, name), dtype=np.float64) for name in ("Q", "M", "P", "a"))
    if not is_one and not problem.is_isotropic:
        if "Q_block" not in given:
            raise InvalidInput("The trajectory in `overlaps` must hold overlaps by block, as this problem's does.")
        blocks = BlockOverlaps(jnp.asarray(given.Q_block.values), jnp.asarray(given.M_block.values), problem.frame)
        Q, M, P = map(np.asarray, blocks.weighted())
    leading = None if is_one else (Q.shape[0], Q.shape[1])
    for name, matrix, shape in (("Q", Q, (p, p)), ("M", M, (p, k)), ("P", P, (k, k)), ("a", a, (p,))):
        own = matrix.shape if is_one or name == "P" else matrix.shape[2:]
        if own != shape:
            raise InvalidInput(f"Array `{name}` of `overlaps` must have shape {shape} for this problem, but has {own}.")
    if is_one:
        if not all(np.all(np.isfinite(matrix)) for matrix in (Q, M, P, a)):
            raise InvalidInput("The arrays of `overlaps` must be finite, but hold NaN or infinity.")
        check_overlaps(Q, M, P)
    rows = (jnp.asarray(Q.reshape(-1, p, p)), jnp.asarray(M.reshape(-1, p, k)), jnp.asarray(a.reshape(-1, p)))
    return Overlaps(rows[0], rows[1], jnp.asarray(P), rows[2]), leading


def _named(parts: dict[str, Array], p: int) -> dict[str, Array]:
    """The public averages from the moments of the engines, in which psi and phi_gf are one array."""
    split = {"psi": parts["v"][..., p:], "phi_gf": parts["v"][..., :p]} if "v" in parts else {}
    return {name: value for name, value in parts.items() if name != "v"} | split


@QuickProgram
def _at_points(chosen: Chosen, problem: Problem, points: Overlaps, wanted: tuple[str, ...]) -> Estimate:
    def at(row: tuple[Array, Array, Array]) -> Estimate:
        return estimate(chosen, problem, Overlaps(row[0], row[1], points.P, row[2]), wanted)

    rows = (points.Q, points.M, points.a)
    return jax.lax.map(at, rows, batch_size=min(BATCH, len(points.a)))
