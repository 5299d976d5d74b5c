"""How often a verdict accuses a correct theory, and whether it finds a wrong one, with few replicas.

Synthetic paths have no mean, so that every deviation beyond the threshold is a false alarm: the rate is to be at most
one in a thousand. The kinds differ in how paths are correlated in time, and in how their scatter changes; it is zero
at the start of some. Then runs of `OverlapSGD` from one start are cut into small groups, each of which is judged
against the mean of all other runs (an exact theory) and against `SaadSolla`, right and with its second-order term left
out or doubled. Rates have 95% intervals of Clopper and Pearson.
"""

import argparse

from common import report, use_one_core

use_one_core()

import numpy as np  # noqa: E402
from scipy.stats import beta  # noqa: E402

from twolayer.data.deviation import judge_description, shared_scatter, sharing, threshold  # noqa: E402


def smooth(random, shape, length):
    """Stationary Gaussian paths with a correlation of Gaussian shape in time; ``length`` is a part of all times."""
    times = shape[-1]
    reach = int(4 * length * times) + 1
    weights = np.exp(-((np.arange(-reach, reach + 1) / (length * times)) ** 2))
    size = times + 2 * reach + len(weights)
    raw = np.fft.rfft(random.standard_normal((*shape[:-1], times + 2 * reach)), size)
    paths = np.fft.irfft(raw * np.fft.rfft(weights / np.linalg.norm(weights), size), size)
    return paths[..., 2 * reach : 2 * reach + times]


def rough(random, shape, length):
    """Ornstein-Uhlenbeck paths."""
    keep = np.exp(-1.0 / (length * shape[-1]))
    paths = random.standard_normal(shape)
    for n in range(1, shape[-1]):
        paths[..., n] = keep * paths[..., n - 1] + np.sqrt(1.0 - keep**2) * paths[..., n]
    return paths


def walk(random, shape):
    """Random walks, which begin without any scatter."""
    steps = random.standard_normal(shape)
    steps[..., 0] = 0.0
    return np.cumsum(steps, axis=-1)


def burst(time):
    """A scatter that is large for a moment, as at the end of a plateau."""
    return 600.0 * np.exp(-0.5 * ((time - 0.5) / 0.05) ** 2) + np.sqrt(time)


def wild(time):
    """A scatter that changes at random from one time to the next."""
    return np.exp(2.0 * np.random.default_rng(5).standard_normal(len(time)))


KINDS = {
    "independent": lambda random, shape, time: random.standard_normal(shape),
    "smooth, 0.02": lambda random, shape, time: smooth(random, shape, 0.02),
    "smooth, 0.05": lambda random, shape, time: smooth(random, shape, 0.05),
    "smooth, 0.3": lambda random, shape, time: smooth(random, shape, 0.3),
    "rough, 0.02": lambda random, shape, time: rough(random, shape, 0.02),
    "rough, 0.2": lambda random, shape, time: rough(random, shape, 0.2),
    "walk": lambda random, shape, time: walk(random, shape),
    "sum of a walk": lambda random, shape, time: np.cumsum(walk(random, shape), axis=-1),
    "one number": lambda random, shape, time: random.standard_normal((*shape[:-1], 1)) * np.ones(len(time)),
    "burst, rough": lambda random, shape, time: burst(time) * rough(random, shape, 0.05),
    "burst, smooth": lambda random, shape, time: burst(time) * smooth(random, shape, 0.05),
    "growing walk": lambda random, shape, time: walk(random, shape) * np.exp(8.0 * time),
    "steep": lambda random, shape, time: random.standard_normal(shape) * np.exp(30.0 * time),
    "wild": lambda random, shape, time: wild(time) * random.standard_normal(shape),
    "wild, rough": lambda random, shape, time: wild(time) * rough(random, shape, 0.05),
}


def alarms(kind, replicas, times, comparisons, seed=0):
    """The number of comparisons of which a number exceeds the threshold, with shared scatter and with its own alone."""
    random, time = np.random.default_rng(seed), np.linspace(0.0, 1.0, times)
    limit, former = threshold(replicas, times, sharing(times)), threshold(replicas, times)
    found, found_before, made = 0, 0, 0
    chunk = max(1, 2_000_000 // (replicas * times))
    while made < comparisons:
        x = KINDS[kind](random, (chunk, replicas, times), time)
        mean, scatter = np.abs(x.mean(axis=1)) * np.sqrt(replicas), x.std(axis=1, ddof=1)
        made += chunk
        found_before += int(np.sum(np.any(mean > former * scatter, axis=1)))
        for row in np.flatnonzero(np.any(mean > limit * scatter, axis=1)):  # sharing only makes deviations smaller
            found += int(np.any(mean[row] > limit * shared_scatter(scatter[row])))
    return found, found_before, made


def rate(found, made):
    """Alarms in 1000 comparisons, with their interval."""
    low = beta.ppf(0.025, found, made - found + 1) if found else 0.0
    high = beta.ppf(0.975, found + 1, made - found) if found < made else 1.0
    return f"{1e3 * found / made:.2f} ({1e3 * low:.2f} to {1e3 * high:.2f})"


def synthetic(comparisons):
    """False alarms in a thousand comparisons of paths without a mean."""
    rows = []
    for replicas in (2, 3, 4, 8, 16, 64):
        for times in (11, 101):
            counts = {kind: alarms(kind, replicas, times, comparisons) for kind in KINDS}
            worst = max(counts, key=lambda kind: counts[kind][0] / counts[kind][2])
            total = [sum(count[part] for count in counts.values()) for part in range(3)]
            rows.append(
                {
                    "replicas": replicas,
                    "times": times,
                    "threshold": threshold(replicas, times, sharing(times)),
                    "alone": threshold(replicas, times),
                    "alarms in 1000": rate(total[0], total[2]),
                    "of the worst kind": rate(counts[worst][0], counts[worst][2]),
                    "worst kind": worst,
                    "alone, in 1000": rate(total[1], total[2]),
                }
            )
    return rows


def doubled():
    """Equations of the overlaps with twice their second-order term."""
    from twolayer import SaadSolla
    from twolayer.theory.saad_solla import OverlapFlow

    class Doubled(SaadSolla):
        def flow(self, engine, problem, training, P):
            return OverlapFlow(problem, training, engine, P, 2.0)

    return Doubled()


def real(groups, size):
    """Verdicts on small groups of runs of SGD from one start, against theories that are right and wrong."""
    import twolayer as tl

    overlaps = {"Q": [[0.4, 0.1], [0.1, 0.5]], "M": [[0.2, 0.1], [0.05, 0.15]]}
    rows = []
    for d in (1000, 100_000):
        start = tl.GivenOverlaps(**overlaps)
        problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(d), start=start, noise=0.01)
        until = 6.0
        plan = {"until": until, "save": "linear:101", "replicas": groups * size, "seed": 1}
        runs = tl.evolve(problem, tl.SGD(1.0), tl.OverlapSGD(), **plan)
        one = {"until": until, "save": runs.time.values, "replicas": 1}
        theories = {
            "mean of the other runs": None,
            "SaadSolla": tl.evolve(problem, tl.SGD(1.0), tl.SaadSolla(), **one),
            "no second-order term": tl.evolve(problem, tl.SGD(1.0), tl.SaadSolla(variance=False), **one),
            "twice the second-order term": tl.evolve(problem, tl.SGD(1.0), doubled(), **one),
        }
        for name, theory in theories.items():
            outcomes = []
            for group in range(groups):
                chosen = np.arange(groups * size) // size == group
                those = runs.isel(replica=chosen)
                against = runs.isel(replica=~chosen).mean("replica", keep_attrs=True) if theory is None else theory
                if theory is None:
                    against = against.expand_dims(replica=[0]).transpose(*runs.risk.dims, ...)
                outcomes.append(judge_description("OverlapSGD", name, those, against, "", d)[0].outcome)
            beyond = sum(outcome in ("differs", "finite-d effect") for outcome in outcomes)
            rows.append(
                {
                    "d": d,
                    "replicas": size,
                    "theory": name,
                    "comparisons": groups,
                    "beyond chance": beyond,
                    "differs": outcomes.count("differs"),
                    "in 1000": rate(beyond, groups),
                }
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=20_000, help="synthetic comparisons of each kind")
    parser.add_argument("--groups", type=int, default=300, help="groups of runs of SGD")
    arguments = parser.parse_args()
    if arguments.comparisons:
        report("false alarms of verdicts, synthetic paths", synthetic(arguments.comparisons))
    for size in (4, 16):
        report(f"verdicts on groups of {size} runs", real(arguments.groups, size))


if __name__ == "__main__":
    main()
