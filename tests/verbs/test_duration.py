"""Time and memory of a run as `explain` estimates them: they follow what is asked, and nothing is run for them."""

import ctypes
import gc
import importlib
import json
import time
from pathlib import Path

import pytest

import twolayer as tl
from twolayer.ask import Ask
from twolayer.cli import main
from twolayer.verbs import duration
from twolayer.verbs.run_memory import memory_needed

explaining = importlib.import_module("twolayer.verbs.explain")  # the package's name is the function
PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
TRAINING = tl.SGD(0.05)
STEPS = 20.0 * 100 / 0.05  # until time 20


@pytest.fixture(autouse=True)
def known_speed(monkeypatch):
    """The machine for which the constants were measured, so that estimates do not depend on the load."""
    monkeypatch.setattr(duration, "_speed", lambda: 1.0)


def rows(**asked):
    return {row.description: row for row in tl.explain(PROBLEM, TRAINING, **asked).descriptions}


def times(**asked):
    return {name: row.seconds for name, row in rows(**asked).items() if row.applies}


def test_every_description_that_applies_has_a_time_and_a_memory_and_no_other():
    for training in (TRAINING, tl.SGD(0.05, reuse=tl.Reused(2.0))):
        for row in tl.explain(PROBLEM, training).descriptions:
            assert (row.seconds is not None) == row.applies, row
            assert (row.memory is not None) == row.applies, row
            assert row.seconds is None or 0.0 < row.seconds < 1e6, row
            assert row.memory is None or 0.0 < row.memory < 1e10, row


def test_times_follow_what_is_asked():
    few, many, long = (times(replicas=n, until=until) for n, until in ((8, 20.0), (8000, 20.0), (8, 2000.0)))
    for name in ("DirectSGD", "OverlapSGD", "BatchMap"):
        assert long[name] == pytest.approx(100 * few[name], rel=0.03), name  # steps, besides the risks
    for name in ("DirectSGD", "OverlapSGD", "SDE", "SaadSolla"):  # from random starts every replica has its own ODE
        assert 5 * few[name] < many[name] <= 1001 * few[name], name
    assert few["SaadSolla"] < long["SaadSolla"] < 100 * few["SaadSolla"]
    # A deterministic theory from a given start has one replica, whatever is asked.
    start = tl.GivenOverlaps([[1.0]], [[0.1]])
    given = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), start=start)
    one, all_of_them = (
        {row.description: row.seconds for row in tl.explain(given, TRAINING, replicas=n).descriptions} for n in (1, 100)
    )
    assert one["SaadSolla"] == all_of_them["SaadSolla"] and one["DirectSGD"] < all_of_them["DirectSGD"]


def test_risks_at_the_save_points_count_where_averages_are_expensive():
    cheap, expensive = duration.Averages(1e4, 3, False, 1e4), duration.Averages(1e9, 3, False, 2e8)
    ask = Ask(replicas=16, until=20.0)
    for description in (tl.DirectSGD(), tl.OverlapSGD(), tl.OverlapSGD(backend="xla")):
        few, many = (duration.seconds(description, PROBLEM, TRAINING, ask, cost) for cost in (cheap, expensive))
        assert few is not None and many is not None
        assert many - few == pytest.approx(16 * len(ask.times()) * 2e8 * duration.OPERATION, rel=0.01)


def test_a_simulation_of_the_weights_costs_nanoseconds_for_each_number():
    numbers = STEPS * 100 * 64
    assert 1e-9 < times(replicas=64)["DirectSGD"] / numbers < 1e-7


def test_times_are_shown_in_words():
    text = str(tl.explain(PROBLEM, TRAINING, replicas=16))
    assert "orders of magnitude for this machine, until = 20 with 16 replicas, without compiling" in text
    table = text.split("Times and memory")[0]
    assert "less than a second" in table and "less than 10 MB" in table and "minute" not in table
    explanation = tl.explain(PROBLEM, TRAINING, Ask(until=1e5, replicas=10**4))
    line = next(line for line in str(explanation).splitlines() if line.startswith("DirectSGD"))
    assert "exact at finite d" in line and "about " in line and " days " in line
    assert "until = 100000 with 10000 replicas" in explanation._repr_html_()
    assert float(explanation.to_dataset().seconds.sel(description="DirectSGD")) > 3600.0
    assert float(explanation.to_dataset().memory.sel(description="DirectSGD")) > 1e7
    assert "Times" in str(tl.explain(PROBLEM, TRAINING))


def test_memory_follows_what_is_kept_at_once():
    def memory(description, problem, training=TRAINING, **asked):
        averages = duration.Averages(1e4, 3, False, 1e4, 1e5)
        return memory_needed(description, problem, training, Ask(**asked), averages)

    def of_dimension(d):
        return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d))

    # Weights grow with d, and a replica in another group waits for the first ones; overlaps do not know d.
    assert memory(tl.DirectSGD(), of_dimension(10**7)) > 8 * 2 * 10**7
    assert memory(tl.DirectSGD(), of_dimension(10**7)) < 8 * 20 * 10**7
    assert memory(tl.OverlapSGD(), of_dimension(10**7)) == memory(tl.OverlapSGD(), of_dimension(10**3))
    # A fixed set of 2 d samples is held as a whole.
    fixed = tl.SGD(0.05, reuse=tl.Reused(2.0))
    assert memory(tl.DirectSGD(), of_dimension(4000), fixed) > 8 * 2 * 4000**2
    # The result holds every replica at every save point.
    few, many = (memory(tl.OverlapSGD(), PROBLEM, replicas=n) for n in (10**3, 10**5))
    assert 50 * few < many < 100 * few
    particles = [memory(tl.MeanField(particles=n), PROBLEM) for n in (1000, 4000)]
    assert particles[1] > 10 * particles[0] > 10 * 8 * 1000**2


def test_memory_that_is_not_there_is_shown_beside_what_is(monkeypatch):
    monkeypatch.setattr(explaining.machine, "available_memory", lambda: 3e9)
    text = str(tl.explain(PROBLEM, TRAINING, replicas=10**6, save=1000))
    assert "GB of 3 GB" in text and "GB of 3 GB" not in str(tl.explain(PROBLEM, TRAINING))


def test_options_of_a_description_count():
    plain, fine = times()["SDE"], times(descriptions=[tl.SDE(dt=1e-6)])["SDE"]
    assert fine > 1000 * plain
    with pytest.raises(tl.InvalidInput, match="`descriptions`"):
        tl.explain(PROBLEM, TRAINING, descriptions=["Nothing"])


def test_a_schedule_takes_the_time_of_its_phases():
    schedule = tl.Schedule([tl.SGD(0.05), tl.SGD(0.01)], [15.0])
    description, averages = tl.DirectSGD(), duration.Averages(1000.0)

    def seconds(training, until):
        return duration.seconds(description, PROBLEM, training, Ask(until=until), averages)

    parts = seconds(tl.SGD(0.05), 15.0) + seconds(tl.SGD(0.01), 5.0)
    assert seconds(schedule, 20.0) == pytest.approx(parts, rel=1e-6)
    assert seconds(schedule, 10.0) == pytest.approx(seconds(tl.SGD(0.05), 10.0), rel=1e-6)


def test_what_is_not_known_has_no_time(monkeypatch):
    class Unknown(tl.AbstractDescription):
        @property
        def references(self):
            return ()

        def applies(self, problem, training):
            return tl.SaadSolla().applies(problem, training)

        def run(self, problem, training, plan):
            raise AssertionError("nothing is run")

    assert times(until=1e308)["SaadSolla"] is None  # beyond the range of numbers
    averages = duration.Averages(1000.0)
    assert duration.seconds(Unknown(), PROBLEM, TRAINING, Ask(), averages) is None
    monkeypatch.setattr(duration.jax, "default_backend", lambda: "gpu")
    assert duration.seconds(tl.SaadSolla(), PROBLEM, TRAINING, Ask(), averages) is None


def test_an_estimate_costs_little(monkeypatch):
    """Nothing is run, and once the averages are compiled an explanation is a matter of a second or two."""
    times()
    for cls in (tl.DirectSGD, tl.OverlapSGD, tl.SaadSolla, tl.SDE, tl.BatchMap, tl.MeanField, tl.HDMF):
        monkeypatch.setattr(cls, "run", None)
    began = time.process_time()
    times(replicas=10**6, until=1e6)
    assert time.process_time() - began < 2.0


def test_few_steps_of_what_is_asked_are_told():
    (sentence,) = rows(until=0.0025)["SaadSolla"].cautions
    assert "covers 5 steps in all" in sentence
    assert not rows()["SaadSolla"].cautions


def test_the_command_line_takes_what_the_specification_asks(tmp_path, capsys):
    spec = tmp_path / "spec.toml"
    spec.write_text(
        """
[problem]
target = {kind = "PhaseRetrieval"}
student = {p = 1, activation = "square"}
inputs = {kind = "Gaussian", d = 100}
[training]
learning_rate = 0.05
[run]
until = 300.0
replicas = 50
descriptions = ["DirectSGD", {kind = "SDE", dt = 1e-7}]
"""
    )
    assert main(["explain", str(spec), "--json"]) == 0
    told = {row["description"]: row["seconds"] for row in json.loads(capsys.readouterr().out)["descriptions"]}
    asked = times(until=300.0, replicas=50, descriptions=[tl.SDE(dt=1e-7)])
    assert told["DirectSGD"] == pytest.approx(asked["DirectSGD"], rel=1e-6) and told["SDE"] > 1000.0
    assert main(["explain", str(spec)]) == 0
    assert "until = 300 with 50 replicas" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    "description, asked",
    [
        (tl.DirectSGD(backend="xla"), {"until": 20.0, "replicas": 16}),
        (tl.OverlapSGD(backend="xla"), {"until": 100.0, "replicas": 16}),
        (tl.SaadSolla(), {"until": 1000.0, "replicas": 64}),
        (tl.BatchMap(), {"until": 5.0, "replicas": 4}),
        (tl.SDE(backend="xla"), {"until": 5.0, "replicas": 64}),
        (tl.HDMF(particles=500), {"until": 10.0}),
        (tl.MeanField(particles=100), {"until": 10.0}),
        (tl.DMFT(), {"until": 4.0}),
    ],
)
def test_the_order_of_magnitude_is_right(description, asked):
    """In time of the processor, since others may use the machine; programs are compiled before."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(200))
    training = tl.SGD(0.5, batch_size=400, reuse=tl.Reused(400)) if isinstance(description, tl.DMFT) else tl.SGD(0.5)
    name = type(description).__name__
    (told,) = (
        row.seconds
        for row in tl.explain(problem, training, descriptions=[description], **asked).descriptions
        if row.description == name
    )
    tl.evolve(problem, training, description, **asked)
    began = time.process_time()
    tl.evolve(problem, training, description, **asked)
    taken = time.process_time() - began
    print(f"{name}: {told:.2g} s estimated, {taken:.2g} s taken")
    assert taken / 10 < told < 10 * taken


@pytest.mark.long
@pytest.mark.parametrize(
    "description, training, d, asked",
    [
        (tl.DirectSGD(backend="xla"), tl.SGD(0.5), 100_000, {"until": 0.0002, "replicas": 32}),
        (tl.DirectSGD(backend="xla"), tl.SGD(0.5, batch_size=2000, reuse=tl.Reused(2.0)), 2000, {"until": 0.5}),
        (tl.OverlapSGD(), tl.SGD(0.5), 200, {"until": 0.2, "save": 100, "replicas": 20_000}),
        (tl.SDE(backend="xla"), tl.SGD(0.5), 200, {"until": 0.5, "save": 10, "replicas": 4000}),
        (tl.DMFT(samples=2**18), tl.SGD(0.5, batch_size=400, reuse=tl.Reused(2.0)), 200, {"until": 4.0}),
    ],
)
def test_the_order_of_magnitude_of_memory_is_right(description, training, d, asked):
    """The peak of a second run, whose programs are compiled, over what the process holds before it."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system does not say what a process holds")

    def held(name):
        return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(d))
    asked = {"save": 3} | asked
    explanation = tl.explain(problem, training, descriptions=[description], **asked)
    (told,) = (row.memory for row in explanation.descriptions if row.description == type(description).__name__)
    tl.evolve(problem, training, description, throw=False, **asked)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = held("VmRSS")
    tl.evolve(problem, training, description, throw=False, **asked)
    taken = held("VmHWM") - before
    print(f"{type(description).__name__}: {told / 1e6:.3g} MB estimated, {taken / 1e6:.3g} MB taken")
    assert taken / 10 < told < 10 * taken
