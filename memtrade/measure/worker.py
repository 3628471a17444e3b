"""The child process of a trial: builds the step, applies the strategy, runs it, says what it saw.

It is the only program that measures. memtrade.measure.trial starts it (`python -m
memtrade.measure`) with a TrialSpec on its standard input; it answers with events, one JSON line
each, on its standard output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import tensorflow as tf

from memtrade.comparison import ANOTHER_ORDER, IN_PARTS
from memtrade.errors import InfeasibleBudgetError, MemtradeError, UnsupportedGraphError
from memtrade.explain.error import first_line, node_of
from memtrade.graph import StepGraph
from memtrade.measure import host
from memtrade.measure.budgets import (
    CORRECTIONS,
    BrokenBudgetError,
    corrected,
    leaving_margin,
    peak_op,
)
from memtrade.measure.child import Say
from memtrade.measure.foreseen import given_plan, was_foreseen
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import (
    Calibrated,
    Corrected,
    Done,
    Failed,
    Measured,
    Planned,
    PlanSummary,
    Progress,
    Ready,
    Runtime,
    Simulated,
    StepDone,
    TrialSpec,
)
from memtrade.models import DrawnModel, make_model
from memtrade.options import REORDERED
from memtrade.plan import Plan
from memtrade.simulate.predict import Predicted, Predictor
from memtrade.strategies import NATIVE, NativeOptions, find_planned, make_options
from memtrade.strategies.known import plan_sharing
from memtrade.target import Target
from memtrade.tf.build import make_step
from memtrade.tf.calibrate import measure_rates
from memtrade.tf.construction import AS_USUAL, Construction
from memtrade.tf.device import LocalDevice, make_device
from memtrade.tf.extract import Trace, inspected, trace
from memtrade.tf.native import make_native_step
from memtrade.tf.places import lay_out
from memtrade.tf.rewrite import apply_plan
from memtrade.tf.split import split_step
from memtrade.tf.step import TrainStep
from memtrade.tf.verify import StepFunction, verified


def main(request: bytes, say: Say) -> int:
    spec = msgspec.json.decode(request, type=TrialSpec)
    try:
        _Worker(spec, say).run()
    except tf.errors.ResourceExhaustedError as error:
        say(Failed("out_of_memory", first_line(error)))
    except tf.errors.InvalidArgumentError as error:
        # What ParseTensor says where the device has no room for the tensor that comes back.
        if "Cannot parse tensor from proto" not in str(error.message):
            raise
        where = node_of(error) or "a tensor"
        say(Failed("out_of_memory", f"no room to swap in {where}"))
    except (BrokenBudgetError, InfeasibleBudgetError) as error:
        say(Failed("infeasible", str(error)))
    except UnsupportedGraphError as error:
        say(Failed("unsupported", str(error)))
    except MemtradeError as error:
        say(Failed("bad_input", str(error)))
    except (OverflowError, ValueError) as error:
        if "2**63" not in str(error):  # what TensorFlow and msgpack count to
            raise
        say(Failed("unsupported", f"the step is too large: {first_line(error)}"))
    return 0


class _Prepared(NamedTuple):
    """A step that is ready to be run, and by phase how long it took: see `Measured`."""

    step: StepFunction
    batch: tuple[tf.Tensor, ...]
    seconds: dict[str, float]
    foreseen: _Foreseen | None = None


class _Foreseen(NamedTuple):
    """What a step was planned from and predicted to do; a strategy without a plan has none."""

    traced: Trace
    target: Target
    plan: Plan
    predicted: Predicted


class _Worker:
    """One trial, phase by phase."""

    def __init__(self, spec: TrialSpec, say: Say):
        self.spec, self._say = spec, say
        self._device: LocalDevice  # from `run` on

    def _target(self, traced: Trace) -> Target:
        """What the plan is made for: this device, and what the step's kernels do on it."""
        spec = self.spec
        target = here_target(spec.device, order=spec.order, limit_bytes=spec.memory_limit_bytes)
        return learned_target(target, [traced.graph], on_progress=self._counted("ask kernel"))

    def _counted(self, phase: str) -> Callable[[int, int], None]:
        """Says how far a phase has come."""
        return lambda i, of: self._say(Progress(phase, i, of))

    def run(self) -> None:
        self._device, measured = self._start_device(), None
        if self.spec.task in ("extract", "inspect"):
            self._tell()
        elif self.spec.task == "calibrate":
            self._say(Calibrated(measure_rates(self._device, on_step=self._counted("calibrate"))))
        elif self.spec.task == "verify":
            self._verify()
        else:
            measured = self._measure()
        self._say(Done(measured))

    def _start_device(self) -> LocalDevice:
        limit_bytes = self.spec.memory_limit_bytes
        if limit_bytes is None:
            raise MemtradeError("a trial needs a memory limit: the parent sets the default")
        device = make_device(self.spec.device, limit_bytes)
        # The meta-optimizer would merge clones with their originals and drop identities.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        device.start()
        threading = tf.config.threading
        threads = threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
        runtime = Runtime(
            tensorflow_version=tf.__version__,
            device=device.name,
            limit_bytes=limit_bytes,
            onednn=device.runs_onednn(),
            intra_op_threads=threads,
            inter_op_threads=threading.get_inter_op_parallelism_threads(),
        )
        self._say(Ready(runtime))
        return device

    def _make_step(self, construction: Construction = AS_USUAL) -> TrainStep:
        return self._split(self._make_whole_step(construction))

    def _split(self, step: TrainStep) -> TrainStep:
        return split_step(step, self.spec.split) if self.spec.split else step

    def _make_whole_step(self, construction: Construction = AS_USUAL) -> TrainStep:
        model = make_model(self.spec.model, self.spec.model_options)
        return make_step(
            model,
            optimizer=self.spec.optimizer,
            learning_rate=self.spec.learning_rate,
            construction=construction,
        )

    def _tell(self) -> None:
        """Writes the step's graph, or what is in it, allocating nothing if it is drawn."""
        assert self.spec.graph_path
        self._say(Progress("trace"))
        model = make_model(self.spec.model, self.spec.model_options)
        in_graph = isinstance(model, DrawnModel)  # Keras makes its weights where they can be run
        with tf.Graph().as_default() if in_graph else contextlib.nullcontext():
            step = self._make_step()
            told = trace(step).graph if self.spec.task == "extract" else inspected(step)
        encoded = told.to_bytes() if isinstance(told, StepGraph) else msgspec.json.encode(told)
        Path(self.spec.graph_path).write_bytes(encoded)

    def _plan(self, traced: Trace, target: Target) -> Plan:
        self._say(Progress("plan"))
        path = self.spec.plan_path and Path(self.spec.plan_path)
        plan = given_plan(path, traced.graph) if path else None
        # Foreseen in memory without holes, it may find no room among those that are here.
        foreseen = plan if path and was_foreseen(path) else None
        if foreseen and not Predictor(traced.graph, target).predict(foreseen).fits:
            with contextlib.suppress(InfeasibleBudgetError):
                plan = self._own_plan(traced, target)
        plan = plan or self._own_plan(traced, target)
        self._say(Planned(PlanSummary.of(plan, traced.graph)))
        return plan

    def _own_plan(self, traced: Trace, target: Target) -> Plan:
        options = make_options(self.spec.strategy, self.spec.strategy_options)
        arena_bytes = self.spec.memory_limit_bytes if self.spec.device == "arena" else 0
        options = host.within_room(options, traced.graph, arena_bytes or 0)
        strategy, known = find_planned(self.spec.strategy), self.spec.known_folder
        try:
            return plan_sharing(strategy, traced.graph, options, target, known)
        except InfeasibleBudgetError:
            if not self.spec.leaves_margin:
                raise
        options = dataclasses.replace(options, budget=f"{target.limit_bytes >> 20}MiB")
        return plan_sharing(strategy, traced.graph, options, target, known)

    def _native_options(self) -> NativeOptions | None:
        """The options of a strategy that has no plan, or None."""
        if self.spec.strategy not in NATIVE or self.spec.plan_path is not None:
            return None
        return make_options(self.spec.strategy, self.spec.strategy_options)

    def _make_native_step(self, options: NativeOptions) -> TrainStep:
        self._say(Progress("trace"))
        step = make_native_step(options, self._make_step)
        step.variables()  # traces, if nothing has yet
        return step

    def _rewrite(self, traced: Trace, plan: Plan) -> StepFunction:
        self._say(Progress("rewrite"))
        step = apply_plan(traced, plan, self._device.transfer)
        step.get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]
        return step

    def _prepare(self) -> _Prepared:
        started = time.perf_counter()
        options = self._native_options()
        if options is not None:
            native = self._make_native_step(options)
            batch, none = native.make_batch(), {"plan_seconds": 0.0, "rewrite_seconds": 0.0}
            seconds = {"trace_seconds": time.perf_counter() - started, **none}
            return _Prepared(native.function, batch, seconds)
        self._say(Progress("trace"))
        traced = trace(self._make_step())
        target = self._target(traced)
        batch, places = lay_out(traced, self._device)
        target = target.replace(places=places)
        return self._planned(traced, batch, target, time.perf_counter() - started)

    def _planned(
        self, traced: Trace, batch: tuple[tf.Tensor, ...], target: Target, trace_seconds: float
    ) -> _Prepared:
        """Plans, predicts and rewrites."""
        started = time.perf_counter()
        plan, target = leaving_margin(partial(self._plan, traced), target)
        planned_at = time.perf_counter()
        self._say(Progress("simulate"))
        predicted = Predictor(traced.graph, target).predict(plan)
        self._say(Simulated(predicted))
        simulated_at = time.perf_counter()
        step = self._rewrite(traced, plan)
        seconds = {
            "trace_seconds": trace_seconds,
            "plan_seconds": planned_at - started,
            "rewrite_seconds": time.perf_counter() - simulated_at,
        }
        return _Prepared(step, batch, seconds, _Foreseen(traced, target, plan, predicted))

    def _measure(self) -> Measured:
        device, idle_bytes = self._device, psutil.Process().memory_info().rss
        before_bytes = device.in_use_bytes()
        prepared = self._prepare()
        ready_bytes = device.in_use_bytes()
        options = make_options(self.spec.strategy, self.spec.strategy_options)
        held = prepared.foreseen and not self.spec.leaves_margin
        budget_bytes = getattr(options, "budget_bytes", None) if held else None
        done, in_use = self._run(prepared, budget_bytes)
        for correction in range(CORRECTIONS + 1):
            over = done[-1]
            if budget_bytes is None or over.peak_bytes <= budget_bytes:
                break
            last = correction == CORRECTIONS
            prepared = self._better(prepared, over.peak_bytes, budget_bytes, last=last)
            done, in_use = self._run(prepared, budget_bytes)
        host_bytes = max(0, host.highest_rss_bytes() - device.resident_bytes() - idle_bytes)
        return Measured.of(
            done,
            warmup=self.spec.warmup,
            persistent_bytes=device.in_use_bytes(),
            host_bytes=host_bytes,
            **prepared.seconds,
            in_use_bytes=(before_bytes, ready_bytes, *in_use),
        )

    def _run(
        self, prepared: _Prepared, budget_bytes: int | None
    ) -> tuple[list[StepDone], list[int]]:
        """All steps, or those up to the first that takes more than the budget, and the bytes in use
        after each."""
        device = self._device
        done: list[StepDone] = []
        in_use: list[int] = []
        for i in range(self.spec.warmup + self.spec.steps):
            self._say(Progress.of_step(i, warmup=self.spec.warmup, steps=self.spec.steps))
            device.reset_peak()
            begin = time.perf_counter()
            loss = float(prepared.step(*prepared.batch))
            seconds = time.perf_counter() - begin
            done.append(StepDone(seconds, device.peak_bytes(), loss))
            in_use.append(device.in_use_bytes())
            self._say(done[-1])
            if budget_bytes is not None and done[-1].peak_bytes > budget_bytes:
                break
        return done, in_use

    def _better(
        self, prepared: _Prepared, peak_bytes: int, budget_bytes: int, *, last: bool
    ) -> _Prepared:
        """The step planned anew with what its peak has taught. Raises BrokenBudgetError where that
        was the last time, and InfeasibleBudgetError where no plan fits any more."""
        assert prepared.foreseen is not None
        traced, target, plan, predicted = prepared.foreseen
        if last or self.spec.plan_path is not None:
            op = peak_op(target, traced.graph, plan)
            raise BrokenBudgetError(peak_bytes, budget_bytes, op)
        better, remedy = corrected(
            target,
            traced.graph,
            plan,
            peak_bytes=peak_bytes,
            on_progress=self._counted("ask kernel"),
        )
        self._say(
            Corrected(
                predicted_bytes=predicted.peak_bytes,
                measured_bytes=peak_bytes,
                budget_bytes=budget_bytes,
                remedy=remedy,
            )
        )
        spent = prepared.seconds["trace_seconds"]
        return self._planned(traced, prepared.batch, better, spent)

    def _verify(self) -> None:
        # On the CPU, rewritten steps equal the original to the bit.
        tolerance = 0.0 if self.spec.device == "arena" else ANOTHER_ORDER
        options = self._native_options()
        self._say(Progress("trace"))
        if options is not None:
            original = self._make_step()
            native = self._make_native_step(options)
            step, own_variables = native.function, native.variables()
            tolerance = max(tolerance, options.tolerance)
        else:
            original, own_variables = self._make_whole_step(), None
            traced = trace(self._split(original))
            step = self._rewrite(traced, self._plan(traced, self._target(traced)))
            tolerance = max(tolerance, IN_PARTS if self.spec.split == REORDERED else 0.0)
        found = verified(
            original,
            step,
            steps=self.spec.steps,
            tolerance=tolerance,
            own_variables=own_variables,
            anew=bool(self.spec.split),
            on_step=self._counted("verify"),
        )
        self._say(found)
