"""The table of learnable targets: exponents of the named targets, what giant steps find, and rows that were run."""

import re

import twolayer as tl
from twolayer.gallery import Claim, Made, run_script
from twolayer.learnability import named_targets
from twolayer.learnability.scaling import online_exponent, power
from twolayer.plots.style import DARK_GREY, PAGE, PALETTE, new_figure, put_title, style

STEPS, ALPHA = 2, 4.0
NOTHING, SOMETHING = 0.01, 0.03  # overlaps after two steps: not learned, learned
RUN = ("cubic", "phase-retrieval", "he3", "he4")
RUN_WHEN_FULL = ("linear", "relu", "he2", "he5", "abs", "sign", "damian")


def make(spec, ask):
    known = named_targets()
    analyses = {name: tl.learnability(target.formula) for name, target in known.items()}
    right = sum(
        (analysis.information_exponent, analysis.leap, analysis.generative_exponent)
        == (known[name].information_exponent, known[name].leap, known[name].generative_exponent)
        and tuple((stage.leap, len(stage.directions)) for stage in analysis.staircase.stages) == known[name].stages
        for name, analysis in analyses.items()
    )
    chosen = RUN + (RUN_WHEN_FULL if ask.full else ())
    runs = {name: overlaps(spec, analyses[name].target, 2**18 if ask.full else 2**16) for name in chosen}
    learned, absent = [], []
    for name, (fresh, again) in runs.items():
        (learned if analyses[name].information_exponent == 1 else absent).append(fresh)
        (learned if analyses[name].generative_exponent == 1 else absent).append(again)
    claims = [
        Claim(
            f"targets with the exponents and stages of the literature, of {len(known)}",
            float(right),
            low=float(len(known)),
        ),
        Claim("runs whose target is learned by its exponent: smallest overlap", min(learned), low=SOMETHING),
        Claim("runs whose target is not: largest overlap", max(absent), high=NOTHING),
    ]
    return Made({"figure": table(analyses, runs)}, claims)


def overlaps(spec, target, samples):
    """With the target after two giant steps: on fresh batches (the map), and on one batch (dynamical mean field)."""
    problem = tl.Problem(target, spec.problem.student, spec.problem.inputs, start=spec.problem.start)
    rate = float(spec.training.learning_rate)
    ways = (
        (tl.SGD(rate, round(ALPHA * problem.d), constraint=tl.Sphere()), tl.BatchMap()),
        (tl.SGD(rate, reuse=tl.Reused(ALPHA), constraint=tl.Sphere()), tl.DMFT(samples=samples)),
    )
    after = []
    for training, theory in ways:
        until = float(training.clock(problem).time(STEPS))
        after.append(abs(float(tl.evolve(problem, training, theory, until=until, save=[until]).M.values[0, -1, 0, 0])))
    return after


# ---------------------------------------------------------------------------------------------------- the picture

COLUMNS = {  # of the table: where they are, in units of its width
    "target": 0.0,
    "": 0.16,
    "information\nexponent": 0.5,
    "leap": 0.575,
    "generative\nexponent": 0.65,
    "online SGD,\nsteps": 0.74,
    "giant steps,\nfresh": 0.84,
    "giant steps,\nreused": 0.945,
}
SHADES = {1: PALETTE[2], 2: PALETTE[4], 3: PALETTE[5], 4: PALETTE[1], 5: PALETTE[1]}


def table(analyses, runs):
    """A row for each target, those that are learned soonest first; rows that were run are bold, with their overlaps."""
    rows = sorted(analyses, key=lambda name: (analyses[name].leap, analyses[name].generative_leap, analyses[name].k))
    with style():
        figure = new_figure(PAGE, 0.16 * (len(rows) + 3))
        ax = figure.subplots()
        ax.set_axis_off()
        ax.set_xlim(-0.01, 1.01)
        ax.set_ylim(len(rows) - 0.4, -2.2)
        for heading, x in COLUMNS.items():
            ax.text(x, -0.75, heading, ha="left" if x < 0.3 else "center", va="bottom", fontsize=7.5)
        ax.plot([-0.01, 1.01], [-0.6, -0.6], color=DARK_GREY, lw=0.5)
        for y, name in enumerate(rows):
            for x, (text, shade) in zip(COLUMNS.values(), cells(name, analyses[name], runs.get(name)), strict=True):
                box = {"boxstyle": "round,pad=0.12", "fc": shade, "ec": "none", "alpha": 0.45} if shade else None
                ha = "left" if x < 0.3 else "center"
                ax.text(x, y, text, ha=ha, va="center", fontsize=7.0, bbox=box)
        put_title(figure, "What first-order methods find of a target, and how soon")
    return figure


def cells(name, analysis, measured):
    """The texts of one row with their shades."""
    exponents = (analysis.information_exponent, analysis.leap, analysis.generative_exponent)
    steps = power(*online_exponent(analysis.leap)).replace(" log d", r"\,\log d")
    counts = [sum(map(len, analysis.giant_steps(stairs))) for stairs in (analysis.staircase, analysis.generative)]
    after = ["" if measured is None else f"  ({overlap:.3f})" for overlap in measured or (None, None)]
    giant = [
        (f"{count} of {analysis.k}{value}", SHADES[1] if count == analysis.k else SHADES[2] if count else SHADES[4])
        for count, value in zip(counts, after, strict=True)
    ]
    return [
        (name, None),
        (formula(analysis.text), None),
        *((str(n), SHADES[n]) for n in exponents),
        (f"${steps}$", None),
        *giant,
    ]


def formula(text):
    """As it is printed."""
    text = (
        re.sub(r"he(\d)", r"\\mathrm{He}_\1", text)
        .replace("sqrt(2)", r"\sqrt{2}")
        .replace("**2", "^2")
        .replace("**3", "^3")
    )
    text = re.sub(r"\b(tanh|sign|exp|max|relu|abs)\b", r"\\mathrm{\1}", text)
    return "$" + re.sub(r"z(\d)", r"z_\1", text).replace("*", r"\,") + "$"


if __name__ == "__main__":
    run_script(__file__)
