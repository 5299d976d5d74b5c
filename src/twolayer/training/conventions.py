r"""The normalisations of papers, converted to ours.

Papers agree on the process and differ by factors of p, d and 2. One function per paper takes the numbers as the paper
states them, under the paper's own letters, and returns the equivalent `Problem`, `SGD` and unit of time. Overlaps are
the same numbers in every convention (``Q``, ``R`` or ``M``, ``T`` or ``P``), so a start is passed on as it is; noise
enters as the paper measures it. The conversions are those of ``docs/notation.md``:

.. math:: w = w_X / \sqrt d, \qquad a_j = p\, v_j, \qquad \gamma = \gamma_d\, d / n_b, \qquad
          t = \gamma\,\mathrm{samples} / (p d)
"""

from typing import Any, NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.types import Numbers, NumbersLike
from twolayer.problem import AbstractStart, AbstractTarget, Committee, Gaussian, PhaseRetrieval, Problem, Student
from twolayer.problem.activations import ActivationLike
from twolayer.specification.fields import array, count, is_traced, number
from twolayer.training.sgd import SGD, Both, First, Free, Sphere


class Stated(NamedTuple):
    """The setting of a paper in our units; a time :math:`t_{paper}` of the paper is ``time_unit * t_paper`` here."""

    problem: Problem
    training: SGD
    time_unit: Any


def _start(start: AbstractStart | None) -> dict[str, Any]:
    return {} if start is None else {"start": start}


def _outer(name: str, values: Any, units: int) -> Any:
    """Convert the output weights of a sum without prefactor to ours, whose sum has the prefactor 1 / units."""
    values = np.ones(units) if values is None else array(name, 1)(values)
    if values.shape != (units,):
        raise InvalidInput(f"Argument `{name}` must have {units} entries, but has shape {tuple(values.shape)}.")
    return units * values


def _layers(ratio: Any) -> First | Both:
    return First() if not is_traced(ratio) and float(ratio) == 0.0 else Both(ratio)


def saad1995(
    N: int,
    K: int,
    M: int,
    eta: Numbers,
    T: NumbersLike | None = None,
    g: ActivationLike = "erf",
    start: AbstractStart | None = None,
) -> Stated:
    r"""Return the soft committee machine of :cite:t:`saad1995`.

    .. math:: \sum_{i=1}^K g(J_i \cdot \xi), \qquad \zeta = \sum_{n=1}^M g(B_n \cdot \xi), \qquad
              J_i \leftarrow J_i + \frac{\eta}{N}\, g'(J_i \cdot \xi) \Big[\zeta - \sum_j g(J_j \cdot \xi)\Big] \xi

    with :math:`\xi \sim N(0, I_N)`. Here :math:`p = K`, :math:`k = M`, :math:`a_j = K`, :math:`a^\star_n = M`,
    :math:`\gamma = \eta`; the paper's time is the number of examples over N.

    Parameters
    ----------
    N, K, M
        Input dimension, student and teacher units.
    eta
        Learning rate.
    T
        Teacher overlaps :math:`B_n \cdot B_m`; the identity when None.
    g
        Activation of both networks.
    start
        Where the student begins.
    """
    N, K, M = count("N")(N), count("K")(K), count("M")(M)
    eta = number("eta", above=0.0)(eta)
    target = Committee(M, g, P=array("T", 2, optional=True)(T), second_layer=_outer("v", None, M))
    student = Student(K, g, second_layer=_outer("v", None, K))
    return Stated(Problem(target, student, Gaussian(N), **_start(start)), SGD(eta), eta / K)


# Large: its eleven arguments are the letters of the paper.
def goldt2019(
    N: int,
    K: int,
    M: int,
    eta: Numbers,
    sigma: NumbersLike = 0.0,
    v: NumbersLike | None = None,
    v_star: NumbersLike | None = None,
    eta_v: Numbers | None = None,
    T: NumbersLike | None = None,
    g: ActivationLike = "erf",
    start: AbstractStart | None = None,
) -> Stated:
    r"""Return the two-layer teacher and student of :cite:t:`goldt2019`.

    .. math:: \lambda_k = \frac{w_k \cdot x}{\sqrt N}, \qquad \phi = \sum_{k=1}^K v_k\, g(\lambda_k), \qquad
              y = \sum_{m=1}^M v^\star_m\, g(\lambda^\star_m) + \sigma \zeta, \qquad \Delta = \phi - y

    .. math:: w_k \leftarrow w_k - \frac{\eta}{\sqrt N}\, v_k\, g'(\lambda_k)\, \Delta\, x, \qquad
              v_k \leftarrow v_k - \frac{\eta_v}{N}\, g(\lambda_k)\, \Delta

    with :math:`x \sim N(0, I_N)` and rows of length about :math:`\sqrt N`. Here :math:`a_k = K v_k`,
    :math:`a^\star_m = M v^\star_m`, :math:`\gamma = \eta`, :math:`\kappa = K^2 \eta_v / \eta`, noise
    :math:`\sigma^2`; the paper's time is the number of samples over N.

    Parameters
    ----------
    N, K, M
        Input dimension, student and teacher units.
    eta, eta_v
        Rates of the first and of the second layer; the second is ``eta`` when None, and 0 freezes the layer.
    sigma
        Standard deviation of the label noise.
    v, v_star
        Second layers of student (at the start) and teacher; ones when None.
    T
        Teacher overlaps :math:`w^\star_m \cdot w^\star_n / N`; the identity when None.
    g
        Activation of both networks.
    start
        Where the student begins.
    """
    N, K, M = count("N")(N), count("K")(K), count("M")(M)
    eta = number("eta", above=0.0)(eta)
    eta_v = eta if eta_v is None else number("eta_v", low=0.0)(eta_v)
    sigma = number("sigma", low=0.0)(sigma)
    target = Committee(M, g, P=array("T", 2, optional=True)(T), second_layer=_outer("v_star", v_star, M))
    student = Student(K, g, second_layer=_outer("v", v, K))
    problem = Problem(target, student, Gaussian(N), noise=sigma**2, **_start(start))
    return Stated(problem, SGD(eta, layers=_layers(K**2 * eta_v / eta)), eta / K)


def veiga2022(
    d: int,
    p: int,
    target: AbstractTarget,
    gamma: Numbers,
    activation: ActivationLike = "erf",
    a: NumbersLike | str = "ones",
    Delta: NumbersLike = 0.0,
    start: AbstractStart | None = None,
) -> Stated:
    r"""Return one-pass SGD as in :cite:t:`veiga2022` and, under the name ``arnaboldi2023``, :cite:t:`arnaboldi2023`.

    .. math:: \lambda = W x, \qquad x \sim N(0, I_d / d), \qquad
              w_j \leftarrow w_j - \gamma\, \partial_{w_j} \tfrac12
              \Big(y - \frac1p \sum_l a_l\, \sigma(\lambda_l)\Big)^2

    with rows of length about :math:`\sqrt d`, a frozen second layer and
    :math:`y = f(\lambda^\star) + \sqrt\Delta\,\xi`. The rate is ours, and so is the time,
    :math:`\gamma \nu / (p d)` after :math:`\nu` samples.

    Parameters
    ----------
    d, p
        Input dimension and width.
    target
        What is learned, such as ``Committee(k, "erf")``: the paper's :math:`\frac1k \sum_r a^\star_r \sigma^\star`.
    gamma
        Learning rate, any scaling with d and p included.
    activation, a
        Activation and second layer of the student.
    Delta
        Variance of the label noise.
    start
        Where the student begins.
    """
    gamma = number("gamma", above=0.0)(gamma)
    Delta = number("Delta", low=0.0)(Delta)
    student = Student(p, activation, second_layer=a)
    return Stated(Problem(target, student, Gaussian(d), noise=Delta, **_start(start)), SGD(gamma), 1.0)


# The later paper keeps the convention.
arnaboldi2023 = veiga2022


def arnaboldi2023escaping(
    d: int,
    p: int,
    gamma: Numbers,
    Delta: NumbersLike = 0.0,
    trains_second_layer: bool = False,
    is_spherical: bool = True,
    start: AbstractStart | None = None,
) -> Stated:
    r"""Return phase retrieval with a quadratic student as in :cite:t:`arnaboldi2023escaping`.

    .. math:: y = (w^\star \cdot x)^2 + \sqrt\Delta\,\xi, \qquad s = \frac1p \sum_j a_j (w_j \cdot x)^2, \qquad
              w_j \leftarrow \sqrt d\,
              \frac{w_j - \gamma\, \partial_{w_j} \ell}{\| w_j - \gamma\, \partial_{w_j} \ell \|}, \qquad
              a_j \leftarrow a_j - \frac{\gamma}{d}\, \partial_{a_j} \ell

    with :math:`\ell = \frac12 (y - s)^2`, :math:`x \sim N(0, I_d / d)` and :math:`a_j = 1` at the start. The
    second-layer rate :math:`\gamma / d` beside :math:`\gamma` is :math:`\kappa = 1` here. The time is ours,
    :math:`\gamma \nu / (p d)`.

    Parameters
    ----------
    d, p
        Input dimension and width.
    gamma
        Learning rate.
    Delta
        Variance of the label noise.
    trains_second_layer
        Whether the second layer is trained too.
    is_spherical
        Whether rows are brought back to the sphere after each step.
    start
        Where the student begins.
    """
    gamma = number("gamma", above=0.0)(gamma)
    Delta = number("Delta", low=0.0)(Delta)
    problem = Problem(PhaseRetrieval(), Student(p, "square"), Gaussian(d), noise=Delta, **_start(start))
    layers = Both(1.0) if trains_second_layer else First()
    return Stated(problem, SGD(gamma, layers=layers, constraint=Sphere() if is_spherical else Free()), 1.0)


def arnaboldi2024batch(
    d: int,
    p: int,
    target: AbstractTarget,
    gamma_d: Numbers,
    n_b: int,
    activation: ActivationLike = "relu",
    a: NumbersLike | str = "ones",
    Delta: NumbersLike = 0.0,
    is_spherical: bool = True,
    start: AbstractStart | None = None,
) -> Stated:
    r"""Return SGD on large fresh batches as in :cite:t:`arnaboldi2024batch`.

    .. math:: w_j \leftarrow w_j - \gamma_d\, \partial_{w_j} \frac{1}{2 n_b} \sum_{\nu=1}^{n_b}
              \Big(y^\nu - \frac1p \sum_l a_l\, \sigma(w_l \cdot z^\nu)\Big)^2

    with :math:`z \sim N(0, I_d)` and rows normalised to length one after each step. The mean over the batch makes
    :math:`\gamma = \gamma_d d / n_b`; the paper counts steps, each of which takes the time :math:`\gamma_d / p`.

    Parameters
    ----------
    d, p
        Input dimension and width.
    target
        What is learned.
    gamma_d, n_b
        Learning rate and batch size.
    activation, a
        Activation and second layer of the student.
    Delta
        Variance of the label noise.
    is_spherical
        Whether rows are brought back to the sphere after each step.
    start
        Where the student begins.
    """
    d, p, n_b = count("d")(d), count("p")(p), count("n_b")(n_b)
    gamma_d = number("gamma_d", above=0.0)(gamma_d)
    Delta = number("Delta", low=0.0)(Delta)
    student = Student(p, activation, second_layer=a)
    problem = Problem(target, student, Gaussian(d), noise=Delta, **_start(start))
    constraint = Sphere() if is_spherical else Free()
    return Stated(problem, SGD(gamma_d * d / n_b, batch_size=n_b, constraint=constraint), gamma_d / p)
