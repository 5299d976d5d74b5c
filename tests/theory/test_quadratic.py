"""The plateau of quadratic students that are free or train both layers: formulas against other routes."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import twolayer as tl
from tests.verbs.exit_times import error_of, model_error, notes, predicted
from twolayer.core.precision import double
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.plateau import plateau
from twolayer.theory.formulas.quadratic import Escape, QuadraticStudent, student_of

FREE, BOTH, BOTH_FREE = (False, 0.0), (True, 1.0), (False, 1.0)
KINDS = {"free": FREE, "both layers": BOTH, "free, both layers": BOTH_FREE}


def training(rate: float, is_spherical: bool, ratio: float) -> tl.SGD:
    constraint = tl.Sphere() if is_spherical else tl.Free()
    return tl.SGD(rate, constraint=constraint, layers=tl.Both(ratio) if ratio else tl.First())


def problem(p: int, d: int, noise: float = 0.0, **changes) -> tl.Problem:
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d), noise=noise, **changes)


@pytest.mark.parametrize("p", [1, 2, 8])
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_on_the_sphere_with_a_fixed_second_layer_they_are_the_known_ones(p, noise):
    student = QuadraticStudent(p, noise, True, 0.0)
    rate = 0.3 * student.optimal_learning_rate
    rest, escape = student.rest(rate), Escape(student, rate, 0.1)
    assert student.optimal_learning_rate == pytest.approx(phase_retrieval.optimal_learning_rate(p, noise))
    assert student.maximal_learning_rate == pytest.approx(phase_retrieval.maximal_learning_rate(p, noise))
    assert rest.growth_rate == pytest.approx(phase_retrieval.growth_rate(p, rate, noise))
    assert rest.diffusion == pytest.approx(phase_retrieval.noise_strength(p, noise) * rate / p)
    assert escape.noise_shift == pytest.approx(phase_retrieval.noise_shift(p, rate, noise), rel=1e-6)
    if p == 1:  # exit by overlap and by risk are the same
        known = phase_retrieval.quenched_time(1, 1000, rate, noise, 0.1).value
        assert escape.mean_time(1000).value == pytest.approx(known, rel=1e-5)
        assert escape.annealed_time(1000) == pytest.approx(
            phase_retrieval.annealed_time(1, 1000, rate, noise, 0.1), rel=1e-5
        )


@pytest.mark.parametrize(
    ("p", "kind"),
    [(3, "both layers"), *(pytest.param(p, "free", marks=pytest.mark.slow) for p in (1, 3))],
)
def test_the_plateau_is_the_one_at_which_the_drift_of_all_overlaps_rests(p, kind):
    """Relaxed numerically at M = 0 and differentiated, for the rates and for the search of the best."""
    student = QuadraticStudent(p, 0.3, *KINDS[kind])
    with double():
        best = plateau(problem(p, 1000, 0.3), None, *KINDS[kind])
        given = plateau(problem(p, 1000, 0.3), 0.1, *KINDS[kind])
    assert best.learning_rate == pytest.approx(student.optimal_learning_rate, rel=1e-4)
    assert best.maximal_learning_rate == pytest.approx(student.maximal_learning_rate, rel=1e-5)
    assert given.growth_rate == pytest.approx(student.rest(0.1).growth_rate, rel=1e-5)


def test_free_rows_with_both_layers_trained_come_to_no_rest():
    student = QuadraticStudent(2, 0.0, *BOTH_FREE)
    assert student.rest(0.1) is None and student.optimal_learning_rate is None
    with double():
        assert plateau(problem(2, 1000), None, *BOTH_FREE).exponent is None
    escape = Escape(student, 0.3, 0.1)
    late = escape.times(np.exp([-40.0, -80.0])) ** 0.5  # L grows as the root of the time, so that t is its square
    early = escape.times(np.exp([-10.0, -20.0])) ** 0.5
    assert late[1] / late[0] == pytest.approx(2.0, abs=0.1) and late[1] / late[0] > early[1] / early[0]


@pytest.mark.parametrize("p", [1, 2, 16])
@pytest.mark.parametrize("kind", [FREE, BOTH], ids=["free", "both layers"])
def test_the_optimal_rate_is_the_best_of_all_rates(p, kind):
    student = QuadraticStudent(p, 0.5, *kind)
    rates = student.maximal_learning_rate * np.linspace(0.001, 0.999, 999)
    product = [rate * student.rest(rate).growth_rate for rate in rates]
    assert rates[np.argmax(product)] == pytest.approx(student.optimal_learning_rate, rel=2e-3)
    assert min(product) > 0.0
    beyond = student.rest(1.001 * student.maximal_learning_rate)
    assert beyond is None or beyond.growth_rate < 0.0


def test_one_free_neuron_in_closed_form():
    """Without label noise: q = (1 + 2 sqrt 2) / 7, in 1 + 1 / sqrt 2 of d log d / sqrt 2 steps; two thirds fewer."""
    student = QuadraticStudent(1, 0.0, *FREE)
    rate = student.optimal_learning_rate
    rest = student.rest(rate)
    assert rest.q == pytest.approx((1.0 + 2.0 * np.sqrt(2.0)) / 7.0)
    assert 1.0 / (rate * rest.growth_rate) == pytest.approx(0.5 + 0.5 * np.sqrt(2.0))
    assert student.maximal_learning_rate == pytest.approx(1.0 / 6.0)
    assert QuadraticStudent(1, 1.5, *FREE).maximal_learning_rate == pytest.approx(2.0 / 13.5)


def test_the_noise_is_that_of_the_increments():
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    q, a, noise, rate = 0.6, 1.4, 0.3, 0.2
    unit, target = np.sqrt(q) * nodes[:, None], nodes[None, :]
    square = ((target**2 - a * unit**2) ** 2 + noise) * unit**2 * target**2
    expected = 4.0 * a**2 * (weights[:, None] * weights[None, :] * square).sum() * rate / q
    assert QuadraticStudent(1, noise, *FREE).diffusion(q, a, rate) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["free", pytest.param("both layers", marks=pytest.mark.slow), "free, both layers"])
def test_the_ode_leaves_in_the_time_of_the_formula_where_overlaps_stay_small(kind):
    m = np.array([[1e-6], [2e-6]])
    given = problem(2, 10**6, 0.2, start=tl.GivenOverlaps(np.eye(2), m))
    result = tl.exit_time(given, training(0.25, *KINDS[kind]), threshold=1e-6, replicas=0)
    escape = Escape(QuadraticStudent(2, 0.2, *KINDS[kind]), 0.25, 1e-6)
    assert predicted(result, "ode") == pytest.approx(float(escape.times(4e-12)), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rate"), [("both layers", 0.6), ("free", 0.25)])
def test_runs_leave_when_the_ode_with_noise_says(kind, rate):
    replicas = 1024 if kind == "free" else 256  # its shift by noise is smaller
    result = tl.exit_time(problem(2, 3000), training(rate, *KINDS[kind]), replicas=replicas, starts=32, seed=3)
    mean, error = float(result.measured_mean), float(result.measured_mean_error)
    known = error_of(result, "ode_at_finite_d") + model_error(result, "ode_at_finite_d")
    assert abs(mean - predicted(result, "ode_at_finite_d")) < 5 * error + known and known < 0.06
    assert mean + 5 * error < predicted(result, "ode") and result.attrs["outcome"] in ("agrees", "finite-d effect")
    assert float(result.growth_rate) == pytest.approx(QuadraticStudent(2, 0.0, *KINDS[kind]).rest(rate).growth_rate)
    assert any("rows relax to a squared length" in note for note in notes(result))


def fewest_steps(student: QuadraticStudent, d: int, threshold: float) -> tuple[float, float]:
    """The learning rate at which the annealed exit, with noise, takes the fewest steps in d dimensions, and steps / d.

    It is `QuadraticStudent.optimal_learning_rate` up to corrections of order 1 / log d, which are large where the
    motion to the plateau takes long, and exists also where there is no plateau.
    """

    def steps(log_rate: float) -> float:
        rate = float(np.exp(log_rate))
        return student.p * Escape(student, rate, threshold).annealed_time(d, is_noisy=True) / rate

    top = student.maximal_learning_rate or 4.0 * student.p
    # A grid first: beyond some rate the time is infinite, which a search from there cannot leave.
    grid = np.log(top) + np.linspace(-5.0, -1e-3, 41)
    values = [steps(x) for x in grid]
    best = int(np.argmin(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    optimum: Any = minimize_scalar(steps, bounds=around, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(optimum.x)), float(optimum.fun)


@pytest.mark.slow
def test_the_rate_of_the_fewest_steps_tends_to_the_optimal_one():
    student = QuadraticStudent(2, 0.0, *FREE)
    near, far = (fewest_steps(student, d, 1e-3)[0] / student.optimal_learning_rate - 1.0 for d in (10**5, 10**12))
    assert abs(far) < 0.4 * abs(near)  # of the order of 1 / log(T d), here 1 / 4.6 and 1 / 20.7


def test_they_are_about_phase_retrieval_and_plain_sgd_alone():
    assert student_of(problem(2, 1000), training(0.1, *BOTH)) == QuadraticStudent(2, 0.0, *BOTH)
    assert student_of(problem(2, 1000), tl.SGD(0.1, weight_decay=0.1)) is None
    assert student_of(problem(2, 1000), tl.SGD(0.1, momentum=0.5)) is None
    assert student_of(problem(2, 1000), tl.SGD(0.1, layers=tl.Second())) is None
    other = tl.Problem(tl.SingleIndex("tanh"), tl.Student(2, "square"), tl.Gaussian(1000))
    assert student_of(other, tl.SGD(0.1)) is None
