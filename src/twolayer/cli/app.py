"""The commands, put together."""

from typing import Annotated

import typer

from twolayer.cli.answer import answering
from twolayer.cli.demo import demo
from twolayer.cli.derive import derive
from twolayer.cli.doctor import doctor
from twolayer.cli.exit_time import exit_time
from twolayer.cli.explain import explain
from twolayer.cli.explore import explore
from twolayer.cli.gallery import gallery
from twolayer.cli.learn import learn
from twolayer.cli.ntk import ntk
from twolayer.cli.run import run
from twolayer.cli.sweep import sweep

app = typer.Typer(pretty_exceptions_enable=False)


def _print_version(asked: bool) -> bool:
    if asked:
        from twolayer import __version__

        print(f"twolayer {__version__}")
        raise typer.Exit()
    return asked


@app.callback()
def _twolayer(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """See exactly how two-layer neural networks learn: theory against simulation.

    Example: twolayer demo
    """


for _command in (run, sweep, explain, derive, exit_time, learn, ntk, gallery, explore, demo, doctor):
    app.command(_command.__name__.replace("_", "-"))(answering(_command))
