r"""What one sample adds to (a, M, Q), in parts that do not contain the learning rates, and the covariance of these.

The parts of a sample are, in this order,

.. math:: \sigma_j \mathcal E, \qquad f_j\,\ell_u, \qquad f_j f_l \quad (j \le l), \qquad
          f_j = a_j \sigma'_j \mathcal E

with the fields of the students and of the target, or for inputs with a spectrum those that each block contributes,
:math:`\ell = \sum_l \ell_l`. The entries of a, M and Q are combinations of them, `increment_rates`.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.types import Numbers
from twolayer.problem import BlockFrame, Problem
from twolayer.training import SGD


def _factors(
    problem: Problem, a: Float[Array, " p"], fields: Float[Array, "N n"], seen: Float[Array, "N m"]
) -> tuple[Float[Array, "N linear"], Float[Array, "N pairs"]]:
    """What stands before the displacement in the parts, and before its square."""
    lam = fields[:, : problem.p]
    slope = a[None, :] * problem.student.activation.derivative(lam)
    rows, columns = np.triu_indices(problem.p)
    along = (slope[:, :, None] * seen[:, None, :]).reshape(len(lam), -1)
    linear = jnp.concatenate([problem.student.activation(lam), along], axis=1)
    return linear, slope[:, rows] * slope[:, columns]


def _displacement(problem: Problem, a: Float[Array, " p"], fields: Float[Array, "N n"]) -> Float[Array, " N"]:
    """The displacement without the label noise, which is added to it."""
    p = problem.p
    return problem.loss.displacement(problem.target(fields[:, p:]), problem.student(fields[:, :p], a))


def increment_parts(
    problem: Problem,
    a: Float[Array, " p"],
    fields: Float[Array, "N n"],
    noise: Numbers,
    seen: Float[Array, "N m"] | None = None,
) -> Float[Array, "N parts"]:
    """Return the parts of each sample; ``noise`` is that of its label, ``seen`` its fields block by block."""
    eps = (_displacement(problem, a, fields) + noise)[:, None]
    linear, square = _factors(problem, a, fields, fields if seen is None else seen)
    return jnp.concatenate([linear * eps, square * eps**2], axis=1)


def covariance_of_parts(
    problem: Problem, a: Float[Array, " p"], fields: Float[Array, "N n"], weights: Float[Array, " N"]
) -> Float[Array, "parts parts"]:
    """Return the covariance of the parts as weighted sums over points; powers of the label noise are averaged."""
    linear, square = _factors(problem, a, fields, fields)
    eps, noise = _displacement(problem, a, fields), problem.noise
    second = eps**2 + noise
    powers = (second, eps * (eps**2 + 3.0 * noise), eps**4 + 6.0 * noise * eps**2 + 3.0 * noise**2)
    once, mixed, twice = ((weights * power)[:, None] for power in powers)
    corner = linear.T @ (mixed * square)
    products = jnp.block([[linear.T @ (once * linear), corner], [corner.T, square.T @ (twice * square)]])
    mean = jnp.concatenate([(weights * eps) @ linear, (weights * second) @ square])
    return products - mean[:, None] * mean[None, :]


def increment_rates(problem: Problem, training: SGD, frame: BlockFrame | None = None) -> Float[Array, "entries parts"]:
    r"""Return the matrix that maps the parts of a sample to what it adds to (a, M, Q), divided by gamma_d / p.

    .. math::
        \mathcal A_j = \kappa\,\sigma_j \mathcal E, \qquad
        \mathcal M_{l,jr} = f_j\,\lambda^\star_{l,r}, \qquad
        \mathcal Q_{l,jm} = f_j \lambda_{l,m} + f_m \lambda_{l,j} + \frac{\gamma}{p} c_l f_l\,f_j f_m

    at leading order in d, with the eigenvalue and the share of block l, which are one without a spectrum. The order is
    a (p), M (p k, row by row), Q (pairs j <= m), the latter two block by block.
    """
    p, k = problem.p, problem.k
    blocks = 1 if frame is None else len(frame.ranks)
    left, right = np.triu_indices(p)
    n, pairs = p + k, len(left)
    linear = np.zeros((p + blocks * (p * k + pairs), p + p * blocks * n + pairs))
    linear[np.arange(p), np.arange(p)] = 1.0
    place = p + np.arange(p * blocks * n).reshape(p, blocks, n)  # of the force j times the fields of a block
    for l in range(blocks):
        linear[p + l * p * k + np.arange(p * k), place[:, l, p:].ravel()] = 1.0
        rows = p + blocks * p * k + l * pairs + np.arange(pairs)
        linear[rows, place[left, l, right]] += 1.0
        linear[rows, place[right, l, left]] += 1.0
    first = 1.0 if training.trains_first else 0.0
    sizes = jnp.concatenate([jnp.full(p, 1.0) * training.layer_ratio, jnp.full(len(linear) - p, first)])
    spread = jnp.ones(1) if frame is None else jnp.asarray(frame.eigenvalues) * jnp.asarray(frame.shares)
    rate = first * training.learning_rate / p * spread
    square = (rate[:, None, None] * jnp.eye(pairs)[None]).reshape(blocks * pairs, pairs)
    rest = jnp.zeros((len(linear) - blocks * pairs, pairs))
    return jnp.concatenate([sizes[:, None] * linear[:, :-pairs], jnp.concatenate([rest, square])], axis=1)


def increment_covariance(
    problem: Problem, training: SGD, covariance: Float[Array, "parts parts"], frame: BlockFrame | None = None
) -> Float[Array, "entries entries"]:
    r"""Return the full covariance of the increment of (a, M, Q) by one sample, divided by :math:`\gamma_d / p`.

    Parameters
    ----------
    problem, training
        The problem, and the training with its learning rates.
    covariance
        The moment of that name: the covariance of the parts; with a ``frame`` that of the parts by block.

    Returns
    -------
    Covariance of the entries in the order of `increment_rates`: cross terms included.

    Notes
    -----
    Checked against: the sample covariance of increments drawn one by one.
    """
    rates = increment_rates(problem, training, frame)
    return rates @ covariance @ rates.T
