"""The high-dimensional mean-field limit of wide students against the ODE for the overlaps, at growing p."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, run_script, slope
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    widths, draws = ([8, 16, 32, 64, 128], 128) if ask.full else ([4, 8, 20], spec.ask.replicas)
    asked = {"until": spec.ask.until, "save": f"linear:{spec.ask.save}", "replicas": draws}
    flow = tl.SaadSolla(variance=False)  # the variance term is gamma / p of the drift
    curves, own, other = [], [], []
    for color, p in enumerate(widths):
        problem = tl.Problem(spec.problem.target, tl.Student(p, "erf"), spec.problem.inputs, start=spec.problem.start)
        results = [tl.evolve(problem, spec.training, description, **asked) for description in (flow, tl.HDMF())]
        time, risks = results[0].time.values, np.stack([result.excess_risk.values for result in results], axis=1)
        gaps = risks[:, 1] - risks[:, 0]
        own.append(np.abs(gaps.mean(axis=0)).max())
        apart = (risks[:, None, 1] - risks[None, :, 0])[~np.eye(draws, dtype=bool)]
        other.append(np.sqrt(np.mean(apart**2, axis=0)).max())
        if p in (widths[0], widths[-1]):
            curves += [
                Series(f"SaadSolla, $p = {p}$", time, risks[0, 0], kind="points", color=color),
                Series(f"HDMF, $p = {p}$", time, risks[0, 1], color=color),
            ]
    orders = [slope(widths, own), slope(widths, other)]
    sizes = np.array(widths, dtype=float)
    shown = [
        Panel("time  $t$", "excess risk", curves, title="one student of each width", log="y"),
        Panel(
            "width  $p$",
            "distance of the risks",
            [
                Series(f"same units (slope {orders[0]:.2f})", sizes, own, kind="points", color=4),
                Series(f"another draw (slope {orders[1]:.2f})", sizes, other, kind="points", color=5),
                Series("$p^{-1}$", sizes, own[0] * sizes[0] / sizes, kind="reference"),
                Series("$p^{-1/2}$", sizes, other[0] * (sizes[0] / sizes) ** 0.5, kind="reference", dashed=1),
            ],
            log="xy",
            xticks=widths,
            ylim=(0.3 * min(own), 2.0 * max(other)),
            legend="lower left",
            title="HDMF against SaadSolla",
        ),
    ]
    claims = [
        Claim("order in p from the same units", orders[0], -1.2, -0.8),
        Claim("order in p from another draw (theorem: -1/2)", orders[1], -0.65, -0.35),
    ]
    return Made({"figure": panels(shown, "Wide erf students of one neuron, gradient flow")}, claims)


if __name__ == "__main__":
    run_script(__file__)
