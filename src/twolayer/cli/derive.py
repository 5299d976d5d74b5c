"""``twolayer derive``: the closed equations of motion as formulas."""

from pathlib import Path
from typing import Annotated

import typer

from twolayer.cli.answer import Answer, AsJson, Overrides, Quiet


def derive(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="The specification.", show_default=False)],
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX instead of text.")] = False,
    symbolic_p: Annotated[
        bool, typer.Option("--symbolic-p", help="Keep the width p as a symbol: sums over units instead of entries.")
    ] = False,
    general: Annotated[
        bool,
        typer.Option("--general", help="Keep P, a frozen second layer and the lengths of rows as symbols, too."),
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Write the closed equations of a polynomial student on a polynomial target as formulas.

    Example: twolayer derive examples/phase_retrieval_p1.toml --latex
    """
    from twolayer.experiment import read_spec
    from twolayer.verbs import derive as derive_equations

    asked = read_spec(spec, overrides or ())
    equations = derive_equations(asked.problem, asked.training, symbolic_p=symbolic_p, general=general)
    return Answer({"title": asked.title} | equations.to_dict(), equations.latex() if latex else equations.text())
