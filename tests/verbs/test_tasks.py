"""Several tasks: phases with labels of their own, targets that are drawn for each sample, and what is forgotten."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import twolayer as tl
from twolayer.core.precision import double
from twolayer.expectation import choose, estimate
from twolayer.specification.codec import content_hash
from twolayer.training import tasks_of

SIMULATIONS = ("OverlapSGD", "DirectSGD", "BatchMap")


def similar(rho):
    return np.array([[1.0, rho], [rho, 1.0]])


def two_tasks(activation, rho, d, noise=0.02, p=2):
    """A student from overlaps without symmetry, and two tasks of one unit each with similarity rho."""
    first = tl.Committee(2, activation, P=similar(rho), second_layer=[2.0, 0.0])
    second = tl.Committee(2, activation, second_layer=[0.0, 2.0])
    M = np.array([[0.3, 0.1], [-0.1, 0.3], [0.2, 0.2]])[:p]
    Q = M @ np.linalg.solve(similar(rho), M.T) + np.diag([0.6, 0.5, 0.4][:p])
    start = tl.GivenOverlaps(Q, M)
    problem = tl.Problem(first, tl.Student(p, activation), tl.Gaussian(d), start=start, noise=noise)
    return problem, second


# ------------------------------------------------------------------------------------------------ one task


@pytest.mark.parametrize(
    "description", ["SaadSolla", *(pytest.param(name, marks=pytest.mark.slow) for name in SIMULATIONS)]
)
def test_a_phase_with_the_only_task_is_a_plain_training(description):
    """Bit for bit, and without a dimension for tasks."""
    problem, _ = two_tasks("erf", 0.3, 60)
    ask = {"until": 0.5, "save": 4, "replicas": 2}
    plain = tl.evolve(problem, tl.SGD(0.5), description, **ask)
    phase = tl.evolve(problem, tl.Schedule([tl.Task(tl.SGD(0.5))]), description, **ask)
    assert "task_risk" not in phase
    for name in ("Q", "M", "a", "risk"):
        assert np.array_equal(plain[name].values, phase[name].values), name


def test_hashes_of_schedules_without_tasks_stay():
    """Recorded before phases could have tasks."""
    schedule = tl.Schedule([tl.SGD(1.0), tl.SGD(0.5, layers=tl.Both())], [1.0])
    assert content_hash(schedule).startswith("f6a3a415b16a")


def signs(target="sign(z)", noise=0.1, loss="square"):
    """A student of one unit and labels that are signs."""
    start = tl.GivenOverlaps([[0.4]], [[0.2]])
    inputs = tl.Gaussian(100)
    return tl.Problem(
        tl.SingleIndex(target), tl.Student(1, "erf"), inputs, start=start, loss=loss, noise=tl.Flips(noise)
    )


def test_predictions_are_those_of_the_labels_of_a_phase():
    """The sign of the output is that of its field, so that the error is known in closed form, flips included."""
    ask = {"until": 0.4, "save": "linear:5"}
    other = tl.Task(tl.SGD(0.5), target=tl.SingleIndex("sign(z - 1)"), noise=tl.Flips(0.2), loss="logistic")
    alone = tl.evolve(signs("sign(z - 1)", 0.2, "logistic"), tl.SGD(0.5), "SaadSolla", **ask)
    phase = tl.evolve(signs(), tl.Schedule([other]), "SaadSolla", **ask)
    for name in ("risk", "classification_error", "square_error"):
        assert np.array_equal(alone[name].values, phase[name].values), name
    schedule = tl.Schedule([tl.SGD(0.5), tl.Task(tl.SGD(0.5), noise=tl.Flips(0.3))], [0.2])
    both = tl.evolve(signs(), schedule, "SaadSolla", **ask)
    angle = np.arccos(both.M.values[0, :, 0, 0] / np.sqrt(both.Q.values[0, :, 0, 0])) / np.pi
    flips = np.where(both.time.values <= 0.2, 0.1, 0.3)
    expected = angle + flips * (1.0 - 2.0 * angle)
    found, bound = both.classification_error.values[0], both.classification_error_bound.values[0]
    assert np.all(np.abs(found - expected) <= bound + 1e-9), (found, expected)
    assert np.all(bound < 1e-2)


@pytest.mark.slow
def test_predictions_are_followed_for_every_task():
    """The sign of the output is that of its field, so that the error of each task is an angle, flips included.

    The third task has no signs, and neither it nor the other variable is reported where it does not exist.
    """
    start = tl.GivenOverlaps([[0.4]], [[0.2, -0.3]])
    first, second = tl.MultiIndex("sign(z1)", k=2), tl.MultiIndex("sign(z2)", k=2)
    problem = tl.Problem(first, tl.Student(1, "erf"), tl.Gaussian(100), start=start, noise=tl.Flips(0.1))
    phases = [tl.SGD(0.5), tl.Task(tl.SGD(0.5), target=second, noise=tl.Flips(0.3))]
    phases.append(tl.Task(tl.SGD(0.5), target=tl.MultiIndex("z1", k=2), noise=0.0))
    result = tl.evolve(problem, tl.Schedule(phases, [0.2, 0.4]), "SaadSolla", until=0.5, save="linear:6")
    angle = np.arccos(result.M.values[0, :, 0] / np.sqrt(result.Q.values[0, :, 0])) / np.pi
    expected = angle + np.array([0.1, 0.3]) * (1.0 - 2.0 * angle)
    found, bound = (result[f"task_classification_error{end}"].values[0] for end in ("", "_bound"))
    assert np.all(np.abs(found[:, :2] - expected) <= bound[:, :2] + 1e-9)
    assert np.all(bound[:, :2] < 1e-2) and np.isnan(found[:, 2]).all()
    assert "classification_error" not in result and "task_square_error" not in result  # the risk is the square error


def test_a_mixture_of_signs_has_flips():
    """Two shares of one target are that target; programs look at its labels while they are compiled."""
    mixture = tl.Mixture([tl.SingleIndex("sign(z)"), tl.SingleIndex("sign(z - 0.0)")], [0.6, 0.4])
    one = signs()
    two = tl.Problem(mixture, one.student, one.inputs, start=one.start, noise=one.noise)
    ask = {"until": 0.1, "save": [0.1]}
    found, expected = (tl.evolve(problem, tl.SGD(0.5), "SaadSolla", **ask) for problem in (two, one))
    allowed = found.risk_error.values + expected.risk_error.values + 1e-9
    assert np.all(np.abs(found.risk.values - expected.risk.values) <= allowed)
    assert "yes" in str(tl.explain(two, tl.SGD(0.5)))


# ------------------------------------------------------------------------------------------- exact solutions


def linear_overlaps(time, gamma, noise, M, Q, target):
    r"""Overlaps of a linear student of one unit: :math:`\dot M = P_t - M`, and :math:`\dot Q` linear as well."""
    # State (M_1, M_2, Q, 1); the task has the field of direction `target`, orthonormal directions.
    A = np.zeros((4, 4))
    A[0, 0] = A[1, 1] = -1.0
    A[target, 3] = 1.0
    A[2, target] = 2.0 - 2.0 * gamma
    A[2, 2] = -2.0 + gamma
    A[2, 3] = gamma * (1.0 + noise)
    return expm(A * time) @ np.array([*M, Q, 1.0])


def test_forgetting_of_a_linear_student_is_that_of_its_exact_solution():
    noises, gamma = (0.3, 0.1), 0.4
    first, second = tl.MultiIndex("z1", k=2), tl.MultiIndex("z2", k=2)
    start = tl.GivenOverlaps([[0.5]], [[0.1, 0.2]])
    problem = tl.Problem(first, tl.Student(1, "linear"), tl.Gaussian(500), start=start, noise=noises[0])
    other = tl.Task(tl.SGD(gamma), target=second, noise=noises[1])
    result = tl.evolve(problem, tl.Schedule([tl.SGD(gamma), other], [1.5]), "SaadSolla", until=3.5, save=5)
    after = [linear_overlaps(1.5, gamma, noises[0], (0.1, 0.2), 0.5, 0)]
    after.append(linear_overlaps(2.0, gamma, noises[1], after[0][:2], after[0][2], 1))
    risks = np.array([[0.5 * (1.0 - 2.0 * x[n] + x[2] + noises[n]) for n in (0, 1)] for x in after])
    assert 1.5 in result.time.values  # the end of a phase is saved, asked or not
    np.testing.assert_allclose(result.task_risk.sel(time=[1.5, 3.5]).values[0], risks, atol=1e-9)
    np.testing.assert_allclose(result.risk.sel(time=[1.5, 3.5]).values[0], np.diag(risks), atol=1e-9)
    found = tl.forgetting(result)
    assert float(found.forgetting.sel(task=1, phase=2)[0]) == pytest.approx(risks[1, 0] - risks[0, 0], abs=1e-9)
    assert np.isnan(found.forgetting.sel(phase=1).values).all() and found.attrs["outcome"] == "single"


def test_replay_of_a_linear_student_follows_the_mean_of_its_tasks():
    """For linear units a mixture with share q moves M to (q, 1 - q) at the same rate."""
    q = 0.3
    mixed = tl.Mixture([tl.MultiIndex("z1", k=2), tl.MultiIndex("z2", k=2)], [q, 1.0 - q])
    start = tl.GivenOverlaps([[0.5]], [[0.1, 0.2]])
    problem = tl.Problem(mixed, tl.Student(1, "linear"), tl.Gaussian(500), start=start)
    result = tl.evolve(problem, tl.SGD(0.4), "SaadSolla", until=2.0, save=[2.0])
    expected = [value + (begin - value) * np.exp(-2.0) for value, begin in ((q, 0.1), (1.0 - q, 0.2))]
    np.testing.assert_allclose(result.M.values[0, -1, 0], expected, atol=1e-9)
    together = (result.task_risk * [q, 1.0 - q]).sum("task")
    np.testing.assert_allclose(together.values, result.risk.values, rtol=1e-12)


# ------------------------------------------------------------------------------------------------ averages


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_averages_of_a_mixture_against_samples(seed):
    """Random overlaps and shares; 400,000 samples labelled one by one, z < 5."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(3))
    targets = [tl.Committee(2, "erf", second_layer=[1.0, -0.5]), tl.Committee(2, "relu"), tl.MultiIndex("z1*z2")]
    X = rng.standard_normal((4, 7)) / 7**0.5
    omega = X @ X.T
    overlaps = tl.Overlaps(omega[:2, :2], omega[:2, 2:], omega[2:, 2:], rng.standard_normal(2))
    start = tl.GivenOverlaps(overlaps.Q, overlaps.M, overlaps.P)
    mixed = tl.Mixture(targets, shares)
    problem = tl.Problem(mixed, tl.Student(2, "erf"), tl.Gaussian(30), start=start, noise=0.2)
    with double():
        found = estimate(choose(problem), problem, overlaps)
        fields = rng.standard_normal((400_000, 4)) @ np.linalg.cholesky(omega).T
        lam, stars = jnp.asarray(fields[:, :2]), jnp.asarray(fields[:, 2:])
        values = np.array([np.asarray(target(stars)) for target in targets])
        chosen = rng.choice(3, size=len(fields), p=shares)
        labels = values[chosen, np.arange(len(fields))]
        eps = labels - np.asarray(problem.student(lam, jnp.asarray(overlaps.a)))
        noisy = eps + 0.2**0.5 * rng.standard_normal(len(fields))
        slope = np.asarray(problem.student.activation.derivative(lam))
        unit = np.asarray(problem.student.activation(lam))
    samples = {
        "excess_risk": 0.5 * eps**2,
        "chi": unit * noisy[:, None],
        "v": (slope * noisy[:, None])[:, :, None] * fields[:, None, :],
        "phi_hd": (slope * noisy[:, None])[:, :, None] * (slope * noisy[:, None])[:, None, :],
    }
    for name, drawn in samples.items():
        gap = np.abs(np.asarray(found.value[name]) - drawn.mean(axis=0))
        allowed = 5.0 * drawn.std(axis=0) / len(fields) ** 0.5 + np.asarray(found.error[name])
        assert np.all(gap < allowed), name


def test_the_risk_of_every_task_against_samples():
    """The risk of the task that is not being trained, from fields drawn at the saved overlaps; z < 5."""
    problem, second = two_tasks("relu", 0.4, 100)
    training = tl.Schedule([tl.SGD(0.3), tl.Task(tl.SGD(0.3), target=second, noise=0.5)], [1.0])
    result = tl.evolve(problem, training, "OverlapSGD", until=2.0, save=[0.5, 1.5])
    rng = np.random.default_rng(0)
    for place in range(result.sizes["time"]):
        here = result.isel(replica=0, time=place)
        omega = np.block([[here.Q.values, here.M.values], [here.M.values.T, result.P.values]])
        fields = rng.standard_normal((300_000, 4)) @ np.linalg.cholesky(omega).T
        student = np.maximum(fields[:, :2], 0.0) @ here.a.values / 2
        for task, noise in enumerate((0.02, 0.5)):
            loss = 0.5 * (np.maximum(fields[:, 2 + task], 0.0) - student) ** 2
            gap = abs(float(here.task_risk[task]) - 0.5 * noise - float(np.mean(loss)))
            assert gap < 5.0 * float(np.std(loss)) / len(loss) ** 0.5
    trained = np.where(result.time.values <= 1.01, result.task_risk.values[0, :, 0], result.task_risk.values[0, :, 1])
    np.testing.assert_allclose(trained, result.risk.values[0], rtol=1e-9)


# ------------------------------------------------------------------------------------- theory and simulation

COMBINATIONS = [
    pytest.param(activation, constraint, layers, rho, marks=() if rho == 0.5 else pytest.mark.long)
    for activation, constraint, layers, rho in [
        ("erf", tl.Free(), tl.Both(0.7), 0.5),
        ("erf", tl.Free(), tl.First(), -0.6),
        ("erf", tl.Sphere(), tl.First(), 0.9),
        ("erf", tl.Sphere(), tl.Both(0.7), 0.1),
        ("relu", tl.Free(), tl.First(), 0.2),
        ("relu", tl.Free(), tl.Both(0.7), 0.8),
        ("relu", tl.Sphere(), tl.First(), -0.3),
        ("relu", tl.Sphere(), tl.Both(0.7), 0.6),
        ("square", tl.Free(), tl.First(), 0.3),
        ("square", tl.Free(), tl.Both(0.7), -0.5),
        ("square", tl.Sphere(), tl.First(), 0.7),
        ("square", tl.Sphere(), tl.Both(0.7), 0.0),
    ]
]


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "constraint", "layers", "rho"), COMBINATIONS)
def test_simulations_of_two_tasks_follow_the_ode(activation, constraint, layers, rho):
    """Task 1, task 2, then both mixed: within 4 standard errors and 6/d; both simulators have the same law, z < 5."""
    d, replicas = 300, 48
    problem, second = two_tasks(activation, rho, d)
    sgd = tl.SGD(0.2, layers=layers, constraint=constraint)
    replay = tl.Task(sgd, target=tl.Mixture([problem.target, second], [0.4, 0.6]))
    training = tl.Schedule([sgd, tl.Task(sgd, target=second, noise=0.1), replay], [1.0, 2.0])
    tree = tl.compare(
        problem,
        training,
        ["DirectSGD", "OverlapSGD", "SaadSolla"],
        until=3.0,
        save=[0.5, 1.0, 2.0, 3.0],
        replicas=replicas,
    )
    ode = tree["SaadSolla"]
    assert ode.sizes["task"] == 2
    for name in ("task_risk", "risk", "M", "Q", "a"):
        moments = {}
        for simulation in ("DirectSGD", "OverlapSGD"):
            runs = np.asarray(tree[simulation][name].values)
            mean, error = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1) / replicas**0.5
            assert np.all(np.abs(mean - ode[name].values[0]) < 4.0 * error + 6.0 / d), (simulation, name)
            moments[simulation] = (mean, error)
        (one, its_error), (other, other_error) = moments.values()
        assert np.all(np.abs(one - other) < 5.0 * np.hypot(its_error, other_error) + 1e-12), name


@pytest.mark.long
def test_the_shift_of_a_second_task_falls_as_one_over_d():
    """Mean of `OverlapSGD` minus the ODE at two dimensions: the larger one has the smaller shift, by its order."""
    gaps, errors = [], []
    for d in (20, 80):
        problem, second = two_tasks("erf", 0.5, d)
        training = tl.Schedule([tl.SGD(5.0), tl.Task(tl.SGD(5.0), target=second)], [1.0])
        ask = {"until": 2.0, "save": [2.0]}
        ode = tl.evolve(problem, training, "SaadSolla", **ask).task_risk.values[0, -1]
        runs = tl.evolve(problem, training, "OverlapSGD", **ask, replicas=60_000).task_risk.values[:, -1]
        gaps.append(runs.mean(axis=0) - ode)
        errors.append(runs.std(axis=0) / len(runs) ** 0.5)
    scaled, doubts = np.array(gaps) * [[20.0], [80.0]], np.array(errors) * [[20.0], [80.0]]
    assert np.abs(scaled[0]).max() > 5.0 * doubts[0].max()  # there is a shift to be seen
    # Equal up to chance, and to the next order, of which a quarter of the first one is a generous bound at d = 20.
    assert np.all(np.abs(scaled[1] - scaled[0]) < 4.0 * np.hypot(*doubts) + 0.25 * np.abs(scaled[0]))


def test_samples_of_a_mixture_have_its_shares():
    """A student at rest sees each label as often as its share says: fits of the second layer on constant labels."""
    share = 0.23
    mixed = tl.Mixture([tl.MultiIndex("0*z1", k=1), tl.MultiIndex("1 + 0*z1", k=1)], [1.0 - share, share])
    feature = tl.Student(1, tl.Custom(lambda x: 1.0 + 0.0 * x, parity=1, growth=0))
    problem = tl.Problem(mixed, feature, tl.Gaussian(5), noise=0.1)
    samples, replicas = 20_000, 8
    for simulation in ("DirectSGD", "OverlapSGD"):
        fit = tl.Schedule([tl.RidgeRegression(0.0, samples=samples)])
        found = tl.evolve(problem, fit, simulation, until=1.0, save=[1.0], replicas=replicas).a.values[:, -1, 0]
        error = ((share * (1.0 - share) + 0.1) / (samples * replicas)) ** 0.5
        assert abs(found.mean() - share) < 5.0 * error


# --------------------------------------------------------------------------------------------------- forgetting


@pytest.mark.slow
def test_forgetting_of_a_comparison():
    problem, second = two_tasks("erf", 0.5, 300)
    back = tl.Task(tl.SGD(1.0), target=tl.Mixture([problem.target, second], [0.5, 0.5]))
    training = tl.Schedule([tl.SGD(1.0), tl.Task(tl.SGD(1.0), target=second), tl.Task(tl.SGD(1.0))], [2.0, 4.0])
    ask = {"until": 9.0, "save": "linear:37", "replicas": 16}
    tree = tl.compare(problem, training, ["OverlapSGD", "SaadSolla"], **ask)
    fresh = tl.compare(problem, training.only(3), ["OverlapSGD", "SaadSolla"], **ask | {"until": 5.0})
    found = tl.forgetting(tree, fresh)
    ode = found.sel(description="SaadSolla")
    task = tree["SaadSolla"].task_risk.values[0, :, 0]
    time = tree["SaadSolla"].time.values
    at = {when: task[np.argmin(abs(time - when))] for when in (2.0, 4.0, 9.0)}
    assert float(ode.forgetting.sel(task=1, phase=2)) == pytest.approx(at[4.0] - at[2.0])
    assert float(ode.forgetting.sel(task=1, phase=2)) > 0.0 > float(ode.forgetting.sel(task=1, phase=3))
    again = float(ode.relearning_time.sel(task=1, phase=3))
    assert 0.0 < again < 5.0 and np.interp(4.0 + again, time, task) == pytest.approx(at[2.0], abs=1e-6)
    assert np.isnan(float(ode.relearning_time.sel(task=1, phase=2)))  # not trained there
    alone = tree["SaadSolla"].risk.values[0, -1]
    assert float(ode.transfer) == pytest.approx(fresh["SaadSolla"].risk.values[0, -1] - alone, abs=1e-9)
    assert found.attrs["judge"] == "OverlapSGD" and found.attrs["outcome"] in ("agrees", "consistent")
    assert "forgetting" in str(tl.summary(found)) and "Verdict" in str(tl.summary(found))
    assert tasks_of(problem, tl.Schedule([tl.SGD(1.0), back], [1.0]))[1].target is second


def test_forgetting_is_stored(tmp_path):
    problem, second = two_tasks("erf", 0.5, 100)
    training = tl.Schedule([tl.SGD(1.0), tl.Task(tl.SGD(1.0), target=second)], [1.0])
    result = tl.evolve(problem, training, "SaadSolla", until=2.0, save=4)
    for number, dataset in enumerate((result, tl.forgetting(result))):
        tl.save(dataset, tmp_path / f"{number}.nc")
        assert tl.load(tmp_path / f"{number}.nc").identical(dataset)
    assert [phase["shares"] for phase in json.loads(result.attrs["phases"])] == [[1.0, 0.0], [0.0, 1.0]]


# --------------------------------------------------------------------------------------------------- bad input


def test_what_does_not_fit_is_refused():
    problem, second = two_tasks("erf", 0.5, 100)

    def run(phase, description="SaadSolla"):
        return tl.evolve(problem, tl.Schedule([tl.SGD(1.0), phase], [1.0]), description, until=2.0)

    with pytest.raises(tl.InvalidInput, match="k = 2 fields of the problem, which span all tasks, but has 3"):
        run(tl.Task(tl.SGD(1.0), target=tl.Committee(3, "erf")))
    with pytest.raises(tl.InvalidInput, match="must equal that of the problem"):
        run(tl.Task(tl.SGD(1.0), target=tl.Committee(2, "erf", P=similar(0.1))))
    with pytest.raises(tl.InvalidInput, match=r"sum to 1, but is .*whose sum is 0\.9"):
        tl.Mixture([problem.target, second], [0.5, 0.4])
    with pytest.raises(tl.InvalidInput, match="at least 0"):
        tl.Mixture([problem.target, second], [1.5, -0.5])
    with pytest.raises(tl.InvalidInput, match="one number for each of the 2 targets"):
        tl.Mixture([problem.target, second], [1.0])
    with pytest.raises(tl.InvalidInput, match="same number k of fields, but have 2, 3"):
        tl.Mixture([second, tl.Committee(3, "erf")], [0.5, 0.5])
    with pytest.raises(tl.InvalidInput, match="share their labels"):
        fixed = tl.SGD(1.0, reuse=tl.Reused(2.0))
        tl.Schedule([fixed, tl.Task(fixed, target=second)], [1.0])
    with pytest.raises(tl.NotApplicable, match="particles"):
        run(tl.Task(tl.SGD(0.1), target=second), "MeanField")
    with pytest.raises(tl.NotApplicable, match="describes one target"):
        run(tl.Task(tl.SGD(0.1), target=tl.Mixture([problem.target, second], [0.5, 0.5])), "SDE")
    with pytest.raises(tl.NotApplicable, match="several tasks"):
        tl.exit_time(problem, tl.Schedule([tl.SGD(1.0), tl.Task(tl.SGD(1.0), target=second)], [1.0]))
    with pytest.raises(tl.InvalidInput, match="has one task"):
        tl.forgetting(tl.evolve(problem, tl.SGD(1.0), "SaadSolla", until=0.1))


@pytest.mark.slow
def test_the_sde_follows_two_tasks():
    """Its phases are those of any schedule; the risks of tasks come from its overlaps. Mean over 200 paths, z < 5."""
    problem, second = two_tasks("square", 0.5, 1000)
    training = tl.Schedule([tl.SGD(0.1), tl.Task(tl.SGD(0.1), target=second)], [0.5])
    ask = {"until": 1.0, "save": [0.5, 1.0]}
    paths = tl.evolve(problem, training, "SDE", **ask, replicas=200).task_risk
    ode = tl.evolve(problem, training, "SaadSolla", **ask).task_risk
    error = paths.std("replica", ddof=1) / 200**0.5
    assert np.all(np.abs(paths.mean("replica") - ode[0]) < 5.0 * error + 5.0 / 1000)
