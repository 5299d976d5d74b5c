"""``twolayer ntk``: the kernel side of a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import FAILED, Answer, AsJson, Failure, Overrides, Quiet, folder_option
from twolayer.cli.interrupt import say_answer, writing

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.analyses import LazySpec

SPHERE = "sphere"
SPECIFICATION = ".toml"


def ntk(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A specification SPEC.toml; mnist, fashion-mnist, cifar10; a file .npz, .csv or .parquet; or "
            "`sphere`: random unit inputs.",
        ),
    ] = SPHERE,
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Training samples; 1000 when left out.")] = None,
    d: Annotated[int, typer.Option("--d", metavar="N", help="Dimension of `sphere`.")] = 20,
    classes: Annotated[
        str | None,
        typer.Option("--classes", metavar="A,B|A", help="Two classes, or one against the rest.", show_default=False),
    ] = None,
    random_labels: Annotated[
        float, typer.Option("--random-labels", metavar="SHARE", help="Share of labels drawn at random.")
    ] = 0.0,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="FORMULA",
            help="Labels from a formula in the first coordinates z1, z2, ..., with provable bounds.",
            show_default=False,
        ),
    ] = None,
    width: Annotated[int, typer.Option("--width", metavar="M", help="Units of a trained network; 0 for none.")] = 0,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Networks that are trained.")] = 1,
    steps: Annotated[int, typer.Option("--steps", metavar="K", help="Steps of gradient descent.")] = 100,
    eta: Annotated[
        float | None, typer.Option("--eta", metavar="VALUE", help="Step size; 1 / lambda_max when left out.")
    ] = None,
    start: Annotated[
        str, typer.Option("--start", metavar="NAME", help="Start of the network: antisymmetric, small or sphere.")
    ] = "antisymmetric",
    kappa: Annotated[
        float | None,
        typer.Option("--kappa", metavar="VALUE", help="Deviation of its weights; 1, or 0.01 for `small`."),
    ] = None,
    activation: Annotated[str, typer.Option("--activation", metavar="NAME", help="Of the kernel.")] = "relu",
    layers: Annotated[str, typer.Option("--layers", metavar="NAME", help="Trained: first, second or both.")] = "first",
    ridge: Annotated[float, typer.Option("--ridge", metavar="VALUE", help="Added to the diagonal.")] = 0.0,
    shares: Annotated[
        int, typer.Option("--shares", metavar="N", help="Shares of random labels, 0 to 1, to compare with test errors.")
    ] = 0,
    test: Annotated[
        int | None,
        typer.Option(
            "--test",
            metavar="N",
            help="Test samples on which errors are measured; none when left out, but 1000 with --shares.",
            show_default=False,
        ),
    ] = None,
    single: Annotated[
        bool, typer.Option("--single", help="Network and matrix-free products in single precision.")
    ] = False,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="exact (all eigenvalues), free (no matrix), or auto.")
    ] = "auto",
    devices: Annotated[
        int | None,
        typer.Option("--devices", metavar="N", help="Accelerators for `free`; all of them when left out."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The seed of every random number.")] = 0,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Where the named sets are.",
            show_default=False,
            parser=folder_option,
        ),
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a named set that is not there.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write figures and the numbers there.",
            show_default=False,
            parser=folder_option,
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say what the Gram matrix predicts: spectrum, training curve, complexity, bounds; and what a network does.

    With a specification its fields are changed by --set; the other options are a short form for a data set.

    Example: twolayer ntk mnist --data-dir DIR --n 1000 --width 4096 --shares 11 --out lazy
    Example: twolayer ntk sphere --n 200 --d 10 --target "z1 + z1*z2 + cos(z3) - 1"
    Example: twolayer ntk examples/ntk/sphere.toml --set problem.student.p=1024
    """
    given = dict(locals())
    from twolayer.analyses import ntk as analyse
    from twolayer.analyses.lazy.result import to_dict
    from twolayer.cli.folder import check_writable
    from twolayer.cli.progress import progress_bar
    from twolayer.data import summary

    options = {name: value for name, value in given.items() if name not in OF_BOTH}
    spec = _from_file(source, overrides, options) if _is_specification(source) else _from_options(overrides, **options)
    if out is not None:
        check_writable(out)
    with progress_bar(quiet) as progress:
        result = analyse(spec.problem, spec.training, spec.ask, progress=progress)
    data = {"source": source} | to_dict(result)
    words = str(summary(result))
    if out is not None:
        say_answer(Answer(data, words))
        data["files"] = _write(result, data, out)
        data["folder"] = str(out)
        words += f"\n\npictures  {out}"
    return Answer(data, words)


# Options of both forms: a specification has its own words for all others.
OF_BOTH = ("overrides", "out", "as_json", "quiet")


def _is_specification(source: str) -> bool:
    return Path(source).suffix.lower() == SPECIFICATION


def _from_file(source: str, overrides: list[str] | None, options: dict[str, Any]) -> "LazySpec":
    """The specification of a file; options of the short form are refused, since the file has fields for them."""
    import inspect

    from twolayer.core.errors import InvalidInput
    from twolayer.experiment import read_lazy_spec

    defaults = {name: parameter.default for name, parameter in inspect.signature(ntk).parameters.items()}
    changed = [name for name, value in options.items() if name != "source" and value != defaults[name]]
    if changed:
        raise InvalidInput(
            f"Option `--{changed[0].replace('_', '-')}` belongs to the short form on a data set: change the field of "
            "the specification with `--set`."
        )
    return read_lazy_spec(source, overrides or ())


def _from_options(
    overrides: list[str] | None, source: str, n: Any, d: int, classes: str | None, random_labels: float, test: Any,
    data_dir: Any, download: bool, shares: int, single: bool, replicas: int, target: str | None, seed: int,
    **options: Any,
) -> "LazySpec":  # fmt: skip  # one parameter for each option of the short form
    """The same objects from the options of the short form."""
    import numpy as np

    from twolayer.analyses import LazySpec, NTKAsk
    from twolayer.analyses.lazy.setting import lazy_setting
    from twolayer.core.errors import InvalidInput
    from twolayer.experiment import load_data
    from twolayer.experiment.lazy import TEST_SAMPLES
    from twolayer.specification.fields import count

    if overrides:
        raise InvalidInput("Option `--set` changes a field of a specification SPEC.toml, but SOURCE is a data set.")
    count("shares", low=0, high=1000)(shares)
    if shares == 1:
        raise InvalidInput("Option `--shares` must be 0, or two or more, but is 1.")
    if shares and test is None:
        test = TEST_SAMPLES
    where = {"classes": _classes(classes), "data_dir": data_dir, "download": download, "seed": seed}
    samples, held = load_data(source, n, d, random_labels=random_labels, test=test, has_target=bool(target), **where)
    names = ("width", "eta", "start", "kappa", "activation", "layers")
    setting = {name: options.pop(name) for name in names}
    problem, training = lazy_setting(samples, **setting)
    ask = NTKAsk(
        replicas=count("replicas", low=0)(replicas) if setting["width"] else 0,
        test=held,
        shares=np.linspace(0.0, 1.0, shares) if shares else (),
        target=target,
        seed=seed,
        precision="single" if single else "double",
        **options,
    )
    return LazySpec(problem, training, ask)


def _classes(text: str | None) -> list[int] | None:
    from twolayer.core.errors import InvalidInput, shown

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"Option `--classes` must be numbers such as 3,8, but is {shown(text)}.") from None


def _write(result: "xr.Dataset", data: dict[str, Any], folder: Path) -> list[str]:
    """The figures, the dataset and the numbers; returns the names of the files."""
    import json

    from twolayer.core.errors import InvalidInput
    from twolayer.core.files import make_folder, write_whole
    from twolayer.data import save
    from twolayer.plots import complexity_sweep, lazy_training, save_figure

    try:
        with writing(folder) as names:
            make_folder(folder)
            files = save_figure(lazy_training(result), folder / "training")
            if "share" in result.coords:
                files += save_figure(complexity_sweep(result), folder / "complexity")
            files.append(save(result, folder / "result.nc"))
            text = json.dumps(data, indent=2, allow_nan=False) + "\n"
            files.append(write_whole(folder / "summary.json", text.encode()))
            names += [path.name for path in files]
    except (OSError, InvalidInput) as error:  # the folder was writable before the work, so the input is not to blame
        sentence = f"The figures could not be written to {str(folder)!r}: {error}"
        raise Failure(f"{sentence.rstrip('.')}.", FAILED) from None
    return names
