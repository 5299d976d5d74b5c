"""Kinks of formulas, features of functions, and what rules do about them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import MOMENTS, Auto, estimate
from twolayer.expectation.break_points import activation_breaks, target_breaks
from twolayer.expectation.qmc import LOG2_POINTS, scrambled_normals, turned_normals
from twolayer.expectation.tails import beyond, reach
from twolayer.problem import Custom, Overlaps


@pytest.mark.parametrize(
    ("formula", "kinks"),
    [
        ("abs(z1)", ((0.0,),)),
        ("step(z1 + 1)", ((-1.0,),)),
        ("max(z1, 0)*z1", ((0.0,),)),
        ("min(abs(z1), 1)", ((-1.0, 0.0, 1.0),)),
        ("relu(2*z1 - 1) + abs(relu(z1 - 0.3))", ((0.3, 0.5),)),
        ("sqrt(z1**2)", ((0.0,),)),
        ("abs(z1 - 1)*step(z2 + 1)", ((1.0,), (-1.0,))),
        ("sign(z1*z2)", ((0.0,), (0.0,))),
        ("max(z1 + z2, z2 + 0.3)", ((0.3,), ())),
        ("tanh(z1) + step(3)", ((),)),
        ("step(z1 + z2)", None),
        ("max(z1, z2)", None),
    ],
)
def test_kinks_along_single_fields_are_found(formula, kinks):
    assert tl.MultiIndex(formula).kinks == kinks


def test_kinks_that_are_no_round_numbers_are_found_to_rounding():
    kinks = tl.MultiIndex("step(exp(z1) - 2) + sign(0.7*z1 - 0.123)").kinks
    assert kinks is not None and len(kinks) == 1
    places = kinks[0]
    np.testing.assert_allclose(places, [0.123 / 0.7, np.log(2.0)], rtol=1e-15)


def test_undeclared_kinks_of_an_activation_are_found():
    breaks = activation_breaks(Custom(lambda x: jnp.clip(x, -1.0, 1.0)))
    assert breaks.kinks == (-1.0, 1.0) and breaks.ends == () and breaks.is_settled
    jump = target_breaks(tl.MultiIndex(lambda z: jnp.where(z[0] > 0.3, 1.0, 0.0), k=1))
    assert jump.kinks == (0.3,)


@pytest.mark.parametrize(("centre", "width"), [(0.0, 1.0), (2.3, 0.05), (-30.0, 0.02)])
def test_pieces_end_about_a_bump_of_any_width(centre, width):
    breaks = activation_breaks(Custom(lambda x: jnp.exp(-(((x - centre) / width) ** 2))))
    near = [end for end in breaks.ends if abs(end - centre) < 10 * width]
    assert breaks.is_settled and len(near) >= 2 and min(near) < centre < max(near)


def test_a_wave_without_end_is_not_settled():
    assert not activation_breaks(Custom(lambda x: jnp.cos(3.0 * x))).is_settled


def at(target, activation, Q, M, a, noise=0.0, engine=None):
    """Excess risk, chi, v and phi_hd of one unit, and their errors."""
    problem = tl.Problem(target, tl.Student(1, activation), tl.Gaussian(100), noise=noise)
    overlaps = Overlaps(jnp.array([[Q]]), jnp.array([[M]]), jnp.eye(1), jnp.array([a]))
    result = estimate(Auto(engines=engine).choose(problem), problem, overlaps)
    return tuple(np.concatenate([np.ravel(part[m]) for m in MOMENTS]) for part in (result.value, result.error))


def test_a_jump_along_one_field_does_not_go_to_a_net():
    """E[step(z + 1)] / 2 = Phi(1) / 2, where all scramblings of a net make the same error of 2e-5."""
    value, error = at(tl.MultiIndex("step(z1 + 1.0)", k=1), "erf", 1.0, 0.0, 0.0)
    truth = 0.25 * (1.0 + float(jax.lax.erf(np.sqrt(0.5))))
    assert abs(value[0] - truth) <= error[0] < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("c", [1.0, pytest.param(2.0, marks=pytest.mark.long)])
def test_exponentials_are_averaged_where_their_averages_are_made(c):
    """On a target that is zero: E[(c e^{cx})^2 (a e^{cx})^2] = c^2 a^2 exp(8 c^2)."""
    value, error = at(tl.MultiIndex("0*abs(z1)", k=1), Custom(lambda x: jnp.exp(c * x)), 1.0, 0.5, 0.5)
    truth = c**2 * 0.25 * np.exp(8.0 * c**2)
    assert abs(value[-1] - truth) <= error[-1] < 1e-6 * truth


@pytest.mark.slow
@pytest.mark.parametrize("engine", [None, pytest.param(("Quadrature",), marks=pytest.mark.long)])
def test_a_bump_is_seen_at_any_length_of_the_row(engine):
    r"""With :math:`\sigma = e^{-x^2}`, M = |w|, Q = |w|^2: E[\sigma'^2 cos^2(3z)] etc. from a fine grid."""
    z = np.linspace(-12.0, 12.0, 2_000_001)
    weights = np.exp(-0.5 * z**2)
    weights /= weights.sum()
    for length in (10.0, 12.0, 20.0):
        x = length * z
        sigma, slope, f = np.exp(-(x**2)), -2.0 * x * np.exp(-(x**2)), np.cos(3.0 * z)
        eps = f - 0.9 * sigma
        averages = (0.5 * eps**2, sigma * eps, slope * x * eps, slope * z * eps, slope**2 * eps**2)
        truth = np.array([weights @ each for each in averages])
        value, error = at(
            tl.MultiIndex("cos(3*z1)", k=1), Custom(lambda x: jnp.exp(-(x**2))), length**2, length, 0.9, engine=engine
        )
        assert np.all(np.abs(value - truth) <= error)
        assert engine is not None or np.all(error < 1e-7)


@pytest.mark.slow
def test_reach_grows_with_the_functions():
    def needed(activation, Q):
        problem = tl.Problem(tl.MultiIndex("abs(z1)", k=1), tl.Student(1, activation), tl.Gaussian(100))
        overlaps = Overlaps(jnp.array([[Q]]), jnp.zeros((1, 1)), jnp.eye(1), jnp.ones(1))
        return problem, overlaps, float(reach(problem, overlaps, MOMENTS))

    growing = Custom(lambda x: jnp.exp(2.0 * x))
    assert needed("tanh", 1.0)[2] < 11.0 < needed("he8", 1.0)[2] < needed(growing, 1.0)[2] < 20.0
    problem, overlaps, furthest = needed(growing, 100.0)
    assert not np.isfinite(beyond(problem, overlaps, ("phi_hd",), furthest)["phi_hd"]).all()


def test_nets_in_random_frames_do_not_agree_on_a_jump_by_construction():
    """Along an axis eight scramblings may count the same points beyond a jump; in random frames they scatter."""

    def shares(make):
        return [float(np.mean(make(2, LOG2_POINTS, seed)[:, 0] > -1.0)) for seed in range(8)]

    assert np.ptp(shares(scrambled_normals)) <= 1.5 / 2**LOG2_POINTS < np.ptp(shares(turned_normals))
    normals = turned_normals(3, LOG2_POINTS, 0)
    np.testing.assert_allclose(normals.T @ normals / len(normals), np.eye(3), atol=2e-2)
