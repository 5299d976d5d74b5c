"""The integrator: its methods have their orders, and agree with SciPy's on random equations; events and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from twolayer.theory.motion.integrate import solve
from twolayer.theory.motion.tableaus import DORMAND_PRINCE, TSITOURAS

TIMES = jnp.array([0.0, 0.4, 1.3, 1.4, 3.0, 5.0])


def equation(seed):
    """A bounded equation for a state of two arrays, its start, and the same for SciPy."""
    rng = np.random.default_rng(seed)
    matrix, shift = rng.standard_normal((5, 5)), rng.standard_normal(5)
    start = (jnp.asarray(rng.standard_normal((2, 2))), jnp.asarray(rng.standard_normal(1)))

    def field(t, state, rate):
        y = jnp.concatenate([state[0].ravel(), state[1]])
        change = rate * jnp.tanh(jnp.asarray(matrix) @ y + shift * jnp.cos(t)) - 0.3 * y
        return change[:4].reshape(2, 2), change[4:]

    def plain(t, y, rate=1.0):
        return rate * np.tanh(matrix @ y + shift * np.cos(t)) - 0.3 * y

    return field, start, plain, np.concatenate([np.asarray(start[0]).ravel(), np.asarray(start[1])])


def never(state, args):
    return jnp.asarray(False)


def flat(states):
    return np.concatenate([np.asarray(states[0]).reshape(len(states[0]), -1), np.asarray(states[1])], axis=1)


@pytest.mark.parametrize("tableau", [DORMAND_PRINCE, TSITOURAS], ids=["Dormand-Prince", "Tsitouras"])
def test_quadratures_are_exact_up_to_the_order(tableau):
    """Conditions on the weights of each sum for y' = t^n, and the interpolation ends where the step does."""
    weights = {tableau.order + 1: tableau.A[-1], tableau.order: tableau.A[-1] - tableau.error}
    for order, row in weights.items():
        for n in range(order):
            assert row @ tableau.c**n == pytest.approx(1.0 / (n + 1), abs=2e-14)
    assert tableau.dense.sum(axis=1) == pytest.approx(tableau.A[-1], abs=1e-11)
    for part in (0.2, 0.7):
        values = tableau.dense @ part ** np.arange(1, tableau.dense.shape[1] + 1)
        for n in range(3):
            assert values @ tableau.c**n == pytest.approx(part ** (n + 1) / (n + 1), abs=1e-12)


@pytest.mark.parametrize("is_coarse, order", [(False, 8), (True, 5)])
def test_the_error_has_the_order_of_the_method(is_coarse, order):
    """One step of a nonlinear equation, of half the size: the error falls by the power of two of the order plus one."""
    errors = []
    for h in (1.6, 0.8):
        exact = solve_ivp(lambda t, y: [y[1], -np.sin(y[0])], (0.0, h), [1.0, 0.5], "DOP853", rtol=1e-13, atol=1e-15)
        # No error is too large for this tolerance, and the first step goes to the end.
        end = solve(
            lambda t, y, _: jnp.stack([y[1], -jnp.sin(y[0])]), jnp.array([1.0, 0.5]), jnp.array([0.0, h]), None, 1e9,
            1e9, 10, never, is_coarse=is_coarse,
        )  # fmt: skip
        errors.append(np.max(np.abs(np.asarray(end.states)[-1] - exact.y[:, -1])))
    assert np.log2(errors[0] / errors[1]) > order + 0.5


@pytest.mark.parametrize("landing", [None, jnp.array([0.0, 5.0])], ids=["ends", "interpolated"])
@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_solutions_are_those_of_scipy(seed, is_coarse, landing):
    field, start, plain, y0 = equation(seed)
    exact = solve_ivp(plain, (0.0, 5.0), y0, "DOP853", np.asarray(TIMES), rtol=1e-12, atol=1e-13).y.T
    result = jax.jit(
        lambda rtol: solve(field, start, TIMES, 1.0, rtol, 1e-2 * rtol, 1000, never, False, is_coarse, landing)
    )(1e-8)
    assert bool(result.is_finished) and not bool(result.has_stopped) and float(result.reached) == 5.0
    assert np.max(np.abs(flat(result.states) - exact)) < (1e-6 if landing is None else 3e-5)


def test_starts_are_solved_together():
    field, start, _, _ = equation(0)
    starts = jax.tree.map(lambda x: jnp.stack([x, 2.0 * x, -x]), start)
    together = jax.vmap(lambda y: solve(field, y, TIMES, 1.0, 1e-9, 1e-11, 1000, never))(starts)
    for i in range(3):
        alone = solve(field, jax.tree.map(lambda x, i=i: x[i], starts), TIMES, 1.0, 1e-9, 1e-11, 1000, never)
        row = jax.tree.map(lambda x, i=i: x[i], together.states)
        assert flat(row) == pytest.approx(flat(alone.states), abs=1e-11)


@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize("level", [0.5, *(pytest.param(level, marks=pytest.mark.slow) for level in (0.9, 1e-3))])
def test_an_event_is_a_root_of_the_solution(level, is_coarse):
    """The fall of y' = -y^2 to a level takes 1 / level - 1, and d(time) / d(level) is -1 / level^2."""

    def time(level):
        return solve(
            lambda t, y, _: -(y**2), jnp.ones(1), jnp.array([0.0, 5000.0]), level, 1e-10, 1e-13, 10_000,
            lambda y, level: y[0] - level, locate=True, is_coarse=is_coarse,
        )  # fmt: skip

    result = time(level)
    assert bool(result.has_stopped) and not bool(result.is_finished)
    assert float(result.reached) == pytest.approx(1.0 / level - 1.0, rel=1e-8)
    assert float(result.states[-1, 0]) == pytest.approx(level, rel=1e-8)
    slope = jax.jacfwd(lambda level: time(level).reached)(level)
    assert float(slope) == pytest.approx(-1.0 / level**2, rel=1e-6)


def test_an_event_of_an_oscillation_is_its_first_root():
    """Steps of high order are long, but not so long that a crossing inside of one is missed where both ends see it."""
    result = solve(
        lambda t, y, _: jnp.stack([y[1], -y[0]]), jnp.array([1.0, 0.0]), jnp.array([0.0, 20.0]), None, 1e-10, 1e-12,
        1000, lambda y, _: y[0] + 0.5, locate=True,
    )  # fmt: skip
    assert float(result.reached) == pytest.approx(brentq(lambda t: np.cos(t) + 0.5, 1.0, 3.0), abs=1e-9)


def test_events_that_are_there_or_never_come():
    def run(level):
        return solve(
            lambda t, y, _: -y, jnp.ones(1), jnp.array([0.0, 1.0]), None, 1e-9, 1e-12, 1000,
            lambda y, _: y[0] - level, locate=True,
        )  # fmt: skip

    there, never_comes = run(2.0), run(0.1)
    assert bool(there.has_stopped) and float(there.reached) == 0.0
    assert bool(never_comes.is_finished) and not bool(never_comes.has_stopped)
    assert float(never_comes.states[-1, 0]) == pytest.approx(np.exp(-1.0), rel=1e-8)


def test_a_stop_leaves_the_rest_infinite():
    result = solve(
        lambda t, y, _: y, jnp.ones(1), jnp.linspace(0.0, 10.0, 11), None, 1e-9, 1e-12, 1000, lambda y, _: y[0] > 50.0
    )
    assert bool(result.has_stopped) and not bool(result.is_finished)
    assert np.all(np.isfinite(result.states[:4])) and np.all(np.isinf(result.states[6:]))


@pytest.mark.parametrize("max_steps, is_finished", [(3, False), (300, True)])
def test_steps_are_limited(max_steps, is_finished):
    field, start, _, _ = equation(1)
    result = solve(field, start, TIMES, 1.0, 1e-9, 1e-11, max_steps, never)
    assert bool(result.is_finished) == is_finished


def test_what_is_not_a_number_ends_the_run():
    """Beyond t = 1 the slope is NaN: steps shrink before it until they are lost in rounding."""
    result = solve(
        lambda t, y, _: jnp.sqrt(1.0 - t) * y, jnp.ones(1), jnp.array([0.0, 0.5, 2.0]), None, 1e-6, 1e-9, 10**7, never
    )
    assert not bool(result.is_finished) and np.isfinite(result.states[1, 0]) and np.isinf(result.states[2, 0])


def test_a_state_at_rest_or_of_zeros_stays():
    for start in (jnp.zeros(2), jnp.ones(2)):
        result = solve(lambda t, y, _: 0.0 * y, start, TIMES, None, 1e-8, 1e-10, 100, never)
        assert bool(result.is_finished) and np.all(np.asarray(result.states) == np.asarray(start))


@pytest.mark.slow
def test_derivatives_in_both_modes_are_those_of_the_solution():
    field, start, plain, y0 = equation(2)

    def end(rate, is_reversible):
        times = jnp.array([0.0, 1.0, 2.0])
        result = solve(field, start, times, rate, 1e-9, 1e-11, 200, never, is_reversible=is_reversible)
        return result.states[0][-1, 0, 0]

    h = 1e-5
    ends = [
        solve_ivp(plain, (0.0, 2.0), y0, "DOP853", args=(1.0 + s * h,), rtol=1e-12, atol=1e-13).y[0, -1]
        for s in (-1, 1)
    ]
    slope = (ends[1] - ends[0]) / (2 * h)
    assert float(jax.jacfwd(lambda rate: end(rate, False))(1.0)) == pytest.approx(slope, rel=1e-5)
    assert float(jax.grad(lambda rate: end(rate, True))(1.0)) == pytest.approx(slope, rel=1e-5)


def test_the_derivative_with_respect_to_the_last_time_is_the_slope():
    def end(time):
        return solve(lambda t, y, _: -y, jnp.ones(1), jnp.stack([0.0, time]), None, 1e-9, 1e-12, 100, never).states[
            -1, 0
        ]

    assert float(jax.jacfwd(end)(1.5)) == pytest.approx(-np.exp(-1.5), rel=1e-6)


def test_the_program_contains_the_equation_once():
    """Compiling the right-hand side is most of what a first result costs."""

    def marked(t, y, _):
        return -jax.scipy.special.erfinv(0.1 * y)

    for locate in (False, True):
        stop = (lambda y, _: y[0] - 0.5) if locate else never
        program = str(
            jax.make_jaxpr(lambda y, stop=stop, locate=locate: solve(
                marked, y, TIMES, None, 1e-8, 1e-10, 100, stop, locate
            ).states)(jnp.ones(1))
        )  # fmt: skip
        assert program.count("erf_inv") == 1
