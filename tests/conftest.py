"""What every test shares: double precision, strict shapes, fixed random examples, and the form of statistical tests.

Behaviour without double precision is tested in a fresh process (fixture `fresh_python`), since the switch is global.
"""

import gc
import importlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")  # no shape is ever stretched silently

# Tests on a GPU run on machines that have the package and pytest, but not the packages of the other tests.
with suppress(ModuleNotFoundError):
    import hypothesis

    # The same examples at every run: a failure is then the fault of the change at hand, not of the day.
    hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("fixed")

# With two workers the one that begins a file of minutes last leaves the other without work: these files come first, and
# `scripts/test` keeps the order (pytest-xdist would begin with the files of most tests).
LONGEST_FIRST = (
    "tests/explore/test_page.py",
    "tests/cross",
    "tests/docs",
    "tests/fuzz",
    "tests/honesty",
    "tests/gallery",
    "tests/expectation/test_engines.py",
    "tests/verbs",
    "tests/theory",
    "tests/learnability",
    "tests/sweeps",
)

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

CACHES = Path(__file__).parents[1] / "build" / "jax-cache"

Z_LIMIT = 5.0  # two-sided false-alarm rate 6e-7 for one normal score; with fixed seeds a pass stays a pass


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all``: every case of the fuzz suite, 20,000, in place of those that take a minute."""
    parser.addoption("--all", action="store_true", default=False, help="all cases of the fuzz suite")


@pytest.hookimpl(trylast=True)  # the package is imported here, after the hook that checks the shapes of its functions
def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs between runs, unless the environment says where."""
    from twolayer.core.program_cache import ProgramCache, machine_key

    starts_workers = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    os.environ["TWOLAYER_CACHE"] = "off"  # the user's cache stays as it is, also in processes that tests start
    if not starts_workers and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = ProgramCache(CACHES / machine_key())
        cache.open()
        cache.use()
        config.add_cleanup(cache.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; within a file, and among the others, the order stays."""

    def place(item: pytest.Item) -> int:
        return next((n for n, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start)), len(LONGEST_FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Look for cycles of references less often: tracing makes millions of objects, and looking costs a fifth of it."""
    gc.collect()
    gc.freeze()  # what was imported stays
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup() -> None:
    """Ignore cautions, which are about what was asked: tests ask for small systems and few steps on purpose.

    Not in the table of filters, which would import the package before the shapes of its functions are checked.
    """
    warnings.simplefilter("ignore", importlib.import_module("twolayer.core.errors").Caution)


@pytest.fixture(scope="module", autouse=True)
def drop_compiled_programs() -> Iterator[None]:
    """Forget compiled programs after each file.

    Each of them holds several memory maps, of which Linux allows a process 65530; without this a whole run of the tests
    comes near it, and a worker that exceeds it crashes.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the classes that a test registers: `explain` and the tables of other tests would list them."""
    registry = importlib.import_module("twolayer.specification.registry")
    registry.registered()  # all of the package are there before
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))


@pytest.fixture
def fresh_python() -> Callable[[str], str]:
    """Run a program in a new interpreter, with warnings as errors, and return what it printed."""

    def run(program: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def check_mean() -> Callable[..., None]:
    """Assert that samples along axis 0 have the given mean, entry by entry, within `Z_LIMIT` standard errors."""

    def check(samples: Any, mean: Any, label: str = "") -> None:
        samples = np.asarray(samples, dtype=np.float64)
        error = samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
        gap = np.abs(samples.mean(axis=0) - mean)
        # An entry that does not vary must be right up to rounding.
        z = gap / np.maximum(error, 1e-12 / Z_LIMIT)
        assert np.all(z < Z_LIMIT), f"{label}: mean {samples.mean(axis=0)} against {mean}, largest z {z.max():.1f}"

    return check


@pytest.fixture
def check_same_law() -> Callable[..., None]:
    """Assert that two sets of samples along axis 0 agree in two moments (z) and in law (Kolmogorov-Smirnov)."""
    from scipy import stats

    def check(first: Any, second: Any, label: str = "") -> None:
        first, second = (np.asarray(x, dtype=np.float64).reshape(len(x), -1) for x in (first, second))
        for power in (1, 2):
            a, b = first**power, second**power
            error = np.sqrt(a.var(axis=0, ddof=1) / len(a) + b.var(axis=0, ddof=1) / len(b))
            z = np.abs(a.mean(axis=0) - b.mean(axis=0)) / np.maximum(error, 1e-12 / Z_LIMIT)
            assert np.all(z < Z_LIMIT), f"{label}: moment {power}, largest z {z.max():.1f}"
        for entry in range(first.shape[1]):
            # Rounding makes ties and gaps of 1e-16 around a value that is constant in law.
            a, b = np.round(first[:, entry], 9), np.round(second[:, entry], 9)
            _, probability = stats.ks_2samp(a, b, method="asymp")
            assert probability > 6e-7, f"{label}: entry {entry}, KS probability {probability:.1e}"  # the rate of z = 5

    return check


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An installed Chromium, which Playwright drives: one for all tests of a file.

    Playwright holds the event loop of the process meanwhile, so that tests of other files could not run their own.
    """
    library = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with library.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=[*flags, "--disable-sync"])
        yield running
        running.close()
