"""Reports: one folder with numbers, figures, the specification and, of a comparison, half a page of text."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.whole_files import write_whole
from twolayer.data import save
from twolayer.data.store import SUMMARY
from twolayer.data.summary import explained, finite
from twolayer.description import Status
from twolayer.plots import overlaps, risk, save_figure, sweep
from twolayer.sweeps import failures

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    Figures = Mapping[str, Figure]


def write_folder(
    folder: Path,
    summary: Mapping[str, Any],
    results: "Mapping[str, xr.Dataset | xr.DataTree]",
    figures: "Figures",
    texts: Mapping[str, str],
) -> dict[str, Any]:
    """Write the results of a verb into an existing folder.

    Parameters
    ----------
    folder
        The folder to write to; existing files of the same names are replaced.
    summary
        Plain data, which becomes ``summary.json``.
    results, figures
        By the names of their files without suffix.
    texts
        Other files by their names, such as ``spec.json``.

    Returns
    -------
    The summary with ``files`` (names in the folder, in the order of writing) and ``folder``, as it was written.
    """
    files = [save(result, folder / f"{name}.nc") for name, result in results.items()]
    for name, figure in figures.items():
        files += save_figure(figure, folder / name)
    files += [write_whole(folder / name, text.encode()) for name, text in texts.items()]
    complete = {**summary, "files": [*(path.name for path in files), SUMMARY], "folder": str(folder)}
    write_whole(folder / SUMMARY, (json.dumps(complete, indent=2, allow_nan=False) + "\n").encode())
    return complete


def write_report(tree: "xr.DataTree", folder: Path, title: str, spec: str) -> dict[str, Any]:
    """Write the report of a comparison into an existing folder.

    Parameters
    ----------
    tree
        The result of `twolayer.compare`.
    folder
        The folder to write to; existing files of the same names are replaced.
    title
        The heading of the report and of its figures.
    spec
        The specification as canonical JSON.

    Returns
    -------
    The summary, as written to ``summary.json``: ``verdict`` (words), ``outcome`` (one word), ``judge``, ``cautions``
    (sentences), ``descriptions`` (one table each), and what `write_folder` adds. Numbers that do not exist are None.
    """
    datasets = {name: child.to_dataset() for name, child in tree.children.items()}
    if not datasets:
        raise InvalidInput("Argument `tree` must hold at least one description, but holds none.")
    summary = {
        "verdict": tree.attrs["verdict"],
        "outcome": tree.attrs["outcome"],
        "judge": tree.attrs["judge"],
        "cautions": _cautions(datasets.values()),
        "descriptions": [_describe(name, dataset) for name, dataset in datasets.items()],
    }
    texts = {"spec.json": spec, "report.md": _words(title, summary, datasets)}
    figures = {"risk": risk(tree, title), "overlaps": overlaps(tree, title)}
    return write_folder(folder, summary, {"comparison": tree}, figures, texts)


def write_sweep(
    result: "xr.Dataset | xr.DataTree", folder: Path, numbers: Mapping[str, Any], spec: str
) -> dict[str, Any]:
    """Write the report of a sweep into its folder, next to the cells: a figure, the specification, what failed.

    Parameters
    ----------
    result
        What `sweep` returned; it may be unfinished.
    folder
        The folder of the sweep.
    numbers
        How many cells there are, and how they ended.
    spec
        The specification as JSON, which ``twolayer sweep`` takes again.
    """
    import csv
    import io

    table = io.StringIO()
    rows = failures(result)
    if rows:
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    texts = {"spec.json": spec} | ({"failures.csv": table.getvalue()} if rows else {})
    figures = {}
    with contextlib.suppress(InvalidInput):  # more axes than a figure has, or no finished cell
        figures["sweep"] = sweep(result)
    return write_folder(folder, numbers, {}, figures, texts)


def _describe(name: str, dataset: "xr.Dataset") -> dict[str, Any]:
    """The entry of one description in the summary; the final risk is over the replicas that reached the end."""
    statuses = dataset.status.values
    final = dataset.excess_risk.values[:, -1]
    final = final[np.isfinite(final)]
    low, median, high = np.quantile(final, (0.1, 0.5, 0.9)) if final.size else (np.nan, np.nan, np.nan)
    errors = dataset.risk_error.values
    return {
        "name": name,
        "exactness": dataset.attrs["exactness"],
        "engine": dataset.attrs["engine"],
        "statement": dataset.attrs.get("statement", ""),
        "final_excess_risk_median": finite(median),
        "final_excess_risk_range": [finite(low), finite(high)],
        "risk_error_max": finite(np.max(errors, where=np.isfinite(errors), initial=-np.inf)),
        "replicas": int(dataset.sizes["replica"]),
        "status": {status.name.lower(): int(np.sum(statuses == status)) for status in Status},
    }


def _cautions(datasets: Iterable["xr.Dataset"]) -> list[str]:
    """The cautions of all results, each sentence once; results of version 0.1.0 have none."""
    sentences = [line for dataset in datasets for line in dataset.attrs.get("cautions", "").splitlines()]
    return list(dict.fromkeys(sentences))


# ------------------------------------------------------------------------------------------------------ words

COLUMNS = {
    "name": "description",
    "exactness": "exactness",
    "engine": "engine",
    "statement": "statement",
    "replicas": "replicas",
}


def _words(title: str, summary: dict[str, Any], datasets: dict[str, "xr.Dataset"]) -> str:
    """The text of ``report.md``."""
    first = next(iter(datasets.values()))
    references = sorted({key for dataset in datasets.values() for key in dataset.attrs.get("references", "").split()})
    versions = ", ".join(f"{package} {number}" for package, number in json.loads(first.attrs["versions"]).items())
    rows = [
        [*COLUMNS.values(), "ended well", "final excess risk: median (10% to 90%)"],
        ["---", "---", "---", "---", "---:", "---:", "---:"],
        *(
            [*(entry[name] for name in COLUMNS), entry["status"]["done"], _range(entry)]
            for entry in summary["descriptions"]
        ),
    ]
    paragraphs = [
        f"# {title}",
        *([f"**Verdict: {explained(outcome)}.**"] if (outcome := summary["outcome"]) != "single" else []),
        summary["verdict"],
        *(f"Caution: {sentence}" for sentence in summary["cautions"]),
        "![excess risk against time](risk.png)",
        "![overlaps against time](overlaps.png)",
        "\n".join(map(_row, rows)),
        f"The judge is {summary['judge']}. Numbers: [comparison.nc](comparison.nc); specification: "
        "[spec.json](spec.json); figures for print: [risk.pdf](risk.pdf), [overlaps.pdf](overlaps.pdf).",
        f"References: {', '.join(references) or 'none'} (keys of docs/references.bib).",
        f"Made with {versions}; {first.attrs['precision']} on {first.attrs['device']}; seed {first.attrs['seed']}.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _row(cells: Iterable[Any]) -> str:
    """A row of a Markdown table; bars inside of cells are escaped."""
    return "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _range(description: dict[str, Any]) -> str:
    median, (low, high) = description["final_excess_risk_median"], description["final_excess_risk_range"]
    return "none reached the end" if median is None else f"{median:.3g} ({low:.3g} to {high:.3g})"
