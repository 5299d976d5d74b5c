"""``twolayer gallery``: the claims and figures of the source texts, made here and held to numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from twolayer.cli.answer import DONE, FAILED, INTERRUPTED, Answer, Failure
from twolayer.cli.interrupt import say
from twolayer.cli.options import AsJson, Quiet, argument, folder, switch

if TYPE_CHECKING:
    from twolayer.gallery import Page
    from twolayer.gallery.make import Result

ALL = "all"


def gallery(
    names: Annotated[list[str] | None, argument("NAME...", "Pages, or `all`; the list of them without.")] = None,
    full: Annotated[bool, switch("--full", "The papers' sizes, or beyond; minutes to hours.")] = False,
    data_dir: Annotated[Path | None, folder("--data-dir", "Where MNIST and CIFAR-10 are.")] = None,
    out: Annotated[Path, folder("--out", "Each page becomes a folder of its name in it.")] = Path("gallery"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Make pages of the gallery: a figure of a paper with theory and simulation on it, and its claims in numbers.

    Example: twolayer gallery escape-times
    Example: twolayer gallery all --out figures
    """
    from twolayer.cli.folder import check_writable
    from twolayer.gallery import find_page, pages

    if not names:
        return _list(pages())
    chosen = pages() if ALL in names else [find_page(name) for name in dict.fromkeys(names)]
    check_writable(out)
    return _make(chosen, full, data_dir, out, quiet)


def _list(known: list["Page"]) -> Answer:
    from twolayer.gallery.page import SOURCES

    lines = []
    for source, (title, _) in SOURCES.items():
        lines += ["", title]
        lines += [f"  {page.name:<26}{page.title}" for page in known if page.source == source]
    lines += ["", "Make one with `twolayer gallery NAME`, at the papers' sizes with --full."]
    data = {"pages": [{"name": page.name, "title": page.title, "source": page.source} for page in known]}
    return Answer(data, "\n".join(lines[1:]))


def _make(chosen: list["Page"], full: bool, data_dir: Path | None, out: Path, quiet: bool) -> Answer:
    from twolayer.cli.folder import progress_bar
    from twolayer.gallery import PageOptions, make

    done: list[Result] = []

    def interrupted() -> Failure:
        finished = tuple(str(result.folder) for result in done)
        kept = f"{len(finished)} of {len(chosen)} pages are finished" if finished else "no page is finished"
        return Failure(f"Interrupted: {kept}.", INTERRUPTED, finished)

    say(interrupted)
    try:
        with progress_bar(quiet) as progress:
            for number, page in enumerate(chosen):
                progress("gallery", number / len(chosen))
                done.append(make(page, out / page.name, PageOptions(full, data_dir)))
    except OSError as error:
        finished = tuple(str(result.folder) for result in done)
        raise Failure(f"A page could not be written to {str(out)!r}: {error}.", FAILED, finished) from None
    except KeyboardInterrupt:
        raise interrupted() from None
    holds = all(result.holds for result in done)
    text = "\n\n".join(map(str, done))
    return Answer({"holds": holds, "pages": [page.to_dict() for page in done]}, text, DONE if holds else FAILED)
