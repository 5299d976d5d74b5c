r"""The deterministic map of SGD with large batches: gradient descent on the risk, and the noise of a batch.

Write the student as :math:`W = \hat M E^\star + L E^\perp` with orthonormal rows :math:`E^\star`, spanning the target,
and :math:`E^\perp`. In these coordinates the mean of a step is a step of gradient descent on the population risk, and
the part that a batch adds in new directions is a matrix whose square is known. No matrix is inverted.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.linalg import root
from twolayer.core.programs import KeptProgram
from twolayer.description import ROW, Applies, Exactness, Plan, Record, Watch, by_block, seen_by_fields
from twolayer.expectation import Auto, Chosen, risks_of
from twolayer.expectation.gaussian_moments import student_weights
from twolayer.fitting import FitsPopulation
from twolayer.problem import BlockFrame, BlockOverlaps, Correlation, Overlaps, Problem
from twolayer.problem.spectrum_blocks import coordinates_of
from twolayer.specification.fields import as_data, flag, instance, static
from twolayer.specification.registry import register
from twolayer.stepping import Stepper, run_each, sealed
from twolayer.theory.motion.error_bounds import carried, largest, nudged
from twolayer.theory.motion.scope import ALL_LOSSES, refusal
from twolayer.training import SGD
from twolayer.training.update import projected

NEEDED = ("excess_risk", "phi_hd")
# Replicas computed at once, which bounds the memory for the points of an engine.
TOGETHER = 256


def needed(problem: Problem) -> tuple[str, ...]:
    """The moments of a step; the average of the correlation loss takes one more."""
    return (*NEEDED, "chi") if isinstance(problem.loss, Correlation) else NEEDED


class Frame(NamedTuple):
    """The rows of the weights in an orthonormal frame; those of a method's memory, such as a velocity, come first.

    For inputs with a spectrum they are coordinates in each block, along a leading axis.
    """

    M: Float[Array, "*blocks rows k"]  # coordinates within the target's span
    L: Float[Array, "*blocks rows rows"]  # coordinates outside of the target's span
    a: Float[Array, " p"]


def frame_of(overlaps: Overlaps, training: SGD) -> Frame:
    r"""Coordinates with the given overlaps: :math:`\hat M = M P_c^{-T}` and :math:`L = (Q^\perp)^{1/2}`."""
    blocks = overlaps.blocks
    if blocks is None:
        M = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(overlaps.P), overlaps.M.T, lower=True).T
        return Frame(*_with_memory(training, M, root(overlaps.perpendicular)), overlaps.a)
    k, rows = overlaps.M.shape[1], []
    for factor, Q, M in zip(blocks.frame.roots, blocks.Q, blocks.M, strict=True):
        along, L = coordinates_of(factor, Q, M)
        rows.append(_with_memory(training, jnp.pad(along, [(0, 0), (0, k - along.shape[1])]), L))
    return Frame(jnp.stack([M for M, _ in rows]), jnp.stack([L for _, L in rows]), overlaps.a)


def _with_memory(
    training: SGD, M: Float[Array, "p k"], L: Float[Array, "p p"]
) -> tuple[Float[Array, "rows k"], Float[Array, "rows rows"]]:
    """Coordinates after those of the method's memory, which is zero at the start."""
    if not training.has_momentum:
        return M, L
    memory = training.method.memory * len(M)
    M = jnp.concatenate([jnp.zeros((memory, M.shape[1])), M])
    return M, jax.scipy.linalg.block_diag(jnp.zeros((memory, memory)), L)


def overlaps_of(frame: Frame, target: Float[Array, "k k"] | BlockFrame) -> Overlaps:
    """The overlaps of the weights with a target that is given by its overlaps P, or by its place in the blocks."""
    p = len(frame.a)
    M, L = frame.M[..., -p:, :], frame.L[..., -p:, :]
    Q = M @ _transposed(M) + L @ _transposed(L)
    if not isinstance(target, BlockFrame):
        return Overlaps(Q, M @ jnp.linalg.cholesky(target).T, target, frame.a)
    k = M.shape[-1]
    factors = jnp.stack([jnp.pad(jnp.asarray(R), [(0, 0), (0, k - R.shape[1])]) for R in target.roots])
    return Overlaps.by_block(BlockOverlaps(Q, M @ _transposed(factors), target), frame.a)


def _transposed(X: Float[Array, "*n a b"]) -> Float[Array, "*n b a"]:
    return jnp.swapaxes(X, -1, -2)


def _as_rows(X: Float[Array, "*blocks rows n"]) -> Float[Array, "rows m"]:
    """The rows of all blocks as whole rows; a method and a constraint act on these."""
    return X if X.ndim == 2 else jnp.swapaxes(X, 0, 1).reshape(X.shape[1], -1)


def _in_blocks(rows: Float[Array, "rows m"], blocks: int | None) -> Float[Array, "*blocks rows n"]:
    """The inverse of `_as_rows`."""
    return rows if blocks is None else jnp.swapaxes(rows.reshape(len(rows), blocks, -1), 0, 1)


# Large: one step is one formula, whose parts share their averages.
def map_step(
    problem: Problem,
    training: SGD,
    engine: Chosen,
    target: Float[Array, "k k"] | BlockFrame,
    lengths: Float[Array, " p"],
    frame: Frame,
    finite: bool = False,
) -> tuple[Frame, Float[Array, ""]]:
    r"""One step on a batch of :math:`n_b \to \infty` fresh samples, and the excess risk before it.

    .. math::
        M^+ &= M + \tfrac{\gamma_d}{p} D_a \psi, \qquad a^+ = a + \kappa\tfrac{\gamma_d}{p}\,\chi, \\
        Q^+ &= Q + \tfrac{\gamma_d}{p} (D_a \varphi + \varphi^T D_a) + \tfrac{\gamma_d^2}{p^2} D_a \Big[
        \tfrac{d}{n_b}\,\varphi^{HD} + v\,\Omega^{-1} v^T \Big] D_a, \qquad \gamma_d = \gamma\,\tfrac{n_b}{d}

    The forces are derivatives of the risk, :math:`\tfrac1p D_a\,E[\sigma' \mathcal E z^T] = -\partial_W \mathcal R`, so
    that in the coordinates of the weights

    .. math::
        \hat M^+ = \hat M - \gamma_d\,\partial_{\hat M} \mathcal R, \qquad
        L^+ = \mathrm{LQ}\Big[ L - \gamma_d\,\partial_L \mathcal R,\ \ \gamma_d \sqrt{\tfrac{d}{n_b}}\,
        \tfrac1p D_a (\varphi^{HD})^{1/2} \Big], \qquad a^+ = a - \kappa\gamma_d\,\partial_a \mathcal R

    which contains :math:`v\,\Omega^{-1} v^T` as a square and keeps Q positive at any overlaps, singular ones included.
    The rows are brought back to their ``lengths`` on the sphere, by the full root; in the Riemannian variant the moves
    lose their parts along the rows before. A method with a memory takes the
    gradient where it asks for it and applies its own step to these coordinates, the noise being in new directions.

    For inputs with a spectrum the coordinates are those of each block l, the risk a function of the covariance of the
    fields, :math:`\sum_l c_l (\hat M_l \hat M_l^T + L_l L_l^T)` and so on, and the noise in block l has the variance of
    the inputs there: d is :math:`c_l d_l` in it.

    Parameters
    ----------
    problem, training
        The problem and its training.
    engine
        The Gaussian moments ``excess_risk``, which is differentiated, and ``phi_hd``; for the correlation loss also
        ``chi``, since :math:`E[-y s] = -\tfrac1p \sum_j a_j \chi_j` is differentiated in its place.
    target, lengths, frame
        Target-target overlaps, or the place of the target in the blocks of a spectrum; initial lengths of the rows; and
        the current weights.
    finite
        Whether Q follows its exact conditional mean at finite d and :math:`n_b` instead: the bracket is then

        .. math:: \tfrac{1}{n_b} E\big[\sigma' \sigma'^T \mathcal E^2 (d - r + \ell^T \Omega^+ \ell)\big]
                  + \big(1 - \tfrac{1}{n_b}\big) v\,\Omega^+ v^T, \qquad r = \mathrm{rank}\,\Omega

        where :math:`E[F (\ell^T\Omega^+\ell - r)] = 2\,\partial_s E_{s\Omega}[F]` at s = 1.

    Notes
    -----
    Assumes fresh samples and the square or the correlation loss. On the sphere ``finite`` is the conditional mean
    before the rows are brought back. Checked against: the overlap process at growing :math:`n_b`, its mean over one
    step at d = 10 with three samples, a plain NumPy map, the ODE; for a spectrum, direct SGD and blocks of eigenvalue
    one.

    References
    ----------
    :cite:t:`arnaboldi2024batch`; :cite:t:`dandi2023giant` for giant steps.
    """
    p, d, n_b = problem.p, problem.d, training.samples_per_step(problem)
    rate = training.learning_rate * n_b / d
    blocks = frame.M.shape[0] if frame.M.ndim == 3 else None

    def average(name: str, M: Array, L: Array, a: Array) -> Array:
        return engine.parts(problem, overlaps_of(Frame(M, L, a), target).of_fields, (name,))[name]

    def loss(M: Array, L: Array, a: Array) -> Array:
        """The average of the loss, up to a constant."""
        if isinstance(problem.loss, Correlation):
            return -student_weights(problem, a) @ average("chi", M, L, a)
        return average("excess_risk", M, L, a)

    Y, k, a = jnp.concatenate([frame.M, frame.L], axis=-1), frame.M.shape[-1], frame.a
    W = Y
    if training.has_momentum:
        W = _in_blocks(training.method.query(_as_rows(Y[..., -p:, :]), _as_rows(Y[..., :-p, :])), blocks)
    M, L = W[..., :k], W[..., k:]  # where the gradient is taken
    value, slopes = jax.value_and_grad(loss, argnums=(0, 1, 2))(M, L, a)
    dM, dL = -rate * slopes[0], -rate * slopes[1]
    da = -training.layer_ratio * rate * slopes[2]
    # The loss may be another one than that of the risk, and a method may look at other weights than the current ones.
    if isinstance(problem.loss, Correlation) or not training.is_classical:
        value = average("excess_risk", frame.M[..., -p:, :], frame.L[..., -p:, :], a)
    if not training.trains_first:
        return Frame(frame.M, frame.L, a + da), value

    def phi_hd(scale: Array) -> Array:
        seen = overlaps_of(Frame(M, L, a), target).of_fields
        overlaps = Overlaps(scale * seen.Q, scale * seen.M, scale * seen.P, a)
        return engine.parts(problem, overlaps, ("phi_hd",))["phi_hd"]

    one = jnp.ones(())
    c = rate * student_weights(problem, a)
    if finite:
        phi, by_scale = jax.jvp(phi_hd, (one,), (one,))
        spread = c[:, None] * (d * phi + 2.0 * by_scale) * c[None, :] - (dM @ dM.T + dL @ dL.T)
    else:
        spread = c[:, None] * (d * phi_hd(one)) * c[None, :]
    noise = root(spread / n_b)
    if isinstance(target, BlockFrame):  # inputs of a block have the variance of its eigenvalue, in its dimensions
        noise = jnp.sqrt(jnp.asarray(target.eigenvalues * target.shares))[:, None, None] * noise[None]

    # The noise of the batch is in directions of its own.
    decay = 1.0 - training.weight_decay * rate
    W = _as_rows(jnp.concatenate([decay * Y[..., -p:, :], jnp.zeros_like(noise)], axis=-1))
    move = _as_rows(jnp.concatenate([dM, dL, noise], axis=-1))
    if training.is_riemannian:  # the noise is in directions orthogonal to the weights
        move = projected(_as_rows(jnp.concatenate([Y[..., -p:, :], jnp.zeros_like(noise)], axis=-1)), move)
    if training.has_momentum:
        rest = Y[..., :-p, :]
        memory = _as_rows(jnp.concatenate([rest, jnp.zeros((*rest.shape[:-1], p))], axis=-1))
        W, V = training.method.advance(W, memory, move)
        Y = _in_blocks(jnp.concatenate([V, W]), blocks)
    else:
        Y = _in_blocks(W + move, blocks)
    M = Y[..., :k]
    L = _transposed(jnp.linalg.qr(_transposed(Y[..., k:]), mode="r"))
    if training.is_spherical:
        M, L = _with_lengths(M, L, lengths)
    return Frame(M, L, a + da), value


def _with_lengths(M: Array, L: Array, lengths: Float[Array, " p"]) -> tuple[Array, Array]:
    """The coordinates of rows that are brought back to their lengths; the memory of a method stays."""
    p = len(lengths)
    rows = [_as_rows(X[..., -p:, :]) for X in (M, L)]
    size = jnp.sqrt(jnp.sum(rows[0] ** 2, axis=1) + jnp.sum(rows[1] ** 2, axis=1))
    scale = jnp.ones(M.shape[-2]).at[-p:].set(lengths / size)[:, None]
    scale = scale if M.ndim == 2 else scale[None]
    return scale * M, scale * L


def regime(problem: Problem, training: SGD) -> str:
    r"""The limit to which the batch size and learning rate are closest, in words.

    Per step and unit, the drift is of order :math:`\gamma_d/p`; relative to it the noise of the batch is of order
    :math:`\gamma/p`, and the square of the drift of order :math:`\gamma_d/p`, with
    :math:`\gamma_d = \gamma n_b/d`. A rate below a hundredth counts as small, above ten as large; a batch below d/10 as
    small, above 10 d as large.
    """
    ratio = training.samples_per_step(problem) / problem.d
    noise = float(training.learning_rate) / problem.p
    drift = noise * ratio
    if ratio < 0.1 and noise > 10.0:
        return "noise dominated: lengths grow, or directions are lost on the sphere"
    if max(noise, drift) < 0.01:
        return "gradient flow: small steps and little noise"
    if ratio < 0.1:
        return "online: small batches, the ODE of SaadSolla"
    if ratio <= 10.0:
        return "giant batch: drift, noise and the square of the drift all count"
    return "population gradient descent: giant steps with little noise"


class _RunState(NamedTuple):
    """The current state of a replica; arrays of several replicas have them along the first axis."""

    frame: Frame
    lengths: Any
    thresholds: Any
    crossing: Any  # the steps at which the thresholds were first reached, -1 before


@register
class BatchMap(FitsPopulation):
    r"""The deterministic map of the overlaps that SGD follows as the batch grows, :math:`n_b \to \infty`.

    .. math:: Q^+ = Q + \tfrac{\gamma_d}{p} \Psi^{(GF)} + \tfrac{\gamma_d^2}{p^2} D_a \Big[
              \tfrac{d}{n_b}\,\varphi^{HD} + v\,\Omega^{-1} v^T \Big] D_a, \qquad \gamma_d = \gamma\,\tfrac{n_b}{d}

    One step of the map is one step of training: batches :math:`n_b = \alpha d`, :math:`n_b = d^\mu` and giant steps
    alike. For :math:`n_b \ll d` it is the ODE of `SaadSolla` in steps, for :math:`n_b \gg d` gradient descent on the
    population risk. A single run scatters around it by order :math:`\sqrt{\gamma/(pd)}`, that is :math:`1/\sqrt{n_b}`
    at given :math:`\gamma_d`; the mean of many runs is shifted by order :math:`1/n_b`. See `map_step` for all
    equations, and :cite:t:`arnaboldi2024batch`, :cite:t:`dandi2023giant`.

    Parameters
    ----------
    finite
        Whether each step is the exact conditional mean at finite d and :math:`n_b` instead of its limit.
    engine
        How the engines of the Gaussian moments are chosen.
    """

    finite: bool = static(flag("finite"), default=False)
    engine: Auto = static(instance("engine", Auto, "a choice of engines such as Auto(rtol=1e-8)"), default=Auto())

    @property
    def references(self) -> tuple[str, ...]:
        return ("arnaboldi2024batch", "dandi2023giant")

    def applies(self, problem: Problem, training: SGD) -> Applies:
        options: Any = {"methods": "isotropic", "losses": ALL_LOSSES, "mixtures": True, "with_spectrum": True}
        reason = refusal(problem, training, self.engine, needed(problem), **options)
        if not reason and self.finite and not problem.is_isotropic:
            reason = (
                "the exact mean of a step (`finite`) is known for inputs with the covariance I, but `problem.inputs` "
                "has a spectrum; use finite=False."
            )
        if not reason and self.finite and not problem.is_quadratic:
            reason = (
                "the exact mean of a step (`finite`) is known for the square loss with additive noise, but "
                f"`problem.loss` is {problem.loss} and `problem.noise` is {problem.noise}; use finite=False."
            )
        if not reason and self.finite and training.is_riemannian:
            reason = (
                "the exact mean of a step (`finite`) is known for gradients that are not projected, but "
                f"`training.constraint` is {training.constraint}; use finite=False."
            )
        if reason:
            return Applies(False, Exactness.LIMIT_BATCH, reason)
        scatter = problem.scatter(training.learning_rate)
        statement = (
            f"{regime(problem, training)}; error of a single run O({problem.scatter_formula}), O(1/sqrt(n_b)) at given "
            f"gamma n_b/d, here {scatter:.2g} times a constant; of the mean the square of it"
        )
        return Applies(True, Exactness.LIMIT_BATCH, statement)

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        engine = self.engine.choose(problem, needed(problem))
        variants = engine.variants()
        starts = [(variant, plan.starts) for variant in variants]
        starts += [(variants[0], nudged(plan.starts, sign)) for sign in (1.0, -1.0)]
        watch, data = Watch.of(plan), as_data((problem, training))

        def stepper(variant: Chosen, start: Overlaps) -> Stepper:
            target = start.P if start.blocks is None else start.blocks.frame
            setting = _Setting(variant, *data, target, watch, self.finite)
            begun = _begin(data[1], watch.size(problem.k), start, Watch.thresholds(plan))
            return Stepper(begun, partial(_advance, setting), partial(_measured, target))

        saved, interrupted = run_each([partial(stepper, *start) for start in starts], plan.steps, plan)
        if interrupted:  # errors need all of them
            raise KeyboardInterrupt
        paths = []
        for (variant, _), trajectories in zip(starts, saved, strict=True):
            rows = {name: np.where(np.isfinite(x), x, np.nan) for name, x in trajectories.items() if name != "crossing"}
            Q, M, P = seen_by_fields(plan.starts, rows)
            rows["excess_risk"] = np.asarray(risks_of(variant, problem, P, Q, M, rows["a"]))
            paths.append(rows)
        result = carried(engine.combine, paths[: len(variants)], paths[len(variants) :])
        errors = dict(result.error)
        rows = dict(result.value) | {
            "risk_error": errors.pop("excess_risk"),
            "overlap_error": largest(*errors.values()),
        }
        rows, status = sealed(plan, {name: np.asarray(x) for name, x in rows.items()})
        times = watch.times(saved[0]["crossing"][:, -1], problem.k, training.clock(problem))
        Q, M, a, risk, risk_error, overlap_error = (rows[name] for name in ROW)
        others = by_block(rows) or None
        return Record(Q, M, a, risk, risk_error, overlap_error, status, *times, engine.name, others=others)


class _Setting(eqx.Module):
    """The fixed data of a step."""

    engine: Chosen
    problem: Problem
    training: SGD
    target: Any  # P, or the place of the target in the blocks of a spectrum
    watch: Watch
    finite: bool = eqx.field(static=True)

    def seen(self, run: _RunState) -> tuple[Overlaps, Float[Array, ""]]:
        """The overlaps and the excess risk."""
        overlaps = overlaps_of(run.frame, self.target)
        return overlaps, self.engine.parts(self.problem, overlaps.of_fields, ("excess_risk",))["excess_risk"]


@KeptProgram
def _begin(training: SGD, watched: int, starts: Overlaps, thresholds: Any) -> _RunState:
    blocks = starts.blocks

    def one(Q: Array, M: Array, a: Array, thresholds: Array) -> _RunState:
        if blocks is None:
            start = Overlaps(Q, M, starts.P, a)
        else:
            start = Overlaps.by_block(BlockOverlaps(Q, M, blocks.frame), a)
        frame = frame_of(start, training)
        return _RunState(frame, jnp.sqrt(jnp.diagonal(start.Q)), thresholds, jnp.full(watched, -1.0))

    rows = starts if blocks is None else blocks
    return jax.vmap(one)(jnp.asarray(rows.Q), jnp.asarray(rows.M), jnp.asarray(starts.a), jnp.asarray(thresholds))


@KeptProgram
def _measured(target: Any, run: _RunState) -> dict[str, Array]:
    overlaps = jax.vmap(lambda frame: _named(overlaps_of(frame, target)))(run.frame)
    return {**overlaps, "crossing": run.crossing}


def _named(overlaps: Overlaps) -> dict[str, Array]:
    """The overlaps as the arrays of a record, with those by block where there are blocks."""
    rows = {"Q": overlaps.Q, "M": overlaps.M, "a": overlaps.a}
    if overlaps.blocks is None:
        return rows
    return rows | {"Q_block": jnp.asarray(overlaps.blocks.Q), "M_block": jnp.asarray(overlaps.blocks.M)}


@KeptProgram
def _advance(setting: _Setting, run: _RunState, first: Any, last: Any) -> _RunState:
    """Advance all replicas from one step to another."""
    problem, training, target, watch = setting.problem, setting.training, setting.target, setting.watch

    def one(run: _RunState) -> _RunState:
        def step(number: Array, run: _RunState) -> _RunState:
            frame, risk = map_step(problem, training, setting.engine, target, run.lengths, run.frame, setting.finite)
            before = overlaps_of(run.frame, target)
            crossing = watch.crossed(before, risk, run.thresholds, run.crossing, number.astype(jnp.float64))
            return run._replace(frame=frame, crossing=crossing)

        run = jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), step, run)
        if not watch.is_on:
            return run
        # A step checks the state before it only, whose risk it knows.
        return run._replace(crossing=watch.crossed(*setting.seen(run), run.thresholds, run.crossing, last))

    return jax.lax.map(one, run, batch_size=min(TOGETHER, len(run.crossing)))
