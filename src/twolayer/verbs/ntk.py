"""The verb for the kernel side of a data set: what it predicts, and what a network does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.fields import array, choice, count, instance, number
from twolayer.data.samples import randomise_labels
from twolayer.kernel import (
    AbstractSpectrum,
    FreeSpectrum,
    PowerSum,
    Spectrum,
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
from twolayer.verbs.ntk_result import NTK, Curve, Share, TargetBound

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
        Samples with clean labels on which errors are measured; needed for ``shares``.
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
    has_signs = bool(np.all(np.abs(y) == 1.0))
    if shares and not has_signs:
        raise InvalidInput("Argument `shares` needs labels of plus and minus one: load the samples with `classes`.")
    route, reason = choose_method(choice("method", METHODS)(method), len(X), 3 if width else 2)
    deviation = 1.0 if kappa is None else float(number("kappa", above=0.0)(kappa))
    if width:
        check_memory(len(X), width, precision, has_others=bool(shares), grams=route == "exact")

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
    curves = _curves(labels, X, found, options, tell)
    distances = (None, None)
    if width and curves[0].trained is not None:
        if H is not None:
            grams = (curves[0].trained.initial_gram, curves[0].trained.final_gram)
            distances = tuple(_distance(each, H) for each in grams)
        _remark(curves, notes)
    measured = (
        [] if test is None or not shares else _sweep(X, y, test, shares, found, options, activation, layers, tell)
    )
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
        shares=tuple(measured),
        target=None if target is None else _bound(target, formula, y, found),
        notes=tuple(notes),
    )


def _inputs(samples: Samples, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    X, norms = unit_rows(np.asarray(samples.X))
    if np.max(np.abs(norms - 1.0)) > 1e-6:
        notes.append(f"Inputs were divided by their norms, {np.min(norms):.4g} to {np.max(norms):.4g}.")
    return X, np.asarray(samples.y, dtype=np.float64)


def _curves(
    labels: dict[str, np.ndarray], X: np.ndarray, found: AbstractSpectrum, options: dict[str, Any], tell: Tell
) -> list[Curve]:
    """Prediction, measure and network of each set of labels; what the matrix is asked, it is asked for all at once."""
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

            trained = train(X, y, grams=grams, progress=told, **options)
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


def _sweep(
    X: np.ndarray,
    y: np.ndarray,
    test: Samples,
    shares: list[float],
    found: AbstractSpectrum,
    options: dict[str, Any],
    activation: Any,
    layers: str,
    tell: Tell,
) -> list[Share]:
    """Measure and test error for each share of random labels; the matrix is asked for all of them at once."""
    found.require_inverse()
    T, _ = unit_rows(np.asarray(test.X), "test")
    truth = np.asarray(test.y)
    tell("random labels", 0.0)
    labels = np.stack([randomise_labels(y, share, options["seed"]) for share in shares], axis=1)
    measures = [as_measure(form, found.n) for form in found.inverse_forms(labels)]
    coefficients = found.coefficients(labels, options["steps"], options["eta"])
    block = max(1, HELD // len(X))
    kernel: dict[str, Any] = {"layers": layers, "kappa": options["kappa"] or 1.0}
    parts = [gram(T[i : i + block], activation, **kernel, others=X) @ coefficients for i in range(0, len(T), block)]
    predicted = np.concatenate(parts)
    rows = []
    for place, share in enumerate(shares):
        error = None
        if options["width"]:

            def part(fraction: float, before: int = place) -> None:
                tell("networks on random labels", (before + fraction) / len(shares))

            run = train(X, labels[:, place], others=T, grams=False, progress=part, **options)
            error = _wrong(run.other_outputs, truth)
        rows.append(Share(share, measures[place].value, _wrong(predicted[:, place], truth), error))
    return rows


def _wrong(outputs: Any, truth: np.ndarray) -> float:
    """The share of wrong signs."""
    return float(np.mean(np.sign(outputs) != np.sign(truth)))


def _bound(target: PowerSum, formula: str, y: np.ndarray, found: AbstractSpectrum) -> TargetBound:
    measured = None if found.is_singular else float(np.sqrt(found.inverse_form(y).value))
    return TargetBound(formula, measured, target.bound, target.sharp_bound)
