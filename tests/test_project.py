"""What the files around the package say of it is true: versions, rooms, dependencies, files they name."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

import twolayer
from twolayer import analyses
from twolayer.problem.targets import AbstractTarget
from twolayer.training.sgd import AbstractConstraint

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def _sources() -> dict[Path, tuple[str, ast.Module]]:
    """The text and the syntax tree of every file of the package."""
    texts = {path: path.read_text() for path in sorted((ROOT / "src" / "twolayer").rglob("*.py"))}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def test_the_version_is_the_same_everywhere():
    script = ROOT / "scripts" / "_version.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == twolayer.__version__ == PROJECT["project"]["version"]


def test_the_citation_file_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["project"]["license"]


def test_a_default_installation_has_native_code():
    assert any(name.startswith("numba>") for name in PROJECT["project"]["dependencies"])
    assert PROJECT["project"]["optional-dependencies"]["fast"] == []  # an old name that still installs


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_rooms_are_those_of_the_import_rule(page):
    """The drawing of the house names every room of the import rule, from top to bottom."""
    (layers,) = [
        contract["layers"] for contract in PROJECT["tool"]["importlinter"]["contracts"] if "layers" in contract
    ]
    rule = [room for layer in layers for room in layer.split(" | ")]
    (drawing,) = re.findall(r"```(?:text)?\n(cli .*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    drawn = []
    for line in drawing.splitlines():
        names = re.match(r"\s*\|?\s*(\w+(?: \| \w+)*)(?=\s\s)", line)
        drawn += names[1].split(" | ") if names else []
    assert drawn == rule


def test_every_room_has_two_lines():
    """What it is, and what is in it: the drawing of the house shows all rooms in the same way."""
    (drawing,) = re.findall(r"```text\n(cli .*?)```", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL)
    begins = [bool(re.match(r"\s{0,4}(\| )?\w", line)) for line in drawing.splitlines()]
    assert len(begins) > 20 and begins == [True, False] * (len(begins) // 2)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_analysis_is_drawn(page):
    folders = (ROOT / "src" / "twolayer" / "analyses").glob("*/")
    functions = {name for name, member in vars(analyses).items() if inspect.isfunction(member)}
    functions -= {"best_training"}  # reads the result of another one
    (line,) = re.findall(r"^analyses .*?(?=^verbs)", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    words = set(re.findall(r"\w+", line))
    assert functions <= words
    if page == "docs/architecture.md":
        assert {folder.name for folder in folders if folder.name != "__pycache__"} <= words


def test_the_walks_lead_through_files_that_exist():
    """Also the other files of the package that the page names; a file without its room is in that of the one before."""
    text, package = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "src" / "twolayer"
    (walks,) = re.findall(r"## Walks.*?```text\n(.*?)```", text, flags=re.DOTALL)
    missing, room = [], ""
    named = re.findall(r"[\w*/]+\.py", walks.replace("SOURCE/NAME", "*/*"))
    for name in named:
        if not any(package.glob(name)) and not (room and any(package.glob(f"{room}/{name}"))):
            missing.append(name)
        room = name.rpartition("/")[0] or room
    assert len(named) > 50 and not missing
    inline = re.findall(r"`(\w+(?:/\w+)+\.(?:py|js|md))`", text)
    assert inline and not [name for name in inline if not (package / name).exists() and not (ROOT / name).exists()]


def test_no_two_classes_share_a_name():
    """A name says one thing in the whole house, so that a reader need not ask which of two is meant."""
    modules = [module for _, module in _sources().values()]
    names = Counter(node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef))
    assert not [name for name, times in names.items() if times > 1]


# A command and a figure are named after the verb or the room that they serve.
SERVE_OTHERS = ("cli", "plots", "experiment")


def test_no_two_modules_have_one_name():
    """In a traceback, an editor's tab and a sentence a module is its last name alone."""
    package = ROOT / "src" / "twolayer"
    places: dict[str, list[str]] = {}
    for path in _sources():
        place = path.relative_to(package)
        if path.name not in ("__init__.py", "script.py") and place.parts[0] not in SERVE_OTHERS:
            places.setdefault(path.stem, []).append(place.as_posix())
    assert {stem: found for stem, found in places.items() if len(found) > 1} == {}


# What several files have in common: the table of a result, and the reason why something does not apply.
ROLES = {"summary", "refusal"}


def test_no_two_public_functions_of_the_upper_rooms_share_a_name():
    """Two functions of one name do the same for different objects; commands and the explorer answer for verbs."""
    package = ROOT / "src" / "twolayer"
    rooms = ("analyses", "ask.py", "core", "data", "explore", "kernel", "learnability", "report.py", "sweeps", "verbs")
    places: dict[str, list[str]] = {}
    for path, (_, module) in _sources().items():
        place = path.relative_to(package)
        if place.parts[0] in rooms and place.as_posix() != "explore/answers.py":
            functions = (node.name for node in module.body if isinstance(node, ast.FunctionDef))
            for name in functions:
                if not name.startswith("_") and name not in ROLES:
                    places.setdefault(name, []).append(place.as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# A field may hold anything: its type is the annotation beside it, as with `dataclasses.field`.
MAY_BE_ANY = {"specification/fields.py: static", "specification/fields.py: leaf"}


def _public_functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield prefix + node.name, node


def test_no_public_signature_says_any():
    """A public function names the types that it takes and gives; ``Any`` stands inside of containers only."""
    package, without_types = ROOT / "src" / "twolayer", set()
    for path, (_, module) in _sources().items():
        if path.name == "script.py":  # of a page of the gallery
            continue
        for name, node in _public_functions(module.body):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments += [argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
            annotations = [*(argument.annotation for argument in arguments), node.returns]
            if any(ast.unparse(part) in ("Any", "'Any'", "Any | None") for part in annotations if part is not None):
                without_types.add(f"{path.relative_to(package).as_posix()}: {name}")
    assert without_types == MAY_BE_ANY


# Classes that users read and do not build, and whose fields no type says better than the docstring.
SHOW_ANY = {
    "Equations",  # expressions of sympy, which is imported where it is used
    "Record",  # arrays of NumPy or JAX, whose shapes stand beside the fields
    "ComputationFailed",  # raised with whatever was finished
    "Exactness",  # an enumeration, whose constructor is Python's own
}


def _says_nothing(annotation: object) -> bool:
    """Whether an annotation, or a member of a union, is missing or allows anything."""
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    members = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Union else members
    return any(member in (typing.Any, object, inspect.Parameter.empty, "Any") for member in members)


def test_the_signature_of_every_public_name_shows_what_it_accepts():
    """`inspect.signature`, and so a notebook, shows types also where a converter makes the field of what is given."""
    silent, checked = {}, 0
    for name in dir(twolayer):
        member = getattr(twolayer, name)
        is_warning = isinstance(member, type) and issubclass(member, Warning)
        if name in SHOW_ANY or name.startswith("_") or not callable(member) or is_warning:
            continue
        parameters = inspect.signature(member).parameters.values()
        silent[name] = [parameter.name for parameter in parameters if _says_nothing(parameter.annotation)]
        checked += len(parameters)
    assert {name: parameters for name, parameters in silent.items() if parameters} == {}
    assert checked > 200


def test_a_constructor_shows_the_types_that_its_converters_accept():
    shown = {name: parameter.annotation for name, parameter in inspect.signature(twolayer.SGD).parameters.items()}
    assert shown["learning_rate"] == float | jax.Array
    assert shown["batch_size"] == int | None
    assert set(typing.get_args(shown["constraint"])) == {AbstractConstraint, str, type(None)}
    shown = inspect.signature(twolayer.Committee).parameters["P"].annotation
    assert set(typing.get_args(shown)) == {np.ndarray, jax.Array, Sequence[Sequence[float]], type(None)}
    shown = inspect.signature(twolayer.load_samples).parameters
    assert shown["n"].annotation == int | None and {str, Path} < set(typing.get_args(shown["source"].annotation))
    assert set(typing.get_args(inspect.signature(twolayer.learn).parameters["target"].annotation)) == {
        AbstractTarget,
        str,
    }
    assert inspect.signature(twolayer.SDE).parameters["method"].annotation == typing.Literal["heun", "euler"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_files_that_it_names_exist(page):
    """The pages of the documentation, which include these two, are held to the same in their own test."""
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:tests|examples|benchmarks|src|scripts|docs)/[\w./-]+)`", text))
    named |= set(re.findall(r"(?<![\w./])((?:scripts|examples)/\w[\w./-]*\w)", text))
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing


def test_every_hook_is_a_tool_of_the_environment():
    """No hook is downloaded from anywhere, and each tool is one that the tests install."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    wanted = " ".join(PROJECT["project"]["optional-dependencies"]["test"])
    packages = {"lint-imports": "import-linter"}
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"{packages.get(tool, tool)}>=" in wanted


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/docs", "scripts/release", "scripts/test", ".ci/run"])
def test_scripts_can_be_run(script):
    assert os.access(ROOT / script, os.X_OK)
    assert subprocess.run(["sh", "-n", str(ROOT / script)], timeout=60).returncode == 0


def test_the_release_refuses_what_it_does_not_know():
    done = subprocess.run([str(ROOT / "scripts" / "release"), "--now"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'--now'" in done.stderr


def test_a_release_is_tried_with_every_python_that_is_found(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    pythons = importlib.import_module("_pythons")
    assert pythons.versions() == ["3.11", "3.12", "3.13"]
    assert set(pythons.EXTRAS) == {*PROJECT["project"]["optional-dependencies"]} - {"fast", "test", "docs"}
    for path, printed in (
        ("bin/python3.11", "3.11"),
        ("bin/python3.12", "3.9"),
        ("versions/3.12.4/bin/python3", "3.12"),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\necho {printed}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "none"))
    tried = []
    monkeypatch.setattr(pythons, "try_wheel", lambda python, wheel, folder: tried.append(python))
    assert pythons.main(tmp_path / "twolayer-1.0-py3-none-any.whl") == 0
    assert tried == [str(tmp_path / "bin" / "python3.11"), str(tmp_path / "versions" / "3.12.4" / "bin" / "python3")]
    assert "not found, and not tried: Python 3.13." in capsys.readouterr().err

    def fails(python, wheel, folder):
        pythons.run([sys.executable, "-c", "raise SystemExit('broken')"], folder)

    monkeypatch.setattr(pythons, "try_wheel", fails)
    assert pythons.main(tmp_path / "twolayer-1.0-py3-none-any.whl") == 1
    assert "Python 3.12 fails" in (said := capsys.readouterr().err) and "broken" in said
    monkeypatch.setattr(pythons, "interpreter", lambda version: None)
    assert pythons.main(tmp_path / "twolayer-1.0-py3-none-any.whl") == 1  # nothing was tried


def test_tests_on_a_gpu_need_no_package_of_the_other_tests():
    """They are collected where the package and pytest are installed, and nothing else of the extra `test`."""
    extra = [re.split("[>=]", line)[0] for line in PROJECT["project"]["optional-dependencies"]["test"]]
    # sympy depends on mpmath, so that every installation of the package has it
    hidden = [name.replace("-", "_") for name in extra if name not in ("pytest", "mpmath")] + ["xdist"]
    files = [str(file) for file in sorted((ROOT / "tests").rglob("test_gpu.py"))]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
        f"import pytest; sys.exit(pytest.main(['-q', '-o', 'addopts=', '-p', 'no:cacheprovider', '--co', *{files}]))"
    )
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "JAX_COMPILATION_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120
    )
    assert len(files) > 1 and done.returncode == 0, done.stdout + done.stderr


def _is_large(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> bool:
    """Whether a function has more than 60 lines of code, without docstring and comments, or more than 10 arguments."""
    first = node.body[0]
    is_documented = ast.get_docstring(node, clean=False) is not None
    docstring = range(first.lineno, (first.end_lineno or 0) + 1) if is_documented else range(0)
    body = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if n not in docstring]
    code = [n for n in body if lines[n - 1].strip() and not lines[n - 1].lstrip().startswith("#")]
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments = [argument for argument in named if argument.arg not in ("self", "cls")]
    return len(code) > 60 or len(arguments) > 10


def test_functions_are_short_or_say_why_not():
    """A comment above a large function, and above no other one, begins with "Large:" and gives the reason."""
    large, with_reason = set(), set()
    for path, (text, module) in _sources().items():
        lines = text.splitlines()
        for node in ast.walk(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = f"{path.relative_to(ROOT).as_posix()}: {node.name}"
            top = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if re.match(r"\s*# Large: \w.{20,}\.$", lines[top - 2]):
                with_reason.add(name)
            if _is_large(node, lines):
                large.add(name)
    assert large == with_reason
    assert len(large) == sum(text.count("# Large:") for text, _ in _sources().values())


SHARED = 10  # lines in a row that may not stand twice


def test_no_two_places_share_ten_lines():
    """What several places need is written once; imports, comments and blank lines do not count."""
    places: dict[tuple[str, ...], list[str]] = {}
    for path, (text, module) in _sources().items():
        imports = {
            line
            for node in ast.walk(module)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        stripped = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
        code = [
            (number, line) for number, line in stripped if line and not line.startswith("#") and number not in imports
        ]
        for first in range(len(code) - SHARED + 1):
            window = code[first : first + SHARED]
            key = tuple(line for _, line in window)
            places.setdefault(key, []).append(f"{path.relative_to(ROOT).as_posix()}:{window[0][0]}")
    assert not [where for where in places.values() if len(where) > 1]
