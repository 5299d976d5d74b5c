"""Inputs with a spectrum: theories against one another, against simulation, and against the limit of one block."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.compiler import native, native_pieces
from twolayer.compiler.native_pieces import source_in_pieces
from twolayer.core.errors import InvalidInput
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.expectation import MOMENTS, choose
from twolayer.problem import Overlaps
from twolayer.specification.codec import to_json
from twolayer.theory.motion.drift import mean_increments, pack, stein
from twolayer.theory.motion.increments import sample_covariance

TWO = [(2.0, 0.3), (0.5, 0.7)]


def two_blocks(d=200):
    """Phase retrieval with two blocks, whose solution at time 1 is known to five digits."""
    start = tl.GivenOverlaps([[[0.3]], [[0.5]]], [[[0.2]], [[0.1]]], [[[0.4]], [[0.6]]])
    inputs = tl.Gaussian(d, spectrum=TWO)
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), inputs, start=start, noise=0.1)


def at_the_end(result):
    """M and Q of both blocks, one row for each replica."""
    return np.stack([result[name].values[:, -1, :, 0, 0] for name in ("M_block", "Q_block")], axis=1).reshape(-1, 4)


KNOWN = [0.40752, 0.52882, 0.41634, 0.48531]


def test_phase_retrieval_with_two_blocks_has_the_known_solution():
    result = tl.evolve(two_blocks(), tl.SGD(0.02), tl.SaadSolla(), until=1.0, save=[1.0])
    np.testing.assert_allclose(at_the_end(result)[0], KNOWN, atol=5e-6)
    assert float(result.overlap_error.max()) < 1e-8
    np.testing.assert_allclose(result.Q, result.Q_block.sum("block"), atol=1e-12)
    assert result.eigenvalue.values.tolist() == [2.0, 0.5]
    np.testing.assert_allclose(result.share, [0.3, 0.7])


@pytest.mark.parametrize(
    "description, replicas",
    [pytest.param(tl.DirectSGD(backend="native"), 400, marks=pytest.mark.slow), (tl.OverlapSGD(), 1000)],
    ids=["direct", "overlap"],
)
def test_simulation_of_two_blocks_has_the_known_means(description, replicas):
    """At d = 200 the shift of the mean is below 3e-4 (theory against the same with d = 800)."""
    result = tl.evolve(two_blocks(), tl.SGD(0.02), description, until=1.0, save=[1.0], replicas=replicas)
    found = at_the_end(result)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - KNOWN) < 4 * error + 5e-4)


@pytest.mark.parametrize(
    "activation, training",
    [
        ("erf", tl.SGD(1.2, layers=tl.Both(), weight_decay=0.05)),
        pytest.param("relu", tl.SGD(0.5, constraint=tl.Sphere()), marks=pytest.mark.slow),
        pytest.param("square", tl.SGD(0.05), marks=pytest.mark.slow),
    ],
)
def test_blocks_of_eigenvalue_one_are_no_blocks(activation, training):
    """Two blocks with the eigenvalue 1 have the sums of the isotropic equations, up to the integrator."""
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])

    def solved(**inputs):
        problem = tl.Problem(
            tl.Committee(2, activation), tl.Student(2, activation), tl.Gaussian(100, **inputs), start=start, noise=0.1
        )
        return tl.evolve(problem, training, tl.SaadSolla(), until=1.0, save=3)

    plain, split = solved(), solved(spectrum=[(1.0, 0.3), (1.0, 0.7)], teacher=[0.1, 0.9])
    for name in ("Q", "M", "a", "risk"):
        np.testing.assert_allclose(split[name], plain[name], atol=1e-8)


@pytest.mark.parametrize(
    "description",
    [
        tl.SaadSolla(),
        tl.DirectSGD(),
        tl.OverlapSGD(),
        tl.BatchMap(),
        tl.DMFT(samples=2**12),
        pytest.param(tl.SDE(dt=0.1, samples=4), marks=pytest.mark.slow),
    ],
    ids=lambda x: type(x).__name__,
)
def test_one_block_of_eigenvalue_one_gives_the_same_bits(description):
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])
    found = []
    for inputs in (tl.Gaussian(50), tl.Gaussian(50, spectrum=[(1.0, 1.0)])):
        problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), inputs, start=start, noise=0.1)
        training = tl.SGD(0.5, reuse=tl.Reused(2.0)) if isinstance(description, tl.DMFT) else tl.SGD(0.5)
        until = 3 * float(training.clock(problem).time(1)) if isinstance(description, tl.DMFT) else 0.3
        found.append(tl.evolve(problem, training, description, until=until, save=3, replicas=3))
    for name in found[0].data_vars:
        np.testing.assert_array_equal(found[0][name], found[1][name])


GIANT = [
    ("erf", tl.SGD(0.7, batch_size=1.0, momentum=0.3, layers=tl.Both())),
    pytest.param("relu", tl.SGD(0.4, batch_size=1.0, constraint=tl.Sphere()), marks=pytest.mark.slow),
    pytest.param("square", tl.SGD(0.05, batch_size=1.0, weight_decay=0.1), marks=pytest.mark.slow),
]


def giant_steps(activation, training, d, spectrum):
    """Two units learn two; the batch is given as a share of d."""
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])
    if spectrum is not None:
        shares = np.array([0.3, 0.7])[:, None, None]
        start = tl.GivenOverlaps(*(shares * np.asarray(x)[None] for x in (start.Q, start.M, np.eye(2))))
    inputs = tl.Gaussian(d) if spectrum is None else tl.Gaussian(d, spectrum=spectrum)
    problem = tl.Problem(tl.Committee(2, activation), tl.Student(2, activation), inputs, start=start, noise=0.1)
    training = dataclasses.replace(training, batch_size=int(training.batch_size * d))
    return problem, training, float(training.clock(problem).time(3)) * (1 + 1e-9)


@pytest.mark.parametrize("activation, training", GIANT)
def test_the_map_of_blocks_of_eigenvalue_one_is_that_without_blocks(activation, training):
    found = []
    for spectrum in (None, [(1.0, 0.3), (1.0, 0.7)]):
        problem, asked, until = giant_steps(activation, training, 100, spectrum)
        found.append(tl.evolve(problem, asked, tl.BatchMap(), until=until, save=[until]))
    for name in ("Q", "M", "a", "risk"):
        np.testing.assert_allclose(found[1][name], found[0][name], atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("activation, training", GIANT)
def test_giant_steps_on_two_blocks_follow_the_map(activation, training):
    """Three steps on d samples: SGD on the weights at d and 2 d, extrapolated to remove the shift of order 1/d."""
    ends = []
    for d, replicas in ((100, 200), (200, 200)):
        problem, asked, until = giant_steps(activation, training, d, [(2.0, 0.3), (0.5, 0.7)])
        result = tl.evolve(problem, asked, tl.DirectSGD(), until=until, save=[until], replicas=replicas, seed=d)
        parts = [result[name].values[:, -1].reshape(replicas, -1) for name in ("Q_block", "M_block", "a")]
        ends.append(np.hstack([*parts, result.risk.values[:, -1:]]))
    mean = 2 * ends[1].mean(axis=0) - ends[0].mean(axis=0)
    error = np.sqrt(4 * ends[1].var(axis=0, ddof=1) / len(ends[1]) + ends[0].var(axis=0, ddof=1) / len(ends[0]))
    theory = tl.evolve(problem, asked, tl.BatchMap(), until=until, save=[until])
    parts = [theory[name].values[0, -1].ravel() for name in ("Q_block", "M_block", "a")]
    expected = np.concatenate([*parts, theory.risk.values[0, -1:]])
    # What is left is of order 1/d^2, with a constant of the size of the numbers: 1e-4, and 0.01 of an error.
    z = np.abs(mean - expected) / np.maximum(error + 1e-4, 1e-12)
    assert z.max() < 5, (mean, expected, error)
    assert np.max(error) < 0.05  # the noise of a block enters Q there by several tenths
    np.testing.assert_allclose(theory.Q, theory.Q_block.sum("block"), atol=1e-12)
    assert float(theory.overlap_error.max()) < 1e-8


QUICK = [("erf", "sphere", "both"), ("relu", "free", "first")]  # the others with `--long`


@pytest.mark.parametrize(
    "activation, constraint, layers",
    [
        pytest.param(*case, marks=pytest.mark.slow if case in QUICK else pytest.mark.long, id="-".join(case))
        for case in itertools.product(("erf", "relu", "square"), ("free", "sphere"), ("first", "both"))
    ],
)
def test_sgd_on_two_blocks_follows_the_ode(activation, constraint, layers):
    """Means of SGD on the weights at d and 2 d, extrapolated, within 4.5 standard errors and an order 1/d^2."""
    rate = {"erf": 1.0, "relu": 0.6, "square": 0.08}[activation]
    options = {
        "layers": tl.Both() if layers == "both" else tl.First(),
        "constraint": tl.Sphere() if constraint == "sphere" else tl.Free(),
    }
    shares = np.array([0.3, 0.7])[:, None, None]
    Q, M = np.array([[1.0, 0.2], [0.2, 0.8]]), np.array([[0.3, 0.1], [-0.1, 0.4]])
    start = tl.GivenOverlaps(shares * Q, shares * M, shares * np.eye(2))
    ends, until, training = [], 1.0, tl.SGD(rate, **options)
    names, whole = ("Q_block", "M_block", "Q", "M", "a", "risk"), ("Q", "M", "a", "risk")
    for d in (60, 120):
        inputs = tl.Gaussian(d, spectrum=TWO)
        problem = tl.Problem(tl.Committee(2, activation), tl.Student(2, activation), inputs, start=start, noise=0.1)
        result = tl.evolve(problem, training, tl.DirectSGD(), until=until, save=[until], replicas=2000, seed=d)
        ends.append(np.hstack([result[name].values[:, -1].reshape(2000, -1) for name in names]))
    mean = 2 * ends[1].mean(axis=0) - ends[0].mean(axis=0)
    error = np.sqrt((4 * ends[1].var(axis=0, ddof=1) + ends[0].var(axis=0, ddof=1)) / 2000)
    theory = tl.evolve(problem, training, tl.SaadSolla(), until=until, save=[until])
    expected = np.concatenate([theory[name].values[0, -1].ravel() for name in names])
    z = np.abs(mean - expected) / (error + 2.0 / 120**2)
    assert z.max() < 4.5, (mean, expected, error)
    # The test sees what it is about: with the isotropic equations the numbers differ by far more.
    plain = dataclasses.replace(problem, inputs=tl.Gaussian(120), start=tl.GivenOverlaps(Q, M))
    other = tl.evolve(plain, training, tl.SaadSolla(), until=until, save=[until])
    wrong = np.concatenate([other[name].values[0, -1].ravel() for name in whole])
    assert np.max(np.abs(wrong - mean[-len(wrong) :]) / (error[-len(wrong) :] + 2.0 / 120**2)) > 10


@pytest.mark.parametrize("activation", ["erf", "relu", "square"])
@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4, 0.0], ids=["far", "near", "nearer", "recovered"])
def test_the_stein_matrix_is_the_derivative_of_the_risk(activation, gap):
    """Price: G_jb = -p dR/dOmega_jb / a_j, here as products with a random block, down to singular overlaps.

    The derivative of relu's risk by differences of overlaps loses half of the digits near recovery, and its moments
    with it; the others keep them up to the rounding 1e-16 / gap of what is solved.
    """
    p = k = 2
    problem = tl.Problem(tl.Committee(k, activation), tl.Student(p, activation), tl.Gaussian(50))
    rng = np.random.default_rng(0)
    W_star = np.linalg.qr(rng.standard_normal((10, k)))[0].T
    W = W_star + gap * rng.standard_normal((p, 10)) / 3
    fields = jnp.asarray(np.vstack([W, W_star]))
    chosen = choose(problem, MOMENTS).variants()[0]
    a = jnp.array([1.0, 0.7])

    def risk(rows):
        Q, M, P = rows[:p] @ rows[:p].T, rows[:p] @ rows[p:].T, rows[p:] @ rows[p:].T
        return chosen.parts(problem, Overlaps(Q, M, P, a), ("excess_risk",))["excess_risk"]

    overlaps = Overlaps(fields[:p] @ fields[:p].T, fields[:p] @ fields[p:].T, fields[p:] @ fields[p:].T, a)
    G = a[:, None] * stein(overlaps, chosen.moments(problem, overlaps))
    part = fields[:, :4]  # a block of the coordinates: its drift is the gradient of the risk there
    expected = -p * jax.grad(risk)(fields)[:p, :4]
    found = G @ part
    tolerance = 1e-6 if activation == "relu" else 1e-9
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize(
    "d, spectrum, training",
    [
        pytest.param(8, [(2.0, 0.25), (0.5, 0.75)], tl.SGD(3.0, layers=tl.Both()), marks=pytest.mark.slow),
        pytest.param(12, [(3.0, 0.25), (0.6, 0.75)], tl.SGD(3.0, constraint=tl.Sphere()), marks=pytest.mark.slow),
        pytest.param(20, tl.PowerLaw(1.0, bins=4), tl.SGD(3.0, weight_decay=0.1), marks=pytest.mark.long),
        pytest.param(14, [(2.0, 0.3), (0.0, 0.3), (0.7, 0.4)], tl.SGD(3.0), marks=pytest.mark.long),
        pytest.param(
            20, [(3.0, 0.25), (0.6, 0.75)], tl.SGD(3.0, batch_size=5, layers=tl.Both()), marks=pytest.mark.slow
        ),
        pytest.param(24, [(2.0, 0.25), (0.5, 0.75)], tl.SGD(2.0, momentum=0.6), marks=pytest.mark.slow),
        pytest.param(
            30, [(2.0, 0.25), (0.5, 0.75)], tl.SGD(2.0, batch_size=3, momentum=tl.Nesterov(0.6)), marks=pytest.mark.slow
        ),
        pytest.param(12, [(3.0, 0.25), (0.6, 0.75)], tl.SGD(1.0, reuse=tl.Repeated(2)), marks=pytest.mark.slow),
        pytest.param(
            20,
            [(3.0, 0.25), (0.6, 0.75)],
            tl.SGD(2.0, batch_size=3, reuse=tl.LookAhead(1.0), constraint=tl.Sphere(riemannian=True)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=[
        *("both layers", "sphere", "power law", "directions without variance", "batches", "momentum"),
        *("batches with Nesterov's momentum", "repeated samples", "looking ahead on the sphere"),
    ],
)
def test_overlaps_by_block_have_the_law_of_sgd_on_the_weights(d, spectrum, training, check_same_law):
    """A few steps, where blocks have fewer dimensions than target and student need, and where they have more.

    Two of these spectra, and a block of two dimensions, were compared with SGD written in NumPy as well, with 10^5 to
    2.4 10^6 replicas, in two moments and all products.
    """
    check_same_law(*(after_four_steps(d, spectrum, training, x, [n]) for n, x in enumerate(SIMULATIONS)))


SIMULATIONS = (tl.DirectSGD(), tl.OverlapSGD())


def after_four_steps(d, spectrum, training, description, seeds):
    """Overlaps by block and output weights of 20,000 runs for each seed."""
    inputs = tl.Gaussian(d, spectrum=spectrum)
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), inputs, start=tl.WarmStart(0.4), noise=0.1)
    until = float(training.clock(problem).time(4)) * (1 + 1e-9)
    rows, columns = np.triu_indices(2)
    found = []
    for seed in seeds:
        result = tl.evolve(problem, training, description, until=until, save=[until], replicas=20_000, seed=seed)
        Q, M = result.Q_block.values[:, -1][:, :, rows, columns], result.M_block.values[:, -1]
        parts = (Q.reshape(len(Q), -1), M.reshape(len(M), -1), result.a.values[:, -1])
        found.append(np.round(np.hstack(parts), 9))
        np.testing.assert_allclose(result.Q, result.Q_block.sum("block"), atol=1e-12)
    return np.concatenate(found)


@pytest.mark.long
@pytest.mark.parametrize(
    "d, spectrum, training",
    [
        (12, [(3.0, 0.25), (0.6, 0.75)], tl.SGD(3.0, layers=tl.Both())),
        (20, tl.PowerLaw(1.0, bins=4), tl.SGD(3.0, constraint=tl.Sphere())),
        (14, [(2.0, 0.3), (0.0, 0.3), (0.7, 0.4)], tl.SGD(3.0)),
    ],
    ids=["two blocks", "power law", "directions without variance"],
)
def test_the_law_of_a_hundred_thousand_runs(d, spectrum, training, check_same_law):
    """Both simulators with 10^5 runs each; with another rate the other one is told apart."""
    direct, overlap = (
        after_four_steps(d, spectrum, training, x, range(5 * n, 5 * n + 5)) for n, x in enumerate(SIMULATIONS)
    )
    assert len(direct) == len(overlap) == 100_000
    check_same_law(direct, overlap)
    other = dataclasses.replace(training, learning_rate=1.5 * training.learning_rate)
    with pytest.raises(AssertionError, match=r"largest z|probability"):
        check_same_law(direct, after_four_steps(d, spectrum, other, tl.OverlapSGD(), range(5)))


@pytest.mark.parametrize(("blocks", "replicas"), [(4, 1), pytest.param(4, 9, marks=pytest.mark.slow)])
def test_a_long_step_in_pieces_is_that_of_xla(blocks, replicas, monkeypatch):
    """A step on several blocks of a spectrum, whose native code is cut into functions that share a memory."""
    sources = []

    def recorded(*arguments, **options):
        sources.append(source_in_pieces(*arguments, **options))
        return sources[-1]

    monkeypatch.setattr(native, "source_in_pieces", recorded)
    monkeypatch.setattr(native, "LONG_STEP", 500)
    monkeypatch.setattr(native_pieces, "PIECE", 150)
    spectrum = [(2.0 ** (-n / 4), 1.0 / blocks) for n in range(blocks)]
    inputs, start = tl.Gaussian(40, spectrum=spectrum), tl.WarmStart(0.3)
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), inputs, start=start, noise=0.01)
    training = tl.SGD(0.5, constraint=tl.Sphere(), layers=tl.Both(0.5))
    until = float(training.clock(problem).time(70)) * (1 + 1e-9)
    ask = {"until": until, "save": [0.3 * until, until], "replicas": replicas}
    found, expected = (tl.evolve(problem, training, tl.OverlapSGD(backend), **ask) for backend in ("native", "xla"))
    assert sources[0][0].count("@piece") > 10
    for name in ("Q_block", "M_block", "a"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-11, atol=1e-13)
        assert float(np.abs(found[name].diff("time")).max()) > 1e-3  # it moves


def test_the_task_of_a_phase_keeps_where_the_target_lies():
    """The blocks of P are stated by the start, which the problem of the second phase does not have."""
    start = tl.GivenOverlaps([[[0.3]], [[0.5]]], [[[0.2]], [[0.1]]], [[[0.9]], [[0.3]]])
    inputs = tl.Gaussian(400, spectrum=TWO)
    problem = tl.Problem(tl.Committee(1, "erf", P=[[1.2]]), tl.Student(1, "erf"), inputs, start=start, noise=0.1)
    schedule = tl.Schedule([tl.SGD(0.1), tl.Task(tl.SGD(0.1), target=tl.Committee(1, "tanh"))], switches=[0.5])
    expected = at_the_end(tl.evolve(problem, schedule, tl.SaadSolla(), until=1.0, save=[1.0]))[0]
    found = at_the_end(tl.evolve(problem, schedule, tl.OverlapSGD(), until=1.0, save=[1.0], replicas=1000))
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - expected) < 4 * error + 1e-3)


def changing(d):
    """An erf student of two units on two blocks, then with other eigenvalues, then with all eigenvalues one."""
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])
    inputs = tl.Gaussian(d, spectrum=TWO, teacher=[[0.5, 0.5], [0.2, 0.8]])
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), inputs, start=start, noise=0.05)
    sgd = tl.SGD(0.6, layers=tl.Both())
    other = tl.Task(sgd, inputs=tl.Gaussian(d, spectrum=[(0.2, 0.3), (1.5, 0.7)]))
    plain = tl.Task(sgd, inputs=tl.Gaussian(d))
    return problem, tl.Schedule([sgd, other, plain], [1.0, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize(("theory", "share"), [(tl.SaadSolla(), 0.0), (tl.BatchMap(), 1.0)], ids=["ode", "map"])
def test_a_second_phase_with_its_own_inputs_follows_the_theory(theory, share):
    """Single samples and the ODE, and batches of d and the map, four steps in each phase: 4 standard errors and 1/d."""
    d, replicas = 100, 200
    problem, three = changing(d)
    batch = max(1, int(share * d))
    step = batch * 0.6 / (2 * d)
    end = 4 * step if share else 2.0
    phases = [dataclasses.replace(three.trainings[0], batch_size=batch)] * 2
    other = three.phases[1]
    assert isinstance(other, tl.Task)
    training = tl.Schedule([phases[0], dataclasses.replace(other, training=phases[1])], [end])
    ask = {"until": 2 * end, "save": [end, 2 * end]}
    runs = tl.evolve(problem, training, tl.DirectSGD(), replicas=replicas, **ask)
    limit, same = (tl.evolve(problem, each, theory, **ask) for each in (training, tl.Schedule(phases, [end])))
    others = []
    for name in ("task_risk", "M_block", "Q_block", "a"):
        mean, error = runs[name].values.mean(axis=0), runs[name].values.std(axis=0, ddof=1) / replicas**0.5
        allowed = 4.0 * error + 1.0 / d
        assert np.all(np.abs(mean - limit[name].values[0]) < allowed), name
        if name != "task_risk":  # phases with the same inputs have one task
            others.append(np.max(np.abs(mean - same[name].values[0]) / allowed))
    assert max(others) > 3.0, others  # without the inputs of the phase


@pytest.mark.long
def test_phases_with_their_own_inputs_follow_the_ode():
    """Both simulators against the ODE within 4 standard errors and 3/d, and against each other, z < 5."""
    d, replicas = 200, 48
    problem, training = changing(d)
    ask = {"until": 3.0, "save": [1.0, 2.0, 3.0], "replicas": replicas}
    tree = tl.compare(problem, training, ["DirectSGD", "OverlapSGD", "SaadSolla"], **ask)
    ode = tree["SaadSolla"]
    assert ode.sizes["task"] == 3
    for name in ("task_risk", "risk", "M_block", "Q_block", "a"):
        moments = []
        for simulation in ("DirectSGD", "OverlapSGD"):
            runs = np.asarray(tree[simulation][name].values)
            moments.append((runs.mean(axis=0), runs.std(axis=0, ddof=1) / replicas**0.5))
            gap = np.abs(moments[-1][0] - ode[name].values[0])
            assert np.all(gap < 4.0 * moments[-1][1] + 3.0 / d), (simulation, name)
        (one, its_error), (other, other_error) = moments
        assert np.all(np.abs(one - other) < 5.0 * np.hypot(its_error, other_error) + 1e-12), name


@pytest.mark.slow
def test_a_phase_continues_on_its_own_inputs():
    """Its end is that of a run that begins at the same overlaps by block on these inputs; so are the risks of tasks."""
    problem, training = changing(200)
    ask = {"until": 2.0, "save": [1.0, 2.0]}
    two = tl.Schedule(training.phases[:2], training.switches[:1])
    whole = tl.evolve(problem, two, "SaadSolla", **ask).isel(replica=0)
    middle, end = whole.sel(time=1.0), whole.sel(time=2.0)
    start = tl.GivenOverlaps(middle.Q_block.values, middle.M_block.values, np.asarray(problem.frame.P))
    inputs = tl.Gaussian(200, spectrum=[(0.2, 0.3), (1.5, 0.7)])
    student = tl.Student(2, "erf", second_layer=middle.a.values)
    alone = tl.Problem(problem.target, student, inputs, start=start, noise=0.05)
    rest = tl.evolve(alone, two.trainings[1], "SaadSolla", until=1.0, save=[1.0]).isel(replica=0)
    for name in ("Q_block", "M_block", "a", "risk"):
        np.testing.assert_allclose(end[name], rest[name].isel(time=-1), atol=1e-8)
    np.testing.assert_allclose(end.task_risk[1], end.risk, rtol=1e-9)
    np.testing.assert_allclose(middle.task_risk[0], middle.risk, rtol=1e-9)
    np.testing.assert_allclose(middle.task_risk[1], rest.risk.isel(time=0), rtol=1e-9)
    # Without a change of the inputs nothing changes: the same eigenvalues are the same task.
    same = tl.Schedule([training.phases[0], tl.Task(training.phases[0], inputs=tl.Gaussian(200, TWO))], [1.0])
    assert "task_risk" not in tl.evolve(problem, same, "SaadSolla", **ask)


def test_inputs_of_a_phase_that_do_not_fit_are_refused():
    problem, _ = changing(100)
    isotropic = tl.Problem(problem.target, problem.student, tl.Gaussian(100))

    def run(inputs, of=problem):
        schedule = tl.Schedule([tl.SGD(0.1), tl.Task(tl.SGD(0.1), inputs=inputs)], [0.5])
        return tl.evolve(of, schedule, "SaadSolla", until=1.0)

    with pytest.raises(InvalidInput, match="must have d = 100 as the problem, but have d = 50"):
        run(tl.Gaussian(50))
    with pytest.raises(InvalidInput, match=r"blocks of the ranks \[30, 70\] as the problem, but have \[40, 60\]"):
        run(tl.Gaussian(100, spectrum=[(1.0, 0.4), (2.0, 0.6)]))
    with pytest.raises(InvalidInput, match="`teacher` must be that of the problem's inputs"):
        run(tl.Gaussian(100, spectrum=TWO, teacher="tail"))
    with pytest.raises(InvalidInput, match="state them by eigenvalues of one"):
        run(tl.Gaussian(100, spectrum=TWO), isotropic)
    with pytest.raises(InvalidInput, match="`inputs` must be Gaussian"):
        tl.Task(tl.SGD(0.1), inputs=tl.Samples(np.eye(3), np.ones(3)))
    schedule = tl.Schedule([tl.SGD(0.1), tl.Task(tl.SGD(0.1), inputs=tl.Gaussian(100))], [0.5])
    with pytest.raises(tl.NotApplicable, match="has a spectrum"):
        tl.evolve(problem, schedule, "HDMF", until=1.0)
    assert "task_risk" not in tl.evolve(isotropic, schedule, "SaadSolla", until=1.0, save=2)
    assert to_json(schedule.phases[1]).count("inputs") == 1 and "inputs" not in to_json(tl.Task(tl.SGD(0.1)))


# --------------------------------------------------------------------------------------------------- fluctuations


def test_the_covariance_of_increments_by_block_is_that_of_samples():
    """Two square units, both layers, two blocks: 300,000 samples drawn in NumPy; every mean and product, z < 5."""
    p = k = 2
    c, f, gamma, ratio, noise = np.array([2.0, 0.5]), np.array([0.3, 0.7]), 0.3, 0.7, 0.3
    rng = np.random.default_rng(0)
    W, W_star = rng.standard_normal((p, 8)) / 3, np.linalg.qr(rng.standard_normal((8, k)))[0].T
    parts = (slice(0, 3), slice(3, 8))
    Q, M, P = (np.stack([A[:, i] @ B[:, i].T for i in parts]) for A, B in ((W, W), (W, W_star), (W_star, W_star)))
    a = np.array([1.0, -0.6])
    start = tl.GivenOverlaps(Q, M, P)
    inputs = tl.Gaussian(1000, spectrum=[*zip(c, f, strict=True)], teacher=P)
    problem = tl.Problem(tl.Committee(k, "square"), tl.Student(p, "square", a), inputs, start=start, noise=noise)
    training = tl.SGD(gamma, layers=tl.Both(ratio))

    N = 300_000
    z = rng.standard_normal((N, 8)) * np.repeat(np.sqrt(c), (3, 5))
    lam, star = z @ W.T, z @ W_star.T
    eps = (star**2).mean(axis=1) - (lam**2 * a).mean(axis=1) + np.sqrt(noise) * rng.standard_normal(N)
    force = 2.0 * a * lam * eps[:, None]
    rows = [ratio * lam**2 * eps[:, None]]
    rows += [(force[:, :, None] * (z[:, i] @ W_star[:, i].T)[:, None, :]).reshape(N, -1) for i in parts]
    for block, i in enumerate(parts):
        own = z[:, i] @ W[:, i].T
        for j, l in ((0, 0), (0, 1), (1, 1)):
            square = gamma / p * c[block] * f[block] * force[:, j] * force[:, l]
            rows.append((force[:, j] * own[:, l] + force[:, l] * own[:, j] + square)[:, None])
    samples = np.concatenate(rows, axis=1)

    with double():
        engine = choose(problem, (*MOMENTS, "covariance")).variants()[0]
        overlaps = problem.draw(replica_key(0, 0))
        moments = engine.moments(problem, overlaps.of_fields)
        raw = engine.parts(problem, overlaps.of_fields, ("covariance",))["covariance"]
        expected = np.asarray(sample_covariance(problem, training, overlaps, raw, moments))
        mean = np.asarray(pack(mean_increments(problem, training, overlaps, moments)))
    assert np.max(np.abs(samples.mean(axis=0) - mean) / samples.std(axis=0)) < 5 / np.sqrt(N)
    centred = samples - samples.mean(axis=0)
    found, fourth = centred.T @ centred / N, (centred**2).T @ centred**2 / N
    z = np.abs(found - expected) / np.sqrt((fourth - found**2) / N)
    assert z.max() < 5
    assert np.max(np.abs(expected[2:6, 6:10])) > 0.05  # blocks move together


@pytest.mark.parametrize(
    "training",
    [
        tl.SGD(0.05, layers=tl.Both(0.5), weight_decay=0.1, batch_size=3),
        pytest.param(tl.SGD(0.05, constraint=tl.Sphere(), batch_size=3), marks=pytest.mark.slow),
    ],
    ids=["both", "sphere"],
)
def test_fluctuations_on_blocks_of_eigenvalue_one_add_up(training):
    """Sums over two blocks with the eigenvalue 1 have the law of the isotropic equations: mean, covariance, shift."""
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])

    def solved(**inputs):
        target, student = tl.Committee(2, "square"), tl.Student(2, "square")
        problem = tl.Problem(target, student, tl.Gaussian(100, **inputs), start=start, noise=0.1)
        return tl.fluctuations(problem, training, [0.0, 1.0])

    plain, split = solved(), solved(spectrum=[(1.0, 0.3), (1.0, 0.7)], teacher=[0.1, 0.9])
    names = [re.sub(r"_block\[\d,", "[", name) for name in split.entry.values]
    add = np.array([[name == entry for name in names] for entry in plain.entry.values], dtype=float)
    assert split.sizes["entry"] == 2 + 2 * (4 + 3)
    np.testing.assert_allclose(add @ split.limit.values[-1], plain.limit.values[-1], atol=1e-9)
    np.testing.assert_allclose(add @ split["shift"].values[-1], plain["shift"].values[-1], atol=1e-7)
    np.testing.assert_allclose(add @ split.covariance.values[-1] @ add.T, plain.covariance.values[-1], atol=1e-7)


def _ends(problem, training, description, until, replicas):
    """a, M and Q by block at the end, one row for each replica, in the order of `fluctuations`."""
    run = tl.evolve(problem, training, description, until=until, save=[until], replicas=replicas, seed=problem.d)
    return np.concatenate([run[name].values[:, -1].reshape(replicas, -1) for name in ("a", "M_block", "Q_block")], 1)


SCATTER = {
    "free": (tl.SGD(0.02), 1.0),
    "both": (tl.SGD(0.04, layers=tl.Both(0.5), weight_decay=0.2), 0.5),
    "sphere": (tl.SGD(0.04, constraint=tl.Sphere()), 0.5),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SCATTER)
def test_the_scatter_of_runs_on_two_blocks_approaches_the_theorem_as_1_over_d(name):
    """40,000 runs at d = 50, 100 and 200: covariances are off by a part of order 1/d, the shift of the mean too.

    Extrapolated from the last two sizes, variances agree to 3% (standard error 1.6%) and shifts within 5 standard
    errors and 0.01.
    """
    training, until = SCATTER[name]
    theory = tl.fluctuations(two_blocks(), training, [0.0, until]).isel(time=-1)
    limit, C, shift = (theory[variable].values for variable in ("limit", "covariance", "shift"))
    moves, off, shifts = np.diagonal(C) > 1e-12, [], []
    for d in (50, 100, 200):
        rows = _ends(two_blocks(d), training, tl.OverlapSGD(), until, 40_000)
        size = np.sqrt(np.outer(np.diagonal(C), np.diagonal(C)))[moves][:, moves]
        off.append((d * np.cov(rows.T) - C)[moves][:, moves] / size)
        shifts.append((d * (rows.mean(axis=0) - limit), d * rows.std(axis=0) / 200.0))
    assert np.log2(np.max(np.abs(off[0])) / np.max(np.abs(off[2]))) > 1.4  # 2 for an order 1/d
    assert np.max(np.abs(2 * off[2] - off[1])) < 0.06
    (one, error), (two, other) = shifts[1], shifts[2]
    assert np.all(np.abs(2 * two - one - shift) < 5 * np.hypot(2 * other, error) + 0.01)


@pytest.mark.parametrize(
    "activation, constraint, noise",
    [
        pytest.param("square", tl.Free(), "covariance", marks=pytest.mark.long),
        pytest.param("square", tl.Sphere(), "samples", marks=pytest.mark.slow),
        pytest.param("erf", tl.Free(), "samples", marks=pytest.mark.long),
        pytest.param("erf", tl.Sphere(), "covariance", marks=pytest.mark.long),
    ],
)
def test_paths_on_two_blocks_have_the_covariance_of_the_theorem(activation, constraint, noise):
    """The SDE at a large d, where its law is that of the theorem: means within 5 and products within 5 standard errors.

    Steps of 0.005 of a second-order method, whose error is below 2e-5; 2,000 paths.
    """
    start = tl.GivenOverlaps([[[0.3]], [[0.5]]], [[[0.2]], [[0.1]]], [[[0.4]], [[0.6]]])
    inputs = tl.Gaussian(10**4, spectrum=TWO)
    problem = tl.Problem(tl.Committee(1, activation), tl.Student(1, activation), inputs, start=start, noise=0.1)
    training = tl.SGD(0.04 if activation == "square" else 0.5, constraint=constraint)
    theory = tl.fluctuations(problem, training, [0.0, 0.3]).isel(time=-1)
    rows = _ends(problem, training, tl.SDE(dt=0.005, noise=noise, samples=8), 0.3, 2000)
    unit = (rows - theory.limit.values) * 1e2
    C = theory.covariance.values
    moves = np.diagonal(C) > 1e-12
    assert np.max(np.abs(unit[:, ~moves])) < 1e-6
    unit, C = unit[:, moves], C[moves][:, moves]
    mean, products = unit.mean(axis=0), unit[:, :, None] * unit[:, None, :]
    assert np.max(np.abs(mean) / np.sqrt(np.diagonal(C) / 2000)) < 5
    error = theory.covariance_error.values[moves][:, moves] + 0.002 * np.max(np.abs(C))
    assert np.all(np.abs(products.mean(axis=0) - C) < 5 * products.std(axis=0) / np.sqrt(2000) + error)
