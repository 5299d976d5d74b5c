"""Escape times of one neuron against d: formulas, ODE and measurement."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import exit_scan


def make(spec, ask):
    dimensions = [100, 1000, 10_000, 100_000, 1_000_000] if ask.full else [100, 1000, 10_000]
    results = []
    for seed, d in enumerate(dimensions):  # independent runs, or all points would deviate alike
        problem = eqx.tree_at(lambda problem: problem.inputs, spec.problem, tl.Gaussian(d))
        replicas = 1000 if ask.full else 400
        results.append(tl.exit_time(problem, spec.training, threshold=0.1, replicas=replicas, seed=seed))
    measured = np.array([float(result.measured_mean) for result in results])
    errors = np.array([float(result.measured_mean_error) for result in results])

    def times(name):
        return np.array([float(result.predicted.sel(estimate=name)) for result in results])

    growth = np.polyfit(np.log(dimensions), measured, 1, w=1.0 / errors)[0]
    claims = [
        agrees(
            "measured mean against the ODE with the noise of SGD at this d", measured, errors, times("ode_at_finite_d")
        ),
        Claim("growth of the time with log d, over 1 / r", growth * float(results[0].growth_rate), 0.9, 1.1),
        Claim("quenched over annealed, smallest ratio", float(np.min(times("quenched") / times("annealed"))), low=1.0),
    ]
    title = r"Escape of one neuron, $\gamma = 1/12$, $T = 0.1$"
    return Made({"figure": exit_scan(results, "d", title)}, claims)


if __name__ == "__main__":
    run_script(__file__)
