r"""SGD as a process of its overlaps, exact in law at any finite d, at a cost that does not depend on d.

Write the student as :math:`W = \hat M E^\star + L E^\perp` with orthonormal rows :math:`E^\star` (spanning the target)
and :math:`E^\perp`. The fields of a sample need the coordinates :math:`g^\star, g` of the input in these directions,
which are standard normals. The remaining part of the input enters through its length, a :math:`\chi` variable, and for
a batch through the Gram matrix of the remaining parts, which is Wishart. See :cite:t:`arnaboldi2024batch` for the
overlaps of a batch.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.draws import chi, chi_table, normals, normals_of
from twolayer.core.types import Numbers
from twolayer.expectation import Chosen
from twolayer.problem import BlockFrame, BlockOverlaps, Overlaps, Problem, coordinates_of
from twolayer.specification.fields import as_data
from twolayer.training import SGD, LookAhead, Repeated
from twolayer.training.methods import is_linear
from twolayer.training.update import projected


class State(NamedTuple):
    """The state of one replica; the rows of a method's memory, such as a velocity, come before those of the weights."""

    M: Float[Array, "rows k"]  # coordinates within the target's span, in an orthonormal basis of it
    L: Float[Array, "rows r"]  # coordinates outside of the target's span
    a: Float[Array, " p"]


class Setting(eqx.Module):
    """The fixed data of a step: problem, training, and tables that do not change during a run."""

    problem: Problem  # without its dimension
    training: SGD
    d: Any  # the input dimension, which is a number here: `problem` has none
    root: Any  # Cholesky factor of P
    degrees: Any  # dimensions outside the span of target and student, one number for each column of Bartlett's factor
    chi: Any  # Chebyshev coefficients of the chi variable for each of these degrees
    outside: int = eqx.field(static=True)  # the number of columns of L
    is_linear: bool = eqx.field(static=True)  # whether a step is linear in weights, memory and gradient
    risk: Chosen | None = None  # the engine of the excess risk, where a threshold on it is watched
    is_single: bool = eqx.field(static=True, default=False)  # whether gradients of a sample are in single precision
    frame: BlockFrame | None = None  # the blocks of a spectrum, whose coordinates then stand side by side
    is_orthonormal: bool = eqx.field(static=True, default=False)  # whether P = 1: coordinates in its span are fields

    @property
    def inside(self) -> int:
        """The number of coordinates within the target's span, of all blocks of a spectrum together."""
        return self.root.shape[1]

    @property
    def rests(self) -> tuple[int, ...]:
        """The dimensions outside of the spans of target and student, of each block of a spectrum."""
        assert self.frame is not None
        sizes = zip(self.frame.ranks, self.frame.inside, self.frame.outside(self.rows), strict=True)
        return tuple(rank - inside - own for rank, inside, own in sizes)

    @property
    def new(self) -> tuple[int, ...]:
        """The directions that a step adds to the student's span in each block of a spectrum."""
        return tuple(_columns(self.problem, self.training, rest) for rest in self.rests)

    @property
    def is_noisy(self) -> bool:
        """Whether labels are noisy; only an exact zero, known when compiling, removes the noise from the program."""
        return self.problem.is_noisy

    @property
    def label_numbers(self) -> int:
        """How many random numbers the label of a sample takes; none where it is known."""
        number = self.problem.numbers_of_label
        return number if self.is_noisy or number > 1 else 0

    @property
    def rows(self) -> int:
        """The number of rows of the weights and of the method's memory together."""
        return rows_of(self.problem, self.training)

    @property
    def batch(self) -> int:
        """The batch size."""
        return self.training.samples_per_step(self.problem)


def rows_of(problem: Problem, training: SGD) -> int:
    """The number of rows of the weights and of the method's memory together."""
    return problem.p * (1 + training.method.memory) if training.has_momentum else problem.p


def make_setting(
    problem: Problem,
    training: SGD,
    risk: Chosen | None = None,
    is_single: bool = False,
    frame: BlockFrame | None = None,
) -> Setting:
    """The setting of a problem and training, and for inputs with a spectrum with the ``frame`` of the starts."""
    k, d = problem.k, problem.d
    if not problem.is_isotropic:
        return _block_setting(problem, training, problem.frame if frame is None else frame, risk, is_single)
    outside = min(rows_of(problem, training), d - k)
    rest = d - k - outside
    degrees = [rest - column for column in range(_columns(problem, training, rest))]
    root = np.linalg.cholesky(np.asarray(problem.P, dtype=np.float64)) if k else np.zeros((0, 0))
    linear, is_orthonormal = _is_linear(problem, training), np.array_equal(root, np.eye(k))
    numbers = (np.asarray(float(d)), root, np.array(degrees, float), chi_table(degrees))
    small = as_data(problem.without_dimension)
    return Setting(small, training, *numbers, outside, linear, risk, is_single, None, is_orthonormal)


def _is_linear(problem: Problem, training: SGD) -> bool:
    """Whether a step is linear; a projection of the gradient depends on the weights."""
    return not training.is_riemannian and (not training.has_momentum or is_linear(training.method))


def _columns(problem: Problem, training: SGD, rest: int) -> int:
    """How many directions a step adds to the student's span, of ``rest`` dimensions outside of it.

    A batch that is used once enters through p combinations of its samples; one used again, through every sample.
    """
    return min(training.samples_per_step(problem), rest, *([problem.p] if training.is_fresh else []))


def _block_setting(problem: Problem, training: SGD, frame: BlockFrame, risk: Chosen | None, is_single: bool) -> Setting:
    """The setting for inputs with a spectrum: in each block the dimensions beside target and student have a length."""
    outside = frame.outside(rows_of(problem, training))
    rests = [rank - inside - own for rank, inside, own in zip(frame.ranks, frame.inside, outside, strict=True)]
    degrees = [rest - column for rest in rests for column in range(_columns(problem, training, rest))]
    numbers = (np.asarray(float(problem.d)), np.concatenate(frame.roots, axis=1), np.array(degrees, float))
    small = as_data(problem.without_dimension)
    linear = _is_linear(problem, training)
    return Setting(small, training, *numbers, chi_table(degrees), sum(outside), linear, risk, is_single, frame)


def _block_start(setting: Setting, frame: BlockFrame, blocks: BlockOverlaps, a: Float[Array, " p"]) -> State:
    """The state with the given overlaps by block."""
    along, beside = [], []
    for block, (root, size) in enumerate(zip(frame.roots, frame.outside(setting.rows), strict=True)):
        M, factor = coordinates_of(root, blocks.Q[block], blocks.M[block])
        M, factor = with_memory(setting, M, factor)
        along.append(M)
        beside.append(_beside(factor, size))
    return State(jnp.concatenate(along, axis=1), jnp.concatenate(beside, axis=1), a)


def start(setting: Setting, overlaps: Overlaps) -> State:
    r"""The state with the given overlaps: :math:`\hat M = M P_c^{-T}`, and a factor of :math:`Q^\perp`."""
    if setting.frame is not None and overlaps.blocks is not None:
        return _block_start(setting, setting.frame, overlaps.blocks, overlaps.a)
    M = jax.scipy.linalg.solve_triangular(jnp.asarray(setting.root), overlaps.M.T, lower=True).T
    values, vectors = jnp.linalg.eigh(overlaps.perpendicular)
    factor = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None, :]
    M, factor = with_memory(setting, M, factor)
    return State(M, _beside(factor, setting.outside), overlaps.a)


def with_memory(
    setting: Setting, M: Float[Array, "p k"], factor: Float[Array, "p p"]
) -> tuple[Float[Array, "rows k"], Float[Array, "rows p"]]:
    """The coordinates with those of the method's memory before them, which is zero at the start."""
    memory = setting.rows - len(factor)
    if not memory:
        return M, factor
    return tuple(jnp.concatenate([jnp.zeros((memory, x.shape[1])), x]) for x in (M, factor))  # pyright: ignore[reportReturnType]


def _beside(factor: Float[Array, "rows p"], r: int) -> Float[Array, "rows r"]:
    """The coordinates in r directions outside of the target's span, triangular where these are as many as the rows."""
    p = factor.shape[1]
    # Eigenvalues ascend, so the last columns hold all of `factor` when there are fewer dimensions than rows.
    wide = jnp.concatenate([factor, jnp.zeros((len(factor), max(0, r - p)))], axis=1)
    kept = wide[:, max(0, p - r) :]
    return lower(kept) if len(kept) == r else kept


def overlaps_of(setting: Setting, state: State) -> Overlaps:
    """The overlaps of a state."""
    p = setting.problem.p
    M, L = state.M[-p:], state.L[-p:]
    root = jnp.asarray(setting.root)
    if setting.frame is not None:
        return Overlaps.by_block(_blocks_of(setting, setting.frame, M, L), state.a)
    return Overlaps(M @ M.T + L @ L.T, M @ root.T, root @ root.T, state.a)


def _blocks_of(setting: Setting, frame: BlockFrame, M: Float[Array, "p k"], L: Float[Array, "p r"]) -> BlockOverlaps:
    """The overlaps by block, from the coordinates of all blocks side by side."""
    along = jnp.split(M, np.cumsum(frame.inside)[:-1].tolist(), axis=1)
    beside = jnp.split(L, np.cumsum(frame.outside(setting.rows))[:-1].tolist(), axis=1)
    Q = jnp.stack([X @ X.T + Y @ Y.T for X, Y in zip(along, beside, strict=True)])
    return BlockOverlaps(Q, jnp.stack([X @ root.T for X, root in zip(along, frame.roots, strict=True)]), frame)


def lower(K: Float[Array, "n m"]) -> Float[Array, "n n"]:
    """The lower-triangular factor of K K^T, by Householder reflections of the columns; K has at least n columns."""
    n, m = K.shape
    rows, columns = np.arange(n), np.arange(m)

    def reflected(K: Array, i: Array) -> tuple[Array, None]:
        x = jnp.where(columns >= i, K[i], 0.0)
        length = jnp.sqrt(jnp.sum(x * x))
        # Adding the length with the sign of the entry avoids cancellation.
        v = jnp.where(columns == i, jnp.where(x < 0.0, x - length, x + length), x)
        size = jnp.sum(v * v)
        scale = jnp.where(size > 0.0, 2.0 / jnp.where(size > 0.0, size, 1.0), 0.0)
        return jnp.where((rows >= i)[:, None], K - (scale * (K @ v))[:, None] * v[None, :], K), None

    return jax.lax.scan(reflected, K, jnp.arange(n))[0][:, :n]


def _triangular(setting: Setting, L: Float[Array, "rows n"]) -> Float[Array, "rows r"]:
    """The coordinates beside the target in as many directions as before a step, which added some at the end."""
    own = setting.outside
    if setting.frame is None:
        return lower(L)
    outside, new = setting.frame.outside(setting.rows), setting.new
    old = jnp.split(L[:, :own], np.cumsum(outside)[:-1].tolist(), axis=1)
    added = jnp.split(L[:, own:], np.cumsum(new)[:-1].tolist(), axis=1)
    parts = list(old)
    for number in sorted({*new} - {0}):  # blocks with as many new directions are of one shape
        blocks = [block for block, columns in enumerate(new) if columns == number]
        wide = jnp.stack([jnp.concatenate([old[block], added[block]], axis=1) for block in blocks])
        for block, factor in zip(blocks, jax.vmap(lower)(wide), strict=True):
            parts[block] = factor
    return jnp.concatenate(parts, axis=1)


def absorbed(
    L: Float[Array, "n n"], c: Float[Array, " n"], g: Float[Array, " n"], rest: Float[Array, ""]
) -> Float[Array, "n n"]:
    r"""The lower-triangular factor after one sample: that of :math:`[L + c\,g^T,\ \chi\,c]`, in :math:`O(n^2)`.

    With :math:`w = (g, \chi)` the columns are split along w and across it: across, L is multiplied by the triangular
    factor of :math:`1 - \hat g \hat g^T`, known in closed form,

    .. math:: \sqrt{t_{j+1} / t_j}\,L_{ij} - \frac{g_j}{\sqrt{t_j t_{j+1}}} \sum_{l > j} L_{il} g_l, \qquad
              t_j = \sum_{l \ge j} w_l^2

    along, one column :math:`L \hat g + |w| c` is added by rotations. Squares are only added, never subtracted.
    """
    n = L.shape[0]
    if n == 1:
        first, second = L[0, 0] + c[0] * g[0], rest * c[0]
        return jnp.sqrt(first * first + second * second)[None, None]
    place = np.arange(n)
    tails = jax.lax.cumsum(jnp.concatenate([g * g, (rest * rest)[None]]), reverse=True)
    inverse = jax.lax.rsqrt(tails)

    def across(beyond: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
        """Column j of the part across w, from the sum over the columns after it."""
        j, column, g_j, after, both = at
        column = jnp.where(place >= j, column, 0.0)
        return beyond + column * g_j, both * (after * column - g_j * beyond)

    def rotated_in(extra: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        """Column j rotated against the extra one so that the latter vanishes in row j."""
        j, column = at
        square = column[j] * column[j] + extra[j] * extra[j]
        is_zero = square <= 0.0
        share = jax.lax.rsqrt(jnp.where(is_zero, 1.0, square))
        cosine, sine = jnp.where(is_zero, 1.0, column[j] * share), extra[j] * share
        below = jnp.where(place > j, cosine * column + sine * extra, 0.0)
        rest = jnp.where(place > j, cosine * extra - sine * column, 0.0)
        return rest, jnp.where(place == j, square * share, below)

    # The loops are not unrolled: the time to compile them would grow with the square of n.
    rows = (jnp.arange(n), L.T, g, tails[1:], inverse[:-1] * inverse[1:])
    total, columns = jax.lax.scan(across, jnp.zeros(n), rows, reverse=True)
    along = total * inverse[0] + tails[0] * inverse[0] * c
    return jax.lax.scan(rotated_in, along, (jnp.arange(n), columns))[1].T


def gradients(problem: Problem, lam: Array, lam_star: Array, a: Array, xi: Array | float) -> tuple[Array, Array]:
    r"""The derivatives of the loss of one sample by its fields and by the output weights, in the precision of these."""
    y = problem.label(lam_star[None, :], xi)[0].astype(lam.dtype)

    def loss(lam: Array, a: Array) -> Array:
        return problem.loss(y, problem.student(lam, a))

    return jax.grad(loss, argnums=(0, 1))(lam, a)


def forces(
    setting: Setting,
    state: State,
    g_star: Array,
    g: Array,
    xi: Array | float,
    at: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    r"""The change that one sample makes to each neuron and output weight: minus the rates times the derivatives.

    .. math:: A_j = -\frac{\gamma}{d}\,\partial_{\lambda_j} \ell, \qquad
              \delta a_j = -\kappa \frac{\gamma}{d}\,\partial_{a_j} \ell

    They are taken at the weights of the method, or ``at`` others.
    """
    problem, training = setting.problem, setting.training
    M, L = queried(setting, state) if at is None else at
    precision = jnp.float32 if setting.is_single else jnp.float64
    star = g_star if setting.is_orthonormal else jnp.asarray(setting.root) @ g_star
    lam, lam_star = (M @ g_star + L @ g).astype(precision), star.astype(precision)
    derivatives = gradients(problem, lam, lam_star, state.a.astype(precision), xi)
    by_field, by_weight = (x.astype(jnp.float64) for x in derivatives)
    rate = training.learning_rate / setting.d
    pull = -rate * by_field if training.trains_first else jnp.zeros_like(by_field)
    return pull, -training.layer_ratio * rate * by_weight


def queried(setting: Setting, state: State) -> tuple[Float[Array, "p k"], Float[Array, "p r"]]:
    """The coordinates of the weights at which the method takes the gradient, within and outside the target's span."""
    p, k = setting.problem.p, setting.inside
    if not setting.training.has_momentum:
        return state.M, state.L
    Y = jnp.concatenate([state.M, state.L], axis=1)
    W = setting.training.method.query(Y[-p:], Y[:-p])
    return W[:, :k], W[:, k:]


def kept(setting: Setting) -> float | Array:
    """The factor of the weights after weight decay."""
    training = setting.training
    return 1.0 - training.weight_decay * training.learning_rate / setting.d * setting.batch


def advanced(setting: Setting, Y: Float[Array, "rows n"], move: Float[Array, "p n"] | float) -> Float[Array, "rows n"]:
    """The rows of memory and weights after a step with the given move of plain SGD."""
    p = setting.problem.p
    if not setting.training.trains_first:
        return Y
    if not setting.training.has_momentum:
        return kept(setting) * Y + move
    W, V = setting.training.method.advance(kept(setting) * Y[-p:], Y[:-p], jnp.broadcast_to(move, Y[-p:].shape))
    return jnp.concatenate([V, W])


def moved(setting: Setting, state: State) -> State:
    """The state after weight decay and a linear method, before the batch is added."""
    return State(advanced(setting, state.M, 0.0), advanced(setting, state.L, 0.0), state.a)


def moved_by(setting: Setting, move: Float[Array, "p n"]) -> Float[Array, "rows n"]:
    """The rows that a linear method adds for a move of plain SGD."""
    if not setting.training.has_momentum:
        return move
    return advanced(setting, jnp.zeros((setting.rows, move.shape[1])), move)


def constrained(setting: Setting, state: State, lengths: Float[Array, " p"]) -> State:
    """The state with rows rescaled to their lengths, where training is on the sphere."""
    if not setting.training.is_spherical:
        return state
    p = setting.problem.p
    M, L = state.M[-p:], state.L[-p:]
    scale = (lengths * jax.lax.rsqrt(jnp.sum(M * M, axis=1) + jnp.sum(L * L, axis=1)))[:, None]
    return State(jnp.concatenate([state.M[:-p], scale * M]), jnp.concatenate([state.L[:-p], scale * L]), state.a)


class Draw(NamedTuple):
    """The random numbers of one sample."""

    g_star: Float[Array, " k"]  # coordinates of the input within the target's span
    g: Float[Array, " r"]  # coordinates outside of it, within the student's span
    xi: Array  # of the label: its noise, and for a mixture of targets a second number
    rest: Float[Array, "..."]  # length of the part of the input outside of both spans, in each block that has one


def draw(setting: Setting, key: tuple[Any, Any], index: Numbers, step: tuple[Any, Any], with_rest: bool = True) -> Draw:
    """The random numbers of one sample, which depend on the key, the index of the sample and the step alone."""
    return _named(setting, normals(key, _numbers(setting, with_rest), index, step), with_rest)


def draw_batch(setting: Setting, key: tuple[Any, Any], index: Array, step: tuple[Any, Any]) -> Draw:
    """The random numbers of many samples along the last axis, without lengths; each has those of `draw`."""
    drawn = normals_of(key, _numbers(setting, False), index, step)
    return jax.vmap(lambda one: _named(setting, one, False), in_axes=-1, out_axes=-1)(drawn)


def _lengths(setting: Setting, with_rest: bool) -> list[int]:
    """The blocks in which the part of a sample outside of both spans has a length; block 0 without a spectrum."""
    if setting.frame is None:
        return [0] if with_rest and setting.chi.shape[0] > 0 else []
    return [block for block, rest in enumerate(setting.rests) if rest] if with_rest else []


def _numbers(setting: Setting, with_rest: bool) -> int:
    """How many random numbers a sample takes."""
    return setting.inside + setting.outside + len(_lengths(setting, with_rest)) + setting.label_numbers


def _named(setting: Setting, drawn: Float[Array, " numbers"], with_rest: bool) -> Draw:
    """What the random numbers of one sample stand for; in each block of a spectrum inputs have its scale."""
    k, r, places, frame = setting.inside, setting.outside, _lengths(setting, with_rest), setting.frame
    numbers = drawn.astype(jnp.float64)
    xi = numbers[-2:] if setting.label_numbers > 1 else numbers[-1] if setting.is_noisy else jnp.zeros(())
    if frame is None:
        rest = chi(drawn[k + r], setting.degrees[0], setting.chi[0]) if places else jnp.zeros(())
        return Draw(numbers[:k], numbers[k : k + r], xi, rest)
    scale, outside = jnp.sqrt(jnp.asarray(frame.eigenvalues)), frame.outside(setting.rows)
    place = np.arange(len(frame.ranks))
    g_star = numbers[:k] * scale[np.repeat(place, frame.inside)]
    g = numbers[k : k + r] * scale[np.repeat(place, outside)]
    lengths = [chi(drawn[k + r + n], setting.degrees[n], setting.chi[n]) * scale[l] for n, l in enumerate(places)]
    return Draw(g_star, g, xi, jnp.stack(lengths) if lengths else jnp.zeros(0))


def _block_absorbed(frame: BlockFrame, L: Array, c: Float[Array, " rows"], drawn: Draw) -> Array:
    """The coordinates beside the target after one sample, block by block; see `absorbed`."""
    rows, outside = len(c), frame.outside(len(c))
    ends = np.cumsum(outside)[:-1].tolist()
    old, g = jnp.split(L, ends, axis=1), jnp.split(drawn.g, ends)
    new = [own + c[:, None] * part[None, :] for own, part in zip(old, g, strict=True)]
    sizes = zip(frame.ranks, frame.inside, strict=True)
    wide = [block for block, (rank, inside) in enumerate(sizes) if rank > inside + rows]
    if wide:  # those with a length have as many columns as rows, which are triangular
        parts = (jnp.stack([x[block] for block in wide]) for x in (old, g))
        factors = jax.vmap(absorbed, (0, None, 0, 0))(next(parts), c, next(parts), drawn.rest)
        for place, block in enumerate(wide):  # a block without variance stays, where 0 / 0 would come out
            new[block] = jnp.where(jnp.asarray(frame.eigenvalues)[block] > 0.0, factors[place], old[block])
    return jnp.concatenate(new, axis=1)


def bartlett_factor(setting: Setting, key: tuple[Any, Any], step: tuple[Any, Any]) -> Float[Array, "rows columns"]:
    """The triangular factor of the Gram matrix of the samples' parts outside of both spans (Bartlett).

    With a spectrum, the factors of all blocks side by side, with the scales of their eigenvalues.
    """
    columns = (setting.chi.shape[0],) if setting.frame is None else setting.new
    rows = min(setting.problem.p, setting.batch) if setting.training.is_fresh else setting.batch
    sizes = [number + sum(rows - 1 - column for column in range(number)) for number in columns]
    z = normals(key, sum(sizes), np.uint32(0xFFFFFFFF), step)
    if setting.frame is None:
        return _bartlett(z, setting.degrees, setting.chi, rows)
    ends, first, factors = np.cumsum([0, *sizes]), np.cumsum([0, *columns]), []
    for block, scale in enumerate(jnp.sqrt(jnp.asarray(setting.frame.eigenvalues))):
        own = slice(first[block], first[block + 1])
        part = z[ends[block] : ends[block + 1]]
        factors.append(scale * _bartlett(part, setting.degrees[own], setting.chi[own], rows))
    return jnp.concatenate(factors, axis=1)


def _bartlett(z: Float[Array, " numbers"], degrees: Any, table: Any, rows: int) -> Float[Array, "rows columns"]:
    """The factor from normal numbers: chi variables of these degrees on the diagonal, and normals below it."""
    columns = len(degrees)
    below = [(i, j) for j in range(columns) for i in range(j + 1, rows)]
    factor = jnp.zeros((rows, columns))
    if columns:
        diagonal = np.arange(columns)
        # Without a barrier XLA of jax 0.12 joins the random numbers with what follows, and compiles for minutes.
        lengths = jax.lax.optimization_barrier(chi(z[:columns], jnp.asarray(degrees), table))
        factor = factor.at[diagonal, diagonal].set(lengths)
    if below:
        factor = factor.at[*np.array(below).T].set(z[columns:].astype(jnp.float64))
    return factor


def single_step(setting: Setting, state: State, lengths: Float[Array, " p"], drawn: Draw) -> State:
    """One step on one sample."""
    if not setting.training.is_fresh:
        rest = _in_new_directions(setting, drawn)
        g = drawn.g if rest is None else jnp.concatenate([drawn.g, rest])
        return several_steps(setting, state, lengths, drawn.g_star[None, :], g[None, :], drawn.xi[None])
    pull, da = forces(setting, state, drawn.g_star, drawn.g, drawn.xi)
    if not setting.is_linear:
        along = pull[:, None] * drawn.g_star[None, :], pull[:, None] * drawn.g[None, :]
        rest = _in_new_directions(setting, drawn)
        new = None if rest is None else pull[:, None] * rest[None, :]
        return added(setting, state, lengths, *along, new, da)
    c = moved_by(setting, pull[:, None])[:, 0]
    state = moved(setting, state)
    M, a = state.M + c[:, None] * drawn.g_star[None, :], state.a + da
    if setting.frame is not None:
        L = _block_absorbed(setting.frame, state.L, c, drawn)
    elif setting.chi.shape[0]:
        L = absorbed(state.L, c, drawn.g, drawn.rest)
    else:  # the coordinates span all d dimensions
        L = state.L + c[:, None] * drawn.g[None, :]
    return constrained(setting, State(M, L, a), lengths)


def _in_new_directions(setting: Setting, drawn: Draw) -> Float[Array, " new"] | None:
    """The coordinates of one sample in the directions that it adds, if any: one in each block that has room."""
    if not setting.chi.shape[0]:
        return None
    return jnp.stack([drawn.rest]) if setting.frame is None else drawn.rest


def added(
    setting: Setting,
    state: State,
    lengths: Float[Array, " p"],
    star: Float[Array, "p k"],
    along: Float[Array, "p r"],
    new: Float[Array, "p c"] | None,
    da: Float[Array, " p"],
) -> State:
    """The state after a step whose move has the given coordinates: in both spans, and in new directions, if any."""
    k = star.shape[1]
    none = jnp.zeros((setting.problem.p, 0)) if new is None else new
    Y = jnp.concatenate([state.M, state.L, jnp.zeros((setting.rows, none.shape[1]))], axis=1)
    move = jnp.concatenate([star, along, none], axis=1)
    if setting.training.is_riemannian:
        move = projected(Y[-setting.problem.p :], move)
    Y = advanced(setting, Y, move)
    L = _triangular(setting, Y[:, k:]) if none.shape[1] else Y[:, k:]
    return constrained(setting, State(Y[:, :k], L, state.a + da), lengths)


def several_steps(
    setting: Setting,
    state: State,
    lengths: Float[Array, " p"],
    G_star: Float[Array, "n k"],
    G: Float[Array, "n m"],
    xi: Float[Array, "n ..."],
) -> State:
    r"""All updates on one batch, each sample being used more than once.

    Within the span of target, student and batch, of dimension :math:`k + r + \min(n_b, d - k - r)`, this is SGD on the
    weights: ``G`` holds the coordinates of the inputs along the student's directions, then along those that the batch
    itself adds (Bartlett's factor). Afterwards the student is triangular again.
    """
    reuse, training = setting.training.reuse, setting.training
    wider = G.shape[1] - setting.outside
    state = State(state.M, jnp.concatenate([state.L, jnp.zeros((len(state.L), wider))], axis=1), state.a)

    def pulls(state: State, at: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        if len(G) == 1:  # no batch axis, so that the step can be written out in scalars
            return tuple(x[None, :] for x in forces(setting, state, G_star[0], G[0], xi[0], at))  # pyright: ignore[reportReturnType]
        return jax.vmap(lambda g_star, g, x: forces(setting, state, g_star, g, x, at))(G_star, G, xi)

    def update(state: State, pull: Array, da: Array) -> State:
        return added(setting, state, lengths, pull.T @ G_star, pull.T @ G, None, jnp.sum(da, axis=0))

    if isinstance(reuse, Repeated):
        for _ in range(reuse.times):
            state = update(state, *pulls(state))
    elif isinstance(reuse, LookAhead):
        pull = reuse.rate / training.learning_rate * pulls(state)[0]
        M, L = queried(setting, state)
        state = update(state, *pulls(state, (M + pull.T @ G_star, L + pull.T @ G)))
    return State(state.M, _triangular(setting, state.L) if wider else state.L, state.a)


class Sums(NamedTuple):
    """Sums over the samples of a batch that a step needs."""

    gram: Float[Array, "p p"]
    along: Float[Array, "p r"]
    star: Float[Array, "p k"]
    da: Float[Array, " p"]


def batch_step(
    setting: Setting, state: State, lengths: Float[Array, " p"], sums: Sums, factor: Float[Array, "m c"], R: Array
) -> State:
    r"""One step from the sums over its batch: :math:`K = [L + A^T G,\ R^T B]` and its triangular factor."""
    new = R.T @ factor if factor.shape[1] else None
    return added(setting, state, lengths, sums.star, sums.along, new, sums.da)
