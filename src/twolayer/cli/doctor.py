"""``twolayer doctor``: whether this machine computes correctly, how fast, and what would make it faster."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from twolayer.cli.answer import DONE, FAILED, Answer
from twolayer.cli.options import AsJson, Quiet
from twolayer.cli.remedies import remedies

BROKEN_JAX = "0.10.2"  # wrong numbers on CPU for a compiled, mapped matrix-vector product (jax issue 39103)
SHORT, LONG = 1000, 41_000  # steps of the two timed runs: their difference is free of what both pay once
REPLICAS = 2


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


def doctor(as_json: AsJson = False, quiet: Quiet = False) -> Answer:
    """Show versions, devices, precision and speed of this machine, and what would make it faster.

    What is slow or missing is listed with the command that mends it; the exit status is 3 when something is broken.

    Example: twolayer doctor --json
    """
    from twolayer import __version__
    from twolayer.data.provenance import versions

    installed = versions() | {"twolayer": __version__}
    checks = [
        _versions(installed),
        _devices(),
        _attempt("double precision", _precision),
        _attempt("results folder", _folder),
        _attempt("compiled programs", _programs),
    ]
    speed: dict[str, float] = {}
    if all(check.ok for check in checks[:3]):
        checks.append(_attempt("direct SGD", lambda: _direct_speed(speed)))
        checks.append(_attempt("Saad-Solla ODE", lambda: _ode_speed(speed)))
    healthy = all(check.ok for check in checks)
    mended_by = remedies(_platforms())
    data = {
        "healthy": healthy,
        "versions": installed,
        "checks": [check._asdict() for check in checks],
        "speed": speed,
        "remedies": [remedy._asdict() for remedy in mended_by],
    }
    width = max(len(check.name) for check in checks)
    lines = [f"{'ok    ' if check.ok else 'BROKEN'}  {check.name.ljust(width)}  {check.detail}" for check in checks]
    lines += [f"could be better: {remedy.what}\n    {remedy.command}" for remedy in mended_by]
    lines.append("This machine is fit for use." if healthy else "Something is broken: see the lines above.")
    return Answer(data, "\n".join(lines), DONE if healthy else FAILED)


def _versions(installed: dict[str, str]) -> Check:
    if installed["jax"] == BROKEN_JAX:
        detail = f"jax {BROKEN_JAX} returns wrong numbers on CPU (jax issue 39103): install another version."
        return Check("versions", False, detail)
    return Check("versions", True, ", ".join(f"{package} {version}" for package, version in installed.items()))


def _devices() -> Check:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        return Check("devices", False, f"JAX finds no device: {error}")
    return Check("devices", True, ", ".join(f"{device.platform} {device.device_kind}" for device in devices))


def _platforms() -> list[str]:
    """The platforms of the devices that JAX finds; none where it fails, which `_devices` tells."""
    import jax

    try:
        return [device.platform for device in jax.devices()]
    except RuntimeError:
        return []


def _attempt(name: str, look: Callable[[], str]) -> Check:
    """A check whose failure, whatever it is, is the finding."""
    try:
        return Check(name, True, look())
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _precision() -> str:
    """Compare a compiled, mapped matrix-vector product with NumPy, at a size where a compiler has erred."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from twolayer.core.precision import double

    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((16_385, 8)), rng.standard_normal((3, 8))
    expected = np.sum(np.tanh(w @ X.T), axis=1)
    with double():
        product = jax.jit(jax.vmap(lambda row: jnp.sum(jnp.tanh(jnp.asarray(X) @ row))))(jnp.asarray(w))
    error = float(np.max(np.abs(np.asarray(product) - expected)) / np.max(np.abs(expected)))
    if product.dtype != np.float64 or error > 1e-10:
        raise ArithmeticError(f"a sum of 16385 terms came out as {product.dtype} with relative error {error:.1e}.")
    return f"float64, relative error {error:.0e} in a sum of 16385 terms"


def _folder() -> str:
    from twolayer.cli.folder import RESULTS, check_writable

    check_writable(RESULTS)
    return f"{RESULTS.resolve()} can be written"


def _programs() -> str:
    from twolayer.core.program_cache import keep

    cache = keep()
    if cache is None:
        return "not kept"
    files = [*cache.shared.glob("*-cache"), *cache.native.glob("__pycache__/*.nbc")]
    sizes = [file.stat().st_size for file in files]
    return f"{len(sizes)} kept in {cache.shared.parent}, {sum(sizes) / 2**20:.0f} MiB"


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _problem() -> Any:
    """The erf committee of the demo, at a size where the cost of a step is that of its numbers."""
    from twolayer.experiment import demo_spec

    return demo_spec(["problem.inputs.d=1000"]).problem


def _direct_speed(speed: dict[str, float]) -> str:
    import twolayer as tl

    problem, training = _problem(), tl.SGD(0.5)
    until = training.clock(problem).time

    def steps(number: int) -> Callable[[], Any]:
        time = float(until(number))
        return lambda: tl.evolve(problem, training, tl.DirectSGD(), until=time, save=[time], replicas=REPLICAS)

    first, short, long = _timed(steps(SHORT)), _timed(steps(SHORT)), _timed(steps(LONG))
    speed["direct_sgd_compile_seconds"] = round(first - short, 3)
    # On a machine so busy that the longer run was the quicker one, what is left is an upper bound.
    seconds = (long - short) / (LONG - SHORT) if long > short else long / LONG
    speed["direct_sgd_microseconds_per_step"] = round(seconds / REPLICAS * 1e6, 2)
    return (
        f"{speed['direct_sgd_microseconds_per_step']:.1f} microseconds per step and replica (erf, p = 4, d = 1000), "
        f"after {speed['direct_sgd_compile_seconds']:.1f} s to compile"
    )


def _ode_speed(speed: dict[str, float]) -> str:
    import twolayer as tl

    problem, training = _problem(), tl.SGD(0.5)

    def solve() -> Any:
        return tl.evolve(problem, training, tl.SaadSolla(), until=20.0, save=20)

    first, again = _timed(solve), _timed(solve)
    speed["saad_solla_compile_seconds"] = round(first - again, 3)
    speed["saad_solla_solve_seconds"] = round(again, 3)
    return f"{again:.2f} s per solution until time 20 (erf, p = 4, k = 2), after {first - again:.1f} s to compile"
