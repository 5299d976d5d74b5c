"""The verb for lazy training on a data set: what the kernel predicts, and what networks do."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from twolayer.analyses.lazy.former import takes_samples
from twolayer.analyses.lazy.lazy_ask import LazySpec, NTKAsk, NTKFields
from twolayer.analyses.lazy.lazy_result import label_result
from twolayer.analyses.lazy.networks import HeldOut, Networks, along_shares, are_signs, distance, kernel_outputs
from twolayer.analyses.lazy.setting import KernelSetting, as_lazy_training, check_rate, read_setting
from twolayer.analyses.lazy.theorem_conditions import theorem_values
from twolayer.analyses.lazy.verdict import judge_networks
from twolayer.analyses.quantity import AbstractQuantity
from twolayer.ask import Training
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.data.deviation import Finding
from twolayer.data.samples import randomise_labels
from twolayer.kernel import (
    AbstractSpectrum,
    FreeSpectrum,
    Spectrum,
    Trained,
    decompose,
    explain_singular,
    free_spectrum,
)
from twolayer.kernel.device import chosen_devices
from twolayer.kernel.eigen import choose_method
from twolayer.kernel.matrices import gram_with_error, unit_rows
from twolayer.kernel.spectra import ResidualPrediction, as_measure
from twolayer.kernel.training import check_memory
from twolayer.problem import Problem
from twolayer.training import SGD, First
from twolayer.training.sgd import AbstractLayers
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client


class Data(NamedTuple):
    """Inputs of unit norm and labels, test samples, and the bounds of the target that gives the labels."""

    X: np.ndarray
    y: np.ndarray
    test: HeldOut | None
    bound: dict[str, float] | None


class Curve(NamedTuple):
    """What the kernel predicts of one set of labels: its name, the residuals and the complexity measure."""

    labels: str
    y: np.ndarray
    prediction: ResidualPrediction
    projections: np.ndarray | None
    complexity: Any


class LazyPrediction(NamedTuple):
    """What the kernel predicts, and how networks are trained beside it."""

    data: Data
    spectrum: Spectrum | FreeSpectrum
    gram: np.ndarray | None  # where it is needed again
    networks: Networks
    curves: list[Curve]
    route: dict[str, str]  # the method, and the reason for it
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Residuals(AbstractQuantity[LazyPrediction, list[list[Trained]]]):
    r"""The norm of the residual :math:`\|y - u\|` of a lazy network at every step, for every set of labels."""

    asked: NTKAsk
    client: "Client | None" = None
    progress: Progress = nobody

    def predict(self, problem: Problem, training: Training | AbstractLayers) -> LazyPrediction:
        """Predict the residuals of infinitely wide networks from the spectrum of the Gram matrix."""
        asked, tell = self.asked, self.progress
        setting = read_setting(problem, as_lazy_training(training))
        replicas = int(setting.has_network) if asked.replicas is None else asked.replicas
        if replicas and not setting.has_network:
            raise InvalidInput(
                f"Argument `replicas` must be 0 unless the first layer of relu units is trained, but is {replicas}."
            )
        chosen_devices(asked.devices)  # refuses more than there are, whatever the route
        notes: list[str] = []
        data = _read_data(problem, asked, notes)
        if self.client is not None and asked.method == "exact":
            raise InvalidInput('Argument `client` is for `method="free"`, whose products are divided among workers.')
        route, reason = choose_method(asked.method, len(data.X), 3 if replicas else 2)
        if self.client is not None:
            route, reason = "free", "on the workers of a client"
        if replicas:
            has_others = data.test is not None
            check_memory(len(data.X), setting.width, asked.precision, has_others=has_others, grams=route == "exact")
        spectrum, gram = _spectrum(data.X, setting, asked, route, self.client, keeps_matrix=replicas > 0, tell=tell)
        eta = check_rate(setting.eta, spectrum.largest_step, problem.d)
        if spectrum.is_singular:
            notes.append(
                f"The Gram matrix is singular as far as numbers can tell (lambda_min = {spectrum.lambda_min:.2g}): "
                f"there is no complexity measure without a ridge. {explain_singular(data.X, data.y)}"
            )
        networks = Networks(data.X, setting, eta, asked.steps, replicas, asked.seed, asked.precision)
        curves = _curves(data, spectrum, networks, asked, tell)
        return LazyPrediction(data, spectrum, gram, networks, curves, {"method": route, "reason": reason}, tuple(notes))

    def measure(
        self, problem: Problem, training: Training | AbstractLayers, predicted: LazyPrediction | None = None
    ) -> list[list[Trained]]:
        """Train networks of finite width on each set of labels; those of the given labels are tested as well."""
        predicted = self.predict(problem, training) if predicted is None else predicted
        networks, data = predicted.networks, predicted.data
        has_all_eigenvalues = isinstance(predicted.spectrum, Spectrum)
        return [
            networks.train(
                curve.y,
                f"network of {networks.setting.width} units, {curve.labels} labels",
                self.progress,
                others=data.test.T if place == 0 and data.test is not None else None,
                grams=place == 0 and has_all_eigenvalues,
            )
            for place, curve in enumerate(predicted.curves)
        ]

    def judge(self, predicted: LazyPrediction, measured: list[list[Trained]]) -> Finding:
        """Compare the mean over networks with the prediction, at all steps and for all labels."""
        curves, n = predicted.curves, predicted.spectrum.n
        measures = [np.nan if curve.complexity is None else curve.complexity.value for curve in curves]
        return judge_networks(
            np.stack([curve.prediction.residuals for curve in curves]),
            np.stack([curve.prediction.error for curve in curves]),
            np.stack([[run.residuals for run in runs] for runs in measured], axis=1),
            [curve.labels for curve in curves],
            predicted.networks.setting.width,
            np.sqrt(0.5 * n) * np.asarray(measures),  # sqrt(y H^-1 y)
        )


@takes_samples
@takes_these
@shows_progress
def ntk(
    problem: Problem,
    training: SGD | AbstractLayers | str = First(),
    ask: NTKAsk | None = None,
    *,
    progress: Progress | bool | None = None,
    client: "Client | None" = None,
    **fields: Unpack[NTKFields],
) -> "xr.Dataset":
    r"""Predict lazy training on a data set by its kernel, and train networks beside: spectrum, losses, measure, bounds.

    Parameters
    ----------
    problem
        A data set, ``Problem(target=Labels(), inputs=Samples(X, y), student=Student(p, "relu"), start=...)``. Inputs
        are divided by their norms. The student's output weights are taken as signs times :math:`\sqrt p`, the scale of
        lazy training. The start is `AntisymmetricStart`, from which outputs begin at exactly zero, or `RandomStart`.
    training
        ``SGD(learning_rate, layers=...)`` on all samples at each step, with the step size
        :math:`\eta = \mathrm{learning\_rate} / d`; or the layers alone, `First`, `Second` or `Both`, at the step size
        :math:`1/\lambda_{\max}`. At :math:`2/\lambda_{\max}` and beyond gradient descent diverges, and is refused.
    ask
        What is asked: steps, networks, test samples, shares of random labels. Its fields may be given as keywords
        instead, as in ``ntk(..., steps=200, replicas=4)``; see `NTKAsk`.
    progress
        Called with the name of what is done, and the fraction of it. Without one a bar appears within two seconds on a
        terminal and in a notebook; False silences it.
    client
        A client of Dask, among whose workers the Gram matrix is divided; its method is then the matrix-free one.

    Returns
    -------
    A dataset of the kind "lazy_training": eigenvalues, projections of the labels, predicted residual norms with errors,
    those of the trained networks, the complexity measure, test errors, bounds, and the verdict on the prediction.
    `twolayer.summary` prints it, `twolayer.save` keeps it.

    References
    ----------
    :cite:t:`arora2019`.
    """
    asked = NTKAsk.of(ask, fields)
    spec = LazySpec(problem, as_lazy_training(training), asked)
    quantity = Residuals(asked, client, progress if callable(progress) else nobody)
    predicted = quantity.predict(problem, spec.training)
    networks, spectrum, data = predicted.networks, predicted.spectrum, predicted.data
    notes = list(predicted.notes)
    trained = quantity.measure(problem, spec.training, predicted)
    values = _compared(trained[0], predicted.gram, networks.setting, notes)
    values |= _tested(data, spectrum, networks, trained[0], asked, quantity.progress)
    if data.bound is not None:
        form = np.nan if spectrum.is_singular else float(np.sqrt(spectrum.inverse_form(data.y).value))
        values |= data.bound | {"target_form": form}
    given = predicted.curves[0]
    measured = values | {"trained": trained[0], "predicted": given.prediction.residuals}
    measured["complexity"] = np.nan if given.complexity is None else given.complexity.value
    values |= theorem_values(data.y, spectrum, networks, asked, measured)
    if given.complexity is not None and given.complexity.value > 1.0:
        notes.append(
            f"The measure is {given.complexity.value:.3g}, above 1, where it bounds nothing by itself: a loss is at "
            "most 1. It follows a trend, and is compared between labels."
        )
    finding = quantity.judge(predicted, trained) if networks.replicas else None
    return label_result(spec, predicted, trained, finding, values, notes)


def _read_data(problem: Problem, asked: NTKAsk, notes: list[str]) -> Data:
    samples: Any = problem.inputs
    X, norms = unit_rows(np.asarray(samples.X))
    if np.max(np.abs(norms - 1.0)) > 1e-6:
        notes.append(f"Inputs were divided by their norms, {np.min(norms):.4g} to {np.max(norms):.4g}.")
    target = asked.target_in(X.shape[1])
    y = np.asarray(samples.y, dtype=np.float64) if target is None else target(X)
    bound = None if target is None else {"target_bound": target.bound, "target_sharp_bound": target.sharp_bound}
    if asked.test is None:
        return Data(X, y, None, bound)
    T, _ = unit_rows(np.asarray(asked.test.X), "test")
    if T.shape[1] != X.shape[1]:
        raise InvalidInput(
            f"Argument `test` must have inputs of {X.shape[1]} dimensions as the problem, but has {T.shape[1]}."
        )
    truth = np.asarray(asked.test.y, dtype=np.float64) if target is None else target(T)
    return Data(X, y, HeldOut(T, truth, are_signs(y) and are_signs(truth)), bound)


def _spectrum(
    X: np.ndarray,
    setting: KernelSetting,
    asked: NTKAsk,
    route: str,
    client: "Client | None",
    *,
    keeps_matrix: bool,
    tell: Progress,
) -> tuple[Spectrum | FreeSpectrum, np.ndarray | None]:
    """The spectrum by either route; the Gram matrix too where it is needed again."""
    ridge = float(asked.ridge)
    if route == "exact":
        tell("Gram matrix", 0.0)
        H, error = gram_with_error(X, setting.activation, setting.layers, setting.kappa)
        tell("spectrum", 0.0)
        return decompose(H, ridge, overwrite=not keeps_matrix, error=error), H if keeps_matrix else None
    kernel: dict[str, Any] = {"layers": setting.layers, "kappa": setting.kappa, "ridge": ridge}
    options: dict[str, Any] = {"precision": asked.precision, "devices": asked.devices, "seed": asked.seed}
    options["client"] = client
    return free_spectrum(X, setting.activation, **kernel, **options, progress=tell), None


def _curves(
    data: Data, spectrum: Spectrum | FreeSpectrum, networks: Networks, asked: NTKAsk, tell: Progress
) -> list[Curve]:
    """Prediction and measure of each set of labels; what the matrix is asked, it is asked for all at once."""
    labels = {"given": data.y}
    if asked.random_labels and are_signs(data.y):
        labels["random"] = randomise_labels(data.y, 1.0, asked.seed)
    tell("prediction", 0.0)
    Y = np.stack(list(labels.values()), axis=1)
    predictions = spectrum.predictions(Y, networks.steps, networks.eta)
    forms = [None] * Y.shape[1] if spectrum.is_singular else spectrum.inverse_forms(Y)
    curves = []
    for (kind, y), prediction, form in zip(labels.items(), predictions, forms, strict=True):
        projections = spectrum.projections(y) if isinstance(spectrum, Spectrum) else None
        complexity = None if form is None else as_measure(form, spectrum.n)
        curves.append(Curve(kind, y, prediction, projections, complexity))
    return curves


def _compared(trained: list[Trained], H: np.ndarray | None, setting: KernelSetting, notes: list[str]) -> dict[str, Any]:
    """Distances of the networks' Gram matrices from the limit; a note where signs flip."""
    if not trained:
        return {}
    flipped = float(np.mean([run.flip_share for run in trained]))
    if flipped > 0.1:
        better = "A larger width" + ("" if setting.start == "antisymmetric" else ", or the antisymmetric start,")
        notes.append(
            f"{100.0 * flipped:.0f}% of the signs flipped: this network is not lazy. {better} is nearer to the "
            "prediction."
        )
    if H is None:
        return {}
    return {
        name: [distance(getattr(run, gram), H) for run in trained]
        for name, gram in (("initial_gram_distance", "initial_gram"), ("final_gram_distance", "final_gram"))
    }


def _tested(
    data: Data, spectrum: AbstractSpectrum, networks: Networks, trained: list[Trained], asked: NTKAsk, tell: Progress
) -> dict[str, Any]:
    """Errors on the test samples, and along the shares of random labels."""
    if data.test is None:
        return {}
    if asked.shares:
        spectrum.require_inverse()
    mixed = [randomise_labels(data.y, share, asked.seed) for share in asked.shares]
    tell("test samples", 0.0)
    outputs = kernel_outputs(data.test.T, networks, spectrum, np.stack([data.y, *mixed], axis=1))
    values: dict[str, Any] = {}
    values["kernel_test_error"], values["kernel_test_deviation"] = data.test.errors(outputs[:, 0])
    if trained:
        errors = np.stack([data.test.errors(np.asarray(run.other_outputs)) for run in trained], axis=1)
        values["network_test_error"], values["network_test_deviation"] = errors
    if mixed:
        values |= along_shares(networks, data.test, tuple(asked.shares), mixed, data.y, outputs[:, 1:], spectrum, tell)
    return values
