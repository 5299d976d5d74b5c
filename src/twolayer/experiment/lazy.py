"""Specification files of `ntk`: a data set, the student, the training, and what is asked.

[data]                      which samples, as `load_samples` names them; or X and y in [problem.inputs]
source = "mnist"            mnist, fashion-mnist, cifar10, a file, or "sphere": random unit inputs
n = 1000
test = 1000                 test samples

[problem.student]
p = 4096
activation = "relu"

[problem.start]
kind = "AntisymmetricStart"

[training]
learning_rate = 40.0        left out: that of the step size 1 / lambda_max
layers = "First"

[run]                       the fields of `NTKAsk`
steps = 200
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twolayer.analyses import LazySpec, NTKAsk
from twolayer.core.errors import InvalidInput, shown
from twolayer.core.memory_limit import check_size
from twolayer.core.types import PathLike, Unchecked
from twolayer.data import load_samples
from twolayer.data.array_files import BYTES_OF_A_NUMBER
from twolayer.data.samples import SamplesLike
from twolayer.experiment.specs import parse_tables, read_tables, refuse_unknown
from twolayer.problem import Problem, Samples
from twolayer.specification.codec import decode, encode, to_json
from twolayer.specification.fields import count
from twolayer.training import SGD
from twolayer.training.sgd import AbstractLayers

TABLES = ("title", "data", "problem", "training", "run")
RUN_FIELDS = tuple(field.name for field in dataclasses.fields(NTKAsk))
SPHERE = "sphere"
# Samples that are taken of a source unless it is said, and test samples that `shares` need.
SAMPLES, TEST_SAMPLES = 1000, 1000


def load_data(
    source: SamplesLike = SPHERE,
    n: Unchecked[int | None] = None,
    d: Unchecked[int] = 20,
    classes: Unchecked[int | Sequence[int] | None] = None,
    random_labels: Unchecked[float] = 0.0,
    test: Unchecked[int | None] = None,
    seed: int = 0,
    data_dir: PathLike | None = None,
    download: bool = False,
    has_target: bool = False,
) -> tuple[Samples, Samples | None]:
    """Training and test samples of a source.

    Parameters
    ----------
    source
        As `twolayer.load_samples` takes it, or ``"sphere"``: uniform unit inputs in d dimensions, with the sign of
        their first coordinate.
    n, test
        Training samples, a thousand (or all there are) when left out, and test samples, none when left out.
    d
        The dimension of the sphere.
    classes, random_labels, data_dir, download
        As in `twolayer.load_samples`.
    seed
        Of the sphere and of random labels.
    has_target
        Whether a target gives the labels, in place of random ones.
    """
    share = 0.0 if has_target else random_labels
    if source == SPHERE:
        samples = _sphere(SAMPLES if n is None else n, d, random_labels, [seed, 10])
        return samples, None if test is None else _sphere(count("test")(test), d, 0.0, [seed, 11])
    given: dict[str, Any] = {"classes": classes, "data_dir": data_dir, "download": download}
    if n is None:
        n = min(SAMPLES, load_samples(source, **given).n)
    samples = load_samples(source, n=n, random_labels=share, seed=seed, **given)
    if test is None:
        return samples, None
    held, wanted = load_samples(source, split="test", **given), count("test")(test)
    return samples, held if held.n <= wanted else load_samples(source, split="test", n=wanted, **given)


def _sphere(n: Any, d: Any, share: Any, seed: list[int]) -> Samples:
    n, d = count("n")(n), count("d")(d)
    check_size("n" if n >= d else "d", max(n, d), lambda size: BYTES_OF_A_NUMBER * size * min(n, d), "the inputs")
    X = np.random.default_rng(seed).standard_normal((n, d))
    return load_samples((X, np.where(X[:, 0] >= 0.0, 1.0, -1.0)), random_labels=share, seed=seed[0])


def read_lazy_spec(path: str | Path, overrides: Sequence[str] = ()) -> LazySpec:
    """Read a specification of lazy training from a TOML file, or from the ``spec.json`` of a report.

    Parameters
    ----------
    path
        The file, with the tables ``[data]`` (or ``[problem.inputs]``), ``[problem]``, ``[training]`` and ``[run]``.
    overrides
        Changes to the file such as ``"problem.student.p=1024"``; a key that is not there is made.
    """
    return lazy_spec(read_lazy_tables(path, overrides))


def read_lazy_tables(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The tables of such a file."""
    return _checked(read_tables(path, overrides, _of_report))


def changed(
    spec: LazySpec, data: dict[str, Any] | None, overrides: Sequence[str]
) -> tuple[LazySpec, dict[str, Any] | None]:
    """The specification with changes as to a file, such as ``"training.layers=Both"``, and the table of its samples."""
    text = to_json(lazy_tables(spec, data))
    tables = _checked(parse_tables(text, overrides, "the short form", True, _of_report))
    return lazy_spec(tables), tables.get("data")


def _checked(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    refuse_unknown(data, TABLES, "The specification has no table or key")
    if "problem" not in data:
        raise InvalidInput("The specification needs the table `[problem]`.")
    tables = {name: table for name, table in data.items() if name != "title"}
    wrong = [name for name, table in tables.items() if not isinstance(table, dict)]
    if wrong:
        raise InvalidInput(f"`{wrong[0]}`: must be a table, but is {shown(tables[wrong[0]])}.")
    refuse_unknown(tables.get("run", {}), RUN_FIELDS, "`run`: there is no field")
    return tables


def _of_report(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("kind") != "LazySpec":
        raise InvalidInput("A specification in JSON must be an object of the kind `LazySpec`, as `ntk` writes it.")
    tables = {name: data[name] for name in TABLES if name in data}
    return tables | {"run": {name: value for name, value in data.get("ask", {}).items() if name != "kind"}}


def lazy_spec(tables: dict[str, dict[str, Any]]) -> LazySpec:
    """The specification that tables state; a table ``data`` is loaded."""
    problem = {"target": "Labels"} | tables["problem"]
    asked, training = dict(tables.get("run", {})), tables.get("training", {})
    if "data" in tables:
        problem, asked = _with_samples(tables["data"], problem, asked)
    return LazySpec(decode(problem, Problem, "problem"), _training(training), decode(asked, NTKAsk, "run"))


def lazy_tables(spec: LazySpec, data: dict[str, Any] | None) -> dict[str, Any]:
    """The tables from which `lazy_spec` makes the same, as plain data: samples by the table that named them, if any."""
    tables: dict[str, Any] = encode(spec)  # pyright: ignore[reportAssignmentType]: an object becomes a table
    test = spec.ask.test
    if not isinstance(spec.training, SGD):  # the layers alone, beside which a learning rate may be stated
        tables["training"] = {"layers": tables["training"]}
    if data is None:
        samples: dict[str, Any] = {"inputs": spec.problem.inputs, "test": test}
        arrays = {name: {"kind": "Samples", "X": x.X.tolist(), "y": x.y.tolist()} for name, x in samples.items() if x}
        tables["problem"]["inputs"], tables["ask"]["test"] = arrays["inputs"], arrays.get("test")
        return tables
    del tables["problem"]["inputs"], tables["ask"]["test"]
    plain = {
        name: str(value) if isinstance(value, Path) else value for name, value in data.items() if value is not None
    }
    return tables | {"data": plain | ({} if test is None else {"test": test.n})}


def _with_samples(
    source: dict[str, Any], problem: dict[str, Any], asked: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the samples of the table [data] where objects hold them."""
    fields = ("source", "n", "d", "classes", "random_labels", "test", "data_dir", "download")
    refuse_unknown(source, fields, "`data`: there is no field")
    if "inputs" in problem:
        raise InvalidInput("The samples are given by `[data]` and by `[problem.inputs]`: use one of them.")
    if len(asked.get("shares", ())) and "test" not in source and "test" not in asked:
        source = source | {"test": TEST_SAMPLES}
    seed, has_target = count("seed", low=0)(asked.get("seed", 0)), asked.get("target") is not None
    samples, test = load_data(**source, seed=seed, has_target=has_target)
    return problem | {"inputs": samples}, asked if test is None else asked | {"test": test}


def _training(table: dict[str, Any]) -> SGD | AbstractLayers:
    """The training; without a learning rate, the layers that are trained."""
    if "learning_rate" in table:
        return decode(table, SGD, "training")
    if table.get("kind", "SGD") != "SGD":
        return decode(table, AbstractLayers, "training")
    refuse_unknown(table, ("kind", "layers"), "`training`: without a `learning_rate` there is no field")
    return decode(table.get("layers", "First"), AbstractLayers, "training.layers")
