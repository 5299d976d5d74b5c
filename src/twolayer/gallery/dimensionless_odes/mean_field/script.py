"""The mean-field limit at finite dimension: its distance from finite width in p, and from infinite dimension in d."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.ask import Ask, make_plan
from twolayer.core.precision import double
from twolayer.gallery import Made, has_order, run_script
from twolayer.plots import Panel, Series, panels

FLOW = tl.SaadSolla(variance=False, rtol=1e-4, atol=1e-6)  # distances are of order 0.01, few digits suffice
WARM = tl.WarmStart(0.3)  # overlaps of all units with the target where the dimension is varied
FAR = 10**6


def make(spec, ask):
    widths, dimensions = ([4, 8, 16, 32], [10, 30, 90, 270]) if ask.full else ([4, 8, 16], [10, 30, 90])
    draws, particles, clouds = (4096, 1024, 2) if ask.full else (spec.ask.replicas, 256, 1)
    asked = Ask(spec.ask.until, np.linspace(0.0, spec.ask.until, spec.ask.save), draws)
    start, d, few = spec.problem.start, spec.problem.d, widths[0]

    def problem(p, d, start):
        return tl.Problem(spec.problem.target, tl.Student(p, "erf"), tl.Gaussian(d), start=start)

    # In p, at a fixed dimension, from random starts; and in d, from given overlaps, with directions drawn at random.
    together = [problem(few, d, start), *(problem(few, dimension, WARM) for dimension in dimensions)]
    drawn, *turned = _follow(together, spec.training, asked)
    flows = {few: drawn}
    for p in widths[1:]:
        fewer = Ask(asked.until, asked.save, max(256, draws * few // p))
        flows[p] = _follow([problem(p, d, start)], spec.training, fewer)[0]
    limit = _mean_field(problem(few, d, start), spec.training, asked, clouds, particles=particles, rtol=1e-4, atol=1e-6)
    gaps = {p: flow - limit.mean(axis=0) for p, flow in flows.items()}
    distances = [np.abs(gap).max(axis=1) for gap in gaps.values()]
    far, far_error = np.array([(x.mean(), x.std(ddof=1) / np.sqrt(x.size)) for x in distances]).T
    shift = gaps[few][:, 0].mean() / gaps[few][:, 0].std()  # of order 1/p: E|x + b| is that of |x| times 1 + b^2 / 2
    # The mean over directions.
    given = [problem(few, dimension, WARM) for dimension in (*dimensions, FAR)]
    *near, beyond = (_mean_field(each, spec.training, asked)[0] for each in given)
    exact = np.array([np.abs(risk - beyond).max() for risk in near])
    own = np.array([flow.std(axis=0, ddof=1).max() for flow in turned])
    free = np.array(dimensions) - 1.0  # dimensions outside of the target
    next_order = 3.0 / (free[0] + 2.0)  # E[rho^4] / E[rho^2] of the cosine of two directions
    error = own / np.sqrt(2.0 * draws)
    claims = [
        has_order(
            "order in p of the distance of random starts from MeanField, mean over draws (theorem: -1/2)",
            *(widths, far, far_error, -0.5),
            left_out=float(shift**2 / 2.0 + widths[-1] / (2.0 * clouds * particles)),
        ),
        has_order("order in d - k of the scatter over directions (theorem: -1/2)", free, own, error, -0.5, next_order),
        has_order(
            "order in d - k of the distance of MeanField from infinite dimension (mean over directions: -1)",
            *(free, exact, 0.0 * exact, -1.0, next_order),
        ),
    ]
    shown = [
        _risks(np.asarray(asked.save), limit.mean(axis=0), gaps),
        _in_width(widths, far, far_error),
        _in_dimension(free, own, error, exact),
    ]
    return Made({"figure": panels(shown, "Erf students of one neuron in finite dimension, gradient flow")}, claims)


def _follow(problems, training, asked):
    """Return the excess risks of gradient flow from the starts of all problems, which may differ in d alone.

    The flow of the overlaps does not depend on d, so that all starts of one width are solved in one call.
    """
    with double():
        plans = [make_plan(problem, training, asked, in_steps=False) for problem in problems]
        parts = [jnp.concatenate([getattr(plan.starts, name) for plan in plans]) for name in ("Q", "M", "a")]
        plan = eqx.tree_at(lambda plan: (plan.starts.Q, plan.starts.M, plan.starts.a), plans[0], tuple(parts))
        record = FLOW.run(problems[0], training, plan)
    return np.split(np.asarray(record.excess_risk), len(problems))


def _mean_field(problem, training, asked, clouds=1, **options):
    """Return the excess risks of clouds of particles at the times that are asked for."""
    same = {"until": asked.until, "save": asked.save, "replicas": clouds, "seed": 1}
    return tl.evolve(problem, training, tl.MeanField(**options), **same).excess_risk.values


def _risks(times, limit, gaps):
    curves = [
        Series(
            f"$p = {p}$",
            times,
            1.0 + np.median(gaps[p], axis=0) / limit,
            band=1.0 + np.quantile(gaps[p], [0.1, 0.9], axis=0) / limit,
            color=color,
        )
        for color, p in zip((1, 0), (min(gaps), max(gaps)), strict=True)
    ]
    label, title = "risk, in units of that of MeanField", "SaadSolla: median and 10-90%, $d = 10$"
    return Panel("time  $t$", label, curves, title=title, legend="upper right")


def _in_width(widths, values, errors):
    x = np.array(widths, dtype=float)
    law = np.exp(np.mean(np.log(values * np.sqrt(x)))) / np.sqrt(x)
    curves = [
        Series("random starts, $d = 10$", x, values, errors, kind="points", color=0),
        Series(r"$\propto p^{-1/2}$", x, law, kind="reference"),
    ]
    return Panel("width  $p$", "largest distance of the risks", curves, log="xy", xticks=widths,
                 title="SaadSolla from MeanField")  # fmt: skip


def _in_dimension(free, own, error, exact):
    curves = [
        Series("one draw of directions", free, own, error, kind="points", color=1),
        Series("mean over directions", free, exact, kind="points", color=2),
        Series(r"$\propto (d - k)^{-1/2}$", free, own[0] * np.sqrt(free[0] / free), kind="reference"),
        Series(r"$\propto (d - k)^{-1}$", free, exact[0] * free[0] / free, kind="reference", dashed=1),
    ]
    return Panel("dimensions outside  $d - k$", "largest distance of the risks", curves, log="xy", legend="below",
                 title="from infinite dimension, $p = 4$")  # fmt: skip


if __name__ == "__main__":
    run_script(__file__)
