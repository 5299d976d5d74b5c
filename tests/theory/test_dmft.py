"""Reused samples: against exact solutions, the batch map, direct SGD, and the equations with kernels written out."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation.qmc import T_QUANTILE, sobol
from twolayer.theory.reuse.sobol import BITS, scrambled_net, uniforms
from twolayer.theory.reuse.typical_samples import Batches, counts_of, poisson


def along(problem, training, description, steps, replicas=1, **options):
    """The result at every step."""
    clock = training.clock(problem)
    times = clock.time(np.arange(steps + 1))
    return tl.evolve(problem, training, description, until=float(times[-1]), save=times, replicas=replicas, **options)


def two_index(activation, p=2, d=300, noise=0.1, target=None, a=(1.0, -0.7, 1.2, 0.5)):
    """Units of different overlaps and output weights on a target of two directions that is neither even nor odd.

    The default target has closed averages for all students here: little to compile.
    """
    M = np.array([[0.2, 0.0], [0.0, 0.2], [-0.1, 0.0], [0.0, -0.1]])[:p]
    target = target or tl.Committee(2, "relu", second_layer=[2.0, -1.0])
    student = tl.Student(p, activation, second_layer=np.sqrt(p) * np.array(a[:p]))
    return tl.Problem(target, student, tl.Gaussian(d), start=tl.GivenOverlaps(np.eye(p), M), noise=noise)


def one_index(activation, target, d=1000, m=0.0, noise=0.0):
    start = tl.GivenOverlaps([[1.0]], [[m]])
    return tl.Problem(target, tl.Student(1, activation), tl.Gaussian(d), start=start, noise=noise)


# ------------------------------------------------------------------------------------------ linear networks, exactly


def marchenko_pastur(alpha, nodes=4000):
    """Eigenvalues of Z^T Z / d for n = alpha d > d samples, and their weights."""
    low, high = (np.sqrt(alpha) - 1) ** 2, (np.sqrt(alpha) + 1) ** 2
    angle = (np.arange(nodes) + 0.5) * np.pi / nodes
    s = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
    weight = np.sqrt((high - s) * (s - low)) / s * np.sin(angle)
    return s, weight / weight.sum()


METHODS = {
    "plain": (0.0, lambda keep, w, v, pull: (keep * w + pull(w), v)),
    "heavy ball": (0.6, lambda keep, w, v, pull: (keep * w + 0.6 * v + pull(w), 0.6 * v + pull(w))),
    "nesterov": (
        tl.Nesterov(0.6),
        lambda keep, w, v, pull: (keep * w + 0.6 * v + pull(w + 0.6 * v), 0.6 * v + pull(w + 0.6 * v)),
    ),
}


@pytest.mark.long
def test_linear_network_in_phases():
    """A rate that falls, with momentum carried over the switch: the recursion of each eigenvalue, to rounding."""
    alpha, rates, steps = 2.0, [0.3, 0.3, 0.1, 0.1, 0.1], 5
    problem = one_index("linear", tl.SingleIndex("z"), noise=0.25)
    phases = [tl.SGD(rate, reuse=tl.Reused(alpha), momentum=0.6) for rate in (0.3, 0.1)]
    training = tl.Schedule(phases, switches=[2 * 0.3 * alpha])
    result = along(problem, training, tl.DMFT(samples=2**13), steps)
    s, weight = marchenko_pastur(alpha)
    w, v, M = np.zeros_like(s), np.zeros_like(s), [0.0]
    for rate in rates:
        v = 0.6 * v + rate * s * (1.0 - w)
        w = w + v
        M.append(w @ weight)
    np.testing.assert_allclose(result.M.values[0, :, 0, 0], M, atol=1e-12)


def test_phases_share_their_set():
    first = tl.SGD(1.0, reuse=tl.Reused(1.5))
    for other in (
        tl.SGD(1.0, reuse=tl.Reused(2.0)),
        tl.SGD(1.0, reuse=tl.Reused(1.5), momentum=0.5),
        tl.SGD(1.0, reuse=tl.Reused(1.5), batch_size=50),
        tl.SGD(1.0),
    ):
        with pytest.raises(tl.InvalidInput, match="share the fixed set"):
            tl.Schedule([first, other], switches=[1.0])


@pytest.mark.long
def test_phases_on_a_fixed_set(check_mean):
    """Layers that take turns on one set, by both descriptions."""
    reused = tl.Reused(1.5)
    phases = [tl.SGD(1.0, reuse=reused), tl.SGD(0.6, reuse=reused, layers=tl.Second()), tl.SGD(0.5, reuse=reused)]
    problem = two_index("tanh", d=200)
    training = tl.Schedule(phases, switches=[2 * 1.0 * 1.5 / 2, (2 * 1.0 + 0.6) * 1.5 / 2])
    theory = along(problem, training, tl.DMFT(samples=2**15), 5)
    runs = along(problem, training, tl.DirectSGD(), 5, replicas=40)
    for name in ("M", "Q", "a", "training_risk"):
        check_mean(runs[name].values[:, 1:], theory[name].values[0, 1:], name)
    moved = np.abs(np.diff(theory.a.values[0], axis=0)).max(axis=1)
    assert np.array_equal(moved > 1e-3, [False, False, True, False, False])


@pytest.mark.parametrize("name", METHODS)
def test_linear_network(name, decay=0.3):
    """Every eigenvalue of the data follows a recursion of its own: M, Q, both risks, C and R to rounding."""
    momentum, rule = METHODS[name]
    alpha, rate, noise, steps = 2.0, 0.3, 0.25, 7
    problem = one_index("linear", tl.SingleIndex("z"), m=0.3, noise=noise)
    training = tl.SGD(rate, reuse=tl.Reused(alpha), momentum=momentum, weight_decay=decay)
    result = along(problem, training, tl.DMFT(samples=2**13), steps)
    s, weight = marchenko_pastur(alpha)
    # Coefficients of the weights on their start, the target and the noise; the start has overlap 0.3 with the target.
    w = np.stack([np.ones_like(s), np.zeros_like(s), np.zeros_like(s)])
    force = np.stack([np.zeros_like(s), s, np.sqrt(s)])
    keep, v, path = 1.0 - rate * alpha * decay, np.zeros_like(w), [w]
    for _ in range(steps):
        w, v = rule(keep, w, v, lambda w: rate * (force - s * w))
        path.append(w)
    path = np.stack(path)  # (steps, 3, eigenvalues)
    start = np.array([[1.0, 0.3, 0.0], [0.3, 1.0, 0.0], [0.0, 0.0, noise]])
    C = np.einsum("tae,uve,av,e->tu", path, path, start, weight)
    np.testing.assert_allclose(result.C.values[0, :, :, 0, 0], C, atol=1e-12)
    np.testing.assert_allclose(result.Q.values[0, :, 0, 0], np.diagonal(C), atol=1e-12)
    M = np.einsum("tae,a,e->t", path, start[1], weight)
    np.testing.assert_allclose(result.M.values[0, :, 0, 0], M, atol=1e-12)
    np.testing.assert_allclose(result.risk.values[0], 0.5 * (np.diagonal(C) - 2 * M + 1 + noise), atol=1e-12)
    rest = np.sqrt(s) * path - np.stack([np.zeros_like(s), np.sqrt(s), np.ones_like(s)])
    inside = np.einsum("tae,tve,av,e->t", rest, rest, start, weight)
    np.testing.assert_allclose(
        result.training_risk.values[0], 0.5 * (inside / alpha + (1 - 1 / alpha) * noise), atol=1e-12
    )
    if name == "plain":
        gap = np.arange(steps + 1)[:, None] - np.arange(steps + 1)[None, :] - 1
        powers = np.where(gap[..., None] >= 0, (keep - rate * s) ** np.maximum(gap, 0)[..., None], 0.0)
        np.testing.assert_allclose(result.R.values[0, :, :, 0, 0], -rate * powers @ weight, atol=1e-9)


# ------------------------------------------------------------------------------------------------- the batch map


@pytest.mark.long
@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_fresh_batches_are_the_batch_map(activation):
    problem = two_index(activation, target=tl.Committee(2, "erf"))
    training = tl.SGD(0.8, batch_size=450, layers=tl.Both(0.7), weight_decay=0.2, momentum=0.4)
    ours, theirs = along(problem, training, tl.DMFT(samples=2**16), 4), along(problem, training, tl.BatchMap(), 4)
    error = ours.overlap_error.values[0]
    assert error[-1] < 2e-2
    for name in ("Q", "M", "a"):
        gap = np.abs(ours[name].values - theirs[name].values)[0].reshape(5, -1).max(axis=1)
        assert np.all(gap <= error + 1e-12), (name, gap, error)
    assert np.all(np.abs(ours.risk - theirs.risk).values[0] <= ours.risk_error.values[0] + theirs.risk_error.values[0])


@pytest.mark.slow
def test_first_step_does_not_know_of_reuse():
    problem = two_index("tanh")
    fresh = along(problem, tl.SGD(0.8, batch_size=600), tl.DMFT(samples=2**13), 2)
    reused = along(problem, tl.SGD(0.8, reuse=tl.Reused(2.0)), tl.DMFT(samples=2**13), 2)
    for name in ("Q", "M"):
        np.testing.assert_allclose(fresh[name].values[:, 1], reused[name].values[:, 1], atol=1e-10)
    assert np.abs(fresh.Q.values - reused.Q.values)[:, 2].max() > 0.01


@pytest.mark.long
def test_many_samples_are_the_population():
    """At alpha = 1000 and gamma alpha fixed, reuse changes overlaps by order 1/alpha."""
    problem = two_index("erf", target=tl.Committee(2, "erf"))
    alpha = 1000.0
    reused = tl.SGD(1.0 / alpha, reuse=tl.Reused(alpha))
    population = tl.SGD(1.0 / alpha, batch_size=int(alpha) * problem.d)
    ours = along(problem, reused, tl.DMFT(samples=2**15), 4)
    theirs = along(problem, population, tl.BatchMap(), 4)
    assert np.abs(ours.M.values - theirs.M.values).max() < 2e-3
    assert np.abs(ours.Q.values - theirs.Q.values).max() < 2e-3


# ------------------------------------------------------------------------- the equations with kernels, written out


def with_kernels(sigma, slope, f, m, alpha, rate, steps, points, redraw=False, kernel=None, seed=0):
    """The sample process of one unit as in the literature: kernels C and R, responses by an inverse covariance.

    ``redraw`` draws the Gaussian process anew at each time; ``kernel`` is the second derivative of the loss without its
    singular part, from which the response is then taken path by path.
    """
    rng = np.random.default_rng(seed)
    C, R, M = np.zeros((steps + 1, steps + 1)), np.zeros((steps + 1, steps + 1)), np.zeros(steps + 1)
    C[0, 0], M[0] = 1.0, m
    base = rng.standard_normal((steps + 2, points))
    g, J = np.zeros((steps, points)), np.zeros((steps, steps, points))
    Gamma, star = np.zeros((steps, steps)), np.zeros(steps)
    h_all = np.zeros((steps, points))
    for t in range(steps):
        cov = np.block([[np.ones((1, 1)), M[None, : t + 1]], [M[: t + 1, None], C[: t + 1, : t + 1]]])
        if redraw:
            base = np.concatenate([base[:1], rng.standard_normal((steps + 1, points))])
        normal = np.linalg.cholesky(cov) @ base[: t + 2]
        h_star, theta = normal[0], normal[1:]
        y = f(h_star)
        h = theta[t] + R[t, :t] @ g[:t]
        h_all[t], g[t] = h, (sigma(h) - y) * slope(h)
        both = g[t] @ normal.T / points
        if kernel is None:
            solved = np.linalg.solve(cov, both)
            star[t], Gamma[t, : t + 1] = solved[0], solved[1:]
        else:
            bend = kernel(h, y)
            for s in range(t + 1):
                J[t, s] = bend * ((s == t) + np.einsum("r,rn->n", R[t, s:t], J[s:t, s]))
                Gamma[t, s] = J[t, s].mean()
            star[t] = both[0] - Gamma[t, : t + 1] @ M[: t + 1]
        Cg = g[t] @ g[: t + 1].T / points
        for s in range(t + 1):
            R[t + 1, s] = R[t, s] - rate * ((s == t) + alpha * Gamma[t, s + 1 : t + 1] @ R[s + 1 : t + 1, s])
        M[t + 1] = M[t] - rate * alpha * (g[t] @ h_star) / points
        for s in range(t + 1):
            C[t + 1, s] = C[s, t + 1] = C[t, s] - rate * alpha * (g[t] @ h_all[s]) / points
        moved = alpha * (Cg @ R[t + 1, : t + 1] + Gamma[t, : t + 1] @ C[: t + 1, t + 1] + star[t] * M[t + 1])
        C[t + 1, t + 1] = C[t, t + 1] - rate * moved
    return M, C, R


def relu(x):
    return np.maximum(x, 0.0)


def step_function(x):
    return (x > 0.0) * 1.0


def target(x):
    return 0.3 + np.tanh(x)


def test_kernels():
    """One relu unit, four steps: M, C and R of the two formulations; two known mistakes are told apart."""
    problem = one_index("relu", tl.SingleIndex("0.3 + tanh(z)"), m=0.35)
    result = along(problem, tl.SGD(1.0, reuse=tl.Reused(1.0)), tl.DMFT(samples=2**18), 4)
    written = [with_kernels(relu, step_function, target, 0.35, 1.0, 1.0, 4, 200_000, seed=seed) for seed in range(4)]
    ours = [result.M.values[0, :, 0, 0], result.C.values[0, :, :, 0, 0], result.R.values[0, :, :, 0, 0]]
    for name, mine, theirs in zip(("M", "C", "R"), ours, zip(*written, strict=True), strict=True):
        error = np.std(theirs, axis=0, ddof=1) / 2 + 3e-4
        assert np.all(np.abs(mine - np.mean(theirs, axis=0)) < 5 * error), name

    def bend(h, y):  # without the delta function at the kink
        return step_function(h) ** 2

    _, C, _ = with_kernels(relu, step_function, target, 0.35, 1.0, 1.0, 3, 200_000, kernel=bend)
    assert np.all(np.abs(np.diagonal(C)[1:] - np.diagonal(ours[1])[1:4]) > 0.02)
    M, C, _ = with_kernels(relu, step_function, target, 0.35, 1.0, 1.0, 2, 200_000, redraw=True)
    assert abs(M[2] - ours[0][2]) > 5e-3 and abs(C[2, 0] - ours[1][2, 0]) > 0.02


# ------------------------------------------------------------------------------------------------------ direct SGD

SETTINGS = {
    "relu, both layers, decay": ("relu", 2, tl.SGD(0.8, reuse=tl.Reused(0.5), layers=tl.Both(1.0), weight_decay=0.2)),
    "tanh, mini-batches, nesterov": (
        "tanh",
        2,
        tl.SGD(0.8, batch_size=150, reuse=tl.Reused(1.5), momentum=tl.Nesterov(0.6)),
    ),
}
MORE = {
    "erf, sphere, p = 4": ("erf", 4, tl.SGD(1.5, reuse=tl.Reused(1.5), constraint=tl.Sphere())),
    "relu, p = 1": ("relu", 1, tl.SGD(0.6, reuse=tl.Reused(3.0))),
    "relu, p = 4, heavy ball": ("relu", 4, tl.SGD(0.6, reuse=tl.Reused(3.0), momentum=0.6)),
    "erf, p = 1": ("erf", 1, tl.SGD(0.6, reuse=tl.Reused(0.5))),
    "tanh, p = 2": ("tanh", 2, tl.SGD(0.6, reuse=tl.Reused(3.0))),
    "tanh, p = 2, second layer": ("tanh", 2, tl.SGD(0.6, reuse=tl.Reused(3.0), layers=tl.Second(2.0))),
    "relu, mini-batches": ("relu", 2, tl.SGD(0.8, batch_size=150, reuse=tl.Reused(1.0))),
    "relu, repeated": ("relu", 2, tl.SGD(0.8, batch_size=300, reuse=tl.Repeated(3), momentum=0.5)),
    "erf, look-ahead": ("erf", 2, tl.SGD(0.8, batch_size=300, reuse=tl.LookAhead(2.0))),
    "erf, sphere, projected gradients": (
        "erf",
        2,
        tl.SGD(3.0, reuse=tl.Reused(1.5), constraint=tl.Sphere(riemannian=True)),
    ),
    "erf, sphere, heavy ball": (
        "erf",
        2,
        tl.SGD(0.8, reuse=tl.Reused(1.5), constraint=tl.Sphere(), momentum=0.5, layers=tl.Both(0.5)),
    ),
}


def agrees(check_mean, activation, p, training, d, replicas, steps, target=None):
    problem = two_index(activation, p, d=d, target=target)
    theory = along(problem, training, tl.DMFT(samples=2**17), steps)
    runs = along(problem, training, tl.DirectSGD(), steps, replicas)
    names = ["M", "Q", "a", "risk"] + (["training_risk"] if training.has_fixed_set else [])
    for name in names:
        check_mean(runs[name].values[:, 1:], theory[name].values[0, 1:], name)


@pytest.mark.parametrize(
    "name", [pytest.param("relu, both layers, decay", marks=pytest.mark.long), "tanh, mini-batches, nesterov"]
)
def test_direct(name, check_mean):
    """Single runs scatter, and their mean is shifted by 1/d: 48 runs at d = 300 see both only as noise."""
    agrees(check_mean, *SETTINGS[name], d=300, replicas=48, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [500, pytest.param(400, marks=pytest.mark.long)])
def test_epochs(batch, check_mean):
    """Two epochs and a step at d = 1000: batches that divide the set of 1500 samples, or that leave 300 of them over.

    Draws with replacement would be far away.
    """
    problem, steps = two_index("erf", d=1000), 2 * (1500 // batch) + 1
    trainings = [tl.SGD(1.5, batch_size=batch, reuse=tl.Reused(1.5, replacement=other)) for other in (False, True)]
    theory, other = (along(problem, training, tl.DMFT(samples=2**17), steps) for training in trainings)
    runs = along(problem, trainings[0], tl.DirectSGD(), steps, replicas=32, seed=1)
    for name in ("M", "Q", "risk", "training_risk"):
        check_mean(runs[name].values[:, 1:], theory[name].values[0, 1:], name)
    risks = runs.training_risk.values[:, -1]
    error = risks.std(ddof=1) / np.sqrt(len(risks))
    assert abs(risks.mean() - other.training_risk.values[0, -1]) > 20 * error


@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_direct_elsewhere(name, check_mean):
    target = tl.MultiIndex("tanh(z1 + z2) + 0.5*z1*z2", k=2)
    agrees(check_mean, *MORE[name], d=300, replicas=64, steps=5, target=target)


class Clipped(tl.AbstractMethod):
    """Heavy ball whose velocity is at most one long: not linear, but without a preferred direction."""

    def advance(self, W, V, move):
        V = 0.5 * V + move
        V = V / jnp.maximum(1.0, 2.0 * jnp.linalg.norm(V, axis=1))[:, None]
        return W + V, V


class Signs(tl.AbstractMethod):
    """Steps of fixed length along each coordinate."""

    def advance(self, W, V, move):
        return W + 0.01 * jnp.sign(move), V


@pytest.mark.long
def test_any_method_that_turns_with_the_inputs(check_mean):
    training = tl.SGD(1.5, reuse=tl.Reused(1.5), momentum=Clipped())
    agrees(check_mean, "tanh", 2, training, d=300, replicas=48, steps=4)
    problem = two_index("tanh")
    plain = along(problem, tl.SGD(1.5, reuse=tl.Reused(1.5), momentum=0.5), tl.DMFT(samples=2**13), 2)
    clipped = along(problem, training, tl.DMFT(samples=2**13), 2)
    assert np.abs(plain.Q.values - clipped.Q.values).max() > 0.1


def test_a_method_that_knows_coordinates_is_refused():
    problem = two_index("tanh")
    answer = tl.DMFT().applies(problem, tl.SGD(1.5, reuse=tl.Reused(1.5), momentum=Signs()))
    assert not answer.ok and "rotations" in answer.statement
    assert tl.DMFT().applies(problem, tl.SGD(1.5, reuse=tl.Reused(1.5), momentum=Clipped())).ok


# ------------------------------------------------------------------------------------------ inputs with a spectrum

BLOCKS = [(2.0, 0.3), (0.5, 0.7)]


def test_a_linear_network_on_two_blocks():
    """Three steps by the moments of a Wishart matrix with a covariance, to rounding.

    With S the sum of z z^T over n = alpha d samples, to leading order E[S] = n C, E[S^2] = n^2 C^2 + n tr(C) C, and
    E[S^3] = n^3 C^3 + n^2 (2 tr(C) C^2 + tr(C^2) C) + n tr(C)^2 C.
    """
    c, share = np.array(BLOCKS).T
    P, M, Q = np.array([0.4, 0.6]), np.array([0.2, -0.1]), np.array([0.3, 0.8])
    alpha, rate, noise = 1.5, 0.4, 0.2
    start = tl.GivenOverlaps(Q[:, None, None], M[:, None, None], P[:, None, None])
    inputs = tl.Gaussian(1000, spectrum=BLOCKS)
    problem = tl.Problem(tl.SingleIndex("z"), tl.Student(1, "linear"), inputs, start=start, noise=noise)
    training = tl.SGD(rate, reuse=tl.Reused(alpha))
    found = along(problem, training, tl.DMFT(samples=2**13), 3)
    t1, t2 = c @ share, c**2 @ share
    S = [c**0, alpha * c, alpha**2 * c**2 + alpha * t1 * c]
    S.append(alpha**3 * c**3 + alpha**2 * (2 * t1 * c**2 + t2 * c) + alpha * t1**2 * c)
    # w_t = w* + (1 - rate S)^t (w_0 - w*), up to the noise of the labels
    powers = [[1], [1, -1], [1, -2, 1], [1, -3, 3, -1]]
    for t, signs in enumerate(powers):
        keep = sum(x * rate**n * S[n] for n, x in enumerate(signs))
        np.testing.assert_allclose(found.M_block.values[0, t, :, 0, 0], P + keep * (M - P), atol=1e-10)
    moved, off = rate * alpha * c, Q - 2 * M + P
    first = Q + 2 * moved * (M - Q) + moved**2 * off + rate**2 * alpha * c * share * (c @ off + noise)
    np.testing.assert_allclose(found.Q_block.values[0, 1, :, 0, 0], first, atol=1e-10)
    np.testing.assert_allclose(found.Q, found.Q_block.sum("block"), atol=1e-12)
    np.testing.assert_allclose(found.risk[0, 0], 0.5 * (c @ off + noise), atol=1e-12)
    np.testing.assert_allclose(found.C.values[0, 1, 1, 0, 0], c @ found.Q_block.values[0, 1, :, 0, 0], atol=1e-12)
    # The fields answer to the last gradient with minus the rate times tr(C)/d.
    np.testing.assert_allclose(found.R.values[0, 1, 0, 0, 0], -rate * t1, atol=1e-9)


@pytest.mark.slow
def test_one_block_is_another_scale():
    """Inputs of variance c: weights that are root c times larger, and a rate that is c times larger."""
    c, Q, M = 2.0, np.array([[1.0, 0.2], [0.2, 0.8]]), np.array([[0.3, 0.1], [-0.1, 0.4]])
    found = []
    for inputs, scale, rate in ((tl.Gaussian(500, spectrum=[(c, 1.0)]), 1.0, 0.4), (tl.Gaussian(500), c, 0.4 * c)):
        target = tl.Committee(2, "erf", P=scale * np.eye(2))
        start = tl.GivenOverlaps(scale * Q, scale * M)
        problem = tl.Problem(target, tl.Student(2, "erf"), inputs, start=start, noise=0.1)
        training = tl.SGD(rate, batch_size=250, reuse=tl.Reused(1.5), momentum=0.5)
        result = along(problem, training, tl.DMFT(samples=2**15), 4)
        found.append([x[0] for x in (result.Q / scale, result.M / scale, result.risk, result.training_risk)])
        error = result.overlap_error.values[0] + result.risk_error.values[0] + result.training_risk_error.values[0]
    for one, other in zip(*found, strict=True):
        gap = np.abs(one.values - other.values).reshape(5, -1).max(axis=1)
        assert np.all(gap <= 2 * error + 1e-12) and error[-1] < 0.05


SPECTRA = {
    "relu, both layers, leading": ("relu", BLOCKS, "leading", tl.SGD(0.6, reuse=tl.Reused(1.5), layers=tl.Both())),
    "erf, mini-batches, momentum, tail": (
        "erf",
        [(3.0, 0.1), (1.2, 0.3), (0.6, 0.3), (0.52, 0.3)],
        "tail",
        tl.SGD(0.8, batch_size=150, reuse=tl.Reused(1.5), momentum=0.6),
    ),
    "erf, sphere, split": (
        "erf",
        BLOCKS,
        [0.5, 0.5],
        tl.SGD(1.0, batch_size=150, reuse=tl.Reused(1.5, replacement=False), constraint=tl.Sphere()),
    ),
}
QUICK_SPECTRUM = "erf, mini-batches, momentum, tail"


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x == QUICK_SPECTRUM else pytest.mark.long) for x in SPECTRA]
)
def test_direct_on_blocks(name, check_mean):
    """Training on the weights at d = 300; larger d and more settings: benchmarks/dmft_spectrum.py."""
    activation, spectrum, teacher, training = SPECTRA[name]
    plain = two_index(activation)
    inputs = tl.Gaussian(300, spectrum=spectrum, teacher=teacher)
    problem = tl.Problem(plain.target, plain.student, inputs, start=plain.start, noise=0.1)
    theory = along(problem, training, tl.DMFT(samples=2**16), 4)
    runs = along(problem, training, tl.DirectSGD(), 4, 40)
    for entry in ("M_block", "Q_block", "a", "risk", "training_risk"):
        check_mean(runs[entry].values[:, 1:], theory[entry].values[0, 1:], entry)
    other = along(plain, training, tl.DMFT(samples=2**14), 4)  # without the spectrum
    error = runs.training_risk.values[:, -1].std() / 40**0.5
    assert abs(runs.training_risk.values[:, -1].mean() - other.training_risk.values[0, -1]) > 5 * error


# -------------------------------------------------------------------------------------------------------- the story


@pytest.mark.slow
def test_reuse_learns_what_fresh_batches_do_not():
    """A target of information exponent three: nothing from fresh batches, -0.2594(5) (theory.md 10.4) from reuse."""
    problem = one_index("erf", tl.Hermite({(3,): 6**-0.5}))
    reused = along(problem, tl.SGD(1.0, reuse=tl.Reused(3.0)), tl.DMFT(samples=2**19), 2)
    fresh = along(problem, tl.SGD(1.0, batch_size=3000), tl.DMFT(samples=2**19), 2)
    error = reused.overlap_error.values[0, 2] / T_QUANTILE
    assert error < 1e-3
    assert abs(reused.M.values[0, 2, 0, 0] + 0.2594) < 5 * np.hypot(error, 5e-4)
    assert abs(fresh.M.values[0, 2, 0, 0]) < fresh.overlap_error.values[0, 2] < 5e-3


# ------------------------------------------------------------------------------------- errors, edges and refusals


@pytest.mark.long
def test_errors_are_honest():
    """Coarse results against a fine one: the spread over ten seeds is that of the stated standard error."""
    problem, training = two_index("relu"), tl.SGD(0.8, reuse=tl.Reused(1.5))
    fine = along(problem, training, tl.DMFT(samples=2**19, seed=99), 4)
    scores = []
    for seed in range(10):
        coarse = along(problem, training, tl.DMFT(samples=2**12, seed=seed), 4)
        gap = np.abs(coarse.M.values - fine.M.values)[0].reshape(5, -1).max(axis=1)
        assert np.all(gap <= coarse.overlap_error.values[0] + fine.overlap_error.values[0])
        risk = np.abs(coarse.training_risk - fine.training_risk).values[0, 1:]
        scores.append(T_QUANTILE * risk / coarse.training_risk_error.values[0, 1:])
    assert 0.3 < np.sqrt(np.mean(np.square(scores))) < 2.0


@pytest.mark.slow
def test_singular_overlaps():
    """Two neurons that are one: they stay together, and do what one neuron does. Nothing to learn: nothing moves."""
    target = tl.Committee(1, "relu")
    start = tl.GivenOverlaps(np.ones((2, 2)), np.full((2, 1), 0.3))
    twice = tl.Problem(target, tl.Student(2, "relu"), tl.Gaussian(1000), start=start, noise=0.1)
    once = one_index("relu", target, m=0.3, noise=0.1)
    # The gradient of each of two neurons is half of that of one.
    both = along(twice, tl.SGD(1.6, reuse=tl.Reused(1.5)), tl.DMFT(samples=2**13), 4)
    single = along(once, tl.SGD(0.8, reuse=tl.Reused(1.5)), tl.DMFT(samples=2**13), 4)
    gap = np.abs(both.Q.values[0] - single.Q.values[0]).max(axis=(1, 2))
    assert np.all(gap <= both.overlap_error.values[0] + single.overlap_error.values[0]) and gap[-1] < 0.02
    np.testing.assert_allclose(both.Q.values[0, :, 0, 0], both.Q.values[0, :, 0, 1], atol=1e-7)
    known = tl.Problem(
        tl.Committee(2, "relu"), tl.Student(2, "relu"), tl.Gaussian(100), start=tl.GivenOverlaps(np.eye(2), np.eye(2))
    )
    still = along(known, tl.SGD(1.0, reuse=tl.Reused(2.0)), tl.DMFT(samples=2**12), 3)
    np.testing.assert_allclose(still.Q.values[0, -1], np.eye(2), atol=1e-12)
    assert np.all(still.training_risk.values < 1e-20)


@pytest.mark.long
def test_general_target_overlaps():
    """A target with correlated directions is another target with orthonormal ones."""
    P = np.array([[1.0, 0.6], [0.6, 1.0]])
    Q, M = np.eye(2), np.array([[0.3, 0.1], [0.0, 0.4]])
    factor = np.linalg.cholesky(P)
    plain = tl.MultiIndex("z1**2 + 0.6*z1 + 0.8*z2", k=2)
    training, description = tl.SGD(0.05, reuse=tl.Reused(1.5)), tl.DMFT(samples=2**13)
    student, inputs = tl.Student(2, "square"), tl.Gaussian(100)
    correlated = tl.Problem(tl.MultiIndex("z1**2 + z2", k=2), student, inputs, start=tl.GivenOverlaps(Q, M, P))
    turned = tl.Problem(plain, student, inputs, start=tl.GivenOverlaps(Q, M @ np.linalg.inv(factor).T))
    one, other = (along(each, training, description, 3) for each in (correlated, turned))
    np.testing.assert_allclose(one.Q.values, other.Q.values, atol=1e-9)
    np.testing.assert_allclose(one.M.values, other.M.values @ factor.T, atol=1e-9)


@pytest.mark.long
def test_random_starts_are_followed_one_by_one():
    problem = tl.Problem(tl.SingleIndex("z"), tl.Student(1, "linear"), tl.Gaussian(50))
    training = tl.SGD(0.8, reuse=tl.Reused(2.0))
    result = along(problem, training, tl.DMFT(samples=2**12), 2, replicas=3)
    assert len(np.unique(result.M.values[:, 2])) == 3
    alone = along(problem, training, tl.DMFT(samples=2**12), 2)
    np.testing.assert_array_equal(alone.M.values[0], result.M.values[0])


@pytest.mark.parametrize(
    ("problem", "training", "word"),
    [
        (two_index("erf"), tl.SGD(1.0), "small batches"),
        (two_index("erf"), tl.SGD(1.0, batch_size=3, reuse=tl.Reused(2.0)), "grow with d"),
        (
            tl.Problem(tl.Labels(), tl.Student(1, "erf"), tl.Samples(np.eye(3), np.ones(3))),
            tl.SGD(1.0, reuse=tl.Reused(1.0)),
            "data set",
        ),
    ],
)
def test_refusals(problem, training, word):
    answer = tl.DMFT().applies(problem, training)
    assert not answer.ok and word in answer.statement


def test_too_many_steps_are_refused():
    problem, training = two_index("erf"), tl.SGD(0.1, reuse=tl.Reused(1.0))
    with pytest.raises(tl.InvalidInput, match="remembers every step"):
        tl.evolve(problem, training, tl.DMFT(), until=2000.0)
    with pytest.raises(tl.InvalidInput, match="clouds need more than"):
        tl.evolve(problem, training, tl.DMFT(samples=2**10), until=20.0)


def test_divergence_is_reported():
    problem, training = two_index("relu"), tl.SGD(60.0, reuse=tl.Reused(3.0))
    until = float(training.clock(problem).time(12))
    result = tl.evolve(problem, training, tl.DMFT(samples=2**12), until=until, save="linear:13", throw=False)
    assert result.status.values[0] == 1
    assert np.isnan(result.risk.values[0, -1]) and np.isfinite(result.risk.values[0, 0])


# ---------------------------------------------------------------------------------------------------- random numbers


def test_a_sample_is_in_one_batch_of_an_epoch():
    """Three batches of 30% of the set: in each epoch a sample is in each with this probability, or left over."""
    u = scrambled_net(2, 12, seed=0)
    counts = np.asarray(counts_of(Batches(0.3, 3), uniforms(u, 12), 5))
    assert counts.shape == (5, 2**12) and np.all(np.isin(counts, [0.0, 1.0]))
    np.testing.assert_allclose(counts.mean(axis=1), 0.3, atol=2e-3)
    assert counts[:3].sum(axis=0).max() == 1.0 and counts[3:].sum(axis=0).max() == 1.0
    np.testing.assert_allclose(np.mean(counts[0] * counts[3]), 0.09, atol=5e-3)


def test_counts_have_the_law_of_poisson():
    from scipy import stats

    u = (jnp.arange(10_000.0) + 0.5)[None, :] / 10_000
    for mean in (0.05, 0.4, 1.0):
        np.testing.assert_array_equal(poisson(u, mean)[0], stats.poisson(mean).ppf(np.asarray(u[0])))


@pytest.mark.parametrize("log2_points", [1, 7])
def test_compiled_nets_have_the_points_of_the_nets_of_scipy(log2_points):
    compiled = np.asarray(uniforms(scrambled_net(30, log2_points, 5), log2_points))
    points = sobol(30, 5, BITS).random_base2(log2_points)
    number = np.arange(2**log2_points)
    np.testing.assert_array_equal(compiled[:, number ^ (number >> 1)], points.T + 0.5 / 2**BITS)  # in Gray code there


def test_nets_are_nets():
    """Every dyadic interval holds its share of points, in each coordinate and in boxes of the first two."""
    points = np.asarray(uniforms(scrambled_net(40, 10, 3), 10))
    assert points.min() > 0.0 and points.max() < 1.0
    for row in points:
        assert np.array_equal(np.sort((row * 1024).astype(int)), np.arange(1024))
    boxes = np.histogram2d(points[0], points[1], bins=[32, 32], range=[[0, 1], [0, 1]])[0]
    assert np.all(boxes == 1.0)
    assert not np.array_equal(points, np.asarray(uniforms(scrambled_net(40, 10, 4), 10)))
