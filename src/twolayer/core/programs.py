"""Programs: functions that XLA compiles, with what was traced and compiled kept on disk.

The cache of JAX keeps what is compiled, but a program is traced and lowered before it is found there, which takes as
long as compiling a large one in haste. What is kept here is found by a name that is known before (`stable_names`), so
that a second process traces nothing. A function without such a name is traced and compiled as JAX does it.
"""

import contextlib
import hashlib
import json
import os
import pickle
import threading
from collections.abc import Callable, Hashable, Iterator
from functools import cache, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from twolayer.core.program_cache import keep
from twolayer.core.stable_names import Argument, Nameless, digest, foundations

if TYPE_CHECKING:
    from jax.stages import Compiled, Lowered

P = ParamSpec("P")
R = TypeVar("R")

# With these options XLA compiles in half of the time, to programs that take several times longer; not every version of
# it knows all of them.
HASTE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# With this one it compiles large programs of many small operations in about half of the time, to as fast ones.
QUICK = {"xla_cpu_use_fusion_emitters": False}
# Random numbers of one row, such as a replica, that such a program draws in less time than it saves, for many rows.
FEW = 1e4
# Programs of one function that a process holds, each of which takes several memory maps; the first ones go.
MANY = 256
# Settings of JAX under which programs are other ones, or do other things than compute.
SETTINGS = (
    *("jax_enable_x64", "jax_threefry_partitionable", "jax_default_matmul_precision", "jax_default_prng_impl"),
    *("jax_numpy_dtype_promotion", "jax_random_seed_offset"),
)
SPECIAL = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_default_device", "jax_enable_checks")


def compiled_for(function: Callable[..., Any], numbers: int) -> Callable[..., Any]:
    """Return the compiled function for one call that draws so many numbers for a row: in haste if they are few.

    It does not depend on how many rows there are, since their numbers must not.
    """
    import jax

    return compiled(function, numbers <= FEW and jax.default_backend() == "cpu")


@cache
def compiled(function: Callable[..., Any], in_haste: bool) -> Callable[..., Any]:
    """Return the compiled function; in haste, XLA does not optimise it."""
    return KeptProgram(function, HASTE if in_haste else {})


class QuickProgram(Generic[P, R]):
    """A function that XLA compiles with the options `QUICK` on a CPU; within another compiled function it is inlined.

    Fewer passes over the program are made, which pays for averages and equations, whose programs are large; loops over
    many random numbers are left to the usual options.
    """

    def __init__(self, function: Callable[P, R]):
        update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        import jax
        from jax.core import Tracer

        is_within = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        if not is_within:
            try:
                return self._program(True)(*args, **kwargs)
            except ValueError as error:  # all arguments are known, but another function is traced
                if "top-level" not in str(error):
                    raise
        return self._program(False)(*args, **kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> "Lowered":
        """Lower the program for some arguments."""
        return self._program(True).lower(*args, **kwargs)

    def counts(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, float]:
        """Operations of one call by kind, as the compiler counts them before it begins."""
        return self._program(True).counts(*args, **kwargs)

    def held_bytes(self, *args: P.args, **kwargs: P.kwargs) -> float:
        """Bytes that one call holds beside its arguments, as the compiler has laid them out."""
        return self._program(True).held_bytes(*args, **kwargs)

    def _program(self, at_top: bool) -> Any:
        import jax

        return _quick(self._function, at_top and jax.default_backend() == "cpu")


@cache
def _quick(function: Callable[..., Any], with_options: bool) -> "KeptProgram":
    return KeptProgram(function, QUICK if with_options else {})


@cache
def _known(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return those of the options that this version of XLA knows, by compiling an empty program with them."""
    import jax

    try:
        with _without_cache_of_jax():
            jax.jit(lambda: (), compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        several = len(options) > 1
        return {name: value for option in options for name, value in _known((option,)).items()} if several else {}
    return dict(options)


class _Executable(NamedTuple):
    """A compiled program of the arrays among its arguments, and its result with numbers in the place of arrays."""

    run: "Compiled"
    result: Any
    held_bytes: float


class _Place(NamedTuple):
    """The place of an array in a result."""

    number: int


class KeptProgram(Generic[P, R]):
    """A compiled function, with its programs kept on disk under names that need no tracing.

    Parameters
    ----------
    function
        The function, of arrays and of other things, which do not change within a program.
    options
        Those of the compiler.
    """

    def __init__(self, function: Callable[P, R], options: dict[str, Any] | None = None):
        update_wrapper(self, function)
        self._function, self._options = function, tuple((options or {}).items())
        self._programs: dict[Hashable, _Executable | None] = {}
        self._lock = threading.Lock()

    @property
    def _jitted(self) -> Any:
        return _jitted(self._function, self._options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        program, arrays = self._program(args, kwargs)
        if program is None:
            return self._jitted(*args, **kwargs)
        return _filled(program.result, program.run(*arrays))

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> "Lowered":
        """Lower the program for some arguments."""
        return self._jitted.lower(*args, **kwargs).lowered

    def counts(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, float]:
        """Operations of one call by kind, as the compiler counts them before it begins."""
        place = self._place("counts", args, kwargs)
        with contextlib.suppress(OSError, ValueError):
            if place is not None:
                return json.loads(place.read_text())
        counts = self.lower(*args, **kwargs).cost_analysis() or {}
        counts = {name: float(number) for name, number in counts.items()}
        if place is not None:
            _leave(place, json.dumps(counts).encode())
        return counts

    def held_bytes(self, *args: P.args, **kwargs: P.kwargs) -> float:
        """Bytes that one call holds beside its arguments, as the compiler has laid them out."""
        program, _ = self._program(args, kwargs)
        return _held_bytes(self._lowered(args, kwargs)[0].compile()) if program is None else program.held_bytes

    def _program(self, args: Any, kwargs: Any) -> tuple[_Executable | None, list[Any]]:
        """The kept program for some arguments, if there can be one, and the arrays among them."""
        import equinox as eqx
        import jax

        leaves, structure = jax.tree.flatten((args, kwargs))
        if not _can_keep(leaves):
            return None, []
        arrays = [x for x in leaves if eqx.is_array(x)]
        rest = tuple(None if eqx.is_array(x) else (type(x), x) for x in leaves)
        shapes = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in arrays)
        key = (structure, rest, shapes, *_settings())
        try:
            known = key in self._programs
        except TypeError:  # a function or an object without a hash, which JAX refuses with a sentence
            return None, []
        if not known:
            with self._lock:
                program = self._programs.get(key) or self._found(args, kwargs)
                while len(self._programs) >= MANY:
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = program
                return program, arrays
        return self._programs.get(key), arrays

    def _place(self, kind: str, args: Any, kwargs: Any) -> Path | None:
        """Where something about the program of some arguments is kept; None if it has no name."""
        cache = keep()
        if cache is None:
            return None
        try:
            named = digest(self._function, self._options, _settings(), _without_numbers((args, kwargs)))
        except Nameless:
            return None
        return cache.own / f"{kind}-{hashlib.sha256(f'{foundations()} {named}'.encode()).hexdigest()}"

    def _found(self, args: Any, kwargs: Any) -> _Executable | None:
        """The program that an earlier process has left, or one that is left for a later one; None if it has no name."""
        import jax

        place = self._place("program", args, kwargs)
        if place is None:
            return None
        found = _read(place)
        # JAX tells this of its own cache.
        jax.monitoring.record_event(f"/jax/compilation_cache/cache_{'hits' if found else 'misses'}")
        return found or self._made(place, args, kwargs)

    def _made(self, place: Path, args: Any, kwargs: Any) -> _Executable | None:
        lowered, result = self._lowered(args, kwargs)
        with _without_cache_of_jax():
            program = lowered.compile()
        executable = _Executable(program, result, _held_bytes(program))
        _write(place, executable)
        return executable

    def _lowered(self, args: Any, kwargs: Any) -> tuple["Lowered", Any]:
        """The program of the arrays among some arguments, and its result with numbers in the place of arrays."""
        import equinox as eqx
        import jax

        dynamic, static = eqx.partition((args, kwargs), eqx.is_array)
        arrays, structure = jax.tree.flatten(dynamic)
        results: list[Any] = []
        function: Any = self._function

        def of_arrays(*given: Any) -> list[Any]:
            own_args, own_kwargs = eqx.combine(jax.tree.unflatten(structure, given), static)
            found, rest = eqx.partition(function(*own_args, **own_kwargs), eqx.is_array)
            leaves, form = jax.tree.flatten(found)
            places = jax.tree.unflatten(form, [_Place(number) for number in range(len(leaves))])
            results.append(eqx.combine(places, rest, is_leaf=lambda x: isinstance(x, _Place)))
            return leaves

        options: Any = {"compiler_options": _known(self._options)} if self._options else {}
        return jax.jit(of_arrays, **options).lower(*arrays), results[0]


def _without_numbers(arguments: Any) -> Any:
    """The arguments with an `Argument` in the place of each array that the program is given."""
    import equinox as eqx
    import jax

    def of(x: Any) -> Any:
        return Argument(x.shape, str(x.dtype), bool(getattr(x, "weak_type", False))) if eqx.is_array(x) else x

    return jax.tree.map(of, arguments)


def _filled(result: Any, arrays: list[Any]) -> Any:
    """A result with arrays in their places."""
    import jax

    def is_place(x: object) -> bool:
        return isinstance(x, _Place)

    return jax.tree.map(lambda x: arrays[x.number] if is_place(x) else x, result, is_leaf=is_place)


def _held_bytes(program: "Compiled") -> float:
    layout = program.memory_analysis()
    return 0.0 if layout is None else float(layout.temp_size_in_bytes + layout.output_size_in_bytes)


_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def _without_cache_of_jax() -> Iterator[None]:
    """Compile anew in this block: what comes from the cache of JAX cannot be written once more.

    Other threads that compile at this time do without the cache as well.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def use(is_used: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", is_used)
        compilation_cache.reset_cache()  # JAX looks at the setting once

    with _one_at_a_time:
        before = bool(getattr(jax.config, "jax_enable_compilation_cache", True))
        use(False)
        try:
            yield
        finally:
            use(before)


@cache
def _jitted(function: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Any:
    import equinox as eqx

    with_options: Any = {"compiler_options": _known(options)} if options else {}
    return eqx.filter_jit(function, **with_options)


def _settings() -> tuple[str, ...]:
    import jax

    return tuple(str(getattr(jax.config, name, None)) for name in SETTINGS)


def _can_keep(leaves: list[Any]) -> bool:
    """Whether a call is one of a whole program on one processor, for which there is a cache."""
    import jax
    from jax.core import Tracer

    if keep() is None or jax.default_backend() != "cpu" or jax.local_device_count() > 1:
        return False
    if any(getattr(jax.config, name, None) for name in SPECIAL):
        return False
    return not any(isinstance(x, Tracer) for x in leaves) and _is_at_top()


def _is_at_top() -> bool:
    """Whether no function is traced at this moment."""
    try:
        from jax._src.core import trace_state_clean
    except ImportError:
        return False
    return bool(trace_state_clean())


def _read(place: Path) -> _Executable | None:
    """The program in a file; None if there is none, or none that can be used."""
    from jax.experimental.serialize_executable import deserialize_and_load

    with contextlib.suppress(Exception):  # whatever is wrong with it, the program is made anew
        text = place.read_bytes()
        content = memoryview(text)[32:]
        if hashlib.sha256(content).digest() != text[:32]:
            return None
        payload, forms, *rest = pickle.loads(content)
        if b"lapack" in payload and not _has_lapack():
            return None
        return _Executable(deserialize_and_load(payload, *forms), *rest)
    return None


def _write(place: Path, program: _Executable) -> None:
    """Leave a program in a file, unless it calls back into this process or has something that cannot be written."""
    from jax.experimental.serialize_executable import serialize

    with contextlib.suppress(Exception):
        payload, *forms = serialize(program.run)
        if b"python_cpu_callback" in payload:
            return
        content = pickle.dumps((payload, forms, program.result, program.held_bytes))
        _leave(place, hashlib.sha256(content).digest() + content)


def _leave(place: Path, content: bytes) -> None:
    """Write a file, which is there whole or not at all."""
    with contextlib.suppress(OSError):
        draft = place.with_name(f"{place.name}.{threading.get_ident()}.part")
        draft.write_bytes(content)
        os.replace(draft, place)


def _has_lapack() -> bool:
    """Make the routines of LAPACK known to XLA, as lowering a program that calls them does."""
    try:
        from jax._src.lax.linalg import initialize_lapack
    except ImportError:
        return False
    initialize_lapack()
    return True
