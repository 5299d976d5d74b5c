"""The verb for the kernel side of a data set: what it predicts, and what a network does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from twolayer.analyses.lazy.result import NTK, Curve, Errors, HeldOut, Share, TargetBound
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.data.samples import randomise_labels
from twolayer.kernel import (
    AbstractSpectrum,
    FreeSpectrum,
    PowerSum,
    Spectrum,
    Trained,
    decompose,
    explain_singular,
    free_spectrum,
    gram,
    train,
)
from twolayer.kernel.device import chosen_devices
from twolayer.kernel.eigen import METHODS, choose_method
from twolayer.kernel.matrices import gram_with_error, unit_rows
from twolayer.kernel.profile import LAYERS
from twolayer.kernel.spectra import as_measure
from twolayer.kernel.training import PRECISIONS, STARTS, check_memory
from twolayer.problem import Samples
from twolayer.problem.activations import Relu, as_activation
from twolayer.specification.fields import array, choice, count, instance, number

Tell = Callable[[str, float], None]
# Numbers of the kernel between test and training inputs that are held at once.
HELD = 2**25


@takes_these
def ntk(
    samples: Samples,
    *,
    test: Samples | None = None,
    width: Any = 0,
    steps: Any = 100,
    eta: float | int | None = None,
    start: str = "antisymmetric",
    kappa: float | int | None = None,
    activation: Any = "relu",
    layers: str = "first",
    ridge: float | int = 0.0,
    random_labels: bool = True,
    shares: Any = (),
    target: PowerSum | None = None,
    formula: str = "target",
    seed: int = 0,
    precision: str = "double",
    method: str = "auto",
    devices: Any = None,
    progress: Tell | None = None,
) -> NTK:
    r"""The lazy regime on a data set: Gram spectrum, predicted and trained loss, complexity measure, bounds.

    Parameters
    ----------
    samples
        Inputs, which are divided by their norms, and labels.
    test
        Samples with clean labels, signs or any real numbers, on which the errors of the kernel and of the network at
        the last step are measured; needed for ``shares``. With ``target`` their labels are those of the target.
    width
        Units of a network that is trained for comparison (relu, first layer); 0 for none.
    steps, eta
        Steps of gradient descent and their size; :math:`1/\lambda_{\max}` without it. At :math:`2/\lambda_{\max}`
        and beyond gradient descent diverges, and the size is refused.
    start, kappa
        How the network begins, see `twolayer.kernel.train`; kappa also enters kernels other than relu's first layer.
    activation, layers
        Of the kernel.
    ridge
        Added to the diagonal of the Gram matrix; nothing is unless asked.
    random_labels
        Whether the same is done with labels that are all drawn at random (where labels are plus and minus one).
    shares
        Shares of random labels for which measure and test error are compared.
    target, formula
        A target with provable bounds, which gives the labels in place of those of the samples, and its name.
    seed
        Of random labels, weights and signs.
    precision
        Of the network, and of the products inside the matrix-free route: ``"double"`` or ``"single"``. The measure
        keeps the error of double precision.
    method
        ``"exact"``: all eigenvalues, for up to 20,000 samples; ``"free"``: from products of the Gram matrix, which is
        never held whole unless it fits, see `twolayer.kernel.free_spectrum`; ``"auto"``: the former where two matrices
        fit the memory. The result says which, and why.
    devices
        How many accelerators make the products of the matrix-free route: all by default, 0 for none.
    progress
        Called with the name of what is done, and the fraction of it.

    Returns
    -------
    All of it; print it, or take its fields, or ``to_dict()``.

    References
    ----------
    :cite:t:`arora2019`.
    """
    instance("samples", Samples, "Samples(X, y), or what load_samples returns")(samples)
    activation = as_activation(activation)
    layers, start = choice("layers", LAYERS)(layers), choice("start", STARTS)(start)
    width, steps = count("width", low=0)(width), count("steps", low=0, high=10**7)(steps)
    ridge = float(number("ridge", low=0.0)(ridge))
    precision = choice("precision", PRECISIONS)(precision)
    chosen_devices(devices)  # refuses more than there are, whatever the route
    shares = [float(number("shares", low=0.0, high=1.0)(each)) for each in array("shares", 1)(shares)]
    if width and (not isinstance(activation, Relu) or layers != "first"):
        raise InvalidInput("Argument `width` must be 0 unless the first layer of relu units is trained.")
    if shares and test is None:
        raise InvalidInput("Argument `shares` needs `test`: samples on which errors are measured.")
    if width % 2 and start == "antisymmetric":
        raise InvalidInput(f"Argument `width` must be even for the antisymmetric start, but is {width}.")
    tell = progress or (lambda name, fraction: None)
    notes: list[str] = []
    X, y = _inputs(samples, notes)
    if target is not None:
        y = instance("target", PowerSum, "a target such as twolayer.kernel.linear(beta)")(target)(X)
    held = None if test is None else _test_samples(test, X.shape[1], target)
    has_signs = _are_signs(y)
    if shares and not has_signs:
        raise InvalidInput("Argument `shares` needs labels of plus and minus one: load the samples with `classes`.")
    route, reason = choose_method(choice("method", METHODS)(method), len(X), 3 if width else 2)
    deviation = 1.0 if kappa is None else float(number("kappa", above=0.0)(kappa))
    if width:
        check_memory(len(X), width, precision, has_others=held is not None, grams=route == "exact")

    H: np.ndarray | None = None
    found: Spectrum | FreeSpectrum
    if route == "exact":
        tell("Gram matrix", 0.0)
        H, error = gram_with_error(X, activation, layers, deviation)
        tell("spectrum", 0.0)
        found = decompose(H, ridge, overwrite=not width, error=error)
    else:
        kernel: dict[str, Any] = {"layers": layers, "kappa": deviation, "ridge": ridge}
        found = free_spectrum(X, activation, **kernel, precision=precision, devices=devices, seed=seed, progress=tell)
    eta = found.check_step(eta)
    if found.is_singular:
        notes.append(
            f"The Gram matrix is singular as far as numbers can tell (lambda_min = {found.lambda_min:.2g}): there is "
            f"no complexity measure without a ridge. {explain_singular(X, y)}"
        )
    options: dict[str, Any] = {"width": width, "eta": eta, "steps": steps, "start": start, "kappa": kappa}
    options |= {"seed": seed, "precision": precision}
    labels = {"given": y}
    if random_labels and has_signs:
        labels["random"] = randomise_labels(y, 1.0, seed)
    curves = _curves(labels, X, found, options, tell, None if held is None else held[0])
    distances = (None, None)
    if width and curves[0].trained is not None:
        if H is not None:
            grams = (curves[0].trained.initial_gram, curves[0].trained.final_gram)
            distances = tuple(_distance(each, H) for each in grams)
        _remark(curves, notes)
    tested, measured = None, []
    if shares:
        found.require_inverse()
    if held is not None:
        mixed = [randomise_labels(y, share, seed) for share in shares]
        tell("test samples", 0.0)
        outputs = _kernel_outputs(held[0], X, found, np.stack([y, *mixed], axis=1), options, activation, layers)
        tested = _test_errors(outputs[:, 0], curves[0].trained, held[1], has_signs)
        measured = _sweep(X, held, shares, mixed, outputs[:, 1:], found, options, tell)
    complexity = curves[0].complexity
    if complexity is not None and complexity.value > 1.0:
        notes.append(
            f"The measure is {complexity.value:.3g}, above 1, where it bounds nothing by itself: a loss is at most 1. "
            "It follows a trend, and is compared between labels."
        )
    return NTK(
        n=len(X),
        d=X.shape[1],
        activation=type(activation).__name__.lower(),
        layers=layers,
        ridge=ridge,
        method=route,
        reason=reason,
        lambda_min=found.lambda_min,
        lambda_min_error=found.lambda_min_error,
        lambda_max=found.lambda_max,
        lambda_max_error=found.lambda_max_error,
        eigenvalues=found.eigenvalues,
        counts=found.counts if isinstance(found, FreeSpectrum) else None,
        complexity=complexity,
        eta=eta,
        steps=steps,
        curves=tuple(curves),
        initial_distance=distances[0],
        final_distance=distances[1],
        test=tested,
        shares=tuple(measured),
        target=None if target is None else _bound(target, formula, y, found),
        notes=tuple(notes),
    )


def _inputs(samples: Samples, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    X, norms = unit_rows(np.asarray(samples.X))
    if np.max(np.abs(norms - 1.0)) > 1e-6:
        notes.append(f"Inputs were divided by their norms, {np.min(norms):.4g} to {np.max(norms):.4g}.")
    return X, np.asarray(samples.y, dtype=np.float64)


def _test_samples(test: Samples, d: int, target: PowerSum | None) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of the test samples, divided by their norms, and their labels: given, or those of the target."""
    instance("test", Samples, "Samples(X, y), or what load_samples returns")(test)
    T, _ = unit_rows(np.asarray(test.X), "test")
    if T.shape[1] != d:
        raise InvalidInput(f"Argument `test` must have inputs of {d} dimensions as `samples`, but has {T.shape[1]}.")
    return T, np.asarray(test.y, dtype=np.float64) if target is None else target(T)


def _are_signs(y: np.ndarray) -> bool:
    return bool(np.all(np.abs(y) == 1.0))


def _curves(
    labels: dict[str, np.ndarray],
    X: np.ndarray,
    found: AbstractSpectrum,
    options: dict[str, Any],
    tell: Tell,
    others: np.ndarray | None,
) -> list[Curve]:
    """Prediction, measure and network of each set of labels; what the matrix is asked, it is asked for all at once.

    The network of the given labels is evaluated at the other inputs as well.
    """
    tell("prediction", 0.0)
    Y = np.stack(list(labels.values()), axis=1)
    predictions = found.predictions(Y, options["steps"], options["eta"])
    forms = [None] * Y.shape[1] if found.is_singular else found.inverse_forms(Y)
    curves = []
    for (kind, y), predicted, form in zip(labels.items(), predictions, forms, strict=True):
        trained = None
        if options["width"]:
            name = f"network of {options['width']} units, {kind} labels"
            grams = kind == "given" and isinstance(found, Spectrum)

            def told(fraction: float, name: str = name) -> None:
                tell(name, fraction)

            at = others if kind == "given" else None
            trained = train(X, y, others=at, grams=grams, progress=told, **options)
        projections = found.projections(y) if isinstance(found, Spectrum) else None
        complexity = None if form is None else as_measure(form, found.n)
        curves.append(Curve(kind, complexity, predicted, projections, trained))
    return curves


def _distance(first: np.ndarray | None, second: np.ndarray) -> float | None:
    """The spectral norm of the difference of two symmetric matrices."""
    if first is None:
        return None
    from scipy.sparse.linalg import eigsh

    gap = first - second
    if len(gap) < 10:
        return float(np.linalg.norm(gap, 2))
    start = np.random.default_rng(0).standard_normal(len(gap))
    values = eigsh(gap, k=1, which="LM", v0=start, tol=1e-6, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    return float(np.abs(values[0]))


def _remark(curves: list[Curve], notes: list[str]) -> None:
    trained = curves[0].trained
    if trained is not None and trained.flip_share > 0.1:
        better = "A larger width" + (", or the antisymmetric start," if trained.start == "small" else "")
        notes.append(
            f"{100.0 * trained.flip_share:.0f}% of the signs flipped: this network is not lazy. {better} is nearer to "
            "the prediction."
        )


def _kernel_outputs(
    T: np.ndarray,
    X: np.ndarray,
    found: AbstractSpectrum,
    labels: np.ndarray,
    options: dict[str, Any],
    activation: Any,
    layers: str,
) -> np.ndarray:
    """Outputs of the infinitely wide network at other inputs T, one column for each column of labels."""
    coefficients = found.coefficients(labels, options["steps"], options["eta"])
    block = max(1, HELD // len(X))
    kernel: dict[str, Any] = {"layers": layers, "kappa": options["kappa"] or 1.0}
    parts = [gram(T[i : i + block], activation, **kernel, others=X) @ coefficients for i in range(0, len(T), block)]
    return np.concatenate(parts)


def _test_errors(outputs: np.ndarray, trained: Trained | None, truth: np.ndarray, has_signs: bool) -> HeldOut:
    has_signs = has_signs and _are_signs(truth)

    def errors(u: np.ndarray) -> Errors:
        gap = u - truth
        return Errors(float(np.mean(gap**2)), float(np.mean(np.abs(gap))), _wrong(u, truth) if has_signs else None)

    network = None if trained is None or trained.other_outputs is None else errors(trained.other_outputs)
    return HeldOut(len(truth), errors(outputs), network)


def _sweep(
    X: np.ndarray,
    held: tuple[np.ndarray, np.ndarray],
    shares: list[float],
    labels: list[np.ndarray],
    outputs: np.ndarray,
    found: AbstractSpectrum,
    options: dict[str, Any],
    tell: Tell,
) -> list[Share]:
    """Measure and test error for each share of random labels; ``outputs`` are the kernel's at the test inputs."""
    if not shares:
        return []
    T, truth = held
    measures = [as_measure(form, found.n) for form in found.inverse_forms(np.stack(labels, axis=1))]
    rows = []
    for place, share in enumerate(shares):
        error = None
        if options["width"]:

            def part(fraction: float, before: int = place) -> None:
                tell("networks on random labels", (before + fraction) / len(shares))

            run = train(X, labels[place], others=T, grams=False, progress=part, **options)
            error = _wrong(run.other_outputs, truth)
        rows.append(Share(share, measures[place].value, _wrong(outputs[:, place], truth), error))
    return rows


def _wrong(outputs: Any, truth: np.ndarray) -> float:
    """The share of wrong signs."""
    return float(np.mean(np.sign(outputs) != np.sign(truth)))


def _bound(target: PowerSum, formula: str, y: np.ndarray, found: AbstractSpectrum) -> TargetBound:
    measured = None if found.is_singular else float(np.sqrt(found.inverse_form(y).value))
    return TargetBound(formula, measured, target.bound, target.sharp_bound)
