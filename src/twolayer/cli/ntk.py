"""``twolayer ntk``: the kernel side of a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twolayer.cli.answer import FAILED, Answer, AsJson, Failure, Quiet, folder_option
from twolayer.cli.interrupt import say_answer, writing

if TYPE_CHECKING:
    from twolayer.analyses import NTK
    from twolayer.problem import Samples

SPHERE = "sphere"


def ntk(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="mnist, fashion-mnist, cifar10; a file .npz, .csv or .parquet; or `sphere`: random unit inputs.",
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
    steps: Annotated[int, typer.Option("--steps", metavar="K", help="Steps of gradient descent.")] = 100,
    eta: Annotated[
        float | None, typer.Option("--eta", metavar="VALUE", help="Step size; 1 / lambda_max when left out.")
    ] = None,
    start: Annotated[
        str, typer.Option("--start", metavar="NAME", help="Start of the network: antisymmetric or small.")
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
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> Answer:
    """Say what the Gram matrix predicts: spectrum, training curve, complexity, bounds; and what a network does.

    Example: twolayer ntk mnist --data-dir DIR --n 1000 --width 4096 --shares 11 --out lazy
    Example: twolayer ntk sphere --n 200 --d 10 --target "z1 + z1*z2 + cos(z3) - 1"
    """
    import numpy as np

    from twolayer.analyses import ntk as analyse
    from twolayer.cli.folder import check_writable
    from twolayer.cli.progress import progress_bar
    from twolayer.core.errors import InvalidInput
    from twolayer.kernel import from_expression
    from twolayer.specification.fields import count

    count("shares", low=0, high=1000)(shares)
    if shares == 1:
        raise InvalidInput("Option `--shares` must be 0, or two or more, but is 1.")
    given: dict[str, Any] = {"classes": _classes(classes), "data_dir": data_dir, "download": download}
    samples = _training(source, n, d, random_labels, seed, target is not None, given)
    bounded = None if target is None else from_expression(target, np.eye(_fields(target, samples.d), samples.d))
    if shares and test is None:
        test = 1000
    held = None if test is None else _test(source, count("test")(test), d, seed, given)
    if out is not None:
        check_writable(out)
    with progress_bar(quiet) as progress:
        result = analyse(
            samples,
            test=held,
            width=width,
            steps=steps,
            eta=eta,
            start=start,
            kappa=kappa,
            activation=activation,
            layers=layers,
            ridge=ridge,
            shares=np.linspace(0.0, 1.0, shares) if shares else (),
            target=bounded,
            formula=target or "",
            seed=seed,
            precision="single" if single else "double",
            method=method,
            devices=devices,
            progress=progress,
        )
    data = {"source": source} | result.to_dict()
    words = str(result)
    if out is not None:
        say_answer(Answer(data, words))
        data["files"] = _write(result, data, out)
        data["folder"] = str(out)
        words += f"\n\npictures  {out}"
    return Answer(data, words)


def _classes(text: str | None) -> list[int] | None:
    from twolayer.core.errors import InvalidInput, shown

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"Option `--classes` must be numbers such as 3,8, but is {shown(text)}.") from None


def _fields(formula: str, d: int) -> int:
    from twolayer.core.errors import InvalidInput
    from twolayer.problem.expression import Expression

    fields = Expression(formula).fields
    if fields > d:
        raise InvalidInput(f"Option `--target` has {fields} fields, but inputs have {d} dimensions.")
    return max(fields, 1)


def _training(
    source: str, n: int | None, d: int, share: float, seed: int, has_target: bool, given: dict[str, Any]
) -> "Samples":
    from twolayer.data import load_samples

    if source == SPHERE:
        return _sphere(1000 if n is None else n, d, share, [seed, 10])
    if n is None:
        # A thousand, or all there are when they are fewer.
        whole = load_samples(source, **given)
        n = min(1000, whole.n)
    return load_samples(source, n=n, random_labels=0.0 if has_target else share, seed=seed, **given)


def _test(source: str, n: int, d: int, seed: int, given: dict[str, Any]) -> "Samples":
    from twolayer.data import load_samples

    if source == SPHERE:
        return _sphere(n, d, 0.0, [seed, 11])
    found = load_samples(source, split="test", **given)
    return found if found.n <= n else load_samples(source, split="test", n=n, **given)


def _sphere(n: int, d: int, share: float, seed: list[int]) -> "Samples":
    """Uniform inputs on the unit sphere, with the sign of their first coordinate."""
    import numpy as np

    from twolayer.core.memory import check_size
    from twolayer.data import load_samples
    from twolayer.data.arrays import BYTES_OF_A_NUMBER
    from twolayer.specification.fields import count

    n, d = count("n")(n), count("d")(d)
    check_size("n" if n >= d else "d", max(n, d), lambda size: BYTES_OF_A_NUMBER * size * min(n, d), "the inputs")
    X = np.random.default_rng(seed).standard_normal((n, d))
    return load_samples((X, np.where(X[:, 0] >= 0.0, 1.0, -1.0)), random_labels=share, seed=seed[0])


def _write(result: "NTK", data: dict[str, Any], folder: Path) -> list[str]:
    """The figures and the numbers; returns the names of the files."""
    import json

    from twolayer.core.files import make_folder, write_whole
    from twolayer.plots import complexity_sweep, lazy_training, save_figure

    try:
        with writing(folder) as names:
            make_folder(folder)
            files = save_figure(lazy_training(result), folder / "training")
            if result.shares:
                files += save_figure(complexity_sweep(result), folder / "complexity")
            text = json.dumps(data, indent=2, allow_nan=False) + "\n"
            files.append(write_whole(folder / "summary.json", text.encode()))
            names += [path.name for path in files]
    except OSError as error:
        raise Failure(f"The figures could not be written to {str(folder)!r}: {error}.", FAILED) from None
    return names
