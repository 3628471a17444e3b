"""Blocks that repeat, taken out of a step: what is left has all that differs, and plans as soon as
a shallow network.

    stem  a a a a a a a a a  b b b b b b  head          a stage's blocks are the same but for names
    stem  a a         a a    b b     b b  head          what is solved

A block has several stretches of the graph: of the forward part, of the backward part, of the
updates. Each of them repeats with a period of its own in the order of creation. Some periods in the
middle are left out of each; what was read of them is read of the period before them:

    forward    | block 2 | block 3 ... block 7 | block 8 |      block 8 reads block 2
    backward   | grad 8  | grad 7  ... grad 3  | grad 2  |      grad 2 reads grad 8

Nothing else may cross the gaps: no variable, nothing that updates one. Where the stretches do not
fit together so (a norm of all gradients, blocks that read one tensor of all others), the step stays
as it is. After Lynx (arXiv 2406.08756), which solves identical layers once. O(ops + edges) for each
kind of block, and an array's length for each way to put the gap.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memtrade.graph import Op, StepGraph
from memtrade.graph_writer import GraphWriter
from memtrade.op_types import GIVEN_TYPES
from memtrade.plan import Decision

# So many periods stay: the two at the ends have other neighbours, those between are alike.
KEPT = 4
# How many of the most frequent distances between ops that are alike may be periods, and stretches
# that a block may have beside those of the forward and the backward part.
_PERIODS, _STRETCHES = 20, 3


@dataclass(frozen=True)
class Folded:
    """A step with fewer blocks.

    Attributes:
        of: for each tensor of the whole step, the one here that stands for it; -1 if none does.
        blocks: how many were left out.
    """

    graph: StepGraph
    of: Sequence[int]
    blocks: int

    def unfolded(self, chosen: Mapping[int, Decision]) -> dict[int, Decision]:
        """What was chosen for tensors here, for all that they stand for."""
        return {t: chosen[here] for t, here in enumerate(self.of) if here in chosen}


def folded(graph: StepGraph) -> Folded | None:
    """`graph` with `KEPT` blocks of each kind that repeats more often; None if none does."""
    small, of, blocks = graph, list(range(len(graph.tensors))), 0
    while (gaps := _Repeats(small).gaps()) is not None:
        small, here = _without(small, gaps)
        of = [here[t] if t >= 0 else -1 for t in of]
        blocks += gaps[0].periods
    return Folded(small, of, blocks) if blocks else None


class _Gap(NamedTuple):
    """So many periods from the op `begin` on."""

    begin: int
    period: int
    periods: int

    @property
    def end(self) -> int:
        return self.begin + self.length

    @property
    def length(self) -> int:
        return self.periods * self.period


class _Repeats:
    """Where a graph repeats itself.

    Attributes:
        alike: for each op, a number that it shares with those of its kind.
        made, reader: for each input of each op, the op that made it, and that op.
    """

    def __init__(self, graph: StepGraph):
        self.graph = graph
        self.alike = _alike(graph)
        counts = [len(op.inputs) for op in graph.ops]
        makers = [graph.tensors[t].op for op in graph.ops for t in op.inputs]
        self.made = np.array(makers, dtype=np.int64)
        self.reader = np.repeat(np.arange(len(graph.ops)), counts)
        self.is_fixed = np.array([op.type in GIVEN_TYPES for op in graph.ops])
        self.updates = np.array([op.stateful and not op.outputs for op in graph.ops])

    def gaps(self) -> list[_Gap] | None:
        """What may be left out for one kind of block, the forward part's first."""
        for begin, period, count in self._forward_runs():
            forward = self._narrowest(begin + 2 * period, period, count - KEPT)
            found = self._with_backward(forward)
            if found is not None:
                return found
        return None

    def _forward_runs(self) -> list[tuple[int, int, int]]:
        """(first op, period, how often) of stretches that repeat often enough, the longest
        first."""
        alike = self.alike[: self.graph.turn + 1]
        last: dict[int, int] = {}
        distances: Counter[int] = Counter()
        for i, kind in enumerate(alike.tolist()):
            if kind in last:
                distances[i - last[kind]] += 1
            last[kind] = i
        likely = sorted(distances, key=lambda each: -each * distances[each])[:_PERIODS]
        found: list[tuple[int, int, int, int]] = []
        for period in likely:
            same = np.concatenate([[False], alike[:-period] == alike[period:], [False]])
            edges = np.flatnonzero(same[1:] != same[:-1])
            for begin, end in edges.reshape(-1, 2).tolist():
                count = (end - begin) // period + 1
                if count > KEPT:
                    found.append(((KEPT - count) * period, period, begin, count))
        return [(begin, period, count) for _, period, begin, count in sorted(found)]

    def _narrowest(self, begin: int, period: int, count: int) -> _Gap:
        """The gap that begins where fewest tensors are handed on within the forward part."""
        inner = self.reader <= self.graph.turn

        def crossing(at: int) -> int:
            across = inner & (self.made < at) & (self.reader >= at) & ~self.is_fixed[self.made]
            return len(np.unique(self.made[across]))

        return _Gap(min(range(begin, begin + period), key=crossing), period, count)

    def _with_backward(self, forward: _Gap) -> list[_Gap] | None:
        """Where behind the turn fewest tensors cross a gap that fits the forward part's."""
        last = self._last_readers(forward)
        after = {at: last.get(i + forward.period) for i, at in last.items()}
        steps = {at - before for at, before in after.items() if before is not None}
        if len(steps) != 1 or (period := steps.pop()) <= 0:
            return None
        begins = range(max(last.values()) + 1 - forward.periods * period, min(last.values()) + 1)
        best: tuple[int, list[_Gap]] | None = None
        for begin in begins:
            gaps = self._with_updates([forward, _Gap(begin, period, forward.periods)])
            crossing = None if gaps is None else self._crossing(gaps)
            if gaps and crossing is not None and (best is None or crossing < best[0]):
                best = crossing, gaps
        return None if best is None else best[1]

    def _last_readers(self, forward: _Gap) -> dict[int, int]:
        """Of what reads variables in the gap, who behind the turn reads that last."""
        inside = (self.made >= forward.begin) & (self.made < forward.end)
        behind = inside & (self.reader > self.graph.turn) & self.is_fixed[self.made]
        behind &= ~self.updates[self.reader]
        return dict(zip(self.made[behind].tolist(), self.reader[behind].tolist(), strict=True))

    def _with_updates(self, gaps: list[_Gap]) -> list[_Gap] | None:
        """With gaps for what updates the variables that are left out."""
        for _ in range(_STRETCHES):
            across = self._across(gaps)
            across &= self.updates[self.reader] & self.is_fixed[self.made]
            if not across.any():
                return gaps
            readers = self.reader[across]
            end, count = int(readers.max()) + 1, gaps[0].periods
            period = -(-(end - int(readers.min())) // count)
            gaps = [*gaps, _Gap(end - count * period, period, count)]
        return None

    def _across(self, gaps: Sequence[_Gap]) -> np.ndarray:
        """Which inputs lead out of the gaps to what stays."""
        within = np.zeros(len(self.alike), dtype=bool)
        for gap in gaps:
            within[gap.begin : gap.end] = True
        return within[self.made] & ~within[self.reader]

    def _crossing(self, gaps: Sequence[_Gap]) -> int | None:
        """How many inputs lead out of the gaps to what stays; None where one must not, or where a
        gap is not made of periods that are alike."""
        if not all(map(self._repeats, gaps)):
            return None
        across = self._across(gaps)
        made, reader = self.made[across], self.reader[across]
        if self.is_fixed[made].any() or self.updates[reader].any():
            return None
        forward, backward = gaps[:2]
        early = made < forward.end
        if (reader[early] >= backward.end).any():  # a gradient of what is left out
            return None
        before = made - np.where(early, forward.length, backward.length)
        fits = (before >= 0).all() and (self.alike[before] == self.alike[made]).all()
        return len(made) if fits and (made < backward.end).all() else None

    def _repeats(self, gap: _Gap) -> bool:
        """Whether it is made of periods that are alike, and like the one before it."""
        if gap.begin < gap.period:
            return False
        before = self.alike[gap.begin - gap.period : gap.end - gap.period]
        return np.array_equal(before, self.alike[gap.begin : gap.end])


def _alike(graph: StepGraph) -> np.ndarray:
    """A number for each op, the same for those that do the same with tensors of the same sizes."""
    numbers: dict[object, int] = {}

    def kind(op: Op) -> object:
        shapes = tuple(graph.tensors[t].shape for t in (*op.inputs, *op.outputs))
        what = op.node if op.node >= 0 else repr(sorted(op.attrs.items()))
        return op.type, what, len(op.inputs), shapes

    return np.array([numbers.setdefault(kind(op), len(numbers)) for op in graph.ops])


def _without(graph: StepGraph, gaps: Sequence[_Gap]) -> tuple[StepGraph, list[int]]:
    """The graph without what lies in the gaps, and for each tensor the one that stands for it."""
    gap_of = {i: gap for gap in gaps for i in range(gap.begin, gap.end)}
    made, op_of = GraphWriter(), {}
    new = made.new

    def here(t: int) -> int:
        tensor = graph.tensors[t]
        gap = gap_of.get(tensor.op)
        if gap is None:
            return new[t]
        return new[graph.ops[tensor.op - gap.length].outputs[tensor.index]]

    for op in graph.ops:
        if op.id in gap_of:
            continue
        op_of[op.id] = made.add(
            op.name,
            op.type,
            [here(t) for t in op.inputs],
            [graph.tensors[t] for t in op.outputs],
            controls=[op_of[c] for c in op.controls if c in op_of],
            stateful=op.stateful,
            attrs=op.attrs,
            node=op.node,
        ).id
    of = [-1] * len(graph.tensors)
    for t in graph.tensors:
        maker, gap = t.op, gap_of.get(t.op)
        if gap is not None:  # the period before the gap stands for all in it
            maker = gap.begin - gap.period + (t.op - gap.begin) % gap.period
        of[t.id] = new.get(graph.ops[maker].outputs[t.index], -1)
    return StepGraph(made.data_of(graph.data, op_of)), of
