"""The equations of sign descent: their averages against a closed form, their solution against SGD on the weights."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import twolayer as tl
from twolayer.expectation import Auto
from twolayer.expectation.again import choose_forces


def test_a_linear_neuron_has_a_closed_equation():
    r"""With :math:`\tau^2 = 1 - 2 M + Q + \Delta` it is :math:`\dot M = c^2 (1 - M)/\tau`, since all fields are normal.

    Here :math:`c^2 = 2/\pi`, and :math:`\dot Q = 2 c^2 (M - Q)/\tau + \gamma`.
    """
    rate, noise, span = 0.3, 0.2, 0.8
    start = tl.GivenOverlaps([[0.5]], [[0.1]])
    problem = tl.Problem(tl.MultiIndex("z1", k=1), tl.Student(1, "linear"), tl.Gaussian(1000), start, noise=noise)
    result = tl.evolve(problem, tl.SGD(rate, method=tl.SignDescent()), tl.SaadSolla(), until=span, save=5)

    def velocity(_, state):
        M, Q = state
        push = 2.0 / np.pi / np.sqrt(1.0 - 2.0 * M + Q + noise)
        return [push * (1.0 - M), 2.0 * push * (M - Q) + rate]

    exact = solve_ivp(velocity, (0.0, span), [0.1, 0.5], t_eval=result.time.values, rtol=1e-10, atol=1e-12).y
    error = result.overlap_error.values[0]
    assert np.all(error[1:] < 5e-3)  # the scatter of eight nets of 8192 points, times Student's quantile
    assert np.all(np.abs(result.M.values[0, :, 0, 0] - exact[0]) <= error + 1e-12)
    assert np.all(np.abs(result.Q.values[0, :, 0, 0] - exact[1]) <= error + 1e-12)
    assert exact[0, -1] - exact[0, 0] > 0.3


def two_units(d: int, activation: str, noise: float = 0.1) -> tl.Problem:
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3], [0.1]])
    student = tl.Student(2, activation, [1.0, -0.7])
    return tl.Problem(tl.MultiIndex("z1 + 0.3*z1**2", k=1), student, tl.Gaussian(d), start, noise=noise)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("erf", {"layers": tl.Both(0.5), "weight_decay": 0.1}),
        ("erf", {"layers": tl.Both(1.0), "constraint": tl.Sphere(riemannian=True)}),
    ],
)
def test_runs_follow_the_equations(activation, options, check_mean):
    """The mean of runs is off by order 1/d, here below the standard error of 60 runs."""
    problem = two_units(300, activation)
    training = tl.SGD(0.3, method=tl.SignDescent(), **options)
    runs, ode = (
        tl.evolve(problem, training, description, until=0.6, save=3, replicas=replicas)
        for description, replicas in ((tl.DirectSGD(), 60), (tl.SaadSolla(), 1))
    )
    check_mean(runs.M[:, -1].values, ode.M[0, -1].values)
    check_mean(runs.Q[:, -1, 0, 1].values, ode.Q[0, -1, 0, 1].values)
    check_mean(runs.a[:, -1].values, ode.a[0, -1].values)
    assert np.max(np.abs(ode.M[0, -1].values - ode.M[0, 0].values)) > 0.1


def test_all_clouds_make_the_value():
    """The pairs of fields of the risk have variants that only judge the first one; clouds are averaged over."""
    problem = tl.Problem(tl.Committee(2, "relu"), tl.Student(3, "gelu"), tl.Gaussian(300))
    chosen = choose_forces(Auto(), problem, tl.SGD(0.3, method=tl.SignDescent()))
    assert Auto().choose(problem, ("excess_risk",)).judges_first and not chosen.judges_first


def test_other_theories_say_what_covers_signs():
    training = tl.SGD(0.3, method=tl.SignDescent())
    linear = tl.Problem(tl.MultiIndex("z1", k=1), tl.Student(1, "linear"), tl.Gaussian(100))
    with pytest.raises(tl.NotApplicable, match="averages of signs `SaadSolla` takes over clouds"):
        tl.derive(linear, training)
    assert "`SaadSolla` covers on single samples" in tl.BatchMap().applies(linear, training).statement


@pytest.mark.slow
def test_signs_are_averaged_in_explain():
    explained = tl.explain(two_units(200, "erf"), tl.SGD(0.3, method=tl.SignDescent()))
    assert "signs of the gradient" in str(explained)
