"""Losses that are not quadratic: theories against simulations, and the simulations against each other."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl

SHIFT = 6.0  # times the scatter of one run, squared: the shift of the mean at order 1/d that a limit is allowed


def problem(loss: object, p: int, k: int, d: int, activation: str = "erf", seed: int = 0) -> tl.Problem:
    """A random start, the same for every d, of labels that fit the loss."""
    random = np.random.default_rng(seed)
    W = random.standard_normal((p, 8)) * 0.35
    start = tl.GivenOverlaps(W @ W.T + 0.05 * np.eye(p), W[:, :k])
    is_real = isinstance(loss, tl.Huber) or loss == "correlation" or callable(loss)
    formula = {1: "z1 + he2(z1)", 2: "z1 + z1*z2"} if is_real else {1: "sign(z1 - 0.2)", 2: "sign(z1 + 0.5*z2)"}
    student = tl.Student(p, activation, random.choice([-1.0, 1.0], p) * random.uniform(1.0, 2.0, p) * p**0.5)
    noise = 0.2 if is_real else tl.Flips(0.1)
    return tl.Problem(tl.MultiIndex(formula[k]), student, tl.Gaussian(d), start=start, loss=loss, noise=noise)


def rows(setting: tl.Problem, training: tl.SGD, description: object, until: float, replicas: int = 1) -> dict:
    """Overlaps, output weights and what is said of predictions at the end, for each replica, and the error."""
    result = tl.evolve(setting, training, description, until=until, save=[until], replicas=replicas)
    names = ("M", "Q", "a", "risk", "square_error", "classification_error")
    found = {name: result[name].values[:, -1] for name in names if name in result}
    bounds = {name: result[f"{name}_bound"].values.max() for name in names[4:] if name in result}
    return found | {
        "error": {"risk": result.risk_error.values.max()} | bounds,
        "other": result.overlap_error.values.max(),
    }


def near(runs: dict, theory: dict, label: str) -> None:
    """Means within four standard errors, the errors that are reported, and a shift of order 1/d."""
    for name in ("M", "Q", "a", "risk", "square_error", "classification_error"):
        if name not in runs:
            continue
        sample, expected = runs[name], theory[name][0]
        scatter = sample.std(axis=0, ddof=1)
        allowed = 4.0 * scatter / np.sqrt(len(sample)) + SHIFT * scatter**2 + 1e-9
        allowed = allowed + theory["error"].get(name, theory["other"]) + runs["error"].get(name, 0.0)
        off = np.abs(sample.mean(axis=0) - expected)
        assert np.all(off < allowed), f"{label}, {name}: off {off} of {allowed}"


def no_risk(chosen: object, setting: tl.Problem, Q: np.ndarray, *others: object) -> tuple[np.ndarray, np.ndarray]:
    """In place of the risk along trajectories: zero, and no error."""
    return np.zeros(Q.shape[:2]), np.zeros(Q.shape[:2])


LOSSES = {
    "logistic": "logistic",
    "hinge": "hinge",
    "huber": tl.Huber(0.8),
    "own": lambda y, s: jnp.log(jnp.cosh(y - s)),
}
CASES = list(itertools.product(("logistic", "hinge", "huber", "correlation"), ("free", "sphere"), ("first", "both")))
FEW = {("logistic", "sphere", "both", "relu"), ("hinge", "free", "both", "erf")}
RATES = {"erf": 1.0, "relu": 1.0, "square": 0.2}  # squares are steep


@pytest.mark.parametrize(
    ("name", "constraint", "layers", "activation"),
    [
        pytest.param(*case, activation, marks=pytest.mark.slow if (*case, activation) in FEW else pytest.mark.long)
        for case, activation in itertools.product(CASES, RATES)
    ],
)
def test_the_ode_is_followed(name, constraint, layers, activation):
    """Every loss with every activation, on the weights at d = 300, 100 runs; widths and directions vary."""
    number = CASES.index((name, constraint, layers))
    setting = problem(LOSSES.get(name, name), 1 + number % 3, 1 + number % 2, 300, activation, seed=number)
    rate = RATES[activation]
    training = tl.SGD(rate, constraint=constraint, layers=tl.Both(0.7) if layers == "both" else tl.First())
    theory = rows(setting, training, tl.SaadSolla(), rate)
    runs = rows(setting, training, tl.DirectSGD(), rate, 100)
    near(runs, theory, f"{name}, {constraint}, {layers}, {activation}")


@pytest.mark.slow
def test_the_ode_of_a_loss_of_ones_own():
    setting, training = problem(LOSSES["own"], 2, 1, 300), tl.SGD(1.0, layers=tl.Both(0.7))
    near(rows(setting, training, tl.OverlapSGD(), 1.0, 200), rows(setting, training, tl.SaadSolla(), 1.0), "own")


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_both_simulations_have_one_law(name, check_same_law, monkeypatch):
    """Twelve steps at d = 12 on the weights and by the overlaps, 3000 runs each.

    What is said of predictions is left out: it is a function of the overlaps, whose law is compared, and costs a
    quadrature for each of the 6000 states.
    """
    for module in ("simulation.direct", "simulation.overlap_sgd", "verbs.predictions"):
        monkeypatch.setattr(f"twolayer.{module}.risk_along", no_risk)
    setting, training = problem(LOSSES[name], 2, 1, 12, seed=3), tl.SGD(2.0, layers=tl.Both(0.7))
    until = float(training.clock(setting).time(12))
    first, second = (rows(setting, training, x, until, 3000) for x in (tl.DirectSGD(), tl.OverlapSGD()))
    for entry in ("M", "Q", "a"):
        check_same_law(first[entry], second[entry], f"{name}, {entry}")


@pytest.mark.parametrize("name", ["logistic", "huber"])
def test_native_steps_are_those_of_xla(name):
    """The same numbers by both backends of the overlap process, to rounding."""
    setting, training = problem(LOSSES[name], 2, 1, 30, seed=4), tl.SGD(2.0, layers=tl.Both(0.7))
    first, second = (rows(setting, training, tl.OverlapSGD(backend), 0.5, 4) for backend in ("native", "xla"))
    for entry in ("M", "Q", "a"):
        np.testing.assert_allclose(first[entry], second[entry], rtol=1e-9, atol=1e-10)


@pytest.mark.long
def test_the_gap_to_the_ode_is_of_order_one_over_d():
    """Logistic, p = k = 1 on the sphere, whose averages are a product rule: d times the gap is one number."""
    gaps, errors = [], []
    for d in (40, 160):
        setting, training = problem("logistic", 1, 1, d, seed=5), tl.SGD(3.0, constraint="sphere")
        runs = rows(setting, training, tl.OverlapSGD(), 2.0, 100_000)["M"]
        gaps.append(d * (runs.mean() - rows(setting, training, tl.SaadSolla(), 2.0)["M"].item()))
        errors.append(d * runs.std() / np.sqrt(runs.size))
    assert abs(gaps[0]) > 5 * errors[0]
    assert abs(gaps[0] - gaps[1]) < 4 * np.hypot(*errors) + 0.2 * abs(gaps[0])  # the next order at d = 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "huber"])
def test_giant_steps(name):
    """Three steps of 2 d samples at d = 300: the map for fresh ones, the theory of reused samples for the same ones."""
    setting = problem(LOSSES[name], 2, 1, 300, seed=6)
    for training, theory, simulation in (
        (tl.SGD(1.0, batch_size=600, layers=tl.Both(0.7)), tl.BatchMap(), tl.OverlapSGD()),
        (tl.SGD(1.0, reuse=tl.Reused(2.0), layers=tl.Both(0.7)), tl.DMFT(samples=2**15), tl.DirectSGD()),
    ):
        until = float(training.clock(setting).time(3))
        near(rows(setting, training, simulation, until, 48), rows(setting, training, theory, until), str(theory))


def test_what_is_reported():
    """Classification error where labels are signs, square error where it is not the risk; risk minus excess risk."""
    training, description = tl.SGD(1.0), tl.OverlapSGD()
    for loss, extra, floor in (
        ("logistic", {"classification_error", "square_error"}, -0.1 * np.log(0.1) - 0.9 * np.log(0.9)),
        ("square", {"classification_error"}, 2 * 0.1 * 0.9),
    ):
        setting = problem(loss, 1, 1, 50)
        result = tl.evolve(setting, training, description, until=0.1, save=2, replicas=2)
        names = {"classification_error", "square_error"} & set(result)
        assert names == extra
        np.testing.assert_allclose(result.risk - result.excess_risk, floor, rtol=1e-12)
        for name in extra:
            assert result[name].attrs["units"] == "1" and result[name].attrs["long_name"]
            assert np.all(result[f"{name}_bound"] < 5e-3)
    assert np.all(result.classification_error < 1.0) and np.all(result.classification_error > 0.0)
