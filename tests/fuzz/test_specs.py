"""Specifications: mutated TOML and JSON is a specification or is refused in one sentence."""

import json
import os
from pathlib import Path

import pytest

from tests.fuzz.mutations import EDGES, edge, mutate_bytes, mutate_text
from twolayer.experiment import RunSpec, parse_spec, read_spec
from twolayer.specification.codec import from_json, to_json

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def test_mutated_toml(fuzz):
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES]
    plain = ["\n".join(line.split("#")[0].rstrip() for line in text.split("\n") if line.strip()) for text in texts]
    for case in fuzz.rounds(300, 4000):
        text = mutate_text(fuzz.rng, plain[case % len(plain)])
        fuzz.call(lambda text=text: parse_spec(text), text[-300:])
    assert fuzz.outcomes["answered"] > 10 and fuzz.outcomes["refused"] > 50


def test_overrides(fuzz):
    text = EXAMPLES[0].read_text(encoding="utf-8")
    paths = [
        "problem.inputs.d",
        "problem.student.p",
        "problem.target.k",
        "problem.target.activation",
        "problem.start.norm",
    ]
    paths += ["training.learning_rate", "training.batch_size", "training.reuse", "training.constraint", "run.save"]
    paths += [
        "run.until",
        "run.replicas",
        "run.seed",
        "run.descriptions",
        "title",
        "problem",
        "training.momentum",
        "x.y.z",
    ]
    for case in fuzz.rounds(300, 2500):
        path = paths[case % len(paths)] if case % 7 else edge(fuzz.rng)
        value = ["linear:", "log:", "", "", ""][case % 5] + edge(fuzz.rng)
        fuzz.call(lambda path=path, value=value: parse_spec(text, [f"{path}={value}"]), f"{path[:40]}={value[:60]}")
    assert fuzz.outcomes["answered"] > 10 and fuzz.outcomes["refused"] > 50


def test_mutated_json(fuzz):
    texts = [to_json(read_spec(path)) for path in EXAMPLES]
    for case in fuzz.rounds(200, 2000):
        content = json.dumps(json.loads(texts[case % len(texts)]), indent=0)
        if case % 2:
            content = mutate_text(fuzz.rng, content)
        else:
            content = mutate_bytes(fuzz.rng, content.encode()).decode("latin1")
        fuzz.call(lambda content=content: from_json(content, RunSpec), content[-300:])
    assert fuzz.outcomes["refused"] > 50


def test_values_at_an_edge_in_every_field(fuzz):
    whole = json.loads(to_json(read_spec(EXAMPLES[0])))
    places = list(_leaves(whole))
    values = [10**400, "long", -1, 2**63, "x" * 10_000, [], {}, [[1]] * 50, None, True, 1e308, "é"]
    for case in fuzz.rounds(100, 1200):
        data = json.loads(json.dumps(whole))
        *path, last = places[case % len(places)]
        table = data
        for key in path:
            table = table[key]
        table[last] = values[int(fuzz.rng.integers(len(values)))]
        text = json.dumps(data).replace('"long"', "9" * 5000)  # Python refuses to write such a number itself
        fuzz.call(lambda text=text: from_json(text, RunSpec), str(places[case % len(places)]))


def _leaves(data, path=()):
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _leaves(value, (*path, key))


def test_what_is_no_file(fuzz, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.toml").write_bytes(b"#" * (2**25 + 10))
    for name in ["/dev/zero", "/dev/tty", str(tmp_path / "pipe"), "large.toml", "x" * 5000, ".", "", "a\0b", *EDGES]:
        fuzz.call(lambda name=name: read_spec(name), name[:60])
    assert "answered" not in fuzz.outcomes


@pytest.mark.parametrize("field", ["problem.inputs.d", "run.save", "run.seed"])
def test_long_numbers_are_told_by_their_size(field):
    text = EXAMPLES[0].read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"digits|valid TOML|must be") as told:
        parse_spec(text, [f"{field}=0x{'f' * 5000}"])
    assert len(str(told.value)) < 300
