"""Cautions: what can be done, but says little or takes long, is told before anybody relies on it."""

import dataclasses
import importlib
import json
import warnings

import numpy as np
import pytest

import twolayer as tl
from twolayer.ask import Ask
from twolayer.cli import main
from twolayer.cli.answer import telling_warnings
from twolayer.core import remembered
from twolayer.verbs import cautions, duration

evolving = importlib.import_module("twolayer.verbs.evolve")  # the package's names are the functions
explaining = importlib.import_module("twolayer.verbs.explain")  # the package's name is the function


def phase_retrieval(d=200, p=1):
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d))


def erf_on_erf(d=200, spectrum=None):
    """One erf unit learns another."""
    return tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "erf"), tl.Gaussian(d, spectrum=spectrum))


@pytest.fixture
def told():
    """Cautions as they are warned of, in a list."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(each.message) for each in caught if each.category is tl.Caution]


def test_a_limit_of_small_steps_warns_of_large_and_few_ones(told):
    data = tl.evolve(erf_on_erf(), tl.SGD(1000.0), tl.SaadSolla(), until=40.0, save=3, throw=False)
    assert data.step.values[-1] == 8
    scatter, few = told()
    assert "sqrt(gamma/(p d)) = 2.2 is above 1" in scatter and "covers 8 steps in all" in few
    assert data.attrs["cautions"].splitlines() == [scatter, few]


def test_ordinary_training_and_exact_descriptions_say_nothing(told):
    ordinary = tl.evolve(erf_on_erf(), tl.SGD(1.0), tl.SaadSolla(), until=1.0, save=3)
    exact = tl.evolve(erf_on_erf(), tl.SGD(1000.0), tl.OverlapSGD(backend="xla"), until=40.0, save=3, throw=False)
    assert told() == [] and "cautions" not in ordinary.attrs and "cautions" not in exact.attrs


@pytest.mark.parametrize(
    "description, training, number",
    [
        (tl.SaadSolla(), tl.SGD(1000.0), 2),
        (tl.SaadSolla(), tl.SGD(199.0), 1),
        (tl.SaadSolla(), tl.SGD(1000.0, reuse=tl.Repeated(2)), 2),
        (tl.SDE(), tl.SGD(1000.0), 2),
        (tl.MeanField(), tl.SGD(1000.0), 2),
        # Giant steps on large batches, fresh or not, and steps on a fixed set, are what these are about.
        (tl.BatchMap(), tl.SGD(1000.0), 0),
        (tl.DMFT(), tl.SGD(1000.0, reuse=tl.Reused(3.0)), 0),
        (tl.DMFT(), tl.SGD(1000.0, batch_size=200), 0),
        (tl.DirectSGD(), tl.SGD(1000.0), 0),
    ],
)
def test_only_limits_of_continuous_time_are_concerned(description, training, number):
    assert len(cautions.of_limit(description, phase_retrieval(), training, 8)) == number
    assert len(cautions.of_limit(description, phase_retrieval(10**6), training, 1000)) == 0


def test_an_error_of_more_than_one_percent_is_told():
    data = tl.evolve(erf_on_erf(), tl.SGD(1.0), tl.OverlapSGD(backend="xla"), until=1.0, save=3)
    assert cautions.of_result("OverlapSGD", data) == ()
    largest = float(data.excess_risk.max())
    for share, number in ((0.005, 0), (0.28, 1), (np.inf, 1)):
        broken = data.assign(risk_error=(("replica", "time"), np.full((1, 3), share * largest)))
        assert len(cautions.of_result("OverlapSGD", broken)) == number
    assert (
        "reaches 0.28 of its largest value"
        in cautions.of_result(
            "OverlapSGD", data.assign(risk_error=(("replica", "time"), np.full((1, 3), 0.28 * largest)))
        )[0]
    )


def test_explain_says_yes_with_caution(monkeypatch):
    explanation = tl.explain(erf_on_erf(), tl.SGD(1000.0))
    rows = {row.description: row for row in explanation.descriptions}
    assert rows["SaadSolla"].applies and len(rows["SaadSolla"].cautions) == 1 and not rows["OverlapSGD"].cautions
    assert "yes, with caution" in str(explanation) and "Caution: `SaadSolla`" in str(explanation)
    assert tl.explain(erf_on_erf(), tl.SGD(1.0)).cautions == ()
    # An engine with a large error: descriptions that move by its averages say so, those that report a risk do not.
    values = {"excess_risk": 0.3, "v": [[0.1, 1e-5]], "phi_hd": [[0.5]], "chi": [0.0]}
    errors = {"excess_risk": 0.002, "v": [[1e-9, 1e-6]], "phi_hd": [[0.14]], "chi": [1e-12]}
    assert list(cautions.of_moments(values, errors)) == ["phi_hd"]
    assert "is 0.28 of its size" in cautions.of_moments(values, errors)["phi_hd"]
    monkeypatch.setattr(explaining, "of_moments", lambda values, errors: {"phi_hd": "A sentence."})
    rows = {row.description: row for row in tl.explain(erf_on_erf(), tl.SGD(1.0)).descriptions}
    assert rows["SaadSolla"].cautions == rows["SDE"].cautions == ("A sentence.",)
    assert not rows["OverlapSGD"].cautions and not rows["MeanField"].cautions


def test_a_long_run_is_told_once_from_what_was_seen(monkeypatch, told):
    """At one second for a report and a hundredth of the work in each, a hundred seconds remain."""
    seconds = iter(range(1000))
    monkeypatch.setattr(cautions.time, "monotonic", lambda: float(next(seconds)))
    heard = []
    forecast = cautions.Forecast(tl.OverlapSGD(), heard.append)
    for n in range(101):
        forecast(n / 100)
    assert heard[-1] == 1.0 and len(heard) == 101  # the listener hears everything
    (sentence,) = told()
    assert sentence.startswith("`OverlapSGD` takes about 2 minutes more")
    quick = cautions.Forecast(tl.OverlapSGD(), None)
    for n in range(31):
        quick(n / 30)
    assert len(told()) == 1


def test_a_long_run_is_told_before_it_begins_and_once(monkeypatch, told):
    """Native code at a known speed; what was foretold is not told again from the first seconds."""
    monkeypatch.setattr(duration, "_speed", lambda: 1.0)
    problem, training = phase_retrieval(d=10**5), tl.SGD(0.05)

    def interrupted(*arguments):
        assert len(told()) == 1, "it is told before"
        raise KeyboardInterrupt

    monkeypatch.setattr(evolving, "follow_phases", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tl.evolve(problem, training, "DirectSGD", until=5.0, replicas=4)
    (sentence,) = told()
    assert sentence.startswith("`DirectSGD` takes about ") and "hours here, to an order of magnitude" in sentence
    both = duration.foreseen([tl.DirectSGD(), tl.OverlapSGD()], problem, training, Ask(until=5.0, replicas=4))
    assert "(`DirectSGD` " in both[0] and ", `OverlapSGD` " in both[0]
    assert duration.foreseen([tl.DirectSGD()], phase_retrieval(), training, Ask(until=5.0, replicas=4)) == ()
    forecast = cautions.Forecast(tl.DirectSGD(), None, is_told=True)
    seconds = iter(range(1000))
    monkeypatch.setattr(cautions.time, "monotonic", lambda: float(next(seconds)))
    for n in range(101):
        forecast(n / 100)
    assert len(told()) == 1


def test_what_explain_measured_is_known_before_a_run(monkeypatch):
    """Averages that nobody has measured count nothing; those of another problem are other ones."""
    monkeypatch.setattr(remembered, "_here", {})
    monkeypatch.setattr(remembered, "keep", lambda: None)
    monkeypatch.setattr(duration, "_speed", lambda: 1.0)
    problem, training, ask = phase_retrieval(), tl.SGD(0.05), Ask(until=1000.0, replicas=10)
    measured = duration.Averages(1e9, 2, True, 1e8, 1e6)
    assert duration.foreseen([tl.SaadSolla()], problem, training, ask) == ()
    duration.remember_averages(problem, training, measured)
    assert duration.recalled(phase_retrieval(d=500), training) == measured
    assert duration.recalled(phase_retrieval(p=2), training) == duration.Averages()
    assert "`SaadSolla` takes about " in duration.foreseen([tl.SaadSolla()], problem, training, ask)[0]


def test_a_run_says_how_long_the_next_one_of_its_kind_takes_also_in_another_process(monkeypatch, tmp_path):
    """Nobody has measured the averages: a run ten times as long, of three times as many starts, takes thirty times."""
    monkeypatch.setattr(remembered, "_here", {})
    monkeypatch.setattr(remembered, "_file", lambda topic: tmp_path / topic)
    monkeypatch.setattr(duration, "_speed", lambda: 1.0)
    problem, training = phase_retrieval(), tl.SGD(0.05)
    ask = Ask(until=10.0, save=2, replicas=10)
    duration.remember_run(tl.SaadSolla(), problem, training, ask, 0.5)
    assert duration.seconds_as_before(tl.SaadSolla(), problem, training, ask) == 0.0, "not worth it"
    duration.remember_run(tl.SaadSolla(), problem, training, ask, 7.0)
    monkeypatch.setattr(remembered, "_here", {})  # as in a process that has just begun
    assert duration.seconds_as_before(tl.SaadSolla(), problem, training, ask) == pytest.approx(7.0)
    longer = dataclasses.replace(ask, until=100.0, replicas=30)
    assert 25.0 < duration.seconds_as_before(tl.SaadSolla(), problem, training, longer) / 7.0 < 30.5
    (sentence,) = duration.foreseen([tl.SaadSolla()], problem, training, longer)
    assert sentence.startswith("`SaadSolla` takes about ") and " min" in sentence
    duration.remember_run(tl.DirectSGD(), problem, training, ask, 1e6)
    assert duration.seconds_as_before(tl.DirectSGD(), problem, training, ask) == 0.0, "steps are most of its work"


@pytest.mark.parametrize(
    "seconds, words",
    [
        (0.2, "less than a second"),
        (3.4, "3 s"),
        (37.0, "40 s"),
        (55.0, "a minute"),
        (61.0, "a minute"),
        (100.0, "2 minutes"),
        (7300.0, "2 hours"),
        (4e5, "4.6 days"),
    ],
)
def test_times_in_words(seconds, words):
    assert cautions.in_words(seconds) == words


@pytest.mark.slow
def test_the_command_line_tells_cautions_once_and_the_report_keeps_them(tmp_path, capsys):
    spec = tmp_path / "spec.toml"
    spec.write_text(
        """
[problem.target]
kind = "Committee"
k = 1
activation = "erf"
[problem.student]
p = 1
activation = "erf"
[problem.inputs]
kind = "Gaussian"
d = 200
[training]
learning_rate = 1000.0
[run]
descriptions = ["OverlapSGD", "SaadSolla"]
until = 40.0
save = 3
replicas = 2
"""
    )
    assert main(["run", str(spec), "--out", str(tmp_path / "out"), "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert len(answer["cautions"]) == 2 and err.count("twolayer: Caution: ") == 2
    text = (tmp_path / "out" / "report.md").read_text()
    assert all(f"Caution: {sentence}" in text for sentence in answer["cautions"])


@pytest.mark.parametrize("quiet, lines", [(False, ["twolayer: Caution: One."]), (True, [])])
def test_commands_tell_each_warning_once_and_quiet_ones_no_caution(quiet, lines, capsys):
    with telling_warnings(quiet):
        warnings.simplefilter("always")
        cautions.tell(["One.", "One."])
        warnings.warn("Something else.", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [*lines, "twolayer: Something else."]


def test_the_leading_direction_of_a_power_law_never_reaches_the_limit():
    """Its eigenvalue grows with d, so that gamma c_1/(p d) does not fall: a caution at any d, none for flat spectra."""
    for d in (300, 10**6):
        steep = erf_on_erf(d, tl.PowerLaw(1.5))
        (sentence,) = cautions.of_limit(tl.SaadSolla(), steep, tl.SGD(1.0), 10**6)
        assert "c_1" in sentence and sentence.endswith(".")
        assert cautions.of_limit(tl.SaadSolla(), steep, tl.SGD(0.01), 10**6) == ()
        assert "sqrt(gamma c_1/(p d))" in tl.SaadSolla().applies(steep, tl.SGD(1.0)).statement
    flat = erf_on_erf(300, [(1.5, 0.5), (0.5, 0.5)])
    assert cautions.of_limit(tl.SaadSolla(), flat, tl.SGD(1.0), 10**6) == ()
