"""Direct SGD on the rows of a data set, whose labels are those of the target's fields: its weights, rows and risk."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from twolayer.problem import (
    BlockFrame,
    Correlation,
    Flips,
    Mixture,
    Overlaps,
    Problem,
    Samples,
    Square,
    embed,
    embed_blocks,
)
from twolayer.specification.fields import replaced


def on_axes(problem: Problem) -> Problem:
    """The problem with the rows of its data set along their principal axes; other problems stay as they are."""
    if not isinstance(problem.inputs, Samples) or not problem.has_data:
        return problem
    return replaced(problem, inputs=problem.inputs.along_axes)


def embedded(
    problem: Problem, overlaps: Overlaps, frame: BlockFrame | None, key: Key[Array, ""]
) -> tuple[Float[Array, "p d"], Float[Array, "k d"]]:
    """Draw weights with the given overlaps, which are those by block where there is a frame of blocks.

    On a data set the target directions are given, along the same axes as the rows.
    """
    given = problem.inputs.directions if isinstance(problem.inputs, Samples) and problem.has_data else None
    if frame is not None:
        return embed_blocks(frame, overlaps.Q, overlaps.M, key, given)
    if given is None:
        return embed(overlaps, problem.d, key)
    whole = BlockFrame(jnp.ones(1), (jnp.linalg.cholesky(overlaps.P),), (problem.d,))
    return embed_blocks(whole, overlaps.Q[None], overlaps.M[None], key, given)


def random_rows(problem: Problem, key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "*shape d"]:
    """Rows of a data set, each drawn on its own."""
    X = _rows(problem)
    return X[jax.random.randint(key, shape, 0, X.shape[0])]


def _rows(problem: Problem) -> Float[Array, "n d"]:
    assert isinstance(problem.inputs, Samples)
    return jnp.asarray(problem.inputs.X)


def rows_refusal(problem: Problem) -> str:
    """Why the risk on the rows of a data set is not known; empty if it is."""
    if isinstance(problem.target, Mixture):
        return "on the rows of a data set it follows one target, but `problem.target` is a Mixture."
    is_additive = problem.is_noisy and not isinstance(problem.noise, Flips)
    if is_additive and not isinstance(problem.loss, Square | Correlation):
        return (
            "on a data set with additive label noise it covers the square and the correlation loss, but `problem.loss` "
            f"is {problem.loss}."
        )
    return ""


def excess_risk_on_rows(
    problem: Problem, W: Float[Array, "p d"], W_star: Float[Array, "k d"], a: Float[Array, " p"]
) -> Float[Array, ""]:
    r"""The excess risk, :math:`\frac1n \sum_\nu E_\xi\,\ell(y^\nu, s(x_\nu))` minus its floor, over all rows.

    The average over the label noise is exact: additive noise adds the floor to the square loss, and flips leave two
    labels with their probabilities.
    """
    X = _rows(problem)
    output, fields = problem.student(X @ W.T, a), X @ W_star.T

    y = problem.target(fields)
    error = jnp.mean(problem.loss.error(y, output))
    if not isinstance(problem.noise, Flips):
        return error
    flipped = jnp.mean(problem.loss.error(-y, output))
    return error + problem.noise.probability * (flipped - error) - problem.loss.floor(problem.noise)
