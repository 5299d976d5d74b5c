"""Plans of several tasks: the mixing and the order that `optimise` finds, against closed forms of linear students."""

from itertools import permutations

import numpy as np
import pytest

import twolayer as tl

RATE = 1e-4  # so small that the noise of SGD moves no shown digit
FREE = tl.SGD(RATE)


def linear(target):
    """A linear student of a target that is a linear field itself, from a start of zero."""
    start = tl.GivenOverlaps([[0.0]], [[0.0] * target.k])
    return tl.Problem(target, tl.Student(1, "linear"), tl.Gaussian(10**6), start=start)


def field(place, k):
    return tl.Committee(k, "linear", second_layer=list(k * np.eye(k)[place]))


def test_replay_of_linear_tasks_is_that_of_the_closed_form():
    """The student goes exponentially to the mean of the targets by their shares; risks are squared distances."""
    first, second = 1.5, 1.0
    a, b = field(0, 2), field(1, 2)
    schedule = tl.Schedule([FREE, tl.Task(FREE, target=tl.Mixture([a, b], [0.1, 0.9]))], switches=[first])
    result = tl.optimise(linear(a), schedule, tasks="mixing", until=first + second)
    kept, moved = np.exp(-second), 1.0 - np.exp(-second)
    learned = 1.0 - np.exp(-first)
    # With the shares (q, 1 - q) the student ends at (kept learned + moved q, moved (1 - q)): nearest to the diagonal.
    share = 0.5 * (1.0 - kept * learned / moved)
    best = result.isel(candidate=int(result.best))
    assert float(best.share[0]) == pytest.approx(share, abs=1e-3)
    ends = np.array([kept * learned + moved * share, moved * (1.0 - share)])
    risks = [0.5 * np.sum((np.eye(2)[n] - ends) ** 2) for n in range(2)]
    assert best.task_risk.values == pytest.approx(risks, abs=1e-3)
    assert float(best.value) <= float(result.value.min()) and float(best.value_error) < 1e-6
    assert str(result.candidate.values[int(result.given)]) == "0.1, 0.9"
    again = tl.evolve(linear(a), tl.best_training(result), "SaadSolla", until=first + second, save=2)
    assert again.task_risk.values[0, -1] == pytest.approx(best.task_risk.values, rel=1e-9)


def test_the_order_of_linear_tasks_is_that_of_the_closed_form():
    durations, k = [0.4, 1.1, 0.7], 3
    targets = [field(place, k) for place in range(k)]
    phases = [FREE, *(tl.Task(FREE, target=target) for target in targets[1:])]
    schedule = tl.Schedule(phases, switches=np.cumsum(durations)[:-1].tolist())
    result = tl.optimise(linear(targets[0]), schedule, tasks="order", until=float(sum(durations)))
    expected = {}
    for order in permutations(range(k)):
        student = np.zeros(k)
        for place in order:
            student = np.eye(k)[place] + np.exp(-durations[place]) * (student - np.eye(k)[place])
        expected[order] = [0.5 * np.sum((np.eye(k)[n] - student) ** 2) for n in range(k)]
    for row, order in zip(result.task_risk.values, result.order.values - 1, strict=True):
        assert row == pytest.approx(expected[tuple(order)], abs=1e-3)
    best = min(expected, key=lambda order: np.mean(expected[order]))
    assert tuple(result.order.values[int(result.best)] - 1) == best
    trained = tl.best_training(result)
    assert isinstance(trained, tl.Schedule)
    assert np.diff([0.0, *trained.switches]) == pytest.approx([durations[place] for place in best[:-1]])


def test_replay_of_squares_is_the_least_of_a_dense_grid_and_of_runs():
    """Two directions of phase retrieval on the sphere: by evolving every share, and by exact runs at finite d."""
    P = np.array([[1.0, 0.6], [0.6, 1.0]])
    old = tl.Committee(2, "square", second_layer=[2.0, 0.0], P=P)
    new = tl.Committee(2, "square", second_layer=[0.0, 2.0], P=P)
    training = tl.SGD(0.002, constraint=tl.Sphere())
    start = tl.GivenOverlaps([[1.0]], P[:1])
    problem = tl.Problem(old, tl.Student(1, "square"), tl.Gaussian(2000), start=start)

    def replayed(share):
        return tl.Schedule([tl.Task(training, target=tl.Mixture([old, new], [share, 1.0 - share]))])

    result = tl.optimise(problem, replayed(0.0), tasks="mixing", until=1.0)
    shares = np.linspace(0.0, 1.0, 41)
    risks = [
        tl.evolve(problem, replayed(share), "SaadSolla", until=1.0, save=[1.0]).task_risk.values[0, -1].mean()
        for share in shares
    ]
    best = result.isel(candidate=int(result.best))
    assert float(best.value) <= min(risks) + 1e-9
    assert abs(float(best.share[0]) - shares[np.argmin(risks)]) <= 1.0 / 40
    runs = tl.evolve(problem, tl.best_training(result), "OverlapSGD", until=1.0, save=[1.0], replicas=200)
    ends = runs.task_risk.values[:, -1].mean(axis=1)
    assert abs(ends.mean() - float(best.value)) < 5.0 * ends.std(ddof=1) / np.sqrt(200) + 30.0 / 2000


def test_plans_are_saved_and_shown(tmp_path):
    a, b = field(0, 2), field(1, 2)
    schedule = tl.Schedule([FREE, tl.Task(FREE, target=b)], switches=[0.5])
    result = tl.optimise(linear(a), schedule, tasks="order", until=1.5)
    tl.save(result, tmp_path / "plan.nc")
    assert tl.load(tmp_path / "plan.nc").identical(result)
    assert "best order: 2, 1" in tl.summary(result) and "as it was given: 1, 2" in tl.summary(result)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"tasks": "mixing", "until": 2.0}, "ends|Mixture"),
        ({"tasks": "order"}, "`until`"),
        ({"tasks": "order", "until": 0.4}, "last phase"),
        ({"tasks": "rates", "until": 2.0}, "`tasks`"),
        ({"tasks": "order", "until": 2.0, "pieces": 2}, "`pieces`"),
        ({"samples": 100.0}, "`samples`"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(options, part):
    a, b = field(0, 2), field(1, 2)
    schedule = tl.Schedule([FREE, tl.Task(FREE, target=b)], switches=[0.5])
    with pytest.raises(tl.InvalidInput, match=part):
        tl.optimise(linear(a), schedule, **options)


def test_a_single_task_has_no_plan():
    with pytest.raises(tl.InvalidInput, match="one"):
        tl.optimise(linear(field(0, 2)), tl.Schedule([FREE, FREE], switches=[0.5]), tasks="order", until=1.0)
    with pytest.raises(tl.InvalidInput, match="Schedule"):
        tl.optimise(linear(field(0, 2)), FREE, tasks="order", until=1.0)
