r"""Phase retrieval by quadratic neurons whose rows or output weights change their size: the plateau and the exit.

Without overlap with the target the neurons stay orthogonal and alike, :math:`Q = q I` and :math:`a_j = a`, and their
motion closes. With :math:`g = \gamma/p`, :math:`x = (1 + \frac2p)\,a q`, :math:`\beta = \frac{p+4}{p+2}` and
:math:`B(x) = 3 + \Delta - 2x + \beta x^2`,

.. math:: \dot q = 4 a q\,[1 - x + g a B(x)] \ \text{(zero on the sphere)}, \qquad \dot a = \kappa\,q\,(1 - x),
          \qquad c^2 \propto e^{L(t)}, \quad \dot L = 8 a - 4 g a^2 B(x)

for the squared cosine :math:`c^2` of a neuron with the target. A random start has :math:`q = a = 1`, which is at rest
on the sphere with a fixed second layer alone. Otherwise it first relaxes to the plateau :math:`(q_*, a_*)`, at which
the growth rate :math:`r` is that of the escape:

- free rows, fixed second layer: :math:`a_* = 1`, :math:`x_*` the smaller root of :math:`1 - x + g B(x) = 0`,
  :math:`r = 4 (3 - x_*)`;
- sphere, both layers: :math:`x_* = 1`, :math:`a_* = \frac{p}{p+2}`, :math:`r = 8 a_* - 4 g a_*^2 (1 + \Delta + \beta)`;
- free rows, both layers: there is none. :math:`x \to 1` soon, but the noise of SGD goes on to lengthen the rows while
  output weights shrink, :math:`q \sim \sqrt t`, :math:`a \sim 1/\sqrt t`: the exit is slower than :math:`\log d`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from twolayer.core.estimate import Estimate
from twolayer.core.types import Numbers
from twolayer.problem import Problem
from twolayer.theory.formulas.phase_retrieval import applies_to_plain, applies_to_problem, next_order
from twolayer.theory.formulas.random_start import mean_over_largest
from twolayer.training import SGD

# The growth L is followed to this value: no start at any d needs more.
FAR = 100.0
# The longest time followed, the number of points at which the growth is kept, and the tolerance of its integration.
LONGEST, POINTS, TOLERANCE = 1e4, 20_001, 1e-10
# The relative error of a time: what linear interpolation between these points leaves, with a margin.
ACCURACY = 1e-5


class Rest(NamedTuple):
    """A plateau: squared length of rows, output weight, growth rate of the squared cosine, strength of the noise."""

    q: float
    a: float
    growth_rate: float
    diffusion: float  # variance that is added to a cosine in unit time, times d


@dataclass(frozen=True)
class QuadraticStudent:
    """Quadratic neurons that learn phase retrieval from a random start on the unit sphere, and how they are trained."""

    p: int | float  # formulas hold for any number
    noise: float
    is_spherical: bool
    layer_ratio: float

    @property
    def scale(self) -> float:
        """:math:`x / (a q)`."""
        return 1.0 + 2.0 / self.p

    @property
    def beta(self) -> float:
        r""":math:`\beta = (p + 4)/(p + 2)`."""
        return (self.p + 4.0) / (self.p + 2.0)

    def spread(self, x: Numbers) -> Numbers:
        """B(x): the mean square of what one sample adds to a row, over that at zero."""
        return 3.0 + self.noise - 2.0 * x + self.beta * x**2

    def diffusion(self, q: Numbers, a: Numbers, learning_rate: float) -> Numbers:
        r"""The variance that is added to a cosine in unit time, times d.

        .. math:: 4 g a^2 \Big[(3 - x)^2 + 6 + \frac{2 x^2}{p + 2} + \Delta\Big]
        """
        x = self.scale * a * q
        square = (3.0 - x) ** 2 + 6.0 + 2.0 * x**2 / (self.p + 2.0) + self.noise
        return 4.0 * learning_rate / self.p * a**2 * square

    def growth(self, q: Numbers, a: Numbers, learning_rate: float) -> Numbers:
        """The rate at which the squared cosine grows without overlap: the derivative of L."""
        return 8.0 * a - 4.0 * learning_rate / self.p * a**2 * self.spread(self.scale * a * q)

    def velocity(self, q: Numbers, a: Numbers, learning_rate: float) -> tuple[Numbers, Numbers]:
        """The time derivatives of log q and of a without overlap."""
        x = self.scale * a * q
        stretch = 4.0 * a * (1.0 - x + learning_rate / self.p * a * self.spread(x))
        return 0.0 * stretch if self.is_spherical else stretch, self.layer_ratio * q * (1.0 - x)

    # ------------------------------------------------------------------------------------------ at the plateau

    def rest(self, learning_rate: float) -> Rest | None:
        """The plateau that is reached from q = a = 1, or None if there is none.

        Checked against: the Jacobian of the drift of all overlaps at the end of its motion without overlap.
        """
        g = learning_rate / self.p
        q = a = 1.0
        if self.is_spherical:
            a = 1.0 / self.scale if self.layer_ratio else 1.0
        elif self.layer_ratio:
            return None
        else:
            middle, product = (1.0 + 2.0 * g) / (2.0 * g * self.beta), (1.0 / g + 3.0 + self.noise) / self.beta
            if middle**2 < product:
                return None
            larger = middle + np.sqrt(middle**2 - product)
            if self.scale >= larger:  # the start is longer than the unstable length, from which rows only grow
                return None
            q = float(product / larger) / self.scale
        return Rest(q, a, float(self.growth(q, a, learning_rate)), float(self.diffusion(q, a, learning_rate)))

    @property
    def optimal_learning_rate(self) -> float | None:
        r"""The learning rate of the fewest steps at leading order in :math:`\log d`: it maximises :math:`\gamma r`.

        On the sphere :math:`p / (a_* B)`. With free rows :math:`x_*` solves
        :math:`(2\beta - 1) x^2 - (3\beta - 3 - \Delta) x = 3 + 2\Delta`, and :math:`\gamma = p (x_* - 1) / B(x_*)`.
        None where there is no plateau.
        """
        if self.is_spherical:
            return 0.5 * self._zero_rate
        if self.layer_ratio:
            return None
        square, linear, rest = 2.0 * self.beta - 1.0, 3.0 * self.beta - 3.0 - self.noise, 3.0 + 2.0 * self.noise
        return self._rate_of((linear + np.sqrt(linear**2 + 4.0 * square * rest)) / (2.0 * square))

    @property
    def maximal_learning_rate(self) -> float | None:
        r"""The learning rate above which the plateau is not left, or is not there.

        On the sphere the growth rate vanishes at twice the optimal one. With free rows it vanishes at :math:`x_* = 3`,
        unless the plateau meets an unstable one before, at :math:`x = 1 + \sqrt{1 + (1 + \Delta)/\beta}`, beyond which
        rows grow without bound; one neuron begins at x = 3 and does so beyond :math:`2/(12 + \Delta)`. None for free
        rows with both layers trained.
        """
        if self.is_spherical:
            return self._zero_rate
        if self.layer_ratio:
            return None
        fold = 1.0 + np.sqrt(1.0 + (1.0 + self.noise) / self.beta)
        largest = self._rate_of(min(fold, 3.0))
        return min(largest, self._rate_of(self.scale)) if self.scale > fold else largest

    @property
    def _zero_rate(self) -> float:
        """The learning rate at which the growth rate vanishes on the sphere; the plateau does not depend on it."""
        a = 1.0 / self.scale if self.layer_ratio else 1.0
        return float(2.0 * self.p / (a * self.spread(self.scale * a)))

    def _rate_of(self, x: float) -> float:
        """The learning rate at which free rows with a fixed second layer are at rest at x."""
        return float(self.p * (x - 1.0) / self.spread(x))


@dataclass(frozen=True)
class Escape:
    r"""The exit of such a student by overlap, linearised along its motion without overlap.

    The start has the largest squared cosine :math:`c_0^2`; the exit is where
    :math:`c_0^2 e^{L(t)} = T + (1 - T)\,c_0^2`. The noise of SGD adds to every cosine a Gaussian like that of the
    start: with it :math:`L(t)` becomes :math:`L(t) + \log(1 + N(t))`, :math:`N = \int_0^t D\,e^{-L} ds`, with the
    diffusion D. For :math:`T \ll 1`.

    Checked against: the formulas of phase retrieval on the sphere, the ODE at small T, and `OverlapSGD`.
    """

    student: QuadraticStudent
    learning_rate: float
    threshold: float

    def times(self, square: Numbers, is_noisy: bool = False) -> np.ndarray:
        """The exit time from each largest squared cosine of the start; infinite where there is none."""
        time, growth, noise = self._grown
        reached = growth + np.log1p(noise) if is_noisy else growth
        wanted = np.log(self.threshold / np.asarray(square) + 1.0 - self.threshold)
        return np.asarray(np.interp(wanted, np.maximum.accumulate(reached), time, right=np.inf))

    def mean_time(self, d: int, is_noisy: bool = False) -> Estimate:
        """The mean over random starts in d dimensions (quenched)."""

        def time(square: np.ndarray) -> np.ndarray:
            times = self.times(square, is_noisy)
            # The rule has nodes so close to zero that no start is there; their weights are zero up to rounding.
            return np.where(np.isfinite(times) | (square > np.exp(-0.9 * FAR)), times, 0.0)

        return mean_over_largest(time, int(self.student.p), d)

    def annealed_time(self, d: int, is_noisy: bool = False) -> float:
        """The exit time from the mean of the largest squared cosine."""
        return float(self.times(mean_over_largest(lambda square: square, int(self.student.p), d).value, is_noisy))

    @cached_property
    def noise_factor(self) -> float:
        """1 + N at the end: the factor by which noise enlarges the squared cosine of the start, for large d."""
        return 1.0 + float(self._grown[2][-1])

    @property
    def noise_shift(self) -> float:
        """How much earlier than the ODE runs exit for large d, where there is a plateau."""
        rest = self.student.rest(self.learning_rate)
        return np.nan if rest is None else float(np.log(self.noise_factor) / rest.growth_rate)

    def model_error(self, d: int, time: float, correction: float, squares: Numbers, times: Numbers) -> float:
        """A bound of the next order in 1/d, as that of phase retrieval on the sphere; NaN where there is no plateau.

        ``squares`` and ``times`` are the largest squared cosines of several starts, and the exit times of the ODE.
        """
        rest = self.student.rest(self.learning_rate)
        if rest is None:
            return np.nan
        unexplained = np.asarray(times) - self.times(squares)
        finite_d = correction + self.noise_shift
        return next_order(rest.diffusion / d, rest.growth_rate, self.threshold, time, finite_d, unexplained)

    @cached_property
    def _grown(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Times, and L and N at them, as far as anything asks for."""
        from scipy.integrate import solve_ivp

        student, gamma = self.student, self.learning_rate

        def motion(_: float, y: np.ndarray) -> list[float]:
            q, a = np.exp(y[0]), y[1]
            stretch, change = student.velocity(q, a, gamma)
            growth, noise = student.growth(q, a, gamma), student.diffusion(q, a, gamma) * np.exp(-y[2])
            return [float(x) for x in (stretch, change, growth, noise)]

        def is_far(_: float, y: np.ndarray) -> float:
            """Zero where no start needs more, or where rows grow without bound."""
            return FAR - max(abs(y[2]), 2.0 * abs(y[0]))

        is_far.terminal = True
        options = {"method": "LSODA", "rtol": TOLERANCE, "atol": TOLERANCE, "events": is_far}
        solution = solve_ivp(motion, (0.0, LONGEST), np.array([0.0, 1.0, 0.0, 0.0]), dense_output=True, **options)
        time = np.linspace(0.0, solution.t[-1], POINTS)
        _, _, growth, noise = solution.sol(time)
        return time, growth, noise


def student_of(problem: Problem, training: SGD) -> QuadraticStudent | None:
    """The student of a phase-retrieval problem in the form of these formulas; None if they do not apply."""
    is_plain = applies_to_problem(problem).ok and applies_to_plain(problem, training).ok and training.trains_first
    if not is_plain:
        return None
    return QuadraticStudent(problem.p, float(problem.noise), training.is_spherical, float(training.layer_ratio))
