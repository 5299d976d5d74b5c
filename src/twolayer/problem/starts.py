"""Starts: the initial weights, as overlaps, which `embed` turns into weights.

All random starts are drawn through their overlaps, exactly and at a cost that does not depend on d.
"""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.core.errors import InvalidInput
from twolayer.core.linalg import bartlett
from twolayer.core.precision import double
from twolayer.core.types import Number, Numbers, OptionalValues, Values
from twolayer.problem.inputs import as_preference
from twolayer.problem.overlaps import check_overlaps
from twolayer.problem.spectrum_blocks import BlockFrame
from twolayer.specification.fields import (
    MAX_LENGTH,
    ONLY_WHEN_GIVEN,
    accepts,
    array,
    choice,
    dimensions,
    is_traced,
    leaf,
    nested,
    number,
    static,
)
from twolayer.specification.registry import register

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class StudentOverlaps(NamedTuple):
    """The student-student and student-target overlaps, which a start determines."""

    Q: Float[Array, "p p"]
    M: Float[Array, "p k"]


class AbstractStart(eqx.Module):
    """Base class: the distribution of the overlaps at time zero."""

    is_random: AbstractVar[bool]

    @abc.abstractmethod
    def draw(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
        """Draw the overlaps of a student of width p in d dimensions; d may be traced where it is at least p + k."""

    @abc.abstractmethod
    def check(self, p: int, P: np.ndarray | Array, d: int) -> None:
        """Raise `InvalidInput` if the start does not fit the sizes of the problem."""

    def rows(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], frame: BlockFrame) -> Float[Array, "p n"]:
        """Draw the weights for inputs with a spectrum, as coordinates in the blocks."""
        raise InvalidInput(f"The start `{type(self).__name__}` is not known for inputs with a spectrum.")

    def check_blocks(self, p: int, P: np.ndarray, frame: BlockFrame) -> None:
        """Raise `InvalidInput` if the start does not fit the blocks of the spectrum."""
        self.check(p, P, frame.d)

    def second_layer(self, a: Float[Array, " p"]) -> Float[Array, " p"]:
        """The output weights, given those of the student: the same unless the start pairs units."""
        return a


def _random_rows(key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
    """Draw the overlaps of p standard Gaussian rows in d dimensions with each other and with the target directions."""
    k = P.shape[0]
    across, along = bartlett(key, p, d - k, beside=k)  # along: components in an orthonormal basis of the target
    M = along @ jnp.linalg.cholesky(P).T if k else along
    return StudentOverlaps(along @ along.T + across @ across.T, M)


def _beside_target(
    key: Key[Array, ""], p: int, P: Float[Array, "k k"], frame: BlockFrame
) -> tuple[Float[Array, "p n"], Float[Array, "k n"]]:
    """Draw p standard normal rows beside the span of the target, and its rows, as coordinates in the blocks."""
    rows, target = frame.normal_rows(key, p), frame.target_rows(p)
    return (rows - rows @ target.T @ jnp.linalg.solve(P, target) if len(P) else rows), target


def _unit(rows: Float[Array, "p n"]) -> Float[Array, "p n"]:
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def _random_directions(key: Key[Array, ""], p: int, dimension: Numbers) -> Float[Array, "p n"]:
    """Draw p independent directions as unit rows that have their products."""
    rows, _ = bartlett(key, p, dimension)
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


@register
class RandomStart(AbstractStart):
    r"""Independent random rows, which do not depend on the target.

    ``law="sphere"``: :math:`w_j` uniform on the sphere of radius ``norm``; ``law="gaussian"``:
    :math:`w_j \sim N(0, \mathrm{norm}^2 I_d / d)`. Then :math:`M` is of order :math:`1/\sqrt d`.

    For inputs with a spectrum, ``blocks`` may prefer some directions: ``"leading"`` or ``"tail"``, those of the block
    with the largest or smallest eigenvalue, or the share of the squared length :math:`\mathrm{norm}^2` in each block.
    """

    law: str = static(choice("law", ("sphere", "gaussian")), default="sphere")
    norm: Number = leaf(number("norm", above=0.0, high=MAX_LENGTH), default=1.0)
    blocks: OptionalValues = leaf(as_preference("blocks", 1), default=None, metadata=ONLY_WHEN_GIVEN)

    @property
    def is_random(self) -> bool:
        return True

    def draw(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
        Q, M = _random_rows(key, p, P, d)
        squares = jnp.diagonal(Q) if self.law == "sphere" else jnp.full((p,), d, jnp.float64)
        rows = self.norm / jnp.sqrt(squares)
        return StudentOverlaps(Q * rows[:, None] * rows[None, :], M * rows[:, None])

    def rows(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], frame: BlockFrame) -> Float[Array, "p n"]:
        rows = frame.normal_rows(key, p)
        if self.blocks is None:
            return self.norm * (_unit(rows) if self.law == "sphere" else rows / np.sqrt(frame.d))
        shares, begins = frame.shared(self.blocks, "blocks"), frame.columns(p)
        parts = []
        for block, (share, rank) in enumerate(zip(shares, frame.ranks, strict=True)):
            part = rows[:, begins[2 * block] : begins[2 * block + 2]]
            parts.append(self.norm * jnp.sqrt(share) * (_unit(part) if self.law == "sphere" else part / np.sqrt(rank)))
        return jnp.concatenate(parts, axis=1)

    def check(self, p: int, P: np.ndarray | Array, d: int) -> None:
        if self.blocks is not None:
            raise InvalidInput(
                "Argument `blocks` of the start needs inputs with a spectrum: Gaussian(d, spectrum=...)."
            )

    def check_blocks(self, p: int, P: np.ndarray, frame: BlockFrame) -> None:
        if self.blocks is not None:
            frame.shared(self.blocks, "blocks")


@accepts(Number, np.ndarray, Sequence[Sequence[float]])
def _as_overlap(value: Any) -> Any:
    if dimensions(value) == 0:
        return number("m", -(MAX_LENGTH**2), MAX_LENGTH**2)(value)
    return array("m", 2, largest=MAX_LENGTH**2)(value)


@register
class WarmStart(AbstractStart):
    r"""Rows on the sphere of radius ``norm`` with given overlaps with the target, random otherwise.

    ``m`` is an array of shape (p, k), the matrix M, or one number: neuron j then has overlap m with direction j mod k
    and overlap 0 with the other directions.
    """

    m: Values = leaf(_as_overlap)
    norm: Number = leaf(number("norm", above=0.0, high=MAX_LENGTH), default=1.0)

    @property
    def is_random(self) -> bool:
        return True

    def _matrix(self, p: int, k: int) -> Any:
        if np.ndim(self.m) == 2:
            return self.m
        pattern = np.arange(p)[:, None] % max(k, 1) == np.arange(k)[None, :]
        return self.m * pattern.astype(np.float64)

    def draw(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
        M = jnp.asarray(self._matrix(p, P.shape[0]), jnp.float64)
        along = M @ jnp.linalg.solve(P, M.T) if P.shape[0] else jnp.zeros((p, p))
        lengths = jnp.sqrt(jnp.maximum(self.norm**2 - jnp.diagonal(along), 0.0))
        perpendicular = lengths[:, None] * _random_directions(key, p, d - P.shape[0])
        return StudentOverlaps(along + perpendicular @ perpendicular.T, M)

    def rows(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], frame: BlockFrame) -> Float[Array, "p n"]:
        beside, target = _beside_target(key, p, P, frame)
        M = jnp.asarray(self._matrix(p, len(P)), jnp.float64)
        along = M @ jnp.linalg.solve(P, target) if len(P) else jnp.zeros_like(beside)
        lengths = jnp.sqrt(jnp.maximum(self.norm**2 - jnp.sum(along * along, axis=1), 0.0))
        return along + lengths[:, None] * _unit(beside)

    def check(self, p: int, P: np.ndarray | Array, d: int) -> None:
        if is_traced(self.m) or is_traced(self.norm):
            return
        k = P.shape[0]
        if np.ndim(self.m) == 2 and self.m.shape != (p, k):
            raise InvalidInput(f"Argument `m` must have shape (p, k) = ({p}, {k}), but has shape {self.m.shape}.")
        M = np.asarray(self._matrix(p, k))
        longest = float(np.sqrt(np.max(np.diagonal(M @ np.linalg.solve(P, M.T))))) if k else 0.0
        if longest > float(self.norm) * (1 + 1e-12):
            raise InvalidInput(
                f"Argument `m` must not exceed the length `norm` = {float(self.norm):g} of a row, "
                f"but asks for {longest:.6g}."
            )


@register
class ScatteredStart(AbstractStart):
    r"""Rows whose overlaps with the target have a given standard deviation at any d, as for a wide student.

    :math:`M = \mathrm{deviation}\; g\, P^{1/2}` with independent standard normals g, so that the overlap with a
    direction of unit length has this deviation. Outside of the span of the target the rows have the length ``norm``;
    their ``directions`` there are "orthogonal", :math:`Q = M P^{-1} M^T + \mathrm{norm}^2 I`, which needs
    :math:`d \ge p + k`, or "random", independent and uniform in the other d - k dimensions.
    """

    deviation: Number = leaf(number("deviation", above=0.0, high=MAX_LENGTH), default=0.5)
    norm: Number = leaf(number("norm", above=0.0, high=MAX_LENGTH), default=1.0)
    directions: str = static(choice("directions", ("orthogonal", "random")), default="orthogonal")

    @property
    def is_random(self) -> bool:
        return True

    def draw(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
        along = self.deviation * jax.random.normal(key, (p, P.shape[0]), dtype=jnp.float64)
        M = along @ jnp.linalg.cholesky(P).T if P.shape[0] else along
        if self.directions == "orthogonal":
            cosines = jnp.eye(p)
        else:
            rows = _random_directions(jax.random.fold_in(key, 1), p, d - P.shape[0])
            cosines = rows @ rows.T
        return StudentOverlaps(along @ along.T + self.norm**2 * cosines, M)

    def rows(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], frame: BlockFrame) -> Float[Array, "p n"]:
        beside, target = _beside_target(jax.random.fold_in(key, 1), p, P, frame)
        normals = self.deviation * jax.random.normal(key, (p, len(P)), dtype=jnp.float64)
        along = normals @ jnp.linalg.solve(jnp.linalg.cholesky(P), target) if len(P) else jnp.zeros_like(beside)
        if self.directions == "random":
            return along + self.norm * _unit(beside)
        gram = jnp.linalg.cholesky(beside @ beside.T)
        return along + self.norm * jax.scipy.linalg.solve_triangular(gram, beside, lower=True)

    def check(self, p: int, P: np.ndarray | Array, d: int) -> None:
        if self.directions == "orthogonal" and p + P.shape[0] > d:
            raise InvalidInput(
                f"The start `ScatteredStart` needs p + k = {p + P.shape[0]} dimensions, but the inputs have d = {d}: "
                'raise `d`, or set `directions="random"`.'
            )


@register
class AntisymmetricStart(AbstractStart):
    r"""Pairs of units with one weight vector and opposite output weights: the network begins at exactly zero.

    Unit j and unit j + p/2 have the same row, :math:`w_j \sim N(0, \mathrm{deviation}^2 I_d)`, and the output weights
    :math:`a_j` and :math:`-a_j`, where the first half of :math:`a` is the student's. The width p must be even. It is
    the start of lazy training (`twolayer.ntk`), where outputs of order one at the start would hide the prediction.
    """

    deviation: Number = leaf(number("deviation", above=0.0, high=MAX_LENGTH), default=1.0)

    @property
    def is_random(self) -> bool:
        return True

    def draw(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
        Q, M = _random_rows(key, p // 2, P, d)
        return StudentOverlaps(jnp.tile(self.deviation**2 * Q, (2, 2)), jnp.tile(self.deviation * M, (2, 1)))

    def rows(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], frame: BlockFrame) -> Float[Array, "p n"]:
        half = self.deviation * frame.normal_rows(key, p)[: p // 2]
        return jnp.tile(half, (2, 1))

    def check(self, p: int, P: np.ndarray | Array, d: int) -> None:
        if p % 2:
            raise InvalidInput(f"Argument `p` must be even for the start `AntisymmetricStart`, but is {p}.")

    def second_layer(self, a: Float[Array, " p"]) -> Float[Array, " p"]:
        half = a[: a.shape[0] // 2]
        return jnp.concatenate([half, -half])


def _by_block(name: str, optional: bool = False) -> Any:
    """A converter to an overlap matrix, or to one for each block."""
    shapes = np.ndarray, jax.Array, nested(2), nested(3)

    @accepts(*shapes, *([None] if optional else []))
    def convert(value: Any) -> Any:
        ndim = 3 if dimensions(value) == 3 else 2
        return array(name, ndim, optional=optional, largest=MAX_LENGTH**2)(value)

    return convert


@register
class GivenOverlaps(AbstractStart):
    r"""Given overlaps :math:`Q = W W^T` and :math:`M = W W^{\star T}`; ``P`` is that of the target by default.

    For inputs with a spectrum they may be given by block, as arrays (blocks, p, p), (blocks, p, k) and
    (blocks, k, k); then ``P`` says where the target lies. Matrices are spread as weights are that lie in random
    directions beside the target, in the limit of high dimension:
    :math:`M_l = M P^{-1} P_l` and :math:`Q_l = M P^{-1} P_l P^{-1} M^T + f_l\,(Q - M P^{-1} M^T)`.
    """

    Q: Values = leaf(_by_block("Q"))
    M: Values = leaf(_by_block("M"))
    P: OptionalValues = leaf(_by_block("P", optional=True), default=None)

    @property
    def is_random(self) -> bool:
        return False

    @property
    def is_by_block(self) -> bool:
        """Whether the overlaps are given for each block of a spectrum."""
        return any(np.ndim(value) == 3 for value in (self.Q, self.M, self.P))

    def draw(self, key: Key[Array, ""], p: int, P: Float[Array, "k k"], d: Numbers) -> StudentOverlaps:
        Q, M = jnp.asarray(self.Q, jnp.float64), jnp.asarray(self.M, jnp.float64)
        return StudentOverlaps(*(jnp.sum(x, axis=0) if x.ndim == 3 else x for x in (Q, M)))

    def in_blocks(
        self, P: Float[Array, "k k"], frame: BlockFrame
    ) -> tuple[Float[Array, "blocks p p"], Float[Array, "blocks p k"]]:
        """The overlaps by block."""
        Q, M = jnp.asarray(self.Q, jnp.float64), jnp.asarray(self.M, jnp.float64)
        along = (M if M.ndim == 2 else jnp.sum(M, axis=0)) @ jnp.linalg.inv(P)
        M_l = M if M.ndim == 3 else jnp.einsum("ir,lrs->lis", along, frame.P)
        if Q.ndim == 3:
            return Q, M_l
        beside = Q - along @ P @ along.T
        return jnp.einsum("ir,lrs,js->lij", along, frame.P, along) + frame.shares[:, None, None] * beside[None], M_l

    def check(self, p: int, P: np.ndarray | Array, d: int) -> None:
        if any(is_traced(value) for value in (self.Q, self.M, self.P)):
            return
        if any(np.ndim(value) == 3 and len(value) > 1 for value in (self.Q, self.M, self.P)):
            raise InvalidInput("Overlaps by block need inputs with a spectrum: Gaussian(d, spectrum=...).")
        k = P.shape[0]
        Q, M = (x[0] if x.ndim == 3 else np.asarray(x) for x in (self.Q, self.M))
        if M.shape != (p, k):
            raise InvalidInput(f"Argument `M` must have shape (p, k) = ({p}, {k}), but has shape {M.shape}.")
        check_overlaps(Q, M, P)
        across = Q - (M @ np.linalg.solve(P, M.T) if k else 0.0)
        _check_rank(np.asarray(across), k, d, "the inputs have d =")

    def check_blocks(self, p: int, P: np.ndarray, frame: BlockFrame) -> None:
        if any(is_traced(value) for value in (self.Q, self.M, self.P)):
            return
        k, blocks = len(P), len(frame.ranks)
        for name, value, shape in (("Q", self.Q, (p, p)), ("M", self.M, (p, k))):
            if value.shape not in (shape, (blocks, *shape)):
                raise InvalidInput(
                    f"Argument `{name}` must have shape {shape} or {(blocks, *shape)} for this spectrum, but has shape "
                    f"{value.shape}."
                )
        if self.Q.ndim != self.M.ndim:
            raise InvalidInput("Arguments `Q` and `M` must both be given by block, or neither of them, but one is.")
        with double():
            Q, M, parts = (np.asarray(x) for x in (*self.in_blocks(jnp.asarray(P), frame), frame.P))
        for block, (root, rank, part) in enumerate(zip(frame.roots, frame.ranks, parts, strict=True)):
            try:
                check_overlaps(Q[block], M[block], part)
            except InvalidInput as error:
                raise InvalidInput(f"Block {block} of the spectrum: {error}") from None
            hat = M[block] @ np.linalg.pinv(root.T)
            _check_rank(Q[block] - hat @ hat.T, root.shape[1], rank, f"block {block} of the spectrum has")


def _check_rank(across: np.ndarray, inside: int, d: int, has: str) -> None:
    """Refuse overlaps of rows beside the target that need more dimensions than there are."""
    values = np.linalg.eigvalsh(across)
    rank = int(np.sum(values > 1e-9 * max(1.0, float(values.max()))))
    if rank > d - inside:
        raise InvalidInput(f"The overlaps `Q` and `M` need {rank + inside} dimensions, but {has} {d}: raise `d`.")
