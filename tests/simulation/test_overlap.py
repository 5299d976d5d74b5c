"""The overlap process: its parts against independent routes, thresholds, interruptions, and its compiled programs."""

import logging
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from tests.systems import erf_committee, phase_retrieval, time_to_overlap
from twolayer import stepping
from twolayer.compiler.loops import native
from twolayer.compiler.native import compiled_text
from twolayer.compiler.scalar import Unsupported, scalarize
from twolayer.description import Watch
from twolayer.simulation import drivers, overlap
from twolayer.specification.fields import as_data

from .test_overlap_law import by_overlaps, make


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_sample_is_absorbed_into_the_triangular_factor(n):
    rng = np.random.default_rng(n)
    for rest in (1.7, 1e-9):
        L, c, g = np.tril(rng.standard_normal((n, n))), rng.standard_normal(n), rng.standard_normal(n)
        K = np.concatenate([L + np.outer(c, g), rest * c[:, None]], axis=1)
        for factor in (overlap.absorbed(*map(jnp.asarray, (L, c, g, rest))), overlap.lower(jnp.asarray(K))):
            np.testing.assert_allclose(factor @ factor.T, K @ K.T, atol=1e-13)
            np.testing.assert_allclose(np.triu(factor, 1), 0.0, atol=1e-14)
    zero = overlap.absorbed(jnp.zeros((n, n)), jnp.zeros(n), jnp.asarray(g), jnp.asarray(1.0))
    assert np.all(np.asarray(zero) == 0.0)


def equations(jaxpr):
    """How many operations the compiler is given, those inside of loops and calls included."""
    inner = [getattr(value, "jaxpr", value) for equation in jaxpr.eqns for value in equation.params.values()]
    return len(jaxpr.eqns) + sum(equations(each) for each in inner if hasattr(each, "eqns"))


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5}, {"batch_size": 100}, {"batch_size": 2}, {"reuse": tl.Repeated(2)}], ids=str
)
def test_the_program_of_a_step_does_not_grow_with_the_width(options):
    """Compiling takes as long for a hundred units as for ten; written out, it would take minutes."""
    sizes = []
    for p in (10, 100):
        problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(p, "erf"), tl.Gaussian(1000), noise=0.1)
        problem, training = as_data((problem, tl.SGD(1.0, **options)))
        made = overlap.make_setting(problem, training)
        rows = 2 * p if training.has_momentum else p
        state = overlap.State(jnp.zeros((3, rows, 2)), jnp.zeros((3, rows, made.outside)), jnp.zeros((3, p)))
        words, crossing = jnp.zeros((3, 2), jnp.uint32), jnp.zeros((3, 1))
        run = drivers.RunState(state, jnp.ones((3, p)), jnp.zeros((3, 2)), words, crossing)
        watch = Watch(False, True)
        advance = jax.make_jaxpr(lambda run, made=made, watch=watch: drivers.advance_xla(made, watch, run, 0, 5))
        sizes.append(equations(advance(run._replace(crossing=jnp.zeros((3, watch.size(problem.k))))).jaxpr))
        begin = jax.make_jaxpr(lambda L: overlap.lower(L))
        sizes[-1] += equations(begin(state.L[0]).jaxpr)
    assert sizes[1] <= sizes[0]


@pytest.mark.long
def test_same_seed_same_numbers_whatever_the_number_of_replicas_and_the_driver():
    """Replica 3 alone among 4, among 40 (another kernel width), and by XLA, whose logarithm rounds otherwise."""
    problem, training, *_ = make("erf", 2, 1, 50, learning_rate=1.0)
    runs = [
        tl.evolve(problem, training, tl.OverlapSGD(backend=backend), until=2.0, save=3, replicas=replicas)
        for backend, replicas in (("native", 4), ("native", 40), ("xla", 4))
    ]
    rows = [run.Q.values[3] for run in runs]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-12)
    np.testing.assert_allclose(rows[0], rows[2], rtol=1e-5)
    again = tl.evolve(problem, training, tl.OverlapSGD(), until=2.0, save=[1.0, 1.5, 2.0], replicas=4)
    np.testing.assert_array_equal(again.Q.values[:, -1], runs[0].Q.values[:, -1])  # the save grid does not matter


def test_batches_are_streamed_in_blocks(monkeypatch):
    """The sums do not depend on the size of the blocks but for rounding; a batch of a million samples is one step."""
    problem, training, *_ = make("erf", 2, 1, 30, learning_rate=0.5, batch_size=1000)
    whole = by_overlaps(problem, training, 2, 3, "xla")
    monkeypatch.setattr(drivers, "BLOCK", 96)
    np.testing.assert_allclose(by_overlaps(problem, training, 2, 3, "xla"), whole, rtol=1e-9)
    # In parts that are summed beside one another, here five of 200 samples in blocks of 67, the last one cut off.
    np.testing.assert_allclose(by_overlaps(problem, training, 2, 3, "auto"), whole, rtol=1e-9)
    ask = {"until": training.clock(problem).time(2), "save": 3}
    one, three = (tl.evolve(problem, training, tl.OverlapSGD(), replicas=n, **ask) for n in (1, 3))
    assert one.attrs["engine"].endswith("batches on all cores")
    np.testing.assert_array_equal(three.Q[:1], one.Q)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "backend"), [("square", "native"), pytest.param("erf", "xla", marks=pytest.mark.long)]
)
def test_first_passage_is_recorded_at_the_very_step(activation, backend):
    problem, training, *_ = make(activation, 1, 1, 30, learning_rate=0.1, constraint=tl.Sphere())
    steps = 400
    clock = training.clock(problem)
    times = clock.time(np.arange(1, steps + 1))
    threshold = 0.8 * float(
        tl.evolve(problem, training, tl.OverlapSGD(), until=times[0], save=[times[0]]).excess_risk[0, 0]
    )
    every = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), until=times[-1], save=times, replicas=8)
    risk = every.excess_risk.values
    for thresholds in (threshold, np.linspace(0.8, 0.99, 8) * risk[:, 0]):  # one for all replicas, or one for each
        few = tl.evolve(
            problem,
            training,
            tl.OverlapSGD(backend=backend),
            until=times[-1],
            save=2,
            replicas=8,
            risk_threshold=thresholds,
        )
        below = risk <= np.broadcast_to(thresholds, 8)[:, None]
        expected = np.where(below.any(axis=1), every.time.values[np.argmax(below, axis=1)], np.nan)
        assert np.isfinite(expected).any()
        np.testing.assert_allclose(few.crossing_time.values, expected, rtol=1e-12)


@pytest.mark.long
def test_a_million_dimensions_follow_the_ode():
    """Phase retrieval from a warm start: the scatter at d = 10^6 is of order 10^-3, and the mean is that of the ODE."""
    start = tl.GivenOverlaps([[1.0]], [[0.3]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(10**6), start=start)
    training = tl.SGD(1 / 12, constraint=tl.Sphere())
    tree = tl.compare(problem, training, [tl.OverlapSGD(), tl.SaadSolla()], until=0.1, save=3, replicas=32)
    assert tree.attrs["outcome"] in ("agrees", "consistent"), tree.attrs["verdict"]
    assert float(tree["OverlapSGD"].M.std("replica")[-1].max()) < 5e-3


@pytest.mark.slow
def test_an_interruption_leaves_what_was_saved_and_calls_it_unfinished(monkeypatch):
    """Stopped between two save points: the first one is kept, the rest is missing, and nothing is said to diverge."""
    monkeypatch.setattr(stepping, "CALL_SECONDS", 1e-6)  # as few steps a call as there are
    problem, training, *_ = make("erf", 2, 1, 50, learning_rate=1.0)

    def stop(name, fraction):
        if fraction > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(tl.Interrupted) as stopped:
        tl.evolve(problem, training, tl.OverlapSGD(), until=2.0, save=[1.0, 2.0], replicas=3, progress=stop)
    result = stopped.value.result
    whole = tl.evolve(problem, training, tl.OverlapSGD(), until=2.0, save=[1.0, 2.0], replicas=3)
    np.testing.assert_array_equal(result.Q.values[:, 1], whole.Q.values[:, 1])
    assert np.all(np.isnan(result.Q.values[:, 2])) and np.all(result.status.values == 2)


@pytest.mark.long
def test_overlap_thresholds_are_crossed_at_the_very_step():
    """Per target direction; the same from the saved overlaps of every step, and by direct SGD and the ODE."""
    problem = erf_committee(3, d=40)
    training = tl.SGD(4.0, layers=tl.Both(0.3))
    clock = training.clock(problem)
    times = clock.time(np.arange(1, 301))
    ask = {"until": times[-1], "replicas": 6, "overlap_threshold": 0.6}
    every = tl.evolve(problem, training, tl.OverlapSGD(), save=times, **ask)
    few = tl.evolve(problem, training, tl.OverlapSGD(backend="xla"), save=2, **ask)
    cosines = np.abs(every.M.values) / np.sqrt(np.diagonal(every.Q.values, axis1=2, axis2=3))[..., None]
    reached = cosines.max(axis=2) >= 0.6
    expected = np.where(reached.any(axis=1), every.time.values[np.argmax(reached, axis=1)], np.nan)
    assert np.isfinite(expected).any() and np.isnan(expected).any()
    for result in (every, few):
        np.testing.assert_allclose(result.overlap_time.values, expected, rtol=1e-12)
        assert np.all(np.isnan(result.crossing_time.values))
    on_weights = tl.evolve(problem, training, tl.DirectSGD(), save=times, **ask)
    cosines = np.abs(on_weights.M.values) / np.sqrt(np.diagonal(on_weights.Q.values, axis1=2, axis2=3))[..., None]
    first = on_weights.time.values[np.argmax(cosines.max(axis=2) >= 0.6, axis=1)]
    found = on_weights.overlap_time.values
    np.testing.assert_array_equal(found[np.isfinite(found)], first[np.isfinite(found)])


@pytest.mark.long
def test_the_ode_crosses_an_overlap_threshold_between_its_save_points():
    training = tl.SGD(1 / 12, constraint=tl.Sphere())
    result = tl.evolve(phase_retrieval(0.3), training, tl.SaadSolla(), until=2.0, save=2, overlap_threshold=0.8)
    expected = time_to_overlap(0.3, 0.8, 1 / 12, 0.0)
    np.testing.assert_allclose(float(result.overlap_time[0, 0]), expected, rtol=1e-8)


@pytest.mark.parametrize("backend", ["native", pytest.param("xla", marks=pytest.mark.long)])
def test_replicas_stop_when_they_have_crossed(backend):
    """Crossing times are those of replicas that go on; what comes later is missing, and nothing is an error."""
    problem, training, *_ = make("square", 1, 1, 30, learning_rate=0.1, constraint=tl.Sphere())
    until = float(training.clock(problem).time(1000))
    ask = {"until": until, "save": "linear:21", "replicas": 40, "risk_threshold": 1.5}
    on = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), **ask)
    off = tl.evolve(problem, training, tl.OverlapSGD(backend=backend), stop_at_threshold=True, **ask)
    np.testing.assert_array_equal(on.crossing_time.values, off.crossing_time.values)
    crossed = np.isfinite(on.crossing_time.values)
    assert 0 < crossed.sum()
    np.testing.assert_array_equal(off.status.values, np.where(crossed, 3, 0))
    after = off.time.values[None, :] > np.where(crossed, on.crossing_time.values, np.inf)[:, None]
    np.testing.assert_array_equal(np.isnan(off.risk.values), after)
    np.testing.assert_array_equal(on.M.values[~after], off.M.values[~after])
    with pytest.raises(tl.InvalidInput, match="stop_at_threshold"):
        tl.evolve(problem, training, tl.OverlapSGD(), until=until, stop_at_threshold=True)


@pytest.mark.slow
def test_each_replica_may_have_its_own_threshold():
    problem, training, *_ = make("square", 1, 1, 30, learning_rate=0.1, constraint=tl.Sphere())
    until = float(training.clock(problem).time(500))
    common = {"until": until, "save": 2, "replicas": 3}
    levels = [1.7, 1.2, 0.4]
    each = tl.evolve(problem, training, tl.OverlapSGD(), risk_threshold=levels, **common).crossing_time.values
    for replica, level in enumerate(levels):
        one = tl.evolve(problem, training, tl.OverlapSGD(), risk_threshold=level, **common).crossing_time.values
        np.testing.assert_array_equal(each[replica], one[replica])
    with pytest.raises(tl.InvalidInput, match="risk_threshold"):
        tl.evolve(problem, training, tl.OverlapSGD(), risk_threshold=[1.0, 2.0], **common)


KILLED = """
import os, sys
import twolayer as tl
from twolayer import stepping
stepping.CALL_SECONDS = 0.02
problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(30), noise=0.1)
description = {description}
def progress(name, fraction):
    if fraction > 0.55:
        os._exit(9)  # as if killed: nothing is tidied up
tl.evolve(problem, tl.SGD(2.0, momentum=0.3), description, until=40.0, save="linear:9", replicas=12, progress=progress,
          checkpoint=tl.Checkpoint(sys.argv[1], every=0.0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "description",
    [
        "tl.OverlapSGD()",
        pytest.param("tl.OverlapSGD(backend='xla')", marks=pytest.mark.long),
        pytest.param("tl.DirectSGD()", marks=pytest.mark.long),
        pytest.param("tl.DirectSGD(backend='native')", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_resumes_and_ends_with_the_same_numbers(description, tmp_path):
    place = tmp_path / "place.npz"
    code = KILLED.format(description=description)
    ended = subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert ended.returncode == 9 and place.exists()
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(30), noise=0.1)
    training, ask = tl.SGD(2.0, momentum=0.3), {"until": 40.0, "save": "linear:9", "replicas": 12}
    made = eval(description, {"tl": tl})
    fractions = []
    resumed = tl.evolve(
        problem, training, made, checkpoint=place, progress=lambda name, fraction: fractions.append(fraction), **ask
    )
    whole = tl.evolve(problem, training, made, **ask)
    assert fractions[0] > 0.3 and not place.exists()
    for name in ("Q", "M", "a", "risk", "status"):
        np.testing.assert_array_equal(resumed[name].values, whole[name].values)


def test_what_it_does_not_describe_is_refused():
    problem, *_ = make("erf", 2, 1, 20, learning_rate=1.0)
    with pytest.raises(tl.NotApplicable, match="DirectSGD"):
        tl.evolve(problem, tl.SGD(0.5, reuse=tl.Reused(2.0)), tl.OverlapSGD(), until=2.0)
    with pytest.raises(tl.NotApplicable, match="one sample a step"):
        tl.evolve(problem, tl.SGD(0.5, batch_size=4), tl.OverlapSGD(backend="native"), until=0.5)
    with pytest.raises(tl.InvalidInput, match="backend"):
        tl.OverlapSGD(backend="cuda")
    with pytest.raises(tl.NotApplicable, match="1024 samples"):
        tl.evolve(problem, tl.SGD(0.5, batch_size=2000, reuse=tl.Repeated(2)), tl.OverlapSGD(), until=100.0)


def test_programs_on_scalars_compute_what_the_function_does():
    """Products, sums, slices, indexing, selection: written out and run on vectors of replicas."""

    def function(A, x):
        y = jnp.where(A @ x > 0.0, jnp.tanh(A @ x), x[jnp.array([2, 0, 1])])
        return {"y": y[::-1], "s": jnp.sum(A[1:, :2] ** 3) + jnp.max(x), "t": jnp.concatenate([x[:1], A.T[0]])}

    rng = np.random.default_rng(0)
    A, x = rng.standard_normal((7, 3, 3)), rng.standard_normal((7, 3))
    program = scalarize(function, A[0], x[0])
    flat = [jnp.asarray(v) for v in np.concatenate([A.reshape(7, -1), x], axis=1).T]
    found = np.stack([np.asarray(v) for v in program.run(flat)], axis=1)
    for i in range(7):
        expected = np.concatenate(
            [np.ravel(v) for v in jax.tree.leaves(function(jnp.asarray(A[i]), jnp.asarray(x[i])))]
        )
        np.testing.assert_allclose(found[i], expected, rtol=1e-14)
    with pytest.raises(Unsupported, match="sort"):
        scalarize(jnp.sort, x[0])


def test_the_setting_keeps_the_dimensions_outside_every_span():
    for d, outside, rest in ((3, 2, 0), (4, 3, 0), (5, 3, 1), (100, 3, 96)):
        problem = as_data(tl.Problem(tl.Committee(1, "erf"), tl.Student(3, "erf"), tl.Gaussian(d)))
        made = overlap.make_setting(problem, as_data(tl.SGD(1.0, batch_size=8)))
        assert made.outside == outside
        assert made.degrees.tolist() == [rest - j for j in range(min(3, rest))]


@pytest.mark.slow
def test_one_kernel_serves_all_learning_rates_and_dimensions():
    """Rates, noise and the laws of lengths are data of the native code, which takes seconds to compile."""
    results = []
    for d, rate, noise in ((300, 0.3, 0.1), (300, 0.7, 0.3), (400, 0.3, 0.1)):
        problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "erf"), tl.Gaussian(d), noise=noise)
        description = tl.OverlapSGD(backend="native")
        results.append(tl.evolve(problem, tl.SGD(rate), description, until=0.05, save=2, replicas=8))
        compiled = compiled_text.cache_info().misses
        if len(results) == 1:
            first = compiled
    assert compiled == first
    assert len({float(result.excess_risk[0, -1]) for result in results}) == 3


def test_a_long_compilation_is_told_first():
    """Eight units with momentum take most of a minute; here nothing is compiled, which waits for the first step.

    That is so for a sweep, whose step is one function; in pieces it takes some seconds.
    """

    def kernel(p, momentum, is_shared=False):
        problem, training = as_data((erf_committee(p), tl.SGD(0.1, momentum=momentum)))
        program = drivers.written_out(overlap.make_setting(problem, training), Watch(False, False), is_shared)
        return native(program, 64)

    with pytest.warns(tl.Caution, match="compiled to native code first, which takes about [4-6]0 seconds"):
        kernel(8, 0.3, is_shared=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(2, 0.0)
        kernel(8, 0.3)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_one_program_serves_every_dimension(batch_size, caplog):
    def run(d, replicas=7):
        system = tl.Problem(tl.Committee(k=1, activation="erf"), tl.Student(2, "erf"), tl.Gaussian(d), noise=0.1)
        training, asked = tl.SGD(0.5, batch_size=batch_size), {"until": 0.3, "save": [0.3], "replicas": replicas}
        return tl.evolve(system, training, tl.OverlapSGD(), **asked)

    def compiled():
        messages = [record.getMessage() for record in caplog.records]
        programs = ("_begin", "_advance", "_measured", "_risks_of_rows")
        return [text for text in messages if any(f"Compiling jit({name})" in text for name in programs)]

    first = run(60)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        second = run(90)
        assert not compiled()
        run(60, replicas=9)
        assert compiled()  # another number of runs is another program, and is told
    assert float(abs(first.Q[:, -1] - second.Q[:, -1]).max()) > 1e-3


def test_steps_that_are_not_optimised_are_the_same_steps(monkeypatch):
    """XLA of jax 0.12 would optimise these for minutes; a plain batch is optimised by every version."""
    system = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "erf"), tl.Gaussian(30), noise=0.1)
    training, asked = tl.SGD(0.5, 3, momentum=0.5), {"until": 1.0, "save": [1.0], "replicas": 5}
    made, seen = [], drivers.never_optimised
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    monkeypatch.setattr(drivers, "never_optimised", lambda setting: made.append(seen(setting)) or made[-1])
    plain = tl.evolve(system, tl.SGD(0.5, 3), tl.OverlapSGD(), **asked)
    hasty = tl.evolve(system, training, tl.OverlapSGD(), **asked)
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 1))
    usual = tl.evolve(system, training, tl.OverlapSGD(), **asked)
    assert made[0] is False and True in made and made[-1] is False
    np.testing.assert_allclose(hasty.M, usual.M, atol=1e-5)  # normal numbers have seven digits
    assert float(abs(plain.M - usual.M).max()) > 1e-3
