"""Fresh batches learn nothing here, batches used again do: three ways to spend eight gradients."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels

GRADIENTS, ALPHA = 8, 4.0


def make(spec, ask):
    d, replicas, samples = (2000, 50, 2**20) if ask.full else (500, 32, 2**17)
    problem = eqx.tree_at(lambda problem: problem.inputs, spec.problem, tl.Gaussian(d))
    rate, batch = float(spec.training.learning_rate), round(ALPHA * d)
    again = tl.DMFT(samples=samples)
    ways = {
        "fresh batches": (tl.SGD(rate, batch, constraint=tl.Sphere()), tl.BatchMap()),
        "the same batch at every step": (tl.SGD(rate, reuse=tl.Reused(ALPHA), constraint=tl.Sphere()), again),
        "fresh batches, each used twice": (tl.SGD(rate, batch, tl.Repeated(2), constraint=tl.Sphere()), again),
    }
    shown, claims, learned = [], [], {}
    for name, (training, theory) in ways.items():
        uses = 2 if "twice" in name else 1
        times = training.clock(problem).time(np.arange(GRADIENTS // uses + 1))
        options = {"until": float(times[-1]), "save": times}
        predicted = tl.evolve(problem, training, theory, **options).M.values[0, :, 0, 0]
        runs = tl.evolve(problem, training, tl.DirectSGD(), replicas=replicas, **options).M.values[:, :, 0, 0]
        mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(replicas)
        # An overlap by chance moves the mean by its square, of order 1/d, since the drift of this target begins there.
        known_to = runs.var(axis=0)
        sentence = f"{name}: cosine in SGD against theory"
        claims.append(agrees(sentence, mean[1:], error[1:], predicted[1:], known_to[1:]))
        learned[name] = abs(predicted[-1])
        gradients = uses * np.arange(len(times))
        spread = np.quantile(runs, [0.1, 0.9], axis=0)
        theory = Series(r"theory, $d \to \infty$", gradients, predicted, color=0)
        measured = Series(f"SGD, mean of {replicas} runs; band: 10-90%", gradients, mean, error, spread, "points", 1)
        axes = {"ylim": (-0.45, 0.25), "xticks": range(0, GRADIENTS + 1, 2)}
        shown.append(Panel("gradients taken", "cosine with the target  $M$", [theory, measured], title=name, **axes))
    claims += [
        Claim("cosine in theory on fresh batches, absolute", learned.pop("fresh batches"), high=1e-3),
        Claim("cosine in theory where samples are used again, smallest", min(learned.values()), low=0.2),
    ]
    title = (
        rf"One erf neuron on the sphere, target He$_3$, $n={ALPHA:g}\,d$ samples a gradient, $\gamma={rate:g}$, $d={d}$"
    )
    return Made({"figure": panels(shown, title)}, claims)


if __name__ == "__main__":
    run_script(__file__)
