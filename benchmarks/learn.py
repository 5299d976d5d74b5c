"""Seconds to analyse a target: k = 3 fields and degree 8, the whole library, and the costliest sources."""

from common import against, best, once, report, use_one_core

use_one_core()

import numpy as np

import twolayer as tl
from twolayer.learnability import analyse, named_targets
from twolayer.learnability.tensors import monomials


def dense_polynomial(k: int, degree: int) -> tl.Hermite:
    """Every Hermite coefficient from order 2 to a degree."""
    draw = np.random.default_rng(0)
    betas = [tuple(map(int, beta)) for n in range(2, degree + 1) for beta in monomials(k, n)]
    return tl.Hermite({beta: int(draw.integers(1, 10)) / 100 for beta in betas})


def sparse_polynomial() -> str:
    """Degree 8 in three fields, leap 2 after a first step: all parts of the analysis are exercised."""
    return "z1 + z1*he2(z2) + he4(z1)*he2(z2)*he2(z3) + he8(z2)"


def main() -> None:
    once(lambda: analyse("z1"))  # imports
    targets = {
        "k=3, degree 8, sparse": sparse_polynomial(),
        "k=3, degree 8, 161 coefficients": dense_polynomial(3, 8),
        "k=4, generative": "z1*z2*z3*z4",
        "k=2, quadrature": "tanh(z1 + he3(z2))",
    }
    rows = [{"target": name, "seconds": best(lambda t=text: analyse(t), 3)} for name, text in targets.items()]
    library = best(lambda: [analyse(name) for name in named_targets()], 1)
    rows.append({"target": f"the library, {len(named_targets())} targets", "seconds": library})
    report("learn", rows, [against("exponents of a target, k=3, degree 8", "s", rows[0]["seconds"])])


if __name__ == "__main__":
    main()
