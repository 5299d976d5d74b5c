"""``twolayer demo``: the main job on an embedded specification."""

from twolayer.cli.answer import Answer
from twolayer.cli.options import AsJson, Quiet
from twolayer.cli.run import Out, compare_and_report


def demo(out: Out = None, as_json: AsJson = False, quiet: Quiet = False) -> Answer:
    """Compare theory with simulation on an erf committee machine; no file is needed.

    Example: twolayer demo --out results/demo
    """
    from twolayer.experiment import demo_spec

    return compare_and_report(demo_spec(), "demo", out, quiet)
