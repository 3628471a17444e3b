"""A training step as a chain: segments of the forward part between frontiers, with their costs.

    start ──segment 0──► F1 ──segment 1──► F2 ── ... ──segment n──► turn
          ◄─backward 0──    ◄─backward 1──           ◄─backward n──

What a frontier hands over (`segments.Frontier`) is enough to go on from there. So for a planner a
step comes down to some numbers per segment, which are read off one simulated program: the one that
keeps every frontier and recomputes everything between them.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from memtrade.graph import StepGraph, reached
from memtrade.plan import Action
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.baselines.stages import BackwardStage, droppable, emit, phases
from memtrade.strategies.segments import Frontier, frontiers


@dataclass(frozen=True)
class Segment:
    """What a planner needs to know of one segment.

    Attributes:
        stash: root tensors that its backward ops read and that are made in it, and those of the
            frontier at its end; stateful ops' outputs, which always stay, left out.
        walk_seconds: to recompute the frontier at its end from the one at its start.
        rebuild_seconds: to recompute the rest of the stash, from both frontiers.
        forward_bytes, backward_bytes: most bytes in use while its forward or its backward ops run,
            besides what always is and the frontiers up to its start.
        backward_ops: in the order in which they run.
    """

    stash: tuple[int, ...]
    walk_seconds: float
    rebuild_seconds: float
    forward_bytes: int
    backward_bytes: int
    backward_ops: tuple[int, ...]


class Chain:
    """The chain of a graph, with at most `max_segments` segments."""

    def __init__(self, graph: StepGraph, times: TimeSimulator, max_segments: int):
        self.graph, self.times = graph, times
        self.droppable = droppable(graph)
        before_turn = [f for f in frontiers(graph) if f.op < graph.turn]
        self.frontiers = _coarser(graph, before_turn, max_segments - 1)
        self._ends = [f.op for f in self.frontiers]
        # Node 0 is the start, node j the frontier in front of segment j.
        self.nodes: list[tuple[int, ...]] = [
            (),
            *(tuple(t for t in f.tensors if t in self.droppable) for f in self.frontiers),
        ]
        kept = {t for node in self.nodes for t in node}
        self.forward_ops, behind = phases(graph, kept)
        self._blocks = self._split(behind)

    def __len__(self) -> int:
        return len(self.nodes)

    def segment_of(self, tensor: int) -> int:
        """The segment in which a forward tensor is made."""
        return bisect_left(self._ends, self.graph.tensors[tensor].op)

    def added_bytes(self, before: int, node: int) -> int:
        """Bytes of a node's tensors that are made after node `before`."""
        return self.graph.bytes_of(t for t in self.nodes[node] if self.segment_of(t) >= before)

    @cached_property
    def segments(self) -> list[Segment]:
        stashes = self._stashes()
        forward, backward = self._measure()
        return [
            Segment(
                stash=tuple(stashes[s]),
                walk_seconds=self._seconds(s, self._end(s), ()),
                rebuild_seconds=self._seconds(s, stashes[s], self._end(s)),
                forward_bytes=forward[s],
                backward_bytes=backward[s],
                backward_ops=tuple(self._blocks[s]),
            )
            for s in range(len(self))
        ]

    def program(
        self, stored: Iterable[int], visits: Sequence[tuple[Iterable[int], Iterable[int]]]
    ) -> tuple[Action, ...]:
        """The step as a schedule says.

        Args:
            stored: what is held after the forward part.
            visits: for each segment, from the last to the first, what to recompute before its
                backward ops and what to hold after them.
        """
        stages = [BackwardStage(self.forward_ops, (), stored)]
        for s, (rebuild, retained) in zip(reversed(range(len(self))), visits, strict=True):
            stages.append(BackwardStage(self._blocks[s], tuple(rebuild), retained))
        return emit(self.graph, stages)

    def _split(self, backward: Sequence[int]) -> list[list[int]]:
        """The backward ops by segment: an op belongs to the last segment that is not done with,
        that is, of which it or a later op reads a tensor."""
        blocks: list[list[int]] = [[] for _ in self.nodes]
        current = 0
        for op_id in reversed(backward):
            for t in self.graph.ops[op_id].inputs:
                if self.graph.root[t] in self.droppable:
                    current = max(current, self.segment_of(self.graph.root[t]))
            blocks[current].append(op_id)
        return [block[::-1] for block in blocks]

    def _end(self, s: int) -> tuple[int, ...]:
        """The tensors of the frontier at the end of segment `s` that are made in it."""
        if s + 1 == len(self):
            return ()
        return tuple(t for t in self.nodes[s + 1] if self.segment_of(t) == s)

    def _stashes(self) -> list[list[int]]:
        stashes: list[list[int]] = [[] for _ in self.nodes]
        ends = {t for node in self.nodes for t in node}
        for t in sorted(ends.union(self.graph.activations) & self.droppable):
            stashes[min(self.segment_of(t), len(self) - 1)].append(t)
        return stashes

    def _seconds(self, s: int, wanted: Iterable[int], there: Iterable[int]) -> float:
        """To recompute `wanted` within segment `s`, whose start and `there` are there."""
        graph, done = self.graph, set(there)

        def own(tensors: Iterable[int]) -> list[int]:
            return [t for t in tensors if t not in done and self.segment_of(t) == s]

        def read(t: int) -> list[int]:
            roots = {graph.root[i] for i in graph.ops[graph.tensors[t].op].inputs}
            return own(roots & self.droppable)

        ops = {graph.tensors[t].op for t in reached(own(wanted), read)}
        return sum(self.times.op_seconds[op_id] for op_id in sorted(ops))

    def _measure(self) -> tuple[list[int], list[int]]:
        """`forward_bytes` and `backward_bytes` of each segment."""
        count = len(self)
        kept = [frozenset(t for node in self.nodes[: s + 1] for t in node) for s in range(count)]
        actions = self.program(kept[-1], [((), kept[s]) for s in reversed(range(count))])
        in_use = self.times.simulator.live_bytes(actions)
        always = min(in_use)
        last_read = {
            self.graph.root[t]: i
            for i, action in enumerate(actions)
            for t in self.graph.ops[action.id].inputs
        }
        forward, backward = [0] * count, [0] * count
        for i, (s, turned) in enumerate(self._places(actions)):
            behind = self.graph.bytes_of(t for t in kept[s] if last_read.get(t, -1) >= i)
            most = backward if turned else forward
            most[s] = max(most[s], in_use[i] - always - behind)
        return forward, backward

    def _places(self, actions: Sequence[Action]) -> list[tuple[int, bool]]:
        """For each action its segment, and whether it belongs to the backward part."""
        blocks = {op_id: s for s, block in enumerate(self._blocks) for op_id in block}
        places: list[tuple[int, bool]] = []
        s = 0
        for action in actions[: len(self.forward_ops)]:
            if action.id in self.graph.forward:
                s = max(s, min(bisect_left(self._ends, action.id), len(self) - 1))
            places.append((s, False))
        behind: list[tuple[int, bool]] = []
        for action in reversed(actions[len(self.forward_ops) :]):
            if action.kind == "run":  # and what is recomputed before it is for it
                s = blocks[action.id]
            behind.append((s, True))
        return places + behind[::-1]


def _coarser(graph: StepGraph, found: list[Frontier], most: int) -> list[Frontier]:
    """Without frontiers that hand over nothing new that the backward part reads; at most `most`.

    A frontier behind an op whose result only the next op reads is no better than the one behind
    that: a batch normalization's in front of its ReLU.
    """
    read = set(graph.activations)
    useful: list[Frontier] = []
    known: set[int] = set()
    for f in found:
        if any(t in read and t not in known for t in f.tensors):
            useful.append(f)
            known.update(f.tensors)
    most = min(len(useful), most)
    ends = [round(i * len(useful) / most) for i in range(most + 1)] if most else []
    stretches = [useful[i:j] for i, j in itertools.pairwise(ends)]
    return [min(stretch, key=lambda f: (f.size_bytes, f.op)) for stretch in stretches]
