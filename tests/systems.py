r"""Problems that several files of the tests use, and their exact solutions.

The solutions are written here by routes of their own and share no code with the package.

Phase retrieval with one neuron on the sphere: with :math:`B = 4 (1 - 6 \gamma)` and :math:`A = B - 2 \gamma \Delta`,
:math:`dm/dt = m (A - B m^2)`, a Bernoulli equation for the overlap m; the excess risk is :math:`2 (1 - m^2)`.

A linear student of a linear target, p = k = 1, with weight decay: equations for (m, q) that are linear themselves.
"""

import numpy as np
from scipy.linalg import expm

import twolayer as tl

# An erf committee in a file, which runs in a moment.
SMALL_FILE = """
title = "small"
[problem]
[problem.target]
kind = "Committee"
k = 2
activation = "erf"
[problem.student]
p = 2
activation = "erf"
[problem.inputs]
kind = "Gaussian"
d = 20
[training]
learning_rate = 0.5
[run]
until = 1.0
save = 4
replicas = 2
"""

# ------------------------------------------------------------------------------------------------------ problems


def phase_retrieval(m: float, *, d: int = 1000, noise: float = 0.0) -> tl.Problem:
    """Phase retrieval by one neuron of unit length whose overlap with the target is m."""
    start = tl.GivenOverlaps([[1.0]], [[m]])
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), start=start, noise=noise)


def two_squares(*, d: int, noise: float = 0.1) -> tl.Problem:
    """Phase retrieval by two neurons from overlaps without a symmetry."""
    start = tl.GivenOverlaps([[1.0, 0.1], [0.1, 1.0]], [[0.4], [-0.2]])
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(d), start=start, noise=noise)


def erf_committee(p: int = 2, *, d: int = 100, noise: float = 0.0, start: tl.GivenOverlaps | None = None) -> tl.Problem:
    """An erf committee of two orthonormal neurons, learned by p neurons; random starts unless overlaps are given."""
    begins = {} if start is None else {"start": start}
    return tl.Problem(tl.Committee(2, "erf"), tl.Student(p, "erf"), tl.Gaussian(d), noise=noise, **begins)


def no_symmetry() -> tl.GivenOverlaps:
    """Overlaps of two neurons with two orthonormal targets that no exchange or change of sign leaves as they are."""
    return tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [-0.1, 0.4]])


def linear(q: float, m: float, *, d: int = 100, noise: float = 0.0) -> tl.Problem:
    """A linear student of a linear target of unit length, from length sqrt(q) and overlap m."""
    start = tl.GivenOverlaps([[q]], [[m]])
    return tl.Problem(tl.SingleIndex("linear"), tl.Student(1, "linear"), tl.Gaussian(d), start=start, noise=noise)


# ----------------------------------------------------------------------------------------------- exact solutions


def bernoulli_rates(gamma: float, noise: float) -> tuple[float, float]:
    """A and B of phase retrieval by one neuron on the sphere."""
    B = 4 * (1 - 6 * gamma)
    return B - 2 * gamma * noise, B


def squared_overlap(m: float, gamma: float, noise: float, t: float | np.ndarray) -> np.ndarray:
    """The overlap at time t, squared, of phase retrieval by one neuron on the sphere as d goes to infinity."""
    A, B = bernoulli_rates(gamma, noise)
    return A / (B + (A / m**2 - B) * np.exp(-2 * A * np.asarray(t)))


def time_to_overlap(m: float, reached: float, gamma: float, noise: float) -> float:
    """The time at which the overlap of the same problem has grown from m to the one reached."""
    A, B = bernoulli_rates(gamma, noise)
    return float(np.log(reached**2 / m**2 * (A - B * m**2) / (A - B * reached**2)) / (2 * A))


def shift_and_variance(m: float, gamma: float, noise: float, until: float) -> tuple[float, float]:
    r"""d (E[m] - ODE) and d Var(m) of the same problem at finite d, to leading order in 1/d.

    With one-step increments M = 2 x y E and Q = 4 x^2 E + 4 gamma x^2 E^2 (fields x, y; E the displacement), the
    projected increment T = M - m Q / 2 has mean F(m) and variance S(m); then C' = 2 F' C + gamma S and shift' = F'
    shift + F'' C / 2 + h, where h collects the second order of the normalisation and the fluctuation of the input's
    length. All averages by Gauss-Hermite quadrature, exact for these polynomials.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    g1, g2, g3 = np.meshgrid(nodes, nodes, nodes, indexing="ij")
    w = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * 3, indexing="ij")), axis=0)
    A, B = bernoulli_rates(gamma, noise)

    def rates(state: np.ndarray) -> np.ndarray:
        m, C, shift = state
        y, x = g1, m * g1 + np.sqrt(1 - m**2) * g2
        E = y**2 - x**2 + np.sqrt(noise) * g3
        M, Q = 2 * x * y * E, 4 * x**2 * E + 4 * gamma * x**2 * E**2
        T = M - m / 2 * Q
        F, square = np.sum(w * T), np.sum(w * T**2)
        first, second = A - 3 * B * m**2, -6 * B * m
        assert abs(F - m * (A - B * m**2)) < 1e-9
        h = gamma * np.sum(w * (-0.5 * M * Q + 3 / 8 * m * Q**2))
        h -= m / 2 * gamma * np.sum(w * 4 * x**2 * E**2 * (g1**2 + g2**2 - 2))
        return np.array([F, 2 * first * C + gamma * (square - F**2), first * shift + second / 2 * C + h])

    state, steps = np.array([m, 0.0, 0.0]), 200
    dt = until / steps
    for _ in range(steps):  # Runge-Kutta of fourth order
        k1 = rates(state)
        k2 = rates(state + dt / 2 * k1)
        k3 = rates(state + dt / 2 * k2)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + rates(state + dt * k3))
    return float(state[2]), float(state[1])


def linear_overlaps(q: float, m: float, gamma: float, noise: float, decay: float, times: np.ndarray) -> np.ndarray:
    """(m, q) of the linear student at the given times as d goes to infinity, by the matrix exponential."""
    # m' = 1 - m - decay m;  q' = 2 (m - q) + gamma (1 - 2 m + q + noise) - 2 decay q
    A = np.array([[-1 - decay, 0, 1], [2 - 2 * gamma, -2 + gamma - 2 * decay, gamma * (1 + noise)], [0, 0, 0]])
    return np.stack([expm(A * t) @ np.array([m, q, 1.0]) for t in times])[:, :2]
