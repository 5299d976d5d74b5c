"""What the files around the package say of it is true: versions, rooms, dependencies, files they name."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import twolayer

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


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


def test_no_two_classes_share_a_name():
    """A name says one thing in the whole house, so that a reader need not ask which of two is meant."""
    modules = [ast.parse(path.read_text()) for path in (ROOT / "src" / "twolayer").rglob("*.py")]
    names = Counter(node.name for module in modules for node in module.body if isinstance(node, ast.ClassDef))
    assert not [name for name, times in names.items() if times > 1]


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
    for path in sorted(package.rglob("*.py")):
        if path.name == "script.py":  # of a page of the gallery
            continue
        for name, node in _public_functions(ast.parse(path.read_text()).body):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments += [argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
            annotations = [*(argument.annotation for argument in arguments), node.returns]
            if any(ast.unparse(part) in ("Any", "'Any'", "Any | None") for part in annotations if part is not None):
                without_types.add(f"{path.relative_to(package).as_posix()}: {name}")
    assert without_types == MAY_BE_ANY


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


# Functions that are longer than 60 lines of code, or take more than 10 arguments, and why.
LARGE = {
    "analyses/learnable/learn.py:learn": "a verb: one argument for each thing that can be asked",
    "cli/exit_time.py:exit_time": "a command: one argument for each option",
    "cli/learn.py:learn": "a command: one argument for each option",
    "cli/ntk.py:ntk": "a command: one argument for each option",
    "cli/sweep.py:sweep": "a command: one argument for each option",
    "sweeps/run.py:sweep": "a verb: one argument for each thing that can be asked",
    "gallery/escaping_mediocrity/optimal_learning_rate/script.py:make": "a page reads from top to bottom",
    "gallery/escaping_mediocrity/risk_floor/script.py:make": "a page reads from top to bottom",
    "gallery/escaping_mediocrity/second_layer/script.py:make": "a page reads from top to bottom",
    "kernel/free.py:free_spectrum": "a public function: one argument for each thing that can be asked",
    "kernel/training.py:train": "a public function: one argument for each thing that can be asked",
    "simulation/direct_kernels.py:advance_kernel": "one kernel, whose loops share their registers",
    "theory/motion/integrate.py:solve": "the one integrator of all theories, with the options of each",
    "training/conventions.py:goldt2019": "the letters of a paper",
}


def test_functions_are_short_or_say_why_not():
    """Lines of code are those without docstring, comments and blank lines."""
    large = set()
    source = ROOT / "src" / "twolayer"
    for path in source.rglob("*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            first = node.body[0]
            is_documented = ast.get_docstring(node, clean=False) is not None
            docstring = range(first.lineno, (first.end_lineno or 0) + 1) if is_documented else range(0)
            body = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if n not in docstring]
            code = [n for n in body if lines[n - 1].strip() and not lines[n - 1].lstrip().startswith("#")]
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments = [argument for argument in named if argument.arg not in ("self", "cls")]
            if len(code) > 60 or len(arguments) > 10:
                large.add(f"{path.relative_to(source)}:{node.name}")
    assert not large - set(LARGE)
