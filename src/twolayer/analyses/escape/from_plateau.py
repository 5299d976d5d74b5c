"""Phase retrieval by rows or output weights that change their size: formulas along the motion to a plateau."""

import numpy as np

from twolayer.analyses.escape.exit_starts import largest_squares
from twolayer.analyses.escape.exit_theories import AbstractPredictor, AskedExit, Predictions
from twolayer.analyses.escape.from_ode import FromODE
from twolayer.analyses.quantity import Prediction
from twolayer.ask import Training
from twolayer.problem import Problem
from twolayer.theory.formulas import phase_retrieval, quadratic
from twolayer.training import SGD


class FromPlateau(AbstractPredictor):
    """The exit of a quadratic student by overlap: formulas along its motion without overlap, the ODE, and noise."""

    def applies(self, problem: Problem, training: Training) -> bool:
        """Whether the student is one of those that the formulas are about."""
        return isinstance(training, SGD) and quadratic.student_of(problem, training) is not None

    def predict(self, problem: Problem, training: Training, asked: AskedExit) -> Predictions:
        """Predict the exit time by the formulas at the plateau and by the ODE, with the noise of SGD.

        The formula of each start tells most of the scatter of the ODE; its mean over the law of the start is known.
        """
        assert isinstance(training, SGD)
        student, gamma, d = quadratic.student_of(problem, training), float(training.learning_rate), problem.d
        assert student is not None
        escape = quadratic.Escape(student, gamma, asked.threshold)
        few = asked.drawn.first(asked.starts)
        predictions = FromODE().predict(problem, training, asked._replace(drawn=few))
        quenched, noisy = escape.mean_time(d), escape.mean_time(d, is_noisy=True)
        rest, ode = student.rest(gamma), predictions.ode
        rates = {
            "growth_rate": None if rest is None else rest.growth_rate,
            "optimal_learning_rate": student.optimal_learning_rate,
            "maximal_learning_rate": student.maximal_learning_rate,
            "noise_shift": None if rest is None else escape.noise_shift,
        }
        rates = {name: float(value) for name, value in rates.items() if value is not None}
        annealed = escape.annealed_time(d)
        estimates = {
            "annealed": Prediction(annealed, quadratic.ACCURACY * (1.0 + annealed)),
            "quenched": Prediction(quenched.value, quenched.error + quadratic.ACCURACY * (1.0 + quenched.value)),
            "quenched_with_noise": Prediction(noisy.value, noisy.error + quadratic.ACCURACY * (1.0 + noisy.value)),
            "ode": predictions.estimates["ode"],
        }
        if ode is not None and ode.size > 1 and not ode.is_censored and np.isfinite(noisy.value):
            squares = largest_squares(few.plan.starts)
            unexplained = ode.times - escape.times(squares)
            scatter = phase_retrieval.STANDARD_ERRORS * float(np.std(unexplained, ddof=1) / np.sqrt(ode.size))
            numerical = predictions.estimates["ode"].error - phase_retrieval.STANDARD_ERRORS * ode.standard_error
            value = quenched.value + float(np.mean(unexplained))
            error = scatter + numerical + estimates["quenched"].error
            change = noisy.value - quenched.value
            left_out = escape.model_error(d, value + change, change, squares, ode.times)
            estimates["ode"] = Prediction(value, error)
            estimates["ode_at_finite_d"] = Prediction(value + change, error, left_out)
        note = _no_plateau(student, gamma, rest)
        return Predictions(estimates, rates, ode, (*predictions.notes, *note))


def _no_plateau(student: quadratic.QuadraticStudent, gamma: float, rest: quadratic.Rest | None) -> list[str]:
    """Where the escape is not from a plateau at rest, and why."""
    largest = student.maximal_learning_rate
    if largest is None:
        return [
            "There is no plateau: the noise of SGD goes on to lengthen the rows while output weights shrink, so that "
            "the exit is slower than log d."
        ]
    if rest is None or gamma >= largest:
        return [f"Above the learning rate {largest:.4g} the plateau is not left, or rows grow without bound."]
    return [f"Without overlap rows relax to a squared length of {rest.q:.4g} and output weights to {rest.a:.4g}."]
