"""Plans that save, or none: what else there is where a rule finds nothing, and what is not worse.

    rule ──no place to cut, or not small enough► other rules, each with the forward part as it was
                                                  created and by list scheduling ─► the leanest
    the leanest ──not small enough────────────► what rests at its peak leaves meanwhile (spill.py)
    plan ──peak not below the original's────────► no actions: the step runs as it is

Peaks are the simulator's; the original's is that of the order in which TensorFlow's executor runs
it. Other rules are compared by live bytes, and the two best with the allocator.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.plan import Action, Fate, Plan
from memtrade.schedule import Lowering, lower
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import assemble, clock_of, decisions
from memtrade.strategies.spill import leaving, spilled
from memtrade.target import Target
from memtrade.units import megabytes

Decide = Callable[[], Sequence[Fate]]

# So many programs are looked at with the allocator.
_JUDGED = 2

# Of the peak of a rule's own plan that saves, what slower rules must come down to to be taken.
_WORTH = 0.85

# Of a peak, what is asked for: holes and padding are the rest.
_HOLES = 0.92

# Of the original's peak, what a plan must come down to, by this simulation's error at least; and
# where some tensors have no known size: they may be large, and a plan may hold them for longer
# (ragged means: 4% less by what is known, and measured 20% more).
_LESS, _SURE = 0.99, 2 / 3


class NoCutError(UnsupportedGraphError):
    """A step whose forward pass has no place to be cut at."""

    def __init__(self, name: str):
        super().__init__(
            f"{name} has no place to cut its forward pass: use mode=speed, or name tensors with "
            "mode=list"
        )


def that_saves(
    strategy: str,
    graph: StepGraph,
    options: Any,
    target: Target,
    rule: Decide,
    otherwise: Sequence[Decide],
    enough: float = 1.0,
    *,
    swaps: bool = False,
) -> Plan:
    """The rule's plan if its peak is below `enough` times the original's, or others save little
    more and are slower; else the leanest of all that there are, whether it saves or not.

    Args:
        swaps: whether what rests at the peak may leave for host memory.
    """
    clock = clock_of(graph, target)
    wanted_bytes = enough * clock.original_bytes
    assembled = functools.partial(assemble, strategy, graph, options, target)
    choices: list[_Choice] = []
    own: _Choice | None = None
    for decide in (rule, *otherwise, lambda: ()):
        with contextlib.suppress(NoCutError):
            fates = decide()
            for lean in (False, True):
                actions = lower(graph, decisions(fates), Lowering(lean_forward=lean))
                choices.append(_Choice(clock, assembled, fates, actions))
                if decide is rule and not lean:
                    own = choices[0]
                    if own.is_below(wanted_bytes):
                        return own.plan
    choices.sort(key=lambda choice: choice.live_bytes)
    found = choices[:_JUDGED]
    if swaps and not any(choice.is_below(wanted_bytes) for choice in found):
        best = choices[0]
        actions = spilled(clock, best.actions, int(_HOLES * wanted_bytes))
        fates = _with_sent(graph, best.fates, actions)
        found.append(_Choice(clock, assembled, fates, actions))
    leanest = _leanest(found)
    if own and own.is_below(min(clock.original_bytes, leanest.peak_bytes / _WORTH)):
        return min(leanest.plan, own.plan, key=clock.step_seconds)
    return leanest.plan


class _Choice:
    """Actions that may become a plan.

    Attributes:
        live_bytes: what they ask for at most, which their peak is not below. It is known at once,
            and reservations (`plan`) take long.
    """

    def __init__(
        self,
        clock: TimeSimulator,
        assembled: Callable[[Sequence[Fate], tuple[Action, ...]], Plan],
        fates: Sequence[Fate],
        actions: tuple[Action, ...],
    ):
        self.clock, self.assembled = clock, assembled
        self.fates, self.actions = fates, actions
        self.live_bytes = clock.simulator.peak_live_bytes(actions)

    @cached_property
    def plan(self) -> Plan:
        return self.assembled(self.fates, self.actions)

    @cached_property
    def peak_bytes(self) -> int:
        return self.clock.needed(self.plan).peak_bytes

    def is_below(self, limit_bytes: float) -> bool:
        return self.live_bytes < limit_bytes and self.peak_bytes < limit_bytes


def _leanest(choices: Sequence[_Choice]) -> _Choice:
    best, *others = sorted(choices, key=lambda choice: choice.live_bytes)
    for choice in others:
        if choice.is_below(best.peak_bytes):
            best = choice
    return best


def _with_sent(
    graph: StepGraph, fates: Sequence[Fate], actions: Sequence[Action]
) -> Sequence[Fate]:
    """The fates, where more activations leave than these say."""
    made = {fate.tensor: fate for fate in fates}
    for t in leaving(graph, actions):
        if t not in made or made[t].decision != "swap":
            made[t] = Fate(t, "swap", "at rest at the peak")
    return [made[t] for t in sorted(made)]


def no_worse(plan: Plan, clock: TimeSimulator) -> Plan:
    """The plan, or where its peak is hardly below the original's, one that leaves the step alone
    and says so."""
    remark = saves_nothing(plan, clock)
    if not remark:
        return plan
    return msgspec.structs.replace(plan, fates=(), actions=(), remarks=(*plan.remarks, remark))


def saves_nothing(plan: Plan, clock: TimeSimulator) -> str:
    """A line that says so where the plan's predicted peak is hardly below the original's, or, where
    nothing tells the size of some tensors, not far below; or ""."""
    if not plan.actions:
        return ""
    planned = clock.needed(plan).peak_bytes
    unsized = clock.graph.data.unsized
    share = _SURE if unsized else _LESS
    if planned < share * clock.original_bytes:
        return ""
    why = ", which must be for tensors that nothing sizes" if unsized else ""
    return (
        f"its predicted peak of {megabytes(planned)} MB is not {1 - share:.0%} below the "
        f"original's {megabytes(clock.original_bytes)} MB{why}: memtrade.apply leaves the step "
        "as it is"
    )
