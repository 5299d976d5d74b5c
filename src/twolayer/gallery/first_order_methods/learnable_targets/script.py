"""The table of learnable targets: what `learn` predicts of giant steps, and what runs of SGD find."""

import json
import re

import jax
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, run_script
from twolayer.gallery.page import ERRORS
from twolayer.learnability import named_targets
from twolayer.learnability.scaling import online_exponent, power
from twolayer.plots.style import DARK_GREY, PAGE, PALETTE, new_figure, put_title, style

STEPS, WIDTH = 4, 16
RUN = (
    "cubic",
    "phase-retrieval",
    "he3",
    "staircase-2",
    "hidden-he3",
    "staircase-3",
    "broken-staircase",
    "parity-3",
)


def make(spec, ask):
    known = named_targets()
    answers = {name: json.loads(tl.learn(target.formula).attrs["answer"]) for name, target in known.items()}
    d, replicas = (512, 256) if ask.full else (spec.problem.d, spec.ask.replicas)
    claims, scores = [], {}
    for name in answers if ask.full else RUN:
        scores[name] = runs_of(answers[name], spec, d, replicas)
        found, absent = ([x for of_way in scores[name] for x in of_way[part]] for part in (0, 1))
        if found:
            sentence = f"{name}: directions predicted to be found, least overlap in standard errors"
            claims.append(Claim(sentence, min(found), low=ERRORS))
        if absent:
            sentence = f"{name}: directions predicted not to be found, largest overlap in standard errors"
            claims.append(Claim(sentence, max(absent), high=ERRORS))
    return Made({"figure": table(answers, scores)}, claims)


def smooth_ramp(x):
    """A unit with a bias, which sees products of fields."""
    return jax.nn.gelu(x + 1.0, approximate=False)


def steep_step(x):
    """A unit with a bias, whose slope depends much on its field, so that a sample used again moves much."""
    return jax.scipy.special.erf(2.0 * x + 1.0)


def runs_of(answer, spec, d, replicas):
    """For fresh batches and for one batch: how sure runs are of the directions predicted, and of all others."""
    k = answer["k"]
    target = tl.MultiIndex(answer["target"], k=k)
    is_staircase = k > 1 and answer["leap"] == 1
    unit = tl.Custom(smooth_ramp, growth=1) if is_staircase else tl.Custom(steep_step)
    student = tl.Student(WIDTH, unit, np.random.default_rng(0).standard_normal(WIDTH))
    start = tl.GivenOverlaps(np.eye(WIDTH), np.zeros((WIDTH, k)))
    problem = tl.Problem(target, student, tl.Gaussian(d), start=start)
    fields = np.random.default_rng(0).standard_normal((100_000, k))
    alpha = float(spec.training.reuse.alpha)
    rate = float(spec.training.learning_rate) / float(np.std(jax.vmap(target)(fields)))
    steps = max(STEPS, k + 1)
    # Fresh batches see the last of four directions through the product of three overlaps, which are small at first.
    fresh = 3 * STEPS if is_staircase and k > 3 else steps
    ways = (
        (tl.SGD(rate, round(alpha * d)), fresh, tl.OverlapSGD(), answer["order"]),
        (tl.SGD(rate, reuse=tl.Reused(alpha)), steps, tl.DirectSGD(backend="xla"), answer["generative_order"]),
    )
    scores = []
    for training, number, simulation, order in ways:
        until = float(training.clock(problem).time(number))
        runs = tl.evolve(problem, training, simulation, until=until, save=[until], replicas=replicas)
        found, others = directions(order or [], k)
        M = runs.M.values[:, -1]
        sure = [score(M @ row) for row in found], [abs(score(M @ row)) for row in others]
        scores.append(sure if order is not None else ([], []))
    return scores


def directions(order, k):
    """The directions that giant steps find, those of stages before the first of a leap above one; and all others."""
    leaps = [stage["leap"] for stage in order]
    giant = next((n for n, leap in enumerate(leaps) if leap != 1), len(leaps))
    found = np.array([row for stage in order[:giant] for row in stage["vectors"]]).reshape(-1, k)
    return found, np.linalg.svd(found)[2][len(found) :] if len(found) else np.eye(k)


def score(overlaps):
    """The mean overlap over its standard error.

    The overlaps of all neurons are one number along their mean over the first half of the runs; the number is that of
    the second half, of which the first knows nothing: without a direction to find it is normal with deviation one.
    """
    first, second = np.array_split(overlaps, 2)
    along = first.mean(axis=0) / np.linalg.norm(first.mean(axis=0))
    values = second @ along
    return float(values.mean() / (values.std(ddof=1) / np.sqrt(len(values))))


# ---------------------------------------------------------------------------------------------------- the picture

COLUMNS = {  # of the table: where they are, in units of its width
    "target": 0.0,
    "": 0.16,
    "information\nexponent": 0.45,
    "leap": 0.525,
    "generative\nexponent": 0.6,
    "online SGD,\nsteps": 0.69,
    "giant steps,\nfresh": 0.805,
    "giant steps,\nreused": 0.935,
}
SHADES = {1: PALETTE[2], 2: PALETTE[4], 3: PALETTE[5], 4: PALETTE[1], 5: PALETTE[1]}


def table(answers, scores):
    """A row for each target, those that are learned soonest first; rows that were run have their standard errors."""
    rows = sorted(answers, key=lambda name: tuple(answers[name][part] for part in ("leap", "generative_leap", "k")))
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
            for x, (text, shade) in zip(COLUMNS.values(), cells(name, answers[name], scores.get(name)), strict=True):
                box = {"boxstyle": "round,pad=0.12", "fc": shade, "ec": "none", "alpha": 0.45} if shade else None
                ha = "left" if x < 0.3 else "center"
                ax.text(x, y, text, ha=ha, va="center", fontsize=7.0, bbox=box)
        put_title(figure, "What first-order methods find of a target, and how soon")
    return figure


def cells(name, answer, measured):
    """The texts of one row with their shades."""
    exponents = [answer[part] for part in ("information_exponent", "leap", "generative_exponent")]
    steps = power(*online_exponent(answer["leap"])).replace(" log d", r"\,\log d")
    giant = []
    for part, of_way in zip(("giant_steps", "reused_batch"), measured or ([[], []], [[], []]), strict=True):
        count = sum(map(len, answer[part]))
        sure = ", ".join([*(f"{min(x):.0f}" for x in of_way[:1] if x), *(f"{max(x):.1f}" for x in of_way[1:] if x)])
        shade = SHADES[1] if count == answer["k"] else SHADES[2] if count else SHADES[4]
        giant.append((f"{count} of {answer['k']}" + (f"  ({sure})" if sure else ""), shade))
    return [
        (name, None),
        (formula(answer["target"]), None),
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
