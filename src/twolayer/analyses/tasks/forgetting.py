"""Forgetting, transfer and the time to relearn, from results that follow the risks of several tasks."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.core.text import Text, table
from twolayer.data.deviation import Finding, judge_number, worst_outcome
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import TIME_UNIT, Schema, Variable, add_kind, kind_of, label
from twolayer.data.summary import verdict_lines, with_error
from twolayer.description import Exactness

if TYPE_CHECKING:
    import xarray as xr


def summary(result: "xr.Dataset") -> Text:
    """The forgetting of each task after each phase, with its standard error, and the verdict."""
    rows = []
    for name in result.description.values:
        for task in result.task.values:
            for phase in result.phase.values:
                here = result.sel(description=name, task=task, phase=phase)
                if not np.isfinite(float(here.forgetting)):
                    continue
                again = with_error(float(here.relearning_time), float(here.relearning_time_standard_error))
                doubt = np.fmax(float(here.forgetting_standard_error), float(here.forgetting_error))
                rows.append([name, str(task), str(phase), with_error(float(here.forgetting), doubt), again])
    header = ["description", "task", "after phase", "forgetting", "time to relearn"]
    lines = table(header, rows, right=(1, 2, 3, 4))
    for name in result.description.values if "transfer" in result else ():
        here = result.sel(description=name)
        doubt = with_error(float(here.transfer), float(here.transfer_standard_error))
        lines.append(f"Transfer to the last phase by {name}: {doubt}")
    verdict = verdict_lines(result.attrs)
    return Text("\n".join([*lines, *[""] * bool(verdict), *verdict]))


_ENTRY = ("description", "task", "phase")
FORGETTING = add_kind(
    Schema(
        kind="forgetting",
        variables={
            "share": Variable(("phase", "task"), "part of the samples of a phase that belong to a task"),
            "task_risk": Variable(_ENTRY, "risk of a task at the end of a phase, mean over replicas"),
            "forgetting": Variable(
                _ENTRY, "risk of a task at the end of a phase minus that at the end of the first phase that trained it"
            ),
            "forgetting_standard_error": Variable(_ENTRY, "standard error of the forgetting over replicas"),
            "forgetting_error": Variable(_ENTRY, "bound on the numerical error of the forgetting"),
            "relearning_time": Variable(
                _ENTRY, "time in a later phase until the risk of a task is again as low as after its first", TIME_UNIT
            ),
            "relearning_time_standard_error": Variable(_ENTRY, "standard error of the time to relearn", TIME_UNIT),
        },
        optional={
            "transfer": Variable(
                ("description",), "risk of a student that begins with the last phase minus that after all phases"
            ),
            "transfer_standard_error": Variable(("description",), "standard error of the transfer"),
        },
        coordinates={
            "description": Variable(("description",), "name of a description"),
            "task": Variable(("task",), "number of the task, in the order in which tasks are first trained"),
            "phase": Variable(("phase",), "number of the phase"),
        },
        attributes=("judge", "outcome", "verdict"),
        summary=summary,
    )
)


@takes_these
def forgetting(result: "xr.Dataset | xr.DataTree", fresh: "xr.Dataset | xr.DataTree | None" = None) -> "xr.Dataset":
    r"""Say how much of each task is forgotten in later phases, how fast it comes back, and what was transferred.

    With the risk :math:`R_n(t)` of task n, the first phase that trains it ending at :math:`t_n`, and a later phase from
    :math:`t_b` to :math:`t_e`,

    .. math:: \mathrm{forgetting} = R_n(t_e) - R_n(t_n), \qquad
              \mathrm{time\ to\ relearn} = \min \{t - t_b : R_n(t) \le R_n(t_n)\}, \qquad
              \mathrm{transfer} = R^{fresh} - R

    Negative forgetting is backward transfer: a later task has helped an earlier one. The time to relearn exists in
    phases that train the task again, and is interpolated between save points. The transfer compares the risk at the end
    of the last phase with that of a student that begins with it, after the same time; positive transfer helps.

    Parameters
    ----------
    result
        What `evolve` or `compare` returned for a `Schedule` with several tasks.
    fresh
        The same for the last phase alone, ``training.only(number)``, for as long as it lasts in the first result.

    Returns
    -------
    A labelled dataset of kind "forgetting" along ``description``, ``task`` and ``phase`` (both counted from 1). In a
    comparison the attributes ``outcome`` and ``verdict`` say whether every theory agrees with the judge.

    Examples
    --------
    >>> import twolayer as tl
    >>> first, second = tl.MultiIndex("z1", k=2), tl.MultiIndex("z2", k=2)
    >>> start = tl.GivenOverlaps([[0.5]], [[0.0, 0.0]])
    >>> problem = tl.Problem(first, tl.Student(1, "linear"), tl.Gaussian(1000), start=start)
    >>> training = tl.Schedule([tl.SGD(0.1), tl.Task(tl.SGD(0.1), target=second)], switches=[5.0])
    >>> result = tl.forgetting(tl.evolve(problem, training, "SaadSolla", until=10.0))
    >>> round(float(result.forgetting.sel(task=1, phase=2)[0]), 2)
    0.99
    """
    judge, datasets = _runs(result, "result")
    phases = json.loads(next(iter(datasets.values())).attrs["phases"])
    names, tasks = list(datasets), next(iter(datasets.values())).sizes["task"]
    runs = {name: _Run.of(dataset, phases) for name, dataset in datasets.items()}
    entries = {name: run.entries() for name, run in runs.items()}
    values = {key: np.stack([entries[name][key] for name in names]) for key in next(iter(entries.values()))}
    values["share"] = np.array([phase["shares"] for phase in phases])
    if fresh is not None:
        values |= _transfers(runs, _runs(fresh, "fresh", needs_tasks=False)[1])
    findings = [finding for name in names if name != judge for finding in _judged(name, runs[name], runs[judge])]
    outcome = worst_outcome(finding.outcome for finding in findings)
    worst = next((finding.sentence for finding in findings if finding.outcome == outcome), f"{judge} alone.")
    first = datasets[judge].attrs
    with double():
        question = Question("forgetting", {"spec": first["spec"], "descriptions": names})
        attributes = {"judge": judge, "outcome": outcome, "verdict": worst}
        attributes |= provenance(question, int(first["seed"])) | {"versions": first["versions"]}
        coordinates = {
            "description": names,
            "task": np.arange(1, tasks + 1),
            "phase": np.arange(1, len(phases) + 1),
        }
        return label(FORGETTING, values, coordinates, attributes)


def _runs(
    result: "xr.Dataset | xr.DataTree", argument: str, needs_tasks: bool = True
) -> tuple[str, dict[str, "xr.Dataset"]]:
    """The name of the judge and the datasets of a result."""
    import xarray as xr

    if isinstance(result, xr.DataTree) and result.children:
        datasets = {str(name): child.to_dataset() for name, child in result.children.items()}
    elif isinstance(result, xr.Dataset) and kind_of(result.attrs) == "trajectory" and "description" in result.attrs:
        datasets = {str(result.attrs["description"]): result}
    else:
        raise InvalidInput(
            f"Argument `{argument}` must be what `evolve` or `compare` returned, but is a {type(result).__name__}."
        )
    for dataset in datasets.values():
        if needs_tasks and ("task_risk" not in dataset or "phases" not in dataset.attrs):
            raise InvalidInput(
                f"Argument `{argument}` must be a result of a Schedule with several tasks, but has one task: give a "
                "phase its own target with `Task`."
            )
    exact = [name for name, x in datasets.items() if x.attrs["exactness"] == Exactness.EXACT.value]
    return str(result.attrs.get("judge", exact[0] if exact else next(iter(datasets)))), datasets


class _Run(NamedTuple):
    """The risks of all tasks along the runs of one description, and where phases begin and end among the points."""

    time: np.ndarray
    risks: np.ndarray  # (replicas, times, tasks)
    errors: np.ndarray
    trained: np.ndarray  # (replicas, times): the risk of what is being trained
    begins: list[int]
    ends: list[int]
    shares: np.ndarray  # (phases, tasks)

    @classmethod
    def of(cls, dataset: "xr.Dataset", phases: list[dict[str, Any]]) -> "_Run":
        """The runs that reached the end."""
        time = dataset.time.values
        done = np.isfinite(dataset.task_risk.values).all(axis=(1, 2))
        if not done.any():
            raise InvalidInput("Argument `result` must have a replica that reached the end, but has none.")
        ends = [int(np.argmin(abs(time - (time[-1] if end is None else end)))) for end in (x["end"] for x in phases)]
        reached = [phase["begin"] < time[-1] for phase in phases]
        if not all(reached):
            raise InvalidInput(
                f"Argument `result` must reach every phase, but ends at time {time[-1]:.6g}, before phase "
                f"{reached.index(False) + 1} begins."
            )
        shares = np.array([phase["shares"] for phase in phases])
        risks, errors, trained = (dataset[name].values[done] for name in ("task_risk", "task_risk_error", "risk"))
        return cls(time, risks, errors, trained, [0, *ends[:-1]], ends, shares)

    def first_phase(self, task: int) -> int:
        """The first phase that trains a task, which is always there; a task that is only followed has the first."""
        return int(np.argmax(self.shares[:, task] > 0.0))

    def forgetting(self, task: int, phase: int) -> np.ndarray:
        """What every replica has forgotten of a task at the end of a later phase."""
        return self.risks[:, self.ends[phase], task] - self.risks[:, self.ends[self.first_phase(task)], task]

    def entries(self) -> dict[str, np.ndarray]:
        """All quantities along (task, phase); NaN where there is none."""
        tasks, phases = self.risks.shape[2], len(self.ends)
        names = [name for name, variable in FORGETTING.variables.items() if variable.dimensions == _ENTRY]
        table = {name: np.full((tasks, phases), np.nan) for name in names}
        for task in range(tasks):
            first = self.first_phase(task)
            for phase in range(phases):
                at = (task, phase)
                table["task_risk"][at] = self.risks[:, self.ends[phase], task].mean()
                if phase <= first:
                    continue
                mean, error = _mean(self.forgetting(task, phase))
                table["forgetting"][at], table["forgetting_standard_error"][at] = mean, error
                both = self.errors[:, [self.ends[phase], self.ends[first]], task]
                table["forgetting_error"][at] = both.sum(axis=1).max()
                if self.shares[phase, task] > 0.0:
                    times = self._relearning(task, phase)
                    table["relearning_time"][at], table["relearning_time_standard_error"][at] = _mean(times)
        return table

    def _relearning(self, task: int, phase: int) -> np.ndarray:
        """The time after which the risk is back at what it was, between save points; NaN for one that is not."""
        levels = self.risks[:, self.ends[self.first_phase(task)], task]
        here = slice(self.begins[phase], self.ends[phase] + 1)
        time, rows = self.time[here], self.risks[:, here, task]
        times = np.full(len(rows), np.nan)
        for replica, (row, level) in enumerate(zip(rows, levels, strict=True)):
            below = np.flatnonzero(row <= level)
            if below.size:
                place = int(below[0])
                before = max(place - 1, 0)
                fall = row[before] - row[place]
                part = (row[before] - level) / fall if fall > 0.0 else 1.0
                times[replica] = time[before] + part * (time[place] - time[before]) - time[0]
        return times


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error over replicas; no error from a single one."""
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    return float(values.mean()), error


def _transfers(runs: Mapping[str, _Run], fresh: Mapping[str, "xr.Dataset"]) -> dict[str, np.ndarray]:
    """The risk of students that begin with the last phase, minus that after all phases."""
    pairs = []
    for name, run in runs.items():
        if name not in fresh:
            raise InvalidInput(f"Argument `fresh` must have every description of `result`, but lacks {name}.")
        duration = run.time[-1] - run.time[run.begins[-1]]
        time = fresh[name].time.values
        if time[-1] < duration * (1.0 - 1e-6) - 1e-9:
            raise InvalidInput(
                f"Argument `fresh` must last as long as the last phase, {duration:.6g}, but ends at {time[-1]:.6g}."
            )
        alone = np.array([np.interp(duration, time, row) for row in fresh[name].risk.values])
        after = run.trained[:, -1]
        same = len(alone) == len(after)
        value, error = _mean(alone - after) if same else (alone.mean() - after.mean(), np.nan)
        if not same and min(len(alone), len(after)) > 1:
            error = float(np.hypot(_mean(alone)[1], _mean(after)[1]))
        pairs.append((value, error))
    values, errors = np.array(pairs).T
    return {"transfer": values, "transfer_standard_error": errors}


def _judged(name: str, run: _Run, judge: _Run) -> list[Finding]:
    """The verdicts on the forgetting of every task, replica by replica where both have as many."""
    findings = []
    spread = float(np.ptp(judge.risks))
    for task in range(run.risks.shape[2]):
        for phase in range(run.first_phase(task) + 1, len(run.ends)):
            ours, theirs = run.forgetting(task, phase), judge.forgetting(task, phase)
            gaps = theirs - ours if len(ours) in (1, len(theirs)) else theirs - ours.mean()
            scatter = float(gaps.std(ddof=1)) if len(gaps) > 1 else np.nan
            places = [run.ends[phase], run.ends[run.first_phase(task)]]
            error = sum(float(x.errors[:, places, task].sum(axis=1).max()) for x in (run, judge))
            shift = min(scatter**2 / spread, scatter) if spread > 0.0 else 0.0
            words = f"{name}, forgetting of task {task + 1} after phase {phase + 1},"
            measured = float(ours.mean() + gaps.mean())
            number = (words, float(ours.mean()), error, measured, scatter / np.sqrt(len(gaps)), len(gaps), shift)
            findings.append(judge_number(*number, scale=spread))
    return findings
