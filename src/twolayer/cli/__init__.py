"""The command ``twolayer``. Heavy modules are imported inside the commands, so that help answers at once."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a script passes it to ``sys.exit``."""
    from typer.main import get_command

    from twolayer.cli.answer import BAD_INPUT, Failure, tell
    from twolayer.cli.app import app

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return get_command(app).main(args=given or ["--help"], prog_name="twolayer", standalone_mode=False) or 0
    except Exception as error:
        # The class of usage errors has moved between versions of typer; what it can do has not.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "twolayer"
        sentence = " ".join(message().split()).rstrip(".")
        return tell(Failure(f"{sentence}: see `{command} --help`.", BAD_INPUT), as_json="--json" in given)
