"""Random features of a data set: inputs that are far from Gaussian, with a covariance of their own."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.core.types import NumbersLike
from twolayer.problem.activations import AbstractActivation, as_activation
from twolayer.specification.fields import array, count

# Features held at once while they are computed.
PART = 2**22


@takes_these
def features(
    X: NumbersLike, n: int, activation: AbstractActivation | str = "erf", seed: int = 0
) -> Float[np.ndarray, "rows n"]:
    r"""Random features of the rows of a data set, to be used as inputs.

    .. math:: \phi_i(x) = \sigma\!\left(\frac{F_i \cdot x}{s}\right), \qquad F_i \sim N(0, I), \qquad
              s^2 = \frac{1}{\mathrm{rows}} \sum_\nu \lVert x_\nu \rVert^2

    so that the arguments have variance one on average over rows and features.

    Parameters
    ----------
    X
        Inputs as rows, (rows, d).
    n
        The number of features.
    activation
        The activation, by name or as an object.
    seed
        The seed of the directions F.

    Returns
    -------
    The features as rows, for ``tl.Samples(features, directions=...)``.
    """
    rows = np.asarray(array("X", 2)(X), dtype=np.float64)
    size = float(np.sqrt(np.mean(np.sum(rows**2, axis=1)))) if rows.size else 0.0
    if size == 0.0:
        raise InvalidInput(f"Argument `X` must have a row that is not zero, but has shape {rows.shape} and none.")
    many, sigma = count("n")(n), as_activation(activation)
    F = np.random.default_rng(count("seed", low=0)(seed)).standard_normal((rows.shape[1], many)) / size
    step = max(1, PART // many)
    with double():
        return np.concatenate(
            [np.asarray(sigma(jnp.asarray(rows[k : k + step] @ F))) for k in range(0, len(rows), step)]
        )
