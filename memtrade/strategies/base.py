"""What a strategy is: a function from a graph and options to a plan."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from memtrade.graph import StepGraph
from memtrade.kernel_pairs import as_kernels
from memtrade.plan import Action, Decision, Fate, Plan
from memtrade.schedule import lower
from memtrade.simulate.defragment import defragment
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target

# OpenAI's MIN_CHECKPOINT_NODE_SIZE: a tensor of fewer elements is not worth a decision.
MIN_ELEMENTS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Strategy:
    """One entry of the registry.

    Attributes:
        options: a frozen dataclass whose fields are made by `memtrade.options.option`.
        plan: `(graph, options, target) -> Plan`; edits nothing and imports no TensorFlow.
        near: the same plan, but for budgets next to the smallest peak, for which `plan` looks much
            longer: these are refused, or get a slower one. For whoever asks at many batch sizes.
            None: `plan` is quick.
        about: the smallest peak in bytes, some percent off, but soon. None: nothing tells it.
    """

    name: str
    summary: str
    options: type
    plan: Callable[[StepGraph, Any, Target], Plan]
    near: Callable[[StepGraph, Any, Target], Plan] | None = None
    about: Callable[[StepGraph, Any, Target], float] | None = None


def worth_deciding(graph: StepGraph) -> list[int]:
    """The activations that are large enough for a decision."""
    return [t for t in graph.activations if is_worth_deciding(graph, t)]


def is_worth_deciding(graph: StepGraph, tensor: int) -> bool:
    return math.prod(graph.tensors[tensor].shape or (0,)) >= MIN_ELEMENTS


_POOLED = "its pool's gradient is the same to the bit only beside the pool"


def kept_for_last(make: Callable[[StepGraph, Target], T]) -> Callable[[StepGraph, Target], T]:
    """What `make` makes of a step on a target is kept until it is asked about another."""
    last: list[tuple[StepGraph, Target, T]] = []

    @functools.wraps(make)
    def of(graph: StepGraph, target: Target) -> T:
        if not last or last[0][0] is not graph or last[0][1] is not target:
            last[:] = [(graph, target, make(graph, target))]
        return last[0][2]

    return of


@kept_for_last
def clock_of(graph: StepGraph, target: Target) -> TimeSimulator:
    """One simulator for all that looks at a step on a target: to make it takes as long as to walk
    some ten programs."""
    return TimeSimulator(graph, target)


def make_plan(
    strategy: str, graph: StepGraph, options: Any, target: Target, fates: Sequence[Fate]
) -> Plan:
    """The plan that carries out `fates`."""
    actions = lower(graph, decisions(fates))
    return assemble(strategy, graph, options, target, fates, actions)


def decisions(fates: Iterable[Fate]) -> dict[int, Decision]:
    return {fate.tensor: fate.decision for fate in fates}


def assemble(
    strategy: str,
    graph: StepGraph,
    options: Any,
    target: Target,
    fates: Iterable[Fate],
    actions: tuple[Action, ...],
) -> Plan:
    """A plan of finished actions, in which the same kernels run as in the original, with
    reservations against the allocator's padding."""
    clock = clock_of(graph, target)
    pooled = clock.simulator.linker.hidden_of
    actions = as_kernels(graph, actions, pooled)
    copied = {action.id for action in actions if action.kind == "swap_out"}
    return Plan(
        strategy=strategy,
        options=dataclasses.asdict(options),
        fingerprint=graph.fingerprint,
        order=target.order,
        fates=tuple(
            Fate(fate.tensor, "recompute", _POOLED)
            if fate.decision == "swap" and fate.tensor in pooled and fate.tensor not in copied
            else fate
            for fate in fates
        ),
        actions=defragment(clock, actions),
        target=target.name,
    )
