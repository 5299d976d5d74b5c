"""Steps of `OverlapSGD` with Nesterov's momentum beside those of heavy ball and of plain SGD, in one run.

Two erf units learn two, d = 1000, one sample a step, 64 replicas. CPU seconds of a whole run after the first call,
which compiles and is shown apart: the best of repeats.

    python benchmarks/nesterov.py
"""

import time

from common import against, report, use_one_core

use_one_core()

import twolayer as tl

D, REPLICAS, STEPS, REPEATS = 1000, 64, 20_000, 3
METHODS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"method": tl.Nesterov(0.9)},
}


def run(options: dict, seed: int) -> None:
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(D))
    training = tl.SGD(0.02, **options)
    until = float(training.clock(problem).time(STEPS))
    tl.evolve(problem, training, tl.OverlapSGD(), until=until, save=[until], replicas=REPLICAS, seed=seed)


def main() -> None:
    rows = []
    for name, options in METHODS.items():
        times = []
        for seed in range(1 + REPEATS):
            began = time.process_time()
            run(options, seed)
            times.append(time.process_time() - began)
        best = min(times[1:])
        per_step = 1e9 * best / (STEPS * REPLICAS)
        rows.append({"what": name, "CPU s": best, "ns per step": per_step, "first call s": times[0]})
    heavy = rows[1]["CPU s"]
    for row in rows:
        row["of heavy ball"] = row["CPU s"] / heavy
    report(
        "nesterov", rows, [against("OverlapSGD with Nesterov against heavy ball, CPU", "s", rows[2]["CPU s"], heavy)]
    )


if __name__ == "__main__":
    main()
