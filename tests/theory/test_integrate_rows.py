"""Many trajectories at once: those of the integrator of one trajectory, each by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.simulation.test_batches import cells_of
from tests.systems import erf_committee
from twolayer import SGD, Ask, SaadSolla
from twolayer.compiler.scalar import Unsupported
from twolayer.core.precision import double
from twolayer.theory.motion import flow_batch
from twolayer.theory.motion.integrate import Tolerance, solve
from twolayer.theory.motion.integrate_rows import row_code, solve_rows

MATRIX = np.random.default_rng(0).standard_normal((5, 5))
STEPS = 200


def velocity(state, numbers):
    y = jnp.concatenate([state[0].ravel(), state[1]])
    change = numbers[0] * jnp.tanh(jnp.asarray(MATRIX) @ y) + numbers[1] * y**3
    return change[:4].reshape(2, 2), change[4:]


def largest(state, numbers):
    return jnp.max(jnp.abs(state[0]))


@pytest.fixture(scope="module")
def code():
    example = (np.zeros((2, 2)), np.zeros(1)), (np.asarray(1.0), np.asarray(1.0))
    return row_code({"velocity": velocity, "largest": largest, "risk": lambda state, _: state[1][0]}, *example)


def setting(rows, seed=1):
    """Starts, numbers and times of rows: some fast, some slow, and some that grow without bound."""
    rng = np.random.default_rng(seed)
    numbers = np.stack([10.0 ** rng.uniform(-1, 1.5, rows), np.where(np.arange(rows) % 5 == 3, 0.5, -0.2)], axis=1)
    times = np.concatenate([np.zeros((rows, 1)), np.cumsum(rng.uniform(0.01, 1.0, (rows, 6)), axis=1)], axis=1)
    return rng.standard_normal((rows, 5)), numbers, times, np.full(rows, 30.0)


def of_rows(tolerance, rows):
    """A tolerance for each row."""
    return Tolerance(*(np.full(rows, part) for part in tolerance))


def test_rows_are_the_trajectories_of_the_integrator(code):
    starts, numbers, times, limits = setting(21)
    tolerance = Tolerance(1e-9, 1e-11)
    found = solve_rows(code, starts, numbers, times, of_rows(tolerance, 21), STEPS, limits)
    assert found.has_stopped.any() and found.is_finished.any()
    assert not (found.is_finished | found.has_stopped).all()  # some take more steps than are allowed

    @jax.jit
    def alone(start, setting, times):
        def field(t, y, args):
            return velocity(y, args)

        def stop(y, args):
            return largest(y, args) > 30.0

        return solve(field, (start[:4].reshape(2, 2), start[4:]), times, setting, *tolerance, STEPS, stop)

    for row in range(len(starts)):
        one = alone(starts[row], tuple(numbers[row]), times[row])
        assert bool(one.is_finished) == found.is_finished[row] and bool(one.has_stopped) == found.has_stopped[row]
        states = np.concatenate([np.asarray(one.states[0]).reshape(len(times[row]), -1), one.states[1]], axis=1)
        # Steps of one size differ by rounding, which a trajectory on its way to infinity multiplies.
        np.testing.assert_allclose(found.states[row], states, rtol=1e-7, atol=1e-9)


def test_a_row_does_not_depend_on_the_others(code):
    rows = setting(50)
    tolerances = np.geomspace(1e-10, 1e-6, 50)
    together = solve_rows(code, *rows[:3], Tolerance(tolerances, 0.01 * tolerances), STEPS, rows[3])
    for which in (np.arange(3), np.array([40, 7, 13, 8, 21, 2, 3, 49, 33])):
        tolerance = Tolerance(tolerances[which], 0.01 * tolerances[which])
        some = solve_rows(code, *(part[which] for part in rows[:3]), tolerance, STEPS, rows[3][which])
        for one, all_of_them in zip(some, together, strict=True):
            assert np.array_equal(one, all_of_them[which])


def test_flows_without_machine_code_are_solved_by_xla(monkeypatch):
    asked = []

    def refused(*arguments):
        asked.append(arguments)
        raise Unsupported("bessel")

    settings = [(erf_committee(1, noise=0.1), SGD(rate)) for rate in (0.5, 0.8)]
    with double():
        cells = cells_of(settings, [Ask(until=1.0, save=4)] * 2, in_steps=False)
        by_code = SaadSolla().run_batch(cells)
        monkeypatch.setattr(flow_batch, "_CODES", {})
        monkeypatch.setattr(flow_batch, "row_code", refused)
        by_xla = SaadSolla().run_batch(cells)
    assert len(asked) == 1
    for one, other in zip(by_code, by_xla, strict=True):
        for name in ("Q", "M", "a", "excess_risk"):
            # The tolerance of a step is 1e-10, and rounding is far below it.
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, atol=1e-12)
