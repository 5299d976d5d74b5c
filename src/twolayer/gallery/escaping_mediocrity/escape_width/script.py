"""Escape times of wider students over the formulas."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import exit_scan


def make(spec, ask):
    widths = [1, 2, 4, 8, 16] if ask.full else [1, 2, 4]
    d, replicas = (10_000, 400) if ask.full else (spec.problem.d, 128)
    results = []
    for p in widths:
        problem = tl.Problem(spec.problem.target, tl.Student(p, "square"), tl.Gaussian(d))
        training = tl.SGD(p / 12.0, constraint=tl.Sphere())
        results.append(tl.exit_time(problem, training, threshold=0.1, replicas=replicas, starts=128, seed=p))

    def times(name, variable="predicted"):
        return np.array([float(result[variable].sel(estimate=name)) for result in results])

    measured = np.array([float(result.measured_mean) for result in results])
    errors = np.array([float(result.measured_mean_error) for result in results])
    known = times("ode_at_finite_d", "predicted_error")
    gap = times("quenched") / times("annealed") - 1.0
    claims = [
        Claim("share of the runs that escaped", min(float(result.share_exited) for result in results), low=1.0),
        agrees("measured against the ODE with the noise of SGD", measured, errors, times("ode_at_finite_d"), known),
        Claim("quenched over annealed minus one, p = 1 over the largest p", gap[0] / gap[-1], low=2.0),
    ]
    title = rf"Ratio to the formulas, $d = {d}$"
    return Made({"figure": exit_scan(results, "p", title, ratio=True)}, claims)


if __name__ == "__main__":
    run_script(__file__)
