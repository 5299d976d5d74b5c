"""``twolayer ntk``: the kernel side of a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import Answer
from twolayer.cli.options import AsJson, Context, Overrides, Quiet, Seed, folder, is_given, option, refuse, switch
from twolayer.core.deprecation import former_option

if TYPE_CHECKING:
    from twolayer.analyses import LazySpec

SPECIFICATIONS = (".toml", ".json")
# Options of both forms: a specification has its own words for all others.
OF_BOTH = ("source", "overrides", "out", "as_json", "quiet")
# Options that --set replaces: they work for one more version, and say which field they set.
FIELDS = {
    "random_labels": "data.random_labels=SHARE",
    "ridge": "run.ridge=VALUE",
    "delta": "run.delta=VALUE",
    "epsilon": "run.epsilon=VALUE",
    "single": "run.precision=single",
    "method": "run.method=NAME",
    "devices": "run.devices=N",
}
FORMER = {
    name: former_option(f"--{name.replace('_', '-')}", f"--set {field}", since="0.2") for name, field in FIELDS.items()
}


# Large: a command has one argument for each of its options.
def ntk(
    context: Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A specification SPEC.toml, or the spec.json of a report; mnist, fashion-mnist, cifar10; a file .npz, "
            ".csv or .parquet; or `sphere`: random unit inputs.",
        ),
    ] = "sphere",
    n: Annotated[int | None, option("--n", "N", "Training samples; 1000 when left out.")] = None,
    d: Annotated[int, option("--d", "N", "Dimension of `sphere`.")] = 20,
    classes: Annotated[str | None, option("--classes", "A,B|A", "Two classes, or one against the rest.")] = None,
    random_labels: Annotated[
        float, option("--random-labels", "SHARE", "Share of labels drawn at random.", hidden=True)
    ] = 0.0,
    target: Annotated[
        str | None,
        option(
            "--target", "FORMULA", "Labels from a formula in the first coordinates z1, z2, ..., with provable bounds."
        ),
    ] = None,
    width: Annotated[int, option("--width", "M", "Units of a trained network; 0 for none.")] = 0,
    replicas: Annotated[int, option("--replicas", "N", "Networks that are trained.")] = 1,
    steps: Annotated[int, option("--steps", "K", "Steps of gradient descent.")] = 100,
    eta: Annotated[float | None, option("--eta", "VALUE", "Step size; 1 / lambda_max when left out.")] = None,
    start: Annotated[
        str, option("--start", "NAME", "Start of the network: antisymmetric, small or sphere.")
    ] = "antisymmetric",
    kappa: Annotated[
        float | None, option("--kappa", "VALUE", "Deviation of its weights; 1, or 0.01 for `small`.")
    ] = None,
    activation: Annotated[str, option("--activation", "NAME", "Of the kernel.")] = "relu",
    layers: Annotated[str, option("--layers", "NAME", "Trained: first, second or both.")] = "first",
    ridge: Annotated[float, option("--ridge", "VALUE", "Added to the diagonal.", hidden=True)] = 0.0,
    shares: Annotated[
        int, option("--shares", "N", "Shares of random labels, 0 to 1, to compare with test errors.")
    ] = 0,
    test: Annotated[
        int | None,
        option("--test", "N", "Test samples on which errors are measured; none when left out, but 1000 with --shares."),
    ] = None,
    delta: Annotated[float, option("--delta", "VALUE", "Failure probability of the theorems.", hidden=True)] = 0.1,
    epsilon: Annotated[
        float,
        option("--epsilon", "VALUE", "Accuracy of theorem 4.1, as a fraction of the norm of the labels.", hidden=True),
    ] = 0.1,
    single: Annotated[
        bool, switch("--single", "Network and matrix-free products in single precision.", hidden=True)
    ] = False,
    method: Annotated[
        str, option("--method", "NAME", "exact (all eigenvalues), free (no matrix), or auto.", hidden=True)
    ] = "auto",
    devices: Annotated[
        int | None, option("--devices", "N", "Accelerators for `free`; all of them when left out.", hidden=True)
    ] = None,
    seed: Seed = 0,
    data_dir: Annotated[Path | None, folder("--data-dir", "Where the named sets are.")] = None,
    download: Annotated[bool, switch("--download", "Fetch a named set that is not there.")] = False,
    out: Annotated[Path | None, folder("--out", "Write figures and the numbers there.")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say what the Gram matrix predicts: spectrum, training curve, complexity, bounds; and what a network does.

    --set changes any field; the other options are a short form of a specification for a data set.

    Example: twolayer ntk mnist --data-dir DIR --n 1000 --width 4096 --shares 11 --out lazy
    Example: twolayer ntk sphere --n 200 --d 10 --target "z1 + z1*z2 + cos(z3) - 1"
    Example: twolayer ntk sphere --width 256 --set problem.start.deviation=0.5
    Example: twolayer ntk examples/ntk/sphere.toml --set problem.student.p=1024
    """
    from twolayer.analyses import ntk as analyse
    from twolayer.analyses.lazy.lazy_result import to_dict
    from twolayer.cli.folder import Work, progress_bar
    from twolayer.data import summary
    from twolayer.experiment.lazy import lazy_tables
    from twolayer.specification.codec import to_json

    spec, data = _specification(context)
    work = Work(out, "ntk", spec.key)
    with progress_bar(quiet) as progress:
        result = analyse(spec.problem, spec.training, spec.ask, progress=progress)
    answer = Answer({"source": source} | to_dict(result), str(summary(result)))

    def figures() -> dict[str, Any]:
        from twolayer.plots import complexity_sweep, lazy_training

        drawn = {"training": lazy_training(result)}
        return drawn | ({"complexity": complexity_sweep(result)} if "share" in result.coords else {})

    return work.finish(answer, {"result": result}, figures, to_json(lazy_tables(spec, data)))


def _specification(context: Context) -> "tuple[LazySpec, dict[str, Any] | None]":
    """What is asked, from a file or from the options of the short form, and the table that names the samples."""
    from twolayer.experiment.lazy import changed, lazy_spec, read_lazy_tables

    options = {name: value for name, value in context.params.items() if name not in OF_BOTH}
    source, overrides = context.params["source"], context.params["overrides"] or ()
    if Path(source).suffix.lower() in SPECIFICATIONS:
        refuse(context, options)
        tables = read_lazy_tables(source, overrides)
        return lazy_spec(tables), tables.get("data")
    for name, warn in FORMER.items():
        if is_given(context, name):
            warn()
    short = _from_options(source, options)
    return changed(*short, overrides) if overrides else short


def _from_options(source: str, options: dict[str, Any]) -> "tuple[LazySpec, dict[str, Any]]":
    """The same objects from the options of the short form."""
    import numpy as np

    from twolayer.analyses import LazySpec, NTKAsk
    from twolayer.analyses.lazy.setting import LETTERS, lazy_setting
    from twolayer.core.errors import InvalidInput
    from twolayer.experiment import load_data
    from twolayer.experiment.lazy import TEST_SAMPLES
    from twolayer.specification.fields import count

    def taken(*names: str) -> dict[str, Any]:
        return {name: options[name] for name in names}

    shares = count("shares", low=0, high=1000)(options["shares"])
    if shares == 1:
        raise InvalidInput("Option `--shares` must be 0, or two or more, but is 1.")
    data: dict[str, Any] = taken("n", "d", "random_labels", "test", "data_dir", "download") | {"source": source}
    data["classes"] = _classes(options["classes"])
    if shares and data["test"] is None:
        data["test"] = TEST_SAMPLES
    samples, held = load_data(**data, seed=options["seed"], has_target=bool(options["target"]))
    problem, training = lazy_setting(samples, **taken(*LETTERS))
    ask = NTKAsk(
        **taken("steps", "target", "seed", "ridge", "method", "devices", "delta", "epsilon"),
        replicas=count("replicas", low=0)(options["replicas"]) if options["width"] else 0,
        test=held,
        shares=np.linspace(0.0, 1.0, shares) if shares else (),
        precision="single" if options["single"] else "double",
    )
    return LazySpec(problem, training, ask), data


def _classes(text: str | None) -> list[int] | None:
    from twolayer.core.errors import InvalidInput, shown

    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"Option `--classes` must be numbers such as 3,8, but is {shown(text)}.") from None
