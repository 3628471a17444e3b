"""greedy: swap what can be hidden, then recompute or swap what costs least per byte (Capuchin).

After X. Peng et al., "Capuchin: Tensor-based GPU memory management for deep learning", ASPLOS
2020, doi 10.1145/3373376.3378505. Candidates are the activations; the names are the paper's:

    evicted access    the last forward reader. back access: the first backward reader
    free time FT      back access less evicted access less the copies out and in. A swap is hidden
                      if it is positive, and if the copies before and after it leave the time
    MSPS              memory saving per second: bytes over the time that saving them costs
    rp_time           to recompute the tensor from what is kept or swapped; grows as sources go
    ext_time          rp_time once more for each tensor already chosen that has it as its source

First, by free time, those whose swap is hidden. Then, by MSPS, the others, each in the cheaper of
both ways, where a swap that is not hidden costs its copies, and a recomputation rp_time + ext_time.
One after the other until the simulated peak fits the budget.

Where we differ: times come from a device profile and not from a measured step; what is recomputed
stays until its last reader, as in all our plans. Where copies block (the arena), none is hidden.
Not looked at, as in the paper: where in the step the memory is saved, and what recomputations
themselves hold. O(activations^2 + activations x ops recomputed).
"""

import math
from collections.abc import Iterable, Iterator

from memtrade.graph import StepGraph, reached
from memtrade.plan import Action, Decision, Fate, Plan
from memtrade.schedule import lower
from memtrade.simulate.overlap import overlap
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import Strategy, assemble, clock_of, decisions, worth_deciding
from memtrade.strategies.baselines.stages import droppable, phases
from memtrade.strategies.budget import BudgetOptions as Options
from memtrade.strategies.budget import Ladder, fit
from memtrade.target import Target

# Of the budget, how much is planned with where copies run beside compute: the rest is for the
# padding that late copies cause. With none of it, every copy is waited for.
SHARES = (1.0, 0.9, 0.8, 0.0)


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    clock = clock_of(graph, target)
    chosen = choose(graph, clock)
    made: dict[tuple[Action, ...], list[Fate]] = {}

    def ladder(limit_bytes: float) -> Ladder:
        def program(rung: int) -> tuple[Action, ...]:
            fates = _fates(graph, chosen[: len(chosen) - rung])
            actions = overlap(clock, lower(graph, decisions(fates)), limit_bytes)
            made[actions] = fates
            return actions

        return Ladder(program, len(chosen) + 1)

    budget_bytes = options.budget_for(graph)
    shares = SHARES if budget_bytes and not target.copies_in_line else (0.0,)
    actions = fit(
        clock, (ladder((budget_bytes or 0) * share) for share in shares), budget_bytes, first=True
    )
    return assemble("greedy", graph, options, target, made[actions], actions)


def _fates(graph: StepGraph, chosen: Iterable[Fate]) -> list[Fate]:
    by_tensor = {fate.tensor: fate for fate in chosen}
    return [by_tensor.get(t, Fate(t, "keep", "not needed")) for t in worth_deciding(graph)]


def choose(graph: StepGraph, times: TimeSimulator) -> list[Fate]:
    """All that may leave the device, in the order in which it is taken."""
    candidates = accesses(graph, times)
    free = {
        t: back - evicted - times.out_seconds[t] - times.in_seconds[t]
        for t, (evicted, back) in candidates.items()
    }
    hidden = _hidden(candidates, free, times)
    chosen = [Fate(t, "swap", f"hidden, {1e3 * free[t]:.1f} ms to spare") for t in hidden]
    rest = [t for t in candidates if t not in set(hidden)]
    return chosen + _by_saving_per_second(graph, rest, times)


def accesses(graph: StepGraph, times: TimeSimulator) -> dict[int, tuple[float, float]]:
    """For each activation, when its last forward reader ends and its first backward one starts."""
    candidates = worth_deciding(graph)
    forward, backward = phases(graph, candidates)
    evicted: dict[int, float] = {}
    back: dict[int, float] = {}
    now = 0.0
    for op_id in forward:
        op = graph.ops[op_id]
        now += times.op_seconds[op_id]
        evicted.update(dict.fromkeys((*op.outputs, *(graph.root[t] for t in op.inputs)), now))
    for op_id in backward:
        for t in graph.ops[op_id].inputs:
            back.setdefault(graph.root[t], now)
        now += times.op_seconds[op_id]
    return {t: (evicted[t], back[t]) for t in candidates if t in back}


def _hidden(
    candidates: dict[int, tuple[float, float]], free: dict[int, float], times: TimeSimulator
) -> list[int]:
    """The tensors whose copies nobody waits for, by descending free time.

    Copies out run one after the other in the order in which the tensors are ready, copies in in
    that in which they are needed, each as late as it may. A tensor is taken unless for one of those
    taken its copy in had to start before its copy out has ended.
    """
    if times.device.blocking_transfers:
        return []
    taken: list[int] = []
    for t in sorted(candidates, key=lambda t: (-free[t], t)):
        if free[t] > 0 and _all_in_time([*taken, t], candidates, times):
            taken.append(t)
    return taken


def _all_in_time(
    tensors: list[int], candidates: dict[int, tuple[float, float]], times: TimeSimulator
) -> bool:
    gone: dict[int, float] = {}
    now = 0.0
    for t in sorted(tensors, key=lambda t: (candidates[t][0], t)):
        now = gone[t] = max(now, candidates[t][0]) + times.out_seconds[t]
    now = math.inf
    for t in sorted(tensors, key=lambda t: (-candidates[t][1], t)):
        now = min(now, candidates[t][1]) - times.in_seconds[t]
        if now < gone[t]:
            return False
    return True


def _by_saving_per_second(graph: StepGraph, rest: list[int], times: TimeSimulator) -> list[Fate]:
    """`rest` by descending MSPS, which is worked out anew for what a choice has changed."""
    sources = _Sources(graph, times)
    remaining = dict.fromkeys(rest)
    costs = {t: sources.seconds(t) for t in rest}
    copies = {t: times.out_seconds[t] + times.in_seconds[t] for t in rest}

    def msps(t: int) -> float:
        return graph.tensors[t].size_bytes / max(min(costs[t], copies[t]), 1e-12)

    chosen: list[Fate] = []
    while remaining:
        best = max(remaining, key=lambda t: (msps(t), -t))
        del remaining[best]
        decision: Decision = "recompute" if costs[best] < copies[best] else "swap"
        chosen.append(Fate(best, decision, f"saves {msps(best) / 1e9:.1f} GB per second"))
        if decision == "recompute":
            for t in sources.drop(best):
                if t in remaining:
                    costs[t] = sources.seconds(t)
    return chosen


class _Sources:
    """What each activation is recomputed from, as more and more of them are recomputed."""

    def __init__(self, graph: StepGraph, times: TimeSimulator):
        self.graph, self.times = graph, times
        self.may_drop = droppable(graph)
        self.there = set(worth_deciding(graph))
        self.sources: dict[int, set[int]] = {}  # of those whose cost was asked for
        self.made_from: dict[int, set[int]] = {}  # activation -> those chosen that start from it

    def seconds(self, tensor: int) -> float:
        """rp_time + ext_time; infinite for the output of a stateful op."""
        if tensor not in self.may_drop:
            return math.inf
        sources = self.sources[tensor] = set()

        def again(op_id: int) -> Iterator[int]:
            for root in (self.graph.root[t] for t in self.graph.ops[op_id].inputs):
                if root in self.there:
                    sources.add(root)
                elif root in self.may_drop:
                    yield self.graph.tensors[root].op

        ops = reached([self.graph.tensors[tensor].op], again)
        rp_time = sum(self.times.op_seconds[op_id] for op_id in sorted(ops))
        return rp_time * (1 + len(self.made_from.get(tensor, ())))

    def drop(self, tensor: int) -> list[int]:
        """From here on `tensor` is recomputed. Returns the activations whose cost changes."""
        self.there.discard(tensor)
        sources = self.sources.pop(tensor)
        again = self.made_from.pop(tensor, set()) | {tensor}
        for source in sources:
            self.made_from.setdefault(source, set()).update(again)
        return sorted(sources.union(t for t, starts in self.sources.items() if tensor in starts))


STRATEGY = Strategy(
    "greedy", "swap what can be hidden, then what costs least per byte (Capuchin)", Options, plan
)
