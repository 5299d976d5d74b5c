"""Sizes: what does not fit the memory is refused at once, with what it would take and what fits."""

import time
from pathlib import Path

import pytest

import twolayer as tl

SIZES = (1, 2, 3, 10, 300, 10**4, 10**5, 10**6, 10**7, 10**9, 10**12, 2**53, 2**53 + 1, 10**20)


def _problem(p, k, d, activation):
    return tl.Problem(tl.Committee(k, activation), tl.Student(p, activation), tl.Gaussian(d))


def test_sizes_of_a_problem(fuzz):
    """Everything up to the first step; small ones are left to the other tests."""
    for _ in fuzz.rounds(150, 1000):
        p, k, d, replicas, save = (int(fuzz.rng.choice(SIZES)) for _ in range(5))
        if p * k * replicas * save < 10**9:
            continue
        training = tl.SGD(0.1, batch_size=int(fuzz.rng.choice(SIZES[:9])))

        def ask(p=p, k=k, d=d, replicas=replicas, save=save, training=training):
            problem = _problem(p, k, d, str(fuzz.rng.choice(["erf", "relu", "tanh"])))
            tl.evolve(problem, training, "SaadSolla", replicas=replicas, save=save)

        fuzz.call(ask, f"p={p}, k={k}, d={d}, replicas={replicas}, save={save}")
    assert set(fuzz.outcomes) == {"refused"}


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda: _problem(10**5, 1, 10**6, "erf"), r"`p` must be at most \d+ here.* would take 320 GB"),
        (lambda: _problem(1, 10**5, 10**6, "erf"), r"`k` must be at most \d+ here"),
        (lambda: _problem(1, 10**12, 10**13, "erf"), r"`k` must be at most \d+ here"),
        (lambda: tl.explain(_problem(300, 1, 10**6, "erf"), tl.SGD(0.1)), "the moment `phi_hd` by ThresholdUnits"),
        (
            lambda: tl.evolve(_problem(1, 1, 100, "erf"), tl.SGD(0.1), "OverlapSGD", replicas=10**7, save=10**4),
            "`save` must be at most .* replicas",
        ),
        (
            lambda: tl.exit_time(_problem(5000, 1, 10**5, "square"), tl.SGD(0.1)),
            "`replicas` must be at most .* starts need",
        ),
    ],
)
def test_what_is_too_large_is_told_with_what_fits(fuzz, ask, words):
    began = time.perf_counter()
    with pytest.raises(tl.InvalidInput, match=words), fuzz.limits(words):
        ask()
    assert time.perf_counter() - began < 10.0  # nothing was drawn or compiled


def test_sizes_on_the_command_line(fuzz):
    large = ["100000", "1000000000", str(10**12), "9" * 30]
    asked = [
        ["ntk", "sphere", "--n"],
        ["ntk", "sphere", "--d"],
        ["exit-time", "--p"],
        ["learn", "z1", "--student", "erf", "--p"],
    ]
    asked += [["ntk", "sphere", "--n", "10", "--width"], ["ntk", "sphere", "--n", "10", "--steps"]]
    asked += [["ntk", "sphere", "--n", "10", "--shares", "3", "--test"], ["exit-time", "--replicas"]]
    for case in fuzz.rounds(12, 300):
        command = asked[case % len(asked)]
        value = large[1 + case % 3] if command[-1] in ("--width", "--steps", "--test", "--n") else large[case % 4]
        if command == ["learn", "z1", "--student", "erf", "--p"] or command[-1] == "--width":
            command = [*command[:-1], "--d", "50", command[-1]]
        assert fuzz.command([*command, value]) == 2
    assert not list(Path().iterdir())
