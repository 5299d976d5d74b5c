"""Direct SGD against a plain NumPy loop with hand-written gradients, the exact one-step mean, and its promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import twolayer as tl
from tests.systems import erf_committee
from twolayer.ask import Ask, make_plan
from twolayer.compiler.draws import four_normals
from twolayer.expectation import choose
from twolayer.problem import Overlaps
from twolayer.simulation import direct
from twolayer.specification.fields import as_data


def sigma(x):
    return erf(x / np.sqrt(2))


def slope(x):
    return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)


def numpy_sgd(
    W, W_star, a, batches, gamma, kappa=0.0, sphere=False, decay=0.0, beta=0.0, times=1, ahead=0.0, projects=False
):
    """SGD on an erf committee as the papers write it: gradients by hand, one batch after the other."""
    W, a, V = W.copy(), a.copy(), np.zeros_like(W)
    p, d = W.shape
    lengths = np.linalg.norm(W, axis=1)
    for z, y in [batch for batch in batches for _ in range(times)]:
        n_b = len(y)
        lam = z @ W.T
        if ahead:
            eps = y - sigma(lam) @ a / p
            lam = z @ (W + ahead / (p * d) * a[:, None] * ((slope(lam) * eps[:, None]).T @ z)).T
        eps = y - sigma(lam) @ a / p
        move = gamma / (p * d) * a[:, None] * ((slope(lam) * eps[:, None]).T @ z)
        if projects:
            move = move - (np.sum(move * W, axis=1) / np.sum(W * W, axis=1))[:, None] * W
        V = beta * V + move
        a = a + kappa * gamma / (p * d) * sigma(lam).T @ eps
        W = (1 - gamma * n_b / d * decay) * W + V
        if sphere:
            W *= (lengths / np.linalg.norm(W, axis=1))[:, None]
    return W, a


@pytest.mark.parametrize(
    ("training", "options"),
    [
        pytest.param(tl.SGD(1.3), {}, marks=pytest.mark.long),
        pytest.param(tl.SGD(1.3, batch_size=3), {}, marks=pytest.mark.long),
        pytest.param(tl.SGD(1.3, constraint=tl.Sphere()), {"sphere": True}, marks=pytest.mark.long),
        pytest.param(tl.SGD(1.3, batch_size=2, layers=tl.Both(0.7)), {"kappa": 0.7}, marks=pytest.mark.long),
        (tl.SGD(1.3, batch_size=2, weight_decay=0.4, momentum=0.6), {"decay": 0.4, "beta": 0.6}),
        pytest.param(tl.SGD(1.3, weight_decay=0.4), {"decay": 0.4}, marks=pytest.mark.long),
        pytest.param(
            tl.SGD(1.3, reuse=tl.Repeated(3), constraint=tl.Sphere()),
            {"times": 3, "sphere": True},
            marks=pytest.mark.long,
        ),
        (tl.SGD(1.3, batch_size=2, reuse=tl.Repeated(2), momentum=0.6), {"times": 2, "beta": 0.6}),
        (
            tl.SGD(1.3, batch_size=2, constraint=tl.Sphere(riemannian=True), momentum=0.6),
            {"sphere": True, "beta": 0.6, "projects": True},
        ),
        (tl.SGD(1.3, reuse=tl.LookAhead(-2.0), layers=tl.Both(0.7)), {"ahead": -2.0, "kappa": 0.7}),
    ],
)
def test_steps_are_those_of_a_plain_loop(training, options):
    """The same inputs and labels, read from the stream, through a loop with the gradients written by hand."""
    p, k, d, steps = 3, 2, 30, 20
    problem = tl.Problem(tl.Committee(k, "erf"), tl.Student(p, "erf", [1.0, -0.5, 2.0]), tl.Gaussian(d), noise=0.2)
    plan = make_plan(problem, training, Ask(until=5.0, save=2, replicas=1, seed=7))
    weights, frozen = direct._prepare("single", problem, training, plan.starts, plan.keys)
    one = jax.tree.map(lambda x: x[0], frozen)
    z, y = direct._draw("single", problem, training, one, jnp.arange(steps), jnp.arange(training.batch_size))
    batches = list(zip(np.asarray(z, np.float64), np.asarray(y), strict=True))
    final = direct._advance("single", problem, training, weights, frozen, np.asarray(0), np.asarray(steps))
    W, W_star, a = (np.asarray(x[0]) for x in (weights.W, frozen.W_star, weights.a))
    noise = np.concatenate([y - sigma(z @ W_star.T).mean(1) for z, y in batches])
    assert abs(noise.std() - np.sqrt(0.2)) < 5 * np.sqrt(0.2 / (2 * noise.size))  # the labels do carry the noise
    W_np, a_np = numpy_sgd(W, W_star, a, batches[:steps], 1.3, **options)
    # Another compilation draws the same numbers, to the rounding of single precision; so does native code.
    np.testing.assert_allclose(final.W[0], W_np, atol=2e-6)
    np.testing.assert_allclose(final.a[0], a_np, atol=2e-6)
    advance, name, _ = tl.DirectSGD(backend="native")._driver(*as_data((problem, training)), 0)
    native = advance(weights, frozen, np.asarray(0), np.asarray(steps))
    assert name == ("native" if training.is_fresh and not training.is_riemannian else "xla")
    np.testing.assert_allclose(native.W[0], W_np, atol=2e-6)
    np.testing.assert_allclose(native.a[0], a_np, atol=2e-6)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.long), 3])
def test_mean_of_one_step_is_the_exact_conditional_mean(batch):
    """Means of M and Q after one step at d = 10 against the moments; 5000 replicas, z < 5 on 9 numbers each."""
    p, k, d, gamma, replicas = 2, 1, 10, 2.0, 5_000
    rng = np.random.default_rng(1)
    A = rng.standard_normal((3, 4)) / 2
    omega = A @ A.T
    omega[2] /= np.sqrt(omega[2, 2])
    omega[:, 2] = omega[2]
    omega = np.block([[omega[:2, :2], omega[:2, 2:]], [omega[2:, :2], np.eye(1)]])
    start = tl.GivenOverlaps(omega[:2, :2] + 0.5 * np.eye(2), omega[:2, 2:])
    problem = tl.Problem(
        tl.SingleIndex("erf"), tl.Student(p, "erf", [1.0, 2.0]), tl.Gaussian(d), start=start, noise=0.1
    )
    training = tl.SGD(gamma, batch_size=batch)
    step = float(training.clock(problem).time_per_step)
    result = tl.evolve(problem, training, tl.DirectSGD(), until=step, save=2, replicas=replicas)
    Q, M, a = np.asarray(start.Q), np.asarray(start.M), np.array([1.0, 2.0])
    overlaps = Overlaps(jnp.asarray(Q), jnp.asarray(M), jnp.eye(k), jnp.asarray(a))
    m = choose(problem).moments(problem, overlaps)
    rate = gamma * batch / d  # gamma_d
    change = result.M.values[:, -1] - M
    error = change.std(0) / np.sqrt(replicas)
    assert np.all(np.abs(change.mean(0) - rate / p * a[:, None] * np.asarray(m.psi)) < 5 * error)

    # The quadratic term of Q: E[s' s'^T eps^2 (d - n + ell^T Omega^-1 ell)] by quadrature over the three fields.
    full = np.block([[Q, M], [M.T, np.eye(1)]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3)
    product = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * 3, indexing="ij")), axis=0).ravel()
    fields = grid @ np.linalg.cholesky(full).T
    eps2 = (sigma(fields[:, 2]) - sigma(fields[:, :2]) @ a / p) ** 2 + 0.1
    ds = slope(fields[:, :2])
    norm = d - 3 + np.sum(grid**2, axis=1)
    quadratic = np.einsum("n,nj,nl->jl", product * eps2 * norm, ds, ds) / batch
    v = np.asarray(m.v)
    quadratic += (1 - 1 / batch) * v @ np.linalg.solve(full, v.T)
    phi = a[:, None] * np.asarray(m.phi)
    expected = rate / p * (phi + phi.T) + rate**2 / p**2 * a[:, None] * quadratic * a
    change = result.Q.values[:, -1] - Q
    error = change.std(0) / np.sqrt(replicas)
    assert np.all(np.abs(change.mean(0) - expected) < 5 * error)
    assert np.all(error < 0.1 * np.abs(expected) + 0.02)


def small_problem(d: int = 40) -> tl.Problem:
    return erf_committee(3, d=d, noise=0.1)


def test_numbers_do_not_depend_on_where_they_are_saved():
    sparse = tl.evolve(small_problem(), tl.SGD(1.0), tl.DirectSGD(), until=8.0, save=[8.0], replicas=2)
    dense = tl.evolve(
        small_problem(), tl.SGD(1.0), tl.DirectSGD(), until=8.0, save=[0.1, 1.3, 4.0, 7.77, 8.0], replicas=2
    )
    np.testing.assert_array_equal(sparse.M.values[:, -1], dense.M.values[:, -1])


def test_same_seed_same_numbers_and_another_seed_others():
    runs = [
        tl.evolve(small_problem(), tl.SGD(1.0), tl.DirectSGD(), until=2.0, save=3, replicas=9, seed=s)
        for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].Q.values, runs[1].Q.values)
    assert np.all(runs[0].Q.values[:, -1] != runs[2].Q.values[:, -1])


def test_a_replica_does_not_depend_on_how_many_others_there_are():
    """Different group shapes may round differently; the streams are the same, so the numbers are too, to rounding."""
    few = tl.evolve(small_problem(), tl.SGD(1.0), tl.DirectSGD(), until=3.0, save=3, replicas=2)
    many = tl.evolve(small_problem(), tl.SGD(1.0), tl.DirectSGD(), until=3.0, save=3, replicas=11)
    np.testing.assert_allclose(few.M.values, many.M.values[:2], atol=1e-12)
    assert many.sizes["replica"] == 11 and len(np.unique(many.M.values[:, -1, 0, 0])) == 11


@pytest.mark.long
def test_a_batch_summed_in_parts_is_the_same_batch(monkeypatch):
    """Full-batch descent on a fixed set of 50 samples.

    At once, or in parts of 7 of which the last runs over the end.
    """
    training = tl.SGD(0.8, reuse=tl.Reused(alpha=1.25), layers=tl.Both())
    at_once = tl.evolve(small_problem(), training, tl.DirectSGD(), until=10.0, save=4)
    monkeypatch.setattr(direct, "BLOCK_NUMBERS", 40)
    monkeypatch.setattr(direct, "PART_NUMBERS", 7 * 40)
    jax.clear_caches()
    in_parts = tl.evolve(small_problem(), training, tl.DirectSGD(), until=10.0, save=4)
    jax.clear_caches()
    np.testing.assert_allclose(at_once.M.values, in_parts.M.values, atol=1e-12)
    np.testing.assert_allclose(at_once.a.values, in_parts.a.values, atol=1e-12)
    assert np.max(np.abs(at_once.M.values[0, -1] - at_once.M.values[0, 0])) > 0.01


def test_full_batch_descent_on_a_data_set_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((25, 6)), rng.standard_normal(25)
    problem = tl.Problem(tl.Labels(), tl.Student(3, "erf"), tl.Samples(X, y))
    training = tl.SGD(0.5, reuse=tl.Reused(alpha=1.0))
    plan = make_plan(problem, training, Ask(until=5.0, save=2, replicas=1, seed=0))
    weights, frozen = direct._prepare("single", problem, training, plan.starts, plan.keys)
    final = direct._advance("single", problem, training, weights, frozen, np.asarray(0), np.asarray(6))
    W, _ = numpy_sgd(np.asarray(weights.W[0]), None, np.ones(3), [(X, y)] * 6, 0.5)
    np.testing.assert_allclose(final.W[0], W, atol=1e-12)
    result = tl.evolve(
        problem, training, tl.DirectSGD(), until=6 * float(training.clock(problem).time_per_step), save=2
    )
    np.testing.assert_allclose(result.Q.values[0, -1], W @ W.T, atol=1e-12)
    risk = 0.5 * np.mean((y - sigma(X @ W.T).mean(1)) ** 2)
    assert result.risk.values[0, -1] == pytest.approx(risk, abs=1e-12)
    assert result.sizes["r"] == 0


def test_single_precision_draws_have_the_gaussian_law():
    """First six moments and the tails of 4 x 10^6 draws, z < 5 on 8 numbers."""
    n = 4_000_000
    block = jnp.arange(n // 4, dtype=jnp.uint32)
    zero = jnp.zeros_like(block)
    x = np.asarray(jnp.stack(four_normals(zero, zero, block, zero, zero, zero)), np.float64).ravel()
    for power, mean, square in [(1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105), (5, 0, 945), (6, 15, 10395)]:
        z = (np.mean(x**power) - mean) / np.sqrt((square - mean**2) / n)
        assert abs(z) < 5
    for level, tail in [(3.0, 2.699796063e-3), (4.0, 6.334248367e-5)]:
        count = np.sum(np.abs(x) > level)
        assert abs(count - n * tail) / np.sqrt(n * tail) < 5


def test_divergence_is_a_status_with_its_time_and_keeps_what_came_before():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50))
    result = tl.evolve(problem, tl.SGD(20.0), tl.DirectSGD(), until=3.0, save=10, replicas=3, throw=False)
    assert np.all(result.status.values == 1)
    assert np.all(np.isfinite(result.Q.values[:, 0])) and np.all(np.isnan(result.Q.values[:, -1]))
    with pytest.raises(tl.ComputationFailed, match=r"DirectSGD.* at time"):
        tl.evolve(problem, tl.SGD(20.0), tl.DirectSGD(), until=3.0, save=10, replicas=3)


def test_a_batch_larger_than_the_reused_set_is_refused():
    with pytest.raises(tl.InvalidInput, match="reused set has 20 samples"):
        tl.evolve(small_problem(), tl.SGD(1.0, batch_size=30, reuse=tl.Reused(0.5)), tl.DirectSGD(), until=10.0)


@pytest.mark.parametrize(("batch", "block"), [(4, 4), (5, 2**14)])
def test_an_epoch_uses_every_sample_once(batch, block, monkeypatch):
    """Twelve orthogonal inputs and a linear neuron: each entry of the weights tells how often its sample was used.

    A sample moves its entry by the fraction gamma / d of the way to its label. Batches of 4 are summed in parts of
    three samples; batches of 5 leave two samples out of each epoch.
    """
    n, gamma = 12, 3.0
    labels = np.arange(1.0, n + 1.0)
    problem = tl.Problem(tl.Labels(), tl.Student(1, "linear"), tl.Samples(np.eye(n), labels))
    training = tl.SGD(gamma, batch_size=batch, reuse=tl.Reused(1.0, replacement=False))
    monkeypatch.setattr(direct, "BLOCK_NUMBERS", block)
    monkeypatch.setattr(direct, "PART_NUMBERS", 3 * n)
    jax.clear_caches()
    plan = make_plan(problem, training, Ask(until=5.0, save=2, replicas=8, seed=0))
    weights, frozen = direct._prepare("single", problem, training, plan.starts, plan.keys)
    per_epoch, uses = n // batch, []
    assert training.steps_per_epoch(problem) == per_epoch
    for step in range(3 * per_epoch):
        after = direct._advance("single", problem, training, weights, frozen, np.asarray(step), np.asarray(step + 1))
        left = (labels - np.asarray(after.W[:, 0])) / (labels - np.asarray(weights.W[:, 0]))
        uses.append(np.log(left) / np.log(1.0 - gamma / n))
        weights = after
    uses = np.array(uses).reshape(3, per_epoch, 8, n)
    np.testing.assert_allclose(uses, np.rint(uses), atol=1e-9)
    np.testing.assert_allclose(uses.sum(axis=-1), batch, atol=1e-9)
    per_sample = np.rint(uses.sum(axis=1))
    assert per_sample.max() == 1 and np.all(per_sample.sum(axis=-1) == per_epoch * batch)
    # Another order in each epoch and in each replica, and the same steps however a run is cut.
    assert len({order.tobytes() for order in np.rint(np.moveaxis(uses, 2, 1)).reshape(24, -1)}) == 24
    again, _ = direct._prepare("single", problem, training, plan.starts, plan.keys)
    at_once = direct._advance("single", problem, training, again, frozen, np.asarray(0), np.asarray(3 * per_epoch))
    np.testing.assert_allclose(at_once.W, weights.W, atol=1e-12)
    jax.clear_caches()
