"""The budget of a strategy that has one, and the search for the plan that fits it.

Such a strategy thinks in a model of its own; whether a plan fits is for the simulator to say, with
the allocator's padding, scratch and what persists. So it offers a ladder of programs, from the
leanest to the fastest, and `fit` climbs it as far as the simulated peak allows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from memtrade.errors import InfeasibleBudgetError, RuleError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.op_types import LOOP_TYPES, PYTHON_TYPES
from memtrade.options import Checked, option
from memtrade.plan import Action
from memtrade.simulate.defragment import defragment
from memtrade.simulate.memory import MemoryResult
from memtrade.simulate.timeline import TimeSimulator
from memtrade.units import parse_bytes

_BUDGET = "option 'budget'"
# The ladder is looked at in so many places before the search goes into detail.
PLACES = 16
# How often a program whose padding is too much for the budget is replaced by a leaner one.
RETRIES = 12


@dataclass(frozen=True)
class Ladder:
    """Programs from rung 0, the leanest, to rung `rungs` - 1, the fastest.

    Peaks need not rise strictly from rung to rung.
    """

    program: Callable[[int], tuple[Action, ...]]
    rungs: int


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(Checked):
    """The options of a strategy that plans for a budget."""

    budget: str = option("", "the peak that the plan may reach, such as 800MB; empty: least memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget and not self.budget_bytes:
            raise RuleError(_BUDGET, f"must be more than nothing, not {self.budget!r}")

    @property
    def budget_bytes(self) -> int | None:
        return parse_bytes(self.budget, _BUDGET) if self.budget else None

    def budget_for(self, graph: StepGraph) -> int | None:
        """The budget, if there is one. Raises UnsupportedGraphError where it could not be kept."""
        if self.budget_bytes is not None:
            check_sized(graph)
        return self.budget_bytes


def check_sized(graph: StepGraph) -> None:
    """Raises UnsupportedGraphError where a tensor's size is known by nothing: no budget holds."""
    if graph.data.unsized:
        first, more = graph.data.unsized[0], len(graph.data.unsized) - 1
        made = next((op for op in graph.ops if op.name == first.rpartition(":")[0]), None)
        line = f" ({made.source})" if made and made.source else ""
        others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
        how = "hand what it comes of to the step as tensors, no specs and no iterator"
        if any(op.type in LOOP_TYPES for op in graph.ops):  # it may come of one
            how += ", bound the loop (maximum_iterations of tf.while_loop), move it out of the step"
        if any(op.type in PYTHON_TYPES for op in graph.ops):
            how += ", say what Python returns by tf.ensure_shape"
        raise UnsupportedGraphError(
            f"a budget needs the size of every tensor, and nothing tells that of {first}{line}"
            f"{others}: {how}, or plan without a budget"
        )


def live_bytes(clock: TimeSimulator, actions: tuple[Action, ...]) -> int:
    """The peak without padding: close to what `peak_of` says, and sooner."""
    copies = any(action.kind == "swap_out" for action in actions)
    if copies and not clock.target.copies_in_line:
        return clock.needed(actions).live_peak_bytes
    return clock.simulator.peak_live_bytes(actions)


def peak_of(clock: TimeSimulator, actions: tuple[Action, ...]) -> MemoryResult:
    """Of the plan that `assemble` makes of `actions`."""
    return clock.needed(defragment(clock, actions))


def within(
    clock: TimeSimulator, actions: tuple[Action, ...], budget_bytes: int
) -> tuple[Action, ...]:
    """`actions`. Raises InfeasibleBudgetError where their plan does not fit the budget."""
    found = peak_of(clock, actions)
    if found.peak_bytes > budget_bytes:
        raise InfeasibleBudgetError(found.peak_bytes, budget_bytes, found.peak_op)
    return actions


def fit(
    clock: TimeSimulator,
    ladders: Iterable[Ladder],
    budget_bytes: int | None,
    *,
    first: bool = False,
) -> tuple[Action, ...]:
    """The fastest program found whose simulated peak fits the budget; without a budget, the one
    with the smallest peak.

    Args:
        first: a ladder is climbed only where those before it lead nowhere.

    Raises InfeasibleBudgetError where none fits.
    """
    found: list[tuple[Action, ...]] = []
    refused: list[InfeasibleBudgetError] = []
    for ladder in ladders:
        try:
            found.append(_climb(clock, ladder, budget_bytes))
            if first:
                break
        except InfeasibleBudgetError as error:
            refused.append(error)
    if not found:
        raise min(refused, key=lambda error: error.needed_bytes)
    if len(found) == 1:
        return found[0]
    if budget_bytes is None:
        return min(
            found, key=lambda each: (peak_of(clock, each).peak_bytes, clock.step_seconds(each))
        )
    return min(found, key=clock.step_seconds)


def _climb(clock: TimeSimulator, ladder: Ladder, budget_bytes: int | None) -> tuple[Action, ...]:
    program = cache(ladder.program)
    live = cache(lambda rung: live_bytes(clock, program(rung)))
    seconds = cache(lambda rung: clock.step_seconds(program(rung)))
    spread = sorted({round(i * (ladder.rungs - 1) / (PLACES - 1)) for i in range(PLACES)})
    leanest = _leanest(live, spread)
    if budget_bytes is None:
        return program(leanest)
    limit = budget_bytes
    for _ in range(RETRIES):
        fitting = [rung for rung in {*spread, leanest} if live(rung) <= limit]
        if not fitting:
            break
        fitting.append(_higher(live, max(fitting), spread, limit))
        rung = min(fitting, key=lambda rung: (seconds(rung), -rung))
        peak = peak_of(clock, program(rung)).peak_bytes
        if peak <= budget_bytes:
            return program(rung)
        # The next one must spare what padding and lagging copies add.
        limit = min(live(rung) - 1, limit - (peak - budget_bytes))
    return within(clock, program(leanest), budget_bytes)


def _higher(live: Callable[[int], int], low: int, spread: list[int], limit: int) -> int:
    """The highest rung found above `low` whose peak is within the limit, or `low`."""
    high = min((rung for rung in spread if rung > low), default=low + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if live(middle) <= limit else (low, middle)
    return low


def _leanest(live: Callable[[int], int], spread: list[int]) -> int:
    """The rung with the smallest peak near the best of `spread`; of equals the highest."""
    best = min(range(len(spread)), key=lambda i: (live(spread[i]), -spread[i]))
    low, high = spread[max(0, best - 1)], spread[min(len(spread) - 1, best + 1)]
    rung = spread[best]
    step = (high - low) // 4
    while step:
        near = [r for r in (rung - step, rung, rung + step) if low <= r <= high]
        rung = min(near, key=lambda r: (live(r), -r))
        step //= 2
    return rung
