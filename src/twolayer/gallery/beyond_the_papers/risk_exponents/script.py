"""Power-law inputs and targets: the exponent of the risk of linear regression, and the plateau of a committee."""

import dataclasses

import numpy as np
from scipy.linalg import expm
from scipy.special import gammainc

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, has_order, run_script
from twolayer.plots import Panel, Series, panels

# Exponents of the target's weights: P_l falls as l to the power -b.
TARGETS = (0.0, 0.5, 1.0)
# The window of the fits: after so many times 1 / c_1, and until 2 c_d t has this value.
BEGIN, END = 20.0, 0.02
# Exponents of the spectra on which a committee learns.
SPECTRA = (0.0, 0.5, 0.7, 0.9)
# On a plateau the risk falls with a smaller slope than this on logarithmic axes.
FLAT = 0.1


def make(spec, ask):
    exponents, left = _regression(spec, ask.full)
    lengths, right = _committee()
    claims = [
        *exponents,
        Claim(
            "length of the plateau, on a broader spectrum over a narrower one", max(lengths[1:] / lengths[:-1]), 0, 1
        ),
        Claim("length of the plateau on the broadest spectrum, the last time over the first", lengths[-1], 1.0, 1.0),
    ]
    return Made({"figure": panels([left, right], "Inputs with a spectrum that is a power law")}, claims)


def _regression(spec, full):
    """The risk of linear regression for targets of different exponents: by SGD, by the ODE and by formulas."""
    problem, training, d = spec.problem, spec.training, spec.problem.d
    alpha, rate = problem.inputs.spectrum.alpha, float(training.learning_rate)
    replicas = 64 if full else spec.ask.replicas
    eigenvalues, ranks = map(np.asarray, problem.inputs.spectrum.blocks(d))
    ends = np.cumsum(ranks)
    single = np.arange(1, d + 1.0) ** -alpha
    single /= single.mean()
    times = np.geomspace(BEGIN / single[0], END / (2.0 * single[-1]), 20)
    claims, parts = [], []
    for color, b in enumerate(TARGETS):
        weights = np.arange(1, d + 1.0) ** -b
        weights /= weights.sum()
        shares = np.diff(np.concatenate([[0.0], np.cumsum(weights)[ends - 1]]))
        here = dataclasses.replace(problem, inputs=tl.Gaussian(d, problem.inputs.spectrum, list(shares)))
        options = {"until": times[-1], "save": tuple(times)}
        tree = tl.compare(here, training, spec.descriptions, replicas=replicas, **options)
        ode, runs = (tree[name].excess_risk.isel(time=slice(-len(times), None)) for name in ("SaadSolla", "OverlapSGD"))
        t, theory = ode.time.values, ode.values[0]
        mean, error = runs.values.mean(axis=0), runs.values.std(axis=0, ddof=1) / np.sqrt(replicas)

        # The distance to the target in each block decays on its own and has the noise of all, which goes with the risk.
        noise = np.outer(eigenvalues * ranks, eigenvalues)
        fall = np.diag(-2.0 * eigenvalues) + rate / d * noise
        exact = np.array([0.5 * eigenvalues @ expm(fall * time) @ shares for time in t])
        # At finite d a step has one more term, of the fourth moment of an input: the mean of SGD is known exactly.
        one = np.eye(len(ranks)) + rate / d * np.diag(-2.0 * eigenvalues)
        one += (rate / d) ** 2 * (np.diag(2.0 * eigenvalues**2) + noise)
        steps = runs.step.values.astype(int)
        at_d = np.array([0.5 * eigenvalues @ np.linalg.matrix_power(one, n) @ shares for n in steps])
        numerical = tree["SaadSolla"].risk_error.values[0, -len(times) :]

        # By how much the prefactor of the power law changes within the window, without any run: eigenvalues that d
        # leaves out, blocks in place of single eigenvalues, and the noise of SGD, which adds its part as time goes on.
        s = (alpha + b - 1.0) / alpha
        missing = gammainc(s, 2.0 * single[-1] * t[-1])
        by_one = np.array([0.5 * np.sum(single * weights * np.exp(-2.0 * single * time)) for time in t])
        by_block = np.array([0.5 * np.sum(eigenvalues * shares * np.exp(-2.0 * eigenvalues * time)) for time in t])
        left_out = missing + np.max(abs(by_block / by_one - 1.0)) + 0.5 * rate
        words = f"exponent of the risk for targets with b = {b:g}"
        claims += [
            has_order(f"{words}, SGD", t, mean, error, -s, left_out),
            has_order(f"{words}, ODE", t, theory, 0.0 * t, -s, left_out),
            Claim(
                f"distance of the ODE from the matrix exponential over its stated error, b = {b:g}",
                float(np.max(abs(theory - exact) / (numerical + 1e-12))),
                high=1.0,
            ),
            agrees(f"mean of SGD against its exact value at this d, b = {b:g}", mean, error, at_d),
        ]
        line = by_one[len(t) // 2] * (t / t[len(t) // 2]) ** -s
        parts += [
            Series(f"ODE, $b = {b:g}$", t, theory, color=color),
            Series("" if color else "SGD", t, mean, error, kind="points", color=color),
            Series("" if color else r"slope $-(\alpha + b - 1)/\alpha$", t, line, kind="reference"),
        ]
    axes = ("time  $t$", "excess risk")
    return claims, Panel(*axes, parts, log="xy", title=rf"linear regression, $\alpha = {alpha:g}$", legend="below")


def _committee():
    """The risk of two erf units that learn two, on broader and broader spectra: the length of the plateau."""
    edges = 4 ** np.arange(7)
    edges[0] = 0  # blocks of 4, 12, 48, ... directions
    ranks, d = np.diff(edges), int(edges[-1])
    shares = (ranks / d)[:, None, None]
    lengths, parts, times = [], [], np.geomspace(0.1, 400.0, 120)
    for color, alpha in enumerate(SPECTRA):
        eigenvalues = np.add.reduceat(np.arange(1, d + 1.0) ** -alpha, edges[:-1]) / ranks
        eigenvalues *= d / (eigenvalues @ ranks)
        spectrum = list(zip(eigenvalues.tolist(), shares.ravel().tolist(), strict=True))
        start = tl.GivenOverlaps(
            shares * 0.1 * np.eye(2), shares * np.array([[1e-3, 0.0], [0.0, 0.0]]), shares * np.eye(2)
        )
        inputs = tl.Gaussian(d, spectrum=spectrum, teacher=list(shares[:, 0, 0]))
        problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), inputs, start=start)
        result = tl.evolve(problem, tl.SGD(0.1), "SaadSolla", until=times[-1], save=tuple(times))
        t, risk = result.time.values[1:], result.excess_risk.values[0, 1:]
        falls = -np.gradient(np.log(risk), np.log(t))
        flat = t[(falls < FLAT) & (risk < risk[0] / 3.0)]  # after the first fall
        lengths.append(flat[-1] / flat[0] if flat.size else 1.0)
        parts.append(Series(rf"ODE, $\alpha = {alpha:g}$", t, risk, color=color))
    panel = Panel("time  $t$", "excess risk", parts, log="xy", title="two erf units learn two", legend="below")
    return np.array(lengths), panel


if __name__ == "__main__":
    run_script(__file__)
