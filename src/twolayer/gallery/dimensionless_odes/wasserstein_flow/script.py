"""The density of the units of an infinitely wide student as it flows: on a grid, and as particles."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Chebyshev
from scipy.stats import chi, norm

import twolayer as tl
from twolayer.core.precision import double
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import HeatMap, Panel, Series, flow_movie, panels
from twolayer.theory.hdmf import field_landscapes
from twolayer.theory.motion.density import follow_density
from twolayer.theory.motion.particles import Particles, dissipation

B, S = (-1.6, 3.2), (0.0, 2.4)  # the grid: components along the target, lengths outside of it
SHOWN = 4  # times as panels
# Kolmogorov's distance of an empirical law, times the root of its size, is beyond this once in two million.
KOLMOGOROV = 2.74


def make(spec, ask):
    cells, particles, clouds = (192, 4000, 16) if ask.full else (96, 1000, spec.ask.replicas)
    count = spec.ask.save - 1
    times = 0.5 * spec.ask.until * (1.0 - np.cos(np.pi * np.arange(count + 1) / count))  # of Chebyshev
    asked = {"until": spec.ask.until, "save": times, "replicas": clouds}
    run = tl.evolve(spec.problem, spec.training, tl.HDMF(particles=particles), **asked)
    lost = _lost(spec.problem, run)
    coarse, fine = (_density(spec.problem, number, times) for number in (cells // 2, cells))
    risks, grid_error = run.excess_risk.values, np.abs(fine["risk"] - coarse["risk"])
    m, q = run.particle_M.values[:, -1, :, 0].ravel(), run.particle_q.values[:, -1].ravel()
    last, last_coarse = fine["mass"][-1], coarse["mass"][-1]
    claims = [
        _identity("particles", times, risks[0], lost[0], float(run.risk_error[0].max())),
        _identity("density", times, fine["risk"], fine["lost"], float(grid_error.max())),
        Claim("density: largest change of its mass", float(np.ptp(fine["mass"].sum(axis=(1, 2)))), high=1e-12),
        agrees("risk of the clouds against that of the density", risks.mean(axis=0),
               risks.std(axis=0, ddof=1) / np.sqrt(clouds), fine["risk"], grid_error),
        _distance("overlap m", m, fine["b"], last.sum(axis=1), last_coarse.sum(axis=1)),
        _distance("length sqrt(q)", np.sqrt(q), fine["s"], last.sum(axis=0), last_coarse.sum(axis=0)),
        Claim("largest rise of the risk between saved times", float(np.diff(risks, axis=1).max()), high=0.0),
    ]  # fmt: skip
    shown = [*_flow(times, fine, run), _risk(times, fine, risks), _rates(times, fine, lost), *_marginals(fine, m, q)]
    title = "Units of an erf student of one erf neuron: a density on a grid, and particles"
    extras = {"flow.gif": partial(flow_movie, run.isel(replica=[0]))}
    return Made({"figure": panels(shown, title, columns=SHOWN)}, claims, extras)


def _density(problem, cells, times):
    """Solve for the density from the law of Gaussian rows in d dimensions."""
    b, s, d = np.linspace(*B, 2 * cells + 1), np.linspace(*S, cells + 1), problem.d
    mass = np.outer(np.diff(norm.cdf(b * d**0.5)), np.diff(chi.cdf(s * d**0.5, d - 1)))
    path = follow_density(problem, mass / mass.sum(), b, s, times)
    return {"b": b, "s": s, "mass": path.mass, "risk": path.risk, "lost": path.dissipation}


def _lost(problem, run):
    """Compute the mean squared velocity of the particles of each cloud at each time, from their forces."""
    with double():
        landscape = field_landscapes(problem, run.sizes["particle"], 1e-8).variants[0]
        rate = eqx.filter_jit(jax.vmap(jax.vmap(lambda *parts: dissipation(landscape, Particles(*parts)))))
        parts = run.particle_a.values, run.particle_M.values, np.sqrt(run.particle_q.values)
        return np.asarray(rate(*map(jnp.asarray, parts)))


def _identity(name, times, risk, lost, risk_error):
    """Claim that the risk falls by the integral of the squared velocity, up to the errors of the risk and in time.

    The integral is that of the polynomial through all times; through every other one it gives its error.
    """
    whole, half = (Chebyshev.fit(times[::step], lost[::step], (len(times) - 1) // step).integ() for step in (1, 2))
    fall, integral = risk[0] - risk[-1], whole(times[-1]) - whole(times[0])
    error = (abs(integral - (half(times[-1]) - half(times[0]))) + 2.0 * risk_error) / fall
    sentence = f"{name}: fall of the risk against the integral of the squared velocity, relative difference"
    return Claim(sentence, float(abs(fall / integral - 1.0)), high=float(error))


def _distance(name, particles, edges, mass, coarse):
    """Claim that the laws of a coordinate at the end agree, by Kolmogorov's distance."""
    law, coarse = (np.concatenate([[0.0], np.cumsum(part)]) for part in (mass, coarse))
    distance = np.max(np.abs(np.searchsorted(np.sort(particles), edges) / particles.size - law))
    grid = np.max(np.abs(law[::2] - coarse))
    sentence = f"law of the {name} at the end, Kolmogorov's distance of particles and density"
    return Claim(sentence, float(distance), high=float(KOLMOGOROV / np.sqrt(particles.size) + grid))


def _flow(times, fine, run):
    """Show density and some particles in (m, q) at times between which the logarithm of the risk falls evenly."""
    fall = np.log(fine["risk"])
    numbers = [int(np.argmin(np.abs(fall - level))) for level in np.linspace(fall[0], fall[-1], SHOWN)]
    area = np.outer(np.diff(fine["b"]), np.diff(fine["s"] ** 2))
    density = fine["mass"] / area
    scale = {"cmap": "Blues", "norm": "log", "vmin": 1e-3, "vmax": density[numbers].max()}
    dot = {"marker": "o", "ms": 1.2, "mew": 0.0, "mfc": "C1", "alpha": 0.7}
    star = {"marker": "*", "ms": 7.0, "mew": 0.0, "mfc": "C3", "clip_on": False, "zorder": 5}
    shown = []
    for number in numbers:
        seen = np.ma.masked_less(density[number].T, 1e-3)
        m, q = run.particle_M.values[0, number, :250, 0], run.particle_q.values[0, number, :250]
        parts = [
            HeatMap(fine["b"], fine["s"] ** 2, seen, options=scale),
            Series("250 of the particles", m, q, kind="points", color=1, look=dot),
            Series("unit of the target", [1.0], [0.0], kind="points", color=3, look=star),
        ]
        title = f"$t = {times[number]:.3g}$"
        shown.append(Panel("overlap  $m$", "outside  $q$", parts, title=title, xlim=(-1.3, 2.0), ylim=(-0.1, 3.4)))
    return shown


def _risk(times, fine, risks):
    parts = [
        Series("density", times, fine["risk"], color=0),
        Series("particles", times, risks[0], kind="points", color=1, every=2),
    ]
    return Panel("time  $t$", "excess risk", parts, log="y")


def _rates(times, fine, lost):
    smooth = np.linspace(times[0], times[-1], 201)
    slope = Chebyshev.fit(times, fine["risk"], len(times) - 1).deriv()(smooth)
    parts = [
        Series("density", times, fine["lost"], color=0),
        Series("particles", times, lost[0], kind="points", color=1, every=2),
        Series(r"$-dR/dt$, density", smooth, -slope, color=6, dashed=1, look={"lw": 0.8, "zorder": 5}),
    ]
    return Panel("time  $t$", "mean squared velocity", parts, log="y")


def _marginals(fine, m, q):
    for name, values, edges, mass in (
        ("overlap  $m$", m, fine["b"], fine["mass"][-1].sum(axis=1)),
        ("outside  $q$", q, fine["s"] ** 2, fine["mass"][-1].sum(axis=0)),
    ):
        counts, bins = np.histogram(values, bins=30, density=True)
        middles = 0.5 * (edges[1:] + edges[:-1])
        parts = [
            Series("density", middles, mass / np.diff(edges), color=0),
            Series("particles", 0.5 * (bins[1:] + bins[:-1]), counts, kind="points", color=1),
        ]
        yield Panel(name, "density at the end", parts, xlim=(bins[0], bins[-1]))


if __name__ == "__main__":
    run_script(__file__)
