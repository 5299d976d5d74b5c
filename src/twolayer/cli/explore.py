"""``twolayer explore``: the page in the browser, its server and its workers."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from twolayer.cli.answer import BAD_INPUT, INTERRUPTED, Answer, Failure
from twolayer.cli.interrupt import keeping
from twolayer.cli.options import AsJson, Quiet, argument, option, switch
from twolayer.cli.outcome import write

if TYPE_CHECKING:
    from twolayer.explore.access import Access

EVERYWHERE = (
    "Everybody who can reach this machine and has the link can let it compute, and the connection is not encrypted. "
    "Without `--host` the explorer is reached from this machine alone."
)
BEHIND = "Everybody who can reach {origin} and has the link can let this machine compute."


def explore(
    spec: Annotated[
        str | None,
        argument("[SPEC.toml]", "The specification to begin with, the name of a gallery page, or a shared link."),
    ] = None,
    host: Annotated[str, option("--host", "HOST", "The address to listen at; 0.0.0.0 for all of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, option("--port", "PORT", "The port; any free one when 0.", min=0, max=65535)] = 0,
    no_browser: Annotated[bool, switch("--no-browser", "Print the address and open nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Open a page in the browser: move the learning rate, type a target, and see theory and SGD answer.

    Example: twolayer explore
    Example: twolayer explore examples/erf_committee.toml --port 8000 --no-browser
    Example: twolayer explore escape-times
    Example: twolayer explore 'http://127.0.0.1:8000/?token=...#eyJ2Ijox...'
    """
    try:
        from twolayer.explore.serve import serve
    except ModuleNotFoundError as error:
        raise Failure(
            f"`twolayer explore` needs the package {error.name}: `pip install 'twolayer[explore]'` brings it.",
            BAD_INPUT,
        ) from None
    state, initial = ("", None) if spec is None else _begun(spec)

    def announce(access: "Access") -> None:
        write(json.dumps({"address": access.link}) if as_json else access.link, sys.stdout)
        if not access.is_local:
            words = BEHIND.format(origin=access.origin) if access.origin else EVERYWHERE
            write(f"twolayer: {words}", sys.stderr)
        elif not quiet:
            write("twolayer: Ctrl-C ends the explorer.", sys.stderr)

    with keeping(_ended):
        serve(host, port, initial, not no_browser, announce, state)
    raise _ended()


def _ended() -> Failure:
    return Failure("The explorer has ended.", INTERRUPTED)


def _begun(spec: str) -> tuple[str, dict[str, object]]:
    """The state of a link, empty for others, and the tables to begin with; they are checked before a browser opens."""
    from twolayer.experiment import from_tables, read_run_tables
    from twolayer.explore.form import with_few_runs
    from twolayer.explore.links import is_link, state_of
    from twolayer.gallery import pages

    path = Path(spec)
    if is_link(spec) and not path.exists():
        state, tables = state_of(spec)
    else:
        named = {} if path.exists() else {page.name: page.folder / "spec.toml" for page in pages()}
        state, tables = "", read_run_tables(named.get(spec, path))
        tables = with_few_runs(tables) if spec in named else tables
    from_tables(tables)
    return state, tables
