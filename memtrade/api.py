"""`memtrade.apply`: a training step that takes less memory and does the same.

    optimized(batch)                                      a tf.function, as the original is
      └─ for each signature: trace ─► plan ─► rewrite     at the first call, kept after that
      └─ StatefulPartitionedCall(rewritten)               configured by itself

TensorFlow's graph optimizer would merge clones with their originals. So the rewritten step is
called as a function of its own that is not inlined, with a configuration that leaves its graph
alone; whatever else runs in the process is optimized as before.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.graph import CALL_TYPES
from memtrade.measure import host
from memtrade.measure.budgets import CORRECTIONS, BrokenBudgetError, corrected, peak_op
from memtrade.measure.here import here_target, learned_target
from memtrade.options import Value, options_of
from memtrade.plan import Order, Plan
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import Strategy, find_planned, make_options
from memtrade.strategies.budget import check_sized
from memtrade.target import ARENA, Target
from memtrade.tf.extract import Trace, trace_concrete
from memtrade.tf.rehearsal import can_be_rehearsed, rehearse
from memtrade.tf.rewrite import apply_plan
from memtrade.tf.step import TrainStep
from memtrade.tf.structure import arguments_of, check_shapes, packed, specs_of, tensors_of
from memtrade.tf.swap import DeviceCopyTransfer, HostTransfer, SerializeTransfer
from memtrade.units import megabytes, parse_bytes

log = logging.getLogger("memtrade")


def apply(
    train_step: Callable[..., Any],
    example_batch: Any,
    strategy: str = "ome",
    *,
    budget: str | int | None = None,
    order: Order = "pinned",
    device: str | None = None,
    profile: str | None = None,
    **options: Value,
) -> Any:
    """`train_step` rewritten by a strategy: same arguments, results and updates, less memory.

    The step is traced for `example_batch`, planned and rewritten before this returns, so what is
    wrong is said here; the original is left as it was. A batch of other shapes is traced, planned
    and rewritten when it first comes.

    >>> weight = tf.Variable(tf.ones([64, 64]))
    >>> @tf.function
    ... def train_step(x):
    ...     with tf.GradientTape() as tape:
    ...         y = x
    ...         for _ in range(8):
    ...             y = tf.nn.tanh(y @ weight)
    ...         loss = tf.reduce_mean(y)
    ...     weight.assign_sub(0.1 * tape.gradient(loss, weight))
    ...     return loss
    >>> batch = tf.ones([128, 64])
    >>> lean_step = apply(train_step, batch, strategy="checkpoints")
    >>> float(lean_step(batch))
    1.0

    Args:
        train_step: a `tf.function`, or a Python function that can become one. It takes batches and
            returns the loss, alone or in a structure: the one floating-point scalar, or the one
            under the name "loss".
        example_batch: the arguments, as a tuple if there are several. Tensors, arrays or
            `tf.TensorSpec`s.
        strategy: a name out of `memtrade strategies` that makes plans.
        budget: the peak that the plan may reach, in bytes or as text ("6GB"). On a GPU the step is
            run once, and undone, before it trains; a plan that breaks the budget there is made
            anew with what was learned. TensorFlow's CPU allocator counts nothing, so there the
            prediction decides.
        order: "pinned" runs the rewritten step in one fixed order, "dataflow" leaves the order to
            TensorFlow.
        device: "gpu:0" swaps tensors to the host's memory, "arena" (the CPU) out of TensorFlow's
            allocator. By default the first GPU, if TensorFlow sees one.
        profile: the device profile (`memtrade devices`, or a .toml file) that the plan is made for.
            By default the arena's, or the one whose name is nearest to the card's.
        options: the strategy's options, as `memtrade strategies` lists them.

    Returns:
        A tf.function. It can be saved with a SavedModel and called in other tf.functions.

    Raises:
        UnknownNameError: no such strategy or option.
        InfeasibleBudgetError: no plan reaches the budget.
        BrokenBudgetError: the step takes more than the budget, whatever was learned.
        UnsupportedGraphError: the step cannot be rewritten; the message names the op or input.
    """
    chosen = find_planned(strategy)
    given = dict(options)
    known = {each.name for each in options_of(chosen.options)}
    budget_bytes = parse_bytes(budget) if isinstance(budget, str) else budget
    if budget is not None and "budget" in known:
        given["budget"] = budget if isinstance(budget, str) else f"{budget}B"
    device = device or ("gpu:0" if tf.config.list_logical_devices("GPU") else ARENA)
    device = ARENA if device == "cpu" else device
    transfer = _transfer(device)
    function: Any = train_step
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(train_step)
    rewriting = _Rewriting(
        function,
        chosen,
        make_options(strategy, given),
        budget_bytes,
        device,
        here_target(device, profile=profile, order=order),
        transfer,
    )

    def optimized(*args: Any, **kwargs: Any) -> Any:
        return rewriting.call(args, kwargs)

    optimized.__name__ = getattr(train_step, "__name__", "train_step")
    step = tf.function(optimized, autograph=False)
    example = specs_of(arguments_of(function, example_batch))
    function.get_concrete_function(*example)  # makes variables where the original would
    step.get_concrete_function(*example)  # pyright: ignore[reportFunctionMemberAccess]
    return step


@dataclass(frozen=True)
class _Rewriting:
    """What `apply` does to one function, for each signature anew."""

    function: Any  # tf.types.experimental.PolymorphicFunction
    strategy: Strategy
    options: Any
    budget_bytes: int | None
    device_name: str
    target: Target
    transfer: HostTransfer

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Adds a call of the rewritten step to the graph that is being traced."""
        specs = specs_of((args, kwargs))
        check_shapes(self.function, *specs)
        rewritten, order = self.rewritten(*specs)
        if rewritten is None:
            return self.function(*args, **kwargs)
        values = tensors_of((args, kwargs))
        return _call_alone(rewritten, [values[i] for i in order])

    def rewritten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[int]]:
        """The rewritten step, of its tensors alone, and for each of its inputs the number of the
        tensor among the arguments. None where the plan leaves the step as it is."""
        concrete = self.function.get_concrete_function(*args, **kwargs)
        order = _argument_order(self.function, args, kwargs)
        specs = tensors_of((args, kwargs))
        traced = self._trace(concrete, tuple(specs[i] for i in order))
        plan = self._plan(traced)
        if not plan.actions:
            return None, order
        if "_XlaMustCompile" in concrete.function_def.attr:
            warnings.warn(
                f"{traced.step.name} was to be compiled by XLA, which would undo the plan's order: "
                "the rewritten step runs without jit_compile",
                stacklevel=2,
            )
        return apply_plan(traced, plan, self.transfer).get_concrete_function(), order  # pyright: ignore[reportFunctionMemberAccess]

    def _trace(self, concrete: Any, specs: tuple[tf.TensorSpec, ...]) -> Trace:
        step = TrainStep(
            name=getattr(self.function, "__name__", "train_step"),
            function=self.function,
            specs=specs,
            make_batch=lambda: tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs),
            variables=lambda: tuple(concrete.variables),
        )
        return trace_concrete(step, concrete)

    def _plan(self, traced: Trace) -> Plan:
        """A plan that keeps the budget: by prediction and, where the device counts, by a rehearsal.

        What a rehearsal above the budget teaches corrects the target, and the plan is made anew.
        """
        target = learned_target(self.target, [traced.graph], environment=os.environ)
        options = host.within_room(self.options, traced.graph, self.budget_bytes or 0)
        for correction in itertools.count():
            plan = self.strategy.plan(traced.graph, options, target)
            if self.budget_bytes is None and not log.isEnabledFor(logging.INFO):
                return plan  # nobody asks what it takes
            persistent_bytes = self._judge(traced, plan, target)
            peak_bytes = self._rehearse(traced, plan, persistent_bytes)
            if self.budget_bytes is None or peak_bytes <= self.budget_bytes:
                return plan
            if correction == CORRECTIONS:
                op = peak_op(target, traced.graph, plan)
                raise BrokenBudgetError(peak_bytes, self.budget_bytes, op)
            learned = corrected(
                target,
                traced.graph,
                plan,
                peak_bytes=peak_bytes,
                environment=os.environ,
            )
            log.warning(
                "%s took %s MB of a budget of %s MB when it was rehearsed: planned anew; %s",
                traced.step.name,
                megabytes(peak_bytes),
                megabytes(self.budget_bytes),
                learned.remedy,
            )
            target = learned.target
        raise AssertionError("the loop ends by itself")

    def _rehearse(self, traced: Trace, plan: Plan, persistent_bytes: int) -> int:
        """The peak of one run that leaves nothing behind; 0 where nobody asks, or nobody counts."""
        if self.budget_bytes is None or not plan.actions or not can_be_rehearsed(traced.graph):
            return 0
        concrete = apply_plan(traced, plan, self.transfer).get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]
        device = "CPU:0" if self.device_name == ARENA else self.device_name.upper()
        with tf.init_scope():
            batch = traced.step.make_batch()
        captured = traced.concrete.captured_inputs
        taken = rehearse(lambda *values: _call_alone(concrete, values), batch, captured, device)
        return 0 if taken is None else taken + persistent_bytes

    def _judge(self, traced: Trace, plan: Plan, target: Target) -> int:
        """The bytes that lie there between steps, as predicted.

        Raises InfeasibleBudgetError where the plan is predicted to exceed the budget.
        """
        if self.budget_bytes is not None:
            check_sized(traced.graph)
        clock = TimeSimulator(traced.graph, target)
        found = clock.timeline(plan, limit_bytes=ROOMY_BYTES).memory
        assert found is not None
        if self.budget_bytes is not None and found.peak_bytes > self.budget_bytes:
            raise InfeasibleBudgetError(found.peak_bytes, self.budget_bytes, found.peak_op)
        if log.isEnabledFor(logging.INFO):
            original = clock.timeline((), limit_bytes=ROOMY_BYTES).memory
            assert original is not None
            log.info(
                "%s of %s: predicted peak %s MB, original %s MB",
                plan.strategy,
                traced.step.name,
                megabytes(found.peak_bytes),
                megabytes(original.peak_bytes),
            )
        return found.persistent_bytes


def _transfer(device: str) -> HostTransfer:
    if device == ARENA:
        return SerializeTransfer()
    kind, _, number = device.partition(":")
    count = len(tf.config.list_logical_devices("GPU"))
    if kind != "gpu" or not number.isdecimal() or int(number) >= count:
        raise UnsupportedGraphError(
            f"there is no device {device!r}: choose arena, or one of the {count} GPUs that "
            "TensorFlow sees as gpu:0 and so on"
        )
    return DeviceCopyTransfer(device=f"/device:GPU:{number}", host="/device:CPU:0")


def _argument_order(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """For each input of the traced function, the number of the tensor among the arguments.

    Asked of a call of it: TensorFlow orders inputs by parameter, and that is for it to know.
    """
    specs = tensors_of((args, kwargs))

    @tf.function(autograph=False, input_signature=specs)
    def caller(*tensors: tf.Tensor) -> Any:
        given, named = packed((args, kwargs), tensors)
        return function(*given, **named)

    graph = caller.get_concrete_function().graph  # pyright: ignore[reportFunctionMemberAccess]
    number = {t.name: i for i, t in enumerate(graph.inputs)}
    call = next(op for op in graph.get_operations() if op.type in CALL_TYPES)
    return [number[t.name] for t in call.inputs[: len(specs)]]


def _call_alone(concrete: Any, values: Sequence[tf.Tensor]) -> Any:
    """Calls a function whose graph is to be run as it is, without TensorFlow's optimizer."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    results = tf.raw_ops.StatefulPartitionedCall(
        args=[*values, *concrete.captured_inputs],
        Tout=[t.dtype for t in concrete.outputs],
        f=concrete,
        config_proto=config.SerializeToString(),
    )
    if isinstance(results, tf.Operation):  # it returns nothing
        results = []
    for result, known in zip(results, concrete.outputs, strict=True):
        result.set_shape(known.shape)
    return packed(concrete.structured_outputs, results)
