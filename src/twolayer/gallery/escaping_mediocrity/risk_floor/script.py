"""The risk at which SGD with noisy labels ends, against the learning rate."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels
from twolayer.theory.formulas.phase_retrieval import fixed_overlap, maximal_learning_rate

AT_ZERO = 2.0  # the excess risk at m = 0
TOLERANCE = 1e-5  # of the ODE, which is solved to more digits than that


# Large: a page is read from top to bottom, from its sizes to its claims.
def make(spec, ask):
    noise, d = spec.problem.noise, spec.problem.d
    largest = float(maximal_learning_rate(1, noise))
    rates = np.array([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.15, 0.17])
    tried = rates[1:7] if ask.full else rates[[2, 4, 5]]
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)

    def run(description, gamma, replicas=1, save=times):
        training = eqx.tree_at(lambda training: training.learning_rate, spec.training, float(gamma))
        asked = {"until": save[-1], "save": save, "replicas": replicas}
        return tl.evolve(spec.problem, training, description, **asked).excess_risk.values

    def floor(gamma):
        return np.where(gamma < largest, AT_ZERO * (1.0 - fixed_overlap(gamma, noise)), AT_ZERO)

    # Next to the largest rate the ODE is slow.
    ends_of_ode = np.array([run(tl.SaadSolla(), gamma, save=[20.0 * spec.ask.until])[0, -1] for gamma in rates])
    runs = [run(tl.OverlapSGD(), gamma, spec.ask.replicas) for gamma in tried]
    paths_of_ode = [run(tl.SaadSolla(), gamma)[0] for gamma in tried[-2:]]
    late = times > 0.5 * spec.ask.until  # runs have settled; the average over time is one number for each of them
    ends = np.array([risks[:, late].mean(axis=1) for risks in runs])
    means, errors = ends.mean(axis=1), ends.std(axis=1, ddof=1) / np.sqrt(spec.ask.replicas)
    expected = floor(tried)
    fine = np.linspace(rates[0], rates[-1], 200)
    shown = [
        Panel(
            "time  $t$",
            "excess risk",
            [
                *(
                    Series(
                        rf"SGD, $\gamma = {gamma:g}$",
                        times,
                        risks.mean(axis=0),
                        band=np.quantile(risks, [0.1, 0.9], axis=0),
                        color=n,
                    )
                    for n, (gamma, risks) in enumerate(zip(tried[-2:], runs[-2:], strict=True))
                ),
                *(Series("ODE", times, path, color=6, dashed=1) for path in paths_of_ode),
            ],
            log="y",
            title=rf"$d = {d}$, $\Delta = {noise:g}$",
        ),
        Panel(
            r"learning rate  $\gamma$",
            "floor of the excess risk",
            [
                Series(r"$\gamma \Delta / (1 - 6 \gamma)$, at most 2", fine, floor(fine), color=6),
                Series("ODE at the end", rates, ends_of_ode, kind="points", color=4),
                Series("SGD, mean over time and runs", tried, means, errors, kind="points", color=1),
                Series(r"$\gamma_{\max} = 2 / (12 + \Delta)$", [largest] * 2, [0.004, 3.0], kind="reference"),
            ],
            log="y",
        ),
    ]
    claims = [
        Claim(
            "ODE over the formula minus one, largest",
            float(np.max(np.abs(ends_of_ode / floor(rates) - 1.0))),
            high=TOLERANCE,
        ),
        Claim(
            "formula at 2 / (12 + noise) over the excess risk at m = 0",
            float(largest * noise / (1.0 - 6.0 * largest) / AT_ZERO),
            1.0 - 1e-9,
            1.0 + 1e-9,
        ),
        agrees("floor of SGD against the formula", means, errors, expected),
    ]
    return Made({"figure": panels(shown, "Noisy labels leave a floor that grows with the learning rate")}, claims)


if __name__ == "__main__":
    run_script(__file__)
