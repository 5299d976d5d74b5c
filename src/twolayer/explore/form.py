"""What the page needs to draw itself: the controls with their fields, the presets, and where it begins.

A control names the field of a specification that it changes, by its path in the tables of a file. So the page holds
nothing but a specification, and knows no physics.
"""

import platform
import tomllib
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from typing import Any, NamedTuple

from twolayer.explore.messages import Tables

MAX_RUNS = 256
# What the page proposes as the theory and as the simulation of a problem.
THEORY, SIMULATION = "SaadSolla", "OverlapSGD"


class Choice(NamedTuple):
    """One choice of a control: a value or the table of an object, None for leaving the field out.

    A choice whose table is a number stands for all numbers.
    """

    value: str | int | None
    label: str
    help: str = ""
    table: Tables | float | None = None


class When(NamedTuple):
    """A control is shown only while the field at a path has one of these values or kinds."""

    path: str
    among: tuple[str | int | None, ...]


@dataclass(frozen=True)
class Control:
    """One control of the page; ``path`` is the field of the specification that it changes."""

    id: str
    path: str
    symbol: str
    label: str
    help: str
    kind: str  # "number", "log", "integer", "log-integer", "choice", "object", "formula", "switch", "matrix"
    default: object = None
    unit: str = ""
    low: float | int | None = None
    high: float | int | None = None
    choices: tuple[Choice, ...] = ()
    shown_when: When | None = None

    def to_dict(self) -> Tables:
        """The control as plain data; tests and assistive tools find it by its identifier."""
        plain = asdict(self) | {"testid": self.id, "choices": [choice._asdict() for choice in self.choices]}
        when = self.shown_when
        return plain | {"shown_when": None if when is None else {"path": when.path, "in": list(when.among)}}


def _named(*rows: tuple[str, str]) -> tuple[Choice, ...]:
    return tuple(Choice(value, value, about) for value, about in rows)


def _kinds(*rows: tuple[str, str, str, Tables | float | None]) -> tuple[Choice, ...]:
    return tuple(Choice(*row) for row in rows)


ACTIVATIONS = _named(
    ("erf", "erf(x / sqrt 2), as in the papers"),
    ("relu", "max(x, 0)"),
    ("tanh", "hyperbolic tangent"),
    ("square", "x squared: phase retrieval"),
    ("sigmoid", "1 / (1 + exp(-x))"),
    ("softplus", "log(1 + exp(x))"),
    ("gelu", "x times the Gaussian distribution function"),
    ("silu", "x times the sigmoid"),
    ("linear", "x"),
    ("he2", "x squared minus one"),
    ("he3", "x cubed minus 3x"),
    ("abs", "absolute value"),
    ("leaky_relu", "relu with slope 0.01 for negative x"),
    ("hardtanh", "x cut at -1 and 1"),
)
_KIND_OF_TARGET = "problem.target"
_NOISE = "problem.noise"
_COMMITTEE = When(_KIND_OF_TARGET, ("Committee",))
_FORMULA = When(_KIND_OF_TARGET, ("MultiIndex",))

TARGET = (
    Control("target-kind", _KIND_OF_TARGET, "f", "Target", "The function that gives the labels.", "object",
        choices=_kinds(
            ("MultiIndex", "formula", "any formula in the fields z1, z2 and so on",
                {"kind": "MultiIndex", "function": "tanh(z1) + z1*z2"}),
            ("Committee", "committee", "the mean of k units with one activation",
                {"kind": "Committee", "k": 2, "activation": "erf"}),
            ("PhaseRetrieval", "phase retrieval", "the square of one field", {"kind": "PhaseRetrieval"}),
        )),
    Control("formula", "problem.target.function", "f(z)", "Formula",
        "A formula in z1, z2, ...: numbers, + - * / **, and functions such as tanh, erf, relu, he3, sin, exp, abs.",
        "formula", "tanh(z1) + z1*z2", shown_when=_FORMULA),
    Control("target-width", "problem.target.k", "k", "Units of the target", "Number of directions of the target.",
        "integer", 2, "units", 1, 16, shown_when=_COMMITTEE),
    Control("target-activation", "problem.target.activation", "σ*", "Activation of the target",
        "The function of each unit of the target.", "choice", "erf", choices=ACTIVATIONS, shown_when=_COMMITTEE),
    Control("target-overlaps", "problem.target.P", "P", "Overlaps of the target",
        "Products of the target's directions, a matrix with ones on its diagonal; orthogonal when left out.",
        "matrix", shown_when=_COMMITTEE),
)  # fmt: skip

STUDENT = (
    Control("width", "problem.student.p", "p", "Width", "Number of neurons of the student.",
        "integer", 4, "neurons", 1, 32),
    Control("activation", "problem.student.activation", "σ", "Activation", "The function of each neuron.",
        "choice", "erf", choices=ACTIVATIONS),
    Control("second-layer", "problem.student.second_layer", "a", "Second layer",
        "The output weights at the start.", "choice", "ones", choices=_named(
            ("ones", "all equal to one"), ("rademacher", "random signs"), ("gaussian", "standard normal"))),
)  # fmt: skip

INPUTS = (
    Control("dimension", "problem.inputs.d", "d", "Dimension",
        "Number of input dimensions; simulations follow the overlaps, so that it costs nothing.",
        "log-integer", 1000, "dimensions", 10, 10**9),
    Control("spectrum", "problem.inputs.spectrum", "C", "Input spectrum",
        "The eigenvalues of the covariance of the inputs.", "object", "Isotropic", choices=_kinds(
            ("Isotropic", "isotropic", "every direction has variance one", None),
            ("PowerLaw", "power law", "they fall as a power of their rank, with mean one",
                {"kind": "PowerLaw", "alpha": 1.0}))),
    Control("spectrum-exponent", "problem.inputs.spectrum.alpha", "α", "Exponent of the spectrum",
        "The eigenvalue of rank l is proportional to l to the power -α.", "log", 1.0, "", 0.1, 4.0,
        shown_when=When("problem.inputs.spectrum", ("PowerLaw",))),
    Control("noise-kind", _NOISE, "y", "Kind of noise", "What happens to labels.", "object", "Additive", choices=_kinds(
        ("Additive", "additive", "normal noise is added to every label", 0.0),
        ("Flips", "label flips", "labels that are signs are turned around at random",
            {"kind": "Flips", "probability": 0.1}))),
    Control("noise", _NOISE, "Δ", "Label noise", "Variance of the noise that is added to the labels.",
        "number", 0.0, "variance", 0.0, 1.0, shown_when=When(_NOISE, ("Additive",))),
    Control("flips", "problem.noise.probability", "ε", "Label flips", "The part of the labels that are turned around.",
        "number", 0.1, "probability", 0.0, 0.49, shown_when=When(_NOISE, ("Flips",))),
)  # fmt: skip

START = (
    Control("start", "problem.start", "W₀", "Start", "The weights at time zero.", "object", "RandomStart",
        choices=_kinds(
        ("RandomStart", "random", "independent random rows, which know nothing of the target",
            {"kind": "RandomStart"}),
        ("WarmStart", "warm", "rows with a given overlap with the target", {"kind": "WarmStart", "m": 0.1}),
        ("ScatteredStart", "scattered", "overlaps that scatter by a given amount at any d",
            {"kind": "ScatteredStart"}),
    )),
    Control("start-norm", "problem.start.norm", "‖w‖", "Length of rows", "The length of the rows at the start.",
        "log", 1.0, "length", 0.01, 10.0,
        shown_when=When("problem.start", ("RandomStart", "WarmStart", "ScatteredStart"))),
    Control("start-overlap", "problem.start.m", "m", "Overlap at the start",
        "The overlap of each neuron with the target at the start.", "number", 0.1, "overlap", -1.0, 1.0,
        shown_when=When("problem.start", ("WarmStart",))),
    Control("start-deviation", "problem.start.deviation", "s", "Scatter at the start",
        "Standard deviation of the overlaps with the target at the start.", "number", 0.5, "overlap", 0.01, 1.0,
        shown_when=When("problem.start", ("ScatteredStart",))),
)  # fmt: skip

_REUSED = When("training.reuse", ("Reused",))
TRAINING = (
    Control("learning-rate", "training.learning_rate", "γ", "Learning rate",
        "One step moves the weights by γ/(pd) times the gradient of each sample.", "log", 1.0, "", 0.01, 100.0),
    Control("batch-size", "training.batch_size", "n_b", "Batch size", "Samples in each step.",
        "log-integer", 1, "samples", 1, 10**6),
    Control("loss", "problem.loss", "ℓ", "Loss",
        "What training makes small; the logistic and the hinge loss need labels that are signs, as of sign(z1).",
        "object", "Square", choices=_kinds(
            ("Square", "square", "half the square of label minus output", None),
            ("Correlation", "correlation", "minus the product of label and output", {"kind": "Correlation"}),
            ("Huber", "Huber", "square for small errors, linear for large ones", {"kind": "Huber", "width": 1.0}),
            ("Logistic", "logistic", "log(1 + exp(-y s))", {"kind": "Logistic"}),
            ("Hinge", "hinge", "max(1 - y s, 0)", {"kind": "Hinge"}))),
    Control("loss-width", "problem.loss.width", "δ", "Width of the Huber loss",
        "The error from which on the loss is linear.", "log", 1.0, "label", 0.01, 100.0,
        shown_when=When("problem.loss", ("Huber",))),
    Control("constraint", "training.constraint", "|w|", "Constraint", "Whether rows may change their length.",
        "object", "Free", choices=_kinds(
            ("Free", "free", "rows may grow and shrink", None),
            ("Sphere", "sphere", "rows keep their length after every step", {"kind": "Sphere"}))),
    Control("layers", "training.layers", "κ", "Layers", "Which layers are trained.", "object", "First",
        choices=_kinds(
            ("First", "first layer", "the output weights stay as they are", None),
            ("Both", "both layers", "the output weights learn as well", {"kind": "Both", "ratio": 1.0}))),
    Control("layer-ratio", "training.layers.ratio", "κ", "Ratio of the rates",
        "Learning rate of the second layer over that of the first.", "log", 1.0, "", 0.01, 100.0,
        shown_when=When("training.layers", ("Both",))),
    Control("momentum", "training.momentum", "β", "Momentum", "Heavy ball: the part of a move that is kept.",
        "number", 0.0, "", 0.0, 0.99),
    Control("weight-decay", "training.weight_decay", "λ", "Weight decay",
        "How fast weights shrink by themselves.", "number", 0.0, "", 0.0, 1.0),
    Control("reuse", "training.reuse", "ν", "Repetition", "Whether samples are used more than once.", "object", "Fresh",
        choices=_kinds(
            ("Fresh", "fresh samples", "every sample is used once", None),
            ("Repeated", "repeated batches", "every batch is used several times in a row",
                {"kind": "Repeated", "times": 2}),
            ("Reused", "one fixed set", "the same n = alpha d samples at every step",
                {"kind": "Reused", "alpha": 3.0}))),
    Control("repetitions", "training.reuse.times", "τ", "Repetitions", "How often each batch is used.",
        "integer", 2, "times", 1, 8, shown_when=When("training.reuse", ("Repeated",))),
    Control("sample-ratio", "training.reuse.alpha", "α", "Samples over dimension",
        "The size of the fixed set, over d.", "log", 3.0, "", 0.1, 100.0, shown_when=_REUSED),
)  # fmt: skip

RUN = (
    Control("until", "run.until", "t", "Until", "The time at which to stop: t = γ samples / (p d).",
        "log", 20.0, "time", 0.1, 10000.0),
    Control("replicas", "run.replicas", "R", "Runs", "Independent runs of the simulation.",
        "integer", 16, "runs", 1, MAX_RUNS),
    Control("seed", "run.seed", "#", "Seed", "All random numbers come from it: the same seed, the same runs.",
        "integer", 0, "", 0, 2**31 - 1),
    Control("save", "run.save", "n", "Points", "Number of points on each curve.", "integer", 80, "points", 10, 400),
)  # fmt: skip

GROUPS = (
    ("target", "Target", TARGET),
    ("student", "Student", STUDENT),
    ("inputs", "Inputs", INPUTS),
    ("start", "Start", START),
    ("training", "Training", TRAINING),
    ("run", "What to run", RUN),
)

DESCRIPTIONS = (
    ("SaadSolla", "ODE", "theory", "The differential equation of the overlaps as d goes to infinity."),
    ("SDE", "SDE", "theory", "The equation with the noise of SGD at finite d."),
    ("BatchMap", "Map of large batches", "theory", "The deterministic map as batches grow."),
    ("MeanField", "Mean field", "theory", "Infinitely many neurons at finite d."),
    ("HDMF", "High-dimensional mean field", "theory", "Infinitely many neurons and dimensions."),
    ("DMFT", "Dynamical mean field", "theory", "Training on the same samples again."),
    ("OverlapSGD", "SGD through overlaps", "simulation", "SGD exactly in law at any d, through its overlaps."),
    ("DirectSGD", "SGD on the weights", "simulation", "SGD on the weights themselves; its cost grows with d."),
)

THEORIES = frozenset(name for name, _, kind, _ in DESCRIPTIONS if kind == "theory")


def first_question(spec: Tables) -> Tables:
    """The options of the first question of a page about a specification, which is one about its first theory."""
    run = spec.get("run")
    stated = run.get("descriptions") if isinstance(run, dict) else None
    chosen = stated if isinstance(stated, list) else [THEORY]
    theories = [each for each in chosen if (each.get("kind") if isinstance(each, dict) else each) in THEORIES]
    return {"description": theories[0]} if theories else {}


def form(initial: Tables | None = None) -> Tables:
    """Everything that the page needs to draw itself.

    Parameters
    ----------
    initial
        The specification with which the page begins, as tables; an erf committee with a plateau when left out.
    """
    return {
        "groups": [
            {"id": name, "title": title, "controls": [control.to_dict() for control in controls]}
            for name, title, controls in GROUPS
        ],
        "presets": presets(),
        "descriptions": [
            {"id": name, "title": title, "kind": kind, "help": about} for name, title, kind, about in DESCRIPTIONS
        ],
        "versions": {name: metadata.version(name) for name in ("twolayer", "jax")}
        | {"python": platform.python_version()},
        "initial_spec": initial or initial_spec(),
    }


def initial_spec() -> Tables:
    """The problem with which the page begins: the one of `twolayer demo`, followed through its overlaps."""
    # As a file of the package: the name of the room would import it, for which the server's first page need not wait.
    text = resources.files("twolayer").joinpath("experiment", "demo.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    tables["problem"]["inputs"]["d"] = 1000
    tables["run"] |= {"descriptions": [SIMULATION, THEORY], "replicas": 16}
    return tables


def presets() -> list[Tables]:
    """The problems of the gallery's pages, and the targets of the library with their exponents."""
    return [*_of_gallery(), *_of_library()]


def _of_gallery() -> list[Tables]:
    from twolayer.gallery import pages

    known = []
    for page in pages():
        tables = tomllib.loads((page.folder / "spec.toml").read_text(encoding="utf-8"))
        if not {"problem", "training"} <= tables.keys() or "data" in tables:
            continue
        spec = with_few_runs({name: tables[name] for name in ("title", "problem", "training", "run") if name in tables})
        note = f"The problem of the gallery page {page.name}."
        known.append({"id": page.name, "title": page.title, "group": "gallery", "note": note, "spec": spec})
    return known


def with_few_runs(tables: Tables) -> Tables:
    """The tables of a gallery page with as many runs as the page's control has at most."""
    asked = tables.get("run", {})
    return tables | ({"run": asked | {"replicas": MAX_RUNS}} if asked.get("replicas", 0) > MAX_RUNS else {})


def _of_library() -> list[Tables]:
    from twolayer.learnability import named_targets

    known = []
    for name, target in named_targets().items():
        exponents = (
            f"information exponent {target.information_exponent}, leap {target.leap}, "
            f"generative exponent {target.generative_exponent}"
        )
        note = f"{target.formula}: {exponents}{'; ' * bool(target.about)}{target.about}"
        spec: dict[str, Any] = {
            "title": name,
            "problem": {
                "target": {"kind": "MultiIndex", "function": target.formula},
                "student": {"p": 4, "activation": "relu"},
                "inputs": {"kind": "Gaussian", "d": 1000},
            },
            "training": {"learning_rate": 0.5},
            "run": {"descriptions": [SIMULATION, THEORY], "until": 20.0, "save": 60, "replicas": 8},
        }
        known.append({"id": f"target-{name}", "title": name, "group": "targets", "note": note, "spec": spec})
    return known
