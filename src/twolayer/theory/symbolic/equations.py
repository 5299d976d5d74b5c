"""Equations of motion as sympy expressions, printed as text or LaTeX, evaluated as functions of arrays."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.specification.fields import is_traced
from twolayer.theory.symbolic.evaluation import evaluator, value
from twolayer.theory.symbolic.indexed import PARAMETERS, Key

# The largest difference of an argument from the numbers that replace it, a little above the drift of an integrator.
TOLERANCE = 1e-6


class KnownValues(NamedTuple):
    """The values of a problem and its training, and which of them replace symbols in the formulas."""

    P: Any
    a: Any  # None when it is drawn at random
    gamma: Any
    Delta: Any
    kappa: Any
    weight_decay: Any
    is_spherical: bool
    trains_second_layer: bool
    has_unit_rows: bool
    has_unit_weights: bool
    is_orthonormal: bool


class Equation(NamedTuple):
    """One equation: its two sides as text and as LaTeX."""

    left: str
    right: str
    latex_left: str
    latex_right: str

    @property
    def text(self) -> str:
        """The equation as a line of text."""
        return f"{self.left} = {self.right}"

    @property
    def latex(self) -> str:
        """The equation as LaTeX, without an environment."""
        return f"{self.latex_left} = {self.latex_right}"


@dataclass(frozen=True, repr=False)
class Equations:
    r"""The closed equations of one-pass SGD as d goes to infinity, in the time :math:`t = \gamma\,samples / (p d)`.

    ``dQ`` (p, p), ``dM`` (p, k) and ``da`` (p, 1) are sympy matrices of time derivatives; ``risk`` contains the floor
    :math:`\Delta / 2`, ``excess_risk`` does not. The fields ``Q``, ``M``, ``P`` and ``a`` hold the unknowns, or the
    numbers that replace them; ``gamma``, ``Delta``, ``kappa`` and ``weight_decay`` are symbols, and ``sigma`` and ``f``
    the activation and the target. When ``p`` is a symbol, the matrices hold the equations of any two units j and l:
    ``Q`` is [Q[j, l]], ``M`` is [M[j, 1], ...], ``a`` is [a[j]].
    """

    p: Any
    k: int
    sigma: Any
    f: Any
    Q: Any
    M: Any
    P: Any
    a: Any
    gamma: Any
    Delta: Any
    kappa: Any
    weight_decay: Any
    dQ: Any
    dM: Any
    da: Any
    risk: Any
    excess_risk: Any
    given: KnownValues
    keys: Mapping[Any, Key]  # the expressions that are unknowns, and what they mean

    @property
    def is_symbolic_p(self) -> bool:
        """Whether the width is a symbol."""
        return not isinstance(self.p, int)

    # -------------------------------------------------------------------------------------------- in words

    def equations(self) -> list[Equation]:
        """The equations one by one: M, Q (pairs j <= l; on the sphere j < l), a, and the risk."""
        rows = range(self.dQ.shape[0])
        moves = self.is_symbolic_p or not self.given.is_spherical
        listed = [(self.M[j, r], self.dM[j, r]) for j in rows for r in range(self.k)]
        listed += [(self.Q[j, l], self.dQ[j, l]) for j in rows for l in rows if j < l or (j == l and moves)]
        if self.given.trains_second_layer:
            listed += [(self.a[j, 0], self.da[j, 0]) for j in rows]
        equations = [
            Equation(f"d{_text(x)}/dt", _text(rate), rf"\frac{{d {_latex(x)}}}{{dt}}", _latex(rate))
            for x, rate in listed
        ]
        return [*equations, Equation("risk", _text(self.risk), r"\mathcal{R}", _latex(self.risk))]

    def assumptions(self) -> list[str]:
        """The assumptions of the formulas, as sentences."""
        fields = "field z1" if self.k == 1 else f"fields z1 to z{self.k}"
        lines = [
            f"Student (1/p) sum_j a_j sigma(lambda_j) with sigma(x) = {_text(self.sigma)}; "
            f"target f = {_text(self.f)} of the {fields}.",
            "Time is t = gamma samples / (p d), as d goes to infinity; Delta is the variance of the label noise.",
        ]
        put_in = {
            "P the identity": self.given.is_orthonormal,
            "a_j = 1": self.given.has_unit_weights,
            "Q_jj = 1": self.given.has_unit_rows,
        }
        if any(put_in.values()):
            lines.append(f"Put in: {', '.join(words for words, is_put_in in put_in.items() if is_put_in)}.")
        if self.given.is_spherical and not self.given.has_unit_rows:
            lines.append("On the sphere Q_jj does not move.")
        if self.given.trains_second_layer:
            lines.append("kappa is the rate of the second layer over that of the first.")
        if self.weight_decay in self.keys:
            lines.append("lambda_w is the weight decay.")
        if self.is_symbolic_p:
            lines.append("j and l are any two units of the student, equal or not; sums run over all p units.")
        return lines

    def text(self, width: int = 120) -> str:
        """The assumptions and the equations as plain text."""
        lines = [textwrap.fill(line, width) for line in self.assumptions()]
        for equation in self.equations():
            lines += ["", textwrap.fill(equation.text, width, subsequent_indent="    ", break_long_words=False)]
        return "\n".join(lines)

    def latex(self) -> str:
        """The equations as an ``aligned`` environment."""
        rows = [f"{equation.latex_left} &= {equation.latex_right}" for equation in self.equations()]
        return "\\begin{aligned}\n" + " \\\\\n".join(rows) + "\n\\end{aligned}"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_latex_(self) -> str:
        return f"$$\n{self.latex()}\n$$"

    def to_dict(self) -> dict[str, Any]:
        """The equations as plain data, each under its left side."""
        return {
            "p": None if self.is_symbolic_p else self.p,
            "k": self.k,
            "assumptions": self.assumptions(),
            "equations": {
                equation.left: {"text": equation.text, "latex": equation.latex} for equation in self.equations()
            },
        }

    # ------------------------------------------------------------------------------------------ in numbers

    def lambdify(self, module: ModuleType = np) -> Callable[..., tuple[Any, Any, Any]]:
        """The right-hand side as a function ``(Q, M, P, a, gamma, Delta, kappa, weight_decay) -> (dQ, dM, da)``.

        All but Q and M may be left out, and are then those of the problem and the training. Arrays may carry leading
        axes. ``module`` is numpy or ``jax.numpy``. With gamma = 0 this is gradient flow.
        """
        evaluate = evaluator([*self.dQ, *self.dM, *self.da], self.keys)

        def right_hand_side(
            Q: Any,
            M: Any,
            P: Any = None,
            a: Any = None,
            gamma: Any = None,
            Delta: Any = None,
            kappa: Any = None,
            weight_decay: Any = None,
        ) -> tuple[Any, Any, Any]:
            arrays = self._arrays(module, Q, M, P, a, (gamma, Delta, kappa, weight_decay))
            values = evaluate(*(value(key, arrays, module) for key in self.keys.values()))
            p, batch = arrays["p"], arrays["Q"].shape[:-2]
            if self.is_symbolic_p:
                dQ, *rates = (module.asarray(x) for x in values)
                *dM, da = (module.array(module.broadcast_to(x, (*batch, p, 1))[..., 0]) for x in rates)
                return module.array(module.broadcast_to(dQ, (*batch, p, p))), module.stack(dM, axis=-1), da
            flat = module.stack([module.broadcast_to(module.asarray(x), batch) for x in values], axis=-1)
            dQ, dM, da = module.split(flat, [p * p, p * p + p * self.k], axis=-1)
            return dQ.reshape(*batch, p, p), dM.reshape(*batch, p, self.k), da

        return right_hand_side

    def lambdify_risk(self, module: ModuleType = np) -> Callable[..., Any]:
        """The risk as a function ``(Q, M, P, a, Delta) -> risk``; arguments as those of `lambdify`."""
        evaluate = evaluator([self.risk], self.keys)

        def risk(Q: Any, M: Any, P: Any = None, a: Any = None, Delta: Any = None) -> Any:
            arrays = self._arrays(module, Q, M, P, a, (None, Delta, None, None))
            (total,) = evaluate(*(value(key, arrays, module) for key in self.keys.values()))
            total = module.asarray(total)
            return total[..., 0, 0] if self.is_symbolic_p and total.ndim else total

        return risk

    def _arrays(self, module: Any, Q: Any, M: Any, P: Any, a: Any, rates: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments as arrays, with defaults from the problem; raises where they contradict the formulas."""
        given = self.given
        Q, M = module.asarray(Q, dtype=float), module.asarray(M, dtype=float)
        if M.ndim < 2 or M.shape[-1] != self.k or Q.shape[-2:] != (M.shape[-2],) * 2:
            raise InvalidInput(
                f"Arguments `Q` and `M` must have shapes (p, p) and (p, k) with k = {self.k}, "
                f"but have shapes {tuple(Q.shape)} and {tuple(M.shape)}."
            )
        p = M.shape[-2]
        if not self.is_symbolic_p and p != self.p:
            raise InvalidInput(f"Arguments `Q` and `M` must have p = {self.p} rows, but have {p}.")
        if a is None:
            a = np.ones(p) if given.has_unit_weights else given.a
            if a is None or len(a) != p:
                raise InvalidInput(f"Argument `a` must be given: the problem does not fix p = {p} output weights.")
        P, a = module.asarray(given.P if P is None else P, dtype=float), module.asarray(a, dtype=float)
        for name, array, shape in (("P", P, (self.k, self.k)), ("a", a, (p,))):
            if array.shape[-len(shape) :] != shape:
                raise InvalidInput(f"Argument `{name}` must have shape {shape}, but has shape {tuple(array.shape)}.")
        _check_put_in("Q", Q[..., np.arange(p), np.arange(p)], 1.0, given.has_unit_rows)
        _check_put_in("P", P, np.eye(self.k), given.is_orthonormal)
        _check_put_in("a", a, 1.0, given.has_unit_weights)
        parameters = {name: getattr(given, name) if x is None else x for name, x in zip(PARAMETERS, rates, strict=True)}
        return {"Q": Q, "M": M, "P": P, "a": a, "p": p, "is_symbolic_p": self.is_symbolic_p} | parameters


def _check_put_in(name: str, argument: Any, numbers: Any, is_put_in: bool) -> None:
    if is_put_in and not is_traced(argument) and np.any(np.abs(np.asarray(argument) - numbers) > TOLERANCE):
        words = {"Q": "have ones on its diagonal", "P": "be the identity", "a": "be all ones"}[name]
        raise InvalidInput(
            f"Argument `{name}` must {words}, which is put into these formulas: derive them with `general=True`."
        )


@cache
def _printers() -> tuple[Any, Any]:
    """Printers that write the terms with the learning rate and the noise last, and otherwise in sympy's order."""
    from sympy.printing.latex import LatexPrinter
    from sympy.printing.str import StrPrinter

    def ordered(printer: Any, expression: Any, order: Any = None) -> list[Any]:
        def rank(term: Any) -> tuple[bool, bool]:
            names = {symbol.name for symbol in term.free_symbols}
            return "Delta" in names, "gamma" in names

        return sorted(expression.as_ordered_terms(), key=rank)

    text = type("Text", (StrPrinter,), {"_as_ordered_terms": ordered})
    latex = type("Latex", (LatexPrinter,), {"_as_ordered_terms": ordered})
    return text({"full_prec": False}), latex()


def _text(expression: Any) -> str:
    return _printers()[0].doprint(expression)


def _latex(expression: Any) -> str:
    return _printers()[1].doprint(expression)
