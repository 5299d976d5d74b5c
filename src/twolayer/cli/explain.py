"""``twolayer explain``: which descriptions and engines apply, how exactly, and why not."""

from twolayer.cli.answer import Answer
from twolayer.cli.options import AsJson, Overrides, Quiet, Spec


def explain(spec: Spec, overrides: Overrides = None, as_json: AsJson = False, quiet: Quiet = False) -> Answer:
    """Say which descriptions and engines apply to a specification, how exactly, and why not.

    Example: twolayer explain examples/relu_two_index.toml --set training.batch_size=4
    """
    from twolayer.cli.folder import progress_bar
    from twolayer.experiment import read_spec
    from twolayer.verbs import explain as explain_problem

    asked = read_spec(spec, overrides or ())
    with progress_bar(quiet) as progress:
        options = {"descriptions": asked.descriptions, "progress": progress}
        explanation = explain_problem(asked.problem, asked.training, asked.ask, **options)
    return Answer({"title": asked.title} | explanation.to_dict(), str(explanation))
