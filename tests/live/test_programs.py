"""SGD and its equations in the browser's engine, against Python: the same numbers, and the same law."""

import base64
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.compiler.loops import counter
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.expectation import choose
from twolayer.live.live_programs import Watch, _of_overlaps, _setting, _step, live_program
from twolayer.specification.fields import replaced

PROCESS = """
    const module = new WebAssembly.Module(bytes(given.module));
    const process_ = new E.Process(module, given.manifest, given);
    process_.advanceTo(given.steps);
    const rows = process_.measure();
    const result = { time: process_.timePerStep * given.steps, width: process_.width, rows: [...rows] };
"""
THEORY = """
    const module = new WebAssembly.Module(bytes(given.module));
    const theory = new E.Theory(module, given.manifest, given);
    const result = { width: theory.width, rows: [...theory.solve(given.times)] };
"""


def erf(start=None, noise=0.01, **choices):
    start = start or tl.GivenOverlaps([[1.0, 0.1], [0.1, 0.9]], [[0.3, 0.1], [0.1, 0.2]])
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(300), start=start, noise=noise)
    return problem, tl.SGD(0.7, **choices)


def one(target, activation, rate, p=1, noise=0.01, **choices):
    problem = tl.Problem(target, tl.Student(p, activation), tl.Gaussian(200), start=tl.WarmStart(0.5), noise=noise)
    return problem, tl.SGD(rate, **choices)


# Free and spherical, first and both layers, momentum, noise and none, and all kinds of activations.
CASES = {
    "phase retrieval": one(tl.PhaseRetrieval(), "square", 0.08, noise=0.0, constraint=tl.Sphere()),
    "erf": erf(),
    "erf, both layers": erf(layers=tl.Both(ratio=0.5), weight_decay=0.01),
    "erf, momentum": erf(momentum=0.6, noise=0.0),
    "relu": one(tl.Committee(1, "relu"), "relu", 0.3, p=2),
    "tanh": one(tl.SingleIndex("tanh"), "tanh", 0.4, p=2, constraint=tl.Sphere()),
    "sigmoid": one(tl.SingleIndex("sigmoid"), "sigmoid", 2.0, p=2, layers=tl.Both()),
    "polynomial": one(tl.Hermite({2: 1.0, 3: 0.4}), "he3", 0.05, p=2, constraint=tl.Sphere()),
}
EQUATIONS = ("phase retrieval", "erf, both layers", "erf", "polynomial", "relu", "tanh", "sigmoid")
QUICK = ("phase retrieval", "erf, both layers")


def given(program, **others):
    return {"module": base64.b64encode(program.binary).decode(), "manifest": program.manifest} | others


def measured(found, manifest):
    """Return the rows of measured numbers by their names."""
    rows = np.array(found["rows"], dtype=float).reshape(-1, found["width"])
    named, place = {}, 0
    for name, shape in manifest["measured"].items():
        size = int(np.prod(shape))
        named[name] = rows[:, place : place + size].reshape(-1, *shape)
        place += size
    return named


def in_tiers(names, quick):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def agrees_step_by_step(compute, case):
    problem, training = CASES[case]
    program = live_program(problem, training, (problem.d,), replicas=3, with_theory=False)
    settings = {"learning_rate": 1.1 * float(training.learning_rate)}
    found = compute(PROCESS, given(program, steps=1000, replicas=3, settings=settings))
    training = tl.SGD(**{field: getattr(training, field) for field in ("layers", "constraint", "weight_decay")}
                      | {"momentum": training.momentum, **settings})  # fmt: skip
    until = training.clock(problem).time(1000)
    assert found["time"] == pytest.approx(until)
    result = tl.evolve(problem, training, tl.OverlapSGD(), until=until, save=[until], replicas=3).isel(time=-1)
    assert result.step == 1000
    here = measured(found, program.manifest)
    for name in ("Q", "M", "a", "excess_risk", "risk"):
        # Numbers are drawn in single precision, and native code rounds their products and sums at once.
        np.testing.assert_allclose(here[name], result[name].values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", in_tiers(CASES, QUICK))
def test_steps_are_those_of_python(case, compute):
    agrees_step_by_step(compute, case)


STATES = """
    const module = new WebAssembly.Module(bytes(given.module));
    const process_ = new E.Process(module, given.manifest, given);
    const size = given.manifest.cells[0].states[0].length;
    const result = given.stops.map((stop) => {
        process_.advanceTo(stop);
        return process_.replicas.map((at) => [...process_.floats(at.state, size)]);
    });
"""


OPERATIONS = {
    "mul": np.multiply, "add": np.add, "add_any": np.add, "sub": np.subtract, "div": np.divide, "neg": np.negative,
    "min": np.minimum, "max": np.maximum, "abs": np.abs, "square": np.square, "sqrt": np.sqrt, "exp": np.exp,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "lt": np.less, "le": np.less_equal, "integer_pow": lambda x, y: x**y,
    "select_n": lambda which, no, yes: np.where(which, yes, no),
}  # fmt: skip


def taken(program, inputs):
    """The outputs of a program for rows of its inputs, one operation after the other in NumPy."""
    done = []

    def value(node):
        if node.number is None:
            return np.asarray(node.value, node.dtype)
        return inputs[-1 - node.number] if node.number < 0 else done[node.number]

    for op in program.ops:
        parameters = {name: item for name, item in op.parameters if name == "y"}
        done.append(OPERATIONS[op.primitive.name](*map(value, op.arguments), **parameters))
    return [np.broadcast_to(value(node), np.shape(inputs[0])) for node in program.outputs]


@pytest.mark.parametrize("case", QUICK)
def test_a_thousand_steps_are_those_of_python_to_twelve_digits(case, compute):
    """Against the same operations one by one: native code rounds products and sums at once, and differs by more."""
    problem, training = CASES[case]
    program = live_program(problem, training, (problem.d,), replicas=3, with_theory=False)
    stops = [1, 10, 100, 1000]
    found = np.array(compute(STATES, given(program, stops=stops, replicas=3)))
    (cell,) = program.manifest["cells"]
    with double():
        step = _step(_setting(problem, training, problem.d), Watch(False, False))
        # Random numbers depend on the counter alone, so that those of all steps are drawn at once.
        at = np.tile(np.arange(stops[-1]), 3)
        words = [np.repeat(word, stops[-1]).astype(np.uint32) for word in np.transpose(cell["words"])]
        inputs = [*words, *counter(jnp.asarray(at)), *(np.full(len(at), number) for number in cell["numbers"])]
        drawn = np.reshape(step.draws.run(list(map(jnp.asarray, inputs))), (-1, 3, stops[-1]))
    states, own = (list(np.transpose(np.asarray(cell[name], dtype=float))) for name in ("states", "own"))
    numbers = [np.full(3, number) for number in cell["numbers"]]
    for n in range(stops[-1]):
        states = taken(step.step, [*states, *own, *numbers, *drawn[:, :, n]])
        if n + 1 in stops:
            here, there = found[stops.index(n + 1)], np.transpose(states)
            np.testing.assert_allclose(here, there, rtol=1e-12, atol=1e-12, err_msg=f"step {n + 1}")
    assert not np.allclose(found[-1], found[-2], rtol=1e-3)  # the runs move


@pytest.mark.parametrize("case", in_tiers(EQUATIONS, QUICK[:1]))
def test_the_equations_are_those_of_python(case, compute):
    """At another learning rate and noise than the program was made with."""
    problem, training = CASES[case]
    program = live_program(problem, training, replicas=1)
    rate, noise = 0.8 * float(training.learning_rate), 2.0 * float(problem.noise)
    settings = {"learning_rate": rate} | ({"noise": noise} if noise else {})
    times = np.linspace(0.0, 3.0, 7)
    found = compute(THEORY, given(program, settings=settings, times=times.tolist()))
    other = tl.Problem(problem.target, problem.student, problem.inputs, start=problem.start, noise=noise)
    slower = tl.SGD(rate, layers=training.layers, constraint=training.constraint, weight_decay=training.weight_decay)
    result = tl.evolve(other, slower, tl.SaadSolla(), until=3.0, save=times)
    here = measured(found, program.manifest)
    for name in ("Q", "M", "a", "excess_risk", "risk"):
        # The tolerance of a step is 1e-8; errors grow along the way to the target.
        np.testing.assert_allclose(here[name], result[name].values[0], rtol=1e-5, atol=1e-7, err_msg=name)


LAWS = {
    "phase retrieval": one(tl.PhaseRetrieval(), "square", 0.05, noise=0.5, constraint=tl.Sphere()),
    "erf, both layers, momentum": erf(tl.WarmStart(0.5), layers=tl.Both(ratio=0.5), momentum=0.6),
}


def overlaps_of_runs(M, Q, a):
    """Squared overlaps, since their signs are those of the starts, and squared lengths and output weights of runs."""
    rows = len(M)
    lengths = np.diagonal(Q, axis1=1, axis2=2)
    return np.concatenate([np.reshape(part, (rows, -1)) for part in (M**2, lengths, a)], axis=1)


def energy_and_level(x, y):
    """The energy distance of two samples, and the largest of 200 permutations."""
    both = np.concatenate([x, y])
    both = both / np.maximum(both.std(axis=0), 1e-12)
    gaps = np.linalg.norm(both[:, None] - both[None, :], axis=-1)

    def energy(order, n):
        a, b = order[:n], order[n:]
        return 2.0 * gaps[np.ix_(a, b)].mean() - gaps[np.ix_(a, a)].mean() - gaps[np.ix_(b, b)].mean()

    rng = np.random.default_rng(0)
    permuted = [energy(rng.permutation(len(both)), len(x)) for _ in range(200)]
    return energy(np.arange(len(both)), len(x)), np.max(permuted)


@pytest.mark.slow
@pytest.mark.parametrize("case", LAWS)
def test_long_runs_have_the_law_of_python(case, compute):
    problem, training = LAWS[case]
    replicas, steps = 400, 10_000
    program = live_program(problem, training, replicas=replicas, seed=1, with_theory=False)
    found = measured(compute(PROCESS, given(program, steps=steps, replicas=replicas)), program.manifest)
    until = training.clock(problem).time(steps)
    result = tl.evolve(problem, training, tl.OverlapSGD(), until=until, save=2, replicas=replicas, seed=2)
    last = {name: result[name].values[:, -1] for name in ("M", "Q", "a")}
    distance, level = energy_and_level(
        overlaps_of_runs(**{name: found[name] for name in last}), overlaps_of_runs(**last)
    )
    assert distance < level


def test_the_test_of_the_law_sees_a_shift():
    x, y = np.random.default_rng(1).normal(size=(2, 400, 1))
    distance, level = energy_and_level(x, y + 0.4)
    assert distance > level


def test_first_passages_are_those_of_python(compute):
    problem, training = CASES["phase retrieval"]
    program = live_program(problem, training, replicas=2, risk_threshold=0.5, with_theory=False)
    found = compute(PROCESS, given(program, steps=4000, replicas=2))
    until = training.clock(problem).time(4000)
    risk = tl.evolve(problem, training, tl.OverlapSGD(), until=until, save=2).excess_risk.values[0, 0]
    asked = {"risk_threshold": 0.5 * float(risk)}
    result = tl.evolve(problem, training, tl.OverlapSGD(), until=until, save=2, replicas=2, **asked)
    steps = np.array(found["rows"]).reshape(2, -1)[:, -1]
    assert np.all(steps > 0.0)
    np.testing.assert_allclose(training.clock(problem).time(steps), result.crossing_time.values, rtol=1e-12)


@pytest.mark.parametrize(
    ("target", "loss", "noise"),
    [("sign(z)", "square", tl.Flips(0.1)), ("sign(z)", "hinge", tl.Flips(0.1)), ("erf(z)", tl.Huber(0.5), 0.3)],
    ids=str,
)
def test_the_risk_is_measured_with_the_floor_of_its_loss(target, loss, noise):
    problem = tl.Problem(
        tl.SingleIndex(target), tl.Student(1, "erf"), tl.Gaussian(200), start=tl.WarmStart(0.5), loss=loss, noise=noise
    )
    with double():
        setting = _setting(problem, tl.SGD(0.3), 200)
        chosen = choose(problem, ("excess_risk",)).variants()[0]
        excess, risk = _of_overlaps(setting, chosen, problem.draw(replica_key(0, 0)))[3:5]
    assert float(risk - excess) == pytest.approx(problem.risk_floor, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, t: (p, tl.SGD(0.1, batch_size=2)), "one sample a step"),
        (lambda p, t: (replaced(p, inputs=tl.Gaussian(100, spectrum=[(2.0, 1.0)])), t), "covariance I"),
        (lambda p, t: (replaced(p, student=tl.Student(1, "erf"), loss=tl.Huber(1.0)), t), "the risk cannot be written"),
        (lambda p, t: (p, t, (3,)), "`dimensions` must hold numbers above"),
    ],
)
def test_what_no_browser_computes_is_refused(change, message):
    with pytest.raises((tl.NotApplicable, tl.InvalidInput), match=message):
        partial(live_program, *change(*CASES["phase retrieval"]))()
