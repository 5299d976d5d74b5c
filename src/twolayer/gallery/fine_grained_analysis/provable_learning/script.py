"""Targets that wide networks provably learn: measured forms stay below their bounds as samples are added."""

import numpy as np

from twolayer import kernel
from twolayer.gallery import Claim, Made, run_script, slope
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    d = spec["data"]["d"]
    sizes = [50, 100, 200, 400, 800] + ([1600, 3200, 6400] if ask.full else [])
    rng = np.random.default_rng(0)
    X = rng.standard_normal((sizes[-1], d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    beta, A = X[0], rng.standard_normal((d, d)) / d  # a direction, and a quadratic form
    targets = {
        r"$\beta \cdot x$": kernel.linear(beta),
        r"$x^\top A x$": kernel.quadratic(A),
        r"$\cos(2\beta \cdot x) - 1$": kernel.cosine(2.0 * beta),
        r"$(\beta \cdot x)^4$": kernel.power_sum([(1.0, beta, 4)]),
        r"$(\beta \cdot x)^6$": kernel.power_sum([(1.0, beta, 6)]),
    }
    spectra = {n: kernel.spectrum(X[:n]) for n in sizes}  # sets that grow: forms grow with them

    def measured(labels):
        return np.array([np.sqrt(spectrum.inverse_form(labels(X[:n])).value) for n, spectrum in spectra.items()])

    forms = {name: measured(target) for name, target in targets.items()}
    odd = measured(lambda inputs: (inputs @ beta) ** 3)
    random = np.where(rng.random(sizes[-1]) < 0.5, -1.0, 1.0)
    signs = measured(lambda inputs: random[: len(inputs)])
    over_sharp = [forms[name][-1] / target.sharp_bound for name, target in targets.items()]
    over_paper = [target.sharp_bound / target.bound for target in targets.values()]
    steps = [np.min(np.diff(form)) for form in forms.values()]
    last = [slope(sizes[-2:], form[-2:]) for form in forms.values()]
    claims = [
        Claim("measured over sharp bound, largest", max(over_sharp), high=1.0),
        Claim("the same for the linear target, whose bound is reached", over_sharp[0], low=0.97),
        Claim("sharp bound over that of the paper, largest", max(over_paper), high=1.0),
        Claim("samples that are added never lower a form, smallest change", min(steps), low=0.0),
        Claim("growth over the last doubling of n, inside the theorem, largest power of n", max(last), high=0.1),
        Claim("growth of the odd power, power of n", slope(sizes, odd), low=0.2),
        Claim("growth of random labels, power of n", slope(sizes, signs), low=0.4),
    ]
    form, n = r"$\sqrt{y^\top H^{-1} y}$", "samples  $n$"
    inside = [Series(name, sizes, forms[name] / target.sharp_bound) for name, target in targets.items()]
    inside.append(Series("bound", [sizes[0], sizes[-1]], [1.0, 1.0], kind="reference"))
    axes = {"log": "x", "xticks": sizes[::2], "ylim": (0.0, 1.05)}
    shown = [Panel(n, "form over its sharp bound", inside, title="inside the theorem", legend="below", **axes)]
    ticks = dict(enumerate(targets))
    bounds = [
        Series("measured, largest $n$", [*ticks], [target[-1] for target in forms.values()], kind="points", color=5),
        Series("sharp bound", [*ticks], [target.sharp_bound for target in targets.values()], kind="points", color=6),
        Series("bound of the paper", [*ticks], [target.bound for target in targets.values()], kind="points", color=7),
    ]
    short = dict(zip(ticks, ("linear", "quadr.", "cosine", "4th", "6th"), strict=True))
    limits = (-0.5, len(ticks) - 0.5)
    shown.append(Panel("target", form, bounds, log="y", title="bounds", xticks=short, xlim=limits, legend="below"))
    outside = [
        Series(next(iter(targets)), sizes, forms[next(iter(targets))], color=0),
        Series(r"$(\beta \cdot x)^3$", sizes, odd, kind="points", color=1),
        Series("random signs", sizes, signs, kind="points", color=2),
    ]
    shown.append(Panel(n, form, outside, log="xy", title="outside the theorem", xticks=sizes[::2], legend="below"))
    return Made({"figure": panels(shown, f"Unit inputs in $d={d}$ dimensions")}, claims)


if __name__ == "__main__":
    run_script(__file__)
