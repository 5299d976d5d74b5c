"""The verb that runs several descriptions from the same starts and judges them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import ComputationFailed, InvalidInput, takes_these
from twolayer.core.fields import instance
from twolayer.core.precision import double
from twolayer.data import Finding, judge_account
from twolayer.description import AbstractDescription, Exactness
from twolayer.problem import Problem
from twolayer.verbs.evolve import Interrupted, check_ended, make_plan, run
from twolayer.verbs.phases import Training, require

if TYPE_CHECKING:
    import xarray as xr


@takes_these
def compare(
    problem: Problem,
    training: Training,
    descriptions: Any,
    *,
    until: float | int = 20.0,
    save: Any = 100,
    replicas: Any = 16,
    seed: Any = 0,
    risk_threshold: Any = None,
    overlap_threshold: float | int | None = None,
    throw: bool = True,
    progress: Callable[[str, float], None] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> "xr.DataTree":
    r"""Run several descriptions of one training side by side.

    The start is drawn once per replica and handed to every description. The first description that is exact at finite d
    is the judge (the first of all if none is); every other one is compared with it, variable by variable and time by
    time:

    .. math:: z = \frac{\overline{x_{judge} - x_{account}}}{s / \sqrt{R}}

    over R replicas. The arguments are those of `evolve`; ``checkpoint`` is a folder, with a file for each description.

    Returns
    -------
    A tree with one dataset per description on a common time axis. Accounts carry ``deviation_NAME`` (in standard
    errors), ``difference_NAME`` and ``standard_error_NAME`` for the variables risk, M, Q and a. The root's attributes
    hold ``verdict`` (words), ``outcome`` (one word) and ``judge``.
    """
    if isinstance(descriptions, AbstractDescription | str):
        raise InvalidInput("Argument `descriptions` must be a list of descriptions, but is a single one.")
    check = instance("descriptions", AbstractDescription, "a list of descriptions such as [DirectSGD(), SaadSolla()]")
    descriptions = tuple(map(check, descriptions))
    if not descriptions:
        raise InvalidInput("Argument `descriptions` must name at least one description.")
    named = dict(zip(_names(descriptions), descriptions, strict=True))
    exactness = {name: require(each, problem, training).exactness for name, each in named.items()}
    results: dict[str, xr.Dataset] = {}
    interrupted = False
    folder = Checkpoint.of(checkpoint)
    with double(), interrupts.deferred():
        plan, told = make_plan(problem, training, until, save, replicas, seed, risk_threshold, overlap_threshold)
        for name, description in named.items():
            report = (lambda fraction, name=name: progress(name, fraction)) if progress else None
            place = None if folder is None else folder.part(f"{name}.npz")
            try:
                interrupts.check()
                results[name], stopped = run(problem, training, description, plan, told, report, place)
                finished = dict(results)
                interrupts.offer(lambda finished=finished: _judge(problem, training, finished, exactness))
            except KeyboardInterrupt:
                stopped = True
            if stopped:
                interrupted = True
                break
    tree = _judge(problem, training, results, exactness)
    if interrupted:
        raise Interrupted(tree)
    if folder is not None and not folder.is_part:
        folder.remove()
    if throw:
        for dataset in results.values():
            try:
                check_ended(dataset)
            except ComputationFailed as failure:
                raise ComputationFailed(str(failure), tree) from None
    return tree


def _names(descriptions: Sequence[AbstractDescription]) -> list[str]:
    """Class names, numbered where a class occurs again."""
    names: list[str] = []
    for description in descriptions:
        name = type(description).__name__
        occurrence = sum(other.split("-")[0] == name for other in names)
        names.append(f"{name}-{occurrence + 1}" if occurrence else name)
    return names


def _judge(
    problem: Problem, training: Training, results: dict[str, "xr.Dataset"], exactness: dict[str, Exactness]
) -> "xr.DataTree":
    import xarray as xr

    if not results:
        return xr.DataTree()
    exact = [name for name in results if exactness[name] is Exactness.EXACT]
    judge = exact[0] if exact else next(iter(results))
    finite_d = float(np.sqrt(training.learning_rate / (problem.p * problem.d)))
    findings: list[Finding] = []
    datasets = dict(results)
    for name, account in results.items():
        if name == judge:
            continue
        left, right = _common_replicas(results[judge], account)
        finding, deviations = judge_account(judge, name, left, right, finite_d, problem.d)
        findings.append(finding)
        added: dict[str, Any] = {}
        for variable, item in deviations.items():
            dims = account[variable].dims[1:]
            added[f"deviation_{variable}"] = (
                dims,
                item.z,
                {"long_name": f"deviation of {variable} in standard errors"},
            )
            added[f"difference_{variable}"] = (
                dims,
                item.mean,
                {"long_name": f"mean of {variable}: judge minus account"},
            )
            added[f"standard_error_{variable}"] = (
                dims,
                item.standard_error,
                {"long_name": f"standard error of {variable}"},
            )
        datasets[name] = account.assign(added).assign_attrs(
            outcome=finding.outcome, verdict=finding.sentence, threshold=finding.threshold
        )
    tree = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in datasets.items()})
    worst = next(
        (
            o
            for o in ("differs", "finite-d effect", "undecided", "consistent", "agrees")
            if o in [f.outcome for f in findings]
        ),
        "single",
    )
    sentences = " ".join(finding.sentence for finding in findings)
    tree.attrs = {
        "judge": judge,
        "outcome": worst,
        "verdict": sentences or f"{judge} alone: nothing to compare with.",
    }
    return tree


def _common_replicas(left: "xr.Dataset", right: "xr.Dataset") -> tuple["xr.Dataset", "xr.Dataset"]:
    """Replicas that both have and that ended well in both; an account with a single replica stands for all."""
    stands_for_all = 1 in (left.sizes["replica"], right.sizes["replica"])
    left, right = (each.isel(replica=each.status.values == 0) for each in (left, right))
    if stands_for_all:
        return left, right
    shared = np.intersect1d(left.replica.values, right.replica.values)
    return left.sel(replica=shared), right.sel(replica=shared)
