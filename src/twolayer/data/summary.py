"""The short table of a result: its numbers, their errors and the verdict."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.text import Text, table
from twolayer.data.deviation import OUTCOMES
from twolayer.data.schema import Labelled, as_dataset, schema_of
from twolayer.description import Status

if TYPE_CHECKING:
    import xarray as xr


# The kind of a tree that `compare` returned; that of a sweep has a kind of its own.
COMPARISON = "comparison"


def summary(result: "xr.Dataset | xr.DataTree | Labelled") -> Text:
    """The short table of a result: numbers, errors and, where predictions are compared with runs, the verdict.

    Parameters
    ----------
    result
        The result of any verb, or of `twolayer.load`.

    Returns
    -------
    A text that prints in columns, on a terminal and in a notebook.
    """
    import xarray as xr

    result = as_dataset(result)
    if isinstance(result, xr.DataTree) and result.children and result.attrs.get("kind", COMPARISON) == COMPARISON:
        return _of_comparison(result)
    if isinstance(result, xr.DataTree):
        result = result.to_dataset()
    if not isinstance(result, xr.Dataset):
        raise InvalidInput(f"Argument `result` must be the result of a verb, but is a {type(result).__name__}.")
    write = schema_of(result).summary
    if write is not None:
        return write(result)
    return _with_cautions(_of_trajectories({str(result.attrs.get("description", "result")): result}), result.attrs)


def explained(outcome: str) -> str:
    """The word of a verdict with its meaning."""
    return f"{outcome}: {OUTCOMES[outcome]}" if outcome in OUTCOMES else outcome


def verdict_lines(attributes: Mapping[Any, Any]) -> list[str]:
    """The verdict of a result as lines: the word with its meaning and who judged, and the sentence that says why.

    There are none for a result without a verdict, or with nothing beside which it could be judged.
    """
    outcome = attributes.get("outcome")
    if outcome is None or outcome == "single":
        return []
    judge = f", judged by {attributes['judge']}" if "judge" in attributes else ""
    return [f"Verdict{judge}: {explained(outcome)}.", str(attributes["verdict"])]


def finite(value: SupportsFloat | None) -> float | None:
    """A number that JSON can hold, or None where there is none."""
    return float(value) if value is not None and np.isfinite(float(value)) else None


def as_python(value: object) -> object:
    """An attribute that was read from a file as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


def for_json(values: Mapping[str, object]) -> dict[str, Any]:
    """Values as JSON holds them: lists in place of arrays and tuples, None for numbers that do not exist."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple | list | np.ndarray):
            return [plain(item) for item in value]
        return finite(value) if isinstance(value, float) else value

    return {name: plain(value) for name, value in values.items()}


def with_error(value: SupportsFloat | None, error: SupportsFloat | None) -> str:
    """A number with its error, rounded to the digits that are known."""
    number, doubt = (np.nan if x is None else float(x) for x in (value, error))
    if not np.isfinite(number):
        return "none"
    if not np.isfinite(doubt) or doubt == 0.0:
        return f"{number:.6g}"
    digits = int(np.clip(np.ceil(np.log10(abs(number) / doubt)) + 2, 2, 12)) if number else 2
    return f"{number:.{digits}g} +- {doubt:.1e}"


def _of_comparison(tree: "xr.DataTree") -> Text:
    lines = _of_trajectories({name: child.to_dataset() for name, child in tree.children.items()}).splitlines()
    verdict = verdict_lines(tree.attrs)[:1]  # the sentences on all descriptions are long, and stand in the report
    lines += [""] * bool(verdict) + verdict
    return _with_cautions(Text("\n".join(lines)), tree.attrs)


def _with_cautions(text: Text, attributes: Mapping[Any, Any]) -> Text:
    """The text, and below it what speaks against trusting the result."""
    sentences = str(attributes.get("cautions", "")).splitlines()
    return Text("\n".join([text, *[""] * bool(sentences), *(f"Caution: {sentence}" for sentence in sentences)]))


def _of_trajectories(datasets: dict[str, "xr.Dataset"]) -> Text:
    rows = []
    for name, dataset in datasets.items():
        final = dataset.excess_risk.values[:, -1]
        final = final[np.isfinite(final)]
        scatter = f"{np.std(final, ddof=1):.2g}" if final.size > 1 else "-"
        error = dataset.risk_error.values[:, -1]
        bound = np.max(error, where=np.isfinite(error), initial=0.0)
        ended = np.sum(np.isin(dataset.status.values, (Status.DONE, Status.STOPPED)))
        mean = f"{np.mean(final):.6g}" if final.size else "none"
        rows.append(
            [
                name,
                dataset.attrs.get("exactness", ""),
                f"{ended} of {len(dataset.status)}",
                mean,
                scatter,
                f"{bound:.1e}",
            ]
        )
    header = ["description", "exactness", "runs that ended", "final excess risk", "scatter", "numerical error"]
    return Text("\n".join(table(header, rows, right=(2, 3, 4, 5))))
