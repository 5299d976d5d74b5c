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
from twolayer.theory.motion.tableaus import DORMAND_PRINCE, FINE

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


def test_the_finer_interpolation_has_one_order_more_and_the_error_of_a_step():
    """Steps of half the length against many short steps, in numbers with more digits than double precision."""
    y0, parts = np.random.default_rng(5).standard_normal(5).astype(np.longdouble), np.linspace(0.05, 1.0, 20)

    def slope(y):
        return 1.3 * np.tanh(MATRIX @ y) - 0.2 * y**3

    def slopes(y, size):
        found = np.zeros((len(FINE.c), 5), np.longdouble)
        for stage in range(len(found)):
            found[stage] = slope(y + size * (FINE.A[stage] @ found))
        return found

    def exact(size, steps=20):
        y = y0
        for _ in range(steps):
            y = y + size / steps * (DORMAND_PRINCE.A[-1] @ slopes(y, size / steps)[: len(DORMAND_PRINCE.c)])
        return y

    def error(tableau, size):
        found, powers = slopes(y0, size)[: len(tableau.c)], np.arange(1, tableau.dense.shape[1] + 1)
        values = [y0 + size * ((tableau.dense @ part**powers) @ found) for part in parts]
        return max(np.abs(value - exact(size * part)).max() for value, part in zip(values, parts, strict=True))

    for tableau, order in ((DORMAND_PRINCE, 6), (FINE, 7)):
        assert abs(np.log2(error(tableau, 0.1) / error(tableau, 0.05)) - order) < 0.5
    for size in (0.2, 0.1, 0.05):
        assert error(FINE, size) < 2.0 * size * np.abs(FINE.error @ slopes(y0, size)[: len(DORMAND_PRINCE.c)]).max()


def dense(rows, points, seed=2):
    """The setting with so many save points that steps are longer than their distances."""
    starts, numbers, times, limits = setting(rows, seed)
    return starts, numbers, times[:, -1:] * np.linspace(0.0, 1.0, points) ** 1.5, limits


def test_values_between_steps_are_within_the_distance_of_less_accurate_ones(code):
    """The error of the finer solution is below its distance from the looser one, as in reported errors."""
    rows = 60
    starts, numbers, times, limits = dense(rows, 60)
    for rtol in (1e-10, 1e-8, 1e-6):
        exact, fine, loose = (
            solve_rows(code, starts, numbers, times, of_rows(Tolerance(r, 0.01 * r), rows), 5000, limits, first)
            for r, first in ((1e-14, 0.3), (rtol, 0.01 ** (1 / 8)), (100.0 * rtol, 1.0))
        )
        assert fine.is_finished.sum() > 20 and fine.has_stopped.any()
        assert np.array_equal(fine.is_finished, exact.is_finished)
        done = fine.is_finished
        error = np.abs(fine.states[done] - exact.states[done]).max(axis=2)
        distance = np.maximum.accumulate(np.abs(fine.states[done] - loose.states[done]).max(axis=2), axis=1)
        size = np.abs(exact.states[done]).max(axis=2)
        assert np.all(error <= distance + rtol * (size + 0.01))
        assert error.max() < 100.0 * rtol


def test_a_row_among_many_save_points_does_not_depend_on_the_others(code):
    rows = dense(50, 40)
    tolerances = np.geomspace(1e-12, 1e-6, 50)
    together = solve_rows(code, *rows[:3], Tolerance(tolerances, 0.01 * tolerances), 5000, rows[3])
    for which in (np.arange(3), np.array([40, 7, 13, 8, 21, 2, 3, 49, 33])):
        tolerance = Tolerance(tolerances[which], 0.01 * tolerances[which])
        some = solve_rows(code, *(part[which] for part in rows[:3]), tolerance, 5000, rows[3][which])
        for one, all_of_them in zip(some, together, strict=True):
            assert np.array_equal(one, all_of_them[which])


def test_a_trajectory_that_diverges_ends_with_one_value_beyond_its_limit(code):
    starts, numbers, times, limits = dense(60, 200)
    found = solve_rows(code, starts, numbers, times, of_rows(Tolerance(1e-9, 1e-11), 60), 5000, limits)
    assert found.has_stopped.sum() > 5
    for row in np.flatnonzero(found.has_stopped):
        size = np.abs(found.states[row, :, :4]).max(axis=1)
        ended = np.flatnonzero(np.isinf(size))[0] if np.isinf(size).any() else len(size)
        assert np.isinf(size[ended:]).all() and np.all(size[: ended - 1] <= limits[row])


def test_errors_of_interpolated_flows_hold_against_the_single_run():
    """Batches with many save points, beside the steps of `evolve` that end on each of them."""
    settings = [(erf_committee(1, noise=0.1), SGD(rate)) for rate in (0.2, 0.8, 2.0)]
    with double():
        cells = cells_of(settings, [Ask(until=8.0, save=50)] * 3, in_steps=False)
        together = SaadSolla().run_batch(cells)
        exact = [SaadSolla(rtol=1e-13, atol=1e-15).run(*cell) for cell in cells]
    for one, other in zip(together, exact, strict=True):
        assert np.all(np.abs(one.excess_risk - other.excess_risk) <= one.risk_error)
        for name in ("Q", "M"):
            distance = np.abs(getattr(one, name) - getattr(other, name)).max(axis=(2, 3))
            assert np.all(distance <= one.overlap_error)
        assert one.risk_error.max() < 1e-6
