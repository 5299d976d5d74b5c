r"""Coefficients of embedded Runge-Kutta methods whose last stage is the first one of the next step.

.. math:: k_i = f\Big(y + h \sum_j A_{ij} k_j\Big), \qquad y_1 = y + h \sum_j A_{s-1,j} k_j, \qquad
          \mathrm{error} = h \sum_j e_j k_j, \qquad y(t + \theta h) = y + h \sum_{jn} D_{jn} \theta^{n+1} k_j

The high-order pair is that of Prince and Dormand (1981), with the interpolation of Bogacki and Shampine (1990); the
other pair, with its interpolation, is that of Tsitouras (2011). `finely` makes an interpolation of one order more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Tableau(NamedTuple):
    """One method: weights of the stages, of the error, and of the interpolation (stages by powers from one on)."""

    A: np.ndarray
    error: np.ndarray
    dense: np.ndarray
    order: int  # of the error estimate

    @property
    def c(self) -> np.ndarray:
        """The times of the stages, as parts of a step."""
        return self.A.sum(axis=1)


def _lower(rows: Sequence[Sequence[float | int]]) -> np.ndarray:
    """The square matrix of the stages, whose first one has no row."""
    matrix = np.zeros((len(rows) + 1, len(rows) + 1))
    for number, row in enumerate(rows, start=1):
        matrix[number, : len(row)] = row
    return matrix


_EIGHTH = [14005451 / 335480064, 0, 0, 0, 0, -59238493 / 1068277825, 181606767 / 758867731, 561292985 / 797845732,
           -1041891430 / 1371343529, 760417239 / 1151165299, 118820643 / 751138087, -528747749 / 2220607170, 1 / 4,
           0]  # fmt: skip
_SEVENTH = [13451932 / 455176623, 0, 0, 0, 0, -808719846 / 976000145, 1757004468 / 5645159321,
            656045339 / 265891186, -3867574721 / 1518517206, 465885868 / 322736535, 53011238 / 667516719, 2 / 45, 0,
            0]  # fmt: skip

DORMAND_PRINCE = Tableau(
    A=_lower([
        [1 / 18],
        [1 / 48, 1 / 16],
        [1 / 32, 0, 3 / 32],
        [5 / 16, 0, -75 / 64, 75 / 64],
        [3 / 80, 0, 0, 3 / 16, 3 / 20],
        [29443841 / 614563906, 0, 0, 77736538 / 692538347, -28693883 / 1125000000, 23124283 / 1800000000],
        [16016141 / 946692911, 0, 0, 61564180 / 158732637, 22789713 / 633445777, 545815736 / 2771057229,
         -180193667 / 1043307555],
        [39632708 / 573591083, 0, 0, -433636366 / 683701615, -421739975 / 2616292301, 100302831 / 723423059,
         790204164 / 839813087, 800635310 / 3783071287],
        [246121993 / 1340847787, 0, 0, -37695042795 / 15268766246, -309121744 / 1061227803, -12992083 / 490766935,
         6005943493 / 2108947869, 393006217 / 1396673457, 123872331 / 1001029789],
        [-1028468189 / 846180014, 0, 0, 8478235783 / 508512852, 1311729495 / 1432422823, -10304129995 / 1701304382,
         -48777925059 / 3047939560, 15336726248 / 1032824649, -45442868181 / 3398467696, 3065993473 / 597172653],
        [185892177 / 718116043, 0, 0, -3185094517 / 667107341, -477755414 / 1098053517, -703635378 / 230739211,
         5731566787 / 1027545527, 5232866602 / 850066563, -4093664535 / 808688257, 3962137247 / 1805957418,
         65686358 / 487910083],
        [403863854 / 491063109, 0, 0, -5068492393 / 434740067, -411421997 / 543043805, 652783627 / 914296604,
         11173962825 / 925320556, -13158990841 / 6184727034, 3936647629 / 1978049680, -160528059 / 685178525,
         248638103 / 1413531060, 0],
        _EIGHTH[:13],
    ]),
    error=np.subtract(_EIGHTH, _SEVENTH),
    dense=np.array([
        [1.0, -6.6910181737837595697, 19.999006933368397061, -30.0610568289666450593, 22.1396504998094068976,
         -6.3448349392860401388],
        [0.0] * 6, [0.0] * 6, [0.0] * 6, [0.0] * 6,
        [0.0, -7.6142658045872677172, 52.227353279294552405, -121.4999627731334642623, 116.4422149550342161651,
         -39.6107919852202505218],
        [0.0, 10.7281392630428866124, -46.8919164181093621583, 83.1721004639847717481, -67.1451318825957197185,
         20.3761213808791436958],
        [0.0, 0.5526637063753648783, -0.1890893225010595467, 9.5724507555993664382, -16.5672243527496524646,
         7.3347098826795362023],
        [0.0, 4.2186562625665153803, -35.7075975946222072821, 87.8406057677205645007, -89.9916014847245016028,
         32.8801774352459155182],
        [0.0, -0.6627209125361597559, 6.273644808324035216, -17.4152107770762969005, 22.6237489648532849093,
         -10.1588990526426760954],
        [0.0, -1.2636789001135462218, 10.3160881272450748458, -28.5903289514790976966, 32.2362340167355370113,
         -12.54012680987825612],
        [0.0, 5.410603789859042223, -34.7650769866611817349, 81.6630950584341412934, -82.1020315488359848644,
         29.5553001484516038033],
        [0.0, -7.0321379067945741781, 47.7457971078225540396, -114.937529137700941817, 116.2662185791119533462,
         -41.7923486424390588923],
        [0.0, 2.3537586759714983486, -19.0082099341608028453, 50.2558364226176017553, -53.9020777466385396792,
         20.3006925822100825485],
    ]),
    order=7,
)  # fmt: skip

_FIFTH = [0.09646076681806523, 0.01, 0.47988965041449957, 1.379008574103742, -3.290069515436081, 2.324710524099774, 0]
_FOURTH = [0.09468075576583945, 0.009183565540343254, 0.4877705284247616, 1.234297566930479, -2.7077123499835256,
           1.866628418170587, 1 / 66]  # fmt: skip

TSITOURAS = Tableau(
    A=_lower([
        [0.161],
        [-0.008480655492356989, 0.335480655492357],
        [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
        [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
        [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383],
        _FIFTH[:6],
    ]),
    error=np.subtract(_FIFTH, _FOURTH),
    dense=np.array([
        [1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216],
        [0.0, 0.1317, -0.2234, 0.1017],
        [0.0, 3.930296236894751, -5.941033872131505, 2.490627285651253],
        [0.0, -12.411077166933676, 30.33818863028232, -16.548102889244902],
        [0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928],
        [0.0, -27.896526289197286, 65.09189467479368, -34.87065786149661],
        [0.0, 1.5, -4.0, 2.5],
    ]),
    order=4,
)  # fmt: skip


def finely(tableau: Tableau, points: Sequence[float]) -> Tableau:
    """Return the method with further stages at some points of the step, and an interpolation of one order more.

    The stages are at the values of the interpolation that there is. With their slopes, those at both ends of the step,
    and both values, a polynomial is known.
    """
    own, powers = len(tableau.c), np.arange(1, tableau.dense.shape[1] + 1)
    A = np.zeros((own + len(points), own + len(points)))
    A[:own, :own] = tableau.A
    for number, point in enumerate(points):
        A[own + number, :own] = tableau.dense @ point**powers
    known = len(points) + 3
    slopes = [[n * point ** (n - 1) for n in range(1, known + 1)] for point in (0.0, 1.0, *points)]
    conditions = np.array([*slopes, [1.0] * known])
    given = np.zeros((known, len(A)))
    given[np.arange(known - 1), [0, own - 1, *range(own, len(A))]] = 1.0
    given[-1, :own] = tableau.A[-1]
    return Tableau(A, tableau.error, np.linalg.solve(conditions, given).T, tableau.order)


# Its interpolation has about the estimated error of a step, for four evaluations more.
FINE = finely(DORMAND_PRINCE, (0.2, 0.4, 0.6, 0.8))
