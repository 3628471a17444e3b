"""`memtrade.apply`: a training step that takes less memory and does the same.

    optimized(batch)                                      a tf.function, as the original is
      └─ for each signature: trace ─► plan ─► rewrite     at the first call, kept after that
      └─ StatefulPartitionedCall(rewritten)               configured by itself

TensorFlow's graph optimizer would merge clones with their originals. So the rewritten step is
called as a function of its own that is not inlined, with a configuration that leaves its graph
alone; whatever else runs in the process is optimized as before.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf

from memtrade.collection import old_set_aside, without_collection
from memtrade.errors import OURS, MemtradeError, UnsupportedGraphError, check_name
from memtrade.options import NONE, SPLITS, Value
from memtrade.plan import Order, Plan
from memtrade.planning import Planner, built, warn_as_it_is
from memtrade.settings import ORIGINAL, Settings, settings_of
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
from memtrade.tf.failures import concrete_for
from memtrade.tf.inline import by_xla
from memtrade.tf.loss import Named
from memtrade.tf.places import offsets_of
from memtrade.tf.replicas import parts_of
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
        budget: the peak that the plan may reach, in bytes or as text ("6GB"); what plans for none,
            such as "ome", is held to it, too. On a GPU the step is run once, and undone, before it
            trains; a plan that breaks the budget there is made anew with what was learned.
            TensorFlow's CPU allocator counts nothing, so there the prediction decides. "auto"
            without a budget takes the device's memory; on the CPU, what the machine has free.
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
        MemtradeError: the step's code cannot take the example.
        UnknownNameError: no such strategy or option.
        InfeasibleBudgetError: no plan reaches the budget.
        BrokenBudgetError: the step takes more than the budget, whatever was learned.
        UnsupportedGraphError: the step cannot be rewritten; the message names the op or input.
    """
    check_name("split", split, SPLITS)
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
    for _ in range(2):  # makes variables where the original would; then traces without making them
        concrete_for(function, example)
    step.get_concrete_function(*released(example))  # pyright: ignore[reportFunctionMemberAccess]
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
            warn_as_it_is(self.name, f"cannot be planned for a batch of this size ({error})")
            run, order = None, []
        self.planned.append(size)
        if run is None:
            return self.function(*args, **kwargs)
        values = tensors_of(held((args, kwargs)))
        return run([values[i] for i in order])

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
    @old_set_aside()
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
        compiled = by_xla(planned.function_def)
        as_it_is = None if compiled else partial(unchanged, planned, specs)
        found = [
            Planner(self.name, part, given, lies, as_it_is).plan()
            for part, given in zip(parts, settings, strict=True)
        ]
        plans = [plan for plan, _ in found]
        self.last[:] = zip(parts, plans, strict=True)
        _, tried = found[0]  # of a part of several none is
        if not any(plan.actions for plan in plans):
            if any(plan.strategy != ORIGINAL for plan in plans):
                how = "is" if self.split == NONE else "in parts is"
                why = f"{how} not made smaller by {self.settings.strategy.name}"
                warn_as_it_is(self.name, why)
            return as_it_is and partial(call_unchanged, tried or as_it_is())
        if by_xla(concrete.function_def):
            warnings.warn(
                f"{traced.step.name} was to be compiled by XLA, which would undo the plan's order: "
                "the rewritten step runs without jit_compile",
                stacklevel=2,
            )
        transfers = [each.transfer for each in settings]
        return partial(call_alone, tried or built(traced, parts, plans, transfers))
