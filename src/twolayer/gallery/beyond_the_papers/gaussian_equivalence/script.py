"""SGD on pixels and on random features of them, beside the theory of Gaussian inputs with their covariance."""

import dataclasses

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.gallery.page_samples import two_classes
from twolayer.plots import Panel, Series, panels

BINS = 8
PLACES = ("random direction", "first principal axis")


def make(spec, ask):
    rows, replicas = (12_000, 200) if ask.full else (4000, spec.ask.replicas)
    ((name, (samples, _)),) = two_classes(ask, rows, names=("mnist",)).items()
    pixels = scaled(np.asarray(samples.X))
    features = scaled(tl.features(pixels, 400 if ask.full else 100, "erf"))
    sets = {name: pixels, f"random features of {name}": features}
    drawn, claims, found, theories, controls = [], [], {}, [], []
    for title, X in sets.items():
        series = []
        for number, (place, direction) in enumerate(zip(PLACES, directions(X), strict=True)):
            tree = compared(spec, X, direction, replicas)
            data, control, ode = (tree[part] for part in ("DirectSGD", "DirectSGD-2", "SaadSolla"))
            found[title, place] = tree.attrs
            theories.append(ode.risk.values.mean(axis=0))
            gaps = control.risk.values - ode.risk.values  # from the same starts
            controls.append((*mean_of(gaps), np.full(gaps.shape[1] - 1, np.ptp(theories[-1]) / dimensions(X))))
            time, (mean, error) = ode.time.values[1:], mean_of(data.risk.values)
            smooth = compared(spec, X, direction, replicas, alone=True, save=np.geomspace(time[0], time[-1], 61))
            after = smooth.time.values > 0.0
            series += [
                Series(
                    f"theory, {place}",
                    smooth.time.values[after],
                    smooth.risk.values.mean(axis=0)[after],
                    color=number,
                ),
                Series("", time, mean, error, kind="points", color=number),
            ]
        drawn.append(Panel("time", "risk", series, title=title, log="x"))
    figure = panels(drawn, "SGD on data (points) and the theory of their Gaussian equivalent (lines)")
    for title in sets:
        near, far = (found[title, place] for place in PLACES)
        claims += [
            # A field along a random direction is a sum of so many terms, whose skewness is of order one over the root.
            Claim(
                f"{title}, {PLACES[0]}: distance over the range of the risk",
                near["equivalence_distance"],
                high=float(dimensions(sets[title]) ** -0.5),
            ),
            Claim(f"{title}, {PLACES[1]}: distance in standard errors", score(far), low=ERRORS),
            Claim(
                f"{title}: distance along the principal axis over that along a random direction",
                far["equivalence_distance"] / near["equivalence_distance"],
                low=1.0,
            ),
        ]
    means, errors, shifts = (np.array([control[n] for control in controls]) for n in range(3))
    claims.append(agrees("SGD on the equivalents against the theory", means, errors, 0.0, known_to=shifts))
    finer = compared(spec, pixels, directions(pixels)[0], replicas, bins=2 * BINS, alone=True)
    moved = np.max(np.abs(finer.risk.values.mean(axis=0) - theories[0])) / np.ptp(theories[0])
    # A block takes a share 1 / BINS of the eigenvalues as one.
    claims.append(Claim("change of the theory by twice as many blocks, over its range", float(moved), high=1.0 / BINS))
    return Made({"figure": figure}, claims)


def scaled(X):
    """Rows without their mean whose covariance has eigenvalues of mean one."""
    X = X - X.mean(axis=0)
    return X / np.sqrt(np.mean(X**2))


def directions(X):
    """A random direction, and the first principal axis of the rows."""
    random = np.random.default_rng(5).standard_normal(X.shape[1])
    first = np.linalg.eigh(X.T @ X)[1][:, -1]
    return random / np.linalg.norm(random), first


def dimensions(X):
    """The effective number of dimensions; finite-d shifts of a mean are of order one over it."""
    C = X.T @ X
    return np.trace(C) ** 2 / np.sum(C**2)


def compared(spec, X, direction, replicas, bins=BINS, alone=False, save=None):
    """SGD on the rows, on their Gaussian equivalent, and the theory; or the theory alone, at other times."""
    inputs = tl.Samples(X, directions=direction[None], bins=bins)
    problem = dataclasses.replace(spec.problem, inputs=inputs)
    asked = dataclasses.replace(spec.ask, replicas=replicas)
    if alone:
        asked = asked if save is None else dataclasses.replace(asked, save=save)
        return tl.evolve(problem, spec.training, "SaadSolla", asked)
    described = ["DirectSGD", tl.DirectSGD(equivalent=True), "SaadSolla"]
    return tl.compare(problem, spec.training, described, asked)


def mean_of(runs):
    """The mean over runs after the start, and its standard error."""
    runs = runs[:, 1:]
    return runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(len(runs))


def score(attributes):
    """The largest distance of the risks in standard errors."""
    return attributes["equivalence_distance"] / attributes["equivalence_error"]


if __name__ == "__main__":
    run_script(__file__)
