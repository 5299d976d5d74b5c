"""The live figures of the site: what each computes, its knobs, and the programs that a build makes for them.

A page shows one by the directive ``live-figure`` with its name. The programs are written when the site is built, and
kept in build/live as long as the package does not change. Pictures printed on the pages are what a reader sees without
them.
"""

import hashlib
import json
import shutil
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

import twolayer as tl
from twolayer.data.deviation import sharing, threshold
from twolayer.live import live_program

PACKAGE = Path(tl.__file__).parent
SCRIPTS = PACKAGE / "live"
KEPT = Path(__file__).parent.parent / "build" / "live"
MATHJAX = "sphinx-mathjax-offline"
MATHJAX_FILES = ("tex-chtml.js", "output/chtml/fonts")


def knob(name, label, low, high, value, scale="log"):
    return {"name": name, "label": label, "low": low, "high": high, "value": value, "scale": scale}


def dimension(values, value):
    return {"name": "d", "label": "dimension d", "values": values, "value": value}


RATE = "learning rate γ"
NOISE = "label noise Δ"
TIME = {"quantity": "time", "label": "time  t = γ · samples / (p d)", "short": "time"}
RISK = {"quantity": "excess_risk", "label": "excess risk", "scale": "linear"}

SADDLE = (
    "Each dashed line begins where one run does. Runs leave such a start earlier than their lines: the noise of SGD "
    "moves them off the saddle, by a time that does not shrink with d, so that a verdict of many runs may see it."
)


def phase_retrieval(noise=0.0, rate=1 / 12, start=None, p=1, **choices):
    """Phase retrieval on the sphere, as on the pages of its source text."""
    start = {} if start is None else {"start": start}
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(1000), noise=noise, **start)
    return problem, tl.SGD(rate, constraint=tl.Sphere(), **choices)


def committee():
    """The erf committee of the page on SGD and its ODE, with two units."""
    start = tl.GivenOverlaps([[1.0, 0.1], [0.1, 1.0]], [[0.3, 0.1], [0.2, 0.2]])
    return tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(400), start=start, noise=1e-3), tl.SGD(
        2.0
    )


def plateau():
    """An erf committee whose units differ too little to learn at once."""
    start = tl.GivenOverlaps([[0.3, 0.05], [0.05, 0.3]], [[0.25, -0.05], [-0.05, 0.25]])
    return tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(1000), start=start, noise=1e-3), tl.SGD(
        2.0
    )


# For each name: problem and training, options of the program, and the figure.
FIGURES = {
    "landing": (
        plateau,
        {"replicas": 32},
        {"title": "SGD and its theory, computed in this page", "until": 100.0, "points": 150, "replicas": 32,
         "x": TIME, "y": RISK | {"scale": "log"},
         "knobs": [knob("learning_rate", RATE, 0.5, 6.0, 2.0), dimension([100, 300, 1000, 3000, 10_000], 300)]},
    ),
    "sgd-to-ode": (
        committee,
        {"replicas": 32},
        {"title": "Runs of SGD close in on the ODE as d grows", "until": 4.0, "points": 100, "replicas": 32,
         "x": TIME, "y": RISK | {"scale": "log"},
         "knobs": [dimension([100, 400, 1600, 6400, 100_000], 400), knob("learning_rate", RATE, 0.1, 6.0, 2.0),
                   knob("noise", NOISE, 0.0001, 1.0, 0.001)]},
    ),
    "escape-times": (
        phase_retrieval,
        {"replicas": 64, "risk_threshold": 0.5},
        {"title": "Escape from a random start", "until": 8.0, "points": 160, "replicas": 48, "x": TIME, "y": RISK,
         "note": SADDLE,
         "knobs": [dimension([100, 1000, 10_000, 100_000], 1000), knob("learning_rate", RATE, 0.01, 0.16, 0.0833)]},
    ),
    "risk-floor": (
        lambda: phase_retrieval(noise=0.5, rate=0.05, start=tl.WarmStart(0.9)),
        {"replicas": 32},
        {"title": "Runs and the ODE settle on the floor of the risk", "until": 10.0, "points": 160, "replicas": 32,
         "x": TIME, "y": RISK,
         "knobs": [knob("learning_rate", RATE, 0.01, 0.2, 0.05), knob("noise", NOISE, 0.01, 2.0, 0.5, "linear"),
                   dimension([300, 1000, 10_000], 1000)]},
    ),
    "optimal-learning-rate": (
        lambda: phase_retrieval(noise=1.0, rate=1 / 13),
        {"replicas": 64, "risk_threshold": 0.5},
        {"title": "Samples to escape, in units of d", "until": 60.0, "points": 150, "replicas": 48,
         "note": SADDLE,
         "x": {"quantity": "samples", "label": "samples / d", "short": "samples / d ="}, "y": RISK,
         "knobs": [knob("learning_rate", RATE, 0.01, 0.15, 0.0769), knob("noise", NOISE, 0.01, 4.0, 1.0, "linear"),
                   dimension([100, 1000, 10_000], 1000)]},
    ),
    "second-layer": (
        lambda: phase_retrieval(p=4, rate=1.0, layers=tl.Both(ratio=1.0)),
        {"replicas": 32, "overlap_threshold": 0.3},
        {"title": "Four neurons, both layers trained", "until": 12.0, "points": 150, "replicas": 24, "x": TIME,
         "note": SADDLE,
         "y": {"quantity": "alignment", "label": "largest cosine with the target", "scale": "linear",
               "range": [0.0, 1.03]},
         "knobs": [knob("layers.ratio", "ratio of the rates κ", 0.01, 10.0, 1.0),
                   knob("learning_rate", RATE, 0.1, 3.0, 1.0), dimension([100, 1000, 10_000], 1000)]},
    ),
    "million-dimensions": (
        phase_retrieval,
        {"replicas": 32, "risk_threshold": 0.5},
        {"title": "Exact SGD in a million dimensions", "until": 5.0, "points": 100, "replicas": 8, "x": TIME, "y": RISK,
         "note": SADDLE,
         "knobs": [dimension([10_000, 100_000, 1_000_000, 10_000_000], 1_000_000),
                   knob("learning_rate", RATE, 0.03, 0.15, 0.0833)]},
    ),
}  # fmt: skip


def allowed(figure: dict) -> float:
    """The standard errors that chance alone reaches in one figure of 1000."""
    return threshold(figure["replicas"], figure["points"], sharing(figure["points"] + 1))


def program(name: str) -> str:
    """The script that defines the program of a figure, made now or kept from an earlier build."""
    make, options, figure = FIGURES[name]
    dimensions = next(knob["values"] for knob in figure["knobs"] if knob["name"] == "d")
    sources = [path.read_bytes() for path in sorted(PACKAGE.rglob("*.py"))]
    said = repr((make(), options, dimensions)).encode()
    kept = KEPT / f"{name}-{hashlib.sha256(b''.join([*sources, said])).hexdigest()[:16]}.js"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        for former in KEPT.glob(f"{name}-????????????????.js"):
            former.unlink()
        kept.write_text(live_program(*make(), dimensions, **options).script(name))
    return kept.read_text()


class LiveFigure(Directive):
    """A figure that computes what it shows, beside the printed one of its page or in place of what stands within."""

    required_arguments = 1
    has_content = True

    def run(self):
        name = self.arguments[0]
        environment = self.state.document.settings.env
        root = "../" * environment.docname.count("/") + "_static/live/"
        figure = FIGURES[name][2]
        settings = figure | {"program": name, "address": f"{root}{name}.js", "allowed": allowed(figure)}
        text = json.dumps(settings, ensure_ascii=False).replace("<", "\\u003c")
        html = (
            f'<link rel="stylesheet" href="{root}figure.css"><div class="tl-live" data-state="absent">'
            f'<script type="application/json">{text}</script>'
            '<p class="tl-fallback">Here a live figure runs SGD in browsers with JavaScript and WebAssembly.</p></div>'
            f'<script defer src="{root}engine.js"></script><script defer src="{root}figure.js"></script>'
        )
        printed = nodes.container(classes=["tl-printed"])
        self.state.nested_parse(self.content, self.content_offset, printed)
        return [nodes.raw("", html, format="html"), *([printed] if self.content else [])]


def add_files(app, failure):
    """Put scripts, programs and MathJax, which is part of a package, into a finished build."""
    if failure is not None or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    (static / "live").mkdir(parents=True, exist_ok=True)
    for path in (SCRIPTS / "engine.js", SCRIPTS / "figure.js", SCRIPTS / "figure.css"):
        shutil.copyfile(path, static / "live" / path.name)
    for name in FIGURES:
        (static / "live" / f"{name}.js").write_text(program(name))
    source = Path(__import__(MATHJAX).__file__).parent / "static" / "mathjax"
    for name in MATHJAX_FILES:
        target = static / "mathjax" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / name, target)


def setup(app):
    app.add_directive("live-figure", LiveFigure)
    app.connect("build-finished", add_files)
    return {"parallel_read_safe": True}
