"""What fresh batches cannot learn in a few steps, reused ones do after the second: three ways to spend eight gradients.

The target He3(z) has information exponent three: on fresh samples the gradient at random weights carries no trace of
its direction, whatever the batch of n = alpha d samples, and a few steps learn nothing. A gradient on samples that have
been used before sees the label through what the first gradient did to their own fields, a nonlinear function of the
label, and nonlinear functions of the label do point to the target. So training on one fixed set learns from its second
step on, and so does training on fresh batches that are each used twice.

    python examples/reused_batches.py                       # 32 runs at d = 1000, about a minute on two cores
    python examples/reused_batches.py --d 4000 --runs 50    # for a GPU

Each panel shows direct SGD (markers: mean of the runs; band: 10-90%) and the theory of its training: the batch map for
fresh batches, dynamical mean-field theory for reused ones. The scatter of single runs shrinks as 1/sqrt(d).
"""

import argparse
from typing import Any

import numpy as np

import twolayer as tl
from twolayer.plots import save_figure
from twolayer.plots.style import DARK_GREY, PAGE, PALETTE, new_figure, put_title, style

GRADIENTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--alpha", type=float, default=4.0)
    parser.add_argument("--rate", type=float, default=0.35)
    parser.add_argument("--out", default="reused_batches", help="name of the picture, without .png")
    asked = parser.parse_args()

    # The start has no overlap with the target at all: what is learned later is not a memory of luck.
    start = tl.GivenOverlaps([[1.0]], [[0.0]])
    target = tl.Hermite({(3,): 6**-0.5})
    problem = tl.Problem(target, tl.Student(1, "erf"), tl.Gaussian(asked.d), start=start)
    batch, on_the_sphere = round(asked.alpha * asked.d), {"constraint": tl.Sphere()}
    ways: list[tuple[str, tl.SGD, Any, int]] = [
        ("fresh batches (one pass)", tl.SGD(asked.rate, batch_size=batch, **on_the_sphere), tl.BatchMap(), 1),
        (
            "the same batch at every step",
            tl.SGD(asked.rate, reuse=tl.Reused(asked.alpha), **on_the_sphere),
            tl.DMFT(samples=2**20),
            1,
        ),
        (
            "fresh batches, each used twice",
            tl.SGD(asked.rate, batch_size=batch, reuse=tl.Repeated(2), **on_the_sphere),
            tl.DMFT(samples=2**20),
            2,
        ),
    ]
    results = []
    for name, training, theory, uses in ways:
        times = training.clock(problem).time(np.arange(GRADIENTS // uses + 1))
        options: dict[str, Any] = {"until": float(times[-1]), "save": times}
        predicted = tl.evolve(problem, training, theory, **options)
        runs = tl.evolve(problem, training, tl.DirectSGD(), replicas=asked.runs, **options)
        results.append((name, uses, predicted, runs))
        learned, measured = predicted.M.values[0, :, 0, 0], runs.M.values[:, :, 0, 0]
        error = measured.std(axis=0, ddof=1) / np.sqrt(asked.runs)
        scores = np.abs(measured.mean(axis=0) - learned)[1:] / error[1:]
        print(
            f"{name:32s} cosine after {GRADIENTS} gradients: theory {learned[-1]:+.3f}, "
            f"runs {measured.mean(axis=0)[-1]:+.3f}({error[-1]:.3f}), at most {scores.max():.1f} standard errors apart"
        )
        assert scores.max() < 5.0, "the runs do not follow the theory"
        assert (np.abs(learned).max() < 0.01) == (name == ways[0][0]), "reuse is what learns"
    title = (
        rf"One erf neuron on the sphere learns He$_3$ from {GRADIENTS} gradients of $n={asked.alpha:g}\,d$ samples "
        rf"($\gamma={asked.rate:g}$, $d={asked.d}$)"
    )
    save_figure(picture(results, asked.runs, title), asked.out)


def picture(results, runs: int, title: str):
    with style():
        figure = new_figure(PAGE, 2.3)
        axes = figure.subplots(1, 3, sharey=True)
        for ax, (name, uses, predicted, measured) in zip(axes, results, strict=True):
            ax.set_title(name)
            ax.axhline(0.0, color=DARK_GREY, lw=0.4)
            steps = uses * predicted.step.values
            draw(ax, steps, predicted.M.values[0, :, 0, 0], measured.M.values[:, :, 0, 0], PALETTE[0])
            ax.set_xlabel("gradients taken")
            ax.set_xticks(range(0, GRADIENTS + 1, 2))
        axes[0].set_ylabel("cosine with the target  $M$")
        handles, _ = axes[0].get_legend_handles_labels()
        labels = ["theory, $d \\to \\infty$", f"direct SGD, mean of {runs} runs", "10-90% of the runs"]
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        put_title(figure, title)
    return figure


def draw(ax, steps, theory, runs, color) -> None:
    ax.plot(steps, theory, color=color, label="theory", zorder=3)
    ax.plot(steps, runs.mean(axis=0), "o", color=color, mfc="white", mew=0.6, ms=3.2, label="runs", zorder=4)
    ax.fill_between(steps, *np.quantile(runs, [0.1, 0.9], axis=0), color=color, alpha=0.2, label="band")


if __name__ == "__main__":
    main()
