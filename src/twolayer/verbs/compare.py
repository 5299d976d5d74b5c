"""The verb that runs several descriptions from the same starts and judges them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from twolayer.ask import USUAL, Ask, AskFields, RunSpec, Training, make_plan
from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import ComputationFailed, InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.data.deviation import Deviation, Finding, judge_description, worst_outcome
from twolayer.data.schema import ordered
from twolayer.description import AbstractDescription, Exactness
from twolayer.problem import Problem
from twolayer.specification.fields import instance
from twolayer.verbs import cautions
from twolayer.verbs.duration import foreseen
from twolayer.verbs.equivalence import NO_CONTROL, equivalence
from twolayer.verbs.evolve import Interrupted, check_ended, run
from twolayer.verbs.phases import require
from twolayer.verbs.progress import Progress, named_progress, shows_progress

if TYPE_CHECKING:
    import xarray as xr


@takes_these
@shows_progress
def compare(
    problem: Problem,
    training: Training,
    descriptions: Sequence[AbstractDescription | str],
    ask: Ask | None = None,
    *,
    throw: bool = True,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    **fields: Unpack[AskFields],
) -> "xr.DataTree":
    r"""Run several descriptions of one training side by side.

    The start is drawn once per replica and handed to every description. The first description that is exact at finite d
    is the judge (the first of all if none is); every other one is compared with it, variable by variable and time by
    time:

    .. math:: z = \frac{\overline{x_{judge} - x_{description}}}{s / \sqrt{R}}

    over R replicas, where s is the standard deviation of the replicas at one time, or its root mean square over the
    neighbouring times if that is larger. All are saved on one time axis: where any description goes in steps, at the
    steps nearest to the times asked, at which limit theories are evaluated as well; where none does, at the very times
    asked.

    On a data set (`Samples` with target directions) `DirectSGD` is the judge, and the other descriptions follow the
    Gaussian equivalent of the data. A simulation of the equivalent beside it, ``DirectSGD(equivalent=True)`` or
    `OverlapSGD`, is a control: the verdict then says how far the equivalent carries (attributes ``equivalence``,
    ``equivalence_distance``, ``equivalence_error``, ``equivalence_begins``), and compares theories with it, too.

    Parameters
    ----------
    problem, training
        What is learned, and how the weights move.
    descriptions
        The descriptions to compare.
    ask
        What is asked, or its fields as keywords, as in `evolve`; 16 replicas unless said otherwise.
    throw
        Whether a description that did not reach its end raises `ComputationFailed` with the tree so far.
    progress
        Called with the name of a description and the fraction of it that is done; as in `evolve`.
    checkpoint
        A folder in which every description keeps its place, and its result until all are done.

    Returns
    -------
    A tree with one dataset per description on a common time axis. Datasets carry ``deviation_NAME`` (in standard
    errors), ``difference_NAME`` and ``standard_error_NAME`` for the variables risk, M, Q and a. The root's attributes
    hold ``verdict`` (words), ``outcome`` (one word), ``judge`` and ``time_axis``.
    """
    if isinstance(descriptions, AbstractDescription | str):
        raise InvalidInput("Argument `descriptions` must be a list of descriptions, but is a single one.")
    check = instance("descriptions", AbstractDescription, "a list of descriptions such as [DirectSGD(), SaadSolla()]")
    members = tuple(map(check, descriptions))
    if not members:
        raise InvalidInput("Argument `descriptions` must name at least one description.")
    asked = Ask.of(ask, fields, replicas=USUAL)
    if asked.stop_at_threshold:
        raise InvalidInput(
            "Argument `stop_at_threshold` is for `evolve`: a comparison follows every description to the end."
        )
    named = dict(zip(names_of(members), members, strict=True))
    exactness = {name: require(member, problem, training).exactness for name, member in named.items()}
    results: dict[str, xr.Dataset] = {}
    interrupted = False
    folder = Checkpoint.of(checkpoint)
    in_steps = any(not member.is_continuous for member in members)
    with double(), interrupts.deferred():
        spec = RunSpec(problem, training, members, asked)
        plan = make_plan(problem, training, asked, in_steps)  # what makes no sense is refused first
        foretold = foreseen(_waiting(named, folder), problem, training, asked)
        cautions.tell(foretold)
        for name, description in named.items():
            place = None if folder is None else folder.part(f"{name}.npz")
            try:
                interrupts.check()
                tell = named_progress(progress, name)
                results[name], is_stopped = run(spec, description, plan, tell, place, name, bool(foretold))
                finished = dict(results)
                interrupts.offer(lambda finished=finished: judge(spec, finished, exactness))
            except KeyboardInterrupt:
                is_stopped = True
            if is_stopped:
                interrupted = True
                break
    tree = judge(spec, results, exactness)
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


def names_of(descriptions: Sequence[AbstractDescription]) -> list[str]:
    """Class names, numbered where a class occurs again."""
    names: list[str] = []
    for description in descriptions:
        name = type(description).__name__
        occurrence = sum(other.split("-")[0] == name for other in names)
        names.append(f"{name}-{occurrence + 1}" if occurrence else name)
    return names


def _waiting(named: dict[str, AbstractDescription], folder: Checkpoint | None) -> list[AbstractDescription]:
    """The descriptions of which an earlier call has left no result."""
    is_kept = {name: folder is not None and folder.part(f"{name}.npz").path.exists() for name in named}
    return [description for name, description in named.items() if not is_kept[name]]


def judge(spec: RunSpec, results: dict[str, "xr.Dataset"], exactness: dict[str, Exactness]) -> "xr.DataTree":
    """The tree of a comparison: every description beside the judge, with deviations, findings and the verdict."""
    import xarray as xr

    if not results:
        return xr.DataTree()
    problem = spec.problem
    followed = dict(zip(names_of(spec.descriptions), spec.descriptions, strict=True))
    on_data = {name for name in results if problem.has_data and followed[name].follows_data}
    exact = [name for name in results if exactness[name] is Exactness.EXACT]
    chosen = next((name for name in exact if name in on_data), exact[0] if exact else next(iter(results)))
    controls = [name for name in exact if on_data and name not in on_data]
    finite_d = f"{problem.scatter_formula} = {problem.scatter(spec.training.learning_rate):.2g}"
    findings: list[Finding] = []
    datasets = dict(results)
    for name, dataset in results.items():
        if name == chosen:
            continue
        left, right = _common_replicas(results[chosen], dataset)
        finding, deviations = judge_description(
            chosen, name, left, right, finite_d, problem.d, is_limit=name not in controls
        )
        findings.append(finding)
        verdict = finding.attributes | {"threshold": finding.threshold}
        datasets[name] = dataset.assign(_labelled(dataset, deviations))
        datasets[name].attrs = ordered(dataset.attrs | verdict)
    tree = xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in datasets.items()})
    first = next(iter(results.values()))
    shared = ("schema", "spec", "spec_hash", "precision", "versions", "device", "seed", "time_axis")
    sentences = [line for dataset in results.values() for line in dataset.attrs.get("cautions", "").splitlines()]
    verdicts = [finding.sentence for finding in findings] or [f"{chosen} alone: nothing to compare with."]
    carried: dict[str, str | float] = {}
    if controls:
        control = next(finding for finding in findings if finding.description == controls[0])
        control_verdict = equivalence(controls[0], datasets[controls[0]], control)
        carried = control_verdict.attributes
        verdicts.append(control_verdict.sentence)
        for name in results:
            if name not in exact:
                left, right = _common_replicas(results[controls[0]], results[name])
                verdicts.append(judge_description(controls[0], name, left, right, finite_d, problem.d)[0].sentence)
    elif on_data:
        verdicts.append(NO_CONTROL)
    judged = {
        "kind": "comparison",
        "judge": chosen,
        "outcome": worst_outcome(finding.outcome for finding in findings),
        "verdict": " ".join(verdicts),
        **carried,
    }
    cautions = {"cautions": "\n".join(dict.fromkeys(sentences))} if sentences else {}
    tree.attrs = ordered(judged | cautions | {name: first.attrs[name] for name in shared})
    return tree


def _labelled(dataset: "xr.Dataset", deviations: dict[str, Deviation]) -> dict[str, Any]:
    """The deviations as variables: what they are called, their dimensions and their long names."""
    variables: dict[str, Any] = {}
    for variable, item in deviations.items():
        columns = {
            "deviation": (item.z, f"deviation of {variable} in standard errors"),
            "difference": (item.mean, f"mean of {variable}: judge minus description"),
            "standard_error": (item.standard_error, f"standard error of {variable}"),
        }
        for prefix, (values, long_name) in columns.items():
            labels = {"long_name": long_name, "units": "1"}
            variables[f"{prefix}_{variable}"] = (dataset[variable].dims[1:], values, labels)
    return variables


def _common_replicas(left: "xr.Dataset", right: "xr.Dataset") -> tuple["xr.Dataset", "xr.Dataset"]:
    """Replicas that both have and that ended well in both; a description with a single replica stands for all."""
    stands_for_all = 1 in (left.sizes["replica"], right.sizes["replica"])
    left, right = (dataset.isel(replica=dataset.status.values == 0) for dataset in (left, right))
    if stands_for_all:
        return left, right
    shared = np.intersect1d(left.replica.values, right.replica.values)
    return left.sel(replica=shared), right.sel(replica=shared)
