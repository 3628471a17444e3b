"""rotor: the fastest persistent recomputation of a chain, for a budget; nothing is swapped.

After O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal checkpointing for
heterogeneous chains: how to train deep neural networks with limited memory", 2019, arXiv
1911.13214. The chain is that of `chain.py`: segments between frontiers. With the frontier in front
of segment a stored, Opt(a, b, m) is the least time to take the backward part from segment b down to
a with m bytes besides it; nothing is dropped but by the schedule ("persistent"):

    Opt(a, a, m) = rebuild_a                                           if m >= backward_a
    Opt(a, b, m) = the least of
        walk from a to j, store frontier j:                            (their C1, eq. 3)
            walk_a + ... + walk_(j-1) + Opt(j, b, m - frontier_j) + Opt(a, j-1, m)
            if m >= gradient_b + forward_i for i from a to j-1, with what frontier i adds
        store all that the backward part of segment a needs:           (their C2, eq. 4)
            walk_a + Opt(a+1, b, m - stash_a)
            if m >= backward_a, and the same for forward_a

    a, b        segments, in the paper s and t             rebuild, walk   their u_f
    frontier    their a^(s), only what it adds to the      stash           their a-bar
                one before: skip connections are shared    backward        their limit on u_b
    gradient    their delta^(b)

O(n^2) steps on arrays of n x SLOTS, O(n^2 SLOTS) memory. It is optimal for the chain: within a
segment all is kept or all recomputed, and sizes are rounded to slots. What a segment needs is
measured on one program and taken as given, so the simulator judges each of the schedules that come
out for different m, and the fastest one that fits is the plan. What could be better: several ways
to keep a segment, as Rockmate has them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import Strategy, assemble, clock_of
from memtrade.strategies.baselines.chain import Chain
from memtrade.strategies.baselines.stages import fates
from memtrade.strategies.budget import BudgetOptions as Options
from memtrade.strategies.budget import Ladder, fit
from memtrade.target import Target

# Memory is counted in this many slots, of which the whole step without recomputation takes all.
SLOTS = 300
# A fine chain has more to choose from; in a coarse one, branches of a block come back one by one.
SEGMENTS = (200, 80)

Table = NDArray[np.float32]


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    clock = clock_of(graph, target)
    actions = fit(clock, ladders(graph, clock), options.budget_for(graph))
    return assemble("rotor", graph, options, target, fates(graph, actions), actions)


def ladders(graph: StepGraph, clock: TimeSimulator) -> list[Ladder]:
    """The schedules of each chain, by the memory that they are made for."""
    made: dict[int, Ladder] = {}
    for most in SEGMENTS:
        chain = Chain(graph, clock, most)
        if len(chain) not in made:
            made[len(chain)] = _ladder(chain)
    return list(made.values())


def _ladder(chain: Chain) -> Ladder:
    costs = costs_of(chain)
    table = solve(costs)
    memory = distinct(table)
    return Ladder(lambda rung: program(chain, costs, table, memory[rung]), len(memory))


@dataclass(frozen=True)
class Costs:
    """A chain of n segments in numbers; memory in slots, time in seconds.

    Attributes:
        walk, rebuild: for each segment.
        backward: memory that its backward part needs.
        stash: memory to store all of it.
        gradient: memory of the gradient that its backward part starts from.
        frontier: [a, j]: memory to store frontier j with frontier a stored.
        forward: [a, j]: memory to walk from a to j, besides frontier a.
        slots: memory that is ever needed.
    """

    walk: NDArray[np.float64]
    rebuild: NDArray[np.float64]
    backward: NDArray[np.int64]
    stash: NDArray[np.int64]
    gradient: NDArray[np.int64]
    frontier: NDArray[np.int64]
    forward: NDArray[np.int64]
    slots: int

    def __len__(self) -> int:
        return len(self.walk)


def costs_of(chain: Chain) -> Costs:
    """The numbers of a chain. The slots hold all stashes and the largest backward part."""
    graph, segments, n = chain.graph, chain.segments, len(chain)
    stash = np.array([graph.bytes_of(s.stash) for s in segments], float)
    backward = np.array([s.backward_bytes for s in segments], float)
    frontier = np.zeros((n, n))
    forward = np.zeros((n, n))
    for a in range(n):
        for j in range(a + 1, n):
            frontier[a, j] = chain.added_bytes(a, j)
            stored = frontier[a, j - 1] if j > a + 1 else 0
            forward[a, j] = max(forward[a, j - 1], stored + segments[j - 1].forward_bytes)
    gradient = np.array([*(graph.bytes_of(chain.nodes[s]) for s in range(1, n)), 0], float)
    slot_bytes = (stash[:-1].sum() + max(backward.max(), forward.max())) / SLOTS

    def rounded(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint(sizes / slot_bytes).astype(np.int64)

    # The last segment is on its way back when its forward part has run: nothing to rebuild.
    rebuild = np.array([*(s.rebuild_seconds for s in segments[:-1]), 0.0])
    return Costs(
        walk=np.array([s.walk_seconds for s in segments]),
        rebuild=rebuild,
        backward=rounded(backward),
        stash=rounded(stash),
        gradient=rounded(gradient),
        frontier=rounded(frontier),
        forward=rounded(forward),
        slots=SLOTS,
    )


def solve(costs: Costs) -> Table:
    """Opt: [a, b, m] for m from 0 to `costs.slots`; infinite where there is no schedule."""
    n, size = len(costs), costs.slots + 1
    table = np.full((n, n, size), np.inf, np.float32)
    for a in reversed(range(n)):
        table[a, a, costs.backward[a] :] = costs.rebuild[a]
        if a + 1 < n:
            walk = costs.gradient[a + 1 :] + costs.forward[a, a + 1]
            needed = np.maximum(walk, costs.backward[a])
            through = _later(table[a + 1, a + 1 :], costs.stash[a], needed)
            through += np.float32(costs.walk[a])
            np.minimum(table[a, a + 1 :], through, out=table[a, a + 1 :])
        walked = np.float32(0.0)
        for j in range(a + 1, n):
            # All that goes through j, for each b from j on. Opt(a, j - 1) is final by now.
            walked += np.float32(costs.walk[j - 1])
            needed = costs.gradient[j:] + costs.forward[a, j]
            through = _later(table[j, j:], costs.frontier[a, j], needed)
            through += walked + table[a, j - 1]
            np.minimum(table[a, j:], through, out=table[a, j:])
    return table


def _later(table: Table, slots: int, needed: NDArray[np.int64]) -> Table:
    """A copy of rows of Opt in which m stands for m - slots; infinite below what a row needs."""
    memory = np.arange(table.shape[1])
    later = np.full_like(table, np.inf)
    later[:, slots:] = table[:, : max(0, len(memory) - slots)]
    later[memory < needed[:, None]] = np.inf
    return later


def distinct(table: Table) -> list[int]:
    """The least m of each time that the whole chain can take; ascending in m."""
    times = table[0, -1]
    return [
        m
        for m in range(len(times))
        if np.isfinite(times[m]) and (m == 0 or times[m] < times[m - 1])
    ]


def choose(costs: Costs, table: Table, a: int, b: int, m: int) -> int:
    """What Opt(a, b, m) does first, for a < b: j to walk to j and store frontier j; a to store
    all of segment a."""
    best, least = a, np.inf
    left = m - costs.stash[a]
    if left >= 0 and m >= max(costs.gradient[b] + costs.forward[a, a + 1], costs.backward[a]):
        least = costs.walk[a] + table[a + 1, b, left]
    walked = 0.0
    for j in range(a + 1, b + 1):
        walked += costs.walk[j - 1]
        left = m - costs.frontier[a, j]
        if left >= 0 and m >= costs.gradient[b] + costs.forward[a, j]:
            through = walked + table[j, b, left] + table[a, j - 1, m]
            if through < least:
                best, least = j, through
    return best


def program(chain: Chain, costs: Costs, table: Table, m: int) -> tuple[Action, ...]:
    """The step as Opt(0, n - 1, m) has it, for an m with a schedule."""
    nodes, stashes = chain.nodes, [set(segment.stash) for segment in chain.segments]
    stored: frozenset[int] | None = None  # after the forward part
    visits: list[tuple[list[int], frozenset[int]]] = []
    # What is left to do: (a, b, m) with what is held from before. The frontier behind b is what
    # was last worked on; its tensors stay for the gradient ops of segment b that read them.
    todo = [(0, len(chain) - 1, m, frozenset[int]())]
    while todo:
        a, b, m, held = todo.pop()
        rebuild: list[int] = []
        while a < b:
            j = choose(costs, table, a, b, m)
            if j == a:
                todo.append((a, a, m, held.union(stashes[a])))
                m -= int(costs.stash[a])
                rebuild.extend(chain.segments[a].stash)
                held, a = held.union(stashes[a]), a + 1
            else:
                todo.append((a, j - 1, m, held))
                m -= int(costs.frontier[a, j])
                rebuild.extend(nodes[j])
                held, a = held.union(nodes[j]), j
        if stored is None:
            stored, rebuild = held.union(stashes[b]), []
        retained = todo[-1][3].union(nodes[b]) if todo else frozenset[int]()
        visits.append((rebuild, retained))
    assert stored is not None
    return chain.program(stored, visits)


STRATEGY = Strategy(
    "rotor", "the fastest recomputation schedule of a chain of segments", Options, plan
)
