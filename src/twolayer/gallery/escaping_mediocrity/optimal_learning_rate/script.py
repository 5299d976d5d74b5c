"""Steps to escape against the learning rate, and what width gains at the best one."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels
from twolayer.theory.formulas import phase_retrieval


def make(spec, ask):
    noise, d = spec.problem.noise, spec.problem.d
    replicas = 1000 if ask.full else 200

    def escape(gamma, replicas, seed=0):
        training = tl.SGD(gamma, constraint=tl.Sphere())
        return tl.exit_time(spec.problem, training, threshold=0.1, replicas=replicas, seed=seed)

    def steps(result, value):
        return float(value) * result.attrs["steps_per_time"] / d

    best = 1.0 / (12.0 + noise)
    rates = best * np.array([0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5])
    formula = [escape(rate, 0) for rate in rates]
    lines = {
        name: [steps(result, result.predicted.sel(estimate=name)) for result in formula]
        for name in ("annealed", "quenched", "ode_at_finite_d")
    }
    tried = rates if ask.full else rates[[1, 4, 6]]
    runs = [escape(rate, replicas, seed) for seed, rate in enumerate(tried)]
    measured = np.array([steps(run, run.measured_mean) for run in runs])
    errors = np.array([steps(run, run.measured_mean_error) for run in runs])
    predicted = np.array([steps(run, run.predicted.sel(estimate="ode_at_finite_d")) for run in runs])

    # The gain of width: fewest steps p d t / gamma of the annealed formula over all rates, p = 1 over p. The
    # logarithm in the time, which depends on p by itself, is divided out.
    widths = np.array([1, 2, 4, 8, 16, 32, 64])
    fewest = []
    for p in widths:
        grid = phase_retrieval.maximal_learning_rate(p, noise) * np.linspace(0.05, 0.95, 2001)
        times = np.array([phase_retrieval.annealed_time(int(p), d, gamma, noise, 0.1) for gamma in grid])
        fewest.append(np.min(p * times / grid) / np.log((p + 1) * (0.1 * d + 0.9) / (2 * p)))
    gain = fewest[0] / np.array(fewest)
    limit = (12.0 + noise) / (2.0 + noise)
    exact = phase_retrieval.overparametrisation_gain(widths, noise)
    fine = np.polynomial.Polynomial.fit(rates / best, lines["quenched"], 4)
    fractions = np.linspace(0.6, 1.4, 801)
    shown = [
        Panel(
            r"learning rate  $\gamma / \gamma_{\rm opt}$",
            "steps to the exit $/\\, d$",
            [
                Series("annealed", rates / best, lines["annealed"], color=3),
                Series("quenched", rates / best, lines["quenched"], color=2),
                Series("ODE, SGD noise at finite $d$", rates / best, lines["ode_at_finite_d"], color=1),
                Series("measured", tried / best, measured, errors, kind="points", color=0),
            ],
            title=rf"$p = 1$, $\Delta = {noise:g}$, $d = {d}$",
        ),
        Panel(
            "width  $p$",
            "gain in steps over $p = 1$",
            [
                Series("annealed formula, best over all rates", widths, gain, kind="points", color=4),
                Series("closed form", widths, exact, color=4),
                Series(r"$(12 + \Delta) / (2 + \Delta)$", widths, np.full(len(widths), limit), kind="reference"),
            ],
            log="x",
            xticks=widths,
            title="each width at its best rate",
        ),
    ]
    claims = [
        Claim(
            "optimal learning rate found, over 1 / (12 + noise)",
            float(fractions[np.argmin(fine(fractions))]),
            0.97,
            1.03,
        ),
        agrees("measured steps against the ODE with the noise of SGD", measured, errors, predicted),
        Claim("gain at p = 64 over (12 + noise) / (2 + noise)", float(gain[-1] / limit), 0.95, 1.0),
        Claim(
            "largest deviation of the gain from its closed form", float(np.max(np.abs(gain / exact - 1.0))), high=1e-5
        ),
    ]
    return Made({"figure": panels(shown, "The learning rate that escapes soonest")}, claims)


if __name__ == "__main__":
    run_script(__file__)
