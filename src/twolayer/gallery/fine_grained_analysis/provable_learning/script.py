"""Targets that wide networks provably learn: forms below their bounds, trained networks below the promised error."""

import numpy as np

import twolayer as tl
from twolayer import kernel
from twolayer.gallery import Claim, Made, run_script
from twolayer.plots import Panel, Rule, Series, panels

# A formula in the fields z1, z2 of two orthogonal directions, its sign in figures, and a short name.
FAMILIES = {
    "z1": (r"$z$", "linear"),
    "z1*z2 + z1**2/2": (r"$z z' + z^2/2$", "quadr."),
    "cos(z1) - 1": (r"$\cos z - 1$", "cos"),
    "z1**4/2": (r"$z^4/2$", "4th"),
    "exp(-z1**2/2) - 1": (r"$e^{-z^2/2} - 1$", "exp"),
    "log(1 + 0.36*z1**2)": (r"$\log(1 + 0.36 z^2)$", "log"),
    "1/(1 + 0.36*z1**2) - 1": (r"$(1 + 0.36 z^2)^{-1} - 1$", "inverse"),
}
TESTS = 2000


def make(spec, ask):
    d, n = spec["data"]["d"], 1600 if ask.full else spec["data"]["n"]
    sizes = [50, 100, 200, 400, 800] + ([1600, 3200, 6400] if ask.full else [])
    rng = np.random.default_rng(0)
    X, T = (on_sphere(rng, size, d) for size in (sizes[-1], TESTS))
    axes = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
    targets = {text: kernel.from_expression(text, axes) for text in FAMILIES}
    spectra = {size: kernel.spectrum(X[:size]) for size in sizes}  # sets that grow: forms grow with them

    def measured(labels):
        return np.array([np.sqrt(spectrum.inverse_form(labels(X[:size])).value) for size, spectrum in spectra.items()])

    forms = {text: measured(target) for text, target in targets.items()}
    odd = measured(lambda inputs: (inputs @ axes[0]) ** 3)
    random = rng.choice([-1.0, 1.0], sizes[-1])
    signs = measured(lambda inputs: random[: len(inputs)])
    below = np.array([lowest_form(X[:size], X[:size] @ axes[0]) for size in sizes])
    width = 2048 if ask.full else spec["problem"]["student"]["p"]
    trained = {text: network(X[:n], T, target, width, spec["run"]["steps"]) for text, target in targets.items()}
    loss, promised = np.array([*trained.values()]).T
    lengths, series = promise_of_a_series(spectra[n], X[:n], axes[:1])
    closed = 6.0 * lengths**2 / (1.0 - lengths**2)
    over_sharp = [forms[text][-1] / target.sharp_bound for text, target in targets.items()]
    over_paper = [target.sharp_bound / target.bound for target in targets.values()]
    changes = np.diff([*forms.values()], axis=1)
    over_closed, over_series = series["paper"] / closed - 1.0, series["form"] / series["sharp"]
    at_least = np.sqrt(2.0 * np.array(sizes))  # the mean of y H^-1 y over signs is tr H^-1, at least n^2 / tr H = 2 n
    claims = [
        Claim("measured form over sharp bound, largest", max(over_sharp), high=1.0),
        Claim("sharp bound over that of the paper, largest", max(over_paper), high=1.0),
        # (v . y)^2 / (v H v) is below y H^-1 y for any v; at v = y by a part d/n, twice of which is allowed.
        Claim("form of the linear target over its lower bound, smallest", float(np.min(forms["z1"] / below)), low=1.0),
        Claim("lower bound of the linear form over 2, at the largest n", below[-1] / 2, 1.0 - 2.0 * d / sizes[-1], 1.0),
        Claim("samples that are added never lower a form, smallest change", float(changes.min()), low=0.0),
        Claim(
            "test loss of networks over the promise of 6.1 and 5.1, largest", float(np.max(loss / promised)), high=1.0
        ),
        Claim("promised error, largest of all families", float(promised.max()), high=1.0),
        Claim("form of random signs over sqrt(2 n), smallest", float(np.min(signs / at_least)), low=1.0),
        Claim("form of the third power over 3 q = 9, at the largest n", odd[-1] / 9.0, low=1.0),
        Claim("bound of log(1 + z^2) over 6 b^2 / (1 - b^2), less one", float(np.max(np.abs(over_closed))), high=1e-6),
        Claim("form of log(1 + z^2) over its sharp bound, largest", float(over_series.max()), high=1.0),
    ]
    shown = [
        inside(sizes, forms, targets),
        outside(sizes, forms["z1"], odd, signs),
        promises(loss, promised, targets, forms, n),
        where_it_ends(lengths, series, spectra[n], X[:n], axes[0]),
    ]
    title = f"Unit inputs in $d={d}$ dimensions, networks of $p={width}$ relu units on $n={n}$ samples"
    return Made({"figure": panels(shown, title, columns=2)}, claims)


def network(X, T, target, width, steps):
    """The test loss of a trained network, and what theorems 6.1 and 5.1 promise."""
    nothing = [tl.Samples(inputs, np.zeros(len(inputs))) for inputs in (X, T)]
    problem = tl.Problem(tl.Labels(), tl.Student(width, "relu"), nothing[0], start=tl.AntisymmetricStart())
    options = {"steps": steps, "precision": "single", "random_labels": False}
    result = tl.ntk(problem, tl.First(), target=target, test=nothing[1], **options)
    by_network = float(result.network_test_error.sel(metric="absolute_loss")[0])
    left = float(result.trained_residual[0, 0, -1]) / np.sqrt(len(X))
    promised = np.sqrt(2.0 / len(X)) * target.bound + float(result.bound_remainder) + left
    return by_network, promised


def lowest_form(X, y):
    r"""The lower bound :math:`y \cdot y/\sqrt{y^\top H y}` of the form, with the matrix from its series."""
    rho = np.clip(X @ X.T, -1.0, 1.0)
    H = 0.25 * rho + rho * np.arcsin(rho) / (2.0 * np.pi)
    return y @ y / np.sqrt(y @ H @ y)


def promise_of_a_series(spectrum, X, direction):
    """Form and bounds of log(1 + z^2) for vectors of growing length: the series converges below one."""
    lengths = np.concatenate([np.linspace(0.1, 0.8, 20), 1.0 - np.geomspace(0.18, 0.01, 15)])
    targets = [kernel.from_expression("log(1 + z1**2)", length * direction) for length in lengths]
    forms = [np.sqrt(spectrum.inverse_form(target(X)).value) for target in targets]
    bounds = {"paper": [target.bound for target in targets], "sharp": [target.sharp_bound for target in targets]}
    return lengths, {name: np.array(values) for name, values in (bounds | {"form": forms}).items()}


def inside(sizes, forms, targets):
    """Forms over their sharp bounds for sets that grow."""
    some = ["z1", "z1*z2 + z1**2/2", "cos(z1) - 1", "log(1 + 0.36*z1**2)"]
    series = [
        Series(FAMILIES[text][0], sizes, forms[text] / targets[text].sharp_bound, look={"marker": "."}) for text in some
    ]
    series.append(Series("bound", [sizes[0], sizes[-1]], [1.0, 1.0], kind="reference"))
    axes = {"log": "x", "xticks": sizes[::2], "ylim": (0.0, 1.05), "title": "inside the theorem", "legend": "below"}
    return Panel("samples  $n$", "form over its sharp bound", series, **axes)


def outside(sizes, linear, odd, signs):
    """Forms of labels that the theorem leaves out."""
    series = [
        Series("linear", sizes, linear, color=0, look={"marker": "."}),
        Series(r"$z^3$", sizes, odd, kind="points", color=1),
        Series("random signs", sizes, signs, kind="points", color=2),
        Series(r"$\sqrt{2n}$", sizes, np.sqrt(2.0 * np.array(sizes)), kind="reference"),
    ]
    axes = {"log": "xy", "title": "outside the theorem", "xticks": sizes[::2], "legend": "below"}
    return Panel("samples  $n$", r"$\sqrt{y^\top H^{-1} y}$", series, **axes)


def promises(loss, promised, targets, forms, n):
    """For each family the error of a trained network, and what bounds it."""
    ticks = np.arange(len(targets))
    measure = [np.sqrt(2.0 / n) * targets[text].sharp_bound for text in targets]
    series = [
        Series("promised by 6.1 and 5.1", ticks, promised, kind="points", color=0),
        Series(r"$\sqrt{2/n}$ sharp bound", ticks, measure, kind="points", color=1),
        Series("test loss of the network", ticks, loss, kind="points", color=2),
    ]
    names = dict(zip(ticks.tolist(), (short for _, short in FAMILIES.values()), strict=True))
    axes = {
        "log": "y",
        "xticks": names,
        "xlim": (-0.5, len(ticks) - 0.5),
        "legend": "below",
        "title": "trained networks",
    }
    return Panel("target", r"mean of $\min(|u - y|, 1)$", series, **axes)


def where_it_ends(lengths, series, spectrum, X, direction):
    """The form of log(1 + z^2) goes on where its bounds end."""
    longer = np.linspace(0.1, 1.5, 29)
    beyond = [np.sqrt(spectrum.inverse_form(np.log1p((length * X @ direction) ** 2)).value) for length in longer]
    drawn = [
        Series("bound of the paper", lengths, series["paper"], color=0),
        Series("sharp bound", lengths, series["sharp"], color=1),
        Series("measured form", longer, beyond, color=2, dashed=1),
        Rule("end of the series", 1.0, axis="x"),
    ]
    axes = {"log": "y", "title": r"$\log(1 + (\beta \cdot x)^2)$", "legend": "below"}
    return Panel(r"length  $\|\beta\|$", r"$\sqrt{y^\top H^{-1} y}$", drawn, **axes)


def on_sphere(rng, size, d):
    """Uniform unit inputs."""
    X = rng.standard_normal((size, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


if __name__ == "__main__":
    run_script(__file__)
