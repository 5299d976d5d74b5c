r"""Lazy training in the words of `Problem` and `SGD`: the one place where its scales are converted.

The student of a problem is :math:`s(z) = \frac1p \sum_j a_j\,\sigma(w_j \cdot z)`. Lazy training is its limit of large
width with output weights of size :math:`\sqrt p`: with :math:`a_j = \sqrt p\,\alpha_j`, :math:`\alpha_j = \pm 1`, and
all n samples at each step, the step of `SGD` at the learning rate :math:`\gamma` is

.. math:: u = \frac{1}{\sqrt p} \sum_j \alpha_j\,\sigma(w_j \cdot x), \qquad
          w_j \leftarrow w_j + \frac{\eta\,\alpha_j}{\sqrt p} \sum_\nu \sigma'(w_j \cdot x_\nu)\,(y_\nu - u_\nu)\,x_\nu,
          \qquad \eta = \frac{\gamma}{d}

So ``learning_rate`` is d times the step size :math:`\eta` of the literature on lazy training, `Student.p` is its width
m, and the deviation of the weights at the start is its :math:`\kappa`. With `Both` the output weights :math:`\alpha`
move at the same step size, which in terms of a is a ratio of p. `ntk` takes the output weights of the student,
``"ones"`` or ``"rademacher"``, as the signs :math:`\alpha`, times :math:`\sqrt p`.
"""

import math
from typing import Any, NamedTuple

from twolayer.core.errors import InvalidInput, NotApplicable, shown
from twolayer.core.types import NumbersLike
from twolayer.kernel.training import KAPPA, STARTS
from twolayer.problem import (
    AbstractActivation,
    AntisymmetricStart,
    Labels,
    Problem,
    RandomStart,
    Samples,
    Square,
    Student,
)
from twolayer.problem.activations import ActivationLike, Relu
from twolayer.specification.fields import choice, count, instance, number
from twolayer.training import SGD, Both, First, Second
from twolayer.training.sgd import AbstractLayers

LAYERS = {First: "first", Second: "second", Both: "both"}
# What the literature calls the fields of a problem and a training: the arguments of `lazy_setting`.
LETTERS = ("width", "eta", "start", "kappa", "activation", "layers")
# The width of the student of a question about the kernel alone, which does not depend on it.
ANY_WIDTH = 2


class KernelSetting(NamedTuple):
    """A problem and a training in the letters of the literature; ``eta`` is None where the spectrum decides it."""

    width: int
    activation: AbstractActivation
    layers: str
    start: str
    kappa: float
    eta: float | None

    @property
    def has_network(self) -> bool:
        """Whether a network of this kind can be trained: relu units, the first layer."""
        return isinstance(self.activation, Relu) and self.layers == "first"

    def deviation(self, d: int) -> float:
        """The deviation of a weight at the start, in d dimensions."""
        return self.kappa / math.sqrt(d) if self.start == "sphere" else self.kappa


def as_lazy_training(value: object) -> SGD | AbstractLayers:
    """An `SGD`, or the layers that are trained, at a learning rate that the spectrum decides."""
    noun = "a training such as SGD(learning_rate=2.0), or the layers that are trained, such as First()"
    if isinstance(value, str):
        return instance("training", AbstractLayers, noun)(value)
    return instance("training", (SGD, AbstractLayers), noun)(value)


def read_setting(problem: Problem, training: SGD | AbstractLayers) -> KernelSetting:
    """Translate a problem and a training to the letters of the literature, or raise `NotApplicable`."""
    if not isinstance(problem.target, Labels):
        raise NotApplicable(
            "Lazy training is that of a data set: use `Problem(target=Labels(), inputs=Samples(X, y), ...)`, but the "
            f"target is a {type(problem.target).__name__}."
        )
    if problem.student.second_layer not in ("ones", "rademacher"):
        given = problem.student.second_layer
        raise NotApplicable(
            "Argument `second_layer` of the student must be 'ones' or 'rademacher' in lazy training, whose output "
            f"weights are signs times sqrt(p), but is {shown(given) if isinstance(given, str) else 'an array'}."
        )
    if not isinstance(problem.loss, Square):
        raise NotApplicable(f"Lazy training is that of the square loss, but `problem.loss` is {problem.loss}.")
    layers = training if isinstance(training, AbstractLayers) else _check_method(training, problem)
    if float(getattr(layers, "ratio", 1.0)) != 1.0:
        raise NotApplicable(
            f"Argument `ratio` of the layers must be 1 in lazy training, whose layers move at one step size, but is "
            f"{float(getattr(layers, 'ratio', 1.0)):g}."
        )
    eta = None if isinstance(training, AbstractLayers) else step_size(float(training.learning_rate), problem.d)
    activation: Any = problem.student.activation
    setting = KernelSetting(problem.p, activation, LAYERS[type(layers)], *_start(problem), eta)
    if setting.start == "sphere" and not setting.has_network:
        raise NotApplicable(
            "Argument `start` must have Gaussian rows for this kernel, RandomStart(law='gaussian') or "
            "AntisymmetricStart(): its averages are Gaussian, but the rows are on the sphere."
        )
    return setting


def _start(problem: Problem) -> tuple[str, float]:
    """The name of the start and the deviation of its weights, or their length on the sphere."""
    start = problem.start
    if isinstance(start, AntisymmetricStart):
        return "antisymmetric", float(start.deviation)
    if isinstance(start, RandomStart):
        norm = float(start.norm)
        return ("sphere", norm) if start.law == "sphere" else ("small", norm / math.sqrt(problem.d))
    raise NotApplicable(
        "Argument `start` must be AntisymmetricStart() or RandomStart() in lazy training, but is a "
        f"{type(start).__name__}."
    )


def _check_method(training: SGD, problem: Problem) -> AbstractLayers:
    """The layers that are trained; what lazy training does not describe is refused."""
    n, size = problem.inputs.n if isinstance(problem.inputs, Samples) else 0, training.batch_size
    is_default = size == 1 and training.is_fresh
    is_whole = size in (None, n) and (training.is_fresh or training.has_fixed_set)
    if not (is_default or is_whole):
        raise NotApplicable(
            "Lazy training takes all samples at each step: leave out `batch_size` and `reuse` of the training, or use "
            f"Reused(alpha) without a batch size, but they are {size} and {type(training.reuse).__name__}."
        )
    if training.is_spherical or float(training.weight_decay) != 0.0 or training.has_momentum:
        raise NotApplicable(
            "Lazy training describes plain gradient descent: leave out `constraint`, `weight_decay` and `momentum` of "
            "the training."
        )
    return training.layers


def lazy_setting(
    samples: Samples,
    *,
    width: NumbersLike = 0,
    eta: NumbersLike | None = None,
    start: str = "antisymmetric",
    kappa: NumbersLike | None = None,
    activation: ActivationLike = "relu",
    layers: str = "first",
) -> tuple[Problem, SGD | AbstractLayers]:
    r"""The problem and the training that the letters of the literature state; the inverse of `read_setting`.

    Parameters
    ----------
    samples
        The data set.
    width, eta
        m and :math:`\eta`. Without the width the student is any: the kernel does not depend on it. Without the step
        size the training is that of the layers at :math:`1/\lambda_{\max}`.
    start, kappa
        ``"antisymmetric"``, ``"small"`` or ``"sphere"``, and the deviation of the weights: by default 1, and 0.01 for
        small ones of a network; on the sphere, their length.
    activation, layers
        Of the network; ``"first"``, ``"second"`` or ``"both"``.
    """
    start = choice("start", STARTS)(start)
    width = count("width", low=0)(width)
    if kappa is None:
        kappa = KAPPA[start] if width else 1.0
    kappa = number("kappa", above=0.0)(kappa)
    if width % 2 and start == "antisymmetric":
        raise InvalidInput(f"Argument `width` must be even for the antisymmetric start, but is {width}.")
    beginnings = {
        "antisymmetric": lambda: AntisymmetricStart(kappa),
        "small": lambda: RandomStart(law="gaussian", norm=kappa * math.sqrt(samples.d)),
        "sphere": lambda: RandomStart(law="sphere", norm=kappa),
    }
    problem = Problem(
        target=Labels(), student=Student(width or ANY_WIDTH, activation), inputs=samples, start=beginnings[start]()
    )
    classes = {word: kind for kind, word in LAYERS.items()}
    trained = classes[choice("layers", tuple(LAYERS.values()))(layers)]()
    if eta is None:
        return problem, trained
    rate = learning_rate(float(number("eta", above=0.0)(eta)), samples.d)
    return problem, SGD(learning_rate=rate, layers=trained)


def step_size(rate: float, d: int) -> float:
    r"""The step size :math:`\eta = \gamma / d` of a learning rate."""
    return rate / d


def learning_rate(eta: float, d: int) -> float:
    """The learning rate whose step size is this one, to the last bit where there is such a number."""
    rate = eta * d
    near = (rate, math.nextafter(rate, math.inf), math.nextafter(rate, 0.0))
    return next((number for number in near if step_size(number, d) == eta), rate)


def check_rate(eta: float | None, largest: float, d: int) -> float:
    """The step size, or a refusal of one at which gradient descent diverges; half of the largest when it is None."""
    if eta is None:
        return 0.5 * largest
    if not eta < largest:
        raise InvalidInput(
            f"Argument `learning_rate` must be below d * 2 / lambda_max = {d * largest:.6g} (a step size `eta` below "
            f"2 / lambda_max = {largest:.6g}), or gradient descent diverges, but is {eta * d:g}."
        )
    return eta
