"""The description `OverlapSGD`: the choice of a driver, and the replicas that still run."""

from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.loops import MAX_OPS, WrittenOut, backend_here, loop_here, written
from twolayer.compiler.native import FEW
from twolayer.compiler.row_blocks import alike, as_key, if_hashable
from twolayer.compiler.scalar import Unsupported
from twolayer.core.errors import NotApplicable
from twolayer.core.plain_methods import plain
from twolayer.core.programs import KeptProgram
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.same import Same
from twolayer.description import (
    AbstractDescription,
    Applies,
    Cell,
    Exactness,
    Plan,
    Record,
    Watch,
    by_block,
    seen_by_fields,
    stopped,
)
from twolayer.expectation import Auto, choose, risk_along, risks_along
from twolayer.expectation.gaussian_moments import fields_from_normals
from twolayer.fitting import refusal, run_fits
from twolayer.problem import BlockOverlaps, Gaussian, Overlaps, Problem
from twolayer.simulation.drivers import (
    RunState,
    SumBatch,
    advance_compiled,
    advance_written,
    advance_xla,
    begun,
    in_parts,
    sums_written_out,
    takes_parts,
    written_out,
)
from twolayer.simulation.overlap import Setting, make_setting, overlaps_of
from twolayer.simulation.overlap_batch import (
    AdvanceRows,
    Shared,
    advance_arrays,
    begin_cells,
    by_gpu_kernel,
    by_native_code,
    follow_cells,
    key_of,
    shareable,
)
from twolayer.specification.fields import as_data, choice, replaced, static
from twolayer.specification.registry import register
from twolayer.stepping import Advance, Stepper, run_steps, sealed
from twolayer.training import SGD, RidgeRegression
from twolayer.training.methods import commutes_with_rotations

# Beyond this width a step written out in scalars takes longer to compile than it saves.
MAX_WIDTH = 8
# Beyond this many operations a step on many blocks of a spectrum takes a minute to compile to native code.
MOST_OPERATIONS = 25_000
# Samples from which a batch fills a GPU by itself.
LARGE_BATCH = 2**16
# A batch that is used again is held whole, with a row of Bartlett's factor for each sample.
MAX_REPEATED = 1024
# Samples whose fields are drawn at once for a fit of the second layer.
FITTED_TOGETHER = 1024


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
        ``"native"`` compiles the step to machine code (one sample a step, width up to eight),
        ``"xla"`` runs anywhere; ``"auto"`` takes native code on a CPU and one kernel on a GPU where it can.
    gradients
        The precision of the gradient of each sample, whose random numbers have single precision, and of the products
        that XLA sums over a batch; the state is in double precision in any case. ``"auto"`` is ``"single"`` in the
        kernel on a GPU where labels are noisy, which is nearly twice as fast, and ``"double"`` elsewhere: without noise
        a residual may become as small as its rounding.
    """

    backend: str = static(choice("backend", ("auto", "native", "xla")), default="auto")
    gradients: str = static(choice("gradients", ("auto", "double", "single")), default="auto")

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
        if missing := Auto().refusal(problem, ("excess_risk",)):
            return no(missing)
        return Applies(True, Exactness.EXACT, "the law of SGD at any d, at a cost that does not depend on d")

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        problem, training = as_data((problem, training))
        chosen, watch = choose(problem, ("excess_risk",)), Watch.of(plan)
        is_single = self._takes_single(problem, training)
        risk, blocks = chosen.variants()[0] if watch.risk else None, plan.starts.blocks
        # The frame is that of the starts: the problem of a phase may not know where the target lies.
        setting = make_setting(problem, training, risk, is_single, None if blocks is None else blocks.frame)
        advance, steps = self._driver(setting, watch, plan.replicas)
        begun = _begin(setting, watch, plan.starts, plan.keys, Watch.thresholds(plan))

        def has_stopped(crossing: Any) -> np.ndarray:
            reached = np.any if plan.stops_at_any else np.all
            return plan.stops & reached(np.asarray(crossing) >= 0.0, axis=1)

        stepper = Stepper(
            begun,
            lambda run, first, last: _advance_running(advance, ~has_stopped(run.crossing), run, first, last),
            partial(_measured, setting),
            lambda row: bool(np.all(has_stopped(row["crossing"]))),
        )
        course = run_steps(stepper, plan.steps, plan.progress, plan.checkpoint)
        rows, status = sealed(plan, course.saved)
        Q, M, a = (rows[name] for name in ("Q", "M", "a"))
        risk, error = risk_along(chosen, setting.problem, *seen_by_fields(plan.starts, rows), a)
        times = watch.times(course.saved["crossing"][:, -1], problem.k, training.clock(problem))
        name = f"{chosen.name}; steps: {steps}" + _of_precision(setting)
        others = by_block(rows) or None
        record = Record(Q, M, a, risk, error, np.zeros_like(risk), status, *times, name, course.interrupted, others)
        return stopped(record, plan)

    def applies_to_fit(self, problem: Problem, fit: RidgeRegression) -> Applies:
        reason = refusal(problem, Auto())
        return Applies(not reason, Exactness.EXACT, reason or f"{fit.words}, exactly in law")

    def run_fit(self, problem: Problem, fit: RidgeRegression, plan: Plan) -> Record:
        setting = as_data((problem, fit))
        return run_fits(problem, fit, plan, Auto(), lambda step: _fitted(*setting, plan.starts, plan.keys, step))

    def batch_key(self, problem: Problem, training: SGD) -> Hashable | None:
        if not isinstance(problem.inputs, Gaussian) or training.has_fixed_set or not problem.is_isotropic:
            return None
        return if_hashable((*as_key(self), *key_of(self._shareable(problem, training))))

    def run_batch(self, cells: Sequence[Cell]) -> list[Record]:
        records: dict[int, Record] = {}
        plans = [cell.plan for cell in cells]
        kinds = [(Watch.of(plan), plan.stops, plan.stops_at_any, plan.replicas < FEW) for plan in plans]
        for places in alike(kinds):
            records |= zip(places, self._run_alike([cells[place] for place in places]), strict=True)
        return [records[place] for place in range(len(cells))]

    @plain
    def _shareable(self, problem: Problem, training: SGD) -> Setting:
        """The setting of a program that serves many cells, found again for objects that were lately asked about."""
        return _shareable(Same((self, problem, training)), bool(jax.config.read("jax_enable_x64")))

    def _run_alike(self, cells: Sequence[Cell]) -> list[Record]:
        """Compute cells of one program whose plans watch and stop alike."""
        key = self.batch_key(cells[0].problem, cells[0].training)
        if key is None:
            return super().run_batch(cells)
        settings = [self._shareable(cell.problem, cell.training) for cell in cells]
        watch, k = Watch.of(cells[0].plan), settings[0].problem.k
        noises = [float(cell.problem.noise_level) for cell in cells]
        problems = dict(zip(noises, (setting.problem for setting in settings), strict=True))
        chosen = {noise: choose(problem, ("excess_risk",)) for noise, problem in problems.items()}
        risk = chosen[noises[0]].variants()[0] if watch.risk else None
        shared = Shared(key, replaced(settings[0], risk=risk), watch)
        advance, steps = _shared_driver(self, shared, cells[0].plan.replicas < FEW)
        saved = follow_cells(shared, begin_cells(shared, settings, cells), cells, advance)
        courses = [sealed(cell.plan, part.rows) for cell, part in zip(cells, saved, strict=True)]
        risks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for places in alike(noises):
            rows = [[courses[place][0][name] for place in places] for name in ("Q", "M", "a")]
            arguments = (chosen[noises[places[0]]], settings[places[0]].problem)
            risks |= zip(places, risks_along(*arguments, cells[0].plan.starts.P, *rows), strict=True)
        records = []
        for place, (cell, (rows, status)) in enumerate(zip(cells, courses, strict=True)):
            risk, error = risks[place]
            times = watch.times(saved[place].crossing, k, cell.training.clock(cell.problem))
            name = f"{chosen[noises[place]].name}; steps: {steps}" + _of_precision(settings[place])
            values = (rows["Q"], rows["M"], rows["a"], risk, error, np.zeros_like(risk), status, *times)
            records.append(stopped(Record(*values, name), cell.plan))
        return records

    @plain
    def _takes_single(self, problem: Problem, training: SGD) -> bool:
        if self.gradients != "auto":
            return self.gradients == "single"
        is_kernel = self.backend != "xla" and backend_here(self.backend) == "GPU kernel"
        is_written = training.samples_per_step(problem) == 1 and problem.p <= MAX_WIDTH
        return is_kernel and is_written and problem.is_noisy

    def _program(self, setting: Setting, watch: Watch, is_shared: bool = False) -> WrittenOut | None:
        """A step as a program on scalars, or None where it is computed on arrays by XLA."""
        if setting.batch == 1 and setting.problem.p <= MAX_WIDTH:
            is_long = setting.frame is not None and backend_here(self.backend) == "native"
            most = MOST_OPERATIONS if is_long else MAX_OPS
            return written(self.backend, partial(written_out, setting, watch, is_shared), most)
        if self.backend == "native":
            raise NotApplicable("Native code needs one sample a step and a width up to eight.")
        return None

    def _driver(self, setting: Setting, watch: Watch, replicas: int) -> tuple[Advance, str]:
        """The function that advances replicas on this machine, and the name of its backend."""
        program = self._program(setting, watch)
        if program is None:
            if self.backend == "auto" and takes_parts(setting):
                return in_parts(setting, watch), "xla, batches on all cores"
            sum_batch = self._sum_batch(setting)
            name = "xla" if sum_batch is None else "xla, batches by a GPU kernel"
            return partial(advance_xla, setting, watch, sum_batch=sum_batch), name
        loop, name = loop_here(self.backend, program, replicas)
        return partial(advance_written if name == "native" else advance_compiled, loop), name

    def _sum_batch(self, setting: Setting) -> SumBatch | None:
        """The sums over a batch by a GPU kernel; None where XLA computes them."""
        is_large = setting.batch >= LARGE_BATCH and setting.problem.p <= MAX_WIDTH and setting.training.is_fresh
        if self.backend == "xla" or not is_large or backend_here(self.backend) != "GPU kernel":
            return None
        try:
            return sums_written_out(setting)
        except Unsupported:
            return None


@lru_cache(maxsize=2**13)  # a sweep asks for the setting of a cell when it sorts the cells, and when it computes them
def _shareable(same: Same, is_double: bool) -> Setting:
    description, problem, training = same.members
    problem, training = as_data((problem, training))
    is_single = description._takes_single(problem, training)
    return shareable(make_setting(problem, training, is_single=is_single))


@lru_cache(maxsize=16)  # writing out a step takes a tenth of a second
def _shared_driver(description: OverlapSGD, shared: Shared, is_few: bool) -> tuple[AdvanceRows, str]:
    """The function that advances the replicas of many cells on this machine, and the name of its backend."""
    program = description._program(shared.setting, shared.watch, is_shared=True)
    backend = "xla" if program is None else backend_here(description.backend)
    if program is None or backend == "xla":
        return advance_arrays(shared), "xla"
    return by_native_code(program, 1 if is_few else FEW) if backend == "native" else by_gpu_kernel(program), backend


def _of_precision(setting: Setting) -> str:
    return ", gradients in single precision" if setting.is_single else ""


def _advance_running(advance: Advance, is_running: np.ndarray, run: RunState, first: Any, last: Any) -> RunState:
    """Advance the replicas that are still running; the others stay as they are."""
    active = np.flatnonzero(is_running)
    if active.size in (0, is_running.size):
        return advance(run, first, last) if active.size else run
    # Few compiled shapes are needed when the running replicas are padded to a power of two.
    members = np.resize(active, min(is_running.size, 1 << (active.size - 1).bit_length()))
    part = jax.device_get(advance(jax.tree.map(lambda x: x[members], run), first, last))

    def replaced(x: Any, values: Any) -> np.ndarray:
        x = np.array(x)
        x[active] = np.asarray(values)[: active.size]
        return x

    return jax.tree.map(replaced, run, part)


@KeptProgram
def _begin(setting: Setting, watch: Watch, starts: Overlaps, keys: Array, thresholds: Any) -> RunState:
    def one(Q: Array, M: Array, a: Array, key: Array, thresholds: Array) -> RunState:
        return begun(setting, watch, Overlaps(Q, M, starts.P, a), key, thresholds)

    def in_blocks_of(blocks: BlockOverlaps, Q: Array, M: Array, a: Array, key: Array, thresholds: Array) -> RunState:
        overlaps = Overlaps.by_block(BlockOverlaps(Q, M, blocks.frame), a)
        return begun(setting, watch, overlaps, key, thresholds)

    if starts.blocks is not None:
        Q, M = jnp.asarray(starts.blocks.Q), jnp.asarray(starts.blocks.M)
        rows = (Q, M, starts.a, keys, jnp.asarray(thresholds))
        return jax.vmap(partial(in_blocks_of, starts.blocks))(*rows)
    return jax.vmap(one)(starts.Q, starts.M, starts.a, keys, jnp.asarray(thresholds))


@KeptProgram
def _measured(setting: Setting, run: RunState) -> dict[str, Array]:
    def one(run: RunState) -> dict[str, Array]:
        overlaps = overlaps_of(setting, run.state)
        measured = {"Q": overlaps.Q, "M": overlaps.M, "a": overlaps.a, "crossing": run.crossing}
        blocks = overlaps.blocks
        if blocks is None:
            return measured
        return measured | {"Q_block": jnp.asarray(blocks.Q), "M_block": jnp.asarray(blocks.M)}

    return jax.vmap(one)(run)


@KeptProgram
def _fitted(problem: Problem, fit: RidgeRegression, starts: Overlaps, keys: Array, step: Any) -> Array:
    """The second layers of all replicas, each fitted on fresh samples of a step: fields are drawn, and no input is."""
    p, k, n, several = problem.p, problem.k, fit.samples or 1, problem.numbers_of_label
    parts = -(-n // FITTED_TOGETHER)

    def one(row: tuple[Array, Array, Array, Array]) -> Array:
        overlaps = Overlaps(row[0], row[1], starts.P, row[2])
        of_step = jax.random.fold_in(purpose_key(row[3], Purpose.OVERLAPS), step)

        def part(number: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
            of_part = jax.random.fold_in(of_step, number)
            normals = jax.random.normal(of_part, (FITTED_TOGETHER, p + k + several), jnp.float64)
            fields = fields_from_normals(overlaps, normals[:, several:])
            y = problem.label(fields[:, p:], normals[:, 0] if several == 1 else normals[:, :several])
            is_sample = number * FITTED_TOGETHER + jnp.arange(FITTED_TOGETHER) < n
            features = jnp.where(is_sample[:, None], problem.student.activation(fields[:, :p]), 0.0)
            return total[0] + features.T @ features, total[1] + features.T @ y

        totals = jax.lax.fori_loop(0, parts, part, (jnp.zeros((p, p)), jnp.zeros(p)))
        return fit.solve(*(total / n for total in totals))

    return jax.lax.map(one, (starts.Q, starts.M, starts.a, keys))
