"""``twolayer derive``: the closed equations of motion as formulas."""

from typing import Annotated

from twolayer.cli.answer import Answer
from twolayer.cli.options import AsJson, Overrides, Quiet, Spec, switch


def derive(
    spec: Spec,
    latex: Annotated[bool, switch("--latex", "Print LaTeX instead of text.")] = False,
    symbolic_p: Annotated[
        bool, switch("--symbolic-p", "Keep the width p as a symbol: sums over units instead of entries.")
    ] = False,
    general: Annotated[
        bool, switch("--general", "Keep P, a frozen second layer and the lengths of rows as symbols, too.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Write the closed equations of a polynomial student on a polynomial target as formulas.

    Example: twolayer derive examples/phase_retrieval_p1.toml --latex
    """
    from twolayer.cli.folder import progress_bar
    from twolayer.experiment import read_spec
    from twolayer.verbs import derive as derive_equations

    asked = read_spec(spec, overrides or ())
    form = {"symbolic_p": symbolic_p, "general": general}
    with progress_bar(quiet) as progress:
        equations = derive_equations(asked.problem, asked.training, **form, progress=progress)
    return Answer({"title": asked.title} | equations.to_dict(), equations.latex() if latex else equations.text())
