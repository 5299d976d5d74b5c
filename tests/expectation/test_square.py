"""The covariance of the increments of quadratic networks: exact rules, written-out polynomials, singular overlaps."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import Auto, choose, increment_covariance
from twolayer.problem import Overlaps


def covariance(problem, overlaps, engines=None) -> np.ndarray:
    chosen = Auto(engines=engines).choose(problem, ("covariance",)).variants()[0]
    return np.asarray(eqx.filter_jit(chosen.parts)(problem, overlaps, ("covariance",))["covariance"])


@pytest.mark.parametrize(("p", "k", "rank"), [(2, 1, 3), (2, 2, 4), (2, 2, 2)])
def test_every_entry_against_an_exact_rule(p, k, rank):
    """Gauss-Hermite of the order that is exact for these polynomials; also where Omega has lost half of its rank."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((p + k, rank)) / 2
    A[p:, :k] += np.eye(k)
    omega = A @ A.T
    target = tl.Committee(k, "square", P=omega[p:, p:], second_layer=rng.standard_normal(k))
    problem = tl.Problem(target, tl.Student(p, "square"), tl.Gaussian(50), noise=0.3)
    blocks = (omega[:p, :p], omega[:p, p:], omega[p:, p:], rng.standard_normal(p))
    overlaps = Overlaps(*(jnp.asarray(x) for x in blocks))
    closed, rule = covariance(problem, overlaps), covariance(problem, overlaps, "Quadrature")
    assert "closed form" in choose(problem, ("covariance",)).name
    np.testing.assert_allclose(closed, rule, atol=1e-12 * np.abs(rule).max())


def written_out(m, q, r, D, g):
    """The covariance of (M, Q) at p = k = 1 and a = 1 as polynomials: q and r are the squared lengths."""
    MM = 8 * D * m**2 + 4 * D * q * r - 192 * m**4 + 324 * m**2 * q**2 - 504 * m**2 * q * r + 324 * m**2 * r**2
    MM += 60 * q**3 * r - 72 * q**2 * r**2 + 60 * q * r**3
    MQ = 24 * D * m * q - 912 * m**3 * q + 432 * m**3 * r + 768 * m * q**3 - 624 * m * q**2 * r + 336 * m * q * r**2
    once = 144 * D * m**2 - 336 * D * q**2 + 192 * D * q * r - 2880 * m**4 + 14544 * m**2 * q**2
    once += -13536 * m**2 * q * r + 4752 * m**2 * r**2 - 7200 * q**4 + 7056 * q**3 * r - 5184 * q**2 * r**2
    MQ += g * m * (once + 2448 * q * r**3)
    QQ = 48 * D * q**2 + 320 * m**4 - 2688 * m**2 * q**2 + 1088 * m**2 * q * r + 1536 * q**4 - 384 * q**3 * r
    once = 1088 * D * m**2 * q - 1344 * D * q**3 + 256 * D * q**2 * r - 33024 * m**4 * q + 10752 * m**4 * r
    once += 77376 * m**2 * q**3 - 49536 * m**2 * q**2 * r + 16704 * m**2 * q * r**2 - 28800 * q**5 + 9024 * q**4 * r
    once += -3840 * q**3 * r**2 + 1344 * q**2 * r**3
    twice = 128 * D**2 * q**2 + 2304 * D * m**4 - 16512 * D * m**2 * q**2 + 6528 * D * m**2 * q * r + 9600 * D * q**4
    twice += -2688 * D * q**3 * r + 768 * D * q**2 * r**2 - 46080 * m**6 + 474624 * m**4 * q**2 - 336384 * m**4 * q * r
    twice += 78336 * m**4 * r**2 - 593280 * m**2 * q**4 + 473472 * m**2 * q**3 * r - 254592 * m**2 * q**2 * r**2
    twice += 79488 * m**2 * q * r**3 + 162720 * q**6 - 57600 * q**5 * r + 28224 * q**4 * r**2 - 13824 * q**3 * r**3
    QQ += 128 * q**2 * r**2 + g * once + g**2 * (twice + 4896 * q**2 * r**4)
    return np.array([[MM, MQ], [MQ, QQ]])


def test_phase_retrieval_with_one_neuron_is_written_out():
    """At random lengths, and on the sphere the variance of the projected increment, whose formula is short."""
    for m, q, r, D, g in [(0.4, 1.3, 0.9, 0.3, 0.05), (-0.2, 0.7, 1.1, 0.0, 0.3), (0.6, 1.0, 1.0, 0.2, 0.06)]:
        start = tl.GivenOverlaps([[q]], [[m]], [[r]])
        problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), start=start, noise=D)
        overlaps = Overlaps(*(jnp.asarray(x) for x in ([[q]], [[m]], [[r]], [1.0])))
        raw = jnp.asarray(covariance(problem, overlaps))
        found = np.asarray(increment_covariance(problem, tl.SGD(g), raw))[1:, 1:]
        np.testing.assert_allclose(found, written_out(m, q, r, D, g), rtol=1e-12)
    s = m**2
    projected = 4 * D * (1 - s) + 16 * (1 - s) ** 2 * (3 + 5 * s) - g * s * (1 - s) * (128 * D + 2688 * (1 - s))
    projected += g**2 * s * (32 * D**2 + D * (1920 - 2496 * s + 576 * s**2) + (1 - s) ** 2 * (31104 - 11520 * s))
    along = np.array([1.0, -m / 2])
    assert along @ found @ along == pytest.approx(projected, rel=1e-11)
