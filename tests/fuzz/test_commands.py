"""The command line: options of every command with ordinary values, values at an edge, and none."""

from pathlib import Path

from tests.fuzz.mutations import edge

SPEC = """
[problem]
target = {kind = "PhaseRetrieval"}
student = {p = 1, activation = "square"}
inputs = {kind = "Gaussian", d = 50}
start = {kind = "WarmStart", m = 0.3}
[training]
learning_rate = 0.1
constraint = "Sphere"
[run]
descriptions = ["SaadSolla"]
until = 0.5
save = 3
replicas = 1
"""
# Ordinary values of the options; those that make a command work for long are left to edges, which are refused.
COMMANDS: dict[str, dict[str, list[str | None]]] = {
    "explain": {"SPEC": ["spec.toml"], "--set": ["training.learning_rate=0.2", "problem.noise=0.1"]},
    "derive": {"SPEC": ["spec.toml"], "--latex": [None], "--symbolic-p": [None], "--general": [None]},
    "exit-time": {"--p": ["1"], "--d": ["100"], "--noise": ["0"], "--threshold": ["0.1"], "--scan": ["d=10,20"],
                  "--learning-rate": ["0.01", "optimal"], "--seed": ["1"], "--by": ["SDE", "x"], "--out": ["exit"]},
    "learn": {"EXPRESSION": ["z1", "he3", "z1*z2"], "--student": ["erf"], "--p": ["1"], "--d": ["100"],
              "--noise": ["0.1"], "--free": [None], "--list": [None], "--seed": ["3"], "--out": ["learned"]},
    "ntk": {"SOURCE": ["sphere", "data.csv"], "--n": ["12"], "--d": ["3"], "--steps": ["5"], "--width": ["0", "4"],
            "--set": ["run.ridge=0.1", "data.random_labels=0.5", "run.method=exact"],
            "--classes": ["0,1"], "--layers": ["both"], "--activation": ["erf"], "--target": ["z1"],
            "--out": ["kernel"]},
    "gallery": {"NAME": ["nothing", "x"], "--data-dir": ["."]},
    "run": {"SPEC": ["none.toml"], "--set": ["run.save=5"], "--out": ["report"]},
    "doctor": {"--nothing": ["x"]},
    "demo": {"--nothing": ["x"]},
}  # fmt: skip


def _arguments(rng, command: str) -> list[str]:
    given = [command]
    for option, values in COMMANDS[command].items():
        if rng.random() > (0.9 if option.isupper() else 0.35):
            continue
        value = values[int(rng.integers(len(values)))]
        if value is not None and rng.random() < 0.4:
            value = edge(rng).replace("\0", "")
        given += ([] if option.isupper() else [option]) + ([] if value is None else [value])
    given += [flag for flag in ("--json", "--quiet", "--help") if rng.random() < 0.2]
    # Long work is not asked for here: only what is measured would take it.
    return given + (["--replicas", "0"] if command == "exit-time" else [])


def test_options(fuzz):
    Path("spec.toml").write_text(SPEC)
    Path("data.csv").write_text("\n".join(f"{n},{n % 3},{n % 2}" for n in range(1, 21)))
    names = list(COMMANDS)
    for case in fuzz.rounds(18, 400):
        fuzz.command(_arguments(fuzz.rng, names[case % len(names)]))
    assert fuzz.outcomes["status 2"] > 5 and fuzz.outcomes["status 0"] > 0


def test_a_run_writes_whole_files(fuzz):
    Path("spec.toml").write_text(SPEC)
    assert fuzz.command(["run", "spec.toml", "--out", "report", "--json"]) == 0
    before = sorted(path.name for path in Path("report").iterdir())
    assert "comparison.nc" in before
    for setting in (
        "run.until=0",
        "training.learning_rate=nan",
        "problem.inputs.d=0",
        "run.save=1",
        "run.replicas=1e9",
    ):
        assert fuzz.command(["run", "spec.toml", "--out", "other", "--set", setting]) == 2
        assert not Path("other").exists()
    assert sorted(path.name for path in Path("report").iterdir()) == before
