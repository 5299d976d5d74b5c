"""Power-law targets of many squares: the ODE, and SGD on the overlaps at d = 10^6.

python benchmarks/scaling.py          # about a minute of CPU

A committee of k = 64 squares with output weights r^-1, learned by p = 32 squares. The ODE is followed for 10^9 samples.
`OverlapSGD` is timed per sample for single samples and for batches of d / 100 and d / 10; the time of 10^9 follows.
"""

import json
import time

import numpy as np

import twolayer as tl

P, K, D, SAMPLES = 32, 64, 10**6, 10**9
RATE = 0.5


def cpu(function) -> float:
    """The CPU seconds of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def main() -> None:
    weights = K * np.arange(1.0, K + 1.0) ** -1.0
    start = tl.GivenOverlaps(np.eye(P), 1e-3 * np.random.default_rng(0).standard_normal((P, K)))
    target = tl.Committee(K, "square", second_layer=weights)
    problem = tl.Problem(target, tl.Student(P, "square"), tl.Gaussian(D), start=start)
    ode = tl.SaadSolla(rtol=1e-6, atol=1e-9)

    def time_of(samples: float) -> float:
        return RATE * samples / (P * D)

    with_compilation, alone = (
        cpu(lambda: tl.evolve(problem, tl.SGD(RATE), ode, until=time_of(SAMPLES), save=20)) for _ in range(2)
    )
    print(f"ODE, 10^9 samples: {with_compilation:.2f} s of CPU with compilation, {alone:.2f} s without")
    rows = {"ode_with_compilation": with_compilation, "ode": alone}
    cases = ((1, 4000, "double"), (D // 100, 40, "double"), (D // 100, 40, "single"), (D // 10, 4, "double"))
    for batch, steps, precision in cases:
        training, sgd = tl.SGD(RATE, batch_size=batch), tl.OverlapSGD(gradients=precision)

        def run(number: int, training: tl.SGD = training, batch: int = batch, sgd: tl.OverlapSGD = sgd) -> None:
            until = time_of(batch * number)
            tl.evolve(problem, training, sgd, until=until, save=[until])

        run(steps)  # compiles
        few, many = (cpu(lambda number=number: run(number)) for number in (steps, 3 * steps))
        per_sample = (many - few) / (2 * steps * batch)
        rows[f"overlap_sgd_{batch}_{precision}"] = per_sample
        took = f"{1e6 * per_sample:.3g} us a sample, {per_sample * SAMPLES:.3g} s for 10^9"
        print(f"OverlapSGD, batch {batch}, {precision} precision: {took}")
    print(json.dumps({"benchmark": "scaling", **rows}))


if __name__ == "__main__":
    main()
