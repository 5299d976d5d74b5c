"""Targets of several fields."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, first_line, shown
from twolayer.core.multivariate import MAX_DEGREE, Polynomial, compose, constant, hermite, unknown
from twolayer.core.precision import double
from twolayer.core.types import Converted, OptionalValues, Unchecked
from twolayer.problem.activations.found_kinks import has_kinks, kinks_in
from twolayer.problem.expression import MAX_FIELDS, MAX_POWER, MAX_VALUE, Expression
from twolayer.problem.kinks import kinks_of
from twolayer.problem.targets.target import AbstractTarget
from twolayer.specification.fields import accepts, array, count, flag, is_traced, leaf, static
from twolayer.specification.registry import register


def check_values(target: AbstractTarget, name: str) -> None:
    """Raise `InvalidInput` if a target does not return one finite number for ordinary fields."""
    random = np.random.default_rng(0).standard_normal((31, target.k))
    line = np.linspace(-8.0, 8.0, 33)  # includes rare fields, which occur in simulations
    along = [line[:, None] * direction for direction in (*np.eye(target.k), np.ones(target.k))]
    fields = np.concatenate([random, *along])
    try:
        with double():
            values = np.asarray(target(jnp.asarray(fields)))
    except InvalidInput:
        raise
    except Exception as error:  # a user's function may raise anything
        raise InvalidInput(
            f"Argument `{name}` must map {target.k} fields to one number, but fails: {first_line(error)}"
        ) from None
    if values.shape != fields.shape[:1]:
        raise InvalidInput(
            f"Argument `{name}` must return one number for {target.k} fields, but returns shape {values.shape[1:]}."
        )
    with np.errstate(invalid="ignore"):
        is_bounded = np.abs(values) <= MAX_VALUE
    if not np.all(is_bounded):
        worst = np.round(fields[int(np.argmin(is_bounded))], 2).tolist()
        raise InvalidInput(
            f"Argument `{name}` must be finite at every input, and at most {MAX_VALUE:g} since its square is averaged, "
            f"but is not at the fields {shown(worst)}."
        )


@accepts(str, Expression, Callable)
def _as_function(value: Any) -> Expression | Callable[[Any], Any]:
    if isinstance(value, str):
        return Expression(value)
    if isinstance(value, Expression) or callable(value):
        return value
    raise InvalidInput(
        f"Argument `function` must be a formula or a JAX function of the k fields, but is {shown(value)}."
    )


@register
class MultiIndex(AbstractTarget):
    r"""A target given by any function of k fields, :math:`f(\lambda^\star)`, with orthonormal directions.

    ``function`` is a formula in ``z1 .. zk`` or a JAX function that maps an array of shape (k,) to one number. Kinks
    of a JAX function are looked for in its operations; ``smooth=False`` says that it has some. No quadrature rule for
    smooth functions is used then.
    """

    function: Converted[str | Expression | Callable[[Any], Any], Any] = eqx.field(static=True, converter=_as_function)
    k: int = static(count("k", high=MAX_FIELDS))
    smooth: bool = static(flag("smooth"), default=True)

    def __init__(
        self,
        function: Unchecked[str | Expression | Callable[[Any], Any]],
        k: Unchecked[int | None] = None,
        smooth: Unchecked[bool] = True,
    ):
        """Set the defaults: for a formula, ``k`` is the highest index of its fields."""
        self.function = _as_function(function)
        if k is None:
            if not isinstance(self.function, Expression):
                raise InvalidInput("Argument `k` must be given for a JAX function, as its number of fields.")
            k = self.function.fields
        self.k = count("k", high=MAX_FIELDS)(k)
        self.smooth = flag("smooth")(smooth)

    def __check_init__(self):
        if isinstance(self.function, Expression) and self.function.fields > self.k:
            raise InvalidInput(
                f"Argument `k` must be at least {self.function.fields} for a formula with z{self.function.fields}, but "
                f"is {self.k}."
            )
        check_values(self, "function")

    @property
    def is_smooth(self) -> bool:
        if isinstance(self.function, Expression):
            return self.function.is_smooth
        return self.smooth and not has_kinks(self.function, self.k)

    @property
    def is_continuous(self) -> bool:
        return self.function.is_continuous if isinstance(self.function, Expression) else self.is_smooth

    @property
    def kinks(self) -> tuple[tuple[float, ...], ...] | None:
        if self.is_smooth:
            return ((),) * self.k
        if isinstance(self.function, Expression):
            return kinks_of(self.function.text, self.k)
        kinks = kinks_in(lambda z, f=self.function: f(jnp.reshape(z, (1,)))) if self.k == 1 else ()
        return (kinks,) if kinks else None

    @property
    def polynomial(self) -> Polynomial | None:
        return self.function.polynomial(self.k) if isinstance(self.function, Expression) else None

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        if isinstance(self.function, Expression):
            return self.function(lam_star)
        flat = jax.vmap(self.function)(lam_star.reshape(-1, self.k))
        return flat.reshape(lam_star.shape[:-1])


def _polynomial_value(polynomial: Polynomial, lam_star: Array) -> Array:
    powers = [1.0 + jnp.zeros_like(lam_star)]
    for _ in range(polynomial.degree):
        powers.append(powers[-1] * lam_star)
    value = jnp.zeros(lam_star.shape[:-1], lam_star.dtype)
    for exponents, coefficient in polynomial.terms.items():
        term = jnp.asarray(coefficient, lam_star.dtype)
        for r, exponent in enumerate(exponents):
            if exponent:
                term = term * powers[exponent][..., r]
        value = value + term
    return value


def _as_degrees(key: Any) -> tuple[int, ...]:
    """Convert 3, (1, 0, 2), or the strings "3" and "1,0,2" of a file to a tuple of degrees."""
    parts = key.split(",") if isinstance(key, str) else key if isinstance(key, tuple | list) else [key]
    try:
        degrees = tuple(int(part) for part in parts)
        if any(not isinstance(part, str) and part != degree for part, degree in zip(parts, degrees, strict=True)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        degrees = (-1,)
    if not degrees or min(degrees) < 0 or sum(degrees) > MAX_POWER:
        raise InvalidInput(
            "The degrees of a term in `coefficients` must be whole numbers of at least 0 with a sum of at most "
            f"{MAX_POWER}, but are {shown(key)}."
        )
    return degrees


@register
class Hermite(AbstractTarget):
    r"""A target that is a sum of products of Hermite polynomials.

    .. math:: f(\lambda^\star) = \sum_\beta c_\beta \prod_r \mathrm{He}_{\beta_r}(\lambda^\star_r)

    ``Hermite({3: 1.0})`` is :math:`\mathrm{He}_3(z_1)`; ``Hermite({(1, 0): 1.0, (0, 3): 0.5})`` is
    :math:`z_1 + \frac12 \mathrm{He}_3(z_2)`. The normalisation is :math:`E[\mathrm{He}_n^2] = n!`.
    """

    coefficients: Mapping[Any, float] = eqx.field(static=True)

    is_smooth: ClassVar[bool] = True

    def __init__(self, coefficients: Unchecked[Mapping[Any, float]]):
        """Read the coefficients, a mapping from degrees (one number, or one for each field) to numbers."""
        if not isinstance(coefficients, Mapping) or not coefficients:
            raise InvalidInput(
                f"Argument `coefficients` must be a mapping from degrees to numbers, but is {shown(coefficients)}."
            )
        pairs = {_as_degrees(key): float(array("coefficients", 0)(value)) for key, value in coefficients.items()}
        if len(pairs) < len(coefficients):
            raise InvalidInput("Argument `coefficients` must have every degree once, but has one twice.")
        if len({len(degrees) for degrees in pairs}) > 1:
            raise InvalidInput("The degrees in `coefficients` must all have the same number of fields.")
        self.coefficients = _FrozenTable({",".join(map(str, key)): pairs[key] for key in sorted(pairs)})

    def __check_init__(self):
        if self.k > MAX_FIELDS:
            raise InvalidInput(
                f"The degrees in `coefficients` must have at most {MAX_FIELDS} fields, but have {self.k}."
            )
        check_values(self, "coefficients")

    @property
    def k(self) -> int:
        return len(_as_degrees(next(iter(self.coefficients))))

    @property
    def polynomial(self) -> Polynomial | None:
        total = constant(self.k, 0.0)
        for key, coefficient in self.coefficients.items():
            term = constant(self.k, coefficient)
            for r, degree in enumerate(_as_degrees(key)):
                term = term * compose(hermite(degree), unknown(self.k, r))
            total = total + term
        return total

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        return _polynomial_value(self.polynomial, lam_star)  # pyright: ignore[reportArgumentType]


class _FrozenTable(dict):
    """A hashable mapping for a static field, which must not be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


@register
class Staircase(AbstractTarget):
    r"""The staircase :math:`f = c_1 z_1 + c_2 z_1 z_2 + \dots + c_k z_1 \cdots z_k`, learned direction by direction.

    See :cite:t:`abbe2022`; the coefficients are ones by default.
    """

    k: int = static(count("k", high=MAX_POWER))
    coefficients: OptionalValues = leaf(array("coefficients", 1, optional=True), default=None)

    is_smooth: ClassVar[bool] = True

    def __check_init__(self):
        if self.coefficients is not None and self.coefficients.shape != (self.k,):
            raise InvalidInput(
                f"Argument `coefficients` must have k = {self.k} entries, but has shape {self.coefficients.shape}."
            )

    @property
    def polynomial(self) -> Polynomial | None:
        if is_traced(self.coefficients) or self.k > MAX_DEGREE:
            return None
        steps = np.ones(self.k) if self.coefficients is None else np.asarray(self.coefficients)
        exponents = [tuple(int(s <= r) for s in range(self.k)) for r in range(self.k)]
        return Polynomial(self.k, {e: float(c) for e, c in zip(exponents, steps, strict=True) if c != 0.0})

    def __call__(self, lam_star: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        stairs = jnp.cumprod(lam_star, axis=-1)
        steps = jnp.ones(self.k) if self.coefficients is None else jnp.asarray(self.coefficients)
        return stairs @ steps.astype(lam_star.dtype)
