"""The law of the escape time in a million dimensions, measured without a vector of size d."""

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import exit_law


def make(spec, ask):
    replicas = 1000 if ask.full else 64
    result = tl.exit_time(spec.problem, spec.training, threshold=0.1, replicas=replicas)
    predicted = float(result.predicted.sel(estimate="ode_at_finite_d"))
    millions = result.attrs["steps_per_time"] / 1e6
    claims = [
        agrees(
            "measured mean against the ODE with the noise of SGD",
            float(result.measured_mean),
            float(result.measured_mean_error),
            predicted,
        ),
        Claim("runs that escaped", float(result.share_exited), low=1.0),
        Claim(
            "steps of SGD in the longest run, in millions, above the predicted mean",
            float(result.measured.max()) * millions,
            low=predicted * millions,
        ),
    ]
    title = r"Phase retrieval, $p = 1$, $d = 10^6$, $T = 0.1$"
    return Made({"figure": exit_law(result, title)}, claims)


if __name__ == "__main__":
    run_script(__file__)
