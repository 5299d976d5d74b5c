"""The matrix-free route of the kernel side: on this machine's cores, and on accelerators with all of MNIST.

Each row of a table is printed as soon as it is known. Called by `python benchmarks/ntk.py --free | --device`.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from twolayer.analyses.lazy.lazy_result import rank_correlation
from twolayer.kernel import GramProduct, free_spectrum, gram, measure, spectrum, train
from twolayer.kernel.solve import Preconditioner, conjugate_gradients


def say(*cells: Any) -> None:
    """One row of a markdown table."""
    shown = [f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in cells]
    print("| " + " | ".join(shown) + " |", flush=True)


def head(*names: str) -> None:
    print(flush=True)
    say(*names)
    say(*["---"] * len(names))


def clock(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def images(n: int, folder: Path | None) -> tuple[np.ndarray, np.ndarray, str]:
    """MNIST, one class against the rest, where it is; else inputs of one sign with the labels of a plane."""
    if folder is not None:
        import twolayer as tl

        found = tl.load_samples("mnist", classes=0, n=n, data_dir=folder)
        return np.asarray(found.X), np.asarray(found.y), "MNIST, 0 against the rest"
    X = np.random.default_rng(0).random((n, 784)) ** 4
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.where(X[:, 0] > np.median(X[:, 0]), 1.0, -1.0), "random inputs of one sign"


def free(n: int, folder: Path | None) -> None:
    """Rates, steps, memory and accuracy on this machine's cores."""
    X, y, name = images(n, folder)
    print(f"\n{name}, n = {n}, d = {X.shape[1]}")
    head("product with 8 vectors, made anew", "s", "floor (X X^T, half) s", "ratio")
    V = np.random.default_rng(1).standard_normal((n, 8))
    for precision, dtype in (("double", np.float64), ("single", np.float32)):
        product, U = GramProduct(X, precision=precision, keep=False), X.astype(dtype)
        times = [(clock(lambda p=product: p(V))[1], clock(lambda U=U: U @ U.T)[1]) for _ in range(3)]
        ours, floor = min(t for t, _ in times), 0.5 * min(t for _, t in times)
        say(precision, ours, floor, ours / floor)

    head("conjugate gradients to 1e-8", "steps", "s")
    product = GramProduct(X, keep=True)
    found, seconds = clock(lambda: conjugate_gradients(product, lambda v: v, y[:, None], 1e-8))
    say("no preconditioner", found.steps, seconds)
    for rank in (100, 300, 1000):
        chosen = np.sort(np.random.default_rng(2).choice(n, min(rank, n // 4), replace=False))
        near, setup = clock(lambda c=chosen: Preconditioner(product.columns(c), c, product.diagonal))
        found, seconds = clock(lambda p=near: conjugate_gradients(product, p, y[:, None], 1e-8))
        say(f"{len(chosen)} columns (made in {setup:.2g} s)", found.steps, seconds)
    head("against the exact route", "lambda_min", "lambda_max", "y H^-1 y", "bound of its error", "s")
    for precision in ("double", "single"):
        run, seconds = clock(lambda p=precision: free_spectrum(X, precision=p))
        form, more = clock(lambda r=run: r.inverse_form(y))
        low, high = (f"{v:.6g} +- {e:.1g}" for v, e in extremes(run))
        say(f"free, {precision}", low, high, f"{form.value:.12g}", float(form.error), seconds + more)
    exact, seconds = clock(lambda: spectrum(X))
    form = exact.inverse_form(y)
    say("exact", exact.lambda_min, exact.lambda_max, f"{form.value:.12g}", float(form.error), seconds)
    found, seconds = clock(lambda: measure(X, y))
    say("Cholesky", "", "", f"{0.5 * n * found.value**2:.12g}", float(n * found.value * found.error), seconds)
    gap = np.max(np.abs(run.residuals(y, 100) - exact.residuals(y, 100, run.check_step(None))))
    print(f"\nresiduals over 100 steps, single, largest distance from the exact ones: {gap:.2g} (of {np.sqrt(n):.3g})")

    head("peak memory beyond the inputs", "n^2 doubles", "GB")
    for what in ("eigh", "cholesky", "free"):
        say(what, *peak_of(what, n))


def extremes(run: Any) -> list[tuple[float, float]]:
    return [(run.lambda_min, run.lambda_min_error), (run.lambda_max, run.lambda_max_error)]


def peak_of(what: str, n: int) -> tuple[float, float]:
    """Peak memory of one route in a process of its own, beyond what it had with its inputs."""
    done = subprocess.run([sys.executable, __file__, what, str(n)], capture_output=True, text=True, check=True)
    size = float(done.stdout.split()[-1])
    return size / (8.0 * n**2), size / 1e9


def memory(field: str) -> float:
    """Of this process, in bytes, as Linux counts it: what getrusage says may be inherited from the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * float(line.split()[1]) for line in lines if line.startswith(field))


def peak(what: str, n: int) -> None:
    X, y, _ = images(n, None)
    gram(X[:300])
    before = memory("VmRSS")
    if what == "eigh":
        spectrum(X)
    elif what == "cholesky":
        measure(X, y, method="exact")
    else:
        product = GramProduct(X, keep=False)
        for _ in range(2):
            product(y)
    print(memory("VmHWM") - before)


def device(folder: Path | None, n: int | None) -> None:
    """All of MNIST on the accelerators there are: pair of classes, then one class against the rest."""
    import jax

    import twolayer as tl

    if folder is None:
        raise SystemExit("Option --device needs --data-dir, the folder of mnist.npz.")
    print(f"\n{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    started, shares = time.perf_counter(), np.linspace(0.0, 1.0, 11)
    head("what", "seconds", "result")
    for classes in ((0, 1), 0):
        name = "MNIST 0 against 1" if classes else "MNIST 0 against the rest"
        training, test = (
            tl.load_samples("mnist", classes=classes, split=s, data_dir=folder) for s in ("train", "test")
        )
        X, y = np.asarray(training.X)[:n], np.asarray(training.y)[:n]
        forms = {}
        for precision in ("single", "double"):
            forms[precision] = one_set(f"{name}, n = {len(y)}, {precision}", X, y, precision)
        gap = abs(forms["single"].value - forms["double"].value)
        allowed = forms["single"].error + forms["double"].error
        say(f"{name}: single against double", "", f"y H^-1 y differs by {gap:.2g}, errors allow {allowed:.2g}")
        problem = tl.Problem(tl.Labels(), tl.Student(2, "relu"), tl.Samples(X, y))
        found, seconds = clock(
            lambda p=problem, t=test: tl.ntk(
                p, tl.First(), test=t, method="free", shares=shares, precision="single", steps=100, replicas=0
            )
        )
        pairs = zip(found.share_complexity.values, found.share_kernel_error.values, strict=True)
        words = ", ".join(f"{measure:.3f}/{error:.3f}" for measure, error in pairs)
        say(f"{name}: tl.ntk with 11 shares", seconds, f"rank correlation {rank_correlation(found):.3f}; {words}")
    X, y = X[:1000], y[:1000]
    for width in (8192, 65_536):
        options: dict[str, Any] = {"width": width, "eta": 1e-3, "precision": "single", "grams": False}
        clock(lambda o=options: train(X, y, steps=32, **o))
        first, second = (clock(lambda s=steps, o=options: train(X, y, steps=s, **o))[1] for steps in (32, 352))
        step = (second - first) / 320.0
        rate = f"{2e-12 * width * len(y) ** 2 / step:.3g} TFLOP/s"
        say(f"step of gradient descent, n = {len(y)}, m = {width}, single", step, rate)
    print(f"\nall in {time.perf_counter() - started:.0f} s", flush=True)


def one_set(name: str, X: np.ndarray, y: np.ndarray, precision: str) -> Any:
    begun: list[tuple[str, float]] = []

    def tell(stage: str, fraction: float) -> None:
        if not begun or begun[-1][0] != stage:
            begun.append((stage, time.perf_counter()))

    run, seconds = clock(lambda: free_spectrum(X, precision=precision, progress=tell))
    ends = [moment for _, moment in begun[1:]] + [time.perf_counter()]
    parts = ", ".join(f"{stage} {end - start:.1f}" for (stage, start), end in zip(begun, ends, strict=True))
    low, high = (f"{v:.6g} +- {e:.1g}" for v, e in extremes(run))
    kept = "kept" if run.inner.is_kept else "made anew"
    say(f"{name}: spectrum ({kept})", seconds, f"lambda {low} to {high}; {parts}")
    V = np.random.default_rng(0).standard_normal((len(y), 8))
    run.inner(V)
    say(f"{name}: product with 8 vectors", clock(lambda: run.inner(V))[1], "")
    if run.product is not run.inner:
        say(f"{name}: product in double precision", clock(lambda: run.product(V))[1], "")
    form, seconds = clock(lambda: run.inverse_form(y))
    relative = form.error / form.value
    value = np.sqrt(2.0 * form.value / len(y))
    say(f"{name}: measure", seconds, f"{value:.8g}; y H^-1 y = {form.value:.10g}, relative error {relative:.1g}")
    prediction, seconds = clock(lambda: run.predictions(y[:, None], 100)[0])
    last, error = prediction.residuals[-1], prediction.error[-1]
    say(
        f"{name}: residuals over 100 steps",
        seconds,
        f"{last:.6g} +- {error:.1g} at the end, {prediction.residuals[0]:.4g} at 0",
    )
    return form


if __name__ == "__main__":
    peak(sys.argv[1], int(sys.argv[2]))
