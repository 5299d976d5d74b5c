"""Which powers of d for learning rate and width lead to which limit of SGD; and the floor that the rate sets."""

from dataclasses import dataclass

import numpy as np

import twolayer as tl
from twolayer.gallery import Made, agrees, has_order, run_script, slope, slope_error
from twolayer.plots import Note, Panel, Series, panels

CLOCK, POINTS = 2.0, 9  # the time to which runs go on the clock of their regime, and how many times are saved
ALONE = 1e4  # gamma / p at which the variance term is all of the motion, to this accuracy
FAR = 10**10  # the dimension of the limits, on which they do not depend
FLOW, ODE, NOISE, NONE = REGIMES = ("gradient flow", "ODE", "noise alone", "no limit")


@dataclass(frozen=True)
class PowersOfDimension:
    """Runs along powers of d: p ~ d^width and gamma ~ d^-rate; ``ratio`` is gamma / p at the smallest d."""

    regime: str
    width: float
    rate: float
    dimensions: tuple[int, ...]
    ratio: float
    runs: int

    @property
    def exponent(self):
        """Of 1 / d in gamma / p."""
        return self.width + self.rate

    @property
    def name(self):
        return f"p ~ d^{self.width:g}, gamma ~ d^{-self.rate:g}"

    def sizes(self, p):
        """Return d, p and gamma / p along the series, for a student of p units at its beginning."""
        growth = np.array(self.dimensions) / self.dimensions[0]
        widths = np.round(p * growth**self.width).astype(int)
        return list(zip(self.dimensions, widths.tolist(), self.ratio * growth**-self.exponent, strict=True))


def scatter_order(exponent):
    """Return the power of d in the scatter of Q: one over the root of the number of steps in a unit of the clock."""
    return np.where(exponent >= 0.0, -0.5 * (1.0 + exponent), -0.5 - exponent)


def scalings(full):
    more, last = (4, (12_800,)) if full else (1, ())
    near, wide, far = (200, 800, 3200, *last), (100, 400, 1600), (10_000, 100_000, 1_000_000)
    return [
        PowersOfDimension(FLOW, 0.0, 0.5, near, 0.2, 128 * more),
        PowersOfDimension(FLOW, 0.5, 0.0, wide, 0.2, 96 * more),
        PowersOfDimension(ODE, 0.0, 0.0, near, 1.0, 512 * more),
        PowersOfDimension(ODE, 0.5, -0.5, wide, 1.0, 256 * more),
        PowersOfDimension(NOISE, 0.0, -0.25, far, 10.0, 512 * more),
        PowersOfDimension(NONE, 0.0, -0.5, far, 20.0, 512 * more),
    ]


class ScaledRuns:
    """Runs of a scaling at each d, beside the limit of its regime."""

    def __init__(self, spec, scaling):
        self.scaling, self.problem, self.noise = scaling, spec.problem, spec.problem.noise
        problem = spec.problem
        self.times = np.linspace(0.0, CLOCK, POINTS)
        self.runs, self.limits = [], []
        for d, p, ratio in scaling.sizes(problem.p):
            options = {"replicas": scaling.runs, "seed": d}
            self.runs.append(self._evolve(_widened(problem, p, d), tl.OverlapSGD(), ratio, **options))
            at = {FLOW: ratio, ODE: ratio}.get(scaling.regime, ALONE)
            limit = tl.SaadSolla(variance=scaling.regime != FLOW)
            self.limits.append(self._evolve(_widened(problem, p, FAR), limit, at))

    def _evolve(self, problem, description, ratio, **options):
        # The clock is that of the faster term of the motion: t, or t gamma / p where the variance term is larger.
        times = self.times / max(1.0, ratio)
        training = tl.SGD(float(ratio * problem.p))
        return tl.evolve(problem, training, description, until=times[-1], save=times, **options)

    def scatter(self):
        """Return the root mean square over the units of the deviation of Q_jj over runs at the end, and its error.

        Entries of Q off its diagonal scatter otherwise, and their share grows with p.
        """
        lengths = [np.diagonal(run.Q.values[:, -1], axis1=1, axis2=2) for run in self.runs]
        squares = [np.mean((x - x.mean(axis=0)) ** 2, axis=1) for x in lengths]
        sizes = np.sqrt([x.sum() / (x.size - 1) for x in squares])
        return sizes, np.array([x.std(ddof=1) / np.sqrt(x.size) for x in squares]) / (2.0 * sizes)

    def residual_change(self):
        """Return the largest relative change along the series, by the limits, of the mean square of a residual.

        It drives the noise. Where p grows it falls, since the part of each unit outside of the target counts as 1/p.
        """
        squares = [self.noise + 2.0 * limit.excess_risk.values[0] for limit in self.limits]
        return float(np.ptp(np.log(squares), axis=0).max())

    def curvature(self):
        """Return how far the distance of the ODE from the flow is from d^-1/2, in all from one end to the other."""
        sizes = self.scaling.sizes(self.problem.p)
        odes = [self._evolve(_widened(self.problem, p, FAR), tl.SaadSolla(), ratio) for _, p, ratio in sizes]
        ends = [[x.excess_risk.values[0, -1] for x in results] for results in (odes, self.limits)]
        order = slope(self.scaling.dimensions, np.abs(np.subtract(*ends)))
        return abs(order + 0.5) * float(np.ptp(np.log(self.scaling.dimensions)))

    def distance(self, variable, start=False):
        """Return the distance of the mean over runs at the end from the limit, or from the start, and its error."""
        values, errors = [], []
        for run, limit in zip(self.runs, self.limits, strict=True):
            last = run[variable].values[:, -1].reshape(self.scaling.runs, -1)
            other = run[variable].values[0, 0] if start else limit[variable].values[0, -1]
            values.append(np.sqrt(np.mean((last.mean(axis=0) - other.ravel()) ** 2)))
            errors.append(np.sqrt(np.mean(last.var(axis=0, ddof=1)) / self.scaling.runs))
        return np.array(values), np.array(errors)

    def order(self, sentence, measured, predicted, left_out):
        name = f"{self.scaling.regime}, {self.scaling.name}: order in d of {sentence}"
        return has_order(name, self.scaling.dimensions, *measured, predicted, float(left_out))


def _widened(problem, p, d):
    """Return the problem with copies of the units of its start, orthogonal outside of the target."""
    start, copies = problem.start, p // problem.p
    wide = tl.GivenOverlaps(np.kron(np.eye(copies), start.Q - start.M @ start.M.T) + _along(start.M, copies),
                            np.tile(start.M, (copies, 1)))  # fmt: skip
    return tl.Problem(problem.target, tl.Student(p, "erf"), tl.Gaussian(d), start=wide, noise=problem.noise)


def _along(M, copies):
    wide = np.tile(M, (copies, 1))
    return wide @ wide.T


def make(spec, ask):
    results = [ScaledRuns(spec, scaling) for scaling in scalings(ask.full)]
    claims, points = [], {}
    for result in results:
        scaling, ratio = result.scaling, result.scaling.ratio
        # What the leading order leaves out: the smaller term of the motion, and the square of the scatter.
        squared = max(ratio, ratio**2) / scaling.dimensions[0] if scaling.regime != NONE else 0.0
        left_out = squared + (min(ratio, 1.0 / ratio) if scaling.regime != ODE else 0.0)
        scatter, predicted = result.scatter(), float(scatter_order(scaling.exponent))
        claims.append(result.order("the scatter over runs", scatter, predicted, left_out + result.residual_change()))
        points[scaling] = claims[-1].value, slope_error(scaling.dimensions, *scatter)
        if scaling.regime == FLOW:
            known = squared + result.curvature()
            claims.append(result.order("the distance from the flow", result.distance("excess_risk"), -0.5, known))
        if scaling.regime == ODE:
            d = np.array(scaling.dimensions)
            means = np.array([run.excess_risk.values[:, -1].mean() for run in result.runs])
            limit = np.array([limit.excess_risk.values[0, -1] for limit in result.limits])
            error = result.distance("excess_risk")[1]
            sentence = f"{scaling.regime}, {scaling.name}: mean risk against the ODE, largest deviation"
            claims.append(agrees(sentence, means, error, limit, limit / d))
        if scaling.regime == NOISE:
            claims.append(result.order("the distance of Q from the limit", result.distance("Q"), -0.25, left_out))
            claims.append(result.order("what M moves", result.distance("M", start=True), -0.25, left_out))
    floor, floor_claims = _floor(spec, ask)
    shown = [_diagram(results), _scatters(points), _limits(results), floor]
    return Made({"figure": panels(shown, "An erf committee, $k = 2$: limits of SGD", columns=2)}, claims + floor_claims)


def _floor(spec, ask):
    """Return the panel and the claims of the excess risk that noisy labels leave at the end."""
    rates = 0.02 * 2.0 ** (np.arange(19) / 2.0)
    chosen = slice(10, None, 2) if ask.full else slice(14, None, 2)
    measured = rates[chosen]
    asked = {"until": spec.ask.until, "save": [spec.ask.until], "workers": 0}

    def ends(description, rates, replicas=1):
        over = {"training.learning_rate": rates}
        swept = tl.sweep(spec.problem, spec.training, description, over=over, replicas=replicas, **asked)
        last = swept.excess_risk[:, :, -1]
        return last.transpose("learning_rate", "replica").values

    floors = ends(tl.SaadSolla(), rates)[:, 0]
    runs = ends(tl.OverlapSGD(), measured, spec.ask.replicas)
    means, errors = runs.mean(axis=1), runs.std(axis=1, ddof=1) / np.sqrt(spec.ask.replicas)
    small = rates < 0.2
    left_out = rates[small].max() / spec.problem.p  # the next order in gamma / p
    sentence = "floor under noisy labels: order in gamma at small rates"
    claims = [
        has_order(sentence, rates[small], floors[small], 0.0 * floors[small], 1.0, float(left_out)),
        agrees("floor under noisy labels: SGD against the ODE", means, errors, floors[chosen]),
    ]
    parts = [
        Series("ODE", rates, floors, color=REGIMES.index(ODE)),
        Series(f"SGD, $d = {spec.problem.d}$", measured, means, errors, kind="points", color=4),
        Series(r"$\propto \gamma$", rates, floors[0] * rates / rates[0], kind="reference"),
    ]
    label = rf"excess risk at $t = {spec.ask.until:g}$"
    return Panel(r"learning rate  $\gamma$", label, parts, log="xy", title="floor under noisy labels"), claims


def _diagram(results):
    kappa, ends = np.array([-0.1, 0.8]), (-1.2, 0.8)
    low, high = (np.full(2, end) for end in ends)
    bands = {FLOW: (-kappa, high), NOISE: (-kappa - 0.5, -kappa), NONE: (low, -kappa - 0.5)}
    places = {FLOW: (0.45, 0.5), ODE: (0.14, -0.09), NOISE: (0.2, -0.5), NONE: (0.08, -1.0)}
    parts = [
        Series("", kappa, np.full(2, np.nan), band=band, color=REGIMES.index(regime)) for regime, band in bands.items()
    ]
    parts.append(Series("", kappa, -kappa, color=REGIMES.index(ODE)))
    parts += [Note(regime, *place) for regime, place in places.items()]
    for regime in REGIMES:
        placed = [(result.scaling.width, result.scaling.rate) for result in results if result.scaling.regime == regime]
        parts.append(Series("", *np.array(placed).T, kind="points", color=REGIMES.index(regime)))
    labels = r"width:  $\kappa$ in $p \sim d^{\kappa}$", r"rate:  $\delta$ in $\gamma \sim d^{-\delta}$"
    return Panel(*labels, parts, xlim=tuple(kappa), ylim=ends, title="regimes, and scalings that were run")


def _scatters(points):
    exponents = np.linspace(-0.6, 0.8, 71)
    parts = [Series("predicted", exponents, scatter_order(exponents), kind="reference", look={"lw": 1.0})]
    for scaling, (order, error) in points.items():
        label = "" if scaling.width else f"SGD, {scaling.regime}"
        options = {"kind": "points", "color": REGIMES.index(scaling.regime)}
        parts.append(Series(label, [scaling.exponent], [order], [error], **options))
    label = r"$\kappa + \delta$  in  $\gamma / p \sim d^{-(\kappa + \delta)}$"
    return Panel(label, "power of $d$", parts, title="scatter of $Q_{jj}$ over runs", legend="lower left")


def _limits(results):
    parts = []
    for result in results:
        if result.scaling.width > 0.0:
            continue
        regime, color = result.scaling.regime, REGIMES.index(result.scaling.regime)
        risks, label = result.runs[-1].excess_risk.values, f"{regime}, $d = {result.scaling.dimensions[-1]}$"
        if regime == NONE:
            band, middle = np.quantile(risks, [0.1, 0.9], axis=0), np.median(risks, axis=0)
            parts.append(Series(f"{label}: 10-90% of runs", result.times, middle, band=band, color=color))
            continue
        parts.append(Series(label, result.times, result.limits[-1].excess_risk.values[0], color=color))
        parts.append(Series("", result.times, risks.mean(axis=0), kind="points", color=color))
    label, title = r"time  $t\,\max(1, \gamma / p)$", "limits (lines) and mean of SGD (points)"
    return Panel(label, "excess risk", parts, log="y", title=title, ylim=(0.006, 0.2), legend="lower left")


if __name__ == "__main__":
    run_script(__file__)
