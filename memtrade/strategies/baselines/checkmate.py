"""checkmate: recomputation as an integer program over the whole step; nothing is swapped.

After P. Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization",
MLSys 2020, arXiv 1910.02653; the program itself is in `dag.py`. Its nodes are the step's large
tensors and the ops of its backward part, if there are at most OP_NODES of them; else the inside
of each segment of the coarsened chain, the frontier behind it, and its backward part. Up to
EXACT_NODES nodes the schedule comes from branch and bound, cut off after BRANCHES of its nodes;
above, and where that finds nothing, from the rounded linear relaxation.

The program counts outputs, the simulator everything: so the program's budget is moved until the
simulated peak comes close to the asked one from below, and the fastest plan that fits is taken.
Exact is therefore the schedule for the program's budget, not the plan for the user's. The program
has O(nodes (nodes + edges)) columns and rows, and is solved at most MOVES times.
"""

import math
from functools import cached_property, lru_cache

import numpy as np

from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import Strategy, assemble, clock_of
from memtrade.strategies.baselines.chain import Chain
from memtrade.strategies.baselines.dag import Recomputation, Relaxed, relax, schedule_of, solve
from memtrade.strategies.baselines.nodes import NodeGraph, nodes_of_chain, nodes_of_ops
from memtrade.strategies.baselines.rounding import round_schedule
from memtrade.strategies.baselines.stages import fates
from memtrade.strategies.budget import BudgetOptions as Options
from memtrade.strategies.budget import live_bytes, peak_of, within
from memtrade.target import Target

OP_NODES = 240
CHAIN_NODES = 200
# With 36 nodes branch and bound takes a second, with 42 half a minute, and with 49 (PixelCNN), cut
# off after minutes, it is worse than the rounded relaxation.
EXACT_NODES = 36
BRANCHES = 100
# The gap of branch and bound: for a schedule that counts, and for whether there is one at all.
EXACT = 1e-6
ROUGH = 0.5
# How often the program's budget is moved, and how close to the asked peak is close enough.
MOVES = 8
CLOSE = 0.005


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    planner = _planner_of(clock_of(graph, target))
    budget_bytes = options.budget_for(graph)
    actions = planner.leanest if budget_bytes is None else planner.fastest(budget_bytes)
    return assemble("checkmate", graph, options, target, fates(graph, actions), actions)


@lru_cache(maxsize=1)
def _planner_of(clock: TimeSimulator) -> "_Planner":
    """The last one is kept: for each budget that it cannot keep to it looks for the smallest peak,
    which takes longer than all else and is always the same."""
    return _Planner(clock, choose_nodes(clock.graph, clock))


def choose_nodes(graph: StepGraph, clock: TimeSimulator) -> NodeGraph:
    """The finest view of the step that is small enough."""
    fine = nodes_of_ops(graph)
    if len(fine) <= OP_NODES:
        return NodeGraph(clock, fine)
    segments = CHAIN_NODES // 2
    while True:
        coarse = nodes_of_chain(Chain(graph, clock, segments))
        if len(coarse) <= CHAIN_NODES or segments <= 2:
            return NodeGraph(clock, coarse)
        segments = min(segments - 1, segments * CHAIN_NODES // len(coarse))


class _Planner:
    """Looks for the program's budget that brings the simulated peak to where it should be."""

    def __init__(self, clock: TimeSimulator, nodes: NodeGraph):
        self.clock, self.nodes, self.dag = clock, nodes, nodes.dag
        self.relaxed: Relaxed | None = None

    @cached_property
    def leanest(self) -> tuple[Action, ...]:
        """The program with the smallest simulated peak, among those for the smallest budgets."""
        self.relaxed = relax(self.dag, None)
        assert self.relaxed is not None
        everything = schedule_of(self.dag, np.ones((len(self.dag), len(self.dag)), bool))
        low, high = self.relaxed.budget, everything.peak
        found = [self.nodes.program(everything)]
        for _ in range(MOVES):
            if high - low <= CLOSE * high:
                break
            middle = (low + high) / 2
            schedule = self._schedule(middle, relative_gap=ROUGH)
            if schedule is None:
                low = middle
            else:
                high = min(middle, schedule.peak)
                found.append(self.nodes.program(schedule))
        schedule = self._schedule(high)
        if schedule is not None:
            found.append(self.nodes.program(schedule))
        return min(
            found, key=lambda each: (live_bytes(self.clock, each), self.clock.step_seconds(each))
        )

    def fastest(self, budget_bytes: int) -> tuple[Action, ...]:
        """Raises InfeasibleBudgetError where no program found fits."""
        target = budget_bytes - self.nodes.always_bytes
        self.relaxed = relax(self.dag, target)
        low, high = 0.0, math.inf  # targets whose program fits, and does not
        best: tuple[Action, ...] | None = None
        for _ in range(MOVES if self.relaxed else 0):
            schedule = self._schedule(target)
            if schedule is None:
                break
            actions = self.nodes.program(schedule)
            room = budget_bytes - peak_of(self.clock, actions).peak_bytes
            if room >= 0:
                low = max(low, target)
                if best is None or self.clock.step_seconds(actions) < self.clock.step_seconds(best):
                    best = actions
                if (
                    room <= CLOSE * budget_bytes
                    or not schedule.runs[~np.eye(len(self.dag), dtype=bool)].any()
                ):
                    break
            else:
                high = min(high, target)
            target += room
            if not low < target < high:
                target = (low + high) / 2
        return best or within(self.clock, self.leanest, budget_bytes)

    def _schedule(self, budget: float, relative_gap: float = EXACT) -> Recomputation | None:
        """Exact where that is possible, else the rounded relaxation of the first budget."""
        found: Recomputation | None = None
        if len(self.dag) <= EXACT_NODES:
            found = solve(self.dag, budget, node_limit=BRANCHES, relative_gap=relative_gap)
        if found is None and self.relaxed is not None:
            found = round_schedule(self.dag, self.relaxed, budget)
        return found


STRATEGY = Strategy(
    "checkmate", "recomputation by integer programming over the whole step", Options, plan
)
