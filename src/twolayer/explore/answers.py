"""What a worker answers: one function for each kind of question, which calls the verbs of the package."""

import dataclasses
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twolayer.ask import Ask, RunSpec, make_plan
from twolayer.core.errors import ComputationFailed, InvalidInput, shown
from twolayer.core.precision import double
from twolayer.description import AbstractDescription, Exactness, Plan
from twolayer.experiment import from_tables
from twolayer.explore import downloads
from twolayer.explore.curves import curve, deviations
from twolayer.explore.form import THEORIES
from twolayer.explore.messages import Tables, a_table, one_of
from twolayer.problem import Flips, MultiIndex, Problem, Square
from twolayer.specification.codec import decode
from twolayer.training import SGD
from twolayer.verbs.compare import judge, names_of
from twolayer.verbs.evolve import check_ended, run
from twolayer.verbs.phases import require

if TYPE_CHECKING:
    import xarray as xr

# The largest sizes that the explorer computes; the command line has no such limits.
SIZES = {"p": 64, "k": 16, "d": 10**12, "replicas": 1024, "save": 1000}
# Replicas that are computed at once, so that the first ones can be shown; numbers do not depend on the company.
PORTIONS = {"OverlapSGD": 4, "DirectSGD": 4, "SaadSolla": 1}
# Starts from which the ODE of an escape is solved where there is no formula.
STARTS = 16
# The settings that a page may pin, and what it draws of each.
NAMES, PINS = ("A", "B", "C"), 3
PROBLEMS = 16  # that are kept, with their starts: what a slider of the training moves leaves them as they are
VIEWS = {"unit": ("time", "samples", "samples / d"), "x": ("linear", "log"), "y": ("linear", "log")}
KEPT = 4  # comparisons that are kept for downloads


@runtime_checkable
class Tell(Protocol):
    """Tells an event: its name, and its data as keywords."""

    def __call__(self, name: str, **data: Any) -> None: ...


def answer(kind: str, spec: Tables, options: Tables, tell: Tell) -> Tables:
    """The answer to a question; intermediate ones are told as events."""
    return ANSWERS[kind](spec, options, tell)


_problems: "OrderedDict[str, Problem]" = OrderedDict()


def read(tables: Tables) -> RunSpec:
    """The specification that tables state, within the sizes that are computed here; the last problems are kept."""
    stated = json.dumps(tables.get("problem"), sort_keys=True)
    known = _problems.get(stated)
    spec = from_tables(tables if known is None else tables | {"problem": known})
    problem = spec.problem
    sizes = {"p": problem.p, "k": problem.k, "d": problem.d, "replicas": spec.ask.replicas}
    sizes["save"] = len(spec.ask.times())
    for name, size in sizes.items():
        if size > SIZES[name]:
            raise InvalidInput(
                f"Argument `{name}` may be {SIZES[name]} at most in the explorer, but is {size}: `twolayer run` has no "
                "such limit."
            )
    _problems[stated] = problem
    _problems.move_to_end(stated)
    while len(_problems) > PROBLEMS:
        _problems.popitem(last=False)
    return spec


# ---------------------------------------------------------------------------------------------- formulas, tables


def check(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """Whether a formula can be a target: its number of directions and its LaTeX, or the place of the mistake."""
    text = options.get("formula", "")
    try:
        target = MultiIndex(text)
    except InvalidInput as error:
        return {"ok": False, "message": str(error), "position": error.position, "k": None, "latex": None}
    table = {"kind": "MultiIndex", "function": text, "k": target.k}
    return {"ok": True, "message": "", "position": None, "k": target.k, "latex": _latex(target), "target": table}


def _latex(target: MultiIndex) -> str | None:
    import sympy as sp

    form = target.function.symbolic(target.k)
    if form is None:
        return None
    names = {sp.Symbol(f"z{r}", real=True): sp.Symbol(f"z_{{{r}}}") for r in range(1, target.k + 1)}
    return sp.latex(form[0].xreplace(names))


def explain(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """Which descriptions and engines apply, how exactly, and why not."""
    from twolayer.verbs import explain as explain_problem

    asked = read(spec)
    tell("begun")
    explanation = explain_problem(asked.problem, asked.training, asked.ask, descriptions=asked.descriptions)
    return _finite(explanation.to_dict())


def learn(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """What of the target can be learned: exponents, order of directions, steps and samples."""
    from twolayer.analyses import learn as find
    from twolayer.data import summary

    asked = read(spec)
    problem = asked.problem
    tell("begun")
    result = find(  # without d: the time on the plateau may take minutes, and `escape` answers for it
        problem.target,
        problem.student,
        noise=0.0 if isinstance(problem.noise, Flips) else float(problem.noise),
        spherical=_one_method(asked).is_spherical,
        loss=None if isinstance(problem.loss, Square) else problem.loss,
        progress=_progress(tell),
    )
    notes = _beyond_the_target(problem)
    return _finite(json.loads(result.attrs["answer"])) | {"report": str(summary(result)), "notes": notes}


def _beyond_the_target(problem: Problem) -> list[str]:
    """How what will be learned depends on the loss, the noise and the inputs, in sentences."""
    notes = []
    if not isinstance(problem.loss, Square):
        notes.append(
            f"Exponents and directions are those that the first gradient of {problem.loss} sees of the target; the "
            "generative exponent is that of the label, and depends on no loss."
        )
    if isinstance(problem.noise, Flips):
        left = 1.0 - 2.0 * float(problem.noise.probability)
        notes.append(
            f"{problem.noise} makes every signal smaller by a factor of {left:.3g}, which changes no exponent."
        )
    if not problem.is_isotropic:
        notes.append(
            "Exponents and numbers of samples are those of isotropic inputs; with the spectrum of this problem the "
            "powers of d may be others."
        )
    return notes


def escape(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """When training leaves its start: formulas where there are some, the ODE otherwise, and the optimal rate."""
    from twolayer.analyses import exit_time
    from twolayer.analyses.escape.exit_result import plain
    from twolayer.analyses.escape.from_saddle import FromSaddle
    from twolayer.data import summary
    from twolayer.theory.formulas import phase_retrieval

    asked = read(spec)
    tell("begun")
    threshold = options.get("threshold", 0.1)
    fields = {"threshold": threshold, "replicas": 0, "starts": STARTS, "seed": asked.ask.seed}
    result = exit_time(asked.problem, asked.training, **fields, progress=_progress(tell))
    forms = phase_retrieval.written_formulas() if FromSaddle().applies(asked.problem, asked.training) else []
    formulas = [{"words": words, "latex": latex} for words, latex in forms]
    return _finite(plain(result)) | {"report": str(summary(result)), "formulas": formulas}


def equations(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """The closed equations of motion of a polynomial problem."""
    from twolayer.verbs import derive

    asked = read(spec)
    derived = derive(asked.problem, asked.training).to_dict()
    rows = [{"left": left, **forms} for left, forms in derived["equations"].items()]
    return derived | {"equations": rows}


def program(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """The program with which the page computes by itself, and the starts of its runs."""
    from twolayer.explore import browser

    asked = read(spec)
    tell("begun")
    return _finite(browser.browser_program(asked, spec))


def _one_method(asked: RunSpec) -> SGD:
    if not isinstance(asked.training, SGD):
        raise InvalidInput("`training`: must be one method here, but is a schedule of several.")
    return asked.training


def _finite(value: Any) -> Any:
    """Plain data without numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


# --------------------------------------------------------------------------------------------------------- runs


def theory(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """One theory from the first start, or from as many as asked."""
    asked = read(spec)
    replicas = options.get("replicas", 1)
    chosen = decode(options.get("description", "SaadSolla"), AbstractDescription, "options.description")
    return _one(dataclasses.replace(asked, ask=dataclasses.replace(asked.ask, replicas=replicas)), chosen, tell)


def simulate(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """All runs of one simulation; the first ones are told while the others are computed."""
    chosen = decode(options.get("description", "OverlapSGD"), AbstractDescription, "options.description")
    return _one(read(spec), chosen, tell)


def _one(asked: RunSpec, chosen: AbstractDescription, tell: Tell) -> Tables:
    began = time.perf_counter()
    name = type(chosen).__name__
    require(chosen, asked.problem, asked.training)
    tell("begun")
    with double():
        spec = RunSpec(asked.problem, asked.training, (chosen,), _followed(asked.ask))
        plan = _plan(spec, in_steps=not chosen.is_continuous)
        dataset = _portions(spec, chosen, name, plan, tell)
    curves = [curve(name, dataset, asked.problem.d)]
    _check_ended(dataset, curves, tell)
    return {
        "curves": curves,
        "cautions": dataset.attrs.get("cautions", "").splitlines(),
        "seconds": round(time.perf_counter() - began, 3),
    }


def compare(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """All descriptions of a specification from the same starts, and the verdict."""
    began = time.perf_counter()
    asked = read(spec)
    tree = compared(asked, tell)
    curves = [curve(name, child.to_dataset(), asked.problem.d) for name, child in tree.children.items()]
    for name in tree.children:
        _check_ended(tree[name].to_dataset(), curves, tell)
    verdict = {"outcome": tree.attrs["outcome"], "sentence": tree.attrs["verdict"], "judge": tree.attrs["judge"]}
    return {
        "curves": curves,
        "verdict": verdict,
        "deviations": deviations(tree),
        "cautions": tree.attrs.get("cautions", "").splitlines(),
        "seconds": round(time.perf_counter() - began, 3),
    }


_trees: "OrderedDict[str, xr.DataTree]" = OrderedDict()


def compared(asked: RunSpec, tell: Tell) -> "xr.DataTree":
    """What `twolayer.compare` returns, computed in portions that are told; the last few are kept."""
    if asked.key in _trees:
        _trees.move_to_end(asked.key)
        return _trees[asked.key]
    spec = dataclasses.replace(asked, ask=_followed(asked.ask))
    named = dict(zip(names_of(spec.descriptions), spec.descriptions, strict=True))
    exactness = {
        name: require(description, spec.problem, spec.training).exactness for name, description in named.items()
    }
    tell("begun")
    with double():
        plan = _plan(spec, in_steps=any(not description.is_continuous for description in spec.descriptions))
        # The page has the first start of the theories already; from all starts they may take longer than the runs.
        order = sorted(named, key=lambda name: exactness[name] is not Exactness.EXACT)
        results = {name: _portions(spec, named[name], name, plan, tell) for name in order}
        tree = judge(spec, {name: results[name] for name in named}, exactness)
    _trees[asked.key] = tree
    while len(_trees) > KEPT:
        _trees.popitem(last=False)
    return tree


def _followed(ask: Ask) -> Ask:
    """What is asked, followed to the end: a curve that stops at a threshold has no mean."""
    return dataclasses.replace(ask, stop_at_threshold=False)


_plans: "OrderedDict[tuple[int, int, int], tuple[Problem, Plan]]" = OrderedDict()


def _plan(spec: RunSpec, in_steps: bool) -> Plan:
    """The plan for all replicas, with more starts so that portions are whole: replica n has the same start in both."""
    ask = spec.ask
    whole = -(-ask.replicas // max(PORTIONS.values())) * max(PORTIONS.values())
    thresholds = ask.risk_threshold
    padded = whole if not isinstance(thresholds, tuple) else ask.replicas
    name = id(spec.problem), ask.seed, padded
    _, like = _plans.get(name, (None, None))  # the problem is kept as well, so that its name is not given again
    plan = make_plan(spec.problem, spec.training, dataclasses.replace(ask, replicas=padded), in_steps, like=like)
    _plans[name] = spec.problem, plan
    while len(_plans) > PROBLEMS:
        _plans.popitem(last=False)
    return plan


def _portions(spec: RunSpec, chosen: AbstractDescription, name: str, plan: Plan, tell: Tell) -> "xr.Dataset":
    """One description in portions of a few replicas, each told as soon as it is there.

    Numbers are those of `twolayer.evolve`: a run does not depend on its company, and a theory to rounding.
    """
    parts: list[xr.Dataset] = []
    replicas = spec.ask.replicas
    for part, done in _each_portion(spec, chosen, name, plan, tell):
        parts.append(part)
        if part.sizes["replica"] == 1 and done == 1 and not _differ(spec, part):
            return part  # a theory of one start stands for all replicas
        if done < replicas:
            tell("partial", curves=[curve(name, _joined(parts, replicas), spec.problem.d)])
    dataset = _joined(parts, replicas)
    if len(spec.descriptions) > 1:
        tell("partial", curves=[curve(name, dataset, spec.problem.d)])
    return dataset


def _each_portion(
    spec: RunSpec, chosen: AbstractDescription, name: str, plan: Plan, tell: Tell
) -> "Iterator[tuple[xr.Dataset, int]]":
    """The datasets of the portions, and how many replicas there are with each."""
    replicas, size = spec.ask.replicas, PORTIONS.get(type(chosen).__name__, spec.ask.replicas)
    size = min(size, plan.replicas)
    for first in range(0, replicas, size):
        last = min(first + size, plan.replicas)

        def progress(fraction: float, first: int = first, last: int = last) -> None:
            tell("progress", fraction=round((first + fraction * (last - first)) / max(replicas, last), 4), words=name)

        dataset, is_interrupted = run(spec, chosen, _part(plan, first, last), progress, name=name)
        if is_interrupted:
            raise KeyboardInterrupt
        yield dataset, min(last, replicas)


def _differ(spec: RunSpec, part: "xr.Dataset") -> bool:
    """Whether replicas differ."""
    return Exactness(part.attrs["exactness"]).is_random or spec.problem.has_random_start


def _part(plan: Plan, first: int, last: int) -> Plan:
    """The plan of some replicas."""
    chosen = plan.starts.replica(slice(first, last))
    threshold = None if plan.risk_threshold is None else plan.risk_threshold[first:last]
    return dataclasses.replace(plan, starts=chosen, keys=plan.keys[first:last], risk_threshold=threshold)


def _joined(parts: "list[xr.Dataset]", replicas: int) -> "xr.Dataset":
    """Portions as one dataset."""
    import xarray as xr

    if len(parts) == 1:
        return parts[0].isel(replica=slice(replicas))
    together = xr.concat(parts, "replica", data_vars="minimal", coords="minimal", compat="override", join="override")
    together = together.isel(replica=slice(replicas))
    labels = {name: values for name, values in parts[0].replica.attrs.items()}
    together = together.assign_coords(replica=range(together.sizes["replica"]))
    together.replica.attrs.update(labels)
    cautions = [line for part in parts for line in part.attrs.get("cautions", "").splitlines()]
    together.attrs = parts[0].attrs | ({"cautions": "\n".join(dict.fromkeys(cautions))} if cautions else {})
    return together


def _check_ended(dataset: "xr.Dataset", curves: list[Tables], tell: Tell) -> None:
    """Tell the curves of a run that did not reach its end, and raise the sentence why."""
    try:
        check_ended(dataset)
    except ComputationFailed:
        tell("partial", curves=curves)
        raise


def _progress(tell: Tell) -> Callable[[str, float], None]:
    from twolayer.core import interrupts

    def progress(name: str, fraction: float) -> None:
        interrupts.check()
        tell("progress", fraction=round(float(fraction), 4), words=name)

    return progress


# ----------------------------------------------------------------------------------------------------- downloads


def download(spec: Tables, options: Tables, tell: Tell) -> Tables:
    """A file: its name without suffix, and its content in base 64."""
    asked = read(spec)
    form, figure = options.get("format"), options.get("figure", "risk")
    if figure not in downloads.FIGURES:
        raise InvalidInput(f"`options.figure` must be one of {', '.join(downloads.FIGURES)}, but is {shown(figure)}.")
    if form == "toml":
        return downloads.zipped(asked, downloads.toml(spec))
    if form == "netcdf":
        return downloads.zipped(asked, downloads.netcdf(compared(asked, tell)))
    seen = _seen(options)
    pins = _pins(options.get("pins") or []) if figure == "risk" else []
    if form == "script":
        asked = dataclasses.replace(asked, ask=_followed(asked.ask))
        return downloads.zipped(asked, downloads.script(asked, spec, figure, seen, pins))
    return downloads.zipped(asked, downloads.picture(compared(asked, tell), asked, figure, str(form), seen, pins))


def _seen(options: Tables) -> Tables:
    """The fields of the view that a page states; a script is written without the plots, which keep files of fonts."""
    seen: Tables = {
        name: one_of(f"options.{name}", options[name], allowed)
        for name, allowed in VIEWS.items()
        if options.get(name) is not None
    }
    limits = options.get("limits")
    if limits is not None:
        is_pair = isinstance(limits, list) and [type(x) in (int, float) for x in limits] == [True, True]
        if not is_pair or not limits[0] < limits[1]:
            raise InvalidInput(f"`options.limits` must be two increasing finite numbers, but is {shown(limits)}.")
        seen["limits"] = (limits[0], limits[1])
    return seen


def _pins(stated: Any) -> list[downloads.Pin]:
    """The pinned settings whose first theory is drawn; those without one are left out."""
    if not isinstance(stated, list) or len(stated) > PINS:
        raise InvalidInput(f"`options.pins` must be a list of at most {PINS} settings, but is {shown(stated)}.")
    pins = []
    for number, pin in enumerate(stated):
        table = a_table(f"options.pins[{number}]", pin)
        asked = read(a_table(f"options.pins[{number}].spec", table.get("spec")))
        theory = next(
            (description for description in asked.descriptions if type(description).__name__ in THEORIES), None
        )
        if theory is not None:
            alone = dataclasses.replace(asked, descriptions=(theory,), ask=_followed(asked.ask))
            pins.append(
                downloads.Pin(one_of(f"options.pins[{number}].name", table.get("name"), NAMES), table["spec"], alone)
            )
    return pins


ANSWERS: dict[str, Callable[[Tables, Tables, Tell], Tables]] = {
    "check": check,
    "explain": explain,
    "theory": theory,
    "simulate": simulate,
    "compare": compare,
    "learn": learn,
    "escape": escape,
    "equations": equations,
    "program": program,
    "download": download,
}
