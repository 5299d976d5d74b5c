"""The report of a comparison: one folder with numbers, figures, the specification and half a page of text."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.files import write_whole
from twolayer.data import save
from twolayer.description import Status
from twolayer.plots import overlaps, risk, save_figure

if TYPE_CHECKING:
    import xarray as xr


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
    (sentences), ``descriptions`` (one table each), ``files`` (names in the folder, in the order of writing) and
    ``folder``. Numbers that do not exist are None.
    """
    datasets = {name: child.to_dataset() for name, child in tree.children.items()}
    if not datasets:
        raise InvalidInput("Argument `tree` must hold at least one description, but holds none.")
    figures = {"risk": risk(tree, title), "overlaps": overlaps(tree, title)}
    files = [save(tree, folder / "comparison.nc")]
    for name, figure in figures.items():
        files += save_figure(figure, folder / name)
    files.append(_write_text(folder / "spec.json", spec))
    summary: dict[str, Any] = {
        "verdict": tree.attrs["verdict"],
        "outcome": tree.attrs["outcome"],
        "judge": tree.attrs["judge"],
        "cautions": _cautions(datasets.values()),
        "descriptions": [_describe(name, dataset) for name, dataset in datasets.items()],
        "files": [path.name for path in files] + ["report.md", "summary.json"],
        "folder": str(folder),
    }
    _write_text(folder / "report.md", _words(title, summary, datasets))
    _write_text(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return summary


def _write_text(path: Path, text: str) -> Path:
    return write_whole(path, text.encode())


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
        "final_excess_risk_median": _number(median),
        "final_excess_risk_range": [_number(low), _number(high)],
        "risk_error_max": _number(np.max(errors, where=np.isfinite(errors), initial=-np.inf)),
        "replicas": int(dataset.sizes["replica"]),
        "status": {status.name.lower(): int(np.sum(statuses == status)) for status in Status},
    }


def _cautions(datasets: Iterable["xr.Dataset"]) -> list[str]:
    """The cautions of all results, each sentence once; results of version 0.1.0 have none."""
    sentences = [line for dataset in datasets for line in dataset.attrs.get("cautions", "").splitlines()]
    return list(dict.fromkeys(sentences))


def _number(value: Any) -> float | None:
    """The number as a float, or None where JSON cannot represent it."""
    return float(value) if np.isfinite(value) else None


# ------------------------------------------------------------------------------------------------------ words


def _words(title: str, summary: dict[str, Any], datasets: dict[str, "xr.Dataset"]) -> str:
    """The text of ``report.md``."""
    first = next(iter(datasets.values()))
    references = sorted({key for dataset in datasets.values() for key in dataset.attrs.get("references", "").split()})
    versions = ", ".join(f"{package} {number}" for package, number in json.loads(first.attrs["versions"]).items())
    lines = [
        f"# {title}",
        "",
        summary["verdict"],
        "",
        *(line for sentence in summary["cautions"] for line in (f"Caution: {sentence}", "")),
        "![excess risk against time](risk.png)",
        "",
        "![overlaps against time](overlaps.png)",
        "",
        _row(
            "description",
            "exactness",
            "engine",
            "statement",
            "replicas",
            "ended well",
            "final excess risk: median (10% to 90%)",
        ),
        _row("---", "---", "---", "---", "---:", "---:", "---:"),
        *(
            _row(
                entry["name"],
                entry["exactness"],
                entry["engine"],
                entry["statement"],
                entry["replicas"],
                entry["status"]["done"],
                _range(entry),
            )
            for entry in summary["descriptions"]
        ),
        "",
        f"The judge is {summary['judge']}. Numbers: [comparison.nc](comparison.nc); specification: "
        "[spec.json](spec.json); figures for print: [risk.pdf](risk.pdf), [overlaps.pdf](overlaps.pdf).",
        "",
        f"References: {', '.join(references) or 'none'} (keys of docs/references.bib).",
        "",
        f"Made with {versions}; {first.attrs['precision']} on {first.attrs['device']}; seed {first.attrs['seed']}.",
    ]
    return "\n".join(lines) + "\n"


def _row(*cells: Any) -> str:
    """A row of a Markdown table; bars inside of cells are escaped."""
    return "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _range(description: dict[str, Any]) -> str:
    median, (low, high) = description["final_excess_risk_median"], description["final_excess_risk_range"]
    return "none reached the end" if median is None else f"{median:.3g} ({low:.3g} to {high:.3g})"
