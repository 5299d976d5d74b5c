"""SaadSolla with the logistic loss: four units, two target fields, to time 10, with compilation.

The CPU time of a first and a second run in one process, and the numerical error of the risk.

    python benchmarks/losses.py
"""

import time

from common import use_one_core

use_one_core()

import twolayer as tl  # noqa: E402

TARGETS = ("sign(z1*z2)", "sign(z1 + 0.5*z2)", "sign(z1 + z1*z2)")


def main() -> None:
    """Print a line for each target."""
    for formula in TARGETS:
        problem = tl.Problem(
            tl.MultiIndex(formula, k=2),
            tl.Student(4, "erf"),
            tl.Gaussian(1000),
            start=tl.WarmStart(0.2),
            loss="logistic",
            noise=tl.Flips(0.05),
        )
        seconds = []
        for _ in range(2):
            began = time.process_time()
            result = tl.evolve(problem, tl.SGD(2.0), tl.SaadSolla(), until=10.0, save=20)
            seconds.append(time.process_time() - began)
        error = float(result.risk_error.max())
        print(f"{formula:20} first {seconds[0]:5.1f} s, second {seconds[1]:5.1f} s of CPU; risk_error {error:.1e}")


if __name__ == "__main__":
    main()
