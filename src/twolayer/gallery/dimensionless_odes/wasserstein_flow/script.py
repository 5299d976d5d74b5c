"""The density of the units of a very wide student as it flows to the target, as panels and as an animation."""

from functools import partial

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, run_script
from twolayer.plots import flow, flow_movie


def make(spec, ask):
    p = 4000 if ask.full else spec.problem.student.p
    times = np.concatenate([[0.0], np.geomspace(0.1, spec.ask.until, spec.ask.save - 1)])
    problem = tl.Problem(spec.problem.target, tl.Student(p, "erf"), spec.problem.inputs, start=spec.problem.start)
    both = tl.evolve(problem, spec.training, tl.HDMF(), until=spec.ask.until, save=times, replicas=2)
    run = both.isel(replica=[0])  # the other is an independent cloud of the same law
    M = run.M.values[0]
    outside = np.diagonal(run.Q.values[0], axis1=1, axis2=2) - np.sum(M**2, axis=2)
    from_target = np.linalg.norm(M[-1][:, None] - np.eye(2), axis=2)  # of each unit, to each unit of the target
    distance = np.min(np.hypot(from_target, np.sqrt(outside[-1])[:, None]))
    risk, other = both.excess_risk.values
    apart = np.max(np.abs(np.log(other / risk)))
    claims = [
        Claim(
            "largest rise of the risk between saved times, relative",
            float(np.max(np.diff(risk) / risk[:-1])),
            high=1e-9,
        ),
        Claim("fall of the excess risk", float(risk[0] / risk[-1]), low=20.0),
        Claim("two independent clouds: largest distance of log risk", float(apart), high=0.2),
        Claim(
            "share of what is outside of the target that is left",
            float(outside[-1].mean() / outside[0].mean()),
            high=0.75,
        ),
        Claim(
            "share of the units whose overlaps with both directions are positive at the end",
            float(np.mean(np.all(M[-1] > 0.0, axis=1))),
            low=0.85,
        ),
        Claim(
            "correlation of q with the sum of the two overlaps at the end",
            float(np.corrcoef(outside[-1], M[-1].sum(axis=1))[0, 1]),
            high=-0.8,
        ),
        Claim("distance of the nearest unit to a unit of the target, in (m, sqrt q)", float(distance), low=0.5),
    ]
    title = rf"Flow of the {p} units of an erf student of two erf neurons"
    extras = {"flow.gif": partial(flow_movie, run)}
    return Made({"figure": flow(run, title=title)}, claims, extras)


if __name__ == "__main__":
    run_script(__file__)
