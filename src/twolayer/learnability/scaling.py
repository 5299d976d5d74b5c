r"""The numbers of steps and samples that protocols need, as powers of the dimension.

Near :math:`m \sim d^{-1/2}` on the sphere a step is :math:`m^+ \simeq m + c\,\gamma_d m^{\ell-1}
- C \gamma_d^2 \frac{d}{n_b} m + \frac{\gamma_d}{\sqrt{n_b}} N(0, 1)`. The drift wins for
:math:`\gamma_d \lesssim n_b d^{-\ell/2}` (:math:`\ell \ge 2`; :math:`n_b/d` at :math:`\ell = 1`), which gives the
steps. These are quoted exponents, not bounds with constants: :cite:t:`benarous2021`, :cite:t:`arnaboldi2024batch`,
:cite:t:`dandi2024reusing`, :cite:t:`arnaboldi2024repetita`, :cite:t:`damian2024`.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Scaling:
    """The steps and samples that one protocol needs; exponents are powers of d, None if there is no such power."""

    protocol: str
    steps: str
    samples: str
    steps_exponent: float | None
    samples_exponent: float | None
    has_log: bool = False
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the scaling as plain data."""
        return asdict(self)


def power(exponent: float, has_log: bool = False) -> str:
    """Return a power of d as text."""
    text = "1" if exponent == 0 else "d" if exponent == 1 else f"d^{exponent:g}"
    if not has_log:
        return text
    return "log d" if exponent == 0 else f"{text} log d"


def online_exponent(leap: int) -> tuple[float, bool]:
    """Return the power of d, and whether it has a logarithm, of the samples of one-pass SGD with batch size one."""
    return float(max(1, leap - 1)), leap == 2


def learning_rate_exponent(leap: int) -> float:
    r"""Return the power of d of the largest learning rate (of `SGD`, :math:`\gamma_d d / n_b`) at which drift wins."""
    return min(0.0, 1.0 - leap / 2.0)


def scalings(leap: int, generative: int | None, giant: list[str], reused: list[str]) -> list[Scaling]:
    """Return the scalings of all protocols for a target of given leap and generative leap.

    Parameters
    ----------
    leap, generative
        The largest leap of a stage, for correlations with the label and for any function of it.
    giant, reused
        The directions, as text, that a few giant steps learn on fresh batches and on one that is used again.
    """
    exponent, has_log = online_exponent(leap)
    samples = power(exponent, has_log)
    batch = max(leap / 2.0, 1.0)
    rate = power(learning_rate_exponent(leap))
    rows = [
        Scaling("online SGD, one sample a step", samples, samples, exponent, exponent, has_log, f"rate {rate}"),
        Scaling(
            f"fresh batches n_b up to {power(batch)}",
            f"{samples} / n_b, at best {power(exponent - batch, has_log)}",
            samples,
            exponent - batch,
            exponent,
            has_log,
            "larger ones save no steps with the square loss",
        ),
    ]
    if leap >= 2:
        rows.append(
            Scaling(
                f"fresh batches n_b = {power(max(exponent, 1.0))}, loss=Correlation()",
                "log d" if has_log else "1",
                samples,
                0.0,
                exponent,
                has_log,
                "up to logarithms",
            )
        )
    learned = ", ".join(giant) if giant else "nothing"
    rows.append(Scaling("giant steps, n_b ~ d, fresh", "1", "d", 0.0, 1.0, False, f"find {learned}"))
    return rows if generative is None else [*rows, *_reuse_scalings(leap, generative, reused)]


def _reuse_scalings(leap: int, generative: int, reused: list[str]) -> list[Scaling]:
    """Return the scalings of protocols that use samples again, and the lower bounds on samples."""
    again = ", ".join(reused) if reused else "nothing at once"
    late = "; the others need log d steps" if generative == 2 else "" if generative == 1 else "; the others are hard"
    rows = [
        Scaling(
            "giant steps, n_b ~ d, the same batch",
            "1" if generative == 1 else "log d" if generative == 2 else "many",
            "d" if generative <= 2 else "more than d",
            0.0 if generative <= 2 else None,
            1.0 if generative <= 2 else None,
            generative == 2,
            f"find {again}{late}",
        )
    ]
    if generative <= 2:
        twice = power(1.0, generative == 2)
        rows.append(Scaling("each sample used twice", twice, twice, 1.0, 1.0, generative == 2))
    else:
        rows.append(
            Scaling("each sample used twice", "many", "many", None, None, False, f"hard: generative leap {generative}")
        )
    bounds = power(max(1.0, leap / 2.0)), power(max(1.0, generative / 2.0))
    rows.append(
        Scaling(
            "lower bounds on samples",
            "",
            f"{bounds[0]} by correlations, {bounds[1]} by any function of the label",
            None,
            max(1.0, generative / 2.0),
        )
    )
    return rows
