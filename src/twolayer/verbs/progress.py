"""Progress of long work: one signature for those who listen, and a bar where somebody can see it."""

import contextlib
import functools
import html
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from twolayer.core import compiling
from twolayer.core.deprecation import deprecated_use
from twolayer.core.errors import InvalidInput, shown

# Told the name of what is done, and the fraction of it.
Progress = Callable[[str, float], None]

# Seconds after which a bar appears, so that it is there within two, and between two updates of one in a notebook.
PATIENCE, PAUSE = 1.5, 0.2
# Seconds between two looks at what is compiled, for a notebook.
SELDOM = 1.0

P = ParamSpec("P")
R = TypeVar("R")

# Whether somebody outside listens already: a call within another one then shows no bar of its own.
_is_told: ContextVar[bool] = ContextVar("_is_told", default=False)
# One bar at a time in a process: a second thread that works shows none.
_screen = threading.Lock()

_warn_of_one_argument = deprecated_use(
    "`progress` of `evolve` as a function of one argument", "`progress(name, fraction)`", since="0.2"
)


def shows_progress(verb: Callable[P, R]) -> Callable[P, R]:
    """Give a verb a ``progress`` that it can always call, whatever the user gave: see `reporting`."""

    @functools.wraps(verb)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with reporting(kwargs.get("progress"), verb.__name__) as tell:
            kwargs["progress"] = tell
            return verb(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def reporting(progress: object, name: str = "", after: float | None = None) -> Iterator[Progress]:
    """A function to be told the name of what is done and the fraction of it, for the time of a block.

    Parameters
    ----------
    progress
        What a user gave: a function of (name, fraction), False for silence, or None (or True) for a bar, which appears
        on a terminal and in a notebook alone. It also says while a program is compiled.
    name
        What the bar is called until something is told.
    after
        Seconds after which the bar appears; one and a half by default.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise InvalidInput(
            f"Argument `progress` must be a function of (name, fraction), False or None, but is {shown(progress)}."
        )
    bar = None
    if callable(progress):
        tell = _of_two_arguments(progress)
    elif progress is False or _is_told.get() or not (_in_notebook() or sys.stderr.isatty()):
        tell = nobody
    else:
        compiling.listen_to_jax()
        tell = bar = _NotebookBar(name, after) if _in_notebook() else _TerminalBar(name, after)
    token = _is_told.set(True)
    try:
        yield tell
    finally:
        _is_told.reset(token)
        if bar is not None:
            bar.close()


def named_progress(progress: Progress | bool | None, name: str) -> Callable[[float], None]:
    """A function that reports the fraction of one run under a name; a bar appears at once."""
    if isinstance(progress, _TerminalBar | _NotebookBar):
        progress(name, 0.0)
    return functools.partial(progress, name) if callable(progress) else lambda fraction: None


def note(progress: Progress, words: str) -> None:
    """Show words beside the bar, where there is one."""
    if isinstance(progress, _TerminalBar | _NotebookBar):
        progress.words = words


def nobody(name: str, fraction: float) -> None:
    """Ignore the progress."""


def _of_two_arguments(progress: Callable[..., Any]) -> Progress:
    """The function, or one that leaves out the name for a function that takes the fraction alone."""
    try:
        signature = inspect.signature(progress)
    except (TypeError, ValueError):  # a built-in function that does not say what it takes
        return progress
    if not _takes(signature, 2) and _takes(signature, 1):
        _warn_of_one_argument()
        return lambda name, fraction: progress(fraction)
    return progress


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _in_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook, which can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _TerminalBar:
    """One line per name on stderr, with the time left; it appears when the work has taken long enough.

    A thread waits for that moment, since compiled code may run for long before anything is told. Until something is,
    the bar of a line keeps moving, and words beside it say whether a program is compiled.
    """

    def __init__(self, name: str, after: float | None):
        self.lock = threading.Lock()
        self.fractions: dict[str, float] = {}
        self.name, self.tasks, self.bar, self.is_closed = name, {}, None, False
        self.words, self.last = "", name
        self.timer = threading.Timer(PATIENCE if after is None else after, self.open)
        self.timer.daemon = True
        self.timer.start()

    def __call__(self, name: str, fraction: float) -> None:
        with self.lock:
            self.fractions[name], self.last = fraction, name
            if self.bar is not None:
                self.draw(name)

    def beside(self, name: str) -> str:
        """Words beside the line of a name; a thread draws them several times a second."""
        return _joined(self.words, compiling.words() if name == self.last else "")

    def open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
        from rich.text import Text

        beside = self.beside

        class Words(ProgressColumn):
            def render(self, task: Any) -> Text:
                return Text(beside(task.description))

        with self.lock:
            if self.is_closed or not _screen.acquire(blocking=False):
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining())
            columns = (*columns, TextColumn("left"), Words())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
            for name in list(self.fractions) or [self.name] * bool(self.name):
                self.draw(name)

    def draw(self, name: str) -> None:
        assert self.bar is not None
        if name not in self.tasks:
            if not self.fractions.keys() & self.tasks.keys():  # the first that is told takes the line of the verb
                for task in self.tasks.values():
                    self.bar.remove_task(task)
                self.tasks.clear()
            self.tasks[name] = self.bar.add_task(name, total=None)
        fraction = self.fractions.get(name, 0.0)
        self.bar.update(self.tasks[name], completed=fraction, total=1.0 if fraction > 0.0 else None)

    def close(self) -> None:
        self.timer.cancel()
        with self.lock:
            self.is_closed = True
            if self.bar is not None:
                self.bar.stop()
                _screen.release()


def _clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class _NotebookBar:
    """The last name that was told with the time left, below the cell; it disappears at the end.

    A thread shows it when the work has taken long enough, and says so while a program is compiled.
    """

    def __init__(self, name: str, after: float | None):
        self.lock = threading.Lock()
        self.began, self.patience = time.monotonic(), PATIENCE if after is None else after
        self.drawn = -PAUSE
        self.display: Any = None
        self.words, self.name, self.fraction = "", name, 0.0
        self.first = {name: self.began}  # when each name was first told
        self.is_closed = threading.Event()
        # The output of a thread goes to the cell in whose context it runs.
        self.thread = threading.Thread(target=copy_context().run, args=(self.watch,), daemon=True)
        self.thread.start()

    def __call__(self, name: str, fraction: float) -> None:
        now = time.monotonic()
        self.first.setdefault(name, now)  # before the name, which the thread looks up
        self.name, self.fraction = name, fraction
        if now - self.began >= self.patience and now - self.drawn >= PAUSE:
            self.draw()

    def watch(self) -> None:
        """Draw what was told last, and again while a program is compiled."""
        pause, was_compiling = self.patience, False
        while not self.is_closed.wait(pause):
            is_compiling = bool(compiling.words())
            if self.display is None or is_compiling or was_compiling:  # the end of a compilation is shown, too
                self.draw()
            pause, was_compiling = max(PAUSE, SELDOM), is_compiling

    def draw(self) -> None:
        from IPython.display import HTML, display

        passed = time.monotonic() - self.first[self.name]
        rest = passed * (1.0 - self.fraction) / self.fraction if 0.0 < self.fraction < 1.0 else 0.0
        left = f", {_clock(rest)} left" if rest else ""
        beside = _joined(self.words, compiling.words())
        words = html.escape(f"{self.name} {self.fraction:.0%}{left} {beside}".strip())
        value = f" value='{self.fraction:.4f}'" if self.fraction > 0.0 else ""  # without one it keeps moving
        content = HTML(f"<progress{value} max='1'></progress> {words}")
        with self.lock:
            if self.is_closed.is_set():
                return
            self.drawn = time.monotonic()
            if self.display is None:
                self.display = display(content, display_id=True)
            else:
                self.display.update(content)

    def close(self) -> None:
        self.is_closed.set()
        with self.lock:
            if self.display is not None:
                from IPython.display import HTML

                self.display.update(HTML(""))


def _joined(*words: str) -> str:
    return "; ".join(part for part in words if part)
