"""What a student sees, and when it leaves the plateau."""

import numpy as np
import pytest

import twolayer as tl
from twolayer.analyses.learnable.learn import Asked, analysed
from twolayer.core.precision import double
from twolayer.learnability.scaling import online_exponent, scalings
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.plateau import plateau


def seen(target, activation):
    """The analysis of a target for a student of one unit."""
    return tl.learnability.analyse(target, student=tl.Student(1, activation))


def test_an_odd_student_does_not_see_an_even_target():
    blind = seen("he2(z1) + z1*z2", "erf")
    assert blind.seen.staircase.stages == () and "sees nothing" in str(blind)
    assert seen("he2(z1)", "relu").seen.staircase.exponent == 2


def test_relu_misses_odd_orders_from_three_on():
    found = seen("z1 + he3(z2)", "relu")
    assert found.leap == 3 and found.seen.orders == (1, 2) and len(found.seen.staircase.unseen) == 1
    assert seen("z1 + z1*z2 + he3(z1)*he2(z3)", "he3").seen.staircase.stages == ()


def test_output_weights_of_the_wrong_sign_push_away():
    assert seen("he2(z1)", "square").seen.right_sign == 1.0
    assert seen("-he2(z1)", "square").seen.right_sign == 0.0
    assert tl.learnability.analyse("-he2(z1)", student=tl.Student(4, "square", "rademacher")).seen.right_sign == 0.5
    assert seen("z1**2 - z2**2", "square").seen.right_sign == 1.0
    assert seen("-he3(z1)", "he3").seen.right_sign == 1.0


@pytest.mark.parametrize("p", [1, 3])
def test_the_plateau_of_phase_retrieval_is_the_known_one(p):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(1000), noise=0.3)
    with double():
        found = plateau(problem)
        given = plateau(problem, 0.02)
    assert found.exponent == 2
    assert found.learning_rate == pytest.approx(phase_retrieval.optimal_learning_rate(p, 0.3), rel=1e-6)
    assert found.maximal_learning_rate == pytest.approx(phase_retrieval.maximal_learning_rate(p, 0.3), rel=1e-9)
    assert found.growth_rate == pytest.approx(phase_retrieval.growth_rate(p, found.learning_rate, 0.3), rel=1e-9)
    assert given.growth_rate == pytest.approx(phase_retrieval.growth_rate(p, 0.02, 0.3), rel=1e-9)


@pytest.mark.long
def test_exponent_one_leaves_at_the_speed_of_the_first_tensor():
    target = tl.Committee(1, "erf")
    found = analysed(Asked(target, tl.Student(1, "erf"), d=500))
    # a sigma_1 C_1 with sigma_1 = C_1 = 1/sqrt(pi)
    assert found.plateau.exponent == 1 and found.plateau.speed == pytest.approx(1 / np.pi, rel=1e-6)
    start = tl.GivenOverlaps(np.eye(1), np.zeros((1, 1)))
    ode = tl.evolve(
        tl.Problem(target, tl.Student(1, "erf"), tl.Gaussian(500), start),
        tl.SGD(found.plateau.learning_rate, constraint=tl.Sphere()),
        tl.SaadSolla(),
        until=3 * found.plateau.time,
        overlap_threshold=0.5,
    )
    # linearised against the full ODE: the same time up to the curvature of the sphere
    assert float(ode.overlap_time.values[0, 0]) == pytest.approx(found.plateau.time, rel=0.35)
    assert "overlap 1/2 after time" in str(found)


def test_known_exponents_of_the_protocols():
    assert [online_exponent(leap) for leap in (1, 2, 3, 4)] == [(1.0, False), (1.0, True), (2.0, False), (3.0, False)]
    rows = {row.protocol.split(",")[0]: row for row in scalings(3, 1, [], ["z1"])}
    assert rows["fresh batches n_b up to d^1.5"].steps_exponent == 0.5
    assert rows["each sample used twice"].samples == "d"
    assert rows["lower bounds on samples"].samples_exponent == 1.0
    hard = {row.protocol: row for row in scalings(3, 3, [], [])}
    assert hard["each sample used twice"].steps_exponent is None


def test_what_learn_refuses():
    with pytest.raises(tl.InvalidInput, match="student"):
        tl.learn("z1", d=100)
    with pytest.raises(tl.InvalidInput, match="not known"):
        tl.learn("z1", "rellu")
    with pytest.raises(tl.InvalidInput, match="own P"):
        tl.learn("z1*z2", "relu", d=100, P=np.array([[1.0, 0.5], [0.5, 1.0]]))


def test_rounding_is_no_speed():
    """An odd student sees the second order of nothing: no time scale, rather than one of 10^37 steps."""
    result = tl.learn("he2(z1) + z1*z2*z3", "erf", d=1000)
    assert np.isnan(result.plateau_time) and np.isnan(result.plateau_steps)
    assert "does not leave the plateau" in tl.summary(result)
