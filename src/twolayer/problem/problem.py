"""The learning problem: target, student, inputs, start and noise."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.core.errors import InvalidInput, NotApplicable
from twolayer.core.memory_limit import check_size
from twolayer.core.plain_methods import plain, plain_attributes
from twolayer.core.precision import double
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.types import Converted, Number, Numbers
from twolayer.problem.inputs import AbstractInputs, Gaussian, Samples
from twolayer.problem.losses import AbstractLoss, Correlation, Square, as_loss
from twolayer.problem.noise import Flips, as_noise, level_of, noisy
from twolayer.problem.overlaps import Overlaps
from twolayer.problem.spectrum import Eigenvalues
from twolayer.problem.spectrum_blocks import BlockFrame, BlockOverlaps, check_seen, target_frame
from twolayer.problem.starts import AbstractStart, GivenOverlaps, RandomStart
from twolayer.problem.student import Student
from twolayer.problem.targets import AbstractTarget, Labels, Mixture, check_covariance, has_signs
from twolayer.specification.fields import accepts, instance, is_traced, leaf, replaced
from twolayer.specification.registry import register

# Overlap matrices in memory at once while a start is drawn and checked.
MATRICES = 4


@accepts(AbstractTarget, str)
def _as_target(value: Any) -> Any:
    if callable(value) and not isinstance(value, AbstractTarget):
        raise InvalidInput(
            "Argument `target` must be a target, but is a function: write MultiIndex(function, k=...) with its number "
            "of fields."
        )
    return instance("target", AbstractTarget, "a target such as Committee(k=2, activation='erf')")(value)


@plain_attributes
@register
class Problem(eqx.Module):
    r"""A learning problem, the same object for every simulation and every theory.

    .. math:: y = f(\lambda^\star) + \sqrt{\Delta}\,\xi, \qquad s(z) = \frac1p \sum_j a_j\,\sigma(\lambda_j), \qquad
              \lambda = W z,\ \lambda^\star = W^\star z

    ``noise`` is the variance :math:`\Delta` of the label noise, or `Flips` of labels that are signs. ``loss`` is
    `Square`, the default, `Correlation`, `Logistic`, `Hinge`, `Huber`, their names, or a JAX function of label and
    output (`CustomLoss`). The risk of results is the average of this loss.
    """

    target: AbstractTarget = leaf(_as_target)
    student: Student = leaf(instance("student", Student, "a Student"))
    inputs: AbstractInputs = leaf(instance("inputs", AbstractInputs, "Gaussian(d) or Samples(X, y)"))
    start: AbstractStart = leaf(
        instance("start", AbstractStart, "a start such as RandomStart()"), default_factory=RandomStart
    )
    loss: AbstractLoss = leaf(as_loss, default_factory=Square)
    noise: Converted[Number | Flips, Any] = leaf(as_noise, default=0.0)

    def __check_init__(self):
        has_labels = isinstance(self.inputs, Samples) and self.inputs.y is not None
        if has_labels != isinstance(self.target, Labels):
            raise InvalidInput("The target `Labels()` and the inputs `Samples(X, y)` must be used together.")
        if isinstance(self.target, Labels) and not is_traced(self.noise_level) and self.is_noisy:
            raise InvalidInput(
                f"Argument `noise` must be 0 with `Samples`, whose labels are given, but is {self.noise}."
            )
        if self.d < self.k + 1:
            raise InvalidInput(
                f"Argument `d` must exceed the number of target directions k = {self.k}, but is {self.d}."
            )
        if not isinstance(self.target, Labels):  # lazy training on labels draws no overlaps
            self._check_overlap_size()
        if isinstance(self.start, GivenOverlaps) and self.start.P is not None and not is_traced(self.start.P):
            check_covariance("P", self.P, self.k)
            target_P = getattr(self.target, "P", None)
            if target_P is not None and not np.allclose(
                np.asarray(target_P), np.asarray(self.P), rtol=0, atol=1e-9 if self.start.is_by_block else 1e-12
            ):
                raise InvalidInput("Argument `P` of the start must equal `P` of the target, but the two differ.")
        self._check_signs()
        if is_traced(self.P):
            return
        if self.has_data:
            self._check_directions()
            _ = self.equivalent  # checks that the start and the target fit it
        elif self.is_isotropic:
            self.start.check(self.p, np.asarray(self.P), self.d)
        else:
            self._check_place()
            self.start.check_blocks(self.p, np.asarray(self.P), self.frame)

    def _check_signs(self) -> None:
        """Refuse labels that are no signs, where the loss or the noise needs signs."""
        if not (self.loss.needs_signs or isinstance(self.noise, Flips)):
            return
        cause = f"`loss` is {self.loss}" if self.loss.needs_signs else f"`noise` is {self.noise}"
        if isinstance(self.noise, Flips) or not self.is_noisy:
            if self.has_sign_labels:
                return
            reason = "its labels are others" if isinstance(self.target, Labels) else f"the target is {self.target}"
        else:
            reason = f"`noise` is the variance {self.noise}, which makes them others; use Flips(probability)"
        raise InvalidInput(
            f"Argument {cause}, which needs labels that are signs, +1 or -1, such as SingleIndex('sign(z)') or "
            f"Signs(target), but {reason}."
        )

    def _check_directions(self) -> None:
        """Refuse target directions in a data set that are not those of the target."""
        directions, P = np.asarray(self.inputs.directions), np.asarray(self.P)  # pyright: ignore[reportAttributeAccessIssue]
        if len(directions) != self.k:
            raise InvalidInput(
                f"Argument `directions` must have one row for each of the k = {self.k} fields of the target, but has "
                f"{len(directions)}."
            )
        if not np.allclose(directions @ directions.T, P, rtol=0, atol=1e-9 * max(1.0, float(np.abs(P).max()))):
            raise InvalidInput(
                "The overlaps of the rows of `directions` must be those of the target, P, but differ: take orthonormal "
                "rows, or state `P` in the target."
            )

    def _check_place(self) -> None:
        """Refuse target directions of the start in other places than those of the inputs."""
        P, teacher = np.asarray(self.P, dtype=np.float64), getattr(self.inputs, "teacher", None)
        is_stated = isinstance(self.start, GivenOverlaps) and np.ndim(self.start.P) == 3
        if not is_stated or teacher is None or isinstance(teacher, str) or is_traced(teacher):
            return
        place, scale = target_frame(self.inputs, P).P, max(1.0, float(np.abs(P).max(initial=0.0)))  # pyright: ignore[reportArgumentType]
        if not np.allclose(np.asarray(self.frame.P), np.asarray(place), rtol=0, atol=1e-9 * scale):
            raise InvalidInput(
                "The blocks of `P` of the start must be the overlaps of the target directions that `problem.inputs` "
                "states by its `directions` or its `teacher`, but the two differ: take `frame.P` of the problem with "
                "another start."
            )

    def _check_overlap_size(self) -> None:
        """Refuse a covariance of all fields that does not fit the memory."""
        name, size, other = ("p", self.p, self.k) if self.p >= self.k else ("k", self.k, self.p)
        check_size(name, size, lambda n: 8 * MATRICES * (n + other) ** 2, "the overlap matrix of all fields")

    @property
    def d(self) -> int:
        """The input dimension."""
        return self.inputs.d

    @property
    def noise_level(self) -> Numbers:
        """The number that says how strong the label noise is: its variance, or the probability of a flip."""
        return level_of(self.noise)

    @property
    def is_noisy(self) -> bool:
        """Whether labels are noisy; only an exact zero, known when compiling, removes the noise from programs."""
        level = self.noise_level
        return not (isinstance(level, float) and level == 0.0)

    @property
    def has_sign_labels(self) -> bool:
        """Whether all labels are plus or minus one."""
        if isinstance(self.inputs, Samples) and self.inputs.y is not None:
            return bool(np.all(np.abs(np.asarray(self.inputs.y)) == 1.0))
        return has_signs(self.target) and (isinstance(self.noise, Flips) or not self.is_noisy)

    @property
    def is_quadratic(self) -> bool:
        """Whether the displacement is linear in label and output and the noise additive.

        Averages then come apart into those of few fields; otherwise they contain all p + k fields at once.
        """
        return isinstance(self.loss, Square | Correlation) and not isinstance(self.noise, Flips)

    @property
    def risk_floor(self) -> float:
        """The least risk of any predictor, by which the risk exceeds the excess risk."""
        with double():
            return float(self.loss.floor(self.noise))

    @property
    def without_dimension(self) -> "Problem":
        """The same problem in p + k isotropic dimensions, so that one compiled program serves every d."""
        return replaced(self, inputs=Gaussian(self.p + self.k))

    @property
    def p(self) -> int:
        """The width of the student."""
        return self.student.p

    @property
    def k(self) -> int:
        """The number of target directions."""
        return self.target.k

    @property
    def P(self) -> np.ndarray | Array:
        """The target-target overlaps: those of the start if it has some, else those of the target."""
        stated = self.start.P if isinstance(self.start, GivenOverlaps) else None
        if stated is None:
            return self.target.target_overlaps
        return stated.sum(axis=0) if np.ndim(stated) == 3 else stated

    @property
    def is_isotropic(self) -> bool:
        """Whether no direction of the inputs differs from the others; data sets with labels, `Labels`, count here."""
        return self.inputs.is_isotropic if isinstance(self.inputs, Gaussian) else not self.has_data

    @property
    def has_data(self) -> bool:
        """Whether inputs are rows of a data set, and labels those of the target's fields."""
        return isinstance(self.inputs, Samples) and not self.is_labelled_set

    @property
    def is_labelled_set(self) -> bool:
        """Whether inputs and labels are those of a data set."""
        return isinstance(self.target, Labels)

    @property
    def equivalent(self) -> "Problem":
        """The problem on the Gaussian equivalent of its data; the problem itself if its inputs are others."""
        if not isinstance(self.inputs, Samples) or self.is_labelled_set:
            return self
        return dataclasses.replace(self, inputs=self.inputs.axes.equivalent)

    @property
    def input_scale(self) -> Float[np.ndarray, " d"] | None:
        """The standard deviations of the inputs along the axes of their covariance; None where all are one."""
        if self.is_isotropic or not isinstance(self.inputs, Gaussian):
            return None
        eigenvalues, ranks = self.inputs.blocks
        return np.repeat(np.sqrt(eigenvalues), ranks)

    @plain
    def scatter(self, learning_rate: Numbers) -> float:
        r"""The order of the distance of a single run to its limit, :math:`\sqrt{\gamma c_1 / (p d)}`.

        The largest eigenvalue :math:`c_1` of the inputs is one for isotropic ones. In its direction one sample moves
        the weights :math:`c_1` times as far, and the limit is reached only where :math:`\gamma c_1 \ll p d`: the
        leading eigenvalue of a power law grows with d, so that it may never be.
        """
        return float(np.sqrt(learning_rate * self.largest_eigenvalue / (self.p * self.d)))

    @property
    def scatter_formula(self) -> str:
        """What `scatter` is, as text."""
        return "sqrt(gamma/(p d))" if self.largest_eigenvalue == 1.0 else "sqrt(gamma c_1/(p d))"

    @property
    def largest_eigenvalue(self) -> float:
        """The largest eigenvalue of the covariance of the inputs."""
        if self.is_isotropic:
            return 1.0
        inputs = self.equivalent.inputs
        return float(np.max(inputs.blocks[0])) if isinstance(inputs, Gaussian) else 1.0

    @property
    def frame(self) -> BlockFrame:
        """The blocks of the spectrum of the inputs, and where in them the target lies."""
        if self.has_data:
            return self.equivalent.frame
        if not isinstance(self.inputs, Gaussian):
            raise NotApplicable("A spectrum is one of Gaussian inputs, but `problem.inputs` is a data set.")
        stated = self.start.P if isinstance(self.start, GivenOverlaps) and np.ndim(self.start.P) == 3 else None
        return target_frame(self.inputs, np.asarray(self.P, dtype=np.float64), stated)

    @property
    def components(self) -> "tuple[Problem, ...]":
        """The problems of the targets of a mixture; the problem itself if its target is another one."""
        if not isinstance(self.target, Mixture):
            return (self,)
        return tuple(self.with_task(target=target) for target in self.target.targets)

    @property
    def numbers_of_label(self) -> int:
        """How many standard normal numbers the label of a sample needs, where labels are noisy."""
        return 2 if isinstance(self.target, Mixture) else 1

    def label(self, lam_star: Float[Array, "*n k"], xi: Array | float) -> Float[Array, "*n"]:
        r"""Return the labels :math:`f(\lambda^\star) + \sqrt\Delta\,\xi` of samples, or flipped signs.

        ``xi`` holds the standard normal number of each. For a `Mixture` it holds two, along a last axis, the second of
        which chooses the target.
        """
        if isinstance(self.target, Mixture):
            xi = jnp.asarray(xi)
            return noisy(self.noise, self.target.chosen(lam_star, xi[..., 1]), xi[..., 0])
        return noisy(self.noise, self.target(lam_star), xi)

    def with_task(
        self,
        target: AbstractTarget | None = None,
        loss: AbstractLoss | None = None,
        noise: Numbers | Flips | None = None,
    ) -> "Problem":
        """Return the problem with labels of another task: a target of the same k fields, another loss or noise.

        The directions stay, and their overlaps P with them: a target may state P only if it is that of the problem.
        """
        if target is not None:
            self._check_task(target)
        target = self.target if target is None else target
        loss, noise = (self.loss if loss is None else loss), (self.noise if noise is None else noise)
        start = self.start
        is_other = target is not self.target and not is_traced(self.P)
        if is_other and not np.array_equal(np.asarray(target.target_overlaps), np.asarray(self.P)):
            # The start of a task is that of the run; here it carries P, which formulas do not have.
            start = GivenOverlaps(np.eye(self.p), np.zeros((self.p, self.k)), np.asarray(self.P))
        task = replaced(self, target=target, loss=loss, noise=noise, start=start)
        task._check_signs()
        return task

    def with_inputs(self, inputs: Gaussian) -> "Problem":
        """Return the problem with other eigenvalues in the blocks of its inputs, in which the target stays."""
        if not isinstance(self.inputs, Gaussian):
            raise InvalidInput(
                "Inputs of a phase need a problem with Gaussian inputs, but `problem.inputs` are samples."
            )
        if inputs.d != self.d:
            raise InvalidInput(f"The inputs of a phase must have d = {self.d} as the problem, but have d = {inputs.d}.")
        if inputs.teacher is not None:
            raise InvalidInput(
                "Argument `teacher` must be that of the problem's inputs, but those of a phase state one."
            )
        if self.is_isotropic and inputs.is_isotropic:
            return self
        if self.is_isotropic:
            raise InvalidInput(
                "The blocks of a phase must be those of `problem.inputs`, but these have none: state them by "
                "eigenvalues of one, such as spectrum=[(1, 0.3), (1, 0.7)]."
            )
        ranks = self.inputs.blocks[1]
        eigenvalues, own = (np.ones(len(ranks)), ranks) if inputs.spectrum is None else inputs.blocks
        if own != ranks:
            raise InvalidInput(
                f"The inputs of a phase must have blocks of the ranks {list(ranks)} as the problem, but have "
                f"{list(own)}."
            )
        spectrum = Eigenvalues(tuple((float(c), rank / self.d) for c, rank in zip(eigenvalues, ranks, strict=True)))
        frame = self.frame.with_eigenvalues(eigenvalues)
        check_seen(np.asarray(frame.P), eigenvalues)
        return replaced(self, inputs=Gaussian(self.d, spectrum, np.asarray(frame.P)))

    def _check_task(self, target: AbstractTarget) -> None:
        if isinstance(self.target, Labels) or isinstance(target, Labels):
            raise InvalidInput("A task needs labels that are a function of the target's fields, but has a data set's.")
        if target.k != self.k:
            raise InvalidInput(
                f"The target of a task must have the k = {self.k} fields of the problem, which span all tasks, but has "
                f"{target.k}."
            )
        P = getattr(target, "P", None)
        is_known = P is not None and not is_traced(P) and not is_traced(self.P)
        if is_known and not np.allclose(np.asarray(P), np.asarray(self.P), rtol=0, atol=1e-12):
            raise InvalidInput("Argument `P` of the target of a task must equal that of the problem, but differs.")

    @property
    def has_random_start(self) -> bool:
        """Whether the starts of two replicas differ."""
        return self.start.is_random or self.student.is_random

    def draw(self, key: Key[Array, ""], d: Numbers | None = None, frame: BlockFrame | None = None) -> Overlaps:
        """Draw the start of one replica, which is the same for every description with the same key.

        A dimension ``d`` of at least p + k in place of that of the inputs may be traced. Within compiled functions the
        ``frame`` of inputs with a spectrum is given, since it is computed from numbers.
        """
        self._check_overlap_size()
        P = jnp.asarray(self.P, jnp.float64)
        own = purpose_key(key, Purpose.START)
        a = self.start.second_layer(self.student.draw_second_layer(purpose_key(key, Purpose.SECOND_LAYER)))
        if not self.is_isotropic:
            return Overlaps.by_block(self._draw_blocks(own, P, self.frame if frame is None else frame), a)
        Q, M = self.start.draw(own, self.p, P, self.d if d is None else d)
        return Overlaps(Q, M, P, a)

    def _draw_blocks(self, key: Key[Array, ""], P: Float[Array, "k k"], frame: BlockFrame) -> BlockOverlaps:
        """Draw the overlaps of one replica by block."""
        if isinstance(self.start, GivenOverlaps):
            return BlockOverlaps(*self.start.in_blocks(P, frame), frame)
        return frame.overlaps_of(self.start.rows(key, self.p, P, frame))

    def draw_many(
        self, keys: Key[Array, " replicas"], d: Numbers | None = None, frame: BlockFrame | None = None
    ) -> Overlaps:
        """Draw the starts of several replicas, stacked along a leading axis; P, the same for all, has none."""
        if frame is None and not self.is_isotropic:
            frame = self.frame
        starts = jax.vmap(lambda key: self.draw(key, d, frame))(keys)
        P, blocks = jnp.asarray(self.P, jnp.float64), starts.blocks
        if blocks is not None and frame is not None:
            blocks = BlockOverlaps(blocks.Q, blocks.M, frame)
        return Overlaps(starts.Q, starts.M, P, starts.a, blocks)
