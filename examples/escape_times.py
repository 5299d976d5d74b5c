"""Escape from mediocrity in a million dimensions: the law of the escape time, exactly, without a vector of size d.

One neuron learns phase retrieval by SGD on the sphere at the learning rate that escapes soonest. It begins with an
overlap of order 1/sqrt(d) with the target, at a saddle of the risk, and escapes when the excess risk is 1 - T of what
it was. Every run of the measured law is SGD at d = 10^6, simulated exactly in law through its overlaps.

    python examples/escape_times.py                         # 1000 runs
    python examples/escape_times.py --replicas 100000       # for a GPU

What to look for: the annealed formula, which averages the start before the logarithm, is too early; the quenched one is
too late by the time that the noise of SGD saves, log(2) / r, with r = 4 at the optimal learning rate; with that shift
the ODE passes through the mean of the measurement. The width of the law is that of the logarithm of a chi-square.
"""

import argparse
import time

import twolayer as tl
from twolayer.plots import exit_law, save_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--d", type=int, default=10**6)
    parser.add_argument("--threshold", type=float, default=0.1)
    parser.add_argument("--out", default="escape_times", help="name of the picture, without .png")
    asked = parser.parse_args()

    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(asked.d))
    training = tl.SGD(learning_rate=1 / 12, constraint=tl.Sphere())
    began = time.perf_counter()
    result = tl.exit_time(problem, training, threshold=asked.threshold, replicas=asked.replicas)
    print(result)
    print(f"\n{time.perf_counter() - began:.0f} s")
    figure = exit_law(
        result, f"Phase retrieval, $p = 1$, $d = 10^{{{len(str(asked.d)) - 1}}}$, $T = {asked.threshold:g}$"
    )
    save_figure(figure, asked.out)

    # The claim of the picture, in numbers: quenched minus the shift by the noise of SGD, within five standard errors.
    measured, formula = result.measured, result.ode_at_finite_d
    error = measured.standard_error
    score = (measured.mean - formula.value) / error
    print(f"measured {measured.mean:.4f}({error:.4f}), formula {formula.value:.4f}: {score:+.1f} standard errors")
    assert abs(score) < 5, "the measured mean is not that of the formula"


if __name__ == "__main__":
    main()
