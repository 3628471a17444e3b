"""`memtrade.apply`: a training step that takes less memory and does the same.

    optimized(batch)                                      a tf.function, as the original is
      └─ for each signature: trace ─► plan ─► rewrite     at the first call, kept after that
      └─ StatefulPartitionedCall(rewritten)               configured by itself

TensorFlow's graph optimizer would merge clones with their originals. So the rewritten step is
called as a function of its own that is not inlined, with a configuration that leaves its graph
alone; whatever else runs in the process is optimized as before.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import tensorflow as tf

from memtrade.collection import without_collection
from memtrade.errors import OURS, InfeasibleBudgetError, MemtradeError, UnsupportedGraphError
from memtrade.measure import host
from memtrade.measure.budgets import (
    CORRECTIONS,
    BrokenBudgetError,
    corrected,
    leaving_margin,
    peak_op,
)
from memtrade.measure.here import learned_target
from memtrade.options import NONE, Value
from memtrade.plan import Order, Plan
from memtrade.settings import ORIGINAL, Settings, check_split, settings_of
from memtrade.simulate.memory import ROOMY_BYTES, MemoryResult
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.strategies.base import clock_of
from memtrade.strategies.budget import check_sized
from memtrade.strategies.saving import Peaks, no_worse
from memtrade.target import Target
from memtrade.tf.calling import (
    argument_order,
    as_function,
    call_alone,
    call_unchanged,
    made_from,
    of_tensors,
    step_of,
    unchanged,
)
from memtrade.tf.device import Arena
from memtrade.tf.extract import Trace, trace_concrete
from memtrade.tf.inline import by_xla
from memtrade.tf.loss import Named
from memtrade.tf.places import offsets_of, places_here
from memtrade.tf.rehearsal import Rehearsal, can_be_rehearsed, rehearsed
from memtrade.tf.replicas import apply_plans, parts_of
from memtrade.tf.split import in_parts
from memtrade.tf.structure import (
    arguments_of,
    check_shapes,
    given_in,
    held,
    holds_variables,
    released,
    specs_of,
    tensors_of,
    with_variables,
)
from memtrade.units import megabytes, megabytes_between

log = logging.getLogger("memtrade")

# The order that TensorFlow runs a step in, as it is, moves its peak by a third at most.
_NEAR = 0.6


def apply(
    train_step: Callable[..., Any],
    example_batch: Any,
    strategy: str = "ome",
    *,
    budget: str | int | None = None,
    loss: Named = None,
    order: Order = "pinned",
    device: str | None = None,
    profile: str | None = None,
    split: str = NONE,
    **options: Value,
) -> Any:
    """`train_step` rewritten by a strategy: same arguments, results and updates, less memory.

    The step is traced for `example_batch`, planned and rewritten before this returns, so what is
    wrong is said here; the original is left as it was. A batch of other shapes is traced, planned
    and rewritten when it first comes. Where no plan saves anything the step runs as it is, with a
    warning; so it does for a batch no larger than one before, whatever goes wrong with it. Where
    it runs on several devices (`tf.distribute`), each has a plan of its own within the budget.

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
    >>> batch = tf.ones([4096, 64])
    >>> lean_step = apply(train_step, batch, strategy="checkpoints")
    >>> float(lean_step(batch))
    1.0

    Args:
        train_step: a `tf.function`, or a Python function that can become one.
        example_batch: the arguments, as a tuple if there are several. Tensors, arrays or
            `tf.TensorSpec`s.
        strategy: a name out of `memtrade strategies` that makes plans; or "auto": the step as it
            is where it is predicted to fit, else the fastest plan that fits (`optimal`).
        budget: the peak that the plan may reach, in bytes or as text ("6GB"). On a GPU the step is
            run once, and undone, before it trains; a plan that breaks the budget there is made
            anew with what was learned. TensorFlow's CPU allocator counts nothing, so there the
            prediction decides. "auto" without a budget takes the device's memory; on the CPU, what
            the machine has free.
        loss: which of the returned values the gradients descend from, for a better plan: its
            place (0), its key ("total_loss", "losses/first"), or a function of what is returned.
            Unless given, it is found: by the name "loss", or by what leads to the updates.
        order: "pinned" runs the rewritten step in one fixed order, "dataflow" leaves the order to
            TensorFlow.
        device: "gpu:0" swaps tensors to the host's memory, "arena" (the CPU) out of TensorFlow's
            allocator. By default the first GPU, if TensorFlow sees one.
        profile: the device profile (`memtrade devices`, or a .toml file) that the plan is made for.
            By default the arena's, or the one whose name is nearest to the card's.
        split: "exact" runs the widest gradients behind pools in parts along the batch; "reordered"
            batch norms', too, or all that is wide where none is, equal within rounding only.
        options: the strategy's options, as `memtrade strategies` lists them.

    Returns:
        A tf.function. It can be saved with a SavedModel and called in other tf.functions.

    Raises:
        UnknownNameError: no such strategy or option.
        InfeasibleBudgetError: no plan reaches the budget.
        BrokenBudgetError: the step takes more than the budget, whatever was learned.
        UnsupportedGraphError: the step cannot be rewritten; the message names the op or input.
    """
    check_split(split)
    settings = settings_of(
        strategy, budget=budget, order=order, device=device, profile=profile, **options
    )
    function = as_function(train_step)
    batch = given_in(arguments_of(function, example_batch))
    rewriting = _Rewriting(function, settings, loss, offsets_of(batch, Arena.started), batch, split)

    def optimized(*args: Any, **kwargs: Any) -> Any:
        return rewriting.call(args, kwargs)

    optimized.__name__ = getattr(train_step, "__name__", "train_step")
    step = tf.function(optimized, autograph=False)
    example = specs_of(arguments_of(function, example_batch))
    given = released(example)
    for _ in range(2):  # makes variables where the original would; then traces without making them
        function.get_concrete_function(*given)
    step.get_concrete_function(*given)  # pyright: ignore[reportFunctionMemberAccess]
    batch.clear()  # it is the user's
    made_from[step] = function, rewriting.last
    return step


@dataclass(frozen=True)
class _Rewriting:
    """What `apply` does to one function, for each signature anew."""

    function: Any  # tf.types.experimental.PolymorphicFunction
    settings: Settings
    loss: Named
    lies: Sequence[int]  # where each tensor of the example is; later batches come and go
    batch: Sequence[Any]  # the example itself, until the first signature is rewritten
    split: str = NONE
    planned: list[int] = field(default_factory=list)  # bytes of the batches before
    last: list[tuple[Trace, Plan]] = field(default_factory=list)  # of a batch, a device each

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "train_step")

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Adds a call of the rewritten step to the graph that is being traced."""
        kwargs = with_variables(self.function, args, kwargs)
        specs = specs_of((args, kwargs))
        tensors = tensors_of(specs)
        size = sum((t.shape.num_elements() or 0) * (t.dtype.size or 0) for t in tensors)
        try:
            check_shapes(self.function, *specs)
            run, order = self.rewritten(*specs)
        except MemtradeError as error:
            if size > max(self.planned, default=-1):
                raise
            self._warn(f"cannot be planned for a batch of this size ({error})")
            run, order = None, []
        self.planned.append(size)
        if run is None:
            return self.function(*args, **kwargs)
        values = tensors_of(held((args, kwargs)))
        return run([values[i] for i in order])

    def _warn(self, why: str) -> None:
        warnings.warn(f"{self.name} {why}: it runs as it is", stacklevel=2)

    def rewritten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[int]]:
        """A call of the rewritten step, or of the step as it is, with its tensors alone, and for
        each of these the number of the tensor among the arguments. None where XLA compiles what
        is left as it is."""
        specs = tensors_of((args, kwargs))
        if holds_variables((args, kwargs)):
            concrete, order = of_tensors(self.function, args, kwargs), list(range(len(specs)))
        else:
            concrete = self.function.get_concrete_function(*args, **kwargs)
            order = argument_order(self.function, args, kwargs)
        try:
            return self._made(concrete, tuple(specs[i] for i in order), order), order
        except OURS as error:  # the user's own code has been traced before
            words = str(error).strip().splitlines() or [""]
            raise UnsupportedGraphError(
                f"{self.name} could not be rewritten, and memtrade should have said why: "
                f"{type(error).__name__}: {words[0]}"
            ) from error

    @without_collection()
    def _made(self, concrete: Any, specs: tuple[tf.TensorSpec, ...], order: Sequence[int]) -> Any:
        """A call of the rewritten step, or of the step as it is; None where XLA compiles that."""
        planned = concrete
        if self.split != NONE:
            planned = in_parts(concrete, specs, self.name, self.split).get_concrete_function(*specs)  # pyright: ignore[reportFunctionMemberAccess]
        example = [] if self.planned else [self.batch[i] for i in order]
        step = step_of(self.function, planned, specs, self.loss, example)
        traced = trace_concrete(step, planned)
        parts = parts_of(traced)
        lies = None if self.planned else [self.lies[i] for i in order]
        settings = [self.settings.on(part.device) for part in parts]
        found = [self._plan(*each, lies) for each in zip(parts, settings, strict=True)]
        plans = [plan for plan, _ in found]
        self.last[:] = zip(parts, plans, strict=True)
        compiled = by_xla(concrete.function_def)
        transfers = [each.transfer for each in settings]
        _, tried = found[0]  # of a part of several none is
        as_it_is = tried is None and self.split == NONE
        if as_it_is and not any(plan.actions for plan in plans):
            if any(plan.strategy != ORIGINAL for plan in plans):
                self._warn(f"is not made smaller by {self.settings.strategy.name}")
            return None if compiled else partial(call_unchanged, unchanged(concrete, specs))
        if compiled:
            warnings.warn(
                f"{traced.step.name} was to be compiled by XLA, which would undo the plan's order: "
                "the rewritten step runs without jit_compile",
                stacklevel=2,
            )
        return partial(call_alone, tried or _built(traced, parts, plans, transfers))

    def _plan(
        self, traced: Trace, settings: Settings, lies: Sequence[int] | None
    ) -> tuple[Plan, Any]:
        """A plan that keeps the budget, by prediction and, where the device counts, by a rehearsal;
        and the rehearsed function.

        What a rehearsal above the budget teaches corrects the target, and the plan is made anew.
        """
        budget_bytes = settings.budget_bytes
        target = settings.target.among(places_here(traced, lies))
        target = learned_target(target, [traced.graph], environment=os.environ)
        as_it_is = cache(partial(self._holds_as_it_is, traced, target, lies))
        if settings.automatic and self._fits(traced, settings, target) and as_it_is():
            return find_planned(ORIGINAL).plan(traced.graph, make_options(ORIGINAL), target), None
        options = host.within_room(settings.options, traced.graph, budget_bytes or 0)
        for correction in itertools.count():
            foresee = partial(self._foresee, traced, options)
            (plan, given_bytes), target = leaving_margin(foresee, target)
            if not plan.actions and as_it_is():
                return plan, None
            tried = self._rehearse(traced, plan, lies)
            if budget_bytes is None or not tried or tried.taken_bytes is None:
                return plan, tried and tried.concrete
            peak_bytes = tried.taken_bytes + given_bytes
            held = peak_bytes <= budget_bytes
            if held and tried.moved:  # what it updated lies elsewhere now
                target = target.among(tried.moved)
                peak_bytes = self._judge(traced, plan, clock_of(traced.graph, target)).peak_bytes
            if peak_bytes <= budget_bytes:
                return plan, tried.concrete
            del tried
            gc.collect()  # with its function goes what that keeps on the device
            if correction == CORRECTIONS:
                op = peak_op(target, traced.graph, plan)
                raise BrokenBudgetError(peak_bytes, budget_bytes, op)
            if held:  # it is planned anew from there
                continue
            learned = corrected(
                target, traced.graph, plan, peak_bytes=peak_bytes, environment=os.environ
            )
            log.warning(
                "%s took %s MB of a budget of %s MB when it was rehearsed: planned anew; %s",
                traced.step.name,
                *map(megabytes, (peak_bytes, budget_bytes)),
                learned.remedy,
            )
            target = learned.target
        raise AssertionError("the loop ends by itself")

    def _fits(self, traced: Trace, settings: Settings, target: Target) -> bool:
        """Whether the step as it is is predicted to keep the budget."""
        budget_bytes = settings.budget_bytes
        assert budget_bytes is not None
        if traced.graph.data.unsized and not settings.asked:
            self._warn("has tensors whose size nothing tells, so whether it fits is not known")
            return True
        original_bytes = Peaks(traced.graph, target).original
        log.info(
            "%s as it is: predicted peak %s MB of %s MB",
            traced.step.name,
            megabytes(original_bytes),
            megabytes(budget_bytes),
            extra={"peak_bytes": original_bytes, "original_bytes": original_bytes},
        )
        return original_bytes <= budget_bytes

    def _holds_as_it_is(self, traced: Trace, target: Target, lies: Sequence[int] | None) -> bool:
        """Whether the step keeps the budget in TensorFlow's own order, which is foreseen less well
        than a pinned one: near the budget a rehearsal tells."""
        budget_bytes = self.settings.budget_bytes
        found = clock_of(traced.graph, target).needed(())
        compiled = by_xla(traced.concrete.function_def)
        can_tell = self.split == NONE and not compiled and can_be_rehearsed(traced)
        if budget_bytes is None or not can_tell or found.peak_bytes < _NEAR * budget_bytes:
            return True
        build = partial(unchanged, traced.concrete, traced.step.specs)
        try:
            tried = rehearsed(traced, build, self.settings.tf_device, lies, call_unchanged)
        except tf.errors.ResourceExhaustedError:
            return False
        return tried.taken_bytes is None or tried.taken_bytes + found.given_bytes <= budget_bytes

    def _rehearse(self, traced: Trace, plan: Plan, lies: Sequence[int] | None) -> Rehearsal | None:
        """Runs of the rewritten step that leave nothing behind, if anybody asks what it takes."""
        if self.settings.budget_bytes is None or not can_be_rehearsed(traced):
            return None
        build = partial(_built, traced, [traced], [plan], [self.settings.transfer])
        return rehearsed(traced, build, self.settings.tf_device, lies, call_alone)

    def _foresee(self, traced: Trace, options: Any, target: Target) -> tuple[Plan, int]:
        """A plan that is predicted to keep the budget, and the bytes that lie there before
        the first step (0 where nobody asks).

        Raises InfeasibleBudgetError where none does.
        """
        peaks = Peaks(traced.graph, target)
        plan = no_worse(self.settings.strategy.plan(traced.graph, options, target), peaks)
        budget_bytes = self.settings.budget_bytes
        if budget_bytes is None and not log.isEnabledFor(logging.INFO):
            return plan, 0
        if budget_bytes is not None:
            check_sized(traced.graph)
        found = self._judge(traced, plan, peaks.clock)
        if budget_bytes is not None and found.peak_bytes > budget_bytes:
            raise InfeasibleBudgetError(found.peak_bytes, budget_bytes, found.peak_op)
        return plan, found.given_bytes

    def _judge(self, traced: Trace, plan: Plan, clock: TimeSimulator) -> MemoryResult:
        """What the plan is predicted to take, which the log says, too."""
        found = clock.needed(plan)
        if log.isEnabledFor(logging.INFO):
            original = clock.simulator.memory((), limit_bytes=ROOMY_BYTES)
            bound = traced.graph.bound
            log.info(
                "%s of %s: predicted peak %s%s MB, original %s%s MB",
                plan.strategy,
                traced.step.name,
                *(bound, megabytes_between(found.told_peak_bytes, found.peak_bytes)),
                *(bound, megabytes_between(original.told_peak_bytes, original.peak_bytes)),
                extra={
                    "peak_bytes": found.peak_bytes,
                    "told_peak_bytes": found.told_peak_bytes,
                    "original_bytes": original.peak_bytes,
                    "bound": bound,
                },
            )
        return found


def _built(traced: Trace, parts: Any, plans: Any, transfers: Any) -> Any:
    """The rewritten step's concrete function."""
    return apply_plans(traced, parts, plans, transfers).get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]
