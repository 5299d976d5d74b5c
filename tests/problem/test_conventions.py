"""Each paper's own loop, in its own units, against our update on the same Gaussian numbers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from twolayer.core.errors import InvalidInput
from twolayer.problem import Committee, GivenOverlaps, Hermite, SingleIndex, WarmStart
from twolayer.simulation.direct import batch_loss
from twolayer.training import Both, First, Sphere, conventions
from twolayer.training.conventions import Stated
from twolayer.training.update import Weights, update

STEPS = 50
# 50 steps of order-one numbers in float64, in two orders of operation: rounding of a few 1e-15 a step.
CLOSE = {"rtol": 0, "atol": 1e-12}


class Path(NamedTuple):
    """Overlaps and second layer after the last step, in the paper's normalisation of the second layer."""

    Q: np.ndarray
    M: np.ndarray
    a: np.ndarray


def g(x):
    return erf(x / np.sqrt(2))


def dg(x):
    return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)


def numbers(d, p, k, batch=1, seed=0):
    """Weights with rows of order one, inputs and label noise: the Gaussian numbers both loops share."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((p, d)) / np.sqrt(d)
    W_star = rng.standard_normal((k, d)) / np.sqrt(d)
    return W, W_star, rng.standard_normal((STEPS, batch, d)), rng.standard_normal((STEPS, batch))


def start_from(W, W_star):
    """The same weights as a start of ours, with the target overlaps they have."""
    return GivenOverlaps(W @ W.T, W @ W_star.T)


def ours(stated: Stated, W, W_star, z, xi) -> Path:
    """Our update with the gradient by differentiation, in our units; the stated start must be the weights' own."""
    problem, training = stated.problem, stated.training
    batch = training.samples_per_step(problem)
    assert z.shape == (STEPS, batch, problem.d)
    start = problem.draw(jax.random.key(0))
    np.testing.assert_allclose(start.Q, W @ W.T, **CLOSE)
    np.testing.assert_allclose(start.M, W @ W_star.T, **CLOSE)
    np.testing.assert_allclose(start.P, W_star @ W_star.T, **CLOSE)
    lengths = jnp.asarray(np.linalg.norm(W, axis=1))

    @jax.jit
    def step(weights, z, xi):
        y = problem.target(z @ W_star.T) + jnp.sqrt(problem.noise) * xi
        gradient = jax.grad(batch_loss, argnums=(1, 2))(problem, weights.W, weights.a, z, y)
        return update(problem, training, weights, lengths, gradient)

    weights = Weights(jnp.asarray(W), jnp.zeros((problem.p, 0)), start.a)
    for index in range(STEPS):
        weights = step(weights, jnp.asarray(z[index]), jnp.asarray(xi[index]))
    W = np.asarray(weights.W)
    return Path(W @ W.T, W @ W_star.T, np.asarray(weights.a))


def our_time(stated: Stated) -> float:
    return float(stated.training.clock(stated.problem).time(STEPS))


def agree(first: Path, second: Path, start: np.ndarray) -> None:
    for name in Path._fields:
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), err_msg=name, **CLOSE)
    assert np.abs(first.Q - start @ start.T).max() > 1e-3  # the weights moved, so that agreement means something


def test_saad_and_solla():
    N, K, M, eta = 13, 3, 2, 0.7
    W, W_star, z, xi = numbers(N, K, M)
    stated = conventions.saad1995(N, K, M, eta, T=W_star @ W_star.T, start=start_from(W, W_star))

    J, B = W.copy(), W_star
    for (x,) in z:
        delta = dg(J @ x) * (g(B @ x).sum() - g(J @ x).sum())
        J = J + (eta / N) * delta[:, None] * x
    agree(Path(J @ J.T, J @ B.T, np.full(K, float(K))), ours(stated, W, W_star, z, xi), W)

    alpha = STEPS / N
    assert our_time(stated) == pytest.approx(stated.time_unit * alpha, rel=1e-14)
    assert stated.problem.noise == 0.0 and isinstance(stated.training.layers, First)


@pytest.mark.parametrize("eta_v", [None, 0.0, 0.23])
def test_goldt(eta_v):
    N, K, M, eta, sigma = 11, 3, 2, 0.6, 0.3
    rng = np.random.default_rng(5)
    v, v_star = rng.normal(size=K), rng.normal(size=M)
    W, W_star, z, xi = numbers(N, K, M, seed=1)
    stated = conventions.goldt2019(
        N, K, M, eta, sigma, v=v, v_star=v_star, eta_v=eta_v, T=W_star @ W_star.T, start=start_from(W, W_star)
    )

    rate_v = eta if eta_v is None else eta_v
    w, w_star, v_now = np.sqrt(N) * W, np.sqrt(N) * W_star, v.copy()  # rows of length sqrt(N)
    for (x,), (zeta,) in zip(z, xi, strict=True):
        lam, lam_star = w @ x / np.sqrt(N), w_star @ x / np.sqrt(N)
        Delta = v_now @ g(lam) - (v_star @ g(lam_star) + sigma * zeta)
        w, v_now = (
            w - eta / np.sqrt(N) * (v_now * dg(lam) * Delta)[:, None] * x,
            v_now - rate_v / N * g(lam) * Delta,
        )
    agree(Path(w @ w.T / N, w @ w_star.T / N, K * v_now), ours(stated, W, W_star, z, xi), W)
    assert our_time(stated) == pytest.approx(stated.time_unit * STEPS / N, rel=1e-14)
    assert isinstance(stated.training.layers, First if eta_v == 0.0 else Both)


@pytest.mark.parametrize("convention", [conventions.veiga2022, conventions.arnaboldi2023])
def test_inputs_of_variance_one_over_d(convention):
    d, p, k, gamma, Delta = 12, 4, 2, 1.7, 0.2
    a, a_star = np.array([1.0, -0.5, 2.0, 0.3]), np.array([0.7, -1.1])
    W, W_star, z, xi = numbers(d, p, k, seed=2)
    target = Committee(k, "erf", P=W_star @ W_star.T, second_layer=a_star)
    stated = convention(d, p, target, gamma, a=a, Delta=Delta, start=start_from(W, W_star))

    w, w_star = np.sqrt(d) * W, np.sqrt(d) * W_star
    for (number,), (noise,) in zip(z, xi, strict=True):
        x = number / np.sqrt(d)
        y = a_star @ g(w_star @ x) / k + np.sqrt(Delta) * noise
        E = y - a @ g(w @ x) / p
        w = w + gamma * (a * dg(w @ x) * E / p)[:, None] * x
    agree(Path(w @ w.T / d, w @ w_star.T / d, a), ours(stated, W, W_star, z, xi), W)
    assert our_time(stated) == pytest.approx(stated.time_unit * gamma * STEPS / (p * d), rel=1e-14)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("spherical", [False, True])
def test_phase_retrieval(both, spherical):
    d, p, gamma, Delta = 14, 3, 0.11, 0.05
    W, W_star, z, xi = numbers(d, p, 1, seed=3)
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    W_star /= np.linalg.norm(W_star)
    stated = conventions.arnaboldi2023escaping(
        d, p, gamma, Delta, trains_second_layer=both, is_spherical=spherical, start=start_from(W, W_star)
    )

    w, w_star, a = np.sqrt(d) * W, np.sqrt(d) * W_star[0], np.ones(p)
    for (number,), (noise,) in zip(z, xi, strict=True):
        x = number / np.sqrt(d)
        lam = w @ x
        E = (w_star @ x) ** 2 + np.sqrt(Delta) * noise - a @ lam**2 / p
        w = w + gamma * (2 * a * lam * E / p)[:, None] * x
        if spherical:
            w *= np.sqrt(d) / np.linalg.norm(w, axis=1, keepdims=True)
        a = a + both * (gamma / d) * lam**2 * E / p
    agree(Path(w @ w.T / d, (w @ w_star / d)[:, None], a), ours(stated, W, W_star, z, xi), W)
    assert our_time(stated) == pytest.approx(stated.time_unit * gamma * STEPS / (p * d), rel=1e-14)
    if both:
        assert stated.training.layer_ratio == 1.0


@pytest.mark.parametrize("spherical", [False, True])
def test_batches(spherical):
    d, p, n_b, gamma_d, Delta = 9, 2, 6, 0.8, 0.1
    W, W_star, z, xi = numbers(d, p, 1, batch=n_b, seed=4)
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    W_star /= np.linalg.norm(W_star)
    a = np.array([1.0, -2.0])
    stated = conventions.arnaboldi2024batch(
        d, p, Hermite({2: 0.5}), gamma_d, n_b, "erf", a, Delta, spherical, start=start_from(W, W_star)
    )

    w = W.copy()
    for batch, noise in zip(z, xi, strict=True):
        lam = batch @ w.T
        y = 0.5 * ((batch @ W_star[0]) ** 2 - 1) + np.sqrt(Delta) * noise
        E = y - g(lam) @ a / p
        gradient = -((dg(lam) * a / p * E[:, None]).T @ batch) / n_b  # of the loss averaged over the batch
        w = w - gamma_d * gradient
        if spherical:
            w /= np.linalg.norm(w, axis=1, keepdims=True)
    agree(Path(w @ w.T, w @ W_star.T, a), ours(stated, W, W_star, z, xi), W)
    assert our_time(stated) == pytest.approx(stated.time_unit * STEPS, rel=1e-14)
    assert stated.training.learning_rate == pytest.approx(gamma_d * d / n_b, rel=1e-15)
    assert isinstance(stated.training.constraint, Sphere) == spherical


@pytest.mark.parametrize(
    "build, field",
    [
        (lambda: conventions.saad1995(0, 2, 2, 0.1), "N"),
        (lambda: conventions.saad1995(10, -1, 2, 0.1), "K"),
        (lambda: conventions.saad1995(10, 2, True, 0.1), "M"),
        (lambda: conventions.saad1995(10, 2, 2, 0.0), "eta"),
        (lambda: conventions.saad1995(10, 2, 2, 0.1, T=[[1.0]]), "P"),
        (lambda: conventions.saad1995(10, 2, 2, 0.1, T=[1.0]), "T"),
        (lambda: conventions.saad1995(2, 2, 2, 0.1), "d"),
        (lambda: conventions.goldt2019(10, 2, 2, 0.1, sigma=-0.1), "sigma"),
        (lambda: conventions.goldt2019(10, 2, 2, 0.1, v=[1.0]), "v"),
        (lambda: conventions.goldt2019(10, 2, 2, 0.1, v_star=[1.0, 2.0, 3.0]), "v_star"),
        (lambda: conventions.goldt2019(10, 2, 2, 0.1, eta_v=-1.0), "eta_v"),
        (lambda: conventions.veiga2022(10, 2, Committee(2, "erf"), float("nan")), "gamma"),
        (lambda: conventions.arnaboldi2023(10, 2, Committee(2, "erf"), 0.1, Delta=-1.0), "Delta"),
        (lambda: conventions.arnaboldi2023(10, 2, Committee(2, "erf"), 0.1, a=[1.0]), "second_layer"),
        (lambda: conventions.arnaboldi2023escaping(10, 2, -0.1), "gamma"),
        (lambda: conventions.arnaboldi2023escaping(10, 2, 0.1, start=WarmStart(2.0)), "m"),
        (lambda: conventions.arnaboldi2024batch(10, 2, SingleIndex("he3"), 0.1, 0), "n_b"),
        (lambda: conventions.arnaboldi2024batch(10, 2, SingleIndex("he3"), 0.0, 5), "gamma_d"),
    ],
)
def test_bad_values_are_refused_by_name(build, field):
    with pytest.raises(InvalidInput, match=rf"`{field}`"):
        build()
