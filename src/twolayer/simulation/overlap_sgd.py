"""The description `OverlapSGD`: the choice of a driver, the loop over steps, and checkpoints."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.loops import has_numba, native
from twolayer.compiler.scalar import Unsupported
from twolayer.core.errors import NotApplicable
from twolayer.core.pace import Pace
from twolayer.core.random import Purpose, purpose_key
from twolayer.description import AbstractDescription, Applies, Exactness, Plan, Record, Status, Watch, blanked, is_alive
from twolayer.expectation import Auto, Chosen, choose, risk_along
from twolayer.problem import Gaussian, Overlaps, Problem
from twolayer.simulation.drivers import (
    Advance,
    RunState,
    advance_kernel,
    advance_native,
    advance_vector,
    advance_xla,
    crossed,
    written_out,
)
from twolayer.simulation.overlap import Setting, State, make_setting, overlaps_of, start
from twolayer.specification.fields import as_data, choice, static
from twolayer.specification.registry import register
from twolayer.training import SGD
from twolayer.training.methods import commutes_with_rotations

# Beyond this width a step written out in scalars takes longer to compile than it saves.
MAX_WIDTH = 8
# A batch that is used again is held whole, with a row of Bartlett's factor for each sample.
MAX_REPEATED = 1024


@register
class OverlapSGD(AbstractDescription):
    r"""SGD on fresh Gaussian data through its overlaps, exactly in law at any finite d.

    .. math:: M^+ = M + A^T \Lambda^\star, \qquad
              Q^{\perp +} = (L + A^T G)(L + A^T G)^T + A^T S A, \qquad S \sim \mathrm{Wishart}(1, d - k - p)

    with the coefficients A of the batch, its fields :math:`\Lambda^\star`, its coordinates G in the student's
    directions, and :math:`Q^\perp = L L^T` kept as a triangular factor, in double precision. No vector of size d is
    ever held, and the cost of a step does not depend on d.

    Parameters
    ----------
    backend
        ``"native"`` compiles the step to machine code (one sample a step, width up to eight, numba installed),
        ``"xla"`` runs anywhere; ``"auto"`` takes native code on a CPU and one kernel on a GPU where it can.
    """

    backend: str = static(choice("backend", ("auto", "native", "xla")), default="auto")

    @property
    def references(self) -> tuple[str, ...]:
        return ("arnaboldi2024batch",)

    def applies(self, problem: Problem, training: SGD) -> Applies:
        def no(reason: str) -> Applies:
            return Applies(False, Exactness.EXACT, reason)

        if not isinstance(problem.inputs, Gaussian):
            return no("it describes Gaussian inputs, but `problem.inputs` is a data set; `DirectSGD` covers it.")
        if training.has_fixed_set:
            return no(
                f"it describes fresh batches, but `training.reuse` is {training.reuse}; `DirectSGD` covers reuse."
            )
        if not training.is_classical and not commutes_with_rotations(training.method):
            return no(f"the method {training.method} does not commute with rotations of the inputs; see `DirectSGD`.")
        batch = training.samples_per_step(problem)
        if not training.is_fresh and batch > MAX_REPEATED:
            return no(f"a batch that is used again may have {MAX_REPEATED} samples at most, but has {batch}.")
        if batch >= 2**32 - 1:
            return no("a batch may have 2^32 samples at most.")
        try:
            Auto().assign(problem, ("excess_risk",))
        except NotApplicable as refusal:
            return no(str(refusal))
        return Applies(True, Exactness.EXACT, "the law of SGD at any d, at a cost that does not depend on d")

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        problem, training = as_data((problem, training))
        chosen, watch = choose(problem, ("excess_risk",)), Watch.of(plan)
        setting = make_setting(problem, training, chosen.variants()[0] if watch.risk else None)
        advance, engine = self._driver(setting, watch, plan)
        run = _begin(setting, watch, plan.starts, plan.keys, Watch.thresholds(plan))
        progress = _Progress.at(plan, setting, run)
        interrupted = False
        try:
            while progress.step < plan.steps[-1]:
                progress.forward(advance)
        except KeyboardInterrupt:
            interrupted = True
            if plan.checkpoint is not None:
                progress.keep()
            elif len(progress.saved) < 2:
                raise
        return self._record(problem, training, plan, progress, chosen, watch, engine, interrupted)

    def _driver(self, setting: Setting, watch: Watch, plan: Plan) -> tuple[Advance, str]:
        on_cpu = jax.default_backend() == "cpu"
        program = None
        if setting.batch == 1 and setting.problem.p <= MAX_WIDTH:
            try:
                program = written_out(setting, watch)
            except Unsupported as missing:
                if self.backend == "native":
                    raise NotApplicable(f"No native code for this step: it contains `{missing}`.") from None
        if self.backend == "native" and (program is None or not has_numba()):
            raise NotApplicable("Native code needs one sample a step, width up to eight, and numba installed.")
        if program is not None and has_numba() and (self.backend == "native" or (on_cpu and self.backend == "auto")):
            return partial(advance_native, native(program, plan.replicas)), "native"
        if program is not None and not on_cpu and self.backend == "auto":
            is_cuda = "NVIDIA" in jax.devices()[0].device_kind
            return partial(advance_kernel if is_cuda else advance_vector, program), "GPU kernel" if is_cuda else "xla"
        return partial(advance_xla, setting, watch), "xla"

    def _record(
        self,
        problem: Problem,
        training: SGD,
        plan: Plan,
        progress: "_Progress",
        chosen: Chosen,
        watch: Watch,
        engine: str,
        interrupted: bool,
    ) -> Record:
        Q, M, a = (np.stack(column, axis=1) for column in zip(*progress.saved, strict=True))
        stopped = np.asarray(progress.stopped)[:, None] < plan.steps[None, : Q.shape[1]]
        lost = ~np.logical_and.accumulate(is_alive(Q, a, plan.limit), axis=1)
        # Save points after an interruption are missing; their replicas have not diverged.
        missing = len(plan.steps) - Q.shape[1]
        Q, M, a = (
            np.pad(blanked(lost | stopped, x), [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2), constant_values=np.nan)
            for x in (Q, M, a)
        )
        risk, error = risk_along(chosen, problem, Q, M, plan.starts.P, a)
        ended = Status.UNFINISHED if missing else Status.DONE
        status = np.where(stopped.any(axis=1), Status.STOPPED, np.where(lost.any(axis=1), Status.DIVERGED, ended))
        times = watch.times(progress.run.crossing, problem.k, training.clock(problem))
        none = np.zeros_like(risk)
        name = f"{chosen.name}; steps: {engine}"
        return Record(Q, M, a, risk, error, none, status.astype(np.int8), *times, name, interrupted)


class _Progress:
    """The progress of a run: step, replicas and saved points; also on disk, when the plan has a checkpoint."""

    def __init__(self, plan: Plan, setting: Setting, run: RunState, step: int, saved: list[Any], stopped: np.ndarray):
        self.plan, self.setting, self.run, self.step, self.saved, self.stopped = (
            plan,
            setting,
            run,
            step,
            saved,
            stopped,
        )
        self.pace = Pace()

    @classmethod
    def at(cls, plan: Plan, setting: Setting, run: RunState) -> "_Progress":
        """The progress at the start, or the one that a checkpoint kept."""
        kept = plan.checkpoint.load() if plan.checkpoint is not None else None
        if kept is None:
            never = np.full(plan.replicas, np.inf)
            return cls(plan, setting, run, 0, [jax.device_get(_measured(setting, run))], never)
        names = iter(sorted(name for name in kept if name.startswith("run")))
        run = jax.tree.map(lambda leaf: kept[next(names)], run)
        saved = [_Saved(*row) for row in zip(kept["Q"], kept["M"], kept["a"], strict=True)]
        return cls(plan, setting, run, int(kept["step"]), saved, kept["stopped"])

    def keep(self) -> None:
        """Write the progress to the checkpoint."""
        assert self.plan.checkpoint is not None
        leaves = {f"run{n:02}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(self.run))}
        saved = {name: np.stack([getattr(overlaps, name) for overlaps in self.saved]) for name in _Saved._fields}
        self.plan.checkpoint.save(leaves | saved | {"step": self.step, "stopped": self.stopped})

    def forward(self, advance: Advance) -> None:
        """Advance by about half a second of work, but not beyond the next save point."""
        after = int(self.plan.steps[len(self.saved)])
        last = min(self.step + self.pace.steps, after)
        active = np.flatnonzero(np.isinf(self.stopped))
        if active.size:
            with self.pace.over(last - self.step):
                self._advance(advance, active, last)
        self.step = last if active.size else after
        if self.step == after:
            self.saved.append(jax.device_get(_measured(self.setting, self.run)))
        self.plan.progress(self.step / int(self.plan.steps[-1]))
        if self.plan.checkpoint is not None and self.plan.checkpoint.is_due:
            self.keep()

    def _advance(self, advance: Advance, active: np.ndarray, last: int) -> None:
        first, last_step = np.asarray(self.step), np.asarray(last)
        if active.size == self.plan.replicas:
            self.run = jax.block_until_ready(advance(self.run, first, last_step))
        else:
            # Few compiled shapes are needed when the running replicas are padded to a power of two.
            width = min(self.plan.replicas, 1 << (active.size - 1).bit_length())
            members = np.resize(active, width)
            part = jax.tree.map(lambda x: x[members], self.run)
            part = jax.device_get(advance(part, first, last_step))
            self.run = jax.tree.map(
                lambda x, y: _replaced(np.asarray(x), active, np.asarray(y)[: active.size]), self.run, part
            )
        if self.plan.stops:
            crossing = np.asarray(self.run.crossing)
            reached = np.any if self.plan.stops_at_any else np.all
            now = np.isinf(self.stopped) & reached(crossing >= 0.0, axis=1)
            self.stopped = np.where(now, crossing.max(axis=1), self.stopped)


def _replaced(x: np.ndarray, where: np.ndarray, values: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[where] = values
    return x


@eqx.filter_jit
def _begin(setting: Setting, watch: Watch, starts: Overlaps, keys: Array, thresholds: Any) -> RunState:
    def one(Q: Array, M: Array, a: Array, key: Array, thresholds: Array) -> RunState:
        state = start(setting, Overlaps(Q, M, starts.P, a))
        words = jax.random.key_data(purpose_key(key, Purpose.OVERLAPS))
        before = jnp.full(watch.size(setting.problem.k), -1.0)
        crossing = crossed(setting, watch, state, thresholds, before, 0.0)
        return RunState(state, jnp.sqrt(jnp.diagonal(Q)), thresholds, words.astype(jnp.uint32), crossing)

    return jax.vmap(one)(starts.Q, starts.M, starts.a, keys, jnp.asarray(thresholds))


class _Saved(NamedTuple):
    """The overlaps of all replicas at a save point."""

    Q: Any
    M: Any
    a: Any


@eqx.filter_jit
def _measured(setting: Setting, run: RunState) -> _Saved:
    def one(state: State) -> _Saved:
        overlaps = overlaps_of(setting, state)
        return _Saved(overlaps.Q, overlaps.M, overlaps.a)

    return jax.vmap(one)(run.state)
