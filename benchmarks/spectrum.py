"""Inputs with a spectrum: what blocks cost beside isotropic inputs.

python benchmarks/spectrum.py          # about a minute of CPU once the programs are compiled

A committee of two erf units is learned by four at d = 16,000: CPU time of a step of `OverlapSGD` for one replica and
for 64, and of a second solution of `SaadSolla` to time 20, on isotropic inputs, one block with eigenvalue one, and
4 and 16 blocks.
"""

import json
import time
import warnings

import twolayer as tl

D, TRAINING = 16_000, tl.SGD(0.5)


def cpu(function) -> float:
    """The least CPU seconds of three calls."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        function()
        seconds.append(time.process_time() - began)
    return min(seconds)


def problem(blocks: int) -> tl.Problem:
    """Isotropic inputs for no block; eigenvalues that fall by the fourth root of 2 otherwise."""
    pairs = [(2.0 ** (1 - n / 4), 1.0 / blocks) for n in range(blocks)] if blocks > 1 else [(1.0, 1.0)]
    inputs = tl.Gaussian(D, spectrum=tl.Eigenvalues(tuple(pairs))) if blocks else tl.Gaussian(D)
    return tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), inputs, start=tl.WarmStart(0.3), noise=0.01)


def main() -> None:
    warnings.simplefilter("ignore", tl.Caution)
    rows: dict[int, dict[str, float]] = {}
    for blocks in (0, 1, 4, 16):
        here = problem(blocks)

        def run(steps: int, replicas: int, here: tl.Problem = here) -> None:
            until = float(TRAINING.clock(here).time(steps))
            tl.evolve(here, TRAINING, tl.OverlapSGD(), until=until, save=[until], replicas=replicas)

        def solve(here: tl.Problem = here) -> None:
            tl.evolve(here, TRAINING, tl.SaadSolla(), until=20.0, save=20)

        row = {}
        for replicas, steps in ((1, 400_000), (64, 30_000)):
            steps //= max(1, blocks)
            run(steps, replicas)  # compiles
            few, many = (cpu(lambda n=n, r=replicas: run(n, r)) for n in (steps, 5 * steps))
            row[f"step_{replicas}"] = 1e6 * (many - few) / (4 * steps * replicas)
        solve()
        row["ode"] = cpu(solve)
        rows[blocks] = row
        ratios = {name: value / rows[0][name] for name, value in row.items()}
        print(
            f"{blocks or 'no':>2} blocks: a step {row['step_1']:.3f} us ({ratios['step_1']:.2f}), of each of 64 "
            f"replicas {row['step_64']:.4f} us ({ratios['step_64']:.2f}); "
            f"ODE {1e3 * row['ode']:.0f} ms ({ratios['ode']:.2f})"
        )
    print(json.dumps({"benchmark": "spectrum", **{str(blocks): row for blocks, row in rows.items()}}))


if __name__ == "__main__":
    main()
